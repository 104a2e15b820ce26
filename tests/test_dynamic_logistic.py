"""The experiment dynamic-logistic and the bound along a path: against plain NumPy, and claims that can fail."""

import math

import numpy as np
import pytest
from scipy import optimize
from scipy.special import expit

pytest.importorskip("matplotlib")

from fedconvex import Federation, Problem, Squared
from fedconvex.papers import EXPERIMENTS, dynamic_logistic
from fedconvex.papers.dynamic_logistic import (
    BATCH,
    DRIFTS,
    L2,
    ROWS,
    K,
    L,
    Level,
    Path,
    Point,
    Scale,
    _chances,
    _labels,
    _target,
    crowd,
)
from fedconvex.theorems.dynamic_ball import followed
from fedconvex.theorems.parts.tracking import tracking_constants
from fedconvex.theory.bound import AssumptionError

# ---------------------------------------------------------------- the bound along a path


def parabolas(K=1):
    return tracking_constants(Problem(Federation.from_clients([([[1.0]], [0.0])] * K), Squared(), weights="uniform"))


def test_the_bound_along_a_path_is_attained():
    """F_i = (w - y_i)^2/2: e_i = (1 - mu) e_{i-1} + D_i whatever the D_i of one sign."""
    moves, e, mu = np.array([0.1, 0.4, 0.0, 0.2, 1.0]), 0.5, 0.3
    found = followed(parabolas(), moves, 0.0, step_size=mu, start2=e**2)
    for i, D in enumerate(moves):
        assert found[i] == pytest.approx(e**2, rel=1e-12)
        e = (1.0 - mu) * e + D
    assert found[-1] == pytest.approx(e**2, rel=1e-12)
    assert followed(parabolas(), 0.9 * moves, 0.0, step_size=mu, start2=0.25)[-1] < 0.99 * e**2  # planted


def test_noise_along_a_path():
    """Fresh labels of variance U: E e^2 = m^2 + v with m = (1 - mu) m + D, v = (1 - mu)^2 v + mu^2 U."""
    mu, D, U, m, v = 0.3, 0.02, 0.5, 0.0, 0.0
    for _ in range(200):
        m, v = (1.0 - mu) * m + D, (1.0 - mu) ** 2 * v + mu**2 * U
    bound = followed(parabolas(), np.full(200, D), 0.0, step_size=mu, labels=U)[-1]
    assert m**2 + v < bound < 2.0 * (m**2 + v)
    still = followed(parabolas(), np.zeros(200), 0.0, step_size=mu, labels=U)[-1]
    assert still == pytest.approx(mu * U / (2.0 - mu), rel=1e-9)  # attained


def test_following_refuses():
    for settings, kind, why in (
        ({"local_steps": 2}, AssumptionError, "one local step each, got 2"),
        ({"step_size": 9.0}, AssumptionError, "A >= 0"),
        ({"labels": -1.0}, ValueError, "labels must be nonnegative"),
        ({"labels": [0.1]}, ValueError, "labels must"),
    ):
        with pytest.raises(kind, match=why):
            followed(parabolas(), np.ones(3), 0.0, **({"step_size": 0.1} | settings))
    with pytest.raises(ValueError, match="moves must be nonnegative"):
        followed(parabolas(), -np.ones(3), 0.0, step_size=0.1)
    with pytest.raises(TypeError, match="followed: constants"):
        followed(3, np.ones(3), 0.0, step_size=0.1)


# ---------------------------------------------------------------- targets of chances that move


def test_targets_against_another_minimiser():
    agents = crowd(1)
    X, rng = agents.X, np.random.default_rng(0)
    s = rng.normal(size=4)

    def risk(w, s):
        z, pi = X @ w, _chances(X, agents.models + s)
        return np.mean(np.logaddexp(0.0, z) - pi * z) + L2 / 2 * w @ w

    found = _target(X, _chances(X, agents.models + s), np.zeros(4))
    other = optimize.minimize(risk, np.zeros(4), (s,), options={"gtol": 1e-10}).x
    np.testing.assert_allclose(found.w, other, atol=1e-6)
    for j in range(4):  # dw^o/ds by differences
        h = 1e-4 * np.eye(4)[j]
        ends = [_target(X, _chances(X, agents.models + s + way * h), found.w).w for way in (1.0, -1.0)]
        np.testing.assert_allclose(found.moved[:, j], (ends[0] - ends[1]) / 2e-4, atol=1e-6)


def test_noise_of_fresh_labels_by_drawing():
    """Agents, batches and labels drawn in plain NumPy: the averaged gradient's second moment at w^o is S + U."""
    agents, rng, n = crowd(2), np.random.default_rng(1), 1500
    X, chances = agents.X, _chances(agents.X, agents.models)
    target = _target(X, chances, np.zeros(4))
    gradients = np.empty((n, 4))
    for i in range(n):
        y = _labels(rng, chances)
        who = rng.permutation(K)[:L]
        total = np.zeros(4)
        for k in who:
            rows = rng.permutation(ROWS)[:BATCH]
            x, z = X[k, rows], y[k, rows]
            total += -(z * expit(-z * (x @ target.w))) @ x / BATCH + L2 * target.w
        gradients[i] = total / L
    size = np.sum(gradients**2, axis=1)
    assert abs(size.mean() - target.noise - target.labels) < 4.5 * size.std() / math.sqrt(n)
    assert target.labels > 0.2 * target.noise > 0.0  # each would be missed
    np.testing.assert_allclose(gradients.T @ gradients / n, target.covariance, atol=0.1 * target.noise)
    assert np.trace(target.covariance) == pytest.approx(target.noise + target.labels)


# ---------------------------------------------------------------- claims


def judged(points, levels, along, late, paths):
    scale = dynamic_logistic.FULL
    return [c.holds for c in dynamic_logistic._claims(scale, points, levels, along, late, paths)]


def test_every_claim_can_fail():
    points = [Point(q, mu, 10, 1.0, 0.01, 1.5, 2.0) for q in DRIFTS for mu in (0.1, 0.25)]
    levels = [Level(q, mu, 0.01 + 0.01 * abs(j - i), 1e-4, 0.01 + 0.01 * abs(j - i), 1.0, 2.0, 0.0)
              for j, q in enumerate(DRIFTS) for i, mu in enumerate((0.03, 0.1, 0.25))]  # fmt: skip
    along = [p._replace(everywhere=math.nan) for p in points]
    paths = [Path(q, 0.7, 0.4, 2.5, 0.2) for q in DRIFTS]
    good = (points, levels, along, levels, paths)
    assert judged(*good) == [True] * 9

    def planted(which, place, **changes):
        bad = [list(part) for part in good]
        bad[which][place] = bad[which][place]._replace(**changes)
        return [i for i, holds in enumerate(judged(*bad)) if not holds]

    assert planted(0, 3, ball=0.9) == [0]
    assert planted(0, 3, everywhere=0.9) == [0, 2]
    assert planted(1, 4, farthest=2.1) == [1]
    assert planted(0, 3, everywhere=1.4) == [2]
    assert planted(1, 3, first_order=0.035) == [3]
    assert planted(1, 2, measured=0.001, left=1.0) == [4]
    assert planted(2, 0, measured=2.0) == [5]
    assert planted(4, 1, largest=2.6) == [6]
    assert planted(4, 1, mean2=1.1) == [7]
    assert planted(3, 3, first_order=0.035) == [8]
    never = [v._replace(left=1.0) for v in levels]
    assert judged(points, never, along, never, paths)[3] is None


TINY = Scale(40, 30, (0.1, 0.25), 3, (1.0,), 8, 2)


@pytest.mark.slow
@pytest.mark.compiled
def test_the_experiment_holds_and_planted_errors_break_it(monkeypatch, tmp_path):
    from fedconvex.papers import write

    monkeypatch.setattr(dynamic_logistic, "QUICK", TINY)
    found = EXPERIMENTS["dynamic-logistic"].run(quick=True)
    assert found.holds and len(found.claims) == 9
    few = (0, 5)  # bounds of measured means, for which 40 runs and three walks are too few
    assert all(c.holds for i, c in enumerate(found.claims) if c.everywhere and i not in few)
    assert {p.name for p in write(found, tmp_path / "out")} >= {"scores.svg", "chances.png", "paths.csv", "claims.json"}
    right = dynamic_logistic.tracking_constants

    def steep(p, r=None):
        wrong = right(p, r)
        object.__setattr__(wrong, "nu", 5.0 * wrong.nu)  # as it is made it would be refused
        return wrong

    monkeypatch.setattr(dynamic_logistic, "tracking_constants", steep)
    monkeypatch.setattr(dynamic_logistic, "reach", lambda p, **_: 0.1)
    wrong = EXPERIMENTS["dynamic-logistic"].run(quick=True)
    assert [i for i, c in enumerate(wrong.claims) if c.holds is False] == [0, 1]
