"""Agnostic learning: the rate of AFL, generalisation from samples, what rounds send, and the softmax objective."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy import stats
from scipy.special import gammaln

from fedconvex._check import bad, finite, numeric, real, whole, wrong_type
from fedconvex.draws import key_from_seed
from fedconvex.driver import iterate
from fedconvex.kernels.domains import domain_counts
from fedconvex.loss_traits import traits
from fedconvex.problems import Problem
from fedconvex.simplex.uncertainty import Simplex
from fedconvex.solvers.ball import largest_on_ball, least_values_over_ball
from fedconvex.theorems.parts.domains import values_rounding
from fedconvex.theorems.parts.setting import Setting, is_method, stationary
from fedconvex.theorems.parts.theorem import Theorem
from fedconvex.theory import (
    agnostic_generalisation,
    agnostic_rate,
    complexity,
)
from fedconvex.theory.agnostic_rate import AgnosticConstants, agnostic_best_steps, agnostic_constants, agnostic_steps
from fedconvex.theory.bound import (
    AGNOSTIC_EXCESS,
    SADDLE_GAP,
    Bound,
    Hypothesis,
    require,
)

__all__ = ["THEOREMS", "Ball", "Classifiers", "Models", "Sample", "afl_constants", "with_steps"]

# ---------------------------------------------------------------- the rate of AFL


def afl_constants(problem: Problem, method: Any, start: Any = None) -> AgnosticConstants:
    """Return `agnostic_constants` of an AFL with a radius.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.methods import AFL
    >>> from fedconvex.theorems.agnostic import afl_constants
    >>> problem = Problem(Federation.from_arrays([[1.0], [2.0]], [0.0, 1.0], [0, 1]), Squared())
    >>> afl_constants(problem, AFL(step_size=0.1, domain_step_size=0.1, radius=1.0)).G_w
    6.0
    """
    m = method
    drawn = m.sampling.draws if hasattr(m.sampling, "draws") else None
    return agnostic_constants(
        problem,
        radius=m.radius,
        uncertainty_set=m.uncertainty_set,
        start=start,
        batch_size=m.batch_size,
        replacement=m.replacement,
        draws=drawn,
    )


def with_steps(method: Any, problem: Problem, *, rounds: int, start: Any = None, published: bool = False) -> Any:
    """Return an AFL with the steps of the published rate, or with those at which the bound for any steps is least.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.methods import AFL
    >>> from fedconvex.theorems.agnostic import with_steps
    >>> problem = Problem(Federation.from_arrays([[1.0], [2.0]], [0.0, 1.0], [0, 1]), Squared())
    >>> method = AFL(step_size=1.0, domain_step_size=1.0, radius=1.0)
    >>> round(with_steps(method, problem, rounds=4, published=True).step_size, 4)  # 2R/(G T^(1/2))
    0.1667
    """
    c = afl_constants(problem, method, start)
    steps = _published(c, rounds) if published else agnostic_best_steps(c, rounds=rounds, entropic=_entropic(method))
    return replace(method, step_size=steps.model, domain_step_size=steps.mixture)


def _entropic(m: Any) -> bool:
    return type(m.ascent).__name__ == "EntropicStep"


def _published(c: AgnosticConstants, rounds: int) -> Any:
    return agnostic_steps(rounds=rounds, **(c.of_theorem() | {"R_lambda": c.R_lambda or 1.0}))


def _game(name: str, s: Setting, ascent: str) -> AgnosticConstants:
    """Return the constants of an AFL on a ball, or raise."""
    m, p = s.method, s.problem
    is_method(name, m, "AFL")
    stationary(name, p)
    smooth = traits(p.loss).curved
    require(
        name,
        Hypothesis("a ball of models", f"radius {m.radius!r}", m.radius is not None),
        Hypothesis(
            "constant steps", f"{m.step_size!r}, {m.domain_step_size!r}", _constant(m.step_size, m.domain_step_size)
        ),
        Hypothesis(f"{ascent} of the mixture", f"{m.ascent!r}", type(m.ascent).__name__ == ascent),
        Hypothesis("a smooth loss, whose least value over the ball is known", f"{p.loss!r}", smooth),
    )
    return afl_constants(p, m, s.start)


def _constant(*steps: Any) -> bool:
    return all(isinstance(v, float) for v in steps)


def _afl(s: Setting) -> Bound:
    """Read the published rate: steps may be smaller than the theorem's, as if the gradients were larger."""
    name, m = "the rate of AFL", s.method
    c = _game(name, s, "ProjectedStep")
    top = _published(c, s.rounds)
    at_most = [
        Hypothesis(
            f"gamma_{who} <= 2 R/(T (sigma^2 + G^2))^(1/2)", f"{mine:.4g}, {most:.4g}", mine <= most * (1 + 1e-9)
        )
        for who, mine, most in (("w", m.step_size, top.model), ("lambda", m.domain_step_size, top.mixture))
    ]
    require(name, *at_most[: 1 if c.R_lambda == 0.0 else 2])
    scale = {"G_w": (m.step_size, c.R_W, c.sigma2_w), "G_lambda": (m.domain_step_size, c.R_lambda, c.sigma2_lambda)}
    larger = {k: math.sqrt(max(4.0 * R**2 / (s.rounds * g**2) - v, 0.0)) for k, (g, R, v) in scale.items()}
    bound = agnostic_rate.agnostic_rate(rounds=s.rounds, **(c.of_theorem() | larger))
    return replace(bound, requires=(*bound.requires[:2], *at_most, Hypothesis("averages of the query points", "AFL")))


def _any_steps(s: Setting) -> Bound:
    c = _game("the rate of AFL, any steps", s, "ProjectedStep")
    at = {"step_size": s.method.step_size, "domain_step_size": s.method.domain_step_size}
    return agnostic_rate.agnostic_rate_any_steps(c, rounds=s.rounds, **at)


def _entropic_steps(s: Setting) -> Bound:
    c = _game("the rate of AFL, entropic steps", s, "EntropicStep")
    at = {"step_size": s.method.step_size, "domain_step_size": s.method.domain_step_size}
    return agnostic_rate.agnostic_rate_entropic(c, rounds=s.rounds, **at)


def _saddle_gap(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """max over Lambda of L(wA, .) - min over the ball of L(., lambdaA): certified from above, to 1e-12 or so."""
    m, domains, wanted, out = s.method, s.problem.by_domain, set(rounds), {}
    runs = iterate(m, s.problem, rounds=max(rounds), seed=seed, trajectories=trajectories, start=s.start)
    for t, state in runs:
        if t in wanted:
            top = np.asarray(m.uncertainty_set.largest(domains.client_values(state.w))[0])
            out[t] = top - least_values_over_ball(s.problem, state.domain_weights, m.radius)
    return np.array([out[t] for t in rounds])


def _exact_saddle_gap(s: Setting, rounds: Sequence[int]) -> np.ndarray | None:
    drawn = s.method.batch_size is not None or type(s.method.sampling).__name__ != "DomainSampling"
    return None if drawn else _saddle_gap(s, rounds, 0, 1)[:, 0]


def _shown_game(s: Setting) -> dict[str, tuple[float, str]]:
    c = afl_constants(s.problem, s.method, s.start)
    how = "rigorous bound on the ball"
    names = ("G_w", "G_lambda", "sigma2_w", "sigma2_lambda", "centred", "width")
    out = {"R_W": (c.R_W, "given"), "R_Lambda": (c.R_lambda, "exact")}
    out |= {name: (float(getattr(c, name)), how) for name in names}
    return out | {"reach_w": (c.reach_w, "exact"), "reach_Lambda": (c.reach_lambda, how)}


# ---------------------------------------------------------------- generalisation: what is sampled, and from which class


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
    >>> from fedconvex.theorems.agnostic import Models, Sample
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
        if type(self.uncertainty_set).__name__ not in ("Simplex", "Point"):
            raise wrong_type("Sample.uncertainty_set", "be Simplex() or Point(mix)", f"{self.uncertainty_set!r}")

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


class _Class(NamedTuple):
    """A class of hypotheses on the rows of every domain."""

    largest: float  # M
    hypotheses: int | None  # H, None for a ball
    tables: tuple[np.ndarray, ...]  # per domain the losses (rows, H); of a ball (rows, d + 1), features and label
    slopes2: np.ndarray  # (p,) of a ball, mean of s_j^2‖x_j‖^2
    words: str


def _class_of(name: str, s: Setting) -> _Class:
    """Return the class on the population, or raise."""
    m, p = s.method, s.problem.by_domain
    is_method(name, m, "Sample")
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
        return _Class(0.5 * float(slope.max()) ** 2, None, tables, slopes2, f"‖w‖ <= {kind.radius:g}")
    if isinstance(kind, Classifiers):
        signs = bool((np.abs(fed.y) == 1.0).all())
        require(
            name,
            Hypothesis("labels -1 and +1", f"{fed.y.min():g} to {fed.y.max():g}", signs),
            Hypothesis("one or two features, whose classifiers can be listed", f"{fed.d} features", fed.d <= 2),
        )
        table = np.unique((_patterns(X) != fed.y[:, None]).astype(float), axis=1)
        return _Class(1.0, table.shape[1], tuple(np.split(table, cuts)), np.zeros(0), f"{table.shape[1]} patterns")
    W = numeric("Sample.models: w", kind.w)
    if W.ndim != 1 + len(p.model_shape) or W.shape[1:] != p.model_shape or len(W) == 0:
        raise bad("Sample.models: w", f"have shape (H, {', '.join(map(str, p.model_shape))})", f"{W.shape}")
    finite("Sample.models: w", W)
    table = np.concatenate([values for _, _, values in p._row_values(p.flatten(W)[0])])
    require(name, Hypothesis("losses of at least 0", f"least {table.min():.4g}", bool(table.min() >= 0.0)))
    M = float(table.max())
    return _Class(M, len(W), tuple(np.split(table, cuts)), np.zeros(0), f"{len(W)} models")


def _patterns(X: np.ndarray) -> np.ndarray:
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


# ---------------------------------------------------------------- generalisation: bounds


def _complexities(G: _Class, s: Setting, m: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Return bounds of R(G, lambda) at mixtures (q, p): convex functions of lambda."""
    if G.hypotheses is None:  # contraction with every row's own slope, and Jensen's inequality over samples
        return float(s.method.models.radius) * np.sqrt(corners**2 @ (G.slopes2 / m))
    massart = complexity.finite_complexity
    return np.array([massart(lam, m, G.hypotheses, largest=G.largest) for lam in corners])


def _corners(s: Setting, p: int) -> np.ndarray:
    """Return the extreme points of Lambda, (q, p)."""
    return np.eye(p) if isinstance(s.method.uncertainty_set, Simplex) else s.method.uncertainty_set.start(p)[None]


def _told(bound: Bound, G: _Class, m: np.ndarray) -> Bound:
    more = (
        Hypothesis("a class on the population's rows", G.words),
        Hypothesis("rows per domain", " ".join(map(str, m[:8].tolist())) + (" ..." if m.size > 8 else "")),
    )
    return replace(bound, quantity=AGNOSTIC_EXCESS, requires=(*bound.requires, *more))


def _cover(s: Setting, vc: bool = False) -> Bound:
    name = "the VC form of the agnostic bound" if vc else "the agnostic bound by covers"
    G = _class_of(name, s)
    p = len(G.tables)
    m, corners = s.method.drawn(p, s.rounds), _corners(s, p)
    whole_simplex = isinstance(s.method.uncertainty_set, Simplex)
    size, eps = (complexity.cover_size(p, s.method.eps), s.method.eps) if whole_simplex else (1, 0.0)
    if vc:
        d = s.problem.federation.d
        listed = isinstance(s.method.models, Classifiers)
        require(name, Hypothesis("errors of all linear classifiers", f"{type(s.method.models).__name__}", listed))
        R = max(complexity.vc_complexity(lam, m, d) for lam in corners)
    else:
        R = float(_complexities(G, s, m, corners).max())
    skew = max(float(complexity.skewness(lam, m)) for lam in corners)
    bound = agnostic_generalisation.cover_bound(
        0.0, R, skew, rows=int(m.sum()), cover=size, eps=eps, delta=s.method.delta, largest=G.largest
    )
    return _told(bound, G, m)


def _vertices(s: Setting) -> Bound:
    name = "the agnostic bound by vertices"
    G = _class_of(name, s)
    simplex = isinstance(s.method.uncertainty_set, Simplex)
    require(name, Hypothesis("Lambda the simplex", f"{s.method.uncertainty_set!r}", simplex))
    p = len(G.tables)
    m = s.method.drawn(p, s.rounds)
    R = _complexities(G, s, m, np.eye(p))
    bound = agnostic_generalisation.vertex_bound(np.zeros(p), R, m, delta=s.method.delta, largest=G.largest)
    return _told(bound, G, m)


# ---------------------------------------------------------------- generalisation: the quantity

_LISTED = 5000  # samples of a domain that are listed for an exact quantile


def _excess(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """Largest L_lambda - empirical L_lambda over the class and Lambda, of independent samples that grow."""
    G = _class_of("the excess of a sample", s)
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


def _largest(G: _Class, s: Setting, shares: Sequence[np.ndarray]) -> np.ndarray:
    """Return the largest excess for shares of the population's rows in samples, (R, n_k) per domain k."""
    corners = _corners(s, len(shares))
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


def _exact_excess(s: Setting, rounds: Sequence[int]) -> np.ndarray | None:
    """Quantile by listing the samples of every domain, which are independent, where there are few."""
    G = _class_of("the excess of a sample", s)
    p = len(G.tables)
    if not isinstance(s.method.uncertainty_set, Simplex):
        return None
    merged = [np.unique(rows, axis=0, return_counts=True) for rows in G.tables]
    m = s.method.drawn(p, 1)
    for (rows, _), size in zip(merged, m, strict=True):
        if math.comb(max(rounds) * int(size) + len(rows) - 1, len(rows) - 1) > _LISTED:
            return None
    return np.array([_exact_quantile(G, s, merged, T * m) for T in rounds])


def _exact_quantile(G: _Class, s: Setting, merged: Sequence[Any], m: np.ndarray) -> float:
    laws = []
    for (rows, times), size in zip(merged, m, strict=True):
        true = times / times.sum()
        counts = np.array(list(complexity.compositions(int(size), len(rows))))
        log_p = gammaln(size + 1.0) - gammaln(counts + 1.0).sum(axis=1) + counts @ np.log(true)
        if G.hypotheses is not None:
            value = ((true - counts / size) @ rows).max(axis=1)
        else:
            A, b, c = _quadratic(rows, true - counts / size)
            value = c + largest_on_ball(A, b, float(s.method.models.radius))
        order = np.argsort(value)
        laws.append((value[order], np.cumsum(np.exp(log_p[order]))))
    at = np.unique(np.concatenate([v for v, _ in laws]))
    below = np.ones(at.size)
    for value, total in laws:
        index = np.searchsorted(value, at, side="right")
        below *= np.where(index > 0, total[np.maximum(index - 1, 0)], 0.0)
    return float(at[min(int(np.searchsorted(below, 1.0 - s.method.delta)), at.size - 1)])


def _quantile(s: Setting, values: np.ndarray, tail: float) -> tuple[float, float, float]:
    """Return the sample's (1 - delta)-quantile and confidence limits by order statistics, for any distribution."""
    n, q, v = values.size, 1.0 - s.method.delta, np.sort(values)
    low = int(stats.binom.ppf(tail, n, q))  # P(fewer than `low` values are at most the quantile) <= tail
    high = int(stats.binom.isf(tail, n, q)) + 1
    limits = v[low - 1] if low >= 1 else -math.inf, v[high - 1] if high <= n else math.inf
    return float(v[max(math.ceil(n * q) - 1, 0)]), float(limits[0]), float(limits[1])


def _shown_sample(s: Setting) -> dict[str, tuple[float, str]]:
    G = _class_of("the excess of a sample", s)
    p = len(G.tables)
    m = s.method.drawn(p, s.rounds)
    out = {"M": (G.largest, "exact" if G.hypotheses is not None else "rigorous bound on the ball")}
    out["largest R_k"] = (float(_complexities(G, s, m, np.eye(p)).max()), "rigorous bound")
    out["largest skewness"] = (float(m.sum() / m.min()), "exact")
    return out | ({} if G.hypotheses is None else {"hypotheses": (float(G.hypotheses), "exact")})


_GAP, _EXCESS = SADDLE_GAP, AGNOSTIC_EXCESS
_RUN: dict[str, Any] = {
    "sample": _saddle_gap,
    "exact": _exact_saddle_gap,
    "shown": _shown_game,
    "tolerance": values_rounding,
}
_DRAWN: dict[str, Any] = {
    "sample": _excess,
    "exact": _exact_excess,
    "interval": _quantile,
    "shown": _shown_sample,
    "tolerance": lambda s: 1e-12 * (1.0 + _class_of("the excess of a sample", s).largest),
}

THEOREMS = tuple(
    Theorem(f"agnostic-{name}", quantity, bound, f"Agnostic learning, {title}", "agnostic", **how)
    for name, quantity, bound, title, how in (
        ("rate", _GAP, _afl, "rate of stochastic AFL (Mohri et al.)", _RUN),
        ("rate-any-steps", _GAP, _any_steps, "rate of AFL for any steps", _RUN),
        ("rate-entropic", _GAP, _entropic_steps, "rate of AFL with entropic steps", _RUN),
        ("cover", _EXCESS, _cover, "generalisation by covers (Mohri et al.)", _DRAWN),
        ("vc", _EXCESS, lambda s: _cover(s, True), "generalisation, VC form (Mohri et al.)", _DRAWN),
        ("vertices", _EXCESS, _vertices, "generalisation by vertices", _DRAWN),
    )
)
