"""A federation whose rows are elsewhere, but for those of one client, or for none: clients keep their numbers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedconvex import roster
from fedconvex._check import bad
from fedconvex.federation import Federation
from fedconvex.kernels.domain_sums import Domains


@dataclass(frozen=True, eq=False)
class Clients(roster.Roster):
    """The clients of a federation of sites, as server and sites know them."""

    columns = None  # the record of what features were made of is not with the server

    @cached_property
    def digest(self) -> str:
        """Fingerprint of who there is: a checkpoint refuses to resume with others."""
        h = hashlib.blake2b(digest_size=16)
        for a in (self.ids, self.sizes, self.masses):
            h.update(np.ascontiguousarray(a).tobytes())
        names = None if self.domain_labels is None else self.domain_labels.tolist()
        h.update(repr((self.d, names)).encode())
        return h.hexdigest()


class Placed(Federation):
    """A `Federation` of K clients in which the rows of one are, or of none: sizes and weights are those of all K.

    Parameters
    ----------
    clients : Clients
    own : Federation, optional
        Of one client; default no rows at all.
    number : int
        Whose rows they are.
    announced : bool
        Whether to compare them with the roster.

    Raises
    ------
    ValueError
        If the rows are not those that the roster announces.
    """

    complete = False
    roster: Clients
    number: int

    def __init__(
        self, clients: Clients, own: Federation | None = None, number: int = 0, announced: bool = True
    ) -> None:
        if own is not None and announced:
            self._check(clients, own, number)
        counts = np.zeros(clients.K, dtype=np.int64)
        counts[number] = 0 if own is None else own.n
        kept = {
            "X": np.zeros((0, clients.d)) if own is None else own.X,
            "y": np.zeros(0) if own is None else own.y,
            "ptr": np.concatenate([[0], np.cumsum(counts)]),
            "labels": clients.labels,
            "ids": clients.ids,
            "domain": None if own is None else _renumbered(own, clients),
            "domain_labels": clients.domain_labels,
            "sample_weight": None if own is None else own.sample_weight,
            "columns": None if own is None else own.columns,
            "offset": None if own is None else own.offset,
        }
        if own is None and clients.domain_labels is not None:
            kept["domain"] = np.zeros(0, dtype=np.int64)
        kept |= {"sizes": clients.sizes, "masses": clients.masses, "roster": clients, "digest": clients.digest}
        kept |= {"number": number} | {name: getattr(own, name) for name in getattr(own, "carried", ())}
        for name, v in kept.items():
            if isinstance(v, np.ndarray):
                v.flags.writeable = False
            object.__setattr__(self, name, v)

    def domain_parts(self) -> Domains:
        """Return the domains of the rows that are here; made when they are asked for, (K, p) may be large."""
        counts = np.diff(self.ptr)
        code, K = np.repeat(np.arange(self.K), counts) if self.domain is None else self.domain, self.K
        p, who = (K if self.domain is None else self.n_domains), np.repeat(np.arange(K), counts)
        if self.domain is None:  # every client is a domain, and how much it holds is known
            held = np.diag(self.sizes if self.sample_weight is None else self.masses)
        else:
            held = np.bincount(who * p + code, self.sample_weight, minlength=K * p).reshape(K, p)
        code = np.ascontiguousarray(code, dtype=np.int64)
        code.flags.writeable = False
        return Domains(code, held.sum(axis=0), held)

    def with_features(self, X: np.ndarray, domain: np.ndarray, domain_labels: np.ndarray) -> Placed:
        """Return the same rows, as far as they are here, with other features and domains."""
        clients, k = replace(self.roster, d=X.shape[1], domain_labels=domain_labels), self.number
        if not len(X):
            return Placed(clients)
        names = self.labels[[k]], domain, domain_labels, self.ids[[k]]
        own = Federation(X, self.y, np.array([0, len(X)]), *names, sample_weight=self.sample_weight)
        return Placed(clients, own, k, announced=False)

    @staticmethod
    def _check(clients: Clients, own: Federation, number: int) -> None:
        facts = {"rows": (own.n, clients.sizes), "weight of rows": (own.masses[0], clients.masses)}
        for what, (mine, all_of_them) in (facts | {"key": (own.ids[0], clients.ids)}).items():
            if mine != all_of_them[number]:
                raise bad(f"site {own.labels[0]}: {what}", f"be {all_of_them[number]} as in the roster", mine)
        if own.d != clients.d:
            raise bad(f"site {own.labels[0]}: features", f"be {clients.d} as in the roster", own.d)

    def __repr__(self) -> str:
        return f"Placed({self.K} clients, {self.n} rows here, {self.d} features)"


def _renumbered(own: Federation, clients: Clients) -> Any:
    """Return the domains of a client's rows (n,) by the numbers that the roster gives them."""
    if clients.domain_labels is None:
        return None
    if own.domain is None or own.domain_labels is None:
        raise bad(f"site {own.labels[0]}: rows", f"name their domains, of {clients.domain_labels.tolist()}", "none")
    names = {name: i for i, name in enumerate(clients.domain_labels.tolist())}
    mine = own.domain_labels.tolist()
    used = np.unique(own.domain)
    unknown = [mine[i] for i in used if mine[i] not in names]
    if unknown:
        raise bad(f"site {own.labels[0]}: domains", f"be among {list(names)}", f"{unknown[0]!r}")
    return np.array([names.get(name, -1) for name in mine], dtype=np.int64)[own.domain]
