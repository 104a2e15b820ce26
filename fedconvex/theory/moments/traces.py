"""What the engine returns: exact moments along a run, inside its rounds, of its gradients, and in the limit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class MomentTrace(NamedTuple):
    """Exact moments along a run of T rounds; w*_t is the minimiser when w_t is measured.

    Attributes
    ----------
    suboptimality : array (T+1,)
        E F(w_t) - F*, in the units of the objective.
    deviation : array (T+1,)
        E‖w_t - w*_t‖^2.
    mean_error : array (T+1, d)
        E[w_t - w*_t].
    second_moment : array (d, d)
        E[(w_T - w*_T)(w_T - w*_T)'] at the end.

    Examples
    --------
    >>> from fedconvex import Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.theory.moments import Moments
    >>> problem = Problem(linear_federation(n_clients=3, n_features=2, seed=0).federation, Squared())
    >>> trace = Moments(problem, step_size=0.05, local_steps=2).run(rounds=5)
    >>> trace.suboptimality.shape, trace.mean_error.shape, trace.second_moment.shape
    ((6,), (6, 2), (2, 2))
    """

    suboptimality: np.ndarray  # (T+1,) E F(w_t) - F*
    deviation: np.ndarray  # (T+1,) E‖w_t - w*_t‖^2
    mean_error: np.ndarray  # (T+1, d) E[w_t - w*_t]
    second_moment: np.ndarray  # (d, d) E[(w_T - w*_T)(w_T - w*_T)'] at the end


class ShadowTrace(NamedTuple):
    """Exact moments inside the rounds t < T, after k = 0, ..., tau local steps of everybody.

    Attributes
    ----------
    suboptimality : array (T, tau+1)
        E F(wbar^{t,k}) - F* of the averaged local models.
    deviation : array (T, tau+1)
        E‖wbar^{t,k} - w*‖^2.
    drift : array (T, tau+1)
        E sum_k W_k ‖w_k^{t,j} - wbar^{t,j}‖^2, W_k = p_k if everybody takes part.

    Examples
    --------
    >>> from fedconvex import Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.theory.moments import Moments
    >>> problem = Problem(linear_federation(n_clients=3, n_features=2, seed=0).federation, Squared())
    >>> inside = Moments(problem, step_size=0.05, local_steps=2).shadow(rounds=5)
    >>> inside.drift.shape, bool(inside.drift[0, 0] < 1e-12)  # clients begin a round together
    ((5, 3), True)
    """

    suboptimality: np.ndarray  # (T, tau+1) E F(wbar^{t,k}) - F*, of the averaged local models
    deviation: np.ndarray  # (T, tau+1) E‖wbar^{t,k} - w*‖^2
    drift: np.ndarray  # (T, tau+1) E sum_k W_k ‖w_k^{t,j} - wbar^{t,j}‖^2, W_k = p_k if everybody takes part

    @property
    def average(self) -> float:
        """Mean of E F(wbar^{t,k}) - F* over t < T and k = 1, ..., tau: the quantity of local-SGD theory."""
        return float(self.suboptimality[:, 1:].mean())


class GradientTrace(NamedTuple):
    """Exact moments of client k's mini-batch gradient g_k in local step j of round t, at its own iterate.

    Every client is followed as if it took part in every round; entries beyond its E_k steps are NaN.

    Attributes
    ----------
    second_moment : array (T, tau, K)
        E‖g_k‖^2.
    variance : array (T, tau, K)
        E‖g_k - grad F_k‖^2, zero for full batches.

    Examples
    --------
    >>> from fedconvex import Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.theory.moments import Moments
    >>> problem = Problem(linear_federation(n_clients=3, n_features=2, seed=0).federation, Squared())
    >>> along = Moments(problem, step_size=0.05, local_steps=2, batch_size=1).gradients(rounds=5)
    >>> along.variance.shape, bool(along.G2 >= along.sigma2_k.max())
    ((5, 2, 3), True)
    """

    second_moment: np.ndarray  # (T, tau, K) E‖g_k‖^2
    variance: np.ndarray  # (T, tau, K) E‖g_k - grad F_k‖^2

    @property
    def G2(self) -> float:
        """max over t, j, k of E‖g_k‖^2: the G^2 of Li et al. (2020) along the run."""
        return float(np.nanmax(self.second_moment))

    @property
    def sigma2_k(self) -> np.ndarray:
        """Largest gradient variance along the run, of every client (K,)."""
        return np.maximum(np.nanmax(self.variance, axis=(0, 1)), 0.0)  # not below it by rounding


class SteadyState(NamedTuple):
    """Limits as the number of rounds grows.

    Attributes
    ----------
    deviation : float
        lim E‖w_t - w*_t‖^2.
    suboptimality : float
        lim E F(w_t) - F*.
    mean_error : array (d,)
        lim E[w_t - w*_t], the bias that drift leaves.
    second_moment : array (d, d)
        lim E[(w_t - w*_t)(w_t - w*_t)'].
    spectral_radius : float
        Of the moments' linear map: the factor a round by which the limit is approached.

    Examples
    --------
    >>> from fedconvex import Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.theory.moments import Moments
    >>> problem = Problem(linear_federation(n_clients=3, n_features=2, seed=0).federation, Squared())
    >>> limit = Moments(problem, step_size=0.05, local_steps=2, batch_size=5).steady_state()
    >>> limit.mean_error.shape, bool(limit.spectral_radius < 1.0)
    ((2,), True)
    """

    deviation: float  # lim E‖w_t - w*_t‖^2
    suboptimality: float  # lim E F(w_t) - F*
    mean_error: np.ndarray  # (d,) lim E[w_t - w*_t], the bias
    second_moment: np.ndarray  # (d, d) lim E[(w_t - w*_t)(w_t - w*_t)']
    spectral_radius: float  # of the moments' linear map: their rate of convergence
