"""The partial likelihood against plain sums over risk sets, published values, and other programmes; who may use it."""

from __future__ import annotations

import pickle

import mpmath
import numpy as np
import pytest

from fedconvex import FedAvg, FederatedNewton, Federation, GradientDescent, run
from fedconvex.families.survival import risk_kernels
from fedconvex.problems import SurvivalFederation, SurvivalProblem, outcomes
from fedconvex.problems.protocol import Derivatives
from tests.survival.cox_oracle import drawn, log_partial, stratified


def problem_of(rows, ties="efron"):
    X, time, event, entry, strata, clients = rows
    fed = SurvivalFederation.from_arrays(X, outcomes(time, event, entry, strata), clients)
    return SurvivalProblem(fed, ties)


def groups_of(rows):
    _, time, _, _, strata, clients = rows
    return np.array([f"{c} {s}" for c, s in zip(clients, strata if strata is not None else time * 0, strict=True)])


CASES = [(entry, strata) for entry in (False, True) for strata in (0, 2)]


@pytest.mark.parametrize(("entry", "strata"), CASES)
@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_sums_over_risk_sets(entry, strata, ties, rng):
    """Random rows with ties everywhere, of 1 to 40 rows."""
    for _ in range(12):
        n, p = int(rng.integers(1, 41)), int(rng.integers(1, 4))
        rows = drawn(rng, n, p, entry=entry, strata=strata, times=int(rng.integers(1, 25)))
        problem, w = problem_of(rows, ties), rng.normal(size=p)
        N, g, H = stratified(rows[0], rows[1], rows[2], w, groups_of(rows), rows[3], ties == "efron")
        assert np.allclose(problem.value(w) * n, N, rtol=1e-12, atol=1e-12)
        assert np.allclose(problem.gradient(w) * n, g, rtol=1e-11, atol=1e-11)
        assert np.allclose(problem.hessian(w) * n, H, rtol=1e-11, atol=1e-11)


def test_the_comparison_sees_a_wrong_share(rng):
    """Planted: tied events weigh as much as Breslow has it."""
    rows = drawn(rng, 30, 2, times=6)
    w = rng.normal(size=2)
    right = stratified(rows[0], rows[1], rows[2], w, groups_of(rows))[0]
    assert abs(problem_of(rows, "breslow").value(w) * 30 - right) > 1e-3


def test_derivatives_are_those_of_the_value(rng):
    problem = problem_of(drawn(rng, 40, 3, entry=True, strata=2))
    w, step = rng.normal(size=3), 1e-5
    ways = step * np.eye(3)
    slopes = [(problem.value(w + v) - problem.value(w - v)) / (2 * step) for v in ways]
    bends = [(problem.gradient(w + v) - problem.gradient(w - v)) / (2 * step) for v in ways]
    assert np.allclose(problem.gradient(w), slopes, atol=1e-9)
    assert np.allclose(problem.hessian(w), bends, atol=1e-9)


@pytest.mark.parametrize("entry", [False, True])
@pytest.mark.parametrize("scale", [1.0, 300.0, 1e4])
def test_large_scores_neither_overflow_nor_cancel(entry, scale, rng):
    """Against 60 digits; scores are rounded to eps |z|, so that is what values and gradients may be off by."""
    X, time, event, late, _, _ = drawn(rng, 12, 1, entry=entry, times=6)
    problem = problem_of((X, time, event, late, None, np.zeros(12, int)))
    w = np.array([scale])
    with mpmath.workdps(60):
        N, g = mpmath.mpf(0), mpmath.mpf(0)
        z = [mpmath.mpf(float(x)) * mpmath.mpf(scale) for x in X[:, 0]]
        for t in np.unique(time[event]):
            at_risk = [j for j in range(12) if t <= time[j] and (late is None or late[j] < t)]
            dying = [j for j in at_risk if event[j] and time[j] == t]
            for r in range(len(dying)):
                p = [mpmath.exp(z[j]) * (1 - mpmath.mpf(r * (j in dying)) / len(dying)) for j in at_risk]
                N += mpmath.log(sum(p))
                g += sum(a * float(X[j, 0]) for a, j in zip(p, at_risk, strict=True)) / sum(p)
            N -= sum(z[j] for j in dying)
            g -= sum(mpmath.mpf(float(X[j, 0])) for j in dying)
        N, g = float(N), float(g)
    assert abs(problem.value(w) * 12 - N) <= 1e-13 * scale + 1e-14 * abs(N)
    assert abs(problem.gradient(w)[0] * 12 - g) <= 1e-13 * (1.0 + scale)
    assert abs(problem.value(w) * 12 - N) <= problem.rounding(w)


def test_many_models_and_clients_at_once_have_the_bits_of_one(rng):
    """A client alone, in another order, or with other models beside: its numbers are the same."""
    problem = problem_of(drawn(rng, 60, 3, entry=True, strata=2))
    W, clients = rng.normal(size=(2, 3)), np.array([[0, 2], [1, 0]])
    found = problem.client_derivatives(W, clients)
    assert isinstance(found, Derivatives)
    assert [a.shape for a in found] == [(2, 2), (2, 2, 3), (2, 2, 3, 3)]
    for r in range(2):
        for i, k in enumerate(clients[r]):
            alone = SurvivalProblem(problem.federation.subset([k])).client_derivatives(W[[r]], np.zeros((1, 1), int))
            for all_of_them, one in zip(found, alone, strict=True):
                assert np.array_equal(all_of_them[r, i], one[0, 0])
    assert np.array_equal(problem.client_values(W)[0], problem.client_values(W[0]))
    turned = SurvivalProblem(problem.federation.subset([2, 0, 1]))
    assert np.array_equal(turned.client_gradients(W[0]), problem.client_gradients(W[0])[[2, 0, 1]])
    total = (problem.weights[:, None, None] * problem.client_derivatives(W[:1], np.arange(3)[None]).hessians[0]).sum(0)
    assert np.allclose(total, problem.hessian(W[0]), rtol=1e-13)


def test_spreads_bound_differences_within_risk_sets(rng):
    rows = drawn(rng, 40, 2, strata=2)
    problem, groups = problem_of(rows), groups_of(rows)
    A = np.linalg.inv(problem.hessian(np.zeros(2)))
    found = problem.client_spreads(A[None], np.arange(3)[None])[0]
    for k in range(3):
        longest = max(
            float(d @ A @ d)
            for name in np.unique(groups[rows[5] == k])
            for d in (rows[0][groups == name][:, None] - rows[0][groups == name][None]).reshape(-1, 2)
        )
        assert 1.0 <= found[k] / np.sqrt(longest) <= 2.0 + 1e-12  # centred rows are nearer than the diameter


@pytest.mark.slow
@pytest.mark.compiled
def test_compiled_passes_are_those_of_the_source(rng):
    rows = drawn(rng, 400, 5, entry=True, strata=2, times=60)
    w = 0.5 * rng.normal(size=5)
    N, g, H = stratified(rows[0], rows[1], rows[2], w, groups_of(rows), rows[3])
    found = problem_of(rows).totals(w)
    assert abs(found[0] - N) < 1e-11 * N and np.allclose(found[1], g, atol=1e-11) and np.allclose(found[2], H)


# ---------------------------------------------------------------- edges


def test_sites_without_events_and_single_rows_say_nothing():
    """Client b is censored throughout, c has one row: its event is certain, log 1 = 0."""
    X = [[1.0], [0.0], [2.0], [3.0], [5.0]]
    y = outcomes([1.0, 2.0, 1.0, 2.0, 4.0], [1, 1, 0, 0, 1])
    problem = SurvivalProblem(SurvivalFederation.from_arrays(X, y, ["a", "a", "b", "b", "c"]))
    W = np.array([[0.0], [2.0]])
    assert np.array_equal(problem.client_values(W)[:, 1:], np.zeros((2, 2)))
    assert np.allclose(problem.client_values(W)[:, 0] * 2, [np.log(2), np.log(np.exp(2) + 1) - 2])
    assert not problem.client_gradients(W)[:, 1:].any()


def test_zero_times_count(rng):
    X, event = rng.normal(size=(6, 2)), np.array([1, 1, 0, 1, 0, 1], bool)
    time, w = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 2.0]), rng.normal(size=2)
    found = problem_of((X, time, event, None, None, np.zeros(6, int))).totals(w)
    assert np.allclose(found[0], log_partial(X, time, event, w)[0], rtol=1e-13)


def test_censored_at_an_event_time_is_at_risk_and_entry_at_it_is_not():
    """Rows 1 (censored at 3) and 2 (entry at 3) at the event time 3 of row 0."""
    y = outcomes([3.0, 3.0, 5.0], [1, 0, 0], entry=[0.0, 0.0, 3.0])
    problem = SurvivalProblem(SurvivalFederation.from_arrays([[0.0], [1.0], [9.0]], y, [0, 0, 0]))
    assert np.isclose(problem.value(np.array([2.0])) * 3, np.log(1 + np.exp(2)))


ONE = [[1.0], [2.0]]
REFUSED = {
    "entry": (lambda: outcomes([1.0, 2.0], [1, 1], entry=[0.0, 2.0]), "be before time; got 2 and 2 in row 1"),
    "negative": (lambda: outcomes([-1.0, 2.0], [1, 1]), "be nonnegative; got -1"),
    "nan": (lambda: outcomes([np.nan, 2.0], [1, 1]), "be finite; got nan at 0"),
    "event": (lambda: outcomes([1.0, 2.0], [1, 2]), "be True and False, or 1 and 0; got 2"),
    "length": (lambda: outcomes([1.0, 2.0], [1]), "have 2 entries"),
    "strata": (lambda: outcomes([1.0, 2.0], [1, 1], strata=["a", None]), "be all numbers or all strings"),
    "plain": (lambda: SurvivalFederation.from_arrays(ONE, [1.0, 2.0], [0, 0]), "be a structured array"),
    "censored": (
        lambda: SurvivalProblem(SurvivalFederation.from_arrays(ONE, outcomes([1.0, 2.0], [0, 0]), [0, 0])),
        "have an event; got 2 censored rows",
    ),
    "weights": (
        lambda: SurvivalFederation.from_arrays(ONE, outcomes([1.0, 2.0], [1, 0]), [0, 0], None, [1.0, 2.0]),
        "get rows without weights",
    ),
    "kind": (lambda: SurvivalProblem(Federation.from_clients([(ONE, [1.0, 2.0])])), "be a SurvivalFederation"),
    "ties": (lambda: SurvivalProblem(None, ties="exact"), "be one of 'efron', 'breslow'"),
    "no events": (lambda: SurvivalFederation(np.array(ONE), np.ones(2), np.array([0, 2])), "say of every row"),
    "columns": (
        lambda: SurvivalFederation.from_arrays(ONE, np.zeros(2, [("a", float), ("b", float)]), [0, 0]),
        "have a boolean column",
    ),
    "some": (
        lambda: SurvivalFederation.from_clients(
            [(ONE, outcomes([1.0, 2.0], [1, 0])), (ONE, outcomes([1.0, 2.0], [1, 0], entry=[0.0, 0.0]))]
        ),
        "of all clients or of none",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_words(name):
    make, words = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=words):
        make()


def test_federations_keep_their_conveniences(rng):
    rows = drawn(rng, 40, 2, entry=True, strata=2)
    fed = problem_of(rows).federation
    back = pickle.loads(pickle.dumps(fed))
    assert back.digest == fed.digest and np.array_equal(back.event, fed.event)
    some = fed.subset([2, 0])
    assert some.labels.tolist() == [2, 0] and some.event.size == some.n == some.entry.size == some.strata.size
    train, test = fed.split(0.25)
    assert train.n + test.n == fed.n and train.event.sum() + test.event.sum() == fed.event.sum()
    event = fed.event.copy()
    event[0] = ~event[0]
    assert SurvivalFederation.around(fed, event, fed.entry, fed.strata).digest != fed.digest
    plain = Federation.from_clients([(rows[0][:5], rows[1][:5])])
    assert SurvivalFederation.around(plain, rows[2][:5]).y.tolist() == rows[1][:5].tolist()
    theirs = np.array([(True, 2.0), (False, 3.0)], dtype=[("cens", "?"), ("days", float)])  # scikit-survival's names
    assert SurvivalFederation.from_arrays(ONE, theirs, [0, 0]).y.tolist() == [2.0, 3.0]
    pairs = [(rows[0][:3], outcomes(rows[1][:3], rows[2][:3])), (rows[0][3:5], outcomes(rows[1][3:5], rows[2][3:5]))]
    assert SurvivalFederation.from_clients(pairs).event.tolist() == rows[2][:5].tolist()


# ---------------------------------------------------------------- solutions, certificates, methods


def test_the_certificate_bounds_the_distance_to_the_minimum(rng):
    """One coefficient: the minimum by bisection of the derivative, in plain sums."""
    rows = drawn(rng, 30, 1, times=10)
    problem, groups = problem_of(rows), groups_of(rows)
    best = problem.solve()
    low, high = -20.0, 20.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        slope = stratified(rows[0], rows[1], rows[2], np.array([middle]), groups)[1][0]
        low, high = (low, middle) if slope > 0.0 else (middle, high)
    assert best.attained and best.unique and abs(best.w[0] - low) < 1e-10
    least = stratified(rows[0], rows[1], rows[2], np.array([low]), groups)[0]
    assert best.lower * 30 <= least + 1e-12 and best.gap < 1e-11
    finite = 0
    for step in (0.0, 1e-4, 1e-2, 0.1, 0.3):
        known = problem.certificate(best.w + step)
        above = stratified(rows[0], rows[1], rows[2], best.w + step, groups)[0] - least
        assert above <= known.gap + 1e-12
        finite += known.attained
    assert finite >= 3
    measured = problem.measure(np.stack([best.w + 0.2, best.w]))
    assert measured.gap[0] >= measured.value[0] - least / 30 - 1e-13 and measured.gap[1] < 1e-11


def test_the_lower_bound_without_a_minimiser():
    """One covariate orders all events: N has the infimum log 2! of its tied events, and no minimiser."""
    y = outcomes([1.0, 1.0, 2.0, 3.0], [1, 1, 1, 0])
    for ties, least in (("efron", np.log(2.0)), ("breslow", 2.0 * np.log(2.0))):
        problem = SurvivalProblem(SurvivalFederation.from_arrays([[3.0], [3.0], [2.0], [1.0]], y, [0] * 4), ties)
        best = problem.solve()
        assert not best.attained and "no minimiser is known" in best.certificate
        assert np.isclose(best.lower * 4, least, rtol=1e-12) and np.isclose(best.value * 4, least, atol=1e-6)


def test_collinear_columns_are_said(rng):
    X, time, event, _, _, clients = drawn(rng, 40, 2)
    rows = (np.column_stack([X, X @ [1.0, -2.0]]), time, event, None, None, clients)
    best = problem_of(rows).solve()
    assert not best.attained and "collinear" in best.certificate
    assert np.isclose(best.value, problem_of((X, time, event, None, None, clients)).solve().value, rtol=1e-10)


def test_methods_run_or_refuse(rng):
    problem = problem_of(drawn(rng, 60, 2, censored=0.2))
    best = problem.solve()
    newton = run(FederatedNewton(), problem, rounds=12, tol=1e-12)
    assert newton.status.name == "CONVERGED" and newton.rounds <= 8 and np.allclose(newton.w, best.w, atol=1e-6)
    descent = run(GradientDescent(step_size="auto"), problem, rounds=3000, tol=1e-6)
    assert descent.status.name == "CONVERGED"
    with pytest.raises(TypeError, match="got SurvivalProblem, which learns the coefficients of a likelihood"):
        run(FedAvg(step_size=0.1), problem)


def test_scores_that_are_no_numbers_poison_their_sums():
    """`add` keeps NaN: a score that is none poisons its sums, and is not skipped."""
    c, s, v = np.array([0.0]), np.array([1.0]), np.zeros((1, 0))
    risk_kernels.add(c, s, v, 0, np.nan, 1.0, 1.0, v, 0)
    assert np.isnan(s[0])
