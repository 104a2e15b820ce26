"""Functions of losses that neither overflow nor lose digits, and what labels of two classes must be."""

from __future__ import annotations

import numpy as np

from fedconvex._check import bad


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
