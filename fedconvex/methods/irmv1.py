"""IRMv1 as a federated method (Arjovsky, Bottou, Gulrajani, Lopez-Paz, arXiv:1907.02893, Section 3; gradient descent).

J(w) = sum_e R^e(w) + lam sum_e g_e(w)^2 is a sum over clients up to the E numbers g_e, so that 2d numbers a client do:

1. server: start at w_0
2. each round t = 0, 1, ...: server sends w_t to every client
3.   client k, of environment e with the share q_k of its rows, answers r_k = grad R_k(w_t) and a_k = grad g_k(w_t)
4. server: r_e = sum_{k in e} q_k r_k, a_e = sum_{k in e} q_k a_k, g_e = w_t'r_e
5. server: w_{t+1} = w_t - eta_t sum_e (r_e + 2 lam g_e a_e)

That w'grad R^e(w) is g_e(w) saves sending it. The server sees sums over each environment only, if they are secure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconvex.constants import default_steps
from fedconvex.constants.default_steps import DefaultStep
from fedconvex.draws import Draws
from fedconvex.fields import CheckedFields
from fedconvex.kernels import row_losses
from fedconvex.methods.parts import automatic_steps, step_sizes
from fedconvex.problems import FederatedProblem
from fedconvex.problems.invariant import shares_of
from fedconvex.problems.protocol import INVARIANT_MODEL
from fedconvex.traits import Traits
from fedconvex.words import Words


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, d) w_t
    environment_of: np.ndarray  # (R, K) environment of each client
    shares: np.ndarray  # (R, K) q_k
    slopes: np.ndarray  # (R, E) g_e(w_{t-1}); zeros before round 1
    penalty_weight: np.ndarray  # (R,) lam
    t: int  # rounds done


class Message(NamedTuple):
    """Server to clients."""

    w: np.ndarray  # (R, d) w_t


class Reply(NamedTuple):
    """Clients to server."""

    risk_gradient: np.ndarray  # (R, m, d) r_k
    slope_gradient: np.ndarray  # (R, m, d) a_k


@dataclass(frozen=True, kw_only=True)
class IRMv1(CheckedFields):
    """Gradient descent on the objective of IRMv1, from two gradients a client and round; everybody takes part.

    Parameters
    ----------
    step_size : float, array (R,), `Decay` or "auto"
        eta; a `Decay` counts rounds. "auto", for squared loss: 1/L with L the smoothness of J where J <= J(0), so that
        J falls in every round from zero, or from any start that is no worse. Larger steps are often faster.

    Raises
    ------
    ValueError, TypeError
        If step_size is not positive.

    Examples
    --------
    >>> from fedconvex import Squared, run
    >>> from fedconvex.datasets import coloured_federation
    >>> from fedconvex.methods import IRMv1
    >>> from fedconvex.problems import InvariantProblem
    >>> problem = InvariantProblem(coloured_federation((0.2, 0.1)), Squared(), penalty_weight=1.0)
    >>> result = run(IRMv1(step_size="auto"), problem, rounds=1000, tol=1e-8)
    >>> result.status.name, result.w.round(3).tolist()
    ('CONVERGED', [0.299, 0.591])
    """

    learns = (INVARIANT_MODEL,)
    statistics = staticmethod(lambda problem: ("environment",))  # what clients are asked for before round 1
    constant = ("environment_of", "shares", "penalty_weight")  # of the state: no round changes them

    step_size: step_sizes.AutomaticStepSize

    def words(self, problem: Any) -> Words:
        eta = f"{self.step_size:g}" if isinstance(self.step_size, float) else self.step_size
        return Words(f"IRMv1, step size {eta}", (f"eta {eta}",))

    def init(self, problem: Any, w: np.ndarray) -> State:
        R, E = len(w), problem.n_environments
        each = lambda v: np.tile(np.asarray(v), (R, 1))  # noqa: E731
        environment_of, shares = shares_of(problem)
        lam = np.full(R, problem.penalty_weight)
        return State(w, each(environment_of), each(shares), np.zeros((R, E)), lam, 0)  # 1

    def participants(self, problem: FederatedProblem, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        K, R = problem.federation.K, draws.trajectory.size
        return np.tile(np.arange(K), (R, 1)), np.tile(problem.weights, (R, 1))

    def broadcast(self, state: State) -> Message:
        return Message(state.w)  # 2

    def local(self, problem: Any, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        risk, scale = problem.risk, problem.scale
        return Reply(
            row_losses.gradients_of(risk, message.w, clients), row_losses.gradients_of(scale, message.w, clients)
        ), memory  # 3

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        R, E = state.slopes.shape
        at = np.arange(R)[:, None], np.take_along_axis(state.environment_of, clients, axis=1)
        q = np.take_along_axis(state.shares, clients, axis=1)[..., None]
        r, a = np.zeros((R, E, state.w.shape[1])), np.zeros((R, E, state.w.shape[1]))
        np.add.at(r, at, q * reply.risk_gradient)  # 4
        np.add.at(a, at, q * reply.slope_gradient)
        g = np.einsum("rd,red->re", state.w, r)
        step = r.sum(axis=1)
        if state.penalty_weight.any():
            step = step + 2.0 * state.penalty_weight[:, None] * np.einsum("re,red->rd", g, a)
        w = step_sizes.descend(self.step_size, state.t, state.w, step)  # 5
        return state._replace(w=w, slopes=g, t=state.t + 1)

    def traits(self, problem: Any) -> Traits:
        return Traits(drawn=(), by_round=step_sizes.decays(self))

    def default_step(self, problem: Any) -> DefaultStep:
        if not problem.traits.quadratic:
            raise automatic_steps.no_theorem(self, f"{problem.loss!r}, where no bound of J's curvature is known here")
        return default_steps.invariant_step(problem.environments)
