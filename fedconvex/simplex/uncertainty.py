"""Uncertainty sets: convex sets Lambda of weights lambda of p domains (simplex, polytopes, KL balls, points).

Every set knows its Euclidean projection, its entropic (mirror) step, and its support function; arrays are (..., p).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconvex import simplex
from fedconvex._check import array, bad, finite, numeric, real, vector, whole, wrong_type
from fedconvex.simplex import inputs
from fedconvex.simplex.faces import face_step

_SLACK = 1e-9  # by how much given weights may miss a set


@dataclass(frozen=True)
class Simplex:
    """All domain weights: lambda >= 0, sum lambda = 1.

    Examples
    --------
    >>> from fedconvex.simplex.uncertainty import Simplex
    >>> value, lam = Simplex().support([0.3, 0.5])
    >>> float(value), lam
    (0.5, array([0., 1.]))
    """

    whole = True  # entropic steps end in it: lambda_i exp(g_i) over their sum

    def check(self, who: str, p: int) -> None:
        """Raise if the set does not hold weights of p domains."""

    def start(self, p: int) -> np.ndarray:
        """Return the weights where methods start: equal ones."""
        p = whole("Simplex.start: p", p, low=1)
        return np.full(p, 1.0 / p)

    def contains(self, domain_weights: Any, slack: float = _SLACK) -> bool:
        """Whether domain_weights is in the set, up to slack in every entry and in the sum."""
        slack = real("contains: slack", slack, low=0.0)
        lam = _values("contains: domain_weights", domain_weights)
        return bool(lam.min() >= -slack and np.abs(lam.sum(axis=-1) - 1.0).max() <= slack)

    def project(self, v: Any) -> np.ndarray:
        """Return the nearest weights of the set in the Euclidean norm."""
        return simplex.project_simplex(v)

    def entropic(self, domain_weights: Any, g: Any) -> np.ndarray:
        """Return argmax <g, lambda> - KL(lambda‖c), c the present weights: lambda_i proportional to c_i exp(g_i)."""
        return simplex.project_kl_simplex(_tilted(domain_weights, g))

    def support(self, values: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return max <values, lambda>, never too small, and a maximiser."""
        F = _values("Simplex.support: values", values)
        return F.max(axis=-1), np.eye(F.shape[-1])[F.argmax(axis=-1)]

    def minimise(self, Z: np.ndarray, c: np.ndarray, near: np.ndarray | None = None) -> np.ndarray:
        """Return argmin ‖sum_k lambda_k Z_k‖^2/2 + <c, lambda>, Z (p, d), soonest where ``near`` is on its face."""
        return minimise_over_simplex(Z, c, near)


@dataclass(frozen=True)
class Polytope:
    """The domain weights with A lambda <= b.

    Parameters
    ----------
    A : array (m, p)
    b : array (m,)

    Raises
    ------
    ValueError
        If no weights satisfy A lambda <= b.

    Examples
    --------
    >>> from fedconvex.simplex.uncertainty import Polytope
    >>> half = Polytope([[1.0, 0.0, 0.0]], [0.5])
    >>> half.project([1.0, 0.0, 0.0])
    array([0.5 , 0.25, 0.25])
    >>> half.support([3.0, 2.0, 1.0])[0].item()
    2.5
    """

    A: Any
    b: Any

    def __post_init__(self) -> None:
        A, b = numeric("Polytope.A", self.A), numeric("Polytope.b", self.b)
        if A.ndim != 2 or b.ndim != 1 or A.shape[0] != b.size or A.size == 0:
            raise bad("Polytope", "have A (m, p) and b (m,)", f"{A.shape} and {b.shape}")
        finite("Polytope.A", A)
        finite("Polytope.b", b)
        object.__setattr__(self, "A", tuple(map(tuple, A.tolist())))
        object.__setattr__(self, "b", tuple(b.tolist()))
        simplex.project_polytope(np.zeros(A.shape[1]), A, b)  # raises where the set is empty

    def check(self, who: str, p: int) -> None:
        """Raise if the set does not hold weights of p domains."""
        _same_size(who, len(self.A[0]), p)

    def start(self, p: int) -> np.ndarray:
        """Return the weights where methods start: those of largest entropy."""
        p = whole("Polytope.start: p", p, low=1)
        return simplex.project_kl_polytope(np.full(p, 1.0 / p), self.A, self.b)

    def contains(self, domain_weights: Any, slack: float = _SLACK) -> bool:
        """Whether domain_weights is in the set, up to slack in entries, in the sum and (relative) in A lambda <= b."""
        A = np.array(self.A)
        lam = _values("Polytope.contains: domain_weights", domain_weights, A.shape[1])
        slack = real("Polytope.contains: slack", slack, low=0.0)
        room = slack * (1.0 + np.abs(A).max(axis=1))
        return Simplex().contains(lam, slack) and bool((lam @ A.T <= np.array(self.b) + room).all())

    def project(self, v: Any) -> np.ndarray:
        """Return the nearest weights of the set in the Euclidean norm."""
        return simplex.project_polytope(v, self.A, self.b)

    def entropic(self, domain_weights: Any, g: Any) -> np.ndarray:
        """Return argmax <g, lambda> - KL(lambda‖c), c the present weights."""
        return simplex.project_kl_polytope(_tilted(domain_weights, g), self.A, self.b)

    def support(self, values: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return max <values, lambda>, never too small, and a maximiser: a vertex.

        The value is that of the dual, b'y + max_k (values - A'y)_k, which for every y >= 0 is an upper bound.
        """
        return _largest_by_row(self._vertex, _moderate("Polytope.support: values", values, len(self.A[0])))

    def _vertex(self, row: np.ndarray) -> tuple[float, np.ndarray]:
        from scipy.optimize import linprog

        A, b, size = np.array(self.A), np.array(self.b), max(float(np.ptp(row)), 1e-300)
        cost = (row.max() - row) / size
        found = linprog(cost, A_ub=A, b_ub=b, A_eq=np.ones((1, row.size)), b_eq=[1.0], method="highs")
        lam = np.maximum(found.x, 0.0)
        y = size * np.maximum(-found.ineqlin.marginals, 0.0)
        return float(b @ y + np.max(row - y @ A)), lam / lam.sum()

    def minimise(self, Z: np.ndarray, c: np.ndarray, near: np.ndarray | None = None) -> np.ndarray:
        """Return argmin ‖sum_k lambda_k Z_k‖^2/2 + <c, lambda>, Z (p, d), by simplicial decomposition from a vertex.

        The quadratic is minimised over the hull of some vertices, and the vertex that its gradient prefers is added:
        finite, since every vertex is added at most once (von Hohenbalken 1977).
        """
        c = vector("Polytope.minimise: c", c)
        Z = array("Polytope.minimise: Z", Z, (c.size, None), copy=False)
        vertices = [self.support(-(0.5 * np.einsum("kj,kj->k", Z, Z) + c))[1]]
        scale = float(np.abs(Z @ Z.T).max() + np.abs(c).max()) + 1e-300
        for _ in range(20 * len(c) + 200):
            V = np.array(vertices)
            lam = minimise_over_simplex(V @ Z, V @ c) @ V
            slope = Z @ (lam @ Z) + c
            vertex = self.support(-slope)[1]
            if slope @ (lam - vertex) <= 1e-14 * scale or np.abs(V - vertex).sum(axis=1).min() < 1e-12:
                break
            vertices.append(vertex)
        return lam


@dataclass(frozen=True)
class KLBall:
    """The domain weights with KL(lambda‖center) <= radius.

    Parameters
    ----------
    center : array (p,)
        Domain weights. Where they are 0, so are all weights of the ball.
    radius : float
        Nonnegative; from -log of the least entry on, the ball is the whole simplex.

    Raises
    ------
    ValueError, TypeError
        If center is no vector of weights with sum one, or radius is negative.

    Examples
    --------
    >>> from fedconvex.simplex.uncertainty import KLBall
    >>> ball = KLBall([0.5, 0.5], 0.1)
    >>> ball.support([1.0, 0.0])[1].round(4)
    array([0.7198, 0.2802])
    """

    center: Any
    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "center", _one_vector("KLBall.center", self.center))
        object.__setattr__(self, "radius", real("KLBall.radius", self.radius, low=0.0))

    def check(self, who: str, p: int) -> None:
        """Raise if the set does not hold weights of p domains."""
        _same_size(who, len(self.center), p)

    def start(self, p: int) -> np.ndarray:
        """Return the weights where methods start: the centre."""
        return np.array(self.center)

    def contains(self, domain_weights: Any, slack: float = _SLACK) -> bool:
        """Whether domain_weights is in the set, up to slack in every entry, in the sum and in the divergence."""
        c = np.array(self.center)
        lam = _values("KLBall.contains: domain_weights", domain_weights, c.size)
        if not Simplex().contains(lam, slack) or (lam[..., c == 0.0] > slack).any():
            return False
        return bool((divergence(lam, c) <= self.radius + slack).all())

    def project(self, v: Any) -> np.ndarray:
        """Return the nearest weights of the set in the Euclidean norm."""
        return simplex.project_divergence_ball(v, self.center, self.radius)

    def entropic(self, domain_weights: Any, g: Any) -> np.ndarray:
        """Return argmax <g, lambda> - KL(lambda‖c), c the present weights."""
        return simplex.project_kl_divergence_ball(_tilted(domain_weights, g), self.center, self.radius)

    def support(self, values: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return max <values, lambda>, never too small, and a maximiser.

        The value is that of the dual, nu radius + nu log sum_k center_k exp(values_k/nu), an upper bound for every nu.
        """
        return _largest_by_row(
            lambda row: self.tilt(row)[:2], _moderate("KLBall.support: values", values, len(self.center))
        )

    def tilt(self, row: np.ndarray, least: float = 0.0) -> tuple[float, np.ndarray, float]:
        """Return value, maximiser and multiplier nu >= 0 of max <row, lambda> over the ball.

        With a least nu: value and weights of nu r + nu log sum c e^{row/nu} where the best nu would be below it.
        """
        value, weights, nu = self._tilt(row)
        if nu >= least:
            return value, weights, nu
        found = _family(np.array(self.center), row, least)
        return found.origin + least * (self.radius + found.log_mean), found.domain_weights, least

    def _tilt(self, row: np.ndarray) -> tuple[float, np.ndarray, float]:
        from scipy.optimize import brentq

        c = np.array(self.center)
        top = float(row[c > 0.0].max())
        below = np.where(c > 0.0, top - row, np.inf)
        best = below <= 1e-15 * max(1.0, abs(top))
        face = np.where(best, c, 0.0) / c[best].sum()
        size = float(below[np.isfinite(below)].max())
        if self.radius >= -math.log(c[best].sum()):
            return top, face, 0.0
        if self.radius == 0.0:
            return float(c[c > 0.0] @ row[c > 0.0]), c, math.inf

        def excess(log_nu: float) -> float:
            return _family(c, row, math.exp(log_nu)).divergence - self.radius

        low, high = math.log(size) - 1.0, math.log(size) + 1.0
        while excess(low) < 0.0 and low > math.log(size) - 600.0:
            low -= 2.0
        while excess(high) > 0.0:
            high += 2.0
        nu = math.exp(brentq(excess, low, high, xtol=1e-15, rtol=1e-15)) if excess(low) > 0.0 else math.exp(low)
        found = _family(c, row, nu)
        return found.origin + nu * (self.radius + found.log_mean), found.domain_weights, nu


class _Tilted(NamedTuple):
    """Weights in proportion to c exp(row/nu)."""

    domain_weights: np.ndarray
    divergence: float  # from c
    origin: float
    log_mean: float  # of exp((row - origin)/nu) under c


def _family(c: np.ndarray, row: np.ndarray, nu: float) -> _Tilted:
    """Return the weights and what is said of them, without cancellation for large nu, where they are nearly c."""
    on, total = c > 0.0, c.sum()
    mean = float(c[on] @ row[on]) / total
    away = np.where(on, row - mean, 0.0)
    x = (away - np.where(on, float(c @ away) / total, 0.0)) / nu  # c'x = 0, where the mean was rounded, too
    if np.abs(x).max() <= 1.0:
        grown = np.expm1(x)
        more = float(c @ (grown - x)) / total
        log_mean = math.log1p(more)
        spread = float(c @ (x * grown)) / (total * (1.0 + more))
        return _Tilted(c * (1.0 + grown) / (total * (1.0 + more)), spread - log_mean, mean, log_mean)
    top = float(row[on].max())
    y = c * np.exp(np.where(on, row - top, -np.inf) / nu)
    return _Tilted(y / y.sum(), float(divergence(y / y.sum(), c)), top, math.log(y.sum() / total))


@dataclass(frozen=True)
class Point:
    """A single vector of domain weights: agnostic learning becomes plain minimisation of sum lambda_k F_k.

    Parameters
    ----------
    domain_weights : array (p,)
        At least 0, of sum 1.

    Raises
    ------
    ValueError, TypeError
        If domain_weights is no vector of weights with sum one.

    Examples
    --------
    >>> from fedconvex.simplex.uncertainty import Point
    >>> Point([0.25, 0.75]).project([1.0, 0.0])
    array([0.25, 0.75])
    """

    domain_weights: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "domain_weights", _one_vector("Point.domain_weights", self.domain_weights))

    def check(self, who: str, p: int) -> None:
        """Raise if the set does not hold weights of p domains."""
        _same_size(who, len(self.domain_weights), p)

    def start(self, p: int) -> np.ndarray:
        """Return the weights where methods start, the only ones."""
        return np.array(self.domain_weights)

    def contains(self, domain_weights: Any, slack: float = _SLACK) -> bool:
        """Whether domain_weights is the point, up to slack."""
        slack, here = real("Point.contains: slack", slack, low=0.0), np.array(self.domain_weights)
        return bool(np.abs(_values("Point.contains: domain_weights", domain_weights, here.size) - here).max() <= slack)

    def project(self, v: Any) -> np.ndarray:
        """Return the weights."""
        here = np.array(self.domain_weights)
        return np.broadcast_to(here, _values("Point.project: v", v, here.size).shape).copy()

    def entropic(self, domain_weights: Any, g: Any) -> np.ndarray:
        """Return the weights."""
        return self.project(domain_weights)

    def support(self, values: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return <values, lambda>, and lambda."""
        F = _values("Point.support: values", values, len(self.domain_weights))
        return F @ np.array(self.domain_weights), self.project(F)

    def minimise(self, Z: np.ndarray, c: np.ndarray, near: np.ndarray | None = None) -> np.ndarray:
        """Return the weights."""
        return np.array(self.domain_weights)


# ---------------------------------------------------------------- softmax


def log_sum_exp(values: Any, mu: float) -> np.ndarray:
    """Return (1/mu) log sum_k exp(mu values_k) over the last axis: at least the maximum, at most log(p)/mu above it.

    ``scipy.special.logsumexp(mu * values) / mu`` overflows where mu values does; here differences are scaled.

    Examples
    --------
    >>> from fedconvex.simplex.uncertainty import log_sum_exp
    >>> log_sum_exp([1.0, 1.0], mu=2.0).round(6).item()  # 1 + log(2)/2
    1.346574
    """
    F, m = numeric("log_sum_exp: values", values), real("log_sum_exp: mu", mu, low=0.0, strict=True)
    top = F.max(axis=-1, keepdims=True)
    return top[..., 0] + np.log(np.exp(m * (F - top)).sum(axis=-1)) / m


def softmax(values: np.ndarray, mu: float) -> np.ndarray:
    """Return exp(mu values)/sum exp(mu values) over the last axis, the gradient of `log_sum_exp`.

    ``scipy.special.softmax(mu * values)`` is NaN where mu values overflows; here differences are scaled.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.simplex.uncertainty import softmax
    >>> softmax(np.array([0.0, 1000.0]), mu=1.0)
    array([0., 1.])
    """
    e = np.exp(mu * (values - values.max(axis=-1, keepdims=True)))
    return e / e.sum(axis=-1, keepdims=True)


# ---------------------------------------------------------------- small things


def check_set(who: str, uncertainty_set: Any, p: int) -> None:
    """Raise unless it is a set of weights of p domains."""
    if isinstance(uncertainty_set, type) or not hasattr(uncertainty_set, "support"):
        must = "be one of fedconvex.simplex.uncertainty, such as Simplex()"
        raise wrong_type(f"{who}: uncertainty_set", must, f"{uncertainty_set!r}")
    uncertainty_set.check(who, p)


def divergence(lam: np.ndarray, c: np.ndarray) -> np.ndarray:
    """KL(lambda‖c) of weights (..., p); entries where c is 0 are left out."""
    on = c > 0.0
    x = np.maximum(lam[..., on], 0.0)
    return np.sum(x * np.log(np.where(x > 0.0, x, 1.0) / c[on]), axis=-1)


def _largest_by_row(
    best: Callable[[np.ndarray], tuple[float, np.ndarray]], F: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return values (...) and maximisers (..., p) of rows (..., p)."""
    found = [best(row) for row in F.reshape(-1, F.shape[-1])]
    values, weights = np.array([v for v, _ in found]), np.array([lam for _, lam in found])
    return values.reshape(F.shape[:-1]), weights.reshape(F.shape)


def _tilted(domain_weights: Any, g: Any) -> np.ndarray:
    """Weights times exp(g) up to a factor per row."""
    lam, up = _values("entropic: domain_weights", domain_weights), numeric("entropic: g", g, copy=False)
    if up.shape != lam.shape:
        raise bad("entropic: g", f"have the shape {lam.shape} of the weights", f"{up.shape}")
    up = np.where(lam > 0.0, up, -np.inf)  # what weighs nothing stays so, however far up
    return lam * np.exp(up - up.max(axis=-1, keepdims=True))


def _one_vector(who: str, domain_weights: Any) -> tuple[float, ...]:
    lam = numeric(who, domain_weights)
    if lam.ndim != 1 or lam.size == 0:
        raise bad(who, "be one vector of domain weights", f"shape {lam.shape}")
    finite(who, lam)
    if not Simplex().contains(lam) or lam.min() < 0.0:
        raise bad(who, "be nonnegative and sum to one", f"{lam.tolist()}", "divide by the sum")
    return tuple((lam / lam.sum()).tolist())


def _same_size(who: str, mine: int, p: int) -> None:
    if mine != p:
        raise bad(f"{who}.uncertainty_set", f"hold weights of the {p} domains", f"weights of {mine}")


def _moderate(who: str, x: Any, p: int) -> np.ndarray:
    """Return one number per domain, (p,) or (R, p), whose products do not overflow."""
    a = _values(who, x, p)
    finite(who, a)
    inputs.moderate(who, a)
    return a


def _values(who: str, x: Any, p: int | None = None) -> np.ndarray:
    """Return one number per domain, (p,) or (R, p); they may be infinite or unknown."""
    a = numeric(who, x)
    if a.ndim == 0 or a.size == 0 or p not in (None, a.shape[-1]):
        p = "p" if p is None else p  # type: ignore[assignment]
        raise bad(who, f"have shape ({p},) or (R, {p})", f"{a.shape}")
    return a


# ---------------------------------------------------------------- quadratic programmes over the simplex


def minimise_over_simplex(Z: np.ndarray, c: np.ndarray, near: np.ndarray | None = None) -> np.ndarray:
    """Minimise ‖sum_j w_j Z_j‖^2/2 + c'w over w >= 0, sum w = 1: primal active set, Z (m, d), from weights ``near``.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.simplex.uncertainty import minimise_over_simplex
    >>> minimise_over_simplex(np.array([[1.0], [-3.0]]), np.zeros(2))
    array([0.75, 0.25])
    """
    c = vector("minimise: c", c)
    Z = array("minimise: Z", Z, (c.size, None), copy=False)
    Q, m = Z @ Z.T, len(c)
    scale = float(np.max(np.abs(Q))) + float(np.max(np.abs(c))) + 1e-300
    if near is None:
        w = np.zeros(m)
        w[int(np.argmin(0.5 * np.diag(Q) + c))] = 1.0
    else:
        w = near / near.sum()
    free = w > 0.0
    for _ in range(50 * m):
        step = face_step(Q, Q @ w + c, free, scale)
        moved = float(np.max(np.abs(step))) > 1e-13
        if moved:
            shrinking = step < 0.0
            ratio = np.full(m, math.inf)
            ratio[shrinking] = -w[shrinking] / step[shrinking]
            j = int(np.argmin(ratio))
            w = np.maximum(w + min(1.0, ratio[j]) * step, 0.0)
            if ratio[j] <= 1.0:
                w[j], free[j] = 0.0, False
                continue
        slope = Q @ w + c
        slope -= w @ slope
        j = int(np.argmin(np.where(free, 0.0, slope)))
        if slope[j] >= -1e-14 * scale or free[j]:
            break
        free[j] = True
    return np.asarray(w / w.sum())
