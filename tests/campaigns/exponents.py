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
from fedconvex.theorems.parts.ladders import derived_ladders
from fedconvex.theorems.parts.tiny import Tiny
from fedconvex.verify import exponents
from fedconvex.verify.check_records import HALF
from fedconvex.verify.exponents import _copied, _error, _exponent, _ladders, _Place, _place, depended
from fedconvex.verify.search import changed, drawn
from tests.campaigns.families import large

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
would be noticed at an error of one half. Terms of which a proof on the theorem's page says that the bound holds without
them are superfluous. Where a term depends on a number by exponents of less than a quarter only, any place counts.

What is unknown is counted by its reason. *Nothing presses*: no instance is known in which the term, or a part
of it, is needed, so that it may be superfluous. *Near 1*: such instances are known, but the number is nearly 1 in them,
or the term does not depend on it there. *Too weak*: the share of the term that is measured is too small for a factor of
the root of the number to be noticed. Some of these terms are no power of the number at all; the exponent is then that
of the place in the table. Free parameters that make a bound least are held while a number is moved.

Instances are those of `verify --power`; what these leave open is sought in others (`--aim`): tiny problems with more
rows, clients, local steps or rounds than spaces have, in other units, and derived ones (`families.large`). A constant
with a unit is as far from 1 as units make it, so that counts and weights are the harder part; they are told apart.
"""
COUNTS = [
    "The seven families are FedAvg, SCAFFOLD, FedProx, FedSAM, Dynamic FedAvg, MOCHA and agnostic federated learning.",
]
SUPERFLUOUS = {  # terms, or their dependence on a number, without which a sharper theorem's proof shows a bound to hold
    ("fedavg-strongly-convex", "heterogeneity"): "fedavg-strongly-convex-sharp",
    ("fedprox", "descent", "participants"): "fedprox-sharp",
}
FAMILIES = ("fedavg-", "scaffold", "fedprox", "fedsam", "dynamic-", "mocha-", "joint-mocha", "agnostic-rate")
BARE = (  # numbers without a unit
    *("local_steps", "rounds", "K", "p", "participants", "participation", "batch_size", "sizes", "noise_factor"),
    *("server_step", "power", "theta", "B"),
)
TABLE = [
    "| theorem | noticed at 0.1 | established | superfluous | exponents | nothing presses | near 1 | too weak |",
    "|---|---|---|---|---|---|---|---|",
]
HEAD = ["| term | parameter | exponent | measured | noticed | share |", "|---|---|---|---|---|---|"]


def page(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the page of what was found by theorem."""
    rows = every = [(name, *_counts(name, mine)) for name, mine in found.items()]
    lines = [*TEXT.strip().splitlines(), "", *COUNTS]
    for head, names in (("the seven families", FAMILIES), ("all", "")):
        mine = [row for row in every if row[0].startswith(names)]
        total = [sum(row[i] for row in mine) for i in range(1, 8)]
        few = [row for row in mine if sum(row[5:]) <= 0.2 * row[4]]
        share = f"{sum(total[4:]) / total[3]:.0%}"
        told = f"In {head} {sum(total[4:])} of {total[3]} are unknown, {share}"
        lines += [f"{told}; at most a fifth in {len(few)} of {len(mine)} theorems."]
        bare = [
            (n, row) for n, rows in found.items() if n.startswith(names) for row in rows if row["parameter"] in BARE
        ]
        open_ = sum(_known(row) > HALF and not _superfluous(n, row) for n, row in bare)
        lines += [f"Of those of counts, weights and ratios alone {open_} of {len(bare)}, {open_ / len(bare):.0%}."]
        rows = [*rows, (f"**{head}**", *total)]
    lines += ["", *TABLE, *("| " + " | ".join(map(str, row)) + " |" for row in rows)]
    for name, mine in found.items():
        lines += ["", f"## {name}", "", *HEAD, *(_line(name, row) for row in mine)]
    return "\n".join(lines) + "\n"


def _counts(name: str, rows: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Return how many are noticed at 0.1, established, superfluous, told, and unknown for each reason."""
    mine = [row for row in rows if not _superfluous(name, row)]
    errors = [_known(row) for row in mine]
    pressed = [row["share"] > 0.0 for row in mine]
    weak = sum(HALF < e < math.inf and p for e, p in zip(errors, pressed, strict=True))
    near = sum(e == math.inf and p for e, p in zip(errors, pressed, strict=True))
    return (
        sum(e <= 0.1 for e in errors),
        sum(e <= HALF for e in errors),
        len(rows) - len(mine),
        len(rows),
        len(mine) - sum(pressed),
        near,
        weak,
    )


def _superfluous(name: str, row: Mapping[str, Any]) -> bool:
    """Whether a proof says so of what no instance establishes."""
    term = (name, row["term"])
    return _known(row) > HALF and (term in SUPERFLUOUS or (*term, row["parameter"]) in SUPERFLUOUS)


def _line(name: str, row: Mapping[str, Any]) -> str:
    measured = "–" if row["fitted"] is None else f"{row['fitted']:.2f} ({row['span']:.3g})"
    noticed = "–" if row["error"] is None else f"{row['error']:.2g}"
    noticed = "superfluous" if _superfluous(name, row) else noticed
    cells = (row["term"], row["parameter"], f"{row['bound']:.2f}", measured, noticed, f"{max(row['share'], 0.0):.2g}")
    return "| " + " | ".join(cells) + " |"


# ---------------------------------------------------------------- a search for each exponent

POOL, CHANGES = 32, 60  # random instances of a theorem, and changes of the best for each exponent


@threadpool_limits.wrap(limits=1, user_api="blas")
def aimed(theorem: Theorem, rows: Sequence[Mapping[str, Any]], pool: int = POOL, changes: int = CHANGES) -> list[Any]:
    """Return the rows, with what instances show that were sought for each exponent that is not established.

    Instances may be larger than the theorem's space, which is for quick searches: see `grown`.
    """
    if theorem.space is None or all(_known(row) <= HALF for row in rows):
        return list(rows)
    rng = np.random.default_rng(0)
    kept = [sharp.tiny for sharp in FOUND.get(theorem.name, ())]
    tinies = [*kept, *(t for tiny in kept[:3] for rungs in _ladders(theorem, tiny) for t in rungs)]
    tinies += [tiny for rungs in derived_ladders(theorem.space) for tiny in rungs]
    tinies += [drawn(rng, theorem.space) for _ in range(pool)]
    tinies += large(theorem.name)
    more = {name: 1 for row in rows for name in SETTABLE.get((theorem.name, row["parameter"]), ())}
    tinies = [tiny._replace(knobs={**more, **tiny.knobs}) for tiny in tinies] if more else tinies
    tried = [(tiny, place) for tiny in tinies if (place := _place(theorem, tiny)) is not None]
    return [row if _known(row) <= HALF else _aimed(theorem, row, tried, rng, changes) for row in rows]


def _aimed(theorem: Theorem, row: Mapping[str, Any], tried: list[Any], rng: np.random.Generator, n: int) -> Any:
    """Return a row with what the best instance shows; what is tried on the way is kept for other rows."""
    scored = [(_score(theorem, place, row), tiny, place) for tiny, place in tried]
    score, tiny, place = min(scored, key=lambda one: one[0], default=(NOTHING, None, None))
    step = 0.5
    for _ in range(n if tiny is not None else 0):
        if score[0] <= 0.1:
            break
        grows = rng.random() < 0.6
        other = grown(rng, tiny) if grows else changed(rng, theorem.space, tiny, step)
        seen = _place(theorem, other) if _work(other) <= WORK else None
        tried += [] if seen is None else [(other, seen)]
        new = _score(theorem, seen, row) if seen is not None else NOTHING
        if new < score:
            score, tiny, place, step = new, other, seen, min(1.5 * step, 1.0)
        elif not grows:
            step = max(0.9 * step, 0.05)
    share = max(place.share(row["term"]), row["share"]) if place is not None else row["share"]
    found = {**row, "share": _plain(share)}
    if score[0] < _known(row):
        power = _exponent(theorem, place, row["term"], row["parameter"])
        found |= {"bound": _plain(power) if math.isfinite(power) else row["bound"], "error": _plain(score[0])}
    return found


SETTABLE = {  # numbers of methods that spaces leave at their default, by theorem and parameter
    ("scaffold", "server_step"): ("server_step",),
    ("scaffold-contraction", "server_step"): ("server_step",),
    ("fedavg-contraction", "power"): ("power", "shift"),
    ("fedavg-contraction", "participants"): ("sampled",),
    ("fedavg-strongly-convex", "participants"): ("sampled",),
    ("fedavg-strongly-convex-sharp", "participants"): ("sampled",),
}
WORK = 2**15  # local steps times clients, and rows, of a grown instance at most


def _work(tiny: Tiny) -> int:
    """Return the cost of an instance, about: moments of sampled clients have a matrix for all of them."""
    clients = len(tiny.sizes) * int(tiny.knobs.get("copies", 1))
    steps = int(tiny.rounds * tiny.knobs.get("local_steps", 1))
    return max(steps * clients ** (2 if "copies" in tiny.knobs else 1), 64 * len(tiny.rows))


def grown(rng: np.random.Generator, tiny: Tiny) -> Tiny:
    """Return an instance with more rows, clients, local steps or rounds, or in other units, beyond the space."""
    for _ in range(min(int(rng.geometric(0.6)), 3)):
        kinds = ["rows", "clients", "steps", "rounds", "units"]
        kinds += ["numbers"] if {"server_step", "power"} & tiny.knobs.keys() else []
        tiny = _grown(rng, tiny, str(rng.choice(kinds)))
    return tiny


def _grown(rng: np.random.Generator, tiny: Tiny, what: str) -> Tiny:
    times, knobs = 2 ** int(rng.integers(1, 5)), dict(tiny.knobs)
    if what == "rows":
        ends = np.cumsum(tiny.sizes)
        mine = [slice(end - n, end) for end, n in zip(ends, tiny.sizes, strict=True)]
        rows, labels = (tuple(x for part in mine for x in of[part] * times) for of in (tiny.rows, tiny.labels))
        _set(rng, knobs, "batch_size", times, min(tiny.sizes) * times)
        return tiny._replace(rows=rows, labels=labels, sizes=tuple(n * times for n in tiny.sizes), knobs=knobs)
    if what == "clients" and "copies" in knobs:
        knobs["copies"] = int(knobs["copies"] * times)
        _set(rng, knobs, "sampled", times, len(tiny.sizes) * knobs["copies"])
        return tiny._replace(knobs=knobs)
    if what == "clients":
        for name in ("participation", "sampled"):
            _set(rng, knobs, name, times, len(tiny.sizes) * times)
        return _copied(tiny._replace(knobs=knobs), times)
    if what == "steps" and "local_steps" in knobs:
        knobs["local_steps"] = int(knobs["local_steps"] * times)
        if "share" in knobs and rng.random() < 0.5:
            knobs["share"] = knobs["share"] / times
        return tiny._replace(knobs=knobs)
    if what == "numbers" and "power" in knobs:  # of steps that decay
        knobs |= {"power": float(rng.choice([0.25, 0.5, 1.0])), "shift": float(rng.choice([1.0, 10.0, 1e3]))}
        return tiny._replace(knobs=knobs)
    if what == "numbers":  # the product of both steps stays
        knobs |= {"server_step": knobs["server_step"] * times, "share": knobs["share"] / times}
        return tiny._replace(knobs=knobs)
    if what == "rounds":
        return tiny._replace(rounds=tiny.rounds * times)
    unit = 10.0 ** float(rng.choice([-6.0, -3.0, 3.0, 6.0]))
    if rng.random() < 0.5:
        return tiny.scaled(1.0, unit)
    knobs |= {"ridge": knobs["ridge"] * unit**2} if "ridge" in knobs else {}
    return tiny.scaled(unit)._replace(knobs=knobs)


def _set(rng: np.random.Generator, knobs: dict[str, Any], name: str, times: int, most: int) -> None:
    """Multiply a number of the method, or draw it, small ones as often as large ones, or leave it."""
    if name in knobs:
        draw = int(2.0 ** rng.uniform(0.0, math.log2(most)))
        knobs[name] = int(rng.choice([knobs[name], min(knobs[name] * times, most), draw]))


NOTHING = (math.inf, math.inf)


def _score(theorem: Theorem, place: _Place, row: Mapping[str, Any]) -> tuple[float, float]:
    """Return the error that is noticed at a place where the term depends on the number, and one to climb by."""
    term, name = row["term"], row["parameter"]
    if not place.bound.terms.get(term) or name not in place.numbers:
        return NOTHING
    share = place.share(term)
    least = depended(2.0 * abs(row["bound"]))  # what is told is half of the largest exponent, or a quarter, at least
    if least and not abs(_exponent(theorem, place, term, name)) >= min(least, 0.5 * abs(row["bound"])):
        return math.inf, 1e6 - share
    climbed = -math.log(share) / (abs(math.log(place.numbers[name])) + 0.05) if share > 0.0 else 1e3 - share
    return _error(place, term, name), climbed


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
