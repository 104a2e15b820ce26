"""The empirical risk over blocks of rows and columns: the same F as for the joined table, whoever owns what."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from fedconvex._check import instance, real
from fedconvex.federation import Federation
from fedconvex.hybrid_federation import HybridFederation
from fedconvex.kernels import row_losses
from fedconvex.problems.empirical_risk import Problem
from fedconvex.problems.joined import JoinedTable
from fedconvex.problems.protocol import HYBRID_MODEL, Measure
from fedconvex.solvers.certificates.gaps import duality_gap
from fedconvex.solvers.kinked import dual

_EPS = float(np.finfo(float).eps)


class HybridProblem(JoinedTable):
    """F(w) = mean_i l(x_i'w, y_i) + (l2/2)‖w‖^2 over all rows, which lie in blocks of rows and columns.

    A model w is (d,), or (C, d) for a loss with C classes; columns ``federation.ptr[b]:ptr[b+1]`` of it are w_b, which
    all owners of column group b work on.

    Parameters
    ----------
    federation : HybridFederation
    loss : loss
    l2 : float
        Positive: certificates and the dual problem rest on it.

    Raises
    ------
    ValueError, TypeError
        If l2 is not positive, or the loss does not take the labels.

    Notes
    -----
    Certificates: F(w) - F* <= ‖grad F(w)‖^2/(2 l2), as for `VerticalProblem`; and, of methods with dual variables,
    F(w) - D(alpha), D(alpha) = mean -l*(-alpha_i) - (l2/2) ‖X'alpha/(l2 n)‖^2. Entries of missing blocks are zero.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import HybridFederation, Logistic
    >>> from fedconvex.problems import HybridProblem
    >>> rng = np.random.default_rng(0)
    >>> fed = HybridFederation.from_grid(rng.normal(size=(60, 4)), rng.choice([-1, 1], 60), 3, 2)
    >>> problem = HybridProblem(fed, Logistic(), l2=0.1)
    >>> bool(problem.measure(problem.solve().w[None]).gap[0] < 1e-12)
    True
    """

    learns = HYBRID_MODEL
    members = "blocks"
    # the server is who knows the labels; of the blocks it knows where they stand
    shared = ("y", "grid", "n_outputs", "size", "penalty", "row_norms", "traits")
    fingerprint = "hybrid"

    def __init__(self, federation: HybridFederation, loss: Any, l2: float) -> None:
        instance("HybridProblem.federation", federation, HybridFederation)
        self.federation = federation
        self.l2 = real("HybridProblem.l2", l2, low=0.0, strict=True)
        fed = federation.rows
        self.pooled = Problem(Federation(fed.X, fed.y, np.array([0, fed.n])), loss, self.l2)
        self.loss, self.y = self.pooled.loss, federation.y
        self.weights = np.full(federation.K, 1.0 / federation.K)

    @cached_property
    def grid(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Row pointers (G+1,), column pointers (B+1,), and the places (K, 2) of blocks."""
        return self.federation.rows.ptr, self.federation.ptr, self.federation.cells

    @cached_property
    def row_norms(self) -> np.ndarray:
        """‖x_i‖^2, (n,): sums over owners, asked for once."""
        return np.asarray(self.federation.rows.row_norms2)

    def block_labels(self, b: int) -> np.ndarray:
        """Labels of the rows of block b."""
        return np.asarray(self.y[self.federation.place(b)[0]])

    def model_of(self, alpha: np.ndarray) -> np.ndarray:
        """X'alpha/(l2 n), (d,), of dual variables (n,)."""
        return np.asarray(self.pooled.federation.X.T @ alpha) / (self.l2 * self.federation.n)

    def dual_value(self, alpha: np.ndarray) -> float:
        """D(alpha), of dual variables (n,)."""
        w = self.model_of(alpha)
        return -dual.conjugate_sum(self.loss, self.y, 0, alpha.size, alpha) / alpha.size - 0.5 * self.l2 * float(w @ w)

    def dual_measure(self, w: np.ndarray, alpha: np.ndarray) -> Measure:
        """Values of R models (R, d), and their duality gaps at dual variables (R, n), or ‖grad F‖^2/(2 l2) if less."""
        plain = self.measure(w)
        gap, n, sizes = plain.gap.copy(), self.federation.n, np.sqrt(self.row_norms)
        for r in range(len(w)):
            if not np.isfinite(plain.value[r]):
                continue
            negative = -self.dual_value(alpha[r])
            slopes = np.ascontiguousarray(self.pooled.federation.X @ w[r])[:, None]
            row_losses.row_slopes(self.loss, slopes, self.y)
            reach = float(((np.abs(slopes[:, 0]) + np.abs(alpha[r])) * sizes).mean()) * float(np.linalg.norm(w[r]))
            rounding = 4.0 * _EPS * (abs(plain.value[r]) + abs(negative) + reach) * np.sqrt(n)
            gap[r] = min(gap[r], duality_gap("HybridProblem", self, float(plain.value[r]), negative, float(rounding)))
        return Measure(plain.value, gap)
