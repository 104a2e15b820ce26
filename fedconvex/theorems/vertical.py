"""Columns of several owners: the rate of damped blocks, which damping diverges, the gap from one number an owner."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedconvex.methods import FedBCD, VerticalGradientDescent
from fedconvex.problems import VerticalProblem
from fedconvex.solvers.damping import block_root
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.column_owners import (
    between,
    blood,
    duality_gap,
    one_column_thrice,
    owners_space,
    problem_of,
    shared_direction,
    three_owners,
    tumours,
)
from fedconvex.theorems.parts.environments import last_state
from fedconvex.theorems.parts.growth import SETTLED, died_out, errors_seen, growths
from fedconvex.theory.worst_case import blocks

__all__ = ["STATEMENT", "THEOREMS", "vertical_certificate", "vertical_growth", "vertical_rate"]

NAME = "vertical"
SOURCE = "fedconvex, docs/theory/vertical.md"
SUBOPTIMALITY = Quantity("F(w_T) - F*, of the blocks together", "suboptimality", **FROM_MINIMUM)
GROWTH = Quantity("‖w_T - w*‖/‖w_{T-1} - w*‖, of the blocks together", "growth", by_rounds=False, **FROM_MINIMUM)
GAP = Quantity("P(w_T) - D(-l'(z_T)), the duality gap", "duality gap", least=0.0)

STATEMENT = Statement(
    page="vertical",
    title="Columns of several owners: rate, divergence, certificate",
    scope=OF_OWNERS,
    setting="""
F(w) = mean_i l(sum_b x_{ib}'w_b, y_i) + (l2/2)‖w‖^2, the columns b and the block w_b at owner b = 1, ..., m; L_b is the
smoothness of F in w_b alone. FedBCD: all owners at once take Q steps of eta_b on their blocks while the scores of the
others stand still, and move by theta times the difference.
""",
    assumptions="""
Rate: l convex and smooth, eta_b = 1/L_b, theta <= 1/m. Growth: squared loss, eta_b < 2/L_b, any theta; T so large that
in w_{T-1}, by which the last move is divided, all but the leading mode have died out, and that mode not gone itself.
Certificate: l convex, l2 > 0 on all coordinates; any w, any method.
""",
    statement="""
Rate         F(w_T) - F* <= (1 - theta l2/max_b L_b)^{pT} (F(w_0) - F*), p = 2 for Q = 1 and p = 1 for every Q.
Growth       w_{t+1} - w* = (I - theta Pi H)(w_t - w*), H the Hessian, block b of Pi
             (I - (I - eta_b H_bb)^Q) H_bb^{-1}: errors grow by max |1 - theta kappa| over the eigenvalues kappa > 0 of
             Pi H in the long run, unless w_0 - w* has no part in that mode, and vanish from every w_0 if and only if
             theta < 2/kappa_max. kappa_max < 2m, and <= m for eta_b <= 1/L_b.
Certificate  ‖grad F(w)‖^2/(2 l2) = P(w) - D(alpha) at alpha_i = -l'(z_i, y_i): one number an owner gives the duality
             gap, and F(w) - F* is at most that.
""",
    source="""
Derived here. FedBCD: Liu, Kang, Zhang, Li, Cheng, Chen, Hong, Yang, arXiv:1912.11187. The square for Q = 1 is the exact
rate of gradient descent in function values: Taylor, Hendrickx, Glineur, J. Optim. Theory Appl. 178 (2018), with the
proof below.
""",
    differs="""
The paper shows O(1/√T) for O(√T) local steps, for functions that need not be convex, with steps that shrink as Q grows;
it says nothing of damping.
""",
    meaning="""
**Rate.** However many local steps owners take, moves divided by the number of owners never do harm.

**Growth.** Undamped blocks overshoot where columns of different owners are correlated; more local steps make it worse,
not better. `VerticalProblem.damping` returns the kappa.

**Certificate.** No dual variables are kept, and none are needed: whoever sums up ‖grad_b F‖^2 knows the duality gap.
""",
    proof="""
**Rate, every Q.** w+ = (1 - m theta) w + theta sum_b (w with block b moved), so F(w+) - F(w) <= theta sum_b of the
changes of F by single moves: F is convex. A single move gains ‖grad_b F‖^2/(2 L_b) by its first step, and loses nothing
by the others. So F(w+) - F(w) <= -theta ‖grad F‖^2/(2 max L_b) <= -theta (l2/max L_b)(F(w) - F*).

**Rate, Q = 1.** w+ = w - theta D^{-1} grad F, D = diag(L_b). In the norm of D, F is 1/theta-smooth: by convexity
F(w + s) <= mean_b F(w + m s_b) <= F(w) + <grad F, s> + (m/2) sum_b L_b ‖s_b‖^2, and m <= 1/theta; and it is strongly
convex with l2/max L_b. So this is gradient descent with the step 1/L. In units in which L = 1, put k for the modulus,
w* = 0, F* = 0, r = 1 - k, and write the interpolation inequality F_i >= F_j + <g_j, x_i - x_j> + (‖g_i - g_j‖^2 +
k ‖x_i - x_j‖^2 - 2 k <g_j - g_i, x_j - x_i>)/(2 r). Add r times that for (w, w+), r k times that for (w*, w), and k
times that for (w*, w+): all that is left beside r^2 F(w) - F(w+) is -(‖g+ + k g - k w‖^2 + r ‖k w - g‖^2)/(2 r).

**Growth.** Owner b's steps contract towards the minimum of a quadratic with Hessian H_bb: they move w_b by
-(I - (I - eta_b H_bb)^Q) H_bb^{-1} grad_b F, and grad F = H (w - w*). Every block of Pi is positive, since
0 < eta_b h < 2. Pi^{1/2} H Pi^{1/2} is symmetric and has the eigenvalues of Pi H. With G the block diagonal of H,
x'Hx <= m x'Gx by Cauchy and Schwarz, and Pi^{1/2} G Pi^{1/2} has the eigenvalues 1 - (1 - eta_b h)^Q, below 2, and at
most 1 for eta_b <= 1/L_b.

**Certificate.** By Fenchel and Young l(z) + l*(l'(z)) = z l'(z). So with v = -X'l'(z)/(l2 n),
P(w) - D = mean_i z_i l'(z_i) + (l2/2)(‖w‖^2 + ‖v‖^2) = (l2/2)(‖w‖^2 - 2 w'v + ‖v‖^2) = (l2/2)‖w - v‖^2, and
grad F = l2 (w - v). ∎
""",
    loose="""
`vertical-rate` is attained for Q = 1 by owners of the same column who disagree (`one column thrice`). For Q > 1 the
bound takes p = 1. With squared loss p = 2 holds for every Q: 1 - (1 - h/L_b)^Q >= h/L_b, so Pi >= D^{-1} in the proof
of growth, and the eigenvalues of theta H^{1/2} Pi H^{1/2} lie between theta l2/max_b L_b and theta m <= 1; F - F* is
half the square of H^{1/2}(w - w*). `one column thrice` attains it for every Q. With other losses p = 2 is neither
proved nor refuted for Q > 1: with equally smooth blocks the exact worst case is the square wherever it was computed,
and no instance is known that falls more slowly. Growth is an equation; what remains of other modes after T - 1 rounds
is at most 1e-9 of the leading one, and 1e-6 is allowed. The certificate is an equation.
`tests/test_verify_vertical.py` plants l2 that is 1 % too large, dampings that are off by 1e-4, steps forgotten, and a
certificate that is off by 1e-9.
""",
)


def vertical_rate(l2: float, smoothness: Any, theta: float, local_steps: int, rounds: int, start_gap: float) -> Bound:
    """Return (1 - theta l2/max L_b)^{pT} (F(w_0) - F*), p = 2 for one local step, else 1.

    Parameters
    ----------
    l2 : float
    smoothness : array (m,)
        L_b of F in every block alone.
    theta : float
        Damping, at most 1/m.
    local_steps : int
        Q, of the size 1/L_b.
    rounds : int
        T.
    start_gap : float
        F(w_0) - F*.

    Raises
    ------
    AssumptionError
        If theta exceeds 1/m, or l2 is zero.

    Examples
    --------
    >>> from fedconvex.theorems.vertical import vertical_rate
    >>> vertical_rate(0.25, [1.0, 1.0], 0.5, 1, 1, 8.0).value
    6.125
    """
    l2, theta = real("vertical_rate: l2", l2, low=0.0), real("vertical_rate: theta", theta, low=0.0, strict=True)
    L = np.atleast_1d(numeric("vertical_rate: smoothness", smoothness))
    if L.ndim != 1 or L.size == 0 or not (np.isfinite(L).all() and (L > 0.0).all() and (L >= l2).all()):
        raise bad("vertical_rate: smoothness", "be finite, positive and at least l2 for every owner", f"{smoothness!r}")
    Q, T = whole("vertical_rate: local_steps", local_steps, low=1), whole("vertical_rate: rounds", rounds, low=0)
    gap = real("vertical_rate: start_gap", start_gap, low=0.0)
    checked = require(
        NAME,
        Hypothesis("strong convexity from l2", f"l2={l2:g}", l2 > 0.0),
        Hypothesis("theta <= 1/m", f"theta={theta:g}, m={L.size}", theta * L.size <= 1.0 + 1e-12),
    )
    factor = 1.0 - theta * l2 / float(L.max())
    return Bound({"contraction": factor ** (T * (2 if Q == 1 else 1)) * gap}, SUBOPTIMALITY, SOURCE, checked)


def vertical_growth(kappa: Any, theta: float, rounds: int, share: float = 1.0) -> Bound:
    """Return max |1 - theta kappa|, by which errors grow in the long run.

    Parameters
    ----------
    kappa : array
        Eigenvalues of Pi H, positive.
    theta : float
        Damping.
    rounds : int
        T: the growth is that of round T, over the errors after T - 1.
    share : float
        What the leading mode is of w_0 - w*, from 0 to 1.

    Raises
    ------
    AssumptionError
        If other modes have not died out after T - 1 rounds, or all have: what is left, or has overflowed, says nothing
        of growth.

    Examples
    --------
    >>> from fedconvex.theorems.vertical import vertical_growth
    >>> round(vertical_growth([0.1, 2.5], 1.0, 300).value, 9)
    1.5
    """
    kappa = np.atleast_1d(numeric("vertical_growth: kappa", kappa))
    if kappa.ndim != 1 or kappa.size == 0 or not (np.isfinite(kappa).all() and (kappa > 0.0).all()):
        raise bad("vertical_growth: kappa", "be finite, positive eigenvalues", f"shape {kappa.shape}")
    theta = real("vertical_growth: theta", theta, low=0.0, strict=True)
    rounds = whole("vertical_growth: rounds", rounds, low=1)
    modes = 1.0 - theta * kappa
    lead = float(np.abs(modes).max())
    rest = modes[np.abs(modes - modes[np.argmax(np.abs(modes))]) > lead * SETTLED]
    share = real("vertical_growth: share", share, low=0.0, high=1.0)
    requires = require(NAME, died_out(np.abs(rest), lead, rounds, share), errors_seen(lead, rounds, share))
    return Bound({"radius": lead}, GROWTH, SOURCE, requires)


def vertical_certificate(gradients: Any, l2: float) -> Bound:
    """Return sum_b ‖grad_b F‖^2/(2 l2), the duality gap.

    Parameters
    ----------
    gradients : array (m,)
        ‖grad_b F‖^2 of every owner.
    l2 : float

    Raises
    ------
    AssumptionError
        If l2 is zero.

    Examples
    --------
    >>> from fedconvex.theorems.vertical import vertical_certificate
    >>> vertical_certificate([1.0, 3.0], 0.5).value
    4.0
    """
    g = np.atleast_1d(numeric("vertical_certificate: gradients", gradients))
    if g.ndim != 1 or g.size == 0 or not (np.isfinite(g).all() and (g >= 0.0).all()):
        raise bad("vertical_certificate: gradients", "be finite squared norms, one an owner", f"{gradients!r}")
    l2 = real("vertical_certificate: l2", l2, low=0.0)
    checked = require(NAME, Hypothesis("strong convexity from l2", f"l2={l2:g}", l2 > 0.0))
    return Bound({"gradient": float(g.sum()) / (2.0 * l2)}, GAP, SOURCE, checked)


# ---------------------------------------------------------------- what a run shows


def _in_parallel(s: Setting) -> tuple[tuple[Hypothesis, ...], float]:
    """Return what was checked, and theta."""
    is_method(NAME, s.method, FedBCD)
    m = s.method
    checked = require(NAME, Hypothesis("all blocks at once", f"order={m.order!r}", m.order == "parallel"))
    checked += require(NAME, full_participation(s))
    return checked, 1.0 / problem_of(s).federation.K if m.damping == "safe" else m.damping


def _read_rate(s: Setting) -> Reading:
    problem, (checked, theta) = problem_of(s), _in_parallel(s)
    of, share = traits(problem.loss), s.method.step_share
    checked += require(
        NAME,
        Hypothesis("a smooth loss", f"{problem.loss!r}", math.isfinite(of.smoothness)),
        Hypothesis("eta_b = 1/L_b", f"step_share={share:g}", share == 1.0),
    )
    gap = max(float(problem.value(s.start)) - problem.solve().value, 0.0)
    numbers = {"l2": problem.l2, "smoothness": problem.block_smoothness, "theta": theta, "start_gap": gap}
    return Reading({**numbers, "local_steps": s.method.local_steps, "rounds": _moves(s)}, checked)


def _worst_rate(s: Setting) -> tuple[float, float, str]:
    """Return the exact worst case over all functions with the setting's l2, L_b and F(w_0) - F*."""
    told, p = _read_rate(s).arguments, problem_of(s)
    L = tuple(np.asarray(told["smoothness"]).tolist())
    steps, gap = tuple(1.0 / b for b in L), told["start_gap"]
    run = steps, told["local_steps"], told["theta"], told["rounds"]
    if not (gap > 0.0 and told["rounds"] > 0):
        return math.nan, math.nan, "the programme is for a start that is not optimal, and blocks that move"
    low, high, why = blocks.interval(blocks.block_descent, run, blocks.BlockClass((1.0,), L, p.l2))
    words = f"all {p.l2:.4g}-strongly convex F of {len(L)} L_b-smooth blocks, L_b up to {max(L):.4g}"
    return low * gap, high * gap, why or f"{words}, from F(w_0) - F* = {gap:.4g}, in any dimension"


def _states(s: Setting, rounds: Sequence[int]) -> list[np.ndarray]:
    """Return the models of all rounds up to the last that is asked for."""
    return [state.w[0] for _, state in iterate(s.method, s.problem, rounds=max(rounds), start=s.start)]


def _suboptimality(s: Setting, rounds: Sequence[int]) -> Found:
    problem, states = problem_of(s), _states(s, rounds)
    values = np.array([float(problem.value(states[T])) for T in rounds])
    best = problem.solve()
    return Found(values - best.value, best.gap + 100.0 * UNIT * (1.0 + np.abs(values)))


def _read_growth(s: Setting) -> Reading:
    problem, (checked, theta) = problem_of(s), _in_parallel(s)
    checked += require(NAME, Hypothesis("squared loss", f"{problem.loss!r}", problem.traits.quadratic))
    moves = _moves(s)
    checked += require(NAME, Hypothesis("a round in which blocks move", f"rounds={s.rounds}", moves > 0))
    kappa = problem.damping(s.method.local_steps, s.method.step_share)
    numbers = {"kappa": kappa, "theta": theta, "share": _leading_share(s, problem, theta)}
    return Reading({**numbers, "rounds": moves}, checked)


def _moves(s: Setting) -> int:
    """Return the rounds in which blocks move: scores of a start are asked for first."""
    return max(s.rounds - bool(np.any(s.start)), 0)


def _leading_share(s: Setting, problem: VerticalProblem, theta: float) -> float:
    """Return at least what the leading mode of I - theta Pi H is of w_0 - w*: its length over those of all modes."""
    H = problem.pooled.hessian(np.zeros(problem.model_shape))
    root = block_root(H, problem.federation.ptr, s.method.local_steps, s.method.step_share)
    kappa, U = np.linalg.eigh(root @ H @ root)
    parts = U.T @ np.linalg.solve(root, np.ravel(s.start) - np.ravel(problem.solve().w))
    modes = 1.0 - theta * kappa
    first = np.abs(modes - modes[np.argmax(np.abs(modes))]) <= np.abs(modes).max() * SETTLED
    leading = float(np.linalg.norm(root @ (U[:, first] @ parts[first])))
    whole_ = leading + float(np.abs(parts[~first]) @ np.linalg.norm(root @ U[:, ~first], axis=0))
    return min(leading / whole_, 1.0) if leading > 1e-12 * whole_ else 0.0


def _growth(s: Setting, rounds: Sequence[int]) -> Found:
    problem, states = problem_of(s), _states(s, rounds)
    best = problem.solve().w
    errors = np.array([float(np.linalg.norm(w - best)) for w in states])
    h, size = np.linalg.eigvalsh(problem.pooled.hessian(np.zeros(problem.model_shape))), float(np.linalg.norm(best))
    off = (float(np.linalg.norm(problem.gradient(best))) + UNIT * h[-1] * size) / max(h[0], problem.l2)
    off += UNIT * len(states) * (size + errors[0])
    return growths(errors, rounds, off)


def _read_certificate(s: Setting) -> Reading:
    problem = problem_of(s)
    fits = hasattr(problem.loss, "conjugate") and not traits(problem.loss).several
    checked = require(NAME, Hypothesis("a loss of one score with a conjugate", f"{problem.loss!r}", fits))
    with np.errstate(over="ignore", invalid="ignore"):
        g = problem.gradient(last_state(s))
        squares = np.add.reduceat(g * g, problem.federation.ptr[:-1])
    checked += require(
        NAME, Hypothesis("finite gradients", f"at most {squares.max():g}", bool(np.isfinite(squares).all()))
    )
    return Reading({"gradients": squares, "l2": problem.l2}, checked)


def _duality_gap(s: Setting, rounds: Sequence[int]) -> Found:
    problem, states = problem_of(s), _states(s, rounds)
    found = [duality_gap(problem, states[T]) for T in rounds]
    return Found(np.array([gap for gap, _ in found]), np.array([100.0 * UNIT * size for _, size in found]))


def _constants(s: Setting) -> dict[str, tuple[float, str]]:
    problem = problem_of(s)
    out = {"l2": (problem.l2, "given"), "F*": (problem.solve().value, "exact solution")}
    if hasattr(s.method, "step_share") and problem.traits.quadratic:
        top = float(problem.damping(s.method.local_steps, s.method.step_share)[-1])
        out["largest theta"] = (2.0 / top, "from the eigenvalues of Pi H")
    return out


def _blocks(**settings: Any) -> MethodRule:
    return MethodRule("fixed", lambda theorem, problem, start, rounds: FedBCD(**settings))


def _near_limit(share: float, Q: int) -> MethodRule:
    """Return FedBCD with a share of the damping beyond which it diverges, of quadratics."""

    def make(theorem: Theorem, problem: Any, start: np.ndarray, rounds: int) -> FedBCD:
        require(NAME, Hypothesis("squared loss", f"{problem.loss!r}", problem.traits.quadratic))
        return FedBCD(local_steps=Q, damping=share * 2.0 / float(problem.damping(Q)[-1]))

    return MethodRule(f"{share:g} times the damping beyond which it diverges", make)


def _damped(damping: float, **work: Any) -> MethodRule:
    """Return FedBCD with a share of the damping 1/m."""
    return MethodRule("fixed", lambda theorem, p, *_: FedBCD(damping=damping / p.federation.K, **work))


_DESCENT = MethodRule("1/L", lambda theorem, problem, start, rounds: VerticalGradientDescent(step_size="auto"))
_ABOUT: dict[str, Any] = {"kind": VerticalProblem, "constants": _constants, "statement": STATEMENT}

THEOREMS = (
    Theorem(
        name="vertical-rate",
        title="FedBCD: damped blocks converge, whatever the local steps",
        quantity=SUBOPTIMALITY,
        bound=vertical_rate,
        read=_read_rate,
        exact=_suboptimality,
        worst=_worst_rate,
        says="With damping 1/m, F - F* falls by 1 - l2/(m max L_b) a round or faster, whatever the local steps.",
        loose="Attained for one local step by owners of the same column who disagree.",
        method=_blocks(),
        rounds=5,
        checks=(
            Check(one_column_thrice, start=between),
            three_owners,
            tumours,
            Check(tumours, _blocks(local_steps=10)),
            Check(one_column_thrice, _blocks(local_steps=4), 2, start=between),
            *(Check(i, _blocks(damping=1.0)) for i in (three_owners, one_column_thrice)),  # undamped
            Check(three_owners, _blocks(step_share=1.5)),  # other steps
            Check(three_owners, _blocks(order="in turn")),
            Check(three_owners, _blocks(participation=1)),
            two_clients,  # no owners
        ),
        space=owners_space(_damped, (1, 6), damping=Real(0.1, 1.0, 4.0), local_steps=Whole(1, 6)),
        **_ABOUT,
    ),
    Theorem(
        name="vertical-growth",
        title="FedBCD: which damping diverges",
        quantity=GROWTH,
        bound=vertical_growth,
        read=_read_growth,
        exact=_growth,
        equation=True,
        says="Errors grow by max |1 - theta kappa| a round: blocks converge if and only if that is below 1.",
        loose="An equation in the long run.",
        method=_blocks(damping=1.0),
        rounds=80,
        checks=(
            Check(shared_direction, _blocks(damping=1.0, local_steps=5), 60),
            blood,
            Check(one_column_thrice, _near_limit(1.01, 1), 100),
            Check(one_column_thrice, _near_limit(0.99, 3), 120),
            Check(three_owners, _blocks()),  # not quadratic
            Check(shared_direction, _blocks(damping=1.0), 3),  # too short
        ),
        space=owners_space(_near_limit, (60, 200), ("squared",), share=Real(0.9, 1.3), Q=Whole(1, 6)),
        **_ABOUT,
    ),
    Theorem(
        name="vertical-certificate",
        title="The duality gap from one number an owner",
        quantity=GAP,
        bound=vertical_certificate,
        read=_read_certificate,
        exact=_duality_gap,
        equation=True,
        says="‖grad F‖²/(2 l2), one number an owner, is the duality gap at the slopes of the losses.",
        loose="An equation.",
        method=_DESCENT,
        rounds=4,
        checks=(three_owners, tumours, blood, Check(shared_direction, _blocks(damping=1.0)), two_clients),
        space=owners_space(_blocks, (1, 4), local_steps=Whole(1, 3)),
        **_ABOUT,
    ),
)
