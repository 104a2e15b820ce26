"""What a theorem file holds: a statement as text, bounds with their readings, and where they are checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from fedconvex._check import bad, wrong_type
from fedconvex.constants import Constants
from fedconvex.problems import Problem
from fedconvex.theorems.parts.bound_formulas import Formula
from fedconvex.theorems.parts.quantities import EXACT, SAMPLE, Exact, Sample, deterministic
from fedconvex.theorems.parts.ranges import need_products
from fedconvex.theorems.parts.rounding import Found, rounding
from fedconvex.theorems.parts.scope import Scope
from fedconvex.theorems.parts.setting import Setting, a_minimiser, local_sgd
from fedconvex.theory.bound import AssumptionError, Bound, Hypothesis, PrecisionError, Quantity, require
from fedconvex.theory.worst_case import AtOptimum, UniformUpper


class Statement(NamedTuple):
    """The text of a statement with its variants, from which its page in docs/theory is made: Markdown.

    Parameters
    ----------
    page : str
        Name of the page.
    title : str
    setting, assumptions, statement : str
        Who does what; what is asked for; what follows. Formulas are indented by four columns.
    source : str
        Authors, year, number; and what is this project's.
    differs : str
        What differs from the printed form.
    meaning, proof, loose : str
        What it means and when it applies; proof; where it is loose.
    figure, caption : str
        Description of the page's figure, for those who do not see it, and its caption; empty where there is none.
    scope : Scope
        Whether it holds with row weights, free coordinates and a penalty; where it says nothing it does not.
    """

    page: str = ""
    title: str = ""
    setting: str = ""
    assumptions: str = ""
    statement: str = ""
    source: str = ""
    differs: str = ""
    meaning: str = ""
    proof: str = ""
    loose: str = ""
    figure: str = ""
    caption: str = ""
    scope: Scope = Scope()


class Reading(NamedTuple):
    """What a bound is told of a setting.

    Attributes
    ----------
    arguments : mapping from str
        What the bound is called with.
    checked : tuple of Hypothesis
        Hypotheses that were checked to find them.

    Examples
    --------
    >>> from fedconvex.verify import Reading
    >>> Reading({"step_size": 0.1, "rounds": 10}).arguments["rounds"]
    10
    """

    arguments: Mapping[str, Any]
    checked: tuple[Hypothesis, ...] = ()  # hypotheses that were checked to find them


def local_sgd_reading(name: str) -> Callable[[Setting], Reading]:
    """Read constants, and the steps of plain local SGD with full participation, for the theorem of that name."""
    return lambda s: Reading({**local_sgd(name, s), "constants": s.constants()})  # other methods are refused first


class Instance(NamedTuple):
    """A problem that theorems are checked on.

    Parameters
    ----------
    name, words : str
        In short, and in full.
    data : str
        "synthetic", "real", "searched" or "yours".
    make : callable
        Returns the problem, always the same one.
    tiny : Tiny, optional
        What a search found, as data.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.verify import Instance
    >>> def make():
    ...     return Problem(Federation.from_clients([([[1.0]], [1.0]), ([[2.0]], [6.0])]), Squared())
    >>> Instance("two-points", "two clients of one row", "synthetic", make).make().federation.K
    2
    """

    name: str
    words: str
    data: str
    make: Callable[[], Any]
    tiny: Any = None


class MethodRule(NamedTuple):
    """How a method is set from what is known of a problem.

    Attributes
    ----------
    words : str
        Where the step size comes from.
    make : callable
        (theorem, problem, start, rounds) -> the method with its settings.
    by_rounds : bool
        Whether the step is meant for that number of rounds only.

    Examples
    --------
    >>> from fedconvex import FedAvg
    >>> from fedconvex.verify import MethodRule
    >>> rule = MethodRule("one tenth", lambda theorem, problem, start, rounds: FedAvg(step_size=0.1))
    >>> rule.make(None, None, None, 10).step_size
    0.1
    """

    words: str  # where the step size comes from
    make: Callable[[Theorem, Problem, np.ndarray, int], Any]  # theorem, problem, start, rounds -> method
    by_rounds: bool = False  # whether the step is meant for that number of rounds only


@dataclass(frozen=True)
class Check:
    """A theorem on an instance; what is None is taken from the theorem.

    Attributes
    ----------
    instance : Instance
    method : MethodRule or None
    rounds : int or None
    start : float, callable or None
        Every entry of the model at the start, or a function of the problem that returns the model.
    theorem : str
        Its name; that of the theorem whose check it is, where it is empty.

    Examples
    --------
    >>> from fedconvex.verify import Check, checks
    >>> check = checks(["fedavg-convex"])[0]
    >>> isinstance(check, Check), check.theorem
    (True, 'fedavg-convex')
    """

    instance: Instance
    method: MethodRule | None = None
    rounds: int | None = None
    start: float | Callable[[Any], np.ndarray] | None = None
    theorem: str = ""


class Programme(NamedTuple):
    """What runs in an exact worst case over convex functions F, of which the method asks gradients of F alone.

    Parameters
    ----------
    method : callable
        (step size in units of 1/L, rounds) -> method of `fedconvex.theory.worst_case`.
    step_size : float
    constants : Constants
        L and D of F.
    """

    method: Callable[[float, int], Any]
    step_size: float
    constants: Constants


class Theorem(NamedTuple):
    """A bound, how it is read off a setting, how its quantity is found, and where both are checked.

    Parameters
    ----------
    name : str
        Short name.
    quantity : Quantity
        What the bound speaks about.
    bound : callable
        Returns a Bound from Constants and numbers; raises AssumptionError where a hypothesis fails.
    title : str
        For people.
    sample : callable, optional
        (Setting, rounds, seed, trajectories) -> the quantity after so many rounds each, of independent runs:
        (len(rounds), trajectories). Default by quantity.
    exact : callable, optional
        (Setting, rounds) -> the expectation after so many rounds each, (len(rounds),), or a `Found` with its rounding,
        or None where only trajectories give it. Default by quantity.
    kind : type
        What it speaks about: Problem (with one model for all clients), MultiTaskProblem, GameProblem, ...
    tolerance : callable, optional
        (Setting, value) -> how far double precision may move a value that runs show. Default by quantity, for problems
        with one model.
    constants : callable, optional
        Setting -> the constants that go in, each with how it was obtained, for reports. Default `Setting.constants`.
    interval : callable, optional
        (Setting, values of independent runs, tail) -> estimate and confidence limits, each missed with probability at
        most tail. Default the mean, with Student's t.
    equation : bool
        The statement is an equation: a quantity below it is a violation too.
    read : callable, optional
        Setting -> Reading, the arguments of the bound. Default: the bound is told the setting itself.
    statement : Statement
    says, loose : str
        One sentence each: what it says, and where it is loose.
    method : MethodRule, optional
        How the method of its checks is set.
    rounds : int
        Of its checks.
    checks : tuple of Instance or Check
        Where it is checked, hypotheses that fail among them.
    drift : float
        E‖q_i‖^2 of a minimiser that moves, in its checks.
    start : float
        Every entry of the model at the start of its checks.
    adapt : callable, optional
        What a problem of your own, with one model for all clients, is turned into.
    worst_case : type, optional
        The class over which the exact worst case is taken: UniformUpper, by zeta, or AtOptimum, by zeta_star.
    programme : callable, optional
        Setting -> `Programme`, where the method's traits do not say what runs in the exact worst case of F alone.
    worst : callable, optional
        Setting -> lower and upper end of the exact worst case over another class, and its words; or NaN, and why there
        is none.
    strongly_convex : bool
        Whether the clients of ``worst_case`` are strongly convex, with the setting's mu; default convex.
    sharper : str, optional
        Name of a theorem that proves more of the same quantity under the same hypotheses: no run comes nearer.
    space : Space, optional
        Where `tightest` looks for instances (`fedconvex.theorems.parts.tiny`).
    formula : Formula or mapping from str to Formula, optional
        The bound as it is printed (`fedconvex.theorems.parts.bound_formulas`); where it differs from run to run, by the
        source that bounds name.

    Examples
    --------
    >>> from fedconvex.theorems import THEOREMS
    >>> theorem = THEOREMS["fedavg-convex"]
    >>> theorem.title, theorem.quantity.axis, len(theorem.checks) > 1
    ('FedAvg, convex (15)', 'mean suboptimality', True)
    """

    name: str
    quantity: Quantity
    bound: Callable[..., Bound]
    title: str = ""
    sample: Sample | None = None
    exact: Exact | None = None
    kind: type = Problem
    tolerance: Callable[[Setting, float], float] | None = None
    constants: Callable[[Setting], Mapping[str, tuple[float, str]]] | None = None
    interval: Callable[[Setting, np.ndarray, float], tuple[float, float, float]] | None = None
    equation: bool = False
    read: Callable[[Setting], Reading] | None = None
    statement: Statement = Statement()
    says: str = ""
    loose: str = ""
    method: MethodRule | None = None
    rounds: int = 1
    checks: tuple[Instance | Check, ...] = ()
    drift: float = 0.0
    start: float = 0.0
    adapt: Callable[[Problem], Any] | None = None
    worst_case: type[UniformUpper | AtOptimum] | None = None
    programme: Callable[[Setting], Programme] | None = None
    worst: Callable[[Setting], tuple[float, float, str]] | None = None
    strongly_convex: bool = False
    sharper: str = ""
    space: Any = None
    formula: Formula | Mapping[str, Formula] | None = None

    @property
    def home(self) -> str:
        """Name of the file that its bound stands in."""
        return self.bound.__module__.rpartition(".")[2]

    def printed(self, bounds: Sequence[Bound]) -> str:
        r"""Return the formulas of these bounds with what they bound and their symbols, LaTeX; all, where none is given.

        Examples
        --------
        >>> from fedconvex.theorems import THEOREMS
        >>> print(THEOREMS["fedavg-convex"].printed([]).splitlines()[0])  # doctest: +ELLIPSIS
        \[ \frac{1}{\tau T} ... - f^* \le \frac{D^{2}}{2 \eta \tau T} + ...
        """
        if isinstance(self.formula, Mapping):
            used = [f for source, f in self.formula.items() if not bounds or any(b.source == source for b in bounds)]
        else:
            used = [] if self.formula is None else [self.formula]
        return "\n\n".join(formula.paragraph(self.quantity.latex) for formula in used)

    def about(self, problem: Problem) -> Hypothesis:
        """Return the hypothesis that the problem is of the kind that the theorem speaks about."""
        article = "an" if self.kind.__name__[0] in "AEIOU" else "a"
        return Hypothesis(f"{article} {self.kind.__name__}", type(problem).__name__, isinstance(problem, self.kind))

    def at(self, s: Setting) -> Bound:
        """Return the bound in a setting.

        Raises
        ------
        AssumptionError
            If a hypothesis fails; it is named with its numbers.
        PrecisionError
            If the bound is no number in double precision, or products of the problem's numbers are none.
        TypeError, ValueError
            If the bound is no `Bound`, or speaks about another quantity.
        """
        require(self.name, self.about(s.problem))
        need_products(self.name, s.problem, s.start, s.method)
        require(self.name, *self.statement.scope.hypotheses(s.problem))
        try:
            reading = self.read(s) if self.read is not None else Reading({})
            if not isinstance(reading, Reading):
                cure = "write Reading({...}, hypotheses)"
                raise wrong_type(f"Theorem {self.name}: read", "return a Reading", type(reading).__name__, cure)
            arguments, checked = reading
            if self.quantity.of_minimum:
                checked = checked + require(self.name, a_minimiser(s.problem))
            bound = self.bound(s) if self.read is None else self.bound(**arguments)
        except ArithmeticError as error:
            why = f"a bound within double precision, got {type(error).__name__}: {error}"
            raise PrecisionError(f"{self.name} is not decided: needs {why}") from error
        if not isinstance(bound, Bound):
            raise wrong_type(f"Theorem {self.name}: bound", "return a Bound", f"{bound!r}")
        if bound.quantity != self.quantity:
            raise bad(f"Theorem {self.name}: bound", f"bound its quantity, {self.quantity.words}", bound.quantity.words)
        number = not (math.isnan(bound.value) or any(math.isnan(v) for v in bound.terms.values()))
        terms = ", ".join(f"{name} = {v:g}" for name, v in bound.terms.items())
        if not number:
            got = f"{bound.value:g} of {terms}"
            raise PrecisionError(f"{self.name} is not decided: needs a bound that is a number, got {got}")
        return replace(bound, requires=checked + bound.requires) if checked else bound

    def value_at(self, s: Setting) -> float:
        """Return the value of the bound in a setting, infinite where the theorem does not apply."""
        try:
            return self.at(s).value
        except AssumptionError:
            return math.inf

    def expectation(self, s: Setting, rounds: Sequence[int]) -> Found | None:
        """Return the exact expectation after every number of rounds with its rounding, or None."""
        exact = self.exact or EXACT.get(self.quantity) or deterministic(self.draw)
        found = exact(s, rounds)
        if found is None or isinstance(found, Found):
            return found
        return Found(
            found, np.array([self.rounding(s._replace(rounds=T), v) for T, v in zip(rounds, found, strict=True)])
        )

    def draw(self, s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
        """Return the quantity of independent runs, (len(rounds), trajectories)."""
        sample = self.sample or SAMPLE.get(self.quantity)
        if sample is None:
            raise bad(f"Theorem {self.name}", "know how to measure its quantity", self.quantity.words, "pass sample=")
        return sample(s, rounds, seed, trajectories)

    def estimate(self, s: Setting, values: np.ndarray, tail: float) -> tuple[float, float, float]:
        """Return the quantity and its confidence limits from the values of independent runs."""
        if self.interval is not None:
            return self.interval(s, values, tail)
        n, mean = values.size, float(values.mean())
        half = float(stats.t.ppf(1.0 - tail, n - 1) * values.std(ddof=1) / math.sqrt(n))
        return mean, mean - half, mean + half

    def rounding(self, s: Setting, value: float) -> float:
        """How far double precision may move a value of the quantity that runs show."""
        return self.tolerance(s, value) if self.tolerance is not None else rounding(self.quantity, s, value)
