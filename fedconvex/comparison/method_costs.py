"""What a federated method costs: rounds, bytes and seconds to a gap, with step sizes from the problem's constants."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.comparison import local_runs
from fedconvex.constants import default_steps
from fedconvex.driver import DivergenceWarning, Result, Status, iterate, run
from fedconvex.methods import (
    MOCHA,
    SCAFFOLD,
    FedAvg,
    FederatedNewton,
    FedProx,
    FedSGD,
    JointMOCHA,
    NodeWork,
    OptimisticAFL,
)
from fedconvex.methods.parts.automatic_steps import resolved, saddle_steps
from fedconvex.problems import Problem
from fedconvex.problems.protocol import has_one_model
from fedconvex.traits import traits_of

_FLOAT = 8  # bytes
_EXACT = 1e11  # operations spent on eigenvalues of X'X
MOST, STILL = 40, 5  # rounds of a run in cross-validation; rounds that must change something


class Cost(NamedTuple):
    """How a run went.

    Attributes
    ----------
    rounds : int
        Until the gap was reached, or all that were run.
    megabytes : float
        Sent up and down by then, all clients together, at 8 bytes a number, statistics before the first round included.
    seconds : float
        Of the method, without measuring.
    reached : bool
    gap : float
        Certified, at the end.
    why : str
        Settings, and why a gap was not reached.
    trace : tuple of arrays
        Round, gap and megabytes.
    """

    rounds: int
    megabytes: float
    seconds: float
    reached: bool
    gap: float
    why: str
    trace: tuple[np.ndarray, np.ndarray, np.ndarray]


class Plan(NamedTuple):
    """A method with its settings, and words for them."""

    method: Any
    words: str
    drifts: bool = False  # whether its local steps leave a bias


def _smoothness(problem: Problem) -> float:
    """Return an upper bound of the smoothness of every client's objective."""
    fed = problem.federation
    exact = (fed.K + 1.0) * fed.d**3 + fed.n * float(fed.d) ** 2 <= _EXACT
    return default_steps.smoothness_of(fed, problem.weights, problem.loss, problem.l2, exact).client


def _fedsgd(problem: Problem, local_steps: int) -> Plan:
    return Plan(FedSGD(step_size="auto"), "one full gradient per round, step size 1/L of the objective")


def _newton(problem: Problem, local_steps: int) -> Plan:
    return Plan(FederatedNewton(), "one Hessian of each client per round, damped by backtracking")


def _fedavg(problem: Problem, local_steps: int) -> Plan:
    words = f"{local_steps} full local steps, step size 1/L of the roughest client"
    return Plan(FedAvg(step_size="auto", local_steps=local_steps), words, local_steps > 1)


def _fedprox(problem: Problem, local_steps: int) -> Plan:
    L = _smoothness(problem)
    words = f"{local_steps} full local steps, mu = L/10, step size 1/(L + mu)"
    return Plan(FedProx(step_size=1.0 / (1.1 * L), proximal_mu=0.1 * L, local_steps=local_steps), words, True)


def _scaffold(problem: Problem, local_steps: int) -> Plan:
    words = f"{local_steps} full local steps, step size 1/(2 L) of the roughest client"
    return Plan(SCAFFOLD(step_size=0.5 / _smoothness(problem), local_steps=local_steps), words)


def _afl(problem: Problem, local_steps: int) -> Plan:
    step, domain_step, words = saddle_steps(problem)
    return Plan(OptimisticAFL(step_size=step, domain_step_size=domain_step), f"optimistic steps, {words}")


def _mocha(problem: Any, local_steps: int) -> Plan:
    return Plan(JointMOCHA(work=NodeWork(epochs=1.0)), "one pass of dual coordinate ascent per round")


def _mean(problem: Any, local_steps: int) -> Plan:
    return Plan(MOCHA(epochs=1.0), "one pass of dual coordinate ascent per round")


RUNS: dict[str, tuple[str, Callable[[Any, int], Plan]]] = {  # name: (kind whose problem it solves, plan)
    "fedavg": ("pooled", _fedavg),
    "fedprox": ("pooled", _fedprox),
    "scaffold": ("pooled", _scaffold),
    "fedsgd": ("pooled", _fedsgd),
    "newton": ("pooled", _newton),
    "afl": ("afl", _afl),
    "mocha": ("mocha", _mocha),
    "mean-regularised": ("mean-regularised", _mean),
}


OWN_L2 = ("fedavg", "fedprox", "scaffold")  # local steps may leave them elsewhere than at the pooled optimum


def shortened(
    asked: Sequence[tuple[str, Problem, float]], gap: float, rounds: int, local_steps: int, seed: int
) -> list[tuple[np.ndarray, int]]:
    """Return the flat models that methods leave, and after how many rounds.

    They are run as `carry_out` runs them, but for fewer rounds where more of them change little: `Ending` says when.
    Side by side, where that pays.

    Parameters
    ----------
    asked : sequence of (str, Problem, float)
        One of `OWN_L2`, a problem, and a lower bound of its minimum; where that is -inf the problem measures gaps.
        All problems have the same rows.
    gap : float
    rounds, local_steps, seed : int
    """
    plans = [(RUNS[name][1](problem, local_steps).method, problem, lower) for name, problem, lower in asked]
    ends = [Ending(problem, lower, gap, rounds) for _, problem, lower in plans]
    if plans and local_runs.fits(plans[0][1]) and all(math.isfinite(lower) for *_, lower in plans):
        runs = [_side_by_side(*plan[:2], end) for plan, end in zip(plans, ends, strict=True)]
        local_runs.carry_out_together(runs, local_steps)
    else:
        for (method, problem, _), end in zip(plans, ends, strict=True):
            states = (state.w for _, state in iterate(method, problem, seed=seed))
            next(w for w in states if end(w[0], float(problem.value(w)[0])))
    return [(end.w, end.rounds) for end in ends]


def _side_by_side(method: Any, problem: Problem, end: Ending) -> local_runs.Run:
    """Return the run of a method with full local steps as one that goes beside others."""
    method, _ = resolved(method, problem)
    corrects = traits_of(method, problem).controls is not None
    return local_runs.Run(problem, method.step_size, getattr(method, "proximal_mu", 0.0), corrects, end)


class Ending:
    """When a run ends that is shown its models and their values, the first at the start.

    A run ends when its gap is at most ``gap``, when five rounds change the gap by less than a twentieth (at the point
    to which local steps drift), after 40 rounds, or where a gap is not finite; ``w`` is the last model whose gap is.
    """

    def __init__(self, problem: Problem, lower: float, gap: float, rounds: int) -> None:
        self.problem, self.lower, self.gap, self.most = problem, lower, gap, min(rounds, MOST)
        self.w, self.gaps = np.zeros(problem.model_shape), list[float]()

    def __call__(self, w: np.ndarray, value: float) -> bool:
        """Return whether w, of that value, is the last model."""
        left = value - self.lower
        left = float(self.problem.measure(w[None]).gap[0]) if left == math.inf else left
        if not math.isfinite(left):
            return True
        self.w, self.gaps = w, [*self.gaps, left]
        before = self.gaps[-1 - STILL] if len(self.gaps) > STILL else math.inf
        return left <= self.gap or abs(left - before) <= 0.05 * left or self.rounds == self.most

    @property
    def rounds(self) -> int:
        """How many there were."""
        return len(self.gaps) - 1


def carry_out(name: str, problem: Any, gap: float, rounds: int, local_steps: int, seed: int) -> tuple[Result, Cost]:
    """Run a method on the problem of its kind until the certified gap is small enough, or all rounds are done.

    Parameters
    ----------
    name : str
        One of `RUNS`.
    problem : Problem or MultiTaskProblem
    gap : float
        In units of the loss of a row.
    rounds, local_steps, seed : int
    """
    plan = RUNS[name][1](problem, local_steps)
    unit = 1.0 if has_one_model(problem) else float(problem.federation.n)  # sums over rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)
        run(plan.method, problem, rounds=1, tol=0.0, seed=seed, progress=False)  # compiled before the clock runs
        result = run(plan.method, problem, rounds=rounds, tol=gap * unit, seed=seed, progress=False)
    trace, reached = result.trace, result.status is Status.CONVERGED
    bytes_ = _FLOAT * (trace.floats_up + trace.floats_down) / 1e6
    why = plan.words
    if result.status is Status.DIVERGED:
        why += "; it diverged"
    elif not reached:
        stands = result.status is Status.CYCLE
        if plan.drifts and (stands or _flat(trace.gap)):
            why += "; its local steps drift, and stop short"
        else:
            why += "; it repeats itself" if stands else "; more rounds needed"
    left = float(result.gap) / unit
    cost = Cost(result.rounds, float(bytes_[-1]), float(trace.seconds[-1]), reached, left, why,
                (trace.round, trace.gap / unit, bytes_))  # fmt: skip
    return result, cost


def _flat(gap: np.ndarray) -> bool:
    """Whether the last fifth of the rounds changed little."""
    before, after = float(gap[-max(2, len(gap) // 5)]), float(gap[-1])
    return math.isfinite(before) and after > 0.95 * before
