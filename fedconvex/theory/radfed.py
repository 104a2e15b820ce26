"""RADFed on least squares: exact first and second moments; its mean is that of FedAvg with equal weights.

Setting
    m models, K clients. A round: all models start at w; S times, m different clients are drawn at random and every
    model is trained by one of them (E local steps eta on batches of B_k rows); then w <- plain average of the models.
    Every client is equally likely to train a given model, and every ordered pair of different clients to train a given
    pair of models.
Assumptions
    Squared loss. Nothing on step sizes.
Statement
    Phi_k(z) is client k's random affine map in homogeneous coordinates z = (w - w*, 1). With the maps of second moments

        Fd(Z) = (1/K) sum_k E[Phi_k Z Phi_k'],  Fo(Z) = (1/(K (K-1))) sum_{j != k} E[Phi_j] Z E[Phi_k]',

        E z <- Phibar^S E z,  Phibar = (1/K) sum E[Phi_k];   E z z' <- (1/m) Fd^S(E z z') + ((m-1)/m) Fo^S(E z z').

    So E w_t of RADFed is that of FedAvg with equal weights, everybody and S rounds in the place of one: the same fixed
    point, the same bias. Redistribution saves aggregations and costs variance.
Source
    The method: Xue, Klabjan, Luo, "Aggregation delayed federated learning", arXiv:2108.07433. No rate is published; the
    moments are this project's, docs/theory/radfed.md.
What differs
    Nothing is bounded: everything is exact, mini-batches included.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, instance, vector, whole
from fedconvex.problems import Problem
from fedconvex.theory.bound import AssumptionError, Hypothesis, require
from fedconvex.theory.fixed_points import Affine
from fedconvex.theory.moments import Moments, WeightMoments
from fedconvex.theory.moments.limit import fixed_point_by_means

__all__ = ["RADFedLimit", "RADFedMoments", "RADFedTrace"]


class RADFedTrace(NamedTuple):
    """Exact moments of the averaged model after 0, ..., T rounds.

    Attributes
    ----------
    suboptimality : array (T+1,)
        E F(w_t) - F*.
    deviation : array (T+1,)
        E‖w_t - w*‖^2.
    mean_error : array (T+1, d)
        E w_t - w*.

    Examples
    --------
    >>> from fedconvex import Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.theory.radfed import RADFedMoments
    >>> problem = Problem(linear_federation(n_clients=3, n_features=2, seed=0).federation, Squared())
    >>> trace = RADFedMoments(problem, step_size=0.05, models=2, redistributions=2).run(rounds=4)
    >>> trace.deviation.shape, trace.mean_error.shape
    ((5,), (5, 2))
    """

    suboptimality: np.ndarray  # (T+1,) E F(w_t) - F*
    deviation: np.ndarray  # (T+1,) E‖w_t - w*‖^2
    mean_error: np.ndarray  # (T+1, d) E w_t - w*


class RADFedLimit(NamedTuple):
    """Limits as the number of rounds grows.

    Attributes
    ----------
    suboptimality : float
        lim E F(w_t) - F*.
    deviation : float
        lim E‖w_t - w*‖^2.
    mean_error : array (d,)
        lim E w_t - w*.
    spectral_radius : float
        Of the second moments' linear map; below 1 where there is a limit.

    Examples
    --------
    >>> from fedconvex import Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.theory.radfed import RADFedMoments
    >>> problem = Problem(linear_federation(n_clients=3, n_features=2, seed=0).federation, Squared())
    >>> limit = RADFedMoments(problem, step_size=0.05, models=2, redistributions=2).limit()
    >>> limit.mean_error.shape, bool(limit.spectral_radius < 1.0)
    ((2,), True)
    """

    suboptimality: float
    deviation: float
    mean_error: np.ndarray  # (d,)
    spectral_radius: float  # of the second moments' linear map


class RADFedMoments:
    """Exact moments of RADFed on a least-squares problem; objective and w* carry the problem's own weights.

    Parameters
    ----------
    problem : Problem
        With squared loss.
    step_size, local_steps, batch_size, replacement
        Of the local training, as for `Moments`.
    models : int
        m, at most the number of clients.
    redistributions : int
        S, trainings of every model between two averages.

    Raises
    ------
    ValueError, TypeError
        If models is not in 1, ..., K, redistributions below 1, or step_size not one number.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.radfed import RADFedMoments
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])]), Squared())
    >>> one = RADFedMoments(problem, step_size=0.5, models=1, redistributions=2)
    >>> one.run(rounds=1).deviation, round(one.limit().deviation, 9)
    (array([4.    , 0.5625]), 0.333333333)
    >>> RADFedMoments(problem, step_size=0.5, models=2, redistributions=2).run(rounds=1).deviation
    array([4.  , 0.25])
    """

    def __init__(
        self,
        problem: Problem,
        *,
        step_size: float,
        models: int,
        redistributions: int,
        local_steps: Any = 1,
        batch_size: Any = None,
        replacement: bool = False,
    ) -> None:
        instance("RADFedMoments: problem", problem, Problem)
        K = problem.federation.K
        self.models = whole("RADFedMoments.models", models, low=1, high=K)
        self.redistributions = whole("RADFedMoments.redistributions", redistributions, low=1)
        if hasattr(step_size, "at"):
            raise bad("RADFedMoments.step_size", "be one number", f"{step_size!r}")
        one = np.eye(K) / K
        different = (np.ones((K, K)) - np.eye(K)) / (K * (K - 1)) if K > 1 else one  # one client has one model
        settings: dict[str, Any] = {
            "step_size": step_size, "local_steps": local_steps, "batch_size": batch_size, "replacement": replacement
        }  # fmt: skip
        mean = np.full(K, 1.0 / K)
        self._one = Moments(problem, participation=WeightMoments(mean, one), kron=False, **settings)
        self._two = Moments(problem, participation=WeightMoments(mean, 0.5 * (one + different)), kron=False, **settings)

    def _diagonal(self, Z: np.ndarray) -> np.ndarray:
        """Fd."""
        return self._one.round.apply(Z, 0)

    def _off(self, Z: np.ndarray) -> np.ndarray:
        """Fo: the average of two models has the second moment (Fd + Fo)/2."""
        return 2.0 * self._two.round.apply(Z, 0) - self._one.round.apply(Z, 0)

    def _round(self, Z: np.ndarray) -> np.ndarray:
        same, other = Z, Z
        for _ in range(self.redistributions):
            same = self._diagonal(same)
            other = self._off(other) if self.models > 1 else other
        return np.asarray(same / self.models + (self.models - 1) / self.models * other)

    def run(self, rounds: int, *, start: Any = None) -> RADFedTrace:
        """Return the exact moments of w_0, ..., w_T from ``start`` (default 0)."""
        d, T = self._one.d, whole("RADFedMoments: rounds", rounds)
        z = np.ones(d + 1)
        z[:d] = (np.zeros(d) if start is None else vector("RADFedMoments: start", start, d)) - self._one.w_star
        Z = np.outer(z, z)
        values, means = np.empty((T + 1, 2)), np.empty((T + 1, d))
        for t in range(T + 1):
            values[t], means[t] = self._one.round.data.values(Z), Z[:d, d]
            Z = self._round(Z) if t < T else Z
        return RADFedTrace(values[:, 0], values[:, 1], means)

    @cached_property
    def _second(self) -> Affine:
        """The moments of w - w*, flat (d^2 + d,): E[e e'] and E[e], driven by the constant 1."""
        d = self._one.d
        keep = np.ones((d + 1, d + 1), dtype=bool)
        keep[d] = False

        def column(z: np.ndarray, constant: float) -> np.ndarray:
            Z = np.zeros((d + 1, d + 1))
            Z[keep] = z
            Z[d, :d], Z[d, d] = Z[:d, d], constant
            return self._round(Z)[keep]

        n = d * (d + 1)
        return Affine(np.array([column(unit, 0.0) for unit in np.eye(n)]).T, column(np.zeros(n), 1.0))

    def limit(self) -> RADFedLimit:
        """Return the limits of the moments.

        Raises
        ------
        AssumptionError
            If the second moments do not converge from every start.
        """
        d, round_ = self._one.d, self._second
        radius = round_.spectral_radius
        require("RADFed's limit", Hypothesis("mean-square stability", f"spectral radius {radius:g}", radius < 1.0))
        means = np.arange(len(round_.offset)) % (d + 1) == d
        z = fixed_point_by_means(round_.matrix, round_.offset, means)
        block, Z = z.reshape(d, d + 1), np.zeros((d + 1, d + 1))
        Z[:d], Z[d, :d], Z[d, d] = block, block[:, d], 1.0
        value, deviation = self._one.round.data.values(Z)
        if not np.isfinite(value):
            raise AssumptionError("RADFed's limit does not exist")
        return RADFedLimit(value, deviation, block[:, d], radius)
