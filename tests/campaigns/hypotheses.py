"""Mutants of hypotheses: instances in which exactly one of them fails, held against the bound that stands there.

Limits: every number of a method is taken to the largest for which the theorem applies (by bisection), on what is kept
as sharp and on random tiny problems, and then to 1.01, 1.5, 2 and 4 times that. Other hypotheses: unequal client
weights, half of the clients in a round, numbers anywhere up to four times their range. A hypothesis is *necessary*
where the quantity exceeds the bound that stands without it; elsewhere that is unknown. Exact values only.

Weakened: what authors write instead (a mean for a largest value, heterogeneity at the optimum for the supremum, the
smoothness of blocks for L), planted in the file of the theorem (`wrong_theorems.json`).

``python -m tests.campaigns.hypotheses [THEOREM ...]`` finds those of the theorems that hypotheses.json lacks, or of
those named again, and writes docs/hypotheses.md.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedconvex.methods import UniformSampling
from fedconvex.theorems import THEOREMS, Setting, Theorem
from fedconvex.theorems.core import FOUND
from fedconvex.theorems.parts.theorem import Check
from fedconvex.theorems.parts.tiny import Real, Tiny
from fedconvex.verify.checking import carried_out, dropped, problem_of, setting_of
from fedconvex.verify.own_theorems import searched
from fedconvex.verify.power import noticed_below, whole_share
from fedconvex.verify.search import drawn
from tests.campaigns.wrong_theorems import PLANTED, Planted

__all__ = ["WEAKENED", "limit", "page", "shown", "without_hypotheses"]

TRIED = 60  # instances of a theorem beyond its space
BASES = 12  # instances that are taken to the limits of their numbers
TIMES = (1.01, 1.5, 2.0, 4.0)  # a limit
ANY = "other"  # of a hypothesis without a limit
WEAKENED = {  # hypotheses and readings as authors weaken them, by theorem and what is planted
    ("vertical-rate", "theta <= 1"),
    ("hybrid-dual", "mean row norm for the largest"),
    ("hybrid-tracked", "smoothness of blocks for L"),
    ("fedmultiboost", "mean over domains for the largest"),
    ("dynamic-msd-ball", "curvatures at w* for those on the ball"),
    ("fedavg-refined-sharp", "zeta at w* for the supremum"),
    ("fedavg-refined", "step < 2/L"),
    ("fedavg-at-optimum-sharp", "max p for min p"),
    ("fedavg-li-sampling-sharp", "N sum p^2 forgotten"),
    ("game-rounds", "largest difference for the least"),
    ("fedavg-convex", "zeta at w* for the supremum"),
    ("fedavg-convex", "noise at w* for the supremum"),
    ("fedsam", "zeta at w* for the supremum"),
    ("vertical-rate", "mean of L_b for the largest"),
    ("fedavg-contraction", "mean mu_k for the least"),
    ("fedprox-bias", "mean mu_k for the least"),
    ("hedging", "mean mu_k for the least"),
}
KEPT, PAGE = Path(__file__).with_suffix(".json"), Path(__file__).parents[2] / "docs" / "hypotheses.md"


# ---------------------------------------------------------------- one hypothesis fails


@threadpool_limits.wrap(limits=1, user_api="blas")
def without_hypotheses(theorem: Theorem, tried: int = TRIED, bases: int = BASES) -> dict[str, dict[str, float]]:
    """Return by hypothesis in how many instances it alone failed, and the largest quantity/bound there.

    That beyond a limit is also told by how far beyond it is, where an instance was taken there.
    """
    found: dict[str, dict[str, float]] = {}
    for times, s in (*_beyond(theorem, tried), *_past_limits(theorem, bases)):
        with np.errstate(all="ignore"):
            ratios = dropped(theorem, s)
        for text, ratio in ratios.items():
            if math.isfinite(ratio):
                mine = found.setdefault(text, {"instances": 0, "largest": 0.0})
                mine["instances"] += 1
                for key in ("largest", times):
                    mine[key] = max(mine.get(key, 0.0), float(f"{ratio:.3g}"))
    return found


def _beyond(theorem: Theorem, tried: int) -> Iterator[tuple[str, Setting]]:
    """Yield settings beyond a theorem's space."""
    rng, space = np.random.default_rng(0), theorem.space
    for i in range(tried if space is not None else 0):
        longer = {k: Real(v.low, 4.0 * v.high) if k == "share" else v for k, v in space.knobs.items()}
        wider = space._replace(knobs=longer, weighted=space.weighted or i % 2 == 0)
        s = _setting(theorem, drawn(rng, wider))
        if s is not None:
            yield ANY, s._replace(method=_half(s)) if i % 3 == 0 else s


def _past_limits(theorem: Theorem, bases: int) -> Iterator[tuple[str, Setting]]:
    """Yield settings just past the limits of a method's numbers."""
    space = theorem.space
    numbers = [name for name, limits in space.knobs.items() if isinstance(limits, Real)] if space is not None else []
    rng = np.random.default_rng(1)
    kept = [sharp.tiny for sharp in FOUND.get(theorem.name, ())][: bases // 2]
    for tiny in [*kept, *(drawn(rng, space) for _ in range(bases - len(kept) if numbers else 0))]:
        for name in numbers:
            top = limit(theorem, tiny, name)
            for times in TIMES if top is not None else ():
                s = _setting(theorem, _with(tiny, name, times * top))
                if s is not None:
                    yield f"{times:g}", s


def limit(theorem: Theorem, tiny: Tiny, name: str, steps: int = 14) -> float | None:
    """Return the largest value of a number for which a theorem applies to an instance, None where there is none."""
    knob = theorem.space.knobs[name]
    low, high = knob.low, 64.0 * knob.high
    if not _applies(theorem, _with(tiny, name, low)) or _applies(theorem, _with(tiny, name, high)):
        return None
    for _ in range(steps):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _applies(theorem, _with(tiny, name, middle)) else (low, middle)
    return low


def _with(tiny: Tiny, name: str, value: float) -> Tiny:
    return tiny._replace(knobs={**tiny.knobs, name: value})


def _applies(theorem: Theorem, tiny: Tiny) -> bool:
    s = _setting(theorem, tiny)
    try:
        with np.errstate(all="ignore"):
            return s is not None and math.isfinite(theorem.value_at(s))
    except (ArithmeticError, ValueError):
        return False


def _setting(theorem: Theorem, tiny: Tiny) -> Setting | None:
    check = theorem.space.check(tiny)
    try:
        return setting_of(theorem, check, problem_of(theorem, check.instance))
    except (ArithmeticError, TypeError, ValueError):
        return None


def _half(s: Setting) -> Any:
    """Return the method with half of the clients in a round, where it lets clients be drawn."""
    if "participation" not in {f.name for f in fields(s.method)} or s.problem.federation.K < 2:
        return s.method
    return replace(s.method, participation=UniformSampling(s.problem.federation.K // 2))


# ---------------------------------------------------------------- hypotheses as authors weaken them


def shown(planted: Planted) -> tuple[float, str]:
    """Return the largest measured/bound of a theorem with an error in it, by its checks and its search, and where."""
    wrong = planted.made()
    every = [c if isinstance(c, Check) else Check(c) for c in wrong.checks]
    best = (0.0, "")
    for check in (*every, *searched(wrong, None)):
        found = carried_out(wrong, check)
        if found.verdict.bound is not None:
            best = max(best, (whole_share(found.verdict.bound, noticed_below(found)), found.setting))
    return best


def _weakened(name: str) -> dict[str, Any]:
    out = {}
    for planted in PLANTED:
        if planted.theorem == name and (name, planted.what) in WEAKENED:
            share, where = shown(planted)
            out[planted.what] = {"largest": float(f"{share:.3g}"), "where": where}
    return out


# ---------------------------------------------------------------- the page


TEXT = """
# Hypotheses that are needed, and those of which it is not known

Which hypotheses of each theorem are shown to be necessary by an instance, and of which that is not known.

Written by `python -m tests.campaigns.hypotheses`; how instances are found stands at the top of
`tests/campaigns/hypotheses.py`. In each of them one hypothesis alone fails; the numbers are the largest quantity over
the bound that stands without it, at 1.01, 1.5, 2 and 4 times the limit of a number, and elsewhere ("other": unequal
weights, half of the clients, numbers beyond their range). Above 1 an instance shows that the hypothesis cannot go; that
a limit cannot be larger than it is shows the column of 1.01 times alone. Below 1 in all instances nothing is known: the
theorem may hold without it, or the instance was not found.
"""
HEAD = ("theorem", "hypothesis", *(f"{t:g} times" for t in TIMES), ANY, "instances", "necessary")
PLANTS = """
## Hypotheses as authors weaken them

Each is planted in the theorem; measured over the bound that it would give, in the check or the searched instance that
shows most. What is not in the table was not tried.
"""


def page(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return docs/hypotheses.md."""
    lines = [*TEXT.strip().splitlines(), "", *_table(HEAD, (row for pair in records.items() for row in _rows(*pair)))]
    left = [f"`{name}`" for name in THEOREMS if not records.get(name, {}).get("limits")]
    lines += ["", f"Limits are not tried yet for {', '.join(left)}."] if left else []
    lines += ["", *PLANTS.strip().splitlines(), ""]
    planted = [
        (name, what, _told(f["largest"]), f["where"], _verdict(f["largest"]))
        for name, record in records.items()
        for what, f in record["weakened"].items()
    ]
    return "\n".join(lines + _table(("theorem", "written instead", "measured/bound", "where", "false"), planted)) + "\n"


def _table(head: tuple[str, ...], rows: Any) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *rows)]


def _rows(name: str, record: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for text, found in record["hypotheses"].items():
        by = (_told(found.get(key)) for key in (*(f"{t:g}" for t in TIMES), ANY))
        yield name, text.replace("|", "\\|"), *by, f"{found['instances']:.0f}", _verdict(found["largest"])


def _told(x: float | None) -> str:
    return "" if x is None else "above 10^6" if x > 1e6 else f"{x:.3g}"


def _verdict(largest: float) -> str:
    return "shown" if largest > 1.0 else "unknown"


def main(names: list[str]) -> int:
    """Find what is missing, or the hypotheses of the theorems named, and write the page."""
    records = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for name in names or [name for name in THEOREMS if not records.get(name, {}).get("limits")]:
        found = {"hypotheses": without_hypotheses(THEOREMS[name]), "weakened": _weakened(name)}
        records[name] = {"limits": True, **found}
        records = {name: records[name] for name in THEOREMS if name in records}
        KEPT.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n")
        PAGE.write_text(page(records))
        print(name, {k: len(v) for k, v in found.items()}, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
