"""Plans: what is checked of every theorem, in which settings.

To add a theorem of `fedconvex.theorems` write its `Plan`: what it says, where it is loose, its way, its rounds and the
worlds it is checked in. Checks beyond those go into `EXTRA`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedconvex._check import bad
from fedconvex.methods import (
    AFL,
    SCAFFOLD,
    AgnosticFedAvg,
    ApproxFedAvg,
    Clock,
    CoCoA,
    FedSAM,
    OptimisticAFL,
    ProportionalSampling,
    SoftmaxFedAvg,
    UniformSampling,
)
from fedconvex.methods.afl import WeightedSampling
from fedconvex.problems import Problem
from fedconvex.simplex.uncertainty import EntropicStep, Point
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.agnostic import Classifiers
from fedconvex.theorems.parts.instances import (
    World,
    ages,
    alike,
    as_list,
    as_one_source,
    as_stumps,
    as_tasks,
    blends,
    cancer,
    cards,
    coasts,
    copies,
    decorrelated,
    departments,
    diabetes,
    duel,
    equal,
    hospitals,
    instance,
    line,
    lopsided,
    opposed,
    pair,
    parallel,
    plane,
    quarrel,
    relatives,
    rivals,
    shelf,
    shifted,
    sizes,
    spread,
    stages,
    texture,
    trio,
    tumours,
    twins,
    units,
    urns,
    valleys,
    village,
    wards,
    wide,
)
from fedconvex.theorems.parts.rules import (
    Way,
    agents,
    boosted,
    decaying,
    dual,
    epochs,
    few,
    fixed,
    game,
    hedged,
    least,
    proximal,
    sampled,
    start_alone,
    tuned,
)

__all__ = ["EXTRA", "PLANS", "Check", "Plan", "checks"]


class Plan(NamedTuple):
    """How a theorem is checked."""

    says: str
    loose: str
    way: Way
    rounds: int
    worlds: tuple[World, ...]
    drift: float = 0.0  # E‖q_i‖^2 of a minimiser that moves
    start: float = 0.0  # every entry of the model at the start
    adapt: Callable[[Problem], Problem] | None = None  # what a problem with one model for all clients is turned into


_R1_LOOSE = (
    "The start term is sharp to a factor that tends to 1; a factor of at most 3.5 remains in the drift, 2 in the noise."
)
_R2_LOOSE = "1/(1 - r) and the factors 2 and 4 of Young's inequality; steps are of order 1/(L tau)."
_AFL_LOOSE = (
    "Two thirds of the bound are attained by a linear function after one step, a third in the long run; problems whose "
    "gradients are smaller than their largest, as all others, are 20 to 70 times better."
)
_SOFT = {"mu": 20.0, "local_steps": 1}
_MSD_SAYS = (
    "The tracking error has a floor from noise that grows with the step, and a lag from drift that shrinks with it"
)

PLANS: Mapping[str, Plan] = {
    "fedavg-convex": Plan(
        "The average suboptimality of local SGD falls like 1/(tau T), up to noise and two prices of local steps.",
        "The factor 18 of the heterogeneity drift is more than 40 times too large, and it is there even for tau = 1.",
        fixed(0.25, local_steps=3, batch_size=4),
        20,
        (shifted, alike, cancer),
    ),
    "fedavg-convex-tuned": Plan(
        "With the step (16) the four terms balance: the price of heterogeneity falls like T^(-2/3).",
        "As (15), and its constants are rounded up; (16) is far smaller than the best step.",
        tuned(local_steps=3, batch_size=4),
        20,
        (shifted, cancer),
    ),
    "fedavg-refined": Plan(
        "As (15) with constants that are proved to be smaller, for every step below 1/L and any weights.",
        _R1_LOOSE,
        fixed(0.5, local_steps=3, batch_size=4),
        20,
        (shifted, lopsided, cancer, hospitals),
    ),
    "fedavg-refined-sharp": Plan(
        "R1 without Young's inequality: half the noise, a smaller drift, steps up to 1/L.",
        _R1_LOOSE,
        fixed(0.5, local_steps=3, batch_size=4),
        20,
        (shifted, lopsided, cancer, hospitals),
    ),
    "fedavg-at-optimum": Plan(
        "Heterogeneity and noise count at the optimum only: least squares with unequal Hessians and mini-batches.",
        _R2_LOOSE,
        least(local_steps=3, batch_size=4),
        50,
        (spread, shifted, diabetes, cancer),
    ),
    "fedavg-at-optimum-sharp": Plan(
        "R2 without Young's inequality.",
        _R2_LOOSE,
        least(local_steps=3, batch_size=4),
        50,
        (spread, shifted, diabetes, cancer),
    ),
    "fedavg-strongly-convex": Plan(
        "With steps that decay like 1/t the last model converges like 1/t, also if clients are sampled.",
        "3 to 7 orders of magnitude with local steps, mostly by 8(E-1)²G²; a factor 3 in noise alone.",
        decaying(local_steps=3, batch_size=4),
        30,
        (spread, shifted, diabetes),
    ),
    "dynamic-gradient-noise": Plan(
        "The noise of an iteration is at most beta_s²‖error‖² plus what mini-batches and absent agents cause at w*.",
        "Factors 6 and 3 where 2 suffice, and delta² = (largest row norm)⁴.",
        agents(),
        1,
        (spread, diabetes),
        start=0.5,
    ),
    "dynamic-gradient-noise-sharp": Plan(
        "The same lemma with factors 2 and 2.",
        "A factor 2 of Young's inequality, and delta² = (largest row norm)⁴.",
        agents(),
        1,
        (spread, diabetes),
        start=0.5,
    ),
    "dynamic-incremental-noise": Plan(
        "Taking gradients at local iterates costs an error of order mu² only.",
        "As below, and delta instead of the gradients at w.",
        agents(),
        1,
        (spread, diabetes),
        start=0.5,
    ),
    "dynamic-incremental-noise-at": Plan(
        "The same with the clients' gradients and variances at w_{i-1}.",
        "Attained by one agent with full batches as mu tends to 0.",
        agents(),
        1,
        (spread, diabetes),
        start=0.5,
    ),
    "dynamic-msd-paper": Plan(
        f"{_MSD_SAYS}; with delta².", "Vacuous at common settings: delta² = (largest row norm)⁴.", agents(True), 40,
        (spread, diabetes), drift=1e-4,
    ),
    "dynamic-msd-refined": Plan(
        f"{_MSD_SAYS}; with expected smoothness.",
        "Within 1.6 where drift dominates, 5 to 7 in noise, looser with several local steps.",
        agents(True),
        40,
        (spread, diabetes),
        drift=1e-4,
    ),
    "dynamic-steady-state-paper": Plan(
        f"{_MSD_SAYS}: the limit, with delta².", "Vacuous at common settings: delta² = (largest row norm)⁴.",
        agents(True), 40, (spread, diabetes), drift=1e-4,
    ),
    "dynamic-steady-state-refined": Plan(
        f"{_MSD_SAYS}: the limit, with expected smoothness.",
        "Within 1.6 where drift dominates, 5 to 7 in noise, looser with several local steps.",
        agents(True),
        40,
        (spread, diabetes),
        drift=1e-4,
    ),
    "weight-divergence-convex": Plan(
        "FedAvg leaves gradient descent as far as clients' gradients differ along its path; convex problems forget.",
        "The triangle inequality over clients: gaps of opposite sign do not cancel. 14 to 25 times at step 1/L.",
        fixed(1.0, local_steps=5),
        10,
        (shifted, copies, cancer, diabetes),
    ),
    "weight-divergence-zhao": Plan(
        "The same by the distance of label distributions, for clients that share the class conditionals.",
        "It grows exponentially with local steps and rounds; the convex form never does.",
        fixed(1.0, local_steps=3),
        5,
        (copies, wards),
    ),
    "scaffold": Plan(
        "Control variates remove the drift: the weighted average is free of heterogeneity, for steps of order 1/(81L).",
        "Mostly in the steps, 1/81 where 1 works; a factor 2 in the start, 35 in the controls, 96 in the noise.",
        least(SCAFFOLD, local_steps=3, batch_size=4, scheme=UniformSampling),
        30,
        (shifted, cancer),
    ),
    "fedprox": Plan(
        "One round with exact or inexact proximal solutions decreases F by rho‖grad F‖², for K sampled clients.",
        "Terms of the sampling that are not needed; with many clients and equal parabolas it is sharp.",
        proximal(scheme=few),
        1,
        (alike, cancer),
    ),
    "fedprox-sharp": Plan(
        "The same without any term for the sampling.",
        "An equality for equal parabolas; elsewhere two steps take the worst curvature of different clients at once.",
        proximal(scheme=few),
        1,
        (alike, spread, cancer, diabetes),
    ),
    "fedprox-convex": Plan(
        "The same with the convexity of every client, for smaller proximal weights.",
        "An equality for equal parabolas; elsewhere two steps take the worst curvature of different clients at once.",
        proximal(),
        1,
        (alike, spread, cancer, diabetes),
    ),
    "fedsam": Plan(
        "Perturbed gradients of radius rho cost a floor of L rho²/2 and a little more drift.",
        "The floor is attained in the limit of small steps; up to 0.7 of the bound was seen elsewhere.",
        least(FedSAM, local_steps=3, rho=0.05),
        20,
        (parallel, shifted, cancer, decorrelated),
    ),
    "fedsam-at-optimum": Plan(
        "The same with heterogeneity at the optimum only, hence for unequal Hessians.",
        "The factors of Young's inequality, and steps of order 1/(L tau).",
        least(FedSAM, local_steps=3, rho=0.05),
        20,
        (spread, shifted, cancer, diabetes),
    ),
    "svrg": Plan(
        "Each epoch on single rows shrinks the gap by a constant factor, if it is of order L_s/mu steps long.",
        "The largest share of the bound that was ever seen is 0.5; long epochs are 4 to 9 times better than it says.",
        epochs(),
        1,
        (spread, alike, wards),
    ),
    "hedging": Plan(
        "Consensus ADMM shrinks the distance by kappa^(1/2)/(1 + kappa^(1/2)) a round, however the clients differ.",
        "The factor is attained; a single run may be faster, and the model is nearer than models and multipliers.",
        hedged(),
        20,
        (spread, shifted, cancer, diabetes),
    ),
    "fedavg-bias": Plan(
        "The limit of FedAvg on least squares is off the optimum by at most a multiple of step, steps and spread.",
        "Attained by two parabolas; 15 to 20 times on random federations.",
        fixed(0.25, local_steps=5),
        1,
        (spread, diabetes),
    ),
    "fedavg-limit": Plan(
        "The limit of FedAvg on least squares is near the average of the clients' own minimisers.",
        "It compares pairs of clients where the distance from the mean counts: a factor 2 at best.",
        fixed(0.25, local_steps=5),
        1,
        (spread, diabetes),
    ),
    "mocha-smooth": Plan(
        "For smooth losses the dual suboptimality shrinks by 1 - (1 - Theta) s a round, however unequal nodes work.",
        "A factor of 2 in the rate at best (one row per task); Theta is the largest measured, typical rounds beat it.",
        dual(epochs=2.0, sigma="pencil"),
        4,
        (twins, relatives, departments),
        adapt=as_tasks,
    ),
    "mocha-gap": Plan(
        "The duality gap is at most 1/s times the dual suboptimality, hence shrinks as fast.",
        "As Theorem 1, and the gap is rarely 1/s times the suboptimality.",
        dual(epochs=2.0, sigma="pencil"),
        4,
        (twins, relatives, departments),
        adapt=as_tasks,
    ),
    "mocha-lipschitz": Plan(
        "For Lipschitz losses the dual suboptimality falls by halves down to 2C, then like 4C/h.",
        "A factor of 2 in the first round at best; once coordinates stop moving it goes on like 1/h, runs do not.",
        dual(epochs=2.0, sigma="pencil"),
        4,
        (opposed, rivals, units, wide),
        adapt=as_tasks,
    ),
    "mocha-sigma": Plan(
        "No move of the nodes makes their common term larger than sigma' times the sum of their own.",
        "The pencil's sigma' is the least; the eigenvalue's ignores which moves rows allow, the others are cruder.",
        dual(sigma="pencil"),
        1,
        (relatives, wide, departments),
        adapt=as_tasks,
    ),
    "boosting-descent": Plan(
        "Exact line search never raises the worst source's loss.",
        "At a kink no coordinate lowers it, and the increase is 0.",
        boosted(),
        30,
        (coasts, valleys, sizes),
        adapt=as_stumps,
    ),
    "boosting-progress": Plan(
        "Every smoothed round along the steepest coordinate lowers F_mu by at least g²/(2L), L = F_mu + mu F_mu².",
        "L is for |Q h| = 1: with one source nine tenths of the progress are promised, with Q < 1 a tenth and less.",
        boosted(smoothing=1.0),
        30,
        (coasts, valleys, sizes),
        adapt=as_stumps,
    ),
    "boosting-smoothing": Plan(
        "The smoothed maximum exceeds the maximum by at most log(p)/mu.",
        "Attained where all sources have the same loss, as at the start.",
        boosted(smoothing=20.0),
        30,
        (coasts, valleys, sizes),
        adapt=as_stumps,
    ),
    "boosting-gradient": Plan(
        "Weighted errors are derivatives: a step h along a coordinate changes F_k by h dF_k up to h²/2 times its bend.",
        "Attained up to e^h for classifiers without doubt (Q = 1); else by squares of Q h.",
        boosted(smoothing=20.0),
        10,
        (coasts, sizes),
        adapt=as_list,
    ),
    "agnostic-rate": Plan(
        "Stochastic AFL with the published steps: the duality gap of the averages falls like 1/T^(1/2).",
        _AFL_LOOSE,
        game(published=True, batch_size=4),
        50,
        (blends, stages, cancer),
    ),
    "agnostic-rate-any-steps": Plan(
        "The same for constant steps of any size, with the distances from the start and losses up to a constant.",
        "Attained by a linear function after one step from the end of the ball; elsewhere 5 to 20 times.",
        game(batch_size=4),
        50,
        (blends, stages, cancer),
    ),
    "agnostic-rate-entropic": Plan(
        "Entropic steps of the mixture pay log p in the place of the number of domains.",
        "The largest losses on the ball count, and noise by its range: 4 to 20 times.",
        game(ascent=EntropicStep()),
        50,
        (blends, stages, cancer),
    ),
    "agnostic-cover": Plan(
        "The agnostic bound of generalisation: true losses of all mixtures exceed empirical ones by little.",
        "A union bound over the whole cover, and eps; contraction for a ball of models: 2 to 11 times the quantile.",
        sampled(sizes=4),
        5,
        (cards, ages),
    ),
    "agnostic-vc": Plan(
        "The same for the errors of all linear classifiers, by their VC dimension.",
        "The VC dimension knows nothing of the rows: 9 times the quantile.",
        sampled(Classifiers(), sizes=10),
        10,
        (plane, texture),
    ),
    "agnostic-vertices": Plan(
        "The simplex needs no cover: a union bound over the domains, each with its own complexity and rows.",
        "For a single model only the deviation is left, 1.5 times the quantile; complexities cost factors of 4 to 7.",
        sampled(sizes=4),
        5,
        (cards, ages),
    ),
    "agnostic-floats": Plan(
        "Agnostic methods send 2c|W| numbers a round as FedAvg does, and a few for every domain.",
        "An equation.",
        fixed(0.25, AgnosticFedAvg, domain_step_size=0.1, local_steps=3),
        2,
        (blends, stages),
    ),
    "agnostic-softmax": Plan(
        "The softmax objective lies between the worst domain's loss and log(p)/mu above it, at every model of a run.",
        "Both ends are attained: equal losses, and one loss far above the others.",
        fixed(0.1, SoftmaxFedAvg, **_SOFT),
        20,
        (blends, instance, stages),
    ),
    "agnostic-softmax-optimum": Plan(
        "The softmax optimum misses the agnostic one by at most log(p)/mu.",
        "An eighth to a third of it was seen, and nothing where one domain is the worst everywhere.",
        fixed(0.1, SoftmaxFedAvg, **_SOFT),
        1,
        (blends, instance, stages),
    ),
    "adaboost": Plan(
        "AdaBoost's exponential loss is at most the product of (1 - gamma_t²)^(1/2) over the rounds.",
        "An equality for classifiers that answer -1 or +1.",
        boosted(),
        30,
        (village, tumours),
        adapt=as_one_source,
    ),
    "adaboost-weak": Plan(
        "If every round finds an edge of at least gamma the loss is at most exp(-T gamma²/2).",
        "The least edge of all rounds stands for all of them, and edges shrink.",
        boosted(),
        30,
        (village, tumours),
        adapt=as_one_source,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Check:
    """A theorem in a setting; what is None is taken from its plan.

    Attributes
    ----------
    theorem : str
    world : World
    way : Way or None
    rounds : int or None
    start : float or None
        Every entry of the model at the start.
    """

    theorem: str
    world: World
    way: Way | None = None
    rounds: int | None = None
    start: float | None = None


_FULL = ("fedavg-convex", "fedavg-refined", "fedavg-refined-sharp")
_BEST = ("fedavg-at-optimum", "fedavg-at-optimum-sharp")

EXTRA: tuple[Check, ...] = (
    # exact worst cases are within reach: (M, tau, T) = (2, 2, 1..3), (3, 2, 1..2), (2, 3, 2), and equal clients
    *(Check(name, duel, fixed(0.25, local_steps=2), T) for name in _FULL for T in (1, 3)),
    *(Check(name, quarrel, fixed(0.25, local_steps=3), 2) for name in _FULL),
    *(Check(name, trio, fixed(0.25, local_steps=2), 2) for name in _FULL),
    *(Check(name, pair, fixed(0.25, local_steps=2), 3) for name in _FULL),
    *(Check(name, equal, fixed(0.25, local_steps=2), 10) for name in _FULL),
    *(Check(name, parallel, fixed(0.25, local_steps=5), 20) for name in _FULL),
    *(Check(name, decorrelated, fixed(0.25, local_steps=5), 20) for name in _FULL),
    Check("fedavg-convex-tuned", duel, tuned(local_steps=2), 3),
    Check("fedavg-convex-tuned", pair, tuned(local_steps=2), 3),
    Check("fedavg-convex-tuned", decorrelated, tuned(local_steps=5), 20),
    *(Check(name, world, least(local_steps=2), 3) for name in _BEST for world in (duel, pair)),
    *(Check(name, quarrel, least(local_steps=3), 2) for name in _BEST),
    *(
        Check("fedavg-strongly-convex", world, decaying(local_steps=3, batch_size=4, scheme=scheme))
        for world in (spread, diabetes)
        for scheme in (ProportionalSampling, UniformSampling)
    ),
    *(
        Check(name, world, agents(best="msd" in name or "steady" in name, local_steps=1, batch_size=None))
        for name, world in (("dynamic-gradient-noise-sharp", diabetes), ("dynamic-msd-refined", spread))
    ),
    *(Check("scaffold", world, least(SCAFFOLD, local_steps=3)) for world in (spread, diabetes)),
    Check("hedging", spread, hedged(participation=0.5)),
    # several domains: full gradients, drawn domains, the instance that attains the rate, other classes, other counts
    Check("agnostic-rate", blends, game(published=True)),
    Check("agnostic-rate", blends, game(published=True, batch_size=4, sampling=WeightedSampling(1))),
    Check("agnostic-rate", line, game(published=True), 1, -1.0),
    Check("agnostic-rate-any-steps", blends, game()),
    Check("agnostic-rate-any-steps", line, game(), 1, -1.0),
    Check("agnostic-rate-entropic", blends, game(ascent=EntropicStep(), batch_size=4)),
    Check("agnostic-cover", urns, sampled(start_alone), 5, 1.0),
    Check("agnostic-cover", blends, sampled(start_alone, uncertainty_set=Point([0.5, 0.3, 0.2])), 2, 1.0),
    Check("agnostic-vertices", urns, sampled(start_alone), 5, 1.0),
    Check("agnostic-vertices", shelf, sampled(start_alone, delta=0.3), 5, 1.0),
    Check("agnostic-vertices", plane, sampled(Classifiers()), 10),
    Check("agnostic-softmax", blends, fixed(0.1, SoftmaxFedAvg, mu=100.0), start=1.0),
    *(
        Check("agnostic-floats", world, way)
        for world in (blends, stages)
        for way in (
            fixed(0.25, local_steps=3, scheme=UniformSampling),
            fixed(0.25, AFL, domain_step_size=0.1),
            fixed(0.25, OptimisticAFL, domain_step_size=0.1),
            fixed(0.25, ApproxFedAvg, mu=20.0, local_steps=3),
            fixed(0.25, SoftmaxFedAvg, mu=20.0, local_steps=3, scheme=UniformSampling),
        )
    ),
    # hypotheses that fail, named with their numbers
    Check("fedavg-convex", diabetes, fixed(0.25, local_steps=3)),
    Check("fedavg-convex", shifted, fixed(1.0, local_steps=3)),
    Check("fedavg-convex", hospitals),
    Check("fedavg-convex-tuned", shifted, fixed(0.25, local_steps=3)),
    Check("fedavg-refined", shifted, fixed(0.5, local_steps=3, scheme=UniformSampling)),
    Check("fedavg-at-optimum", spread, fixed(1.0, local_steps=10)),
    Check("fedavg-strongly-convex", spread, fixed(0.25, local_steps=3)),
    Check("dynamic-msd-refined", cancer),
    Check("weight-divergence-convex", shifted, fixed(1.0, local_steps=5, batch_size=4)),
    Check("weight-divergence-zhao", cancer),
    Check("weight-divergence-zhao", diabetes),
    Check("scaffold", spread, fixed(1.0, SCAFFOLD, local_steps=3)),
    Check("fedprox", alike, proximal()),
    Check("fedsam", shifted, fixed(0.25, FedSAM, local_steps=3, batch_size=4)),
    Check("svrg", diabetes, fixed(0.25)),
    Check("fedavg-bias", shifted),
    Check("agnostic-rate", blends, fixed(2.0, AFL, domain_step_size=0.1, radius=1.0)),
    Check("agnostic-rate", blends, game(published=True, ascent=EntropicStep())),
    Check("agnostic-rate", blends, fixed(0.25, AFL, domain_step_size=0.1)),
    Check("agnostic-vc", cards),
    Check("agnostic-floats", blends, fixed(0.25, AFL, domain_step_size=0.1, sampling=WeightedSampling(1))),
    # related tasks: clocks, dropped nodes, accuracies that are asked for, four rules for sigma'
    *(
        Check(name, world, dual(epochs=5.0, drop=0.3, clock=Clock(0.3), sigma="pencil"))
        for name, world in (("mocha-smooth", relatives), ("mocha-gap", departments), ("mocha-lipschitz", rivals))
    ),
    Check("mocha-smooth", departments, dual(CoCoA, theta=0.3)),
    Check("mocha-smooth", twins, dual(epochs=2.0, drop=0.3, sigma="pencil")),
    *(Check("mocha-sigma", wide, dual(sigma=rule)) for rule in ("eigenvalue", "rows", "tasks")),
    *(Check("boosting-progress", world, boosted(smoothing=20.0)) for world in (coasts, sizes)),
    Check("boosting-progress", tumours, boosted()),
    # hypotheses that fail
    Check("mocha-smooth", relatives, dual(sigma=1.0)),
    Check("mocha-smooth", rivals),
    Check("mocha-lipschitz", twins),
    Check("mocha-sigma", wide, dual(sigma=1.0)),
    Check("mocha-smooth", cancer, fixed(0.25)),
    Check("fedavg-convex", relatives),
    Check("boosting-smoothing", coasts, boosted()),
    Check("boosting-gradient", valleys),
    Check("adaboost", coasts),
)


def checks(theorems: Sequence[str] | None = None, world: World | None = None) -> list[Check]:
    """Return the suite in the order of `THEOREMS`, or the planned check of every theorem in a world of your own.

    Parameters
    ----------
    theorems : sequence of str, optional
        Default all that have a plan.
    world : World, optional
        `own` makes it from a problem.

    Raises
    ------
    ValueError
        If a name is unknown.

    Examples
    --------
    >>> from fedconvex.verify import checks
    >>> [check.world.data for check in checks(["weight-divergence-zhao"])]
    ['synthetic', 'real', 'real', 'real']
    """
    names = [name for name in THEOREMS if name in PLANS]
    for name in theorems or ():
        if name not in names:
            raise bad("theorem", "be one of " + ", ".join(names), repr(name))
    out = []
    for name in names:
        if theorems and name not in theorems:
            continue
        if world is not None:
            out.append(Check(name, world))
            continue
        out += [Check(name, world) for world in PLANS[name].worlds]
        out += [check for check in EXTRA if check.theorem == name]
    return out
