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

A learned Omega is minimised over: min_Omega tr(W' Omega^-1 W) = ‖W‖_*^2, the square of the nuclear norm, attained at
Omega = (W W')^{1/2} / tr (W W')^{1/2}. So the joint problem is convex, R(W) = lam (‖W‖^2/sigma2 + ‖W‖_*^2), and its
conjugate is a function of the singular values s of V: with x_i = (s_i - 2 lam T)_+ sigma2/(2 lam) and T = sum x_i,
R*(V) = <s, x> - lam (‖x‖^2/sigma2 + T^2); for sigma2 = inf it is s_1^2/(4 lam).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedconvex._check import among, array, bad, matrix, numeric, raw, real

__all__ = [
    "Clustered",
    "Covariance",
    "Independent",
    "MeanRegularised",
    "Pooled",
    "Precision",
    "Relation",
    "pencil_sigma",
    "safe_sigma",
]

FLOOR = 1e-10  # of the eigenvalues of a learned Omega, whose trace is one


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

    def value(self, W: np.ndarray) -> float:
        """R(W) for W (m, d), a sum of squares in the eigenvectors of Qbar."""
        lam, U = np.linalg.eigh(self.qbar(len(W)))
        return 0.5 * float(lam @ np.sum((U.T @ W) ** 2, axis=1))

    def conjugate(self, V: np.ndarray) -> float:
        """R*(V) = sup_W <V, W> - R(W) for V (m, d)."""
        return 0.5 * float(np.sum(V * (self.mbar(len(V)) @ V)))

    def gradient(self, W: np.ndarray) -> np.ndarray:
        """Gradient of R at W (a subgradient where R has a kink), (m, d)."""
        return np.asarray(self.qbar(len(W)) @ W)


def safe_sigma(mbar: np.ndarray, rule: str = "eigenvalue") -> float:
    """Return a sigma' with sigma' sum_t Mbar_tt ‖v_t‖^2 >= sum_st Mbar_st <v_s, v_t> for all v_1, ..., v_m.

    Parameters
    ----------
    mbar : array (m, m)
    rule : {"eigenvalue", "rows", "tasks"}
        lambda_max(D^-1/2 Mbar D^-1/2) with D the diagonal of Mbar, the least such number; max_t sum_s |Mbar_ts|/Mbar_tt
        (Smith et al. 2017, appendix; Gershgorin's bound of the former); m (by Cauchy-Schwarz).

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.problems.relations import safe_sigma
    >>> mbar = np.array([[1.0, 0.5], [0.5, 4.0]])
    >>> [round(safe_sigma(mbar, rule), 9) for rule in ("eigenvalue", "rows", "tasks")]
    [1.25, 1.5, 2.0]
    """
    among("safe_sigma: rule", rule, ("eigenvalue", "rows", "tasks"))
    diagonal = np.diag(mbar)
    if rule == "tasks":
        return float(len(mbar))
    if rule == "rows":
        return float((np.abs(mbar).sum(axis=1) / diagonal).max())
    scale = 1.0 / np.sqrt(diagonal)
    return float(np.linalg.eigvalsh(mbar * np.outer(scale, scale))[-1]) * (1.0 + 1e-13)


def pencil_sigma(mbar: np.ndarray, row_spaces: Sequence[np.ndarray]) -> float:
    """Return the least sigma' with sigma' sum_t Mbar_tt ‖v_t‖^2 >= sum_st Mbar_st <v_s, v_t> for v_t in the row spaces.

    With orthonormal bases Q_t (rank, d) of the tasks' row spaces: the largest eigenvalue of the matrix of blocks
    Mbar_st (Mbar_ss Mbar_tt)^-1/2 Q_s'Q_t. It is below `safe_sigma` only where row spaces differ.
    """
    scale = 1.0 / np.sqrt(np.diag(mbar))
    task = np.repeat(np.arange(len(row_spaces)), [len(Q) for Q in row_spaces])
    if task.size == 0:  # no row differs from zero
        return 1.0
    Q = np.vstack(row_spaces)
    blocks = (Q @ Q.T) * (mbar * np.outer(scale, scale))[np.ix_(task, task)]
    return float(np.linalg.eigvalsh(blocks)[-1]) * (1.0 + 1e-12)


@dataclass(frozen=True)
class Independent(Relation):
    """R(W) = (l2/2) ‖W‖^2: tasks ignore each other.

    Parameters
    ----------
    l2 : float
        Positive.

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

    def value(self, W: np.ndarray) -> float:
        """(l2/2) ‖W‖^2, infinite unless the rows are equal up to rounding."""
        if np.abs(W - W[0]).max() > 1e-12 * (np.abs(W).max() + 1e-300):
            return math.inf
        return 0.5 * self.l2 * float(np.sum(W * W))

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
        omega = _semidefinite("Precision.omega", self.omega)
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
        _size("Precision.omega", len(self.omega), m)
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

    def value(self, W: np.ndarray) -> float:
        """lam1 ‖W - P W‖^2 + lam2 ‖W‖^2, without the cancellation of <W, Qbar W>."""
        apart = W - self.projection(len(W)) @ W
        return self.lam1 * float(np.sum(apart * apart)) + self.lam2 * float(np.sum(W * W))


@dataclass(frozen=True)
class MeanRegularised(_Means):
    """R(W) = lam1 sum_t ‖w_t - mean of all models‖^2 + lam2 ‖W‖^2.

    Parameters
    ----------
    lam1, lam2 : float
        Nonnegative; lam2 positive.

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

    def projection(self, m: int) -> np.ndarray:
        """Return the projection on models that are equal within clusters."""
        _size("Clustered.clusters", len(self.clusters), m)
        labels = np.unique(np.asarray(self.clusters), return_inverse=True)[1]
        same = np.equal.outer(labels, labels).astype(float)
        return np.asarray(same / same.sum(axis=1))


@dataclass(frozen=True, eq=False)
class Covariance(Relation):
    """R(W) = lam (‖W‖^2/sigma2 + tr(W' Omega^-1 W)) with tr Omega = 1; Omega given, or learned with W.

    The reference implementation of MOCHA averages losses per task and takes (lambda/2) tr(W' Omega^-1 W) without the L2
    term: ``MultiTaskProblem(..., Covariance(lambda/2), normalisation="mean")``.

    Parameters
    ----------
    lam : float
        Positive.
    sigma2 : float
        Positive; inf leaves the L2 term out.
    omega : array (m, m), optional
        Symmetric positive definite, of trace one; None minimises over it, R(W) = lam (‖W‖^2/sigma2 + ‖W‖_*^2).

    Raises
    ------
    ValueError
        If omega is not symmetric positive definite with trace one.

    References
    ----------
    Zhang, Yeung, "A convex formulation for learning task relationships in multi-task learning", UAI 2010. Smith et al.
    2017, eq. (4). The joint form and its conjugate: docs/mocha.md.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.problems import Covariance
    >>> W = np.diag([3.0, 1.0])
    >>> Covariance(0.5).value(W), Covariance(0.5).omega_of(W, 0.0).round(9).tolist()
    (8.0, [[0.75, 0.0], [0.0, 0.25]])
    """

    lam: float
    sigma2: float = math.inf
    omega: Any = None

    def __post_init__(self) -> None:
        real("Covariance.lam", self.lam, low=0.0, strict=True)
        if not (isinstance(self.sigma2, float) and self.sigma2 == math.inf):
            real("Covariance.sigma2", self.sigma2, low=0.0, strict=True)
        if self.omega is not None:
            omega = _semidefinite("Covariance.omega", self.omega)
            if abs(float(np.trace(omega)) - 1.0) > 1e-9:
                raise bad("Covariance.omega", "have trace one", f"{np.trace(omega):g}", "divide it by its trace")
            if not float(np.linalg.eigvalsh(omega)[0]) > 1e-14:
                raise bad("Covariance.omega", "be positive definite", "a singular one", "add a multiple of I")
            object.__setattr__(self, "omega", omega)

    @property
    def learned(self) -> bool:  # type: ignore[override]
        """Whether Omega is minimised over."""
        return self.omega is None

    def mbar(self, m: int) -> np.ndarray:
        """Return (2 lam (Omega^-1 + I/sigma2))^-1; for a learned Omega that of the start, Omega = I/m."""
        return self._mbar(*np.linalg.eigh(self._given(m)))

    def qbar(self, m: int) -> np.ndarray:
        """Return 2 lam (Omega^-1 + I/sigma2); for a learned Omega that of the start, Omega = I/m."""
        return np.asarray(2.0 * self.lam * (np.linalg.inv(self._given(m)) + np.eye(m) / self.sigma2))

    def value(self, W: np.ndarray) -> float:
        """R(W); with a learned Omega lam (‖W‖^2/sigma2 + ‖W‖_*^2)."""
        if not self.learned:
            return super().value(W)
        if not np.isfinite(W := matrix("Covariance.value: W", W)).all():
            return math.inf
        s = np.linalg.svd(W, compute_uv=False)
        return self.lam * (float(s @ s) / self.sigma2 + float(s.sum()) * float(s.sum()))

    def conjugate(self, V: np.ndarray) -> float:
        """R*(V); with a learned Omega from the singular values of V."""
        if not self.learned:
            return super().conjugate(V)
        if not np.isfinite(matrix("Covariance.conjugate: V", V)).all():
            return math.inf
        s = np.linalg.svd(V, compute_uv=False)
        if self.sigma2 == math.inf:
            return float(s[0] * s[0]) / (4.0 * self.lam)
        x = _shrink(s, 2.0 * self.lam, 2.0 * self.lam / self.sigma2)
        return float(s @ x) - self.lam * (float(x @ x) / self.sigma2 + float(x.sum()) ** 2)

    def gradient(self, W: np.ndarray) -> np.ndarray:
        """Return a subgradient of R at W."""
        if not self.learned:
            return super().gradient(W)
        U, s, Vt = np.linalg.svd(matrix("Covariance.gradient: W", W, True), full_matrices=False)
        keep = s > 1e-12 * max(float(s[0]), 1e-300)
        return np.asarray(2.0 * self.lam * (np.asarray(W) / self.sigma2 + float(s.sum()) * (U[:, keep] @ Vt[keep])))

    def proximal(self, Z: np.ndarray, step: float) -> np.ndarray:
        """Return argmin_W step R(W) + ‖W - Z‖^2/2 for a learned Omega: singular values are shrunk.

        With a = 2 step lam: x_i = (s_i - a T)_+ / (1 + a/sigma2), T = sum x_i.
        """
        U, s, Vt = np.linalg.svd(matrix("Covariance.proximal: Z", Z, True), full_matrices=False)
        a = 2.0 * real("Covariance.proximal: step", step, low=0.0, strict=True) * self.lam
        return np.asarray((U * _shrink(s, a, 1.0 + a / self.sigma2)) @ Vt)

    def omega_of(self, W: np.ndarray, epsilon: float) -> np.ndarray:
        """Return (W W' + e I)^{1/2} scaled to trace one, e = epsilon ‖W‖^2/m, eigenvalues floored; (m, m).

        I/m if W = 0.
        """
        w, U = _root(W, epsilon)
        return np.asarray((U * w) @ U.T)

    def mbar_of(self, W: np.ndarray, epsilon: float) -> np.ndarray:
        """Return (2 lam (Omega^-1 + I/sigma2))^-1 for Omega = `omega_of`, from the same eigenvectors."""
        return self._mbar(*_root(W, epsilon))

    def _given(self, m: int) -> np.ndarray:
        """Omega, or that of the start."""
        omega = np.eye(m) / m if self.omega is None else self.omega
        _size("Covariance.omega", len(omega), m)
        return np.asarray(omega)

    def _mbar(self, w: np.ndarray, U: np.ndarray) -> np.ndarray:
        """(2 lam (Omega^-1 + I/sigma2))^-1 from the eigenvalues w >= 0 of Omega and its eigenvectors."""
        return np.asarray((U * (w / (2.0 * self.lam * (1.0 + w / self.sigma2)))) @ U.T)


def _root(W: np.ndarray, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors of (W W' + e I)^{1/2} scaled to trace one, e = epsilon ‖W‖^2/m; floored."""
    W, epsilon = matrix("Covariance: W", W), real("Covariance: epsilon", epsilon, low=0.0)
    m, total = len(W), float(np.sum(W * W))
    if not (total > 0.0 and math.isfinite(total)):
        return np.full(m, 1.0 / m), np.eye(m)
    lam, U = np.linalg.eigh(W @ W.T)
    root = np.sqrt(np.maximum(lam, 0.0) + epsilon * total / m)
    root = np.maximum(root / root.sum(), FLOOR)
    return root / root.sum(), U


def _shrink(s: np.ndarray, a: float, grow: float) -> np.ndarray:
    """Return x_i = (s_i - a T)_+ / grow, T = sum x_i the largest (s_1 + ... + s_r)/(grow + r a), s >= 0 decreasing."""
    T = np.max(np.cumsum(s) / (grow + a * np.arange(1, s.size + 1)))
    return np.maximum(s - a * T, 0.0) / grow


def _semidefinite(who: str, x: Any) -> np.ndarray:
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


def _size(who: str, mine: int, m: int) -> None:
    if mine != m:
        raise bad(who, f"be for {m} tasks, the clients of the federation", f"{mine}")
