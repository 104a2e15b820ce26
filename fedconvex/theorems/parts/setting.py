"""Settings that theorems are asked about, and what is read off them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedconvex.constants import Constants
from fedconvex.problems import MovingTarget, Problem
from fedconvex.theory.bound import Hypothesis, require

__all__ = [
    "Setting",
    "full_participation",
    "full_steps",
    "is_method",
    "is_random",
    "local_sgd",
    "one_number",
    "participants",
    "plain_averaging",
    "plain_local_sgd",
    "stationary",
]


class Setting(NamedTuple):
    """One run that a theorem is asked about."""

    problem: Problem
    method: Any
    rounds: int
    start: np.ndarray  # the model's shape
    seed: int = 0

    def constants(self, **ball: Any) -> Constants:
        """Return the problem's constants for this method's mini-batches and start."""
        B, epochs = getattr(self.method, "batch_size", None), getattr(self.method, "epochs", None)
        if epochs is not None:
            B = None if B is None else min(B, int(self.problem.federation.sizes.min()))
        replacement = bool(getattr(self.method, "replacement", False))
        return self.problem.constants(batch_size=B, replacement=replacement, start=self.start, **ball)


def is_random(s: Setting) -> bool:
    """Whether anything in a run is drawn."""
    m = s.method
    drifts = isinstance(s.problem, MovingTarget) and bool(np.any(s.problem.covariance))
    p = getattr(m, "participation", 0.5)
    all_of_them = p is None or getattr(p, "clients", 0) == s.problem.federation.K
    return drifts or not all_of_them or getattr(m, "batch_size", 0) is not None or getattr(m, "replacement", False)


def plain_local_sgd(name: str, m: Any) -> None:
    """Raise unless the method is FedAvg with fresh batches, plain local steps and plain averaging."""
    is_method(name, m, "FedAvg")
    require(
        name,
        Hypothesis("local steps on fresh batches", f"epochs={m.epochs}", m.epochs is None or m.batch_size is None),
        Hypothesis("plain local SGD steps", f"{m.client!r}", m.client.plain()),
        Hypothesis("plain averaging", f"{m.server!r}", type(m.server).__name__ == "Averaging"),
    )


def is_method(name: str, m: Any, *kinds: Any) -> None:
    """Raise unless the method is one of those that the theorem speaks about, or a subclass."""
    names = [getattr(kind, "__name__", kind) for kind in kinds]
    fits = any(type(m).__name__ == kind if isinstance(kind, str) else isinstance(m, kind) for kind in kinds)
    require(name, Hypothesis(f"the method {' or '.join(names)}", type(m).__name__, fits))


def local_sgd(name: str, s: Setting) -> dict[str, Any]:
    """Return step_size, local_steps, rounds of a plain FedAvg with constant steps and everybody taking part."""
    m = s.method
    plain_local_sgd(name, m)
    stationary(name, s.problem)
    require(
        name,
        full_participation(s),
        Hypothesis("one constant step size", f"{m.step_size!r}", isinstance(m.step_size, float)),
    )
    return {"step_size": m.step_size, "local_steps": full_steps(m), "rounds": s.rounds}


def full_steps(m: Any) -> int:
    """Local steps; an epoch of full batches is one."""
    return int(m.local_steps if m.epochs is None else m.epochs)


def stationary(name: str, problem: Problem) -> None:
    """Raise if the minimiser moves."""
    drifts = isinstance(problem, MovingTarget) and bool(np.any(problem.covariance))
    require(name, Hypothesis("a minimiser that stays", "MovingTarget", not drifts))


def full_participation(s: Setting) -> Hypothesis:
    """Return the hypothesis that all clients take part in every round."""
    p, K = s.method.participation, s.problem.federation.K
    return Hypothesis("everybody takes part", f"participation {p!r}", not hasattr(p, "draws") and participants(s) == K)


def participants(s: Setting) -> int:
    """Return the number of clients of a uniform scheme."""
    p, K = s.method.participation, s.problem.federation.K
    return K if p is None else p.clients if hasattr(p, "clients") else max(1, round(p * K))


def plain_averaging(m: Any) -> Hypothesis:
    """Return the hypothesis that the server takes the average as it is."""
    return Hypothesis("plain averaging", f"{m.server!r}", type(m.server).__name__ == "Averaging")


def one_number(name: str, what: str, value: Any) -> float:
    """Return a hyper-parameter that is one positive number."""
    require(name, Hypothesis(f"one {what}, constant in time", f"{value!r}", isinstance(value, float)))
    return float(value)
