"""What a run ended with: status, last state, certified gap and trace."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedconvex import _html
from fedconvex.fitted import Fitted


class Status(enum.Enum):
    """Why a run ended; the value is a sentence.

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared, Status, run
    >>> from fedconvex.datasets import linear_federation
    >>> problem = Problem(linear_federation(seed=0).federation, Squared())
    >>> run(FedAvg(step_size=0.1), problem, rounds=3).status is Status.ROUND_LIMIT
    True
    """

    CONVERGED = "The certified gap of every trajectory is at most tol."
    ROUND_LIMIT = "All rounds were run before the certified gap fell to tol."
    CYCLE = "The rounds repeat themselves: a state came back before the certified gap fell to tol."
    DIVERGED = "The objective of at least one trajectory blew up."


class DivergenceWarning(RuntimeWarning):
    """A trajectory's objective became infinite, NaN, or 1e10 times what it was; or it ended above its start.

    Examples
    --------
    >>> import warnings
    >>> from fedconvex import DivergenceWarning, FedSGD, Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> problem = Problem(linear_federation(seed=0).federation, Squared())
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     result = run(FedSGD(step_size=100.0), problem, rounds=50)
    >>> caught[0].category is DivergenceWarning, result.status.name
    (True, 'DIVERGED')
    """


class Trace(dict):
    """Equal-length arrays by name, also as attributes: ``trace.gap`` is ``trace["gap"]``.

    Examples
    --------
    >>> from fedconvex import FedSGD, Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> trace = run(FedSGD(step_size=0.1), Problem(linear_federation(seed=0).federation, Squared()), rounds=2).trace
    >>> trace.round.tolist(), sorted(trace)[:2]
    ([0, 1, 2], ['floats_down', 'floats_up'])
    """

    def __getattr__(self, name: str) -> np.ndarray:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the trace holds {', '.join(self)}; not {name}") from None


@dataclass(frozen=True)
class Result(Fitted):
    """What a run ended with.

    Attributes
    ----------
    state : NamedTuple
        The method's last state, arrays with leading axis R.
    status : Status
    rounds : int
        Rounds done.
    gap : float or array (R,)
        Last certified bound of F(w) - F*.
    trace : Trace
        round, value, gap, seconds, floats_down, floats_up (totals so far, per trajectory), and what the method adds.
        value and gap are (T,), or (T, R) for R > 1 trajectories. seconds are those of the rounds: measuring, compiling
        kernels and reading them from the cache do not count.
    diverged : array (R,)
        Round by which each trajectory was found to diverge, -1 if it was not.
    step_size : str or None
        What ``step_size="auto"`` came to, with its formula and theorem.
    method : str or None
        The method with its settings.
    problem : problem or None
        What was run on: `model`, `predict` and `save` read it.
    period : int or None
        With status CYCLE, the rounds after which the state came back; 1 where it stands still.
    proviso : str
        What the certificate rests on beside arithmetic: over sites, that they answer truthfully, and what was checked.
        Empty where the rows were there.

    Examples
    --------
    >>> from fedconvex import FedSGD, Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> result = run(FedSGD(step_size=0.1), Problem(linear_federation(seed=0).federation, Squared()), rounds=5)
    >>> result.rounds, result.w.shape, bool(result.gap == result.trace.gap[-1])
    (5, (10,), True)
    """

    state: Any
    status: Status
    rounds: int
    gap: Any
    trace: Trace
    diverged: np.ndarray
    step_size: str | None = None
    method: str | None = None
    problem: Any = field(default=None, repr=False, compare=False)
    period: int | None = None
    proviso: str = ""

    @property
    def w(self) -> np.ndarray:  # type: ignore[override]
        """The last model: in the problem's model shape, with a leading axis R for R > 1 trajectories."""
        w = self.state.w
        return w[0] if w.shape[0] == 1 else w

    def __repr__(self) -> str:
        gap = float(np.max(self.gap))
        more = f", {self.proviso}" if self.proviso else ""
        return f"Result({self.status.name}, rounds={self.rounds}, gap={gap:.3g}{more})"

    _repr_html_ = _html.of_result
