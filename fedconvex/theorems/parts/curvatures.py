"""How much the losses of rows bend near a model: bounds that hold on a ball, or everywhere."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedconvex.theorems.kit import *

_PIECES = 256  # of the integral along a ray


class Bends(NamedTuple):
    """Second derivatives of the rows' losses in their scores; row weights do not count."""

    at: np.ndarray  # (n,) l'' at the model
    mean: np.ndarray  # (n,) the mean of l'' from the model to any other in the ball is at least that
    most: np.ndarray  # (n,) l'' is at most that in the ball


def need_bends(who: str, problem: Problem) -> None:
    """Raise unless the loss has one score, a second derivative and a finite smoothness."""
    t = traits(problem.loss)
    if not (t.quadratic or (t.curved and not t.several and np.isfinite(t.smoothness))):
        needs = "a smooth loss of one score with a curvature"
        raise AssumptionError(f"{who} does not apply: needs {needs}, got {problem.loss!r}")


def bends(problem: Problem, w: np.ndarray, radius: float | None = None) -> Bends:
    """Bound the curvatures of all rows over the ball of that radius around a model; None: over all models.

    A row's score moves by at most t = ‖x‖ s within distance s, where l'' is at least its least value over |z| <=
    |x'w| + t: the mean along a ray of length radius is at least the mean of that over t <= ‖x‖ radius, here a sum from
    below. It is exact for the logistic loss up to 1/256, because l'' is even and falls. From above, l'' grows by
    at most e^{M t}, M the loss's self-concordance, and is never above its smoothness.

    Raises
    ------
    AssumptionError
        If the loss has several scores, no curvature or no finite smoothness.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Logistic, Problem
    >>> from fedconvex.theorems.parts.curvatures import bends
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0])]), Logistic(), 0.1)
    >>> found = bends(problem, np.zeros(1), 2.0)
    >>> found.at, found.most, np.round(found.mean, 2)  # (1/(1 + e^-2) - 1/2)/2 = 0.19
    (array([0.25]), array([0.25]), array([0.19]))
    """
    need_bends("bends", problem)
    t, fed = traits(problem.loss), problem.federation
    if t.quadratic:
        one = np.ones(fed.n)
        return Bends(one, one, one)
    share = problem.per_row
    at = np.divide(problem.curvatures(w), share, out=np.zeros(fed.n), where=share > 0.0)
    if radius is None:
        return Bends(at, np.zeros(fed.n), np.full(fed.n, t.smoothness))
    reach = radius * np.sqrt(fed.row_norms2)
    size, mean = np.abs(fed.X @ w), np.zeros(fed.n)
    for j in range(1, _PIECES + 1):
        mean += t.least_curvature(size + reach * (j / _PIECES))
    grown = t.self_concordance * reach if np.isfinite(t.self_concordance) else np.where(reach > 0.0, np.inf, 0.0)
    with np.errstate(over="ignore"):
        most = np.minimum(t.smoothness, at * np.exp(np.where(at > 0.0, grown, 0.0)))
    return Bends(at, mean / _PIECES, np.where((at > 0.0) | (reach == 0.0), most, t.smoothness))


def hessians(problem: Problem, h: np.ndarray) -> np.ndarray:
    """Return mean h_n x_n x_n' over every client's rows, with row weights and the ridge: (K, d, d)."""
    fed, out = problem.federation, []
    for k in range(fed.K):
        X = fed.client_rows(k)[0]
        mine = h[int(fed.ptr[k]) : int(fed.ptr[k + 1])]
        out.append(X.T @ problem.weigh(k, X * mine[:, None]) / len(X) + problem.ridge * np.eye(fed.d))
    return np.array(out)
