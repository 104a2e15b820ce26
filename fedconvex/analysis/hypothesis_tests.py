"""Wald, likelihood-ratio and score tests of linear restrictions.

Where the dispersion is estimated, statistics over their degrees of freedom are compared with F, as R's anova does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats

from fedconvex._check import bad


class Significance(NamedTuple):
    """One test."""

    statistic: float
    df: int  # restrictions q
    residual_df: float | None  # of F; None for chi-squared
    p: float
    rounding: float = 0.0  # what the statistic is off by at most, from certified gaps

    @property
    def distribution(self) -> str:
        """Return the reference distribution, as "chi2(3)" or "F(3, 120)"."""
        return f"chi2({self.df})" if self.residual_df is None else f"F({self.df}, {self.residual_df:g})"


def _against(statistic: float, q: int, residual_df: float | None, rounding: float = 0.0) -> Significance:
    if residual_df is None:
        return Significance(statistic, q, None, float(stats.chi2.sf(statistic, q)), rounding)
    p = float(stats.f.sf(statistic / q, q, residual_df))
    return Significance(statistic / q, q, residual_df, p, rounding / q)


def of_columns(columns: list[int] | np.ndarray, p: int) -> np.ndarray:
    """Return the restrictions that these coefficients are zero, (q, p)."""
    return np.eye(p)[np.asarray(columns, dtype=np.int64)]


def wald(
    b: np.ndarray,
    V: np.ndarray,
    R: np.ndarray,
    r: np.ndarray | None = None,
    residual_df: float | None = None,
    clients: int | None = None,
) -> Significance:
    """Test R b = r by (R b - r)'(R V R')^-1 (R b - r).

    Parameters
    ----------
    b, V : arrays (p,), (p, p)
        Estimate and covariance.
    R, r : arrays (q, p), (q,)
        Restrictions; r is zero by default.
    residual_df : float, optional
        n - p where the dispersion is estimated, K - 1 where V is clustered: then F.
    clients : int, optional
        K where V is clustered by client: its rank is at most K - 1.

    Raises
    ------
    ValueError
        If restrictions depend on each other, or V has no rank for them.
    """
    R = np.atleast_2d(R)
    q = len(R)
    away = R @ b - (0.0 if r is None else r)
    if clients is not None and q > clients - 1:
        got = f"{q} restrictions, {clients} clients"
        raise bad(
            "a Wald test with a covariance clustered by client",
            "have fewer restrictions than clients",
            got,
            "the covariance has rank K - 1: test fewer terms together, or take a likelihood-ratio test",
        )
    middle = R @ V @ R.T
    scale = np.sqrt(np.maximum(np.diagonal(middle), 0.0))
    if not (scale > 0.0).all() or np.linalg.matrix_rank(middle / scale / scale[:, None], tol=1e-10 * q) < q:
        cure = "drop restrictions that follow from others, and coefficients without a standard error"
        raise bad("the covariance of the restrictions", "have full rank", f"rank below {q}", cure)
    statistic = float((away / scale) @ np.linalg.solve(middle / scale / scale[:, None], away / scale))
    return _against(statistic, q, residual_df)


def likelihood_ratio(
    N0: float, N1: float, q: int, phi: float = 1.0, residual_df: float | None = None, gap: float = 0.0
) -> Significance:
    """Test q restrictions by 2 (N0 - N1)/phi, N0 and N1 the minima with and without them.

    Parameters
    ----------
    phi : float
        Dispersion of the larger model.
    residual_df : float, optional
        n - p of the larger model where phi is estimated.
    gap : float
        Sum of the certified gaps of both minima.
    """
    if q < 1:
        raise bad("a likelihood-ratio test", "have at least one restriction", q)
    return _against(max(2.0 * (N0 - N1) / phi, 0.0), q, residual_df, 2.0 * gap / phi)


def score(
    gradient: np.ndarray, J: np.ndarray, q: int, phi: float = 1.0, residual_df: float | None = None
) -> Significance:
    """Test q restrictions by g'J^-1 g/phi, gradient (p,) and expected information (p, p) at the restricted minimum.

    The gradient is that of the larger model: it vanishes along what the restrictions leave free. phi is the larger
    model's, as in R.
    """
    scale = np.sqrt(np.maximum(np.diagonal(J), 0.0))
    if not (scale > 0.0).all():
        columns = np.flatnonzero(scale == 0.0).tolist()
        raise bad("the information", "be positive for every column", f"zero for columns {columns}", "drop them")
    half = gradient / scale
    return _against(float(half @ np.linalg.solve(J / scale / scale[:, None], half)) / phi, q, residual_df)
