"""Likelihoods of clients that keep their rows: N_k, its gradient and Hessian, and what else an inference asks of rows.

N(b) = sum_k N_k(b) = sum_i s_i l(x_i'b + o_i, y_i), l half the unit deviance; F = N/n with n = sum s. With site
intercepts a client minimises over its own one: N_k(b) = min_a sum_i s_i l(a + x_i'b + o_i, y_i), whose gradient is that
at the minimum, and whose Hessian is the Schur complement J_bb - J_ba J_ab/J_aa. The intercepts stay where they are; b
is that of a model with K - 1 indicators (Richards, "A method of maximum-likelihood estimation", J. R. Statist. Soc. B
23, 1961: such derivatives of a function minimised over some of its arguments).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, flag, instance, numeric
from fedconvex.analysis import covariances
from fedconvex.analysis.newton_search import Minima, certified_gap, inverse_of, minimise
from fedconvex.analysis.response_families import Family, pearson_sum, value_rounding
from fedconvex.federation import Federation
from fedconvex.problems import Measure
from fedconvex.problems.protocol import COEFFICIENTS, ClientWeights, Derivatives, client_weights
from fedconvex.solvers.rows.hessians import weighted_gram

MOST_STEPS = 200
CONSTANT = 1e-10  # of the pooled variance of a column, what it varies by at a client


class RowsAt(NamedTuple):
    """One client's rows at a model."""

    X: np.ndarray  # (n, p)
    z: np.ndarray  # (n,) scores, with offset and site intercept
    slopes: np.ndarray  # (n,) l'
    curvatures: np.ndarray  # (n,) l''
    s: np.ndarray  # (n,) weights
    intercept: float  # its own, 0 without one


class LikelihoodProblem(ClientWeights):
    """A generalised linear model over clients.

    Parameters
    ----------
    federation : Federation
        Rows with the responses of the family (0 and 1 for logistic), their weights (equal rows counted once) and
        offsets. Dense.
    family : Family
    site_intercepts : bool
        Whether every client has an intercept of its own; X then holds none.

    Raises
    ------
    ValueError
        If responses are none of the family, rows are sparse, or a column does not vary within any client that has an
        intercept of its own.
    """

    learns = COEFFICIENTS
    l2 = 0.0
    penalty = None
    free = None

    def __init__(self, federation: Federation, family: Family, *, site_intercepts: bool = False) -> None:
        instance("LikelihoodProblem: federation", federation, Federation)
        instance("LikelihoodProblem: family", family, Family)
        if federation.is_sparse:
            raise bad("LikelihoodProblem: federation", "be dense: its Hessian is", "CSR", "pass X.toarray()")
        family.check(federation.y, "LikelihoodProblem: responses")
        self.federation, self.family = federation, family
        self.site_intercepts = flag("LikelihoodProblem: site_intercepts", site_intercepts)
        self.weights = client_weights("LikelihoodProblem", None, federation, offsets=True)
        self.size, self.self_concordance = federation.d, family.self_concordance
        self.loss = family

    def own_rows(self, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return client k's X (n_k, p), y, weights and offsets."""
        fed = self.federation
        mine = slice(int(fed.ptr[k]), int(fed.ptr[k + 1]))
        n = mine.stop - mine.start
        s = np.ones(n) if fed.sample_weight is None else fed.sample_weight[mine]
        return fed.X[mine], fed.y[mine], s, np.zeros(n) if fed.offset is None else fed.offset[mine]

    @cached_property
    def silent(self) -> np.ndarray:
        """Clients whose own intercept is infinite, (K,): all their responses agree, and N_k is 0 whatever b is."""
        out = np.zeros(self.federation.K, dtype=bool)
        possible = self.site_intercepts and self.family.name not in ("gaussian", "gamma")
        for k in range(self.federation.K) if possible else ():
            _, y, s, _ = self.own_rows(k)
            y = y[s > 0.0]
            low, high = (self.family.slope(np.full(y.size, a), y).sum() for a in (-1e3, 1e3))
            out[k] = not low < 0.0 < high
        return out

    def at(self, k: int, b: np.ndarray) -> RowsAt:
        """Return client k's rows at b."""
        X, y, s, o = self.own_rows(k)
        z = X @ b + o
        a = 0.0
        if self.site_intercepts and not self.silent[k]:
            a = _own_intercept(self.family, z, y, s)
            z = z + a
        slopes, curvatures = self.family.slope(z, y), self.family.curvature(z, y)
        if self.silent[k]:
            slopes, curvatures = np.zeros_like(z), np.zeros_like(z)
        return RowsAt(X, z, slopes, curvatures, s, a)

    def client_sums(self, k: int, b: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return N_k, its gradient (p,) and Hessian (p, p) at b (p,); infinite where it overflows."""
        if self.silent[k]:
            return 0.0, np.zeros(self.size), np.zeros((self.size, self.size))
        at = self.at(k, b)
        h = at.s * at.curvatures
        with np.errstate(over="ignore", invalid="ignore"):
            N = float(at.s @ self.family.value(at.z, self.own_rows(k)[1]))
            g, finite = at.X.T @ (at.s * at.slopes), bool(np.isfinite(h.sum()))
        if not (np.isfinite(N) and finite and np.isfinite(g).all()):
            return np.inf, np.full(self.size, np.inf), np.full((self.size, self.size), np.inf)
        H = weighted_gram(at.X, h)
        if self.site_intercepts:
            total, across = h.sum(), at.X.T @ h
            g = g - across * (float(at.s @ at.slopes) / total)  # what rounding leaves of the own intercept's slope
            H = H - np.outer(across, across / total)
        return N, g, H

    def client_reach(self, k: int, inverse: np.ndarray) -> float:
        """Return the largest (x'A x)^(1/2) of client k's rows; of differences of its rows with its own intercept."""
        if self.silent[k]:
            return 0.0
        X = self.own_rows(k)[0]
        if not self.site_intercepts:
            return float(np.sqrt(np.einsum("ni,ij,nj->n", X, inverse, X, optimize=True).max()))
        X = X - 0.5 * (X.min(axis=0) + X.max(axis=0))
        return 2.0 * float(np.sqrt(np.einsum("ni,ij,nj->n", X, inverse, X, optimize=True).max()))

    def client_information(self, k: int, b: np.ndarray) -> np.ndarray:
        """Return the expected information of client k, the Schur complement of its own intercept's."""
        if self.silent[k]:
            return np.zeros((self.size, self.size))
        at = self.at(k, b)
        h = at.s * self.family.expected_curvature(at.z)
        H, across = weighted_gram(at.X, h), at.X.T @ h
        return H - np.outer(across, across / h.sum()) if self.site_intercepts else H

    def information(self, b: np.ndarray) -> np.ndarray:
        """Return the expected information of all clients."""
        return np.sum([self.client_information(k, b) for k in range(self.federation.K)], axis=0)

    @property
    def constants(self) -> float:
        """What the log-likelihood has beside N."""
        constant = self.family.row_constant
        if constant is None:
            return 0.0
        told = [self.own_rows(k) for k in range(self.federation.K)]
        return sum(float(s @ constant(y)) for _, y, s, _ in told)

    @property
    def varies(self) -> bool:
        """Whether responses differ."""
        return bool(np.ptp(self.federation.y) > 0.0)

    @property
    def is_binary(self) -> bool:
        """Whether responses are 0 and 1, without offsets."""
        return self.federation.offset is None and bool(np.isin(self.federation.y, (0.0, 1.0)).all())

    @property
    def log_mean(self) -> float:
        """Where the search for a common intercept of a logarithmic link begins."""
        told = [self.own_rows(k) for k in range(self.federation.K)]
        total = sum(float(s @ y) for _, y, s, _ in told)
        return float(np.log(total / sum(float(s @ np.exp(o)) for _, _, s, o in told))) if total > 0.0 else 0.0

    def score_size(self, b: np.ndarray) -> float:
        """Return a bound on responses and scores, which rounding goes by."""
        fed = self.federation
        return float(np.abs(fed.y).max()) + float(np.abs(b).max()) * (float(np.abs(fed.X).sum(axis=1).max()) + 1.0)

    def covariance(self, b: np.ndarray, inverse: np.ndarray, kind: str) -> np.ndarray:
        """Return a robust covariance at the estimate b with J^-1 (p, p); "client" is CR1."""
        kind = "CR1" if kind == "client" else kind
        return covariances.robust(kind, inverse, self.meat(b, inverse), self.n, self.parameters)

    def meat(self, b: np.ndarray, inverse: np.ndarray) -> covariances.Meat:
        """Return the sums of squares that robust covariances are made of."""
        told = [self.at(int(k), b) for k in np.flatnonzero(~self.silent)]
        each = [covariances.meat(a.X, a.slopes, a.curvatures, a.s, inverse, self.site_intercepts) for a in told]
        if not each:
            nothing = np.zeros((self.size, self.size))
            return covariances.Meat(nothing, nothing, nothing, nothing, 0.0, 0.0, 0.0)
        return covariances.added(each)

    def alone(self) -> list[Alone | None]:
        """Return the estimates of every client alone; None where a client has none."""
        fed, own = self.federation, self.site_intercepts
        ones = [LikelihoodProblem(fed.subset([k]), self.family, site_intercepts=own) for k in range(fed.K)]
        return [None if self.silent[k] else alone(one) for k, one in enumerate(ones)]

    def gram(self) -> np.ndarray:
        """Return X'X with weights, columns less their means over each client with site intercepts."""
        G = np.zeros((self.size, self.size))
        for k in range(self.federation.K):
            X, _, s, _ = self.own_rows(k)
            X = X - (s @ X) / s.sum() if self.site_intercepts else X
            G += (X.T * s) @ X
        return G

    @property
    def parameters(self) -> int:
        """Number of coefficients, site intercepts among them."""
        return self.size + (self.federation.K if self.site_intercepts else 0)

    def client_derivatives(self, W: np.ndarray, clients: np.ndarray) -> Derivatives:
        """Return f_k = N_k/n_k with gradients and Hessians, at R models for their clients (R, m); models are flat."""
        W = np.asarray(W, dtype=np.float64).reshape(len(W), -1)
        parts = [self.client_sums(int(k), v) for v, who in zip(W, clients, strict=True) for k in who]
        mass = self.federation.masses[clients]
        found = []
        for i in range(3):
            each = np.reshape([part[i] for part in parts], clients.shape + (self.size,) * i)
            found.append(each / mass.reshape(mass.shape + (1,) * i))
        return Derivatives(*found)

    def sums(self, B: np.ndarray) -> Derivatives:
        """Return N, grad N and hess N at models B (R, p): one round."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # far out, where a search turns back
            total = [[self.client_sums(k, b) for k in range(self.federation.K)] for b in B]
        return Derivatives(*(np.array([sum(part[i] for part in parts) for parts in total]) for i in range(3)))

    def spread(self, inverses: np.ndarray) -> np.ndarray:
        """Return max_i (x_i'A x_i)^(1/2) for each of the inverses A (R, p, p), (R,): one round."""
        K = range(self.federation.K)
        return np.array([max(self.client_reach(k, A) for k in K) for A in inverses])

    def gradient_rounding(self, b: np.ndarray) -> np.ndarray:
        """Return how far entries of the computed grad N may be off, (p,).

        (8 + n^(1/2)) eps of the sums of sizes, and what the rounding of scores moves.
        """
        told, sizes = [self.at(int(k), b) for k in np.flatnonzero(~self.silent)], np.zeros(self.size)
        eps = np.finfo(float).eps
        for a in told:
            rows = np.abs(a.X)
            moved = (self.size + 1.0) * (rows @ np.abs(b) + np.abs(a.z)) * a.curvatures
            sizes += rows.T @ (a.s * ((8.0 + np.sqrt(self.n)) * np.abs(a.slopes) + moved))
        return np.asarray(eps * sizes)

    def roundings(self, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how far gradients and N at models (R, p) may be off, (R, p) and (R,)."""
        return np.array([self.gradient_rounding(b) for b in B]), np.array([self.value_rounding(b) for b in B])

    def pearson(self, b: np.ndarray) -> float:
        """Return sum s (y - mu)^2/V(mu) over the rows of clients that are not silent."""
        told = [(self.at(int(k), b), self.own_rows(int(k))[1]) for k in np.flatnonzero(~self.silent)]
        return sum(pearson_sum(self.family, a.z, y, a.s) for a, y in told)

    def value_rounding(self, b: np.ndarray) -> float:
        """Return how far the computed N may be off: of the rows' values, and of the site intercepts."""
        total = 0.0
        for k in np.flatnonzero(~self.silent):
            X, y, s, o = self.own_rows(int(k))
            at = self.at(int(k), b)
            total += value_rounding(self.family, X, b, o + at.intercept, y, s)
            if self.site_intercepts:  # N_k at an intercept that is not quite the best
                total += float(at.s @ at.slopes) ** 2 / float(at.s @ at.curvatures)
        return total

    @property
    def n(self) -> float:
        """Sum of the weights of all rows."""
        return float(self.federation.masses.sum())

    def flatten(self, w: Any) -> tuple[np.ndarray, bool]:
        """Return models as (R, p), and whether w was a single one."""
        a = numeric(f"{type(self).__name__}: model w", w)
        if a.shape != self.model_shape and a.shape[1:] != self.model_shape:
            raise bad(f"{type(self).__name__}: model w", f"have shape {self.model_shape}, or R of them", f"{a.shape}")
        return a.reshape(-1, self.size), a.shape == self.model_shape

    @property
    def model_shape(self) -> tuple[int, ...]:
        """Shape of one model."""
        return (self.size,)

    def value(self, w: Any) -> Any:
        """F(w) = N(w)/n: a float, or (R,)."""
        W, single = self.flatten(w)
        values = self.sums(W).values / self.n
        return float(values[0]) if single else values

    def gradient(self, w: Any) -> np.ndarray:
        """Gradient of F, in the shape of w."""
        W, single = self.flatten(w)
        G = (self.sums(W).gradients / self.n).reshape(-1, *self.model_shape)
        return G[0] if single else G

    def hessian(self, w: Any) -> np.ndarray:
        """Hessian of F at one model, (p, p)."""
        return self.sums(self.flatten(w)[0][:1]).hessians[0] / self.n

    def measure(self, w: np.ndarray) -> Measure:
        """F of R models, and certified gaps by self-concordance; F itself, which is above zero, where none is known."""
        W = self.flatten(w)[0]
        with np.errstate(all="ignore"):
            at = self.sums(W)
            value, gap = at.values / self.n, at.values / self.n
            for r in np.flatnonzero(np.isfinite(at.hessians).all(axis=(1, 2))):
                inverse, rank = inverse_of(at.hessians[r])
                if rank == self.size:
                    off = self.gradient_rounding(W[r])
                    size = np.sqrt(at.gradients[r] @ inverse @ at.gradients[r]) + np.sqrt(off @ np.abs(inverse) @ off)
                    kappa = self.self_concordance * self.spread(inverse[None])
                    gap[r] = min(gap[r], float(certified_gap(size**2, kappa)[0]) / self.n)
        gap = gap + 8.0 * np.finfo(float).eps * (8.0 + np.sqrt(self.n)) * np.abs(value)
        return Measure(value, np.where(np.isnan(gap), np.inf, gap))

    def statistic(self, name: str) -> Any:
        """Raise ValueError: nothing is asked before a run."""
        raise bad(f"{type(self).__name__}.statistic: name", "be one that it answers (none)", f"{name!r}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.federation!r}, {self.loss!r})"


def certified_minimum(problem: Any, start: np.ndarray) -> Minima:
    """Minimise N from a start (1, p), with a gap that allows for the rounding of the gradient.

    A gradient that is off is that of N plus a linear function, whose decrement adds to lambda. Far out along a
    direction in which N falls for ever lambda is rounding, and without this a minimum would seem to be attained.
    """
    found = minimise(problem.sums, start, problem.self_concordance, problem.spread)
    off = problem.gradient_rounding(found.b[0])
    size = np.sqrt(found.decrement) + np.sqrt(off @ np.abs(found.inverse[0]) @ off)
    gap = np.where(found.attained, certified_gap(size**2, found.kappa), np.inf)
    return found._replace(gap=gap)


class Alone(NamedTuple):
    """One client fitted by itself."""

    b: np.ndarray  # (p,)
    information: np.ndarray  # (p, p) over its dispersion
    N: float
    pearson: float


def alone(one: Any) -> Alone | None:
    """Return the fit of one client, an intercept beside; None where it has no estimate or no dispersion.

    Columns are in units of their pooled standard deviations.
    """
    if (np.diagonal(one.gram()) <= CONSTANT * one.n).any():
        return None  # what is left of a column that does not vary here is rounding
    found = certified_minimum(one, np.zeros((1, one.size)))
    n, p, b = one.n, one.size + 1, found.b[0]
    if not found.attained[0] or (one.family.dispersion != "1" and n <= p):
        return None
    N, pearson = float(found.value[0]), one.pearson(b)
    phi = one.family.phi(N, pearson, n, p)
    size = one.score_size(b) if one.family.name == "gaussian" else 1.0
    if one.family.dispersion != "1" and phi <= (64.0 * np.finfo(float).eps * size) ** 2:
        return None  # residuals are rounding: there are no standard errors
    return Alone(b, one.information(b) / phi, N, pearson)


def _own_intercept(family: Family, z: np.ndarray, y: np.ndarray, s: np.ndarray) -> float:
    """Return argmin_a sum s l(a + z, y) by Newton steps d, shortened to log(1 + c |d|)/c: N falls with each.

    Sun and Tran-Dinh, Math. Program. 178, 2019, Theorem 2 (nu = 2), in one dimension, where moving a moves all scores.
    """
    a, c = 0.0, family.self_concordance
    if c > 0.0:  # the scores' spread would overflow: begin where the middle one is zero
        a = -float(np.median(z))
    if family.name == "gamma":  # closed form; from far below, each step would be log 2
        with np.errstate(over="ignore", divide="ignore"):
            level = np.log(float(s @ (y * np.exp(-(a + z)))) / float(s.sum()))
        a += float(level) if np.isfinite(level) else 0.0
    for _ in range(MOST_STEPS):
        slopes = family.slope(a + z, y)
        bends = family.curvature(a + z, y) if family.curvature_of is None else family.curvature_of(slopes, y)
        slope, bend = float(s @ slopes), float(s @ bends)
        if not bend > 0.0:
            d = -np.sign(slope)
        else:
            d = -slope / bend
        step = float(np.sign(d) * np.log1p(c * abs(d)) / c) if c > 0.0 and abs(d) > 1e-3 else float(d)
        if not np.isfinite(step):
            break
        a += step
        if abs(step) <= 4e-16 * (1.0 + abs(a)) or 0.0 < c * step * step <= 1e-17:  # the next step is of order c d^2
            break
    return a
