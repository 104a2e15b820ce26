"""The mean of clients' estimates by their full informations: of second order near the pooled estimate."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fedconvex import datasets
from fedconvex.losses import Poisson
from fedconvex.methods import FederatedNewton
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.environments import at_rounds, last_state
from fedconvex.theory.bound import PrecisionError

__all__ = ["STATEMENT", "THEOREMS", "weighted_estimates"]

NAME, SOURCE = "weighted-estimates", "fedconvex, docs/theory/weighted_estimates.md"
DISTANCE = Quantity("‖b_GLS - w_T‖_J, J = sum J_k", "distance in the metric of J", least=0.0)

STATEMENT = Statement(
    page="weighted_estimates",
    title="One-shot estimates: weighted by full informations",
    scope=Scope(holds("J_k is the weighted Hessian"), not_for("not derived"), not_for("estimates would be biased")),
    setting="""
F = sum p_k f_k. Client k solves its own problem, b_k = argmin f_k, J_k = p_k hess f_k(b_k), and sends both. The server
takes b_GLS = J^{-1} sum J_k b_k, J = sum J_k.
""",
    assumptions="""
|l'''| <= c l'' for the loss of a row, as a function of its score; l2 >= 0; every b_k is attained, and J > 0.
""",
    statement="""
For every w, with d_k = c max_i |x_i'(b_k - w)| over the rows of client k and e(d) = (exp(d) - 1 - d)/d:

    ‖b_GLS - w‖_J <= (sum_k (e(d_k) ‖b_k - w‖_{J_k})^2)^(1/2) + ‖grad F(w)‖_{J^{-1}},    ‖v‖_A = (v'A v)^(1/2).

At the pooled estimate the last term is zero, and e(d) = d/2 + ...: the distance is of second order in b_k - w. With
squared loss c = 0, and b_GLS is the pooled estimate.
""",
    source="""
Derived here. The estimator: Zhu, Li, Wang, "Least squares approximation for a distributed system", J. Comput. Graph.
Stat. 30 (2021). Bounds of Hessians by exp(d): Sun, Tran-Dinh, Math. Program. 178 (2019), nu = 2.
""",
    differs="""
Zhu et al. show that both estimates have the same limit law where sites have many rows. This is a bound for the rows
at hand, without any model of them.
""",
    meaning="""
One round of p(p + 3)/2 numbers of each client brings the pooled estimate but for a term of second order: in units of
standard errors it falls like the inverse root of a client's rows (experiment `one-shot`). The mean of each coefficient
by itself has an error of first order, unless clients have proportional J_k.
""",
    proof="""
grad f_k(b_k) = 0, hence p_k grad f_k(w) = H_k (w - b_k), H_k the mean of p_k hess f_k over the segment from b_k to w.
Sum over k: grad F(w) = sum H_k (w - b_k). So

    J (b_GLS - w) = sum J_k (b_k - w) = sum (J_k - H_k)(b_k - w) - grad F(w).

Along the segment scores of client k move by at most t d_k/c, and l'' changes by a factor between exp(-t d_k) and
exp(t d_k), because (log l'')' <= c; so does p_k hess f_k, to which l2 adds a constant. Integrated over t,
-e(d_k) J_k <= J_k - H_k <= e(d_k) J_k, where the lower end has (exp(d) - 1)/d - 1 = e(d), and the upper
1 - (1 - exp(-d))/d <= e(d). For ‖v‖_J = 1: v'(J_k - H_k)(b_k - w) <= e(d_k) ‖v‖_{J_k} ‖b_k - w‖_{J_k}, and the sum over
k is at most (sum (e(d_k) ‖b_k - w‖_{J_k})^2)^(1/2) by Cauchy and Schwarz, because sum ‖v‖_{J_k}^2 = 1.
""",
    loose="""
Attained in the limit by two clients with equal J_k and counts of Poisson's loss just above and just below each other.
Elsewhere errors of clients partly cancel. `tests/test_inference_theorems.py` plants half of e(d).
""",
)


def weighted_estimates(moves: Any, lengths: Any, slope: float) -> Bound:
    """Return the bound of ‖b_GLS - w‖_J.

    Parameters
    ----------
    moves : array (K,)
        d_k = c max_i |x_i'(b_k - w)|.
    lengths : array (K,)
        ‖b_k - w‖_{J_k}.
    slope : float
        ‖grad F(w)‖_{J^{-1}}.

    Raises
    ------
    ValueError, TypeError
        If slope is negative, or moves and lengths are not numbers of at least 0, one of each per client.
    PrecisionError
        If exp(d_k) overflows.

    Examples
    --------
    >>> from fedconvex.theorems.weighted_estimates import weighted_estimates
    >>> weighted_estimates([0.0, 0.0], [3.0, 4.0], 0.0).value  # squared loss
    0.0
    >>> round(weighted_estimates([1e-3, 1e-3], [3.0, 4.0], 0.0).value, 7)  # d/2 of 5
    0.0025008
    """
    d, a = vector("weighted_estimates: moves", moves), vector("weighted_estimates: lengths", lengths)
    slope = real("weighted_estimates: slope", slope, low=0.0)
    if d.shape != a.shape or (d < 0.0).any() or (a < 0.0).any():
        raise bad("weighted_estimates: moves and lengths", "be numbers >= 0 of the same clients", f"{d} and {a}")
    with np.errstate(over="ignore", invalid="ignore"):
        small = d * (0.5 + d / 6.0 + d**2 / 24.0 + d**3 / 120.0)
        share = np.where(d < 1e-2, small, (np.expm1(d) - d) / np.where(d > 0.0, d, 1.0))
        spread = float(np.sqrt(np.sum((share * a) ** 2)))
    if not np.isfinite(spread):
        raise PrecisionError(f"{NAME} is not decided: needs exp(d_k) that is a number, got d_k = {d.max():g}")
    return Bound({"spread": spread, "gradient": slope}, DISTANCE, SOURCE)


# ---------------------------------------------------------------- read off a setting


class Estimates(NamedTuple):
    """What clients send."""

    b: np.ndarray  # (K, p) flat
    g: np.ndarray  # (p,) what is left of sum p_k grad f_k(b_k)
    J: np.ndarray  # (K, p, p) p_k hess f_k(b_k)


@lru_cache(maxsize=32)
def _estimates(problem: Any) -> Estimates:
    """Return the clients' own minimisers and informations."""
    fed, b = problem.federation, []
    for k in range(fed.K):
        best = Problem(fed.subset([k]), problem.loss, problem.l2).solve()
        at = Hypothesis(f"a minimiser of client {fed.labels[k]}", best.certificate, bool(best.attained))
        require(NAME, at)
        b.append(np.asarray(best.w))
    found = problem.client_derivatives(np.stack(b), np.arange(fed.K)[:, None])
    p = problem.weights
    return Estimates(np.stack(b), p @ found.gradients[:, 0], p[:, None, None] * found.hessians[:, 0])


def _setting(s: Setting) -> tuple[Estimates, np.ndarray, np.ndarray, tuple[Hypothesis, ...]]:
    """Return what clients send, J^{-1}, w_T, and the hypotheses."""
    problem = s.problem
    is_method(NAME, s.method, FederatedNewton)
    stationary(NAME, problem)
    c = traits(problem.loss).self_concordance
    flat = Hypothesis("one score of a row", f"models of shape {problem.model_shape}", len(problem.model_shape) == 1)
    concordant = Hypothesis("|l'''| <= c l''", f"c = {c:g}, {problem.loss!r}", bool(np.isfinite(c)))
    require(NAME, flat, concordant)
    sent = _estimates(problem)
    lam, V = np.linalg.eigh(sent.J.sum(axis=0))
    definite = Hypothesis("J > 0", f"least eigenvalue {lam[0]:.4g}", bool(lam[0] > 1e-10 * lam[-1]))
    checked = (flat, concordant, *require(NAME, definite))
    w = last_state(s)
    if not np.isfinite(w).all():
        raise PrecisionError(f"{NAME} is not decided: needs a model that is a number, got w_T = {w}")
    return sent, (V / lam) @ V.T, w, checked


def _read(s: Setting) -> Reading:
    sent, inverse, w, checked = _setting(s)
    fed, away = s.problem.federation, sent.b - w
    c, scores = traits(s.problem.loss).self_concordance, np.asarray(fed.X @ away.T)
    parts = [slice(low, high) for low, high in zip(fed.ptr[:-1], fed.ptr[1:], strict=True)]
    moves = [c * float(np.abs(scores[part, k]).max()) for k, part in enumerate(parts)]
    lengths = np.sqrt(np.einsum("ki,kij,kj->k", away, sent.J, away))
    g = np.asarray(s.problem.gradient(w))
    slope = float(np.sqrt(g @ inverse @ g))
    return Reading({"moves": np.array(moves), "lengths": lengths, "slope": slope}, checked)


def _distance(s: Setting, w: np.ndarray) -> float:
    sent, inverse, _, _ = _setting(s)
    away = inverse @ np.einsum("kij,kj->i", sent.J, sent.b - w)
    return float(np.sqrt(away @ sent.J.sum(axis=0) @ away))


def _rounding(s: Setting, w: np.ndarray) -> float:
    """Gradients that are left at the b_k, and the rounding of all gradients, in the metric of J^{-1}."""
    sent, inverse, _, _ = _setting(s)
    p = s.problem.weights
    left = float(np.linalg.norm(sent.g)) + 2.0 * float(p @ gradient_rounding(s.problem, w))
    size = float(np.sqrt(np.einsum("ki,kij,kj->", sent.b, sent.J, sent.b) + w @ sent.J.sum(axis=0) @ w))
    return left * float(np.sqrt(np.linalg.eigvalsh(inverse)[-1])) + UNIT * w.size * size


@example("two counts, nearly alike", "two clients, Poisson's loss, mean counts 0.98 and 1.02")
def two_counts() -> Problem:
    """b_k = log of the mean count, J_k equal to the second order: the bound is nearly attained."""
    rows = [(np.ones((2, 1)), np.array([0.96, 1.0])), (np.ones((2, 1)), np.array([1.0, 1.04]))]
    return Problem(Federation.from_clients(rows), Poisson())


@example("counts apart", "five clients, Poisson's loss, models that differ")
def counts_apart() -> Problem:
    """Forty rows each."""
    rng = np.random.default_rng(0)
    rows = []
    for k in range(5):
        X = np.column_stack([np.ones(40), 0.5 * rng.normal(size=(40, 2))])
        rows.append((X, rng.poisson(np.exp(X @ np.array([0.5 + 0.1 * k, 0.3, -0.2]))).astype(float)))
    return Problem(Federation.from_clients(rows), Poisson())


@example("large sites, logistic", "6 clients of 400 rows, logistic loss")
def _large_sites() -> Problem:
    """Of one distribution."""
    return Problem(datasets.logistic_federation(6, 3, 400, seed=0).federation, Logistic())


def _newton() -> MethodRule:
    return given(FederatedNewton)


THEOREMS = (
    Theorem(
        name=NAME,
        title="One-shot estimates by full informations",
        quantity=DISTANCE,
        bound=weighted_estimates,
        read=_read,
        exact=at_rounds(_distance, _rounding),
        constants=lambda s: {
            "clients": (float(s.problem.federation.K), "given"),
            "c": (traits(s.problem.loss).self_concordance, "declared by the loss"),
        },
        statement=STATEMENT,
        says="The mean of clients' estimates, weighted by their Hessians, is of second order near the pooled estimate.",
        loose="Attained in the limit by two alike clients; elsewhere errors of clients partly cancel.",
        method=_newton(),
        rounds=8,
        space=Space(lambda k: _newton(), {}, losses=("logistic", "logistic", "squared"), rounds=(1, 8)),
        checks=(
            two_counts,
            counts_apart,
            _large_sites,
            shifted_logistic,
            uneven_logistic,
            breast_cancer_two,
            Check(unequal_hessians, rounds=1),  # an equation
            Check(counts_apart, rounds=2),
            Check(counts_apart, rounds=3),
            noisy_kinks[1],
        ),
    ),
)
