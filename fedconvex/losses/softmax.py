"""Several classes, by the likelihood."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedconvex._check import bad, whole
from fedconvex.entropic import negative_entropy, softmax_step
from fedconvex.loss_traits import declares


@declares(
    task="classification",
    lower_bound=0.0,
    multinomial=True,
    smoothness=0.5,
    lipschitz=math.sqrt(2.0),
    self_concordance=math.sqrt(2.0),
)
class Softmax(NamedTuple):
    """Multinomial logistic loss l(z, y) = log sum_c exp(z_c) - z_y for scores z (C,) and labels 0, ..., C-1.

    Parameters
    ----------
    n_classes : int
        Number of classes C >= 2; models are (C, d).

    Notes
    -----
    sup of the largest eigenvalue of diag(p) - p p' is 1/2 (Bohning 1992), attained at two equal halves, and sup of the
    Euclidean norm of softmax(z) - e_y is sqrt 2.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Softmax
    >>> float(Softmax(2).value(np.array([0.0, 1000.0]), 0))
    1000.0
    """

    n_classes: int

    def value(self, z, y):
        """Return log sum_c exp(z_c) - z_y, shifted by the largest score."""
        top = z[0]
        for c in range(1, self.n_classes):
            top = max(top, z[c])
        total = 0.0
        for c in range(self.n_classes):
            total += math.exp(z[c] - top)
        return math.log(total) + (top - z[int(y)])

    def slopes(self, z, y, out):
        """Write softmax(z) - e_y into out (C,), which may be z itself."""
        label = int(y)
        top = z[0]
        for c in range(1, self.n_classes):
            top = max(top, z[c])
        total = 0.0
        for c in range(self.n_classes):
            out[c] = math.exp(z[c] - top)
            total += out[c]
        for c in range(self.n_classes):
            out[c] /= total
        out[label] -= 1.0

    def conjugate(self, a, y):
        """Return sum_c p_c log p_c with p = a + e_y, if p is a distribution (to 1e-12)."""
        return negative_entropy(a, int(y))

    def dual_steps(self, alpha, z, room, q, y):
        """Move alpha (C,) to the minimiser of l*(-alpha) + <z, alpha> + (q/2) ‖step‖^2; z (C,) becomes the step."""
        softmax_step(alpha, z, room, q, int(y))

    def probabilities(self, z):
        """Return softmax(z), (n, C), for scores (n, C)."""
        p = np.exp(z - z.max(axis=1, keepdims=True))
        return p / p.sum(axis=1, keepdims=True)

    def check_labels(self, y: np.ndarray) -> None:
        """Raise unless the labels are whole numbers in 0, ..., n_classes - 1."""
        whole("Softmax.n_classes", self.n_classes, low=2)
        wrong = (y != np.floor(y)) | (y < 0) | (y >= self.n_classes)
        if wrong.any():
            got = f"{y[wrong][0]:g} at row {int(np.argmax(wrong))}"
            cure = "renumber them, for example numpy.unique(y, return_inverse=True)[1]"
            raise bad("Softmax: labels", f"be whole numbers 0, ..., {self.n_classes - 1}", got, cure)
