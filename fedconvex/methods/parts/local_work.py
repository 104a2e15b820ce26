"""How much a client does in a round: local steps or epochs on mini-batches, shared by the methods with local SGD."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex._check import bad, flag, whole
from fedconvex.methods.parts import participation, step_sizes
from fedconvex.problems import FederatedProblem
from fedconvex.traits import LocalSteps, Traits

__all__ = ["averaging_traits", "check_fit", "check_work", "plan_of", "steps_of"]


def check_work(who: str, method: Any) -> None:
    """Make local_steps, epochs and batch_size plain whole numbers, or raise; not both of the first two may be given."""
    for name in ("local_steps", "epochs", "batch_size"):
        if name == "local_steps" or getattr(method, name) is not None:
            object.__setattr__(method, name, whole(f"{who}.{name}", getattr(method, name), low=1))
    if method.epochs is not None and method.local_steps != 1:
        raise bad(who, "be given local_steps or epochs", "both")
    if method.batch_size is None and flag(f"{who}.replacement", method.replacement):
        raise bad(f"{who}.replacement", "come with a batch_size", "batch_size=None", "full batches are not drawn")


def check_fit(who: str, method: Any, problem: FederatedProblem, R: int, schedules: tuple[Any, ...] = ()) -> None:
    """Raise if participation, step sizes or mini-batches do not fit the problem and its R trajectories.

    Steps that count local steps, further ``schedules`` too, and ``shadow`` need equally many steps everywhere.
    """
    fed, B = problem.federation, method.batch_size
    if hasattr(method, "participation"):
        participation.check_participation(who, method.participation, problem)
    step_sizes.check_trajectories(who, method.step_size, R)
    if B is not None and method.epochs is None and not method.replacement and fed.sizes.min() < B:
        k = int(np.argmin(fed.sizes))
        cure = "use epochs= (batches stop at the client's size) or replacement=True"
        raise bad(f"{who}.batch_size", f"be at most {fed.sizes[k]}, the rows of client {fed.labels[k]}", B, cure)
    per_step = any(isinstance(x, step_sizes.Decay) and not x.by_round for x in (method.step_size, *schedules))
    counts = step_sizes.step_counts(plan_of(method, fed.sizes))
    if (per_step or getattr(method, "shadow", False)) and counts.min() != counts.max():
        cure = "use local_steps=, or Decay(..., by_round=True)" if per_step else "use local_steps="
        what = "a schedule that counts local steps" if per_step else "shadow"
        raise bad(f"{who}: {what}", "have equally many steps everywhere", f"{counts.min()} to {counts.max()}", cure)


def plan_of(method: Any, sizes: np.ndarray) -> np.ndarray:
    """Return passes, rows per pass and rows per step of clients with so many rows: (*sizes.shape, 3)."""
    plan = np.empty((*sizes.shape, 3), dtype=np.int64)
    plan[..., 0] = method.local_steps if method.epochs is None else method.epochs
    plan[..., 1] = sizes if method.epochs is not None or method.batch_size is None else method.batch_size
    plan[..., 2] = plan[..., 1] if method.batch_size is None else np.minimum(method.batch_size, plan[..., 1])
    return plan


def steps_of(method: Any, problem: FederatedProblem, plain: bool) -> LocalSteps:
    """Return the local steps of every client."""
    sizes, ones = problem.federation.sizes, np.ones(problem.federation.K)
    plan, replacement = plan_of(method, sizes), getattr(method, "replacement", False)
    even = plan[:, 1] % plan[:, 2] == 0  # a pass ends with a whole batch
    one_batch = (plan[:, 1] == plan[:, 2]) & (method.epochs is None or plan[:, 2] == sizes)
    fresh = bool((one_batch | (even & replacement)).all())
    counts = step_sizes.step_counts(plan)
    return LocalSteps(method.step_size, counts, plan[:, 2], sizes, replacement, plain, fresh, ones)


def averaging_traits(
    method: Any, problem: FederatedProblem, plain: bool, averaged: bool = True, drawn: tuple[str, ...] = ()
) -> Traits:
    """Return the traits of a method with local steps; averaged: its server moves by a weighted average of the answers.

    drawn : what a round draws beside clients and batches.
    """
    local = steps_of(method, problem, plain)
    sampling, m = participation.sampling_of(method.participation, problem)
    step = getattr(method.server, "plain_step", None) if averaged else None
    some = ("clients",) if sampling != "everyone" else ()
    return Traits(local, step, sampling, m, some + (() if local.full else ("batches",)) + drawn)
