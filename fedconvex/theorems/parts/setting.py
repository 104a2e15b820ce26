"""Settings that theorems are asked about, and what is read off them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedconvex.constants import Constants
from fedconvex.methods.parts.local_work import PooledWork
from fedconvex.problems import Problem
from fedconvex.problems.protocol import drift_square
from fedconvex.solvers.certificates.gaps import UncertifiableError
from fedconvex.theory.bound import Hypothesis, require
from fedconvex.traits import LocalSteps, traits_of

KNOWN = 1e-8  # of F at the zero model: how far F* may be from its lower bound


class Setting(NamedTuple):
    """One run that a theorem is asked about.

    Attributes
    ----------
    problem : Problem
        Of the kind that the theorem speaks about.
    method : method
        With its settings.
    rounds : int
        T.
    start : array of the model's shape
        w_0.
    seed : int
        Of what is drawn.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import FedAvg, Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.theorems import Setting
    >>> problem = Problem(linear_federation(n_clients=3, n_features=2, seed=0).federation, Squared())
    >>> setting = Setting(problem, FedAvg(step_size=0.1), 10, np.zeros(2))
    >>> bool(setting.constants().L > 0.0)
    True
    """

    problem: Problem
    method: Any
    rounds: int
    start: np.ndarray  # the model's shape
    seed: int = 0

    def constants(self, **ball: Any) -> Constants:
        """Return constants for this method's mini-batches and start; of pooled rows, if it draws from all of them."""
        problem = self.problem.pooled if isinstance(self.method, PooledWork) else self.problem
        B, epochs = getattr(self.method, "batch_size", None), getattr(self.method, "epochs", None)
        if epochs is not None:
            B = None if B is None else min(B, int(problem.federation.sizes.min()))
        replacement = bool(getattr(self.method, "replacement", False))
        draw = getattr(self.method, "batch_draw", "uniform")
        how: dict[str, Any] = {"batch_size": B, "replacement": replacement, "batch_draw": draw}
        return problem.constants(**how, start=self.start, **ball)


def is_random(s: Setting) -> bool:
    """Whether anything in a run is drawn."""
    return _drifts(s.problem) or not traits_of(s.method, s.problem).deterministic


def _drifts(problem: Problem) -> bool:
    return drift_square(problem) > 0.0


# ---------------------------------------------------------------- hypotheses


def is_method(name: str, m: Any, *kinds: type) -> None:
    """Raise unless the method is one of those that the theorem speaks about, or a subclass."""
    names = " or ".join(kind.__name__ for kind in kinds)
    require(name, Hypothesis(f"the method {names}", type(m).__name__, isinstance(m, kinds)))


def plain_local_sgd(name: str, s: Setting) -> LocalSteps:
    """Return the local steps, or raise unless they are plain, equally many, on fresh batches, and plainly averaged."""
    m, local = s.method, traits_of(s.method, s.problem).local
    who = type(m).__name__ + (f", {m.client!r}" if hasattr(m, "client") else "")
    plain = Hypothesis("plain local SGD steps", who, local is not None and local.plain)
    require(name, plain)
    assert local is not None
    require(
        name,
        Hypothesis("local steps on fresh batches", f"epochs={getattr(m, 'epochs', None)}", local.fresh),
        equal_steps(local),
        Hypothesis("local models that can be followed", who, hasattr(m, "shadow") or local.steps.max() == 1),
        plain_averaging(s),
    )
    return local


def equal_steps(local: LocalSteps) -> Hypothesis:
    """Return the hypothesis that all clients take equally many local steps, of one size."""
    low, high = int(local.steps.min()), int(local.steps.max())
    return Hypothesis("equally many local steps of one size", f"{low} to {high}", low == high and one_size(local))


def one_size(local: LocalSteps) -> bool:
    """Whether all clients take steps of the same size."""
    return bool((local.factor == 1.0).all())


def local_sgd(name: str, s: Setting) -> dict[str, Any]:
    """Return step_size, local_steps, rounds of plain local SGD with constant steps and full participation."""
    local = plain_local_sgd(name, s)
    stationary(name, s.problem)
    require(
        name,
        full_participation(s),
        Hypothesis("one constant step size", f"{local.step_size!r}", isinstance(local.step_size, float)),
    )
    return {"step_size": local.step_size, "local_steps": int(local.steps[0]), "rounds": s.rounds}


def a_minimiser(problem: Problem) -> Hypothesis:
    """Return the hypothesis that F has a minimiser, and that F* is known: far better than F at the zero model is."""
    text = "a minimiser that exists, with F* certified"
    try:
        best = problem.solve()
    except UncertifiableError as error:
        return Hypothesis(text, str(error), False)
    size = max(abs(float(problem.value(np.zeros(problem.model_shape)))), abs(best.value))
    numbers = f"F* in [{best.lower:.6g}, {best.value:.6g}], {'attained' if best.attained else best.certificate}"
    return Hypothesis(text, numbers, best.attained and best.gap <= KNOWN * size)


def stationary(name: str, problem: Problem) -> None:
    """Raise if the minimiser moves."""
    require(name, Hypothesis("a minimiser that stays", "MovingTarget", not _drifts(problem)))


def full_participation(s: Setting) -> Hypothesis:
    """Return the hypothesis that all clients take part in every round."""
    numbers = f"participation {getattr(s.method, 'participation', None)!r}"
    return Hypothesis("full participation", numbers, traits_of(s.method, s.problem).everyone)


def participants(s: Setting) -> int:
    """Return the number of clients, or of draws, in a round."""
    return traits_of(s.method, s.problem).participants


def plain_averaging(s: Setting) -> Hypothesis:
    """Return the hypothesis that the server takes the average as it is."""
    numbers = f"{getattr(s.method, 'server', type(s.method).__name__)!r}"
    return Hypothesis("plain averaging", numbers, traits_of(s.method, s.problem).averages)


def one_number(name: str, what: str, value: Any) -> float:
    """Return a hyper-parameter that is one positive number."""
    require(name, Hypothesis(f"one {what}, constant in time", f"{value!r}", isinstance(value, float)))
    return float(value)
