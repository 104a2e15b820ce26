"""What every loss of one score must keep to: its derivatives, declared constants, conjugate and dual step agree.

Losses are taken from ``fedconvex.losses.__all__``, with their default parameters and with 2.5 times these.
"""

import itertools
from typing import NamedTuple

import numpy as np
import pytest

from fedconvex import Federation, Problem, losses
from fedconvex.loss_traits import traits

H = 1e-5
SCORES = 1e-3 * np.pi * np.array([-2500.0, -1000.0, -430.0, -100.0, -9.0, 4.0, 70.0, 333.0, 900.0, 2000.0])  # no kinks
NUMBERS = (-1.0, 1.0, 0.0, 2.0, 0.7)


def variants():
    for cls in (getattr(losses, name) for name in losses.__all__):
        if "n_classes" not in cls._fields:
            given = cls()
            yield given
            if given:
                yield cls(*(2.5 * x for x in given))


def accepted(loss):
    """Labels that it takes, of some numbers."""

    def takes(y):
        try:
            loss.check_labels(np.full(4, y))
        except ValueError:
            return False
        return True

    found = [y for y in NUMBERS if not hasattr(loss, "check_labels") or takes(y)]
    assert found, "it takes one of these labels"
    return found


LOSSES = list(variants())
every = pytest.mark.parametrize("loss", LOSSES, ids=repr)


def points(loss):
    return itertools.product(accepted(loss), SCORES.tolist())


def quotient(f, z):
    return (f(z + H) - f(z - H)) / ((z + H) - (z - H))


def near(loss, z, y):
    """What differences over H may miss: their own error, and rounding of what they are taken of."""
    return 1e-6 * (1.0 + abs(loss.value(z, y)) + abs(loss.slope(z, y)))


@every
def test_slope_and_curvature_are_derivatives(loss):
    for y, z in points(loss):
        assert quotient(lambda x, y=y: loss.value(x, y), z) == pytest.approx(loss.slope(z, y), abs=near(loss, z, y))
        if hasattr(loss, "curvature"):
            found = quotient(lambda x, y=y: loss.slope(x, y), z)
            assert loss.curvature(z, y) == pytest.approx(found, rel=1e-5, abs=near(loss, z, y))


@every
def test_declared_constants_hold(loss):
    known = traits(loss)
    for y in accepted(loss):
        slopes = np.array([loss.slope(z, y) for z in SCORES])
        values = np.array([loss.value(z, y) for z in SCORES])
        assert (np.diff(slopes) >= -1e-12 * np.abs(slopes[1:])).all()  # convex
        assert values.min() >= known.lower_bound
        assert np.abs(slopes).max() <= known.lipschitz * (1.0 + 1e-12)
        low, high = known.slope_range(np.full(len(SCORES), y))
        assert (slopes >= low - 1e-12).all() and (slopes <= high + 1e-12).all()
        if known.quadratic:
            np.testing.assert_allclose(slopes, SCORES - y, atol=1e-14)
        if not known.curved:
            continue
        fine = np.linspace(-8.0, 8.0, 1601) + 1e-3 * np.pi
        curves = np.array([loss.curvature(z, y) for z in fine])
        assert curves.max() <= known.smoothness * (1.0 + 1e-12)
        if np.isfinite(known.self_concordance):  # log l'' is Lipschitz
            rise = np.abs(np.diff(np.log(curves))) / np.diff(fine)
            assert rise.max() <= known.self_concordance * (1.0 + 1e-9) + 1e-9
        if np.isfinite(known.third_derivative):
            assert (np.abs(np.diff(curves)) / np.diff(fine)).max() <= known.third_derivative + 1e-9


@pytest.mark.parametrize("loss", [x for x in LOSSES if hasattr(x, "conjugate")], ids=repr)
def test_fenchel_and_young(loss):
    """l*(a) >= a z - l(z) for all a and z, with equality at a = l'(z)."""
    for y, z in points(loss):
        a = loss.slope(z, y)
        size = 1.0 + abs(a * z) + abs(loss.value(z, y))
        assert loss.conjugate(a, y) + loss.value(z, y) == pytest.approx(a * z, abs=1e-8 * size)
        for other in SCORES:
            assert loss.conjugate(loss.slope(other, y), y) + loss.value(z, y) >= loss.slope(other, y) * z - 1e-8 * size


@pytest.mark.parametrize("loss", [x for x in LOSSES if hasattr(x, "dual_step")], ids=repr)
def test_dual_step_is_the_minimiser(loss):
    """Of l*(-(alpha + d)) + z d + (q/2) d^2; others are larger, by the square of how far they are off at the least."""
    for (y, z), q, at in itertools.product(points(loss), (0.1, 1.0, 30.0), SCORES[2:8:2]):
        alpha = -loss.slope(at, y)

        def value(d, alpha=alpha, z=z, q=q, y=y):
            return loss.conjugate(-(alpha + d), y) + z * d + 0.5 * q * d * d

        best = loss.dual_step(alpha, z, q, y)
        for off in (-1e-2, -1e-4, 1e-4, 1e-2):
            least = value(best) + 0.5 * q * off * off  # it is q-strongly convex
            assert value(best + off) >= least - 1e-12 * (1.0 + abs(least) + abs(z))


def test_a_wrong_loss_is_found():
    """One with half the slope, one with too small a Lipschitz constant, one whose conjugate has the other sign."""

    class HalfSlope(losses.Logistic):
        def slope(self, z, y):
            return 0.5 * super().slope(z, y)

    class Flat(losses.Logistic):
        lipschitz = 0.5

    class OtherSign(losses.Logistic):
        def conjugate(self, a, y):
            return -super().conjugate(a, y)

    for wrong, test in (
        (HalfSlope(), test_slope_and_curvature_are_derivatives),
        (Flat(), test_declared_constants_hold),
        (OtherSign(), test_fenchel_and_young),
    ):
        with pytest.raises(AssertionError):
            test(wrong)


def test_losses_that_are_softplus_are_so_of_a_multiple_of_the_score():
    seen = 0
    for loss in variants():
        for y in accepted(loss) if hasattr(loss, "softplus_factor") else ():
            for z in SCORES:
                assert loss.value(z, y) == pytest.approx(np.logaddexp(0.0, loss.softplus_factor(y) * z), rel=1e-14)
                seen += 1
    assert seen


class Moved(NamedTuple):
    """log(1 + e^(1 - y z)): a softplus, but not of a multiple of the score."""

    def softplus_argument(self, z, y):
        return 1.0 - y * z

    def value(self, z, y):
        return np.log1p(np.exp(1.0 - y * z))

    def slope(self, z, y):
        return -y / (1.0 + np.exp(y * z - 1.0))


class Tripled(losses.Logistic):
    def value(self, z, y):
        return 3.0 * np.log1p(np.exp(-y * z))


class Steeper(Tripled):
    def softplus_factor(self, y):
        return -2.0 * y

    def value(self, z, y):
        return np.log1p(np.exp(-2.0 * y * z))


@pytest.mark.parametrize("loss", [Moved(), Tripled(), Steeper(), losses.Logistic()], ids=repr)
def test_many_models_have_the_values_of_each_alone(loss):
    """Whatever a loss of another module, or one that changes another, has beside its values."""
    rng = np.random.default_rng(3)
    fed = Federation.from_arrays(rng.normal(size=(20, 3)), np.sign(rng.normal(size=20)), clients=np.arange(20) % 3)
    problem, W = Problem(fed, loss), rng.normal(size=(9, 3))
    np.testing.assert_allclose(problem.value(W), [problem.value(w) for w in W], rtol=1e-13)
