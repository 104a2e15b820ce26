"""The server's side of a problem whose rows are at sites: who there is, and certificates from what sites answer."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, function, items, vector, whole, wrong_type
from fedconvex.federation import Federation
from fedconvex.federation_input import draw_keys, names_of
from fedconvex.kernels.penalised import penalty_values
from fedconvex.loss_traits import traits
from fedconvex.methods.parts.domain_weighting import counts_of
from fedconvex.problems import Measure, ServerProblem
from fedconvex.problems.protocol import ENSEMBLE, EQUILIBRIUM, INVARIANT_MODEL, MODEL_PER_TASK, ONE_MODEL, POSTERIOR
from fedconvex.remote.certificates import (
    measure_ensembles,
    measure_environments,
    measure_game,
    measure_posteriors,
    worst_errors,
)
from fedconvex.remote.desk import Desk, Incident, SiteWarning
from fedconvex.remote.masks import masked_form, summed
from fedconvex.remote.messages import MEASURE
from fedconvex.remote.places import Clients, Placed
from fedconvex.remote.reports import expected
from fedconvex.remote.witness import Witness, shifted
from fedconvex.simplex.uncertainty import log_sum_exp, softmax
from fedconvex.solvers.certificates.free_coordinates import convexity_gap
from fedconvex.solvers.certificates.gaps import duality_gap
from fedconvex.solvers.minimax.agnostic import largest_values

__all__ = ["Roster"]

_CONVEX = (ONE_MODEL, MODEL_PER_TASK, ENSEMBLE)  # kinds whose values and gradients are those of one function
_OTHERS = {EQUILIBRIUM: measure_game, INVARIANT_MODEL: measure_environments, ENSEMBLE: measure_ensembles}

_EPS = float(np.finfo(float).eps)


class DomainParts(NamedTuple):
    """What all clients say of the domains at R models, with what rounding may have done to it."""

    F: np.ndarray  # (R, p)
    g: np.ndarray  # (R, size) of a weighted sum of them
    error: np.ndarray  # (R,) of g, in norm
    off: np.ndarray  # (R,) of every F_k


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
        if rowless.learns == MODEL_PER_TASK and traits(rowless.loss).several:
            cure = "take a problem for each class against the rest, or run in one process"
            raise bad("Roster.make", "return tasks with one score for each row", f"{rowless.loss!r}", cure)
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
        self.witness = Witness(rowless)  # of what sites have said in a run
        self._last: list[tuple[int, dict[int, dict[str, np.ndarray]]]] = []  # rounds, and what was measured in them
        self._reports: tuple[np.ndarray, list[dict[str, np.ndarray]] | None] | None = None

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

    def engine(self, method: Any, ask: Any, key: np.uint64, trajectories: Any) -> Any:
        """Return what carries out rounds of a method through a transport: `fedconvex.run` asks for it."""
        from fedconvex.remote.rounds import SiteEngine

        self.incidents = []
        return SiteEngine(method, self, ask, key, trajectories)

    def __repr__(self) -> str:
        fed = self.federation
        return f"Roster({self._of}, {fed.K} sites, {fed.n} rows, {fed.d} features)"

    def at(self, desk: Desk) -> Roster:
        """Return the same roster with a desk through which sites are asked."""
        other = copy.copy(self)
        other.secure = None
        other._desk, other._reports, other.known = desk, None, {}
        other.witness, other._last = Witness(self.rowless), []
        return other

    # ---------------------------------------------------------------- what sites report

    def _asked(self, w: np.ndarray, alpha: np.ndarray | None = None) -> list[dict[str, np.ndarray]] | None:
        """Return the reports of all clients at models w, or None if some of them do not come."""
        if not np.isfinite(w).all():
            return None
        tasks, K = self.learns == MODEL_PER_TASK, self.federation.K
        asked = {k: {"w": np.ascontiguousarray(w[:, [k]] if tasks else w)} for k in range(K)}
        for own in asked.values():
            own |= {} if alpha is None else {"alpha": np.ascontiguousarray(alpha)}
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
                self._tell(k, said)
        return bool(self.witness.caught)

    def _tell(self, k: int, said: str) -> None:
        """Note, and warn of, what a site says against itself."""
        who = "the sum of all sites" if self.secure is not None else f"site {self.federation.labels[k]}"
        self._desk.note(self._round, k, f"its answers contradict each other: {said}", loud=False)  # type: ignore[union-attr]
        text = f"{who}, round {self._round}: answers contradict each other: {said}; nothing is certified now"
        warnings.warn(text, SiteWarning, stacklevel=2)

    def confirmed(self, gap: np.ndarray) -> np.ndarray:
        """Return gaps (R,) once models beside those of this round were measured: inf where answers contradict."""
        for _, asked in list(self._last):
            for beside in shifted(asked) if "w" in asked[0] and self.learns in _CONVEX else ():
                if self.reports(beside) is None:
                    return np.full_like(gap, np.inf)
        return gap

    def _total(self, found: list[dict[str, np.ndarray]], forms: Any) -> dict[str, np.ndarray]:
        """Return the sums of reports under masks, rounded to fixed point, which is added to what they may be off by."""
        total, size = summed(found, forms, self.secure[0]), self.federation.K * 2.0 ** -(self.secure[0] + 1)
        total["off"] = np.abs(total["off"]) + 2.0 * size
        total["error"] = np.abs(total["error"]) + size * (1.0 + np.sqrt(total["gradient"][0].size))
        return total

    def measure(self, w: np.ndarray, *more: np.ndarray) -> Measure:
        """Values of R models and certified gaps: NaN and inf where a client does not answer, or for other problems."""
        R = len(w)
        if self.learns == ONE_MODEL:
            return self._one_model(w)
        if self.learns == MODEL_PER_TASK:
            reports = self._tasks(w)
            if reports is None:
                return _unknown(w)
            images = np.stack([a["image"] for a in reports], axis=1)
            conjugates = np.stack([a["conjugate"] for a in reports], axis=1)
            pairs = [self.certificate(w[r], images[r], conjugates[r]) for r in range(R)]
            return Measure(*(np.array(v) for v in zip(*pairs, strict=True)))
        if self.learns == POSTERIOR:
            return measure_posteriors(self, w, *more) or _unknown(w)
        if self.learns in _OTHERS and np.isfinite(w).all():
            return _OTHERS[self.learns](self, w) or _unknown(w)
        return _unknown(w)

    def domain_errors(self, alpha: Any) -> np.ndarray:
        """Return the share of rows of every domain that an ensemble gets wrong, (p,)."""
        return worst_errors(self, np.atleast_2d(alpha))[0]

    def check_stages(self, history: np.ndarray) -> None:
        """Raise unless every stage of a history names a source and one of its classifiers."""
        self.rowless.check_stages(history)

    def _one_model(self, w: np.ndarray) -> Measure:
        reports = self._asked(w)
        if reports is None or self._impossible([a["value"] for a in reports], traits(self.loss).lower_bound):
            return _unknown(w)
        p, R = self.weights if self.secure is None else np.ones(1), len(w)  # of sums, clients have weighed their parts
        values, G = np.array([a["value"] for a in reports]), np.array([a["gradient"].reshape(R, -1) for a in reports])
        value, g = np.einsum("k,kr->r", p, values), np.einsum("k,krj->rj", p, G)
        if self.penalty is not None:
            return Measure(value + penalty_values(self, w.reshape(R, -1)), np.full(R, np.inf))
        error, off = (np.einsum("k,kr->r", p, np.array([a[name] for a in reports])) for name in ("error", "off"))
        few = (len(p) + 16) * _EPS  # sums over clients, and the bound itself
        error = np.abs(error) + few * np.einsum("k,kr->r", p, np.linalg.norm(G, axis=2))
        off = np.abs(off) + few * np.einsum("k,kr->r", p, np.abs(values))
        gap = np.minimum(self._by_convexity(g, error), value - traits(self.loss).lower_bound) + off
        return Measure(value, _or_inf(gap))

    def _impossible(self, values: list[np.ndarray], least: float) -> bool:
        """Whether clients report less than a loss can be; they are named."""
        liars = [k for k, v in enumerate(values) if (v < least - 1e-9 * (1.0 + abs(least))).any()]
        for k in liars if self.secure is None else ():
            self._desk.note(self._round, k, "its losses are below the least value of the loss")  # type: ignore[union-attr]
        return bool(liars)

    def _by_convexity(self, g: np.ndarray, error: np.ndarray) -> np.ndarray:
        """Return ‖g‖^2/(2 l2) of R gradients that may be off by so much, inf without l2."""
        l2 = self.strong_convexity
        if l2 <= 0.0:
            return np.full(len(g), np.inf)
        return convexity_gap(g, error, l2)

    def value(self, w: np.ndarray) -> np.ndarray:
        """Objective of R models (R,), NaN where a client does not answer."""
        return self.measure(w).value

    # ---------------------------------------------------------------- agnostic objectives

    def domain_parts(self, w: np.ndarray, mix: np.ndarray) -> DomainParts | None:
        """Return the domains' objectives, and the gradients of their sums weighted by mix (R, p)."""
        counts = counts_of(self)
        reports = self._asked(w, mix / counts)
        least = 0.0 if traits(self.loss).lower_bound >= 0.0 else -np.inf  # of a sum over rows
        if reports is None or self._impossible([a["losses"] for a in reports], least):
            return None
        W, few = w.reshape(len(w), -1), (self.federation.K + 16) * _EPS
        G, ridge = [a["gradient"].reshape(len(w), -1) for a in reports], self.rowless.ridge_terms(W)[:, None]
        F = sum(a["losses"] for a in reports) / counts + ridge
        off = (
            sum(np.abs(a["off"]) + few * np.abs(a["losses"]) for a in reports) / counts
            + 4.0 * W.shape[1] * _EPS * ridge
        )
        pull = mix.sum(axis=1, keepdims=True) * self.rowless.ridge * W
        error = sum(np.abs(a["error"]) for a in reports) + few * sum(np.linalg.norm(g, axis=1) for g in [*G, pull])
        return DomainParts(F, sum(G) + pull, error, off.max(axis=1) + few * np.abs(F).max(axis=1))

    def measure_minimax(
        self, uncertainty_set: Any, w: np.ndarray, domain_weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return max over Lambda of lambda'F(w), and its gap to the lower bound at the domain weights, (R,) each."""
        parts = self.domain_parts(w, domain_weights)
        if parts is None:
            return tuple(_unknown(w))  # type: ignore[return-value]
        value, least = largest_values(uncertainty_set, parts.F), traits(self.loss).lower_bound
        lower = np.einsum("rp,rp->r", domain_weights, parts.F) - self._by_convexity(parts.g, parts.error)
        return value, _or_inf(np.maximum(value - np.maximum(lower, least), 0.0) + 2.0 * parts.off)

    def measure_softmax(self, mu: float, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (1/mu) log sum exp(mu F_k(w)), and its gap by strong convexity, (R,) each.

        For any q on the simplex the objective is at least q'F - (1/mu) sum q log q, whose gradient is that of q'F.
        """
        first = self.domain_parts(w, np.zeros((len(w), counts_of(self).size)))
        q = None if first is None else softmax(first.F, mu)
        second = None if q is None else self.domain_parts(w, q)
        if second is None or q is None:
            return tuple(_unknown(w))  # type: ignore[return-value]
        value, p = np.asarray(log_sum_exp(second.F, mu)), q.shape[1]
        entropy = -np.sum(q * np.log(np.maximum(q, np.finfo(float).tiny)), axis=1) / mu
        short = np.maximum(value - np.einsum("rp,rp->r", q, second.F) - entropy, 0.0)
        few = 8.0 * (p + 2) * _EPS * (np.abs(value) + np.log(p) / mu)
        gap = np.minimum(short + self._by_convexity(second.g, second.error), value - traits(self.loss).lower_bound)
        return value, _or_inf(gap + 2.0 * second.off + few)

    # ---------------------------------------------------------------- models per task

    def _tasks(self, W: np.ndarray) -> list[dict[str, np.ndarray]] | None:
        """Return the reports of all tasks at models (R, m, d), kept for the next one who asks at the same."""
        if self._reports is None or not np.array_equal(self._reports[0], W):
            self._reports = W.copy(), self._asked(W)
        return self._reports[1]

    def client_values(self, W: np.ndarray) -> np.ndarray:
        """Losses of the tasks, (R, m), NaN where some do not answer."""
        reports = self._tasks(W)
        return np.full(W.shape[:2], np.nan) if reports is None else np.stack([a["value"] for a in reports], axis=1)

    def certificate(
        self, W: np.ndarray, V: np.ndarray, conjugates: np.ndarray, penalty: float | None = None
    ) -> tuple[float, float]:
        """Return P(W) and the duality gap, as `MultiTaskProblem.certificate` does."""
        reports = self._tasks(W[None])
        if reports is None:
            return float("nan"), float("inf")
        losses, reach = (np.array([a[name][0] for a in reports]) for name in ("value", "reach"))
        W, V = W.reshape(len(W), -1), V.reshape(len(V), -1)
        for k, (v, conjugate) in enumerate(zip(V, conjugates.tolist(), strict=True)):
            if k not in self.witness.caught and (said := self.witness.hear_dual(k, v.copy(), conjugate)):
                self._tell(k, said)
        if self.witness.caught:
            return float("nan"), float("inf")
        other = self.relation.conjugate(V) if penalty is None else penalty
        penalty = self.relation.value(W) if penalty is None else penalty
        terms = float(np.abs(losses).sum() + np.abs(conjugates).sum()) + abs(penalty) + abs(other)
        rounding = 4.0 * _EPS * (terms + float(reach.sum())) + self.relation.gap_rounding(self.ties, W, V)
        value = float(losses.sum()) + penalty
        return value, duality_gap("Roster", self, value, float(conjugates.sum()) + other, rounding)


def _numbers_of(names: list[Any], required: Any) -> tuple[int, ...]:
    """Return the numbers of the clients that are required, all by default."""
    if required is None:
        return tuple(range(len(names)))
    listed = items("Roster.required", required)
    for name in listed:
        if name not in names:
            raise bad("Roster.required", f"be among {names}", f"{name!r}")
    return tuple(sorted({names.index(name) for name in listed}))


def _or_inf(gap: np.ndarray) -> np.ndarray:
    """Return gaps, inf for those that are NaN: where squares overflow nothing is known."""
    return np.where(np.isnan(gap), np.inf, gap)


def _unknown(w: np.ndarray) -> Measure:
    """Return the measure of models that not all clients have seen: NaN and inf; inf where they are not finite."""
    lost = ~np.isfinite(w.reshape(len(w), -1)).all(axis=1)
    return Measure(np.where(lost, np.inf, np.nan), np.full(len(w), np.inf))
