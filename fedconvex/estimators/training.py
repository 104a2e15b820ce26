"""How an estimator's problem is minimised: exactly, or by a federated method, in both cases with a certified gap."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from fedconvex import methods
from fedconvex._check import bad, flag, real, unknown, whole, wrong_type
from fedconvex.driver import Status, Trace, run
from fedconvex.methods.parts.automatic_steps import usual_step
from fedconvex.methods.parts.step_sizes import StepRule


class Fitted(NamedTuple):
    """What training ended with."""

    w: np.ndarray  # the model
    state: Any  # the method's last state, or the exact solution
    value: float  # objective
    gap: float  # certified bound of objective - minimum
    n_iter: int  # rounds, or iterations of the exact solver; at least 1
    trace: Trace
    step_size: str | None  # where the step size comes from


def trained(
    estimator: Any,
    problem: Any,
    exact: Callable[[], Any],
    *,
    scale: float,
    start: Any = None,
    fitting: Callable[[Any], Any],
) -> Fitted:
    """Minimise a problem as the estimator's ``method``, ``step_size``, ``tol``, ``max_iter``, ``random_state`` say.

    Parameters
    ----------
    estimator : estimator
    problem : problem of `fedconvex.problems`
    exact : function
        Solves it exactly: returns w, value, gap and iterations.
    scale : float
        ``tol`` is a share of it.
    start : model, optional
        Where a federated method starts.
    fitting : function of a method
        Returns it, adapted to the estimator's settings, or raises if it minimises something else.

    Raises
    ------
    ValueError, TypeError
        On settings out of range, a method for another problem, or one that diverged.

    Warns
    -----
    ConvergenceWarning
        If the certified gap is larger than tol allows.
    """
    who = type(estimator).__name__
    tol = real(f"{who}.tol", estimator.tol, low=0.0, strict=True)
    rounds, goal = whole(f"{who}.max_iter", estimator.max_iter, low=1), tol * scale
    if isinstance(estimator.method, str) and estimator.method == "solve":
        StepRule(automatic=True)(f"{who}.step_size", estimator.step_size)  # neither is used
        check_random_state(estimator.random_state)
        best = exact()
        parts = {"round": best.iterations, "value": best.value, "gap": best.gap, "seconds": best.seconds}
        trace = Trace({name: np.array([v]) for name, v in parts.items()})
        fit = Fitted(best.w, best, float(best.value), float(best.gap), max(1, best.iterations), trace, None)
        more = "increase max_iter, " if best.iterations >= rounds else ""
        took, cure = f"{fit.n_iter} iterations", f"{more}standardise the features, or regularise more"
    else:
        fit = _by_rounds(estimator, problem, goal, start, fitting)
        more = "increase max_iter, " if fit.n_iter >= rounds else ""  # fewer: it repeats itself
        took, cure = f"{fit.n_iter} rounds", f"{more}standardise the features, or take method='solve'"
    rounding = problem.rounding(np.ravel(fit.w), fit.value) if hasattr(problem, "rounding") else 1e-300
    if not fit.gap <= goal + rounding:
        text = f"{who} stopped after {took} with a certified gap of {fit.gap:.3g}; tol asks for {goal:.3g}: {cure}"
        warnings.warn(text, ConvergenceWarning, stacklevel=4)
    return fit


def _by_rounds(estimator: Any, problem: Any, goal: float, start: Any, fitting: Callable[[Any], Any]) -> Fitted:
    """Run the estimator's federated method until the certified gap is at most goal; raise if it diverges."""
    who, seed = type(estimator).__name__, seed_of(estimator.random_state)
    method, formula = method_of(who, estimator.method, estimator.step_size, problem)
    method, most = fitting(method), estimator.max_iter
    result = run(method, problem, rounds=most, tol=goal, seed=seed, start=start, progress=False)
    if result.status is Status.DIVERGED or not np.isfinite(result.w).all():
        text = f"{who}: method {type(method).__name__} diverged in {result.rounds} rounds"
        raise ValueError(f"{text}; take a smaller step_size, or standardise the features")
    value, gap, step = float(result.trace.value[-1]), float(result.gap), result.step_size or formula
    return Fitted(result.w, result.state, value, gap, max(1, result.rounds), result.trace, step)


def seed_of(random_state: Any) -> int:
    """Return a seed: a whole number as it is, else one that scikit-learn's rules draw."""
    whole_number = isinstance(random_state, (int, np.integer)) and not isinstance(random_state, bool)
    return int(random_state if whole_number else check_random_state(random_state).randint(2**31 - 1))


def start_of(estimator: Any, w: Callable[[], np.ndarray], shape: tuple[int, ...]) -> np.ndarray | None:
    """Return the model of the last fit if ``warm_start`` is set and it has the right shape, else None."""
    if not flag(f"{type(estimator).__name__}.warm_start", estimator.warm_start) or not hasattr(estimator, "coef_"):
        return None
    found = w()
    return found if found.shape == shape else None


def method_of(who: str, given: Any, step_size: Any, problem: Any) -> tuple[Any, str | None]:
    """Return the method that was asked for, and where its step size comes from if it was not given.

    A name is that of a class of `fedconvex.methods`, in small letters; its settings are the defaults, and what it calls
    a step size is ``step_size``. An instance is taken as it is.

    Raises
    ------
    ValueError
        If there is no such method, it has settings without defaults, or an instance, or a method that has none, comes
        with a step size.
    """
    if not isinstance(given, str):
        if isinstance(given, type) or not (hasattr(given, "aggregate") or hasattr(given, "round")):
            raise wrong_type(f"{who}.method", "be 'solve', a method's name or a method", f"{given!r}")
        if not (isinstance(step_size, str) and step_size == "auto"):
            raise bad(f"{who}.step_size", "be 'auto' where method is an instance", step_size, "set it on the method")
        return given, None
    cls = _classes().get(given.lower().replace("_", "").replace("-", ""))
    if cls is None:
        raise unknown(f"{who}.method", given, ["solve", *sorted(_classes())], ", or an instance of a method")
    fields = dataclasses.fields(cls)
    steps = [f.name for f in fields if f.name.endswith("step_size")]
    empty = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING and f.name not in steps]
    if empty:
        cure = f"method={cls.__name__}({', '.join(f'{name}=...' for name in empty + steps)})"
        raise bad(f"{who}.method={given!r}", "be an instance", f"a name, which leaves open {', '.join(empty)}", cure)
    required = [f.name for f in fields if f.name in steps and f.default is dataclasses.MISSING]
    if not (isinstance(step_size, str) and step_size == "auto"):
        if not steps:
            cure = "set what it has on an instance"
            raise bad(f"{who}.step_size", f"be 'auto' for {cls.__name__}, which has no step size", step_size, cure)
        return cls(**dict.fromkeys(required or steps[:1], step_size)), None
    return _automatic(who, cls, required, problem)


def _classes() -> dict[str, type]:
    """Return all methods by name, in small letters."""
    found = {name.lower(): getattr(methods, name) for name in methods.__all__}
    return {name: cls for name, cls in found.items() if hasattr(cls, "aggregate") or hasattr(cls, "round")}


def _automatic(who: str, cls: Any, steps: list[str], problem: Any) -> tuple[Any, str | None]:
    """Return the method with the step of its theorem, or with 1/L of the roughest client where there is none."""
    if not steps:
        return cls(), None
    if steps != ["step_size"]:
        raise bad(f"{who}.step_size", f"be a number for {cls.__name__}", "'auto', for which no theorem is known")
    value, source = usual_step(cls, {}, problem)
    return cls(step_size=value), source
