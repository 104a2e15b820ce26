"""Rules: how a method is set from the constants of a problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedconvex.methods import FedAvg
from fedconvex.problems import Problem
from fedconvex.theorems.parts.setting import Setting
from fedconvex.theorems.parts.theorem import MethodRule, Theorem

HALVING = "the 1/(2^j L)"


def feasible_work(problem: Problem, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that the clients can keep: a mini-batch that is smaller than the smallest client, or all rows."""
    out, smallest = dict(settings), int(problem.federation.sizes.min())
    if out.get("batch_size") is not None:
        out["batch_size"] = None if smallest == 1 else min(out["batch_size"], max(smallest // 2, 1))
    if "scheme" in out:
        out["participation"] = out.pop("scheme")(max(problem.federation.K // 2, 1))
    return out


def fixed_step(share: float = 0.25, kind: Callable[..., Any] = FedAvg, **settings: Any) -> MethodRule:
    """FedAvg with the step share/L."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> Any:
        return kind(step_size=share / smoothness(problem), **feasible_work(problem, settings))

    return MethodRule("1/L" if share == 1.0 else f"1/({1 / share:g}L)" if share < 1.0 else f"{share:g}/L", make)


def given(kind: Callable[..., Any], **settings: Any) -> MethodRule:
    """Return a method with settings that no constant of the problem goes into."""
    return MethodRule("given", lambda *_: kind(**settings))


def least_bound_step(kind: Callable[..., Any] = FedAvg, **settings: Any) -> MethodRule:
    """Return FedAvg, or another method, with the step of 1/L, 1/(2L), 1/(4L), ... whose bound is least."""
    return MethodRule(
        f"{HALVING} with the least bound",
        least_bound(lambda eta, p: kind(step_size=eta, **feasible_work(p, settings))),
    )


def least_bound(method: Callable[[float, Problem], Any]) -> Callable[[Theorem, Problem, np.ndarray, int], Any]:
    """Return how a method is made with the step of 1/L, 1/(2L), 1/(4L), ... whose bound is least."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> Any:
        top, best = 1.0 / smoothness(problem), math.inf
        found = method(0.25 * top, problem)
        if math.isinf(theorem.value_at(Setting(problem, method(2.0**-20 * top, problem), rounds, start))):
            return found  # no step helps, and the verdict says why
        for j in range(20):
            candidate = method(2.0**-j * top, problem)
            value = theorem.value_at(Setting(problem, candidate, rounds, start))
            if value > best:
                break
            if value < best:
                found, best = candidate, value
        return found

    return make


def smoothness(problem: Problem) -> float:
    """L of the roughest client, or 1 where there is none."""
    L = float(problem.constants().L or 1.0)
    return L if math.isfinite(L) and L > 0.0 else 1.0
