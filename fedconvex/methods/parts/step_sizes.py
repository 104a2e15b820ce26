"""Step sizes: numbers, one number per trajectory, or decaying schedules."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedconvex._check import bad, equal_by_type, flag, real
from fedconvex.fields import OneOrMore, nonnegative, positive
from fedconvex.problems import FederatedProblem


@equal_by_type
class Decay(NamedTuple):
    """Decaying step eta_t = scale / (shift + t)^power, where t counts local steps (or rounds).

    Li et al. (2020), Theorem 1, is ``Decay(2/mu, max(8 L/mu, E))``, consistently indexed from t = 0.

    Parameters
    ----------
    scale, shift : float
        Positive.
    power : float
        In (0, 1]: 1 for strongly convex theory, 1/2 for convex.
    by_round : bool
        Count rounds, so that the step is constant within a round; needed where clients take different numbers of steps.

    Examples
    --------
    >>> from fedconvex.methods import Decay
    >>> Decay(2.0, 4.0).at(4)
    0.25
    """

    scale: float
    shift: float = 1.0
    power: float = 1.0
    by_round: bool = False

    def at(self, t: Any) -> Any:
        """Return eta_t."""
        return self.scale / (self.shift + t) ** self.power


# ---------------------------------------------------------------- rules

_POSITIVE, _NONNEGATIVE = OneOrMore(positive, "positive numbers"), OneOrMore(nonnegative, "nonnegative numbers")


class StepRule(NamedTuple):
    """The rule of step sizes: a number, one per trajectory, and where they are possible a `Decay` or "auto"."""

    numbers: OneOrMore = _POSITIVE
    automatic: bool = False  # whether a theorem may give it
    decays: bool = True
    instead: str = "a constant step converges"  # of a `Decay`

    def __call__(self, who: str, x: Any) -> Any:
        if isinstance(x, str) and x == "auto" and self.automatic:
            return x
        if isinstance(x, str) and x == "auto":
            got, cure = (
                "'auto', for which no theorem is known",
                "problem.constants() has the smoothness L to start from",
            )
            raise bad(who, "be a positive number, one per trajectory, or a Decay", got, cure)
        if not isinstance(x, Decay):
            return self.numbers(who, x)
        if not self.decays:
            raise bad(who, "be constant in time", f"{x!r}", self.instead)
        real(f"{who}: scale", x.scale, low=0.0, strict=True)
        real(f"{who}: shift", x.shift, low=0.0, strict=True)
        real(f"{who}: power", x.power, low=0.0, high=1.0, strict=True)
        flag(f"{who}: by_round", x.by_round)
        return x

    def fit(self, who: str, x: Any, problem: FederatedProblem, R: int) -> None:
        """Raise if there is one step size per trajectory, but for another number of them, or still "auto"."""
        if isinstance(x, str):
            cure = "run and iterate do this; before calling a method's parts, take fedconvex.methods.resolved"
            raise bad(who, "be resolved on the problem", "'auto'", cure)
        if not isinstance(x, Decay):
            self.numbers.fit(who, x, problem, R)


StepSize = Annotated[Any, StepRule()]
AutomaticStepSize = Annotated[Any, StepRule(automatic=True)]
ConstantStepSize = Annotated[Any, StepRule(decays=False)]
NonnegativeSchedule = Annotated[Any, StepRule(_NONNEGATIVE)]


# ---------------------------------------------------------------- step sizes of a round


def step_counts(plan: np.ndarray) -> np.ndarray:
    """Return how many local steps a plan (..., 3) of passes, rows per pass and rows per step means."""
    return plan[..., 0] * -(-plan[..., 1] // plan[..., 2])


def step_sizes(step_size: Any, trajectories: np.ndarray, round_: int, plan: np.ndarray) -> np.ndarray:
    """Return the local step sizes of a round, (R, 1, S) with S = 1 if they are constant within it."""
    if isinstance(step_size, float):
        eta = np.empty((trajectories.size, 1, 1))
        eta.fill(step_size)
        return eta
    if isinstance(step_size, Decay) and not step_size.by_round:
        tau = int(step_counts(plan[0, 0]))
        return np.tile(step_size.at(round_ * tau + np.arange(float(tau))), (trajectories.size, 1, 1))
    return round_step_sizes(step_size, trajectories, round_)[:, None, None]


def round_step_sizes(step_size: Any, trajectories: np.ndarray, round_: int) -> np.ndarray:
    """Return the step sizes of a round, (R,), a `Decay` counting rounds."""
    if isinstance(step_size, Decay):
        return np.full(trajectories.size, step_size.at(float(round_)))
    if isinstance(step_size, float):
        return np.full(trajectories.size, step_size)
    return np.asarray(step_size)[trajectories]


def decays(method: Any) -> bool:
    """Whether a field of the method is a `Decay`, so that its rounds depend on their number."""
    return any(isinstance(getattr(method, field.name), Decay) for field in fields(method))


def descend(step_size: Any, t: int, w: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Return w - eta_t g for models (R, ...), with eta_t of each trajectory."""
    eta = round_step_sizes(step_size, np.arange(len(w)), t)
    return w - eta.reshape(-1, *[1] * (w.ndim - 1)) * g
