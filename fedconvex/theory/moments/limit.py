"""Where the moments converge, and whether: spectral radius and fixed point of a round."""

from __future__ import annotations

import numpy as np
import scipy.sparse.linalg as spla

from fedconvex.theory.moments.round import Round


def spectral_radius(round_: Round, kron: bool) -> float:
    """Return the spectral radius of the linear map of the first and second moments over one round."""
    if kron:
        return float(np.abs(np.linalg.eigvals(round_.matrix(0)[:-1, :-1])).max())
    d = round_.d
    rate = float(np.abs(np.linalg.eigvalsh(round_.mean_map[:d, :d])).max())
    size = d * d
    if d <= 3:
        matrix = np.column_stack([round_.linear(v) for v in np.eye(size)])
        return max(rate, float(np.abs(np.linalg.eigvalsh(0.5 * (matrix + matrix.T))).max()))
    operator = spla.LinearOperator((size, size), matvec=round_.linear, dtype=np.float64)
    top = spla.eigsh(operator, k=1, which="LM", v0=np.eye(d).ravel(), tol=1e-8, return_eigenvectors=False)
    return max(rate, float(np.abs(top).max()))


def limit(round_: Round, Q: np.ndarray, drift_before: bool, kron: bool) -> np.ndarray:
    """Return the fixed point Z (D, D) of a stable round with drift Q, symmetric in its upper left block."""
    d, D = round_.d, round_.d + 1
    if kron:
        F = round_.matrix(0)
        shift = (F @ Q.ravel() if drift_before else Q.ravel())[:-1]
        row, column = np.divmod(np.arange(D * D - 1), D)
        z = fixed_point_by_means(F[:-1, :-1], F[:-1, -1] + shift, (row == d) | (column == d))
        Z = np.append(z, 1.0).reshape(D, D)
    else:
        Z = np.zeros((D, D))
        Z[:d, d] = np.linalg.solve(np.eye(d) - round_.mean_map[:d, :d], round_.mean_map[:d, d])
        Z[d] = Z[:, d]
        Z[d, d] = 1.0
        source = round_.apply(Z + Q, 0) if drift_before else round_.apply(Z, 0) + Q
        Z[:d, :d] = _second_moment(round_, source[:d, :d])
    Z[:d, :d] = 0.5 * (Z[:d, :d] + Z[:d, :d].T)
    return Z


def fixed_point_by_means(matrix: np.ndarray, offset: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Solve z = matrix z + offset, its means first: they need no second moments, whose squares would cost digits."""
    change, z = np.eye(len(offset)) - matrix, np.empty(len(offset))
    z[means] = np.linalg.solve(change[np.ix_(means, means)], offset[means])
    driven = offset[~means] - change[np.ix_(~means, means)] @ z[means]
    z[~means] = np.linalg.solve(change[np.ix_(~means, ~means)], driven)
    return z


def _second_moment(round_: Round, source: np.ndarray) -> np.ndarray:
    """Solve S - linear(S) = source by conjugate gradients, preconditioned by S -> S - F1 S F1'."""
    d = round_.d
    lam, V = np.linalg.eigh(round_.mean_map[:d, :d])
    divisor = 1.0 - np.outer(lam, lam)

    def precondition(s: np.ndarray) -> np.ndarray:
        R = np.reshape(s, (d, d))
        return (V @ ((V.T @ (0.5 * (R + R.T)) @ V) / divisor) @ V.T).ravel()

    A = spla.LinearOperator((d * d, d * d), matvec=lambda s: s - round_.linear(s), dtype=np.float64)
    P = spla.LinearOperator((d * d, d * d), matvec=precondition, dtype=np.float64)
    S, left = np.zeros(d * d), source.ravel()
    for rtol in (1e-12, 1e-2):  # the second pass removes what rounding left
        floor = 4e-16 * float(np.linalg.norm(S))
        if float(np.linalg.norm(left)) > floor:
            S = S + spla.cg(A, left, rtol=rtol, atol=floor, maxiter=1000 if not S.any() else 20, M=P)[0]
            left = source.ravel() - A.matvec(S)
    scale = float(np.linalg.norm(S))
    rest = float(np.linalg.norm(left))
    if not rest <= 1e-9 * scale:
        raise ArithmeticError(f"Moments.steady_state: conjugate gradients left a residual of {rest:.3g}")
    return np.asarray(S).reshape(d, d)
