"""What a verification found: one record a check, and a report of them all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedconvex.theory.bound import Bound
from fedconvex.verify.curves import BoundCurve
from fedconvex.verify.verdicts import Outcome, Verdict

OUTCOME_WORDS = {
    Outcome.HOLDS: "holds",
    Outcome.VACUOUS: "vacuous",
    Outcome.VIOLATED: "VIOLATED",
    Outcome.INCONCLUSIVE: "inconclusive",
    Outcome.NOT_APPLICABLE: "not applicable",
    Outcome.CONTRADICTED: "CONTRADICTED",
}

HALF = 0.5  # an error of an exponent that has to be noticed

EXPECTED = [o for o in Outcome if o is not Outcome.CONTRADICTED]  # what summaries count although there is none


class Claim(NamedTuple):
    """A sentence, whether it came out true, and the numbers that say so."""

    text: str
    holds: bool
    numbers: str


class Constant(NamedTuple):
    """A constant of a problem, with how it was obtained."""

    name: str
    value: float
    how: str


class Note(NamedTuple):
    """What is to be said about a theorem."""

    title: str
    says: str  # one sentence
    loose: str  # where it is loose
    statement: str  # of the module in fedconvex.theory
    source: str
    page: str  # in docs/theory
    quantity: str
    formula: str = ""  # paragraphs of LaTeX: the bound with what it bounds, and its symbols


class WorstCaseInterval(NamedTuple):
    """An interval that holds the exact worst case over all problems with the same constants, or why there is none."""

    lower: float
    upper: float
    words: str  # the class; or the reason

    @property
    def has_interval(self) -> bool:
        """Whether there is an interval."""
        return math.isfinite(self.upper)

    def refutes(self, bound: Bound) -> bool:
        """Whether some problem of the class exceeds the bound: certified, up to rounding."""
        return self.has_interval and bound.value < self.refutable

    @property
    def refutable(self) -> float:
        """The number below which some problem of the class refutes a bound."""
        return (self.lower - 1e-14) / (1.0 + 1e-9) if self.has_interval else -math.inf

    def ratio(self, bound: Bound | None) -> float:
        """Bound over the upper end: at most how loose the theorem is on its class, and no less than that over lower."""
        return bound.value / self.upper if bound is not None and self.has_interval and self.upper > 0.0 else math.nan


@dataclass(frozen=True)
class Finding:
    """One theorem in one setting.

    Attributes
    ----------
    theorem : str
        Its name in `THEOREMS`.
    setting : str
        Short.
    words : str
        The setting in full.
    data : str
        "synthetic", "real" or "yours".
    verdict : Verdict
    worst : WorstCaseInterval
    constants : tuple of Constant
    curve : BoundCurve or None
        Measured value and bound over the rounds.
    worst_curve : tuple of WorstCaseInterval
        One for every round of the curve.
    dropped : mapping from str to float
        The hypothesis that alone fails, if one does, with quantity over bound where it is dropped.
    sharper : float
        The bound of a sharper theorem there, infinite where there is none.
    numbers : mapping from str to float
        Clients K, local steps tau, rounds T and the step in units of 1/L, "eta L", where the method has them.
    """

    theorem: str
    setting: str
    words: str
    data: str
    verdict: Verdict
    worst: WorstCaseInterval
    constants: tuple[Constant, ...] = ()
    curve: BoundCurve | None = None
    worst_curve: tuple[WorstCaseInterval, ...] = ()
    dropped: Mapping[str, float] = field(default_factory=dict)
    sharper: float = math.inf
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome:
        """The verdict, or VIOLATED where the exact worst case exceeds the bound although this run does not."""
        bound = self.verdict.bound
        return Outcome.VIOLATED if bound is not None and self.worst.refutes(bound) else self.verdict.outcome

    @property
    def margin(self) -> float:
        """Half width of the confidence interval, 0 where the value is exact."""
        return 0.5 * (self.verdict.high - self.verdict.low)

    @property
    def why(self) -> str:
        """How the value was obtained, or what the theorem needs and does not get."""
        if self.outcome is Outcome.VIOLATED and self.verdict.outcome is not Outcome.VIOLATED:
            return f"the exact worst case, at least {self.worst.lower:.6g}, exceeds the bound"
        told = self.verdict.reason
        between = {Outcome.NOT_APPLICABLE: " does not apply: ", Outcome.INCONCLUSIVE: " is not decided: "}
        return told.partition(between.get(self.outcome, "\n"))[2] or told


class Noticed(NamedTuple):
    """The smallest factor of an error that is noticed, and where.

    Attributes
    ----------
    factor : float
        Times which the bound, or a term of it, would be too small.
    setting : str
        Where it is noticed.

    Examples
    --------
    >>> from fedconvex.verify import Noticed
    >>> Noticed(1.25, "two clients, 3 rounds").factor
    1.25
    """

    factor: float
    setting: str


class Power(NamedTuple):
    """The smallest errors that the checks of a theorem notice; None where none is.

    Attributes
    ----------
    whole : Noticed or None
        Of the bound, divided by a factor.
    terms : mapping from str to Noticed or None
        Of one term of it, divided by a factor.
    hypotheses : mapping from str to Noticed or None
        How far the quantity exceeds the bound where one fails and is dropped.
    constant : float or None
        The largest share of the bound that was found: times this, it still holds.
    looseness : float or None
        The least bound over exact worst case, or over a sharper theorem's bound.
    violated : bool
        Whether a check came out violated: then the bound is wrong as it stands, and no smaller one is spoken of.

    Examples
    --------
    >>> from fedconvex.verify import THEOREMS, power
    >>> found = power("weight-divergence-zhao", THEOREMS["weight-divergence-zhao"].checks[:1])
    >>> found.whole.factor > 1.0, sorted(found.terms)
    (True, ['drift', 'previous'])
    """

    whole: Noticed | None  # the bound, divided by a factor
    terms: Mapping[str, Noticed | None]  # one term of it, divided by a factor
    hypotheses: Mapping[str, Noticed | None]  # how far the quantity exceeds the bound where one fails and is dropped
    constant: float | None = None  # the largest share of the bound that was found: times this, it still holds
    looseness: float | None = None  # the least bound over exact worst case, or over a sharper theorem's bound
    violated: bool = False

    @property
    def established(self) -> bool:
        """Whether an error of the bound by a factor of 3, or by 1.5 times what it is loose anyway, is noticed."""
        return self.whole is not None and self.whole.factor <= max(3.0, 1.5 * (self.looseness or 0.0))


class Tightness(NamedTuple):
    """Bounds beside the exact worst case of M clients, L = D = 1."""

    rounds: int
    zeta: float
    lower: float  # of the exact worst case at the step 1/(4L)
    upper: float
    bounds: Mapping[str, float]  # R1#, R1, (15) at that step, and (17), whose step (16) it is
    attained: float  # what FedAvg shows on the functions found; equals lower

    def ratio(self, name: str) -> float:
        """Bound over the upper end of the worst case."""
        return self.bounds[name] / self.upper


class StepChoice(NamedTuple):
    """The step size that minimises the exact worst case, beside the one that minimises (15)."""

    words: str
    steps: np.ndarray  # (n,) eta L
    worst: np.ndarray  # (n,) certified upper ends
    bound: np.ndarray  # (n,) (15), NaN above 1/(4L)
    sharp: np.ndarray  # (n,) R1#, NaN above 1/L
    best: tuple[float, float]  # step and exact worst case there
    best_bound: tuple[float, float]  # step and (15) there
    worst_there: float  # exact worst case at the step that minimises (15)


class TightnessMap(NamedTuple):
    """A bound beside the exact worst case over step sizes and numbers of local steps; NaN where there is none.

    Parameters
    ----------
    theorem, words : str
        And the instance that gives the constants, with the rounds.
    first : str
        What varies over the rows: "share" of 1/L, or another number of the method.
    values : array (n,)
        Of it.
    second : str
        What varies over the columns; empty where nothing does.
    counts : array (m,)
        Of it.
    bound, lower, upper, measured : array (n, m)
        The bound, both ends of the exact worst case, and what the instance itself shows.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.verify import TightnessMap
    >>> one = np.ones((1, 2))
    >>> found = TightnessMap("mine", "", "share", np.array([0.5]), "tau", np.array([1, 2]), 3 * one, one, 2 * one, one)
    >>> found.ratio
    array([[1.5, 1.5]])
    """

    theorem: str
    words: str
    first: str
    values: np.ndarray
    second: str
    counts: np.ndarray
    bound: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    measured: np.ndarray

    @property
    def ratio(self) -> np.ndarray:
        """Bound over the upper end of the worst case: at least so loose is the bound, (n, m)."""
        return np.divide(self.bound, self.upper, out=np.full_like(self.bound, math.nan), where=self.upper > 0.0)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return heads and rows: the ratio with three digits, an empty cell where there is none."""
        heads = [self.first, *(f"{self.second} {n}" if self.second else "ratio" for n in self.counts.tolist())]
        rows = zip(self.values.tolist(), self.ratio.tolist(), strict=True)
        return heads, [[f"{v:.3g}", *("" if math.isnan(x) else f"{x:.3g}" for x in row)] for v, row in rows]


class Exponent(NamedTuple):
    """How well an exponent is known.

    Parameters
    ----------
    term, parameter : str
        Of the bound.
    bound : float
        Exponent of the parameter in the term at the place where it presses most, of those where it depends on it.
    fitted : float
        Exponent of the measured value less the other terms, along a ladder; nan where no ladder varies the parameter
        alone, or nothing is left.
    span : float
        Largest value of the parameter on that ladder over the least.
    error : float
        The smallest error of the exponent that is noticed; infinite where none is.
    share : float
        The largest share of the term that was measured anywhere.

    Examples
    --------
    >>> from fedconvex.verify import Exponent
    >>> Exponent("drift", "local_steps", 2.0, 1.98, 16.0, 0.2, 0.7).established
    True
    """

    term: str
    parameter: str
    bound: float
    fitted: float
    span: float
    error: float
    share: float

    @property
    def established(self) -> bool:
        """Whether an error of one half is noticed."""
        return self.error <= HALF

    @property
    def words(self) -> str:
        """What would be noticed, or why nothing is."""
        if math.isfinite(self.error):
            return f"an error of {self.error:.2g} would be noticed"
        if self.share > 0.0:
            return f"not established: {self.share:.2g} of the term was measured, with {self.parameter} near 1"
        return "not established: no instance is known that presses on the term"


@dataclass(frozen=True)
class VerificationReport:
    """All that was found, and what is needed to repeat it.

    Attributes
    ----------
    findings : tuple of Finding
    notes : mapping from theorem to Note
    tightness : tuple of Tightness
    steps : StepChoice or None
    claims : tuple of Claim
        About the tightness table.
    about : mapping from str to str
        Versions, seed, settings of the statistics.
    seconds : float
    powers : mapping from theorem to Power
    exponents : mapping from theorem to tuple of Exponent
        Where they were asked for.
    counterexamples : tuple of PrintedInstance
        To theorems that are violated, one each.
    maps : tuple of TightnessMap
        Where they were asked for.

    Examples
    --------
    >>> from fedconvex.verify import checks, verify_suite
    >>> report = verify_suite(checks(["weight-divergence-zhao"])[:1], tightness=False)
    >>> report.violated, report.inconclusive, list(report.powers)
    (False, False, ['weight-divergence-zhao'])
    """

    findings: tuple[Finding, ...]
    notes: Mapping[str, Note]
    tightness: tuple[Tightness, ...] = ()
    steps: StepChoice | None = None
    claims: tuple[Claim, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    powers: Mapping[str, Power] = field(default_factory=dict)
    exponents: Mapping[str, tuple[Exponent, ...]] = field(default_factory=dict)
    counterexamples: tuple[Any, ...] = ()
    maps: tuple[TightnessMap, ...] = ()

    @property
    def counts(self) -> dict[Outcome, int]:
        """Findings by outcome."""
        return {o: sum(f.outcome is o for f in self.findings) for o in Outcome}

    @property
    def violated(self) -> bool:
        """Whether a theorem or a claim failed, or a measured value contradicts itself."""
        failed = self.counts[Outcome.VIOLATED] + self.counts[Outcome.CONTRADICTED]
        return failed > 0 or not all(c.holds for c in self.claims)

    @property
    def inconclusive(self) -> bool:
        """Whether a theorem could not be decided."""
        return self.counts[Outcome.INCONCLUSIVE] > 0

    @property
    def sentence(self) -> str:
        """The summary."""
        n = len(self.findings)
        counts = ", ".join(f"{m} {OUTCOME_WORDS[o]}" for o, m in self.counts.items() if m or o in EXPECTED)
        claims = f"; {sum(c.holds for c in self.claims)} of {len(self.claims)} claims on tightness hold"
        return f"{n} check{'s' * (n != 1)}: {counts}{claims if self.claims else ''}; {self.seconds:.0f} s."
