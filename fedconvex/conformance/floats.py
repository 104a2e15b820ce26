"""Numbers that are sent, where an implementation says how many: vectors of the model's size a client and round.

Counted on two federations that differ in the number of features only: what grows with it are vectors, and what does not
are counts and losses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedconvex.conformance.closed_forms import Check
from fedconvex.conformance.exams import Exam, standard_exams
from fedconvex.conformance.implementation import Abilities, counted, given_to, unlike

VECTORS: Mapping[str, tuple[int, int]] = {  # to a client and back, as published
    "fedavg": (1, 1),
    "fedsgd": (1, 1),
    "fedprox": (1, 1),
    "scaffold": (2, 2),  # the model and c; their changes
    "fedopt": (1, 1),
    "feddyn": (1, 1),
    "fednova": (1, 1),
    "fedsam": (1, 1),
    "dynamicfedavg": (1, 1),
    "afl": (1, 1),
    "agnosticfedavg": (1, 1),
    "robust": (1, 1),
}  # families that exchange twice a round, by chance or compressed are not counted
SCALARS = 4  # a client and round: number of rows, of steps, a loss, a weight


def sent(family: str, train: Any, a: Abilities, hyper: Mapping[str, Any]) -> list[Check]:
    """Return whether as many vectors are sent as published, or nothing where nobody counts, or no number is published.

    Parameters
    ----------
    family : str
        Its name, counted if it is in `VECTORS`.
    train, a : callable, Abilities
        The implementation and what it declares.
    hyper : dict
        What exams of the family set in the place of their defaults.
    """
    exam = standard_exams(a.losses[0], **given_to(a, dict(hyper)))[0]
    if not a.floats or family not in VECTORS or unlike(exam, a):
        return []
    exam = exam._replace(rounds=2)
    if not a.start:
        exam = exam._replace(hyper=exam.hyper | {"start": np.zeros_like(exam.hyper["start"])})
    try:
        small, large = (counted(train, e, a) for e in (exam, repeated(exam, 4)))
    except NotImplementedError:  # what it cannot do is not held against it
        return []
    size, K = exam.hyper["start"].size, len(exam.clients)
    vectors = (large - small) / (3.0 * size * K)  # by round
    scalars = small / K - vectors * size
    published = float(sum(VECTORS[family]))
    off = float(np.abs(vectors - published).max())
    holds = off < 1e-9 and bool(((scalars > -1e-9) & (scalars <= SCALARS + 1e-9)).all())
    says = (
        f"{_number(vectors[-1])} vectors and {_number(scalars[-1])} other numbers are sent a client and round; "
        f"published: {_number(published)} vectors, {VECTORS[family][0]} to a client and {VECTORS[family][1]} back"
    )
    return [Check(says, off, holds)]


def repeated(exam: Exam, times: int) -> Exam:
    """Return an exam with every feature so many times."""
    w = exam.hyper["start"]
    clients = tuple((np.hstack([X] * times), y) for X, y in exam.clients)
    return exam._replace(clients=clients, hyper=exam.hyper | {"start": np.concatenate([w] * times, axis=-1)})


def _number(x: float) -> str:
    return f"{x:.6g}" if abs(x) > 1e-9 else "0"
