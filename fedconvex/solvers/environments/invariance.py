"""IRMv1 with squared loss: a quartic in the model, its minima, and bounds that hold globally.

Environments e = 1, ..., E have second moments S_e = E xx', b_e = E xy, c_e = E y^2. The risk of a model v there is
R^e(v) = (v'S_e v - 2 b_e'v + c_e)/2, and g_e(v) = v'S_e v - b_e'v is its slope in a scalar w at w = 1, of R^e(w v).
IRMv1 minimises J(v) = sum_e R^e(v) + lam sum_e g_e(v)^2 (Arjovsky, Bottou, Gulrajani, Lopez-Paz, "Invariant risk
minimization", 2019, Section 3), which is not convex. Three bounds of its minimum from below:

* with t_e in the place of g_e(v), and multipliers 1/2 - mu_e of t_e = g_e(v), the Lagrangian dual is
  D(mu) = sum_e [c_e/2 - (1/2 - mu_e)^2/(4 lam)] - h'M^{-1}h/4, h = sum_e (1/2 + mu_e) b_e, M = sum_e mu_e S_e,
  for every mu with M >= 0;
* mu_e = 1/2 + 2 lam g_e(v) makes M that of v, and J(v) - D(mu) = grad J(v)' M^{-1} grad J(v)/4 wherever M > 0: a
  critical point with M(v) > 0 is the only global minimiser, and any v with M(v) > 0 knows how far it is from one;
* the moment relaxation of order two: the largest gamma for which J - gamma is a sum of squares (Lasserre 2001), exact
  for two features, where nonnegative quartics are sums of squares (Hilbert 1888).

All derived here, but for the cited names.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from fedconvex.solvers.conic import attempt

_EPS = float(np.finfo(np.float64).eps)
_DEFINITE = 1e-10  # eigenvalues below this share of the largest may be zero up to rounding


class Environments(NamedTuple):
    """Second moments of the environments, and the weight of the penalty."""

    S: np.ndarray  # (E, d, d)
    b: np.ndarray  # (E, d)
    c: np.ndarray  # (E,)
    lam: float
    terms: float = 0.0  # summands of each moment, for rounding

    def risks(self, v: np.ndarray) -> np.ndarray:
        """R^e(v), (E,)."""
        return 0.5 * (self.S @ v @ v - 2.0 * self.b @ v + self.c)

    def scale_slopes(self, v: np.ndarray) -> np.ndarray:
        """g_e(v), (E,)."""
        return self.S @ v @ v - self.b @ v

    def value(self, v: np.ndarray) -> float:
        """J(v)."""
        g = self.scale_slopes(v)
        return float(self.risks(v).sum() + self.lam * (g @ g))

    def gradient(self, v: np.ndarray) -> np.ndarray:
        """sum_e S_e v - b_e + 2 lam g_e(v) (2 S_e v - b_e), (d,)."""
        Sv, g = self.S @ v, self.scale_slopes(v)
        return (Sv - self.b).sum(axis=0) + 2.0 * self.lam * g @ (2.0 * Sv - self.b)

    def hessian(self, v: np.ndarray) -> np.ndarray:
        """2 M(v) + 2 lam sum_e (2 S_e v - b_e)(2 S_e v - b_e)', (d, d)."""
        a = 2.0 * self.S @ v - self.b
        return 2.0 * multiplier_matrix(self, v) + 2.0 * self.lam * a.T @ a

    def rounding(self, v: np.ndarray) -> float:
        """Return what rounding may add to J(v): eps times the number of summands times their magnitudes."""
        a = np.abs(v)
        q, t = np.abs(self.S) @ a @ a, np.abs(self.b) @ a
        sizes = float((0.5 * q + t + 0.5 * np.abs(self.c)).sum() + self.lam * ((q + t) ** 2).sum())
        return 2.0 * _EPS * (8.0 + v.size + math.sqrt(self.terms)) * sizes

    def scaled(self) -> tuple[Environments, np.ndarray, float]:
        """Return the same problem in features and targets of size one, and the units: v = unit u, J = size J'.

        Units are powers of two, so that nothing is rounded: unit (d,) and size, of J.
        """
        feature = _power_of_two(np.sqrt(np.einsum("eii->i", self.S)))
        target = float(_power_of_two(np.sqrt(self.c.sum(keepdims=True)))[0])
        S = self.S / feature[:, None] / feature
        c = self.c / target / target
        return (
            Environments(S, self.b / feature / target, c, self.lam * target * target, self.terms),
            (target / feature),
            target * target,
        )

    def pooled(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Return a minimiser of sum_e R^e, its Hessian (d, d) and its value; what S cannot resolve stays out."""
        S, b = self.S.sum(axis=0), self.b.sum(axis=0)
        v = least_squares(S, b)
        return v, S, float(self.risks(v).sum())

    def box(self, value: float) -> tuple[np.ndarray, np.ndarray]:
        """Return centre and half-widths (d,) of a box that holds every v with J(v) <= value; infinite if none does.

        There sum_e R^e(v) <= value, an ellipsoid.
        """
        v, S, least = self.pooled()
        lam = np.linalg.eigvalsh(S)
        if lam[0] <= _DEFINITE * lam[-1]:
            return v, np.full(v.size, np.inf)
        room = max(value - least, 0.0) + self.rounding(v)
        return v, np.sqrt(2.0 * room * np.diag(np.linalg.inv(S)))


class Moments(NamedTuple):
    """What the moment relaxation says: a lower bound of min J, and the first moments, a minimiser where it is exact."""

    lower: float
    w: np.ndarray  # (d,)


def _power_of_two(sizes: np.ndarray) -> np.ndarray:
    """Return the powers of two next to sizes; 1 for 0."""
    return np.asarray(np.exp2(np.round(np.log2(np.where(sizes > 0.0, sizes, 1.0)))))


def least_squares(S: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a minimiser of v'S v/2 - b'v whatever the units of the features, (d,)."""
    size = np.sqrt(np.diag(S))
    unit = np.divide(1.0, size, out=np.zeros(size.size), where=size > 0.0)
    return unit * np.linalg.lstsq(S * np.outer(unit, unit), unit * b, rcond=None)[0]


def multiplier_matrix(problem: Environments, v: np.ndarray) -> np.ndarray:
    """M(v) = sum_e (1/2 + 2 lam g_e(v)) S_e, (d, d)."""
    return np.einsum("e,eij->ij", 0.5 + 2.0 * problem.lam * problem.scale_slopes(v), problem.S)


def shortfall(problem: Environments, v: np.ndarray) -> float:
    """Return a bound of J(v) - min J: grad J' M(v)^{-1} grad J/4 where M(v) > 0, else inf.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.solvers.environments.invariance import Environments, shortfall
    >>> one = Environments(np.eye(1)[None], np.array([[1.0]]), np.array([1.0]), lam=20.0)
    >>> float(one.value(np.array([1.2]))) <= shortfall(one, np.array([1.2])), shortfall(one, np.array([0.1]))
    (True, inf)
    """
    M = multiplier_matrix(problem, v)
    if not np.isfinite(M).all():
        return math.inf
    lam, V = np.linalg.eigh(M)
    if not lam[0] > _DEFINITE * np.abs(lam).max():
        return math.inf
    return float(((V.T @ problem.gradient(v)) ** 2 / lam).sum()) / 4.0


def dual_bound(problem: Environments, mu: np.ndarray) -> float:
    """Return D(mu), which is at most min J; -inf where M is not positive definite beyond rounding."""
    M = np.einsum("e,eij->ij", mu, problem.S)
    h = (0.5 + mu) @ problem.b
    if not np.isfinite(M).all():
        return -math.inf
    lam, V = np.linalg.eigh(M)
    top = float(np.abs(mu) @ np.abs(problem.S).sum(axis=2).max(axis=1))  # multipliers of both signs may cancel
    if not lam[0] > _DEFINITE * top:
        return -math.inf
    cost = np.where(mu == 0.5, 0.0, (0.5 - mu) ** 2 / (4.0 * problem.lam)) if problem.lam else np.zeros(mu.size)
    if problem.lam == 0.0 and (mu != 0.5).any():
        return -math.inf
    last = float(((V.T @ h) ** 2 / lam).sum()) / 4.0
    terms = (float(problem.c.sum()) / 2.0, float(cost.sum()), last)
    unit = _EPS * (8.0 + len(M) + len(mu) + math.sqrt(problem.terms))
    slip = unit * float(np.linalg.norm(np.abs(0.5 + mu) @ np.abs(problem.b))) / math.sqrt(lam[0])  # of M^{-1/2} h
    off = unit * (sum(map(abs, terms)) + 2.0 * last * top / lam[0]) + slip * (math.sqrt(last) + 0.25 * slip)
    return terms[0] - terms[1] - terms[2] - off


def best_dual_bound(problem: Environments) -> tuple[float, np.ndarray]:
    """Return the largest D(mu) found by a semidefinite programme of E + 1 numbers, and its mu (E,).

    The programme's answer is not believed: mu is moved until M > 0, and D(mu) is computed from it.
    """
    import cvxpy as cp

    problem, _, size = problem.scaled()
    seen = np.einsum("eii->i", problem.S) > 0.0  # features that are 0 everywhere change nothing
    if not seen.all():
        problem = problem._replace(S=problem.S[:, seen][:, :, seen], b=problem.b[:, seen])
    S, b, lam = problem.S, problem.b, problem.lam
    E, d = b.shape
    half = np.full(E, 0.5)
    if d == 0:
        return 0.5 * size * float(problem.c.sum()) * (1.0 - _EPS * (8.0 + math.sqrt(problem.terms))), half
    plain = size * dual_bound(problem, half)
    if lam == 0.0:
        return plain, half
    mu, s = cp.Variable(E), cp.Variable()
    h = b.T @ (half + mu)
    M = sum(mu[e] * S[e] for e in range(E))
    block = cp.bmat(
        [
            [M, cp.reshape(h, (d, 1), order="C") / 2.0],
            [cp.reshape(h, (1, d), order="C") / 2.0, cp.reshape(s, (1, 1), order="C")],
        ]
    )
    programme = cp.Problem(cp.Maximize(-cp.sum_squares(half - mu) / (4.0 * lam) - s), [block >> 0])
    if not _solved(programme) or mu.value is None:
        return plain, half
    found = [(plain, half)]
    for shift in (0.0, *10.0 ** np.arange(-12.0, 0.0)):
        moved = (1.0 - shift) * mu.value + shift * half
        found.append((size * dual_bound(problem, moved), moved))
    return max(found, key=lambda pair: pair[0])


def _solved(programme: Any) -> bool:
    """Solve a semidefinite programme as far as the solver comes; False where it gives up."""
    fine = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-13)
    return attempt(programme, solver="CLARABEL", **fine) or attempt(programme, solver="CLARABEL")


def moment_solution(problem: Environments, v: np.ndarray) -> Moments:
    """Return what the moment relaxation of order two says; -inf and NaN where no box holds the minimiser.

    J(v + reach u) - gamma = z'Gz + r with z the monomials of degree at most two in u, |u| <= 1 over the box of
    `Environments.box`, G >= 0 after its negative eigenvalues are cut, and r what is left; gamma - sum |r| is returned.

    Parameters
    ----------
    problem : Environments
    v : array (d,)
        A point of low value: minimisers lie no higher, and the closer it is to one the less is lost.
    """
    import cvxpy as cp

    centre, half = problem.box(problem.value(v))
    reach, nothing = np.abs(centre - v) + half, Moments(-math.inf, np.full(v.size, np.nan))
    if not np.isfinite(reach).all() or not (reach > 0.0).all():
        return nothing
    Q, powers = _gram(problem, v, reach)
    magnitude = _gram(problem._replace(S=np.abs(problem.S), b=-np.abs(problem.b)), np.abs(v), reach)[0]
    size = max(float(np.abs(Q).max()), np.finfo(float).tiny)
    index = {p: i for i, p in enumerate(sorted({tuple(np.add(p, q)) for p in powers for q in powers}))}
    at = np.array([[index[tuple(np.add(p, q))] for q in powers] for p in powers])
    N, start = len(powers), index[tuple([0] * v.size)]
    A = np.zeros((len(index), N * N))
    A[at.ravel(), np.arange(N * N)] = 1.0
    G, gamma = cp.Variable((N, N), PSD=True), cp.Variable()
    unit = np.zeros(len(index))
    unit[start] = 1.0
    target = A @ (Q / size).ravel()
    matched = A @ cp.vec(G, order="C") == target - gamma * unit
    if not _solved(cp.Problem(cp.Maximize(gamma), [matched])) or G.value is None or gamma.value is None:
        return nothing
    best = float(np.asarray(gamma.value))
    lam, V = np.linalg.eigh(0.5 * (G.value + G.value.T))
    kept = (V * np.maximum(lam, 0.0)) @ V.T
    left = target - best * unit - A @ kept.ravel()
    sizes = magnitude / size + np.abs(V) * np.abs(lam) @ np.abs(V).T
    off = _EPS * (8.0 + N + math.sqrt(problem.terms)) * float((A @ sizes.ravel()).sum())
    moments = np.asarray(matched.dual_value)
    first = moments[[index[power] for power in powers[1 : 1 + v.size]]] / moments[start]
    return Moments(size * (best - float(np.abs(left).sum()) - off), v + reach * first)


def _gram(problem: Environments, v: np.ndarray, reach: np.ndarray) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """Return Q with J(v + reach u) = z'Qz, (N, N), and the powers of the monomials z of u."""
    d = reach.size
    pairs = list(itertools.combinations_with_replacement(range(d), 2))
    one = [tuple(int(i == j) for i in range(d)) for j in range(d)]
    powers = [tuple([0] * d), *one, *(tuple(np.add(one[i], one[j])) for i, j in pairs)]
    S, Sv = problem.S * np.outer(reach, reach), problem.S @ v
    quadratic = np.array([[(1.0 if i == j else 2.0) * Se[i, j] for i, j in pairs] for Se in S])
    g = np.concatenate([problem.scale_slopes(v)[:, None], (2.0 * Sv - problem.b) * reach, quadratic], axis=1)
    R = np.concatenate([problem.risks(v)[:, None], (Sv - problem.b) * reach, 0.5 * quadratic], axis=1).sum(axis=0)
    Q = problem.lam * g.T @ g
    Q[0] += 0.5 * R
    Q[:, 0] += 0.5 * R
    return Q, powers


def least_points(problem: Environments, starts: np.ndarray) -> list[np.ndarray]:
    """Return the distinct local minimisers of J that Newton's method with a trust region finds, lowest first.

    Parameters
    ----------
    problem : Environments
    starts : array (m, d)
    """
    problem, unit, _ = problem.scaled()
    size = 1.0 + abs(problem.value(starts[0] / unit))
    J: Any = lambda v: problem.value(v) / size  # noqa: E731
    found = []
    for v in starts / unit:
        slope: Any = lambda v: problem.gradient(v) / size  # noqa: E731
        bend: Any = lambda v: problem.hessian(v) / size  # noqa: E731
        how: Any = {"jac": slope, "options": {"gtol": 1e-13, "maxiter": 500}}
        try:
            best = minimize(J, v, hess=bend, method="trust-exact", **how).x
        except UnboundLocalError:  # SciPy's own, where a Hessian is singular
            best = minimize(J, v, method="BFGS", **how).x
        H = problem.hessian(best)
        lam = np.linalg.eigvalsh(H)
        if lam[0] > 4.0 * _EPS * lam.size * lam[-1]:  # no saddle, and not flat; the last digits by Newton's method
            for _ in range(3):
                step = np.linalg.solve(problem.hessian(best), problem.gradient(best))
                if not np.isfinite(step).all() or problem.value(best - step) > problem.value(best) + problem.rounding(
                    best
                ):
                    break
                best = best - step
        if lam[0] >= -1e-9 * np.abs(lam).max():
            found.append(best)
    return [unit * v for v in distinct(found, problem.value)]


def distinct(points: list[np.ndarray], value: Any) -> list[np.ndarray]:
    """Return points that differ by more than 1e-6 of their size, lowest value first."""
    kept: list[np.ndarray] = []
    for v in sorted(points, key=value):
        if all(np.abs(v - u).max() > 1e-6 * (1.0 + np.abs(u).max()) for u in kept):
            kept.append(v)
    return kept
