"""FedAvg: the theorems on convex and strongly convex functions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from fedconvex.constants import MEASURED, noise_factor
from fedconvex.draws import Draws, key_from_seed
from fedconvex.driver import iterate
from fedconvex.losses import Squared
from fedconvex.theorems.fedavg_convex import fedavg_convex, fedavg_convex_step, fedavg_convex_tuned
from fedconvex.theorems.fedavg_refined import (
    fedavg_at_optimum,
    fedavg_at_optimum_sharp,
    fedavg_refined,
    fedavg_refined_sharp,
)
from fedconvex.theorems.fedavg_strongly_convex import fedavg_scheme_one, fedavg_scheme_two, fedavg_strongly_convex
from fedconvex.theorems.parts.setting import Setting, Theorem, full_steps, local_sgd, participants, plain, still
from fedconvex.theory.bound import Bound, Hypothesis, Quantity, require
from fedconvex.theory.moments import Moments

__all__ = ["THEOREMS"]

_RECORDED = 256  # trajectories that are followed step by step to find the ball that a run stays in


def _field_guide(s: Setting) -> Bound:
    settings = local_sgd("Wang et al. 2021, Theorem 1", s)
    return fedavg_convex(s.constants(), **settings)


def _field_guide_tuned(s: Setting) -> Bound:
    name = "Wang et al. 2021, Theorem 1 (17)"
    settings, c = local_sgd(name, s), s.constants()
    eta = settings.pop("step_size")
    bound = fedavg_convex_tuned(c, **settings)
    wanted = fedavg_convex_step(c, **settings)
    tuned = math.isclose(eta, wanted, rel_tol=1e-9)
    (step,) = require(name, Hypothesis("the step size (16)", f"step_size = {eta:g}, (16) = {wanted:g}", tuned))
    return replace(bound, requires=(*bound.requires, step))


def _refined(s: Setting) -> Bound:
    return fedavg_refined(s.constants(), **local_sgd("R1", s))


def _refined_sharp(s: Setting) -> Bound:
    return fedavg_refined_sharp(s.constants(), **local_sgd("R1#", s))


def _at_optimum(s: Setting) -> Bound:
    return fedavg_at_optimum(s.constants(), noise_factor=_phi(s), **local_sgd("R2", s))


def _at_optimum_sharp(s: Setting) -> Bound:
    return fedavg_at_optimum_sharp(s.constants(), noise_factor=_phi(s), **local_sgd("R2#", s))


def _phi(s: Setting) -> float:
    """Return the largest variance factor of the clients' mini-batches."""
    plain("R2", s.method)
    sizes, B = s.problem.federation.sizes, s.method.batch_size
    return float(np.max(noise_factor(sizes, sizes if B is None else B, s.method.replacement)))


def _li(s: Setting) -> Bound:
    """Li et al. 2020 with sigma and G along the run: exact for squared loss, over the ball of the run otherwise."""
    name, m, c = "Li et al. 2020", s.method, s.constants()
    plain(name, m)
    still(name, s.problem)
    tau = full_steps(m)
    mu = float(np.min(c.mu_k)) if c.mu_k is not None else 0.0
    gamma = max(8.0 * float(c.L or 0.0) / mu, tau) if mu > 0.0 else math.nan
    eta = m.step_size
    right = all(hasattr(eta, a) for a in ("scale", "shift", "power", "by_round")) and not eta.by_round
    right = right and eta.power == 1.0 and math.isclose(eta.scale, 2.0 / mu) and math.isclose(eta.shift, gamma)
    wanted = f"the step sizes Decay(2/mu, max(8 L/mu, E)) = Decay({2 / mu if mu else math.nan:g}, {gamma:g})"
    require(name, Hypothesis(wanted, f"{eta!r}", bool(right)))
    if isinstance(s.problem.loss, Squared):
        along = Moments.of(m, s.problem).gradients(rounds=s.rounds, start=s.start)
        how = dict(c.how) | {"G2": MEASURED, "sigma2_k": MEASURED}
        c = replace(c, G2=along.G2, sigma2_k=along.sigma2_k, sigma2=float(along.sigma2_k.max()), how=how)
    elif not math.isfinite(float(c.G2 or math.inf)):
        c = s.constants(radius=_reach(s))
    p = m.participation
    if p is None:
        return fedavg_strongly_convex(c, local_steps=tau, rounds=s.rounds)
    if hasattr(p, "draws"):
        return fedavg_scheme_one(c, local_steps=tau, rounds=s.rounds, participants=p.draws)
    return fedavg_scheme_two(c, local_steps=tau, rounds=s.rounds, participants=participants(s))


def _reach(s: Setting) -> float:
    """Largest distance from w* of any local iterate of any client, in recorded trajectories of this seed."""
    p, everybody = s.problem, replace(s.method, participation=1.0, shadow=True)
    clients = np.tile(np.arange(p.federation.K), (_RECORDED, 1))
    key, w, far = key_from_seed(s.seed), p.solve().w, 0.0
    runs = iterate(s.method, p, rounds=s.rounds, seed=s.seed, trajectories=_RECORDED, start=s.start)
    for t, state in runs:
        if t == s.rounds:
            break
        draws = Draws(key, np.arange(_RECORDED), t)
        reply, _ = everybody.local(p, everybody.broadcast(state), clients, None, draws)
        error = np.concatenate([(state.w - w)[:, None], (reply.path - w).reshape(_RECORDED, -1, *w.shape)], axis=1)
        far = max(far, float(np.sqrt(np.sum(error.reshape(*error.shape[:2], -1) ** 2, axis=2).max())))
    return far


THEOREMS = (
    Theorem("fedavg-convex", Quantity.SHADOW_AVERAGE, _field_guide, "FedAvg, convex (15)", "fedavg_convex"),
    Theorem(
        "fedavg-convex-tuned",
        Quantity.SHADOW_AVERAGE,
        _field_guide_tuned,
        "FedAvg, convex, tuned step (16), (17)",
        "fedavg_convex",
    ),
    Theorem("fedavg-refined", Quantity.SHADOW_AVERAGE, _refined, "FedAvg, convex, R1", "fedavg_refined"),
    Theorem("fedavg-refined-sharp", Quantity.SHADOW_AVERAGE, _refined_sharp, "FedAvg, convex, R1#", "fedavg_refined"),
    Theorem("fedavg-at-optimum", Quantity.SHADOW_AVERAGE, _at_optimum, "FedAvg, constants at w*, R2", "fedavg_refined"),
    Theorem(
        "fedavg-at-optimum-sharp",
        Quantity.SHADOW_AVERAGE,
        _at_optimum_sharp,
        "FedAvg, constants at w*, R2#",
        "fedavg_refined",
    ),
    Theorem(
        "fedavg-strongly-convex",
        Quantity.LAST_SYNCHRONISED,
        _li,
        "FedAvg, strongly convex, decaying steps (Li et al.)",
        "fedavg_strongly_convex",
    ),
)
