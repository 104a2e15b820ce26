"""A line search over clients in one round: they tell their values at a grid of fractions, the server takes the largest.

Armijo's rule: F(w + s d) <= F(w) + c s <g, d>, for s in 1, 1/2, ..., 1/1024.
"""

from __future__ import annotations

import numpy as np

from fedconvex.kernels import row_losses, triangles
from fedconvex.methods.parts import newton_steps
from fedconvex.problems import Problem

FRACTIONS = np.array([0.0, *0.5 ** np.arange(11)])  # s
ARMIJO = 1e-4  # c


def values(problem: Problem, w: np.ndarray, d: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """Return f_k(w + s d) for all s, (R, m, 12), of models and directions (R, *model) and clients (R, m)."""
    with np.errstate(over="ignore", invalid="ignore"):
        if problem.traits.several:
            each = [row_losses.values_gradients_of(problem, w + s * d, clients)[0] for s in FRACTIONS]
            return np.stack(each, axis=2)
        out = np.empty((*clients.shape, FRACTIONS.size))
        for r, j in np.ndindex(clients.shape):
            out[r, j] = triangles.means_along(problem, w[r], d[r], int(clients[r, j]), FRACTIONS)
        for f, s in enumerate(FRACTIONS):
            out[:, :, f] += problem.ridge_terms(w + s * d)[:, None]
        return out


def fractions(F: np.ndarray, g: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Return s (R,) from values (R, 12) of F at all s: by Armijo's rule, or else where F is least.

    Parameters
    ----------
    F : array (R, 12)
    g, d : array (R, *model)
        The gradient at w, and the direction.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.methods.parts.armijo import FRACTIONS, fractions
    >>> fractions((1.0 - 4.0 * FRACTIONS[None]) ** 2, np.array([[-8.0]]), np.array([[1.0]])).tolist()  # falls up to 1/2
    [0.25]
    """
    R = len(F)
    slope = np.einsum("rj,rj->r", g.reshape(R, -1), d.reshape(R, -1))
    F = np.where(np.isfinite(F), F, np.inf)
    noise = newton_steps.ROUNDING * np.abs(F[:, :1])  # near the minimum differences of values are rounding
    enough = F <= F[:, :1] + ARMIJO * FRACTIONS * slope[:, None] + noise
    enough[:, 0] = False
    first = np.argmax(enough, axis=1)
    return FRACTIONS[np.where(enough.any(axis=1), first, np.argmin(F, axis=1))]
