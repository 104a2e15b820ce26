"""Exact second moment of the incremental noise: what gradients at local iterates differ by from those at the start.

Setting. From w every client takes E_k steps w_e = w_{e-1} - a_k g_e(w_{e-1}) on fresh batches, a_k = mu/E_k, and
d_k = (1/E_k) sum_e [g_e(w_{e-1}) - g_e(w)] = (1/E_k) sum_e H_e (w_{e-1} - w), g_e and H_e of the same batch; d is the
average of d_k over who takes part.

Statement. Let v = w_{e-1} - w and s = sum_e H_e v so far, z = (v, s, 1). A step is z <- (I + B) z with B the mean over
the batch of B_n = [[-a H_n, 0, -a g_n], [H_n, 0, 0], [0, 0, 0]], so that, as for `Moments`,

    E[z] <- (I + Bbar) E[z],   Z <- (I + Bbar) Z (I + Bbar)' + phi (mean_n B_n Z B_n' - Bbar Z Bbar'),

from z = (0, 0, 1), and E‖d‖^2 follows from E[s_k], E[s_k s_k'] and the moments of the server's weights. Nothing is
divided by mu and no two models are subtracted: the result is accurate for steps of any size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex._check import bad, instance, real, vector
from fedconvex.constants import noise_factor
from fedconvex.problems import Problem
from fedconvex.theory.moments.weights import Mixing, mixing_of, per_client

UNIT = 8.0 * float(np.finfo(float).eps)


def incremental_noise2(
    problem: Problem,
    w: np.ndarray,
    *,
    step_size: float,
    participation: Any = None,
    batch_size: Any = None,
    local_steps: Any = 1,
) -> tuple[float, float]:
    """Return E‖d‖^2 given w, on least squares, and how far double precision may have moved it.

    Parameters
    ----------
    problem : Problem
        With squared loss.
    w : array (d,)
    step_size : float
        mu; a local step is mu/E_k.
    participation, batch_size, local_steps
        As for `Moments`; batches are drawn without replacement.

    Raises
    ------
    ValueError, TypeError
        If w is not one model of the problem, step_size not in (0, 1e100], or averages do not have weights of sum one.

    Examples
    --------
    One client, F = w^2/2, two steps of size mu/2 from w = 1: d = (0 - mu/2)/2.

    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.moments import incremental_noise2
    >>> problem = Problem(Federation.from_clients([([[1.0]], [0.0])]), Squared())
    >>> incremental_noise2(problem, np.ones(1), step_size=0.5, local_steps=2)[0] == (0.5 / 4) ** 2
    True
    """
    instance("incremental_noise2: problem", problem, Problem)
    w = vector("incremental_noise2: w", w, problem.federation.d)
    step_size = real("incremental_noise2: step_size", step_size, low=0.0, high=1e100, strict=True)
    fed, d, mixing = problem.federation, w.size, _averaging(participation, problem)
    B = fed.sizes if batch_size is None else per_client("incremental_noise2: batch_size", batch_size, fed.K)
    phi = np.broadcast_to(noise_factor(fed.sizes, B, False), (fed.K,))
    steps = per_client("incremental_noise2: local_steps", local_steps, fed.K)
    first, second, off, lost = np.zeros((fed.K, d)), np.zeros(fed.K), 0.0, 0.0
    for k in range(fed.K):
        (X, y), E = fed.client_rows(k), int(steps[k])
        r, a = X @ w - y, step_size / E
        first[k], second[k] = _client(X, problem.weigh(k, X), r, w, problem.ridge, a, float(phi[k]), E)
        heavy, length = problem.weigh(k, norms := np.linalg.norm(X, axis=1)), float(np.linalg.norm(w))
        push = UNIT * (np.mean(heavy * (2.0 * norms * length + np.abs(r))) + problem.l2 * length)
        off = max(off, (float(np.mean(heavy * norms)) + problem.l2) * step_size * float(push))
        longest = (float(np.max(heavy * norms)) + problem.l2) * step_size  # of variances, equal squares are subtracted
        lost += UNIT * E * float(phi[k]) * float(np.mean((heavy * r) ** 2)) * longest**2
    own = mixing.scale @ mixing.u**2
    apart = float(mixing.own @ second - own @ np.sum(first**2, axis=1))
    value = max(apart + float(mixing.scale @ np.sum((mixing.u @ first) ** 2, axis=1)), 0.0)
    size = float(mixing.own @ second + own @ second) * (2 * d + 1) * int(steps.max())
    return value, UNIT * size + lost + 2.0 * float(np.sqrt(value)) * off + off**2


def _averaging(participation: Any, problem: Problem) -> Mixing:
    """Return how clients are averaged, with weights of sum one."""
    mixing = mixing_of(participation, problem)
    if mixing.left is not None:
        raise bad("incremental_noise2: participation", "have weights that sum to one", f"{participation!r}")
    return mixing


def _client(
    X: np.ndarray, sX: np.ndarray, r: np.ndarray, w: np.ndarray, ridge: Any, a: float, phi: float, E: int
) -> tuple[np.ndarray, float]:
    """Return E[s/E] (d,) and E‖s/E‖^2 of a client with residuals r at w; sX: rows times their relative weights."""
    n, d = X.shape
    H = sX.T @ X / n
    g = sX.T @ r / n
    one, P = np.eye(2 * d + 1), np.zeros((2 * d, 2 * d + 1))  # P: the mean of the rows' part, the ridge apart
    P[:d, :d], P[:d, -1], P[d:, :d] = -a * H, -a * g, H
    one[: 2 * d] += P
    one[:d, :d] -= a * ridge * np.eye(d)
    one[:d, -1] -= a * ridge * w
    one[d : 2 * d, :d] += ridge * np.eye(d)
    z, Z = np.zeros(2 * d + 1), np.zeros((2 * d + 1, 2 * d + 1))
    z[-1] = Z[-1, -1] = 1.0
    u = np.zeros((2, n, 2 * d + 1))  # a row's residual and its x'v, as functions of z
    u[:, :, :d], u[0, :, -1] = X, r
    for _ in range(E):
        moved = one @ Z @ one.T
        if phi > 0.0:
            q = np.einsum("ani,ij,bnj->abn", u, Z, u)
            blocks = np.einsum("abn,ni,nj->aibj", q, sX, sX) / n * np.array([-a, 1.0])[:, None, None, None]
            noise = (blocks * np.array([-a, 1.0])[:, None]).reshape(2 * d, 2 * d) - P @ Z @ P.T
            moved[: 2 * d, : 2 * d] += phi * noise
        z, Z = one @ z, moved
    return z[d : 2 * d] / E, float(np.trace(Z[d : 2 * d, d : 2 * d])) / E**2
