"""The suite: carry out checks, follow them over the rounds, and put everything on record."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from inspect import cleandoc
from typing import Any

import numpy as np

from fedconvex._check import bad
from fedconvex.constants import Constants
from fedconvex.problems import MovingTarget
from fedconvex.theorems import THEOREMS, Setting, Theorem
from fedconvex.theorems.parts.theorem import Check, Instance, MethodRule
from fedconvex.theory.bound import (
    AssumptionError,
    require,
)
from fedconvex.verify.curves import BoundCurve, curve
from fedconvex.verify.descriptions import described, has_one_model
from fedconvex.verify.findings import Constant, Finding, Note, Tightness, VerificationReport, WorstCaseInterval
from fedconvex.verify.tightness import ROWS, exact_worst, no_worst, step_choice, tightness_claims, tightness_row
from fedconvex.verify.verdicts import Outcome, Verdict, verify

__all__ = ["Progress", "checks", "verify_suite"]

Progress = Callable[[float, str], None]  # share done in [0, 1], what is being done


def _checked(check: Check, seed: int, precision: float, most: int, curves: bool) -> Finding:
    theorem, instance = THEOREMS[check.theorem], check.instance
    rule = check.method or theorem.method
    assert rule is not None
    rounds = theorem.rounds if check.rounds is None else check.rounds
    problem = instance.make()
    try:
        if instance.data == "yours" and theorem.adapt is not None and has_one_model(problem):
            problem = theorem.adapt(problem)
        require(theorem.name, theorem.about(problem))
    except AssumptionError as error:
        return _refused(check, str(error))
    except (TypeError, ValueError) as error:  # your rows cannot be what the theorem speaks about
        why = f"{theorem.name} does not apply: needs rows that make {theorem.about(problem).text}, got: {error}"
        return _refused(check, why)
    if theorem.drift:
        problem = MovingTarget(problem, theorem.drift)
    start = np.full(problem.model_shape, theorem.start if check.start is None else check.start)
    try:
        method = rule.make(theorem, problem, start, rounds)
        verdict = verify(
            theorem, problem, method, rounds=rounds, start=start, seed=seed, precision=precision, most=most
        )
    except np.linalg.LinAlgError:
        raise
    except ValueError as error:  # the method cannot run on the problem
        return _refused(check, f"{theorem.name} does not apply: needs a method that can run, got: {error}")
    setting = Setting(problem, method, rounds, start, seed)
    short, words = described(instance, setting, theorem, rule)
    if verdict.bound is None:
        return Finding(theorem.name, short, words, instance.data, verdict, no_worst("the theorem does not apply"))
    line, bands = _followed(theorem, setting, rule) if curves else (None, ())
    worst = exact_worst(theorem, setting)
    if theorem.shown is None:
        constants = _constants(setting)
    else:
        constants = tuple(Constant(name, *value) for name, value in theorem.shown(setting).items())
    return Finding(theorem.name, short, words, instance.data, verdict, worst, constants, line, bands)


def _refused(check: Check, why: str) -> Finding:
    name, words, data = check.instance.name, check.instance.words, check.instance.data
    refused = Verdict(check.theorem, Outcome.NOT_APPLICABLE, why)
    return Finding(check.theorem, name, words, data, refused, no_worst("the theorem does not apply"))


def _followed(
    theorem: Theorem, s: Setting, rule: MethodRule
) -> tuple[BoundCurve | None, tuple[WorstCaseInterval, ...]]:
    """Return the curve over rounds up to four times those of the check, and the exact worst cases along it."""
    if not theorem.quantity.by_rounds:
        return None, ()
    last = max(4 * s.rounds, 8) if s.rounds <= 3 else s.rounds
    times = sorted({1, 2, 3, s.rounds, *np.unique(np.round(np.geomspace(1, last, 8)).astype(int)).tolist()})
    if not rule.by_rounds:
        line = curve(theorem, s.problem, s.method, rounds=times, start=s.start, seed=s.seed)
        return line, tuple(exact_worst(theorem, s._replace(rounds=T)) for T in times)
    runs = [s._replace(rounds=T, method=rule.make(theorem, s.problem, s.start, T)) for T in times]
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


def checks(theorems: Sequence[str] | None = None, instance: Instance | None = None) -> list[Check]:
    """Return the suite in the order of `THEOREMS`, or every theorem on an instance of your own.

    Parameters
    ----------
    theorems : sequence of str, optional
        Default all.
    instance : Instance, optional
        `own` makes it from a problem.

    Raises
    ------
    ValueError
        If a name is unknown.

    Examples
    --------
    >>> from fedconvex.verify import checks
    >>> [check.instance.data for check in checks(["weight-divergence-zhao"])]
    ['synthetic', 'real', 'real', 'real']
    """
    for name in theorems or ():
        if name not in THEOREMS:
            raise bad("theorem", "be one of " + ", ".join(THEOREMS), repr(name))
    out = []
    for name in (name for name in THEOREMS if not theorems or name in theorems):
        every = THEOREMS[name].checks if instance is None else (instance,)
        out += [replace(c if isinstance(c, Check) else Check(c), theorem=name) for c in every]
    return out


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
    suite, tell = checks() if suite is None else list(suite), progress or (lambda share, doing: None)
    total = len(suite) + (len(ROWS) + 3 if tightness else 0)
    findings: list[Finding] = []
    for check in suite:
        tell(len(findings) / total, f"{check.theorem}: {check.instance.name}")
        findings.append(_checked(check, seed, precision, most, curves))
    rows: list[Tightness] = []
    for T, zeta in ROWS if tightness else ():
        tell((len(suite) + len(rows)) / total, f"exact worst case, T = {T}, zeta = {zeta:g}")
        rows.append(tightness_row(T, zeta))
    if tightness:
        tell((total - 3) / total, "the best step in the worst case")
    steps = step_choice() if tightness else None
    tell(1.0, "done")
    return VerificationReport(
        tuple(findings),
        {f.theorem: _note(THEOREMS[f.theorem], findings) for f in findings},
        tuple(rows),
        steps,
        tightness_claims(rows, steps) if rows else (),
        _about(seed, precision, most),
        time.perf_counter() - began,
    )


def _note(theorem: Theorem, findings: Sequence[Finding]) -> Note:
    text = theorem.statement
    bounds = [f.verdict.bound for f in findings if f.theorem == theorem.name and f.verdict.bound is not None]
    return Note(
        theorem.title,
        theorem.says,
        theorem.loose,
        cleandoc(text.statement),
        bounds[0].source if bounds else cleandoc(text.source),
        text.page,
        theorem.quantity.words,
    )


def _about(seed: int, precision: float, most: int) -> dict[str, str]:
    packages = ("fedconvex", "numpy", "scipy", "numba", "cvxpy", "scikit-learn")
    return {
        "seed": str(seed),
        "confidence": "99.9 % for verdicts (Student's t, Bonferroni over looks, wider where few runs make the "
        "variance), 95 % at every point of a curve",
        "precision": f"half width of at most {precision:g} of the mean, or {most:,} trajectories",
        "Python": f"{platform.python_version()}, {platform.system()} {platform.machine()}",
    } | {name: version(name) for name in packages}
