"""step_size="auto" against the theorems it cites, and where it is refused."""

from __future__ import annotations

import inspect
import itertools

import numpy as np
import pytest

from fedconvex import Exponential, FedAvg, Federation, Hinge, Logistic, Problem, Squared, iterate, methods, run
from fedconvex.constants import default_steps, noise_factor
from fedconvex.constants.default_steps import expected_smoothness, smoothness_of, top_eigenvalue_bound
from fedconvex.datasets import linear_federation, logistic_federation
from fedconvex.driver import first_state
from fedconvex.methods import SCAFFOLD, SGD, SVRG, Decay, FedSGD, GradientDescent, ProportionalSampling, resolved
from fedconvex.problems import Covariance, Independent, MultiTaskProblem, Pooled
from fedconvex.theorems.fedavg_refined import fedavg_refined_sharp
from fedconvex.theorems.fedavg_strongly_convex import fedavg_schedule
from fedconvex.theorems.scaffold import scaffold, scaffold_best_step
from fedconvex.theorems.svrg import svrg_best_step, svrg_factor
from fedconvex.theory.bound import AssumptionError
from fedconvex.verify import Outcome, verify


@pytest.fixture(scope="module")
def logistic():
    fed = logistic_federation(n_clients=6, n_features=3, rows_per_client=12, model_shift=1.0, seed=1).federation
    return Problem(fed, Logistic(), l2=0.1)


@pytest.fixture(scope="module")
def squares():
    fed = linear_federation(n_clients=4, n_features=3, rows_per_client=8, feature_shift=1.0, size_skew=0.7, seed=2)
    return Problem(fed.federation, Squared(), l2=0.05)


def hessians(problem):
    """Hessians of the clients, and of F, for squared loss: X_k'X_k/n_k + l2."""
    fed = problem.federation
    parts = [fed.X[a:b] for a, b in itertools.pairwise(fed.ptr)]
    H = np.array([X.T @ X / len(X) + problem.l2 * np.eye(fed.d) for X in parts])
    return H, np.einsum("k,kij->ij", problem.weights, H)


def test_full_steps_of_everybody(squares):
    H, mean = hessians(squares)
    L_k, L = np.linalg.eigvalsh(H)[:, -1], np.linalg.eigvalsh(mean)[-1]
    assert L < 0.99 * L_k.max()  # else the next lines could not tell them apart
    for method in (FedAvg(step_size="auto"), FedSGD(step_size="auto"), GradientDescent(step_size="auto")):
        assert resolved(method, squares)[0].step_size == pytest.approx(1.0 / L, rel=1e-12)
    found, step = resolved(FedAvg(step_size="auto", local_steps=3), squares)
    assert found.step_size == pytest.approx(1.0 / L_k.max(), rel=1e-12) and "R1#" in step.source
    settings = {"local_steps": 3, "rounds": 5}
    constants = squares.constants(radius=1.0)
    fedavg_refined_sharp(constants, step_size=found.step_size, **settings)
    with pytest.raises(AssumptionError, match="1/L"):  # it is the largest step of that theorem
        fedavg_refined_sharp(constants, step_size=1.0001 * found.step_size, **settings)


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("b", [1, 2, 4])
def test_expected_smoothness_by_all_batches(b, replacement):
    """E‖grad f_B(x) - grad f_B(x*)‖^2 <= 2 L (f(x) - f*), the definition of Gower et al., over every batch."""
    rng = np.random.default_rng(b)
    X = rng.standard_normal((4, 2)) * [[3.0], [1.0], [0.3], [1.0]]
    H = X.T @ X / 4
    L, L_row = np.linalg.eigvalsh(H)[-1], np.max(np.sum(X**2, axis=1))
    claimed = expected_smoothness(4, b, L, L_row, replacement)
    batches = itertools.product(range(4), repeat=b) if replacement else itertools.combinations(range(4), b)
    parts = np.array([X[list(rows)].T @ X[list(rows)] / b for rows in batches])
    second = np.mean(parts @ parts, axis=0)  # E‖H_B v‖^2 = v' second v <= 2 claimed v'Hv/2
    root = np.linalg.inv(np.linalg.cholesky(H))
    needed = np.linalg.eigvalsh(root @ second @ root.T)[-1]
    assert needed <= claimed * (1 + 1e-12)
    assert claimed <= 1.6 * needed  # and it is no idle bound: a factor of two more would be noticed


def test_mini_batches(squares):
    H, mean = hessians(squares)
    fed, rows = squares.federation, np.max(np.sum(squares.federation.X**2, axis=1)) + squares.l2
    L_k = np.linalg.eigvalsh(H)[:, -1].max()
    rough = max((n * (3 - 1) * L_k + (n - 3) * rows) / (3 * (n - 1)) for n in fed.sizes.tolist())
    found, step = resolved(FedAvg(step_size="auto", local_steps=2, batch_size=3), squares)
    assert found.step_size == pytest.approx(0.5 / rough, rel=1e-12) and "Gower" in step.source
    pooled = np.linalg.eigvalsh(mean)[-1]
    found, _ = resolved(SGD(step_size="auto", batch_size=1), squares)
    assert found.step_size == pytest.approx(0.5 / rows, rel=1e-12)  # one row: the roughest counts
    found, _ = resolved(SGD(step_size="auto", batch_size=5, replacement=True), squares)
    assert found.step_size == pytest.approx(0.5 / (0.8 * pooled + 0.2 * rows), rel=1e-12)


@pytest.mark.parametrize("scheme", [2, ProportionalSampling(3)])
def test_sampled_clients_take_the_steps_of_li(logistic, scheme):
    found, step = resolved(FedAvg(step_size="auto", local_steps=4, participation=scheme), logistic)
    assert found.step_size == Decay(*fedavg_schedule(logistic.constants(), local_steps=4)) and "Li et al." in str(step)
    found, _ = resolved(FedSGD(step_size="auto", participation=scheme), logistic)
    assert found.step_size == Decay(*fedavg_schedule(logistic.constants(), local_steps=1))


def test_scaffold(logistic):
    for m, S in ((1.0, 6), (2, 2)):
        found, _ = resolved(SCAFFOLD(step_size="auto", local_steps=3, participation=m, server_step=2.0), logistic)
        at = {"local_steps": 3, "participants": S, "server_step": 2.0}
        constants = logistic.constants(batch_size=None)
        assert found.step_size == scaffold_best_step(constants, **at)
        eta = found.step_size
        scaffold(constants, step_size=eta, rounds=2, control_error=0.0, **at)
        with pytest.raises(AssumptionError):
            scaffold(constants, step_size=1.0001 * eta, rounds=2, control_error=0.0, **at)


def test_svrg(logistic):
    constants, n = logistic.constants(), logistic.federation.n
    for b in (1, 8):
        at = {"inner_steps": 400, "noise_factor": float(noise_factor(n, b, False))}
        eta = resolved(SVRG(step_size="auto", inner_steps=400, batch_size=b), logistic)[0].step_size
        assert eta == svrg_best_step(constants, **at)
        factors = [svrg_factor(constants, step_size=c * eta, **at) for c in (0.9, 1.0, 1.1)]
        assert min(factors) == factors[1]


RUNS = [
    FedAvg(step_size="auto"),
    FedAvg(step_size="auto", local_steps=4),
    FedAvg(step_size="auto", epochs=3),
    FedAvg(step_size="auto", local_steps=4, batch_size=2),
    FedAvg(step_size="auto", local_steps=2, participation=3),
    FedSGD(step_size="auto", participation=0.5),
    GradientDescent(step_size="auto"),
    SGD(step_size="auto", batch_size=2, steps=10),
    SVRG(step_size="auto", inner_steps=100),
    SCAFFOLD(step_size="auto", local_steps=2, participation=2),
]


@pytest.mark.parametrize("method", RUNS, ids=repr)
@pytest.mark.slow_unless(method=RUNS[::2])
def test_runs_are_stable_and_say_what_they_took(logistic, method):
    result = run(method, logistic, rounds=15, tol=0.0, trajectories=2, progress=False)
    assert np.all(result.trace.gap[-1] < 0.9 * result.trace.gap[0]) and (result.diverged < 0).all()
    fixed, step = resolved(method, logistic)
    assert result.step_size == str(step) and step.source in result.step_size
    again = run(fixed, logistic, rounds=15, tol=0.0, trajectories=2, progress=False)
    assert np.array_equal(again.w, result.w) and again.step_size is None
    assert "step_size='auto'" in repr(method)


def test_the_exponential_loss_bounds_its_own_curvature(logistic):
    """F falls along gradient descent, so F'' <= max ‖x‖^2 F(0) + l2 = max ‖x‖^2 + l2 holds all the way."""
    problem = Problem(logistic.federation, Exponential(), l2=0.1)
    found, step = resolved(GradientDescent(step_size="auto"), problem)
    assert found.step_size == pytest.approx(1.0 / (np.max(np.sum(problem.federation.X**2, axis=1)) + 0.1))
    assert "F <= F(0)" in str(step)
    assert np.all(np.diff(run(found, problem, rounds=20, tol=0.0).trace.value) <= 0.0)


def test_bounds_where_eigenvalues_are_too_dear(squares):
    fed = squares.federation
    exact = smoothness_of(fed, squares.weights, squares.loss, squares.l2)
    bound = smoothness_of(fed, squares.weights, squares.loss, squares.l2, exact=False)
    assert exact.F <= bound.F <= 2.0 * exact.F and exact.client <= bound.client and bound.name == "L (bound)"
    assert top_eigenvalue_bound(np.eye(3), np.ones(3), np.ones(3)) == pytest.approx(1.0)


def test_checkpoints_are_those_of_the_number(logistic, tmp_path):
    method, file = FedAvg(step_size="auto", local_steps=2), tmp_path / "a.npz"
    run(method, logistic, rounds=4, tol=0.0, checkpoint=file)
    fixed = resolved(method, logistic)[0]
    resumed = run(fixed, logistic, rounds=8, tol=0.0, checkpoint=file)
    assert np.array_equal(resumed.w, run(method, logistic, rounds=8, tol=0.0).w)
    with pytest.raises(ValueError, match=r"checkpoint .*: method"):
        run(method, Problem(logistic.federation, Logistic(), l2=0.2), rounds=9, checkpoint=file)


def with_steps():
    public = [getattr(methods, name) for name in methods.__all__]
    return [c for c in public if inspect.isclass(c) and (hasattr(c, "local") or hasattr(c, "round"))]


@pytest.mark.parametrize("method", with_steps(), ids=lambda c: c.__name__)
def test_methods_without_a_theorem_refuse(method):
    fields = inspect.signature(method).parameters
    if "step_size" not in fields or hasattr(method, "default_step") or method is methods.VIRTUAL:  # a share of a step
        return
    needed = {k: 0.1 for k, p in fields.items() if p.default is p.empty}
    needed |= {"local_steps": 1} if method is methods.ProgressiveHedging else {}
    with pytest.raises(ValueError, match=r"'auto', for which no theorem is known: problem\.constants\(\)"):
        method(**needed | {"step_size": "auto"})


def test_settings_without_a_theorem_refuse(logistic):
    uneven = Problem(logistic.federation, Logistic(), l2=0.1, weights=np.arange(1.0, 7.0) / 21.0)
    flat, kinked = Problem(logistic.federation, Logistic()), Problem(logistic.federation, Hinge(), l2=0.1)
    cases = [
        (FedAvg(step_size="auto", epochs=1, batch_size=5), logistic, "epochs"),
        (FedAvg(step_size="auto", server=methods.ServerAdam(step_size=0.1)), logistic, "weighted mean"),
        (FedAvg(step_size="auto", client=methods.ClientMomentum(0.9)), logistic, "plain steps"),
        (FedAvg(step_size="auto", participation=2), uneven, "unequal weights: take ScaledSampling"),
        (FedAvg(step_size="auto", participation=2), flat, "without strong convexity"),
        (FedAvg(step_size="auto"), kinked, "Hinge.*, which is not smooth: take a smooth loss"),
        (SCAFFOLD(step_size="auto"), uneven, "unequal weights"),
        (SCAFFOLD(step_size="auto", option=1), logistic, "option 1"),
        (SVRG(step_size="auto", inner_steps=9, option=1), logistic, "last inner iterate"),
        (SVRG(step_size="auto", inner_steps=9), flat, "no strong convexity"),
    ]
    for method, problem, says in cases:
        with pytest.raises(ValueError, match=says):
            next(iterate(method, problem))
    with pytest.raises(ValueError, match=r"be resolved on the problem.*fedconvex\.methods\.resolved"):
        first_state(FedAvg(step_size="auto"), logistic, np.zeros((1, 3)))
    with pytest.raises(TypeError, match="must be a number"):
        FedAvg(step_size="car")


def test_theorems_are_checked_on_automatic_steps():
    problem = Problem(linear_federation(n_clients=3, n_features=2, model_shift=1.0, seed=0).federation, Squared())
    method = FedAvg(step_size="auto", local_steps=2)
    verdict = verify("fedavg-refined-sharp", problem, method, rounds=3)
    same = verify("fedavg-refined-sharp", problem, resolved(method, problem)[0], rounds=3)
    assert verdict.outcome is Outcome.HOLDS
    assert (verdict.measured, verdict.bound.value) == (same.measured, same.bound.value)


def test_no_curvature_no_step():
    nothing = Problem(Federation.from_clients([(np.zeros((2, 1)), [1.0, 2.0])]), Squared())
    with pytest.raises(ValueError, match="positive, finite smoothness; got no curvature"):
        resolved(GradientDescent(step_size="auto"), nothing)


def test_a_problem_of_another_kind_has_no_automatic_step(squares):
    tasks = MultiTaskProblem(squares.federation, Squared(), Pooled(0.5))
    with pytest.raises(TypeError, match="learn one model for all clients; got MultiTaskProblem"):
        resolved(FedAvg(step_size="auto"), tasks)
    with pytest.raises(TypeError, match="learn one model for all clients; got MultiTaskProblem"):
        verify("svrg", tasks, FedAvg(step_size="auto"), rounds=1)


def test_gradient_descent_on_a_model_per_task(squares):
    """1/L with L the top eigenvalue of P's Hessian, which is that of a task plus l2 where tasks ignore each other."""
    fed = squares.federation
    blocks = [fed.X[a:b].T @ fed.X[a:b] for a, b in zip(fed.ptr[:-1], fed.ptr[1:], strict=True)]
    top = max(np.linalg.eigvalsh(H)[-1] for H in blocks)
    method, step = resolved(GradientDescent(step_size="auto"), MultiTaskProblem(fed, Squared(), Independent(0.5)))
    assert method.step_size == pytest.approx(1.0 / (top + 0.5), rel=1e-12)
    assert str(step).endswith("1/(L of F) (Nesterov 2018, Corollary 2.1.2)")
    cases = (Covariance(0.5), Squared(), "learned Omega"), (Independent(0.5), Hinge(), "not smooth")
    for relation, loss, why in cases:
        y = fed.y if loss == Squared() else np.where(fed.y > 0.0, 1.0, -1.0)
        tasks = MultiTaskProblem(Federation(fed.X, y, fed.ptr), loss, relation)
        with pytest.raises(ValueError, match=why):
            resolved(GradientDescent(step_size="auto"), tasks)


def test_eigenvalues_are_taken_once_for_all_ridges_and_losses(squares, monkeypatch):
    """Of the same rows and client weights; `compare` asks for 13 ridges in every fold."""
    fed, weights, seen = squares.federation.subset([0, 1, 2]), np.array([0.2, 0.3, 0.5]), []
    top = default_steps._top_eigenvalue
    monkeypatch.setattr(default_steps, "_top_eigenvalue", lambda gram: seen.append(1) or top(gram))
    X, grams = fed.X, [fed.X[a:b].T @ fed.X[a:b] / (b - a) for a, b in itertools.pairwise(fed.ptr)]
    for loss, s in ((Squared(), 1.0), (Logistic(), 0.25)):
        for l2 in (0.0, 0.1, 1.0):
            found = smoothness_of(fed, weights, loss, l2)
            whole = np.linalg.eigvalsh(np.tensordot(weights, grams, 1))[-1]
            rough = max(np.linalg.eigvalsh(gram)[-1] for gram in grams)
            np.testing.assert_allclose(
                found[:3], [s * L + l2 for L in (whole, rough, (X * X).sum(axis=1).max())], 1e-12
            )
    assert len(seen) == 4  # three clients, and all
    other = smoothness_of(fed, weights[::-1], Squared(), 0.0)  # other weights are other sums
    assert len(seen) == 8 and other.F != found.F and other.client > 0.0
    assert not smoothness_of(fed, weights, Squared(), 0.0, exact=False).exact
