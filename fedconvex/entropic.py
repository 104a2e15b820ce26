"""The entropic proximal step on the simplex, and the dual of the multinomial logistic loss that it is a step of.

A row with label y has the dual variables alpha = e_y - p for a distribution p, and l*(-alpha) = sum_k p_k log p_k.

p minimises sum_k p_k log p_k - <s, p> + (q/2) ‖p‖^2 over distributions p exactly if u_k + q e^{u_k} = s_k - nu for
u = log p and some nu. `near_step` takes Newton steps in (u, nu) together, one exponential a class and step, from a
distribution near the solution; nothing proves that they converge. Where they have not, `entropic_step` nests two
iterations that do. The root u of u + q e^u = t is that of an increasing convex function: Newton's method from its
right decreases to it. e^u increases in t and is convex, so sum_k p_k(nu) - 1 is convex and decreases in nu: Newton's
method from a nu that is too small increases to the solution. Neither needs a safeguard.
"""

from __future__ import annotations

import math

MOST = 100  # Newton steps; up to six are usual
FEW = 20  # Newton steps in (u, nu); three to eight are usual
LEAST = 1e-4  # probability of a class at the start, at least
SURE = 1e-8  # the error after a Newton step of this size is about its square


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


def near_step(s, q, p, u):  # type: ignore[no-untyped-def]
    """Move the distribution p (C,) to the one of `entropic_step`, by Newton steps; say whether they converged. u: room.

    (1 + q p_k) du_k + dnu = r_k = s_k - nu - u_k - q p_k and sum_k p_k du_k = 1 - sum_k p_k, du cut off at 2.
    """
    nu = total = 0.0
    for k in range(s.size):
        p[k] = max(p[k], LEAST)
        u[k] = math.log(p[k])
        total += p[k]
        nu += p[k] * (s[k] - u[k] - q * p[k])
    nu /= total
    for _ in range(FEW):
        above, slope, largest = -1.0, 0.0, 0.0
        for k in range(s.size):
            share = p[k] / (1.0 + q * p[k])
            above += p[k] + share * (s[k] - nu - u[k] - q * p[k])
            slope += share
        nu += above / slope
        for k in range(s.size):
            du = (s[k] - nu - u[k] - q * p[k]) / (1.0 + q * p[k])
            largest = max(largest, abs(du))
            u[k] += min(max(du, -2.0), 2.0)
            p[k] = math.exp(u[k])
        if largest <= SURE:
            return True
    return False


def softmax_step(alpha, z, room, q, label):  # type: ignore[no-untyped-def]
    """Move alpha (C,) to the minimiser of l*(-alpha) + <z, alpha> + (q/2) ‖step‖^2; z becomes the step. room: (2 C,).

    With p = e_y - alpha that is the entropic step at s = z + q (p before), from p before, or for q < 1 from softmax(s),
    which is exact at q = 0. alpha sums to zero but for rounding.
    """
    C, top, total = z.size, -math.inf, 0.0
    p, u = room[:C], room[C : 2 * C]
    for k in range(C):
        p[k] = (1.0 if k == label else 0.0) - alpha[k]
        z[k] += q * p[k]
        top = max(top, z[k])
    if q < 1.0:
        for k in range(C):
            p[k] = math.exp(z[k] - top)
            total += p[k]
        for k in range(C):
            p[k] /= total
    if near_step(z, q, p, u):
        total = 0.0
        for k in range(C):
            total += p[k]
        for k in range(C):
            z[k] = p[k] / total
    else:
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
