"""Command lines on ugly tables: each ends with a status of its own, names options that exist, and can be settled.

A trial writes a table with random faults, asks `solve` (or `predict` after it) for a model with random options, some of
them odd, and pastes what the messages say settles them, until the command runs or says what only the data can mend.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import re
import shlex
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fedconvex.cli import _parser, main

STATUSES = {0, 2, 3, 4}  # done, refused, diverged, inconclusive
FOREIGN = re.compile(r"Traceback|internal error|\bnp\.|numpy|<class|\bNoneType\b|0x[0-9a-f]{6}|\bself\b")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
ADVICE = re.compile(r"settled by: (.*?)(?:; --keep COL takes a column as it is)?(?:\n|$| missing cells:| to be)")
PASTES = 6
N = 24


def trial(rng: np.random.Generator) -> dict[str, Any]:
    """No command line crashes, names an option that does not exist, or advises what does not help."""
    with tempfile.TemporaryDirectory() as folder:
        path = table(rng, Path(folder))
        line = ["solve", str(path), "--target", "y", "--client", "who", "--rounds", "3", "--method", "gd", *odd(rng)]
        line += ["--save", str(Path(folder) / "model")]
        seen: list[str] = []
        for _ in range(PASTES):
            status, told = called(line)
            advice = re.search(
                r"settled by: (.*?)(?:; --keep COL takes a column as it is)?(?:\n|$| missing cells:| to be)", told
            )
            if status != 2 or advice is None or advice[1] in seen:
                break
            seen.append(advice[1])
            line += shlex.split(advice[1])
        assert advice is None or advice[1] not in seen[:-1] or "be given once" in told, (line, told)
        if status == 0:
            called(["predict", str(Path(folder) / "model"), str(path), *(["--proba"] if rng.integers(2) else [])])
        return {"status": status, "pastes": len(seen), "line": line[2:]}


def called(line: list[str]) -> tuple[int, str]:
    """Return status and stderr of a command, of which nothing is amiss."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(line)
    told = err.getvalue()
    assert status in STATUSES, (status, line, told)
    assert FOREIGN.search(told) is None, (line, told)
    assert not (strange := set(OPTION.findall(told)) - options() - set(line)), (strange, line, told)
    assert status != 2 or told.strip(), line
    return status, told


def options() -> set[str]:
    """All options of all commands."""
    found: set[str] = set()
    parsers = [_parser()]
    for parser in parsers:
        for action in parser._actions:
            found |= set(action.option_strings)
            parsers += action.choices.values() if isinstance(action, argparse._SubParsersAction) else []
    return found


def table(rng: np.random.Generator, folder: Path) -> Path:
    """Write a table whose columns have some of the faults of real ones."""
    y, who = rng.integers(0, 2, N), rng.integers(0, 3, N)
    y[:4], who[:6] = (0, 1, 0, 1), (0, 1, 2, 0, 1, 2)
    kinds: list[Any] = [
        lambda: [f"{v:.2f}" for v in rng.normal(size=N) + y],
        lambda: [("1", "1.0", "2", "2.0", "+3")[i] for i in rng.integers(0, 5, N)],
        lambda: [("07", "7", "8")[i] for i in rng.integers(0, 3, N)],
        lambda: ["?" if rng.uniform() < 0.3 else f"{v:.1f}" for v in rng.normal(size=N)],
        lambda: ["0" if k == 2 else f"{v}" for k, v in zip(who, rng.integers(150, 300, N), strict=True)],
        lambda: ["-9" if rng.uniform() < 0.2 else f"{v}" for v in rng.integers(0, 2, N)],
        lambda: [f"2021-0{v}-11" for v in rng.integers(1, 9, N)],
        lambda: [str(i) for i in range(N)],
        lambda: [("f", "m", "=1+1", "@x")[i] for i in rng.integers(0, 4, N)],
        lambda: [("f", "3", "m")[i] for i in rng.integers(0, 3, N)],
        lambda: [f"{v:.1f}".replace(".", ",") for v in rng.normal(size=N)],
        lambda: [f"{v}%" for v in rng.integers(0, 99, N)],
        lambda: ["5"] * N,
        lambda: [""] * N,
        lambda: [str(v) for v in y],
        lambda: [f"{10.0 ** rng.integers(-300, 300):g}" for _ in range(N)],
    ]
    names = rng.permutation(["age", "dose, mg", "id", "-x", "=cmd", "sex", "Unnamed: 0", "a b", "é"])
    columns = {str(name): kinds[rng.integers(len(kinds))]() for name in names[: rng.integers(2, 6)]}
    columns |= {"plain": kinds[0](), "y": [str(v) for v in y], "who": [("a", "1", "1.0")[k] for k in who]}
    path = folder / "wards.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def odd(rng: np.random.Generator) -> list[str]:
    """Return random options, most of them without any."""
    pool = [
        ["--l2", "nan"], ["--l2", "-1"], ["--loss", "squared"], ["--loss", "hinge"], ["--impute", "mode"],
        ["--impute", "indicator"], ["--missing", "plain=0"], ["--missing", "plain"], ["--missing", "=0"],
        ["--drop", "plain"],
        ["--keep", "id,age"], ["--as-category", "plain"], ["--as-category", "y"], ["--features", "plain"],
        ["--decimal", ","], ["--sep", ";"], ["--encoding", "utf-99"], ["--weights", "uniform"], ["--weight", "plain"],
        ["--domain", "who"], ["--domain", "sex"], ["--clients", "3"], ["--preprocessing", "federated"],
        ["--preprocessing", "secure"], ["--no-standardize"], ["--no-intercept"], ["--test-size", "0.3"],
        ["--step-size", "1e300"], ["--seed", "-1"], ["--set", "mu=1"], ["--json"], ["--tol", "0"],
    ]  # fmt: skip
    return [word for i in rng.choice(len(pool), rng.integers(0, 4), replace=False) for word in pool[i]]
