"""Theorem files: text as data, pure bounds, pages of the documentation made from them."""

import dataclasses
import importlib.util
import inspect
import pkgutil
import sys
import types
import typing
from collections.abc import Mapping
from importlib import import_module

import numpy as np
import pytest

from fedconvex.constants import Constants
from fedconvex.families import FAMILIES
from fedconvex.theorems import THEOREMS, Setting
from fedconvex.theorems.parts.theorem import Check, Instance, Statement
from fedconvex.theory.bound import Bound
from tests.docs_scripts import DOCS, docs_script

NUMBERS = {int, float, bool, str, np.ndarray, type(None), typing.Any}


def is_number(kind):
    """A number, an array, a record of them, or an alternative of such."""
    if kind in NUMBERS or kind is Constants:
        return True
    if typing.get_origin(kind) in (typing.Union, types.UnionType, tuple, Mapping, dict):
        return all(is_number(k) for k in typing.get_args(kind))
    if dataclasses.is_dataclass(kind) or (inspect.isclass(kind) and issubclass(kind, tuple)):
        hints = typing.get_type_hints(kind)
        return bool(hints) and all(is_number(k) for k in hints.values())
    return False


def impure(bound):
    """Parameters of a bound that are neither Constants nor numbers."""
    hints = typing.get_type_hints(bound)
    assert hints.pop("return") is Bound
    assert set(hints) == set(inspect.signature(bound).parameters)
    return [name for name, kind in hints.items() if not is_number(kind)]


@pytest.mark.parametrize("name", THEOREMS)
def test_a_bound_takes_constants_and_numbers(name):
    assert THEOREMS[name].read is not None
    assert not impure(THEOREMS[name].bound)


def test_the_test_of_purity_can_fail():
    from fedconvex.problems import Problem

    def bound(problem: Problem, step_size: float) -> Bound: ...

    assert impure(bound) == ["problem"]


@pytest.mark.parametrize("name", THEOREMS)
def test_a_theorem_says_all_that_reports_and_pages_show(name):
    theorem = THEOREMS[name]
    assert theorem.title
    assert theorem.says.endswith(".")
    assert theorem.loose.endswith(".")
    assert theorem.method is not None
    assert {type(c) for c in theorem.checks} <= {Instance, Check}
    assert len(theorem.checks) >= 2
    for field in ("page", "title", "setting", "assumptions", "statement", "source", "differs", "meaning", "loose"):
        assert getattr(theorem.statement, field).strip(), field
    assert bool(theorem.statement.figure) == bool(theorem.statement.caption)


def test_every_file_of_theorems_is_exported():
    folders = ["fedconvex.theorems", *(f"fedconvex.families.{family}.theorems" for family in FAMILIES)]
    folders = [name for name in folders if importlib.util.find_spec(name)]
    files = [f"{f}.{m.name}" for f in folders for m in pkgutil.iter_modules(import_module(f).__path__) if not m.ispkg]
    found = {t.name for f in files for t in getattr(import_module(f), "THEOREMS", ())}
    assert found == set(THEOREMS), "list the file in theorems/core.py, or in the family.py of its family"


def test_pages_are_up_to_date():
    """Run ``python docs/pages.py`` where this fails."""
    pages = docs_script("pages").pages()
    assert len(pages) >= 10
    files = {name: DOCS / "theory" / f"{name}.md" for name in pages}
    stale = [name for name, file in files.items() if not file.exists() or file.read_text() != pages[name]]
    assert not stale, "run python docs/pages.py"


def test_pages_have_their_figures():
    for theorem in THEOREMS.values():
        if theorem.statement.figure:
            assert (DOCS / "figures" / f"{theorem.statement.page}.svg").exists(), theorem.statement.page


def test_text_is_data_and_not_docstrings():
    """Under ``python -OO`` there are no docstrings; statements stand in fields."""
    for theorem in THEOREMS.values():
        assert isinstance(theorem.statement, Statement)
        home = import_module(theorem.bound.__module__)
        assert theorem.statement.statement not in (inspect.getdoc(home) or "")


def test_a_row_of_a_method_has_the_paper_of_the_first_brackets(monkeypatch):
    """Brackets within included, and nothing after them: the title may go on."""
    pages = docs_script("pages")
    module = types.ModuleType("mine", "Mine (Who, Journal 4 (1964), 1-17): what it does (well).\n\n1. server: start")
    monkeypatch.setitem(sys.modules, "mine", module)
    mine = type("Mine", (), {"__doc__": "Steps of some kind. More.", "__module__": "mine"})
    assert pages._row(mine) == "| `Mine` | Steps of some kind | Who, Journal 4 (1964), 1-17 |\n"
    module.__doc__ = "Mine.\n\n1. server: start (here)"
    assert pages._row(mine) == "| `Mine` | Steps of some kind |  |\n"


def test_a_reading_that_is_none_is_refused():
    theorem = THEOREMS["svrg"]
    with pytest.raises(TypeError, match=r"Theorem svrg: read must return a Reading; got dict: write Reading"):
        theorem._replace(read=lambda s: {}).at(setting_of(theorem, theorem.checks[0]))


def setting_of(theorem, check):
    """A theorem's check as a setting, at the model zero."""
    problem = (check.instance if isinstance(check, Check) else check).make()
    method = theorem.method.make(theorem, problem, np.zeros(problem.model_shape), 3)
    return Setting(problem, method, 3, np.zeros(problem.model_shape))
