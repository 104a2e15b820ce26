"""Dual ascent over blocks of rows and columns: rows of all groups move at once, each as far as is safe for all.

1. server (who knows the labels): alpha = 0, w = 0; once: ‖x_i‖^2, sums over owners
2. each round: every group g draws h_g = min(H, n_g) of its rows; server sends w_b to the owners of columns b
3.   owners: x_ib'w_b of their rows drawn
4. server: z_i = sum_b x_ib'w_b; N, how many rows came; for each of them, all at the same w,
     delta_i = argmin l*(-(alpha_i + delta)) + z_i delta + (N ‖x_i‖^2/(2 l2 n)) delta^2,  alpha_i <- alpha_i + delta_i
5.   server sends delta_i to the owners of row i; owners: X_b'delta/(l2 n)
6. server: w_b <- w_b + sum over the owners of columns b

Derived here. With D(alpha) = mean -l*(-alpha_i) - (l2/2) ‖w‖^2, w = X'alpha/(l2 n), and N moves of rows of length at
most R, ‖sum delta_i x_i‖^2 <= N sum delta_i^2 ‖x_i‖^2: D never decreases, whichever groups answer. Let l be
(1/mu)-smooth. As in Shalev-Shwartz and Zhang (2013, Lemma 1), a step towards -l'(z_i) of length
s = mu l2 n/(mu l2 n + N R^2) gains no less than s/n times the row's share of the duality gap, so

    E[D* - D(alpha+)] <= (1 - q s) (D* - D(alpha)),

q the least probability that a row is drawn and its group answers: min_g h_g/n_g, where all do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedconvex.draws import Draws
from fedconvex.methods.parts import hybrid_rows
from fedconvex.methods.parts.hybrid_rows import Message, RowWork, State
from fedconvex.problems.protocol import HYBRID_MODEL


@dataclass(frozen=True, kw_only=True)
class HybridDualAscent(RowWork):
    """Certified dual ascent on F, whose rows and columns lie in blocks with several owners.

    Parameters
    ----------
    batch_size : int, optional
        H, rows of a group in a round, without replacement; default all.
    participation : int or float
        Groups of rows that are asked in a round, uniformly without replacement: a number or a share.
    drop : float
        Probability in [0, 1) that a group does not answer in a round.

    Raises
    ------
    ValueError, TypeError
        If batch_size is below 1, or drop not in [0, 1).

    References
    ----------
    Derived here, after Shalev-Shwartz, Zhang, "Stochastic dual coordinate ascent", JMLR 14 (2013), Lemma 1. Hybrid data
    and their dual: Overman, Blum, Klabjan, arXiv:2210.08106.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import HybridFederation, Logistic, run
    >>> from fedconvex.methods import HybridDualAscent
    >>> from fedconvex.problems import HybridProblem
    >>> rng = np.random.default_rng(0)
    >>> fed = HybridFederation.from_grid(rng.normal(size=(60, 4)), rng.choice([-1, 1], 60), 3, 2)
    >>> result = run(HybridDualAscent(batch_size=10), HybridProblem(fed, Logistic(), 0.1), tol=1e-8)
    >>> result.status.name, int(result.trace.floats_up[1])  # 6 owners send 10 scores and 2 coordinates each
    ('CONVERGED', 72)
    """

    learns = (HYBRID_MODEL,)
    constant = ("place",)  # of the state: no round changes it
    exchanges = 2

    init = hybrid_rows.start  # 1

    def broadcast(self, state: State) -> Message:
        return hybrid_rows.message_of(state, *((1, 0), (0, 1))[state.phase])  # 2, 5

    def local(self, problem: Any, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        if message.phase == 0:
            return hybrid_rows.score_parts(self, problem, message, clients, draws), memory  # 3
        return hybrid_rows.sum_parts(self, problem, message, clients), memory  # 5

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Any) -> State:
        if state.phase == 0:
            return hybrid_rows.entered(state, clients, reply)
        return hybrid_rows.summed(state, clients, reply)  # 6

    def settle(self, problem: Any, state: State) -> State:
        """Return the state whose dual variables have moved, once scores are known."""
        return hybrid_rows.moved(state, hybrid_rows.stepped(problem, state)) if state.phase == 1 else state  # 4

    measure, observe = hybrid_rows.measure, hybrid_rows.observe
