"""Rows that weigh differently: their labels carry the weight, and a loss of them multiplies by it.

Kernels take one array of labels and one loss. For a federation with weights the labels are records (label, weight), and
the loss is `WeightedRow` or `WeightedRowOfClasses`, whose mathematics is that of the loss within. Weights are relative:
they have mean one over the rows that a sum is divided by, so that "1/n times the sum over rows" is the weighted mean.
Mini-batches draw rows uniformly; their gradients, scaled by the weights, are unbiased.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fedconvex.kernels.dispatch import conjugate, curvature, dual_step, dual_steps, slope, slopes, value

# mypy: disable-error-code="no-untyped-def"

LABEL = np.dtype([("label", np.float64), ("weight", np.float64)], align=True)


class WeightedRow(NamedTuple):
    """The loss s l(z, y) of a row with label y and weight s."""

    loss: Any

    @property
    def weighs(self) -> bool:
        """Whether labels carry weights: yes."""
        return True

    def value(self, z, y):
        """Return s l(z, y)."""
        return y.weight * value(self.loss, z, y.label) if y.weight > 0.0 else 0.0

    def slope(self, z, y):
        """Return s l'(z, y)."""
        return y.weight * slope(self.loss, z, y.label) if y.weight > 0.0 else 0.0

    def curvature(self, z, y):
        """Return s l''(z, y)."""
        return y.weight * curvature(self.loss, z, y.label) if y.weight > 0.0 else 0.0

    def conjugate(self, a, y):
        """Return s l*(a/s)."""
        if y.weight > 0.0:
            return y.weight * conjugate(self.loss, a / y.weight, y.label)
        return 0.0 if a == 0.0 else math.inf

    def dual_step(self, alpha, z, q, y):
        """Return s delta, with delta the step of the loss from alpha/s at the curvature s q."""
        if y.weight > 0.0:
            return y.weight * dual_step(self.loss, alpha / y.weight, z, q * y.weight, y.label)
        return -alpha


class WeightedRowOfClasses(NamedTuple):
    """The loss s l(z, y) of a row with C scores, label y and weight s."""

    loss: Any
    n_classes: int

    def value(self, z, y):
        """Return s l(z, y)."""
        return y.weight * value(self.loss, z, y.label) if y.weight > 0.0 else 0.0

    def slopes(self, z, y, out):
        """Write s grad l(z, y)."""
        slopes(self.loss, z, y.label, out)
        for c in range(self.n_classes):
            out[c] = y.weight * out[c] if y.weight > 0.0 else 0.0

    def conjugate(self, a, y):
        """Return s l*(a/s); a is written."""
        size = 0.0
        for c in range(self.n_classes):
            size += abs(a[c])
            a[c] = a[c] / y.weight if y.weight > 0.0 else 0.0
        if y.weight > 0.0:
            return y.weight * conjugate(self.loss, a, y.label)
        return 0.0 if size == 0.0 else math.inf

    def dual_steps(self, alpha, z, room, q, y):
        """Take the steps of the loss from alpha/s at the curvature s q, times s."""
        for c in range(self.n_classes):
            alpha[c], z[c] = (alpha[c] / y.weight, z[c]) if y.weight > 0.0 else (0.0, -alpha[c])
        if y.weight > 0.0:
            dual_steps(self.loss, alpha, z, room, q * y.weight, y.label)
            for c in range(self.n_classes):
                alpha[c], z[c] = y.weight * alpha[c], y.weight * z[c]


def weighted_loss(loss: Any) -> Any:
    """Return the loss of rows whose labels carry weights."""
    return WeightedRowOfClasses(loss, loss.n_classes) if hasattr(loss, "n_classes") else WeightedRow(loss)


def labels_with_weights(y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return labels (n,) as kernels take them: records of label and weight."""
    out = np.empty(y.size, LABEL).view(np.recarray)
    out.label, out.weight = y, weight
    return out
