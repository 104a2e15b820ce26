"""Nesterov's gradient method (Nesterov 2018), whose gradients are summed over clients.

1. server: start at w_0 = v_0
2. each round, server sends v_t to all clients
3.   client k answers g_k = grad f_k(v_t), over all its rows
4. server: w_{t+1} = v_t - eta sum_k p_k g_k
5. server: v_{t+1} = w_{t+1} + beta_t (w_{t+1} - w_t)

With mu > 0, beta_t = (1 - sqrt(eta mu))/(1 + sqrt(eta mu)) in all rounds; with mu = 0, beta_t = (s_t - 1)/s_{t+1},
s_0 = 1, s_{t+1} = (1 + sqrt(1 + 4 s_t^2))/2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.constants import default_steps
from fedconvex.constants.default_steps import DefaultStep
from fedconvex.draws import Draws
from fedconvex.fields import AtLeastZero, CheckedFields
from fedconvex.kernels import averages, row_losses
from fedconvex.methods.parts import automatic_steps, participation, step_sizes
from fedconvex.problems import FederatedProblem, Problem
from fedconvex.traits import REFUSE, Traits
from fedconvex.words import Words

AutomaticConstant = Annotated[Any, step_sizes.StepRule(automatic=True, decays=False)]


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) w_t
    v: np.ndarray  # (R, *model) v_t
    s: float  # s_t
    mu: float


class Message(NamedTuple):
    """Server to clients."""

    w: np.ndarray  # (R, *model) v_t


class Reply(NamedTuple):
    """Clients to server."""

    g: np.ndarray  # (R, K, *model) grad f_k(v_t)


@dataclass(frozen=True, kw_only=True)
class AcceleratedGradient(CheckedFields):
    """Nesterov's gradient method: the baseline that methods with local steps are held against.

    It needs sqrt(kappa) rounds where gradient descent needs kappa, and one gradient of everybody a round.

    Parameters
    ----------
    step_size : float, array (R,) or "auto"
        eta; "auto" is 1/L of F.
    mu : float, optional
        A strong convexity of F; 0 takes the momentum for convex F. Default the problem's l2, where it has no free
        coordinates, else 0.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if eta mu > 1.

    Notes
    -----
    For eta = 1/L, with q = mu/L: F(w_t) - F* <= (1 - sqrt(q))^t (F(w_0) - F* + (mu/2) ‖w_0 - w*‖^2) (Nesterov 2018,
    Theorem 2.2.3 with v_0 = w_0); with mu = 0, F(w_t) - F* <= 2 L ‖w_0 - w*‖^2/(t + 1)^2 (Beck and Teboulle 2009,
    Theorem 4.4). F does not fall in every round.

    References
    ----------
    Nesterov, "Lectures on convex optimization", 2018, Section 2.2.1, constant step scheme III. Beck, Teboulle, "A fast
    iterative shrinkage-thresholding algorithm", SIAM J. Imaging Sci. 2 (2009).

    Examples
    --------
    >>> from fedconvex import GradientDescent, Logistic, Problem, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import AcceleratedGradient
    >>> problem = Problem(logistic_federation(seed=1).federation, Logistic(), l2=0.001)
    >>> methods = AcceleratedGradient(step_size="auto"), GradientDescent(step_size="auto")
    >>> [run(method, problem, rounds=5000, tol=1e-8).rounds for method in methods]
    [73, 115]
    """

    command = "accelerated-gradient"
    lost = REFUSE  # momentum along the gradient of some clients leads elsewhere
    no_penalty = "its steps follow gradients: FISTA is this method with proximal ones"

    step_size: AutomaticConstant
    mu: AtLeastZero | None = None

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if a setting does not fit the problem and its R trajectories."""
        super().check_fit(problem, R)
        top = self._convexity(problem) * np.max(self.step_size)
        if top > 1.0 + 1e-9:
            raise bad("AcceleratedGradient", "have step_size * mu <= 1", f"{top:g}", "take 1/L, or mu = 0")

    def words(self, problem: FederatedProblem) -> Words:
        return Words("AcceleratedGradient, one gradient of each client")

    def _convexity(self, problem: FederatedProblem) -> float:
        return float(getattr(problem, "strong_convexity", 0.0)) if self.mu is None else self.mu

    def init(self, problem: FederatedProblem, w: np.ndarray) -> State:
        return State(w, w, 1.0, self._convexity(problem))  # 1

    def broadcast(self, state: State) -> Message:
        return Message(state.v)  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        return Reply(row_losses.gradients_of(problem, message.w, clients)), memory  # 3

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        w = step_sizes.descend(self.step_size, 0, state.v, averages.over_clients(weights, reply.g))  # 4
        s = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * state.s * state.s))
        root = np.sqrt(step_sizes.round_step_sizes(self.step_size, np.arange(len(w)), 0) * state.mu)
        beta = (1.0 - root) / (1.0 + root) if state.mu > 0.0 else np.full(len(w), (state.s - 1.0) / s)
        return State(w, w + beta.reshape(-1, *[1] * (w.ndim - 1)) * (w - state.w), s, state.mu)  # 5

    def gradient_passes(self, problem: FederatedProblem) -> float:
        """Return the gradient passes over all rows that a round takes."""
        return 1.0

    def translate(self, state: State, shift: np.ndarray) -> State:
        """Return the state in coordinates that moved: both points move along."""
        return state._replace(w=state.w + shift, v=state.v + shift)

    def traits(self, problem: Problem) -> Traits:
        return participation.traits_of_sampling(None, problem, by_round=not self._convexity(problem) > 0.0)

    def default_step(self, problem: Problem) -> DefaultStep:
        return default_steps.descent_step(automatic_steps.smoothness(self, problem))
