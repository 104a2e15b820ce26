"""Write docs/exponents.md: how well every exponent of the theorems about averaging, tasks and games is known.

``python -m tests.campaigns.exponents [THEOREM ...]`` finds those of some theorems anew, or all, and keeps the others.
With ``--aim`` nothing is found anew: for each exponent that is not established a search of its own looks for instances
that press on the term with the number far from 1, and what is noticed there is kept.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedconvex.theorems import THEOREMS, Theorem
from fedconvex.theorems.core import FOUND
from fedconvex.verify import exponents
from fedconvex.verify.check_records import HALF
from fedconvex.verify.exponents import _error, _exponent, _ladders, _Place, _place
from fedconvex.verify.search import changed, drawn

__all__ = ["SCOPE", "aimed", "page"]

ABOUT = (
    *("fedavg-", "scaffold", "fedprox", "fedsam", "dynamic-", "mocha-", "joint-mocha", "agnostic-rate"),
    *("accelerated-", "fedlin", "ef21", "error-feedback", "compressed-", "scaffnew", "diana", "feddyn", "fednova-"),
    *("approximate-newton", "newton-line-search", "fednl-", "sdane", "dane-leader"),
)
SCOPE = tuple(name for name in THEOREMS if name.startswith(ABOUT))
KEPT, PAGE = Path(__file__).with_suffix(".json"), Path(__file__).parents[2] / "docs" / "exponents.md"
TEXT = """
# Exponents of bounds

Which exponents of a bound would be noticed if they were wrong, and why the others would not: for authors who quote a
rate.

Written by `python -m tests.campaigns.exponents`, of what `fedconvex verify --power` tells of each theorem; how it is
found stands in [power.md](power.md#power-by-exponent). An exponent is that of the parameter where the term presses most
and depends on it (0: a count that the term does not contain, as it should be); "measured" is fitted along a ladder on
which no other number differs by more than a twentieth, over the factor in brackets; "noticed" is the least error that
would be noticed, "–" where none would; "share" the most of the term that was measured anywhere. Established is what
would be noticed at an error of one half.

What is not established is counted by its reason. *Nothing presses*: no instance is known in which the term, or a part
of it, is needed, so that it may be superfluous. *Near 1*: such instances are known, but the number is nearly 1 in them,
or the term does not depend on it there. *Too weak*: the share of the term that is measured is too small for a factor of
the root of the number to be noticed. Some of these terms are no power of the number at all, such as those with a free
parameter that is chosen to make the bound least; the exponent is then that of the place in the table.
"""
COUNTS = [
    "The seven families are FedAvg, SCAFFOLD, FedProx, FedSAM, Dynamic FedAvg, MOCHA and agnostic federated learning.",
]
FAMILIES = ("fedavg-", "scaffold", "fedprox", "fedsam", "dynamic-", "mocha-", "joint-mocha", "agnostic-rate")
TABLE = [
    "| theorem | noticed at 0.1 | established | exponents | nothing presses | near 1 | too weak |",
    "|---|---|---|---|---|---|---|",
]
HEAD = ["| term | parameter | exponent | measured | noticed | share |", "|---|---|---|---|---|---|"]


def page(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the page of what was found by theorem."""
    rows = every = [(name, *_counts(mine)) for name, mine in found.items()]
    lines = [*TEXT.strip().splitlines(), "", *COUNTS]
    for head, names in (("the seven families", FAMILIES), ("all", "")):
        mine = [row for row in every if row[0].startswith(names)]
        total = [sum(row[i] for row in mine) for i in range(1, 7)]
        few = [row for row in mine if sum(row[4:]) <= 0.2 * row[3]]
        share = f"{sum(total[3:]) / total[2]:.0%}"
        told = f"In {head} {sum(total[3:])} of {total[2]} are not established, {share}"
        lines += [f"{told}; at most a fifth in {len(few)} of {len(mine)} theorems."]
        rows = [*rows, (f"**{head}**", *total)]
    lines += ["", *TABLE, *("| " + " | ".join(map(str, row)) + " |" for row in rows)]
    for name, mine in found.items():
        lines += ["", f"## {name}", "", *HEAD, *map(_line, mine)]
    return "\n".join(lines) + "\n"


def _counts(mine: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Return how many are noticed at 0.1, are established, are told, and are not established for each reason."""
    errors = [_known(row) for row in mine]
    pressed = [row["share"] > 0.0 for row in mine]
    weak = sum(HALF < e < math.inf and p for e, p in zip(errors, pressed, strict=True))
    near = sum(e == math.inf and p for e, p in zip(errors, pressed, strict=True))
    return (
        sum(e <= 0.1 for e in errors),
        sum(e <= HALF for e in errors),
        len(mine),
        len(mine) - sum(pressed),
        near,
        weak,
    )


def _line(row: Mapping[str, Any]) -> str:
    measured = "–" if row["fitted"] is None else f"{row['fitted']:.2f} ({row['span']:.3g})"
    noticed = "–" if row["error"] is None else f"{row['error']:.2g}"
    cells = (row["term"], row["parameter"], f"{row['bound']:.2f}", measured, noticed, f"{max(row['share'], 0.0):.2g}")
    return "| " + " | ".join(cells) + " |"


# ---------------------------------------------------------------- a search for each exponent

POOL, CHANGES = 96, 24  # random instances of a theorem, and changes of the best for each exponent


@threadpool_limits.wrap(limits=1, user_api="blas")
def aimed(theorem: Theorem, rows: Sequence[Mapping[str, Any]], pool: int = POOL, changes: int = CHANGES) -> list[Any]:
    """Return the rows, with what instances show that were sought for each exponent that is not established."""
    if theorem.space is None or all(_known(row) <= HALF for row in rows):
        return list(rows)
    rng = np.random.default_rng(0)
    kept = [sharp.tiny for sharp in FOUND.get(theorem.name, ())]
    tinies = [*kept, *(t for tiny in kept[:3] for rungs in _ladders(theorem, tiny) for t in rungs)]
    tinies += [drawn(rng, theorem.space) for _ in range(pool)]
    tried = [(tiny, place) for tiny in tinies if (place := _place(theorem, tiny)) is not None]
    return [row if _known(row) <= HALF else _aimed(theorem, row, tried, rng, changes) for row in rows]


def _aimed(theorem: Theorem, row: Mapping[str, Any], tried: Sequence[Any], rng: np.random.Generator, n: int) -> Any:
    scored = [(_score(theorem, place, row), tiny, place) for tiny, place in tried]
    (score, tiny, place), step = min(scored, key=lambda one: one[0], default=((math.inf, 0.0), None, None)), 0.5
    for _ in range(n if tiny is not None else 0):
        other = changed(rng, theorem.space, tiny, step)
        seen = _place(theorem, other)
        new = _score(theorem, seen, row) if seen is not None else (math.inf, 0.0)
        if new < score:
            score, tiny, place, step = new, other, seen, min(1.5 * step, 1.0)
        else:
            step = max(0.9 * step, 0.05)
        if score[0] <= 0.1:
            break
    if not score[0] < _known(row):
        return row
    share = max(place.share(row["term"]), row["share"])
    power = _exponent(theorem, place, row["term"], row["parameter"])
    return {**row, "bound": _plain(power), "error": _plain(score[0]), "share": _plain(share)}


def _score(theorem: Theorem, place: _Place, row: Mapping[str, Any]) -> tuple[float, float]:
    """Return the error that is noticed at a place where the term depends on the number, and less the term's share."""
    term, name = row["term"], row["parameter"]
    if not place.bound.terms.get(term) or name not in place.numbers:
        return math.inf, 0.0
    error = _error(place, term, name)
    if math.isfinite(error) and abs(row["bound"]) >= 1e-3:
        power = abs(_exponent(theorem, place, term, name))
        error = error if power >= min(0.25, 0.5 * abs(row["bound"])) else math.inf
    return error, -place.share(term)


def _known(row: Mapping[str, Any]) -> float:
    return math.inf if row["error"] is None else float(row["error"])


def main(argv: list[str]) -> int:
    """Find exponents, and write what was found and the page."""
    found = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    names = [name for name in argv if name != "--aim"]
    for name in names or SCOPE:
        if "--aim" in argv:
            found[name] = aimed(THEOREMS[name], found[name])
        else:
            found[name] = [{k: _plain(v) for k, v in e._asdict().items()} for e in exponents(name)]
        found = {n: found[n] for n in SCOPE if n in found}
        KEPT.write_text("{\n" + ",\n".join(_block(n, m) for n, m in found.items()) + "\n}\n")
        PAGE.write_text(page(found))
        print(name, sum(_known(row) > HALF for row in found[name]), len(found[name]), flush=True)
    return 0


def _plain(x: Any) -> Any:
    return x if isinstance(x, str) else float(f"{x:.4g}") if math.isfinite(x) else None


def _block(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    return f" {json.dumps(name)}: [\n" + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n ]"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
