"""How errors grow in a round: which modes are left by then, and the ratio of two errors with what rounding does to it.

Errors e_T = M e_{T-1} of a linear map grow by its largest eigenvalue once e_{T-1} has no other mode: T - 1 rounds must
have put them out. And e_{T-1} divides: where it is near what rounding leaves, the ratio is noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedconvex.theorems.parts.rounding import Found
from fedconvex.theory.bound import Hypothesis

SETTLED = 1e-9  # of the leading mode: what may be left of the others
RIGHT = 1e-6  # what is allowed for that in a ratio
_TINY = 1e-150  # norms whose squares are subnormal have no digits


def died_out(rest: np.ndarray, lead: float, rounds: int, share: float = 1.0) -> Hypothesis:
    """Return the hypothesis that modes died out before the last of so many rounds, beside one that is a share of it.

    Parameters
    ----------
    rest : array
        Moduli of the other modes.
    lead : float
        Modulus of the leading one.
    rounds : int
        T: what is left in e_{T-1} counts.
    share : float
        What the leading mode is of e_0.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theorems.parts.growth import died_out
    >>> [died_out(np.zeros(1), 0.5, T).holds for T in (1, 2)]  # round 1 begins with both modes
    [False, True]
    """
    left = 0.0 if rest.size == 0 else math.inf
    if rest.size and lead > 0.0 and share > 0.0:
        left = (float(rest.max()) / lead) ** (rounds - 1) / share
    return Hypothesis("other modes died out", f"{left:.2g} of the leading one is left", left <= SETTLED)


def errors_seen(factor: float, rounds: int, share: float = 1.0) -> Hypothesis:
    """Return the hypothesis that errors which grow by a factor a round say what it is, and not what rounding does."""
    reached = rounds * math.log10(factor) + math.log10(share) if factor > 0.0 and share > 0.0 else -math.inf
    text = "errors far from rounding and overflow"
    return Hypothesis(text, f"a factor 10^{reached:.3g}", -6.0 <= reached <= 100.0)


def growths(errors: np.ndarray, rounds: Sequence[int], off: float) -> Found:
    """Return e_T/e_{T-1} after so many rounds each, where double precision may move every error by ``off``.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theorems.parts.growth import growths
    >>> found = growths(np.array([4.0, 2.0, 0.0, 0.0]), [1, 2, 3], 1e-3)
    >>> found.values, bool(found.rounding[0] > 1e-3 / 4.0)  # nothing grows from nothing
    (array([0.5, 0. , nan]), True)
    >>> float(growths(np.array([1e-159, 1e-159]), [1], 0.0).rounding[0])  # such norms have no digits
    inf
    """
    at, off = np.array(rounds), max(off, _TINY)
    before, after = errors[at - 1], errors[at]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        value = np.where(before > 0.0, after / before, np.nan)
        moved = (off + value * off) / np.maximum(before - off, 0.0)
    return Found(value, RIGHT + np.where(np.isnan(moved), np.inf, moved))
