"""Statistical inference from sums over sites: standard errors, tests, intervals and heterogeneity."""

from typing import TYPE_CHECKING

from fedconvex import _lazy

if TYPE_CHECKING:
    from fedconvex.analysis.analysing import analyse
    from fedconvex.analysis.answer import Analysis
    from fedconvex.analysis.response_families import Family, negative_binomial
    from fedconvex.analysis.site_analysis import analyse_sites
    from fedconvex.analysis.site_plan import AnalysisPlan, Guards, plan_analysis

__all__ = [
    "Analysis",
    "AnalysisPlan",
    "Family",
    "Guards",
    "analyse",
    "analyse_sites",
    "negative_binomial",
    "plan_analysis",
]

__getattr__, __dir__ = _lazy.attach(__name__, __file__)
