"""Monotone partial likelihoods: directions along which N only falls, found by a linear programme over the rows.

N has no minimiser, but for flat directions, iff some v has x_i'v >= x_j'v for every event i and row j at risk with it,
and once a strict inequality (Bryson and Johnson, Technometrics 23, 1981): then hazards part without end. The programme
maximises the sum of all x_i'v - x_j'v under these constraints in a box. Rows at risk at event times first <= u < stop
need x_j'v below the least x_i'v there; least values over ranges are variables, cumulated as in `risk_kernels`, so that
n rows with D event times make O(n + D log D) constraints. The rows must be in one process.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

_FEASIBLE = 1e-10  # of constraints, columns scaled to a standard deviation of one
_STRICT = 1e-6  # a difference above it counts


class Monotone(NamedTuple):
    """A direction along which the partial likelihood rises without end."""

    direction: np.ndarray  # (p,) largest |v_j| times the standard deviation of its column: 1
    columns: tuple[int, ...]  # those that the direction has a part in
    names: tuple[str, ...]  # what they are called


def monotone_direction(problem: Any) -> Monotone | None:
    """Return a direction along which N only falls, or None if there is none.

    Parameters
    ----------
    problem : SurvivalProblem
        With all rows in one process.

    Raises
    ------
    ArithmeticError
        If the linear programme is not solved.

    Examples
    --------
    The event at time 1 has the larger feature, and so has that at time 2 among those left.

    >>> from fedconvex.families.survival.monotone import monotone_direction
    >>> from fedconvex.problems import SurvivalFederation, SurvivalProblem, outcomes
    >>> y = outcomes([1.0, 2.0, 3.0], [1, 1, 0])
    >>> problem = SurvivalProblem(SurvivalFederation.from_arrays([[5.0], [2.0], [1.0]], y, [0, 0, 0]))
    >>> monotone_direction(problem).direction.tolist()[0] > 0
    True
    """
    from scipy.optimize import linprog

    risk = problem.risk
    spread = np.sqrt(np.mean(risk.X**2, axis=0)) if len(risk.X) else np.ones(problem.size)
    scale = np.where(spread > 0.0, spread, 1.0)
    X = risk.X / scale
    lower, equal, gain, counts = _constraints(risk, X)
    if not counts.any():
        return None
    more = lower.shape[1] - problem.size
    cost = np.concatenate([-gain / max(float(np.abs(gain).max(initial=0.0)), 1e-300), np.zeros(more)])
    found = linprog(
        cost, lower, np.zeros(lower.shape[0]), equal, np.zeros(equal.shape[0]),
        [(-1.0, 1.0)] * problem.size + [(None, None)] * more, method="highs",
        options={"primal_feasibility_tolerance": _FEASIBLE, "dual_feasibility_tolerance": _FEASIBLE},
    )  # fmt: skip
    if found.status != 0:
        raise ArithmeticError(f"monotone_direction: the linear programme was not solved: {found.message}")
    v = np.where(np.abs(found.x[: problem.size]) > 1e-7, found.x[: problem.size], 0.0)
    if not _tells_apart(risk, X @ v):
        return None
    columns = tuple(int(j) for j in np.flatnonzero(np.abs(v) > 1e-7))
    names = column_names(problem.federation)
    return Monotone(v / scale, columns, tuple(names[j] for j in columns))


def _tells_apart(risk: Any, z: np.ndarray) -> bool:
    """Whether events score higher than some row at risk with them, beyond what the tolerance of constraints allows."""
    total = np.concatenate([[0.0], np.cumsum(z[risk.start])])
    base = np.repeat(risk.times[:-1], np.diff(risk.rows))
    begin, length = risk.at[:, 0], np.maximum(risk.at[:, 1] - risk.at[:, 0], 0)
    gain = total[base + begin + length] - total[base + begin] - length * z
    return bool((gain > _STRICT + 10.0 * _FEASIBLE * length).any())


def column_names(federation: Any) -> list[str]:
    """Return what features are called: by the table that they come from, or "column 0", ..."""
    names = getattr(getattr(federation, "columns", None), "feature_names", None)
    if names is None or len(names) != federation.d:
        return [f"column {j}" for j in range(federation.d)]
    return [str(name) for name in names]


def _constraints(risk: Any, X: np.ndarray) -> tuple[Any, Any, np.ndarray, np.ndarray]:
    """Return A and B of A (v, q) <= 0 and B (v, q) = 0, the sum of differences (p,), and rows at risk by event time."""
    U, p = risk.start.size, X.shape[1]
    parts: list[tuple[np.ndarray, ...]] = []  # rows +, rows -, variables +, variables -
    counts, length = np.zeros(U), np.zeros(len(X))
    used = p
    for g in range(risk.rows.size - 1):
        first, D = int(risk.times[g]), int(risk.times[g + 1] - risk.times[g])
        rows = np.arange(risk.rows[g], risk.rows[g + 1])
        begin, stop, level = risk.at[rows, 0], risk.at[rows, 1], risk.at[rows, 2]
        some = level >= 0
        counts[first : first + D] = risk.at_risk(g) - risk.deaths[first : first + D]
        length[rows[some]] = (stop - begin)[some]
        event_rows = risk.start[first : first + D]
        for at in range(int(risk.levels[g]) + 1 if D else 0):
            q = used + np.arange(D)
            used += D
            parts.append(_pairs(D, at, q, event_rows))
            mine = level == at
            a, b = begin[mine], stop[mine] - 1
            parts.append((rows[mine], _none(a), _none(a), q[b]))
            if at > 0:
                parts.append((rows[mine], _none(a), _none(a), q[a]))
    plus, minus, up, down = (np.concatenate([part[i] for part in parts] or [_none(0)]) for i in range(4))
    lower = _matrix(X, plus, minus, up, down, used)
    tied = np.flatnonzero(risk.event)
    own = np.repeat(risk.start, risk.deaths)
    tied, own = tied[tied != own], own[tied != own]
    equal = _matrix(X, tied, own, _none(tied), _none(tied), used)
    return lower, equal, counts @ X[risk.start] - length @ X, counts


def _none(like: Any) -> np.ndarray:
    return np.full(np.size(like) if np.ndim(like) else like, -1, dtype=np.int64)


def _pairs(D: int, level: int, q: np.ndarray, event_rows: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the constraints q[u] <= x_i'v, q[u] <= q[u -+ 1]: q[u] is the least x_i'v over its part of a half."""
    half = D if level == 0 else 1 << (level - 1)
    u = np.arange(D)
    right = np.ones(D, dtype=bool) if level == 0 else (u // half) % 2 == 1
    towards = np.where(right, u - 1, u + 1)
    inside = (towards >= 0) & (towards < D) & (towards // half == u // half)
    k = int(inside.sum())
    return (
        np.concatenate([_none(D), _none(k)]),
        np.concatenate([event_rows, _none(k)]),
        np.concatenate([q, q[inside]]),
        np.concatenate([_none(D), q[towards[inside]]]),
    )


def _matrix(X: np.ndarray, plus: np.ndarray, minus: np.ndarray, up: np.ndarray, down: np.ndarray, width: int) -> Any:
    """Return rows x_plus'v - x_minus'v + q_up - q_down, each part left out where its number is -1."""
    m, p = plus.size, X.shape[1]
    dense = np.where(plus[:, None] >= 0, X[plus], 0.0) - np.where(minus[:, None] >= 0, X[minus], 0.0)
    at = np.arange(m)
    extra = sp.csr_array((m, width - p))
    for sign, which in ((1.0, up), (-1.0, down)):
        here = which >= 0
        entries = (np.full(int(here.sum()), sign), (at[here], which[here] - p))
        extra = extra + sp.csr_array(entries, shape=(m, width - p))
    return sp.hstack([sp.csr_array(dense), extra], format="csr")
