"""Write docs/exponents.md: how well every exponent of the theorems about averaging, tasks and games is known.

``python -m tests.campaigns.exponents [THEOREM ...]`` finds those of some theorems anew, or all, and keeps the others.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedconvex.theorems import THEOREMS
from fedconvex.verify import exponents
from fedconvex.verify.check_records import HALF

__all__ = ["SCOPE", "page"]

ABOUT = (
    *("fedavg-", "scaffold", "fedprox", "fedsam", "dynamic-", "mocha-", "joint-mocha", "agnostic-rate"),
    *("accelerated-", "fedlin", "ef21", "error-feedback", "compressed-", "scaffnew", "diana", "feddyn", "fednova-"),
)
SCOPE = tuple(name for name in THEOREMS if name.startswith(ABOUT))
KEPT, PAGE = Path(__file__).with_suffix(".json"), Path(__file__).parents[2] / "docs" / "exponents.md"
TEXT = """
# Exponents of bounds

Written by `python -m tests.campaigns.exponents`, of what `fedconvex verify --power` tells of each theorem; how it is
found stands in [power.md](power.md#power-by-exponent). An exponent is that of the parameter where the term presses most
and depends on it (0: a count that the term does not contain, as it should be); "measured" is fitted along a ladder on
which no other number differs by more than a twentieth, over the factor in brackets; "noticed" is the least error that
would be noticed, "–" where none would; "share" the most of the term that was measured anywhere. Established is what
would be noticed at an error of one half.
"""
HEAD = ["| term | parameter | exponent | measured | noticed | share |", "|---|---|---|---|---|---|"]


def page(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the page of what was found by theorem."""
    rows = []
    for name, mine in found.items():
        errors = [math.inf if row["error"] is None else row["error"] for row in mine]
        rows.append((name, sum(e <= 0.1 for e in errors), sum(e <= HALF for e in errors), len(errors)))
    total = [sum(row[i] for row in rows) for i in (1, 2, 3)]
    lines = [
        *TEXT.strip().splitlines(),
        "",
        "| theorem | noticed at 0.1 | established | exponents |",
        "|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in (*rows, ("**all**", *total))]
    for name, mine in found.items():
        lines += ["", f"## {name}", "", *HEAD, *map(_line, mine)]
    return "\n".join(lines) + "\n"


def _line(row: Mapping[str, Any]) -> str:
    measured = "–" if row["fitted"] is None else f"{row['fitted']:.2f} ({row['span']:.3g})"
    noticed = "–" if row["error"] is None else f"{row['error']:.2g}"
    cells = (row["term"], row["parameter"], f"{row['bound']:.2f}", measured, noticed, f"{max(row['share'], 0.0):.2g}")
    return "| " + " | ".join(cells) + " |"


def main(names: list[str]) -> int:
    """Find exponents, and write what was found and the page."""
    found = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for name in names or SCOPE:
        rows = [e._asdict() for e in exponents(name)]
        found[name] = [{k: _plain(v) for k, v in row.items()} for row in rows]
        found = {n: found[n] for n in SCOPE if n in found}
        KEPT.write_text("{\n" + ",\n".join(_block(n, m) for n, m in found.items()) + "\n}\n")
        PAGE.write_text(page(found))
        print(name, len(rows), flush=True)
    return 0


def _plain(x: Any) -> Any:
    return x if isinstance(x, str) else float(f"{x:.4g}") if math.isfinite(x) else None


def _block(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    return f" {json.dumps(name)}: [\n" + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n ]"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
