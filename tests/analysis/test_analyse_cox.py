"""Cox's model in `analyse`: values of R's survival 3.5 on open data, and what it refuses.

R: ``coxph(Surv(time, event) ~ age + sex + bmi + bp + strata(site), control = coxph.control(eps = 1e-14))``, with
``cluster = site`` or one cluster a row for robust standard errors, ``Surv(late, time, event)``, ``strata(site, arm)``
and ``ties = "breslow"`` for entry times; ``cox.zph(fit, "identity", terms = FALSE)``, ``fit$score``, ``fit$wald.test``.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

from fedconvex.analysis import analyse
from fedconvex.cli import main

NAMES = ("age", "sex", "bmi", "bp")


@pytest.fixture(scope="module")
def diabetes():
    data, i = load_diabetes(scaled=False), np.arange(442)
    table = dict(zip(NAMES, data.data.T, strict=False)) | {
        "time": data.target,
        "event": (i % 4 != 0) * 1,
        "site": i % 3,
    }
    return table | {"late": np.minimum(5.0 * (i % 20), data.target - 1.0), "arm": i % 2}


def fit(table, **how):
    return analyse(table, "time", "site", **{"event": "event", "features": NAMES, "guard": False} | how)


@pytest.mark.slow
def test_values_of_r(diabetes):
    found = fit(diabetes)
    assert found.estimates[2] == pytest.approx(-0.1576899253, rel=1e-9)
    assert found.standard_errors[2] == pytest.approx(0.01618467661, rel=1e-9)
    assert [found.log_likelihood, -0.5 * found.null_deviance] == pytest.approx([-1254.35078807, -1344.26943745])
    assert found.test(how="score").statistic == pytest.approx(166.737384632, rel=1e-10)
    assert found.concordance == pytest.approx(0.7314480464, abs=5e-11)
    drift = found.proportional_hazards
    assert (drift.statistics[2], drift.overall) == pytest.approx((3.651699278, 8.277413752), rel=1e-8)
    assert found.events == 331 and found.certificate < 1e-8
    assert found.to_frame()["hazard ratio"]["bmi"] == pytest.approx(np.exp(found.estimates[2]))
    robust = [fit(diabetes, robust=kind) for kind in ("client", "HC0")]
    assert robust[0].standard_errors[2] == pytest.approx(0.006006788565, rel=1e-8)
    by_rows = [0.00446351303104, 0.12031908631698, 0.01645559673591, 0.00489279173287]
    np.testing.assert_allclose(robust[1].standard_errors, by_rows, rtol=1e-8)
    with pytest.raises(ValueError, match="be HC0 or client for family 'cox'"):
        fit(diabetes, robust="HC3")


@pytest.mark.slow
def test_entry_times_strata_and_breslow(diabetes):
    found = fit(diabetes, entry="late", strata="arm", ties="breslow")
    b = [-0.00372934049269, 0.33007939470333, -0.14719942844366, -0.02057195135445]
    np.testing.assert_allclose(found.estimates, b, rtol=1e-8)
    se = [0.00472232193629, 0.12440668928088, 0.01660510209080, 0.00521346059847]
    np.testing.assert_allclose(found.standard_errors, se, rtol=1e-8)
    assert found.aic == pytest.approx(1998.60057391, rel=1e-10)
    tests = [found.test(how=how).statistic for how in ("score", "wald")]
    assert tests == pytest.approx([140.148693379, 134.010495739], rel=1e-9)
    assert found.test(["bmi", "bp"]).statistic == pytest.approx(136.852912333, rel=1e-9)
    drift = found.proportional_hazards
    np.testing.assert_allclose(
        drift.statistics, [0.372489321971, 1.103211307946, 5.107880730250, 3.606485751279], rtol=1e-7
    )
    assert drift.overall == pytest.approx(10.476236741508, rel=1e-8)
    assert found.concordance == pytest.approx(0.717037331215, abs=1e-11)
    assert "of each stratum; breslow ties" in found.summary()


@pytest.mark.slow
def test_profile_intervals(diabetes):
    """R: ``uniroot`` on ``coxph`` fits with ``offset(end * bmi)``."""
    found = fit(diabetes, intervals="profile")
    ends = [found.profile.low[2], found.profile.high[2]]
    np.testing.assert_allclose(ends, [[-0.189848089927] * 2, [-0.126394544154] * 2], rtol=1e-10)


def test_clients_alone_and_equal_slopes(diabetes):
    """Each client by itself is an analysis of its rows; the ratio is of the sum of their likelihoods."""
    apart = fit(diabetes).differences
    alone = []
    for k in range(3):
        part = {name: column[diabetes["site"] == k] for name, column in diabetes.items()}
        alone.append(fit(part))
    np.testing.assert_allclose(apart.estimates, [one.estimates for one in alone], rtol=1e-9)
    np.testing.assert_allclose(apart.standard_errors, [one.standard_errors for one in alone], rtol=1e-9)
    ratio = 2.0 * (sum(one.log_likelihood for one in alone) - fit(diabetes).log_likelihood)
    assert apart.equal_slopes.statistic == pytest.approx(ratio, rel=1e-9) and apart.equal_slopes.df == 8


def test_a_client_without_an_event_is_left_out(diabetes):
    table = diabetes | {"event": diabetes["event"] * (diabetes["site"] != 1)}
    apart = fit(table).differences
    assert (apart.clients, apart.left_out, apart.equal_slopes) == (("0", "2"), ("1",), None)


def test_events_are_named_by_their_level(diabetes):
    table = diabetes | {"status": np.where(diabetes["event"] == 1, "dead", "alive")}
    assert fit(table, event="status=dead").estimates.tolist() == fit(diabetes).estimates.tolist()
    for wrong, words in (("status", "event='status=dead'"), ("status=gone", "name a level of 'status'")):
        with pytest.raises(ValueError, match=words):
            fit(table, event=wrong)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"site_intercepts": True}, "baseline hazard of its own"),
        ({"weight": "arm"}, "rows count alike"),
        ({"event": None, "family": "cox"}, "whether the event was seen"),
        ({"family": "poisson"}, "be given for family 'cox' only"),
        ({"ties": "exact"}, "ties"),
        ({"features": [*NAMES, "site2"]}, "vary within a client"),
        ({"features": [*NAMES, "order"]}, "monotone.*rises for ever along order"),
        ({"features": [*NAMES, "twice"]}, "a combination of age"),
    ],
)
def test_what_is_refused(diabetes, how, words):
    table = diabetes | {"site2": diabetes["site"] * 2.0, "order": -diabetes["time"], "twice": 2.0 * diabetes["age"]}
    with pytest.raises(ValueError, match=words):
        fit(table, **how)


@pytest.mark.slow
def test_the_command(diabetes, tmp_path, capsys):
    path = tmp_path / "wards.csv"
    names = [*NAMES, "time", "event", "site"]
    lines = [",".join(str(diabetes[n][i]) for n in names) for i in range(442)]
    path.write_text("\n".join([",".join(names), *lines]) + "\n")
    argv = ["analyse", str(path), "--time", "time", "--event", "event", "--client", "site", "--test", "bmi"]
    assert main([*argv, "--differences"]) == 0
    out = capsys.readouterr().out
    assert "331; concordance 0.7314" in out and "hazard ratio" in out
    assert "a baseline hazard of its own" in out
    assert main([*argv, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["proportional_hazards"]["overall"] == pytest.approx(8.27741375173)
    assert told["overall_tests"]["score"]["statistic"] == pytest.approx(166.737384632)
