"""Every theorem on problems that are hardly there: refused by name or judged, never an error of NumPy, never violated.

One row, one client, one row a client, collinear, zero and too many columns, equal rows, constant labels, sizes from
1e-150 to 1e150 (of all entries, of a column, of a row), l2 = 0 and huge, every loss, problems and methods of a wrong
kind. A trial asks one theorem, by its number, about several of them: by `verify`, and as `fedconvex verify --problem`
does.

What is said of bounds that hold has to be true as well (`untrue`): the run itself is no larger where nothing is drawn,
and where what was measured is zero, or the bound infinite, the verdict is VACUOUS, nowhere else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from fedconvex import FedAvg, Federation, Hinge, Logistic, Problem, SmoothedHinge, Squared
from fedconvex.families.boosting.theorems.sources import as_list, as_stumps
from fedconvex.hybrid_federation import HybridFederation
from fedconvex.losses import Exponential, Softmax
from fedconvex.problems import (
    BoostingProblem,
    EnsembleProblem,
    GameProblem,
    GaussianPosteriorProblem,
    HybridProblem,
    Independent,
    InvariantProblem,
    MeanRegularised,
    MultiTaskProblem,
    VerticalProblem,
)
from fedconvex.theorems import THEOREMS, Theorem
from fedconvex.theorems.parts.setting import is_random
from fedconvex.verify import Check, Outcome, Setting, own_instance, verify
from fedconvex.verify.checking import carried_out
from fedconvex.verify.monte_carlo import slack_of
from fedconvex.verify.verdicts import TINIEST
from fedconvex.vertical_federation import VerticalFederation
from tests.campaigns.fuzz_server import raised

ASKED = 6  # settings a trial
LOSSES: tuple[tuple[Any, str], ...] = (
    (Squared(), "numbers"),
    (Logistic(), "signs"),
    (Hinge(), "signs"),
    (SmoothedHinge(0.5), "signs"),
    (Exponential(), "signs"),
    (Softmax(3), "classes"),
)
SHAPES = (
    "one row", "one row each", "one client", "collinear", "zero column", "odd column", "odd row", "all zero",
    "equal rows", "wide", "plain",
)  # fmt: skip
ODD = (1e-8, 1e8, 1e-36, 1e36, 1e-150, 1e150)  # sizes: ordinary, at the limits of what is decided, beyond


def rows_of(rng: np.random.Generator, shape: str) -> tuple[np.ndarray, np.ndarray]:
    """Return features of few rows, and whose they are."""
    d, K = int(rng.integers(1, 4)), int(rng.integers(2, 4))
    sizes = {"one row": [1], "one row each": [1] * K, "one client": [5], "wide": [2] * K}.get(shape)
    sizes = rng.integers(1, 5, K).tolist() if sizes is None else sizes
    n, d = int(np.sum(sizes)), max(2, d) if "column" in shape or shape == "collinear" else d
    X = rng.normal(size=(n, 2 * n + 1 if shape == "wide" else d))
    if shape == "collinear":
        X[:, 1] = 2.0 * X[:, 0]
    elif shape == "zero column":
        X[:, 0] = 0.0
    elif shape == "odd column":
        X[:, 0] *= float(rng.choice(ODD))
    elif shape == "odd row":
        X[0] *= float(rng.choice(ODD))
    elif shape == "all zero":
        X[:] = 0.0
    elif shape == "equal rows":
        X[:] = X[0]
    return X * float(rng.choice([1.0, 1.0, *ODD])), np.repeat(np.arange(len(sizes)), sizes)


def labels_of(rng: np.random.Generator, kind: str, n: int) -> np.ndarray:
    """Return numbers of some scale, signs or classes; constant in a third of the cases."""
    y = {
        "numbers": rng.normal(size=n) * float(rng.choice([0.0, 1.0, 1.0, *ODD])),
        "signs": rng.choice([-1.0, 1.0], n),
        "classes": rng.integers(0, 3, n).astype(float),
    }[kind]
    return np.full(n, y[0]) if rng.random() < 1 / 3 else y


def made(rng: np.random.Generator) -> tuple[Problem, str]:
    """Return a problem with one model, and what is odd about it."""
    shape, (loss, kind) = str(rng.choice(SHAPES)), LOSSES[int(rng.integers(len(LOSSES)))]
    X, who = rows_of(rng, shape)
    y, l2 = labels_of(rng, kind, len(X)), float(rng.choice([0.0, 0.0, 1e-12, 0.1, 1e6]))
    domain = who if rng.random() < 0.5 else None
    fed = Federation.from_arrays(X, y, who, domain)
    return Problem(fed, loss, l2, "uniform" if rng.random() < 0.5 else None), f"{shape}, {loss!r}, l2 = {l2:g}"


def vertical(rng: np.random.Generator, p: Problem) -> Any:
    """Return the columns at one or two owners."""
    X, d = np.asarray(p.federation.X), p.federation.d
    cut = d if rng.random() < 0.3 else max(1, d // 2)
    blocks = [block for block in (X[:, :cut], X[:, cut:]) if block.shape[1]]
    return VerticalProblem(VerticalFederation.from_blocks(blocks, p.federation.y), p.loss, p.l2 or 1e-3)


def hybrid(rng: np.random.Generator, p: Problem) -> Any:
    """Return a grid of as many blocks as there are rows and columns for."""
    n, d = p.federation.n, p.federation.d
    grid = HybridFederation.from_grid(p.federation.X, p.federation.y, min(2, n), min(2, d))
    return HybridProblem(grid, p.loss, p.l2 or 1e-3)


def game(rng: np.random.Generator, p: Problem) -> Any:
    """Return the clients as players."""
    return GameProblem(p.federation, p.loss, float(rng.choice([1e-3, 1.0, 1e6])))


def invariant(rng: np.random.Generator, p: Problem) -> Any:
    """Return the clients as environments."""
    return InvariantProblem(p.federation, p.loss, float(rng.choice([0.0, 1.0, 1e6])))


def tasks(rng: np.random.Generator, p: Problem) -> Any:
    """Return the clients as tasks."""
    relation = MeanRegularised(1.0, 0.5) if rng.random() < 0.5 else Independent(p.l2 or 1e-3)
    return MultiTaskProblem(p.federation, p.loss, relation)


def posterior(rng: np.random.Generator, p: Problem) -> Any:
    """Return the clients' posterior, with private parameters or without."""
    more: dict[str, Any] = {"private_precision": 2.0} if rng.random() < 0.5 else {}
    covariance = "full" if rng.random() < 0.5 else "diagonal"
    return GaussianPosteriorProblem(p.federation, p.loss, prior_precision=0.5, covariance=covariance, **more)


BUILDERS: dict[type, Callable[[np.random.Generator, Problem], Any]] = {
    VerticalProblem: vertical,
    HybridProblem: hybrid,
    GameProblem: game,
    InvariantProblem: invariant,
    MultiTaskProblem: tasks,
    GaussianPosteriorProblem: posterior,
    BoostingProblem: lambda rng, p: as_stumps(p),
    EnsembleProblem: lambda rng, p: as_list(p),
}


def rules_of(theorem: Theorem) -> list[Any]:
    """Return the rules by which the theorem's own checks set their methods."""
    own_rules = [theorem.method, *(c.method for c in theorem.checks if isinstance(c, Check))]
    return [rule for rule in own_rules if rule is not None]


def method_for(rng: np.random.Generator, theorem: Theorem, problem: Any, start: np.ndarray, rounds: int) -> Any:
    """Return a method by one of the theorem's rules; now and then one by another theorem's, or FedAvg."""
    kind = rng.random()
    if kind < 0.1:
        return FedAvg(step_size=float(rng.choice([0.1, 1e-300, 1e100])), local_steps=2)
    if kind < 0.2 or not isinstance(problem, theorem.kind):
        others = [other for other in THEOREMS.values() if isinstance(problem, other.kind) and rules_of(other)]
        theorem = others[int(rng.integers(len(others)))] if others else theorem
    rules = rules_of(theorem)
    return rules[int(rng.integers(len(rules)))].make(theorem, problem, start, rounds)


def asked(rng: np.random.Generator, theorem: Theorem) -> tuple[str, str]:
    """Ask the theorem about one setting by one of two doors: what came of it, and the setting in words."""
    with np.errstate(all="ignore"):
        plain, words = made(rng)
    build = BUILDERS.get(theorem.kind)
    wrong = build is None or rng.random() < 0.1  # a problem of a wrong kind, unless the theorem is about any
    rounds, door = int(rng.choice([1, 2, 3, min(theorem.rounds, 12)])), float(rng.random())
    if wrong and door < 0.5:
        check = Check(
            own_instance(plain, words), rules_of(theorem)[int(rng.integers(len(rules_of(theorem))))], rounds=rounds
        )
        found = carried_out(theorem, check, most=64)
        return judged(found.outcome.name, found.verdict, untrue(theorem, found.verdict)), f"{words}, carried out"
    problem = plain if wrong or build is None else build(rng, plain)
    kind = int(rng.integers(3))
    start = np.zeros(problem.model_shape) if kind < 2 else rng.normal(size=problem.model_shape)
    if kind == 1 and hasattr(problem, "solve"):
        start = np.reshape(np.asarray(problem.solve().w, dtype=float), problem.model_shape)
    method = method_for(rng, theorem, problem, start, rounds)
    s = Setting(problem, method, rounds, start)
    verdict = verify(theorem, s.problem, s.method, rounds=s.rounds, start=s.start, most=64)
    told = judged(verdict.outcome.name, verdict, untrue(theorem, verdict, s))
    return told, f"{words}, {method!r}, {rounds} rounds, start {start!r}"


def judged(outcome: str, verdict: Any, wrong: str = "") -> str:
    """Return the outcome, with the verdict where it is VIOLATED or untrue."""
    if wrong:
        return f"UNTRUE: {wrong}: {verdict}"
    return f"VIOLATED: {verdict}" if outcome == Outcome.VIOLATED.name else outcome


def untrue(theorem: Theorem, verdict: Any, s: Setting | None = None) -> str:
    """Return what is not as a verdict says, or nothing."""
    outcome, bound = verdict.outcome, verdict.bound
    if outcome not in (Outcome.HOLDS, Outcome.VACUOUS):
        return "" if verdict.reason or bound is not None else "no reason is given"
    slack = slack_of(bound)
    within = max(verdict.rounding, TINIEST) + (slack if abs(bound.value) <= slack else 0.0)
    zero = max(abs(verdict.low), abs(verdict.high)) <= within
    if math.isinf(bound.value) or zero or verdict.high == -math.inf:
        return "" if outcome is Outcome.VACUOUS else "nothing could have failed"
    if outcome is Outcome.VACUOUS:
        return "something could have failed"
    if s is None or theorem.equation or not verdict.low > 0.0:
        return ""
    if not verdict.trajectories and not is_random(s):
        run = float(theorem.draw(s, [s.rounds], s.seed, 1)[0, 0])
        if run - theorem.rounding(s, run) - verdict.rounding > bound.value + slack:
            return f"the run itself measures {run!r}"
    return ""


def trial(rng: np.random.Generator) -> dict[str, Any]:
    """Ask one theorem about several problems: nothing may be violated or untrue, and errors must speak our language."""
    _, number = rng.bit_generator.seed_seq.entropy  # type: ignore[attr-defined]
    theorem = list(THEOREMS.values())[int(number) % len(THEOREMS)]
    said, wrong = Counter[str](), []
    for _ in range(ASKED):
        try:
            outcome, words = asked(rng, theorem)
        except Exception as error:
            told = raised(error)
            outcome, words = told["outcome"], f"{told['type']}: {told['message']} at {told['where']}"
        said[outcome.partition(":")[0].lower()] += 1
        if outcome == "raw" or outcome.startswith(("VIOLATED", "CONTRADICTED", "UNTRUE")):
            wrong.append((outcome, words))
    assert not wrong, (theorem.name, len(wrong), wrong[:2])
    return {name: float(count) for name, count in said.items()} | {"theorem": theorem.name}
