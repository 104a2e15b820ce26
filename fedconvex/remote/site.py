"""The client's side: a site with its own rows and memory, which answers what a server asks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np

import fedconvex
from fedconvex._archives import json_of
from fedconvex._check import bad, function, instance
from fedconvex.draws import Draws
from fedconvex.driver.cycles import leaves
from fedconvex.driver.rounds import chunk_of
from fedconvex.federation import Federation
from fedconvex.remote import messages
from fedconvex.remote.ledger import TRIAL, Audit, Ledger, Limits, asked_about, question, unknowns
from fedconvex.remote.masks import CIRCLE, KEYS, Masks
from fedconvex.remote.messages import ACK, ASK, JOIN, MEASURE, REFUSE, STATISTIC, UNKNOWN, Refused, Request, unsaid
from fedconvex.remote.places import Clients, Placed
from fedconvex.remote.questions import check_measured, check_message, longest
from fedconvex.remote.reports import report, statistic_of, weighted
from fedconvex.remote.site_files import SiteFile

_FRESH = -1  # the round of a memory that nothing has changed yet
_CELLS = 1 << 26  # sites of a roster, times its sites or domains: what is made of an invitation stays below a gigabyte
_INVITATION = 1 << 22  # bytes of an invitation: so many cells are 8,192 sites, a mebibyte of terms and one of domains
_JOINING = {"number", "ids", "sizes", "masses", "key", "first", "trajectories", "terms", "domains"}


class Site:
    """A client with its own rows: it carries out what a server's `run` asks of it, and keeps what it must remember.

    The site's operator says which method and which problem it takes part in; a server that runs another one, with
    another version of the package or on another roster, is refused. Rows never leave the site: it answers models,
    gradients, sums of losses, and what the method names as statistics.

    What a method keeps at its clients is kept by the round after which it was so: as of the last answer that the
    server has counted, as of the server's last checkpoint, and as of the newest answer. An answer that was lost is
    taken back when the next request comes.

    Parameters
    ----------
    method : method
        As for `fedconvex.run`.
    make : callable
        From a `Federation` to the problem, the same line at the server and at every site:
        ``lambda fed: Problem(fed, Logistic(), l2=0.1)``.
    federation : Federation
        Of one client, this one, named as in the roster.
    checkpoint : path, optional
        Save there what must be remembered, and how much was answered, before each answer, and start from it if it
        exists. An engine may give an object with ``load`` and ``save`` in its place, such as those of
        `fedconvex.remote.site_files.SiteFile`.
    limits : Limits, optional
        What is answered at most: by default as many numbers as the rows hold (`Limits`), and without limit to a server
        in the same process (`in_process`).

    Attributes
    ----------
    ledger : Ledger
        What it has answered, and what it has refused to.

    Raises
    ------
    ValueError, TypeError
        If the federation has several clients, make is no function, or the checkpoint is damaged or of another site.

    Examples
    --------
    >>> from fedconvex import FedAvg, Federation, Problem, Squared, run
    >>> from fedconvex.remote import Roster, Site, in_process
    >>> make = lambda fed: Problem(fed, Squared(), l2=0.1)
    >>> method = FedAvg(step_size=0.5)
    >>> rows = {"north": ([[1.0], [2.0]], [1.0, 2.0]), "south": ([[1.0]], [3.0])}
    >>> sites = [Site(method, make, Federation.from_clients([own], labels=[name])) for name, own in rows.items()]
    >>> roster = Roster(make, labels=["north", "south"], sizes=[2, 1], features=1)
    >>> result = run(method, roster, transport=in_process(sites), tol=1e-9)
    >>> result.status.name, result.w.round(4)
    ('CONVERGED', array([1.2698]))
    """

    def __init__(
        self,
        method: Any,
        make: Callable[[Federation], Any],
        federation: Federation,
        checkpoint: Any = None,
        limits: Limits | None = None,
    ) -> None:
        function("Site.make", make)
        instance("Site.federation", federation, Federation)
        if federation.K != 1:
            raise bad("Site.federation", "hold one client", f"{federation.K}", "take federation.subset([k])")
        messages.forms(method)
        self.method, self.make, self.own = method, make, federation
        self.label, self.id = federation.labels[0], int(federation.ids[0])
        self.session, self._turn = -1, Lock()
        self.invited: tuple[int, int] = (-1, -1)  # session, and fingerprint of the invitation
        self.kept: dict[int, Any] = {}  # memories by round
        self.problem: Any = None
        self._longest: tuple[Any, int, int] = (None, 0, 0)  # bytes of a request, for problem and models
        self.paths = 1  # models of a trajectory that are measured in a round
        self.masks: Masks | None = None
        self.hides = hasattr(getattr(method, "sums", None), "mask")  # whether its answers are summed under masks
        if limits is not None:
            instance("Site.limits", limits, Limits)
        self._limited = limits is not None
        self.ledger = Ledger(limits or Limits(), unknowns(federation), self.label)
        self.audit = Audit(self.ledger.limits.rows, getattr(method, "tells_hessians", False))
        self.own_method: Any = method  # with the numbers of the trajectories that are run
        self.file = checkpoint
        if checkpoint is not None and not hasattr(checkpoint, "load"):
            self.file = SiteFile(checkpoint, self.label)
        if self.file is not None and (stored := self.file.load()) is not None:
            self._restore(stored)

    # ---------------------------------------------------------------- what is asked

    def longest(self) -> int:
        """Return how many bytes a request has at most: an invitation, or what the method asks in a round."""
        if self.problem is None:
            return _INVITATION
        models = self.R * self.paths
        if self._longest[:2] != (self.problem, models):  # the same for every round, as a rule
            self._longest = self.problem, models, max(_INVITATION, longest(self.method, self.problem, models))
        return self._longest[2]

    def answer(self, message: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the answer to a message, or a refusal that says why; nothing is raised for what a server sends.

        Messages that come at once, in several threads, are answered one after the other.

        Parameters
        ----------
        message : mapping from name to array
        """
        with self._turn:  # memories are for one request at a time
            return self._answered(message)

    def _answered(self, message: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        request = Request(REFUSE, -1, -1, -1)
        try:
            request, arrays = messages.opened(message)
            asked = messages.digest(arrays)
            if request.asked != messages.number_of(asked):
                raise Refused("it is not what was sent")
            if request.kind == JOIN:
                return self._join(request, arrays)
            if self.problem is None or request.session != self.session:
                return {"header": request._replace(kind=UNKNOWN).header(), "why": messages.text("join first")}
            if request.client != self.number:
                raise Refused(f"it is for client {request.client}, and this is {self.number}")
            with np.errstate(all="ignore"):
                return {"header": request.header()} | self._counted(request, arrays, asked)
        except Refused as error:
            return self._refusal(request, str(error))
        except Exception as error:  # whatever a message makes its readers raise: the server is told, the site stays
            return self._refusal(request, unsaid(f"site {self.label}", error))

    def _counted(self, request: Request, arrays: dict[str, np.ndarray], sent: bytes) -> dict[str, np.ndarray]:
        """Return the answer to a question of the method's schedule, as far as the site's limits allow it."""
        kinds = {ASK: self._work, STATISTIC: self._statistic, MEASURE: self._measure}
        if request.kind not in kinds:
            raise Refused(f"there is no kind {request.kind}")
        asked = question(self._begun(arrays), request.kind, request.round if request.kind == ASK else 0, sent)
        new = not self.ledger.is_known(asked)
        if new:
            try:
                models, about = self._models(request, arrays)
            except Refused as error:
                raise self.ledger.over(str(error)) from None
            self.ledger.admit(request.kind, request.round, models, self.R * self.paths)
        try:
            if new and about is not None and (why := self.audit.few(self.problem, *about)):
                raise self.ledger.over(why)
            found = kinds[request.kind](request, arrays)
            if new:
                self.ledger.enter(request.kind, request.round, models, asked, found)
                self.audit.keep()
        finally:
            if new or (request.kind == ASK and self.remembers):
                self.save()
        return found

    def _begun(self, arrays: Mapping[str, np.ndarray]) -> tuple[Any, ...]:
        """Return what an answer rests on beside the question: the invitation, and the memory that a round begins with.

        A server chooses the draws by its invitation, and by what it asks in earlier rounds what is remembered.
        """
        counted = arrays.get(ACK, np.empty(0))
        last = counted.ravel()[0] if counted.size and counted.dtype == np.int64 else _FRESH
        memory = self.kept.get(int(last))
        return *self.invited, None if memory is None else messages.fingerprint(dict(leaves(memory)))

    def _models(self, request: Request, arrays: Mapping[str, np.ndarray]) -> tuple[int, tuple[np.ndarray, bool] | None]:
        """Return how many models a question is about, at least 1, and those that are to be audited, or None."""
        hidden = {name: a for name, a in arrays.items() if name not in (CIRCLE, KEYS)} if self.masks else arrays
        if request.kind == STATISTIC:
            return 1, None
        if request.kind == MEASURE:
            if request.round < -1:
                raise Refused(f"there is no round {request.round}")
            models = check_measured(self.method, self.problem, hidden, self.R * self.paths)
        else:
            if request.round < 0:
                raise Refused(f"there is no round {request.round}")
            models = max(int(arrays["trajectories"].size), 1)
        return models, asked_about(self.problem, hidden, request.kind == ASK)

    def in_trial(self) -> None:
        """Lift the limits unless they were given: the server shares this site's memory, and could read rows there."""
        if not self._limited:
            self.ledger.limits, self.audit.rows = TRIAL, TRIAL.rows

    def _refusal(self, request: Request, why: str) -> dict[str, np.ndarray]:
        text = messages.text(f"site {self.label}: {why}")
        return {"header": request._replace(kind=REFUSE).header(), "why": text}

    def _join(
        self, request: Request, arrays: dict[str, np.ndarray], secret: bytes | None = None
    ) -> dict[str, np.ndarray]:
        """Take one's place in a federation: terms must be equal, and the roster must know these rows."""
        if arrays.keys() != _JOINING:
            raise Refused("it is no invitation to join")
        terms = json_of(arrays["terms"], 1 << 20)
        number, K = int(arrays["number"]), arrays["ids"].size
        for name, kind in (("ids", np.int64), ("sizes", np.int64), ("masses", np.float64)):
            if arrays[name].shape != (K,) or arrays[name].dtype != kind or not 0 <= number < K:
                raise Refused("its roster has no place for this site")
        names = messages.names_of(arrays["domains"])
        if K * max(K, 0 if names is None else names.size) > _CELLS:
            raise Refused(f"its roster of {K:,} sites is larger than one that a site takes part in")
        sizes, masses, ids = arrays["sizes"], arrays["masses"], arrays["ids"]
        clients = Clients(np.arange(K), ids, sizes, masses, self.own.d, names)
        try:
            placed = Placed(clients, self.own, number)
        except ValueError as error:  # of the roster
            raise Refused(str(error)) from None
        problem = self.make(placed)
        mine = messages.terms_of(self.method, problem, fedconvex.__version__)
        if found := messages.difference(terms, mine):
            raise Refused(f"the terms differ: {found}")
        key, first, R = (int(arrays[name]) for name in ("key", "first", "trajectories"))
        if not 1 <= R <= self.ledger.limits.trajectories:
            raise self.ledger.over(f"it runs {R} trajectories, and the site allows {self.ledger.limits.trajectories}")
        method = chunk_of(self.method, np.uint64(key), range(first, first + R))[0]
        invited = (request.session, messages.fingerprint(arrays))
        if invited != self.invited:
            self.kept = {}
        if self.hides and (self.masks is None or invited != self.invited):
            self.masks = Masks(number, secret)
        self.problem, self.number, self.session, self.invited = problem, number, request.session, invited
        self.own_method, self.key, self.R = method, np.uint64(key), R
        self.joined = {"session": np.array(request.session), **arrays}
        self.remembers = hasattr(self.method, "memory")
        said = {"header": request.header(), "unseen": np.array(_unseen(self.own), dtype=np.int64)}
        if self.masks is None:
            return said
        self.joined["secret"] = np.frombuffer(self.masks.party.secret_bytes, dtype=np.uint8)
        if secret is None:  # else it comes from there
            self.save()
        return said | {"public": np.frombuffer(self.masks.party.public, dtype=np.uint8)}

    def _work(self, request: Request, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Do a round's local work, from the memory that the server counts on."""
        rows, acknowledged = arrays.pop("trajectories"), arrays.pop(ACK)
        whole = rows.dtype == np.int64 and rows.ndim == 1 and rows.size > 0
        rising = whole and (rows.size == 1 or (rows[1:] > rows[:-1]).all())
        if not rising or int(rows[0]) < 0 or int(rows[-1]) >= self.R:
            raise Refused(f"its trajectories are not different ones of {self.R}")
        if acknowledged.shape != (2,) or acknowledged.dtype != np.int64:
            raise Refused("it does not say which rounds it counts on")
        work = self.own_method
        if self.masks is not None:
            work = replace(work, sums=self.masks.sums(work.sums.bits, request, rows, arrays))
        check_message(self.method, self.problem, arrays, rows.size)
        message = messages.unpacked(self.method, arrays, self.problem.federation.K)
        memory = self._recalled(request.round, acknowledged.tolist())
        clients = np.empty((rows.size, 1), dtype=np.int64)
        clients.fill(self.number)
        draws = Draws(self.key, rows, request.round)
        reply, memory = work.local(self.problem, message, clients, memory, draws)
        if self.masks is not None:
            reply = work.send(self.problem, reply, clients, draws)
        if getattr(self.method, "shadow", False):  # every local iterate is measured
            self.paths = max(reply.path.shape[2], 1)
        if self.remembers:
            self.kept[request.round] = memory
        return {f"reply/{name}": np.ascontiguousarray(v) for name, v in zip(reply._fields, reply, strict=True)}

    def save(self) -> None:
        """Save invitation, memories and the count of answers, if there is a checkpoint: done before each new answer."""
        if self.file is not None:
            counted = {"answered": np.array(self.ledger.numbers), "audited": np.array(self.audit.models)}
            self.file.save(self.joined | counted, self.kept)

    def _recalled(self, now: int, acknowledged: list[int]) -> Any:
        """Return a copy of the memory that a round starts from, and forget all that the server cannot go back to.

        Memories of that round and later ones stay: the request may be an old one that comes late.
        """
        if not self.remembers:
            return None
        last, durable = acknowledged
        self.kept = {t: memory for t, memory in self.kept.items() if t in (last, durable) or t >= now}
        if last == _FRESH:
            return self.own_method.memory(self.problem, self.R)
        if last not in self.kept:
            held = sorted(self.kept) or "nothing"
            raise Refused(f"the server counts on the memory after round {last}; held is {held}: restore its checkpoint")
        return copy.deepcopy(self.kept[last])

    def _statistic(self, request: Request, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Answer what the method's server asks for before the first round."""
        name = messages.words(arrays["name"])
        asked = self.method.statistics(self.problem) if hasattr(self.method, "statistics") else ()
        if name not in asked:
            raise Refused(f"{type(self.method).__name__} needs no statistic {name!r}")
        return self._masked(request, arrays, lambda: {"statistic": statistic_of(self.problem, self.number, name)})

    def _measure(self, request: Request, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Report what the server's certificate is made of, at its models; under masks where sums are secure."""
        return self._masked(request, arrays, lambda: report(self.problem, self.number, arrays))

    def _masked(
        self, request: Request, arrays: dict[str, np.ndarray], answered: Callable[[], dict[str, np.ndarray]]
    ) -> dict[str, np.ndarray]:
        """Return an answer; under masks where sums are secure."""
        if self.masks is None:
            return answered()
        sums = self.masks.sums(self.method.sums.bits, request, [-1], arrays)
        found = weighted(answered(), self.problem.weights[self.number])
        flat = np.concatenate([found[name].ravel() for name in sorted(found)])[None, None]
        masked = sums.mask(flat, np.zeros((1, 1)), None)
        return {"masked": masked.numbers[0, 0], "agreed": masked.agreed[0, 0]}

    def _restore(self, stored: tuple[dict[str, np.ndarray], dict[int, dict[str, np.ndarray]]]) -> None:
        """Take up what a checkpoint holds."""
        joined, kept = stored
        try:
            session = int(joined.pop("session"))
            secret = joined.pop("secret").tobytes() if self.hides else None
            self.ledger.numbers, self.audit.models = int(joined.pop("answered")), [*joined.pop("audited")]
            self._join(Request(JOIN, 0, int(joined["number"]), session), joined, secret)
            template = self.own_method.memory(self.problem, self.R) if self.remembers else None
            K = self.problem.federation.K
            self.kept = {t: messages.rebuilt(template, arrays, self.R, K) for t, arrays in kept.items()}
        except (Refused, ValueError, TypeError, KeyError, AttributeError) as error:
            must, cure = "be of this site, method and rows", "delete it to start anew, or name another file"
            raise bad(f"Site {self.label}: checkpoint", must, f"{error}", cure) from None


def _unseen(federation: Federation) -> int:
    """Return how many cells hold categories that the record of columns does not have, and count as none."""
    return 0 if federation.columns is None else sum(federation.columns.unseen.values())
