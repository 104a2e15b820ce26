"""Objectives and coefficients of scikit-learn's linear models and of cvxpy, on random problems.

A trial draws rows (some weighted by row, some by class), an intercept or none, and one of the peers. Peers are run to
tight tolerances; where one stops early all the same its objective is the larger, and the gap that is certified here
says who is right: ours never exceeds theirs by more than rounding, and is certified to 1e-9.
"""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet as PeerElasticNet
from sklearn.linear_model import Lasso, LogisticRegression, Ridge
from sklearn.svm import LinearSVC

from fedconvex import Federation, Hinge, Logistic, Problem, SmoothedHinge, Softmax, Squared
from fedconvex.penalties import L1, Box, ElasticNet, GroupLasso, NonNegative, Simplex

WIDE = 1e3  # width of a band that holds all margins: there the smoothed hinge is the squared one over 2 WIDE


class Rows:
    """Random rows of two to four clients with weights of which F makes one weighted mean."""

    def __init__(self, rng, classes=0):
        """Labels are real for no classes, -1/+1 for two, else 0, ..., classes - 1."""
        self.n, self.d = int(rng.integers(25, 70)), int(rng.integers(2, 8))
        self.X = rng.normal(size=(self.n, self.d)) @ np.diag(10.0 ** rng.uniform(-0.5, 0.5, self.d)) + rng.normal(
            size=self.d
        )
        scores = self.X @ rng.normal(size=(self.d, max(classes, 1))) + 2.0 * rng.normal(size=(self.n, max(classes, 1)))
        self.y = scores[:, 0] - np.median(scores[:, 0])
        if classes:
            self.y = scores.argmax(axis=1) * 1.0 if classes > 2 else np.where(self.y > 0.0, 1.0, -1.0)
            self.y[:classes] = (
                np.unique(self.y) if classes == 2 else np.arange(3.0)
            )  # every class has a row, which weighs
        self.weight, self.of_classes = None, None
        if rng.random() < 0.5:
            self.weight = np.where(rng.random(self.n) < 0.1, 0.0, 10.0 ** rng.uniform(-1, 1, self.n))
            self.weight[:3] = 1.0
        if classes and rng.random() < 0.5:
            self.of_classes = {float(c): float(rng.uniform(0.3, 3.0)) for c in np.unique(self.y)}
        self.clients, self.intercept = np.arange(self.n) % int(rng.integers(2, 5)), bool(rng.random() < 0.6)

    @property
    def total(self):
        """What every row weighs, by itself and by its class."""
        s = np.ones(self.n) if self.weight is None else self.weight
        return s if self.of_classes is None else s * [self.of_classes[c] for c in self.y]

    def problem(self, loss, l2, penalty=None, penalised=False):
        """Return the problem, with a free intercept if there is one, or a penalised one."""
        s = None if self.weight is None and self.of_classes is None else self.total
        fed = Federation.from_arrays(self.X, self.y, self.clients, sample_weight=s)
        fed = fed.with_intercept() if self.intercept or penalised else fed
        return Problem(fed, loss, l2, penalty=penalty, intercept=self.intercept and not penalised)

    def model(self, peer, outputs=1):
        """Return the model of a fitted peer: with its intercept last, if there is one."""
        w, b = np.atleast_2d(peer.coef_), np.reshape(np.broadcast_to(peer.intercept_, (outputs,)), (-1, 1))
        w = np.hstack([w, b]) if self.intercept else w
        return w if outputs > 1 else w[0]


def logistic(rng):
    """LogisticRegression: l2, l1, elastic net, or none of them, two or three classes, one problem for all classes."""
    classes, l1_ratio = int(rng.integers(2, 4)), float(rng.choice([0.0, 0.0, 1.0, rng.uniform(0.2, 0.8)]))
    r, strength = Rows(rng, classes), 10.0 ** rng.uniform(-2.5, -0.5)
    how = {"solver": "lbfgs", "max_iter": 20_000, "tol": 1e-12}
    if l1_ratio:
        how = {"solver": "saga", "max_iter": 40_000, "tol": 0.0, "random_state": 0}
    if not l1_ratio and classes == 2:
        how = {"solver": "newton-cholesky", "max_iter": 500, "tol": 1e-12}
    peer = LogisticRegression(
        C=1.0 / (strength * r.total.sum()), l1_ratio=l1_ratio, fit_intercept=r.intercept, class_weight=r.of_classes,
        **how,
    ).fit(r.X, r.y, r.weight)  # fmt: skip
    if r.intercept and not peer.coef_.any():  # saga stops where all coefficients are 0: the intercepts are log shares
        shares = np.log([r.total[r.y == c].sum() for c in np.unique(r.y)])
        peer.intercept_ = shares[1:] - shares[0] if classes == 2 else shares
    penalty = {0.0: None, 1.0: L1(strength)}.get(l1_ratio, ElasticNet(strength, l1_ratio))
    problem = r.problem(Logistic() if classes == 2 else Softmax(3), 0.0 if l1_ratio else strength, penalty)
    return problem, r.model(peer, 1 if classes == 2 else 3), l1_ratio < 1.0


def least_squares(rng):
    """Ridge, Lasso and ElasticNet, some with positive=True."""
    r, strength, positive = Rows(rng), 10.0 ** rng.uniform(-2.5, 0.0), bool(rng.random() < 0.5)
    l1_ratio = float(rng.choice([0.0, 1.0, rng.uniform(0.2, 0.8)]))
    how = {"fit_intercept": r.intercept, "positive": positive, "tol": 1e-14, "max_iter": 200_000}
    if l1_ratio == 0.0:
        how |= {"solver": "lbfgs" if positive else "cholesky"}
        peer = Ridge(alpha=strength * r.total.sum(), **how)
    else:
        peer = Lasso(strength, **how) if l1_ratio == 1.0 else PeerElasticNet(strength, l1_ratio=l1_ratio, **how)
    peer.fit(r.X, r.y, r.weight)
    if positive:
        penalty, l2 = NonNegative(strength * l1_ratio), strength * (1.0 - l1_ratio)
    else:
        penalty, l2 = (None, strength) if l1_ratio == 0.0 else (ElasticNet(strength, l1_ratio), 0.0)
    return r.problem(Squared(), l2, penalty), r.model(peer), True


def vectors(rng):
    """LinearSVC, whose intercept is a penalised coefficient: hinge and squared hinge."""
    r, l2, square = Rows(rng, 2), 10.0 ** rng.uniform(-2, 0), bool(rng.random() < 0.5)
    scale = 1.0 / (l2 * r.total.sum())
    C, name = (scale / (2.0 * WIDE), "squared_hinge") if square else (scale, "hinge")
    how = {"tol": 1e-11, "dual": True, "random_state": 0, "max_iter": 200_000}
    peer = LinearSVC(C=C, loss=name, fit_intercept=r.intercept, class_weight=r.of_classes, **how)
    peer.fit(r.X, r.y, r.weight)
    return r.problem(SmoothedHinge(WIDE) if square else Hinge(), l2, penalised=r.intercept), r.model(peer), True


def constraints(rng):
    """Groups, boxes and the simplex, by cvxpy."""
    logistic_loss = bool(rng.random() < 0.5)
    r, l2, kind = Rows(rng, 2 if logistic_loss else 0), 10.0 ** rng.uniform(-2, 0), int(rng.integers(3))
    w, b = cp.Variable(r.d), cp.Variable() if r.intercept else 0.0
    scores, share = r.X @ w + b, r.total / r.total.sum()
    F = cp.sum(cp.multiply(share, cp.logistic(-cp.multiply(r.y, scores)))) if logistic_loss else 0.0
    F = F if logistic_loss else 0.5 * cp.sum(cp.multiply(share, cp.square(scores - r.y)))
    F, where, strength = F + 0.5 * l2 * cp.sum_squares(w), [], 10.0 ** rng.uniform(-2, -0.3)
    if kind == 0:
        penalty = GroupLasso(strength, groups=2)
        F += strength * sum(np.sqrt(min(2, r.d - j)) * cp.norm(w[j : j + 2]) for j in range(0, r.d, 2))
    elif kind == 1:
        penalty, where = Box(-0.1, 0.2), [w >= -0.1, w <= 0.2]
    else:
        penalty, where = Simplex(1.5), [w >= 0.0, cp.sum(w) == 1.5]
    cp.Problem(cp.Minimize(F), where).solve("CLARABEL", tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13)
    theirs = np.append(w.value, b.value) if r.intercept else np.array(w.value)
    if kind:  # feasible up to rounding
        inside = Problem(Federation.from_arrays(np.eye(r.d), np.zeros(r.d), [0] * r.d), Squared(), penalty=penalty)
        theirs[: r.d] = (
            penalty.prox(theirs[None, None, : r.d], 1.0)[0, 0] if kind == 2 else np.clip(theirs[: r.d], -0.1, 0.2)
        )
        assert np.isfinite(inside.value(theirs[: r.d]))
    return r.problem(Logistic() if logistic_loss else Squared(), l2, penalty), theirs, True


PEERS = {"logistic": logistic, "least squares": least_squares, "vectors": vectors, "constraints": constraints}


def equality_trial(rng):
    """A random problem of a random peer: their objective is ours to 1e-9, or larger; their model ours to 1e-6."""
    name = list(PEERS)[rng.integers(len(PEERS))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", UserWarning)  # cvxpy: inaccurate
        problem, theirs, unique = PEERS[name](rng)
    best = problem.solve()
    size, value = max(abs(best.value), 1e-6), float(problem.value(theirs))
    certified, above = (best.value - best.lower) / size, (value - best.value) / size
    assert certified <= 1e-9, (name, problem, certified)
    assert above >= -certified - 1e-14, (name, problem, above)  # theirs is no better than the certificate allows
    ours, theirs = (np.reshape(w, (problem.n_outputs, -1)) for w in (best.w, theirs))
    if problem.n_outputs > 1 and problem.free is not None:  # intercepts of classes: up to a common shift
        ours, theirs = (np.hstack([w[:, :-1], w[:, -1:] - w[:, -1].mean()]) for w in (ours, theirs))
    off = float(np.abs(ours - theirs).max() / max(1.0, np.abs(ours).max()))
    early = above > 1e-9
    saga = name == "logistic" and problem.penalty is not None  # it stops at 0, and steps as if rows weighed the same
    assert saga or not early, (name, problem, above)
    assert early or not unique or off <= 1e-6 or above > 1e-13, (name, problem, off, above)
    return {"peer": name, "above": above, "certified": certified, "off": off, "early": early}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["least squares", "constraints"])
def test_a_wrong_objective_is_caught(name, monkeypatch):
    """Planted: one percent more l2, or more of the penalty where there is no l2, than the peer has."""
    plain = Rows.problem

    def off(self, loss, l2, penalty=None, penalised=False):
        if penalty is not None and not l2:
            penalty = penalty._replace(strength=1.01 * penalty.strength)
        return plain(self, loss, 1.01 * l2, penalty, penalised)

    monkeypatch.setattr(Rows, "problem", off)
    for seed in range(3):
        problem, theirs, _ = PEERS[name](np.random.default_rng(seed))
        best = problem.solve()
        assert float(problem.value(theirs)) - best.value > 1e-9 * abs(best.value)


def test_the_trial_runs():
    equality_trial(np.random.default_rng([0, 4]))
