"""GIANT and DANE: the exact radius of whole steps on least squares."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fedconvex.methods import DANE, GIANT
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.rounding import excess, of_square, rounding
from fedconvex.theorems.parts.smoothness import constants_of_F, start_length
from fedconvex.theory.fixed_points import Quadratic, quadratic

__all__ = ["STATEMENT", "THEOREMS", "approximate_newton", "stage_radius"]

SOURCE = "fedconvex, whole steps of GIANT and DANE on least squares (docs/theory/approximate_newton.md)"

STATEMENT = Statement(
    page="approximate_newton",
    title="GIANT and DANE on least squares",
    scope=EVERYWHERE._replace(free=WHOLE_STRONGLY_CONVEX),
    setting="""
A stage, which is two rounds without line search: g = grad F(w); d_k = -eta (H_k + m I)^{-1} g; w <- w + sum p_k d_k.
GIANT has eta = 1; DANE's exact solutions are these d_k for squared loss, m = 1/step_size. Of one leader d is the
leader's d_k alone.
""",
    assumptions="Squared loss; F mu-strongly convex, mu > 0; every H_k + m I that is inverted is positive definite.",
    statement="""
Let T = sum p_k (H_k + m I)^{-1}, of one leader (H_1 + m I)^{-1}, and rho the spectral radius of I - eta T H. Then

    F(w+) - F* <= rho^2 (F(w) - F*)

a stage, and some w attains it in every stage. No rho below 1 is claimed: where it is larger the method diverges from
almost everywhere.
""",
    source="""
Derived here. Methods: Wang, Roosta-Khorasani, Xu, Mahoney, "GIANT", NeurIPS 2018; Shamir, Srebro, Zhang,
"Communication-efficient distributed optimization using an approximate Newton-type method", ICML 2014, whose Theorem 1
is the case of squared loss, bounded by norms of H_k - H there.
""",
    differs="The radius itself in the place of bounds of it; any weights; a leader.",
    meaning="""
How alike clients must be: T is the mean of inverses, which is above the inverse of the mean, so that two clients with
Hessians diag(1, 0.1) and diag(0.1, 1) have rho = 2.025 with m = 0. Any m > 0 that is large enough makes rho < 1, and
slow. On `linear_federation` more rows a client are worth more than any m.
""",
    proof="""
e = w - w* has ∇F(w) = He, so e⁺ = (I - ηTH)e. H^{1/2}(I - ηTH)H^{-1/2} = I - ηH^{1/2}TH^{1/2} is symmetric, its norm is
its spectral radius ρ, and F(w) - F* = ‖H^{1/2}e‖²/2 shrinks by ρ² at most. An eigenvector of largest modulus attains
it, in every stage. ∎
""",
    loose="Nowhere: from the eigenvector it is an equation. From other starts other eigenvalues help at first.",
)


def stage_radius(H: np.ndarray, p: np.ndarray, damping: float = 0.0, eta: float = 1.0) -> float:
    """Return the spectral radius of I - eta T H, T = sum_k p_k (H_k + m I)^{-1}, H = sum_k p_k H_k.

    Parameters
    ----------
    H : array (K, d, d)
        The clients' Hessians; their mean has to be positive definite.
    p : array (K,)
    damping : float
        m; every H_k + m I has to be regular.
    eta : float

    Raises
    ------
    AssumptionError
        If a matrix that is inverted is not positive definite.
    ValueError, TypeError
        If damping or eta is no finite number.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theorems.approximate_newton import stage_radius
    >>> H = np.array([np.diag([1.0, 0.1]), np.diag([0.1, 1.0])])
    >>> round(stage_radius(H, np.full(2, 0.5)), 12)  # 0.55 (1 + 10)/2 - 1
    2.025
    """
    H, p = np.asarray(H, dtype=float), np.asarray(p, dtype=float)
    damping, eta = real("stage_radius: damping", damping), real("stage_radius: eta", eta)
    return float(np.max(np.abs(_modes(H, p, None, damping, eta)[0])))


def _modes(
    H: np.ndarray, p: np.ndarray, leader: int | None, damping: float, eta: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenvalues (d,) and eigenvectors (d, d), as columns, of I - eta T H."""
    d = H.shape[1]
    chosen, share = (H, p) if leader is None else (H[[leader]], np.ones(1))
    lam, V = np.linalg.eigh(np.tensordot(p, H, 1))
    least = float(min(np.linalg.eigvalsh(A)[0] for A in chosen)) + damping
    require(
        SOURCE,
        Hypothesis("F strongly convex, mu > 0", f"mu = {lam[0]:g}", lam[0] > EPS * d * lam[-1]),
        Hypothesis("every H_k + m I positive definite", f"{least:g}", least > EPS * d * float(np.max(np.abs(H)))),
    )
    root = (V * np.sqrt(lam)) @ V.T
    T = np.tensordot(share, np.linalg.inv(chosen + damping * np.eye(d)), 1)
    left, U = np.linalg.eigh(root @ (0.5 * (T + T.T)) @ root)
    return 1.0 - eta * left, (V / np.sqrt(lam)) @ V.T @ U


def approximate_newton(constants: Constants, *, radius: float, stages: int, start_gap: float | None = None) -> Bound:
    """Return rho^(2 T) (F(w_0) - F*), the bound of F(w_T) - F* after T stages.

    Parameters
    ----------
    constants : Constants
        Without start_gap L of F and D.
    radius : float
        rho, of `stage_radius`.
    stages : int
        T.
    start_gap : float, optional
        F(w_0) - F*; default its bound L D^2/2.

    Raises
    ------
    ValueError, TypeError
        If start_gap, stages or radius is negative.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.approximate_newton import approximate_newton
    >>> approximate_newton(Constants(L=2.0, D=1.0), radius=0.5, stages=2).value
    0.0625
    """
    T, rho = whole("stages", stages), real("radius", radius, low=0.0)
    gap = real("start_gap", default_gap(SOURCE, constants) if start_gap is None else start_gap, low=0.0)
    return Bound({"start": rho ** (2 * T) * gap}, LAST_SYNCHRONISED, SOURCE)


def default_gap(source: str, constants: Constants) -> float:
    """Return L D^2/2, a bound of F(w_0) - F*."""
    L, D = (float(v) for v in known_constants(source, constants, "L", "D"))
    return 0.5 * L * D**2


# ---------------------------------------------------------------- read off a setting


def damping_of(source: str, m: Any, problem: Problem) -> tuple[float, float, int | None]:
    """Return m, eta and the number of the leader, or raise if stages are not these."""
    if isinstance(m, GIANT):
        return float(m.damping), 1.0, None
    step = one_number(source, "step size", m.step_size)
    require(source, Hypothesis("clients that solve exactly", f"accuracy {m.accuracy!r}", m.accuracy is None))
    return 1.0 / step, float(m.eta), None if m.leader is None else m._leader(problem)


def _whole(s: Setting) -> tuple[Quadratic, float, float, int | None]:
    """Return Hessians, m, eta and the leader of whole steps on least squares."""
    is_method(SOURCE, s.method, GIANT, DANE)
    stationary(SOURCE, s.problem)
    require(SOURCE, Hypothesis("whole steps", f"line_search {s.method.line_search}", not s.method.line_search))
    return quadratic(s.problem), *damping_of(SOURCE, s.method, s.problem)


def _read(s: Setting) -> Reading:
    q, damping, eta, leader = _whole(s)
    rho = float(np.max(np.abs(_modes(q.H, q.p, leader, damping, eta)[0])))
    numbers = {"radius": rho, "stages": s.rounds // 2, "start_gap": max(excess(s.problem, s.start), 0.0)}
    return Reading({"constants": constants_of_F(SOURCE, s), **numbers})


def _tolerance(s: Setting, value: float) -> float:
    """Errors of stages, in the norm of H, grow by the radius; what is inverted multiplies them by its condition."""
    q, damping, eta, leader = _whole(s)
    p, T = s.problem, s.rounds // 2
    rho = max(float(np.max(np.abs(_modes(q.H, q.p, leader, damping, eta)[0]))), 1.0)
    mean = np.linalg.eigvalsh(np.tensordot(q.p, q.H, 1))
    eigs = np.linalg.eigvalsh(q.H if leader is None else q.H[[leader]]) + damping
    far = start_length(s) * math.sqrt(float(mean[-1] / mean[0])) * rho**T
    push = eta * float(p.weights @ gradient_rounding(p, np.full(1, far))) / float(eigs.min())
    solved = UNIT * float(np.max(eigs[:, -1] / eigs[:, 0])) + float(getattr(s.method, "tol", 0.0))
    off = T * rho**T * math.sqrt(float(mean[-1])) * (push + solved * (1.0 + far))
    return rounding(LAST_SYNCHRONISED, s, value) + of_square(2.0 * value, off)


# ---------------------------------------------------------------- where it is checked


def giant(damping: float = 0.0, line_search: bool = False) -> MethodRule:
    """Return GIANT with m = damping times L of the clients."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> GIANT:
        return GIANT(line_search=line_search, damping=damping * float(problem.constants().L or 1.0))

    return MethodRule(f"m = {damping:g} L", make)


def dane(damping: float = 0.1, line_search: bool = False, **settings: Any) -> MethodRule:
    """Return DANE with m = damping times L of the clients."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> DANE:
        step = 1.0 / (damping * float(problem.constants().L or 1.0))
        return DANE(step_size=step, line_search=line_search, **settings)

    return MethodRule(", ".join([f"m = {damping:g} L", *(f"{k} {v}" for k, v in settings.items())]), make)


def slowest(rule: MethodRule) -> Callable[[Any], np.ndarray]:
    """Return the start from which whole steps are slowest: an eigenvector of the radius away from the minimiser."""

    def start(problem: Any) -> np.ndarray:
        zero = np.zeros(problem.model_shape)
        q, damping, eta, leader = _whole(Setting(problem, rule.make(THEOREMS[0], problem, zero, 2), 2, zero))
        lam, U = _modes(q.H, q.p, leader, damping, eta)
        away = U[:, int(np.argmax(np.abs(lam)))]
        return np.asarray(problem.solve().w + away / np.linalg.norm(away))

    return start


@example("crossed clients", "Hessians diag(1, 0.1) and diag(0.1, 1)")
def crossed() -> Problem:
    """Three times the inverse of the mean is the mean of inverses."""
    r = math.sqrt(0.1)
    X, y = np.sqrt(2.0) * np.diag([1.0, r]), np.array([1.0, 2.0])
    return Problem(Federation.from_clients([(X, y), (X[::-1, ::-1].copy(), -y)]), Squared())


def _from_worst(instance: Instance, rule: MethodRule, rounds: int = 8) -> Check:
    return Check(instance, rule, rounds, slowest(rule))


DAMPED: dict[str, Whole | Real] = {"damping": Real(0.02, 2.0)}

THEOREMS = (
    Theorem(
        name="approximate-newton",
        title="GIANT and DANE, radius on least squares",
        quantity=LAST_SYNCHRONISED,
        bound=approximate_newton,
        read=_read,
        tolerance=_tolerance,
        statement=STATEMENT,
        says="On least squares GIANT and DANE gain the square of an exact radius a stage, which may exceed 1.",
        loose="Attained from an eigenvector.",
        method=dane(),
        rounds=8,
        checks=(
            unequal_hessians,
            diabetes,
            Check(diabetes, giant(0.3), 7),  # three stages and a half
            _from_worst(unequal_hessians, dane()),
            _from_worst(unequal_hessians, giant(0.01), 4),
            _from_worst(unequal_hessians, dane(0.3, leader=1)),
            _from_worst(unequal_hessians, dane(0.2, eta=1.5)),
            _from_worst(crossed, giant(), 6),  # diverges
            _from_worst(crossed, dane(), 6),
            Check(one_parabola[0], dane(3.0), 4),
            Check(unequal_hessians, giant(line_search=True)),  # no whole steps
            Check(unequal_hessians, dane(accuracy=0.5)),  # nearly solved
            Check(shifted_logistic, giant()),  # another loss
        ),
        space=Space(
            lambda k: dane(k["damping"], eta=k["eta"]),
            {**DAMPED, "eta": Real(0.3, 2.0)},
            rounds=(2, 12),
            weighted=True,
        ),
    ),
)
