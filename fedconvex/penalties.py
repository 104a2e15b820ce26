"""Penalties and constraints P of F(w) = sum_k p_k f_k(w) + P(w), with their proximal maps and conjugates.

A penalty is a NamedTuple of its parameters, and its methods are the mathematics, as for losses: ``value`` is P,
``prox(v, a)`` is argmin_w a P(w) + (w - v)^2/2 for a >= 0, and ``conjugate(u)`` is P*(u) = sup_w u w - P(w), infinite
outside its domain. A constraint is a penalty that is 0 where it holds and infinite elsewhere; its proximal map is the
projection, whatever a is, and ``prox(v, 0)`` is the nearest model at which P is finite.

Most penalties are sums over the entries of the model (d,), or (C, d): their methods take numbers, and the same source
runs as Python and inside compiled kernels. The others declare ``entrywise = False``, and their methods take R models at
once as an array (R, C, d), C = 1 for one output:

* `GroupLasso`: a group of columns is in or out for all C classes together;
* `Simplex`: the row of every class lies on the simplex.

Those also have ``conjugate_above(u, e)``, the largest P* of all v with |v - u| <= e, entry by entry, which certificates
need.

A penalty of your own
---------------------
Any NamedTuple with a convex ``value``, its ``prox`` and its ``conjugate``, of one entry, written in the part of Python
that Numba compiles, works wherever these do. A field ``strength`` makes paths possible (`Problem.path`).

>>> import math
>>> from typing import NamedTuple
>>> class Quantile(NamedTuple):
...     '''P(w) = strength max(q w, (q - 1) w): positive entries cost more than negative ones for q > 1/2.'''
...     strength: float
...     q: float = 0.5
...     def value(self, w):
...         return self.strength * max(self.q * w, (self.q - 1.0) * w)
...     def prox(self, v, a):
...         low, high = a * self.strength * (self.q - 1.0), a * self.strength * self.q
...         return v - high if v > high else (v - low if v < low else 0.0)
...     def conjugate(self, u):
...         return 0.0 if self.strength * (self.q - 1.0) <= u <= self.strength * self.q else math.inf
>>> from fedconvex import Federation, Problem, Squared
>>> problem = Problem(Federation.from_clients([([[1.0]], [3.0])]), Squared(), penalty=Quantile(1.0, 0.75))
>>> problem.solve().w
array([2.25])
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fedconvex import simplex
from fedconvex._check import bad, equal_by_type, real, whole, wrong_type

__all__ = [
    "L1",
    "Box",
    "ElasticNet",
    "GroupLasso",
    "NonNegative",
    "Simplex",
    "check_penalty",
    "is_entrywise",
    "strong_convexity",
]

# How far sums of w may be from a simplex's total, relative to it, for w to count as on it: projections round
_ON_SIMPLEX = 1e-9


@equal_by_type
class L1(NamedTuple):
    """P(w) = strength sum_j |w_j|: the lasso (Tibshirani 1996). Every entry of a (C, d) model counts alone.

    Parameters
    ----------
    strength : float
        At least 0, in units of the objective per unit of w.

    Examples
    --------
    >>> from fedconvex.penalties import L1
    >>> L1(0.5).value(-2.0), L1(0.5).prox(3.0, 2.0), L1(0.5).conjugate(0.4)
    (1.0, 2.0, 0.0)
    """

    strength: float

    def value(self, w):
        """Return strength |w|."""
        return self.strength * abs(w)

    def prox(self, v, a):
        """Return v moved towards 0 by a strength: soft thresholding."""
        t = a * self.strength
        return v - t if v > t else (v + t if v < -t else 0.0)

    def conjugate(self, u):
        """Return 0 if |u| <= strength."""
        return 0.0 if abs(u) <= self.strength else math.inf

    def check(self, C: int, d: int) -> None:
        """Raise ValueError unless strength >= 0."""
        real("L1.strength", self.strength, low=0.0)


@equal_by_type
class ElasticNet(NamedTuple):
    """P(w) = strength sum_j (l1_ratio |w_j| + (1 - l1_ratio) w_j^2/2) (Zou and Hastie 2005), entry by entry.

    Parameters
    ----------
    strength : float
        At least 0.
    l1_ratio : float
        In [0, 1]: 1 is the lasso, 0 the ridge.

    Examples
    --------
    >>> from fedconvex.penalties import ElasticNet
    >>> ElasticNet(1.0, 0.5).value(2.0), ElasticNet(1.0, 0.5).prox(3.0, 2.0)
    (2.0, 1.0)
    """

    strength: float
    l1_ratio: float = 0.5

    def value(self, w):
        """Return strength (l1_ratio |w| + (1 - l1_ratio) w^2/2)."""
        return self.strength * (self.l1_ratio * abs(w) + 0.5 * (1.0 - self.l1_ratio) * w * w)

    def prox(self, v, a):
        """Return v moved towards 0 by a strength l1_ratio, over 1 + a strength (1 - l1_ratio)."""
        t = a * self.strength * self.l1_ratio
        moved = v - t if v > t else (v + t if v < -t else 0.0)
        return moved / (1.0 + a * self.strength * (1.0 - self.l1_ratio))

    def conjugate(self, u):
        """Return max(|u| - strength l1_ratio, 0)^2 / (2 strength (1 - l1_ratio)), inf where that divides by 0."""
        over = abs(u) - self.strength * self.l1_ratio
        if over <= 0.0:
            return 0.0
        curved = self.strength * (1.0 - self.l1_ratio)
        return 0.5 * over * over / curved if curved > 0.0 else math.inf

    @property
    def strong_convexity(self) -> float:
        """strength (1 - l1_ratio)."""
        return self.strength * (1.0 - self.l1_ratio)

    def check(self, C: int, d: int) -> None:
        """Raise ValueError unless strength >= 0 and 0 <= l1_ratio <= 1."""
        real("ElasticNet.strength", self.strength, low=0.0)
        real("ElasticNet.l1_ratio", self.l1_ratio, low=0.0, high=1.0)


@equal_by_type
class NonNegative(NamedTuple):
    """P(w) = strength sum_j w_j for w >= 0, else infinite: a constraint, and the positive lasso for strength > 0.

    Parameters
    ----------
    strength : float
        At least 0.

    Examples
    --------
    >>> from fedconvex.penalties import NonNegative
    >>> NonNegative().value(-1.0), NonNegative().prox(-1.0, 1.0), NonNegative().conjugate(-2.0)
    (inf, 0.0, 0.0)
    """

    strength: float = 0.0

    def value(self, w):
        """Return strength w, or inf below 0."""
        return self.strength * w if w >= 0.0 else math.inf

    def prox(self, v, a):
        """Return max(v - a strength, 0)."""
        return max(v - a * self.strength, 0.0)

    def conjugate(self, u):
        """Return 0 if u <= strength."""
        return 0.0 if u <= self.strength else math.inf

    def check(self, C: int, d: int) -> None:
        """Raise ValueError unless strength >= 0."""
        real("NonNegative.strength", self.strength, low=0.0)


@equal_by_type
class Box(NamedTuple):
    """P(w) = 0 where low <= w_j <= high for every entry, else infinite; either end may be infinite.

    Parameters
    ----------
    low, high : float
        Ends, low <= high.

    Examples
    --------
    >>> from fedconvex.penalties import Box
    >>> Box(-1.0, 2.0).prox(5.0, 1.0), Box(-1.0, 2.0).conjugate(-3.0)
    (2.0, 3.0)
    """

    low: float
    high: float

    def value(self, w):
        """Return 0 in [low, high], else inf."""
        return 0.0 if self.low <= w <= self.high else math.inf

    def prox(self, v, a):
        """Return v clipped to [low, high]."""
        return min(max(v, self.low), self.high)

    def conjugate(self, u):
        """Return max(low u, high u)."""
        return self.high * u if u > 0.0 else (self.low * u if u < 0.0 else 0.0)

    def check(self, C: int, d: int) -> None:
        """Raise ValueError unless low <= high, neither is NaN, and one number lies between them."""
        for name, v in (("low", self.low), ("high", self.high)):
            if isinstance(v, bool) or not isinstance(v, (int, float, np.integer, np.floating)):
                raise wrong_type(f"Box.{name}", "be a number", f"{v!r}")
        if not self.low <= self.high or self.low == math.inf or self.high == -math.inf:
            raise bad("Box", "have low <= high", f"low = {self.low}, high = {self.high}")


@equal_by_type
class GroupLasso(NamedTuple):
    """P(w) = strength sum_g weight_g ‖w_g‖, g over groups of columns (Yuan and Lin 2006).

    In (C, d) models w_g holds all C entries of the group's columns: a group is in or out for all classes together.

    Parameters
    ----------
    strength : float
    groups : int or tuple of int (d,)
        The number of every column's group; or of how many neighbouring columns each group is made (the last may have
        fewer).
    weights : tuple of float, optional
        One per group, in the order of their numbers, positive; default the square root of its number of columns.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.penalties import GroupLasso
    >>> penalty = GroupLasso(1.0, groups=(0, 0, 1), weights=(1.0, 1.0))
    >>> w = np.array([[[3.0, 4.0, 0.5]]])
    >>> penalty.value(w), penalty.prox(w, 2.5)
    (array([5.5]), array([[[1.5, 2. , 0. ]]]))
    """

    strength: float
    groups: Any
    weights: tuple[float, ...] = ()

    @property
    def entrywise(self) -> bool:
        """Methods take whole models."""
        return False

    def blocks(self, d: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the group of every column (d,), numbered from 0, and strength weight_g of every group."""
        if isinstance(self.groups, (int, np.integer)):
            code = np.arange(d) // int(self.groups)
        else:
            code = np.unique(np.asarray(self.groups), return_inverse=True)[1].ravel()
        weights = np.asarray(self.weights, dtype=np.float64) if self.weights else np.sqrt(np.bincount(code))
        return code, self.strength * weights

    def _norms(self, W: np.ndarray, code: np.ndarray, size: int) -> np.ndarray:
        """Return ‖w_g‖ of every model, (R, groups)."""
        squares = np.sum(W * W, axis=1)
        return np.sqrt(np.stack([np.bincount(code, weights=row, minlength=size) for row in squares]))

    def value(self, W):
        """Return strength sum_g weight_g ‖w_g‖ of every model, (R,)."""
        code, t = self.blocks(W.shape[2])
        return self._norms(W, code, t.size) @ t

    def prox(self, V, a):
        """Return every group shortened by a strength weight_g, a one number or (R,)."""
        code, t = self.blocks(V.shape[2])
        norms = self._norms(V, code, t.size)
        t = np.multiply.outer(np.broadcast_to(a, len(V)), t)
        keep = np.where(norms > t, 1.0 - t / np.where(norms > t, norms, 1.0), 0.0)
        return V * keep[:, None, code]

    def conjugate(self, U):
        """Return 0 where every ‖u_g‖ <= strength weight_g, (R,)."""
        return self.conjugate_above(U, np.zeros_like(U))

    def conjugate_above(self, U, e):
        """Return 0 where every ‖u_g‖ + ‖e_g‖ <= strength weight_g."""
        code, t = self.blocks(U.shape[2])
        norms = self._norms(U, code, t.size) + self._norms(e, code, t.size)
        return np.where((norms <= t).all(axis=1), 0.0, math.inf)

    def dual_scale(self, U, e):
        """Return the largest s <= 1 with s (‖u_g‖ + ‖e_g‖) <= strength weight_g for all g, of one model."""
        code, t = self.blocks(U.shape[2])
        norms = (self._norms(U, code, t.size) + self._norms(e, code, t.size))[0]
        over = norms > t
        return float((t[over] / norms[over]).min()) * (1.0 - 4e-16) if over.any() else 1.0

    def check(self, C: int, d: int) -> None:
        """Raise unless strength >= 0, every column has a group, and every group a positive weight."""
        real("GroupLasso.strength", self.strength, low=0.0)
        if isinstance(self.groups, (int, np.integer)):
            whole("GroupLasso.groups", self.groups, low=1, high=d)
        elif not isinstance(self.groups, tuple) or not all(isinstance(g, (int, np.integer)) for g in self.groups):
            raise wrong_type("GroupLasso.groups", "be a whole number or a tuple of them", f"{self.groups!r}")
        elif len(self.groups) != d:
            raise bad("GroupLasso.groups", f"name the group of each of the {d} columns", f"{len(self.groups)} entries")
        if not isinstance(self.weights, tuple):
            raise wrong_type("GroupLasso.weights", "be a tuple of numbers", f"{self.weights!r}")
        for v in self.weights:
            real("GroupLasso.weights", v, low=0.0, strict=True)
        count = int(self._replace(weights=()).blocks(d)[1].size)
        if self.weights and len(self.weights) != count:
            raise bad("GroupLasso.weights", f"have one entry per group ({count})", f"{len(self.weights)}")


@equal_by_type
class Simplex(NamedTuple):
    """P(w) = 0 where w >= 0 and sum_j w_j = total, else infinite; in (C, d) models for the row of every class.

    The projection is the exact one of `fedconvex.simplex`. Sums that miss the total by no more than 1e-9 of it count
    as the total: projections round.

    Parameters
    ----------
    total : float
        The sum of the entries, positive.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.penalties import Simplex
    >>> Simplex().prox(np.array([[[0.5, 1.5]]]), 1.0), Simplex().conjugate(np.array([[[3.0, -1.0]]]))
    (array([[[0., 1.]]]), array([3.]))
    """

    total: float = 1.0

    @property
    def entrywise(self) -> bool:
        """Methods take whole models."""
        return False

    def value(self, W):
        """Return 0 for models on the simplex, else inf, (R,)."""
        off = np.abs(W.sum(axis=2) - self.total).max(axis=1)
        return np.where((W.min(axis=(1, 2)) >= 0.0) & (off <= _ON_SIMPLEX * self.total), 0.0, math.inf)

    def prox(self, V, a):
        """Return the Euclidean projection of every row, whatever a is."""
        return simplex.project_simplex(V, self.total)

    def conjugate(self, U):
        """Return total times the sum over the rows of their largest entry, (R,)."""
        return self.total * U.max(axis=2).sum(axis=1)

    def conjugate_above(self, U, e):
        """Return the conjugate at u + e, which is the largest."""
        return self.conjugate(U + e)

    def check(self, C: int, d: int) -> None:
        """Raise ValueError unless total > 0."""
        real("Simplex.total", self.total, low=0.0, strict=True)


def is_entrywise(penalty: Any) -> bool:
    """Return whether P is a sum over entries, so that its methods take numbers.

    Parameters
    ----------
    penalty : penalty
        One of this module, or of your own.

    Examples
    --------
    >>> from fedconvex.penalties import L1, Simplex, is_entrywise
    >>> is_entrywise(L1(0.1)), is_entrywise(Simplex())
    (True, False)
    """
    return bool(getattr(penalty, "entrywise", True))


def strong_convexity(penalty: Any) -> float:
    """Return the modulus of strong convexity that a penalty declares; default 0.

    Parameters
    ----------
    penalty : penalty
        One of this module, or of your own.

    Examples
    --------
    >>> from fedconvex.penalties import ElasticNet, L1, strong_convexity
    >>> strong_convexity(L1(0.1)), strong_convexity(ElasticNet(1.0, 0.25))
    (0.0, 0.75)
    """
    return float(getattr(penalty, "strong_convexity", 0.0))


def check_penalty(who: str, penalty: Any, C: int, d: int) -> Any:
    """Return the penalty of models (C, d), or raise unless it is one.

    Parameters
    ----------
    who : str
        Whose penalty it is, for messages.
    penalty : penalty or None
        None passes.
    C, d : int
        Outputs and features of the model.

    Raises
    ------
    TypeError, ValueError
        If it is no NamedTuple with value, prox and conjugate, or refuses its own parameters.

    Examples
    --------
    >>> from fedconvex.penalties import L1, check_penalty
    >>> check_penalty("Problem", L1(0.1), 1, 3)
    L1(strength=0.1)
    """
    if penalty is None:
        return None
    named = all(callable(getattr(penalty, name, None)) for name in ("value", "prox", "conjugate"))
    if isinstance(penalty, type) or not (isinstance(penalty, tuple) and named):
        cure = f"pass {penalty.__name__}(...)" if isinstance(penalty, type) else "use one of fedconvex.penalties"
        raise wrong_type(f"{who}.penalty", "be a NamedTuple with value, prox and conjugate", f"{penalty!r}", cure)
    if hasattr(penalty, "check"):
        penalty.check(C, d)
    return penalty
