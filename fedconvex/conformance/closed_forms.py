"""What no reading is needed for: limits and rates in closed form, and invariances, on squared losses.

Local steps on a quadratic are affine maps, w <- S_k^E w + (...): FedAvg's and FedProx's fixed points, and how fast they
are reached, are those of the average map, and not the minimiser; SCAFFOLD's and FedDyn's is the minimiser. The order of
a client's rows, the order of the clients, and the units of the features must not matter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedconvex.conformance.averaging import shares
from fedconvex.conformance.exams import Exam, standard_exams
from fedconvex.conformance.families import FAMILIES
from fedconvex.conformance.implementation import Abilities, ask, given_to, unlike

ROUNDS = 300


class Check(NamedTuple):
    """A statement that must hold of the implementation, and by how much it failed to."""

    says: str
    distance: float
    holds: bool


def round_map(exam: Exam, r: Mapping[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Return A and b of a round w <- A w + b of FedAvg or FedProx on squared losses, full batches, everybody.

    Parameters
    ----------
    exam : Exam
        Its clients and hyper-parameters.
    r : dict
        A reading: weights, mean or sum, factors of loss and ridge, proximal term.
    """
    h, d, q = exam.hyper, exam.clients[0][0].shape[1], shares(exam, r, range(len(exam.clients)))
    ridge = {"l2/2": 1.0, "l2": 2.0}[r.get("ridge", "l2/2")] * h["l2"]
    mu = {"(mu/2) d^2": 1.0, "mu d^2": 2.0}.get(r.get("prox", ""), 0.0) * h["proximal_mu"]
    A, b = np.zeros((d, d)), np.zeros(d)
    for q_k, (X, y) in zip(q, exam.clients, strict=True):
        scale = (2.0 if r.get("squared") == "whole" else 1.0) / (1.0 if r.get("loss") == "sum" else len(y))
        S = np.eye(d) - h["step_size"] * (scale * X.T @ X + (ridge + mu) * np.eye(d))
        powers = sum(np.linalg.matrix_power(S, j) for j in range(h["local_steps"]))
        A += q_k * (np.linalg.matrix_power(S, h["local_steps"]) + h["step_size"] * mu * powers)
        b += q_k * h["step_size"] * powers @ (scale * X.T @ y)
    return A, b


def checks(family: str, r: Mapping[str, str], train: Any, a: Abilities, tol: float) -> list[Check]:
    """Return what was checked of an implementation that was read as r."""
    if "squared" not in a.losses or "four rounds" not in FAMILIES[family].exams:  # whose rounds always draw something
        return []
    exam = standard_exams("squared", **given_to(a, {"step_size": 0.1}))[2]
    one = family == "fedsgd" or not a.local_steps
    hyper = exam.hyper | ({"local_steps": 1, "epochs": 1} if one else {})
    exam = exam._replace(hyper=hyper | ({} if a.start else {"start": np.zeros(3)}))
    found: list[Check] = []
    if unlike(exam, a):
        return found
    with contextlib.suppress(NotImplementedError):  # what it cannot do is not held against it
        for check in _all(family, exam, r, train, a, tol):
            found.append(check)
    return found


def _all(family: str, exam: Exam, r: Mapping[str, str], train: Any, a: Abilities, tol: float) -> Iterator[Check]:
    """Yield the checks, the cheap ones first."""
    yield from _invariances(family, exam, r, train, a, tol)
    usual = all(r.get(name, value) == value for name, value in _USUAL.items()) and r.get("ridge") != "absent"
    weighted, prox = r.get("weights", "n_k/n"), r.get("prox", "mu d^2")
    if usual and weighted in ("n_k/n", "1/K") and prox in ("mu d^2", "(mu/2) d^2"):
        if family in ("fedavg", "fedsgd", "fedprox"):
            yield from _affine(exam, r, train, a, tol)
        if (family == "scaffold" and r.get("c weights") == "as models") or (
            family in ("scaffold", "feddyn") and weighted == "1/K"
        ):
            yield from _corrected(exam, r, train, a, tol)


_USUAL = {
    "direction": "descent",
    "steps": "asked",
    "start": "server",
    "schedule": "constant",
    "client": "sgd",
    "solver": "steps",
    "mu rule": "constant",
    "anchor": "server",
    "acceleration": "none",
    "server": "average",
}


def _corrected(exam: Exam, r: Mapping[str, str], train: Any, a: Abilities, tol: float) -> list[Check]:
    """Hold a long run of SCAFFOLD or FedDyn against the minimiser of sum_k p_k f_k, the fixed point of single steps."""
    one = exam._replace(hyper=exam.hyper | {"local_steps": 1})
    A, b = round_map(one, r)
    best = np.linalg.solve(np.eye(len(b)) - A, b)
    models = ask(train, exam._replace(rounds=ROUNDS), a)
    scale = max(1.0, float(np.abs(best).max()))
    last, before = (float(np.abs(models[t] - models[t - 50]).max()) / scale for t in (ROUNDS - 1, ROUNDS - 51))
    if not before or not last / before < 0.9:
        return []  # it has not settled: too long a step for this federation, or too short a run
    rate = last / before
    distance, left = float(np.abs(models[-1] - best).max()) / scale, last * rate / (1.0 - rate)
    holds = distance <= 10 * tol + 4 * left
    return [Check("long runs end at the minimiser, where local steps stand still", distance, holds)]


def _affine(exam: Exam, r: Mapping[str, str], train: Any, a: Abilities, tol: float) -> list[Check]:
    """Hold a long run against the fixed point of the round, and its rate."""
    A, b = round_map(exam, r)
    if np.abs(np.linalg.eigvals(A)).max() >= 1.0:
        return []
    limit = np.linalg.solve(np.eye(len(b)) - A, b)
    models = ask(train, exam._replace(rounds=ROUNDS), a)
    scale, start = max(1.0, float(np.abs(limit).max())), exam.hyper["start"] - limit
    measured = [float(np.linalg.norm(w - limit)) for w in models[:20]]
    expected = [float(np.linalg.norm(np.linalg.matrix_power(A, t) @ start)) for t in range(1, 21)]
    rate = max(abs(m - e) for m, e in zip(measured, expected, strict=True)) / scale
    left = float(np.abs(np.linalg.matrix_power(A, ROUNDS) @ start).max()) / scale
    last = float(np.abs(models[-1] - limit).max()) / scale
    radius = float(np.abs(np.linalg.eigvals(A)).max())
    return [
        Check("long runs end at the fixed point of a round in closed form", last, last <= 10 * tol + 2 * left),
        Check(f"distances to it fall as powers of the round's matrix do (rate {radius:.4f})", rate, rate <= 10 * tol),
    ]


def _invariances(family: str, exam: Exam, r: Mapping[str, str], train: Any, a: Abilities, tol: float) -> Any:
    """Yield what order and units must not change."""
    first = ask(train, exam, a)
    scale = max(1.0, *(float(np.abs(w).max()) for w in first))

    def check(says: str, other: Exam, unit: float = 1.0) -> Check:
        models = ask(train, other, a)
        d = max(float(np.abs(u - unit * w).max()) for u, w in zip(first, models, strict=True)) / scale
        return Check(says, d, d <= 10 * tol)

    yield check("the order of a client's rows does not matter", exam._replace(
        clients=tuple((X[::-1].copy(), y[::-1].copy()) for X, y in exam.clients)))  # fmt: skip
    yield check("the order of the clients does not matter", exam._replace(clients=exam.clients[::-1]))
    if family in ("fedavg", "fedsgd", "fedprox", "scaffold", "fednova") and r.get("client", "sgd") != "adam":
        h = exam.hyper
        if not set(a.hyper) & {"step_size", "proximal_mu", "l2"} and r.get("prox") not in ("(mu/2) d", "d^2/2"):
            units = {"start": h["start"] / 2, "step_size": h["step_size"] / 4, "l2": 4 * h["l2"]}
            if r.get("mu rule") != "adaptive":
                other = exam._replace(
                    clients=tuple((2 * X, y) for X, y in exam.clients),
                    hyper=h | units | {"proximal_mu": 4 * h["proximal_mu"]},
                )
                yield check("with features doubled, models halve (step/4, l2 and mu times 4)", other, 2.0)
