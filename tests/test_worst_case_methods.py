"""Exact worst cases of SCAFFOLD, FedProx, hedging and sampled clients: PEPit, closed forms, worst functions run."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest

from fedconvex.report import best_step_plot
from fedconvex.theory.worst_case import (
    Arbitrary,
    AtOptimum,
    Iterates,
    Problems,
    Shift,
    UniformUpper,
    best_step,
    fedavg,
    fedlin,
    fedprox,
    fitted_exponent,
    gradient_descent,
    heavy_ball,
    hedging,
    methods,
    programme_size,
    scaffold,
    terms,
    worst_case,
)

pytestmark = pytest.mark.anywhere


# ------------------------------------------------------------------------------------- the methods, written once more
# p weights, gradient(i, x), prox(i, x, step), S the clients of every round; models after every round


def total(points):
    points = list(points)
    return sum(points[1:], points[0])  # PEPit adds points to points only


def run_scaffold(p, gradient, prox, x, S, *, K, eta, option, eta_g=1.0, known=False):
    N, out = len(p), []
    c_i = [gradient(i, x) if known else 0 * x for i in range(N)]
    for sampled in S:
        c = total(p[i] * c_i[i] for i in range(N))
        step, changed = 0 * x, list(c_i)
        for i in sampled:
            y, used = x, 0 * x
            for _ in range(K):
                d = gradient(i, y) - c_i[i] + c
                y, used = y - eta * d, used + d
            changed[i] = gradient(i, x) if option == 1 else c_i[i] - c + used / K
            step = step + N / len(sampled) * p[i] * (y - x)
        x, c_i = x + eta_g * step, changed
        out.append(x)
    return out


def run_fedprox(p, gradient, prox, x, S, *, step):
    out = []
    for sampled in S:
        share = sum(p[i] for i in sampled)
        x = total(p[i] / share * prox(i, x, step) for i in sampled)
        out.append(x)
    return out


def run_fedavg(p, gradient, prox, x, S, *, K, eta):
    out = []
    for sampled in S:
        share, moved = sum(p[i] for i in sampled), 0 * x
        for i in sampled:
            y = x
            for _ in range(K):
                y = y - eta * gradient(i, y)
            moved = moved + p[i] / share * y
        x = moved
        out.append(x)
    return out


def run_hedging(p, gradient, prox, x, S, *, rho):
    """Consensus ADMM with multipliers, not the Douglas-Rachford form."""
    N, z, out = len(p), x, []
    own, y = [x] * N, [0 * x] * N
    for sampled in S:
        before = list(own)
        for i in sampled:
            y[i] = y[i] + rho * (own[i] - z)
            own[i] = prox(i, z - y[i] / rho, 1 / rho)
        z = z + total(p[i] * (own[i] - (before[i] if len(sampled) < N else z)) for i in sampled)
        out.append(z)
    return out


# M or weights, mu, class, metric, rounds, sampled; method; its reference and arguments
def case(weights, mu, kind, metric, T, sampled, method, reference, **arguments):
    p = [1 / weights] * weights if isinstance(weights, int) else list(weights)
    given = None if isinstance(weights, int) else tuple(weights)
    problems = Problems(len(p), mu=mu, heterogeneity=kind, weights=given)
    return problems, metric, T, sampled, method, reference, arguments


def scaffolds(weights, mu, kind, metric, K, T, eta, option, *, sampled=None, eta_g=1.0, known=False):
    first = "gradients" if known else "zero"
    method = scaffold(eta, K, T, option=option, server_step=eta_g, sampled=sampled, first_controls=first)
    more = {"K": K, "eta": eta, "option": option, "eta_g": eta_g, "known": known}
    return case(weights, mu, kind, metric, T, sampled, method, run_scaffold, **more)


def proxes(weights, mu, kind, metric, T, step, *, sampled=None):
    return case(weights, mu, kind, metric, T, sampled, fedprox(1 / step, T, sampled), run_fedprox, step=step)


def averages(weights, mu, kind, metric, K, T, eta, sampled):
    return case(weights, mu, kind, metric, T, sampled, fedavg(eta, K, T, sampled), run_fedavg, K=K, eta=eta)


SCAFFOLD = [
    scaffolds(2, 0.0, AtOptimum(0.5), "last", 1, 2, 0.5, 1),
    scaffolds(2, 0.1, AtOptimum(0.5), "last", 2, 1, 0.25, 2),
    scaffolds(2, 0.1, AtOptimum(1.0), "distance", 2, 2, 0.5, 1),
    scaffolds(2, 0.1, AtOptimum(1.0), "distance", 2, 2, 0.5, 2),
    scaffolds(2, 0.2, Arbitrary(), "distance", 2, 2, 0.8, 1, known=True),
    scaffolds((0.7, 0.3), 0.1, AtOptimum(0.5), "average", 2, 2, 0.4, 2, eta_g=1.5),
    scaffolds(3, 0.0, AtOptimum(0.3), "best", 2, 1, 1.2, 1),
    scaffolds(2, 0.1, AtOptimum(0.5), "last", 1, 3, 0.5, 2),
]
FEDPROX = [
    proxes(2, 0.0, AtOptimum(0.0), "last", 2, 1.0),
    proxes(2, 0.0, AtOptimum(0.5), "last", 3, 2.0),
    proxes(2, 0.1, AtOptimum(0.5), "distance", 3, 0.5),
    proxes((0.5, 0.3, 0.2), 0.1, AtOptimum(0.7), "average", 2, 1.0),
    proxes(3, 0.2, AtOptimum(2.0), "last", 2, 3.0),
    proxes(2, 0.1, Shift(0.5), "last", 2, 1.0),
    proxes(2, 0.1, UniformUpper(0.5), "distance", 2, 1.0),
    proxes((0.8, 0.2), 0.0, AtOptimum(1.0), "best", 2, 1.0),
]
PARTICIPATION = [
    averages(2, 0.0, AtOptimum(0.5), "last", 2, 1, 0.25, 1),
    averages(2, 0.1, AtOptimum(0.5), "distance", 1, 2, 0.5, 1),
    averages(3, 0.1, AtOptimum(0.3), "last", 1, 1, 0.8, 2),
    averages((0.7, 0.3), 0.1, AtOptimum(0.5), "last", 2, 1, 0.5, 1),
    averages(2, 0.1, Shift(0.5), "distance", 2, 2, 0.5, 1),
    proxes(2, 0.1, AtOptimum(1.0), "distance", 2, 1.0, sampled=1),
    proxes(3, 0.0, AtOptimum(0.5), "last", 1, 1.0, sampled=2),
    scaffolds(2, 0.2, AtOptimum(0.5), "distance", 1, 2, 0.4, 2, sampled=1),
]


def everybody(problems, T, sampled):
    """All sequences of samples."""
    M = problems.clients
    return list(itertools.product(itertools.combinations(range(M), sampled or M), repeat=T))


def measured(metric, runs, value, inner):
    """The metric of models after every round, averaged over the runs; of several values, one list."""
    if metric == "distance":
        return [total(inner(run[-1]) for run in runs) / len(runs)]
    values = [[value(x) for x in run] for run in runs]
    by_round = [total(column) / len(runs) for column in zip(*values, strict=True)]
    if metric == "average":
        return [total(by_round) / len(by_round)]
    return by_round if metric == "best" else by_round[-1:]


def pepit(problems, metric, T, sampled, method, reference, arguments):
    """The same worst case, modelled with PEPit: one function per client (or f and shifts), no reductions."""
    from PEPit import PEP, Point, null_point
    from PEPit.functions import SmoothStronglyConvexFunction
    from PEPit.primitive_steps import proximal_step

    h, p, M, problem = problems.heterogeneity, problems.p.tolist(), problems.clients, PEP()
    f = [problem.declare_function(SmoothStronglyConvexFunction, L=1.0, mu=problems.mu) for _ in range(M)]
    shifts = [null_point] * M
    if isinstance(h, Shift):
        f = f[:1] * M
        shifts = [Point() for _ in range(M - 1)]
        shifts.append(-total(w * b for w, b in zip(p, shifts, strict=False)) / p[-1])
        for b in shifts:
            problem.add_constraint(b**2 <= h.zeta**2)
        best = f[0].stationary_point()
        F = f[0]
    else:
        F = total(w * g for w, g in zip(p, f, strict=True))
        best = F.stationary_point()
    if isinstance(h, AtOptimum):
        problem.add_constraint(total(w * g.gradient(best) ** 2 for w, g in zip(p, f, strict=True)) <= h.zeta**2)
    start = problem.set_initial_point()
    problem.set_initial_condition((start - best) ** 2 <= 1)
    known = {}

    def uniform(x):
        if isinstance(h, UniformUpper) and id(x) not in known:
            known[id(x)] = x
            g = [one.gradient(x) for one in f]
            mean = total(w * v for w, v in zip(p, g, strict=True))
            for v in g:
                problem.add_constraint((v - mean) ** 2 <= h.zeta**2)
        return x

    def gradient(i, x):
        key = (i, tuple(sorted((v.counter, round(c, 12)) for v, c in x.decomposition_dict.items() if c)))
        if key not in known:  # once per point
            known[key] = f[i].gradient(uniform(x)) + shifts[i]
        return known[key]

    def prox(i, x, step):
        key = (i, step, tuple(sorted((v.counter, round(c, 12)) for v, c in x.decomposition_dict.items() if c)))
        if key not in known:
            known[key] = uniform(proximal_step(x - step * shifts[i], f[i], step)[0])
        return known[key]

    uniform(best)
    runs = [reference(p, gradient, prox, start, S, **arguments) for S in everybody(problems, T, sampled)]
    for part in measured(metric, runs, lambda x: F(uniform(x)) - F(best), lambda x: (x - best) ** 2):
        problem.set_performance_metric(part)
    tight = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}
    return problem.solve(wrapper="cvxpy", solver="CLARABEL", verbose=0, **tight)


def agrees(problems, metric, T, sampled, method, reference, arguments):
    """PEPit to 1e-5, and the worst functions run by the loops above to 1e-9."""
    w = worst_case(method, problems, metric)
    assert w.lower <= w.value <= w.upper <= w.lower * (1 + 1e-5)
    F, p = w.instance.clients, problems.p.tolist()
    assert w.instance.violation() <= 1e-12
    value0 = w.instance.value(np.zeros_like(w.instance.start))
    runs = [
        reference(p, lambda i, x: F[i].gradient(x), lambda i, x, s: F[i].prox(x, s), w.instance.start, S, **arguments)
        for S in everybody(problems, T, sampled)
    ]
    again = min(measured(metric, runs, lambda x: w.instance.value(x) - value0, lambda x: x @ x))
    assert again == pytest.approx(w.lower, rel=1e-9, abs=1e-9)
    assert w.instance.simulate() == pytest.approx(again, rel=1e-9, abs=1e-9)
    return w


@pytest.mark.slow
@pytest.mark.parametrize("setting", [*SCAFFOLD, *FEDPROX, *PARTICIPATION], ids=lambda s: s[5].__name__[4:])
def test_pepit_and_the_worst_functions_agree(setting):
    pytest.importorskip("PEPit")
    assert pepit(*setting) == pytest.approx(agrees(*setting).value, rel=1e-5)


@pytest.mark.parametrize("setting", [SCAFFOLD[1], FEDPROX[3], PARTICIPATION[0]], ids=["scaffold", "fedprox", "sampled"])
def test_the_worst_functions_attain_the_value(setting):
    agrees(*setting)


def test_hedging_is_consensus_admm():
    p = (0.6, 0.4)
    agrees(*case(p, 0.1, AtOptimum(0.5), "distance", 2, None, hedging(0.7, 2), run_hedging, rho=0.7))


# ------------------------------------------------------------------------------------------------------- closed forms


@pytest.mark.parametrize("T", [1, 3])
def test_proximal_steps_contract(T):
    """‖x^T - x*‖ = D/(1 + step mu)^T where clients share their minimiser: (mu/2)‖x‖^2 attains it."""
    w = worst_case(fedprox(2.0, T), Problems(2, mu=0.2, D=3.0), "distance")
    exact = 9.0 / 1.1 ** (2 * T)
    assert w.lower <= exact * (1 + 1e-12)
    assert exact <= w.upper <= exact * (1 + 1e-6)


@pytest.mark.parametrize("weights", [None, (0.75, 0.25)])
def test_one_sampled_client(weights):
    """One round of FedProx with one client of two: E‖x‖^2 = mean ‖x^0 - s g_i‖^2/(1 + s mu)^2.

    With equal weights that is (D^2 + s^2 zeta^2)/(1 + s mu)^2. With p = (3/4, 1/4) g_2 = -3 g_1, zeta^2 = 3 ‖g_1‖^2,
    and the mean is D^2 + 2 s D ‖g_1‖ + 5 s^2 ‖g_1‖^2.
    """
    zeta, s = 0.6, 0.5
    problems = Problems(2, mu=0.2, heterogeneity=AtOptimum(zeta), weights=weights)
    w = worst_case(fedprox(2.0, 1, 1), problems, "distance")
    g = zeta / math.sqrt(3)
    exact = (1 + s**2 * zeta**2 if weights is None else 1 + 2 * s * g + 5 * s**2 * g**2) / 1.1**2
    assert w.lower <= exact * (1 + 1e-12)
    assert exact <= w.upper <= exact * (1 + 1e-6)


def test_the_worst_sequence_of_samples():
    """The same, with the client that is drawn known: (D + s zeta)^2/(1 + s mu)^2."""
    problems = Problems(2, mu=0.2, heterogeneity=AtOptimum(0.6))
    w = worst_case(fedprox(2.0, 1, 1), problems, "distance", over="sequences")
    assert w.upper == pytest.approx(1.3**2 / 1.1**2, rel=1e-6)
    assert w.instance.simulate() == pytest.approx(w.lower, rel=1e-9)


def test_noise_and_its_own_worst_case():
    """One step: E‖x^0 - eta (g ± e)‖^2 = (1 - eta mu)^2 D^2 + eta^2 sigma^2, and each term alone."""
    found = terms(fedavg(0.5, 1, 1, noisy=True), Problems(mu=0.2, D=2.0, sigma=0.6), "distance")
    assert list(found) == ["all", "start", "noise"]
    exact = {"all": 0.81 * 4 + 0.25 * 0.36, "start": 0.81 * 4, "noise": 0.25 * 0.36}
    for name, w in found.items():
        assert w.lower <= exact[name] * (1 + 1e-12)
        assert exact[name] <= w.upper <= exact[name] * (1 + 1e-6)
        assert w.instance.simulate() == pytest.approx(w.lower, rel=1e-9)


@pytest.mark.parametrize("chances", [(0.5, 0.5), (0.1, 0.9), (1, 1, 2), (0.5, 0.5, 2.4e-6)])
def test_noise_of_several_values(chances):
    """What one step adds depends on the variance alone; every value is followed, and simulated, rare ones too."""
    problems = Problems(mu=0.2, D=2.0, sigma=0.6, chances=chances)
    w = worst_case(fedavg(0.5, 1, 1, noisy=True), problems, "distance")
    exact = 0.81 * 4 + 0.25 * 0.36
    assert exact * (1 - 1e-6) <= w.lower <= exact * (1 + 1e-12)
    assert exact <= w.upper <= exact * (1 + 2e-5)  # what solvers leave differs from version to version
    assert w.instance.simulate() == pytest.approx(w.lower, rel=1e-9)
    assert len(w.instance.outcomes) == len(chances)
    probability, values = zip(*((p, noise[0]) for p, _, noise in w.instance.outcomes), strict=True)
    np.testing.assert_allclose(probability, np.array(chances) / sum(chances))
    np.testing.assert_allclose(np.average(values, axis=0, weights=probability), 0.0, atol=1e-12)
    assert np.average(np.sum(np.square(values), axis=1), weights=probability) <= 0.36 * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("chances", "tau"), [((0.2, 0.8), 2), ((0.3, 0.3, 0.4), 1)])
def test_pepit_agrees_on_noise(chances, tau):
    """Stochastic gradient steps on one function."""
    PEPit = pytest.importorskip("PEPit")
    from PEPit.functions import SmoothStronglyConvexFunction

    mu, eta, sigma = 0.1, 0.4, 0.7
    pep = PEPit.PEP()
    f = pep.declare_function(SmoothStronglyConvexFunction, mu=mu, L=1.0)
    best = f.stationary_point()
    x = pep.set_initial_point()
    pep.set_initial_condition((x - best) ** 2 <= 1)

    def steps(x):
        values = [PEPit.Point() for _ in chances[1:]]
        values.append(sum((e * (-c / chances[-1]) for c, e in zip(chances, values, strict=False)), PEPit.null_point))
        pep.add_constraint(sum(c * e**2 for c, e in zip(chances, values, strict=True)) <= sigma**2)
        g = f.gradient(x)
        return [(c, x - eta * (g + e)) for c, e in zip(chances, values, strict=True)]

    ends = [(1.0, x)]
    for _ in range(tau):
        ends = [(c * q, z) for c, y in ends for q, z in steps(y)]
    pep.set_performance_metric(sum(c * (f(z) - f(best)) for c, z in ends))
    tight = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}
    theirs = pep.solve(wrapper="cvxpy", solver="CLARABEL", verbose=0, **tight)
    mine = worst_case(fedavg(eta, tau, 1, noisy=True), Problems(mu=mu, sigma=sigma, chances=chances))
    assert mine.value == pytest.approx(theirs, rel=1e-5)
    assert mine.instance.simulate() == pytest.approx(mine.lower, rel=1e-9)


def test_heterogeneity_alone_starts_at_the_optimum():
    found = terms(fedavg(0.5, 2, 1), Problems(2, mu=0.2, heterogeneity=AtOptimum(0.6)), "distance")
    assert not found["heterogeneity"].instance.start.any()
    assert 0 < found["heterogeneity"].lower < found["start"].upper < found["all"].lower


def test_corrected_methods_need_no_bound_on_heterogeneity():
    """FedLin and SCAFFOLD with gradients at first: ‖x‖ shrinks by (1 - eta mu)^tau a round, whatever the gradients."""
    problems = Problems(2, mu=0.2, heterogeneity=Arbitrary())
    for method in (fedlin(0.1, 2, 2), scaffold(0.1, 2, 2, first_controls="gradients")):
        w = worst_case(method, problems, "distance")
        assert w.upper < math.inf
        assert w.lower >= 0.98**8 * (1 - 1e-6)  # (mu/2)‖x‖^2
        assert w.instance.simulate() == pytest.approx(w.lower, rel=1e-9)


@pytest.mark.parametrize(("method", "mu"), [(fedprox(1.0, 2, 1), 0.2), (fedavg(0.1, 2, 1), 0.0)])
def test_without_correction_the_worst_case_is_infinite(method, mu):
    """Neither end nor the estimate is a number that the solver happened to stop at."""
    try:
        found = worst_case(method, Problems(2, mu=mu, heterogeneity=Arbitrary()))
        assert found.value == found.upper == math.inf
    except RuntimeError as error:
        assert "infinite" in str(error)


def test_heavy_ball_without_momentum_is_gradient_descent():
    ours, plain = (worst_case(m, Problems(mu=0.1)) for m in (heavy_ball(0.5, 0.0, 3), gradient_descent(0.5, 3)))
    assert ours.upper == pytest.approx(plain.upper, rel=1e-7)
    assert plain.gram_size == 5


def test_units_of_every_metric():
    problems = [
        Problems(2, L=L, mu=0.1 * L, D=D, heterogeneity=AtOptimum(0.3 * L * D)) for L, D in ((1.0, 1.0), (4.0, 3.0))
    ]
    for metric, unit in (("distance", 9.0), ("gradient", 144.0), ("last", 36.0)):
        one, other = (worst_case(fedprox(p.L, 1), p, metric).value for p in problems)
        assert other == pytest.approx(unit * one, rel=1e-6)


# ---------------------------------------------------------------------------------------------------- one's own method


def extragradient(problem):
    x = problem.start
    return x - 0.5 * problem.gradient(x - 0.5 * problem.gradient(x))


def test_own_method_and_own_metric():
    def gap_and_distance(problem, run):
        x = run.rounds[-1] - problem.optimum
        return problem.value(run.rounds[-1]) + 0.5 * x @ x

    problems = Problems(mu=0.5)
    both = worst_case(extragradient, problems, gap_and_distance)
    parts = [worst_case(extragradient, problems, m).upper for m in ("last", "distance")]
    assert max(parts[0], 0.5 * parts[1]) < both.lower <= both.upper <= parts[0] + 0.5 * parts[1] + 1e-9
    assert both.instance.simulate() == pytest.approx(both.lower, rel=1e-9)


def test_planted_errors_in_methods_are_seen(monkeypatch):
    """A SCAFFOLD whose server forgets N/S, and one whose option II divides by K + 1, are other methods."""
    setting = PARTICIPATION[7]
    true = worst_case(setting[4], setting[0], setting[1])
    right = methods.scaffold_step

    def forgetful(problem, clients, x, c_i, eta, K, option, eta_g):
        return right(problem, clients, x, c_i, eta, K, option, eta_g * len(clients) / len(problem.p))

    monkeypatch.setattr(methods, "scaffold_step", forgetful)
    assert worst_case(setting[4], setting[0], setting[1]).lower > true.upper * 1.01


@pytest.mark.parametrize(
    ("method", "metric", "message"),
    [
        (lambda problem: problem.start * problem.start, "last", "multiplied by numbers"),
        (lambda problem: problem.start + 1.0, "last", "added to points"),
        (lambda problem: problem.clients[0].gradient(np.zeros(3)), "last", "made of points"),
        (lambda problem: problem.clients[0].prox(problem.start, -1.0), "last", "step must be positive"),
        (lambda problem: problem.sample(3), "last", "size must be"),
        (lambda problem: problem.mean([problem.start]), "last", "one per client"),
        (lambda problem: 3.0, "last", "what it returns"),
        (lambda problem: Iterates([problem.start]), "shadow", "shadow iterates"),
        (extragradient, "median", "metric must be one of"),
        (extragradient, lambda problem, run: 1.0, "function values and inner products"),
    ],
)
def test_bad_methods_are_refused_by_name(method, metric, message):
    with pytest.raises((ValueError, TypeError), match=message):
        worst_case(method, Problems(2), metric)


@pytest.mark.slow
def test_too_large_says_so_first():
    with pytest.raises(ValueError, match=re.escape("stay within a Gram matrix of 64; got more than 300")):
        worst_case(fedavg(0.1, 2, 12, sampled=1), Problems(2))
    assert programme_size(scaffold(0.1, 5, 5), Problems(4, heterogeneity=AtOptimum(1.0))).gram > 64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": (1.0, 0.0)}, "positive and comparable"),
        ({"weights": (1.0,)}, "weights must"),
        ({"D": 0.0}, "nothing would ever move"),
        ({"sigma": 1e9}, "at most 1e\\+06 L D"),
        ({"chances": (1.0,)}, "chances must be two or more positive probabilities"),
        ({"chances": (0.5, math.nan)}, "chances must be two or more positive probabilities"),
    ],
)
def test_bad_classes(arguments, message):
    with pytest.raises(ValueError, match=message):
        Problems(2, **arguments)


# -------------------------------------------------------------------------------------------------- steps and exponents


def test_the_best_step_of_gradient_descent():
    """One step: max(1/(2(2 eta + 1)), (1 - eta)^2/2), least at eta = 3/2 (Drori and Teboulle 2014)."""
    best = best_step(
        lambda eta: gradient_descent(eta / 4, 1), Problems(L=4.0, D=2.0), steps=[0.5, 1.0, 1.8], recommended=0.25
    )
    assert best.step == pytest.approx(1.5, abs=0.05)
    assert best.worst.upper == pytest.approx(
        16 * max(1 / (2 * (2 * best.step + 1)), (1 - best.step) ** 2 / 2), rel=1e-6
    )
    assert best.worst_there.upper == pytest.approx(16 / 3, rel=1e-6)
    assert best.loss == pytest.approx(best.worst_there.upper / best.worst.upper, rel=1e-5)
    assert list(best.steps) == sorted(best.steps)
    assert best.worst.upper == best.upper.min()
    assert "recommended 0.25" in str(best)
    figure = best_step_plot(best)
    assert "0.25" in figure.axes[0].get_legend().get_texts()[2].get_text()


def test_exponents():
    exact = {T: 1 / (2 * (2 * T + 1)) for T in (1, 2, 4)}
    found = fitted_exponent({T: worst_case(gradient_descent(1.0, T), Problems()) for T in exact})
    assert found.value == pytest.approx(fitted_exponent(exact).value, abs=1e-5)
    assert found.low < -0.85 < found.high
    assert found.local[0] == pytest.approx(math.log(3 / 5) / math.log(2), abs=1e-5)
    assert fitted_exponent({1: 1.0, 2: 2.0}).high == math.inf
    for wrong in ({1: 1.0}, {1: 1.0, 2: 0.0}, {0: 1.0, 2: 1.0}, {"a": 1.0, "b": 2.0}):
        with pytest.raises((ValueError, TypeError), match="fitted_exponent: worst"):
            fitted_exponent(wrong)
    with pytest.raises(ValueError, match="positive and increasing"):
        best_step(lambda eta: gradient_descent(eta, 1), Problems(), steps=[1.0, 0.5])
