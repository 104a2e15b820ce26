"""Samples of rows of several domains in the place of a method, and the excess of true over empirical losses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import stats
from scipy.special import gammaln

from fedconvex.kernels.domain_sums import domain_counts
from fedconvex.simplex.uncertainty import Point, Simplex
from fedconvex.solvers.minimax.ball import largest_on_ball
from fedconvex.theorems.kit import *
from fedconvex.theory.complexity import compositions, finite_complexity


class Ball(NamedTuple):
    """All linear models with ‖w‖ <= radius, by the problem's squared loss."""

    radius: float


class Models(NamedTuple):
    """Finitely many models (H, *model), by the problem's loss."""

    w: Any


class Classifiers(NamedTuple):
    """All linear classifiers of rows with one or two features, sign(w'x) with sign(0) = 1, by their errors (0 or 1)."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Rows drawn with replacement from every domain of a problem, whose rows are the population.

    A round draws ``sizes`` rows: after T rounds there are m_k = T sizes_k of domain k. What `verify` then measures is
    the (1 - delta)-quantile, over samples, of the largest excess of the true over the empirical loss, of any model of
    the class and any mixture of the domains.

    Parameters
    ----------
    sizes : int or sequence of p ints
        Rows of each domain in a round.
    models : `Ball`, `Models` or `Classifiers`
        The class.
    delta : float
        Probability of failure, in (0, 1).
    eps : float
        Radius of the cover, positive.
    uncertainty_set : set of `fedconvex.simplex.uncertainty`
        Lambda: `Simplex()` or `Point`, which is its own cover.

    Raises
    ------
    ValueError, TypeError
        On settings out of range.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theorems.parts.samples import Models, Sample
    >>> from fedconvex.verify import verify
    >>> coins = Problem(Federation.from_arrays([[1.0]] * 4, [1.0, -1.0, 1.0, -1.0], [0, 0, 1, 1]), Squared())
    >>> verdict = verify("agnostic-vertices", coins, Sample(sizes=20, models=Models([[1.0]])), rounds=1)
    >>> verdict.outcome.name, verdict.trajectories, verdict.measured, round(verdict.bound.value, 3)
    ('HOLDS', 0, 0.4, 0.607)
    """

    sizes: Any
    models: Any
    delta: float = 0.05
    eps: float = 0.1
    uncertainty_set: Any = Simplex()

    def __post_init__(self) -> None:
        sizes = [whole("Sample.sizes", v, low=1) for v in np.ravel(np.asarray(self.sizes, dtype=object))]
        if not sizes:
            raise bad("Sample.sizes", "be a number, or one per domain", "none")
        object.__setattr__(self, "sizes", sizes[0] if np.ndim(self.sizes) == 0 else tuple(sizes))
        if not isinstance(self.models, (Ball, Models, Classifiers)):
            raise wrong_type("Sample.models", "be a Ball, Models or Classifiers", f"{self.models!r}")
        if isinstance(self.models, Ball):
            real("Sample.models: radius", self.models.radius, low=0.0, strict=True)
        if not 0.0 < real("Sample.delta", self.delta) < 1.0:
            raise bad("Sample.delta", "lie strictly between 0 and 1", self.delta)
        real("Sample.eps", self.eps, low=0.0, strict=True)
        if not isinstance(self.uncertainty_set, (Simplex, Point)):
            raise wrong_type("Sample.uncertainty_set", "be Simplex() or a Point", f"{self.uncertainty_set!r}")

    def drawn(self, p: int, rounds: int) -> np.ndarray:
        """Return m_k after so many rounds, (p,).

        Raises
        ------
        ValueError
            If there are not p sizes.
        """
        if np.ndim(self.sizes) and len(self.sizes) != p:
            raise bad("Sample.sizes", f"have {p} entries, one per domain", f"{len(self.sizes)}")
        return rounds * np.broadcast_to(np.asarray(self.sizes), (p,))

    def described(self, problem: Problem, rounds: int) -> tuple[str, str]:
        """Return the setting in short and in words, for reports."""
        m = self.drawn(domain_counts(problem.federation).size, rounds)
        size = f"{m[0]}" if m.min() == m.max() else f"{m.min()} to {m.max()}"
        kind = self.models
        words = {
            Ball: lambda: f"all linear models with ‖w‖ <= {kind.radius:g}, squared loss",
            Models: lambda: "a single model, its losses" if len(kind.w) == 1 else f"{len(kind.w)} models, their losses",
            Classifiers: lambda: "all linear classifiers, their errors",
        }[type(kind)]()
        fixed = "" if isinstance(self.uncertainty_set, Simplex) else f", {self.uncertainty_set!r}"
        short = f"{size} rows per domain, delta {self.delta:g}" + (", one mixture" if fixed else "")
        return short, f"{size} rows drawn per domain; {words}; delta {self.delta:g}, eps {self.eps:g}{fixed}"


class HypothesisClass(NamedTuple):
    """A class of hypotheses on the rows of every domain."""

    largest: float  # M
    hypotheses: int | None  # H, None for a ball
    tables: tuple[np.ndarray, ...]  # per domain the losses (rows, H); of a ball (rows, d + 1), features and label
    slopes2: np.ndarray  # (p,) of a ball, mean of s_j^2‖x_j‖^2
    words: str


def hypotheses_of(G: HypothesisClass, m: np.ndarray) -> tuple[Hypothesis, ...]:
    """Return the class, and the rows per domain, as hypotheses."""
    return (
        Hypothesis("a class on the population's rows", G.words),
        Hypothesis("rows per domain", " ".join(map(str, m[:8].tolist())) + (" ..." if m.size > 8 else "")),
    )


def class_of(name: str, s: Setting) -> HypothesisClass:
    """Return the class on the population, or raise."""
    m, p = s.method, s.problem.by_domain
    is_method(name, m, Sample)
    stationary(name, s.problem)
    fed, kind = p.federation, m.models
    m.uncertainty_set.check("Sample", fed.K)
    cuts = fed.ptr[1:-1]
    X = fed.X.toarray() if fed.is_sparse else fed.X
    if isinstance(kind, Ball):
        require(name, Hypothesis("squared loss, for all models of a ball", f"{p.loss!r}", traits(p.loss).quadratic))
        length = np.sqrt(np.sum(X**2, axis=1))
        slope = kind.radius * length + np.abs(fed.y)
        slopes2 = np.add.reduceat((slope * length) ** 2, fed.ptr[:-1]) / fed.sizes
        tables = tuple(np.split(np.column_stack([X, fed.y]), cuts))
        return HypothesisClass(0.5 * float(slope.max()) ** 2, None, tables, slopes2, f"‖w‖ <= {kind.radius:g}")
    if isinstance(kind, Classifiers):
        signs = bool((np.abs(fed.y) == 1.0).all())
        require(
            name,
            Hypothesis("labels -1 and +1", f"{fed.y.min():g} to {fed.y.max():g}", signs),
            Hypothesis("one or two features, whose classifiers can be listed", f"{fed.d} features", fed.d <= 2),
        )
        table = np.unique((patterns(X) != fed.y[:, None]).astype(float), axis=1)
        return HypothesisClass(
            1.0, table.shape[1], tuple(np.split(table, cuts)), np.zeros(0), f"{table.shape[1]} patterns"
        )
    W = numeric("Sample.models: w", kind.w)
    if W.ndim != 1 + len(p.model_shape) or W.shape[1:] != p.model_shape or len(W) == 0:
        raise bad("Sample.models: w", f"have shape (H, {', '.join(map(str, p.model_shape))})", f"{W.shape}")
    finite("Sample.models: w", W)
    table = np.concatenate([values for _, _, values in p._row_values(p.flatten(W)[0])])
    require(name, Hypothesis("losses of at least 0", f"least {table.min():.4g}", bool(table.min() >= 0.0)))
    M = float(table.max())
    return HypothesisClass(M, len(W), tuple(np.split(table, cuts)), np.zeros(0), f"{len(W)} models")


def patterns(X: np.ndarray) -> np.ndarray:
    """Return the predictions (rows, H) of all linear classifiers of one or two features, sign(0) = 1."""
    size = np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-300)
    unit = X / size
    if X.shape[1] == 1:
        W = np.array([[1.0, -1.0, 0.0]])
    else:
        turn = np.arctan2(unit[:, 1], unit[:, 0]) + 0.5 * math.pi
        edges = np.unique(np.mod(np.concatenate([turn, turn + math.pi]), 2.0 * math.pi))
        middle = 0.5 * (edges + np.append(edges[1:], edges[0] + 2.0 * math.pi))
        angle = np.concatenate([edges, middle])
        W = np.column_stack([np.vstack([np.cos(angle), np.sin(angle)]), np.zeros(2)])
    Z = np.where(size > 1e-300, unit, 0.0) @ W
    return np.unique(np.where(Z >= -1e-12, 1.0, -1.0), axis=1)


def complexities(G: HypothesisClass, s: Setting, m: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Return bounds of R(G, lambda) at mixtures (q, p): convex functions of lambda."""
    if G.hypotheses is None:  # contraction with every row's own slope, and Jensen's inequality over samples
        return float(s.method.models.radius) * np.sqrt(corners**2 @ (G.slopes2 / m))
    massart = finite_complexity
    return np.array([massart(lam, m, G.hypotheses, largest=G.largest) for lam in corners])


def direct_means(G: HypothesisClass, s: Setting, m: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Return bounds of E sup (L_lambda - empirical L_lambda) at mixtures (q, p), without fair signs."""
    if G.hypotheses is not None:  # a maximum of H variables whose moments are those of range M (Hoeffding's lemma)
        return G.largest * np.sqrt(0.5 * math.log(G.hypotheses) * (corners**2 @ (1.0 / m)))
    R, variances = float(s.method.models.radius), []
    for rows in G.tables:  # of x y, and of x x': the moments that a quadratic in w is made of
        X, y = rows[:, :-1], rows[:, -1]
        moments = (X * y[:, None], (X[:, :, None] * X[:, None, :]).reshape(len(X), -1))
        variances.append([float(v.var(axis=0).sum()) for v in moments])
    linear, quadratic = np.sqrt(corners**2 @ (np.array(variances) / m[:, None])).T
    return R * linear + 0.5 * R * R * quadratic


def corners_of(s: Setting, p: int) -> np.ndarray:
    """Return the extreme points of Lambda, (q, p)."""
    return np.eye(p) if isinstance(s.method.uncertainty_set, Simplex) else s.method.uncertainty_set.start(p)[None]


_LISTED = 5000  # samples of a domain that are listed for an exact quantile


def excess(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """Largest L_lambda - empirical L_lambda over the class and Lambda, of independent samples that grow."""
    G = class_of("the excess of a sample", s)
    p = len(G.tables)
    each = s.method.drawn(p, 1)
    rng = np.random.default_rng(int(key_from_seed(seed)))
    counts = [np.zeros((trajectories, len(rows)), dtype=np.int64) for rows in G.tables]
    out, before = {}, 0
    for T in sorted(set(rounds)):
        for k, rows in enumerate(G.tables):
            share = np.full(len(rows), 1.0 / len(rows))
            counts[k] += rng.multinomial((T - before) * each[k], share, size=trajectories)
        shares = [c / (T * size) for c, size in zip(counts, each, strict=True)]
        out[T], before = _largest(G, s, shares), T
    return np.array([out[T] for T in rounds])


def _largest(G: HypothesisClass, s: Setting, shares: Sequence[np.ndarray]) -> np.ndarray:
    """Return the largest excess for shares of the population's rows in samples, (R, n_k) per domain k."""
    corners = corners_of(s, len(shares))
    if G.hypotheses is not None:
        off = np.stack([rows.mean(axis=0) - f @ rows for rows, f in zip(G.tables, shares, strict=True)], axis=1)
        return np.max([np.einsum("p,rph->rh", lam, off).max(axis=1) for lam in corners], axis=0)
    parts = [_quadratic(rows, 1.0 / len(rows) - f) for rows, f in zip(G.tables, shares, strict=True)]
    tops = []
    for lam in corners:
        A, b, c = (sum(weight * part[i] for weight, part in zip(lam, parts, strict=True)) for i in range(3))
        tops.append(c + largest_on_ball(A, b, float(s.method.models.radius)))
    return np.max(tops, axis=0)


def _quadratic(rows: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return A, b, c of w'Aw/2 - b'w + c = sum_j f_j (x_j'w - y_j)^2/2, for weights (R, n)."""
    X, y = rows[:, :-1], rows[:, -1]
    d = X.shape[1]
    A = (f @ (X[:, :, None] * X[:, None, :]).reshape(len(X), -1)).reshape(-1, d, d)
    return A, f @ (X * y[:, None]), 0.5 * f @ y**2


def exact_excess(s: Setting, rounds: Sequence[int]) -> np.ndarray | None:
    """Quantile by listing the samples of every domain, which are independent, where there are few."""
    G = class_of("the excess of a sample", s)
    p = len(G.tables)
    if not isinstance(s.method.uncertainty_set, Simplex):
        return None
    merged = [np.unique(rows, axis=0, return_counts=True) for rows in G.tables]
    m = s.method.drawn(p, 1)
    for (rows, _), size in zip(merged, m, strict=True):
        if math.comb(max(rounds) * int(size) + len(rows) - 1, len(rows) - 1) > _LISTED:
            return None
    return np.array([_exact_quantile(G, s, merged, T * m) for T in rounds])


def _exact_quantile(G: HypothesisClass, s: Setting, merged: Sequence[Any], m: np.ndarray) -> float:
    laws = []
    for (rows, times), size in zip(merged, m, strict=True):
        true = times / times.sum()
        counts = np.array(list(compositions(int(size), len(rows))))
        log_p = gammaln(size + 1.0) - gammaln(counts + 1.0).sum(axis=1) + counts @ np.log(true)
        if G.hypotheses is not None:
            value = ((true - counts / size) @ rows).max(axis=1)
        else:
            A, b, c = _quadratic(rows, true - counts / size)
            value = c + largest_on_ball(A, b, float(s.method.models.radius))
        order = np.argsort(value)
        above = np.append(np.cumsum(np.exp(log_p[order])[::-1])[::-1], 0.0)  # P(value >= its i-th)
        laws.append((value[order], np.minimum(above, 1.0)))
    at = np.unique(np.concatenate([v for v, _ in laws]))
    with np.errstate(divide="ignore"):  # a domain that is certainly above
        inside = [np.log1p(-above[np.searchsorted(value, at, side="right")]) for value, above in laws]
    exceeded = -np.expm1(np.sum(inside, axis=0))  # by some domain; precise for the smallest delta
    return float(at[int(np.argmax(exceeded <= s.method.delta))])


def quantile(s: Setting, values: np.ndarray, tail: float) -> tuple[float, float, float]:
    """Return the sample's (1 - delta)-quantile and confidence limits by order statistics, for any distribution."""
    n, q, v = values.size, 1.0 - s.method.delta, np.sort(values)
    low = int(stats.binom.ppf(tail, n, q))  # P(fewer than `low` values are at most the quantile) <= tail
    high = int(stats.binom.isf(tail, n, q)) + 1
    limits = v[low - 1] if low >= 1 else -math.inf, v[high - 1] if high <= n else math.inf
    return float(v[max(math.ceil(n * q) - 1, 0)]), float(limits[0]), float(limits[1])


def sample_constants(s: Setting) -> dict[str, tuple[float, str]]:
    """Return the constants for reports."""
    G = class_of("the excess of a sample", s)
    p = len(G.tables)
    m = s.method.drawn(p, s.rounds)
    out = {"M": (G.largest, "exact" if G.hypotheses is not None else "rigorous bound on the ball")}
    out["largest R_k"] = (float(complexities(G, s, m, np.eye(p)).max()), "rigorous bound")
    out["largest skewness"] = (float(m.sum() / m.min()), "exact")
    return out | ({} if G.hypotheses is None else {"hypotheses": (float(G.hypotheses), "exact")})


def only_the_start(problem: Problem, start: np.ndarray) -> Models:
    """Return the class of a single model, the start."""
    return Models(np.array(start)[None])


def _affordable(problem: Problem, start: np.ndarray) -> Ball | Models:
    """Return the unit ball for squared loss, else the start and every client's own minimiser."""
    if traits(problem.loss).quadratic:
        return Ball(1.0)
    own = [problem.client(k).solve().w for k in range(problem.federation.K)]
    return Models(np.array([np.array(start), *own]))


def samples_of_domains(models: Any = _affordable, sizes: Any = 10, **settings: Any) -> MethodRule:
    """Return samples of every domain; models is a class, or a callable of problem and start."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> Sample:
        kind = models(problem, start) if callable(models) else models
        return Sample(sizes=sizes, models=kind, **settings)

    return MethodRule("given", make)


def samples_space(models: Any = None, loss: str = "squared") -> Space:
    """Return where to look for sharp samples: few rows of tiny domains; by default a ball of models, or one model."""

    def method(k: Mapping[str, Any]) -> MethodRule:
        kind = models if models is not None else Ball(1.0) if k["ball"] else only_the_start
        return samples_of_domains(kind, k["sizes"], delta=k["delta"], eps=k["eps"])

    knobs: dict[str, Whole | Real] = {"sizes": Whole(1, 8), "delta": Real(1e-3, 0.999), "eps": Real(1e-3, 0.5)}
    ball: dict[str, Whole | Real] = {"ball": Whole(0, 1)} if models is None else {}
    return Space(method, knobs | ball, losses=(loss,), rounds=(1, 4))
