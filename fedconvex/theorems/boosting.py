"""Boosting with several sources: descent, progress, AdaBoost's rate, the accuracy of smoothing, the gradient identity.

MultiBoost draws nothing: every quantity is exact. What a round promises is read off its own step, from the margins
before and after, not from what the method says of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedconvex.driver import iterate
from fedconvex.losses import Exponential
from fedconvex.problems import EnsembleProblem, StumpProblem
from fedconvex.theorems.parts.setting import Setting, is_method
from fedconvex.theorems.parts.theorem import Theorem
from fedconvex.theory import boosting
from fedconvex.theory.bound import (
    ENSEMBLE_LOSS,
    LARGEST_INCREASE,
    SMOOTHING_ERROR,
    TAYLOR_REMAINDER,
    Bound,
    Hypothesis,
    require,
)

__all__ = ["THEOREMS"]

NAME = "boosting"
STEP = 0.01  # h of the gradient identity
_SMALL = 1e-6  # steps below it are too short for their direction to be read off; they promise nothing


class Path(NamedTuple):
    """A run, state by state."""

    margins: list[np.ndarray]  # T+1 of (n,), rows sorted by domain
    alpha: list[np.ndarray]  # T+1 of (N,), or (0,) for stumps
    steps: np.ndarray  # (T,) eta_t, 0 where the run has stalled
    capped: np.ndarray  # (T,) whether the step was cut off at max_step
    cut: np.ndarray  # (T,) whether a step back ended at 0


def _problem(s: Setting) -> EnsembleProblem:
    assert isinstance(s.problem, EnsembleProblem)
    return s.problem


def _path(s: Setting, rounds: int) -> Path:
    margins, alpha, steps, capped, cut, done = [], [], [], [], [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of capped steps, which are seen below
        for t, state in iterate(s.method, s.problem, rounds=rounds, start=s.start):
            margins.append(state.margins[0])
            alpha.append(state.w[0])
            if t:
                stage = state.history[0, done]  # the round's coordinate; corrections come after it
                steps.append(float(stage[5]))
                capped.append(abs(stage[5]) >= s.method.max_step)
                back = stage[5] < 0.0 and state.w.shape[1] > 0
                cut.append(bool(back and state.w[0, int(stage[1])] == 0.0))
            done = state.history.shape[1]
    return Path(margins, alpha, np.array(steps), np.array(capped), np.array(cut))


def _value(s: Setting, margins: np.ndarray) -> float:
    """F, or F_mu with smoothing."""
    p, mu = _problem(s), s.method.smoothing
    F = p.vertices @ p.losses_of(margins)[0]
    return float(F.max()) if mu is None or len(F) == 1 else float(np.logaddexp.reduce(mu * F) / mu)


def _exact(quantity: Callable[[Setting, Path, int], float]) -> Callable[[Setting, Sequence[int]], np.ndarray]:
    """Return the quantity of the one run that there is."""

    def exact(s: Setting, rounds: Sequence[int]) -> np.ndarray:
        path = _path(s, max(rounds))
        return np.array([quantity(s, path, T) for T in rounds])

    return exact


# ---------------------------------------------------------------- quantities


def _loss(s: Setting, path: Path, T: int) -> float:
    return _value(s, path.margins[T])


def _increase(s: Setting, path: Path, T: int) -> float:
    return float(np.diff([_value(s, m) for m in path.margins[: T + 1]]).max())


def _error(s: Setting, path: Path, T: int) -> float:
    p = _problem(s)
    return abs(_value(s, path.margins[T]) - float(p.objective(p.losses_of(path.margins[T])[0])))


def _remainder(s: Setting, path: Path, T: int) -> float:
    """Every coordinate is moved by h, and every F_k computed anew from its rows."""
    p, alpha = _problem(s), path.alpha[T]
    F, gradient = p.losses_of(path.margins[T])[0], boosting.edges(p, alpha).gradient
    moved = np.array([p.losses_of(p.margins(alpha) + STEP * u)[0] for u in p.signed.T])  # (N, p)
    return float(np.abs(moved - F - STEP * gradient.T).max())


# ---------------------------------------------------------------- bounds


def _boosts(s: Setting) -> tuple[Hypothesis, ...]:
    """Check what all these theorems ask for."""
    is_method(NAME, s.method, "MultiBoost")
    least = f"least entry {s.start.min(initial=0.0):g}"
    return require(NAME, Hypothesis("a start with alpha >= 0", least, not (s.start < 0.0).any()))


def _one_by_one(s: Setting) -> Hypothesis:
    """Return the hypothesis that a round changes one coordinate, so that its direction is seen in the margins."""
    every = getattr(s.method, "corrective", None)
    return Hypothesis("one coordinate a round", f"corrective={every}", every is None)


def _descent(s: Setting) -> Bound:
    return _with(boosting.boosting_descent(), _boosts(s))


def _progress(s: Setting) -> Bound:
    """Add up what the rounds promise: with a list of classifiers by the steepest of all, else by the one taken."""
    checked = _boosts(s)
    p, mu = _problem(s), s.method.smoothing
    one = len(p.vertices) == 1
    smooth = Hypothesis("a smoothed maximum, or one mixture", f"smoothing={mu}", mu is not None or one)
    checked += require(NAME, smooth, _one_by_one(s))
    path, promised = _path(s, s.rounds), np.zeros(s.rounds)
    everywhere = mu is not None or not s.method.own_classifiers or p.p == 1  # else the steepest may be another source's
    for t in np.flatnonzero((path.steps > _SMALL) & ~path.capped):
        before, u = path.margins[t], (path.margins[t + 1] - path.margins[t]) / path.steps[t]
        F, slopes = p.losses_of(before)
        mix = p.worst(F, mu)[0]
        slope = -float(slopes * p.row_weights_of(mix) @ u)
        if everywhere and not isinstance(p, StumpProblem):
            slope = min(slope, float((mix @ boosting.edges(p, path.alpha[t]).gradient).min()))
        promised[t] = boosting.smoothed_progress(_value(s, before), slope, 1e-300 if one else mu, p.loss)
    return _with(boosting.boosting_progress(_value(s, path.margins[0]), promised), checked)


def _edges(s: Setting) -> tuple[np.ndarray, tuple[Hypothesis, ...]]:
    """Return gamma_t of every round, and what was checked. Steps back that end at 0 promise nothing."""
    p, name, checked = _problem(s), boosting.ADABOOST, _boosts(s)
    checked += require(
        name,
        Hypothesis("one source", f"{p.p} sources", p.p == 1),
        Hypothesis("one vertex", f"{len(p.vertices)} vertices", len(p.vertices) == 1),
        Hypothesis("exponential loss", f"{p.loss!r}", p.loss == Exponential()),
        _one_by_one(s),
        Hypothesis("a start at alpha = 0", f"largest entry {s.start.max(initial=0.0):g}", not s.start.any()),
    )
    path = _path(s, s.rounds)
    most = f"largest step {np.abs(path.steps).max():.4g}, max_step={s.method.max_step:g}"
    checked += require(name, Hypothesis("no step that is cut off", most, not path.capped.any()))
    gamma = np.zeros(s.rounds)
    for t in np.flatnonzero((np.abs(path.steps) > _SMALL) & ~path.cut):
        D = p.losses_of(path.margins[t])[1]
        gamma[t] = D @ (path.margins[t + 1] - path.margins[t]) / (path.steps[t] * D.sum())
    return np.clip(gamma, -1.0, 1.0), checked


def _adaboost(s: Setting) -> Bound:
    gamma, checked = _edges(s)
    return _with(boosting.adaboost(gamma), checked)


def _weak(s: Setting) -> Bound:
    gamma, checked = _edges(s)
    return _with(boosting.adaboost_weak(float(np.abs(gamma).min()), rounds=s.rounds), checked)


def _smoothing(s: Setting) -> Bound:
    checked, mu = _boosts(s), s.method.smoothing
    checked += require(NAME, Hypothesis("a smoothed maximum", f"smoothing={mu}", mu is not None))
    return _with(boosting.smoothing_error(len(_problem(s).vertices), mu), checked)


def _identity(s: Setting) -> Bound:
    checked, p = _boosts(s), _problem(s)
    checked += require(NAME, Hypothesis("a list of classifiers", type(p).__name__, not isinstance(p, StumpProblem)))
    values = p.losses_of(_path(s, s.rounds).margins[-1])[0]
    return _with(boosting.gradient_remainder(values, STEP, p.loss), checked)


def _with(bound: Bound, checked: tuple[Hypothesis, ...]) -> Bound:
    return replace(bound, requires=checked + bound.requires)


# ---------------------------------------------------------------- for reports


def _tolerance(s: Setting) -> float:
    """Return the rounding of sums of n terms that start at 1 for alpha = 0, and do not grow."""
    p = _problem(s)
    margins = p.margins(s.start) if s.start.size else np.zeros(p.data.n)
    return 1e-13 * (1.0 + _value(s, margins))


def _shown(s: Setting) -> dict[str, tuple[float, str]]:
    p = _problem(s)
    out = {
        "sources": (float(p.p), "given"),
        "vertices of Lambda": (float(len(p.vertices)), "given"),
        "rows of the smallest domain": (float(p.counts.min()), "counted"),
    }
    if not isinstance(p, StumpProblem):
        out["classifiers"] = (float(p.signed.shape[1]), "listed")
    if s.method.smoothing is not None:
        out["mu"] = (float(s.method.smoothing), "smoothing of the method")
    return out


_ABOUT: dict[str, Any] = {"kind": EnsembleProblem, "tolerance": _tolerance, "shown": _shown}

THEOREMS = tuple(
    Theorem(name, quantity, bound, title, "boosting", exact=_exact(shown), **_ABOUT)
    for name, quantity, bound, title, shown in (
        ("boosting-descent", LARGEST_INCREASE, _descent, "MultiBoost, monotone descent", _increase),
        ("boosting-progress", ENSEMBLE_LOSS, _progress, "MultiBoost, progress of smoothed rounds", _loss),
        ("boosting-smoothing", SMOOTHING_ERROR, _smoothing, "MultiBoost, accuracy of smoothing", _error),
        ("boosting-gradient", TAYLOR_REMAINDER, _identity, "MultiBoost, gradient identity", _remainder),
        ("adaboost", ENSEMBLE_LOSS, _adaboost, "AdaBoost, product of the rounds", _loss),
        ("adaboost-weak", ENSEMBLE_LOSS, _weak, "AdaBoost, exponential rate (weak learning)", _loss),
    )
)
