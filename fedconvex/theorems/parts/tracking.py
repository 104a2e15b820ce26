"""What the theorems on Dynamic FedAvg share: constants of the problem, of the sampling, and how they are read off."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconvex.constants import noise_factor
from fedconvex.constants.record import no_steeper, possible
from fedconvex.methods import DynamicFedAvg
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.curvatures import bends, hessians, need_bends
from fedconvex.theorems.parts.rules import HALVING
from fedconvex.theorems.parts.setting import a_minimiser

SOURCE = "Rizk, Vlaski, Sayed 2020, arXiv:2002.08782"
SETTING = """
K agents of equal weight, P = (1/K) sum P_k, P_k(w) = mean of Q(w; x) over the N_k rows of agent k. Iteration i: L
agents, uniform without replacement, do E_k steps of size mu/E_k with fresh mini-batches of B_k rows (without
replacement) from w_{i-1}; the server averages. The minimiser moves, w_i^o = w_{i-1}^o + q_i, q_i of mean zero,
independent of the past, E‖q_i‖^2 = sigma_q^2; losses of iteration i are those with minimiser w_{i-1}^o. Error
e_i = w_i^o - w_i; w_i = w_{i-1} - mu grad P(w_{i-1}) - mu s_i - mu d_i with gradient noise s_i (who takes part,
which rows) and incremental noise d_i (gradients taken at local iterates instead of w_{i-1}).
"""
ASSUMPTIONS = """
P is nu-strongly convex and delta_P-smooth; every row loss of agent k is convex and delta_k-smooth, P_k is
delta_{P,k}-smooth; delta = max delta_k; V_k(w^o) and ‖grad P_k(w^o)‖ do not change with time.
"""


@dataclass(frozen=True, kw_only=True)
class TrackingConstants:
    """What the theorems on Dynamic FedAvg need to know of a problem; from `tracking_constants` or by hand.

    Attributes
    ----------
    nu, delta_P : float
        Strong convexity and smoothness of P.
    delta_k, delta_P_k : array (K,)
        Smoothness of the roughest row loss of agent k, and of P_k.
    sizes : array (K,)
        Rows N_k.
    variance_k, gradient2_k : array (K,)
        V_k(w^o) = mean ‖grad Q - grad P_k‖^2 over rows, and ‖grad P_k(w^o)‖^2.
    hessian, covariance_k, gradient_k : array (d, d), (K, d, d), (K, d), optional
        H, C_k and g_k of the small-step formula, at w^o.

    Raises
    ------
    ValueError
        If no problem has such constants: one is below 0, nu above delta_P, or an agent has no rows.
    """

    nu: float
    delta_P: float
    delta_k: np.ndarray
    delta_P_k: np.ndarray
    sizes: np.ndarray
    variance_k: np.ndarray
    gradient2_k: np.ndarray
    hessian: np.ndarray | None = None
    covariance_k: np.ndarray | None = None
    gradient_k: np.ndarray | None = None

    def __post_init__(self) -> None:
        who = "TrackingConstants"
        possible(who, self.__dict__, ("nu", "delta_P"), ("delta_k", "delta_P_k", "variance_k", "gradient2_k"))
        no_steeper(f"{who}: nu", self.nu, "delta_P", self.delta_P)
        if np.min(self.sizes) < 1:
            raise bad(f"{who}: sizes", "be at least 1", np.min(self.sizes), "leave out agents without rows")

    @property
    def K(self) -> int:
        """Number of agents."""
        return int(np.size(self.sizes))

    @property
    def delta(self) -> float:
        """Smoothness of the roughest row loss of all."""
        return float(np.max(self.delta_k))


class Sampling(NamedTuple):
    """Factors of who takes part, on which rows, in how many steps."""

    L: int
    tau_eps: float
    tau_s: np.ndarray  # (K,)
    tau_1: np.ndarray  # (K,) tau'_k
    E: np.ndarray  # (K,)
    a: np.ndarray  # (K,)
    B: np.ndarray  # (K,)


def tracking_constants(problem: Problem, radius: float | None = None) -> TrackingConstants:
    """Return the constants of a problem with equal client weights, exact for least squares and at the minimiser.

    Of other losses, as the logistic one, convexity and smoothness are bounds: over all models, where only l2 makes P
    strongly convex, or over the ball of that radius around the minimiser (`fedconvex.theorems.parts.curvatures`). What
    holds on a ball holds for runs that never leave it (docs/theory/dynamic_ball.md).

    Parameters
    ----------
    problem : Problem
    radius : float, optional
        Of the ball; default all models.

    Raises
    ------
    AssumptionError
        If the loss has several scores or no bounded curvature, or the weights are unequal.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theorems.parts.tracking import tracking_constants
    >>> fed = Federation.from_clients([([[1.0], [2.0]], [1.0, 2.0]), ([[1.0], [2.0]], [3.0, 6.0])])
    >>> constants = tracking_constants(Problem(fed, Squared()))
    >>> constants.nu, constants.delta, constants.gradient2_k
    (2.5, 4.0, array([6.25, 6.25]))
    """
    radius = None if radius is None else real("tracking_constants: radius", radius, low=0.0)
    need_bends("tracking_constants", problem)
    equal_agents("tracking_constants", problem)
    require("tracking_constants", a_minimiser(problem))
    fed, w = problem.federation, problem.solve().w
    bend, slopes = bends(problem, w, radius), problem.row_values_and_slopes(w)[1]
    g, C_k = problem.client_gradients(w), []
    for k in range(fed.K):
        X = fed.client_rows(k)[0]
        G = problem.weigh(k, X * slopes[int(fed.ptr[k]) : int(fed.ptr[k + 1]), None])
        G = G - G.mean(axis=0)
        C_k.append(G.T @ G / len(X))
    most_k, s = hessians(problem, bend.most), problem.relative_weights
    least = float(np.linalg.eigvalsh(hessians(problem, bend.mean).mean(axis=0))[0])
    steep = bend.most * (fed.row_norms2 if s is None else s * fed.row_norms2)
    return TrackingConstants(
        nu=max(least, problem.strong_convexity),
        delta_P=float(np.linalg.eigvalsh(most_k.mean(axis=0))[-1]),
        delta_k=np.maximum.reduceat(steep, fed.ptr[:-1]) + problem.l2,
        delta_P_k=np.linalg.eigvalsh(most_k)[:, -1],
        sizes=fed.sizes,
        variance_k=np.trace(C_k, axis1=1, axis2=2),
        gradient2_k=np.sum(g**2, axis=1),
        hessian=hessians(problem, bend.at).mean(axis=0),
        covariance_k=np.array(C_k),
        gradient_k=g,
    )


def client_moments(problem: Problem, w: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return ‖grad P_k(w)‖^2 and V_k(w), each (K,)."""
    g = problem.client_gradients(w).reshape(problem.federation.K, -1)
    return np.sum(g**2, axis=1), problem.gradient_variance(w)


def sampling(
    sizes: np.ndarray, *, participation: int | None = None, batch_size: Any = None, local_steps: Any = 1
) -> Sampling:
    """Return the factors of L participants (default all), batches of B_k rows (default all) and E_k steps.

    Parameters
    ----------
    sizes : array (K,)
        N_k.
    participation : int, optional
    batch_size, local_steps : int or array (K,), optional

    Raises
    ------
    AssumptionError
        If batches are larger than a client, or steps not whole and positive.
    """
    n = np.asarray(sizes, dtype=float)
    K = n.size
    L = K if participation is None else whole("participation", participation, low=1, high=K)
    B = n if batch_size is None else _per_agent("batch_size", batch_size, K)
    E = _per_agent("local_steps", local_steps, K)
    fits = f"batch_size from {B.min():g} to {B.max():g}, fewest rows {n.min():g}"
    require(
        "Dynamic FedAvg",
        Hypothesis("1 <= batch_size <= rows of every client", fits, bool(np.all((B >= 1) & (B <= n)))),
        Hypothesis(
            "local_steps whole and positive", f"{E.min():g} at least", bool(np.all((E >= 1) & (E == E.round())))
        ),
    )
    phi = np.asarray(noise_factor(n, B, False))
    tau_eps = (K - L) / (K - 1) if K > 1 else 0.0
    return Sampling(L, tau_eps, phi / E, phi, E, ((E - 1.0) / (2.0 * E)) ** 2, B)


def _per_agent(who: str, x: Any, K: int) -> np.ndarray:
    """Return one number, or one per agent, as (K,)."""
    a = numeric(who, x)
    finite(who, a)
    if a.shape not in ((), (K,)):
        raise bad(who, f"be a number or one per client ({K})", f"shape {a.shape}")
    return np.broadcast_to(a, (K,))


def equal_agents(theorem: str, problem: Problem) -> None:
    """Raise unless all agents weigh the same."""
    require(theorem, equal_weights(np.asarray(problem.weights)))


def strongly_convex(theorem: str, c: TrackingConstants) -> tuple[Hypothesis, ...]:
    """Return the hypothesis of strong convexity, or raise."""
    return require(theorem, Hypothesis("P nu-strongly convex, nu > 0", f"nu = {c.nu:g}", c.nu > 0.0))


def nonexpansive(c: TrackingConstants, mu: float, s: Sampling) -> tuple[Hypothesis, ...]:
    """Return the hypothesis mu/E_k <= 2/delta_k where an agent does more than one step."""
    excess = np.where(s.E > 1, mu / s.E * c.delta_k, 0.0)
    k = int(np.argmax(excess))
    text = f"step_size/E_k = {mu / s.E[k]:g}, 2/delta_k = {2.0 / c.delta_k[k]:g} at client {k}"
    return (Hypothesis("step_size/E_k <= 2/delta_k where E_k > 1", text, bool(excess[k] <= 2.0)),)


def noise_constants(c: TrackingConstants, s: Sampling) -> tuple[float, float, float]:
    """Return beta_s^2, sigma_s^2, eps^2 of the paper's lemma."""
    data, model = noise_at_optimum(c, s)
    beta = float(np.mean(6.0 * s.tau_s + 2.0 * s.tau_eps)) * c.delta**2 / s.L
    return beta, 3.0 * data, 2.0 * model


def noise_at_optimum(c: TrackingConstants, s: Sampling) -> tuple[float, float]:
    """Return what mini-batches, and who takes part, add to the gradient noise at w^o."""
    return float(np.mean(s.tau_s * c.variance_k)) / s.L, s.tau_eps * float(np.mean(c.gradient2_k)) / s.L


def incremental_constants(c: TrackingConstants, s: Sampling) -> tuple[float, float]:
    """Return beta_d^2, sigma_d^2."""
    beta = 2.0 * c.delta**4 * float(np.mean(s.a * (1.0 + s.tau_1)))
    return beta, 2.0 * c.delta**2 * float(np.mean(s.a * (c.gradient2_k + s.tau_1 * c.variance_k)))


def agents_of(s: Setting) -> dict[str, Any]:
    """Return participation, batch_size, local_steps of a DynamicFedAvg."""
    name, m = "Dynamic FedAvg", s.method
    is_method(name, m, DynamicFedAvg)
    t = traits_of(m, s.problem)
    uniform = Hypothesis("agents drawn uniformly", f"{m.participation!r}", t.sampling in ("uniform", "everyone"))
    require(name, uniform)
    return {"participation": t.participants, "batch_size": m.batch_size, "local_steps": m.local_steps}


def step_of(s: Setting) -> float:
    """Return the one step size, or raise."""
    eta = s.method.step_size
    require("Dynamic FedAvg", Hypothesis("one step size", f"{eta!r}", isinstance(eta, float)))
    return float(eta)


def error2_of(s: Setting) -> float:
    """Return the squared distance of the start from the minimiser."""
    return float(np.sum((s.start - s.problem.solve().w) ** 2))


def sampled_agents(best: bool = False, share: float = 0.1, **settings: Any) -> MethodRule:
    """Dynamic FedAvg, half of the agents, 1, 2, 3, 1, 2, ... local steps: step share/L_s, or the best of the bound."""

    def method(eta: float, problem: Problem) -> DynamicFedAvg:
        K = problem.federation.K
        work: dict[str, Any] = {
            "local_steps": tuple(1 + k % 3 for k in range(K)),
            "batch_size": 4,
            "participation": max(K // 2, 1),
        }
        work |= settings
        work["participation"] = min(work["participation"], K)
        return DynamicFedAvg(step_size=eta, **feasible_work(problem, work))

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> DynamicFedAvg:
        L_s = float(problem.constants().L_s or 1.0)
        return method(share / (L_s if math.isfinite(L_s) else 1.0), problem)

    if best:
        return MethodRule(f"{HALVING} with the least bound", least_bound(method))
    return MethodRule(f"1/({1.0 / share:g} L_s)", make)


def agents_space(**settings: Any) -> Space:
    """Return the space of dynamic FedAvg with 1 to 4 agents that take part and 1 to 6 local steps."""
    more = {"participation": Whole(1, 4)}
    return local_sgd_space(lambda share, **work: sampled_agents(share=share, **work), 1.9, more=more, **settings)
