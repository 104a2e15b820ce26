"""Blocks of rows and columns: the rates of dual ascent and of tracked local steps, and what these reduce to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedconvex.methods import HybridDualAscent, TrackedBlockDescent
from fedconvex.problems import HybridProblem
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts import block_owners
from fedconvex.theorems.parts.block_owners import problem_of
from fedconvex.theory.worst_case import blocks as worst

__all__ = ["STATEMENT", "THEOREMS", "hybrid_dual_rate", "hybrid_reduction", "hybrid_tracked_rate"]

NAME = "hybrid"
SOURCE = "fedconvex, docs/theory/hybrid.md"
_DUAL = Quantity("E[D* - D(alpha_T)], of the dual variables", "dual suboptimality", **FROM_MINIMUM)
SUBOPTIMALITY = Quantity("F(w_T) - F*, of the blocks together", "suboptimality", **FROM_MINIMUM)

STATEMENT = Statement(
    page="hybrid",
    title="Blocks of rows and columns: dual ascent, tracked local steps",
    scope=OF_OWNERS,
    setting="""
F(w) = mean_i l(x_i'w, y_i) + (l2/2)‖w‖^2 over n rows in G groups, D(alpha) = mean_i -l*(-alpha_i) -
(l2/2)‖X'alpha/(l2 n)‖^2 its dual, w = X'alpha/(l2 n). Columns are in groups, too; a block has one owner, or none and is
zero. HybridDualAscent: at most N rows move in a round, each with probability q or more. TrackedBlockDescent: Q steps of
eta/Q on every block, corrected by grad F.
""",
    assumptions="""
Dual: l convex and (1/mu)-smooth, l2 > 0. Tracked: l convex and smooth; L the larger of F's smoothness and that of the
roughest block, a = eta L, delta = a (Q - 1)/(2 Q), c = 1 - delta - (a/2)(1 + delta)^2 > 0, delta < 1. Reduction: Q = 1,
or one group of columns, or one group of rows with blocks that are equally smooth.
""",
    statement="""
Dual         E[D* - D(alpha_T)] <= (1 - q s)^T (D* - D(alpha_0)), s = mu l2 n/(mu l2 n + N max ‖x_i‖^2); where all
             rows move in every round (1 - s)^{2T}. D never decreases.
Tracked      F(w_T) - F* <= (1 - 2 a c l2/L)^T (F(w_0) - F*); for Q = 1, a <= 1 (1 - eta l2)^{2T}.
Reduction    Tracked steps are gradient descent on F for Q = 1, FedLin for one group of columns, and FedBCD without
             damping, with steps of eta/Q, for one group of rows.
""",
    source="""
Derived here, after Shalev-Shwartz and Zhang, JMLR 14 (2013), Lemma 1, and Mitra, Jaafar, Pappas, Hassani, NeurIPS 2021.
The squares are exact rates of (proximal) gradient descent in function values: Taylor, Hendrickx, Glineur, J. Optim.
Theory Appl. 178 (2018), with the proof below. Hybrid data and HyFDCA: Overman, Blum, Klabjan, arXiv:2210.08106.
""",
    differs="""
Overman et al. show O(1/t) for complete participation (as their abstract says); the dual of a smooth loss is strongly
concave, and a linear rate follows.
""",
    meaning="""
**Dual.** Rows of all groups can move at once, whatever their owners' columns, if each allows for all of them; groups
that do not answer cost time, never ascent.

**Tracked.** Several local steps on blocks do no harm if all are corrected by the full gradient and eta allows for F,
not for blocks only; at a fixed eta they do no good either.
""",
    proof="""
**Dual.** Let N rows move, by Delta. By Cauchy ‖sum Delta_i x_i‖^2 <= N sum Delta_i^2 ‖x_i‖^2, so that D rises by at
least what the separate problems of the rows promise. Each promises no less than for Delta_i = s (u_i - alpha_i), u_i =
-l'(z_i): by strong convexity of l*, (s/n)(l(z_i) + l*(-alpha_i) + alpha_i z_i) + (s/(2n)) (mu (1 - s) -
s N ‖x_i‖^2/(l2 n)) (u_i - alpha_i)^2, whose last term is not negative for this s. No row's promise is negative, and
their sum over all rows is s times F(w) - D(alpha) >= D* - D(alpha). Take expectations. *All rows.* Such a round is
proximal gradient descent in the norm sum (N ‖x_i‖^2/(l2 n^2)) alpha_i^2: in it the ridge's part is 1-smooth and
mean l* strongly convex with k = mu l2 n/(N max ‖x_i‖^2). With (k/2)‖.‖^2 moved from one part to the other it is the
method with steps 1/L', L' = 1 + k, on f + h, f L'-smooth and strongly convex with k, h convex; k/L' = s. In units in
which L' = 1, put r = 1 - s and subtract linear functions so that at the optimum a* = 0 both gradients and values are
zero: a+ = a - g - p, g = grad f(a), g+ = grad f(a+), p in the subdifferential of h at a+. Add r times the inequality
of interpolation of f (as for `vertical-rate`, with s for k) for (a, a+), r s times that for (a*, a), s times that for
(a*, a+), r^2 times h(a) >= h(a+) + <p, a - a+>, and 1 - r^2 times that for a*: all that is left beside
r^2 (f + h)(a) - (f + h)(a+) is -‖g+ + s g - s a + p‖^2/(2 r) - ‖s a - g - r p‖^2/2 - (1 - r^2)‖p‖^2/2.
Rows of zeros, which that norm does not see, are at their best after one round.

**Tracked.** Steps of at most 2/L on a convex L-smooth function do not expand, so after q of them ‖v - w_b‖ <=
(eta q/Q) ‖g_b‖, and the gradients of the block's rows have moved by at most L times that. So w+ = w - eta (g + e),
‖e_b‖ <= delta ‖g_b‖, since answers are averaged with weights that sum to one: ‖e‖ <= delta ‖g‖. By smoothness F falls
by at least eta ‖g‖^2 (1 - delta - (a/2)(1 + delta)^2) = (a c/L)‖g‖^2, and ‖g‖^2 >= 2 l2 (F - F*). *Q = 1.* Gradient
descent with the step eta <= 1/L on a 1/eta-smooth function: the case h = 0 above, with s = eta l2.

**Reduction.** With one group of columns every owner has all of them: its steps are FedLin's. With one group of rows
X_b'(l'(z + X_b(v - w_b)) - r)/n + l2 (v - w_b) + g_b is the gradient of F in block b with the others frozen. ∎
""",
    loose="""
The dual rate is attained where all rows move and rows with equal features have other labels (`one row, two labels`);
where rows are drawn the expected factor is about 1 - 2 q s there. The tracked rate is attained for Q = 1 by owners of
the same column who disagree (`one column, many owners`). `tests/test_verify_hybrid.py` plants s and l2 that are 1 % too
large, a step that is off by 1e-6, and roughness of blocks only.
""",
)


def hybrid_dual_rate(
    l2: float, rows: int, mu: float, moves: int, share: float, length: float, rounds: int, start_gap: float
) -> Bound:
    """Return (1 - q s)^T (D* - D(alpha_0)), or (1 - s)^{2T} of it where all rows move.

    Parameters
    ----------
    l2 : float
    rows : int
        n.
    mu : float
        1/smoothness of the loss.
    moves : int
        N, the most rows that move in a round.
    share : float
        q, the least probability that a row moves.
    length : float
        max ‖x_i‖.
    rounds : int
        T.
    start_gap : float
        D* - D(alpha_0).

    Raises
    ------
    ValueError, TypeError
        If l2 is not positive, rows is below 1, moves not in 1, ..., rows, share not in [0, 1], or another number
        negative.
    AssumptionError
        If mu = 0: the loss is not smooth.

    Examples
    --------
    >>> from fedconvex.theorems.hybrid import hybrid_dual_rate
    >>> round(hybrid_dual_rate(0.5, 2, 1.0, 2, 1.0, 1.0, 1, 9.0).value, 12)  # s = 1/3
    4.0
    """
    l2 = real("hybrid_dual_rate: l2", l2, low=0.0, strict=True)
    n, N = whole("hybrid_dual_rate: rows", rows, low=1), whole("hybrid_dual_rate: moves", moves, low=1, high=rows)
    mu, q = real("hybrid_dual_rate: mu", mu, low=0.0), real("hybrid_dual_rate: share", share, low=0.0, high=1.0)
    R, T = real("hybrid_dual_rate: length", length, low=0.0), whole("hybrid_dual_rate: rounds", rounds, low=0)
    gap = real("hybrid_dual_rate: start_gap", start_gap, low=0.0)
    checked = require(NAME, Hypothesis("a smooth loss", f"mu={mu:g}", mu > 0.0))
    s = mu * l2 * n / (mu * l2 * n + N * R * R)
    factor = (1.0 - s) ** 2 if q == 1.0 and N == n else 1.0 - q * s
    return Bound({"contraction": factor**T * gap}, _DUAL, SOURCE, checked)


def hybrid_tracked_rate(
    l2: float, smoothness: float, step_size: float, local_steps: int, rounds: int, start_gap: float
) -> Bound:
    """Return (1 - 2 a c l2/L)^T (F(w_0) - F*), or (1 - eta l2)^{2T} of it for one local step, a <= 1.

    Parameters
    ----------
    l2 : float
    smoothness : float
        L, of F and of the roughest block.
    step_size : float
        eta.
    local_steps, rounds : int
        Q, T.
    start_gap : float
        F(w_0) - F*.

    Raises
    ------
    AssumptionError
        If steps are too large.

    Examples
    --------
    >>> from fedconvex.theorems.hybrid import hybrid_tracked_rate
    >>> hybrid_tracked_rate(0.5, 1.0, 1.0, 1, 1, 8.0).value
    2.0
    """
    l2 = real("hybrid_tracked_rate: l2", l2, low=0.0, strict=True)
    L = real("hybrid_tracked_rate: smoothness", smoothness, low=l2)
    eta = real("hybrid_tracked_rate: step_size", step_size, low=0.0, strict=True)
    Q = whole("hybrid_tracked_rate: local_steps", local_steps, low=1)
    T = whole("hybrid_tracked_rate: rounds", rounds, low=0)
    gap, a = real("hybrid_tracked_rate: start_gap", start_gap, low=0.0), eta * L
    delta = a * (Q - 1) / (2 * Q)
    c = 1.0 - delta - 0.5 * a * (1.0 + delta) * (1.0 + delta)  # a power would raise where it overflows
    checked = require(NAME, Hypothesis("delta < 1 and c > 0", f"eta L={a:g}, c={c:g}", delta < 1.0 and c > 0.0))
    factor = (1.0 - eta * l2) * (1.0 - eta * l2) if Q == 1 and a <= 1.0 + 1e-12 else 1.0 - 2.0 * a * c * l2 / L
    return Bound({"contraction": factor**T * gap}, SUBOPTIMALITY, SOURCE, checked)


def hybrid_reduction(value: float) -> Bound:
    """Return F(v_T) - F*, v_T the model of the method that tracked steps reduce to.

    Parameters
    ----------
    value : float

    Raises
    ------
    ValueError, TypeError
        If value is not finite.

    Examples
    --------
    >>> from fedconvex.theorems.hybrid import hybrid_reduction
    >>> hybrid_reduction(0.5).value
    0.5
    """
    return Bound({"the other": real("hybrid_reduction: value", value)}, SUBOPTIMALITY, SOURCE)


# ---------------------------------------------------------------- what a run shows


def _read_dual(s: Setting) -> Reading:
    is_method(NAME, s.method, HybridDualAscent)
    p, m = problem_of(s), s.method
    smooth = traits(p.loss).smoothness
    checked = require(NAME, Hypothesis("a smooth loss", f"{p.loss!r}", math.isfinite(smooth)), _one_score(p))
    heights, sizes, groups = m.heights(p), p.federation.rows.sizes, m.groups(p)
    numbers = {
        "l2": p.l2,
        "rows": p.federation.n,
        "mu": 1.0 / smooth,
        "moves": int(np.sort(heights)[-groups:].sum()),
        "share": float((heights / sizes).min()) * groups / heights.size * (1.0 - m.drop),
        "length": math.sqrt(float(p.row_norms.max())),
        "rounds": s.rounds,
        "start_gap": max(p.solve().value - p.dual_value(np.zeros(p.federation.n)), 0.0),
    }
    return Reading(numbers, checked)


def _one_score(p: HybridProblem) -> Hypothesis:
    return Hypothesis("a loss of one score", f"{p.loss!r}", not traits(p.loss).several)


def _dual_exact(s: Setting, rounds: Sequence[int]) -> Found | None:
    if not traits_of(s.method, s.problem).deterministic:
        return None
    values = block_owners.dual_gaps(s, rounds, s.seed, 1)[:, 0]
    return Found(values, np.full(len(rounds), _dual_rounding(s, 0.0)))


def _dual_rounding(s: Setting, value: float) -> float:
    best = problem_of(s).solve()
    return best.gap + 100.0 * UNIT * (1.0 + abs(best.value))


def _tracked(s: Setting) -> tuple[HybridProblem, tuple[Hypothesis, ...]]:
    is_method(NAME, s.method, TrackedBlockDescent)
    eta = s.method.step_size
    return problem_of(s), require(NAME, Hypothesis("one constant step size", f"{eta!r}", isinstance(eta, float)))


def _read_tracked(s: Setting) -> Reading:
    p, checked = _tracked(s)
    smooth = math.isfinite(traits(p.loss).smoothness)
    checked += require(NAME, Hypothesis("a smooth loss", f"{p.loss!r}", smooth))
    gap = max(float(p.value(s.start)) - p.solve().value, 0.0)
    numbers = {"l2": p.l2, "smoothness": _roughest(p), "step_size": s.method.step_size, "start_gap": gap}
    return Reading({**numbers, "local_steps": s.method.local_steps, "rounds": s.rounds}, checked)


def _worst_tracked(s: Setting) -> tuple[float, float, str]:
    """Return the exact worst case over all functions with the setting's l2, L and F(w_0) - F*."""
    told, p = _read_tracked(s).arguments, problem_of(s)
    Q, T, L, gap = (told[name] for name in ("local_steps", "rounds", "smoothness", "start_gap"))
    sizes, B = p.federation.rows.sizes, p.federation.B if Q > 1 else 1
    if not (gap > 0.0 and T > 0):
        return math.nan, math.nan, "the programme is for a start that is not optimal, and a round or more"
    if Q > 1 and p.federation.K < p.federation.G * p.federation.B:
        return math.nan, math.nan, "the programme is for blocks that all have an owner"
    weights = tuple((sizes / sizes.sum()).tolist()) if Q > 1 else (1.0,)  # one step is gradient descent on F
    found = worst.BlockClass(weights, (L,) * B, p.l2, L)
    low, high, why = worst.interval(worst.tracked_steps, (told["step_size"], Q, T), found)
    words = f"all {p.l2:.4g}-strongly convex {L:.4g}-smooth F of {len(weights)} groups of rows and {B} of columns"
    return low * gap, high * gap, why or f"{words}, from F(w_0) - F* = {gap:.4g}, in any dimension"


def _roughest(p: HybridProblem) -> float:
    return max(p.smoothness.F, float(p.block_smoothness.max()))


def _read_reduction(s: Setting) -> Reading:
    p, checked = _tracked(s)
    fed, Q = p.federation, s.method.local_steps
    rough = p.block_smoothness
    even = fed.G == 1 and float(np.ptp(rough)) <= 1e-12 * float(rough.max())
    got = f"Q={Q}, {fed.G} groups of rows, {fed.B} of columns"
    checked += require(
        NAME, Hypothesis("a method that it reduces to", got, Q == 1 or fed.B == 1 or even), _one_score(p)
    )
    w = block_owners.by_descent(s) if Q == 1 else block_owners.by_rows(s) if fed.B == 1 else block_owners.by_columns(s)
    with np.errstate(all="ignore"):
        value = float(p.value(w)) - p.solve().value
    finite = Hypothesis("steps that do not overflow", f"F(v_T) - F*={value:g}", math.isfinite(value))
    return Reading({"value": value}, checked + require(NAME, finite))


def _suboptimality(s: Setting, rounds: Sequence[int]) -> Found:
    p, states = problem_of(s), block_owners.models(s.method, s.problem, s.start, max(rounds))
    values = np.array([float(p.value(states[T])) for T in rounds])
    best = p.solve()
    return Found(values - best.value, best.gap + 100.0 * UNIT * (1.0 + np.abs(values)))


def _constants(s: Setting) -> dict[str, tuple[float, str]]:
    p = problem_of(s)
    return {
        "l2": (p.l2, "given"),
        "F*": (p.solve().value, "exact solution"),
        "max ‖x_i‖": (math.sqrt(float(p.row_norms.max())), "exact"),
        "L": (_roughest(p), "eigenvalues, of F and of blocks"),
    }


def _ascent(**settings: Any) -> MethodRule:
    return MethodRule("fixed", lambda theorem, problem, start, rounds: HybridDualAscent(**settings))


def _some_rows(batch: int) -> MethodRule:
    """Return dual ascent on at most so many rows of a group, or on all."""

    def make(theorem: Theorem, problem: Any, start: np.ndarray, rounds: int) -> HybridDualAscent:
        return HybridDualAscent(batch_size=min(batch, int(problem.federation.rows.sizes.min())) or None)

    return MethodRule("fixed", make)


def _steps(share: float, Q: int) -> MethodRule:
    """Return tracked steps of this share of 1/L."""

    def make(theorem: Theorem, problem: Any, start: np.ndarray, rounds: int) -> TrackedBlockDescent:
        return TrackedBlockDescent(step_size=share / _roughest(problem), local_steps=Q)

    return MethodRule(f"{share:g}/L", make)


_ABOUT: dict[str, Any] = {"kind": HybridProblem, "constants": _constants, "statement": STATEMENT}

THEOREMS = (
    Theorem(
        name="hybrid-dual",
        title="Dual ascent over blocks: rows of all groups at once",
        quantity=_DUAL,
        bound=hybrid_dual_rate,
        read=_read_dual,
        exact=_dual_exact,
        sample=block_owners.dual_gaps,
        tolerance=_dual_rounding,
        says="D* - D falls by 1 - q s a round in expectation, whoever owns which columns, and D never decreases.",
        loose="Attained by rows with equal features and other labels where all rows move; else by a factor 2 in s.",
        method=_ascent(),
        rounds=3,
        checks=(
            block_owners.one_row_two_labels,
            block_owners.with_a_gap,
            block_owners.tumours_in_blocks,
            *(Check(block_owners.with_a_gap, _ascent(batch_size=3, drop=0.1), T) for T in (1, 2)),
            Check(block_owners.six_equal_rows, _ascent(batch_size=5), 5),
            Check(block_owners.tumours_in_blocks, _steps(0.5, 1)),  # another method
            two_clients,  # no blocks
        ),
        space=block_owners.blocks_space(_some_rows, from_zero, batch=Whole(0, 5)),
        **_ABOUT,
    ),
    Theorem(
        name="hybrid-tracked",
        title="Local steps over blocks, corrected by the full gradient",
        quantity=SUBOPTIMALITY,
        bound=hybrid_tracked_rate,
        read=_read_tracked,
        exact=_suboptimality,
        worst=_worst_tracked,
        says="F - F* falls by 1 - 2 a c l2/L a round, for any number of local steps on any blocks.",
        loose="Attained for one local step by owners of the same column who disagree.",
        method=_steps(1.0, 1),
        rounds=4,
        checks=(
            Check(block_owners.one_column, start=block_owners.between),
            block_owners.with_a_gap,
            block_owners.tumours_in_blocks,
            Check(block_owners.tumours_in_blocks, _steps(0.4, 5)),
            Check(block_owners.one_column, _steps(0.38, 8), start=block_owners.between),
            Check(
                block_owners.one_column, _steps(0.38, 2), 1, start=block_owners.between
            ),  # within reach of exact worst cases
            Check(block_owners.nearly_round, _steps(0.4, 8), 1, all_ones),
            Check(block_owners.with_a_gap, _steps(1.2, 5)),  # too large
            Check(block_owners.one_column, _steps(2.0, 1)),  # not for a block alone
        ),
        space=block_owners.blocks_space(_steps, share=Real(0.02, 1.9, 3.0), Q=Whole(1, 8)),
        **_ABOUT,
    ),
    Theorem(
        name="hybrid-reduction",
        title="Local steps over blocks: what they reduce to",
        quantity=SUBOPTIMALITY,
        bound=hybrid_reduction,
        read=_read_reduction,
        exact=_suboptimality,
        equation=True,
        says="With one group of columns tracked steps are FedLin, with one of rows FedBCD, with one step descent.",
        loose="An equation.",
        method=_steps(0.5, 4),
        rounds=4,
        checks=(
            block_owners.turned_columns,
            block_owners.tumours_by_hospital,
            Check(block_owners.with_a_gap, _steps(1.0, 1)),
            block_owners.with_a_gap,  # several local steps on several groups of both
        ),
        space=block_owners.blocks_space(_steps, share=Real(0.1, 1.0), Q=Whole(1, 6)),
        **_ABOUT,
    ),
)
