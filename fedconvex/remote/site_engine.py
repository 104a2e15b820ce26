"""`SiteEngine`: rounds whose clients are sites. The server's parts are those of a run in one process, bit for bit."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp

import fedconvex
from fedconvex._check import bad, wrong_type
from fedconvex.draws import Draws
from fedconvex.driver import defaults
from fedconvex.driver.rounds import Engine, check_problem, chunk_of, floats_of
from fedconvex.federation import Federation
from fedconvex.remote import messages
from fedconvex.remote.invitations import Desk, SiteWarning, invitation
from fedconvex.remote.masks import CIRCLE, KEYS, PUBLIC, SiteSums, masked_form, summed
from fedconvex.remote.messages import ACK, ASK, STATISTIC, Form
from fedconvex.remote.places import Placed
from fedconvex.remote.questions import check_statistic
from fedconvex.remote.reports import statistic_of
from fedconvex.traits import REFUSE, RENORMALISE, lost_reply

if TYPE_CHECKING:
    from fedconvex.remote.site_roster import Roster

Places = tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]
_NOTHING = np.full(2, -1, dtype=np.int64)  # of a method whose clients remember nothing
_NOTHING.flags.writeable = False
_DENSE = 1_000_000  # entries up to which rows of zeros are dense


class Acknowledged(NamedTuple):
    """What the server keeps of clients that remember something: in its checkpoints it stands for their memory."""

    rounds: np.ndarray  # (K,) int64, the last round of each whose answer was counted, -1 for none


class SiteEngine(Engine):
    """One method on a `Roster`, through a transport: how a round is carried out.

    Parameters
    ----------
    method : method
    roster : Roster
    ask : callable
        The transport.
    key : uint64
    trajectories : int

    Raises
    ------
    ValueError, TypeError
        If the method draws no boundary between server and clients, or is for problems that sites do not share yet.
    ConnectionError
        If a site does not answer what the server must know before round 1.
    """

    may_miss = True

    def __init__(self, method: Any, roster: Roster, ask: Any, key: np.uint64, trajectories: Any) -> None:
        name = type(method).__name__
        messages.forms(method)
        if isinstance(getattr(method, "step_size", None), str):
            cure = "give a number, for example from problem.constants() of a trial"
            raise bad(f"{name}.step_size over sites", "be given", f"{method.step_size!r}", cure)
        if roster.kind is None:
            cure = "run it in one process"
            raise wrong_type(f"run: {name} over sites", "have a problem that sites share", roster.learns, cure)
        if getattr(method, "exchanges", 1) != 1:
            raise wrong_type(f"run: {name} over sites", "exchange one message a round", method.exchanges)
        self.hides = hasattr(getattr(method, "sums", None), "mask")  # whether answers are summed under masks
        if self.hides and not roster.kind.plain:
            cure = "use PlainSums(): its masked answers are laid out by what all clients of a round have drawn"
            raise bad(f"{name}.sums over sites", "be PlainSums()", f"{method.sums!r}", cure)
        check_problem(method, roster)
        self.default_step = None
        self.method, self.key, self.R = chunk_of(method, key, trajectories)
        self.numbers, clients = np.arange(self.R), roster.clients
        terms = messages.terms_of(method, roster, fedconvex.__version__)
        session = messages.session_of(terms, clients.digest, int(self.key), self.R)
        first = trajectories.start if isinstance(trajectories, range) else 0
        told = invitation(terms, clients, self.key, first, self.R)
        needed = range(clients.K) if self.hides else roster.required  # of secure sums nobody's part may be missing
        self.desk = Desk(ask, clients.labels, session, told, roster.patience, roster.incidents, needed)
        self.server: Any = roster.at(self.desk)
        self.problem = self.server
        self.templates: dict[Any, Any] = {}
        self.remembers = hasattr(method, "memory")
        self.memory = Acknowledged(np.full(clients.K, -1, dtype=np.int64)) if self.remembers else None
        self.step, self.moving = self.advance, False
        self._join()
        self._ask_statistics()
        self.floats_down, self.floats_up = 0, self.server.floats
        if self.hides:  # every site sends its key, and is told those of the others
            self.floats_up, self.floats_down = self.floats_up + 4 * clients.K, 4 * clients.K * (clients.K - 1)
        self.done = (0, 0)
        self._placed: tuple[np.ndarray, dict[int, Places]] | None = None  # clients, and where they take part

    def _join(self) -> None:
        """Invite all clients, and start with nothing before all that are required have joined.

        Where sums are secure everybody is told all keys.
        """
        everybody = range(self.server.federation.K)
        if self.hides:
            self._warn_of_domains()
            self.desk.joining = {**self.desk.joining, **PUBLIC}
        self.desk.gather(everybody)
        if self.hides:
            keys = np.stack([self.desk.keys[k] for k in everybody])
            self.server.secure = (
                self.method.sums.bits,
                {CIRCLE: np.array([everybody], dtype=np.int64), KEYS: keys},
            )

    def _warn_of_domains(self) -> None:
        """Say so where sums by domain are sums over one site each."""
        method = self.method  # one that asks for statistics has sums by domain
        if hasattr(method, "statistics") and self.server.federation.domain_labels is None:
            text = "every site is a domain of its own: sums by domain tell the server the loss of each site"
            cure = "name domains that several sites share, or take FedAvg(..., sums=SecureSums())"
            warnings.warn(f"{type(method).__name__}.sums over sites: {text}; {cure}", SiteWarning, stacklevel=2)

    def _ask_statistics(self) -> None:
        """Ask all clients for what the method names, once."""
        server, clients = self.server, self.server.federation
        names = self.method.statistics(server) if hasattr(self.method, "statistics") else ()
        server._answers = {}
        for name in names:
            told, form = {"name": messages.text(name)}, self._statistic_form(name)
            told, forms = self._hidden_statistic(name, told, form) if self.hides else (told, {"statistic": form})
            asked = {k: dict(told) for k in range(clients.K)}
            found = self.desk.collect(STATISTIC, -1, asked, dict.fromkeys(asked, forms), self.desk.patience)
            for k in [] if self.hides else list(found):
                if must := check_statistic(server, k, name, found[k]["statistic"]):
                    self.desk.note(-1, k, f"answer refused: its {name} must {must}")
                    del found[k]
            self.desk.need(found, range(clients.K), -1, f"the statistic {name!r}")
            answers = [found[k] for k in range(clients.K)]
            server._answers[name] = [a["statistic"] for a in answers] if not self.hides else self._sum(answers, form)
        server.floats = sum(int(np.size(a)) for answers in server._answers.values() for a in answers)

    def _hidden_statistic(self, name: str, told: dict[str, Any], form: Form) -> tuple[dict[str, Any], dict[str, Form]]:
        """Return what sites are told, and the form of their answers, where the server learns the sum only.

        Raises
        ------
        ValueError
            If the statistic is one of which the sum is not enough.
        """
        if name != "domain_counts":
            raise bad(
                f"{type(self.method).__name__}.sums over sites", "be PlainSums()", f"the statistic {name!r} of each"
            )
        return told | self.server.secure[1], masked_form({"statistic": form})

    def _sum(self, answers: list[dict[str, np.ndarray]], form: Form) -> list[np.ndarray]:
        """Return the sum of statistics under masks in the place of the first one, and zeros for the others."""
        total = summed(answers, {"statistic": form}, self.server.secure[0])["statistic"]
        total = np.rint(total).astype(form.dtype) if form.dtype.kind == "i" else total
        return [total] + [np.zeros_like(total)] * (len(answers) - 1)

    def _statistic_form(self, name: str) -> Form:
        """Return the form of a statistic; the first axis of a matrix may have any length."""
        k, problem = self._ghost
        a = statistic_of(problem, k, name)
        return Form((-1, *a.shape[1:]) if a.ndim == 2 else a.shape, a.dtype, True)

    # ---------------------------------------------------------------- a round

    def advance(self, t: int, state: Any) -> Any:
        """Return the state after one more round, from that after t rounds."""
        self.problem._round = t
        draws = Draws(self.key, self.numbers, t)
        clients, weights = defaults.participants(self.method, self.server, draws)
        message = self.method.broadcast(state)
        clients, weights, reply = self.answers(t, message, clients, weights, draws)
        if hasattr(self.method, "send") and not self.hides:  # else sites have
            reply = self.method.send(self.server, reply, clients, draws)
        state = self.method.aggregate(state, clients, weights, reply)
        if self.memory is not None:
            rounds = self.memory.rounds.copy()
            rounds[np.unique(clients)] = t
            self.memory = Acknowledged(rounds)
        return self.method.settle(self.server, state) if hasattr(self.method, "settle") else state

    def confirmed(self, gap: np.ndarray) -> np.ndarray:
        """Return gaps (R,) that are about to end the run, after a last look at whether sites contradict themselves."""
        return np.asarray(self.server.confirmed(gap))

    @property
    def proviso(self) -> str:
        """What the certificate rests on, in words."""
        pairs, names = self.server.witness.checked, self.server.federation.labels
        said = f"values and gradients agreed at {pairs} pairs of models" if pairs else "nothing could be checked"
        caught = "; ".join(f"{names[k]}: {why}" for k, why in self.server.witness.caught.items())
        return f"not certified: {caught}" if caught else f"if all sites answer from their own rows; {said}"

    def answers(
        self, t: int, message: Any, clients: np.ndarray, weights: np.ndarray, draws: Draws
    ) -> tuple[np.ndarray, np.ndarray, Any]:
        """Return who has answered (R, m'), with which weights (R, m'), and the reply of all of them.

        Raises
        ------
        ConnectionError
            If an answer is missing that the method cannot do without.
        """
        template, meaning = self._template(t, message, draws), REFUSE if self.hides else lost_reply(self.method, t)
        places = self._places(clients)
        asked, forms = self._asked(message, clients, places), self._forms(template, places)
        found = self.desk.collect(ASK, t, asked, forms, self.desk.patience if meaning == REFUSE else 1)
        there = np.ones(clients.shape, dtype=bool) if len(found) == len(asked) else np.isin(clients, list(found))
        uneven = np.ptp(there.sum(axis=1)) > 0  # answers of some trajectories only
        if meaning != REFUSE and (uneven or not there.any(axis=1).all()):
            left = {k: a for k, a in asked.items() if k not in found}
            found |= self.desk.collect(ASK, t, left, forms, self.desk.patience)
            there = np.isin(clients, list(found))
        m = clients.shape[1]
        if not there.all():
            clients, weights = self._left(t, meaning, clients, weights, there, found)
            places = self._places(clients)
        reply = _joined(template, clients, places, found)
        self._count(message, template, reply, m, there)
        return clients, weights, reply

    def _places(self, clients: np.ndarray) -> dict[int, Places]:
        """Return where every client (R, m) takes part: the same as in the round before where the clients are."""
        if self._placed is None or not np.array_equal(self._placed[0], clients):
            self._placed = clients.copy(), {k: _places(clients, k) for k in np.unique(clients).tolist()}
        return self._placed[1]

    def _asked(self, message: Any, clients: np.ndarray, places: dict[int, Places]) -> dict[int, dict[str, np.ndarray]]:
        """Return what every client is asked; all that are told the same share arrays, which nobody can change."""
        apart = getattr(message, "per_client", ()) or getattr(message, "per_place", ())
        shared: dict[bytes, dict[str, np.ndarray]] = {}
        asked = {}
        for k, (rows, first, _) in places.items():
            if apart or (told := shared.get(rows.tobytes())) is None:
                told = messages.packed(message, rows, first, k) | {"trajectories": self.numbers[rows]}
                shared[rows.tobytes()] = _read_only(told)
            asked[k] = told | {ACK: self._acknowledged(k)}
            if self.hides:
                asked[k] |= {CIRCLE: clients[rows], KEYS: self.server.secure[1][KEYS]}
        return asked

    def _forms(self, template: Any, places: dict[int, Places]) -> dict[int, dict[str, Form]]:
        """Return what the answer of every client must look like."""
        by_rows: dict[int, dict[str, Form]] = {}
        for rows in {rows.size for rows, _, _ in places.values()}:
            forms = {f"reply/{name}": _form(template, name, rows) for name in template._fields}
            if "codes" in template._fields:  # whole numbers that a compressor reads
                forms["reply/codes"] = forms["reply/codes"]._replace(within=self._codes())
            by_rows[rows] = forms
        return {k: by_rows[rows.size] for k, (rows, _, _) in places.items()}

    def _codes(self) -> tuple[int, int] | None:
        """Return the least and the largest code of the method's compressor, None where it does not say."""
        between = getattr(getattr(self.method, "compressor", None), "code_range", None)
        return None if between is None else between(int(np.prod(self.server.model_shape)))

    def _left(
        self,
        t: int,
        meaning: str,
        clients: np.ndarray,
        weights: np.ndarray,
        there: np.ndarray,
        found: Mapping[int, Any],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return clients and weights of the answers that came; arrays need equally many in every trajectory."""
        uneven = np.ptp(there.sum(axis=1)) > 0
        if meaning == REFUSE or uneven or not there.any(axis=1).all():
            cure = ("run trajectories one at a time: here they lose different clients",) if uneven else ()
            self.desk.need(found, np.unique(clients).tolist(), t, "an answer", *cure)
        clients, weights = (a[there].reshape(len(a), -1) for a in (clients, weights))
        if meaning == RENORMALISE:
            weights = weights / weights.sum(axis=1, keepdims=True)
        return clients, weights

    def _acknowledged(self, k: int) -> np.ndarray:
        """Return the memory that the server counts on, by rounds: now, and as of its checkpoint."""
        if self.memory is None and self.durable is None:
            return _NOTHING
        last = -1 if self.memory is None else int(self.memory.rounds[k])
        durable = last if self.durable is None else int(self.durable.rounds[k])
        return np.array([last, durable], dtype=np.int64)

    def _count(self, message: Any, template: Any, reply: Any, m: int, there: np.ndarray) -> None:
        """Count the numbers that were sent to m clients, per trajectory; lost answers count as nothing."""
        self.floats_down += m * floats_of(message, self.R) - self._others(message, m)
        own = hasattr(reply, "counted")
        sent = int(getattr(reply, *reply.counted).sum()) if own else int(there.sum()) * floats_of(template, 1)
        self.floats_up += sent // self.R

    # ---------------------------------------------------------------- what answers look like

    def _template(self, t: int, message: Any, draws: Draws) -> Any:
        """Return the reply of a client whose rows are zeros, in one trajectory: shapes and types are those of all."""
        kind = type(message), *(v for v in message if not isinstance(v, np.ndarray))
        if kind not in self.templates:
            k, problem = self._ghost
            arrays = messages.packed(message, np.zeros(1, np.int64), np.zeros(1, np.int64), k)
            sent = messages.unpacked(self.method, arrays, problem.federation.K)
            memory = self.method.memory(problem, self.R) if self.remembers else None
            first = draws._replace(trajectory=self.numbers[:1])
            with np.errstate(all="ignore"):
                reply = self.method.local(problem, sent, np.full((1, 1), k), memory, first)[0]
                if self.hides:
                    blind = replace(self.method, sums=SiteSums(self.method.sums.bits))
                    reply = blind.send(problem, reply, np.full((1, 1), k), first)
            self.templates[kind] = reply
        return self.templates[kind]

    @property
    def _ghost(self) -> tuple[int, Any]:
        """The smallest client, and the problem as it would have it if its rows were zeros."""
        if "ghost" not in self.templates:
            clients = self.server.clients
            k = int(np.argmin(clients.sizes))
            self.templates["ghost"] = k, _zeros(self.server.make, clients, k)
        return self.templates["ghost"]


def _zeros(make: Any, clients: Any, k: int) -> Any:
    """Return the problem of a client whose rows are zeros, with labels that its loss takes."""
    n, d = int(clients.sizes[k]), clients.d
    X: Any = sp.csr_array(
        (np.ones(n), np.full(n, d - 1), np.arange(n + 1)), shape=(n, d)
    )  # an intercept may be asked for
    X = X.toarray() if n * d <= _DENSE else X
    domain = None if clients.domain_labels is None else np.zeros(n, dtype=np.int64)
    weight = None if clients.masses[k] == n else np.full(n, clients.masses[k] / n)
    for label in (1.0, 0.0):
        own = Federation(
            X,
            np.full(n, label),
            np.array([0, n]),
            clients.labels[[k]],
            domain,
            clients.domain_labels,
            clients.ids[[k]],
            weight,
        )
        try:
            return make(Placed(clients, own, k, announced=False))
        except ValueError:
            if label == 0.0:
                raise
    raise AssertionError


def _places(clients: np.ndarray, k: int) -> Places:
    """Return the trajectories of a client and its first places in them, and (r, j, number) of all its places."""
    r, j = np.nonzero(clients == k)
    if r.size < 2 or (r[1:] > r[:-1]).all():  # drawn once at most
        return r, j, (r, j, np.arange(r.size))
    rows, first, number = np.unique(r, return_index=True, return_inverse=True)
    return rows, j[first], (r, j, number)


def _read_only(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    for a in arrays.values():
        a.flags.writeable = False
    return arrays


def _form(template: Any, name: str, rows: int) -> Form:
    """Return the form of a client's field in so many trajectories, from the reply in one; diagnostics may be NaN."""
    a = getattr(template, name)
    diagnostic = name in getattr(template, "not_sent", ())
    return Form((rows, *a.shape[1:]), a.dtype, not diagnostic and bool(np.isfinite(a).all()))


def _joined(
    template: Any, clients: np.ndarray, places: Mapping[int, Places], found: Mapping[int, Mapping[str, np.ndarray]]
) -> Any:
    """Return the reply of clients (R, m), as `local` gives it for all of them together.

    Fields that a client leaves empty, (1, 0), are (R, 0); others (1, 1, ...) become (R, m, ...).
    """
    R, fields = len(clients), []
    for name, like in template._asdict().items():
        if like.shape[:2] != (1, 1):
            fields.append(np.empty((R, *like.shape[1:]), dtype=like.dtype))
            continue
        out = np.empty((*clients.shape, *like.shape[2:]), dtype=like.dtype)
        if out.size and R == 1:
            np.concatenate([found[k][f"reply/{name}"] for k in clients[0].tolist()], axis=1, out=out)
        elif out.size:
            for k, (_, _, (r, j, number)) in places.items():
                out[r, j] = found[k][f"reply/{name}"][number, 0]
        fields.append(out)
    return type(template)(*fields)
