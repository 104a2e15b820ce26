"""Agnostic theorems held against AFL, samples, messages and exact solutions; constants by runs; planted errors."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
import scipy.stats

from fedconvex import FedAvg, Federation, FedSGD, Hinge, Logistic, Problem, Softmax, Squared, iterate
from fedconvex.methods import (
    AFL,
    AgnosticFedAvg,
    ApproxFedAvg,
    OptimisticAFL,
    ProportionalSampling,
    SoftmaxFedAvg,
    UniformSampling,
)
from fedconvex.methods.afl import WeightedSampling
from fedconvex.report.checks import as_document, as_table
from fedconvex.report.page import page
from fedconvex.simplex.ascent import EntropicStep
from fedconvex.simplex.uncertainty import KLBall, Point, Polytope
from fedconvex.solvers.minimax.ball import largest_on_ball, least_over_ball, least_values_over_ball
from fedconvex.theorems import agnostic_rate
from fedconvex.theorems.agnostic_floats import COUNTS, floats_per_round
from fedconvex.theorems.agnostic_rate import afl_constants, saddle_steps, with_steps
from fedconvex.theorems.parts import afl_steps, samples
from fedconvex.theorems.parts.domain_instances import (
    blind_to,
    breast_cancer_domains,
    diabetes_ages,
    domains_of_slopes,
    one_coin,
    one_row,
    opposite_labels,
    plane_domains,
    three_domains,
    three_small_domains,
    twenty_coin_domains,
    two_coin_domains,
    two_rows,
)
from fedconvex.theorems.parts.samples import (
    Ball,
    Classifiers,
    Models,
    Sample,
    only_the_start,
    samples_of_domains,
)
from fedconvex.theory.saddle_constants import agnostic_constants
from fedconvex.verify import THEOREMS, Check, Outcome, Setting, curve, verify, verify_grid, verify_suite


def planted(name, change):
    """The theorem with terms of its bound changed: a mapping from term to factor."""
    right = THEOREMS[name]

    def bound(s):
        b = right.at(s)
        terms = {k: v * change.get(k, change.get("all", 1.0)) for k, v in b.terms.items()}
        return replace(b, terms=terms)

    return right._replace(bound=bound, read=None)


def holds(theorem, problem, method, rounds=1, **options):
    verdict = verify(theorem, problem, method, rounds=rounds, most=512, **options)
    assert verdict.outcome is Outcome.HOLDS, verdict
    return verdict


def violated(theorem, problem, method, rounds=1, **options):
    verdict = verify(theorem, problem, method, rounds=rounds, most=512, **options)
    assert verdict.outcome is Outcome.VIOLATED, verdict


def refuses(name, problem, method, why, rounds=2):
    verdict = verify(name, problem, method, rounds=rounds)
    assert verdict.outcome is Outcome.NOT_APPLICABLE, verdict
    assert why in verdict.reason, verdict.reason


def mixed(seed, loss=None, l2=0.1, n=24, d=2, p=3):
    """p domains over three clients."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(n, d)), rng.choice([-1.0, 1.0], size=n)
    owner, domain = np.r_[0, 0, 1, 1, 2, 2, rng.integers(3, size=n - 6)], np.arange(n) % p
    return Problem(Federation.from_arrays(X, y, owner, domains=domain), loss or Logistic(), l2)


# ---------------------------------------------------------------- the least value over a ball


@pytest.mark.parametrize("l2", [1e-18, 1e-9])
def test_a_ridge_next_to_nothing_leaves_the_bound_of_the_ball(l2):
    """‖g‖^2/(2 l2) was subtracted and added again: the bound lost all its digits, and true theorems were VIOLATED."""
    problem = Problem(Federation.from_arrays([[2e6], [-3e6]], [1e13, 2e13], [0, 0]), Squared(), l2)
    least = least_over_ball(problem, [1.0], 1.0)
    assert least.value - least.lower <= 1e-13 * least.value
    assert least.value == pytest.approx(0.25 * ((1e13 + 2e6) ** 2 + (2e13 - 3e6) ** 2), rel=1e-15)  # at w = -1
    method = AFL(step_size=1e-20, domain_step_size=1.0, radius=1.0)
    assert verify("agnostic-rate-any-steps", problem, method, rounds=1).outcome is not Outcome.VIOLATED


@pytest.mark.parametrize("loss", [Logistic(), Squared(), Softmax(3)])
@pytest.mark.parametrize("l2", [0.0, 0.1])
@pytest.mark.slow_unless(l2=0.1)
def test_least_value_over_a_ball(loss, l2):
    """Beside a general solver; from inside the ball, from its edge; sparse rows and many mixtures at once."""
    rng = np.random.default_rng(1)
    X, y, domain = rng.normal(size=(30, 3)), rng.choice([-1.0, 1.0], size=30), np.arange(30) % 3
    y = np.arange(30) % 3.0 if isinstance(loss, Softmax) else y
    problem = Problem(Federation.from_arrays(X, y, domain), loss, l2)
    thin = Problem(Federation.from_arrays(scipy.sparse.csr_matrix(X), y, domain), loss, l2)
    mixes = rng.dirichlet(np.ones(3), size=4)
    for R in (0.2, 100.0):
        many = least_values_over_ball(problem, mixes, R)
        for mix, lower in zip(mixes, many, strict=True):
            least = least_over_ball(problem, mix, R)
            assert 0.0 <= least.value - least.lower + 1e-15 <= 1e-10
            assert np.linalg.norm(least.w) <= R * (1 + 1e-12)
            assert lower == pytest.approx(least.lower, abs=1e-10)
            weighted = problem.reweighted(mix)
            found = scipy.optimize.minimize(
                lambda v, q=weighted: q.value_gradient(v),
                np.zeros(problem.size),
                jac=True,
                method="SLSQP",
                constraints=[{"type": "ineq", "fun": lambda v, R=R: R**2 - v @ v, "jac": lambda v: -2.0 * v}],
                options={"ftol": 1e-14, "maxiter": 500},
            )
            assert found.fun == pytest.approx(least.value, abs=1e-8)
        np.testing.assert_allclose(least_values_over_ball(thin, mixes, R), many, atol=1e-10)


# ---------------------------------------------------------------- constants


@pytest.mark.parametrize(
    ("loss", "batch", "replacement", "drawn"),
    [
        (Squared(), None, False, None),
        (Logistic(), 2, True, None),
        (Squared(), 2, False, None),
        (Logistic(), None, False, 1),
        (Squared(), 2, True, 2),
        (Softmax(2), 2, False, 1),
    ],
    ids=str,
)
@pytest.mark.slow
def test_constants_hold_along_the_ball(loss, batch, replacement, drawn):
    """Gradients, losses, and means and variances of the real method's stochastic gradients, at models of the ball."""
    R, runs = 1.5, 1500
    problem = mixed(3, loss=None if isinstance(loss, Softmax) else loss)
    if isinstance(loss, Softmax):
        fed = problem.federation
        problem = Problem(replace(fed, y=(fed.y > 0).astype(float)), loss, 0.1)
    sampling = {} if drawn is None else {"sampling": WeightedSampling(drawn)}
    method = AFL(step_size=1e-6, domain_step_size=1e-6, radius=R, batch_size=batch, replacement=replacement, **sampling)
    c = afl_constants(problem, method)
    assert c.random == (batch is not None or drawn is not None)
    assert agnostic_constants(problem, radius=R).random is False
    rng, domains = np.random.default_rng(0), problem.by_domain
    worst = np.zeros(2)
    for _ in range(3):
        w = rng.normal(size=problem.model_shape)
        w *= 0.999999 * R / np.linalg.norm(w)
        F, J = domains.client_values(w) - 0.05 * np.sum(w**2), domains.client_gradients(w).reshape(3, -1)
        assert np.linalg.norm(J, axis=1).max() <= c.G_w
        assert np.linalg.norm(F) <= c.G_lambda
        assert np.linalg.norm(F - F.mean()) <= c.centred
        state = method.init(problem, np.tile(w, (runs, 1)).reshape(runs, *problem.model_shape))
        state = state._replace(point_domain_weights=np.tile(rng.dirichlet(np.ones(3)), (runs, 1)))
        *_, (_, after) = iterate(_From(method, state), problem, rounds=1, trajectories=runs, seed=5)
        g = (state.point - after.point).reshape(runs, -1) / 1e-6
        losses = (after.point_domain_weights - state.point_domain_weights) / 1e-6
        losses = losses - losses.mean(axis=1, keepdims=True)  # steps on the simplex do not show their mean
        mean_g, spread = g.mean(axis=0), g.var(axis=0).sum()
        assert np.abs(mean_g - state.point_domain_weights[0] @ J).max() <= 6.0 * math.sqrt(spread / runs) + 1e-6
        off = np.abs(losses.mean(axis=0) - (F - F.mean())).max()
        assert off <= 6.0 * math.sqrt(losses.var(axis=0).sum() / runs) + 1e-6
        assert spread <= 1.1 * c.sigma2_w + 1e-8
        assert losses.var(axis=0).sum() <= 1.1 * c.sigma2_lambda + 1e-8
        assert np.ptp(losses, axis=1).max() <= c.width + 1e-6
        worst = np.maximum(worst, [np.linalg.norm(J, axis=1).max() / c.G_w, np.linalg.norm(F) / c.G_lambda])
    assert worst.min() > 0.1  # and they are not idle


class _From:
    """AFL from a state of one's own."""

    def __init__(self, method, state):
        self.method, self.state = method, state

    def init(self, problem, w):
        return self.state

    def __getattr__(self, name):
        return getattr(self.method, name)


def test_constants_by_hand():
    """x = 3 with label 1 and x = 1 with label -1, |w| <= 1/2, squared loss: slopes 2.5 and 1.5, halves of squares."""
    problem = Problem(Federation.from_arrays([[3.0], [1.0]], [1.0, -1.0], [0, 1]), Squared(), 0.2)
    c = agnostic_constants(problem, radius=0.5, start=[2.0])
    assert c.G_w == pytest.approx(7.5 + 0.1)
    assert c.G_lambda == pytest.approx(math.hypot(3.125, 1.125))
    assert c.centred == pytest.approx(3.125 / math.sqrt(2.0))
    assert (c.reach_w, c.reach_lambda, c.divergence) == pytest.approx((1.0, math.sqrt(0.5), math.log(2.0)))
    point = agnostic_constants(problem, radius=0.5, uncertainty_set=Point([0.3, 0.7]))
    assert (point.R_lambda, point.reach_lambda, point.divergence) == (0.0, 0.0, 0.0)
    ball = agnostic_constants(problem, radius=0.5, uncertainty_set=KLBall([0.3, 0.7], 0.01))
    assert ball.divergence == 0.01


# ---------------------------------------------------------------- the rate


def still_losses(values):
    """Domains whose losses no model changes: rows of zeros, squared loss."""
    p = len(values)
    return Problem(Federation.from_arrays(np.zeros((p, 1)), np.sqrt(2.0 * np.array(values)), np.arange(p)), Squared())


MIXTURES = [None, KLBall([0.5, 0.3, 0.2], 0.1), Polytope([[1.0, 0.0, 0.0]], [0.5]), Point([0.2, 0.3, 0.5])]


@pytest.mark.parametrize("uncertainty_set", MIXTURES)
@pytest.mark.slow_unless(uncertainty_set=None)
def test_rates_hold(uncertainty_set):
    how = {} if uncertainty_set is None else {"uncertainty_set": uncertainty_set}
    drawn = {"batch_size": 2, "sampling": WeightedSampling(2)}
    for seed, (loss, T, extra) in enumerate(
        ((Logistic(), 9, {}), (Squared(), 1, {"batch_size": 2}), (Logistic(), 9, drawn))
    ):
        problem = mixed(seed, loss)
        method = AFL(step_size=1.0, domain_step_size=1.0, radius=1.0, **how, **extra)
        entropic = replace(method, ascent=EntropicStep())
        published, precise = with_steps(method, problem, rounds=T, published=True), {"precision": 0.3}
        a = holds("agnostic-rate", problem, published, T, **precise)
        b = holds("agnostic-rate-any-steps", problem, with_steps(method, problem, rounds=T), T, **precise)
        e = holds("agnostic-rate-entropic", problem, with_steps(entropic, problem, rounds=T), T, **precise)
        assert b.bound.value < a.bound.value
        assert (a.trajectories, b.trajectories, e.trajectories) == (0, 0, 0) or extra
        assert min(a.measured, b.measured, e.measured) >= 0.0


def test_the_rate_for_any_steps_is_attained_by_either_player():
    """A linear function from the end of the ball, and losses that no model changes: after one step 2RG and D/2."""
    method = with_steps(AFL(step_size=1.0, domain_step_size=1.0, radius=1.0), one_row.make(), rounds=1, start=[-1.0])
    verdict = holds("agnostic-rate-any-steps", one_row.make(), method, start=[-1.0])
    assert verdict.ratio == pytest.approx(1.0, abs=0.006)
    violated(planted("agnostic-rate-any-steps", {"all": 0.98}), one_row.make(), method, start=[-1.0])
    flat = still_losses([1.0, 0.0])
    method = replace(with_steps(AFL(step_size=1.0, domain_step_size=1.0, radius=1.0), flat, rounds=1), step_size=1e9)
    verdict = holds("agnostic-rate-any-steps", flat, method)
    assert verdict.measured == pytest.approx(0.5)
    assert verdict.ratio == pytest.approx(1.0, abs=1e-6)
    violated(planted("agnostic-rate-any-steps", {"domain weights, steps": 0.98}), flat, method)
    violated(planted("agnostic-rate-any-steps", {"domain weights, start": 0.98}), flat, method)


def test_the_published_rate_with_other_constants_is_caught():
    """2RG is measured, 3RG allowed: 3 -> 1.9 is refuted; so are steps that are larger than the theorem's."""
    method = with_steps(AFL(step_size=1.0, domain_step_size=1.0, radius=1.0), one_row.make(), rounds=1, published=True)
    verdict = holds("agnostic-rate", one_row.make(), method, start=[-1.0])
    assert verdict.ratio == pytest.approx(1.5, abs=0.01)
    violated(planted("agnostic-rate", {"model": 1.9 / 3.0}), one_row.make(), method, start=[-1.0])
    refuses("agnostic-rate", one_row.make(), replace(method, step_size=1.01 * method.step_size), "gamma_w <=", rounds=1)
    smaller = replace(method, step_size=0.5 * method.step_size)  # as if the gradients were twice as large
    assert verify("agnostic-rate", one_row.make(), smaller, rounds=1).bound.value == pytest.approx(
        2 * verdict.bound.value
    )


def test_the_entropic_rate_is_nearly_attained_and_a_smaller_one_caught():
    """Two domains of losses 1 and 0, one step: the gap is 1/2, the bound sqrt(log(2)/2) = 0.589."""
    flat = still_losses([1.0, 0.0])
    method = AFL(step_size=1.0, domain_step_size=1.0, radius=1.0, ascent=EntropicStep())
    method = replace(with_steps(method, flat, rounds=1), step_size=1e9)
    verdict = holds("agnostic-rate-entropic", flat, method)
    assert verdict.measured == pytest.approx(0.5)
    assert verdict.bound.value == pytest.approx(math.sqrt(math.log(2.0) / 2.0), rel=1e-6)
    violated(planted("agnostic-rate-entropic", {"domain weights, start": 0.6}), flat, method)
    violated(planted("agnostic-rate-entropic", {"domain weights, steps": 0.6}), flat, method)  # width^2/8 -> width^2/13
    many = still_losses([1.0] + [0.0] * 63)  # log p counts: 64 domains
    method = replace(with_steps(replace(method, step_size=1.0), many, rounds=1), step_size=1e9)
    verdict = holds("agnostic-rate-entropic", many, method)
    assert verdict.ratio == pytest.approx(math.sqrt(math.log(64.0) / 2.0) / (1.0 - 1.0 / 64.0), rel=1e-6)
    violated(planted("agnostic-rate-entropic", {"domain weights, start": 1.0 / math.log(64.0)}), many, method)


@pytest.mark.compiled(only="minutes of pure Python")
@pytest.mark.slow
def test_a_rate_that_forgets_the_noise_is_caught(monkeypatch):
    """Steps and bound for sigma = 0: mini-batches of one row out of many opposed ones throw the models about."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.r_[np.ones(52), -np.ones(48)])
    problem = Problem(Federation.from_arrays(0.1 * np.ones((100, 1)), y, np.zeros(100, dtype=int)), Logistic())
    method = AFL(step_size=1.0, domain_step_size=1.0, radius=1.0, batch_size=1, replacement=True)
    holds("agnostic-rate-any-steps", problem, with_steps(method, problem, rounds=60), 60)

    def noiseless(problem, m, start=None):  # and G_w what it is at the ends of the ball, not 0.05 as for single rows
        c = agnostic_constants(problem, radius=m.radius, start=start)
        ends = [abs(float(problem.gradient(np.array([w]))[0])) for w in (-1.0, 1.0)]
        return c._replace(G_w=max(ends))

    for module in (agnostic_rate, afl_steps):  # of the bound, and of the steps
        monkeypatch.setattr(module, "afl_constants", noiseless)
    violated("agnostic-rate-any-steps", problem, with_steps(method, problem, rounds=60), 60)


def test_hypotheses_of_the_rate():
    problem = mixed(0)
    free = AFL(step_size=0.1, domain_step_size=0.1)
    refuses("agnostic-rate", problem, free, "a ball of models, got radius None")
    ball = replace(free, radius=1.0)
    refuses("agnostic-rate", problem, replace(ball, step_size=9.0), "gamma_w <= 2 R/(T (sigma^2 + G^2))^(1/2), got 9")
    refuses("agnostic-rate", problem, replace(ball, ascent=EntropicStep()), "needs ProjectedStep of the domain weights")
    refuses("agnostic-rate-entropic", problem, ball, "needs EntropicStep of the domain weights")
    refuses(
        "agnostic-rate-any-steps", problem, OptimisticAFL(step_size=0.1, domain_step_size=0.1, radius=1.0), "method AFL"
    )
    hinge = Problem(problem.federation, Hinge(), 0.1)
    refuses(
        "agnostic-rate-any-steps", hinge, ball, "a smooth loss, whose least value over the ball is known, got Hinge"
    )


# ---------------------------------------------------------------- samples: the quantity


def test_quantiles_of_urns_are_binomial():
    """At w = 1 losses are 0 or 2, equally often: the excess is 1 - 2X/m, X binomial, the larger of two urns."""
    for m, delta in ((7, 0.05), (20, 0.05), (20, 0.3), (50, 0.01)):
        method = Sample(sizes=m, models=Models([[1.0]]), delta=delta)
        X = np.arange(m + 1)
        both = (1.0 - scipy.stats.binom.cdf(X - 1, m, 0.5)) ** 2  # both have at least X losses of 2
        expected = 1.0 - 2.0 * X[both >= 1.0 - delta].max() / m
        verdict = holds("agnostic-vertices", two_coin_domains.make(), method)
        assert verdict.measured == pytest.approx(expected, abs=1e-12)
        assert verdict.bound.value == pytest.approx(2.0 * math.sqrt(math.log(2.0 / delta) / (2.0 * m)))
        sample = holds("agnostic-vertices", two_coin_domains.make(), method, exact=False) if delta > 0.02 else verdict
        assert sample.low <= expected + 1e-12
        assert expected - 1e-12 <= sample.high


def test_exact_quantiles_and_samples_agree():
    for problem, models in ((three_small_domains.make(), Ball(1.0)), (plane_domains.make(), Classifiers())):
        method = Sample(sizes=(4, 6, 9) if models != Classifiers() else 2, models=models, delta=0.2)
        s = Setting(problem, method, 1, np.zeros(2))
        exact = samples.exact_excess(s, [1])
        low, high = samples.quantile(s, samples.excess(s, [1], 3, 4000)[0], 1e-4)[1:]
        assert low - 1e-12 <= exact[0] <= high + 1e-12


def test_exact_quantiles_far_out():
    """One fair label of two, 4,900 draws, delta = 1e-306: the tail of a binomial, by its logarithm."""
    m, delta = 4900, 1e-306
    problem, method = one_coin.make(), Sample(sizes=m, models=Classifiers(), delta=delta)
    j = np.arange(m + 1)  # errors of the better classifier in the sample; of either, of probability twice as much
    tail = np.logaddexp.accumulate(scipy.stats.binom.logpmf(j, m, 0.5)) + math.log(2.0)
    least = j[tail <= math.log(delta)].max()  # fewer errors than these are too rare; the next are the quantile
    assert samples.exact_excess(Setting(problem, method, 1, np.zeros(1)), [1])[0] == pytest.approx(
        0.5 - (least + 1) / m
    )


def test_the_direct_bound_by_hand():
    """A union bound, and variances of the entries of x y and x x'."""
    two = two_rows.make()
    few = Sample(sizes=1, models=blind_to(1)(two, np.zeros(2)), delta=0.999)
    verdict = holds("agnostic-direct", two, few)
    assert verdict.measured == pytest.approx(0.5)  # the model whose loss is 0 in the row that was drawn
    assert verdict.bound.terms["mean"] == pytest.approx(math.sqrt(0.5 * math.log(2.0)))
    violated(planted("agnostic-direct", {"mean": 0.8}), two, few)
    problem, means = three_small_domains.make(), []
    for k in range(3):
        X, y = problem.by_domain.federation.client_rows(k)
        linear = sum(np.var(X[:, i] * y) for i in range(2))
        square = sum(np.var(X[:, i] * X[:, j]) for i in range(2) for j in range(2))
        means.append(2.0 * math.sqrt(linear / 4) + 0.5 * 2.0**2 * math.sqrt(square / 4))
    found = holds("agnostic-direct", problem, Sample(sizes=4, models=Ball(2.0)))
    assert found.bound.terms["mean"] == pytest.approx(max(means))


@pytest.mark.slow
def test_quantile_limits_cover():
    """Limits of the median and of the 95 % quantile of normals: at most 1 % of 1000 samples miss on either side."""
    rng = np.random.default_rng(0)
    for delta in (0.5, 0.05):
        s = Setting(two_coin_domains.make(), Sample(sizes=1, models=Models([[1.0]]), delta=delta), 1, np.zeros(1))
        true, missed = scipy.stats.norm.ppf(1.0 - delta), np.zeros(2)
        for _ in range(1000):
            _, low, high = samples.quantile(s, rng.normal(size=200), 0.01)
            missed += [low > true, high < true]
        assert missed.max() <= 10 + 4.0 * math.sqrt(10)
        assert missed.sum() > 0
    assert samples.quantile(s, rng.normal(size=20), 0.01)[2] == math.inf  # too few to bound it


def test_largest_value_on_a_ball():
    """Indefinite quadratics in the plane beside a fine grid; the hard case; negative definite with the top inside."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(40, 2, 2))
    A, b, R = A + A.transpose(0, 2, 1), rng.normal(size=(40, 2)), 1.3
    A[:10] -= 6.0 * np.eye(2)
    A[10], b[10] = np.diag([2.0, -1.0]), [0.0, 0.5]  # nothing along the top eigenvector
    b[11], A[12], b[12] = 0.0, 0.0, 0.0
    r, t = np.meshgrid(np.linspace(0, R, 101), np.linspace(0, 2 * np.pi, 361))
    v = np.stack([r * np.cos(t), r * np.sin(t)], axis=-1).reshape(-1, 2)
    grid = 0.5 * np.einsum("gi,rij,gj->rg", v, A, v) - b @ v.T
    found = largest_on_ball(A, b, R)
    assert (found >= grid.max(axis=1) - 1e-12).all()
    np.testing.assert_allclose(found, grid.max(axis=1), atol=5e-3)


def test_all_patterns_of_classifiers_are_listed():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(9, 2))
    X[5], X[6], X[7] = 2.0 * X[4], -X[4], 0.0  # parallel, opposite and zero rows
    patterns = {tuple(v) for v in samples.patterns(X).T}
    W = rng.normal(size=(20_000, 2))
    seen = {tuple(v) for v in np.where(W @ X.T >= 0.0, 1.0, -1.0)}
    assert seen <= patterns
    turned = X[:5] @ np.array(
        [[0.0, 1.0], [-1.0, 0.0]]
    )  # classifiers with a row on their edge, by exact perpendiculars
    assert len(patterns) <= len(seen) + 2 * len(turned) + 6
    assert len(samples.patterns(rng.normal(size=(8, 2))).T) == 2 * 8 + 1  # 2n cells, and the zero model
    line_ = samples.patterns(np.array([[1.0], [-2.0], [0.0]]))
    assert {tuple(v) for v in line_.T} == {(1.0, -1.0, 1.0), (-1.0, 1.0, 1.0), (1.0, 1.0, 1.0)}


def test_a_class_by_brute_force():
    """Two domains of three rows, samples of two rows each, three models: all 81 samples, one by one."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(6, 2)), rng.choice([-1.0, 1.0], size=6)
    problem, W = Problem(Federation.from_arrays(X, y, [0, 0, 0, 1, 1, 1]), Logistic()), rng.normal(size=(3, 2))
    losses = np.logaddexp(0.0, -y * (W @ X.T))  # (3, 6)
    values = []
    for a in itertools.product(range(3), repeat=2):
        for b in itertools.product(range(3, 6), repeat=2):
            off = [losses[:, :3].mean(1) - losses[:, a].mean(1), losses[:, 3:].mean(1) - losses[:, b].mean(1)]
            values.append(np.max(off))
    for delta in (0.05, 0.3, 0.7):
        expected = np.sort(values)[math.ceil(81 * (1.0 - delta) - 1e-9) - 1]
        method = Sample(sizes=2, models=Models(W), delta=delta)
        assert verify("agnostic-cover", problem, method, rounds=1).measured == pytest.approx(expected, abs=1e-12)
    mix = [0.3, 0.7]
    s = Setting(problem, Sample(sizes=2, models=Models(W), uncertainty_set=Point(mix)), 1, np.zeros(2))
    got = samples.excess(s, [1], 0, 4000)[0]
    one = [
        (
            mix @ np.array([losses[:, :3].mean(1) - losses[:, a].mean(1), losses[:, 3:].mean(1) - losses[:, b].mean(1)])
        ).max()
        for a in itertools.product(range(3), repeat=2)
        for b in itertools.product(range(3, 6), repeat=2)
    ]
    assert np.mean(got) == pytest.approx(np.mean(one), abs=5.0 * np.std(one) / math.sqrt(4000))
    assert set(np.round(got, 9)) <= set(np.round(one, 9))


# ---------------------------------------------------------------- samples: the bounds


@pytest.mark.slow
def test_generalisation_bounds_hold():
    kinds = (
        (three_small_domains.make(), Ball(1.0)),
        (diabetes_ages.make(), Ball(0.5)),
        (plane_domains.make(), Classifiers()),
    )
    for (problem, models), delta in itertools.product(kinds, (0.05, 0.4)):
        for sizes in (3, (2, 5, 30)) if problem is plane_domains.make() else (4,):
            method = Sample(sizes=sizes, models=models, delta=delta)
            names = ["agnostic-cover", "agnostic-vertices"] + ["agnostic-vc"] * (models == Classifiers())
            bounds = [holds(name, problem, method, rounds=2).bound.value for name in names]
            assert bounds[1] < bounds[0]
            assert holds("agnostic-direct", problem, method, rounds=2).bound.value < bounds[1]


def test_planted_generalisation_bounds_are_caught():
    one = Models([[1.0]])
    few = Sample(sizes=50, models=one, delta=0.01)
    holds("agnostic-vertices", two_coin_domains.make(), few)
    violated(
        planted("agnostic-vertices", {"deviation": 0.7}), two_coin_domains.make(), few
    )  # 1/2 -> 1/4 in the root: 0.707
    many = Sample(sizes=50, models=one, delta=0.3)
    holds("agnostic-vertices", twenty_coin_domains.make(), many)
    without_p = math.sqrt(math.log(1.0 / 0.3) / math.log(20.0 / 0.3))
    violated(
        planted("agnostic-vertices", {"deviation": without_p}), twenty_coin_domains.make(), many
    )  # a union over one domain
    rows, rich = plane_domains.make().federation, Sample(sizes=10, models=Classifiers(), delta=0.9)
    one_domain = Problem(Federation.from_arrays(rows.X, rows.y, np.zeros(60, dtype=int)), Logistic())
    for name in ("agnostic-vertices", "agnostic-cover", "agnostic-vc"):
        holds(name, one_domain, rich)
        violated(planted(name, {"complexity": 0.0, "cover radius": 0.0}), one_domain, rich)
    uneven = Sample(sizes=(5, 400), models=one, delta=0.05)
    holds("agnostic-cover", two_coin_domains.make(), uneven)
    printed = math.sqrt((1.0 / 5.0) / (405.0 / 5.0))  # s = max 1/m_k in the place of max 1/mbar_k
    violated(planted("agnostic-cover", {"deviation": printed, "cover radius": 0.0}), two_coin_domains.make(), uneven)
    violated(
        planted("agnostic-cover", {"all": 0.4}),
        two_coin_domains.make(),
        Sample(sizes=50, models=one, delta=0.01, eps=1e-3),
    )


def test_the_bound_of_one_mixture_knows_its_skewness():
    """Lambda a point: s = sum lambda_k^2/mbar_k. Urns: lambda'(excesses) with lambda = (3, 1)/4 has variance s/m."""
    method = Sample(sizes=(30, 10), models=Models([[1.0]]), uncertainty_set=Point([0.75, 0.25]), delta=0.02)
    verdict = holds("agnostic-cover", two_coin_domains.make(), method)
    assert verdict.bound.terms["deviation"] == pytest.approx(2.0 * math.sqrt(math.log(50.0) / 80.0))  # s = 1
    normal = scipy.stats.norm.ppf(0.98) / math.sqrt(40.0)
    assert verdict.measured == pytest.approx(normal, abs=0.06)
    violated(planted("agnostic-cover", {"deviation": 0.5}), two_coin_domains.make(), method)
    refuses("agnostic-vertices", two_coin_domains.make(), method, "Lambda the simplex, got Point")


def test_hypotheses_of_samples():
    some = Sample(sizes=3, models=Ball(1.0))
    refuses("agnostic-cover", three_small_domains.make(), FedAvg(step_size=0.1), "the method Sample, got FedAvg")
    refuses("agnostic-cover", plane_domains.make(), some, "squared loss, for all models of a ball, got Logistic")
    refuses(
        "agnostic-vc", three_small_domains.make(), replace(some, models=Classifiers()), "labels -1 and +1, got -2.6"
    )
    refuses("agnostic-vc", three_small_domains.make(), some, "errors of all linear classifiers, got Ball")
    refuses(
        "agnostic-vc",
        breast_cancer_domains.make(),
        replace(some, models=Classifiers()),
        "can be listed, got 10 features",
    )
    alone = Problem(Federation.from_arrays(np.eye(2), [1.0, -1.0], [0, 0]), Logistic())
    refuses(
        "agnostic-vc", alone, Sample(sizes=1, models=Classifiers()), "dimension <= rows, got d = 2, m = 1", rounds=1
    )
    for wrong, what in (
        ({"sizes": 0}, "at least 1"),
        ({"delta": 1.0}, "strictly between 0 and 1"),
        ({"eps": 0.0}, "eps"),
        ({"models": Ball(-1.0)}, "radius"),
    ):
        with pytest.raises(ValueError, match=what):
            Sample(**({"sizes": 3, "models": Ball(1.0)} | wrong))
    for wrong in ({"models": [[1.0]]}, {"uncertainty_set": KLBall([0.5, 0.5], 1.0)}):
        with pytest.raises(TypeError, match="Sample"):
            Sample(**({"sizes": 3, "models": Ball(1.0)} | wrong))
    with pytest.raises(ValueError, match="have 3 entries, one per domain"):
        verify("agnostic-cover", three_small_domains.make(), replace(some, sizes=(1, 2)), rounds=1)
    with pytest.raises(ValueError, match="have shape"):
        verify("agnostic-cover", three_small_domains.make(), replace(some, models=Models([[1.0]])), rounds=1)


def test_samples_along_the_rounds_and_over_a_grid():
    follow = curve(
        "agnostic-vertices", two_coin_domains.make(), Sample(sizes=10, models=Models([[1.0]])), rounds=[1, 4, 16]
    )
    assert follow.exact
    assert (np.diff(follow.measured) < 0).all()
    assert follow.bound[2] == pytest.approx(follow.bound[0] / 4.0)
    drawn = curve(
        "agnostic-vc", plane_domains.make(), Sample(sizes=40, models=Classifiers()), rounds=[1, 4], trajectories=512
    )
    assert not drawn.exact
    assert (drawn.low <= drawn.measured).all()
    assert (drawn.measured <= drawn.high).all()

    def setting(m, delta):
        return two_coin_domains.make(), Sample(sizes=m, models=Models([[1.0]]), delta=delta), 1

    corners = verify_grid("agnostic-cover", setting, {"m": [5, 50], "delta": [0.01, 0.2]})
    assert corners.violated == []
    assert len(corners.verdicts) == 4


# ---------------------------------------------------------------- what is sent


def senders(scheme=None):
    how = {} if scheme is None else {"participation": scheme}
    return [
        FedAvg(step_size=0.1, local_steps=2, **how),
        ApproxFedAvg(mu=5.0, step_size=0.1, **how),
        AgnosticFedAvg(step_size=0.1, domain_step_size=0.1, local_steps=2, **how),
        SoftmaxFedAvg(mu=5.0, step_size=0.1, **how),
    ]


@pytest.mark.parametrize("scheme", [None, UniformSampling(2), ProportionalSampling(5)])
@pytest.mark.slow
def test_what_is_sent(scheme):
    problem = breast_cancer_domains.make()
    c = 8 if scheme is None else 2 if hasattr(scheme, "clients") else 5
    extra = {"AgnosticFedAvg": 10, "SoftmaxFedAvg": 10, "AFL": 6, "OptimisticAFL": 6}
    everybody = (
        [AFL(step_size=0.1, domain_step_size=0.1), OptimisticAFL(step_size=0.1, domain_step_size=0.1)]
        if scheme is None
        else []
    )
    for method in senders(scheme) + everybody:
        verdict = holds("agnostic-floats", problem, method, 2)
        assert verdict.measured == c * (2 * 10 + extra.get(type(method).__name__, 0))
        assert verdict.ratio == 1.0


def test_a_count_that_is_off_by_one_is_caught_on_either_side(monkeypatch):
    problem, method = three_domains.make(), AgnosticFedAvg(step_size=0.1, domain_step_size=0.1)
    for wrong in ((3, 0), (3, 2), (2, 1), (4, 0)):  # the last is 2c|W| + 4cp, which circulates
        monkeypatch.setitem(COUNTS, AgnosticFedAvg, wrong)
        violated("agnostic-floats", problem, method, 1)


def test_hypotheses_of_counts():
    from fedconvex.secure import SecureSums

    problem, weighted = three_domains.make(), AFL(step_size=0.1, domain_step_size=0.1, sampling=WeightedSampling(1))
    refuses("agnostic-floats", problem, weighted, "all domains asked, got WeightedSampling(draws=1)")
    masked = AgnosticFedAvg(step_size=0.1, domain_step_size=0.1, sums=SecureSums())
    refuses("agnostic-floats", problem, masked, "single answers, got SecureSums")
    refuses(
        "agnostic-floats",
        problem,
        FedSGD(step_size=0.1),
        "OptimisticAFL or AgnosticFedAvg or SoftmaxFedAvg, got FedSGD",
    )

    class Renamed(AgnosticFedAvg):
        """A subclass sends what its parent sends."""

    holds("agnostic-floats", problem, Renamed(step_size=0.1, domain_step_size=0.1))
    namesake = type("FedAvg", (FedSGD,), {})(step_size=0.1)
    refuses("agnostic-floats", problem, namesake, "got FedAvg")
    with pytest.raises(ValueError, match="floats_per_round: clients must be at least 1"):
        floats_per_round(clients=0, size=1, domains=1)


# ---------------------------------------------------------------- the softmax objective


def test_softmax_sandwich_and_optimum():
    problem = three_domains.make()
    for mu in (1.0, 20.0, 500.0):
        method = SoftmaxFedAvg(mu=mu, step_size=0.1, batch_size=2)
        upper = holds("agnostic-softmax", problem, method, 5)  # equal losses at the start
        assert upper.ratio == pytest.approx(1.0)
        violated(planted("agnostic-softmax", {"all": 0.99}), problem, method, 5)
        optimum = holds("agnostic-softmax-optimum", problem, method)
        assert 0.0 <= optimum.measured
    lower = holds("agnostic-softmax", problem, SoftmaxFedAvg(mu=1e4, step_size=1e-9), 1, start=[1.0, -2.0, 0.5])
    assert lower.ratio == pytest.approx(1.0)  # one loss far above the others: the lower end
    found = [
        holds("agnostic-softmax-optimum", opposite_labels.make(), SoftmaxFedAvg(mu=m, step_size=0.1))
        for m in (2.0, 4.0)
    ]
    small = planted("agnostic-softmax-optimum", {"all": 0.99 * found[0].measured / found[0].bound.value})
    violated(small, opposite_labels.make(), SoftmaxFedAvg(mu=2.0, step_size=0.1))
    refuses("agnostic-softmax", problem, ApproxFedAvg(mu=2.0, step_size=0.1), "the method SoftmaxFedAvg, got Approx")
    hinge = Problem(problem.federation, Hinge(), 0.1)
    refuses("agnostic-softmax-optimum", hinge, SoftmaxFedAvg(mu=2.0, step_size=0.1), "a smooth loss, to be solved for")


def test_the_softmax_optimum_by_hand():
    """The instance with q = P(class 0): max(L_1, L_2) at the minimiser of the softmax objective, by scalar search."""

    def losses(q):
        return np.array([-math.log(1.0 - q), -0.5 * math.log(q) - 0.5 * math.log(1.0 - q)])

    for mu in (2.0, 20.0):
        smooth = scipy.optimize.minimize_scalar(
            lambda q, mu=mu: np.log(np.exp(mu * losses(q)).sum()) / mu, bounds=(0.01, 0.99), method="bounded",
            options={"xatol": 1e-12},
        )  # fmt: skip
        verdict = verify(
            "agnostic-softmax-optimum", opposite_labels.make(), SoftmaxFedAvg(mu=mu, step_size=0.1), rounds=1
        )
        assert verdict.measured == pytest.approx(losses(smooth.x).max() - math.log(2.0), abs=1e-7)


@pytest.mark.parametrize("p", [2, 10])
def test_linear_losses_attain_the_softmax_bound(p):
    """vx once, -x otherwise: v e^{vx} = (p-1) e^{-x} at x = 1, where v e^v = (p-1)/e; a thousandth less is wrong."""
    v = scipy.optimize.brentq(lambda v: v * math.exp(v) - (p - 1.0) / math.e, 0.0, p)
    problem, method = domains_of_slopes(p).make(), SoftmaxFedAvg(mu=1.0, step_size=0.1)
    found = holds("agnostic-softmax-optimum", problem, method, 1)
    assert found.bound.value == pytest.approx(v, rel=1e-12)
    assert found.measured == pytest.approx(v, rel=1e-4)  # the losses are parabolas, of curvature 1e-4
    violated(planted("agnostic-softmax-optimum", {"all": 0.999}), problem, method, 1)
    assert v < math.log(p) / 1.7  # what convexity gains


# ---------------------------------------------------------------- reports


@pytest.mark.slow
def test_reports_of_agnostic_theorems():
    suite = [
        Check(three_domains, saddle_steps(published=True), 4, theorem="agnostic-rate"),
        Check(three_domains, saddle_steps(ascent=EntropicStep()), 4, theorem="agnostic-rate-entropic"),
        Check(two_coin_domains, samples_of_domains(only_the_start), 2, 1.0, theorem="agnostic-vertices"),
        Check(plane_domains, samples_of_domains(Classifiers(), sizes=4), 2, theorem="agnostic-vc"),
    ]
    found = verify_suite(suite, most=256, tightness=False, curves=True)
    assert not found.violated
    document, text, html = as_document(found), as_table(found, 120, details=True), page(found)
    assert [f["outcome"] for f in document["findings"]] == ["HOLDS"] * 4
    assert "given: gamma_w <= 2 R/(T (sigma^2 + G^2))^(1/2)" in text
    assert "20 rows per domain, delta 0.05" in text
    assert "entropic steps" in html
    for name in ("agnostic-rate", "agnostic-vertices"):
        assert f'id="theorem-{name}"' in html
        assert document["theorems"][name]["statement"]
    assert "VC dimension" in document["theorems"]["agnostic-vc"]["statement"]
    assert "gamma" in document["theorems"]["agnostic-rate"]["statement"]
    for f in found.findings:
        assert f.constants
        assert f.curve.measured[-1] <= f.curve.bound[-1]


def test_largest_on_a_ball_with_rounding_for_a_slope():
    """b = 1e-17 is nothing beside A = 1: v'Av/2 - b'v is at most 1/2 on the unit ball."""
    found = largest_on_ball(np.array([[[1.0]]]), np.array([[1e-17]]), 1.0)
    assert found == pytest.approx(0.5, rel=1e-12)
    fed = Federation.from_arrays([[-0.1], [-0.7], [-0.9]], [1.0, -1.0, 1.0], clients=[0, 1, 2], domains=[0, 0, 0])
    verdict = verify("agnostic-vertices", Problem(fed, Squared()), Sample(sizes=1, models=Ball(0.3)), rounds=1)
    assert verdict.outcome is Outcome.HOLDS


@pytest.mark.parametrize("claimed", [131.0, 33.0, 31.0])
def test_an_equation_is_one_for_runs_too(claimed):
    """agnostic-floats is an equation: a bound above the count is as wrong as one below, exact or by runs."""
    fed = Federation.from_arrays([[1.0], [2.0], [1.0], [3.0]], [1.0, 0.0, 1.0, 0.0], [0, 1, 2, 3])
    t = THEOREMS["agnostic-floats"]
    problem, method = Problem(fed, Squared()), AFL(step_size=0.1, domain_step_size=0.1)
    true = verify(t, problem, method, rounds=2)
    assert true.outcome is Outcome.HOLDS
    value = true.measured + (claimed - 32.0)
    wrong = t._replace(read=None, bound=lambda s: replace(t.at(s), terms={"claimed": value}))
    for exact in (None, False):
        assert verify(t, problem, method, rounds=2, exact=exact).outcome is Outcome.HOLDS
        assert verify(wrong, problem, method, rounds=2, exact=exact).outcome is Outcome.VIOLATED
    with pytest.raises(ValueError, match="one per domain"):
        Sample(sizes=[], models=Ball(1.0))
