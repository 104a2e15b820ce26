"""Ranks with intervals and pairs that differ: by hand, and recomputed from results.csv alone."""

import csv
import gzip
import math
from collections import defaultdict
from dataclasses import replace
from itertools import combinations
from statistics import median_low

import numpy as np
import pytest
from scipy.stats import binom, rankdata

from fedconvex.bench.answers import _joined, answers, difference_table, turned
from fedconvex.bench.board import Board, Cell
from fedconvex.bench.cells import Rules
from fedconvex.bench.ranks import compare_pairs, mean_ranks_of, medians_of, rank_intervals
from fedconvex.bench.written_tables import summary_table, write_files
from tests.docs_scripts import docs_script

DIALS = {"K": 3, "n": 9, "d": 2, "size": 2, "sparse": False, "loss": "squared", "aim": "one model", "kappa": 2.0,
         "zeta_star": 1.0, "heterogeneity": 0.1}  # fmt: skip


def cell(problem, solver, seed, rounds, floats=True, pooled=False, tuning=0):
    """A cell whose two targets cost as told: None where not met; all costs of a target are multiples of its rounds."""
    costs = [
        {"target": t, "rounds": r, "floats": None if r is None or not floats else 12 * r, "passes": r, "up": None}
        for t, r in zip((0.1, 0.01), rounds, strict=True)
    ]
    curve = {"rounds": [0], "floats": [0 if floats else None], "passes": [0], "gap": [1.0]}
    search = {"factor": 4.0, "rounds": tuning, "floats": 12 * tuning, "passes": tuning, "trials": []}
    found = {"status": "reached", "words": "", "settled": False, "pooled": pooled, "rounds": 9, "gap": 0.1, "worst": 1,
             "costs": costs, "curve": curve, "offences": [], "tuning": search if tuning else None}  # fmt: skip
    timed = {"costs": [None if r is None else 0.5 * r for r in rounds], "curve": [0.0], "notes": [], "tuning": 0.0}
    return Cell(problem, solver, "pooled" if pooled else "class", False, seed, DIALS, found, timed)


@pytest.fixture(scope="module")
def board():
    rng, cells = np.random.default_rng(3), []
    for p in range(12):
        cells.append(cell(f"p{p}", "fast", 0, (3, 9)))
        cells.append(cell(f"p{p}", "undeclared", 0, (3, None if p % 3 else 8), floats=False))
        for seed in range(3):
            some = [int(x) for x in rng.integers(2, 60, 2)]
            cells.append(cell(f"p{p}", "drawn", seed, (some[0], None if some[1] > 40 else some[0] + some[1]), tuning=5))
            cells.append(cell(f"p{p}", "slow", seed, (200 + some[0], None)))
        if p < 4:
            cells.append(cell(f"p{p}", "pooled", 0, (1, 1), pooled=True))
    return Board(tuple(cells), Rules((0.1, 0.01), 99), "both", 3, {}, {f"p{i}": "" for i in range(12)})


def rows_of(file):
    with open(file, newline="") as lines:
        return list(csv.DictReader(lines))


def read(folder):
    """By axis, pair of problem and target, and solver: the costs of all seeds; and the class of every solver."""
    costs, classes = defaultdict(lambda: defaultdict(dict)), {}
    for row in rows_of(folder / "results.csv"):
        assert row["offences"] == ""
        if row["status"] == "not for this problem":
            continue
        classes[row["solver"]] = row["class"]
        for axis in ("rounds", "floats", "passes"):
            here = costs[axis][row["problem"], float(row["target"])].setdefault(row["solver"], [])
            here.append(float(row[axis]) if row[axis] else math.nan)
            if axis != "passes":
                tuning = float(row[f"tuning_{axis}"] or 0.0)
                after = costs[f"{axis} after tuning"][row["problem"], float(row["target"])]
                after.setdefault(row["solver"], []).append(here[-1] - tuning)
    return costs, classes


def by_hand(costs, classes, kind):
    """Mean ranks of a class, in plain Python."""
    places = defaultdict(list)
    for found in costs.values():
        medians = {s: median_low(v) for s, v in found.items() if classes[s] == kind and not any(map(math.isnan, v))}
        if any(map(math.isfinite, medians.values())):
            for s, rank in zip(medians, rankdata(list(medians.values())), strict=True):
                places[s].append(rank)
    return {s: sum(p) / len(p) for s, p in places.items()}


@pytest.mark.slow
def test_printed_ranks_and_pairs_are_those_of_results_csv(board, tmp_path):
    write_files(board, tmp_path)
    costs, classes = read(tmp_path)
    assert set(costs) == {"rounds", "floats", "passes", "rounds after tuning", "floats after tuning"}
    for kind in ("federated", "pooled"):
        heads, rows = summary_table(board, kind)
        assert len(rows) == sum(c == kind for c in classes.values())
        for axis, table in costs.items():
            expected = by_hand(table, classes, kind)
            for row in rows:
                printed = row[heads.index(f"rank by {axis}")].split(" [")[0]
                assert printed == (f"{expected[row[0]]:.2f}" if row[0] in expected else "–"), (axis, row)
    pairs = {(r["axis"], r["first"], r["second"]): r for r in rows_of(tmp_path / "pairs.csv")}
    for first, second in combinations(("fast", "drawn", "slow"), 2):
        signs = defaultdict(int)
        for (p, _), found in costs["rounds"].items():
            a, b = found[first], found[second]
            if math.isfinite(min(a + b)):
                signs[p] += (max(a) < min(b)) - (max(b) < min(a))
        row = pairs["rounds", first, second]
        wins, losses = (sum(np.sign(v) == sign for v in signs.values()) for sign in (1, -1))
        assert (int(row["wins"]), int(row["losses"]), int(row["ties"])) == (wins, losses, 12 - wins - losses)
        assert float(row["p"]) == pytest.approx(min(1.0, 2 * binom.cdf(min(wins, losses), wins + losses, 0.5)))
    ranks = {r["solver"]: r for r in rows_of(tmp_path / "ranks.csv") if r["axis"] == "floats"}
    assert ranks["undeclared"]["mean_rank"] == "" and float(ranks["slow"]["mean_rank"]) > float(ranks["fast"]["high"])


def test_solvers_that_do_not_declare_floats_are_a_dash(board):
    heads, rows = summary_table(board)
    (row,) = (row for row in rows if row[0] == "undeclared")
    assert row[heads.index("rank by floats")] == "–" and row[heads.index("rank by rounds")] != "–"


def test_a_pair_that_does_not_differ_says_so(board):
    rows = {row[0]: row for row in difference_table(board, "rounds")[1]}
    assert rows["fast"] == ["fast", "drawn, slow", "undeclared", "–"]
    assert rows["slow"] == ["slow", "–", "–", "fast, undeclared, drawn"]
    said = answers(board)
    assert said[0].startswith("By rounds, fast has the least mean rank of 4 (1.") and "interval" in said[0]
    assert "costs less than" in said[0] and "slow" in said[0]
    assert not any("pooled" in line for line in said)  # a class of its own
    assert not any("can show no difference" in line for line in said)  # twelve problems
    short = replace(board, cells=tuple(c for c in board.cells if c.problem in ("p0", "p1")))
    assert answers(short)[-1] == "2 problems can show no difference beyond themselves; 6 are the least."
    assert _joined(["a", "b"]) == "a, b" and _joined(["a", "a, tuned"]) == "a; a, tuned"
    floats = next(line for line in said if line.startswith("By floats,"))
    assert "of 3" in floats and "undeclared" not in floats  # a dash, never the last place


def test_ranks_that_are_printed_alike_are_shared():
    """Of 1.111 and 1.889, and of ranks a hair apart."""
    some = [cell(f"p{p}", s, 0, (9 if s == "ab"[p % 2] else 3, 20)) for p in range(2) for s in "ab"]
    near = [cell(f"q{p}", s, 0, (3, 9)) for p in range(60) for s in "ab"] + [
        cell("r", "a", 0, (3, 9)),
        cell("r", "b", 0, (4, 9)),
    ]
    for cells, rank in ((some, "1.50"), (near, "1.50")):
        names = {c.problem: "" for c in cells}
        said = answers(Board(tuple(cells), Rules((0.1, 0.01), 99), "theory", 1, {}, names))[0]
        assert said.startswith(f"By rounds, a, b have the least mean rank of 2 ({rank}"), said


@pytest.mark.slow
def test_names_do_not_say_that_they_are_tuned_where_all_are(board):
    cells = tuple(c._replace(solver=c.solver + ", tuned") for c in board.cells)
    told = {steps: answers(replace(board, cells=cells, steps=steps)) for steps in ("tuned", "both")}
    assert "fast, tuned" in told["both"][0] and "fast has" in told["tuned"][0]
    assert not any(", tuned" in line for line in told["tuned"])


def test_signs_and_holm_by_hand():
    """Two problems with two targets each; the second solver's seeds overlap with the first's on the first target."""
    costs = np.array([[[1, 3], [2, 4], [9, 9]], [[5, 5], [6, 7], [9, 9]], [[1, 1], [np.inf, np.inf], [0, 0]],
                      [[np.inf] * 2, [np.inf] * 2, [np.nan] * 2]], dtype=float)  # fmt: skip
    problems = np.array([0, 0, 1, 1])
    first, second, third = compare_pairs(costs, problems, np.array(["a"] * 3), "xyz")
    assert first[:5] == ("x", "y", 2, 0, 0) and first.p == 0.5  # 0 + 1 targets on the first problem, 1 on the second
    assert second[:5] == ("x", "z", 1, 1, 0) and third[:5] == ("y", "z", 1, 1, 0)
    assert [c.p_all for c in (first, second, third)] == [1.0, 1.0, 1.0]
    assert first.low == pytest.approx(0.025**0.5) and first.high == 1.0  # Clopper-Pearson of 2 of 2
    assert turned(first, "y")[:5] == ("y", "x", 0, 2, 0) and turned(first, "y").high == pytest.approx(1 - 0.025**0.5)
    many = np.tile(np.array([[[1.0], [2.0], [3.0]]]), (9, 1, 1))
    found = compare_pairs(many, np.arange(9), np.array(["a", "a", "a"]), "xyz")
    assert [c.p_all for c in found] == pytest.approx([3 * 2 * 0.5**9] * 3) and all(c.differs for c in found)
    assert not compare_pairs(many, np.arange(9), np.array(["a", "b", "c"]), "xyz")


def test_ranks_and_intervals():
    costs = np.tile(np.array([[[1.0], [2.0]], [[2.0], [1.0]]]), (4, 1, 1))
    assert medians_of(costs).shape == (8, 2)
    assert mean_ranks_of(costs[:, :, 0], np.array(["a", "a"])).tolist() == [1.5, 1.5]
    together = rank_intervals(costs, np.repeat(np.arange(4), 2), np.array(["a", "a"]))
    assert np.isnan(together).all()  # four problems
    problems = np.arange(8)
    ends = rank_intervals(costs, problems, np.array(["a", "a"]))
    # the mean of 8 draws of 1 or 2: 1 + binomial(8, 1/2)/8; its 2.5 and 97.5 % points are 1 and 7 of 8
    np.testing.assert_allclose(ends, [[1 + 1 / 8, 1 + 7 / 8]] * 2)
    alike = rank_intervals(costs, np.array([0, 0, 1, 1, 2, 2, 3, 3]) + np.array([0, 0, 0, 0, 0, 0, 1, 2]), np.zeros(2))
    assert np.isnan(alike[0]).all() or alike[0, 1] - alike[0, 0] < ends[0, 1] - ends[0, 0]
    drawn = np.repeat(costs[:6], 3, axis=2)
    drawn[:, 0, 1] += 1.0  # a seed that turns the order
    assert np.all(np.ptp(rank_intervals(drawn, np.arange(6), np.zeros(2)), axis=1) > 0.0)


def _plain(table):
    """Return costs by solvers' names without their being tuned, which all are."""
    return {pair: {s.removesuffix(", tuned"): v for s, v in found.items()} for pair, found in table.items()}


@pytest.mark.slow
def test_the_page_shows_the_ranks_of_the_kept_rows(tmp_path):
    """The tables of docs/benchmark.md are those of the kept rows, and their ranks, by hand, too."""
    figures = docs_script("benchmark_figures")
    text, rows = figures.PAGE.read_text(encoding="utf-8"), figures.rows_of()
    kept = figures.board_of(rows)
    assert figures.filled(text, kept) == text, "run python docs/benchmark_figures.py"
    (tmp_path / "results.csv").write_bytes(gzip.decompress(figures.KEPT.read_bytes()))
    costs, classes = read(tmp_path)
    lines = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    classes = {s.removesuffix(", tuned"): c for s, c in classes.items()}
    compared = 0
    for kind in ("federated", "pooled"):
        expected = {axis: by_hand(_plain(table), classes, kind) for axis, table in costs.items()}
        heads: list[str] = []
        for line in lines:
            heads = line if line[0] == "solver" else heads
            if line[0] in classes and classes[line[0]] == kind and any(h.startswith("rank by") for h in heads):
                for axis, table in expected.items():
                    shown = line[heads.index(f"rank by {axis}")].split(" [")[0]
                    assert shown == (f"{table[line[0]]:.2f}" if line[0] in table else "–"), (axis, line)
                    compared += 1
    assert compared == 5 * len(kept.ranked) >= 60
