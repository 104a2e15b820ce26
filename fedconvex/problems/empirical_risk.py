"""The federated empirical risk F(w) = sum_k p_k f_k(w): the only place where normalisation is defined."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import scipy.sparse as sp

from fedconvex import _html
from fedconvex._check import among, array, bad, finite, raw, real, wrong_type
from fedconvex._files import identity
from fedconvex._sparse import rows_given
from fedconvex.constants import Constants
from fedconvex.constants.computed import problem_constants
from fedconvex.federation import Federation
from fedconvex.kernels import row_losses
from fedconvex.kernels.domain_sums import domains_of
from fedconvex.penalties import check_penalty
from fedconvex.problems.protocol import ONE_MODEL, Derivatives, Measure, check_loss, client_weights, free_mask
from fedconvex.solvers.certificates.gaps import bounded_gap, convex_gap, gaps_above, lower_at
from fedconvex.solvers.certificates.norm_rounding import known
from fedconvex.solvers.choice import solve
from fedconvex.solvers.objective import Objective
from fedconvex.solvers.rows.client_means import MANY, AroundOptimum
from fedconvex.solvers.solution import Solution

if TYPE_CHECKING:
    from fedconvex.solvers.minimax import Minimax
    from fedconvex.solvers.penalised.penalty_path import PenaltyPath


class Problem(Objective):
    """F(w) = sum_k p_k f_k(w) + P(w), with f_k(w) = mean of the loss over client k's rows + (l2/2)‖w‖^2.

    A model w is (d,), or (C, d) for a loss with C classes. Every evaluation also takes R models at once, with a leading
    axis R, and then returns one result per model.

    Parameters
    ----------
    federation : Federation
        The rows.
    loss : loss
        One of `fedconvex.losses`, or a NamedTuple of the same shape.
    l2 : float
        Ridge weight, at least 0.
    weights : None, "uniform" or array (K,)
        Client weights p_k: None for n_k/n (F is the mean over all rows), "uniform" for 1/K, or positive numbers that
        sum to one.
    penalty : penalty, optional
        P, of `fedconvex.penalties`: l1, groups, constraints, or one of your own. `value`, `measure` and `solve` know
        it; gradients, Hessians, the f_k and `constants` are those of the smooth part. What has not been made for
        penalties refuses them.
    intercept : bool or array (d,) of bool
        Coordinates that l2 and the penalty leave out: True for the last, whose feature must be 1 in every row
        (`Federation.with_intercept`), or a mask. The penalty sees models without them: groups are groups of the other
        columns. Default: all coordinates are penalised, a column of ones too.

    Raises
    ------
    ValueError, TypeError
        If federation is no `Federation`, l2 is negative, or the loss does not take the labels.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> fed = Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])])
    >>> problem = Problem(fed, Squared())
    >>> float(problem.value(np.array([2.0]))), problem.solve().w
    (0.5, array([2.]))
    """

    learns = ONE_MODEL
    over_sites = "remote.kinds.one_model"  # what sites answer about it
    starts = "the model"
    # what a server knows beside `known_to_server`
    shared = ("n_outputs", "size", "penalty", "penalised_entries", "strong_convexity")

    def __init__(
        self,
        federation: Federation,
        loss: Any,
        l2: float = 0.0,
        weights: Any = None,
        penalty: Any = None,
        intercept: Any = False,
    ) -> None:
        if not isinstance(federation, Federation):
            raise wrong_type("Problem.federation", "be a Federation", type(federation).__name__)
        check_loss("Problem", loss, federation.y)
        p = client_weights("Problem", weights, federation)
        super().__init__(federation, loss, real("Problem.l2", l2, low=0.0), p, free_mask(intercept, federation))
        self.penalty = self._checked(penalty)
        self._solution: Solution | None = None

    @property
    def fingerprint(self) -> str:
        """What checkpoints compare beside rows, loss, l2 and weights."""
        free = "" if self.free is None else f"free {np.flatnonzero(self.free).tolist()}"
        return free if self.penalty is None else f"{free} {identity(self.penalty)}".lstrip()

    @property
    def intercept(self) -> Any:
        """The mask of the coordinates that l2 leaves out (d,), or False."""
        return False if self.free is None else self.free

    def _like(self, federation: Federation, weights: np.ndarray) -> Problem:
        return Problem(federation, self.loss, self.l2, weights, self.penalty, self.intercept)

    def reweighted(self, domain_weights: np.ndarray) -> Self:
        """Return the same rows with other client weights, nonnegative and of sum one; nothing is copied."""
        other = super().reweighted(domain_weights)
        for name in ("lower_bound", "_around_optimum", "_parts"):
            other.__dict__.pop(name, None)
        other._solution = None
        return other

    # ------------------------------------------------------------------ shapes

    # ------------------------------------------------------------------ values

    def gradient(self, w: Any) -> np.ndarray:
        """Gradient of F (a subgradient for the hinge), in the shape of w."""
        W, single = self.flatten(w)
        G = np.stack([self.value_gradient(v)[1] for v in W])
        return self.unflatten(G[0] if single else G)

    def domain_values(self, w: Any) -> np.ndarray:
        """Mean loss + (l2/2)‖w‖^2 over the rows of every domain (client, without domains): (p,), or (R, p)."""
        W, single = self.flatten(w)
        code, counts = self._domain_counts()
        out = np.zeros((len(W), counts.size))
        for lo, hi, values in self._row_values(W):
            values = self.absolute(values, lo, hi)
            for r in range(len(W)):
                out[r] += np.bincount(code[lo:hi], weights=values[:, r], minlength=counts.size)
        out = out / counts + self.ridge_terms(W)[:, None]
        return out[0] if single else out

    def domain_gradients(self, w: Any) -> np.ndarray:
        """Gradients of the domain objectives: (p, *model_shape), or (R, p, *model_shape)."""
        W, single = self.flatten(w)
        code, counts = self._domain_counts()
        fed, C = self.federation, self.n_outputs
        G = np.empty((len(W), counts.size, self.size))
        for r, v in enumerate(W):
            S = self._scores(v[None, :], 0, fed.n)
            row_losses.row_slopes(self.row_loss, S, self.row_labels)
            S = self.absolute(S, 0, fed.n)
            for q in range(counts.size):
                mine = code == q
                G[r, q] = (fed.X[mine].T @ S[mine]).T.reshape(C * fed.d) / counts[q]
        G += self.ridge * W[:, None, :]
        return self.unflatten(G[0] if single else G)

    def hessian(self, w: Any) -> np.ndarray:
        """Hessian of F at one model, (size, size), over the flattened model.

        Raises
        ------
        TypeError
            If the loss has no curvature.
        """
        W, single = self.flatten(w)
        if not single:
            raise bad("Problem.hessian: w", "be one model", f"{len(W)} models")
        return self.value_gradient_hessian(W[0])[2]

    def client_derivatives(self, w: Any, clients: np.ndarray) -> Derivatives:
        """Return values, gradients and Hessians of f_k at R models for their clients (R, m), over flattened models.

        Raises
        ------
        TypeError
            If the loss has no curvature.
        ValueError
            If clients are no numbers of clients, a row for each model.
        """
        W, _ = self.flatten(w)
        clients, K = raw("Problem.client_derivatives: clients", clients), self.federation.K
        if clients.ndim != 2 or len(clients) != len(W) or clients.dtype.kind not in "iu" or not clients.size:
            must = f"be whole numbers ({len(W)}, m), a row for each model"
            raise bad("Problem.client_derivatives: clients", must, f"shape {clients.shape}, {clients.dtype}")
        if clients.min() < 0 or clients.max() >= K:
            raise bad("Problem.client_derivatives: clients", f"lie in 0, ..., {K - 1}", f"{clients.tolist()}"[:80])
        parts = [self._part(int(k)).value_gradient_hessian(v) for v, who in zip(W, clients, strict=True) for k in who]
        found = (np.reshape([part[i] for part in parts], clients.shape + (self.size,) * i) for i in range(3))
        return Derivatives(*found)

    def _part(self, k: int) -> Objective:
        """Return the objective of client k alone, which is kept."""
        parts: dict[int, Objective] = self.__dict__.setdefault("_parts", {})
        if k not in parts:
            parts[k] = self.alone(k)
        return parts[k]

    def measure(self, w: np.ndarray) -> Measure:
        """Values of R models and certified gaps, F(w) - F* <= gap.

        Where columns are collinear up to rounding only, F* stands for the least value over models of the solution's
        ``reach``, for models within it.
        Of eight models or more, F of least squares is computed about the solution, without a sum over rows.
        The lower bound of F* comes from `solve`, where the problem is small enough for second-order solution (at most
        2,000 parameters) and the loss has a curvature (or smooth losses that approach it); elsewhere the gap is
        ‖grad F(w)‖^2/(2 l2) for l2 > 0, or F less a lower bound of the loss, or inf.

        Warns
        -----
        ContradictedCertificate
            If a value lies below the certified lower bound by more than rounding explains; that gap is inf.
        """
        W, _ = self.flatten(w)
        if self.lower_bound is not None:
            if self._solution is not None and self.penalty is None and self.traits.quadratic and len(W) >= MANY:
                return self._measured_around_optimum(W)
            value, lower = self.value(self.unflatten(W)), np.full(len(W), self.lower_bound)
            if self._solution is not None and math.isfinite(self._solution.reach):
                lower = lower_at(self, self._solution, W)
            return Measure(value, gaps_above("Problem.measure", self, value, lower, self.roundings(W, value)))
        value, gap = np.empty(len(W)), np.empty(len(W))
        with np.errstate(all="ignore"):  # of a run that diverges
            for r, v in enumerate(W):
                value[r], g = self.value_gradient(v)
                if self.strong_convexity > 0.0 and known(self):
                    gap[r] = convex_gap(self, v, value[r], g, 0.0).gap
                    continue
                error, off = self.gradient_rounding(v, value[r]), 0.0
                if not np.isfinite(error).all():  # the slopes at computed scores bound the loss as well, but for off
                    error, off = self.sum_rounding(v, value[r]), 2.0 * self.rounding(v, value[r])
                gap[r] = bounded_gap(self, v, value[r], g, error).gap + off
        return Measure(value, np.where(np.isnan(gap), np.inf, gap))

    def _measured_around_optimum(self, W: np.ndarray) -> Measure:
        """Return what `measure` does, for least squares."""
        about = self._around_optimum
        value, off = about.at(W)
        lower = lower_at(self, self.solve(), W)
        return Measure(
            value, gaps_above("Problem.measure", self, value, lower, off + self.rounding(about.v, about.value))
        )

    @cached_property
    def _around_optimum(self) -> AroundOptimum:
        return AroundOptimum.of(self, self.flatten(self.solve().w)[0][0])

    @cached_property
    def lower_bound(self) -> float | None:
        """A certified lower bound of F*, or None where `measure` uses the gradient norm instead."""
        if self.penalty is not None:
            return float(self.solve().lower)
        kind, certified = self.traits, self.l2 > 0.0 or math.isfinite(self.traits.self_concordance)
        if not certified and math.isfinite(kind.lower_bound):
            return kind.lower_bound  # nothing better is known without l2
        return float(self.solve().lower) if (kind.curved or kind.kinked) and certified and self.size <= 2000 else None

    # ------------------------------------------------------------------ exact solution and constants
    def solve(self, tol: float | None = None, start: Any = None) -> Solution:
        """Minimise F over all rows and certify the result.

        Parameters
        ----------
        tol : float, optional
            Stop as soon as F(w) - F* <= tol (1 + |F*|) is certified. Default: go on until rounding stops the progress;
            that solution is kept and later calls return it.
        start : model, optional
            Where Newton's method begins, such as the minimiser for another l2; for smooth losses without a penalty
            (others have starts of their own). The solution is the same up to rounding.

        Returns
        -------
        Solution
            Minimiser, value, certified lower bound of F*, and where the certificate comes from.

        Raises
        ------
        ValueError
            For a loss with kinks (the hinge) and l2 = 0, where nothing certifies the optimum.
        """
        if tol is not None:
            tol = real("Problem.solve: tol", tol, low=0.0, strict=True)
        w = None if start is None else array("Problem.solve: start", start, self.model_shape).ravel()
        if self._solution is None:
            found = replace(solve(self, tol, w), problem=self)
            if tol is not None or w is not None:
                return found
            self._solution = found
        return self._solution

    @property
    def words(self) -> str:
        """What it consists of, as reports say it."""
        fed = self.federation
        return f"{fed.K} clients, {fed.n} rows, {fed.d} features, l2 = {self.l2:g}"

    @cached_property
    def _solved_alone(self) -> list[Solution]:
        """The solutions of all clients alone, which no weight, penalty, start or ball changes."""
        return [solve(self._part(k), None) for k in range(self.federation.K)]

    def with_penalty(self, penalty: Any) -> Problem:
        """Return the same problem with another penalty, or with None; nothing is copied."""
        other = copy.copy(self)
        for name in ("lower_bound", "_around_optimum", "pooled"):
            other.__dict__.pop(name, None)
        other._solution = None
        other.penalty = other._checked(penalty)
        return other

    def _checked(self, penalty: Any) -> Any:
        """Return the penalty, or raise unless it fits the features that are not free."""
        d = self.federation.d if self.free is None else int((~self.free).sum())
        if penalty is not None and d == 0:
            raise bad("Problem.intercept", "leave a feature to the penalty", "all of them free")
        return check_penalty("Problem", penalty, self.n_outputs, d)

    def path(
        self, strengths: Any = None, *, count: int = 20, least: float = 0.01, tol: float | None = 1e-8
    ) -> PenaltyPath:
        """Solve for a sequence of strengths of the penalty, each from the solution before it.

        Parameters
        ----------
        strengths : array, optional
            In decreasing order; default ``count`` of them, equally spaced in their logarithms, from the least at which
            the zero model is the solution down to ``least`` times that.
        count : int
        least : float
            In (0, 1).
        tol : float, optional
            As for `solve`.

        Raises
        ------
        ValueError, TypeError
            If there is no penalty with a field ``strength``, or the strengths do not decrease.

        Examples
        --------
        >>> from fedconvex import Federation, Problem, Squared
        >>> from fedconvex.penalties import L1
        >>> fed = Federation.from_clients([([[2.0, 0.0], [0.0, 1.0]], [3.0, 2.0])])
        >>> path = Problem(fed, Squared(), penalty=L1(1.0)).path([3.0, 1.0, 0.0])
        >>> path.strengths, path.nonzero
        (array([3., 1., 0.]), array([0, 1, 2]))
        """
        from fedconvex.solvers.penalised.penalty_path import penalty_path

        return penalty_path(self, strengths, count, least, tol)

    def solve_minimax(self, tol: float = 1e-10, uncertainty_set: Any = None, start: Any = None) -> Minimax:
        """Minimise max_k F_k(w) over the domains k, the agnostic objective, and certify the result.

        Parameters
        ----------
        tol : float
            The certified gap that is asked for, times 1 + |value|; a warning says where it is missed.
        uncertainty_set : uncertainty set, optional
            Of `fedconvex.simplex.uncertainty`; default the whole simplex, the worst domain. Without domains, clients
            are domains.
        start : model, optional
            Where the search begins, as for `solve`.

        Returns
        -------
        Minimax
            Model, least favourable domain weights, value, and a certified lower bound of the minimax value.

        Raises
        ------
        ValueError
            Beyond 3,000 parameters.
        TypeError
            For a loss without a curvature (the hinge), or with a penalty.

        References
        ----------
        Mohri, Sivek, Suresh, "Agnostic federated learning", ICML 2019 (the objective).

        Examples
        --------
        >>> from fedconvex import Federation, Problem, Squared
        >>> fed = Federation.from_arrays([[1.0], [1.0]], [0.0, 2.0], clients=[0, 1], domains=[0, 1])
        >>> best = Problem(fed, Squared()).solve_minimax()
        >>> best.w, best.domain_weights, round(best.value, 12)
        (array([1.]), array([0.5, 0.5]), 0.5)
        """
        if self.penalty is not None:
            raise wrong_type("Problem.solve_minimax", "be asked without a penalty", f"{self.penalty!r}", "use l2")
        w = None if start is None else array("Problem.solve_minimax: start", start, self.model_shape).ravel()
        from fedconvex.solvers.minimax import solve_minimax

        return solve_minimax(self, tol, uncertainty_set, w)

    def constants(
        self,
        *,
        batch_size: int | None = None,
        replacement: bool = False,
        batch_draw: str = "uniform",
        start: Any = None,
        center: Any = None,
        radius: float | None = None,
    ) -> Constants:
        """Compute the constants that convergence theory speaks of, each with how it was obtained.

        Parameters
        ----------
        batch_size, replacement, batch_draw : int, bool, {"uniform", "weighted"}
            The mini-batches that sigma2, G2 and L_s refer to; default full batches, whose variance is zero.
        start : model, optional
            w_0 of D = ‖w_0 - w*‖; default 0.
        center, radius : model, float, optional
            The ball over which suprema are taken; the centre defaults to w*. Without a radius suprema refer to all of
            R^d, except that sigma2 and G2 are taken at the centre if one is given. B is evaluated at the centre.
        """
        return problem_constants(
            self,
            self.solve(),
            self._solved_alone,
            batch_size=batch_size,
            replacement=replacement,
            batch_draw=batch_draw,
            start=start,
            center=center,
            radius=radius,
        )

    def statistic(self, name: str) -> Sequence[np.ndarray]:
        """Return what the clients answer when asked for a statistic before a run, each from its own rows.

        Parameters
        ----------
        name : {"smoothness", "convexity", "domain_counts"}
            L_k; mu_k; or the rows (p,) of each domain that client k holds.

        Raises
        ------
        ValueError
            For other names.
        """
        if name == "domain_counts":
            return list(domains_of(self.federation).held)
        among("Problem.statistic: name", name, ("smoothness", "convexity", "domain_counts"))
        c = self.constants()
        return list(np.asarray(c.L_k if name == "smoothness" else c.mu_k))

    def client(self, k: int) -> Problem:
        """Return the problem of client k alone."""
        return Problem(self.federation.subset([k]), self.loss, self.l2, None, self.penalty, self.intercept)

    @cached_property
    def pooled(self) -> Problem:
        """The same rows as the problem of a single client."""
        fed = self.federation
        own = Federation(fed.X, fed.y, np.array([0, fed.n]), sample_weight=fed.sample_weight)
        return Problem(own, self.loss, self.l2, None, self.penalty, self.intercept)

    def scores(self, w: Any, X: Any = None) -> np.ndarray:
        """Scores x'w of one model: (n,), or (n, C); of the federation's rows, or of X."""
        W, single = self.flatten(w)
        if not single:
            raise bad("Problem.scores: w", "be one model", f"{len(W)} models")
        finite("Problem.scores: w", W[0])
        rows = self.federation.X if X is None else rows_given("Problem.scores: X", X)
        if rows.ndim != 2 or rows.shape[1] != self.federation.d:
            raise bad("Problem.scores: X", f"have {self.federation.d} columns", f"shape {rows.shape}")
        finite("Problem.scores: X", np.asarray(rows.data) if sp.issparse(rows) else rows)
        Z = np.asarray(rows @ W[0].reshape(self.n_outputs, -1).T)
        return Z if len(self.model_shape) == 2 else Z[:, 0]

    def predict(self, w: Any, X: Any = None) -> np.ndarray:
        """Predictions of one model as the loss makes them from scores: real numbers, signs, or class numbers."""
        return self.traits.predict(self.scores(w, X))

    def probabilities_of(self, w: Any, X: Any = None) -> np.ndarray:
        """Return the probabilities of one model: (n,) of the label +1, or (n, C).

        Raises
        ------
        TypeError
            If the loss declares none (a hinge's scores are no log odds).
        """
        if not self.traits.probable:
            raise wrong_type("Problem.probabilities_of: loss", "declare probabilities", f"{self.loss!r}")
        return np.asarray(self.loss.probabilities(self.scores(w, X)))

    def __repr__(self) -> str:
        more = "" if self.penalty is None else f", penalty={self.penalty!r}"
        more += "" if self.free is None else f", {int(self.free.sum())} free"
        return f"Problem({self.federation!r}, {self.loss!r}, l2={self.l2:g}{more})"

    _repr_html_ = _html.of_problem
