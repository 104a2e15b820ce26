"""Mean ranks with intervals, and which pairs of solvers differ: arrays of costs in, numbers out.

Costs are (P, S, N): P pairs of problem and target, S solvers, N seeds; infinite where a target was not met, NaN where a
solver is not made for the problem or nobody counts. What is said beyond the problems of a suite takes these for a
sample, problem by problem: targets of one problem are never counted as independent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

LEAST = 6  # problems: with fewer not even a solver that wins on all of them differs at 5 %
LEVEL = 0.95
_DRAWS, _VARIANTS = 1000, 100  # of problems, and of seeds within them


class Comparison(NamedTuple):
    """Two solvers on one axis: a problem goes to the one that all seeds of which cost less, on more of its targets."""

    first: str
    second: str
    wins: int  # problems on which the first costs less
    losses: int
    ties: int
    low: float  # of the share that the first wins of those that differ: an exact 95 % interval
    high: float
    p: float  # of the sign test
    p_all: float  # the same, after Holm, over all pairs of the axis

    @property
    def differs(self) -> bool:
        """Whether it would be a surprise if both won equally often."""
        return self.p_all < 1.0 - LEVEL

    @property
    def better(self) -> str:
        """The one that wins more problems, or nothing."""
        return self.first if self.wins > self.losses else self.second if self.losses > self.wins else ""


def medians_of(costs: np.ndarray) -> np.ndarray:
    """Return medians over seeds (P, S): of observed values, the lower one of two.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.bench.ranks import medians_of
    >>> medians_of(np.array([[[3.0, np.inf, 1.0], [1.0, 2.0, np.nan]]]))
    array([[ 3., nan]])
    """
    ordered = np.sort(costs, axis=2)[:, :, (costs.shape[2] - 1) // 2]
    return np.where(np.isnan(costs).any(axis=2), np.nan, ordered)


def mean_ranks_of(costs: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return each solver's rank among those of its class, averaged over pairs of problem and target; ties share.

    A pair that nobody of the class met is left out, and so are pairs for which a solver has no cost.

    Parameters
    ----------
    costs : array (P, S)
        Medians over seeds.
    classes : array (S,)

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.bench.ranks import mean_ranks_of
    >>> mean_ranks_of(np.array([[1.0, 2.0, 0.0], [3.0, 3.0, 0.0]]), np.array(["a", "a", "b"]))
    array([1.25, 1.75, 1.  ])
    """
    return _mean(_ranks(costs, classes))


def _ranks(costs: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return ranks within classes (P, S), NaN where there is none."""
    same = classes[:, None] == classes[None]
    met = (np.isfinite(costs)[:, None, :] & same).any(axis=2)
    below = ((costs[:, None, :] < costs[:, :, None]) & same).sum(axis=2)
    equal = ((costs[:, None, :] == costs[:, :, None]) & same).sum(axis=2)
    return np.where(met & ~np.isnan(costs), 0.5 + below + 0.5 * equal, np.nan)


def _mean(ranks: np.ndarray) -> np.ndarray:
    """Return means over pairs, NaN where there is no rank."""
    known = ~np.isnan(ranks)
    with np.errstate(invalid="ignore"):
        return np.where(known, ranks, 0.0).sum(axis=0) / known.sum(axis=0)


def rank_intervals(costs: np.ndarray, problems: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return 95 % intervals (S, 2) of mean ranks by the bootstrap: problems are drawn anew, and seeds within them.

    NaN where a solver has costs on fewer than 6 problems: percentiles of so few say little.

    Parameters
    ----------
    costs : array (P, S, N)
    problems : array (P,)
        0, 1, ...: the problem of each pair.
    classes : array (S,)

    References
    ----------
    Efron, Tibshirani, "An Introduction to the Bootstrap" (1993), section 13.3, percentile intervals; drawing in two
    stages is derived here.
    """
    _, S, N = costs.shape
    U, rng = int(problems.max()) + 1, np.random.default_rng(0)
    rows = [np.flatnonzero(problems == u) for u in range(U)]
    variants = []
    for _ in range(_VARIANTS if N > 1 else 1):
        seeds = rng.integers(N, size=(U, S, N))[problems]
        variants.append(_ranks(medians_of(np.take_along_axis(costs, seeds, axis=2)), classes))
    ranks, found = np.stack(variants), np.empty((_DRAWS, S))
    for b in range(_DRAWS):
        drawn, which = rng.integers(U, size=U), rng.integers(len(variants), size=U)
        at = np.concatenate([rows[u] for u in drawn])
        found[b] = _mean(ranks[np.repeat(which, [len(rows[u]) for u in drawn]), at])
    known = np.array([len(np.unique(problems[~np.isnan(costs[:, s]).all(axis=1)])) for s in range(S)])
    found[:, known < LEAST] = np.nan
    tail = 50.0 * (1.0 - LEVEL)
    out = np.full((S, 2), np.nan)
    for s in np.flatnonzero(known >= LEAST):
        values = found[~np.isnan(found[:, s]), s]
        if len(values):
            out[s] = np.percentile(values, [tail, 100.0 - tail])
    return out


def compare_pairs(costs: np.ndarray, problems: np.ndarray, classes: np.ndarray, names: Any) -> list[Comparison]:
    """Return all pairs of solvers of one class, on the problems that both have a cost for and one of them met.

    Parameters
    ----------
    costs : array (P, S, N)
    problems, classes : arrays (P,) and (S,)
    names : sequence of S names

    References
    ----------
    The exact sign test and Clopper and Pearson's interval (Biometrika 26, 1934); Holm, Scand. J. Statist. 6 (1979).
    """
    from scipy.stats import binomtest

    low, high = costs.min(axis=2), costs.max(axis=2)  # NaN if one is
    found = []
    for i in range(len(names)):
        for j in range(i + 1, len(names)):
            known = ~np.isnan(high[:, i] + high[:, j]) & (np.isfinite(low[:, i]) | np.isfinite(low[:, j]))
            if classes[i] != classes[j] or not known.any():
                continue
            sign = (high[:, i] < low[:, j]).astype(int) - (high[:, j] < low[:, i])
            by = [np.sign(sign[known & (problems == u)].sum()) for u in np.unique(problems[known])]
            wins, losses = by.count(1), by.count(-1)
            share, p = (0.0, 1.0), 1.0
            if wins + losses:
                test = binomtest(wins, wins + losses)
                share, p = test.proportion_ci(LEVEL, "exact"), float(test.pvalue)
            ends = float(share[0]), float(share[1])
            found.append(Comparison(names[i], names[j], wins, losses, by.count(0), *ends, p, p))
    return _holm(found)


def _holm(found: list[Comparison]) -> list[Comparison]:
    """Return the comparisons with p-values that hold for all of them together."""
    out, largest = list(found), 0.0
    for place, i in enumerate(sorted(range(len(found)), key=lambda i: found[i].p)):
        largest = max(largest, min(1.0, (len(found) - place) * found[i].p))
        out[i] = found[i]._replace(p_all=largest)
    return out
