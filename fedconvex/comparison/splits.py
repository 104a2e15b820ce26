"""Which rows are held out, and which fold a training row belongs to: drawn client by client.

The draws of a client depend on the seed, its name and its number of rows, not on other clients, and those of held-out
rows not on any label: rows that are held out can change nothing that is fitted to the others.

Rows are held out once, in one split, or all in turn: the rows of every client are dealt out to as many parts as make a
part about the share that is asked for, every part is held out once, and all of it may be repeated with other parts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedconvex._check import bad, whole
from fedconvex.comparison.compared_rows import Rows

_FEWEST_HELD, _FEWEST_KEPT = 2, 2  # rows of a client; a client with fewer than both together is trained on whole
_HELD, _FOLDS, _PARTS = 0, 1, 2  # purposes of draws
_MOST_PARTS = 20  # that are held out in turn where nobody asks for it
_TWICE, _ONCE = 5e5, 2e6  # rows times parameters times clients times parts/4, up to which rows are held out so often


class Split(NamedTuple):
    """Numbers of the rows that are fitted to, and of those that are held out, both increasing."""

    train: np.ndarray
    at: np.ndarray


def _generator(seed: int, key: int, *purpose: int) -> np.random.Generator:
    return np.random.default_rng([seed, int(key), *purpose])


def parts_in(share: float) -> int:
    """Return in how many parts rows are divided, so that each is about a share of them."""
    return max(2, round(min(1.0 / share, 2.0**53)))


def checked_splits(splits: object, share: float) -> int | None:
    """Return how many splits are asked for, None for as many as the work allows."""
    if splits is None or (isinstance(splits, str) and splits == "auto"):
        divides = parts_in(share) <= _MOST_PARTS and abs(parts_in(share) * share - 1.0) <= 0.05
        return None if divides else 1  # one split of a share that no number of parts has
    count, parts = whole("compare: splits", splits, low=1), parts_in(share)
    if count > 1 and count % parts:
        why = f"test_size {share:g} makes {parts} parts, which are held out equally often"
        raise bad("compare: splits", f"be 1 or a multiple of {parts}", count, why)
    return count


def affordable(rows: Rows, parameters: int, share: float) -> int:
    """Return how many splits are made where nobody says, by a count of work: the same on every machine.

    Up to 500,000 rows times parameters times clients all rows are held out twice, up to 2,000,000 once; beyond, one
    split is made. This is for four parts: of more each is another fit.
    """
    work = float(rows.y.size) * parameters * rows.K * parts_in(share) / 4.0
    return parts_in(share) * (2 if work <= _TWICE else 1) if work <= _ONCE else 1


def splits_of(rows: Rows, share: float, count: int, seed: int) -> list[list[Split]]:
    """Return the splits, repeat by repeat: in each the splits' held-out rows have no row in common.

    Parameters
    ----------
    rows : Rows
    share : float
        Of every client's rows that is held out in a split.
    count : int
        1, or a multiple of the number of parts.
    seed : int

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation
    >>> from fedconvex.comparison.compared_rows import rows_of
    >>> from fedconvex.comparison.splits import splits_of
    >>> fed = Federation.from_arrays(np.zeros((15, 1)), [0, 1, 2] * 5, [0] * 12 + [1] * 3)
    >>> (first,) = splits_of(rows_of(fed), 0.25, 4, seed=0)
    >>> [split.at.size for split in first], sorted(int(i) for split in first for i in split.at) == list(range(12))
    ([3, 3, 3, 3], True)
    """
    if count == 1:
        held = held_out(rows, share, seed)
        return [[Split(np.flatnonzero(~held), np.flatnonzero(held))]]
    parts = parts_in(share)
    out = []
    for repeat in range(count // parts):
        part = np.full(rows.y.size, -1, dtype=np.int64)
        for k, key in enumerate(rows.keys):
            mine = np.flatnonzero(rows.client == k)
            if mine.size >= _FEWEST_HELD + _FEWEST_KEPT:
                draws = _generator(seed, key, _PARTS, repeat)
                dealt = mine[draws.permutation(mine.size)]
                part[dealt] = (int(draws.integers(parts)) + np.arange(mine.size)) % parts
        out.append([Split(np.flatnonzero(part != v), np.flatnonzero(part == v)) for v in range(parts)])
    return [[split for split in repeat if split.at.size] for repeat in out]


def held_out(rows: Rows, share: float, seed: int) -> np.ndarray:
    """Return a mask (n,) of the rows that are held out: a share of every client's, never fewer than two.

    A client that would be left with fewer than two rows to train on keeps all of them.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation
    >>> from fedconvex.comparison.compared_rows import rows_of
    >>> from fedconvex.comparison.splits import held_out
    >>> fed = Federation.from_arrays(np.zeros((15, 1)), [0, 1, 2] * 5, [0] * 12 + [1] * 3)
    >>> held = held_out(rows_of(fed), 0.25, seed=0)
    >>> int(held[:12].sum()), int(held[12:].sum())  # three of twelve, none of three
    (3, 0)
    """
    held = np.zeros(rows.y.size, dtype=bool)
    for k, key in enumerate(rows.keys):
        mine = np.flatnonzero(rows.client == k)
        m = max(_FEWEST_HELD, round(share * mine.size))
        if mine.size - m >= _FEWEST_KEPT:
            held[mine[_generator(seed, key, _HELD).permutation(mine.size)[:m]]] = True
    return held


def fold_of(rows: Rows, train: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """Return the fold of every training row, (n_train,); -1 for the only one of a client, which is always trained on.

    A client's rows are dealt out class by class, in random order and from a random fold on, so that its numbers of rows
    in any two folds differ by one at most.
    """
    fold = np.full(train.size, -1, dtype=np.int64)
    client, strata = rows.client[train], rows.strata[train]
    for k, key in enumerate(rows.keys):
        mine = np.flatnonzero(client == k)
        if mine.size < 2:
            continue
        draws = _generator(seed, key, _FOLDS)
        shuffled = mine[draws.permutation(mine.size)]
        dealt = shuffled[np.argsort(strata[shuffled], kind="stable")]
        fold[dealt] = (int(draws.integers(folds)) + np.arange(mine.size)) % folds
    return fold
