"""A method with every step size of a grid at once, and the run that did best."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.driver import iterate
from fedconvex.papers.findings import Progress
from fedconvex.problems import Problem


class TunedRun(NamedTuple):
    """A method over its rounds, with the step sizes that were best."""

    method: str
    step_size: float
    domain_step_size: float  # NaN where the method has none
    edge: bool  # whether the step size is the smallest or largest of its grid
    rounds: np.ndarray  # (T,)
    above: np.ndarray  # (T,) the worst domain's objective minus a certified lower bound of its least value
    models: np.ndarray  # (T, ...)
    domain_weights: np.ndarray  # (p,) lambda at the end

    @property
    def named(self) -> dict[str, Any]:
        """The method and its step sizes, as cells of a table."""
        return {"method": self.method, "step": self.step_size, "domain step": self.domain_step_size}


def grid_notes(at_an_end: Sequence[str]) -> tuple[str, ...]:
    """Say whose best step is the smallest or largest of its grid, if there is any."""
    whose = ", ".join(at_an_end)
    return (f"Best step at an end of its grid, so that a wider grid might do better: {whose}.",) if whose else ()


def tuned_run(
    name: str, method: Any, domain_step_sizes: np.ndarray | None, problem: Problem, lower: float,
    rounds: int, marks: Collection[int], seed: int, tell: Progress,
) -> TunedRun:  # fmt: skip
    """Run a method whose trajectories have the step sizes of a grid, and return the one with the least objective.

    The objective is that of the worst domain after the last round, or the pooled one for a method without
    ``domain_step_sizes``; ``lower`` is a lower bound of the least worst objective, and ``marks`` the rounds recorded.
    """
    sizes, path, models, when, last = np.ravel(np.asarray(method.step_size)), [], [], [], None
    for t, last in iterate(method, problem, rounds=rounds, seed=seed, trajectories=sizes.size):
        if t in marks:
            with np.errstate(all="ignore"):
                path.append(problem.domain_values(last.w))
            models.append(last.w)
            when.append(t)
            tell(t / rounds, f"{name}, round {t}")
    values = np.array(path)  # (T, R, p)
    pooled = domain_step_sizes is None
    goal = values[-1] @ problem.weights if pooled else values[-1].max(axis=1)
    best = int(np.argmin(np.where(np.isfinite(goal), goal, np.inf)))
    domain_step, lam = math.nan, problem.weights
    if domain_step_sizes is not None:
        domain_step, lam = float(domain_step_sizes[best]), last.domain_weights[best]  # type: ignore[union-attr]
    edge = bool(sizes[best] in (sizes.min(), sizes.max()))
    above, chosen = values[:, best].max(axis=1) - lower, np.array([w[best] for w in models])
    return TunedRun(name, float(sizes[best]), domain_step, edge, np.array(when), above, chosen, lam)
