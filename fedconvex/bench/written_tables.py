"""Tables of a benchmark as rows, CSV, Parquet, LaTeX and text."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedconvex._files import check_folder, csv_text, write_file
from fedconvex._latex import escaped, tabular
from fedconvex.bench.answers import pair_rows, rank_rows
from fedconvex.bench.board import AXES, Board, Spread
from fedconvex.bench.conditions import CARRIED, CHOSEN, Conditions
from fedconvex.bench.ranks import LEAST
from fedconvex.bench.tuning import FACTORS, budget


def results(board: Board, seconds: bool) -> tuple[list[str], list[list[Any]]]:
    """Return headers and rows: one for each problem, solver, seed and target.

    Without seconds they are the same whenever and wherever the benchmark is run. A cost is inf where the target was not
    met, and empty where nobody counts it. Modelled seconds stand there where a network is stated.
    """
    dials = ["K", "n", "d", "sparse", "loss", "aim", "kappa", "zeta_star", "heterogeneity"]
    heads = ["problem", "sha256", *dials, "solver", "kind", "class", "seed", "status", "target"]
    modelled = board.conditions.network is not None
    heads += [*AXES[:3], "floats_up", *(["modelled_seconds"] if modelled else [])]
    heads += ["seconds"] if seconds else []
    heads += ["tuning_rounds", "tuning_floats", "tuning_passes", "step_multiple"]
    heads += ["last_round", "last_gap", "worst_client", "offences", "settings"]
    rows = []
    for c in board.cells:
        wrong = "; ".join(what for what, _ in c.found["offences"])
        search = c.found.get("tuning") or {}
        end = [search.get(n) for n in (*AXES[:3], "factor")]
        end += [c.found["rounds"], c.found["gap"], c.found["worst"], wrong, c.found["words"]]
        start = [c.problem, board.digests[c.problem], *(c.dials[n] for n in dials), c.solver, c.kind]
        start += [board.classes[c.solver], c.seed]
        for i, t in enumerate(board.rules.targets):
            found = c.found["costs"][i] if c.found["costs"] else dict.fromkeys((*AXES[:3], "up"))
            took = c.timed["costs"][i] if c.timed["costs"] else None
            timed = [_written(took, c.cost(t, "seconds"))] if seconds else []
            costs = [*(_written(found[n], c.cost(t, n)) for n in AXES[:3]), found["up"]]
            costs += [_written(x := board.modelled(c, t), x)] if modelled else []
            rows.append([*start, c.found["status"], t, *costs, *timed, *end])
    return heads, rows


def _written(value: Any, cost: float) -> Any:
    """Return a cost as it is written: infinity where the target was not met, nothing where nobody counts."""
    return math.inf if math.isinf(cost) else None if math.isnan(cost) else value


def _csv(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytes:
    known = [["" if v is None or (isinstance(v, float) and math.isnan(v)) else v for v in row] for row in rows]
    return csv_text([heads, *known]).encode()


def _parquet(board: Board) -> bytes:
    """Return all rows with seconds, and what they were made with as metadata of the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    heads, rows = results(board, True)
    columns = {}
    for name, column in zip(heads, zip(*rows, strict=True), strict=True):
        numbers = any(isinstance(v, float) for v in column)
        columns[name] = [None if v is None else float(v) if numbers else v for v in column]
    table = pa.table(columns).replace_schema_metadata({"fedconvex.bench": json.dumps(_about(board))})
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def _about(board: Board) -> dict[str, Any]:
    """Return where and how a benchmark was run, as JSON has it."""
    how = board.conditions
    conditions = {f.name: getattr(how, f.name) for f in fields(how)} | {"channel": asdict(how.channel)}
    conditions["network"] = None if how.network is None else how.network._asdict()
    return {**board.about, "rules": board.rules._asdict(), "steps": board.steps, "conditions": conditions}


def write_files(board: Board, folder: str | os.PathLike[str]) -> list[Path]:
    """Write results, ranks and pairs without seconds as CSV, seconds.csv, results.parquet, tables.tex and about.json.

    The Parquet file needs pyarrow.

    Returns
    -------
    list of Path
    """
    home = check_folder("bench: folder", folder)
    heads, rows = results(board, True)
    short = ["problem", "solver", "seed", "target", "seconds"]
    at = [heads.index(n) for n in short]
    files = {
        "results.csv": _csv(*results(board, False)),
        "ranks.csv": _csv(*rank_rows(board)),
        "pairs.csv": _csv(*pair_rows(board)),
        "seconds.csv": _csv(short, [[row[i] for i in at] for row in rows]),
        "tables.tex": latex(board).encode(),
        "about.json": (json.dumps(_about(board) | {"digests": dict(board.digests)}, indent=1) + "\n").encode(),
    }
    if any(c.found.get("tuning") for c in board.cells):
        files["trials.csv"] = _csv(*trials(board))
    if find_spec("pyarrow") is not None:
        files["results.parquet"] = _parquet(board)
    for name, content in files.items():
        write_file(home / name, content)
    return [home / name for name in files]


# ---------------------------------------------------------------- tables


def cost_text(x: float) -> str:
    """Return a cost as text: three digits, a dash where it is not counted, "not met" for infinity."""
    if math.isnan(x):
        return "–"
    if math.isinf(x):
        return "not met"
    return f"{x:,.0f}" if x >= 1000.0 or x == int(x) else f"{x:.3g}"


def _spread(found: Spread | None) -> str:
    if found is None:
        return ""
    text = cost_text(found.median)
    if found.low == found.high or math.isnan(found.median):
        return text
    return f"{text} [{cost_text(found.low)}, {cost_text(found.high)}]"


def summary_table(board: Board, kind: str = "federated") -> tuple[list[str], list[list[str]]]:
    """Return mean ranks of a class on every axis, with intervals, and how many problems each solver solved.

    The best by rounds is first.
    """
    ranks = {axis: board.mean_ranks(axis) for axis in board.axes}
    ends = {axis: board.rank_intervals(axis) for axis in board.axes}
    heads = ["solver", *(f"rank by {axis}" for axis in board.axes), *(f"met {t:g}" for t in board.rules.targets)]
    rows = []
    key = lambda s: [math.inf if math.isnan(ranks[a][s]) else ranks[a][s] for a in ("rounds", "passes", "seconds")]  # noqa: E731
    for s in sorted((s for s in board.ranked if board.classes[s] == kind), key=key):
        met = ["{} of {}".format(*board.reached(s, t)) for t in board.rules.targets]
        rows.append([s, *(_rank(ranks[a][s], *ends[a][s]) for a in board.axes), *met])
    return heads, rows


def _rank(mean: float, low: float, high: float) -> str:
    if math.isnan(mean):
        return "–"
    return f"{mean:.2f}" if math.isnan(low) else f"{mean:.2f} [{low:.2f}, {high:.2f}]"


def cost_table(board: Board, problem: str) -> tuple[list[str], list[list[str]]]:
    """Return what every target cost on one problem, by axis: medians over seeds, with deciles where they differ."""
    heads = ["solver", *(f"{axis} to {t:g}" for t in board.rules.targets for axis in AXES)]
    rows = []
    for s in board.solvers:
        if board.of(problem, s):
            named = s + ("*" if s in board.offences else "")
            rows.append(
                [named, *(_spread(board.cost(problem, s, t, axis)) for t in board.rules.targets for axis in AXES)]
            )
    return heads, rows


def tuning_table(board: Board) -> tuple[list[str], list[list[str]]]:
    """Return what tuning cost and chose: medians over problems and seeds, and how often the first or last multiple."""
    heads = ["solver", "rounds", "floats", "multiple of theory's step", "at an end of the grid"]
    rows = []
    for s in board.solvers:
        found = [c.found["tuning"] for c in board.cells if c.solver == s and c.found.get("tuning")]
        if found:
            costs = [np.median([np.nan if f[n] is None else f[n] for f in found]) for n in AXES[:2]]
            ends = sum(f["factor"] in (FACTORS[0], FACTORS[-1]) for f in found)
            multiple = f"{np.median([f['factor'] for f in found]):g}"
            rows.append([s, *map(cost_text, map(float, costs)), multiple, f"{ends} of {len(found)}"])
    return heads, rows


def trials(board: Board) -> tuple[list[str], list[list[Any]]]:
    """Return headers and rows of all trials of step sizes: the gap after the last round, empty where it failed."""
    rows = [
        [c.problem, c.solver, c.seed, *trial]
        for c in board.cells
        if c.found.get("tuning")
        for trial in c.found["tuning"]["trials"]
    ]
    return ["problem", "solver", "seed", "multiple", "rounds", "gap"], rows


def wins_table(board: Board, by: str) -> tuple[list[str], list[list[str]]]:
    """Return who meets most pairs of problem and target at the least cost, by class of a dial."""
    rows: dict[str, list[str]] = {}
    for axis in AXES:
        for title, n, best in board.wins(axis, by):
            row = rows.setdefault(title, [title, *[""] * len(AXES)])
            row[1 + AXES.index(axis)] = ", ".join(f"{s} {k}" for s, k in best) + f" of {n}"
    return ["problems", *AXES], list(rows.values())


def offence_table(board: Board) -> list[tuple[str, str, str]]:
    """Return solvers that broke a rule: who, what, and how it showed."""
    return [(s, what, how) for s, found in board.offences.items() for what, how in found.items()]


def notes_table(board: Board) -> list[tuple[str, str, str]]:
    """Return what was noted: solver, on how many problems, and an example."""
    return [
        (s, f"on {len(found)} problem" + "s" * (len(found) > 1), ": ".join(next(iter(found.items()))))
        for s, found in board.notes.items()
    ]


def failures(board: Board) -> list[str]:
    """Return which solvers failed on which problems, and which solvers from outside refuse them, with the reason."""
    found = [
        (c, "failed on" if c.found["status"] == "failed" else "is not for")
        for c in board.cells
        if c.found["status"] == "failed" or (c.own and not c.runs)
    ]  # others are known to be for some problems only
    return list(dict.fromkeys(f"{c.solver} {how} {c.problem}: {c.found['words']}" for c, how in found))


def left_out(board: Board) -> list[str]:
    """Return who does not take part, by the reason."""
    lines = []
    for why in dict.fromkeys(board.apart.values()):
        names = ", ".join(name for name, own in board.apart.items() if own == why)
        apart = f"left out under these conditions: {names}; {why}"
        lines.append(apart if why in (CARRIED, CHOSEN) else f"not applicable to this suite: {names}, made for {why}")
    return lines


def fairness(board: Board) -> list[str]:
    """Return the rules that hold for all, as sentences."""
    r = board.rules
    steps = {
        "theory": "Step sizes are those of theory, from the exact constants of each problem; where no theorem gives "
        "one, 1/L of the roughest client. What each came to stands in the column settings.",
        "tuned": f"Step sizes are searched for, by the same rule for all: {len(FACTORS)} multiples of that of theory, "
        f"from 1/{FACTORS[-1]:g} to {FACTORS[-1]:g}, are tried for {r.trial} rounds, the better half for twice as "
        f"many, until one is left. These {budget(r.trial)} rounds, and their floats, passes and seconds, count, but in "
        "ranks after tuning.",
    }
    steps["both"] = f"{steps['theory']} Solvers named tuned: {steps['tuned'][0].lower()}{steps['tuned'][1:]}"
    seconds = f"Seconds are, round by round, the least of at least {r.repeats} runs."
    if r.repeats == 1:
        seconds = "Seconds are those of the judged run."
    unchecked = sorted({c.solver for c in board.cells if c.kind == "function"})
    targets = "certified gaps F(w) - F*"
    if share := board.conditions.held_out:
        targets = f"how much the loss on rows that were set aside ({share:g} of every client's) exceeds that of the "
        targets += "optimum of the others, as a share"
    lines = [
        f"Targets are {targets}, judged by the referee from the model alone, on rows of its own and outside of the "
        "clock. A solver's own word for its gap counts for nothing.",
        steps[board.steps],
        f"Everybody starts at zero and has at most {r.rounds} rounds; a run is given up that would not meet the next "
        "target at four times its pace. Data, compiling and imports are outside of the "
        f"clock; linear algebra has one thread. {seconds}",
        f"A solver that takes more than {r.limit:g} s for one problem and seed is stopped there, named, and has met no "
        "target.",
        "Floats are all numbers sent up and down, by all clients together; passes are gradient passes over all rows. "
        "A dash stands where a solver does not say, or where all rows are in one place.",
        f"A solver that draws is run with {board.seeds} seeds, and shown by its median and deciles.",
        "Pooled solvers have all rows in one place, and ranks of their own. Iterations of scikit-learn and LIBLINEAR "
        "are no rounds; each time is that of a run of so many iterations from the start.",
        "Ranks are averages over problems and targets that at least one solver met, and only over problems that the "
        f"solver supports; ties share a rank. Their intervals draw problems and seeds anew, from {LEAST} problems on.",
        "One solver costs less than another on a problem if all of its seeds do, on more targets. Two differ if the "
        "sign test over problems says so at 5 %, for all pairs of an axis together (Holm); else nothing tells them "
        "apart.",
        "Classes are inspected: rows are hidden while their server works, and sums are repeated in a process without "
        "rows. A solver that breaks a rule is named and not ranked.",
    ]
    lines += _conditions(board.conditions)
    if unchecked:
        lines.append(
            "Plain functions are examined for whose rows they read, and for how many numbers of a client their models "
            "depend on; one that uses more than two models a round, and does not say what travels, is ranked with "
            f"pooled solvers. For passes they are taken at their word: {', '.join(unchecked)}."
        )
    return lines


def _conditions(how: Conditions) -> list[str]:
    """Return the conditions as sentences."""
    lines = []
    if (network := how.network) is not None:
        lines.append(
            f"Modelled seconds: a message takes {network.latency:g} s and {network.down:g} bytes a second down, "
            f"{network.up:g} up, for each client; a row's gradient {network.row:g} s, {network.slowest:g} times as "
            "long for the slowest, for which every round waits. Where nobody says what goes up, half of the floats do."
        )
        if network.spread:
            times = f"1 + {network.spread:g} times an exponential of mean 1"
            lines.append(f"A client's work in a round takes {times} as long, drawn by the seed of the run.")
    channel = how.channel
    if channel.lost:
        lines.append(f"An answer is lost with probability {channel.lost:g}; others weigh as much as all would.")
    if channel.noise:
        noise = f"of {channel.noise:g} of the root mean square of its field"
        lines.append(f"Every number of an answer that is not 0 arrives with normal noise {noise}.")
    if (share := how.participation) is not None:
        lines.append(
            f"Of clients, {share:g} take part in a round ({'a share' if isinstance(share, float) else 'a number'}). "
            "Classes and functions that ask more are named and not ranked."
        )
    return lines


def latex(board: Board) -> str:
    """Return the tables as LaTeX."""
    parts = ["% " + line for line in fairness(board)]
    for kind in dict.fromkeys(board.classes[s] for s in board.ranked):
        parts.append(_tabular(f"Mean ranks of {kind} solvers, and problems solved", *summary_table(board, kind)))
    parts += [_tabular(p, *cost_table(board, p)) for p in board.problems]
    return "\n".join(parts) + "\n"


def _tabular(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    table = tabular(heads, rows, "l" + "r" * (len(heads) - 1))
    return "\n".join(["", r"\begin{table}", rf"\caption{{{escaped(title)}}}", table, r"\end{table}"])
