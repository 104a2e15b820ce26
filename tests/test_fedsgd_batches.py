"""FedSGD on mini-batches: FedAvg with one step, whose model it is up to rounding, and what its settings refuse."""

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, FedSGD, Logistic, Problem, Softmax, Squared, run
from fedconvex.datasets import linear_federation
from fedconvex.methods import ProportionalSampling, resolved
from fedconvex.theory.moments import Moments
from fedconvex.traits import traits_of

RNG = np.random.default_rng(0)
SIZES = (3, 7, 5, 9)


def problem(loss=None, weighted=False, intercept=False, sparse=False):
    """Four clients of 3 to 9 rows."""
    loss = Squared() if loss is None else loss
    kinds = np.arange(sum(SIZES)) % 3 if isinstance(loss, Softmax) else RNG.choice([-1.0, 1.0], sum(SIZES))
    X, who = RNG.normal(size=(sum(SIZES), 4)), np.repeat(np.arange(4), SIZES)
    if sparse:
        import scipy.sparse

        X = scipy.sparse.csr_matrix(np.where(np.abs(X) > 0.6, X, 0.0))
    more = {"sample_weight": RNG.uniform(0.2, 3.0, sum(SIZES))} if weighted else {}
    return Problem(Federation.from_arrays(X, kinds.astype(float), who, **more), loss, 0.1, intercept=intercept)


def apart(problem, **settings):
    """Return the distance of FedSGD and FedAvg, of one step each, after three rounds of two trajectories."""
    found = [run(m(step_size=0.1, **settings), problem, rounds=3, seed=4, trajectories=2, tol=0).w
             for m in (FedSGD, FedAvg)]  # fmt: skip
    return float(np.abs(np.subtract(*found)).max())


def test_it_is_fedavg_with_one_step():
    """Rows drawn, weights of rows and classes, sparse rows, free coordinates, small clients: the same models."""
    cases = [
        (problem(), {"batch_size": 2}),
        (problem(Logistic(), sparse=True), {"batch_size": 4, "replacement": True, "participation": 2}),
        (problem(Softmax(3)), {"batch_size": 5, "shrink": True, "participation": ProportionalSampling(3)}),
        (problem(Logistic(), weighted=True), {"batch_size": 3}),
        (problem(intercept=np.arange(4) == 3), {"batch_size": 1, "participation": 0.5}),
    ]
    for p, settings in cases:
        assert apart(p, **settings) < 1e-14
    p = cases[0][0]
    other = run(FedSGD(step_size=0.1, batch_size=2), p, rounds=3, seed=5, tol=0).w
    assert np.abs(other - run(FedSGD(step_size=0.1, batch_size=2), p, rounds=3, seed=4, tol=0).w).max() > 1e-3


def test_whole_clients_are_no_mini_batches():
    """A batch that shrinks to every client is the full gradient, and nothing is drawn."""
    p = problem(Logistic())
    full, shrunk = FedSGD(step_size=0.3), FedSGD(step_size=0.3, batch_size=9, shrink=True)
    assert traits_of(shrunk, p).deterministic and not traits_of(FedSGD(step_size=0.3, batch_size=3), p).deterministic
    np.testing.assert_allclose(run(shrunk, p, rounds=5, tol=0).w, run(full, p, rounds=5, tol=0).w, atol=1e-14)


def test_theory_reads_its_batches():
    """Moments are those of FedAvg's single step, the mean over runs agrees, and "auto" is the step of mini-batches."""
    p = Problem(linear_federation(4, 3, 6, seed=0).federation, Squared(), 0.1)
    one, other = (m(step_size=0.1, batch_size=2) for m in (FedSGD, FedAvg))
    traces = [Moments.of(m, p).run(rounds=4).suboptimality for m in (one, other)]
    np.testing.assert_array_equal(*traces)
    assert traces[0][-1] > 1.001 * Moments.of(FedSGD(step_size=0.1), p).run(rounds=4).suboptimality[-1]
    _, step = resolved(FedSGD(step_size="auto", batch_size=2), p)
    assert step == resolved(FedAvg(step_size="auto", batch_size=2), p)[1] and "mini-batches" in str(step)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": 4}, "FedSGD.batch_size must be at most 3, the rows of client 0; got 4.*shrink=True"),
        ({"replacement": True}, "FedSGD.replacement must come with a batch_size"),
        ({"batch_size": 2, "replacement": True, "shrink": True}, "FedSGD.shrink must be False"),
        ({"batch_size": 0}, "FedSGD.batch_size must be at least 1"),
    ],
)
def test_settings_that_do_not_fit(settings, words):
    """Each is refused by name, with the cure."""
    with pytest.raises(ValueError, match=words):
        run(FedSGD(step_size=0.1, **settings), problem(), rounds=1)
