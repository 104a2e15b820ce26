"""Boosting with several sources: gradient identity, progress per round, the example of two points, the margin bound.

Setting
    f = sum alpha_{l,j} Q(l|.) h_{l,j}, h in [-1, 1], alpha >= 0; F_k(alpha) = mean over domain k of Phi(-y f), Phi =
    exp or log2(1 + exp); F_mu = (1/mu) log sum_k exp(mu F_k).
Statement
    Descent   exact line search never raises what it is made on: F, or F_mu.
    Gradient  with D(k, i) = Phi'(-y f)/Z_k, Z_k the sum, eps = (1/2)(1 - sum_i D(k, i) y Q h):
              dF_k/dalpha_{l,j} = -(Z_k/m_k)(1 - 2 eps_{k,(l,j)}); hence |F_k(alpha + h e) - F_k(alpha) - h dF_k| is at
              most (h^2/2) e^h F_k(alpha) for exp and h^2/(8 log 2) for log2(1 + exp).
    AdaBoost  one F_k, Phi = exp, exact line search, edges gamma_t = 1 - 2 eps_t: F(alpha_T) <= prod of
              sqrt(1 - gamma_t^2), an equality for h in {-1, +1} and Q = 1; <= exp(-T gamma^2/2) if all edges are at
              least gamma in size (weak learning).
    Smoothing max F_k <= F_mu <= max F_k + log(p)/mu.
    Smoothed  exact line search along a coordinate with derivative g: F_mu falls by at least g^2/(2 L), with C = F_mu
              before the step and L = C + mu C^2 for exp; L = 1/(4 log 2) + mu/(log 2)^2 for log2(1 + exp).
    Margins   with probability >= 1 - delta, for all alpha with sum 1 and all lambda in Lambda,
              P_{D_lambda}(y f <= 0) <= Ehat_lambda[Phi_rho(y f)] + (2/rho) R(union of Q_l H_l, lambda) + eps
              + sqrt(max s log(|Lambda_eps|/delta)/(2 m)),  Phi_rho(u) = min(1, max(0, 1 - u/rho)).
Source
    Cortes, Mohri, Storcheus, Suresh, "Boosting with multiple sources", NeurIPS 2021 (algorithm, Q-ensembles, form of
    the margin bound; their text was not at hand). Freund, Schapire 1997 and Schapire, Singer 1999 (AdaBoost). All are
    derived in docs/theory/boosting.md.
What differs
    The margin bound is often quoted with max_l R(Q_l H_l). A convex combination across sources has the complexity of
    the union, which is larger: with one classifier per source every R(Q_l H_l) is zero, that of their union is not.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, finite, numeric, real, whole
from fedconvex.draws import key_from_seed
from fedconvex.federation import Federation
from fedconvex.loss_traits import traits
from fedconvex.losses import Exponential
from fedconvex.problems import Dictionary, EnsembleProblem, Presorted
from fedconvex.theory.agnostic_generalisation import cover_bound, vertex_bound
from fedconvex.theory.bound import (
    ENSEMBLE_LOSS,
    LARGEST_INCREASE,
    SMOOTHING_ERROR,
    TAYLOR_REMAINDER,
    Bound,
    Hypothesis,
    require,
)
from fedconvex.theory.complexity import Complexity

__all__ = [
    "Edges",
    "TwoPoints",
    "adaboost",
    "adaboost_bound",
    "adaboost_weak",
    "boosting_descent",
    "boosting_progress",
    "edges",
    "gradient_remainder",
    "margin_bound",
    "margin_losses",
    "margin_vertex_bound",
    "smoothed_progress",
    "smoothing_error",
    "stump_complexity",
    "two_points",
]

ALGORITHM = "Cortes, Mohri, Storcheus, Suresh 2021"
ADABOOST = "Freund, Schapire 1997; Schapire, Singer 1999"
SOURCE = "Cortes, Mohri, Storcheus, Suresh 2021 (re-derived; complexity of the union)"


class Edges(NamedTuple):
    """Weights and weighted errors of an ensemble, as MultiBoost computes them, and the gradients made of them."""

    mass: np.ndarray  # (p,) Z_k
    error: np.ndarray  # (p, N) eps_{k,(l,j)}
    gradient: np.ndarray  # (p, N) -(Z_k/m_k)(1 - 2 eps)


def edges(problem: EnsembleProblem, alpha: Any) -> Edges:
    """Return Z_k, eps_{k,(l,j)} and the gradients of the F_k by the identity.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theory.boosting import edges, two_points
    >>> edges(two_points().ensemble, np.zeros(2)).gradient
    array([[-1.,  0.],
           [ 0., -1.]])
    """
    slopes = problem.losses_of(problem.margins(alpha))[1]
    mass = np.add.reduceat(slopes, problem.bounds[:-1])
    D = slopes / np.repeat(mass, problem.counts)
    sums = np.add.reduceat(D[:, None] * problem.signed, problem.bounds[:-1], axis=0)
    error = 0.5 * (1.0 - sums)
    return Edges(mass, error, (mass / problem.counts)[:, None] * (2.0 * error - 1.0))


def adaboost_bound(edge: Any) -> float:
    """Return prod sqrt(1 - gamma_t^2), which bounds the exponential loss of one source after exact line searches.

    Parameters
    ----------
    edge : array (T,)
        gamma_t = sum_i D_t(i) y_i Q(x_i) h_t(x_i) in [-1, 1].

    Examples
    --------
    >>> from fedconvex.theory.boosting import adaboost_bound
    >>> round(adaboost_bound([0.6, 0.8]), 12)
    0.48
    """
    g = np.atleast_1d(numeric("adaboost_bound: edge", edge))
    finite("adaboost_bound: edge", g)
    if np.abs(g).max(initial=0.0) > 1.0 + 1e-12:
        raise bad("adaboost_bound: edge", "lie in [-1, 1]", f"{g[np.argmax(np.abs(g))]:g}")
    return float(np.prod(np.sqrt(np.maximum(1.0 - g**2, 0.0))))


def smoothed_progress(value: float, slope: float, smoothing: float, loss: Any = None) -> float:
    """Return g^2/(2 L), a lower bound of how far an exact line search lowers F_mu.

    Parameters
    ----------
    value : float
        F_mu before the step.
    slope : float
        Its derivative g along the coordinate.
    smoothing : float
        mu.
    loss : Exponential or Logistic2
        Default Exponential.

    Examples
    --------
    >>> from fedconvex.theory.boosting import smoothed_progress
    >>> smoothed_progress(1.0, -0.5, 1.0)
    0.0625
    """
    C, g = real("smoothed_progress: value", value, low=0.0), real("smoothed_progress: slope", slope)
    mu = real("smoothed_progress: smoothing", smoothing, low=0.0, strict=True)
    kind = traits(Exponential() if loss is None else loss)
    L = kind.curvature_below(C) + mu * kind.slope_bound(C) ** 2
    return g * g / (2.0 * L)


# ---------------------------------------------------------------- what runs obey


def boosting_descent() -> Bound:
    """Return 0, the bound of how much F (F_mu with smoothing) rises in a round with exact line search.

    Examples
    --------
    >>> from fedconvex.theory.boosting import boosting_descent
    >>> boosting_descent().value
    0.0
    """
    return Bound({"increase": 0.0}, LARGEST_INCREASE, f"{ALGORITHM}, exact line search")


def boosting_progress(start: float, promised: Any) -> Bound:
    """Return F_mu(alpha_0) less what the rounds promise.

    Parameters
    ----------
    start : float
        F_mu(alpha_0).
    promised : array (T,)
        `smoothed_progress` of every round; 0 for rounds that promise nothing.

    Examples
    --------
    >>> from fedconvex.theory.boosting import boosting_progress
    >>> boosting_progress(1.0, [0.25, 0.125]).value
    0.625
    """
    first, less = real("boosting_progress: start", start), numeric("boosting_progress: promised", promised)
    finite("boosting_progress: promised", less)
    if less.min(initial=0.0) < 0.0:
        raise bad("boosting_progress: promised", "be nonnegative", f"{less.min():g}")
    source = f"{ALGORITHM}, smoothed; progress per round: docs/theory/boosting.md"
    return Bound({"start less progress": first - float(less.sum())}, ENSEMBLE_LOSS, source)


def adaboost(edge: Any) -> Bound:
    """Return `adaboost_bound` with its address.

    Examples
    --------
    >>> from fedconvex.theory.boosting import adaboost
    >>> round(adaboost([0.6, 0.8]).value, 12)
    0.48
    """
    return Bound({"product": adaboost_bound(edge)}, ENSEMBLE_LOSS, f"{ADABOOST}, product of the rounds")


def adaboost_weak(gamma: float, *, rounds: int) -> Bound:
    """Return exp(-T gamma^2/2) for edges of at least gamma.

    Parameters
    ----------
    gamma : float
        In (0, 1].
    rounds : int
        T.

    Raises
    ------
    AssumptionError
        If gamma = 0: some round found no edge.

    Examples
    --------
    >>> from fedconvex.theory.boosting import adaboost_weak
    >>> round(adaboost_weak(0.5, rounds=8).value, 6)
    0.367879
    """
    g, T = real("adaboost_weak: gamma", gamma, low=0.0, high=1.0), whole("adaboost_weak: rounds", rounds)
    weak = require(ADABOOST, Hypothesis("edges of at least gamma > 0", f"gamma = {g:.4g}", g > 0.0))
    value = math.exp(-0.5 * T * g * g)
    return Bound({"exponential": value}, ENSEMBLE_LOSS, f"{ADABOOST}, weak learning", weak)


def smoothing_error(vertices: int, smoothing: float) -> Bound:
    """Return log(p)/mu, the bound of F_mu - F for p vertices of Lambda.

    Examples
    --------
    >>> from fedconvex.theory.boosting import smoothing_error
    >>> round(smoothing_error(2, 10.0).value, 6)
    0.069315
    """
    p, mu = whole("smoothing_error: vertices", vertices, low=1), real("smoothing_error: mu", smoothing, low=0.0)
    value = math.log(p) / real("smoothing_error: mu", mu, low=0.0, strict=True)
    return Bound({"log(p)/mu": value}, SMOOTHING_ERROR, "log-sum-exp (docs/theory/boosting.md)")


def gradient_remainder(values: Any, step: float, loss: Any = None) -> Bound:
    """Return the bound of how far F_k(alpha + h e) is from F_k(alpha) + h dF_k, for all domains and coordinates.

    Parameters
    ----------
    values : array (p,)
        F_k(alpha).
    step : float
        h, positive.
    loss : Exponential or Logistic2
        Default Exponential.

    Examples
    --------
    >>> from fedconvex.theory.boosting import gradient_remainder
    >>> round(gradient_remainder([1.0, 0.5], 0.1).value, 6)
    0.005526
    """
    F, h = numeric("gradient_remainder: values", values), real("gradient_remainder: step", step, low=0.0, strict=True)
    bend = traits(Exponential() if loss is None else loss).curvature_below(math.exp(h) * float(F.max()))
    return Bound({"curvature": 0.5 * h * h * bend}, TAYLOR_REMAINDER, f"{ALGORITHM}, gradient identity")


# ---------------------------------------------------------------- why Q


class TwoPoints(NamedTuple):
    """The example of two domains on two points, and the least error of each kind of ensemble on their mixture."""

    ensemble: EnsembleProblem  # Q(l|a_l) = 1
    plain: EnsembleProblem  # constant Q
    q_error: float
    convex_error: float


def two_points() -> TwoPoints:
    """Return the example: h_1 is right on a_1 only, h_2 on a_2 only.

    The score of beta h_1 + (1 - beta) h_2 is 2 beta - 1 on a_1 and 1 - 2 beta on a_2: for no beta are both positive, so
    the error on the half-half mixture is at least 1/2. With Q(l|a_l) = 1 it is 0.

    Examples
    --------
    >>> from fedconvex.theory.boosting import two_points
    >>> example = two_points()
    >>> example.q_error, example.convex_error
    (0.0, 0.5)
    """
    fed = Federation.from_arrays([[1.0], [2.0]], [1.0, 1.0], clients=[1, 2], domains=[1, 2])
    h = Dictionary([[1.0, -1.0], [-1.0, 1.0]], [0, 1])
    ensemble, plain = EnsembleProblem(fed, h, np.eye(2)), EnsembleProblem(fed, h)
    # the error is constant for beta < 1/2, at 1/2 and beyond: three values decide
    errors = [plain.domain_errors(np.array([b, 1.0 - b])).mean() for b in (0.25, 0.5, 0.75)]
    return TwoPoints(ensemble, plain, float(ensemble.domain_errors(np.ones(2)).mean()), float(min(errors)))


# ---------------------------------------------------------------- margins


def margin_losses(margins: Any, bounds: Any, rho: float) -> np.ndarray:
    """Return the mean of Phi_rho(y f) over every domain, (p,), from margins of rows sorted by domain.

    Parameters
    ----------
    margins : array (n,)
        y f(x) of an ensemble with sum alpha = 1 (divide by the sum).
    bounds : int array (p+1,)
        Rows bounds[k]:bounds[k+1] belong to domain k.
    rho : float
        Positive.

    Examples
    --------
    >>> from fedconvex.theory.boosting import margin_losses
    >>> margin_losses([0.5, 0.1, -0.2], [0, 2, 3], rho=0.2)
    array([0.25, 1.  ])
    """
    m, b = numeric("margin_losses: margins", margins), np.asarray(bounds)
    r = real("margin_losses: rho", rho, low=0.0, strict=True)
    return np.add.reduceat(np.clip(1.0 - m / r, 0.0, 1.0), b[:-1]) / np.diff(b)


def margin_bound(
    empirical: float, complexity: float, skew: float, *, rho: float, rows: int, cover: int, eps: float, delta: float
) -> Bound:
    """Return the margin bound by an eps-cover of Lambda.

    Parameters
    ----------
    empirical : float
        Largest over Lambda of the mixture of `margin_losses`.
    complexity, skew : float
        Largest over Lambda of R(union of Q_l H_l, lambda), see `stump_complexity`, and of the skewness.
    rho : float
        Margin, fixed in advance.
    rows, cover, eps, delta
        As for `fedconvex.theory.agnostic_generalisation.cover_bound`.

    Examples
    --------
    >>> from fedconvex.theory.boosting import margin_bound
    >>> round(margin_bound(0.1, 0.01, 2.0, rho=0.5, rows=10_000, cover=101, eps=0.01, delta=0.05).value, 4)
    0.1776
    """
    r = real("margin_bound: rho", rho, low=0.0, strict=True)
    found = cover_bound(empirical, complexity / r, skew, rows=rows, cover=cover, eps=eps, delta=delta)
    return replace(found, source=f"{SOURCE}, margin form")


def margin_vertex_bound(empirical: Any, complexity: Any, sizes: Any, *, rho: float, delta: float) -> Bound:
    """Return the margin bound on the whole simplex by its vertices, without a cover.

    Parameters
    ----------
    empirical, complexity, sizes : array (p,)
        `margin_losses`, R(union of Q_l H_l) at every vertex, and m_k.
    rho, delta : float

    Examples
    --------
    >>> from fedconvex.theory.boosting import margin_vertex_bound
    >>> round(margin_vertex_bound([0.1, 0.2], [0.01, 0.015], [5000, 5000], rho=0.5, delta=0.05).value, 4)
    0.2792
    """
    r = real("margin_vertex_bound: rho", rho, low=0.0, strict=True)
    found = vertex_bound(empirical, numeric("complexity", complexity) / r, sizes, delta=delta)
    return replace(found, source=f"{SOURCE}, margin form by vertices (docs/theory/boosting.md)")


def stump_complexity(
    X: Any, q: Any, domain: Any, domain_weights: Any, *, signs: int = 100, seed: int = 0
) -> Complexity:
    """Return R(union of Q_l H_l, lambda) for all stumps: every sign vector's supremum is found exactly.

    Parameters
    ----------
    X : array (n, d)
    q : array (n, p)
        Q(l|x_i).
    domain : int array (n,)
        Domain of every row, 0, ..., p-1.
    domain_weights : array (p,)
        lambda.
    signs : int
        Random sign vectors.
    seed : int

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theory.boosting import stump_complexity
    >>> stump_complexity([[0.0], [1.0]], np.ones((2, 1)), [0, 0], [1.0], signs=8).value  # two rows: all signs fit
    1.0
    """
    table, Q, code = Presorted(X), numeric("stump_complexity: q", q), np.asarray(domain)
    n, count = table.columns.shape[1], whole("stump_complexity: signs", signs, low=2)
    lam = numeric("stump_complexity: domain_weights", domain_weights)
    if code.shape != (n,) or code.dtype.kind not in "iu" or Q.shape[:1] != (n,) or Q.ndim != 2:
        raise bad("stump_complexity", "be given one domain and one row of q per row of X", f"{code.shape}, {Q.shape}")
    sizes = np.bincount(code, minlength=lam.size)
    if lam.ndim != 1 or sizes.size != lam.size or sizes.min() == 0:
        raise bad("stump_complexity: domain_weights", "have one entry per domain, each with rows", f"{lam}")
    weight = (lam / sizes)[code]
    rng = np.random.default_rng(int(key_from_seed(seed)))
    tops = np.empty(count)
    for s in range(count):
        sigma = rng.choice([-1.0, 1.0], size=n) * weight
        tops[s] = max(edge for _, edge in table.search_many(np.ascontiguousarray((sigma[:, None] * Q).T)))
    return Complexity(float(tops.mean()), float(tops.std(ddof=1) / math.sqrt(count)), count)
