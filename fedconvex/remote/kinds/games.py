"""Games: every player answers its risk and a bound of its regret.

The regret of player k at strategies w is at most N_k = <F_k, w^k> + B ‖F_k‖_1, F_k the gradient of its risk in its own
strategy, which it knows itself: a number a client.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex.kernels.row_losses import values_gradients_of
from fedconvex.problems import Measure
from fedconvex.remote.kinds import Arrays, Kind, Shapes, check_models
from fedconvex.solvers.certificates.row_rounding import EPS, allowances


def report(problem: Any, k: int, asked: Arrays) -> dict[str, np.ndarray]:
    """Return R^k and a bound of player k's regret, for R sums of strategies and its own ones."""
    total, own = asked.get("w", np.empty(0)), asked.get("own", np.empty(0))
    check_models((problem.federation.d,), total, own[:, 0] if own.ndim == 3 else own)
    a, mine = problem.share, own[:, 0]
    s = np.ascontiguousarray(a * total)
    values, G = values_gradients_of(problem.risk, s, np.full((len(s), 1), k, dtype=np.int64))
    F, found, room = a * G[:, 0], allowances(problem.risk, s), problem.bound + np.abs(mine)
    N = (np.abs(F) * (problem.bound + np.sign(F) * mine)).sum(axis=1)
    off = a * found["error"] * np.linalg.norm(room, axis=1) + found["off"]
    few = (s.shape[1] + problem.federation.K + 8) * EPS * (room * np.abs(F)).sum(axis=1)
    return {"value": values[:, 0], "certificate": N + 2.0 * (off + few)}


def measure(roster: Any, w: np.ndarray) -> Measure | None:
    """Return sums of the players' risks and bounds of their regrets, of R strategies (R, K, d)."""
    if not np.isfinite(w).all():
        return None
    total = np.ascontiguousarray(w.sum(axis=1))
    reports = roster.reports({k: {"w": total, "own": w[:, [k]].copy()} for k in range(w.shape[1])})
    if reports is None:
        return None
    value = np.sum([a["value"] for a in reports], axis=0)
    each = np.abs([a["certificate"] for a in reports]) * (1.0 + len(reports) * EPS)
    inside = (np.abs(w) <= roster.bound).all(axis=(1, 2))
    gap = each.sum(axis=0)
    return Measure(value, np.where(inside & ~np.isnan(gap), gap, np.inf))


def shapes(problem: Any, asked: Arrays) -> Shapes:
    """Return the shapes of a report."""
    return dict.fromkeys(("value", "certificate"), (len(asked["w"]),))


KIND = Kind(report, shapes, measure, lambda method, problem: [{"w", "own"}], own_part=True)
