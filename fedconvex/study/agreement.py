"""`Study`: what sites and their coordinator have agreed on, read from a file that is the same at all of them.

It holds no row and no figure of rows. Who takes part, what is asked, and what every column becomes, stands in it; so
that two of them are the same where their digests are.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from typing import Any

from fedconvex._check import among, bad, flag, real, wrong_type
from fedconvex.study.model_formula import formula, used_in
from fedconvex.study.schema import Key, Section, Tables, count, number, one_of, pair, text, texts
from fedconvex.tables.spelling import all_differ

NUMBER, CATEGORY = "number", "category"
REFUSE, LEAVE_OUT, INDICATOR, OTHER = "refuse", "leave out", "indicator", "other"
MISSING_LEVEL, OTHER_LEVEL = "(missing)", "(other)"
FAMILIES = ("gaussian", "logistic", "poisson", "quasipoisson", "gamma", "multinomial", "cox")
KINDS = ("pooled", "afl", "mocha", "mean-regularised", "alone")  # of `compare`, in the order of its tables
USUAL = ("pooled", "mean-regularised", "alone")  # where no kinds are named: AFL tells of single sites
TIED = ("mocha", "mean-regularised")
COMPARED = "compare"  # in the place of an l2
LOSSES = {"squared": "Squared", "logistic": "Logistic"}
OUTCOME = ("column", "event", "entry")  # keys of the target that name columns
_SITE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
_FINGERPRINT = re.compile(r"SHA256:([0-9A-F]{2}:){31}[0-9A-F]{2}")


def site_name(who: str, x: Any) -> str:
    """Return the name of a site: it stands in its certificate."""
    name = text(who, x)
    if not _SITE.fullmatch(name):
        raise bad(who, "be a letter, then letters, digits, - and _, at most 40", repr(name))
    return name


def fingerprint(who: str, x: Any) -> str:
    """Return the fingerprint of a certificate."""
    given = text(who, x)
    if not _FINGERPRINT.fullmatch(given.upper()):
        raise bad(
            who, "be SHA256: and 32 bytes as AA:BB:...", repr(given), "`fedconvex study cert show FILE` prints it"
        )
    return given.upper()


def _sites(who: str, x: Any) -> tuple[str, ...]:
    return tuple(site_name(who, name) for name in texts(who, x))


def _address(who: str, x: Any) -> tuple[str, int]:
    host, colon, port = text(who, x).rpartition(":")
    inside = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not inside or (":" in host) != (inside != host) or not port.isdigit() or not 0 < int(port) < 65536:
        raise bad(who, "be a host and a port", repr(x), '"fl.example.org:5555", or "[2001:db8::1]:5555"')
    return inside, int(port)


def listening(address: str) -> tuple[str, int]:
    """Return host and port of an address on the command line."""
    return _address("--listen", address)


def _prints(who: str, x: Any) -> tuple[str, ...]:
    return tuple(fingerprint(who, one) for one in texts(who, x)) if x != [] else ()


def _pinned(who: str, x: Any) -> dict[str, str]:
    """Return fingerprints of certificates by site."""
    if not isinstance(x, dict):
        raise wrong_type(who, "be fingerprints by site", f"{x!r}", 'certificates = { north = "SHA256:..." }')
    return {site_name(who, name): fingerprint(f"{who}.{name}", one) for name, one in x.items()}


def _penalty(who: str, x: Any) -> float:
    return number(0.0, strict=True)(who, x)


def _penalty_or_compare(who: str, x: Any) -> Any:
    return x if x == COMPARED else _penalty(who, x)


def _kinds(who: str, x: Any) -> tuple[str, ...]:
    """Return kinds of models, in the order of tables; every site alone is always there."""
    asked = texts(who, x)
    for kind in asked:
        among(who, kind, KINDS)
    return tuple(kind for kind in KINDS if kind in asked or kind == "alone")


def _test_size(who: str, x: Any) -> float:
    return real(who, x, low=0.05, high=0.5)


def _share(who: str, x: Any) -> float:
    return real(who, x, low=0.0, high=0.5)


def _level(who: str, x: Any) -> float:
    level = real(who, x, low=0.5, high=1.0)
    if level == 1.0:
        raise bad(who, "be below 1", level)
    return level


def _values(who: str, x: Any) -> tuple[str, ...]:
    """Return names that are different however they are spelt, and none that the study makes itself."""
    names = texts(who, x)
    if not all_differ(names):
        raise bad(who, "hold different names: 1 and 1.0 are one", ", ".join(map(repr, names))[:150])
    if made := [name for name in names if name in (MISSING_LEVEL, OTHER_LEVEL)]:
        raise bad(who, "not hold a name that the study makes itself", repr(made[0]), 'missing = "indicator", or codes')
    return names


def _two(who: str, x: Any) -> tuple[str, ...]:
    """Return the names of what was not seen, and of what was."""
    names = _values(who, x)
    if len(names) != 2:
        raise bad(who, "be two values, the second one the event", str(len(names)), '["alive", "dead"]')
    return names


def _inline(keys: Section) -> Any:
    """Return the rule of an inline table; its keys are checked where the study is read, with their lines."""
    return lambda who, x: x


ANALYSE: Section = {
    "family": Key(one_of(*FAMILIES), needed=True),
    "strata": Key(one_of("site"), None),
    "formula": Key(formula, None),
    "ties": Key(one_of("efron", "breslow"), "efron"),
    "robust": Key(one_of("HC0", "HC1", "HC2", "HC3", "client"), None),
    "level": Key(_level, 0.95),
    "intervals": Key(one_of("wald", "profile"), "wald"),
}
COMPARE: Section = {
    "kinds": Key(_kinds, None),
    "test_size": Key(_test_size, 0.25),
    "folds": Key(count(2, 20), 5),
    "splits": Key(count(1, 80), 1),
    "min_rows": Key(count(2), 10),
    "level": Key(_level, 0.95),
    "seed": Key(count(), 0),
}
SOLVE: Section = {
    "loss": Key(one_of(*LOSSES), needed=True),
    "l2": Key(_penalty_or_compare, needed=True),
    "method": Key(one_of("auto", "newton", "fedavg", "scaffold", "fedsgd"), "auto"),
    "step_size": Key(number(0.0, strict=True), None),
    "local_steps": Key(count(1), 5),
    "rounds": Key(count(1, 100_000), 500),
    "tol": Key(number(0.0, strict=True), 1e-6),
    "held_out": Key(_share, 0.0),
}
QUESTIONS = {"analyse": ANALYSE, "compare": COMPARE, "solve": SOLVE}
STUDY: Section = {"name": Key(text, needed=True)}
COORDINATOR: Section = {
    "address": Key(_address, needed=True),
    "authority": Key(fingerprint, None),
    "revoked": Key(_prints, ()),
}
SITES: Section = {
    "require": Key(_sites, None),
    "names": Key(_sites, None),
    "at_least": Key(count(2), None),
    "certificates": Key(_pinned, {}),
    "deadline": Key(number(1.0), 600.0),
}
ASK: Section = {
    **{name: Key(_inline(keys)) for name, keys in QUESTIONS.items()},
    "secure_sums": Key(flag, True),
    "bits": Key(count(10, 50), 40),
}
TARGET: Section = {
    "column": Key(text, needed=True),
    "values": Key(_values, None),
    "range": Key(pair, None),
    "missing": Key(one_of(REFUSE, LEAVE_OUT), REFUSE),
    "event": Key(text, None),
    "events": Key(_two, ("0", "1")),
    "entry": Key(text, None),
}
COLUMN: Section = {"kind": Key(one_of(NUMBER, CATEGORY), needed=True)}
BOTH: Section = {"missing": Key(one_of(REFUSE, LEAVE_OUT, INDICATOR), REFUSE), "absent_at": Key(_sites, ())}
OF_KIND: dict[str, Section] = {
    NUMBER: {
        **COLUMN,
        "center": Key(number(), 0.0),
        "scale": Key(number(0.0, strict=True), 1.0),
        "range": Key(pair, None),
        "codes": Key(texts, ()),
        **BOTH,
    },
    CATEGORY: {
        **COLUMN,
        "values": Key(_values, needed=True),
        "reference": Key(text, None),
        "unknown": Key(one_of(REFUSE, OTHER), REFUSE),
        "codes": Key(texts, ()),
        **BOTH,
    },
}


@dataclass(frozen=True)
class StudyColumn:
    """What a column becomes.

    Attributes
    ----------
    name, kind : str
        "number" or "category".
    center, scale : float
        Numbers count from the centre, in units of the scale.
    range : (float, float) or None
        Numbers outside of it are refused.
    values : tuple of str
        Categories; the first one is the reference of an analysis unless another is named.
    missing : str
        "refuse", "leave out" the row, or "indicator": the centre, and a feature that marks it; of names, a category.
    unknown : str
        Categories that the study does not have: "refuse", or "other", a category of its own.
    absent_at : tuple of str
        Sites whose tables lack the column: all of its cells are missing there.
    codes : tuple of str
        Values that stand for missing cells.
    """

    name: str
    kind: str
    center: float = 0.0
    scale: float = 1.0
    range: tuple[float, float] | None = None
    values: tuple[str, ...] = ()
    reference: str | None = None
    missing: str = REFUSE
    unknown: str = REFUSE
    absent_at: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()

    @property
    def levels(self) -> tuple[str, ...]:
        """Categories at all sites, those for missing and unknown cells among them."""
        more = [MISSING_LEVEL] * (self.missing == INDICATOR) + [OTHER_LEVEL] * (self.unknown == OTHER)
        return (*self.values, *more)

    @property
    def marker(self) -> str | None:
        """Name of the feature that marks missing numbers, if there is one."""
        return f"{self.name}={MISSING_LEVEL}" if self.kind == NUMBER and self.missing == INDICATOR else None


@dataclass(frozen=True, eq=False)
class Study:
    """What all agree on; `read_study` reads it.

    Attributes
    ----------
    name : str
    digest : str
        SHA-256 of the file, in hexadecimal digits.
    address : (str, int)
        Host and port of the coordinator.
    authority : str or None
        Fingerprint of the authority's certificate.
    revoked : tuple of str
        Fingerprints of certificates that are no longer accepted.
    sites : tuple of str
        Who may take part.
    at_least : int
        How many must; all of them by default.
    certificates : mapping from site to str
        Fingerprints; those that are given must be shown.
    deadline : float
        Seconds that a site is waited for which is lost.
    ask : mapping
        "analyse", "compare" and "solve", those that are asked, with their settings.
    target : mapping
        column, values, range, missing; of times also event, events, entry.
    columns : tuple of StudyColumn
    content : bytes
        The file.
    """

    name: str
    digest: str
    address: tuple[str, int]
    authority: str | None
    revoked: tuple[str, ...]
    sites: tuple[str, ...]
    at_least: int
    certificates: dict[str, str]
    deadline: float
    ask: dict[str, dict[str, Any]]
    secure_sums: bool
    bits: int
    target: dict[str, Any]
    columns: tuple[StudyColumn, ...]
    content: bytes

    def __repr__(self) -> str:
        asked = ", ".join(self.ask)
        return f"Study({self.name}: {asked}; {len(self.sites)} sites, {len(self.columns)} columns; {self.short})"

    @property
    def short(self) -> str:
        """The first 64 bits of the digest, to be compared by telephone."""
        return "-".join(self.digest[i : i + 4] for i in range(0, 16, 4))


def read_study(path: str | os.PathLike[str]) -> Study:
    """Return the study that a file describes.

    Parameters
    ----------
    path : path
        TOML; ``docs/study.md`` lists sections and keys.

    Raises
    ------
    FileNotFoundError, ValueError, TypeError
        If there is no such file, or a key is unknown, missing, or against its rule: with its line.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from fedconvex.study import read_study
    >>> content = '''
    ... [study]
    ... name = "wards"
    ... [coordinator]
    ... address = "localhost:5555"
    ... [sites]
    ... require = ["north", "south"]
    ... [ask]
    ... analyse = { family = "gaussian" }
    ... [target]
    ... column = "days"
    ... [columns.age]
    ... kind = "number"
    ... '''
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "study.toml"
    ...     _ = path.write_text(content)
    ...     read_study(path)
    Study(wards: analyse; 2 sites, 1 columns; 1c9b-1f8d-525a-63ab)
    """
    file = Tables(path)
    file.sections(dict.fromkeys(("study", "coordinator", "sites", "ask", "target", "columns"), True))
    head, where = file.section(STUDY, "study"), file.section(COORDINATOR, "coordinator")
    sites, ask, target = file.section(SITES, "sites"), file.section(ASK, "ask"), file.section(TARGET, "target")
    asked = {name: file.section(keys, "ask", name) for name, keys in QUESTIONS.items() if ask[name] is not None}
    if not asked:
        raise bad(file.where("ask"), f"ask for {' or '.join(QUESTIONS)}", "nothing")
    _check_compared(file, asked)
    names, least = _who(file, sites)
    columns = _columns(file, names, [target[key] for key in OUTCOME if target[key] is not None])
    for key in OUTCOME:
        if target[key] in {c.name for c in columns}:
            raise bad(file.where("target", key), "be no feature", repr(target[key]), "one of them is not needed")
    _check_target(file, target, asked)
    _check_formula(file, target, asked.get("analyse", {}).get("formula"), columns)
    return Study(
        head["name"], hashlib.sha256(file.content).hexdigest(), where["address"], where["authority"],
        where["revoked"], names, least, sites["certificates"], sites["deadline"], asked, ask["secure_sums"],
        ask["bits"], target, columns, file.content,
    )  # fmt: skip


def _who(file: Tables, sites: dict[str, Any]) -> tuple[tuple[str, ...], int]:
    """Return the names of the sites, and how many must take part: all that are required, or at least so many."""
    if (sites["require"] is None) == (sites["names"] is None):
        cure = 'require = ["a", "b", "c"], or names = ["a", "b", "c", "d"] with at_least = 3'
        raise bad(file.where("sites"), "have the key require, or names", "both" if sites["names"] else "none", cure)
    names = sites["require"] or sites["names"]
    if (sites["at_least"] is None) != (sites["names"] is None):
        raise bad(file.where("sites", "at_least"), "go with names", "one of them", "require asks for all")
    if len(names) < 2:
        raise bad(file.where("sites"), "name two sites or more", "one")
    least = sites["at_least"] or len(names)
    if least > len(names):
        raise bad(file.where("sites", "at_least"), f"be at most the {len(names)} sites", least)
    if strange := [name for name in sites["certificates"] if name not in names]:
        raise bad(file.where("sites", "certificates"), f"be of {', '.join(names)}", repr(strange[0]))
    return names, least


def _columns(file: Tables, sites: tuple[str, ...], target: list[str]) -> tuple[StudyColumn, ...]:
    """Return the columns, if their names are not those of what the study makes."""
    if not isinstance(file.tables["columns"], dict):
        raise bad(file.where("columns"), "be sections: [columns.age]", type(file.tables["columns"]).__name__)
    columns = tuple(_column(file, name, sites) for name in file.tables["columns"])
    if not columns:
        raise bad(file.where("columns"), "have a column: [columns.age]", "none")
    taken = {"(site)", *(c.marker for c in columns)}
    for name in (*(c.name for c in columns), *target):
        if name in taken:
            raise bad(
                file.where("columns", name), "have another name: it is taken for what the study makes", repr(name)
            )
    return columns


def _column(file: Tables, name: str, sites: tuple[str, ...]) -> StudyColumn:
    """Return a column as its section says."""
    path = ("columns", name)
    text(file.where(*path), name)
    table = file.tables["columns"][name]
    kind = table.get("kind") if isinstance(table, dict) else None
    keys = OF_KIND.get(kind if isinstance(kind, str) else "", {**COLUMN, **OF_KIND[NUMBER], **OF_KIND[CATEGORY]})
    column = StudyColumn(name, **file.section(keys, *path))
    if column.reference is not None and column.reference not in column.values:
        raise bad(file.where(*path, "reference"), f"be one of {', '.join(column.values)}", repr(column.reference))
    if strange := [site for site in column.absent_at if site not in sites]:
        raise bad(file.where(*path, "absent_at"), f"be among {', '.join(sites)}", repr(strange[0]))
    if column.absent_at and column.missing != INDICATOR:
        cure = 'its cells are all missing there: missing = "indicator", or leave the column out'
        raise bad(
            file.where(*path, "missing"), f'be "{INDICATOR}" where a site lacks the column', repr(column.missing), cure
        )
    return column


def _check_formula(file: Tables, target: dict[str, Any], written: str | None, columns: tuple[StudyColumn, ...]) -> None:
    """Raise unless a formula is about the target and columns of the study, and marks missing numbers that it uses."""
    if written is None:
        return
    where = file.where("ask", "analyse", "formula")
    names = [n for c in columns for n in (c.name, c.marker) if n is not None]
    left, used = used_in(where, written, names)
    if left != target["column"]:
        raise bad(where, f"have the target {target['column']!r} on its left", repr(left))
    for c in columns:
        if c.marker and c.name in used and c.marker not in used:
            raise bad(where, f"mark where {c.name} is missing", repr(c.name), f"add + `{c.marker}`")


def _check_compared(file: Tables, asked: dict[str, dict[str, Any]]) -> None:
    """Raise unless rows can be divided as is asked, and an l2 that is to be chosen will be."""
    if (found := asked.get("compare")) is not None:
        several = len(file.section(TARGET, "target")["values"] or ()) > 2
        tied = [kind for kind in TIED if kind in (found["kinds"] or ())]
        if several and tied:
            raise bad(file.where("ask", "compare", "kinds"), "be of two classes or numbers", tied[0], "leave it out")
        found["kinds"] = found["kinds"] or tuple(k for k in USUAL if not (several and k in TIED))
        from fedconvex.comparison.splits import checked_splits

        try:
            checked_splits(found["splits"], found["test_size"])
        except ValueError as error:
            raise bad(file.where("ask", "compare", "splits"), "fit to test_size", str(error)) from None
    if asked.get("solve", {}).get("l2") == COMPARED and "pooled" not in (found or {}).get("kinds", ()):
        cure = 'compare = { kinds = ["pooled"] }'
        raise bad(file.where("ask", "solve", "l2"), "be a number where no compare of pooled models chooses", "it", cure)


def _check_target(file: Tables, target: dict[str, Any], asked: dict[str, dict[str, Any]]) -> None:
    """Raise unless the target is what is asked about: two values for logistic, numbers otherwise."""
    for what, settings in asked.items():
        values = target["values"]
        usual = "squared" if values is None else "logistic" if len(values) == 2 else "multinomial"
        kind = settings.get("family") or settings.get("loss") or usual
        if (kind == "cox") != (target["event"] is not None):
            cure = 'event = "died", and family = "cox": no other question is one of times'
            raise bad(file.where("target", "event"), f"name the events of cox, and of nothing else: {what}", kind, cure)
        if target["entry"] is not None and kind != "cox":
            raise bad(file.where("target", "entry"), "be given for family cox only", kind)
        if kind == "logistic" and (values is None or len(values) != 2):
            got = "none" if values is None else str(len(values))
            cure = 'values = ["no", "yes"]: the second one is the event'
            raise bad(file.where("target"), f"have two values for {what}'s {kind}", got, cure)
        if kind == "multinomial" and (values is None or len(values) < 3):
            got = "none" if values is None else str(len(values))
            raise bad(
                file.where("target"),
                f"have three values or more for {what}'s {kind}",
                got,
                "the first is the reference",
            )
        if kind not in ("logistic", "multinomial") and values is not None:
            raise bad(
                file.where("target", "values"), f"not be given for {what}'s {kind}, which takes numbers", str(values)
            )
