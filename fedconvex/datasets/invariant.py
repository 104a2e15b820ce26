"""Environments with known invariant and spurious features, as populations and as samples.

A population's second moments are those of d + 1 rows (`federation_of_moments`), so that problems with squared loss on
them are the population's own, without sampling.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex._check import Rng, bad, finite, numeric, real, takes_rng, vector, whole
from fedconvex.federation import Federation


def federation_of_moments(S: Any, b: Any, c: Any) -> Federation:
    """Return d + 1 rows per environment, a client each, whose second moments are the given ones.

    Parameters
    ----------
    S, b, c : arrays (E, d, d), (E, d), (E,)
        E xx', E xy and E y^2 of every environment.

    Raises
    ------
    ValueError
        If [[S, b], [b', c]] is not positive semidefinite.

    Examples
    --------
    >>> from fedconvex.datasets import federation_of_moments
    >>> fed = federation_of_moments([[[2.0]]], [[1.0]], [1.0])
    >>> round(float((fed.X.T @ fed.X)[0, 0] / fed.n), 12), round(float(fed.X[:, 0] @ fed.y / fed.n), 12)
    (2.0, 1.0)
    """
    who = "federation_of_moments"
    S, b, c = numeric(f"{who}: S", S), numeric(f"{who}: b", b), numeric(f"{who}: c", c)
    if S.ndim != 3 or S.shape[1] != S.shape[2] or b.shape != S.shape[:2] or c.shape != S.shape[:1]:
        raise bad(who, "be given shapes (E, d, d), (E, d) and (E,)", f"{S.shape}, {b.shape} and {c.shape}")
    for name, array in (("S", S), ("b", b), ("c", c)):
        finite(f"{who}: {name}", array)
    clients = []
    for e in range(len(S)):
        M = np.block([[S[e], b[e][:, None]], [b[e][None, :], np.array([[c[e]]])]])
        lam, V = np.linalg.eigh(M)
        if np.abs(M - M.T).max() > 1e-12 * np.abs(M).max() or lam[0] < -1e-12 * np.abs(lam).max():
            raise bad(f"{who}: moments of environment {e}", "be positive semidefinite", f"eigenvalue {lam[0]:g}")
        try:
            root = np.linalg.cholesky(M)
        except np.linalg.LinAlgError:
            root = V * np.sqrt(np.maximum(lam, 0.0))
        rows = np.sqrt(len(M)) * root.T
        clients.append((rows[:, :-1], rows[:, -1]))
    return Federation.from_clients(clients)


def coloured_federation(flips: Any = (0.2, 0.1), shape_flip: float = 0.25) -> Federation:
    """Return the coloured binary model: x = (y xi_1, y xi_2), where P(xi_2 = -1) differs between environments.

    The linear skeleton of Colored MNIST: shape, x_1, is causal, colour follows the label. Each environment is a client
    of four rows with y = 1, weighted by their probabilities: labels of both signs are mirror images, (x, y) and
    (-x, -y), which have the same losses.

    Parameters
    ----------
    flips : sequence of float
        P(xi_2 = -1) of every environment.
    shape_flip : float
        P(xi_1 = -1), in all of them.

    Raises
    ------
    ValueError, TypeError
        If a flip is no probability.

    References
    ----------
    Arjovsky, Bottou, Gulrajani, Lopez-Paz, arXiv:1907.02893, Section 5.2.

    Examples
    --------
    >>> from fedconvex.datasets import coloured_federation
    >>> fed = coloured_federation((0.2, 0.1))
    >>> round(float(fed.sample_weight[:4] @ fed.X[:4, 1]), 12)  # E y x_2 = 1 - 2 * 0.2
    0.6
    """
    p = vector("coloured_federation: flips", flips)
    s = real("coloured_federation: shape_flip", shape_flip, low=0.0, high=1.0)
    if p.size == 0 or (p < 0.0).any() or (p > 1.0).any():
        raise bad("coloured_federation: flips", "be probabilities", f"{flips!r}")
    X = np.tile([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], (p.size, 1))
    weight = np.concatenate([[(1 - s) * (1 - q), (1 - s) * q, s * (1 - q), s * q] for q in p])
    kept = weight > 0.0
    who = np.repeat(np.arange(p.size), 4)
    return Federation.from_arrays(X[kept], np.ones(kept.sum()), who[kept], sample_weight=weight[kept])


def chain_moments(scales: Any = (0.2, 2.0), noise_y: Any = None, noise_z: Any = None) -> tuple[np.ndarray, ...]:
    """Return second moments of the chain x -> y -> z: x = h + e n, y = x + s_y n', z = y + s_z n'', Var h = e^2.

    S (E, 2, 2), b (E, 2) and c (E,). The causal coefficients on (x, z) are (1, 0) in every environment; those of least
    squares are not.

    Parameters
    ----------
    scales : sequence of float
        e of every environment.
    noise_y, noise_z : sequence of float, optional
        s_y, default e, and s_z, default 1.

    Raises
    ------
    ValueError
        If there is no environment, or a standard deviation is negative.

    References
    ----------
    Arjovsky, Bottou, Gulrajani, Lopez-Paz, arXiv:1907.02893, Section 5.1; with Var x = 2 e^2, as in its code.

    Examples
    --------
    >>> from fedconvex.datasets import chain_moments
    >>> S, b, c = chain_moments((1.0,))
    >>> S[0].tolist(), b[0].tolist(), float(c[0])
    ([[2.0, 2.0], [2.0, 4.0]], [2.0, 3.0], 3.0)
    """
    e, s_y, s_z = _deviations("chain_moments", scales, noise_y, noise_z)
    X = 2.0 * e**2
    Y = X + s_y**2
    S = np.stack([np.stack([X, X], -1), np.stack([X, Y + s_z**2], -1)], -2)
    return S, np.stack([X, Y], -1), Y


def _generator(who: str, seed: Any) -> np.random.Generator:
    """Return the generator that a seed asks for."""
    return seed if isinstance(seed, np.random.Generator) else np.random.default_rng(whole(f"{who}: seed", seed))


def _deviations(who: str, scales: Any, noise_y: Any, noise_z: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return e, s_y and s_z of every environment, checked."""
    e = vector(f"{who}: scales", scales)
    s_y = e if noise_y is None else vector(f"{who}: noise_y", noise_y, e.size)
    s_z = np.ones(e.size) if noise_z is None else vector(f"{who}: noise_z", noise_z, e.size)
    for name, s in (("scales", e), ("noise_y", s_y), ("noise_z", s_z)):
        if not s.size or (s < 0.0).any():
            raise bad(
                f"{who}: {name}", "be standard deviations, at least 0, one for every environment", f"{s.tolist()}"
            )
    return e, s_y, s_z


@takes_rng
def chain_federation(
    scales: Any = (0.2, 2.0),
    rows: int = 1000,
    pairs: int = 5,
    noise_y: Any = None,
    noise_z: Any = None,
    seed: Any = 0,
    *,
    rng: Rng = None,
) -> Federation:
    """Return a sample of the chain of `chain_moments`: features (x, z) of independent pairs, target the sum of the y.

    Parameters
    ----------
    scales, noise_y, noise_z : sequences of float
        As for `chain_moments`.
    rows, pairs : int
        Rows of every environment, each a client; chains side by side.
    seed : int or numpy.random.Generator

    Raises
    ------
    ValueError
        As `chain_moments`, and for fewer than one row or pair.

    Examples
    --------
    >>> from fedconvex.datasets import chain_federation
    >>> chain_federation(rows=10).X.shape
    (20, 10)
    """
    e, s_y, s_z = _deviations("chain_federation", scales, noise_y, noise_z)
    n, m = whole("chain_federation: rows", rows, low=1), whole("chain_federation: pairs", pairs, low=1)
    rng, clients = _generator("chain_federation", seed), []
    for scale, a, b in zip(e, s_y, s_z, strict=True):
        h = scale * rng.standard_normal((n, m))
        x = h + scale * rng.standard_normal((n, m))
        y = x + a * rng.standard_normal((n, m))
        z = y + b * rng.standard_normal((n, m))
        clients.append((np.hstack([x, z]), y.sum(axis=1)))
    return Federation.from_clients(clients)
