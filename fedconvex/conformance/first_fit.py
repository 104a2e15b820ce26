"""All readings of a round that draws nothing, at once: what clients answer is computed once, the server's lines on all.

A reading of the first round falls into two parts: conventions that clients' answers depend on, and conventions that
only the server's step reads. Their numbers multiply; the computation need not. The answers of all readings of clients
are stacked along a leading axis, and every reading of the server is applied to the whole stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.conformance import averaging
from fedconvex.conformance.conventions import Reading, departs, errors, expand
from fedconvex.conformance.exams import Exam
from fedconvex.conformance.families import Family


class Fit(NamedTuple):
    """Readings within the tolerance, with distances; how many were tried, and the nearest of the others."""

    near: list[tuple[Reading, float]]
    tried: int
    passed_over: float


Stack = tuple[int, list[Reading], list[dict[str, Any]]]  # errors, readings of clients, every client's stacked answers


def separable(family: Family, exam: Exam) -> bool:
    """Return whether an exam's readings can be split between clients and server."""
    return bool(family.at_server) and exam.rounds == 1 and not exam.events


def fit(family: Family, exam: Exam, model: np.ndarray, tol: float, wrong: int, most: int) -> Fit:
    """Return the readings that give a model after one round, with exactly so many errors.

    Parameters
    ----------
    family : Family
    exam : Exam
        Of one round that draws nothing.
    model : ndarray, shape (*model,)
        What an implementation answered.
    tol : float
        Largest distance that counts as equal, relative to the largest entry of the model.
    wrong : int
        Errors that a reading holds.
    most : int
        Readings of the server that are tried, at most; those nearer to the paper first.
    """
    split = family.move is averaging.move
    own = tuple(c for c in family.conventions if split and c.name in averaging.SERVER_STEP)
    steps = [(errors(own, r), r) for r in expand(own, exam, {}, wrong)]
    steps.sort(key=lambda pair: (pair[0], departs(own, pair[1])))
    averages = _averages(family, exam, wrong, {c.name for c in own})
    near: list[tuple[Reading, float]] = []
    tried, passed, scale = 0, np.inf, max(1e-3, float(np.abs(model).max()))
    axes = tuple(range(1, model.ndim + 1))
    with np.errstate(all="ignore"):
        for mine, r in steps[:most]:
            state = family.first(exam, r)
            for readings, W in averages.get(wrong - mine, ()):
                W = averaging.stepped(exam, r, state, W - state["w"]) if split else W
                far = np.abs(W - model).max(axis=axes) / scale
                far[np.isnan(far)] = np.inf
                tried += len(readings)
                close = far <= tol
                near += [(_joined(family, readings[i], r), float(far[i])) for i in np.flatnonzero(close)]
                passed = min(passed, float(far[~close].min(initial=np.inf)))
    return Fit(near, tried, passed)


def _averages(family: Family, exam: Exam, budget: int, apart: set[str]) -> dict[int, list[Any]]:
    """Return readings of all but the conventions apart, and stacked models, by the number of errors."""
    rest = tuple(c for c in family.conventions if c.name in family.at_server and c.name not in apart)
    stacks, found = _stacks(family, exam, budget), dict[int, list[Any]]()
    who, shape = tuple(range(len(exam.sizes))), exam.hyper["start"].shape
    with np.errstate(all="ignore"):
        for r in expand(rest, exam, {}, budget):
            state, mine = family.first(exam, r), errors(rest, r)
            for wrong, readings, replies in stacks:
                if mine + wrong <= budget:
                    W = np.broadcast_to(family.move(exam, r, state, who, replies)["w"], (len(readings), *shape))
                    found.setdefault(mine + wrong, []).append(([_joined(family, one, r) for one in readings], W))
    return {
        wrong: [([r for readings, _ in pairs for r in readings], np.concatenate([W for _, W in pairs]))]
        for wrong, pairs in found.items()
    }


def _stacks(family: Family, exam: Exam, budget: int) -> list[Stack]:
    """Return all readings of clients with their answers in a round, stacked where errors and steps are as many."""
    of_clients = tuple(c for c in family.conventions if c.name not in family.at_server)
    groups: dict[tuple[Any, ...], list[tuple[Reading, list[dict[str, Any]]]]] = {}
    with np.errstate(all="ignore"):
        for r in expand(of_clients, exam, {}, budget):
            state, replies = family.first(exam, r), list[Any]()
            for k, n in enumerate(exam.sizes):
                batches = (tuple(range(n)),) * exam.steps
                replies.append(family.reply(exam, r, state, k, batches, replies[-1] if replies else None))
            kind = (errors(of_clients, r), *((a["steps"], *sorted(a)) for a in replies))
            groups.setdefault(kind, []).append((r, replies))
    return [
        (wrong, [r for r, _ in found], [_stacked([replies[k] for _, replies in found]) for k in range(len(exam.sizes))])
        for (wrong, *_), found in groups.items()
    ]


def _stacked(replies: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one client's answers in all readings as arrays with a leading axis; numbers of steps are the same."""
    varies = {name for name, v in replies[0].items() if isinstance(v, (np.ndarray, float)) and name != "total"}
    return {name: np.stack([a[name] for a in replies]) if name in varies else v for name, v in replies[0].items()}


def _joined(family: Family, one: Reading, two: Reading) -> Reading:
    """Return both parts of a reading, in the order of the family's conventions."""
    return {c.name: (one.get(c.name) or two[c.name]) for c in family.conventions if c.name in one or c.name in two}
