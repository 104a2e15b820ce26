"""A run, and the number that a theorem bounds, as a few lines of NumPy that need nothing of this package.

There are texts for FedAvg, FedSGD, FedProx, SCAFFOLD and Dynamic FedAvg on squared, logistic and smoothed hinge losses
where nothing is drawn, and for those on squared losses that draw mini-batches or clients. A text is run before it is
handed out, and has to give what was measured.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from fedconvex.problems import MovingTarget, Problem
from fedconvex.problems.protocol import drift_square
from fedconvex.theorems import Setting
from fedconvex.theorems.fedavg_limit import LIMIT_BIAS
from fedconvex.theorems.fedprox import NEXT_VALUE
from fedconvex.theorems.local_lemmas import CLIENT_DRIFT, PROGRESS
from fedconvex.theorems.parts.tiny import LOSSES
from fedconvex.theorems.scaffold import WEIGHTED_AVERAGE, scaffold_weights
from fedconvex.theory.bound import (
    LAST_SYNCHRONISED,
    MEAN_SQUARE_DEVIATION,
    SHADOW_AVERAGE,
    STEADY_STATE_MSD,
    Bound,
    Quantity,
)
from fedconvex.traits import Traits, problem_traits, traits_of
from fedconvex.verify import moment_text
from fedconvex.verify.moment_text import moment_lines, samples

LIMITS = (100, 10_000)  # rounds that are tried for a limit
SOLVED = 1e-12  # relative: how near a minimiser is to a fraction that it is taken for
LONGEST = 120  # seconds that a text may take
SAME = 1e-6  # relative: how near the text has to come to what was measured

VALUES = {
    "squared": "np.mean((X[k] @ w - y[k]) ** 2) / 2",
    "logistic": "np.mean(np.logaddexp(0, -y[k] * (X[k] @ w)))",
    "hinge": "np.mean((m := 1 - y[k] * (X[k] @ w)) * (h := np.clip(m, 0, 1)) - h * h / 2)",
}
SLOPES = {
    "squared": "X[k] @ w - y[k]",
    "logistic": "-y[k] / (1 + np.exp(y[k] * (X[k] @ w)))",
    "hinge": "-y[k] * np.clip(1 - y[k] * (X[k] @ w), 0, 1)",
}
MEASURED: dict[Quantity, str] = {
    SHADOW_AVERAGE: "total / (T * tau)",
    PROGRESS: "total / tau",
    WEIGHTED_AVERAGE: "total / sum(q**t for t in range(T))",
    LAST_SYNCHRONISED: "F(w) - F(best)",
    NEXT_VALUE: "F(w) - F(best)",
    MEAN_SQUARE_DEVIATION: "(w - best) @ (w - best)",
    STEADY_STATE_MSD: "(w - best) @ (w - best)",
    LIMIT_BIAS: "np.linalg.norm(w - best)",
    CLIENT_DRIFT: "sum(p[k] * (W[k] - mean(W)) @ (W[k] - mean(W)) for k in clients)",
}
SUMMED = (SHADOW_AVERAGE, PROGRESS)  # over the local steps


def numpy_text(s: Setting, quantity: Quantity, bound: Bound, measured: float) -> str | None:
    """Return a run as NumPy that prints what is measured beside the bound.

    None where there is no such text, and "" where one was written that, run, did not give the measured number, or not
    above a bound that it violates.

    Parameters
    ----------
    s : Setting
    quantity : Quantity
        What is measured.
    bound : Bound
        Whose terms are written as numbers.
    measured : float
        What the text has to give.
    """
    p = s.problem
    loss = next((name for name, make in LOSSES.items() if repr(make()) == repr(getattr(p, "loss", None))), None)
    if type(p) not in (Problem, MovingTarget) or any(problem_traits(p)) or loss is None or quantity not in MEASURED:
        return None
    t = traits_of(s.method, p)
    for T in (s.rounds,) if quantity.by_rounds or quantity is NEXT_VALUE else LIMITS:
        found = _lines(t, loss, quantity, T, drift_square(p) > 0.0)
        if found is None:
            return None
        lines, value = found
        text = "\n".join([*_data(s, t, quantity, T), *lines, f"measured = {value}", *compared(bound)]) + "\n"
        if gives(text, measured, bound.value):
            return text
    return ""


def _lines(t: Traits, loss: str, quantity: Quantity, rounds: int, moves: bool) -> tuple[list[str], str] | None:
    """Return the lines of a run, and the expression of what is measured at its end."""
    if t.deterministic and not moves:
        lines = _run(t, loss, quantity)
        return None if lines is None else (lines, MEASURED[quantity])
    if t.drawn == ("clients",) and not moves and rounds == 1 and quantity in (NEXT_VALUE, LAST_SYNCHRONISED):
        lines = _run(t, loss, quantity)
        each = "q * F(sum(u[k] * W[k] for k in clients))"
        return None if lines is None else (lines[:-1], f"sum({each} for q, u in {samples(t)}) - F(best)")
    lines = moment_lines(t, loss, quantity, rounds)
    if lines is not None and moves:
        lines.append("    S[:d, :d] += q2 / d * np.eye(d)  # the minimiser moves by q, E q = 0, E q'q = q2")
    return None if lines is None else (lines, moment_text.MEASURED[quantity])


def gives(text: str, measured: float, bound: float) -> bool:
    """Whether a text, which is run, measures a number, and finds it above the bound if it is."""
    command = [sys.executable, "-I", "-"]  # a process without this package
    try:
        ran = subprocess.run(command, input=text, capture_output=True, text=True, check=True, timeout=LONGEST)
        found, sign = ran.stdout.split()[:2]
        return math.isclose(float(found), measured, rel_tol=SAME) and (sign == ">" or not measured > bound)
    except (subprocess.SubprocessError, OSError, IndexError, ValueError):
        return False


# ---------------------------------------------------------------- numbers


def written(x: float, off: float = 4e-16) -> str:
    """Return a number as a fraction, if it is nearly one with a small denominator, or to its last digit.

    Examples
    --------
    >>> from fedconvex.verify.numpy_text import written
    >>> written(1 / 3), written(2.0), written(0.1234567)
    ('1/3', '2', '0.1234567')
    """
    x = float(x)
    near = Fraction(x).limit_denominator(1000) if 1e-3 <= abs(x) < 1e6 or x == 0.0 else None
    exact = near is not None and abs(float(near) - x) <= off * abs(x)
    return str(near) if exact else repr(x)


def listed(x: Iterable[Any], off: float = 4e-16) -> str:
    """Return numbers, or lists of them, as `written` writes them."""
    return "[" + ", ".join(listed(v, off) if np.ndim(v) else written(v, off) for v in x) + "]"


def _data(s: Setting, t: Traits, quantity: Quantity, rounds: int) -> list[str]:
    """Return the lines that have the problem, the start, the minimiser and the numbers of the method."""
    p, best = s.problem, s.problem.solve().w
    fed, ptr = p.federation, p.federation.ptr
    X, y = np.asarray(fed.X.toarray() if hasattr(fed.X, "toarray") else fed.X), fed.y
    mine = [slice(low, high) for low, high in pairwise(ptr)]
    lines = [
        *["import itertools", "import math"] * (not t.deterministic or drift_square(p) > 0.0),
        "import numpy as np",
        "",
        f"X = [{', '.join(f'np.array({listed(X[rows])})' for rows in mine)}]  # rows of every client",
        f"y = [{', '.join(f'np.array({listed(y[rows])})' for rows in mine)}]",
        f"p, l2, clients = {listed(p.weights)}, {written(p.l2)}, range({fed.K})",
        f"w, best = np.array({listed(s.start, SOLVED)}), np.array({listed(best, SOLVED)})  # start, minimiser",
    ]
    numbers = {"T": written(rounds)}
    if t.local is not None:
        eta, tau, factor = t.local.step_size, t.local.equal_steps, t.local.factor
        numbers["tau"] = listed(t.local.steps) if tau is None else written(tau)
        if not isinstance(eta, float):
            power = "" if eta.power == 1.0 else f" ** ({written(eta.power)})"
            numbers["eta"] = f"(lambda n: {written(eta.scale)} / ({written(eta.shift)} + n){power})"
        else:
            numbers["eta"] = written(eta * factor[0]) if np.ptp(factor) == 0.0 else listed(eta * factor)
    if quantity is WEIGHTED_AVERAGE and t.controls is not None:
        how = {"step_size": eta, "local_steps": tau, "server_step": t.controls.server_step}
        two = scaffold_weights(s.constants(), rounds=2, **how)
        numbers["q"] = written(two[0] / two[1])
    if drift_square(p) > 0.0:
        numbers["q2"] = written(drift_square(p))
    if t.proximal is not None:
        numbers["mu"] = written(t.proximal)
    return [*lines, f"{', '.join(numbers)} = {', '.join(numbers.values())}"]


# ---------------------------------------------------------------- a run without randomness


def _run(t: Traits, loss: str, quantity: Quantity) -> list[str] | None:
    """Return the lines of a run in which nothing is drawn."""
    server = t.server_step if t.controls is None else t.controls.server_step
    known = t.proximal is not None or t.controls is not None or (t.local is not None and t.local.plain)
    if not known or server is None or (quantity in SUMMED and (t.local is None or t.local.equal_steps is None)):
        return None
    lines = [f"g = lambda k, w: X[k].T @ ({SLOPES[loss]}) / len(y[k]) + l2 * w"]
    if "F(" in MEASURED[quantity] or "total" in MEASURED[quantity]:
        lines.append(f"f = lambda k, w: {VALUES[loss]} + l2 / 2 * w @ w")
        lines.append("F = lambda w: sum(p[k] * f(k, w) for k in clients)")
    lines.append("mean = lambda W: sum(p[k] * W[k] for k in clients)")
    before = quantity is WEIGHTED_AVERAGE
    lines += ["total = 0"] * (before or quantity is SHADOW_AVERAGE) + ["c = [0 * w for k in clients]"] * (
        t.controls is not None
    )
    summed = ["    total += q ** (T - 1 - t) * (F(w) - F(best))"] * before
    lines += ["for t in range(T):", *summed, "    W = [w for k in clients]"] + ["    total = 0"] * (
        quantity is PROGRESS
    )
    lines += _exact_steps(t) if t.local is None else _local_steps(t, quantity in SUMMED)
    moved = "mean(W)" if server == 1.0 else f"w + {written(server)} * (mean(W) - w)"
    return [*lines, *_controls(t), f"    w = {moved}"]


def _local_steps(t: Traits, summed: bool) -> list[str]:
    """Return the lines of the local steps of all clients."""
    assert t.local is not None
    same, constant = t.local.equal_steps is not None, isinstance(t.local.step_size, float)
    if constant:
        eta = "eta" if np.ptp(t.local.factor) == 0.0 else "eta[k]"
    else:
        eta = "eta(t)" if t.local.step_size.by_round else "eta(t * tau + i)"
    direction = "g(k, W[k])"
    direction += " + mu * (W[k] - w)" if t.proximal is not None else ""
    direction += " - c[k] + mean(c)" if t.controls is not None else ""
    direction = f"({direction})" if " " in direction[10:] else direction
    step = f"W[k] - {eta} * {direction}" if same else f"W[k] - (i < tau[k]) * {eta} * {direction}"
    lines = [f"    for i in range({'tau' if same else 'max(tau)'}):", f"        W = [{step} for k in clients]"]
    return lines + ["        total += F(mean(W)) - F(best)"] * summed


def _exact_steps(t: Traits) -> list[str]:
    """Return the lines of exact proximal points: so many gradient steps that rounding stops them."""
    size = "np.linalg.norm(X[k], 2) ** 2 / len(y[k]) + l2 + mu"
    step = f"W[k] - (g(k, W[k]) + mu * (W[k] - w)) / ({size})"
    return ["    for i in range(2000):  # proximal points", f"        W = [{step} for k in clients]"]


def _controls(t: Traits) -> list[str]:
    """Return the line that renews control variates."""
    if t.controls is None:
        return []
    mean = "c[k] - mean(c) + (w - W[k]) / (tau * eta)"
    return [f"    c = [{'g(k, w)' if t.controls.option == 1 else mean} for k in clients]"]


# ---------------------------------------------------------------- the end


def compared(bound: Bound) -> list[str]:
    """Return the lines that have the bound and print it beside what was measured."""
    terms = {name: float(value) for name, value in (bound.terms or {"": bound.value}).items()}
    terms = {name: value for name, value in terms.items() if value} or terms
    sums = math.isclose(sum(terms.values()), bound.value, rel_tol=1e-15)
    value = " + ".join(map(repr, terms.values())) if sums else repr(float(bound.value))
    value = f'float("{value}")' if value in ("inf", "nan") else value
    said = " + ".join(terms) if sums else "of " + ", ".join(f"{name} {x!r}" for name, x in terms.items())
    return [
        f"bound = {value}  # {said}",
        'print(measured, ">" if measured > bound else "<=", bound)',
    ]
