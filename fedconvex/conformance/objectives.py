"""The clients' objectives in NumPy: f_k(w) = (mean of the loss over its rows) + (l2/2)‖w‖^2, and what others write.

Nothing here comes from the package's kernels or losses, so that each can be held against the other. Labels: numbers
for "squared", 0 or 1 for "logistic", 0, 1, ..., C - 1 for "multinomial", whose models are (C, d).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

LOSSES = ("squared", "logistic", "multinomial")


def rows_loss(loss: str, X: np.ndarray, y: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the losses of rows (n,) and the slopes in their scores, (n,) or (n, C).

    Parameters
    ----------
    loss : {"squared", "logistic", "multinomial"}
        (z - y)^2/2; log(1 + e^z) - y z; log sum_c e^{z_c} - z_y.
    X, y, w : array (n, d), (n,), (d,) or (C, d)
        Rows, labels, model.
    """
    if loss == "squared":
        r = X @ w - y
        return 0.5 * r * r, r
    if loss == "logistic":
        z = X @ w
        return np.logaddexp(0.0, z) - y * z, 0.5 * (1.0 + np.tanh(0.5 * z)) - y
    Z = X @ w.T
    Z = Z - Z.max(axis=1, keepdims=True)
    total = np.exp(Z).sum(axis=1)
    at, k = np.arange(len(y)), y.astype(int)
    P = np.exp(Z) / total[:, None]
    P[at, k] -= 1.0
    return np.log(total) - Z[at, k], P


def values_gradients(hyper: Mapping[str, Any], r: Mapping[str, str], X: Any, y: Any, w: Any) -> tuple[float, Any]:
    """Return the value and the gradient at w over some rows of a client, as the reading r has them.

    Readings: ``loss`` is the mean or the sum over rows, ``squared`` says whether 1/2 stands before the square,
    ``ridge`` what l2 multiplies.
    """
    losses, slopes = rows_loss(hyper["loss"], X, y, w)
    scale = 2.0 if hyper["loss"] == "squared" and r.get("squared") == "whole" else 1.0
    scale /= 1.0 if r.get("loss") == "sum" else len(y)
    ridge = {"l2/2": 1.0, "l2": 2.0, "absent": 0.0}[r.get("ridge", "l2/2")] * hyper["l2"]
    return scale * losses.sum() + 0.5 * ridge * np.sum(w * w), scale * (slopes.T @ X) + ridge * w


def gradient(hyper: Mapping[str, Any], r: Mapping[str, str], X: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the gradient alone."""
    return values_gradients(hyper, r, X, y, w)[1]


def minimiser(
    hyper: Mapping[str, Any], r: Mapping[str, str], X: np.ndarray, y: np.ndarray, around: np.ndarray, mu: float
) -> np.ndarray:
    """Return argmin f(w) + (mu/2)‖w - around‖^2 of one client, by Newton's method to rounding."""
    w, size = around.copy(), around.size
    for _ in range(60):
        g = gradient(hyper, r, X, y, w) + mu * (w - around)
        if np.abs(g).max() < 1e-14:
            break
        h = 1e-6  # columns by central differences: exact enough to converge, the gradient alone decides where
        columns = [
            gradient(hyper, r, X, y, w + h * e) - gradient(hyper, r, X, y, w - h * e)
            for e in np.eye(size).reshape(size, *w.shape)
        ]
        H = np.stack([c.ravel() for c in columns], axis=1) / (2.0 * h)
        w = w - np.linalg.solve(0.5 * (H + H.T) + mu * np.eye(size), g.ravel()).reshape(w.shape)
    return w
