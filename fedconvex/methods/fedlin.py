"""FedLin (Mitra, Jaafar, Pappas, Hassani, NeurIPS 2021) without sparsification: local steps that cannot drift.

1. server: start at x
2. stage, first round: server sends x; client i answers grad f_i(x)
3. server: g = sum_i p_i grad f_i(x)
4. stage, second round: server sends g; client i: x_i <- x
5.   tau_i times: x_i <- x_i - (eta/tau_i) (grad f_i(x_i) - grad f_i(x) + g)
6.   client i answers x_i
7. server: x <- sum_i p_i x_i

The paper's round is a stage, two rounds here: each makes one message and one reply, and both are counted. All clients
move by about eta g, whatever their number of steps: the faster take shorter ones. It is SCAFFOLD, option I, whose
control variates are renewed at x in every stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from fedconvex.constants import default_steps
from fedconvex.constants.default_steps import DefaultStep
from fedconvex.draws import Draws
from fedconvex.fields import CheckedFields, CountPerClient
from fedconvex.kernels import averages, client_rows, descent, row_losses
from fedconvex.methods.parts import automatic_steps, local_work, optimizers, participation, step_sizes
from fedconvex.problems import FederatedProblem, Problem
from fedconvex.traits import REFUSE, Traits, not_sent
from fedconvex.words import Words, steps_in_words

AutomaticConstant = Annotated[Any, step_sizes.StepRule(automatic=True, decays=False)]


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) x
    gradient: np.ndarray  # (R, *model) g = grad F(x), in the second round of a stage
    known: bool  # whether g is


class Point(NamedTuple):
    """Server to clients, first round of a stage."""

    w: np.ndarray  # (R, *model) x


class Gradients(NamedTuple):
    """Clients to server, first round of a stage."""

    gradient: np.ndarray  # (R, K, *model) grad f_i(x)


@not_sent("w")
class Direction(NamedTuple):
    """Server to clients, second round of a stage."""

    w: np.ndarray  # (R, *model) x, which they have
    gradient: np.ndarray  # (R, *model) g


class Models(NamedTuple):
    """Clients to server, second round of a stage."""

    w: np.ndarray  # (R, K, *model) x_i after the local steps


@dataclass(frozen=True, kw_only=True)
class FedLin(CheckedFields):
    """Local steps along the gradient of F, from that of the client: the optimum whatever the heterogeneity.

    The step eta is that of a whole stage of two rounds, so that clients with more local steps take shorter ones. In
    stages to a given gap, local steps gain nothing over gradient descent at the same eta; they allow a larger one.

    Parameters
    ----------
    step_size : float, array (R,) or "auto"
        eta; "auto" is the one at which the factor of the theorem below is least.
    local_steps : int or tuple (K,)
        tau_i, of each client.

    Raises
    ------
    ValueError, TypeError
        On settings out of range.

    Notes
    -----
    Theorem (derived). Let all f_i be convex and L-smooth, F have ‖grad F‖^2 >= 2 mu (F - F*), and a = L eta,
    delta = a (tau - 1)/(2 tau) with the largest tau_i, c = 1 - delta - (a/2) (1 + delta)^2 > 0. Then
    F(x+) - F* <= (1 - 2 a c mu/L) (F(x) - F*). Gradient steps of at most 2/L on convex functions are nonexpansive, so
    that ‖x_{i,l} - x‖ <= (eta l/tau_i) ‖g‖; hence x+ - x = -eta (g + e), ‖e‖ <= delta ‖g‖, and the descent lemma gives
    the rest. With tau_i = 1 it is gradient descent.

    References
    ----------
    Mitra, Jaafar, Pappas, Hassani, "Linear convergence in federated learning: tackling client heterogeneity and sparse
    gradients", NeurIPS 2021, Algorithm 1 with full vectors and gradients; weights p_i in the place of 1/m.

    Examples
    --------
    >>> from fedconvex import Logistic, Problem, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import FedLin
    >>> problem = Problem(logistic_federation(seed=1).federation, Logistic(), l2=0.1)
    >>> run(FedLin(step_size="auto", local_steps=5), problem, rounds=600, tol=1e-10).status.name
    'CONVERGED'
    """

    command = "fedlin"
    benchmarks: ClassVar[Any] = {"fedlin": {"local_steps": 5}}
    lost = REFUSE  # g is the gradient of everybody's mean
    no_penalty = "its steps follow gradients: ProximalFedSGD is the method for one local step"

    step_size: AutomaticConstant
    local_steps: CountPerClient = 1

    def words(self, problem: FederatedProblem) -> Words:
        return steps_in_words(self, self.local_steps, None, "")

    def gradient_passes(self, problem: FederatedProblem) -> float:
        """Return the passes over all rows that a round takes on average: one at x, and one for each local step."""
        sizes = problem.federation.sizes
        return 0.5 + 0.5 * float(np.broadcast_to(self.local_steps, sizes.shape) @ sizes) / float(sizes.sum())

    def init(self, problem: FederatedProblem, w: np.ndarray) -> State:
        return State(w, np.zeros_like(w), False)  # 1

    def memory(self, problem: Problem, R: int) -> client_rows.ClientRows:
        """Return room for grad f_i(x), from one round of a stage to the other."""
        return client_rows.ClientRows.empty(problem.size)

    def broadcast(self, state: State) -> Point | Direction:
        return Direction(state.w, state.gradient) if state.known else Point(state.w)  # 2, 4

    def local(self, problem: Problem, message: Any, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        memory, mine = memory.locate(draws.trajectory, clients)
        if isinstance(message, Point):
            g = row_losses.gradients_of(problem, message.w, clients)
            memory.rows[mine] = g.reshape(*clients.shape, -1)
            return Gradients(g), memory  # 2
        sizes = problem.federation.sizes[clients]
        tau = np.broadcast_to(np.asarray(self.local_steps), problem.federation.sizes.shape)[clients]
        plan = local_work.plan_of(clients, tau, sizes, sizes)
        eta = step_sizes.round_step_sizes(self.step_size, draws.trajectory, draws.round)[:, None] / tau
        tilt = message.gradient.reshape(len(clients), 1, -1) - memory.rows[mine]
        x, _ = descent.local_updates(
            problem, optimizers.ClientSGD(), message.w, clients, draws, eta[:, :, None], plan, False, False, tilt
        )  # 4, 5
        return Models(x), memory  # 6

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Any) -> State:
        if isinstance(reply, Gradients):
            return State(state.w, averages.over_clients(weights, reply.gradient), True)  # 3
        return State(averages.over_clients(weights, reply.w), np.zeros_like(state.w), False)  # 7

    def traits(self, problem: Problem) -> Traits:
        return participation.traits_of_sampling(None, problem, by_round=False)

    def default_step(self, problem: Problem) -> DefaultStep:
        return default_steps.even_step(automatic_steps.smoothness(self, problem), int(np.max(self.local_steps)))
