"""Theorems beside what runs really do: verdicts, curves, grids, exact worst cases, and the suite of all checks.

* `Progress`: a function that is told the share done, in [0, 1], and what is being done.

>>> from fedconvex.verify import checks, verify_suite
>>> said = []
>>> found = verify_suite(checks(["sam-error"])[:1], tightness=False, progress=lambda share, doing: said.append(doing))
>>> said[-1]
'done'
"""

from fedconvex.theorems import THEOREMS, Setting, Theorem
from fedconvex.theorems.parts.instances import own_instance
from fedconvex.theorems.parts.theorem import Check, Instance, MethodRule, Reading
from fedconvex.theorems.parts.tiny import Tiny
from fedconvex.verify.check_records import Exponent, Noticed, Power, TightnessMap, VerificationReport
from fedconvex.verify.curves import BoundCurve, curve
from fedconvex.verify.exponents import exponents
from fedconvex.verify.grid import GridVerdicts, verify_grid
from fedconvex.verify.maps import tightness_map
from fedconvex.verify.own_theorems import own_theorem
from fedconvex.verify.power import power
from fedconvex.verify.printed import PrintedInstance, printed
from fedconvex.verify.search import Tightest, tightest
from fedconvex.verify.shrinking import shrunk
from fedconvex.verify.suite import Progress, checks, verify_suite
from fedconvex.verify.tightness import exact_worst
from fedconvex.verify.verdicts import Outcome, Verdict, verify

__all__ = [
    "THEOREMS",
    "BoundCurve",
    "Check",
    "Exponent",
    "GridVerdicts",
    "Instance",
    "MethodRule",
    "Noticed",
    "Outcome",
    "Power",
    "PrintedInstance",
    "Progress",
    "Reading",
    "Setting",
    "Theorem",
    "Tightest",
    "TightnessMap",
    "Tiny",
    "Verdict",
    "VerificationReport",
    "checks",
    "curve",
    "exact_worst",
    "exponents",
    "own_instance",
    "own_theorem",
    "power",
    "printed",
    "shrunk",
    "tightest",
    "tightness_map",
    "verify",
    "verify_grid",
    "verify_suite",
]
