"""Bounds as formulas: one text for each term, which is computed and becomes LaTeX; tests hold it against the code."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedconvex.constants import Constants

_GREEK = ("eta", "tau", "mu", "nu", "zeta", "kappa", "gamma", "rho", "beta", "delta", "sigma", "phi", "lambda")
SIGNS = {name: rf"\{name}" for name in _GREEK} | {
    "sigma2": r"\sigma^2",
    "zeta_star": r"\zeta_*",
    "sigma2_star": r"\sigma_*^2",
    "Gamma": r"\Gamma",
    "G2": "G^2",
    "eta_g": r"\eta_g",
    "L_": "L_-",
    "p": "p_i",
    "v": r"\sigma_i^2",
    "v_star": r"\sigma_{*,i}^2",
    "f": r"\left(f(w) - f^*\right)",
    "g": r"\|\nabla f(w)\|",
}
MEANINGS = {
    "eta": "the step size",
    "tau": "the local steps of a round",
    "T": "the rounds",
    "M": "the number of clients",
    "S": "the number of clients that take part in a round",
    "L": "the smoothness of every client",
    "mu": "the strong convexity of every client",
    "D": r"the distance $\|w_0 - w^*\|$",
    "sigma2": "the largest variance of a client's stochastic gradient",
    "zeta": r"a bound of $\|\nabla f_i(w) - \nabla f(w)\|$ for all clients and all $w$",
    "zeta_star": r"the root of $\sum_i p_i \|\nabla f_i(w^*)\|^2$",
    "sigma2_star": r"the mean $\sum_i p_i \sigma_{*,i}^2$",
    "Gamma": r"the difference $f^* - \sum_i p_i f_i^*$",
    "G2": "the largest mean square of a client's stochastic gradient along the run",
    "eta_g": "the server's step size",
    "p": "the weight of client $i$",
    "v": "the variance of client $i$'s stochastic gradient",
    "v_star": "the variance of client $i$'s stochastic gradient at $w^*$",
    "phi": "the variance of a mini-batch's mean over that of one row",
    "L_s": "the smoothness of every row's loss",
    "f": "the excess of $f$ at the model $w$ before the round",
    "g": "the length of its gradient there",
}
_INDICES = ("j", "r")  # of sums over steps and rounds: they need no explanation


def _array(reduced: Callable[..., Any]) -> Callable[[Any], float]:
    return lambda x: float(reduced(np.asarray(x, dtype=float)))


SUMS: dict[str, tuple[Callable[[Any], float], str]] = {  # over clients i or agents k, local steps j, rounds r
    "sum_i": (_array(np.sum), r"\sum_{i}"),
    "mean_k": (_array(np.mean), r"\frac{1}{K} \sum_{k}"),
    "mean_j": (_array(np.mean), r"\frac{1}{\tau} \sum_{j=0}^{\tau-1}"),
    "sum_r": (_array(np.sum), r"\sum_{r=1}^{T}"),
}
EXTREMES: dict[str, tuple[Callable[[Any], float], str]] = {
    "max_i": (_array(np.max), r"\max_i"),
    "min_i": (_array(np.min), r"\min_i"),
    "max_k": (_array(np.max), r"\max_k"),
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sqrt": np.sqrt,
    "cbrt": np.cbrt,
    "abs": np.abs,
    "max": lambda *x: reduce(np.maximum, x),
    "min": lambda *x: reduce(np.minimum, x),
}
_FUNCTIONS |= {name: compute for name, (compute, _) in (SUMS | EXTREMES).items()}
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
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
    "noise_factor": "phi",
}


class Formula(NamedTuple):
    """A bound as the sum of its terms, texts of arithmetic in the symbols of the statement.

    Parameters
    ----------
    terms : mapping from str to str
        By the names that the code gives them.
    where : mapping from str to str
        Symbols that stand for more, each in those before it and in the constants; "d(x)" is a function of x.
    larger : bool
        Whether the bound is the first term or the sum of the others, whichever is larger; default the sum of all.
    signs, meanings : mapping from str to str
        LaTeX of symbols, and what they are, where `SIGNS` and `MEANINGS` do not have them or mean others.
    when : str
        For which runs it is, LaTeX; empty where the theorem has one formula only.
    remark : str
        What else belongs to it, such as the range of free parameters, LaTeX.
    """

    terms: Mapping[str, str]
    where: Mapping[str, str] = MappingProxyType({})
    larger: bool = False
    signs: Mapping[str, str] = MappingProxyType({})
    meanings: Mapping[str, str] = MappingProxyType({})
    when: str = ""
    remark: str = ""

    def values(self, symbols: Mapping[str, Any]) -> dict[str, float]:
        """Return the terms for numbers of the symbols; those over clients are arrays."""
        names: dict[str, Any] = dict(symbols)
        if "tau" in names and np.ndim(names["tau"]) == 0:
            names["j"] = np.arange(int(names["tau"]))
        if "T" in names:
            names["r"] = np.arange(1, int(names["T"]) + 1)
        for name, text in self.where.items():
            head, _, argument = name.partition("(")
            names[head] = (argument.rstrip(")"), text) if argument else _value(_parsed(text), names)
        return {name: float(_value(_parsed(text), names)) for name, text in self.terms.items()}

    def latex(self, left: str = "") -> str:
        """Return the bound as LaTeX for a line of its own."""
        signs = SIGNS | dict(self.signs)
        first, *others = (latex_of(text, signs) for text in self.terms.values())
        right = " + ".join(([] if self.larger else [first]) + others).replace("+ -", "- ")
        right = rf"\max\left\{{{first},\ {right}\right\}}" if self.larger else right
        return f"{left} \\le {right}" if left else right

    def definitions(self) -> list[str]:
        """Return the equations of the symbols that stand for more, LaTeX."""
        signs = SIGNS | dict(self.signs)
        return [f"{latex_of(name, signs)} = {latex_of(text, signs)}" for name, text in self.where.items()]

    def symbols(self) -> dict[str, str]:
        """Return the symbols that are told, in the order in which they are read: their LaTeX, and what they are.

        Raises
        ------
        KeyError
            If it is not said what one of them is.
        """
        known, signs = MEANINGS | dict(self.meanings), SIGNS | dict(self.signs)
        own = {name.partition("(")[0] for name in self.where} | set(_INDICES)
        own |= {name.partition("(")[2].rstrip(")") for name in self.where}
        texts = (*self.terms.values(), *self.where.values())
        used = dict.fromkeys(name for text in texts for name in _names(_parsed(text)) if name not in own)
        return {signs.get(name, name): known[name] for name in used}

    def paragraph(self, left: str) -> str:
        r"""Return the formula with its left side, and after it the list of its symbols, for a LaTeX document.

        Examples
        --------
        >>> from fedconvex.theorems.parts.bound_formulas import Formula
        >>> print(Formula({"start": "L * D**2 / h"}, {"h": "2 * T"}).paragraph("E"))
        \[ E \le \frac{L D^{2}}{h} \]
        with $h = 2 T$, where $L$ is the smoothness of every client, $D$ the distance $\|w_0 - w^*\|$, $T$ the rounds.
        """
        means = [f"${sign}$ {'' if i else 'is '}{words}" for i, (sign, words) in enumerate(self.symbols().items())]
        lines = [] if not self.when else [f"{self.when}:"]
        lines.append(rf"\[ {self.latex(left)} \]")
        with_ = f"with {', '.join(f'${text}$' for text in self.definitions())}, " if self.where else ""
        lines.append(f"{with_}where {', '.join(means)}." + (f" {self.remark}" if self.remark else ""))
        return "\n".join(lines)


def symbols_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of the symbols, from the arguments of a bound.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.parts.bound_formulas import symbols_of
    >>> symbols_of({"constants": Constants(L=2.0), "rounds": 5})
    {'eta_g': 1.0, 'gamma': 0.0, 'T': 5, 'L': 2.0}
    """
    out: dict[str, Any] = {ARGUMENTS.get(k, k): x for k, x in arguments.items() if isinstance(x, (int, float))}
    c = arguments.get("constants")
    if isinstance(c, Constants):
        names = ("L", "L_s", "D", "sigma2", "sigma2_star", "zeta", "zeta_star", "Gamma", "G2", "B")
        out |= {name: float(getattr(c, name)) for name in names if getattr(c, name) is not None}
        least: Any = c.mu if c.mu_k is None else np.min(c.mu_k)
        if "mu" in out:  # the proximal one
            out["L_"] = 0.0 if c.mu_k is None else -float(least)
        elif least is not None:
            out["mu"] = float(least)
        out = _of_clients(c) | out
    return {"eta_g": 1.0, "gamma": 0.0} | out


def _of_clients(c: Constants) -> dict[str, Any]:
    """Return M, S = M where nothing else is said, weights and variances of the clients, as far as they are known."""
    if c.p is None and c.K is None:
        return {}
    p = np.full(int(c.K or 0), 1.0 / (c.K or 1)) if c.p is None else np.asarray(c.p)
    noise: Any = c.sigma2 if c.sigma2_k is None else c.sigma2_k
    found = {"v": noise, "v_star": c.sigma2_star_k}
    each = {name: np.broadcast_to(x, p.shape) for name, x in found.items() if x is not None}
    return {"M": p.size, "S": p.size, "p": p} | each


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _names(node: ast.expr) -> Iterator[str]:
    """Yield the symbols of arithmetic in the order in which they are read."""
    if isinstance(node, ast.Name):
        yield node.id
    for child in [*node.args] if isinstance(node, ast.Call) else ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield from _names(child)


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the value of arithmetic, an array where symbols are arrays."""
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.UnaryOp):
        return -_value(node.operand, names)
    if isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Name), ast.dump(node)
        given = [_value(arg, names) for arg in node.args]
        if node.func.id in _FUNCTIONS:
            return _FUNCTIONS[node.func.id](*given)
        argument, text = names[node.func.id]
        return _value(_parsed(text), {**names, argument: given[0]})
    assert isinstance(node, ast.BinOp), ast.dump(node)
    return _ARITHMETIC[type(node.op)](_value(node.left, names), _value(node.right, names))


# ---------------------------------------------------------------- LaTeX

SUM, OPEN, PRODUCT, POWER, ATOM = range(5)  # how tightly things are bound; OPEN: a sum sign, whose end is not marked


def latex_of(text: str, signs: Mapping[str, str] = MappingProxyType(SIGNS)) -> str:
    r"""Return arithmetic as LaTeX.

    Examples
    --------
    >>> from fedconvex.theorems.parts.bound_formulas import latex_of
    >>> print(latex_of("4 * tau * eta**2 * L * sigma2"), latex_of("D**2 / (2 * eta * tau * T)"))
    4 \tau \eta^{2} L \sigma^2 \frac{D^{2}}{2 \eta \tau T}
    >>> print(latex_of("eta * sum_i(p**2 * v)"))
    \eta \sum_{i} p_i^{2} \sigma_i^2
    """
    return _Writer(signs).tex(_parsed(text))[0]


class _Writer:
    """Writes arithmetic as LaTeX, with the signs of its symbols."""

    def __init__(self, signs: Mapping[str, str]) -> None:
        self.signs = signs

    def tex(self, node: ast.expr) -> tuple[str, int]:
        """Return an expression and how tightly it is bound."""
        if isinstance(node, ast.Constant):
            return f"{float(node.value):g}", ATOM  # type: ignore[arg-type]
        if isinstance(node, ast.Name):
            sign = self.signs.get(node.id, node.id)
            return sign, POWER if "^" in sign and not sign.startswith(r"\left") else ATOM
        if isinstance(node, ast.UnaryOp):
            return f"-{self.within(node.operand, OPEN)}", SUM
        if isinstance(node, ast.Call):
            return self.call(node)
        assert isinstance(node, ast.BinOp), ast.dump(node)
        if isinstance(node.op, ast.Div):
            return rf"\frac{{{self.tex(node.left)[0]}}}{{{self.tex(node.right)[0]}}}", PRODUCT
        if isinstance(node.op, ast.Pow):
            return f"{self.within(node.left, ATOM)}^{{{self.tex(node.right)[0]}}}", POWER
        if isinstance(node.op, ast.Mult):
            minus = isinstance(node.left, ast.UnaryOp)
            left = node.left.operand if isinstance(node.left, ast.UnaryOp) else node.left
            (right, bound) = self.tex(node.right)
            right = right if bound >= OPEN else rf"\left({right}\right)"
            text = f"{self.within(left, PRODUCT)} {right}"
            return (f"-{text}", SUM) if minus else (text, OPEN if bound == OPEN else PRODUCT)
        sign = "+" if isinstance(node.op, ast.Add) else "-"
        return f"{self.within(node.left, SUM)} {sign} {self.within(node.right, SUM if sign == '+' else OPEN)}", SUM

    def within(self, node: ast.expr, least: int) -> str:
        """Return a part, in brackets where it is bound less tightly than that."""
        text, bound = self.tex(node)
        return text if bound >= least else rf"\left({text}\right)"

    def call(self, node: ast.Call) -> tuple[str, int]:
        """Return a root, a sum, a largest number, or a function that the formula defines."""
        assert isinstance(node.func, ast.Name), ast.dump(node)
        name, inside = node.func.id, ", ".join(self.tex(arg)[0] for arg in node.args)
        if name in SUMS:
            return f"{SUMS[name][1]} {self.within(node.args[0], PRODUCT)}", OPEN
        if name in EXTREMES:
            text = inside if self.tex(node.args[0])[1] >= POWER else rf"\{{{inside}\}}"
            return f"{EXTREMES[name][1]} {text}", PRODUCT
        shapes = {"sqrt": rf"\sqrt{{{inside}}}", "cbrt": rf"\sqrt[3]{{{inside}}}", "abs": rf"|{inside}|"}
        least = rf"\{name}\{{{inside}\}}" if name in ("max", "min") else rf"{name}\left({inside}\right)"
        return shapes.get(name, least), ATOM
