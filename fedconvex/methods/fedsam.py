"""FedSAM (Qu et al., ICML 2022, Algorithm 1): local steps of sharpness-aware minimisation, averaged by the server.

1. server: start at w_0
2. each round t = 0, 1, ...: server samples clients S_t and sends them w_t
3.   client k in S_t: w_k <- w_t
4.   repeat: draw a mini-batch b of its rows, g = grad f_k(w_k; b)
5.     u = w_k + rho g/‖g‖ (u = w_k where g = 0)
6.     w_k <- w_k - eta grad f_k(u; b), with the same b
7.   client k answers w_k
8. server: w_{t+1} <- SERVEROPT(w_t, sum_{k in S_t} q_k w_k - w_t), q_k = p_k / sum_{j in S_t} p_j
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedconvex.draws import Draws
from fedconvex.fields import Flag
from fedconvex.kernels import batches, jobs
from fedconvex.kernels.cache import part
from fedconvex.kernels.ridges import at
from fedconvex.methods.parts import aggregation, averaging, local_work, step_sizes
from fedconvex.methods.parts.averaging import Message, Reply
from fedconvex.problems import FederatedProblem, Problem
from fedconvex.traits import Traits

_UP = 2.0**600


@dataclass(frozen=True, kw_only=True)
class FedSAM(local_work.AveragedWork):
    """FedAvg whose local steps use the gradient at the worst point, to first order, within distance rho.

    A SAM gradient is at most L rho away from the gradient. With constant rho > 0 the method does not converge: on
    f(w) = lam w^2/2 it ends in the cycle |w| = eta lam rho/(2 - eta lam). A decaying rho (and, for several local steps
    or mini-batches, a decaying eta) lets it converge to the minimiser. rho = 0 is `FedAvg`.

    Parameters
    ----------
    step_size : float, array (R,) or `Decay`
        Local step size eta; an array gives every trajectory its own.
    rho : float, array (R,) or `Decay`
        Length of the perturbation, at least 0, in units of w.
    local_steps, epochs, batch_size, replacement, shrink, batch_draw
        As for `FedAvg`; each step takes two gradients of its mini-batch.
    participation : int, float or scheme
        Clients per round, as for `FedAvg`.
    server : optimiser
        SERVEROPT; default averaging. ``ServerSGD(eta_g)`` is the paper's global step size.
    aggregation : aggregate
        As for `FedAvg`.
    shadow : bool
        Keep the averaged local iterates of every round, as for `FedAvg`.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if a mini-batch without replacement exceeds a client.

    References
    ----------
    Qu, Li, Duan, Liu, Tang, Lu, "Generalized federated learning via sharpness aware minimization", ICML 2022,
    Algorithm 1. Caldarola, Caputo, Ciccone, "Improving generalization in federated learning by seeking flat minima",
    ECCV 2022. The cycle: Bartlett, Long, Bousquet, "The dynamics of sharpness-aware minimization", JMLR 24 (2023).

    Examples
    --------
    >>> from fedconvex import Logistic, Problem, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import FedSAM
    >>> problem = Problem(logistic_federation(seed=1).federation, Logistic(), l2=0.1)
    >>> result = run(FedSAM(step_size=0.5, rho=0.05, epochs=1, batch_size=8), problem, rounds=50)
    >>> result.status.name, bool(result.gap < 0.1)
    ('ROUND_LIMIT', True)
    """

    command = "fedsam"
    benchmarks: ClassVar[Any] = {"fedsam": {"local_steps": 5}}
    schedules = frozenset({"step_size", "rho"})

    rho: step_sizes.NonnegativeSchedule = 0.05
    aggregation: aggregation.Aggregate = aggregation.WeightedMean()
    shadow: Flag = False

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if a setting does not fit the problem and its R trajectories."""
        super().check_fit(problem, R)
        aggregation.check_fit(self)

    init = averaging.init  # 1
    broadcast = averaging.broadcast  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        plan, eta = self.asked(problem, clients, draws)
        rho = step_sizes.step_sizes(self.rho, draws.trajectory, draws.round, plan)
        tau = int(step_sizes.step_counts(plan[0, 0])) if self.shadow else 0
        path = np.empty((*clients.shape, tau, problem.size))
        w = jobs.run(  # 3
            {jobs.OWN: SharpnessAware(rho)}, problem, problem.ridge, message.w.reshape(len(clients), 1, -1),
            clients, draws, eta, plan, self.again(problem), path=path,
        )  # fmt: skip
        return Reply(problem.unflatten(w), problem.unflatten(path)), memory  # 7

    aggregate = averaging.aggregate  # 8
    observe = averaging.observe_shadow

    def traits(self, problem: Problem) -> Traits:
        return self.averaging_traits(problem, plain=self.rho == 0.0, averaged=aggregation.is_mean(self))


# ---------------------------------------------------------------- local steps


@part
def batch_gradient(loss, X, y, rows, ridge, w, g, c, t):  # type: ignore[no-untyped-def]
    """g = ridge w + mean of the gradients of rows at w."""
    batches.batch_slopes(loss, X, y, rows, 1.0 / rows.size, w, c, t)
    for q in range(w.size):
        g[q] = at(ridge, q) * w[q]
    batches.batch_add(loss, X, rows, c, g)


@part
def squares(g):  # type: ignore[no-untyped-def]
    """‖g‖^2."""
    total = 0.0
    for q in range(g.size):
        total += g[q] * g[q]
    return total


@part
def ascend(w, g, rho, u):  # type: ignore[no-untyped-def]
    """u = w + rho g/‖g‖, or w where g = 0; g is scaled by 2^600 or 2^-600 where its squares under- or overflow."""
    total, scale = squares(g), 1.0
    if not total > 1e-280:
        scale = _UP
    elif not total < 1e280:
        scale = 1.0 / _UP
    for q in range(w.size):
        u[q] = scale * g[q]
    if scale != 1.0:
        total = squares(u)
    length = math.sqrt(total)
    for q in range(w.size):
        u[q] = w[q] + rho * (u[q] / length) if total > 0.0 else w[q]


class SharpnessAware(NamedTuple):
    """Steps along the gradient at the worst point, to first order, within distance rho."""

    rho: np.ndarray  # (R, 1, steps or 1)

    def step(self, loss, data, job, part, s, a, w, room):  # type: ignore[no-untyped-def]
        """w <- w - a grad f(w + rho grad f(w; b)/‖grad f(w; b)‖; b)."""
        batch_gradient(loss, data.X, data.y, part, job.ridge, w, room.g, room.c, room.t)  # 4
        ascend(w, room.g, self.rho[job.r, 0, min(s, self.rho.shape[2] - 1)], room.m)  # 5
        batch_gradient(loss, data.X, data.y, part, job.ridge, room.m, room.g, room.c, room.t)
        for q in range(w.size):
            w[q] -= a * room.g[q]  # 6
