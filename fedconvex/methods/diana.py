"""DIANA (Mishchenko, Gorbunov, Takac, Richtarik 2019): differences of gradients are compressed, without bias.

1. server: start at x, h = 0; clients: h_i = 0
2. each round, server sends x; client i answers m_i = C(grad f_i(x) - h_i)
3. client i: h_i <- h_i + alpha m_i
4. server: x <- x - gamma (h + sum_i p_i m_i)
5. server: h <- h + alpha sum_i p_i m_i

h = sum_i p_i h_i in every round. At the fixed point h_i = grad f_i(x*): what is compressed tends to zero.
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
    h: np.ndarray  # (R, p) h, flat
    bits: np.ndarray  # (R,) sent up by all clients so far


class Message(NamedTuple):
    """Server to clients."""

    w: np.ndarray  # (R, *model) x


@dataclass(frozen=True, kw_only=True)
class DIANA(CheckedFields):
    """Gradient descent with compressed differences: the optimum, with unbiased compressors.

    Parameters
    ----------
    step_size : float, array (R,) or "auto"
        gamma; "auto" is 1/(L (1 + 6 omega/n)) of the theorem below.
    compressor : `RandK` or `Dithering`
        C, unbiased; every client draws its own.
    alpha : float, optional
        Default 1/(1 + omega).

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if the compressor takes more entries than a model has.

    Notes
    -----
    Theorem (derived). Let p_i = 1/n, all f_i convex and L-smooth, F mu-strongly convex, draws of clients independent,
    alpha = 1/(1 + omega), gamma <= 1/(L (1 + 6 omega/n)) and V = ‖x - x*‖^2 + (4 omega/(n alpha)) gamma^2
    (1/n) sum_i ‖h_i - grad f_i(x*)‖^2. Then E V+ <= max{1 - gamma mu, 1 - alpha/2} V. With omega = 0 it is gradient
    descent. The step is often several times too small: tune it.

    The trace gains ``bits_up``: 64 a float, and the least a code needs (`fedconvex.methods.parts.compressors`).

    References
    ----------
    Mishchenko, Gorbunov, Takac, Richtarik, "Distributed learning with compressed gradient differences",
    arXiv:1901.09269, 2019, Algorithm 1 without momentum and regulariser; weights p_i in the place of 1/n.

    Examples
    --------
    >>> from fedconvex import Logistic, Problem, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import DIANA, RandK
    >>> problem = Problem(logistic_federation(seed=1).federation, Logistic(), l2=0.1)
    >>> run(DIANA(step_size="auto", compressor=RandK(2)), problem, rounds=2000, tol=1e-8).status.name
    'CONVERGED'
    """

    command = "diana"
    benchmarks: ClassVar[Any] = {"diana": {"compressor": compressors.RandK(1)}}
    lost = REFUSE  # the server's h is the mean of everybody's h_i
    no_penalty = "its steps follow gradients"

    step_size: AutomaticConstant
    compressor: Annotated[Any, compressors.unbiased]
    alpha: compressors.Damping | None = None

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if a setting does not fit the problem and its R trajectories."""
        super().check_fit(problem, R)
        compressors.check_fit("DIANA", self.compressor, problem)

    def words(self, problem: FederatedProblem) -> Words:
        return Words(f"DIANA, one compressed vector of each client, {self.compressor!r}")

    def _alpha(self, d: int) -> float:
        return 1.0 / (1.0 + self.compressor.omega(d)) if self.alpha is None else self.alpha

    def init(self, problem: FederatedProblem, w: np.ndarray) -> State:
        return State(w, np.zeros((len(w), w[0].size)), np.zeros(len(w)))  # 1

    def memory(self, problem: Problem, R: int) -> client_rows.ClientRows:
        """Return the h_i: all zero."""
        return client_rows.ClientRows.empty(problem.size)  # 1

    def broadcast(self, state: State) -> Message:
        return Message(state.w)  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        memory, mine = memory.locate(draws.trajectory, clients)
        g = row_losses.gradients_of(problem, message.w, clients).reshape(*clients.shape, -1)
        packed = self.compressor.pack(g - memory.rows[mine], draws, problem.federation.ids[clients])  # 2
        memory.rows[mine] += self._alpha(problem.size) * self.compressor.unpack(*packed, problem.size)  # 3
        return Reply.of(*packed), memory

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        d = state.h.shape[1]
        m = averages.over_clients(weights, self.compressor.unpack(reply.values, reply.codes, d))
        w = step_sizes.descend(self.step_size, 0, state.w, (state.h + m).reshape(state.w.shape))  # 4
        return State(w, state.h + self._alpha(d) * m, state.bits + compressors.bits(self.compressor, reply, d))  # 5

    gradient_passes, observe = compressors.one_gradient, compressors.observe

    def traits(self, problem: Problem) -> Traits:
        return participation.traits_of_sampling(None, problem, "coordinates", by_round=False)

    def default_step(self, problem: Problem) -> DefaultStep:
        compressors.check_fit("DIANA", self.compressor, problem)
        omega = self.compressor.omega(problem.size)
        return default_steps.difference_step(automatic_steps.smoothness(self, problem), omega, problem.federation.K)
