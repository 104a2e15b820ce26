"""MultiBoost and FedMultiBoost against scikit-learn's AdaBoost, cvxpy and plain NumPy; kinks, caps, certificates."""

import warnings
from typing import NamedTuple

import cvxpy as cp
import numpy as np
import pytest
from sklearn.ensemble import AdaBoostClassifier
from sklearn.tree import DecisionTreeClassifier

from fedconvex import Exponential, Federation, Problem, Squared, iterate, run
from fedconvex.draws import Draws, key_from_seed
from fedconvex.driver import participants
from fedconvex.families.boosting import worst_domain
from fedconvex.kernels.cache import DISABLED
from fedconvex.loss_traits import declares
from fedconvex.methods import FedMultiBoost, MultiBoost, SecureSums
from fedconvex.problems import Dictionary, EnsembleProblem, Logistic2, StumpProblem
from fedconvex.solvers.certificates.gaps import ContradictedCertificate

pytestmark = pytest.mark.compiled_if_slow

LOSSES = [Exponential(), Logistic2()]
INSTANCES = 3 if DISABLED else 8  # uncompiled runs are there for the code, not for the numbers
each_loss = pytest.mark.parametrize("loss", LOSSES, ids=lambda v: type(v).__name__)


def quiet(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(*args, **kwargs)


def rows(rng, n=300, d=5, p=1):
    """Single-precision features, so that scikit-learn's trees see the same numbers."""
    X = rng.normal(size=(n, d)).astype(np.float32).astype(float)
    domain = np.arange(n) % p
    X[:, 0] = (X[:, 0] + 2.0 * domain).astype(np.float32)
    y = np.where(X[:, 1] + X[:, 2] * (domain + 1 - 0.5 * p) + 0.5 * rng.normal(size=n) > 0, 1.0, -1.0)
    return X, y, domain


def instance(seed, p=None, loss=None, n=(25, 45), N=(2, 6)):
    """A small dense problem whose minimum is attained: more rows than any combination of classifiers separates."""
    rng = np.random.default_rng(seed)
    p = int(rng.integers(1, 4)) if p is None else p
    n, N = int(rng.integers(*n)), int(rng.integers(*N))
    domain = np.concatenate([np.arange(p), rng.integers(0, p, n - p)])
    y, Q = rng.choice([-1.0, 1.0], n), rng.dirichlet(np.ones(p), n)
    H = np.where(rng.random((n, N)) < 0.65, y[:, None], -y[:, None]) * rng.choice([1.0, 0.5], (n, 1))
    sources = rng.integers(0, p, N)
    fed = Federation.from_arrays(rng.normal(size=(n, 1)), y, domain, domain)
    return EnsembleProblem(fed, Dictionary(H[np.argsort(domain, kind="stable")], sources), _sorted(Q, domain), loss)


def _sorted(Q, domain):
    return Q[np.argsort(domain, kind="stable")]


def plain_losses(problem, alpha):
    """F_k from the definition, row by row of the original federation."""
    fed, h, out = problem.data, problem.dictionary, []
    f = sum(a * problem.q[:, s] * h.predictions[:, j] for j, (a, s) in enumerate(zip(alpha, h.sources, strict=True)))
    u = -fed.y * f
    phi = np.exp(u) if isinstance(problem.loss, Exponential) else np.logaddexp(0.0, u) / np.log(2.0)
    domain = np.zeros(fed.n, int) if fed.domain is None else fed.domain
    for k in range(problem.p):
        out.append(phi[domain == k].mean())
    return np.array(out)


def reference(problem):
    """The minimum over alpha >= 0, sum alpha <= 100, by cvxpy."""
    a = cp.Variable(problem.federation.d, nonneg=True)
    parts = []
    for lo, hi in zip(problem.bounds[:-1], problem.bounds[1:], strict=True):
        u = -problem.signed[lo:hi] @ a
        phi = cp.exp(u) if isinstance(problem.loss, Exponential) else cp.logistic(u) / np.log(2.0)
        parts.append(cp.sum(phi) / (hi - lo))
    worst = [sum(v[k] * parts[k] for k in range(problem.p)) for v in problem.vertices]
    task = cp.Problem(cp.Minimize(cp.maximum(*worst) if len(worst) > 1 else worst[0]), [cp.sum(a) <= 100])
    task.solve(solver="CLARABEL")
    return float(task.value), np.asarray(a.value)


# ---------------------------------------------------------------- one source is AdaBoost


@pytest.mark.slow
def test_one_source_is_adaboost_of_scikit_learn(rng):
    X, y, _ = rows(rng)
    stump = DecisionTreeClassifier(max_depth=1)
    peer = AdaBoostClassifier(stump, n_estimators=60, random_state=0).fit(X, y)
    problem = StumpProblem(Federation.from_arrays(X, y, np.zeros(len(y), int)), criterion="gini")
    result = run(MultiBoost(), problem, rounds=60)
    log = result.state.history[0]
    np.testing.assert_allclose(2.0 * log[:, 5], peer.estimator_weights_, rtol=0, atol=1e-10)
    for step, tree in zip(log, peer.estimators_, strict=True):
        assert int(step[1]) == tree.tree_.feature[0]
    ensemble = problem.ensemble(result.state)
    np.testing.assert_array_equal(ensemble.predict(X), peer.predict(X))
    for mine, theirs in zip(ensemble.staged_decision_function(X), peer.staged_predict(X), strict=True):
        np.testing.assert_array_equal(np.where(mine >= 0, 1.0, -1.0), theirs)


def test_one_source_is_adaboost_on_a_fixed_dictionary(rng):
    """Plain AdaBoost in NumPy: choose the least weighted error, alpha = log((1 - eps)/eps)/2, reweight."""
    X, y, _ = rows(rng, n=80)
    fed = Federation.from_arrays(X, y, np.zeros(len(y), int))
    h = Dictionary.stumps(fed, cuts=5)
    D, alpha = np.full(80, 1 / 80), np.zeros(h.sources.size)
    for t, state in iterate(MultiBoost(), EnsembleProblem(fed, h), rounds=40):
        if t:
            eps = D @ (h.predictions != y[:, None])
            j = int(np.argmin(eps))
            step = 0.5 * np.log((1 - eps[j]) / eps[j])
            alpha[j] += step
            D = D * np.exp(-step * y * h.predictions[:, j])
            D /= D.sum()
        np.testing.assert_allclose(state.w[0], alpha, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_every_source_alone_and_pooled_are_adaboost(rng):
    """The baselines: a federation of one source's rows, and Lambda = {m_k/m} with constant Q."""
    X, y, domain = rows(rng, p=3)
    fed = Federation.from_arrays(X, y, domain, domain)
    peer = AdaBoostClassifier(DecisionTreeClassifier(max_depth=1), n_estimators=20, random_state=0)
    for k in range(3):
        mine = Federation.from_arrays(X[domain == k], y[domain == k], np.zeros((domain == k).sum(), int))
        log = run(MultiBoost(), StumpProblem(mine, criterion="gini"), rounds=20).state.history[0]
        peer.fit(X[domain == k], y[domain == k])
        np.testing.assert_allclose(2.0 * log[:, 5], peer.estimator_weights_, rtol=0, atol=1e-10)
    shares = np.bincount(domain) / len(y)
    problem = StumpProblem(fed, uncertainty_set=shares, criterion="gini")
    log = run(MultiBoost(own_classifiers=False), problem, rounds=20).state.history[0]
    peer.fit(fed.X, fed.y)
    np.testing.assert_allclose(2.0 * log[:, 5] / 3.0, peer.estimator_weights_, rtol=0, atol=1e-10)  # Q = 1/3


# ---------------------------------------------------------------- objective, descent, optimum


@each_loss
def test_values_are_the_definition(loss, rng):
    problem = instance(11, p=3, loss=loss)
    for _ in range(5):
        alpha = 0.3 * rng.exponential(size=problem.federation.d)
        F = plain_losses(problem, alpha)
        np.testing.assert_allclose(problem.domain_values(alpha), F, rtol=1e-13)
        np.testing.assert_allclose(problem.losses_of(problem.margins(alpha))[0], F, rtol=1e-13)
        assert problem.value(alpha) == pytest.approx(F.max(), rel=1e-13)
        g = problem.gradient(alpha)
        for j in range(alpha.size):
            e = np.zeros(alpha.size)
            e[j] = 1e-6
            difference = (plain_losses(problem, alpha + e) - plain_losses(problem, alpha - e))[F.argmax()] / 2e-6
            assert g[j] == pytest.approx(difference, rel=1e-6, abs=1e-8)


@each_loss
@pytest.mark.parametrize("smoothing", [None, 5.0, 200.0])
def test_line_search_is_exact_and_never_raises_the_objective(loss, smoothing):
    from scipy.optimize import minimize_scalar

    for seed in range(1 if DISABLED else 6):
        problem = instance(seed, p=3, loss=loss)
        method = MultiBoost(smoothing=smoothing, own_classifiers=False)

        def objective(alpha, problem=problem):
            F = plain_losses(problem, alpha)
            return F.max() if smoothing is None else np.logaddexp.reduce(smoothing * F) / smoothing

        before = None
        for t, state in iterate(method, problem, rounds=25):
            now = objective(state.w[0])
            if before is not None:
                assert now <= objective(before) + 1e-14
                j = np.flatnonzero(state.w[0] != before)
                assert j.size <= 1
                if j.size and t < 8:
                    e = np.eye(len(before))[j[0]]

                    def along(eta, before=before, e=e):
                        return objective(before + eta * e)

                    best = minimize_scalar(along, bounds=(-before[j[0]], 20), method="bounded", options={"xatol": 1e-9})
                    assert now <= best.fun + 1e-12
            before = state.w[0]


def reaches_the_optimum(problem):
    """Smoothed boosting within log(p)/mu + 1e-6 of cvxpy, the exact solver within 1e-7, certified; False: not tried."""
    value, alpha = reference(problem)
    if alpha.sum() > 20.0:  # minima at or near infinity take boosting 1/accuracy rounds
        return False
    best, mu = problem.solve(), 100.0
    assert abs(best.value - value) <= 1e-7
    assert 0.0 <= best.gap <= 1e-9
    assert best.lower <= value + 1e-8
    goal = np.log(problem.p) / mu + 5e-7
    result = quiet(MultiBoost(smoothing=mu), problem, rounds=5000, tol=goal, record_every=100)
    assert result.trace.value[-1] <= value + np.log(problem.p) / mu + 1e-6
    return True


def corrections_reach_the_optimum(problem):
    """Within 20 rounds, too few without, also where the infimum lies at sum alpha = 100; the sum at the optimum."""
    mu, (value, alpha) = 100.0, reference(problem)
    result = quiet(MultiBoost(smoothing=mu, corrective=5), problem, rounds=20, tol=0, record_every=20)
    assert result.trace.value[-1] <= value + np.log(problem.p) / mu + 1e-6
    return float(alpha.sum())


def smoothed_trial(rng):
    """A campaign: smoothed boosting on one random instance."""
    return {"tried": float(reaches_the_optimum(instance(rng, loss=LOSSES[int(rng.integers(2))])))}


def corrections_trial(rng):
    """A campaign: boosting with corrections on one random instance."""
    return {"sum": corrections_reach_the_optimum(instance(rng, loss=LOSSES[int(rng.integers(2))]))}


@pytest.mark.slow
def test_smoothed_boosting_reaches_the_optimum():
    """The campaign `boosting-smoothed` tries as many random instances as one likes."""
    assert sum(reaches_the_optimum(instance(seed, loss=LOSSES[seed % 2])) for seed in range(INSTANCES)) >= INSTANCES - 2


@pytest.mark.slow
def test_corrections_reach_the_optimum_without_exception():
    """The campaign `boosting-corrections` tries as many random instances as one likes; in one here, sum alpha is 40."""
    sums = [corrections_reach_the_optimum(instance(seed, loss=LOSSES[seed % 2])) for seed in range(INSTANCES)]
    assert max(sums) > 20.0


@each_loss
def test_corrections_are_optimal_on_the_coordinates_chosen(loss, rng):
    """Against scipy's bounded quasi-Newton method; history, alpha, margins and ensemble stay the same function."""
    from scipy.optimize import minimize

    problem = instance(4, p=3, loss=loss, N=(5, 6))
    for rounds in (3, 6):
        result = quiet(MultiBoost(smoothing=30.0, corrective=3), problem, rounds=rounds, tol=0)
        alpha, (stages, U, weights) = result.w, problem.directions(result.state.history[0])
        used = stages[:, 1].astype(int)

        def objective(a, used=used):
            full = np.zeros(problem.federation.d)
            full[used] = a
            return np.logaddexp.reduce(30.0 * plain_losses(problem, full)) / 30.0

        best = minimize(objective, alpha[used], method="L-BFGS-B", bounds=[(0.0, None)] * used.size)
        assert objective(alpha[used]) <= best.fun + 1e-9
        np.testing.assert_allclose(weights, alpha[used], rtol=0, atol=1e-12)
        assert not np.delete(alpha, used).any()
        np.testing.assert_allclose(U @ alpha[used], result.state.margins[0], rtol=0, atol=1e-12)
        assert np.all(np.diff(result.trace.smoothed) <= 1e-14)


@pytest.mark.slow
def test_corrections_of_stumps_and_of_several_trajectories(rng):
    X, y, domain = rows(rng, n=80, p=2)
    fed = Federation.from_arrays(np.round(X), y, domain, domain)
    problem = StumpProblem(fed)
    result = quiet(MultiBoost(smoothing=30.0, corrective=4), problem, rounds=8, tol=0, trajectories=2)
    np.testing.assert_array_equal(result.state.history[0], result.state.history[1])
    f = problem.ensemble(result.state, 1).decision_function(fed.X)
    np.testing.assert_allclose((fed.y * f)[problem.by_row], result.state.margins[1], rtol=0, atol=1e-10)
    plain = quiet(MultiBoost(smoothing=30.0), problem, rounds=8, tol=0)
    assert result.trace.smoothed[-1, 0] < plain.trace.smoothed[-1]


def few_values(seed):
    """Rows of 16 kinds with labels of both signs each: no ensemble of stumps separates them."""
    rng = np.random.default_rng(seed)
    X, domain = rng.integers(0, 4, (80, 2)).astype(float), np.arange(80) % 2
    y = np.where(X[:, 0] + X[:, 1] * (domain - 0.5) + rng.normal(size=80) > 1.5, 1.0, -1.0)
    return Federation.from_arrays(X, y, domain, domain), rng.dirichlet(3.0 * np.ones(2), 80)


@each_loss
@pytest.mark.slow
def test_certificates_over_all_stumps_bound_the_true_gap(loss, monkeypatch):
    """Against cvxpy on the list of all stumps, along runs and from random states; tight at the end."""
    for seed in range(1 if DISABLED else 2):
        fed, Q = few_values(seed)
        listed, problem = EnsembleProblem(fed, _every_cut(fed), Q, loss), StumpProblem(fed, Q, loss)
        optimum = reference(listed)[0]
        for method in (MultiBoost(), MultiBoost(smoothing=20.0), MultiBoost(smoothing=1000.0, corrective=5)):
            result = quiet(method, problem, rounds=60, tol=0, record_every=10)
            trace = result.trace
            assert np.all(trace.gap >= trace.value - optimum - 1e-7)
            assert np.all(trace.gap <= trace.value * (1.0 + 1e-11))
        assert trace.gap[-1] <= 1e-3
        for mix in ([1.0, 0.0], [0.3, 0.7], None):  # the same bound from the list and from the search
            value, lower = problem.certificate(result.state, mix)
            assert problem.directions(result.state.history[0])[2].sum() < 100.0
            assert value == pytest.approx(trace.value[-1], rel=1e-12)
            assert lower <= optimum + 1e-7
            assert lower == pytest.approx(listed.certified(result.state.margins[0], mix)[1], abs=1e-9)
    monkeypatch.setattr(problem, "_largest_edge", lambda lam, slopes: 0.0)  # a search that misses the best stump
    early = quiet(MultiBoost(smoothing=20.0), problem, rounds=5, tol=0).trace
    assert np.any(early.gap < early.value - optimum - 1e-3)


@each_loss
def test_certificates_over_all_stumps_follow_an_ensemble_beyond_the_ball(loss):
    """With sum alpha > 100 the bound is for that sum, and is never above the ensemble's own value."""
    fed, Q = few_values(1)
    problem = StumpProblem(fed, Q, loss)
    state = quiet(MultiBoost(smoothing=20.0), problem, rounds=3, tol=0).state
    history = state.history.copy()
    history[:, :, 5] *= 150.0 / history[:, :, 5].sum()
    _, U, weights = problem.directions(history[0])
    assert weights.sum() == pytest.approx(150.0)
    value, lower = problem.certificate(state._replace(history=history, margins=(U @ weights)[None]))
    assert 0.0 <= lower <= value


@each_loss
@pytest.mark.slow
def test_certificates_bound_the_true_gap_everywhere(loss, rng):
    for seed in range(INSTANCES):
        problem = instance(seed, loss=loss)
        optimum = reference(problem)[0]
        for method in (MultiBoost(), MultiBoost(smoothing=20.0), FedMultiBoost(step_size=0.3)):
            try:
                trace = quiet(method, problem, rounds=30, tol=0).trace
            except ValueError:  # a source without classifiers
                continue
            assert np.all(trace.gap >= trace.value - optimum - 1e-7)
            assert np.all(trace.gap <= trace.value - optimum + 1e-7)
        for _ in range(20):  # from any point and any weights
            alpha, mix = rng.exponential(size=problem.federation.d), rng.dirichlet(np.ones(problem.p))
            value, lower = problem.certificate(alpha, mix)
            assert value == pytest.approx(plain_losses(problem, alpha).max(), rel=1e-12)
            assert lower <= optimum + 1e-7
        best = problem.solve()
        assert problem.measure(best.w[None]).gap[0] <= 1e-9


@pytest.mark.slow
def test_a_general_polytope_of_weights():
    """Lambda with vertices (0.8, 0.2) and (0.3, 0.7)."""
    V = np.array([[0.8, 0.2], [0.3, 0.7]])
    for seed in (3,) if DISABLED else (3, 5):
        simplex = instance(seed, p=2)
        problem = EnsembleProblem(simplex.data, simplex.dictionary, simplex.q, uncertainty_set=V)
        value, _ = reference(problem)
        assert problem.solve().value == pytest.approx(value, abs=1e-7)
        assert value <= simplex.solve().value + 1e-9
        result = quiet(MultiBoost(smoothing=200.0), problem, rounds=1000, tol=0)
        assert result.trace.value[-1] <= value + np.log(2) / 200.0 + 1e-6
        assert np.all(np.diff(result.trace.smoothed) <= 1e-14)


def test_separable_sources_go_to_zero():
    """The infimum 0 is not attained; the solver stays at sum alpha <= 100 and says so."""
    fed = Federation.from_arrays([[0.0], [1.0]], [1.0, -1.0], [0, 1], [0, 1])
    problem = EnsembleProblem(fed, Dictionary([[1.0], [-1.0]], [0]), np.array([[1.0, 0.0], [1.0, 0.0]]))
    best = problem.solve()
    assert not best.attained
    assert best.value < 1e-20


# ---------------------------------------------------------------- kinks, caps, starts


def kink():
    """Margins (1, -0.9) and (-0.9, 1): no coordinate lowers the maximum at 0, the direction (1, 1) does."""
    fed = Federation.from_arrays([[0.0], [1.0]], [1.0, 1.0], clients=[0, 1], domains=[0, 1])
    Q = np.array([[1.0, 0.0], [0.0, 1.0]])
    problem = EnsembleProblem(fed, Dictionary([[1.0, 1.0], [1.0, 1.0]], [0, 1]), Q)
    problem.__dict__["signed"] = np.asfortranarray([[1.0, -0.9], [-0.9, 1.0]])
    return problem


@pytest.mark.slow
def test_coordinate_descent_stalls_at_a_kink_and_says_so():
    problem = kink()
    result = quiet(MultiBoost(own_classifiers=False), problem, rounds=5, tol=0)
    assert result.trace.event.tolist() == [0, 2, 2, 2, 2, 2]
    assert result.trace.active.tolist() == [2] * 6
    np.testing.assert_array_equal(result.w, 0.0)
    assert problem.losses_of(problem.margins(np.array([3.0, 3.0])))[0].max() < 0.75
    smoothed = quiet(MultiBoost(smoothing=3.0), problem, rounds=400, tol=0)
    assert smoothed.trace.value[-1] < 0.74
    assert smoothed.trace.event[-1] == 0


def test_a_kink_between_sources_without_q():
    """With constant Q and opposite classifiers nothing helps: the stall is the optimum, and the gap shows it."""
    fed = Federation.from_arrays([[0.0], [1.0]], [1.0, 1.0], [0, 1], [0, 1])
    problem = EnsembleProblem(fed, Dictionary([[1.0, -1.0], [-1.0, 1.0]], [0, 1]))
    result = run(MultiBoost(own_classifiers=False), problem, rounds=3, tol=1e-9)
    assert result.status.name == "CONVERGED"
    assert result.trace.value[-1] == 1.0


def test_steps_are_capped_and_said(rng):
    """A classifier without error asks for an infinite step."""
    X = np.arange(10.0)[:, None]
    y = np.where(X[:, 0] > 4, 1.0, -1.0)
    problem = StumpProblem(Federation.from_arrays(X, y, np.zeros(10, int)))
    with pytest.warns(RuntimeWarning, match="capped"):
        result = run(MultiBoost(max_step=4.0), problem, rounds=2, tol=0)
    assert result.trace.event.tolist()[:2] == [0, 1]
    assert result.state.history[0, 0, 5] == 4.0
    for loss in LOSSES:
        three = Federation.from_arrays(np.repeat(X, 2, 0), np.repeat(y, 2), [0, 1] * 10, [0, 1] * 10)
        trace = quiet(MultiBoost(smoothing=10.0, max_step=4.0), StumpProblem(three, loss=loss), rounds=2, tol=0).trace
        assert trace.event[1] == 1
        assert np.isfinite(trace.value).all()


def test_a_domain_with_one_class_and_constant_features(rng):
    X, y, domain = rows(rng, n=90, p=2)
    X[:, 3] = 7.0
    y[domain == 1] = 1.0
    problem = StumpProblem(Federation.from_arrays(X, y, domain, domain))
    trace = quiet(MultiBoost(smoothing=50.0), problem, rounds=40, tol=0).trace
    assert trace.value[-1] < 0.7
    assert np.all(np.diff(trace.smoothed) <= 1e-14)


def test_steps_back_stay_nonnegative():
    """From a start where a useless classifier has weight, coordinate descent takes it back to 0."""
    fed = Federation.from_arrays(np.zeros((4, 1)), [1.0, 1.0, 1.0, -1.0], [0] * 4)
    h = Dictionary([[1.0, -1.0], [1.0, -1.0], [1.0, -1.0], [1.0, -1.0]], [0, 0])
    problem = EnsembleProblem(fed, h)
    result = run(MultiBoost(), problem, rounds=20, tol=1e-12, start=np.array([0.0, 0.3]))
    assert result.w.min() >= 0.0
    assert result.w[0] - result.w[1] == pytest.approx(0.5 * np.log(3.0), abs=1e-12)
    ensemble = EnsembleProblem(fed, Dictionary.from_classifiers(fed, [[_Constant(1.0), _Constant(-1.0)]]))
    again = ensemble.ensemble(result.state)
    np.testing.assert_allclose(again.decision_function(fed.X), 0.5 * np.log(3.0), rtol=1e-12)


class _Constant:
    def __init__(self, value):
        self.value = value

    def predict(self, X):
        return np.full(len(X), self.value)


def test_stumps_searched_and_listed_agree(rng):
    """The first rounds of the search equal those on the list of all stumps, with one worst domain."""
    X, y, domain = rows(rng, n=60, d=3, p=2)
    fed = Federation.from_arrays(X, y, domain, domain)
    Q = rng.dirichlet(np.ones(2), 60)
    for method in (MultiBoost(smoothing=30.0), MultiBoost(own_classifiers=False)):
        listed = EnsembleProblem(fed, _every_cut(fed), Q)
        a = quiet(method, StumpProblem(fed, Q), rounds=1, tol=0).trace
        b = quiet(method, listed, rounds=1, tol=0).trace
        np.testing.assert_allclose(a.value, b.value, rtol=1e-12)


def _every_cut(fed):
    from fedconvex.problems import Stump

    stumps = [Stump(0, np.inf, s, s) for s in (-1.0, 1.0)]
    for j in range(fed.d):
        v = np.unique(fed.X[:, j])
        stumps += [Stump(j, c, s, -s) for c in 0.5 * (v[1:] + v[:-1]) for s in (-1.0, 1.0)]
    return Dictionary.from_classifiers(fed, [stumps] * fed.n_domains)


# ---------------------------------------------------------------- FedMultiBoost


def federated(rng, clients=4, p=3, loss=None):
    X, y, domain = rows(rng, n=40 * p, d=3, p=p)
    client = domain * 100 + rng.integers(0, clients, y.size)
    fed = Federation.from_arrays(X, y, client, domain)
    Q = rng.dirichlet(np.ones(p), y.size)
    return EnsembleProblem(fed, Dictionary.stumps(fed, cuts=2), Q, loss)


@each_loss
def test_fedmultiboost_equals_plain_numpy(loss, rng):
    """Server and clients re-written from the paper, with the draws of the method."""
    problem = federated(rng, loss=loss)
    fed, h = problem.data, problem.dictionary
    method = FedMultiBoost(step_size=0.4, clients_per_domain=2, classifiers=5)
    alpha = np.zeros(h.sources.size)
    for t, state in iterate(method, problem, rounds=15, seed=3):
        if t:
            draws = Draws(key_from_seed(3), np.arange(1), t - 1)
            clients = participants(method, problem, draws)[0][0]
            message = method.broadcast(state._replace(w=alpha[None]))
            reply = method.local(problem, message, clients[None], None, draws)[0]
            u = -fed.y * (problem.q[:, h.sources] * h.predictions @ alpha)
            phi = np.exp(u) if isinstance(loss, Exponential) else np.log2(1 + np.exp(u))
            slope = np.exp(u) if isinstance(loss, Exponential) else 1 / (1 + np.exp(-u)) / np.log(2)
            best = {}
            for k in range(3):
                mine = [c for c in clients if fed.domain[fed.ptr[c]] == k]
                assert len(set(mine)) == 2
                rows_k = np.concatenate([np.arange(fed.ptr[c], fed.ptr[c + 1]) for c in mine])
                H = reply.column[0, list(clients).index(mine[0])]
                assert len(set(H.tolist())) == 5
                assert set(h.sources[H]) == {k}
                a = problem.client_domains.tolist().count(k) / 2 / np.sum(fed.domain == k)
                edge = [a * (slope * fed.y * problem.q[:, k] * h.predictions[:, j])[rows_k].sum() for j in H]
                best[k] = (1.0 + a * (phi[rows_k] - 1.0).sum(), max(edge), H[int(np.argmax(edge))])
            worst = max(best, key=lambda k: best[k][0])
            if best[worst][1] > 0:
                alpha[best[worst][2]] += 0.4 / np.sqrt(t)
        np.testing.assert_allclose(state.w[0], alpha, rtol=0, atol=1e-13)


def test_fedmultiboost_communication_is_counted(rng):
    problem = federated(rng)
    N = problem.federation.d
    result = run(FedMultiBoost(step_size=0.4, clients_per_domain=2, classifiers=5), problem, rounds=4, tol=0)
    assert result.trace.floats_down.tolist() == [0] + [6 * N * t for t in range(1, 5)]
    K = problem.federation.K  # every client says once which domain is its own
    assert result.trace.floats_up.tolist() == [K + 6 * (1 + 5) * t for t in range(5)]
    assert result.trace.floats_published.tolist() == [0, 6 * 2 + 6 * 5] + [6 * 2 + 2 * 5] * 3  # at first all are worst


def unequal(seed=0):
    """Domain 0: clients of 2, 7 and 3 rows and five classifiers; domain 1: clients of 4 and 9 rows and two."""
    rng, sizes = np.random.default_rng(seed), (2, 7, 3, 4, 9)
    client, domain = np.repeat(np.arange(5), sizes), np.repeat([0, 0, 0, 1, 1], sizes)
    fed = Federation.from_arrays(np.zeros((25, 1)), rng.choice([-1.0, 1.0], 25), client, domain)
    H = Dictionary(rng.choice([-1.0, 1.0], (25, 7)) * rng.uniform(0.2, 1.0, (25, 7)), [0, 0, 1, 0, 1, 0, 0])
    return EnsembleProblem(fed, H, rng.dirichlet(np.ones(2), 25))


def test_fedmultiboost_estimates_are_unbiased():
    """Means over all pairs of clients equal F_k and -dF_k/dalpha; quotients by the rows at hand do not (by 0.02)."""
    problem, alpha, method = unequal(), np.full((1, 7), 0.4), FedMultiBoost(step_size=1.0, clients_per_domain=1)
    state = method.init(problem, np.zeros((1, 7)))._replace(w=alpha)
    losses, edges, quotients, draws = [], [], [], Draws(key_from_seed(0), np.arange(1), 0)
    for a in (0, 1, 2):
        for b in (3, 4):
            clients = np.array([[a, b]])
            reply, _ = method.local(problem, method.broadcast(state), clients, None, draws)
            reply = method.send(problem, reply, clients, draws)
            after = method.aggregate(state, clients, None, reply)
            losses.append(after.estimate[0])
            quotients.append(reply.loss[0] / problem.federation.sizes[clients[0]])
            total, edge = method._added(state, clients, reply)
            np.testing.assert_allclose(total[0], reply.loss[0], rtol=1e-15)
            edges.append(edge[0] * (np.array([3, 2]) / problem.counts)[problem.sources])
    np.testing.assert_allclose(np.mean(losses, axis=0), problem.domain_values(alpha[0]), rtol=1e-13)
    slopes = -problem.domain_gradients(alpha[0])[problem.sources, np.arange(7)]
    np.testing.assert_allclose(np.mean(edges, axis=0), slopes, rtol=0, atol=1e-13)
    assert np.abs(np.mean(quotients, axis=0) - problem.domain_values(alpha[0])).max() > 0.02


def test_fedmultiboost_draws_clients_by_key():
    """The order in which clients are given changes rounding only."""
    rng, found = np.random.default_rng(5), []
    X, y = rng.normal(size=(6, 12, 2)), rng.choice([-1.0, 1.0], (6, 12))
    labels = np.array(["north", "south", "east", "west", "up", "down"])
    for order in (np.arange(6), np.array([3, 0, 5, 1, 4, 2])):
        fed = Federation.from_clients(
            [(X[k], y[k]) for k in order], labels=labels[order], domains=[("a", "b")[k % 2] for k in order]
        )
        problem = EnsembleProblem(fed, Dictionary.stumps(fed, cuts=2))
        found.append(quiet(FedMultiBoost(step_size=0.3, clients_per_domain=1), problem, rounds=10, tol=0).trace.value)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)


def test_fedmultiboost_sends_no_classifier_twice():
    result = run(FedMultiBoost(step_size=0.1), unequal(), rounds=2, tol=0)
    assert np.diff(result.trace.floats_up).tolist() == [5 + 3 * 5 + 2 * 2] * 2
    assert result.trace.floats_published[2] in (2 * 5 + 15, 2 * 5 + 4)


def test_fedmultiboost_by_secure_sums(rng):
    pytest.importorskip("cryptography")
    problem = unequal()
    plain, masked = FedMultiBoost(step_size=0.3), FedMultiBoost(step_size=0.3, sums=SecureSums(40))
    how = {"rounds": 12, "tol": 0, "trajectories": 2}
    one, other = quiet(plain, problem, **how), quiet(masked, problem, **how)
    np.testing.assert_array_equal(one.w, other.w)  # the same classifiers and steps
    np.testing.assert_allclose(one.state.estimate, other.state.estimate, rtol=0, atol=5 * 2.0**-40)
    assert np.diff(other.trace.floats_up).tolist() == [5 * (2 + 7 + 4)] * 12  # losses, edges, a key
    few = {"clients_per_domain": 2, "classifiers": 2}
    one = quiet(FedMultiBoost(step_size=0.3, **few), problem, **how)
    other = quiet(FedMultiBoost(step_size=0.3, sums=SecureSums(40), **few), problem, threads=2, **how)
    np.testing.assert_array_equal(one.w, other.w)
    with pytest.raises(ValueError, match="at least two clients of every domain; got 1 in a round"):
        run(FedMultiBoost(step_size=0.3, clients_per_domain=1, sums=SecureSums()), problem, rounds=1)
    with pytest.raises(TypeError, match="PlainSums"):
        FedMultiBoost(step_size=0.3, sums=SecureSums)


@pytest.mark.slow
def test_fedmultiboost_converges_with_one_domain(rng):
    """The objective is smooth: normalised steepest descent with vanishing steps."""
    problem = federated(rng, p=1)
    trace = run(FedMultiBoost(step_size=0.2), problem, rounds=300, tol=0).trace
    assert trace.gap[-1] < 0.2 * trace.gap[0]


@pytest.mark.slow
def test_fedmultiboost_passes_its_best_round(rng):
    """Kinks again: steps of fixed size for the worst domain hurt the others, and alpha grows like sqrt(T)."""
    problem = federated(rng)
    trace = run(FedMultiBoost(step_size=0.5), problem, rounds=400, tol=0).trace
    assert trace.gap.min() < 0.9 * trace.gap[0] < trace.gap[-1]
    exact = run(MultiBoost(smoothing=50.0), problem, rounds=400, tol=0).trace
    assert exact.gap[-1] < 0.1 * exact.gap[0]


# ---------------------------------------------------------------- bad input


def test_bad_settings_and_problems(rng):
    for settings in ({"smoothing": 0.0}, {"max_step": np.inf}, {"own_classifiers": 1}, {"corrective": 0}):
        with pytest.raises((ValueError, TypeError), match="MultiBoost"):
            MultiBoost(**settings)
    for settings in ({"step_size": -1.0}, {"step_size": 1.0, "classifiers": 0}):
        with pytest.raises(ValueError, match="FedMultiBoost"):
            FedMultiBoost(**settings)
    fed = Federation.from_arrays([[0.0], [1.0]], [1.0, -1.0], [0, 0], [0, 1])
    linear = Problem(fed, Squared())
    for method in (MultiBoost(), FedMultiBoost(step_size=1.0)):
        with pytest.raises(TypeError, match=r"build an|list the"):
            run(method, linear)
    h = Dictionary([[1.0, 1.0], [1.0, 1.0]], [0, 1])
    with pytest.raises(ValueError, match="rows of one domain"):
        run(FedMultiBoost(step_size=1.0), EnsembleProblem(fed, h))
    with pytest.raises(ValueError, match="come with smoothing"):
        run(MultiBoost(corrective=2), EnsembleProblem(fed, h))
    with pytest.raises(ValueError, match="nonnegative"):
        run(MultiBoost(), EnsembleProblem(fed, h), start=np.array([-1.0, 0.0]))
    with pytest.raises(ValueError, match="at most the 1 classifiers"):
        two = Federation.from_arrays([[0.0], [1.0]], [1.0, -1.0], [0, 1], [0, 1])
        run(FedMultiBoost(step_size=1.0, classifiers=2), EnsembleProblem(two, h))


def test_bad_problems(rng):
    fed = Federation.from_arrays([[0.0], [1.0]], [1.0, -1.0], [0, 1], [0, 1])
    h = Dictionary([[1.0, 1.0], [1.0, 1.0]], [0, 1])
    with pytest.raises(ValueError, match="distributions"):
        EnsembleProblem(fed, h, np.full((2, 2), 0.4))
    with pytest.raises(ValueError, match="-1 or"):
        EnsembleProblem(Federation.from_arrays([[0.0], [1.0]], [0.0, 1.0], [0, 1], [0, 1]), h)
    with pytest.raises(ValueError, match="sources 0"):
        EnsembleProblem(fed, Dictionary([[1.0], [1.0]], [2]))
    with pytest.raises(ValueError, match="predict all 2 rows"):
        EnsembleProblem(fed, Dictionary([[1.0]], [0]))
    with pytest.raises(ValueError, match="sum one"):
        EnsembleProblem(fed, h, uncertainty_set=[[0.5, 0.6]])
    with pytest.raises(TypeError, match="Exponential"):
        EnsembleProblem(fed, h, loss=Squared())
    with pytest.raises(ValueError, match="boosting"):
        declares(boosting="exponential")
    with pytest.raises(ValueError, match="lie in"):
        Dictionary([[2.0]], [0])
    with pytest.raises(AttributeError, match="boosting"):
        EnsembleProblem(fed, h).constants()
    assert not hasattr(StumpProblem(fed), "size")
    with pytest.raises(AttributeError, match="list the stumps"):
        StumpProblem(fed).solve()
    sparse = Federation.from_arrays(__import__("scipy.sparse").sparse.csr_array(np.eye(2)), [1.0, -1.0], [0, 1], [0, 1])
    with pytest.raises(TypeError, match="dense"):
        StumpProblem(sparse)


def test_a_gap_beyond_the_radius_is_still_a_bound():
    """The minimum over sum alpha <= 100 bounds nothing for an ensemble beyond: its own sum counts then.

    One classifier is right everywhere, the other wrong: F = exp(-(alpha_1 - alpha_2)/40), least exp(-20) for a sum of
    800, and exp(-2.5) for a sum of 100, which is above F(600, 200) = exp(-10).
    """
    fed = Federation.from_arrays([[0.0], [1.0]], [1.0, 1.0], [0, 1], [0, 1])
    problem = EnsembleProblem(fed, Dictionary([[0.05, -0.05], [0.05, -0.05]], [0, 1]))
    alpha, missed = np.array([600.0, 200.0]), np.exp(-10.0) - np.exp(-20.0)
    value, gap = (float(a[0]) for a in problem.measure(alpha[None]))
    assert value == pytest.approx(np.exp(-10.0), rel=1e-12)
    assert value < problem.lower_bound == pytest.approx(np.exp(-2.5), rel=1e-6)
    assert gap == pytest.approx(missed, rel=1e-6)
    lower = problem.lower(problem.margins(alpha), np.array([0.5, 0.5]), 800.0)
    assert lower <= np.exp(-20.0) * (1.0 + 1e-9)


@pytest.mark.parametrize("domain_weights", [[3.0, 3.0], [1.0], [-1.0, 2.0], [np.nan, 1.0]])
def test_certificates_ask_for_domain_weights(domain_weights):
    fed = Federation.from_arrays([[0.0], [1.0]], [1.0, 1.0], [0, 1], [0, 1])
    with pytest.raises(ValueError, match="nonnegative weights of 2 domains"):
        EnsembleProblem(fed, Dictionary([[1.0], [1.0]], [0])).certificate(np.zeros(1), domain_weights)


# ---------------------------------------------------------------- the radius and what certificates are given


@each_loss
def test_certificates_follow_an_ensemble_beyond_the_ball(loss):
    """F = Phi(-(alpha_1 - alpha_2)/40): Phi(-3.75) at (150, 0), the least for its sum; Phi(-2.5) for a sum of 100."""
    fed = Federation.from_arrays([[0.0], [1.0]], [1.0, 1.0], [0, 1], [0, 1])
    problem = EnsembleProblem(fed, Dictionary([[0.05, -0.05], [0.05, -0.05]], [0, 1]), loss=loss)
    value, lower = problem.certificate(np.array([150.0, 0.0]))
    phi = np.exp(-3.75) if isinstance(loss, Exponential) else np.log2(1.0 + np.exp(-3.75))
    assert value == pytest.approx(phi, rel=1e-12)
    assert value - 1e-9 <= lower <= value


@pytest.mark.parametrize("sums", [100.0, 100.0 - 1e-14, 100.0 + 2e-14])
def test_steps_of_the_exact_solution_where_the_sum_rounds_to_the_radius(sums):
    """100 - sum alpha is no number to divide by once it has rounded to 0, or below."""
    F = worst_domain.WorstDomain(np.array([[0.05], [-0.01]]), np.array([0, 2]), np.eye(1), False)
    one = np.ones(1)
    at = worst_domain._Point(np.array([sums]), 1.0, 1e-8 * one, one, 1e-10 * one, 1e-3)
    step = worst_domain._primal_dual_step(F, 100.0, at)
    assert all(np.isfinite(v).all() for v in step)
    assert step.alpha[0] <= 100.0 * (1.0 + 1e-15)


@each_loss
def test_corrections_lead_into_the_ball(loss):
    fed = Federation.from_arrays([[0.0], [1.0]], [1.0, 1.0], [0, 1], [0, 1])
    problem = EnsembleProblem(fed, Dictionary([[0.05, 0.01], [0.05, 0.03]], [0, 1]), loss=loss)
    for alpha in ([60.0, 60.0], [10.0, 10.0]):
        alpha = problem.corrected(problem.signed, np.array(alpha), 100.0)
        assert alpha.sum() <= 100.0
        assert alpha[0] > 99.0  # all of it on the better one


@each_loss
@pytest.mark.slow_unless(loss=Exponential())
def test_runs_with_corrections_stay_in_the_ball(loss):
    """Separable data ask for ever larger ensembles: sum alpha stays at most 100, and the gap shrinks."""
    rng = np.random.default_rng(3)
    H = np.where(rng.random((30, 8)) < 0.8, 0.05, -0.05)
    H[:, 0] = 0.01
    fed = Federation.from_arrays(np.zeros((30, 1)), np.ones(30), np.arange(30) % 3, np.arange(30) % 3)
    problem = EnsembleProblem(fed, Dictionary(H, np.arange(8) % 3), loss=loss)
    for start, every in ((None, 4), (np.full(8, 30.0), 4), (None, 45)):
        result = quiet(MultiBoost(smoothing=200.0, corrective=every), problem, rounds=95, tol=0, start=start)
        totals = result.state.w.sum(axis=1)
        assert totals[0] <= 100.0
        assert totals[0] > 90.0
        gap = result.trace.gap[2 * every :]
        assert gap.min() >= 0.0
        assert np.all(np.diff(gap) <= 1e-8)
        assert gap[-1] <= np.log(3.0) / 200.0 + 1e-6


@pytest.mark.compiled
@each_loss
def test_losses_do_not_depend_on_where_memory_lies(loss):
    """Arrays side by side: LLVM then takes a loop that adds in another order, if it both adds and stores."""
    margins, bounds, found = np.random.default_rng(0).normal(size=400), np.array([0, 134, 267, 400]), set()
    for between in (0, 1, 5, 15, 16, 100):
        for first in (0, 400 + between):
            room = np.empty(900 + 2 * between)
            m, slopes = room[first : first + 400], room[400 + between - first : 800 + between - first]
            m[:] = margins
            F = np.empty(3)
            worst_domain.domain_losses(isinstance(loss, Logistic2), m, bounds, F, slopes)
            found.add(F.tobytes() + slopes.tobytes())
    assert len(found) == 1


def test_a_loss_of_boosting_is_known_by_what_it_declares(rng):
    @declares(task="classification", lower_bound=0.0, boosting="exp")
    class Mine(NamedTuple):
        value, slope, check_labels = Exponential.value, Exponential.slope, Exponential.check_labels

    problem = instance(1)
    mine = EnsembleProblem(problem.data, problem.dictionary, problem.q, Mine())
    alpha = np.full(problem.federation.d, 0.3)
    assert mine.value(alpha) == problem.value(alpha)
    assert mine.certificate(alpha) == problem.certificate(alpha)


def test_a_contradicted_ensemble_is_reported():
    fed = Federation.from_arrays([[0.0], [1.0]], [1.0, 1.0], [0, 1], [0, 1])
    problem = EnsembleProblem(fed, Dictionary([[0.05, -0.01], [0.05, -0.01]], [0, 1]))
    best = problem.solve()
    problem.__dict__["lower_bound"] = best.value * (1.0 + 1e-9)
    with pytest.warns(ContradictedCertificate, match=r"EnsembleProblem.*certified lower bound"):
        assert problem.measure(best.w[None]).gap[0] == np.inf
    state = MultiBoost().init(problem, best.w[None])
    with pytest.warns(ContradictedCertificate, match="MultiBoost"):
        assert MultiBoost().measure(problem, state).gap[0] == np.inf
    problem.__dict__["lower_bound"] = best.value * (1.0 + 1e-14)  # within rounding: no contradiction
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert problem.measure(best.w[None]).gap[0] <= 17.0 * 2.0**-52 * best.value * (1.0 + best.w.sum())


@pytest.mark.parametrize(
    ("alpha", "text"),
    [([np.nan, 0.0], "finite"), ([-1.0, 2.0], "nonnegative"), ([np.inf, 0.0], "finite"), ([1.0], "2 entries")],
)
def test_certificates_refuse_what_is_no_ensemble(alpha, text):
    fed = Federation.from_arrays([[0.0], [1.0]], [1.0, 1.0], [0, 1], [0, 1])
    problem = EnsembleProblem(fed, Dictionary([[1.0, -1.0], [-1.0, 1.0]], [0, 1]))
    with pytest.raises(ValueError, match=text):
        problem.certificate(np.array(alpha))
    stumps = StumpProblem(fed)
    state = quiet(MultiBoost(smoothing=20.0), stumps, rounds=2, tol=0).state
    with pytest.raises(ValueError, match="margins of the state must be finite"):
        stumps.certificate(state._replace(margins=state.margins * np.nan))
