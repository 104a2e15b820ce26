"""The experiments on invariance: moments against their draws, quick versions, and planted results for each claim."""

from __future__ import annotations

import numpy as np
import pytest

from fedconvex.papers import EXPERIMENTS, summary
from fedconvex.papers.invariance import against
from fedconvex.papers.invariance.against import Found, Risks, _claims, _crossing
from fedconvex.papers.invariance.shifts import SHIFTS, population


@pytest.mark.parametrize("name", SHIFTS)
def test_moments_of_shifts(name):
    """Moments are those of draws, affine along the line, and what the federation of the population holds."""
    shift, rng = SHIFTS[name], np.random.default_rng(0)
    for t in (-1.0, 0.5, shift.far):
        X, y = shift.draw(t, 20000, rng)
        rows = np.column_stack([X, y])
        S, b, c = shift.moments(t)
        M = np.block([[S, b[:, None]], [b[None], np.array([[c]])]])
        error = np.sqrt(np.einsum("ni,nj->ij", rows**2, rows**2) / len(y)) / np.sqrt(len(y))
        assert (np.abs(rows.T @ rows / len(y) - M) <= 5.0 * error + 1e-12).all()
    ends = [shift.moments(t) for t in (-1.0, 1.0)]
    for part, low, high in zip(shift.moments(2.0), *ends, strict=True):
        np.testing.assert_allclose(part, 0.5 * (low + high) + high - low, rtol=1e-12, atol=1e-12)
    w, fed = rng.standard_normal(2), population(shift)
    values = 0.5 * (fed.X @ w - fed.y) ** 2
    assert [values[:3].mean(), values[3:].mean()] == pytest.approx([shift.risk(w, -1.0), shift.risk(w, 1.0)])
    assert shift.least_risk(1.0) <= shift.risk(w, 1.0)


def flat(value, new=None):
    return Risks(value, value, value if new is None else new)


def found(**planted):
    """Risks for which every claim holds, then what is planted: {shift: {model: risks}}."""
    mine = {}
    for name in SHIFTS:
        exact = {k: Risks(0.2, 0.3, 0.9) for k in against.MODELS}
        exact |= {"pooled": Risks(0.1, 0.25, 0.8), "AFL": Risks(0.15, 0.2, 0.5), "FedAvg": Risks(0.11, 0.26, 0.8)}
        if name == "colour":
            exact |= {"AFL": Risks(0.15, 0.2, 0.7), "IRMv1, strong": flat(0.4), "invariant features": flat(0.3)}
        if name == "chain, effect":
            exact |= {"invariant features": flat(0.3)}
        if name == "chain, target":
            exact |= {"invariant features": flat(0.3, 1.1)}
        if name == "label":
            exact |= {"AFL": flat(0.2), "game": flat(0.2)}
        exact |= planted.get(name, {})
        jitter = np.array([-0.01, 0.0, 0.01])
        draws = {k: [r._replace(new=r.new + x * (1 + i)) for x in jitter] for i, (k, r) in enumerate(exact.items())}
        runs = dict.fromkeys(("FedAvg", "OptimisticAFL", "IRMv1"), (0.0, 0.001))
        mine[name] = Found(exact, draws, {"AFL": 1e-9}, 10.0, runs, 0.05, 0.7 if name == "label" else 1.0)
    return mine


def failing(mine):
    return [i for i, claim in enumerate(_claims(mine)) if claim.holds is False]


@pytest.mark.parametrize(
    ("planted", "fails"),
    [
        ({}, []),
        ({"label": {"FedAvg": Risks(0.05, 0.26, 0.8)}}, [0]),
        ({"colour": {"IRMv1, weak": Risks(0.15, 0.1, 0.7)}}, [0]),
        ({"colour": {"AFL": Risks(0.15, 0.2, 0.45)}}, [1]),
        ({"colour": {"IRMv1, strong": flat(0.4, 0.6)}}, [1]),
        ({"chain, effect": {"AFL": Risks(0.15, 0.2, 0.85)}}, [2]),
        ({"chain, target": {"invariant features": flat(0.3, 0.85)}}, [3]),
        ({"covariate": {"IRMv1, weak": Risks(0.2, 0.3, 0.4)}}, [4]),
        ({"label": {"AFL": Risks(0.2, 0.2, 0.21)}}, [5]),
        ({"colour": {"game": Risks(0.2, 0.3, 0.4)}}, [6]),
        ({"covariate": {"IRMv1, strong": Risks(0.12, 0.3, 0.9)}}, [7]),
    ],
)
def test_claims_about_shifts_can_fail(planted, fails):
    assert failing(found(**planted)) == fails


def test_other_claims_about_shifts_can_fail_or_stay_open():
    """Orders of samples, runs that end beyond their certificates, a gap that certifies nothing, AFL's weights."""
    mine = found()
    label = mine["label"]
    worse = label.draws | {"AFL": label.draws["FedAvg"], "FedAvg": label.draws["AFL"]}
    assert failing(mine | {"label": label._replace(draws=worse)}) == [13]
    wide = [r._replace(new=r.new + x) for r, x in zip(label.draws["AFL"], (-5.0, 0.0, 5.0), strict=True)]
    unclear = list(_claims(mine | {"label": label._replace(draws=label.draws | {"AFL": wide})}))
    assert unclear[13].holds is None
    assert failing(mine | {"label": label._replace(runs=label.runs | {"IRMv1": (0.1, 1e-3)})}) == [14]
    assert failing(mine | {"label": label._replace(gaps={"AFL": 1e-3})}) == [0]
    assert failing(mine | {"colour": mine["colour"]._replace(weight=0.5)}) == [5]


def test_crossings():
    """From t = 5 on a flat 0.5 is below the line 0 + 0.1 t; nowhere where it stays above, everywhere where below."""
    line, flat_ = Risks(0.0, 0.1, 1.0), Risks(0.5, 0.5, 0.5)
    f = found()["label"]._replace(exact={"a": line, "b": flat_, "c": flat(2.0), "d": flat(-1.0)})
    assert _crossing(f, "b", "a") == pytest.approx(5.0)
    assert np.isnan(_crossing(f, "c", "a")) and _crossing(f, "d", "a") == -np.inf


@pytest.mark.slow
def test_agnostic_against_invariant(monkeypatch):
    """Populations are exact, so their claims hold whatever the seed; three draws leave orders of samples open."""
    monkeypatch.setattr(against, "QUICK_DRAWS", 3)
    monkeypatch.setattr(against, "ROUNDS", 100)
    findings = EXPERIMENTS["agnostic-against-invariant"].run(quick=True, seed=4)
    assert findings.holds, summary(findings)
    assert {row["shift"] for row in findings.tables["table"]} == set(SHIFTS)
    assert set(findings.figures) == {"shifts"}
