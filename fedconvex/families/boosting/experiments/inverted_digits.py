"""Digits in different guises: where a Q-ensemble should help, at equal depth and equal number of base classifiers.

1. Images of digits, 8 x 8, in three guises, each a domain: plain, inverted, on a background of noise; every image is in
   all three, and all three stay on one side of a division. 1 against 7, 4 against 9, odd against even; the digits in
   three domains of `multiboost`; with both archives at hand MNIST and Fashion-MNIST as two domains, odd against even.
2. Q(l|x): conditional maximum entropy, as in `multiboost`.
3. Base classifiers are stumps, or trees of depth two. A budget is a number of them: T, and p T.
4. AdaBoost-all on all rows; the boosts of single sources, weighted by Q (each has the p-th part of the budget);
   MultiBoost with Q, and with Q = 1/p, on the smoothed maximum.
5. The number of rounds within the budget is the one of least worst-domain error on the rows to choose on.
6. On test rows the worst domain's error, and the mean of the domains'; over divisions, with paired differences.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedconvex._check import bad
from fedconvex.datasets import load_bundled
from fedconvex.families.boosting.experiments.data import Sources, shifted_digits
from fedconvex.families.boosting.experiments.runs import (
    ALL,
    BINS,
    CHOOSE,
    MULTI,
    PLAIN,
    QUICK,
    SMOOTHING,
    TRAIN,
    DividedRows,
    divide,
    of_domains,
)
from fedconvex.families.boosting.experiments.trees import TreeProblem, boosted, staged
from fedconvex.federation import Federation
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress, progress_part
from fedconvex.papers.images import coarser, read_images
from fedconvex.papers.intervals import Interval, mean_interval
from fedconvex.papers.repeated import Repeated, draw_bars, repeat
from fedconvex.papers.style import blank, legend, panel
from fedconvex.problems import StumpProblem

OWN = "own boosts, weighted by Q"
METHODS = (ALL, OWN, PLAIN, MULTI)
SHORT, LONG = "T", "p T"  # budgets
KINDS = {1: "Stumps", 2: "Trees"}
_GUISES = ("plain", "inverted", "background")
NOISE = 4  # chosen here: the background has levels 0, ..., 4 of 8, all as likely
TASKS: Mapping[str, Any] = {
    "1 against 7": lambda y: np.where(y == 1, -1, np.where(y == 7, 1, 0)),
    "4 against 9": lambda y: np.where(y == 4, -1, np.where(y == 9, 1, 0)),
    "odd against even": lambda y: np.where(y % 2 == 1, 1, -1),
}
TURNED, CLOTHES = "odd against even, turned", "MNIST and Fashion-MNIST"
_ARCHIVES = ("mnist.npz", "fashion_mnist.npz")
NEAR = 0.02  # what errors may differ by and still count as near
OVERLAP = (1.0 - TRAIN - CHOOSE) / TRAIN  # test rows over training rows: divisions share rows


class GuisesScale(NamedTuple):
    """How large the experiment is."""

    divisions: int
    rounds: int  # T
    images: int  # of a task, at most
    penalties: tuple[float, ...]  # l2 of Q to choose from
    folds: int


FULL = GuisesScale(10, 100, 1500, (1e-3, 1e-2, 1e-1), 3)
SMALL = GuisesScale(5, 20, 600, (1e-2,), 2)


# ---------------------------------------------------------------- rows


def in_guises(images: np.ndarray, y: np.ndarray, rng: np.random.Generator, name: str = "digits") -> Sources:
    """Return images (n, h, w) of levels 0, 1/8, ..., 1 in three guises, y (n,) of -1, +1.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.families.boosting.experiments.inverted_digits import in_guises
    >>> found = in_guises(np.eye(4).reshape(4, 2, 2), np.array([1.0, 1.0, -1.0, -1.0]), np.random.default_rng(0))
    >>> found.X[[0, 4]].tolist(), found.group.tolist()  # the first image, plain and inverted; rows of the same image
    ([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 1.0]], [3, 2, 1, 0, 3, 2, 1, 0, 3, 2, 1, 0])
    """
    X = images.reshape(len(images), -1)
    noise = rng.integers(0, NOISE + 1, X.shape) / 8.0
    group = np.unique(X, axis=0, return_inverse=True)[1].ravel()
    rows = np.vstack([X, 1.0 - X, np.maximum(X, noise)])
    return Sources(name, rows, np.tile(y, 3), np.repeat(np.arange(3), len(X)), _GUISES, np.tile(group, 3))


def small_images(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return training and test images of an archive as (n, 8, 8) of levels 0, 1/8, ..., 1, and their classes."""
    arrays = read_images(path)
    images, y = (np.concatenate([arrays[f"{k}_{part}"] for part in ("train", "test")]) for k in "xy")
    if images.shape[1:] != (28, 28):
        raise bad(f"--data {path.name}: images", "have 28 x 28 pixels", f"{images.shape[1:]}")
    wide = np.pad(images, ((0, 0), (2, 2), (2, 2)))  # 32 x 32, whose blocks of 4 x 4 are averaged, as in the digits
    return np.floor(8.0 * coarser(wide, 4).reshape(-1, 8, 8) / float(images.max())) / 8.0, y.astype(np.int64)


def _some(y: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """Return at most so many places of labels y other than 0, in random order."""
    return np.asarray(rng.permutation(np.flatnonzero(y))[:most])


def read_tasks(data: Any, scale: GuisesScale, seed: int) -> dict[str, Sources]:
    """Return the rows of every task.

    Parameters
    ----------
    data : path or None
        An archive of images of 28 x 28 pixels, or a folder with mnist.npz and fashion_mnist.npz; default the bundled
        digits.
    scale : GuisesScale
    seed : int
    """
    home = None if data is None else Path(os.fspath(data))
    both = home is not None and home.is_dir()
    if home is None:
        digits = load_bundled("digits", standardised=False)
        images, label = np.floor(digits.X / 2.0).reshape(-1, 8, 8) / 8.0, digits.y
    else:
        images, label = small_images(home / _ARCHIVES[0] if both else home)
    out = {}
    for i, (name, classes) in enumerate(TASKS.items()):
        rng = np.random.default_rng([seed, i])
        y = classes(label)
        mine = _some(y, scale.images, rng)
        out[name] = in_guises(images[mine], y[mine].astype(float), rng, name)
    if home is None:
        out[TURNED] = shifted_digits(seed)
    if both and home is not None:
        pairs = [(images, label), small_images(home / _ARCHIVES[1])]
        out[CLOTHES] = _two_kinds(pairs, scale, np.random.default_rng([seed, len(TASKS)]))
    return out


def _two_kinds(pairs: Sequence[tuple[np.ndarray, np.ndarray]], scale: GuisesScale, rng: np.random.Generator) -> Sources:
    """Return images of two archives as two domains, odd against even classes."""
    kept = [_some(np.ones(len(y)), scale.images, rng) for _, y in pairs]
    X = np.concatenate([images[i] for (images, _), i in zip(pairs, kept, strict=True)]).reshape(-1, 64)
    odd = np.concatenate([label[i] % 2 == 1 for (_, label), i in zip(pairs, kept, strict=True)])
    domain, group = np.repeat([0, 1], [i.size for i in kept]), np.unique(X, axis=0, return_inverse=True)[1].ravel()
    return Sources(CLOTHES, X, np.where(odd, 1.0, -1.0), domain, ("MNIST", "Fashion-MNIST"), group)


# ---------------------------------------------------------------- what is measured


def _problem(depth: int, federation: Federation, Q: Any = None) -> StumpProblem:
    return StumpProblem(federation, Q, bins=BINS) if depth == 1 else TreeProblem(federation, Q, bins=BINS)


def every_boost(depth: int, parts: DividedRows, rounds: int) -> Iterator[tuple[str, list[np.ndarray], int]]:
    """Yield every method: y f_t of the rows to train, choose and test on, and base classifiers a round."""
    X, y, domain, p = parts.X[0], parts.y[0], parts.domain[0], parts.Q[0].shape[1]
    pooled, several = (Federation.from_arrays(X, y, parts.client, d) for d in (None, domain))
    even = tuple(np.full(q.shape, 1.0 / p) for q in parts.Q)
    f = boosted(_problem(depth, pooled), p * rounds, SMOOTHING)
    yield ALL, [label * staged(f, p * rounds, A, None) for A, label in zip(parts.X, parts.y, strict=True)], 1
    own = [np.zeros((rounds + 1, len(label))) for label in parts.y]
    for k in range(p):
        mine = domain == k
        alone = Federation.from_arrays(X[mine], y[mine], domain[mine])
        f = boosted(_problem(depth, alone), rounds, SMOOTHING)
        for total, A, label, q in zip(own, parts.X, parts.y, parts.Q, strict=True):
            total += label * q[:, k] * staged(f, rounds, A, None)
    yield OWN, own, p
    for name, Q in ((PLAIN, even), (MULTI, parts.Q)):
        f = boosted(_problem(depth, several, Q[0]), p * rounds, SMOOTHING)
        yield name, [v * staged(f, p * rounds, A, q) for A, v, q in zip(parts.X, parts.y, Q, strict=True)], 1


def rise(margins: np.ndarray, domain: np.ndarray, p: int) -> float:
    """Return by how much a round raised the smoothed maximum of the domains' losses at most, relative to it."""
    F = of_domains(np.exp(-margins), domain, p)
    top = F.max(axis=1)
    value = top + np.log(np.exp(SMOOTHING * (F - top[:, None])).sum(axis=1)) / SMOOTHING
    return float((np.diff(value) / value[:-1]).max())


def trials(rows: Sources, scale: GuisesScale, seed: int, split: int) -> Iterator[dict[str, Any]]:
    """Yield what every method, depth and budget gives on one division."""
    parts, p = divide(rows, QUICK._replace(penalties=scale.penalties, folds=scale.folds), seed, split), rows.p
    for depth in (1, 2):
        for method, margins, a_round in every_boost(depth, parts, scale.rounds):
            held, test = (of_domains((margins[i] <= 0.0).astype(float), parts.domain[i], p) for i in (1, 2))
            more = rise(margins[0], parts.domain[0], p) if method in (PLAIN, MULTI) else -math.inf
            for budget, number in ((SHORT, scale.rounds), (LONG, p * scale.rounds)):
                t = int(np.argmin(held[: number // a_round + 1].max(axis=1)))
                row: dict[str, Any] = {"repetition": split, "depth": depth, "budget": budget, "method": method}
                row |= {"worst error": float(test[t].max()), "mean error": float(test[t].mean())}
                yield row | {"rounds": t, "rise": more, "Q right": parts.accuracy[1]}


@threadpool_limits.wrap(limits=1, user_api="blas")  # products are small: threads would wait for each other
def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Run every task on every division; data: a path as for `read_tasks`."""
    scale = SMALL if quick else FULL
    tasks = read_tasks(data, scale, seed)
    rows: list[dict[str, Any]] = []
    for i, (name, source) in enumerate(tasks.items()):
        part = progress_part(tell, i / len(tasks), (i + 1) / len(tasks), f"{name}: ")
        made = repeat(scale.divisions, partial(trials, source, scale, seed), part, name)
        rows += [{"task": name, **row} for row in made]
    found = Repeated(tuple(rows), OVERLAP)
    return Findings(
        f"Digits in different guises: boosting at equal depth and budget, {'MNIST' if data else 'bundled digits'}",
        tuple(claims(found)),
        _notes(tasks, scale, found),
        {"guises": _draw(found), "images": _draw_images(tasks)},
        {
            "table": found.table(("task", "depth", "budget", "method"), ("worst error", "mean error")),
            "divisions": rows,
        },
    )


EXPERIMENT = Experiment(
    "boosting-guises",
    "boosting of digits in different guises: MultiBoost, pooled and own boosts, stumps and trees, equal budgets",
    study,
    "optional npz of 28 x 28 images x_train, y_train, x_test, y_test (MNIST), or a folder with mnist.npz and "
    "fashion_mnist.npz; default the bundled digits",
    f"{SMALL.divisions} divisions of at most {SMALL.images} images and T = {SMALL.rounds}, which says little about "
    f"{FULL.rounds}",
)


# ---------------------------------------------------------------- what came out


def claims(found: Repeated) -> Iterator[Claim]:
    """Judge by the interval of a paired difference over the divisions, the mean over the tasks."""

    def difference(high: dict[str, Any], low: dict[str, Any], what: str = "worst error") -> tuple[Interval, str]:
        """Return an error of one setting minus another's: the tasks' mean, and the tasks one by one."""
        each = [found.where(task=task) for task in found.kinds("task")]
        apart = [mine.values(what, **high) - mine.values(what, **low) for mine in each]
        one_by_one = (mine.minus(what, high, low) for mine in each)
        numbers = "; ".join(f"{task} {d}" for task, d in zip(found.kinds("task"), one_by_one, strict=True))
        overall = mean_interval(np.mean(apart, axis=0), found.overlap)
        return overall, f"difference {overall}, mean of the tasks ({numbers})"

    def lower(text: str, high: dict[str, Any], low: dict[str, Any], what: str = "worst error") -> Claim:
        overall, numbers = difference(high, low, what)
        return Claim(text, overall.above(), numbers)

    for depth, budget in itertools.product(KINDS, (SHORT, LONG)):
        at: dict[str, Any] = {"depth": depth, "budget": budget}
        text = f"{KINDS[depth]}, {budget} of them: MultiBoost's worst-domain error is below AdaBoost-all's"
        yield lower(text, at | {"method": ALL}, at | {"method": MULTI})
    stumps, trees = ({"depth": depth, "budget": LONG} for depth in KINDS)
    yield lower(
        "MultiBoost of T stumps errs less on the worst domain than AdaBoost-all of p T stumps",
        stumps | {"method": ALL},
        {"depth": 1, "budget": SHORT, "method": MULTI},
    )
    yield lower(
        "Trees of depth two on pooled rows err less on the worst domain than MultiBoost of stumps, p T of either",
        stumps | {"method": MULTI},
        trees | {"method": ALL},
    )
    for depth, kind in KINDS.items():
        at = {"depth": depth, "budget": LONG}
        overall, numbers = difference(at | {"method": OWN}, at | {"method": MULTI})
        text = f"{kind}, p T of them: own boosts, weighted by Q, are as good as MultiBoost on the worst domain"
        yield Claim(f"{text}, within {NEAR:g}", overall.within(NEAR), numbers)
        text = f"{kind}, p T of them: the mean of the domains' errors is lower for own boosts, weighted by Q"
        yield lower(text, at | {"method": MULTI}, at | {"method": OWN}, "mean error")
    most = max(r["rise"] for r in found.rows)
    yield Claim(
        "No round of MultiBoost raises the smoothed maximum of the training losses",
        most <= 1e-9,
        f"largest relative change of a round {most:.1e}",
        everywhere=True,
    )


def _notes(tasks: Mapping[str, Sources], scale: GuisesScale, found: Repeated) -> tuple[str, ...]:
    sizes = "; ".join(f"{name} {len(s.y):,} rows in {s.p} domains" for name, s in tasks.items())
    right = "; ".join(f"{t} {found.where(task=t).rows[0]['Q right']:.0%}" for t in tasks)
    return (
        f"Data: {sizes}; 8 x 8 pixels of nine levels; the background is noise of levels 0 to {NOISE}. "
        f"{scale.divisions} random divisions, {TRAIN:.0%} to train, {CHOOSE:.0%} to choose the number of rounds on, by "
        f"the worst domain's error, the rest to test on; T = {scale.rounds}.",
        "Intervals: 95 %, t, paired, with the variance of Nadeau and Bengio (2003) for divisions that share rows. A "
        "claim goes by the mean of the tasks: it holds if the interval lies on its side, and fails if on the other.",
        f"Chosen here: the guises, T, mu = {SMOOTHING:g}; all methods have the same cuts, depth and number of base "
        "classifiers. Trees are grown greedily by impurity, as scikit-learn's.",
        f"Q names the domain of test rows in the first division: {right}.",
    )


def _draw(found: Repeated) -> Any:
    """Draw the worst domain's test error, a panel for every task: depth and budget along, methods beside."""
    tasks = found.kinds("task")
    figure, axes = blank(len(tasks), width=3.4, height=3.3)
    rows = [r | {"setting": f"{KINDS[r['depth']]},\n{r['budget']}"} for r in found.rows]
    for axis, task in zip(axes, tasks, strict=True):
        mine = Repeated(tuple(r for r in rows if r["task"] == task))
        draw_bars(axis, mine, "worst error", "setting", "method")
        panel(axis, task, y="worst domain's test error, mean and s.d." if task == tasks[0] else "")
    legend(figure, axes[0], columns=len(METHODS))
    return figure


def _draw_images(tasks: Mapping[str, Sources]) -> Any:
    """Draw the first rows of every domain."""
    figure, axes = blank(len(tasks), width=3.0, height=2.2)
    for axis, (name, rows) in zip(axes, tasks.items(), strict=True):
        first = [rows.X[rows.domain == k][:6].reshape(-1, 8, 8) for k in range(rows.p)]
        sheet = [np.pad(image, 1, constant_values=0.5) for images in first for image in images]
        lines = [np.hstack(sheet[6 * k : 6 * k + 6]) for k in range(rows.p)]
        axis.imshow(np.vstack(lines), cmap="gray_r", interpolation="nearest", vmin=0.0, vmax=1.0)
        axis.set_axis_off()
        panel(axis, name)
    return figure
