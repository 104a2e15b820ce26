"""FedNova's limit on least squares: near the optimum for short steps, whatever the numbers of local steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedconvex.methods import FedNova
from fedconvex.theorems.hedging import DISTANCE
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.smoothness import start_length
from fedconvex.theory.fixed_points import Affine, fednova_round, quadratic

__all__ = ["STATEMENT", "THEOREMS", "fednova_limit"]

SOURCE = "fedconvex, FedNova's limit (docs/theory/fednova_limit.md)"
SETTLED = 1e-9  # of the first error: what may be left of it

STATEMENT = Statement(
    page="fednova_limit",
    title="The limit of FedNova on least squares",
    scope=EVERYWHERE._replace(free=STRONGLY_CONVEX),
    setting="""
Client k takes tau_k full-gradient steps eta from w and answers d_k = (w_k - w)/tau_k; w <- w + beta tau_eff sum
p_k d_k, tau_eff = sum p_k tau_k. Full participation. H_k and w_k* are the clients' Hessians and minimisers.
""",
    assumptions="Squared loss, regular H_k; a round that contracts.",
    statement="""
With S_k = (I - (I - eta H_k)^tau_k)/tau_k, w_T tends to

    w_inf = (sum p_k S_k)^{-1} sum p_k S_k w_k*,

whatever beta, at the spectral radius of I - beta tau_eff sum p_k S_k. As eta tends to 0, S_k/eta tends to H_k and
w_inf to the minimiser of F; the limit of FedAvg, S_k without 1/tau_k, tends to that of sum p_k tau_k f_k.
""",
    source="""
Method: Wang, Liu, Liang, Joshi, Poor, "Tackling the objective inconsistency problem in heterogeneous federated
optimization", NeurIPS 2020. The fixed point: this project, by the filters of [fixed points](fixed_points.md).
""",
    differs="""
The paper bounds gradients of F along runs; "objective consistency" there is the limit of short steps. For steps of any
length a bias of first order in eta stays, as with equal numbers of steps.
""",
    meaning="""
Normalising repairs what unequal numbers of steps do to the weights of clients, not the drift of the single client:
w_inf - w* is eta/2 times H^{-1} sum p_k (tau_k - 1) H_k grad f_k(w*) to first order.
""",
    proof="""
w_k - w = -(I - (I - ηH_k)^{τ_k})(w - w_k*), so a round is w - βτ_eff Σ p_kS_k(w - w_k*), affine. Its fixed
point is w_inf. S_k = ηH_k - η²(τ_k - 1)H_k²/2 + ..., and Σ p_kS_k(w_inf - w*) = Σ p_kS_k(w_k* - w*), H_k(w_k* -
w*) = -∇f_k(w*), Σ p_k∇f_k(w*) = 0. ∎
""",
    loose="Nowhere: it is an equation, once the start has died out; 1e-9 of it may be left.",
)


def fednova_limit(bias: float, rate: float, rounds: int) -> Bound:
    """Return the distance of FedNova's limit from the optimum, at which a run is once its start has died out.

    Parameters
    ----------
    bias : float
        ‖w_inf - w*‖.
    rate : float
        Spectral radius of a round.
    rounds : int
        T, with rate^T <= 1e-9.

    Raises
    ------
    AssumptionError
        If the start has not died out, or never does.

    Examples
    --------
    >>> from fedconvex.theorems.fednova_limit import fednova_limit
    >>> fednova_limit(0.25, 0.5, 40).value
    0.25
    """
    value, rate = real("bias", bias, low=0.0), real("rate", rate, low=0.0)
    T = whole("rounds", rounds, low=1)
    left = rate**T if rate < 1.0 else float("inf")
    requires = require(
        SOURCE,
        Hypothesis("a round that contracts", f"rate {rate:g}", rate < 1.0),
        Hypothesis("a start that has died out", f"{left:.2g} of it are left", left <= SETTLED),
    )
    return Bound({"bias": value}, DISTANCE, SOURCE, requires)


# ---------------------------------------------------------------- read off a setting


def _map(s: Setting) -> tuple[Affine, tuple[Hypothesis, ...]]:
    m, p = s.method, s.problem
    is_method(SOURCE, m, FedNova)
    stationary(SOURCE, p)
    local = traits_of(m, p).local
    assert local is not None
    checked = require(
        SOURCE,
        full_participation(s),
        Hypothesis("least squares", f"{p.loss!r}", traits(p.loss).quadratic),
        Hypothesis("full gradients", f"batch_size={m.batch_size}", local.full and local.fresh),
    )
    step = one_number(SOURCE, "step size", local.step_size)
    numbers: dict[str, Any] = {"local_steps": local.steps, "server_step": float(m.server_step)}
    return fednova_round(p, step_size=step, **numbers), checked


def _read(s: Setting) -> Reading:
    map_, checked = _map(s)
    rate = map_.spectral_radius
    numbers = {"rate": rate, "rounds": s.rounds}
    if not rate < 1.0:
        return Reading({"bias": 0.0, **numbers}, checked)
    off = map_.limit() - quadratic(s.problem).minimiser
    return Reading({"bias": float(np.linalg.norm(off)), **numbers}, checked)


def _distance(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    best = s.problem.solve().w
    return values_along(
        lambda state: np.linalg.norm((state.w - best).reshape(trajectories, -1), axis=1), s, rounds, seed, trajectories
    )


def _rounding(s: Setting, value: float) -> float:
    """Return what is left of the start, the rounding of rounds that contract, and of both fixed points."""
    map_ = _map(s)[0]
    rate, length = map_.spectral_radius, start_length(s) + value
    inverse = float(np.linalg.norm(map_.kept()[2], 2))
    each = 64.0 * UNIT * length * float(np.max(traits_of(s.method, s.problem).local.steps))  # type: ignore[union-attr]
    skew = float(np.linalg.norm(np.linalg.matrix_power(map_.matrix, s.rounds), 2))
    left = max(skew, rate**s.rounds) * length
    return left + each * inverse + 2.0 * minimiser_rounding(s.problem)


def uneven(share: float, most: int = 8, **settings: Any) -> MethodRule:
    """Return FedNova with the step share/L and most, ..., 2, 1, most, ... local steps."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> FedNova:
        tau = tuple(most - k % most for k in range(problem.federation.K))
        return FedNova(step_size=share / float(problem.constants().L or 1.0), local_steps=tau, **settings)

    return MethodRule(f"{share:g}/L", make)


THEOREMS = (
    Theorem(
        name="fednova-limit",
        title="FedNova, limit",
        quantity=DISTANCE,
        bound=fednova_limit,
        read=_read,
        sample=_distance,
        exact=deterministic(_distance),
        tolerance=_rounding,
        equation=True,
        statement=STATEMENT,
        says="FedNova ends at a fixed point that tends to the optimum with the step, for any numbers of local steps.",
        loose="An equation.",
        method=uneven(0.9),
        rounds=250,
        checks=(
            unequal_hessians,
            diabetes,
            Check(steep_and_flat, uneven(0.5, 4), 120),
            Check(two_parabolas[0], uneven(0.1, 5, server_step=0.5), 120),
            Check(steep_and_flat, uneven(0.25, 4), 3),  # the start is still seen
            shifted_logistic,  # not least squares
            Check(unequal_hessians, uneven(4.0), 50),  # steps that diverge
        ),
        space=Space(
            lambda k: uneven(k["share"], int(k["local_steps"])),
            {"share": Real(0.05, 1.0), "local_steps": Whole(1, 8)},
            rounds=(100, 200),
            weighted=True,
            tries=4,
        ),
    ),
)
