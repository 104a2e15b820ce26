"""HyFDCA (Overman, Blum, Klabjan, arXiv:2210.08106), as far as its structure is known, and made safe.

1. server (who knows the labels): alpha = 0, w = 0; once: ‖x_i‖^2, sums over owners
2. each round: every group g draws h_g of its rows; server sends w_b to the owners of columns b
3.   owners: x_ib'w_b of their rows drawn
4. server sends z_i = sum_b x_ib'w_b
5.   owner b: Delta = 0, and so many passes over its rows drawn: delta = argmin of its own problem in Delta_i + delta,
     sum_i l*(-(alpha_i + Delta_i)) + z_i Delta_i + (rho/2) (‖X_b'Delta‖^2 + h_g sum_i Delta_i^2 (‖x_i‖^2 - ‖x_ib‖^2))
6. server: delta_i = mean of Delta_i over the owners of row i, alpha_i <- alpha_i + delta_i, sends delta_i
7.   owners: X_b'delta/(l2 n)
8. server: w_b <- w_b + sum over the owners of columns b

rho = G/(l2 n) for G groups that answer. Of the paper only the abstract could be read here: that models are summed,
inner products x_i'w are secure sums, owners take local steps on the dual, and the owners of a row average their moves,
is its structure as told elsewhere; its constants are not known. Derived here: an owner sees its own columns move, and
no others. With rho as above and the second square, D(alpha) never decreases (Cauchy's inequality for columns that an
owner does not see, Jensen's over owners, and convexity over groups). ``safeguard=False`` leaves both out, with
rho = 1/(l2 n): what a reader of the abstract would try, and D falls.

A pass is ordinary dual ascent: an owner's rows are given a column each for what it does not see,
sqrt(h_g (‖x_i‖^2 - ‖x_ib‖^2)) in its row only, at a weight that makes its score z_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedconvex.draws import Draws
from fedconvex.federation import CSR
from fedconvex.fields import Count, Flag
from fedconvex.methods.parts import hybrid_rows
from fedconvex.methods.parts.hybrid_rows import Message, RowWork, Scores, State
from fedconvex.problems.protocol import HYBRID_MODEL
from fedconvex.solvers.kinked.dual import ordered_steps

UNSEEN = 1e-9  # entry of a row in its own column where it counts for nothing: its square is below rounding


@dataclass(frozen=True, kw_only=True)
class HyFDCA(RowWork):
    """Dual ascent over blocks, with several local steps of owners that see their own columns only.

    Parameters
    ----------
    passes : int
        Local passes over the rows drawn.
    safeguard : bool
        Whether own problems allow for what others do. Without it rounds may diverge.
    batch_size, participation, drop
        As for `HybridDualAscent`.

    Raises
    ------
    ValueError, TypeError
        If batch_size or passes is below 1, or drop not in [0, 1).

    References
    ----------
    Overman, Blum, Klabjan, "A primal-dual algorithm for hybrid federated learning", arXiv:2210.08106 (abstract).

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import HybridFederation, Logistic, run
    >>> from fedconvex.methods import HyFDCA
    >>> from fedconvex.problems import HybridProblem
    >>> rng = np.random.default_rng(0)
    >>> fed = HybridFederation.from_grid(rng.normal(size=(60, 4)), rng.choice([-1, 1], 60), 3, 2)
    >>> run(HyFDCA(passes=3), HybridProblem(fed, Logistic(), 0.1), tol=1e-8).status.name
    'CONVERGED'
    """

    learns = (HYBRID_MODEL,)
    constant = ("place",)  # of the state: no round changes it
    damped_by = "number of passes, or safeguard=True"
    exchanges = 3

    passes: Count = 1
    safeguard: Flag = True

    init = hybrid_rows.start  # 1

    def broadcast(self, state: State) -> Message:
        return hybrid_rows.message_of(state, *((1, 0), (0, 1), (0, 1))[state.phase])  # 2, 4, 6

    def local(self, problem: Any, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        if message.phase == 0:
            return hybrid_rows.score_parts(self, problem, message, clients, draws), memory  # 3
        if message.phase == 1:
            return self._own_moves(problem, message, clients), memory  # 5
        return hybrid_rows.sum_parts(self, problem, message, clients), memory  # 7

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Any) -> State:
        if state.phase == 0:
            return hybrid_rows.entered(state, clients, reply)
        if state.phase == 2:
            return hybrid_rows.summed(state, clients, reply)  # 8
        lo, total = state.place[:, 0], hybrid_rows.entered(state, clients, reply)
        owners = np.array([(lo[clients[0]] == a).sum() for a in lo])  # of the rows of every block
        share = np.zeros(state.z.shape[1])
        for (first, last, *_), count in zip(state.place, owners, strict=True):
            share[first:last] = 1.0 / count
        return hybrid_rows.moved(total._replace(z=state.z), total.z * share)  # 6

    def _own_moves(self, problem: Any, message: Message, clients: np.ndarray) -> Scores:
        """Return Delta of the owners' own problems."""
        fed, slots = problem.federation, hybrid_rows.slots_of(self, problem)
        most = int(np.diff(slots).max())
        z, rows = np.zeros((*clients.shape, most)), np.full((*clients.shape, most), -1)
        for r, j in np.ndindex(*clients.shape):
            k, g = int(clients[r, j]), int(fed.cells[clients[r, j], 0])
            at = slice(int(slots[g]), int(slots[g + 1]))
            mine = message.rows[r, at]
            if mine[0] >= 0:
                groups = int((message.rows[r, slots[:-1]] >= 0).sum()) if self.safeguard else 1
                rho = groups / (problem.l2 * fed.n)
                rows[r, j, : mine.size] = mine
                w = message.w[r, fed.place(k)[1]]
                z[r, j, : mine.size] = self._ascend(problem, k, mine, message.z[r, at], message.alpha[r, at], w, rho)
        return Scores(z, rows, (rows >= 0).sum(axis=2))

    def _ascend(
        self, problem: Any, k: int, rows: np.ndarray, z: np.ndarray, alpha: np.ndarray, w: np.ndarray, rho: float
    ) -> np.ndarray:
        """Return Delta of one owner after its passes, (h,)."""
        fed = problem.federation
        X = sp.csr_array(hybrid_rows.rows_of(fed.block(k), rows - fed.place(k)[0].start))
        own = np.asarray(X.multiply(X).sum(axis=1)).ravel()
        unseen = rows.size * np.maximum(problem.row_norms[rows] - own, 0.0) if self.safeguard else np.zeros(rows.size)
        entry = np.maximum(np.sqrt(unseen), UNSEEN)
        wide = sp.hstack([X, sp.diags_array(entry)], format="csr")
        u, mine = np.concatenate([w, (z - X @ w) / entry]), alpha.copy()
        table = CSR(wide.data, wide.indices.astype(np.int32), wide.indptr.astype(np.int64))
        norms, y = own + entry**2, problem.y[rows]
        for _ in range(self.passes):
            ordered_steps(problem.loss, table, y, norms, 0, rows.size, rho, mine, u)
        return np.asarray(mine - alpha)

    measure, observe = hybrid_rows.measure, hybrid_rows.observe
