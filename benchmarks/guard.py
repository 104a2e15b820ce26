"""Whether ratios have grown: the most telling benchmarks, run again at real sizes, beside the results that are kept.

``python benchmarks/guard.py`` runs the scripts of GUARDED one after the other, their new results in a folder of their
own, and compares ratios (package over peer, in one run), not times. A ratio that has grown by more than GROWN is
measured again; it counts if it has grown both times. Exit status 1, with a table, if one has, or if a script fails.
Names of scripts after the command run these only. A quiet machine is best; CPU times are what most scripts compare.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

GROWN = 1.25
GUARDED = {
    "local_sgd": ("dense d=100, batch 1: package / C -O3", "dense d=100, batch 20: package / C -O3"),
    "trajectories": (
        "256 trajectories, d = 2: fedconvex.iterate / C",
        "256 trajectories, d = 10: fedconvex.iterate / C",
    ),
    "recording": ("logistic, d = 2, everyone: recording / run", "squared, d = 10, everyone: recording / run"),
    "family": (
        "batch 1, one epoch: FedProx / FedAvg",
        "batch 1, one epoch: SCAFFOLD / FedAvg",
        "batch 20, one epoch: SCAFFOLD / FedAvg",
    ),
    "agnostic": ("batch 20, one epoch: AgnosticFedAvg / FedAvg", "minimax, n = 20,000, d = 50, p = 10: time / SLSQP"),
    "simplex": (
        "p = 10, Gaussian: compiled kernel / C, Condat 2016",
        "p = 10, sparse: compiled kernel / C, Condat 2016",
    ),
    "mocha": (
        "dense, 20,000 x 100: time per step / LIBLINEAR's in scikit-learn",
        "HAR round, fixed Omega: time / plain loop in C",
        "6 classes, q = 1: time / nested iterations",
    ),
    "vertical": ("CSR: time / pooled gradient", "dense: time / pooled gradient"),
    "fedmultiboost": ("100 clients of 50 rows: package / NumPy, all rows at once",),
    "solve": (
        "dense 20,000 x 100, logistic, l2 0.001, to 1e-10: Problem.solve / scikit-learn lbfgs",
        "dense 4,000 x 3,000, logistic, l2 0.001, to 1e-10: Problem.solve / scikit-learn lbfgs",
        "dense 20,000 x 100, squared, l2 0.001, to 1e-10: Problem.solve / scikit-learn Ridge cholesky",
    ),
}
HERE = Path(__file__).resolve().parent


def ratios(path: Path) -> dict[str, float]:
    """Values of the bars of a file of results, by what they measure; none without the file."""
    return {bar["what"]: bar["value"] for bar in json.loads(path.read_text())["bars"]} if path.is_file() else {}


def grown(names: tuple[str, ...], kept: dict[str, float], new: dict[str, float]) -> list[str]:
    """Names of ratios that have grown by more than GROWN; one that was kept and is missing now is an error."""
    lost = [what for what in names if what in kept and what not in new]
    if lost:
        raise SystemExit(f"guard: no longer measured: {lost}")
    return [what for what in names if what in kept and new[what] > GROWN * kept[what]]


def measured(name: str, folder: Path) -> dict[str, float]:
    """Run one script, its results in the folder; its bars."""
    done = subprocess.run(
        [sys.executable, f"bench_{name}.py"], cwd=HERE, env=os.environ | {"FEDCONVEX_RESULTS": str(folder)}
    )
    if done.returncode:
        raise SystemExit(f"guard: bench_{name}.py ended with exit status {done.returncode}")
    return ratios(folder / f"{name}.json")


def main(names: list[str], run: Any = measured, results: Path = HERE / "results") -> int:
    """Measure, compare, print a table; 0 if no ratio has grown."""
    rows, worse = [], 0
    with tempfile.TemporaryDirectory() as temporary:
        for name in names or GUARDED:
            kept, new = ratios(results / f"{name}.json"), run(name, Path(temporary))
            suspects = grown(GUARDED[name], kept, new)
            again = run(name, Path(temporary)) if suspects else {}
            for what in GUARDED[name]:
                value = min(new[what], again.get(what, new[what])) if what in new else float("nan")
                over = what in suspects and what in grown((what,), kept, again)
                worse += over
                rows.append((name, what, kept.get(what), value, "GROWN" if over else "" if what in kept else "new"))
    print(f"\n{'script':14} {'ratio':90} {'kept':>8} {'now':>8}")
    for name, what, before, now, note in rows:
        print(f"{name:14} {what:90} {'-' if before is None else format(before, '8.3g'):>8} {now:8.3g} {note}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
