"""Names on the site: which link where, in the project and outside of it."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import MISSING, Field, is_dataclass
from dataclasses import fields as dataclass_fields
from functools import cache
from pathlib import Path

import api
from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.util.nodes import make_refnode

IGNORED = "all"  # in types of parameters only names of the lists below are links
OUTSIDE = {
    "python": (
        "https://docs.python.org/3/",
        {
            "library/functions.html#{}": ("bool", "int", "float", "dict", "list", "tuple", "str", "bytes", "callable"),
            "library/stdtypes.html#{}": ("None", "set", "frozenset"),
            "library/exceptions.html#{}": ("ValueError", "TypeError", "RuntimeError", "KeyError", "OSError"),
            "library/pathlib.html#{}": ("pathlib.Path",),
            "library/collections.abc.html#{}": ("collections.abc.Mapping", "collections.abc.Sequence"),
        },
    ),
    "numpy": (
        "https://numpy.org/doc/stable/",
        {"reference/generated/{0}.html#{0}": ("numpy.ndarray",), "reference/random/generator.html#{}": (
            "numpy.random.Generator",)},
    ),
    "scipy": (
        "https://docs.scipy.org/doc/scipy/",
        {"reference/generated/{0}.html#{0}": ("scipy.sparse.csr_matrix", "scipy.sparse.csr_array")},
    ),
    "sklearn": (
        "https://scikit-learn.org/stable/",
        {"modules/generated/{0}.html#{0}": ("sklearn.base.BaseEstimator", "sklearn.pipeline.Pipeline")},
    ),
    "pandas": ("https://pandas.pydata.org/docs/", {"reference/api/{0}.html#{0}": ("pandas.DataFrame",)}),
}  # fmt: skip
SHORT = {
    "array": "numpy.ndarray",
    "arrays": "numpy.ndarray",
    "path": "pathlib.Path",
    "mapping": "collections.abc.Mapping",
    "sequence": "collections.abc.Sequence",
    "DataFrame": "pandas.DataFrame",
}


@cache
def homes() -> dict[str, str]:
    """Return public names with the full names that their entries have; names that two modules give are left out."""
    full = [
        (name, ".".join(filter(None, ["fedconvex", inner, name])))
        for inner, things in api.public_names().items()
        for name in things
    ]
    often = Counter(name for name, _ in full)
    return {name: whole for name, whole in full if often[name] == 1}


def aliases() -> dict[str, str]:
    """Return what words in types of parameters stand for."""
    return homes() | SHORT


def inventories(folder: Path) -> dict[str, tuple[str, str]]:
    """Write an inventory of the names of each other project that are linked, and return Sphinx's mapping of them."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for project, (address, places) in OUTSIDE.items():
        lines = [f"{name} py:class 1 {place.format(name)} -" for place, names in places.items() for name in names]
        head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
        file = folder / f"{project}.inv"
        more = "# The remainder of this file is compressed using zlib.\n"
        file.write_bytes((head + more).encode() + zlib.compress(("\n".join(lines) + "\n").encode()))
        found[project] = (address, str(file))
    return found


def link_code(app: Sphinx, doctree: nodes.document) -> None:
    """Make code that is a public name, or a call of one, a link to its entry."""
    for literal in list(doctree.findall(nodes.literal)):
        inside = literal.parent
        while inside is not None and not isinstance(inside, (nodes.title, nodes.reference, pending_xref)):
            inside = inside.parent
        name = literal.astext().partition("(")[0].removeprefix("fedconvex.").rpartition(".")[2]
        if inside is None and name in homes():
            link = pending_xref(
                "", refdomain="py", reftype="obj", reftarget=homes()[name], refdoc=app.env.current_document.docname,
                refspecific=False, refwarn=False,
            )  # fmt: skip
            literal.replace_self(link)
            link += literal


def resolve(app: Sphinx, env: object, node: pending_xref, content: nodes.Element) -> nodes.Element | None:
    """Find a public name that is given without the module that it is in."""
    whole = homes().get(node.get("reftarget", ""))
    if node.get("refdomain") != "py" or whole is None:
        return None
    found = app.env.domains.python_domain.objects.get(whole)
    return found and make_refnode(app.builder, node["refdoc"], found.docname, found.node_id, content, whole)


def skip(app: Sphinx, what: str, name: str, thing: object, skipped: bool, options: object) -> bool | None:
    """Leave out fields of named tuples that say no more than their number, and what scikit-learn adds to estimators."""
    said = str(getattr(thing, "__doc__", ""))
    return True if said.startswith("Alias for field number") or name.endswith("_request") else None


def signature(app: Sphinx, what: str, name: str, thing: object, options: object, given: str, returns: str) -> object:
    """Show the settings of methods, whose constructors check what they are given, and what functions return."""
    answer = getattr(thing, "__annotations__", {}).get("return")
    if what in ("function", "method") and isinstance(answer, str) and answer in homes():
        return given, answer
    if what != "class" or given != "(*args, **given)" or not is_dataclass(thing):
        return None
    shown = [f.name if _required(f) else f"{f.name}=…" for f in dataclass_fields(thing) if f.init]
    return f"(*, {', '.join(shown)})" if shown else "()", returns


def _required(field: Field[object]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def setup(app: Sphinx) -> None:
    """Connect what is above."""
    app.connect("doctree-read", link_code)
    app.connect("missing-reference", resolve)
    app.connect("autodoc-skip-member", skip)
    app.connect("autodoc-process-signature", signature, priority=900)
