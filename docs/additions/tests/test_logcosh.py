"""LogCosh: its derivatives, its declared constants, and an exact solution against a gradient by hand."""

import numpy as np
import pytest

from fedconvex import Federation, Problem
from fedconvex.loss_traits import traits
from fedconvex.losses import LogCosh

SCORES = (-1000.0, -3.0, -0.1, 0.0, 0.7, 20.0, 1000.0)


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_slopes_are_differences_of_values_and_constants_hold(scale):
    loss, h = LogCosh(scale), 1e-5
    for z in SCORES:
        assert loss.slope(z, 0.3) == pytest.approx(
            (loss.value(z + h, 0.3) - loss.value(z - h, 0.3)) / (2 * h), abs=1e-6
        )
        assert loss.curvature(z, 0.3) == pytest.approx(1.0 - (loss.slope(z, 0.3) / scale) ** 2, abs=1e-12)
        third = (loss.curvature(z + h, 0.3) - loss.curvature(z - h, 0.3)) / (2 * h)
        assert abs(third) <= traits(loss).self_concordance * loss.curvature(z, 0.3) + 1e-8
    assert loss.curvature(0.3, 0.3) == traits(loss).smoothness
    assert loss.slope(1000.0, 0.3) == pytest.approx(traits(loss).lipschitz)


def test_the_minimum_is_certified(rng):
    X = rng.normal(size=(40, 3))
    y = X @ np.array([1.0, -2.0, 0.5]) + rng.standard_t(2, size=40)
    best = Problem(Federation.from_arrays(X, y, np.arange(40) % 4), LogCosh(), 1e-3).solve()
    assert 0.0 <= best.gap <= 1e-9
    r = X @ best.w - y
    gradient = X.T @ np.tanh(r) / 40 + 1e-3 * best.w  # by hand; clients are of equal size
    assert gradient @ gradient / 2e-3 <= 1e-9  # ‖grad F‖^2/(2 l2) bounds F - F*
    assert best.value == pytest.approx(np.log(np.cosh(r)).mean() + 0.5e-3 * best.w @ best.w, rel=1e-12)


def test_a_scale_of_zero_is_refused():
    with pytest.raises(ValueError, match=r"LogCosh.scale must be positive.*; got 0"):
        Problem(Federation.from_clients([([[1.0]], [1.0])]), LogCosh(scale=0.0))
