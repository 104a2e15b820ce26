"""FedSGD (McMahan et al., AISTATS 2017, Section 2): one gradient per client and round, averaged with weights n_k/n.

1. server: start at w_0
2. each round t = 0, 1, ...: server samples clients S_t and sends them w_t
3.   client k in S_t answers g_k = grad f_k(w_t), over all its rows or over a mini-batch of them
4. server: w_{t+1} = w_t - eta_t sum_{k in S_t} q_k g_k, q_k = p_k / sum_{j in S_t} p_j
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.draws import Draws
from fedconvex.fields import CheckedFields, Count, Flag
from fedconvex.kernels import jobs, row_losses
from fedconvex.kernels.domain_sums import DomainSums
from fedconvex.methods.parts import (
    aggregation,
    automatic_steps,
    averaging,
    local_work,
    participation,
    pooled_sums,
    step_sizes,
)
from fedconvex.methods.parts.averaging import Message
from fedconvex.problems import FederatedProblem, Problem
from fedconvex.sums import PlainSums
from fedconvex.traits import LocalSteps, Traits
from fedconvex.words import Words, steps_in_words


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) w_t
    t: int  # rounds done


class Reply(NamedTuple):
    """Clients to server."""

    g: np.ndarray  # (R, m, *model) grad f_k(w_t; b)


@dataclass(frozen=True, kw_only=True)
class FedSGD(CheckedFields):
    """Federated gradient descent: sampled clients send gradients, the server takes the step.

    Parameters
    ----------
    step_size : float, array (R,), `Decay` or "auto"
        eta; a `Decay` counts rounds; "auto" as for `FedAvg`.
    participation : int, float or scheme
        As for `FedAvg`.
    batch_size : int, optional
        Rows of a client's gradient, drawn anew in every round; default all its rows.
    replacement : bool
        Draw the rows of a mini-batch with replacement.
    shrink : bool
        Let clients with fewer rows than batch_size take all their rows, instead of refusing them.
    aggregation : aggregate
        As for `FedAvg`, of gradients.
    sums : `fedconvex.secure.PlainSums` or `fedconvex.secure.SecureSums`
        How the server learns the sums over clients: from the answers, or from masked vectors that reveal nothing else
        (``pip install 'fedconvex[secure]'``).

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if a mini-batch without replacement exceeds a client, or no theorem
        gives the step that "auto" asks for.

    Notes
    -----
    Batches are those of ``FedAvg(local_steps=1)`` with the same settings, whose models these are up to rounding.

    Examples
    --------
    >>> from fedconvex import FedSGD, Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> problem = Problem(linear_federation(seed=0).federation, Squared())
    >>> run(FedSGD(step_size=0.1), problem, rounds=1000, tol=1e-6).status.name
    'CONVERGED'
    """

    command = "fedsgd"
    no_penalty = "its steps follow gradients: ProximalFedSGD is FedSGD with a proximal one"

    lost = participation.lost

    step_size: step_sizes.AutomaticStepSize
    participation: participation.AnyParticipation = 1.0
    batch_size: Count | None = None
    replacement: Flag = False
    shrink: Flag = False
    aggregation: aggregation.Aggregate = aggregation.WeightedMean()
    sums: pooled_sums.Sums = PlainSums()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shrink and self.replacement:
            raise bad("FedSGD.shrink", "be False where batches are drawn with replacement", "True", "they always fit")
        if self.batch_size is None and self.replacement:
            cure = "full gradients are not drawn"
            raise bad("FedSGD.replacement", "come with a batch_size", "batch_size=None", cure)

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if a setting does not fit the problem and its R trajectories."""
        super().check_fit(problem, R)
        pooled_sums.check_fit(self)
        aggregation.check_fit(self)
        if not self.replacement:
            cure = "use shrink=True (smaller clients take all rows) or replacement=True"
            local_work.check_batches("FedSGD", self._rows(problem), problem, cure)

    def words(self, problem: FederatedProblem) -> Words:
        who = participation.who_takes_part(self.participation, problem.federation.K)
        return steps_in_words(self, 1, self.batch_size, who)

    def init(self, problem: Problem, w: np.ndarray) -> State:
        return State(w, 0)  # 1

    broadcast = averaging.broadcast  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        if self.batch_size is None:
            return Reply(row_losses.gradients_of(problem, message.w, clients)), memory  # 3
        rows = self._rows(problem)[clients]
        return Reply(_batch_gradients(problem, message.w, clients, rows, self.replacement, draws)), memory  # 3

    send = pooled_sums.send  # 3

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Any) -> State:
        if pooled_sums.hides(self):
            g = pooled_sums.mean(self, reply, state.w.shape[1:])
        else:
            g = self.aggregation.of(weights, reply.g)
        return State(step_sizes.descend(self.step_size, state.t, state.w, g), state.t + 1)  # 4

    def traits(self, problem: Problem) -> Traits:
        sizes, ones = problem.federation.sizes, np.ones(problem.federation.K, dtype=np.int64)
        rows, step = self._rows(problem), 1.0 if aggregation.is_mean(self) and not pooled_sums.hides(self) else None
        local = LocalSteps(self.step_size, ones, rows, sizes, self.replacement, True, True, np.ones(sizes.size))
        return participation.traits_of_sampling(
            self.participation, problem, local=local, server_step=step, by_round=step_sizes.decays(self)
        )

    default_step = automatic_steps.of_averaging
    constant_step = automatic_steps.of_clients

    def _rows(self, problem: FederatedProblem) -> np.ndarray:
        """Return how many rows a gradient of each client takes, (K,)."""
        sizes = problem.federation.sizes
        if self.batch_size is None:
            return sizes
        return np.minimum(self.batch_size, sizes) if self.shrink else np.full(sizes.size, self.batch_size)


def _batch_gradients(
    problem: Problem, w: np.ndarray, clients: np.ndarray, rows: np.ndarray, replacement: bool, draws: Draws
) -> np.ndarray:
    """Return the gradients (R, m, *model) of clients (R, m) at w (R, *model) over so many drawn rows each."""
    R, sizes = len(w), problem.federation.sizes[clients]
    W, plan = w.reshape(R, 1, -1), local_work.plan_of(clients, 1, rows, rows)
    code = np.zeros(problem.federation.n, dtype=np.int64)
    code.flags.writeable = False  # kernels see one array type
    one_domain = DomainSums(code, np.ones((R, 1)), np.zeros((*clients.shape, 1)))
    eta = np.ones((1, 1, 1))
    sums = jobs.run({jobs.OWN: one_domain}, problem, 0.0, W, clients, draws, eta, plan, replacement)
    return problem.unflatten(sums / sizes[:, :, None] + problem.ridge * W)
