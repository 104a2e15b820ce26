"""One check carried out: the verdict, its curve over the rounds, the exact worst case and the constants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedconvex.constants import Constants
from fedconvex.problems import MovingTarget
from fedconvex.problems.protocol import has_one_model
from fedconvex.theorems import THEOREMS, Setting, Theorem
from fedconvex.theorems.parts.ranges import need_products
from fedconvex.theorems.parts.rules import smoothness
from fedconvex.theorems.parts.theorem import Check, Instance, MethodRule
from fedconvex.theory.bound import AssumptionError, PrecisionError, dropping, require
from fedconvex.traits import traits_of
from fedconvex.verify.check_records import Constant, Finding, WorstCaseInterval
from fedconvex.verify.curves import BoundCurve, curve
from fedconvex.verify.descriptions import described
from fedconvex.verify.tightness import exact_worst, no_worst
from fedconvex.verify.verdicts import Outcome, Verdict, verify


def carried_out(
    theorem: Theorem, check: Check, seed: int = 0, precision: float = 0.05, most: int = 2048, curves: bool = False
) -> Finding:
    """Return what a check of a theorem finds; with ``curves`` it is followed over the rounds.

    Raises
    ------
    ValueError
        If the run or the bound of a check that the theorem comes with fails: a fault of the theorem, and no verdict. On
        your own problem, where the method may not be able to run, the theorem does not apply.
    """
    instance, rule = check.instance, check.method or theorem.method
    assert rule is not None
    try:
        problem = problem_of(theorem, instance)
    except AssumptionError as error:
        return _refused(theorem, check, str(error))
    except (TypeError, ValueError) as error:  # your rows cannot be what the theorem speaks about
        kind = theorem.about(instance.make()).text
        return _refused(theorem, check, f"{theorem.name} does not apply: needs rows that make {kind}, got: {error}")
    setting = None
    try:
        need_products(theorem.name, problem)  # before rules make steps of its constants
        setting = setting_of(theorem, check, problem, seed)
        how: dict[str, Any] = {"rounds": setting.rounds, "start": setting.start, "seed": seed}
        verdict = verify(theorem, problem, setting.method, precision=precision, most=most, **how)
    except np.linalg.LinAlgError:
        raise
    except PrecisionError as error:
        return _refused(theorem, check, str(error), Outcome.INCONCLUSIVE)
    except AssumptionError as error:  # the method's settings rest on what the theorem asks for
        return _refused(theorem, check, str(error))
    except ValueError as error:
        if setting is not None and instance.data in ("synthetic", "real"):  # runs and bounds that checks came with
            raise ValueError(f"{theorem.name} on {instance.name}: {error}") from error
        return _refused(theorem, check, f"{theorem.name} does not apply: needs a method that can run, got: {error}")
    short, words = described(instance, setting, theorem, rule)
    if verdict.bound is None:
        why = "the theorem does not apply" if verdict.outcome is Outcome.NOT_APPLICABLE else "there is no bound"
        worst, without = no_worst(why), dropped(theorem, setting)
        return Finding(theorem.name, short, words, instance.data, verdict, worst, dropped=without)
    searched = instance.data == "searched"
    line, bands = _followed(theorem, setting, rule) if curves and not searched else (None, ())
    worst = no_worst("the instance was searched for") if searched else exact_worst(theorem, setting)
    if theorem.constants is None:
        constants = _constants(setting)
    else:
        constants = tuple(Constant(name, *value) for name, value in theorem.constants(setting).items())
    sharper = THEOREMS[theorem.sharper].value_at(setting) if theorem.sharper else math.inf
    found = Finding(theorem.name, short, words, instance.data, verdict, worst, constants, line, bands, sharper=sharper)
    return replace(found, numbers=numbers_of(setting))


def numbers_of(s: Setting) -> dict[str, float]:
    """Return K, tau, T and eta L of a run, as far as it has them.

    Examples
    --------
    >>> from fedconvex import FedAvg
    >>> from fedconvex.theorems.parts.instances import two_clients
    >>> from fedconvex.verify.checking import numbers_of
    >>> from fedconvex.verify import Setting
    >>> numbers_of(Setting(two_clients.make(), FedAvg(step_size=0.25, local_steps=2), 3, [0.0]))
    {'K': 2, 'T': 3, 'tau': 2, 'eta L': 0.25}
    """
    if not has_one_model(s.problem):
        return {}
    out: dict[str, float] = {"K": s.problem.federation.K, "T": s.rounds}
    local = traits_of(s.method, s.problem).local
    if local is not None and local.equal_steps is not None:
        out["tau"] = local.equal_steps
        if isinstance(local.step_size, float) and np.ptp(local.factor) == 0.0:
            out["eta L"] = local.step_size * float(local.factor[0]) * smoothness(s.problem)
    return out


def problem_of(theorem: Theorem, instance: Instance) -> Any:
    """Return the problem that a theorem is checked on, made of the instance.

    Raises
    ------
    AssumptionError
        If the theorem speaks about another kind of problem.
    """
    problem = instance.make()
    if instance.data == "yours" and theorem.adapt is not None and has_one_model(problem):
        problem = theorem.adapt(problem)
    require(theorem.name, theorem.about(problem))
    return MovingTarget(problem, theorem.drift) if theorem.drift else problem


def setting_of(theorem: Theorem, check: Check, problem: Any, seed: int = 0) -> Setting:
    """Return the run that a check asks about."""
    rule, start = check.method or theorem.method, theorem.start if check.start is None else check.start
    assert rule is not None
    rounds = theorem.rounds if check.rounds is None else check.rounds
    w = np.asarray(start(problem)) if callable(start) else np.full(problem.model_shape, start)
    return Setting(problem, rule.make(theorem, problem, w, rounds), rounds, w, seed)


def dropped(theorem: Theorem, s: Setting) -> Mapping[str, float]:
    """Return the hypothesis that alone fails, with the quantity over the bound that stands there without it.

    Nothing where several fail, where the quantity is not exact, or where the bound cannot be computed without them.
    """
    try:
        require(theorem.name, theorem.about(s.problem), *theorem.statement.scope.hypotheses(s.problem))
        with dropping() as failed:
            bound = theorem.at(s)
        found = theorem.expectation(s, [s.rounds]) if len({h.text for h in failed}) == 1 else None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # what is computed needs it
        return {}
    if found is None or not math.isfinite(bound.value):
        return {}
    measured = float(found.values[0] - found.rounding[0])
    return {failed[0].text: measured / bound.value if bound.value > 0.0 else math.inf if measured > 0.0 else 0.0}


def _refused(theorem: Theorem, check: Check, why: str, outcome: Outcome = Outcome.NOT_APPLICABLE) -> Finding:
    name, words, data = check.instance.name, check.instance.words, check.instance.data
    worst = no_worst("the theorem does not apply" if outcome is Outcome.NOT_APPLICABLE else "there is no bound")
    return Finding(theorem.name, name, words, data, Verdict(theorem.name, outcome, why), worst)


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
