"""Errors planted in theorems from outside: they can be planted, and the checks or the search notice what they did."""

import pytest

from fedconvex.theorems import THEOREMS
from fedconvex.verify import Check, Outcome, tightest
from fedconvex.verify.checking import carried_out
from tests.campaigns.wrong_theorems import FOREIGN, PLANTED, noticed_by

NAMED = {(p.theorem, p.what): p for p in PLANTED}


def test_a_short_search_shows_an_error():
    """The boxes' part of the certificate alone is refuted from a corner of small boxes; the true bound is not."""
    true, wrong = THEOREMS["game-certificate"], NAMED["game-certificate", "<F, w> forgotten"].made()
    assert tightest(wrong, 40).share > 1.0 >= tightest(true, 40).share


@pytest.mark.slow
@pytest.mark.compiled
def test_a_search_notices_what_no_check_does():
    assert noticed_by(NAMED["game-certificate", "<F, w> forgotten"], 0) == ""
    assert noticed_by(NAMED["game-certificate", "<F, w> forgotten"], None) == "search"
    assert noticed_by(NAMED["vertical-rate", "exponent 3T"], 0) == "checks"
    nothing = NAMED["game-certificate", "<F, w> forgotten"]._replace(edits=())
    assert nothing.made().bound is not THEOREMS["game-certificate"].bound
    assert noticed_by(nothing, None) == ""


SHOWN = [  # errors that no check noticed until an instance was added that shows them
    ("hybrid-tracked", "drift of local steps forgotten"),
    ("fedavg-strongly-convex-sharp", "mu for L in the drift"),
    ("fedsam", "drift of the first step for all"),
    ("fedsam", "zeta at w* for the supremum"),
    ("agnostic-step", "drift of other weights"),
    ("fedavg-refined-sharp", "equal weights in the noise"),
    ("fedavg-convex", "eta ** 3 for eta^2 in the noise drift"),
    ("fedavg-convex", "noise at w* for the supremum"),
    ("fedavg-convex-tuned", "noise dropped"),
    ("fedavg-convex-tuned", "M tau T for its root"),
    ("vertical-rate", "mean of L_b for the largest"),
    ("hedging", "mean mu_k for the least"),
]


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("name", SHOWN, ids=": ".join)
def test_errors_with_an_instance_of_their_own_are_noticed(name):
    assert noticed_by(NAMED[name], 0) == "checks"


OF_BASELINES = {  # by error: the instance that was added for it
    ("fedlin", "least tau_i for the largest"): "two equal parabolas",
    ("accelerated-convex", "momentum for any mu"): "flat diagonal",
    ("compressed-descent", "s forgotten beside mu"): "flat diagonal",
    ("diana", "omega/n for 6 omega/n in the limit"): "first of ten directions",
    ("scaffold", "server step forgotten in h"): "steep and nearly flat",
}


@pytest.mark.parametrize("name", OF_BASELINES, ids=": ".join)
def test_an_instance_shows_an_error_that_no_check_noticed(name):
    true, wrong = THEOREMS[name[0]], NAMED[name].made()._replace(programme=None)  # no exact worst case of 28 rounds
    checks = [c for c in true.checks if isinstance(c, Check) and c.instance.name == OF_BASELINES[name]]
    assert all(carried_out(true, c).outcome in (Outcome.HOLDS, Outcome.NOT_APPLICABLE) for c in checks)
    assert any(carried_out(wrong, c).outcome is Outcome.VIOLATED for c in checks)


def test_an_error_is_planted_where_its_text_stands():
    with pytest.raises(AssertionError, match="game-certificate has no 'nowhere': plant it where the line went"):
        PLANTED[13]._replace(edits=(("nowhere", ""),)).made()


@pytest.mark.slow
def test_all_errors_can_be_planted():
    assert len(PLANTED) > FOREIGN
    for planted in PLANTED:
        true, wrong = THEOREMS[planted.theorem], planted.made()
        assert (wrong.name, wrong.checks) == (true.name, true.checks)
        assert wrong.bound is not true.bound or wrong.read is not true.read


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("planted", PLANTED[33:FOREIGN:9], ids=lambda p: f"{p.theorem}: {p.what}")
def test_what_checks_noticed_they_notice(planted):
    assert noticed_by(planted, 0) == "checks"
