"""Scaffnew (Mishchenko, Malinovsky, Stich, Richtarik, ICML 2022, Algorithm 2): ProxSkip over clients, any weights q_i.

1. server: start at x; clients: h_i = 0
2. each round, server sends x; client i: x_i <- x, and but for the first round, h_i <- h_i + (p/gamma) (x - xhat_i)
3.   client i: xhat_i = x_i - gamma (grad f_i(x_i) - h_i)
4.   a coin, the same for all clients, shows heads with probability p; tails: x_i <- xhat_i, and line 3 again
5.   heads: client i answers xhat_i and keeps it
6. server: x <- sum_i q_i xhat_i

A round is what lies between two heads: a number of local steps with P(n) = p (1 - p)^(n - 1), the same for all. Line 2
is the paper's update of h_i, made when the next message tells x. sum_i q_i h_i = 0 stays, and at the fixed point
h_i = grad f_i(x*).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from fedconvex import draws as streams
from fedconvex._check import bad, real, wrong_type
from fedconvex.constants import default_steps
from fedconvex.constants.default_steps import DefaultStep
from fedconvex.draws import Draws
from fedconvex.fields import CheckedFields
from fedconvex.kernels import averages, client_rows, descent
from fedconvex.methods.parts import automatic_steps, local_work, optimizers, participation, step_sizes
from fedconvex.problems import FederatedProblem, Problem
from fedconvex.traits import REFUSE, LocalSteps, Traits, stopping
from fedconvex.words import Words

Probability = Annotated[float, partial(real, low=0.0, high=1.0, strict=True)]
AutomaticConstant = Annotated[Any, step_sizes.StepRule(automatic=True, decays=False)]


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) x


class Message(NamedTuple):
    """Server to clients."""

    w: np.ndarray  # (R, *model) x


class Reply(NamedTuple):
    """Clients to server."""

    w: np.ndarray  # (R, K, *model) xhat_i


@dataclass(frozen=True, kw_only=True)
class Scaffnew(CheckedFields):
    """Local steps of a random number, tilted so that they do not drift: sqrt(kappa) rounds, without momentum.

    Parameters
    ----------
    step_size : float, array (R,) or "auto"
        gamma; "auto" is 2/(L + mu).
    probability : float, optional
        p, of a communication after a local step, in (0, 1]; default sqrt(1 - (1 - gamma mu)^2), mu the problem's l2,
        for which communications are fewest by the theorem below.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if p is not given and the problem has no l2 > 0, or gamma mu >= 1.

    Notes
    -----
    Theorem (derived; with q_i = 1/n and gamma <= 1/L the paper's Theorem 3.6). Let all f_i be mu-strongly convex and
    L-smooth, 0 < gamma < 2/L, and Psi = sum_i q_i ‖x_i - x*‖^2 + (gamma/p)^2 sum_i q_i ‖h_i - grad f_i(x*)‖^2. In a
    local step with its coin, E Psi+ <= max{(1 - gamma mu)^2, (1 - gamma L)^2, 1 - p^2} Psi. In the norm weighted by q,
    averaging is an orthogonal projection; apply Pythagoras to xhat - (gamma/p) h.

    References
    ----------
    Mishchenko, Malinovsky, Stich, Richtarik, "ProxSkip: yes! Local gradient steps provably lead to communication
    acceleration! Finally!", ICML 2022, Algorithm 2.

    Examples
    --------
    >>> from fedconvex import Logistic, Problem, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import Scaffnew
    >>> problem = Problem(logistic_federation(seed=1).federation, Logistic(), l2=0.01)
    >>> run(Scaffnew(step_size="auto"), problem, rounds=400, tol=1e-10).status.name
    'CONVERGED'
    """

    command = "scaffnew"
    benchmarks: ClassVar[Any] = {"scaffnew": {"probability": 0.2}}
    lost = REFUSE  # the h_i of all clients must keep their mean of zero
    no_penalty = "averaging is its proximal step: ProgressiveHedging has no drift and knows penalties"

    step_size: AutomaticConstant
    probability: Probability | None = None

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if a setting does not fit the problem and its R trajectories."""
        super().check_fit(problem, R)
        mu = float(getattr(problem, "strong_convexity", 0.0))
        if self.probability is None and not 0.0 < mu * np.min(self.step_size) <= mu * np.max(self.step_size) < 1.0:
            must = "be given where step_size times the strong convexity is not in (0, 1)"
            got = f"None; l2 and free coordinates make it {mu:g}"
            raise bad("Scaffnew.probability", must, got, "about the root of 1/kappa is usual")

    def words(self, problem: FederatedProblem) -> Words:
        p = float(np.mean(self._chances(problem, np.arange(1)) if self.probability is None else self.probability))
        return Words(f"Scaffnew with {1.0 / p:.3g} local steps on average", (f"p {p:.3g}",))

    def _chances(self, problem: FederatedProblem, trajectories: np.ndarray) -> np.ndarray:
        """Return p of trajectories, (R,)."""
        if self.probability is not None:
            return np.full(trajectories.size, self.probability)
        gamma = step_sizes.round_step_sizes(self.step_size, trajectories, 0)
        away = 1.0 - gamma * problem.strong_convexity  # type: ignore[attr-defined]
        return np.sqrt(1.0 - away * away)

    def init(self, problem: FederatedProblem, w: np.ndarray) -> State:
        return State(w)  # 1

    def memory(self, problem: Problem, R: int) -> client_rows.ClientRows:
        """Return room for h_i, xhat_i, and 1 where there are any: all zero.

        Raises
        ------
        TypeError
            If the problem moves.
        """
        if hasattr(problem, "drift"):
            cure = "clients remember models in coordinates that move: take FedLin or SCAFFOLD"
            raise wrong_type("Scaffnew: problem", "stay where it is", type(problem).__name__, cure)
        return client_rows.ClientRows.empty(2 * problem.size + 1)  # 1

    def broadcast(self, state: State) -> Message:
        return Message(state.w)  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        p, size = self._chances(problem, draws.trajectory), problem.size
        gamma = step_sizes.round_step_sizes(self.step_size, draws.trajectory, draws.round)
        memory, mine = memory.locate(draws.trajectory, clients)
        h, before, known = np.split(memory.rows[mine], (size, 2 * size), axis=2)
        x = message.w.reshape(len(clients), 1, size)
        h = h + known * (p / gamma)[:, None, None] * (x - before)  # 2
        sizes = problem.federation.sizes[clients]
        plan = local_work.plan_of(clients, self._steps(p, draws)[:, None], sizes, sizes)  # 4
        y, _ = descent.local_updates(
            problem, optimizers.ClientSGD(), message.w, clients, draws, gamma[:, None, None], plan, False, False, -h
        )  # 3
        memory.rows[mine] = np.concatenate([h, y.reshape(h.shape), np.ones_like(known)], axis=2)
        return Reply(y), memory  # 5

    @staticmethod
    def _steps(p: np.ndarray, draws: Draws) -> np.ndarray:
        """Return the number of coins up to the first head, (R,): the same at all clients."""
        u = draws.uniform(1, -1, streams.COMMUNICATION)[:, 0]
        with np.errstate(divide="ignore"):  # p = 1
            return 1 + np.floor(np.log1p(-u) / np.log1p(-p)).astype(np.int64)

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        return State(averages.over_clients(weights, reply.w))  # 6

    def traits(self, problem: Problem) -> Traits:
        sizes = problem.federation.sizes
        one, ones = np.ones(sizes.size, dtype=np.int64), np.ones(sizes.size)
        steps = LocalSteps(self.step_size, one, sizes, sizes, False, False, True, ones)
        t = participation.traits_of_sampling(None, problem, by_round=False)
        return stopping(t, steps, float(np.min(self._chances(problem, np.arange(1)))))

    def default_step(self, problem: Problem) -> DefaultStep:
        mu = float(getattr(problem, "strong_convexity", 0.0))
        return default_steps.contraction_step(automatic_steps.smoothness(self, problem), mu)
