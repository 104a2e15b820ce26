"""Damped Newton steps of R trajectories whose value, gradient and Hessian arrive together.

One answer is asked for at a time, at ``state.trial``. It decides whether the trial is accepted, and if so it already
holds the next gradient and Hessian: an accepted trial costs no round of its own.

1. start: ask at w_0; where the value overflows, at w_0/2, w_0/4, ...
2. accepted: d = -J^-1 g, lambda^2 = g'J^-1 g, ask at w + d
3. rejected: ask at w + t d with a smaller t

A trial is accepted if the value falls by 1e-4 t lambda^2 (Armijo), or if it does not rise beyond rounding and lambda^2
falls to a quarter: close to the minimum differences of values are rounding, while gradients still tell. Otherwise t
is shortened to the minimum of the cubic through both values and slopes, kept in [t/10, t/2], or to t/4 where the trial
overflows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

ROUNDING = 1e-12  # of a value, relative: the relative error of a sum over a million rows is below it
_SHORTEST = 1e-14


class NewtonSteps(NamedTuple):
    """R searches side by side."""

    w: np.ndarray  # (R, p) the last accepted point
    value: np.ndarray  # (R,) inf before the first answer
    gradient: np.ndarray  # (R, p)
    hessian: np.ndarray  # (R, p, p) J
    decrement: np.ndarray  # (R,) lambda^2 = g'J^-1 g; inf before the first answer
    rank: np.ndarray  # (R,) directions in which J is positive beyond rounding
    step: np.ndarray  # (R, p) d = -J^-1 g
    fraction: np.ndarray  # (R,) t of the trial
    trial: np.ndarray  # (R, p) w + t d, where the next answer is wanted
    accepted: np.ndarray  # (R,) whether the last trial was
    settled: np.ndarray  # (R,) rounding stops the search: further answers change nothing


def start(w: np.ndarray) -> NewtonSteps:
    """Return the searches that begin at w (R, p)."""
    w = np.array(w, dtype=np.float64)
    R, p = w.shape
    return NewtonSteps(
        w.copy(), np.full(R, np.inf), np.zeros((R, p)), np.zeros((R, p, p)), np.full(R, np.inf),
        np.zeros(R, dtype=np.int64), np.zeros((R, p)), np.ones(R), w, np.zeros(R, dtype=bool), np.zeros(R, dtype=bool),
    )  # fmt: skip


def absorb(state: NewtonSteps, values: np.ndarray, gradients: np.ndarray, hessians: np.ndarray) -> NewtonSteps:
    """Return the searches after the answers at ``state.trial``: values (R,), gradients (R, p), Hessians (R, p, p)."""
    new = NewtonSteps(*(a.copy() for a in state))
    new.accepted[:] = False
    for r in np.flatnonzero(~state.settled):
        answer = (values[r], gradients[r], hessians[r])
        finite = bool(np.isfinite(answer[0]) and all(np.isfinite(a).all() for a in answer[1:]))
        if not np.isfinite(state.value[r]):
            _first(new, r, answer, finite)
        elif finite:
            _judge(new, r, answer)
        else:
            _shorten(new, r, 0.25)
    return new


def _first(new: NewtonSteps, r: Any, answer: tuple, finite: bool) -> None:
    """Take the first finite answer as it is; without one, halve the start."""
    if finite:
        _accept(new, r, answer, *newton_direction(answer[2], answer[1], ROUNDING * abs(float(answer[0]))))
        return
    new.fraction[r] *= 0.5
    new.trial[r] *= 0.5
    new.settled[r] = new.fraction[r] < _SHORTEST


def _judge(new: NewtonSteps, r: Any, answer: tuple) -> None:
    """Accept or shorten the trial of one search whose answer is finite."""
    value, t, slope = float(new.value[r]), float(new.fraction[r]), float(new.decrement[r])
    noise = ROUNDING * abs(value)
    change = float(answer[0]) - value
    if change <= noise:
        direction = newton_direction(answer[2], answer[1], ROUNDING * abs(float(answer[0])))
        if change <= -1e-4 * t * slope or direction[1] <= 0.25 * slope:
            return _accept(new, r, answer, *direction)
    if t * slope <= noise:
        new.settled[r] = True
    else:
        _shorten(new, r, _cubic_minimum(change, -t * slope, t * float(answer[1] @ new.step[r])))
    return None


def _accept(new: NewtonSteps, r: Any, answer: tuple, step: np.ndarray, decrement: float, rank: int) -> None:
    new.w[r] = new.trial[r]
    new.value[r], new.gradient[r], new.hessian[r] = answer
    new.step[r], new.decrement[r], new.rank[r] = step, decrement, rank
    new.fraction[r], new.accepted[r] = 1.0, True
    new.trial[r] = new.w[r] + step
    new.settled[r] = bool((new.trial[r] == new.w[r]).all())


def _shorten(new: NewtonSteps, r: Any, factor: float) -> None:
    new.fraction[r] *= factor
    new.trial[r] = new.w[r] + new.fraction[r] * new.step[r]
    new.settled[r] = new.fraction[r] < _SHORTEST


def _cubic_minimum(change: float, before: float, after: float) -> float:
    """Return where in [.1, .5] the cubic with these slopes at 0 and 1, and this difference of values, is least."""
    a, b = before + after - 2.0 * change, 3.0 * change - 2.0 * before - after  # a u^3 + b u^2 + before u
    with np.errstate(all="ignore"):
        u = -before / (b + np.sqrt(b * b - 3.0 * a * before))
    return float(np.clip(u, 0.1, 0.5)) if np.isfinite(u) else 0.5


def newton_direction(J: np.ndarray, g: np.ndarray, noise: float = 0.0) -> tuple[np.ndarray, float, int]:
    """Return -J^-1 g (p,), g'J^-1 g, and the rank of J (p, p) as far as doubles tell.

    J is scaled to a unit diagonal. Where its Cholesky factor has a pivot at rounding, eigenvalues are raised to p eps
    times the largest in directions in which the gradient could still lower the value by more than ``noise``, and the
    other such directions are left out (a pseudo-inverse), so that what collinear columns leave open does not wander.
    """
    from scipy.linalg import solve_triangular  # an import that other methods need not pay for

    p = g.size
    scale = np.sqrt(np.maximum(np.diagonal(J), 0.0))
    scale[scale == 0.0] = 1.0
    S, c = J / scale / scale[:, None], g / scale
    floor = 10.0 * p * np.finfo(float).eps
    try:
        L = np.linalg.cholesky(S)
    except np.linalg.LinAlgError:
        L = np.zeros((p, p))
    if p and np.diagonal(L).min() ** 2 > floor:
        half = solve_triangular(L, c, lower=True)
        return -solve_triangular(L, half, lower=True, trans=1) / scale, float(half @ half), p
    lam, V = np.linalg.eigh(0.5 * (S + S.T))
    along, least = V.T @ c, floor * max(float(lam[-1]), 0.0) if p else 0.0
    firm = lam > least
    used = firm | (along**2 > 2.0 * max(least, np.finfo(float).tiny) * noise)
    inverse = np.where(used, 1.0 / np.maximum(lam, max(least, np.finfo(float).tiny)), 0.0)
    return -(V @ (inverse * along)) / scale, float(along @ (inverse * along)), int(firm.sum())
