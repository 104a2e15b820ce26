"""Theorems on second-order methods and on similar clients: planted errors, and proofs on drawn states."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedconvex import Federation, Logistic, Problem, Squared
from fedconvex.constants import Constants
from fedconvex.constants.similarity import second_order_dissimilarity
from fedconvex.methods import SDANE, FederatedNewton, FedNL, RankR
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.approximate_newton import crossed, stage_radius
from fedconvex.theorems.parts.learned_hessians import lipschitz
from fedconvex.theorems.parts.setting import Setting
from fedconvex.theorems.sdane import accelerated_sdane_growth
from fedconvex.theory.fixed_points import quadratic
from fedconvex.verify import Outcome, verify
from tests.test_baseline_theorems import outcomes, violated


def test_planted_radii():
    """A thousandth off, one stage more, and the radius itself in the place of its square, where it exceeds 1."""
    assert outcomes("approximate-newton", lambda a: 1.0, "crossed") == {Outcome.HOLDS}
    assert violated("approximate-newton", lambda a: 0.999, "crossed")
    assert violated("approximate-newton", lambda a: a["radius"] ** 2, "one parabola")
    assert violated("approximate-newton", lambda a: a["radius"] ** -a["stages"], "crossed")


def test_means_of_inverses_are_no_inverses_of_means():
    """I - H^-1 H = 0 is what one reads: two crossed clients have 2.025, and diverge."""
    q = quadratic(crossed.make())
    assert stage_radius(q.H, q.p) == pytest.approx(0.55 * 0.5 * (1.0 + 10.0) - 1.0)
    assert stage_radius(q.H.mean(axis=0)[None], np.ones(1)) == pytest.approx(0.0, abs=1e-14)


def test_planted_line_search():
    """Ten times Armijo's c: a step that is nearly twice too long gains less."""

    def more(a):
        c = 1e-4
        factors = [1.0 - 2.0 * k * c * a["eta"] * a["constants"].mu / a["high"] for k in (1.0, 10.0)]
        return (factors[1] / factors[0]) ** a["stages"]

    assert outcomes("newton-line-search", lambda a: 1.0, "one parabola") == {Outcome.HOLDS}
    assert violated("newton-line-search", more, "one parabola")


@pytest.mark.slow
def test_planted_ends_of_fednl():
    """One round earlier, a distance without the eigenvalue that was raised, half of E."""
    shifted = {"early": lambda a: 0.0 if a["delta"] * a["rounds"] >= 1.0 - 1e-12 else 1.0}
    assert outcomes("fednl-squares", lambda a: 1.0, "unequal") == {
        Outcome.HOLDS,
        Outcome.VACUOUS,
        Outcome.NOT_APPLICABLE,
    }
    assert violated("fednl-squares", shifted["early"], "unequal")
    assert violated("fednl-squares", lambda a: 0.998, "one parabola")
    assert violated("fednl-squares", lambda a: 0.5 ** a["rounds"], "a round bowl")


@pytest.mark.slow
def test_planted_similarity():
    """A quarter of S-DANE's bound, proximal points' own worst case less 1 %; half of the accelerated one."""
    assert outcomes("sdane", lambda a: 1.0, "a steep slope") == {Outcome.HOLDS}
    assert violated("sdane", lambda a: 0.495, "a steep slope")
    assert violated("accelerated-sdane", lambda a: 0.495, "a steep slope")
    assert violated("accelerated-sdane", lambda a: 0.2, "alike")
    assert violated("dane-leader", lambda a: 0.18, "alike")


@pytest.mark.parametrize("mu", [0.0, 0.01, 1.0])
def test_growth_of_accelerated_sdane(mu):
    """Above both of its bounds, and that of the paper's recursion, B_{t+1} = B_t + mu a and lam a^2 = (A + a) B."""
    lam, A, B = 2.0, 0.0, 1.0
    for T in range(1, 15):
        a = (B + math.sqrt(B * B + 4.0 * lam * A * B)) / (2.0 * lam)
        A, B = A + a, B + mu * a
        S = accelerated_sdane_growth(proximal=lam, mu=mu, stages=T)
        assert pytest.approx(A, rel=1e-12) == S
        assert S >= (1.0 + math.sqrt(mu / (4.0 * lam))) ** (2 * (T - 1)) / lam * (1.0 - 1e-12)
        assert S >= (T + 1) ** 2 / (4.0 * lam) * (1.0 - 1e-12)


@pytest.mark.slow
def test_the_recursion_of_fednl_on_drawn_states():
    """Any learned Hessians, any point: r+ and E+ as stated; without L_H, or with r/2, they are exceeded."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 2))
    clients = [(X[3 * k : 3 * k + 3], rng.choice([-1.0, 1.0], size=3)) for k in range(4)]
    problem = Problem(Federation.from_clients(clients), Logistic(), 0.3)
    best, L, mu, q = problem.solve().w, lipschitz("", problem), 0.3, math.sqrt(0.5)
    hessians = lambda w: problem.client_derivatives(w[None], np.arange(4)[None]).hessians[0]  # noqa: E731
    C, upper, largest = RankR(1), np.triu_indices(2), np.zeros(2)
    for _ in range(40):
        w = best + rng.normal(size=2) * 10.0 ** rng.uniform(-2, 1)
        noise = rng.normal(size=(4, 2, 2)) * 10.0 ** rng.uniform(-2, 1)
        H = hessians(best) + noise + np.swapaxes(noise, 1, 2)
        E, r = problem.weights @ np.linalg.norm(H - hessians(best), axis=(1, 2)), np.linalg.norm(w - best)
        lam, V = np.linalg.eigh(np.tensordot(problem.weights, H, 1))
        new = w - (V / np.maximum(lam, mu)) @ V.T @ problem.gradient(w)
        D = [C.expand(*C.compress(A[upper], 2), 2) for A in hessians(w) - H]
        later = H + np.array([[[a, b], [b, c]] for a, b, c in D])
        E_later = problem.weights @ np.linalg.norm(later - hessians(best), axis=(1, 2))
        found = np.linalg.norm(new - best) / (r / mu * (E + 0.5 * L * r)), E_later / (q * E + (1.0 + q) * L * r)
        largest = np.maximum(largest, found)
    assert (largest < 1.0 + 1e-12).all()
    assert largest[1] > 0.8
    assert largest[0] > 0.5


def test_hessians_of_logistic_loss_are_no_more_lipschitz_than_said():
    """Along the ray of one row, where the third derivative is largest: attained to 1e-6."""
    problem = Problem(Federation.from_clients([([[3.0, 4.0]], [1.0])]), Logistic(), 0.1)
    z = math.log(2.0 + math.sqrt(3.0))  # where s(1 - s)(1 - 2s) has its maximum
    at = [np.array([3.0, 4.0]) / 25.0 * (z + t) for t in (-1e-4, 1e-4)]
    A, B = (problem.client_derivatives(w[None], np.zeros((1, 1), dtype=int)).hessians[0, 0] for w in at)
    rate = np.linalg.norm(A - B) / np.linalg.norm(at[0] - at[1])
    assert rate == pytest.approx(lipschitz("", problem), rel=1e-6)


def test_one_client_is_like_itself():
    """delta = 0, whatever the loss; two of them are told by a bound."""
    one = Federation.from_clients([([[1.0], [2.0]], [1.0, -1.0])])
    assert second_order_dissimilarity(Problem(one, Logistic())) == (0.0, True)
    two = Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [-1.0])])
    assert second_order_dissimilarity(Problem(two, Squared())) == (0.0, True)
    assert second_order_dissimilarity(Problem(two, Logistic())).value > 0.0


def test_learned_hessians_may_leave_what_no_theorem_promises():
    """Option 1 from zero: far from a local recursion that allows it the bound grows, and the run does too."""
    theorem, problem = THEOREMS["fednl-squares"], crossed.make()
    method = FedNL(compressor=RankR(1), line_search=False, mu=0.01)
    bound = theorem.at(Setting(problem, method, 1, np.zeros(2)))
    assert bound.value > 10.0 * np.linalg.norm(problem.solve().w)
    assert fednl_ends(problem, method, 3)


def fednl_ends(problem, method, rounds):
    """Whether a run is at the optimum after so many rounds and not before."""
    theorem = THEOREMS["fednl-squares"]
    before, now = theorem.expectation(Setting(problem, method, rounds, np.zeros(2)), [rounds - 1, rounds]).values
    return now < 1e-10 < before


def test_fednl_local_is_superlinear_in_its_ball():
    """Halved in every round, and ever faster: the bound itself from the largest start that it allows."""
    at = {"mu": 1.0, "delta": 0.5, "lipschitz": 1.0, "start_error": 0.25}
    q = math.sqrt(0.5)
    r = min(0.5, (1.0 - q) / (4.0 * (1.0 + q)))
    bound = THEOREMS["fednl-local"].bound
    way = [bound(Constants(mu=1.0), rounds=T, start_distance=r, **at).value for T in range(12)]
    ratios = np.array(way[1:]) / np.array(way[:-1])
    assert (ratios <= 0.5).all()
    assert ratios[-1] < 0.02
    assert (np.diff(ratios) < 0.0).all()


def tiny(scale, loss=None, rows=((1.0, 0.5), (-0.7, 1.1), (0.3, -0.4)), y=(1.0, -1.0, 1.0), l2=0.0):
    return Problem(Federation.from_clients([(scale * np.array(rows), np.array(y))]), loss or Logistic(), l2)


def test_nothing_is_violated_where_only_digits_are_lost():
    """Steps whose squares overflow, gradients whose squares vanish, a start at the computed minimiser."""
    outcome = verify("sdane", tiny(1.0), SDANE(step_size=7e306), rounds=3, start=np.array([2.9, -1.3])).outcome
    assert outcome is Outcome.INCONCLUSIVE
    found = verify("clustered-rank", tiny(1e-158), FederatedNewton(), rounds=1)
    assert found.outcome is Outcome.INCONCLUSIVE, found
    problem = tiny(1.0, rows=((1.3,), (-0.7,), (0.4,)), l2=0.1)
    method = FedNL(compressor=RankR(1), line_search=False, alpha=1.0, exact_start=False, mu=1e-4)
    found = verify("fednl-local", problem, method, rounds=1, start=problem.solve().w)
    assert found.outcome is not Outcome.VIOLATED, found
