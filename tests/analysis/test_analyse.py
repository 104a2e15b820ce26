"""`analyse` from tables: published values, statsmodels on drawn data sets, and tables that must be refused in words."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import scipy.optimize

from fedconvex.analysis import analyse, covariances, negative_binomial
from fedconvex.cli import main
from fedconvex.tables import ColumnProblems

pytestmark = pytest.mark.anywhere
SLOPES = ["rate_marriage", "age", "yrs_married", "children", "religious"]


def fair():
    sets = pytest.importorskip("statsmodels.datasets")
    table = sets.fair.load_pandas().data
    return {c: table[c].to_numpy() for c in [*SLOPES, "occupation"]} | {"affair": (table["affairs"] > 0).to_numpy(int)}


@pytest.fixture(scope="module")
def occupations():
    return {own: analyse(fair(), "affair", "occupation", site_intercepts=own) for own in (False, True)}


def near(value):
    return pytest.approx(value, rel=1e-9)


def test_published_values(occupations):
    """R 4.2: glm, anova, sandwich's vcovCL, metafor's rma; of statsmodels.datasets.fair with occupations as clients."""
    one, own = occupations[False], occupations[True]
    religious = one.table()[-1]
    assert (religious.name, religious.estimate, religious.standard_error) == (
        "religious",
        near(-0.372937731182),
        near(0.034637349277),
    )
    assert own.table()[-1].estimate == near(-0.374541537225)
    assert own.deviance == near(6914.83062696)
    assert one.aic == near(one.deviance + 12.0)
    assert own.aic == near(own.deviance + 22.0)
    clustered = analyse(fair(), "affair", "occupation", robust="client")
    assert clustered.standard_errors[-1] == near(0.05655083456)
    assert clustered.residual_df == 5.0
    apart = one.differences
    assert apart.equal_slopes.statistic == near(25.5876352964)
    assert apart.equal_slopes.df == 25
    assert apart.Q.statistic == near(20.9757270505)
    found = apart.summaries["religious"]
    assert found.common == near(-0.374495287935)
    assert found.dersimonian_laird.estimate == near(-0.384727871544)
    assert found.hartung_knapp.estimate == near(-0.38586345044)
    assert found.prediction == pytest.approx((-0.616231636, -0.155495265), abs=1e-9)


TWELVE = {
    "x": np.array([-3, -2, -1, 0, 1, 2, 3, 4, -4, 0, 2, -1]) / 2.0,
    "y": [1, 2, 1, 3, 2, 6, 4, 15, 1, 1, 9, 2],
    "site": np.repeat(list("abcd"), 3),
}


def test_robust_errors_beside_those_of_R():
    """R 4.2, sandwich 3.0-2: equal with the canonical link; with another R's bread is the expected information."""

    def errors(family, *kinds):
        every = (analyse(TWELVE, "y", "site", family=family, robust=kind, guard=False) for kind in kinds)
        return [found.standard_errors[1] for found in every]

    R = [0.11020700885, 0.120725729484, 0.139501128331, 0.186504399562, 0.0530291683037]  # vcovCL(m, type = "HC1")
    assert errors("poisson", "HC0", "HC1", "HC2", "HC3", "client") == near(R)
    X = np.column_stack([np.ones(12), TWELVE["x"]])
    found = analyse(TWELVE, "y", "site", family="gamma")
    ratio = TWELVE["y"] / np.exp(X @ [c.estimate for c in found.table()])
    meat = (X.T * (1.0 - ratio) ** 2) @ X
    for J, error in ((X.T @ X, 0.0974044329502), ((X.T * ratio) @ X, errors("gamma", "HC0")[0])):
        assert math.sqrt((np.linalg.inv(J) @ meat @ np.linalg.inv(J))[1, 1]) == near(error)


def drawn(seed):
    """A table with a category, scales from 1e-4 to 1e4, weights, offsets; family and number of sites vary."""
    rng = np.random.default_rng(seed)
    name = ("gaussian", "logistic", "poisson", "quasipoisson", "gamma", "negative-binomial")[seed % 6]
    n, K = int(rng.integers(80, 400)), int(rng.integers(2, 12))
    scale = 10.0 ** rng.uniform(-4, 4, 2)
    X, ward, who = rng.normal(size=(n, 2)), rng.choice(["a", "b", "c"], n), rng.integers(0, K, n)
    o, s = 0.2 * rng.normal(size=n), rng.integers(1, 4, n)
    z = 0.3 + X @ [0.4, -0.3] + 0.5 * (ward == "c") + o
    y = {
        "gaussian": lambda: z + rng.normal(size=n),
        "logistic": lambda: (rng.random(n) < 1 / (1 + np.exp(-z))).astype(int),
        "gamma": lambda: rng.gamma(2.0, np.exp(z) / 2),
    }.get(name, lambda: rng.poisson(np.exp(z)))()
    table = {"x": 5.0 * scale[0] + scale[0] * X[:, 0], "u": scale[1] * X[:, 1], "ward": ward, "y": y, "site": who}
    return name, table | {"o": o, "s": s}


@pytest.mark.parametrize("seed", range(12))
def test_estimates_are_those_of_statsmodels(seed):
    """GLM on standardised columns, transformed back: in raw units it loses half the digits itself."""
    sm = pytest.importorskip("statsmodels.api")
    name, table = drawn(seed)
    kind = negative_binomial(2.0) if name == "negative-binomial" else name
    own = seed % 4 == 3
    how = {"family": kind, "offset": "o", "weight": "s", "site_intercepts": own, "guard": False}
    found = analyse(table, "y", "site", reference={"ward": "b"}, **how)
    columns = [table["x"], table["u"], table["ward"] == "a", table["ward"] == "c"]
    assert found.names[-4:] == ("x", "u", "ward=a", "ward=c")
    X = np.column_stack([np.asarray(c, dtype=float) for c in columns])
    mean, sd = X.mean(axis=0), X.std(axis=0)
    first = np.eye(table["site"].max() + 1)[table["site"]] if own else np.ones((len(X), 1))
    log = sm.families.links.Log()
    family = {
        "gaussian": sm.families.Gaussian(), "logistic": sm.families.Binomial(), "gamma": sm.families.Gamma(log),
        "negative-binomial": sm.families.NegativeBinomial(log, alpha=0.5),
    }.get(name, sm.families.Poisson())  # fmt: skip
    model = sm.GLM(
        table["y"], np.column_stack([(X - mean) / sd, first]), family, offset=table["o"], freq_weights=table["s"]
    )
    fit = model.fit(tol=1e-14, maxiter=300, scale="X2" if name == "quasipoisson" else None)
    rtol = 1e-8 if found.rows.family.canonical else 1e-7  # elsewhere its steps converge linearly
    np.testing.assert_allclose(found.estimates[-4:], fit.params[:4] / sd, rtol=rtol)
    np.testing.assert_allclose(found.standard_errors[-4:], fit.bse[:4] / sd, rtol=rtol)
    assert found.deviance == near(float(fit.deviance))
    assert found.dispersion == pytest.approx(float(fit.scale), rel=1e-8)
    assert found.certificate < 1e-6
    if name in ("logistic", "poisson", "negative-binomial"):  # others are R's, whose dispersion is another
        assert found.log_likelihood == near(float(fit.llf))
    robust = analyse(table, "y", "site", reference={"ward": "b"}, robust="HC0", **how)
    theirs = model.fit(tol=1e-14, maxiter=300, cov_type="HC0")  # its HC1 divides rows by weights
    np.testing.assert_allclose(robust.standard_errors[-4:], theirs.bse[:4] / sd, rtol=1e-7)


def test_tests_agree_where_they_are_one_test(rng):
    """Gaussian, one coefficient: likelihood ratio, score and the square of Wald's t are the same F."""
    x, u = rng.normal(size=(2, 60))
    found = analyse({"x": x, "u": u, "y": x + rng.normal(size=60), "site": np.arange(60) % 3}, "y", "site", guard=False)
    t = found.table()[1].statistic
    for how in ("likelihood ratio", "score", "wald"):
        assert found.test("x", how).statistic == pytest.approx(t * t, rel=1e-9)
        assert found.test("x", how).p == pytest.approx(found.table()[1].p, rel=1e-7)
    assert found.test().df == 2
    with pytest.raises(ValueError, match="be among Intercept, x, u"):
        found.test("z")


def test_terms_with_and_without_the_intercept_are_tested(rng):
    """Far from zero, where columns are centred in between: statsmodels' log-likelihoods without the columns."""
    sm = pytest.importorskip("statsmodels.api")
    x, u, who = 50.0 + 10.0 * rng.normal(size=200), rng.normal(size=200), rng.integers(0, 3, 200)
    y = (rng.random(200) < 1.0 / (1.0 + np.exp(2.0 - 0.05 * x - u))).astype(int)
    found = analyse({"x": x, "u": u, "y": y, "site": who}, "y", "site", guard=False)
    columns = {"Intercept": np.ones(200), "x": x, "u": u}

    def largest(*kept):
        X = np.column_stack([columns[c] for c in kept])
        return sm.GLM(y, X, sm.families.Binomial()).fit(tol=1e-14, maxiter=200).llf

    whole = largest(*columns)
    for gone in (["Intercept"], ["x"], ["Intercept", "x"], ["x", "u"]):
        kept = [c for c in columns if c not in gone]
        assert found.test(gone).statistic == pytest.approx(2.0 * (whole - largest(*kept)), rel=1e-8), gone
        assert found.test(gone, "score").statistic == pytest.approx(found.test(gone).statistic, rel=0.5), gone
    assert found.test(list(columns)).statistic == pytest.approx(2.0 * (whole - 200 * np.log(0.5)), rel=1e-9)


@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_a_level_that_separates_is_named(family, rng):
    """All rows of one level respond alike; everything else overlaps. J is flat along it before the search ends."""
    who, u = rng.integers(0, 3, 200), rng.normal(size=200)
    flag = np.where(np.arange(200) % 4 == 0, 1.0, 0.0)
    y = (rng.random(200) < 0.5).astype(int) if family == "logistic" else rng.poisson(1.0, 200)
    y = np.where(flag > 0.0, int(family == "logistic"), y)
    with pytest.raises(ValueError, match=r"separated.*rises for ever along flag, in 50 rows of 0, 1, 2:"):
        analyse({"flag": flag, "u": u, "y": y, "site": who}, "y", "site", family=family, guard=False)


def separated(Z, y, family):
    """Whether a direction v exists along which N never rises: by the largest sum of t <= y~ Z v, t <= 1."""
    p = Z.shape[1]
    A = (2 * y - 1)[:, None] * Z if family == "logistic" else -Z[y == 0]
    m, Y = len(A), Z[:0] if family == "logistic" else Z[y > 0]
    found = scipy.optimize.linprog(
        np.r_[np.zeros(p), -np.ones(m)], np.c_[-A, np.eye(m)], np.zeros(m), np.c_[Y, np.zeros((len(Y), m))],
        np.zeros(len(Y)), [(None, None)] * p + [(0, 1)] * m,
    )  # fmt: skip
    return -found.fun > 1e-6


@pytest.mark.slow
def test_separation_is_what_a_linear_programme_finds():
    """Albert and Anderson (1984), Correia, Guimaraes and Zylkin (2019); 300 small tables, a fifth of them separated."""
    counted = 0
    for seed in range(310):
        rng = np.random.default_rng(seed)
        n, p, family = int(rng.integers(8, 40)), int(rng.integers(1, 4)), ("logistic", "poisson")[seed % 2]
        few = (rng.random((n, p)) < rng.uniform(0.1, 0.5)).astype(float)
        X = np.where(rng.random(p) < 0.5, few, rng.normal(size=(n, p)))
        chance = 1.0 / (1.0 + np.exp(-1.5 * X.sum(axis=1)))
        y = (rng.random(n) < chance).astype(int) if family == "logistic" else rng.poisson(np.exp(X.sum(axis=1) - 1.0))
        Z = np.column_stack([np.ones(n), X])
        if np.linalg.matrix_rank(Z) <= p or np.ptp(y) == 0:
            continue
        table = {f"x{j}": X[:, j] for j in range(p)} | {"y": y, "site": np.arange(n) % 2}
        expected = separated(Z, y, family)
        counted += expected
        try:
            analyse(table, "y", "site", family=family, guard=False)
        except ValueError as error:
            assert expected and "separated" in str(error), (seed, error)
        else:
            assert not expected, seed
    assert counted > 40


def test_rows_of_weight_zero_and_clients_that_agree_change_nothing(rng):
    """Of a client whose responses agree R counts the intercept, and so does AIC here."""
    u, who = rng.normal(size=200), rng.integers(0, 4, 200)
    y, s = rng.poisson(np.exp(0.3 * u + 0.2 * who)), rng.integers(0, 3, 200)
    y[who == 3] = 0
    how = {"family": "poisson", "weight": "s", "site_intercepts": True, "guard": False}
    table = {"u": u, "y": y, "s": s, "site": who}
    found = analyse(table, "y", "site", **how)
    for kept, parameters in ((s > 0, 5), (who != 3, 4)):
        part = analyse({k: v[kept] for k, v in table.items()}, "y", "site", **how)
        np.testing.assert_allclose(found.estimates, part.estimates, rtol=1e-10)
        np.testing.assert_allclose(found.standard_errors, part.standard_errors, rtol=1e-9)
        assert found.aic - part.aic == pytest.approx(2.0 * (5 - parameters), abs=1e-9)


def test_rows_with_gaps_are_left_out_and_counted(rng):
    table = drawn(0)[1]
    whole = analyse({k: v[10:] for k, v in table.items()}, "y", "site", features=["x", "u"], guard=False)
    table = {k: v.copy() for k, v in table.items()}
    table["x"][:6] = np.nan
    table["u"][4:10] = np.nan
    table["o"][:] = np.nan  # not used
    found = analyse(table, "y", "site", features=["x", "u"], guard=False)
    np.testing.assert_allclose(found.estimates, whole.estimates, rtol=1e-10)
    assert found.rows.rows_read - found.rows.federation.n == 10
    by = {c: sum(m for name, _, m in found.rows.left_out if name == c) for c in ("x", "u")}
    assert by == {"x": 6, "u": 6}
    assert "10 left out for missing cells: x 6, u 6" in found.summary()


def test_a_client_that_loses_every_row_is_named(rng):
    n = 90
    table = {"x": rng.standard_normal(n), "u": rng.standard_normal(n), "ill": rng.integers(0, 2, n)}
    table["site"] = np.repeat(["north", "south", "west"], n // 3)
    table["u"][30:], table["x"][::15] = np.nan, np.nan
    found = analyse(table, "ill", "site")
    said = "missing cells leave no row of south, west; 60 of their rows lack 'u': drop that column to keep those that"
    assert said in dict(found.facts())["Warning"] and "28 of 90 rows" in found.summary()
    there = analyse(table, "ill", "site", drop=["u"])
    assert there.rows.federation.K == 3 and "leave no row" not in there.summary()


def test_exposures_are_offsets():
    table = drawn(2)[1] | {"days": np.arange(1.0, 1.0 + len(drawn(2)[1]["x"]))}
    how = {"family": "poisson", "features": ["x", "u"], "guard": False}
    found = analyse(table, "y", "site", exposure="days", **how)
    again = analyse(table | {"o": np.log(table["days"])}, "y", "site", offset="o", **how)
    assert found.estimates.tolist() == again.estimates.tolist()
    with pytest.raises(ValueError, match="exposure 'days' must be positive; got 0"):
        analyse(table | {"days": table["days"] - 1.0}, "y", "site", exposure="days", **how)


@pytest.mark.parametrize(
    ("change", "how", "words"),
    [
        ({"twice": lambda t: 2.0 * t["x"] + 1.0}, {}, "'twice' must tell something beside .* a combination of .*x"),
        ({"flag": lambda t: 1.0 * (t["site"] > 0)}, {"site_intercepts": True}, "'flag' must vary within a client"),
        ({"sign": lambda t: t["y"] * 2.0 + 0.0}, {}, "be finite .*separated.*rises for ever along .*sign"),
        ({"y": lambda t: 0.0 * t["s"]}, {"family": "poisson"}, "must vary; got one response in every row"),
        ({}, {"family": "binomial"}, "be one of gaussian, logistic"),
        ({}, {"impute": "median"}, "standard errors would be too small"),
        ({}, {"reference": {"x": 1}}, "name categories"),
        ({}, {"reference": {"ward": "z"}}, "be one of a, b, c; got z"),
        ({}, {"offset": "nowhere"}, "have a column 'nowhere'"),
        ({"y": lambda t: t["s"]}, {}, "whole numbers or classes leave a doubt"),
        ({}, {"robust": "HC9"}, "HC0"),
        ({}, {"level": 1.5}, "level must lie strictly between 0 and 1; got 1.5"),
        ({}, {"level": 1.0}, "level must lie strictly between 0 and 1; got 1.0"),
    ],
    ids=lambda v: None,
)  # fmt: skip
def test_what_cannot_be_analysed_is_refused_in_words(change, how, words):
    table = drawn(1)[1]
    table |= {name: make(table) for name, make in change.items()}
    with pytest.raises(ValueError, match=words):
        analyse(table, "y", "site", **({"guard": False} | how))


def test_robust_errors_with_intercepts_of_clients(rng):
    """statsmodels' OLS with an indicator of each client: HC2, HC3, and clusters with their factor."""
    sm = pytest.importorskip("statsmodels.api")
    n, who = 90, np.arange(90) % 5
    x, u = rng.normal(size=n), rng.normal(size=n) + who
    y = x + 0.5 * u + who + rng.normal(size=n) * (1.0 + np.abs(x)) + rng.normal(size=5)[who]
    Z = np.column_stack([x, u, np.eye(5)[who]])
    for robust, how in (
        ("HC2", {"cov_type": "HC2"}),
        ("HC3", {"cov_type": "HC3"}),
        ("client", {"cov_type": "cluster", "cov_kwds": {"groups": who}}),
    ):
        found = analyse({"x": x, "u": u, "y": y, "k": who}, "y", "k", site_intercepts=True, robust=robust, guard=False)
        theirs = sm.OLS(y, Z).fit(**how)
        np.testing.assert_allclose(found.covariance, theirs.cov_params()[:2, :2], rtol=1e-8, err_msg=robust)


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_the_jackknife_over_clients_with_their_own_intercepts(family, rng):
    """Each client left out, by analyses of the others' rows."""
    n, who = 600, np.arange(600) % 8
    x, u = rng.normal(size=n), rng.normal(size=n) + 0.3 * who
    z = 0.3 * x - 0.2 * u + 0.2 * who + 0.3 * rng.normal(size=8)[who] * x
    t = {"x": x, "u": u, "y": z + rng.normal(size=n) if family == "gaussian" else rng.poisson(np.exp(z)), "k": who}
    how = {"family": family, "site_intercepts": True, "guard": False}
    found, parts = analyse(t, "y", "k", **how), [{c: v[who != k] for c, v in t.items()} for k in range(8)]
    left = np.array([analyse(part, "y", "k", **how).estimates for part in parts])
    V = covariances.jackknife(left)
    np.testing.assert_allclose(V, 7.0**2 / 8.0 * np.cov(left.T), rtol=1e-10)  # np.cov divides by 7
    assert (np.sqrt(np.diagonal(V)) / found.standard_errors > 0.5).all()


def test_an_exact_fit_is_said_in_words(rng):
    """A response without noise has a residual of rounding only; of noise of 1e-9 there are standard errors."""
    x, u = rng.normal(size=60), 100.0 + rng.normal(size=60)
    table = {"x": x, "u": u, "y": 2.0 * x - 0.3 * u + 7.0, "site": np.arange(60) % 3}
    found = analyse(table, "y", "site", guard=False)
    assert found.exact and "exact linear function of the columns: there are no standard errors" in found.summary()
    assert "Warning" not in found.summary() and np.isnan(found.standard_errors).all()
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert told["coefficients"][1]["standard_error"] is None and told["log_likelihood"] is None
    np.testing.assert_allclose(found.estimates, [7.0, 2.0, -0.3], rtol=1e-10)
    for refused in (found.test, lambda: found.differences):
        with pytest.raises(ValueError, match="exact linear function"):
            refused()
    near = analyse(table | {"y": table["y"] + 1e-9 * rng.normal(size=60)}, "y", "site", guard=False)
    assert not near.exact and near.standard_errors[1] == pytest.approx(1e-9 / np.sqrt(60), rel=0.5)


def test_the_guard_speaks_before_the_model():
    table = drawn(1)[1]
    with pytest.raises(ColumnProblems, match=r"constant|never changes|one value"):
        analyse(table | {"same": np.ones(len(table["x"]))}, "y", "site")


def test_the_command_says_what_the_function_finds(tmp_path, capsys):
    table = drawn(1)[1]
    path = tmp_path / "wards.csv"
    names = ["x", "u", "ward", "y", "site"]
    lines = [",".join(str(table[n][i]) for n in names) for i in range(len(table["x"]))]
    path.write_text("\n".join([",".join(names), *lines]) + "\n")
    argv = ["analyse", str(path), "--target", "y", "--client", "site", "--reference", "ward=b", "--test", "ward"]
    found = analyse(path, "y", "site", reference={"ward": "b"})
    assert main([*argv, "--differences"]) == 0
    out = capsys.readouterr().out
    assert found.summary() in out
    assert f"Likelihood ratio test of ward: {found.test('ward').statistic:.5g}, chi2(2)" in out
    assert "Likelihood-ratio test of equal slopes" in out or "left out" in out
    assert main([*argv, "--json", "--robust", "HC3"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["robust"] == "HC3"
    assert told["tests"]["ward"]["df"] == 2
    assert main([*argv[:-4], "--reference", "ward"]) == 2
    assert "COLUMN=LEVEL" in capsys.readouterr().err


def test_what_a_refusal_proposes_can_be_pasted(tmp_path, capsys):
    """Identifiers, dates and a code for missing cells; nothing is filled, so nothing says how to."""
    rng, path = np.random.default_rng(4), tmp_path / "wards.csv"
    rows = [
        f"P{i:03d},2024-0{i % 9 + 1}-1{i % 7},{rng.integers(60, 90) if i % 11 else -9},{rng.normal():.3f},{'ab'[i % 2]}"
        for i in range(80)
    ]
    path.write_text("\n".join(["id,day,pulse,y,site", *rows]) + "\n")
    argv = ["analyse", str(path), "--target", "y", "--client", "site"]
    assert main(argv) == 2
    settled = capsys.readouterr().err.partition("settled by: ")[2].partition(";")[0]
    assert settled == "--drop id,day --missing pulse=-9"
    assert main([*argv, *settled.split()]) == 0
    assert "8 left out for missing cells: pulse 8" in capsys.readouterr().out


@pytest.mark.slow_unless(name="gaussian")
@pytest.mark.parametrize("own", [False, True], ids=["common", "own"])
@pytest.mark.parametrize("name", ["gaussian", "gamma"])
def test_units_of_the_response_change_no_digit(name, own):
    """From powers of ten that square badly, and births in grams: a mean of thousands is no infinite intercept."""
    rng = np.random.default_rng(5)
    x, site = rng.normal(size=90), np.arange(90) % 3
    y = 3500.0 + 200.0 * (x + rng.normal(size=90)) if name == "gaussian" else rng.gamma(2.0, np.exp(0.3 * x) / 2.0)

    def found(unit):
        rows = {"x": x, "y": unit * y, "site": site}
        return analyse(rows, "y", "site", family=name, site_intercepts=own, guard=False)

    one = found(1.0)
    slope = np.polyfit(x - (own * np.array([x[site == k].mean() for k in range(3)]))[site] if own else x, y, 1)[0]
    assert name == "gamma" or one.estimates[-1] == pytest.approx(slope)
    for unit in (1e-50, 1e-12, 1e50):
        other, u = found(unit), unit if name == "gaussian" else 1.0
        assert other.estimates[-1] == pytest.approx(u * one.estimates[-1], rel=1e-10)
        assert other.standard_errors[-1] == pytest.approx(u * one.standard_errors[-1], rel=1e-10)
        assert other.deviance == pytest.approx(u**2 * one.deviance, rel=1e-10)
        assert other.log_likelihood == pytest.approx(one.log_likelihood - 90 * np.log(unit), rel=1e-10)
        assert other.differences.equal_slopes.p == pytest.approx(one.differences.equal_slopes.p, rel=1e-8)
        assert other.test("x").statistic == pytest.approx(one.test("x").statistic, rel=1e-8)
        assert other.certificate < 1e-6 and other.dispersion == pytest.approx(u**2 * one.dispersion, rel=1e-10)
    with pytest.raises(ValueError, match=r"y must be of a size between.*measure it in other units"):
        found(1e-300)


@pytest.mark.slow_unless(name="gaussian")
@pytest.mark.parametrize("name", ["gaussian", "logistic", "poisson"])
def test_a_client_whose_column_is_constant_has_no_estimate_of_its_own(name):
    """What centring leaves of the column is rounding, and no information."""
    rng = np.random.default_rng(7)
    x, site = rng.normal(size=400), np.arange(400) % 4
    level = np.where(site == 3, "only", np.array(["a", "b"])[rng.integers(0, 2, 400)])
    y = {"gaussian": x + rng.normal(size=400), "logistic": (x + rng.logistic(size=400) > 0) * 1}.get(
        name, rng.poisson(np.exp(0.3 * x))
    )
    found = analyse({"x": x, "w": level, "y": y, "site": site}, "y", "site", family=name, guard=False)
    with pytest.raises(ValueError, match="at least two clients with finite estimates; got 0"):
        _ = found.differences
    level[site == 3] = "a"
    found = analyse({"x": x, "w": level, "y": y, "site": site}, "y", "site", family=name, guard=False)
    assert found.differences.left_out == ("3",)


def test_sizes_and_numbers_of_columns_are_refused_in_words():
    rng = np.random.default_rng(8)
    x, y, site = rng.normal(size=40), rng.normal(size=40), np.arange(40) % 2
    for unit in (1e150, 1e-200):
        with pytest.raises(ValueError, match=r"column 'x' must be of a size between 1e-60 and 1e60"):
            analyse({"x": unit * x, "y": y, "site": site}, "y", "site", guard=False)
    many = {f"v{j}": rng.normal(size=40) for j in range(60)}
    with pytest.raises(ValueError, match="rows must be as many as the 61 coefficients; got 40"):
        analyse(many | {"y": y, "site": site}, "y", "site", guard=False)


def test_few_clients_and_many_small_ones_are_warned_of():
    """Errors by client of fewer than twenty; logistic models with an intercept of each of many small clients."""
    rng = np.random.default_rng(0)
    for K, m in ((10, 100), (40, 10), (25, 100)):
        who, x = np.repeat(np.arange(K), m), rng.normal(size=K * m)
        y = np.where(rng.random(K * m) < 1.0 / (1.0 + np.exp(-x)), "yes", "no")
        table = {"x": x, "y": y, "who": [f"c{k}" for k in who]}
        few = analyse(table, "y", "who", robust="client").summary()
        small = analyse(table, "y", "who", site_intercepts=True).summary()
        assert ("too small with fewer than 20 clients" in few) == (K < 20)
        assert ("slopes are too far from 0" in small) == (m < 60)


def test_the_summary_says_what_statsmodels_says(rng):
    """Df, null log-likelihood, pseudo and adjusted R^2, LLR p-value, F, BIC, Pearson chi2, references of categories."""
    sm = pytest.importorskip("statsmodels.api")
    n = 150
    t = {"x": rng.normal(size=n), "u": rng.choice(["a", "b"], n), "site": np.arange(n) % 3}
    X = np.column_stack([np.ones(n), t["x"], t["u"] == "b"])
    t["y"] = (rng.random(n) < 0.5) * 1
    fit, found = sm.Logit(t["y"], X).fit(disp=0), analyse(t, "y", "site")
    ours = (found.null_log_likelihood, found.r_squared, found.overall.p, found.bic)
    assert ours == pytest.approx((fit.llnull, fit.prsquared, fit.llr_pvalue, fit.bic), rel=1e-6)
    text = found.summary()
    assert f"residuals {fit.df_resid:g}, model {fit.df_model:g}" in text and "u: b against a" in text
    assert f"{fit.prsquared:.4f} (McFadden)" in text and "yes, certified" in text
    t["y"] = t["x"] + 0.3 * rng.normal(size=n)
    fit, found = sm.OLS(t["y"], X).fit(), analyse(t, "y", "site")
    assert (found.r_squared, found.overall.statistic, found.overall.p) == pytest.approx(
        (fit.rsquared, fit.fvalue, fit.f_pvalue), rel=1e-8
    )
    assert f"adjusted {fit.rsquared_adj:.4f}" in found.summary()
    assert analyse(t, "y", "site", robust="HC0").overall is None
