"""FSVRG (Konecny, McMahan, Ramage, Richtarik 2016, Algorithm 4): SVRG whose inner steps are taken by the clients.

1. server: start at w
2. stage, first round: server sends w; client k answers grad f_k(w) and, in the first stage, phi_k^j, the share of its
   rows with x_j != 0
3. server: g = sum_k p_k grad f_k(w); phi^j = sum_k p_k phi_k^j, the share of all rows with x_j != 0;
   A = Diag(K/omega^j), omega^j = the number of clients with phi_k^j > 0
4. stage, second round: server sends g and, in the first stage, phi
5.   client k: w_k <- w, h_k = h/n_k, S_k = Diag(phi^j/phi_k^j)
6.   for i in a random permutation of its rows:
       w_k <- w_k - h_k (S_k [grad l_i(w_k) - grad l_i(w)] + l2 (w_k - w) + g)
7.   client k answers w_k
8. server: w <- w + A sum_k p_k (w_k - w)

With local_steps=m and scaling=False (S_k = A = I), Algorithm 3 (naive FSVRG)
9.   client k: m rows drawn with replacement, steps h_k = h
10. server: w <- w + (1/K) sum_k (w_k - w)

A stage is two rounds because the full gradient must be known before the first inner step: each of the two makes one
message and one reply, and both are counted. Clients remember w and phi, which are sent once. Everybody takes part.

The ridge. The paper has the ridge inside the row losses, and S_k before all of their gradients, where phi_k^j = 0 would
divide by zero. S_k corrects for features that are rarer, or more common, at a client than elsewhere; the ridge's
gradient has the same "frequency", one, everywhere and is left unscaled. A feature that nobody has is not scaled either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedconvex.draws import Draws
from fedconvex.federation import Federation
from fedconvex.fields import CheckedFields, Count, Flag
from fedconvex.kernels import averages, batches, jobs, row_losses
from fedconvex.kernels.ridges import at
from fedconvex.methods.parts import local_work, participation, step_sizes
from fedconvex.problems import Problem
from fedconvex.traits import Traits


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) w
    gradient: np.ndarray  # (R, *model) g, at w in the second round of a stage
    frequency: np.ndarray  # (R, d) phi, ones until it is known, or (R, 0) without scaling
    spread: np.ndarray  # (R, d) diagonal of A, or (R, 0)
    t: int  # rounds done


class Snapshot(NamedTuple):
    """Server to clients, first round of a stage."""

    w: np.ndarray  # (R, *model) w
    counting: bool  # whether phi_k is asked for


class Gradients(NamedTuple):
    """Clients to server, first round of a stage."""

    gradient: np.ndarray  # (R, K, *model) grad f_k(w)
    frequency: np.ndarray  # (R, K, d) phi_k, or (R, K, 0)


class Message(NamedTuple):
    """Server to clients, second round of a stage."""

    w: np.ndarray  # (R, *model) w, known to the clients
    gradient: np.ndarray  # (R, *model) g
    frequency: np.ndarray  # (R, d) phi, known to the clients after the first stage, or (R, 0)
    first: bool  # whether this is the first stage

    @property
    def not_sent(self) -> tuple[str, ...]:
        """What the clients have: it was sent before."""
        return ("w",) if self.first else ("w", "frequency")


class Reply(NamedTuple):
    """Clients to server, second round of a stage."""

    w: np.ndarray  # (R, K, *model) w_k after the inner steps


@dataclass(frozen=True, kw_only=True)
class FSVRG(CheckedFields):
    """Federated SVRG: one full gradient, then one corrected pass over the rows of every client, then an average.

    The minimiser is a fixed point, whatever the data: no client drift. No rate is proven for clients that differ; too
    large a step diverges, the more so with scaling, since A multiplies the moves of rare features.

    Parameters
    ----------
    step_size : float or array (R,)
        h. A client's step is h/n_k, so that all clients move equally far in one pass (local_steps: h itself).
    scaling : bool
        S_k and A from the frequencies of the features; False: identities.
    local_steps : int, optional
        Algorithm 3 in the place of 4: so many steps on rows drawn with replacement, of size h at every client, and a
        plain average.

    Raises
    ------
    ValueError, TypeError
        On settings out of range.

    References
    ----------
    Konecny, McMahan, Ramage, Richtarik, "Federated optimization: distributed machine learning for on-device
    intelligence", arXiv:1610.02527, 2016, Algorithms 3 and 4. The weights p_k are n_k/n there.

    Examples
    --------
    >>> from fedconvex import Logistic, Problem, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import FSVRG
    >>> problem = Problem(logistic_federation(seed=1).federation, Logistic(), l2=0.1)
    >>> run(FSVRG(step_size=1.0), problem, rounds=200, tol=1e-10).status.name
    'CONVERGED'
    """

    command = "fsvrg"

    step_size: step_sizes.ConstantStepSize
    scaling: Flag = True
    local_steps: Count | None = None

    def init(self, problem: Problem, w: np.ndarray) -> State:
        ones = np.ones((len(w), problem.federation.d if self.scaling else 0))
        return State(w, np.zeros_like(w), ones, ones, 0)  # 1

    def broadcast(self, state: State) -> Snapshot | Message:
        if state.t % 2 == 0:
            return Snapshot(state.w, self.scaling and state.t == 0)  # 2
        return Message(state.w, state.gradient, state.frequency, state.t == 1)  # 4

    def local(self, problem: Problem, message: Any, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        if isinstance(message, Snapshot):
            phi = frequencies(problem.federation, clients[0]) if message.counting else np.empty((clients.shape[1], 0))
            gradient = row_losses.gradients_of(problem, message.w, clients)
            return Gradients(gradient, np.tile(phi, (len(clients), 1, 1))), memory  # 2
        return Reply(self._inner_steps(problem, message, clients, draws)), memory  # 7

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Any) -> State:
        if isinstance(reply, Gradients):
            state = state._replace(gradient=averages.over_clients(weights, reply.gradient), t=state.t + 1)  # 3
            if reply.frequency.shape[2] == 0:
                return state
            clients_with = np.count_nonzero(reply.frequency, axis=1)
            spread = np.where(clients_with > 0, clients.shape[1] / np.maximum(clients_with, 1), 1.0)
            return state._replace(frequency=averages.over_clients(weights, reply.frequency), spread=spread)
        q = weights if self.local_steps is None else np.full(clients.shape, 1.0 / clients.shape[1])
        move = averages.over_clients(q, reply.w - state.w[:, None])
        if self.scaling:
            move *= state.spread.reshape(len(move), *[1] * (move.ndim - 2), -1)
        return state._replace(w=state.w + move, t=state.t + 1)  # 8, 10

    def traits(self, problem: Problem) -> Traits:
        return participation.traits_of_sampling(None, problem, "rows")

    def _inner_steps(self, problem: Problem, message: Message, clients: np.ndarray, draws: Draws) -> np.ndarray:
        """Return w_k of the clients, (R, K, *model). Stage s draws like round s of other methods."""
        fed = problem.federation
        n = fed.sizes[clients[0]]
        scale = np.ones((1, fed.d))
        if self.scaling:
            phi = frequencies(fed, clients[0])
            scale = np.divide(message.frequency[0], phi, out=np.ones_like(phi), where=phi > 0.0)  # 5
        h = np.array(step_sizes.round_step_sizes(self.step_size, draws.trajectory, draws.round))[:, None]
        h = h / n if self.local_steps is None else np.repeat(h, n.size, axis=1)  # 5, 9
        plan = local_work.plan_of(clients, *((1, n, 1) if self.local_steps is None else (self.local_steps, 1, 1)))
        start, g = message.w.reshape(len(clients), 1, -1), message.gradient.reshape(len(clients), -1)
        w = jobs.run(
            {jobs.DRAWN: ScaledCorrection(start, g, scale)}, problem, problem.ridge, start, clients,
            draws._replace(round=draws.round // 2), h[:, :, None], plan, self.local_steps is not None,
        )  # fmt: skip
        return problem.unflatten(w)


def frequencies(fed: Federation, clients: np.ndarray) -> np.ndarray:
    """Return the share of every client's rows, by weight, with x_j != 0, (len(clients), d)."""
    out, s = np.empty((clients.size, fed.d)), np.ones(fed.n) if fed.sample_weight is None else fed.sample_weight
    for j, k in enumerate(clients):
        mine = slice(fed.ptr[k], fed.ptr[k + 1])
        here = (sp.csr_array(fed.X[mine]) if fed.is_sparse else fed.X[mine]) != 0.0
        out[j] = (here.T @ s[mine]) / fed.masses[k]
    return out


# ---------------------------------------------------------------- inner steps


class ScaledCorrection(NamedTuple):
    """Steps on single rows whose gradients are corrected by those at the snapshot, and scaled by feature."""

    snapshot: np.ndarray  # (R, 1, p)
    gradient: np.ndarray  # (R, p) at the snapshot, over all rows
    scale: np.ndarray  # (m or 1, d)

    def step(self, loss, data, job, part, s, h, w, room):  # type: ignore[no-untyped-def]
        """w <- w - h (scale [grad l_i(w) - grad l_i(snapshot)] + l2 (w - snapshot) + gradient), part = [i]."""
        scale, snapshot = self.scale[min(job.j, self.scale.shape[0] - 1)], self.snapshot[job.r, 0]
        batches.batch_slopes(loss, data.X, data.y, part, 1.0, w, room.c, room.t)
        batches.batch_slopes(loss, data.X, data.y, part, 1.0, snapshot, room.c0, room.t)
        for e in range(job.outputs):
            room.c[e] -= room.c0[e]
        for q in range(w.size):
            room.g[q] = 0.0
        batches.batch_add(loss, data.X, part, room.c, room.g)
        for first in range(0, w.size, scale.size):
            for q in range(scale.size):
                i = first + q
                corrected = scale[q] * room.g[i] + at(job.ridge, i) * (w[i] - snapshot[i]) + self.gradient[job.r, i]
                w[i] -= h * corrected  # 6
