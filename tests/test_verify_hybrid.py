"""Theorems on blocks of rows and columns: planted errors are violations; bounds on random instances."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp
from test_verify_vertical import outcome, planted

from fedconvex import Federation, Hinge, HybridFederation, Logistic, Squared
from fedconvex.methods import HybridDualAscent, HyFDCA, TrackedBlockDescent
from fedconvex.methods.trackedblocks import best_share
from fedconvex.problems import HybridProblem
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.hybrid import _roughest, hybrid_tracked_rate
from fedconvex.theorems.parts import block_owners
from fedconvex.verify import Outcome, verify
from tests.campaigns import attempt


def test_a_dual_rate_one_percent_too_fast_is_refuted():
    """Rows with equal features and other labels attain it: mu, the length of rows, and a round that was not done."""
    at = (block_owners.one_row_two_labels, HybridDualAscent(), 3)
    assert outcome("hybrid-dual", *at) is Outcome.HOLDS
    for wrong in ({"mu": lambda mu: 1.01 * mu}, {"length": lambda R: 0.99 * R}, {"rounds": lambda T: T + 1}):
        assert outcome(planted("hybrid-dual", **wrong), *at) is Outcome.VIOLATED


def test_a_ridge_one_percent_too_large_is_refuted():
    """Owners of the same column attain the rate; smoothness of blocks alone would allow steps that diverge."""
    problem = block_owners.one_column.make()
    rough, alone = _roughest(problem), float(problem.block_smoothness.max())
    at = (block_owners.one_column, TrackedBlockDescent(step_size=1.0 / rough), 4, block_owners.between)
    assert outcome("hybrid-tracked", *at) is Outcome.HOLDS
    for wrong in ({"l2": lambda x: 1.01 * x}, {"rounds": lambda T: T + 1}):
        assert outcome(planted("hybrid-tracked", **wrong), *at) is Outcome.VIOLATED
    assert rough == pytest.approx(1.0)
    assert alone == pytest.approx(0.5)
    large = (block_owners.one_column, TrackedBlockDescent(step_size=1.05 / alone), 4)
    assert outcome(planted("hybrid-tracked", smoothness=lambda L: 0.9 * alone), *large) is Outcome.VIOLATED


@pytest.mark.slow
def test_a_step_off_by_a_millionth_is_no_reduction():
    theorem = THEOREMS["hybrid-reduction"]

    def read(s):
        return theorem.read(s._replace(method=dataclasses.replace(s.method, step_size=s.method.step_size * (1 + 1e-6))))

    other = theorem._replace(read=read)
    for instance in (block_owners.turned_columns, block_owners.tumours_by_hospital):
        problem = instance.make()
        eta = 0.5 / _roughest(problem)
        at = (instance, TrackedBlockDescent(step_size=eta, local_steps=4), 4)
        assert outcome("hybrid-reduction", *at) is Outcome.HOLDS
        assert outcome(other, *at) is Outcome.VIOLATED


def test_hypotheses_that_fail_are_named():
    gap = block_owners.with_a_gap.make()
    hinge = HybridProblem(gap.federation, Hinge(), 0.2)
    for theorem, problem, method, words in [
        ("hybrid-dual", hinge, HybridDualAscent(), "a smooth loss"),
        ("hybrid-dual", gap, HyFDCA(), "the method HybridDualAscent"),
        ("hybrid-tracked", gap, TrackedBlockDescent(step_size=np.array([0.1])), "one constant step size"),
        ("hybrid-tracked", gap, TrackedBlockDescent(step_size=9.0), "c > 0"),
        ("hybrid-tracked", hinge, TrackedBlockDescent(step_size=1e-3), "a smooth loss"),
        ("hybrid-reduction", gap, TrackedBlockDescent(step_size=0.1, local_steps=2), "a method that it reduces to"),
    ]:
        found = verify(theorem, problem, method, rounds=3)
        assert found.outcome is Outcome.NOT_APPLICABLE
        assert words in found.reason


# ---------------------------------------------------------------- campaign: random instances


def table(rng):
    """Blocks of random sizes with gaps, columns that share directions, dense or CSR, at 1 to 6 owners."""
    G, B = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    heights, widths = rng.integers(1, 12, G), rng.integers(1, 4, B)
    n, d = int(heights.sum()), int(widths.sum())
    X = rng.normal(size=(n, d)) + rng.uniform(0.0, 3.0) * rng.normal(size=(n, 1)) * rng.normal(size=d)
    X *= 10.0 ** rng.uniform(-1.0, 1.0, d)
    holder = rng.integers(0, int(rng.integers(1, 7)), (G, B))
    gaps = rng.random((G, B)) < 0.2
    gaps[:, gaps.all(axis=0)] = gaps[gaps.all(axis=1)] = False
    holder[gaps] = -1
    _, holder[~gaps] = np.unique(holder[~gaps], return_inverse=True)
    rows, columns = np.concatenate([[0], np.cumsum(heights)]), np.concatenate([[0], np.cumsum(widths)])
    for g, b in np.argwhere(gaps):
        X[rows[g] : rows[g + 1], columns[b] : columns[b + 1]] = 0.0
    z = X @ (rng.normal(size=d) / np.linalg.norm(X, axis=0)) * np.sqrt(n) + rng.normal(size=n)
    quadratic = bool(rng.random() < 0.5)
    y, loss = (z, Squared()) if quadratic else (np.where(z > 0.0, 1.0, -1.0), Logistic())
    X = sp.csr_array(X) if rng.random() < 0.3 else X
    fed = HybridFederation(Federation(X, y, rows), columns, holder)
    return HybridProblem(fed, loss, float(10.0 ** rng.uniform(-3.0, 0.0)))


def blocks_trial(rng):
    """Dual ascent keeps its rate, and never descends, with safeguarded local steps too; tracked steps keep theirs."""
    from fedconvex import iterate

    problem = table(rng)
    best, fed, seen = problem.solve().value, problem.federation, {}
    off = 1e-13 * (1.0 + abs(best) + abs(problem.value(np.zeros(fed.d))))
    h = int(rng.integers(1, 12))
    late = {"batch_size": h, "participation": float(rng.uniform(0.2, 1.0)), "drop": float(rng.uniform(0.0, 0.5))}
    for method in (HybridDualAscent(), HybridDualAscent(**late), HyFDCA(passes=3), HyFDCA(passes=2, **late)):
        dual = np.array([problem.dual_value(s.alpha[0]) for _, s in iterate(method, problem, rounds=8, seed=rng)])
        assert (np.diff(dual) >= -off).all(), (method, np.diff(dual).min())
        assert (dual <= best + off).all()
        if method == HybridDualAscent():
            k = problem.l2 * fed.n / problem.traits.smoothness
            factor = (1.0 - k / (k + fed.n * problem.row_norms.max())) ** 2
            gaps = best - dual
            assert (gaps[1:] <= factor * gaps[:-1] + off).all()
            seen["dual"] = float(((gaps[1:] + off) / (factor * gaps[:-1] + off)).max())
    Q = int(rng.choice([1, 2, 5, 20]))
    rough = _roughest(problem)
    step = best_share(Q) * float(rng.uniform(0.3, 1.0)) / rough
    method, start = TrackedBlockDescent(step_size=step, local_steps=Q), rng.normal(size=fed.d)
    gaps = np.array([problem.value(s.w[0]) - best for _, s in iterate(method, problem, rounds=8, start=start)])
    factor = hybrid_tracked_rate(problem.l2, rough, step, Q, 1, 1.0).value
    off = 1e-13 * (1.0 + gaps[0] + abs(best))
    assert (gaps[1:] <= factor * gaps[:-1] + off).all()
    return seen | {"Q": Q, "tracked": float(((gaps[1:] + off) / (factor * gaps[:-1] + off)).max())}


@pytest.mark.slow
def test_random_blocks():
    """A sample of the campaign `blocks`."""
    rows = [attempt("blocks", 1, i) for i in range(8)]
    assert not [row for row in rows if not row["passed"]]


def test_steps_that_overflow_reduce_to_nothing():
    steps = TrackedBlockDescent(step_size=100.0)
    assert outcome(THEOREMS["hybrid-reduction"], block_owners.one_column, steps, 400) is Outcome.NOT_APPLICABLE
