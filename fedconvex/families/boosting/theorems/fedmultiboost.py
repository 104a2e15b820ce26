"""FedMultiBoost: its loss is at most a product over the rounds, and falls where every domain has an edge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.families.boosting.theorems.paths import ENSEMBLE_LOSS, boosting_constants
from fedconvex.families.boosting.theorems.sources import (
    as_list,
    breast_cancer_sources,
    one_source_listed,
    opposed_classifiers,
    three_sources,
    two_sources,
)
from fedconvex.methods import FedMultiBoost
from fedconvex.problems import EnsembleProblem
from fedconvex.theorems.kit import *

__all__ = ["STATEMENT", "THEOREMS", "fedmultiboost", "fedmultiboost_weak"]

NAME = "FedMultiBoost's rate"
SOURCE = "fedconvex, FedMultiBoost (docs/theory/fedmultiboost.md)"

STATEMENT = Statement(
    page="fedmultiboost",
    title="FedMultiBoost's loss",
    scope=OF_ENSEMBLES,
    setting="""
p domains, f = sum alpha_{l,j} Q(l|.) h_{l,j}, h in [-1, 1], F_k(alpha) = mean over domain k of exp(-y f), F = max_k
F_k, from alpha = 0. Round t adds eta_t = eta_0/sqrt(t) to one coordinate, whichever the sample leads to;
gamma_{k,t} = sum_i D_{k,t}(i) y_i Q h(x_i) is its edge on domain k, D_{k,t} the weights exp(-y f) of domain k scaled to
sum to one.
""",
    assumptions="Exponential loss. For the second form: a classifier is found in every round.",
    statement="""
F(alpha_T) <= max over k of prod over t of [cosh eta_t - gamma_{k,t} sinh eta_t], an equality for Q h in {-1, +1}; and

F(alpha_T) <= exp(eta_0^2 (1 + 1/2 + ... + 1/T)/2 - gamma eta_0 (1 + 1/sqrt(2) + ... + 1/sqrt(T))),

gamma the least over k of the average of gamma_{k,t} with weights 1/sqrt(t). With gamma > 0 the loss falls like
exp(-2 gamma eta_0 sqrt(T)), up to T^(eta_0^2/2). Without an edge on every domain there is no rate, and there cannot be
one: with y Q h = (0.1, -0.9) on one domain and (-0.9, 0.1) on the other, min F = 1 and F(alpha_T) tends to infinity.
""",
    source="""
The method: Cortes, Mohri, Storcheus, Suresh, "Boosting with multiple sources", NeurIPS 2021, who give no rate for it.
Both bounds and the counterexample: this project.
""",
    differs="Nothing is published to differ from.",
    meaning="""
FedMultiBoost lowers the worst of the domains that it saw and does not look at what the others lose. MultiBoost's line
search stops at a kink; fixed steps go on, for better (kinks are passed) or worse. What decides is whether the
classifiers that it picks have an edge on all domains on average, which the edges of a run show: the bound is told them,
those of domains that took no part in the round included. It holds on every run, whatever was drawn.
""",
    proof="""
As for [AdaBoost](adaboost.md): with u = y Q h in [-1, 1] on domain k, e^{-ηu} ≤ ((1+u)/2)e^{-η} + ((1-u)/2)e^{η} by
convexity, so F_k(α + ηe)/F_k(α) = Σ D_k e^{-ηu} ≤ cosh η - γ_k sinh η. F_k(0) = 1; multiply over the rounds, and take
the largest k at the end. By Hoeffding's lemma Σ D_k e^{-ηu} ≤ exp(η²/2 - γ_k η), which gives the second form. ∎

**Counterexample.** From α = (0, 0) both losses are 1. Whichever domain is the worse, its own classifier has the edge
0.1 on it, the other's -0.9: it is taken, as the method asks for gains on the worst domain only. So the two take turns,
up to what one step changes: F_1 = exp(0.9 α_2 - 0.1 α_1), F_2 = exp(0.9 α_1 - 0.1 α_2), F_1 F_2 = exp(0.8 (α_1 + α_2)),
and α_1 + α_2 = η_0 Σ 1/√t. For every α ≥ 0, F² ≥ F_1 F_2 ≥ 1 = F(0)². ∎ `test_fedmultiboost_can_diverge`.
""",
    loose="""
The product: an equality for one source of stumps, 1.1 to 2 where Q < 1. The second form: nearly attained by short
steps.
""",
)


def fedmultiboost(edges: Any, steps: Any) -> Bound:
    """Return the largest product over the rounds of cosh eta_t - gamma_{k,t} sinh eta_t, over domains k.

    Parameters
    ----------
    edges : array (T, p)
        gamma_{k,t} in [-1, 1].
    steps : array (T,)
        eta_t; 0 where no classifier was found.

    Raises
    ------
    ValueError, TypeError
        If steps is no vector, or edges no matrix, rounds by domains, of numbers in [-1, 1].

    Examples
    --------
    >>> import math
    >>> from fedconvex.families.boosting.theorems.fedmultiboost import fedmultiboost
    >>> round(fedmultiboost([[0.6, 0.0]], [math.log(2.0)]).value, 12)  # 1.25 - 0.6*0.75, 1.25
    1.25
    """
    eta, gamma = vector("fedmultiboost: steps", steps), numeric("fedmultiboost: edges", edges)
    finite("fedmultiboost: edges", gamma)
    if gamma.ndim != 2 or len(gamma) != eta.size or not gamma.shape[1]:
        raise bad("fedmultiboost: edges", f"be a matrix, {eta.size} rounds by domains", f"shape {gamma.shape}")
    if np.abs(gamma).max(initial=0.0) > 1.0 + 1e-12:
        raise bad("fedmultiboost: edges", "lie in [-1, 1]", f"{gamma.ravel()[np.argmax(np.abs(gamma))]:g}")
    g, e = np.clip(gamma, -1.0, 1.0), eta[:, None]
    with np.errstate(over="ignore", divide="ignore"):  # log 0 where a domain is all right or all wrong
        logs = np.logaddexp(np.log(0.5 * (1.0 + g)) - e, np.log(0.5 * (1.0 - g)) + e)
        product = float(np.exp(np.sum(logs, axis=0).max()))
    return Bound({"product": product}, ENSEMBLE_LOSS, f"{SOURCE}, product")


def fedmultiboost_weak(gamma: float, *, step_size: float, rounds: int) -> Bound:
    """Return exp(eta_0^2 sum 1/(2 t) - gamma eta_0 sum 1/sqrt(t)) for edges of gamma on average, on every domain.

    Parameters
    ----------
    gamma : float
        In [-1, 1].
    step_size, rounds : float, int
        eta_0, T.

    Raises
    ------
    ValueError, TypeError
        If step_size is not positive, gamma not in [-1, 1], or rounds below 1.

    Examples
    --------
    >>> from fedconvex.families.boosting.theorems.fedmultiboost import fedmultiboost_weak
    >>> round(fedmultiboost_weak(0.5, step_size=0.5, rounds=1).value, 6)  # exp(1/8 - 1/4)
    0.882497
    """
    g, T = real("fedmultiboost_weak: gamma", gamma, low=-1.0, high=1.0), whole("rounds", rounds, low=1)
    eta = real("fedmultiboost_weak: step_size", step_size, low=0.0, strict=True)
    n = np.arange(1.0, T + 1.0)
    power = eta * (
        0.5 * eta * float(np.sum(1.0 / n)) - g * float(np.sum(n**-0.5))
    )  # eta^2 would warn where it overflows
    return Bound(
        {"exponential": math.exp(power) if power < 709.0 else math.inf}, ENSEMBLE_LOSS, f"{SOURCE}, edges on average"
    )


# ---------------------------------------------------------------- read off a setting


class _Run(NamedTuple):
    """A run, state by state."""

    losses: np.ndarray  # (T+1, p) F_k
    edges: np.ndarray  # (T, p)
    steps: np.ndarray  # (T,)


def _problem(s: Setting) -> EnsembleProblem:
    assert isinstance(s.problem, EnsembleProblem)
    return s.problem


def _run(s: Setting, rounds: int) -> _Run:
    """Return the run of the setting's seed."""
    p, losses, edges, steps, before = _problem(s), [], [], [], np.zeros(0)
    for t, state in iterate(s.method, p, rounds=rounds, seed=s.seed, start=s.start):
        F, slopes = p.losses_of(p.margins(state.w[0]))
        if t:
            steps.append(float(state.history[0, -1, 5]))
            u = p.signed[:, int(state.history[0, -1, 1])]
            mass, sums = (np.add.reduceat(v, p.bounds[:-1]) for v in (before, before * u))
            edges.append(sums / mass)
        losses.append(F)
        before = slopes
    return _Run(np.array(losses), np.array(edges).reshape(rounds, p.p), np.array(steps))


def _checked(s: Setting) -> tuple[Hypothesis, ...]:
    is_method(NAME, s.method, FedMultiBoost)
    loss = _problem(s).loss
    return require(
        NAME,
        Hypothesis("exponential loss", f"{loss!r}", loss == Exponential()),
        Hypothesis("a start at alpha = 0", f"largest entry {s.start.max(initial=0.0):g}", not s.start.any()),
    )


def _read(s: Setting) -> Reading:
    checked, run = _checked(s), _run(s, s.rounds)
    return Reading({"edges": np.clip(run.edges, -1.0, 1.0), "steps": run.steps}, checked)


def _read_weak(s: Setting) -> Reading:
    checked, run = _checked(s), _run(s, s.rounds)
    idle = int(np.sum(run.steps == 0.0))
    checked += require(NAME, Hypothesis("a classifier in every round", f"none in {idle} rounds", not idle))
    share = run.steps / run.steps.sum()
    least = float(np.clip((share @ run.edges).min(), -1.0, 1.0))
    return Reading({"gamma": least, "step_size": float(run.steps[0]), "rounds": s.rounds}, checked)


def _loss(s: Setting, rounds: Sequence[int]) -> Found:
    """F after so many rounds, of the one run; a margin is a sum of steps times numbers in [-1, 1].

    The bound's edges are rounded, too: a round's factor is off by sinh eta times as much.
    """
    run = _run(s, max(rounds))
    values = run.losses.max(axis=1)
    reach = 1.0 + np.append(0.0, np.cumsum(run.steps))
    off = 4.0 * UNIT * np.cumsum(values * reach)
    with np.errstate(over="ignore"):
        shrunk = np.max(run.losses[:-1] / np.maximum(run.losses[1:], 1e-300), axis=1)  # at least 1/factor
        off += 8.0 * UNIT * values * np.append(0.0, np.cumsum(np.sinh(run.steps) * shrunk))
    at = np.array(rounds)
    return Found(values[at], off[at])


def _rule(step_size: float, **settings: Any) -> MethodRule:
    words = ", ".join(f"{name} {value:g}" for name, value in {"eta_0": step_size, **settings}.items())
    return MethodRule(words, lambda *_: FedMultiBoost(step_size=step_size, **settings))


_ABOUT: dict[str, Any] = {
    "quantity": ENSEMBLE_LOSS,
    "exact": _loss,
    "kind": EnsembleProblem,
    "constants": boosting_constants,
    "statement": STATEMENT,
    "method": _rule(0.3),
    "rounds": 20,
    "adapt": as_list,
    "space": Space(
        lambda k: _rule(**k),
        {"step_size": Real(0.01, 3.0)},
        losses=("logistic",),
        rounds=(1, 6),
        problem=lambda tiny: as_list(tiny.problem()),
        start=from_zero,
    ),
}
_FEW = _rule(0.3, classifiers=4)

THEOREMS = (
    Theorem(
        name="fedmultiboost",
        title="FedMultiBoost, product of the rounds",
        bound=fedmultiboost,
        read=_read,
        says="The worst domain's loss is at most the largest product over the rounds of cosh eta - gamma sinh eta.",
        loose="An equality for classifiers that answer -1 or +1; 1.1 to 2 where Q < 1.",
        checks=(
            one_source_listed,
            two_sources,
            breast_cancer_sources,
            Check(two_sources, _FEW),
            opposed_classifiers,
            three_sources,  # which has no list of classifiers
        ),
        **_ABOUT,
    ),
    Theorem(
        name="fedmultiboost-weak",
        title="FedMultiBoost, edges on every domain",
        bound=fedmultiboost_weak,
        read=_read_weak,
        says="With an edge of gamma on every domain, averaged over rounds, the loss falls like e^(-2 gamma eta √T).",
        loose="Nearly attained by short steps.",
        checks=(
            one_source_listed,
            two_sources,
            breast_cancer_sources,
            *(Check(one_source_listed, _rule(eta), 1) for eta in (0.01, 0.1)),
            *(Check(opposed_classifiers, _rule(eta)) for eta in (0.01, 0.1)),
        ),
        **_ABOUT,
    ),
)
