"""Centralised baselines: gradient descent and stochastic gradient descent on the pooled rows. No messages.

GradientDescent
1. start at w_0
2. w_{t+1} = w_t - eta_t grad F(w_t)

SGD (one round is `steps` steps)
3. repeat: draw a mini-batch b of all n rows, w <- w - eta grad F(w; b)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedconvex.constants import default_steps
from fedconvex.constants.default_steps import DefaultStep
from fedconvex.draws import Draws
from fedconvex.fields import CheckedFields, Count
from fedconvex.kernels import descent
from fedconvex.methods.parts import automatic_steps, local_work, optimizers, step_sizes
from fedconvex.problems import Problem
from fedconvex.problems.protocol import COEFFICIENTS, ENSEMBLE, MODEL_PER_TASK, ONE_MODEL
from fedconvex.traits import Traits


class State(NamedTuple):
    """The model and how many rounds it took."""

    w: np.ndarray  # (R, *model)
    t: int


@dataclass(frozen=True, kw_only=True)
class GradientDescent(CheckedFields):
    """Gradient descent on F, the reference that every federated method is held against.

    Parameters
    ----------
    step_size : float, array (R,), `Decay` or "auto"
        eta; a `Decay` counts rounds; "auto" is 1/L. For eta <= 1/L the gap after t steps is at most
        ‖w_0 - w*‖^2 / (2 eta t).

    Raises
    ------
    ValueError, TypeError
        If step_size is not positive, or a name is no setting.

    Examples
    --------
    >>> from fedconvex import GradientDescent, Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> problem = Problem(linear_federation(seed=0).federation, Squared())
    >>> run(GradientDescent(step_size=0.1), problem, rounds=1000, tol=1e-6).status.name
    'CONVERGED'
    """

    command = "gd"
    aims = ("one model",)
    learns = (ONE_MODEL, MODEL_PER_TASK, ENSEMBLE, COEFFICIENTS)

    no_penalty = "its steps follow gradients: ProximalGradient and FISTA take proximal ones"

    step_size: step_sizes.AutomaticStepSize

    def gradient_passes(self, problem: Problem) -> float:
        """Return the gradient passes over all rows that a round takes."""
        return 1.0

    def init(self, problem: Problem, w: np.ndarray) -> State:
        return State(w, 0)  # 1

    def round(self, problem: Problem, state: State, draws: Draws) -> State:
        return State(step_sizes.descend(self.step_size, state.t, state.w, problem.gradient(state.w)), state.t + 1)  # 2

    def traits(self, problem: Problem) -> Traits:
        return Traits(drawn=(), by_round=step_sizes.decays(self))

    constant_step = automatic_steps.of_descent

    def default_step(self, problem: Problem) -> DefaultStep:
        return default_steps.descent_step(automatic_steps.smoothness(self, problem, falling=True))


@dataclass(frozen=True, kw_only=True)
class SGD(local_work.PooledWork):
    """Stochastic gradient descent on the pooled rows, each weighing 1/n.

    Parameters
    ----------
    step_size : float, array (R,), `Decay` or "auto"
        eta; a `Decay` counts steps; "auto" is 1/(2 L) with the expected smoothness L of mini-batches.
    batch_size : int
        Rows per step.
    steps : int
        Steps per round.
    replacement : bool
        Draw the rows of a mini-batch with replacement.

    Raises
    ------
    ValueError
        When a run starts, if the problem's weights are not n_k/n: pooled rows weigh 1/n each.

    Examples
    --------
    >>> from fedconvex import SGD, Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> problem = Problem(linear_federation(seed=0).federation, Squared())
    >>> run(SGD(step_size=0.01, batch_size=4, steps=100), problem, rounds=20).rounds
    20
    """

    command = "sgd"
    benchmarks: ClassVar[Any] = {"sgd": {"steps": 50, "batch_size": 5}}

    step_size: step_sizes.AutomaticStepSize
    steps: Count = 1

    def gradient_passes(self, problem: Problem) -> float:
        """Return the gradient passes over all rows that a round takes."""
        return self.steps * self.batch_size / problem.federation.n

    def init(self, problem: Problem, w: np.ndarray) -> State:
        return State(w, 0)  # 1

    def round(self, problem: Problem, state: State, draws: Draws) -> State:
        shape = (len(state.w), 1)
        plan = np.broadcast_to([self.steps, self.batch_size, self.batch_size], (*shape, 3)).copy()
        eta = step_sizes.step_sizes(self.step_size, draws.trajectory, draws.round, plan)
        clients = np.zeros(shape, dtype=np.int64)
        w, _ = descent.local_updates(
            problem.pooled, optimizers.ClientSGD(), state.w, clients, draws, eta, plan, self.replacement, False
        )  # 3
        return State(w[:, 0], state.t + 1)

    def traits(self, problem: Problem) -> Traits:
        return Traits(drawn=self.drawn(problem))

    def default_step(self, problem: Problem) -> DefaultStep:
        return self.constant_step(problem, automatic_steps.smoothness(self, problem))

    def constant_step(self, problem: Problem, smooth: default_steps.Smoothness) -> DefaultStep:
        """Return 1/(2 L) of mini-batches of the pooled rows."""
        pooled = smooth._replace(client=smooth.F)
        return default_steps.batch_step(pooled, problem.federation.n, self.batch_size, self.replacement)
