"""Rounds to a test accuracy over local epochs and similarity of clients: Karimireddy et al. (ICML 2020), Table 3.

1. N = 100 clients of equal size: s % of the rows at random, the rest sorted by label; s = 0, 10, 100.
2. Multinomial logistic regression, from w = 0; 20 clients a round.
3. SGD: one full gradient a client and round. SCAFFOLD (option II), FedAvg, FedProx (mu = 1): 1, 5, 10, 20 local epochs
   of 5 steps, each on a fifth of the client's rows.
4. Rounds until the test accuracy first reaches a target, at most 1000; server step 1, local step of a grid: the one
   with the fewest rounds, chosen for every cell of the table.
5. The target is the largest of a list that gradient descent on all clients surpasses by 0.02.

A run carries the whole grid of step sizes, and ends when the winner is known.
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
import scipy.sparse as sp

from fedconvex._check import bad
from fedconvex.datasets import load_bundled, partition_similarity
from fedconvex.driver import iterate
from fedconvex.federation import Federation
from fedconvex.losses import Softmax
from fedconvex.methods import SCAFFOLD, FedAvg, FedProx, FedSGD
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress, progress_part
from fedconvex.papers.finished_parts import finished_part
from fedconvex.papers.images import accuracies, read_images, scaled
from fedconvex.papers.intervals import every
from fedconvex.papers.step_grids import grid_notes
from fedconvex.papers.style import COLOURS, DASHED, blank, legend, panel
from fedconvex.problems import Problem

CLIENTS, SAMPLED, STEPS, LIMIT = 100, 20, 5, 1000  # of the paper: N, clients a round, steps an epoch, most rounds
PROXIMAL = 1.0  # of the paper: mu of FedProx
SIMILARITIES, EPOCHS = (0, 10, 100), (1, 5, 10, 20)  # of the paper
TARGETS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)  # chosen here: claims speak of the largest that is at most
MARGIN = 0.02  # less than what gradient descent on all clients attains
DESCENT, DESCENT_STEPS = 300, (0.1, 0.3, 1.0, 3.0)  # chosen here: its rounds and step sizes
MOST_BATCH, MOST_TEST = 12, 2000  # chosen here: rows of a batch (a client has five batches), and rows to test on
LEAST_RUNS = 3  # of a claim, whose counts must be in order in all runs; chosen here
_SLACK_ROUNDS, _SLACK_SHARE = 1.0, 0.1  # what two counts of rounds may differ by and still count as equal
USUAL = {"SGD": 40.0, "SCAFFOLD": 30.0, "FedAvg": 60.0, "FedProx": 180.0}  # rounds, for the progress line only
PAPER = {  # rounds to test accuracy 0.5 on EMNIST at 0, 10, 100 % similarity; inf: not within 1000
    ("SGD", 1): (317, 365, 416),
    ("SCAFFOLD", 1): (77, 62, 60),
    ("SCAFFOLD", 5): (152, 20, 10),
    ("SCAFFOLD", 10): (286, 16, 7),
    ("SCAFFOLD", 20): (266, 11, 4),
    ("FedAvg", 1): (258, 74, 83),
    ("FedAvg", 5): (428, 34, 10),
    ("FedAvg", 10): (711, 25, 6),
    ("FedAvg", 20): (math.inf, 18, 4),
    ("FedProx", 1): (math.inf, 979, 459),
    ("FedProx", 5): (math.inf, 794, 351),
    ("FedProx", 10): (math.inf, 894, 308),
    ("FedProx", 20): (math.inf, 916, 351),
}


class Images(NamedTuple):
    """Rows with classes, divided into training and test rows; the last column of X is one."""

    name: str
    X: Any  # (n, d), dense or CSR
    y: np.ndarray  # (n,) 0, ..., C - 1
    X_test: Any  # (m, d)
    y_test: np.ndarray  # (m,)

    @property
    def classes(self) -> int:
        """Number of classes C."""
        return int(self.y.max()) + 1


class SimilarityScale(NamedTuple):
    """How large the experiment is."""

    similarities: tuple[int, ...]
    epochs: tuple[int, ...]
    seeds: int  # trajectories of every step size, odd
    limit: int  # most rounds


FULL, LARGE = SimilarityScale(SIMILARITIES, EPOCHS, 3, LIMIT), SimilarityScale(SIMILARITIES, EPOCHS, 1, LIMIT)
QUICK = SimilarityScale((0,), (1, 5), 1, LIMIT)


class Cell(NamedTuple):
    """One cell of the table: rounds to each target with the step size that needed fewest."""

    method: str
    epochs: int
    similarity: int
    targets: tuple[float, ...]
    rounds: np.ndarray  # (targets,) median of the trajectories, inf where not reached
    spread: np.ndarray  # (targets, 2) fewest and most
    step_size: np.ndarray  # (targets,)
    edge: np.ndarray  # (targets,) whether that is the first or last step size of the grid


# ---------------------------------------------------------------- data


def load_images(path: str | os.PathLike[str] | None = None, seed: int = 0) -> Images:
    """Read the images, and choose the rows of 100 clients with five equal batches each.

    Parameters
    ----------
    path : path, optional
        An npz archive with x_train (n, ...), y_train (n,), x_test (m, ...), y_test (m,), as MNIST is often stored;
        labels 0, ..., C - 1. Default: the 1,797 digits of scikit-learn.
    seed : int
        Of the choice of rows.

    Raises
    ------
    ValueError
        If the file is no such archive, its arrays do not fit, or there are fewer than 500 rows to train on.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> from fedconvex.papers.scaffold_similarity import load_images
    >>> images = load_images()
    >>> images.X.shape, images.X_test.shape, images.classes
    ((1500, 65), (297, 65), 10)
    """
    rng = np.random.default_rng(seed)
    if path is None:
        digits = load_bundled("digits", standardised=False)
        order = rng.permutation(len(digits.y))
        X, y, name = digits.X[order], digits.y[order], "digits of scikit-learn (8 x 8)"
        return _images(name, X[:1500], y[:1500], X[1500:], y[1500:])
    who = f"--data {Path(path).name}"
    arrays = read_images(path)
    X, X_test = (arrays[key].reshape(len(arrays[key]), -1) for key in ("x_train", "x_test"))
    rows = CLIENTS * STEPS * min(MOST_BATCH, len(X) // (CLIENTS * STEPS))
    if rows == 0:
        raise bad(f"{who}: x_train", f"have at least {CLIENTS * STEPS} rows", len(X))
    train, test = rng.permutation(len(X))[:rows], rng.permutation(len(X_test))[:MOST_TEST]
    y, y_test = arrays["y_train"].astype(float), arrays["y_test"].astype(float)
    return _images(Path(path).stem, X[train].astype(float), y[train], X_test[test].astype(float), y_test[test])


def _images(name: str, X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray) -> Images:
    """Scale by the largest entry of X, append a column of ones, and store mostly empty rows as CSR."""
    if int(y.max()) < 1:
        raise bad(f"{name}: labels", "have at least two classes", "one")
    X, X_test = scaled(X, X_test)
    sparse = X.shape[1] > 200 and np.count_nonzero(X) < 0.3 * X.size
    return Images(name, sp.csr_array(X) if sparse else X, y, sp.csr_array(X_test) if sparse else X_test, y_test)


# ---------------------------------------------------------------- measuring


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Fill the table cell by cell; data: a path as for `load_images`."""
    images, scale = load_images(data, seed), QUICK if quick else FULL if data is None else LARGE
    cells, done, todo = [], 0.0, list(_cells(scale))
    total = sum(cost for *_, cost in todo)
    problems = {s: _problem(images, s, seed) for s in scale.similarities}
    attained = _attained(problems[scale.similarities[-1]], images)
    targets = tuple(t for t in TARGETS if t == TARGETS[0] or t <= attained - MARGIN)  # 5
    for method, epochs, s, cost in todo:
        name = method if method == "SGD" else f"{method}, {epochs} epochs"
        at = progress_part(tell, done / total, (done + cost) / total, f"{name}, similarity {s} %, ")
        cell = partial(_cell, problems[s], images, scale, targets, method, epochs, s, seed, at)
        cells.append(finished_part(f"{name}, {s}", cell, (Cell,)))
        done += cost
    title = f"Rounds to test accuracy on {images.name}: local epochs and similarity (Karimireddy et al. 2020, Table 3)"
    tables, figures = {"table": _table(cells), "rounds": list(_long(cells))}, {"rounds": _draw(scale, cells)}
    return Findings(title, tuple(_claims(cells, scale.seeds)), _notes(images, scale, cells, attained), figures, tables)


EXPERIMENT = Experiment(
    "scaffold-similarity",
    "rounds to a test accuracy for SGD, SCAFFOLD, FedAvg, FedProx over local epochs and similarity of clients",
    study,
    "optional npz with x_train, y_train, x_test, y_test (MNIST); default the bundled digits",
    "0 % similarity, 1 and 5 epochs, one run",
)


def _problem(images: Images, similarity: int, seed: int) -> Problem:
    owners = partition_similarity(images.y, CLIENTS, similarity, seed)  # 1
    return Problem(Federation.from_arrays(images.X, images.y, owners), Softmax(images.classes))  # 2


def _cells(scale: SimilarityScale) -> Iterator[tuple[str, int, int, float]]:
    """Yield method, epochs, similarity and a rough cost: (epochs + 1) times the rounds seen on digits."""
    for s in scale.similarities:
        yield "SGD", 1, s, 2.0 * USUAL["SGD"]
        for method in ("SCAFFOLD", "FedAvg", "FedProx"):
            for epochs in scale.epochs:
                yield method, epochs, s, (1.0 + epochs) * USUAL[method] * (0.6 if s == 100 else 1.0)


def _steps(method: str, epochs: int) -> np.ndarray:
    """Return the grid: eight step sizes a factor sqrt(10) apart, up to 30 for SGD, 30/sqrt(local steps) else."""
    top = 30.0 if method == "SGD" else 30.0 / math.sqrt(STEPS * epochs)
    return top * 10.0 ** (-np.arange(8.0) / 2.0)


def _method(method: str, step_size: np.ndarray, epochs: int, batch: int) -> Any:
    if method == "SGD":
        return FedSGD(step_size=step_size, participation=SAMPLED)
    local: dict[str, Any] = {"epochs": epochs, "batch_size": batch, "participation": SAMPLED}
    if method == "SCAFFOLD":
        return SCAFFOLD(step_size=step_size, option=2, **local)
    if method == "FedProx":
        return FedProx(step_size=step_size, proximal_mu=PROXIMAL, **local)
    return FedAvg(step_size=step_size, **local)


def _cell(
    problem: Problem, images: Images, scale: SimilarityScale, targets: Sequence[float],
    method: str, epochs: int, s: int, seed: int, tell: Progress,
) -> Cell:  # fmt: skip
    """Run the whole grid of step sizes until the fewest rounds to the last target are known."""  # 3
    grid, batch = _steps(method, epochs), int(problem.federation.sizes[0]) // STEPS
    step_size = np.repeat(grid, scale.seeds)
    first = np.full((step_size.size, len(targets)), np.inf)  # rounds to each target
    runs = iterate(
        _method(method, step_size, epochs, batch), problem, rounds=scale.limit, seed=seed, trajectories=step_size.size
    )
    for t, state in runs:
        reached = accuracies(state.w, images.X_test, images.y_test)[:, None] >= targets
        first[reached & np.isinf(first)] = t
        if _decided(first[:, -1].reshape(grid.size, scale.seeds)):
            break
        tell(t / (t + USUAL[method]), f"round {t}")
    return _tuned(method, epochs, s, grid, first.reshape(grid.size, scale.seeds, len(targets)), targets)


def _attained(problem: Problem, images: Images) -> float:
    """Return the best test accuracy after gradient descent on all clients."""
    w = None
    for _, state in iterate(FedSGD(step_size=DESCENT_STEPS), problem, rounds=DESCENT, trajectories=len(DESCENT_STEPS)):
        w = state.w
    return float(accuracies(np.asarray(w), images.X_test, images.y_test).max())


def _decided(first: np.ndarray) -> bool:
    """Whether the step size of smallest median is known, with all its trajectories; first is (steps, seeds)."""
    median = np.median(first, axis=1)
    return bool(np.isfinite(first[int(np.argmin(median))]).all())


def _tuned(method: str, epochs: int, s: int, grid: np.ndarray, first: np.ndarray, targets: Sequence[float]) -> Cell:
    """Choose for every target the step size with the fewest rounds, the smaller spread on ties."""  # 4
    median, most = np.median(first, axis=1), first.max(axis=1)
    best = np.array([np.lexsort((most[:, j], median[:, j]))[0] for j in range(first.shape[2])])
    at = (best, np.arange(best.size))
    spread = np.stack([first.min(axis=1)[at], most[at]], axis=1)
    missed = np.isinf(median[at])
    edge = ((best == 0) | (best == grid.size - 1)) & ~missed
    return Cell(method, epochs, s, tuple(targets), median[at], spread, np.where(missed, np.nan, grid[best]), edge)


# ---------------------------------------------------------------- tables


def _shown(rounds: float) -> str:
    return "1k+" if math.isinf(rounds) else f"{rounds:g}"


def _table(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return the paper's table for the last target, beside the paper's numbers."""
    found = {(c.method, c.epochs, c.similarity): c for c in cells}
    similarities = sorted({c.similarity for c in cells})
    rows = []
    for method, epochs in dict.fromkeys((c.method, c.epochs) for c in cells):
        row: dict[str, Any] = {"method": method, "epochs": epochs}
        for s in similarities:
            cell = found[method, epochs, s]
            row[f"{s} %"] = _shown(cell.rounds[-1])
            low, high = cell.spread[-1]
            row[f"{s} % spread"] = "" if low == high else f"{_shown(low)}-{_shown(high)}"
        for s in similarities:
            row[f"paper {s} %"] = _shown(PAPER[method, epochs][SIMILARITIES.index(s)])
        rows.append(row)
    return rows


def _long(cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    for c in cells:
        for j, target in enumerate(c.targets):
            yield {
                "method": c.method,
                "epochs": c.epochs,
                "similarity": c.similarity,
                "target": target,
                "rounds": float(c.rounds[j]),
                "fewest": float(c.spread[j, 0]),
                "most": float(c.spread[j, 1]),
                "step_size": float(c.step_size[j]),
                "edge_of_grid": bool(c.edge[j]),
            }


# ---------------------------------------------------------------- claims


Runs = tuple[float, float, float]  # rounds: median, fewest, most


def _claims(cells: Sequence[Cell], runs: int) -> Iterator[Claim]:
    """Judge what the paper concludes from its table, by the runs farthest apart; "1k+" equals any number above."""
    counts = {(c.method, c.epochs, c.similarity): (float(c.rounds[-1]), *c.spread[-1].tolist()) for c in cells}
    for claim in _judged(counts):
        few = runs < LEAST_RUNS
        yield claim._replace(holds=None, needs=f"{LEAST_RUNS} runs, here {runs}") if few else claim


def _judged(counts: Mapping[tuple[str, int, int], Runs]) -> Iterator[Claim]:
    similarities, epochs = sorted({s for *_, s in counts}), sorted({e for _, e, _ in counts})
    if 0 in similarities:
        fedavg, scaffold = ([counts[m, e, 0] for e in epochs] for m in ("FedAvg", "SCAFFOLD"))
        sgd = counts["SGD", 1, 0]
        over = ", ".join(str(e) for e in epochs)
        rises = [_below(a, b) for a, b in itertools.pairwise(fedavg)]
        yield Claim(
            "At 0 % similarity FedAvg gets slower with local epochs: at no increase faster, at last slower",
            every((*rises, _not(_below(fedavg[-1], fedavg[0])))),
            f"rounds at {over} epochs: {_list(fedavg)}",
        )
        yield Claim(
            "At 0 % similarity FedAvg with most epochs is slower than SGD",
            _not(_below(fedavg[-1], sgd)),
            f"FedAvg {_list([fedavg[-1]])}, SGD {_list([sgd])}",
        )
        yield Claim(
            "At 0 % similarity SCAFFOLD does not fall behind SGD, whatever the epochs",
            every(_below(a, sgd) for a in scaffold),
            f"rounds at {over} epochs: {_list(scaffold)}; SGD {_list([sgd])}",
        )
    yield _ordered("SCAFFOLD is never slower than FedAvg", "SCAFFOLD", "FedAvg", counts)
    yield _ordered("FedAvg is never slower than FedProx", "FedAvg", "FedProx", counts)
    for s in (s for s in similarities if s > 0):
        ends = {m: (counts[m, epochs[0], s], counts[m, epochs[-1], s]) for m in ("SCAFFOLD", "FedAvg")}
        yield Claim(
            f"At {s} % similarity SCAFFOLD and FedAvg need fewer rounds with {epochs[-1]} epochs than with one",
            every(True if b[2] < a[1] else False if b[1] >= a[2] else None for a, b in ends.values()),
            "; ".join(f"{m} {_list([a])} to {_list([b])}" for m, (a, b) in ends.items()),
        )
    if len(similarities) > 1:
        sgd_all = [counts["SGD", 1, s] for s in similarities]
        wide = max(c[2] for c in sgd_all) <= 2.0 * min(c[1] for c in sgd_all)
        apart = max(c[1] for c in sgd_all) > 2.0 * min(c[2] for c in sgd_all)
        yield Claim(
            "SGD stays about constant over similarity: within a factor of two",
            True if wide else False if apart else None,
            f"rounds at {', '.join(str(s) for s in similarities)} %: {_list(sgd_all)}",
        )


def _ordered(text: str, fast: str, slow: str, counts: Mapping[tuple[str, int, int], Runs]) -> Claim:
    """Compare two methods in every cell."""
    pairs = {(e, s): (r, counts[slow, e, s]) for (m, e, s), r in counts.items() if m == fast}
    verdicts = {cell: _below(a, b) for cell, (a, b) in pairs.items()}
    numbers = f"{fast} has fewer rounds in {sum(a[0] < b[0] for a, b in pairs.values())} of {len(pairs)} cells"
    for verdict, words in ((False, "slower in"), (None, "open in")):
        found = [f"{e} epochs, {s} %: {_list(pairs[e, s], ' and ')}" for (e, s), v in verdicts.items() if v is verdict]
        numbers += f"; {words} {'; '.join(found)}" if found else ""
    return Claim(text, every(verdicts.values()), numbers)


def _below(a: Runs, b: Runs) -> bool | None:
    """Whether a <= b, up to one round or a tenth: of all runs, of none (false), or of some."""
    most, least = (x + max(_SLACK_ROUNDS, _SLACK_SHARE * x if math.isfinite(x) else 0.0) for x in (b[2], b[1]))
    return True if a[2] <= least else False if a[1] > most else None


def _not(verdict: bool | None) -> bool | None:
    return None if verdict is None else not verdict


def _list(counts: Sequence[Runs], between: str = ", ") -> str:
    """Return medians, with fewest and most where these differ."""
    return between.join(_shown(m) + (f" ({_shown(a)}-{_shown(b)})" if a < b else "") for m, a, b in counts)


def _notes(images: Images, scale: SimilarityScale, cells: Sequence[Cell], attained: float) -> tuple[str, ...]:
    n, m, d = images.X.shape[0], images.X_test.shape[0], images.X.shape[1] - 1
    edge = [f"{c.method} {c.epochs} at {c.similarity} %" for c in cells if c.edge[-1]]
    several = f"median of {scale.seeds} runs, spread fewest to most" if scale.seeds > 1 else "one run"
    return (
        f"Data: {images.name}, {n:,} rows to train on, {n // CLIENTS} a client, batches of {n // CLIENTS // STEPS}; "
        f"{m:,} to test on; {d} features and a constant, {images.classes} classes, no ridge.",
        f"Rounds to test accuracy {cells[0].targets[-1]:g}, {several}; 1k+ where {scale.limit} rounds did not suffice. "
        f"{DESCENT} steps of gradient descent on all clients attain {attained:.3f}. Lower targets are in the table "
        "`rounds`. Counts that differ by one round or a tenth count as equal in claims.",
        "Taken from the paper: 100 clients, 20 a round, division by similarity, 5 steps an epoch, server step 1, "
        "option II, FedProx with mu = 1, at most 1000 rounds, local step chosen for every cell by fewest rounds.",
        "Chosen here: data and target (EMNIST and 0.5 in the paper), and grids of eight steps a factor sqrt(10) apart, "
        "up to 30 for SGD and 30/sqrt(local steps) for others; the paper does not print its grid.",
        "Comparable with the paper: directions, orderings and ratios within a column. Not comparable: the counts of "
        "rounds (EMNIST has 62 classes and far more rows) and small differences (one data division; the first round "
        "that reaches the target favours noisy runs).",
        *grid_notes(edge),
    )


# ---------------------------------------------------------------- figure


def _draw(scale: SimilarityScale, cells: Sequence[Cell]) -> Any:
    """Draw rounds over epochs, a panel for every similarity; dashed: the paper's."""
    figure, axes = blank(len(scale.similarities), width=3.6, height=3.9, sharey=True)
    for axis, s in zip(axes, scale.similarities, strict=True):
        mine = [c for c in cells if c.similarity == s]
        for j, method in enumerate(("SGD", "SCAFFOLD", "FedAvg", "FedProx")):
            some = [c for c in mine if c.method == method]
            x = np.array([c.epochs for c in some]) if method != "SGD" else np.array(scale.epochs)
            count = x.size // len(some)
            y = np.repeat([c.rounds[-1] for c in some], count)
            paper = np.repeat([PAPER[method, c.epochs][SIMILARITIES.index(s)] for c in some], count).astype(float)
            spread = np.array([c.spread[-1] for c in some])
            colour, marker = COLOURS[j], "" if method == "SGD" else "osD^"[j]
            shift = 1.0 if method == "SGD" else 1.04 ** (j - 2)
            top = np.minimum(y, scale.limit)
            axis.plot(x * shift, top, color=colour, linewidth=1.8, marker=marker, markersize=4.5)
            axis.plot(x * shift, np.minimum(paper, LIMIT), color=colour, linewidth=0.9, linestyle=DASHED, alpha=0.75)
            if method != "SGD":
                low, high = np.clip(spread, 1.0, scale.limit).T
                axis.vlines(x * shift, np.maximum(low, 1.0), high, color=colour, linewidth=1.0)
            for xi in x[np.isinf(y)] * shift:
                axis.annotate(
                    "", (xi, scale.limit * 1.5), (xi, scale.limit), arrowprops={"arrowstyle": "->", "color": colour}
                )
        _name_curves(axis, scale, mine)
        panel(axis, f"{s} % similarity", "local epochs", log="xy")
        axis.set_xticks(scale.epochs, [str(e) for e in scale.epochs])
        axis.minorticks_off()
        axis.set_xlim(0.85 * min(scale.epochs), 3.2 * max(scale.epochs))
    axes[0].set_ylabel(f"rounds to test accuracy {cells[0].targets[-1]:g}")
    looks = {
        "measured": {"color": "0.4", "linewidth": 1.8},
        "the paper's, accuracy 0.5 on EMNIST": {"color": "0.4", "linewidth": 0.9, "linestyle": DASHED},
    }
    legend(figure, looks=looks, columns=2)
    return figure


def _name_curves(axis: Any, scale: SimilarityScale, mine: Sequence[Cell]) -> None:
    """Write names at the right ends of the measured curves, apart from each other."""
    last = max(scale.epochs)
    ends = sorted(
        (min(float(c.rounds[-1]), scale.limit), c.method) for c in mine if c.method == "SGD" or c.epochs == last
    )
    order, y = ("SGD", "SCAFFOLD", "FedAvg", "FedProx"), 0.0
    for end, name in ends:
        y = max(end, 1.32 * y)
        axis.annotate(
            name, (1.12 * last, end), (1.22 * last, y), fontsize=8, va="center", color=COLOURS[order.index(name)]
        )
