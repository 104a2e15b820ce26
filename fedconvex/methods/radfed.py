"""RADFed (Xue, Klabjan, Luo, arXiv:2108.07433): models move between clients S times before they are averaged.

1. server: start at w_0, with m models w^1 = ... = w^m = w_0
2. each round: server draws m different clients in random order and sends model w^i to the i-th of them
3.   the i-th client: w^i <- w^i after local steps on its rows
4.   it answers w^i
5. server: keep the m models as they are (redistribution)
6. server, every S-th round: w <- (1/m) sum_i w^i and w^1 = ... = w^m = w (aggregation)

The paper calls S of these rounds one round. Here a round is one training of every model, so that every message is
counted; the model that is measured, ``state.w``, changes in every S-th round.

Mean. With Phi_k the map of client k's local steps and Phibar = (1/K) sum_k Phi_k, on quadratics
E w <- Phibar^S E w between aggregations: S rounds of FedAvg with equal weights and everybody, with the same fixed
point. The server averages plainly and never learns how many rows a client has, so that on clients of unequal weights
the method leans towards the minimiser for equal ones.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.draws import CLIENT_ORDER, Draws
from fedconvex.fields import Count
from fedconvex.kernels import averages
from fedconvex.methods.parts import local_work, participation
from fedconvex.problems import FederatedProblem, Problem
from fedconvex.traits import Traits, not_sent, sent_by_place


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) average of the models at the last aggregation
    models: np.ndarray  # (R, m, *model) w^i
    t: int  # rounds done


@sent_by_place("w")
@not_sent("others")
class Message(NamedTuple):
    """Server to clients: to each of them its own model of the m."""

    w: np.ndarray  # (R, m, *model) w^i, for the i-th client

    @property
    def others(self) -> np.ndarray:
        """What a client is not sent: all models but one."""
        return self.w[:, 1:]


class Reply(NamedTuple):
    """Clients to server."""

    w: np.ndarray  # (R, m, *model) w^i after the local steps


@dataclass(frozen=True, kw_only=True)
class RADFed(local_work.LocalWork):
    """Randomised aggregation delayed: every model is trained by S clients, one after the other, between two averages.

    Parameters
    ----------
    step_size : float, array (R,) or `Decay`
        Local step size; an array gives every trajectory its own. A `Decay` counts local steps, or rounds.
    models : int, optional
        m, at most the number of clients; m clients work in every round. Default: as many as there are clients.
    redistributions : int
        S, trainings of every model between two averages; 1 is FedAvg with plain averages.
    local_steps, epochs, batch_size, replacement, shrink, batch_draw
        As for `FedAvg`, at every training of a model.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if there are fewer clients than models, or a mini-batch without
        replacement exceeds a client.

    Warns
    -----
    UserWarning
        When a run starts, if the problem's weights are not equal: the method then leans towards the minimiser for
        equal weights. ``Problem(..., weights="uniform")`` is what it is made for.

    References
    ----------
    Xue, Klabjan, Luo, "Aggregation delayed federated learning", arXiv:2108.07433, 2021. Clients drawn without
    replacement, models dealt at random and plain averages follow the authors' program. No rate is published; the
    moments on quadratics are derived in this project.

    Examples
    --------
    >>> from fedconvex import Logistic, Problem, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import RADFed
    >>> problem = Problem(logistic_federation(seed=1).federation, Logistic(), l2=0.1, weights="uniform")
    >>> result = run(RADFed(step_size=0.5, models=4, redistributions=5, epochs=1, batch_size=8), problem, rounds=50)
    >>> result.status.name, bool(result.gap < 0.1)
    ('ROUND_LIMIT', True)
    """

    command = "radfed"
    benchmarks: ClassVar[Any] = {"radfed": {"local_steps": 5}}

    models: Count | None = None
    redistributions: Count = 1

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if a setting does not fit the problem, and warn of unequal weights."""
        super().check_fit(problem, R)
        if self._m(problem) > problem.federation.K:
            raise bad("RADFed.models", f"be at most the number of clients {problem.federation.K}", self.models)
        if not problem.equal_weights:
            text = "RADFed averages plainly and leans towards the minimiser for equal weights, but weights differ here"
            warnings.warn(f"{text}: pass Problem(..., weights='uniform')", UserWarning, stacklevel=2)

    def init(self, problem: Problem, w: np.ndarray) -> State:
        return State(w, np.repeat(w[:, None], self._m(problem), axis=1), 0)  # 1

    def participants(self, problem: Problem, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        m = self._m(problem)
        clients, _ = participation.participants(participation.UniformSampling(m), problem, draws)
        order = np.argsort(draws.uniform(m, client=-1, purpose=CLIENT_ORDER), axis=1, kind="stable")
        return np.take_along_axis(clients, order, axis=1), np.full(clients.shape, 1.0 / m)  # 2

    def broadcast(self, state: State) -> Message:
        return Message(state.models)  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        models = self._models_of(problem, message.w, clients, draws)
        return Reply(self.local_models(problem, models, clients, draws)[0]), memory  # 3, 4

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        if (state.t + 1) % self.redistributions != 0:
            return State(state.w, reply.w, state.t + 1)  # 5
        w = averages.over_clients(weights, reply.w)  # 6
        return State(w, np.repeat(w[:, None], reply.w.shape[1], axis=1), state.t + 1)

    def traits(self, problem: Problem) -> Traits:
        local = self.steps_of(problem, plain=True)
        batches = () if local.full else ("batches",)
        return Traits(local, None, "uniform", self._m(problem), ("clients", *batches))

    def translate(self, state: State, shift: np.ndarray) -> State:
        """Return the state in coordinates that moved: all models move along."""
        return state._replace(w=state.w + shift, models=state.models + shift[:, None])

    def _m(self, problem: FederatedProblem) -> int:
        return problem.federation.K if self.models is None else self.models

    def _models_of(self, problem: Problem, models: np.ndarray, clients: np.ndarray, draws: Draws) -> np.ndarray:
        """Return the models of the clients (R, m', *model): in order, or by their places if they are some of the m."""
        if clients.shape[1] == models.shape[1]:
            return models
        everybody, _ = self.participants(problem, draws)
        place = np.argmax(everybody[:, None, :] == clients[:, :, None], axis=2)
        return models[np.arange(len(models))[:, None], place]
