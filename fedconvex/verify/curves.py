"""A theorem's quantity and its bound over the number of rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import Rng, bad, maybe_flag, takes_rng, whole
from fedconvex.methods import resolved
from fedconvex.problems import Problem
from fedconvex.theorems import Setting, Theorem
from fedconvex.theory.bound import AssumptionError
from fedconvex.verify.verdicts import check_confidence, find_theorem, start_of


class BoundCurve(NamedTuple):
    """A theorem along a run: every array has one entry per number of rounds, NaN where it is not available.

    Attributes
    ----------
    rounds : int array (n,)
        Numbers of rounds.
    measured : array (n,)
        The quantity after so many rounds.
    low, high : array (n,)
        Confidence interval, each point for itself; equal to measured where it is exact.
    bound : array (n,)
        Of the theorem.
    exact : bool
        Whether the expectation is exact.

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.verify import curve
    >>> problem = Problem(linear_federation(n_clients=3, n_features=2, seed=0).federation, Squared())
    >>> line = curve("fedavg-at-optimum", problem, FedAvg(step_size=0.05), rounds=[1, 2])
    >>> line.rounds.tolist(), line.exact
    ([1, 2], True)
    """

    rounds: np.ndarray
    measured: np.ndarray  # the quantity after so many rounds
    low: np.ndarray  # confidence interval, each point for itself; equal to measured where it is exact
    high: np.ndarray
    bound: np.ndarray
    exact: bool


@takes_rng
def curve(
    theorem: Theorem | str, problem: Problem, method: Any, *, rounds: Sequence[int], start: Any = None, seed: int = 0,
    trajectories: int = 256, confidence: float = 0.95, exact: bool | None = None, rng: Rng = None,
) -> BoundCurve:  # fmt: skip
    """Return a theorem's quantity and its bound over the number of rounds.

    Parameters
    ----------
    theorem, problem, method, start, seed, exact
        As for `verify`.
    rounds : sequence of int
        Numbers of rounds, each at least 1.
    trajectories : int
        Independent runs where the expectation is not exact.
    confidence : float
        Of the interval at every point.

    Raises
    ------
    ValueError, TypeError
        If a number of rounds is below 1, there is none, trajectories is below 2, or exact expectations are asked for
        where none are known.

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.verify import curve
    >>> problem = Problem(linear_federation(n_clients=3, model_shift=1.0, seed=0).federation, Squared())
    >>> line = curve("fedavg-at-optimum", problem, FedAvg(step_size=0.05, local_steps=2), rounds=[1, 10, 100])
    >>> line.exact, bool((line.measured <= line.bound).all())
    (True, True)
    """
    theorem = find_theorem(theorem)
    times = [whole("curve: rounds", T, low=1) for T in np.ravel(np.asarray(rounds, dtype=object))]
    if not times:
        raise bad("curve: rounds", "name at least one number of rounds", "none")
    trajectories, exact = whole("curve: trajectories", trajectories, low=2), maybe_flag("curve: exact", exact)
    check_confidence(confidence)
    s = Setting(problem, resolved(method, problem)[0], max(times), start_of(problem, start), whole("curve: seed", seed))
    bounds = np.full(len(times), np.nan)
    for i, T in enumerate(times):
        try:
            bounds[i] = theorem.at(s._replace(rounds=T)).value
        except AssumptionError:
            continue
    if np.isnan(bounds).all():
        theorem.at(s)  # tells why
    found = None if exact is False else theorem.expectation(s, times)
    if found is not None:
        return BoundCurve(np.array(times), found.values, found.values, found.values, bounds, True)
    if exact:
        raise bad("curve: exact", "be possible (squared loss, or a run without randomness)", f"{problem.loss!r}")
    values = theorem.draw(s, times, seed, trajectories)
    tail = 0.5 - 0.5 * confidence
    limits = [theorem.estimate(s._replace(rounds=T), v, tail) for T, v in zip(times, values, strict=True)]
    mean, low, high = np.array(limits).T
    return BoundCurve(np.array(times), mean, low, high, bounds, False)
