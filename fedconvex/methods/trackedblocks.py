"""Local steps over blocks of rows and columns, corrected by the full gradient: fedconvex, after FedLin and FedBCD.

1. server (who knows the labels): w
2. each round: server sends w_b to the owners of columns b
3.   owners: X_b w_b of their rows
4. server sends z_i = sum_b x_ib'w_b to the owners of row i
5.   owners: r_i = l'(z_i, y_i), X_b'r/n
6. server sends g_b = sum of X_b'r/n over the owners of columns b + l2 w_b = grad_b F(w)
7.   owner of n_R rows R and columns b: v = w_b, and Q times
     v <- v - (eta/Q) (X_b'(l'(z_R + X_b(v - w_b), y_R) - r_R)/n_R + l2 (v - w_b) + g_b),
     answers (n_R/n_b) (v - w_b), n_b the rows that have columns b
8. server: w_b <- w_b + sum of the answers

With one group of columns this is FedLin (Mitra et al., NeurIPS 2021), with one group of rows FedBCD (Liu et al., 2019)
without damping, and with Q = 1 gradient descent on F. Derived here: let L be the larger of F's smoothness and the
largest L_Rb, that of the mean loss over rows R in w_b alone, l2 included; a = eta L,
delta = a (Q - 1)/(2 Q) < 1, c = 1 - delta - (a/2) (1 + delta)^2 > 0. Then F(w+) - F* <= (1 - 2 a c mu/L) (F(w) - F*),
mu the strong convexity of F: steps on a convex smooth function do not expand, so ‖v - w_b‖ <= eta q/Q ‖g_b‖ after q of
them, w+ - w = -eta (g + e) with ‖e_b‖ <= delta ‖g_b‖, and F falls by what its smoothness leaves of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconvex.constants.default_steps import DefaultStep
from fedconvex.draws import Draws
from fedconvex.fields import CheckedFields, Count
from fedconvex.kernels import row_losses
from fedconvex.methods.parts import automatic_steps, step_sizes
from fedconvex.problems.protocol import HYBRID_MODEL
from fedconvex.traits import Traits, counted_by
from fedconvex.words import Words, counted


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model)
    z: np.ndarray  # (R, n, C) scores
    g: np.ndarray  # (R, C, d) full gradient
    place: np.ndarray  # (K, 4) rows and columns of every block, from and to
    phase: int  # which exchange of the round comes next
    t: int  # rounds done


@counted_by("counts")
class Message(NamedTuple):
    """Server to owners: their columns of w, then scores of their rows, then their columns of g."""

    w: np.ndarray  # (R, *model)
    z: np.ndarray  # (R, n, C)
    g: np.ndarray  # (R, C, d)
    counts: np.ndarray  # (R, K) how many numbers every owner is sent
    phase: int


@counted_by("counts")
class Reply(NamedTuple):
    """Owners to server: parts of scores, of the gradient, of the step."""

    part: np.ndarray  # (R, m, C, H), H the most rows or columns of a block
    counts: np.ndarray  # (R, m)


@dataclass(frozen=True, kw_only=True)
class TrackedBlockDescent(CheckedFields):
    """Local steps along corrected gradients on F, whose rows and columns lie in blocks with several owners.

    Parameters
    ----------
    step_size : float, array (R,), `Decay` or "auto"
        eta, of a round; a `Decay` counts rounds. "auto": the share of 1/L with the best rate for Q.
    local_steps : int
        Q.

    Raises
    ------
    ValueError, TypeError
        If step_size is not positive, or local_steps below 1.

    References
    ----------
    Derived here. Mitra, Jaafar, Pappas, Hassani, "Linear convergence in federated learning: tackling client
    heterogeneity and sparse gradients", NeurIPS 2021 (FedLin); Liu et al., arXiv:1912.11187 (FedBCD).

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import HybridFederation, Logistic, run
    >>> from fedconvex.methods import TrackedBlockDescent
    >>> from fedconvex.problems import HybridProblem
    >>> rng = np.random.default_rng(0)
    >>> fed = HybridFederation.from_grid(rng.normal(size=(60, 4)), rng.choice([-1, 1], 60), 3, 2)
    >>> method = TrackedBlockDescent(step_size="auto", local_steps=5)
    >>> run(method, HybridProblem(fed, Logistic(), 0.1), tol=1e-8).status.name
    'CONVERGED'
    """

    learns = (HYBRID_MODEL,)
    constant = ("place",)  # of the state: no round changes it
    exchanges = 3

    step_size: step_sizes.AutomaticStepSize
    local_steps: Count = 1

    def words(self, problem: Any) -> Words:
        steps, eta = self.local_steps, f"{self.step_size:.4g}" if isinstance(self.step_size, float) else self.step_size
        work = f"TrackedBlockDescent, {counted(steps, 'local step')}, step size {eta}"
        return Words(work, (f"tau {steps}", f"eta {eta}"))

    def init(self, problem: Any, w: np.ndarray) -> State:
        rows, columns, cells = problem.grid
        R, C, d = len(w), problem.n_outputs, int(columns[-1])
        place = np.column_stack(
            [rows[cells[:, 0]], rows[cells[:, 0] + 1], columns[cells[:, 1]], columns[cells[:, 1] + 1]]
        )
        return State(w, np.zeros((R, problem.y.size, C)), np.zeros((R, C, d)), place, 0, 0)  # 1

    def broadcast(self, state: State) -> Message:
        first, last = state.place[:, :2].T if state.phase == 1 else state.place[:, 2:].T
        counts = np.tile((last - first) * state.z.shape[2], (len(state.w), 1))
        return Message(state.w, state.z, state.g, counts, state.phase)  # 2, 4, 6

    def local(self, problem: Any, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        part = (_scores, _gradient, self._steps)[message.phase]  # 3, 5, 7
        fed = problem.federation
        sizes = (fed.heights if message.phase == 0 else fed.widths) * problem.n_outputs
        most = int(sizes.max()) // problem.n_outputs
        out = np.zeros((*clients.shape, problem.n_outputs, most))
        eta = np.asarray(step_sizes.round_step_sizes(self.step_size, draws.trajectory, draws.round))
        for r, j in np.ndindex(*clients.shape):
            found = part(problem, message, r, int(clients[r, j]), float(eta[r]))
            out[r, j, :, : found.shape[1]] = found
        return Reply(out, sizes[clients]), memory

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        C, d = state.g.shape[1:]
        total = np.zeros((len(clients), C, state.z.shape[1] if state.phase == 0 else d))
        for r, j in np.ndindex(*clients.shape):
            first, last = state.place[clients[r, j], :2] if state.phase == 0 else state.place[clients[r, j], 2:]
            total[r, :, first:last] += reply.part[r, j, :, : last - first]
        if state.phase == 0:
            return state._replace(z=np.ascontiguousarray(total.transpose(0, 2, 1)), phase=1)
        if state.phase == 1:
            return state._replace(g=total, phase=2)
        return state._replace(w=state.w + total.reshape(state.w.shape), phase=0, t=state.t + 1)  # 8

    def settle(self, problem: Any, state: State) -> State:
        """Return the state with the ridge's part of the gradient, once the rows' is known."""
        return state._replace(g=state.g + problem.l2 * state.w.reshape(state.g.shape)) if state.phase == 2 else state

    def _steps(self, problem: Any, message: Message, r: int, k: int, eta: float) -> np.ndarray:
        """Return (n_R/n_b) (v - w_b) of one owner after its steps, (C, d_b)."""
        fed, X = problem.federation, problem.federation.block(k)
        rows, columns = fed.place(k)
        z, y, g = message.z[r, rows], problem.y[rows], message.g[r][:, columns]
        before, moved = _slopes(problem, z, y), np.zeros_like(g)
        for q in range(self.local_steps):
            change = 0.0
            if q > 0:  # the first step is along g
                slopes = _slopes(problem, z + X @ moved.T, y)
                change = (X.T @ (slopes - before)).T / len(y) + problem.l2 * moved
            moved = moved - eta / self.local_steps * (change + g)
        return np.asarray(moved * (len(y) / fed.heights[fed.cells[:, 1] == fed.cells[k, 1]].sum()))

    def traits(self, problem: Any) -> Traits:
        return Traits(drawn=(), by_round=step_sizes.decays(self))

    def default_step(self, problem: Any) -> DefaultStep:
        L = max(automatic_steps.smoothness(self, problem.pooled).F, float(problem.block_smoothness.max()))
        share = best_share(self.local_steps)
        return DefaultStep(share / L, f"{share:.3g}/L, L of F and of its blocks", "fedconvex, docs/hybrid.md")


def best_share(local_steps: int) -> float:
    """Return the a = eta L of the best rate: where a (1 - delta - (a/2) (1 + delta)^2) is largest, delta = k a.

    Examples
    --------
    >>> from fedconvex.methods.trackedblocks import best_share
    >>> best_share(1), round(best_share(10**6), 3)
    (1.0, 0.379)
    """
    k = (local_steps - 1.0) / (2.0 * local_steps)
    low, high = 0.0, 1.0  # the derivative falls from 1 to at most 0
    for _ in range(60):
        a = 0.5 * (low + high)
        low, high = (a, high) if 1.0 - (2.0 * k + 1.0) * a - 3.0 * k * a**2 - 2.0 * k**2 * a**3 > 0.0 else (low, a)
    return high


def _slopes(problem: Any, z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return l'(z_i, y_i) for scores (n, C)."""
    r = np.array(z)
    row_losses.row_slopes(problem.loss, r, y)
    return r


def _scores(problem: Any, message: Message, r: int, k: int, eta: float) -> np.ndarray:
    """Return X_b w_b of one owner, (C, n_R)."""
    w = message.w[r][..., problem.federation.place(k)[1]]
    return np.asarray(problem.scores(w, k).T)


def _gradient(problem: Any, message: Message, r: int, k: int, eta: float) -> np.ndarray:
    """Return X_b'r/n of one owner, (C, d_b)."""
    fed = problem.federation
    rows, _ = fed.place(k)
    slopes = _slopes(problem, message.z[r, rows], problem.y[rows])
    return np.asarray((fed.block(k).T @ slopes).T / fed.n)
