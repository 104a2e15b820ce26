"""What theorems on MOCHA and CoCoA read off a run: constants, the start, accuracies of the nodes; and their rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedconvex.families.multitask.separability import DualConstants, dual_constants
from fedconvex.families.multitask.theorems.dual_rounding import dual_rounding, gap_rounding, sizes_of
from fedconvex.methods import MOCHA
from fedconvex.problems import MultiTaskProblem
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.quantities import Exact, Sample

NAME = "MOCHA's rate"
LOOKS = 32  # trajectories from which theta is measured
LARGEST = 2000  # order of the matrix whose largest eigenvalue is the least safe sigma': seconds
_OTHERS = 1_000_003  # what separates their seed from the one of the run


def dual_value(state: Any) -> np.ndarray:
    """D(alpha) of every trajectory, (R,)."""
    return np.asarray(state.conjugate.sum(axis=1) + 0.5 * np.einsum("rtj,rtj->r", state.w, state.v))


def share_asked(s: Setting) -> float:
    """Probability that a node is asked in a round."""
    return 1.0 if not hasattr(s.method, "participation") else participants(s) / s.problem.federation.K


def exact_of(sample: Sample) -> Exact:
    """Return what one run shows where nothing is drawn: no clock, no drops, all nodes, one row each."""

    def exact(s: Setting, rounds: Sequence[int]) -> np.ndarray | None:
        m, fed = s.method, s.problem.federation
        still = getattr(m, "clock", None) is None and not np.any(getattr(m, "drop", 0.0)) and share_asked(s) == 1.0
        return sample(s, rounds, 0, 1)[:, 0] if still and int(fed.sizes.max()) == 1 else None

    return exact


def gap_parts(s: Setting, state: Any) -> np.ndarray:
    """Every node's part of the duality gap, which is that of its subproblem before the round, (R, m)."""
    losses = s.problem.client_values(state.w)
    return np.asarray(losses + state.conjugate + np.einsum("rtj,rtj->rt", state.w, state.v))


def accuracy(s: Setting) -> tuple[float, float, tuple[Hypothesis, ...]]:
    """Return p_max and Theta_max, with what is known of them.

    p_max is what the method says of drops and participation, and the largest share, of any node and round, of
    trajectories in which the node worked and gained nothing. Theta_max is the largest certified theta_t of nodes that
    gained something, or the accuracy that the method asks for. Nodes without anything to gain do not count.
    """
    m = s.method
    looking = replace(m, certify=True) if hasattr(m, "certify") else m
    nothing, idle, largest, before = dual_rounding(sizes_of(s, sigma_of(s))) / s.problem.federation.K, 0.0, 0.0, None
    runs = iterate(looking, s.problem, rounds=s.rounds, seed=s.seed + _OTHERS, trajectories=LOOKS, start=s.start)
    for _, state in runs:
        if before is not None:
            worked = (state.steps > before.steps) & (gap_parts(s, before) > nothing)
            gained = worked & (state.theta < 1.0)
            share = (worked & ~gained).sum(axis=0) / np.maximum(worked.sum(axis=0), 1)
            idle, largest = max(idle, float(share.max())), max(largest, float(state.theta[gained].max(initial=0.0)))
        before = state
    seen = f"the largest certified one in {s.rounds} rounds of {LOOKS} trajectories is {largest:.4g}"
    checked: tuple[Hypothesis, ...] = ()
    if m.theta is not None:
        asked = Hypothesis(f"nodes that reach the accuracy theta = {m.theta:g}", seen, largest <= m.theta)
        checked, largest = require(NAME, asked), float(m.theta)
    dropped = 1.0 - (1.0 - float(np.max(getattr(m, "drop", 0.0)))) * share_asked(s)
    p_max = 1.0 - (1.0 - dropped) * (1.0 - idle)
    checked += (
        Hypothesis(
            "theta_t = 1 with probability <= p_max", f"p_max = {p_max:.4g}: {dropped:.4g} absent, {idle:.4g} idle"
        ),
        Hypothesis("E[theta_t | theta_t < 1, past] <= Theta_max", f"Theta_max = {largest:.4g}; {seen}"),
    )
    return p_max, largest, checked


def first_state(s: Setting) -> Any:
    """Return the state before the first round."""
    require(NAME, Hypothesis("a start at alpha = 0", f"‖W‖ = {np.linalg.norm(s.start):g}", not s.start.any()))
    return s.method.init(s.problem, np.array(s.start[None]))


def constants_of(s: Setting) -> DualConstants:
    """Return the constants for the method's sigma'."""
    p = s.problem
    assert isinstance(p, MultiTaskProblem)
    order = int(np.minimum(p.federation.sizes, p.federation.d).sum())
    require(
        NAME,
        Hypothesis("a fixed relationship", f"{p.relation!r}", not p.relation.learned),
        Hypothesis(f"row spaces of at most {LARGEST:,} dimensions together", f"{order:,}", order <= LARGEST),
    )
    return dual_constants(p, sigma_of(s))


def sigma_of(s: Setting) -> float:
    """Return the method's sigma'."""
    return float(first_state(s).sigma[0])


def dual_tolerance(s: Setting) -> float:
    """How far rounding, the exact solution, and nodes that count as done may move D(alpha^h) - min D."""
    return dual_rounding(sizes_of(s, sigma_of(s))) * (1.0 + s.rounds) + 2.0 * float(s.problem.solve().gap)


def gap_tolerance(s: Setting) -> float:
    """How far they may move the duality gap, which is bounded by 1/s times the dual suboptimality."""
    c = constants_of(s)
    return float(gap_rounding(sizes_of(s, c.sigma)).sum()) + dual_tolerance(s) * (1.0 + c.sigma * c.sigma_max / c.mu)


def constants_shown(s: Setting) -> dict[str, tuple[float, str]]:
    """Return the constants for reports."""
    c = constants_of(s)
    return {
        "mu": (c.mu, "strong convexity of l*, 1/smoothness of the loss"),
        "w": (c.width, "width of the domain of l*, or 2 L"),
        "sigma'": (c.sigma, f"{s.method.sigma!r}"),
        "least safe sigma'": (c.least_sigma, "exact: largest eigenvalue on the tasks' row spaces"),
        "sigma_max": (c.sigma_max, "exact: largest singular values of the tasks' rows"),
        "N": (c.weight, "exact: sum c_t n_t"),
    }


def dual_steps(kind: Callable[..., Any] = MOCHA, **settings: Any) -> MethodRule:
    """Return MOCHA, or CoCoA, with sigma' by its rule."""
    rule = settings.get("sigma")
    words = f"of the rule {rule!r}" if isinstance(rule, str) else "of the least safe rule" if rule is None else "given"
    return MethodRule(f"sigma' {words}", lambda theorem, problem, start, rounds: kind(**settings))
