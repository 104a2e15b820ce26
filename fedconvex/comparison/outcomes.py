"""Who gains and who loses by joining, which client is worst off, and what to decide, each as far as the rows say."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.comparison.skewed_intervals import Estimate


class Outcome(enum.Enum):
    """What a model does for a client, compared with the client's own; the value is how it reads."""

    GAINS = "gains"
    LOSES = "loses"
    OPEN = "no clear difference"
    FEW = "too few rows to say"
    KEPT = "keeps its scores"  # of a site that does not tell them


class Standing(enum.Enum):
    """How the base rate of a client, which uses no features, stands beside models; the value is how it reads."""

    BEATEN = "clearly beaten"
    OPEN = "not clearly beaten"
    BEST = "no model beats it"
    FEW = "too few rows to say"
    KEPT = "keeps its scores"


class Joining(NamedTuple):
    """A client under a model, less the same client alone, on its held-out rows."""

    difference: Estimate  # of the mean error; below zero is a gain
    outcome: Outcome


def joining(errors: Any, client: np.ndarray, K: int, least: int, level: float, families: int = 1) -> list[Joining]:
    """Return for every client what it gains or loses.

    Parameters
    ----------
    errors : `intervals.Differences` or `intervals.Products`
        Errors of the held-out rows under the model, less those of the same rows under another.
    client : int array (m,)
    K : int
    least : int
        Rows below which nothing is said.
    level : float
        Of all intervals together: those of J clients are of level 1 - (1 - level)/J each (Bonferroni).
    families : int
        How many models are compared with the other one in one breath: J counts each client as often.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.comparison.skewed_intervals import Differences
    >>> from fedconvex.comparison.outcomes import joining
    >>> better = Differences(np.tile([-0.4, -0.6, -0.5], 7), np.zeros(21))
    >>> found = joining(better, np.r_[np.zeros(20, int), 1], 2, 10, 0.95)
    >>> [j.outcome.value for j in found]
    ['gains', 'too few rows to say']
    """
    counts = np.bincount(client, minlength=K)
    judged = int((counts >= least).sum())
    each = 1.0 - (1.0 - level) / max(families * judged, 1)
    out = []
    for k in range(K):
        out.append(judged_by(errors.mean(np.flatnonzero(client == k), each), int(counts[k]), least))
    return out


def judged_by(found: Estimate, rows: int, least: int) -> Joining:
    """Return what a difference says that is of so many rows."""
    if rows < least:
        return Joining(Estimate(found.value), Outcome.FEW)
    if found.high < 0.0:
        return Joining(found, Outcome.GAINS)
    return Joining(found, Outcome.LOSES if found.low > 0.0 else Outcome.OPEN)


def standings(asked: Sequence[Sequence[Joining]], every: Sequence[Sequence[Joining]]) -> list[Standing]:
    """Return how each client's base rate stands.

    Parameters
    ----------
    asked : sequence of sequences of Joining
        By model and client: errors less those of the base rate, of the models whose intervals hold together. It is
        clearly beaten where one of them gains.
    every : sequence of sequences of Joining
        The like for all models. Where none has a lower error on the held-out rows, no model beats it.
    """
    out = []
    for some, others in zip(zip(*asked, strict=True), zip(*every, strict=True), strict=True):
        if some[0].outcome in (Outcome.FEW, Outcome.KEPT):
            out.append(Standing[some[0].outcome.name])
        elif any(j.outcome is Outcome.GAINS for j in some):
            out.append(Standing.BEATEN)
        else:
            none = all(not j.difference.value < 0.0 for j in others)
            out.append(Standing.BEST if none else Standing.OPEN)
    return out


def worst_of(errors: Sequence[Estimate], rows: Sequence[int], least: int) -> int | None:
    """Return the number of the client of largest error among those with enough rows, None if there is none."""
    known = [e.value if n >= least else -math.inf for e, n in zip(errors, rows, strict=True)]
    best = int(np.argmax(known)) if known else 0
    return best if known and known[best] > -math.inf else None


def counted(outcomes: Sequence[Outcome]) -> dict[Any, int]:
    """Return how many clients have each outcome."""
    return {o: sum(x is o for x in outcomes) for o in Outcome}
