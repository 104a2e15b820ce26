"""SCAFFOLD (Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, ICML 2020, Algorithm 1), for any client weights p_i.

1. server: start at x_0, c = 0; clients: c_i = 0
2. each round: server samples S of N clients uniformly without replacement and sends them (x, c)
3.   client i: y_i <- x
4.   K times: draw a mini-batch, y_i <- y_i - eta_l (g_i(y_i) - c_i + c)
5.   c_i^+ <- option I: grad f_i(x), or option II: c_i - c + (x - y_i)/(K eta_l)
6.   client i answers (y_i - x, c_i^+ - c_i) and keeps c_i <- c_i^+
7. server: x <- x + eta_g (N/S) sum_{i in S} p_i (y_i - x)
8. server: c <- c + sum_{i in S} p_i (c_i^+ - c_i)

Weights. With p_i = 1/N lines 7 and 8 are the paper's: x + (eta_g/S) sum (y_i - x), c + (1/N) sum (c_i^+ - c_i). For
other weights F = sum_i p_i f_i, and three things must stay true. (a) c = sum_i p_i c_i in every round, whoever was
sampled: each change of a c_i enters c with p_i, exactly once, hence line 8 has no factor N/S. (b) The step of the
server is unbiased: P(i in S) = S/N, so E[(N/S) sum_S p_i (y_i - x)] = sum_i p_i (y_i - x). (c) With full gradients the
minimiser x* with c_i = grad f_i(x*), c = grad F(x*) = 0 is a fixed point for *every* sample: g_i - c_i + c = 0 along
the local steps, so y_i = x* and c_i^+ = c_i. There is no other (option II, f_i convex and L-smooth, eta_l < 2/L): where
a round changes nothing, c_i^+ = c_i says x - y_i = K eta_l c for all i, so that c = 0 and y_i = x by line 7; gradient
steps decrease f_i - <c_i, .> strictly or stand still, so grad f_i(x) = c_i, and grad F(x) = sum_i p_i c_i = c = 0.
Where weights differ much, the largest N p_i eta_g/S limits the steps.

Steps of unequal size or number: option II divides by the sum of client i's own steps, K eta_l where they are equal;
c_i^+ is then the mean of its gradients, weighted by the steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedconvex.constants import default_steps
from fedconvex.constants.default_steps import DefaultStep
from fedconvex.draws import Draws
from fedconvex.fields import OneOrTwo, Positive
from fedconvex.kernels import client_rows, descent, row_losses
from fedconvex.kernels.cache import kernel
from fedconvex.methods.parts import automatic_steps, local_work, optimizers, participation, pooled_sums, step_sizes
from fedconvex.problems import FederatedProblem, Problem
from fedconvex.sums import PlainSums
from fedconvex.traits import LEAVE_OUT, Controls, Traits


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) x
    c: np.ndarray  # (R, *model) c
    p: np.ndarray  # (1, N) client weights, the same for all trajectories


class Message(NamedTuple):
    """Server to clients."""

    w: np.ndarray  # (R, *model) x
    c: np.ndarray  # (R, *model) c


class Reply(NamedTuple):
    """Clients to server."""

    dy: np.ndarray  # (R, S, *model) y_i - x
    dc: np.ndarray  # (R, S, *model) c_i^+ - c_i


@dataclass(frozen=True, kw_only=True)
class SCAFFOLD(local_work.LocalWork):
    """Stochastic controlled averaging: local steps corrected by control variates, so that unequal clients do not drift.

    With full gradients it converges to the minimiser of F, with any number of local steps. Two models travel each way.

    Parameters
    ----------
    step_size : float, array (R,) or `Decay`
        eta_l; an array gives every trajectory its own.
    local_steps, epochs, batch_size, replacement, shrink, batch_draw
        As for `FedAvg`; K is the number of local steps.
    participation : int or float
        S: a number of clients or a share of them, drawn uniformly without replacement.
    server_step : float
        eta_g.
    option : 1 or 2
        How clients renew their control variates: 1, the full gradient at x, at the cost of one more pass over their
        rows; 2, the mean of the gradients of the local steps, at no cost.
    sums : `fedconvex.secure.PlainSums` or `fedconvex.secure.SecureSums`
        How the server learns the sums over clients: from the answers, or from masked vectors that reveal nothing else
        (``pip install 'fedconvex[secure]'``).

    Notes
    -----
    Clients that were never sampled have c_i = 0, which takes no memory. With a `MovingTarget` the model moves along
    with the coordinates; control variates are gradients and stay.

    Raises
    ------
    ValueError, TypeError
        On settings out of range, or sampling with replacement; when a run starts, if a mini-batch without replacement
        exceeds a client.

    References
    ----------
    Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: stochastic controlled averaging for federated learning",
    ICML 2020, Algorithm 1. Unequal weights: derived above.

    Examples
    --------
    >>> from fedconvex import Logistic, Problem, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import SCAFFOLD
    >>> problem = Problem(logistic_federation(seed=1).federation, Logistic(), l2=0.1)
    >>> run(SCAFFOLD(step_size=0.5, local_steps=5), problem, rounds=300, tol=1e-12).status.name
    'CONVERGED'
    """

    command = "scaffold"
    benchmarks: ClassVar[Any] = {"scaffold": {"local_steps": 5}}
    constant = ("p",)  # of the state: no round changes it
    lost = LEAVE_OUT

    no_penalty = "control variates correct gradients only: ProgressiveHedging has no drift and knows penalties"

    step_size: step_sizes.AutomaticStepSize
    participation: participation.DistinctParticipation = 1.0
    server_step: Positive = 1.0
    option: OneOrTwo = 2
    sums: pooled_sums.Sums = PlainSums()

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if a setting does not fit the problem and its R trajectories."""
        super().check_fit(problem, R)
        pooled_sums.check_fit(self)

    def init(self, problem: Problem, w: np.ndarray) -> State:
        return State(w, np.zeros_like(w), problem.weights[None].copy())  # 1

    def memory(self, problem: Problem, R: int) -> client_rows.ClientRows:
        """Return the control variates c_i: all zero."""
        return client_rows.ClientRows.empty(problem.size)  # 1

    def broadcast(self, state: State) -> Message:
        return Message(state.w, state.c)  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        shape = (*clients.shape, problem.size)
        x, c = message.w.reshape(len(clients), -1), message.c.reshape(len(clients), -1)
        plan, eta = self.asked(problem, clients, draws)
        memory, slots = memory.locate(draws.trajectory, clients)
        tilt, dc = np.empty(shape), np.empty(shape)
        corrections(memory.rows, slots, c, tilt)
        y, _ = descent.local_updates(
            problem, optimizers.ClientSGD(), message.w, clients, draws, eta, plan, self.again(problem), False, tilt
        )  # 3, 4
        g = row_losses.gradients_of(problem, message.w, clients).reshape(shape) if self.option == 1 else tilt[..., :0]
        renew(memory.rows, slots, x, c, plan, eta, g, y.reshape(shape), dc)  # 5, 6
        return Reply(y, problem.unflatten(dc)), memory  # 6

    send = pooled_sums.send  # 6

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Any) -> State:
        w, c, (R, S), N = state.w.copy(), state.c.copy(), clients.shape, state.p.shape[1]
        if pooled_sums.hides(self):
            dy, dc = pooled_sums.totals(self, reply, w.shape[1:])[1]
            return State(w + self.server_step * (N / S) * dy, c + dc, state.p)  # 7, 8
        add(w.reshape(R, -1), self.server_step * (N / S), state.p[0], clients, reply.dy.reshape(R, S, -1))  # 7
        add(c.reshape(R, -1), 1.0, state.p[0], clients, reply.dc.reshape(R, S, -1))  # 8
        return State(w, c, state.p)

    def traits(self, problem: Problem) -> Traits:
        local = self.steps_of(problem, plain=False)
        t = participation.traits_of_sampling(self.participation, problem, local=local, by_round=step_sizes.decays(self))
        return t if pooled_sums.hides(self) else t._replace(controls=Controls(self.option, float(self.server_step)))

    constant_step = automatic_steps.of_clients

    def default_step(self, problem: Problem) -> DefaultStep:
        t = self.traits(problem)
        tau = t.local.equal_steps if t.local is not None and t.local.fresh else None
        if tau is None or self.option != 2 or self.server_step < 1.0 or np.ptp(problem.weights) > 1e-12:
            why = "unequal weights or steps, epochs, option 1 or server_step < 1"
            raise automatic_steps.no_theorem(self, why, "give a step size; 1/L of the roughest client is usual")
        automatic_steps.smoothness(self, problem)
        c = problem.constants()
        mu = float(np.min(c.mu_k)) if c.mu_k is not None else 0.0
        assert c.L is not None
        return default_steps.control_step(c.L, mu, problem.federation.K, t.participants, tau, self.server_step)


@kernel
def corrections(rows, slots, c, tilt):  # type: ignore[no-untyped-def]
    """tilt_i = c - c_i, from the clients' rows c_i."""
    for r in range(slots.shape[0]):
        for j in range(slots.shape[1]):
            for q in range(c.shape[1]):
                tilt[r, j, q] = c[r, q] - rows[slots[r, j], q]


@kernel
def renew(rows, slots, x, c, plan, eta, g, y, dc):  # type: ignore[no-untyped-def]
    """c_i^+ = g_i, or without g: c_i - c + (x - y_i)/(sum of eta); dc_i = c_i^+ - c_i; c_i <- c_i^+; y_i <- y_i - x."""
    for r in range(slots.shape[0]):
        for j in range(slots.shape[1]):
            n = plan[r, j, 0] * -(-plan[r, j, 1] // plan[r, j, 2])
            i, share = slots[r, j], 1.0 / (n * eta[r, 0, 0] if eta.shape[2] == 1 else eta[r, 0].sum())
            for q in range(x.shape[1]):
                y[r, j, q] -= x[r, q]
                dc[r, j, q] = -c[r, q] - share * y[r, j, q] if g.shape[2] == 0 else g[r, j, q] - rows[i, q]
                rows[i, q] = rows[i, q] + dc[r, j, q] if g.shape[2] == 0 else g[r, j, q]


@kernel
def add(out, factor, p, clients, changes):  # type: ignore[no-untyped-def]
    """out[r] <- out[r] + factor sum_i p_i changes_i over the round's clients i."""
    for r in range(clients.shape[0]):
        for j in range(clients.shape[1]):
            share = factor * p[clients[r, j]]
            for q in range(out.shape[1]):
                out[r, q] += share * changes[r, j, q]
