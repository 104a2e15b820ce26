"""Quantities that any run shows: by independent trajectories, or exactly where moments close or nothing is random.

A `Sample` takes (setting, rounds, seed, trajectories) and returns the quantity after so many rounds each, of
independent runs: (len(rounds), trajectories). An `Exact` takes (setting, rounds) and returns the expectation,
(len(rounds),), with its rounding if it differs from that of a run (`Found`), or None where only trajectories give it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedconvex.driver import iterate
from fedconvex.loss_traits import traits
from fedconvex.theorems.parts.rounding import Found
from fedconvex.theorems.parts.setting import Setting, is_random
from fedconvex.theory.bound import (
    LAST_SYNCHRONISED,
    MEAN_SQUARE_DEVIATION,
    SHADOW_AVERAGE,
    STEADY_STATE_MSD,
    Hypothesis,
    Quantity,
    require,
)
from fedconvex.theory.moments import Moments, moved

Sample = Callable[[Setting, Sequence[int], int, int], np.ndarray]
Exact = Callable[[Setting, Sequence[int]], "np.ndarray | Found | None"]


def values_along(
    value: Callable[[Any], np.ndarray], s: Setting, rounds: Sequence[int], seed: int, trajectories: int
) -> np.ndarray:
    """Return a function of the state, (R,), after so many rounds each, of independent runs."""
    wanted = set(rounds)
    runs = iterate(s.method, s.problem, rounds=max(rounds), seed=seed, trajectories=trajectories, start=s.start)
    out = {t: _diverged(value(state), state) for t, state in runs if t in wanted}
    return np.array([out[t] for t in rounds])


def _diverged(values: np.ndarray, state: Any) -> np.ndarray:
    """Return values (R,) with infinity in the place of NaN where the run has left double precision."""
    lost = ~np.isfinite(state.w).reshape(len(state.w), -1).all(axis=1)
    return np.where(np.isnan(values) & lost, np.inf, values)


def _shadow_average(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """Mean of F(wbar^{t,k}) - F* over the rounds and local steps so far."""
    method, best, total, out = s.method, s.problem.solve(), np.zeros(trajectories), {}
    inside = hasattr(method, "shadow")  # without it a round is one step, after which the server has the average
    method = replace(method, shadow=True) if inside else method
    runs = iterate(method, s.problem, rounds=max(rounds), seed=seed, trajectories=trajectories, start=s.start)
    for t, state in runs:
        if t:
            values = method.observe(s.problem, state)["shadow_value"] if inside else s.problem.value(state.w)
            total = total + _diverged(values, state) - best.value
            out[t] = total / t
    return np.array([out[t] for t in rounds])


def _last_value(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """F(w_T) - F*."""
    best = s.problem.solve()
    return values_along(lambda state: s.problem.value(state.w) - best.value, s, rounds, seed, trajectories)


def _deviation(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """‖w_T - w*_T‖^2."""
    best = s.problem.solve().w
    return values_along(
        lambda state: np.sum((state.w - best).reshape(trajectories, -1) ** 2, axis=1), s, rounds, seed, trajectories
    )


def moments_of(s: Setting) -> Moments | None:
    """Return the exact moments of a run, or None where they do not close."""
    if not traits(s.problem.loss).quadratic:
        return None
    try:
        return Moments.of(s.method, s.problem)
    except (TypeError, ValueError):
        return None


def deterministic(sample: Sample) -> Exact:
    """Return what one run shows, where nothing is random."""
    return lambda s, rounds: None if is_random(s) else sample(s, rounds, 0, 1)[:, 0]


def _exact_shadow_average(s: Setting, rounds: Sequence[int]) -> np.ndarray | Found | None:
    moments = moments_of(s)
    if moments is None:
        return deterministic(_shadow_average)(s, rounds)
    trace = moments.shadow(rounds=max(rounds), start=s.start)
    off = moved(moments, trace.deviation.max(axis=1)).value
    return Found(*(np.array([v[:T].mean() for T in rounds]) for v in (trace.suboptimality[:, 1:].mean(axis=1), off)))


def _exact_last(s: Setting, rounds: Sequence[int]) -> np.ndarray | Found | None:
    moments = moments_of(s)
    if moments is None:
        return deterministic(_last_value)(s, rounds)
    trace, at = moments.run(rounds=max(rounds), start=s.start), np.array(rounds)
    return Found(trace.suboptimality[at], moved(moments, trace.deviation).value[at])


def _exact_deviation(s: Setting, rounds: Sequence[int]) -> np.ndarray | Found | None:
    moments = moments_of(s)
    if moments is None:
        return deterministic(_deviation)(s, rounds)
    trace, at = moments.run(rounds=max(rounds), start=s.start), np.array(rounds)
    return Found(trace.deviation[at], moved(moments, trace.deviation).deviation[at])


def _exact_steady_state(s: Setting, rounds: Sequence[int]) -> Found | None:
    moments = moments_of(s)
    if moments is None:
        return None
    gap = 1.0 - moments.spectral_radius
    stable = Hypothesis("moments that converge", f"spectral radius {moments.spectral_radius:.12g}", moments.stable)
    require("a steady state", stable)
    value = moments.steady_state().deviation
    off = moved(moments, np.full(2, value)).deviation[1] / gap
    return Found(np.full(len(rounds), value), np.full(len(rounds), off))


EXACT: Mapping[Quantity, Exact] = {
    SHADOW_AVERAGE: _exact_shadow_average,
    LAST_SYNCHRONISED: _exact_last,
    MEAN_SQUARE_DEVIATION: _exact_deviation,
    STEADY_STATE_MSD: _exact_steady_state,
}
SAMPLE: Mapping[Quantity, Sample] = {
    SHADOW_AVERAGE: _shadow_average,
    LAST_SYNCHRONISED: _last_value,
    MEAN_SQUARE_DEVIATION: _deviation,
}
