"""Six activities: claims can fail, errors by hand, files that do not fit, and a small run."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from fedconvex import Federation
from fedconvex.families.multitask.experiments import har_activities as h
from fedconvex.papers.repeated import Repeated

JITTER = (0.0, 0.001, -0.001, 0.002)


def planted(good):
    rows = []
    for kind, error, rounds in ((h.FEDAVG, 3.0, 50.0), (h.LOCAL, 2.0, 9.0), (h.MOCHA_, 1.0 if good else 9.0, 20.0)):
        for r, e in enumerate(JITTER):
            row = {"model": kind, "repetition": r, "error %": error * (1.0 + e), "over clients": error * (1.0 - e)}
            row |= {"gap": 0.005 if good else 0.5, "rounds": rounds if good or kind != h.MOCHA_ else np.inf}
            rows.append(row)
    return [c.holds for c in h.claims(Repeated(tuple(rows)))]


def test_claims_can_fail():
    assert planted(True) == [True] * 5
    assert planted(False) == [False] * 5


def test_errors_by_hand():
    W = np.zeros((2, 6, 2))
    W[0, 3, 0], W[1, 1, 1] = 1.0, 1.0  # the first client says 3 where x_0 > 0, the second 1 where x_1 > 0; else 0
    clients = [([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]], [3, 4, 0]), ([[0.0, 2.0], [0.0, 1.0]], [1, 2])]
    np.testing.assert_allclose(h.client_errors(W, Federation.from_clients(clients)), [1 / 3, 1 / 2])
    rows = [{"model": "x", "repetition": 0, "error %": e, "gap": 0.1, "rounds": 3.0} for e in (1.0, 2.0, 6.0)]
    (found,) = h.over_clients(rows).rows
    assert (found["error %"], found["over clients"], found["rounds"]) == (3.0, pytest.approx(7.0**0.5), 3.0)


def test_files_that_do_not_fit(tmp_path):
    def saved(**changes):
        arrays = {"X": np.ones((120, 2)), "activity": np.tile(np.arange(1, 7), 20), "client": np.arange(120) % 2}
        np.savez(tmp_path / "rows.npz", **(arrays | changes))
        return tmp_path / "rows.npz"

    assert h.load_activities(saved()).K == 2
    for changes, message in (
        ({"activity": np.tile(np.arange(6), 20)}, r"activity must hold 1, \.\.\., 6"),
        ({"client": np.zeros(120)}, "at least two people"),
        ({"client": np.arange(119)}, "shapes"),
        ({"X": np.full((120, 2), np.nan)}, "finite|NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            h.load_activities(saved(**changes))


@pytest.mark.slow
@pytest.mark.compiled
def test_a_small_run(monkeypatch):
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(160, 4)), np.tile(np.arange(6.0), 27)[:160]
    X[np.arange(160), (y % 4).astype(int)] += 2.0
    small = Federation.from_arrays(X, y, np.arange(160) % 4)
    monkeypatch.setattr(h, "digit_clients", lambda seed: small)
    monkeypatch.setattr(h, "QUICK", h.ActivityScale(2, 2, 400))
    findings = h.EXPERIMENT.run(quick=True, seed=1)
    assert {c.holds for c in findings.claims[1:]} == {None}
    assert findings.claims[0].holds is None and findings.claims[0].here
    table = {r["model"]: r for r in findings.tables["table"]}
    assert table["MOCHA"]["gap"] <= 0.01 and np.isinf(table["FedAvg"]["rounds"])
