"""`analyse_sites`: the analysis of `analyse`, where rows stay at sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedconvex._check import function, instance, whole
from fedconvex.analysis.analysing import analysed
from fedconvex.analysis.answer import Analysis
from fedconvex.analysis.over_sites import Asking, SitesModel
from fedconvex.analysis.site_plan import AnalysisPlan
from fedconvex.remote import Roster
from fedconvex.remote.site_engine import SiteEngine

_MODELS = 64


def analyse_sites(
    plan: AnalysisPlan, roster: Roster, transport: Any, *, robust: str | None = None, level: float = 0.95,
    intervals: str = "wald", require: int | None = None,
) -> Analysis:  # fmt: skip
    """Return the model of a plan, fitted to rows that stay at their sites, with standard errors.

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
    require : int, optional
        Sites without which there is no analysis; default all. Where fewer answer, the analysis is begun anew with those
        that do, and its first line names the others.

    Raises
    ------
    ConnectionError
        If a site does not answer, or refuses: its limits, or guards; with ``require``, if too few are left.
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
    function("analyse_sites: transport", transport)
    K = roster.federation.K
    least = whole("analyse_sites: require", K if require is None else require, low=1, high=K)
    here, lost = list(range(K)), []  # type: list[int], list[str]
    while True:
        some = roster if len(here) == K else _of(plan, roster, here)
        try:
            return _analysed(plan, some, _to(transport, here), lost, robust, level, intervals)
        except ConnectionError:
            gone = _silent(some)
            left = [k for k in here if str(roster.federation.labels[k]) not in gone]
            if not gone or len(left) < least:
                raise
            lost, here = [*lost, *gone], left


def _silent(roster: Roster) -> list[str]:
    """Return who has not answered, or refused, the last question."""
    last = max((i.round for i in roster.incidents), default=-1)
    return sorted({str(i.client) for i in roster.incidents if i.round == last})


def _analysed(
    plan: AnalysisPlan, roster: Roster, transport: Any, lost: list[str], robust: Any, level: float, intervals: str
) -> Analysis:
    """Return the analysis of the sites of a roster, and who was left out."""
    server = SiteEngine(plan.method, roster, transport, np.uint64(0), _MODELS).server
    gone = (("Left out", f"{', '.join(lost)}: no answer, or a refusal"),) if lost else ()
    rows = SitesModel(
        Asking(server), plan.family, plan.names, plan.terms, plan.event, plan.units, notes=(*gone, *plan.notes),
        classes=plan.coding.classes, has_strata=plan.coding.survival.strata is not None,
        unit=plan.coding.unit if plan.family.name == "gaussian" else 1.0,
    )  # fmt: skip
    return analysed(rows, plan.site_intercepts, robust, level, intervals)


def _of(plan: AnalysisPlan, roster: Roster, here: list[int]) -> Roster:
    """Return the roster of some of its sites."""
    fed = roster.federation
    labels, sizes = fed.labels[here], fed.sizes[here]
    return Roster(plan.make, labels, sizes, fed.d, masses=fed.masses[here], patience=roster.patience)


def _to(transport: Any, here: list[int]) -> Any:
    """Return a transport to some sites, by their places in a roster of them."""

    def ask(t: int, requests: dict[int, Any], most: Any = None) -> Any:
        asked = {here[k]: message for k, message in requests.items()}
        found = transport(t, asked, {here[k]: most[k] for k in requests}) if most else transport(t, asked)
        if not isinstance(found, Mapping):
            return found  # refused in words where answers are read
        return {k: found[here[k]] for k in requests if here[k] in found}

    ask.bounded = getattr(transport, "bounded", False)  # type: ignore[attr-defined]
    return ask
