"""Blocks of rows and columns: dual ascent on grids of row groups and column groups, its contraction beside the bound.

1. Rows of a9a, or breast_cancer with standardised columns over sqrt(d), cut into G x B blocks, logistic loss.
2. From alpha = 0, H rows of every group a round, several runs: the mean of F* - D(alpha_T), and by which factor a round
   it has fallen.
3. The bound of that factor, 1 - H s/n_g, or (1 - s)^2 where all rows move (docs/theory/hybrid.md).
4. Numbers up: H scores and d_b coordinates of every owner and round.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import scipy.sparse as sp

from fedconvex._check import bad
from fedconvex.datasets import load_bundled
from fedconvex.driver import iterate
from fedconvex.driver import run as run_method
from fedconvex.hybrid_federation import HybridFederation
from fedconvex.losses import Logistic
from fedconvex.methods import HybridDualAscent
from fedconvex.papers.archive import read_archive
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.intervals import Interval, every, mean_interval
from fedconvex.papers.style import COLOURS, blank, legend, panel
from fedconvex.problems import HybridProblem
from fedconvex.theorems.hybrid import hybrid_dual_rate

L2, SMOOTHNESS = 1e-2, 0.25
KEYS = ("data", "indices", "indptr", "shape", "y")


class Scale(NamedTuple):
    """How large the experiment is."""

    groups: tuple[int, ...]  # G
    columns: tuple[int, ...]  # B
    shares: tuple[float, ...]  # H/n_g
    rounds: int
    runs: int
    rows: int | None  # of a9a


FULL = Scale((1, 2, 4, 8), (1, 2, 4), (0.05, 0.25, 1.0), 40, 8, None)
QUICK = Scale((1, 4), (1, 3), (0.1, 1.0), 20, 4, 2000)


class Cell(NamedTuple):
    """One grid and number of rows a round."""

    groups: int
    columns: int
    moves: int  # rows a round
    share: float  # of a group's rows, the least
    measured: float  # factor a round
    bound: float
    up: int  # numbers a round
    formula: int
    half: float = 0.0  # of the interval of the measured factor over the runs


def load_rows(data: Any, rows: int | None) -> tuple[str, Any, np.ndarray]:
    """Return name, features and labels of an npz of CSR arrays (data, indices, indptr, shape, y); None: breast_cancer.

    Raises
    ------
    ValueError
        If labels are not -1 and 1, one a row, or arrays are no CSR matrix.
    """
    if data is None:
        X, y, _ = load_bundled("breast_cancer")
        return "breast_cancer", X / np.sqrt(X.shape[1]), y
    who = f"--data {Path(data).name}"
    a = read_archive(data, KEYS, lambda key: False, ", ".join(KEYS))
    try:
        parts = (a["data"].astype(float), a["indices"].astype(np.int64), a["indptr"].astype(np.int64))
        X = sp.csr_array(parts, shape=tuple(int(v) for v in a["shape"]))
        X.check_format(full_check=True)
    except (ValueError, TypeError, IndexError) as error:
        raise bad(who, "hold a CSR matrix in data, indices, indptr, shape", str(error)) from None
    y = a["y"].astype(float)
    if y.shape != (X.shape[0],) or not np.isin(y, (-1.0, 1.0)).all():
        raise bad(f"{who}: y", f"hold {X.shape[0]} labels, -1 and 1", f"shape {y.shape}")
    return Path(data).stem, X[:rows], y[:rows]


def cell(problem: HybridProblem, H: int, scale: Scale, seed: int) -> Cell:
    """Return the contraction of dual ascent with H rows of every group a round."""
    fed, T = problem.federation, scale.rounds
    method = HybridDualAscent(batch_size=H)
    best, asked, gaps = problem.solve().value, cast(Any, problem), {}
    for t, state in iterate(method, asked, rounds=T, seed=seed, trajectories=scale.runs):
        if t in (0, T):
            gaps[t] = mean_interval([best - problem.dual_value(alpha) for alpha in state.alpha])
    sizes = fed.rows.sizes
    heights = np.minimum(H, sizes)
    N, q = int(heights.sum()), float((heights / sizes).min())
    R = float(np.sqrt(problem.row_norms.max()))
    first, last = gaps[0].mean, gaps[T].mean
    bound = hybrid_dual_rate(L2, fed.n, 1.0 / SMOOTHNESS, N, q, R, T, first).value
    one = run_method(method, asked, rounds=1, tol=0.0, seed=seed, progress=False)
    up = int(one.trace.floats_up[-1])
    formula = fed.B * N + fed.G * fed.d
    measured = max(last / first, 1e-300) ** (1.0 / T)
    half = measured * gaps[T].half / (T * max(last, 1e-300))  # d(log factor) = d(log gap)/T
    return Cell(fed.G, fed.B, N, q, measured, (bound / first) ** (1.0 / T), up, formula, half)


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Measure all grids; data: a path as for `load_rows`."""
    scale = QUICK if quick else FULL
    name, X, y = load_rows(data, scale.rows)
    grids = [(G, B) for G in scale.groups for B in scale.columns]
    cells = []
    for i, (G, B) in enumerate(grids):
        tell(i / len(grids), f"{G} x {B} blocks")
        problem = HybridProblem(HybridFederation.from_grid(X, y, G, B), Logistic(), L2)
        cells += [cell(problem, math.ceil(share * len(y) / G), scale, seed) for share in scale.shares]
    return Findings(
        f"Blocks of rows and columns, {name}: contraction of dual ascent beside its bound",
        tuple(_claims(cells)),
        (
            f"Data: {len(y):,} rows, {X.shape[1]} features, l2 = {L2:g}; {scale.runs} runs of {scale.rounds} rounds.",
            "Factors are those of F* - D(alpha) a round, the root of the quotient over all rounds.",
        ),
        {"contraction": _draw(cells)},
        {"table": [_row(c) for c in cells]},
    )


EXPERIMENT = Experiment(
    "hybrid-blocks",
    "blocks of rows and columns: contraction of certified dual ascent on grids of owners, beside its bound",
    study,
    "optional npz of a9a as CSR arrays; default bundled breast_cancer",
    "fewer grids, rounds and runs, and of a9a 2,000 rows",
)


# ---------------------------------------------------------------- what came out


def _claims(cells: Sequence[Cell]) -> Iterator[Claim]:
    worst = max(cells, key=lambda c: c.measured - c.bound)
    yield Claim(
        "Every contraction is below its bound",
        worst.measured < worst.bound,
        f"nearest {worst.measured:.5f} for {worst.bound:.5f}, {worst.groups} x {worst.columns}, {worst.moves} rows",
        everywhere=True,
    )
    by: dict[tuple[int, float], list[float]] = {}
    for c in cells:
        by.setdefault((c.groups, c.share), []).append(c.measured)
    spread = max(max(some) - min(some) for some in by.values())
    yield Claim("Cutting columns changes nothing", spread <= 1e-9, f"largest difference {spread:.2g}", everywhere=True)
    off = [c for c in cells if c.up != c.formula]
    words = f"{cells[-1].up:,} for {cells[-1].groups} x {cells[-1].columns} blocks and {cells[-1].moves} rows"
    yield Claim("Numbers sent are H scores and d_b coordinates an owner", not off, words, everywhere=True)
    more = [c for c in cells if c.columns == cells[0].columns and c.groups == cells[0].groups]
    factors = [Interval(c.measured, c.half) for c in sorted(more, key=lambda c: c.moves)]
    falls = [Interval(a.mean - b.mean, math.hypot(a.half, b.half)) for a, b in itertools.pairwise(factors)]
    words = ", ".join(f"{f.mean:.4f} ± {f.half:.4f}" for f in factors)
    yield Claim("More rows a round contract more", every(d.above() for d in falls), words)


def _row(c: Cell) -> dict[str, Any]:
    return {
        "row groups": c.groups, "column groups": c.columns, "rows a round": c.moves, "measured": f"{c.measured:.5f}",
        "bound": f"{c.bound:.5f}", "numbers up a round": c.up,
    }  # fmt: skip


def _draw(cells: Sequence[Cell]) -> Any:
    """Draw what a round takes off the gap, beside the bound, over the rows a round."""
    figure, axes = blank(1, width=4.8, height=3.6)
    one = [c for c in cells if c.columns == cells[0].columns]
    for j, G in enumerate(sorted({c.groups for c in one})):
        mine = sorted((c for c in one if c.groups == G), key=lambda c: c.share)
        x, label, size = [c.share for c in mine], f"{G} group{'s' * (G > 1)} of rows", 9 - 2 * j
        axes[0].plot(x, [1.0 - c.measured for c in mine], "o-", color=COLOURS[j], label=label, markersize=size)
        axes[0].plot(x, [1.0 - c.bound for c in mine], "--", color=COLOURS[j])
    panel(axes[0], x="share of the rows that move in a round", y="1 - factor a round (dashed: bound)", log="xy")
    shares = sorted({round(c.share, 2) for c in one if c.groups == one[0].groups})
    axes[0].set_xticks(shares, [f"{v:g}" for v in shares])
    axes[0].set_xticks([], minor=True)
    legend(figure, axes[0], columns=2)
    return figure
