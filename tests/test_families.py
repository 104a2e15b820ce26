"""What families declare is all that they have, and modules are found by the names they had before they moved."""

import ast
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from fedconvex import _moved, families, methods
from fedconvex.families.all_theorems import collected
from fedconvex.papers import EXPERIMENTS
from fedconvex.registry import methods as registered
from fedconvex.theorems import THEOREMS

HOMES = _moved.moved()
DECLARED = families.declared()
each_family = pytest.mark.parametrize("name", DECLARED)


@pytest.mark.parametrize("old", HOMES)
def test_modules_are_found_by_the_names_they_had(old):
    """Whoever imported a file of a family from its former place gets the same objects."""
    module = import_module(old)
    assert module is import_module(HOMES[old])
    assert module.__name__ == module.__spec__.name == HOMES[old]


def test_what_never_existed_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'fedconvex\.theorems\.boost'"):
        import_module("fedconvex.theorems.boost")


@each_family
@pytest.mark.parametrize(("kind", "constant"), [("theorems", "THEOREMS"), ("experiments", "EXPERIMENT")])
def test_files_of_a_family_are_declared(name, kind, constant):
    home = Path(import_module(f"fedconvex.families.{name}").__file__).parent
    starts = (f"\n{constant} = ", f"\n{constant}: ")
    files = [f for f in home.rglob("*.py") if any(start in f.read_text() for start in starts)]
    found = {".".join(f.relative_to(home).with_suffix("").parts).removesuffix(".__init__") for f in files}
    assert found == {*getattr(DECLARED[name], kind)}


@each_family
def test_methods_of_a_family_are_public_and_on_the_command_line(name):
    """All but mini-batch SGD and SDCA, which are there to be compared with."""
    home = Path(import_module(f"fedconvex.families.{name}").__file__).parent
    defined = {n.name for f in home.glob("methods/*.py") for n in ast.parse(f.read_text()).body
               if isinstance(n, ast.ClassDef) and hasattr(methods, n.name)}  # fmt: skip
    assert defined - {"MiniBatchSGD", "MiniBatchSDCA"} == {m.cls for m in registered().values() if m.family == name}


def test_theorems_and_experiments_of_families_are_among_all():
    assert {"adaboost", "boosting-descent", "fedmultiboost", "mocha-gap", "mocha-sigma", "joint-mocha"} < {*THEOREMS}
    assert {"multiboost", "boosting-guises", "mocha-har", "har"} < {*EXPERIMENTS}


def test_a_family_without_its_folder_is_named(monkeypatch):
    monkeypatch.setattr(families, "FAMILIES", ("multitask", "kernelised"))
    with pytest.raises(ModuleNotFoundError, match=r"FAMILY must be in a file of its own; got no .*\.kernelised\.fam"):
        families.declared()


def test_a_constant_that_a_file_lacks_is_named():
    with pytest.raises(TypeError, match=r"fedconvex\.registry: FAMILY must be a Family; got none: write FAMILY = Fam"):
        families.constant("fedconvex.registry", "FAMILY", families.Family)
    with pytest.raises(TypeError, match=r"Thing: THEOREMS must be a tuple; got Theorem: write THEOREMS = \(Theorem"):
        collected([module_of(THEOREMS["svrg"])])
    with pytest.raises(TypeError, match=r"Thing: THEOREMS must be a tuple of theorems; got int"):
        collected([module_of((1,))])


def test_theorems_of_one_name_and_checks_without_a_method_are_refused():
    svrg = THEOREMS["svrg"]
    with pytest.raises(ValueError, match=r"Thing: Theorem.name must be its own; got 'svrg', another theorem's"):
        collected([module_of((svrg, svrg))])
    with pytest.raises(ValueError, match=r"Theorem svrg: checks must have a method; got one without: give it method="):
        collected([module_of((svrg._replace(method=None),))])


def module_of(theorems):
    """A module of such theorems, to be imported by its name."""
    sys.modules["Thing"] = ModuleType("Thing")
    sys.modules["Thing"].THEOREMS = theorems
    return sys.modules["Thing"]
