"""The table of docs/choosing.md, from results/baselines.json: ``python benchmarks/choosing.py`` writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGE, RESULTS = HERE.parent / "docs" / "choosing.md", HERE / "results" / "baselines.json"


def table(found: list[dict[str, Any]]) -> str:
    """Return the rows of docs/choosing.md: rounds and floats, by theory and tuned."""
    cases = list(dict.fromkeys(f["case"] for f in found))
    lines = ["| method | " + " | ".join(cases) + " |", "|---" * (len(cases) + 1) + "|"]
    for who in dict.fromkeys(f["who"] for f in found):
        cells = []
        for case in cases:
            mine = {f["step"]: f["needs"] for f in found if (f["case"], f["who"]) == (case, who)}
            theory, tuned = (_cell(mine[how]) for how in ("theory", "tuned"))
            factor = mine["tuned"]["factor"] if mine["tuned"] else 1.0
            cells.append(theory if factor == 1.0 else f"{theory}; {tuned} (×{factor:g})")
        lines.append(f"| {who} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(needs: dict[str, float] | None) -> str:
    return "–" if needs is None else f"{needs['rounds']:,.0f} / {needs['floats']:,.0f}"


def page(text: str, found: list[dict[str, Any]]) -> str:
    """Return docs/choosing.md with its table made anew."""
    head, begin, rest = text.partition("<!-- benchmarks/bench_baselines.py -->\n")
    return f"{head}{begin}\n{table(found)}\n\n<!-- end -->" + rest.partition("<!-- end -->")[2]


def write(found: list[dict[str, Any]]) -> None:
    """Write the page with these results."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    write(json.loads(RESULTS.read_text(encoding="utf-8"))["found"])
