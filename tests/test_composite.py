"""Certified gaps of penalised problems, also with weights and free intercepts, against 50-digit arithmetic.


Any value of F, computed in 50 digits, lies above F*. The lower bound must not exceed it, at the solution and at a point
that Newton's method in 50 digits makes of it; and the gap must cover what the value exceeds the better of both by.
"""

from unittest.mock import patch

import mpmath as mp
import numpy as np
import pytest
import scipy.sparse as sp

from fedconvex import Federation, Logistic, Problem, SmoothedHinge, Softmax, Squared
from fedconvex.penalties import L1, Box, ElasticNet, GroupLasso, NonNegative, Simplex, is_entrywise
from fedconvex.solvers.penalised import working_sets as penalised

DIGITS = 50


class Exact:
    """F of a problem with entrywise penalty, or another, in 50 digits; parameters are the doubles that they are."""

    def __init__(self, problem):
        self.problem, fed = problem, problem.federation
        self.X = [[mp.mpf(float(x)) for x in row] for row in (fed.X.toarray() if fed.is_sparse else fed.X)]
        self.y = [mp.mpf(float(v)) for v in fed.y]
        weights = np.ones(fed.n) if fed.sample_weight is None else fed.sample_weight
        self.c = []
        for k in range(fed.K):
            rows = range(fed.ptr[k], fed.ptr[k + 1])
            mass = sum(mp.mpf(float(weights[i])) for i in rows)
            share = mp.mpf(int(fed.sizes[k])) / fed.n if fed.sample_weight is None else None
            p = mp.mpf(1) / fed.K if problem.equal_weights else share
            p = mp.mpf(float(problem.weights[k])) if p is None else p
            self.c += [p * mp.mpf(float(weights[i])) / mass for i in rows]

    def loss(self, z, y):
        loss = self.problem.loss
        if isinstance(loss, Squared):
            return (z[0] - y) ** 2 / 2
        if isinstance(loss, Logistic):
            return mp.log(1 + mp.exp(-y * z[0]))
        if isinstance(loss, SmoothedHinge):
            m, g = 1 - y * z[0], mp.mpf(loss.gamma)
            return mp.mpf(0) if m <= 0 else m * m / (2 * g) if m <= g else m - g / 2
        return mp.log(sum(mp.exp(v) for v in z)) - z[int(y)]

    @property
    def free(self):
        d = self.problem.federation.d
        return np.zeros(d, dtype=bool) if self.problem.free is None else self.problem.free

    def penalty(self, w):
        """P of the entries that are not free."""
        P, d = self.problem.penalty, int((~self.free).sum())
        w = [v for v, free in zip(w, np.tile(self.free, self.problem.n_outputs), strict=True) if not free]
        if isinstance(P, L1):
            return mp.mpf(P.strength) * sum(abs(v) for v in w)
        if isinstance(P, ElasticNet):
            r = mp.mpf(P.l1_ratio)
            return mp.mpf(P.strength) * sum(r * abs(v) + (1 - r) * v * v / 2 for v in w)
        if isinstance(P, NonNegative):
            return mp.mpf(P.strength) * sum(w)
        if isinstance(P, GroupLasso):
            code, t = P.blocks(d)
            code = np.tile(code, len(w) // d)
            norms = [mp.sqrt(sum(w[j] ** 2 for j in np.flatnonzero(code == g))) for g in range(t.size)]
            return sum(mp.mpf(P.strength) * mp.sqrt(int((code[:d] == g).sum())) * norms[g] for g in range(t.size))
        return mp.mpf(0)

    def value(self, w):
        w, d, C = [mp.mpf(v) for v in w], self.problem.federation.d, self.problem.n_outputs
        held = [v for v, free in zip(w, np.tile(self.free, C), strict=True) if not free]
        total = mp.mpf(self.problem.l2) / 2 * sum(v * v for v in held) + self.penalty(w)
        for x, y, c in zip(self.X, self.y, self.c, strict=True):
            total += c * self.loss([sum(x[j] * w[a * d + j] for j in range(d)) for a in range(C)], y)
        return total

    def refined(self, w):
        """Newton's method in 50 digits on the entries away from kinks and ends, for squared and logistic losses."""
        problem, P = self.problem, self.problem.penalty
        ends = (P.low, P.high) if isinstance(P, Box) else (0.0,)
        S = [j for j in range(len(w)) if w[j] not in ends or self.free[j]]
        held = [mp.mpf(0 if self.free[j] else 1) for j in range(len(w))]
        w = [mp.mpf(float(v)) for v in w]
        curved = mp.mpf(P.strength) * (1 - mp.mpf(P.l1_ratio)) if isinstance(P, ElasticNet) else mp.mpf(0)
        flat = (
            mp.mpf(P.strength) * (mp.mpf(P.l1_ratio) if isinstance(P, ElasticNet) else 1)
            if not isinstance(P, Box)
            else 0
        )
        signs = [mp.sign(v) for v in w]
        for _ in range(4 if S else 0):
            g = mp.matrix([held[j] * ((problem.l2 + curved) * w[j] + flat * signs[j]) for j in S])
            H = mp.diag([held[j] * (mp.mpf(problem.l2) + curved) for j in S])
            for x, y, c in zip(self.X, self.y, self.c, strict=True):
                z = sum(a * b for a, b in zip(x, w, strict=True))
                e = mp.exp(-y * z)
                l1 = z - y if isinstance(problem.loss, Squared) else -y * e / (1 + e)
                l2 = mp.mpf(1) if isinstance(problem.loss, Squared) else e / (1 + e) ** 2
                for a, j in enumerate(S):
                    g[a] += c * l1 * x[j]
                    for b, k in enumerate(S):
                        H[a, b] += c * l2 * x[j] * x[k]
            step = mp.lu_solve(H, g)
            for a, j in enumerate(S):
                w[j] -= step[a]
        some = [j for j in range(len(w)) if not self.free[j]]
        inside = all(not isinstance(P, Box) or P.low <= w[j] <= P.high for j in some)
        signed = all(mp.sign(w[j]) == signs[j] for j in some) or isinstance(P, Box)
        return w if inside and signed else None


PENALTIES = {
    "l1": lambda s, d: L1(s),
    "elastic net": lambda s, d: ElasticNet(s, 0.5),
    "positive": lambda s, d: NonNegative(s),
    "nonnegative": lambda s, d: NonNegative(),
    "box": lambda s, d: Box(-0.3, 0.5),
    "groups": lambda s, d: GroupLasso(s, min(2, d)),
    "simplex": lambda s, d: Simplex(),
}
LOSSES = {"squared": Squared(), "logistic": Logistic(), "hinge": SmoothedHinge(0.5), "softmax": Softmax(3)}


def random_problem(rng):
    """Few rows and columns, of several scales, dense or sparse, weighted or not; sometimes more columns than rows.

    Half of them have a free intercept, and some of these a second free column.
    """
    kind, loss = str(rng.choice(list(PENALTIES))), str(rng.choice(list(LOSSES)))
    n, d = int(rng.integers(3, 11)), int(rng.integers(1, 7))
    X = rng.normal(size=(n, d)) * 10.0 ** (rng.integers(-3, 4, size=d) * (rng.random() < 0.3))
    if d > 1 and rng.random() < 0.2:
        X[:, 1] = X[:, 0] * rng.choice([1.0, -2.0, 3.0])
    if rng.random() < 0.3:
        X *= rng.random((n, d)) < 0.6
    z = X @ rng.normal(size=d) + rng.normal(size=n) * 10.0 ** rng.integers(-3, 2)
    y = {"squared": z, "softmax": np.arange(n) % 3.0}.get(loss, np.where(z > np.median(z), 1.0, -1.0))
    weights = rng.integers(1, 9, size=n) / 4.0 if rng.random() < 0.3 else None
    K = int(rng.integers(1, min(n, 4)))
    free = [False] * d
    if rng.random() < 0.5:
        X, free = np.column_stack([X, np.ones(n)]), [*free, True]
        free[0] = d > 1 and rng.random() < 0.2
    fed = Federation.from_arrays(
        sp.csr_matrix(X) if rng.random() < 0.3 else X, y, np.arange(n) % K, sample_weight=weights
    )
    top = max(float(np.abs(X.T @ (z - z.mean())).max()) / n, 1e-3)
    strength = top * 10.0 ** rng.uniform(-3.0, 0.0)
    l2 = float(rng.choice([0.0, 0.0, 1e-6, 0.1]))
    shares = "uniform" if weights is not None or rng.random() < 0.5 else None
    penalty = PENALTIES[kind](strength, free.count(False))
    return Problem(fed, LOSSES[loss], l2, shares, penalty, intercept=free), kind, loss


def composite_trial(rng):
    """Lower bounds of penalised minima above a value in 50 digits, or gaps that do not cover the suboptimality."""
    with mp.workdps(DIGITS):
        problem, kind, loss = random_problem(rng)
        epochs = 50 if rng.random() < 0.5 else 0  # sets are small: half of them go by columns of X all the same
        with patch.object(penalised, "epochs_that_pay", lambda X: epochs):
            best, exact = problem.solve(), Exact(problem)
        w = best.w.ravel()
        here = exact.value([float(v) for v in w])
        least = here
        if is_entrywise(problem.penalty) and loss in ("squared", "logistic"):
            try:
                refined = exact.refined(w)
                least = min(here, exact.value(refined)) if refined is not None else here
            except ZeroDivisionError:  # a singular system: the entries are not determined
                pass
        over = float(mp.mpf(best.lower) - least)
        assert over <= 0.0, f"{problem!r}: the lower bound lies above a value by {over:.3g}"
        missing = float(here - least) - best.gap
        assert missing <= 0.0, f"{problem!r}: the suboptimality exceeds the gap {best.gap:.3g} by {missing:.3g}"
    return {
        "gap": best.gap / (1.0 + abs(best.value)),
        "free": int(np.sum(problem.intercept)),
        "penalty": kind,
        "loss": loss,
        "slack": float(least - best.lower),
    }


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.slow_unless(seed=[0, 1, 2, 3, 4, 5])
def test_certified_gaps_cover_the_suboptimality(seed):
    composite_trial(np.random.default_rng([1, seed]))


@pytest.mark.slow
def test_a_bound_that_is_lifted_by_its_slack_is_caught(monkeypatch):
    """Planted: the lower bound is lifted by 1e-12 of the value, more than the allowance for rounding takes off."""
    plain = penalised.dual_bound

    def lifted(*args):
        dual = plain(*args)
        return dual._replace(lower=dual.lower + 1e-12 * (1.0 + abs(dual.lower)))

    monkeypatch.setattr(penalised, "dual_bound", lifted)
    caught = 0
    for seed in range(8):
        try:
            composite_trial(np.random.default_rng([1, seed]))
        except AssertionError:
            caught += 1
    assert caught >= 4
