"""Boosting with several sources: the worst domain's loss of a Q-ensemble, and certificates.

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

B is 100 for the exact solution and for corrections, and no run with corrections leaves sum alpha <= 100. Steps without
corrections may: B is the ensemble's own sum alpha where that is larger (`radius_of`), since a minimum over
sum beta <= 100 bounds nothing for an ensemble beyond it.

Only E refers to the classifiers: for all stumps it is the edge of the best one, which the search finds.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedconvex._check import among, bad, finite, numeric, wrong_type
from fedconvex.families.boosting.dictionaries import domain_numbers
from fedconvex.families.boosting.source_probabilities import as_q
from fedconvex.families.boosting.stumps import Stump
from fedconvex.families.boosting.worst_domain import WorstDomain, corrected, losses_of_domains, value_rounding
from fedconvex.federation import Federation
from fedconvex.kernels.cache import kernel
from fedconvex.loss_traits import declares, traits
from fedconvex.losses import Exponential
from fedconvex.losses.stable import check_signs, exp
from fedconvex.problems.protocol import ENSEMBLE, ClientWeights, client_weights
from fedconvex.solvers.certificates.gaps import gaps_above

if TYPE_CHECKING:
    from fedconvex.families.boosting.ensemble_model import EnsembleModel

# mypy: disable-error-code="no-untyped-def"

RADIUS = 100.0  # B for ensembles with sum alpha <= B
FLAT = 1e-14  # derivatives below this are rounding
_TIE = 1e-10  # relative difference below which domains count as equally bad
_LN2 = math.log(2.0)


@declares(
    task="classification", lower_bound=0.0, smoothness=0.25 / _LN2, lipschitz=1.0 / _LN2, self_concordance=1.0,
    boosting="log2",
)  # fmt: skip
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
        check_signs("Logistic2", y)


def radius_of(total: float) -> float:
    """Return the B of an ensemble with sum alpha = total: 100, or its own sum where that is larger."""
    return max(RADIUS, total)


class Pick(NamedTuple):
    """A chosen coordinate: h_{l,j} times Q(l|.), and how the objective changes along it.

    Attributes
    ----------
    source, column : int
        l, and the column of the dictionary, or the stump's feature.
    stump : Stump or None
        Of a `StumpProblem`.
    direction : array (n,)
        y_i Q(l|x_i) h(x_i), rows sorted by domain.
    forward : bool
        Whether alpha rises.
    slope : float
        Directional derivative of the objective: negative, or 0 if only some of the worst domains gain.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.problems import Pick
    >>> Pick(0, 2, None, np.array([1.0, -1.0]), True, -0.25).slope
    -0.25
    """

    source: int  # l
    column: int  # of the dictionary, or the stump's feature
    stump: Stump | None
    direction: np.ndarray  # (n,) y_i Q(l|x_i) h(x_i), rows sorted by domain
    forward: bool  # whether alpha rises
    slope: float  # directional derivative of the objective: negative, or 0 if only some of the worst domains gain


class BoostingProblem(ClientWeights):
    """What problems of boosting from several sources share: F(f) = max over Lambda of sum_k lambda_k F_k(f).

    `EnsembleProblem` lists its base classifiers, `StumpProblem` searches for them. Rows are kept sorted by domain.

    Examples
    --------
    >>> from fedconvex.problems import BoostingProblem
    >>> from fedconvex.theory.boosting import two_points
    >>> problem = two_points().ensemble
    >>> isinstance(problem, BoostingProblem), problem.p
    (True, 2)
    """

    learns = ENSEMBLE
    over_sites = "families.boosting.sites"  # what sites answer about it
    starts = ""
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
        phi = traits(self._loss).boosting
        if not phi:
            raise wrong_type("EnsembleProblem.loss", "be Exponential() or Logistic2()", f"{loss!r}")
        self._loss.check_labels(federation.y)
        domain, self.p = domain_numbers(federation)
        self.data = federation
        self.domain_names = np.arange(self.p) if federation.domain_labels is None else federation.domain_labels
        self.q_given = q
        self.q = as_q("EnsembleProblem.q", q, federation.X, self.p)
        self.vertices = _vertices(uncertainty_set, self.p)
        self.by_row = np.argsort(domain, kind="stable")  # rows sorted by domain
        counts = np.bincount(domain, minlength=self.p)
        if federation.complete and counts.min() == 0:
            raise bad("EnsembleProblem: every domain", "have rows", f"none in domain {int(np.argmin(counts))}")
        self.bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.counts, self.y_sorted = counts, federation.y[self.by_row]
        weight = federation.sample_weight if federation.complete else None
        self.relative_weights = _relative_weights(weight, self.by_row, self.bounds)
        self.q_sorted = np.ascontiguousarray(self.q[self.by_row].T)  # (p, n)
        self.base2 = phi == "log2"
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

    def _fitted_model(self, state: Any, about: dict[str, Any], trajectory: int = 0) -> EnsembleModel:
        """Return the ensemble of a state, or of alpha, as a model of raw rows.

        Parameters
        ----------
        state : state of a boosting method, or alpha
        about : dict
            What a saved model says of itself; the loss, the data and Q are added.
        trajectory : int
        """
        from fedconvex.families.boosting.ensemble_model import EnsembleModel

        fed, columns = self.data, self.data.columns
        names = tuple(f"x{j + 1}" for j in range(fed.d)) if columns is None else columns.feature_names
        labels = (-1, 1) if columns is None else columns.labels
        origin = {"data": "arrays" if columns is None else columns.origin, "digest": fed.digest}
        more = {"loss": repr(self.loss), **origin, "clients_trained": fed.K, "rows": fed.n}
        more["intercept"] = fed.d == len(names) + 1
        return EnsembleModel(self.ensemble(state, trajectory), labels, names, {**more, **about}, columns)

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
        """Share of margins <= 0 in every domain, (p,), by weight, from margins of rows sorted by domain."""
        wrong = (margins <= 0.0).astype(float)
        wrong = wrong if self.relative_weights is None else self.relative_weights * wrong
        return np.add.reduceat(wrong, self.bounds[:-1]) / self.counts

    @cached_property
    def client_domains(self) -> np.ndarray:
        """Domain of every client, -1 where its rows have several, (K,)."""
        fed, domain = self.data, domain_numbers(self.data)[0]
        found, here = np.full(fed.K, -1), np.diff(fed.ptr) > 0  # at a site only its own rows are
        if here.any():
            starts = fed.ptr[:-1][here]
            least, most = np.minimum.reduceat(domain, starts), np.maximum.reduceat(domain, starts)
            found[here] = np.where(least == most, least, -1)
        return found

    def losses_of(self, margins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return F_k (p,) and Phi'(-y_i f(x_i)) (n,) times the relative weight of every row, from margins."""
        return losses_of_domains(self.base2, margins, self.bounds, self.relative_weights)

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
    def certified(self, margins: np.ndarray, domain_weights: Any = None, total: float = 0.0) -> tuple[float, float]:
        """Return F and a lower bound of the minimum over beta >= 0, sum beta <= max(100, total), from margins (n,)."""
        radius = radius_of(total)
        F, slopes = self.losses_of(margins)
        lam = self.worst(F, None).mean(axis=0) if domain_weights is None else self._checked_weights(domain_weights)
        weights = self.row_weights_of(lam) * slopes
        edge, A = self._largest_edge(lam, slopes), float(lam @ F)
        rounding = 1e-14 * (1.0 + float(weights @ np.abs(margins)))
        rounding += 1e-16 * math.sqrt(margins.size) * radius * float(weights.sum())  # sums in the edge
        if self.base2:
            shares = self.row_weights_of(lam)
            shares = shares if self.relative_weights is None else shares * self.relative_weights
            lower = logistic_bound(shares, margins, radius * edge)
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
        if self._affordable and radius_of(total) == RADIUS:
            return self.lower_bound
        return self.certified(margins, domain_weights, total)[1]

    def gaps(self, who: str, value: np.ndarray, lower: np.ndarray, totals: np.ndarray) -> np.ndarray:
        """Return value - lower of R ensembles with sum alpha = totals (R,), and rounding; inf where contradicted."""
        return gaps_above(who, self, value, lower, value_rounding(value, totals))

    # ------------------------------------------------------------------ models
    def check_stages(self, history: np.ndarray) -> None:
        """Raise unless every stage of a history (R, t, 6) names a source and one of its columns, or a feature."""
        places = len(self.sources) if hasattr(self, "sources") else self.data.d
        if history.shape[2] != 6 or not all(
            np.isin(history[:, :, i], np.arange(n)).all() for i, n in ((0, self.p), (1, places))
        ):
            raise bad("history", f"name sources below {self.p} and places below {places}", "others")

    def directions(self, history: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the distinct classifiers of a history (t, 6), their directions (n, A) and their weights (A,)."""
        kept = history[history[:, 5] != 0.0]
        stages, which = np.unique(kept[:, :5], axis=0, return_inverse=True)
        return stages, self._columns_of(stages), np.bincount(which.ravel(), kept[:, 5], len(stages))

    def corrected(self, U: np.ndarray, alpha: np.ndarray, mu: float | None) -> np.ndarray:
        """Minimise the smoothed maximum over weights (A,) of directions U (n, A) whose sum is at most 100.

        The sum ends 1e-7 below 100, so that steps after it have room for a new classifier.
        """
        return corrected(self._maximum(U), alpha, mu, RADIUS - 1e-7)

    def _maximum(self, U: np.ndarray) -> WorstDomain:
        """F as a function of the weights of directions U (n, A), for solvers."""
        return WorstDomain(U, self.bounds, self.vertices, self.base2, self.relative_weights)

    @property
    def words(self) -> str:
        """What it consists of, as reports say it."""
        return f"{self.p} source{'s' * (self.p != 1)}, {self.data.n} rows, {self._listed()}, {self.loss!r}"

    @property
    def q_model(self) -> Any:
        """Q as a function of X, or None if it was given as numbers."""
        return self.q_given if self.q_given is None or callable(self.q_given) else False

    @property
    def fingerprint(self) -> str:
        """Digest of what makes this problem beside its rows: Q, uncertainty set, classifiers or their search."""
        h = hashlib.blake2b(repr(self._search_settings()).encode(), digest_size=16)
        for a in (self.q, self.vertices) if self.data.complete else (self.vertices,):
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


def _relative_weights(weight: np.ndarray | None, by_row: np.ndarray, bounds: np.ndarray) -> np.ndarray | None:
    """Return the weights of rows sorted by domain, of mean one over each, (n,); None where rows carry none."""
    if weight is None:
        return None
    sums, sizes = np.add.reduceat(weight[by_row], bounds[:-1]), np.diff(bounds)
    if not (sums > 0.0).all():
        raise bad("EnsembleProblem: every domain", "have a row of positive weight", f"none in {int(np.argmin(sums))}")
    return np.asarray(weight[by_row] * np.repeat(sizes / sums, sizes))


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
