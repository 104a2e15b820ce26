"""Packages whose names are loaded when they are first used."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any


def homes(file: str | Path) -> dict[str, str]:
    """Return the modules of the names that a package's file imports for type checkers."""
    import ast

    imports = [node for node in ast.walk(ast.parse(Path(file).read_bytes())) if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names if node.level == 0}


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package whose file imports its names under ``if TYPE_CHECKING:``.

    What type checkers read is read here once more, so every name is listed in one place.
    """
    home = homes(file)

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home[name]), name)
        vars(import_module(package))[name] = value
        return value

    return load, lambda: sorted({*vars(import_module(package)), *home})


def modules_in(path: Sequence[str]) -> list[str]:
    """Return the modules and packages in a package's folders whose names begin without an underscore."""
    from pkgutil import iter_modules

    return [info.name for info in iter_modules(path) if not info.name.startswith("_")]


def listed(folder: str) -> dict[str, list[str]]:
    """Return what the modules and packages in a folder name in ``__all__``; sources are read, nothing is imported."""
    found = {}
    for module in modules_in([folder]):
        path = Path(folder, module)
        text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
        names = re.search(r"^__all__ = \[(.*?)\]", text, re.M | re.S)
        if names is not None:
            found[module] = re.findall(r'"(\w+)"', names[1])
    return found


def where(name: str, folder: str) -> str:
    """Return where a public name lives, or one much like it, as the end of a message: "" if there is none."""
    from fedconvex._check import nearest

    homes = {one: f"fedconvex.{module}.{one}" for module, names in listed(folder).items() for one in names}
    if name in homes:
        return f": it is {homes[name]}"
    meant = nearest(name, homes)[len("did you mean ") : -1]
    return f": did you mean {homes[meant]}?" if meant else ""


class Moved:
    """Imports of modules by the names that they had: the module itself, where it stands now."""

    def __init__(self, homes: Callable[[], dict[str, str]]) -> None:
        self._homes = homes

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return how to import a module that was moved."""
        mine = fullname.startswith("fedconvex.") and not fullname.startswith("fedconvex.families")
        loader: Any = self  # no `Loader`: importing that class takes longer than all else here
        return ModuleSpec(fullname, loader) if mine and fullname in self._homes() else None

    def create_module(self, spec: ModuleSpec) -> Any:
        """Return the module where it stands now; what it says of itself stays."""
        module = import_module(self._homes()[spec.name])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: Any) -> None:
        """Do nothing: it has been executed."""
        module.__spec__ = module.__spec__.loader_state
