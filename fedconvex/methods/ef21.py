"""EF21 (Richtarik, Sokolov, Fatkhullin, NeurIPS 2021, Algorithm 2): error feedback without errors that pile up.

1. server: start at x; first round: send x; client i answers g_i = grad f_i(x), whole
2. each later round, server sends x; client i answers c_i = C(grad f_i(x) - g_i)
3. client i: g_i <- g_i + c_i
4. server: g <- g + sum_i p_i c_i
5. server: x <- x - gamma g
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from fedconvex.constants import default_steps
from fedconvex.constants.default_steps import DefaultStep
from fedconvex.draws import Draws
from fedconvex.fields import CheckedFields
from fedconvex.kernels import averages, client_rows, row_losses
from fedconvex.methods.parts import automatic_steps, compressors, participation, step_sizes
from fedconvex.methods.parts.compressors import Reply
from fedconvex.problems import FederatedProblem, Problem
from fedconvex.traits import REFUSE, Traits
from fedconvex.words import Words

AutomaticConstant = Annotated[Any, step_sizes.StepRule(automatic=True, decays=False)]


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) x
    g: np.ndarray  # (R, p) g, flat
    bits: np.ndarray  # (R,) sent up by all clients so far
    first: bool  # whether whole gradients are to come


class Message(NamedTuple):
    """Server to clients."""

    w: np.ndarray  # (R, *model) x
    first: bool  # whether g_i are asked for


@dataclass(frozen=True, kw_only=True)
class EF21(CheckedFields):
    """Gradient descent with compressed differences: the optimum, with contractive compressors.

    Parameters
    ----------
    step_size : float, array (R,) or "auto"
        gamma; "auto" is that of the theorem below.
    compressor : `TopK`, `RandK` or `Dithering`
        C; unbiased ones have no theorem here.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if the compressor takes more entries than a model has.

    Notes
    -----
    Theorem (the paper's Theorem 2, derived anew). Let p_i = 1/n, F be L_F-smooth with ‖grad F‖^2 >= 2 mu (F - F*), f_i
    L_i-smooth, Lt^2 = (1/n) sum_i L_i^2, theta = 1 - sqrt(1 - delta), beta = (1 - delta)/theta and
    gamma <= 1/(L_F + Lt sqrt(2 beta/theta)). Then F(x) - F* + (gamma/theta) (1/n) sum_i ‖g_i - grad f_i(x)‖^2 shrinks
    by max{1 - gamma mu, 1 - theta/2} a round. The step is often ten times too small: tune it. With C = I it is gradient
    descent. For convex clients `fedconvex.theorems.error_feedback.error_feedback_step` is 1.4 to 1.5 times as long for
    delta below 1/3, and its rate exact (docs/theory/error_feedback.md).

    The trace gains ``bits_up``: 64 a float, and the least a code needs (`fedconvex.methods.parts.compressors`).

    References
    ----------
    Richtarik, Sokolov, Fatkhullin, "EF21: a new, simpler, theoretically better, and practically faster error feedback",
    NeurIPS 2021, Algorithm 2; weights p_i in the place of 1/n.

    Examples
    --------
    >>> from fedconvex import Logistic, Problem, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import EF21, TopK
    >>> problem = Problem(logistic_federation(seed=1).federation, Logistic(), l2=0.1)
    >>> run(EF21(step_size=1.0, compressor=TopK(2)), problem, rounds=1000, tol=1e-8).status.name
    'CONVERGED'
    """

    command = "ef21"
    benchmarks: ClassVar[Any] = {"ef21": {"compressor": compressors.TopK(1)}}
    lost = REFUSE  # the server's g is the mean of everybody's g_i
    no_penalty = "its steps follow gradients"

    step_size: AutomaticConstant
    compressor: Annotated[Any, compressors.valid]

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if a setting does not fit the problem and its R trajectories."""
        super().check_fit(problem, R)
        compressors.check_fit("EF21", self.compressor, problem)

    def words(self, problem: FederatedProblem) -> Words:
        return Words(f"EF21, one compressed vector of each client, {self.compressor!r}")

    def init(self, problem: FederatedProblem, w: np.ndarray) -> State:
        return State(w, np.zeros((len(w), w[0].size)), np.zeros(len(w)), True)  # 1

    def memory(self, problem: Problem, R: int) -> client_rows.ClientRows:
        """Return room for the g_i, which the first round sets."""
        return client_rows.ClientRows.empty(problem.size)

    def broadcast(self, state: State) -> Message:
        return Message(state.w, state.first)  # 1, 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        memory, mine = memory.locate(draws.trajectory, clients)
        g = row_losses.gradients_of(problem, message.w, clients).reshape(*clients.shape, -1)
        if message.first:
            memory.rows[mine] = g
            return Reply.of(g, np.zeros((*clients.shape, 0), dtype=np.int64)), memory  # 1
        packed = self.compressor.pack(g - memory.rows[mine], draws, problem.federation.ids[clients])  # 2
        memory.rows[mine] += self.compressor.unpack(*packed, problem.size)  # 3
        return Reply.of(*packed), memory

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        d = state.g.shape[1]
        c = reply.values if state.first else self.compressor.unpack(reply.values, reply.codes, d)
        g = state.g + averages.over_clients(weights, c)  # 4
        w = step_sizes.descend(self.step_size, 0, state.w, g.reshape(state.w.shape))  # 5
        return State(w, g, state.bits + compressors.bits(None if state.first else self.compressor, reply, d), False)

    gradient_passes, observe = compressors.one_gradient, compressors.observe

    def traits(self, problem: Problem) -> Traits:
        drawn = ("coordinates",) if self.compressor.unbiased else ()
        return participation.traits_of_sampling(None, problem, *drawn, by_round=False)

    def default_step(self, problem: Problem) -> DefaultStep:
        compressors.check_fit("EF21", self.compressor, problem)
        delta = compressors.contraction(self.compressor, problem.size)
        smooth = automatic_steps.smoothness(self, problem)
        each = np.array([float(L) for L in problem.statistic("smoothness")])
        return default_steps.feedback_step(smooth, float(np.sqrt(np.mean(each**2))), delta)
