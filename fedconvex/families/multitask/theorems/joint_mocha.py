"""JointMOCHA: with nodes that solve exactly, the rate of the primal-dual method, for any step of the server."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedconvex.families.multitask.theorems.tasks import related_tasks
from fedconvex.methods import JointMOCHA, NodeWork
from fedconvex.problems import Covariance, MultiTaskProblem
from fedconvex.theorems.kit import *

__all__ = ["SADDLE_GAP", "STATEMENT", "THEOREMS", "joint_mocha"]

NAME = "JointMOCHA's rate"
SOURCE = "Chambolle, Pock 2011, Theorem 1, for JointMOCHA (docs/theory/joint_mocha.md)"
SADDLE_GAP = Quantity(
    "mean over rounds n = 1..T of L(Z^n, alpha*) - L(Z*, alpha^n), at the point reached after 5 T rounds",
    "saddle gap",
    least=0.0,
)

STATEMENT = Statement(
    page="joint_mocha",
    title="JointMOCHA's rate",
    scope=OF_TASKS,
    setting="""
P(W) = losses(W) + R(W) with R(W) = lam (‖W‖^2/sigma2 + ‖W‖_*^2), what is left of a learned relationship;
h(alpha) = sum_t c_t sum_i l*(-alpha_i), V = V(alpha) with v_t = c_t X_t'alpha_t, L(Z, alpha) = R(Z) - <Z, V> -
h(alpha). A round: the nodes minimise h(a) + <2 Z - Z_before, V(a)> + (eta/2)‖V(a) - V‖^2 over a, then Z <- prox of eta
R at Z + eta V. Start at Z = 0, alpha = 0.
""",
    assumptions="""
Every node takes part in every round and solves its subproblem exactly; one eta > 0 for all rounds. Any convex loss.
""",
    statement="""
(1/T) sum_{n=1..T} [L(Z^n, alpha) - L(Z, alpha^n)] <= (‖Z‖^2/eta + eta ‖V(alpha)‖^2)/(2 T)  for all Z and alpha.

At the solution the left side is a mean of Bregman distances of R and of h, zero there only. Where nodes miss rounds
there is no such rate, and iterates may grow without bound: on one task with one row x, the squared loss and sigma2 =
infinity, a node that is back after many rounds overshoots by the factor (1/(2 lam) - eta)/(eta + 1/(c x^2)), large for
small lam.
""",
    source="""
Chambolle, Pock, "A first-order primal-dual algorithm for convex problems with applications to imaging", J. Math.
Imaging Vis. 40 (2011), Theorem 1, with K = I, tau = eta, sigma = 1/eta in the metric of V. That JointMOCHA is that
method, the case tau sigma = 1 with its sum over iterates, and the failure: this project.
""",
    differs="""
Theorem 1 there bounds the gap of the averages; the sum over the iterates, from which that follows by convexity, is
checked. It asks for tau sigma ‖K‖^2 < 1; the proof below does with = 1.
""",
    meaning="""
With exact nodes JointMOCHA needs neither alternation nor annealing, and any eta gives 1/T; the best is ‖Z*‖/‖V*‖.
Residual balancing, the default, changes eta and is not covered. In the sites' terms: a slow node may do less than an
exact solution only as far as the certificate shows. **Nodes that miss rounds** are another matter than in MOCHA, whose
dual objective never rises: here Z goes on towards the point where R pulls back as hard as the stale V pushes,
V/(2 lam), and the node's next answer is made for it. With lam = 0.005, x = 1, eta = 1 and nine rounds of ten missed the
iterates grow without bound (`test_joint_mocha_diverges_where_nodes_miss_rounds`). Take the certificate, and a smaller
eta, which leaves Z less time to run away: eta = 0.1 converges there.
""",
    proof="""
With d^n = Z^n - Z^{n-1}, d^0 = 0: the nodes' problem is (η/2)-strongly convex in V and Z's (1/2η)-strongly convex, so
for all α, Z

    h(α^{n+1}) + ⟨Z^n + d^n, V^{n+1} - V⟩ ≤ h(α) + (η/2)[‖V - V^n‖² - ‖V - V^{n+1}‖² - ‖V^{n+1} - V^n‖²],
    R(Z^{n+1}) - ⟨Z^{n+1} - Z, V^{n+1}⟩ ≤ R(Z) + (1/2η)[‖Z - Z^n‖² - ‖Z - Z^{n+1}‖² - ‖d^{n+1}‖²].

Added, L(Z^{n+1}, α) - L(Z, α^{n+1}) is at most the brackets plus ⟨d^{n+1} - d^n, V^{n+1} - V⟩ = ⟨d^{n+1}, V^{n+1} - V⟩
- ⟨d^n, V^n - V⟩ - ⟨d^n, V^{n+1} - V^n⟩, and the last is at most ‖d^n‖²/(2η) + (η/2)‖V^{n+1} - V^n‖². Summed over the
rounds all squares cancel but those of the start and, with a minus, (1/2η)‖d^T‖² + (η/2)‖V - V^T‖², which ⟨d^T, V^T - V⟩
does not exceed. ∎

**Missed rounds.** One task and one row: Z ← (Z + ηV)/(1 + 2ηλ) tends to V/(2λ) while V rests. From there the node
solves V⁺ (η + 1/(cx²)) = ηV - V/(2λ) + y/x, whose slope in V is minus the factor above, beyond 1 in size for small λ.
""",
    loose="""
The second term is attained in the limit of many rounds by one task with a steep prior and the hinge loss (0.95 after
20 rounds). Of the first 0.6 was found; half of it is all that one direction can show.
""",
)


def joint_mocha(primal: float, dual: float, *, eta: float, rounds: int) -> Bound:
    """Return (‖Z‖^2/eta + eta ‖V‖^2)/(2 T).

    Parameters
    ----------
    primal, dual : float
        ‖Z‖ and ‖V(alpha)‖ of the point that is compared with.
    eta : float
        Step of Z.
    rounds : int
        T.

    Raises
    ------
    ValueError, TypeError
        If primal or dual is not in [0, 1e150], eta not positive, or rounds below 1.

    Examples
    --------
    >>> from fedconvex.families.multitask.theorems.joint_mocha import joint_mocha
    >>> joint_mocha(2.0, 1.0, eta=2.0, rounds=4).terms
    {'models': 0.25, 'duals': 0.25}
    """
    z, v = (
        real("joint_mocha: primal", primal, low=0.0, high=1e150),
        real("joint_mocha: dual", dual, low=0.0, high=1e150),
    )
    step, T = real("joint_mocha: eta", eta, low=0.0, strict=True), whole("joint_mocha: rounds", rounds, low=1)
    return Bound({"models": z**2 / (2.0 * step * T), "duals": step * v**2 / (2.0 * T)}, SADDLE_GAP, SOURCE)


# ---------------------------------------------------------------- read off a setting


def _read(s: Setting) -> Reading:
    is_method(NAME, s.method, JointMOCHA)
    p, work = _problem(s), s.method.work
    drawn = tuple(what for what in traits_of(s.method, p).drawn if what != "rows")
    checked = require(
        NAME,
        Hypothesis("a learned relationship", f"{p.relation!r}", p.relation.learned),
        Hypothesis("one output a task", f"models of shape {p.model_shape}", len(p.model_shape) == 2),
        Hypothesis("one step eta of the server", f"eta={s.method.eta}", s.method.eta is not None),
        Hypothesis("all nodes in every round, no clock", f"drawn: {drawn}", not drawn),
        Hypothesis("nodes that solve exactly: one row each", f"up to {p.federation.sizes.max()}", _single(p)),
        Hypothesis("whole steps", f"theta={work.theta}", work.theta is None),
        Hypothesis("a start at alpha = 0", f"‖W‖ = {np.linalg.norm(s.start):g}", not s.start.any()),
    )
    point = _reference(s, s.rounds)
    numbers = {"primal": float(np.linalg.norm(point.w)), "dual": float(np.linalg.norm(point.v))}
    return Reading({**numbers, "eta": float(s.method.eta), "rounds": s.rounds}, checked)


def _problem(s: Setting) -> MultiTaskProblem:
    """Return the setting's problem."""
    assert isinstance(s.problem, MultiTaskProblem)
    return s.problem


def _single(p: MultiTaskProblem) -> bool:
    return int(p.federation.sizes.max()) == 1


def _reference(s: Setting, rounds: int) -> Any:
    """Return the state after five times the rounds, near the solution; the inequality holds for any point."""
    runs = iterate(s.method, s.problem, rounds=5 * rounds, seed=s.seed, start=s.start)
    return deque(runs, maxlen=1)[0][1]


def _saddle_gap(s: Setting, rounds: Sequence[int]) -> Found:
    """Mean of the gaps; each is a sum of terms that are off by a few eps of their sizes."""
    found = {T: _reference(s, T) for T in rounds}
    pairs = [_mean_gap(s, T, point.w[0], point.v[0], float(point.conjugate.sum())) for T, point in found.items()]
    return Found(*(np.array(column) for column in zip(*pairs, strict=True)))


def _mean_gap(s: Setting, rounds: int, Z: np.ndarray, V: np.ndarray, h: float) -> tuple[float, float]:
    """Return the mean over the rounds of L(Z^n, alpha) - L(Z, alpha^n), and how far it may be off."""
    p, gaps, off = _problem(s), [], []
    fixed = p.relation.value(Z) + h
    for t, state in iterate(s.method, p, rounds=rounds, seed=s.seed, start=s.start):
        if t:
            w, v = state.w[0], state.v[0]
            parts = (p.relation.value(w), -np.sum(w * V), np.sum(Z * v), np.sum(state.conjugate[0]), -fixed)
            gaps.append(float(sum(parts)))
            lengths = np.linalg.norm(w) + np.linalg.norm(Z), np.linalg.norm(v) + np.linalg.norm(V)
            off.append(64.0 * EPS * w.size * float(np.abs(parts).sum() + t * lengths[0] * lengths[1]))
    return float(np.mean(gaps)), float(np.mean(off))


def _constants(s: Setting) -> dict[str, tuple[float, str]]:
    lam = float(getattr(_problem(s).relation, "lam", math.nan))
    return {"eta": (float(s.method.eta or 0.0), "given"), "lam": (lam, "given")}


# ---------------------------------------------------------------- instances


@example("one steep task", "1 task with one row, hinge loss, a prior that holds the model at 0")
def _steep() -> MultiTaskProblem:
    """Dual variables rise by 1/eta a round, in a straight line."""
    return MultiTaskProblem(Federation.from_clients([([[1.0]], [1.0])]), Hinge(), Covariance(1000.0))


@example("breast cancer, patients", "breast_cancer, 12 patients, each a task of one row", "real")
def _patients() -> MultiTaskProblem:
    """Six patients with either diagnosis, five features."""
    fed = breast_cancer.make().federation
    rows = np.concatenate([np.flatnonzero(fed.y == sign)[::30][:6] for sign in (-1.0, 1.0)])
    return MultiTaskProblem(
        Federation.from_arrays(fed.X[rows, :5], fed.y[rows], np.arange(rows.size)), Hinge(), Covariance(0.1)
    )


def _rows_as_tasks(tiny: Tiny) -> MultiTaskProblem:
    p = tiny.problem()
    fed = Federation.from_arrays(p.federation.X, p.federation.y, np.arange(p.federation.n))
    return MultiTaskProblem(fed, p.loss, Covariance(float(tiny.knobs["lam"])))


def _exact_nodes(eta: float, drop: float = 0.0) -> MethodRule:
    words = f"eta {eta:g}" + (f", drop {drop:g}" if drop else "")
    return MethodRule(words, lambda *_: JointMOCHA(eta=eta, work=NodeWork(drop=drop)))


THEOREMS = (
    Theorem(
        name="joint-mocha",
        title="JointMOCHA, exact nodes",
        quantity=SADDLE_GAP,
        bound=joint_mocha,
        read=_read,
        exact=_saddle_gap,
        kind=MultiTaskProblem,
        constants=_constants,
        statement=STATEMENT,
        says="With exact nodes the saddle gap, averaged over rounds, falls like 1/T for any step of the server.",
        loose="Attained by straight dual paths; 0.6 of what it says of the models was found.",
        method=_exact_nodes(1.0),
        rounds=20,
        checks=(
            Check(_steep, _exact_nodes(20.5)),
            _patients,
            Check(_patients, _exact_nodes(0.1)),
            Check(_patients, _exact_nodes(1.0, drop=0.5)),  # nodes that miss rounds
            related_tasks,  # a fixed relationship
        ),
        space=Space(
            lambda k: _exact_nodes(k["eta"]),
            {"lam": Real(1e-3, 10.0), "eta": Real(1e-2, 100.0)},
            losses=("squared", "hinge"),
            rounds=(1, 60),
            tries=8,
            problem=_rows_as_tasks,
            start=from_zero,
        ),
    ),
)
