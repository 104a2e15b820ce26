"""Implementations: what ``train`` is given and must return, what it may declare, and how it is asked.

    train(clients, hyper, rounds) -> list of models after every round

``clients`` is a list of (X, y), ``hyper`` a dictionary of numbers, and a model an array (d,), or (C, d) for C classes.
"""

from __future__ import annotations

import functools
import hashlib
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, real, whole, wrong_type
from fedconvex.conformance.exams import DEFAULTS, Exam, standard_exams
from fedconvex.conformance.families import Family
from fedconvex.conformance.objectives import LOSSES
from fedconvex.conformance.readings_search import Asked

PARTIAL, BATCHES = ("partial",), ("epochs", "steps")


class Abilities(NamedTuple):
    """What an implementation can do; exams that need more are left out, and the answer says so.

    Parameters
    ----------
    losses : tuple of str
        Out of "squared", "logistic", "multinomial".
    float32 : bool
        Whether it computes in single precision: then rows and start are given so, and 3e-5 counts as equal.
    start : bool
        Whether it begins at ``hyper["start"]``; else it must begin at zero.
    ridge : bool
        Whether it knows ``hyper["l2"]``; else l2 = 0.
    partial : bool
        Whether it knows ``hyper["participants"]``, the number of clients drawn in a round.
    batches : tuple of str
        How it counts work on mini-batches: "epochs", "steps", both or neither (full batches only).
    local_steps : bool
        Whether it can take several local steps on full batches.
    stragglers : bool
        Whether it knows ``hyper["stragglers"]``, the probability that a client does part of its steps only.
    hyper : mapping
        Hyper-parameters that are fixed in it, with their values.
    floats : bool
        Whether ``train`` returns pairs: a model, and how many numbers were sent in the round, to all clients and back.

    Examples
    --------
    >>> from fedconvex.conformance import Abilities
    >>> Abilities(losses=("squared",), partial=False).batches
    ('epochs', 'steps')
    """

    losses: tuple[str, ...] = LOSSES
    float32: bool = False
    start: bool = True
    ridge: bool = True
    partial: bool = True
    batches: tuple[str, ...] = BATCHES
    local_steps: bool = True
    stragglers: bool = False
    hyper: Mapping[str, Any] = {}
    floats: bool = False


def can(**abilities: Any) -> Callable[[Any], Any]:
    """Return a decorator that notes what an implementation can do, as fields of `Abilities`.

    Raises
    ------
    ValueError, TypeError
        If a name is no field of `Abilities`, or a value none that its field takes.

    Examples
    --------
    >>> from fedconvex.conformance import can
    >>> @can(losses=("multinomial",), float32=True, batches=())
    ... def train(clients, hyper, rounds):
    ...     raise NotImplementedError
    >>> train.can.float32
    True
    """
    found = _checked(Abilities()._replace(**{n: v for n, v in abilities.items() if n in Abilities._fields}), abilities)

    def note(train: Any) -> Any:
        train.can = found
        return train

    return note


def _checked(a: Abilities, given: Mapping[str, Any]) -> Abilities:
    if unknown := sorted(set(given) - set(Abilities._fields)):
        raise bad("can", "be given fields of Abilities, " + ", ".join(Abilities._fields), unknown[0])
    for name, known in (("losses", LOSSES), ("batches", BATCHES)):
        value = getattr(a, name)
        listed = isinstance(value, (tuple, list, set, frozenset)) and all(v in known for v in value)
        if not listed or (name == "losses" and not value):
            raise bad(f"can: {name}", "be a tuple out of " + ", ".join(known), f"{value!r}")
    for name in ("float32", "start", "ridge", "partial", "local_steps", "stragglers", "floats"):
        if not isinstance(getattr(a, name), bool):
            raise wrong_type(f"can: {name}", "be True or False", f"{getattr(a, name)!r}")
    if not isinstance(a.hyper, Mapping):
        raise wrong_type("can: hyper", "be a dictionary of fixed hyper-parameters", f"{a.hyper!r}")
    for name, value in a.hyper.items():
        _check_fixed(name, value)
    return a


def _check_fixed(name: Any, value: Any) -> None:
    """Raise unless a hyper-parameter can be fixed, at this value."""
    known = [n for n in DEFAULTS if n not in ("loss", "start", "seed")]
    if name not in known:
        raise bad("can: hyper", "name hyper-parameters of exams, " + ", ".join(known), f"{name!r}")
    if value is None and DEFAULTS[name] is None:
        return
    if name in ("local_steps", "epochs", "batch_size", "participants"):
        whole(f"can: hyper: {name}", value, low=1)
    else:
        real(f"can: hyper: {name}", value)


def abilities_of(train: Any) -> Abilities:
    """Return what an implementation declares by `can`, or all abilities but stragglers."""
    found = getattr(train, "can", Abilities())
    if not isinstance(found, Abilities):
        raise wrong_type("conform: train.can", "be set by the decorator can(...)", f"{found!r}")
    return found


def asked_of(family: Family, exam: Exam, a: Abilities) -> str:
    """Return why an exam cannot be asked, or nothing."""
    name = exam.name.split(",")[0]
    if name not in family.exams:
        return "not for this family"
    if exam.events == "partial" and not a.partial:
        return "partial participation is not declared"
    if exam.events == "stragglers" and not a.stragglers:
        return "stragglers are not declared"
    if exam.events == "batches" and ("epochs" if exam.hyper["epochs"] else "steps") not in a.batches:
        return "work on mini-batches is not declared in " + ("epochs" if exam.hyper["epochs"] else "steps")
    if not a.local_steps and exam.events == "" and exam.name.startswith("three"):
        return "several local steps are not declared"
    return unlike(exam, a)


def unlike(exam: Exam, a: Abilities) -> str:
    """Return which hyper-parameter an exam sets to another value than the one that is fixed, or nothing."""
    full = {}  # so large that no exam sees it: full batches, and all clients
    if exam.events != "batches":
        full["batch_size"] = max(exam.sizes)
    if exam.events != "partial":
        full["participants"] = len(exam.clients)
    for name, value in a.hyper.items():
        seen = None if value is not None and value >= full.get(name, np.inf) else value
        if exam.hyper[name] != seen:
            return f"{name} is fixed at {value}, and this exam sets {exam.hyper[name]}"
    if exam.events == "partial" and exam.hyper["participants"] > len(exam.clients):
        return f"it has {len(exam.clients)} clients, fewer than participants"
    return ""


def answers(family: Family, train: Any, a: Abilities) -> tuple[list[Asked], dict[str, str]]:
    """Ask all exams of a family; return the answers, and why the others were left out.

    What draws something is asked with the first loss only; the rest with every loss that the implementation knows.
    """
    asked, left = [], {}
    for i, loss in enumerate(a.losses):
        for exam in standard_exams(loss, **given_to(a, family.hyper)):
            why = asked_of(family, exam, a)
            if why == "not for this family" or (i and exam.events):
                continue
            exam = exam if a.start else exam._replace(hyper=exam.hyper | {"start": np.zeros_like(exam.hyper["start"])})
            if not why:
                try:
                    runs = [ask(train, exam._replace(hyper=exam.hyper | {"seed": s}), a) for s in range(exam.seeds)]
                    asked.append(Asked(exam, distinct(runs)))
                    continue
                except NotImplementedError as error:
                    why = str(error) or "the implementation says that it cannot"
            left[exam.name] = why
    return sorted(asked, key=lambda b: bool(b.exam.events)), left


def given_to(a: Abilities, hyper: Mapping[str, Any]) -> dict[str, Any]:
    """Return what exams set in the place of their defaults: what the family has, and what is declared."""
    work = {"local_steps": a.hyper["epochs"]} if a.hyper.get("epochs") else {}  # on full batches they are the same
    if not a.local_steps:
        work = {"local_steps": 1, "epochs": 1}
    return {**work, **hyper, **({} if a.ridge else {"l2": 0.0}), **a.hyper}


def distinct(runs: Sequence[tuple[np.ndarray, ...]]) -> tuple[tuple[np.ndarray, ...], ...]:
    """Return the runs that differ: equal ones, where the seed has no effect, are one observation."""
    found: dict[bytes, tuple[np.ndarray, ...]] = {}
    for run in runs:
        found.setdefault(b"".join(w.tobytes() for w in run), run)
    return tuple(found.values())


def digest(asked: Sequence[Asked]) -> str:
    """Return SHA-256 of the exams' names, rows and hyper-parameters."""
    found = hashlib.sha256()
    for exam, _ in asked:
        rows = [a.tobytes() for pair in exam.clients for a in pair]
        hyper = repr({n: v.tolist() if isinstance(v, np.ndarray) else v for n, v in sorted(exam.hyper.items())})
        for part in (exam.name.encode(), *rows, hyper.encode(), repr((exam.rounds, exam.seeds)).encode()):
            found.update(part)
    return found.hexdigest()


def ask(train: Any, exam: Exam, a: Abilities) -> tuple[np.ndarray, ...]:
    """Return the models of every round that an implementation answers in an exam.

    Raises
    ------
    TypeError, ValueError
        If it raises, or does not return one model of the start's shape for every round.
    """
    who, models = _who(exam), _answered(train, exam, a)[0]
    shape = exam.hyper["start"].shape
    found = []
    for w in models:
        try:
            model = np.array(w, dtype=np.float64) if not np.iscomplexobj(w) else None
        except Exception as error:  # whatever an array of another library raises
            got = f"{type(w).__name__}: {error}"
            raise wrong_type(who, "return arrays of numbers", got, "detach tensors, and copy them as arrays") from None
        if model is None:
            raise wrong_type(who, "return arrays of real numbers", "complex ones")
        if model.shape != shape:
            several = exam.hyper["loss"] == "multinomial" and model.shape == shape[1:]
            cure = "or declare the losses that it knows: can(losses=...)" if several else ""
            raise bad(who, f"return models of shape {shape}", f"{model.shape}", cure)
        found.append(model)
    same = len(found) > 1 and len({id(w) for w in models}) == 1
    if same and not exam.events and not np.array_equal(found[0], exam.hyper["start"]):
        raise bad(who, "return a model of its own for every round", "the same array every time", "append copies")
    return tuple(found)


def counted(train: Any, exam: Exam, a: Abilities) -> np.ndarray:
    """Return how many numbers an implementation says were sent in every round of an exam.

    Raises
    ------
    TypeError, ValueError
        If it raises, or does not return a pair for every round.
    """
    return np.array([real(f"{_who(exam)} floats", n, low=0.0) for n in _answered(train, exam, a)[1]])


def _who(exam: Exam) -> str:
    return f"conform: train, in the exam {exam.name!r},"


def _answered(train: Any, exam: Exam, a: Abilities) -> tuple[Any, Any]:
    """Return what an implementation answers for every round: models, and the numbers that it says were sent."""
    kind, who = np.float32 if a.float32 else np.float64, _who(exam)
    clients = [(X.astype(kind), y.astype(kind) if y.dtype == float else y.copy()) for X, y in exam.clients]
    hyper = exam.hyper | {"start": exam.hyper["start"].astype(kind)}
    try:
        models = train(clients, hyper, exam.rounds)
    except NotImplementedError:
        raise
    except Exception as error:
        cure = _unset(exam) + "raise NotImplementedError for what it cannot do, or declare it: can(...)"
        got = f"{type(error).__name__}: {error}"
        if isinstance(error, KeyError) and error.args and error.args[0] not in hyper:
            got, cure = f"the key {error}", f"hyper has {', '.join(hyper)}"
        raise bad(who, "return", got, cure) from error
    if not isinstance(models, (list, tuple)) or len(models) != exam.rounds:
        got = f"{len(models)}" if isinstance(models, (list, tuple)) else type(models).__name__
        raise bad(who, f"return a list of {exam.rounds} models, one after every round", got)
    if not a.floats:
        return models, ()
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in models):
        raise wrong_type(who, "return pairs (model, numbers sent), as it declares floats", type(models[0]).__name__)
    return [w for w, _ in models], [n for _, n in models]


def _unset(exam: Exam) -> str:
    """Return what an error may come from: which number of steps or epochs is None in an exam."""
    h = exam.hyper
    if h["local_steps"] is not None and h["epochs"] is not None:
        return ""
    none, counts = ("local_steps", "epochs") if h["local_steps"] is None else ("epochs", "local_steps")
    return f"here hyper[{none!r}] is None, and work is counted in {counts}; "


# ---------------------------------------------------------------- calls


def name_of(train: Any) -> str:
    """Return module:function of an implementation, or a stand-in where nothing could import it so."""
    module, name = getattr(train, "__module__", None), getattr(train, "__qualname__", "")
    return f"{module}:{name}" if module not in (None, "__main__") and name.isidentifier() else "mymodule:train"


def limited(train: Any, seconds: float | None) -> Any:
    """Return an implementation whose calls end with TimeoutError after so many seconds.

    On the main thread of systems with timers the call is interrupted; elsewhere it is judged once it has ended.

    Raises
    ------
    ValueError, TypeError
        If seconds are not positive.
    """
    if seconds is None:
        return train
    most = real("conform: limit", seconds, low=0.0, strict=True)
    timer = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()

    @functools.wraps(train)
    def call(clients: Any, hyper: Any, rounds: int) -> Any:
        begun = time.monotonic()
        before = signal.signal(signal.SIGALRM, _late(most)) if timer else None
        try:
            if timer:
                signal.setitimer(signal.ITIMER_REAL, most)
            answer = train(clients, hyper, rounds)
        finally:
            if timer:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
                signal.signal(signal.SIGALRM, before)
        if time.monotonic() - begun > most:
            _late(most)()
        return answer

    return call


def _late(seconds: float) -> Callable[..., None]:
    def stop(*_: Any) -> None:
        raise TimeoutError(f"a call took longer than the limit of {seconds:g} s")

    return stop
