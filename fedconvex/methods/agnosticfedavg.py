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
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from fedconvex import secure
from fedconvex._check import bad, numeric
from fedconvex.draws import Draws
from fedconvex.fields import Count
from fedconvex.methods.parts import domain_weighting, local_work, optimizers, step_sizes
from fedconvex.problems import Measure, Problem
from fedconvex.simplex.ascent import EntropicStep
from fedconvex.simplex.uncertainty import Simplex
from fedconvex.solvers.minimax.agnostic import measure_minimax
from fedconvex.traits import Traits
from fedconvex.words import Words


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) w_t
    server: tuple  # SERVEROPT's memory, arrays like w
    domain_weights: np.ndarray  # (R, p) lambda_t
    window: np.ndarray  # (R, r, p) rows by domain of the last r rounds
    expected: np.ndarray  # (R, p) the window's mean; where that is 0, the last that was not
    t: int  # rounds done


def _as_tuple(who: str, x: Any) -> tuple[float, ...]:
    """Return the numbers of a vector as a tuple."""
    return tuple(numeric(who, x).ravel().tolist())


@dataclass(frozen=True, kw_only=True)
class AgnosticFedAvg(local_work.AveragedWork):
    """Federated averaging for the worst domain weights, lambda by exponentiated gradients.

    A round costs |W| + p floats down and |W| + 1 + 2p up per client. With one domain it is `fedconvex.FedAvg`, bit for
    bit. No fixed point of the last pair is promised beyond one local step: clients that differ drift, as in FedAvg.

    Parameters
    ----------
    step_size : float, array (R,) or `Decay`
        Local step size.
    domain_step_size : float, array (R,) or `Decay`
        gamma, of the domain weights.
    local_steps, epochs, batch_size, replacement, shrink, batch_draw, participation, client, server
        As for `fedconvex.FedAvg`; rows are drawn uniformly only.
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

    command = "agnosticfedavg"
    benchmarks: ClassVar[Any] = {"agnosticfedavg": {"local_steps": 5}}
    aims = ("worst domain",)

    domain_step_size: step_sizes.StepSize
    client: optimizers.ClientOptimizer = optimizers.ClientSGD()
    window: Count = 1
    uncertainty_set: domain_weighting.UncertaintySet = Simplex()
    ascent: domain_weighting.Ascent = EntropicStep()
    domain_weights: Annotated[Any, _as_tuple] | None = None
    sums: Annotated[Any, secure.as_sums] = secure.PlainSums()

    statistics = domain_weighting.statistics
    draws_by_weight = False

    def words(self, problem: Problem) -> Words:
        return self.steps_in_words(problem, rules=domain_weighting.steps_in_words(self))

    def init(self, problem: Problem, w: np.ndarray) -> State:
        who, R, p = "AgnosticFedAvg", len(w), domain_weighting.counts_of(problem).size
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

    def broadcast(self, state: State) -> domain_weighting.Message:
        alpha = state.domain_weights / state.expected  # 2
        return domain_weighting.Message(state.w, alpha / alpha.max(axis=1, keepdims=True))  # 3

    local = domain_weighting.local  # 4, 5, 6

    def send(self, problem: Problem, reply: domain_weighting.Reply, clients: np.ndarray, draws: Draws) -> Any:
        """Return what all clients of the round send, once they have agreed on masks: `SecureSums`."""
        return self.sums.send(reply, problem.federation.ids[clients], draws)  # 6

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Any) -> State:
        average, total, losses, counts = self.sums.add(reply, state.domain_weights.shape[1], state.w.shape[1:])  # 7
        if not (somebody := total > 0.0).all():
            average = np.where(somebody.reshape(-1, *[1] * (average.ndim - 1)), average, state.w)
        server, w = self.server.move(state.server, state.w, average)  # 7
        F = losses / np.where(counts > 0.0, counts, 1.0)  # 7
        gamma = step_sizes.round_step_sizes(self.domain_step_size, np.arange(len(w)), state.t)
        mix = self.ascent.ascend(self.uncertainty_set, state.domain_weights, gamma[:, None] * F)  # 8
        window = np.concatenate([state.window[:, 1:], counts[:, None]], axis=1)  # 8
        mean = np.add.reduce(window, axis=1) / self.window
        return State(w, server, mix, window, np.where(mean > 0.0, mean, state.expected), state.t + 1)

    def traits(self, problem: Problem) -> Traits:
        return self.averaging_traits(problem, plain=False, averaged=False)

    def measure(self, problem: Problem, state: State) -> Measure:
        return Measure(*measure_minimax(problem, self.uncertainty_set, state.w, state.domain_weights))

    def observe(self, problem: Problem, state: State) -> dict[str, np.ndarray]:
        """(R, p): the domain weights."""
        return {"domain_weights": state.domain_weights}
