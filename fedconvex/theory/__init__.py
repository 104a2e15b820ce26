"""Theory: one theorem a file, each a pure function of constants and hyper-parameters; exact moments and worst cases.

Bounds are imported from their files, for example ``from fedconvex.theorems.fedavg_convex import fedavg_convex``: a file
is named after its theorem.
"""

from fedconvex.theory.bound import AssumptionError, Bound, Hypothesis, Quantity, known, require
from fedconvex.theory.moments import Moments, WeightMoments

__all__ = ["AssumptionError", "Bound", "Hypothesis", "Moments", "Quantity", "WeightMoments", "known", "require"]
