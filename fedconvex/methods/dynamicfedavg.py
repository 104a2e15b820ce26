"""Dynamic FedAvg (Rizk, Vlaski, Sayed, SPAWC 2020, Algorithm 1): agents differ in local epochs and batch sizes.

1. server: start at w_0
2. each iteration i: server draws L of K agents uniformly without replacement and sends them w_{i-1}
3.   agent k: w_{k,0} = w_{i-1}
4.   for e = 1..E_k: draw B_k of N_k rows without replacement, w_{k,e} = w_{k,e-1} - (mu/E_k) grad P_k(w_{k,e-1}; batch)
5.   agent k answers w_{k,E_k}
6. server: w_i = (1/L) sum_{k in L_i} w_{k,E_k}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, whole
from fedconvex.draws import Draws
from fedconvex.kernels import averages, descent
from fedconvex.methods.parts import participation, step_sizes
from fedconvex.methods.parts.optimizers import ClientSGD
from fedconvex.problems import Measure, Problem
from fedconvex.traits import LocalSteps, Traits

__all__ = ["DynamicFedAvg"]


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) w_i


class Message(NamedTuple):
    """Server to agents."""

    w: np.ndarray  # (R, *model) w_{i-1}


class Reply(NamedTuple):
    """Agents to server."""

    w: np.ndarray  # (R, L, *model) w_{k,E_k}


@dataclass(frozen=True, kw_only=True)
class DynamicFedAvg:
    """FedAvg for drifting targets, with agent-specific local epochs E_k, batch sizes B_k and local steps mu/E_k.

    The division by E_k gives every agent the same total step, so that unequal E_k cause no bias of first order.

    Parameters
    ----------
    step_size : float or array (R,)
        mu; an array gives every trajectory its own.
    local_steps : int or array (K,)
        E_k.
    batch_size : int, array (K,) or None
        B_k, rows drawn without replacement in every local step; None for all rows.
    participation : int, float or scheme
        L, agents per iteration. The paper minimises (1/K) sum P_k and averages plainly: ``Problem(...,
        weights="uniform")``. Other weights enter the average as for `FedAvg`.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if a batch exceeds its agent, or lengths are not K.

    References
    ----------
    Rizk, Vlaski, Sayed, "Dynamic federated learning", IEEE SPAWC 2020, arXiv:2002.08782.

    Examples
    --------
    >>> from fedconvex import Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.methods import DynamicFedAvg
    >>> problem = Problem(linear_federation(n_clients=4, seed=0).federation, Squared())
    >>> method = DynamicFedAvg(step_size=0.2, local_steps=(1, 2, 3, 4), batch_size=5, participation=2)
    >>> run(method, problem, rounds=20).rounds
    20
    """

    step_size: Any
    local_steps: Any = 1
    batch_size: Any = None
    participation: Any = 1.0

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "step_size", step_sizes.as_step_size("DynamicFedAvg", self.step_size))
        if isinstance(self.step_size, step_sizes.Decay):
            raise bad("DynamicFedAvg.step_size", "be constant in time", f"{self.step_size!r}", "use FedAvg")
        set_(self, "local_steps", _per_agent("local_steps", self.local_steps))
        if self.batch_size is not None:
            set_(self, "batch_size", _per_agent("batch_size", self.batch_size))
        set_(self, "participation", participation.as_participation("DynamicFedAvg", self.participation))

    def init(self, problem: Problem, w: np.ndarray) -> State:
        participation.check_participation("DynamicFedAvg", self.participation, problem)
        step_sizes.check_trajectories("DynamicFedAvg", self.step_size, len(w))
        fed = problem.federation
        plan = self._plan(problem, np.arange(fed.K)[None])[0]
        if (plan[:, 1] > fed.sizes).any():
            k = int(np.argmax(plan[:, 1] > fed.sizes))
            must = f"be at most {fed.sizes[k]}, the rows of client {fed.labels[k]}"
            raise bad("DynamicFedAvg.batch_size", must, int(plan[k, 1]))
        return State(w)  # 1

    def participants(self, problem: Problem, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        return participation.participants(self.participation, problem, draws)  # 2

    def broadcast(self, state: State) -> Message:
        return Message(state.w)  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        plan = self._plan(problem, clients)  # 3
        eta = step_sizes.step_sizes(self.step_size, draws.trajectory, draws.round, plan) / plan[:, :, :1]
        w, _ = descent.local_updates(problem, ClientSGD(), message.w, clients, draws, eta, plan, False, False)  # 4
        return Reply(w), memory  # 5

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        return State(averages.over_clients(weights, reply.w))  # 6

    def traits(self, problem: Problem) -> Traits:
        plan, sizes = self._plan(problem, np.arange(problem.federation.K)), problem.federation.sizes
        local = LocalSteps(self.step_size, plan[:, 0], plan[:, 1], sizes, False, True, True, 1.0 / plan[:, 0])
        sampling, m = participation.sampling_of(self.participation, problem)
        some = () if sampling == "everyone" else ("clients",)
        return Traits(local, 1.0, sampling, m, some + (() if local.full else ("batches",)))

    def measure(self, problem: Problem, state: State) -> Measure:
        return problem.measure(state.w)

    def _plan(self, problem: Problem, clients: np.ndarray) -> np.ndarray:
        """Return E_k, B_k, B_k of the given clients, (R, m, 3)."""
        K = problem.federation.K
        plan = np.empty((*clients.shape, 3), dtype=np.int64)
        plan[..., 0] = _of_agents("local_steps", self.local_steps, K)[clients]
        sizes = problem.federation.sizes if self.batch_size is None else _of_agents("batch_size", self.batch_size, K)
        plan[..., 1] = plan[..., 2] = sizes[clients]
        return plan


def _per_agent(name: str, x: Any) -> Any:
    """Return a whole number, or a tuple of whole numbers, all at least 1."""
    if np.ndim(x) == 0:
        return whole(f"DynamicFedAvg.{name}", x, low=1)
    return tuple(whole(f"DynamicFedAvg.{name}", v, low=1) for v in np.asarray(x).ravel())


def _of_agents(name: str, x: Any, K: int) -> np.ndarray:
    if isinstance(x, int):
        return np.broadcast_to(x, K)
    if len(x) != K:
        raise bad(f"DynamicFedAvg.{name}", f"be one number, or one per client ({K})", f"{len(x)} numbers")
    return np.asarray(x)
