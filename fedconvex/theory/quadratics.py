"""Least squares as the sum of quadratics that it is: Hessians and linear terms of the clients, and how they differ."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedconvex._check import array, instance
from fedconvex.loss_traits import traits
from fedconvex.problems import Problem
from fedconvex.theory.bound import AssumptionError

EPS = float(np.finfo(float).eps)


class Quadratic(NamedTuple):
    """Least squares as the sum of quadratics that it is: F_k(w) = w'H_k w/2 - b_k'w + const.

    Attributes
    ----------
    H : array (K, d, d)
        Hessians of the clients, X_k'X_k/n_k + l2 I.
    b : array (K, d)
        Their linear terms, X_k'y_k/n_k.
    p : array (K,)
        Client weights.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theory.fixed_points import Quadratic
    >>> q = Quadratic(np.array([[[1.0]], [[3.0]]]), np.array([[1.0], [9.0]]), np.array([0.5, 0.5]))
    >>> q.minimiser, q.minimisers.ravel(), q.gradients(q.minimiser).ravel()
    (array([2.5]), array([1., 3.]), array([ 1.5, -1.5]))
    """

    H: np.ndarray  # (K, d, d)
    b: np.ndarray  # (K, d)
    p: np.ndarray  # (K,)

    @property
    def minimiser(self) -> np.ndarray:
        """Minimiser of F of least norm (d,)."""
        return _least_norm(np.tensordot(self.p, self.H, 1), self.p @ self.b)

    @property
    def minimisers(self) -> np.ndarray:
        """Clients' own minimisers of least norm (K, d)."""
        return np.array([_least_norm(H, b) for H, b in zip(self.H, self.b, strict=True)])

    def gradients(self, w: np.ndarray) -> np.ndarray:
        """Clients' gradients at w (K, d)."""
        return np.asarray(self.H @ w - self.b)


class Spread(NamedTuple):
    """How the clients of a least-squares problem differ.

    Attributes
    ----------
    tau : float
        Largest distance of two Hessians, max ‖H_j - H_k‖ in the spectral norm.
    tau_rms : float
        Of the Hessians from their mean: (sum p_k ‖H_k - H‖^2)^(1/2).
    xi : float
        Of the clients' minimisers from that of F: (sum p_k ‖w_k* - w*‖^2)^(1/2).
    zeta_star : float
        Of the clients' gradients at w* from 0: (sum p_k ‖grad F_k(w*)‖^2)^(1/2).

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.fixed_points import spread
    >>> same_rows = Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])])
    >>> spread(Problem(same_rows, Squared()))  # minimisers 1 and 3, one Hessian
    Spread(tau=0.0, tau_rms=0.0, xi=1.0, zeta_star=1.0)
    """

    tau: float  # max ‖H_j - H_k‖
    tau_rms: float  # (sum p_k ‖H_k - H‖^2)^(1/2)
    xi: float  # (sum p_k ‖w_k* - w*‖^2)^(1/2)
    zeta_star: float  # (sum p_k ‖grad F_k(w*)‖^2)^(1/2)


def quadratic(problem: Problem) -> Quadratic:
    """Return a least-squares problem as its quadratics: H_k = X_k'X_k/n_k + l2 I and b_k = X_k'y_k/n_k of every client.

    Parameters
    ----------
    problem : Problem
        With the Squared loss and without a penalty; row weights are taken into account.

    Raises
    ------
    AssumptionError
        If the loss is not Squared, or there is a penalty.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.fixed_points import quadratic
    >>> q = quadratic(Problem(Federation.from_clients([([[1.0]], [1.0]), ([[3.0]], [3.0])]), Squared()))
    >>> q.H.ravel(), q.b.ravel(), q.minimiser
    (array([1., 9.]), array([1., 9.]), array([1.]))
    """
    instance("problem", problem, Problem)
    if not traits(problem.loss).quadratic:
        raise AssumptionError(f"quadratic does not apply: needs the Squared loss, got {problem.loss!r}")
    if problem.penalty is not None:
        raise AssumptionError(
            f"quadratic does not apply: needs an objective without a penalty, got {problem.penalty!r}"
        )
    fed = problem.federation
    H, b = np.empty((fed.K, fed.d, fed.d)), np.empty((fed.K, fed.d))
    for k in range(fed.K):
        X, y = fed.client_rows(k)
        H[k] = X.T @ problem.weigh(k, X) / len(X) + problem.ridge * np.eye(fed.d)
        b[k] = problem.weigh(k, X).T @ y / len(X)
    return Quadratic(H, b, np.asarray(problem.weights))


def spread(problem: Problem) -> Spread:
    """Return how the clients differ, exactly: what the bounds of this file ask for.

    Parameters
    ----------
    problem : Problem
        Least squares, as for `quadratic`.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.fixed_points import spread
    >>> spread(Problem(Federation.from_clients([([[1.0]], [1.0]), ([[2.0]], [2.0])]), Squared()))
    Spread(tau=3.0, tau_rms=1.5, xi=0.0, zeta_star=0.0)
    """
    q = quadratic(problem)
    w, H = q.minimiser, np.tensordot(q.p, q.H, 1)
    tau = max(float(np.linalg.norm(A - B, 2)) for A in q.H for B in q.H)
    off = np.array([np.linalg.norm(A - H, 2) for A in q.H])
    xi2, zeta2 = np.sum((q.minimisers - w) ** 2, axis=1), np.sum(q.gradients(w) ** 2, axis=1)
    return Spread(tau, *(float(np.sqrt(q.p @ v)) for v in (off**2, xi2, zeta2)))


# ---------------------------------------------------------------- the maps


def spectrum(H: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues (d,), rounding errors of zero set to zero, and eigenvectors (d, d), as NumPy's eigh.

    Parameters
    ----------
    H : array (d, d)
        Symmetric.

    Raises
    ------
    ValueError, TypeError
        If H is not square.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theory.fixed_points import spectrum
    >>> spectrum(np.array([[1.0, 1.0], [1.0, 1.0]]))[0]
    array([0., 2.])
    """
    n = len(H) if isinstance(H, np.ndarray) and H.ndim else None
    h, V = np.linalg.eigh(array("H", H, (n, n), copy=False))
    return np.where(h > len(h) * EPS * max(float(h[-1]), 0.0), h, 0.0), V


def _least_norm(H: np.ndarray, b: np.ndarray) -> np.ndarray:
    h, V = spectrum(H)
    return np.asarray(V @ np.divide(V.T @ b, h, out=np.zeros_like(h), where=h > 0.0))
