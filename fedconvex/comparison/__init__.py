"""One table and one page for a decision: one model for all, a fair one, one per client, or every client alone."""

from typing import TYPE_CHECKING

from fedconvex import _lazy

if TYPE_CHECKING:
    from fedconvex.comparison.comparing import compare
    from fedconvex.comparison.comparison import Comparison, Scored
    from fedconvex.comparison.contenders import METHODS
    from fedconvex.comparison.owners import OwnersComparison, WithoutOwner, compare_owners

__all__ = ["METHODS", "Comparison", "OwnersComparison", "Scored", "WithoutOwner", "compare", "compare_owners"]

__getattr__, __dir__ = _lazy.attach(__name__, __file__)
