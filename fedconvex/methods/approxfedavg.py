"""ApproxFedAvg, FedAvg with softmax weights of the domains; and SoftmaxFedAvg, which minimises what it promises.

The softmax objective of p domains is (1/mu) log sum_i exp(mu F_i(w)), between max F_i and max F_i + log(p)/mu; its
gradient is sum_i q_i grad F_i, q = softmax(mu F). ApproxFedAvg lets every client compute q from its own rows, as a
survey suggests (its Algorithm 2, beside AgnosticFedAvg of Ro et al., Interspeech 2021):

1. server: start at w_0
2. each round t = 0, 1, ...: server samples clients S_t and sends them w_t
3.   client k, from w_k = w_t, for every mini-batch b:
4.     F_i^k = mean loss of its rows of domain i at w_k, 0 without any; q_i = exp(mu F_i^k)/sum_{j=1}^p exp(mu F_j^k)
5.     w_k <- w_k - eta (sum_i q_i grad F_i^k, estimated on b, + l2 w_k)
6.   client k answers w_k
7. server: w_{t+1} = sum_k p_k w_k/sum p_k

Lines 4 and 5 are read so: F_i^k is the mean over all rows of domain i that the client has, not over the batch's, which
is the same where batches are full (printed is a sum, with which mu would scale with the rows). Options: ``frozen`` does
line 4 once a round, at w_t; ``own_domains`` sums over the domains of which the client has rows, so that q = 1 where
there is one of them, whatever mu, and one domain per client makes it FedAvg. Over all p domains such a client shrinks
its own steps, by exp(mu F)/(exp(mu F) + p - 1), and knows as little of the others. Neither minimises the softmax
objective. SoftmaxFedAvg takes q from the losses of all clients:

8. each round: server sends w_t and alpha_i = q_i/N_i, q = softmax(mu F), up to a common factor; N_i rows of domain i
9.   client k: L_i^k, the sums of its losses at w_t; beta^k = sum_i alpha_i N_i^k
10.  client k, from w_k = w_t: local SGD steps on sum_i alpha_i sum_{j of domain i} l_j/beta^k + (l2/2)‖.‖^2
11.  client k answers w_k, beta^k, L^k and N^k
12. server: w_{t+1} = sum beta^k w_k/sum beta^k; F_i = sum_k L_i^k/sum_k N_i^k where that is known, else unchanged
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconvex.draws import Draws
from fedconvex.fields import Flag, Positive
from fedconvex.kernels import averages, jobs
from fedconvex.kernels.cache import strict_part
from fedconvex.kernels.domain_sums import add_losses, domain_losses, domains_of
from fedconvex.methods.parts import aggregation, averaging, domain_weighting, local_work, optimizers
from fedconvex.problems import FederatedProblem, Measure, Problem
from fedconvex.simplex.uncertainty import softmax
from fedconvex.solvers.minimax.agnostic import measure_softmax
from fedconvex.traits import Traits
from fedconvex.words import Words


class SoftmaxState(NamedTuple):
    """What the server of SoftmaxFedAvg keeps."""

    w: np.ndarray  # (R, *model) w_t
    server: tuple  # SERVEROPT's memory, arrays like w
    values: np.ndarray  # (R, p) F_i, as last seen
    counts: np.ndarray  # (R, p) N_i


class SoftmaxWeighted(NamedTuple):
    """Moves of an optimiser on batches whose rows are weighted by the softmax of their domains' losses at the model."""

    opt: Any
    code: np.ndarray  # (n,) domains of the rows
    held: np.ndarray  # (R, m, p) rows of each domain at the client, or their weight
    u: np.ndarray  # (R, m, p) weights, written
    mu: float
    own: bool  # whether domains without rows are left out of the sum

    def step(self, loss, data, job, part, s, a, w, room):  # type: ignore[no-untyped-def]
        """One move along (1/|b|) sum over the batch of u_i l'(row) + l2 w, u_i = n q_i/(rows of domain i)."""
        u = self.u[job.r, job.j]
        for i in range(u.size):
            u[i] = 0.0
        add_losses(loss, data.X, data.y, self.code, job.lo, job.lo + job.n, w, room.c, u)
        weigh(self.held[job.r, job.j], self.mu, self.own, job.n, u)
        jobs.step(
            domain_weighting.DomainWeighted(self.opt, self.code, self.u, self.u), loss, data, job, part, s, a, w, room
        )


@strict_part
def weigh(held, mu, own, n, u):  # type: ignore[no-untyped-def]
    """Turn sums of losses u (p,) into n q_i/held_i, q = softmax(mu u/held) where there are rows; elsewhere into 0."""
    top, total = -math.inf, 0.0
    for i in range(u.size):
        if held[i] > 0.0:
            u[i] *= mu / held[i]
        if (held[i] > 0.0 or not own) and not u[i] <= top:
            top = u[i]
    for i in range(u.size):
        if held[i] > 0.0 or not own:
            u[i] = math.exp(u[i] - top)
            total += u[i]
    for i in range(u.size):
        u[i] = n * u[i] / (total * held[i]) if held[i] > 0.0 else 0.0


@dataclass(frozen=True, kw_only=True)
class ApproxFedAvg(local_work.AveragedWork):
    """FedAvg whose clients weigh their own domains by the softmax of their own losses, as published.

    A round costs 2|W| floats per client, like FedAvg. Its gap is that of the softmax objective, which it does not
    minimise unless every client holds all domains alike: see docs/agnostic.md, and `SoftmaxFedAvg`.

    Parameters
    ----------
    mu : float
        Sharpness of the softmax, positive.
    frozen : bool
        Weigh by the losses at the model that the round began with, once; else, as published, at the current model for
        every mini-batch, at the cost of a pass over all rows of the client.
    own_domains : bool
        Divide by the sum over the domains of which the client has rows; else, as published, over all p, where a domain
        without rows has loss 0. A federation without domains is one whose clients are the domains.
    step_size, local_steps, epochs, batch_size, replacement, shrink, batch_draw
        As for `fedconvex.FedAvg`; rows are drawn uniformly only.
    participation, client, server, aggregation
        As for `fedconvex.FedAvg`.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if a mini-batch without replacement exceeds a client.

    References
    ----------
    A survey's own suggestion, its Algorithm 2: docs/theory/agnostic_softmax.md.

    Examples
    --------
    Labels 0, 0 and 3, the last at a client of its own: FedAvg ends at their mean 1, the best worst loss is at 1.5.

    >>> from fedconvex import Federation, FedAvg, Problem, Squared, run
    >>> from fedconvex.methods import ApproxFedAvg
    >>> problem = Problem(Federation.from_arrays([[1.0]] * 3, [0.0, 0.0, 3.0], clients=[0, 0, 1]), Squared())
    >>> run(ApproxFedAvg(mu=9.0, step_size=0.5), problem, rounds=99).w.round(6)
    array([1.006932])
    >>> run(ApproxFedAvg(mu=9.0, step_size=0.5, own_domains=True), problem, rounds=99).w, problem.solve().w.round(6)
    (array([1.]), array([1.]))
    """

    command = "approxfedavg"
    aims = ("softmax of domains",)

    mu: Positive
    frozen: Flag = False
    own_domains: Flag = False
    client: optimizers.ClientOptimizer = optimizers.ClientSGD()
    aggregation: aggregation.Aggregate = aggregation.WeightedMean()

    draws_by_weight = False

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if a setting does not fit the problem and its R trajectories."""
        super().check_fit(problem, R)
        aggregation.check_fit(self)

    def words(self, problem: Problem) -> Words:
        return self.steps_in_words(problem, lead=(f"mu {self.mu:g}",), rules=(f"mu = {self.mu:g}",))

    init = averaging.init  # 1
    broadcast = averaging.broadcast  # 2

    def local(self, problem: Problem, message: Any, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        domains = domains_of(problem.federation)
        held = domains.held[clients].astype(np.float64)
        if self.frozen:
            w = self._frozen_steps(problem, message.w, clients, draws, held)
        else:
            summed = np.add.reduce(held > 0.0, axis=2) if self.own_domains else np.full(clients.shape, held.shape[2])
            kinds = np.where(summed == 1, jobs.UNSORTED, jobs.OWN)  # of one domain q = 1
            rule = SoftmaxWeighted(
                self.client, domains.code, held, np.empty_like(held), float(self.mu), self.own_domains
            )
            most = int(problem.federation.sizes[clients].max())
            w = domain_weighting.steps_by(self, problem, message.w, clients, draws, kinds, rule, most)  # 3, 4, 5
        return averaging.Reply(w, w[:, :, None][:, :, :0]), memory  # 6

    def _frozen_steps(
        self, problem: Problem, w: np.ndarray, clients: np.ndarray, draws: Draws, held: np.ndarray
    ) -> Any:
        """Return the models after steps on the losses weighed at w."""
        mass = np.where(held > 0.0, held, 1.0)  # rows, or their weights, which may be less than 1
        means = domain_losses(problem, w, clients, held.shape[2]) / mass  # 4
        q = softmax(np.where(held > 0.0, means, -np.inf) if self.own_domains else means, self.mu)  # 4
        u, beta = domain_weighting.weights_of(problem, clients, q / mass, held)
        if not self.own_domains:
            u = np.where((held > 0.0) & (beta < 1.0)[:, :, None], beta[:, :, None] * u, u)
        return domain_weighting.local_steps(self, problem, w, clients, draws, u, beta)  # 3, 5

    aggregate = averaging.aggregate  # 7

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
    step_size, local_steps, epochs, batch_size, replacement, shrink, batch_draw, participation, client, server
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

    command = "softmaxfedavg"
    aims = ("softmax of domains",)

    mu: Positive
    client: optimizers.ClientOptimizer = optimizers.ClientSGD()

    draws_by_weight = False

    statistics = domain_weighting.statistics
    constant = ("counts",)  # of the state: no round changes it

    def words(self, problem: Problem) -> Words:
        return self.steps_in_words(problem, lead=(f"mu {self.mu:g}",), rules=(f"mu = {self.mu:g}",))

    def init(self, problem: Problem, w: np.ndarray) -> SoftmaxState:
        counts = np.tile(domain_weighting.counts_of(problem), (len(w), 1))
        return SoftmaxState(w, self.server.init(w), np.zeros_like(counts), counts)  # 1

    def broadcast(self, state: SoftmaxState) -> domain_weighting.Message:
        alpha = softmax(state.values, self.mu) / state.counts
        return domain_weighting.Message(state.w, alpha / alpha.max(axis=1, keepdims=True))  # 8

    local = domain_weighting.local  # 9, 10, 11

    def aggregate(
        self, state: SoftmaxState, clients: np.ndarray, weights: np.ndarray, reply: domain_weighting.Reply
    ) -> SoftmaxState:
        total, counts = reply.beta.sum(axis=1), reply.counts.sum(axis=1)
        average = averages.over_clients(reply.beta / total[:, None], reply.w)
        server, w = self.server.move(state.server, state.w, average)  # 12
        means = reply.losses.sum(axis=1) / np.where(counts > 0.0, counts, 1.0)
        return SoftmaxState(w, server, np.where(counts > 0.0, means, state.values), state.counts)  # 12

    def traits(self, problem: Problem) -> Traits:
        return self.averaging_traits(problem, plain=False, averaged=False)

    def measure(self, problem: Problem, state: SoftmaxState) -> Measure:
        return Measure(*measure_softmax(problem, self.mu, state.w))

    def observe(self, problem: Problem, state: SoftmaxState) -> dict[str, np.ndarray]:
        """(R, p): the weights q of the domains."""
        return {"domain_weights": softmax(state.values, self.mu)}
