"""What a theorem is held against, and the quantities that any run shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from fedconvex._check import bad
from fedconvex.constants import Constants
from fedconvex.driver import iterate
from fedconvex.losses import Squared
from fedconvex.problems import EnsembleProblem, MovingTarget, MultiTaskProblem, Problem
from fedconvex.theory.bound import Bound, Hypothesis, Quantity, require
from fedconvex.theory.moments import Moments

__all__ = [
    "Setting",
    "Theorem",
    "deterministic",
    "everybody",
    "full_steps",
    "is_method",
    "is_random",
    "last_value",
    "local_sgd",
    "participants",
    "plain",
    "still",
]


class Setting(NamedTuple):
    """One run that a theorem is asked about."""

    problem: Problem
    method: Any
    rounds: int
    start: np.ndarray  # the model's shape
    seed: int = 0

    def constants(self, **ball: Any) -> Constants:
        """Return the problem's constants for this method's mini-batches and start."""
        B, epochs = getattr(self.method, "batch_size", None), getattr(self.method, "epochs", None)
        if epochs is not None:
            B = None if B is None else min(B, int(self.problem.federation.sizes.min()))
        replacement = bool(getattr(self.method, "replacement", False))
        return self.problem.constants(batch_size=B, replacement=replacement, start=self.start, **ball)


class Theorem(NamedTuple):
    """A bound, and how its arguments and its quantity are read off a setting.

    Parameters
    ----------
    name : str
        Short name.
    quantity : Quantity
        What the bound speaks about.
    bound : callable
        Setting -> Bound; raises AssumptionError where a hypothesis fails.
    title : str
        For people.
    page : str
        Its page in docs/theory.
    sample : callable, optional
        (Setting, rounds, seed, trajectories) -> the quantity after so many rounds each, of independent runs:
        (len(rounds), trajectories). Default by quantity.
    exact : callable, optional
        (Setting, rounds) -> the expectation after so many rounds each, (len(rounds),), or None where only trajectories
        give it. Default by quantity.
    kind : type
        What it speaks about: Problem (with one model for all clients), MultiTaskProblem or EnsembleProblem.
    tolerance : callable, optional
        Setting -> how far double precision may move the quantity. Default by quantity, for problems with one model.
    shown : callable, optional
        Setting -> the constants that go in, each with how it was obtained, for reports. Default `Setting.constants`.
    interval : callable, optional
        (Setting, values of independent runs, tail) -> estimate and confidence limits, each missed with probability at
        most tail. Default the mean, with Student's t.
    equation : bool
        The statement is an equation: a quantity below it is a violation too.
    """

    name: str
    quantity: Quantity
    bound: Callable[[Setting], Bound]
    title: str = ""
    page: str = ""
    sample: Callable[[Setting, Sequence[int], int, int], np.ndarray] | None = None
    exact: Callable[[Setting, Sequence[int]], np.ndarray | None] | None = None
    kind: type[Problem] = Problem
    tolerance: Callable[[Setting], float] | None = None
    shown: Callable[[Setting], Mapping[str, tuple[float, str]]] | None = None
    interval: Callable[[Setting, np.ndarray, float], tuple[float, float, float]] | None = None
    equation: bool = False

    def about(self, problem: Problem) -> Hypothesis:
        """Return the hypothesis that the problem is of the kind that the theorem speaks about."""
        mine = next(k for k in (MultiTaskProblem, EnsembleProblem, Problem) if isinstance(problem, k))
        fits = isinstance(problem, self.kind) and (mine is Problem or issubclass(self.kind, mine))
        article = "an" if self.kind.__name__[0] in "AEIOU" else "a"
        return Hypothesis(f"{article} {self.kind.__name__}", type(problem).__name__, fits)

    def expectation(self, s: Setting, rounds: Sequence[int]) -> np.ndarray | None:
        """Return the exact expectation after every number of rounds, or None."""
        exact = self.exact or _EXACT.get(self.quantity) or deterministic(self.draw)
        return exact(s, rounds)

    def draw(self, s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
        """Return the quantity of independent runs, (len(rounds), trajectories)."""
        sample = self.sample or _SAMPLE.get(self.quantity)
        if sample is None:
            raise bad(f"Theorem {self.name}", "know how to measure its quantity", self.quantity.name, "pass sample=")
        return sample(s, rounds, seed, trajectories)

    def estimate(self, s: Setting, values: np.ndarray, tail: float) -> tuple[float, float, float]:
        """Return the quantity and its confidence limits from the values of independent runs."""
        if self.interval is not None:
            return self.interval(s, values, tail)
        n, mean = values.size, float(values.mean())
        half = float(stats.t.ppf(1.0 - tail, n - 1) * values.std(ddof=1) / math.sqrt(n))
        return mean, mean - half, mean + half

    def rounding(self, s: Setting) -> float:
        """How far double precision may move the quantity: below this an excess over the bound says nothing."""
        if self.tolerance is not None:
            return self.tolerance(s)
        p, best = s.problem, s.problem.solve()
        length = float(np.linalg.norm(best.w)) + float(np.linalg.norm(s.start))
        if self.quantity in _LENGTHS:
            return 1e-11 * (length + float(_LENGTHS[self.quantity]))
        if self.quantity in _SQUARES:
            return (1e-11 * length) ** 2
        if self.quantity in (Quantity.GRADIENT_NOISE, Quantity.INCREMENTAL_NOISE):  # from moves of tiny steps
            return (1e-8 * float(p.constants().L_s or 1.0) * length) ** 2
        w = p.flatten(s.start)[0][0]
        return 4.0 * (p.rounding(best.w.ravel(), best.value) + p.rounding(w, float(p.value(s.start))))


# ---------------------------------------------------------------- quantities of a run


def _shadow_average(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """Mean of F(wbar^{t,k}) - F* over the rounds and local steps so far."""
    method, best, total, out = replace(s.method, shadow=True), s.problem.solve(), np.zeros(trajectories), {}
    runs = iterate(method, s.problem, rounds=max(rounds), seed=seed, trajectories=trajectories, start=s.start)
    for t, state in runs:
        if t:
            total = total + method.observe(s.problem, state)["shadow_value"] - best.value
            out[t] = total / t
    return np.array([out[t] for t in rounds])


def last_value(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """F(w_T) - F*."""
    best, wanted = s.problem.solve(), set(rounds)
    runs = iterate(s.method, s.problem, rounds=max(rounds), seed=seed, trajectories=trajectories, start=s.start)
    out = {t: s.problem.value(state.w) - best.value for t, state in runs if t in wanted}
    return np.array([out[t] for t in rounds])


def _deviation(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """‖w_T - w*_T‖^2."""
    w, wanted = s.problem.solve().w, set(rounds)
    runs = iterate(s.method, s.problem, rounds=max(rounds), seed=seed, trajectories=trajectories, start=s.start)
    out = {t: np.sum((state.w - w).reshape(trajectories, -1) ** 2, axis=1) for t, state in runs if t in wanted}
    return np.array([out[t] for t in rounds])


def _moments(s: Setting) -> Moments | None:
    if not isinstance(s.problem.loss, Squared):
        return None
    try:
        return Moments.of(s.method, s.problem)
    except (TypeError, ValueError):
        return None


def is_random(s: Setting) -> bool:
    """Whether anything in a run is drawn."""
    m = s.method
    drifts = isinstance(s.problem, MovingTarget) and bool(np.any(s.problem.covariance))
    p = getattr(m, "participation", 0.5)
    all_of_them = p is None or getattr(p, "clients", 0) == s.problem.federation.K
    return drifts or not all_of_them or getattr(m, "batch_size", 0) is not None or getattr(m, "replacement", False)


def deterministic(sample: Callable[..., np.ndarray]) -> Callable[[Setting, Sequence[int]], np.ndarray | None]:
    """Return what one run shows, where nothing is random."""
    return lambda s, rounds: None if is_random(s) else sample(s, rounds, 0, 1)[:, 0]


def _exact_shadow_average(s: Setting, rounds: Sequence[int]) -> np.ndarray | None:
    moments = _moments(s)
    if moments is None:
        return deterministic(_shadow_average)(s, rounds)
    means = moments.shadow(rounds=max(rounds), start=s.start).suboptimality[:, 1:].mean(axis=1)
    return np.array([means[:T].mean() for T in rounds])


def _exact_last(s: Setting, rounds: Sequence[int]) -> np.ndarray | None:
    moments = _moments(s)
    if moments is None:
        return deterministic(last_value)(s, rounds)
    return moments.run(rounds=max(rounds), start=s.start).suboptimality[list(rounds)]


def _exact_deviation(s: Setting, rounds: Sequence[int]) -> np.ndarray | None:
    moments = _moments(s)
    if moments is None:
        return deterministic(_deviation)(s, rounds)
    return moments.run(rounds=max(rounds), start=s.start).deviation[list(rounds)]


def _exact_steady_state(s: Setting, rounds: Sequence[int]) -> np.ndarray | None:
    moments = _moments(s)
    return None if moments is None else np.full(len(rounds), moments.steady_state().deviation)


_EXACT: Mapping[Quantity, Callable[..., np.ndarray | None]] = {
    Quantity.SHADOW_AVERAGE: _exact_shadow_average,
    Quantity.LAST_SYNCHRONISED: _exact_last,
    Quantity.MEAN_SQUARE_DEVIATION: _exact_deviation,
    Quantity.STEADY_STATE_MSD: _exact_steady_state,
}
_LENGTHS = dict.fromkeys(
    (Quantity.DISTANCE, Quantity.LIMIT_BIAS, Quantity.LIMIT_TO_MINIMISERS, Quantity.WEIGHT_DIVERGENCE), 1e-3
)  # and what counts as nothing where all models are zero
_SQUARES = (Quantity.MEAN_SQUARE_DEVIATION, Quantity.STEADY_STATE_MSD)
_SAMPLE: Mapping[Quantity, Callable[..., np.ndarray]] = {
    Quantity.SHADOW_AVERAGE: _shadow_average,
    Quantity.LAST_SYNCHRONISED: last_value,
    Quantity.MEAN_SQUARE_DEVIATION: _deviation,
}


# ---------------------------------------------------------------- reading settings


def plain(name: str, m: Any) -> None:
    """Raise unless the method is FedAvg with fresh batches, plain local steps and plain averaging."""
    is_method(name, m, "FedAvg")
    require(
        name,
        Hypothesis("local steps on fresh batches", f"epochs={m.epochs}", m.epochs is None or m.batch_size is None),
        Hypothesis("plain local SGD steps", f"{m.client!r}", m.client.plain()),
        Hypothesis("plain averaging", f"{m.server!r}", type(m.server).__name__ == "Averaging"),
    )


def is_method(name: str, m: Any, *kinds: str) -> None:
    """Raise unless the method is one of those that the theorem speaks about."""
    require(name, Hypothesis(f"the method {' or '.join(kinds)}", type(m).__name__, type(m).__name__ in kinds))


def local_sgd(name: str, s: Setting) -> dict[str, Any]:
    """Return step_size, local_steps, rounds of a plain FedAvg with constant steps and everybody taking part."""
    m = s.method
    plain(name, m)
    still(name, s.problem)
    require(
        name,
        everybody(s),
        Hypothesis("one constant step size", f"{m.step_size!r}", isinstance(m.step_size, float)),
    )
    return {"step_size": m.step_size, "local_steps": full_steps(m), "rounds": s.rounds}


def full_steps(m: Any) -> int:
    """Local steps; an epoch of full batches is one."""
    return int(m.local_steps if m.epochs is None else m.epochs)


def still(name: str, problem: Problem) -> None:
    """Raise if the minimiser moves."""
    drifts = isinstance(problem, MovingTarget) and bool(np.any(problem.covariance))
    require(name, Hypothesis("a minimiser that stays", "MovingTarget", not drifts))


def everybody(s: Setting) -> Hypothesis:
    """Return the hypothesis that all clients take part in every round."""
    p, K = s.method.participation, s.problem.federation.K
    return Hypothesis("everybody takes part", f"participation {p!r}", not hasattr(p, "draws") and participants(s) == K)


def participants(s: Setting) -> int:
    """Return the number of clients of a uniform scheme."""
    p, K = s.method.participation, s.problem.federation.K
    return K if p is None else p.clients if hasattr(p, "clients") else max(1, round(p * K))
