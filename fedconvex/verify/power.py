"""What a verdict would have caught: the smallest errors of a bound that the checks of a theorem notice.

A bound that is scaled down by c, or one of whose terms is, is violated as soon as it lies below what was measured; the
smallest such c over all checks is the *power*. Nothing is run again: measured values are held against rescaled bounds.
A power of 1 means that some setting attains the bound: every constant factor on the whole of it would be noticed there.
Of errors that leave its value in that setting it says nothing: an exponent of what is 1 there, a constant that two
hypotheses tie together. None means that no factor of the term is noticed: it could be dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from fedconvex._check import Rng, instance, items, takes_rng, whole
from fedconvex.theorems import Theorem
from fedconvex.theorems.parts.theorem import Check, Instance
from fedconvex.theory.bound import Bound
from fedconvex.verify.check_records import Finding, Noticed, Power
from fedconvex.verify.checking import carried_out
from fedconvex.verify.monte_carlo import slack_of
from fedconvex.verify.verdicts import Outcome, find_theorem

MOST = 1e12  # factors beyond it count as unnoticed


@takes_rng
def power(
    theorem: Theorem | str, instances: Sequence[Instance | Check] | None = None, *, seed: int = 0, rng: Rng = None
) -> Power:
    """Return the smallest errors of a theorem's bound that checks notice.

    Parameters
    ----------
    theorem : Theorem or str
    instances : sequence of Instance or Check, optional
        Where it is checked; default the theorem's own checks.
    seed : int
        Of Monte-Carlo trajectories.

    Raises
    ------
    ValueError
        If there is no theorem of that name.

    Examples
    --------
    >>> from fedconvex.verify import THEOREMS, power
    >>> mild = power("weight-divergence-zhao", THEOREMS["weight-divergence-zhao"].checks[:1])
    >>> mild.whole.factor > 1.0
    True
    """
    theorem, seed = find_theorem(theorem), whole("power: seed", seed, low=0)
    every = theorem.checks if instances is None else items("power: instances", instances)
    for given in every:
        instance("power: instances", given, Instance, Check)
    suite = [c if isinstance(c, Check) else Check(c) for c in every]
    return power_of([carried_out(theorem, check, seed=seed) for check in suite])


def power_of(findings: Iterable[Finding]) -> Power:
    """Return the smallest errors that the findings of one theorem notice."""
    whole: Noticed | None = None
    terms: dict[str, Noticed | None] = {}
    hypotheses: dict[str, Noticed | None] = {}
    constant: float | None = None
    looseness, violated = math.inf, False
    for f in findings:
        for text, factor in f.dropped.items():
            hypotheses[text] = _worse(hypotheses.get(text), factor, f.setting, largest=True)
        bound = f.verdict.bound
        if bound is None or f.outcome not in (Outcome.HOLDS, Outcome.VACUOUS, Outcome.VIOLATED):
            continue
        least = noticed_below(f)
        if f.worst.has_interval and f.worst.upper > 0.0:
            looseness = min(looseness, f.worst.ratio(bound))
        if f.sharper > 0.0 and bound.value > 0.0:  # no less than 1, and nothing where there is no sharper theorem
            looseness = min(looseness, bound.value / f.sharper if math.isfinite(f.sharper) else math.inf)
        share = whole_share(bound, least) if bound.value > 0.0 else -math.inf
        constant = share if math.isfinite(share) and share > (constant or 0.0) else constant
        if f.outcome is Outcome.VIOLATED:
            violated = True
        whole = _worse(whole, _factor(whole_share(bound, least)), f.setting)
        for name in bound.terms:
            terms[name] = _worse(terms.get(name), _factor(term_share(bound, least, name)), f.setting)
    whole, terms = (None, dict.fromkeys(terms)) if violated else (whole, terms)
    return Power(whole, terms, hypotheses, constant, looseness if math.isfinite(looseness) else None, violated)


def _worse(found: Noticed | None, factor: float, setting: str, largest: bool = False) -> Noticed | None:
    """Return what is noticed earlier; of a hypothesis, what exceeds the bound most."""
    if not math.isfinite(factor) or (largest and factor <= 1.0):
        return found
    better = found is None or (factor > found.factor if largest else factor < found.factor)
    return Noticed(factor, setting) if better else found


def noticed_below(f: Finding) -> float:
    """Return the number below which a bound comes out violated, by what was measured or by the exact worst case."""
    v = f.verdict
    assert v.bound is not None
    return max(v.low - v.rounding - slack_of(v.bound), f.worst.refutable)


def _factor(share: float) -> float:
    """Return the smallest factor that is noticed where this share is attained."""
    return max(1.0 / share, 1.0) if share > 1.0 / MOST else math.inf


def whole_share(bound: Bound, least: float) -> float:
    """Return the share of the bound that a number is; of a negative bound its size over that of the number."""
    if bound.value > 0.0:
        return least / bound.value
    return bound.value / least if bound.value < 0.0 and least < 0.0 else -math.inf


def term_share(bound: Bound, least: float, name: str) -> float:
    """Return the share of a term that is missed where a number stands above all others: none is, below 0.

    Where the term is negative: its size over the size that it would have to have.
    """
    term = bound.terms[name]
    if term == 0.0 or not math.isfinite(bound.value):
        return -math.inf
    rest = bound.combine([0.0 if k == name else v for k, v in bound.terms.items()])
    if term < 0.0:
        return term / (least - rest) if least < rest else math.inf
    if bound.combine is sum or least <= rest:
        return (least - rest) / term
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        value = bound.combine([middle * term if k == name else v for k, v in bound.terms.items()])
        low, high = (middle, high) if value < least else (low, middle)
    return high
