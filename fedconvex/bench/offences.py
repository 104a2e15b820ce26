"""What a class with fedconvex's three functions may not do, found out by running it where it would show.

A server has no rows. The same rounds are therefore run once more with every row replaced by NaN for as long as the
server works; a class from outside is also asked to aggregate what it aggregated in a process that never saw a row.
Clients have no rows of others: those of one client are replaced, and what all others answer must not change. What is
sent must be arrays, which can be counted.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedconvex._processes import killed_with
from fedconvex.bench.cases import Case
from fedconvex.bench.own_process import main_hidden
from fedconvex.draws import key_from_seed
from fedconvex.driver.rounds import Engine
from fedconvex.federation import Federation

LIES = "lies about its gap"
UNSTEADY = "is not deterministic where it says it is"
READS_ROWS = "reads rows at the server"
READS_OTHERS = "reads rows of other clients"
UNCOUNTED = "sends what is not counted"
NOT_ZERO = "does not start at zero"
TOO_FEW = "declares fewer floats than can be"
HIDDEN = "uses more of clients than it says is sent"
TOO_MANY = "asks more clients than take part"
UNSEEN = "could not be examined"  # no offence: it is noted
ALL_ROWS = "has all rows in one place"  # no offence: it stands with pooled solvers
COUNTS = 3  # rounds that are looked at
_PATIENCE = 120.0  # seconds for a server to aggregate in a process without rows
_SERVER = ("init", "participants", "broadcast", "aggregate")


class _Seen(NamedTuple):
    """One call of aggregate."""

    state: Any
    clients: np.ndarray
    weights: np.ndarray
    reply: Any
    found: Any


def offences(
    method: Any, case: Case, federation: Federation, seed: int, own: bool, most: int | None = None
) -> list[tuple[str, str]]:
    """Return what a class does that it may not, as pairs of what and how it showed.

    Parameters
    ----------
    method : method
        With its settings; it is copied before it has seen anything.
    case, federation
        The problem.
    seed : int
    own : bool
        Whether it comes from outside of the package, and is looked at in a process without rows too.
    most : int, optional
        Clients that may be asked in a round.
    """
    if not hasattr(method, "local"):
        return []  # a centralised method has all rows by right
    clean = copy.deepcopy(method)
    hidden = _Watch(copy.deepcopy(method), _writable(federation), hide=True)
    first = _models(hidden, case, seed)
    plain, again = (_Watch(copy.deepcopy(method), _writable(federation)) for _ in range(2))
    second = _models(plain, case, seed)
    if _first_difference(second, _models(again, case, seed)) is not None:  # chance would look like a cause below
        return list(dict([*plain.amiss, *_crowd(plain.seen, most)]).items())
    found = [*plain.amiss, *_crowd(plain.seen, most)]
    if hidden.raised:
        found.append((READS_ROWS, f"{hidden.raised} fails while rows are hidden"))
    elif (t := _first_difference(first, second)) is not None:
        found.append((READS_ROWS, f"its model of round {t} is another one while rows are hidden from the server"))
    elif own and plain.seen and (how := _elsewhere(clean, plain.seen)):
        found.append((READS_ROWS, how))
    found += _nosy(clean, case, federation, seed)
    return list(dict(found).items())


def _crowd(seen: list[_Seen], most: int | None) -> list[tuple[str, str]]:
    """Return whether more different clients were asked in a round than may be."""
    largest = max((len(np.unique(s.clients[0])) for s in seen), default=0)
    if most is None or largest <= most:
        return []
    return [(TOO_MANY, f"{largest} in a round, where {most} take part: let it have a setting participation")]


def _models(watch: _Watch, case: Case, seed: int) -> list[np.ndarray]:
    """Return the models of the first rounds, fewer where the method fails."""
    models: list[np.ndarray] = []
    try:
        engine = Engine(watch, case.over(watch.federation), key_from_seed(seed), 1, 1)
        for _, state in engine.loop(engine.start(None), 0, COUNTS):
            models.append(np.array(state.w))
    except Exception:  # what it is belongs to the run that counts
        if not watch.hide:
            raise
    return models


def _first_difference(first: list[np.ndarray], second: list[np.ndarray]) -> int | None:
    for t, (a, b) in enumerate(zip(first, second, strict=False)):
        if a.tobytes() != b.tobytes():
            return t
    return None if len(first) == len(second) else len(first)


class _Watch:
    """A method whose calls are watched: rows are hidden while its server works, and messages are looked at."""

    def __init__(self, method: Any, federation: Federation, hide: bool = False) -> None:
        self._method, self.federation, self.hide = method, federation, hide
        self.raised, self.seen, self.amiss = "", [], []  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._method, name)
        if name in _SERVER:
            return lambda *given: self._served(name, found, given)
        return self._answered if name == "local" else found

    def _served(self, name: str, function: Any, given: tuple[Any, ...]) -> Any:
        kept = copy.deepcopy(given) if name == "aggregate" else given
        if self.hide:
            try:
                with _hidden(self.federation):
                    found = function(*given)
            except Exception:
                self.raised = name
                raise
        else:
            found = function(*given)
        if name == "aggregate":
            state, clients, weights, reply = kept
            self.seen.append(_Seen(state, clients, weights, reply, copy.deepcopy(found)))
        if name == "broadcast":
            self._look("message", found)
        return found

    def _answered(self, *given: Any) -> Any:
        reply, memory = self._method.local(*given)
        self._look("reply", reply)
        return reply, memory

    def _look(self, what: str, sent: Any) -> None:
        """Note fields that nobody can count."""
        free = getattr(sent, "not_sent", ())
        for name, v in zip(getattr(sent, "_fields", ()), sent, strict=False):
            countable = v is None or isinstance(v, (bool, int, float, np.number)) or _numbers(v)
            if name not in free and not countable:
                self.amiss.append((UNCOUNTED, f"{name} of its {what} is a {type(v).__name__}, not an array of numbers"))


def _numbers(v: Any) -> bool:
    return isinstance(v, np.ndarray) and v.dtype.kind in "fiub"


# ---------------------------------------------------------------- rows


def copied(federation: Federation) -> Federation:
    """Return the same federation over arrays of its own."""
    X, y = federation.X.copy(), federation.y.copy()
    return Federation(X, y, federation.ptr, federation.labels, ids=federation.ids)


def _writable(federation: Federation) -> Federation:
    """Return the same federation over arrays of its own, which can be written."""
    made = copied(federation)
    for a in _arrays(made):
        base = a if a.base is None else a.base
        if isinstance(base, np.ndarray):
            base.flags.writeable = True
        a.flags.writeable = True
    return made


def _arrays(federation: Federation) -> tuple[np.ndarray, np.ndarray]:
    X = federation.X
    return (X.data if sp.issparse(X) else X), federation.y


@contextmanager
def _hidden(federation: Federation) -> Iterator[None]:
    """Replace all rows and labels by NaN for a while."""
    kept = [(a, a.copy()) for a in _arrays(federation)]
    for a, _ in kept:
        a[...] = np.nan
    try:
        yield
    finally:
        for a, values in kept:
            a[...] = values


def _scrambled(federation: Federation, k: int) -> Federation:
    """Return the federation with other rows of client k: its columns, or its entries, in the opposite order."""
    made, rows = _writable(federation), slice(int(federation.ptr[k]), int(federation.ptr[k + 1]))
    if sp.issparse(made.X):
        part = slice(int(made.X.indptr[rows.start]), int(made.X.indptr[rows.stop]))
        made.X.data[part] *= 1.5
    else:
        made.X[rows] = 1.5 * made.X[rows][:, ::-1]
    return made


def _nosy(clean: Any, case: Case, federation: Federation, seed: int) -> list[tuple[str, str]]:
    """Return whether a client's answer depends on the rows of another one: those of the first, or of the last."""
    if federation.K == 1:
        return []
    problem, found = case.over(federation), []
    for k in (0, federation.K - 1):
        other = case.over(_scrambled(federation, k))
        plain, changed = (_First(copy.deepcopy(clean), p) for p in (problem, other))
        for call in (changed, plain):
            engine = Engine(call, problem, key_from_seed(seed), 1, 1)
            for _, _ in engine.loop(engine.start(None), 0, 1):
                pass
        who = plain.clients[0] != k
        for name, a, b in zip(plain.reply._fields, plain.reply, changed.reply, strict=True):
            if isinstance(a, np.ndarray) and a.shape[:2] == plain.clients.shape and _bytes(a, who) != _bytes(b, who):
                where = f"client {federation.labels[k]}"
                found.append((READS_OTHERS, f"{name} of other clients' replies changes with the rows of {where}"))
    return found[:1]


def _bytes(a: np.ndarray, who: np.ndarray) -> bytes:
    return np.ascontiguousarray(a[0][who]).tobytes()


class _First:
    """A method whose clients work on a problem of the watcher's choice, in the first exchange."""

    def __init__(self, method: Any, problem: Any) -> None:
        self._method, self._problem = method, problem
        self.reply: Any = None
        self.clients = np.zeros((1, 0), dtype=np.int64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def local(self, problem: Any, message: Any, clients: np.ndarray, memory: Any, draws: Any) -> Any:
        """Note what the clients answer on the chosen problem."""
        if self.reply is not None:
            return self._method.local(problem, message, clients, memory, draws)
        answer = self._method.local(self._problem, message, clients, memory, draws)
        self.reply, self.clients = copy.deepcopy(answer[0]), np.array(clients)
        return answer


# ---------------------------------------------------------------- a process without rows


def _elsewhere(clean: Any, seen: list[_Seen]) -> str:
    """Return how aggregate differs where no row has ever been, or nothing."""
    calls = [s[:4] for s in seen]
    try:
        found = _aggregated(clean, calls) if type(clean).__module__ == "__main__" else _asked_alone(clean, calls)
    except Exception as error:
        if type(error).__name__ in ("PicklingError", "AttributeError", "EOFError"):
            found = _aggregated(clean, calls)  # defined where another process cannot find it
        else:
            return f"aggregate fails in a process without rows: {type(error).__name__}"
    for t, (s, w) in enumerate(zip(seen, found, strict=True)):
        if isinstance(w, str):
            return f"aggregate fails in a process without rows: {w}"
        if np.array(s.found.w).tobytes() != w.tobytes():
            return f"aggregate gives another model in a process without rows, in round {t + 1}"
    return ""


def _asked_alone(clean: Any, calls: list[tuple[Any, ...]]) -> list[Any]:
    """Return what `_aggregated` gives in a process of its own, which is ended where it does not answer."""
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answering, args=(theirs, clean, calls))
    with main_hidden():
        process.start()
    theirs.close()
    try:
        if not ours.poll(_PATIENCE):
            raise TimeoutError
        return list(ours.recv())
    finally:
        process.kill()
        process.join()


def _answering(pipe: Any, method: Any, calls: list[tuple[Any, ...]]) -> None:
    """Send what `_aggregated` gives, with one thread for sums as where rows are."""
    killed_with(os.getppid())  # aggregate may hang, and whoever asks be ended for it
    with threadpool_limits(1):
        pipe.send(_aggregated(method, calls))


def _aggregated(method: Any, calls: list[tuple[Any, ...]]) -> list[Any]:
    """Return the models that a method makes of the same states and replies, or how it failed."""
    out: list[Any] = []
    for given in calls:
        try:
            with np.errstate(all="ignore"):
                out.append(np.array(method.aggregate(*given).w))
        except Exception as error:
            out.append(f"{type(error).__name__}: {error}"[:200])
    return out
