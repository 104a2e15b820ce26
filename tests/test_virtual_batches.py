"""VIRTUAL with epochs of mini-batches: by hand, in expectation, near the optimum, and what is refused."""

import numpy as np
import pytest

from fedconvex import Federation, Logistic, Squared, run
from fedconvex.draws import BATCHES, Draws, key_from_seed
from fedconvex.methods import VIRTUAL
from fedconvex.problems import GaussianPosteriorProblem
from fedconvex.solvers.posteriors.gaussians import unpack
from fedconvex.traits import traits_of
from fedconvex.verify import verify
from fedconvex.words import words_of

SIZES = (5, 8, 3)


def posterior(loss=Squared(), covariance="full", **settings):  # noqa: B008
    rng = np.random.default_rng(4)
    X = [rng.normal(size=(n, 2)) for n in SIZES]
    y = [rng.choice([-1.0, 1.0], n) if isinstance(loss, Logistic) else rng.normal(size=n) for n in SIZES]
    return GaussianPosteriorProblem(
        Federation.from_clients(list(zip(X, y, strict=True))), loss, covariance=covariance, **settings
    )


def by_hand(problem, T, E, B, share, rho, seed):
    """Precision and shift of s for a linear model with noise 1 and prior I: sums of x x' and x y over the batches."""
    fed, d = problem.federation, 2
    L, h, sites = np.eye(d), np.zeros(d), [(np.zeros((d, d)), np.zeros(d)) for _ in SIZES]
    for t in range(T):
        answers = []
        for k, n in enumerate(SIZES):
            X, y = fed.client_rows(k)
            draws = Draws(key_from_seed(seed), np.arange(1), t)
            orders = draws.uniform(E * n, int(fed.ids[k]), BATCHES)[0].reshape(E, n).argsort(axis=1)
            A, b, step = L, h, min(B, n)
            for order in orders if step < n else [np.arange(n)] * E:
                for rows in (order[i : i + step] for i in range(0, n, step)):
                    scale, x, z = n / len(rows), X[rows], y[rows]
                    A = (1.0 - share) * A + share * (L - sites[k][0] + scale * x.T @ x)
                    b = (1.0 - share) * b + share * (h - sites[k][1] + scale * x.T @ z)
            answers.append((rho * (A - L), rho * (b - h)))
        sites = [(P + dP, g + dg) for (P, g), (dP, dg) in zip(sites, answers, strict=True)]
        L, h = L + sum(a for a, _ in answers), h + sum(a for _, a in answers)
    return L, h


def test_epochs_are_the_pseudo_code():
    problem = posterior()
    state = run(VIRTUAL(rho=0.5, epochs=2, batch_size=4, step_size=0.3), problem, rounds=3, tol=0, seed=6).state
    L, h = by_hand(problem, 3, 2, 4, 0.3, 0.5, 6)
    np.testing.assert_allclose(unpack(state.precision[0], 2, False), L, rtol=1e-11)
    np.testing.assert_allclose(state.shift[0], h, rtol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"epochs": 2}, {"local_steps": 3}])
def test_natural_parameters_are_unbiased(how):
    """On linear models they are linear in what is drawn: the mean of 200 trajectories is the run on all rows."""
    problem, steps = posterior(), {"rho": 0.5, "step_size": 0.4}
    drawn = run(VIRTUAL(**steps, **how, batch_size=1), problem, rounds=2, tol=0, seed=1, trajectories=200).state
    each = {k: sum(SIZES[k : k + 1]) * how["epochs"] if "epochs" in how else how["local_steps"] for k in range(3)}
    L, h, sites = np.eye(2), np.zeros(2), [(0.0, 0.0)] * 3
    for _ in range(2):
        answers = []
        for k, n in each.items():
            X, y = problem.federation.client_rows(k)
            far = 1.0 - 0.6**n
            answers.append((0.5 * far * (X.T @ X - sites[k][0]), 0.5 * far * (X.T @ y - sites[k][1])))
        sites = [(P + dP, g + dg) for (P, g), (dP, dg) in zip(sites, answers, strict=True)]
        L, h = L + sum(a for a, _ in answers), h + sum(a for _, a in answers)
    for found, exact in ((drawn.precision, L[np.triu_indices(2)]), (drawn.shift, h)):
        z = (found.mean(axis=0) - exact) / (found.std(axis=0, ddof=1) / np.sqrt(200))
        assert np.abs(z).max() < 4.5, z
        assert found.std(axis=0).min() > 1e-3


def test_all_rows_are_no_draw():
    problem = posterior(Logistic(), "diagonal", private_precision=1.0)
    a = run(VIRTUAL(rho=0.5, epochs=2, batch_size=8, step_size=0.5), problem, rounds=3, tol=0)
    b = run(VIRTUAL(rho=0.5, local_steps=2, step_size=0.5), problem, rounds=3, tol=0)
    np.testing.assert_array_equal(a.w, b.w)
    assert traits_of(VIRTUAL(rho=0.5, epochs=2, batch_size=8), problem).deterministic
    assert traits_of(VIRTUAL(rho=0.5, epochs=2, batch_size=7), problem).drawn == ("batches",)
    words = words_of(VIRTUAL(rho=0.5, epochs=2, batch_size=7, step_size=0.1), problem)
    assert words.short == ("rho 0.5", "E 2", "B 7") and "2 epochs of steps of 0.1 on 7 rows" in words.work


@pytest.mark.slow
def test_shorter_steps_settle_nearer():
    problem = posterior(Logistic(), "diagonal")
    ends = []
    for share, rounds in ((0.5, 30), (0.05, 60)):
        method = VIRTUAL(rho=0.3, epochs=1, batch_size=1, step_size=share)
        result = run(method, problem, rounds=rounds, tol=0, seed=2, trajectories=2, record_every=rounds)
        ends.append(float(np.mean(result.trace.value[-1])) - problem.solve().value)
    assert 0.0 < ends[1] < 0.3 * ends[0], ends


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 2}, "come with local_steps or epochs"),
        ({"epochs": 2, "local_steps": 2}, "local_steps or epochs"),
        ({"epochs": 0}, "at least 1"),
        ({"rho": "auto", "epochs": 1, "batch_size": 2}, "be a number where rows are drawn"),
    ],
)
def test_bad_input(settings, message):
    with pytest.raises(ValueError, match=message):
        run(VIRTUAL(**{"rho": 0.5} | settings), posterior(Logistic()), rounds=1)


def test_theorems_ask_for_exact_solutions():
    verdict = verify("virtual-growth", posterior(), VIRTUAL(rho=0.5, epochs=1, batch_size=2), rounds=2)
    assert verdict.outcome.name == "NOT_APPLICABLE" and "epochs=1" in str(verdict)
