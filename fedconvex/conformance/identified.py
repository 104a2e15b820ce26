"""The answer: which algorithm an implementation computes, as an object, as JSON and as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedconvex import __version__
from fedconvex.conformance.counterexample import Counterexample


class Line(NamedTuple):
    """What a convention was found to be."""

    convention: str
    value: str
    kind: str  # "published", "convention" or "error"
    says: str
    departs: bool = False  # no error, and yet not what the paper says
    published: str = ""  # the sentence of the paper's value, if it has another one


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
        Conventions that are pinned down; where no reading matches, those that it agrees with in its first rounds, or
        those of the nearest.
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
    change : str
        What has to be changed about the reading so that it matches, if no reading does: a factor, or a term that is
        missing in one step.
    counterexample : Counterexample or None
        The smallest exam in which the implementation is not the published algorithm; None if it is, or if too much is
        drawn.
    agrees : int
        Where no reading matches: in how many first rounds of all exams one without errors does.
    train : str
        The implementation, as module:function.
    digest : str
        SHA-256 of the rows and the hyper-parameters of the exams that ran.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.conformance import can, conform
    >>> @can(losses=("squared",), start=False, ridge=False, partial=False, batches=())
    ... def train(clients, hyper, rounds):
    ...     w, out, n = 0.0, [], sum(len(y) for _, y in clients)
    ...     for _ in range(rounds):
    ...         w = w - hyper["step_size"] * sum(X.T @ (X @ (w + np.zeros(X.shape[1])) - y) for X, y in clients) / n
    ...         out.append(w)
    ...     return out
    >>> found = conform(train, family="fedsgd")
    >>> found.verdict, found.conforms
    ('matches', True)
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
    change: str = ""
    counterexample: Counterexample | None = None
    agrees: int = 0
    train: str = "mymodule:train"
    digest: str = ""

    @property
    def grade(self) -> str:
        """One of "published", "variant" (documented elsewhere, and no error) and "deviation"."""
        if self.verdict != "matches":
            return "deviation"
        choices = [(line,) for line in self.found] + [tuple(lines) for lines in self.untold.values()]
        return "variant" if any(all(line.departs for line in lines) for lines in choices) else "published"

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
        sure = tuple(line.says for line in self.found if line.kind == "error") + ((self.change,) if self.change else ())
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
            "version": __version__,
            "digest of exams": self.digest,
            "family": self.family,
            "source": self.source,
            "verdict": self.verdict,
            "grade": self.grade,
            "first line": next(self._lines()),
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
            "rounds that agree": self.agrees,
            "checks": [c._asdict() | {"distance": _finite(c.distance)} for c in self.checks],
            "readings tried": self.tried,
            "counterexample": None if self.counterexample is None else self._shown_departure(),
        }

    def to_json(self) -> str:
        """Return the same as JSON."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Any:
        yield from self._head()
        yield f"Equal means within {self.tolerance:g} of the largest entry; {self.tried} readings were tried" + (
            "." if self.verdict == "no reading" else f", the next one is {self.next_distance:.1e} away."
        )
        if self.counterexample is not None:
            yield "\nWhere it departs from the published algorithm"
            yield from (f"  {line}" for line in self.counterexample.lines())
        kinds = {
            "Errors": "error",
            "Not as published": "departs",
            "As published": "published",
            "Conventions": "convention",
        }
        for title, kind in kinds.items():
            lines = [line for line in self.found if kind == ("departs" if line.departs else line.kind)]
            if lines:
                whose = " (of what it begins as)" if self.agrees else " (of the nearest reading)"
                yield f"\n{title}" + (whose if self.verdict == "no reading" else "")
                yield from (f"  {line.says}{self._next(line.convention)}" for line in lines)
        if self.change:
            yield "" if any(line.kind == "error" for line in self.found) else "\nErrors"
            yield f"  {self.change}"
        sure = sum(line.kind == "error" for line in self.found) + bool(self.change)
        if self.verdict == "deviates" and len(self.errors) > sure:
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
        if self.counterexample is not None:
            yield "\nThe departure as a script, which needs NumPy only\n"
            yield self.counterexample.script(self.train).rstrip()

    def _head(self) -> Any:
        """Yield the answer, in a line, and how near it is."""
        name, source, off = self.family, self.source, f"{self.distance:.1e}"
        failed = [c.says for c in self.checks if not c.holds]
        if self.grade == "published":
            but = f", but a check fails: {failed[0]}" if failed else ""
            yield f"As published: {name}, {source}{but}."
            yield f"Every exam is matched to {off}."
        elif self.grade == "variant":
            departs = [line for line in self.found if line.departs]
            departs += [lines[0] for lines in self.untold.values() if all(line.departs for line in lines)]
            said = "; ".join(f"{line.says}, instead of: {line.published}" for line in departs)
            but = f"; and a check fails: {failed[0]}" if failed else ""
            yield f"Not the published algorithm: {said}{but}."
            yield f"This is a documented variant of {name} ({source}), and matched to {off}."
        elif self.verdict == "deviates":
            yield f"Not the published algorithm: {'; '.join(self.errors)}."
            yield f"But for that it is {name} ({source}): so read, it is matched to {off}."
        elif self.agrees:
            what = "a documented variant of it" if any(line.departs for line in self.found) else "it"
            first = "round 1" if self.agrees == 1 else f"rounds 1 to {self.agrees}"
            yield f"Not the published algorithm ({name}, {source}): it agrees with {what} in {first} of every exam."
            yield f"It departs in round {self.agrees + 1}, in a way that is not known here; it is {off} off in the end."
        else:
            yield f"Not the published algorithm, nor anything near it that is known here ({name}, {source})."
            yield f"The nearest reading is {off} off."

    def _shown_departure(self) -> dict[str, Any]:
        assert self.counterexample is not None
        return self.counterexample.to_dict() | {"script": self.counterexample.script(self.train)}

    def _next(self, convention: str) -> str:
        e = next((e for e in self.excluded if e.convention == convention), None)
        return "" if e is None else f" [next: {e.value}, {e.distance:.1e} away in {e.exam}]"


def _finite(x: float) -> float | None:
    """Return x, or None where JSON has no word for it."""
    return x if abs(x) < float("inf") else None
