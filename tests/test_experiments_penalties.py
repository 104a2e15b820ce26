"""The experiment on primal averaging, and planted results for which every claim fails."""

import numpy as np
import pytest

from fedconvex.papers import EXPERIMENTS
from fedconvex.papers.primal_averaging import Curve, _claims


@pytest.mark.slow
@pytest.mark.compiled
def test_primal_averaging():
    """The first claim, the reason that the paper gives, fails (docs/experiments.md); a quick run decides nothing."""
    findings = EXPERIMENTS["primal-averaging"].run(quick=True)
    assert [claim.holds for claim in findings.claims] == [None] * 4
    assert [claim.here for claim in findings.claims] == [False, None, None, True], findings.claims  # two are open here
    assert set(findings.figures) == {"support"}
    assert {row["method"] for row in findings.tables["rounds"]} == {"FedMiD", "FedDualAvg"}


def pair(local=20.0, averaged=90, gap=(0.3, 0.1), size=(60.0, 20.0), f1=(0.5, 0.9)):
    mirror, dual = (Curve("", 16, 0.1, *(np.full(9, v[i]) for v in (gap, size, f1))) for i in range(2))
    return mirror._replace(local=local, averaged=averaged), dual


@pytest.mark.parametrize(
    ("planted", "fails"),
    [
        ({}, ()),
        ({"averaged": 20}, (0,)),
        ({"size": (20.0, 20.0)}, (1,)),
        ({"f1": (0.9, 0.9)}, (2,)),
        ({"gap": (0.1, 0.1)}, (3,)),
    ],
)
def test_claims_can_fail(planted, fails):
    """One true model of two is enough."""
    for pairs in ([pair(), pair(**planted)], [pair(**planted), pair()]):
        assert tuple(i for i, claim in enumerate(_claims(pairs)) if not claim.holds) == fails
