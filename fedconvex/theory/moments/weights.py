"""Who takes part, as the engine sees it: first and second moments of the server's random weights."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, finite, numeric, raw, real, vector, whole, wrong_type
from fedconvex.problems import Problem

WHO = "Moments.participation"
MOST_SAMPLES = 200_000  # samples of clients that are enumerated at most


class WeightMoments(NamedTuple):
    """A participation scheme as the engine sees it: moments of the server's random weights W, which sum to one.

    Parameters
    ----------
    mean : array (K,)
        E[W].
    second : array (K, K)
        E[W W'].

    Examples
    --------
    Two of four clients, drawn uniformly without replacement, averaged with equal weights:

    >>> import numpy as np
    >>> from fedconvex.theory import WeightMoments
    >>> both = 2 / 4 * 1 / 3 * 0.25  # chance that two given clients are drawn, times 1/2 squared
    >>> scheme = WeightMoments(np.full(4, 0.25), np.full((4, 4), both) + np.eye(4) * (0.5 * 0.25 - both))
    >>> float(scheme.second.sum().round(12))  # E (sum W)^2
    1.0
    """

    mean: np.ndarray
    second: np.ndarray


class Mixing(NamedTuple):
    """E[W W'] = sum_r scale_r u_r u_r' off the diagonal, and `own` on it; the rest, 1 - sum W, stays where it was.

    Attributes
    ----------
    mean : array (K,)
        E[W], the mean weights of the clients.
    own : array (K,)
        E[W_k^2].
    scale : array (m,)
        Of each outer product.
    u : array (m, K)
        Their vectors.
    left2 : float
        E[(1 - sum W)^2]: 0 where weights sum to one.
    left : array (K,), optional
        E[(1 - sum W) W_k]; None where weights sum to one.

    Examples
    --------
    Full participation with equal weights: W is certain, and E[W W'] of rank one.

    >>> import numpy as np
    >>> from fedconvex.theory.moments import Mixing
    >>> p = np.full(3, 1 / 3)
    >>> everyone = Mixing(p, p**2, np.ones(1), p[None])
    >>> bool(np.allclose(everyone.u.T @ (everyone.scale[:, None] * everyone.u), np.outer(p, p)))
    True
    """

    mean: np.ndarray  # (K,)
    own: np.ndarray  # (K,)
    scale: np.ndarray  # (m,)
    u: np.ndarray  # (m, K)
    left2: float = 0.0  # E[(1 - sum W)^2]
    left: np.ndarray | None = None  # (K,) E[(1 - sum W) W_k], None for weights that sum to one


def average(mixing: Mixing, Z: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Second moment of the weighted average, from M_k and S_k(Z); the server's w takes part with what is left."""
    own = mixing.scale @ mixing.u**2  # what the rank-one terms put on the diagonal
    out = np.tensordot(mixing.own, second, 1)
    out -= np.tensordot(own, first @ Z @ first.transpose(0, 2, 1), 1)
    for c, u in zip(mixing.scale, mixing.u, strict=True):
        total = np.tensordot(u, first, 1)
        out += c * (total @ Z @ total.T)
    if mixing.left is not None:
        beside = np.tensordot(mixing.left, first, 1) @ Z
        out += mixing.left2 * Z + beside + beside.T
    return np.asarray(out)


def everyone(p: np.ndarray) -> Mixing:
    """Moments of W = p."""
    return Mixing(p, p**2, np.ones(1), p[None])


def uniform(L: int, problem: Problem) -> Mixing:
    """Moments for L different clients, whose weights p_k are scaled to sum to one."""
    p, K = np.asarray(problem.weights), problem.federation.K
    if L == K:
        return everyone(p)
    if problem.equal_weights:
        together = (L - 1) / (L * K * (K - 1))
        return Mixing(np.full(K, 1.0 / K), np.full(K, 1.0 / (L * K)), np.array([together]), np.ones((1, K)))
    samples = math.comb(K, L)
    if samples > MOST_SAMPLES:
        got = f"{L} of {K} with unequal weights, {samples:.3g} samples"
        cure = "pass weights='uniform' to Problem, or sample with replacement (Scheme I)"
        raise bad(WHO, f"have at most {MOST_SAMPLES} samples to enumerate, or equal weights", got, cure)
    chosen = np.array(list(combinations(range(K), L)))
    W = np.zeros((samples, K))
    np.put_along_axis(W, chosen, p[chosen] / p[chosen].sum(axis=1, keepdims=True), axis=1)
    return _given(WeightMoments(W.mean(axis=0), W.T @ W / samples), K)


def proportional(m: int, p: np.ndarray) -> Mixing:
    """Moments for m draws with probabilities p_k, each of weight 1/m."""
    return Mixing(p, p / m + p**2 * (m - 1) / m, np.array([(m - 1) / m]), p[None])


def scaled(m: int, p: np.ndarray) -> Mixing:
    """Moments for m different clients, each of weight p_k K/m."""
    K = p.size
    if m == K:
        return everyone(p)
    together = K * (m - 1) / (m * (K - 1))  # of E[W_k W_j] = together p_k p_j
    own = p**2 * K / m
    left = p - own - together * p * (1.0 - p)  # E W_k - sum_j E[W_k W_j]
    return Mixing(p, own, np.array([together]), p[None], -float(left.sum()), left)


def of_sampling(sampling: str, participants: int, problem: Problem) -> Mixing:
    """Return the moments for a way of sampling that a method declares."""
    p = np.asarray(problem.weights)
    if sampling == "everyone":
        return everyone(p)
    if sampling == "uniform":
        return uniform(participants, problem)
    if sampling == "proportional":
        return proportional(participants, p)
    if sampling == "scaled":
        return scaled(participants, p)
    raise bad("Moments.of: method", "sample uniformly, with probabilities p_k, or not at all", repr(sampling))


def mixing_of(participation: Any, problem: Problem) -> Mixing:
    """Return the moments for participation in any of its spellings."""
    p, K = np.asarray(problem.weights), problem.federation.K
    if isinstance(participation, Mixing):
        return participation
    if participation is None or (isinstance(participation, float) and participation == 1.0):
        return everyone(p)
    if isinstance(participation, WeightMoments):
        return _given(participation, K)
    if hasattr(participation, "draws"):
        return proportional(whole(WHO, participation.draws, low=1), p)
    if isinstance(participation, (float, np.floating)):
        return uniform(max(1, round(real(WHO, participation, low=0.0, high=1.0, strict=True) * K)), problem)
    if getattr(participation, "scaled", False):
        return scaled(whole(WHO, participation.clients, low=1, high=K), p)
    if hasattr(participation, "clients") or isinstance(participation, (int, np.integer)):
        return uniform(whole(WHO, getattr(participation, "clients", participation), low=1, high=K), problem)
    raise wrong_type(WHO, "be a number of clients, a share or a sampling scheme", f"{participation!r}")


def _given(moments: WeightMoments, K: int) -> Mixing:
    """Decompose E[W W'] of any scheme."""
    mean = vector(f"{WHO}: mean", moments.mean, K)
    second = numeric(f"{WHO}: second", moments.second)
    if second.shape != (K, K):
        raise bad(f"{WHO}: second", f"have shape {(K, K)}", f"{second.shape}")
    finite(f"{WHO}: second", second)
    scale = max(1.0, float(np.abs(second).max()))
    low = float(np.linalg.eigvalsh(0.5 * (second + second.T) - np.outer(mean, mean))[0])
    gap = max(np.abs(second - second.T).max(), np.abs(second.sum(axis=1) - mean).max(), abs(mean.sum() - 1.0))
    if gap > 1e-10 * scale or low < -1e-10 * scale:
        got = f"E[W W'] 1 - E[W] or 1'E[W] - 1 up to {gap:.3g}, least eigenvalue of the covariance {low:.3g}"
        raise bad(WHO, "be moments of weights that sum to one", got)
    lam, V = np.linalg.eigh(second)
    keep = lam > 1e-15 * lam[-1]
    return Mixing(mean, np.diag(second).copy(), lam[keep], V[:, keep].T)


def per_client(who: str, x: Any, K: int) -> np.ndarray:
    """Return whole numbers, at least 1, one per client (K,)."""
    v = raw(who, x)
    if v.ndim == 0:
        return np.full(K, whole(who, x, low=1))
    if v.shape != (K,):
        raise bad(who, f"be one number, or one per client ({K})", f"shape {v.shape}")
    if v.dtype.kind not in "iu":
        raise wrong_type(who, "be whole numbers", f"dtype {v.dtype}")
    if v.min() < 1:
        raise bad(who, "be at least 1", int(v.min()))
    return v.astype(np.int64)
