"""Compressed gradient descent: every client's gradient is compressed on its own, and nothing is remembered.

1. server: start at x
2. each round, server sends x; client i answers c_i = C(grad f_i(x))
3. server: x <- x - gamma sum_i p_i c_i

With one client and TopK it reaches the optimum, and none is faster. With several it need not: gradients of clients do
not vanish at x*, and sum_i p_i C(grad f_i(x*)) is not zero for a biased C, nor certain to be for an unbiased one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from fedconvex.constants import default_steps
from fedconvex.constants.default_steps import DefaultStep
from fedconvex.draws import Draws
from fedconvex.fields import CheckedFields
from fedconvex.kernels import averages, row_losses
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
class CompressedGradientDescent(CheckedFields):
    """Gradient descent with compressed gradients, the baseline of `EF21` and `DIANA`: it stalls where clients differ.

    Parameters
    ----------
    step_size : float, array (R,) or "auto"
        gamma; "auto" is that of the theorem below, for one client and a contractive compressor.
    compressor : `TopK`, `RandK` or `Dithering`
        C.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if the compressor takes more entries than a model has, or no
        theorem gives the step.

    Notes
    -----
    Theorem (docs/theory/compressed_descent.md). For one client, with s, q as for `ErrorFeedback` and
    gamma = 2/((1 + s) L + (1 - s) mu), F - F* shrinks by ((s + q)/(1 + s q))^2 a round: faster than error feedback.

    The trace gains ``bits_up``: 64 a float, and the least a code needs (`fedconvex.methods.parts.compressors`).

    References
    ----------
    Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD: communication-efficient SGD via gradient quantization and encoding",
    NIPS 2017, Algorithm 1, with full gradients.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared, run
    >>> from fedconvex.methods import CompressedGradientDescent, EF21, TopK
    >>> fed = Federation.from_clients([([[1.0, 0.0], [0.0, 1.0]], y) for y in ([3.0, 1.0], [-3.0, 0.0])])
    >>> problem = Problem(fed, Squared(), l2=0.1)  # gradients at the optimum are +-1.5 in the first coordinate
    >>> methods = CompressedGradientDescent, EF21
    >>> [run(m(step_size=0.5, compressor=TopK(1)), problem, rounds=500, tol=1e-9).status.name for m in methods]
    ['CYCLE', 'CONVERGED']
    """

    command = "compressed-gradient-descent"
    benchmarks: ClassVar[Any] = {"compressed-gd": {"compressor": compressors.RandK(1)}}
    lost = REFUSE
    no_penalty = "its steps follow gradients"

    step_size: AutomaticConstant
    compressor: Annotated[Any, compressors.valid]

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if a setting does not fit the problem and its R trajectories."""
        super().check_fit(problem, R)
        compressors.check_fit("CompressedGradientDescent", self.compressor, problem)

    def words(self, problem: FederatedProblem) -> Words:
        return Words(f"CompressedGradientDescent, one compressed vector of each client, {self.compressor!r}")

    def init(self, problem: FederatedProblem, w: np.ndarray) -> State:
        return State(w, np.zeros(len(w)))  # 1

    def broadcast(self, state: State) -> Message:
        return Message(state.w)  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        g = row_losses.gradients_of(problem, message.w, clients).reshape(*clients.shape, -1)
        return Reply.of(*self.compressor.pack(g, draws, problem.federation.ids[clients])), memory  # 2

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        d = state.w[0].size
        c = averages.over_clients(weights, self.compressor.unpack(reply.values, reply.codes, d))
        w = step_sizes.descend(self.step_size, 0, state.w, c.reshape(state.w.shape))  # 3
        return State(w, state.bits + compressors.bits(self.compressor, reply, d))

    gradient_passes, observe = compressors.one_gradient, compressors.observe

    def traits(self, problem: Problem) -> Traits:
        drawn = ("coordinates",) if self.compressor.unbiased else ()
        return participation.traits_of_sampling(None, problem, *drawn, by_round=False)

    def default_step(self, problem: Problem) -> DefaultStep:
        compressors.check_fit("CompressedGradientDescent", self.compressor, problem)
        return default_steps.compressed_descent_step(*automatic_steps.of_one_client(self, problem))
