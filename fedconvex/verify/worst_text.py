"""Functions of an exact worst case that exceed a bound, and the run on them, as a few lines of NumPy.

A function is given by its gradients and values at the points that the run visits. Whether the class has one with all of
them is a matter of finitely many inequalities (Taylor, Hendrickx, Glineur, Math. Program. 161, 2017, Theorem 4), which
the program asserts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedconvex.theorems import Theorem
from fedconvex.theorems.parts.theorem import Check
from fedconvex.theory.bound import LAST_SYNCHRONISED, SHADOW_AVERAGE, AssumptionError, Bound, Quantity
from fedconvex.verify.checking import problem_of, setting_of
from fedconvex.verify.numpy_text import compared, gives, listed, written
from fedconvex.verify.printed import PrintedInstance
from fedconvex.verify.tightness import WorstData, worst_functions

NEAR = 1e-5  # relative: how near fractions are tried, as a solver's rounding is of this size
MEASURED = {LAST_SYNCHRONISED: "F(w)", SHADOW_AVERAGE: "total / (T * tau)"}  # F(0) = 0 is the minimum
DATA = "# gradients g[k] and values f[k] of client k at its points x[k]; the first, 0, minimises F"
RUN = """\
def above(k, i, j):  # convex L-smooth functions have these gradients and values if, and only if, it is <= 0
    dx, dg = x[k][i] - x[k][j], g[k][i] - g[k][j]
    curved = (dg @ dg / L + mu * dx @ dx - 2 * mu / L * dg @ dx) / (2 * (1 - mu / L))
    return f[k][j] - f[k][i] + g[k][j] @ dx + curved
def at(k, v):  # the point that v is
    i = np.linalg.norm(x[k] - v, axis=1).argmin()
    assert np.linalg.norm(x[k][i] - v) <= 1e-8 * scale
    return i
scale, m = max(np.abs(x).max(), 1e-300), len(x[0])
assert max(above(k, i, j) for k in clients for i in range(m) for j in range(m)) <= 1e-8 * L * scale**2
assert np.abs(sum(p[k] * g[k][0] for k in clients)).max() <= 1e-8 * L * scale
F = lambda v: sum(p[k] * f[k][at(k, v)] for k in clients)
total = 0
for t in range(T):
    W = [w for k in clients]
    for i in range(tau):
        W = [W[k] - eta * g[k][at(k, W[k])] for k in clients]
"""
SHADOW = "        total += F(sum(p[k] * W[k] for k in clients))\n"
MEAN = "    w = sum(p[k] * W[k] for k in clients)\n"


def worst_counterexample(theorem: Theorem, check: Check) -> PrintedInstance | None:
    """Return functions on which the run of a check exceeds the bound, with a program; None where they are not known."""
    s = setting_of(theorem, check, problem_of(theorem, check.instance))
    try:
        bound, data = theorem.at(s), worst_functions(theorem, s)
    except AssumptionError:
        return None
    if data is None or theorem.quantity not in MEASURED:
        return None
    for off in (NEAR, 4e-16):  # fractions, or ten digits
        text, measured = worst_text(data, theorem.quantity, bound, off), attained(data, theorem.quantity)
        if measured > bound.value and gives(text, measured, bound.value):
            words = (
                f"FedAvg on functions of the exact worst case: {len(data.weights)} clients, tau = {data.local_steps}"
            )
            words = f"{words}, T = {data.rounds}, step {data.step_size:.6g}"
            return PrintedInstance(
                theorem.name, words, data.as_lists(), measured, bound, text, _latex(data, bound, measured)
            )
    return None


def worst_text(data: WorstData, quantity: Quantity, bound: Bound, off: float) -> str:
    """Return the program; numbers that are so near a fraction are written as one."""
    arrays = {"x": data.points, "g": data.gradients, "f": data.values}
    lines = ["import numpy as np", "", DATA]
    lines += [f"{name} = np.array({_written(v, off)})" for name, v in arrays.items()]
    lines.append(
        f"p, L, mu, clients = {_written(data.weights, off)}, {written(data.L)}, {written(data.mu)}, range(len(x))"
    )
    lines.append(f"w = np.array({_written(data.start, off)})  # start")
    lines.append(f"T, tau, eta = {data.rounds}, {data.local_steps}, {written(data.step_size)}")
    run = RUN + (SHADOW if quantity is SHADOW_AVERAGE else "") + MEAN
    run = run if quantity is SHADOW_AVERAGE else run.replace("total = 0\n", "")
    return "\n".join([*lines, f"{run}measured = {MEASURED[quantity]}", *compared(bound)]) + "\n"


def attained(data: WorstData, quantity: Quantity) -> float:
    """Return what the run measures, from the values at the points nearest to its models."""
    p, K = data.weights, range(len(data.weights))
    near = lambda k, v: int(np.linalg.norm(data.points[k] - v, axis=1).argmin())  # noqa: E731
    F = lambda v: float(sum(p[k] * data.values[k, near(k, v)] for k in K))  # noqa: E731
    w, total = data.start, 0.0
    for _ in range(data.rounds):
        W = np.array([w for k in K])
        for _ in range(data.local_steps):
            W = np.array([W[k] - data.step_size * data.gradients[k, near(k, W[k])] for k in K])
            total += F(p @ W)
        w = p @ W
    return F(w) if quantity is LAST_SYNCHRONISED else total / (data.rounds * data.local_steps)


def _written(a: np.ndarray, off: float) -> str:
    """Return an array to ten digits of its largest entry; beside fractions, what a solver leaves of zeros is 0."""
    largest = float(np.abs(a).max(initial=0.0))
    a = np.where(np.abs(a) <= 1e-6 * largest, 0.0, a) if off >= NEAR else a
    return listed(np.round(a, 10 - math.floor(math.log10(largest))) if largest > 0.0 else a, off)


def _latex(data: WorstData, bound: Bound, measured: float) -> str:
    """Return the data as a table: points, gradients and values of each client."""
    short: Any = lambda v: "(" + ", ".join(f"{c:.6g}" for c in np.atleast_1d(v)) + ")"  # noqa: E731
    rows = [
        rf"{k + 1} & ${short(x)}$ & ${short(g)}$ & ${f:.6g}$ \\"
        for k in range(len(data.weights))
        for x, g, f in zip(data.points[k], data.gradients[k], data.values[k], strict=True)
    ]
    head = r"$k$ & $x$ & $\nabla f_k(x)$ & $f_k(x)$ \\ \hline"
    said = f"From $w_0 = {short(data.start)}$: ${measured:.9g} > {bound.value:.9g}$."
    return "\n".join([r"\begin{tabular}{rlll}", head, *rows, r"\end{tabular}", said]) + "\n"
