"""One self-contained page for an analysis: no script, no font, no image from elsewhere."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from fedconvex._files import write_file
from fedconvex.analysis import heterogeneity
from fedconvex.analysis.client_checks import ClientFit, calibration_bins, client_fits
from fedconvex.analysis.forest_drawing import forest_figure
from fedconvex.analysis.forest_plots import MOST_CLIENTS, forest
from fedconvex.report.drawings import COLOURS, INK, as_svg
from fedconvex.report.fairness import wilson_interval
from fedconvex.report.page import check_folder

if TYPE_CHECKING:
    from fedconvex.analysis.answer import Analysis, Differences

Table = tuple[list[str], list[list[str]]]
MOST_PLOTS = 30
_SPLINE = re.compile(r"\b(bs|cs|cc|cr|poly)\(")  # parts of a curve, which mean nothing by themselves


def write_page(found: Analysis, folder: str | os.PathLike[str]) -> Path:
    """Write the page as index.html into a folder, whole or not at all; return the file."""
    file = check_folder(folder) / "index.html"
    write_file(file, page(found).encode())
    return file


def page(found: Analysis) -> str:
    """Return the page: HTML with styles and figures inside. Its template escapes all that it is given."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    loader = ChoiceLoader([PackageLoader("fedconvex", room) for room in ("analysis", "report")])
    env = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    apart, why = _differences(found)
    names = [] if apart is None else [n for n in apart.names if not _SPLINE.search(n)]
    forests = [(n, Markup(forest_figure(forest(found, n)))) for n in names[:MOST_PLOTS]]
    fits = client_fits(found)
    logistic = bool(fits) and found.rows.family.name == "logistic"
    return env.get_template("page.html").render(
        found=found,
        facts=found.facts(),
        lead=_lead(found, apart),
        coefficients=_coefficients(found),
        tests=_tests(found),
        drift=_drift(found),
        left_out=_left_out(found),
        clients=_clients(found, fits) if fits else None,
        calibration=Markup(_calibration(found)) if logistic else "",
        apart=apart,
        why=why,
        heterogeneity=None if apart is None else _heterogeneity(found, apart),
        forests=forests,
        missing=[] if apart is None else [n for n in apart.names if n not in names[:MOST_PLOTS]],
        few=apart is not None and len(apart.clients) > MOST_CLIENTS,
        percent=f"{100.0 * found.level:g} %",
    )


def _number(v: float | None, digits: int = 4) -> str:
    return (
        "–" if v is None or math.isnan(v) else "∞" if v == math.inf else "-∞" if v == -math.inf else f"{v:.{digits}g}"
    )


def _p(v: float) -> str:
    return "–" if math.isnan(v) else "< 0.0001" if v < 1e-4 else f"{v:.4f}" if v < 0.1 else f"{v:.2f}"


def _exp(v: float) -> float:
    return math.exp(v) if v < 700.0 else math.inf


def _differences(found: Analysis) -> tuple[Differences | None, str]:
    """Return how clients differ, or why nothing can be said."""
    if found.fit.recession is not None:
        return None, "The responses are separated: no client is analysed alone."
    if found.exact:
        return None, "Residuals are zero: no client differs from another."
    if getattr(getattr(found.rows, "ask", None), "hidden", False):
        return None, "Sums are secure: what a client's own estimate is, nobody is told."
    try:
        return found.differences, ""
    except ValueError:
        return None, "Fewer than two clients have finite estimates of their own."


def _lead(found: Analysis, apart: Differences | None) -> list[str]:
    """Return what a reader should know first."""
    gone, fed = found.rows.rows_read - found.rows.federation.n, found.rows.federation
    lost = f"; {gone:,} rows with missing cells are left out" if gone else ""
    out = [f"{fed.n:,} rows of {fed.K} client{'s' * (fed.K != 1)}{lost}."]
    out += [f"{text[0].upper()}{text[1:]}." for name, text in found.facts() if name in ("Separated", "Exact")]
    if apart is None:
        return out
    if (one := apart.equal_slopes) is not None:
        far = "differ between clients" if one.p < 1.0 - found.level else "are not shown to differ between clients"
        out.append(f"Coefficients {far}: likelihood-ratio test of equal slopes, p {_p(one.p)}.")
    for name, joint, within in _confounded(found, apart):
        out.append(
            f"The coefficient of {name} is made by differences between clients, not within them: with an intercept of "
            f"every client it is {_number(within)} in the place of {_number(joint)}."
        )
    return out


def _confounded(found: Analysis, apart: Differences) -> list[tuple[str, float, float]]:
    """Return coefficients whose interval meets none of a single client, or not that with intercepts of clients."""
    if found.site_intercepts or found.rows.family.name == "cox":
        return []
    table = {c.name: c for c in found.table()}
    z, out = float(stats.norm.isf(0.5 * (1.0 - found.level))), []
    for i, name in enumerate(apart.names):
        joint, (within, error) = table[name], apart.within[i]
        b, se = apart.estimates[:, i], apart.standard_errors[:, i]
        apart_of_all = heterogeneity.confounded((joint.low, joint.high), np.column_stack([b - z * se, b + z * se]))
        if apart_of_all or joint.low > within + z * error or joint.high < within - z * error:
            out.append((name, joint.estimate, float(within)))
    return out


def _coefficients(found: Analysis) -> Table:
    ratio, letter = found.ratio, "z" if found.residual_df is None else "t"
    span = f"{100.0 * found.level:g} % interval"
    heads = ["coefficient", *([ratio, f"{span} of it"] if ratio else []), "estimate", "std. error", letter, "p", span]
    rows = []
    for c in found.table():
        ends = f"{_number(c.low)} to {_number(c.high)}"
        exps = [_number(_exp(c.estimate)), f"{_number(_exp(c.low))} to {_number(_exp(c.high))}"] if ratio else []
        if math.isnan(c.low):
            ends, exps = "–", [*exps[:1], "–"][: len(exps)]
        cells = [_number(c.estimate), _number(c.standard_error), _number(c.statistic, 3), _p(c.p), ends]
        rows.append([c.name, *exps, *cells])
    return heads, rows


def _tests(found: Analysis) -> Table | None:
    """Return the tests of every term, and of all together."""
    if found.exact or found.fit.recession is not None:
        return None
    quick = found.robust is None and len(found.rows.terms) <= MOST_PLOTS  # each fits a smaller model
    how = "likelihood ratio" if quick else "wald"
    rows = []
    for name, terms in [*((t, t) for t in found.rows.terms), ("all together", None)]:
        try:
            one = found.test(terms, how)
        except ValueError:  # clustered by client, of more restrictions than clients less one
            rows.append([name, "–", "needs more clients", "–"])
            continue
        rows.append([name, _number(one.statistic), one.distribution, _p(one.p)])
    return ["term", f"{how} statistic", "distribution", "p"], rows


def _drift(found: Analysis) -> Table | None:
    """Return the tests of proportional hazards."""
    zph = getattr(found, "proportional_hazards", None)  # of Cox models with event times enough
    if zph is None:
        return None
    rows = [[n, _number(s), "1", _p(p)] for n, s, p in zip(found.names, zph.statistics, zph.p_values, strict=True)]
    return ["coefficient", "chi2", "df", "p"], [*rows, ["all", _number(zph.overall), f"{zph.df}", _p(zph.p_value)]]


def _left_out(found: Analysis) -> Table | None:
    """Return rows left out for missing cells by column and client."""
    by: dict[str, dict[str, int]] = {}
    for column, client, m in found.rows.left_out:
        by.setdefault(column, {})[client] = m
    if not by:
        return None
    clients = sorted({client for counts in by.values() for client in counts})
    rows = [[c, *(f"{counts.get(k, 0)}" for k in clients), f"{sum(counts.values())}"] for c, counts in by.items()]
    return ["column", *clients, "all"], rows


def _clients(found: Analysis, fits: list[ClientFit]) -> Table:
    family, cox = found.rows.family.name, found.rows.family.name == "cox"
    if cox:
        return ["client", "rows", "events", "concordance"], [
            [f.client, f"{f.rows:,}", f"{f.mean:g}", _number(f.c_statistic, 3)] for f in fits
        ]
    heads = ["client", "rows", "observed mean", "expected mean"]
    heads += ["observed/expected"] if family != "gaussian" else []
    heads += ["C statistic", "calibration slope", "its std. error"] if family == "logistic" else []
    rows = []
    for f in fits:
        ratio = f.mean / f.expected if f.expected else math.nan
        cells = [f.client, f"{f.rows:,}", _number(f.mean), _number(f.expected)]
        cells += [_number(ratio, 3)] if family != "gaussian" else []
        more = [_number(f.c_statistic, 3), _number(f.slope, 3), _number(f.slope_error, 2)]
        rows.append(cells + (more if family == "logistic" else []))
    return heads, rows


def _heterogeneity(found: Analysis, apart: Differences) -> dict[str, Any]:
    """Return the tables of how clients differ: random effects, site intercepts, one client left out."""
    ratio, change = found.ratio, (_exp if found.ratio else float)
    heads = ["coefficient", "Q", "p", "I² %", "τ² (REML)", "common effect", "random effects", "interval", "prediction"]
    rows, sides, without = [], [], []
    joint = {c.name: c for c in found.table()}
    for i, (name, s) in enumerate(apart.summaries.items()):
        hk = s.hartung_knapp
        cells = [
            _number(s.Q.statistic),
            _p(s.Q.p),
            _number(s.I2, 3),
            _number(s.reml.tau2, 3),
            _number(change(s.common)),
        ]
        spans = [f"{_number(change(a))} to {_number(change(b))}" for a, b in ((hk.low, hk.high), s.prediction)]
        rows.append([name + " *" * s.narrower, *cells, _number(change(hk.estimate)), *spans])
        b, se = apart.within[i]
        sides.append([name, *map(_number, (joint[name].estimate, joint[name].standard_error, b, se))])
        if len(apart.clients) > 2:
            each = heterogeneity.without_each(apart.estimates[:, i], apart.standard_errors[:, i] ** 2, found.level)
            means = [one.hartung_knapp.estimate for one in each]
            ends = [(f"{_number(change(means[k]))}", apart.clients[k]) for k in (np.argmin(means), np.argmax(means))]
            without.append([name, _number(change(hk.estimate)), *(v for end in ends for v in end)])
    left = ["coefficient", "with all", "least", "without", "largest", "without"]
    intercepts = ["coefficient", "this model", "std. error", "with intercepts of clients", "std. error"]
    show = not found.site_intercepts and found.rows.family.name != "cox"
    return {
        "summaries": (heads, rows),
        "intercepts": (intercepts, sides) if show else None,
        "without": (left, without) if without else None,
        "narrower": any(s.narrower for s in apart.summaries.values()),
        "ratio": ratio,
    }


def _calibration(found: Analysis) -> str:
    """Draw how often the second class came, by predicted probability."""
    bins = calibration_bins(found)
    m, p, share = (np.array(v) for v in zip(*bins, strict=True))

    def draw(axis: Any) -> None:
        axis.plot([0.0, 1.0], [0.0, 1.0], color=INK, linewidth=0.8)
        low, high = wilson_interval(share * m, m, found.level)
        axis.vlines(p, low, high, color=COLOURS["measured"], linewidth=1.0)
        axis.plot(p, share, color=COLOURS["measured"], marker="o", markersize=4)
        axis.set_xlabel("predicted probability, mean of a tenth of the rows")
        axis.set_ylabel("observed share")

    return as_svg(
        draw, "calibration", f"Observed shares by tenths of the predictions: {np.abs(p - share).max():.2g} off."
    )
