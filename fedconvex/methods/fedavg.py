"""FedAvg (McMahan et al., AISTATS 2017) with any client and server optimiser (Reddi et al., ICLR 2021, Algorithm 1).

1. server: start at w_0
2. each round t = 0, 1, ...: server samples clients S_t and sends them w_t
3.   client k in S_t: w_k <- w_t
4.   repeat: draw a mini-batch b of its rows, w_k <- CLIENTOPT(w_k, grad f_k(w_k; b), eta)
5.   client k answers w_k
6. server: w_{t+1} <- SERVEROPT(w_t, sum_{k in S_t} q_k w_k - w_t), q_k = p_k / sum_{j in S_t} p_j
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import flag
from fedconvex.constants.default_steps import DefaultStep
from fedconvex.draws import Draws
from fedconvex.kernels import averages, descent
from fedconvex.methods.parts import automatic_steps, local_work, optimizers, participation, step_sizes
from fedconvex.problems import Measure, Problem
from fedconvex.traits import Traits

__all__ = ["FedAvg"]


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) w_t
    server: tuple  # SERVEROPT's memory, arrays like w
    shadow: np.ndarray  # (R, tau, *model) averaged local iterates of the last round, or tau = 0


class Message(NamedTuple):
    """Server to clients."""

    w: np.ndarray  # (R, *model) w_t


class Reply(NamedTuple):
    """Clients to server."""

    w: np.ndarray  # (R, m, *model) w_k after the local steps
    path: np.ndarray  # (R, m, tau, *model) w_k after each of them, or tau = 0; a diagnostic

    @property
    def not_sent(self) -> tuple[str, ...]:
        """Fields that are kept for analysis and not counted as communication."""
        return ("path",)


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """Federated averaging: local steps at sampled clients, averaged by the server.

    Parameters
    ----------
    step_size : float, array (R,), `Decay` or "auto"
        Local step size eta; an array gives every trajectory its own; "auto" is what a theorem gives for the settings
        and the problem (`fedconvex.constants.default_steps`), and ``Result.step_size`` names it.
    local_steps : int
        Local steps per round; each draws a fresh mini-batch.
    epochs : int, optional
        Instead of local_steps: passes over the client's rows in a new random order each (with ``replacement``: as many
        steps, drawn independently).
    batch_size : int, optional
        Rows per step; default all rows of the client. In epochs a batch never exceeds the client.
    replacement : bool
        Draw the rows of a mini-batch with replacement.
    participation : int, float or scheme
        Clients per round: a whole number of them (1 is one client), a share (1.0 is everybody, the default), drawn
        uniformly without replacement, or a scheme such as `ProportionalSampling`.
    client, server : optimisers
        CLIENTOPT and SERVEROPT; default plain SGD and averaging.
    shadow : bool
        Keep the averaged local iterates of every round in ``state.shadow`` (R, tau, *model), and their mean objective
        in the trace as ``shadow_value``: (1/tau) sum_k F(wbar^{t,k}), k = 1, ..., tau. All clients must take equally
        many steps.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if a mini-batch without replacement exceeds a client, or no theorem
        gives the step that "auto" asks for.

    References
    ----------
    McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-efficient learning of deep networks from
    decentralized data", AISTATS 2017, Algorithm 1. Reddi et al., "Adaptive federated optimization", ICLR 2021.

    Examples
    --------
    >>> from fedconvex import FedAvg, Logistic, Problem, run
    >>> from fedconvex.datasets import logistic_federation
    >>> problem = Problem(logistic_federation(seed=1).federation, Logistic(), l2=0.1)
    >>> result = run(FedAvg(step_size=0.5, epochs=1, batch_size=8, participation=0.5), problem, rounds=50)
    >>> result.status.name, bool(result.gap < 0.1)
    ('ROUND_LIMIT', True)
    """

    step_size: Any
    local_steps: int = 1
    epochs: int | None = None
    batch_size: int | None = None
    replacement: bool = False
    participation: Any = 1.0
    client: Any = optimizers.ClientSGD()
    server: Any = optimizers.Averaging()
    shadow: bool = False

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "step_size", step_sizes.as_step_size("FedAvg", self.step_size, automatic=True))
        local_work.check_work("FedAvg", self)
        for name in ("replacement", "shadow"):
            set_(self, name, flag(f"FedAvg.{name}", getattr(self, name)))
        set_(self, "participation", participation.as_participation("FedAvg", self.participation))
        optimizers.check_optimizers("FedAvg", self.client, self.server)

    def init(self, problem: Problem, w: np.ndarray) -> State:
        local_work.check_fit("FedAvg", self, problem, len(w))
        return State(w, self.server.init(w), w[:, None][:, :0])  # 1

    def participants(self, problem: Problem, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        return participation.participants(self.participation, problem, draws)  # 2

    def broadcast(self, state: State) -> Message:
        return Message(state.w)  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        plan = local_work.plan_of(self, problem.federation.sizes[clients])
        eta = step_sizes.step_sizes(self.step_size, draws.trajectory, draws.round, plan)
        w, path = descent.local_updates(
            problem, self.client, message.w, clients, draws, eta, plan, self.replacement, self.shadow
        )  # 3, 4
        return Reply(w, path), memory  # 5

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        average = averages.over_clients(weights, reply.w)
        server, w = self.server.move(state.server, state.w, average)  # 6
        return State(w, server, averages.over_clients(weights, reply.path) if self.shadow else state.shadow)

    def traits(self, problem: Problem) -> Traits:
        return local_work.averaging_traits(self, problem, plain=self.client.plain())

    def default_step(self, problem: Problem) -> DefaultStep:
        return automatic_steps.of_averaging("FedAvg", self, problem)

    def measure(self, problem: Problem, state: State) -> Measure:
        return problem.measure(state.w)

    def observe(self, problem: Problem, state: State) -> dict[str, np.ndarray]:
        """shadow_value (R,): mean of F over the shadow iterates of the last round."""
        if not self.shadow:
            return {}
        R, tau = state.shadow.shape[:2]
        if tau == 0:
            return {"shadow_value": np.full(R, np.nan)}
        return {"shadow_value": problem.value(state.shadow.reshape(-1, *problem.model_shape)).reshape(R, tau).mean(1)}
