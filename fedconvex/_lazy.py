"""Packages whose names are loaded when they are first used."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["attach"]


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package whose file imports its names under ``if TYPE_CHECKING:``.

    What type checkers read is read here once more, so every name is listed in one place.
    """
    imports = [node for node in ast.walk(ast.parse(Path(file).read_bytes())) if isinstance(node, ast.ImportFrom)]
    home = {alias.name: node.module for node in imports for alias in node.names if node.level == 0}

    def load(name: str) -> Any:
        if home.get(name) is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(str(home[name])), name)
        vars(import_module(package))[name] = value
        return value

    return load, lambda: sorted({*vars(import_module(package)), *home})
