"""What is equal bit for bit and what only up to rounding: every exported method, compiled; docs/reproducibility.md."""

from __future__ import annotations

import functools
import os
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from test_contract import BOOSTING, EVERY, GAMES, NODES, kinds
from threadpoolctl import threadpool_limits

from fedconvex import Federation, Logistic, Problem, Softmax, Squared, run
from fedconvex.driver.cycles import leaves
from fedconvex.problems import (
    Covariance,
    Dictionary,
    EnsembleProblem,
    GameProblem,
    GaussianPosteriorProblem,
    InvariantProblem,
    MeanRegularised,
    MultiTaskProblem,
    StumpProblem,
)

CLIENTS, ROUNDS = 4, 5
DOMAINS = ("AFL", "Optimistic", "Agnostic", "Approx", "Softmax")  # methods that sum over domains
ROUNDING = 1e-9  # of the largest entry: what is not equal bit for bit must agree to this, after five rounds
# what is done otherwise, and for whom states, and traces, are equal bit for bit; docs/reproducibility.md has the table


def everybody(name: str) -> bool:
    """All methods."""
    return True


def no_boosting(name: str) -> bool:
    """Methods that learn one model, or one per task."""
    return name not in BOOSTING


def by_client(name: str) -> bool:
    """Federated methods whose server sums over clients by their keys, and not over rows or domains."""
    return (
        name not in {*NODES, *BOOSTING, *GAMES, "IRMv1", "VIRTUAL"}
        and hasattr(EVERY[name], "local")
        and not name.startswith(DOMAINS)
    )


def nobody(name: str) -> bool:
    """None for certain."""
    return False


BITWISE = {
    "once more": (everybody, everybody),
    "2, 3 and 8 threads": (everybody, everybody),
    "resumed": (everybody, everybody),
    "clients in another order": (by_client, nobody),
    "CSR rows": (nobody, nobody),
    "alone": (no_boosting, nobody),
    "two BLAS threads": (no_boosting, nobody),
}


def trial(rng: np.random.Generator) -> dict[str, Any]:
    """A method on a random problem: the same run again, otherwise, and how far apart their states and traces are."""
    name = list(EVERY)[rng.integers(len(EVERY))]
    kind = kinds(name)[rng.integers(len(kinds(name)))]
    wide = kind in ("linear", "tasks") and rng.random() < 0.3  # where BLAS takes several threads
    seed, d = int(rng.integers(2**31)), 300 if wide else 6
    found, wrong = {}, {}
    for what, one, other in differences(name, kind, seed, d, int(rng.integers(1, ROUNDS))):
        for part, equal in zip(("state", "trace"), BITWISE[what], strict=True):
            x = apart(*({k: v for k, v in r.items() if k.startswith(part)} for r in (one, other)))
            found[f"{what}: {part}"] = max(x, found.get(f"{what}: {part}", 0.0))
            if x > (0.0 if equal(name) else ROUNDING):
                wrong[f"{what}: {part}"] = x
    assert not wrong, (name, kind, seed, d, wrong)
    return {"name": name, "kind": kind, "d": d} | found


def differences(name: str, kind: str, seed: int, d: int, broken_off: int) -> Iterator[tuple[str, dict, dict]]:
    """Yield what was done otherwise, and both results; only the models, values and gaps where no more can be equal."""
    make, go = functools.partial(problem_of, kind, seed, d), functools.partial(outcome, EVERY[name])
    with threadpool_limits(1, "blas"):
        one = go(make())
        yield "once more", one, go(make())
        for threads in (2, 3, 8):
            yield "2, 3 and 8 threads", one, go(make(), threads=threads)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "c")
            go(make(), rounds=broken_off, checkpoint=path)
            yield "resumed", one, go(make(), checkpoint=path)
        if hasattr(EVERY[name], "local") and name not in (
            "MOCHA theta",
            "IRMGame",
        ):  # not rows drawn by number, nor a setting per client, nor players who move in their order
            other = measured(go(make(order=np.random.default_rng(seed).permutation(CLIENTS))))
            if (
                "tasks" in kind or name in BOOSTING or name in GAMES
            ):  # models, strategies and classifiers are those of clients, in their order
                other["state/w"] = one["state/w"]  # nothing to compare
            yield "clients in another order", measured(one), other
        if name not in BOOSTING:
            yield "CSR rows", measured(one), measured(go(make(csr=True)))
        first = {k: v[:1] if k == "state/w" else v[:, 0] for k, v in measured(one).items()}
        yield "alone", *as_far(first, measured(go(make(), trajectories=1)))
    with threadpool_limits(2, "blas"):
        yield "two BLAS threads", one, go(make())


def outcome(
    method: Any, problem: Any, rounds: int = ROUNDS, trajectories: int = 2, **how: Any
) -> dict[str, np.ndarray]:
    """State and trace of a run, without the seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = run(method, problem, rounds=rounds, trajectories=trajectories, seed=3, tol=0.0, progress=False, **how)
    trace = {f"trace/{k}": np.asarray(v) for k, v in found.trace.items() if k != "seconds"}
    return {f"state/{k}": np.asarray(v) for k, v in leaves(found.state)} | trace


def measured(result: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The models, values and gaps of a result."""
    return {k: result[k] for k in ("state/w", "trace/value", "trace/gap")}


def as_far(first: dict, alone: dict) -> tuple[dict, dict]:
    """Return the rounds of both: a run ends once all its trajectories have diverged, one alone sooner than several."""
    n, values = len(alone["trace/value"]), alone["trace/value"]
    if n == len(first["trace/value"]):
        return first, alone
    assert values[-1] > 1e9 * (1.0 + abs(values[0])), values  # nothing else ends it, tol being 0
    return {k: alone[k] if k == "state/w" else v[:n] for k, v in first.items()}, alone


def apart(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    """Largest difference of arrays by name, relative to the largest entry of each; gaps relative to the value's."""
    worst = 0.0
    for name, x in a.items():
        y = b[name]
        assert x.shape == y.shape, (name, x.shape, y.shape)
        if np.array_equal(x, y, equal_nan=x.dtype.kind == "f"):
            continue
        size = max(np.abs(x[np.isfinite(x)]).max(initial=0.0), 1e-300)
        if name == "trace/gap":
            size = max(size, np.abs(a["trace/value"]).max())
        worst = max(worst, float(np.abs(np.where(x == y, 0.0, x - y)).max() / size))
    return worst


def problem_of(kind: str, seed: int, d: int, csr: bool = False, order: np.ndarray | None = None) -> Any:
    """A problem of a kind with four unequal clients; in another order, or on sparse rows, it is the same problem."""
    rng = np.random.default_rng(seed)
    boosting, labels = kind in ("classifiers", "stumps"), np.array(["north", "south", "east", "west"])
    pairs = []
    for n in rng.integers(9, 40, size=CLIENTS):
        X = rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.6)
        X[:, 0], z = 1.0, X @ rng.normal(size=d) + rng.normal(size=n)
        y = {"linear": z, "softmax": np.digitize(z, [-1.0, 1.0]).astype(float)}.get(kind, np.where(z > 0, 1.0, -1.0))
        pairs.append((sp.csr_array(X) if csr or (kind == "sparse tasks") else X, y))
    places = np.arange(CLIENTS) if order is None else order
    domains = [("a", "b")[k % 2] for k in places] if boosting else None
    fed = Federation.from_clients([pairs[k] for k in places], labels=labels[places], domains=domains)
    if boosting:
        return StumpProblem(fed) if kind == "stumps" else EnsembleProblem(fed, Dictionary.stumps(fed, cuts=2))
    if "tasks" in kind:
        relation = Covariance(0.3, 2.0) if kind == "learned tasks" else MeanRegularised(1.0, 0.4)
        return MultiTaskProblem(fed, Logistic(), relation, "mean")
    if kind == "players":
        return GameProblem(fed, Squared(), 2.0)
    if kind == "environments":
        return InvariantProblem(fed, Squared(), 0.1)
    if kind == "linear posterior":
        return GaussianPosteriorProblem(fed, Squared(), private_precision=2.0, covariance="full")
    if kind == "logistic posterior":
        return GaussianPosteriorProblem(fed, Logistic())
    return Problem(fed, {"linear": Squared(), "logistic": Logistic(), "softmax": Softmax(3)}[kind], l2=0.1)


def table(rows: list[dict[str, Any]]) -> str:
    """Return what was done otherwise, for how many runs the bits were equal, and the largest difference."""
    families = {
        "one model": lambda r: r["name"] not in {*NODES, *BOOSTING},
        "a model per task": lambda r: r["name"] in NODES,
        "boosting": lambda r: r["name"] in BOOSTING,
    }
    lines = ["| done otherwise | methods | runs | equal bit for bit | largest difference |", "|---|---|---:|---:|---:|"]
    for what in (f"{what}: {part}" for what in BITWISE for part in ("state", "trace")):
        for family, belongs in families.items():
            found = [r[what] for r in rows if belongs(r) and what in r]
            if found:
                shown = "0" if max(found) == 0.0 else f"{max(found):.1e}"
                lines.append(f"| {what} | {family} | {len(found)} | {found.count(0.0)} | {shown} |")
    return "\n".join(lines)
