"""RADFed's limit: the mean of its models ends where FedAvg with equal weights does, biased as that is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedconvex.methods import RADFed
from fedconvex.theorems.kit import *
from fedconvex.theory.fixed_points import fedavg_round, quadratic
from fedconvex.theory.radfed import RADFedMoments
from fedconvex.traits import LocalSteps

__all__ = ["MEAN_BIAS", "STATEMENT", "THEOREMS", "radfed_limit"]

MEAN_BIAS = Quantity(
    "‖lim E w - w*‖ of the averaged models", dimension=Dimension.LENGTH, by_rounds=False, **FROM_MINIMUM
)

STATEMENT = Statement(
    page="radfed_limit",
    title="The limit of RADFed on least squares",
    scope=EVERYWHERE._replace(free=STRONGLY_CONVEX),
    setting="""
K clients, m models. A round: all models start at w; S times, m different clients are drawn at random and each trains
one model by E local steps eta on fresh mini-batches; then w <- plain average of the models. w* minimises F = sum p_k
F_k with the problem's own weights.
""",
    assumptions="""
Squared loss; second moments of the models that converge (short steps). Nothing on m, S, batches or heterogeneity.
""",
    statement="""
lim E w = w_inf, the limit of FedAvg with equal weights, full participation, full gradients and the same E and eta. So
‖lim E w - w*‖ = ‖w_inf - w*‖, whatever m, S and the batches are.
""",
    source="""
The method: Xue, Klabjan, Luo, "Aggregation delayed federated learning", arXiv:2108.07433, who state no limit. The
equation: this project ([radfed](radfed.md)).
""",
    differs="No limit is published that it could differ from.",
    meaning="""
Handing models on between clients saves aggregations and spreads what each model has seen; it does not remove FedAvg's
bias, and for unequal weights adds that of equal ones. Both sides are computed apart: the left from the second moments
of the whole method, batches and draws of clients in them, the right from the eigenvalues of the clients' Hessians.
""",
    proof="""
Given w, a model's first client is uniform on the clients, and so is each later one, independently of what the model has
become: E of the model after a training is Φ̄ of its mean before it, with Φ̄ = (1/K) Σ E Φ_k, Φ_k affine. Fresh batches
are independent, so that E Φ_k is the map of E full gradient steps. Hence E w ← Φ̄^S E w, and Φ̄ is the round of FedAvg
with equal weights. Where second moments converge, so do means; then every eigenvalue of the linear part of Φ̄^S lies
inside the unit circle, those of Φ̄ with them, and the fixed point of Φ̄^S is the one of Φ̄. ∎
""",
    loose="Nowhere: it is an equation.",
)


def radfed_limit(bias: float) -> Bound:
    """Return the distance of RADFed's mean limit from the optimum, which is that of FedAvg with equal weights.

    Parameters
    ----------
    bias : float
        ‖w_inf - w*‖ of FedAvg with equal weights, and w* of the problem's own.

    Raises
    ------
    ValueError, TypeError
        If bias is negative.

    Examples
    --------
    >>> from fedconvex.theorems.radfed_limit import radfed_limit
    >>> radfed_limit(0.25).value
    0.25
    """
    value = real("radfed_limit: bias", bias, low=0.0)
    return Bound({"FedAvg's bias": value}, MEAN_BIAS, "fedconvex, RADFed's limit (docs/theory/radfed_limit.md)")


# ---------------------------------------------------------------- read off a setting


def _steps(s: Setting) -> tuple[LocalSteps, tuple[Hypothesis, ...]]:
    """Return RADFed's local steps, and what was checked of them."""
    name, p = "RADFed's limit", s.problem
    is_method(name, s.method, RADFed)
    stationary(name, p)
    local = traits_of(s.method, p).local
    assert local is not None
    checked = require(
        name,
        Hypothesis("least squares", f"{p.loss!r}", traits(p.loss).quadratic),
        Hypothesis("fresh mini-batches", f"epochs={s.method.epochs}", local.fresh),
        Hypothesis("batches drawn uniformly", f"{s.method.batch_draw!r}", s.method.batch_draw == "uniform"),
        equal_steps(local),
    )
    one_number(name, "step size", local.step_size)
    return local, checked


def _read(s: Setting) -> Reading:
    (local, checked), p = _steps(s), s.problem
    same = Problem(p.federation, p.loss, p.l2, "uniform", intercept=p.intercept)
    end = fedavg_round(same, step_size=float(local.step_size), local_steps=int(local.steps[0])).limit()
    return Reading({"bias": float(np.linalg.norm(end - quadratic(p).minimiser))}, checked)


def _mean_bias(s: Setting, rounds: Sequence[int]) -> Found:
    """‖lim E w - w*‖; both minimisers are off by rounding, the limit by that of a linear system."""
    local, m, p = _steps(s)[0], s.method, s.problem
    moments = RADFedMoments(
        p, step_size=float(local.step_size), models=m.models or p.federation.K, redistributions=m.redistributions,
        local_steps=int(local.steps[0]), batch_size=m.batch_size, replacement=m.replacement,
    )  # fmt: skip
    found = moments.limit()  # refused where second moments do not converge
    error = found.mean_error
    size = float(np.linalg.norm(error) + np.linalg.norm(p.solve().w))
    off = 2.0 * minimiser_rounding(p) + 64.0 * EPS * error.size**2 * size / (1.0 - found.spectral_radius)
    return Found(np.full(len(rounds), float(np.linalg.norm(error))), np.full(len(rounds), off))


THEOREMS = (
    Theorem(
        name="radfed-limit",
        title="RADFed, limit of the mean",
        quantity=MEAN_BIAS,
        bound=radfed_limit,
        read=_read,
        exact=_mean_bias,  # no finite run shows a limit
        equation=True,
        statement=STATEMENT,
        says="The mean of RADFed's models ends where FedAvg with equal weights does, for any redistribution.",
        loose="An equation.",
        space=local_sgd_space(
            fixed_step, 1.0, RADFed, most=5, rounds=(1, 1), more={"models": Whole(1, 3), "redistributions": Whole(1, 3)}
        ),
        method=fixed_step(0.25, RADFed, local_steps=3, models=2, redistributions=2),
        checks=(
            two_parabolas[0],
            unequal_hessians,
            diabetes,
            Check(unequal_hessians, fixed_step(0.1, RADFed, local_steps=2, batch_size=4, models=3, redistributions=3)),
            shifted_logistic,  # not least squares
            Check(unequal_hessians, fixed_step(4.0, RADFed, local_steps=3, models=2)),  # steps that diverge
        ),
    ),
)
