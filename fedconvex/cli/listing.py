"""The command ``fedconvex list``."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from fedconvex.cli import reproduce
from fedconvex.cli.output import fill
from fedconvex.cli.parser import OK
from fedconvex.registry import losses, methods


def add_parser(commands: Any) -> None:
    """Add the command."""
    commands.add_parser("list").set_defaults(command=_list)


def _list(args: argparse.Namespace) -> int:
    """Print what the modules offer, as they describe it themselves."""
    from fedconvex.datasets.bundled import BUNDLED

    flags: dict[str, list[str]] = {}  # names on the command line; one class may have several
    for word, name in losses().items():
        flags.setdefault(name, []).append(f"--loss {word}")
    for word, method in methods().items():
        flags.setdefault(method.cls, []).append(f"--method {word}")
    for title, package in (("Losses", "losses"), ("Methods", "methods"), ("Data", "datasets")):
        module = import_module(f"fedconvex.{package}")
        families: dict[str, list[str]] = {}  # by the module they live in
        for name in module.__all__:
            thing = getattr(module, name)
            if not (package == "datasets" and inspect.isclass(thing)):  # what loaders return
                families.setdefault(thing.__module__, []).append(name)
        print(title)
        for home, names in sorted(families.items(), key=lambda item: _is_part(module, item[1])):
            if len(families) > 1:
                print(fill(_first_line(import_module(home)), "  ", 4))
            for name in names:
                flag = f" [{', '.join(flags[name])}]" if name in flags else ""
                body = _first_line(getattr(module, name)) + flag
                print(fill(body, f"    {name:<21} ", 26))
        if package == "datasets":
            print(fill(f"Bundled sets, as DATA or for load_bundled: {', '.join(BUNDLED)}", "  ", 4))
        print()
    from fedconvex.theorems import THEOREMS

    print("Theorems, for fedconvex verify --theorem")
    wide = max(map(len, THEOREMS)) + 1
    for name, theorem in THEOREMS.items():
        print(fill(theorem.title, f"    {name:<{wide}}", wide + 4))
    from fedconvex.papers import EXPERIMENTS

    print("\nExperiments, for fedconvex reproduce")
    print("\n".join(reproduce.lines(EXPERIMENTS)))
    return OK


def _is_part(module: Any, names: Sequence[str]) -> bool:
    """Whether these are parts that methods are made of, not methods."""
    return module.__name__.endswith("methods") and not any(
        hasattr(getattr(module, n), part) for n in names for part in ("local", "round")
    )


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]
