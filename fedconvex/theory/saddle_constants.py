"""The saddle-point problem of agnostic learning on a ball of models: constants that hold for certain, and steps."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import array, flag, instance, real, whole
from fedconvex.kernels.domain_sums import domain_counts, domains_of
from fedconvex.loss_traits import traits
from fedconvex.problems import Problem
from fedconvex.simplex.uncertainty import KLBall, Point, Simplex, check_set
from fedconvex.theory.bound import Hypothesis, require

__all__ = ["AgnosticConstants", "AgnosticSteps", "agnostic_best_steps", "agnostic_constants", "agnostic_steps"]


class AgnosticConstants(NamedTuple):
    """What the rates ask for; all of it holds for certain on the ball and on Lambda.

    Attributes
    ----------
    R_W, R_lambda : float
        Radii of the ball of models and of Lambda.
    G_w, G_lambda : float
        Bounds of the gradients in the model and in the domain weights.
    sigma2_w, sigma2_lambda : float
        Bounds of the variances of their stochastic gradients; 0 for full batches and all domains.
    reach_w, reach_lambda : float
        Largest distances from the start, of a model in the ball and of domain weights in Lambda.
    centred : float
        Bound of the norm of the domains' losses less their mean.
    width : float
        Stochastic losses of the domains lie in [0, width].
    divergence : float
        max over Lambda of KL(.‖lambda_0).
    p : int
        Domains.
    random : bool
        Whether anything is drawn.

    Examples
    --------
    >>> from fedconvex import Federation, Logistic, Problem
    >>> from fedconvex.theory.saddle_constants import agnostic_constants
    >>> problem = Problem(Federation.from_arrays([[1.0], [1.0]], [1.0, -1.0], [0, 1]), Logistic())
    >>> c = agnostic_constants(problem, radius=1.0)
    >>> c.R_W, c.p, c.random, sorted(c.of_theorem())[:2]
    (1.0, 2, False, ['G_lambda', 'G_w'])
    """

    R_W: float
    R_lambda: float
    G_w: float
    G_lambda: float
    sigma2_w: float
    sigma2_lambda: float
    reach_w: float  # largest distance of a model in the ball from w_0
    reach_lambda: float  # the same of domain weights from lambda_0
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
    (sum_k (mean v_j)^2)^(1/2); the term of l2 is left out of the domains' losses, for it is the same in all.

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
        If the loss does not declare a lower bound of at least 0.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.saddle_constants import agnostic_constants
    >>> problem = Problem(Federation.from_arrays([[1.0], [2.0]], [0.0, 1.0], [0, 1]), Squared())
    >>> c = agnostic_constants(problem, radius=1.0)  # slopes up to 1 and 3, losses up to 1/2 and 9/2
    >>> c.G_w, round(c.G_lambda**2, 12), c.width
    (6.0, 20.5, 4.5)
    """
    R = real("agnostic_constants: radius", radius, low=0.0, strict=True)
    rows, p = _rows(problem, R), domain_counts(problem.federation).size
    sigma2_w, sigma2_lambda, width = _noise(problem, rows, batch_size, replacement, draws)
    w0 = 0.0 if start is None else float(np.linalg.norm(_start(problem, start)))
    R_lambda, reach_lambda, divergence = _reach(Simplex() if uncertainty_set is None else uncertainty_set, p)
    return AgnosticConstants(
        R_W=R,
        R_lambda=R_lambda,
        G_w=rows.G_w + problem.l2 * R,
        G_lambda=math.sqrt(float(rows.losses @ rows.losses)),
        sigma2_w=sigma2_w,
        sigma2_lambda=sigma2_lambda,
        reach_w=R + min(w0, R),
        reach_lambda=reach_lambda,
        centred=0.5 * math.sqrt(p) * float(rows.losses.max()),
        width=width,
        divergence=divergence,
        p=p,
        random=sigma2_w > 0.0 or sigma2_lambda > 0.0,
    )


def _reach(sets: Any, p: int) -> tuple[float, float, float]:
    """Return the radius of Lambda, its largest distance from lambda_0, and its largest KL divergence from it."""
    check_set("agnostic_constants", sets, p)
    if isinstance(sets, Point) or p == 1:
        return 0.0, 0.0, 0.0
    first = sets.start(p)
    far = -math.log(float(first[first > 0.0].min()))
    apart = math.sqrt(float((first @ first + 1.0 - 2.0 * first).max()))
    return 1.0, apart, min(far, sets.radius) if isinstance(sets, KLBall) else far


def _start(problem: Problem, start: Any) -> np.ndarray:
    return array("agnostic_constants: start", start, problem.model_shape)


class _Rows(NamedTuple):
    """What rows are at most on the ball."""

    code: np.ndarray  # (n,) domain
    steep: np.ndarray  # (n,) s_j‖x_j‖
    value: np.ndarray  # (n,) v_j
    losses: np.ndarray  # (p,) mean v_j
    G_w: float  # max_k mean s_j‖x_j‖


def _rows(problem: Problem, R: float) -> _Rows:
    instance("agnostic_constants: problem", problem, Problem)
    kind = traits(problem.loss)
    known = kind.lower_bound >= 0.0 and kind.several == kind.multinomial
    fed = problem.federation
    convex = Hypothesis("a convex loss, at least 0", f"{problem.loss!r}", known)
    require("agnostic_constants", convex)
    code, N = domains_of(fed).code, domain_counts(fed).astype(float)
    length = np.sqrt(fed.row_norms2)
    slope, value = _row_bounds(problem, R * length)
    if fed.sample_weight is not None:  # N is what the rows weigh together
        slope, value = fed.sample_weight * slope, fed.sample_weight * value
    steep = slope * length
    losses = np.bincount(code, value, N.size) / N
    return _Rows(code, steep, value, losses, float((np.bincount(code, steep, N.size) / N).max()))


def _noise(
    problem: Problem, rows: _Rows, batch_size: int | None, replacement: bool, draws: int | None
) -> tuple[float, float, float]:
    """Return bounds of both variances and of the range of stochastic losses.

    Client c
    draws B of its n_c rows and weighs row j of domain i by lambda_i n_c/(B N_i): the variances are at most

        sigma2_w <= max_i sum_{j in i} (n_c phi/B) (s_j‖x_j‖/N_i)^2,   sigma2_lambda <= sum_j (n_c phi/B) (v_j/N_i)^2,

    phi = 1 with and (n_c - B)/(n_c - 1) without replacement. With s domains drawn (weighted sampling), G_w^2/s is added
    to the first; the second becomes (1 + (p-1)/s) times itself plus ((p-1)/s) sum_k (mean v_j)^2.
    """
    fed, N = problem.federation, domain_counts(problem.federation).astype(float)
    p, code = N.size, rows.code
    flag("agnostic_constants: replacement", replacement)
    sigma2_w, sigma2_lambda, width = 0.0, 0.0, float(rows.losses.max())
    if batch_size is not None:
        batch = whole("agnostic_constants: batch_size", batch_size, low=1)
        n, B, who = fed.sizes.astype(float), float(batch), np.repeat(np.arange(fed.K), fed.sizes)
        phi = np.ones(fed.K) if replacement else np.maximum(n - B, 0.0) / np.maximum(n - 1.0, 1.0)
        share = (n * phi / B)[who] / N[code] ** 2
        sigma2_w = float(np.bincount(code, share * rows.steep**2, p).max())
        sigma2_lambda = float(share @ rows.value**2)
        each = np.zeros((fed.K, p))  # a batch may hold rows of one domain only, and the worst of them
        np.maximum.at(each, (who, code), rows.value)
        width = float((n @ each / N).max())
    if draws is not None:
        s = float(whole("agnostic_constants: draws", draws, low=1))
        sigma2_w += rows.G_w * rows.G_w / s  # a power would raise where it overflows
        sigma2_lambda = (1.0 + (p - 1.0) / s) * sigma2_lambda + (p - 1.0) / s * float(rows.losses @ rows.losses)
        width *= p
    return sigma2_w, sigma2_lambda, width


def _row_bounds(problem: Problem, reach: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return sup of ‖slope‖ and of the loss over scores within reach: at an end, for convex losses of one score."""
    loss, y = problem.loss, problem.federation.y
    if traits(loss).multinomial:  # scores differ by at most sqrt 2 times their length; ‖P - e_y‖ <= sqrt 2 (1 - P_y)
        top = math.log(loss.n_classes - 1.0) + math.sqrt(2.0) * reach
        return math.sqrt(2.0) / (1.0 + np.exp(-top)), np.logaddexp(0.0, top)
    ends = np.array(
        [[(abs(loss.slope(z, v)), loss.value(z, v)) for z in (-a, a)] for a, v in zip(reach, y, strict=True)]
    )
    return ends[:, :, 0].max(axis=1), ends[:, :, 1].max(axis=1)


class AgnosticSteps(NamedTuple):
    """The step sizes of the theorem.

    Attributes
    ----------
    step_size : float
        gamma_w, of the model.
    domain_step_size : float
        gamma_lambda, of the domain weights.

    Examples
    --------
    >>> from fedconvex.theory.saddle_constants import agnostic_steps
    >>> agnostic_steps(rounds=400, R_W=1.0, R_lambda=1.0, G_w=2.0, G_lambda=1.0)._asdict()
    {'step_size': 0.05, 'domain_step_size': 0.1}
    """

    step_size: float  # gamma_w
    domain_step_size: float  # gamma_lambda


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
    """Return gamma_w = 2 R_W/(T (sigma_w^2 + G_w^2))^(1/2), and gamma_lambda alike.

    Parameters
    ----------
    rounds : int
        T.
    R_W, R_lambda, G_w, G_lambda, sigma2_w, sigma2_lambda : float
        As in `AgnosticConstants`.

    Raises
    ------
    AssumptionError
        If a player has neither a gradient nor noise.

    Examples
    --------
    >>> from fedconvex.theory.saddle_constants import agnostic_steps
    >>> agnostic_steps(rounds=100, R_W=1.0, R_lambda=1.0, G_w=2.0, G_lambda=1.0)
    AgnosticSteps(step_size=0.1, domain_step_size=0.2)
    """
    T = whole("rounds", rounds, low=1)
    steps = []
    for R, G, s in ((R_W, G_w, sigma2_w), (R_lambda, G_lambda, sigma2_lambda)):
        size = math.hypot(math.sqrt(real("sigma2", s, low=0.0)), real("G", G, low=0.0))
        require("agnostic_steps", Hypothesis("G or sigma positive", f"sqrt(sigma^2 + G^2) = {size:g}", size > 0.0))
        steps.append(2.0 * real("R", R, low=0.0, strict=True) / (math.sqrt(T) * size))
    return AgnosticSteps(*steps)


def agnostic_best_steps(c: AgnosticConstants, *, rounds: int, entropic: bool = False) -> AgnosticSteps:
    """Return the steps at which `agnostic_rate_any_steps`, or `agnostic_rate_entropic`, is least.

    A player with one choice is given the step 1.

    Parameters
    ----------
    c : AgnosticConstants
        Of a problem.
    rounds : int
        T.
    entropic : bool
        For exponentiated gradients of the domain weights; else for projected ones.

    Raises
    ------
    ValueError, TypeError
        If c is no `AgnosticConstants`, or rounds is below 1.

    Examples
    --------
    >>> from fedconvex import Federation, Logistic, Problem
    >>> from fedconvex.theory.saddle_constants import agnostic_best_steps, agnostic_constants
    >>> problem = Problem(Federation.from_arrays([[1.0], [1.0]], [1.0, -1.0], [0, 1]), Logistic())
    >>> [round(v, 3) for v in agnostic_best_steps(agnostic_constants(problem, radius=1.0), rounds=100)]
    [0.137, 0.076]
    """
    instance("agnostic_best_steps: c", c, AgnosticConstants)
    T = whole("rounds", rounds, low=1)
    size = math.sqrt(c.G_w * c.G_w + c.sigma2_w)  # a power would raise where it overflows
    model = c.reach_w / (math.sqrt(T) * size) if size > 0.0 else 1.0
    if flag("agnostic_best_steps: entropic", entropic):
        domain = math.sqrt(8.0 * c.divergence / T) / c.width if c.divergence > 0.0 and c.width > 0.0 else 1.0
        return AgnosticSteps(model, domain)
    size = math.sqrt(c.centred * c.centred + c.sigma2_lambda)
    return AgnosticSteps(model, c.reach_lambda / (math.sqrt(T) * size) if c.reach_lambda > 0.0 and size > 0.0 else 1.0)
