"""`check`: what is wrong with a site's table and settings before a study begins, and what would leave the site."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedconvex._check import instance
from fedconvex.study.agreement import CATEGORY, Study
from fedconvex.study.audit_log import read_log
from fedconvex.study.certificates import SITE, credentials
from fedconvex.study.preparing import Finding, Prepared, prepared
from fedconvex.study.runs_asked import Question, questions
from fedconvex.study.site_settings import SiteSettings
from fedconvex.tables.frame import Frame
from fedconvex.tables.reading import read_frame

_BITS, _PRIME = (1 << 64) - 1, 0xBF58476D1CE4E5B9  # of splitmix64 (Steele, Lea, Flood 2014)


class Check(NamedTuple):
    """What a check has found.

    Attributes
    ----------
    rows : Prepared
        The site's rows as the study has agreed on.
    findings : list of Finding
        Of table, settings and limits.
    questions : list of Question
        What is asked.
    """

    rows: Prepared
    findings: list[Finding]
    questions: list[Question]

    @property
    def is_sound(self) -> bool:
        """Whether the site may take part."""
        return not any(f.stops for f in self.findings)


def check_site(study: Study, site: SiteSettings) -> Check:
    """Return what is wrong with a site's table and settings; nothing is sent, and nothing is written.

    Parameters
    ----------
    study : Study
    site : SiteSettings

    Raises
    ------
    TypeError, ValueError, OSError
        If these are none; if the table cannot be read at all.

    Examples
    --------
    ::

        found = check_site(read_study("study.toml"), read_site("site.toml"))
        for finding in found.findings:
            print(*finding, sep=" | ")

    >>> from fedconvex.study import check_site
    >>> check_site("study.toml", None)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    TypeError: check_site: study must be a Study; got ...
    """
    instance("check_site: study", study, Study)
    instance("check_site: site", site, SiteSettings)
    if site.name not in study.sites:
        finding = Finding(
            "site", f"{site.name!r} is none of {', '.join(study.sites)}", "correct [site] name, or the study"
        )
        return Check(prepared(study, site.name, Frame({}), site.accept), [finding], [])
    frame = read_frame(site.table, text=_texts(study), **site.reading)
    rows, asked = prepared(study, site.name, frame, site.accept), questions(study)
    findings = [*rows.findings, *_repeated(frame), *_settings(study, site), *_certificate(study, site)]
    if rows.is_sound:
        findings += _marks(study, rows)
        before = answered(site)
        for i, question in enumerate(asked):
            findings += _limits(question, rows, site, sum(q.usual for q in asked[: i + 1]), before)
            findings += _sums(question, rows, site)
    return Check(rows, findings, asked)


def _texts(study: Study) -> set[str]:
    """Return the columns that hold names."""
    names = {c.name for c in study.columns if c.kind == CATEGORY}
    names |= {study.target["column"]} if study.target["values"] is not None else set()
    return names | ({study.target["event"]} if study.target["event"] is not None else set())


def _repeated(frame: Frame) -> Iterator[Finding]:
    """Yield how many rows are the same as others in every column, and the first one that is; they take part."""
    mixed = np.zeros(frame.n, dtype=np.uint64)
    for cells in frame.cells.values():
        if cells.dtype == np.float64:
            own = np.where(np.isnan(cells), np.nan, cells).view(np.uint64)
        else:
            own = np.fromiter((hash(v) & _BITS for v in cells.tolist()), dtype=np.uint64, count=frame.n)
        mixed = (mixed ^ own ^ (mixed >> np.uint64(29))) * np.uint64(_PRIME)
    first = np.unique(mixed, return_index=True)[1]
    if extra := frame.n - first.size:
        later = np.setdiff1d(np.arange(frame.n), first)[0]
        before = np.flatnonzero(mixed == mixed[later])[0]
        which = f"row {later + 1:,} is the same as row {before + 1:,} in every column"
        yield Finding("table", which + (f", and so are {extra - 1:,} more" if extra > 1 else "") + ": entered twice?")


def _marks(study: Study, rows: Prepared) -> Iterator[Finding]:
    """Yield marks of missing cells that cannot be told from the site's own intercept by this site's rows."""
    ask = study.ask.get("analyse")
    if ask is None or ask["strata"] != "site" or ask["family"] == "cox":
        return
    for c in study.columns:
        used = ask["formula"] is None or c.name in ask["formula"]
        if used and c.marker and np.ptp(rows.columns[c.marker]) == 0.0:
            said = (
                f"{c.marker!r} does not vary here: where it varies at no site, analyse stops, since every site has its"
            )
            yield Finding(
                f"column {c.name!r}",
                said + ' own intercept; then ask for a formula without it, or without strata = "site"',
            )


def _settings(study: Study, site: SiteSettings) -> Iterator[Finding]:
    """Yield what the study asks and the site does not allow."""
    for name in study.ask:
        if name not in site.limits["ask"]:
            yield Finding(
                "limits", f"the study asks to {name}", f'allow it here, [limits] ask = ["{name}"], or take no part'
            )
    if site.limits["secure_sums"] and not study.secure_sums:
        cure = "ask for secure_sums = true in the study, or allow it here: [limits] secure_sums = false"
        yield Finding("limits", "the study shows this site's own sums to the coordinator", cure)
    if study.secure_sums:
        try:
            import cryptography  # noqa: F401
        except ImportError:
            yield Finding("limits", "secure sums need the package cryptography", "pip install 'fedconvex[secure]'")


def _certificate(study: Study, site: SiteSettings) -> Iterator[Finding]:
    """Yield what is wrong with the site's certificate, once there is one."""
    files = (site.certificate, site.key, site.authority)
    if not site.certificate.exists():
        yield Finding("certificate", f"{site.certificate.name} is not there yet")
        return
    try:
        credentials(study, *files, SITE + site.name)
    except (ValueError, FileNotFoundError) as error:
        said, _, cure = str(error).rpartition(": ")
        yield Finding("certificate", said or str(error), cure or "ask for a new one")


def answered(site: SiteSettings, what: str = "ledger") -> int:
    """Return how many numbers were answered about a site's rows, or for "sums" over all sites, as its log says."""
    log = site.state / "audit.jsonl"
    return max((int(line.get(what, 0)) for line in read_log(log)), default=0) if log.exists() else 0


def _sums(question: Question, rows: Prepared, site: SiteSettings) -> Iterator[Finding]:
    """Yield what the site's limit of numbers in sums over all sites says."""
    held = rows.n * (question.features + 1)
    allowed, needed = site.limits["summed"] * held, question.summed
    if needed > allowed:
        said = f"about {needed:,} numbers are taken for sums over all sites, and the limit is {allowed:,.0f}"
        cure = (
            f"[limits] summed = {math.ceil(needed / held):g}, if those responsible for the rows agree; or fewer folds"
        )
        yield Finding(question.name, said, cure)


def _limits(question: Question, rows: Prepared, site: SiteSettings, taken: int, before: int) -> Iterator[Finding]:
    """Yield what the site's guards and limits say of its rows.

    Parameters
    ----------
    question : Question
    rows : Prepared
    site : SiteSettings
    taken, before : int
        Numbers that are usual up to the end of this question; numbers that were answered earlier, also by this run.
    """
    guards, federation = site.guards, None
    while federation is None:  # with what stops it out of the way, the next one shows
        try:
            federation = question.rows(rows.columns, site.name, guards)
        except ValueError as error:
            said = re.sub(r": the site may allow it: .*", "", str(error))
            option = next(iter(re.findall(r"Guards\((\w+)=", str(error))), "")
            enough = _enough(said) if option else None
            where = "change [limits]" if enough is None else f"[limits] {option} = {enough:g}"
            yield Finding(question.name, said, f"{where}, if those responsible for the rows agree")
            if enough is None or enough == getattr(guards, option):
                return
            guards = replace(guards, **{option: enough})  # type: ignore[arg-type]
    held = federation.n * (federation.d + 1)
    allowed, needed = site.told.allowed(held), taken + before
    share = f"[limits] share = {math.ceil(10 * (taken if taken > allowed else needed) / held) / 10:g}"
    limit = f"the rows' limit is {allowed:,.0f} (they hold {held:,})"
    if taken > allowed:
        said = f"about {taken:,} numbers are taken up to its end, and {limit}"
        yield Finding(question.name, said, f"{share}, if those responsible for the rows agree")
    elif needed > allowed:
        said = f"{before:,} numbers were answered, about {taken:,} are taken up to its end, and {limit}"
        yield Finding(question.name, f"{said}: unless it goes on with a run, it needs {share}")


def _enough(said: str) -> float | None:
    """Return the value of a limit that would allow what a guard refuses."""
    got = re.search(r"got ([\d,]+)", said)
    coefficients = re.search(r"([\d,]+) coefficients must be at most", said)
    if got is None:
        return None
    n = int(got[1].replace(",", ""))
    return n if coefficients is None else math.ceil(100 * int(coefficients[1].replace(",", "")) / n) / 100
