"""Write the pages of docs/theory from the theorem files: ``python docs/pages.py``.

A page is made from the Statement of a theorem file, its figure is drawn by ``docs/figures.py`` under the page's name.
"""

from __future__ import annotations

from pathlib import Path

from fedconvex.theorems import THEOREMS
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


def page(statement: Statement, theorems: list[Theorem]) -> str:
    """Return the page of a statement with its variants."""
    parts = [
        f"# {statement.title}",
        f"`fedconvex.theorems.{theorems[0].home}`, checked by `fedconvex verify --theorem`:",
    ]
    parts.append("\n".join(f"- `{t.name}`: {t.says}" for t in theorems))
    for field, title in SECTIONS:
        text = getattr(statement, field).strip("\n")
        if field == "figure" and text:
            parts.append(f"![{_one_line(text)}](../figures/{statement.page}.svg)")
            parts.append(f"*{statement.caption.strip()}*")
        elif text:
            parts.append(f"## {title}")
            parts.append(f"```text\n{text}\n```" if field == "statement" else text)
    parts.append("## Where it is checked")
    parts.append("\n".join(f"- `{t.name}`: {', '.join(_instances(t))}." for t in theorems))
    return "\n\n".join(parts) + "\n"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _instances(theorem: Theorem) -> list[str]:
    """Return the names of the instances of its checks, each once."""
    instances: list[Instance] = [c.instance if isinstance(c, Check) else c for c in theorem.checks]
    return list(dict.fromkeys(i.name for i in instances))


def pages() -> dict[str, str]:
    """Return all pages by their names."""
    groups: dict[str, list[Theorem]] = {}
    for theorem in THEOREMS.values():
        if theorem.statement.page:
            groups.setdefault(theorem.statement.page, []).append(theorem)
    return {name: page(group[0].statement, group) for name, group in groups.items()}


if __name__ == "__main__":
    for name, text in pages().items():
        (FOLDER / f"{name}.md").write_text(text)
