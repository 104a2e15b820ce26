"""Losses against definitions: differences, Fenchel-Young, smoothness, and dual steps by their optimality conditions."""

from __future__ import annotations

import math
from typing import NamedTuple

import mpmath
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from fedconvex import Federation, Problem
from fedconvex.kernels import batches, dispatch, row_losses
from fedconvex.losses import (
    Exponential,
    Gamma,
    Hinge,
    Logistic,
    NegativeBinomial,
    Poisson,
    SmoothedHinge,
    Softmax,
    Squared,
)
from fedconvex.losses.stable import log_root_between, logit_root

EPS = np.finfo(float).eps
BANDS = (1e-3, 0.5, 1.0, 3.0)
SMOOTHED = [SmoothedHinge(g) for g in BANDS]
SIGNS = [Logistic(), Hinge(), Exponential(), *SMOOTHED]  # labels -1/+1
SCALAR = [Squared(), *SIGNS]

wide = st.floats(-1e3, 1e3)
sign = st.sampled_from([-1.0, 1.0])
curved = st.sampled_from([0.0]) | st.floats(-8.0, 6.0).map(lambda e: 10.0**e)  # q: 0, 1e-8 ... 1e6
unit = st.sampled_from([0.0, 1.0]) | st.floats(0.0, 1.0) | st.floats(-300.0, 0.0).map(lambda e: 10.0**e)


def name(loss):
    return repr(loss)


def label_for(loss, s, real):
    return real if isinstance(loss, Squared) else s


def score_for(loss, z):
    """exp overflows beyond 700."""
    return z * 0.7 if isinstance(loss, Exponential) else z


def kinks(loss, y):
    """Scores where the slope jumps or the curvature does."""
    if isinstance(loss, Hinge):
        return [y]
    return [y, y * (1.0 - loss.gamma)] if isinstance(loss, SmoothedHinge) else []


# ---------------------------------------------------------------- slopes and curvatures


@pytest.mark.parametrize("loss", SCALAR, ids=name)
@given(z=wide, s=sign, real=wide)
def test_slope_is_the_derivative(loss, z, s, real):
    y, z = label_for(loss, s, real), score_for(loss, z)
    h = 6e-6 * (1.0 if isinstance(loss, Exponential) else 1.0 + abs(z) / 50)
    h = min(h, 0.01 * loss.gamma) if isinstance(loss, SmoothedHinge) else h
    assume(all(abs(z - k) > 2 * h for k in kinks(loss, y)))
    quotient = (loss.value(z + h, y) - loss.value(z - h, y)) / ((z + h) - (z - h))
    third = max(abs(loss.slope(z, y)), 1.0)  # |l'''| <= |l'| for the exponential, <= 1 for the logistic
    rounding = 4 * EPS * abs(loss.value(z, y)) / h + 2 * EPS * abs(z) * third / h
    assert abs(quotient - loss.slope(z, y)) <= third * h * h + rounding + 1e-14


@pytest.mark.parametrize("loss", [x for x in SCALAR if hasattr(x, "curvature")], ids=name)
@given(z=wide, s=sign, real=wide)
def test_curvature_is_the_derivative_of_the_slope(loss, z, s, real):
    y, z = label_for(loss, s, real), score_for(loss, z)
    h = 6e-6 if not isinstance(loss, SmoothedHinge) else min(1e-4, 0.1 * loss.gamma)
    assume(all(abs(z - k) > 2 * h for k in kinks(loss, y)))
    quotient = (loss.slope(z + h, y) - loss.slope(z - h, y)) / ((z + h) - (z - h))
    got = loss.curvature(z, y)
    size = max(abs(loss.slope(z, y)), got, 1.0 if isinstance(loss, (Squared, Logistic)) else got)
    assert got >= 0.0
    assert abs(quotient - got) <= size * h * h + 8 * EPS * (abs(z) + abs(y) + 1.0) * size / h + 1e-14


@given(
    z=st.lists(wide, min_size=3, max_size=3),
    y=st.integers(0, 2),
    c=st.integers(0, 2),
)
def test_softmax_slopes_are_the_derivatives(z, y, c):
    loss, z = Softmax(3), np.array(z)
    h = 1e-5 * (1.0 + np.abs(z).max() / 50)
    e = np.zeros(3)
    e[c] = h
    quotient = (loss.value(z + e, y) - loss.value(z - e, y)) / ((z + e)[c] - (z - e)[c])
    out = np.empty(3)
    loss.slopes(z, y, out)
    assert abs(quotient - out[c]) <= h * h + 16 * EPS * (1.0 + np.abs(z).max()) / h
    assert abs(out.sum()) <= 1e-15 * 4
    again = z.copy()
    loss.slopes(again, y, again)  # may write over its scores
    np.testing.assert_array_equal(again, out)


def test_softmax_of_two_classes_is_logistic(rng):
    z = rng.uniform(-40, 40, 200)
    for s, label in ((1.0, 0), (-1.0, 1)):
        two = [Softmax(2).value(np.array([v, 0.0]), label) for v in z]
        np.testing.assert_allclose(two, [Logistic().value(v, s) for v in z], rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("z", [1e3, -1e3, 1e6, 700.0, 0.0])
@pytest.mark.parametrize("y", [1.0, -1.0])
def test_extremes_are_exact(z, y):
    m = y * z
    assert Logistic().value(z, y) == pytest.approx(max(-m, 0.0) + math.log1p(math.exp(-abs(m))), rel=1e-15)
    assert Logistic().slope(z, y) == pytest.approx(-y * (0.5 if m == 0 else 1.0 if m < 0 else math.exp(-m)), rel=1e-15)
    assert Hinge().value(z, y) == max(0.0, 1.0 - m)
    assert math.isfinite(SmoothedHinge(1e-3).value(z, y))


def test_tails_keep_their_relative_accuracy():
    """log(1 + e^-m) = e^-m - e^-2m/2 + ...: far out the first term alone is right to 1e-16."""
    for m in (40.0, 100.0, 300.0, 700.0):
        assert Logistic().value(m, 1.0) == pytest.approx(math.exp(-m), rel=1e-15)
        assert Logistic().slope(-m, -1.0) == pytest.approx(math.exp(-m), rel=1e-15)
        assert Logistic().curvature(m, 1.0) == pytest.approx(math.exp(-m), rel=1e-15)


# ---------------------------------------------------------------- conjugates


@pytest.mark.parametrize("loss", SCALAR, ids=name)
@given(z=wide, x=wide, s=sign, real=wide)
def test_fenchel_young(loss, z, x, s, real):
    """l(x) + l*(a) >= a x for every x, with equality at a = l'(x)."""
    y, z, x = label_for(loss, s, real), score_for(loss, z), score_for(loss, x)
    a = loss.slope(z, y)
    conjugate = loss.conjugate(a, y)
    assert math.isfinite(conjugate)
    terms = abs(loss.value(z, y)) + abs(conjugate) + abs(a * z) + (1e6 if isinstance(loss, Squared) else 0.0)
    assert abs(loss.value(z, y) + conjugate - a * z) <= 1e-14 * (1.0 + terms)
    assert loss.value(x, y) + conjugate - a * x >= -1e-14 * (1.0 + terms + abs(loss.value(x, y)) + abs(a * x))


@given(z=st.lists(wide, min_size=3, max_size=3), x=st.lists(wide, min_size=3, max_size=3), y=st.integers(0, 2))
def test_fenchel_young_softmax(z, x, y):
    loss, z, x, a = Softmax(3), np.array(z), np.array(x), np.empty(3)
    loss.slopes(z, y, a)
    conjugate, size = loss.conjugate(a, y), 1.0 + np.abs(z).sum() + np.abs(x).sum()
    assert abs(loss.value(z, y) + conjugate - a @ z) <= 1e-13 * size
    assert loss.value(x, y) + conjugate - a @ x >= -1e-13 * size


@pytest.mark.parametrize(
    ("loss", "a", "y"),
    [
        (Logistic(), 0.1, 1.0), (Logistic(), -1.1, 1.0), (Logistic(), -0.1, -1.0), (Hinge(), 0.1, 1.0),
        (Hinge(), 1.1, -1.0), (SmoothedHinge(), 0.1, 1.0), (SmoothedHinge(), -1.1, 1.0), (Exponential(), 0.1, 1.0),
    ],
)  # fmt: skip
def test_conjugate_is_infinite_outside_its_domain(loss, a, y):
    """There sup_z a z - l(z, y) grows along a ray; shown by z far out, and claimed by inf."""
    growing = [max(a * z - loss.value(z, y) for z in (-r, r)) for r in (1e2, 3e2, 6e2)]
    assert growing[0] < growing[1] < growing[2]
    assert growing[2] > 10.0
    assert loss.conjugate(a, y) == math.inf


@pytest.mark.parametrize("a", [[0.5, 0.5, 0.0], [-1.5, 0.5, 1.0], [0.1, 0.1, 0.1]])
def test_softmax_conjugate_domain(a):
    """a + e_y must be a distribution, here y = 0; the last two are not, the first neither."""
    assert Softmax(3).conjugate(np.array(a), 0) == math.inf


# ---------------------------------------------------------------- constants


@pytest.mark.parametrize("loss", [Squared(), Logistic(), *SMOOTHED], ids=name)
@given(z=wide, x=wide, s=sign, real=wide)
def test_smoothness_is_never_exceeded(loss, z, x, s, real):
    y = label_for(loss, s, real)
    a, b = loss.slope(z, y), loss.slope(x, y)
    rounding = 4 * EPS * (abs(a) + abs(b) + loss.smoothness * (abs(z) + abs(x) + abs(y)))
    assert abs(a - b) <= loss.smoothness * abs(z - x) + rounding
    assert loss.curvature(z, y) <= loss.smoothness * (1 + 4 * EPS)


@pytest.mark.parametrize("loss", [Squared(), Logistic(), *SMOOTHED], ids=name)
@pytest.mark.parametrize("y", [-1.0, 1.0])
def test_smoothness_is_attained(loss, y):
    z = y * (1.0 - 0.5 * loss.gamma) if isinstance(loss, SmoothedHinge) else 0.0
    h = 1e-4 * min(1.0, 1.0 / loss.smoothness)
    assert (loss.slope(z + h, y) - loss.slope(z - h, y)) / (2 * h) == pytest.approx(loss.smoothness, rel=1e-8)
    assert loss.curvature(z, y) == pytest.approx(loss.smoothness, rel=1e-14)


@pytest.mark.parametrize("C", [2, 3, 5])
def test_softmax_smoothness(C, rng):
    """Largest eigenvalue of the Hessian, by differences of the slopes: 1/2 at two equal halves, never more."""

    def top(z):
        H, a, b = np.empty((C, C)), np.empty(C), np.empty(C)
        for c in range(C):
            e = 1e-5 * np.eye(C)[c]
            Softmax(C).slopes(z + e, 0, a)
            Softmax(C).slopes(z - e, 0, b)
            H[c] = (a - b) / 2e-5
        return np.linalg.eigvalsh(0.5 * (H + H.T))[-1]

    halves = np.full(C, -1e3)
    halves[:2] = 0.0
    assert top(halves) == pytest.approx(Softmax(C).smoothness, abs=1e-9)
    assert max(top(rng.normal(scale=s, size=C)) for s in (0.01, 0.1, 1.0, 10.0) for _ in range(20)) <= 0.5 + 1e-9


@pytest.mark.parametrize("loss", [Logistic(), Hinge(), *SMOOTHED], ids=name)
@given(z=wide, s=sign)
def test_lipschitz(loss, z, s):
    assert abs(loss.slope(z, s)) <= loss.lipschitz
    assert abs(loss.slope(-1e3 * s, s)) == pytest.approx(loss.lipschitz)


def test_softmax_lipschitz_is_approached():
    out = np.empty(3)
    Softmax(3).slopes(np.array([0.0, 1e3, 0.0]), 0, out)
    assert np.linalg.norm(out) == pytest.approx(Softmax(3).lipschitz, rel=1e-15)


def test_infinite_constants():
    assert Squared().lipschitz == Hinge().smoothness == Exponential().smoothness == Exponential().lipschitz == math.inf


# ---------------------------------------------------------------- dual steps
#
# With u = y alpha and v = y (alpha + delta), the derivative of the dual objective in v is an increasing function h.
# The step is optimal if h changes sign within rounding of v. h is written from the conjugates' derivatives, not from
# conjugate values: (l*)'(-alpha) cancels nowhere.


def bracket(h, v, low, high, width):
    """Whether h(v - width) <= 0 <= h(v + width), ends of the domain counting as infinitely steep."""
    left, right = v - width, v + width
    return (left <= low or h(left) <= 0.0) and (right >= high or h(right) >= 0.0)


@given(alpha=wide, z=wide, q=curved, y=wide)
@example(alpha=0.0, z=0.0, q=1.5, y=2.2e-311)
def test_dual_step_squared(alpha, z, q, y):
    """Derivative (alpha + delta) - y + z + q delta = 0."""
    delta = Squared().dual_step(alpha, z, q, y)
    residual = math.fsum([alpha, delta, -y, z, q * delta])
    tiny = (2 + q) * 5e-324  # below 2.2e-308 numbers are multiples of 5e-324, and delta is off by half of that
    assert abs(residual) <= 8 * EPS * (abs(alpha) + abs(y) + abs(z) + (1 + q) * abs(delta)) + tiny


@given(u=unit, z=wide, q=curved, y=sign)
def test_dual_step_logistic(u, z, q, y):
    """Derivative log(v/(1 - v)) + y z + q (v - u)."""
    delta = Logistic().dual_step(y * u, z, q, y)
    v = u + y * delta

    def h(x):
        return math.log(x) - math.log1p(-x) + y * z + q * (x - u)

    assert 0.0 <= v <= 1.0
    inner = min(max(v, 1e-300), 1.0 - EPS / 2)
    steep = q + 1.0 / (inner * (1.0 - inner))
    width = 4 * EPS + 32 * EPS * (abs(math.log(inner)) + abs(math.log1p(-inner)) + abs(z) + q) / steep
    assert bracket(h, v, 0.0, 1.0, width), (v, delta)
    if u == 0.0 and v < 0.5 and v > 1e-290:  # nothing cancels: relative accuracy
        width = 64 * EPS * v * (1.0 + (abs(math.log(v)) + abs(z) + q * v) / (1.0 + q * v))
        assert bracket(h, v, 0.0, 1.0, width), (v, delta)


@given(u=st.sampled_from([0.0]) | st.floats(-8, 3).map(lambda e: 10.0**e), z=wide, q=curved, y=sign)
@example(u=0.0, z=-1e-323, q=10.0, y=1.0)
def test_dual_step_exponential(u, z, q, y):
    """Derivative log v + y z + q (v - u), v > 0, increasing in t = log v."""
    z *= 0.7
    delta = Exponential().dual_step(y * u, z, q, y)
    v = u + y * delta
    assert v >= 0.0 or abs(v) <= 4 * EPS * u

    def h(x):
        return math.log(x) + y * z + q * (x - u)

    inner = max(v, 1e-300)
    width = 4 * EPS * max(u, inner) + 64 * EPS * (abs(math.log(inner)) + abs(z) + q * (inner + u)) / (q + 1.0 / inner)
    assert bracket(h, v, 0.0, math.inf, width), (v, delta)


@pytest.mark.parametrize("gamma", (0.0, *BANDS))
@given(u=unit, z=wide, q=curved, y=sign)
def test_dual_step_hinges(gamma, u, z, q, y):
    """Derivative -1 + gamma v + y z + q (v - u) on [0, 1]; gamma = 0 is the hinge."""
    loss = Hinge() if gamma == 0.0 else SmoothedHinge(gamma)
    delta = loss.dual_step(y * u, z, q, y)
    v = u + y * delta

    def h(x):
        return -1.0 + gamma * x + y * z + q * (x - u)

    assert -EPS <= v <= 1.0 + EPS
    if gamma + q == 0.0:  # linear: the better end, anywhere where it is flat
        assert (h(v) == 0.0) or v == pytest.approx(1.0 if h(0.5) < 0 else 0.0, abs=2 * EPS)
        return
    width = 4 * EPS + 16 * EPS * (1.0 + abs(z) + q + gamma) / (q + gamma)
    assert bracket(h, v, 0.0, 1.0, width), (v, delta)


@pytest.mark.parametrize("loss", [Squared(), Logistic(), Exponential(), Hinge(), SmoothedHinge(0.5)], ids=name)
@given(z=st.floats(-20, 20), u=st.floats(0.01, 0.99), q=st.floats(0.01, 100), y=sign, other=st.floats(0.0, 1.0))
def test_dual_step_beats_every_other_step(loss, z, u, q, y, other):
    """The objective itself, where its terms are of moderate size."""

    def objective(v):
        delta = y * (v - u)
        return loss.conjugate(-(y * u + delta), y) + z * delta + 0.5 * q * delta * delta

    best = u + y * loss.dual_step(y * u, z, q, y)
    best = best if isinstance(loss, (Squared, Exponential)) else min(max(best, 0.0), 1.0)
    assert objective(best) <= objective(other) + 1e-12 * (1.0 + abs(z) + q) * (1.0 + best * best)


# ---------------------------------------------------------------- Python and compiled agree


@pytest.mark.compiled(only="there is nothing compiled to compare with")
@pytest.mark.parametrize("loss", [Squared(), Logistic(), Hinge(), SmoothedHinge(0.5), Exponential()], ids=name)
@pytest.mark.slow
def test_compiled_equals_python(loss, rng):
    scales = np.repeat([1e-3, 1.0, 30.0, 1e3], 50)
    Z = rng.uniform(-1, 1, (200, 2)) * scales[:, None] * (0.7 if isinstance(loss, Exponential) else 1.0)
    y = rng.choice([-1.0, 1.0], 200)
    out = np.empty_like(Z)
    row_losses.row_values(loss, Z, y, out)
    python = np.array([[loss.value(float(z), float(s)) for z in row] for row, s in zip(Z, y, strict=True)])
    np.testing.assert_allclose(out, python, rtol=4 * EPS, atol=1e-300)
    slopes = np.array([[loss.slope(float(z), float(s)) for z in row] for row, s in zip(Z, y, strict=True)])
    row_losses.row_slopes(loss, Z, y)
    np.testing.assert_allclose(Z, slopes, rtol=4 * EPS, atol=1e-300)


@pytest.mark.compiled(only="there is nothing compiled to compare with")
@pytest.mark.slow
def test_compiled_softmax_equals_python(rng):
    loss, Z = Softmax(3), rng.uniform(-1, 1, (100, 6)) * np.repeat([1.0, 1e3], 50)[:, None]
    y, out = rng.integers(0, 3, 100).astype(float), np.empty((100, 2))
    row_losses.row_values(loss, Z, y, out)
    python = [[loss.value(row[:3], s), loss.value(row[3:], s)] for row, s in zip(Z, y, strict=True)]
    np.testing.assert_allclose(out, python, rtol=8 * EPS, atol=2 * EPS)
    slopes = np.empty_like(Z)
    for i in range(100):
        loss.slopes(Z[i, :3], y[i], slopes[i, :3])
        loss.slopes(Z[i, 3:], y[i], slopes[i, 3:])
    row_losses.row_slopes(loss, Z, y)
    np.testing.assert_allclose(Z, slopes, rtol=8 * EPS, atol=2 * EPS)


# ---------------------------------------------------------------- labels, equality


def test_batches_have_the_slopes_of_their_rows(rng):
    """Up to three rows are left over from groups of eight, or a group is filled up; nothing is written beyond it."""
    X, y = rng.normal(size=(40, 3)), rng.choice([-1.0, 1.0], 40)
    w = rng.normal(size=3)
    for size in range(1, 26):
        rows, c, t = rng.permutation(40)[:size], np.full(40, np.nan), np.full(40, np.nan)
        batches.batch_slopes(Logistic(), X, y, rows, 0.5, w, c, t)
        expected = [0.5 * Logistic().slope(X[i] @ w, y[i]) for i in rows]
        np.testing.assert_allclose(c[:size], expected, rtol=1e-14)
        assert np.isnan(c[size + (8 - size % 8 if size % 8 > 3 else 0) :]).all()


@pytest.mark.parametrize("loss", SIGNS, ids=name)
def test_sign_losses_check_labels(loss):
    who = type(loss).__name__
    loss.check_labels(np.array([1.0, -1.0]))
    loss.check_labels(np.array([1.0]))
    for y, cure in (([0, 1], "2*y - 1"), ([0, 1, 2], "Softmax"), ([1, 2], "Softmax"), ([-1, 0, 0.5], "-1 and +1")):
        with pytest.raises(ValueError, match=who) as caught:
            loss.check_labels(np.array(y, float))
        assert cure in str(caught.value)
        assert "-1 or +1" in str(caught.value)


def test_softmax_checks_labels():
    Softmax(3).check_labels(np.array([0.0, 1.0, 2.0]))
    Softmax(3).check_labels(np.array([1.0]))  # a class may be missing
    for y in ([0.5, 1.0], [-1.0, 0.0], [0.0, 3.0]):
        with pytest.raises(ValueError, match=r"Softmax: labels must be whole numbers 0, ..., 2"):
            Softmax(3).check_labels(np.array(y))


def test_losses_are_equal_only_to_their_like():
    assert Logistic() == Logistic()
    assert Logistic() != Squared()
    assert len({Logistic(), Squared(), Hinge(), Logistic()}) == 3
    assert SmoothedHinge(0.5) != SmoothedHinge(1.0)
    assert SmoothedHinge(0.5) == SmoothedHinge(0.5)
    assert Softmax(3) != (3,)


class Quartic(NamedTuple):
    """A loss of a user: (z - y)^4 / 4."""

    def value(self, z, y):
        return 0.25 * (z - y) ** 4

    def slope(self, z, y):
        return (z - y) ** 3


def test_dispatch_reaches_a_users_loss():
    assert dispatch.value(Quartic(), 3.0, 1.0) == 4.0
    assert dispatch.slope(Quartic(), 3.0, 1.0) == 8.0


@pytest.mark.compiled_if_slow
@pytest.mark.parametrize("loss", [Logistic(), Squared(), Hinge(), SmoothedHinge(0.5), Exponential(), Poisson(), Gamma(),
                                  NegativeBinomial(2.0)], ids=repr)  # fmt: skip
def test_no_model_of_nan_has_a_finite_value(loss):
    """Compiled and as Python, without a ridge that would show it."""
    problem = Problem(Federation.from_clients([(np.ones((3, 1)), np.ones(3))]), loss)
    with np.errstate(all="ignore"):
        assert not np.isfinite(problem.value(np.array([[math.nan]]))).any()
    assert not math.isfinite(loss.value(math.nan, 1.0))


@pytest.mark.parametrize(
    "compiled", [False, pytest.param(True, marks=pytest.mark.compiled(only="one of the two is compiled"))]
)
def test_exp_is_accurate_and_keeps_nan(compiled):
    """Against math.exp over the whole range: relative error below 5e-16; clamped ends; NaN stays NaN."""
    from fedconvex.kernels.cache import kernel
    from fedconvex.losses.stable import exp

    f = exp
    if compiled:
        from fedconvex.kernels import dispatch, row_losses  # noqa: F401  registers exp

        @kernel
        def f(x):
            return exp(x)

    x = np.concatenate([np.linspace(-708, 708, 4001), np.linspace(-1, 1, 2001), [0.0, -0.0, 1e-300]])
    got = np.array([f(v) for v in x])
    want = np.array([math.exp(v) for v in x])
    assert np.max(np.abs(got / want - 1)) < 5e-16
    assert f(0.0) == 1.0
    assert math.isnan(f(math.nan))
    assert f(-1e300) == f(-708.0) < 1e-307
    assert f(1e300) == f(708.0) > 1e307


def test_roots_of_dual_steps_end_where_rounding_begins(rng):
    """t + z + q (s(t) - u) = 0 in 40 digits: off by roundings of its terms only, though the last step was 1e-8 long."""
    for _ in range(200):
        q, z, u = 10.0 ** rng.uniform(-8, 8), rng.normal() * 10.0 ** rng.uniform(-3, 2), rng.choice([0.0, 1.0, 0.3])
        t = logit_root(z, q, u)
        with mpmath.workdps(40):
            s = 1 / (1 + mpmath.exp(-mpmath.mpf(t)))
            assert abs(t + mpmath.mpf(z) + q * (s - u)) <= 1.5e-15 * (abs(t) + abs(z) + q * (s + u)), (q, z, u)
        t = log_root_between(q, z)
        with mpmath.workdps(40):
            grown = q * mpmath.exp(mpmath.mpf(t))
            assert abs(t + grown - mpmath.mpf(z)) <= 1.5e-15 * (abs(t) + abs(z) + grown), (q, z)


@pytest.mark.parametrize("q", [1.0, 1e29, 1e31, 1e100, 1e307])
@pytest.mark.parametrize("z", [0.0, 3.0, -3.0])
def test_roots_of_dual_steps_where_newton_starts_hundreds_of_steps_away(q, z):
    """t + q e^t = z, and t + z + q s(t) = 0, by what is left of q: Newton's method moves t by one a step."""
    t = log_root_between(q, z)
    np.testing.assert_allclose(q * math.exp(t), z - t, rtol=1e-12)
    t = logit_root(z, q, 0.0)
    np.testing.assert_allclose(q * math.exp(t) / (1.0 + math.exp(t)), -(t + z), rtol=1e-12)
    for u in (0.0, 1.0):  # at u = 1 by symmetry: no digits of s near 1 are lost, however large q
        np.testing.assert_allclose(logit_root(z, q, u), -logit_root(-z, q, 1.0 - u), rtol=1e-14)
