"""Functions of losses that neither overflow nor lose digits, and what labels of two classes must be."""

from __future__ import annotations

import math

import numpy as np

from fedconvex._check import bad

_LAST = 1e-8  # a step of Newton's method that ends nearer to the root than rounding does: see `log_root_between`


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


def half_power(y):
    """2^-|y| to 4e-16 relative for |y| <= 1020, clamped beyond, in half of the operations that `exp` takes.

    It is 2^k p(r) with k = round(-|y|), r = -|y| - k exactly, and p the polynomial of degree 10 of least relative error
    on [-1/2, 1/2], 2.2e-16. Adding 1.5 * 2^52 rounds as in `exp`, and its low bits are added to the exponent of p.
    """
    y = -abs(y)
    y = -1020.0 if y < -1020.0 else y  # written so that NaN passes
    shifted = y + 6755399441055744.0
    r = y - (shifted - 6755399441055744.0)
    s = r * r
    even = 0.00015403529961135955 + s * (1.3215662831846104e-06 + s * 7.037279530582804e-09)
    even = 1.0 + s * (0.24022650695908768 + s * (0.00961812910803459 + s * even))
    odd = 0.0013333558228561476 + s * (1.5252658116561384e-05 + s * 1.0208537904552164e-07)
    odd = 0.6931471805599497 + s * (0.05550410866445883 + s * odd)
    bits = np.float64(even + r * odd).view(np.int64)
    return float(np.int64(bits + (np.float64(shifted).view(np.int64) << np.int64(52))).view(np.float64))


def softplus(x):
    """log(1 + e^x) to 1e-15 relative, without branches, so that loops over rows vectorise.

    It is max{x, 0} + log(1 + t) with t = e^-|x|, and log(1 + t) = 2 atanh(s) with s = t/(2 + t) <= 1/3.
    """
    t = exp(-abs(x))
    return max(x, 0.0) + twice_atanh(t / (2.0 + t))


def twice_atanh(s):
    """2 atanh(s) for |s| <= 1/3: the polynomial interpolates atanh(s)/s in s^2 at ten Chebyshev points, to 1e-16."""
    u = s * s
    v = u * u
    low = (1.0 + u * 0.33333333333341286) + v * (0.199999999976438 + u * 0.1428571455582858)
    mid = (0.11111095430673142 + u * 0.09091429900236955) + v * (0.07681838124445817 + u * 0.06795652742789947)
    high = 0.04940394524382393 + u * 0.08890381913056651
    return 2.0 * s * (low + v * v * (mid + v * v * high))


def log1p(q):
    """log(1 + q) for q >= 0 to 1e-15 relative, without branches, so that loops over models vectorise.

    The computed u = 1 + q is 2^k m with m in [2^-1/2, 2^1/2), log m = 2 atanh((m - 1)/(m + 1)), and what was rounded
    off u comes back to first order. Subtracting the bits of 2^-1/2 leaves k; adding 1.5 * 2^52 makes a number of it.
    """
    u = 1.0 + q
    bits = np.float64(u).view(np.int64)
    k = (bits - np.int64(0x3FE6A09E667F3BCD)) >> np.int64(52)
    m = np.int64(bits - (k << np.int64(52))).view(np.float64)
    whole = np.int64(k + np.int64(0x4338000000000000)).view(np.float64) - 6755399441055744.0
    return whole * 0.6931471805599453 + (twice_atanh((m - 1.0) / (m + 1.0)) + (q - (u - 1.0)) / u)


def scaled_exp(c, x):
    """c e^x for c >= 0, infinite where it overflows."""
    if x <= 700.0:
        return c * math.exp(x)
    t = x + math.log(c) if c > 0.0 else -math.inf
    return math.exp(t) if t < 709.0 else math.inf


def excess(t):
    """e^t - 1 - t >= 0 to a few units in the last place, infinite where it overflows."""
    if t > 709.0:
        return math.inf
    if abs(t) > 0.5:
        return math.expm1(t) - t
    tail = 1.0  # sum_k t^k 2/(k + 2)!, whose first omitted term is below 1e-17
    for k in range(15, 2, -1):
        tail = 1.0 + tail * t / k
    return 0.5 * t * t * tail


def log_root_between(q, s):
    """Return the t with t + q e^t = s, for q >= 0, by safeguarded Newton steps from its right.

    t + q e^t is increasing and convex: Newton's method decreases to the root, by one a step where q e^t is large. At
    -log q the function is 1 - log q, so the root is below it, or at most the t with q e^t = s + log q. As |f''| <= f'
    here and in `logit_root`, a step of length h <= 1/2 ends within h^2 of the root: after one of 1e-8 none is needed.
    """
    high = s
    if q > 0.0 and s > 0.0:  # t >= 0 implies q e^t <= s
        high = min(s, math.log(s / q) if s > q else 0.0)
    if q > 1e30:
        high = min(high, math.log(max(s + math.log(q), 1.0)) - math.log(q))
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
        if low <= new <= high:
            if abs(new - t) <= _LAST:
                return new
        else:
            new = 0.5 * (low + high)
            if abs(new - t) <= 1e-15 * (1.0 + abs(t)):
                return new
        t = new
    return t


def logit_root(z, q, u):
    """Return the t with t + z + q (s(t) - u) = 0, s(t) = 1/(1 + e^-t), for q >= 0, by safeguarded Newton steps.

    s - u is (1 - u) - s(-t) for t > 0: with u = 1 nothing cancels. For q of many digits the steps are too many from -z:
    e^t/2 <= s(t) <= e^t for t <= 0, and 1 - s(t) = s(-t).
    """
    low, high = -z - q * (1.0 - u), -z + q * u  # s in (0, 1) brackets the root
    t = min(max(-z, low), high)
    if q > 1e30:
        if high <= 0.5 * q:
            low, high = log_root_between(q, high), min(log_root_between(0.5 * q, high), 0.0)
        else:
            low, high = -min(log_root_between(0.5 * q, -low), 0.0), -log_root_between(q, -low)
        t = high if high <= 0.0 else low
    last = math.inf
    for _ in range(200):
        e = math.exp(-abs(t))
        tail = e / (1.0 + e)  # s(-|t|): near 1 the digits of s are those of 1 - s
        f = t + z + q * ((1.0 - u) - tail if t > 0.0 else tail - u)
        if f > 0.0:
            high = t
        else:
            low = t
        new = t - f / (1.0 + q * e / ((1.0 + e) * (1.0 + e)))
        if low <= new <= high and abs(f) <= 0.5 * last:
            if abs(new - t) <= _LAST:
                return new
        else:  # Newton's method may cycle: halve the bracket
            new = 0.5 * (low + high)
            if abs(new - t) <= 1e-15 * (1.0 + abs(t)):
                return new
        last = abs(f)
        t = new
    return t


def check_signs(name: str, y: np.ndarray) -> None:
    """Raise ValueError, with a cure that fits, unless all labels are -1 or +1."""
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


def check_counts(name: str, y: np.ndarray, positive: bool = False) -> None:
    """Raise ValueError unless all labels are at least zero, or positive."""
    wrong = (y <= 0.0) if positive else (y < 0.0)
    if wrong.any():
        cure = "for labels of any sign use Squared()" if (y < 0.0).any() else "labels of zero fit Poisson()"
        raise bad(f"{name}: labels", "be positive" if positive else "not be negative", f"{y[wrong][0]:g}", cure)
