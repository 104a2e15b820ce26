"""Plans: what is checked of every theorem, in which settings.

To add a theorem of `fedconvex.theorems` write its `Plan`: what it says, where it is loose, its way, its rounds and the
worlds it is checked in. Checks beyond those go into `EXTRA`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from fedconvex.methods import (
    AFL,
)
from fedconvex.methods.afl import WeightedSampling
from fedconvex.problems import Problem
from fedconvex.simplex.uncertainty import EntropicStep, Point
from fedconvex.theorems.agnostic import Classifiers
from fedconvex.theorems.parts.domains import (
    breast_cancer_domains,
    breast_cancer_two_features,
    diabetes_ages,
    one_row,
    plane_domains,
    three_domains,
    three_small_domains,
    twenty_coin_domains,
    two_coin_domains,
)
from fedconvex.theorems.parts.instances import (
    breast_cancer,
)
from fedconvex.theorems.parts.rules import (
    fixed_step,
    only_the_start,
    saddle_steps,
    samples_of_domains,
)
from fedconvex.theorems.parts.theorem import Check, Instance, MethodRule, Theorem

__all__ = ["EXTRA", "PLANS", "Plan", "planned"]


class Plan(NamedTuple):
    """How a theorem is checked."""

    says: str
    loose: str
    way: MethodRule
    rounds: int
    worlds: tuple[Instance, ...]
    drift: float = 0.0  # E‖q_i‖^2 of a minimiser that moves
    start: float = 0.0  # every entry of the model at the start
    adapt: Callable[[Problem], Problem] | None = None  # what a problem with one model for all clients is turned into


_AFL_LOOSE = (
    "Two thirds of the bound are attained by a linear function after one step, a third in the long run; problems whose "
    "gradients are smaller than their largest, as all others, are 20 to 70 times better."
)

PLANS: Mapping[str, Plan] = {
    "agnostic-rate": Plan(
        "Stochastic AFL with the published steps: the duality gap of the averages falls like 1/T^(1/2).",
        _AFL_LOOSE,
        saddle_steps(published=True, batch_size=4),
        50,
        (three_domains, breast_cancer_domains, breast_cancer),
    ),
    "agnostic-rate-any-steps": Plan(
        "The same for constant steps of any size, with the distances from the start and losses up to a constant.",
        "Attained by a linear function after one step from the end of the ball; elsewhere 5 to 20 times.",
        saddle_steps(batch_size=4),
        50,
        (three_domains, breast_cancer_domains, breast_cancer),
    ),
    "agnostic-rate-entropic": Plan(
        "Entropic steps of the mixture pay log p in the place of the number of domains.",
        "The largest losses on the ball count, and noise by its range: 4 to 20 times.",
        saddle_steps(ascent=EntropicStep()),
        50,
        (three_domains, breast_cancer_domains, breast_cancer),
    ),
    "agnostic-cover": Plan(
        "The agnostic bound of generalisation: true losses of all mixtures exceed empirical ones by little.",
        "A union bound over the whole cover, and eps; contraction for a ball of models: 2 to 11 times the quantile.",
        samples_of_domains(sizes=4),
        5,
        (three_small_domains, diabetes_ages),
    ),
    "agnostic-vc": Plan(
        "The same for the errors of all linear classifiers, by their VC dimension.",
        "The VC dimension knows nothing of the rows: 9 times the quantile.",
        samples_of_domains(Classifiers(), sizes=10),
        10,
        (plane_domains, breast_cancer_two_features),
    ),
    "agnostic-vertices": Plan(
        "The simplex needs no cover: a union bound over the domains, each with its own complexity and rows.",
        "For a single model only the deviation is left, 1.5 times the quantile; complexities cost factors of 4 to 7.",
        samples_of_domains(sizes=4),
        5,
        (three_small_domains, diabetes_ages),
    ),
}  # fmt: skip


def _check(
    theorem: str,
    instance: Instance,
    method: MethodRule | None = None,
    rounds: int | None = None,
    start: float | None = None,
) -> Check:
    return Check(instance, method, rounds, start, theorem)


EXTRA: tuple[Check, ...] = (
    # several domains: full gradients, drawn domains, the instance that attains the rate, other classes, other counts
    _check("agnostic-rate", three_domains, saddle_steps(published=True)),
    _check("agnostic-rate", three_domains, saddle_steps(published=True, batch_size=4, sampling=WeightedSampling(1))),
    _check("agnostic-rate", one_row, saddle_steps(published=True), 1, -1.0),
    _check("agnostic-rate-any-steps", three_domains, saddle_steps()),
    _check("agnostic-rate-any-steps", one_row, saddle_steps(), 1, -1.0),
    _check("agnostic-rate-entropic", three_domains, saddle_steps(ascent=EntropicStep(), batch_size=4)),
    _check("agnostic-cover", two_coin_domains, samples_of_domains(only_the_start), 5, 1.0),
    _check(
        "agnostic-cover",
        three_domains,
        samples_of_domains(only_the_start, uncertainty_set=Point([0.5, 0.3, 0.2])),
        2,
        1.0,
    ),
    _check("agnostic-vertices", two_coin_domains, samples_of_domains(only_the_start), 5, 1.0),
    _check("agnostic-vertices", twenty_coin_domains, samples_of_domains(only_the_start, delta=0.3), 5, 1.0),
    _check("agnostic-vertices", plane_domains, samples_of_domains(Classifiers()), 10),
    # hypotheses that fail, named with their numbers
    _check("agnostic-rate", three_domains, fixed_step(2.0, AFL, domain_step_size=0.1, radius=1.0)),
    _check("agnostic-rate", three_domains, saddle_steps(published=True, ascent=EntropicStep())),
    _check("agnostic-rate", three_domains, fixed_step(0.25, AFL, domain_step_size=0.1)),
    _check("agnostic-vc", three_small_domains),
    # hypotheses that fail
)


def planned(theorem: Theorem) -> Theorem:
    """Return a theorem with the checks that stand here."""
    if theorem.name not in PLANS or theorem.method is not None:
        return theorem
    p = PLANS[theorem.name]
    extra = tuple(c for c in EXTRA if c.theorem == theorem.name)
    return theorem._replace(
        says=p.says,
        loose=p.loose,
        method=p.way,
        rounds=p.rounds,
        checks=p.worlds + extra,
        drift=p.drift,
        start=p.start,
        adapt=p.adapt,
    )
