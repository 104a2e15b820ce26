"""Linear rates for every horizon: the least factor per round that a quadratic Lyapunov function proves.

Setting
-------
A round maps a state (s_1, ..., s_n) of points to the next. V = sum over pairs of P_ab <u_a, u_b> + sum_i q_i f_i, where
u are the states and, for the first ``observed`` of them, the gradients of all clients there, f_i the clients' values
there; everything relative to the fixed point. V is sought with

    V >= sum_a ‖s_a‖^2   and   E V(after h rounds) <= rho^h V(before)

for every problem of the class, so that E sum_a ‖s_a^{ht}‖^2 <= rho^{ht} V(s^0) for every t.

For fixed rho both conditions are linear matrix inequalities by the interpolation inequalities of the class
(S-procedure). The least rho is found by bisection; every accepted rho comes with P, q and multipliers that are
re-checked by their eigenvalues, with rounding.

Fixed points. Functions are centred at 0 with gradient 0 there, which is no loss for methods whose fixed point
evaluates every client at one point (gradient descent, heavy ball, hedging, FedLin, SCAFFOLD; FedProx with all clients):
centre f_i at that point, and states at their fixed values (c_i at grad f_i(x*), v_k at x* - grad f_k(x*)/rho). So the
rate holds for any heterogeneity; FedProx contracts to its own fixed point, which is x* only where clients share a
minimiser. FedAvg with several local steps, or FedProx with sampled clients, has no such fixed point unless they do.

Source
------
Lessard, Recht and Packard (2016) and Taylor, Van Scoy and Lessard (ICML 2018) for Lyapunov functions by semidefinite
programmes; Upadhyaya, Banert, Taylor and Giselsson (2025), Mathematical Programming 209, for their general form.
Federated rounds in this form are the project's own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, function, instance, real, whole, wrong_type
from fedconvex.solvers import conic
from fedconvex.theory.worst_case.classes import AtOptimum, Problems
from fedconvex.theory.worst_case.exact import LIMIT
from fedconvex.theory.worst_case.expressions import Vector
from fedconvex.theory.worst_case.interpolation import interpolation
from fedconvex.theory.worst_case.oracles import NeedsClientsError, Oracle, SymbolicOracle

EPS = float(np.finfo(float).eps)
LEAST = 1e-12  # factor below which nothing is looked for: the geometric mean of 0 and anything is 0
ATTEMPTS = ((1e-10, 1e-8), (1e-8, 1e-6), (1e-7, 1e-5))  # tolerance of the solver, least eigenvalue that is asked for


class Round(NamedTuple):
    """A round as a map of states.

    Attributes
    ----------
    update : function (problem, states) -> states
        States are points; what does not follow from them is drawn or evaluated anew.
    shared : int
        Number of states that stand alone.
    per_client : int
        Number of states of every client; they follow the shared ones, client by client.
    observed : int
        At how many of the first states V sees gradients and values.

    Examples
    --------
    A round of one's own is a function of the problem and of the states:

    >>> from fedconvex.theory.worst_case import Problems, Round, contraction
    >>> def update(problem, states):
    ...     return [states[0] - 0.5 * problem.gradient(states[0])]
    >>> round(contraction(Round(update), Problems(1, L=1.0, mu=0.5)).upper, 4)  # (1 - 0.25)^2
    0.5625
    """

    update: Callable[[Oracle, tuple[Any, ...]], Sequence[Any]]
    shared: int = 1
    per_client: int = 0
    observed: int = 1


@dataclass(frozen=True)
class Rate:
    """The factor by which squared distances shrink per round, between an instance and a certificate.

    Attributes
    ----------
    upper : float
        Certified: V shrinks by it, per round, for every problem of the class; inf if no V was found.
    lower : float
        Attained by quadratics with curvatures mu and L.
    P : array (m, m)
        Quadratic part of V, over the states, then the gradients at the observed ones, in units of L.
    q : array (k,)
        V's weights of the clients' values at the observed states, in units of L.
    margin : float
        Least eigenvalue of the two matrices that must be positive semidefinite, after rounding.
    rounds : int
        h, the rounds after which V is compared.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, contraction, gradient_descent_round
    >>> rate = contraction(gradient_descent_round(0.5), Problems(1, L=1.0, mu=0.5))
    >>> bool(rate.lower <= rate.upper), rate.rounds, bool(rate.margin >= 0.0)
    (True, 1, True)
    """

    upper: float
    lower: float
    P: np.ndarray = field(repr=False)
    q: np.ndarray = field(repr=False)
    margin: float
    rounds: int

    def __str__(self) -> str:
        return f"squared distances shrink by a factor in [{self.lower:.6g}, {self.upper:.6g}] a round"


def contraction(
    round: Round | Callable[[Oracle, tuple[Any, ...]], Sequence[Any]],
    problems: Problems,
    *,
    rounds: int = 1,
    tolerance: float = 1e-5,
    limit: int = LIMIT,
) -> Rate:
    """Return the least factor per round that a quadratic Lyapunov function proves for a class.

    Parameters
    ----------
    round : Round or function (problem, states) -> states
        `gradient_descent_round`, `scaffold_round`, ...; a function is a round of one state.
    problems : Problems
        M, L, mu and the weights count; the rate holds for any heterogeneity and start (see the module).
    rounds : int
        h: V may rise in between.
    tolerance : float
        Of the bisection, relative.
    limit : int
        Largest Gram matrix to attempt; ValueError above.

    Raises
    ------
    ValueError, TypeError
        If rounds is below 1, tolerance not in [1e-8, 0.1], or the Gram matrix larger than limit.

    Examples
    --------
    Gradient descent: max(|1 - eta L|, |1 - eta mu|)^2.

    >>> from fedconvex.theory.worst_case import Problems, contraction
    >>> rate = contraction(lambda problem, s: [s[0] - 0.5 * problem.gradient(s[0])], Problems(mu=0.2))
    >>> round(rate.lower, 6), round(rate.upper, 4)
    (0.81, 0.81)
    """
    instance("contraction: problems", problems, Problems)
    if not isinstance(round, Round):
        function("contraction: round", round)
        round = Round(round)
    h = whole("contraction: rounds", rounds, low=1)
    tolerance = real("contraction: tolerance", tolerance, low=1e-8, high=0.1)
    lower = _quadratics(round, problems, h)
    step = _traced(round, problems, h)
    if step.gram > whole("contraction: limit", limit, low=1):
        raise bad("contraction", f"stay within a Gram matrix of {limit}", step.gram, "take fewer clients or steps")
    search = _Search(step)
    found = search.at(lower**h * (1.0 + tolerance)) if lower < 1.0 else None
    low, high = lower, lower * (1.0 + tolerance)
    if found is None and lower < 1.0:
        low, high = max(high, LEAST), 1.0
        found = search.at(1.0 - 1e-7)
        while found is not None and high > low * (1.0 + tolerance):
            middle = math.sqrt(low * high)
            better = search.at(middle**h)
            low, high, found = (low, middle, better) if better is not None else (middle, high, found)
    if found is None:
        return Rate(math.inf, lower, np.zeros((0, 0)), np.zeros(0), math.nan, h)
    return Rate(found.factor ** (1.0 / h), lower, found.P, found.q, found.margin, h)


class _Step(NamedTuple):
    """What V sees before and after, and the inequalities of the class."""

    gram: int
    values: int
    states: int
    before: np.ndarray  # (m, n) observables over the basis
    after: list[tuple[float, np.ndarray]]  # probability, (m, n)
    f_before: np.ndarray  # (k, values)
    f_after: np.ndarray  # (k, values), mean over outcomes
    A: np.ndarray  # (J, n, n)
    a: np.ndarray  # (J, values)
    early: np.ndarray  # (J,) bool: between what is seen before
    star: dict[tuple[int, bool], int]


def _traced(round: Round, problems: Problems, h: int) -> _Step:
    """Run the round in coefficients from states that are not known, on F alone if nothing else is asked for."""
    shared = replace(problems, heterogeneity=AtOptimum(0.0), D=1.0, sigma=0.0)
    for pooled in (True, False):
        oracle = SymbolicOracle(shared, pooled)
        states = [oracle.start]
        count = round.shared + round.per_client * problems.clients
        states += [Vector(oracle._new("start", 0, np.zeros(0), 1.0)) for _ in range(count - 1)]
        before = _observed(round, oracle, states)
        try:
            after = partial(_after, round, oracle, states, h)
            outcomes = [(drawn.probability, found) for drawn, found in oracle.outcomes(after)]
        except NeedsClientsError:
            continue
        return _assembled(oracle, before, outcomes, count)
    raise AssertionError("unreachable")


def _after(round: Round, oracle: Oracle, states: Sequence[Any], h: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return _observed(round, oracle, _applied(round, oracle, states, h))


def _applied(round: Round, oracle: Oracle, states: Sequence[Any], h: int) -> list[Any]:
    for _ in range(h):
        found = round.update(oracle, tuple(states))
        if not isinstance(found, (list, tuple)) or len(found) != len(states) or not all(map(_is_point, found)):
            got = f"{len(found)} things" if isinstance(found, (list, tuple)) else type(found).__name__
            raise wrong_type("contraction: round", f"return a list of {len(states)} states, points each", got)
        states = found
    return list(states)


def _is_point(x: Any) -> bool:
    return isinstance(x, Vector) or (isinstance(x, np.ndarray) and x.dtype.kind in "fi")


def _observed(round: Round, oracle: Any, states: Sequence[Any]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return what V sees: states and gradients over the basis, values."""
    points = [
        oracle._evaluated(i, x) for x in states[: round.observed] for i in range(len(oracle.p))
    ]  # one point per client and observed state
    return [x.over for x in states] + [P.g for P in points], [P.f for P in points]


def _assembled(oracle: SymbolicOracle, before: Any, outcomes: list[tuple[float, Any]], states: int) -> _Step:
    n, count = len(oracle.made), oracle.count

    def wide(rows: Sequence[np.ndarray], size: int) -> np.ndarray:
        out = np.zeros((len(rows), size))
        for k, row in enumerate(rows):
            out[k, : len(row)] = row
        return out

    mu = oracle.problems.mu / oracle.problems.L
    seen = {row.tobytes() for row in wide(before[1], count)}
    A: list[np.ndarray] = []
    a: list[np.ndarray] = []
    early: list[bool] = []
    star: dict[tuple[int, bool], int] = {}
    for points in oracle.points:
        full = [type(P)(wide([P.x], n)[0], wide([P.g], n)[0], wide([P.f], count)[0]) for P in points]
        for (p, P), (q, Q) in itertools.permutations(enumerate(full), 2):
            if p == 0 or q == 0:
                star[int(np.argmax(P.f + Q.f)), q == 0] = len(a)
            left, right = interpolation(P, Q, mu)
            A.append(left)
            a.append(right)
            early.append(all(k == 0 or R.f.tobytes() in seen for k, R in ((p, P), (q, Q))))
    after = [(probability, wide(o[0], n)) for probability, o in outcomes]
    f_after = sum(probability * wide(o[1], count) for probability, o in outcomes)
    return _Step(
        n,
        count,
        states,
        wide(before[0], n),
        after,
        wide(before[1], count),
        np.asarray(f_after),
        np.array(A).reshape(-1, n, n),
        np.array(a).reshape(-1, count),
        np.array(early, dtype=bool),
        star,
    )


class _Found(NamedTuple):
    factor: float
    P: np.ndarray
    q: np.ndarray
    margin: float


class _Search:
    """Lyapunov functions of a step for given factors: one parametrised programme."""

    def __init__(self, step: _Step) -> None:
        import cvxpy as cp

        self.step = s = step
        m, J, k = len(s.before), len(s.a), len(s.f_before)
        self.P, self.q = cp.Variable((m, m), symmetric=True), cp.Variable(k) if k else None
        self.y, self.z = cp.Variable(J, nonneg=True), cp.Variable(int(s.early.sum()), nonneg=True)
        self.rho, self.room = cp.Parameter(nonneg=True), cp.Parameter(nonneg=True)
        q0, q1 = ((part.T @ self.q if k else np.zeros(s.values)) for part in (s.f_before, s.f_after))
        V0 = s.before.T @ self.P @ s.before
        V1 = sum(w * (E.T @ self.P @ E) for w, E in s.after)
        n, flat = s.gram, s.A.reshape(J, s.gram**2)
        self.target = s.before[: s.states].T @ s.before[: s.states]
        self.seen = seen = np.flatnonzero(np.any(s.before, axis=0))  # nothing else enters the first condition
        one = (cp.reshape(flat[s.early].T @ self.z, (n, n), order="C") + V0 - self.target)[np.ix_(seen, seen)]
        two = cp.reshape(flat.T @ self.y, (n, n), order="C") + self.rho * V0 - V1
        conditions = [
            one >> self.room * np.eye(len(seen)),
            two >> self.room * np.eye(n),
            s.a[s.early].T @ self.z + q0 == 0.0,
            s.a.T @ self.y + self.rho * q0 - q1 == 0.0,
        ]
        self.problem = cp.Problem(cp.Minimize(cp.trace(one) + cp.trace(two)), conditions)

    def at(self, factor: float) -> _Found | None:
        """Return a Lyapunov function for the factor, re-checked, or None."""
        self.rho.value = factor
        for tolerance, self.room.value in ATTEMPTS:
            options = {"tol_gap_abs": tolerance, "tol_gap_rel": tolerance, "tol_feas": tolerance}
            if not conic.attempt(self.problem, solver="CLARABEL", **options) or self.P.value is None:
                continue
            q = np.zeros(0) if self.q is None else self.q.value
            P, q, y, z = (np.asarray(part, dtype=float) for part in (self.P.value, q, self.y.value, self.z.value))
            if all(np.isfinite(part).all() for part in (P, q, y, z)):
                margin = self.margin(factor, P, q, y, z)
                if margin >= 0.0:
                    return _Found(factor, P, q, margin)
        return None

    def margin(self, factor: float, P: np.ndarray, q: np.ndarray, y: np.ndarray, z: np.ndarray) -> float:
        """Return the least eigenvalue of the two conditions, less rounding: multipliers clipped, flow repaired."""
        s = self.step
        P, early = 0.5 * (P + P.T), np.flatnonzero(s.early)
        full = np.zeros(len(s.a))
        full[early] = z
        V0 = s.before.T @ P @ s.before
        V1 = sum(w * (E.T @ P @ E) for w, E in s.after)
        q0, q1 = s.f_before.T @ q, s.f_after.T @ q
        least = []
        for multipliers, flow, V, keep in (
            (full, q0, V0 - self.target, self.seen),
            (y, factor * q0 - q1, factor * V0 - V1, np.arange(s.gram)),
        ):
            t = np.maximum(multipliers, 0.0)
            for v, residual in enumerate(flow + t @ s.a):  # an inequality with x* moves f_v alone
                t[s.star[v, residual > 0.0]] += abs(residual)
            S = (np.tensordot(t, s.A, 1) + V)[np.ix_(keep, keep)]
            size = float(t @ np.sqrt(np.einsum("jkl,jkl->j", s.A, s.A))) + float(np.linalg.norm(P)) * len(P)
            rounding = EPS * (len(t) + 10.0 * s.gram) * size
            least.append(float(np.linalg.eigvalsh(S)[0]) - rounding - float(np.abs(flow + t @ s.a).sum()) * s.gram)
        return min(least)


class _QuadraticOracle(Oracle):
    """F_i = h_i ‖x‖^2/2; points are rows over the states, so that the outcome of a round is its matrix."""

    def __init__(self, p: np.ndarray, h: Sequence[float], n: int, drawn: dict[str, Any]) -> None:
        self.p, self.h, self.noiseless, self._drawn = p, h, True, drawn
        self.start = self.optimum = np.zeros(n)

    def choose(self, count: int, chances: Sequence[float] | None = None) -> int:
        """Return the choice of the outcome that is being followed."""
        return int(self._drawn["choose"](count))

    def _gradient(self, i: int, x: Any) -> Any:
        return self.h[i] * x

    def _prox(self, i: int, x: Any, step: float) -> Any:
        return x / (1.0 + step * self.h[i])

    def _value(self, i: int, x: Any) -> Any:
        return 0.5 * self.h[i] * x @ x


def _quadratics(round: Round, problems: Problems, h: int) -> float:
    """Return the largest factor per round over quadratics with curvatures mu and L, clients apart."""
    M, largest = problems.clients, 0.0
    n = round.shared + round.per_client * M
    for corner in itertools.islice(itertools.product((problems.mu, problems.L), repeat=M), 256):
        follower = SymbolicOracle(replace(problems, D=1.0, heterogeneity=AtOptimum(0.0)), pooled=True)
        oracle = _QuadraticOracle(problems.p, corner, n, {"choose": follower.choose})
        second = np.zeros((n * n, n * n))
        for drawn, new in follower.outcomes(partial(_applied, round, oracle, list(np.eye(n)), h)):
            matrix = np.array(new)
            second += drawn.probability * np.kron(matrix, matrix)
        largest = max(largest, float(np.max(np.abs(np.linalg.eigvals(second)))))
    return largest ** (1.0 / h)
