"""The scripts of docs/, which stand in no package."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def docs_script(name):
    """Return a script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
