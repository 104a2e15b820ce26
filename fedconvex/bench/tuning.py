"""The search for a step size: the same for every solver, and its cost is part of the result.

Seven multiples of the step size of theory are tried for some rounds; the better half is tried for twice as many, until
one is left (successive halving: Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter
optimization", AISTATS 2016, Fig. 3, with trials from the start; from memory). The judge is the objective after the last
round of a trial.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fedconvex.bench.judging import Referee
from fedconvex.bench.players import Facts, Inside, Outside
from fedconvex.bench.running import Step, plain

FACTORS = tuple(4.0**k for k in range(-3, 4))  # times the step size of theory
_APART = 1000  # trials draw other numbers than the run that follows: a step is not chosen for its luck


class Trial(NamedTuple):
    """One step size, tried."""

    factor: float  # times that of theory
    rounds: int
    gap: float  # certified, of its last model; infinite where it failed


class Search(NamedTuple):
    """What was tried, and what it cost."""

    factor: float
    paid: tuple[float, ...]  # rounds, floats, passes, seconds, floats up
    trials: tuple[Trial, ...]

    def found(self) -> dict[str, Any]:
        """Return it as numbers that JSON knows, without seconds."""
        costs = dict(zip(("rounds", "floats", "passes"), map(plain, self.paid[:3]), strict=True))
        return {"factor": self.factor, **costs, "trials": [[t.factor, t.rounds, plain(t.gap)] for t in self.trials]}


def budget(first: int) -> int:
    """Return the rounds of a whole search.

    Examples
    --------
    >>> from fedconvex.bench.tuning import budget
    >>> budget(8)  # 7 trials of 8 rounds, 4 of 16, 2 of 32
    184
    """
    total, left = 0, len(FACTORS)
    while left > 1:
        total, left, first = total + left * first, (left + 1) // 2, 2 * first
    return total


def tuned(referee: Referee, it: Inside | Outside, seed: int, first: int) -> tuple[Facts, Search]:
    """Choose a step size, and leave the solver ready with it.

    Parameters
    ----------
    referee : Referee
    it : Inside or Outside
        The solver on the referee's problem.
    seed : int
        Of the run that follows; trials have one of their own.
    first : int
        Rounds of a trial with every multiple; with the better half it is twice as many, and so on.
    """
    left, rounds, paid = sorted(FACTORS, key=_distance), first, np.zeros(5)
    trials: list[Trial] = []
    while len(left) > 1:
        values = {}
        for factor in left:
            end, failed = _tried(it, factor, _APART + seed, rounds)
            values[factor], gap = math.inf, math.inf
            if end is not None:
                paid += [end.round, end.floats, end.passes, end.seconds, end.up]
                if not failed:
                    values[factor], gap = (float(a[0]) for a in referee.gaps(end.w[None]))
            trials.append(Trial(factor, rounds, gap))
        left = sorted(left, key=lambda f: (values[f], _distance(f)))[: (len(left) + 1) // 2]
        rounds *= 2
    facts = it.ready(left[0])
    facts = facts._replace(words=f"{left[0]:g} times {facts.words}, tuned")
    return facts, Search(left[0], tuple(paid.tolist()), tuple(trials))


def _distance(factor: float) -> float:
    """Return how far a multiple is from the step size of theory, which wins where all are alike."""
    return abs(math.log(factor))


def _tried(it: Inside | Outside, factor: float, seed: int, rounds: int) -> tuple[Step | None, bool]:
    """Return the last step of a trial, and whether the solver failed there: a step size may be too long."""
    end = None
    try:
        it.ready(factor)
        for step in it.steps(seed, rounds, False):
            end = step
    except (Exception, SystemExit):
        return end, True
    return end, False
