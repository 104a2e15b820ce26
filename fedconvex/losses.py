"""Losses of linear prediction, with their slopes, curvatures, conjugates and exact dual coordinate steps.

A loss is a NamedTuple of its parameters, and its methods are the mathematics: the same source runs as plain Python and,
through ``kernels.dispatch``, inside compiled kernels. For one output a loss is a function l(z, y) of the
score z = x'w and the label y; for `Softmax` the score is a vector of length C.

Dual conventions
----------------
``conjugate(a, y)`` is l*(a) = sup_z a z - l(z, y), infinite outside its domain. Dual variables follow
alpha = -l'(z), so duals enter as l*(-alpha). ``dual_step(alpha, z, q, y)`` returns the exact minimiser delta of

    l*(-(alpha + delta)) + z delta + (q/2) delta^2,

one step of dual coordinate ascent with score z and curvature q >= 0 (Shalev-Shwartz and Zhang 2013, Section 6; Smith et
al. 2017 for the federated form).

A loss of your own
------------------
Any NamedTuple with a convex ``value`` and its ``slope``, written in the part of Python that Numba compiles, works
wherever these do. What else it declares says what can be done with it: ``curvature`` lets `Problem.solve` find the
exact minimum, ``task`` says what predictions are, and so on; `fedconvex.loss_traits` lists all with their defaults.
Functions that its methods call need ``numba.njit``. The command line takes it by import path, ``--loss module:Class``.

>>> from typing import NamedTuple
>>> from fedconvex.loss_traits import declares, traits
>>> @declares(task="regression", lower_bound=0.0, smoothness=1.0)
... class Huber(NamedTuple):
...     width: float = 1.0
...     def value(self, z, y):
...         r = abs(z - y)
...         return 0.5 * r * r if r <= self.width else self.width * (r - 0.5 * self.width)
...     def slope(self, z, y):
...         return min(max(z - y, -self.width), self.width)
...     def curvature(self, z, y):
...         return 1.0 if abs(z - y) <= self.width else 0.0
>>> traits(Huber()).curved, traits(Huber()).quadratic, traits(Huber()).lipschitz
(True, False, inf)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedconvex._check import bad, real, whole
from fedconvex.entropic import negative_entropy, softmax_step
from fedconvex.loss_traits import declares

__all__ = ["Exponential", "Hinge", "Logistic", "SmoothedHinge", "Softmax", "Squared"]

SQRT2 = math.sqrt(2.0)


def exp(x):
    """e^x to 5e-16 relative on [-708, 708], clamped outside, without branches, so that loops over rows vectorise.

    e^x = 2^k p(r) with k = round(x / ln 2), r = x - k ln 2 in two parts, |r| <= ln(2)/2, and p the Taylor polynomial of
    degree 12, whose first omitted term is r^13/13! < 2e-16. Adding 1.5 * 2^52 rounds, and leaves k in the low bits.
    """
    x = -708.0 if x < -708.0 else x  # written so that NaN passes
    x = 708.0 if x > 708.0 else x
    shifted = x * 1.4426950408889634 + 6755399441055744.0
    k = shifted - 6755399441055744.0
    r = (x - k * 0.6931471803691238) - k * 1.9082149292705877e-10
    s = r * r
    low = (1.0 + r) + s * (1 / 2 + r * (1 / 6))
    mid = (1 / 24 + r * (1 / 120)) + s * (1 / 720 + r * (1 / 5040))
    high = (1 / 40320 + r * (1 / 362880)) + s * (1 / 3628800 + r * (1 / 39916800) + s * (1 / 479001600))
    power = (np.float64(shifted).view(np.int64) + np.int64(1023)) << np.int64(52)
    return float((low + s * s * (mid + s * s * high)) * np.int64(power).view(np.float64))


def softplus(x):
    """log(1 + e^x) to 1e-15 relative, without branches, so that loops over rows vectorise.

    It is max{x, 0} + log(1 + t) with t = e^-|x|, and log(1 + t) = 2 atanh(s) with s = t/(2 + t) <= 1/3. The polynomial
    interpolates atanh(s)/s in s^2 at the ten Chebyshev points of [0, 1/9], to 1e-16.
    """
    t = exp(-abs(x))
    s = t / (2.0 + t)
    u = s * s
    v = u * u
    low = (1.0 + u * 0.33333333333341286) + v * (0.199999999976438 + u * 0.1428571455582858)
    mid = (0.11111095430673142 + u * 0.09091429900236955) + v * (0.07681838124445817 + u * 0.06795652742789947)
    high = 0.04940394524382393 + u * 0.08890381913056651
    return max(x, 0.0) + 2.0 * s * (low + v * v * (mid + v * v * high))


def _check_signs(name: str, y: np.ndarray) -> None:
    if not np.all(np.abs(y) == 1.0):
        seen = np.unique(y)
        if seen.size <= 2 and set(seen.tolist()) <= {0.0, 1.0}:
            cure = "pass 2*y - 1"
        elif np.all(seen == np.round(seen)) and seen.min() >= 0:
            cure = "for several classes use Softmax(n_classes)"
        else:
            cure = "encode the two classes as -1 and +1"
        shown = "{" + ", ".join(f"{v:g}" for v in seen[:6]) + (", ..." if seen.size > 6 else "") + "}"
        raise bad(f"{name}: labels", "be -1 or +1", shown, cure)


@declares(task="regression", lower_bound=0.0, quadratic=True, smoothness=1.0, lipschitz=math.inf)
class Squared(NamedTuple):
    """Squared loss l(z, y) = (z - y)^2 / 2, for real labels.

    Examples
    --------
    >>> from fedconvex import Squared
    >>> Squared().value(3.0, 1.0), Squared().slope(3.0, 1.0)
    (2.0, 2.0)
    """

    def value(self, z, y):
        """Return (z - y)^2 / 2."""
        return 0.5 * (z - y) * (z - y)

    def slope(self, z, y):
        """Return z - y."""
        return z - y

    def curvature(self, z, y):
        """Return 1."""
        return 1.0

    def conjugate(self, a, y):
        """Return a^2/2 + a y."""
        return 0.5 * a * a + a * y

    def dual_step(self, alpha, z, q, y):
        """Return (y - z - alpha) / (1 + q)."""
        return (y - z - alpha) / (1.0 + q)

    def slope_bound(self, value):
        """Return sqrt(2 value): Jensen's inequality."""
        return np.sqrt(2.0 * np.maximum(value, 0.0))

    def check_labels(self, y: np.ndarray) -> None:
        """Accept every finite label."""


@declares(task="classification", lower_bound=0.0, smoothness=0.25, lipschitz=1.0, self_concordance=1.0)
class Logistic(NamedTuple):
    """Logistic loss l(z, y) = log(1 + exp(-y z)), labels -1/+1.

    Examples
    --------
    >>> from fedconvex import Logistic
    >>> Logistic().value(-1000.0, 1.0), Logistic().slope(0.0, 1.0)
    (1000.0, -0.5)
    """

    def value(self, z, y):
        """Return log(1 + exp(-y z)) without overflow."""
        return softplus(-y * z)

    def slope(self, z, y):
        """Return -y / (1 + exp(y z)) without overflow."""
        return -y / (1.0 + exp(y * z))

    def curvature(self, z, y):
        """Return s (1 - s) with s = 1 / (1 + exp(-z))."""
        t = math.exp(-abs(z))
        return t / ((1.0 + t) * (1.0 + t))

    def conjugate(self, a, y):
        """Return u log u + (1 - u) log(1 - u) with u = -y a in [0, 1]."""
        u = -y * a
        if u < 0.0 or u > 1.0:
            return math.inf
        left = u * math.log(u) if u > 0.0 else 0.0
        right = (1.0 - u) * math.log1p(-u) if u < 1.0 else 0.0
        return left + right

    def dual_step(self, alpha, z, q, y):
        """Solve t + y z + q (s(t) - u) = 0 for the logit t of the new u = y alpha, by safeguarded Newton steps."""
        u = y * alpha
        low, high = -y * z - q * (1.0 - u), -y * z + q * u  # s in (0, 1) brackets the root
        t = min(max(-y * z, low), high)
        last = math.inf
        for _ in range(200):
            e = math.exp(-abs(t))
            s = (1.0 if t > 0.0 else e) / (1.0 + e)
            f = t + y * z + q * (s - u)
            if f > 0.0:
                high = t
            else:
                low = t
            new = t - f / (1.0 + q * e / ((1.0 + e) * (1.0 + e)))
            if not (low <= new <= high) or abs(f) > 0.5 * last:  # Newton's method may cycle: halve the bracket
                new = 0.5 * (low + high)
            last = abs(f)
            if abs(new - t) <= 1e-15 * (1.0 + abs(t)):
                t = new
                break
            t = new
        e = math.exp(-abs(t))
        return y * ((1.0 if t > 0.0 else e) / (1.0 + e) - u)

    def scale_slope_range(self, low, high, y):
        """Return inf and sup of z l'(z, y) = -h(y z) over [low, high]: h(t) = t/(1 + e^t) rises up to t = 1.2785."""
        ends = np.sort(np.stack([y * low, y * high]), axis=0)
        h = ends / (1.0 + np.exp(np.minimum(ends, 700.0)))
        inside = (ends[0] <= 1.278464542761074) & (ends[1] >= 1.278464542761074)
        return -np.where(inside, 0.278464542761074, h.max(axis=0)), -h.min(axis=0)

    def slope_range(self, y):
        """Slopes lie between 0 and -y."""
        return np.minimum(-y, 0.0), np.maximum(-y, 0.0)

    def least_curvature(self, reach):
        """Curvature falls as |z| grows: return that at the reach."""
        e = np.exp(-reach)
        return e / (1.0 + e) ** 2

    def probabilities(self, z):
        """Return P(y = 1) = 1 / (1 + exp(-z)) for scores (n,)."""
        from scipy.special import expit  # an import that runs need not pay for

        return expit(z)

    def check_labels(self, y: np.ndarray) -> None:
        """Raise ValueError unless every label is -1 or +1."""
        _check_signs("Logistic", y)


@declares(task="classification", lower_bound=0.0, smoothness=math.inf, lipschitz=1.0)
class Hinge(NamedTuple):
    """Hinge loss l(z, y) = max(0, 1 - y z), labels -1/+1.

    Examples
    --------
    >>> from fedconvex import Hinge
    >>> Hinge().value(0.25, 1.0), Hinge().slope(0.25, 1.0), Hinge().smoothness
    (0.75, -1.0, inf)
    """

    def value(self, z, y):
        """Return max(0, 1 - y z)."""
        return max(0.0, 1.0 - y * z)

    def slope(self, z, y):
        """Return the subgradient -y if y z < 1, else 0."""
        return -y if y * z < 1.0 else 0.0

    def conjugate(self, a, y):
        """Return y a if -1 <= y a <= 0."""
        return y * a if -1.0 <= y * a <= 0.0 else math.inf

    def dual_step(self, alpha, z, q, y):
        """Clip u + (1 - y z)/q to [0, 1], u = y alpha; with q = 0 go to the better end."""
        u, r = y * alpha, 1.0 - y * z
        if q > 0.0:
            new = min(max(u + r / q, 0.0), 1.0)
        else:
            new = 1.0 if r > 0.0 else (0.0 if r < 0.0 else u)
        return y * (new - u)

    def slope_range(self, y):
        """Slopes lie between 0 and -y."""
        return np.minimum(-y, 0.0), np.maximum(-y, 0.0)

    def smoothed(self, width):
        """Return the smoothed hinge of that width: it lies below the hinge by at most width/2."""
        return SmoothedHinge(width)

    def check_labels(self, y: np.ndarray) -> None:
        """Raise ValueError unless every label is -1 or +1."""
        _check_signs("Hinge", y)


@declares(task="classification", lower_bound=0.0, lipschitz=1.0, banded=True)
class SmoothedHinge(NamedTuple):
    """Hinge loss smoothed over a band of width gamma: its conjugate is that of the hinge plus (gamma/2) a^2.

    With m = 1 - y z: 0 if m <= 0, m^2/(2 gamma) if m <= gamma, m - gamma/2 beyond (Shalev-Shwartz and Zhang 2013).

    Parameters
    ----------
    gamma : float
        Width of the quadratic band, positive.

    Examples
    --------
    >>> from fedconvex import SmoothedHinge
    >>> loss = SmoothedHinge(gamma=0.5)
    >>> loss.value(0.0, 1.0), loss.smoothness
    (0.75, 2.0)
    """

    gamma: float = 1.0

    def value(self, z, y):
        """Return the smoothed hinge at margin y z."""
        m = 1.0 - y * z
        if m <= 0.0:
            return 0.0
        return m * m / (2.0 * self.gamma) if m <= self.gamma else m - 0.5 * self.gamma

    def slope(self, z, y):
        """Return -y clip(m/gamma, 0, 1)."""
        return -y * min(max((1.0 - y * z) / self.gamma, 0.0), 1.0)

    def curvature(self, z, y):
        """Return 1/gamma inside the band, else 0 (an element of the generalised second derivative)."""
        m = 1.0 - y * z
        return 1.0 / self.gamma if 0.0 < m <= self.gamma else 0.0

    def conjugate(self, a, y):
        """Return y a + (gamma/2) a^2 if -1 <= y a <= 0."""
        return y * a + 0.5 * self.gamma * a * a if -1.0 <= y * a <= 0.0 else math.inf

    def dual_step(self, alpha, z, q, y):
        """Clip u + (1 - y z - gamma u)/(gamma + q) to [0, 1], u = y alpha."""
        u = y * alpha
        return y * (min(max(u + (1.0 - y * z - self.gamma * u) / (self.gamma + q), 0.0), 1.0) - u)

    @property
    def smoothness(self) -> float:
        """sup l'' = 1/gamma."""
        return 1.0 / self.gamma

    def slope_range(self, y):
        """Slopes lie between 0 and -y."""
        return np.minimum(-y, 0.0), np.maximum(-y, 0.0)

    def check_labels(self, y: np.ndarray) -> None:
        """Raise ValueError unless gamma > 0 and every label is -1 or +1."""
        real("SmoothedHinge.gamma", self.gamma, low=0.0, strict=True)
        _check_signs("SmoothedHinge", y)


@declares(
    task="classification", lower_bound=0.0, smoothness=math.inf, lipschitz=math.inf, self_concordance=1.0,
    boosting="exp",
)  # fmt: skip
class Exponential(NamedTuple):
    """Exponential loss l(z, y) = exp(-y z), labels -1/+1 (the loss of AdaBoost).

    Examples
    --------
    >>> from fedconvex import Exponential
    >>> Exponential().value(0.0, 1.0), Exponential().value(-1000.0, 1.0)
    (1.0, inf)
    """

    def value(self, z, y):
        """Return exp(-y z), infinite where it overflows."""
        m = -y * z
        return math.exp(m) if m < 709.78 else math.inf

    def slope(self, z, y):
        """Return -y exp(-y z)."""
        m = -y * z
        return -y * (math.exp(m) if m < 709.78 else math.inf)

    def curvature(self, z, y):
        """Return exp(-y z)."""
        m = -y * z
        return math.exp(m) if m < 709.78 else math.inf

    def conjugate(self, a, y):
        """Return u log u - u with u = -y a >= 0."""
        u = -y * a
        if u < 0.0:
            return math.inf
        return u * math.log(u) - u if u > 0.0 else 0.0

    def dual_step(self, alpha, z, q, y):
        """Solve t + q exp(t) = q u - y z for t = log of the new u = y alpha, by safeguarded Newton steps."""
        u = y * alpha
        s = q * u - y * z
        # f(t) = t + q e^t - s is convex with f' >= 1: Newton's method from the right of the root is monotone
        high = s
        if q > 0.0 and s > 0.0:  # t >= 0 implies q e^t <= s
            high = min(s, math.log(s / q) if s > q else 0.0)
        low = high - max(high + q * math.exp(min(high, 700.0)) - s, 0.0)
        t = high
        for _ in range(200):
            e = q * math.exp(min(t, 700.0))
            f = t + e - s
            if f > 0.0:
                high = t
            else:
                low = t
            new = t - f / (1.0 + e)
            if not (low <= new <= high):
                new = 0.5 * (low + high)
            if abs(new - t) <= 1e-15 * (1.0 + abs(t)):
                t = new
                break
            t = new
        return y * (math.exp(min(t, 709.0)) - u)

    def slope_bound(self, value):
        """|l'| = l."""
        return np.abs(value)

    def curvature_below(self, value):
        """l'' = l."""
        return value

    def probabilities(self, z):
        """Return P(y = 1) = 1 / (1 + exp(-2 z)): z is half the logarithm of the odds (Friedman, Hastie, Tibshirani)."""
        from scipy.special import expit

        return expit(2.0 * z)

    def check_labels(self, y: np.ndarray) -> None:
        """Raise ValueError unless every label is -1 or +1."""
        _check_signs("Exponential", y)


@declares(
    task="classification", lower_bound=0.0, multinomial=True, smoothness=0.5, lipschitz=SQRT2, self_concordance=SQRT2
)
class Softmax(NamedTuple):
    """Multinomial logistic loss l(z, y) = log sum_c exp(z_c) - z_y for scores z (C,) and labels 0, ..., C-1.

    Parameters
    ----------
    n_classes : int
        Number of classes C >= 2; models are (C, d).

    Notes
    -----
    sup of the largest eigenvalue of diag(p) - p p' is 1/2 (Bohning 1992), attained at two equal halves, and sup of the
    Euclidean norm of softmax(z) - e_y is sqrt 2.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Softmax
    >>> float(Softmax(2).value(np.array([0.0, 1000.0]), 0))
    1000.0
    """

    n_classes: int

    def value(self, z, y):
        """Return log sum_c exp(z_c) - z_y, shifted by the largest score."""
        top = z[0]
        for c in range(1, self.n_classes):
            top = max(top, z[c])
        total = 0.0
        for c in range(self.n_classes):
            total += math.exp(z[c] - top)
        return math.log(total) + (top - z[int(y)])

    def slopes(self, z, y, out):
        """Write softmax(z) - e_y into out (C,), which may be z itself."""
        label = int(y)
        top = z[0]
        for c in range(1, self.n_classes):
            top = max(top, z[c])
        total = 0.0
        for c in range(self.n_classes):
            out[c] = math.exp(z[c] - top)
            total += out[c]
        for c in range(self.n_classes):
            out[c] /= total
        out[label] -= 1.0

    def conjugate(self, a, y):
        """Return sum_c p_c log p_c with p = a + e_y, if p is a distribution (to 1e-12)."""
        return negative_entropy(a, int(y))

    def dual_steps(self, alpha, z, q, y):
        """Move alpha (C,) to the minimiser of l*(-alpha) + <z, alpha> + (q/2) ‖step‖^2; z (C,) becomes the step."""
        softmax_step(alpha, z, q, int(y))

    def probabilities(self, z):
        """Return softmax(z), (n, C), for scores (n, C)."""
        p = np.exp(z - z.max(axis=1, keepdims=True))
        return p / p.sum(axis=1, keepdims=True)

    def check_labels(self, y: np.ndarray) -> None:
        """Raise unless the labels are whole numbers in 0, ..., n_classes - 1."""
        whole("Softmax.n_classes", self.n_classes, low=2)
        wrong = (y != np.floor(y)) | (y < 0) | (y >= self.n_classes)
        if wrong.any():
            got = f"{y[wrong][0]:g} at row {int(np.argmax(wrong))}"
            cure = "renumber them, for example numpy.unique(y, return_inverse=True)[1]"
            raise bad("Softmax: labels", f"be whole numbers 0, ..., {self.n_classes - 1}", got, cure)
