"""Verdicts on degenerate instances: a true theorem must never come out violated, nor an error raw.

On well-conditioned ones a bound of 0.95 times the exact value must be caught.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from fedconvex import FedAvg, Federation, Logistic, Problem, Squared
from fedconvex.losses import SmoothedHinge
from fedconvex.methods import DynamicFedAvg
from fedconvex.problems import MovingTarget
from fedconvex.theorems import THEOREMS, Theorem
from fedconvex.theory.bound import Bound
from fedconvex.verify import Check, Outcome, Setting, Verdict, verify

SQUARES_ONLY = ("dynamic_msd", "dynamic_noise", "fedavg_limit")
CLASSES_ONLY = ("boosting", "adaboost", "weight_divergence")


def power_of_ten(rng: np.random.Generator, low: float, high: float) -> float:
    """1 in a third of the cases."""
    return 1.0 if rng.random() < 1 / 3 else float(10.0 ** rng.uniform(low, high))


def loss_for(rng: np.random.Generator, home: str) -> Any:
    """Return a loss that the theorem speaks about, mostly."""
    if home in SQUARES_ONLY:
        return Squared()
    some = (Logistic(), SmoothedHinge(0.5)) if home in CLASSES_ONLY else (Squared(), Squared(), Logistic())
    return some[int(rng.integers(len(some)))]


def labels(rng: np.random.Generator, loss: Any, z: np.ndarray, scale: float) -> np.ndarray:
    """Return targets near z, on a scale, zero or all equal; or classes."""
    if not isinstance(loss, Squared):
        return np.where(rng.random(z.size) < 0.5, 1.0, -1.0)
    y = np.asarray((z + rng.normal(size=z.size)) * scale)
    return 0.0 * y if rng.random() < 0.15 else np.full(z.size, y[0]) if rng.random() < 0.15 else y


def well_conditioned_problem(rng: np.random.Generator, home: str = "") -> Problem:
    """Return 3 clients of 6 normal rows with two features, l2 = 0.3, equal weights."""
    X, loss = rng.normal(size=(18, 2)), loss_for(rng, home)
    z = X @ rng.normal(size=2)
    y = z + rng.normal(size=18) if isinstance(loss, Squared) else np.where(z + rng.normal(size=18) > 0, 1.0, -1.0)
    return Problem(Federation.from_arrays(X, y, np.repeat(np.arange(3), 6)), loss, 0.3, "uniform")


def degenerate_problem(rng: np.random.Generator, home: str = "") -> Problem:
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
    loss = loss_for(rng, home)
    y = labels(rng, loss, X @ rng.normal(size=d), power_of_ten(rng, -9.0, 9.0))
    L = float(np.max(np.sum(X**2, axis=1)))
    l2 = (0.0, float(10.0 ** rng.uniform(-18.0, 6.0)), L * float(10.0 ** rng.uniform(-3.0, 0.0)))[int(rng.integers(3))]
    weights: Any = "uniform"
    if rng.random() < 0.3 and not home.startswith("dynamic"):
        weights = 10.0 ** -rng.uniform(0.0, 6.0, size=K)
        weights = weights / weights.sum()
    return Problem(Federation.from_arrays(X, y, np.repeat(np.arange(K), sizes)), loss, l2, weights)


def rules_of(theorem: Theorem) -> list[Any]:
    """Return the rules by which the theorem's own checks set their methods."""
    fits = [c for c in theorem.checks if isinstance(c, Check) and isinstance(c.instance.make(), theorem.kind)]
    own = [theorem.method] + [c.method for c in fits]
    return [rule for rule in own if rule is not None]


def edge_method(rng: np.random.Generator, problem: Problem, home: str) -> Any:
    """Return FedAvg or Dynamic FedAvg with a step at the edge of what theorems allow, tiny ones among them."""
    L = float(problem.constants().L or 1.0)
    share = float(rng.choice([0.25, 1.0, 2.0, 0.5, 1e-3, 1e-6, 1e-8, 1e-9]))
    work: dict[str, Any] = {"local_steps": int(rng.integers(1, 5))}
    if rng.random() < 0.3:
        work["batch_size"] = 1
    kind = DynamicFedAvg if home.startswith("dynamic") else FedAvg
    return kind(step_size=share / L if 0.0 < L < math.inf else share, **work)


def start_near(rng: np.random.Generator, problem: Any) -> np.ndarray:
    """Return zero, the minimiser, next to it, or anywhere."""
    kind, shape = int(rng.integers(4)), problem.model_shape
    if kind == 0 or not isinstance(problem, Problem):
        return np.zeros(shape)
    w = np.asarray(problem.solve().w, dtype=float)
    size = float(np.linalg.norm(w)) or 1.0
    return w if kind == 1 else w + size * rng.normal(size=shape) * (1e-6 if kind == 2 else 1.0)


def some_setting(rng: np.random.Generator, theorem: Theorem, problem: Any) -> Setting:
    """Return the problem as the theorem's kind of problem, with a method, rounds and a start."""
    rules, rounds = rules_of(theorem), int(rng.choice([1, 2, 3, min(theorem.rounds, 20)]))
    problem = problem if theorem.adapt is None else theorem.adapt(problem)
    if not isinstance(problem, theorem.kind):  # posteriors, games: one of the suite's
        every = [c.instance if isinstance(c, Check) else c for c in theorem.checks]
        fits = [made for made in (instance.make() for instance in every) if isinstance(made, theorem.kind)]
        problem = fits[int(rng.integers(len(fits)))]
    problem = MovingTarget(problem, theorem.drift) if theorem.drift else problem
    start = start_near(rng, problem)
    if theorem.home.startswith(("fedavg", "dynamic")) and rng.random() < 0.5:
        return Setting(problem, edge_method(rng, problem, theorem.home), rounds, start)
    rule = rules[int(rng.integers(len(rules)))]
    return Setting(problem, rule.make(theorem, problem, start, rounds), rounds, start)


def asked(theorem: Theorem, s: Setting, **options: Any) -> Verdict:
    """Return the verdict in a setting."""
    return verify(theorem, s.problem, s.method, rounds=s.rounds, start=s.start, **options)


def caught(theorem: Theorem, s: Setting, value: float) -> bool:
    """Whether 0.95 times the value, for a bound, is violated."""
    planted = Bound({"planted": 0.95 * value}, theorem.quantity, "planted")
    return asked(theorem._replace(bound=lambda s: planted, read=None), s).outcome is Outcome.VIOLATED


def verdict_trial(rng: np.random.Generator) -> dict:
    """Ask twelve theorems about a random problem each: none may be violated, nothing may raise a raw error."""
    names, said, told = list(THEOREMS), Counter[str](), []
    for i in range(12):
        theorem = THEOREMS[names[int(rng.integers(len(names)))]]
        well = i % 4 == 0
        make = well_conditioned_problem if well else degenerate_problem
        try:
            s = some_setting(rng, theorem, make(rng, theorem.home))
            verdict = asked(theorem, s, most=64)
        except np.linalg.LinAlgError:
            raise
        except (TypeError, ValueError) as error:  # by name: the problem is not one for the theorem or its method
            said["refused"] += 1
            told.append(f"{theorem.name}: {error}"[:300])
            continue
        assert verdict.outcome is not Outcome.VIOLATED, f"{verdict}, {s.method!r}, {s.problem!r}"
        said[verdict.outcome.name] += 1
        if verdict.outcome is Outcome.INCONCLUSIVE:
            told.append(f"{verdict}"[:300])
        elif well and verdict.outcome is Outcome.HOLDS and not verdict.trajectories and verdict.measured > 1e-9:
            said["planted"] += 1
            assert caught(theorem, s, verdict.measured), f"0.95 of {verdict.measured!r} passes: {verdict}, {s.method!r}"
    return {name.lower(): float(count) for name, count in said.items()} | {"told": told}
