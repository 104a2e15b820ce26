"""Problems whose minimiser performs a random walk."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedconvex._check import bad, finite, flag, numeric, real, wrong_type
from fedconvex.draws import DRIFT, Draws
from fedconvex.problems.empirical_risk import Problem


class MovingTarget(Problem):
    """F_i(w) = F(w - s_i), s_i = s_{i-1} + q_i with independent Gaussian q_i: the minimiser moves exactly by q_i.

    Runs are carried out in coordinates that move along: the state's w is w_i - s_i, whose distance to w* is the
    tracking error, and after round i the state moves by -q_i ("drift after": Rizk, Vlaski, Sayed 2020). For linear
    models this is the same as adding x's_i to every score (moving labels, for squared loss) and moving the centre of
    the l2 term along, and for every loss and method it is exact: all statistics of the error are those of the moving
    problem. The trace gains ``deviation`` = ‖w_i - s_i - w*‖^2.

    Parameters
    ----------
    problem : Problem
        F.
    variance : float
        E‖q_i‖^2, the trace of the covariance, spread equally over all coordinates; or use ``covariance``.
    covariance : array (size, size), optional
        Covariance of q_i over the flattened model, positive semidefinite.
    bounded : bool
        Draw q_i from the surface of an ellipsoid (with ``variance``: a sphere) instead of a normal distribution: the
        same covariance, and no step longer than ``longest``.

    Attributes
    ----------
    covariance : array (size, size)
    longest : float
        The largest ‖q_i‖: (size times the largest eigenvalue of the covariance)^(1/2) if bounded, else infinite; 0
        without drift.

    Raises
    ------
    ValueError, TypeError
        If the variance is negative or the covariance is not symmetric positive semidefinite.

    Examples
    --------
    >>> from fedconvex import FedSGD, Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.problems import MovingTarget
    >>> problem = MovingTarget(Problem(linear_federation(seed=0).federation, Squared()), variance=0.01)
    >>> bool(run(FedSGD(step_size=0.5), problem, rounds=50).trace.deviation[-1] > 0)
    True
    >>> MovingTarget(problem.client(0), variance=0.01, bounded=True).longest
    0.1
    """

    def __init__(
        self, problem: Problem, variance: float = 0.0, covariance: Any = None, *, bounded: bool = False
    ) -> None:
        if not isinstance(problem, Problem) or isinstance(problem, MovingTarget):
            raise wrong_type("MovingTarget.problem", "be a Problem that does not move", type(problem).__name__)
        if problem.penalty is not None:
            raise wrong_type("MovingTarget.problem", "have no penalty, which would not move", f"{problem.penalty!r}")
        free = problem.intercept
        super().__init__(problem.federation, problem.loss, problem.l2, problem.weights, intercept=free)
        p = self.size
        variance = real("MovingTarget.variance", variance, low=0.0)
        if covariance is not None and variance != 0.0:
            raise bad("MovingTarget", "be given a variance or a covariance", "both")
        if covariance is None:
            covariance = variance / p * np.eye(p)
        Q = numeric("MovingTarget.covariance", covariance)
        if Q.shape != (p, p):
            raise bad("MovingTarget.covariance", f"have shape {(p, p)}", f"{Q.shape}")
        finite("MovingTarget.covariance", Q)
        lam, V = np.linalg.eigh(Q)
        if np.abs(Q - Q.T).max() > 1e-12 * np.abs(Q).max() or lam[0] < -1e-12 * np.abs(lam).max():
            raise bad("MovingTarget.covariance", "be symmetric positive semidefinite", f"least eigenvalue {lam[0]:g}")
        self.covariance = Q
        self._root = V * np.sqrt(np.maximum(lam, 0.0))
        self.bounded = flag("MovingTarget.bounded", bounded)
        most = math.sqrt(p * max(float(lam[-1]), 0.0))
        self.longest = most if self.bounded or most == 0.0 else math.inf

    @property
    def motion(self) -> str:
        """How the minimiser moves, in words."""
        return f"a minimiser that moves, E‖q‖² = {self.covariance.trace():g}"

    @property
    def walk(self) -> bytes:
        """What the walk is drawn from: runs go on with the same one only."""
        return self.covariance.tobytes() + b"bounded" * self.bounded

    def drift(self, draws: Draws) -> np.ndarray:
        """Return q_i of every trajectory, (R, *model)."""
        z = draws.normal(self.size, -1, DRIFT)
        if self.bounded:
            z *= math.sqrt(self.size) / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-150)
        return self.unflatten(z @ self._root.T)

    def observe(self, w: np.ndarray) -> dict[str, np.ndarray]:
        """Return the squared tracking errors (R,)."""
        error = (w - self.solve().w).reshape(len(w), -1)
        return {"deviation": np.einsum("rj,rj->r", error, error)}
