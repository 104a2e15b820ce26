"""What theorems on columns of several owners share: instances, and what they read off a run. Nothing is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedconvex import datasets
from fedconvex.problems import VerticalProblem
from fedconvex.theorems.kit import *
from fedconvex.vertical_federation import VerticalFederation


def problem_of(s: Setting) -> VerticalProblem:
    """Return the setting's problem."""
    return s.problem  # type: ignore[return-value]


def duality_gap(problem: VerticalProblem, w: np.ndarray) -> tuple[float, float]:
    """Return P(w) - D(-l'(z)) from the conjugates of the rows' losses, and the size of its terms.

    X'l'(z)/n is off by a share of what is summed up in it, of which a small l2 makes as much as of the sum itself.
    """
    X, loss, l2, n = problem.federation.rows.X, problem.loss, problem.l2, problem.federation.n
    z = X @ w
    slopes = np.array([loss.slope(v, y) for v, y in zip(z, problem.y, strict=True)])
    parts = np.array([(loss.value(v, y), loss.conjugate(r, y)) for v, r, y in zip(z, slopes, problem.y, strict=True)])
    v = X.T @ slopes / n
    gap = float(parts.sum(axis=1).mean()) + 0.5 * l2 * float(w @ w) + 0.5 * float(v @ v) / l2
    rough = traits(loss).smoothness
    bend = (np.abs(X) @ np.abs(w) + np.abs(problem.y)) * (rough if np.isfinite(rough) else 0.0)
    terms = np.abs(X).T @ (np.abs(slopes) + bend) / n
    lost = float((2.0 * np.abs(v) + 100.0 * UNIT * terms) @ terms) / l2
    summed = float(np.abs(parts).sum(axis=1).mean()) + float(np.mean(np.abs(z * slopes)))
    return gap, 1.0 + summed + l2 * float(w @ w) + float(v @ v) / l2 + lost


def side_by_side(tiny: Tiny) -> tuple[np.ndarray, np.ndarray]:
    """Return a tiny problem's clients as owners of columns, (owners, rows, columns), and the labels."""
    n, d = tiny.sizes[0], len(tiny.rows[0])
    return np.array(tiny.rows).reshape(-1, n, d), np.array(tiny.labels[:n])


def apart(tiny: Tiny, problem: Any) -> np.ndarray:
    """Return the minimiser and an offset: for all owners the same, or of either sign in turn."""
    best = np.asarray(problem.solve().w)
    offset = np.resize(tiny.offset, (-(-best.size // len(tiny.offset)), len(tiny.offset)))
    if tiny.knobs["against"]:
        offset[1::2] *= -1.0
    return np.asarray(best + offset.ravel()[: best.size])


def _owners(tiny: Tiny) -> VerticalProblem:
    blocks, y = side_by_side(tiny)
    return VerticalProblem(VerticalFederation.from_blocks(list(blocks), y), LOSSES[tiny.loss](), tiny.knobs["ridge"])


def owners_space(
    method: Callable[..., MethodRule],
    rounds: tuple[int, int],
    losses: tuple[str, ...] = ("squared", "logistic"),
    **knobs: Whole | Real,
) -> Space:
    """Return where to look for sharp columns: one to four owners of the same few rows, every client's rows a block."""
    more: dict[str, Whole | Real] = {"ridge": Real(0.01, 3.0), "against": Whole(0, 1)}

    def of(k: Mapping[str, Any]) -> MethodRule:
        return method(**{name: value for name, value in k.items() if name not in more})

    return Space(of, knobs | more, losses=losses, rounds=rounds, problem=_owners, start=apart, tries=60)


def between(problem: VerticalProblem) -> np.ndarray:
    """Return a start at which owners of the same column disagree: w* + (1, -1, 0)."""
    return np.asarray(problem.solve().w) + np.array([1.0, -1.0, 0.0])


def _split(X: np.ndarray, y: np.ndarray, loss: object, l2: float, *ends: int) -> VerticalProblem:
    blocks = [X[:, a:b] for a, b in zip((0, *ends), (*ends, X.shape[1]), strict=True)]
    return VerticalProblem(VerticalFederation.from_blocks(blocks, y), loss, l2)


@example("one column thrice", "3 owners of the same column, least squares")
def one_column_thrice() -> VerticalProblem:
    """L_b = 1, l2 = 1/4: Pi H is 5/2 where the owners agree, and 1/4 where they disagree."""
    x = np.sqrt(0.75) * np.ones((4, 1))
    return VerticalProblem(VerticalFederation.from_blocks([x, x, x], [1.0, 2.0, 0.5, -1.0]), Squared(), 0.25)


@example("three owners", "3 owners of 3, 3 and 4 columns of 60 rows, logistic loss")
def three_owners() -> VerticalProblem:
    """Columns fall in size to a tenth, and are correlated."""
    rng = np.random.default_rng(0)
    scale = 10.0 ** (-np.arange(10) / 9.0)
    X = (rng.normal(size=(60, 10)) + rng.normal(size=(60, 1))) * scale
    y = np.where(X @ (rng.normal(size=10) / scale) + 2.0 * rng.logistic(size=60) > 0.0, 1.0, -1.0)
    return _split(X, y, Logistic(), 0.05, 3, 6)


@example("shared direction", "3 owners of 3 columns each that share a direction, 80 rows, least squares")
def shared_direction() -> VerticalProblem:
    """Undamped blocks overshoot."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(80, 9)) @ (0.4 * np.eye(9) + 0.2)
    return _split(X, X @ rng.normal(size=9) + 0.3 * rng.normal(size=80), Squared(), 0.05, 3, 6)


@example("tumours", "breast_cancer, means, errors and worst values at 3 owners, logistic loss", "real")
def tumours() -> VerticalProblem:
    """Ten columns each, which measure the same nuclei."""
    X, y, _ = datasets.load_bundled("breast_cancer")
    return _split(X, y, Logistic(), 0.1, 10, 20)


@example("blood", "diabetes, 5 owners of two columns, least squares", "real")
def blood() -> VerticalProblem:
    """Serum measurements are correlated across owners: undamped blocks diverge."""
    X, y, _ = datasets.load_bundled("diabetes")
    return _split(X, (y - y.mean()) / y.std(), Squared(), 0.1, 2, 4, 6, 8)
