"""Columns by client: where cells are missing, which codes stand for missing ones, what never changes at one client.

A table of several hospitals can be sound as a whole and empty, or constant, at one of them: a model then learns who
wrote the row. All of it is counted by column and client.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from fedconvex.tables.frame import Frame
from fedconvex.tables.spelling import as_text

_CODES = (-9999.0, -999.0, -99.0, 999.0, 9999.0, 99999.0)  # that some write for missing cells
_NEAR = {-9.0: 1, -1.0: 2, 0.0: 5}  # further ones, and of how many other values there must be
_SHOWN = 4  # clients that a message names
_ENOUGH = 10  # rows of a client below which what never changes may be chance
_CHANCE = 1e-4


@dataclass(frozen=True)
class Places:
    """Who has which row of a table.

    Attributes
    ----------
    names : tuple of K str
    code : array (n,)
        Number of the client of every row, -1 where none is named; without clients no row has one.
    """

    names: tuple[str, ...]
    code: np.ndarray

    @classmethod
    def of(cls, frame: Frame, client: str | None) -> Places:
        """Return the places by the column of clients."""
        if client is None or client not in frame.cells:
            return cls((), np.full(frame.n, -1))
        gone = frame.missing(client)
        names, code = np.unique(frame.text(client)[~gone].astype(str), return_inverse=True)
        place = np.full(frame.n, -1)
        place[~gone] = code
        return cls(tuple(names.tolist()), place)

    @property
    def sizes(self) -> np.ndarray:
        """Rows of every client, (K,)."""
        return np.bincount(self.code[self.code >= 0], minlength=len(self.names))

    def counts(self, where: np.ndarray) -> np.ndarray:
        """Return how many of some rows every client has, (K,)."""
        return np.bincount(self.code[where & (self.code >= 0)], minlength=len(self.names))

    def words(self, where: np.ndarray) -> str:
        """Return where some rows are, the clients with the largest share first; "" for less than two clients."""
        if len(self.names) < 2 or not where.any():
            return ""
        counts, sizes = self.counts(where), self.sizes
        order = np.argsort(-counts / np.maximum(sizes, 1), kind="stable")
        order = order[counts[order] > 0]
        said = ", ".join(f"{counts[k]:,} of {sizes[k]:,} at {self.names[k]}" for k in order[:_SHOWN].tolist())
        more = f" and {order.size - _SHOWN} more clients" if order.size > _SHOWN else ""
        return said + more

    def constant(self, frame: Frame, name: str) -> str:
        """Return in words at which clients a column never changes, or is missing throughout, though it does elsewhere.

        Named are clients of at least ten rows for whom it is no chance: were rows drawn as elsewhere, all would agree
        with a probability below 1e-4/K.
        """
        if len(self.names) < 2 or self.sizes.max() < _ENOUGH:
            return ""
        gone = frame.missing(name)
        text = frame.cells[name].dtype.kind != "f"
        x = np.unique(frame.text(name)[~gone].astype(str), return_inverse=True)[1] if text else frame.cells[name][~gone]
        owner = self.code[~gone]
        said, sizes, K = [], self.sizes, len(self.names)
        low, high = (np.full(K, v) for v in (np.inf, -np.inf))
        np.minimum.at(low, owner[owner >= 0], x[owner >= 0])
        np.maximum.at(high, owner[owner >= 0], x[owner >= 0])
        for k in np.flatnonzero((low >= high) & (sizes >= _ENOUGH)).tolist():
            mine = owner == k
            others = x[~mine & (owner >= 0)]
            if not others.size:
                continue
            if not mine.any():
                said.append(f"no value in any of {sizes[k]:,} rows of {self.names[k]}")
                continue
            share = float((others == x[mine][0]).mean())
            if mine.sum() >= _ENOUGH and share ** int(mine.sum()) < _CHANCE / K:
                i = int(np.flatnonzero(~gone)[np.argmax(mine)])
                value = as_text(frame.cells[name][i].item() if not text else frame.text(name)[i])
                said.append(f"{value} in all {int(mine.sum()):,} rows of {self.names[k]}, and not so elsewhere")
        more = f" and the like at {len(said) - _SHOWN} more clients" if len(said) > _SHOWN else ""
        return "; ".join(said[:_SHOWN]) + more


def _stands_apart(x: np.ndarray, code: float, gap: float) -> bool:
    """Whether a code that occurs more than once is further from the others than their middle half is wide."""
    low, high = np.quantile(x[x > code], [0.25, 0.75])
    return bool((x == code).sum() > 1 and gap > high - low)


def missing_codes(x: np.ndarray) -> list[float]:
    """Return the numbers that seem to stand for missing cells: usual codes that no other value is near.

    -9999, -999, -99, 999, 9999, 99999 where they lie further from all others than these from each other, numbers that
    may be codes themselves left aside; -9, -1 and 0, or several of them, where they are the least values, and further
    from the next one than twice the largest step among the lower half of the others, or, where a code occurs more than
    once, than the middle half of the others is wide; asked from ten rows on.

    >>> missing_codes(np.array([0.0] * 5 + [180.0, 201.0, 230.0, 239.0, 250.0])), missing_codes(np.arange(12.0))
    ([0.0], [])
    >>> missing_codes(np.array([0.0, 0.0, 110.0, 180.0, 201.0, 230.0, 239.0, 250.0, 260.0, 270.0, 280.0]))
    [0.0]
    >>> missing_codes(np.array([999.0, -9.0, 0.0, -9.0, 0.0, 180.0, 201.0, 230.0, 239.0, 250.0]))
    [999.0, -9.0, 0.0]
    """
    values = np.unique(x[~np.isnan(x)])
    others = values[~np.isin(values, [*_CODES, *_NEAR])]
    spread = np.ptp(others) if others.size else np.inf
    found = [code for code in _CODES if code in values and np.abs(others - code).min(initial=np.inf) > spread]
    values = values[~np.isin(values, found)]
    least = list(itertools.takewhile(_NEAR.__contains__, values.tolist()))
    for j in range(len(least) if x.size >= _ENOUGH else 0, 0, -1):
        rest = values[j:]
        steps = np.diff(rest[: max(2, -(-rest.size // 2))])
        many = rest.size >= max(_NEAR[code] for code in least[:j])
        gap = rest[0] - least[j - 1] if rest.size else 0.0
        if many and (gap > 2.0 * steps.max(initial=0.0) or _stands_apart(x, least[j - 1], gap)):
            return found + least[:j]
    return found
