"""What a benchmark says first: who has the least rank, with intervals, and from whom it cannot be told apart."""

from __future__ import annotations

import math
from typing import Any

from fedconvex.bench.board import Board
from fedconvex.bench.ranks import LEAST, Comparison

_NAMED = 6  # solvers that a sentence names


def answers(board: Board) -> list[str]:
    """Return a sentence or two for each axis on which federated solvers are ranked.

    Where all steps are tuned, names do not say it.
    """
    lines = [line for axis in board.axes if (line := _answer(board, axis))]
    if lines and (n := len(board.problems)) < LEAST:
        few = f"{n} problem{'s' * (n > 1)} can show no difference beyond themselves; {LEAST} are the least."
        lines.append(few)
    return lines


def _answer(board: Board, axis: str) -> str:
    ranks = {s: r for s, r in board.mean_ranks(axis).items() if board.classes[s] == "federated" and r == r}
    if len(ranks) < 2:
        return ""
    plain = {s: s.removesuffix(", tuned") if board.steps == "tuned" else s for s in board.solvers}
    best = min(ranks, key=lambda s: ranks[s])
    low, high = board.rank_intervals(axis)[best]
    interval = "" if math.isnan(low) else f", 95 % interval {low:.2f} to {high:.2f}"
    first = [plain[s] for s in ranks if f"{ranks[s]:.2f}" == f"{ranks[best]:.2f}"]  # as they are printed
    has, it = ("has", "It") if len(first) == 1 else ("have", plain[best])
    line = f"By {axis}, {_listed(first)} {has} the least mean rank of {len(ranks)} ({ranks[best]:.2f}{interval})."
    pairs = [turned(c, best) for c in board.comparisons(axis) if best in (c.first, c.second)]
    less = [plain[c.second] for c in pairs if c.differs and c.better == best]
    alike = [c for c in pairs if not c.differs]
    if less:
        line += f" {it} costs less than {_listed(less)} on more problems than chance would give."
    if alike:
        closest = min(alike, key=lambda c: (c.wins - c.losses, c.second))
        counts = f"less on {closest.wins}, more on {closest.losses}, a tie on {closest.ties}, p = {closest.p_all:.2g}"
        line += f" {it} cannot be told apart from {_listed([plain[c.second] for c in alike])}"
        line += f" ({plain[closest.second]}: {counts})." if closest.wins + closest.losses else "."
    return line


def turned(c: Comparison, first: str) -> Comparison:
    """Return a comparison as the one named sees it."""
    if c.first == first:
        return c
    low, high = 1.0 - c.high, 1.0 - c.low
    return Comparison(c.second, c.first, c.losses, c.wins, c.ties, low, high, c.p, c.p_all)


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMED
    return _joined(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _joined(names: list[str]) -> str:
    """Return names with commas between them; semicolons where a name has a comma, as tuned solvers do."""
    return ("; " if any(", " in name for name in names) else ", ").join(names)


def difference_table(board: Board, axis: str) -> tuple[list[str], list[list[str]]]:
    """Return for every solver, best rank first, which ones it costs less than, more than, and those it may equal."""
    ranks, found = board.mean_ranks(axis), board.comparisons(axis)
    rows = []
    for s in sorted((s for s in ranks if ranks[s] == ranks[s]), key=lambda s: ranks[s]):
        mine = [turned(c, s) for c in found if s in (c.first, c.second)]
        apart = [c for c in mine if c.differs]
        less = _joined([c.second for c in apart if c.better == s])
        more = _joined([c.second for c in apart if c.better != s])
        alike = _joined([c.second for c in mine if not c.differs])
        if mine:
            rows.append([s, less or "–", alike or "–", more or "–"])
    return ["solver", "costs less than", "not told apart from", "costs more than"], rows


def pair_rows(board: Board) -> tuple[list[str], list[list[Any]]]:
    """Return headers and rows of all comparisons that do not rest on seconds: the same in every run."""
    heads = ["axis", "class", *Comparison._fields, "differs"]
    axes = [a for a in board.axes if a != "seconds"]
    return heads, [[a, board.classes[c.first], *c, c.differs] for a in axes for c in board.comparisons(a)]


def rank_rows(board: Board) -> tuple[list[str], list[list[Any]]]:
    """Return headers and rows of all mean ranks but those by seconds, with their intervals."""
    rows = []
    for axis in (a for a in board.axes if a != "seconds"):
        ends = board.rank_intervals(axis)
        rows += [[axis, board.classes[s], s, rank, *ends[s]] for s, rank in board.mean_ranks(axis).items()]
    return ["axis", "class", "solver", "mean_rank", "low", "high"], rows
