"""Implementations: what ``train`` is given and must return, what it may declare, and how it is asked.

    train(clients, hyper, rounds) -> list of models after every round

``clients`` is a list of (X, y), ``hyper`` a dictionary of numbers, and a model an array (d,), or (C, d) for C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, wrong_type
from fedconvex.conformance.exams import Exam, standard_exams
from fedconvex.conformance.families import Family
from fedconvex.conformance.objectives import LOSSES
from fedconvex.conformance.search import Asked

__all__ = ["Abilities", "abilities_of", "answers", "ask", "can"]

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


def can(**abilities: Any) -> Callable[[Any], Any]:
    """Return a decorator that notes what an implementation can do, as fields of `Abilities`.

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
        if isinstance(value, str) or not all(v in known for v in value) or (name == "losses" and not value):
            raise bad(f"can: {name}", "be a tuple out of " + ", ".join(known), f"{value!r}")
    for name in ("float32", "start", "ridge", "partial", "local_steps", "stragglers"):
        if not isinstance(getattr(a, name), bool):
            raise wrong_type(f"can: {name}", "be True or False", f"{getattr(a, name)!r}")
    if not isinstance(a.hyper, Mapping):
        raise wrong_type("can: hyper", "be a dictionary of fixed hyper-parameters", f"{a.hyper!r}")
    return a


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
    return ""


def answers(family: Family, train: Any, a: Abilities) -> tuple[list[Asked], dict[str, str]]:
    """Ask all exams of a family; return the answers, and why the others were left out.

    What draws something is asked with the first loss only; the rest with every loss that the implementation knows.
    """
    asked, left = [], {}
    for i, loss in enumerate(a.losses):
        fixed = {**family.hyper, **({} if a.ridge else {"l2": 0.0}), **a.hyper}
        if not a.local_steps:
            fixed |= {"local_steps": 1, "epochs": 1}
        for exam in standard_exams(loss, **fixed):
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


def distinct(runs: Sequence[tuple[np.ndarray, ...]]) -> tuple[tuple[np.ndarray, ...], ...]:
    """Return the runs that differ: equal ones, where the seed has no effect, are one observation."""
    found: dict[bytes, tuple[np.ndarray, ...]] = {}
    for run in runs:
        found.setdefault(b"".join(w.tobytes() for w in run), run)
    return tuple(found.values())


def ask(train: Any, exam: Exam, a: Abilities) -> tuple[np.ndarray, ...]:
    """Return the models of every round that an implementation answers in an exam.

    Raises
    ------
    TypeError, ValueError
        If it raises, or does not return one model of the start's shape for every round.
    """
    kind, who = np.float32 if a.float32 else np.float64, f"conform: train, in the exam {exam.name!r},"
    clients = [(X.astype(kind), y.astype(kind) if y.dtype == float else y.copy()) for X, y in exam.clients]
    hyper = exam.hyper | {"start": exam.hyper["start"].astype(kind)}
    try:
        models = train(clients, hyper, exam.rounds)
    except NotImplementedError:
        raise
    except Exception as error:
        cure = "raise NotImplementedError for what it cannot do, or declare it: can(...)"
        raise bad(who, "return", f"{type(error).__name__}: {error}", cure) from error
    if not isinstance(models, (list, tuple)) or len(models) != exam.rounds:
        got = f"{len(models)}" if isinstance(models, (list, tuple)) else type(models).__name__
        raise bad(who, f"return a list of {exam.rounds} models, one after every round", got)
    shape = exam.hyper["start"].shape
    found = []
    for w in models:
        try:
            model = np.array(w, dtype=np.float64)
        except (TypeError, ValueError):
            raise wrong_type(who, "return arrays of numbers", type(w).__name__) from None
        if model.shape != shape:
            raise bad(who, f"return models of shape {shape}", f"{model.shape}")
        found.append(model)
    return tuple(found)
