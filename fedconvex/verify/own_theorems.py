"""A theorem of your own: a file that defines it, checked in the suite's instances and searched against."""

from __future__ import annotations

import inspect
import os
import runpy
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from fedconvex._check import among, bad, function, instance, items, real, text, whole
from fedconvex._files import existing
from fedconvex.constants import Constants
from fedconvex.methods import FedAvg
from fedconvex.problems import Problem
from fedconvex.theorems import Theorem
from fedconvex.theorems.parts import instances
from fedconvex.theorems.parts.rules import feasible_work, fixed_step
from fedconvex.theorems.parts.scope import EVERYWHERE
from fedconvex.theorems.parts.theorem import Check, MethodRule, Statement, local_sgd_reading
from fedconvex.theorems.parts.tiny import LOSSES, Real, Sharp, Space, Whole, sharp_checks
from fedconvex.theory.bound import LAST_SYNCHRONISED, AssumptionError, Bound, Quantity
from fedconvex.theory.worst_case import AtOptimum, UniformUpper
from fedconvex.verify.checking import problem_of, setting_of
from fedconvex.verify.search import ROUND, NoSuchTerm, found_by

INSTANCES = (
    instances.two_clients,
    instances.three_clients,
    instances.mean_estimation,
    instances.two_logistic_clients,
    instances.equal_hessians,
    instances.unequal_hessians,
    instances.shifted_logistic,
    instances.uneven_logistic,
    instances.diabetes,
)


def own_theorem(
    name: str,
    bound: Callable[..., Bound],
    quantity: Quantity = LAST_SYNCHRONISED,
    *,
    steps: tuple[float, float] = (0.02, 1.0),
    unit: Callable[[Constants], float] | None = None,
    local_steps: tuple[int, int] = (1, 6),
    batches: int = 2,
    rounds: tuple[int, int] = (1, 100),
    losses: tuple[str, ...] = ("squared", "logistic", "hinge"),
    **fields: Any,
) -> Theorem:
    """Return a theorem about FedAvg with plain local steps and full participation, with the instances of its checks.

    Parameters
    ----------
    name : str
    bound : callable
        ``bound(constants, *, step_size, local_steps, rounds)`` returns a Bound; it asks for constants by
        `fedconvex.theory.known_constants` and for hypotheses by `fedconvex.theory.require`.
    quantity : Quantity
        What it bounds; default E F(w_T) - F* of the last iterate.
    steps : tuple of float
        Smallest and largest step as shares of ``unit``; the suite's instances take the largest.
    unit : callable, optional
        A step from the problem's constants, such as ``lambda c: 2 / (c.L + c.mu)``; default 1/L.
    local_steps, rounds : tuple of int
        Fewest and most; the suite's instances take the most local steps, and 1, 3 and 20 rounds within the limits.
    batches : int
        Rows of the largest mini-batch in the search, 0 for full batches only.
    losses : tuple of str
        "squared", "logistic", "hinge" (smoothed), for the search. Further fields are those of `Theorem`; with
        ``worst_case`` a bound that asks for mu needs ``strongly_convex=True``, or it is held against mu = 0.

    Raises
    ------
    ValueError, TypeError
        If bound is no function, a loss is unknown, or steps and local_steps are no pairs (least, largest).

    Examples
    --------
    >>> from fedconvex.theory import LAST_SYNCHRONISED, Bound, known_constants
    >>> from fedconvex.verify import own_theorem, power
    >>> def bound(constants, *, step_size, local_steps, rounds):
    ...     L, D = known_constants("descent", constants, "L", "D")
    ...     return Bound({"start": 2 * L * D**2 / (rounds + 4)}, LAST_SYNCHRONISED, "Nesterov 2004, Corollary 2.1.2")
    >>> descent = own_theorem("descent", bound, steps=(1.0, 1.0), local_steps=(1, 1), batches=0)
    >>> power(descent, descent.checks[9:10]).whole.factor > 1.0
    True
    """
    _check_pairs(fields.get("worst_case"), steps=steps, local_steps=local_steps, rounds=rounds)
    knobs, taken = _knobs(steps, local_steps, batches), _checked(name, bound, quantity, losses)
    given: dict[str, Any] = {"title": name, "read": local_sgd_reading(name)} | {
        "statement": Statement(title=name, scope=EVERYWHERE),
        "method": _step(unit, steps[1], local_steps=local_steps[1]),
        "space": Space(partial(_method, unit), knobs, losses=taken, rounds=rounds, weighted=True),
    }
    return Theorem(name, quantity, bound, **given | _checks(rounds) | fields)


def _checks(rounds: tuple[int, int]) -> dict[str, Any]:
    """Return the suite's instances at 1, 3 and 20 rounds within the limits."""
    every = tuple(T for T in (1, 3, 20) if rounds[0] <= T <= rounds[1]) or (rounds[0],)
    return {"rounds": every[-1], "checks": tuple(Check(i, rounds=T) for i in INSTANCES for T in every)}


def _knobs(steps: tuple[float, float], local_steps: tuple[int, int], batches: int) -> dict[str, Whole | Real]:
    """Return what a search varies."""
    batch = Whole(0, whole("own_theorem: batches", batches))
    return {"share": Real(*steps), "local_steps": Whole(*local_steps), "batch": batch}


def _method(unit: Any, k: Any) -> Any:
    """FedAvg of the knobs of a search."""
    return _step(unit, k["share"], local_steps=int(k["local_steps"]), batch_size=int(k["batch"]) or None)


def _step(unit: Any, share: float, **settings: Any) -> MethodRule:
    """FedAvg with a share of the unit as its step."""
    if unit is None:
        return fixed_step(share, **settings)
    function("own_theorem: unit", unit)

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> FedAvg:
        step = real("own_theorem: unit(constants)", unit(problem.constants()), low=0.0, strict=True)
        return FedAvg(step_size=share * step, **feasible_work(problem, settings))

    return MethodRule(f"{share:g} of the theorem's unit", make)


def theorems_of(path: str | os.PathLike[str]) -> dict[str, Theorem]:
    """Run a file of Python and return the theorems that it defines, by name.

    A tuple of theorems counts as well, such as ``THEOREMS`` of the files that CONTRIBUTING.md describes.

    Raises
    ------
    ValueError
        If the file cannot be run, or defines no theorem, or two of one name, or one that cannot be checked: without
        checks, without a method for them, or with a bound that does not take what its reading tells it.
    """
    file = existing("--theorem-file", path)
    try:
        names = runpy.run_path(str(file))
    except (Exception, SystemExit) as error:  # the file is the user's, and may raise anything
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)]
        where = f"line {lines[-1]}: " if lines else ""
        raise bad(
            "--theorem-file",
            "be a file of Python that runs",
            f"{where}{error!r}" if isinstance(error, SystemExit) else f"{where}{error}",
        ) from None
    found = [value for value in names.values() if isinstance(value, Theorem)]
    found += [t for group in names.values() if type(group) in (tuple, list) for t in group if isinstance(t, Theorem)]
    if not found:
        cure = "define one, for example with fedconvex.verify.own_theorem"
        raise bad("--theorem-file", "define a Theorem", f"none in {file}", cure)
    out = {theorem.name: theorem for theorem in found}
    if len(out) < len({id(theorem) for theorem in found}):
        raise bad("--theorem-file", "define theorems of different names", ", ".join(t.name for t in found))
    for theorem in out.values():
        _check_usable(theorem, str(file))
    return out


def _check_usable(theorem: Theorem, file: str) -> None:
    """Raise unless a theorem has checks, a method for each, and a bound for the first of them that it applies to."""
    who = f"--theorem-file: {theorem.name}"
    checks = [item if isinstance(item, Check) else Check(item) for item in theorem.checks]
    if not checks:
        raise bad(who, "have checks, or nothing is verified", "none", "give Theorem(checks=(unequal_hessians, ...))")
    alone = next((c for c in checks if c.method is None), None)
    if theorem.method is None and alone is not None:
        cure = "give Theorem(method=fixed_step(1.0)), or Check(instance, method)"
        raise bad(who, "say how the method of its checks is set", f"none for {alone.instance.name}", cure)
    for check in checks:
        try:
            s = setting_of(theorem, check, problem_of(theorem, check.instance))
            told, _ = theorem.read(s) if theorem.read is not None else ({}, ())
            _check_call(who, theorem, told)
            theorem.at(s)
        except (AssumptionError, ArithmeticError):
            continue
        except Exception as error:  # the bound and its reading are the user's, and may raise anything
            if str(error).startswith(who):
                raise
            lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
            got = f"{f'line {lines[-1]}: ' if lines else ''}{error!r}"
            raise bad(who, f"have a bound that can be computed on {check.instance.name}", got) from None
        return


def _check_call(who: str, theorem: Theorem, told: Mapping[str, Any]) -> None:
    """Raise unless a bound takes what its reading tells it: the setting itself, where there is no reading."""
    given = list(told) if theorem.read is not None else ["the setting"]
    try:
        signature = inspect.signature(theorem.bound)
        if theorem.read is None:
            signature.bind(None)
        else:
            signature.bind(**told)
    except TypeError as error:
        takes = f"bound{signature}, {error}"
        cure = "take them all, or **others" if theorem.read is not None else "give Theorem(read=...)"
        raise bad(who, f"have a bound that takes {', '.join(given)}", takes, cure) from None


def searched(theorem: Theorem, budget: int | None, seed: int = 0, progress: Any = None) -> tuple[Check, ...]:
    """Return checks on the sharpest instances that searches find: for the bound, and for each term by a third of it.

    Without a budget the search is for the bound alone, and as long as the theorem's space says.
    """
    if theorem.space is None or (budget is not None and budget < 1):
        return ()
    terms, out = ["", *(_terms(theorem) if budget is not None else ())], list[Sharp]()
    budget = theorem.space.tries if budget is None else budget
    for i, term in enumerate(terms):
        effort = max(budget // 3, min(budget, ROUND)) if term else budget  # random candidates are the same for all
        if progress is not None:
            progress(i / len(terms), f"searching against {term or theorem.name}")
        try:
            found = found_by(theorem, effort, isolate=term or None, seed=seed)
        except NoSuchTerm:  # a setting of the checks has it, no candidate of the space
            continue
        out += [found] if isinstance(found, Sharp) and all(found.tiny != other.tiny for other in out) else []
    return sharp_checks(theorem.space, out, "searched")


def _terms(theorem: Theorem) -> list[str]:
    """Return the terms of the bound, if there are several, in the first setting in which it applies."""
    for item in theorem.checks:
        check = item if isinstance(item, Check) else Check(item)
        try:
            bound = theorem.at(setting_of(theorem, check, problem_of(theorem, check.instance)))
        except (AssumptionError, ArithmeticError):
            continue
        nonzero = [name for name, v in bound.terms.items() if v]
        return nonzero if len(bound.terms) > 1 else []
    return []


def _checked(name: Any, bound: Any, quantity: Any, losses: Any) -> tuple[str, ...]:
    """Return the names of losses, or raise if one of the arguments is not what it should be."""
    text("own_theorem: name", name)
    function("own_theorem: bound", bound)
    instance("own_theorem: quantity", quantity, Quantity)
    losses = items("own_theorem: losses", losses)
    for loss in losses:
        among("own_theorem: losses", loss, tuple(LOSSES))
    return losses


def _check_pairs(kind: Any, **pairs: Any) -> None:
    """Raise unless they are pairs of numbers, and the class of worst cases is one that is known."""
    if kind is not None and kind is not AtOptimum and kind is not UniformUpper:
        raise bad("own_theorem: worst_case", "be the class AtOptimum or UniformUpper", f"{kind!r}")
    for what, ends in pairs.items():
        if not isinstance(ends, tuple) or len(ends) != 2 or not all(isinstance(x, (int, float)) for x in ends):
            raise bad(f"own_theorem: {what}", "be a pair of numbers, the least and the largest", f"{ends!r}")
