"""Times and events, several classes and formulas over sites: equal to pooled rows, and what a site refuses."""

from __future__ import annotations

import numpy as np
import pytest

from fedconvex.analysis import Guards, analyse, analyse_sites, plan_analysis
from fedconvex.remote import Limits, Site, in_process
from fedconvex.secure import SecureSums

pytestmark = pytest.mark.anywhere
SPLINE = "bs(age, knots=(45, 60), lower_bound=10, upper_bound=100)"


def stays(rng, n=240):
    """Times with ties, events, entries and strata; classes; a category, missing cells; columns of unlike sizes."""
    age, dose = 50.0 + 10.0 * rng.normal(size=n), 0.02 + 0.01 * rng.normal(size=n)
    ward, who = rng.choice(["a", "b", "c"], n), np.array(list("xyz"))[rng.integers(0, 3, n)]
    z = 0.04 * (age - 50.0) + 0.5 * (ward == "c")
    days = np.ceil(200.0 * rng.exponential(np.exp(-z)))
    pull = np.column_stack([np.zeros(n), z + 0.3, -0.5 * z])
    age[rng.integers(0, n, 4)] = np.nan
    return {
        "age": age, "ward": ward, "dose": dose, "site": who, "days": days, "died": 1 * (rng.random(n) < 0.7),
        "late": np.maximum(days - rng.integers(1, 300, n), 0.0), "arm": rng.choice(["p", "q"], n),
        "party": np.array(["green", "red", "blue"])[(pull + rng.gumbel(size=(n, 3))).argmax(1)],
        "s": rng.integers(1, 4, n), "y": rng.poisson(np.exp(0.5 * z)),
    }  # fmt: skip


BOOK = {
    "age": [40, 60, 70], "ward": ["a", "b", "c"], "dose": [0.01, 0.02, 0.03], "site": ["x", "y", "z"],
    "days": [50, 90, 400], "died": [0, 1, 0], "late": [0, 20, 30], "arm": ["p", "q", "q"], "s": [1, 2, 3],
    "party": ["green", "red", "blue"], "y": [0, 1, 7],
}  # fmt: skip
COX = {"target": "days", "event": "died", "features": ["age", "dose", "ward"]}
CASES = {
    "cox": COX,
    "strata": COX | {"entry": "late", "strata": "arm", "ties": "breslow", "event": "died=1"},
    "classes": {
        "target": "party", "features": ["age", "dose", "ward"], "weight": "s",
        "reference": {"party": "green", "ward": "b"},
    },
    "formula": {"target": None, "formula": f"y ~ {SPLINE} + C(ward):dose", "family": "poisson"},
    "formula of times": {"target": "days", "formula": "days ~ age * C(ward)", "event": "died"},
}  # fmt: skip


def sites_of(case, table, sums=None, limits=None, guards=None):
    """The plan, the roster and the sites of a case."""
    book = {c: v for c, v in BOOK.items() if c in used(case)}
    plan = plan_analysis(book, client="site", guard=False, sums=sums, **case)
    parts = {k: {c: v[table["site"] == k] for c, v in table.items() if c != "site"} for k in np.unique(table["site"])}
    rows = {k: plan.rows(own, k, guards or Guards(parameters=1.0)) for k, own in parts.items()}
    masses = [own.masses[0] for own in rows.values()]
    roster = plan.roster({k: own.n for k, own in rows.items()}, masses=masses if "weight" in case else None)
    return plan, roster, [Site(plan.method, plan.make, own, limits=limits) for own in rows.values()]


def used(case):
    """Columns of the table that a case is about."""
    words = " ".join(map(str, case.values()))
    return [c for c in BOOK if c == "site" or c in words.replace("died=1", "died")]


def there_of(case, table, sums=None, limits=None, **options):
    plan, roster, sites = sites_of(case, table, sums, limits)
    return analyse_sites(plan, roster, in_process(sites), **options)


def here_of(case, table, **options):
    return analyse({c: table[c] for c in used(case)}, client="site", guard=False, **case, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_sites_find_what_pooled_rows_say(name, rng):
    """Within 1e-10 of a standard error; likelihoods, tests, robust covariances, profiles as well."""
    table, case = stays(rng), CASES[name]
    there, here = there_of(case, table), here_of(case, table)
    assert there.names == here.names and there.certificate < 1e-6
    assert np.abs((there.estimates - here.estimates) / here.standard_errors).max() < 1e-10
    np.testing.assert_allclose(there.covariance, here.covariance, rtol=1e-9, atol=1e-12 * np.abs(here.covariance).max())
    for what in ("deviance", "null_deviance", "aic"):
        assert getattr(there, what) == pytest.approx(getattr(here, what), rel=1e-10)
    term = "ward" if "formula" not in name else here.names[-1]
    for how in ("wald", "likelihood ratio", "score"):
        assert there.test(term, how).statistic == pytest.approx(here.test(term, how).statistic, rel=1e-8)
    for robust in ("HC0", "client"):
        mine, wanted = there_of(case, table, robust=robust), here_of(case, table, robust=robust)
        np.testing.assert_allclose(mine.standard_errors, wanted.standard_errors, rtol=1e-7)
    for one, other in zip(there.table(), here.table(), strict=True):
        assert one[1:] == pytest.approx(other[1:], rel=1e-8, abs=1e-12)
    if "event" in case:
        assert (there.events, there.concordance) == (here.events, here.concordance)
        drift, wanted = there.proportional_hazards, here.proportional_hazards
        np.testing.assert_allclose(drift.statistics, wanted.statistics, rtol=1e-7)
        assert "Concordance" in there.summary() or f"concordance {here.concordance:.4f}" in there.summary()
        np.testing.assert_allclose(there.differences.estimates, here.differences.estimates, rtol=1e-7, atol=1e-9)
    elif name == "classes":
        with pytest.raises(ValueError, match="one score"):
            _ = there.differences


@pytest.mark.slow
@pytest.mark.parametrize("name", ["strata", "classes"])
def test_secure_sums_are_off_by_what_is_printed(name, rng):
    """The server learns sums only; estimates differ by no more standard errors than the certificate says."""
    pytest.importorskip("cryptography")
    table, case = stays(rng), CASES[name]
    there, here = there_of(case, table, SecureSums(bits=40)), here_of(case, table)
    away = np.abs((there.estimates - here.estimates) / here.standard_errors).max()
    assert away <= there.certificate < 1e-6
    np.testing.assert_allclose(there.standard_errors, here.standard_errors, rtol=1e-8)
    if name == "strata":
        assert there.concordance == here.concordance
        assert there.proportional_hazards.overall == pytest.approx(here.proportional_hazards.overall, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "change", "guards", "words"),
    [
        ("cox", {"died": lambda v: v * (np.arange(v.size) < 5)}, {}, r"site x: events must be at least 5; got [0-4]: "),
        ("cox", {"died": lambda v: 0 * v}, {"events": 0}, r"events must be at least 1; got 0: leave the site out"),
        ("cox", {"died": lambda v: v + 1}, {}, r"event 'died' must hold 0 and 1"),
        ("classes", {"party": lambda v: np.where(np.arange(v.size) < 2, "red", "blue")}, {}, "events .* got 2"),
        ("classes", {"party": lambda v: np.where(v == "red", "grey", v)}, {}, r"classes blue, green, red.*grey"),
        ("formula", {"ward": lambda v: np.where(v == "a", "d", v)}, {}, r"only categories that the record"),
        ("formula", {"age": lambda v: v + 60.0}, {}, r"formula must be computed; got .*(bound|lower|outside)"),
    ],
    ids=["few events", "no event", "events", "few of a class", "class", "category", "beyond the knots"],
)  # fmt: skip
def test_what_a_site_refuses_to_sum(name, change, guards, words, rng):
    table, case = stays(rng), CASES[name]
    plan = sites_of(case, table)[0]
    own = {c: v[table["site"] == "x"] for c, v in table.items() if c != "site"}
    own |= {c: f(own[c]) for c, f in change.items()}
    with pytest.raises(ValueError, match=words):
        plan.rows(own, "x", Guards(parameters=1.0, **guards))


def test_plans_that_differ_are_refused(rng):
    """Other knots, and other treatment of ties, are other plans."""
    table = stays(rng)
    for case, other in (
        (CASES["formula"], CASES["formula"] | {"formula": CASES["formula"]["formula"].replace("60", "61")}),
        (COX, COX | {"ties": "breslow"}),
        (CASES["classes"], CASES["classes"] | {"reference": {"party": "red", "ward": "b"}}),
    ):
        plan, roster, _ = sites_of(case, table)
        with pytest.raises(ValueError, match="terms differ"):
            analyse_sites(plan, roster, in_process(sites_of(other, table)[2]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cox", "classes"])
def test_honest_analyses_pass_the_audit(name, rng):
    """With a site's limits as they are by default, but for the count."""
    there = there_of(CASES[name], stays(rng, 600), limits=Limits(share=100.0), intervals="profile")
    assert there.profile.loose == 0


@pytest.mark.slow_unless(name="classes")
@pytest.mark.parametrize("name", ["cox", "classes"])
def test_no_question_is_answered_from_few_rows(name, rng):
    """A model far out, whose scores single out a row, and a metric of one row's leverage; the option allows it."""
    from fedconvex.analysis.over_sites import Asking
    from fedconvex.remote.messages import Refused
    from fedconvex.remote.site_engine import SiteEngine

    table = stays(rng)
    table["age"][np.flatnonzero((table["site"] == "x") & (table["died"] == 1))[3]] = 1e4  # one row outweighs the others

    def asking(**guards):
        plan, _, sites = sites_of(CASES[name], table, limits=Limits(share=1e6), guards=Guards(parameters=1.0, **guards))
        own = sites[0].own
        roster = plan.roster({"x": own.n}, masses=[own.masses[0]] if name == "classes" else None)
        return own, Asking(SiteEngine(plan.method, roster, in_process(sites[:1]), np.uint64(0), 64).server)

    own, ask = asking()
    blocks = 2 if name == "classes" else 1
    steep, p = np.zeros((1, blocks * own.d)), own.d
    j = 1 if name == "classes" else 0
    steep[0, j] = 400.0
    frame = {"shift": np.zeros((1, p)), "map": np.eye(p)[None], "own": np.zeros(1)}
    frame["shift"][0, j] = np.sort(own.X[:, j])[-4]
    answer = ask("sums", {**frame, "w": steep})[0]
    assert answer["lost"] == 1.0 and not answer["bend"].any() and not answer["slope"].any()
    tilt = np.eye(blocks * p)[None] * 1e9
    with pytest.raises(ConnectionError, match="metric"):
        ask("robust", {**frame, "robust": 0.0 * steep, "inverse": tilt})
    with pytest.raises(ConnectionError, match=r"fewer than 5 rows.*Guards\(answer="):
        ask("robust", {**frame, "robust": 0.0 * steep, "inverse": 1e-24 * tilt})
    _, other = asking(answer=0.0)
    assert other("robust", {**frame, "robust": 0.0 * steep, "inverse": 1e-24 * tilt})[0]["hc0"].any()
    with pytest.raises(Refused, match="no question about family"):
        ask("end", {**frame, "end": steep})
    if name == "cox":
        with pytest.raises(ConnectionError, match="more than 4 models"):
            for k in range(5):
                ask("pairs", {**frame, "pairs": steep * k})


@pytest.mark.slow
def test_one_site_has_no_covariance_by_client(rng):
    table = stays(rng) | {"site": np.full(240, "x")}
    for name, words in (("cox", "at least 2 clients"), ("classes", "at least 2 clients"), ("formula", "CR1")):
        with pytest.raises(ValueError, match=words):
            there_of(CASES[name], table, robust="client")
