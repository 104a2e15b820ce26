"""Whether two runs of `fedconvex bench` agree: ``python -m tests.bench_agreement FOLDER FOLDER``.

Everything but seconds must be the same byte for byte. The order of two solvers by seconds must be the same on every
problem and target where their medians differ by more than 20 % in both runs; what is closer is a matter of chance.
"""

import csv
import sys
from collections import defaultdict
from itertools import combinations
from math import inf
from pathlib import Path
from statistics import median
from typing import NamedTuple

APART = 1.2


class Agreement(NamedTuple):
    """What two runs have in common."""

    same: bool  # results.csv, byte for byte
    compared: int  # pairs of solvers whose medians are apart in both runs
    turned: list[str]  # those of another order
    ranks: tuple[dict[str, float], dict[str, float]]  # mean ranks by seconds in both runs


def medians(file):
    """Return median seconds over seeds by problem and target, and in these by solver."""
    rows = defaultdict(list)
    with open(file, newline="") as lines:
        for row in csv.DictReader(lines):
            rows[row["problem"], row["target"], row["solver"]].append(float(row["seconds"] or inf))
    out = defaultdict(dict)
    for (problem, target, solver), seconds in rows.items():
        out[problem, target][solver] = median(seconds)
    return out


def agreement(first, second):
    """Compare the folders of two runs."""
    a, b = Path(first), Path(second)
    same = (a / "results.csv").read_bytes() == (b / "results.csv").read_bytes()
    ours, theirs = medians(a / "seconds.csv"), medians(b / "seconds.csv")
    compared, turned = 0, []
    for pair in ours:
        x, y = ours[pair], theirs[pair]
        for one, other in combinations([s for s in x if max(x[s], y.get(s, inf)) < inf], 2):
            ratios = x[one] / x[other], y[one] / y[other]
            if all(max(r, 1.0 / r) > APART for r in ratios):
                compared += 1
                if (ratios[0] > 1.0) != (ratios[1] > 1.0):
                    turned.append(f"{' '.join(pair)}: {one} over {other} {ratios[0]:.2f}, then {ratios[1]:.2f}")
    return Agreement(same, compared, turned, (_ranks(ours), _ranks(theirs)))


def _ranks(found):
    """Return mean ranks over problems and targets that somebody met, without ties."""
    places = defaultdict(list)
    for by_solver in found.values():
        met = sorted((seconds, s) for s, seconds in by_solver.items() if seconds < inf)
        for place, (_, s) in enumerate(met, 1):
            places[s].append(place)
    return {s: sum(p) / len(p) for s, p in places.items()}


if __name__ == "__main__":
    found = agreement(*sys.argv[1:3])
    print(f"results.csv: {'the same' if found.same else 'DIFFERENT'}")
    print(f"order by seconds: {len(found.turned)} of {found.compared} pairs turned", *found.turned, sep="\n  ")
    for solver, rank in sorted(found.ranks[0].items(), key=lambda item: item[1]):
        print(f"  {solver:24} {rank:.2f} {found.ranks[1].get(solver, float('nan')):.2f}")
    sys.exit(bool(found.turned) or not found.same)
