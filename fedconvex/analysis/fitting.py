"""The fit of a model, and of smaller ones, its columns standardised in between."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.analysis.cox import CoxFamily, CoxLikelihood
from fedconvex.analysis.firth import firth_estimate
from fedconvex.analysis.formulas import INTERCEPT
from fedconvex.analysis.likelihood import LikelihoodProblem, certified_minimum
from fedconvex.analysis.model_rows import ModelRows, columns_of_all
from fedconvex.analysis.multinomial import MultinomialLikelihood
from fedconvex.analysis.newton_search import Minima, inverse_of
from fedconvex.analysis.over_sites import SitesLikelihood, SitesModel
from fedconvex.analysis.response_families import Family
from fedconvex.analysis.separation import Infimum, Recession, infimum
from fedconvex.families.survival.survival_rows import SurvivalFederation
from fedconvex.federation import Federation

Likelihood = LikelihoodProblem | CoxLikelihood | MultinomialLikelihood | SitesLikelihood
Rows = ModelRows | SitesModel

DEPENDENT = 1e-10  # of a column's variance, what others leave of it


class Fit(NamedTuple):
    """A fitted model, its columns standardised."""

    problem: Likelihood
    found: Minima
    T: np.ndarray  # (p, p) b = T b~
    parameters: int  # site intercepts among them
    n: float
    phi: float
    pearson: float
    constants: float  # sum of c(y, .) of the log-likelihood
    expected_inverse: np.ndarray  # (p, p)
    null: float  # least N with intercepts and offsets only
    rounding: float  # of N
    recession: Recession | None = None  # where the responses are separated
    limit: np.ndarray | None = None  # (p,) then: limits of the coefficients, in the units of the columns
    firth: bool = False  # whether the estimate is Firth's
    unit: float = 1.0  # what responses are divided by: N, phi and gaps are those of these

    @property
    def square(self) -> float:
        """What N, deviances and dispersions are multiplied by in the units of the responses."""
        return self.unit**2


def fitted(rows: Rows, own: bool, separated: bool = False, firth: bool = False) -> Fit:
    """Fit the model; ``separated`` asks for the limit where the likelihood rises for ever, ``firth`` for his estimate.

    Raises
    ------
    ValueError
        For collinear columns, too few rows, or separation.
    """
    every = list(range(len(rows.names)))
    if isinstance(rows, ModelRows):
        _need_sizes(rows)
    problem, T = standardised(rows, every, own)
    if problem.silent.all():
        cure = "take one common intercept"
        raise bad("analyse: responses", "differ within a client that has its own intercept", "no such client", cure)
    if not problem.varies:
        raise bad(f"analyse: {rows.event}", "vary", "one response in every row")
    need_independent(problem, rows.names, own or rows.family.name == "cox")
    family = rows.family
    if firth and not isinstance(problem, LikelihoodProblem):
        raise bad("analyse: firth", "be given for family 'logistic'", repr(family.name))
    found = firth_estimate(problem) if firth else _minimum(problem, rows, every)  # type: ignore[arg-type]
    n, p = problem.n, problem.parameters
    if family.dispersion != "1" and n <= p:
        raise bad("analyse: rows", f"be more than the {p} coefficients", f"{n:g}", "leave columns out")
    constants = problem.constants
    null = restricted(rows, rows.intercepts, own)[1]
    if found.attained[0] or firth:
        b = found.b[0]
        pearson, off = problem.pearson(b), problem.value_rounding(b)
        expected = inverse_of(problem.information(b))[0]
        phi = family.phi(float(found.value[0]), pearson, n, p)
        return Fit(problem, found, T, p, n, phi, pearson, constants, expected, null, off, firth=firth, unit=rows.unit)
    if not isinstance(problem, LikelihoodProblem) or not isinstance(rows, ModelRows):
        assert not isinstance(problem, LikelihoodProblem)
        raise problem.no_minimum(rows.names, found.J[0])
    recession = Recession(problem)
    if not separated or recession.moved.size == 0:
        raise _separated(rows, recession, T, found)
    least = infimum(recession)
    found, none = found._replace(value=np.array([least.N]), gap=np.array([least.gap])), np.full_like(T, np.nan)
    phi, limit = family.phi(least.N, least.pearson, n, p), _limits(recession, least, T)
    return Fit(problem, found, T, p, n, phi, least.pearson, constants, none, null, least.rounding, recession, limit)


def _need_sizes(rows: ModelRows) -> None:
    """Raise ValueError where squares of numbers come near the end of doubles, or rows are fewer than coefficients."""
    cure, X = "measure it in other units", rows.federation.X
    sizes = np.maximum(X.max(axis=0), -X.min(axis=0))
    for name, size in zip(rows.names, sizes.tolist(), strict=False):
        if size != 0.0 and not 1e-60 < size < 1e60:
            raise bad(f"analyse: column {name!r}", "be of a size between 1e-60 and 1e60", f"{size:.3g}", cure)
    most = {"gaussian": 60, "gamma": 200}.get(rows.family.name)
    largest = max(float(rows.federation.y.max()), -float(rows.federation.y.min()))
    if most is not None and largest != 0.0 and not 10.0**-most < largest < 10.0**most:
        must = f"be of a size between 1e-{most} and 1e{most}"
        raise bad(f"analyse: {rows.event}", must, f"{largest:.3g}", cure)
    if len(X) < X.shape[1]:
        must = f"be as many as the {X.shape[1]} coefficients"
        raise bad("analyse: rows", must, f"{len(X)}", "leave columns out, with features=[...] or drop=[...]")


def _limits(recession: Recession, least: Infimum, T: np.ndarray) -> np.ndarray:
    """Return where the coefficients tend to, (p,): infinite along directions of recession, nan if both ways."""
    ways = [(recession.rises(a), recession.rises(-a)) for a in T]
    ends = {(False, False): 0.0, (True, False): np.inf, (False, True): -np.inf, (True, True): np.nan}
    return np.asarray(T @ least.b + [ends[way] for way in ways])


def restricted(rows: Rows, kept: list[int], own: bool, near: Fit | None = None) -> tuple[np.ndarray, float, float]:
    """Return the minimum with some coefficients only, in the units of the columns (p,), its N, and the gap of N.

    The search begins where a quadratic function with the Hessian of a fit ``near`` by has its minimum.
    """
    b = np.zeros(len(rows.names))
    problem, T = standardised(rows, kept or list(range(b.size)), own)
    if not kept:
        return b, float(problem.sums(b[None]).values[0]), 0.0
    found = _minimum(problem, rows, kept, None if near is None else np.linalg.solve(T, _expected(near, kept)))
    b[kept] = T @ found.b[0]
    if found.attained[0] or not isinstance(problem, LikelihoodProblem):
        return b, float(found.value[0]), float(found.gap[0])
    if (recession := Recession(problem)).moved.size:
        least = infimum(recession)
        return b, least.N, least.gap
    return b, float(found.value[0]), float(found.gap[0])


def likelihood_of(federation: Federation, family: Family, own: bool) -> Likelihood:
    """Return the likelihood of a federation's rows."""
    if isinstance(family, CoxFamily):
        assert isinstance(federation, SurvivalFederation)
        return CoxLikelihood(federation, family)
    return LikelihoodProblem(federation, family, site_intercepts=own)


def standardised(rows: Rows, kept: list[int], own: bool) -> tuple[Likelihood, np.ndarray]:
    """Return the problem of some columns, divided by their standard deviations, and T with b = T b~.

    Their means are taken out where an intercept takes them up: one of the columns, or those of the clients.
    """
    if isinstance(rows, SitesModel):
        return rows.standardised(kept, own)
    if rows.classes:
        return _several(rows, kept)
    fed, T = _columns(rows, kept, own)
    if (u := rows.unit) != 1.0:
        fed, T = replace(fed, y=fed.y / u, offset=None if fed.offset is None else fed.offset / u), T * u
    return likelihood_of(fed, rows.family, own), T


def _columns(rows: ModelRows, kept: list[int], own: bool) -> tuple[Federation, np.ndarray]:
    """Return the rows with some columns, standardised, and T."""
    names, whole = [rows.names[j] for j in kept], rows.federation.X
    X = whole if kept == list(range(whole.shape[1])) else whole[:, kept]
    mean = X.mean(axis=0)
    X = X - mean
    scale = np.sqrt(np.einsum("ij,ij->j", X, X) / len(X))
    scale[scale <= 1e-13 * np.abs(mean)] = 1.0  # a constant column
    if not (own or INTERCEPT in names):
        X, mean = X + mean, np.zeros_like(mean)
    T = np.diag(1.0 / scale)
    if INTERCEPT in names:
        T[0, 1:] = -mean[1:] / scale[1:]
        X[:, 0] = 1.0  # it is the first
    X /= scale
    return replace(rows.federation, X=X, columns=None), T


def _several(rows: ModelRows, kept: list[int]) -> tuple[MultinomialLikelihood, np.ndarray]:
    """Return `standardised` of several classes, for columns of all of them."""
    p, C = rows.federation.d, len(rows.classes)
    columns = columns_of_all(kept, C - 1, p)
    names = tuple(rows.names[j].removeprefix(f"{rows.classes[1]}: ") for j in columns)
    one = rows._replace(names=names, classes=(), federation=replace(rows.federation, X=rows.federation.X[:, columns]))
    fed, T = _columns(one, list(range(len(columns))), own=False)
    return MultinomialLikelihood(fed, C), np.kron(np.eye(C - 1), T)


def _expected(fit: Fit, kept: list[int]) -> np.ndarray:
    """Return the coefficients that are kept when the others become zero, by the covariances of a fit: (q,)."""
    b, V = fit.T @ fit.found.b[0], fit.T @ fit.found.inverse[0] @ fit.T.T
    gone = [j for j in range(b.size) if j not in kept]
    return np.asarray(b[kept] - V[np.ix_(kept, gone)] @ np.linalg.solve(V[np.ix_(gone, gone)], b[gone]))


def _minimum(problem: Likelihood, rows: Rows, kept: list[int], near: np.ndarray | None = None) -> Minima:
    """Minimise from a point near by; else from zero, and the logarithm of the mean for a logarithmic intercept."""
    if near is not None and np.isfinite(near).all():
        found = certified_minimum(problem, near[None])
        if found.attained[0]:
            return found
    start = np.zeros((1, problem.size))
    if rows.names[kept[0]] == INTERCEPT and problem.family.link == "log":
        start[0, 0] = problem.log_mean
    return certified_minimum(problem, start)


def need_independent(problem: Likelihood, names: tuple[str, ...], own: bool) -> None:
    """Raise ValueError, naming a column that the others determine, unless the columns are independent.

    With site intercepts columns are less their means over each client: one that never varies within a client is
    determined by the intercepts.
    """
    p, G = problem.size, problem.gram()
    scale = np.sqrt(np.diagonal(G))
    for j in range(p):
        if scale[j] <= np.sqrt(DEPENDENT * problem.n):
            cure = "leave it out, or take one common intercept" if problem.site_intercepts else "leave it out"
            raise bad(
                f"analyse: column {names[j]!r}", "vary" + (" within a client" if own else ""), "it does not", cure
            )
        if j == 0:
            continue
        S = G[: j + 1, : j + 1] / scale[: j + 1] / scale[: j + 1, None]
        weights = np.linalg.lstsq(S[:j, :j], S[:j, j], rcond=None)[0]
        if 1.0 - S[:j, j] @ weights <= DEPENDENT:
            others = [names[i] for i in np.flatnonzero(np.abs(weights) > 1e-6)]
            raise bad(
                f"analyse: column {names[j]!r}", "tell something beside the others",
                f"a combination of {', '.join(others[:6])}", f"leave one of them out: drop=[{names[j]!r}]",
            )  # fmt: skip


def _separated(rows: ModelRows, recession: Recession, T: np.ndarray, found: Minima) -> ValueError:
    """Return the error that says that no finite estimate exists: columns along which N falls for ever, and clients."""
    moved, fed = recession.moved, rows.federation
    if rows.family.loss not in ("Logistic", "Poisson", "NegativeBinomial"):
        must, cure = "be found", "measure the response and the columns in units nearer to one"
        return bad("analyse: the estimate", must, "a search that overflows, or ends in rounding", cure)
    # without a direction of recession: where J is flat
    v = T @ (recession.direction if moved.size else np.linalg.eigh(found.J[0])[1][:, 0])
    size = np.abs(v) * np.maximum(fed.X.std(axis=0), 1e-300)
    moving = [rows.names[j] for j in np.argsort(-size) if size[j] > 0.05 * size.max() and rows.names[j] != INTERCEPT]
    where = fed.labels[np.unique(np.searchsorted(fed.ptr, moved, side="right") - 1)]
    at = f", in {moved.size} rows of {', '.join(map(str, where[:6]))}" if moved.size else ""
    cure = "leave out what separates the responses, merge levels with few rows, or take intervals='profile', firth=True"
    what = f"the likelihood rises for ever along {', '.join(moving[:6]) or INTERCEPT}{at}"
    return bad("analyse: the estimate", "be finite (the responses are separated)", what, cure)
