"""The smoothed geometric median: a model that is close to the mean rows of most clients, whatever the others send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedconvex._check import bad, instance, real
from fedconvex.federation import Federation
from fedconvex.problems.protocol import ClientWeights, Measure, client_weights

_EPS = np.finfo(float).eps


class GeometricMedian(ClientWeights):
    """F(w) = sum_k p_k sqrt(‖w - x_k‖^2 + nu^2), x_k the mean of client k's rows; labels are not used.

    Parameters
    ----------
    federation : Federation
        Dense rows.
    nu : float
        Smoothing, positive, in units of the rows.
    weights : None, "uniform" or array (K,)
        p_k, as of `fedconvex.Problem`.

    Notes
    -----
    Certificate: F(w) - F* <= max_k <grad F(w), w - x_k>. F is convex, so that F* >= F(w) + <grad F(w), w* - w>; and w*
    lies in the convex hull of the x_k, because the projection onto it comes closer to all of them.

    Examples
    --------
    >>> from fedconvex import Federation
    >>> from fedconvex.families.medians.problem import GeometricMedian
    >>> fed = Federation.from_clients([([[0.0]], [0.0]), ([[1.0]], [0.0]), ([[50.0]], [0.0])])
    >>> problem = GeometricMedian(fed, nu=1e-3)
    >>> measured = problem.measure([[1.0]])
    >>> float(measured.value[0].round(2)), bool(measured.gap[0] < 1e-12)
    (16.67, False)
    """

    learns = "a median of the clients"
    loss = None
    l2 = 0.0

    def __init__(self, federation: Federation, nu: float, weights: Any = None) -> None:
        instance("GeometricMedian.federation", federation, Federation)
        if federation.is_sparse:
            raise bad("GeometricMedian.federation", "have dense rows", "sparse ones", "pass X.toarray()")
        self.federation, self.nu = federation, real("GeometricMedian.nu", nu, low=0.0, strict=True)
        self.weights = client_weights("GeometricMedian", weights, federation)

    @property
    def model_shape(self) -> tuple[int, ...]:
        """(d,): a model is a point among the rows."""
        return (self.federation.d,)

    def statistic(self, name: str) -> Sequence[np.ndarray]:
        """Refuse: clients are asked for nothing before the first round."""
        raise bad("GeometricMedian.statistic", "be asked for nothing", repr(name))

    def centre(self, k: int) -> np.ndarray:
        """Return x_k, (d,), from the rows of client k alone."""
        fed = self.federation
        return np.asarray(fed.X[fed.ptr[k] : fed.ptr[k + 1]].mean(axis=0))

    def measure(self, w: Any) -> Measure:
        """Return F and its certificate, rounding included, of R models (R, d)."""
        w = np.asarray(w, dtype=float)
        away = w[:, None] - np.stack([self.centre(k) for k in range(self.federation.K)])  # (R, K, d)
        lengths = np.sqrt((away**2).sum(axis=2) + self.nu**2)
        gradient = np.einsum("k,rkd->rd", self.weights, away / lengths[:, :, None])
        gap = np.einsum("rd,rkd->rk", gradient, away).max(axis=1)
        rounding = _EPS * (self.federation.d + self.federation.K + 8) * lengths.max(axis=1)
        return Measure(lengths @ self.weights, gap + rounding)
