"""Statistical inference from sums over sites: standard errors, tests, intervals and heterogeneity."""

from typing import TYPE_CHECKING

from fedconvex import _lazy

if TYPE_CHECKING:
    from fedconvex.analysis.analysing import analyse
    from fedconvex.analysis.answer import Analysis
    from fedconvex.analysis.response_families import Family, negative_binomial

__all__ = ["Analysis", "Family", "analyse", "negative_binomial"]

__getattr__, __dir__ = _lazy.attach(__name__, __file__)
