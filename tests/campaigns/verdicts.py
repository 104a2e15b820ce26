"""Verdicts on degenerate instances: a true theorem must never come out violated, nor an error raw."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from fedconvex import FedAvg, Federation, Logistic, Problem, Squared
from fedconvex.losses import SmoothedHinge
from fedconvex.problems import MovingTarget
from fedconvex.theorems import THEOREMS, Theorem
from fedconvex.verify import Check, Outcome, Verdict, verify


def power_of_ten(rng: np.random.Generator, low: float, high: float) -> float:
    """1 in a third of the cases."""
    return 1.0 if rng.random() < 1 / 3 else float(10.0 ** rng.uniform(low, high))


def degenerate_problem(rng: np.random.Generator) -> Problem:
    """Return a small problem with one model: scales, equal rows and clients, zero labels, extreme weights and l2."""
    K, d = int(rng.choice([1, 1, 2, 3, 5])), int(rng.choice([1, 1, 2, 3]))
    sizes = rng.choice([1, 1, 2, 3, 4], size=K) if rng.random() < 0.5 else np.full(K, int(rng.choice([1, 2, 4])))
    n = int(sizes.sum())
    X = rng.normal(size=(n, d))
    kind = int(rng.integers(5))
    if kind == 1:
        X[:] = 1.0
    elif kind == 2:
        X[:] = X[0]
    elif kind == 3:
        X[rng.random(n) < 0.5] = X[0]
    X = X * power_of_ten(rng, -9.0, 9.0)
    loss: Any = (Squared(), Squared(), Squared(), Logistic(), SmoothedHinge(0.5))[int(rng.integers(5))]
    z = X @ rng.normal(size=d)
    if isinstance(loss, Squared):
        y = np.asarray((z + rng.normal(size=n)) * power_of_ten(rng, -9.0, 9.0))
        y = 0.0 * y if rng.random() < 0.15 else np.full(n, y[0]) if rng.random() < 0.15 else y
    else:
        y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    L = float(np.max(np.sum(X**2, axis=1)))
    l2 = (0.0, float(10.0 ** rng.uniform(-18.0, 6.0)), L * float(10.0 ** rng.uniform(-3.0, 0.0)))[int(rng.integers(3))]
    weights: Any = "uniform"
    if rng.random() < 0.3:
        weights = 10.0 ** -rng.uniform(0.0, 6.0, size=K)
        weights = weights / weights.sum()
    return Problem(Federation.from_arrays(X, y, np.repeat(np.arange(K), sizes)), loss, l2, weights)


def rules_of(theorem: Theorem) -> list[Any]:
    """Return the rules by which the theorem's own checks set their methods."""
    fits = [c for c in theorem.checks if isinstance(c, Check) and isinstance(c.instance.make(), theorem.kind)]
    own = [theorem.method] + [c.method for c in fits]
    return [rule for rule in own if rule is not None]


def plain_step(rng: np.random.Generator, problem: Problem) -> FedAvg:
    """Return FedAvg with a step at the edge of what theorems allow, tiny ones among them."""
    L = float(problem.constants().L or 1.0)
    share = float(rng.choice([0.25, 1.0, 2.0, 0.5, 1e-3, 1e-6, 1e-9]))
    work: dict[str, Any] = {"local_steps": int(rng.integers(1, 5))}
    if rng.random() < 0.3:
        work["batch_size"] = 1
    return FedAvg(step_size=share / L if 0.0 < L < math.inf else share, **work)


def starts(rng: np.random.Generator, problem: Any) -> np.ndarray:
    """Return zero, the minimiser, next to it, or anywhere."""
    kind, shape = int(rng.integers(4)), problem.model_shape
    if kind == 0 or not isinstance(problem, Problem):
        return np.zeros(shape)
    w = np.asarray(problem.solve().w, dtype=float)
    size = float(np.linalg.norm(w)) or 1.0
    return w if kind == 1 else w + size * rng.normal(size=shape) * (1e-6 if kind == 2 else 1.0)


def one_verdict(rng: np.random.Generator, theorem: Theorem, problem: Any, **options: Any) -> Verdict | str:
    """Return the verdict, or why the method or the problem of the theorem was refused by name."""
    rules = rules_of(theorem)
    rounds = int(rng.choice([1, 2, 3, min(theorem.rounds, 20)]))
    try:
        if theorem.adapt is not None:
            problem = theorem.adapt(problem)
        if theorem.drift:
            problem = MovingTarget(problem, theorem.drift)
        start = starts(rng, problem)
        if theorem.kind is Problem and theorem.home.startswith("fedavg") and rng.random() < 0.5:
            method = plain_step(rng, problem)
        else:
            method = rules[int(rng.integers(len(rules)))].make(theorem, problem, start, rounds)
        return verify(theorem, problem, method, rounds=rounds, start=start, **options)
    except np.linalg.LinAlgError:
        raise
    except (TypeError, ValueError) as error:
        return str(error)


def verdict_trial(rng: np.random.Generator) -> dict:
    """Ask six theorems about a random problem each: none may be violated, nothing may raise a raw error."""
    names = list(THEOREMS)
    found: Counter[str] = Counter()
    refused = []
    for _ in range(6):
        theorem = THEOREMS[names[int(rng.integers(len(names)))]]
        problem = degenerate_problem(rng)
        verdict = one_verdict(rng, theorem, problem, most=128)
        if isinstance(verdict, str):
            found["refused"] += 1
            refused.append(f"{theorem.name}: {verdict}"[:300])
            continue
        assert verdict.outcome is not Outcome.VIOLATED, f"{verdict}"
        found[verdict.outcome.name] += 1
        if verdict.outcome is Outcome.INCONCLUSIVE:
            refused.append(f"{verdict}"[:300])
    return {"found": dict(found), "refused": refused}
