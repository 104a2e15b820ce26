"""The worst case as an interval with its instance, the bracket of the uniform class, and the closed form."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedconvex._check import bad, function, instance, real, text, whole, wrong_type
from fedconvex.theory.bound import SHADOW_AVERAGE, Bound, Hypothesis, Quantity, require
from fedconvex.theory.worst_case.classes import RANGE, Problems, Shift, UniformUpper
from fedconvex.theory.worst_case.interpolation import Interpolant
from fedconvex.theory.worst_case.metrics import Metric, metric_of
from fedconvex.theory.worst_case.oracles import ManyOutcomesError, Method, NumericOracle, iterates
from fedconvex.theory.worst_case.programme import CURE, Programme, Trace, grouped, trace
from fedconvex.theory.worst_case.solving import Best, search

STEPS = "smaller steps or fewer of them: double precision certifies nothing useful there"
LIMIT = 64  # largest Gram matrix that is tried unasked: seconds to two minutes
EPS = float(np.finfo(float).eps)


@dataclass(frozen=True)
class WorstInstance:
    """Functions and a start that attain ``lower``: the feasible point of the programme, factorised.

    Attributes
    ----------
    start : array (d,)
        x^0; the optimum x* of F is 0.
    clients : tuple of Interpolant
        F_1, ..., F_M.
    weights : array (M,)
    outcomes : tuple of (probability, choices, noise)
        Every outcome of sampling and noise that is averaged.
    chances : tuple of float
        Probabilities of the values of noise.
    method, metric : function
        The run they are bad for, and what is measured.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theory.worst_case import Problems, gradient_descent, worst_case
    >>> worst = worst_case(gradient_descent(1.0, 1), Problems())
    >>> instance = worst.instance  # the run on it attains the lower end
    >>> bool(np.isclose(instance.simulate(), worst.lower)), bool(instance.violation() < 1e-6)
    (True, True)
    """

    start: np.ndarray
    clients: tuple[Interpolant, ...]
    weights: np.ndarray
    outcomes: tuple[tuple[float, tuple[int, ...], tuple[np.ndarray, ...]], ...]
    method: Method
    metric: Metric
    chances: Sequence[float] = (0.5, 0.5)

    def violation(self) -> float:
        """Return the largest violation of an interpolation inequality over the clients."""
        return max(F.violation() for F in self.clients)

    def value(self, x: np.ndarray) -> float:
        """F(x) = sum_i p_i F_i(x)."""
        return float(sum(p * F.value(x) for p, F in zip(self.weights, self.clients, strict=True)))

    def simulate(self) -> float:
        """Run the method on the functions, in every outcome of sampling and noise, and return the metric."""
        total: Any = 0.0
        for probability, drawn, noise in self.outcomes:
            oracle = NumericOracle(self.weights, self.start, self.clients, noise, drawn, self.chances)
            total = total + probability * np.atleast_1d(self.metric(oracle, iterates(self.method, oracle)))
        return float(np.min(total))


@dataclass(frozen=True)
class WorstCase:
    """The value of a programme between two certificates.

    Attributes
    ----------
    value : float
        The solver's optimal value, moved into [lower, upper] if it lies outside: an estimate without guarantee.
        Infinite if ``upper`` is.
    lower, upper : float
        Certified: a feasible point attains ``lower``, and multipliers prove that no feasible point exceeds ``upper``.
        Both speak of the programme. For `AtOptimum` and `Shift` that is the class; for `UniformUpper` only ``upper``
        speaks of the class, and for `Shift` only ``lower`` speaks of the uniform class. ``upper`` is infinite if no
        multipliers prove a bound: the worst case is infinite, or the solvers do not come near enough.
    quantity : Quantity
        What is bounded.
    problems : Problems
        The class.
    status : str
        The solver's own words; nothing relies on them.
    solver : str
        The attempt that gave ``value``.
    gram_size, constraints : int
        Size of the programme that was solved.
    seconds : float
        Time of building, solving and certifying.
    instance : WorstInstance
        Functions that attain ``lower``. For `UniformUpper` their heterogeneity is bounded at the evaluated points.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, gradient_descent, worst_case
    >>> worst = worst_case(gradient_descent(1.0, 1), Problems())
    >>> bool(worst.lower <= worst.value <= worst.upper), round(worst.upper, 4), worst.gram_size
    (True, 0.1667, 3)
    """

    value: float
    lower: float
    upper: float
    quantity: Quantity
    problems: Problems
    status: str
    solver: str
    gram_size: int
    constraints: int
    seconds: float
    instance: WorstInstance = field(repr=False)

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return (
            f"{self.value:.6g} in [{self.lower:.8g}, {self.upper:.8g}] is the worst {self.quantity.words}\n"
            f"  class: {self.problems}\n"
            f"  Gram matrix {self.gram_size}, {self.constraints} constraints, {self.solver} ({self.status}), "
            f"{self.seconds:.2g} s"
        )


class Bracket(NamedTuple):
    """An interval that holds the worst case of a class.

    Attributes
    ----------
    lower, upper : float
        Certified ends, in the units of the metric.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, UniformUpper, fedavg, uniform_bracket
    >>> found = uniform_bracket(fedavg(0.5, 2, 1), Problems(2, heterogeneity=UniformUpper(1.0)))
    >>> bool(found.lower <= found.upper)
    True
    """

    lower: float
    upper: float


class Ratio(NamedTuple):
    """A bound over the worst case: ``least`` = bound/upper, ``most`` = bound/lower. ``most`` < 1 refutes the bound.

    Attributes
    ----------
    bound : float
        What a theorem gives.
    least, most : float
        Between these lies bound over worst case; 1 means that the bound is attained.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Bracket, closed_form_homogeneous, ratio_table
    >>> bound = closed_form_homogeneous(1.0, 1.0, 0.25, 2, 1)
    >>> ratio_table({"closed form": bound}, Bracket(bound.value / 2, bound.value))["closed form"]
    Ratio(bound=0.2857142857142857, least=1.0, most=2.0)
    """

    bound: float
    least: float
    most: float


class _Valued(Protocol):
    @property
    def value(self) -> float: ...


class _Interval(Protocol):
    @property
    def lower(self) -> float: ...
    @property
    def upper(self) -> float: ...


def ratio_table(bounds: Mapping[str, _Valued], worst: _Interval) -> dict[str, Ratio]:
    """Return every bound over the worst case.

    Parameters
    ----------
    bounds : mapping from str to object with ``value``
    worst : WorstCase or Bracket

    Raises
    ------
    TypeError
        If bounds is no mapping of names to `Bound`, or worst has no lower and upper end.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Bracket, closed_form_homogeneous, ratio_table
    >>> exact = closed_form_homogeneous(1.0, 1.0, 0.25, 2, 1)
    >>> ratio_table({"itself": exact}, Bracket(exact.value, exact.value))["itself"].least
    1.0
    """
    instance("ratio_table: bounds", bounds, Mapping)
    if not all(isinstance(getattr(worst, name, None), (int, float)) for name in ("lower", "upper")):
        raise wrong_type("ratio_table: worst", "be a worst case, with lower and upper", f"{worst!r}")
    for name, b in bounds.items():
        text("ratio_table: name of a bound", name)
        if not hasattr(b, "value"):
            raise wrong_type(f"ratio_table: bounds[{name!r}]", "be a Bound", f"{b!r}")
    return {
        name: Ratio(b.value, b.value / worst.upper, b.value / worst.lower if worst.lower > 0.0 else math.inf)
        for name, b in bounds.items()
    }


def closed_form_homogeneous(L: float, D: float, step_size: float, local_steps: int, rounds: int) -> Bound:
    """Return L D^2/(2 (1 + eta L (tau T + 1))): the worst shadow average of equal clients, for eta L <= 1.5.

    Attained by the Huber function with radius r = D/(1 + eta L (tau T + 1)): its slope is L r along the whole run. That
    half is proved; that nothing is worse is verified against the programme (tau T = 1, 2, 4, 6) but not proved.

    Parameters
    ----------
    L, D, step_size : float
        Smoothness, ‖x^0 - x*‖, step.
    local_steps, rounds : int

    Raises
    ------
    AssumptionError
        If eta L > 1.5.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import closed_form_homogeneous
    >>> 7 * closed_form_homogeneous(L=1.0, D=1.0, step_size=0.25, local_steps=2, rounds=1).value
    2.0
    """
    who = "closed_form_homogeneous"
    L, D, eta = (
        real(f"{who}: {n}", v, low=0.0, strict=True) for n, v in (("L", L), ("D", D), ("step_size", step_size))
    )
    steps = whole(f"{who}: local_steps", local_steps, low=1) * whole(f"{who}: rounds", rounds, low=1)
    needs = require(
        "the closed form without heterogeneity",
        Hypothesis("step_size * L <= 1.5", f"step_size * L = {eta * L:g}", eta * L <= 1.5),
    )
    value = L * D * D / (2.0 * (1.0 + eta * L * (steps + 1)))
    return Bound(
        {"start": value},
        SHADOW_AVERAGE,
        "fedconvex, docs/theory/worst_case.md (lower half derived, upper half verified)",
        needs,
    )


def worst_case(
    method: Method,
    problems: Problems,
    metric: str | Quantity | Metric = "last",
    *,
    over: str = "mean",
    limit: int = LIMIT,
) -> WorstCase:
    """Return the worst case of a method over a class of problems, with certificates and the functions that attain it.

    Parameters
    ----------
    method : function (problem) -> points
        `fedavg`, `scaffold`, `fedprox`, ..., or one of your own: a function of an `Oracle` that returns the models
        after every round (or one model, or `Iterates`), made of gradients, proximal points and linear combinations.
    problems : Problems
        The class.
    metric : str, Quantity or function (problem, iterates) -> number or numbers
        "last", "best", "average", "mean model", "shadow", "distance" or "gradient"; SHADOW_AVERAGE or
        LAST_SYNCHRONISED; or a function of one's own, made of ``problem.value(x)`` and inner products ``u @ v``. Of
        several numbers the least counts.
    over : str
        Where clients are sampled: "mean" for the expected value over all samples, "sequences" for the worst sequence.
    limit : int
        Largest Gram matrix to attempt.

    Raises
    ------
    ValueError
        If the Gram matrix is larger than ``limit``, before anything is built; if an argument is out of range.
    RuntimeError
        If every solver gives up, as some do where the worst case is infinite; else ``upper`` is infinite there.

    Examples
    --------
    A method of one's own, local steps with a proximal pull, in a class of two clients:

    >>> from fedconvex.theory.worst_case import AtOptimum, Problems, worst_case
    >>> def averaged_prox(problem):
    ...     x = problem.start
    ...     for _ in range(2):
    ...         x = problem.mean([client.prox(x, 0.5) for client in problem.clients])
    ...     return x
    >>> w = worst_case(averaged_prox, Problems(2, heterogeneity=AtOptimum(0.5)), "distance")
    >>> round(w.lower, 4), round(w.upper, 4), w.gram_size
    (1.0206, 1.0206, 6)
    """
    began = time.perf_counter()
    function("worst_case: method", method)
    instance("worst_case: problems", problems, Problems)
    quantity, measured = metric_of(metric)
    run = _within(method, problems, measured, whole("worst_case: limit", limit, low=1))
    largest: tuple[Programme, Best] | None = None
    for outcomes in grouped(run.outcomes, over):
        programme = Programme(run.oracle, outcomes)
        best = search(programme)
        if largest is None or best.upper * programme.scale > largest[1].upper * largest[0].scale:
            largest = programme, best
    assert largest is not None
    return _result(method, measured, quantity, *largest, began)


def _within(method: Method, problems: Problems, metric: Metric, limit: int) -> Trace:
    """Return the run in coefficients, or raise where its programme is larger than the limit or out of proportion."""
    try:
        run = trace(method, problems, metric)
    except ManyOutcomesError as error:
        raise bad("worst_case", f"stay within a Gram matrix of {limit}", str(error), CURE) from None
    size = run.size()
    if size.gram > limit:
        got = f"{size.gram}, with {size.constraints} constraints"
        raise bad("worst_case", f"stay within a Gram matrix of {limit}", got, CURE)
    steepest = max(float(np.max(np.abs(P.x), initial=0.0)) for points in run.oracle.points for P in points)
    if steepest > RANGE:
        raise bad("worst_case: method", f"keep the coefficients of its points below {RANGE:g}", f"{steepest:g}", STEPS)
    return run


def uniform_bracket(method: Method, problems: Problems, metric: str | Quantity | Metric = "last") -> Bracket:
    """Return an interval that holds the worst case of the uniform class: `Shift`'s lower, `UniformUpper`'s upper.

    Parameters
    ----------
    method, metric
        As for `worst_case`.
    problems : Problems
        Its heterogeneity gives zeta.

    Raises
    ------
    TypeError
        If problems is no `Problems`.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, UniformUpper, fedavg, uniform_bracket
    >>> bracket = uniform_bracket(fedavg(0.25, 2, 1), Problems(2, heterogeneity=UniformUpper(0.5)), "shadow")
    >>> round(bracket.lower, 6), round(bracket.upper, 6)
    (0.286657, 0.286774)
    """
    instance("uniform_bracket: problems", problems, Problems)
    zeta = problems.heterogeneity.zeta
    low = worst_case(method, replace(problems, heterogeneity=Shift(zeta)), metric)
    if zeta == 0.0:
        return Bracket(low.lower, low.upper)
    return Bracket(low.lower, worst_case(method, replace(problems, heterogeneity=UniformUpper(zeta)), metric).upper)


def terms(
    method: Method, problems: Problems, metric: str | Quantity | Metric = "last", *, limit: int = LIMIT
) -> dict[str, WorstCase]:
    """Return the worst case of the class, and those with one source of error alone: start, heterogeneity, noise.

    What a bound's term of that name can at best be; in the class of "heterogeneity" and "noise" runs start at x*.

    Parameters
    ----------
    method, problems, metric, limit
        As for `worst_case`.

    Raises
    ------
    TypeError
        If problems is no `Problems`.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import AtOptimum, Problems, fedavg, terms
    >>> found = terms(fedavg(0.25, 2, 1), Problems(2, heterogeneity=AtOptimum(0.5)))
    >>> {name: round(w.upper, 4) for name, w in found.items()}
    {'all': 0.2517, 'start': 0.25, 'heterogeneity': 0.0001}
    """
    instance("terms: problems", problems, Problems)
    sizes = {"start": problems.D, "heterogeneity": problems.heterogeneity.zeta, "noise": problems.sigma}
    found = {"all": worst_case(method, problems, metric, limit=limit)}
    for name, size in sizes.items():
        if size > 0.0:
            found[name] = worst_case(method, problems.only(name), metric, limit=limit)
    return found


def _result(
    method: Method, metric: Metric, quantity: Quantity, programme: Programme, best: Best, began: float
) -> WorstCase:
    """Return the result in the units of the class."""
    p, unit, point = programme.problems, programme.scale, best.point
    L, u, V = p.L, p.length, point.vectors
    functions = [Interpolant(L, p.mu, x, g, f) for x, g, f in programme.extract(V, point.values)]
    total = sum(o.drawn.probability for o in programme.outcomes)
    outcomes = tuple(
        (o.drawn.probability / total, o.drawn.taken, tuple(L * u * V[:, : len(e)] @ e for e in o.noise))
        for o in programme.outcomes
    )
    start = u * V[:, 0] if p.D > 0.0 else np.zeros(len(V))
    return WorstCase(
        value=unit * min(max(best.objective, point.value), best.upper) if best.upper < math.inf else math.inf,
        lower=unit * point.value,
        upper=unit * best.upper * (1.0 + 4.0 * EPS),
        quantity=quantity,
        problems=p,
        status=best.status,
        solver=best.solver,
        gram_size=programme.gram,
        constraints=len(programme.b),
        seconds=time.perf_counter() - began,
        instance=WorstInstance(start, tuple(functions), p.p, outcomes, method, metric, p.chances),
    )
