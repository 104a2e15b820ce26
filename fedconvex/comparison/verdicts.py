"""Who gains and who loses by joining, which client is worst off, and what to decide, each as far as the rows say."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.comparison.scores import Estimate, mean_of

__all__ = ["Joining", "Outcome", "joining", "worst_of"]


class Outcome(enum.Enum):
    """What a model does for a client, compared with the client's own; the value is how it reads."""

    GAINS = "gains"
    LOSES = "loses"
    OPEN = "no clear difference"
    FEW = "too few rows to say"


class Joining(NamedTuple):
    """A client under a model, less the same client alone, on its held-out rows."""

    difference: Estimate  # of the mean error; below zero is a gain
    outcome: Outcome


def joining(
    errors: np.ndarray, own: np.ndarray, client: np.ndarray, K: int, least: int, level: float, doubt: Any = None
) -> list[Joining]:
    """Return for every client what it gains or loses.

    Parameters
    ----------
    errors, own : array (m,)
        Errors of the held-out rows under the model, and under the clients' own models: paired.
    client : int array (m,)
    K : int
    least : int
        Rows below which nothing is said.
    level : float
        Of all intervals together: those of J clients are of level 1 - (1 - level)/J each (Bonferroni).
    doubt : array (m,), optional
        Variance of the difference over the labels that a row may have: `scores.label_variance`.

    Notes
    -----
    Differences of log losses are skewed: a model that is too sure is a little better in most rows and much worse in
    few, and a sample without any of these has next to no variance. Student's intervals of 10 to 50 rows of 10 to 20
    clients, which should all hold in 95 % of the samples, did so in 64 % to 96 %. What a row would have lost with
    another label is known, however: the mean of ``doubt`` counts as the variance of twenty more rows, and they all held
    in 94 % or more.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.comparison.verdicts import joining
    >>> better = np.r_[np.tile([0.1, 0.2], 10), 0.1]
    >>> found = joining(better, better + 0.5, np.r_[np.zeros(20, int), 1], 2, 10, 0.95)
    >>> [j.outcome.value for j in found]
    ['gains', 'too few rows to say']
    """
    counts = np.bincount(client, minlength=K)
    judged = int((counts >= least).sum())
    each = 1.0 - (1.0 - level) / max(judged, 1)
    out = []
    for k in range(K):
        mine = client == k
        found = mean_of(errors[mine] - own[mine], each, None if doubt is None else doubt[mine])
        if counts[k] < least:
            out.append(Joining(Estimate(found.value), Outcome.FEW))
        elif found.high < 0.0:
            out.append(Joining(found, Outcome.GAINS))
        elif found.low > 0.0:
            out.append(Joining(found, Outcome.LOSES))
        else:
            out.append(Joining(found, Outcome.OPEN))
    return out


def worst_of(errors: Sequence[Estimate], rows: Sequence[int], least: int) -> int | None:
    """Return the number of the client of largest error among those with enough rows, None if there is none."""
    known = [e.value if n >= least else -math.inf for e, n in zip(errors, rows, strict=True)]
    best = int(np.argmax(known)) if known else 0
    return best if known and known[best] > -math.inf else None


def counted(outcomes: Sequence[Outcome]) -> dict[Any, int]:
    """Return how many clients have each outcome."""
    return {o: sum(x is o for x in outcomes) for o in Outcome}
