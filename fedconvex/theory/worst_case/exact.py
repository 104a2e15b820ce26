"""The worst case as an interval with its instance, the bracket of the uniform class, and the closed form."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedconvex._check import bad, instance, real, text, whole, wrong_type
from fedconvex.theory.bound import LAST_SYNCHRONISED, SHADOW_AVERAGE, Bound, Hypothesis, Quantity, require
from fedconvex.theory.worst_case.heterogeneity import AtOptimum, Heterogeneity, Shift, UniformUpper
from fedconvex.theory.worst_case.interpolation import Interpolant, WorstInstance
from fedconvex.theory.worst_case.programme import Programme, programme_size, reduced
from fedconvex.theory.worst_case.solving import Best, search

__all__ = [
    "Bracket",
    "Ratio",
    "WorstCase",
    "closed_form_homogeneous",
    "ratio_table",
    "uniform_bracket",
    "worst_case",
]

LIMIT = 64  # largest Gram matrix that is tried unasked: seconds to two minutes
RANGE = 1e6  # largest ratio of lengths: beyond it double precision certifies nothing useful
EPS = float(np.finfo(float).eps)


@dataclass(frozen=True)
class WorstCase:
    """The value of a programme between two certificates.

    Attributes
    ----------
    value : float
        The solver's optimal value, moved into [lower, upper] if it lies outside: an estimate without guarantee.
    lower, upper : float
        Certified: a feasible point attains ``lower``, and multipliers prove that no feasible point exceeds ``upper``.
        Both speak of the programme. For `AtOptimum` and `Shift` that is the class; for `UniformUpper` only ``upper``
        speaks of the class, and for `Shift` only ``lower`` speaks of the uniform class.
    quantity : Quantity
        What is bounded.
    heterogeneity : Heterogeneity
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
    """

    value: float
    lower: float
    upper: float
    quantity: Quantity
    heterogeneity: Heterogeneity
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
            f"  class: {self.heterogeneity}\n"
            f"  Gram matrix {self.gram_size}, {self.constraints} constraints, {self.solver} ({self.status}), "
            f"{self.seconds:.2g} s"
        )


class Bracket(NamedTuple):
    """An interval that holds the worst case of a class."""

    lower: float
    upper: float


class Ratio(NamedTuple):
    """A bound over the worst case: ``least`` = bound/upper, ``most`` = bound/lower. ``most`` < 1 refutes the bound."""

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
    *,
    clients: int,
    local_steps: int,
    rounds: int,
    step_size: float,
    L: float,
    mu: float = 0.0,
    D: float = 1.0,
    heterogeneity: Heterogeneity | None = None,
    metric: Quantity = SHADOW_AVERAGE,
    limit: int = LIMIT,
) -> WorstCase:
    """Return the worst case of FedAvg over a class, with certificates and the functions that attain it.

    Parameters
    ----------
    clients, local_steps, rounds : int
        M, tau, T.
    step_size : float
        eta > 0; steps too large to converge are allowed.
    L, mu : float
        Smoothness and strong convexity of every client, 0 <= mu < L.
    D : float
        ‖x^0 - x*‖ <= D.
    heterogeneity : AtOptimum, UniformUpper or Shift
        The class; AtOptimum(0) if not given.
    metric : Quantity
        SHADOW_AVERAGE (mean over post-update shadow iterates) or LAST_SYNCHRONISED.
    limit : int
        Largest Gram matrix to attempt.

    Raises
    ------
    ValueError
        If the Gram matrix is larger than ``limit``, before anything is built; if an argument is out of range.
    RuntimeError
        If every solver fails.

    Examples
    --------
    Two steps of equal clients, 2/7:

    >>> from fedconvex.theory.worst_case import Shift, worst_case
    >>> w = worst_case(clients=2, local_steps=2, rounds=1, step_size=0.25, L=1.0, heterogeneity=Shift(0.0))
    >>> round(w.lower, 4), round(w.upper, 4), w.gram_size
    (0.2857, 0.2857, 4)
    """
    began = time.perf_counter()
    h = AtOptimum() if heterogeneity is None else heterogeneity
    case = _checked(Case(clients, local_steps, rounds, step_size, L, mu, D, h, metric))
    _check_size(case, limit)
    programme = case.programme()
    return _result(case, programme, search(programme), began)


def uniform_bracket(*, zeta: float, **setting: Any) -> Bracket:
    """Return an interval that holds the worst case of the uniform class: `Shift`'s lower, `UniformUpper`'s upper.

    Parameters
    ----------
    zeta : float
        Uniform heterogeneity.
    **setting
        The other arguments of `worst_case`.
    """
    low = worst_case(heterogeneity=Shift(zeta), **setting)
    return Bracket(low.lower, worst_case(heterogeneity=UniformUpper(zeta), **setting).upper)


class Case(NamedTuple):
    """What the worst case is asked of."""

    clients: int
    local_steps: int
    rounds: int
    step_size: float
    L: float
    mu: float
    D: float
    heterogeneity: Heterogeneity
    metric: Quantity

    def programme(self) -> Programme:
        """Return its programme, with L = D = 1."""
        h = self.heterogeneity
        M, tau, T = reduced(self.clients, self.local_steps, self.rounds, h)
        scaled = type(h)(h.zeta / (self.L * self.D)) if M > 1 else AtOptimum()
        return Programme(M, tau, T, self.step_size * self.L, self.mu / self.L, scaled, self.metric)


def _checked(case: Case) -> Case:
    """Return the case with its numbers checked and converted."""
    who, h = "worst_case", case.heterogeneity
    M, tau, T = (whole(f"{who}: {n}", getattr(case, n), low=1) for n in ("clients", "local_steps", "rounds"))
    eta, L, D = (real(f"{who}: {n}", getattr(case, n), low=0.0, strict=True) for n in ("step_size", "L", "D"))
    L, D = real(f"{who}: L", L, low=1e-100, high=1e100), real(f"{who}: D", D, low=1e-100, high=1e100)
    mu = real(f"{who}: mu", case.mu, low=0.0)
    if mu >= L:
        raise bad(f"{who}: mu", f"be below L = {L:g}", mu)
    if abs(1.0 - eta * L) > RANGE ** (1.0 / (tau * T)):
        raise bad(f"{who}: step_size", f"keep |1 - step_size L|^(local_steps rounds) below {RANGE:g}", eta)
    if not isinstance(h, (AtOptimum, UniformUpper, Shift)):
        raise wrong_type(f"{who}: heterogeneity", "be AtOptimum, UniformUpper or Shift", h)
    if h.zeta > RANGE * L * D:
        raise bad(f"{who}: zeta", f"be at most {RANGE:g} L D", h.zeta, "a larger D keeps upper valid")
    if not any(case.metric is metric for metric in (SHADOW_AVERAGE, LAST_SYNCHRONISED)):
        raise bad(f"{who}: metric", "be SHADOW_AVERAGE or LAST_SYNCHRONISED", case.metric)
    return Case(M, tau, T, eta, L, mu, D, h, case.metric)


def _check_size(case: Case, limit: int) -> None:
    """Raise if the Gram matrix is larger than the limit, before anything is built."""
    size = programme_size(case.clients, case.local_steps, case.rounds, case.heterogeneity, case.metric)
    if size.gram > whole("worst_case: limit", limit, low=1):
        raise bad(
            "worst_case",
            f"stay within a Gram matrix of {limit}",
            f"{size.gram}, with {size.constraints} constraints",
            "take fewer clients (2 and 3 gave the same values wherever compared), local steps or rounds, Shift instead "
            "of UniformUpper, or pass limit= and wait: time grows like the sixth power",
        )


def _result(case: Case, programme: Programme, best: Best, began: float) -> WorstCase:
    """Return the result in the units of the case."""
    L, D, unit, point = case.L, case.D, case.L * case.D**2, best.point
    data = programme.extract(point.vectors, point.values)
    functions = [Interpolant(L, case.mu, D * x, L * D * g, unit * f) for x, g, f in data]
    clients = tuple(functions * (case.clients // len(functions)))
    run = case.local_steps, case.rounds, case.step_size, case.metric
    return WorstCase(
        value=unit * min(max(best.objective, point.value), best.upper),
        lower=unit * point.value,
        upper=unit * best.upper * (1.0 + 4.0 * EPS),
        quantity=case.metric,
        heterogeneity=case.heterogeneity,
        status=best.status,
        solver=best.solver,
        gram_size=programme.gram,
        constraints=len(programme.b),
        seconds=time.perf_counter() - began,
        instance=WorstInstance(D * point.vectors[:, 0], clients, *run),
    )
