"""l2 by cross-validation: 13 values, folds stratified within clients and the same for every kind of model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedconvex.comparison.kinds import Alone, Training
from fedconvex.comparison.scores import row_losses_of

L2S = tuple(10.0 ** (-0.5 * i) for i in range(13))  # 1, 0.316, ..., 1e-6: decreasing


class Tuned(NamedTuple):
    """What cross-validation chose, and on what grounds."""

    l2: Any  # a number, or one per client (K,)
    l2s: tuple[float, ...]
    losses: np.ndarray  # (L,) mean loss of the rows that were held out in their fold
    score: np.ndarray  # (L,) what was minimised
    loss: float  # mean loss of the rows that were held out, each with the l2 that the other folds choose
    at_end: bool  # whether l2 is the smallest or largest of its values


class Folds(NamedTuple):
    """The folds of the training rows, the same for every kind of model."""

    fold: np.ndarray  # (n_train,) -1 is always trained on
    inner: dict[int, Training]  # the rows outside a fold, by which features are encoded

    @classmethod
    def of(cls, data: Training, fold: np.ndarray) -> Folds:
        """Return the folds with their features."""
        parts = np.unique(fold[fold >= 0]).tolist()
        outside = {part: data.train[fold != part] for part in parts}
        return cls(fold, {part: Training(data.rows, data.rows.features(t), t) for part, t in outside.items()})


def tune(kind: Any, data: Training, folds: Folds, least: int, tell: Callable[[float], None], l2s: Any = L2S) -> Tuned:
    """Choose l2 for a kind of model.

    Parameters
    ----------
    kind : kind of `fedconvex.comparison.kinds`
    data : Training
    folds : Folds
        What is fitted in a fold is encoded and standardised by its own rows.
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

    Notes
    -----
    The least of several mean losses is too low, and the more so the more choices there are: clients alone make one
    each. ``Tuned.loss``, by which kinds are compared, is therefore the loss of every fold at the l2 that the other
    folds choose (Tibshirani, Tibshirani, "A bias correction for the minimum error rate in cross-validation", Annals of
    Applied Statistics 3 (2009), 822-829, measure the bias; Varma, Simon, BMC Bioinformatics 7 (2006), 91, nest folds).
    """
    rows, train, fold = data.rows, data.train, folds.fold
    losses = np.full((len(l2s), train.size), np.nan)
    parts = np.unique(fold[fold >= 0])
    for i, part in enumerate(parts.tolist()):
        out = np.flatnonzero(fold == part)
        held = train[out]
        inner = folds.inner[part]
        X = kind.features(inner)[held]
        for j, models in enumerate(kind.path(inner, l2s)):
            losses[j, out] = row_losses_of(rows, models.scores(X, rows.client[held]), held)
            tell((i + (j + 1.0) / len(l2s)) / parts.size)
    known = np.flatnonzero(fold >= 0)
    if not known.size:
        nothing = np.full(len(l2s), np.nan)
        return Tuned(_alike(kind, rows.K, l2s[0]), tuple(l2s), nothing, nothing, np.nan, True)
    shown, rows_of, fold = losses[:, known], train[known], fold[known]
    choose = _choices if isinstance(kind, Alone) else _choice
    mean, score, chosen = shown.mean(axis=1), *choose(kind, rows, shown, rows_of, least)
    total = 0.0
    for part in parts.tolist():
        mine = fold == part
        others = choose(kind, rows, shown[:, ~mine], rows_of[~mine], least)[1]
        place = np.broadcast_to(others, rows.K)[rows.client[rows_of[mine]]]
        total += float(shown[place, np.flatnonzero(mine)].sum())
    picked = np.asarray(l2s)[chosen]
    at_end = bool(np.isin(chosen, (0, len(l2s) - 1)).any())
    return Tuned(
        picked if isinstance(kind, Alone) else float(picked), tuple(l2s), mean, score, total / known.size, at_end
    )


def tuned_by_sums(losses: np.ndarray, rows: np.ndarray, l2s: Any = L2S, least: int | None = None) -> Tuned:
    """Choose l2 as `tune` does, from sums over rows that were held out in their fold.

    Parameters
    ----------
    losses : array (K, L, F)
        Sums of losses by client, l2 and fold; K = 1 where the sum over clients is enough.
    rows : array (K, F)
        Numbers of the rows; every fold has some.
    l2s : sequence of float
        Decreasing.
    least : int, optional
        Rows that a client must have for its loss to count in a largest one; default the mean over all is minimised.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.comparison.cross_validation import tuned_by_sums
    >>> tuned_by_sums(np.array([[[3.0, 1.0], [2.0, 1.0]]]), np.array([[5.0, 5.0]]), (0.1, 0.01)).l2
    0.01
    """
    every, folds = np.ones(rows.shape[1], dtype=bool), range(rows.shape[1])

    def score(some: np.ndarray) -> np.ndarray:
        sums, counts = losses[:, :, some].sum(axis=2), rows[:, some].sum(axis=1)
        if least is None:
            return np.asarray(sums.sum(axis=0) / counts.sum())
        counted = counts >= least if (counts >= least).any() else counts > 0
        return np.asarray((sums[counted] / counts[counted, None]).max(axis=0))

    each = losses.sum(axis=0)  # (L, F)
    nested = sum(float(each[_least(score(np.arange(len(every)) != f)), f]) for f in folds)
    found = score(every)
    place, n = _least(found), float(rows.sum())
    at_end = place in (0, len(l2s) - 1)
    return Tuned(float(l2s[place]), tuple(l2s), each.sum(axis=1) / n, found, nested / n, at_end)


def _alike(kind: Any, K: int, l2: float) -> Any:
    return np.full(K, l2) if isinstance(kind, Alone) else l2


def _least(score: np.ndarray) -> int:
    """Return the first place, of the largest l2, where the score is least up to rounding; 0 where all are NaN."""
    known = np.where(np.isnan(score), np.inf, score)
    least = float(known.min())
    return int(np.argmax(known <= least + (1e-9 * abs(least) + 1e-12 if np.isfinite(least) else 0.0)))


def _choice(kind: Any, rows: Any, losses: np.ndarray, held: np.ndarray, least: int) -> tuple[np.ndarray, Any]:
    """Return what is minimised over l2, and the place of the chosen one; the largest l2 without any rows."""
    if not held.size:
        return np.full(len(losses), np.nan), 0
    score = kind.preferred(rows, losses, held, least)
    return score, _least(score)


def _choices(kind: Any, rows: Any, losses: np.ndarray, held: np.ndarray, least: int) -> tuple[np.ndarray, Any]:
    """Return the mean losses, and every client's place by its own rows, (K,); the largest l2 where it has none."""
    chosen = np.zeros(rows.K, dtype=np.int64)
    for k in np.unique(rows.client[held]).tolist():
        chosen[k] = _least(losses[:, rows.client[held] == k].mean(axis=1))
    return losses.mean(axis=1) if held.size else np.full(len(losses), np.nan), chosen
