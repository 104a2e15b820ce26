"""Dynamic FedAvg and problems whose minimiser moves."""

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, GradientDescent, Logistic, Problem, Squared, iterate, run
from fedconvex.draws import Draws, key_from_seed
from fedconvex.methods import DynamicFedAvg
from fedconvex.problems import MovingTarget
from fedconvex.theorems.dynamic_msd import msd_paper, msd_refined
from fedconvex.theorems.parts.tracking import TrackingConstants

pytestmark = pytest.mark.compiled


def make(loss, seed=0, K=5, n=8, d=3):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(K * n, d))
    y = X @ rng.normal(size=d) + rng.normal(size=K * n)
    y = y if isinstance(loss, Squared) else np.where(y > 0, 1.0, -1.0)
    return Problem(Federation.from_arrays(X, y, np.repeat(np.arange(K), n)), loss, 0.1)


def test_equal_agents_are_fedavg_with_divided_steps():
    problem = make(Logistic())
    a = run(DynamicFedAvg(step_size=0.3, local_steps=3, batch_size=2, participation=2), problem, rounds=9, seed=4)
    b = run(FedAvg(step_size=0.3 / 3, local_steps=3, batch_size=2, participation=2), problem, rounds=9, seed=4)
    np.testing.assert_array_equal(a.w, b.w)


def test_unequal_agents_against_plain_numpy():
    """Full batches, everybody: w <- mean over k of E_k gradient steps of size mu/E_k."""
    problem = make(Squared())
    fed, steps = problem.federation, (1, 4, 2, 3, 5)
    w = np.zeros(3)
    for t, state in iterate(DynamicFedAvg(step_size=0.4, local_steps=steps), problem, rounds=6):
        np.testing.assert_allclose(state.w[0], w, atol=1e-13, err_msg=f"round {t}")
        answers = []
        for k, E in enumerate(steps):
            X, y, v = fed.X[fed.ptr[k] : fed.ptr[k + 1]], fed.y[fed.ptr[k] : fed.ptr[k + 1]], w.copy()
            for _ in range(E):
                v = v - 0.4 / E * (X.T @ (X @ v - y) / len(y) + 0.1 * v)
            answers.append(v)
        w = np.mean(answers, axis=0)


@pytest.mark.slow
def test_unequal_epochs_cause_no_first_order_bias():
    """The fixed point's distance from w* falls like mu, for any E_k; FedAvg with the same E_k keeps a bias."""
    problem = make(Squared())
    best = problem.solve().w
    bias = []
    for mu in (0.1, 0.05):
        end = run(DynamicFedAvg(step_size=mu, local_steps=(1, 9, 1, 5, 2)), problem, rounds=4000, tol=0)
        bias.append(np.linalg.norm(end.w - best))
    assert bias[1] == pytest.approx(bias[0] / 2, rel=0.1)


@pytest.mark.parametrize("loss", [Squared(), Logistic()], ids=repr)
def test_the_minimiser_moves_exactly_by_the_drift(loss):
    """Gradient descent on F(w - s_i) in fixed coordinates equals the run in moving ones, minus s_i."""
    problem = make(loss, seed=1)
    moving = MovingTarget(problem, variance=0.3)
    key, w, s = key_from_seed(7), np.zeros(3), np.zeros(3)
    for t, state in iterate(GradientDescent(step_size=0.5), moving, rounds=12, seed=7):
        np.testing.assert_allclose(state.w[0], w - s, atol=1e-13, err_msg=f"round {t}")
        w = w - 0.5 * problem.gradient(w - s)
        s = s + moving.drift(Draws(key, np.arange(1), t))[0]
    fed = problem.federation
    if isinstance(loss, Squared):  # labels moved by x's give the same data term
        shifted = Problem(Federation(fed.X, fed.y + fed.X @ s, fed.ptr), loss)
        unmoved = Problem(fed, loss)
        np.testing.assert_allclose(shifted.solve().w, unmoved.solve().w + s, atol=1e-10)


def test_drift_has_the_covariance_asked_for():
    problem = make(Squared())
    C = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 0.0]])
    q = np.concatenate(
        [MovingTarget(problem, covariance=C).drift(Draws(key_from_seed(1), np.arange(2000), t)) for t in range(20)]
    )
    np.testing.assert_allclose(q.T @ q / len(q), C, atol=0.06)  # 40,000 draws: five standard errors of 2 sqrt(2/40000)
    np.testing.assert_allclose(q.mean(0), 0, atol=0.04)
    total = np.sum(
        MovingTarget(problem, variance=0.01).drift(Draws(key_from_seed(2), np.arange(20000), 0)) ** 2, axis=1
    )
    assert total.mean() == pytest.approx(0.01, rel=0.03)


def test_tracking_error_is_traced_and_resumed(tmp_path):
    moving = MovingTarget(make(Squared()), variance=0.01)
    method = DynamicFedAvg(step_size=0.2, local_steps=(1, 2, 3, 1, 2), batch_size=3, participation=2)
    whole = run(method, moving, rounds=30, trajectories=4)
    assert whole.trace.deviation.shape == (31, 4)
    np.testing.assert_allclose(whole.trace.deviation[-1], np.sum((whole.w - moving.solve().w) ** 2, axis=1))
    run(method, moving, rounds=11, trajectories=4, checkpoint=tmp_path / "c")
    again = run(method, moving, rounds=30, trajectories=4, checkpoint=tmp_path / "c")
    np.testing.assert_array_equal(again.w, whole.w)
    np.testing.assert_array_equal(again.trace.deviation, whole.trace.deviation)
    with pytest.raises(ValueError, match="drift must be"):
        other = MovingTarget(make(Squared()), variance=0.02)
        run(method, other, rounds=30, trajectories=4, checkpoint=tmp_path / "c")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda p: MovingTarget(p, variance=-1.0), "variance must be nonnegative"),
        (lambda p: MovingTarget(p, covariance=np.eye(2)), r"covariance must have shape \(3, 3\)"),
        (lambda p: MovingTarget(p, covariance=-np.eye(3)), "positive semidefinite"),
        (lambda p: MovingTarget(MovingTarget(p)), "does not move"),
        (lambda p: run(DynamicFedAvg(step_size=0.1, local_steps=(1, 2)), p, rounds=1), "one number per client"),
        (lambda p: run(DynamicFedAvg(step_size=0.1, batch_size=9), p, rounds=1), "at most 8, the rows of client 0"),
        (lambda p: DynamicFedAvg(step_size=0.1, local_steps=(1, 0)), "at least 1"),
    ],
)
def test_bad_input(build, message):
    with pytest.raises((ValueError, TypeError), match=message):
        build(make(Squared()))


@pytest.mark.parametrize("bound", [msd_paper, msd_refined])
@pytest.mark.parametrize("rounds", [1, 12, 100])
def test_what_is_left_of_the_start_does_not_cancel(bound, rounds):
    """One parabola, step 0.9: errors fall to a tenth in every round. 1 - (1 - 0.1^24) is 0, and the bound was 0."""
    one = np.ones(1)
    constants = TrackingConstants(
        nu=1.0, delta_P=1.0, delta_k=one, delta_P_k=one, sizes=one, variance_k=0.0 * one, gradient2_k=0.0 * one
    )
    found = bound(constants, step_size=0.9, drift2=0.0, rounds=rounds, start2=4.0)
    assert found.terms["start"] == pytest.approx(4.0 * 0.01**rounds, rel=1e-10, abs=0.0)
