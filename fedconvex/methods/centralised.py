"""Centralised baselines: gradient descent and stochastic gradient descent on the pooled rows. No messages.

GradientDescent
1. start at w_0
2. w_{t+1} = w_t - eta_t grad F(w_t)

SGD (one round is `steps` steps)
3. repeat: draw a mini-batch b of all n rows, w <- w - eta grad F(w; b)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, flag, whole
from fedconvex.constants import default_steps
from fedconvex.constants.default_steps import DefaultStep
from fedconvex.draws import Draws
from fedconvex.kernels import descent
from fedconvex.methods.parts import automatic_steps
from fedconvex.methods.parts import step_sizes as _steps
from fedconvex.methods.parts.optimizers import ClientSGD
from fedconvex.problems import Measure, Problem
from fedconvex.problems.protocol import ENSEMBLE, MODEL_PER_TASK, ONE_MODEL
from fedconvex.traits import Traits

__all__ = ["SGD", "GradientDescent"]


class State(NamedTuple):
    """The model and how many rounds it took."""

    w: np.ndarray  # (R, *model)
    t: int


@dataclass(frozen=True, kw_only=True)
class GradientDescent:
    """Gradient descent on F, the reference that every federated method is held against.

    Parameters
    ----------
    step_size : float, array (R,), `Decay` or "auto"
        eta; a `Decay` counts rounds; "auto" is 1/L. For eta <= 1/L the gap after t steps is at most
        ‖w_0 - w*‖^2 / (2 eta t).

    Examples
    --------
    >>> from fedconvex import GradientDescent, Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> problem = Problem(linear_federation(seed=0).federation, Squared())
    >>> run(GradientDescent(step_size=0.1), problem, rounds=1000, tol=1e-6).status.name
    'CONVERGED'
    """

    learns = (ONE_MODEL, MODEL_PER_TASK, ENSEMBLE)

    step_size: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_size", _steps.as_step_size("GradientDescent", self.step_size, automatic=True))

    def init(self, problem: Problem, w: np.ndarray) -> State:
        _steps.check_trajectories("GradientDescent", self.step_size, len(w))
        return State(w, 0)  # 1

    def round(self, problem: Problem, state: State, draws: Draws) -> State:
        return State(_steps.descend(self.step_size, state.t, state.w, problem.gradient(state.w)), state.t + 1)  # 2

    def traits(self, problem: Problem) -> Traits:
        return Traits(drawn=())

    def default_step(self, problem: Problem) -> DefaultStep:
        return default_steps.descent_step(automatic_steps.smoothness("GradientDescent", problem, falling=True))

    def measure(self, problem: Problem, state: State) -> Measure:
        return problem.measure(state.w)


@dataclass(frozen=True, kw_only=True)
class SGD:
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

    step_size: Any
    batch_size: int = 1
    steps: int = 1
    replacement: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_size", _steps.as_step_size("SGD", self.step_size, automatic=True))
        whole("SGD.batch_size", self.batch_size, low=1)
        whole("SGD.steps", self.steps, low=1)
        object.__setattr__(self, "replacement", flag("SGD.replacement", self.replacement))

    def init(self, problem: Problem, w: np.ndarray) -> State:
        fed = problem.federation
        _steps.check_trajectories("SGD", self.step_size, len(w))
        if np.abs(problem.weights - fed.masses / fed.masses.sum()).max() > 1e-9:
            raise bad("SGD: Problem.weights", "be n_k/n", "others", "pass weights=None, or use GradientDescent")
        if self.batch_size > fed.n and not self.replacement:
            raise bad("SGD.batch_size", f"be at most the number of rows {fed.n}", self.batch_size)
        return State(w, 0)  # 1

    def round(self, problem: Problem, state: State, draws: Draws) -> State:
        shape = (len(state.w), 1)
        plan = np.broadcast_to([self.steps, self.batch_size, self.batch_size], (*shape, 3)).copy()
        eta = _steps.step_sizes(self.step_size, draws.trajectory, draws.round, plan)
        clients = np.zeros(shape, dtype=np.int64)
        w, _ = descent.local_updates(
            problem.pooled, ClientSGD(), state.w, clients, draws, eta, plan, self.replacement, False
        )  # 3
        return State(w[:, 0], state.t + 1)

    def traits(self, problem: Problem) -> Traits:
        full = self.batch_size == problem.federation.n and not self.replacement
        return Traits(drawn=() if full else ("batches",))

    def default_step(self, problem: Problem) -> DefaultStep:
        smooth = automatic_steps.smoothness("SGD", problem)
        pooled = smooth._replace(client=smooth.F)
        return default_steps.batch_step(pooled, problem.federation.n, self.batch_size, self.replacement)

    def measure(self, problem: Problem, state: State) -> Measure:
        return problem.measure(state.w)
