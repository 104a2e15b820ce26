"""Wrong theorems: errors that a referee tries first, planted one at a time, and whether `fedconvex verify` notices.

`wrong_theorems.json` has, for each error, the theorem, what is wrong, and the texts that are replaced in its file as
`ast.unparse` writes it. The first 101 were planted by somebody who had not written the theorems; the next fourteen are
mutants that were listed as plausible and are false; the last are of further kinds, most of them in the theorems on
baselines. An error is noticed by the checks where the planted bound lies below what a
check measured, or where a weakened hypothesis lets a check in that violates the bound; by the search where the search
of `verify` finds a violation.

``python -m tests.campaigns.wrong_theorems [THEOREM ...]`` judges them and prints what is missed.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from fedconvex.theorems import THEOREMS, Theorem
from fedconvex.theorems.parts.theorem import Check
from fedconvex.theory.bound import AssumptionError
from fedconvex.verify.check_records import Finding
from fedconvex.verify.checking import carried_out, problem_of, setting_of
from fedconvex.verify.own_theorems import searched
from fedconvex.verify.power import noticed_below
from fedconvex.verify.verdicts import Outcome

__all__ = ["PLANTED", "Planted", "noticed_by", "trial"]

FOREIGN = 101  # the first so many were planted from outside
PLAUSIBLE = 115  # those up to here were listed as plausible


class Planted(NamedTuple):
    """A theorem, what is made wrong in it, and the replacements in the text of its file."""

    theorem: str
    what: str
    edits: tuple[tuple[str, str], ...]

    def made(self) -> Theorem:
        """Return the theorem with the error in it."""
        true = THEOREMS[self.theorem]
        for module in _files(true):
            for part in (module, *_parts(module)):
                if all(old in _text(part.__name__) for old, _ in self.edits):
                    return self._of(true, module, part)
        raise AssertionError(f"{self.theorem} has no {self.edits[0][0]!r}: plant it where the line went")

    def _of(self, true: Theorem, module: ModuleType, part: ModuleType) -> Theorem:
        text = _text(part.__name__)
        for old, new in self.edits:
            text = text.replace(old, new)
        other = _run(part, text)
        if part is not module:  # a part of the theorem's file, which imports the wrong one
            with patch.dict(sys.modules, {part.__name__: other}):
                other = _run(module, _text(module.__name__))
        wrong = next(t for t in other.THEOREMS if t.name == true.name)
        return true._replace(bound=wrong.bound, read=wrong.read)


def _run(module: ModuleType, text: str) -> ModuleType:
    """Return a module of the same name with another text."""
    other = ModuleType(module.__name__)
    vars(other).update({k: v for k, v in vars(module).items() if k.startswith("__")})
    exec(compile(text, module.__name__, "exec"), vars(other))
    return other


def _parts(module: ModuleType) -> list[ModuleType]:
    """Return the files of theorems that a file of theorems takes functions from."""
    found = re.findall(r"^from (fedconvex\.[\w.]*theorems\.[\w.]+) import", _text(module.__name__), flags=re.M)
    return [sys.modules[name] for name in dict.fromkeys(found) if name in sys.modules]


PLANTED = tuple(
    Planted(theorem, what, tuple(map(tuple, edits)))
    for theorem, what, edits in json.loads(Path(__file__).with_suffix(".json").read_text())
)


def _files(theorem: Theorem) -> Iterator[ModuleType]:
    """Yield the files that have the theorem: that of its bound, and that of its reading."""
    for function in (theorem.bound, theorem.read):
        module = sys.modules[getattr(function, "__module__", __name__)]
        if any(t.name == theorem.name for t in getattr(module, "THEOREMS", ())):
            yield module


@cache
def _text(name: str) -> str:
    return ast.unparse(ast.parse(inspect.getsource(sys.modules[name])))


@cache
def _findings(name: str) -> tuple[tuple[Check, Finding], ...]:
    theorem = THEOREMS[name]
    checks = [c if isinstance(c, Check) else Check(c) for c in theorem.checks]
    return tuple((check, carried_out(theorem, check)) for check in checks)


def noticed_by(planted: Planted, budget: int | None) -> str:
    """Return "checks", "search", or an empty text; the search is that of `verify` without a budget."""
    wrong = planted.made()
    for check, true in _findings(planted.theorem):
        if true.verdict.bound is None:
            if carried_out(wrong, check).outcome is Outcome.VIOLATED:
                return "checks"
        elif _below(wrong, check, noticed_below(true)):
            return "checks"
    if any(carried_out(wrong, check).outcome is Outcome.VIOLATED for check in searched(wrong, budget)):
        return "search"
    return ""


def _below(theorem: Theorem, check: Check, least: float) -> bool:
    """Whether the bound of a check is less than a number."""
    try:
        return theorem.at(setting_of(theorem, check, problem_of(theorem, check.instance))).value < least
    except (AssumptionError, ArithmeticError):
        return False


def trial(rng: np.random.Generator) -> dict[str, Any]:
    """Judge one error; one that neither checks nor search notice is named."""
    planted = PLANTED[int(rng.integers(len(PLANTED)))]
    found = noticed_by(planted, None)
    return {"theorem": planted.theorem, "what": planted.what, "noticed": float(found != ""), "by": found or "nothing"}


def main(names: list[str]) -> int:
    """Judge all errors, or those of some theorems."""
    counts: dict[str, int] = {}
    for i, planted in enumerate(PLANTED):
        if names and planted.theorem not in names:
            continue
        by = noticed_by(planted, None) or "nothing"
        part = "of the 101" if i < FOREIGN else "of the plausible" if i < PLAUSIBLE else "of further kinds"
        counts[f"{by}, {part}"] = counts.get(f"{by}, {part}", 0) + 1
        print(f"{by:8} {planted.theorem}: {planted.what}", flush=True)
    print(counts)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
