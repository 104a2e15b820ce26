"""The entropic proximal step on the simplex, and the dual of the multinomial logistic loss that it is a step of.

A row with label y has the dual variables alpha = e_y - p for a distribution p, and l*(-alpha) = sum_k p_k log p_k.

p minimises sum_k p_k log p_k - <s, p> + (q/2) ‖p‖^2 over distributions p exactly if u_k + q e^{u_k} = s_k - nu for
u = log p and some nu. The root u of u + q e^u = t is that of an increasing convex function: Newton's method from its
right decreases to it. e^u increases in t and is convex, so sum_k p_k(nu) - 1 is convex and decreases in nu: Newton's
method from a nu that is too small increases to the solution. Neither needs a safeguard.
"""

from __future__ import annotations

import math

MOST = 100  # Newton steps; up to six are usual


def log_root(t, q, log_q):  # type: ignore[no-untyped-def]
    """Return the u with u + q e^u = t, for q > 0.

    x = q e^u solves log x + x = L = t + log q, so that x <= L where L > 1: then u starts at log L - log q, else at t.
    """
    L = t + log_q
    u = math.log(L) - log_q if L > 1.0 else t
    for _ in range(MOST):
        x = q * math.exp(u)
        step = (u + x - t) / (1.0 + x)
        u -= step
        if step <= 1e-15 * (1.0 + abs(u)):
            break
    return u


def entropic_step(s, q):  # type: ignore[no-untyped-def]
    """Replace s (C,) by the distribution p that minimises sum_k p_k log p_k - <s, p> + (q/2) ‖p‖^2, q >= 0.

    nu starts at log sum_k e^{s_k} - q, which is too small because no p_k is above one.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.entropic import entropic_step
    >>> p = np.array([0.5, 0.25, 0.25])
    >>> s = np.log(p) + 2.0 * p + 7.0
    >>> entropic_step(s, 2.0)
    >>> s.round(12).tolist()
    [0.5, 0.25, 0.25]
    """
    top, total = s[0], 0.0
    for k in range(1, s.size):
        top = max(top, s[k])
    for k in range(s.size):
        s[k] -= top
        total += math.exp(s[k])
    nu = math.log(total) - q
    log_q = math.log(q) if q > 0.0 else 0.0
    for _ in range(MOST if q > 0.0 else 0):
        above, slope = -1.0, 0.0
        for k in range(s.size):
            p = math.exp(log_root(s[k] - nu, q, log_q))
            above += p
            slope += p / (1.0 + q * p)
        nu += above / slope
        if above <= 1e-15 * slope * (1.0 + abs(nu)):
            break
    total = 0.0
    for k in range(s.size):
        s[k] = math.exp(log_root(s[k] - nu, q, log_q) if q > 0.0 else s[k])
        total += s[k]
    for k in range(s.size):
        s[k] /= total


def softmax_step(alpha, z, q, label):  # type: ignore[no-untyped-def]
    """Move alpha (C,) to the minimiser of l*(-alpha) + <z, alpha> + (q/2) ‖step‖^2; z becomes the step.

    With p = e_y - alpha that is `entropic_step` at s = z + q (p before). alpha sums to zero but for rounding.
    """
    for k in range(z.size):
        z[k] += q * ((1.0 if k == label else 0.0) - alpha[k])
    entropic_step(z, q)
    rest = 0.0
    for k in range(z.size):
        if k != label:
            rest += z[k]
            z[k], alpha[k] = -z[k] - alpha[k], -z[k]
    z[label], alpha[label] = rest - alpha[label], rest


def negative_entropy(a, label):  # type: ignore[no-untyped-def]
    """Return sum_k p_k log p_k for p = a + e_y, if p is a distribution (to 1e-12), else infinity."""
    total, value, least = 0.0, 0.0, 0.0
    for k in range(a.size):
        p = a[k] + 1.0 if k == label else a[k]
        total += p
        least = min(least, p)
        value += p * math.log(p) if p > 0.0 else 0.0
    return value if least >= -1e-12 and abs(total - 1.0) <= 1e-12 else math.inf
