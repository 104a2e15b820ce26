"""Models per task over sites: every task answers its loss, and image and conjugate of the dual variables -l'."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex._check import bad
from fedconvex.loss_traits import traits
from fedconvex.problems import Independent, Measure, MultiTaskProblem, Problem
from fedconvex.remote.kinds import Arrays, Kind, Shapes, check_models
from fedconvex.solvers.certificates.gaps import duality_gap
from fedconvex.solvers.certificates.row_rounding import EPS, allowances


def report(problem: Any, t: int, asked: Arrays) -> dict[str, np.ndarray]:
    """Return losses, rounding, and image and conjugate of the dual variables -l' of a task, each for R models."""
    w = asked.get("w", np.empty(0))
    check_models((1, problem.federation.d), w)
    fed, R = problem.federation, len(w)
    out = {name: np.empty(R) for name in ("value", "conjugate", "reach")} | {"image": np.empty((R, fed.d))}
    weight = problem.c[t] * fed.masses[t]
    for r in range(R):
        W = np.zeros(problem.model_shape)
        W[t] = w[r, 0]
        alpha = -problem._slopes(problem.task_scores(W))
        loss = float(problem.c[t] * problem._losses(problem.task_scores(W)).sum())
        image, conjugate = problem.images(alpha), problem.conjugates(alpha)
        bound = traits(problem.loss).slope_bound(np.array([loss / weight]))
        reach = weight * float(np.broadcast_to(bound, 1)[0]) * float(np.abs(W[t]) @ fed.column_sizes)
        out["value"][r], out["conjugate"][r], out["reach"][r], out["image"][r] = loss, conjugate[t], reach, image[t]
    off = allowances(Problem(fed.subset([t]), problem.loss), np.ascontiguousarray(w[:, 0]))["off"]
    out["reach"] += weight * off / (2.0 * EPS)  # of scores and of the image; the certificate allows for 4 EPS of it
    return out


def shapes(problem: Any, asked: Arrays) -> Shapes:
    """Return the shapes of a report."""
    R = len(asked["w"])
    return {"value": (R,), "conjugate": (R,), "reach": (R,), "image": (R, problem.model_shape[-1])}


def statistic(problem: Any, number: int, name: str) -> Any:
    """Return what a task answers: no relationship matters for it alone."""
    own = problem.federation.subset([number])
    return MultiTaskProblem(own, problem.loss, Independent(1.0), problem.normalisation).statistic(name)[0]


def points(problem: Any, asked: Arrays, report: Arrays) -> Any:
    """Return what a report says of a task's losses, whose gradient is the image."""
    W, R = asked["w"].reshape(len(asked["w"]), -1), len(asked["w"])
    off = 8.0 * EPS * np.abs(report["reach"])[:, None]
    return zip(W, report["value"][:, None], np.ones((R, 1)), -report["image"], off, np.zeros(R), strict=True)


def check(problem: Any) -> None:
    """Raise where rows have several scores."""
    if traits(problem.loss).several:
        cure = "take a problem for each class against the rest, or run in one process"
        raise bad("Roster.make", "return tasks with one score for each row", f"{problem.loss!r}", cure)


# ---------------------------------------------------------------- at the server


def measure(roster: Any, W: np.ndarray) -> Measure | None:
    """Return P of R models, and duality gaps."""
    reports = _tasks(roster, W)
    if reports is None:
        return None
    images = np.stack([a["image"] for a in reports], axis=1)
    conjugates = np.stack([a["conjugate"] for a in reports], axis=1)
    pairs = [certificate(roster, W[r], images[r], conjugates[r]) for r in range(len(W))]
    return Measure(*(np.array(v) for v in zip(*pairs, strict=True)))


def _tasks(roster: Any, W: np.ndarray) -> list[dict[str, np.ndarray]] | None:
    """Return the reports of all tasks at models (R, m, d), kept for the next one who asks at the same."""
    models, reports = roster.known.get("tasks", (np.empty(0), None))
    if not np.array_equal(models, W):
        models, reports = roster.known["tasks"] = W.copy(), roster.asked(W)
    return reports


def client_values(roster: Any, W: np.ndarray) -> np.ndarray:
    """Losses of the tasks, (R, m), NaN where some do not answer."""
    reports = _tasks(roster, W)
    return np.full(W.shape[:2], np.nan) if reports is None else np.stack([a["value"] for a in reports], axis=1)


def certificate(
    roster: Any, W: np.ndarray, V: np.ndarray, conjugates: np.ndarray, penalty: float | None = None
) -> tuple[float, float]:
    """Return P(W) and the duality gap, as `MultiTaskProblem.certificate` does."""
    reports = _tasks(roster, W[None])
    if reports is None:
        return float("nan"), float("inf")
    losses, reach = (np.array([a[name][0] for a in reports]) for name in ("value", "reach"))
    W, V = W.reshape(len(W), -1), V.reshape(len(V), -1)
    for k, (v, conjugate) in enumerate(zip(V, conjugates.tolist(), strict=True)):
        if k not in roster.witness.caught and (said := roster.witness.hear_dual(k, v.copy(), conjugate)):
            roster.tell(k, said)
    if roster.witness.caught:
        return float("nan"), float("inf")
    other = roster.relation.conjugate(V) if penalty is None else penalty
    penalty = roster.relation.value(W) if penalty is None else penalty
    terms = float(np.abs(losses).sum() + np.abs(conjugates).sum()) + abs(penalty) + abs(other)
    rounding = 4.0 * EPS * (terms + float(reach.sum())) + roster.relation.gap_rounding(roster.factored_mbar, W, V)
    value = float(losses.sum()) + penalty
    return value, duality_gap("Roster", roster, value, float(conjugates.sum()) + other, rounding)


KIND = Kind(
    report,
    shapes,
    measure,
    lambda method, problem: [{"w"}],
    {"client_values": client_values, "certificate": certificate},
    points,
    statistic,
    lambda problem, worked: None if worked else problem,
    check,
    own_part=True,
    scale=lambda problem, k, mass: mass * float(problem.c[k]),
)
