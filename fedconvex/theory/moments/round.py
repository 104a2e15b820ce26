"""One round as a linear map of second moments: by moving them, or as a matrix."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedconvex.theory.moments.least_squares import LeastSquares
from fedconvex.theory.moments.weights import Mixing, average


@dataclass(frozen=True, eq=False)
class Round:
    """The map of Z = E[z z'] over round t, with what happens inside it; D = d + 1."""

    data: LeastSquares
    mixing: Mixing
    phi: np.ndarray  # (K,) batch factor
    local_steps: np.ndarray  # (K,)
    step_size: Any  # eta, or a schedule
    step_factor: np.ndarray  # (K,)
    server_step: float

    @property
    def d(self) -> int:
        """Dimension."""
        return self.data.d

    @property
    def constant(self) -> bool:
        """Whether all rounds are alike."""
        return not hasattr(self.step_size, "at")

    def steps(self, t: int) -> np.ndarray:
        """Return the steps of round t, (tau, K), zero after a client's last one."""
        tau = int(self.local_steps.max())
        j = np.arange(tau)
        if self.constant:
            eta = np.full(tau, self.step_size)
        elif getattr(self.step_size, "by_round", False):
            eta = np.full(tau, float(self.step_size.at(t)))
        else:
            eta = np.array([float(self.step_size.at(t * tau + i)) for i in range(tau)])
        return np.where(j[:, None] < self.local_steps, eta[:, None] * self.step_factor, 0.0)

    def noise(self, k: int, Z: np.ndarray) -> np.ndarray:
        """phi (mean_n A_n Z A_n' - Abar Z Abar'), the covariance (d, d) of a mini-batch gradient; the ridge cancels."""
        return self.phi[k] * self.data.row_noise(k, Z)

    def gradient(self, k: int, Z: np.ndarray) -> tuple[float, float]:
        """E‖g_k‖^2 and E‖g_k - grad F_k‖^2."""
        variance = float(np.trace(self.noise(k, Z))) if self.phi[k] > 0.0 else 0.0
        return float(np.sum((self.data.A[k] @ Z) * self.data.A[k])) + variance, variance

    def partial(self, Z: np.ndarray, t: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield M_k and S_k(Z), (K, D, D) each, after 0, 1, ..., tau local steps."""
        d, D = self.d, self.d + 1
        first = np.broadcast_to(np.eye(D), (len(self.phi), D, D))
        second = np.broadcast_to(Z, (len(self.phi), D, D))
        yield first, second
        for a in self.steps(t):
            M = np.eye(D) - a[:, None, None] * self.data.A
            first, moved = M @ first, M @ second @ M.transpose(0, 2, 1)
            for k in np.flatnonzero(a * self.phi).tolist():
                moved[k, :d, :d] += a[k] ** 2 * self.noise(k, second[k])
            second = moved
            yield first, second

    def apply(self, Z: np.ndarray, t: int) -> np.ndarray:
        """One round as an operator on Z (D, D)."""
        first, second = deque(self.partial(Z, t), maxlen=1)[0]
        out = average(self.mixing, Z, first, second)
        beta = self.server_step
        if beta == 1.0:
            return out
        moved = np.tensordot(self.mixing.mean, first, 1) @ Z
        return (1.0 - beta) ** 2 * Z + beta * (1.0 - beta) * (moved + moved.T) + beta**2 * out

    @cached_property
    def mean_map(self) -> np.ndarray:
        """F1 (D, D): E[z_{t+1}] = F1 E[z_t]; its upper left block is symmetric."""
        steps = self.steps(0)
        firsts = [
            np.linalg.matrix_power(np.eye(self.d + 1) - steps[0, k] * self.data.A[k], self.local_steps[k])
            for k in range(len(self.phi))
        ]
        beta = self.server_step
        mean = np.tensordot(self.mixing.mean, np.array(firsts), 1)
        return np.asarray((1.0 - beta) * np.eye(self.d + 1) + beta * mean)

    def linear(self, s: np.ndarray) -> np.ndarray:
        """Apply the self-adjoint part of a round that acts on the second moment alone, flat (d^2,)."""
        d = self.d
        Z = np.zeros((d + 1, d + 1))
        S = s.reshape(d, d)
        Z[:d, :d] = 0.5 * (S + S.T)
        return self.apply(Z, 0)[:d, :d].ravel()

    def matrix(self, t: int) -> np.ndarray:
        """One round as a matrix (D^2, D^2) on the row-major entries of Z."""
        return self._constant_matrix if self.constant else self._matrix(t)

    @cached_property
    def _constant_matrix(self) -> np.ndarray:
        return self._matrix(0)

    def _matrix(self, t: int) -> np.ndarray:
        D, mix, steps = self.d + 1, self.mixing, self.steps(t)
        I = np.eye(D)
        firsts = np.empty_like(self.data.A)
        F = np.zeros((D * D, D * D))
        for k, A in enumerate(self.data.A):
            M, M2 = I, np.eye(D * D)
            noise = self.phi[k] * (self.data.row_squares(k) - np.kron(A, A)) if self.phi[k] > 0.0 else 0.0
            a, powers = steps[: self.local_steps[k], k], 1
            if np.ptp(a) == 0.0:
                a, powers = a[:1], a.size
            for step in a:
                one = I - step * A
                M, M2 = one @ M, (np.kron(one, one) + step**2 * noise) @ M2
            M, M2 = np.linalg.matrix_power(M, powers), np.linalg.matrix_power(M2, powers)
            firsts[k] = M
            F += mix.own[k] * M2 - (mix.scale @ mix.u[:, k] ** 2) * np.kron(M, M)
        for c, u in zip(mix.scale, mix.u, strict=True):
            total = np.tensordot(u, firsts, 1)
            F += c * np.kron(total, total)
        if mix.left is not None:
            beside = np.tensordot(mix.left, firsts, 1)
            F += mix.left2 * np.eye(D * D) + np.kron(I, beside) + np.kron(beside, I)
        beta = self.server_step
        if beta == 1.0:
            return F
        mean = np.tensordot(mix.mean, firsts, 1)
        stay = (1.0 - beta) ** 2 * np.eye(D * D) + beta * (1.0 - beta) * (np.kron(I, mean) + np.kron(mean, I))
        return stay + beta**2 * F
