"""What every experiment returns, and how it is written to a folder."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedconvex._check import bad, whole
from fedconvex._files import write_file
from fedconvex.papers.finished_parts import keeping
from fedconvex.report.plots import save_figure

Progress = Callable[[float, str], None]  # share done in [0, 1], what is being done
FULL = "the full version"
OPEN = (
    "Not decided here: the numbers allow either, because an interval reaches beyond the limit or margin that the claim "
    "states, or draws or rows are too few. That is no failure; more repetitions or rows make intervals narrower."
)
_NEEDS_FULL = (
    f"Needs {FULL}: a smaller one decides only what holds whatever the size (certificates, bounds, identities); what "
    "comes out true or false in it may come out otherwise in the other, which is run without --quick."
)


class Claim(NamedTuple):
    """A sentence, whether it came out true (None: not decided here), and the numbers that say so.

    A claim of order or equality that is judged by an interval holds only where the whole interval lies on the side, or
    within the margin, that its text states, and fails only where the whole interval lies beyond.

    Attributes
    ----------
    text : str
        The sentence, with its margin where it states one.
    holds : bool or None
        Whether it came out true; None: not decided here.
    numbers : str
        Those that say so.
    everywhere : bool
        Whether every version decides it, however small: a bound, an identity.
    needs : str
        What it takes to decide it.
    refutable : bool
        Whether a quick version can refute it, but not confirm it.
    here : bool or None
        What came out in a quick version, which does not decide it.

    Examples
    --------
    >>> from fedconvex.papers import Claim
    >>> Claim("SCAFFOLD needs fewer rounds than FedAvg", True, "12 against 40").said
    'holds'
    """

    text: str
    holds: bool | None
    numbers: str
    everywhere: bool = False  # whether every version decides it, however small: a bound, an identity
    needs: str = ""  # what it takes to decide it
    refutable: bool = False  # whether a quick version can refute it, but not confirm it: what all models must meet
    here: bool | None = None  # what came out in a quick version, which does not decide it

    @property
    def said(self) -> str:
        """In a few words."""
        if self.holds is not None:
            return "holds" if self.holds else "FAILS"
        seen = "" if self.here is None else f"{'true' if self.here else 'false'} in this version"
        why = "; ".join(part for part in (seen, f"needs {self.needs}" if self.needs else "") if part)
        return "not decided here" + (f" ({why})" if why else "")

    def if_quick(self) -> Claim:
        """Return the claim as a quick version says it: left open, whatever came out, where size may be the reason."""
        if self.holds is None or self.everywhere or (self.refutable and not self.holds):
            return self
        return self._replace(holds=None, needs=FULL, here=bool(self.holds))


@dataclass(frozen=True)
class Findings:
    """What an experiment found.

    Attributes
    ----------
    title : str
    claims : tuple of Claim
    notes : tuple of str
        What is taken from the paper, what is chosen here, what can be compared and what cannot.
    figures : mapping of name to matplotlib Figure
        Written as NAME.svg and NAME.png.
    tables : mapping of name to rows
        Rows are mappings with the same keys, written as NAME.csv; an empty cell is a value that does not exist.

    Examples
    --------
    >>> from fedconvex.papers import Claim, Findings
    >>> claims = (Claim("1 + 1 = 2", True, "2"), Claim("the order of methods", None, "intervals overlap"))
    >>> Findings("Sums", claims, ()).holds  # what is not decided is not false
    True
    """

    title: str
    claims: tuple[Claim, ...]
    notes: tuple[str, ...]
    figures: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether no claim came out false."""
        return all(claim.holds is None or claim.holds for claim in self.claims)


class Study(Protocol):
    """What an experiment does with its arguments, which `Experiment.run` has checked."""

    def __call__(self, *, quick: bool, seed: int, data: Any, tell: Progress) -> Findings: ...  # noqa: D102


@dataclass(frozen=True)
class Experiment:
    """An experiment that can be run.

    Parameters
    ----------
    name : str
        Its key, in lower case with hyphens.
    description : str
        One line.
    study : callable
        Takes the keywords ``quick``, ``seed``, ``data`` and ``tell`` (a `Progress`), returns `Findings`.
    data : str
        What file the experiment reads, empty if none.
    smaller : str
        What the quick version leaves out; said in its notes.

    Examples
    --------
    >>> from fedconvex.papers import Claim, Experiment, Findings
    >>> def study(*, quick, seed, data, tell):
    ...     return Findings("Sums", (Claim("1 + 1 = 2", True, "2"),), ())
    >>> Experiment("sums", "adds numbers", study, smaller="fewer numbers").run(quick=True).notes
    ('A quick version: fewer numbers.',)
    """

    name: str
    description: str
    study: Study
    data: str = ""
    smaller: str = ""

    def run(
        self,
        *,
        quick: bool = False,
        seed: int = 0,
        data: Any = None,
        progress: Progress | None = None,
        parts: str | os.PathLike[str] | None = None,
    ) -> Findings:
        """Run the experiment.

        Parameters
        ----------
        quick : bool
            A smaller version.
        seed : int
            Of every random choice.
        data : path, optional
            A file as ``data`` of the experiment says; some take objects of `fedconvex.datasets` too.
        progress : callable, optional
            Takes the share done and what is being done.
        parts : path, optional
            Folder for finished parts of a long experiment: a run that was killed goes on from them.

        Raises
        ------
        ValueError, TypeError
            If the seed is no whole number from 0, data are given that the experiment does not take, or do not fit.
        """
        seed = whole(f"{self.name}: seed", seed, low=0)
        if data is not None and not self.data:
            raise bad(f"{self.name}: data", "be left out", str(data), "the experiment draws or defines its own")
        tell = progress or (lambda share, doing: None)
        with keeping(None if parts is None else Path(parts), self.name, quick, seed, data):
            found = self.study(quick=quick, seed=seed, data=data, tell=tell)
        tell(1.0, "done")
        if not quick:
            return found
        claims = tuple(claim.if_quick() for claim in found.claims)
        return replace(found, claims=claims, notes=(*found.notes, f"A quick version: {self.smaller}."))


def progress_part(tell: Progress, low: float, high: float, of: str = "") -> Progress:
    """Return the progress of a part: its shares go from low to high of the whole, and what it does follows ``of``.

    Examples
    --------
    >>> from fedconvex.papers.findings import progress_part
    >>> progress_part(print, 0.5, 1.0, "second half: ")(0.5, "adding")
    0.75 second half: adding
    """
    return lambda share, doing: tell((1.0 - share) * low + share * high, f"{of}{doing}")


def write(findings: Findings, folder: str | os.PathLike[str]) -> list[Path]:
    """Write figures (SVG and PNG), tables (CSV) and claims.json into a folder; each file appears whole or not at all.

    Parameters
    ----------
    findings : Findings
    folder : path
        Created if it does not exist, in an existing folder.

    Returns
    -------
    list of Path
        The files written.

    Raises
    ------
    ValueError
        If the folder cannot be one.

    Examples
    --------
    >>> import tempfile
    >>> from fedconvex.papers import Claim, Findings, write
    >>> findings = Findings("Sums", (Claim("1 + 1 = 2", True, "2"),), (), tables={"sums": [{"a": 1, "b": 2}]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in write(findings, folder)]
    ['sums.csv', 'claims.json']
    """
    home = Path(folder)
    if home.is_file() or not home.absolute().parent.is_dir():
        raise bad("write: folder", "be a folder, or a new one in an existing folder", str(folder))
    home.mkdir(exist_ok=True)
    files = []
    for name, figure in findings.figures.items():
        for suffix in ("svg", "png"):
            files.append(save_figure(figure, home / f"{name}.{suffix}", outlines=False))
    for name, rows in findings.tables.items():
        files.append(home / f"{name}.csv")
        write_file(files[-1], _csv(rows).encode())
    holds = [None if claim.holds is None else bool(claim.holds) for claim in findings.claims]
    claims = [claim._asdict() | {"holds": h} for claim, h in zip(findings.claims, holds, strict=True)]
    body = {"title": findings.title, "holds": findings.holds, "claims": claims, "notes": list(findings.notes)}
    files.append(home / "claims.json")
    write_file(files[-1], (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode())
    return files


def summary(findings: Findings) -> str:
    """Return the claims and notes as text; a claim that a version cannot decide says so.

    Parameters
    ----------
    findings : Findings
        Of an experiment.

    Examples
    --------
    >>> from fedconvex.papers import Claim, Findings, summary
    >>> print(summary(Findings("Sums", (Claim("1 + 1 = 2", True, "2"),), ("Taken from school.",))))
    Sums
      holds   1 + 1 = 2
              2
    1 of 1 claims hold.
    To know:
      Taken from school.
    """
    lines = [findings.title]
    for claim in findings.claims:
        lines += _wrapped(claim.text, f"  {claim.said}   ")
        lines += _wrapped(claim.numbers, " " * 10)
    undecided = [c for c in findings.claims if c.holds is None]
    held = f"{sum(bool(c.holds) for c in findings.claims)} of {len(findings.claims)} claims hold"
    lines += [f"{held}, {len(undecided)} not decided here." if undecided else f"{held}."]
    if any(c.needs != FULL for c in undecided):
        lines += _wrapped(OPEN, "")
    if any(c.needs == FULL for c in undecided):
        lines += _wrapped(_NEEDS_FULL, "")
    if findings.notes:
        lines += ["To know:", *(line for note in findings.notes for line in _wrapped(note, "  "))]
    return "\n".join(lines)


def _wrapped(text: str, first: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=first, subsequent_indent=" " * len(first))


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    if rows:
        out = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        out.writeheader()
        out.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return "" if math.isnan(value) else f"{value:.10g}"
