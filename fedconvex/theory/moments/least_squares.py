"""Least squares as the engine sees it: the rows of every client about the minimiser."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedconvex.problems import Problem


class LeastSquares(NamedTuple):
    """The affine gradients A_n z of a least-squares problem about its minimiser; D = d + 1."""

    w_star: np.ndarray  # (d,)
    rows: list[tuple[np.ndarray, np.ndarray]]  # of every client X_k (n, d), weighted, and (X_k, residuals at w*) (n, D)
    roots: list[np.ndarray]  # of every client the roots of n times the probabilities of its rows (n,)
    G: np.ndarray  # (K, D, D) means of [[x x', x residual], [0, 0]]
    ridge: np.ndarray  # (D, D) what the ridge adds to every A_n
    A: np.ndarray  # (K, D, D) Abar of every client
    H: np.ndarray  # (d, d) Hessian of F
    slope: np.ndarray  # (d,) grad F(w*), zero but for rounding

    @classmethod
    def of(cls, problem: Problem, by_weight: bool = False) -> LeastSquares:
        """Read a problem with squared loss, whose rows are drawn uniformly and scaled, or by weight."""
        fed, w = problem.federation, np.asarray(problem.solve().w)
        d, D = fed.d, fed.d + 1
        rows, roots, G, ridge = [], [], np.zeros((fed.K, D, D)), np.zeros((D, D))
        for k in range(fed.K):
            X, y = fed.client_rows(k)
            U, X = np.column_stack([X, X @ w - y]), problem.weigh(k, X)
            G[k, :d] = X.T @ U / len(X)
            likely = problem.weigh(k, np.ones(len(X))) if by_weight else np.ones(len(X))
            roots.append(np.sqrt(likely))  # squares of rows are weighted: A_n times the root of its probability
            rows.append((U[:, :d] * roots[k][:, None] if by_weight else X, U))
        ridge[:d] = np.reshape(problem.ridge, (-1, 1)) * np.column_stack([np.eye(d), w])
        A = G + ridge
        return cls(
            w, rows, roots, G, ridge, A, np.tensordot(problem.weights, A[:, :d, :d], 1), problem.weights @ A[:, :d, d]
        )

    @property
    def d(self) -> int:
        """Dimension."""
        return len(self.w_star)

    def values(self, Z: np.ndarray) -> tuple[float, float]:
        """E F - F* and E‖e‖^2."""
        d = self.d
        S, m = Z[:d, :d], Z[:d, d]
        if not math.isfinite(Z.sum()):
            return math.inf, math.inf
        return 0.5 * float(np.sum(self.H * S)) + float(self.slope @ m), float(np.trace(S))

    def row_noise(self, k: int, Z: np.ndarray) -> np.ndarray:
        """mean_n A_n Z A_n' - Abar Z Abar', the covariance (d, d) of the gradient of one row of client k."""
        (X, U), G = self.rows[k], self.G[k, : self.d]
        q = np.einsum("ij,ij->i", U @ Z, U)  # (x'e + residual)^2, expected
        return np.asarray(X.T @ (q[:, None] * X) / len(X) - G @ Z @ G.T)

    def row_squares(self, k: int) -> np.ndarray:
        """Mean over client k's rows of kron(A_n, A_n)."""
        d, D = self.d, self.d + 1
        X, U = self.rows[k]
        total = np.zeros((D * D, D * D))
        for lo in range(0, len(X), 4096):
            A = self.ridge * self.roots[k][lo : lo + 4096, None, None]
            A[:, :d] += X[lo : lo + 4096, :, None] * U[lo : lo + 4096, None, :]
            V = A.reshape(-1, D * D)
            total += V.T @ V
        return total.reshape(D, D, D, D).transpose(0, 2, 1, 3).reshape(D * D, D * D) / len(X)
