"""Rates for every horizon: closed forms, AutoLyap, worst cases over rounds, planted errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedconvex.theory.worst_case import (
    Arbitrary,
    Problems,
    Round,
    contraction,
    fedavg_round,
    fedlin,
    fedlin_round,
    fedprox_round,
    gradient_descent_round,
    hedging_round,
    rates,
    scaffold,
    scaffold_round,
    worst_case,
)

pytestmark = pytest.mark.anywhere

MU = 0.1
TWO = Problems(2, mu=MU)


def reflected(gamma):
    """Giselsson and Boyd (2017): Douglas-Rachford contracts by 1/2 + r/2."""
    return (0.5 + 0.5 * max((gamma - 1) / (gamma + 1), (1 - gamma * MU) / (1 + gamma * MU))) ** 2


@pytest.mark.parametrize(
    ("step", "problems", "exact"),
    [
        (gradient_descent_round(0.5), Problems(mu=MU), 0.95**2),
        (gradient_descent_round(1.9), Problems(mu=MU), 0.9**2),
        (fedprox_round(2.0), TWO, 1 / 1.05**2),
        (hedging_round(0.3), TWO, reflected(1 / 0.3)),
        (hedging_round(2.0), Problems(2, mu=MU, weights=(0.7, 0.3)), reflected(0.5)),
        (fedlin_round(0.3, 2), TWO, 0.97**4),
        (fedavg_round(0.3, 3), Problems(2, mu=MU, weights=(0.7, 0.3)), 0.97**6),
        (fedavg_round(1.95, 2), TWO, 0.95**4),
        (fedavg_round(0.3, 2, sampled=1), TWO, 0.97**4),
    ],
    ids=["gradient", "long-steps", "fedprox", "hedging", "weights", "fedlin", "fedavg", "fedavg-long", "sampled"],
)
def test_closed_forms(step, problems, exact):
    found = contraction(step, problems)
    assert found.lower == pytest.approx(exact, rel=1e-9)
    assert exact <= found.upper <= exact * (1 + 2e-5)
    assert found.margin > 0


def test_units():
    one = contraction(gradient_descent_round(1.0, 0.5), Problems(mu=MU), tolerance=1e-3)
    other = contraction(gradient_descent_round(0.25, 0.5), Problems(L=4.0, mu=4 * MU), tolerance=1e-3)
    assert other.upper == pytest.approx(one.upper, rel=2e-3)
    assert one.lower < one.upper < 1
    assert "shrink by a factor in [0.5, 0.66" in str(one)


@pytest.mark.parametrize("option", [1, 2])
def test_scaffold_contracts_and_the_worst_case_over_rounds_stays_below(option):
    """V(s^0) bounds ‖x^T - x*‖^2/rho^T, from c_i = grad F_i(x^0), whatever the heterogeneity."""
    found = contraction(scaffold_round(0.2, 2, option), TWO)
    assert found.lower <= found.upper <= found.lower * (1 + 2e-5)
    P = found.P  # over x, c_1, c_2, grad f_1(x), grad f_2(x), with c_i = grad f_i here
    same = P[:, :3].copy()
    same[:, 1:] += P[:, 3:]
    C = same[:3].copy()
    C[1:] += same[3:]
    q = float(np.abs(found.q).sum())
    first = float(np.linalg.eigvalsh(0.5 * (C + C.T))[-1]) * 3 + 0.5 * q  # ‖x‖, ‖grad f_i‖ <= 1, 0 <= f_i <= 1/2
    w = worst_case(
        scaffold(0.2, 2, 2, option=option, first_controls="gradients"),
        Problems(2, mu=MU, heterogeneity=Arbitrary()),
        "distance",
    )
    assert found.lower**2 * (1 - 1e-6) <= w.upper <= found.upper**2 * first


def test_corrected_steps_contract_round_by_round():
    """One state and no memory: the exact worst case of T rounds is the factor to the power T."""
    w = worst_case(fedlin(0.3, 2, 2), Problems(2, mu=MU, heterogeneity=Arbitrary()), "distance")
    assert w.upper == pytest.approx(contraction(fedlin_round(0.3, 2), TWO).upper ** 2, rel=1e-4)


def test_sampled_clients():
    """Hedging with one of two clients: at most 1 - (1 - delta^2)/2, which the page of the method derives."""
    found = contraction(hedging_round(0.3, sampled=1), TWO, tolerance=1e-3)
    assert found.lower < found.upper <= (1 - (1 - reflected(1 / 0.3)) / 2) * (1 + 1e-3)


def test_two_rounds_are_not_worse():
    one = contraction(scaffold_round(0.2, 1), TWO, tolerance=1e-4)
    assert contraction(scaffold_round(0.2, 1), TWO, rounds=2, tolerance=1e-4).upper <= one.upper * (1 + 2e-4)


def test_own_round_and_divergence():
    assert contraction(lambda problem, s: [s[0] - 2.5 * problem.gradient(s[0])], Problems(mu=MU)).upper == math.inf
    own = contraction(lambda problem, s: [s[0] - problem.gradient(s[0])], Problems(mu=MU))
    assert own.upper == pytest.approx(0.81, rel=2e-5)
    with pytest.raises(TypeError, match="return a list of 1 states"):
        contraction(lambda problem, s: [s[0], s[0]], Problems(mu=MU))
    with pytest.raises(ValueError, match="Gram matrix of 3"):
        contraction(fedlin_round(0.3, 2), TWO, limit=3)


def test_steps_after_which_no_quadratic_of_the_corners_is_left():
    """Steps 1/L and 1/mu: curvatures mu and L are at the optimum after both, so that bisection starts at 0."""

    def both(problem, s):
        x = s[0] - problem.gradient(s[0])
        return [x - 2.0 * problem.gradient(x)]

    found = contraction(both, Problems(mu=0.5), tolerance=1e-3)
    assert found.lower == 0.0 and 0.125**2 <= found.upper <= 0.25 * 1.01  # curvature 3/4; |1 - h| |1 - 2 h'| <= 1/2


def test_a_spoilt_lyapunov_function_is_refused():
    """Of a factor below the least one nothing passes, and spoilt multipliers fail the check."""
    step = rates._traced(gradient_descent_round(0.5), Problems(mu=MU), 1)
    search = rates._Search(step)
    good = search.at(0.91)
    assert good is not None
    assert search.at(0.9024) is None
    y, z = search.y.value, search.z.value
    good = search.at(0.91)
    y, z = search.y.value.copy(), search.z.value.copy()
    assert search.margin(0.91, good.P, good.q, y, z) >= 0
    assert search.margin(0.90, good.P, good.q, y, z) < 0
    assert search.margin(0.91, good.P - 1.01 * np.diag([1.0, 0.0]), good.q, y, z) < 0
    assert search.margin(0.91, good.P, good.q, 0 * y, z) < 0


@pytest.mark.slow
@pytest.mark.parametrize(("step", "momentum"), [(0.5, 0.0), (1.9, 0.0), (1.0, 0.3), (1.0, 0.5), (2.0, 0.5), (2.5, 0.4)])
def test_autolyap_agrees(step, momentum):
    pytest.importorskip("autolyap")
    from autolyap.algorithms import GradientMethod, HeavyBallMethod
    from autolyap.problemclass import InclusionProblem, SmoothStronglyConvex

    algorithm = HeavyBallMethod(step, momentum) if momentum else GradientMethod(step)
    ours = contraction(gradient_descent_round(step, momentum), Problems(mu=MU))
    assert autolyap_rate(algorithm, InclusionProblem([SmoothStronglyConvex(MU, 1.0)])) == pytest.approx(
        ours.upper, rel=5e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.3, 1.0])
def test_autolyap_agrees_on_douglas_rachford(rho):
    pytest.importorskip("autolyap")
    from autolyap.algorithms import DouglasRachford
    from autolyap.problemclass import Convex, InclusionProblem, SmoothStronglyConvex

    algorithm = DouglasRachford(1 / rho, 1.0, "function")
    found = autolyap_rate(algorithm, InclusionProblem([Convex(), SmoothStronglyConvex(MU, 1.0)]))
    assert found == pytest.approx(contraction(hedging_round(rho), TWO).upper, rel=5e-5)


def autolyap_rate(algorithm, problem):
    from autolyap import IterationIndependent, SolverOptions

    search = IterationIndependent.LinearConvergence
    P, p, T, t = search.get_parameters_distance_to_solution(algorithm)
    options = SolverOptions(backend="cvxpy", cvxpy_solver="CLARABEL")
    given = {"p": p, "t": t, "tol": 1e-6, "solver_options": options, "verbosity": 0}
    return search.bisection_search_rho(problem, algorithm, P, T, **given)["rho"]


def test_rounds_name_what_is_wrong():
    for make, message in (
        (lambda: scaffold_round(0.0, 2), "step_size must be positive"),
        (lambda: fedlin_round(0.1, 0), "local_steps must be"),
        (lambda: hedging_round(-1.0), "rho must be positive"),
        (lambda: contraction("gd", TWO), "contraction: round"),
        (lambda: contraction(lambda problem, s: 3.0, Problems(mu=0.2)), "contraction: round must return a list"),
        (lambda: contraction(lambda problem, s: ["x"], Problems(mu=0.2)), "a list of 1 states, points each"),
        (lambda: contraction(Round(lambda problem, s: s), 3), "contraction: problems"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            make()
