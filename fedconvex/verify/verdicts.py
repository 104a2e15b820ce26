"""Theory meets what a run really did: a theorem's bound beside its own quantity, measured or exact, and a verdict.

`verify` checks the hypotheses, obtains the quantity exactly where the moments close (squared loss) or where nothing is
random, by Monte Carlo with a confidence interval otherwise, and compares. How a theorem is read off a problem and a
method stands in `theorems`.
"""

from __future__ import annotations

import enum
import math
import time
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, finite, numeric, real, whole, wrong_type
from fedconvex.methods import resolved
from fedconvex.problems import Problem
from fedconvex.theorems import THEOREMS, Setting, Theorem
from fedconvex.theory.bound import AssumptionError, Bound

__all__ = ["Outcome", "Verdict", "check_confidence", "find_theorem", "start_of", "verify"]


class Outcome(enum.Enum):
    """The answer, as a sentence."""

    HOLDS = "The quantity is at most the bound."
    VIOLATED = "The quantity exceeds the bound."
    INCONCLUSIVE = "The confidence interval still contains the bound."
    NOT_APPLICABLE = "A hypothesis fails."


@dataclass(frozen=True)
class Verdict:
    """What `verify` found.

    Attributes
    ----------
    theorem : str
    outcome : Outcome
    reason : str
        For NOT_APPLICABLE the hypothesis that fails, with its numbers; otherwise how the quantity was obtained.
    measured, low, high : float
        The quantity and its confidence interval; equal where it is exact.
    bound : Bound or None
    trajectories : int
        Independent runs that were made, 0 if the value is exact.
    seconds : float
    """

    theorem: str
    outcome: Outcome
    reason: str
    measured: float = math.nan
    low: float = math.nan
    high: float = math.nan
    bound: Bound | None = None
    trajectories: int = 0
    seconds: float = 0.0

    @property
    def ratio(self) -> float:
        """Bound over measured value: how loose the bound is here."""
        if self.bound is None or not self.measured > 0.0:
            return math.nan
        return self.bound.value / self.measured

    def __str__(self) -> str:
        if self.bound is None:
            return f"{self.theorem}: {self.outcome.name} ({self.reason})"
        spread = "" if self.low == self.high else f" [{self.low:.4g}, {self.high:.4g}]"
        return (
            f"{self.theorem}: {self.outcome.name}, measured {self.measured:.4g}{spread} <= {self.bound.value:.4g}, "
            f"ratio {self.ratio:.3g} ({self.reason})"
        )


# ---------------------------------------------------------------- verify


def verify(
    theorem: Theorem | str,
    problem: Problem,
    method: Any,
    *,
    rounds: int,
    start: Any = None,
    seed: int = 0,
    precision: float = 0.05,
    confidence: float = 0.999,
    most: int = 4096,
    exact: bool | None = None,
) -> Verdict:
    """Check a theorem on a run.

    Parameters
    ----------
    theorem : Theorem or str
        One of `THEOREMS`, or your own.
    problem, method, rounds, start
        The run. A theorem speaks about one kind of problem: `Problem`, `MultiTaskProblem` or `EnsembleProblem`; about
        others its verdict is NOT_APPLICABLE.
    seed : int
        Seed of the Monte-Carlo trajectories.
    precision : float
        Trajectories are added until the confidence interval excludes the bound and its half width is at most this
        share of the mean (or rounding), or ``most`` were made.
    confidence : float
        Of the interval (Student's t over independent trajectories), in (0, 1).
    most : int
        Most trajectories.
    exact : bool, optional
        True: insist on the exact expectation (an error where it is not available); False: always Monte Carlo. Default:
        exact where possible.

    Returns
    -------
    Verdict

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.verify import verify
    >>> problem = Problem(linear_federation(n_clients=3, model_shift=1.0, seed=0).federation, Squared())
    >>> verdict = verify("fedavg-at-optimum", problem, FedAvg(step_size=0.05, local_steps=2), rounds=20)
    >>> verdict.outcome.name, bool(verdict.ratio > 1)
    ('HOLDS', True)
    """
    begin = time.perf_counter()
    theorem, limit = find_theorem(theorem), whole("verify: rounds", rounds, low=1)
    precision = real("verify: precision", precision, low=0.0, strict=True)
    check_confidence(confidence)
    look = _Looks(precision, confidence, whole("verify: most", most, low=2))
    if isinstance(method, type):
        raise wrong_type("verify: method", "be an instance", method.__name__, f"pass {method.__name__}(...)")
    method, seed = resolved(method, problem)[0], whole("verify: seed", seed)
    verdict = _verdict(theorem, Setting(problem, method, limit, start_of(problem, start), seed), look, exact)
    return replace(verdict, seconds=time.perf_counter() - begin)


class _Looks(NamedTuple):
    """When Monte Carlo stops."""

    precision: float
    confidence: float
    most: int


def _verdict(theorem: Theorem, s: Setting, look: _Looks, exact: bool | None) -> Verdict:
    try:
        bound = theorem.at(s)
    except AssumptionError as error:
        return Verdict(theorem.name, Outcome.NOT_APPLICABLE, str(error))
    values = None if exact is False else theorem.expectation(s, [s.rounds])
    most = bound.value * (1.0 + 1e-10) + theorem.rounding(s)
    least = 2.0 * bound.value - most if theorem.equation else -math.inf
    if values is not None:
        value = float(values[0])
        outcome = Outcome.HOLDS if least <= value <= most else Outcome.VIOLATED  # not a number is a violation
        reason = "exact" if theorem.interval or theorem.equation else "exact expectation"
        reason += ", up to rounding" if bound.value < value <= most else ""
        return Verdict(theorem.name, outcome, reason, value, value, value, bound)
    if exact:
        raise bad("verify: exact", "be possible (squared loss, or a run without randomness)", f"{s.problem.loss!r}")
    mean, low, high, runs = _monte_carlo(theorem, s, least, most, look)
    outcome = Outcome.HOLDS if least <= low and high <= most else Outcome.INCONCLUSIVE
    if low > most or high < least:
        outcome = Outcome.VIOLATED
    reason = f"Monte Carlo, {runs} trajectories, {look.confidence:.1%} interval"
    return Verdict(theorem.name, outcome, reason, mean, low, high, bound, runs)


def find_theorem(theorem: Theorem | str) -> Theorem:
    """Return a theorem by its name."""
    if isinstance(theorem, Theorem):
        return theorem
    if not isinstance(theorem, str):
        raise wrong_type("verify: theorem", "be a Theorem or its name", type(theorem).__name__)
    if theorem not in THEOREMS:
        raise bad("verify: theorem", "be one of " + ", ".join(THEOREMS), repr(theorem))
    return THEOREMS[theorem]


def check_confidence(confidence: float) -> None:
    """Raise unless it is a probability."""
    if not 0.0 < real("verify: confidence", confidence) < 1.0:
        raise bad("verify: confidence", "lie strictly between 0 and 1", confidence)


def start_of(problem: Problem, start: Any) -> np.ndarray:
    """Return the model that a run starts at, zeros by default."""
    if not hasattr(problem, "learns"):
        raise wrong_type("verify: problem", "be a Problem", type(problem).__name__)
    if start is None:
        return np.zeros(problem.model_shape)
    w = numeric("verify: start", start)
    if w.shape != problem.model_shape:
        raise bad("verify: start", f"have shape {problem.model_shape}", f"{w.shape}")
    finite("verify: start", w)
    return w


def _monte_carlo(
    theorem: Theorem, s: Setting, least: float, bound: float, look: _Looks
) -> tuple[float, float, float, int]:
    """Return mean, confidence interval and number of runs; batches double until the answer is clear and precise.

    The interval is widened for the number of looks (Bonferroni), so that stopping early does not bias it.
    """
    values, size, looks = np.empty(0), 64, max(1, math.ceil(math.log2(look.most / 64)) + 1)
    finest = theorem.rounding(s)  # narrower intervals say nothing more
    tail = (1.0 - look.confidence) / (2.0 * looks)
    while True:
        batch = min(size, look.most - values.size)
        values = np.concatenate([values, theorem.draw(s, [s.rounds], s.seed + values.size, batch)[0]])
        if not np.isfinite(values).all():  # some runs diverge: the mean is infinite
            return math.inf, math.inf, math.inf, values.size
        n, (mean, low, high) = values.size, theorem.estimate(s, values, tail)
        clear = least <= low <= high <= bound or low > bound or high < least
        if n >= look.most or (clear and 0.5 * (high - low) <= max(look.precision * abs(mean), finest)):
            return mean, low, high, n
        size = n
