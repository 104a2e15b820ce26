"""What the engine returns: exact moments along a run, inside its rounds, of its gradients, and in the limit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class MomentTrace(NamedTuple):
    """Exact moments along a run of T rounds; w*_t is the minimiser when w_t is measured."""

    suboptimality: np.ndarray  # (T+1,) E F(w_t) - F*
    deviation: np.ndarray  # (T+1,) E‖w_t - w*_t‖^2
    mean_error: np.ndarray  # (T+1, d) E[w_t - w*_t]
    second_moment: np.ndarray  # (d, d) E[(w_T - w*_T)(w_T - w*_T)'] at the end


class ShadowTrace(NamedTuple):
    """Exact moments inside the rounds t < T, after k = 0, ..., tau local steps of everybody."""

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
        return np.asarray(np.nanmax(self.variance, axis=(0, 1)))


class SteadyState(NamedTuple):
    """Limits as the number of rounds grows."""

    deviation: float  # lim E‖w_t - w*_t‖^2
    suboptimality: float  # lim E F(w_t) - F*
    mean_error: np.ndarray  # (d,) lim E[w_t - w*_t], the bias
    second_moment: np.ndarray  # (d, d) lim E[(w_t - w*_t)(w_t - w*_t)']
    spectral_radius: float  # of the moments' linear map: their rate of convergence
