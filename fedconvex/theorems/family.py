"""The averaging family under heterogeneity: SCAFFOLD, FedProx, FedSAM, SVRG, progressive hedging, limits of FedAvg."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedconvex.constants import Constants, noise_factor
from fedconvex.draws import Draws, key_from_seed
from fedconvex.driver import iterate
from fedconvex.loss_traits import traits
from fedconvex.theorems import fedprox, hedging, scaffold, svrg
from fedconvex.theorems import fedsam as sam
from fedconvex.theorems.parts.setting import Setting, full_participation, is_method, participants, stationary
from fedconvex.theorems.parts.theorem import Theorem
from fedconvex.theory import fixed_points
from fedconvex.theory.bound import (
    DISTANCE,
    LAST_SYNCHRONISED,
    LIMIT_BIAS,
    LIMIT_TO_MINIMISERS,
    NEXT_VALUE,
    SHADOW_AVERAGE,
    WEIGHTED_AVERAGE,
    Bound,
    Hypothesis,
    require,
)

__all__ = ["THEOREMS"]

_ENUMERATED = 5000  # samples of clients that are enumerated for an exact expectation


def _one(name: str, what: str, value: Any) -> float:
    """Return a hyper-parameter that is one positive number."""
    require(name, Hypothesis(f"one {what}, constant in time", f"{value!r}", isinstance(value, float)))
    return float(value)


# ---------------------------------------------------------------- SCAFFOLD


def _scaffold_settings(s: Setting) -> dict[str, Any]:
    name, m = scaffold.SOURCE, s.method
    is_method(name, m, "SCAFFOLD")
    stationary(name, s.problem)
    require(
        name,
        Hypothesis("option II", f"option {m.option}", m.option == 2),
        Hypothesis("local steps on fresh batches", f"epochs={m.epochs}", m.epochs is None),
    )
    eta = _one(name, "step size", m.step_size)
    return {"step_size": eta, "local_steps": m.local_steps, "server_step": float(m.server_step)}


def _scaffold(s: Setting) -> Bound:
    settings = _scaffold_settings(s)
    return scaffold.scaffold(s.constants(), rounds=s.rounds, participants=participants(s), **settings)


def _weighted_average(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """sum_{r<T} w_r (F(x^r) - F*)/W over the server's models before the rounds."""
    settings, c, best = _scaffold_settings(s), s.constants(), s.problem.solve()
    runs = iterate(s.method, s.problem, rounds=max(rounds), seed=seed, trajectories=trajectories, start=s.start)
    gaps = np.array([s.problem.value(state.w) - best.value for _, state in runs])
    return np.array([scaffold.scaffold_weights(c, rounds=T, **settings) @ gaps[:T] for T in rounds])


# ---------------------------------------------------------------- FedProx


def _proximal(theorem: Callable[..., Bound], paper: bool) -> Callable[[Setting], Bound]:
    """Read the descent of one round from the start."""

    def bound(s: Setting) -> Bound:
        m, p, name = s.method, s.problem, "FedProx descent"
        is_method(name, m, "FedProx")
        stationary(name, p)
        drawn, equal = hasattr(m.participation, "draws"), p.equal_weights
        unbiased = drawn or full_participation(s).holds or (equal and not paper)
        wanted = "clients drawn with probabilities p_k" if paper else "unbiased sampling of clients"
        require(
            name,
            Hypothesis(wanted, f"{m.participation!r}", drawn if paper else unbiased),
            Hypothesis("plain averaging", f"{m.server!r}", type(m.server).__name__ == "Averaging"),
            Hypothesis("no stragglers", f"{m.stragglers!r}", m.stragglers is None),
            Hypothesis("full local gradients or exact solutions", f"batch_size={m.batch_size}", m.batch_size is None),
        )
        mu, gamma = _one(name, "proximal weight", m.proximal_mu), _inexactness(s)
        gap = float(p.value(s.start)) - p.solve().value
        here = {"value": gap, "gradient_norm": float(np.linalg.norm(p.gradient(s.start)))}
        if paper:
            here["participants"] = m.participation.draws
        c = p.constants(center=s.start)
        return theorem(c, proximal=mu, inexactness=min(gamma, 1.0), **here)

    return bound


def _inexactness(s: Setting) -> float:
    """Largest ‖grad h_k(w_k)‖/‖grad F_k(w)‖ of any client in a round from the start."""
    method = replace(s.method, inexactness=True, participation=1.0)
    *_, (_, state) = iterate(method, s.problem, rounds=1, start=s.start)
    gamma = float(method.observe(s.problem, state)["gamma_max"][0])
    require("FedProx descent", Hypothesis("gamma-inexact solutions, gamma <= 1", f"gamma = {gamma:g}", gamma <= 1.0))
    return gamma


def _next_value(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """F(w^+) - F* after one round."""
    *_, (_, state) = iterate(s.method, s.problem, rounds=1, seed=seed, trajectories=trajectories, start=s.start)
    return np.tile(s.problem.value(state.w) - s.problem.solve().value, (len(rounds), 1))


def _exact_next_value(s: Setting, rounds: Sequence[int]) -> np.ndarray | None:
    """E F(w^+) - F* by enumeration of the samples, where there are few."""
    m, p = s.method, s.problem
    K, drawn = p.federation.K, hasattr(m.participation, "draws")
    size = m.participation.draws if drawn else participants(s)
    if (K**size if drawn else math.comb(K, size)) > _ENUMERATED:
        return None
    each = replace(m, participation=1.0)
    state = each.init(p, np.array(s.start[None]))
    draws = Draws(key_from_seed(0), np.zeros(1, dtype=np.int64), 0)  # exact or full local work: nothing is drawn
    reply, _ = each.local(p, each.broadcast(state), np.arange(K)[None], None, draws)
    total = 0.0
    for sample in itertools.product(range(K), repeat=size) if drawn else itertools.combinations(range(K), size):
        chosen = list(sample)
        if drawn:
            share, weights = float(np.prod(p.weights[chosen])), np.full(size, 1.0 / size)
        else:
            share, weights = 1.0 / math.comb(K, size), p.weights[chosen] / p.weights[chosen].sum()
        total += share * float(p.value(np.tensordot(weights, reply.w[0, chosen], 1)))
    return np.full(len(rounds), total - p.solve().value)


# ---------------------------------------------------------------- FedSAM


def _fedsam(theorem: Callable[..., Bound]) -> Callable[[Setting], Bound]:
    def bound(s: Setting) -> Bound:
        m, name = s.method, "FedSAM"
        is_method(name, m, "FedSAM")
        stationary(name, s.problem)
        require(
            name,
            full_participation(s),
            Hypothesis("plain averaging", f"{m.server!r}", type(m.server).__name__ == "Averaging"),
            Hypothesis("full local gradients", f"batch_size={m.batch_size}", m.batch_size is None),
        )
        tau = m.local_steps if m.epochs is None else m.epochs
        eta, rho = _one(name, "step size", m.step_size), _one(name, "radius rho", m.rho)
        return theorem(s.constants(), step_size=eta, local_steps=tau, rounds=s.rounds, rho=rho)

    return bound


# ---------------------------------------------------------------- SVRG


def _svrg(s: Setting) -> Bound:
    m, p, name = s.method, s.problem, svrg.SOURCE
    is_method(name, m, "SVRG")
    stationary(name, p)
    require(name, Hypothesis("a random inner iterate (option II)", f"option {m.option}", m.option == 2))
    eta, phi = _one(name, "step size", m.step_size), noise_factor(p.federation.n, m.batch_size, m.replacement)
    gap = float(p.value(s.start)) - p.solve().value
    return svrg.svrg(
        p.pooled.constants(start=s.start),
        step_size=eta,
        inner_steps=m.inner_steps,
        epochs=s.rounds,
        start_gap=gap,
        noise_factor=float(phi),
    )


# ---------------------------------------------------------------- progressive hedging


def _hedging(s: Setting) -> Bound:
    m, name = s.method, hedging.SOURCE
    is_method(name, m, "ProgressiveHedging")
    stationary(name, s.problem)
    exact = m.local_steps is None and m.tol <= 1e-9
    require(name, Hypothesis("exact local solutions", f"local_steps={m.local_steps}, tol={m.tol:g}", exact))
    c = s.problem.constants(start=s.start)
    rho = hedging.hedging_best_rho(c) if m.rho is None else _one(name, "penalty rho", m.rho)
    share = participants(s) / s.problem.federation.K
    bound = hedging.hedging(c, rho=rho, rounds=s.rounds, share=share)
    return replace(bound, quantity=DISTANCE)  # ‖z - x*‖ is at most the distance that the theorem bounds


def _distance(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """‖w_T - w*‖."""
    w, wanted = s.problem.solve().w, set(rounds)
    runs = iterate(s.method, s.problem, rounds=max(rounds), seed=seed, trajectories=trajectories, start=s.start)
    out = {t: np.linalg.norm((state.w - w).reshape(trajectories, -1), axis=1) for t, state in runs if t in wanted}
    return np.array([out[t] for t in rounds])


# ---------------------------------------------------------------- limits on least squares


def _limit(theorem: Callable[..., Bound]) -> Callable[[Setting], Bound]:
    """Read the bias of the limit of FedAvg with full local gradients."""

    def bound(s: Setting) -> Bound:
        settings = _limit_settings(s)
        return theorem(_of_clients(s), fixed_points.spread(s.problem), **settings)

    return bound


def _limit_settings(s: Setting) -> dict[str, Any]:
    m, p, name = s.method, s.problem, "limit of FedAvg"
    is_method(name, m, "FedAvg")
    stationary(name, p)
    require(
        name,
        Hypothesis("least squares", f"{p.loss!r}", traits(p.loss).quadratic),
        full_participation(s),
        Hypothesis("full local gradients", f"batch_size={m.batch_size}", m.batch_size is None),
        Hypothesis("plain local steps and averaging", f"{m.client!r}, {m.server!r}", _is_plain(m)),
    )
    tau = m.local_steps if m.epochs is None else m.epochs
    return {"step_size": _one(name, "step size", m.step_size), "local_steps": int(tau)}


def _is_plain(m: Any) -> bool:
    return bool(m.client.plain()) and type(m.server).__name__ == "Averaging"


def _of_clients(s: Setting) -> Constants:
    return s.problem.constants(start=s.start)


def _bias(s: Setting, rounds: Sequence[int]) -> np.ndarray | None:
    limit, best = fixed_points.fedavg_round(s.problem, **_limit_settings(s)).limit(), s.problem.solve().w
    bias = float(np.linalg.norm(limit - best))
    return np.full(len(rounds), bias if bias > 1e-12 * (1.0 + float(np.linalg.norm(best))) else 0.0)  # else rounding


def _from_minimisers(s: Setting, rounds: Sequence[int]) -> np.ndarray | None:
    limit = fixed_points.fedavg_round(s.problem, **_limit_settings(s)).limit()
    average = fixed_points.average_minimisers_round(s.problem).limit()
    return np.full(len(rounds), float(np.linalg.norm(limit - average)))


_LAST, _NEXT, _SHADOW = LAST_SYNCHRONISED, NEXT_VALUE, SHADOW_AVERAGE

THEOREMS = (
    Theorem("scaffold", WEIGHTED_AVERAGE, _scaffold, "SCAFFOLD (Karimireddy et al.)", "scaffold", _weighted_average),
    Theorem(
        "fedprox",
        _NEXT,
        _proximal(fedprox.fedprox, True),
        "FedProx, descent (Li et al.)",
        "fedprox",
        _next_value,
        _exact_next_value,
    ),
    Theorem(
        "fedprox-sharp",
        _NEXT,
        _proximal(fedprox.fedprox_sharp, False),
        "FedProx, sharper descent",
        "fedprox",
        _next_value,
        _exact_next_value,
    ),
    Theorem(
        "fedprox-convex",
        _NEXT,
        _proximal(fedprox.fedprox_convex, False),
        "FedProx, convex descent",
        "fedprox",
        _next_value,
        _exact_next_value,
    ),
    Theorem("fedsam", _SHADOW, _fedsam(sam.fedsam), "FedSAM, constant radius", "fedsam"),
    Theorem("fedsam-at-optimum", _SHADOW, _fedsam(sam.fedsam_at_optimum), "FedSAM, constants at w*", "fedsam"),
    Theorem("svrg", _LAST, _svrg, "SVRG (Johnson, Zhang)", "svrg"),
    Theorem("hedging", DISTANCE, _hedging, "Progressive hedging", "hedging", _distance),
    Theorem(
        "fedavg-bias",
        LIMIT_BIAS,
        _limit(fixed_points.fedavg_bias),
        "FedAvg, bias of the limit",
        "fixed_points",
        exact=_bias,  # no finite run shows a limit
    ),
    Theorem(
        "fedavg-limit",
        LIMIT_TO_MINIMISERS,
        _limit(fixed_points.fedavg_limit_patel),
        "FedAvg, limit and local minimisers (Patel et al.)",
        "fixed_points",
        exact=_from_minimisers,
    ),
)
