"""The trace as it grows: what is measured and recorded during a run, and what it says about convergence."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np

from fedconvex.driver import defaults
from fedconvex.driver.cycles import Returns
from fedconvex.driver.result import DivergenceWarning, Result, Status, Trace
from fedconvex.driver.rounds import Engine
from fedconvex.kernels import cache

_BLOWN_UP = 1e10  # times what the objective was at the start


def _working_seconds() -> float:
    """Return a clock that stands still while kernels are compiled: a first run takes as long as the next."""
    return time.perf_counter() - cache.compile_seconds()


class Recorder:
    """Rows of the trace, and which trajectories have diverged."""

    def __init__(self, engine: Engine, every: int, tol: float, saved: bool = False) -> None:
        self.engine, self.every, self.tol = engine, every, tol
        self.rows: list[dict[str, Any]] = []
        self.diverged = np.full(engine.R, -1)
        self.returns = Returns(engine, tol > 0.0 or saved)  # who resumes a run may ask for another tol
        self.clock = _working_seconds()

    def record(self, t: int, state: Any) -> None:
        """Measure the state after t rounds and append a row."""
        e = self.engine
        before = _working_seconds()
        with np.errstate(all="ignore"):
            value, gap = defaults.measure(e.method, e.problem, state)
            extra = self.observed(state)
        gap = np.where(np.isfinite(value) & ~np.isnan(gap), gap, np.inf)
        if hasattr(e, "confirmed") and np.all(gap <= self.tol):  # a look at what the certificate rests on
            gap = e.confirmed(gap)
        first = self.rows[0]["value"] if self.rows else value
        lost = ~(np.isfinite(value) | (np.isnan(value) & e.may_miss))
        models: Any = getattr(state, "w", 0.0)
        if not np.isfinite(models).all():  # max(0, NaN) may be 0, and so may be the value
            lost |= ~np.isfinite(models.reshape(e.R, -1)).all(axis=1)
        if getattr(e.problem, "minimised", True):
            lost |= value > _BLOWN_UP * (1.0 + np.abs(first))
        if lost.any():
            self.diverged[(self.diverged < 0) & lost] = t
        spent = before - self.clock  # measuring is not the method's time
        seconds = (self.rows[-1]["seconds"] if self.rows else 0.0) + spent
        row = {"round": t, "value": value, "gap": gap, "seconds": seconds}
        row |= {"floats_down": e.floats_down, "floats_up": e.floats_up, **extra}
        self.rows.append(row)
        self.clock = _working_seconds()

    def observed(self, state: Any) -> dict[str, np.ndarray]:
        """Return what the method and a moving target add to the trace."""
        e = self.engine
        extra = defaults.observe(e.method, e.problem, state)
        return extra | e.problem.observe(state.w) if e.moving else extra

    def due(self, t: int, last: bool) -> bool:
        """Whether the state after t rounds is to be recorded: now and then, the last, and one that came back."""
        return (t % self.every == 0 or last or self._repeats) and not (self.rows and self.rows[-1]["round"] == t)

    @property
    def gap(self) -> float:
        """Largest certified gap of the last row."""
        return float(np.max(self.rows[-1]["gap"])) if self.rows else float("inf")

    def status(self) -> Status | None:
        """Return why the run may end here, or None."""
        if not self.rows:
            return None
        alive, gap = self.diverged < 0, self.rows[-1]["gap"]
        whole = bool(alive.all())
        if not (whole or alive.any()):
            return Status.DIVERGED
        if ((gap if whole else gap[alive]) <= self.tol).all():
            return Status.CONVERGED if whole else Status.DIVERGED
        if self._repeats and self.rows[-1]["round"] >= self.returns.at + self.returns.period:
            return Status.CYCLE
        return None

    @property
    def _repeats(self) -> bool:
        """Whether a state came back, and the run is to stop before all rounds are done."""
        return self.tol > 0.0 and self.returns.period > 0

    def warn(self) -> None:
        """Warn of trajectories that have diverged."""
        lost = np.flatnonzero(self.diverged >= 0)
        if lost.size:
            who = type(self.engine.method).__name__
            which = "" if self.engine.R == 1 else f" in {lost.size} of {self.engine.R} trajectories (first: {lost[0]})"
            first = int(self.diverged[lost].min())
            text = f"{who} diverged{which}, seen at round {first}: {self._cure}"
            warnings.warn(text, DivergenceWarning, stacklevel=5)

    def warn_if_worse(self) -> None:
        """Warn if the objective ended above its value at the start in most trajectories, though none blew up."""
        first, last = self.rows[0], self.rows[-1]
        if (
            self.engine.moving
            or not getattr(self.engine.problem, "minimised", True)
            or (self.diverged >= 0).any()
            or np.mean(last["value"] > first["value"]) <= 0.5
        ):
            return
        who, before, after = type(self.engine.method).__name__, np.median(first["value"]), np.median(last["value"])
        text = f"{who} ended above its start: {after:.6g} after {last['round']} rounds, {before:.6g} before the first"
        warnings.warn(f"{text}: {self._cure}", DivergenceWarning, stacklevel=5)

    @property
    def _cure(self) -> str:
        """What to do about a run that diverges: some methods name what damps them."""
        smaller = f"take a smaller {getattr(self.engine.method, 'damped_by', 'step size')}"
        if getattr(getattr(self.engine.method, "aggregation", None), "robust", False):
            return f"a robust aggregate leads elsewhere where clients differ or lie; if none does, {smaller}"
        return smaller

    def result(self, state: Any, t: int, status: Status) -> Result:
        """Return the result of a run that ended after t rounds."""
        if (self.diverged >= 0).any():
            status = Status.DIVERGED
        R = self.engine.R
        trace = Trace()
        for name in self.rows[0] if self.rows else ():
            column = np.array([row[name] for row in self.rows])
            trace[name] = column[:, 0] if R == 1 and column.ndim == 2 else column
        gap = self.rows[-1]["gap"]
        step = None if self.engine.default_step is None else str(self.engine.default_step)
        e, bound = self.engine, float(gap[0]) if R == 1 else gap
        period = self.returns.period if status is Status.CYCLE else None
        words = getattr(e, "proviso", "")
        return Result(state, status, t, bound, trace, self.diverged, step, repr(e.method), e.problem, period, words)
