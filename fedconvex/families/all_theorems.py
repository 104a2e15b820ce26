"""All theorems: those of the core, and those that families declare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType

from fedconvex._check import bad, wrong_type
from fedconvex.families import constant, loaded
from fedconvex.theorems.core import CORE, FOUND
from fedconvex.theorems.parts.theorem import Theorem
from fedconvex.theorems.parts.tiny import with_sharp


def collected(modules: Iterable[ModuleType]) -> dict[str, Theorem]:
    """Return the theorems of some files by their names.

    Raises
    ------
    TypeError, ValueError
        If a file has no tuple of theorems, two theorems have one name, or a check has no method.
    """
    out: dict[str, Theorem] = {}
    for module in modules:
        for theorem in constant(module.__name__, "THEOREMS", tuple):
            if not isinstance(theorem, Theorem):
                raise wrong_type(f"{module.__name__}: THEOREMS", "be a tuple of theorems", type(theorem).__name__)
            if theorem.name in out:
                raise bad(f"{module.__name__}: Theorem.name", "be its own", f"{theorem.name!r}, another theorem's")
            if theorem.method is None and any(getattr(check, "method", None) is None for check in theorem.checks):
                cure = "give it method=fixed_step(1.0), or another rule"
                raise bad(f"Theorem {theorem.name}: checks", "have a method", "one without", cure)
            out[theorem.name] = with_sharp(theorem, FOUND)
    return out


THEOREMS: Mapping[str, Theorem] = collected((*CORE, *loaded("theorems")))
