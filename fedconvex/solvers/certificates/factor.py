"""Factors of Hessians that may be singular, with bounds of what rounding did to them."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg as sla
from scipy.linalg.lapack import dpotrs

from fedconvex.solvers.objective import Objective

EPS = float(np.finfo(float).eps)
_ROWS = 16  # of a matrix that are scaled at a time
TINY = 1e-290  # features and curvatures below it are not known to 15 digits


class Factor:
    """A factor of H in equilibrated coordinates (unit diagonal): Cholesky, or the singular values of a root of H.

    H is the Hessian at w, or with the curvatures h (n,) of the rows; it is taken over, and written to.

    Numerical rank is decided on singular values of the root, relative to the largest, at the level of rounding.
    """

    def __init__(
        self, problem: Objective, w: np.ndarray, H: np.ndarray, careful: bool, h: np.ndarray | None = None
    ) -> None:
        p, n = len(H), problem.federation.n
        diagonal = np.diag(H)
        self.scale = 1.0 / np.sqrt(np.where((diagonal > 0.0) & np.isfinite(diagonal), diagonal, 1.0))
        self._diagonal, self._federation, self._given = diagonal.copy(), problem.federation, h is not None
        self.noise = 8.0 * EPS * (p + math.sqrt(n))
        for lo in range(0, p, _ROWS):  # nothing of the size of H is made beside it
            H[lo : lo + _ROWS] *= np.outer(self.scale[lo : lo + _ROWS], self.scale)
        self._H, self._on_diagonal = np.ascontiguousarray(H), H.diagonal().copy()
        self.cholesky: Any = None
        if not careful:
            try:  # the shift lets singular matrices pass; where it matters, the certificate falls short
                self._H.flat[:: p + 1] += self.noise
                self.cholesky = sla.cho_factor(self._H.T, lower=True, overwrite_a=True, check_finite=False)
                if not np.isfinite(self.cholesky[0]).all():
                    self.cholesky = None
            except (np.linalg.LinAlgError, ValueError):
                self.cholesky = None
        self._least: float | None = None
        if self.cholesky is None:
            root = problem.hessian_root(w, h) * self.scale
            _, sigma, self.V = np.linalg.svd(np.where(np.isfinite(root), root, 0.0))
            self.keep = sigma > self.noise * sigma[0]
            self.sigma = sigma[self.keep]

    @cached_property
    def resolved(self) -> bool:
        """Whether features and curvatures have all their digits."""
        diagonal, columns = self._diagonal, self._federation.column_sizes
        sizes = np.tile(columns, len(diagonal) // len(columns))
        with np.errstate(all="ignore"):
            normal = (sizes >= TINY) & (diagonal / sizes / sizes >= TINY)
        exact = (diagonal == 0.0) & self._given  # curvatures that are given are 0 where they say so
        return bool((normal | exact | (sizes == 0.0)).all())

    @property
    def definite(self) -> bool:
        """Whether H is certainly positive definite."""
        return self.least > 0.0 if self.cholesky is not None else bool(self.keep.all())

    @property
    def full(self) -> bool:
        """Whether no direction is left out."""
        return self.cholesky is not None or bool(self.keep.all())

    @property
    def least(self) -> float:
        """A lower bound of the least eigenvalue of the equilibrated H, on the directions that are kept."""
        if self._least is None:
            if self.cholesky is not None:
                H = self._H.copy(order="F")  # below the diagonal it is as it was: the factor stands above
                H.flat[:: len(H) + 1] = self._on_diagonal
                self._least = float(sla.eigvalsh(H, subset_by_index=[0, 0], overwrite_a=True)[0]) - self.noise
            else:
                low = self.sigma.min(initial=math.inf) - 0.5 * self.noise * self.sigma.max(initial=0.0)
                self._least = float(low**2) if self.keep.any() else math.inf
        return self._least

    def solve(self, g: np.ndarray) -> np.ndarray:
        """H^+ g."""
        if self.cholesky is not None:
            return self.scale * dpotrs(self.cholesky[0], self.scale * g, lower=True)[0]
        V = self.V[self.keep]
        return self.scale * (V.T @ ((V @ (self.scale * g)) / self.sigma**2))

    def whiten(self, G: np.ndarray) -> np.ndarray:
        """Return rows Z with Z Z' = G H^+ G'."""
        if self.cholesky is not None:
            return sla.solve_triangular(self.cholesky[0], (self.scale * G).T, lower=True, check_finite=False).T
        return ((self.scale * G) @ self.V[self.keep].T) / self.sigma

    def decrement(self, g: np.ndarray, error: np.ndarray) -> float:
        """Return an upper bound of sqrt(g'H^+ g) over gradients within ``error`` of g; inf if H is too uncertain."""
        gs, es = self.scale * g, self.scale * error
        if not self.resolved or (self.cholesky is not None and self.least <= self.noise):
            return math.inf
        if self.cholesky is not None:
            square = max(float(gs @ sla.cho_solve(self.cholesky, gs, check_finite=False)), 0.0)
            return math.sqrt(square * (1.0 + self.noise / self.least)) + float(np.linalg.norm(es)) / math.sqrt(
                self.least
            )
        V = self.V[self.keep]
        if not len(V):
            return 0.0
        off = 0.5 * self.noise * float(self.sigma[0] / self.sigma.min())  # ‖Av‖ >= (1 - off) ‖sigma V v‖
        return float(np.linalg.norm((np.abs(V @ gs) + np.abs(V) @ es) / self.sigma)) / (1.0 - off)

    def flat(self, problem: Objective) -> bool:
        """Whether it is proved that F does not change along directions that are left out: H has no higher rank."""
        if self.full:
            return True
        each = problem.n_outputs - 1 if problem.traits.multinomial else 1  # equal scores of all classes do not count
        kept, (n, d) = int(self.keep.sum()), problem.federation.X.shape
        if problem.l2 == 0.0:
            return kept >= each * min(n, d) or kept >= each * problem.rank_bound
        shifts = int(problem.free.sum()) if problem.traits.multinomial and problem.free is not None else 0
        return kept >= self.keep.size - shifts  # a free coordinate may grow equally for all classes

    def left_out(self, problem: Objective) -> tuple[float, float]:
        """Return what directions that are left out do to scores, and how far models of reach 1 lie along them.

        With b the coordinates of w along them: the largest change of a row's scores where ‖b‖ = 1, and the largest ‖b‖
        of a model of reach 1.
        """
        V, sizes = self.V[~self.keep], np.tile(problem.federation.column_sizes, problem.n_outputs)
        used = sizes > 0.0  # F does not depend on the others
        share = np.linalg.norm(V[:, used], axis=0) / (self.scale * sizes)[used]
        return problem.largest_scores(V * self.scale) * (1.0 + 1e-9), float(share.max(initial=0.0)) * (1.0 + 1e-9)
