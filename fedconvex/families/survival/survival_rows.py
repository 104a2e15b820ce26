"""Rows with times until an event: a federation whose targets are times, beside events, entry times and strata."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from fedconvex._check import bad, items, raw, vector, wrong_type
from fedconvex.federation import Federation
from fedconvex.federation_input import frozen, names_of

_TIMES = ("time", "event", "entry", "stratum")


def outcomes(time: Any, event: Any, entry: Any = None, strata: Any = None) -> np.ndarray:
    """Return times and events as one structured array (n,), as scikit-survival has it, with entry times and strata.

    Parameters
    ----------
    time : array (n,)
        Time of the event, or until which none was seen; nonnegative.
    event : array (n,)
        Whether the event was seen: True or 1, else the row is censored.
    entry : array (n,), optional
        Time from which the row was observed (delayed entry, left truncation): it is at risk at entry < t <= time.
    strata : array (n,), optional
        Names of strata, numbers or strings: risk sets lie within a client and a stratum.

    Raises
    ------
    ValueError, TypeError
        If lengths differ, times are negative or missing, events are other than 0 and 1, or entry >= time.

    Examples
    --------
    >>> from fedconvex.problems import outcomes
    >>> outcomes([3.0, 5.0], [True, False])
    array([( True, 3.), (False, 5.)], dtype=[('event', '?'), ('time', '<f8')])
    """
    t = vector("outcomes: time", time)
    columns: dict[str, np.ndarray] = {"event": _events("outcomes: event", event, t.size), "time": t}
    if entry is not None:
        columns["entry"] = vector("outcomes: entry", entry, t.size)
    if strata is not None:
        columns["stratum"] = _named("outcomes: strata", strata, t.size)
    _check_times("outcomes", t, columns.get("entry"))
    out = np.empty(t.size, dtype=[(name, a.dtype) for name, a in columns.items()])
    for name, a in columns.items():
        out[name] = a
    return out


@dataclass(frozen=True, eq=False, repr=False)
class SurvivalFederation(Federation):
    """A `Federation` whose targets ``y`` are times, with events, entry times and strata of the rows.

    Most users call `from_arrays` or `from_clients` with structured targets (`outcomes`, or scikit-survival's ``Surv``),
    or `around` with a federation that has times for targets.

    Parameters
    ----------
    X, y, ptr, labels, domain, domain_labels, ids, columns
        As of `Federation`; rows are dense, and ``y`` holds times.
    sample_weight : None
        Rows of a survival federation weigh the same.
    event : array (n,) of bool
    entry : array (n,), optional
    strata : array (n,), optional
    offset : None
        This likelihood has no offsets.

    Raises
    ------
    ValueError, TypeError
        As `outcomes`; for sparse rows, or rows with weights.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.problems import SurvivalFederation, outcomes
    >>> y = outcomes([4.0, 2.0, 3.0], [1, 0, 1])
    >>> fed = SurvivalFederation.from_arrays(np.eye(3), y, clients=["b", "a", "b"])
    >>> fed
    SurvivalFederation(2 clients, 3 rows, 3 features, 2 events)
    >>> fed.y.tolist(), fed.event.tolist()
    ([2.0, 4.0, 3.0], [False, True, True])
    """

    event: np.ndarray = None  # type: ignore[assignment]
    entry: np.ndarray | None = None
    strata: np.ndarray | None = None

    carried: ClassVar[tuple[str, ...]] = ("event", "entry", "strata")  # what rows have beside those of a `Federation`

    def __post_init__(self) -> None:
        super().__post_init__()
        who = "SurvivalFederation"
        if self.event is None:
            raise bad(f"{who}.event", "say of every row whether its event was seen", "none")
        if self.is_sparse:
            raise wrong_type(who, "have dense rows", "sparse ones", "pass X.toarray()")
        self.need_equal_rows(who)
        if self.offset is not None:
            raise bad(who, "have rows without offsets", "offsets", "leave them out: this likelihood has none")
        entry = None if self.entry is None else vector(f"{who}.entry", self.entry, self.n)
        _check_times(who, self.y, entry)
        strata = None if self.strata is None else _named(f"{who}.strata", self.strata, self.n)
        kept = {"event": _events(f"{who}.event", self.event, self.n), "entry": entry, "strata": strata}
        for name, a in kept.items():
            object.__setattr__(self, name, None if a is None else frozen(a))

    @classmethod
    def from_arrays(
        cls, X: Any, y: Any, clients: Any, domains: Any = None, sample_weight: Any = None, offset: Any = None
    ) -> SurvivalFederation:
        """Group the rows of (X, y) by client, as `Federation.from_arrays`; y is a structured array of `outcomes`."""
        times = times_of("SurvivalFederation.from_arrays: y", y)
        rows = np.arange(times["time"].size, dtype=np.float64)
        plain = Federation.from_arrays(X, rows, clients, domains, sample_weight, offset)
        return cls._joined(plain, times, plain.y.astype(np.int64))

    @classmethod
    def from_clients(
        cls,
        clients: Iterable[tuple[Any, Any]],
        labels: Sequence[Any] | None = None,
        domains: Any = None,
        sample_weight: Any = None,
    ) -> SurvivalFederation:
        """Stack one (X_k, y_k) pair per client, as `Federation.from_clients`; each y_k is a structured array."""
        who = "SurvivalFederation.from_clients"
        pairs = [items(f"{who}: client {k}", pair) for k, pair in enumerate(items(f"{who}: clients", clients))]
        for k, pair in enumerate(pairs):
            if len(pair) != 2:
                raise bad(f"{who}: client {k}", "be a pair (X, y)", f"{len(pair)} parts")
        each = [times_of(f"{who}: client {k}", y) for k, (_, y) in enumerate(pairs)]
        plain = Federation.from_clients(
            [(X, times["time"]) for (X, _), times in zip(pairs, each, strict=True)], labels, domains, sample_weight
        )
        names = {name for times in each for name in times}
        if any({*times} != names for times in each):
            raise bad(who, "get entry times and strata of all clients or of none", f"{sorted(names)} of some")
        return cls._joined(plain, {name: np.concatenate([t[name] for t in each]) for name in names}, np.arange(plain.n))

    @classmethod
    def around(cls, federation: Federation, event: Any, entry: Any = None, strata: Any = None) -> SurvivalFederation:
        """Return the rows of a federation whose targets are times, with the event of every row, in its order."""
        if not isinstance(federation, Federation):
            raise wrong_type("SurvivalFederation.around", "get a Federation", type(federation).__name__)
        plain = {f.name: getattr(federation, f.name) for f in fields(Federation)}
        return cls(**plain, event=event, entry=entry, strata=strata)

    @classmethod
    def _joined(cls, plain: Federation, times: dict[str, np.ndarray], order: np.ndarray) -> SurvivalFederation:
        kept = {f.name: getattr(plain, f.name) for f in fields(Federation)} | {"y": times["time"][order]}
        others = {name: times.get(part) for name, part in (("entry", "entry"), ("strata", "stratum"))}
        return cls(
            **kept,
            event=times["event"][order],
            **{name: None if a is None else a[order] for name, a in others.items()},  # type: ignore[arg-type]
        )

    def _take(self, rows: np.ndarray, clients: np.ndarray, code: np.ndarray) -> SurvivalFederation:
        parts = {name: None if (a := getattr(self, name)) is None else a[rows] for name in self.carried}
        return type(self).around(super()._take(rows, clients, code), **parts)

    @cached_property
    def digest(self) -> str:
        """Fingerprint of the rows, their owners, events, entry times and strata."""
        h = hashlib.blake2b(Federation.digest.func(self).encode(), digest_size=16)  # type: ignore[attr-defined]
        h.update(self.event.tobytes())
        h.update(b"" if self.entry is None else self.entry.tobytes())
        h.update(b"" if self.strata is None else repr(self.strata.tolist()).encode())
        return h.hexdigest()

    def __repr__(self) -> str:
        extras = (", entry times" if self.entry is not None else "") + (", strata" if self.strata is not None else "")
        events = int(self.event.sum())
        rows = f"{self.K} clients, {self.n} rows, {self.d} features"
        return f"SurvivalFederation({rows}, {events} event{'s' * (events != 1)}{extras})"


def times_of(who: str, y: Any) -> dict[str, np.ndarray]:
    """Return the columns of a structured array by what they are: by name, else the boolean one and the other."""
    a = raw(who, y)
    names = a.dtype.names
    cure = "pass outcomes(time, event)"
    if names is None or a.ndim != 1:
        raise wrong_type(who, "be a structured array of events and times", f"{a.dtype} of shape {a.shape}", cure)
    if {"time", "event"} <= {*names} <= {*_TIMES}:
        found = {name: a[name] for name in names}
    else:
        flags = [name for name in names if a.dtype[name].kind == "b"]
        if len(names) != 2 or len(flags) != 1:
            raise bad(who, "have a boolean column and one of times, or those of outcomes", ", ".join(names), cure)
        found = {"event": a[flags[0]], "time": a[next(name for name in names if name != flags[0])]}
    found["time"] = vector(f"{who}, time", found["time"])
    return found


def _events(who: str, event: Any, n: int) -> np.ndarray:
    a = raw(who, event)
    if a.shape != (n,):
        raise bad(who, f"have {n} entries", f"shape {a.shape}")
    if a.dtype.kind not in "buif" or not ((a == 0) | (a == 1)).all():
        found = next((v for v in a.tolist() if v not in (0, 1)), a.dtype)
        raise bad(who, "be True and False, or 1 and 0", f"{found!r}", "1 where the event was seen, 0 where censored")
    return a.astype(bool)


def _named(who: str, strata: Any, n: int) -> np.ndarray:
    names = names_of(who, strata)
    if names.shape != (n,):
        raise bad(who, f"have {n} entries", f"shape {names.shape}")
    return names.copy()


def _check_times(who: str, time: np.ndarray, entry: np.ndarray | None) -> None:
    if time.size and time.min() < 0.0:
        raise bad(f"{who}: time", "be nonnegative", f"{time.min():g}", "count times from the origin")
    late = np.flatnonzero(entry >= time) if entry is not None else np.empty(0, dtype=np.int64)
    if late.size:
        i = int(late[0])
        cure = f"{late.size} such rows, never at risk: leave them out, or correct the times"
        raise bad(f"{who}: entry", "be before time", f"{entry[i]:g} and {time[i]:g} in row {i}", cure)  # type: ignore[index]
