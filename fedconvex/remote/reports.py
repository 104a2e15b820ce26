"""What a certificate over sites is made of: the part of one client, from its own rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedconvex.kernels.domains import domain_sums
from fedconvex.kernels.row_losses import values_gradients_of
from fedconvex.loss_traits import traits
from fedconvex.problems import Independent, MultiTaskProblem
from fedconvex.problems.protocol import MODEL_PER_TASK, ONE_MODEL
from fedconvex.remote.messages import Form, Refused
from fedconvex.remote.rounding import allowances

__all__ = ["expected", "report", "statistic_of"]

_FLOATS = np.dtype(np.float64)


def report(problem: Any, number: int, asked: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a client's part: f_k and its gradient; sums by domain; or losses, image and conjugate of a task.

    With values and gradients come `allowances` for rounding.

    Parameters
    ----------
    problem : problem
        As a site has it, with its own rows only.
    number : int
        The client.
    asked : mapping
        ``w`` (R, *model), or (R, 1, d) for a task; with ``alpha`` (R, p) sums by domain are asked for.

    Raises
    ------
    Refused
        If the problem is of another kind, or the arrays have other shapes.
    """
    w = asked.get("w", np.empty(0))
    one = problem.learns == ONE_MODEL
    shape = problem.model_shape if one else (1, problem.federation.d)
    if problem.learns not in (ONE_MODEL, MODEL_PER_TASK) or w.dtype != _FLOATS or w.shape[1:] != shape:
        raise Refused(f"no models (R, {', '.join(map(str, shape))}) to be measured")
    if not one:
        return _task(problem, number, w)
    clients = np.full((len(w), 1), number, dtype=np.int64)
    if "alpha" in asked:
        losses, g = domain_sums(problem, w, asked["alpha"], clients)
        return {"losses": losses[:, 0], "gradient": g[:, 0], **allowances(problem, w, asked["alpha"])}
    values, G = values_gradients_of(problem, w, clients)
    return {"value": values[:, 0], "gradient": G[:, 0], **allowances(problem, w)}


def _task(problem: Any, t: int, w: np.ndarray) -> dict[str, np.ndarray]:
    """Return losses, rounding, and image and conjugate of the dual variables -l' of a task, each for R models."""
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
    return out


def statistic_of(problem: Any, number: int, name: str) -> np.ndarray:
    """Return what a client answers when asked for a statistic, from its own rows."""
    if problem.learns == MODEL_PER_TASK:  # of this task alone: no relationship matters
        own = problem.federation.subset([number])
        return np.asarray(
            MultiTaskProblem(own, problem.loss, Independent(1.0), problem.normalisation).statistic(name)[0]
        )
    if hasattr(problem, "client") and name != "domain_counts":
        return np.asarray(problem.client(number).statistic(name)[0])
    return np.asarray(problem.statistic(name)[number])


def expected(problem: Any, asked: Mapping[str, np.ndarray]) -> dict[str, Form]:
    """Return the forms of a `report`."""
    R, shape = len(asked["w"]), problem.model_shape
    if problem.learns == MODEL_PER_TASK:
        sizes: dict[str, tuple[int, ...]] = dict.fromkeys(("value", "conjugate", "reach"), (R,))
        sizes["image"] = (R, shape[-1])
    elif "alpha" in asked:
        both = asked["alpha"].shape
        sizes = {"losses": both, "gradient": (R, *shape), "error": (R,), "off": both}
    else:
        sizes = {"value": (R,), "gradient": (R, *shape), "error": (R,), "off": (R,)}
    return {name: Form(size, _FLOATS, False) for name, size in sizes.items()}
