"""Stochastic agnostic federated learning: rate of the averaged projected stochastic gradient method.

Setting
    min over w in W of max over lambda in Lambda of L(w, lambda) = sum lambda_k F_k(w); T simultaneous projected steps
    w <- P_W(w - gamma_w delta_w), lambda <- P_Lambda(lambda + gamma_lambda delta_lambda) with stochastic gradients
    taken at the current pair; wA, lambdaA: averages of the T points at which gradients were taken.
Assumptions
    W and Lambda convex and compact, ‖w‖ <= R_W, ‖lambda‖ <= R_Lambda; F_k convex; ‖grad_w L‖ <= G_w,
    ‖grad_lambda L‖ <= G_lambda on W x Lambda; unbiased stochastic gradients of variances at most sigma_w^2,
    sigma_lambda^2.
Statement
    With gamma = 2R/sqrt(T (sigma^2 + G^2)) for either player,
    E[max_lambda L(wA, lambda) - min_w L(w, lambdaA)] <= {3 R_W sqrt(sigma_w^2 + G_w^2)
                                                         + 3 R_Lambda sqrt(sigma_lambda^2 + G_lambda^2)}/sqrt(T).
    Any steps: with constant gamma, D the largest distance of a player's set from where he starts,
    a player costs D^2/(2 gamma T) + gamma (G^2 + sigma^2)/2 + r sigma/sqrt(T), with r = R_W, and r = D for lambda; and
    G_lambda^2 = p V^2/4, p the domains and [0, V] the range of their losses, because constants added to them change no
    step.
    Entropic steps: lambda <- argmax gamma <delta, .> - KL(.‖lambda), stochastic losses delta in [0, D]^p, costs
    KL_max/(gamma T) + gamma D^2/8 + [D sqrt(log(p)/(2T)) if anything is random], KL_max = max over Lambda of
    KL(.‖lambda_0), log p on the simplex.
Source
    Mohri, Sivek, Suresh, "Agnostic federated learning", ICML 2019, arXiv:1902.00146, convergence of Stochastic-AFL.
    FROM-MEMORY; re-derived in docs/theory/agnostic.md, with the same constants: regret of either player
    (2R)^2/(2 gamma T) + gamma (G^2 + sigma^2)/2 = 2R sqrt(G^2 + sigma^2)/sqrt(T), and R sigma/sqrt(T) because the
    comparator depends on the noise. The forms for any steps and for entropic steps are this project's.
What differs
    The pseudo-code that circulates averages t = 1..T although gradients are taken at t - 1: average the query points.
    It also lost the minus sign of the step in w. The left side is the duality gap, so it bounds the excess of wA too.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import numeric, real, whole
from fedconvex.kernels import row_losses
from fedconvex.kernels.domains import domain_counts, domains_of
from fedconvex.problems import Problem
from fedconvex.simplex.uncertainty import KLBall, Point, Simplex
from fedconvex.theory.bound import Bound, Hypothesis, Quantity, require

__all__ = [
    "AgnosticConstants",
    "AgnosticSteps",
    "Least",
    "agnostic_best_steps",
    "agnostic_constants",
    "agnostic_rate",
    "agnostic_rate_any_steps",
    "agnostic_rate_entropic",
    "agnostic_steps",
    "least_over_ball",
    "least_values_over_ball",
]

SOURCE = "Mohri, Sivek, Suresh 2019, arXiv:1902.00146, Stochastic-AFL (re-derived)"


class AgnosticSteps(NamedTuple):
    """The step sizes of the theorem."""

    model: float  # gamma_w
    mixture: float  # gamma_lambda


class AgnosticConstants(NamedTuple):
    """What the rates ask for; all of it holds for certain on the ball and on Lambda."""

    R_W: float
    R_lambda: float
    G_w: float
    G_lambda: float
    sigma2_w: float
    sigma2_lambda: float
    reach_w: float  # largest distance of a model in the ball from w_0
    reach_lambda: float  # the same of mixtures from lambda_0
    centred: float  # bound of the norm of the domains' losses less their mean
    width: float  # stochastic losses of the domains lie in [0, width]
    divergence: float  # max over Lambda of KL(.‖lambda_0)
    p: int  # domains
    random: bool

    def of_theorem(self) -> dict[str, float]:
        """Return the arguments of `agnostic_steps` and `agnostic_rate`."""
        return {
            name: getattr(self, name) for name in ("R_W", "R_lambda", "G_w", "G_lambda", "sigma2_w", "sigma2_lambda")
        }


class Least(NamedTuple):
    """The least value over a ball: it lies in [lower, value]."""

    w: np.ndarray  # (size,)
    value: float
    lower: float


def agnostic_steps(
    *,
    rounds: int,
    R_W: float,
    R_lambda: float,
    G_w: float,
    G_lambda: float,
    sigma2_w: float = 0.0,
    sigma2_lambda: float = 0.0,
) -> AgnosticSteps:
    """Return gamma_w and gamma_lambda.

    Examples
    --------
    >>> from fedconvex.theory.agnostic_rate import agnostic_steps
    >>> agnostic_steps(rounds=100, R_W=1.0, R_lambda=1.0, G_w=2.0, G_lambda=1.0)
    AgnosticSteps(model=0.1, mixture=0.2)
    """
    T = whole("rounds", rounds, low=1)
    steps = []
    for R, G, s in ((R_W, G_w, sigma2_w), (R_lambda, G_lambda, sigma2_lambda)):
        size = math.sqrt(real("sigma2", s, low=0.0) + real("G", G, low=0.0) ** 2)
        require(SOURCE, Hypothesis("G or sigma positive", f"sqrt(sigma^2 + G^2) = {size:g}", size > 0.0))
        steps.append(2.0 * real("R", R, low=0.0, strict=True) / (math.sqrt(T) * size))
    return AgnosticSteps(*steps)


def agnostic_rate(
    *,
    rounds: int,
    R_W: float,
    R_lambda: float,
    G_w: float,
    G_lambda: float,
    sigma2_w: float = 0.0,
    sigma2_lambda: float = 0.0,
) -> Bound:
    """Return the bound of the expected duality gap of the averaged query points, for the steps of `agnostic_steps`.

    Parameters
    ----------
    rounds : int
        T.
    R_W, R_lambda : float
        Radii of the sets around the origin; R_lambda = 1 for the simplex.
    G_w, G_lambda : float
        Largest gradient norms.
    sigma2_w, sigma2_lambda : float
        Largest variances.

    Examples
    --------
    >>> from fedconvex.theory.agnostic_rate import agnostic_rate
    >>> round(agnostic_rate(rounds=900, R_W=1.0, R_lambda=1.0, G_w=2.0, G_lambda=1.0).value, 12)
    0.3
    """
    T = whole("rounds", rounds, low=1)
    model = math.sqrt(real("sigma2_w", sigma2_w, low=0.0) + real("G_w", G_w, low=0.0) ** 2)
    mixture = math.sqrt(real("sigma2_lambda", sigma2_lambda, low=0.0) + real("G_lambda", G_lambda, low=0.0) ** 2)
    terms = {
        "model": 3.0 * real("R_W", R_W, low=0.0) * model / math.sqrt(T),
        "mixture": 3.0 * real("R_lambda", R_lambda, low=0.0) * mixture / math.sqrt(T),
    }
    requires = (
        Hypothesis("convex F_k, W and Lambda convex and compact", f"R_W = {R_W:g}, R_Lambda = {R_lambda:g}"),
        Hypothesis("gradients and noise bounded on W x Lambda", f"{model:g} and {mixture:g}"),
        Hypothesis("the steps of agnostic_steps, averages of the query points", f"T = {T}"),
    )
    return Bound(terms, Quantity.SADDLE_GAP, SOURCE, requires)


def agnostic_rate_any_steps(c: AgnosticConstants, *, rounds: int, step_size: float, domain_step_size: float) -> Bound:
    """Return the bound of the expected duality gap for constant projected steps of any size.

    Parameters
    ----------
    c : AgnosticConstants
    rounds : int
        T.
    step_size, domain_step_size : float
        gamma_w, gamma_lambda.

    Examples
    --------
    >>> from fedconvex import Federation, Logistic, Problem
    >>> from fedconvex.theory.agnostic_rate import agnostic_best_steps, agnostic_constants, agnostic_rate_any_steps
    >>> problem = Problem(Federation.from_arrays([[1.0], [1.0]], [1.0, -1.0], [0, 1]), Logistic())
    >>> c = agnostic_constants(problem, radius=1.0)
    >>> steps = agnostic_best_steps(c, rounds=100)
    >>> round(agnostic_rate_any_steps(c, rounds=100, step_size=steps.model, domain_step_size=steps.mixture).value, 4)
    0.1388
    """
    T = whole("rounds", rounds, low=1)
    terms = _model_terms(c, T, step_size)
    if c.reach_lambda > 0.0:
        gamma = real("domain_step_size", domain_step_size, low=0.0, strict=True)
        terms["mixture, start"] = c.reach_lambda**2 / (2.0 * gamma * T)
        terms["mixture, steps"] = 0.5 * gamma * (c.centred**2 + c.sigma2_lambda)
        terms["mixture, noise"] = c.reach_lambda * math.sqrt(c.sigma2_lambda / T)
    return Bound(terms, Quantity.SADDLE_GAP, f"{SOURCE}, any steps", _requires(c, T, "projected steps of the mixture"))


def agnostic_rate_entropic(c: AgnosticConstants, *, rounds: int, step_size: float, domain_step_size: float) -> Bound:
    """Return the bound of the expected duality gap for entropic steps of the mixture.

    Parameters
    ----------
    c, rounds, step_size, domain_step_size
        As for `agnostic_rate_any_steps`.

    Examples
    --------
    >>> from fedconvex import Federation, Logistic, Problem
    >>> from fedconvex.theory.agnostic_rate import agnostic_best_steps, agnostic_constants, agnostic_rate_entropic
    >>> problem = Problem(Federation.from_arrays([[1.0], [1.0]], [1.0, -1.0], [0, 1]), Logistic())
    >>> c = agnostic_constants(problem, radius=1.0)
    >>> steps = agnostic_best_steps(c, rounds=100, entropic=True)
    >>> round(agnostic_rate_entropic(c, rounds=100, step_size=steps.model, domain_step_size=steps.mixture).value, 4)
    0.1504
    """
    T = whole("rounds", rounds, low=1)
    terms = _model_terms(c, T, step_size)
    if c.divergence > 0.0:
        gamma = real("domain_step_size", domain_step_size, low=0.0, strict=True)
        terms["mixture, start"] = c.divergence / (gamma * T)
        terms["mixture, steps"] = gamma * c.width**2 / 8.0
        terms["mixture, noise"] = c.width * math.sqrt(math.log(c.p) / (2.0 * T)) if c.random else 0.0
    requires = _requires(c, T, "entropic steps of the mixture")
    return Bound(terms, Quantity.SADDLE_GAP, f"{SOURCE}, entropic steps", requires)


def agnostic_best_steps(c: AgnosticConstants, *, rounds: int, entropic: bool = False) -> AgnosticSteps:
    """Return the steps at which `agnostic_rate_any_steps`, or `agnostic_rate_entropic`, is least.

    A player with one choice is given the step 1.

    Examples
    --------
    >>> from fedconvex import Federation, Logistic, Problem
    >>> from fedconvex.theory.agnostic_rate import agnostic_best_steps, agnostic_constants
    >>> problem = Problem(Federation.from_arrays([[1.0], [1.0]], [1.0, -1.0], [0, 1]), Logistic())
    >>> [round(v, 3) for v in agnostic_best_steps(agnostic_constants(problem, radius=1.0), rounds=100)]
    [0.137, 0.076]
    """
    T = whole("rounds", rounds, low=1)
    size = math.sqrt(c.G_w**2 + c.sigma2_w)
    model = c.reach_w / (math.sqrt(T) * size) if size > 0.0 else 1.0
    if entropic:
        mixture = math.sqrt(8.0 * c.divergence / T) / c.width if c.divergence > 0.0 and c.width > 0.0 else 1.0
        return AgnosticSteps(model, mixture)
    size = math.sqrt(c.centred**2 + c.sigma2_lambda)
    return AgnosticSteps(model, c.reach_lambda / (math.sqrt(T) * size) if c.reach_lambda > 0.0 and size > 0.0 else 1.0)


def _model_terms(c: AgnosticConstants, T: int, step_size: float) -> dict[str, float]:
    gamma = real("step_size", step_size, low=0.0, strict=True)
    return {
        "model, start": c.reach_w**2 / (2.0 * gamma * T),
        "model, steps": 0.5 * gamma * (c.G_w**2 + c.sigma2_w),
        "model, noise": c.R_W * math.sqrt(c.sigma2_w / T),
    }


def _requires(c: AgnosticConstants, T: int, steps: str) -> tuple[Hypothesis, ...]:
    return (
        Hypothesis("convex F_k, ‖w‖ <= R_W", f"R_W = {c.R_W:g}, p = {c.p}"),
        Hypothesis("gradients and noise bounded", f"G_w = {c.G_w:.4g}, sigma_w^2 = {c.sigma2_w:.4g}"),
        Hypothesis("losses and noise of the domains bounded", f"[0, {c.width:.4g}], sigma^2 = {c.sigma2_lambda:.4g}"),
        Hypothesis(f"{steps}, averages of the query points", f"T = {T}"),
    )


# ---------------------------------------------------------------- constants of a problem


def agnostic_constants(
    problem: Problem,
    *,
    radius: float,
    uncertainty_set: Any = None,
    start: Any = None,
    batch_size: int | None = None,
    replacement: bool = False,
    draws: int | None = None,
) -> AgnosticConstants:
    """Return constants of the rates that hold for certain on the ball ‖w‖ <= radius.

    Row j has losses in [0, v_j] and slopes of at most s_j there. G_w is max_k mean s_j‖x_j‖ + l2 radius, G_lambda is
    (sum_k (mean v_j)^2)^(1/2); the term of l2 is left out of the domains' losses, for it is the same in all. Client c
    draws B of its n_c rows and weighs row j of domain i by lambda_i n_c/(B N_i): the variances are at most

        sigma2_w <= max_i sum_{j in i} (n_c phi/B) (s_j‖x_j‖/N_i)^2,   sigma2_lambda <= sum_j (n_c phi/B) (v_j/N_i)^2,

    phi = 1 with and (n_c - B)/(n_c - 1) without replacement. With s domains drawn (weighted sampling), G_w^2/s is added
    to the first; the second becomes (1 + (p-1)/s) times itself plus ((p-1)/s) sum_k (mean v_j)^2.

    Parameters
    ----------
    problem : Problem
    radius : float
    uncertainty_set : set of `fedconvex.simplex.uncertainty`, optional
        Lambda, default the simplex; lambda_0 is its start.
    start : model, optional
        w_0, default 0; it is projected onto the ball.
    batch_size, replacement, draws : int, bool, int, optional
        Mini-batches; domains drawn per round and player, if they are drawn.

    Raises
    ------
    AssumptionError
        If the loss is not one of this package's (convex, nonnegative).

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.agnostic_rate import agnostic_constants
    >>> problem = Problem(Federation.from_arrays([[1.0], [2.0]], [0.0, 1.0], [0, 1]), Squared())
    >>> c = agnostic_constants(problem, radius=1.0)  # slopes up to 1 and 3, losses up to 1/2 and 9/2
    >>> c.G_w, round(c.G_lambda**2, 12), c.width
    (6.0, 20.5, 4.5)
    """
    R = real("agnostic_constants: radius", radius, low=0.0, strict=True)
    known = type(problem.loss).__module__.partition(".")[0] == "fedconvex"
    require(SOURCE, Hypothesis("a convex, nonnegative loss of this package", f"{problem.loss!r}", known))
    fed, sets = problem.federation, Simplex() if uncertainty_set is None else uncertainty_set
    code, N = domains_of(fed).code, domain_counts(fed).astype(float)
    p = N.size
    who = np.repeat(np.arange(fed.K), fed.sizes)
    length = _lengths(fed)
    slope, value = _row_bounds(problem, R * length)
    steep, losses = np.bincount(code, slope * length, p) / N, np.bincount(code, value, p) / N
    G_w, top, sigma2_w, sigma2_lambda, width = float(steep.max()), float(losses.max()), 0.0, 0.0, float(losses.max())
    if batch_size is not None:
        n, B = fed.sizes.astype(float), float(batch_size)
        phi = np.ones(fed.K) if replacement else np.maximum(n - B, 0.0) / np.maximum(n - 1.0, 1.0)
        share = (n * phi / B)[who] / N[code] ** 2
        sigma2_w = float(np.bincount(code, share * (slope * length) ** 2, p).max())
        sigma2_lambda = float(share @ value**2)
        each = np.zeros((fed.K, p))  # a batch may hold rows of one domain only, and the worst of them
        np.maximum.at(each, (who, code), value)
        width = float((n @ each / N).max())
    if draws is not None:
        s = float(draws)
        sigma2_w += G_w**2 / s
        sigma2_lambda = (1.0 + (p - 1.0) / s) * sigma2_lambda + (p - 1.0) / s * float(losses @ losses)
        width *= p
    w0 = 0.0 if start is None else float(np.linalg.norm(numeric("agnostic_constants: start", start)))
    mix0, one = sets.start(p), isinstance(sets, Point) or p == 1
    apart = 0.0 if one else math.sqrt(float((mix0 @ mix0 + 1.0 - 2.0 * mix0).max()))
    far = 0.0 if one else -math.log(float(mix0[mix0 > 0.0].min()))
    return AgnosticConstants(
        R_W=R,
        R_lambda=0.0 if one else 1.0,
        G_w=G_w + problem.l2 * R,
        G_lambda=math.sqrt(float(losses @ losses)),
        sigma2_w=sigma2_w,
        sigma2_lambda=sigma2_lambda,
        reach_w=R + min(w0, R),
        reach_lambda=apart,
        centred=0.5 * math.sqrt(p) * top,
        width=width,
        divergence=min(far, sets.radius) if isinstance(sets, KLBall) else far,
        p=p,
        random=sigma2_w > 0.0 or sigma2_lambda > 0.0,
    )


def _lengths(fed: Any) -> np.ndarray:
    X = fed.X
    return np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel() if fed.is_sparse else np.einsum("ij,ij->i", X, X))


def _row_bounds(problem: Problem, reach: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return sup of ‖slope‖ and of the loss over scores within reach: at an end, for convex losses of one score."""
    loss, y = problem.loss, problem.federation.y
    if hasattr(loss, "n_classes"):  # scores differ by at most sqrt 2 times their length; ‖P - e_y‖ <= sqrt 2 (1 - P_y)
        top = math.log(loss.n_classes - 1.0) + math.sqrt(2.0) * reach
        return math.sqrt(2.0) / (1.0 + np.exp(-top)), np.logaddexp(0.0, top)
    ends = np.array(
        [[(abs(loss.slope(z, v)), loss.value(z, v)) for z in (-a, a)] for a, v in zip(reach, y, strict=True)]
    )
    return ends[:, :, 0].max(axis=1), ends[:, :, 1].max(axis=1)


# ---------------------------------------------------------------- the least value over a ball


def least_over_ball(problem: Problem, domain_weights: Any, radius: float, start: Any = None) -> Least:
    """Minimise sum lambda_k F_k over ‖w‖ <= radius, by Newton's method with quadratic models over the ball.

    The lower bound is the least value over the ball of F + <g, . - w> + (l2/2)‖. - w‖^2 at the model found: convexity.

    Parameters
    ----------
    problem : Problem
        Of a smooth loss.
    domain_weights : array (p,)
        lambda.
    radius : float
    start : array (size,), optional
        Where to begin.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.agnostic_rate import least_over_ball
    >>> problem = Problem(Federation.from_arrays([[1.0], [1.0]], [0.0, 2.0], [0, 1]), Squared())
    >>> least = least_over_ball(problem, [0.0, 1.0], 0.5)
    >>> least.w, round(least.value, 12), round(least.lower, 12)
    (array([0.5]), 1.125, 1.125)
    """
    weighted, R = problem.by_domain.reweighted(np.asarray(domain_weights, dtype=float)), float(radius)
    w = np.zeros(weighted.size) if start is None else np.array(start, dtype=float).ravel()
    w *= min(1.0, R / max(float(np.linalg.norm(w)), 1e-300))
    F, g, H = weighted.value_gradient_hessian(w)
    best = Least(w, F, float(_linear_minimum(weighted.l2, w, F, g, R)))
    for _ in range(100):
        if best.value - best.lower <= 1e-13 * (1.0 + abs(best.value)):
            break
        step, t = _over_ball(H, g - H @ w, R) - w, 1.0
        slope = float(g @ step)
        while (F_new := float(weighted.value(weighted.unflatten(w + t * step)))) > F + 1e-4 * t * slope and t > 1e-10:
            t *= 0.5
        if not F_new <= F + 1e-15 * (1.0 + abs(F)):
            break
        w = w + t * step
        F, g, H = weighted.value_gradient_hessian(w)
        lower = max(best.lower, float(_linear_minimum(weighted.l2, w, F, g, R)))
        stuck = best.value - F <= 1e-16 * (1.0 + abs(F)) and lower <= best.lower
        best = Least(w, F, lower) if best.value >= F else best._replace(lower=lower)
        if stuck:
            break
    return best


def least_values_over_ball(problem: Problem, mixes: Any, radius: float) -> np.ndarray:
    """Return the lower bounds of `least_over_ball` for mixtures (R, p), all at once where rows are dense and few wide.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.agnostic_rate import least_values_over_ball
    >>> problem = Problem(Federation.from_arrays([[1.0], [1.0]], [0.0, 2.0], [0, 1]), Squared())
    >>> least_values_over_ball(problem, [[0.0, 1.0], [0.5, 0.5]], 0.5).round(12)
    array([1.125, 0.625])
    """
    domains, mixes, R = problem.by_domain, np.asarray(mixes, dtype=float), float(radius)
    fed, near = domains.federation, least_over_ball(problem, mixes.mean(axis=0), radius)
    if len(mixes) == 1:
        return np.array([near.lower])
    lower, left = np.full(len(mixes), -math.inf), np.arange(len(mixes))
    if domains.n_outputs == 1 and not fed.is_sparse and fed.d <= 40:
        step = max(1, 2_000_000 // max(fed.n, fed.d**2))
        for lo in range(0, len(mixes), step):
            lower[lo : lo + step], sure = _newton_over_ball(domains, mixes[lo : lo + step], R, near.w)
            left = np.setdiff1d(left, lo + np.flatnonzero(sure))
    for r in left:  # what Newton's method without a line search did not solve
        near = least_over_ball(problem, mixes[r], radius, near.w)
        lower[r] = max(lower[r], near.lower)
    return lower


def _newton_over_ball(domains: Problem, mixes: np.ndarray, R: float, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return lower bounds (r,) from full Newton steps, and whether each is sure to 1e-13."""
    fed, l2 = domains.federation, domains.l2
    X, d = fed.X, fed.d
    outer = (X[:, :, None] * X[:, None, :]).reshape(fed.n, -1)
    lower, sure = np.full(len(mixes), -math.inf), np.zeros(len(mixes), dtype=bool)
    W, left = np.tile(w, (len(mixes), 1)), np.arange(len(mixes))
    for _ in range(20):
        c = np.repeat(mixes[left] / fed.sizes, fed.sizes, axis=1)  # (r, n)
        Z = np.ascontiguousarray(X @ W.T)
        values, bend, slopes = np.empty_like(Z), np.empty(Z.size), Z.copy()
        row_losses.row_values(domains.loss, Z, fed.y, values)
        row_losses.row_slopes(domains.loss, slopes, fed.y)
        ends = np.array([0, Z.size])
        row_losses.row_curvatures(domains.loss, Z.ravel(), np.repeat(fed.y, len(left)), ends, np.ones(1), bend)
        F = np.einsum("rn,nr->r", c, values) + 0.5 * l2 * np.sum(W**2, axis=1)
        g = (c * slopes.T) @ X + l2 * W
        low = _linear_minimum(l2, W, F, g, R)
        lower[left] = np.maximum(lower[left], low)
        done = F - lower[left] <= 1e-13 * (1.0 + np.abs(F))
        sure[left[done]] = True
        left, W, g = left[~done], W[~done], g[~done]
        if left.size == 0:
            break
        H = ((c * bend.reshape(Z.shape).T)[~done] @ outer).reshape(-1, d, d) + l2 * np.eye(d)
        W = _over_balls(H, g - np.einsum("rij,rj->ri", H, W), R)
    return lower, sure


def _linear_minimum(l2: float, w: np.ndarray, F: Any, g: np.ndarray, R: float) -> Any:
    """Least value over ‖v‖ <= R of F + <g, v - w> + (l2/2)‖v - w‖^2, for models (..., size)."""
    if l2 == 0.0:
        return F - np.sum(g * w, axis=-1) - R * np.linalg.norm(g, axis=-1)
    outside = np.maximum(np.linalg.norm(w - g / l2, axis=-1) - R, 0.0)
    return F - np.sum(g**2, axis=-1) / (2.0 * l2) + 0.5 * l2 * outside**2


def _over_balls(H: np.ndarray, b: np.ndarray, R: float) -> np.ndarray:
    """Return `_over_ball` of many quadratics, H (r, d, d) and b (r, d), by bisection."""
    lam, U = np.linalg.eigh(H)
    lam, c = np.maximum(lam, 0.0), np.einsum("rij,ri->rj", U, b)
    size = np.linalg.norm(c, axis=1) / R
    free = lam + 1e-14 * np.maximum(np.maximum(lam[:, -1], size), 1e-300)[:, None]
    low, high = np.zeros(len(b)), size
    inside = np.linalg.norm(c / free, axis=1) <= R
    for _ in range(100):
        nu = 0.5 * (low + high)
        longer = np.sum((c / (free + nu[:, None])) ** 2, axis=1) > R**2
        low, high = np.where(longer, nu, low), np.where(longer, high, nu)
    nu = np.where(inside, 0.0, high)
    return -np.einsum("rij,rj->ri", U, c / (free + nu[:, None]))


def _over_ball(H: np.ndarray, b: np.ndarray, R: float) -> np.ndarray:
    """Return argmin of v'Hv/2 + b'v over ‖v‖ <= R, H positive semidefinite: (H + nu) v = -b."""
    from scipy.optimize import brentq

    lam, U = np.linalg.eigh(H)
    lam, c = np.maximum(lam, 0.0), U.T @ b
    floor = 1e-14 * max(float(lam[-1]), float(np.linalg.norm(c)) / R, 1e-300)
    free = lam + floor

    def length(nu: float) -> float:
        return float(np.linalg.norm(c / (free + nu)))

    if length(0.0) <= R:
        return -(U @ (c / free))
    nu = brentq(lambda v: 1.0 / length(v) - 1.0 / R, 0.0, float(np.linalg.norm(c)) / R, xtol=1e-300, rtol=1e-14)
    v = -(U @ (c / (free + nu)))
    return v * min(1.0, R / float(np.linalg.norm(v)))
