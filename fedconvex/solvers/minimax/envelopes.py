"""Smooth functions phi of the domains' values, and Newton's method for phi(F(w)).

Over a ball of divergence max <F, lambda> = min over nu >= 0 of nu r + nu log sum_k c_k e^{F_k/nu}, jointly convex in F
and nu. It has kinks where domains tie and nu = 0: with nu >= a least one it has none, lies at most that times r above,
and its gradient is a lambda of the ball. Newton's method follows it as the least nu falls to nothing.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fedconvex.kernels import row_losses
from fedconvex.simplex.uncertainty import KLBall, log_sum_exp, softmax
from fedconvex.solvers.objective import Objective

MAX_ITERATIONS = 200
_LEAST = 10.0 ** -np.arange(1.0, 12.0)  # nu, in units of 1 + the largest value at first
_STOOD = 1e-7  # of the gradients of single domains: what is left of that of phi


class Envelope(NamedTuple):
    """A smooth convex function phi of the domains' values."""

    value: float
    domain_weights: np.ndarray  # (p,) its gradient, domain weights
    curvature: np.ndarray  # (p, p) its Hessian


def softmax_envelope(F: np.ndarray, mu: float) -> Envelope:
    """Return (1/mu) log sum exp(mu F)."""
    q = softmax(F, mu)
    return Envelope(float(log_sum_exp(F, mu)), q, mu * (np.diag(q) - np.outer(q, q)))


def ball_envelope(ball: KLBall, F: np.ndarray, least: float = 0.0) -> Envelope:
    """Return the largest <F, lambda> over the ball, with nu at its best or at least so large."""
    value, mix, nu = ball.tilt(F, least)
    if nu == 0.0 or math.isinf(nu):  # the best vertex, or the centre, whatever F is nearby
        return Envelope(value, mix, np.zeros((mix.size, mix.size)))
    C = (np.diag(mix) - np.outer(mix, mix)) / nu
    if nu == least:
        return Envelope(value, mix, C)
    a = C @ (F - mix @ F)
    return Envelope(value, mix, C - np.outer(a, a) / max(float((F - mix @ F) @ a), 1e-300))


def over_ball(domains: Objective, ball: KLBall, w: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Return model, domain weights and iterations for a ball of divergence, from a model that others have led to."""
    end, mix, iterations = newton(domains, lambda F: ball_envelope(ball, F), w)
    _, J = values_gradients(domains, end)
    if float(np.linalg.norm(mix @ J)) <= _STOOD * float(np.linalg.norm(J, axis=1).max()):
        return end, mix, iterations
    for least in _LEAST * (1.0 + float(np.abs(domains.client_values(domains.unflatten(w))).max())):
        w, mix, more = newton(domains, lambda F, nu=least: ball_envelope(ball, F, nu), w)
        iterations += more
        if ball.tilt(domains.client_values(domains.unflatten(w)))[2] > least:
            break  # no nu was too small: this is the minimum itself
    return w, mix, iterations


def newton(domains: Objective, envelope: Any, w: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Return model, domain weights and iterations of Newton's method for phi(F(w)), with backtracking."""
    F, J = values_gradients(domains, w)
    phi, iterations = envelope(F), 0
    for iterations in range(1, MAX_ITERATIONS + 1):  # noqa: B007
        g = phi.domain_weights @ J
        H = domains.reweighted(phi.domain_weights).flat_hessian(w) + J.T @ phi.curvature @ J
        lam, U = np.linalg.eigh(H)
        keep = lam > 1e-14 * lam[-1]
        step = -(U[:, keep] @ ((U[:, keep].T @ g) / lam[keep]))
        slope, t = float(g @ step), 1.0
        noise = 4e-15 * (1.0 + abs(phi.value))
        if not slope < -1e-3 * noise:
            break
        while True:
            F_new, J_new = values_gradients(domains, w + t * step)
            new = envelope(F_new) if np.isfinite(F_new).all() else phi._replace(value=math.inf)
            if new.value <= phi.value + (noise if -slope <= 1e3 * noise else 1e-4 * t * slope) or t < 1e-12:
                break
            t *= 0.5
        if t < 1e-12:
            break
        w, F, J, phi = w + t * step, F_new, J_new, new
    return w, phi.domain_weights, iterations


def values_gradients(domains: Objective, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the domains' values at a flat model (p,), and their gradients, (p, size): one pass over the rows."""
    p = domains.federation.K
    F, J = row_losses.values_gradients_of(domains, domains.unflatten(w)[None], np.arange(p)[None])
    return F[0], J.reshape(p, -1)
