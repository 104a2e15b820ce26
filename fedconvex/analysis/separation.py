"""Where a likelihood rises for ever: directions of recession, the rows they lose, and the limit of the estimates.

N has a minimum iff there is no direction v along which it does not rise and some score moves. Logistic: x_i'v >= 0
where y_i = 1 and <= 0 where y_i = 0 (Albert and Anderson, Biometrika 71, 1984). Poisson and negative binomial:
x_i'v = 0 where y_i > 0 and <= 0 where y_i = 0 (Correia, Guimaraes and Zylkin, arXiv:1903.01633, 2019). Gamma and
gaussian always have one. Along v of largest support the losses of rows with x_i'v != 0 go to zero: inf N is the minimum
over the others, and so are the limits of the coefficients that v leaves alone (Clarkson and Jennrich, J. R. Statist.
Soc. B 53, 1991). A linear programme finds v; it reads rows.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedconvex.analysis.likelihood import LikelihoodProblem, certified_minimum
from fedconvex.federation import Federation

_TOLERANCE = 1e-7  # of a linear programme, in standardised columns


class Recession:
    """Directions along which N does not rise.

    Parameters
    ----------
    problem : LikelihoodProblem
        Columns of one scale. Site intercepts are directions too, and clients whose responses all agree are left out.
    """

    def __init__(self, problem: LikelihoodProblem) -> None:
        fed = problem.federation
        self.problem, self.p = problem, problem.size
        code = np.repeat(np.arange(fed.K), fed.sizes)
        self.heard = np.flatnonzero(~problem.silent[code] & (fed.sample_weight > 0.0 if _weighed(fed) else True))
        X, y = fed.X[self.heard], fed.y[self.heard]
        if problem.site_intercepts:
            X = np.column_stack([X, np.eye(fed.K)[code[self.heard]][:, ~problem.silent]])
        if problem.family.loss == "Logistic":
            self.signed, self.still = np.where(y > 0.5, 1.0, -1.0)[:, None] * X, X[:0]
        elif problem.family.loss in ("Poisson", "NegativeBinomial"):
            self.signed, self.still = np.where(y == 0.0, -1.0, 0.0)[:, None] * X, X[y > 0.0]
        else:
            self.signed, self.still = X[:0], X

    @cached_property
    def moved(self) -> np.ndarray:
        """Rows whose losses go to zero along a direction of largest support, indices (m,); none where N is attained."""
        return self.moved_along(None)

    @property
    def direction(self) -> np.ndarray:
        """A direction of largest support, (p,); zero where there is none."""
        return self._widest(None)[0][: self.p]

    def moved_along(self, level: np.ndarray | None) -> np.ndarray:
        """Return the rows that directions with level'v = 0 lose, indices (m,)."""
        return self.heard[self._widest(level)[1]]

    def _widest(self, level: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Maximise sum t_i over directions with t_i <= c_i'v, 0 <= t_i <= 1."""
        from scipy import sparse

        q = self.signed.shape[1]
        C, back = np.unique(self.signed, axis=0, return_inverse=True)
        m = len(C)
        if m == 0:
            return np.zeros(q), np.zeros(0, dtype=np.int64)
        A = sparse.hstack([sparse.csr_array(-C), sparse.identity(m)], format="csr")
        equal = self._equalities(level)
        E = sparse.hstack([sparse.csr_array(equal), sparse.csr_array((len(equal), m))], format="csr")
        found = _programme(np.r_[np.zeros(q), np.ones(m)], A, E, [(None, None)] * q + [(0.0, 1.0)] * m)
        return found[:q], np.flatnonzero(found[q:][back.ravel()] > 0.5)

    def rises(self, a: np.ndarray) -> bool:
        """Return whether a'v > 0 for one of the directions, a (p,)."""
        q = self.signed.shape[1]
        full = np.zeros(q)
        full[: self.p] = a / np.linalg.norm(a)
        v = _programme(full, -np.unique(self.signed, axis=0), self._equalities(None), [(-1.0, 1.0)] * q)
        return float(full @ v) > 10.0 * _TOLERANCE

    def _equalities(self, level: np.ndarray | None) -> np.ndarray:
        rows = np.unique(self.still, axis=0)
        if level is None:
            return rows
        last = np.zeros((1, self.signed.shape[1]))
        last[0, : self.p] = level / np.linalg.norm(level)
        return np.vstack([rows, last])

    def rest(self, moved: np.ndarray) -> tuple[LikelihoodProblem | None, np.ndarray]:
        """Return the problem of the other rows heard, in the coordinates that they determine, and P (p, r): b = P c.

        None where no row is left; r = 1 and P = 0 where they determine none.
        """
        fed, own = self.problem.federation, self.problem.site_intercepts
        kept = np.setdiff1d(self.heard, moved)
        code = np.repeat(np.arange(fed.K), fed.sizes)[kept]
        if kept.size == 0:
            return None, np.zeros((self.p, 1))
        X = np.array(fed.X[kept])
        for k in np.unique(code) if own else ():
            X[code == k] -= X[code == k].mean(axis=0)
        lengths, V = np.linalg.svd(X, full_matrices=False)[1:]
        P = V[lengths > 1e-9 * max(float(lengths[0]), 1.0)].T
        P = P if P.size else np.zeros((self.p, 1))
        some = {name: None if (a := getattr(fed, name)) is None else a[kept] for name in ("sample_weight", "offset")}
        rows = Federation.from_arrays(np.ascontiguousarray(fed.X[kept] @ P), fed.y[kept], code, **some)
        return LikelihoodProblem(rows, self.problem.family, site_intercepts=own), P


class Infimum(NamedTuple):
    """inf N, and where the coefficients tend to."""

    N: float
    gap: float  # of N
    b: np.ndarray  # (p,) for coefficients that directions of recession leave alone
    pearson: float
    rounding: float  # of N


def infimum(recession: Recession) -> Infimum:
    """Return the minimum over the rows that no direction of recession moves."""
    rest, P = recession.rest(recession.moved)
    if rest is None:
        return Infimum(0.0, 0.0, np.zeros(recession.p), 0.0, 0.0)
    if P.any():
        found = certified_minimum(rest, np.zeros((1, rest.size)))
        c, N, gap = found.b[0], float(found.value[0]), float(found.gap[0])
    else:
        c = np.zeros(1)
        N, gap = float(rest.sums(c[None]).values[0]), 0.0
    return Infimum(N, gap, P @ c, rest.pearson(c), rest.value_rounding(c))


def _weighed(fed: Any) -> bool:
    return fed.sample_weight is not None


def _programme(objective: np.ndarray, A: Any, E: Any, bounds: list) -> np.ndarray:
    """Maximise objective'x subject to A x <= 0, E x = 0 and bounds."""
    from scipy.optimize import linprog

    found = linprog(
        -objective, A if A.shape[0] else None, np.zeros(A.shape[0]) if A.shape[0] else None,
        E if E.shape[0] else None, np.zeros(E.shape[0]) if E.shape[0] else None, bounds, method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )  # fmt: skip
    if found.x is None:
        raise RuntimeError(f"the linear programme of separation ended with: {found.message}")
    return np.asarray(found.x)
