"""Which published algorithm does an implementation compute? Exams, readings and the answer, in NumPy alone.

The references follow the papers, and share nothing with the package's kernels and methods: each checks the other.
"""

from __future__ import annotations

from fedconvex.conformance.expectations import assert_conforms
from fedconvex.conformance.families import FAMILIES
from fedconvex.conformance.identified import Conformance
from fedconvex.conformance.implementation import Abilities, can
from fedconvex.conformance.inference import conform_estimate
from fedconvex.conformance.recognition import conform

__all__ = ["FAMILIES", "Abilities", "Conformance", "assert_conforms", "can", "conform", "conform_estimate"]
