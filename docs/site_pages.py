"""Pages of the site that are written when it is built, and links of pages as they are on the site."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import api
from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
REFERENCE = DOCS / "reference"
EXAMPLE = re.compile(r"\]\((?:\.\./)*(?:\.\./|docs/|)examples/(plot_\w+)\.py\)")
FOLDERS = {  # of the repository, by what shows them on the site
    "examples/": "gallery/index.rst",
    "docs/theory/": "theory/index.md",
    "theory/": "theory/index.md",
}
UNSHOWN = re.compile(r"\[([^]]*)\]\(docs/additions/(?:[^)]*/)?\)")  # folders
README = "<!-- the rest of README.md -->\n"
LINK = re.compile(r"\]\((?!https?:|#|\.\./)(docs/)?([^)\s]+)\)")
START = """<!doctype html><meta charset="utf-8"><title>fedconvex</title>
<meta http-equiv="refresh" content="0; url=docs/index.html"><a href="docs/index.html">fedconvex</a>
"""


def slug(title: str) -> str:
    """Return the anchor of a heading, as it is made on the web."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def rooms() -> dict[str, dict[str, list[str]]]:
    """Return public names by room and module."""
    found: dict[str, dict[str, list[str]]] = {}
    for inner, things in api.public_names().items():
        room = ".".join(filter(None, ["fedconvex", inner.partition(".")[0]]))
        found.setdefault(room, {})[".".join(filter(None, ["fedconvex", inner]))] = list(things)
    return found


def _heading(text: str, line: str) -> list[str]:
    return [text, line * len(text), ""]


def _says(module: object) -> str:
    """Return the first paragraph of a module's docstring, as text."""
    return re.sub(r"([*|_\\])", r"\\\1", " ".join((inspect.getdoc(module) or "").split("\n\n")[0].split()))


def _entries(home: str, names: list[str], things: dict[str, object]) -> list[str]:
    lines = [".. currentmodule:: " + home, "", ".. autosummary::", "", *(f"   {name}" for name in names), ""]
    for name in names:
        kind = "autoclass" if isinstance(things[name], type) else "autofunction"
        lines += [f".. {kind}:: {name}", *(["   :members:"] if kind == "autoclass" else []), ""]
    return lines


def reference() -> dict[str, str]:
    """Return the pages of public names by their files' names: one for each room, and one that lists the rooms."""
    modules, names, pages = api.public_modules(), api.public_names(), {}
    for room, homes in rooms().items():
        lines = [":tocdepth: 2", "", *_heading(f"``{room}``", "=")]
        for home, members in homes.items():
            inner = home.removeprefix("fedconvex").lstrip(".")
            lines += _heading(f"``{home}``", "-") if home != room else []
            lines += [_says(modules[inner]), "", *_entries(home, members, names[inner])]
        pages[room] = "\n".join(lines)
    tree = [".. toctree::", "   :maxdepth: 1", "", *(f"   {room}" for room in pages)]
    top = [*_heading("Reference", "="), "Every public name, by the package or module from which it is imported.", ""]
    return {"index": "\n".join([*top, *tree, ""]), **pages}


def write_reference(app: Sphinx) -> None:
    """Write the pages of public names where they have changed."""
    REFERENCE.mkdir(exist_ok=True)
    for name, text in reference().items():
        file = REFERENCE / f"{name}.rst"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def rest_of_readme() -> str:
    """Return what the README says below its three doors, with links as they are from docs/."""
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    text = text[text.index("## In Python") :]
    return LINK.sub(lambda found: f"]({found[2]})" if found[1] else f"](../{found[2]})", text)


def relink(app: Sphinx, docname: str, source: list[str]) -> None:
    """Lead links to examples and to folders to the pages that show them."""
    up = "../" * docname.count("/")
    text = source[0].replace(README, rest_of_readme()) if README in source[0] else source[0]
    text = UNSHOWN.sub(r"\1", EXAMPLE.sub(rf"]({up}docs/gallery/\1.rst)", text))
    for folder, page in FOLDERS.items():
        text = re.sub(rf"\]\((?:\.\./)*{folder}\)", f"]({up}docs/{page})", text)
    source[0] = text


def write_start(app: Sphinx, failed: Exception | None) -> None:
    """Lead from the top of the site to its first page."""
    if failed is None and app.builder.format == "html":
        (Path(app.outdir) / "index.html").write_text(START, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Connect what is above."""
    app.connect("builder-inited", write_reference)
    app.connect("source-read", relink)
    app.connect("build-finished", write_start)
