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
from typing import Any, ClassVar

import numpy as np

from fedconvex._check import bad
from fedconvex.draws import Draws
from fedconvex.fields import Flag
from fedconvex.methods.parts import (
    aggregation,
    automatic_steps,
    averaging,
    local_work,
    optimizers,
    participation,
    pooled_sums,
    step_sizes,
)
from fedconvex.methods.parts.averaging import Message, Reply
from fedconvex.problems import FederatedProblem, Problem
from fedconvex.sums import PlainSums
from fedconvex.traits import Traits


@dataclass(frozen=True, kw_only=True)
class FedAvg(local_work.AveragedWork):
    """Federated averaging: local steps at sampled clients, averaged by the server.

    Parameters
    ----------
    step_size : float, array (R,), `Decay` or "auto"
        Local step size eta; an array gives every trajectory its own; "auto" is what a theorem gives for the settings
        and the problem (`fedconvex.constants.default_steps`), and ``Result.step_size`` names it.
    local_steps : int or array (K,)
        Local steps per round, tau, or tau_k of each client; each draws a fresh mini-batch.
    epochs : int, optional
        Instead of local_steps: passes over the client's rows in a new random order each (with ``replacement``: as many
        steps, drawn independently).
    batch_size : int, optional
        Rows per step; default all rows of the client. In epochs a batch never exceeds the client.
    replacement : bool
        Draw the rows of a mini-batch with replacement.
    shrink : bool
        Let clients with fewer rows than batch_size take all their rows, instead of refusing them.
    batch_draw : {"uniform", "weighted"}
        Where rows carry weights: draw them uniformly and scale their gradients, or with probabilities of their weights
        within the client (with replacement only). Both are unbiased; by weight has the smaller variance where weights
        spread more than gradients.
    participation : int, float or scheme
        Clients per round: a whole number of them (1 is one client), a share (1.0 is everybody, the default), drawn
        uniformly without replacement, or a scheme: `ProportionalSampling`, `ScaledSampling`.
    client, server : optimisers
        CLIENTOPT and SERVEROPT; default plain SGD and averaging.
    aggregation : aggregate
        What the server makes of the answers: `WeightedMean`, the default, `CoordinateMedian`, `TrimmedMean` or
        `GeometricMedian`. No theorem gives a step for the last three.
    shadow : bool
        Keep the averaged local iterates of every round in ``state.shadow`` (R, tau, *model), and their mean objective
        in the trace as ``shadow_value``: (1/tau) sum_k F(wbar^{t,k}), k = 1, ..., tau. All clients must take equally
        many steps.
    sums : `fedconvex.secure.PlainSums` or `fedconvex.secure.SecureSums`
        How the server learns the sums over clients: from the answers, or from masked vectors that reveal nothing else
        (``pip install 'fedconvex[secure]'``).

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

    command = "fedavg"
    benchmarks: ClassVar[Any] = {
        "fedavg": {"local_steps": 5},
        "fedavg-batch": {"local_steps": 5, "batch_size": 5, "shrink": True},
        "fedavg-sampled": {"local_steps": 5, "participation": 0.5},
        "fedavg-momentum": {"local_steps": 5, "server": optimizers.ServerSGD(momentum=0.9)},
        "fedadam": {"local_steps": 5, "server": optimizers.ServerAdam()},
        "fedyogi": {"local_steps": 5, "server": optimizers.ServerYogi()},
        "fedadagrad": {"local_steps": 5, "server": optimizers.ServerAdagrad()},
    }
    no_penalty = "its steps follow gradients: FedMiD, FedDualAvg and FedProx take proximal ones"

    lost = participation.lost

    step_size: step_sizes.AutomaticStepSize
    participation: participation.AnyParticipation = 1.0
    client: optimizers.ClientOptimizer = optimizers.ClientSGD()
    shadow: Flag = False
    aggregation: aggregation.Aggregate = aggregation.WeightedMean()
    sums: pooled_sums.Sums = PlainSums()

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if a setting does not fit the problem and its R trajectories."""
        super().check_fit(problem, R)
        pooled_sums.check_fit(self)
        aggregation.check_fit(self)
        if self.shadow and pooled_sums.hides(self):
            raise bad("FedAvg.shadow", "be False with SecureSums", "True", "local iterates of clients are not sums")

    init = averaging.init  # 1
    broadcast = averaging.broadcast  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        w, path = self.local_models(problem, message.w, clients, draws, self.shadow)  # 3, 4
        return Reply(w, path), memory  # 5

    send = pooled_sums.send  # 5

    aggregate = averaging.aggregate  # 6

    def ahead(self, problem: Problem, server: Any, state: averaging.State, draws: Draws, n: int, late: bool) -> Any:
        """Return the models (n, R, *model) after each of n rounds, or fewer, or None for rounds one by one."""
        if self.shadow or not self._averages:
            return None
        return self.models_ahead(problem, server, state.w, draws, n, late)

    ahead_of: ClassVar[Any] = (broadcast, local, send, aggregate, *local_work.PARTS)

    observe = averaging.observe_shadow

    def traits(self, problem: Problem) -> Traits:
        return self.averaging_traits(problem, plain=self.client.plain(), averaged=self._averages)

    @property
    def _averages(self) -> bool:
        return aggregation.is_mean(self) and not pooled_sums.hides(self)

    default_step = automatic_steps.of_averaging
    constant_step = automatic_steps.of_clients
