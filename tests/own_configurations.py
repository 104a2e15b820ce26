"""Configurations that methods' own tests declare: ``CONTRACT = {"Name": Name(...), "Name batches": Name(...)}``.

With these a new method is held to the contract, asked for over sites, called by fuzzers and run by its name on the
command line; nobody else lists it. A file with such a line imports none of the tests that read it.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from importlib import import_module
from pathlib import Path
from typing import Any


@functools.cache
def declared() -> dict[str, Any]:
    """Configurations for problems of one model, by name, in the order of the files."""
    files = sorted(Path(__file__).parent.glob("test_*.py"))
    stems = [f.stem for f in files if re.search(r"^CONTRACT = ", f.read_text(encoding="utf-8"), re.MULTILINE)]
    return {name: method for stem in stems for name, method in import_module(stem).CONTRACT.items()}


def fields_of(configurations: dict[str, Any], cls: type) -> dict[str, Any]:
    """The fields of a class without a default, as in the first of these configurations that is one of it."""
    first = next(m for m in configurations.values() if type(m) is cls)
    needed = [f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING]
    return {name: getattr(first, name) for name in needed}
