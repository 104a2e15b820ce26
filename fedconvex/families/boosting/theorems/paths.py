"""What theorems on MultiBoost read off a run: its path, round by round, and their rule.

MultiBoost draws nothing: every quantity is exact. What a round promises is read off its own step, from the margins
before and after, not from what the method says of it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.methods import MultiBoost
from fedconvex.problems import BoostingProblem, StumpProblem
from fedconvex.theorems.kit import *

NAME = "boosting"
ENSEMBLE_LOSS = Quantity(
    "F(alpha_T), the largest loss of a mixture of the domains; its smoothed maximum where one is used",
    "loss",
    least=0.0,
)
SMALL = 1e-6  # steps below it are too short for their direction to be read off; they promise nothing


class Path(NamedTuple):
    """A run, state by state."""

    margins: list[np.ndarray]  # T+1 of (n,), rows sorted by domain
    alpha: list[np.ndarray]  # T+1 of (N,), or (0,) for stumps
    steps: np.ndarray  # (T,) eta_t, 0 where the run has stalled
    capped: np.ndarray  # (T,) whether the step was cut off at max_step
    cut: np.ndarray  # (T,) whether a step back ended at 0


def problem_of(s: Setting) -> BoostingProblem:
    """Return the setting's problem."""
    assert isinstance(s.problem, BoostingProblem)
    return s.problem


def path_of(s: Setting, rounds: int) -> Path:
    """Run the method and return all its states."""
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


def value_of(s: Setting, margins: np.ndarray) -> float:
    """F, or F_mu with smoothing."""
    p, mu = problem_of(s), s.method.smoothing
    F = p.vertices @ p.losses_of(margins)[0]
    return float(F.max()) if mu is None or len(F) == 1 else float(np.logaddexp.reduce(mu * F) / mu)


def loss_rounding(s: Setting, path: Path, T: int) -> float:
    """Return how far a computed loss after T rounds may be off: by its sum, and by the margins that it is made of.

    A margin is a sum of steps times numbers in [-1, 1], and is off by eps of the steps' sizes.
    """
    p = problem_of(s)
    F = float(p.losses_of(path.margins[T])[0].max())
    reach = sum(float(np.abs(a).sum()) for a in (path.alpha[0], path.steps[:T], path.alpha[T]))
    smoothed = 0.0 if s.method.smoothing is None else math.log(len(p.vertices)) / float(s.method.smoothing)
    return UNIT * (F + float(traits(p.loss).slope_bound(F)) * reach + smoothed)


def _all_losses(s: Setting, path: Path, T: int) -> float:
    """Return how far sums and differences of the losses up to round T may be off."""
    return 4.0 * sum(loss_rounding(s, path, t) for t in range(T + 1))


def along(
    quantity: Callable[[Setting, Path, int], float], off: Callable[[Setting, Path, int], float] = _all_losses
) -> Callable[[Setting, Sequence[int]], Found]:
    """Return the quantity of the one run that there is, and its rounding."""

    def exact(s: Setting, rounds: Sequence[int]) -> Found:
        path = path_of(s, max(rounds))
        return Found(np.array([quantity(s, path, T) for T in rounds]), np.array([off(s, path, T) for T in rounds]))

    return exact


def loss_after(s: Setting, path: Path, T: int) -> float:
    """F, or F_mu with smoothing, after T rounds."""
    return value_of(s, path.margins[T])


def boosts(s: Setting) -> tuple[Hypothesis, ...]:
    """Check what all these theorems ask for."""
    is_method(NAME, s.method, MultiBoost)
    least = f"least entry {s.start.min(initial=0.0):g}"
    return require(NAME, Hypothesis("a start with alpha >= 0", least, not (s.start < 0.0).any()))


def one_by_one(s: Setting) -> Hypothesis:
    """Return the hypothesis that a round changes one coordinate, so that its direction is seen in the margins."""
    every = getattr(s.method, "corrective", None)
    return Hypothesis("one coordinate a round", f"corrective={every}", every is None)


def boosting_constants(s: Setting) -> dict[str, tuple[float, str]]:
    """Return the constants for reports."""
    p = problem_of(s)
    out = {
        "sources": (float(p.p), "given"),
        "vertices of Lambda": (float(len(p.vertices)), "given"),
        "rows of the smallest domain": (float(p.counts.min()), "counted"),
    }
    if not isinstance(p, StumpProblem):
        out["classifiers"] = (float(p.signed.shape[1]), "listed")
    if getattr(s.method, "smoothing", None) is not None:
        out["mu"] = (float(s.method.smoothing), "smoothing of the method")
    return out


def line_search(**settings: Any) -> MethodRule:
    """Return MultiBoost, whose steps are exact line searches."""
    return MethodRule("exact line search", lambda theorem, problem, start, rounds: MultiBoost(**settings))
