"""Exact worst cases: against closed forms, tabulated values, PEPit, simulated instances and planted errors."""

from __future__ import annotations

import dataclasses
import itertools
import math
import types

import numpy as np
import pytest

from fedconvex.simplex.uncertainty import minimise_over_simplex
from fedconvex.theory import AssumptionError
from fedconvex.theory.bound import LAST_SYNCHRONISED, SHADOW_AVERAGE, STEADY_STATE_MSD
from fedconvex.theory.worst_case import (
    AtOptimum,
    Bracket,
    Interpolant,
    Problems,
    Shift,
    UniformUpper,
    closed_form_homogeneous,
    exact,
    fedavg,
    programme_size,
    ratio_table,
    solving,
)
from fedconvex.theory.worst_case import programme as programme_module
from fedconvex.theory.worst_case import uniform_bracket as bracket_of
from fedconvex.theory.worst_case import worst_case as worst_case_of
from fedconvex.theory.worst_case.interpolation import product
from fedconvex.theory.worst_case.metrics import metric_of
from fedconvex.theory.worst_case.programme import Programme, trace
from fedconvex.theory.worst_case.programme_bounds import feasible_point, inner_point, reach, upper_bound

pytestmark = pytest.mark.anywhere

AVERAGE, LAST = SHADOW_AVERAGE, LAST_SYNCHRONISED
TABLE = {"clients": 2, "local_steps": 2, "rounds": 1, "step_size": 0.25, "L": 1.0}
NONE = AtOptimum(0.0)
CLASSES = [AtOptimum, UniformUpper, Shift]


def fedavg_in(*, clients, local_steps, rounds, step_size, L, mu=0.0, D=1.0, heterogeneity=NONE, metric=AVERAGE):
    """FedAvg, its class and the metric."""
    problems = Problems(clients, L=L, mu=mu, D=D, heterogeneity=heterogeneity)
    return fedavg(step_size, local_steps, rounds), problems, metric


def worst_case(limit=64, **setting):
    return worst_case_of(*fedavg_in(**setting), limit=limit)


def uniform_bracket(zeta, **setting):
    return bracket_of(*fedavg_in(heterogeneity=UniformUpper(zeta), **setting))


def gradient_descent(steps, step_size, metric=AVERAGE):
    return worst_case(clients=1, local_steps=1, rounds=steps, step_size=step_size, L=1.0, metric=metric)


def simulate(gradients, values, x0, step_size, local_steps, rounds, metric):
    """FedAvg, written out once more: mean F(shadow) or F(last), less F(0)."""
    x, seen = np.array(x0, dtype=float), []
    for _ in range(rounds):
        local = [x.copy() for _ in gradients]
        for _ in range(local_steps):
            for i, gradient in enumerate(gradients):
                local[i] = local[i] - step_size * gradient(local[i])
            x = sum(local) / len(local)
            seen.append(sum(v(x) for v in values) / len(values))
    return (np.mean(seen) if metric is AVERAGE else seen[-1]) - sum(v(0.0 * x) for v in values) / len(values)


# --------------------------------------------------------------------------------------------------------- closed forms


def check_closed_form(steps, step_size):
    w = gradient_descent(steps, step_size)
    true = exact.closed_form_homogeneous(1.0, 1.0, step_size, 1, steps).value
    assert w.lower <= true * (1 + 1e-12) <= w.upper * (1 + 1e-12)
    assert w.value == pytest.approx(true, rel=1e-5)
    assert w.upper - w.lower <= 1e-5 * true


@pytest.mark.parametrize("steps", [1, 2, 4, 6])
@pytest.mark.parametrize("step_size", [0.1, 0.25, 0.5, 1.0, 1.5])
def test_closed_form_without_heterogeneity(steps, step_size):
    check_closed_form(steps, step_size)


def test_closed_form_stops_where_it_is_false():
    with pytest.raises(AssumptionError, match=r"<= 1\.5"):
        closed_form_homogeneous(1.0, 1.0, 1.8, 1, 4)
    assert gradient_descent(4, 1.8).lower > 1.001 / (2 * (1 + 1.8 * 5))


@pytest.mark.parametrize("step_size", [0.1, 0.6, 1.5])
@pytest.mark.parametrize(("local_steps", "rounds"), [(1, 1), (2, 3), (3, 1)])
def test_the_huber_function_attains_the_closed_form(step_size, local_steps, rounds):
    L, D = 3.0, 2.0
    eta = step_size / L
    r = D / (1 + eta * L * (local_steps * rounds + 1))
    got = simulate(
        [lambda x: L * np.clip(x, -r, r)] * 2,
        [lambda x: float(np.where(abs(x) <= r, L * x**2 / 2, L * r * (abs(x) - r / 2)).sum())] * 2,
        [D],
        eta,
        local_steps,
        rounds,
        AVERAGE,
    )
    assert got == pytest.approx(closed_form_homogeneous(L, D, eta, local_steps, rounds).value, rel=1e-13)


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("step_size", [0.2, 0.7, 1.0])
def test_gradient_descent_last_iterate(steps, step_size):
    w = gradient_descent(steps, step_size, LAST)
    exact = 1 / (2 * (2 * step_size * steps + 1))  # Drori and Teboulle 2014, Theorem 3.1
    assert w.lower <= exact * (1 + 1e-12)
    assert exact <= w.upper
    assert w.value == pytest.approx(exact, rel=1e-6)


# ---------------------------------------------------------------- tabulated values


# zeta, [LB, UB], star class; (15)/UB and R1/UB: tabulated in docs/theory/worst_case.md
PRINTED = [
    (0.0, 0.285714, 0.285714, 0.285714, 3.50, 3.50),
    (0.1, 0.285753, 0.285759, 0.285763, 3.66, 3.50),
    (0.5, 0.286657, 0.286774, 0.286852, 7.41, 3.51),
    (1.0, 0.289156, 0.289476, 0.289673, 19.0, 3.53),
]


@pytest.mark.parametrize(("zeta", "low", "high", "star", "published", "refined"), PRINTED)
def test_ratio_table_of_the_theory_reference(zeta, low, high, star, published, refined):
    bracket = uniform_bracket(zeta=zeta, **TABLE)
    assert bracket.lower == pytest.approx(low, abs=6e-7)
    assert bracket.upper == pytest.approx(high, abs=6e-7)
    assert worst_case(heterogeneity=AtOptimum(zeta), **TABLE).value == pytest.approx(star, abs=6e-7)
    eta, tau = 0.25, 2
    fifteen = 1 / (2 * eta * tau) + 18 * tau**2 * eta**2 * zeta**2
    r1 = 1 / (2 * eta * tau) + 1 / (2 * (1 - eta)) * 0.5 * eta**2 * zeta**2 * (tau - 1) * (2 * tau - 1) / 3
    bounds = {"(15)": types.SimpleNamespace(value=fifteen), "R1": types.SimpleNamespace(value=r1)}
    ratios = ratio_table(bounds, bracket)
    assert ratios["(15)"].least == pytest.approx(published, rel=2e-3)
    assert ratios["R1"].least == pytest.approx(refined, rel=2e-3)
    assert all(r.least <= r.most for r in ratios.values())


def test_classes_are_nested():
    setting = TABLE | {"rounds": 2, "step_size": 0.5, "mu": 0.05}
    shift, uniform, star = (worst_case(heterogeneity=h(0.8), **setting) for h in (Shift, UniformUpper, AtOptimum))
    assert shift.lower <= uniform.upper
    assert uniform.lower <= star.upper
    assert shift.value < uniform.value < star.value
    assert star.upper < worst_case(heterogeneity=AtOptimum(1.0), **setting).lower  # grows with zeta


def test_two_and_three_clients_agree_in_the_uniform_class():
    two, three = (worst_case(heterogeneity=UniformUpper(0.5), **TABLE | {"clients": M}) for M in (2, 3))
    assert two.value == pytest.approx(three.value, rel=1e-6)


def test_gradient_descent_is_recognised():
    for h in CLASSES:
        assert worst_case(heterogeneity=h(0.7), **TABLE | {"local_steps": 1, "rounds": 2}).gram_size == 4
        assert worst_case(heterogeneity=h(0.7), **TABLE | {"clients": 1}).gram_size == 4
    assert worst_case(heterogeneity=AtOptimum(0.0), **TABLE).gram_size == 9  # clients may differ away from x*


@pytest.mark.parametrize("h", CLASSES)
def test_units(h):
    """Value / (L D^2) depends on eta L, mu/L and zeta/(L D) only."""
    unit = worst_case(heterogeneity=h(0.3), **TABLE | {"mu": 0.1})
    other = worst_case(heterogeneity=h(0.3 * 12), **TABLE | {"mu": 0.4, "L": 4.0, "D": 3.0, "step_size": 0.0625})
    assert other.value == pytest.approx(36 * unit.value, rel=1e-7)
    assert np.linalg.norm(other.instance.start) <= 3.0
    assert other.instance.simulate() == pytest.approx(other.lower, rel=1e-9)


# --------------------------------------------------------------------------------------------------------- certificates


SETTINGS = [
    (h(zeta), {"clients": 2, "local_steps": 2, "rounds": 2, "step_size": eta, "L": 1.0, "mu": mu, "metric": metric})
    for h, (zeta, eta, mu, metric) in itertools.product(
        CLASSES, [(0.5, 0.25, 0.0, AVERAGE), (0.05, 1.0, 0.2, LAST), (2.0, 1.9, 0.0, LAST)]
    )
]


@pytest.mark.parametrize(("h", "setting"), SETTINGS)
def test_the_bracket_is_tight_and_the_instance_attains_it(h, setting):
    w = worst_case(heterogeneity=h, **setting)
    assert w.lower <= w.value <= w.upper
    assert w.upper <= w.value * (1 + 1e-5)
    assert w.lower >= w.value * (1 - 1e-5)
    assert w.instance.violation() <= 1e-12
    assert np.linalg.norm(w.instance.start) <= 1.0 + 1e-12
    at_star = np.array([F.gradient(np.zeros_like(w.instance.start)) for F in w.instance.clients])
    assert np.linalg.norm(at_star.sum(axis=0)) <= 1e-7
    assert np.mean(np.sum(at_star**2, axis=1)) <= h.zeta**2 * (1 + 1e-6)
    # re-simulated by the instance and by the loop above
    again = simulate(
        [F.gradient for F in w.instance.clients],
        [F.value for F in w.instance.clients],
        w.instance.start,
        setting["step_size"],
        setting["local_steps"],
        setting["rounds"],
        setting["metric"],
    )
    assert again == pytest.approx(w.lower, rel=1e-9)
    assert w.instance.simulate() == pytest.approx(again, rel=1e-12)


def programme(h, metric=AVERAGE, eta=0.5, mu=0.0):
    return Programme(*trace(fedavg(eta, 2, 2), Problems(2, mu=mu, heterogeneity=h), metric_of(metric)[1]))


@pytest.mark.parametrize("h", [AtOptimum(0.5), UniformUpper(0.5), Shift(0.5), AtOptimum(0.0)])
@pytest.mark.parametrize("mu", [0.0, 0.1])
def test_certificates_hold_whatever_the_solver_says(h, mu):
    """Spoilt multipliers still bound from above; spoilt Gram matrices still give feasible points."""
    p = programme(h, mu=mu)
    inner = inner_point(p)
    G, f, y, w, _ = solving.solve(p, solving.ATTEMPTS[0], inner)
    best = feasible_point(p, G, f, inner)
    true, trace_of_G = best.value, reach(p)
    assert upper_bound(p, y, w, trace_of_G) == pytest.approx(true, rel=1e-5)
    rng = np.random.default_rng(3)
    for size in (1e-6, 1e-3, 0.1, 1.0):
        spoilt = y + size * rng.standard_normal(len(y)) * max(1.0, y.max())
        assert upper_bound(p, spoilt, w, trace_of_G) >= true
        noise = rng.standard_normal(G.shape)
        point = feasible_point(p, G + size * (noise + noise.T), f + size * rng.standard_normal(len(f)), inner)
        assert p.slack(point.vectors, point.values).min() >= -1e-14
        assert point.value <= upper_bound(p, y, w, trace_of_G)
    for factor in (0.0, 0.9, 1.1):
        assert upper_bound(p, factor * y, w, trace_of_G) >= true
        assert feasible_point(p, factor * G, factor * f, inner).value <= true * (1 + 1e-6)
    assert upper_bound(p, np.full_like(y, np.nan), w, trace_of_G) == math.inf


@pytest.mark.slow
def test_bounds_on_trace_and_values_hold_at_the_worst_case():
    for h, eta in itertools.product([AtOptimum(0.7), UniformUpper(0.7), Shift(0.7)], [0.3, 1.5, 3.0]):
        p = programme(h, eta=eta)
        inner = inner_point(p)
        found = solving.solve(p, solving.ATTEMPTS[0], inner)
        for V, values in (inner, feasible_point(p, found.G, found.f, inner)[1:]):
            assert np.sum(V**2) <= reach(p)
            assert np.all(np.abs(values) <= p.heights * np.sum(V**2) * (1 + 1e-12))
        solved = solving.TraceBound(p, inner)
        solved.value = math.inf  # as where lengths are not known: a programme of its own
        assert solved.upper(found) == pytest.approx(feasible_point(p, found.G, found.f, inner).value, rel=1e-5)
        assert np.sum(V**2) <= solved.value <= 1.001 * reach(p)


def test_the_inner_point_is_strictly_feasible():
    for h, mu, eta in itertools.product(
        [AtOptimum(0.0), *(c(z) for c in CLASSES for z in (1e-2, 50.0))], [0, 0.9], [0.1, 3.0]
    ):
        p = programme(h, mu=mu, eta=eta)
        assert p.slack(*inner_point(p)).min() > 0


@pytest.mark.slow
def test_without_a_strictly_feasible_point_the_bracket_still_holds(monkeypatch):
    good = worst_case(heterogeneity=UniformUpper(0.5), **TABLE)
    monkeypatch.setattr(solving, "inner_point", lambda p: (np.zeros((1, p.gram)), np.zeros(p.count)))
    w = worst_case(heterogeneity=UniformUpper(0.5), **TABLE)
    assert 0.0 <= w.lower <= good.upper
    assert good.lower <= w.upper <= good.upper * (1 + 1e-5)


@pytest.mark.parametrize("h", [UniformUpper, Shift])
def test_hardly_any_heterogeneity(h):
    w = worst_case(heterogeneity=h(1e-12), **TABLE)
    assert 0.0 <= w.lower <= 2 / 7 * (1 + 1e-9)
    assert w.upper == pytest.approx(2 / 7, rel=1e-6)


def test_scs_alone_brackets(monkeypatch):
    good = worst_case(heterogeneity=Shift(0.5), **TABLE)
    monkeypatch.setattr(solving, "ATTEMPTS", solving.ATTEMPTS[-1:])
    w = worst_case(heterogeneity=Shift(0.5), **TABLE)
    assert w.solver.startswith("SCS")
    assert w.lower <= good.upper
    assert w.upper >= good.lower
    assert w.upper - w.lower <= 1e-3


def test_every_fallback_of_clarabel_brackets(monkeypatch):
    good, attempts = worst_case(heterogeneity=UniformUpper(0.5), **TABLE), solving.ATTEMPTS[:-1]
    for attempt in attempts:
        monkeypatch.setattr(solving, "ATTEMPTS", (attempt,))
        w = worst_case(heterogeneity=UniformUpper(0.5), **TABLE)
        assert w.lower <= good.upper
        assert w.upper >= good.lower
        assert w.upper - w.lower <= 1e-4


def test_failing_solvers_are_an_error(monkeypatch):
    monkeypatch.setattr(solving, "solve", lambda *_: None)
    with pytest.raises(RuntimeError, match="failed"):
        worst_case(**TABLE)


# ------------------------------------------------------------------------------------------------------- planted errors


def test_planted_errors_are_caught(monkeypatch):
    true_interpolation = programme_module.interpolation

    def scaled(by):
        def wrong(p, q, mu):
            A, a = true_interpolation(p, q, mu)
            linear = product(q.g, p.x - q.x)
            return linear + by * (A - linear), a

        return wrong

    for by in (0.9, 1.1):
        monkeypatch.setattr(programme_module, "interpolation", scaled(by))
        with pytest.raises(AssertionError):
            check_closed_form(4, 0.5)
    # too strong an inequality excludes the Huber function, which then exceeds "upper"
    assert gradient_descent(4, 0.5).upper < closed_form_homogeneous(1.0, 1.0, 0.5, 1, 4).value * (1 - 1e-3)
    monkeypatch.setattr(programme_module, "interpolation", true_interpolation)
    check_closed_form(4, 0.5)

    def wrong_form(L, D, step_size, local_steps, rounds):  # tau T for tau T + 1
        return types.SimpleNamespace(value=L * D**2 / (2 * (1 + step_size * L * local_steps * rounds)))

    monkeypatch.setattr(exact, "closed_form_homogeneous", wrong_form)
    with pytest.raises(AssertionError):
        check_closed_form(4, 0.5)


def test_a_wrong_bound_is_seen_in_the_ratios():
    w = worst_case(heterogeneity=AtOptimum(0.5), **TABLE)
    ratio = ratio_table({"too small": types.SimpleNamespace(value=0.99 * w.lower)}, w)["too small"]
    assert ratio.most < 1.0
    assert ratio_table({"any": types.SimpleNamespace(value=1.0)}, Bracket(0.0, 2.0))["any"] == (1.0, 0.5, math.inf)


# ----------------------------------------------------------------------------------------------- instances of the class


def quadratics(rng, M, d, mu):
    H = []
    for _ in range(M):
        Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
        H.append((Q * rng.choice([mu, 1.0, rng.uniform(mu, 1.0)], d)) @ Q.T)
    B = rng.standard_normal((M, d))
    return H, B - B.mean(axis=0)


@pytest.mark.parametrize("metric", [AVERAGE, LAST])
@pytest.mark.parametrize(("eta", "mu"), [(0.25, 0.0), (1.0, 0.1), (1.9, 0.0)])
def test_no_instance_exceeds_the_upper_bound(metric, eta, mu):
    zeta, steps = 0.6, {"step_size": eta, "local_steps": 2, "rounds": 2}
    upper = {
        h: worst_case(clients=2, L=1.0, mu=mu, heterogeneity=h(zeta), metric=metric, **steps).upper for h in CLASSES
    }
    rng = np.random.default_rng(7)
    for trial in range(60):
        d = 1 + trial % 3
        x0 = rng.standard_normal(d)
        x0 /= np.linalg.norm(x0)
        H, B = quadratics(rng, 2, d, mu)
        B *= zeta / np.linalg.norm(B[0])

        def run(hessians, B=B, x0=x0):
            gradients = [lambda x, A=A, b=b: A @ x + b for A, b in zip(hessians, B, strict=True)]
            values = [lambda x, A=A, b=b: 0.5 * x @ A @ x + b @ x for A, b in zip(hessians, B, strict=True)]
            return simulate(gradients, values, x0, metric=metric, **steps)

        assert run(H) <= upper[AtOptimum] * (1 + 1e-12)
        shifted = run([H[0], H[0]])
        assert shifted <= min(upper.values()) * (1 + 1e-12)
        # Huber functions of different radii: |F_1' - F_2'| <= 2 zeta everywhere
        r = rng.uniform(0.0, 0.8) + np.array([0.0, rng.uniform(0.0, 2 * zeta)])
        huber = simulate(
            [lambda x, r=r: mu * x + (1 - mu) * np.clip(x, -r, r) for r in r],
            [
                lambda x, r=r: float(
                    (mu * x**2 / 2 + (1 - mu) * np.where(abs(x) <= r, x**2 / 2, r * abs(x) - r**2 / 2)).sum()
                )
                for r in r
            ],
            [1.0],
            metric=metric,
            **steps,
        )
        assert huber <= min(upper[UniformUpper], upper[AtOptimum]) * (1 + 1e-12)


# ------------------------------------------------------------------------------------------------------ the interpolant


def test_interpolant_is_smooth_convex_and_interpolates():
    w = worst_case(heterogeneity=AtOptimum(0.5), **TABLE | {"mu": 0.1})
    rng = np.random.default_rng(0)
    for F in w.instance.clients:
        for x, g, f in zip(F.x, F.g, F.f, strict=True):
            assert F.value(x) == pytest.approx(f, abs=1e-9)
            assert F.gradient(x) == pytest.approx(g, abs=1e-6)
        d = F.x.shape[1]
        for _ in range(20):
            x, y = rng.standard_normal((2, d))
            gx, gy = F.gradient(x), F.gradient(y)
            inner = (gx - gy) @ (x - y)
            assert 0.1 * np.sum((x - y) ** 2) - 1e-9 <= inner <= np.sum((x - y) ** 2) + 1e-9
            assert np.sum((gx - gy) ** 2) <= np.sum((x - y) ** 2) + 1e-9
            t = 1e-5
            assert (F.value(x + t * y) - F.value(x - t * y)) / (2 * t) == pytest.approx(gx @ y, abs=1e-7)
    broken = dataclasses.replace(F, f=F.f + np.eye(1, len(F.f), 1)[0])
    assert broken.violation() > 0.5


def test_interpolant_of_a_quadratic_is_the_largest():
    """Through x = -1, 0, 1 of x^2/4 (L = 1) the largest interpolant lies above x^2/4 and below x^2/2."""
    x = np.array([[-1.0], [0.0], [1.0]])
    F = Interpolant(1.0, 0.0, x, 0.5 * x, 0.25 * x[:, 0] ** 2)
    assert F.violation() <= 0
    for s in np.linspace(-1, 1, 21):
        assert s**2 / 4 - 1e-12 <= F.value(np.array([s])) <= s**2 / 2 + 1e-12


def test_simplex_qp_meets_its_optimality_conditions():
    rng = np.random.default_rng(1)
    for trial in range(300):
        m, d = int(rng.integers(1, 14)), int(rng.integers(1, 6))
        Z, c = rng.standard_normal((m, d)), rng.standard_normal(m) * rng.choice([0.0, 0.1, 1.0, 10.0])
        if trial % 3 == 0 and m > 2:
            Z[1], c[1] = Z[0], c[0]  # ties
        w = minimise_over_simplex(Z, c)
        slope = Z @ (w @ Z) + c
        assert w.min() >= 0
        assert w.sum() == pytest.approx(1.0, abs=1e-14)
        assert w @ slope - slope.min() <= 1e-10 * (1 + abs(slope).max())  # the duality gap


# ------------------------------------------------------------------------------------------------------- size and input


@pytest.mark.parametrize(("M", "tau", "T", "gram"), [(2, 2, 3, 28), (3, 2, 2, 36), (2, 3, 2, 32)])
def test_sizes_of_the_theory_reference(M, tau, T, gram):
    assert programme_size(fedavg(0.25, tau, T), Problems(M, heterogeneity=UniformUpper(1.0)), "shadow").gram == gram


@pytest.mark.parametrize("h", [AtOptimum(0.0), AtOptimum(1.0), UniformUpper(1.0), Shift(1.0), Shift(0.0)])
@pytest.mark.parametrize("metric", [AVERAGE, LAST])
@pytest.mark.parametrize(("M", "tau", "T"), [(1, 2, 2), (2, 1, 3), (2, 3, 2), (3, 2, 1)])
def test_announced_size_is_the_size_built(h, metric, M, tau, T):
    case = fedavg(0.5, tau, T), Problems(M, heterogeneity=h), metric
    p = Programme(*trace(*case[:2], metric_of(metric)[1]))
    assert (len(p.made), p.count, len(p.b)) == tuple(programme_size(*case))


def test_too_large_says_so_first(monkeypatch):
    monkeypatch.setattr(exact, "Programme", lambda *_: pytest.fail("built"))
    with pytest.raises(ValueError, match=r"Gram matrix of 64; got .*Shift.*limit="):
        worst_case(clients=10, local_steps=5, rounds=5, step_size=0.1, L=1.0, heterogeneity=UniformUpper(1.0))


def test_limit_can_be_moved():
    with pytest.raises(ValueError, match="Gram matrix of 3"):
        worst_case(**TABLE, heterogeneity=Shift(0.0), limit=3)
    assert worst_case(**TABLE, heterogeneity=Shift(0.0), limit=4).gram_size == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": 0}, "clients must be at least 1"),
        ({"local_steps": 1.5}, "local_steps must be a whole number"),
        ({"step_size": 0.0}, "step_size must be positive"),
        ({"L": math.inf}, "L must be a number in"),
        ({"mu": 1.0}, "mu must be below L"),
        ({"D": 0}, "D must be positive where"),
        ({"heterogeneity": 0.5}, "Problems.heterogeneity must be"),
        ({"metric": STEADY_STATE_MSD}, "metric must be"),
        ({"step_size": 1e7}, "coefficients"),
        ({"heterogeneity": Shift(1e7)}, "zeta must be at most 1e\\+06 L D"),
        ({"limit": "big"}, "limit must be a whole number"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        worst_case(**TABLE | change)


@pytest.mark.parametrize("h", CLASSES)
def test_bad_zeta(h):
    with pytest.raises(ValueError, match=f"{h.__name__}.zeta must be nonnegative"):
        h(-1.0)


def test_it_prints():
    text = str(worst_case(**TABLE, heterogeneity=Shift(0.0)))
    assert "0.285714 in [" in text
    assert "Gram matrix 4, 13 constraints" in text


# ----------------------------------------------------------------------------------------------------------------- slow


@pytest.mark.slow
@pytest.mark.parametrize(("M", "tau", "T"), [(2, 2, 3), (3, 2, 2), (2, 3, 2), (2, 5, 1)])
def test_larger_programmes(M, tau, T):
    setting = TABLE | {"clients": M, "local_steps": tau, "rounds": T}
    results = [worst_case(heterogeneity=h(0.5), **setting) for h in CLASSES]
    for w in results:
        assert w.upper - w.lower <= 1e-5 * w.value
        assert w.instance.simulate() == pytest.approx(w.lower, rel=1e-8)
    star, uniform, shift = results
    assert shift.lower <= uniform.upper <= star.upper * (1 + 1e-5)
    width = (uniform.upper - shift.lower) / uniform.upper
    assert width <= (0.004 if tau == 2 else 0.01)  # tabulated in docs/theory/worst_case.md


@pytest.mark.slow
@pytest.mark.parametrize("h", [AtOptimum(0.3), UniformUpper(0.3), Shift(0.3)])
@pytest.mark.parametrize("eta", [0.001, 0.01])
def test_small_steps(h, eta):
    """Iterates that nearly coincide: the worst conditioned programmes."""
    w = worst_case(clients=2, local_steps=2, rounds=2, step_size=eta, L=1.0, heterogeneity=h)
    assert w.upper - w.lower <= 1e-5 * w.value


PEPIT = [
    (AtOptimum(0.0), 2, 2, 1, 0.25, 0.0, AVERAGE),
    (AtOptimum(0.5), 2, 2, 1, 0.25, 0.0, AVERAGE),
    (AtOptimum(1.0), 2, 3, 1, 0.8, 0.1, LAST),
    (AtOptimum(0.3), 3, 2, 1, 1.5, 0.0, AVERAGE),
    (AtOptimum(0.7), 2, 2, 2, 0.5, 0.2, AVERAGE),
    (AtOptimum(0.4), 3, 1, 3, 0.5, 0.1, LAST),
    (UniformUpper(0.5), 2, 2, 1, 0.25, 0.0, AVERAGE),
    (UniformUpper(1.0), 2, 2, 2, 0.5, 0.1, LAST),
    (UniformUpper(0.2), 3, 2, 1, 1.0, 0.0, AVERAGE),
    (Shift(0.5), 2, 2, 1, 0.25, 0.0, AVERAGE),
    (Shift(1.0), 3, 2, 2, 0.5, 0.1, LAST),
    (Shift(0.3), 2, 3, 2, 1.2, 0.0, AVERAGE),
]


@pytest.mark.slow
@pytest.mark.parametrize(("h", "M", "tau", "T", "eta", "mu", "metric"), PEPIT)
def test_pepit_agrees(h, M, tau, T, eta, mu, metric):
    pytest.importorskip("PEPit")
    w = worst_case(clients=M, local_steps=tau, rounds=T, step_size=eta, L=1.0, mu=mu, heterogeneity=h, metric=metric)
    assert pepit(h, M, tau, T, eta, mu, metric) == pytest.approx(w.value, rel=1e-5)


def pepit(h, M, tau, T, eta, mu, metric):
    """The same worst case modelled from scratch: one function per client (or f and shifts), no reductions."""
    from PEPit import PEP, Point, null_point
    from PEPit.functions import SmoothStronglyConvexFunction

    problem = PEP()
    one = isinstance(h, Shift)
    fs = [problem.declare_function(SmoothStronglyConvexFunction, L=1.0, mu=mu) for _ in range(1 if one else M)]
    F = sum(fs[1:], fs[0]) / len(fs)
    best = F.stationary_point()
    start = problem.set_initial_point()
    problem.set_initial_condition((start - best) ** 2 <= 1)
    visited = {}
    if one:
        shifts = [Point() for _ in range(M - 1)]
        shifts.append(-sum(shifts, null_point))
        for b in shifts:
            problem.add_constraint(b**2 <= h.zeta**2)

    def oracle(x):
        """All clients' gradients and the value of F at x, once per point."""
        if id(x) not in visited:
            pairs = [f.oracle(x) for f in fs]
            gradients = [pairs[0][0] + b for b in shifts] if one else [g for g, _ in pairs]
            visited[id(x)] = x, gradients, sum((v for _, v in pairs[1:]), pairs[0][1]) / len(fs)
            if isinstance(h, UniformUpper):
                mean = sum(gradients[1:], gradients[0]) / M
                for g in gradients:
                    problem.add_constraint((g - mean) ** 2 <= h.zeta**2)
        return visited[id(x)]

    at_best = [f.gradient(best) for f in fs]
    if isinstance(h, AtOptimum):
        problem.add_constraint(sum(g**2 for g in at_best[1:]) / M + at_best[0] ** 2 / M <= h.zeta**2)
    if isinstance(h, UniformUpper):
        for g in at_best:
            problem.add_constraint(g**2 <= h.zeta**2)
    x, shadow = start, []
    for _ in range(T):
        local = [x] * M
        for k in range(tau):
            gradients = []
            for i, y in enumerate(local):
                if k == 0 or not isinstance(h, AtOptimum):
                    gradients.append(oracle(y)[1][i])
                else:
                    gradients.append(fs[i].gradient(y))
            local = [y - eta * g for y, g in zip(local, gradients, strict=True)]
            x = sum(local[1:], local[0]) / M
            shadow.append(x)
    judged = shadow if metric is AVERAGE else shadow[-1:]
    values = [oracle(y)[2] for y in judged]
    problem.set_performance_metric(sum(values[1:], values[0]) / len(values) - F(best))
    tight = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}
    return problem.solve(wrapper="cvxpy", solver="CLARABEL", verbose=0, **tight)
