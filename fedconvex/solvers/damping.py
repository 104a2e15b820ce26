"""How parallel rounds contract on linear models, and which damping makes them: of site updates, and of blocks.

Once the precisions of the sites have settled, a round with everybody and the damping rho maps the errors e of the K
shifts linearly: e <- (I - rho (I - T)) e. Client k's optimal shift depends on those of the others through its cavity
only, so that block (k, j) of T is T_k for all j != k and 0 for j = k, with

    T_k = Lam (C_k + Abar_k)^{-1} - I,  C_k = Lam - B_k,  Abar_k = A_k - A_k (Q + A_k)^{-1} A_k,

A_k = X_k'X_k/s2, B_k the precision of the site (A_k, or its diagonal), Lam = P + sum_k B_k, and Abar_k = A_k without
private parameters. The rounds converge if and only if |1 - rho kappa| < 1 for every eigenvalue kappa of I - T.

With a full covariance and private parameters I - T = GS of the theory of such rounds, with positive eigenvalues below
K: they converge if and only if rho < 2/lambda_max(GS), and rho < 2/K always does. With a full covariance and no private
parameters T = 0. With a diagonal one T_k = -O_k (D + O_k)^{-1}, O_k the part of A_k off its diagonal, D = diag(Lam).

Owners of columns who take Q steps of eta_b on their blocks of a quadratic with the Hessian H map the error e of the
model to (I - theta Pi H) e, Pi = blockdiag((I - (I - eta_b H_bb)^Q) H_bb^{-1}), theta their damping.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from fedconvex.solvers.posteriors.gaussians import dense


def site_map(A: Sequence[np.ndarray], prior: np.ndarray, private: np.ndarray | None, diagonal: bool) -> np.ndarray:
    """Return T, (K d, K d).

    Parameters
    ----------
    A : sequence of arrays (d, d)
        X_k'X_k/s2.
    prior, private : arrays (d,) or (d, d)
        P and Q.
    diagonal : bool
    """
    K, d = len(A), len(A[0])
    B = [np.diag(np.diag(a)) if diagonal else a for a in A]
    Lam = dense(prior) + sum(B)
    T = np.zeros((K, d, K, d))
    for k in range(K):
        reduced = A[k]
        if private is not None:
            Q = dense(private)
            reduced = A[k] @ np.linalg.solve(Q + A[k], Q)
        Tk = np.linalg.solve((Lam - B[k] + reduced).T, Lam).T - np.eye(d)
        T[k] = Tk[:, None, :]
        T[k, :, k] = 0.0
    return T.reshape(K * d, K * d)


def block_map(H: np.ndarray, ptr: np.ndarray, steps: int, step_share: float) -> np.ndarray:
    """Return the eigenvalues of Pi H in ascending order, (d,): positive, since each block of Pi is for eta_b < 2/L_b.

    Parameters
    ----------
    H : array (d, d)
        Positive definite.
    ptr : int array (K+1,)
        Where the blocks begin.
    steps : int
        Q.
    step_share : float
        eta_b L_b, in (0, 2), L_b the largest eigenvalue of block b.
    """
    root = block_root(H, ptr, steps, step_share)
    return np.linalg.eigvalsh(root @ H @ root)


def block_root(H: np.ndarray, ptr: np.ndarray, steps: int, step_share: float) -> np.ndarray:
    """Return the symmetric root of Pi, (d, d): Pi H has the eigenvalues of Pi^{1/2} H Pi^{1/2}. As for `block_map`."""
    root = np.zeros_like(H)
    for a, b in pairwise(ptr):
        h, V = np.linalg.eigh(H[a:b, a:b])
        x = step_share * np.maximum(h / h[-1], 0.0)  # what rounding made negative is 0: there the share is Q eta
        share = np.where(x > 1e-12, (1.0 - (1.0 - x) ** steps) / np.where(x > 1e-12, x, 1.0), steps)
        root[a:b, a:b] = (V * np.sqrt(step_share * share / h[-1])) @ V.T
    return root


def radius(kappa: np.ndarray, rho: float) -> float:
    """Return max |1 - rho kappa|: by which errors grow or shrink a round, in the long run."""
    return float(np.abs(1.0 - rho * kappa).max())


def largest_damping(kappa: np.ndarray) -> float:
    """Return the number that rho must stay below: min 2 Re kappa/|kappa|^2; at most 0 where no rho > 0 converges."""
    return float(np.min(2.0 * kappa.real / np.abs(kappa) ** 2))


def best_damping(kappa: np.ndarray) -> float:
    """Return the rho in (0, 1] with the least radius, which is a convex function of rho."""
    low, high = 0.0, 1.0
    for _ in range(60):
        a, b = low + (high - low) / 3.0, high - (high - low) / 3.0
        low, high = (low, b) if radius(kappa, a) <= radius(kappa, b) else (a, high)
    return high
