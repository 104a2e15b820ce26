"""Steps that raise a linear function of domain weights, for runs: what diverges, or asks for too much, raises nothing.

Weights of a run whose directions are no numbers stay where they are; the objective says that it diverged. Beyond 1e16
nothing is left of lambda in lambda + gamma g, and its direction says where the projection is. In an entropic step a
weight falls no lower than e^-600 times the largest: it can grow again, and sets in which it must be positive have a
nearest point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import equal_by_type
from fedconvex.kernels.cache import kernel

_FAR, _DEEP = 1e16, 600.0
_LEAST, _APART = 1e-100, 300.0  # log _LEAST - _APART is above -_DEEP: in one step no weight falls so low


@equal_by_type
class ProjectedStep(NamedTuple):
    """lambda <- the Euclidean projection of lambda + gamma g.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.methods import ProjectedStep
    >>> from fedconvex.simplex.uncertainty import Simplex
    >>> ProjectedStep().ascend(Simplex(), np.array([[0.5, 0.5]]), np.array([[0.4, 0.0]]))
    array([[0.7, 0.3]])
    """

    def ascend(self, uncertainty_set: Any, domain_weights: np.ndarray, g: np.ndarray) -> np.ndarray:
        """Return the next domain weights (R, p) after the scaled ascent directions g (R, p)."""

        def project(mix: np.ndarray, h: np.ndarray) -> Any:
            v = mix + h
            return uncertainty_set.project(v * np.minimum(_FAR / np.abs(v).max(axis=-1, keepdims=True), 1.0))

        return _where_finite(project, domain_weights, g)


@equal_by_type
class EntropicStep(NamedTuple):
    """lambda <- argmax <gamma g, .> - KL(.‖lambda): exponentiated gradients, on the simplex lambda_i exp(gamma g_i).

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.methods import EntropicStep
    >>> from fedconvex.simplex.uncertainty import Simplex
    >>> EntropicStep().ascend(Simplex(), np.array([[0.5, 0.5]]), np.array([[np.log(3.0), 0.0]]))
    array([[0.75, 0.25]])
    """

    def ascend(self, uncertainty_set: Any, domain_weights: np.ndarray, g: np.ndarray) -> np.ndarray:
        """Return the next domain weights (R, p) after the scaled ascent directions g (R, p)."""
        if getattr(uncertainty_set, "whole", False) and _moderate(domain_weights.ravel(), g.ravel()):
            x = domain_weights * np.exp(g - g.max(axis=-1, keepdims=True))  # the bits of `entropic`, unchecked
            x = x / x.max(axis=-1, keepdims=True)
            return np.asarray(x * (1.0 / x.sum(axis=-1, keepdims=True)))

        def raise_(mix: np.ndarray, h: np.ndarray) -> Any:
            log = np.log(np.where(mix > 0.0, mix, 1.0))
            top = np.where(mix > 0.0, log + h, -np.inf).max(axis=-1, keepdims=True)
            return uncertainty_set.entropic(mix, np.maximum(h, top - _DEEP - log))

        return _where_finite(raise_, domain_weights, g)


@kernel
def _moderate(domain_weights, g):  # type: ignore[no-untyped-def]
    """Whether all of flat arrays is finite, and no weight falls so low in an entropic step that it would be held up."""
    moderate = True
    for i in range(g.size):
        moderate &= _LEAST <= domain_weights[i] <= 2.0 and abs(g[i] - g[0]) <= 0.5 * _APART
    return moderate


def _where_finite(step: Callable[..., Any], domain_weights: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Return step(domain_weights, g); the weights of rows that are not finite stay."""
    finite = np.isfinite(domain_weights + g).all(axis=-1)
    if finite.all():
        return np.asarray(step(domain_weights, g))
    out = domain_weights.copy()
    if finite.any():
        out[finite] = step(domain_weights[finite], g[finite])
    return out
