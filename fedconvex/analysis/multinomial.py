"""Several classes against a reference: the likelihood of a multinomial logit over clients, as sums over rows.

With z_c = x'b_c for classes c = 1..C-1 and z_0 = 0 for the reference, N = sum_i s_i (log sum_c e^{z_ic} - z_{i y_i})
and m_c = e^{z_c}/sum e^{z}; the Hessian has the blocks sum_i s_i m_c (delta_cd - m_d) x_i x_i'. A log-sum-exp is
self-concordant with the range of its scores: |N'''[v, v, v]| <= max_i (range of x_i'v_c over all c, 0 for the
reference) N''[v, v]. Coefficients are log odds against the reference (McCullagh and Nelder, 1989, Section 5.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from scipy.special import logsumexp

from fedconvex._check import bad, wrong_type
from fedconvex.analysis.response_families import Family
from fedconvex.federation import Federation
from fedconvex.problems.protocol import Derivatives
from fedconvex.solvers.rows.hessians import weighted_gram

_EPS = float(np.finfo(float).eps)


@dataclass(frozen=True, repr=False)
class MultinomialFamily(Family):
    """Several classes: no function of one score."""


def _no_score(*_: Any) -> np.ndarray:
    raise wrong_type("family multinomial", "be given a score of every class", "one")


MULTINOMIAL = MultinomialFamily(
    "multinomial", "Softmax", "logit", _no_score, _no_score, _no_score, _no_score, _no_score, _no_score, 1.0, "1", 0,
    "odds ratio", np.zeros_like, _no_score, lambda y: "",
)  # fmt: skip


class MultinomialLikelihood:
    """N, its derivatives and what an inference asks of rows; models are (C - 1) blocks of d coefficients."""

    site_intercepts, self_concordance = False, 1.0

    def __init__(self, federation: Federation, classes: int) -> None:
        self.federation, self.family, self.C = federation, MULTINOMIAL, classes
        self.size = self.parameters = (classes - 1) * federation.d
        self.log_mean = self.constants = 0.0  # no start beside zero; the log-likelihood is -N
        n = federation.n
        self.s = np.ones(n) if federation.sample_weight is None else federation.sample_weight
        self.hit = np.eye(classes)[federation.y.astype(np.int64)]

    @property
    def n(self) -> float:
        """Sum of the weights of all rows."""
        return float(self.s.sum())

    @property
    def silent(self) -> np.ndarray:
        """No client is: there are no site intercepts."""
        return np.zeros(self.federation.K, dtype=bool)

    @property
    def varies(self) -> bool:
        """Whether responses differ."""
        return bool(np.ptp(self.federation.y) > 0.0)

    def _at(self, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return scores and class probabilities (n, C) at a model, and the rows' losses (n,)."""
        z = np.column_stack([np.zeros(self.federation.n), self.federation.X @ b.reshape(self.C - 1, -1).T])
        total = logsumexp(z, axis=1)
        return z, np.exp(z - total[:, None]), total - (z * self.hit).sum(axis=1)

    def probabilities(self, b: np.ndarray) -> np.ndarray:
        """Return the probabilities of classes (n, C) at a model."""
        return self._at(b)[1]

    def row_scores(self, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores of rows (n, p), and their weights."""
        off = (self.probabilities(b) - self.hit)[:, 1:]
        return (off[:, :, None] * self.federation.X[:, None, :]).reshape(len(off), -1), self.s

    def _one(self, b: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        d, X = self.federation.d, self.federation.X
        _, m, losses = self._at(b)
        H = np.empty((self.C - 1, d, self.C - 1, d))
        for c in range(1, self.C):
            for e in range(1, self.C):
                H[c - 1, :, e - 1] = (X.T * (self.s * m[:, c] * (float(c == e) - m[:, e]))) @ X
        g = (self.s[:, None] * (m - self.hit)[:, 1:]).T @ X
        return float(self.s @ losses), g.ravel(), H.reshape(self.size, self.size)

    def sums(self, B: np.ndarray) -> Derivatives:
        """Return N, grad N and hess N at models B (R, p): one round."""
        with np.errstate(all="ignore"):  # far out, where a search turns back
            found = [self._one(b) for b in B]
        return Derivatives(*(np.array([part[i] for part in found]) for i in range(3)))

    def spread(self, inverses: np.ndarray) -> np.ndarray:
        """Return the largest (v'A v)^(1/2) over rows and pairs of classes, v = x (e_c - e_d), for A (R, p, p)."""
        d, X, out = self.federation.d, self.federation.X, np.zeros(len(inverses))
        for r, A in enumerate(inverses):
            whole = np.zeros((self.C, d, self.C, d))
            whole[1:, :, 1:] = A.reshape(self.C - 1, d, self.C - 1, d)
            for c, e in combinations(range(self.C), 2):
                M = whole[c, :, c] - whole[c, :, e] - whole[e, :, c] + whole[e, :, e]
                out[r] = max(out[r], float(np.einsum("ni,ij,nj->n", X, M, X, optimize=True).max()))
        return np.sqrt(out)

    def _moved(self, b: np.ndarray) -> np.ndarray:
        """Return how far rounding may move the scores of each row, (n,)."""
        d, X = self.federation.d, self.federation.X
        return (d + 1.0) * _EPS * (np.abs(X) @ np.abs(b.reshape(self.C - 1, -1)).T).max(axis=1)

    def gradient_rounding(self, b: np.ndarray) -> np.ndarray:
        """Return how far entries of the computed grad N may be off, (p,)."""
        _, m, _ = self._at(b)
        each = (8.0 + np.sqrt(self.n)) * _EPS * (m + self.hit) + 4.0 * self._moved(b)[:, None] * m
        return np.asarray(((self.s[:, None] * each)[:, 1:].T @ np.abs(self.federation.X)).ravel())

    def value_rounding(self, b: np.ndarray) -> float:
        """Return how far the computed N may be off."""
        z, _, losses = self._at(b)
        each = 2.0 * self._moved(b) + 4.0 * _EPS * (1.0 + np.abs(z).max(axis=1) + np.log(self.C))
        return float(self.s @ each) + (np.log2(max(len(z), 2)) + 4.0) * _EPS * float(self.s @ losses)

    def roundings(self, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how far gradients and N at models (R, p) may be off, (R, p) and (R,)."""
        return np.array([self.gradient_rounding(b) for b in B]), np.array([self.value_rounding(b) for b in B])

    def pearson(self, b: np.ndarray) -> float:
        """Return 0: there is no dispersion."""
        return 0.0

    def information(self, b: np.ndarray) -> np.ndarray:
        """Return the Hessian of N, which is the expected information."""
        return self._one(b)[2]

    def gram(self) -> np.ndarray:
        """Return X'X with weights, a block for each class."""
        return np.kron(np.eye(self.C - 1), weighted_gram(self.federation.X, self.s))

    def covariance(self, b: np.ndarray, inverse: np.ndarray, kind: str) -> np.ndarray:
        """Return J^-1 M J^-1: M the squares of rows' scores (HC0, HC1), or of clients' sums (client: CR1).

        Raises
        ------
        ValueError
            For another kind, or one client.
        """
        U, _ = self.row_scores(b)
        n, p, K = self.n, self.parameters, self.federation.K
        if kind == "client":
            if K < 2:
                raise bad("robust='client'", "have at least 2 clients", K, "take HC0")
            U = np.add.reduceat(self.s[:, None] * U, self.federation.ptr[:-1], axis=0)
            return np.asarray(inverse @ (U.T @ U) @ inverse) * K / (K - 1.0) * (n - 1.0) / (n - p)
        if kind not in ("HC0", "HC1"):
            raise bad("analyse: robust", "be HC0, HC1 or client for family 'multinomial'", repr(kind))
        V = np.asarray(inverse @ ((U.T * self.s) @ U) @ inverse)
        return V * n / (n - p) if kind == "HC1" else V

    def alone(self) -> list[Any]:
        """Raise ValueError: clients with intercepts of their own are not offered for several classes."""
        raise bad("Analysis.differences", "be of a family with one score", "'multinomial'")

    def no_minimum(self, names: Sequence[str], J: np.ndarray) -> ValueError:
        """Return the error that says that no finite estimate is certified."""
        v = np.linalg.eigh(J)[1][:, 0]
        where = [names[j] for j in np.argsort(-np.abs(v)) if abs(v[j]) > 0.05 * np.abs(v).max()]
        what = f"the likelihood seems to rise for ever along {', '.join(where[:6])}"
        cure = "leave out what separates the classes, or merge classes and levels with few rows"
        return bad("analyse: the estimate", "be finite (the responses are separated)", what, cure)
