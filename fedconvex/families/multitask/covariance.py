"""The covariance of tasks, given or learned with the models: R(W) and its conjugate, and Omega from W.

A learned Omega is minimised over: min_Omega tr(W' Omega^-1 W) = ‖W‖_*^2, the square of the nuclear norm, attained at
Omega = (W W')^{1/2} / tr (W W')^{1/2}. So the joint problem is convex, R(W) = lam (‖W‖^2/sigma2 + ‖W‖_*^2), and its
conjugate is a function of the singular values s of V: with x_i = (s_i - 2 lam T)_+ sigma2/(2 lam) and T = sum x_i,
R*(V) = <s, x> - lam (‖x‖^2/sigma2 + T^2); for sigma2 = inf it is s_1^2/(4 lam).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedconvex._check import bad, matrix, real
from fedconvex.families.multitask.relations import Relation, check_size, semidefinite

FLOOR = 1e-10  # of the eigenvalues of a learned Omega, whose trace is one


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
            omega = semidefinite("Covariance.omega", self.omega)
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
        return float(s @ x) - self.lam * (float(x @ x) / self.sigma2 + float(x.sum()) * float(x.sum()))

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

    def factored(self, m: int, width: int) -> np.ndarray | None:
        """Return the start of a learned Omega, I/m, with room for the factor of later ones; None for a given one."""
        return self.factored_of(np.zeros((m, width)), 0.0) if self.learned else None

    def factored_of(self, W: np.ndarray, epsilon: float, rank: int | None = None) -> np.ndarray:
        """Return `mbar_of` as a diagonal and a factor, (m, 1 + r), from the singular vectors of W.

        With all r = min(m, d) of them exactly. With fewer, Omega is the minimiser of tr((W W' + e I) Omega^-1) among
        matrices kappa I + (rank r) of trace one: its leading eigenvalues are proportional to sqrt(s_i^2 + e), and kappa
        to the root of the mean of s_i^2 + e over the others.
        """
        m, total = len(W), float(np.sum(W * W))
        U, s, _ = np.linalg.svd(W, full_matrices=False)
        if not (total > 0.0 and math.isfinite(total)):
            s, total, epsilon = np.zeros(len(s)), float(m), 1.0
        e, r = epsilon * total / m, len(s) if rank is None else min(rank, len(s))
        rest = float(s[r:] @ s[r:]) / (m - r) if r < m else 0.0
        root, count = np.sqrt(np.append(s[:r] ** 2, rest) + e), np.append(np.ones(r), m - r)
        root = np.maximum(root / (count @ root), FLOOR)
        w = root / (count @ root)
        f = w / (2.0 * self.lam * (1.0 + w / self.sigma2))
        return np.hstack([np.full((m, 1), f[-1]), U[:, :r] * np.sqrt(f[:-1] - f[-1])])

    def _given(self, m: int) -> np.ndarray:
        """Omega, or that of the start."""
        omega = np.eye(m) / m if self.omega is None else self.omega
        check_size("Covariance.omega", len(omega), m)
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
