"""The experiment virtual-har: scores by hand, the quick version, planted results for each claim."""

from __future__ import annotations

import numpy as np
import pytest

from fedconvex.papers import EXPERIMENTS
from fedconvex.papers.virtual_har import KINDS, VIRT, Outcome, Scores, _claims, calibration_error, scores_of


def test_scores_by_hand():
    """Two bins: (0.2, 0.22) with one +1 of two, and 0.9 with none of one: |1 - 0.42| + |0 - 0.9| over 3."""
    probability, y = np.array([0.2, 0.22, 0.9]), np.array([1.0, -1.0, -1.0])
    assert calibration_error(probability, y) == pytest.approx((0.58 + 0.9) / 3.0)
    found = scores_of(probability, y)
    assert found.error == pytest.approx(2.0 / 3.0)
    assert found.log_loss == pytest.approx(-np.log([0.2, 0.78, 0.1]).mean())
    assert scores_of(np.array([0.0]), np.array([1.0])).log_loss == pytest.approx(-np.log(1e-300))  # not infinite


def outcome(**planted):
    losses = {"pooled": 0.4, "local": 0.2, "multi-task": 0.15, VIRT: 0.1} | planted.get("loss", {})
    errors = {"pooled": 0.3, "local": 0.1, "multi-task": 0.1, VIRT: 0.1} | planted.get("error", {})
    scores = {kind: Scores(errors[kind], losses[kind], 0.05) for kind in KINDS}
    gap = dict.fromkeys(KINDS, 1e-8) | planted.get("gap", {})
    return Outcome((1.0, 1.0), scores, gap, 5, 1.0, planted.get("plugged", 0.11), 0.5)


@pytest.mark.parametrize(
    ("planted", "fails"),
    [
        ({}, None),
        ({"gap": {VIRT: 0.02}}, 0),
        ({"gap": {"local": 1e-5}}, 0),
        ({"loss": {"pooled": 0.05}, "plugged": 0.1}, 1),
        ({"error": {"pooled": 0.05}}, 2),
        ({"loss": {"local": 0.05}}, 3),
        ({"plugged": 0.9}, 4),
    ],
)
def test_every_claim_can_fail(planted, fails):
    claims = list(_claims([outcome(**planted)] * 2, True))
    failed = [i for i, c in enumerate(claims) if not c.holds]
    assert failed == [] if fails is None else fails in failed
    assert [c.holds for c in _claims([outcome(**planted)], False)][3] is None  # digits share little


@pytest.mark.slow
def test_quick_version():
    findings = EXPERIMENTS["virtual-har"].run(quick=True)
    assert findings.holds
    assert set(findings.figures) == {"scores"}
    assert [row["models"] for row in findings.tables["prediction"]] == list(KINDS)
    assert all(row["VIRTUAL gap"] <= 0.01 for row in findings.tables["shuffles"])
