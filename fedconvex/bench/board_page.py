"""One self-contained page for a benchmark: no script, no font, no image from elsewhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fedconvex._files import write_file
from fedconvex.bench.answers import answers, difference_table
from fedconvex.bench.board import AXES, Board
from fedconvex.bench.profiles import MOST, curve_figure, profile_figure, sensitivity_figure
from fedconvex.bench.written_tables import (
    cost_table,
    failures,
    fairness,
    left_out,
    notes_table,
    offence_table,
    summary_table,
    tuning_table,
    wins_table,
)
from fedconvex.report.drawings import check_folder


def write_page(board: Board, folder: str | os.PathLike[str]) -> Path:
    """Write the page as index.html into a folder, whole or not at all; return the file."""
    file = check_folder(folder) / "index.html"
    write_file(file, page(board).encode())
    return file


def page(board: Board) -> str:
    """Return the page: HTML with styles and figures inside. Its template escapes all that it is given."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    loader = ChoiceLoader([PackageLoader("fedconvex", room) for room in ("bench", "report")])
    env = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    kinds = ("performance", "data")
    profiles = {(a, k): Markup(profile_figure(board, a, k)) for a in AXES for k in kinds}
    problems = []
    for i, p in enumerate(board.problems):
        drawn = [Markup(curve_figure(board, p, axis, f"c{i}{axis}")) for axis in ("rounds", "floats", "seconds")]
        problems.append({"name": p, "dials": _dials(board, p), "table": cost_table(board, p), "drawn": drawn})
    wins = {by: wins_table(board, by) for by in ("heterogeneity", "kappa")}
    return env.get_template("page.html").render(
        board=board,
        rules=fairness(board),
        offences=offence_table(board),
        notes=notes_table(board),
        left_out=left_out(board),
        failures=failures(board),
        stored=sum(c.stored for c in board.cells),
        summaries={k: summary_table(board, k) for k in dict.fromkeys(board.classes[s] for s in board.ranked)},
        answers=answers(board),
        differences={axis: difference_table(board, axis) for axis in board.axes if axis != "seconds"},
        tuning=tuning_table(board),
        sensitivity=Markup(sensitivity_figure(board)),
        profiles=profiles,
        axes=AXES,
        kinds=kinds,
        wins=wins,
        problems=problems,
        settings=_settings(board),
        most=MOST,
    )


def _dials(board: Board, problem: str) -> str:
    d: dict[str, Any] = next(dict(c.dials) for c in board.cells if c.problem == problem)
    words = [
        f"{d['loss']} loss",
        f"K = {d['K']}",
        f"{d['n']:,} rows",
        f"d = {d['d']}" + (", sparse" if d["sparse"] else ""),
    ]
    words += [f"{name} = {d[key]:.3g}" for name, key in _EXACT.items() if d[key] is not None and d[key] == d[key]]
    return ", ".join(words)


_EXACT = {"kappa": "kappa", "zeta_*": "zeta_star", "h": "heterogeneity"}


def _settings(board: Board) -> list[tuple[str, str]]:
    out = [(k, str(v)) for k, v in board.about.items()]
    return [*out, ("targets", ", ".join(f"{t:g}" for t in board.rules.targets)), ("rounds", str(board.rules.rounds))]
