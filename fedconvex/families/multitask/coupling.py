"""How Mbar = Qbar^-1, the tie of m tasks, is held: as a matrix, or as a diagonal plus a product of thin factors.

Dual methods need of Mbar its product with images V (m, p), its diagonal, and a safe sigma'. A matrix (m, m) costs m^2 p
a product. Many relationships are Mbar = diag(a) + F F' with F (m, r): they are held as the array (m, 1 + r) of a and F,
and a product costs 2 m r p. Exactly of this form are

* `Independent` (r = 0), `Pooled` and `MeanRegularised` (r = 1), `Clustered` (r clusters);
* a learned `Covariance`: Omega = (W W' + e I)^{1/2}/trace has the singular vectors of W, at most min(m, p) of them, and
  equal eigenvalues off them; so has every function of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedconvex._check import among

DENSE = 500  # tasks up to which Mbar is a matrix


def mbar_of(relation: Any, m: int, width: int) -> np.ndarray:
    """Return Mbar for m tasks with models of so many numbers: (m, m), or (m, 1 + r) where that is much less."""
    factors = relation.factored(m, width) if m > DENSE else None
    if factors is None or 4 * factors.shape[1] > m:
        return np.asarray(relation.mbar(m))
    return np.asarray(factors)


def mbar_times(mbar: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Return Mbar V for V (..., m, p)."""
    if mbar.shape[-1] == mbar.shape[-2]:
        return np.asarray(mbar @ V)
    F = mbar[..., 1:]
    return np.asarray(mbar[..., :1] * V + F @ (np.swapaxes(F, -1, -2) @ V))


def mbar_diagonal(mbar: np.ndarray) -> np.ndarray:
    """Return the diagonal of Mbar, (..., m)."""
    if mbar.shape[-1] == mbar.shape[-2]:
        return np.einsum("...tt->...t", mbar)
    return np.asarray(mbar[..., 0] + np.sum(mbar[..., 1:] ** 2, axis=-1))


def dense(mbar: np.ndarray) -> np.ndarray:
    """Return Mbar (m, m)."""
    if mbar.shape[-1] == mbar.shape[-2]:
        return mbar
    return np.asarray(np.diag(mbar[:, 0]) + mbar[:, 1:] @ mbar[:, 1:].T)


def mbar_eigenvalue_bound(mbar: np.ndarray) -> float:
    """Return a bound of Mbar's largest eigenvalue."""
    if mbar.shape[-1] == mbar.shape[-2]:
        return float(np.linalg.norm(mbar, np.inf))
    F = mbar[:, 1:]
    return float(mbar[:, 0].max()) + (float(np.linalg.norm(F, 2)) ** 2 if F.size else 0.0)


def safe_sigma(mbar: np.ndarray, rule: str = "eigenvalue") -> float:
    """Return a sigma' with sigma' sum_t Mbar_tt ‖v_t‖^2 >= sum_st Mbar_st <v_s, v_t> for all v_1, ..., v_m.

    Parameters
    ----------
    mbar : array (m, m), or (m, 1 + r) of a diagonal and a factor
    rule : {"eigenvalue", "rows", "tasks"}
        lambda_max(D^-1/2 Mbar D^-1/2) with D the diagonal of Mbar, the least such number; max_t sum_s |Mbar_ts|/Mbar_tt
        (Smith et al. 2017, appendix; Gershgorin's bound of the former); m (by Cauchy-Schwarz).

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.families.multitask.relations import safe_sigma
    >>> mbar = np.array([[1.0, 0.5], [0.5, 4.0]])
    >>> [round(safe_sigma(mbar, rule), 9) for rule in ("eigenvalue", "rows", "tasks")]
    [1.25, 1.5, 2.0]
    """
    among("safe_sigma: rule", rule, ("eigenvalue", "rows", "tasks"))
    m, diagonal = len(mbar), mbar_diagonal(mbar)
    if rule == "tasks":
        return float(m)
    thin = mbar.shape[1] != m
    if rule == "rows":
        starts = range(0, m, DENSE if thin else m)
        sums = [np.abs(_rows(mbar, a, min(a + DENSE, m)) if thin else mbar).sum(axis=1) for a in starts]
        return float((np.concatenate(sums) / diagonal).max())
    scale = 1.0 / np.sqrt(diagonal)
    if thin:
        return _thin_eigenvalue(mbar[:, 0] / diagonal, mbar[:, 1:] * scale[:, None]) * (1.0 + 1e-13)
    return float(np.linalg.eigvalsh(mbar * np.outer(scale, scale))[-1]) * (1.0 + 1e-13)


def _rows(mbar: np.ndarray, a: int, b: int) -> np.ndarray:
    """Rows a, ..., b - 1 of a factored Mbar."""
    part = mbar[a:b, 1:] @ mbar[:, 1:].T
    part[np.arange(b - a), np.arange(a, b)] += mbar[a:b, 0]
    return np.asarray(part)


def _thin_eigenvalue(a: np.ndarray, F: np.ndarray) -> float:
    """Return lambda_max(diag(a) + F F') from above, to 1e-12: lam > max a is no less if F'(lam - a)^-1 F <= I."""
    low, most = float(a.max()), float(np.linalg.norm(F, 2) ** 2) if F.shape[1] else 0.0
    high = low + most * (1.0 + 1e-12)
    while high - low > 1e-12 * high:
        lam = 0.5 * (low + high)
        if np.linalg.eigvalsh(F.T @ (F / (lam - a)[:, None]))[-1] <= 1.0:
            high = lam
        else:
            low = lam
    return high


def pencil_sigma(mbar: np.ndarray, row_spaces: Sequence[np.ndarray]) -> float:
    """Return the least sigma' with sigma' sum_t Mbar_tt ‖v_t‖^2 >= sum_st Mbar_st <v_s, v_t> for v_t in the row spaces.

    With orthonormal bases Q_t (rank, d) of the tasks' row spaces: the largest eigenvalue of the matrix of blocks
    Mbar_st (Mbar_ss Mbar_tt)^-1/2 Q_s'Q_t. It is below `safe_sigma` only where row spaces differ.
    """
    mbar = dense(mbar)
    scale = 1.0 / np.sqrt(np.diag(mbar))
    task = np.repeat(np.arange(len(row_spaces)), [len(Q) for Q in row_spaces])
    if task.size == 0:  # no row differs from zero
        return 1.0
    Q = np.vstack(row_spaces)
    blocks = (Q @ Q.T) * (mbar * np.outer(scale, scale))[np.ix_(task, task)]
    return float(np.linalg.eigvalsh(blocks)[-1]) * (1.0 + 1e-12)
