"""The two exact solutions for every l2, and methods over their rounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fedconvex.methods import AFL, FedAvg, OptimisticAFL
from fedconvex.papers.agnostic_fashion.data import ClassDomains, problem_of
from fedconvex.papers.findings import Progress, progress_part
from fedconvex.papers.step_grids import TunedRun, tuned_run

PATH = (1e-1, 1e-2, 1e-3, 1e-4)  # l2, on averaged images
L2 = 1e-2  # on images as they are, and of the runs


class FashionScale(NamedTuple):
    """What is solved and run."""

    solved: tuple[tuple[int, tuple[float, ...]], ...]  # block of pixels, and l2
    judged: tuple[int, ...]  # blocks whose claims count
    rounds: int
    batch: int
    steps: tuple[float, ...]
    domain_step_sizes: tuple[float, ...]


FULL = FashionScale(((2, PATH), (1, PATH)), (2,), 2000, 20, (0.01, 0.03, 0.1, 0.3), (0.01, 0.1))
LARGE = FashionScale(((2, PATH), (1, (L2,))), (2, 1), 2000, 100, (0.01, 0.03, 0.1, 0.3), (0.01, 0.1))
QUICK = FashionScale(((2, (1e-1, 1e-2)),), (2,), 200, 20, (0.03, 0.1), (0.1,))


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


class ClassesRun(NamedTuple):
    """A method over its rounds."""

    run: TunedRun
    accuracy: np.ndarray  # (T, 3) on test rows


def possible(scale: FashionScale, data: ClassDomains) -> FashionScale:
    """Leave out blocks that do not fit the images."""
    shape = data.images.shape[1:]

    def fits(block: int) -> bool:
        return block == 1 or (len(shape) == 2 and all(side % block == 0 for side in shape))

    solved = tuple(v for v in scale.solved if fits(v[0])) or ((1, scale.solved[0][1]),)
    return scale._replace(solved=solved, judged=tuple(b for b in scale.judged if fits(b)) or (1,))


def compared(data: ClassDomains, block: int, l2: float, at: Progress) -> Comparison:
    """Return the two exact solutions on the test rows of all folds."""
    found: list[tuple[Any, ...]] = []
    for k in range(len(data.folds)):
        problem, X_test, y_test = problem_of(data, k, block, l2)
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
        lam = np.array([problem.weights, minimax.domain_weights])
        tested = [_rows(X_test, y_test, w) for w in pair]
        losses, right = (np.array(v) for v in zip(*tested, strict=True))
        found.append((objective, max(pooled.gap, minimax.gap), lam, trained, y_test, losses, right, problem.size))
    parts = list(zip(*found, strict=True))
    objective, lam, trained = (np.mean(parts[i], axis=0) for i in (0, 2, 3))
    y, losses, right = np.concatenate(parts[4]), *(np.concatenate(parts[i], axis=1) for i in (5, 6))
    return Comparison(block, l2, parts[7][0], objective, max(parts[1]), lam, y, losses, right, trained)


def _rows(X: np.ndarray, y: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss of every test row, and whether it is predicted correctly."""
    scores = X @ w.T
    losses = np.logaddexp.reduce(scores, axis=1) - scores[np.arange(len(y)), y]
    return losses, np.argmax(scores, axis=1) == y


def class_runs(data: ClassDomains, scale: FashionScale, seed: int, tell: Progress) -> Iterator[ClassesRun]:  # 5
    """Yield the methods on the averaged images, each with its best step sizes."""
    problem, X_test, y_test = problem_of(data, 0, scale.solved[0][0], L2)
    lower, B = problem.solve_minimax().lower, int(min(scale.batch, problem.federation.sizes.min()))
    steps, pair = np.array(scale.steps), np.repeat(scale.steps, len(scale.domain_step_sizes))
    lam = np.tile(scale.domain_step_sizes, len(scale.steps))
    few = max(1, scale.rounds // 10)
    todo: list[tuple[str, Any, np.ndarray | None, int]] = [
        (f"pooled SGD, batches of {B}", FedAvg(step_size=steps, local_steps=1, batch_size=B), None, scale.rounds),
        (f"AFL, batches of {B}", AFL(step_size=pair, domain_step_size=lam, batch_size=B), lam, scale.rounds),
        ("OptimisticAFL", OptimisticAFL(step_size=pair, domain_step_size=10 * lam), 10 * lam, few),
    ]
    for i, (name, method, lam_steps, rounds) in enumerate(todo):
        marks = set(np.unique(np.round(np.geomspace(2, rounds, 40)).astype(int)).tolist())
        at = progress_part(tell, i / len(todo), (i + 1) / len(todo))
        run = tuned_run(name, method, lam_steps, problem, lower, rounds, marks, seed, at)
        right = [_rows(X_test, y_test, w)[1] for w in run.models]
        yield ClassesRun(run, np.array([[r[y_test == c].mean() for c in range(3)] for r in right]))
