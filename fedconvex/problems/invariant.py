"""Invariant risk minimisation over environments: the federation's domains, or its clients where it has none."""

from __future__ import annotations

import itertools
import time
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from fedconvex._check import among, bad, real, whole, wrong_type
from fedconvex.federation import Federation
from fedconvex.kernels.domain_sums import domain_counts, domains_of
from fedconvex.kernels.scale_slopes import ScaleSlope
from fedconvex.problems.empirical_risk import Problem
from fedconvex.problems.protocol import INVARIANT_MODEL, ClientWeights, Measure
from fedconvex.solvers.certificates.row_rounding import EPS, allowances, scale_slope_allowances
from fedconvex.solvers.environments import invariance
from fedconvex.solvers.environments.invariance import Environments
from fedconvex.solvers.environments.invariance_boxes import Boxes, least_in_boxes
from fedconvex.solvers.solution import Solution

_SCALE = "scale the features, the targets or the penalty"
_SMALL = {"dual": 300, "moments": 6}  # features up to which the semidefinite programmes are solved


class InvariantSubset(NamedTuple):
    """Features whose least-squares coefficients are the same in all environments, up to ``disagreement``.

    Attributes
    ----------
    features : tuple of int
        Numbers of the features.
    w : array (d,)
        Least-squares coefficients of all rows with these features; zeros elsewhere.
    risk : float
        sum_e R^e(w).
    disagreement : float
        max_e R^e(w) less the least risk of these features in e.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.problems import InvariantSubset
    >>> causes = InvariantSubset((0,), np.array([1.0, 0.0]), 0.5, 0.0)
    >>> causes.features, causes.disagreement
    ((0,), 0.0)
    """

    features: tuple[int, ...]
    w: np.ndarray  # (d,) zeros elsewhere
    risk: float  # sum_e R^e(w)
    disagreement: float  # max_e R^e(w) less the least risk of these features in e


class InvariantProblem(ClientWeights):
    """J(w) = sum_e R^e(w) + lam sum_e g_e(w)^2, IRMv1 with a scalar classifier fixed at one; a model w is (d,).

    R^e is the mean loss over environment e, and g_e(w) the slope at s = 1 of s -> R^e(s w). J is not convex: `solve`
    certifies the global minimum where it can, and says so where it cannot.

    Parameters
    ----------
    federation : Federation
        Environments are its domains, or its clients; every client lies in one of them.
    loss : loss
        Smooth, for one output: `Squared`, `Logistic`, ...
    penalty_weight : float
        lam, at least 0; 0 is the sum of the environments' risks.

    Raises
    ------
    ValueError, TypeError
        If a client has rows of several environments, or the loss has several outputs or no curvature.

    References
    ----------
    Arjovsky, Bottou, Gulrajani, Lopez-Paz, "Invariant risk minimization", arXiv:1907.02893 (IRMv1; there for any
    representation, of which the model is the linear one). Certificates: `fedconvex.solvers.environments.invariance`.

    Examples
    --------
    Shape agrees with the label in 75 % of both environments, colour in 80 and in 90 %.

    >>> import numpy as np
    >>> from fedconvex import Squared
    >>> from fedconvex.datasets import coloured_federation
    >>> from fedconvex.problems import InvariantProblem
    >>> problem = InvariantProblem(coloured_federation((0.2, 0.1)), Squared(), penalty_weight=1e4)
    >>> best = problem.solve()
    >>> best.w.round(3).tolist(), round(best.value, 6), bool(best.gap < 1e-6)
    ([0.507, 0.011], 0.744545, True)
    >>> [found.features for found in problem.subsets(tol=1e-9)]
    [(0,), ()]
    """

    learns = INVARIANT_MODEL
    over_sites = "remote.kinds.environments"  # what sites answer about it
    l2 = 0.0
    shared = ("penalty_weight", "n_environments")

    def __init__(self, federation: Federation, loss: Any, penalty_weight: float = 1.0) -> None:
        self.penalty_weight = real("InvariantProblem.penalty_weight", penalty_weight, low=0.0)
        self.risk = Problem(federation, loss)
        if self.risk.traits.several:
            raise wrong_type("InvariantProblem.loss", "have one output", f"{loss!r}", "use Logistic or Squared")
        self.risk.need_curvature("InvariantProblem")
        self.scale = Problem(federation, ScaleSlope(loss))
        self.federation, self.loss, self.weights = federation, loss, self.risk.weights
        self._held = held = domains_of(federation).held
        mixed = np.flatnonzero((held > 0).sum(axis=1) > 1)
        if mixed.size:
            who = federation.labels[mixed[0]]
            cure = "name clients by environment too, so that each sends for one"
            raise bad("InvariantProblem.federation", "have clients of one environment each", f"client {who}", cure)
        self.n_environments = held.shape[1]
        if federation.complete:
            domain_counts(federation)  # no environment is empty
        self._solutions: dict[int, Solution] = {}  # by the number of starting points, as the minima
        self._minima: dict[int, list[np.ndarray]] = {}
        self._boxes: dict[tuple[float, int], Boxes] = {}

    @cached_property
    def environment_of(self) -> np.ndarray:
        """Environment of every client, (K,)."""
        return shares_of(self)[0]

    @cached_property
    def shares(self) -> np.ndarray:
        """Share of every client in the rows of its environment, (K,)."""
        return shares_of(self)[1]

    @property
    def model_shape(self) -> tuple[int, ...]:
        """(d,)."""
        return self.risk.model_shape

    @property
    def traits(self) -> Any:
        """What the loss declares."""
        return self.risk.traits

    @property
    def fingerprint(self) -> str:
        """What checkpoints compare beside rows and loss."""
        return f"IRMv1 {self.penalty_weight!r}"

    def __repr__(self) -> str:
        return f"InvariantProblem({self.federation!r}, {self.loss!r}, penalty_weight={self.penalty_weight:g})"

    def statistic(self, name: str) -> list[np.ndarray]:
        """Return what the clients answer before a run.

        "smoothness" is L_k of the mean loss, "environment" the number of a client's environment and its rows there, or
        their weight.
        """
        among("InvariantProblem.statistic: name", name, ("smoothness", "environment"))
        if name == "environment":
            return [np.array([row.argmax(), row.max()], dtype=float) for row in self._held]
        return list(np.asarray(self.risk.statistic("smoothness")))

    # ---------------------------------------------------------------- values

    def risks(self, w: Any) -> np.ndarray:
        """R^e(w), (E,) or (R, E)."""
        return self.risk.domain_values(w)

    def scale_slopes(self, w: Any) -> np.ndarray:
        """g_e(w), (E,) or (R, E): zero in every environment where w is the best multiple of itself."""
        return self.scale.domain_values(w)

    def value(self, w: Any) -> Any:
        """J(w): a float, or (R,)."""
        J = self.risks(w).sum(axis=-1)
        if self.penalty_weight:
            J = J + self.penalty_weight * (self.scale_slopes(w) ** 2).sum(axis=-1)
        return float(J) if np.ndim(J) == 0 else J

    def gradient(self, w: Any) -> np.ndarray:
        """grad J(w), in the shape of w."""
        slope = self.risk.domain_gradients(w).sum(axis=-2)
        if not self.penalty_weight:
            return np.asarray(slope)
        g, G = self.scale_slopes(w), self.scale.domain_gradients(w)
        return np.asarray(slope + 2.0 * self.penalty_weight * np.einsum("...e,...ej", g, G))

    @cached_property
    def environments(self) -> Environments:
        """Second moments of the environments, for squared loss.

        Raises
        ------
        TypeError
            For another loss.
        ValueError
            If features, targets or the weight of the penalty are so large or small that J leaves double precision.
        """
        if not self.traits.quadratic:
            raise wrong_type("InvariantProblem.environments: loss", "be quadratic", f"{self.loss!r}")
        code, counts = domains_of(self.federation)[:2]
        most = 1e120 if self.penalty_weight else 1e290  # room for the products of them in J
        S, b, c = second_moments("InvariantProblem", self.federation, code, counts, most)
        high, total = float(np.einsum("eii->i", S).max(initial=0.0)), float(c.sum())
        if self.penalty_weight and not self.penalty_weight <= most / (1.0 + high) / (1.0 + total):
            must = "be at most 1e120 / (1 + E x_j^2) / (1 + E y^2)"
            raise bad("InvariantProblem.penalty_weight", must, f"{self.penalty_weight:g}", _SCALE)
        return Environments(S, b, c, self.penalty_weight, float(self.federation.n))

    @cached_property
    def _scaled(self) -> tuple[Environments, np.ndarray, float]:
        return self.environments.scaled()

    # ---------------------------------------------------------------- certificates

    def measure(self, w: np.ndarray) -> Measure:
        """Values of R models and certified bounds of J(w) - min J.

        For squared loss grad J' M(w)^{-1} grad J/4 where M(w) > 0, and everywhere the value less the lower bound of
        `solve`; the smaller of the two.
        """
        W, _ = self.risk.flatten(w)
        value = self.value(W)
        gap = value - self.solve().lower + (0.0 if self.traits.quadratic else self._rounding(W, value))
        if self.traits.quadratic:
            p, unit, size = self._scaled
            for r in np.flatnonzero(np.isfinite(gap)):  # not of runs that diverged
                v = W[r] / unit
                gap[r] = min(max(gap[r], 0.0), size * invariance.shortfall(p, v)) + size * p.rounding(v)
        return Measure(value, np.where(np.isnan(gap), np.inf, np.maximum(gap, 0.0)))

    def _rounding(self, W: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Return what rounding may do to values of R models, (R,)."""
        counts = domain_counts(self.federation)
        with np.errstate(all="ignore"):  # of runs that diverged
            off = allowances(self.risk, W, np.ones((len(W), counts.size)))["off"] / counts
            around, slopes = scale_slope_allowances(self.risk, W) / counts, np.abs(self.scale_slopes(W))
            bent = (self.penalty_weight * (2.0 * slopes + around) * around).sum(axis=1)
            return np.asarray(off.sum(axis=1) + bent + 16.0 * (counts.size + 1) * EPS * np.abs(value))

    def solve(self, starts: int = 20) -> Solution:
        """Return the lowest local minimum found, and a certified lower bound of min J.

        Parameters
        ----------
        starts : int
            Random starting points beside zero, the pooled minimiser and those of the environments; drawn from one
            seed, in the box that holds all minimisers.

        Returns
        -------
        Solution
            ``attained`` says that w is certified as a global minimiser, up to 1e-6 (1 + |J|), ``unique`` that M(w) > 0
            beside: a critical point there is the only minimiser; ``certificate`` where ``lower`` comes from.

        Raises
        ------
        ValueError, TypeError
            If starts is negative.

        Notes
        -----
        Squared loss: M(w) > 0; else the better of the dual bound (up to 300 features) and the moment relaxation of
        order two (up to 6). Losses with a ``scale_slope_range`` and at most two features: branch and bound. Where these
        say less, as for columns that are collinear up to rounding, lower is that of the risks alone.
        """
        whole("InvariantProblem.solve: starts", starts, low=0)
        if starts not in self._solutions:
            began = time.perf_counter()
            points = self.minima(starts)
            w, lower, source, unique = self._certified(points[0] if points else np.zeros(self.model_shape))
            value = float(self.value(w))
            lower = float(min(lower, value))
            attained = value - lower <= 1e-6 * (1.0 + abs(value))
            spent = time.perf_counter() - began
            if self.traits.quadratic:
                p, unit, size = self._scaled
                off = float(size * p.rounding(w / unit))
            else:
                off = float(self._rounding(w.reshape(1, -1), np.array([value]))[0])
            self._solutions[starts] = Solution(
                w, value, lower, source, attained, attained and unique, 0, spent, rounding=off, problem=self
            )
        return self._solutions[starts]

    def _certified(self, w: np.ndarray) -> tuple[np.ndarray, float, str, bool]:
        """Return w or a lower point, a lower bound of min J and where it comes from, and whether w alone is least."""
        value, d = float(self.value(w)), self.federation.d
        if not self.traits.quadratic:
            found = float("-inf"), "none"
            if d <= 2 and hasattr(self.loss, "scale_slope_range"):
                found = float(self.boxes().lower), "branch and bound over boxes"
            return (w, *max(found, (self._risks_alone(), "the risks alone")), False)
        p, unit, size = self._scaled
        near = invariance.shortfall(p, w / unit)
        if near < np.inf:
            return w, value - size * (near + p.rounding(w / unit)), "M(w) > 0", True
        bounds = [(float("-inf"), "none")]
        if d <= _SMALL["dual"]:
            bounds.append((size * invariance.best_dual_bound(p)[0], "Lagrangian dual"))
        if d <= _SMALL["moments"]:
            moments = invariance.moment_solution(p, w / unit)
            bounds.append((size * moments.lower, "moment relaxation of order two"))
            for v in invariance.least_points(p, moments.w[None]) if np.isfinite(moments.w).all() else ():
                if p.value(v) < p.value(w / unit) - p.rounding(v):
                    return self._certified(unit * v)
        bounds.append((self._risks_alone(), "the risks alone"))
        return (w, *max(bounds), False)

    def _risks_alone(self) -> float:
        """Return a lower bound of sum_e R^e from the rows: moments do not show what nearly collinear columns can do."""
        return float(self.risk.by_domain.solve().lower) * self.n_environments

    def boxes(self, tol: float = 1e-4, boxes: int = 20000) -> Boxes:
        """Bound min J by branch and bound over boxes, for at most two features.

        Parameters
        ----------
        tol : float
            Stop once value - lower is at most that.
        boxes : int
            Stop after so many.

        Returns
        -------
        Boxes
            ``lower`` is -inf where no box holds the minimisers: separable rows, or collinear columns.

        Raises
        ------
        ValueError, TypeError
            For more than two features, or a loss without ``scale_slope_range``.
        """
        real("InvariantProblem.boxes: tol", tol, low=0.0, strict=True)
        whole("InvariantProblem.boxes: boxes", boxes, low=1)
        if not hasattr(self.loss, "scale_slope_range"):
            raise wrong_type("InvariantProblem.boxes: loss", "declare scale_slope_range, as Logistic", f"{self.loss!r}")
        if self.federation.d > 2:
            raise bad("InvariantProblem.boxes", "be asked with at most two features", self.federation.d)
        if (tol, boxes) not in self._boxes:
            points = self.minima()
            w = points[0] if points else np.zeros(self.model_shape)
            self._boxes[tol, boxes] = least_in_boxes(self, w, tol, boxes)
        found = self._boxes[tol, boxes]
        return found._replace(w=found.w.copy())

    def minima(self, starts: int = 20) -> list[np.ndarray]:
        """Return the distinct local minimisers of J found from many starts, lowest first.

        Parameters
        ----------
        starts : int
            As for `solve`.

        Raises
        ------
        ValueError, TypeError
            If starts is negative.
        """
        whole("InvariantProblem.minima: starts", starts, low=0)
        if starts not in self._minima:
            self._minima[starts] = self._search(starts)
        return [w.copy() for w in self._minima[starts]]

    def _search(self, starts: int) -> list[np.ndarray]:
        rng, d = np.random.default_rng(0), self.federation.d
        if self.traits.quadratic:
            p, unit, _ = self._scaled
            pooled = p.pooled()[0]
            own = [invariance.least_squares(S, b) for S, b in zip(p.S, p.b, strict=True)]
            center, half = p.box(p.value(pooled))
            half = np.where(np.isfinite(half), half, 1.0 + np.abs(center))
            near_zero = 1e-3 * rng.standard_normal((2, d))
            spread = center + half * rng.uniform(-1.0, 1.0, (starts, d))
            return [unit * v for v in invariance.least_points(p, np.vstack([pooled, *own, near_zero, spread]))]
        pooled = self.risk.by_domain.solve().w
        size = 1.0 + np.abs(pooled).max()
        spread = np.vstack([pooled, 1e-3 * rng.standard_normal((2, d)), size * rng.standard_normal((starts, d))])
        found = [minimize(self.value, v, jac=self.gradient, method="BFGS", options={"gtol": 1e-9}).x for v in spread]
        return invariance.distinct([v for v in found if np.isfinite(v).all()], self.value)

    # ---------------------------------------------------------------- invariant subsets

    def subsets(self, tol: float = 1e-9) -> list[InvariantSubset]:
        """Return the subsets of features that predict alike in all environments, the least risk first.

        IRM for feature selection (Arjovsky et al. 2019, Definition 3 with a selection as the representation), solved
        by enumeration: of every subset, the minimiser of sum_e R^e and how much worse it is in some environment than
        the best there. Squared loss.

        Parameters
        ----------
        tol : float
            Largest disagreement. Population moments (`federation_of_moments`) allow rounding only; samples need a
            multiple of their error.

        Raises
        ------
        ValueError, TypeError
            Beyond 16 features (65,536 subsets), or for another loss.
        """
        real("InvariantProblem.subsets: tol", tol, low=0.0)
        p, d = self.environments, self.federation.d
        if d > 16:
            raise bad("InvariantProblem.subsets", "be asked with at most 16 features", d, "choose features first")
        every = [A for k in range(d + 1) for A in itertools.combinations(range(d), k)]
        found = [_of_subset(p, A) for A in every]
        return sorted((s for s in found if s.disagreement <= tol), key=lambda s: (s.risk, len(s.features)))


def shares_of(problem: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the environment of every client, and its share of the environment's rows, (K,), from what they answer."""
    of, rows = np.array(problem.statistic("environment")).T
    of, E = of.astype(np.int64), problem.n_environments
    wrong = np.flatnonzero((of < 0) | (of >= E) | ~(rows > 0.0))
    if wrong.size:
        who, got = problem.federation.labels[wrong[0]], f"{rows[wrong[0]]:g} in {of[wrong[0]]}"
        raise bad(f"client {who}: environment", f"be a number below {E}, with rows", got)
    return of, rows / np.bincount(of, rows, problem.n_environments)[of]


def second_moments(
    who: str, fed: Federation, code: np.ndarray, counts: np.ndarray, most: float = 1e120
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return E xx' (E, d, d), E xy (E, d) and E y^2 (E,) of environments, given the one of each row and their sizes.

    Raises
    ------
    ValueError
        If, summed over environments, squares are above most, or so small that products leave double precision.
    """
    E, d, weight = counts.size, fed.d, np.ones(fed.n) if fed.sample_weight is None else fed.sample_weight
    S, b, c = np.empty((E, d, d)), np.empty((E, d)), np.empty(E)
    for e in range(E):
        mine = code == e
        X = fed.X[mine].toarray() if fed.is_sparse else fed.X[mine]
        y, s = fed.y[mine], weight[mine] / counts[e]
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused below
            S[e], b[e], c[e] = X.T @ (X * s[:, None]), X.T @ (s * y), s @ (y * y)
    squares = np.einsum("eii->i", S)
    rows = fed.X if fed.sample_weight is None else fed.X[fed.sample_weight > 0.0]
    seen = np.asarray((rows != 0.0).sum(axis=0)).ravel() > 0
    high, low = float(squares.max(initial=0.0)), float(squares[seen].min(initial=1.0))
    for name, x in (("mean squares of features", high), ("mean squares of targets", float(c.sum()))):
        if not x <= most:
            raise bad(f"{who}: {name}", f"be at most {most:.0e}", f"{x:g}", _SCALE)
    if low < 1e-250:
        raise bad(f"{who}: mean squares of features", "be 0, or at least 1e-250", f"{low:g}", _SCALE)
    return S, b, c


def _of_subset(p: Environments, A: tuple[int, ...]) -> InvariantSubset:
    w, at = np.zeros(p.b.shape[1]), list(A)
    if not at:
        return InvariantSubset(A, w, float(p.risks(w).sum()), 0.0)
    S, b = p.S[:, at][:, :, at], p.b[:, at]
    w[at] = invariance.least_squares(S.sum(axis=0), b.sum(axis=0))
    own = [invariance.least_squares(Se, be) for Se, be in zip(S, b, strict=True)]
    off = [w[at] - v for v in own]  # R^e(w) - min R^e = off' S_e off/2
    worst = max(float(o @ Se @ o) / 2.0 for o, Se in zip(off, S, strict=True))
    return InvariantSubset(A, w, float(p.risks(w).sum()), worst)
