"""Points, gradients and values before they are known: linear over a Gram basis, inner products of those, values."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex._check import wrong_type


def _sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Add arrays of unequal size: the smaller one is filled up with zeros."""
    if a.shape == b.shape:
        return np.asarray(a + b)
    out = np.zeros([max(m, n) for m, n in zip(a.shape, b.shape, strict=True)])
    out[tuple(slice(n) for n in a.shape)] += a
    out[tuple(slice(n) for n in b.shape)] += b
    return out


class Vector:
    """A point or a gradient: coefficients over the basis of the Gram matrix.

    Vectors are added, subtracted, and multiplied and divided by numbers; ``u @ v`` is their inner product, a `Scalar`.
    NumPy arrays can do the same, so that a method written for one runs on the other.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theory.worst_case.expressions import Vector
    >>> x, g = Vector(np.array([1.0])), Vector(np.array([0.0, 1.0]))
    >>> (x - 0.5 * g).over
    array([ 1. , -0.5])
    """

    __slots__ = ("over",)
    __array_ufunc__ = None  # NumPy's numbers leave the arithmetic to this class

    def __init__(self, over: np.ndarray) -> None:
        self.over = over

    def __add__(self, other: Any) -> Vector:
        if isinstance(other, Vector):
            return Vector(_sum(self.over, other.over))
        if isinstance(other, (int, float)) and other == 0:  # the start of `sum`
            return self
        raise wrong_type("a point of the worst case", "be added to points", other)

    __radd__ = __add__

    def __neg__(self) -> Vector:
        return Vector(-self.over)

    def __sub__(self, other: Any) -> Vector:
        return self + (-other)

    def __rsub__(self, other: Any) -> Vector:
        return -self + other

    def __mul__(self, by: Any) -> Vector:
        if not isinstance(by, (int, float, np.number)):
            raise wrong_type("a point of the worst case", "be multiplied by numbers", by, "u @ v is an inner product")
        return Vector(self.over * float(by))

    __rmul__ = __mul__

    def __truediv__(self, by: Any) -> Vector:
        return self * (1.0 / by)

    def __matmul__(self, other: Any) -> Scalar:
        if not isinstance(other, Vector):
            raise wrong_type("a point of the worst case", "meet a point in an inner product", other)
        outer = np.zeros((max(len(self.over), len(other.over)),) * 2)
        outer[: len(self.over), : len(other.over)] = np.outer(self.over, other.over)
        return Scalar(0.5 * (outer + outer.T), np.zeros(0))


class Scalar:
    """A number before it is known: <quadratic, Gram matrix> + <values, function values>."""

    __slots__ = ("quadratic", "values")
    __array_ufunc__ = None

    def __init__(self, quadratic: np.ndarray, values: np.ndarray) -> None:
        self.quadratic, self.values = quadratic, values

    def __add__(self, other: Any) -> Scalar:
        if isinstance(other, Scalar):
            return Scalar(_sum(self.quadratic, other.quadratic), _sum(self.values, other.values))
        if isinstance(other, (int, float)) and other == 0:
            return self
        raise wrong_type("a metric of the worst case", "be a sum of inner products and function values", other)

    __radd__ = __add__

    def __neg__(self) -> Scalar:
        return self * -1.0

    def __sub__(self, other: Any) -> Scalar:
        return self + (-other)

    def __rsub__(self, other: Any) -> Scalar:
        return -self + other

    def __mul__(self, by: Any) -> Scalar:
        if not isinstance(by, (int, float, np.number)):
            raise wrong_type("a metric of the worst case", "be multiplied by numbers", by)
        return Scalar(self.quadratic * float(by), self.values * float(by))

    __rmul__ = __mul__

    def __truediv__(self, by: Any) -> Scalar:
        return self * (1.0 / by)
