"""DANE with one leader: one client that is like all of them is enough."""

from __future__ import annotations

import numpy as np

from fedconvex.constants import similarity
from fedconvex.methods import DANE
from fedconvex.theorems.kit import *
from fedconvex.theorems.sdane import ABOUT, SHARE, SPACE, alike, plain_dane, similar_step, stabilised, whole_stages

__all__ = ["STATEMENT", "THEOREMS", "dane_leader"]

SOURCE = "fedconvex, after Hendrikx, Xiao, Bubeck, Bach, Massoulie 2020 (docs/theory/dane_leader.md)"

STATEMENT = Statement(
    page="dane_leader",
    title="DANE with one leader",
    scope=EVERYWHERE._replace(free=WHOLE_STRONGLY_CONVEX),
    setting="""
A stage, which is two rounds: w+ is the minimiser of f_1(v) - <grad f_1(w) - grad F(w), v> + (m/2) ‖v - w‖^2, of one
client, the leader, exactly; the others tell gradients. SPAG without acceleration.
""",
    assumptions="F is mu-strongly convex, mu > 0; f_1 is convex; m >= ‖hess f_1 - hess F‖ everywhere.",
    statement="""
With D the Bregman divergence of f_1 + (m/2)‖.‖^2 and k = 1 + 2 m/mu,

    F(w_T) - F* <= (1 - 1/k)^T D(w*, w_0) for T >= 1.
""",
    source="""
Hendrikx, Xiao, Bubeck, Bach, Massoulie, "Statistically preconditioned accelerated gradient method for distributed
optimization", ICML 2020, Theorem 1 for the accelerated method. The rate without acceleration is mirror descent's of
Lu, Freund, Nesterov, SIAM J. Optim. 28 (2018), Theorem 3.1. Proof here.
""",
    differs="Without acceleration; one constant, m, for both sides.",
    meaning="""
Rounds depend on how alike one client is to all, as on a server that has a sample of its own. It is worst for flat
directions: k is 2 m/mu however alike the steep ones are.
""",
    proof="""
φ = f_1 + (m/2)‖·‖², D its divergence. hess φ ⪰ hess F: F is 1-smooth relative to φ. hess φ ⪯ hess F + 2mI ⪯ k hess F:
F is (1/k)-strongly convex relative to φ. w⁺ = argmin ⟨∇F(w), v⟩ + D(v, w). Three points: F(w⁺) ≤ F(w) + ⟨∇F(w), w⁺ -
w⟩ + D(w⁺, w) ≤ F(w) + ⟨∇F(w), w* - w⟩ + D(w*, w) - D(w*, w⁺) ≤ F* + (1 - 1/k)D(w*, w) - D(w*, w⁺). The divergences
shrink by 1 - 1/k in all stages, and F(w⁺) - F* is at most what is left of the last. ∎
""",
    loose="""
A parabola with hess f_1 = hess F and a large m has 1/4 of it; over many stages quadratics gain the square of the rate.
""",
)


def dane_leader(
    constants: Constants, *, proximal: float, dissimilarity: float, stages: int, start_divergence: float | None = None
) -> Bound:
    """Return the bound of F(w_T) - F* after T >= 1 stages with one leader.

    Parameters
    ----------
    constants : Constants
        mu of F; without start_divergence L of the clients and D.
    proximal, dissimilarity : float
        m, and the largest norm of hess f_1 - hess F.
    stages : int
        T.
    start_divergence : float, optional
        D(w*, w_0); default its bound (L + m) D^2/2.

    Raises
    ------
    AssumptionError
        If a constant is missing, mu = 0, or m is too small.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.dane_leader import dane_leader
    >>> at = {"proximal": 1.0, "dissimilarity": 1.0, "stages": 2, "start_divergence": 2.0}
    >>> dane_leader(Constants(mu=2.0), **at).value  # k = 2
    0.5
    """
    m, sigma = real("proximal", proximal, low=0.0, strict=True), real("dissimilarity", dissimilarity, low=0.0)
    T, mu = whole("stages", stages, low=1), float(known_constants(SOURCE, constants, "mu")[0])
    requires = require(
        SOURCE,
        Hypothesis("F mu-strongly convex, mu > 0", f"mu = {mu:g}", mu > 0.0),
        Hypothesis("m >= ‖hess f_1 - hess F‖", f"m = {m:g}, {sigma:g}", m >= sigma * (1.0 - 1e-9)),
    )
    if start_divergence is None:
        L, D = (float(v) for v in known_constants(SOURCE, constants, "L", "D"))
        start_divergence = 0.5 * (L + m) * D**2
    start = (1.0 - 1.0 / (1.0 + 2.0 * m / mu)) ** T * real("start_divergence", start_divergence, low=0.0)
    return Bound({"start": start}, LAST_SYNCHRONISED, SOURCE, requires)


# ---------------------------------------------------------------- read off a setting


def _read(s: Setting) -> Reading:
    m, p = s.method, s.problem
    is_method(SOURCE, m, DANE)
    plain_dane(SOURCE, s)
    require(SOURCE, Hypothesis("one leader", f"leader {m.leader!r}", m.leader is not None))
    k, numbers, best = m._leader(p), whole_stages(SOURCE, s), np.asarray(p.solve().w)
    away, slope = best - s.start, p.client_gradients(s.start)[k]
    above = max(float(p.client_values(best)[k] - p.client_values(s.start)[k] - np.sum(slope * away)), 0.0)
    divergence = above + 0.5 * numbers["proximal"] * float(np.sum(away * away))
    sigma = similarity.leader_dissimilarity(p, k).value
    return Reading({"constants": s.constants(), **numbers, "dissimilarity": sigma, "start_divergence": divergence})


def led(share: float = 1.0, leader: int = 0) -> MethodRule:
    """Return DANE with a leader (the last client, of fewer), and so many times the step of the theorem."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> DANE:
        who = min(leader, problem.federation.K - 1)
        k = int(problem.federation.by_key[who])
        return DANE(step_size=similar_step(problem, share, k), leader=who)

    return MethodRule(f"{share:g} times that of the theorem, client {leader} leads", make)


THEOREMS = (
    Theorem(
        name="dane-leader",
        title="DANE with one leader",
        bound=dane_leader,
        read=_read,
        statement=STATEMENT,
        says="One client that is like F is enough: F - F* falls by 1 - 1/(1 + 2 m/mu) a stage.",
        loose="A quarter of it in one stage; squares of rates in the long run.",
        method=led(),
        checks=(
            unequal_hessians,
            uneven_logistic,
            diabetes,
            Check(breast_cancer, led(1.0, 3)),
            Check(alike, led(0.01), 2),
            Check(alike, led(0.001), 40),
            Check(unequal_hessians, stabilised(1.0, DANE)),  # no leader
            Check(unequal_hessians, led(10.0)),  # too weak a proximal term
        ),
        space=Space(lambda k: led(k["share"]), {"share": SHARE}, **SPACE),
        **ABOUT,
    ),
)
