"""Write docs/api.md, the list of public names, and tests/public_api.txt, their signatures: ``python docs/api.py``.

Public is what these modules name in ``__all__``: the packages and modules at the top of fedconvex, and the files of
theory and theorems, those of families by the names of the facades. Everything else is private.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from textwrap import dedent
from typing import Any

import fedconvex
from fedconvex.families import moved

PAGE = Path(__file__).resolve().parent / "api.md"
FROZEN = PAGE.parents[1] / "tests" / "public_api.txt"
SECTION = re.compile(r"^(?:Parameters|Attributes)\n-+\n(.*?)(?=\n\n[A-Z][a-z]+(?: [A-Z][a-z]+)?\n-+|\Z)", re.M | re.S)
INTERNAL = ("cli", "families", "kernels", "__main__")
DEEPER = ("engines.flower", "theory.moments", "theory.worst_case")
OF_FILES = ("theory", "theorems")
MAKERS = ("__new__", "__init__", "__post_init__")
CHECKS = ("fedconvex._check", "fedconvex.theory.bound")  # modules of functions that check arguments of others
HEAD = """# Public names

These names keep their place and their meaning from version to version; one that is to go warns for two minor versions
before ([releasing](../RELEASING.md)). Everything else is private and may change at any time, with or without an
underscore. `python docs/api.py` writes this page from the modules' `__all__`.
"""


def is_public(inner: str) -> bool:
    """Whether a module, named from below fedconvex, may have public names."""
    home = inner.rpartition(".")[0]
    return not inner.startswith((*INTERNAL, "_")) and (home == "" or inner in DEEPER or home in OF_FILES)


@cache
def public_modules() -> dict[str, Any]:
    """Return the modules with public names, by the names that users import them by; the nearest to the top first."""
    found = {"": fedconvex}
    for info in walk_packages(fedconvex.__path__, "fedconvex."):
        inner = info.name.removeprefix("fedconvex.")
        if is_public(inner):
            found[inner] = import_module(info.name)
    for old, new in moved().items():
        inner = old.removeprefix("fedconvex.")
        if inner.rpartition(".")[0] in OF_FILES:
            found[inner] = import_module(new)
    named = {inner: module for inner, module in found.items() if hasattr(module, "__all__")}
    return dict(sorted(named.items(), key=lambda pair: (pair[0].count(".") + bool(pair[0]), pair[0])))


def public_names() -> dict[str, dict[str, Any]]:
    """Return classes and functions by module and name, each once: where it is nearest to the top."""
    seen: set[int] = set()
    out: dict[str, dict[str, Any]] = {}
    for inner, module in public_modules().items():
        for name in sorted(module.__all__):
            thing = getattr(module, name)
            if callable(thing) and id(thing) not in seen:
                seen.add(id(thing))
                out.setdefault(inner, {})[name] = thing
    return out


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for inner, things in public_names().items():
        rows = [f"| `{name}` | {_says(inner, name, thing)} |" for name, thing in things.items()]
        parts.append(
            "\n".join([f"## `{'.'.join(['fedconvex', inner]).rstrip('.')}`\n", "| name | |", "|---|---|", *rows, ""])
        )
    return "\n".join(parts)


def _says(inner: str, name: str, thing: Any) -> str:
    """Return the first sentence of a docstring; of an alias of a type, which has none, its module's line."""
    text = (inspect.getdoc(thing) or "") if is_documented(thing) else _line_of_module(inner, name)
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def is_documented(thing: Any) -> bool:
    """Whether a thing has a docstring of its own: classes and functions, but not aliases of types."""
    return isinstance(thing, type) or inspect.isroutine(thing)


def _line_of_module(inner: str, name: str) -> str:
    """Return what the module's docstring says in a line that begins with "* `name`: ", or nothing."""
    text = inspect.getdoc(public_modules()[inner]) or ""
    found = re.search(rf"^\* `{name}`: (.*?)(?=\n\*|\n\n|\Z)", text, re.M | re.S)
    return found[1] if found else ""


def arguments(thing: Any) -> list[str]:
    """Return the names of what a thing is given, "=" behind those with a default; the members of an Enum."""
    if isinstance(thing, type) and issubclass(thing, Enum):
        return list(thing.__members__)
    try:
        given = (
            inspect.signature(thing).parameters.values() if inspect.isroutine(thing) or isinstance(thing, type) else ()
        )
    except ValueError:  # a class of C
        given = ()
    named = [p for p in given if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    at = next((i for i, p in enumerate(named) if p.kind is p.KEYWORD_ONLY), len(named))
    out = [p.name + "=" * (p.default is not p.empty) for p in named]
    return [*out[:at], *(["*"] if at < len(named) else []), *out[at:]]


def lacks(thing: Any, inner: str = "", name: str = "") -> list[str]:
    """Return what a docstring lacks: parameters that it does not describe, what is returned or raised, an example.

    An alias of a type, found as ``inner.name``, must have a line in its module's docstring, and an example there.
    """
    if not is_documented(thing):
        text = inspect.getdoc(public_modules()[inner]) or ""
        return ["returns"] * (not _line_of_module(inner, name)) + ["example"] * (">>>" not in text)
    text = inspect.getdoc(thing) or ""
    heads = [
        line.partition(" : ")[0] for part in SECTION.findall(text) for line in part.splitlines() if line[:1] != " "
    ]
    said = set(re.findall(r"\w+", " ".join(heads)))
    given = set() if isinstance(thing, type) and issubclass(thing, Enum) else {n.rstrip("=") for n in arguments(thing)}
    returns = (
        isinstance(thing, type) or re.match(r"(Return|Yield)", text) or re.search(r"^(Return|Yield)s\n-", text, re.M)
    )
    found = {f"parameter {name}": name in said for name in sorted(given - {"*"})}
    found |= {"returns": bool(returns), "example": ">>>" in text}
    found["raises"] = (
        "Raises\n---" in text or _as_another(thing, text) or not given or not any(refuses(f) for f in _makers(thing))
    )
    return [what for what, there in found.items() if not there]


def _as_another(thing: Any, text: str) -> bool:
    """Whether arguments, and so their errors, are said to be those of a function of the same module that tells them."""
    names = re.findall(r"As for `(\w+)`", text)
    return any("Raises\n---" in (inspect.getdoc(getattr(inspect.getmodule(thing), n, None)) or "") for n in names)


def _makers(thing: Any) -> Iterator[Callable[..., Any]]:
    """Yield a function, or those of the package that make an instance of a class."""
    if not isinstance(thing, type):
        yield thing
        return
    own = [vars(c) for c in thing.__mro__ if c.__module__.startswith("fedconvex")]
    found = [inspect.unwrap(names[m]) for names in own for m in MAKERS if inspect.isroutine(names.get(m))]
    yield from (f for f in found if f.__module__.startswith("fedconvex") and "<" not in f.__code__.co_filename)


def silent_methods(thing: Any) -> list[str]:
    """Return the methods of a class whose docstring has sections, but none for the errors that they raise."""
    found = {name: inspect.unwrap(getattr(f, "__func__", f)) for name, f in vars(thing).items() if name[:1] != "_"}
    own = {n: f for n, f in found.items() if inspect.isfunction(f) and f.__module__.startswith("fedconvex")}
    told = {n: inspect.getdoc(f) or "" for n, f in own.items()}
    return [n for n, f in own.items() if "\n---" in told[n] and "Raises\n---" not in told[n] and refuses(f)]


def refuses(f: Callable[..., Any], within: int = 1) -> bool:
    """Whether a function raises, itself or in a check of its arguments: of `CHECKS`, or private in its own module."""
    f = inspect.unwrap(f)
    return _refuses(f.__module__, dedent(inspect.getsource(f)), within)


@cache
def _refuses(home: str, source: str, within: int) -> bool:
    nodes = list(ast.walk(ast.parse(source)))
    if any(isinstance(n, ast.Raise) and n.exc for n in nodes):
        return True
    names = {n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    called = [inspect.unwrap(g) for g in map(vars(sys.modules[home]).get, names) if inspect.isfunction(g)]
    return any(
        (g.__module__ in CHECKS and refuses(g, within))
        or (within > 0 and g.__module__ == home and g.__name__.startswith("_") and refuses(g, within - 1))
        for g in called
    )


def frozen() -> str:
    """Return a line for each public name: its arguments, and what its docstring lacks."""
    lines = []
    for inner, things in public_names().items():
        for name, thing in things.items():
            full = ".".join(filter(None, ["fedconvex", inner, name]))
            less = lacks(thing, inner, name)
            lines.append(f"{full}({', '.join(arguments(thing))})" + (f"  # lacks {', '.join(less)}" if less else ""))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    FROZEN.write_text(frozen(), encoding="utf-8")
