"""Planted errors: bounds whose source is changed at one place, compared with what the suite's checks measured.

A mutant drops or halves a term, moves an exponent by one half, an index by one, or a literal by a factor of two, takes
a mean for a largest value, a maximum for a minimum, p^2 for p. Readings, which tell a bound its numbers, are changed in
the same way.

same    it lowers the bound nowhere: in no check of the suite, and in none of the tiny problems below. It is no error,
        and does not count.
caught  the lowered bound lies below what a check measures.
shown   no check catches it, and another instance shows it to be false: one of `RANDOM` tiny problems of the theorem's
        space, of derived ladders (`derived_ladders`), of kept instances in other units, or an exact worst case
        (`exact_worst`).
free    it changes what the theorem leaves free to choose (`FREE`): the statement holds for it.
proved  it is a true statement, for all parameters (`PROVED`).
missed  none of these, whatever stays above a sharper theorem of the project (`SHARPER`) or above all exact worst cases
        of `exact_worst` in the settings tried: what is listed says so, and that it is no proof.

Nothing is run but the suite's checks, once, and tiny problems; a bound is a function of numbers.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from fedconvex.theorems import THEOREMS, Setting, Theorem, kit
from fedconvex.theorems.core import FOUND
from fedconvex.theorems.parts.ladders import derived_ladders
from fedconvex.theorems.parts.theorem import Check, Reading
from fedconvex.theorems.parts.tiny import Whole
from fedconvex.theory.bound import AssumptionError, Bound
from fedconvex.verify.checking import carried_out, problem_of, setting_of
from fedconvex.verify.power import noticed_below
from fedconvex.verify.search import drawn
from fedconvex.verify.verdicts import Outcome
from tests.campaigns.exact_worst import WorstPlace, worst_places
from tests.campaigns.families import UNITS

__all__ = ["SHARPER", "Mutant", "Place", "above_sharper", "judged", "mutants", "places", "trial", "value_at"]

SHARPER = {  # a theorem that proves more under the same hypotheses
    "fedavg-convex": "fedavg-refined-sharp",
    "fedavg-convex-tuned": "fedavg-refined-sharp",
    "fedavg-refined": "fedavg-refined-sharp",
    "fedavg-at-optimum": "fedavg-at-optimum-sharp",
    "fedavg-strongly-convex": "fedavg-strongly-convex-sharp",
    "fedavg-strongly-convex-sharp": "fedavg-contraction",
    "dynamic-gradient-noise": "dynamic-gradient-noise-sharp",
    "dynamic-incremental-noise": "dynamic-incremental-noise-at",
    "dynamic-msd-paper": "dynamic-msd-refined",
    "dynamic-steady-state-paper": "dynamic-steady-state-refined",
    "fedprox": "fedprox-sharp",
    "weight-divergence-zhao": "weight-divergence-convex",
    "agnostic-rate": "agnostic-rate-any-steps",
    "agnostic-cover": "agnostic-direct",
    "agnostic-vc": "agnostic-direct",
    "agnostic-vertices": "agnostic-direct",
} | {t.name: t.sharper for t in THEOREMS.values() if t.sharper}
FREE = {  # lines of the source that choose what a theorem leaves free
    "_YOUNG": "all a of a grid give valid bounds, so that the grid costs tightness only",
    "_SPLITS": "all t of a grid give valid bounds, so that the grid costs tightness only",
    "_SHARES": "all w_2 of a grid give valid bounds, so that the grid costs tightness only",
}
PROVED = {  # true statements: of a theorem, by texts that name a mutant, with the reason
    "fedavg-convex": (
        (
            *("'noise' times 0.5", "'noise drift' times 0.5", "'heterogeneity drift' times 0.5", "M -> M + 1"),
            *("4.0 -> 2.0, in 4.0 * tau", "tau -> tau + -1", "18.0 -> 9.0"),
        ),
        "R1# needs half of the noise, (tau - 1)/2 for 4 tau and (tau - 1)(2 tau - 1)/6 for 18 tau^2",
    ),
    "fedprox": (("fedprox_rho: ",), "the sampling terms, which are never negative, are superfluous: fedprox-sharp"),
    "fedavg-drift": (
        ("18.0 -> 9.0", "4.0 -> 2.0", "'heterogeneity' times 0.5", "'noise' times 0.5"),
        "the sharper form is at most 2 (tau eta zeta)^2 + 2 tau eta^2 sigma^2, of all weights and tau",
    ),
}
SILENT = {
    *("require", "Hypothesis", "known_constants", "real", "whole", "vector", "numeric", "bad", "where_taken", "replace")
}
COUNTS = ("tau", "T", "E", "K", "M", "N", "S", "r", "m", "s", "k", "t")

WEIGHTS = ("p",)
MEANS = {"max": "mean", "min": "mean"}
OTHER = {"max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum"}

RANDOM = 40  # tiny problems in which a mutant may lower the bound
READINGS = 16  # places in which readings are tried, the checks first: constants are computed anew
SEARCHED = tuple(t.name for t in THEOREMS.values() if t.space is not None)


class Mutant(NamedTuple):
    """A changed bound, and what was changed."""

    what: str
    bound: Callable[..., Bound]
    line: str = ""  # of the source
    reads: bool = False  # whether the reading is changed: then ``bound`` takes the setting


class Place(NamedTuple):
    """A setting with what the bound is told there, and what was measured; minus infinity where nothing was exact."""

    setting: Setting
    arguments: dict[str, Any]
    value: float  # of the true bound
    least: float  # below which a bound is violated
    name: str
    check: bool = False  # of the suite


# ---------------------------------------------------------------- where bounds are asked


_PLACES: dict[tuple[str, int], tuple[Place, ...]] = {}


def places(theorem: Theorem) -> tuple[Place, ...]:
    """Return the checks of a theorem in which it applies, and tiny problems that the suite does not have."""
    key = (theorem.name, len(theorem.checks))
    if key not in _PLACES:
        _PLACES[key] = (*_checked(theorem), *_others(theorem, RANDOM))
    return _PLACES[key]


def _checked(theorem: Theorem) -> Iterator[Place]:
    for item in theorem.checks:
        check = item if isinstance(item, Check) else Check(item)
        found = carried_out(theorem, check)
        if found.verdict.bound is not None and found.verdict.outcome in (Outcome.HOLDS, Outcome.VACUOUS):
            s = setting_of(theorem, check, problem_of(theorem, check.instance))
            yield _place(theorem, s, noticed_below(found), found.setting)._replace(check=True)


def _others(theorem: Theorem, number: int) -> Iterator[Place]:
    """Yield random tiny problems, derived ones, and those that are kept in other units."""
    if theorem.space is None:
        return
    rng = np.random.default_rng(0)
    every = [(drawn(rng, theorem.space), "a random tiny problem") for _ in range(number)]
    every += [(tiny, "a derived instance") for ladder in derived_ladders(theorem.space) for tiny in ladder]
    if all(isinstance(limits, Whole) or name == "share" for name, limits in theorem.space.knobs.items()):
        kept = [sharp.tiny for sharp in FOUND.get(theorem.name, ())]
        every += [(tiny.scaled(*unit), "a kept instance in other units") for tiny in kept for unit in UNITS]
    for tiny, name in every:
        check = theorem.space.check(tiny)
        try:
            with np.errstate(all="ignore"):
                s = setting_of(theorem, check, problem_of(theorem, check.instance))
                found = theorem.expectation(s, [s.rounds])
                least = -math.inf if found is None else float(found.values[0] - found.rounding[0])
                place = _place(theorem, s, least, name)
            yield place._replace(least=least - 1e-12 * abs(place.value))
        except (ArithmeticError, ValueError):
            continue


def _place(theorem: Theorem, s: Setting, least: float, name: str) -> Place:
    bound = theorem.at(s)
    reading = theorem.read(s) if theorem.read is not None else Reading({"s": s})
    return Place(s, dict(reading.arguments), bound.value, least, name)


# ---------------------------------------------------------------- changes of the source


def mutants(theorem: Theorem) -> Iterator[Mutant]:
    """Yield the bound of a theorem with its source changed at one place, or its reading."""
    yield from _mutants(theorem.bound)
    if isinstance(theorem.read, FunctionType) and theorem.read.__closure__ is None:
        for mutant in _mutants(theorem.read):
            yield mutant._replace(bound=theorem._replace(read=mutant.bound).at, reads=True)


def _mutants(function: Callable[..., Any]) -> Iterator[Mutant]:
    """Yield a function with its source, or that of what it calls in theorems' files, changed at one place."""
    used, named = _reached(function), Counter[str]()
    for (where, name), tree in used.items():
        lines = inspect.getsource(sys.modules[where]).splitlines()
        for i, node in enumerate(_arithmetic(tree)):
            for what, new in changes(node):
                changed = copy.deepcopy(tree)
                _replace(changed, list(_arithmetic(changed))[i], new)
                bound = _compiled(used | {(where, name): changed}, function)
                words = f"{name}: {_words(tree, node, what)}"
                named[words] += 1
                words += f" (place {named[words]})" if named[words] > 1 else ""
                yield Mutant(words, bound, lines[node.lineno - 1])


def _words(function: ast.FunctionDef, node: ast.expr, what: str) -> str:
    """Return what was changed and in which expression, or what it is assigned to; no line numbers, which age."""
    if isinstance(node, ast.Dict):
        return what
    around = next((p for p in ast.walk(function) if any(child is node for child in ast.iter_child_nodes(p))), function)
    if isinstance(around, ast.Assign):
        context = " = ".join([*(ast.unparse(target) for target in around.targets), "..."])
    else:
        context = ast.unparse(around) if isinstance(around, ast.expr) and not isinstance(around, ast.Dict) else ""
    text = f"{ast.unparse(node)} -> {what}"
    return f"{text}, in {context}" if 0 < len(context) <= 120 else text


Reached = dict[tuple[str, str], ast.FunctionDef]  # by module and name


def _reached(function: Callable[..., Any]) -> Reached:
    """Return a function and those that it calls, in its file and in others of theorems, without what all share."""
    found: Reached = {}
    todo = [(function.__module__, function.__name__)]
    while todo:
        where, name = todo.pop()
        every = _functions(where)
        if name not in every or (where, name) in found:
            continue
        found[where, name] = every[name]
        for node in ast.walk(every[name]):
            if isinstance(node, ast.Name) and node.id in every:
                todo.append((where, node.id))
            elif isinstance(node, ast.Name) and node.id not in vars(kit):
                other = vars(sys.modules[where]).get(node.id)
                if isinstance(other, FunctionType) and _of_theorems(other.__module__):
                    todo.append((other.__module__, other.__name__))
    return found


def _of_theorems(where: str) -> bool:
    """Whether a file has formulas of theorems; what rounding is allowed is none of theirs."""
    return ".theorems." in where and not where.endswith("rounding")


@functools.cache
def _functions(where: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(inspect.getsource(sys.modules[where]))
    return {f.name: f for f in tree.body if isinstance(f, ast.FunctionDef)}


def _arithmetic(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that numbers are made of: no texts, no hypotheses, no comparisons, no defaults."""
    for field, value in ast.iter_fields(tree):
        if field in ("args", "decorator_list", "returns", "annotation") and isinstance(tree, ast.FunctionDef):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, (ast.JoinedStr, ast.Compare, ast.Raise, ast.Lambda)):
                continue
            if isinstance(node, ast.Call) and _name(node.func) in SILENT:
                continue
            if isinstance(node, ast.expr) and not isinstance(node, ast.Starred):
                yield node
            yield from _arithmetic(node)


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def changes(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield what an expression could have been by mistake."""
    if isinstance(node, ast.Dict):
        for i, value in enumerate(node.values):
            for factor in (0.0, 0.5):
                new = copy.deepcopy(node)
                new.values[i] = ast.BinOp(ast.Constant(factor), ast.Mult(), value)
                yield f"the term {ast.unparse(node.keys[i]) if node.keys[i] else '**'} times {factor:g}", new
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield ast.unparse(node.left), node.left
        if isinstance(node.op, ast.Add):
            yield ast.unparse(node.right), node.right
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        for by in (-0.5, 0.5):
            new_power = ast.BinOp(node.left, ast.Pow(), ast.BinOp(node.right, ast.Add(), ast.Constant(by)))
            yield ast.unparse(new_power), new_power
    elif isinstance(node, ast.Call) and _name(node.func) == "sqrt":
        yield ast.unparse(node.args[0]), node.args[0]
    elif isinstance(node, ast.Call) and _name(node.func) in OTHER:
        yield from _extremes(node)
    elif isinstance(node, (ast.Name, ast.Attribute)) and _name(node) in WEIGHTS and isinstance(node.ctx, ast.Load):
        yield f"{ast.unparse(node)} ** 2", ast.BinOp(node, ast.Pow(), ast.Constant(2))
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value:
        x = node.value
        others = (x - 1, x + 1) if isinstance(x, int) else (0.5 * x, 2.0 * x)
        yield from ((repr(other), ast.Constant(other)) for other in others)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in COUNTS:
        for by in (-1, 1):
            new_count = ast.BinOp(node, ast.Add(), ast.Constant(by))
            yield ast.unparse(new_count), new_count


def _extremes(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """Yield the other extreme of several numbers; of one array its mean."""
    name = _name(node.func)
    of_array = isinstance(node.func, ast.Attribute) and name in MEANS
    if not of_array and len(node.args) < 2:
        return
    new = copy.deepcopy(node)
    new.keywords = [k for k in new.keywords if k.arg != "initial"]
    if isinstance(new.func, ast.Attribute):
        new.func.attr = MEANS[name] if of_array else OTHER[name]
    else:
        new.func = ast.Name(OTHER[name], ast.Load())
    yield ast.unparse(new), new


def _replace(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, field, new)
            elif isinstance(value, list) and any(v is old for v in value):
                setattr(parent, field, [new if v is old else v for v in value])


def _compiled(used: Reached, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of that name, compiled anew with all that it reaches: files see each other's."""
    spaces = {where: dict(vars(sys.modules[where])) for where, _ in used}
    for (where, _), tree in used.items():
        module = ast.fix_missing_locations(ast.Module([copy.deepcopy(tree)], []))
        exec(compile(module, where, "exec"), spaces[where])
    for where, names in spaces.items():
        for name, value in vars(sys.modules[where]).items():
            key = (getattr(value, "__module__", ""), getattr(value, "__name__", ""))
            if key[0] != where and key in used:
                names[name] = spaces[key[0]][key[1]]
    made: Callable[..., Any] = spaces[function.__module__][function.__name__]
    return made


# ---------------------------------------------------------------- verdicts on mutants


def judged(theorem: Theorem, mutant: Mutant) -> str:
    """Return "same", "caught", "shown", "free", "proved" or "missed"."""
    lowered = false = False
    for place in places(theorem)[: READINGS if mutant.reads else None]:
        value = value_at(mutant, place)
        if value < place.value - 1e-9 * abs(place.value):
            lowered = True
            if value < place.least and place.check:
                return "caught"
            false = false or value < place.least
    if not lowered:
        return "same"
    if false or (not mutant.reads and refuted(theorem, mutant)):
        return "shown"
    if any(text in mutant.line for text in FREE):
        return "free"
    return "proved" if _proof(theorem, mutant) else "missed"


def _proof(theorem: Theorem, mutant: Mutant) -> str:
    """Return why a mutant is a true statement, or nothing."""
    texts, why = PROVED.get(theorem.name, ((), ""))
    return why if any(text in mutant.what for text in texts) else ""


def refuted(theorem: Theorem, mutant: Mutant) -> bool:
    """Whether a mutant lies below an exact worst case, whose certified ends differ by less than a thousandth."""
    every = worst_places(theorem)
    return any(value_at(mutant, place) < (1.0 - 1e-3) * place.upper for place in every)


def above_sharper(theorem: Theorem, mutant: Mutant) -> bool:
    """Whether a mutant stays above a sharper theorem in all settings tried, which proves nothing of others."""
    if theorem.name not in SHARPER:
        return False
    every = places(theorem)[: READINGS if mutant.reads else None]
    return all(value_at(mutant, p) >= min(p.value, _sharper(theorem.name, p)) * (1.0 - 1e-9) for p in every)


def looseness(theorem: Theorem, mutant: Mutant) -> tuple[float, str] | None:
    """Return the least bound/worst case where a mutant lowers the bound, with the setting; None if it may be wrong."""
    found: list[tuple[float, str]] = []
    for place in worst_places(theorem):
        try:
            true = theorem.bound(**place.arguments).value
        except AssumptionError:
            continue
        value = value_at(mutant, place)
        if value >= true * (1.0 - 1e-9):
            continue
        if value < place.upper:
            return None
        found.append((true / place.upper, place.words))
    return min(found, default=None)


def value_at(mutant: Mutant, place: Place | WorstPlace) -> float:
    """Return the mutant's bound, infinite where it is none: an error is no wrong theorem."""
    try:
        with np.errstate(all="ignore"):
            reads = mutant.reads and isinstance(place, Place)
            value = float((mutant.bound(place.setting) if reads else mutant.bound(**place.arguments)).value)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return math.inf
    return math.inf if math.isnan(value) else value


_KNOWN: dict[tuple[str, int], float] = {}


def _sharper(name: str, place: Place) -> float:
    """Return the sharper theorem's bound there; infinite where it does not apply, so that nothing passes by it."""
    key = (name, id(place))
    if key not in _KNOWN:
        try:
            _KNOWN[key] = THEOREMS[SHARPER[name]].at(place.setting).value
        except (ArithmeticError, ValueError):
            _KNOWN[key] = math.inf
    return _KNOWN[key]


KINDS = ("caught", "shown", "missed", "proved", "free")


def trial(rng: np.random.Generator, names: tuple[str, ...] = SEARCHED) -> dict[str, Any]:
    """Judge all mutants of one theorem; the counts are numbers, what was not caught is listed."""
    name = names[int(rng.integers(len(names)))]
    return {"theorem": name} | record(THEOREMS[name], verdicts_of(THEOREMS[name]))


def verdicts_of(theorem: Theorem) -> list[tuple[Mutant, str]]:
    """Judge all mutants of a theorem."""
    return [(mutant, judged(theorem, mutant)) for mutant in mutants(theorem)]


def record(theorem: Theorem, verdicts: Sequence[tuple[Mutant, str]]) -> dict[str, Any]:
    """Return counts, the share that is caught of those that no proof excuses, and the others with their reason."""
    out: dict[str, Any] = {kind: sum(v == kind for _, v in verdicts) for kind in KINDS}
    if out["caught"] + out["shown"] + out["missed"]:
        out["share"] = out["caught"] / (out["caught"] + out["shown"] + out["missed"])
    for mutant, verdict in verdicts:
        if verdict in KINDS[1:]:
            out.setdefault(f"which are {verdict}", []).append(mutant.what + _reason(theorem, mutant, verdict))
    return out


def _reason(theorem: Theorem, mutant: Mutant, verdict: str) -> str:
    """Return why no instance can show a mutant, or where none of those tried does."""
    if verdict == "free":
        return ": " + next(why for text, why in FREE.items() if text in mutant.line)
    if verdict == "proved":
        return f": {_proof(theorem, mutant)}"
    if verdict == "missed" and above_sharper(theorem, mutant):
        return f": not below {SHARPER[theorem.name]} in the settings tried"
    found = looseness(theorem, mutant) if verdict == "missed" and not mutant.reads else None
    return "" if found is None else f": the theorem is loose by {found[0]:.3g} at {found[1]}"


# ---------------------------------------------------------------- the page


def page(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return docs/mutants.md: a table by theorem, and all mutants that no check catches, with the reason."""
    heads = ("theorem", *KINDS, "caught of all", "caught of what an instance shows to be false")
    tried = [r for r in records.values() if r["shown"] is not None]
    totals = {
        name: {kind: sum(r[kind] or 0 for r in of) for kind in KINDS}
        for name, of in (("**all**", records.values()), ("**all without –**", tried))
    }
    totals["**all**"]["shown"] = None if len(tried) < len(records) else totals["**all**"]["shown"]
    rows = [(name, *_cells(r)) for name, r in (*records.items(), *totals.items())]
    lines = ["# Planted errors, by theorem", "", *TEXT.strip().splitlines(), ""]
    lines += ["| " + " | ".join(row) + " |" for row in (heads, ("---",) * len(heads), *rows)]
    for name, r in records.items():
        listed = [(kind, what) for kind in KINDS[1:] for what in r.get(f"which are {kind}", ())]
        if listed:
            lines += ["", f"## {name}", "", *(f"* {kind}: `{_short(what)}`{_after(what)}" for kind, what in listed)]
    return "\n".join(lines) + "\n"


TEXT = """
How many errors planted into each theorem its checks catch: a measure of what a verdict HOLDS is worth.

Written by `python -m tests.campaigns.mutants`; what the words mean stands at the top of `tests/campaigns/mutants.py`
and in [power.md](power.md). Mutants that lower a bound nowhere are left out. "All" are those caught, shown and missed:
what a proof excuses is no error. "Not below" a sharper theorem, and "loose" against exact worst cases, is true of the
settings tried, and proves nothing of others. A dash: only the suite's checks were tried, and no mutants of readings.
[hypotheses.md](hypotheses.md) has the mutants of hypotheses.

`dynamic-msd-ball` shares its bound function with `dynamic-msd-refined`, and is judged there, by the checks of that
theorem.
"""


def _cells(r: Mapping[str, Any]) -> tuple[str, ...]:
    """Return counts and shares; a dash where no instances beside the checks were tried."""
    tried = r["shown"] is not None
    of_all, false = r["caught"] + (r["shown"] or 0) + r["missed"], r["caught"] + r["shown"] if tried else 0
    shares = (f"{r['caught'] / n:.1%}" if n else "–" for n in (of_all, false))
    return *("–" if r[kind] is None else str(r[kind]) for kind in KINDS), *shares


def _parts(what: str) -> tuple[str, str]:
    proofs = [f": {why}" for _, why in PROVED.values()]
    for mark in (": the theorem is loose", ": not below", *proofs, *(f": {why}" for why in FREE.values())):
        head, sep, tail = what.partition(mark)
        if sep:
            return head, sep + tail
    return what, ""


def _short(what: str) -> str:
    """Return a mutant without the reason."""
    return _parts(what)[0]


def _after(what: str) -> str:
    return _parts(what)[1]


RECORDS, PAGE = Path(__file__).with_name("mutants.json"), Path(__file__).parents[2] / "docs" / "mutants.md"


def main(names: list[str]) -> int:
    """Judge the mutants of some theorems, or of all, and write the page."""
    records = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    for name in names or THEOREMS:
        theorem = THEOREMS[name]
        records[name] = record(theorem, verdicts_of(theorem))
        ordered = {name: records[name] for name in THEOREMS if name in records}
        RECORDS.write_text(json.dumps(ordered, indent=1) + "\n")
        PAGE.write_text(page(ordered))
        print(name, {kind: records[name][kind] for kind in KINDS}, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
