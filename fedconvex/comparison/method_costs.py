"""What a federated method costs: rounds, bytes and seconds to a gap, with step sizes from the problem's constants."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

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
from fedconvex.methods.parts.automatic_steps import saddle_steps
from fedconvex.problems import Problem
from fedconvex.problems.protocol import has_one_model

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
    name: str, problem: Problem, lower: float, gap: float, rounds: int, local_steps: int, seed: int
) -> tuple[np.ndarray, int]:
    """Return the model that a method leaves, and after how many rounds.

    It is run as `carry_out` runs it, but for fewer rounds where more of them change little:
    the run ends when its certified gap is at most ``gap``, when five rounds change the gap by less than a twentieth (at
    the point to which local steps drift), or after 40 rounds.

    Parameters
    ----------
    name : str
        One of `OWN_L2`.
    problem : Problem
    lower : float
        A lower bound of its minimum; where it is -inf the problem measures gaps.
    gap : float
    rounds, local_steps, seed : int
    """
    plan, gaps, w = RUNS[name][1](problem, local_steps), list[float](), np.zeros(problem.model_shape)
    for _, state in iterate(plan.method, problem, rounds=min(rounds, MOST), seed=seed):
        left = float(problem.value(state.w)[0]) - lower
        left = float(problem.measure(state.w).gap[0]) if left == math.inf else left
        if not math.isfinite(left):
            break
        w, gaps = state.w[0], [*gaps, left]
        before = gaps[-1 - STILL] if len(gaps) > STILL else math.inf
        if left <= gap or abs(left - before) <= 0.05 * left:
            break
    return w, len(gaps) - 1


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
