"""Minimisers of N through sums over sites: damped Newton searches side by side, each with its certificate.

An *oracle* takes R models B (R, p) and returns N, its gradients and Hessians at them, summed over all rows; a call is
one round of communication. With the self-concordance |l'''| <= c l'' of its rows, N obeys (Sun and Tran-Dinh,
Math. Program. 178, 2019, nu = 2), with lambda^2 = g'J^-1 g and kappa = c max_i (x_i'J^-1 x_i)^(1/2): where
rho = kappa lambda < 1, the minimum is attained, and N - N* <= (rho + (1 - rho) log(1 - rho))/kappa^2, which is
lambda^2/2 (1 + rho/3 + ...).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedconvex.methods.parts import newton_steps
from fedconvex.problems.protocol import Derivatives

Oracle = Callable[[np.ndarray], Derivatives]
Spread = Callable[[np.ndarray], np.ndarray]  # inverses (R, p, p) to max_i (x_i'A x_i)^(1/2), (R,): one round


class Minima(NamedTuple):
    """Where R searches ended. Functions are N(b) - a'b/tau; without a tilt, N."""

    b: np.ndarray  # (R, p)
    value: np.ndarray  # (R,)
    gradient: np.ndarray  # (R, p)
    J: np.ndarray  # (R, p, p)
    inverse: np.ndarray  # (R, p, p) J^-1, a pseudo-inverse where the rank is below p: nothing is certified there
    rank: np.ndarray  # (R,)
    decrement: np.ndarray  # (R,) lambda^2
    kappa: np.ndarray  # (R,) nan if it was not asked for
    gap: np.ndarray  # (R,) upper bound on value - infimum, inf where none is known
    direction: np.ndarray  # (R, p) last Newton step: where nothing is attained, nearly a direction of recession
    rounds: int  # calls of the oracle and of the spread

    @property
    def attained(self) -> np.ndarray:
        """Return whether the minimum is certified to be attained, (R,)."""
        return np.isfinite(self.gap)


def certified_gap(decrement: np.ndarray, kappa: np.ndarray) -> np.ndarray:
    """Return the bound on N - N* from lambda^2 and kappa; inf where rho = kappa lambda >= 1."""
    rho = kappa * np.sqrt(decrement)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        whole = (rho + (1.0 - rho) * np.log1p(-rho)) / kappa**2
        series = 0.5 * decrement * (1.0 + rho / 3.0 + rho**2 / (6.0 * (1.0 - rho)))  # 1/6, 1/10, ... <= 1/6
    return np.where(rho < 1e-3, series, np.where(rho < 1.0, whole, np.inf))


def inverse_of(J: np.ndarray) -> tuple[np.ndarray, int]:
    """Return J^-1 and the rank of J (p, p); a pseudo-inverse in the metric of J's diagonal where it is singular."""
    from scipy.linalg import solve_triangular

    p = len(J)
    scale = np.sqrt(np.maximum(np.diagonal(J), 0.0))
    scale[scale == 0.0] = 1.0
    S, floor = J / scale / scale[:, None], 10.0 * p * np.finfo(float).eps
    try:
        L = np.linalg.cholesky(S)
    except np.linalg.LinAlgError:
        L = np.zeros((p, p))
    if np.diagonal(L).min() ** 2 > floor:
        half = solve_triangular(L, np.eye(p), lower=True)
        return half.T @ half / scale / scale[:, None], p
    lam, V = np.linalg.eigh(0.5 * (S + S.T))
    used = lam > floor * max(float(lam[-1]), 0.0)
    half = V[:, used].T / np.sqrt(lam[used])[:, None]
    return half.T @ half / scale / scale[:, None], int(used.sum())


def minimise(
    oracle: Oracle,
    start: np.ndarray,
    self_concordance: float,
    spread: Spread | None = None,
    *,
    phi: float = 1.0,
    tilts: np.ndarray | None = None,
    tol: float = 1e-20,
    rounds: int = 100,
) -> Minima:
    """Minimise N(b) - t'b from each start.

    Parameters
    ----------
    oracle : function of (R, p)
        N, its gradients and Hessians.
    start : array (R, p)
        Where the searches begin.
    self_concordance : float
        c, with |l'''| <= c l''; 0 for squares.
    spread : function of (R, p, p), optional
        max_i (x_i'A x_i)^(1/2); without it there is no certificate unless c = 0.
    phi : float
        Searches end where the certified gap is at most ``tol`` phi, or where rounding stops them. An estimate is then
        off by at most (2 tol)^(1/2) standard errors.
    tilts : array (R, p), optional
        t = a/tau.
    rounds : int
        Limit on the calls of the oracle and of the spread.
    """
    state = newton_steps.start(np.atleast_2d(start))
    tilts = np.zeros_like(state.w) if tilts is None else tilts
    R, c, used = len(state.w), self_concordance, 0
    kappa = np.full(R, 0.0 if c == 0.0 else np.nan)
    for target in (tol * phi, 1e-4 * tol * phi, 1e-8 * tol * phi):
        state, asked = _descend(oracle, state, tilts, target, rounds - used - 1)
        used += asked
        inverses = [inverse_of(J) for J in state.hessian]
        inverse, rank = np.stack([i for i, _ in inverses]), np.array([r for _, r in inverses])
        before = kappa * np.sqrt(state.decrement)
        if spread is not None and c > 0.0 and np.isfinite(state.value).all():
            kappa, used = c * spread(inverse), used + 1
        gap = np.where(np.isfinite(state.value), certified_gap(state.decrement, kappa), np.inf)
        gap[np.isnan(gap) | (rank < state.w.shape[1])] = np.inf  # what a pseudo-inverse leaves out may fall for ever
        hopeless = ~np.isfinite(gap) & (kappa * np.sqrt(state.decrement) > 0.5 * before)  # as where y is separated
        if ((gap <= tol * phi) | state.settled | hopeless).all() or spread is None or used >= rounds:
            break
    w = state
    return Minima(w.w, w.value, w.gradient, w.hessian, inverse, rank, w.decrement, kappa, gap, w.step, used)


def _descend(
    oracle: Oracle, state: newton_steps.NewtonSteps, tilts: np.ndarray, target: float, rounds: int
) -> tuple[newton_steps.NewtonSteps, int]:
    """Take rounds until every decrement is at most the target or rounding stops its search."""
    used = 0
    while used < rounds and not (state.settled | (state.decrement <= target)).all():
        answer = oracle(state.trial)
        with np.errstate(invalid="ignore"):
            values = answer.values - np.einsum("rj,rj->r", tilts, state.trial)
        state = newton_steps.absorb(state, values, answer.gradients - tilts, answer.hessians)
        used += 1
    return state, used
