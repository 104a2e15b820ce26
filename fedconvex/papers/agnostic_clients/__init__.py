"""FedAvg and agnostic federated learning on three clients, rows divided at random and by label.

1. Three clients, each a domain: rows at random (equal sizes; 70, 20 and 10 % of them), or by label (all rows; all, 30 %
   and 10 % of the clients' rows). By label, a client holds a run of consecutive classes: 0-3, 4-6, 7-9 of ten.
2. Multinomial logistic regression with l2 = 0.001. A client is tested on rows of its own kind that nobody trained on.
3. Several divisions into training and test rows; on each, exactly: the minimiser of the pooled loss, where FedAvg and
   FedSGD are to arrive, and the minimax solution, where AFL is to arrive.
4. Differences between the two models on the same rows, with intervals over the divisions.
5. On the first division the methods themselves, each with the best step sizes of a small grid: how far the worst
   client's training objective is above its least value, over rounds and floats sent.

The comparison is the usual demonstration of AFL (Mohri, Sivek, Suresh, ICML 2019) on images; its sizes are chosen here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from fedconvex._check import bad, whole
from fedconvex.datasets import load_bundled
from fedconvex.driver import iterate
from fedconvex.driver import run as run_method
from fedconvex.federation import Federation
from fedconvex.losses import Softmax
from fedconvex.methods import AFL, AgnosticFedAvg, FedAvg, FedSGD, OptimisticAFL
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.images import coarser, read_images
from fedconvex.papers.style import COLOURS, blank
from fedconvex.problems import Problem
from fedconvex.report import DomainScores, domain_scores
from fedconvex.simplex.uncertainty import Simplex
from fedconvex.solvers.minimax import measure_minimax

__all__ = ["DIVISIONS", "EXPERIMENT", "Division", "Outcome", "Split", "load_splits", "run"]

CLIENTS, L2 = 3, 1e-3
MOST_PARAMETERS = 1000  # of large images, averaged: exact solutions take seconds
TRAIN, TEST = 3000, 2000  # rows of a division of a large archive; divisions share none
SHARE_TRAIN = 2 / 3  # of bundled digits; divisions overlap
SAME = 0.01  # a difference in accuracy, and one of 0.05 in lambda, counts as none
SAME_MIX = 0.05
LEVEL = 0.95
MODELS = ("FedAvg", "AFL")  # the two exact solutions
STEPS, DOMAIN_STEP_SIZES = (0.3, 1.0, 3.0, 10.0), (0.1, 1.0)  # grids of the runs; local steps take a fifth of the step
TARGETS = (0.1, 0.03, 0.01)  # of the worst client's objective above its least value


class Division(NamedTuple):
    """How rows come to three clients."""

    name: str
    by_label: bool
    shares: tuple[float, ...]  # of all rows at random; by label: of the client's own rows


DIVISIONS = (
    Division("iid, equal", False, (1 / 3, 1 / 3, 1 / 3)),
    Division("iid, unequal", False, (0.7, 0.2, 0.1)),
    Division("by label, equal", True, (1.0, 1.0, 1.0)),
    Division("by label, unequal", True, (1.0, 0.3, 0.1)),
)


class Split(NamedTuple):
    """Training and test rows; the last column of X is one."""

    X: np.ndarray  # (n, d)
    y: np.ndarray  # (n,) 0, ..., C - 1
    X_test: np.ndarray  # (m, d)
    y_test: np.ndarray  # (m,)


class Data(NamedTuple):
    """Divisions of one data set."""

    name: str
    splits: tuple[Split, ...]
    overlap: float  # m/n where divisions are drawn from the same rows, 0 where they share none
    classes: int
    about: str


class Plan(NamedTuple):
    """How large the experiment is."""

    seeds: int
    divisions: tuple[Division, ...]
    runs: tuple[str, ...]  # divisions on which the methods are run
    rounds: int
    every: int  # rounds between two points of a curve
    block: int = 1  # of pixels averaged, bundled digits


FULL = Plan(10, DIVISIONS, ("iid, equal", "by label, unequal"), 300, 5)
LARGE = Plan(5, DIVISIONS, ("iid, equal", "by label, unequal"), 150, 5)
QUICK = Plan(3, (DIVISIONS[0], DIVISIONS[3]), ("by label, unequal",), 100, 5, 2)


class Outcome(NamedTuple):
    """One model on one division of the rows."""

    division: str
    seed: int
    model: str
    sizes: np.ndarray  # (3,) training rows
    objective: np.ndarray  # (3,) of the clients on training rows, l2 term included
    gap: float  # certified suboptimality in what the model minimises
    domain_weights: np.ndarray  # (3,) lambda
    test: DomainScores

    @property
    def shares(self) -> np.ndarray:
        """n_k/n, (3,)."""
        return self.sizes / self.sizes.sum()


class Curve(NamedTuple):
    """A method over its rounds, with the step sizes that were best."""

    division: str
    method: str
    step_size: float
    domain_step_size: float  # NaN where the method has none
    floats: int  # sent a round, by everybody
    rounds: np.ndarray  # (T,)
    above: np.ndarray  # (T,) the worst client's objective minus a certified lower bound of its least value
    domain_weights: np.ndarray  # (3,) lambda at the end
    edge: bool  # whether the step size is the smallest or largest of its grid
    test: DomainScores


# ---------------------------------------------------------------- data


def load_splits(path: str | os.PathLike[str] | None = None, splits: int = 10, seed: int = 0, block: int = 1) -> Data:
    """Return several divisions into training and test rows.

    Parameters
    ----------
    path : path, optional
        An npz archive with x_train (n, ...), y_train (n,), x_test (m, ...), y_test (m,); labels 0, ..., C - 1, at least
        three classes. Images are averaged over the smallest blocks that leave at most 1,000 parameters. Every division
        has rows of its own, at most 3,000 to train and 2,000 to test on. Default: the 1,797 digits of scikit-learn, two
        thirds of them drawn anew for every division.
    splits : int
        Number of divisions.
    seed : int
        Of the draws.
    block : int
        Average the bundled digits over blocks of so many pixels a side.

    Raises
    ------
    ValueError
        If the file is no such archive, has fewer than three classes, fewer than 30 rows a division, or too many
        parameters.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> from fedconvex.papers.agnostic_clients import load_splits
    >>> data = load_splits(splits=2)
    >>> [(s.X.shape, s.X_test.shape) for s in data.splits]
    [((1198, 65), (599, 65)), ((1198, 65), (599, 65))]
    """
    rng = np.random.default_rng(seed)
    if path is None:
        digits = load_bundled("digits", standardised=False)
        X, n = coarser(digits.X.reshape(-1, 8, 8), block), round(SHARE_TRAIN * len(digits.y))
        found = []
        for _ in range(splits):
            order = rng.permutation(len(digits.y))
            train, test = order[:n], order[n:]
            found.append(_split(X[train], digits.y[train], X[test], digits.y[test]))
        return Data("digits of scikit-learn (8 x 8)", tuple(found), (len(digits.y) - n) / n, 10, _averaged(block))
    who, arrays = f"--data {Path(path).name}", read_images(path)
    classes = int(arrays["y_train"].max()) + 1
    if classes < CLIENTS:
        raise bad(f"{who}: y_train", f"have at least {CLIENTS} classes", classes)
    block = _block(who, arrays["x_train"].shape[1:], classes)
    sizes = [min(most, len(arrays[f"x_{part}"]) // splits) for part, most in (("train", TRAIN), ("test", TEST))]
    if min(sizes) < 30:
        raise bad(f"{who}: rows", f"be at least {30 * splits} to train and to test on", f"{min(sizes) * splits}")
    orders = [rng.permutation(len(arrays[f"x_{part}"])) for part in ("train", "test")]
    found = []
    for s in range(splits):
        train, test = (o[s * m : (s + 1) * m] for o, m in zip(orders, sizes, strict=True))
        X, X_test = coarser(arrays["x_train"][train], block), coarser(arrays["x_test"][test], block)
        found.append(_split(X, arrays["y_train"][train], X_test, arrays["y_test"][test]))
    return Data(Path(path).stem, tuple(found), 0.0, classes, _averaged(block))


def _averaged(block: int) -> str:
    return f"images averaged over {block} x {block} pixels, " if block > 1 else ""


def _block(who: str, shape: tuple[int, ...], classes: int) -> int:
    """Return the smallest block of pixels that leaves at most 1,000 parameters."""
    size = math.prod(shape)
    for b in range(1, max(shape) + 1):
        fits = b == 1 or (len(shape) == 2 and all(side % b == 0 for side in shape))
        if fits and classes * (size // b**2 + 1) <= MOST_PARAMETERS:
            return b
    must = f"have at most {MOST_PARAMETERS} parameters, classes times (features + 1), by averaging whole blocks"
    raise bad(f"{who}: images", must, f"{classes} x ({size} + 1) of shape {shape}")


def _split(X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray) -> Split:
    """Scale by the largest entry of X, and append a column of ones."""
    scale = float(np.abs(X).max()) or 1.0
    X, X_test = (np.hstack([A / scale, np.ones((len(A), 1))]) for A in (X, X_test))
    return Split(X, y.astype(float), X_test, y_test.astype(float))


def clients_of(division: Division, y: np.ndarray, classes: int, rng: np.random.Generator, all_rows: bool) -> np.ndarray:
    """Return the client of every row (n,), -1 for rows that nobody gets.

    By label, ``all_rows`` leaves nothing out: tests have all rows of a client's classes.
    """
    n = len(y)
    if not division.by_label:
        edges = np.round(np.cumsum((0.0, *division.shares)) * n).astype(int)  # 1
        return rng.permutation(np.repeat(np.arange(CLIENTS), np.diff(edges)))
    groups = np.array_split(np.arange(classes), CLIENTS)  # 1
    owner = np.repeat(np.arange(CLIENTS), [len(g) for g in groups])[y.astype(int)]
    for k, share in enumerate(division.shares):
        mine = rng.permutation(np.flatnonzero(owner == k))
        owner[mine[len(mine) if all_rows else max(1, round(share * len(mine))) :]] = -1
    return owner


def _names(division: Division, classes: int) -> list[str]:
    if not division.by_label:
        return ["A", "B", "C"]
    groups = np.array_split(np.arange(classes), CLIENTS)
    return [f"{chr(65 + k)}: class {g[0]}" + (f"-{g[-1]}" if len(g) > 1 else "") for k, g in enumerate(groups)]


def problems_of(data: Data, division: Division, s: int, seed: int) -> tuple[Problem, Federation]:
    """Return the problem of one division, and the federation of its test rows.

    Raises
    ------
    ValueError
        If a client has no rows to train or to test on.
    """
    split, names = data.splits[s], np.array(_names(division, data.classes))
    rng = np.random.default_rng([seed, s, DIVISIONS.index(division)])
    made = []
    for X, y, part in ((split.X, split.y, "train"), (split.X_test, split.y_test, "test")):
        owner = clients_of(division, y, data.classes, rng, part == "test")
        if np.unique(owner[owner >= 0]).size < CLIENTS:
            raise bad(f"{data.name}: y_{part}", f"have rows for each of {', '.join(names)}", f"{len(y)} rows without")
        kept = owner >= 0
        made.append(Federation.from_arrays(X[kept], y[kept], names[owner[kept]]))
    return Problem(made[0], Softmax(data.classes), L2), made[1]  # 2


# ---------------------------------------------------------------- measuring


def run(*, quick: bool = False, seed: int = 0, data: Any = None, progress: Progress | None = None) -> Findings:
    """Run the experiment.

    Parameters
    ----------
    quick : bool
        A smaller version: two kinds of division, three seeds, coarser images and fewer rounds.
    seed : int
        Of all divisions and runs.
    data : path, optional
        As for `load_splits`.
    progress : callable, optional
        Takes the share done and what is being done.

    Returns
    -------
    Findings
    """
    seed = whole("afl-clients: seed", seed, low=0)
    plan = QUICK if quick else FULL if data is None else LARGE
    tell = progress or (lambda share, doing: None)
    tell(0.0, "reading")
    loaded = load_splits(data, plan.seeds, seed, plan.block)
    outcomes: list[Outcome] = []
    curves: list[Curve] = []
    work = len(plan.divisions) * plan.seeds
    for j, division in enumerate(plan.divisions):
        for s in range(plan.seeds):
            tell(0.6 * (j * plan.seeds + s) / work, f"{division.name}: exact solutions, {s + 1} of {plan.seeds}")
            outcomes += _solved(loaded, division, s, seed)
    for j, division in enumerate(d for d in plan.divisions if d.name in plan.runs):

        def at(share: float, name: str, j: int = j, division: Division = division) -> None:
            tell(0.6 + 0.4 * (j + share) / len(plan.runs), f"{division.name}: {name}")

        curves += _raced(loaded, division, plan, seed, at)
    tell(1.0, "done")
    title = f"FedAvg and AFL on three clients, rows divided at random and by label: {loaded.name}"
    rows = list(_differences(outcomes, loaded.overlap))
    tables = {
        "clients": list(_clients(outcomes)),
        "differences": rows,
        "outcomes": list(_long(outcomes)),
        "runs": list(_runs(curves, outcomes)),
        "curves": list(_points(curves)),
    }
    figures = {"clients": _draw_clients(outcomes, loaded), "runs": _draw_runs(curves, outcomes)}
    claims = _claims(outcomes, curves, rows)
    return Findings(title, claims, _notes(loaded, plan, outcomes, curves, quick), figures, tables)


EXPERIMENT = Experiment(
    "afl-clients",
    "FedAvg and agnostic federated learning on three clients, rows divided at random and by label",
    run,
    "optional npz with x_train, y_train, x_test, y_test (MNIST, Fashion-MNIST); default the bundled digits",
)


def _solved(data: Data, division: Division, s: int, seed: int) -> Iterator[Outcome]:
    problem, test = problems_of(data, division, s, seed)
    pooled, minimax = problem.solve(), problem.solve_minimax()  # 3
    for model, best, mix in (("FedAvg", pooled, problem.weights), ("AFL", minimax, minimax.domain_weights)):
        scores = domain_scores(problem, best.w, test, domain_weights=mix, level=LEVEL)
        values = problem.domain_values(best.w)
        yield Outcome(division.name, s, model, problem.federation.sizes, values, best.gap, np.array(mix), scores)


def _methods(batch: int) -> Iterator[tuple[str, Any, np.ndarray, np.ndarray | None]]:
    """Yield name, method, and the step sizes of its trajectories, of the model and of the mixture."""
    alone = np.array(STEPS)
    yield "FedSGD", FedSGD(step_size=alone), alone, None
    few = alone / 5.0
    yield "FedAvg, 5 steps", FedAvg(step_size=few, local_steps=5), few, None
    few = alone / 10.0
    yield f"FedAvg, 1 epoch of {batch}", FedAvg(step_size=few, epochs=1, batch_size=batch), few, None
    pair, mix = np.repeat(STEPS, len(DOMAIN_STEP_SIZES)), np.tile(DOMAIN_STEP_SIZES, len(STEPS))
    yield "AFL", AFL(step_size=pair, domain_step_size=mix), pair, mix
    yield f"AFL, batches of {batch}", AFL(step_size=pair, domain_step_size=mix, batch_size=batch), pair, mix
    yield "OptimisticAFL", OptimisticAFL(step_size=pair, domain_step_size=mix), pair, mix
    few = pair / 5.0
    yield "AgnosticFedAvg, 5 steps", AgnosticFedAvg(step_size=few, domain_step_size=mix, local_steps=5), few, mix


def _raced(data: Data, division: Division, plan: Plan, seed: int, at: Any) -> Iterator[Curve]:
    problem, test = problems_of(data, division, 0, seed)
    value, gap = measure_minimax(problem, Simplex(), np.zeros((1, *problem.model_shape)))
    lower = float(value[0] - gap[0])
    batch = int(min(20, problem.federation.sizes.min()))
    todo = list(_methods(batch))
    for i, (name, method, sizes, mixes) in enumerate(todo):
        R, path, rounds, state = sizes.size, [], [], None
        for t, state in iterate(method, problem, rounds=plan.rounds, seed=seed, trajectories=R):  # 5
            if t % plan.every == 0 or t == plan.rounds:
                with np.errstate(all="ignore"):
                    path.append(problem.domain_values(state.w))
                rounds.append(t)
                at((i + t / plan.rounds) / len(todo), f"{name}, round {t}")
        values = np.array(path)  # (T, R, 3)
        goal = values[-1] @ problem.weights if mixes is None else values[-1].max(axis=1)
        best = int(np.argmin(np.where(np.isfinite(goal), goal, np.inf)))
        mix = problem.weights if mixes is None else state.domain_weights[best]  # type: ignore[union-attr]
        one = run_method(method, problem, rounds=1, trajectories=R, tol=0.0).trace
        floats = int(one["floats_down"][-1] + one["floats_up"][-1])
        edge = bool(sizes[best] in (sizes.min(), sizes.max()))
        scores = domain_scores(problem, state.w[best], test, domain_weights=mix, level=LEVEL)  # type: ignore[union-attr]
        step, domain_step_size = float(sizes[best]), math.nan if mixes is None else float(mixes[best])
        above = values[:, best].max(axis=1) - lower
        yield Curve(division.name, name, step, domain_step_size, floats, np.array(rounds), above, mix, edge, scores)


# ---------------------------------------------------------------- tables

MEASURES = {
    "worst loss": lambda o: o.test.worst_loss,
    "mean loss": lambda o: float(o.shares @ o.test.loss),
    "worst accuracy": lambda o: o.test.worst_accuracy,
    "mean accuracy": lambda o: float(o.shares @ o.test.accuracy),
    "accuracy, clients alike": lambda o: float(np.mean(o.test.accuracy)),
    "accuracy spread": lambda o: o.test.accuracy_spread,
}


def interval(differences: np.ndarray, overlap: float) -> tuple[float, float, float]:
    """Return the mean of paired differences and its 95 % interval by Student's t.

    Divisions that overlap are not independent: the variance of the mean is then taken as s^2 (1/S + m/n), m test rows
    and n training rows (Nadeau, Bengio, Machine Learning 52 (2003), 239-281).

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.papers.agnostic_clients import interval
    >>> [round(v, 4) for v in interval(np.array([1.0, 2.0, 3.0]), 0.0)]  # 2 -+ 4.303/sqrt(3)
    [2.0, -0.4841, 4.4841]
    """
    S = differences.size
    mean, deviation = float(differences.mean()), float(differences.std(ddof=1))
    half = float(stdtrit(S - 1, 0.5 + 0.5 * LEVEL)) * deviation * math.sqrt(1.0 / S + overlap)
    return mean, mean - half, mean + half


def _pairs(outcomes: Sequence[Outcome], division: str) -> list[tuple[Outcome, Outcome]]:
    """Return the outcomes of FedAvg and AFL, division by division of the rows."""
    mine = [o for o in outcomes if o.division == division]
    kinds = [[o for o in mine if o.model == model] for model in MODELS]
    return list(zip(*kinds, strict=True))


def _kinds(outcomes: Sequence[Outcome]) -> list[str]:
    return list(dict.fromkeys(o.division for o in outcomes))


def _differences(outcomes: Sequence[Outcome], overlap: float) -> Iterator[dict[str, Any]]:  # 4
    for division in _kinds(outcomes):
        pairs = _pairs(outcomes, division)
        rows = {name: np.array([f(b) - f(a) for a, b in pairs]) for name, f in MEASURES.items()}
        rows["worst gains minus mean loses, accuracy"] = rows["worst accuracy"] + rows["mean accuracy"]
        for k, name in enumerate(pairs[0][1].test.domains.tolist()):
            rows[f"lambda minus share, {name}"] = np.array([b.domain_weights[k] - b.shares[k] for _, b in pairs])
        for name, d in rows.items():
            mean, low, high = interval(d, overlap)
            better = int((d > 0).sum()), int((d < 0).sum())
            yield {
                "division": division,
                "AFL minus FedAvg": name,
                "mean": mean,
                "low": low,
                "high": high,
                "up": better[0],
                "down": better[1],
                "seeds": d.size,
            }


def _clients(outcomes: Sequence[Outcome]) -> Iterator[dict[str, Any]]:
    """Yield means over the seeds: a line for every division, model and client."""
    for division in _kinds(outcomes):
        for model in MODELS:
            mine = [o for o in outcomes if (o.division, o.model) == (division, model)]
            for k, name in enumerate(mine[0].test.domains.tolist()):
                accuracy = np.array([o.test.accuracy[k] for o in mine])
                yield {
                    "division": division,
                    "model": model,
                    "client": name,
                    "train rows": round(float(np.mean([o.sizes[k] for o in mine])), 1),
                    "lambda": float(np.mean([o.domain_weights[k] for o in mine])),
                    "objective": float(np.mean([o.objective[k] for o in mine])),
                    "test loss": float(np.mean([o.test.loss[k] for o in mine])),
                    "test accuracy": float(accuracy.mean()),
                    "over seeds": float(accuracy.std(ddof=1)),
                    "binomial s.e.": float(np.mean([o.test.accuracy_error[k] for o in mine])),
                }


def _long(outcomes: Sequence[Outcome]) -> Iterator[dict[str, Any]]:
    for o in outcomes:
        for k, name in enumerate(o.test.domains.tolist()):
            yield {
                "division": o.division,
                "seed": o.seed,
                "model": o.model,
                "client": name,
                "train rows": int(o.sizes[k]),
                "test rows": int(o.test.rows[k]),
                "lambda": float(o.domain_weights[k]),
                "objective": float(o.objective[k]),
                "gap": o.gap,
                "test loss": float(o.test.loss[k]),
                "test accuracy": float(o.test.accuracy[k]),
                "low": float(o.test.accuracy_low[k]),
                "high": float(o.test.accuracy_high[k]),
            }


def _exactly(outcomes: Sequence[Outcome], division: str) -> tuple[Outcome, Outcome]:
    """Return the exact solutions of the division that the methods were run on."""
    return next(pair for pair in _pairs(outcomes, division) if pair[0].seed == 0)


def _above(outcomes: Sequence[Outcome], division: str) -> float:
    """Return how far FedAvg's exact solution leaves the worst client's objective above its least value."""
    pooled, minimax = _exactly(outcomes, division)
    return float(pooled.objective.max() - minimax.objective.max()) + minimax.gap


def _runs(curves: Sequence[Curve], outcomes: Sequence[Outcome]) -> Iterator[dict[str, Any]]:
    for division in dict.fromkeys(c.division for c in curves):
        pooled, minimax = _exactly(outcomes, division)
        for c in (c for c in curves if c.division == division):
            reached = {f"rounds to {target:g}": _first(c, target) for target in TARGETS}
            yield _run_row(
                division,
                c.method,
                c.step_size,
                c.domain_step_size,
                c.floats,
                c.above[-1],
                reached,
                c.domain_weights,
                c.test,
            )
        none = {f"rounds to {target:g}": "" for target in TARGETS}
        for name, o, above in (
            ("exact, pooled", pooled, _above(outcomes, division)),
            ("exact, minimax", minimax, minimax.gap),
        ):
            yield _run_row(division, name, math.nan, math.nan, 0, above, none, o.domain_weights, o.test)


def _run_row(
    division: str, method: str, step: float, domain_step_size: float, floats: int, above: float,
    reached: dict[str, str],
    domain_weights: np.ndarray, test: DomainScores,
) -> dict[str, Any]:  # fmt: skip
    row: dict[str, Any] = {"division": division, "method": method, "step": step, "mix step": domain_step_size}
    row |= {"floats a round": floats or "", **reached, "above the least": float(above)}
    row |= {f"lambda {k + 1}": float(v) for k, v in enumerate(domain_weights)}
    row |= {"worst accuracy": test.worst_accuracy, "of": str(test.least_accurate)}
    worst = int(np.argmin(test.accuracy))
    return row | {"low": float(test.accuracy_low[worst]), "high": float(test.accuracy_high[worst])}


def _first(curve: Curve, target: float) -> str:
    below = np.flatnonzero(curve.above <= target)
    return str(int(curve.rounds[below[0]])) if below.size else f"over {int(curve.rounds[-1])}"


def _points(curves: Sequence[Curve]) -> Iterator[dict[str, Any]]:
    for c in curves:
        for t, above in zip(c.rounds, c.above, strict=True):
            yield {
                "division": c.division,
                "method": c.method,
                "round": int(t),
                "floats": int(t) * c.floats,
                "above the least": float(above),
            }


# ---------------------------------------------------------------- claims


def _claims(outcomes: Sequence[Outcome], curves: Sequence[Curve], rows: Sequence[dict[str, Any]]) -> tuple[Claim, ...]:
    """Judge what the literature says of the two, by intervals over the divisions."""
    found = {(r["division"], r["AFL minus FedAvg"]): r for r in rows}
    claims = []
    for division in _kinds(outcomes):
        if division.startswith("iid"):
            mine = [found[division, name] for name in ("worst accuracy", "mean accuracy")]
            claims.append(
                Claim(
                    f"{division}: FedAvg and AFL agree; accuracies differ by noise, or by less than a point",
                    all(_none(r, SAME) for r in mine),
                    "AFL minus FedAvg, " + "; ".join(_said(r) for r in mine),
                )
            )
            mine = [r for (d, name), r in found.items() if d == division and name.startswith("lambda")]
            claims.append(
                Claim(
                    f"{division}: AFL weighs the clients about by their rows; off by noise, or by less than 0.05",
                    all(_none(r, SAME_MIX) for r in mine),
                    "; ".join(_said(r) for r in mine),
                )
            )
            continue
        loss, accuracy = found[division, "worst loss"], found[division, "worst accuracy"]
        both = found[division, "worst gains minus mean loses, accuracy"]
        claims += [
            Claim(
                f"{division}: AFL lowers the worst client's test loss",
                loss["high"] < 0.0,
                f"AFL minus FedAvg, {_said(loss)}",
            ),
            Claim(
                f"{division}: AFL raises the worst client's test accuracy",
                accuracy["low"] > 0.0,
                f"AFL minus FedAvg, {_said(accuracy)}",
            ),
            Claim(
                f"{division}: the mean accuracy, weighed by rows, falls by less than the worst client gains",
                both["low"] > 0.0,
                f"AFL minus FedAvg, {_said(found[division, 'mean accuracy'])}; {_said(both)}",
            ),
        ]
    for division in dict.fromkeys(c.division for c in curves):
        limit = _above(outcomes, division)
        if not division.startswith("iid"):
            own = {c.method: float(c.above[-1]) for c in curves if c.division == division}
            agnostic = {m: v for m, v in own.items() if "A" in m and not m.startswith("Fed")}
            claims.append(
                Claim(
                    f"{division}: AFL and its variants leave the worst client less than FedAvg's exact solution does",
                    all(v < limit for v in agnostic.values()),
                    f"training objective of the worst client above the least: FedAvg's exact solution {limit:.3g}; "
                    + ", ".join(f"{m} {v:.3g}" for m, v in agnostic.items()),
                )
            )
    return tuple(claims)


def _none(row: dict[str, Any], slack: float) -> bool:
    """Whether the interval holds 0, or is within the slack around it."""
    return row["low"] <= 0.0 <= row["high"] or max(-row["low"], row["high"]) <= slack


def _said(row: dict[str, Any]) -> str:
    return f"{row['AFL minus FedAvg']} {row['mean']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f})"


def _notes(
    data: Data, plan: Plan, outcomes: Sequence[Outcome], curves: Sequence[Curve], quick: bool
) -> tuple[str, ...]:
    first = data.splits[0]
    shares = "; ".join(f"{d.name} " + ", ".join(f"{100 * v:.0f}" for v in d.shares) + " %" for d in plan.divisions)
    worst = max(o.gap for o in outcomes)
    edges = [f"{c.method} ({c.division})" for c in curves if c.edge]
    spans = ", ".join(n.split(": ")[1] for n in _names(DIVISIONS[2], data.classes))
    drawn = (
        "drawn anew from the same rows, which the intervals allow for (variance s²(1/S + m/n), Nadeau and Bengio 2003)"
        if data.overlap
        else "without common rows"
    )
    notes = [
        f"Data: {data.name}, {data.about}{first.X.shape[1] - 1} features and a constant, {data.classes} classes; "
        f"{plan.seeds} divisions into {len(first.y):,} rows to train and {len(first.y_test):,} to test on, {drawn}. "
        f"l2 = {L2:g}, chosen here.",
        f"Clients by label: {spans}; shares: {shares} (at random: of all rows; by label: of the client's own rows, the "
        "others are left out). Tests have all rows of a client's kind.",
        "FedAvg is the minimiser of the pooled loss, its limit for small steps; AFL the minimax solution. Both are "
        f"certified: the largest gap is {worst:.1e}. The mean accuracy weighs clients by their training rows.",
        f"Runs: first division, {plan.rounds} rounds, full participation; step sizes with the least training objective "
        f"after the last round (pooled for FedSGD and FedAvg, the worst client's for the others), of {STEPS} times "
        f"{DOMAIN_STEP_SIZES} for model and domain weights (a fifth for five local steps, a tenth for an epoch). "
        "Floats are counted from the messages of all clients, both ways.",
    ]
    if edges:
        notes.append(f"Best step at an end of its grid, so that a wider grid might do better: {', '.join(edges)}.")
    if quick:
        notes.append("A quick version: two kinds of division, three seeds, coarser images and fewer rounds.")
    return tuple(notes)


# ---------------------------------------------------------------- figures

SHORT = {"FedAvg": COLOURS[0], "AFL": COLOURS[1]}


def _draw_clients(outcomes: Sequence[Outcome], data: Data) -> Any:
    """Draw test accuracies of the clients, and differences of the worst one, with intervals."""
    kinds = _kinds(outcomes)
    figure, axes = blank(len(kinds) + 1, width=2.7, height=3.7)
    from matplotlib.ticker import MaxNLocator

    low = 1.0
    for axis, division in zip(axes, kinds, strict=False):
        names = _pairs(outcomes, division)[0][0].test.domains.tolist()
        for m, model in enumerate(MODELS):
            mine = np.array([o.test.accuracy for o in outcomes if (o.division, o.model) == (division, model)])
            x = np.arange(len(names)) + 0.22 * (m - 0.5)
            axis.plot(
                np.tile(x, (len(mine), 1)),
                mine,
                linestyle="none",
                marker=".",
                color=SHORT[model],
                alpha=0.3,
                markersize=5,
            )
            axis.plot(
                x, mine.mean(axis=0), linestyle="none", marker="os"[m], color=SHORT[model], markersize=6, label=model
            )
            low = min(low, float(mine.min()))
        sizes = np.mean([o.sizes for o in outcomes if o.division == division], axis=0)
        labels = [f"{n.replace(': class', chr(10))}\n{s:.0f}" for n, s in zip(names, sizes, strict=True)]
        axis.set_xticks(range(len(names)), labels)
        axis.set_xlim(-0.5, len(names) - 0.5)
        axis.set_title(division, fontsize=9, loc="left")
        axis.set_xlabel("client" + (", its classes" if division.startswith("by") else "") + ", training rows")
    for axis in axes[:-1]:
        axis.set_ylim(max(0.0, math.floor(20.0 * low - 0.2) / 20.0), 1.0)
    axes[0].set_ylabel("test accuracy; small: one division, large: mean")
    axes[0].legend(frameon=False, fontsize=8, loc="lower left")
    shown = [
        r for r in _differences(outcomes, data.overlap) if r["AFL minus FedAvg"] in ("worst accuracy", "mean accuracy")
    ]
    last = axes[-1]
    for m, name in enumerate(("worst accuracy", "mean accuracy")):
        gaps = [r for r in shown if r["AFL minus FedAvg"] == name]
        y = np.arange(len(gaps))[::-1] + 0.16 * (0.5 - m) * 2
        last.hlines(y, [r["low"] for r in gaps], [r["high"] for r in gaps], color="0.25", linewidth=1.2)
        label = {"worst accuracy": "worst client", "mean accuracy": "mean over rows"}[name]
        style = {"marker": "Dv"[m], "color": (COLOURS[2], COLOURS[3])[m], "linestyle": "none", "markersize": 5.5}
        last.plot([r["mean"] for r in gaps], y, label=label, **style)
    last.axvline(0.0, color="black", linewidth=0.8)
    last.set_yticks(np.arange(len(kinds))[::-1], [k.replace(", ", ",\n") for k in kinds])
    last.set_ylim(-0.6, len(kinds) - 0.1)
    last.xaxis.set_major_locator(MaxNLocator(4))
    last.set_xlabel("accuracy, AFL minus FedAvg, 95 %")
    last.legend(frameon=False, fontsize=8, loc="upper right")
    return figure


def _draw_runs(curves: Sequence[Curve], outcomes: Sequence[Outcome]) -> Any:
    """Draw the worst client's objective above its least value, over rounds, and over floats for the last division."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import NullFormatter

    kinds = list(dict.fromkeys(c.division for c in curves))
    panels = [(division, "rounds") for division in kinds] + [(kinds[-1], "floats")]
    figure, axes = blank(len(panels), width=3.5, height=4.2, sharey=True)
    dashes = ("-", (0, (5, 2)), (0, (1, 1.2)), "-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
    for axis, (division, by) in zip(axes, panels, strict=True):
        for j, c in enumerate(c for c in curves if c.division == division):
            x = c.rounds[1:] * (1.0 if by == "rounds" else c.floats)
            colour = COLOURS[0 if c.method.startswith("Fed") else 2 if c.method.startswith("Agn") else 1]
            axis.plot(x, c.above[1:], color=colour, linestyle=dashes[j], linewidth=1.5, label=c.method)
        axis.axhline(_above(outcomes, division), color="black", linewidth=0.9, linestyle=(0, (2, 2)))
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_xlabel("rounds" if by == "rounds" else "floats sent, all clients, both ways")
        axis.set_title(division, fontsize=9, loc="left")
    axes[0].set_ylabel("worst client's training objective\nabove its least value")
    handles, labels = axes[0].get_legend_handles_labels()
    handles.append(Line2D([], [], color="black", linewidth=0.9, linestyle=(0, (2, 2))))
    labels.append("FedAvg's exact solution")
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    return figure
