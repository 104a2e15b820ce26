"""Dynamic FedAvg on losses that bend unequally, as the logistic one: constants on a ball that runs never leave."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fedconvex import datasets
from fedconvex.problems import MovingTarget
from fedconvex.problems.protocol import drift_square
from fedconvex.theorems.dynamic_msd import contraction, msd_refined
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts import tracking_formulas as formulas
from fedconvex.theorems.parts.curvatures import bends, hessians
from fedconvex.theorems.parts.tracking import (
    SETTING,
    TrackingConstants,
    agents_of,
    equal_agents,
    error2_of,
    sampled_agents,
    sampling,
    step_of,
    strongly_convex,
    tracking_constants,
)

__all__ = ["STATEMENT", "THEOREMS", "followed", "reach"]

NAME = "Dynamic FedAvg on a ball"
LIMIT = 1000  # iterations followed one by one

STATEMENT = Statement(
    page="dynamic_ball",
    title="Dynamic FedAvg: mean-square deviation on a ball",
    scope=EVERYWHERE._replace(free=WHOLE_STRONGLY_CONVEX),
    setting=SETTING,
    assumptions="""
Row losses l(x'w, y) + (l2/2)‖w‖^2 with l convex and twice differentiable, l2 > 0; w moves rigidly: the losses of
iteration i are those of iteration 0 at w - s_{i-1}, with ‖q_i‖ <= Q always. mu/E_k <= 1/delta_k with delta_k of all w.
""",
    statement="""
nu(r) = smallest eigenvalue of mean_k mean_n c_n(r) x_n x_n' + l2 I, c_n(r) = the least mean of l'' between the score
x_n'w^o and any score within ‖x_n‖ r of it; nu_k(r) the same of client k, or l2 if B_k < N_k.
G_k = ‖grad P_k(w^o)‖, or the mean of the B_k largest ‖grad Q(w^o; x)‖ of the rows of agent k if B_k < N_k.
m_k = (1 - mu nu_k(r)/E_k)^{E_k}, r_0 >= ‖e_0‖, r_i = mean of the L largest m_k r_{i-1} + (1 - m_k) G_k/nu_k(r)  +  Q.

Ball      If r_i <= r and m_k r_{i-1} + (1 - m_k) G_k/nu_k(r) <= r for all k and i <= T: all models and local models of
          the iterations up to T lie within r of the minimiser, and ‖e_i‖ <= r_i.
MSD       Then version R of the mean-square deviation holds up to T with nu(r) and, for delta_P, delta_k, delta_{P,k},
          the largest curvatures within r of w^o. For T = infinity and r_0 = 0: the limit, from any start.
Any path  All E_k = 1, A = A(a) of version R, S_i = S at w_i^o, U_i = the noise of fresh labels: x_0 >= ‖e_0‖^2,
          y_i = min_{a: A >= 0} (1 - nu A) x_{i-1} + mu^2 [(1 + a) S_{i-1} + U_{i-1}],
          x_i = (y_i^{1/2} + ‖w_i^o - w_{i-1}^o‖)^2: E‖e_i‖^2 <= x_i, however the target moves.
Chances   P(y = 1) = sigma(x'(theta_k + s)) with sigma(z) = 1/(1 + e^-z): the minimiser w^o(s) of the expected logistic
          risk moves by at most lambda_max(mean_k mean_n x x')/(4 l2) times what s moves by.
""",
    source="""
Bounds of the form of Rizk, Vlaski, Sayed, "Dynamic federated learning", arXiv:2002.08782, which assume strong convexity
everywhere. Ball and constants: this project.
""",
    differs="""
The paper's nu and delta hold everywhere. There nu of the logistic loss is l2 alone, because its curvature falls to 0.
""",
    meaning="""
Logistic losses have a curvature between 0 and 1/4 whatever the model, so that the bounds of
[the mean-square deviation](dynamic_msd.md) hold with ν = l2 and δ = max ‖x‖²/4 + l2: `tracking_constants(problem)`.
Near the minimiser all directions bend, and rows bend less than 1/4: `tracking_constants(problem, radius)`. With drift
of bounded steps (`MovingTarget(bounded=True)`) a run cannot leave a ball, whose radius `reach` finds.

**The walk is exact.** The target of `MovingTarget` moves by q_i, not by something like it: scores are x'(w - s), and
l2 is centred at s, so that V_k(w°) and ∇P_k(w°) never change. If the chances of labels move instead, the minimiser of
the regularised risk does not move by q_i, nor by a vector of mean zero, and V_k(w°) changes. `followed` bounds the
error along any path of minimisers, which the experiment `dynamic-logistic` computes.
""",
    proof="""
**Curvature.** P(w° + h) has ⟨∇P(w° + h) - ∇P(w°), h⟩ = mean (x'h)² m(x'h) + l2‖h‖², m(u) the mean of l'' between z =
x'w° and z + u. With λ(ρ) ≤ l'' for scores up to ρ, l''(z ± t) ≥ λ(|z| + t), hence m(u) ≥ (1/|u|) ∫_0^{|u|} λ(|z| + t)
dt, which falls in |u| ≤ ‖x‖r: so m(x'h) ≥ c_n(r), and the product is at least ν(r)‖h‖². Equality in one dimension if
w°+h lies where all scores grow.

**Ball.** While a local model v is within r of w°, a local step with η = μ/E_k maps v - w° to (I - ηM)(v - w°) -
η∇Q_b(w°), M = ∫_0^1 of the batch's Hessian along the segment, ν_k(r) ≤ M ≤ δ_k. As ηδ_k ≤ 1, its norm is at most (1 -
ην_k)‖v - w°‖ + ηG_k. E_k steps from ρ end at m_kρ + (1 - m_k)G_k/ν_k; on the way the bound moves from ρ to there, so
nothing on the way is above the larger of both, which is at most r: by induction over the steps no step starts outside.
The average of L answers is at most the mean of the L largest, and the target moves by at most Q.

**MSD.** The proof of version R compares gradients at w_{i-1}, w° and local models only. All lie in the ball, which is
convex; there ∇Q(v) - ∇Q(w) = M(v - w) with 0 ≤ M ≤ δ_k(r), so that ‖M h‖² ≤ δ_k(r) h'Mh: co-coercivity and
nonexpansiveness with the ball's constants. Step 4 there is ρ ≥ ν(r)‖e‖².

**Limit.** Local steps of two runs with the same draws bring them together by a factor 1 - ηl2 at most, since M ≥ l2:
the limit does not depend on the start, and from w° no run leaves the ball of T = ∞.

**Any path.** With E_k = 1 there is no incremental noise, and version R bounds E‖w_i - w°_{i-1}‖² by y_i, for every a.
Fresh labels add to a batch's gradient a vector of mean zero that does not depend on w: only its variance, U, is added.
Then Minkowski's inequality, the path being given: that costs more than a walk of independent steps does, whose mixed
terms vanish.

**Chances.** ∇P(w°(s); s) = 0 differentiated: dw°/ds = H(w°)⁻¹ mean σ'(x'(θ_k + s)) x x', with H ≥ l2 and σ' ≤ 1/4. ∎
""",
    loose="""
ν(r) supposes the worst direction and the largest distance at once. With mini-batches G_k is a row's gradient and ν_k is
l2, so that the ball of an unlimited run is wide and ν(r) is little more than l2; over few iterations it is not. Along a
path the lag is bounded by the step length over μν, where a walk has a root of it. No instance is known that needs the
incremental term with the constants of a ball; at w°, where it is that of version R, 0.44 of it is seen
([dynamic_msd](dynamic_msd.md)).
""",
)


def reach(
    problem: Problem,
    *,
    step_size: float,
    longest: float,
    rounds: int | None = None,
    start: float = 0.0,
    participation: int | None = None,
    batch_size: Any = None,
    local_steps: Any = 1,
) -> float:
    """Return a radius about the minimiser that no model of a run of Dynamic FedAvg leaves, local models included.

    Parameters
    ----------
    problem : Problem
        Of a smooth loss with l2 > 0 and equal client weights.
    step_size : float
        mu; at most E_k/delta_k for every agent.
    longest : float
        Q, the largest ‖q_i‖; see `fedconvex.problems.MovingTarget`.
    rounds : int, optional
        T; default any number.
    start : float
        r_0, the distance of the start from the minimiser.
    participation, batch_size, local_steps : int, int or array (K,), optional
        As for `fedconvex.theorems.parts.tracking.sampling`.

    Raises
    ------
    AssumptionError
        If l2 is zero, steps are longer than E_k/delta_k, or drift has no longest step.

    Examples
    --------
    One row x = y = 1, l2 = 1/4: only drift moves anybody. By l2 alone the radius would be 0.1/(mu l2) = 0.4:

    >>> from fedconvex import Federation, Logistic, Problem
    >>> from fedconvex.theorems.dynamic_ball import reach
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0])]), Logistic(), 0.25)
    >>> round(reach(problem, step_size=1.0, longest=0.1), 2)
    0.23
    """
    mu, r0 = real("step_size", step_size, low=0.0, strict=True), real("start", start, low=0.0)
    T = None if rounds is None else whole("rounds", rounds)
    require(NAME, *_bounded_walk(longest))
    Q = real("longest", longest, low=0.0)
    agents = {"participation": participation, "batch_size": batch_size, "local_steps": local_steps}
    pull = _Pull.of(problem, mu, agents)
    r = farthest = pull.farthest(None, Q, T, r0)
    if not pull.full.any():  # all contract by l2, however far
        return farthest
    r = pull.farthest(0.0, Q, T, r0)
    while r < farthest and (wider := pull.farthest(r, Q, T, r0)) > r:
        r = max(wider, 1.1 * r)
    r = min(r, farthest)
    for _ in range(8):  # where a radius serves, so does the one that it gives
        r = pull.farthest(r, Q, T, r0)
    return r


def followed(
    constants: TrackingConstants,
    moves: Any,
    noise: Any,
    *,
    step_size: float,
    labels: Any = 0.0,
    start2: float = 0.0,
    **agents: Any,
) -> np.ndarray:
    """Return bounds of E‖e_i‖^2 along a path of minimisers that is given, i = 0, ..., T.

    Parameters
    ----------
    constants : TrackingConstants
        Of all risks on the path: only convexity, smoothness and sizes are used.
    moves : array (T,)
        ‖w_i^o - w_{i-1}^o‖.
    noise : array (T,) or float
        S_{i-1}: the noise of batches and absent agents at w_{i-1}^o; see `noise_at_optimum`.
    step_size : float
        mu.
    labels : array (T,) or float
        U_{i-1}: what fresh labels add to the variance of the averaged gradient.
    start2 : float
        ‖e_0‖^2.
    participation, batch_size : int, int or array (K,), optional
        As for `fedconvex.theorems.parts.tracking.sampling`; local_steps must be 1.

    Raises
    ------
    AssumptionError
        If an agent does more than one step, or steps are too long.

    Examples
    --------
    A target that moves by 0.1 an iteration: x = (x^(1/2) (1 - 2 mu nu + mu^2 nu delta)^(1/2) + 0.1)^2 in the limit.

    >>> import numpy as np
    >>> from fedconvex import Federation, Logistic, Problem
    >>> from fedconvex.theorems.dynamic_ball import followed
    >>> from fedconvex.theorems.parts.tracking import tracking_constants
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0])]), Logistic(), 0.25)
    >>> bounds = followed(tracking_constants(problem), np.full(500, 0.1), 0.0, step_size=2.0)
    >>> round(float(bounds[-1]) ** 0.5 * (1.0 - 0.5**0.5), 12)
    0.1
    """
    instance("followed: constants", constants, TrackingConstants)
    mu, x = real("step_size", step_size, low=0.0, strict=True), real("start2", start2, low=0.0)
    D = _along("moves", vector("moves", moves), np.size(moves))
    S, U = (_along(name, given, D.size) for name, given in (("noise", noise), ("labels", labels)))
    (more, kept), out = _contractions(constants, mu, agents), [x]
    with np.errstate(over="ignore"):
        for move, still, fresh in zip(D.tolist(), S.tolist(), U.tolist(), strict=True):
            y = math.inf if math.isinf(x) else float(np.min(kept * x + mu * mu * (more * still + fresh)))
            root = math.sqrt(y) + move
            x = root * root
            out.append(x)
    return np.array(out)


def _contractions(c: TrackingConstants, mu: float, agents: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return 1 + a and 1 - nu A(a) for Young's parameters a with A(a) >= 0, where all agents do one step."""
    s, name, a = sampling(c.sizes, **agents), "Dynamic FedAvg along a path", np.append(np.logspace(-4.0, 4.0, 161), 1.0)
    A = contraction(c, s, mu, 1.0 + 1.0 / a)
    text = f"step_size = {mu:g}, delta_P = {c.delta_P:g}"
    strongly_convex(name, c)
    require(
        name,
        Hypothesis("one local step each", f"{s.E.max():g}", bool(np.all(s.E == 1.0))),
        Hypothesis("A >= 0 for some a (smaller steps)", text, bool(A.max() >= 0.0)),
    )
    return 1.0 + a[A >= 0.0], np.maximum(1.0 - c.nu * A[A >= 0.0], 0.0)


def _along(who: str, x: Any, T: int) -> np.ndarray:
    """Return nonnegative numbers, one for every iteration."""
    a = np.broadcast_to(real(who, x, low=0.0), (T,)) if np.ndim(raw(who, x)) == 0 else vector(who, x, T)
    if a.size and a.min() < 0.0:
        raise bad(who, "be nonnegative", f"{a.min():g}")
    return a


def _bounded_walk(longest: Any) -> tuple[Hypothesis, ...]:
    """Return the hypothesis that no step of the target is longer than some number."""
    text = "drift of bounded steps, MovingTarget(..., bounded=True)"
    return (
        Hypothesis(text, f"a longest step of {longest!r}", not (isinstance(longest, float) and longest == math.inf)),
    )


class _Pull(NamedTuple):
    """What takes agents away from the minimiser, and what brings them back."""

    problem: Problem
    L: int
    eta: np.ndarray  # (K,) mu/E_k
    E: np.ndarray  # (K,)
    push: np.ndarray  # (K,) G_k
    full: np.ndarray  # (K,) whether B_k = N_k

    @classmethod
    def of(cls, problem: Problem, mu: float, agents: dict[str, Any]) -> _Pull:
        """Measure it at the minimiser, and check that steps are short enough."""
        instance("reach: problem", problem, Problem)
        equal_agents(NAME, problem)
        fed, s, c = problem.federation, sampling(problem.federation.sizes, **agents), tracking_constants(problem)
        k = int(np.argmax(mu / s.E * c.delta_k))
        numbers = f"step_size/E_k = {mu / s.E[k]:g}, 1/delta_k = {1.0 / c.delta_k[k]:g} at client {k}"
        short = Hypothesis("step_size/E_k <= 1/delta_k", numbers, bool(mu / s.E[k] * c.delta_k[k] <= 1.0))
        require(
            NAME, short, Hypothesis("l2 > 0 on all coordinates", f"{problem.ridge}", problem.strong_convexity > 0.0)
        )
        full, push = fed.sizes == s.B, np.sqrt(c.gradient2_k)
        w = problem.solve().w
        slopes = problem.row_values_and_slopes(w)[1]
        for k in np.flatnonzero(~full).tolist():
            X = fed.client_rows(k)[0]
            rows = problem.weigh(k, X * slopes[int(fed.ptr[k]) : int(fed.ptr[k + 1]), None]) + problem.ridge * w
            push[k] = np.sort(np.linalg.norm(rows, axis=1))[-int(s.B[k]) :].mean()
        return cls(problem, s.L, mu / s.E, s.E, push, full)

    def farthest(self, radius: float | None, longest: float, rounds: int | None, start: float) -> float:
        """Return how far a run would come from the minimiser with the contraction of a ball; None: of all models."""
        nu = np.full(self.E.size, self.problem.strong_convexity)
        if radius is not None:
            mean = bends(self.problem, self.problem.solve().w, radius).mean
            nu[self.full] = np.maximum(nu, np.linalg.eigvalsh(hessians(self.problem, mean))[:, 0])[self.full]
        m = -np.expm1(self.E * np.log1p(-np.minimum(self.eta * nu, 1.0 - EPS)))  # 1 - m_k
        ends = self.push / nu

        def after(r: float) -> tuple[float, float]:
            each = r + m * (ends - r)
            return float(np.sort(each)[-self.L :].mean()) + longest, float(each.max())

        if rounds is None or rounds > LIMIT:
            r = self._fixed(m, ends, longest)
        else:
            r = start
            for _ in range(rounds):
                r = after(r)[0]
        return max(start, r, after(max(start, r))[1])

    def _fixed(self, m: np.ndarray, ends: np.ndarray, longest: float) -> float:
        """Return the r that stays, mean of the L largest r + m_k (ends_k - r) + longest = r, by Newton's method."""
        r = 0.0
        for _ in range(100):  # convex: never too far, and there after finitely many
            chosen = np.argsort(r + m * (ends - r))[-self.L :]
            new = float((m[chosen] @ ends[chosen] + self.L * longest) / m[chosen].sum())
            if new <= r * (1.0 + 1e-14):
                break
            r = new
        return max(r, new)


# ---------------------------------------------------------------- read off a setting


def _read(s: Setting) -> Reading:
    agents, mu, p, start2 = agents_of(s), step_of(s), s.problem, error2_of(s)
    longest, drift2 = getattr(p, "longest", 0.0), drift_square(p)
    checked = require(NAME, *_bounded_walk(longest))
    radius = reach(p, step_size=mu, longest=longest, rounds=s.rounds, start=math.sqrt(start2), **agents)
    given = {"constants": tracking_constants(p, radius), "step_size": mu, "drift2": drift2, **agents}
    return Reading(given | {"rounds": s.rounds, "start2": start2}, checked)


# ---------------------------------------------------------------- instances


@cache
def _still() -> Problem:
    X, y, _ = datasets.load_bundled("breast_cancer")
    who = datasets.partition_dirichlet(y, 8, 5.0, seed=0)
    return Problem(Federation.from_arrays(X[:, [0, 1, 4]], y, who), Logistic(), 0.1, "uniform")


@example("moving breast cancer", "breast_cancer, 8 hospitals, three features, logistic loss", "real")
def _moving_breast_cancer() -> Problem:
    """Radius, texture and smoothness of 569 patients; a target that moves by steps of one length."""
    return MovingTarget(_still(), 1e-3, bounded=True)


@example("breast cancer, normal drift", "the same with normal steps, which no ball holds", "real")
def _normal_breast_cancer() -> Problem:
    """Take the same covariance, and steps of any length."""
    return MovingTarget(_still(), 1e-3)


@example("moving logistic", "10 clients with two features and models of their own, logistic loss")
def _moving_logistic() -> Problem:
    """Noise dominates: twenty rows a client, a target that hardly moves."""
    data = datasets.logistic_federation(10, 2, 20, model_shift=1.0, seed=0)
    return MovingTarget(Problem(data.federation, Logistic(), 0.1), 1e-6, bounded=True)


def _from_minimiser(where: Instance, rounds: int, **settings: Any) -> Check:
    """One step an iteration, from the minimiser: nothing but what noise or drift adds."""
    return Check(where, sampled_agents(share=0.9, local_steps=1, **settings), rounds, at_minimiser)


THEOREMS = (
    Theorem(
        name="dynamic-msd-ball",
        title="Dynamic FedAvg, mean-square deviation on a ball",
        quantity=MEAN_SQUARE_DEVIATION,
        bound=msd_refined,
        formula=formulas.msd_refined(True, "on the ball"),
        read=_read,
        statement=STATEMENT,
        says="Where losses bend unequally the deviation is governed by how they bend on a ball that no run leaves.",
        loose="The worst direction at the largest distance; with mini-batches the ball grows with the rounds.",
        method=sampled_agents(share=0.5),
        space=local_sgd_space(
            lambda share, **work: sampled_agents(share=share, batch_size=None, participation=64, **work),
            1.0,
            batches=0,
            most=1,
            losses=("logistic", "hinge"),
            rounds=(1, 10),
        ),
        rounds=20,
        checks=(
            _moving_breast_cancer,
            _from_minimiser(_moving_logistic, 3, batch_size=4, participation=10),  # data variability
            _from_minimiser(_moving_logistic, 3, batch_size=None, participation=1),  # model variability
            _from_minimiser(_moving_breast_cancer, 20, batch_size=None, participation=8),  # tracking
            _normal_breast_cancer,  # steps of any length
        ),
    ),
)
