"""Theorems beside what runs really do: verdicts, curves, grids, exact worst cases, and the suite of all checks."""

from fedconvex.theorems import THEOREMS, Setting, Theorem
from fedconvex.theorems.parts.instances import World, own
from fedconvex.verify.curves import BoundCurve, curve
from fedconvex.verify.findings import VerificationReport
from fedconvex.verify.grid import GridVerdicts, verify_grid
from fedconvex.verify.plans import EXTRA, PLANS, Check, Plan, checks
from fedconvex.verify.suite import Progress, verify_suite
from fedconvex.verify.tightness import exact_worst
from fedconvex.verify.verdicts import Outcome, Verdict, verify

__all__ = [
    "EXTRA",
    "PLANS",
    "THEOREMS",
    "BoundCurve",
    "Check",
    "GridVerdicts",
    "Outcome",
    "Plan",
    "Progress",
    "Setting",
    "Theorem",
    "Verdict",
    "VerificationReport",
    "World",
    "checks",
    "curve",
    "exact_worst",
    "own",
    "verify",
    "verify_grid",
    "verify_suite",
]
