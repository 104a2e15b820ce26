"""Proximal gradient steps on F = f + P, f the smooth part: plain, accelerated (FISTA), and federated.

ProximalGradient (Beck and Teboulle, SIAM J. Imaging Sci. 2 (2009), Section 3: ISTA)
1. start at w_0, projected to where P is finite
2. w_{t+1} = prox_{eta P}(w_t - eta grad f(w_t))

FISTA (Beck and Teboulle 2009, Section 4, constant step)
3. start at w_0 = v_0, s_0 = 1
4. w_{t+1} = prox_{eta P}(v_t - eta grad f(v_t))
5. s_{t+1} = (1 + sqrt(1 + 4 s_t^2))/2, v_{t+1} = w_{t+1} + ((s_t - 1)/s_{t+1}) (w_{t+1} - w_t)

ProximalFedSGD (the first with gradients of sampled clients, as in FedSGD)
6. server: start at w_0, projected; each round, send w_t to sampled clients S_t
7.   client k in S_t answers g_k = grad f_k(w_t), over all its rows
8. server: w_{t+1} = prox_{eta P}(w_t - eta sum_{k in S_t} q_k g_k), q_k = p_k / sum_{j in S_t} p_j
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from fedconvex.constants import default_steps
from fedconvex.constants.default_steps import DefaultStep
from fedconvex.draws import Draws
from fedconvex.fields import CheckedFields
from fedconvex.kernels import averages, row_losses
from fedconvex.kernels.penalised import proximal_point
from fedconvex.methods.parts import automatic_steps, participation, step_sizes
from fedconvex.problems import FederatedProblem, Problem
from fedconvex.traits import RENORMALISE, Traits

AutomaticConstant = Annotated[Any, step_sizes.StepRule(automatic=True, decays=False)]


class State(NamedTuple):
    """The model and how many rounds it took."""

    w: np.ndarray  # (R, *model)
    t: int


@dataclass(frozen=True, kw_only=True)
class ProximalGradient(CheckedFields):
    """Proximal gradient descent on F; gradient descent without a penalty.

    Parameters
    ----------
    step_size : float, array (R,) or "auto"
        eta; "auto" is 1/L, L of the smooth part. For eta <= 1/L, F(w_t) - F* <= ‖w_0 - w*‖^2 / (2 eta t) (Beck and
        Teboulle, Theorem 3.1).

    Raises
    ------
    ValueError, TypeError
        If step_size is not positive.

    Examples
    --------
    >>> from fedconvex import Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.methods import ProximalGradient
    >>> from fedconvex.penalties import L1
    >>> problem = Problem(linear_federation(seed=0).federation, Squared(), penalty=L1(0.1))
    >>> run(ProximalGradient(step_size="auto"), problem, rounds=1000, tol=1e-6).status.name
    'CONVERGED'
    """

    command = "proximal-gradient"
    benchmarks: ClassVar[Any] = {}  # without a penalty it is another method
    penalised = True

    step_size: AutomaticConstant

    def init(self, problem: Problem, w: np.ndarray) -> State:
        return State(proximal_point(problem, w, 0.0), 0)  # 1

    def round(self, problem: Problem, state: State, draws: Draws) -> State:
        return State(_descend(self.step_size, problem, state.w), state.t + 1)  # 2

    def traits(self, problem: Problem) -> Traits:
        return Traits(drawn=(), by_round=False)

    def default_step(self, problem: Problem) -> DefaultStep:
        return default_steps.descent_step(automatic_steps.smoothness(self, problem, falling=True))


class Accelerated(NamedTuple):
    """Models, the points that gradients are taken at, and the momentum's number."""

    w: np.ndarray  # (R, *model) w_t
    v: np.ndarray  # (R, *model) v_t
    s: float  # s_t
    t: int


@dataclass(frozen=True, kw_only=True)
class FISTA(CheckedFields):
    """Accelerated proximal gradient descent on F.

    Parameters
    ----------
    step_size : float, array (R,) or "auto"
        eta; "auto" is 1/L. For eta <= 1/L, F(w_t) - F* <= 2 ‖w_0 - w*‖^2 / (eta (t + 1)^2) (Beck and Teboulle, Theorem
        4.4). F does not fall in every round.

    Raises
    ------
    ValueError, TypeError
        If step_size is not positive.

    Examples
    --------
    >>> from fedconvex import Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.methods import FISTA
    >>> from fedconvex.penalties import L1
    >>> problem = Problem(linear_federation(seed=0).federation, Squared(), penalty=L1(0.1))
    >>> run(FISTA(step_size="auto"), problem, rounds=1000, tol=1e-6).status.name
    'CONVERGED'
    """

    command = "fista"
    penalised = True

    step_size: AutomaticConstant

    def gradient_passes(self, problem: FederatedProblem) -> float:
        """Return the gradient passes over all rows that a round takes."""
        return 1.0

    def init(self, problem: Problem, w: np.ndarray) -> Accelerated:
        start = proximal_point(problem, w, 0.0)
        return Accelerated(start, start, 1.0, 0)  # 3

    def round(self, problem: Problem, state: Accelerated, draws: Draws) -> Accelerated:
        w = _descend(self.step_size, problem, state.v)  # 4
        s = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * state.s * state.s))
        return Accelerated(w, w + (state.s - 1.0) / s * (w - state.w), s, state.t + 1)  # 5

    def translate(self, state: Accelerated, shift: np.ndarray) -> Accelerated:
        """Return the state in coordinates that moved: both points move along."""
        return state._replace(w=state.w + shift, v=state.v + shift)

    def traits(self, problem: Problem) -> Traits:
        return Traits(drawn=())

    constant_step = automatic_steps.of_descent

    def default_step(self, problem: Problem) -> DefaultStep:
        return default_steps.descent_step(automatic_steps.smoothness(self, problem))


class Message(NamedTuple):
    """Server to clients."""

    w: np.ndarray  # (R, *model) w_t


class Reply(NamedTuple):
    """Clients to server."""

    g: np.ndarray  # (R, m, *model) grad f_k(w_t)


@dataclass(frozen=True, kw_only=True)
class ProximalFedSGD(CheckedFields):
    """Federated proximal gradient descent: sampled clients send gradients, the server takes the proximal step.

    Parameters
    ----------
    step_size : float or array (R,)
        eta.
    participation : int, float or scheme
        As for `FedAvg`.

    Raises
    ------
    ValueError, TypeError
        If step_size is not positive, or participation no share or number of clients.

    Examples
    --------
    >>> from fedconvex import Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.methods import ProximalFedSGD
    >>> from fedconvex.penalties import L1
    >>> problem = Problem(linear_federation(seed=0).federation, Squared(), penalty=L1(0.1))
    >>> run(ProximalFedSGD(step_size=0.1), problem, rounds=1000, tol=1e-6).status.name
    'CONVERGED'
    """

    command = "proximal-fedsgd"
    benchmarks: ClassVar[Any] = {}  # without a penalty it is another method
    penalised = True
    lost = RENORMALISE

    step_size: step_sizes.ConstantStepSize
    participation: participation.Participation = 1.0

    def init(self, problem: FederatedProblem, w: np.ndarray) -> State:
        return State(proximal_point(problem, w, 0.0), 0)  # 6

    def broadcast(self, state: State) -> Message:
        return Message(state.w)  # 6

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        return Reply(row_losses.gradients_of(problem, message.w, clients)), memory  # 7

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        g = averages.over_clients(weights, reply.g)
        return State(step_sizes.descend(self.step_size, state.t, state.w, g), state.t + 1)

    def settle(self, problem: FederatedProblem, state: State) -> State:
        """Return the state after the server's proximal step."""
        return state._replace(w=proximal_point(problem, state.w, self.step_size))  # 8

    constant_step = automatic_steps.of_clients

    def traits(self, problem: Problem) -> Traits:
        return participation.traits_of_sampling(self.participation, problem, by_round=step_sizes.decays(self))


def _descend(step_size: Any, problem: Problem, w: np.ndarray) -> np.ndarray:
    """Return prox_{eta P}(w - eta grad f(w))."""
    return proximal_point(problem, step_sizes.descend(step_size, 0, w, problem.gradient(w)), step_size)
