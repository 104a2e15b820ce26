"""What the rates of AFL read off it: the constants of its game, and the steps that they ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedconvex._check import flag, instance
from fedconvex.methods import AFL
from fedconvex.problems import Problem
from fedconvex.simplex.ascent import EntropicStep
from fedconvex.theory.saddle_constants import (
    AgnosticConstants,
    AgnosticSteps,
    agnostic_best_steps,
    agnostic_constants,
    agnostic_steps,
)


def afl_constants(problem: Problem, method: Any, start: Any = None) -> AgnosticConstants:
    """Return `agnostic_constants` of an AFL with a radius.

    Parameters
    ----------
    problem : Problem
        With domains; its clients where there are none.
    method : AFL
        With a radius; its mini-batches and sampling count.
    start : array, optional
        w_0; default zero.

    Raises
    ------
    TypeError
        If method is no `AFL`.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.methods import AFL
    >>> from fedconvex.theorems.agnostic_rate import afl_constants
    >>> problem = Problem(Federation.from_arrays([[1.0], [2.0]], [0.0, 1.0], [0, 1]), Squared())
    >>> afl_constants(problem, AFL(step_size=0.1, domain_step_size=0.1, radius=1.0)).G_w
    6.0
    """
    instance("afl_constants: method", method, AFL)
    m = method
    drawn = m.sampling.draws if hasattr(m.sampling, "draws") else None
    return agnostic_constants(
        problem,
        radius=m.radius,
        uncertainty_set=m.uncertainty_set,
        start=start,
        batch_size=m.batch_size,
        replacement=m.replacement,
        draws=drawn,
    )


def with_steps(method: Any, problem: Problem, *, rounds: int, start: Any = None, published: bool = False) -> Any:
    """Return an AFL with the steps of the published rate, or with those at which the bound for any steps is least.

    Parameters
    ----------
    method, problem, start
        As for `afl_constants`.
    rounds : int
        T, which the steps are for.
    published : bool
        Whether they are 2R/(T (sigma^2 + G^2))^(1/2).

    Raises
    ------
    TypeError
        If published is neither True nor False.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.methods import AFL
    >>> from fedconvex.theorems.agnostic_rate import with_steps
    >>> problem = Problem(Federation.from_arrays([[1.0], [2.0]], [0.0, 1.0], [0, 1]), Squared())
    >>> method = AFL(step_size=1.0, domain_step_size=1.0, radius=1.0)
    >>> round(with_steps(method, problem, rounds=4, published=True).step_size, 4)  # 2R/(G T^(1/2))
    0.1667
    """
    flag("with_steps: published", published)
    c = afl_constants(problem, method, start)
    steps = (
        published_steps(c, rounds)
        if published
        else agnostic_best_steps(c, rounds=rounds, entropic=isinstance(method.ascent, EntropicStep))
    )
    return replace(method, **steps._asdict())


def published_steps(c: AgnosticConstants, rounds: int) -> AgnosticSteps:
    """Return the steps of the published rate; a player with one choice counts as one with R = 1."""
    return agnostic_steps(rounds=rounds, **(c.of_theorem() | {"R_lambda": c.R_lambda or 1.0}))
