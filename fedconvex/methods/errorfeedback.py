"""Error feedback (Seide et al. 2014; Stich, Cordonnier, Jaggi, NeurIPS 2018): what was not sent is sent later.

1. server: start at x; clients: e_i = 0
2. each round, server sends x; client i answers c_i = C(e_i + gamma grad f_i(x))
3. client i: e_i <- e_i + gamma grad f_i(x) - c_i
4. server: x <- x - sum_i p_i c_i

x - sum_i p_i e_i follows gradient descent with gradients at x. Where clients differ, e_i does not vanish at x*, and a
constant step ends in a neighbourhood of it; `EF21` compresses differences, and does not.
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
    bits: np.ndarray  # (R,) sent up by all clients so far


class Message(NamedTuple):
    """Server to clients."""

    w: np.ndarray  # (R, *model) x


@dataclass(frozen=True, kw_only=True)
class ErrorFeedback(CheckedFields):
    """Compressed gradient steps whose errors are added to the next ones.

    Parameters
    ----------
    step_size : float, array (R,) or "auto"
        gamma; "auto" is that of the theorem below, for one client and a contractive compressor.
    compressor : `TopK`, `RandK` or `Dithering`
        C; contractive ones are what it is made for.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if the compressor takes more entries than a model has, or no
        theorem gives the step.

    Notes
    -----
    Theorem (Thomsen, Taylor, Dieuleveut 2025; docs/theory/error_feedback.md). Let clients share a minimiser, as one
    client does, all f_i be mu-strongly convex and L-smooth, s = (1 - delta)^(1/2), q = (L - mu)/(L + mu) and
    gamma = (2/(L + mu)) (1 - s)/(1 + s). Then ‖x - sum_i p_i e_i - x*‖^2 + (1/s) sum_i p_i ‖e_i‖^2 shrinks by r^2 a
    round, r^2 = (1 - s) q r + s.

    The trace gains ``bits_up``: 64 a float, and the least a code needs (`fedconvex.methods.parts.compressors`).

    References
    ----------
    Seide, Fu, Droppo, Li, Yu, "1-bit stochastic gradient descent and its application to data-parallel distributed
    training of speech DNNs", Interspeech 2014. Stich, Cordonnier, Jaggi, "Sparsified SGD with memory", NeurIPS 2018,
    Algorithm 1, with full gradients of several clients.

    Examples
    --------
    >>> from fedconvex import Logistic, Problem, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import ErrorFeedback, TopK
    >>> problem = Problem(logistic_federation(n_clients=1, seed=1).federation, Logistic(), l2=0.1)
    >>> run(ErrorFeedback(step_size=0.5, compressor=TopK(2)), problem, rounds=1000, tol=1e-8).status.name
    'CONVERGED'
    """

    command = "error-feedback"
    benchmarks: ClassVar[Any] = {"error-feedback": {"compressor": compressors.TopK(1)}}
    lost = REFUSE
    no_penalty = "its steps follow gradients"

    step_size: AutomaticConstant
    compressor: Annotated[Any, compressors.valid]

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if a setting does not fit the problem and its R trajectories."""
        super().check_fit(problem, R)
        compressors.check_fit("ErrorFeedback", self.compressor, problem)

    def words(self, problem: FederatedProblem) -> Words:
        return Words(f"ErrorFeedback, one compressed vector of each client, {self.compressor!r}")

    def init(self, problem: FederatedProblem, w: np.ndarray) -> State:
        return State(w, np.zeros(len(w)))  # 1

    def memory(self, problem: Problem, R: int) -> client_rows.ClientRows:
        """Return the e_i: all zero."""
        return client_rows.ClientRows.empty(problem.size)  # 1

    def broadcast(self, state: State) -> Message:
        return Message(state.w)  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        memory, mine = memory.locate(draws.trajectory, clients)
        g = row_losses.gradients_of(problem, message.w, clients).reshape(*clients.shape, -1)
        gamma = step_sizes.round_step_sizes(self.step_size, draws.trajectory, draws.round)[:, None, None]
        wanted = memory.rows[mine] + gamma * g
        packed = self.compressor.pack(wanted, draws, problem.federation.ids[clients])  # 2
        memory.rows[mine] = wanted - self.compressor.unpack(*packed, problem.size)  # 3
        return Reply.of(*packed), memory

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        d = state.w[0].size
        c = averages.over_clients(weights, self.compressor.unpack(reply.values, reply.codes, d))
        return State(state.w - c.reshape(state.w.shape), state.bits + compressors.bits(self.compressor, reply, d))  # 4

    gradient_passes, observe = compressors.one_gradient, compressors.observe

    def traits(self, problem: Problem) -> Traits:
        drawn = ("coordinates",) if self.compressor.unbiased else ()
        return participation.traits_of_sampling(None, problem, *drawn, by_round=False)

    def default_step(self, problem: Problem) -> DefaultStep:
        compressors.check_fit("ErrorFeedback", self.compressor, problem)
        return default_steps.error_feedback_step(*automatic_steps.of_one_client(self, problem))
