"""Settings in words: what instances, problems and methods say of themselves, joined."""

from __future__ import annotations

from typing import Any

from fedconvex.problems.protocol import has_models
from fedconvex.theorems import Setting, Theorem
from fedconvex.theorems.agnostic_floats import FLOATS
from fedconvex.theorems.parts.rules import smoothness
from fedconvex.theorems.parts.theorem import Instance, MethodRule
from fedconvex.words import Words, counted, words_of


def described(instance: Instance, s: Setting, theorem: Theorem, rule: MethodRule) -> tuple[str, str]:
    """Return the setting in short and in full."""
    m, p = s.method, s.problem
    if hasattr(m, "described"):  # of samples: so many rounds decide what it is
        short, full = m.described(p, s.rounds)
        return (
            f"{instance.name}, {short}",
            f"{instance.words} ({p.federation.n} rows, {p.federation.d} features); {full}",
        )
    w, start, rounds = words_of(m, p), _start(instance, s), theorem.quantity.by_rounds or not has_models(p)
    name = [type(m).__name__] if theorem.quantity is FLOATS else []
    brief = [instance.name, *name, *w.short, *([f"T {s.rounds}"] if rounds else []), *w.more]
    chosen = _chosen(w, p, rule)
    does = [w.work, chosen, w.who, start] if w.chosen[0] else [", ".join(filter(None, [w.work, start])), chosen, w.who]
    much = counted(s.rounds, "round") if rounds else ""
    full = [f"{instance.words} ({p.words})", *does, *w.rules, much, getattr(p, "motion", "")]
    return ", ".join(brief), "; ".join(filter(None, full))


def _start(instance: Instance, s: Setting) -> str:
    """Return where the model starts; nothing for what always starts at zero, and for what a search found."""
    known = s.problem.starts and instance.data != "searched"
    return f"every entry of {s.problem.starts} starts at {float(s.start.flat[0]):g}" if known else ""


def _chosen(w: Words, problem: Any, rule: MethodRule) -> str:
    """Return what a rule has chosen, with where it comes from."""
    name, value = w.chosen
    if value is None:
        return f"{name} {rule.words}".strip()
    if name != "step size":
        return f"{name} {value:.4g}, {rule.words}"
    j = f"1/({1.0 / (value * smoothness(problem)):.3g}L), " if rule.words.startswith("the ") else ""
    return f"{name} {value:.4g} = {j}{rule.words}"
