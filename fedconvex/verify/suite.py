"""Examine: carry out checks, follow them over the rounds, and put everything on record."""

from __future__ import annotations

import inspect
import platform
import re
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np

from fedconvex.constants import Constants
from fedconvex.methods import ProportionalSampling, UniformSampling
from fedconvex.problems import EnsembleProblem, MovingTarget, MultiTaskProblem, Problem, StumpProblem
from fedconvex.theorems import THEOREMS, Setting, Theorem
from fedconvex.theorems.parts.rules import Way, smoothness
from fedconvex.theory.bound import AssumptionError, Quantity, require
from fedconvex.verify.curves import BoundCurve, curve
from fedconvex.verify.findings import Constant, Finding, Note, Tightness, VerificationReport, WorstCaseInterval
from fedconvex.verify.plans import PLANS, Check, Plan, checks
from fedconvex.verify.tightness import ROWS, exact_worst, no_worst, step_choice, tightness_claims, tightness_row
from fedconvex.verify.verdicts import Outcome, Verdict, verify

__all__ = ["Progress", "verify_suite"]

Progress = Callable[[float, str], None]  # share done in [0, 1], what is being done

ONE_ROUND = {  # no curve over rounds
    Quantity.GRADIENT_NOISE,
    Quantity.INCREMENTAL_NOISE,
    Quantity.STEADY_STATE_MSD,
    Quantity.NEXT_VALUE,
    Quantity.LIMIT_BIAS,
    Quantity.LIMIT_TO_MINIMISERS,
    Quantity.FLOATS,
    Quantity.SOFTMAX_OPTIMUM,
    Quantity.SEPARABILITY,
    Quantity.LARGEST_INCREASE,
}
MODULES = {  # where the name differs from the page's
    "dynamic": "dynamic_msd",
    "agnostic": "agnostic_generalisation",
    "agnostic-rate": "agnostic_rate",
    "agnostic-rate-any-steps": "agnostic_rate",
    "agnostic-rate-entropic": "agnostic_rate",
    "agnostic-floats": "agnostic_communication",
    "agnostic-softmax": "agnostic_softmax",
    "agnostic-softmax-optimum": "agnostic_softmax",
}
MOVED = {  # statements that stand in theorems already
    "fedavg_convex", "fedavg_refined", "fedavg_strongly_convex", "dynamic_msd", "weight_divergence", "scaffold",
    "fedprox", "fedsam", "svrg", "hedging",
}  # fmt: skip


def _examined(check: Check, seed: int, precision: float, most: int, curves: bool) -> Finding:
    plan, theorem = PLANS[check.theorem], THEOREMS[check.theorem]
    way = check.way or plan.way
    rounds = plan.rounds if check.rounds is None else check.rounds
    problem = check.world.make()
    try:
        if check.world.data == "yours" and plan.adapt is not None and _with_one_model(problem):
            problem = plan.adapt(problem)
        require(theorem.name, theorem.about(problem))
    except AssumptionError as error:
        return _refused(check, str(error))
    except (TypeError, ValueError) as error:  # your rows cannot be what the theorem speaks about
        why = f"{theorem.name} does not apply: needs rows that make {theorem.about(problem).text}, got: {error}"
        return _refused(check, why)
    if plan.drift:
        problem = MovingTarget(problem, plan.drift)
    start = np.full(problem.model_shape, plan.start if check.start is None else check.start)
    try:
        method = way.make(theorem, problem, start, rounds)
        verdict = verify(
            theorem, problem, method, rounds=rounds, start=start, seed=seed, precision=precision, most=most
        )
    except np.linalg.LinAlgError:
        raise
    except ValueError as error:  # the method cannot run on the problem
        return _refused(check, f"{theorem.name} does not apply: needs a method that can run, got: {error}")
    setting = Setting(problem, method, rounds, start, seed)
    short, words = _described(check, setting, theorem, way, plan)
    if verdict.bound is None:
        return Finding(check.theorem, short, words, check.world.data, verdict, no_worst("the theorem does not apply"))
    line, bands = _followed(theorem, setting, way) if curves else (None, ())
    worst = exact_worst(theorem, setting)
    if theorem.shown is None:
        constants = _constants(setting)
    else:
        constants = tuple(Constant(name, *value) for name, value in theorem.shown(setting).items())
    return Finding(check.theorem, short, words, check.world.data, verdict, worst, constants, line, bands)


def _with_one_model(problem: Problem) -> bool:
    return not isinstance(problem, (MultiTaskProblem, EnsembleProblem))


def _refused(check: Check, why: str) -> Finding:
    name, words, data = check.world.name, check.world.words, check.world.data
    refused = Verdict(check.theorem, Outcome.NOT_APPLICABLE, why)
    return Finding(check.theorem, name, words, data, refused, no_worst("the theorem does not apply"))


def _followed(theorem: Theorem, s: Setting, way: Way) -> tuple[BoundCurve | None, tuple[WorstCaseInterval, ...]]:
    """Return the curve over rounds up to four times those of the check, and the exact worst cases along it."""
    if theorem.quantity in ONE_ROUND:
        return None, ()
    last = max(4 * s.rounds, 8) if s.rounds <= 3 else s.rounds
    times = sorted({1, 2, 3, s.rounds, *np.unique(np.round(np.geomspace(1, last, 8)).astype(int)).tolist()})
    if not way.by_rounds:
        line = curve(theorem, s.problem, s.method, rounds=times, start=s.start, seed=s.seed)
        return line, tuple(exact_worst(theorem, s._replace(rounds=T)) for T in times)
    runs = [s._replace(rounds=T, method=way.make(theorem, s.problem, s.start, T)) for T in times]
    lines = [curve(theorem, s.problem, r.method, rounds=[r.rounds], start=s.start, seed=s.seed) for r in runs]
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(line, name) for line in lines]) for name in BoundCurve._fields[:-1]
    }
    return lines[0]._replace(**joined), tuple(exact_worst(theorem, run) for run in runs)


def _constants(s: Setting) -> tuple[Constant, ...]:
    """Return scalars with how they were obtained."""
    c: Constants = s.constants()
    names = ("L", "L_s", "mu", "D", "zeta", "zeta_star", "sigma2", "sigma2_star", "Gamma")
    out = [Constant(n, float(getattr(c, n)), c.how.get(n, "given")) for n in names if getattr(c, n) is not None]
    if c.mu_k is not None:
        out.insert(3, Constant("smallest mu_k", float(np.min(c.mu_k)), c.how.get("mu_k", "given")))
    return tuple(out)


def _described(check: Check, s: Setting, theorem: Theorem, way: Way, plan: Plan) -> tuple[str, str]:
    """Return the setting in short and in full."""
    if not _with_one_model(s.problem):
        return _described_otherwise(check, s, theorem, way)
    m, fed = s.method, s.problem.federation
    if hasattr(m, "described"):
        brief, detail = m.described(s.problem, s.rounds)
        domains = f"{fed.n} rows, {fed.d} features"
        return f"{check.world.name}, {brief}", f"{check.world.words} ({domains}); {detail}"
    tau, work = _work(m)
    B, who = getattr(m, "batch_size", None), _who(getattr(m, "participation", None), fed.K)
    one_round = theorem.quantity in ONE_ROUND
    short = [check.world.name, tau, *([] if one_round else [f"T {s.rounds}"])]
    short += ([] if B is None else [f"B {B}"]) + ([who] if who else [])
    game, rules = _of_domains(m)
    short = [*short[:1], *game, *filter(None, short[1:])]
    if theorem.quantity is Quantity.FLOATS:
        short.insert(1, type(m).__name__)
    full = [
        f"{check.world.words} ({fed.K} clients, {fed.n} rows, {fed.d} features, l2 = {s.problem.l2:g})",
        f"{type(m).__name__} with {work} on {'all' if B is None else B} rows",
        _knob(m, s.problem, way),
        f"{who} take part" if who else "everybody takes part",
        f"every entry of the model starts at {float(s.start.flat[0]):g}",
        *rules,
    ]
    full += [] if one_round else [f"{s.rounds} round{'s' * (s.rounds != 1)}"]
    full += [f"a minimiser that moves, E‖q‖² = {plan.drift:g}"] if isinstance(s.problem, MovingTarget) else []
    return ", ".join(short), "; ".join(full)


def _described_otherwise(check: Check, s: Setting, theorem: Theorem, way: Way) -> tuple[str, str]:
    """Return the setting in short and in full, for related tasks and for boosting."""
    m, p, one_round = s.method, s.problem, theorem.quantity in ONE_ROUND and theorem.kind is MultiTaskProblem
    if isinstance(p, MultiTaskProblem):
        fed, low, high = p.federation, int(p.federation.sizes.min()), int(p.federation.sizes.max())
        rows = f"{low} to {high} rows" if low < high else f"{low} row{'s' * (low != 1)}"
        what = f"{fed.K} tasks of {rows}, {fed.n} rows, {fed.d} feature{'s' * (fed.d != 1)}, {p.relation!r}, {p.loss!r}"
        short, work = _nodes(m)
    else:
        assert isinstance(p, EnsembleProblem)
        listed = "all stumps" if isinstance(p, StumpProblem) else f"{p.signed.shape[1]} classifiers"
        what = f"{p.p} source{'s' * (p.p != 1)}, {p.data.n} rows, {listed}, {p.loss!r}"
        mu = getattr(m, "smoothing", None)
        short, work = ([], "the maximum itself") if mu is None else ([f"mu {mu:g}"], f"smoothed by mu = {mu:g}")
    rounds = [] if one_round else [f"T {s.rounds}"]
    full = [f"{check.world.words} ({what})", f"{type(m).__name__}, {work}", way.words]
    full += [] if one_round else [f"{s.rounds} round{'s' * (s.rounds != 1)}"]
    return ", ".join([check.world.name, *short, *rounds]), "; ".join(full)


def _nodes(m: Any) -> tuple[list[str], str]:
    """Return what nodes of MOCHA or CoCoA do in a round, in short and in full."""
    theta, clock, drop = getattr(m, "theta", None), getattr(m, "clock", None), np.max(getattr(m, "drop", 0.0))
    short, full = [], []
    if theta is not None:
        short, full = [f"theta {theta:g}"], [f"local accuracy {theta:g}"]
    elif hasattr(m, "epochs"):
        steps = f"{m.epochs:g} pass{'es' * (m.epochs != 1.0)}" if m.local_steps is None else f"{m.local_steps} steps"
        short, full = [steps], [f"{steps} over its rows" if m.local_steps is None else steps]
    if clock is not None:
        short, full = [*short, f"clock {clock.low:g}"], [*full, f"{clock.low:g} to {clock.high:g} of it by its clock"]
    if drop:
        short, full = [*short, f"drops {drop:g}"], [*full, f"dropped with probability {drop:g}"]
    rule = getattr(m, "sigma", None)
    short += [] if rule is None or rule == "pencil" else [f"sigma' {rule}"]
    return short, "every node: " + ", ".join(full)


def _of_domains(m: Any) -> tuple[list[str], list[str]]:
    """Return what only methods for several domains have, in short and in full."""
    short, full = [], []
    if isinstance(getattr(m, "domain_step_size", None), float):
        entropic = type(m.ascent).__name__ == "EntropicStep"
        kind = "entropic" if entropic else "projected"
        full.append(f"{kind} steps {m.domain_step_size:.4g} of the mixture in {m.uncertainty_set!r}")
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
    return f"{p.clients if isinstance(p, UniformSampling) else max(1, round(p * K))} of {K}"


def _knob(m: Any, problem: Problem, way: Way) -> str:
    """Return the step size, proximal weight or penalty, with where it comes from."""
    eta = getattr(m, "step_size", None)
    if isinstance(eta, float):
        j = f"1/({1.0 / (eta * smoothness(problem)):.3g}L), " if way.words.startswith("the ") else ""
        return f"step size {eta:.4g} = {j}{way.words}"
    if isinstance(getattr(m, "proximal_mu", None), float):
        return f"proximal weight {m.proximal_mu:.4g}, {way.words}"
    return f"{'penalty' if eta is None else 'step size'} {way.words}"


def verify_suite(
    suite: Sequence[Check] | None = None,
    *,
    seed: int = 0,
    precision: float = 0.05,
    most: int = 2048,
    curves: bool = False,
    tightness: bool = True,
    progress: Progress | None = None,
) -> VerificationReport:
    """Carry out checks, and the tightness table.

    Parameters
    ----------
    suite : sequence of Check, optional
        Default all `checks`.
    seed : int
        Of the Monte-Carlo trajectories.
    precision : float
        Half width of a confidence interval as a share of the mean, at which trajectories stop being added.
    most : int
        Most trajectories of a check.
    curves : bool
        Follow every theorem over the rounds, for the page.
    tightness : bool
        Compare bounds with exact worst cases.
    progress : callable, optional
        Takes the share done and what is being done.

    Examples
    --------
    >>> from fedconvex.verify import checks, verify_suite
    >>> found = verify_suite(checks(["weight-divergence-zhao"])[:1], tightness=False)
    >>> found.findings[0].outcome.name, found.violated
    ('HOLDS', False)
    """
    began = time.perf_counter()
    suite = checks() if suite is None else list(suite)
    tell = progress or (lambda share, doing: None)
    total = len(suite) + (len(ROWS) + 3 if tightness else 0)
    findings: list[Finding] = []
    for check in suite:
        tell(len(findings) / total, f"{check.theorem}: {check.world.name}")
        findings.append(_examined(check, seed, precision, most, curves))
    rows: list[Tightness] = []
    steps = None
    if tightness:
        for T, zeta in ROWS:
            tell((len(suite) + len(rows)) / total, f"exact worst case, T = {T}, zeta = {zeta:g}")
            rows.append(tightness_row(T, zeta))
        tell((total - 3) / total, "the best step in the worst case")
        steps = step_choice()
    tell(1.0, "done")
    used = dict.fromkeys(f.theorem for f in findings)
    return VerificationReport(
        tuple(findings),
        {name: _note(THEOREMS[name], findings) for name in used},
        tuple(rows),
        steps,
        tightness_claims(rows, steps) if rows else (),
        _about(seed, precision, most),
        time.perf_counter() - began,
    )


def _note(theorem: Theorem, findings: Sequence[Finding]) -> Note:
    plan = PLANS[theorem.name]
    module = MODULES.get(theorem.name, MODULES.get(theorem.page, theorem.page))
    room = "theorems" if module in MOVED else "theory"
    text = inspect.cleandoc(import_module(f"fedconvex.{room}.{module}").__doc__ or "")
    bounds = [f.verdict.bound for f in findings if f.theorem == theorem.name and f.verdict.bound is not None]
    source = bounds[0].source if bounds else _section(text, "Source")
    return Note(
        theorem.title,
        plan.says,
        plan.loose,
        _section(text, "Statement"),
        source,
        theorem.page,
        theorem.quantity.value,
    )


def _section(text: str, name: str) -> str:
    """Return a section of the docstring of a theorem's module."""
    found = re.search(rf"^{name}\n((?:    .*\n|\n)+)", text + "\n", re.MULTILINE)
    return inspect.cleandoc(found.group(1)) if found else ""


def _about(seed: int, precision: float, most: int) -> dict[str, str]:
    packages = ("fedconvex", "numpy", "scipy", "numba", "cvxpy", "scikit-learn")
    return {
        "seed": str(seed),
        "confidence": "99.9 % for verdicts (Student's t, Bonferroni over looks), 95 % at every point of a curve",
        "precision": f"half width of at most {precision:g} of the mean, or {most:,} trajectories",
        "Python": f"{platform.python_version()}, {platform.system()} {platform.machine()}",
    } | {name: version(name) for name in packages}
