"""What clients keep between rounds: a row of numbers for every (trajectory, client) that was ever asked for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.draws import mix
from fedconvex.kernels.cache import kernel


@kernel
def find_keys(table, keys, known, trajectories, clients, add, slots):
    """slots[r, j] = where trajectories[r] 2^40 + clients[r, j] stands in keys, or -1, or (add) its new place behind.

    Returned is how many were new. table holds slots, -1 where it is free: open addressing, its size a power of two.
    """
    mask, new = np.int64(table.size - 1), 0
    for r in range(clients.shape[0]):
        for j in range(clients.shape[1]):
            key = (trajectories[r] << 40) + clients[r, j]
            h = np.int64(mix(np.uint64(key)) >> np.uint64(1)) & mask
            while table[h] >= 0 and keys[table[h]] != key:
                h = (h + 1) & mask
            if table[h] < 0:
                if add:
                    table[h], keys[known + new] = known + new, key
                new += 1
            slots[r, j] = table[h]
    return new


class ClientRows(NamedTuple):
    """A row of numbers for every (trajectory, client), zeros until it is written; only rows once asked for take room.

    Rows stand in the order in which they were first asked for. Different rows may be written by different threads.
    """

    table: np.ndarray  # (a power of two,) int64, see `find_keys`
    keys: np.ndarray  # (room,) int64, trajectory 2^40 + client
    rows: np.ndarray  # (room, p)
    known: int  # rows in use

    @classmethod
    def empty(cls, p):
        """Return a store of rows of length p."""
        return cls(np.full(2, -1), np.empty(0, np.int64), np.zeros((0, p)), 0)

    def restored(self, stored, R, K):
        """Return the store for R trajectories and K clients that was written to a file as these arrays by name.

        Raises
        ------
        ValueError
            If they are no such store: kernels follow its entries without asking.
        """
        table, keys, rows, known = (stored.get(name) for name in self._fields)
        whole = all(a is not None and a.dtype == np.int64 for a in (table, keys, known))
        if not whole or table.ndim != 1 or keys.ndim != 1 or known.ndim or rows is None or rows.dtype != np.float64:
            raise bad("rows of clients", "be kept as whole keys and rows of floats", "other arrays")
        n, used = int(known), np.sort(table[table != -1])
        owners = keys[: max(n, 0)]
        right = (
            0 <= n <= keys.size
            and rows.shape == (keys.size, self.rows.shape[1])
            and table.size > n
            and table.size & (table.size - 1) == 0
            and np.array_equal(used, np.arange(n))
            and np.unique(owners).size == n
            and np.all((owners >= 0) & (owners >> 40 < R) & (owners & ((1 << 40) - 1) < K))
        )
        if not right:
            raise bad("rows of clients", f"belong to {R} trajectories and {K} clients", f"{n} rows of others")
        return ClientRows(table, keys, rows, n)

    def locate(self, trajectories, clients):
        """Return the store with rows for trajectories (R,) and their clients (R, m), and the places (R, m) of these."""
        slots = np.empty(clients.shape, np.int64)
        new = find_keys(self.table, self.keys, self.known, trajectories, clients, False, slots)
        if new == 0:
            return self, slots
        store = self if self.known + new <= self.keys.size else self._larger(self.known + new)
        new = find_keys(store.table, store.keys, store.known, trajectories, clients, True, slots)
        return store._replace(known=store.known + new), slots

    def _larger(self, least):
        """Return the store with at least twice the room, so that growing costs a constant per row."""
        room, n = max(least, 2 * self.keys.size), self.known
        table, keys = np.full(1 << (2 * room - 1).bit_length(), -1), np.empty(room, np.int64)
        rows = np.zeros((room, self.rows.shape[1]))
        rows[:n] = self.rows[:n]
        trajectories, clients = self.keys[:n] >> 40, self.keys[:n, None] & ((1 << 40) - 1)
        find_keys(table, keys, 0, trajectories, clients, True, np.empty((n, 1), np.int64))
        return ClientRows(table, keys, rows, n)
