"""The exact agnostic solution min_w max_{lambda in Lambda} sum_k lambda_k F_k(w), with a certificate.

Polytopes (the simplex is one): sequential quadratic programming. At (w, lambda), with values F, gradients J (p, size)
and H the Hessian of sum lambda_k F_k, the step s and the new weights lambda solve

    min_s max_lambda  lambda'(F + J s) + s'H s/2,   that is   max_lambda lambda'F - ‖J'lambda‖^2_{H^-1}/2,
    s = -H^-1 J'lambda.

h(w) = max_lambda lambda'F(w) decreases along s. Where curvature makes the full step fall by less than it should
(Maratos), lambda is solved for again with the values found at w + s. While steps gain much on each other, H is kept,
with BFGS updates. Where rows are many, the first w and lambda are the solution of an eighth of them.

Kullback-Leibler balls: if the simplex's solution has its weights in the ball, it is the ball's solution. Elsewhere h is
smooth: h = phi(F), phi(F) = min_nu nu radius + nu log sum_k c_k exp(F_k/nu), with gradient lambda and, for
C = (diag(lambda) - lambda lambda')/nu, Hessian C - (C F)(C F)'/(F'C F). Newton's method. The softmax objective
(1/mu) log sum_k exp(mu F_k), with C = mu (diag(q) - q q'), takes the same way.

Certificate: h(w) is an upper bound of the minimax value; for any lambda in Lambda, a certified lower bound of
min_w sum lambda_k F_k(w) is a lower one (plus the entropy of lambda over mu, for the softmax objective).
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from fedconvex._check import array, bad, instance, real
from fedconvex.federation import Federation
from fedconvex.kernels.domain_sums import domain_counts
from fedconvex.simplex.uncertainty import KLBall, Simplex, check_set, log_sum_exp
from fedconvex.solvers.certificates.factor import Factor
from fedconvex.solvers.certificates.free_coordinates import convexity_gap
from fedconvex.solvers.certificates.gaps import (
    ContradictedCertificate,
    UncertifiableError,
    contradiction,
    gaps_above,
    lower_at,
)
from fedconvex.solvers.certificates.slopes import EPS
from fedconvex.solvers.choice import DIRECT
from fedconvex.solvers.minimax.envelopes import MAX_ITERATIONS, newton, over_ball, softmax_envelope, values_gradients
from fedconvex.solvers.minimax.updates import updated
from fedconvex.solvers.objective import Objective
from fedconvex.solvers.smooth.newton import polish
from fedconvex.solvers.solution import DIRECT_SIZE, above

_CHORD = 0.05  # a factored Hessian is kept, and updated, for as long as steps with it gain so much on each other
_CUT = 0.1  # a share of a step, below which its model was wrong


@dataclass(frozen=True)
class Minimax:
    """A saddle point with its certificate: the minimax value lies in [lower, value].

    Attributes
    ----------
    w : array, the model's shape
    domain_weights : array (p,)
        lambda*, the least favourable domain weights in Lambda.
    value : float
        max over Lambda of lambda'F(w), or the softmax objective.
    lower : float
        Certified lower bound of the least value.
    domain_values : array (p,)
        F_k(w).
    certificate : str
        Where the lower bound comes from.
    iterations : int
        Steps, of which the first and those that gained little on the one before formed a Hessian.
    seconds : float
    lower_within, reach : float
        A certified lower bound over models of bounded reach, as of a `Solution`.
    rounding : float
        How far the computed ``value`` may be off: part of the gaps.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> fed = Federation.from_arrays([[1.0], [1.0]], [0.0, 2.0], clients=[0, 1], domains=[0, 1])
    >>> best = Problem(fed, Squared()).solve_minimax()
    >>> best.w, best.domain_weights, best.domain_values, bool(best.gap < 1e-9)
    (array([1.]), array([0.5, 0.5]), array([0.5, 0.5]), True)
    """

    w: np.ndarray
    domain_weights: np.ndarray
    value: float
    lower: float
    domain_values: np.ndarray
    certificate: str
    iterations: int
    seconds: float
    lower_within: float
    reach: float
    rounding: float

    def __post_init__(self) -> None:
        for a in (self.w, self.domain_weights, self.domain_values):
            a.flags.writeable = False

    @property
    def gap(self) -> float:
        """Certified bound of the value at w minus the least value."""
        return above(self.value, self.lower, self.rounding)

    @property
    def gap_within(self) -> float:
        """Certified bound of the value at w minus that of any model of reach at most ``reach``."""
        return above(self.value, self.lower_within, self.rounding)


def solve_minimax(
    problem: Objective, tol: float = 1e-10, uncertainty_set: Any = None, start: np.ndarray | None = None
) -> Minimax:
    """Return the minimiser of max over lambda in Lambda of sum lambda_k F_k(w) over the domains, certified.

    Parameters
    ----------
    problem : Objective
        Its domains; its clients where the federation has none.
    tol : float
        The certified gap that is asked for, times 1 + |value|; a warning says where it is missed.
    uncertainty_set : set of `fedconvex.simplex.uncertainty`, optional
        Lambda; default the simplex.
    start : array (size,), optional
        A flat model to begin at; default zero.

    Raises
    ------
    ValueError
        Beyond 3,000 parameters, or if Lambda holds weights of another length.
    TypeError
        For a loss without a curvature (the hinge).

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.simplex.uncertainty import Polytope
    >>> from fedconvex.solvers.minimax.agnostic import solve_minimax
    >>> fed = Federation.from_arrays([[1.0], [1.0]], [0.0, 2.0], clients=[0, 1], domains=[0, 1])
    >>> best = solve_minimax(Problem(fed, Squared()), uncertainty_set=Polytope([[0.0, 1.0]], [0.25]))
    >>> best.w, best.domain_weights
    (array([0.5]), array([0.75, 0.25]))
    """
    instance("solve_minimax: problem", problem, Objective)
    who, sets = "Problem.solve_minimax", Simplex() if uncertainty_set is None else uncertainty_set
    domains, tol, begin = _prepared(who, problem, tol)
    check_set(who, sets, domains.federation.K)
    polytope: Any = Simplex() if isinstance(sets, KLBall) else sets
    begin_at = _from_some_rows(domains, polytope) if start is None else (_start(who, domains, start), None)
    w, mix, iterations = saddle_point(domains, polytope, *begin_at)
    if isinstance(sets, KLBall) and not (sets.contains(mix, 1e-12) and _inside(mix, sets)):
        w, mix, more = over_ball(domains, sets, w)
        iterations += more
    F = domains.client_values(domains.unflatten(w))
    return _certified(who, domains, w, F, mix, float(sets.support(F)[0]), 0.0, iterations, tol, begin)


def solve_softmax(problem: Objective, mu: float, tol: float = 1e-10) -> Minimax:
    """Return the minimiser of (1/mu) log sum_k exp(mu F_k(w)) over the domains, certified.

    The objective lies between max_k F_k and max_k F_k + log(p)/mu.

    Parameters
    ----------
    problem, tol
        As for `solve_minimax`.
    mu : float
        Positive.

    Raises
    ------
    ValueError
        As for `solve_minimax`.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.solvers.minimax.agnostic import solve_softmax
    >>> fed = Federation.from_arrays([[1.0], [1.0]], [0.0, 2.0], clients=[0, 1], domains=[0, 1])
    >>> best = solve_softmax(Problem(fed, Squared()), mu=2.0)
    >>> best.w, round(best.value, 6)  # 1/2 + log(2)/2
    (array([1.]), 0.846574)
    """
    instance("solve_softmax: problem", problem, Objective)
    who, m = "solve_softmax", real("solve_softmax: mu", mu, low=0.0, strict=True)
    domains, tol, begin = _prepared(who, problem, tol)
    w, q, iterations = newton(domains, lambda F: softmax_envelope(F, m), np.zeros(domains.size))
    F = domains.client_values(domains.unflatten(w))
    return _certified(who, domains, w, F, q, float(log_sum_exp(F, m)), entropy(q) / m, iterations, tol, begin)


def _prepared(who: str, problem: Objective, tol: float) -> tuple[Objective, float, float]:
    tol = real(f"{who}: tol", tol, low=0.0)
    problem.need_curvature(who)
    if not _certifiable(problem):
        cure, must = "pass a small l2, for example 1e-6", "have l2 > 0 (without it nothing certifies the optimum)"
        raise UncertifiableError(str(bad(f"{who} with {problem.loss!r}", must, "l2 = 0", cure)))
    if not DIRECT.met(problem):
        raise bad(who, f"have at most {DIRECT_SIZE} parameters", problem.size)
    domain_counts(problem.federation)
    return problem.by_domain, tol, time.perf_counter()


def _certifiable(problem: Objective) -> bool:
    return problem.strong_convexity > 0.0 or math.isfinite(problem.traits.self_concordance)


def _inside(mix: np.ndarray, ball: KLBall) -> bool:
    """Whether the divergence is at most the radius, to the digits that are left of a small one."""
    from fedconvex.simplex.kl import divergence

    return divergence(mix, np.array(ball.center)) <= (1.0 + 1e-12) * ball.radius


def _start(who: str, domains: Objective, start: Any) -> np.ndarray:
    """Return a flat model of finite values that was given."""
    start = array(f"{who}: start", start, (domains.size,))
    if not np.isfinite(domains.client_values(domains.unflatten(start))).all():
        raise bad(f"{who}: start", "be a model of finite values", "overflow in some domain", "start nearer to zero")
    return start


def _from_some_rows(domains: Objective, sets: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the model and weights of an eighth of the rows; (None, None) where rows are few, or weigh nothing."""
    enough = domains.federation.sizes.min() >= 4 * 8 * domains.size and domains.strong_convexity > 0.0
    if not enough or domains.traits.quadratic or not domains.row_weight_range[0] > 0.0:
        return None, None
    w, mix, _ = saddle_point(domains.thinned(8), sets, accuracy=1e-2)
    return (w, mix) if np.isfinite(domains.client_values(domains.unflatten(w))).all() else (None, None)


# ---------------------------------------------------------------- sequential quadratic programming


def saddle_point(
    domains: Objective,
    sets: Any,
    w: np.ndarray | None = None,
    mix: np.ndarray | None = None,
    accuracy: float = 0.0,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return flat model, domain weights and iterations for a polytope of weights, without a certificate.

    Parameters
    ----------
    domains : Objective
        Its clients are the domains.
    sets : Simplex or Polytope
    w, mix : array (size,), array (p,), optional
        Where to begin, such as the pair for another l2; default zero and the centre of the set.
    accuracy : float
        Stop where the quadratic model sees no more than this, times 1 + |value|, to gain; default rounding.
    """
    w = np.zeros(domains.size) if w is None else w
    near = mix  # weights of few domains
    mix = sets.start(domains.federation.K) if mix is None else mix
    F, J = values_gradients(domains, w)
    iterations, before = 0, math.inf
    factor: Any = None
    share, high = 0.0, 0  # how much the Hessian takes of domain `high`, for which steps were too long
    for iterations in range(1, MAX_ITERATIONS + 1):  # noqa: B007
        noise = 4e-15 * (1.0 + abs(float(F.max())))
        found = None if factor is None else _model(factor, sets, F, J, near)
        if found is None or not found[2] <= _CHORD * before:
            weighted = domains.reweighted((1.0 - share) * mix + share * (np.arange(mix.size) == high))
            factor = Factor(weighted, w, weighted.flat_hessian(w), False)
            found = _model(factor, sets, F, J, near)
        mix, step, predicted = found
        if not predicted > accuracy * (1.0 + abs(float(F.max()))) or 0.5 * before < predicted <= 1e3 * noise:
            break  # nothing is left to gain, or the last step has gained rounding only
        w_new, F_new, J_new = _search(domains, sets, factor, w, F, J, mix, step, predicted, noise)
        if w_new is None:
            break
        if np.linalg.norm(w_new - w) < _CUT * np.linalg.norm(step):  # a domain of little weight bends more than H
            high, share = _highest(domains, w + step), min(max(10.0 * share, 1e-3), 0.5)
            factor = None
        elif share > 0.0:
            share, factor = 0.1 * share * (share > 1e-6), None
        if factor is not None:
            factor = updated(factor, w_new - w, mix @ (J_new - J))
        w, F, J, before, near = w_new, F_new, J_new, predicted, mix
        if predicted <= noise:  # the step has led to where rounding begins
            break
    return w, mix, iterations


def _highest(domains: Objective, w: np.ndarray) -> int:
    """Return the domain with the largest value at a flat model."""
    F = domains.client_values(domains.unflatten(w))
    return int(np.argmax(np.where(np.isnan(F), math.inf, F)))


def _model(
    factor: Factor, sets: Any, F: np.ndarray, J: np.ndarray, near: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return domain weights, sought from ``near``, the step, and how far the model's saddle value lies below h."""
    Z, below = factor.whiten(J), sets.support(F)[0] - F
    mix = sets.minimise(Z, below, near)
    half = mix @ Z
    return mix, -factor.solve(mix @ J), float(mix @ below + 0.5 * half @ half)


def _search(
    domains: Objective, sets: Any, factor: Factor, w: np.ndarray, F: np.ndarray, J: np.ndarray, mix: np.ndarray,
    step: np.ndarray, predicted: float, noise: float,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Return a new point, its values and their gradients, or (None, None, None) if no step lowers h."""
    top = float(sets.support(F)[0])
    slack = 0.25 * noise if predicted <= noise else noise if predicted <= 1e3 * noise else -1e-4 * predicted
    corrected = step
    for _ in range(3):
        trial = w + corrected
        F_new, J_new = values_gradients(domains, trial)  # most steps are taken
        if not np.isfinite(F_new).all():
            break
        if sets.support(F_new)[0] <= top + slack:
            return trial, F_new, J_new
        corrected = _model(factor, sets, F_new - J @ corrected, J, mix)[1]  # second-order correction
    t = 0.5
    while t > 1e-10 and t * predicted > noise:
        F_new, J_new = values_gradients(domains, w + t * step)
        if np.isfinite(F_new).all() and sets.support(F_new)[0] <= top - 1e-4 * t * predicted:
            return w + t * step, F_new, J_new
        t *= 0.5
    return None, None, None


def entropy(domain_weights: np.ndarray) -> float:
    """-sum lambda_k log lambda_k."""
    on = domain_weights[domain_weights > 0.0]
    return float(-(on @ np.log(on)))


# ---------------------------------------------------------------- certificates


def _certified(
    who: str, domains: Objective, w: np.ndarray, F: np.ndarray, domain_weights: np.ndarray, value: float, bonus: float,
    iterations: int, tol: float, begin: float,
) -> Minimax:  # fmt: skip
    """Bound the least value from below by the minimum for the domain weights, plus a bonus."""
    dual = polish(domains.reweighted(domain_weights), w)
    bound = dual.lower_within + bonus
    off = domains.rounding(w, float(np.abs(F).max())) + 4.0 * EPS * bonus
    rounding = 2.0 * off
    lower, within = (min(b + bonus, value) - rounding for b in (dual.lower, dual.lower_within))
    if domains.reach(w) <= dual.reach and bound - value > rounding + 1e-14 * (1.0 + bonus):
        contradiction(who, domains, value, bound, 4)
        lower = within = -math.inf
    text = f"minimum for the domain weights: {dual.certificate}"
    seconds = time.perf_counter() - begin
    if value - within > tol * (1.0 + abs(value)):
        text_ = f"{who}: the certified gap is {value - within:.2g}, more than tol = {tol:g} asks for"
        warnings.warn(
            f"{text_}: the domains' values or l2 leave no better certificate in double precision", stacklevel=4
        )
    w = domains.unflatten(w)
    return Minimax(w, domain_weights, value, lower, F, text, iterations, seconds, within, dual.reach, off)


# ---------------------------------------------------------------- measuring runs


class _Known(NamedTuple):
    lower: float
    lower_within: float
    reach: float


_SOLVED: WeakKeyDictionary[Federation, dict[Any, _Known]] = WeakKeyDictionary()


def measure_minimax(
    problem: Objective,
    uncertainty_set: Any,
    w: np.ndarray,
    domain_weights: np.ndarray | None = None,
    radius: float = math.inf,
) -> tuple[np.ndarray, np.ndarray]:
    """Return h(w) = max over Lambda of lambda'F(w) at R models, and certified upper bounds of h(w) - min h, (R,) each.

    The minimum is over ‖w‖ <= radius. Its lower bound is the exact solution's, without the ball, where the problem is
    small enough (2,000 parameters) and the loss has a curvature; with a ball, or elsewhere, also the least value
    over the ball of L(w, lambda) + <g, . - w> + (l2/2)‖. - w‖^2 at the weights given, g the gradient of L(., lambda).
    """
    if hasattr(problem, "measure_minimax"):  # whose rows are elsewhere
        return problem.measure_minimax(uncertainty_set, w, domain_weights)
    domains = problem.by_domain
    W = domains.flatten(w)[0]
    F = domains.client_values(domains.unflatten(W))
    value = largest_values(uncertainty_set, F)
    known = _known(problem, uncertainty_set, lambda: solve_minimax(problem, 1e-10, uncertainty_set))
    lower = lower_at(domains, known, W)
    off = _off(domains, W, F)
    gap = gaps_above("measure_minimax", domains, value, lower, off)
    if domain_weights is not None and (math.isfinite(radius) or lower.min() <= 0.0):
        with np.errstate(over="ignore", invalid="ignore"):  # what has diverged has no bound
            ball = [_ball_minimum(domains, v, m, radius) for v, m in zip(W, domain_weights, strict=True)]
        lower = np.fmax(lower, ball)
    return value, np.where(np.isinf(gap), gap, np.maximum(value - lower, 0.0) + off)


def largest_values(uncertainty_set: Any, F: np.ndarray) -> np.ndarray:
    """Return max <F, lambda> of rows F (R, p), (R,): infinite for those of runs that diverged."""
    value = np.full(len(F), np.inf)
    if (near := np.abs(F).max(axis=1) < 1e150).any():
        value[near] = uncertainty_set.support(F[near])[0]
    return value


def _off(domains: Objective, W: np.ndarray, F: np.ndarray) -> np.ndarray:
    """Return how far the computed values F (R, p) at W may be from the true ones, (R,)."""
    return domains.roundings(W, np.abs(F).max(axis=1))


def measure_softmax(problem: Objective, mu: float, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the softmax objective at R models, and certified upper bounds of its suboptimality, (R,) each."""
    if hasattr(problem, "measure_softmax"):  # whose rows are elsewhere
        return problem.measure_softmax(mu, w)
    domains = problem.by_domain
    W = domains.flatten(w)[0]
    F = domains.client_values(domains.unflatten(W))
    value = np.asarray(log_sum_exp(F, mu))
    lower = lower_at(domains, _known(problem, ("softmax", mu), lambda: solve_softmax(problem, mu)), W)
    few = 8.0 * EPS * (F.shape[1] + 2) * math.log(F.shape[1]) / mu
    return value, gaps_above("measure_softmax", domains, value, lower, _off(domains, W, F) + few)


def _known(problem: Objective, what: Any, solution: Any) -> _Known:
    """Return the lower bounds of a solution, kept; that of the loss itself where the problem is not solved."""
    least = problem.traits.lower_bound
    if not (problem.traits.curved and _certifiable(problem)) or problem.size > 2000:
        return _Known(least, least, math.inf)
    kept = _SOLVED.setdefault(problem.federation, {})
    name = (what, problem.loss, problem.l2, None if problem.free is None else problem.free.tobytes())
    if name not in kept:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the gap says it
            warnings.simplefilter("always", ContradictedCertificate)
            best = solution()
            kept[name] = _Known(max(best.lower, least), max(best.lower_within, least), best.reach)
    return kept[name]


def _ball_minimum(domains: Objective, w: np.ndarray, domain_weights: np.ndarray, radius: float) -> float:
    """Least value over ‖v‖ <= radius of L + <g, v - w> + (l2/2)‖v - w‖^2, at most that of L(., lambda) by convexity.

    Slopes are those at the scores that were computed, where they bound the losses as well as anywhere: what these
    scores are off by is part of the values' rounding, and g is off by the rounding of its sums only.
    """
    weighted, l2 = domains.reweighted(domain_weights), domains.strong_convexity
    F, g = weighted.value_gradient(w)
    error = float(np.linalg.norm(weighted.sum_rounding(w, F)))
    known, size = F - 2.0 * domains.rounding(w, F), float(np.linalg.norm(g))
    if math.isinf(radius):
        return known - float(convexity_gap(g[None], error, l2)[0]) if l2 > 0.0 else -math.inf
    known -= error * (radius + float(np.linalg.norm(w)))
    if l2 == 0.0:
        return known - float(g @ w) - radius * size
    outside = max(float(np.linalg.norm(w - g / l2)) - radius, 0.0)
    return known - size**2 / (2.0 * l2) + 0.5 * l2 * outside**2
