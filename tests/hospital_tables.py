"""A table with the faults of real ones: four hospitals that measure, spell and leave out differently.

Sizes, missing cells and spellings are those of the heart disease tables of four hospitals (Detrano et al., Am. J.
Cardiol. 64 (1989), 304-310; as distributed): 303, 294, 123 and 200 rows; `ca`, `thal` and `slope` missing nearly
everywhere but at the first; cholesterol 0 in all rows of the third; codes written "1.0" by the first, "1" by others.
The numbers are drawn.
"""

from __future__ import annotations

import csv

import numpy as np

__all__ = ["CODES", "GONE", "HOSPITALS", "SIZES", "hospitals", "written"]

HOSPITALS = ("cleveland", "hungary", "switzerland", "longbeach")
SIZES = (303, 294, 123, 200)
CODES = {"sex": 2, "cp": 4, "fbs": 2, "restecg": 3, "exang": 2, "slope": 3}  # names that are written as numbers
GONE = {  # missing cells of each hospital
    "trestbps": (0, 1, 2, 56),
    "chol": (0, 23, 0, 7),
    "fbs": (0, 8, 75, 7),
    "thalach": (0, 1, 1, 53),
    "oldpeak": (0, 0, 6, 56),
    "slope": (0, 190, 17, 102),
    "ca": (4, 291, 118, 198),
    "thal": (2, 266, 52, 166),
}


def hospitals(seed: int = 0) -> dict[str, list[str]]:
    """Return the columns as they would be written in one file: text, "?" where a cell is missing."""
    rng = np.random.default_rng(seed)
    n, place = sum(SIZES), np.repeat(np.arange(4), SIZES)
    age, oldpeak = rng.normal(54, 9, n).round(), np.abs(rng.normal(0.9, 1.1, n)).round(1)
    numbers = {"age": age, "trestbps": rng.normal(132, 19, n).round(), "thalach": rng.normal(137, 26, n).round()}
    numbers |= {"chol": np.where(place == 2, 0.0, rng.normal(247, 58, n).round()), "oldpeak": oldpeak}
    numbers |= {"ca": rng.integers(0, 4, n), "thal": rng.choice([3.0, 6.0, 7.0], n)}
    codes = {name: rng.integers(1, m + 1, n) for name, m in CODES.items()}
    score = 0.06 * (age - 54) + 0.9 * (codes["cp"] == 4) + 0.7 * (codes["sex"] == 2) + 0.6 * (oldpeak - 0.9)
    ill = (score + rng.logistic(size=n) > 0.4).astype(int)
    cells = {name: [f"{v:g}" for v in x] for name, x in numbers.items()}
    cells |= {
        name: [f"{v:.1f}" if k == 0 else f"{v}" for v, k in zip(x, place, strict=True)] for name, x in codes.items()
    }
    for name, counts in GONE.items():
        for k, gone in enumerate(counts):
            for i in rng.choice(np.flatnonzero(place == k), gone, replace=False):
                cells[name][i] = "?"
    return cells | {"ill": [str(v) for v in ill], "hospital": [HOSPITALS[k] for k in place]}


def written(path, columns: dict[str, list[str]], rows=slice(None)):
    """Write columns as a CSV file, and return its path."""
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(columns)
        table.writerows(list(zip(*columns.values(), strict=True))[rows])
    return path
