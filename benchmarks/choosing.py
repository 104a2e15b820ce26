"""The table and the figure of docs/choosing.md, from results/baselines.json: ``python benchmarks/choosing.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedconvex.papers.style import COLOURS, grid, panel
from fedconvex.report.plots import save_figure

HERE = Path(__file__).resolve().parent
PAGE, RESULTS = HERE.parent / "docs" / "choosing.md", HERE / "results" / "baselines.json"
FIGURE = HERE.parent / "docs" / "figures" / "choosing.png"


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


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Draw rounds and bits of every method on every problem, with the range over seeds."""
    cases, names = (list(dict.fromkeys(f[key] for f in found)) for key in ("case", "who"))
    figure, axes = grid((2, len(cases)), width=1.75, height=3.6, sharey=True)
    for i, (unit, title) in enumerate((("rounds", "rounds"), ("bits", "bits a client sends"))):
        for axis, case in zip(axes[i * len(cases) :], cases, strict=False):
            for f in found:
                if f["case"] == case and f["needs"] and not (f["step"] == "tuned" and f["needs"]["factor"] == 1.0):
                    _mark(axis, f["needs"], unit, names.index(f["who"]), f["step"] == "tuned")
            panel(axis, case if i == 0 else "", title, log="x")
            axis.xaxis.set_minor_formatter(lambda *_: "")
            axis.set_yticks(range(len(names)), names, fontsize=6)
            axis.set_ylim(len(names) - 0.5, -0.5)
    for label, fill in (("step of a theorem, or none needed", COLOURS[0]), ("best of 4 and 16 times it", "white")):
        axes[0].plot([], [], "o", markersize=4, color=COLOURS[0], markerfacecolor=fill, label=label)
    figure.legend(loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    save_figure(figure, path)


def _mark(axis: Any, needs: dict[str, float], unit: str, row: int, tuned: bool) -> None:
    """Mark one cost; bits of other seeds are those of their rounds."""
    share = needs[unit] / needs["rounds"]
    ends = [[needs[unit] - share * needs["from"]], [share * needs["to"] - needs[unit]]]
    axis.errorbar(
        [needs[unit]], [row], xerr=ends, fmt="o", markersize=4, capsize=2, linewidth=1, color=COLOURS[0],
        markerfacecolor="white" if tuned else COLOURS[0],
    )  # fmt: skip


def write(found: list[dict[str, Any]]) -> None:
    """Write the page with these results, and its figure."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    draw(found, FIGURE)


if __name__ == "__main__":
    write(json.loads(RESULTS.read_text(encoding="utf-8"))["found"])
