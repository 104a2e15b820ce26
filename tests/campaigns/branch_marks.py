"""Which branches a bound takes: its functions with marks at every if, min, max, where and clip, told as they are used.

A branch is one side of an `if` or of a conditional expression, one entry of a `min` or `max`, one side of
`np.minimum`, `np.maximum` or `np.where`, one of the three parts of a `clip`. Of equal entries all are taken by a
minimum, which any of them could lower, and none by a maximum. Left out: what raises only, and what keeps a divisor
from being zero.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import numpy as np

from fedconvex.theorems import Theorem

__all__ = ["marked", "taken"]

HOMES = ("fedconvex.theorems.", "fedconvex.families.", "fedconvex.theory.")
PLAIN = {"require", "known_constants", "where_taken", "with_powers", "bad", "Bound", "Hypothesis", "known_scheme"}
TINY = 1e-100  # constants below it keep divisors from being zero
_TAKEN: list[set[str]] = []


@contextmanager
def taken() -> Iterator[set[str]]:
    """Collect the branches that marked bounds take."""
    _TAKEN.append(set())
    try:
        yield _TAKEN[-1]
    finally:
        _TAKEN.pop()


def _take(name: str) -> None:
    for found in _TAKEN:
        found.add(name)


# ---------------------------------------------------------------- what marks call


def _truth(sides: tuple[str, str], value: Any) -> bool:
    out = bool(value)
    _take(sides[0] if out else sides[1])
    return out


def _entry(entries: tuple[str, ...], function: Any, *values: Any) -> Any:
    """Return the minimum or maximum of numbers or arrays, of which every entry is a branch."""
    out, least = function(*values), "min" in function.__name__
    for i, name in enumerate(entries):
        others = [np.asarray(v, dtype=float) for j, v in enumerate(values) if j != i]
        mine = np.asarray(values[i], dtype=float)
        if np.any(np.all([mine <= v if least else mine > v for v in np.broadcast_arrays(*others)], axis=0)):
            _take(name)
    return out


def _side(sides: tuple[str, str], condition: Any, first: Any, second: Any) -> Any:
    for name, found in zip(sides, (np.any(condition), not np.all(condition)), strict=True):
        if found:
            _take(name)
    return np.where(condition, first, second)


def _part(parts: tuple[str, str, str], values: Any, low: Any, high: Any) -> Any:
    x = np.asarray(values, dtype=float)
    for name, found in zip(parts, (x < low, (low <= x) & (x <= high), x > high), strict=True):
        if np.any(found):
            _take(name)
    return np.clip(values, low, high)


MARKS = {"_truth_": _truth, "_entry_": _entry, "_side_": _side, "_part_": _part}


# ---------------------------------------------------------------- functions with marks


def marked(theorem: Theorem) -> tuple[Theorem, tuple[str, ...]]:
    """Return the theorem with marks in its bound, and the names of all branches."""
    names: dict[str, None] = {}
    made: dict[Any, Any] = {}
    bound = _marked(theorem.bound, names, made, {})
    return theorem._replace(bound=bound), tuple(names)


def _marked(function: Any, names: dict[str, None], made: dict[Any, Any], spaces: dict[str, dict[str, Any]]) -> Any:
    """Return a function with marks in it and in all that it calls."""
    if function in made:
        return made[function]
    module = sys.modules[function.__module__]
    space = spaces.setdefault(function.__module__, dict(vars(module)) | MARKS)
    try:
        tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(function))).body[0]
    except (OSError, SyntaxError, TypeError):
        return function
    if not isinstance(tree, ast.FunctionDef):
        return function
    tree.decorator_list = []
    own = {a.arg for a in (*tree.args.args, *tree.args.kwonlyargs)}
    called = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id not in own]
    tree = _Marks(function.__name__, names).visit(tree)
    text = compile(ast.fix_missing_locations(ast.Module([tree], [])), module.__name__, "exec")
    exec(text, space)
    made[function] = space[function.__name__]
    for name in called:
        other = vars(module).get(name)
        other = inspect.unwrap(other) if callable(other) and hasattr(other, "__wrapped__") else other
        homes = (*HOMES, function.__module__)
        if isinstance(other, FunctionType) and other.__module__.startswith(homes) and name not in PLAIN:
            space[name] = _marked(other, names, made, spaces)
    return made[function]


class _Marks(ast.NodeTransformer):
    """Puts marks into a function, and lists the branches."""

    def __init__(self, function: str, names: dict[str, None]) -> None:
        self.function, self.names = function, names

    def _name(self, text: str) -> ast.Constant:
        name = f"{self.function}: {text if len(text) <= 110 else text[:107] + '...'}"
        self.names[name] = None
        return ast.Constant(name)

    def _marks(self, mark: str, texts: list[str], arguments: list[ast.expr]) -> ast.Call:
        given = ast.Tuple([self._name(t) for t in texts], ast.Load())
        return ast.Call(ast.Name(mark, ast.Load()), [given, *arguments], [])

    def visit_If(self, node: ast.If) -> Any:
        words = ast.unparse(node.test)
        raises = [isinstance(part[-1], ast.Raise) for part in (node.body, node.orelse) if part]
        node = self.generic_visit(node)
        if not any(raises):
            node.test = self._marks("_truth_", [f"{words}", f"not ({words})"], [node.test])
        return node

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        if isinstance(node.body, (ast.Constant, ast.JoinedStr)) and not isinstance(_value(node.body), (int, float)):
            return node  # a text, or nothing
        words = (ast.unparse(node.body), ast.unparse(node.test), ast.unparse(node.orelse))
        node = self.generic_visit(node)
        sides = [f"{words[0]} if {words[1]}", f"{words[2]} unless {words[1]}"]
        node.test = self._marks("_truth_", sides, [node.test])
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        words, name = [ast.unparse(a) for a in node.args], ast.unparse(node.func)
        whole, values = ast.unparse(node), list(node.args)
        node = self.generic_visit(node)
        if node.keywords or any(isinstance(a, ast.Starred) or _guards(a) for a in values):
            return node
        if name in ("min", "max", "np.minimum", "np.maximum") and len(words) >= 2:
            return self._marks("_entry_", [f"{w} in {whole}" for w in words], [node.func, *node.args])
        if name == "np.where" and len(words) == 3:
            sides = [f"{words[1]} where {words[0]}", f"{words[2]} where not ({words[0]})"]
            return self._marks("_side_", sides, node.args)
        if name.endswith("clip") and len(words) == 2 + (name == "np.clip"):
            parts = [f"{what} in {whole}" for what in (f"below {words[-2]}", "between", f"above {words[-1]}")]
            values = node.args if name == "np.clip" else [node.func.value, *node.args]
            return self._marks("_part_", parts, values)
        return node

    def visit_Raise(self, node: ast.Raise) -> Any:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        return node


def _value(node: ast.expr) -> Any:
    return node.value if isinstance(node, ast.Constant) else ""


def _guards(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, float) and 0.0 < abs(node.value) < TINY
