"""Formulas on the pages of theorems: written as in a letter, they are set as formulas.

``sigma^2`` becomes σ with a raised 2, ``x_i`` an x with a lowered i, ``<=`` a ≤. The sources stay text, which
terminals, tests and searches read.
"""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx

SMALL = "alpha beta gamma delta eps epsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau phi chi psi omega"
LARGE = "Gamma Delta Theta Lambda Pi Sigma Phi Psi Omega"
SIGNS = {
    **dict(zip(SMALL.split(), "αβγδεεζηθκλμνξπρστφχψω", strict=True)),
    **dict(zip(LARGE.split(), "ΓΔΘΛΠΣΦΨΩ", strict=True)),
    **dict(zip(["<->", "<=", ">=", "!=", "->", "<-", "sqrt"], "↔≤≥≠→←√", strict=True)),
}
WORD = re.compile(
    rf"(?<![A-Za-z])(?:{'|'.join(SMALL.split() + LARGE.split())})(?![A-Za-z]|-(?!smooth|strongly))"
    r"|<->|<=|>=|!=|->|<-|\bsqrt(?=\()"
)
GRADIENT = re.compile(r"\bgrad (?=[A-Za-z](?:\b|_))")
SUM = re.compile(r"\bsum(?=_| [A-Za-z](?:hat|bar)?_| \([a-z]_| ‖)")
BASE = re.compile(r"(?:(?<![A-Za-z])(?:[A-Za-z]|max|min|sup|inf|mean|[A-Za-z](?:bar|hat))|[α-ωΑ-Ω∇Σ)\]}‖*'⁺])$")
SCRIPT = re.compile(
    r"([_^])(\{[^{}]*\}|\([^()]*\)|-\([^()]*\)|-?[A-Za-z0-9α-ωΑ-Ω°]+(?:,[a-z0-9](?![A-Za-z0-9]))?|[*+])"
)


def typeset(text: str) -> list[tuple[str, str]]:
    """Return the parts of a text, each with "", "^" (raised) or "_" (lowered).

    >>> typeset("sigma^2/M <= x_i^{t,k}")
    [('', 'σ'), ('^', '2'), ('', '/M ≤ x'), ('_', 'i'), ('^', 't,k')]
    >>> typeset("mu-strongly convex, W = sum w_r, q^-(r+1)")
    [('', 'μ-strongly convex, W = Σ w'), ('_', 'r'), ('', ', q'), ('^', '-(r+1)')]
    >>> typeset("local_steps of grad F_i, (a)^(1/3)")
    [('', 'local_steps of ∇F'), ('_', 'i'), ('', ', (a)'), ('^', '1/3')]
    """
    text = SUM.sub("Σ", GRADIENT.sub("∇", WORD.sub(lambda found: SIGNS[found[0]], text)))
    parts, at, after = [], 0, -1
    for found in SCRIPT.finditer(text):
        if found.start() != after and not BASE.search(text[at : found.start()]):
            continue
        if found.start() > at:
            parts.append(("", text[at : found.start()]))
        inner = found[2]
        parts.append((found[1], inner[1:-1] if inner[0] in "{(" else inner))
        at = after = found.end()
    return [*parts, ("", text[at:])] if text[at:] else parts


def _nodes(text: str) -> list[nodes.Node]:
    kinds = {"": nodes.Text, "^": lambda t: nodes.superscript("", t), "_": lambda t: nodes.subscript("", t)}
    return [kinds[kind](part) for kind, part in typeset(text)]


def _block(text: str) -> list[nodes.Node]:
    """Return a block of formulas with its stressed words, which stand between asterisks in the sources."""
    parts = re.split(r"\*([a-z]{2,})\*", text)
    return [n for i, part in enumerate(parts) for n in ([nodes.emphasis("", part)] if i % 2 else _nodes(part))]


def set_formulas(app: Sphinx, doctree: nodes.document) -> None:
    """Set the formulas of a page of theorems, in blocks and in sentences, but not in code."""
    if not app.env.current_document.docname.startswith("docs/theory/"):
        return
    for block in list(doctree.findall(nodes.literal_block)):
        if block.get("language") == "text":
            block.replace_self(
                nodes.container("", nodes.paragraph("", "", *_block(block.astext())), classes=["formula"])
            )
    for text in list(doctree.findall(nodes.Text)):
        code = (nodes.literal, nodes.literal_block, nodes.subscript, nodes.superscript, nodes.raw, nodes.comment)
        if isinstance(text.parent, code) or not re.search(r"[_^<>-]|[a-zA-Z]{2}", text):
            continue
        parts = _nodes(str(text))
        if len(parts) != 1 or parts[0].astext() != text.astext():
            at = text.parent.index(text)
            text.parent[at : at + 1] = parts


def setup(app: Sphinx) -> None:
    """Set formulas before names in code become links."""
    app.connect("doctree-read", set_formulas, priority=400)
