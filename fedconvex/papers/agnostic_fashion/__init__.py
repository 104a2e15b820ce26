"""Three classes as three domains, AFL beside training on all rows alike: Mohri, Sivek, Suresh (ICML 2019), Section 5.

1. Fashion-MNIST's shirts, pullovers and t-shirts/tops: three classes, each a domain of 6,000 training and 1,000 test
   rows. Without a file: digits 8, 1 and 9 of scikit-learn, cross-validated, because there are only 180 of each.
2. Every pixel standardised by the training rows; images as they are, and averaged over blocks of 2 x 2 pixels.
3. Multinomial logistic regression, for several l2, exactly: the minimiser of the pooled loss, and the minimax solution.
4. Test accuracy of every class, with Wilson's interval; differences of the two models on the same rows.
5. Stochastic AFL, stochastic gradients on the pooled loss and OptimisticAFL on the averaged images, over their rounds.

A model trained on a single domain would have seen one class only, and would answer it always.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, whole
from fedconvex.datasets import load_bundled
from fedconvex.driver import iterate
from fedconvex.federation import Federation
from fedconvex.losses import Softmax
from fedconvex.methods import AFL, FedAvg, OptimisticAFL
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.images import coarser, read_images
from fedconvex.papers.style import COLOURS, blank
from fedconvex.problems import Problem
from fedconvex.report import wilson_interval

__all__ = ["EXPERIMENT", "Comparison", "Domains", "load_domains", "run"]

FASHION = ((6, "shirt"), (2, "pullover"), (0, "t-shirt/top"))  # of the paper
DIGITS = ((8, "digit 8"), (1, "digit 1"), (9, "digit 9"))  # chosen here: the three that ten-class models confuse most
FOLDS = 5  # of the cross-validation on bundled digits
PATH = (1e-1, 1e-2, 1e-3, 1e-4)  # l2, on averaged images
L2 = 1e-2  # on images as they are, and of the runs
MOST_PARAMETERS = 3000  # up to which solve_minimax goes
MODELS = ("pooled", "AFL")
LEVEL = 0.95
Z = NormalDist().inv_cdf(0.5 + 0.5 * LEVEL)


class Domains(NamedTuple):
    """Images of three classes, each a domain, and how they are divided."""

    name: str
    labels: tuple[str, ...]  # of the three, the one that is expected to be worst first
    images: np.ndarray  # (n, h, w) or (n, d)
    y: np.ndarray  # (n,) 0, 1, 2
    folds: tuple[tuple[np.ndarray, np.ndarray], ...]  # rows to train and to test on
    archive: bool


class Plan(NamedTuple):
    """What is solved and run."""

    solved: tuple[tuple[int, tuple[float, ...]], ...]  # block of pixels, and l2
    judged: tuple[int, ...]  # blocks whose claims count
    rounds: int
    batch: int
    steps: tuple[float, ...]
    domain_step_sizes: tuple[float, ...]


FULL = Plan(((2, PATH), (1, PATH)), (2,), 2000, 20, (0.01, 0.03, 0.1, 0.3), (0.01, 0.1))
LARGE = Plan(((2, PATH), (1, (L2,))), (2, 1), 2000, 100, (0.01, 0.03, 0.1, 0.3), (0.01, 0.1))
QUICK = Plan(((2, (1e-1, 1e-2)),), (2,), 200, 20, (0.03, 0.1), (0.1,))


class Comparison(NamedTuple):
    """The two exact solutions at one resolution and one l2, on the same test rows."""

    block: int
    l2: float
    parameters: int
    objective: np.ndarray  # (2, 3) of the domains on training rows, l2 term included; means over the folds
    gap: float  # the largest certified one
    domain_weights: np.ndarray  # (2, 3) lambda, means over the folds
    y: np.ndarray  # (m,) class of every test row
    losses: np.ndarray  # (2, m)
    right: np.ndarray  # (2, m) whether it is predicted correctly
    trained: np.ndarray  # (2, 3) training accuracy, means over the folds

    @property
    def accuracy(self) -> np.ndarray:
        """Test accuracy of both models on the three classes, (2, 3)."""
        return np.array([[r[self.y == c].mean() for c in range(3)] for r in self.right])

    @property
    def loss(self) -> np.ndarray:
        """Mean test loss of both models on the three classes, (2, 3)."""
        return np.array([[v[self.y == c].mean() for c in range(3)] for v in self.losses])


class Curve(NamedTuple):
    """A method over its rounds."""

    method: str
    step_size: float
    domain_step_size: float  # NaN where the method has none
    edge: bool
    rounds: np.ndarray  # (T,)
    above: np.ndarray  # (T,) the worst domain's training objective minus a certified lower bound of its least value
    accuracy: np.ndarray  # (T, 3) on test rows
    domain_weights: np.ndarray  # (3,) lambda at the end


# ---------------------------------------------------------------- data


def load_domains(path: str | os.PathLike[str] | None = None, seed: int = 0) -> Domains:
    """Return the three classes and their division.

    Parameters
    ----------
    path : path, optional
        Fashion-MNIST: an npz archive with x_train (n, ...), y_train (n,), x_test (m, ...), y_test (m,). Default: digits
        8, 1 and 9 of scikit-learn, in five folds.
    seed : int
        Of the folds.

    Raises
    ------
    ValueError
        If the file is no such archive, one of the classes 0, 2, 6 has no rows, or there are too many parameters.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> from fedconvex.papers.agnostic_fashion import load_domains
    >>> found = load_domains()
    >>> found.labels, found.images.shape, len(found.folds)
    (('digit 8', 'digit 1', 'digit 9'), (536, 8, 8), 5)
    """
    if path is None:
        digits = load_bundled("digits", standardised=False)
        X, y = _chosen(digits.X.reshape(-1, 8, 8), digits.y, DIGITS)
        fold = np.random.default_rng(seed).permutation(len(y)) % FOLDS
        folds = tuple((np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(FOLDS))
        return Domains("digits 8, 1, 9 of scikit-learn", tuple(n for _, n in DIGITS), X, y, folds, False)
    who, arrays = f"--data {Path(path).name}", read_images(path)
    parts = []
    for part in ("train", "test"):
        X, y = _chosen(arrays[f"x_{part}"], arrays[f"y_{part}"], FASHION)
        if np.unique(y).size < 3:
            missing = ", ".join(f"{number} ({name})" for c, (number, name) in enumerate(FASHION) if c not in y)
            raise bad(f"{who}: y_{part}", "have rows of classes 6, 2 and 0 (Fashion-MNIST)", f"none of {missing}")
        parts.append((X, y))
    images, y = (np.concatenate(v) for v in zip(*parts, strict=True))
    size = math.prod(images.shape[1:])
    if 3 * (size + 1) > MOST_PARAMETERS:
        raise bad(f"{who}: images", f"have at most {MOST_PARAMETERS // 3 - 1} pixels", size)
    edge = len(parts[0][1])
    folds = ((np.arange(edge), np.arange(edge, len(y))),)
    return Domains(Path(path).stem, tuple(n for _, n in FASHION), images, y, folds, True)


def _chosen(X: np.ndarray, y: np.ndarray, classes: Sequence[tuple[int, str]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of three classes, and the class of each as 0, 1, 2."""  # 1
    code = np.full(len(y), -1)
    for c, (number, _) in enumerate(classes):
        code[y == number] = c
    return X[code >= 0], code[code >= 0]


def standardised(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Centre every column and divide it by its standard deviation, both of the training rows, and append ones.

    A column that is constant on the training rows becomes zero on all rows.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.papers.agnostic_fashion import standardised
    >>> standardised(np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([[4.0, 6.0]]))[1]
    array([[2., 0., 1.]])
    """
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    varies = train.max(axis=0) > train.min(axis=0)
    scale = np.where(varies, 1.0 / np.where(varies, deviation, 1.0), 0.0)
    made = [np.hstack([(A - mean) * scale, np.ones((len(A), 1))]) for A in (train, test)]
    return made[0], made[1]


def _problem(data: Domains, fold: int, block: int, l2: float) -> tuple[Problem, np.ndarray, np.ndarray]:
    """Return the problem of a fold, and its test rows with their classes."""
    train, test = data.folds[fold]
    X, X_test = standardised(coarser(data.images[train], block), coarser(data.images[test], block))  # 2
    y = data.y[train]
    clients = [(X[y == c], np.full(int((y == c).sum()), float(c))) for c in range(3)]
    fed = Federation.from_clients(clients, labels=list(data.labels))
    return Problem(fed, Softmax(3), l2), X_test, data.y[test]  # 3


# ---------------------------------------------------------------- measuring


def run(*, quick: bool = False, seed: int = 0, data: Any = None, progress: Progress | None = None) -> Findings:
    """Run the experiment.

    Parameters
    ----------
    quick : bool
        A smaller version: averaged images, two l2, few rounds.
    seed : int
        Of folds and runs.
    data : path, optional
        As for `load_domains`.
    progress : callable, optional
        Takes the share done and what is being done.

    Returns
    -------
    Findings
    """
    seed = whole("afl-fashion: seed", seed, low=0)
    plan = QUICK if quick else FULL if data is None else LARGE
    tell = progress or (lambda share, doing: None)
    tell(0.0, "reading")
    domains = load_domains(data, seed)
    plan = _possible(plan, domains)
    todo = [(block, l2) for block, path in plan.solved for l2 in path]
    cost = np.array([1.0 if block > 1 else 8.0 for block, _ in todo] + [4.0])
    edges = np.concatenate([[0.0], np.cumsum(cost)]) / cost.sum()
    compared = []
    for i, (block, l2) in enumerate(todo):

        def at(share: float, doing: str, i: int = i) -> None:
            tell(float(edges[i] + share * (edges[i + 1] - edges[i])), doing)

        compared.append(_compared(domains, block, l2, at))
    curves = list(
        _raced(domains, plan, seed, lambda share, doing: tell(float(edges[-2] + share * (1.0 - edges[-2])), doing))
    )
    tell(1.0, "done")
    title = f"AFL beside training on all rows alike, three classes as domains (Mohri et al. 2019): {domains.name}"
    tables = {
        "classes": list(_classes(domains, compared)),
        "differences": list(_differences(domains, compared)),
        "runs": list(_runs(domains, curves)),
        "curves": list(_points(domains, curves)),
    }
    figures = {"classes": _draw_classes(domains, compared), "runs": _draw_runs(domains, curves, compared)}
    claims = _claims(domains, plan, compared, curves)
    return Findings(title, claims, _notes(domains, plan, compared, curves, quick), figures, tables)


EXPERIMENT = Experiment(
    "afl-fashion",
    "three confusable classes as domains: what AFL does for the worst of them, and what it costs the others",
    run,
    "optional npz with x_train, y_train, x_test, y_test (Fashion-MNIST); default digits 8, 1, 9",
)


def _possible(plan: Plan, data: Domains) -> Plan:
    """Leave out blocks that do not fit the images."""
    shape = data.images.shape[1:]

    def fits(block: int) -> bool:
        return block == 1 or (len(shape) == 2 and all(side % block == 0 for side in shape))

    solved = tuple(v for v in plan.solved if fits(v[0])) or ((1, plan.solved[0][1]),)
    return plan._replace(solved=solved, judged=tuple(b for b in plan.judged if fits(b)) or (1,))


def _compared(data: Domains, block: int, l2: float, at: Any) -> Comparison:
    found: list[tuple[Any, ...]] = []
    for k in range(len(data.folds)):
        problem, X_test, y_test = _problem(data, k, block, l2)
        fold = f", fold {k + 1}" if len(data.folds) > 1 else ""
        at(k / len(data.folds), f"{block} x {block} pixels, l2 = {l2:g}{fold}: pooled")
        pooled = problem.solve()  # 3
        at((k + 0.3) / len(data.folds), f"{block} x {block} pixels, l2 = {l2:g}{fold}: minimax")
        minimax = problem.solve_minimax()  # 3
        pair = (pooled.w, minimax.w)
        fed = problem.federation
        known = np.array([problem.predict(w) == fed.y for w in pair])
        trained = np.stack([known[:, a:b].mean(axis=1) for a, b in zip(fed.ptr, fed.ptr[1:], strict=False)], axis=1)
        objective = np.array([problem.domain_values(w) for w in pair])
        mix = np.array([problem.weights, minimax.domain_weights])
        tested = [_rows(X_test, y_test, w) for w in pair]
        losses, right = (np.array(v) for v in zip(*tested, strict=True))
        found.append((objective, max(pooled.gap, minimax.gap), mix, trained, y_test, losses, right, problem.size))
    parts = list(zip(*found, strict=True))
    objective, mix, trained = (np.mean(parts[i], axis=0) for i in (0, 2, 3))
    y, losses, right = np.concatenate(parts[4]), *(np.concatenate(parts[i], axis=1) for i in (5, 6))
    return Comparison(block, l2, parts[7][0], objective, max(parts[1]), mix, y, losses, right, trained)


def _rows(X: np.ndarray, y: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss of every test row, and whether it is predicted correctly."""
    scores = X @ w.T
    losses = np.logaddexp.reduce(scores, axis=1) - scores[np.arange(len(y)), y]
    return losses, np.argmax(scores, axis=1) == y


def _raced(data: Domains, plan: Plan, seed: int, at: Any) -> Iterator[Curve]:  # 5
    block = plan.solved[0][0]
    problem, X_test, y_test = _problem(data, 0, block, L2)
    lower = problem.solve_minimax().lower
    steps, pair = np.array(plan.steps), np.repeat(plan.steps, len(plan.domain_step_sizes))
    mixes, B = np.tile(plan.domain_step_sizes, len(plan.steps)), int(min(plan.batch, problem.federation.sizes.min()))
    few = max(1, plan.rounds // 10)
    todo: list[tuple[str, Any, np.ndarray, np.ndarray | None, int]] = [
        (f"pooled SGD, batches of {B}", FedAvg(step_size=steps, local_steps=1, batch_size=B), steps, None, plan.rounds),
        (f"AFL, batches of {B}", AFL(step_size=pair, domain_step_size=mixes, batch_size=B), pair, mixes, plan.rounds),
        ("OptimisticAFL", OptimisticAFL(step_size=pair, domain_step_size=10 * mixes), pair, 10 * mixes, few),
    ]
    for i, (name, method, sizes, domain_step_sizes, rounds) in enumerate(todo):
        marks = set(np.unique(np.round(np.geomspace(2, rounds, 40)).astype(int)).tolist())
        values, models, at_round, state = [], [], [], None
        for t, state in iterate(method, problem, rounds=rounds, seed=seed, trajectories=sizes.size):
            if t in marks:
                with np.errstate(all="ignore"):
                    values.append(problem.domain_values(state.w))
                models.append(state.w)
                at_round.append(t)
                at((i + t / rounds) / len(todo), f"{name}, round {t}")
        goal = values[-1] @ problem.weights if domain_step_sizes is None else values[-1].max(axis=1)
        best = int(np.argmin(np.where(np.isfinite(goal), goal, np.inf)))
        right = [_rows(X_test, y_test, w[best])[1] for w in models]
        accuracy = np.array([[r[y_test == c].mean() for c in range(3)] for r in right])
        above = np.array([v[best].max() for v in values]) - lower
        mix = problem.weights if domain_step_sizes is None else state.domain_weights[best]  # type: ignore[union-attr]
        edge = bool(sizes[best] in (sizes.min(), sizes.max()))
        domain_step_size = math.nan if domain_step_sizes is None else float(domain_step_sizes[best])
        yield Curve(name, float(sizes[best]), domain_step_size, edge, np.array(at_round), above, accuracy, mix)


# ---------------------------------------------------------------- tables


class Difference(NamedTuple):
    """AFL minus pooled, with its standard error."""

    mean: float
    error: float

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - Z * self.error

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + Z * self.error

    @property
    def as_loss(self) -> str:
        """As it is, with its interval."""
        return f"{self.mean:+.3f} ({self.low:+.3f} to {self.high:+.3f})"

    def __str__(self) -> str:  # in points
        return f"{100 * self.mean:+.1f} ({100 * self.low:+.1f} to {100 * self.high:+.1f})"


def of_class(c: Comparison, k: int) -> Difference:
    """Return the difference in the accuracy of class k, on the same rows."""  # 4
    d = c.right[1, c.y == k].astype(float) - c.right[0, c.y == k]
    return Difference(float(d.mean()), float(d.std(ddof=1)) / math.sqrt(d.size))


def of_largest(c: Comparison) -> Difference:
    """Return the difference of the largest test losses, which may be of two classes."""
    a, b = c.loss.argmax(axis=1)
    if a == b:
        d = c.losses[1, c.y == a] - c.losses[0, c.y == a]
        return Difference(float(d.mean()), float(d.std(ddof=1)) / math.sqrt(d.size))
    parts = [c.losses[m, c.y == k] for m, k in enumerate((a, b))]
    error = math.sqrt(sum(float(v.var(ddof=1)) / v.size for v in parts))
    return Difference(float(parts[1].mean() - parts[0].mean()), error)


def of_mean(c: Comparison) -> Difference:
    """Return the difference in the mean of the three accuracies."""
    found = [of_class(c, k) for k in range(3)]
    return Difference(sum(d.mean for d in found) / 3.0, math.sqrt(sum(d.error**2 for d in found)) / 3.0)


def of_least(c: Comparison) -> Difference:
    """Return the difference of the least accuracies, which may be of two classes."""
    a, b = c.accuracy.argmin(axis=1)
    if a == b:
        return of_class(c, int(a))
    low = c.accuracy.min(axis=1)
    counts = np.bincount(c.y, minlength=3)
    return Difference(
        float(low[1] - low[0]), math.sqrt(sum(v * (1 - v) / counts[k] for v, k in zip(low, (a, b), strict=True)))
    )


def _classes(data: Domains, compared: Sequence[Comparison]) -> Iterator[dict[str, Any]]:
    for c in compared:
        for m, model in enumerate(MODELS):
            for k, name in enumerate(data.labels):
                rows = int((c.y == k).sum())
                low, high = wilson_interval(c.right[m, c.y == k].sum(), rows, LEVEL)
                yield {
                    "pixels averaged": f"{c.block} x {c.block}",
                    "l2": c.l2,
                    "model": model,
                    "class": name,
                    "lambda": float(c.domain_weights[m, k]),
                    "objective": float(c.objective[m, k]),
                    "train accuracy": float(c.trained[m, k]),
                    "test rows": rows,
                    "test loss": float(c.loss[m, k]),
                    "test accuracy": float(c.accuracy[m, k]),
                    "low": float(low),
                    "high": float(high),
                }


def _differences(data: Domains, compared: Sequence[Comparison]) -> Iterator[dict[str, Any]]:
    for c in compared:
        found = {name: of_class(c, k) for k, name in enumerate(data.labels)}
        found |= {"mean of the three": of_mean(c), "least of the three": of_least(c)}
        for name, d in found.items():
            yield {
                "pixels averaged": f"{c.block} x {c.block}",
                "l2": c.l2,
                "accuracy of": name,
                "AFL minus pooled": d.mean,
                "low": d.low,
                "high": d.high,
            }


def _runs(data: Domains, curves: Sequence[Curve]) -> Iterator[dict[str, Any]]:
    for c in curves:
        row: dict[str, Any] = {"method": c.method, "step": c.step_size, "mix step": c.domain_step_size}
        row |= {"rounds": int(c.rounds[-1]), "above the least": float(c.above[-1])}
        row |= {f"accuracy, {name}": float(v) for name, v in zip(data.labels, c.accuracy[-1], strict=True)}
        yield row | {f"lambda, {name}": float(v) for name, v in zip(data.labels, c.domain_weights, strict=True)}


def _points(data: Domains, curves: Sequence[Curve]) -> Iterator[dict[str, Any]]:
    for c in curves:
        for t, above, accuracy in zip(c.rounds, c.above, c.accuracy, strict=True):
            row = {"method": c.method, "round": int(t), "above the least": float(above)}
            yield row | {f"accuracy, {name}": float(v) for name, v in zip(data.labels, accuracy, strict=True)}


# ---------------------------------------------------------------- claims


def _claims(data: Domains, plan: Plan, compared: Sequence[Comparison], curves: Sequence[Curve]) -> tuple[Claim, ...]:
    """Judge the paper's conclusion at every resolution that counts, and every l2 there."""
    claims, worst = [], data.labels[0]
    for block in plan.judged:
        mine = [c for c in compared if c.block == block]
        where = "Images as they are" if block == 1 else f"Images averaged over {block} x {block} pixels"
        over = "l2 = " + ", ".join(f"{c.l2:g}" for c in mine)
        least = [of_least(c) for c in mine]
        means = [of_mean(c) for c in mine]
        own = [of_class(c, 0) for c in mine]
        largest = [of_largest(c) for c in mine]
        claims += [
            Claim(
                f"{where}: trained on all rows alike, {worst} is predicted worst",
                all(_lowest(c) for c in mine),
                f"accuracy of {', '.join(data.labels)}; {over}: " + "; ".join(_three(c.accuracy[0]) for c in mine),
            ),
            Claim(
                f"{where}: AFL raises the accuracy of {worst}",
                all(d.low > 0.0 for d in own),
                f"points, AFL minus pooled; {over}: " + "; ".join(str(d) for d in own),
            ),
            Claim(
                f"{where}: AFL lowers the largest of the three test losses",
                all(d.high < 0.0 for d in largest),
                f"AFL minus pooled; {over}: " + "; ".join(d.as_loss for d in largest),
            ),
            Claim(
                f"{where}: AFL raises the least of the three accuracies",
                all(d.low > 0.0 for d in least),
                f"AFL's accuracies: {'; '.join(_three(c.accuracy[1]) for c in mine)}; points, least minus least: "
                + "; ".join(str(d) for d in least),
            ),
            Claim(
                f"{where}: the mean accuracy falls by less than the least rises",
                all(a.mean + b.mean - Z * (a.error + b.error) > 0.0 for a, b in zip(least, means, strict=True)),
                f"mean of the three, points, AFL minus pooled; {over}: " + "; ".join(str(d) for d in means),
            ),
        ]
    pooled, *agnostic = curves
    rows = [int(v) for v in np.bincount(data.y[data.folds[0][1]], minlength=3)]
    gains = [
        Difference(float(c.accuracy[-1].min() - pooled.accuracy[-1].min()), _error(c, pooled, rows)) for c in agnostic
    ]
    claims.append(
        Claim(
            "The methods too: after their rounds AFL's least accuracy is above that of SGD on the pooled loss",
            all(d.low > 0.0 for d in gains),
            f"{pooled.method} {_three(pooled.accuracy[-1])}; "
            + "; ".join(
                f"{c.method} {_three(c.accuracy[-1])}, least {d}" for c, d in zip(agnostic, gains, strict=True)
            ),
        )
    )
    return tuple(claims)


def _lowest(c: Comparison) -> bool:
    """Whether the first class is predicted worse than the others, by Welch's interval."""
    a, rows = c.accuracy[0], np.bincount(c.y, minlength=3)
    error = np.sqrt(a * (1.0 - a) / rows)
    return all(a[0] + Z * math.hypot(error[0], error[k]) < a[k] for k in (1, 2))


def _error(c: Curve, other: Curve, rows: Sequence[int]) -> float:
    """Return the standard error of a difference of least accuracies, as if of different rows."""
    found = [(v.accuracy[-1].min(), rows[int(v.accuracy[-1].argmin())]) for v in (c, other)]
    return math.sqrt(sum(a * (1.0 - a) / n for a, n in found))


def _three(accuracy: np.ndarray) -> str:
    return " / ".join(f"{100 * v:.1f}" for v in accuracy)


def _notes(
    data: Domains, plan: Plan, compared: Sequence[Comparison], curves: Sequence[Curve], quick: bool
) -> tuple[str, ...]:
    train, test = data.folds[0]
    counts = ", ".join(f"{name} {int((data.y == c).sum()):,}" for c, name in enumerate(data.labels))
    rows = (
        f"{len(train):,} rows to train and {len(test):,} to test on"
        if data.archive
        else f"{FOLDS} folds: every row is tested once, by a model that has not seen it; intervals take these rows as "
        "independent, though models of different folds share rows"
    )
    sizes = ", ".join(f"{b} x {b}: {next(c for c in compared if c.block == b).parameters:,}" for b, _ in plan.solved)
    edges = [c.method for c in curves if c.edge]
    notes = [
        f"Data: {data.name}; {counts}; {rows}. Pixels standardised by the rows trained on, a constant appended; "
        f"parameters by block of pixels: {sizes}.",
        f"Both models are exact at every l2, with certified gaps of at most {max(c.gap for c in compared):.1e}; pooled "
        "is the minimiser over all rows. Domains are classes: lambda decides how readily each class is answered.",
        f"Runs: {'all rows' if data.archive else 'first fold'}, {plan.solved[0][0]} x {plan.solved[0][0]} pixels, "
        f"l2 = {L2:g}, from 0; a tenth of the rounds for OptimisticAFL, which takes all rows. Step sizes with the "
        "least training objective after the last round, of a small grid.",
        "The paper trains with stochastic gradients and stops early; its accuracies are means over runs. Compare "
        "directions, not digits.",
    ]
    if not data.archive:
        notes.append(
            "Digits stand in for Fashion-MNIST: other images, 30 times fewer rows. As they are (8 x 8) so few are "
            "mistaken that differences drown; claims speak of averaged images (4 x 4), the table has both."
        )
    if edges:
        notes.append(f"Best step at an end of its grid, so that a wider grid might do better: {', '.join(edges)}.")
    if quick:
        notes.append("A quick version: averaged images, two l2, few rounds.")
    return tuple(notes)


# ---------------------------------------------------------------- figures


def _draw_classes(data: Domains, compared: Sequence[Comparison]) -> Any:
    """Draw test accuracies with Wilson's intervals over l2, a panel for every model and resolution."""
    blocks = list(dict.fromkeys(c.block for c in compared))
    figure, axes = blank(2 * len(blocks), width=2.7, height=3.6, sharey=True)
    floor = 1.0
    for i, (block, m) in enumerate((b, m) for b in blocks for m in range(2)):
        mine = sorted((c for c in compared if c.block == block), key=lambda c: c.l2)
        axis, x = axes[i], np.array([c.l2 for c in mine])
        for k, name in enumerate(data.labels):
            ends = [wilson_interval(c.right[m, c.y == k].sum(), (c.y == k).sum(), LEVEL) for c in mine]
            low, high = (np.array(v, dtype=float) for v in zip(*ends, strict=True))
            at, value = x * 1.12 ** (k - 1), np.array([c.accuracy[m, k] for c in mine])
            axis.vlines(at, low, high, color=COLOURS[k], linewidth=1.1)
            axis.plot(at, value, color=COLOURS[k], marker="osD"[k], markersize=4.5, linewidth=1.3, label=name)
            floor = min(floor, float(low.min()))
        mean = np.array([c.accuracy[m].mean() for c in mine])
        axis.plot(x, mean, color="black", linestyle=(0, (4, 2)), linewidth=1.1, marker="_", label="mean of the three")
        axis.set_xscale("log")
        axis.set_xticks(x, [f"{v:g}" for v in x], rotation=0 if len(x) < 5 else 45)
        axis.minorticks_off()
        axis.set_xlim(x[0] / 2.2, x[-1] * 2.2)
        axis.set_xlabel("l2")
        size = "as they are" if block == 1 else f"{block} x {block} averaged"
        axis.set_title(f"{MODELS[m]}, images {size}", fontsize=9, loc="left")
    axes[0].set_ylim(math.floor(20.0 * floor) / 20.0, None)
    axes[0].set_ylabel("test accuracy, 95 % intervals")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    return figure


def _draw_runs(data: Domains, curves: Sequence[Curve], compared: Sequence[Comparison]) -> Any:
    """Draw test accuracies over the rounds, and the worst domain's objective above its least value."""
    figure, axes = blank(len(curves) + 1, width=2.9, height=3.6)
    floor = min(0.9, min(float(c.accuracy[c.rounds >= 10].min()) for c in curves))
    for axis, c in zip(axes, curves, strict=False):
        for k, name in enumerate(data.labels):
            axis.plot(
                c.rounds, c.accuracy[:, k], color=COLOURS[k], linestyle=("-", (0, (5, 2)), (0, (1, 1.2)))[k], label=name
            )
        axis.plot(c.rounds, c.accuracy.mean(axis=1), color="black", linewidth=0.9, label="mean of the three")
        axis.set_title(c.method, fontsize=9, loc="left")
        axis.set_xscale("log")
        axis.set_xlabel("rounds")
        axis.set_ylim(math.floor(10.0 * floor) / 10.0, 1.0)
    axes[0].set_ylabel("test accuracy")
    last = axes[-1]
    for j, c in enumerate(curves):
        last.plot(
            c.rounds, c.above, color=COLOURS[j + 3], linestyle=("-", (0, (5, 2)), (0, (1, 1.2)))[j], label=c.method
        )
    last.set_xscale("log")
    last.set_yscale("log")
    last.set_xlabel("rounds")
    last.set_ylabel("worst domain's training objective\nabove its least value")
    last.tick_params(which="both", labelsize=8)
    least = min(float(c.above[np.isfinite(c.above) & (c.above > 0.0)].min(initial=1.0)) for c in curves)
    last.set_ylim(0.1 * least, None)  # room for the legend
    last.legend(frameon=False, fontsize=7.5, loc="lower left")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    return figure
