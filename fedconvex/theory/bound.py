"""What bounds are made of: a number with its terms, its quantity, its source and its hypotheses."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedconvex._check import wrong_type
from fedconvex.constants import AT_CENTRE, NO_MINIMISER, Constants

__all__ = [
    "LAST_SYNCHRONISED",
    "MEAN_SQUARE_DEVIATION",
    "SHADOW_AVERAGE",
    "AssumptionError",
    "Bound",
    "Hypothesis",
    "PrecisionError",
    "Quantity",
    "dropping",
    "holding",
    "known_constants",
    "least_choice",
    "require",
]


class Dimension(enum.Enum):
    """What a quantity is measured in, on which depends how far double precision may move it."""

    VALUE = "units of the objective"
    LENGTH = "units of the model"
    SQUARED_LENGTH = "squared units of the model"
    SQUARED_GRADIENT = "squared units of the gradient"


@dataclass(frozen=True)
class Quantity:
    """What a theorem speaks about.

    Attributes
    ----------
    words : str
        In words: which model, which average, which norm.
    axis : str
        For the axis of a figure.
    dimension : Dimension
    by_rounds : bool
        Whether it can be followed over the rounds.
    least : float
        No value is smaller: 0 for excesses, norms and counts. Default -inf.
    of_minimum : bool
        Whether it is measured from F* or w*: then a minimiser is asked for, with its certificate. Default False.
    latex : str
        In symbols, for the left side of a formula; empty where no formula needs it.

    Examples
    --------
    >>> from fedconvex.theory import Quantity
    >>> distance = Quantity("E‖w_T - w*‖^2 of the last iterate", "squared distance", least=0.0, of_minimum=True)
    >>> distance.by_rounds, distance.least
    (True, 0.0)
    """

    words: str
    axis: str = "quantity"
    dimension: Dimension = Dimension.VALUE
    by_rounds: bool = True
    least: float = -math.inf
    of_minimum: bool = False
    latex: str = ""


# Quantities that several theorems speak about
FROM_MINIMUM: Any = {"least": 0.0, "of_minimum": True}  # excesses over F*, distances from w*
SHADOW_AVERAGE = Quantity(
    "mean over rounds t < T and steps k = 1..tau of E F(wbar^{t,k}) - F*",
    "mean suboptimality",
    latex=r"\frac{1}{\tau T} \sum_{t=0}^{T-1} \sum_{k=1}^{\tau} \mathrm{E} f(\bar w^{t,k}) - f^*",
    **FROM_MINIMUM,
)
LAST_SYNCHRONISED = Quantity(
    "E F(w_T) - F* of the last synchronised iterate",
    "suboptimality",
    latex=r"\mathrm{E} f(w_T) - f^*",
    **FROM_MINIMUM,
)
MEAN_SQUARE_DEVIATION = Quantity(
    "E‖w_T - w*_T‖^2 of the last iterate",
    "mean-square deviation",
    Dimension.SQUARED_LENGTH,
    latex=r"\mathrm{E} \|w_T - w_T^*\|^2",
    **FROM_MINIMUM,
)
STEADY_STATE_MSD = Quantity(
    "limit of E‖w_i - w*_i‖^2",
    dimension=Dimension.SQUARED_LENGTH,
    by_rounds=False,
    latex=r"\limsup_{i \to \infty} \mathrm{E} \|w_i - w_i^*\|^2",
    **FROM_MINIMUM,
)


_FAR = 1e75  # of smoothness: products of four such numbers neither overflow nor vanish
_DROPPED: ContextVar[list[Hypothesis] | None] = ContextVar("dropped", default=None)
_HELD: ContextVar[list[int] | None] = ContextVar("held", default=None)


class AssumptionError(ValueError):
    """A hypothesis of a theorem fails; the message names it, with its numbers.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedlin import fedlin_factor
    >>> fedlin_factor(Constants(L=1.0, mu=0.0), step_size=0.1, local_steps=2)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    fedconvex.theory.bound.AssumptionError: ... needs F strongly convex, 0 < mu <= L, got mu = 0, L = 1
    """


class PrecisionError(AssumptionError):
    """A bound is not a number in double precision: whether the theorem holds there is not known.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theory import PrecisionError, known_constants
    >>> try:
    ...     known_constants("descent", Constants(L=1e300), "L")
    ... except PrecisionError as error:
    ...     print("not in double precision")
    not in double precision
    """


@dataclass(frozen=True)
class Hypothesis:
    """One hypothesis with the numbers that were put in, and whether it holds.

    Attributes
    ----------
    text : str
        The hypothesis, with its symbols: "step_size < 2/L".
    numbers : str
        What was put in: "step_size = 0.5, L = 1".
    holds : bool
        Whether it is true of them.

    Examples
    --------
    >>> from fedconvex.theory import Hypothesis
    >>> str(Hypothesis("step_size < 2/L", "step_size = 0.5, L = 1"))
    'step_size < 2/L [step_size = 0.5, L = 1]'
    """

    text: str
    numbers: str
    holds: bool = True

    def __str__(self) -> str:
        return f"{self.text} [{self.numbers}]" + ("" if self.holds else ": FAILS")


@dataclass(frozen=True)
class Bound:
    """A bound with its address.

    Attributes
    ----------
    value : float
        The bound: what ``combine`` makes of its terms.
    terms : mapping from str to float
        Its named terms.
    quantity : Quantity
        What it bounds.
    source : str
        Authors, year, theorem or equation number.
    requires : tuple of Hypothesis
        All hypotheses with their numbers; every one of them holds.
    combine : callable
        What the statement makes of the terms, in their order: their sum, by default.

    Examples
    --------
    >>> from fedconvex.theory.bound import SHADOW_AVERAGE, Bound
    >>> bound = Bound({"start": 1.0, "noise": 0.5}, SHADOW_AVERAGE, "an example")
    >>> bound.value
    1.5
    """

    terms: Mapping[str, float]
    quantity: Quantity
    source: str
    requires: tuple[Hypothesis, ...] = ()
    value: float = field(init=False)  # so that dataclasses.replace computes it anew
    combine: Callable[[Sequence[float]], float] = sum

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", float(self.combine(list(self.terms.values()))))

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        lines = [f"{self.value:.6g} bounds {self.quantity.words}", f"  source: {self.source}"]
        lines += [f"  {name:>24} {term:.6g}" for name, term in self.terms.items()]
        return "\n".join(lines + [f"  requires {h}" for h in self.requires])


@contextmanager
def dropping() -> Iterator[list[Hypothesis]]:
    """Return a context in which hypotheses pass that `require` would refuse, and that lists them.

    Examples
    --------
    >>> from fedconvex.theory.bound import Hypothesis, dropping, require
    >>> with dropping() as dropped:
    ...     passed = require("sums", Hypothesis("two numbers", "one", holds=False))
    >>> [h.text for h in dropped]
    ['two numbers']
    """
    dropped: list[Hypothesis] = []
    token = _DROPPED.set(dropped)
    try:
        yield dropped
    finally:
        _DROPPED.reset(token)


@contextmanager
def holding() -> Iterator[None]:
    """Return a context in which `least_choice` chooses once, for one bound, and then the same again.

    Examples
    --------
    >>> from fedconvex.theory.bound import holding, least_choice
    >>> with holding():
    ...     first, second = least_choice([2.0, 1.0]), least_choice([1.0, 2.0])
    >>> first, second
    (1, 1)
    """
    token = _HELD.set([])
    try:
        yield
    finally:
        _HELD.reset(token)


def least_choice(values: Any) -> int:
    """Return where a bound with free parameters is least.

    Parameters
    ----------
    values : array (n,)
        Of the bound, for every choice of its free parameters.

    Examples
    --------
    >>> from fedconvex.theory.bound import least_choice
    >>> least_choice([2.0, 1.0, 3.0])
    1
    """
    held = _HELD.get()
    if held:
        return held[0]
    least = int(np.argmin(values))
    if held is not None:
        held.append(least)
    return least


def require(theorem: str, *hypotheses: Hypothesis) -> tuple[Hypothesis, ...]:
    """Return the hypotheses, or raise if one fails.

    Parameters
    ----------
    theorem : str
        Its name and source, for the message.
    *hypotheses : Hypothesis
        With the numbers of the setting.

    Raises
    ------
    AssumptionError
        Naming the theorem and every hypothesis that fails, with its numbers.

    Examples
    --------
    >>> from fedconvex.theory import Hypothesis, require
    >>> require("descent", Hypothesis("step_size < 2/L", "step_size = 3, L = 1", holds=False))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    fedconvex.theory.bound.AssumptionError: descent does not apply: needs step_size < 2/L, got step_size = 3, L = 1
    """
    failed, dropped = [h for h in hypotheses if not h.holds], _DROPPED.get()
    if dropped is not None:
        dropped += failed
    elif failed:
        raise AssumptionError(
            f"{theorem} does not apply: " + "; ".join(f"needs {h.text}, got {h.numbers}" for h in failed)
        )
    return hypotheses


def known_constants(theorem: str, constants: Constants, *names: str) -> tuple[Any, ...]:
    """Return the named constants, or raise where one is missing, infinite, or known at one point only.

    Parameters
    ----------
    theorem : str
        Its name and source, for the message.
    constants : Constants
        Of a problem, or made by hand.
    *names : str
        Which are asked for: "L", "mu", "sigma2", ...

    Raises
    ------
    AssumptionError
        Naming the constant and how it was obtained.
    PrecisionError
        If steps of the order of 1/L would vanish in products, and a bound with them.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theory import known_constants
    >>> known_constants("descent", Constants(L=2.0, D=1.0), "L", "D")
    (2.0, 1.0)
    """
    out = []
    for name in names:
        if not hasattr(constants, name):
            kind = type(constants).__name__
            raise wrong_type(f"{theorem}: constants", f"be constants that have {name}", kind, "see Problem.constants")
        value, how = getattr(constants, name), getattr(constants, "how", {}).get(name, "given")
        if value is None:
            raise AssumptionError(f"{theorem} does not apply: needs the constant {name}, which was not given")
        if name in ("sigma2", "G2", "sigma2_k", "G2_k") and how == AT_CENTRE:
            raise AssumptionError(f"{theorem} does not apply: needs a uniform {name}, got its value at one point")
        if how == NO_MINIMISER:
            raise AssumptionError(f"{theorem} does not apply: needs {name} at a minimiser, which is not known to exist")
        if getattr(value, "ndim", 0) == 0 and not math.isfinite(value):
            raise AssumptionError(f"{theorem} does not apply: needs a finite {name}, got {value} ({how})")
        if name in ("L", "L_s"):
            with_powers(theorem, name, value)
        out.append(value)
    return tuple(out)


def with_powers(theorem: str, name: str, value: float) -> None:
    """Raise unless products of four such numbers, smoothnesses or steps, neither overflow nor vanish.

    Raises
    ------
    PrecisionError
        Naming the constant, which is neither 0 nor within 1e-75 and 1e75.
    """
    if not (value == 0.0 or 1.0 / _FAR <= value <= _FAR):
        needs = f"{name} within 1e-75 and 1e75, whose powers are numbers, got {value:g}: scale the features"
        raise PrecisionError(f"{theorem} is not decided: needs {needs}")
