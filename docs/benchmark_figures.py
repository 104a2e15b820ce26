"""Draw the figures and print the tables of docs/benchmark.md from kept rows: ``python docs/benchmark_figures.py``.

The rows are ``benchmarks/results/standard.csv.gz``: the results.csv of ``fedconvex bench --suite standard --solvers all
--steps tuned --repeats 1``. ``python docs/benchmark_figures.py FOLDER`` keeps those of a new run first.
"""

from __future__ import annotations

import csv
import gzip
import io
import sys
from pathlib import Path

import numpy as np

from fedconvex.bench import performance_profile
from fedconvex.bench.answers import answers
from fedconvex.bench.board import Board, Cell
from fedconvex.bench.cells import Rules
from fedconvex.bench.written_tables import summary_table, tuning_table, wins_table
from fedconvex.papers.style import COLOURS, blank, panel
from fedconvex.report.plots import save_figure

DOCS = Path(__file__).resolve().parent
FIGURES, KEPT = DOCS / "figures", DOCS.parent / "benchmarks" / "results" / "standard.csv.gz"
PAGE, MARKS = DOCS / "benchmark.md", ("<!-- the standard suite -->", "<!-- end of the standard suite -->")
DRAWN = ("fedsgd", "fedavg", "fedavg-batch", "scaffold", "accelerated-gradient", "scaffnew")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))
LOOKS = {
    s: {"color": colour, "linestyle": line} for s, colour, line in zip(DRAWN, (*COLOURS, "0.25"), LINES, strict=False)
}


def rows_of(file=KEPT):
    """Return the rows as text by column."""
    with gzip.open(file, "rt", newline="") as lines:
        return list(csv.DictReader(lines))


def board_of(rows):
    """Return the board of rows, without seconds and curves, which they do not hold; all steps are tuned."""
    cells, targets = {}, sorted({float(r["target"]) for r in rows}, reverse=True)
    for r in rows:
        dials = {n: float(r[n] or "nan") for n in ("K", "n", "d", "kappa", "zeta_star", "heterogeneity")}
        dials |= {"size": dials["d"], "sparse": r["sparse"] == "True", "loss": r["loss"], "aim": r["aim"]}
        found = {"status": r["status"], "words": r["settings"], "settled": False, "pooled": r["class"] == "pooled",
                 "rounds": int(r["last_round"]), "gap": _number(r["last_gap"]), "worst": _number(r["worst_client"]),
                 "offences": [(what, "") for what in r["offences"].split("; ") if what], "costs": [],
                 "curve": {n: [0.0 if r[n] else None] for n in AXES}}  # fmt: skip
        if r["step_multiple"]:
            paid = {n: _number(r[f"tuning_{n}"]) for n in AXES}
            found["tuning"] = {"factor": float(r["step_multiple"]), **paid, "trials": []}
        timed = {"costs": [0.0] * len(targets), "curve": [], "notes": [], "tuning": 0.0}
        made = Cell(
            r["problem"], r["solver"].removesuffix(", tuned"), r["kind"], False, int(r["seed"]), dials, found, timed
        )
        cell = cells.setdefault((r["problem"], r["solver"], r["seed"]), made)
        known = {n: None if r[n] in ("", "inf") else float(r[n]) for n in AXES}
        if r["kind"] == "pooled" and (cell.found["gap"] or 0.0) <= float(r["target"]) and r["status"] != "failed":
            known["rounds"] = 0.0  # iterations on pooled rows are no rounds, and the row says only how it ended
        cell.found["costs"].append({"target": float(r["target"]), "up": _number(r["floats_up"]), **known})
    seeds = 1 + max(c.seed for c in cells.values())
    return Board(tuple(cells.values()), Rules(tuple(targets), 1000), "tuned", seeds, {}, {})


AXES = ("rounds", "floats", "passes")


def _number(text):
    return float(text) if text else None


def printed(board):
    """Return the tables of the page in Markdown."""
    parts = [f"* {line}" for line in answers(board) if not line.startswith("By seconds")]
    for kind in ("federated", "pooled"):
        heads, rows = summary_table(board, kind)
        keep = [i for i, h in enumerate(heads) if "seconds" not in h]
        parts += ["", _markdown([heads[i] for i in keep], [[row[i] for i in keep] for row in rows])]
    parts += ["", "What tuning cost and chose, medians over problems and seeds:", "", _markdown(*tuning_table(board))]
    for by in ("heterogeneity", "kappa"):
        heads, rows = wins_table(board, by)
        keep = [i for i, h in enumerate(heads) if h != "seconds"]
        parts += ["", _markdown([heads[i] for i in keep], [[row[i] for i in keep] for row in rows])]
    return "\n".join(parts) + "\n"


def _markdown(heads, rows):
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def filled(text, board):
    """Return the page with the tables of the rows between its marks."""
    before, _, rest = text.partition(MARKS[0])
    return before + MARKS[0] + "\n\n" + printed(board) + "\n" + MARKS[1] + rest.partition(MARKS[1])[2]


def kept(folder):
    """Keep the rows of a run."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, filename="") as out:
        out.write(Path(folder, "results.csv").read_bytes())
    KEPT.write_bytes(packed.getvalue())


def profiles(board):
    """Draw performance profiles by rounds after tuning, and by passes."""
    figure, axes = blank(2, width=4.6)
    for axis, by in zip(axes, ("rounds after tuning", "passes"), strict=True):
        _, names, costs = board.medians(by)
        at = np.geomspace(1, 300, 200)
        shares, label = performance_profile(costs, at), f"{by} over the least, at most"
        for s in DRAWN:
            if np.isfinite(costs[:, names.index(s)]).any():
                axis.step(at, shares[names.index(s)], where="post", label=s, **LOOKS[s])
        axis.set_ylim(-0.02, 1.02)
        panel(axis, x=label, y="share of problems and targets", log="x")
    axes[1].legend(frameon=False, fontsize=7.5, loc=(0.6, 0.42))
    save_figure(figure, FIGURES / "benchmark_profiles.png")


def by_heterogeneity(board, target=1e-3):
    """Draw rounds to a target over those of fedsgd by problem, both tuned, over heterogeneity and conditioning."""
    figure, axes = blank(2, width=4.6, sharey=True)
    marks = dict(zip((DRAWN[1], DRAWN[3], DRAWN[4]), "os^", strict=True))
    for axis, dial in zip(axes, ("heterogeneity", "kappa"), strict=True):
        dials = {c.problem: c.dials[dial] for c in board.cells}
        for s, mark in marks.items():
            points = []
            for p in board.problems:
                cost, base = (board.cost(p, name, target, "rounds after tuning") for name in (s, DRAWN[0]))
                if None not in (cost, base) and np.isfinite(base.median) and base.median > 0 and dials[p] == dials[p]:
                    points.append((max(dials[p], 1e-3), min(cost.median / base.median, 200.0)))
            x, y = np.array(points).T
            axis.plot(x, y, mark, color=LOOKS[s]["color"], label=s, markersize=5, alpha=0.8)
        axis.axhline(1.0, color="0.5", linewidth=0.8)
        axis.axhline(200.0, color="0.5", linewidth=0.8, linestyle=":")
        panel(axis, x={"heterogeneity": "heterogeneity h"}.get(dial, "condition number"), log="xy")
    axes[0].set_ylabel(f"rounds to {target:g} after tuning, over fedsgd's")
    axes[0].annotate("not met", (1e-3, 150.0), fontsize=7.5, color="0.3", va="top")
    axes[0].legend(frameon=False, fontsize=7.5, loc=(0.15, 0.6))
    save_figure(figure, FIGURES / "benchmark_dials.png")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        kept(sys.argv[1])
    result = board_of(rows_of())
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), result), encoding="utf-8")
    for draw in (profiles, by_heterogeneity):
        draw(result)
