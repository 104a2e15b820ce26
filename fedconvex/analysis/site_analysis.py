"""`analyse_sites`: the analysis of `analyse`, where rows stay at sites."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex._check import instance
from fedconvex.analysis.analysing import analysed
from fedconvex.analysis.answer import Analysis
from fedconvex.analysis.over_sites import Asking, SitesModel
from fedconvex.analysis.site_plan import AnalysisPlan
from fedconvex.remote import Roster
from fedconvex.remote.site_engine import SiteEngine

_MODELS = 64


def analyse_sites(
    plan: AnalysisPlan,
    roster: Roster,
    transport: Any,
    *,
    robust: str | None = None,
    level: float = 0.95,
    intervals: str = "wald",
) -> Analysis:
    """Fit the model of a plan to rows that stay at their sites, with standard errors.

    Parameters
    ----------
    plan : AnalysisPlan
    roster : Roster
        Of the sites: ``plan.roster({"north": 120, "south": 80})``.
    transport : callable
        How sites are asked, as for `fedconvex.run`: an `Exchange`, Flower's `Nodes`, or ``in_process(sites)``. It must
        stay open while more is asked of the answer: `Analysis.test` and `Analysis.differences` ask sites again.
    robust, level, intervals
        As for `analyse`.

    Raises
    ------
    ConnectionError
        If a site does not answer, or refuses: its limits, or guards.
    ValueError
        As `analyse`; separated responses have no profile intervals here, since a linear programme reads rows.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.analysis import analyse_sites, plan_analysis
    >>> from fedconvex.remote import Site, in_process
    >>> book = {"age": [40, 70], "ill": ["no", "yes"], "ward": ["a", "b"]}
    >>> plan = plan_analysis(book, target="ill", client="ward")
    >>> age = np.arange(20.0, 80.0, 0.2) % 61.0
    >>> ill = np.where(age > 30.0 + 35.0 * np.sin(np.arange(300)), "yes", "no")
    >>> wards = {name: {"age": age[k::3], "ill": ill[k::3]} for k, name in enumerate("abc")}
    >>> sites = [Site(plan.method, plan.make, plan.rows(table, name)) for name, table in wards.items()]
    >>> found = analyse_sites(plan, plan.roster(dict.fromkeys("abc", 100)), in_process(sites))
    >>> np.round(found.estimates, 3).tolist(), np.round(found.standard_errors, 3).tolist()
    ([-1.313, 0.044], [0.258, 0.007])
    """
    instance("analyse_sites: plan", plan, AnalysisPlan)
    instance("analyse_sites: roster", roster, Roster)
    server = SiteEngine(plan.method, roster, transport, np.uint64(0), _MODELS).server
    rows = SitesModel(Asking(server), plan.family, plan.names, plan.terms, plan.event, plan.units)
    return analysed(rows, plan.site_intercepts, robust, level, intervals)
