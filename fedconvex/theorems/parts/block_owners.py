"""What theorems on blocks of rows and columns share: instances, and what they read off a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedconvex import datasets
from fedconvex.driver.rounds import Engine
from fedconvex.hybrid_federation import HybridFederation
from fedconvex.methods import FedBCD, GradientDescent
from fedconvex.problems import HybridProblem, VerticalProblem
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.column_owners import apart, side_by_side
from fedconvex.vertical_federation import VerticalFederation


def problem_of(s: Setting) -> HybridProblem:
    """Return the setting's problem."""
    return s.problem  # type: ignore[return-value]


def dual_gaps(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """Return F* - D(alpha_T) of independent runs, (len(rounds), trajectories)."""
    problem, best = problem_of(s), problem_of(s).solve().value
    engine, found = Engine(s.method, problem, np.uint64(seed), trajectories, 1), {}
    for t, state in engine.loop(engine.start(s.start), 0, max(rounds)):
        if t in rounds:
            found[t] = [best - problem.dual_value(alpha) for alpha in state.alpha]
    return np.array([found[T] for T in rounds])


def models(method: Any, problem: Any, start: np.ndarray, rounds: int) -> list[np.ndarray]:
    """Return the models of all rounds."""
    return [state.w[0] for _, state in iterate(method, problem, rounds=rounds, start=start)]


def by_descent(s: Setting) -> np.ndarray:
    """Return the model of gradient descent on the joined table."""
    return models(GradientDescent(step_size=s.method.step_size), problem_of(s).pooled, s.start, s.rounds)[-1]


def by_columns(s: Setting) -> np.ndarray:
    """Return the model of FedBCD without damping, whose first round asks for the scores of a start."""
    p, m = problem_of(s), s.method
    parts = [p.federation.block(k) for k in range(p.federation.K)]
    columns = VerticalProblem(VerticalFederation.from_blocks(parts, p.y), p.loss, p.l2)
    share = m.step_size / m.local_steps * float(columns.block_smoothness[0])
    method = FedBCD(local_steps=m.local_steps, damping=1.0, step_share=share)
    return models(method, columns, s.start, s.rounds + bool(np.any(s.start)))[-1]


def by_rows(s: Setting) -> np.ndarray:
    """Return the model of FedLin (Mitra et al. 2021), the mean weighted by numbers of rows."""
    p, m, w = problem_of(s), s.method, np.array(s.start)
    clients = [p.federation.block(k) for k in range(p.federation.K)]
    shares = p.federation.heights / p.federation.n

    def slopes(k: int, v: np.ndarray) -> np.ndarray:
        X = clients[k]
        r = [p.loss.slope(z, y) for z, y in zip(X @ v, p.block_labels(k), strict=True)]
        return np.asarray(X.T @ np.array(r) / len(r) + p.l2 * v)

    for _ in range(s.rounds):
        at = [slopes(k, w) for k in range(len(clients))]
        g, ends = shares @ at, []
        for k, own in enumerate(at):
            v = w
            for _ in range(m.local_steps):
                v = v - m.step_size / m.local_steps * (slopes(k, v) - own + g)
            ends.append(v)
        w = shares @ ends
    return w


def _tiny_blocks(tiny: Tiny) -> HybridProblem:
    """Return clients as groups of rows, whose columns are cut in two or left together, or as owners of columns."""
    loss, l2 = LOSSES[tiny.loss](), tiny.knobs["ridge"]
    if tiny.knobs["beside"]:
        columns, y = side_by_side(tiny)
        return _grid(np.hstack(list(columns)), y, loss, l2, 1, len(columns))
    X = np.array(tiny.rows)
    return _grid(X, np.array(tiny.labels), loss, l2, len(tiny.sizes), min(X.shape[1], 1 + int(tiny.knobs["cut"])))


def blocks_space(method: Callable[..., MethodRule], start: Any = apart, **knobs: Whole | Real) -> Space:
    """Return where to look for sharp blocks: few rows and columns, blocks of rows, of columns, or of both."""
    more: dict[str, Whole | Real] = {
        "ridge": Real(0.01, 3.0),
        "against": Whole(0, 1),
        "beside": Whole(0, 1),
        "cut": Whole(0, 1),
    }

    def of(k: Mapping[str, Any]) -> MethodRule:
        return method(**{name: value for name, value in k.items() if name not in more})

    losses = ("squared", "squared", "logistic")
    return Space(of, knobs | more, losses=losses, rounds=(1, 6), problem=_tiny_blocks, start=start, tries=60)


# ---------------------------------------------------------------- instances


def _grid(X: np.ndarray, y: np.ndarray, loss: Any, l2: float, G: int, B: int) -> HybridProblem:
    return HybridProblem(HybridFederation.from_grid(X, y, G, B), loss, l2)


@example("one row, two labels", "2 groups with the same row and other labels, 2 owners each, least squares")
def one_row_two_labels() -> HybridProblem:
    """w* = 0, and dual variables that disagree: D has no curvature but that of the labels."""
    return _grid(np.full((2, 2), np.sqrt(0.5)), np.array([1.0, -1.0]), Squared(), 0.5, 2, 2)


@example("six equal rows", "one group of 6 equal rows with labels of either sign, one owner, least squares")
def six_equal_rows() -> HybridProblem:
    """Five of them in a round gain less than the square of the factor would."""
    return _grid(np.ones((6, 1)), np.array([-1.0, -1.0, -1.0, 1.0, 1.0, 1.0]), Squared(), 0.5, 1, 1)


@example("one column, many owners", "2 x 3 blocks of the same column, least squares")
def one_column() -> HybridProblem:
    """Where owners disagree only l2 has curvature; F's is 1 where they agree."""
    X = np.full((4, 3), np.sqrt(0.25))
    return _grid(X, np.array([1.0, 2.0, 0.5, -1.0]), Squared(), 0.25, 2, 3)


@example("nearly round", "one row of a tenth and a ridge of 1, one owner, least squares")
def nearly_round() -> HybridProblem:
    """F has one curvature nearly: local steps fall short of one long step, and the rate has to say so."""
    return _grid(np.array([[0.1]]), np.array([1.0]), Squared(), 1.0, 1, 1)


@example("blocks with a gap", "8 of 9 blocks of 24 rows and 6 columns, logistic loss")
def with_a_gap() -> HybridProblem:
    """Return groups of 4, 8 and 12 rows, the first without the last two columns."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(24, 6))
    X[:4, 4:] = 0.0
    y = np.where(X @ rng.normal(size=6) + rng.logistic(size=24) > 0.0, 1.0, -1.0)
    table = Federation(X, y, np.array([0, 4, 12, 24]))
    holder = np.array([[0, 1, -1], [2, 3, 4], [5, 6, 7]])
    return HybridProblem(HybridFederation(table, np.array([0, 2, 4, 6]), holder), Logistic(), 0.2)


@example("tumours in blocks", "breast_cancer, 3 hospitals x (means, errors, worst values), logistic loss", "real")
def tumours_in_blocks() -> HybridProblem:
    """Ten columns each, standardised, of 189 or 190 patients."""
    X, y, _ = datasets.load_bundled("breast_cancer")
    return _grid(X, y, Logistic(), 0.1, 3, 3)


@example("tumours by hospital", "breast_cancer, 3 hospitals, 5 columns, logistic loss", "real")
def tumours_by_hospital() -> HybridProblem:
    """One group of columns."""
    X, y, _ = datasets.load_bundled("breast_cancer")
    return _grid(X[:90, :5], y[:90], Logistic(), 0.1, 3, 1)


@example("turned columns", "2 owners of the same 2 columns, turned, 20 rows, logistic loss")
def turned_columns() -> HybridProblem:
    """One group of rows; both owners' blocks are equally smooth."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(20, 2))
    y = np.where(X[:, 0] + rng.logistic(size=20) > 0.0, 1.0, -1.0)
    return _grid(np.hstack([X, X @ np.array([[0.6, 0.8], [-0.8, 0.6]])]), y, Logistic(), 0.1, 1, 2)


def between(problem: HybridProblem) -> np.ndarray:
    """Return a start at which owners of the same column disagree: w* + (1, -1, 0)."""
    return np.asarray(problem.solve().w) + np.array([1.0, -1.0, 0.0])
