"""Scheme II of Li et al. for clients of any weights: moves weighted by p_k K/m, by enumeration, and its theorem."""

import itertools
import math

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, FedSGD, Problem, Squared, iterate, run
from fedconvex.datasets import linear_federation
from fedconvex.draws import Draws, key_from_seed
from fedconvex.methods import Decay, FedProx, ScaledSampling, UniformSampling, resolved
from fedconvex.methods.parts.participation import participants
from fedconvex.theorems.fedavg_strongly_convex import THEOREMS, fedavg_schedule, share_of_moves
from fedconvex.theory.moments import Moments, incremental_noise2
from fedconvex.traits import LEAVE_OUT, RENORMALISE, lost_reply
from fedconvex.verify import verify

P = np.array([0.48, 0.36, 0.16])


def triangle(p=P):
    """F_k = ‖w - c_k‖^2/2, c_k of length one with sum p_k c_k = 0: w* = 0, and every gradient there has length one."""
    cosine = (p[2] ** 2 - p[0] ** 2 - p[1] ** 2) / (2.0 * p[0] * p[1])  # between c_0 and c_1
    c = np.array([[1.0, 0.0], [cosine, math.sqrt(1.0 - cosine**2)]])
    c = np.vstack([c, -(p[0] * c[0] + p[1] * c[1]) / p[2]])
    X = math.sqrt(2.0) * np.eye(2)
    return Problem(Federation.from_clients([(X, X @ row) for row in c]), Squared(), weights=p)


def test_what_is_drawn():
    """Samples are those of uniform sampling; weights are p_k K/m; the mean of the moves is that of everybody."""
    p = Problem(linear_federation(5, 3, 6, size_skew=1.0, seed=0).federation, Squared())
    draws = Draws(key_from_seed(3), np.arange(4000), 2)
    clients, weights = participants(ScaledSampling(2), p, draws)
    np.testing.assert_array_equal(clients, participants(UniformSampling(2), p, draws)[0])
    np.testing.assert_allclose(weights, p.weights[clients] * 5 / 2, rtol=1e-15)
    total = weights.sum(axis=1)
    assert total.std() > 0.1 and abs(total.mean() - 1.0) < 4.0 * total.std() / 4000**0.5
    same = [run(FedAvg(step_size=0.1, participation=who), p, rounds=3, tol=0).w for who in (1.0, ScaledSampling(5))]
    np.testing.assert_allclose(*same, atol=1e-15)


def test_rounds_against_their_formula():
    """FedAvg moves by the weighted moves, FedSGD by the weighted gradients; both shadows follow."""
    p = triangle()
    method = FedAvg(step_size=0.5, local_steps=2, participation=ScaledSampling(2), shadow=True)
    states = list(iterate(method, p, rounds=2, seed=1, start=np.array([1.0, 2.0])))
    w = states[1][1].w[0]
    found = []
    for pair in itertools.combinations(range(3), 2):  # F_k = ‖w - c_k‖^2/2: half way, and half of the rest
        c = [np.linalg.solve(p.federation.client_rows(k)[0], p.federation.client_rows(k)[1]) for k in pair]
        path = [w + sum(1.5 * P[k] * share * (ck - w) for k, ck in zip(pair, c, strict=True)) for share in (0.5, 0.75)]
        found.append(max(np.abs(states[2][1].w[0] - path[1]).max(), np.abs(states[2][1].shadow[0] - path).max()))
    assert sorted(found)[0] < 1e-14 < 1e-2 < sorted(found)[1]
    one, other = (m(step_size=0.1, participation=ScaledSampling(2)) for m in (FedSGD, FedAvg))
    start = np.ones(2)
    np.testing.assert_allclose(*(run(m, p, rounds=4, seed=2, tol=0, start=start).w for m in (one, other)), atol=1e-14)


def test_the_theorem_is_attained_and_a_missing_factor_is_caught():
    """One round from w*: E F(w_1) - F* = (eta^2/2) N sum p_k^2 (N-K)/(K(N-1)), the bound itself; without N sum p_k^2
    (1.157 here) the bound is violated."""
    p = triangle()
    schedule = fedavg_schedule(p.constants(), local_steps=1)
    eta = schedule.scale / schedule.shift
    method = FedAvg(step_size=Decay(*schedule), participation=ScaledSampling(2))
    exact = Moments.of(method, p).run(1, start=np.zeros(2)).suboptimality[1]
    share = 0.5 * 0.5 * 3 * float(P @ P)
    assert share_of_moves("mine", "scaled", 2, P) == pytest.approx(share, rel=1e-15)
    assert exact == pytest.approx(0.5 * eta**2 * share, rel=1e-12)
    assert exact > 1.1 * 0.5 * eta**2 * share / (3 * float(P @ P))
    verdicts = [verify(t, p, method, rounds=1, start=np.zeros(2)) for t in THEOREMS]
    assert [v.outcome.name for v in verdicts] == ["HOLDS", "HOLDS"]
    assert verdicts[1].bound.value == pytest.approx(exact, rel=1e-12)


def test_who_takes_it():
    """FedAvg and FedSGD do, also without those who do not answer; "auto" is Li et al.'s step; others refuse by name."""
    p = triangle()
    scaled, plain = (FedAvg(step_size=0.1, participation=who) for who in (ScaledSampling(2), 2))
    assert (lost_reply(scaled, 0), lost_reply(plain, 0)) == (LEAVE_OUT, RENORMALISE)
    assert "Li et al." in str(resolved(FedAvg(step_size="auto", participation=ScaledSampling(2)), p)[1])
    with pytest.raises(ValueError, match=r"FedProx.participation must have weights that sum to one.*FedAvg and FedSGD"):
        FedProx(step_size=0.1, proximal_mu=1.0, participation=ScaledSampling(2))
    with pytest.raises(ValueError, match=r"FedAvg.participation must be at most the number of clients 3; got 4"):
        run(FedAvg(step_size=0.1, participation=ScaledSampling(4)), p, rounds=1)
    with pytest.raises(ValueError, match=r"Moments.shadow must have weights that sum to one"):
        Moments.of(scaled, p).shadow(1)
    with pytest.raises(ValueError, match=r"incremental_noise2: participation must have weights that sum to one"):
        incremental_noise2(p, np.zeros(2), step_size=0.1, participation=ScaledSampling(2))
