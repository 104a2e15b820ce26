"""Task relationships: the regularisers R(W) of multi-task learning, as objects. W is (m, d), one row per task.

A fixed relationship is R(W) = (1/2) sum_st Qbar_st <w_s, w_t>, and all a dual method needs of it is Mbar = Qbar^-1:
W(alpha) = Mbar V and R*(V) = (1/2) sum_st Mbar_st <v_s, v_t>. Mbar may be singular: R is then infinite off its range.

============================  ===============================================  ==================================
`MeanRegularised`             lam1 tr(W' Omega W) + lam2 ‖W‖^2, Omega = the     Smith et al. (2017), eq. (3):
                              projection off the mean of all tasks              Omega is a *precision*
`Clustered`                   the same, off the means of given clusters
`Precision`                   the same, any given Omega, such as a Laplacian
`Covariance`                  lam (‖W‖^2/sigma2 + tr(W' Omega^-1 W)),           eq. (4): Omega is a *covariance*,
                              tr Omega = 1, given or learned                    Zhang, Yeung (2010)
`Independent`                 (l2/2) ‖W‖^2: every task alone                    local models
`Pooled`                      (l2/2) ‖W‖^2 on equal models: one for all         global model
============================  ===============================================  ==================================

The two meanings of Omega are opposite, hence two classes. Norms are Frobenius norms. `MeanRegularised(lam1, lam2)` runs
from `Independent(2 lam2)` at lam1 = 0 to `Pooled(2 lam2)` as lam1 grows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedconvex._check import array, bad, matrix, numeric, raw, real
from fedconvex.families.multitask.coupling import (
    DENSE,
    mbar_eigenvalue_bound,
    mbar_of,
    mbar_times,
    pencil_sigma,
    safe_sigma,
)

__all__ = [
    "Clustered",
    "Independent",
    "MeanRegularised",
    "Pooled",
    "Precision",
    "Relation",
    "check_size",
    "pencil_sigma",
    "safe_sigma",
    "semidefinite",
]


_EPS = float(np.finfo(float).eps)


class Relation(ABC):
    """A fixed relationship: what follows from Qbar and Mbar; `Covariance` refines it for a learned Omega."""

    learned = False

    @abstractmethod
    def qbar(self, m: int) -> np.ndarray:
        """Return Qbar (m, m), symmetric positive definite."""

    def mbar(self, m: int) -> np.ndarray:
        """Return Mbar = Qbar^-1 (m, m), symmetric positive semidefinite."""
        lam, U = np.linalg.eigh(self.qbar(m))
        return np.asarray((U / lam) @ U.T)

    def factored(self, m: int, width: int) -> np.ndarray | None:
        """Return a and F, (m, 1 + r), of Mbar = diag(a) + F F', or None where it is no such sum."""
        return None

    def value(self, W: np.ndarray) -> float:
        """R(W) for W (m, d), a sum of squares in the eigenvectors of Qbar."""
        W = matrix(f"{type(self).__name__}.value: W", W)
        lam, U = np.linalg.eigh(self.qbar(len(W)))
        return 0.5 * float(lam @ np.sum((U.T @ W) ** 2, axis=1))

    def conjugate(self, V: np.ndarray) -> float:
        """R*(V) = sup_W <V, W> - R(W) for V (m, d)."""
        V = matrix(f"{type(self).__name__}.conjugate: V", V)
        return 0.5 * float(np.sum(V * mbar_times(mbar_of(self, *V.shape), V)))

    def rounding(self, W: np.ndarray) -> float:
        """How far eigenvectors of Qbar may leave R(W), and R* of images with the models W, from the true ones."""
        W = matrix(f"{type(self).__name__}.rounding: W", W)
        m = len(W)
        return (8.0 + m) * _EPS * float(np.linalg.norm(self.qbar(m), np.inf)) * float(np.sum(W * W))

    def gap_rounding(self, mbar: np.ndarray, W: np.ndarray, V: np.ndarray) -> float:
        """How far R(W) + R*(V), or <W, V> at W = Mbar V, may be below the true sum; 0 for a learned Omega.

        Sums of V with large Mbar cancel where models are far more alike than Qbar's least eigenvalue asks for.
        """
        who = f"{type(self).__name__}.gap_rounding"
        mbar, W, V = matrix(f"{who}: mbar", mbar), matrix(f"{who}: W", W), matrix(f"{who}: V", V)
        if self.learned:
            return 0.0
        return (8.0 + math.sqrt(len(V))) * _EPS * mbar_eigenvalue_bound(mbar) * float(np.sum(V * V)) + self.rounding(W)

    def gradient(self, W: np.ndarray) -> np.ndarray:
        """Gradient of R at W (a subgradient where R has a kink), (m, d)."""
        W = matrix(f"{type(self).__name__}.gradient: W", W)
        return np.asarray(self.qbar(len(W)) @ W)


@dataclass(frozen=True)
class Independent(Relation):
    """R(W) = (l2/2) ‖W‖^2: tasks ignore each other.

    Parameters
    ----------
    l2 : float
        Positive.

    Raises
    ------
    ValueError, TypeError
        If l2 is not positive.

    Examples
    --------
    >>> from fedconvex.problems import Independent
    >>> Independent(2.0).mbar(2).tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """

    l2: float

    def __post_init__(self) -> None:
        real("Independent.l2", self.l2, low=0.0, strict=True)

    def mbar(self, m: int) -> np.ndarray:
        """Return I/l2."""
        return np.eye(m) / self.l2

    def factored(self, m: int, width: int) -> np.ndarray:
        """Return 1/l2 and no factor."""
        return np.full((m, 1), 1.0 / self.l2)

    def value(self, W: np.ndarray) -> float:
        """(l2/2) ‖W‖^2."""
        return 0.5 * self.l2 * float(np.sum(W * W)) if len(W) > DENSE else super().value(W)

    def rounding(self, W: np.ndarray) -> float:
        """8 eps R(W)."""
        return 4.0 * _EPS * self.l2 * float(np.sum(W * W))

    def gradient(self, W: np.ndarray) -> np.ndarray:
        """Return l2 W."""
        return self.l2 * W

    def qbar(self, m: int) -> np.ndarray:
        """Return l2 I."""
        return self.l2 * np.eye(m)


@dataclass(frozen=True)
class Pooled(Relation):
    """R(W) = (l2/2) ‖W‖^2 if all tasks have the same model w, else infinite: (m l2/2) ‖w‖^2.

    Parameters
    ----------
    l2 : float
        Positive.

    Raises
    ------
    ValueError, TypeError
        If l2 is not positive.

    Examples
    --------
    >>> from fedconvex.problems import Pooled
    >>> Pooled(2.0).mbar(2).tolist()
    [[0.25, 0.25], [0.25, 0.25]]
    """

    l2: float

    def __post_init__(self) -> None:
        real("Pooled.l2", self.l2, low=0.0, strict=True)

    def mbar(self, m: int) -> np.ndarray:
        """Return 11'/(m l2)."""
        return np.full((m, m), 1.0 / (m * self.l2))

    def factored(self, m: int, width: int) -> np.ndarray:
        """Return 0 and 1/sqrt(m l2)."""
        return np.tile([0.0, 1.0 / math.sqrt(m * self.l2)], (m, 1))

    def value(self, W: np.ndarray) -> float:
        """(l2/2) ‖W‖^2, infinite unless the rows are equal up to rounding."""
        if np.abs(W - W[0]).max() > 1e-12 * (np.abs(W).max() + 1e-300):
            return math.inf
        return 0.5 * self.l2 * float(np.sum(W * W))

    def rounding(self, W: np.ndarray) -> float:
        """8 eps R(W), of equal models."""
        return 4.0 * _EPS * self.l2 * float(np.sum(W * W))

    def qbar(self, m: int) -> np.ndarray:
        """Refused: R is infinite off equal models."""
        raise bad("Pooled", "be used with dual methods", "what needs Qbar, which is infinite", "use MOCHA")


@dataclass(frozen=True, eq=False)
class Precision(Relation):
    """R(W) = lam1 tr(W' Omega W) + lam2 ‖W‖^2, hence Qbar = 2 (lam1 Omega + lam2 I).

    Parameters
    ----------
    omega : array (m, m)
        Symmetric positive semidefinite, such as a graph Laplacian.
    lam1, lam2 : float
        Nonnegative, and such that Qbar is positive definite.

    Raises
    ------
    ValueError
        If omega is not symmetric positive semidefinite, or Qbar is singular.

    References
    ----------
    Smith, Chiang, Sanjabi, Talwalkar, "Federated multi-task learning", NIPS 2017, eq. (3) and Appendix B.

    Examples
    --------
    >>> from fedconvex.problems import Precision
    >>> path = Precision.laplacian([[0, 1, 0], [1, 0, 1], [0, 1, 0]], lam1=1.0, lam2=0.5)
    >>> path.omega.tolist()
    [[1.0, -1.0, 0.0], [-1.0, 2.0, -1.0], [0.0, -1.0, 1.0]]
    """

    omega: Any
    lam1: float
    lam2: float

    def __post_init__(self) -> None:
        omega = semidefinite("Precision.omega", self.omega)
        lam1 = real("Precision.lam1", self.lam1, low=0.0)
        lam2 = real("Precision.lam2", self.lam2, low=0.0)
        least = lam1 * max(float(np.linalg.eigvalsh(omega)[0]), 0.0) + lam2
        if not least > 1e-14 * lam1 * float(np.trace(omega)):
            raise bad("Precision", "have lam1 Omega + lam2 I positive definite", "a singular one", "take lam2 > 0")
        object.__setattr__(self, "omega", omega)

    @classmethod
    def laplacian(cls, adjacency: Any, lam1: float, lam2: float) -> Precision:
        """Return lam1 sum_{s<t} a_st ‖w_s - w_t‖^2 + lam2 ‖W‖^2 for edge weights a_st >= 0."""
        a = numeric("Precision.laplacian: adjacency", adjacency)
        if a.ndim != 2 or a.shape[0] != a.shape[1] or (a < 0.0).any() or np.abs(a - a.T).max() > 0.0:
            raise bad("Precision.laplacian: adjacency", "be square, symmetric and nonnegative", f"shape {a.shape}")
        return cls(np.diag(a.sum(axis=1)) - a, lam1, lam2)

    def qbar(self, m: int) -> np.ndarray:
        """Return 2 (lam1 Omega + lam2 I)."""
        check_size("Precision.omega", len(self.omega), m)
        return np.asarray(2.0 * (self.lam1 * self.omega + self.lam2 * np.eye(m)))


class _Means(Relation):
    """R(W) = lam1 ‖W - P W‖^2 + lam2 ‖W‖^2 for a projection P on groups of equal models."""

    lam1: float
    lam2: float

    def __post_init__(self) -> None:
        real(f"{type(self).__name__}.lam1", self.lam1, low=0.0)
        real(f"{type(self).__name__}.lam2", self.lam2, low=0.0, strict=True)

    def projection(self, m: int) -> np.ndarray:
        """Return P (m, m): one group of all tasks."""
        return np.full((m, m), 1.0 / m)

    def qbar(self, m: int) -> np.ndarray:
        """Return 2 (lam1 (I - P) + lam2 I)."""
        return np.asarray(2.0 * (self.lam1 * (np.eye(m) - self.projection(m)) + self.lam2 * np.eye(m)))

    def mbar(self, m: int) -> np.ndarray:
        """Return P/(2 lam2) + (I - P)/(2 (lam1 + lam2))."""
        P = self.projection(m)
        return np.asarray(P / (2.0 * self.lam2) + (np.eye(m) - P) / (2.0 * (self.lam1 + self.lam2)))

    def groups(self, m: int) -> np.ndarray:
        """Return the number of every task's group, (m,)."""
        return np.zeros(m, dtype=np.int64)

    def factored(self, m: int, width: int) -> np.ndarray:
        """Return 1/(2 (lam1 + lam2)) and, for each group, the rest on its mean."""
        code, apart = self.groups(m), 0.5 / (self.lam1 + self.lam2)
        out = np.zeros((m, 2 + int(code.max())))
        out[:, 0] = apart
        out[np.arange(m), 1 + code] = np.sqrt(np.maximum(0.5 / self.lam2 - apart, 0.0) / np.bincount(code)[code])
        return out

    def apart(self, W: np.ndarray) -> np.ndarray:
        """Return W - P W."""
        m = len(W)
        if m <= DENSE:
            return np.asarray(W - self.projection(m) @ W)
        code = self.groups(m)
        sums = np.array([np.bincount(code, column) for column in W.T]).T
        return np.asarray(W - (sums / np.bincount(code)[:, None])[code])

    def gradient(self, W: np.ndarray) -> np.ndarray:
        """Return 2 (lam1 (W - P W) + lam2 W)."""
        return 2.0 * (self.lam1 * self.apart(W) + self.lam2 * W) if len(W) > DENSE else super().gradient(W)

    def value(self, W: np.ndarray) -> float:
        """lam1 ‖W - P W‖^2 + lam2 ‖W‖^2, without the cancellation of <W, Qbar W>."""
        apart = self.apart(W)
        return self.lam1 * float(np.sum(apart * apart)) + self.lam2 * float(np.sum(W * W))

    def rounding(self, W: np.ndarray) -> float:
        """How far R(W) may be off, where W - P W is by (8 + sqrt m) eps ‖W‖; no eigenvectors are used."""
        off, size = (8.0 + math.sqrt(len(W))) * _EPS, float(np.linalg.norm(W))
        apart = float(np.linalg.norm(self.apart(W))) + off * size
        return off * (2.0 * self.lam1 * apart + self.lam2 * size) * size


@dataclass(frozen=True)
class MeanRegularised(_Means):
    """R(W) = lam1 sum_t ‖w_t - mean of all models‖^2 + lam2 ‖W‖^2.

    Parameters
    ----------
    lam1, lam2 : float
        Nonnegative; lam2 positive.

    Raises
    ------
    ValueError, TypeError
        If lam1 is negative, or lam2 not positive.

    References
    ----------
    Evgeniou, Pontil, "Regularized multi-task learning", KDD 2004. Smith et al. 2017: Omega = (I - 11'/m)^2.

    Examples
    --------
    >>> from fedconvex.problems import MeanRegularised
    >>> MeanRegularised(lam1=1.0, lam2=0.5).qbar(2).tolist()
    [[2.0, -1.0], [-1.0, 2.0]]
    """

    lam1: float
    lam2: float


@dataclass(frozen=True)
class Clustered(_Means):
    """R(W) = lam1 sum_t ‖w_t - mean of the models of t's cluster‖^2 + lam2 ‖W‖^2.

    Parameters
    ----------
    clusters : sequence of m labels
        Whose cluster each task is in.
    lam1, lam2 : float
        Nonnegative; lam2 positive.

    Raises
    ------
    ValueError, TypeError
        If clusters are not one label per task, lam1 is negative, or lam2 not positive.

    References
    ----------
    Smith et al. 2017, Appendix B: Omega projects off the means of the clusters, which are given here.

    Examples
    --------
    >>> from fedconvex.problems import Clustered
    >>> Clustered((0, 0, 1), lam1=1.0, lam2=0.5).qbar(3).tolist()
    [[2.0, -1.0, 0.0], [-1.0, 2.0, 0.0], [0.0, 0.0, 1.0]]
    """

    clusters: Any
    lam1: float
    lam2: float

    def __post_init__(self) -> None:
        labels = raw("Clustered.clusters", self.clusters)
        if labels.ndim != 1 or labels.size == 0 or labels.dtype.kind not in "iubUS":
            raise bad("Clustered.clusters", "hold one label per task, numbers or texts", f"{self.clusters!r}")
        object.__setattr__(self, "clusters", tuple(labels.tolist()))
        super().__post_init__()

    def groups(self, m: int) -> np.ndarray:
        """Return the number of every task's cluster, (m,)."""
        check_size("Clustered.clusters", len(self.clusters), m)
        return np.unique(np.asarray(self.clusters), return_inverse=True)[1]

    def projection(self, m: int) -> np.ndarray:
        """Return the projection on models that are equal within clusters."""
        labels = self.groups(m)
        same = np.equal.outer(labels, labels).astype(float)
        return np.asarray(same / same.sum(axis=1))


def semidefinite(who: str, x: Any) -> np.ndarray:
    """Return x as a symmetric positive semidefinite read-only array."""
    a = array(who, x, (None, None))
    if a.shape[0] != a.shape[1] or a.size == 0:
        raise bad(who, "be square", f"shape {a.shape}")
    size = float(np.abs(a).max())
    if np.abs(a - a.T).max() > 1e-12 * size:
        raise bad(who, "be symmetric", f"entries that differ by {np.abs(a - a.T).max():g}")
    a = 0.5 * (a + a.T)
    least = float(np.linalg.eigvalsh(a)[0])
    if least < -1e-12 * size * len(a):
        raise bad(who, "be positive semidefinite", f"least eigenvalue {least:g}")
    a.flags.writeable = False
    return a


def check_size(who: str, mine: int, m: int) -> None:
    """Raise unless a relationship is for as many tasks as there are."""
    if mine != m:
        raise bad(who, f"be for {m} tasks, the clients of the federation", f"{mine}")
