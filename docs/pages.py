"""Write the pages of docs/theory from the theorem files, and what other pages say of all: ``python docs/pages.py``.

Those are rows of docs/methods.md, and docs/branches.md and docs/hypotheses.md, which name theorems without a record.

A page is made from the Statement of a theorem file, its figure is drawn by ``docs/figures.py`` under the page's name.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

from fedconvex import families, methods, theorems
from fedconvex.families import moved
from fedconvex.theorems.parts.theorem import Check, Instance, Statement, Theorem

FOLDER = Path(__file__).resolve().parent / "theory"
METHODS = FOLDER.parent / "methods.md"
OTHERS = "\n## Others\n\n| method | what it does | paper |\n|---|---|---|\n"
SECTIONS = (
    ("setting", "Setting"),
    ("assumptions", "Assumptions"),
    ("statement", "Statement"),
    ("meaning", "What it means"),
    ("proof", "Proof"),
    ("figure", ""),
    ("loose", "Where it is loose"),
    ("differs", "What differs from the printed form"),
    ("source", "Source"),
)


def page(statement: Statement, module: ModuleType, theorems: list[Theorem]) -> str:
    """Return the page of a statement with its variants, from the theorem's file."""
    home = {new: old for old, new in moved().items()}.get(module.__name__, module.__name__)
    what = "Statement, source and proof, and where it is loose or false"
    checked = "; `fedconvex verify --theorem NAME` holds it against runs" if theorems else ""
    parts = [f"# {statement.title}", f"{what}\n(`{home}`){checked}{':' if theorems else '.'}"]
    if theorems:
        parts.append("\n".join(f"- `{t.name}`: {t.says}" for t in theorems))
    for field, title in SECTIONS:
        text = getattr(statement, field).strip("\n")
        if field == "figure" and text:
            parts.append(f"![{_one_line(text)}](../figures/{statement.page}.svg)")
            parts.append(f"*{statement.caption.strip()}*")
        elif text:
            parts.append(f"## {title}")
            parts.append(f"```text\n{text}\n```" if field == "statement" else text)
    if theorems:
        parts.append("## With row weights, free coordinates, a penalty")
        answers = zip(("row weights", "free coordinates", "a penalty"), statement.scope, strict=True)
        parts.append("\n".join(f"- With {what} it {answer}." for what, answer in answers))
        parts.append("## Where it is checked")
        parts.append("\n".join(f"- `{t.name}`: {', '.join(_instances(t))}." for t in theorems))
    if calls := _calls(module):
        parts += ["## In Python", calls]
    return "\n\n".join(parts) + "\n"


def _calls(module: ModuleType) -> str:
    """Return a list of the file's public functions and classes, with their arguments and first lines."""
    found = {name: getattr(module, name) for name in module.__all__}
    lines = []
    for name, thing in found.items():
        if callable(thing):
            given = "" if isinstance(thing, type) else f"({', '.join(_arguments(thing))})"
            lines.append(f"- `{name}{given}`: {_one_line(str(thing.__doc__)).partition('. ')[0].rstrip('.')}.")
    return "\n".join(lines)


def _arguments(function: object) -> list[str]:
    """Return the names of a function's arguments, with a star before those that are given by name only."""
    found = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    by_name = [p.name for p in found if p.kind is p.KEYWORD_ONLY]
    return [p.name for p in found if p.kind is not p.KEYWORD_ONLY] + ["*"] * bool(by_name) + by_name


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _instances(theorem: Theorem) -> list[str]:
    """Return the names of the instances of its checks, each once; those that a search found are counted."""
    instances: list[Instance] = [c.instance if isinstance(c, Check) else c for c in theorem.checks]
    found = sum(i.data == "searched" for i in instances)
    more = [f"{found} that a search found"] if found else []
    return [*dict.fromkeys(i.name for i in instances if i.data != "searched"), *more]


def pages() -> dict[str, str]:
    """Return all pages by their names: of every file with a statement, whether runs are checked for it or not."""
    out = {}
    core = [import_module(f"{theorems.__name__}.{found.name}") for found in iter_modules(theorems.__path__)]
    for module in (*core, *families.loaded("theorems")):
        if hasattr(module, "STATEMENT"):
            mine = [t for t in theorems.THEOREMS.values() if t.statement is module.STATEMENT]
            out[module.STATEMENT.page] = page(module.STATEMENT, module, mine)
    return out


def with_rows(text: str) -> str:
    """Return the page of methods with a row for each method that it does not name yet, from what its docstrings say.

    Rows that say more, in the table of the methods alike, are written by hand.
    """
    found = [getattr(methods, name) for name in methods.__all__]
    federated = [cls for cls in found if hasattr(cls, "aggregate") or hasattr(cls, "round")]
    rows = [_row(cls) for cls in federated if not re.search(f"`{cls.__name__}[`(]", text)]
    return text + (OTHERS if rows and OTHERS not in text else "") + "".join(rows)


def _row(cls: type) -> str:
    does = _one_line(str(cls.__doc__)).partition(". ")[0].rstrip(".")
    title = _one_line(str(sys.modules[cls.__module__].__doc__)).partition(" 1. ")[0]
    paper = re.search(r"\(((?:[^()]|\([^()]*\))*)\)", title)  # what the first brackets hold, brackets within included
    return f"| `{cls.__name__}` | {does} | {paper[1] if paper else ''} |\n"


if __name__ == "__main__":
    METHODS.write_text(with_rows(METHODS.read_text(encoding="utf-8")), encoding="utf-8")
    sys.path.insert(0, str(FOLDER.parents[1]))
    from tests.campaigns import branches, hypotheses

    for written in (branches, hypotheses):
        written.PAGE.write_text(written.page(json.loads(written.KEPT.read_text())))
    for name, text in pages().items():
        (FOLDER / f"{name}.md").write_text(text)
