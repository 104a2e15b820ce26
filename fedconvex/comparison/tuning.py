"""l2 by cross-validation: 13 values, folds stratified within clients and the same for every kind of model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedconvex.comparison.kinds import Alone, Training
from fedconvex.comparison.scores import row_losses_of

__all__ = ["L2S", "Tuned", "tune"]

L2S = tuple(10.0 ** (-0.5 * i) for i in range(13))  # 1, 0.316, ..., 1e-6: decreasing


class Tuned(NamedTuple):
    """What cross-validation chose, and on what grounds."""

    l2: Any  # a number, or one per client (K,)
    l2s: tuple[float, ...]
    losses: np.ndarray  # (L,) mean loss of the rows that were held out in their fold
    score: np.ndarray  # (L,) what was minimised
    loss: float  # mean loss at the chosen l2
    at_end: bool  # whether l2 is the smallest or largest of its values


def tune(
    kind: Any, data: Training, fold: np.ndarray, least: int, tell: Callable[[float], None], l2s: Any = L2S
) -> Tuned:
    """Choose l2 for a kind of model.

    Parameters
    ----------
    kind : kind of `fedconvex.comparison.kinds`
    data : Training
    fold : int array (n_train,)
        Of every training row; -1 is always trained on. What is fitted in a fold is standardised by its own rows.
    least : int
        Rows that a domain must have for its loss to count in a largest one.
    tell : function
        Called with the share that is done.
    l2s : sequence of float
        Decreasing.

    Returns
    -------
    Tuned
        Of equal values the largest is chosen. Without folds (one row per client) it is the largest of all.
    """
    rows, train = data.rows, data.train
    losses = np.full((len(l2s), train.size), np.nan)
    parts = np.unique(fold[fold >= 0])
    for i, part in enumerate(parts.tolist()):
        out = np.flatnonzero(fold == part)
        held = train[out]
        inner = Training(rows, data.X, train[fold != part])
        for j, models in enumerate(kind.path(inner, l2s)):
            losses[j, out] = row_losses_of(rows, models.scores(data.X[held], rows.client[held]), held)
            tell((i + (j + 1.0) / len(l2s)) / parts.size)
    known = np.flatnonzero(fold >= 0)
    if not known.size:
        nothing = np.full(len(l2s), np.nan)
        return Tuned(_alike(kind, rows.K, l2s[0]), tuple(l2s), nothing, nothing, np.nan, True)
    mean = losses[:, known].mean(axis=1)
    if isinstance(kind, Alone):
        return _own(rows, losses[:, known], train[known], mean, l2s)
    score = kind.preferred(rows, losses[:, known], train[known], least)
    best = _least(score)
    return Tuned(l2s[best], tuple(l2s), mean, score, float(mean[best]), best in (0, len(l2s) - 1))


def _alike(kind: Any, K: int, l2: float) -> Any:
    return np.full(K, l2) if isinstance(kind, Alone) else l2


def _least(score: np.ndarray) -> int:
    """Return the first place, of the largest l2, where the score is least up to rounding."""
    return int(np.flatnonzero(score <= np.nanmin(score) * (1.0 + 1e-9) + 1e-12)[0])


def _own(rows: Any, losses: np.ndarray, held: np.ndarray, mean: np.ndarray, l2s: Any) -> Tuned:
    """Choose an l2 for every client by its own rows; the largest where it has one row only."""
    chosen, at_end, total = np.full(rows.K, l2s[0]), False, 0.0
    for k in range(rows.K):
        mine = rows.client[held] == k
        if mine.any():
            best = _least(losses[:, mine].mean(axis=1))
            chosen[k], at_end = l2s[best], at_end or best in (0, len(l2s) - 1)
            total += float(losses[best, mine].sum())
    return Tuned(chosen, tuple(l2s), mean, mean, total / held.size, at_end)
