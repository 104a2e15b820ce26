"""AgnosticFedAvg (Ro, Chen, Mathews, Mohri, Suresh 2021, Algorithm 1): local steps for the worst domain weights.

p domains i; N_i^k rows of domain i at client k, L_i^k the sum of their losses. Without domains every client is one.

1. server: start at w_0 and lambda_0; the window holds r vectors of ones
2. each round t = 0, 1, ...: alpha_i = lambda_i/(mean of N_i over the window), up to a factor common to all i
3. server samples clients S_t and sends them w_t and alpha
4.   client k: N_i^k, L_i^k at w_t, beta^k = sum_i alpha_i N_i^k
5.   client k, from w_k = w_t: local SGD steps on sum_i alpha_i sum_{j of domain i} l_j/beta^k + (l2/2)‖.‖^2
6.   client k answers w_k, beta^k, L^k and N^k
7. server, from sums over S_t: w_{t+1} = sum beta^k w_k/sum beta^k, N_i = sum N_i^k, L_i = sum L_i^k/N_i (0 if N_i = 0)
8. server: lambda_i <- lambda_i exp(gamma L_i)/(sum of these); N enters the window, the oldest vector leaves it

A mini-batch b of n rows stands for them with the factor n/|b|, so that its gradient has the mean of the client's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconvex import secure
from fedconvex._check import bad, flag, numeric, whole, wrong_type
from fedconvex.draws import Draws
from fedconvex.kernels.domains import domain_sums, held_by
from fedconvex.methods.parts import domain_weighting, local_work, optimizers, participation, step_sizes
from fedconvex.problems import Measure, Problem
from fedconvex.simplex.uncertainty import EntropicStep, Simplex
from fedconvex.solvers.minimax import measure_minimax
from fedconvex.traits import Traits

__all__ = ["AgnosticFedAvg"]


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) w_t
    server: tuple  # SERVEROPT's memory, arrays like w
    domain_weights: np.ndarray  # (R, p) lambda_t
    window: np.ndarray  # (R, r, p) rows by domain of the last r rounds
    expected: np.ndarray  # (R, p) the window's mean; where that is 0, the last that was not
    t: int  # rounds done


class Message(NamedTuple):
    """Server to clients."""

    w: np.ndarray  # (R, *model) w_t
    alpha: np.ndarray  # (R, p) lambda_i/(mean of N_i), the largest 1


class Reply(NamedTuple):
    """Clients to server."""

    w: np.ndarray  # (R, m, *model) w_k after the local steps
    beta: np.ndarray  # (R, m) beta^k
    losses: np.ndarray  # (R, m, p) L_i^k
    counts: np.ndarray  # (R, m, p) N_i^k


@dataclass(frozen=True, kw_only=True)
class AgnosticFedAvg:
    """Federated averaging for the worst domain weights, lambda by exponentiated gradients.

    A round costs |W| + p floats down and |W| + 1 + 2p up per client. With one domain it is `fedconvex.FedAvg`, bit for
    bit. No fixed point of the last pair is promised beyond one local step: clients that differ drift, as in FedAvg.

    Parameters
    ----------
    step_size : float, array (R,) or `Decay`
        Local step size.
    domain_step_size : float, array (R,) or `Decay`
        gamma, of the domain weights.
    local_steps, epochs, batch_size, replacement, participation, client, server
        As for `fedconvex.FedAvg`.
    window : int
        r, rounds over which the rows of a domain are averaged.
    uncertainty_set : set of `fedconvex.simplex.uncertainty`
        Lambda.
    ascent : step of `fedconvex.simplex.uncertainty`
        `EntropicStep()`, as published, or `ProjectedStep()`.
    domain_weights : array (p,), optional
        lambda_0; default the start of Lambda, uniform on the simplex.
    sums : `fedconvex.secure.PlainSums` or `fedconvex.secure.SecureSums`
        How the server learns the sums of step 7: from the answers, or from masked vectors that reveal nothing else.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if lambda_0 is outside Lambda, a domain has no rows, or a
        mini-batch without replacement exceeds a client.

    References
    ----------
    Ro, Chen, Mathews, Mohri, Suresh, "Communication-efficient agnostic federated averaging", Interspeech 2021,
    arXiv:2104.02748, Algorithm 1. It writes mini-batch sums over beta^k without the factor n/|b|.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared, run
    >>> from fedconvex.methods import AgnosticFedAvg
    >>> fed = Federation.from_arrays([[1.0], [1.0]], [0.0, 2.0], clients=[0, 0], domains=["a", "b"])
    >>> method = AgnosticFedAvg(step_size=0.1, domain_step_size=0.1)
    >>> run(method, Problem(fed, Squared()), rounds=300, tol=1e-6).w.round(3)
    array([1.])
    """

    step_size: Any
    domain_step_size: Any
    local_steps: int = 1
    epochs: int | None = None
    batch_size: int | None = None
    replacement: bool = False
    participation: Any = 1.0
    client: Any = optimizers.ClientSGD()
    server: Any = optimizers.Averaging()
    window: int = 1
    uncertainty_set: Any = Simplex()
    ascent: Any = EntropicStep()
    domain_weights: Any = None
    sums: Any = secure.PlainSums()

    statistics = staticmethod(domain_weighting.statistics)  # what clients are asked for before round 1

    def __post_init__(self) -> None:
        set_, who = object.__setattr__, "AgnosticFedAvg"
        set_(self, "step_size", step_sizes.as_step_size(who, self.step_size))
        set_(self, "domain_step_size", domain_weighting.as_domain_step_size(who, self.domain_step_size))
        local_work.check_work(who, self)
        set_(self, "replacement", flag(f"{who}.replacement", self.replacement))
        set_(self, "participation", participation.as_participation(who, self.participation))
        optimizers.check_optimizers(who, self.client, self.server)
        whole(f"{who}.window", self.window, low=1)
        domain_weighting.check_uncertainty_set(who, self.uncertainty_set, self.ascent)
        if self.domain_weights is not None:
            set_(self, "domain_weights", tuple(numeric(f"{who}.domain_weights", self.domain_weights).ravel().tolist()))
        if isinstance(self.sums, type) or not hasattr(self.sums, "send"):
            raise wrong_type(f"{who}.sums", "be PlainSums() or SecureSums()", f"{self.sums!r}")

    def init(self, problem: Problem, w: np.ndarray) -> State:
        who, R, p = "AgnosticFedAvg", len(w), domain_weighting.counts_of(problem).size
        domain_weighting.check_fit(who, self, problem, R)
        self.uncertainty_set.check(who, p)
        mix = self.uncertainty_set.start(p) if self.domain_weights is None else np.array(self.domain_weights)
        if mix.shape != (p,):
            raise bad(f"{who}.domain_weights", f"have {p} entries, one per domain", f"{mix.size}")
        if not self.uncertainty_set.contains(mix):
            raise bad(
                f"{who}.domain_weights",
                f"lie in {self.uncertainty_set!r}",
                f"{mix.tolist()}",
                "project it: uncertainty_set.project(domain_weights)",
            )
        ones = np.ones((R, self.window, p))
        return State(w, self.server.init(w), np.tile(mix, (R, 1)), ones, ones[:, 0], 0)  # 1

    def participants(self, problem: Problem, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        return participation.participants(self.participation, problem, draws)  # 3

    def broadcast(self, state: State) -> Message:
        alpha = state.domain_weights / state.expected  # 2
        return Message(state.w, alpha / alpha.max(axis=1, keepdims=True))  # 3

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        losses, _ = domain_sums(problem, message.w, np.zeros_like(message.alpha), clients)  # 4
        u, beta = domain_weighting.weights_of(problem, clients, message.alpha)  # 4
        w = domain_weighting.local_steps(self, problem, message.w, clients, draws, u, beta)  # 5
        counts = held_by(problem.federation, clients, message.alpha.shape[1]).astype(np.float64)
        return Reply(w, beta, losses, counts), memory  # 6

    def send(self, problem: Problem, reply: Reply, clients: np.ndarray, draws: Draws) -> Any:
        """Return what all clients of the round send, once they have agreed on masks: `SecureSums`."""
        return self.sums.send(reply, problem.federation.ids[clients], draws)  # 6

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Any) -> State:
        average, total, losses, counts = self.sums.add(reply, state.domain_weights.shape[1], state.w.shape[1:])  # 7
        somebody = total > 0.0
        average = np.where(somebody.reshape(-1, *[1] * (average.ndim - 1)), average, state.w)
        server, w = self.server.move(state.server, state.w, average)  # 7
        F = losses / np.maximum(counts, 1.0)  # 7
        gamma = step_sizes.round_step_sizes(self.domain_step_size, np.arange(len(w)), state.t)
        mix = self.ascent.ascend(self.uncertainty_set, state.domain_weights, gamma[:, None] * F)  # 8
        window = np.concatenate([state.window[:, 1:], counts[:, None]], axis=1)  # 8
        mean = window.mean(axis=1)
        return State(w, server, mix, window, np.where(mean > 0.0, mean, state.expected), state.t + 1)

    def traits(self, problem: Problem) -> Traits:
        return local_work.averaging_traits(self, problem, plain=False, averaged=False)

    def measure(self, problem: Problem, state: State) -> Measure:
        return Measure(*measure_minimax(problem, self.uncertainty_set, state.w, state.domain_weights))

    def observe(self, problem: Problem, state: State) -> dict[str, np.ndarray]:
        """(R, p): the domain weights."""
        return {"domain_weights": state.domain_weights}
