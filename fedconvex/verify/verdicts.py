"""Theory meets what a run really did: a theorem's bound beside its own quantity, measured or exact, and a verdict.

`verify` checks the hypotheses, obtains the quantity exactly where the moments close (squared loss) or where nothing is
random, by Monte Carlo with a confidence interval otherwise, and compares. How a theorem is read off a problem and a
method stands in `theorems`.
"""

from __future__ import annotations

import enum
import math
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedconvex import _html
from fedconvex._check import Rng, bad, finite, maybe_flag, numeric, real, takes_rng, unknown, whole, wrong_type
from fedconvex.methods import resolved
from fedconvex.problems import Problem
from fedconvex.solvers.certificates.gaps import UncertifiableError
from fedconvex.theorems import THEOREMS, Setting, Theorem
from fedconvex.theory.bound import AssumptionError, Bound, PrecisionError
from fedconvex.verify.monte_carlo import Limits, Look, monte_carlo

HUGE = 1e100  # products of three beyond overflow
TINIEST = math.sqrt(sys.float_info.min / sys.float_info.epsilon)  # squares of numbers below lose their last digits
FINE = 0.01  # of the bound: what rounding may be where quantity and bound are compared in spite of it


class Outcome(enum.Enum):
    """The answer, as a sentence.

    Examples
    --------
    >>> from fedconvex.verify import Outcome
    >>> Outcome.VIOLATED.value
    'The quantity exceeds the bound.'
    """

    HOLDS = "The quantity is at most the bound."
    VACUOUS = (
        "The quantity is at most the bound, and nothing could have failed: it is zero up to rounding, or one of the two"
        " is infinite."
    )
    VIOLATED = "The quantity exceeds the bound."
    INCONCLUSIVE = "The interval of the quantity contains the bound, or one of the two is not a number."
    NOT_APPLICABLE = "A hypothesis fails."
    CONTRADICTED = "The quantity lies below its least possible value: what it is measured from is wrong."


@dataclass(frozen=True)
class Verdict:
    """What `verify` found.

    Attributes
    ----------
    theorem : str
    outcome : Outcome
    reason : str
        For NOT_APPLICABLE the hypothesis that fails, with its numbers; for INCONCLUSIVE why; otherwise how the quantity
        was obtained, and for VACUOUS why nothing could have failed.
    measured, low, high : float
        The quantity and its confidence interval; equal where it is exact.
    bound : Bound or None
    trajectories : int
        Independent runs that were made, 0 if the value is exact.
    seconds : float
    rounding : float
        How far double precision may have moved the quantity.

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.verify import verify
    >>> problem = Problem(linear_federation(n_clients=3, n_features=2, seed=0).federation, Squared())
    >>> verdict = verify("fedavg-at-optimum", problem, FedAvg(step_size=0.05), rounds=5)
    >>> verdict.outcome.name, verdict.trajectories, verdict.measured <= verdict.bound.value
    ('HOLDS', 0, True)
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
    rounding: float = 0.0

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

    _repr_html_ = _html.of_verdict


# ---------------------------------------------------------------- verify


@takes_rng
def verify(
    theorem: Theorem | str, problem: Problem, method: Any, *, rounds: int, start: Any = None, seed: int = 0,
    precision: float = 0.05, confidence: float = 0.999, most: int = 4096, exact: bool | None = None, rng: Rng = None,
) -> Verdict:  # fmt: skip
    """Return the verdict of a theorem on a run.

    Parameters
    ----------
    theorem : Theorem or str
        One of `THEOREMS`, or your own.
    problem, method, rounds, start
        The run. A theorem speaks about one kind of problem; about others its verdict is NOT_APPLICABLE.
    seed : int
        Seed of the Monte-Carlo trajectories.
    precision : float
        Trajectories are added until ``most`` were made, or the confidence interval excludes the bound, its half width
        is at most this share of the mean (or of a fifth of the bound, or rounding) and nothing speaks against it.
    confidence : float
        Of the interval, in (0, 1): Student's t, which assumes that the mean is nearly normal. Where a client or a row
        may have been missed by all runs, or where they do not vary, the verdict is INCONCLUSIVE and says why; where a
        few of them make the variance, the interval is made wider (`fedconvex.verify.monte_carlo`).
    most : int
        Most trajectories.
    exact : bool, optional
        True: the exact expectation, or an error; False: always Monte Carlo. Default: exact where possible.

    Raises
    ------
    ValueError, TypeError
        If the method cannot run on the problem at all, in the words of the method.

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
    look = Look(precision, confidence, whole("verify: most", most, low=2))
    if isinstance(method, type):
        raise wrong_type("verify: method", "be an instance", method.__name__, f"pass {method.__name__}(...)")
    method, seed, exact = resolved(method, problem)[0], whole("verify: seed", seed), maybe_flag("verify: exact", exact)
    verdict = _verdict(theorem, Setting(problem, method, limit, start_of(problem, start), seed), look, exact)
    return replace(verdict, seconds=time.perf_counter() - begin)


def _check_fit(s: Setting) -> None:
    if hasattr(s.method, "check_fit"):
        s.method.check_fit(s.problem, 1)


def _verdict(theorem: Theorem, s: Setting, look: Look, exact: bool | None) -> Verdict:
    try:
        bound = theorem.at(s)
        _check_fit(s)
        found = None if exact is False else theorem.expectation(s, [s.rounds])
    except AssumptionError as error:
        unknown = isinstance(error, PrecisionError)
        return Verdict(theorem.name, Outcome.INCONCLUSIVE if unknown else Outcome.NOT_APPLICABLE, str(error))
    except UncertifiableError as error:
        why = f"{theorem.name} does not apply: needs a minimiser whose value is certified, got: {error}"
        return Verdict(theorem.name, Outcome.NOT_APPLICABLE, why)
    except np.linalg.LinAlgError as error:  # numbers of sizes that double precision cannot solve with
        why = f"{theorem.name} needs linear systems that double precision can solve, got: {error}"
        return Verdict(theorem.name, Outcome.INCONCLUSIVE, why)
    except ValueError:
        _check_fit(s)  # a method that cannot run on the problem says so in its own words
        raise
    limits = Limits.of(theorem, s, bound)
    if found is not None:
        value, off = float(found.values[0]), float(found.rounding[0])
        outcome, why = _judged(limits, value, value, off)
        reason = "exact" if theorem.interval or theorem.equation else "exact expectation"
        return Verdict(theorem.name, outcome, reason + why, value, value, value, bound, rounding=off)
    if exact:
        raise bad("verify: exact", "be possible (squared loss, or a run without randomness)", f"{s.problem.loss!r}")
    seen = monte_carlo(theorem, s, limits, look)
    outcome, why = _judged(limits, seen.low, seen.high, seen.rounding)
    if seen.doubt and outcome in (Outcome.HOLDS, Outcome.VACUOUS):
        outcome, why = Outcome.INCONCLUSIVE, f"; {seen.doubt}"
    reason = f"Monte Carlo, {seen.runs} trajectories, {look.confidence:.1%} interval{why}"
    return Verdict(
        theorem.name, outcome, reason, seen.mean, seen.low, seen.high, bound, seen.runs, rounding=seen.rounding
    )


def _judged(limits: Limits, low: float, high: float, off: float) -> tuple[Outcome, str]:
    """Return the answer for a quantity in [low, high] that double precision may have moved by ``off``."""
    least, most = limits.least, limits.most
    if math.isnan(low) or math.isnan(high):
        return Outcome.INCONCLUSIVE, ", which is not a number: it overflows"
    if math.isinf(low) and HUGE < abs(limits.value) < math.inf:
        return Outcome.INCONCLUSIVE, ", which overflows, and the bound nearly does"
    off = max(off, TINIEST) if math.isfinite(low) and math.isfinite(high) else 0.0  # a run that diverged
    if high + off < limits.floor:
        what = f"rounding may move it by {off:.2g}; please report it with the data"
        return Outcome.CONTRADICTED, f"; no value of it is below {limits.floor:g}, and {what}"
    if low - off > most or high + off < least:
        return Outcome.VIOLATED, ""
    if high > most + off or low < least - off:
        return Outcome.INCONCLUSIVE, ""
    certain = least <= low - off and high + off <= most
    if off > FINE * limits.size and not certain:
        return Outcome.INCONCLUSIVE, f"; rounding may move the quantity by {off:.2g}, the bound is {limits.value:.2g}"
    if math.isinf(limits.value):
        return Outcome.VACUOUS, ", as any number is: the bound is infinite"
    if math.isinf(high):
        return Outcome.VACUOUS, f", which is {high:g}"
    within = off if abs(limits.value) > limits.slack else off + limits.slack
    if max(abs(low), abs(high)) <= within:
        return Outcome.VACUOUS, ", which is zero" + (f" up to rounding ({within:.2g})" if within > 0.0 else "")
    return Outcome.HOLDS, ", up to rounding" if high > limits.value else ""


def find_theorem(theorem: Theorem | str) -> Theorem:
    """Return a theorem by its name."""
    if isinstance(theorem, Theorem):
        return theorem
    if not isinstance(theorem, str):
        raise wrong_type("verify: theorem", "be a Theorem or its name", type(theorem).__name__)
    if theorem not in THEOREMS:
        raise unknown("verify: theorem", theorem, THEOREMS)
    return THEOREMS[theorem]


def check_confidence(confidence: float) -> None:
    """Raise unless it is a probability."""
    if not 0.0 < real("verify: confidence", confidence) < 1.0:
        raise bad("verify: confidence", "lie strictly between 0 and 1", confidence)


def start_of(problem: Problem, start: Any) -> np.ndarray:
    """Return the model that a run starts at, zeros by default."""
    if isinstance(problem, type) or not hasattr(problem, "learns"):
        raise wrong_type("verify: problem", "be a Problem", type(problem).__name__)
    if start is None:
        return np.zeros(problem.model_shape)
    w = numeric("verify: start", start)
    if w.shape != problem.model_shape:
        raise bad("verify: start", f"have shape {problem.model_shape}", f"{w.shape}")
    finite("verify: start", w)
    return w
