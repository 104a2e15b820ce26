"""The server's side of a problem whose rows are at sites: who there is, and certificates from what sites answer."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fedconvex._check import bad, function, items, vector, whole, wrong_type
from fedconvex.federation import Federation
from fedconvex.federation_input import draw_keys, names_of
from fedconvex.problems import Measure, ServerProblem
from fedconvex.remote.invitations import Desk, Incident, SiteWarning
from fedconvex.remote.kinds import kind_of, unknown
from fedconvex.remote.masks import masked_form, summed
from fedconvex.remote.messages import MEASURE
from fedconvex.remote.places import Clients, Placed
from fedconvex.remote.reports import expected
from fedconvex.remote.witness import Witness, shifted


class Roster(ServerProblem):
    """A problem whose rows are at sites: `fedconvex.run` takes it, with a transport, in the place of a problem.

    It holds names, sizes and weights of the clients, loss, l2 and model shape, and no row: asking for one raises.
    Objective and certified gap of a run come from what all clients answer: f_k and its gradient, for
    F(w) - F* <= ‖grad F(w)‖^2/(2 l2); sums by domain, for the agnostic objectives; losses and dual variables' images
    for models per task. Without l2 the gap is F less the least value of the loss. Where a client does not answer, the
    value is NaN and the gap inf.

    Parameters
    ----------
    make : callable
        From a `Federation` to the problem, the same line at the server and at every site:
        ``lambda fed: Problem(fed, Logistic(), l2=0.1)``.
    labels : sequence of K names
        What the clients are called; their draws are keyed by it.
    sizes : sequence of K int
        Rows of each client.
    features : int
        Columns of the rows, an intercept included.
    masses : sequence of K float, optional
        Sums of the weights of the clients' rows, if these carry weights.
    domain_labels : sequence, optional
        Names of the domains, if rows carry any, in the order in which they are numbered.
    patience : int
        How often a site is asked whose answer cannot be done without.
    required : sequence of names, optional
        Sites whose answers cannot be done without in any round; default all. No round starts before they have joined,
        and a run ends with a `ConnectionError` that names who does not answer. What the others' silence means is the
        method's business (``docs/sites.md``).

    Attributes
    ----------
    incidents : list of `Incident`
        Answers of the last run that were missing, late or refused.

    Raises
    ------
    ValueError, TypeError
        If lengths differ, names are not different, or sizes are not positive.

    Examples
    --------
    >>> from fedconvex import Logistic, Problem
    >>> from fedconvex.remote import Roster
    >>> roster = Roster(lambda fed: Problem(fed, Logistic(), l2=0.1), ["north", "south"], sizes=[30, 10], features=4)
    >>> roster.weights.tolist(), roster.model_shape
    ([0.75, 0.25], (4,))
    >>> hasattr(roster.federation, "X")
    False
    """

    def __init__(
        self,
        make: Callable[[Federation], Any],
        labels: Any,
        sizes: Any,
        features: int,
        *,
        masses: Any = None,
        domain_labels: Any = None,
        patience: int = 5,
        required: Any = None,
    ) -> None:
        function("Roster.make", make)
        names = names_of("Roster.labels", labels)
        if names.ndim != 1 or names.size == 0 or np.unique(names).size != names.size:
            raise bad("Roster.labels", "be different names, at least one", f"{names.tolist()}")
        n = vector("Roster.sizes", sizes, names.size)
        if not ((n >= 1.0) & (n == np.floor(n)) & (n < 2.0**53)).all():
            raise bad("Roster.sizes", "be positive whole numbers", f"{n.tolist()}")
        mass = n if masses is None else vector("Roster.masses", masses, names.size)
        if not (mass > 0.0).all():
            raise bad("Roster.masses", "be positive", f"{mass.min():g}")
        d = whole("Roster.features", features, low=1)
        domains = None if domain_labels is None else names_of("Roster.domain_labels", domain_labels)
        if domains is not None and (domains.ndim != 1 or domains.size == 0 or np.unique(domains).size != domains.size):
            raise bad("Roster.domain_labels", "be different names, at least one", f"{domains.tolist()!r}")
        if domains is not None and domains.dtype.kind not in "Uiufb":  # they travel as JSON
            must, cure = "be strings or numbers", "name the domains by strings, at the sites too"
            raise bad("Roster.domain_labels", must, f"{domains[0]!r}", cure)
        clients = Clients(names, draw_keys(names), n.astype(np.int64), mass.copy(), d, domains)
        rowless = make(Placed(clients))
        if not (hasattr(rowless, "learns") and hasattr(rowless, "federation")) or hasattr(rowless, "drift"):
            raise wrong_type("Roster.make", "return a problem, and none that moves", type(rowless).__name__)
        self.over_sites = getattr(rowless, "over_sites", "")
        self.kind = kind_of(rowless)
        if self.kind is not None:
            self.kind.check(rowless)
        super().__init__(rowless)
        self.known: dict[str, Any] = {}  # what sites were asked for once
        self.clients = clients
        self.make, self.patience = make, whole("Roster.patience", patience, low=1)
        self.required = _numbers_of(names.tolist(), required)
        self.incidents: list[Incident] = []
        self.fingerprint = getattr(rowless, "fingerprint", "")
        self.rowless, self._round = rowless, -1
        self._desk: Desk | None = None
        self.secure: Any = None  # of a run with secure sums: binary places, and what sites are told beside
        self.witness = self._new_witness()  # of what sites have said in a run
        self._last: list[tuple[int, dict[int, dict[str, np.ndarray]]]] = []  # rounds, and what was measured in them

    @classmethod
    def of(
        cls, make: Callable[[Federation], Any], federation: Federation, patience: int = 5, required: Any = None
    ) -> Roster:
        """Return the roster of a federation's clients, who hold rows.

        Raises
        ------
        TypeError
            If it is no `Federation`: owners of columns, and of blocks, cannot be sites.
        """
        fed = federation
        if not isinstance(fed, Federation):
            cure = "run it in one process; docs/sites.md says why" if hasattr(fed, "block") else "pass a Federation"
            raise wrong_type("Roster.of: federation", "be a Federation, whose clients hold rows", f"{fed!r}", cure)
        masses = None if fed.sample_weight is None else fed.masses
        how: dict[str, Any] = {"masses": masses, "domain_labels": fed.domain_labels, "patience": patience}
        return cls(make, fed.labels, fed.sizes, fed.d, required=required, **how)

    def _new_witness(self) -> Any:
        return None if self.kind is None else Witness(self.rowless, self.kind)

    def engine(self, method: Any, ask: Any, key: np.uint64, trajectories: Any) -> Any:
        """Return what carries out rounds of a method through a transport: `fedconvex.run` asks for it."""
        from fedconvex.remote.site_engine import SiteEngine

        self.incidents = []
        return SiteEngine(method, self, ask, key, trajectories)

    def __repr__(self) -> str:
        fed = self.federation
        return f"Roster({self._of}, {fed.K} sites, {fed.n} rows, {fed.d} features)"

    def at(self, desk: Desk) -> Roster:
        """Return the same roster with a desk through which sites are asked."""
        other = copy.copy(self)
        other.secure = None
        other._desk, other.known = desk, {}
        other.witness, other._last = other._new_witness(), []
        return other

    # ---------------------------------------------------------------- what sites report

    def asked(self, w: np.ndarray, alpha: np.ndarray | None = None) -> list[dict[str, np.ndarray]] | None:
        """Return the reports of all clients at models w, or None if some of them do not come."""
        if not np.isfinite(w).all():
            return None
        own = self.kind is not None and self.kind.own_part
        asked = {k: {"w": np.ascontiguousarray(w[:, [k]] if own else w)} for k in range(self.federation.K)}
        for mine in asked.values():
            mine |= {} if alpha is None else {"alpha": np.ascontiguousarray(alpha)}
        return self.reports(asked)

    def reports(self, asked: dict[int, dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]] | None:
        """Return what all clients report when asked so, or None if some of them do not answer.

        Raises
        ------
        ValueError
            Outside of a run, which has a transport.
        """
        if self._desk is None:
            raise bad("a roster", "be measured by a run, which has a transport", "no run", "run(method, roster, ...)")
        forms: dict[int, Any] = {k: expected(self, own) for k, own in asked.items()}
        wanted, plain = forms[0], asked
        if self.secure is not None:
            asked, forms = {k: a | self.secure[1] for k, a in asked.items()}, dict.fromkeys(asked, masked_form(wanted))
        found = self._desk.collect(MEASURE, self._round, asked, forms, 1)
        if len(found) < len(asked):
            return None
        told = [found[k] for k in asked] if self.secure is None else [self._total([*found.values()], wanted)]
        self._last = [(t, a) for t, a in self._last if t == self._round] + [(self._round, plain)]
        return None if self._contradicted(plain, told) else told

    def _contradicted(self, asked: dict[int, dict[str, np.ndarray]], told: list[dict[str, np.ndarray]]) -> bool:
        """Whether reports, with those of earlier rounds, are not of convex functions; sites are named."""
        masses = self.federation.masses if self.secure is None else [self.federation.masses.sum()]
        for k, report, mass in zip(asked, told, masses, strict=False):
            if k not in self.witness.caught and (said := self.witness.hear(k, asked[k], report, float(mass))):
                self.tell(k, said)
        return bool(self.witness.caught)

    def tell(self, k: int, said: str) -> None:
        """Note, and warn of, what a site says against itself."""
        who = "the sum of all sites" if self.secure is not None else f"site {self.federation.labels[k]}"
        self._desk.note(self._round, k, f"its answers contradict each other: {said}", loud=False)  # type: ignore[union-attr]
        text = f"{who}, round {self._round}: answers contradict each other: {said}; nothing is certified now"
        warnings.warn(text, SiteWarning, stacklevel=2)

    def confirmed(self, gap: np.ndarray) -> np.ndarray:
        """Return gaps (R,) once models beside those of this round were measured: inf where answers contradict."""
        for _, asked in list(self._last):
            for beside in shifted(asked) if "w" in asked[0] and self.witness.kind.convex else ():
                if self.reports(beside) is None:
                    return np.full_like(gap, np.inf)
        return gap

    def _total(self, found: list[dict[str, np.ndarray]], forms: Any) -> dict[str, np.ndarray]:
        """Return the sums of reports under masks, rounded to fixed point, which is added to what they may be off by."""
        total, size = summed(found, forms, self.secure[0]), self.federation.K * 2.0 ** -(self.secure[0] + 1)
        if "off" not in total:
            return total
        total["off"] = np.abs(total["off"]) + 2.0 * size
        total["error"] = np.abs(total["error"]) + size * (1.0 + np.sqrt(total["gradient"][0].size))
        return total

    def measure(self, w: np.ndarray, *more: np.ndarray) -> Measure:
        """Values of R models and certified gaps: NaN and inf where a client does not answer, or for other problems."""
        found = None if self.kind is None else self.kind.measure(self, w, *more)
        return unknown(w) if found is None else found

    def __getattr__(self, name: str) -> Any:
        """Return what the kind of problem offers beside."""
        kind = vars(self).get("kind")
        if kind is not None and name in kind.offers:
            return partial(kind.offers[name], self)
        return super().__getattr__(name)

    def impossible(self, values: list[np.ndarray], least: float) -> bool:
        """Whether clients report less than a loss can be; they are named."""
        liars = [k for k, v in enumerate(values) if (v < least - 1e-9 * (1.0 + abs(least))).any()]
        for k in liars if self.secure is None else ():
            self._desk.note(self._round, k, "its losses are below the least value of the loss")  # type: ignore[union-attr]
        return bool(liars)

    def value(self, w: np.ndarray) -> np.ndarray:
        """Objective of R models (R,), NaN where a client does not answer."""
        return self.measure(w).value


def _numbers_of(names: list[Any], required: Any) -> tuple[int, ...]:
    """Return the numbers of the clients that are required, all by default."""
    if required is None:
        return tuple(range(len(names)))
    listed = items("Roster.required", required)
    for name in listed:
        if name not in names:
            raise bad("Roster.required", f"be among {names}", f"{name!r}")
    return tuple(sorted({names.index(name) for name in listed}))
