"""Boosting with several sources over a finite dictionary: F(alpha) of `boosting`, solved exactly."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from fedconvex._check import array, bad, finite, numeric, real, vector, whole, wrong_type
from fedconvex.families.boosting.dictionaries import Dictionary, domain_numbers
from fedconvex.families.boosting.predictors import QEnsemble
from fedconvex.families.boosting.problem import FLAT, RADIUS, BoostingProblem, Pick
from fedconvex.families.boosting.worst_domain import least
from fedconvex.federation import Federation
from fedconvex.problems.empirical_risk import Problem
from fedconvex.problems.protocol import Measure
from fedconvex.solvers.solution import Solution

_WORK = 2e8  # (rows + columns) columns^2 up to which `measure` computes the exact optimum: a second or two


class EnsembleProblem(BoostingProblem):
    """F(alpha) = max over Lambda of sum_k lambda_k F_k(alpha), alpha >= 0, for a finite dictionary; alpha is (N,).

    Parameters
    ----------
    federation : Federation
        Rows with labels -1/+1 and domains; without domains there is one source.
    dictionary : Dictionary
        Base classifiers; sources are numbers of domains.
    q : array (n, p), callable or None
        Q(l|x): rows in the federation's order, or a function of X; None is the constant 1/p.
    loss : Exponential or Logistic2
    uncertainty_set : array (V, p), optional
        Vertices of Lambda; default the whole simplex.

    Raises
    ------
    ValueError, TypeError
        On labels other than -1/+1, a Q whose rows are not distributions, or sources without domain.

    References
    ----------
    Cortes, Mohri, Storcheus, Suresh, "Boosting with multiple sources", NeurIPS 2021.

    Examples
    --------
    Two sources on two points. Each classifier is right on its own point only: every convex combination errs on one of
    them, the Q-ensemble on none.

    >>> import numpy as np
    >>> from fedconvex import Federation
    >>> from fedconvex.problems import Dictionary, EnsembleProblem
    >>> fed = Federation.from_arrays([[0.0], [1.0]], [1.0, 1.0], clients=[0, 1], domains=[0, 1])
    >>> h = Dictionary([[1.0, -1.0], [-1.0, 1.0]], [0, 1])
    >>> EnsembleProblem(fed, h, np.eye(2)).domain_errors(np.ones(2)).tolist()
    [0.0, 0.0]
    >>> EnsembleProblem(fed, h).domain_errors(np.array([2.0, 1.0])).tolist()
    [0.0, 1.0]
    """

    shared = (*BoostingProblem.shared, "sources")

    def __init__(
        self,
        federation: Federation,
        dictionary: Dictionary,
        q: Any = None,
        loss: Any = None,
        uncertainty_set: Any = None,
    ) -> None:
        if not isinstance(dictionary, Dictionary):
            cure = "use Dictionary(predictions, sources), or StumpProblem for all stumps"
            raise wrong_type("EnsembleProblem.dictionary", "be a Dictionary", type(dictionary).__name__, cure)
        self._set_sources(federation, q, loss, uncertainty_set)
        H, s = dictionary.predictions, dictionary.sources
        if len(H) != federation.n:
            raise bad("EnsembleProblem.dictionary", f"predict all {federation.n} rows", f"{len(H)} rows")
        if s.max() >= self.p:
            raise bad("EnsembleProblem.dictionary", f"have sources 0, ..., {self.p - 1}", int(s.max()))
        self.dictionary = dictionary
        fed, domain = federation, domain_numbers(federation)[0]
        names = fed.labels, domain, np.arange(self.p), fed.ids
        if fed.complete:
            columns = Federation(self.q[:, s] * H, fed.y, fed.ptr, *names, sample_weight=fed.sample_weight)
        else:
            columns = fed.with_features(self.q[:, s] * H, domain, np.arange(self.p))  # type: ignore[attr-defined]
        self.federation, self.linear = columns, Problem(columns, self.loss)
        self._solution: Solution | None = None

    def _listed(self) -> str:
        return f"{self.signed.shape[1]} classifiers"

    @property
    def model_shape(self) -> tuple[int, ...]:
        """(N,), alpha."""
        return self.linear.model_shape

    @property
    def sources(self) -> np.ndarray:
        """Source of every base classifier, (N,)."""
        return self.dictionary.sources

    def domain_values(self, w: Any) -> np.ndarray:
        """F_k(alpha) of every domain, (p,) or (R, p)."""
        return self.linear.domain_values(w)

    def domain_gradients(self, w: Any) -> np.ndarray:
        """Gradients of every F_k, (p, N) or (R, p, N)."""
        return self.linear.domain_gradients(w)

    def value(self, w: Any) -> Any:
        """F(alpha): a float, or (R,)."""
        return self.objective(self.domain_values(w))

    def gradient(self, w: Any) -> np.ndarray:
        """Return a subgradient of F: the gradient of the first vertex that attains the maximum."""
        W, single = self.linear.flatten(w)
        J, F = self.domain_gradients(W), self.domain_values(W)
        worst = self.vertices[np.argmax(F @ self.vertices.T, axis=1)]
        G = np.einsum("rk,rkj->rj", worst, J)
        return G[0] if single else G

    def domain_errors(self, alpha: Any) -> np.ndarray:
        """Share of rows of every domain with y f(x) <= 0, (p,)."""
        return self.errors_of(self.margins(alpha))

    def margins(self, alpha: Any) -> np.ndarray:
        """y_i f(x_i), (n,), rows sorted by domain."""
        return self.signed @ array("EnsembleProblem: alpha", alpha, self.model_shape, copy=False)

    @cached_property
    def signed(self) -> np.ndarray:
        """y_i Q(l|x_i) h_{l,j}(x_i), (n, N), rows sorted by domain, stored by column."""
        return np.asfortranarray(self.y_sorted[:, None] * self.federation.X[self.by_row])

    def steepest(self, mixes: np.ndarray, slopes: np.ndarray, alpha: np.ndarray, own: bool) -> Pick | None:
        """Return the coordinate along which the maximum over the mixes falls fastest, or None if along none.

        If the maximum falls along none, a coordinate that lowers some of the mixes and raises none will do.

        Parameters
        ----------
        mixes : array (V', p)
            Domain weights that attain the maximum; its derivative is the largest of theirs.
        slopes : array (n,)
            Phi' of every row.
        alpha : array (N,)
            Coordinates that are positive may also fall.
        own : bool
            Only classifiers of sources in the support of the mixes.
        """
        g = np.array([-(self.signed.T @ (slopes * self.row_weights_of(mix))) for mix in mixes])
        up, down = g.max(axis=0), np.where(alpha > 0.0, (-g).max(axis=0), np.inf)
        if own:
            other = ~np.isin(self.dictionary.sources, np.flatnonzero(mixes.max(axis=0) > 0.0))
            up[other], down[other] = np.inf, np.inf
        j, i = int(np.argmin(up)), int(np.argmin(down))
        forward = bool(up[j] <= down[i])
        j, slope = (j, up[j]) if forward else (i, down[i])
        if not slope < 0.0:  # a coordinate that helps some of the worst domains and hurts none
            mean = np.where(np.abs(up) <= FLAT, g.mean(axis=0), 0.0)
            j, forward, slope = int(np.argmin(mean)), True, 0.0
            if not mean[j] < -FLAT:
                return None
        return Pick(int(self.dictionary.sources[j]), j, None, self.signed[:, j], forward, float(slope))

    def certificate(self, alpha: Any, domain_weights: Any = None) -> tuple[float, float]:
        """Return F(alpha) and a lower bound of the minimum over beta >= 0, sum beta <= max(100, sum alpha).

        Parameters
        ----------
        alpha : array (N,)
            Nonnegative.
        domain_weights : array (p,), optional
            lambda in Lambda; default the average of the vertices that attain the maximum.

        Raises
        ------
        ValueError
            If alpha has another length, NaN, infinite or negative entries, or domain_weights are no weights.
        """
        a = vector("EnsembleProblem.certificate: alpha", alpha, self.federation.d)
        if (a < 0.0).any():
            raise bad("EnsembleProblem.certificate: alpha", "be nonnegative", f"{a.min():g} at {int(np.argmin(a))}")
        return self.certified(self.margins(a), domain_weights, float(a.sum()))

    def _largest_edge(self, lam: np.ndarray, slopes: np.ndarray) -> float:
        """E = max(0, max_j -g_j)."""
        return max(0.0, float((self.signed.T @ (slopes * self.row_weights_of(lam))).max()))

    @property
    def _affordable(self) -> bool:
        n, N = self.federation.X.shape
        return (n + N) * N * N <= _WORK

    @cached_property
    def lower_bound(self) -> float:
        """A certified lower bound of min F: by `solve` where that is affordable, else 0 (Phi > 0)."""
        return self.solve().lower if self._affordable else 0.0

    def measure(self, w: np.ndarray) -> Measure:
        """Values of R ensembles and certified gaps; infinite where an alpha is negative.

        Warns
        -----
        ContradictedCertificate
            If a value lies below the certified lower bound by more than rounding explains; that gap is inf.
        """
        value = np.atleast_1d(self.value(w))
        value = np.where((np.atleast_2d(w) < 0.0).any(axis=1), np.inf, value)
        lower = np.full(value.shape, self.lower_bound)
        totals = np.atleast_2d(w).sum(axis=1)
        for r in np.flatnonzero((totals > RADIUS) & np.isfinite(value)):  # beyond what solve() minimises over
            margins = self.margins(np.atleast_2d(w)[r])
            lower[r] = self.certified(margins, None, float(totals[r]))[1]
        return Measure(value, self.gaps("EnsembleProblem.measure", value, lower, totals))

    def solve(self, tol: float | None = None) -> Solution:
        """Minimise F over alpha >= 0, sum alpha <= 100, by an interior-point method, with a certificate.

        Newton's method on t tau - sum_v log(tau - v'F(alpha)) - sum_j log alpha_j - log(100 - sum_j alpha_j), t
        growing, then primal-dual steps; the multipliers are the domain weights of `certificate`.

        Parameters
        ----------
        tol : float, optional
            Stop once the gap is at most tol (1 + |F|); default 1e-11.

        Raises
        ------
        ValueError, TypeError
            If tol is not positive.
        """
        goal = 1e-11 if tol is None else real("EnsembleProblem.solve: tol", tol, low=0.0, strict=True)
        if self._solution is None or tol is not None:
            found = least(self._maximum(self.signed), RADIUS, self.certified, goal)
            if tol is not None:
                return found
            self._solution = found
        return self._solution

    def _columns_of(self, stages: np.ndarray) -> np.ndarray:
        return self.signed[:, stages[:, 1].astype(int)]

    def ensemble(self, state: Any, trajectory: int = 0) -> QEnsemble:
        """Return the predictor of a state of a boosting method, or of alpha (N,), with its stages in order."""
        members = self.dictionary.members
        if members is None:
            cure = "pass Dictionary(..., members=)"
            raise bad("EnsembleProblem.ensemble", "know its classifiers", "predictions only", cure)
        if hasattr(state, "history"):
            log = state.history[whole("ensemble: trajectory", trajectory, high=len(state.history) - 1)]
            picked, steps = log[:, 1].astype(int), log[:, 5]
        else:
            alphas = np.atleast_2d(numeric("EnsembleProblem.ensemble: alpha", getattr(state, "w", state)))
            if alphas.shape[1:] != self.model_shape:
                raise bad("EnsembleProblem.ensemble: alpha", f"have {self.model_shape[0]} entries", f"{alphas.shape}")
            alpha = alphas[whole("EnsembleProblem.ensemble: trajectory", trajectory, high=len(alphas) - 1)]
            finite("EnsembleProblem.ensemble: alpha", alpha)
            picked = np.flatnonzero(alpha)
            steps = alpha[picked]
        kept = steps != 0.0
        picked, steps = picked[kept], steps[kept]
        chosen = [members[j] for j in picked]
        return QEnsemble(chosen, self.dictionary.sources[picked], steps, self.q_model, self.p, self.domain_names)

    def _search_settings(self) -> tuple[Any, ...]:
        members = () if self.data.complete else self.dictionary.members or ()  # sites compare no predictions
        return ("dictionary", *self.dictionary.sources.tolist(), *members)
