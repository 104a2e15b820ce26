"""Families: folders that hold all that only one family of problems needs, each declared by its `family.py`.

Nothing of the core imports a family: where a core package lists public names of one, they are looked up when they are
used. A new family is a new folder, and a line in `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

__all__ = ["FAMILIES", "Family", "Option", "constant", "declared", "loaded", "moved"]

FAMILIES = ("multitask", "boosting", "survival")


class Option(NamedTuple):
    """An option of ``solve`` that only the methods of a family have: one of some words, or a whole number above 0."""

    name: str
    help: str
    words: tuple[str, ...] = ()


class Family(NamedTuple):
    """What a family declares; files are named from its folder.

    Attributes
    ----------
    theorems : tuple of str
        Files with a constant ``THEOREMS``.
    experiments : tuple of str
        Files with a constant ``EXPERIMENT``.
    command : str
        File with their part of ``solve``: ``check(args)``, which refuses what means nothing for these methods, and
        ``solved(args)``.
    options : tuple of Option
        Of ``solve``.
    homes : mapping
        Modules as they were called before they moved here.
    """

    theorems: tuple[str, ...] = ()
    experiments: tuple[str, ...] = ()
    command: str = ""
    options: tuple[Option, ...] = ()
    homes: Mapping[str, str] = {}


def declared() -> dict[str, Family]:
    """Return what families declare, by their names."""
    return {name: constant(f"{__name__}.{name}.family", "FAMILY", Family) for name in FAMILIES}


def constant(module: str, name: str, kind: type) -> Any:
    """Return the constant that a module must have, an instance of some class.

    Raises
    ------
    TypeError
        If it is missing, or something else.
    ModuleNotFoundError
        If there is no such module.
    """
    try:
        found = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        if not (error.name and f"{module}.".startswith(f"{error.name}.")):  # what it imports is missing
            raise
        text = f"{name} must be in a file of its own; got no {module}: add it, or take its name out of the list"
        raise ModuleNotFoundError(text, name=error.name) from None
    if type(found) is not kind:
        cure = f"write {name} = {'(Theorem(...),)' if kind is tuple else f'{kind.__name__}(...)'}"
        got = "none" if found is None else type(found).__name__
        raise TypeError(f"{module}: {name} must be a {kind.__name__}; got {got}: {cure}")
    return found


def loaded(kind: str) -> list[Any]:
    """Return the files of all families of one kind: "theorems" or "experiments"."""
    found = declared().items()
    return [import_module(f"{__name__}.{name}.{file}") for name, family in found for file in getattr(family, kind)]


def moved() -> dict[str, str]:
    """Return where modules stand now, by what they were called."""
    return {
        f"fedconvex.{old}": f"{__name__}.{name}.{new}"
        for name, family in declared().items()
        for old, new in family.homes.items()
    }
