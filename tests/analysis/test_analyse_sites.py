"""Analyses over sites: equal to those of pooled rows, with sums that nobody sees, and what a site refuses."""

from __future__ import annotations

import re
from threading import Thread

import numpy as np
import pytest

from fedconvex.analysis import Guards, analyse, analyse_sites, negative_binomial, plan_analysis
from fedconvex.remote import Exchange, Limits, Plain, Site, in_process, serve
from fedconvex.secure import PlainSums, SecureSums

pytestmark = pytest.mark.anywhere
BOOK = {
    "age": [40, 60, 70], "ward": ["a", "b", "c"], "dose": [0.01, 0.02, 0.03], "y": [0, 1, 2], "site": ["x", "y", "z"],
    "s": [1, 2, 3], "o": [0.1, 0.2, 0.3], "odd": [1.0, 2.0, 4.0],
}  # fmt: skip
FAMILIES = ("gaussian", "logistic", "poisson", "quasipoisson", "gamma", "negative-binomial")


def family_of(name):
    return negative_binomial(2.0) if name == "negative-binomial" else name


def hospitals(name, rng, n=240, K=3):
    """A table of some hospitals: missing cells, a category, weights, offsets, columns of different scales."""
    age, dose = 50.0 + 10.0 * rng.normal(size=n), 0.02 + 0.01 * rng.normal(size=n)
    ward, who = rng.choice(["a", "b", "c"], n), np.array(list("xyz"))[rng.integers(0, K, n)]
    o, s = 0.2 * rng.normal(size=n), rng.integers(1, 4, n)
    z = 0.03 * (age - 50.0) + 20.0 * (dose - 0.02) + 0.5 * (ward == "c") + 0.3 * (who == "y") + o
    y = {
        "gaussian": lambda: z + rng.normal(size=n),
        "logistic": lambda: np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-z)), 1, 0),
        "gamma": lambda: rng.gamma(2.0, np.exp(z) / 2.0),
    }.get(name, lambda: rng.poisson(np.exp(z)))()
    age[rng.integers(0, n, 5)] = np.nan
    return {"age": age, "ward": ward, "dose": dose, "y": y, "site": who, "s": s, "o": o}


def planned(name, own=False, sums=None):
    book = dict(BOOK)
    book["y"] = {"logistic": [0, 1, 0], "gamma": [0.5, 1.5, 2.5], "gaussian": [0.5, 1.5, 2.5]}.get(name, [0, 1, 7])
    return plan_analysis(
        book, "y", "site", family=family_of(name), site_intercepts=own, weight="s", offset="o", sums=sums, drop=["odd"],
        keep=["age", "dose"], reference={"ward": "b"},
    )  # fmt: skip


def parts(table):
    """Tables of the hospitals, without the column that names them."""
    return {k: {c: v[table["site"] == k] for c, v in table.items() if c != "site"} for k in "xyz"}


def federated(plan, table, limits=None, **options):
    rows = {k: plan.rows(own, k, Guards(parameters=1.0)) for k, own in parts(table).items()}
    sites = [Site(plan.method, plan.make, own, limits=limits) for own in rows.values()]
    roster = plan.roster({k: own.n for k, own in rows.items()}, masses=[own.masses[0] for own in rows.values()])
    return analyse_sites(plan, roster, in_process(sites), **options)


def pooled(name, table, own=False, **options):
    return analyse(
        table, "y", "site", family=family_of(name), site_intercepts=own, weight="s", offset="o", keep=["age", "dose"],
        reference={"ward": "b"}, **options,
    )  # fmt: skip


@pytest.mark.parametrize("own", [False, True], ids=["common", "own"])
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.slow_unless(own=True)
def test_sites_find_what_pooled_rows_say(name, own, rng):
    """Within 1e-10 of a standard error; tests, deviances, robust covariances, profiles and differences as well."""
    table = hospitals(name, rng)
    there, here = federated(planned(name, own), table, robust="HC3"), pooled(name, table, own, robust="HC3")
    assert there.names == here.names
    assert np.abs((there.estimates - here.estimates) / here.standard_errors).max() < 1e-10
    np.testing.assert_allclose(there.standard_errors, here.standard_errors, rtol=1e-9)
    there, here = (f(intervals="profile") for f in (
        lambda **o: federated(planned(name, own), table, **o), lambda **o: pooled(name, table, own, **o)
    ))  # fmt: skip
    np.testing.assert_allclose(there.standard_errors, here.standard_errors, rtol=1e-10)
    for what in ("deviance", "null_deviance", "aic", "log_likelihood"):
        mine, wanted = getattr(there, what), getattr(here, what)
        assert mine == wanted if wanted is None else mine == pytest.approx(wanted, rel=1e-10)
    for one, other in zip(there.table(), here.table(), strict=True):
        assert one[5:] == pytest.approx(other[5:], rel=1e-8)
    for how in ("wald", "likelihood ratio", "score"):
        assert there.test("ward", how).statistic == pytest.approx(here.test("ward", how).statistic, rel=1e-8, abs=1e-8)
    apart, wanted = there.differences, here.differences
    assert apart.clients == wanted.clients
    np.testing.assert_allclose(apart.estimates, wanted.estimates, rtol=1e-7, atol=1e-9)
    assert apart.equal_slopes.statistic == pytest.approx(wanted.equal_slopes.statistic, rel=1e-7)
    assert there.certificate < 1e-6


@pytest.mark.parametrize("own", [False, True], ids=["common", "own"])
@pytest.mark.parametrize("name", ["logistic", "poisson", "gaussian"])
def test_secure_sums_are_off_by_what_is_printed(name, own, rng):
    """The server learns sums only; estimates differ by no more standard errors than the certificate says."""
    pytest.importorskip("cryptography")
    table = hospitals(name, rng)
    there, here = federated(planned(name, own, SecureSums(bits=40)), table), pooled(name, table, own)
    away = np.abs((there.estimates - here.estimates) / here.standard_errors).max()
    assert away <= there.certificate < 1e-6
    np.testing.assert_allclose(there.standard_errors, here.standard_errors, rtol=1e-8)
    assert there.test("ward").statistic == pytest.approx(here.test("ward").statistic, rel=1e-6)
    with pytest.raises(ValueError, match="PlainSums"):
        _ = there.differences


@pytest.mark.slow
def test_risk_ratios_are_called_so(rng):
    """Poisson of 0 and 1 with robust errors (Zou, 2004), pooled and over sites; else rate ratios."""
    table = {c: v for c, v in hospitals("logistic", rng).items() if c not in ("s", "o")}
    book = {c: v for c, v in BOOK.items() if c in table}
    how = {"target": "y", "client": "site", "family": "poisson", "guard": False}
    plan = plan_analysis(book, **how)
    for robust, counts, name in (("HC0", 1, "risk ratio"), ("HC0", 2, "rate ratio"), (None, 1, "rate ratio")):
        here = table | {"y": table["y"] * counts}
        assert (
            name in analyse(here, robust=robust, **how).to_frame()
            and federated(plan, here, robust=robust).ratio == name
        )
    assert analyse(table | {"t": np.ones(240)}, robust="HC0", exposure="t", **how).ratio == "rate ratio"


def test_robust_sums_are_secure_too(rng):
    """Of clustered covariances the server learns the sum of U_k U_k'."""
    pytest.importorskip("cryptography")
    table = hospitals("logistic", rng)
    there = federated(planned("logistic", sums=SecureSums(bits=40)), table, robust="client")
    here = pooled("logistic", table, robust="client")
    np.testing.assert_allclose(there.standard_errors, here.standard_errors, rtol=1e-7)


def test_over_sockets(rng):
    """Site by site in threads, each behind a socket."""
    table, plan, known = hospitals("logistic", rng), planned("logistic"), Plain(bytes(range(32)))
    rows = [plan.rows(own, k, Guards(parameters=1.0)) for k, own in parts(table).items()]
    with Exchange(("127.0.0.1", 0), known, sites=3, deadline=30.0) as exchange:
        for k, own in enumerate(rows):
            site = Site(plan.method, plan.make, own, limits=Limits(share=3.0))
            Thread(target=serve, args=(site, exchange.address, known.site(k), k), daemon=True).start()
        roster = plan.roster({k: r.n for k, r in zip("xyz", rows, strict=True)}, masses=[r.masses[0] for r in rows])
        there = analyse_sites(plan, roster, exchange)
        assert there.test("ward").df == 2
    here = pooled("logistic", table)
    assert np.abs((there.estimates - here.estimates) / here.standard_errors).max() < 1e-10


def test_a_site_answers_no_more_numbers_than_its_rows_hold(rng):
    """Its ledger counts them; the error names the site, the count and the option."""
    with pytest.raises(ConnectionError, match=r"numbers are answered about rows that hold.*Limits\(share=0.1\)"):
        federated(planned("logistic"), hospitals("logistic", rng), limits=Limits(share=0.1))


@pytest.mark.parametrize(
    ("change", "guards", "words"),
    [
        (lambda t: {c: v[:8] for c, v in t.items()}, {}, r"site x: rows must be at least 10; got 8: .*Guards\(rows"),
        (lambda t: t | {"y": np.arange(len(t["y"])) < 4}, {}, r"events must be at least 5; got 4"),
        (
            lambda t: t | {"ward": np.where(np.arange(len(t["y"])) < 2, "a", "b")},
            {},
            r"'ward=a'.*none or at least 3; got 2",
        ),
        (lambda t: {c: v[:30] for c, v in t.items()}, {}, r"5 coefficients must be at most 0.1 of the rows; got 30"),
        (lambda t: {c: v for c, v in t.items() if c != "dose"}, {}, r"site x: table must have the columns"),
        (lambda t: t | {"ward": np.full(len(t["y"]), "d")}, {}, r"'ward'.*'d'|d"),
    ],
    ids=["rows", "events", "level", "parameters", "column", "category"],
)  # fmt: skip
def test_what_a_site_refuses_to_sum(change, guards, words, rng):
    """Each refusal names the site, what it is, how many, and the option that allows it."""
    own = parts(hospitals("logistic", rng, n=600))["x"]
    own["y"] = np.asarray(own["y"]) == 1
    plan = planned("logistic")
    table = change({c: np.asarray(v) for c, v in own.items()})
    table["y"] = table["y"].astype(int)
    table["age"] = np.nan_to_num(table["age"], nan=50.0)
    with pytest.raises(ValueError, match=words):
        plan.rows(table, "x", Guards(**guards))


def test_what_is_no_question_is_refused(rng):
    """A server cannot ask for anything else, nor about rows by themselves."""
    from fedconvex.analysis.site_answers import report
    from fedconvex.remote.messages import Refused

    plan, table = planned("logistic"), hospitals("logistic", rng)
    problem = plan.make(plan.rows(parts(table)["x"], "x", Guards(parameters=1.0)))
    p, shift = 5, np.zeros((1, 5))
    frame = {"shift": shift, "map": np.eye(p)[None], "own": np.zeros(1)}
    assert report(problem, 0, {**frame, "w": shift})["N"].shape == (1,)
    for asked in (
        {"w": shift},
        {**frame, "w": shift, "rows": shift},
        {**frame, "w": np.zeros((1, 4))},
        {**frame, "w": np.full((1, 5), np.nan)},
        {**frame, "w": np.zeros((2, 5))},
        {"center": shift},
        {"center": shift, "unit": np.zeros((1, 5))},
        {},
    ):
        with pytest.raises(Refused):
            report(problem, 0, asked)


def one_site(rng, own=False, **limits):
    """A site that has joined, and how to ask it."""
    from fedconvex.analysis.over_sites import Asking
    from fedconvex.remote.site_engine import SiteEngine

    plan, table = planned("logistic", own), hospitals("logistic", rng)
    rows = plan.rows(parts(table)["x"], "x", Guards(parameters=1.0))
    site = Site(plan.method, plan.make, rows, limits=Limits(share=1e6, **limits))
    roster = plan.roster({"x": rows.n}, masses=[rows.masses[0]])
    return rows, Asking(SiteEngine(plan.method, roster, in_process([site]), np.uint64(0), 64).server)


@pytest.mark.parametrize("own", [0.0, 1.0], ids=["common", "own"])
def test_a_server_cannot_point_at_a_row(own, rng):
    """By a model at which the slopes of all other rows vanish, or by a metric that gives one row all the leverage."""
    rows, ask = one_site(rng, bool(own))
    doses = np.sort(rows.X[:, -1])
    r, below, between = int(rows.X[:, -1].argmin()), doses[0] - 0.001, doses[:2].mean()
    steep = np.zeros((1, rows.d))
    steep[0, -1] = 1e9
    frame = {"shift": np.zeros((1, rows.d)), "map": np.eye(rows.d)[None], "own": np.array([0.0])}
    frame["shift"][0, -1] = below
    ask("sums", {**frame, "w": steep})
    frame["shift"] = frame["shift"].copy()
    frame["shift"][0, -1] = between  # all scores but that of the row with the least dose keep their signs
    with pytest.raises(ConnectionError, match="by a single row"):
        ask("sums", {**frame, "w": steep})
    frame["own"][0] = own
    tilt = np.zeros((1, rows.d, rows.d))
    tilt[0] = np.outer(rows.X[r], rows.X[r]) * 1e3
    with pytest.raises(ConnectionError, match="its metric is not the inverse"):
        ask("robust", {**frame, "robust": np.zeros((1, rows.d)), "inverse": tilt})
    reach = ask("reach", {**frame, "inverse": np.eye(rows.d)[None]})[0]["reach"][0]
    true = float((((rows.X - frame["shift"][0]) ** 2).sum(axis=1)).max())
    assert reach >= true * 0.999 if not own else reach > 0.0
    assert np.log2(reach) * 4.0 == pytest.approx(round(np.log2(reach) * 4.0), abs=1e-9)


@pytest.mark.slow
def test_honest_analyses_pass_the_audit(rng):
    """With the limits of a site as they are by default, but for the count."""
    refused = 0
    for k in range(12):
        name = FAMILIES[k % 6]
        try:
            federated(planned(name, k % 2 == 1), hospitals(name, rng), Limits(share=100.0), intervals="profile")
        except ConnectionError as error:
            assert "single row" in str(error), error
            refused += 1
    assert refused <= 2


@pytest.mark.parametrize("when", [0, 3, 9], ids=["at once", "early", "late"])
def test_those_that_answer_are_analysed_where_it_is_allowed(when, rng):
    """A site falls silent: the analysis is that of the others, and says so first; or it is refused by name."""
    table, plan = hospitals("logistic", rng), planned("logistic")
    rows = {k: plan.rows(own, k, Guards(parameters=1.0)) for k, own in parts(table).items()}

    def found(**options):
        sites = in_process([Site(plan.method, plan.make, own) for own in rows.values()])
        asked = []

        def ask(t, requests):
            asked.append(t)
            answers = sites(t, requests)
            if len(asked) > when:
                answers.pop(1, None)
            return answers

        masses = [own.masses[0] for own in rows.values()]
        roster = plan.roster({k: own.n for k, own in rows.items()}, masses=masses, patience=2)
        return analyse_sites(plan, roster, ask, **options)

    for options in ({}, {"require": 3}):
        with pytest.raises(ConnectionError, match="y"):
            found(**options)
    there = found(require=2)
    here = pooled("logistic", {c: v[table["site"] != "y"] for c, v in table.items()})
    assert np.abs((there.estimates - here.estimates) / here.standard_errors).max() < 1e-10
    assert there.summary().split(maxsplit=2)[2].startswith("y: no answer, or a refusal")
    with pytest.raises(ValueError, match="require"):
        found(require=4)


def test_no_question_is_answered_from_few_rows(rng):
    """A steep model, a metric of one row's leverage, as many models as rows: what one question told of one row."""
    rows, ask = one_site(rng)
    p, frame = rows.d, {"shift": np.zeros((1, rows.d)), "map": np.eye(rows.d)[None], "own": np.zeros(1)}
    ages = rows.X[:, 1]
    steep, at = np.zeros((1, p)), dict(frame, shift=np.array([[0.0, ages[7], 0.0, 0.0, 0.0]]))
    steep[0, 1] = 400.0
    answer = ask("sums", {**at, "w": steep})[0]
    assert answer["lost"] == 1.0 and not answer["bend"].any() and not answer["slope"].any()
    tilt = np.zeros((1, p, p))
    tilt[0, 0, 0] = (1.0 - 1e-6) / 0.25
    for words, what, arrays in (
        ("fewer than 5 rows.*Guards.answer=", "end", {**at, "end": steep}),
        ("metric|fewer", "robust", {**at, "robust": steep, "inverse": tilt}),
        ("once at a time", "moments", {"center": np.zeros((20, p)), "unit": np.ones((20, p))}),
        ("positive semidefinite", "reach", {**at, "inverse": -np.eye(p)[None]}),
        ("whether intercepts", "sums", {**at, "own": np.array([0.5]), "w": np.zeros((1, p))}),
    ):
        with pytest.raises(ConnectionError, match=words):
            ask(what, arrays)


@pytest.mark.parametrize(
    ("what", "lie"),
    [
        ("end", lambda a: a | {"information": -5.0 * a["information"]}),
        ("w", lambda a: a | {"N": a["N"] - 1000.0}),
        ("end", lambda a: a | {"pearson": -1e9}),
        ("inverse", lambda a: {"reach": -5.0}),
        ("robust", lambda a: a | {"hc3": -a["hc3"]}),
    ],
    ids=["information", "N", "pearson", "reach", "robust"],
)
def test_what_no_rows_can_give_names_the_site(what, lie, rng, monkeypatch):
    """A site that lies where every server can see it."""
    from fedconvex.analysis import site_answers

    honest, table, plan = site_answers._ANSWERS[what], hospitals("quasipoisson", rng), planned("quasipoisson")
    mass = plan.rows(parts(table)["y"], "y", Guards(parameters=1.0)).masses[0]

    def told(problem, rows, asked, i):
        found = honest(problem, rows, asked, i)
        return lie(found) if rows.n == mass else found

    monkeypatch.setitem(site_answers._ANSWERS, what, told)
    with pytest.raises(ConnectionError, match="site y answers what cannot be"):
        federated(plan, table, robust="HC3")


def test_separated_responses_are_named_without_rows(rng):
    """The certificate fails, and the flat direction names the level; too unequal rows are said to be possible."""
    table = hospitals("logistic", rng)
    table["y"] = np.where(table["ward"] == "c", 1, table["y"])
    with pytest.raises(ValueError, match=r"responses are separated, or rows too unequal.*for ever along ward=c"):
        federated(planned("logistic"), table)


def test_a_transport_that_answers_no_mapping_is_refused_in_words():
    plan = plan_analysis({"x": [1.0, 2.0], "y": [0.5, 1.5], "who": ["a", "b"]}, "y", "who")
    with pytest.raises((TypeError, ValueError, ConnectionError), match="must"):
        analyse_sites(plan, plan.roster({"a": 20, "b": 20}), lambda t, requests: 1.5)


@pytest.mark.slow
@pytest.mark.parametrize("sums", [PlainSums(), SecureSums(bits=40)])
def test_an_analysis_over_sites_has_a_page(tmp_path, sums):
    """Its forest plots are those of pooled rows; under masks it says why there are none."""
    rng, tables, pooled = np.random.default_rng(3), {}, {"x": [], "y": [], "site": []}
    for name, n in (("north", 60), ("east", 50), ("south", 70)):
        x = rng.normal(size=n)
        tables[name] = {"x": x, "y": x + rng.normal(size=n)}
        pooled["x"] += x.tolist()
        pooled["y"] += tables[name]["y"].tolist()
        pooled["site"] += [name] * n
    plan = plan_analysis(
        {"x": [-1.0, 1.0], "y": [0.5, 1.5], "site": ["a", "b"]}, "y", "site", sums=sums, family="gaussian"
    )
    sites = [Site(plan.method, plan.make, plan.rows(t, name)) for name, t in tables.items()]
    found = analyse_sites(plan, plan.roster({n: len(t["x"]) for n, t in tables.items()}), in_process(sites))
    page = found.report(tmp_path / "sites").read_text()
    wanted = analyse(pooled, "y", "site", family="gaussian").report(tmp_path / "pooled").read_text()
    shown = re.findall(r"<td[^>]*>([^<]*)</td>", wanted[: wanted.index("<svg")])
    cells = [cell for cell in shown if "standard errors" not in cell]  # searches take other ways
    cells = [cell.replace("3 (site) with", "3 with") for cell in cells]  # sites are in no column
    assert len(cells) > 20 and [cell for cell in cells if cell not in page] == []
    assert ("Sums are secure" in page) == isinstance(sums, SecureSums) != ("<svg" in page)
