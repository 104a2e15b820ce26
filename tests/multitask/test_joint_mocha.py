"""JointMOCHA's rate with exact nodes, and why there is none where nodes miss rounds."""

import numpy as np
import pytest

from fedconvex import Federation, Hinge, Squared, run
from fedconvex.driver import iterate
from fedconvex.families.multitask.theorems.joint_mocha import joint_mocha
from fedconvex.methods import MOCHA, JointMOCHA, NodeWork
from fedconvex.problems import Covariance, MeanRegularised, MultiTaskProblem
from fedconvex.theorems import THEOREMS
from fedconvex.verify import verify

THEOREM = THEOREMS["joint-mocha"]


def tasks(rng, m, d, loss):
    y = rng.normal(size=m) if isinstance(loss, Squared) else rng.choice([-1.0, 1.0], m)
    fed = Federation.from_arrays(rng.normal(size=(m, d)), y, np.arange(m))
    return MultiTaskProblem(fed, loss, Covariance(float(10.0 ** rng.uniform(-2, 1)), 2.0))


def one_task(lam):
    return MultiTaskProblem(Federation.from_clients([([[1.0]], [1.0])]), Squared(), Covariance(lam))


@pytest.mark.slow
def test_the_rate_holds_against_every_point(rng):
    """Random tasks of one row, the solution and random points; the mean gap by hand is at most the bound."""
    for loss in (Squared(), Hinge()):
        for _ in range(4):
            p, eta = tasks(rng, 3, 2, loss), float(10.0 ** rng.uniform(-1, 1))
            method, best = JointMOCHA(eta=eta), p.solve()
            states = [state for t, state in iterate(method, p, rounds=12) if t]
            points = [(best.w, best.alpha)]
            for _ in range(3):
                inside = p.federation.y * rng.random(3) if loss == Hinge() else rng.normal(size=3)
                points.append((rng.normal(size=(3, 2)), inside))
            for Z, alpha in points:
                V, h, gaps = alpha[:, None] * p.federation.X, float(p.conjugates(alpha).sum()), []
                for state in states:
                    forth = p.relation.value(state.w[0]) - np.sum(state.w[0] * V) - h
                    gaps.append(forth - p.relation.value(Z) + np.sum(Z * state.v[0]) + state.conjugate[0].sum())
                bound = joint_mocha(np.linalg.norm(Z), np.linalg.norm(V), eta=eta, rounds=12)
                assert np.mean(gaps) <= bound.value + 1e-12
                if Z is best.w:
                    assert min(gaps) > -1e-6
                    near = float(np.mean(gaps)), bound.value
            found = verify(THEOREM, p, method, rounds=12)
            assert found.outcome.name == "HOLDS"
            assert (found.measured, found.bound.value) == pytest.approx(near, rel=0.2)


def test_planted_errors_and_what_it_does_not_speak_about():
    steep = MultiTaskProblem(Federation.from_clients([([[1.0]], [1.0])]), Hinge(), Covariance(1000.0))
    right, method = THEOREM.bound, JointMOCHA(eta=20.5)

    def less(*args, **arguments):
        found = right(*args, **arguments)
        return type(found)({k: 0.94 * v for k, v in found.terms.items()}, found.quantity, found.source)

    assert verify(THEOREM, steep, method, rounds=20).outcome.name == "HOLDS"
    assert verify(THEOREM._replace(bound=less), steep, method, rounds=20).outcome.name == "VIOLATED"
    two = MultiTaskProblem(Federation.from_clients([([[1.0], [2.0]], [1.0, 1.0])]), Hinge(), Covariance(1.0))
    fixed = MultiTaskProblem(steep.federation, Hinge(), MeanRegularised(1.0, 0.5))
    for p, wrong, words in (
        (steep, JointMOCHA(), "one step eta of the server, got eta=None"),
        (steep, JointMOCHA(eta=1.0, work=NodeWork(drop=0.5)), "all nodes in every round"),
        (two, method, "one row each, got up to 2"),
        (fixed, method, "a learned relationship"),
        (steep, MOCHA(), "the method JointMOCHA"),
    ):
        verdict = verify(THEOREM, p, wrong, rounds=2)
        assert verdict.outcome.name == "NOT_APPLICABLE" and words in verdict.reason, verdict
    assert joint_mocha(2.0, 3.0, eta=0.5, rounds=2).value == pytest.approx((8.0 + 4.5) / 4.0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_joint_mocha_diverges_where_nodes_miss_rounds():
    """lam = 0.005, x = 1: back after a long absence, the node overshoots by (100 - eta)/(1 + eta), 49.5 for eta = 1.

    Nine rounds of ten missed, it diverges; with smaller steps, or all rounds, it converges.
    """
    p = one_task(0.005)
    often = NodeWork(drop=0.9)
    for seed in (1, 2):
        how = {"rounds": 3000, "tol": 1e-8, "seed": seed, "progress": False, "record_every": 50}
        assert run(JointMOCHA(work=often, eta=1.0), p, **how).status.name == "DIVERGED"
        assert run(JointMOCHA(work=often, eta=0.1), p, **how).status.name == "CONVERGED"
    assert run(JointMOCHA(eta=1.0), p, rounds=100, tol=1e-8).status.name == "CONVERGED"
