"""`SiteSettings`: what a site decides for itself, in a file that stays there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedconvex._check import flag
from fedconvex.analysis import Guards
from fedconvex.remote import Limits
from fedconvex.study.agreement import QUESTIONS, site_name
from fedconvex.study.schema import Key, Section, Tables, count, number, text, texts


def _sep(who: str, x: Any) -> str:
    return "\t" if x == "\t" else text(who, x)


SITE: Section = {
    "name": Key(site_name, needed=True),
    "table": Key(text, needed=True),
    "certificate": Key(text, None),
    "key": Key(text, None),
    "authority": Key(text, None),
    "state": Key(text, "state"),
    "results": Key(text, "results"),
}
READING: Section = {"sep": Key(_sep, None), "decimal": Key(text, None), "encoding": Key(text, None)}
LIMITS: Section = {
    "rows": Key(count(1), 10),
    "events": Key(count(), 5),
    "level": Key(count(), 3),
    "parameters": Key(number(0.0, strict=True), 0.1),
    "share": Key(number(0.0, strict=True), 1.0),
    "summed": Key(number(0.0, strict=True), 200.0),
    "runs": Key(count(1), 20),
    "sets": Key(count(1), 1),
    "log": Key(number(0.0, strict=True), 100.0),
    "ask": Key(texts, tuple(QUESTIONS)),
    "secure_sums": Key(flag, True),
    "scores": Key(flag, True),
}
ACCEPT: Section = {"constant": Key(texts, ()), "tells_target": Key(texts, ())}


@dataclass(frozen=True)
class SiteSettings:
    """What a site decides for itself; `read_site` reads it.

    Attributes
    ----------
    name : str
        As the study spells it.
    table : path
    certificate, key, authority : path or None
        None: ``NAME.pem``, ``NAME.key`` and ``authority.pem`` beside the file.
    state : path
        Folder of the ledger, of what is remembered, and of the audit log.
    results : path
        Folder of what the coordinator sends back.
    reading : mapping
        sep, decimal, encoding of the table.
    limits : mapping
        Least rows, events and rows of a category; coefficients as a share of the rows; numbers answered as a share of
        those that the rows hold, and likewise in sums of `compare` over all sites; runs on the same rows; sets of sites
        that are summed over in a study; what may be asked; whether sums must be secure; whether scores on held-out rows
        are told.
    accept : mapping
        Columns that may be constant here, or tell the target.
    """

    name: str
    table: Path
    certificate: Path
    key: Path
    authority: Path
    state: Path
    results: Path
    reading: dict[str, Any]
    limits: dict[str, Any]
    accept: dict[str, tuple[str, ...]]

    @property
    def guards(self) -> Guards:
        """What the table must be before sums over it are told."""
        return Guards(**{name: self.limits[name] for name in ("rows", "events", "level", "parameters")})

    @property
    def told(self) -> Limits:
        """What is answered at most."""
        return Limits(share=self.limits["share"])


def read_site(path: str | os.PathLike[str]) -> SiteSettings:
    r"""Return the settings of a site; files are named from the folder in which it stands.

    Parameters
    ----------
    path : path
        Of site.toml.

    Raises
    ------
    FileNotFoundError, ValueError, TypeError
        If there is no such file, or a key is unknown, missing, or against its rule: with its line.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from fedconvex.study import read_site
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "site.toml"
    ...     _ = path.write_text('[site]\nname = "north"\ntable = "patients.csv"\n[limits]\nrows = 50\n')
    ...     found = read_site(path)
    >>> found.table.name, found.limits["rows"], found.limits["events"], found.key.name
    ('patients.csv', 50, 5, 'north.key')
    """
    file = Tables(path)
    file.sections({"site": True, "reading": False, "limits": False, "accept": False})
    own, limits = file.section(SITE, "site"), file.section(LIMITS, "limits")
    for question in limits["ask"]:
        if question not in QUESTIONS:
            from fedconvex._check import unknown

            raise unknown(file.where("limits", "ask"), question, QUESTIONS)
    name = own["name"]
    usual = {"certificate": f"{name}.pem", "key": f"{name}.key", "authority": "authority.pem"}
    files = {key: file.folder / (own[key] or usual.get(key, "")) for key in (*usual, "table", "state", "results")}
    reading = {key: value for key, value in file.section(READING, "reading").items() if value is not None}
    return SiteSettings(name, reading=reading, limits=limits, accept=file.section(ACCEPT, "accept"), **files)
