"""Settings in words, in short for tables and in full."""

from __future__ import annotations

from typing import Any

from fedconvex.methods import ProportionalSampling
from fedconvex.problems import MovingTarget, Problem
from fedconvex.problems.protocol import HYBRID_MODEL, MODEL_PER_TASK, ONE_MODEL, VERTICAL_MODEL
from fedconvex.simplex.ascent import EntropicStep
from fedconvex.theorems import Setting, Theorem
from fedconvex.theorems.agnostic_floats import FLOATS
from fedconvex.theorems.parts.rules import smoothness
from fedconvex.theorems.parts.theorem import Instance, MethodRule

__all__ = ["described", "has_one_model"]


def has_one_model(problem: Problem) -> bool:
    """Whether all clients share one model."""
    return bool(problem.learns == ONE_MODEL)


def described(instance: Instance, s: Setting, theorem: Theorem, rule: MethodRule) -> tuple[str, str]:
    """Return the setting in short and in full."""
    if not has_one_model(s.problem):
        return _described_otherwise(instance, s, theorem, rule)
    m, fed = s.method, s.problem.federation
    if hasattr(m, "described"):
        brief, detail = m.described(s.problem, s.rounds)
        domains = f"{fed.n} rows, {fed.d} features"
        return f"{instance.name}, {brief}", f"{instance.words} ({domains}); {detail}"
    tau, work = _work(m)
    B, who = getattr(m, "batch_size", None), _who(getattr(m, "participation", None), fed.K)
    one_round = not theorem.quantity.by_rounds
    short = [instance.name, tau, *([] if one_round else [f"T {s.rounds}"])]
    short += ([] if B is None else [f"B {B}"]) + ([who] if who else [])
    game, rules = _of_domains(m)
    short = [*short[:1], *game, *filter(None, short[1:])]
    if theorem.quantity is FLOATS:
        short.insert(1, type(m).__name__)
    full = [
        f"{instance.words} ({fed.K} clients, {fed.n} rows, {fed.d} features, l2 = {s.problem.l2:g})",
        f"{type(m).__name__} with {work} on {'all' if B is None else B} rows",
        _knob(m, s.problem, rule),
        f"{who} take part" if who else "full participation",
        *([] if instance.data == "searched" else [f"every entry of the model starts at {float(s.start.flat[0]):g}"]),
        *rules,
    ]
    full += [] if one_round else [f"{s.rounds} round{'s' * (s.rounds != 1)}"]
    if isinstance(s.problem, MovingTarget):
        full.append(f"a minimiser that moves, E‖q‖² = {s.problem.covariance.trace():g}")
    return ", ".join(short), "; ".join(full)


def _described_otherwise(instance: Instance, s: Setting, theorem: Theorem, rule: MethodRule) -> tuple[str, str]:
    """Return the setting in short and in full, for all but one model."""
    m, p = s.method, s.problem
    one_round = not theorem.quantity.by_rounds and p.learns == MODEL_PER_TASK
    if hasattr(p, "words"):
        what, (short, work) = p.words, m.words
    else:
        fed = p.federation
        who = {VERTICAL_MODEL: "owners", HYBRID_MODEL: "blocks"}.get(p.learns, "clients")
        what = f"{fed.K} {who}, {fed.n} rows, {fed.d} feature{'s' * (fed.d != 1)}, {p.loss!r}"
        how = {VERTICAL_MODEL: _of_owners, HYBRID_MODEL: _of_blocks}.get(p.learns, _of_environments)
        short, work = how(m, fed.K)
        work += f", every entry of w starts at {float(s.start.flat[0]):g}"
    rounds = [] if one_round else [f"T {s.rounds}"]
    full = [f"{instance.words} ({what})", f"{type(m).__name__}, {work}", rule.words]
    full += [] if one_round else [f"{s.rounds} round{'s' * (s.rounds != 1)}"]
    return ", ".join([instance.name, *short, *rounds]), "; ".join(full)


def _of_environments(m: Any, K: int) -> tuple[list[str], str]:
    """Return how players move, how IRMv1 descends, or how VIRTUAL is damped, in short and in full."""
    if hasattr(m, "buffer"):
        return [f"b {m.buffer}"], f"all at once, {m.response!r} to means of the last {m.buffer}"
    if hasattr(m, "order"):
        return [] if m.order == "in turn" else [m.order], f"{m.order}, {m.response!r}"
    if hasattr(m, "rho"):
        return _sites(m, K)
    return [f"eta {m.step_size:g}"], f"step size {m.step_size:g}"


def _of_owners(m: Any, K: int) -> tuple[list[str], str]:
    """Return how owners of columns work, in short and in full."""
    if not hasattr(m, "step_share"):
        return [], "one gradient"
    who, tau = _who(m.participation, K), f"tau {m.local_steps}"
    theta = m.damping if isinstance(m.damping, str) else f"{m.damping:.4g}"
    full = f"{m.local_steps} local step{'s' * (m.local_steps != 1)} of {m.step_share:g}/L_b, {m.order}, damping {theta}"
    order = [f"share {m.step_share:g}"] * (m.step_share != 1.0) + [m.order] * (m.order != "parallel")
    return [tau, f"theta {theta}", *order, *[who] * bool(who)], ", ".join([full, *[f"{who} take part"] * bool(who)])


def _of_blocks(m: Any, K: int) -> tuple[list[str], str]:
    """Return how rows are drawn, or how local steps are taken, in short and in full."""
    if hasattr(m, "step_size"):
        Q = m.local_steps
        return [f"tau {Q}", f"eta {m.step_size:.4g}"], f"{Q} local step{'s' * (Q != 1)}, step size {m.step_size:.4g}"
    H = "all rows" if m.batch_size is None else f"{m.batch_size} rows of every group"
    late = f", {m.drop:g} of groups do not answer" if m.drop else ""
    return [f"B {m.batch_size}"] * (m.batch_size is not None) + [f"drop {m.drop:g}"] * bool(m.drop), H + late


def _sites(m: Any, K: int) -> tuple[list[str], str]:
    """Return how VIRTUAL is damped, what its clients do and how many take part, in short and in full."""
    who, short, full = _who(m.participation, K), [f"rho {m.rho:.4g}"], [f"damping {m.rho:g}"]
    if m.local_steps is not None:
        short.append(f"tau {m.local_steps}")
        full.append(f"{m.local_steps} natural gradient step{'s' * (m.local_steps != 1)} of {m.step_size:g}")
    return short + [who] * bool(who), ", ".join([*full, *[f"{who} take part"] * bool(who)])


def _of_domains(m: Any) -> tuple[list[str], list[str]]:
    """Return what only methods for several domains have, in short and in full."""
    short, full = [], []
    if isinstance(getattr(m, "domain_step_size", None), float):
        kind = "entropic" if isinstance(m.ascent, EntropicStep) else "projected"
        full.append(f"{kind} steps {m.domain_step_size:.4g} of the domain weights in {m.uncertainty_set!r}")
    if getattr(m, "radius", None) is not None:
        full.append(f"‖w‖ <= {m.radius:g}")
    if hasattr(getattr(m, "sampling", None), "draws"):
        short.append("weighted")
        full.append(f"{m.sampling.draws} domain{'s' * (m.sampling.draws != 1)} drawn for each player")
    if hasattr(m, "mu"):
        short.append(f"mu {m.mu:g}")
        full.append(f"mu = {m.mu:g}")
    return short, full


def _work(m: Any) -> tuple[str, str]:
    """Return what a client does, in short and in full."""
    if getattr(m, "inner_steps", None) is not None:
        return f"m {m.inner_steps}", f"{m.inner_steps} inner steps"
    if hasattr(m, "domain_step_size") and not hasattr(m, "local_steps"):
        return "", "one gradient"
    steps = getattr(m, "local_steps", 1)
    if steps is None or getattr(m, "solver", None) is not None:
        return "exact", "exact solutions"
    low, high = (steps, steps) if isinstance(steps, int) else (min(steps), max(steps))
    tau = f"{low}" if low == high else f"{low} to {high}"
    return f"tau {tau}", f"{tau} local step{'s' * (tau != '1')}"


def _who(p: Any, K: int) -> str:
    """Return who takes part, empty for everybody."""
    if p is None:
        return ""
    if isinstance(p, ProportionalSampling):
        return f"{p.draws} draws"
    scaled = " with weights p_k K/m" if hasattr(p, "scaled") else ""
    return f"{p.clients if hasattr(p, 'clients') else max(1, round(p * K))} of {K}{scaled}"


def _knob(m: Any, problem: Problem, rule: MethodRule) -> str:
    """Return the step size, proximal weight or penalty, with where it comes from."""
    eta = getattr(m, "step_size", None)
    if isinstance(eta, float):
        j = f"1/({1.0 / (eta * smoothness(problem)):.3g}L), " if rule.words.startswith("the ") else ""
        return f"step size {eta:.4g} = {j}{rule.words}"
    if isinstance(getattr(m, "proximal_mu", None), float):
        return f"proximal weight {m.proximal_mu:.4g}, {rule.words}"
    return f"{'penalty' if eta is None else 'step size'} {rule.words}"
