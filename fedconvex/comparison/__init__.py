"""One table and one page for a decision: one model for all, a fair one, one per client, or every client alone."""

from fedconvex.comparison.comparing import METHODS, compare
from fedconvex.comparison.owners import OwnersComparison, WithoutOwner, compare_owners
from fedconvex.comparison.result import Comparison, Scored

__all__ = ["METHODS", "Comparison", "OwnersComparison", "Scored", "WithoutOwner", "compare", "compare_owners"]
