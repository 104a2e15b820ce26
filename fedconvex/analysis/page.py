"""One self-contained page for an analysis: no script, no font, no image from elsewhere."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from fedconvex._files import write_file
from fedconvex.analysis import site_differences
from fedconvex.analysis.client_checks import ClientFit, calibration_bins, client_fits
from fedconvex.analysis.forest_drawing import forest_figure
from fedconvex.analysis.forest_plots import MOST_CLIENTS, forest
from fedconvex.analysis.formulas import is_curve
from fedconvex.analysis.summary_text import (
    exponentials,
    has_ratio,
    interval_places,
    p_is,
    p_text,
    places,
    places_of,
    ratio_text,
    to_places,
)
from fedconvex.report.drawings import COLOURS, INK, as_svg, check_folder
from fedconvex.report.fairness import wilson_interval

if TYPE_CHECKING:
    from fedconvex.analysis.answer import Analysis, Differences

Table = tuple[list[str], list[list[str]]]
MOST_PLOTS = 30
_INFINITE = re.compile(r"\binf\b")
_MINUS = re.compile(r"(?<!\w)-(?=[\d∞i])")
_KINDS = {"gaussian": "Linear", "quasipoisson": "Quasi-Poisson", "negative-binomial": "Negative binomial"}


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
    env.filters["p"] = p_is
    apart, why = _differences(found)
    names = [] if apart is None else [n for n in apart.names if not is_curve(n)]
    forests = [(n, Markup(forest_figure(forest(found, n)))) for n in names[:MOST_PLOTS]]
    fits = client_fits(found)
    logistic = bool(fits) and found.rows.family.name == "logistic"
    return env.get_template("page.html").render(
        found=found,
        facts=[(name, _signed(text)) for name, text in found.facts()],
        lead=_lead(found, apart),
        coefficients=_coefficients(found),
        tests=_tests(found),
        drift=_drift(found),
        left_out=_left_out(found),
        clients=_clients(found, fits) if fits else None,
        calibration=Markup(_calibration(found)) if logistic else "",
        crossed=any(":" in term for term in found.rows.terms),
        apart=apart,
        why=why,
        heterogeneity=None if apart is None else _heterogeneity(found, apart),
        forests=forests,
        missing=names[MOST_PLOTS:],
        curves=[] if apart is None else [n for n in apart.names if is_curve(n)],
        few=apart is not None and len(apart.clients) > MOST_CLIENTS,
        percent=f"{100.0 * found.level:g} %",
    )


def _number(v: float | None, digits: int = 4) -> str:
    if v is None or math.isnan(v):
        return "–"
    return _signed("∞" if v == math.inf else "-∞" if v == -math.inf else f"{v:.{digits}g}")


def _signed(text: str) -> str:
    return _MINUS.sub("−", _INFINITE.sub("∞", text))


def _p(v: float) -> str:
    return p_text(v).replace("<", "< ")


def _exp(v: float) -> float:
    return math.exp(v) if v < 700.0 else math.inf


def _differences(found: Analysis) -> tuple[Differences | None, str]:
    """Return how clients differ, or why nothing can be said."""
    if found.fit.recession is not None:
        return None, "The responses are separated: no client is analysed alone."
    if found.exact:
        return None, "Residuals are zero: no client differs from another."
    if found.fit.firth:
        return None, "Clients are not analysed alone with Firth's estimate."
    if found.rows.classes:
        return None, "Clients are not analysed alone for several classes."
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
    own = ", with an intercept of each client" * found.site_intercepts
    kind = _KINDS.get(found.rows.family.name, found.rows.family.name.capitalize())
    out = [f"{kind} regression of {fed.n:,} rows of {fed.K} client{'s' * (fed.K != 1)}{own}{lost}."]
    first = ("Separated", "Exact", "Firth", "Warning")
    out += [f"{text[0].upper()}{text[1:]}." for name, text in found.facts() if name in first]
    if apart is None:
        return out
    one, test = apart.equal_slopes, "likelihood-ratio test of equal slopes"
    if one is None:
        one, test = apart.Q, f"Q of the {len(apart.clients)} clients with estimates of their own"
    far = "differ between clients" if one.p < 1.0 - found.level else "are not shown to differ between clients"
    out.append(f"Coefficients {far}: {test}, {p_is(one.p)}.")
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
        apart_of_all = site_differences.confounded((joint.low, joint.high), np.column_stack([b - z * se, b + z * se]))
        if apart_of_all or joint.low > within + z * error or joint.high < within - z * error:
            out.append((name, joint.estimate, float(within)))
    return out


def _coefficients(found: Analysis) -> Table:
    ratio, letter = found.ratio, "z" if found.residual_df is None else "t"
    span = f"{100.0 * found.level:g} % CI"
    heads = ["coefficient", *([f"{ratio} ({span})"] if ratio else [])]
    heads += ["estimate", "std. error", letter, f"P>|{letter}|", span]
    rows = []
    for c, known in zip(found.table(), has_ratio(found), strict=True):
        d, (e, low, high) = places_of(c), exponentials(c)
        many = interval_places(low, high)
        of = f"{_signed(ratio_text(e, many))} ({ratio_text(low, many)} to {_signed(ratio_text(high, many))})"
        alone = _signed(ratio_text(e, 3))
        exps = [(alone if math.isnan(c.low) else of) if known else "–"] if ratio else []
        cells = [to_places(c.estimate, d), to_places(c.standard_error, d), to_places(c.statistic, 2), _p(c.p)]
        ends = "–" if math.isnan(c.low) else f"{to_places(c.low, d)} to {to_places(c.high, d)}"
        rows.append([c.name, *exps, *map(_signed, [*cells, ends])])
    return heads, rows


def _tests(found: Analysis) -> Table | None:
    """Return the tests of every term, and of all together."""
    if found.exact or found.fit.recession is not None:
        return None
    quick = found.robust is None and len(found.rows.terms) <= MOST_PLOTS  # each fits a smaller model
    how, law = "likelihood ratio" if quick else "wald", "chi2" if found.residual_df is None else "F"
    rows = []
    for name, terms in [*((t, t) for t in found.rows.terms), ("all together", None)]:
        try:
            one = found.overall if terms is None and found.overall is not None else found.test(terms, how)
        except ValueError:  # clustered by client, of more restrictions than clients less one
            rows.append([name, "–", "too few clients", "–"])
            continue
        rows.append([name, to_places(one.statistic, 2), one.distribution, _p(one.p)])
    return ["term", f"{'LR' if quick else 'Wald'} {law}", "distribution", "p"], rows


def _drift(found: Analysis) -> Table | None:
    """Return the tests of proportional hazards."""
    zph = getattr(found, "proportional_hazards", None)  # of Cox models with event times enough
    if zph is None:
        return None
    rows = [[n, to_places(s, 2), "1", _p(p)] for n, s, p in zip(found.names, zph.statistics, zph.p_values, strict=True)]
    return ["coefficient", "chi2", "df", "p"], [*rows, ["all", to_places(zph.overall, 2), f"{zph.df}", _p(zph.p_value)]]


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
            [f.client, f"{f.rows:,}", f"{f.mean:g}", to_places(f.c_statistic, 3)] for f in fits
        ]
    binary = family == "logistic"
    what = "share" if binary else "mean"
    heads = ["client", "rows", f"observed {what}", f"expected {what}"]
    heads += ["observed/expected"] if family != "gaussian" else []
    heads += ["C statistic", "calibration slope", "its std. error"] if binary else []
    largest = max((abs(f.mean) for f in fits if math.isfinite(f.mean)), default=1.0)
    d, rows = places(0.1 * largest), []
    for f in fits:
        ratio = f.mean / f.expected if f.expected else math.nan
        cells = [f.client, f"{f.rows:,}", _signed(to_places(f.mean, d)), _signed(to_places(f.expected, d))]
        cells += [to_places(ratio, 2)] if family != "gaussian" else []
        more = [to_places(f.c_statistic, 3), _signed(to_places(f.slope, 2)), to_places(f.slope_error, 2)]
        rows.append(cells + (more if binary else []))
    return heads, rows


def _effects(found: Analysis, values: Sequence[float], low: float, high: float) -> list[str]:
    """Return effects with the decimals that an interval asks for, exp of them where that is a ratio."""
    if found.ratio:
        many = interval_places(_exp(low), _exp(high))
        return [_signed(ratio_text(_exp(v), many)) for v in values]
    return [_signed(to_places(v, interval_places(low, high))) for v in values]


def _heterogeneity(found: Analysis, apart: Differences) -> dict[str, Any]:
    """Return the tables of how clients differ: random effects, site intercepts, one client left out."""
    heads = ["coefficient", "Q", "p", "I² %", "τ² (REML)", "common effect", "random effects", "interval", "prediction"]
    rows, sides, without = [], [], []
    joint = {c.name: c for c in found.table()}
    for i, (name, s) in enumerate(apart.summaries.items()):
        if is_curve(name):
            continue
        hk = s.hartung_knapp
        values = [s.common, hk.estimate, hk.low, hk.high, *s.prediction]
        common, mean, low, high, *new = _effects(found, values, hk.low, hk.high)
        cells = [to_places(s.Q.statistic, 2), _p(s.Q.p), to_places(s.I2, 1), _number(s.reml.tau2, 3)]
        rows.append([name + " *" * s.narrower, *cells, common, mean, f"{low} to {high}", " to ".join(new)])
        (b, se), c = apart.within[i], joint[name]
        d = min(places(se), places_of(c))
        sides.append([name, *(_signed(to_places(v, d)) for v in (c.estimate, c.standard_error, b, se))])
        if len(apart.clients) > 2:
            each = site_differences.without_each(apart.estimates[:, i], apart.standard_errors[:, i] ** 2, found.level)
            means = [one.hartung_knapp.estimate for one in each]
            k, m = int(np.argmin(means)), int(np.argmax(means))
            mean, least, most = _effects(found, [hk.estimate, means[k], means[m]], hk.low, hk.high)
            without.append([name, mean, least, apart.clients[k], most, apart.clients[m]])
    left = ["coefficient", "with all", "least", "without", "largest", "without"]
    intercepts = ["coefficient", "this model", "std. error", "with intercepts of clients", "its std. error"]
    show = not found.site_intercepts and found.rows.family.name != "cox"
    return {
        "summaries": (heads, rows),
        "intercepts": (intercepts, sides) if show else None,
        "without": (left, without) if without else None,
        "narrower": any(s.narrower for s in apart.summaries.values()),
        "ratio": found.ratio,
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
