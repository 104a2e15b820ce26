"""Certified gaps over sites where everything is rounding, against optima in 60 digits."""

from __future__ import annotations

import numpy as np
import pytest

from fedconvex import Exponential, Federation, Hinge, Logistic, Problem, Squared
from fedconvex.problems import Independent, MultiTaskProblem
from fedconvex.remote import Roster
from fedconvex.remote.reports import report
from fedconvex.simplex.uncertainty import Simplex

mp = pytest.importorskip("mpmath")
mp.mp.dps = 60

LOSSES = {
    "squared": (Squared(), lambda z, y: (z - y) ** 2 / 2, lambda z, y: z - y, lambda z, y: mp.mpf(1)),
    "logistic": (
        Logistic(),
        lambda z, y: mp.log(1 + mp.exp(-y * z)),
        lambda z, y: -y / (1 + mp.exp(y * z)),
        lambda z, y: 1 / (2 + mp.exp(z) + mp.exp(-z)),
    ),
    "exponential": (
        Exponential(),
        lambda z, y: mp.exp(-y * z),
        lambda z, y: -y * mp.exp(-y * z),
        lambda z, y: mp.exp(-y * z),
    ),
}


def federation(rng, offset, domains=None):
    """Three clients of two features, far from zero where there is an offset."""
    sizes = (4, 7, 5)
    pairs = [(offset + rng.normal(size=(n, 2)), rng.choice([-1.0, 1.0], n)) for n in sizes]
    return Federation.from_clients(pairs, domains=domains)


def exact(fed, l2, kind, w, weights):
    """F(w) and its minimum over two features, in 60 digits: Newton's method from w; weights (n,) of the rows."""
    value, slope, bend = LOSSES[kind][1:]
    X, y, q = (mp.matrix(a.tolist()) for a in (fed.X, fed.y, weights))
    scores = lambda v: X * v  # noqa: E731
    F = lambda v: sum(q[i] * value(z, y[i]) for i, z in enumerate(scores(v))) + l2 * (v.T * v)[0] / 2  # noqa: E731
    v = w.copy()
    for _ in range(60):
        z = scores(v)
        g = X.T * mp.matrix([q[i] * slope(z[i], y[i]) for i in range(len(y))]) + l2 * v
        h = [q[i] * bend(z[i], y[i]) for i in range(len(y))]
        H = X.T * mp.diag(h) * X + l2 * mp.eye(2)
        step = mp.lu_solve(H, g)
        v -= step
        if mp.norm(step) < mp.mpf(10) ** -45 * (1 + mp.norm(v)):
            break
    return F(w), F(v)


class Reports:
    """A desk whose sites answer from the rows themselves."""

    def __init__(self, problem):
        self.problem = problem

    def collect(self, kind, t, asked, forms, times):
        fed = self.problem.federation
        alone = [Problem(fed.subset([k]), self.problem.loss, self.problem.l2) for k in asked]
        return {k: report(own, 0, asked[k]) for k, own in zip(asked, alone, strict=True)}

    def note(self, *what):
        raise AssertionError(what)


def near(problem, w, rng):
    """Models at rounding's distance from a minimiser."""
    sizes = [0.0, 1e-16, 1e-15, 1e-14, 1e-12, 1e-9]
    return np.array([w * (1.0 + s * rng.normal(size=w.size)) for s in sizes])


@pytest.mark.slow
def test_gaps_are_above_the_truth_in_sixty_digits():
    """Of a model by strong convexity; ‖grad F‖^2/(2 l2) as it is computed is below the truth for some."""
    rng, short = np.random.default_rng(5), 0
    for kind in LOSSES:
        for offset, l2 in ((0.0, 10.0), (30.0, 1e-4)):
            if kind == "exponential":
                offset *= 0.02
            fed = federation(rng, offset)
            problem, make = Problem(fed, LOSSES[kind][0], l2), lambda f, k=kind, l=l2: Problem(f, LOSSES[k][0], l)
            roster = Roster.of(make, fed).at(Reports(problem))
            W = near(problem, problem.solve().w, rng)
            bare = np.array([v @ v for v in problem.gradient(W)]) / (2.0 * l2)
            for w, gap, plain in zip(W, roster.measure(W).gap, bare, strict=True):
                F, best = exact(fed, mp.mpf(l2), kind, mp.matrix(w.tolist()), np.full(fed.n, mp.mpf(1) / fed.n))
                assert gap >= F - best, (kind, offset, w)
                short += bool(plain < F - best)
                assert gap < 1e-6 + 4.0 * plain, (kind, offset)
    assert short > 0


def test_an_allowance_is_not_a_share_of_the_value():
    """A residual that is 0 as computed, x w - y, and 1e-9 in truth: value and gradient are nothing beside it."""
    x, w, l2 = 1e8, 0.3, 1e-20
    fed = Federation.from_clients([([[x]], [x * w])])
    make = lambda f: Problem(f, Squared(), l2)  # noqa: E731
    found = Roster.of(make, fed).at(Reports(make(fed))).measure(np.array([[w]]))
    residual = mp.mpf(x) * mp.mpf(w) - mp.mpf(x * w)
    truth = residual**2 / 2 + mp.mpf(l2) * mp.mpf(w) ** 2 / 2 - mp.mpf(l2) * mp.mpf(w) ** 2  # F* <= l2 w^2
    assert truth > 100.0 * found.value[0]
    assert found.gap[0] >= truth


def test_an_allowance_of_a_task_is_not_a_share_of_its_loss():
    """As above for a model per task: loss, dual variables and their image are 0 as computed."""
    x, w = 1e8, 0.3
    fed = Federation.from_clients([([[x]], [x * w])])
    make = lambda f: MultiTaskProblem(f, Squared(), Independent(1e-40))  # noqa: E731
    roster, alone = Roster.of(make, fed), make(fed)
    answer = report(alone, 0, {"w": np.array([[[w]]])})
    roster.known["tasks"] = np.array([[[w]]]), [answer]
    value, gap = roster.certificate(np.array([[w]]), answer["image"], answer["conjugate"])
    truth = (mp.mpf(x) * mp.mpf(w) - mp.mpf(x * w)) ** 2 / 2 - mp.mpf(w) ** 2 * mp.mpf("1e-40")
    assert gap >= truth > 1e6 * value


def test_gaps_hold_where_squares_leave_the_range_of_numbers():
    """A gradient of 5e-163, whose square is 0 as computed; and rows whose norm is inf, whose allowance was NaN."""

    def gap(rows, y, l2, w):
        fed, make = Federation.from_clients([(rows, y)]), lambda f: Problem(f, Logistic(), l2)
        return Roster.of(make, fed).at(Reports(make(fed))).measure(np.array([[w]])).gap[0]

    x, l2 = mp.mpf(1e-162), mp.mpf(1e-313)
    v = x / 2 / l2  # a Newton step from 0, whose curvature l2 makes up but for 1e-11 of it
    truth = mp.log(2) - mp.log(1 + mp.exp(-x * v)) - l2 * v**2 / 2
    assert truth > 1e-12
    assert gap([[1e-162]], [1.0], 1e-313, 0.0) >= truth
    with np.errstate(all="ignore"):
        assert gap([[1e160], [1.0]], [1.0, -1.0], 0.1, 0.0) == np.inf


@pytest.mark.slow
def test_gaps_of_hinges_and_domains():
    """Kinks, whose slopes jump within the rounding of a score, and worst domains."""
    X = np.array([[0.1, 0.2], [0.3, -0.1], [1e8, -1e8]])
    fed = Federation.from_clients([(X[:2], [1.0, -1.0]), (X[2:], [1.0])])
    make = lambda f: Problem(f, Hinge(), 0.5)  # noqa: E731
    w = np.array([[0.3 + 1e-8, 0.3]])  # the last margin is 1 up to rounding
    found = Roster.of(make, fed).at(Reports(make(fed))).measure(w)
    assert found.gap[0] >= found.value[0] - make(fed).solve().lower
    rng = np.random.default_rng(2)
    fed = federation(rng, 3.0, domains=[np.zeros(4, int), np.ones(7, int), np.ones(5, int)])
    make = lambda f: Problem(f, Squared(), 0.01)  # noqa: E731
    best, problem = make(fed).solve_minimax(), make(fed)
    roster = Roster.of(make, fed).at(Reports(problem))
    roster._answers = {"domain_counts": [np.array(v) for v in problem.statistic("domain_counts")]}
    W, lam = near(problem, best.w, rng), np.tile(best.domain_weights, (6, 1))
    _, gap = roster.measure_minimax(Simplex(), W, lam)
    counts = np.bincount(fed.domain)
    for w, g in zip(W, gap, strict=True):
        each = [np.where(fed.domain == k, mp.mpf(1) / int(n), mp.mpf(0)) for k, n in enumerate(counts)]
        F = max(exact(fed, mp.mpf("0.01"), "squared", mp.matrix(w.tolist()), q)[0] for q in each)
        mixed = sum(mp.mpf(float(v)) * q for v, q in zip(lam[0] / lam[0].sum(), each, strict=True))
        least = exact(fed, mp.mpf("0.01"), "squared", mp.matrix(w.tolist()), mixed)[1]  # at most the minimum
        assert g >= F - least, w
