"""Which branches of a bound some check enters, how tightly, and instances for those that none enters.

``python -m tests.campaigns.branches [THEOREM ...]`` judges the theorems that branches.json lacks, or those named again,
and writes docs/branches.md; with ``--keep`` instances that a search found for a branch go to sharp.json, which makes
them checks. Branches are found in the source (`branch_marks`), of the bound and of all that it calls; cases are those
that readings distinguish: weights equal or not, all clients or some, all rows or batches, one local step or more, with
a ridge or without.

tight      a check that takes the branch measures at least a third of the bound, or two thirds of what the exact worst
           case or a sharper theorem leaves there.
loose      checks take it, and measure less.
not taken  no check takes it: listed with the reason, where one is known.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedconvex import theorems
from fedconvex.theorems import THEOREMS, Setting, Theorem
from fedconvex.theorems.parts.theorem import Check
from fedconvex.theorems.parts.tiny import Sharp, read_sharp, with_sharp, write_sharp
from fedconvex.theory.bound import Bound
from fedconvex.traits import traits_of
from fedconvex.verify.checking import carried_out, problem_of, setting_of
from fedconvex.verify.descriptions import described
from fedconvex.verify.monte_carlo import slack_of
from fedconvex.verify.power import noticed_below, whole_share
from fedconvex.verify.search import changed, drawn
from fedconvex.verify.verdicts import Outcome
from tests.campaigns.branch_marks import marked, taken
from tests.campaigns.sharpest import Candidate, candidate

__all__ = ["TIGHT", "Entered", "cases", "entered", "found_for", "page"]

TIGHT = 3.0
DRAWN, CHANGED = 64, 40  # candidates of a search, and changes of the best for each branch that is not tight
FOR = "found for "  # what the origin of a kept instance begins with
FOUND = Path(theorems.__file__).with_name("sharp.json")
KEPT, PAGE = Path(__file__).with_suffix(".json"), Path(__file__).parents[2] / "docs" / "branches.md"


class Entered(NamedTuple):
    """The check that takes a branch most tightly.

    Parameters
    ----------
    ratio : float
        Bound over what is measured; infinite where no check measures anything.
    loose : float
        Bound over the exact worst case, or over a sharper theorem's bound: no instance of these constants has a ratio
        below it. 1 where neither is known.
    check : str
        Its setting; empty where no check takes the branch.
    """

    ratio: float = math.inf
    loose: float = 1.0
    check: str = ""

    @property
    def tight(self) -> bool:
        """Whether an error by a factor of 3, or by 1.5 times what the theorem is loose, would be noticed there."""
        return self.ratio <= max(TIGHT, 1.5 * self.loose)


# ---------------------------------------------------------------- cases that readings distinguish


def cases(s: Setting) -> Iterator[str]:
    """Yield what is the case in a setting."""
    problem, method = s.problem, s.method
    p = getattr(problem, "weights", None)
    if isinstance(p, np.ndarray) and p.size > 1:
        yield "weights unequal" if np.ptp(p) > 1e-12 * p.max() else "weights equal"
    l2 = getattr(problem, "l2", None)
    if isinstance(l2, float):
        yield "mu = 0 (no ridge)" if l2 == 0.0 else "mu > 0 (a ridge)"
    traits = traits_of(method, problem) if hasattr(method, "participation") else None
    if traits is not None:
        yield "all clients" if traits.everyone else "some clients"
    size, steps = getattr(method, "batch_size", None), getattr(method, "local_steps", None)
    if hasattr(method, "batch_size") and hasattr(getattr(problem, "federation", None), "sizes"):
        yield "all rows" if size is None or np.all(size >= problem.federation.sizes) else "batches"
    if isinstance(steps, int):
        yield "one local step" if steps == 1 else "several local steps"


# ---------------------------------------------------------------- what checks and searches take


class _Asked(NamedTuple):
    """A check in which the theorem applies."""

    check: Check
    words: str
    setting: Setting
    bound: Bound
    names: tuple[str, ...]  # of the branches that it takes, and of what is the case


@threadpool_limits.wrap(limits=1, user_api="blas")
def entered(theorem: Theorem) -> dict[str, Entered]:
    """Return for every branch, and for every case of some check, the check that takes it most tightly.

    Exact values first; trajectories and exact worst cases are computed only where a check takes what is not tight yet.
    """
    own, names = marked(theorem)
    every = list(_asked(theorem, own))
    out = dict.fromkeys((*names, *(name for asked in every for name in asked.names)), Entered())
    for asked in every:
        _enter(out, asked, _exactly(theorem, asked))
    for asked in every:
        if any(not out[name].tight for name in asked.names):
            _enter(out, asked, _fully(theorem, asked))
    return out


def _asked(theorem: Theorem, own: Theorem) -> Iterator[_Asked]:
    for item in theorem.checks:
        check = item if isinstance(item, Check) else Check(item)
        try:
            s = setting_of(theorem, check, problem_of(theorem, check.instance))
            with np.errstate(all="ignore"), taken() as branches:
                bound = own.at(s)
        except (ArithmeticError, TypeError, ValueError):  # a hypothesis fails, or there is no such run
            continue
        words, _ = described(check.instance, s, theorem, check.method or theorem.method)
        yield _Asked(check, words, s, bound, (*sorted(branches), *cases(s)))


def _enter(out: dict[str, Entered], asked: _Asked, mine: Entered) -> None:
    for name in asked.names:
        old = out[name]
        if not old.check or (not mine.tight, mine.ratio) < (not old.tight, old.ratio):
            out[name] = mine


def _exactly(theorem: Theorem, asked: _Asked) -> Entered:
    try:
        found = theorem.expectation(asked.setting, [asked.setting.rounds])
    except (ArithmeticError, ValueError):
        found = None
    least = -math.inf if found is None else float(found.values[0] - found.rounding[0]) - slack_of(asked.bound)
    return Entered(_ratio(asked.bound, least), 1.0, asked.words)


def _fully(theorem: Theorem, asked: _Asked) -> Entered:
    found = carried_out(theorem, asked.check)
    bound = found.verdict.bound
    if bound is None or found.verdict.outcome not in (Outcome.HOLDS, Outcome.VACUOUS):
        return Entered(check=asked.words)
    known = [found.worst.ratio(bound), bound.value / found.sharper if found.sharper > 0.0 else math.nan]
    loose = max((x for x in known if math.isfinite(x)), default=1.0)
    return Entered(_ratio(bound, noticed_below(found)), loose, asked.words)


def _ratio(bound: Bound, least: float) -> float:
    share = whole_share(bound, least)
    return 1.0 / share if share > 0.0 else math.inf


@threadpool_limits.wrap(limits=1, user_api="blas")
def found_for(theorem: Theorem, names: list[str], seed: int = 0, tries: int = DRAWN) -> dict[str, Candidate]:
    """Search a theorem's space for the tightest instances that take branches, or in which cases hold."""
    if theorem.space is None or not names:
        return {}
    own, _ = marked(theorem)
    rng = np.random.default_rng([seed, 0])
    pool = [_seen(own, drawn(rng, theorem.space), seed) for _ in range(min(tries, 3 * theorem.space.tries))]
    out = {}
    for name in names:
        mine = [c for c, branches in pool if c is not None and name in branches]
        best, step = max(mine, key=lambda c: c.share(""), default=None), 0.5
        for _ in range(CHANGED if best is not None and best.share("") > 0.0 else 0):
            if best.share("") > 0.9:
                break
            new, branches = _seen(own, changed(rng, theorem.space, best.tiny, step), seed)
            better = new is not None and name in branches and new.share("") > best.share("")
            best, step = (new, min(1.5 * step, 1.0)) if better else (best, max(0.95 * step, 0.02))
        if best is not None:
            out[name] = best
    return out


def _seen(own: Theorem, tiny: Any, seed: int) -> tuple[Candidate | None, set[str]]:
    with np.errstate(all="ignore"), taken() as branches:
        found = candidate(own, tiny, seed)
    return found, branches | (set(cases(found.place.setting)) if found is not None else set())


# ---------------------------------------------------------------- the page


REASONS = (  # texts of branches that no check takes tightly, and why
    (" is None", "an argument that callers may leave out; readings give it, or do without it"),
    (" is not None", "an argument that callers may leave out; readings give it, or do without it"),
    ("L > 0.0", "L = 0: clients without curvature, of which smooth problems have none"),
    ("if strict", "words of a hypothesis, which another theorem of the file has"),
    ("unless strict", "words of a hypothesis, which another theorem of the file has"),
    ("0.0 in max(1.0 - float(p @ p), 0.0)", "keeps rounding from making it negative: of one client both are 0"),
    ("0.0 in max(1.0 - eta * c, 0.0)", "keeps rounding from making it negative: no step is longer than 2/(L + mu)"),
    ("0.0 in max(1.0 - forgotten", "keeps rounding from making it negative: 1 - (1 - x)^tau <= tau x"),
    ("1.0 unless q > 0.0", "steps of exactly 2/(L + mu), where rounding decides; with mu = L both sides are 0"),
    ("died_out: 0.0 if rest.size == 0", "one column in all: there is no other mode"),
    ("died_out: not (rest.size", "one column in all: there is no other mode"),
    ("share_of_moves: not (isinstance", "of the step-by-step form, which is another theorem of the file"),
    ("sampling_share: ", "of the step-by-step form, which is another theorem of the file"),
    (
        "scheme == 'uniform'",
        "sampling counts by the largest gradients of the run, beside a start that has the same ones",
    ),
    (
        "scheme == 'proportional'",
        "sampling counts by the largest gradients of the run, beside a start with the same ones",
    ),
    ("several local steps", "drift counts by the largest gradients of the run, and by all local steps at once"),
    ("sigma2 > 0.0", "values with noise are exact on parabolas only, of which (17) is 3.1 times what the start shows"),
    ("batches", "values with noise are exact on parabolas only, of which (17) is 3.1 times what the start shows"),
    ("-math.inf unless factor", "nothing is left of the leading mode, and a hypothesis fails"),
    ("0 in max(T - 1, 0)", "T = 0: no round"),
    ("1 in max(p.size - 1, 1)", "one client, of which none is left out"),
    ("1.0 unless gap < 1.0", "mu = L and steps of 1/L: clients forget where they began, and both sides are 0"),
    ("float(L) in min(mu, float(L))", "mu = L up to rounding"),
    ("_best: 0.0", "no t is allowed: the bound is infinite, and the verdict VACUOUS"),
    ("np.inf where", "no t is allowed: the bound is infinite, and the verdict VACUOUS"),
    ("math.inf unless", "beyond double precision: the bound is infinite, and the verdict VACUOUS"),
    (
        "_kept_and_lost: ",
        "of finitely many rounds, not of the steady state; and a factor of 0, whose logarithm stays finite",
    ),
    ("_best: not gap.max()", "no parameter contracts: a hypothesis fails, or the bound is infinite"),
    ("_best: ", "of finitely many rounds, not of the steady state"),
    ("least_choice: held", "a choice that exponents hold while a number is moved; checks hold none"),
    ("_path: np.zeros((0", "T = 0: no round"),
    ("accelerated_strongly_convex: 1.0 in min", "rounding alone: eta mu <= eta L <= 1"),
    ("fedlin_factor: 0.0 in max", "rounding alone: 2 a c <= 2 a - a^2 <= 1"),
    ("newton_line_search: 0.0 in max", "never: the product is at most 2 c (1 - c) < 1"),
    ("fednl_squares: 0.0 in np.maximum", "after 1/delta rounds the bound is 0, and so is what is measured"),
    ("fednova_limit: float('inf')", "a rate of 1 or more, and the hypothesis beside it fails"),
    ("adaboost: 0.0 in np.maximum", "rounding alone: edges are at most 1"),
    ("fedmultiboost: below -1.0", "rounding alone: edges lie in [-1, 1]"),
    ("fedmultiboost: above 1.0", "rounding alone: edges lie in [-1, 1]"),
)


def page(records: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return docs/branches.md of what was found by theorem."""
    lines = [*TEXT.strip().splitlines(), "", "| theorem | branches and cases | tight | loose | not taken |"]
    lines += ["|---|---|---|---|---|"]
    counts = {name: _counts(mine) for name, mine in records.items()}
    total = [sum(row[i] for row in counts.values()) for i in range(4)]
    lines += ["| " + " | ".join(map(str, (name, *row))) + " |" for name, row in {**counts, "**all**": total}.items()]
    left = [f"`{name}`" for name in THEOREMS if name not in records]
    lines += ["", f"Not judged yet: {', '.join(left)}."] if left else []
    for name, mine in records.items():
        rows = [_line(branch, **found) for branch, found in mine.items() if not _entered(found).tight]
        lines += ["", f"## {name}", "", *HEAD, *rows] if rows else []
    return "\n".join(lines) + "\n"


TEXT = """
# Branches of bounds

Which parts of a bound no check comes near: for readers who rely on a theorem's constants or want to sharpen it.

Written by `python -m tests.campaigns.branches`; what counts as a branch, and the words, stand at the top of
`tests/campaigns/branches.py` and `tests/campaigns/branch_marks.py`. Listed is what no check takes tightly: bound over
measured in the check that takes it most tightly, the best that a search of the theorem's space found (64 candidates,
40 changes of the best), and the reason, where one is known.
"""
HEAD = ["| branch or case | bound/measured | searched | why |", "|---|---|---|---|"]


def _entered(found: Mapping[str, Any]) -> Entered:
    ratio, loose = found["ratio"], found["loose"]
    return Entered(math.inf if ratio is None else ratio, loose, found["check"])


def _counts(mine: Mapping[str, Mapping[str, Any]]) -> tuple[int, int, int, int]:
    every = [_entered(found) for found in mine.values()]
    tight, none = sum(e.tight for e in every), sum(not e.check for e in every)
    return len(every), tight, len(every) - tight - none, none


def _line(branch: str, ratio: float | None, loose: float, check: str, searched: float | None) -> str:
    measured = f"{ratio:.3g}, {check}" if ratio is not None else f"nothing measured, {check}" if check else "not taken"
    told = "–" if searched is None else f"{searched:.3g}"
    why = next((why for text, why in REASONS if text in branch), "")
    return "| " + " | ".join(x.replace("|", "\\|") for x in (f"`{branch}`", measured, told, why)) + " |"


# ---------------------------------------------------------------- all theorems


def judged(theorem: Theorem, keep: bool, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Return the record of a theorem; what a search found for a branch that no check takes tightly is kept."""
    mine = entered(theorem)
    found = found_for(theorem, [name for name, e in mine.items() if not e.tight], seed)
    new = _fewest(found) if keep else []
    if new:
        old = read_sharp(FOUND)
        every = {theorem.name: (*old.get(theorem.name, ()), *new)}
        write_sharp(old | every, FOUND)
        print(f"# {theorem.name}: {len(new)} instances kept", flush=True)
        own = tuple(c for c in theorem.checks if getattr(c, "instance", c).data != "searched")
        mine = entered(with_sharp(theorem._replace(checks=own), every))
    return {name: _plain(e, found.get(name)) for name, e in mine.items()}


def _fewest(found: Mapping[str, Candidate]) -> list[Sharp]:
    """Return the instances that make branches tight, each once."""
    out: dict[str, Sharp] = {}
    for name, c in found.items():
        if c.share("") >= 1.0 / TIGHT:
            out.setdefault(json.dumps(c.tiny), Sharp("", float(f"{c.share(''):.3g}"), FOR + name, c.tiny))
    return list(out.values())


def _plain(e: Entered, c: Candidate | None) -> dict[str, Any]:
    searched = None if c is None or not c.share("") > 0.0 else float(f"{1.0 / c.share(''):.3g}")
    ratio = float(f"{e.ratio:.3g}") if math.isfinite(e.ratio) else None
    return {"ratio": ratio, "loose": float(f"{e.loose:.3g}"), "check": e.check, "searched": searched}


def main(argv: list[str]) -> int:
    """Judge what is missing, or the theorems named, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("theorem", nargs="*")
    parser.add_argument("--keep", action="store_true", help="keep instances that a search finds for a branch")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    records = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for name in args.theorem or [name for name in THEOREMS if name not in records]:
        records[name] = judged(THEOREMS[name], args.keep, args.seed)
        ordered = {name: records[name] for name in THEOREMS if name in records}
        KEPT.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
        PAGE.write_text(page(ordered))
        print(name, _counts(records[name]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
