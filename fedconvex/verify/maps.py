"""How tight a bound is over step sizes and local steps: bound over exact worst case, beside what an instance shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedconvex._check import bad, function, instance, items, real, whole
from fedconvex.theorems import Theorem
from fedconvex.theorems.parts.theorem import Check
from fedconvex.theorems.parts.tiny import Real, Whole
from fedconvex.theory.bound import AssumptionError
from fedconvex.verify.check_records import TightnessMap
from fedconvex.verify.checking import problem_of, setting_of
from fedconvex.verify.tightness import exact_worst
from fedconvex.verify.verdicts import find_theorem

SHARES = (1.0, 0.75, 0.5, 0.25, 0.1)  # of the largest step, or other real number of the method
COUNTS = (1, 2, 3, 4, 6)  # local steps
WHOLE_KNOBS = ("local_steps", "Q", "tau")
FEW = {"copies": 1, "draws": 0, "participation": 64}  # numbers of methods that are not 0 at their least


def tightness_map(
    theorem: Theorem | str,
    check: Check | None = None,
    *,
    shares: Sequence[float] = SHARES,
    counts: Sequence[int] = COUNTS,
    rounds: int | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> TightnessMap:
    """Return bound over exact worst case of a theorem, over the step size and the number of local steps.

    Parameters
    ----------
    theorem : Theorem or str
        With a ``space``, whose real number is the step (or the damping, or the penalty) as a share of a unit.
    check : Check, optional
        Whose instance gives the constants of the class: default the shortest of the theorem's that has a worst case.
    shares : sequence of float
        Steps, as shares of the largest that the space has.
    counts : sequence of int
        Numbers of local steps; one where the method has none.
    rounds : int, optional
        Default those of the check.
    progress : callable, optional
        Told the share done, and what is being done.

    Raises
    ------
    ValueError
        If the theorem has no space with a real number, or no exact worst case within reach.

    Examples
    --------
    One round of one step of 1/L: the bound D^2/(2 eta) is three times the exact worst case L D^2/(2 (1 + 2 eta L)):

    >>> from fedconvex.verify import tightness_map
    >>> found = tightness_map("fedavg-refined-sharp", shares=[1.0], counts=[1], rounds=1)
    >>> found.first, found.second, found.ratio.shape
    ('share', 'local_steps', (1, 1))
    """
    theorem = find_theorem(theorem)
    steps = [real("tightness_map: shares", x, low=0.0, high=1.0, strict=True) for x in items("shares", shares)]
    numbers = [whole("tightness_map: counts", n, low=1) for n in items("tightness_map: counts", counts)]
    rounds = None if rounds is None else whole("tightness_map: rounds", rounds, low=1)
    function("tightness_map: progress", print if progress is None else progress)
    first, second = _axes(theorem)
    if check is None:
        check = _with_worst_case(theorem)
    instance("tightness_map: check", check, Check)
    knobs = theorem.space.knobs
    top, shape = float(knobs[first].high), (len(steps), len(numbers) if second else 1)
    bound, low, high, seen = (np.full(shape, math.nan) for _ in range(4))
    for k, at in enumerate(np.ndindex(*shape)):
        if progress is not None:
            progress(k / bound.size, f"bound over worst case of {theorem.name}")
        chosen = {first: top * steps[at[0]]} | ({second: numbers[at[1]]} if second else {})
        bound[at], low[at], high[at], seen[at] = _cell(theorem, check, _numbers(knobs, chosen), rounds)
    words = f"{check.instance.name}, T {check.rounds or theorem.rounds if rounds is None else rounds}"
    axis = np.array([top * x for x in steps])
    return TightnessMap(theorem.name, words, first, axis, second, np.array(numbers[: shape[1]]), bound, low, high, seen)


def _axes(theorem: Theorem) -> tuple[str, str]:
    """Return the names of the number that stands for the step, and of the local steps, empty where there are none."""
    knobs = {} if theorem.space is None else theorem.space.knobs
    first = next((name for name in ("share", "damping", "rho", "mu") if isinstance(knobs.get(name), Real)), None)
    if first is None:
        cure = "take one with Space(knobs={'share': Real(...)})"
        raise bad("tightness_map: theorem", "vary a step size in its space", theorem.name, cure)
    return first, next((name for name in WHOLE_KNOBS if isinstance(knobs.get(name), Whole)), "")


def _numbers(knobs: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return all numbers of a method: those that are chosen, and the least of the others: nothing is drawn."""
    return {name: FEW.get(name, limits.low) for name, limits in knobs.items()} | dict(chosen)


def _cell(theorem: Theorem, check: Check, knobs: Mapping[str, Any], rounds: int | None) -> tuple[float, ...]:
    """Return bound, both ends of the worst case and what is measured; NaN where there is none."""
    check = Check(check.instance, theorem.space.method(knobs), rounds or check.rounds, check.start)
    try:
        s = setting_of(theorem, check, problem_of(theorem, check.instance))
        bound, worst = theorem.at(s).value, exact_worst(theorem, s)
        found = theorem.expectation(s, [s.rounds])
    except (AssumptionError, ArithmeticError, ValueError):
        return (math.nan,) * 4
    measured = math.nan if found is None else float(found.values[0])
    return bound, worst.lower, worst.upper, measured


def _with_worst_case(theorem: Theorem) -> Check:
    """Return the check of the fewest rounds that has an exact worst case, as it stands in the theorem."""
    checks = [item if isinstance(item, Check) else Check(item) for item in theorem.checks]
    for check in sorted(checks, key=lambda check: check.rounds or theorem.rounds):
        try:
            s = setting_of(theorem, check, problem_of(theorem, check.instance))
            theorem.at(s)
        except (AssumptionError, ArithmeticError, ValueError):
            continue
        if check.instance.data != "searched" and s.rounds <= 5 and exact_worst(theorem, s).has_interval:
            return check
    cure = "give check=, an instance within reach of a programme"
    raise bad("tightness_map: theorem", "have an exact worst case in one of its checks", theorem.name, cure)
