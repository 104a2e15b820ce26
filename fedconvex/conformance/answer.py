"""The answer: which algorithm an implementation computes, as an object, as JSON and as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Line(NamedTuple):
    """What a convention was found to be."""

    convention: str
    value: str
    kind: str  # "published", "convention" or "error"
    says: str
    departs: bool = False  # no error, and yet not what the paper says


class Exclusion(NamedTuple):
    """The value of a convention that comes next, how far the implementation is from it, and where that shows."""

    convention: str
    value: str
    distance: float
    exam: str


@dataclass(frozen=True)
class Conformance:
    """What `conform` found.

    Attributes
    ----------
    family, title, source : str
        Which algorithm the implementation claims to be, and the paper.
    verdict : {"matches", "deviates", "no reading"}
        One reading matches, and holds no error; all readings that match hold an error; none matches.
    tolerance : float
        What counts as equal, relative to the largest entry of the models.
    found : tuple of Line
        Conventions that are pinned down; where no reading matches, those of the nearest.
    untold : dict
        Conventions that the exams that ran cannot tell apart, with what they may be.
    excluded : tuple of Exclusion
        For each convention the nearest other value.
    next_distance : float
        How far the nearest other reading was, of those that were left behind in some exam.
    distances : dict
        Largest distance by exam, of the reading that matches or of the nearest.
    left_out : dict
        Exams that did not run, and why.
    differs : tuple of str
        Where no reading matches: how the implementation differs from the nearest.
    checks : tuple
        Limits, rates and invariances: what they say, by how much they fail, whether they hold.
    tried : int
        Readings that were held against an exam.
    """

    family: str
    title: str
    source: str
    verdict: str
    tolerance: float
    found: tuple[Line, ...]
    untold: Mapping[str, Sequence[Line]]
    excluded: tuple[Exclusion, ...]
    next_distance: float
    distances: Mapping[str, float]
    left_out: Mapping[str, str]
    differs: tuple[str, ...]
    checks: tuple[Any, ...]
    tried: int

    @property
    def reading(self) -> dict[str, str]:
        """The conventions that are pinned down."""
        return {line.convention: line.value for line in self.found}

    @property
    def errors(self) -> tuple[str, ...]:
        """What is an error, in words; where several errors would explain the answers, each of them, joined by "or".

        Empty unless the verdict is "deviates": errors of a reading that does not match are none of the implementation.
        """
        if self.verdict != "deviates":
            return ()
        sure = tuple(line.says for line in self.found if line.kind == "error")
        maybe = [v.says for lines in self.untold.values() for v in lines if v.kind == "error"]
        return (*sure, *(["; or ".join(maybe)] if maybe else []))

    @property
    def conforms(self) -> bool:
        """Whether a reading without errors matches, and all checks hold."""
        return self.verdict == "matches" and all(c.holds for c in self.checks)

    @property
    def distance(self) -> float:
        """The largest over exams."""
        return max(self.distances.values(), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as numbers, texts, lists and dictionaries."""
        return {
            "family": self.family,
            "source": self.source,
            "verdict": self.verdict,
            "conforms": self.conforms,
            "errors": list(self.errors),
            "tolerance": self.tolerance,
            "distance": _finite(self.distance),
            "found": [line._asdict() for line in self.found],
            "cannot be told apart": {name: [v.value for v in lines] for name, lines in self.untold.items()},
            "next": [e._asdict() | {"distance": _finite(e.distance)} for e in self.excluded],
            "next reading": _finite(self.next_distance),
            "exams": {name: _finite(d) for name, d in self.distances.items()},
            "left out": dict(self.left_out),
            "differs": list(self.differs),
            "checks": [c._asdict() | {"distance": _finite(c.distance)} for c in self.checks],
            "readings tried": self.tried,
        }

    def to_json(self) -> str:
        """Return the same as JSON."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Any:
        source = self.source
        others = "; ".join(line.says for line in self.found if line.departs)
        so = f", with conventions that are not those of the paper: {others}" if others else ""
        heads = {
            "matches": f"This is {self.family}{so}. A reading of {source} matches to {self.distance:.1e}.",
            "deviates": f"This is {self.family} but for what is listed as an error: "
            f"so read, it matches to {self.distance:.1e}.",
            "no reading": f"No reading of {self.family} ({source}) matches; the nearest is {self.distance:.1e} off.",
        }
        yield heads[self.verdict]
        yield f"Equal means within {self.tolerance:g} of the largest entry; {self.tried} readings were tried" + (
            "." if self.verdict == "no reading" else f", the next one is {self.next_distance:.1e} away."
        )
        kinds = {
            "Errors": "error",
            "Not as published": "departs",
            "As published": "published",
            "Conventions": "convention",
        }
        for title, kind in kinds.items():
            lines = [line for line in self.found if kind == ("departs" if line.departs else line.kind)]
            if lines:
                yield f"\n{title}" + (" (of the nearest reading)" if self.verdict == "no reading" else "")
                yield from (f"  {line.says}{self._next(line.convention)}" for line in lines)
        if self.verdict == "deviates" and len(self.errors) > sum(line.kind == "error" for line in self.found):
            yield f"\nErrors that the exams cannot tell apart\n  {self.errors[-1]}"
        if self.differs:
            yield "\nDifferences from it"
            yield from (f"  {line}" for line in self.differs)
        if self.untold:
            yield "\nCannot be told apart by the exams that ran"
            for name, values in self.untold.items():
                yield f"  {name}: " + "; or ".join(v.says for v in values)
        if self.checks:
            yield "\nChecks"
            yield from (f"  {'holds' if c.holds else 'FAILS'}: {c.says} ({c.distance:.1e})" for c in self.checks)
        yield "\nExams"
        yield from (f"  {name}: {d:.1e}" for name, d in self.distances.items())
        yield from (f"  {name}: left out: {why}" for name, why in self.left_out.items())

    def _next(self, convention: str) -> str:
        e = next((e for e in self.excluded if e.convention == convention), None)
        return "" if e is None else f" [next: {e.value}, {e.distance:.1e} away in {e.exam}]"


def _finite(x: float) -> float | None:
    """Return x, or None where JSON has no word for it."""
    return x if abs(x) < float("inf") else None
