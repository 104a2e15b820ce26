"""Slopes of a loss along multiples of the score, as a loss of rows: kernels that sum losses sum them too."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedconvex.kernels.dispatch import curvature, slope

# mypy: disable-error-code="no-untyped-def"


class ScaleSlope(NamedTuple):
    """z l'(z, y): the slope at s = 1 of the loss of the score s z, whose mean over an environment is g_e."""

    loss: Any

    def value(self, z, y):
        """Return z l'(z, y)."""
        return z * slope(self.loss, z, y)

    def slope(self, z, y):
        """Return l'(z, y) + z l''(z, y)."""
        return slope(self.loss, z, y) + z * curvature(self.loss, z, y)

    def check_labels(self, y: np.ndarray) -> None:
        """Accept what the loss accepts."""
        if hasattr(self.loss, "check_labels"):
            self.loss.check_labels(y)
