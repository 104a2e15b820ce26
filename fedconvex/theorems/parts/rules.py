"""Ways: how a method is set from the constants of a problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedconvex.losses import Squared
from fedconvex.methods import (
    AFL,
    MOCHA,
    SVRG,
    Decay,
    DynamicFedAvg,
    FedAvg,
    FedProx,
    MultiBoost,
    ProgressiveHedging,
    ProportionalSampling,
    ProximalPoint,
)
from fedconvex.problems import Problem
from fedconvex.theorems.agnostic import Ball, Models, Sample, with_steps
from fedconvex.theorems.fedavg_convex import fedavg_convex_step
from fedconvex.theorems.fedavg_strongly_convex import fedavg_schedule
from fedconvex.theorems.parts.setting import Setting, Theorem
from fedconvex.theorems.svrg import svrg_best_step
from fedconvex.theory.bound import AssumptionError

__all__ = [
    "Way",
    "agents",
    "boosted",
    "decaying",
    "dual",
    "epochs",
    "few",
    "fixed",
    "game",
    "hedged",
    "least",
    "proximal",
    "sampled",
    "smoothness",
    "start_alone",
    "tuned",
]

_LEAST = "the 1/(2^j L)"


class Way(NamedTuple):
    """How a method is set from what is known of a problem."""

    words: str  # where the step size comes from
    make: Callable[[Theorem, Problem, np.ndarray, int], Any]  # theorem, problem, start, rounds -> method
    by_rounds: bool = False  # whether the step is meant for that number of rounds only


def _work(problem: Problem, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that the clients can keep: a mini-batch that is smaller than the smallest client, or all rows."""
    out, smallest = dict(settings), int(problem.federation.sizes.min())
    if out.get("batch_size") is not None:
        out["batch_size"] = None if smallest == 1 else min(out["batch_size"], max(smallest // 2, 1))
    if "scheme" in out:
        out["participation"] = out.pop("scheme")(max(problem.federation.K // 2, 1))
    return out


def few(clients: int) -> ProportionalSampling:
    """Return at most three draws with probabilities p_k: few enough to enumerate."""
    return ProportionalSampling(min(clients, 3))


def fixed(share: float = 0.25, kind: Callable[..., Any] = FedAvg, **settings: Any) -> Way:
    """FedAvg with the step share/L."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> Any:
        return kind(step_size=share / smoothness(problem), **_work(problem, settings))

    return Way("1/L" if share == 1.0 else f"1/({1 / share:g}L)" if share < 1.0 else f"{share:g}/L", make)


def tuned(**settings: Any) -> Way:
    """FedAvg with the step (16) of Wang et al."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> FedAvg:
        method = fixed(**settings).make(theorem, problem, start, rounds)
        c = Setting(problem, method, rounds, start).constants()
        try:
            eta = fedavg_convex_step(c, local_steps=method.local_steps, rounds=rounds)
        except AssumptionError:  # the verdict says why
            return method
        return replace(method, step_size=eta)

    return Way("(16)", make, True)


def least(kind: Callable[..., Any] = FedAvg, **settings: Any) -> Way:
    """Return FedAvg, or another method, with the step of 1/L, 1/(2L), 1/(4L), ... whose bound is least."""
    return Way(f"{_LEAST} with the least bound", _least(lambda eta, p: kind(step_size=eta, **_work(p, settings))))


def proximal(**settings: Any) -> Way:
    """Return FedProx with exact local solutions and the proximal weight of L, 2L, 4L, ... whose bound is least."""
    work = {"solver": ProximalPoint()} | settings
    return Way(
        "the 2^j L with the least bound", _least(lambda eta, p: FedProx(proximal_mu=1.0 / eta, **_work(p, work)))
    )


def epochs(condition: float = 50.0) -> Way:
    """Return SVRG on single rows with epochs of some multiple of L_s/mu steps, and the step of the least factor."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> SVRG:
        c = problem.pooled.constants()
        kappa = float(c.L_s or math.inf) / float(c.mu or math.nan)
        if not math.isfinite(kappa):  # the verdict says what is needed
            return SVRG(step_size=1.0 / smoothness(problem), inner_steps=1)
        m = int(min(condition * kappa, 1e5)) + 1
        return SVRG(step_size=svrg_best_step(c, inner_steps=m), inner_steps=m)

    return Way("that of the least factor", make)


def hedged(**settings: Any) -> Way:
    """Return progressive hedging with its best penalty."""
    return Way("(mu L)^(1/2), the best", lambda theorem, problem, start, rounds: ProgressiveHedging(**settings))


def dual(kind: Callable[..., Any] = MOCHA, **settings: Any) -> Way:
    """Return MOCHA, or CoCoA, with sigma' by its rule."""
    rule = settings.get("sigma")
    words = f"of the rule {rule!r}" if isinstance(rule, str) else "of the least safe rule" if rule is None else "given"
    return Way(f"sigma' {words}", lambda theorem, problem, start, rounds: kind(**settings))


def boosted(**settings: Any) -> Way:
    """Return MultiBoost, whose steps are exact line searches."""
    return Way("exact line search", lambda theorem, problem, start, rounds: MultiBoost(**settings))


def game(radius: float = 1.0, published: bool = False, **settings: Any) -> Way:
    """Return AFL on a ball, with the steps of its published rate or with those of the least bound for any steps."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> AFL:
        method = AFL(step_size=1.0, domain_step_size=1.0, radius=radius, **_work(problem, settings))
        try:
            return with_steps(method, problem, rounds=rounds, start=start, published=published)
        except AssumptionError:  # the verdict says why
            return method

    return Way("2R/(T (sigma² + G²))^(1/2)" if published else "the least bound", make, True)


def start_alone(problem: Problem, start: np.ndarray) -> Models:
    """Return the class of a single model, the start."""
    return Models(np.array(start)[None])


def _affordable(problem: Problem, start: np.ndarray) -> Ball | Models:
    """Return the unit ball for squared loss, else the start and every client's own minimiser."""
    if isinstance(problem.loss, Squared):
        return Ball(1.0)
    own = [problem.client(k).solve().w for k in range(problem.federation.K)]
    return Models(np.array([np.array(start), *own]))


def sampled(models: Any = _affordable, sizes: int = 10, **settings: Any) -> Way:
    """Return samples of every domain; models is a class, or a callable of problem and start."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> Sample:
        kind = models(problem, start) if callable(models) else models
        return Sample(sizes=sizes, models=kind, **settings)

    return Way("given", make)


def decaying(**settings: Any) -> Way:
    """FedAvg with the step sizes of Li et al."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> FedAvg:
        c = problem.constants()
        mu = float(np.min(c.mu_k)) if c.mu_k is not None else 0.0
        if not mu > 0.0 or not math.isfinite(float(c.L or math.inf)):  # the verdict says that they are needed
            return FedAvg(step_size=1.0 / smoothness(problem), **_work(problem, settings))
        schedule = fedavg_schedule(replace(c, mu=mu), local_steps=int(settings.get("local_steps", 1)))
        return FedAvg(step_size=Decay(*schedule), **_work(problem, settings))

    return Way("2/(mu (gamma + t))", make)


def agents(best: bool = False, **settings: Any) -> Way:
    """Dynamic FedAvg, half of the agents, 1, 2, 3, 1, 2, ... local steps: step 1/(10 L_s), or the best of the bound."""

    def method(eta: float, problem: Problem) -> DynamicFedAvg:
        K = problem.federation.K
        work = {"local_steps": tuple(1 + k % 3 for k in range(K)), "batch_size": 4, "participation": max(K // 2, 1)}
        return DynamicFedAvg(step_size=eta, **_work(problem, work | settings))

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> DynamicFedAvg:
        L_s = float(problem.constants().L_s or 1.0)
        return method(0.1 / (L_s if math.isfinite(L_s) else 1.0), problem)

    if best:
        return Way(f"{_LEAST} with the least bound", _least(method))
    return Way("1/(10 L_s)", make)


def _least(method: Callable[[float, Problem], Any]) -> Callable[[Theorem, Problem, np.ndarray, int], Any]:
    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> Any:
        top, best = 1.0 / smoothness(problem), math.inf
        found = method(0.25 * top, problem)
        if math.isinf(_value(theorem, problem, method(2.0**-20 * top, problem), start, rounds)):
            return found  # no step helps, and the verdict says why
        for j in range(20):
            candidate = method(2.0**-j * top, problem)
            value = _value(theorem, problem, candidate, start, rounds)
            if value > best:
                break
            if value < best:
                found, best = candidate, value
        return found

    return make


def _value(theorem: Theorem, problem: Problem, method: Any, start: np.ndarray, rounds: int) -> float:
    try:
        return theorem.bound(Setting(problem, method, rounds, start)).value
    except AssumptionError:
        return math.inf


def smoothness(problem: Problem) -> float:
    """L of the roughest client, or 1 where there is none."""
    L = float(problem.constants().L or 1.0)
    return L if math.isfinite(L) and L > 0.0 else 1.0
