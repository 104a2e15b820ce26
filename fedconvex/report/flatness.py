"""How flat a minimiser is: how much F can rise within a distance of it, and the largest eigenvalue of its Hessian.

Sharpness of w is max_{‖e‖ <= rho} F(w + e) - F(w) (Foret, Kleiner, Mobahi, Neyshabur, ICLR 2021), what FedSAM
descends. F is convex, so that the maximum lies on the sphere. For least squares it is a trust-region problem, solved by
its secular equation (More, Sorensen, SIAM J. Sci. Stat. Comput. 4 (1983), 553-572) and certified by its dual: for every
t above all eigenvalues of H,

    max_{‖e‖ <= rho} <g, e> + <e, H e>/2 <= (t rho^2 + <g, (t I - H)^{-1} g>)/2.

For other losses the upper end is the smallest of up to three: the same with a matrix that is above the Hessian on the
whole ball (by the smoothness of the loss, or by self-concordance: curvatures grow by at most e^{M rho ‖x‖}), and the
sum of the largest losses that each row could have by itself. The lower end is F at a point that was found.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import eigh

from fedconvex._check import bad, instance, real, wrong_type
from fedconvex.kernels import row_losses
from fedconvex.problems import Problem
from fedconvex.solvers.certificates.gaps import ContradictedCertificate

MOST = 3000  # parameters: matrices of this size are formed
STEPS = 100  # of the ascent from each start
_EPS = float(np.finfo(float).eps)
_LEAST = float(np.finfo(float).tiny)  # of a curvature: smaller ones lose digits, or are 0


class Sharpness(NamedTuple):
    """The sharpness of a model lies in [lower, upper].

    Attributes
    ----------
    lower : float
        F(w + step) - F(w), less what rounding may have added.
    upper : float
        A bound for all steps; infinite where nothing bounds the loss.
    step : array, the model's shape
        The step that attains ``lower``, of length rho.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.report import sharpness
    >>> problem = Problem(Federation.from_clients([([[2.0]], [2.0])]), Squared())
    >>> found = sharpness(problem, np.array([1.0]), radius=0.5)  # F = 2 (w - 1)^2
    >>> round(found.lower, 9), round(found.upper, 9)
    (0.5, 0.5)
    """

    lower: float
    upper: float
    step: np.ndarray


def largest_curvature(problem: Problem, w: Any) -> float:
    """Return the largest eigenvalue of the Hessian of F at a model.

    Parameters
    ----------
    problem : Problem
        Of a loss with second derivatives, with at most 3,000 parameters; of a penalty only the smooth part counts.
    w : model

    Raises
    ------
    TypeError, ValueError
        If the loss has no curvature, or there are more parameters.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.report import largest_curvature
    >>> problem = Problem(Federation.from_arrays([[2.0, 0.0], [0.0, 1.0]], [1.0, 1.0], [0, 1]), Squared(), l2=0.5)
    >>> round(largest_curvature(problem, [0.0, 0.0]), 12)
    2.5
    """
    _check("largest_curvature", problem)
    H = problem.hessian(w)
    return float(eigh(H, eigvals_only=True, subset_by_index=[len(H) - 1, len(H) - 1])[0])


def sharpness(problem: Problem, w: Any, radius: float) -> Sharpness:
    """Return max over ‖e‖ <= radius of F(w + e) - F(w): exactly, up to rounding, for least squares, else an interval.

    Parameters
    ----------
    problem : Problem
        Without a penalty, with at most 3,000 parameters.
    w : model
        Any, not only a minimiser.
    radius : float
        rho, from 1e-100 to 1e100.

    Raises
    ------
    TypeError, ValueError
        If there is a penalty, there are more parameters, or the radius is out of its range.

    Warns
    -----
    ContradictedCertificate
        If a step rises above the upper end, which is then infinite: one of them is wrong.

    Examples
    --------
    F = (w_1^2 + 4 w_2^2)/2 around 0: the steepest direction is the second.

    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.report import sharpness
    >>> X = [[2.0**0.5, 0.0], [0.0, 8.0**0.5]]
    >>> found = sharpness(Problem(Federation.from_arrays(X, [0.0, 0.0], [0, 0]), Squared()), [0.0, 0.0], 0.5)
    >>> round(found.lower, 10), round(found.upper, 10)
    (0.5, 0.5)
    """
    _check("sharpness", problem)
    if problem.penalty is not None:
        raise wrong_type("sharpness: problem", "have no penalty", f"{problem.penalty!r}")
    rho = real("sharpness: radius", radius, low=1e-100, high=1e100)  # whose squares are numbers
    W, single = problem.flatten(w)
    if not single:
        raise bad("sharpness: w", "be one model", f"{len(W)} models")
    v = W[0]
    if problem.traits.quadratic:
        value, g, H = problem.value_gradient_hessian(v)
        off = rho * float(np.linalg.norm(problem.gradient_rounding(v, value)))
        e, low, high = _over_ball(g, H, rho)
        low = max(low - off, 0.0)
        return Sharpness(low, _consistent(problem, low, high + off), problem.unflatten(e))
    value, g = problem.value_gradient(v)
    off = rho * float(np.linalg.norm(problem.gradient_rounding(v, value)))
    above = [_over_ball(g, H, rho) for H in _matrices_above(problem, v, rho)]
    ahead = [e for e, _, _ in above] or [rho * v for v in _longest(problem)]
    starts = [*ahead, *(-e for e in ahead), rho * _unit(g)]
    step, rise = max((_ascend(problem, v, e, rho) for e in starts), key=lambda found: found[1])
    high = min([high + off for _, _, high in above] + _rows_apart(problem, v, rho), default=math.inf)
    off = 32.0 * math.sqrt(problem.federation.n) * _EPS * (abs(value) + abs(value + rise))
    off += problem.rounding(v, value) + problem.rounding(v + step, value + rise)
    low = max(rise - off, 0.0)
    return Sharpness(low, _consistent(problem, low, high), problem.unflatten(step))


def _consistent(problem: Problem, low: float, high: float) -> float:
    """Return the upper end of an interval; infinity, with a warning, where a step was found that rises higher."""
    if low <= high:
        return high
    text = f"sharpness: a step of {problem!r} rises by {low:.17g}, above the certified bound {high:.17g}"
    warnings.warn(
        f"{text}; no upper end is certified: please report it with the data", ContradictedCertificate, stacklevel=3
    )
    return math.inf


def _check(who: str, problem: Any) -> None:
    instance(f"{who}: problem", problem, Problem)
    if problem.size > MOST:
        raise bad(f"{who}: problem", f"have at most {MOST:,} parameters", f"{problem.size:,}")


def _unit(g: np.ndarray) -> np.ndarray:
    """Return g/‖g‖, or the first direction where g = 0."""
    length = float(np.linalg.norm(g))
    return g / length if length > 0.0 else np.eye(1, g.size)[0]


def _over_ball(g: np.ndarray, H: np.ndarray, rho: float) -> tuple[np.ndarray, float, float]:
    """Return the maximiser of <g, e> + <e, H e>/2 over ‖e‖ <= rho, H >= 0, and a lower and an upper bound of its value.

    With t = the top eigenvalue + s the stationary point is e(s) = (t I - H)^{-1} g, whose length falls with s.
    """
    eigenvalues, V = np.linalg.eigh(H)
    top, b = float(eigenvalues[-1]), V.T @ g
    gaps, length = top - eigenvalues, float(np.linalg.norm(g))
    tiny = max(_EPS * max(abs(top), length / rho), 1e-300)
    low, high = tiny, max(length / rho, 2.0 * tiny)  # ‖e(s)‖ <= ‖g‖/s
    for _ in range(200):
        s = math.sqrt(low) * math.sqrt(high)  # whose product may be below all numbers
        longer = float(np.linalg.norm(b / (s + gaps))) > rho
        low, high = (s, high) if longer else (low, s)
    e = b / (high + gaps)
    left = rho**2 - float(e @ e)
    if left > 0.0:  # hardly any gradient along the top direction: go along it as far as the ball reaches
        e[-1] += math.copysign(math.sqrt(left + e[-1] ** 2) - abs(e[-1]), e[-1])
    e *= rho / float(np.linalg.norm(e))
    value = float(b @ e) + 0.5 * float(eigenvalues @ e**2)
    bound = 0.5 * ((top + high) * rho**2 + float(np.sum(b**2 / (high + gaps))))
    off = 8.0 * g.size * _EPS * (length * rho + 0.5 * abs(top) * rho**2)
    return V @ e, value - off, max(bound, value) + off


def _matrices_above(problem: Problem, w: np.ndarray, rho: float) -> list[np.ndarray]:
    """Return matrices that the Hessian is nowhere above in the ball around w, scores' rounding included."""
    kind, fed, out = problem.traits, problem.federation, []
    reach = rho * np.sqrt(fed.row_norms2) + problem.in_scores * _EPS * problem.reach(w)
    with np.errstate(over="ignore", invalid="ignore"):
        growth = np.exp(kind.self_concordance * reach) if kind.curved else np.full(fed.n, np.inf)
    if not kind.several:
        h = problem.per_row * kind.smoothness
        if kind.curved:
            with np.errstate(over="ignore"):
                h = np.fmin(h, np.maximum(problem.curvatures(w), _LEAST) * growth)
        return [_ridged(problem, _gram(fed.X, h))] if np.isfinite(h).all() else []
    if math.isfinite(kind.smoothness):
        one = _gram(fed.X, problem.per_row * kind.smoothness)
        out.append(_ridged(problem, np.kron(np.eye(problem.n_outputs), one)))
    if kind.curved and math.isfinite(growth.max()):
        ridge = np.diag(np.broadcast_to(problem.ridge, (problem.size,)))
        off = 8.0 * _EPS * float(problem.per_row @ fed.row_norms2)  # of probabilities near 0 and 1
        found = problem.value_gradient_hessian(w)[2] - ridge + off * np.eye(problem.size)
        out.append(_ridged(problem, found * float(growth.max())))
    return out


def _longest(problem: Problem) -> np.ndarray:
    """Return the directions along which scores vary most, for losses that nothing bounds from above; one output."""
    if problem.traits.several:
        return np.empty((0, problem.size))
    return np.linalg.eigh(_gram(problem.federation.X, problem.per_row))[1].T[::-1][:8]


def _gram(X: Any, h: np.ndarray) -> np.ndarray:
    """Return X' diag(h) X."""
    return X.T @ (X * h[:, None]) if isinstance(X, np.ndarray) else (X.T @ X.multiply(h[:, None])).toarray()


def _ridged(problem: Problem, H: np.ndarray) -> np.ndarray:
    return H + np.diag(np.broadcast_to(problem.ridge, (problem.size,)))


def _rows_apart(problem: Problem, w: np.ndarray, rho: float) -> list[float]:
    """Return the bound where every row has the larger of its two losses at the ends of its scores; one output only.

    The ridge rises by at most <r w, e> + <e, r e>/2 <= ‖r w‖ rho + (max r) rho^2/2.
    """
    if problem.traits.several:
        return []
    fed = problem.federation
    z, reach = fed.X @ w, rho * np.sqrt(fed.row_norms2) + problem.in_scores * _EPS * problem.reach(w)
    Z = np.ascontiguousarray(np.stack([z, z - reach, z + reach], axis=1))
    values = np.empty_like(Z)
    row_losses.row_values(problem.row_loss, Z, problem.row_labels, values)
    ridge = np.broadcast_to(problem.ridge, w.shape)
    share = np.repeat(problem.row_weights, fed.sizes)  # kernels' values have the rows' weights
    rise = float(share @ (np.maximum(values[:, 1], values[:, 2]) - values[:, 0]))
    high = rise + rho * float(np.linalg.norm(ridge * w)) + 0.5 * float(ridge.max()) * rho**2
    off = 16.0 * math.sqrt(fed.n) * _EPS * float(share @ np.abs(values).sum(axis=1))
    return [high + off + problem.rounding(w, float(problem.value(problem.unflatten(w))))]


def _ascend(problem: Problem, w: np.ndarray, e: np.ndarray, rho: float) -> tuple[np.ndarray, float]:
    """Return the best of the steps e <- rho grad F(w + e)/‖grad F(w + e)‖, at which F never falls, and its rise."""
    first, best = float(problem.value(problem.unflatten(w))), (e, -math.inf)
    for _ in range(STEPS):
        value, g = problem.value_gradient(w + e)
        if not value - first > best[1] + 1e-11 * abs(value - first):
            break
        best = (e, value - first)
        e = rho * _unit(g)
    return best
