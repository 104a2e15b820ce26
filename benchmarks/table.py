"""Print the results as markdown tables, from results/*.json."""

from __future__ import annotations

import json
from pathlib import Path

ORDER = [
    "local_sgd",
    "round",
    "trajectories",
    "threads",
    "recording",
    "family",
    "agnostic",
    "theory",
    "participation",
    "sweep",
    "memory",
    "simplex",
    "mocha",
    "joint",
    "omega",
    "compare",
    "vertical",
    "boosting",
    "fedmultiboost",
    "solve",
    "analyse",
    "newton",
    "study",
    "sites",
    "start",
]
SHOWN = ("cpu", "cores", "python", "numpy", "numba", "load_at_start", "date")
PEERS = ("scikit-learn", "jax", "fedjax", "liblinear-official", "celer", "skglm", "xgboost", "lightgbm", "joblib")
PEERS += ("lifelines", "scikit-survival", "statsmodels")
APART = ["penalties", "scale", "survival", "virtual"]  # longer than all others together: `run_all.py` leaves them out


def tables(result):
    """Markdown of one benchmark: its times, then its ratios and bars."""
    cpu = result["clock"] == "cpu"
    first, other = ("cpu_", "") if cpu else ("", "cpu_")
    other_name = "wall" if cpu else "CPU"
    lines = [f"### {result['title']}", "", f"Time in {result['unit']}.", ""]
    lines += [f"| case | program | minimum | median | minimum, {other_name} | note |", "|---|---|---|---|---|---|"]
    for row in result["rows"]:
        cells = [f"{row[k]:.4g}" if k in row else "-" for k in (first + "min", first + "median", other + "min")]
        lines.append(f"| {row['case']} | {row['who']} | {' | '.join(cells)} | {row['note']} |")
    if result["bars"]:
        lines += ["", "| measure | value | bar | met |", "|---|---|---|---|"]
        for bar in result["bars"]:
            verdict = "-" if bar["met"] is None else "yes" if bar["met"] else "**no**"
            limit = "-" if bar["bar"] is None else f"{bar['bar']:g}"
            lines.append(f"| {bar['what']} | {bar['value']:.3g} | {limit} | {verdict} |")
    return lines


def main():
    folder = Path(__file__).resolve().parent / "results"
    found = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    for name in [n for n in (*ORDER, *APART) if n in found]:
        environment = found[name]["environment"]
        print("\n".join(tables(found[name])))
        shown = (*SHOWN, *(k for k in PEERS if environment.get(k)))
        print("\n" + ", ".join(f"{k} {environment[k]}" for k in shown) + "\n")


if __name__ == "__main__":
    main()
