"""Dynamic FedAvg: noise lemmas and mean-square deviation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedconvex.driver import iterate
from fedconvex.problems import MovingTarget, Problem
from fedconvex.theorems import dynamic_msd as dynamic
from fedconvex.theorems.parts.quantities import deterministic
from fedconvex.theorems.parts.setting import Setting, is_method, participants
from fedconvex.theorems.parts.theorem import Theorem
from fedconvex.theory.bound import (
    GRADIENT_NOISE,
    INCREMENTAL_NOISE,
    MEAN_SQUARE_DEVIATION,
    STEADY_STATE_MSD,
    Bound,
    Hypothesis,
    require,
)

__all__ = ["THEOREMS"]

_TINY = 1e-7  # step size, in units of the inverse smoothness, at which local steps count as taken at w_{i-1}


def _move(s: Setting, step_size: float, seed: int, trajectories: int) -> np.ndarray:
    """(w_{i-1} - w_i)/mu of one iteration from the start, (R, p); the same draws for every step size."""
    p = s.problem
    still = Problem(p.federation, p.loss, p.l2, p.weights)
    method = replace(s.method, step_size=step_size)
    *_, (_, state) = iterate(method, still, rounds=1, seed=seed, trajectories=trajectories, start=s.start)
    return ((s.start - state.w) / step_size).reshape(trajectories, -1)


def _tiny(s: Setting) -> float:
    return _TINY / float(s.problem.constants().L_s or 1.0)


def _gradient_noise(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """‖s_i‖^2 at w_{i-1} = start: the move of a tiny step is the mean of the agents' gradients there."""
    noise = _move(s, _tiny(s), seed, trajectories) - s.problem.gradient(s.start).ravel()
    return np.tile(np.sum(noise**2, axis=1), (len(rounds), 1))


def _exact_gradient_noise(s: Setting, rounds: Sequence[int]) -> np.ndarray | None:
    return np.full(len(rounds), dynamic.gradient_noise(s.problem, s.start, **_agents(s)).value)


def _incremental_noise(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """‖d_i‖^2 at w_{i-1} = start: how the move changes when the local steps are real, the draws being the same."""
    mu = s.method.step_size
    noise = _move(s, mu, seed, trajectories) - _move(s, min(_tiny(s), 1e-3 * mu), seed, trajectories)
    return np.tile(np.sum(noise**2, axis=1), (len(rounds), 1))


def _exact_incremental_noise(s: Setting, rounds: Sequence[int]) -> np.ndarray | None:
    if np.max(s.method.local_steps) == 1:
        return np.zeros(len(rounds))  # every gradient is taken at w_{i-1}
    return deterministic(_incremental_noise)(s, rounds)


def _agents(s: Setting) -> dict[str, Any]:
    """Return participation, batch_size, local_steps of a DynamicFedAvg."""
    name, m = "Dynamic FedAvg", s.method
    is_method(name, m, "DynamicFedAvg")
    uniform = Hypothesis("agents drawn uniformly", f"{m.participation!r}", not hasattr(m.participation, "draws"))
    require(name, uniform)
    return {"participation": participants(s), "batch_size": m.batch_size, "local_steps": m.local_steps}


def _step(s: Setting) -> float:
    eta = s.method.step_size
    require("Dynamic FedAvg", Hypothesis("one step size", f"{eta!r}", isinstance(eta, float)))
    return float(eta)


def _error2(s: Setting) -> float:
    return float(np.sum((s.start - s.problem.solve().w) ** 2))


def _noise_lemma(lemma: Callable[..., Bound]) -> Callable[[Setting], Bound]:
    def bound(s: Setting) -> Bound:
        agents = _agents(s)
        return lemma(dynamic.tracking_constants(s.problem), math.sqrt(_error2(s)), **agents)

    return bound


def _incremental(s: Setting) -> Bound:
    agents = _agents(s)
    del agents["participation"]
    c = dynamic.tracking_constants(s.problem)
    return dynamic.incremental_noise(c, math.sqrt(_error2(s)), step_size=_step(s), **agents)


def _incremental_at(s: Setting) -> Bound:
    agents = _agents(s)
    del agents["participation"]
    c, moments = dynamic.tracking_constants(s.problem), dynamic.client_moments(s.problem, s.start)
    return dynamic.incremental_noise_at(c, moments, step_size=_step(s), **agents)


def _msd(version: Callable[..., Bound], finite: bool) -> Callable[[Setting], Bound]:
    def bound(s: Setting) -> Bound:
        agents, p = _agents(s), s.problem
        drift2 = float(np.trace(p.covariance)) if isinstance(p, MovingTarget) else 0.0
        when = {"rounds": s.rounds, "start2": _error2(s)} if finite else {}
        return version(dynamic.tracking_constants(p), step_size=_step(s), drift2=drift2, **agents, **when)

    return bound


_NOISE, _DRIFT = GRADIENT_NOISE, INCREMENTAL_NOISE
_FINITE, _LIMIT = MEAN_SQUARE_DEVIATION, STEADY_STATE_MSD
_GRADIENTS: dict[str, Any] = {"sample": _gradient_noise, "exact": _exact_gradient_noise}
_STEPS: dict[str, Any] = {"sample": _incremental_noise, "exact": _exact_incremental_noise}

THEOREMS = tuple(
    Theorem(f"dynamic-{name}", quantity, bound, f"Dynamic FedAvg, {title}", "dynamic", **how)
    for name, quantity, bound, title, how in (
        ("gradient-noise", _NOISE, _noise_lemma(dynamic.gradient_noise_paper), "gradient noise lemma", _GRADIENTS),
        ("gradient-noise-sharp", _NOISE, _noise_lemma(dynamic.gradient_noise_sharp), "sharper noise lemma", _GRADIENTS),
        ("incremental-noise", _DRIFT, _incremental, "incremental noise, delta form", _STEPS),
        ("incremental-noise-at", _DRIFT, _incremental_at, "incremental noise at w", _STEPS),
        ("msd-paper", _FINITE, _msd(dynamic.msd_paper, True), "mean-square deviation, form P", {}),
        ("msd-refined", _FINITE, _msd(dynamic.msd_refined, True), "mean-square deviation, form R", {}),
        ("steady-state-paper", _LIMIT, _msd(dynamic.msd_paper, False), "steady state, form P", {}),
        ("steady-state-refined", _LIMIT, _msd(dynamic.msd_refined, False), "steady state, form R", {}),
    )
)
