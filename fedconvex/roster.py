"""The clients of a federation as a server knows them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

__all__ = ["Roster"]


@dataclass(frozen=True, eq=False)
class Roster:
    """The clients of a federation as a server knows them: names, keys of draws and numbers of rows, but no row.

    Attributes
    ----------
    labels, ids : array (K,)
        Names, and keys of the clients' draws.
    sizes, masses : array (K,)
        Rows of each client, and sums of their weights.
    d : int
        Features.
    domain_labels : array (p,) or None
        Names of the domains, if rows carry any.

    Examples
    --------
    >>> from fedconvex import Federation
    >>> from fedconvex.roster import Roster
    >>> roster = Federation.from_clients([([[1.0]], [1.0]), ([[1.0], [2.0]], [0.0, 1.0])]).roster
    >>> isinstance(roster, Roster), roster.sizes.tolist(), roster.n
    (True, [1, 2], 3)
    """

    labels: np.ndarray  # (K,)
    ids: np.ndarray  # (K,) keys of the clients' draws
    sizes: np.ndarray  # (K,) rows of each client
    masses: np.ndarray  # (K,) sums of their weights
    d: int  # features
    domain_labels: np.ndarray | None  # (p,) names of the domains, if rows carry any

    @property
    def K(self) -> int:
        """Number of clients."""
        return int(self.sizes.size)

    @cached_property
    def n(self) -> int:
        """Number of rows."""
        return int(self.sizes.sum())

    @property
    def n_domains(self) -> int:
        """Number of domains, 0 if rows carry none."""
        return 0 if self.domain_labels is None else int(self.domain_labels.size)

    @cached_property
    def by_key(self) -> np.ndarray:
        """Numbers of the clients in the order of their keys, (K,)."""
        return np.argsort(self.ids)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a server has no rows, hence no {name} of them: only clients read rows")
