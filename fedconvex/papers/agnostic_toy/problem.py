"""Five clouds in the plane as a regression, and the exact minimax point by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.federation import Federation
from fedconvex.losses import Squared
from fedconvex.problems import Problem

# chosen here: three outer means, two inner ones; points of each cloud, so that the pooled mean is not the mean of means
CENTRES = np.array([[0.0, 0.0], [3.0, 0.0], [1.0, 2.5], [0.8, 1.0], [2.0, 1.2]])
POINTS = (60, 40, 30, 20, 10)
QUIET, NOISY = 0.5, 4.0  # variances; the last cloud is the noisy one
VARIANCES = {"equal variances": (QUIET,) * 5, "one noisy domain": (QUIET,) * 4 + (NOISY,)}
ROUNDING = 1e-12  # what sums of numbers of size ten may be off by, with room


class MinimaxPoint(NamedTuple):
    """The point that minimises max_i ‖h - c_i‖^2 + v_i, by trying all choices of at most three worst domains."""

    h: np.ndarray  # (2,)
    value: float
    domain_weights: np.ndarray  # (p,) h = sum lambda_i c_i, nonnegative, of sum 1, zero where a domain is not worst


def clouds(variances: Sequence[float], seed: int = 0) -> list[np.ndarray]:
    """Draw normal points around `CENTRES`, moved and stretched so that means and total variances are exact.

    Examples
    --------
    >>> from fedconvex.papers.agnostic_toy.problem import clouds
    >>> points = clouds((0.5,) * 5)
    >>> [len(z) for z in points], bool(abs(points[1].mean(axis=0) - [3.0, 0.0]).max() < 1e-12)
    ([60, 40, 30, 20, 10], True)
    >>> float(points[1].var(axis=0).sum().round(9))
    0.5
    """
    rng, out = np.random.default_rng(seed), []
    for c, v, n in zip(CENTRES, variances, POINTS, strict=True):
        z = rng.standard_normal((n, 2))
        z -= z.mean(axis=0)
        out.append(c + z * math.sqrt(v / z.var(axis=0).sum()))  # 1
    return out


def location_problem(points: Sequence[np.ndarray]) -> Problem:
    """Return the problem with F_i(h) = mean over domain i of ‖h - z‖^2; clients are domains.

    Parameters
    ----------
    points : sequence of arrays (n_i, d)

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.papers.agnostic_toy.problem import location_problem
    >>> problem = location_problem([np.array([[0.0, 0.0], [2.0, 0.0]]), np.array([[0.0, 3.0]])])
    >>> problem.domain_values(np.array([1.0, 1.0])).tolist()
    [2.0, 5.0]
    """
    rows = []
    for z in points:
        n, d = z.shape
        root = math.sqrt(2.0 * d)  # 2 in the plane
        rows.append((root * np.tile(np.eye(d), (n, 1)), root * z.ravel()))  # 2
    return Problem(Federation.from_clients(rows, labels=[f"D{i + 1}" for i in range(len(points))]), Squared())


def enclosing(centres: np.ndarray, variances: Any = 0.0) -> MinimaxPoint:
    """Minimise max_i ‖h - c_i‖^2 + v_i over the plane, by trying all sets of at most three domains.

    Without variances h is the centre of the smallest circle around the centres, and the value its squared radius.

    Parameters
    ----------
    centres : array (p, 2)
    variances : float or array (p,)

    Examples
    --------
    >>> from fedconvex.papers.agnostic_toy.problem import enclosing
    >>> import numpy as np
    >>> found = enclosing(np.array([[0.0, 0.0], [4.0, 0.0], [2.0, 1.0]]))
    >>> found.h.tolist(), found.value, found.domain_weights.tolist()
    ([2.0, 0.0], 4.0, [0.5, 0.5, 0.0])
    """
    c = np.asarray(centres, dtype=float)
    v = np.broadcast_to(np.asarray(variances, dtype=float), len(c))
    best: MinimaxPoint | None = None
    least = math.inf
    for size in (1, 2, 3):
        for some in map(list, itertools.combinations(range(len(c)), size)):
            lam = _balanced(c[some], v[some])
            if lam is None or lam.min() < 0.0:
                continue
            h = lam @ c[some]
            F = ((h - c) ** 2).sum(axis=1) + v
            beyond = float(F.max() - F[some[0]])  # zero where these domains are worst: then h is optimal
            if beyond < least - ROUNDING:
                least, full = beyond, np.zeros(len(c))
                full[some] = lam
                best = MinimaxPoint(h, float(F.max()), full)
    assert best is not None
    return best  # 3


def _balanced(c: np.ndarray, v: np.ndarray) -> np.ndarray | None:
    """Return lambda of sum 1 with all ‖lambda c - c_i‖^2 + v_i equal; None if the means are affinely dependent."""
    D = c[1:] - c[0]
    # h = c_0 + D'x: 2 (c_i - c_0)'(h - c_0) = ‖c_i - c_0‖^2 + v_i - v_0
    G = D @ D.T
    if len(D) and np.linalg.matrix_rank(G) < len(D):
        return None
    x = np.linalg.solve(2.0 * G, np.diag(G) + v[1:] - v[0]) if len(D) else np.empty(0)
    return np.concatenate([[1.0 - x.sum()], x])
