"""Boosting with several sources: the worst domain's loss of a Q-ensemble, its dictionaries and its exact solution.

With sources (domains) l = 1..p, base classifiers h_{l,j} in [-1, 1] and a conditional distribution Q(l|x),

    f(x) = sum_{l,j} alpha_{l,j} Q(l|x) h_{l,j}(x),  alpha >= 0,
    F_k(alpha) = (1/m_k) sum_{i in k} Phi(-y_i f(x_i)),   F(alpha) = max_{lambda in Lambda} sum_k lambda_k F_k(alpha),

Phi(u) = e^u or log2(1 + e^u), both at least 1 for u >= 0. Lambda is the convex hull of the rows of
`uncertainty_set`; a convex function of lambda is largest at one of them. The whole simplex gives max_k F_k. A plain
ensemble has constant Q.

Certificate: for any lambda and alpha, with g = sum_k lambda_k grad F_k(alpha), convexity gives for every
beta >= 0 with sum beta <= B

    F(beta) >= sum_k lambda_k F_k(alpha) - g'alpha - B max(0, max_j -g_j).

The slopes s_i = Phi'(-m_i) of this bound are a point of the dual; so are c s_i, and the best c is taken. By Fenchel's
inequality, with weights of rows v_i = lambda_k/m_k, M = -g'alpha = sum_i v_i s_i m_i and E = max(0, max_j -g_j),

    F(beta) >= min over m of sum_i v_i (Phi(-m_i) + c s_i m_i)  - c B E,

for Phi = exp at the best c: A exp((M - B E)/A) with A = sum_k lambda_k F_k(alpha).

Only E refers to the classifiers: for all stumps it is the edge of the best one, which the search finds.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import among, bad, finite, numeric, real, whole, wrong_type
from fedconvex.federation import Federation
from fedconvex.kernels.cache import kernel, reduction
from fedconvex.loss_traits import declares
from fedconvex.losses import Exponential, _check_signs, exp
from fedconvex.problems.empirical_risk import Problem
from fedconvex.problems.protocol import ENSEMBLE, ClientWeights, Measure, client_weights
from fedconvex.problems.q import QEnsemble, Tree, as_q
from fedconvex.problems.stumps import Binned, Presorted, Stump
from fedconvex.solvers.solution import Solution

__all__ = ["BoostingProblem", "Dictionary", "EnsembleProblem", "Logistic2", "Pick", "StumpProblem"]

# mypy: disable-error-code="no-untyped-def"

RADIUS = 100.0  # B of the certificate
_WORK = 2e8  # (rows + columns) columns^2 up to which `measure` computes the exact optimum: a second or two
_TIE = 1e-10  # relative difference below which domains count as equally bad
_TRIALS = 12  # weights of equally bad domains for which a stump is searched before a kink is reported
_FLAT = 1e-14  # derivatives below this are rounding
_LN2 = math.log(2.0)


@declares(task="classification", lower_bound=0.0, smoothness=0.25 / _LN2, lipschitz=1.0 / _LN2, self_concordance=1.0)
class Logistic2(NamedTuple):
    """Logistic loss to base two, l(z, y) = log2(1 + exp(-y z)), which bounds the zero-one loss; labels -1/+1.

    Examples
    --------
    >>> from fedconvex.problems import Logistic2
    >>> Logistic2().value(0.0, 1.0)
    1.0
    """

    def value(self, z, y):
        """Return log2(1 + exp(-y z)) without overflow."""
        m = y * z
        return (math.log1p(math.exp(-abs(m))) + max(-m, 0.0)) / 0.6931471805599453

    def slope(self, z, y):
        """Return -y / ((1 + exp(y z)) log 2) without overflow."""
        return -y / ((1.0 + exp(y * z)) * 0.6931471805599453)

    def curvature(self, z, y):
        """Return s (1 - s) / log 2 with s = 1 / (1 + exp(-z))."""
        t = math.exp(-abs(z))
        return t / ((1.0 + t) * (1.0 + t) * 0.6931471805599453)

    def check_labels(self, y: np.ndarray) -> None:
        """Raise ValueError unless every label is -1 or +1."""
        _check_signs("Logistic2", y)


class Dictionary:
    """Finitely many base classifiers with their sources, as predictions on the rows of a federation.

    Parameters
    ----------
    predictions : array (n, N)
        h_j(x_i) in [-1, 1], in the federation's row order.
    sources : array (N,) of int
        Number of each classifier's source, 0, ..., p-1.
    members : sequence of N, optional
        The classifiers themselves, each with ``predict``; needed to predict new rows.

    Raises
    ------
    ValueError, TypeError
        On values outside [-1, 1], NaN, or mismatched lengths.

    Examples
    --------
    >>> from fedconvex.problems import Dictionary
    >>> Dictionary([[1.0, -1.0], [1.0, 1.0]], [0, 1])
    Dictionary(2 classifiers of 2 sources, 2 rows)
    """

    def __init__(self, predictions: Any, sources: Any, members: Sequence[Any] | None = None) -> None:
        H = numeric("Dictionary.predictions", predictions)
        if H.ndim != 2 or H.size == 0:
            raise bad("Dictionary.predictions", "have shape (rows, classifiers), not empty", f"{H.shape}")
        finite("Dictionary.predictions", H)
        if np.abs(H).max() > 1.0:
            got = f"{H[np.abs(H) > 1.0][0]:g}"
            raise bad("Dictionary.predictions", "lie in [-1, 1]", got, "encode labels as -1, +1")
        s = np.asarray(sources)
        if s.shape != H.shape[1:] or s.dtype.kind not in "iu" or s.min() < 0:
            raise bad("Dictionary.sources", f"be {H.shape[1]} whole numbers, one per classifier", f"{sources!r}")
        if members is not None and len(members) != s.size:
            raise bad("Dictionary.members", f"be {s.size}, one per column", len(members))
        self.predictions, self.sources = H, s.astype(np.int64)
        self.members = None if members is None else tuple(members)

    @classmethod
    def from_classifiers(cls, federation: Federation, classifiers: Sequence[Sequence[Any]]) -> Dictionary:
        """Collect fitted classifiers, given source by source; anything with ``predict`` of values in [-1, 1]."""
        members = [h for mine in classifiers for h in mine]
        sources = [k for k, mine in enumerate(classifiers) for _ in mine]
        if not members:
            raise bad("Dictionary.from_classifiers", "get at least one classifier", "none")
        lacking = [type(h).__name__ for h in members if not hasattr(h, "predict")]
        if lacking:
            raise wrong_type("Dictionary.from_classifiers", "get fitted classifiers with predict", lacking[0])
        columns = [numeric("Dictionary.from_classifiers: predictions", h.predict(federation.X)) for h in members]
        return cls(np.column_stack(columns), np.array(sources), members)

    @classmethod
    def stumps(cls, federation: Federation, cuts: int | None = None) -> Dictionary:
        """All stumps of every source's rows, of both signs, with the two constants.

        Parameters
        ----------
        federation : Federation
            Dense rows with domains (without domains there is one source).
        cuts : int, optional
            At most so many thresholds per feature, at equal row counts; default every midpoint.
        """
        X, (domain, p) = _dense("Dictionary.stumps", federation), _domains(federation)
        lists = []
        for k in range(p):
            bins = [_thresholds(column, cuts) for column in X[domain == k].T]
            pairs = [(j, float(c)) for j, edges in enumerate(bins) for c in edges]
            lists.append([Stump(j, c, s, -s) for j, c in pairs for s in (-1.0, 1.0)])
            lists[-1] += [Stump(0, math.inf, s, s) for s in (-1.0, 1.0)]
        return cls.from_classifiers(federation, lists)

    @classmethod
    def trees(cls, federation: Federation, *, depth: int = 2, rounds: int = 10) -> Dictionary:
        """Shallow trees that AdaBoost trains on each source alone, `rounds` per source (fewer where one is perfect).

        The trees are scikit-learn's, copied into arrays.
        """
        from sklearn.tree import DecisionTreeClassifier

        most, T = whole("Dictionary.trees: depth", depth, low=1), whole("Dictionary.trees: rounds", rounds, low=1)
        X, (domain, p) = _dense("Dictionary.trees", federation), _domains(federation)
        lists: list[list[Any]] = []
        for k in range(p):
            rows, y = X[domain == k], federation.y[domain == k]
            weights, mine = np.full(y.size, 1.0 / y.size), []
            for _ in range(T):
                fitted = DecisionTreeClassifier(max_depth=most, random_state=0).fit(rows, y, sample_weight=weights)
                mine.append(Tree.from_sklearn(fitted))
                wrong = mine[-1].predict(rows) != y
                error = float(weights[wrong].sum())
                if not 0.0 < error < 0.5:
                    break
                weights = np.where(wrong, 0.5 / error, 0.5 / (1.0 - error)) * weights
            lists.append(mine)
        return cls.from_classifiers(federation, lists)

    def __repr__(self) -> str:
        n, N = self.predictions.shape
        return f"Dictionary({N} classifiers of {np.unique(self.sources).size} sources, {n} rows)"


class Pick(NamedTuple):
    """A chosen coordinate: h_{l,j} times Q(l|.), and how the objective changes along it."""

    source: int  # l
    column: int  # of the dictionary, or the stump's feature
    stump: Stump | None
    direction: np.ndarray  # (n,) y_i Q(l|x_i) h(x_i), rows sorted by domain
    forward: bool  # whether alpha rises
    slope: float  # directional derivative of the objective: negative, or 0 if only some of the worst domains gain


class BoostingProblem(ClientWeights):
    """What problems of boosting from several sources share: F(f) = max over Lambda of sum_k lambda_k F_k(f).

    `EnsembleProblem` lists its base classifiers, `StumpProblem` searches for them. Rows are kept sorted by domain.
    """

    learns = ENSEMBLE
    shared: tuple[str, ...] = ("p", "vertices", "base2")  # what a server knows beside `known_to_server`
    l2 = 0.0
    lower_bound: Any = 0.0  # of min F: Phi > 0
    _affordable: Any = False  # whether `solve` finds a better one

    federation: Federation
    loss: Any

    def _set_sources(self, federation: Federation, q: Any, loss: Any, uncertainty_set: Any) -> None:
        """Validate what both kinds of problem share, and sort rows by domain."""
        if not isinstance(federation, Federation):
            raise wrong_type("EnsembleProblem.federation", "be a Federation", type(federation).__name__)
        self._loss = Exponential() if loss is None else loss
        if self._loss not in (Exponential(), Logistic2()):
            raise wrong_type("EnsembleProblem.loss", "be Exponential() or Logistic2()", f"{loss!r}")
        self._loss.check_labels(federation.y)
        domain, self.p = _domains(federation)
        self.data = federation
        self.domain_names = np.arange(self.p) if federation.domain_labels is None else federation.domain_labels
        self.q_given = q
        self.q = as_q("EnsembleProblem.q", q, federation.X, self.p)
        self.vertices = _vertices(uncertainty_set, self.p)
        self.by_row = np.argsort(domain, kind="stable")  # rows sorted by domain
        counts = np.bincount(domain, minlength=self.p)
        if counts.min() == 0:
            raise bad("EnsembleProblem: every domain", "have rows", f"none in domain {int(np.argmin(counts))}")
        self.bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.counts, self.y_sorted = counts, federation.y[self.by_row]
        self.q_sorted = np.ascontiguousarray(self.q[self.by_row].T)  # (p, n)
        self.base2 = self._loss == Logistic2()
        self.loss, self.weights = self._loss, client_weights("EnsembleProblem", None, federation)

    def statistic(self, name: str) -> Sequence[np.ndarray]:
        """Return what the clients answer when asked for "client_domain", the domain of their rows, -1 for several.

        Raises
        ------
        ValueError
            For other names.
        """
        among(f"{type(self).__name__}.statistic: name", name, ("client_domain",))
        return list(self.client_domains)

    # ------------------------------------------------------------------ values
    def objective(self, F: np.ndarray) -> Any:
        """Return max over Lambda of sum_k lambda_k F_k, for F (..., p)."""
        return (F @ self.vertices.T).max(axis=-1)

    def smoothed(self, F: np.ndarray, mu: float | None) -> Any:
        """Return (1/mu) log sum_v exp(mu F_v) over the vertices, for F (..., p); without mu the maximum."""
        Z = F @ self.vertices.T
        top = Z.max(axis=-1)
        return top if mu is None else top + np.log(np.exp(mu * (Z - top[..., None])).sum(axis=-1)) / mu

    def errors_of(self, margins: np.ndarray) -> np.ndarray:
        """Share of margins <= 0 in every domain, (p,), from margins of rows sorted by domain."""
        return np.add.reduceat((margins <= 0.0).astype(float), self.bounds[:-1]) / self.counts

    @cached_property
    def client_domains(self) -> np.ndarray:
        """Domain of every client, -1 where its rows have several, (K,)."""
        fed, domain = self.data, _domains(self.data)[0]
        least, most = np.minimum.reduceat(domain, fed.ptr[:-1]), np.maximum.reduceat(domain, fed.ptr[:-1])
        return np.where(least == most, least, -1)

    def losses_of(self, margins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return F_k (p,) and Phi'(-y_i f(x_i)) (n,) from margins."""
        F, slopes = np.empty(self.p), np.empty(margins.size)
        domain_losses(self.base2, margins, self.bounds, F, slopes)
        return F, slopes

    def worst(self, F: np.ndarray, smoothing: float | None) -> np.ndarray:
        """Vertices that attain the maximum, (V', p); smoothed: the one vector softmax(mu sum_k v_k F_k) of them."""
        values = self.vertices @ F
        if smoothing is None or len(values) == 1:
            return self.vertices[values >= values.max() - _TIE * (1.0 + abs(values.max()))]
        weights = np.exp(smoothing * (values - values.max()))
        return (weights / weights.sum() @ self.vertices)[None]

    # ------------------------------------------------------------------ steepest coordinate
    def row_weights_of(self, domain_weights: np.ndarray) -> np.ndarray:
        """lambda_k / m_k of every row, (n,), rows sorted by domain."""
        return np.repeat(domain_weights / self.counts, self.counts)

    # ------------------------------------------------------------------ certificates and the exact optimum
    def certified(self, margins: np.ndarray, domain_weights: Any = None, radius: float = RADIUS) -> tuple[float, float]:
        """Return F and a lower bound of the minimum over beta >= 0, sum beta <= radius, from any margins (n,)."""
        F, slopes = self.losses_of(margins)
        lam = self.worst(F, None).mean(axis=0) if domain_weights is None else self._checked_weights(domain_weights)
        weights = self.row_weights_of(lam) * slopes
        edge, A = self._largest_edge(lam, slopes), float(lam @ F)
        rounding = 1e-14 * (1.0 + float(weights @ np.abs(margins)))
        rounding += 1e-16 * math.sqrt(margins.size) * radius * float(weights.sum())  # sums in the edge
        if self.base2:
            lower = logistic_bound(self.row_weights_of(lam), margins, radius * edge)
        else:
            lower = A * math.exp(min((float(weights @ margins) - radius * edge) / A, 0.0)) if A > 0.0 else 0.0
        return float(self.objective(F)), max(0.0, lower - rounding)

    def _checked_weights(self, domain_weights: Any) -> np.ndarray:
        """Return domain weights, checked; whether they are in Lambda the caller knows."""
        lam = numeric("EnsembleProblem.certificate: domain_weights", domain_weights)
        if lam.shape != (self.p,) or not (lam >= 0.0).all() or abs(float(lam.sum()) - 1.0) > 1e-9:
            raise bad(
                "EnsembleProblem.certificate: domain_weights",
                f"be nonnegative weights of {self.p} domains that sum to 1",
                f"{domain_weights!r}",
            )
        return lam

    def lower(self, margins: np.ndarray, domain_weights: np.ndarray, total: float) -> float:
        """Return a certified lower bound for an ensemble with sum alpha = total, by `solve` where affordable."""
        if self._affordable and total <= RADIUS * (1.0 + 1e-12):
            return self.lower_bound
        return self.certified(margins, domain_weights, max(RADIUS, total))[1]

    # ------------------------------------------------------------------ models
    def directions(self, history: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the distinct classifiers of a history (t, 6), their directions (n, A) and their weights (A,)."""
        kept = history[history[:, 5] != 0.0]
        stages, which = np.unique(kept[:, :5], axis=0, return_inverse=True)
        return stages, self._columns_of(stages), np.bincount(which.ravel(), kept[:, 5], len(stages))

    @property
    def q_model(self) -> Any:
        """Q as a function of X, or None if it was given as numbers."""
        return self.q_given if self.q_given is None or callable(self.q_given) else False

    @property
    def fingerprint(self) -> str:
        """Digest of what makes this problem beside its rows: Q, uncertainty set, classifiers or their search."""
        h = hashlib.blake2b(repr(self._search_settings()).encode(), digest_size=16)
        for a in (self.q, self.vertices):
            h.update(np.ascontiguousarray(a).tobytes())
        return h.hexdigest()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.data!r}, {self.p} sources, {self._loss!r})"

    def _largest_edge(self, lam: np.ndarray, slopes: np.ndarray) -> float:
        """E of the certificate: the largest derivative -dF/dalpha_j for the domain weights lam, or 0."""
        raise NotImplementedError

    def _columns_of(self, stages: np.ndarray) -> np.ndarray:
        """Directions (n, A) of classifiers, given as (A, 5) of the history."""
        raise NotImplementedError

    def _search_settings(self) -> tuple[Any, ...]:
        """Return what tells this problem from others on the same rows."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        cure = (
            "use MultiBoost or FedMultiBoost; list the stumps with Dictionary.stumps; for linear models build a Problem"
        )
        raise AttributeError(f"{type(self).__name__}, a problem of boosting, has no {name}: {cure}")


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
        fed, domain = federation, _domains(federation)[0]
        columns = Federation(self.q[:, s] * H, fed.y, fed.ptr, fed.labels, domain, np.arange(self.p), fed.ids)
        self.federation, self._linear = columns, Problem(columns, self.loss)
        self._solution: Solution | None = None

    @property
    def model_shape(self) -> tuple[int, ...]:
        """(N,), alpha."""
        return self._linear.model_shape

    @property
    def sources(self) -> np.ndarray:
        """Source of every base classifier, (N,)."""
        return self.dictionary.sources

    def domain_values(self, w: Any) -> np.ndarray:
        """F_k(alpha) of every domain, (p,) or (R, p)."""
        return self._linear.domain_values(w)

    def domain_gradients(self, w: Any) -> np.ndarray:
        """Gradients of every F_k, (p, N) or (R, p, N)."""
        return self._linear.domain_gradients(w)

    def value(self, w: Any) -> Any:
        """F(alpha): a float, or (R,)."""
        return self.objective(self.domain_values(w))

    def gradient(self, w: Any) -> np.ndarray:
        """Return a subgradient of F: the gradient of the first vertex that attains the maximum."""
        W, single = self._linear.flatten(w)
        J, F = self.domain_gradients(W), self.domain_values(W)
        worst = self.vertices[np.argmax(F @ self.vertices.T, axis=1)]
        G = np.einsum("rk,rkj->rj", worst, J)
        return G[0] if single else G

    def domain_errors(self, alpha: Any) -> np.ndarray:
        """Share of rows of every domain with y f(x) <= 0, (p,)."""
        return self.errors_of(self.margins(alpha))

    def margins(self, alpha: Any) -> np.ndarray:
        """y_i f(x_i), (n,), rows sorted by domain."""
        return self.signed @ numeric("EnsembleProblem: alpha", alpha, copy=False)

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
            mean = np.where(np.abs(up) <= _FLAT, g.mean(axis=0), 0.0)
            j, forward, slope = int(np.argmin(mean)), True, 0.0
            if not mean[j] < -_FLAT:
                return None
        return Pick(int(self.dictionary.sources[j]), j, None, self.signed[:, j], forward, float(slope))

    def certificate(self, alpha: Any, domain_weights: Any = None) -> tuple[float, float]:
        """Return F(alpha) and a lower bound of the minimum over beta >= 0, sum beta <= 100, from any alpha and lambda.

        Parameters
        ----------
        alpha : array (N,)
        domain_weights : array (p,), optional
            lambda in Lambda; default the average of the vertices that attain the maximum.
        """
        a = numeric("EnsembleProblem.certificate: alpha", alpha)
        return self.certified(self.margins(a), domain_weights)

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
        """Values of R ensembles and certified gaps; infinite where an alpha is negative."""
        value = np.atleast_1d(self.value(w))
        value = np.where((np.atleast_2d(w) < 0.0).any(axis=1), np.inf, value)
        lower = np.full(value.shape, self.lower_bound)
        totals = np.atleast_2d(w).sum(axis=1)
        for r in np.flatnonzero((totals > RADIUS) & np.isfinite(value)):  # beyond what solve() minimises over
            margins = self.margins(np.atleast_2d(w)[r])
            lower[r] = self.certified(margins, None, float(totals[r]))[1]
        return Measure(value, np.maximum(value - lower, 0.0))

    def solve(self, tol: float | None = None) -> Solution:
        """Minimise F over alpha >= 0, sum alpha <= 100, by an interior-point method, with a certificate.

        Newton's method on t tau - sum_v log(tau - v'F(alpha)) - sum_j log alpha_j - log(100 - sum_j alpha_j), t
        growing, then primal-dual steps; the multipliers are the domain weights of `certificate`.

        Parameters
        ----------
        tol : float, optional
            Stop once the gap is at most tol (1 + |F|); default 1e-11.
        """
        goal = 1e-11 if tol is None else real("EnsembleProblem.solve: tol", tol, low=0.0, strict=True)
        if self._solution is None or tol is not None:
            found = _barrier(self, goal)
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
            log = state.history[trajectory]
            picked, steps = log[:, 1].astype(int), log[:, 5]
        else:
            alpha = np.atleast_2d(state.w if hasattr(state, "w") else numeric("ensemble: alpha", state))[trajectory]
            picked = np.flatnonzero(alpha)
            steps = alpha[picked]
        kept = steps != 0.0
        picked, steps = picked[kept], steps[kept]
        chosen = [members[j] for j in picked]
        return QEnsemble(chosen, self.dictionary.sources[picked], steps, self.q_model, self.p, self.domain_names)

    def _search_settings(self) -> tuple[Any, ...]:
        return ("dictionary", *self.dictionary.sources.tolist())


class StumpProblem(BoostingProblem):
    """F over the Q-ensembles of all decision stumps, which are searched for and not listed.

    Parameters
    ----------
    federation : Federation
        Dense rows with labels -1/+1 and domains; without domains there is one source.
    q, loss, uncertainty_set
        As for `EnsembleProblem`.
    criterion : {"error", "gini"}
        What a stump is chosen by: the weighted error, which gives the steepest coordinate, or the impurity that
        scikit-learn's trees use.
    bins : int, optional
        Search histograms of so many bins per feature instead of every cut.

    Notes
    -----
    Gaps refer to the minimum over all stumps that are searched (with `bins`: cuts between bins) with alpha >= 0 and
    sum alpha <= 100, or the ensemble's own sum if that is larger. The bound comes from the edge of the best stump for
    the present weights and costs one search per record. It is tight at the optimum and loose far from it.

    Examples
    --------
    >>> from fedconvex import Federation, run
    >>> from fedconvex.methods import MultiBoost
    >>> from fedconvex.problems import StumpProblem
    >>> fed = Federation.from_arrays([[0.0], [1.0], [2.0], [3.0]], [-1.0, 1.0, 1.0, -1.0], clients=[0, 0, 0, 0])
    >>> bool(run(MultiBoost(), StumpProblem(fed), rounds=3).trace.value[-1] < 0.83)
    True
    """

    def __init__(
        self,
        federation: Federation,
        q: Any = None,
        loss: Any = None,
        uncertainty_set: Any = None,
        *,
        criterion: str = "error",
        bins: int | None = None,
    ) -> None:
        self._set_sources(federation, q, loss, uncertainty_set)
        if criterion not in ("error", "gini"):
            raise bad("StumpProblem.criterion", "be 'error' or 'gini'", criterion)
        self.criterion = criterion
        X = _dense("StumpProblem", federation)[self.by_row]
        self.table = Presorted(X) if bins is None else Binned(X, bins)
        self._parts: dict[int, Any] = {}
        self.federation = federation

    @cached_property
    def model_shape(self) -> tuple[int, ...]:
        """(0,): the ensemble is the state's history."""
        return (0,)

    def steepest(self, mixes: np.ndarray, slopes: np.ndarray, alpha: np.ndarray, own: bool) -> Pick | None:
        """Return the best of the stumps that are best for each mix.

        If the maximum over the weights falls along none of them, averages of the weights are tried, moving to those
        that the last stump would raise. A stump that all miss may still exist.
        """
        if len(mixes) == 1:  # the edge is the slope
            return self._one_mix(mixes[0], slopes, own)
        weights = [slopes * self.row_weights_of(mix) for mix in mixes]
        best = None
        for mix in mixes:
            best = self._better(best, mix, slopes, weights, own)[0]
        tilt = np.zeros(len(mixes))
        for _ in range(_TRIALS):
            if best is not None and best.slope < 0.0:
                break
            share = np.exp(tilt - tilt.max())
            best, each = self._better(best, share / share.sum() @ mixes, slopes, weights, own)
            tilt += each / max(float(np.abs(each).max()), 1e-300)
        return best

    def _one_mix(self, domain_weights: np.ndarray, slopes: np.ndarray, own: bool) -> Pick | None:
        """Return the best stump of all sources for one mix."""
        table, sources, omega = self._weighted(domain_weights, slopes, own)
        i, stump, edge = table.search_best(omega, self.criterion)
        if not edge > 0.0:
            return None
        return Pick(int(sources[i]), stump.feature, stump, self.direction(stump, sources[i]), True, -edge)

    def _weighted(
        self, domain_weights: np.ndarray, slopes: np.ndarray, own: bool
    ) -> tuple[Any, np.ndarray, np.ndarray]:
        """Return the table of the rows that a mix weighs, the sources searched, and the signed weights of each."""
        support = np.flatnonzero(domain_weights > 0.0)
        sources = support if own else np.arange(self.p)
        lo, hi, table = 0, self.data.n, self.table
        if len(support) == 1 and self.p > 1:
            k = int(support[0])
            lo, hi, table = int(self.bounds[k]), int(self.bounds[k + 1]), self._part(k)
        omega = np.empty((len(sources), hi - lo))
        signed_weights(
            slopes, domain_weights / self.counts, self.bounds, self.y_sorted, self.q_sorted, sources, lo, omega
        )
        return table, sources, omega

    def direction(self, stump: Stump, source: int) -> np.ndarray:
        """y_i Q(l|x_i) h(x_i), (n,), rows sorted by domain."""
        u = np.empty(self.data.n)
        column, left, right = self.table.columns[stump.feature], stump.left, stump.right
        stump_margins(column, stump.threshold, left, right, self.y_sorted, self.q_sorted[source], u)
        return u

    def _better(
        self, best: Pick | None, domain_weights: np.ndarray, slopes: np.ndarray, weights: list[np.ndarray], own: bool
    ) -> tuple[Pick | None, np.ndarray]:
        """Return the better of a pick and the stumps that are best for one mix, and the derivatives of the first."""
        table, sources, omega = self._weighted(domain_weights, slopes, own)
        found = list(zip(sources, table.search_many(omega, self.criterion), strict=True))
        found.sort(key=lambda pair: -pair[1][1])
        top = np.zeros(len(weights))
        for i, (source, (stump, _)) in enumerate(found):
            u = self.direction(stump, source)
            each = np.array([-float(w @ u) for w in weights])
            top = each if i == 0 else top
            slope = float(each.max())
            if abs(slope) <= _FLAT and each.min() < -_FLAT:
                slope = 0.0  # helps some of the worst domains and hurts none
            elif slope >= 0.0:
                continue
            if best is None or slope < best.slope:
                best = Pick(int(source), stump.feature, stump, u, True, slope)
        return best, top

    def _search_settings(self) -> tuple[Any, ...]:
        return (self.criterion, type(self.table).__name__, getattr(self.table, "most", None))

    def _part(self, k: int) -> Any:
        """Rows of domain k, sorted by every feature."""
        if k not in self._parts:
            self._parts[k] = self.table.rows(int(self.bounds[k]), int(self.bounds[k + 1]))
        return self._parts[k]

    def _columns_of(self, stages: np.ndarray) -> np.ndarray:
        U = [self.direction(Stump(int(j), *cut), int(k)) for k, j, *cut in stages.tolist()]
        return np.array(U).reshape(len(stages), self.data.n).T

    def ensemble(self, state: Any, trajectory: int = 0) -> QEnsemble:
        """Return the predictor of a state of `MultiBoost`, with its stages in order."""
        log = state.history[trajectory]
        log = log[log[:, 5] != 0.0]
        members = [Stump(int(j), float(c), float(a), float(b)) for _, j, c, a, b, _ in log]
        return QEnsemble(members, log[:, 0].astype(np.int64), log[:, 5], self.q_model, self.p, self.domain_names)

    def certificate(self, state: Any, domain_weights: Any = None, trajectory: int = 0) -> tuple[float, float]:  # type: ignore[override]
        """Return F and a lower bound of the minimum over all stumps, from a state of `MultiBoost` and any lambda.

        Parameters
        ----------
        state : State
            Of `MultiBoost`.
        domain_weights : array (p,), optional
            lambda in Lambda; default the average of the vertices that attain the maximum.
        trajectory : int
        """
        total = float(state.history[trajectory, :, 5].sum())
        return self.certified(state.margins[trajectory], domain_weights, max(RADIUS, total))

    def _largest_edge(self, lam: np.ndarray, slopes: np.ndarray) -> float:
        table, _, omega = self._weighted(lam, slopes, False)
        return float(table.search_best(omega)[2])


# ---------------------------------------------------------------- exact optimum


def _barrier(problem: EnsembleProblem, goal: float) -> Solution:
    """Follow the barrier's central path until t = 1e4, then take primal-dual steps, which rounding hurts less."""
    begin = time.perf_counter()
    V, N = problem.vertices, problem.federation.d
    alpha, t, steps = np.full(N, min(1.0, RADIUS / (2.0 * N)) / N), 1.0, 0
    tau = float(problem.objective(problem.losses_of(problem.signed @ alpha)[0])) + 1.0
    while t < 1e4:
        for _ in range(50):
            steps += 1
            step, decrement = _barrier_step(problem, alpha, tau, t)
            size = _inside(problem, alpha, tau, step, t, decrement)
            alpha, tau = alpha + size * step[:N], tau + size * float(step[N])
            if decrement < 1e-3 or size == 0.0:
                break
        t *= 8.0
    t /= 8.0  # of the last centre, so that the multipliers sum to one
    room = tau - V @ problem.losses_of(problem.signed @ alpha)[0]
    point = _Point(alpha, tau, room, 1.0 / (t * room), 1.0 / (t * alpha), 1.0 / (t * (RADIUS - alpha.sum())))
    best, best_alpha, lower, since = math.inf, alpha, 0.0, 0
    while since < 15 and steps < 1000:
        mix = point.lam / point.lam.sum() @ V
        value, low = problem.certificate(point.alpha, mix)
        since = 0 if value - low < 0.5 * (best - lower) else since + 1
        if value < best:
            best, best_alpha = value, point.alpha
        lower = max(lower, low)
        if best - lower <= goal * (1.0 + abs(best)):
            break
        point, steps = _primal_dual_step(problem, point), steps + 1
    text = f"convexity, over alpha >= 0 with sum at most {RADIUS:g}"
    attained = bool(best_alpha.sum() < 0.5 * RADIUS)
    seconds = time.perf_counter() - begin
    return Solution(best_alpha.copy(), best, min(lower, best), text, attained, False, steps, seconds)


def _barrier_step(problem: EnsembleProblem, alpha: np.ndarray, tau: float, t: float) -> tuple[np.ndarray, float]:
    """Return the Newton step of the barrier function in (alpha, tau), and its decrement."""
    F, J, bend = _derivatives(problem, alpha)
    lam, left, N = 1.0 / (tau - F), RADIUS - alpha.sum(), alpha.size
    g = np.append(lam @ J - 1.0 / alpha + 1.0 / left, t - lam.sum())
    K = np.empty((N + 1, N + 1))
    K[:N, :N] = _curvature(problem, bend, lam) + (J.T * lam**2) @ J + 1.0 / left**2
    K[np.arange(N), np.arange(N)] += 1.0 / alpha**2
    K[:N, N] = K[N, :N] = -(lam**2 @ J)
    K[N, N] = lam @ lam
    step = -_solve_scaled(K, g)
    return step, -float(g @ step)


class _Point(NamedTuple):
    """Primal and dual variables: s = tau - F_v, lam of F_v <= tau, z of alpha >= 0, y of sum alpha <= 100."""

    alpha: np.ndarray  # (N,)
    tau: float
    s: np.ndarray  # (V,)
    lam: np.ndarray  # (V,)
    z: np.ndarray  # (N,)
    y: float


def _primal_dual_step(problem: EnsembleProblem, at: _Point) -> _Point:
    """One step towards lam s = z alpha = y (100 - sum alpha) = a tenth of their mean."""
    F, J, bend = _derivatives(problem, at.alpha)
    N, V, q = at.alpha.size, F.size, RADIUS - float(at.alpha.sum())
    mu = 0.1 * float(at.lam @ at.s + at.z @ at.alpha + at.y * q) / (N + V + 1)
    K, r = np.zeros((N + V + 1, N + V + 1)), np.empty(N + V + 1)
    K[:N, :N] = _curvature(problem, bend, at.lam) + at.y / q
    K[np.arange(N), np.arange(N)] += at.z / at.alpha
    K[N : N + V, :N], K[:N, N : N + V] = J, J.T
    K[np.arange(N, N + V), np.arange(N, N + V)] = -at.s / at.lam
    K[N : N + V, -1] = K[-1, N : N + V] = -1.0
    r[:N] = -(J.T @ at.lam) + mu / at.alpha - mu / q
    r[N : N + V] = at.tau - F - mu / at.lam
    r[-1] = at.lam.sum() - 1.0
    try:
        x = np.linalg.solve(K, r)
    except np.linalg.LinAlgError:
        x = np.linalg.lstsq(K, r, rcond=None)[0]
    da, dlam, dtau = x[:N], x[N : N + V], float(x[-1])
    ds = mu / at.lam - at.s - at.s / at.lam * dlam
    dz = mu / at.alpha - at.z - at.z / at.alpha * da
    dy = mu / q - at.y + at.y / q * float(da.sum())
    primal = _longest(np.concatenate([at.alpha, at.s, [q]]), np.concatenate([da, ds, [-da.sum()]]))
    dual = _longest(np.concatenate([at.lam, at.z, [at.y]]), np.concatenate([dlam, dz, [dy]]))
    alpha, tau, s = at.alpha + primal * da, at.tau + primal * dtau, at.s + primal * ds
    return _Point(alpha, tau, s, at.lam + dual * dlam, at.z + dual * dz, at.y + dual * dy)


def _longest(x: np.ndarray, step: np.ndarray) -> float:
    """Return the longest step size up to 1 that keeps one percent of every positive entry."""
    down = step < 0.0
    return min(1.0, 0.99 * float((-x[down] / step[down]).min())) if down.any() else 1.0


def corrected(problem: BoostingProblem, U: np.ndarray, alpha: np.ndarray, mu: float | None) -> np.ndarray:
    """Minimise the smoothed maximum (mu None: the only vertex) over alpha >= 0, sum alpha < S, of U (n, A).

    S is 100, or a little more than the sum at the start where coordinate steps went beyond.

    Columns of U are directions y_i Q(l|x_i) h(x_i), rows sorted by domain.
    Newton's method on the coordinates that are positive or shall rise, projected (Bertsekas, SIAM J. Control Optim.
    1982), with Armijo's rule and a shrinking barrier -eps log(S - sum alpha). Returns alpha itself if that is better.
    """
    V, bounds, start = problem.vertices, problem.bounds, alpha
    most = max(RADIUS, 1.01 * float(alpha.sum()))

    def objective(a: np.ndarray, eps: float) -> float:
        room = most - float(a.sum())
        if room <= 0.0:
            return math.inf
        return float(problem.smoothed(problem.losses_of(U @ a)[0], mu)) - (eps * math.log(room / most) if eps else 0.0)

    alpha = alpha * min(1.0, 0.995 * most / max(float(alpha.sum()), 1e-300))
    for eps in (1e-2, 1e-4, 1e-6, 1e-8, 1e-10):
        value = objective(alpha, eps)
        for _ in range(50):
            F, slopes = problem.losses_of(U @ alpha)
            J = V @ np.array([-(U[a:b].T @ slopes[a:b]) / (b - a) for a, b in pairwise(bounds.tolist())])
            share = np.ones(1) if mu is None else np.exp(mu * (V @ F - (V @ F).max()))
            share = share / share.sum()
            room = most - float(alpha.sum())
            g = share @ J + eps / room
            free = (alpha > 1e-12) | (g < 0.0)
            if not free.any() or np.abs(g[free]).max() <= 1e-12 * value:
                break
            bend = slopes * (1.0 - slopes * _LN2) if problem.base2 else slopes
            G, A = J[:, free], U[:, free]
            H = A.T @ ((problem.row_weights_of(share @ V) * bend)[:, None] * A) + eps / room**2
            H += (mu or 0.0) * ((G.T * share) @ G - np.outer(share @ G, share @ G))
            step, size = np.zeros_like(alpha), 1.0
            step[free] = _solve_scaled(H, g[free])
            new, after = alpha, value
            while size > 1e-9:
                new = np.maximum(alpha - size * step, 0.0)
                after = objective(new, eps)
                if after < value - 1e-4 * max(float(g @ (alpha - new)), 0.0):
                    break
                size *= 0.5
            else:
                break
            alpha, shrunk, value = new, value - after, after
            if shrunk <= 1e-14 * (1.0 + abs(value)):
                break
    here = float(problem.smoothed(problem.losses_of(U @ start)[0], mu))
    return alpha if objective(alpha, 0.0) < here else start


def _derivatives(problem: EnsembleProblem, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values (V,) and gradients (V, N) of the vertices, and Phi'' of every row."""
    G, V = problem.signed, problem.vertices
    F, slopes = problem.losses_of(G @ alpha)
    J = np.array([-(G[a:b].T @ slopes[a:b]) / (b - a) for a, b in pairwise(problem.bounds.tolist())])
    return V @ F, V @ J, slopes * (1.0 - slopes * _LN2) if problem.base2 else slopes


def _curvature(problem: EnsembleProblem, bend: np.ndarray, lam: np.ndarray) -> np.ndarray:
    """Hessian of sum_v lam_v F_v."""
    weights = problem.row_weights_of(lam @ problem.vertices) * bend
    return np.asarray(problem.signed.T @ (weights[:, None] * problem.signed))


def _solve_scaled(K: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Solve K x = g for positive definite K, scaled to unit diagonal."""
    d = 1.0 / np.sqrt(np.maximum(np.diag(K), 1e-300))
    M = K * d[:, None] * d
    for ridge in (0.0, 1e-14, 1e-10, 1e-6):
        try:
            L = np.linalg.cholesky(M + ridge * np.eye(len(M)))
        except np.linalg.LinAlgError:
            continue
        return d * np.linalg.solve(L.T, np.linalg.solve(L, d * g))
    return d * np.linalg.lstsq(M, d * g, rcond=None)[0]


def _inside(
    problem: EnsembleProblem, alpha: np.ndarray, tau: float, step: np.ndarray, t: float, decrement: float
) -> float:
    """Return a step size that stays inside and lowers the barrier function."""

    def barrier(s: float) -> float:
        a, b = alpha + s * step[:-1], tau + s * float(step[-1])
        if (a <= 0.0).any() or a.sum() >= RADIUS:
            return math.inf
        room = b - problem.vertices @ problem.losses_of(problem.signed @ a)[0]
        if not (room > 0.0).all():
            return math.inf
        return t * s * float(step[-1]) - float(np.log(room).sum() + np.log(a).sum()) - math.log(RADIUS - a.sum())

    here, size = barrier(0.0), 1.0
    while size > 1e-12:
        if barrier(size) <= here - 0.1 * size * decrement + 1e-12 * (1.0 + abs(here)):
            return size
        size *= 0.5
    return 0.0


# ---------------------------------------------------------------- small things


def _domains(federation: Federation) -> tuple[np.ndarray, int]:
    if federation.domain is None:
        return np.zeros(federation.n, dtype=np.int64), 1
    return federation.domain, federation.n_domains


def _dense(who: str, federation: Federation) -> np.ndarray:
    if federation.is_sparse:
        cure = "pass X.toarray(), or a Dictionary of other classifiers"
        raise wrong_type(f"{who}: X", "be dense", "sparse rows", cure)
    return federation.X


def _vertices(uncertainty_set: Any, p: int) -> np.ndarray:
    if uncertainty_set is None:
        return np.eye(p)
    V = np.atleast_2d(numeric("EnsembleProblem.uncertainty_set", uncertainty_set))
    if V.ndim != 2 or V.shape[1] != p or len(V) == 0:
        raise bad("EnsembleProblem.uncertainty_set", f"have shape (V, {p})", f"{V.shape}")
    finite("EnsembleProblem.uncertainty_set", V)
    if V.min() < 0.0 or np.abs(V.sum(axis=1) - 1.0).max() > 1e-9:
        raise bad("EnsembleProblem.uncertainty_set", "be nonnegative with rows of sum one", f"{V}")
    return V


def _thresholds(column: np.ndarray, cuts: int | None) -> np.ndarray:
    from fedconvex.problems.stumps import _edges

    return _edges(column, column.size + 1 if cuts is None else whole("cuts", cuts, low=1) + 1)


@reduction
def domain_losses(base2, m, bounds, F, slopes):
    """F_k = mean of Phi(-m_i) over domain k, and slopes_i = Phi'(-m_i); one logarithm of a product per 512 rows."""
    for k in range(F.size):
        total, lo, hi = 0.0, bounds[k], bounds[k + 1]
        if not base2:
            for i in range(lo, hi):
                slopes[i] = exp(-m[i])
                total += slopes[i]
            F[k] = total / (hi - lo)
            continue
        for first in range(lo, hi, 512):
            product = 1.0  # of factors in [1, 2]
            for i in range(first, min(first + 512, hi)):
                e = exp(-abs(m[i]))
                product *= 1.0 + e
                total += max(-m[i], 0.0)
                slopes[i] = (e if m[i] > 0.0 else 1.0) / ((1.0 + e) * 0.6931471805599453)
            total += math.log(product)
        F[k] = total / ((hi - lo) * 0.6931471805599453)


@kernel
def signed_weights(slopes, shares, bounds, y, q, sources, lo, omega):
    """omega[e, i - lo] = lambda_k/m_k Phi'_i y_i Q(l_e|x_i) for the rows lo, lo + 1, ...; shares are lambda_k/m_k."""
    for e in range(sources.size):
        row = q[sources[e]]
        for k in range(shares.size):
            for i in range(max(bounds[k], lo), min(bounds[k + 1], lo + omega.shape[1])):
                omega[e, i - lo] = slopes[i] * shares[k] * y[i] * row[i]


@kernel
def stump_margins(column, threshold, left, right, y, q, u):
    """u_i = y_i Q(l|x_i) h(x_i)."""
    for i in range(u.size):
        u[i] = y[i] * q[i] * (left if column[i] <= threshold else right)


@kernel
def logistic_bound(weights, margins, cost):
    """sum_i weights_i H(c s_i) - c cost at the best c <= 1: s_i = 1/(1 + e^m_i), H the entropy in bits.

    Newton's method in log c on the derivative; every c gives a bound, and the best of those tried is returned.
    """
    best, tau = 0.0, 0.0
    for _ in range(12):
        c, value, slope, bend = math.exp(tau), 0.0, 0.0, 0.0
        for i in range(margins.size):
            e = exp(-abs(margins[i]))
            p = c * (e if margins[i] > 0.0 else 1.0) / (1.0 + e)
            rest = (1.0 - p) if c < 1.0 else (1.0 if margins[i] > 0.0 else e) / (1.0 + e)
            if weights[i] > 0.0 and p > 1e-300 and rest > 1e-300:
                a, b = math.log(p) / 0.6931471805599453, math.log(rest) / 0.6931471805599453
                value -= weights[i] * (p * a + rest * b)
                slope += weights[i] * p * (b - a)
                bend += weights[i] * p / (rest * 0.6931471805599453)
        best = max(best, value - c * cost)
        step = (slope - c * cost) / max(bend, 1e-300)
        if (tau == 0.0 and step >= 0.0) or abs(step) < 1e-9:
            break
        tau = min(tau + step, 0.0)
    return best
