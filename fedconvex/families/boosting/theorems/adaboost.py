"""AdaBoost: its loss is at most a product over the rounds, and falls exponentially under weak learning."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedconvex.families.boosting.theorems.paths import (
    ENSEMBLE_LOSS,
    SMALL,
    along,
    boosting_constants,
    boosts,
    line_search,
    loss_after,
    one_by_one,
    path_of,
    problem_of,
)
from fedconvex.families.boosting.theorems.sources import (
    as_one_source,
    breast_cancer_one_source,
    one_source,
    sources_space,
    two_sources,
)
from fedconvex.problems import BoostingProblem
from fedconvex.theorems.kit import *

__all__ = ["STATEMENT", "THEOREMS", "adaboost", "adaboost_weak"]

SOURCE = "Freund, Schapire 1997; Schapire, Singer 1999"

STATEMENT = Statement(
    page="adaboost",
    title="AdaBoost's rate",
    scope=OF_ENSEMBLES,
    setting="""
One source, F(alpha) = mean of exp(-y f) with f = sum alpha_j h_j, h_j in [-1, 1], from alpha = 0; a round is an exact
line search along a coordinate. gamma_t = sum_i D_t(i) y_i h_t(x_i) is its edge, D_t the weights exp(-y f) scaled to
sum to one.
""",
    assumptions="Exponential loss, one source, one coordinate a round, and no step that is cut off.",
    statement="""
F(alpha_T) <= prod over t of sqrt(1 - gamma_t^2), an equality for h in {-1, +1}; and
F(alpha_T) <= exp(-T gamma^2/2) if all edges are at least gamma in size (weak learning).
""",
    source="Freund, Schapire 1997; Schapire, Singer 1999.",
    differs="Edges of either sign count: a step back is a step along -h.",
    meaning="""
Edges are read off the margins before and after a round, not off what the method says. Runs with a step that was cut
off are refused; steps back that end at 0 promise nothing.
""",
    proof="""
With u_i = y_i h(x_i) and γ = Σ_i D_i u_i: by convexity of exp on [-1, 1], e^{-ηu} ≤ ((1+u)/2)e^{-η} + ((1-u)/2)e^{η},
so F(α + ηe)/F(α) = Σ D_i e^{-ηu_i} ≤ ((1+γ)/2)e^{-η} + ((1-γ)/2)e^{η}, which at η = ½ log((1+γ)/(1-γ)) is √(1-γ²).
Exact line search does no worse. For u ∈ {-1, 1} all steps are equalities. F(0) = 1. ∎

The exponential form: √(1-x) ≤ e^{-x/2}.
""",
    loose="""
An equality for stumps. The exponential form takes the least edge in size for all: 1.9 and 4 times the loss after 30
rounds. A product smaller by a millionth and γ doubled are found (`tests/boosting/test_verify_boosting.py`).
""",
)


def adaboost(edge: Any) -> Bound:
    """Return prod sqrt(1 - gamma_t^2), which bounds the exponential loss of one source after exact line searches.

    Parameters
    ----------
    edge : array (T,)
        gamma_t = sum_i D_t(i) y_i Q(x_i) h_t(x_i) in [-1, 1].

    Raises
    ------
    ValueError, TypeError
        If an edge is not in [-1, 1].

    Examples
    --------
    >>> from fedconvex.families.boosting.theorems.adaboost import adaboost
    >>> round(adaboost([0.6, 0.8]).value, 12)
    0.48
    """
    g = np.atleast_1d(numeric("adaboost: edge", edge))
    finite("adaboost: edge", g)
    if np.abs(g).max(initial=0.0) > 1.0 + 1e-12:
        raise bad("adaboost: edge", "lie in [-1, 1]", f"{g[np.argmax(np.abs(g))]:g}")
    product = float(np.prod(np.sqrt(np.maximum(1.0 - g**2, 0.0))))
    return Bound({"product": product}, ENSEMBLE_LOSS, f"{SOURCE}, product of the rounds")


def adaboost_weak(gamma: float, *, rounds: int) -> Bound:
    """Return exp(-T gamma^2/2) for edges of at least gamma.

    Parameters
    ----------
    gamma : float
        In (0, 1].
    rounds : int
        T.

    Raises
    ------
    AssumptionError
        If gamma = 0: some round found no edge.

    Examples
    --------
    >>> from fedconvex.families.boosting.theorems.adaboost import adaboost_weak
    >>> round(adaboost_weak(0.5, rounds=8).value, 6)
    0.367879
    """
    g, T = real("adaboost_weak: gamma", gamma, low=0.0, high=1.0), whole("adaboost_weak: rounds", rounds)
    weak = require(SOURCE, Hypothesis("edges of at least gamma > 0", f"gamma = {g:.4g}", g > 0.0))
    value = math.exp(-0.5 * T * g * g)
    return Bound({"exponential": value}, ENSEMBLE_LOSS, f"{SOURCE}, weak learning", weak)


# ---------------------------------------------------------------- read off a setting


def _edges(s: Setting) -> tuple[np.ndarray, tuple[Hypothesis, ...]]:
    """Return gamma_t of every round, and what was checked. Steps back that end at 0 promise nothing."""
    p, name, checked = problem_of(s), SOURCE, boosts(s)
    checked += require(
        name,
        Hypothesis("one source", f"{p.p} sources", p.p == 1),
        Hypothesis("one vertex", f"{len(p.vertices)} vertices", len(p.vertices) == 1),
        Hypothesis("exponential loss", f"{p.loss!r}", p.loss == Exponential()),
        one_by_one(s),
        Hypothesis("a start at alpha = 0", f"largest entry {s.start.max(initial=0.0):g}", not s.start.any()),
    )
    path = path_of(s, s.rounds)
    most = f"largest step {np.abs(path.steps).max():.4g}, max_step={s.method.max_step:g}"
    checked += require(name, Hypothesis("no step that is cut off", most, not path.capped.any()))
    gamma = np.zeros(s.rounds)
    for t in np.flatnonzero((np.abs(path.steps) > SMALL) & ~path.cut):
        D = p.losses_of(path.margins[t])[1]
        gamma[t] = D @ (path.margins[t + 1] - path.margins[t]) / (path.steps[t] * D.sum())
    return np.clip(gamma, -1.0, 1.0), checked


def _read(s: Setting) -> Reading:
    gamma, checked = _edges(s)
    return Reading({"edge": gamma}, checked)


def _read_weak(s: Setting) -> Reading:
    gamma, checked = _edges(s)
    return Reading({"gamma": float(np.abs(gamma).min()), "rounds": s.rounds}, checked)


_ABOUT: dict[str, Any] = {
    "quantity": ENSEMBLE_LOSS,
    "exact": along(loss_after),
    "kind": BoostingProblem,
    "constants": boosting_constants,
    "statement": STATEMENT,
    "method": line_search(),
    "rounds": 30,
    "adapt": as_one_source,
    "space": sources_space(as_one_source, smoothed=False),
}

THEOREMS = (
    Theorem(
        name="adaboost",
        title="AdaBoost, product of the rounds",
        bound=adaboost,
        read=_read,
        says="AdaBoost's exponential loss is at most the product of (1 - gamma_t²)^(1/2) over the rounds.",
        loose="An equality for classifiers that answer -1 or +1.",
        checks=(one_source, breast_cancer_one_source, two_sources),  # the last has two sources
        **_ABOUT,
    ),
    Theorem(
        name="adaboost-weak",
        title="AdaBoost, exponential rate (weak learning)",
        bound=adaboost_weak,
        read=_read_weak,
        says="If every round finds an edge of at least gamma the loss is at most exp(-T gamma²/2).",
        loose="The least edge of all rounds stands for all of them, and edges shrink; nearly attained by one round.",
        checks=(one_source, breast_cancer_one_source, Check(one_source, rounds=1)),  # the last: one edge, the least
        **_ABOUT,
    ),
)
