"""Lemmas on a round of FedAvg: bounds by hand, what is measured against enumeration, and planted errors."""

import itertools

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, Problem, Squared
from fedconvex.constants import Constants
from fedconvex.methods import Decay, ScaledSampling
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.fedavg_strongly_convex import fedavg_schedule
from fedconvex.theorems.li_lemmas import li_drift, li_drift_sharp, li_sampling, li_sampling_sharp
from fedconvex.theorems.local_lemmas import drift_lemma, drift_lemma_sharp
from fedconvex.theorems.parts.instances import two_clients
from fedconvex.theorems.parts.setting import Setting
from fedconvex.theory import AssumptionError
from fedconvex.verify import verify


def small():
    """Two clients of two rows each, unequal weights and Hessians."""
    rows = [([[1.0, 0.0], [0.5, 1.0]], [1.0, -1.0]), ([[0.0, 1.5], [1.0, 1.0]], [2.0, 0.5])]
    return Problem(Federation.from_clients(rows), Squared(), 0.1, np.array([0.3, 0.7]))


def outcomes(p, w, steps):
    """All outcomes of local steps on single rows, both clients: equally likely models (16, 2, d) after each step."""
    paths = []
    for rows in itertools.product(range(2), repeat=2 * len(steps)):
        models, at = [w.copy(), w.copy()], []
        for j, a in enumerate(steps):
            for k in range(2):
                X, y = p.federation.client_rows(k)
                x, v = X[rows[2 * j + k]], y[rows[2 * j + k]]
                models[k] = models[k] - a * ((x @ models[k] - v) * x + 0.1 * models[k])
            at.append(np.array(models))
        paths.append(at)
    return np.array(paths)  # (outcomes, steps, 2, d)


def test_what_is_measured_by_enumeration():
    """One round of two single-row steps: progress, drift and the sample's variance over all outcomes."""
    p, w, q = small(), np.array([1.0, -2.0]), np.array([0.3, 0.7])
    best = p.solve()
    at = outcomes(p, w, [0.1, 0.1])
    mean = np.einsum("k,ojkd->ojd", q, at)
    values = p.value(mean.reshape(-1, 2)).reshape(mean.shape[:2]).mean(axis=0) - best.value
    drift = np.einsum("k,ojkd->j", q, (at - mean[:, :, None]) ** 2) / len(at)
    s = Setting(p, FedAvg(step_size=0.1, local_steps=2, batch_size=1), 1, w)
    for name, wanted in (("fedavg-progress", values.mean()), ("fedavg-drift", drift[-1])):
        assert THEOREMS[name].expectation(s, [1]).values[0] == pytest.approx(wanted, rel=1e-11), name
    c = p.constants()
    schedule = fedavg_schedule(c, local_steps=2)
    steps = [schedule.scale / (schedule.shift + t) for t in range(2)]
    at = outcomes(p, w, steps)
    mean = np.einsum("k,ojkd->ojd", q, at)
    drift = np.einsum("k,okd->", q, (at[:, 0] - mean[:, 0, None]) ** 2) / len(at)
    moves = w + 2.0 * q[:, None] * (at[:, -1] - w)  # one client of two, with weight 2 p_k
    variance = np.mean(np.sum((moves - mean[:, -1, None]) ** 2, axis=2))
    method = FedAvg(step_size=Decay(*schedule), local_steps=2, batch_size=1, participation=ScaledSampling(1))
    s = Setting(p, method, 1, w)
    for name, wanted in (("fedavg-li-drift", drift), ("fedavg-li-sampling", variance)):
        assert THEOREMS[name].expectation(s, [1]).values[0] == pytest.approx(wanted, rel=1e-10), name


def test_bounds_by_hand():
    """Recursions written out, and which weights count."""
    c = Constants(L=1.0, mu=0.5, zeta=2.0, sigma2_k=np.array([1.0, 3.0]), p=np.array([0.25, 0.75]), G2=4.0)
    noise = 0.01 * 0.1875 * 4.0  # eta^2 p (1 - p) of both
    first = 0.04 + noise
    assert drift_lemma_sharp(c, step_size=0.1, local_steps=2).value == pytest.approx((first**0.5 + 0.2) ** 2 + noise)
    assert drift_lemma(c, step_size=0.1, local_steps=2).value == pytest.approx(18 * 0.16 + 8 * 0.01 * 3.0)
    eta = 4.0 / (16.0 + 8)  # 2/mu, max(8 L/mu, E), the ninth step
    assert li_drift(c, local_steps=3, rounds=3).value == pytest.approx(4 * eta**2 * 4 * 4.0)
    found = li_sampling(c, local_steps=3, rounds=3, scheme="scaled", participants=1)
    assert found.value == pytest.approx(4 * eta**2 * 9 * 4.0 * 2 * 0.625)
    steps = [4.0 / (16.0 + t) for t in (6, 7, 8)]  # of the third round
    assert li_drift_sharp(c, local_steps=3, rounds=3).value == pytest.approx(sum(steps[:2]) ** 2 * 4.0)
    found = li_sampling_sharp(c, local_steps=3, rounds=3, scheme="scaled", participants=1)
    assert found.value == pytest.approx(sum(steps) ** 2 * 4.0 * 2 * 0.625)
    with pytest.raises(AssumptionError, match="step_size <= 1/"):
        drift_lemma(c, step_size=0.3, local_steps=2)


def planted(name, factor, term):
    """The theorem with one of its terms, or all of them, times a factor."""
    right = THEOREMS[name]

    def bound(**arguments):
        found = right.bound(**arguments)
        terms = {k: v * (factor if term in (k, "") else 1.0) for k, v in found.terms.items()}
        return type(found)(terms, found.quantity, found.source, found.requires)

    return right._replace(bound=bound)


@pytest.mark.parametrize(
    ("name", "factor", "term"),
    [
        ("fedavg-progress", 0.48, "distance"),
        ("fedavg-progress", 0.6, "noise"),
        ("fedavg-drift-sharp", 0.97, "heterogeneity"),
        pytest.param("fedavg-drift-sharp", 0.75, "noise", marks=pytest.mark.slow),
        ("fedavg-li-drift", 0.3, ""),
        ("fedavg-li-drift-sharp", 0.999, ""),
        ("fedavg-li-sampling-sharp", 0.999, ""),
        ("fedavg-li-sampling", 0.24, ""),
    ],
)
def test_planted_errors(name, factor, term):
    """A term that is too small is violated at one of the theorem's own checks, and the right one holds there."""
    outcomes_of = {}
    for theorem in (THEOREMS[name], planted(name, factor, term)):
        for check in theorem.checks:
            instance = getattr(check, "instance", check)
            if instance.name not in (
                "one parabola",
                "mean estimation",
                "two clients",
                "equal clients",
                "three clients",
            ):
                continue
            p = instance.make()
            start = check.start(p) if callable(check.start) else np.zeros(p.model_shape)
            rounds = check.rounds or theorem.rounds
            method = (check.method or theorem.method).make(theorem, p, start, rounds)
            found = verify(theorem, p, method, rounds=rounds, start=start).outcome.name
            outcomes_of.setdefault(theorem is THEOREMS[name], []).append(found)
    assert set(outcomes_of[True]) == {"HOLDS"} and "VIOLATED" in outcomes_of[False]


def test_what_they_do_not_speak_about():
    """Steps that are too long, sampled clients, other losses."""
    p = two_clients.make()
    for name, method, words in (
        ("fedavg-progress", FedAvg(step_size=0.5), "step_size <= 1/"),
        ("fedavg-drift", FedAvg(step_size=0.1, participation=1), "full participation"),
        ("fedavg-li-sampling", FedAvg(step_size=0.1), "the step sizes Decay"),
    ):
        verdict = verify(THEOREMS[name], p, method, rounds=1)
        assert verdict.outcome.name == "NOT_APPLICABLE" and words in verdict.reason
