"""The experiment descent-rate: what it writes, and a rate a thousandth slower, which its claim must notice."""

import pytest

from fedconvex.papers import EXPERIMENTS, descent_rate, write

pytest.importorskip("matplotlib")


def test_the_claim_holds_and_can_fail(tmp_path):
    findings = EXPERIMENTS["descent-rate"].run(quick=True)
    assert findings.holds
    assert {f.name for f in write(findings, tmp_path / "out")} == {"rate.svg", "rate.png", "rate.csv", "claims.json"}
    slow = [row | {"measured": 1.001 * row["bound"]} for row in findings.tables["rate"]]
    assert not any(claim.holds for claim in descent_rate._claims(slow))
