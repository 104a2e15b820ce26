"""Experiments about inference: batches of fits beside `analyse`, and results for which every claim fails or is open."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from fedconvex.papers import EXPERIMENTS, write
from fedconvex.papers.inference import confounded_levels, coverage, one_shot, two_creams
from fedconvex.papers.inference.batched_fits import Batch, fit
from fedconvex.papers.inference.interval_verdicts import (
    by_analyse,
    disagreement,
    pooled_targets,
    slope_intervals,
    verdicts,
)
from fedconvex.papers.inference.simulated_sites import FAMILIES, SLOPES, Design, drawn

pytestmark = pytest.mark.anywhere


def small(family, seed=3):
    """Three data sets of four sites, of few rows."""
    return drawn(np.random.default_rng(seed), Design(family, 0.7, 0.1, (15, 25), 4), 3)


@pytest.mark.slow_unless(family="logistic")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_finds_what_analyse_finds(family, monkeypatch):
    """Estimates, errors, verdicts, and intervals where slopes differ; an error planted in the sums is seen."""
    sample = small(family)
    found = verdicts(sample.batch, np.full(3, SLOPES[0]))
    assert disagreement(sample, 1, SLOPES[0], found) <= 1e-8
    intervals = slope_intervals(sample.batch, fit(sample.batch))
    random = by_analyse(sample, 2).differences.summaries["x1"].hartung_knapp
    clustered = by_analyse(sample, 2, robust="client").table()[0]
    for (centre, half), row in ((intervals.random, random), (intervals.client, clustered)):
        assert (centre[2], centre[2] + half[2]) == pytest.approx((row.estimate, row.high), rel=1e-8)
    added = Batch.added
    monkeypatch.setattr(Batch, "added", lambda self, rows: added(self, rows * np.linspace(1.0, 1.01, rows.shape[1])))
    assert disagreement(sample, 1, SLOPES[0], verdicts(sample.batch, np.full(3, SLOPES[0]))) > 1e-5


@pytest.mark.slow
def test_verdicts_that_differ_are_seen():
    """The truth is put just inside one interval, and the batch is made to say that it is outside."""
    sample = small("logistic")
    end = by_analyse(sample, 0, intervals="profile").table()[0].high
    for kind, truth in (("profile", end - 1e-3), ("wald", by_analyse(sample, 0).table()[0].high - 1e-3)):
        found = verdicts(sample.batch, np.full(3, truth))
        assert found.held[kind][0]
        assert disagreement(sample, 0, truth, found) <= 1e-8
        assert disagreement(sample, 0, truth, found._replace(**{kind: np.full(3, 1.01)})) == np.inf


def test_separated_and_silent_sites_have_no_estimate():
    """One site each: ordinary, separated by its feature, and with responses that agree."""
    x = np.linspace(-1.0, 1.0, 12)
    X = np.array([[np.concatenate([x, x, x])]])
    y = np.concatenate([np.arange(12) % 2, x > 0.1, np.zeros(12)])[None].astype(float)
    found = fit(Batch("logistic", X, y, np.array([12, 12, 12])), alone=True)
    assert found.settled.tolist() == [[True, False, False]]


def test_the_pooled_target_of_equal_slopes_is_the_slope():
    """Also where a site saw no event: its expected responses are not zero."""
    sample = drawn(np.random.default_rng(1), Design("poisson", 2.5, 0.0, (10, 20), 5), 20)
    assert (sample.batch.added(sample.batch.y) == 0.0).any()
    assert pooled_targets(sample, fit(sample.batch)) == pytest.approx(SLOPES[0], abs=1e-8)


def test_the_quantile_decides_a_known_interval():
    """Clopper and Pearson's 95 % interval of 8 of 10, from tables: 0.4439 to 0.9748."""
    assert coverage.Share(8, 10).interval() == pytest.approx((0.4439, 0.9748), abs=5e-5)
    assert coverage.Share(0, 10).interval()[0] == 0.0
    assert coverage.Share(10, 10).interval()[1] == 1.0


def shares(n, **share):
    """Rows of coverage for which all claims are judged."""
    even = {coverage.WITH: 0.95, coverage.LIKELIHOOD: 0.95, coverage.WITHOUT: 0.3, "level": 0.95} | share
    uneven = {coverage.COMMON: 0.4, coverage.RANDOM: 0.95} | share
    first, second = [], []
    for family in FAMILIES:
        for spread in (0.0, 2.0):
            for kind in (coverage.WITH, coverage.LIKELIHOOD, coverage.WITHOUT):
                held = even["level" if kind == coverage.WITHOUT and spread == 0.0 else kind]
                one = coverage.Share(int(held * n), n)
                first.append(coverage._row(Design(family, spread), kind, coverage.MEAN, one))
        for kind in (coverage.COMMON, coverage.RANDOM):
            one = coverage.Share(int(uneven[kind] * n), n)
            second.append(coverage._row(Design(family, 1.0, 0.4), kind, coverage.MEAN, one))
    return first, second


def test_claims_about_coverage_can_fail_and_stay_open():
    """Planted: coverage off by three points, naive intervals that cover, and too few data sets."""
    good = list(coverage.claims(*shares(20_000), 0.0))
    assert all(claim.holds for claim in good)
    few = [claim.holds for claim in coverage.claims(*shares(100), 0.0)]
    assert few == [None, None, True, None, True, None, True]
    wrong = {coverage.WITH: 0.92, coverage.LIKELIHOOD: 0.98, coverage.WITHOUT: 0.6, "level": 0.92}
    wrong |= {coverage.COMMON: 0.9, coverage.RANDOM: 0.9}
    assert not any(claim.holds is not False for claim in coverage.claims(*shares(20_000, **wrong), 1e-6))


def lines(n=400, **distance):
    """Medians along all axes; a distance is c m^power, m the rows of a site."""
    laws = {
        one_shot.MEANS: (0.5, 0.0),
        one_shot.GLS: (2.0, -0.5),
        one_shot.STEP: (2.0, -1.5),
        one_shot.ODAL: (1.5, 0.0),
    }
    out = []
    for along, values in one_shot.FULL.along.items():
        for value in values:
            for name, (c, power) in (laws | distance).items():
                d = c * (value if along == one_shot.ROWS else 200.0) ** power
                if along == one_shot.FEATURES and value == 0.0 and name == one_shot.MEANS:
                    d = 1.2 * 2.0 * 200.0**-0.5 * c / 0.5
                reach = 1.0 + 1.0 / np.sqrt(n)
                numbers = {"distance": d, "low": d / reach, "high": d * reach}
                out.append({"along": along, "at": value, "estimator": name} | numbers)
    return out


def test_claims_about_one_shot_estimators_can_fail_and_stay_open():
    """Planted: distances that fall otherwise or not, estimators that are nearer than they are, and wide intervals."""
    assert all(claim.holds for claim in one_shot.claims(lines(), 0.0))
    wrong = {
        one_shot.MEANS: (5.0, -1.0),
        one_shot.GLS: (0.003, 0.0),
        one_shot.STEP: (1.0, 0.0),
        one_shot.ODAL: (0.001, 0.0),
    }
    assert not any(claim.holds for claim in one_shot.claims(lines(**wrong), 1e-6))
    assert [claim.holds for claim in one_shot.claims(lines(0.1), 0.0)][1:4] == [None, None, None]
    d = one_shot.median(np.arange(100.0))
    assert (d["low"], d["distance"], d["high"]) == (40.0, 49.5, 60.0)  # ranks 50 -+ 9.8, rounded outwards


def test_a_surrogate_of_equal_sites_is_the_exact_estimate():
    """The same rows at every site: all estimators agree with the exact one, ODAL included."""
    one = small("logistic").batch
    m = int(one.sizes[0])
    X, y = (np.concatenate([part[..., :m]] * 3, axis=-1) for part in (one.X, one.y))
    exact, found = one_shot.estimates(Batch("logistic", X, y, np.array([m, m, m])))
    for name in one_shot.NAMES:
        assert found[name] == pytest.approx(exact.b[:, 0], abs=1e-8), name


def tied(n, **share):
    """Shares of data sets for two ties."""
    c = confounded_levels
    far = {c.POOLED: 0.0, c.WITHIN: 0.95, c.DISJOINT: 0.3, c.APART: 1.0, c.RATIO: 1.0, "estimate": -0.3}
    none = {c.POOLED: 0.95, c.WITHIN: 0.95, c.DISJOINT: 0.0, c.APART: 0.0, c.RATIO: 0.05, "estimate": 0.5}
    out = []
    for family in c.FAMILIES:
        for tie, shares_ in ((-2.0, far), (0.0, none)):
            counts = {k: v if k == "estimate" else round(v * n) for k, v in (shares_ | share).items()}
            out.append({"family": family, "tie": tie, "data sets": n} | counts)
    return out


def test_claims_about_levels_can_fail_and_stay_open():
    """Planted: a flag that always or never speaks, coverage of 90 %, identities that are off."""
    c = confounded_levels
    assert all(claim.holds for claim in c.claims(tied(4000), 0.0, 0.0))
    wrong = {c.POOLED: 0.5, c.WITHIN: 0.9, c.DISJOINT: 0.5, c.APART: 0.5, c.RATIO: 0.5, "estimate": 0.1}
    assert not any(claim.holds for claim in c.claims(tied(4000, **wrong), 1e-6, 1e-6))
    assert [claim.holds for claim in c.claims(tied(60), 0.0, 0.0)][3:] == [None] * 6


@pytest.mark.slow
def test_the_published_table_is_analysed():
    """R 4.2: glm(cured ~ drug + centre), refitted from its result; its profile; mantelhaen.test(correct=FALSE)."""
    findings = EXPERIMENTS["two-creams"].run(quick=True)
    assert [claim.holds for claim in findings.claims] == [True] * 6
    wald, profile, one = findings.tables["models"][:3]
    assert (wald["log odds ratio"], wald["s.e."]) == pytest.approx((0.7769202803838, 0.3066875715268), rel=1e-10)
    assert (profile["low"], profile["high"]) == pytest.approx((0.1851312, 1.3915693), abs=1e-4)  # confint's spline
    assert (one["log odds ratio"], one["s.e."]) == pytest.approx((0.4040457, 0.2514127), abs=1e-6)
    assert two_creams.mantel_haenszel() == pytest.approx((2.134549, 6.3841), rel=1e-5)


def test_claims_about_the_trial_can_fail(monkeypatch):
    """One cure more, and numbers that are not those of the sums."""
    wrong = {"estimate": 0.79, "error": 0.307, "certificate": 0.0, "from sums": 6.4, "score": 1.0, "ratio": 6.0,
             "left out": "centre 5", "pooled": 0.7}  # fmt: skip
    counts = two_creams.COUNTS.copy()
    counts[4, 2] = 1
    monkeypatch.setattr(two_creams.mantel_haenszel, "__defaults__", (counts,))
    assert not any(claim.holds for claim in two_creams.claims(wrong))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one-shot", "confounded-levels"])
def test_quick_versions_hold(name):
    """What needs no full version."""
    findings = EXPERIMENTS[name].run(quick=True)
    assert findings.holds
    assert findings.claims[0].holds


@pytest.mark.slow
def test_the_quick_version_writes_its_files(tmp_path, monkeypatch):
    """Everything that needs no full version holds; of twenty data sets in the place of a hundred."""
    monkeypatch.setattr(coverage, "BATCH", 20)
    findings = EXPERIMENTS["analyse-coverage"].run(quick=True)
    assert findings.holds
    assert findings.claims[-1].holds
    names = {f.name for f in write(findings, tmp_path / "out")}
    assert names == {"levels.svg", "levels.png", "slopes.svg", "slopes.png", "levels.csv", "slopes.csv", "claims.json"}
