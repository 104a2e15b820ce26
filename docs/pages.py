"""Write the pages of docs/theory from the theorem files: ``python docs/pages.py``.

A page is made from the Statement of a theorem file, its figure is drawn by ``docs/figures.py`` under the page's name.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

from fedconvex import families, theorems
from fedconvex.theorems.parts.theorem import Check, Instance, Statement, Theorem

FOLDER = Path(__file__).resolve().parent / "theory"
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
    home = module.__name__
    checked = ", checked by `fedconvex verify --theorem`:" if theorems else "."
    parts = [f"# {statement.title}", f"`{home}`{checked}"]
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


if __name__ == "__main__":
    for name, text in pages().items():
        (FOLDER / f"{name}.md").write_text(text)
