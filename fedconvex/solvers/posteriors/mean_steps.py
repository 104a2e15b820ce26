"""Newton steps in the means of a free energy: one system in q's mean and those of the c_k.

With H_k = X_k' diag(b_k) X_k, b_k > 0 the curvatures of the rows' scores, the Hessian in the means is

    [P + sum_k H_k   H_1      ...]        step of q:    (P + sum_k H_k - H_k (Q + H_k)^{-1} H_k) dm = g - sum_k H_k u_k
    [H_1             Q + H_1     ]        step of c_k:  (Q + H_k)^{-1} (g_k - H_k dm),  u_k = (Q + H_k)^{-1} g_k
    [...                      ...]

`Columns` writes these matrices down. Where precisions are diagonal and every client has fewer rows than there are
columns, `RowSpace` needs matrices of the rows' size only (Woodbury): with V_k = sqrt(b_k) X_k and W_k = I + V_k Q^{-1}
V_k', whose eigenvalues are at least 1,

    (Q + H_k)^{-1} = Q^{-1} - Q^{-1} V_k' W_k^{-1} V_k Q^{-1},   H_k - H_k (Q + H_k)^{-1} H_k = V_k' W_k^{-1} V_k,

and with fewer rows than columns in all the system of q is solved the same way, by V P^{-1} V' + blockdiag(W_k).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from fedconvex.solvers.posteriors.gaussians import dense

_REACH = 1e8  # of sum_j b x_j^2/P_j: beyond it Woodbury's differences would lose half of the digits

Steps = tuple[np.ndarray, list[np.ndarray]]


class Columns:
    """Systems of matrices (d, d); what is handed about as the clients' curvatures is the list of the H_k."""

    def __init__(self, X: Sequence[np.ndarray], prior: np.ndarray, private: np.ndarray | None) -> None:
        self.X, self.prior, self.private = X, prior, private

    def bend(self, bent: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the H_k for the curvatures b_k (n_k,) of the rows' scores."""
        return [(Xk * b[:, None]).T @ Xk for Xk, b in zip(self.X, bent, strict=True)]

    def shaped(self, curvatures: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the H_k, or their diagonals, in the shape of the precisions."""
        return [np.diag(H).copy() for H in curvatures] if self.prior.ndim == 1 else list(curvatures)

    def spread(self, curvatures: Sequence[np.ndarray], means: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return |sum_k H_k| |m| for q's mean, the first, and |H_k| |m_k| for those of the c_k."""
        by = [np.sum(curvatures, axis=0), *curvatures]
        return [np.abs(H) @ np.abs(m) for H, m in zip(by, means, strict=False)]

    def steps(self, curvatures: Sequence[np.ndarray], pull: np.ndarray, own: Sequence[np.ndarray]) -> Steps:
        """Return the steps dm (d,) of q's mean, and those of the c_k.

        Parameters
        ----------
        curvatures : list
            What `bend` returned.
        pull : array (d,)
            Gradient of the free energy in q's mean.
        own : sequence of arrays (d,)
            Gradients in the means of the c_k; empty without private parameters.
        """
        schur, lefts = dense(self.prior) + np.sum(curvatures, axis=0), []
        for Hk, gk in zip(curvatures, own, strict=False):
            assert self.private is not None
            Q = dense(self.private)
            left = np.linalg.inv(Q + Hk)
            kept = Hk @ left @ Q  # H - H (Q + H)^-1 H
            schur = schur - Hk + 0.5 * (kept + kept.T)
            pull = pull - Hk @ (left @ gk)
            lefts.append(left)
        dm = np.linalg.solve(schur, pull)
        return dm, [left @ (gk - Hk @ dm) for left, gk, Hk in zip(lefts, own, curvatures, strict=False)]


class RowSpace:
    """The same for diagonal precisions and few rows; what is handed about as the clients' curvatures are the b_k."""

    def __init__(self, X: Sequence[np.ndarray], prior: np.ndarray, private: np.ndarray | None) -> None:
        self.X, self.prior, self.private = X, prior, private
        self.sizes, self.squares = [np.abs(Xk) for Xk in X], [Xk * Xk for Xk in X]
        self.own = [] if private is None else [(Xk / private) @ Xk.T for Xk in X]
        ends, self.whole = np.cumsum([0, *(len(Xk) for Xk in X)]), None
        if ends[-1] < prior.size:
            rows = np.vstack(X)
            self.whole = (rows / prior) @ rows.T
            for a, G in zip(ends[:-1], self.own, strict=False):
                self.whole[a : a + len(G), a : a + len(G)] += G

    @staticmethod
    def fits(
        X: Sequence[np.ndarray], bent: Sequence[np.ndarray], prior: np.ndarray, private: np.ndarray | None
    ) -> bool:
        """Whether precisions are diagonal, rows few, and curvatures of at most b_k not too far above the precisions."""
        if prior.ndim != 1 or (private is not None and private.ndim != 1) or not (prior > 0.0).all():
            return False
        if any(len(Xk) >= prior.size for Xk in X):
            return False
        least = prior if private is None else np.minimum(prior, private)
        return all(
            float((b * ((Xk * Xk) @ (1.0 / least))).max(initial=0.0)) <= _REACH for Xk, b in zip(X, bent, strict=True)
        )

    def bend(self, bent: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the b_k."""
        return list(bent)

    def shaped(self, curvatures: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the diagonals of the H_k."""
        return [b @ S for b, S in zip(curvatures, self.squares, strict=True)]

    def spread(self, curvatures: Sequence[np.ndarray], means: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the same with |X_k|' diag(b_k) |X_k| in the place of |H_k|, which is at least that."""

        def by(k: int, m: np.ndarray) -> np.ndarray:
            return np.asarray(self.sizes[k].T @ (curvatures[k] * (self.sizes[k] @ np.abs(m))))

        shared = np.sum([by(k, means[0]) for k in range(len(curvatures))], axis=0)
        return [shared, *(by(k, m) for k, m in enumerate(means[1:]))]

    def steps(self, curvatures: Sequence[np.ndarray], pull: np.ndarray, own: Sequence[np.ndarray]) -> Steps:
        """Return dm (d,) and the steps of the c_k."""
        V = [np.sqrt(b)[:, None] * Xk for b, Xk in zip(curvatures, self.X, strict=True)]
        factors = [_factor(G, b) for G, b in zip(self.own, curvatures, strict=False)]
        for Vk, factor, gk in zip(V, factors, own, strict=False):
            pull = pull - Vk.T @ cho_solve(factor, Vk @ (gk / self.private))
        dm = self._shared(V, factors, curvatures, pull)
        out = []
        for Vk, factor, gk in zip(V, factors, own, strict=False):
            free = gk / self.private
            # (Q + H)^{-1} H = Q^{-1} V' W^{-1} V
            out.append(free - Vk.T @ cho_solve(factor, Vk @ (free + dm)) / self.private)
        return dm, out

    def _shared(self, V: list[np.ndarray], factors: list, bent: Sequence[np.ndarray], pull: np.ndarray) -> np.ndarray:
        """Return the step of q's mean."""
        if self.whole is not None:
            rows, free = np.vstack(V), pull / self.prior
            return free - rows.T @ cho_solve(_factor(self.whole, np.concatenate(bent)), rows @ free) / self.prior
        if factors:
            V = [solve_triangular(L, Vk, lower=True, check_finite=False) for (L, _), Vk in zip(factors, V, strict=True)]
        rows = np.vstack(V)
        schur = rows.T @ rows
        schur[np.diag_indices_from(schur)] += self.prior
        return cho_solve(cho_factor(schur, lower=True, check_finite=False), pull)


def _factor(G: np.ndarray, bent: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return the factor of I + sqrt(b) G sqrt(b)."""
    root = np.sqrt(bent)
    W = G * np.outer(root, root)
    W[np.diag_indices_from(W)] += 1.0
    return cho_factor(W, lower=True, overwrite_a=True, check_finite=False)
