"""The gradient of a free energy with what rounding may do to it, so that its certificate holds in double precision.

A Gaussian is its mean m and its precision Lam as they are stored. With the root C of its covariance, Lam C is lower
triangular with the diagonal 1/C_jj, so that the gradient in C is the upper triangle of (P + H - Lam) C: nothing cancels
that is not small. Means of scores x'm are off by at most n eps |x|'|m|, n the number of terms. The root of a diagonal q
is off by some eps of itself. Of a full q: with R = C'Lam C - I for the computed C and r = ‖R‖_F, the rounding of R
included, r <= 1/4, the exact root is C T, T triangular with T'(I + R)T = I and ‖T - I‖_F <= 2 r: T^{-1} = I + E is the
Cholesky factor of I + R, and E + E' + E'E = R gives sqrt 2 ‖E‖ <= r + ‖E‖^2. So sd = ‖C'x‖ is off by 2 r of itself.
Slopes and curvatures of rows follow by their Lipschitz constants in (mu, sd), sums over rows by the sizes of their
terms. Constants are at least twice what is needed, which makes up for products of errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.solvers.posteriors.expected_losses import ExpectedLoss
from fedconvex.solvers.posteriors.free_energy import Rows
from fedconvex.solvers.posteriors.gaussians import Gaussian, roots

EPS = float(np.finfo(float).eps)
_ROWS = 1024  # at a time, of as many clients of equal size as have them


class Parts(NamedTuple):
    """Expected losses of clients, their slopes X'l' and curvatures X' diag(l'') X; or what these may be off by."""

    value: Any  # (...)
    slope: np.ndarray  # (..., d)
    curvature: np.ndarray  # (..., d) or (..., d, d)


class Block(NamedTuple):
    """What belongs to q, or to the c_k; with a first axis to several of these."""

    at: Gaussian
    prior: Gaussian
    slope: np.ndarray  # X'l' of its rows
    H: np.ndarray  # their curvature, in the shape of the precisions
    prior_root: float  # `root_error` of the prior


def gradient_bound(offs: Parts, blocks: Sequence[tuple[Block, Any]]) -> tuple[float, float]:
    """Return what the norm of a free energy's gradient is at most, in means and roots, and what its value is off by.

    Parameters
    ----------
    offs : Parts
        Of the clients, the first axis.
    blocks : sequence of (Block, root error)
        That of q and, with private parameters, the one of all c_k.
    """
    total = Parts(*(v.sum(axis=0) for v in offs))
    found = [block_bound(b, root, off) for (b, root), off in zip(blocks, (total, offs), strict=False)]
    norm, value = np.sqrt(sum(np.sum(np.square(norms)) for norms, _ in found)), sum(np.sum(v) for _, v in found)
    return float(norm), float(value + total.value)


def least_eigenvalue(P: np.ndarray) -> float:
    """Return a lower bound of the least eigenvalue of a precision (d,) or (d, d): less what rounding may add."""
    if P.ndim == 1:
        return float(P.min())
    found = np.linalg.eigvalsh(P)
    return float(found[0] - 4.0 * len(P) * EPS * np.abs(found).max())


def root_error(q: Gaussian) -> Any:
    """Return how far the computed root of q is off, relative in the sense above; inf where nothing is known."""
    full = q.precision.ndim > q.mean.ndim
    C = roots(q.precision, full)[0]
    if not full:
        return np.full(q.mean.shape[:-1], 4.0 * EPS)[()]
    T, d = np.swapaxes(C, -1, -2), C.shape[-1]
    sizes = np.abs(T) @ np.abs(q.precision) @ np.abs(C)
    r = _norm(T @ q.precision @ C - np.eye(d), 2) + (2 * d + 4) * EPS * _norm(sizes, 2)
    return np.where(r <= 0.25, 2.0 * r, np.inf)[()]


def _norm(A: np.ndarray, axes: int) -> Any:
    """Return Euclidean norms over the last axes."""
    return np.sqrt(np.sum(A * A, axis=tuple(range(-axes, 0))))


def _times(A: np.ndarray, v: np.ndarray, diagonal: bool) -> np.ndarray:
    return A * v if diagonal else (A @ v[..., None])[..., 0]


def all_parts(
    expected: ExpectedLoss, clients: Sequence[Rows], blocks: Sequence[tuple[Gaussian, Any]], full: bool
) -> tuple[Parts, Parts]:
    """Return the parts of all clients, nothing of whose scores is held fixed, and what they may be off by.

    Parameters
    ----------
    expected : ExpectedLoss
    clients : sequence of Rows
    blocks : sequence of (Gaussian, root error)
        q and, with private parameters, all c_k, with a first axis of one and of the clients.
    full : bool
        Whether curvatures are matrices.
    """
    K, d = len(clients), clients[0].X.shape[1]
    terms, shape = K + sum(len(rows.y) for rows in clients), (K, d, d) if full else (K, d)
    found, off = (Parts(np.empty(K), np.empty((K, d)), np.empty(shape)) for _ in range(2))
    for who in _alike(clients):
        X, y, weight = (np.array([clients[k][i] for k in who]) for i in range(3))
        mine = [tuple(g if len(g) == 1 else g[who] for g in (*q, root)) for q, root in blocks]
        given = [(Gaussian(m, P), root) for m, P, root in mine]
        for into, values in zip(
            (found, off), some_parts(expected, Rows(X, y, weight), given, full, terms), strict=True
        ):
            for a, v in zip(into, values, strict=True):
                a[who] = v
    return found, off


def _alike(clients: Sequence[Rows]) -> Iterator[list[int]]:
    """Yield clients with equally many rows, some at a time."""
    sizes: dict[int, list[int]] = {}
    for k, rows in enumerate(clients):
        sizes.setdefault(len(rows.y), []).append(k)
    for n, who in sizes.items():
        at_once = max(1, _ROWS // max(n, 1))
        yield from (who[first : first + at_once] for first in range(0, len(who), at_once))


def some_parts(
    expected: ExpectedLoss, rows: Rows, blocks: Sequence[tuple[Gaussian, Any]], full: bool, terms: int
) -> tuple[Parts, Parts]:
    """Return `all_parts` of clients with equally many rows, (K, n, d) and (K, n); terms: length of sums over them."""
    X, y, weight = rows[:3]
    sizes = np.abs(X)
    mu, v, off_mu, off_sd = np.zeros((4, *y.shape))
    for (m, P), root in blocks:
        C, count, wide = roots(P, P.ndim > m.ndim)[0], (m.shape[-1] + 6) * EPS, np.asarray(root)[:, None]
        if P.ndim > m.ndim:
            own, size = np.sum((X @ C) ** 2, axis=-1), _norm(sizes @ np.abs(C), 1)
        else:
            own = ((X * X) @ (C * C)[:, :, None])[:, :, 0]
            size = np.sqrt(own)
        mu, v = mu + (X @ m[:, :, None])[:, :, 0], v + own
        off_mu = off_mu + count * (sizes @ np.abs(m)[:, :, None])[:, :, 0]
        off_sd = off_sd + count * size + wide * (np.sqrt(own) + count * size)
    moments = [f.reshape(y.shape) for f in expected.moments(mu.ravel(), v.ravel(), y.ravel())]
    off_mu, off_sd = off_mu + 2.0 * EPS * np.abs(mu), off_sd + 2.0 * EPS * np.sqrt(v)
    more = expected.rounding(mu, v, y, off_mu, off_sd, (moments[0], moments[1], moments[2]))
    off = [o + 2.0 * (terms + 4) * EPS * np.abs(f) for f, o in zip(moments, more, strict=True)]
    return Parts(*_sums(X, weight, moments, full)), Parts(*_sums(sizes, weight, off, full))


def _sums(X: np.ndarray, weight: np.ndarray, each: Sequence[np.ndarray], full: bool) -> tuple[np.ndarray, ...]:
    """Return the weighted sums of values, of slopes times rows, and of curvatures times squares of rows."""
    value, slope, bent = (weight * e for e in each)
    H = np.swapaxes(X * bent[:, :, None], 1, 2) @ X if full else (bent[:, None] @ (X * X))[:, 0]
    return value.sum(axis=1), (slope[:, None] @ X)[:, 0], H


def block_bound(block: Block, root: Any, off: Parts) -> tuple[Any, Any]:
    """Return what the norm of the gradient in a block's mean and root is at most, and what its divergence is off by."""
    (m, Lam), prior, slope, H, prior_root = block
    P, away, d, diagonal = prior.precision, m - prior.mean, m.shape[-1], H.ndim == slope.ndim
    C, few, axes = roots(Lam, not diagonal)[0], (2 * d + 16) * EPS, 1 if diagonal else 2
    pull = _times(np.abs(P), np.abs(away), diagonal)
    mean = np.abs(_times(P, away, diagonal) + slope) + off.slope + few * (pull + np.abs(slope))
    turned, unsure = P + H - Lam, off.curvature + 4.0 * EPS * (np.abs(P) + np.abs(H) + np.abs(Lam))
    by_root, size = (turned * C if diagonal else np.triu(turned @ C)), np.abs(C)
    doubt = unsure * size if diagonal else np.triu((unsure + few * np.abs(turned)) @ size)
    whole = _norm(turned * size if diagonal else np.abs(turned) @ size, axes)  # what an error of the root turns
    bent = (1.0 + few) * _norm(np.abs(by_root) + doubt, axes) + root * (whole + _norm(doubt, axes))
    ends, P_ends = (size, P) if diagonal else (np.diagonal(a, axis1=-2, axis2=-1) for a in (size, P))
    trace = np.sum(size * (P * size if diagonal else np.abs(P) @ size), axis=tuple(range(-axes, 0)))
    logs = 2.0 * np.abs(np.log(ends)).sum(axis=-1) + np.abs(np.log(P_ends)).sum(axis=-1)
    value = few * (trace + np.sum(np.abs(away) * pull, axis=-1) + d + logs) + root * (trace + d) + prior_root * d
    return (1.0 + few) * np.hypot(_norm(mean, 1), bent), value
