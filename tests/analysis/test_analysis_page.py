"""The page of an analysis: well formed, safe, complete; forest plots and the fit at clients, from numbers of others."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy import stats

from fedconvex.analysis import analyse
from fedconvex.analysis.client_checks import calibration_bins, client_fits
from fedconvex.analysis.forest_plots import Line, axis_ends, forest
from fedconvex.analysis.page import _coefficients as coefficients
from fedconvex.analysis.page import _lead as lead_of
from fedconvex.analysis.page import page
from fedconvex.analysis.site_differences import summarise
from fedconvex.analysis.summary_text import p_is, places, ratio_text
from fedconvex.cli import main
from tests.test_page import Reader

pytest.importorskip("matplotlib")
HOSTILE = "<script>$x^{</script>"


def table(rng, n=240, K=4, family="logistic"):
    who, x, u = rng.integers(0, K, n), 50.0 + 10.0 * rng.normal(size=n), rng.choice(["a", "b", HOSTILE], n)
    z = 0.05 * (x - 50.0) + 0.4 * (u == "b") + 0.3 * who / K
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-z))) * 1 if family == "logistic" else z + rng.normal(size=n)
    names = np.array(["north & west", HOSTILE, "south", "east", *map(str, range(K))])[:K]
    return {"x": x, HOSTILE: u, "y": y, "ward": names[who]}


def test_the_page_is_well_formed_complete_and_safe(rng):
    t = table(rng)
    t["x"][:5] = np.nan
    found = analyse(t, "y", "ward", guard=False)
    text = page(found)
    read = Reader(text)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in read.elements}
    assert not [a for _, attributes in read.elements for a in attributes if a.startswith("on") or a == "src"]
    assert sum(tag == "svg" for tag, _ in read.elements) == 2 * 3 + 1  # forest plots, wide and narrow; calibration
    ids = [a["id"] for _, a in read.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["href"][1:] for tag, a in read.elements if tag == "a"} <= set(ids)
    for wanted in ("C statistic", "calibration slope", "Hartung and Knapp", "5 rows with missing cells are left out"):
        assert wanted in read.words
    for c in found.table():
        assert f"{c.statistic:.2f}".replace("-", "\u2212") in read.words
        ends = f"({np.exp(c.low):.2f} to {np.exp(c.high):.2f})"
        assert (ends in read.words) == (c.name not in ("Intercept", "x"))  # x: three decimals
    x = found.table()[1]
    assert f"{np.exp(x.estimate):.3f} ({np.exp(x.low):.3f} to {np.exp(x.high):.3f})" in read.words
    assert f"{found.test('x').statistic:.2f}" in read.words


def test_forest_plots_show_the_numbers(rng):
    """Every number is computed again here from the clients' own analyses; that of R's rma is in other tests."""
    t = table(rng, family="gaussian")
    found = analyse(t, "y", "ward", guard=False, level=0.9)
    plot = forest(found, "x")
    alone = [
        analyse({k: v[t["ward"] == w] for k, v in t.items()}, "y", "ward", guard=False) for w in np.unique(t["ward"])
    ]
    b, se = (np.array([getattr(one, what)[1] for one in alone]) for what in ("estimates", "standard_errors"))
    z = stats.norm.ppf(0.95)
    clients = [x for x in plot.lines if x.look == "client"]
    np.testing.assert_allclose([[x.value, x.low, x.high] for x in clients], np.transpose([b, b - z * se, b + z * se]))
    tau2 = found.differences.summaries["x"].reml.tau2
    np.testing.assert_allclose([x.share for x in clients], 1 / (se**2 + tau2) / np.sum(1 / (se**2 + tau2)), rtol=1e-8)
    common = next(x for x in plot.lines if x.look == "common")
    assert common.value == pytest.approx(np.average(b, weights=se**-2)) and plot.ratio == ""
    assert common.high - common.value == pytest.approx(z * np.sum(se**-2.0) ** -0.5)
    joint = next(x for x in plot.lines if x.look == "joint")
    assert (joint.value, joint.low) == (found.table()[1].estimate, found.table()[1].low)
    ends = [float(v) for v in re.findall(r"-?[\d.]+", joint.text)]
    np.testing.assert_allclose(ends, [joint.value, joint.low, joint.high], atol=0.51e-3)


def test_intervals_of_small_clients_are_cut():
    lines = [Line(f"{k}", 0.1 * k, 0.1 * k - 0.3, 0.1 * k + 0.3, "", 0.2, "client") for k in range(4)]
    wide = Line("small", 0.2, -40.0, 40.0, "", 0.0, "client")
    low, high = axis_ends([*lines, wide])
    assert -1.0 < low < -0.5 and 0.9 < high < 1.4
    assert axis_ends([*lines, Line("new", np.nan, -2.0, 3.0, "", np.nan, "prediction")])[1] > 3.0


def test_the_fit_at_clients(rng):
    """C by counting pairs; the slope of the scores, by statsmodels, at every client."""
    sm = pytest.importorskip("statsmodels.api")
    t = table(rng)
    found = analyse(t, "y", "ward", guard=False)
    X = np.column_stack([np.ones(240), t["x"], *(t[HOSTILE] == level for level in ("a", "b"))])
    z = X @ sm.Logit(t["y"], X).fit(disp=0, tol=1e-12).params
    for f in client_fits(found):
        mine = t["ward"] == f.client
        y, s = t["y"][mine], z[mine]
        pairs = s[y == 1][:, None] - s[y == 0]
        assert f.c_statistic == pytest.approx(np.mean((pairs > 0) + 0.5 * (pairs == 0)), abs=1e-12)
        fit = sm.Logit(y, np.column_stack([np.ones(y.size), s])).fit(disp=0, tol=1e-12)
        assert (f.slope, f.slope_error) == pytest.approx((fit.params[1], fit.bse[1]), rel=1e-6)
        assert (f.rows, f.mean, f.expected) == pytest.approx((y.size, y.mean(), (1 / (1 + np.exp(-s))).mean()))
    bins = np.array(calibration_bins(found))
    assert bins[:, 0].sum() == 240 and bins[:, 0] @ bins[:, 2] == t["y"].sum()
    assert bins[:, 0] @ bins[:, 1] == pytest.approx(t["y"].sum())  # the intercept's equation


@pytest.mark.parametrize("kind", ["exact", "separated", "one client", "cox", "own intercepts", "clustered"])
def test_pages_of_other_analyses(kind, rng):
    t = table(rng, family="gaussian")
    how, words = {}, ""
    if kind == "exact":
        t["y"], words = 2.0 * t["x"], "exact linear function"
    elif kind == "separated":
        t["y"] = 1 * (t["x"] > 50.0)
        how, words = (
            {"intervals": "profile", "features": ["x"]},
            "No finite maximum-likelihood estimate of Inter",
        )
    elif kind == "one client":
        t["ward"], words = np.full(240, "a"), "Fewer than two clients"
    elif kind == "cox":
        t |= {"y": np.exp(0.1 * t["y"]), "died": rng.integers(0, 2, 240)}
        how, words = {"event": "died"}, "Whether hazards are proportional"
    elif kind == "own intercepts":
        how, words = {"site_intercepts": True}, "an intercept of each client"
    else:
        how, words = {"robust": "client"}, "robust, clustered by client (4 clusters); t with 3 degrees of freedom"
    assert words in Reader(page(analyse(t, "y", "ward", guard=False, **how))).words


def test_a_confounded_coefficient_is_flagged(rng):
    """Clients differ in level as in x, and x says nothing within any of them."""
    who = np.arange(300) % 3
    x = 10.0 * who + rng.normal(size=300)
    t = {"x": x, "y": 10.0 * who + rng.normal(size=300), "ward": who}
    said = "The coefficient of x is made by differences between clients"
    assert said in page(analyse(t, "y", "ward", guard=False))
    assert said not in page(analyse(t, "y", "ward", guard=False, site_intercepts=True))


@pytest.mark.filterwarnings("error")
def test_extremes_of_units_and_clients(rng):
    """A column whose unit is 10^5 of its deviations; a client without residuals; one with all the weight."""
    n, who = 150, np.arange(150) % 3
    x = rng.normal(size=n)
    t = {"x": 1e-5 * x, "y": rng.poisson(np.exp(0.5 * x)), "ward": who}
    found = analyse(t, "y", "ward", family="poisson", guard=False)
    assert forest(found, "x").ratio == "" and "∞" in Reader(page(found)).words and "inf" in found.summary()
    y = np.where(who == 2, 1.0 + 2.0 * x, x + rng.normal(size=n))
    exact = analyse({"x": x, "y": y, "ward": who}, "y", "ward", guard=False)
    assert exact.differences.left_out == ("2",) and "left out: 2." in Reader(page(exact)).words
    one = summarise(np.array([0.0, 1.0, 1.1]), np.array([1e-30, 1.0, 1.0]))
    assert abs(one.common) < 1e-29 and one.Q.statistic == pytest.approx(2.21)
    assert one.dersimonian_laird.tau2 == pytest.approx(0.0525)  # (Q - 2)/sum w (1 - w/sum w), 2 + 1 + 1


def test_the_command_writes_it(rng, tmp_path, capsys):
    t = table(rng) | {HOSTILE: rng.normal(size=240)}
    lines = [",".join(str(v) for v in row) for row in zip(*t.values(), strict=True)]
    (tmp_path / "wards.csv").write_text("\n".join(["x,u,y,ward", *lines]).replace(HOSTILE, "h"))
    folder = tmp_path / "page"
    argv = ["analyse", str(tmp_path / "wards.csv"), "--target", "y", "--client", "ward", "--report", str(folder)]
    assert main(argv) == 0
    assert f"Page: {folder / 'index.html'}" in capsys.readouterr().out and (folder / "index.html").stat().st_size > 1e4


def test_what_cannot_be_said_is_not(rng):
    """Firth's estimate has no certificate; several classes and Firth have no clients alone, for their own reasons."""
    t = table(rng)
    t["infection"] = t.pop("y")
    firth = Reader(page(analyse(t, "infection", "ward", firth=True, guard=False))).words
    assert "Clients are not analysed alone with Firth" in firth and "nothing certifies" in firth
    assert "Response infection = 1" in firth.replace("Response", "Response ").replace("  ", " ")  # no infinity
    assert "certified by self-concordance" not in firth and "Log-likelihood" not in firth
    t["y"] = np.array(["low", "mid", "top"])[np.digitize(t["x"], [45.0, 55.0]) * (rng.random(240) < 0.7)]
    several = Reader(page(analyse(t, "y", "ward", guard=False, features=["x"]))).words
    assert "Clients are not analysed alone for several classes" in several
    assert "Fewer than two clients" not in firth + several


def test_a_page_is_read_as_statsmodels_is(rng):
    """Ratios of rates only where they are ratios; warnings and Q come first; minus signs, but no broken words."""
    t = table(rng) | {"days": rng.uniform(1.0, 9.0, 240)}
    t["y"][(t["ward"] == "south")] = 0  # no estimate of its own
    found = analyse(t, "y", "ward", family="poisson", exposure="days", robust="client", guard=False)
    rows = coefficients(found)[1]
    assert rows[0][:2] == ["Intercept", "–"] and rows[1][1].startswith(f"{np.exp(found.estimates[1]):.3f}")
    lead = " ".join(lead_of(found, found.differences))
    assert "Poisson regression of 240 rows of 4 clients" in lead and "clustered by client are too small" in lead
    assert "Q of the 3 clients with estimates of their own" in lead
    words = Reader(page(found)).words
    assert "log-likelihood \u2212" in words and "log\u2212" not in words and "Heterogeneity: I² = " in page(found)


def test_digits_are_those_of_the_standard_error():
    assert [places(v) for v in (0.137, 0.00572, 3.9, 4100.0, float("inf"))] == [3, 5, 2, 0, 3]
    assert [ratio_text(v, 2) for v in (1.049, 26.2, 62792.4, 0.0033, 2.7e-8, float("inf"))] == [
        "1.05", "26.2", "62792", "0.0033", "2.7e-08", "inf",
    ]  # fmt: skip
    assert [p_is(v) for v in (0.0123, 4.9e-4, 0.99)] == ["p = 0.012", "p < 0.001", "p = 0.990"]
