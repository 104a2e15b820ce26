"""Bounds as formulas: one text for each term, which is computed and becomes LaTeX; tests hold it against the code."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedconvex.constants import Constants

SIGNS = {name: rf"\{name}" for name in ("eta", "tau", "mu", "zeta", "kappa", "gamma", "rho", "beta", "delta")} | {
    "sigma2": r"\sigma^2",
    "zeta_star": r"\zeta_*",
    "Gamma": r"\Gamma",
    "G2": "G^2",
    "C0": "C_0",
    "eta_g": r"\eta_g",
    "D2": "D^2",
    "L_": "L_-",
    "V": r"\textstyle\sum_k p_k^2 \sigma_k^2",
    "f": "f(w) - f^*",
    "g": r"\|\nabla f(w)\|",
}
FUNCTIONS: dict[str, Callable[..., Any]] = {"sqrt": math.sqrt, "cbrt": np.cbrt, "max": max, "min": min}
ARITHMETIC: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
ARGUMENTS = {
    "step_size": "eta",
    "local_steps": "tau",
    "rounds": "T",
    "server_step": "eta_g",
    "proximal_mu": "mu",
    "inexactness": "gamma",
    "participants": "S",
    "value": "f",
    "gradient_norm": "g",
}


class Formula(NamedTuple):
    """A bound as the sum of its terms, texts of arithmetic in the symbols of the statement.

    Parameters
    ----------
    terms : mapping from str to str
        By the names that the code gives them.
    where : mapping from str to str
        Symbols that stand for more, each in those before it and in the constants.
    larger : bool
        Whether the bound is the first term or the sum of the others, whichever is larger; default the sum of all.
    """

    terms: Mapping[str, str]
    where: Mapping[str, str] = MappingProxyType({})
    larger: bool = False

    def values(self, symbols: Mapping[str, float]) -> dict[str, float]:
        """Return the terms for numbers of the symbols."""
        names = dict(symbols)
        for name, text in self.where.items():
            names[name] = _value(_parsed(text), names)
        return {name: _value(_parsed(text), names) for name, text in self.terms.items()}

    def latex(self, left: str = "") -> str:
        """Return the bound as LaTeX for a line of its own."""
        first, *others = (latex_of(text) for text in self.terms.values())
        right = " + ".join(([] if self.larger else [first]) + others).replace("+ -", "- ")
        right = rf"\max\left\{{{first},\ {right}\right\}}" if self.larger else right
        where = ",\\quad ".join(f"{SIGNS.get(name, name)} = {latex_of(text)}" for name, text in self.where.items())
        return f"{left}{right}" + (f",\\qquad {where}" if where else "")


def symbols_of(arguments: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of the symbols, from the arguments of a bound.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.parts.formulas import symbols_of
    >>> symbols_of({"constants": Constants(L=2.0, K=3), "rounds": 5})
    {'eta_g': 1.0, 'gamma': 0.0, 'M': 3, 'S': 3, 'T': 5, 'L': 2.0}
    """
    out = {ARGUMENTS.get(name, name): x for name, x in arguments.items() if isinstance(x, (int, float))}
    c = arguments.get("constants")
    if isinstance(c, Constants):
        names = ("L", "D", "sigma2", "zeta", "zeta_star", "Gamma", "G2", "B")
        out |= {name: float(getattr(c, name)) for name in names if getattr(c, name) is not None}
        least: Any = c.mu if c.mu_k is None else np.min(c.mu_k)
        if "mu" in out:  # the proximal one
            out["L_"] = 0.0 if c.mu_k is None else -float(least)
        elif least is not None:
            out["mu"] = float(least)
        out = _of_clients(c) | out
    return {"eta_g": 1.0, "gamma": 0.0} | out


def _of_clients(c: Constants) -> dict[str, float]:
    """Return M, S = M where nothing else is said, and V = sum p_k^2 sigma_k^2, as far as they are known."""
    if c.p is None and c.K is None:
        return {}
    p = np.full(int(c.K or 0), 1.0 / (c.K or 1)) if c.p is None else np.asarray(c.p)
    noise: Any = c.sigma2 if c.sigma2_k is None else c.sigma2_k
    return {"M": p.size, "S": p.size} | ({} if noise is None else {"V": float(np.sum(p**2 * noise))})


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _value(node: ast.expr, names: Mapping[str, float]) -> float:
    """Return the value of arithmetic."""
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.UnaryOp):
        return -_value(node.operand, names)
    if isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Name), ast.dump(node)
        return float(FUNCTIONS[node.func.id](*(_value(arg, names) for arg in node.args)))
    assert isinstance(node, ast.BinOp), ast.dump(node)
    return float(ARITHMETIC[type(node.op)](_value(node.left, names), _value(node.right, names)))


# ---------------------------------------------------------------- LaTeX

SUM, PRODUCT, POWER, ATOM = range(4)  # how tightly things are bound


def latex_of(text: str) -> str:
    r"""Return arithmetic as LaTeX.

    Examples
    --------
    >>> from fedconvex.theorems.parts.formulas import latex_of
    >>> print(latex_of("4 * tau * eta**2 * L * sigma2"), latex_of("D**2 / (2 * eta * tau * T)"))
    4 \tau \eta^{2} L \sigma^2 \frac{D^{2}}{2 \eta \tau T}
    """
    return _tex(_parsed(text))[0]


def _tex(node: ast.expr) -> tuple[str, int]:
    """Return an expression and how tightly it is bound."""
    if isinstance(node, ast.Constant):
        return f"{float(node.value):g}", ATOM  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return SIGNS.get(node.id, node.id), ATOM if "^" not in SIGNS.get(node.id, "") else POWER
    if isinstance(node, ast.UnaryOp):
        return f"-{_within(node.operand, PRODUCT)}", SUM
    if isinstance(node, ast.Call):
        return _call(node)
    assert isinstance(node, ast.BinOp), ast.dump(node)
    if isinstance(node.op, ast.Div):
        return rf"\frac{{{_tex(node.left)[0]}}}{{{_tex(node.right)[0]}}}", PRODUCT
    if isinstance(node.op, ast.Pow):
        return f"{_within(node.left, ATOM)}^{{{_tex(node.right)[0]}}}", POWER
    if isinstance(node.op, ast.Mult) and isinstance(node.left, ast.UnaryOp):
        return f"-{_within(node.left.operand, PRODUCT)} {_within(node.right, PRODUCT)}", SUM
    if isinstance(node.op, ast.Mult):
        return f"{_within(node.left, PRODUCT)} {_within(node.right, PRODUCT)}", PRODUCT
    sign = "+" if isinstance(node.op, ast.Add) else "-"
    return f"{_within(node.left, SUM)} {sign} {_within(node.right, SUM if sign == '+' else PRODUCT)}", SUM


def _within(node: ast.expr, least: int) -> str:
    """Return a part, in brackets where it is bound less tightly than that."""
    text, bound = _tex(node)
    return text if bound >= least else rf"\left({text}\right)"


def _call(node: ast.Call) -> tuple[str, int]:
    assert isinstance(node.func, ast.Name), ast.dump(node)
    inside = ", ".join(_tex(arg)[0] for arg in node.args)
    roots = {"sqrt": rf"\sqrt{{{inside}}}", "cbrt": rf"\sqrt[3]{{{inside}}}"}
    return roots.get(node.func.id) or rf"\{node.func.id}\{{{inside}\}}", ATOM
