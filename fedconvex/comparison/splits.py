"""Which rows are held out, and which fold a training row belongs to: drawn client by client.

The draws of a client depend on the seed, its name and its number of rows, not on other clients, and those of held-out
rows not on any label: rows that are held out can change nothing that is fitted.
"""

from __future__ import annotations

import numpy as np

from fedconvex.comparison.rows import Rows

__all__ = ["FEWEST_HELD", "FEWEST_KEPT", "fold_of", "held_out"]

FEWEST_HELD, FEWEST_KEPT = 2, 2  # rows of a client; a client with fewer than both together is trained on whole
_HELD, _FOLDS = 0, 1  # purposes of draws


def _generator(seed: int, key: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng([seed, int(key), purpose])


def held_out(rows: Rows, share: float, seed: int) -> np.ndarray:
    """Return a mask (n,) of the rows that are held out: a share of every client's, never fewer than two.

    A client that would be left with fewer than two rows to train on keeps all of them.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation
    >>> from fedconvex.comparison.rows import rows_of
    >>> from fedconvex.comparison.splits import held_out
    >>> fed = Federation.from_arrays(np.zeros((15, 1)), [0, 1, 2] * 5, [0] * 12 + [1] * 3)
    >>> held = held_out(rows_of(fed), 0.25, seed=0)
    >>> int(held[:12].sum()), int(held[12:].sum())  # three of twelve, none of three
    (3, 0)
    """
    held = np.zeros(rows.y.size, dtype=bool)
    for k, key in enumerate(rows.keys):
        mine = np.flatnonzero(rows.client == k)
        m = max(FEWEST_HELD, round(share * mine.size))
        if mine.size - m >= FEWEST_KEPT:
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
