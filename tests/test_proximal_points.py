"""Proximal points of clients at the ends of double precision."""

from __future__ import annotations

import numpy as np
import pytest

from fedconvex import Federation, Logistic, Problem, SmoothedHinge, Squared
from fedconvex.solvers.proximal import smooth_points as proximal


@pytest.mark.parametrize("compiled", [32, 0])
@pytest.mark.parametrize("loss", [Squared(), Logistic()])
@pytest.mark.parametrize("center", [np.nan, np.inf, -1e200])
def test_overflow_is_not_an_answer(compiled, loss, center, monkeypatch):
    """A center that is not finite, or whose square is not, gives NaN, which runs call divergence, and not the start."""
    monkeypatch.setattr(proximal, "_COMPILED", compiled)
    problem = Problem(Federation.from_clients([([[1.0, 0.0], [2.0, 1.0]], [1.0, -1.0])]), loss)
    v, start = np.full((1, 1, 2), center), np.zeros((1, 1, 2))
    with np.errstate(all="ignore"):
        x = proximal.proximal_points(problem, np.array([[0]]), v, np.array([1.0]), start, 1e-12)
    assert np.isnan(x).all()


@pytest.mark.parametrize("compiled", [32, 0])
def test_a_linear_piece_of_the_loss_is_left_however_long_the_first_step_is(compiled, monkeypatch):
    """With no curvature but rho = 1e4 Newton's first step is 1e12 times too long; it was given up after 33 halvings."""
    monkeypatch.setattr(proximal, "_COMPILED", compiled)
    problem = Problem(Federation.from_clients([([[1e8], [3e8]], [1.0, -1.0])]), SmoothedHinge(0.5))
    start = np.zeros((1, 1, 1))
    (found,) = proximal.proximal_points(problem, np.array([[0]]), start, np.array([1e4]), start, 1e-13).ravel()
    best = problem.solve()  # rho moves it by 1e-20
    assert found == pytest.approx(best.w[0], rel=1e-9) and found != 0.0
