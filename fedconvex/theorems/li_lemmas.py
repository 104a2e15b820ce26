"""The lemmas of Li et al. on FedAvg: the drift of devices with steps that decay, and what sampling devices adds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedconvex.methods import ProportionalSampling, ScaledSampling, UniformSampling
from fedconvex.theorems.fedavg_strongly_convex import (
    along_the_run,
    decaying_step,
    fedavg_schedule,
    share_of_moves,
    with_schemes,
)
from fedconvex.theorems.kit import *
from fedconvex.theorems.local_lemmas import CLIENT_DRIFT, inside_rounds, moments_of_round

__all__ = [
    "SAMPLING_VARIANCE",
    "STATEMENT",
    "THEOREMS",
    "li_drift",
    "li_drift_sharp",
    "li_sampling",
    "li_sampling_sharp",
]

LI = "Li et al. 2020, arXiv:1907.02189, Lemma {}"

SAMPLING_VARIANCE = Quantity(
    "E‖w - vbar‖^2, w the average over the last sample, vbar that over all clients",
    dimension=Dimension.SQUARED_LENGTH,
    least=0.0,
)

STATEMENT = Statement(
    page="li_lemmas",
    title="Drift and sampling: lemmas of Li et al.",
    scope=EVERYWHERE._replace(free=STRONGLY_CONVEX),
    setting="""
Devices with weights p_i; a round starts those that take part at one model; E local SGD steps with fresh mini-batches;
vbar_t = sum p_i x_i of all devices, sampled or not, and V = E sum p_i ‖x_i - vbar‖^2.
""",
    assumptions="""
Every F_i L-smooth and mu-strongly convex; steps eta_t = 2/(mu (gamma + t)); E‖g_i‖^2 <= G^2 along the run.
""",
    statement="""
Drift    (Lemma 3) V at step t, after at most E-1 steps: at most 4 eta_t^2 (E-1)^2 G^2.
Sampling (Lemmas 4 and 5) E‖w_{t+1} - vbar_{t+1}‖^2 <= (4/K) eta_t^2 E^2 G^2 (scheme I), times (N-K)/(N-1) (scheme II),
         times N sum p_i^2 (scheme II with weights p_i N/K), at the end of a round.
Step by step (#): the same with (sum of the steps that were taken)^2 for 4 eta_t^2 (E-1)^2 and for 4 eta_t^2 E^2.
""",
    source="""
Li, Huang, Yang, Wang, Zhang, "On the convergence of FedAvg on non-IID data", ICLR 2020, arXiv:1907.02189, Lemmas 3-5.
Proofs, weights and the forms step by step: this project.
""",
    differs="Printed with 4 for steps that at most halve over a round; the sum of the steps is what the proof needs.",
    meaning="""
What the [theorem](fedavg_strongly_convex.md) of Li et al. pays for local steps and for sampling, with both sides exact
on least squares.
""",
    proof="""
With t_0 the last synchronisation, V ≤ Σ p_i E‖x_i - x_{t_0}‖², and in L² a model moves by at most G times the sum of
the steps since t_0 (Minkowski). t - t_0 ≤ E-1 of them, each at most η_{t_0} ≤ 2η_t, give Lemma 3. Sampling: step 3 of
[the theorem](fedavg_strongly_convex.md), with moves of at most that length. ∎
""",
    loose="""
Lemma 3 and 5 pay 4 for decaying steps and for gradients that all point the same way. Step by step, the drift is
attained by two steps from opposed gradients, the sampling by one step; so no error of the printed forms can be noticed
that is smaller than their distance from these: 3.2 for two steps of Lemma 3, 4 for one of Lemma 5.
""",
)


def li_drift(constants: Constants, *, local_steps: int, rounds: int) -> Bound:
    """Return Lemma 3 of Li et al., the drift before the last synchronisation.

    Parameters
    ----------
    constants : Constants
        L, mu and G2, with the clients' weights.
    local_steps, rounds : int
        E and T.

    Raises
    ------
    ValueError, TypeError
        If rounds or local_steps is below 1.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.li_lemmas import li_drift
    >>> li_drift(Constants(L=1.0, mu=1.0, G2=1.0, K=2), local_steps=2, rounds=1).value  # eta_1 = 2/9
    0.19753086419753085
    """
    theorem, E = LI.format("3"), whole("local_steps", local_steps, low=1)
    eta, G2, requires = _last_step(theorem, constants, E, rounds)
    return Bound({"drift": 4.0 * (eta * (E - 1)) ** 2 * G2}, CLIENT_DRIFT, theorem, requires)


def li_sampling(constants: Constants, *, local_steps: int, rounds: int, scheme: str, participants: int) -> Bound:
    """Return Lemma 5 of Li et al., the variance of the last sample's average.

    Parameters
    ----------
    constants, local_steps, rounds
        As for `li_drift`.
    scheme : {"proportional", "uniform", "scaled"}
        How participants are drawn, and averaged.
    participants : int
        K, clients or draws a round.

    Raises
    ------
    ValueError, TypeError
        If rounds or local_steps is below 1.
    AssumptionError
        If weights of the clients are missing.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.li_lemmas import li_sampling
    >>> constants = Constants(L=1.0, mu=1.0, G2=1.0, K=4)
    >>> li_sampling(constants, local_steps=1, rounds=1, scheme="proportional", participants=2).value  # eta_0 = 1/4
    0.125
    """
    theorem, E = LI.format("5"), whole("local_steps", local_steps, low=1)
    eta, G2, requires = _last_step(theorem, constants, E, rounds)
    share = share_of_moves(theorem, scheme, participants, client_weights(theorem, constants))
    return Bound({"sampling": 4.0 * share * (eta * E) ** 2 * G2}, SAMPLING_VARIANCE, theorem, requires)


def li_drift_sharp(constants: Constants, *, local_steps: int, rounds: int) -> Bound:
    """Return Lemma 3 of Li et al. with the sum of the steps since the last synchronisation.

    Parameters
    ----------
    constants, local_steps, rounds
        As for `li_drift`.

    Raises
    ------
    ValueError, TypeError
        If rounds or local_steps is below 1.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.li_lemmas import li_drift_sharp
    >>> li_drift_sharp(Constants(L=1.0, mu=1.0, G2=1.0, K=2), local_steps=2, rounds=1).value  # eta_0 = 2/8
    0.0625
    """
    theorem, E = LI.format("3, step by step"), whole("local_steps", local_steps, low=1)
    _, G2, requires = _last_step(theorem, constants, E, rounds)
    return Bound({"drift": _moved(constants, E, rounds, E - 1) ** 2 * G2}, CLIENT_DRIFT, theorem, requires)


def li_sampling_sharp(constants: Constants, *, local_steps: int, rounds: int, scheme: str, participants: int) -> Bound:
    """Return Lemma 5 of Li et al. with the sum of the steps of the round.

    Parameters
    ----------
    constants, local_steps, rounds, scheme, participants
        As for `li_sampling`.

    Raises
    ------
    ValueError, TypeError
        If rounds or local_steps is below 1.
    AssumptionError
        If weights of the clients are missing.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.li_lemmas import li_sampling_sharp
    >>> constants = Constants(L=1.0, mu=1.0, G2=1.0, K=4)
    >>> li_sampling_sharp(constants, local_steps=1, rounds=1, scheme="proportional", participants=2).value
    0.03125
    """
    theorem, E = LI.format("5, step by step"), whole("local_steps", local_steps, low=1)
    _, G2, requires = _last_step(theorem, constants, E, rounds)
    share = share_of_moves(theorem, scheme, participants, client_weights(theorem, constants))
    far = _moved(constants, E, rounds, E)
    return Bound({"sampling": share * far**2 * G2}, SAMPLING_VARIANCE, theorem, requires)


def _moved(constants: Constants, E: int, rounds: int, steps: int) -> float:
    """Return the sum of the first so many step sizes of the last round."""
    schedule = fedavg_schedule(constants, local_steps=E)
    return math.fsum(schedule.scale / (schedule.shift + (rounds - 1) * E + j) for j in range(steps))


def _last_step(theorem: str, constants: Constants, E: int, rounds: int) -> tuple[float, float, tuple[Hypothesis, ...]]:
    """Return the size of the last step of the last round, G^2, and the hypotheses on both."""
    schedule = fedavg_schedule(constants, local_steps=E)
    (G2,) = known_constants(theorem, constants, "G2")
    numbers = f"2/mu = {schedule.scale:g}, gamma = {schedule.shift:g}"
    requires = (
        Hypothesis("steps 2/(mu (gamma + t)), t = 0, 1, ...", numbers),
        Hypothesis("E‖g_k‖^2 <= G^2 along the run", f"G^2 = {G2:g}"),
    )
    return schedule.scale / (schedule.shift + whole("rounds", rounds, low=1) * E - 1), float(G2), requires


# ---------------------------------------------------------------- read off a setting


def _read_li(*names: str) -> Any:
    def read(s: Setting) -> Reading:
        moments_of_round(s)
        found = along_the_run(s)
        return found._replace(arguments={k: found.arguments[k] for k in ("constants", "local_steps", "rounds", *names)})

    return read


def _drift_of_all(s: Setting, rounds: Sequence[int]) -> Found:
    """Before the last step of a round, of all clients, sampled or not."""
    trace, _, deviation = inside_rounds(s, rounds, True)
    at = np.array(rounds) - 1
    return Found(trace.drift[at, -2], 2.0 * deviation[at])


def _sampled(s: Setting, rounds: Sequence[int]) -> Found:
    """E‖w - vbar‖^2 = E‖w - w*‖^2 - E‖vbar - w*‖^2, for the sample is unbiased."""
    trace, _, deviation = inside_rounds(s, rounds, True)
    at, run = np.array(rounds), moments_of_round(s).run(max(rounds), start=s.start)
    values = run.deviation[at] - trace.deviation[at - 1, -1]
    return Found(np.maximum(values, 0.0), 2.0 * deviation[at - 1] + 64.0 * EPS * run.deviation[at])


_LOCAL: dict[str, Any] = {"local_steps": 3, "batch_size": 4}
_ABOUT: dict[str, Any] = {
    "statement": STATEMENT,
    "method": decaying_step(**_LOCAL),
    "rounds": 5,
    "space": with_schemes(most=8, rounds=(1, 20)),
}
_DRIFTING: tuple[Instance | Check, ...] = (
    unequal_hessians,
    diabetes,
    *(Check(i, decaying_step(local_steps=2), 1, at_minimiser) for i in (two_clients, two_clients_in_tenths)),
    *(Check(two_clients, decaying_step(local_steps=E), 2, at_minimiser) for E in (2, 3)),
)
_DRAWN: tuple[Instance | Check, ...] = (
    *(
        Check(i, decaying_step(scheme=UniformSampling), 1, at_minimiser)
        for i in (three_clients, three_clients_in_tenths)
    ),
    *(Check(three_clients, decaying_step(scheme=UniformSampling, local_steps=E), 2, at_minimiser) for E in (1, 2)),
    *(
        Check(instance, decaying_step(scheme=scheme, **_LOCAL))
        for pair, schemes in (
            ((unequal_hessians, diabetes), (ProportionalSampling, UniformSampling)),
            ((uneven_squares, diabetes_unequal), (ScaledSampling,)),
        )
        for instance in pair
        for scheme in schemes
    ),
    Check(one_that_counts, decaying_step(scheme=ScaledSampling), 1, 0.0),
)

THEOREMS = (
    Theorem(
        name="fedavg-li-drift",
        title="FedAvg, drift of the devices (Li et al., Lemma 3)",
        quantity=CLIENT_DRIFT,
        bound=li_drift,
        sharper="fedavg-li-drift-sharp",
        read=_read_li(),
        exact=_drift_of_all,
        says="With steps that decay, devices are never farther apart than twice their steps times G.",
        loose="It takes all gradients for equal in size and direction: several orders of magnitude.",
        checks=_DRIFTING,
        **_ABOUT,
    ),
    Theorem(
        name="fedavg-li-drift-sharp",
        title="FedAvg, drift of the devices, step by step",
        quantity=CLIENT_DRIFT,
        bound=li_drift_sharp,
        read=_read_li(),
        exact=_drift_of_all,
        says="Devices drift apart by at most G times the sum of the steps since they were synchronised.",
        loose="Attained by two steps from opposed gradients; curvature, and gradients that agree, are left out.",
        checks=_DRIFTING,
        **_ABOUT,
    ),
    Theorem(
        name="fedavg-li-sampling",
        title="FedAvg, variance of sampled devices (Li et al., Lemma 5)",
        quantity=SAMPLING_VARIANCE,
        bound=li_sampling,
        sharper="fedavg-li-sampling-sharp",
        read=_read_li("scheme", "participants"),
        exact=_sampled,
        says="Averaging over a sample adds a variance of at most 4/K times the squared length of a round.",
        loose="A factor 4 for one step from the optimum, where it is otherwise attained; more with local steps.",
        checks=_DRAWN,
        **_ABOUT,
    ),
    Theorem(
        name="fedavg-li-sampling-sharp",
        title="FedAvg, variance of sampled devices, step by step",
        quantity=SAMPLING_VARIANCE,
        bound=li_sampling_sharp,
        read=_read_li("scheme", "participants"),
        exact=_sampled,
        says="Averaging over a sample adds a variance of at most 1/K times the squared steps of a round times G.",
        loose="Attained by one step from the optimum; what devices move together is no variance, and counted.",
        checks=_DRAWN,
        **_ABOUT,
    ),
)
