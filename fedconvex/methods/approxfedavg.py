"""ApproxFedAvg, FedAvg with softmax weights of the domains; and SoftmaxFedAvg, which minimises what it promises.

The softmax objective of p domains is (1/mu) log sum_i exp(mu F_i(w)), between max F_i and max F_i + log(p)/mu; its
gradient is sum_i q_i grad F_i, q = softmax(mu F). ApproxFedAvg lets every client compute q from its own rows:

1. server: start at w_0
2. each round t = 0, 1, ...: server samples clients S_t and sends them w_t
3.   client k: F_i^k = mean loss of its rows of domain i at w_t, q_i = exp(mu F_i^k)/(sum over its domains)
4.   client k, from w_k = w_t: local SGD steps on sum_i q_i F_i^k + (l2/2)‖.‖^2
5.   client k answers w_k
6. server: w_{t+1} = sum_k p_k w_k/sum p_k

A client with one domain has q = 1, whatever mu: one domain per client makes it FedAvg, not a minimiser of the softmax
objective. SoftmaxFedAvg takes q from the losses of all clients:

7. each round: server sends w_t and alpha_i = q_i/N_i, q = softmax(mu F), up to a common factor; N_i rows of domain i
8.   client k: L_i^k, the sums of its losses at w_t; beta^k = sum_i alpha_i N_i^k
9.   client k, from w_k = w_t: local SGD steps on sum_i alpha_i sum_{j of domain i} l_j/beta^k + (l2/2)‖.‖^2
10.  client k answers w_k, beta^k, L^k and N^k
11. server: w_{t+1} = sum beta^k w_k/sum beta^k; F_i = sum_k L_i^k/sum_k N_i^k where that is known, else unchanged
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconvex.draws import Draws
from fedconvex.fields import Positive
from fedconvex.kernels import averages
from fedconvex.kernels.domains import domain_losses, domains_of
from fedconvex.methods.parts import averaging, domain_weighting, local_work, optimizers
from fedconvex.problems import Measure, Problem
from fedconvex.simplex.uncertainty import softmax
from fedconvex.solvers.minimax import measure_softmax
from fedconvex.traits import Traits

__all__ = ["ApproxFedAvg", "SoftmaxFedAvg"]


class SoftmaxState(NamedTuple):
    """What the server of SoftmaxFedAvg keeps."""

    w: np.ndarray  # (R, *model) w_t
    server: tuple  # SERVEROPT's memory, arrays like w
    values: np.ndarray  # (R, p) F_i, as last seen
    counts: np.ndarray  # (R, p) N_i


@dataclass(frozen=True, kw_only=True)
class ApproxFedAvg(local_work.AveragedWork):
    """FedAvg whose clients weigh their own domains by the softmax of their own losses, as published.

    A round costs 2|W| floats per client, like FedAvg. Its gap is that of the softmax objective, which it does not
    minimise unless every client holds all domains alike: see docs/agnostic.md, and `SoftmaxFedAvg`.

    Parameters
    ----------
    mu : float
        Sharpness of the softmax, positive.
    step_size, local_steps, epochs, batch_size, replacement, batch_draw, participation, client, server
        As for `fedconvex.FedAvg`; rows are drawn uniformly only.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if a mini-batch without replacement exceeds a client.

    Examples
    --------
    >>> from fedconvex import Federation, FedAvg, Problem, Squared, run
    >>> from fedconvex.methods import ApproxFedAvg
    >>> problem = Problem(Federation.from_arrays([[1.0]] * 3, [0.0, 0.0, 3.0], clients=[0, 0, 1]), Squared())
    >>> run(ApproxFedAvg(mu=9.0, step_size=0.5), problem, rounds=99).w, problem.solve().w.round(6)
    (array([1.]), array([1.]))
    """

    mu: Positive
    client: optimizers.ClientOptimizer = optimizers.ClientSGD()

    draws_by_weight = False

    init = averaging.init  # 1
    broadcast = averaging.broadcast  # 2

    def local(self, problem: Problem, message: Any, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        held = domains_of(problem.federation).held[clients]
        mass = np.where(held > 0, held, 1)  # rows, or their weights, which may be less than 1
        means = domain_losses(problem, message.w, clients, held.shape[2]) / mass  # 3
        q = softmax(np.where(held > 0, means, -np.inf), self.mu)  # 3
        u, beta = domain_weighting.weights_of(problem, clients, q / mass, held)
        w = domain_weighting.local_steps(self, problem, message.w, clients, draws, u, beta)  # 4
        return averaging.Reply(w, w[:, :, None][:, :, :0]), memory  # 5

    aggregate = averaging.aggregate  # 6

    def traits(self, problem: Problem) -> Traits:
        return self.averaging_traits(problem, plain=False)

    def measure(self, problem: Problem, state: averaging.State) -> Measure:
        return Measure(*measure_softmax(problem, self.mu, state.w))


@dataclass(frozen=True, kw_only=True)
class SoftmaxFedAvg(local_work.AveragedWork):
    """Federated averaging for the softmax objective: the server knows the domains' losses and sends their weights.

    A round costs |W| + p floats down and |W| + 1 + 2p up per client. The weights are one round old; fixed points of
    single local steps on all rows are the minimisers.

    Parameters
    ----------
    mu : float
        Sharpness of the softmax, positive: the objective is within log(p)/mu of the worst domain's loss, and its
        gradient has a Lipschitz constant of up to L + mu G^2, G the largest norm of a domain's gradient.
    step_size, local_steps, epochs, batch_size, replacement, batch_draw, participation, client, server
        As for `fedconvex.FedAvg`; rows are drawn uniformly only.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if a domain has no rows, or a mini-batch without replacement
        exceeds a client.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared, run
    >>> from fedconvex.methods import SoftmaxFedAvg
    >>> problem = Problem(Federation.from_arrays([[1.0]] * 3, [0.0, 0.0, 3.0], clients=[0, 0, 1]), Squared())
    >>> run(SoftmaxFedAvg(mu=9.0, step_size=0.02), problem, rounds=900, tol=1e-9).w.round(3)
    array([1.5])
    """

    mu: Positive
    client: optimizers.ClientOptimizer = optimizers.ClientSGD()

    draws_by_weight = False

    statistics = domain_weighting.statistics
    constant = ("counts",)  # of the state: no round changes it

    def init(self, problem: Problem, w: np.ndarray) -> SoftmaxState:
        counts = np.tile(domain_weighting.counts_of(problem), (len(w), 1))
        return SoftmaxState(w, self.server.init(w), np.zeros_like(counts), counts)  # 1

    def broadcast(self, state: SoftmaxState) -> domain_weighting.Message:
        alpha = softmax(state.values, self.mu) / state.counts
        return domain_weighting.Message(state.w, alpha / alpha.max(axis=1, keepdims=True))  # 7

    local = domain_weighting.local  # 8, 9, 10

    def aggregate(
        self, state: SoftmaxState, clients: np.ndarray, weights: np.ndarray, reply: domain_weighting.Reply
    ) -> SoftmaxState:
        total, counts = reply.beta.sum(axis=1), reply.counts.sum(axis=1)
        average = averages.over_clients(reply.beta / total[:, None], reply.w)
        server, w = self.server.move(state.server, state.w, average)  # 11
        means = reply.losses.sum(axis=1) / np.where(counts > 0.0, counts, 1.0)
        return SoftmaxState(w, server, np.where(counts > 0.0, means, state.values), state.counts)  # 11

    def traits(self, problem: Problem) -> Traits:
        return self.averaging_traits(problem, plain=False, averaged=False)

    def measure(self, problem: Problem, state: SoftmaxState) -> Measure:
        return Measure(*measure_softmax(problem, self.mu, state.w))

    def observe(self, problem: Problem, state: SoftmaxState) -> dict[str, np.ndarray]:
        """(R, p): the weights q of the domains."""
        return {"domain_weights": softmax(state.values, self.mu)}
