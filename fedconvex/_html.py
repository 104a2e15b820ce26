"""What a notebook shows of the things that users hold: a small table, everything in it escaped.

A class takes the function of its kind, ``_repr_html_ = _html.of_result``, which reads its attributes.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedconvex._check import printable

_LONGEST = 300  # characters of an entry
_LEFT = "text-align:left"


def table(title: str, facts: Iterable[tuple[str, Any]]) -> str:
    """Return a table of names and values under a title, without script, style sheet or anything from elsewhere.

    Examples
    --------
    >>> from fedconvex._html import table
    >>> "a &lt; b" in table("a < b", [("n", 3)])
    True
    """
    rows = "".join(
        f'<tr><th style="{_LEFT}">{_text(name)}</th><td style="{_LEFT}">{_text(value)}</td></tr>'
        for name, value in facts
    )
    return f'<table><caption style="{_LEFT}"><b>{_text(title)}</b></caption>{rows}</table>'


def _text(value: Any) -> str:
    shown = printable(f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value))
    return html.escape(shown if len(shown) <= _LONGEST else shown[: _LONGEST - 3] + "...")


def _numbers(value: Any) -> str:
    """Return one number, or the least and the largest of several."""
    a = np.ravel(np.asarray(value, dtype=float))
    return f"{a[0]:.6g}" if a.size == 1 else f"{a.min():.6g} to {a.max():.6g}, {a.size} trajectories"


def of_federation(fed: Any) -> str:
    """Return the table of a federation: how many, how large, who has most and least."""
    sizes, stored = fed.sizes, "sparse" if fed.is_sparse else "dense"
    facts = [("clients", fed.K), ("rows", fed.n), ("features", f"{fed.d}, {stored}")]
    if fed.n_domains:
        facts.append(("domains", f"{fed.n_domains}: {', '.join(map(str, fed.domain_labels[:8].tolist()))}"))
    least, most = int(np.argmin(sizes)), int(np.argmax(sizes))
    spread = f"{sizes[least]} ({fed.labels[least]}) to {sizes[most]} ({fed.labels[most]}), median {np.median(sizes):g}"
    facts.append(("rows of a client", spread if sizes[least] < sizes[most] else f"{sizes[0]} each"))
    if fed.sample_weight is not None:
        facts.append(("weights of rows", _range(fed.sample_weight)))
    return table("Federation", facts)


def _range(a: np.ndarray) -> str:
    return f"{a.min():.6g} to {a.max():.6g}"


def of_problem(problem: Any) -> str:
    """Return the table of a problem: what is minimised, over whose rows."""
    fed = problem.federation
    facts = [("learns", problem.learns), ("loss", repr(problem.loss))]
    if hasattr(problem, "relation"):
        facts.append(("relation", repr(problem.relation)))
    else:
        facts.append(("l2", float(problem.l2)))
    if getattr(problem, "penalty", None) is not None:
        facts.append(("penalty", repr(problem.penalty)))
    if getattr(problem, "free", None) is not None:
        facts.append(("not penalised", f"{int(problem.free.sum())} of {fed.d} coordinates"))
    facts.append(("client weights", "equal" if problem.equal_weights else _range(problem.weights)))
    facts.append(("rows", f"{fed.n} of {fed.K} clients, {fed.d} features"))
    return table(type(problem).__name__, facts)


def of_solution(best: Any) -> str:
    """Return the table of an exact solution: value, certificate, what is known of the minimiser."""
    facts = [("objective", best.value), ("certified gap", best.gap), ("certificate", best.certificate)]
    facts.append(("minimiser", _minimiser(best)))
    facts += [
        ("shape of w", " x ".join(map(str, best.w.shape))),
        ("iterations", best.iterations),
        ("seconds", best.seconds),
    ]
    return table("Solution", facts)


def _minimiser(best: Any) -> str:
    if not best.attained:
        return "none is known to exist"
    return "unique" if best.unique else "not proved to be the only one"


def of_result(result: Any) -> str:
    """Return the table of a run: why it ended, how far from the optimum, what it cost."""
    trace = result.trace
    facts = [("status", f"{result.status.name}: {result.status.value}"), ("rounds", result.rounds)]
    if "value" in trace and len(trace["value"]):
        facts.append(("objective", _numbers(trace["value"][-1])))
    facts.append(("certified gap", _numbers(result.gap)))
    if getattr(result, "proviso", ""):
        facts.append(("certified", result.proviso))
    if result.step_size is not None:
        facts.append(("step size", result.step_size))
    if getattr(result, "method", None) is not None:
        facts.append(("method", result.method))
    if "floats_down" in trace and len(trace["floats_down"]):
        facts.append(("floats sent", f"{int(trace['floats_down'][-1])} down, {int(trace['floats_up'][-1])} up"))
        facts.append(("seconds", float(trace["seconds"][-1])))
    return table("Result", facts)


def of_verdict(verdict: Any) -> str:
    """Return the table of a verdict: what was found, measured value and bound, and why."""
    facts: list[tuple[str, Any]] = [("outcome", verdict.outcome.name)]
    if verdict.bound is not None:
        spread = "" if verdict.low == verdict.high else f" [{verdict.low:.4g}, {verdict.high:.4g}]"
        facts += [("measured", f"{verdict.measured:.6g}{spread}"), ("bound", float(verdict.bound.value))]
        facts.append(("bound / measured", float(verdict.ratio)))
    facts.append(("trajectories", verdict.trajectories or "none: exact"))
    return table(verdict.theorem, [*facts, ("why", verdict.reason)])


def of_ensemble(f: Any) -> str:
    """Return the table of an ensemble: its members, their sources, the heaviest ones."""
    heavy = np.argsort(-np.abs(f.alpha), kind="stable")[:3]
    facts = [("members", len(f)), ("sources", f"{f.p}: {', '.join(map(str, list(f.names)[:8]))}")]
    facts += [("sum of weights", float(f.weight)), ("Q(l|x)", _q(f.q))]
    facts += [(f"weight {f.alpha[t]:.4g}", f"{f.members[t]!r} of {list(f.names)[f.sources[t]]}") for t in heavy]
    return table("QEnsemble", facts)


def _q(q: Any) -> str:
    return "a function" if callable(q) else "constant" if q is None else "numbers for the training rows"
