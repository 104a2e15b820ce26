"""Docstrings as reStructuredText: formulas such as F* and |W| are text, and no markup."""

from __future__ import annotations

import re
from typing import Any

from numpydoc import xref
from sphinx.application import Sphinx

KEPT = re.compile(r"``.+?``|`[^`]+`_?|(?<![\w*])\*[A-Za-z][\w -]*\*(?![\w*])")  # code, names, words that are stressed
NAMES = re.compile(r"\*{0,2}\w+ : |\*\*?\w+$")
MARKS = re.compile(r"[*|]|(?<=\w)_(?!\w)")


def escaped(line: str) -> str:
    r"""Return a line of text without what would be taken for markup.

    >>> escaped("F* of `run`, |W| and *all* of coef_")
    'F\\* of `run`, \\|W\\| and *all* of coef\\_'
    """
    parts, at = [], 0
    for kept in KEPT.finditer(line):
        parts += [MARKS.sub(r"\\\g<0>", line[at : kept.start()]), kept[0]]
        at = kept.end()
    return "".join([*parts, MARKS.sub(r"\\\g<0>", line[at:])])


def escape(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Escape a docstring but for its examples and its blocks of code."""
    example, block = False, False
    for i, line in enumerate(lines):
        if line.strip() == "":
            example = False
            continue
        block = block and line.startswith(" ")
        example = example or line.lstrip().startswith(">>>")
        if not (example or block):
            name = NAMES.match(line)  # numpydoc escapes names of parameters itself
            lines[i] = name[0] + escaped(line[name.end() :]) if name else escaped(line)
        block = block or line.endswith("::")


def setup(app: Sphinx) -> None:
    """Escape before numpydoc reads, and leave its own links to other projects out."""
    xref.DEFAULT_LINKS.clear()
    app.connect("autodoc-process-docstring", escape, priority=400)
