"""MOCHA and CoCoA on multi-task problems: dual suboptimality, duality gap, and the safety of sigma'."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedconvex.driver import iterate
from fedconvex.problems import MultiTaskProblem
from fedconvex.theorems.parts.setting import Setting, is_method, participants
from fedconvex.theorems.parts.theorem import Theorem
from fedconvex.theory import mocha
from fedconvex.theory.bound import DUAL_SUBOPTIMALITY, DUALITY_GAP, SEPARABILITY, Bound, Hypothesis, require
from fedconvex.theory.separability import DualConstants, dual_constants, separability, worst_duals

__all__ = ["THEOREMS"]

NAME = "MOCHA's rate"
LOOKS = 32  # trajectories from which theta is measured
LARGEST = 2000  # order of the matrix whose largest eigenvalue is the least safe sigma': seconds
_OTHERS = 1_000_003  # what separates their seed from the one of the run


# ---------------------------------------------------------------- what a run shows


def _dual(state: Any) -> np.ndarray:
    """D(alpha) of every trajectory, (R,)."""
    return np.asarray(state.conjugate.sum(axis=1) + 0.5 * np.einsum("rtj,rtj->r", state.w, state.v))


def _suboptimality(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """D(alpha^h) - min D; min D = -min P."""
    best, wanted = s.problem.solve().value, set(rounds)
    runs = iterate(s.method, s.problem, rounds=max(rounds), seed=seed, trajectories=trajectories, start=s.start)
    out = {h: _dual(state) + best for h, state in runs if h in wanted}
    return np.array([out[h] for h in rounds])


def _gap(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """P(W(alpha^h)) + D(alpha^h), with W = Mbar V, where R(W) = R*(V) = <V, W>/2."""
    wanted = set(rounds)
    runs = iterate(s.method, s.problem, rounds=max(rounds), seed=seed, trajectories=trajectories, start=s.start)
    out = {h: _parts(s, state).sum(axis=1) for h, state in runs if h in wanted}
    return np.array([out[h] for h in rounds])


def _exact(
    sample: Callable[[Setting, Sequence[int], int, int], np.ndarray],
) -> Callable[[Setting, Sequence[int]], np.ndarray | None]:
    """Return what one run shows where nothing is drawn: no clock, no drops, all nodes, one row each."""

    def exact(s: Setting, rounds: Sequence[int]) -> np.ndarray | None:
        m, fed = s.method, s.problem.federation
        still = getattr(m, "clock", None) is None and not np.any(getattr(m, "drop", 0.0)) and _share(s) == 1.0
        return sample(s, rounds, 0, 1)[:, 0] if still and int(fed.sizes.max()) == 1 else None

    return exact


# ---------------------------------------------------------------- what goes in


def _share(s: Setting) -> float:
    """Probability that a node is asked in a round."""
    return 1.0 if not hasattr(s.method, "participation") else participants(s) / s.problem.federation.K


def _parts(s: Setting, state: Any) -> np.ndarray:
    """Every node's part of the duality gap, which is that of its subproblem before the round, (R, m)."""
    losses = s.problem.client_values(state.w)
    return np.asarray(losses + state.conjugate + np.einsum("rtj,rtj->rt", state.w, state.v))


def _accuracy(s: Setting) -> tuple[float, tuple[Hypothesis, ...]]:
    """Return Thetabar, with what is known of it.

    p_max is what the method says of drops and participation, and the largest share, of any node and round, of
    trajectories in which the node worked and gained nothing. Theta_max is the largest certified theta_t of nodes that
    gained something, or the accuracy that the method asks for. Nodes without anything to gain do not count.
    """
    m = s.method
    looking = replace(m, certify=True) if hasattr(m, "certify") else m
    nothing, idle, largest, before = _tolerance(s), 0.0, 0.0, None
    runs = iterate(looking, s.problem, rounds=s.rounds, seed=s.seed + _OTHERS, trajectories=LOOKS, start=s.start)
    for _, state in runs:
        if before is not None:
            worked = (state.steps > before.steps) & (_parts(s, before) > nothing)
            gained = worked & (state.theta < 1.0)
            share = (worked & ~gained).sum(axis=0) / np.maximum(worked.sum(axis=0), 1)
            idle, largest = max(idle, float(share.max())), max(largest, float(state.theta[gained].max(initial=0.0)))
        before = state
    seen = f"the largest certified one in {s.rounds} rounds of {LOOKS} trajectories is {largest:.4g}"
    checked: tuple[Hypothesis, ...] = ()
    if m.theta is not None:
        asked = Hypothesis(f"nodes that reach the accuracy theta = {m.theta:g}", seen, largest <= m.theta)
        checked, largest = require(NAME, asked), float(m.theta)
    dropped = 1.0 - (1.0 - float(np.max(getattr(m, "drop", 0.0)))) * _share(s)
    p_max = 1.0 - (1.0 - dropped) * (1.0 - idle)
    checked += (
        Hypothesis(
            "theta_t = 1 with probability <= p_max", f"p_max = {p_max:.4g}: {dropped:.4g} absent, {idle:.4g} idle"
        ),
        Hypothesis("E[theta_t | theta_t < 1, past] <= Theta_max", f"Theta_max = {largest:.4g}; {seen}"),
    )
    return mocha.theta_bar(p_max, largest), checked


def _settings(s: Setting) -> tuple[DualConstants, dict[str, Any], tuple[Hypothesis, ...]]:
    """Return the constants, what the theorems are told, and what was checked here."""
    is_method(NAME, s.method, "MOCHA", "CoCoA")
    c = _constants(s)
    theta, checked = _accuracy(s)
    start = float(_dual(_first(s))[0]) + s.problem.solve().value
    return c, {"rounds": s.rounds, "start": max(start, 0.0), "theta": theta}, checked


def _first(s: Setting) -> Any:
    """Return the state before the first round."""
    require(NAME, Hypothesis("a start at alpha = 0", f"‖W‖ = {np.linalg.norm(s.start):g}", not s.start.any()))
    return s.method.init(s.problem, np.array(s.start[None]))


def _constants(s: Setting) -> DualConstants:
    """Return the constants for the method's sigma'."""
    p = s.problem
    assert isinstance(p, MultiTaskProblem)
    order = int(np.minimum(p.federation.sizes, p.federation.d).sum())
    require(
        NAME,
        Hypothesis("a fixed relationship", f"{p.relation!r}", not p.relation.learned),
        Hypothesis(f"row spaces of at most {LARGEST:,} dimensions together", f"{order:,}", order <= LARGEST),
    )
    return dual_constants(p, float(_first(s).sigma[0]))


def _rate(theorem: Callable[..., Bound]) -> Callable[[Setting], Bound]:
    def bound(s: Setting) -> Bound:
        c, settings, checked = _settings(s)
        found = theorem(c, **settings)
        return replace(found, requires=found.requires + checked)

    return bound


def _gap_rate(s: Setting) -> Bound:
    """E gap <= E eps_h/s, with Theorem 1 for eps_h."""
    c, settings, checked = _settings(s)
    eps = mocha.mocha_smooth(c, **settings)
    return replace(mocha.mocha_gap(c, suboptimality=eps.value), requires=eps.requires + checked)


# ---------------------------------------------------------------- sigma'


def _safety(s: Setting) -> Bound:
    is_method("safe sigma'", s.method, "MOCHA", "CoCoA")
    rule = s.method.sigma
    by_rule = Hypothesis("sigma' by a rule", f"sigma = {rule!r}", rule is None or isinstance(rule, str))
    require("safe sigma'", by_rule)
    return replace(mocha.safe_sigma_bound(_constants(s)), requires=(by_rule,))


def _separability(s: Setting, rounds: Sequence[int]) -> np.ndarray | None:
    """Return the ratio of an alpha that power iterations make as bad as they can."""
    p = s.problem
    assert isinstance(p, MultiTaskProblem)
    return np.full(len(rounds), separability(p, worst_duals(p)))


# ---------------------------------------------------------------- for reports


def _tolerance(s: Setting) -> float:
    best = s.problem.solve()
    return 1e-11 * (1.0 + abs(best.value)) + 2.0 * best.gap


def _shown(s: Setting) -> dict[str, tuple[float, str]]:
    c = _constants(s)
    return {
        "mu": (c.mu, "strong convexity of l*, 1/smoothness of the loss"),
        "w": (c.width, "width of the domain of l*, or 2 L"),
        "sigma'": (c.sigma, f"{s.method.sigma!r}"),
        "least safe sigma'": (c.least_sigma, "exact: largest eigenvalue on the tasks' row spaces"),
        "sigma_max": (c.sigma_max, "exact: largest singular values of the tasks' rows"),
        "N": (c.weight, "exact: sum c_t n_t"),
    }


_DUAL, _GAP = DUAL_SUBOPTIMALITY, DUALITY_GAP
_ABOUT: dict[str, Any] = {"kind": MultiTaskProblem, "tolerance": _tolerance, "shown": _shown}

THEOREMS = (
    Theorem(
        "mocha-smooth",
        _DUAL,
        _rate(mocha.mocha_smooth),
        "MOCHA, smooth losses (Smith et al., Theorem 1)",
        "mocha",
        _suboptimality,
        _exact(_suboptimality),
        **_ABOUT,
    ),
    Theorem("mocha-gap", _GAP, _gap_rate, "MOCHA, duality gap", "mocha", _gap, _exact(_gap), **_ABOUT),
    Theorem(
        "mocha-lipschitz",
        _DUAL,
        _rate(mocha.mocha_lipschitz),
        "MOCHA, Lipschitz losses (Smith et al., Theorem 2)",
        "mocha",
        _suboptimality,
        _exact(_suboptimality),
        **_ABOUT,
    ),
    Theorem(
        "mocha-sigma",
        SEPARABILITY,
        _safety,
        "MOCHA, safe sigma'",
        "mocha",
        exact=_separability,
        **_ABOUT | {"tolerance": lambda s: 0.0},
    ),
)
