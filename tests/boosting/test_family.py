"""What the family declares: its theorems, experiments and commands are found, and its modules by their old names."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

from fedconvex import families, methods
from fedconvex.families.boosting.family import FAMILY
from fedconvex.papers import EXPERIMENTS
from fedconvex.theorems import THEOREMS

HOMES = families.moved()


@pytest.mark.parametrize("old", HOMES)
def test_modules_are_found_by_the_names_they_had(old):
    """Whoever imported a file of the family from its former place gets the same objects."""
    module = import_module(old)
    assert module is import_module(HOMES[old])
    assert module.__name__ == module.__spec__.name == HOMES[old]


def test_what_never_existed_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'fedconvex\.theorems\.boost'"):
        import_module("fedconvex.theorems.boost")


def test_what_the_family_declares_is_all_there_is():
    home = Path(import_module("fedconvex.families.boosting").__file__).parent
    for kind, constant in (("theorems", "THEOREMS"), ("experiments", "EXPERIMENT")):
        files = [
            f for f in home.rglob("*.py") if f"\n{constant} = " in f.read_text() or f"\n{constant}: " in f.read_text()
        ]
        found = {".".join(f.relative_to(home).with_suffix("").parts).removesuffix(".__init__") for f in files}
        assert found == {*getattr(FAMILY, kind)}
    defined = {n.name for f in (home / "methods").glob("*.py") for n in ast.parse(f.read_text()).body
               if isinstance(n, ast.ClassDef) and hasattr(methods, n.name)}  # fmt: skip
    assert defined == {*FAMILY.methods.values()}
    assert {"multiboost", "guises"} & {*EXPERIMENTS}
    assert {"adaboost", "boosting-descent", "boosting-margins", "fedmultiboost"} < {*THEOREMS}
