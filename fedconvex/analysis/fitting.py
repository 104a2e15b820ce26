"""The fit of a model, and of smaller ones, its columns standardised in between."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.analysis.likelihood import LikelihoodProblem
from fedconvex.analysis.model_rows import INTERCEPT, ModelRows
from fedconvex.analysis.newton_search import Minima, certified_gap, inverse_of, minimise
from fedconvex.analysis.response_families import pearson_sum

DEPENDENT = 1e-10  # of a column's variance, what others leave of it


class Fit(NamedTuple):
    """A fitted model, its columns standardised."""

    problem: LikelihoodProblem
    found: Minima
    T: np.ndarray  # (p, p) b = T b~
    parameters: int  # site intercepts among them
    n: float
    phi: float
    pearson: float
    constants: float  # sum of c(y, .) of the log-likelihood
    expected_inverse: np.ndarray  # (p, p)
    null: float  # least N with intercepts and offsets only


def fitted(rows: ModelRows, own: bool) -> Fit:
    """Fit the model.

    Raises
    ------
    ValueError
        For collinear columns, too few rows, or separation.
    """
    every = list(range(len(rows.names)))
    problem, T = standardised(rows, every, own)
    if problem.silent.all():
        cure = "take one common intercept"
        raise bad("analyse: responses", "differ within a client that has its own intercept", "no such client", cure)
    if np.ptp(rows.federation.y) == 0.0:
        raise bad(f"analyse: {rows.event}", "vary", f"{rows.federation.y[0]:g} in every row")
    need_independent(problem, rows.names, own)
    found = _minimum(problem, rows, every)
    if not found.attained[0]:
        raise _separated(rows, T @ np.linalg.eigh(found.J[0])[1][:, 0])  # where J is flat, N falls for ever
    b, K = found.b[0], problem.federation.K
    told = [(problem.at(k, b), problem.own_rows(k)[1]) for k in range(K)]
    heard = [(a, y) for (a, y), silent in zip(told, problem.silent, strict=True) if not silent]
    pearson = sum(pearson_sum(rows.family, a.z, y, a.s) for a, y in heard)
    constant = rows.family.row_constant
    constants = 0.0 if constant is None else sum(float(a.s @ constant(y)) for a, y in told)
    n, p = problem.n, problem.size + (K if own else 0)
    if rows.family.dispersion != "1" and n <= p:
        raise bad("analyse: rows", f"be more than the {p} coefficients", f"{n:g}", "leave columns out")
    phi = rows.family.phi(float(found.value[0]), pearson, n, p)
    expected = np.sum([problem.client_information(k, b) for k in range(K)], axis=0)
    null = restricted(rows, [j for j in every if rows.names[j] == INTERCEPT], own)[1]
    return Fit(problem, found, T, p, n, phi, pearson, constants, inverse_of(expected)[0], null)


def restricted(rows: ModelRows, kept: list[int], own: bool) -> tuple[np.ndarray, float, float]:
    """Return the minimum with some coefficients only, in the units of the columns (p,), its N, and the gap of N."""
    b = np.zeros(len(rows.names))
    problem, T = standardised(rows, kept or list(range(b.size)), own)
    if not kept:
        return b, float(problem.sums(b[None]).values[0]), 0.0
    found = _minimum(problem, rows, kept)
    b[kept] = T @ found.b[0]
    return b, float(found.value[0]), float(found.gap[0])


def standardised(rows: ModelRows, kept: list[int], own: bool) -> tuple[LikelihoodProblem, np.ndarray]:
    """Return the problem of some columns, divided by their standard deviations, and T with b = T b~.

    Their means are taken out where an intercept takes them up: one of the columns, or those of the clients.
    """
    names = [rows.names[j] for j in kept]
    X = rows.federation.X[:, kept]
    mean, scale = X.mean(axis=0), X.std(axis=0)
    scale[scale == 0.0] = 1.0
    if not own:
        mean *= float(INTERCEPT in names)
    T = np.diag(1.0 / scale)
    if INTERCEPT in names:
        mean[0] = 0.0  # it is the first
        T[0, 1:] = -mean[1:] / scale[1:]
    fed = replace(rows.federation, X=np.ascontiguousarray((X - mean) / scale), columns=None)
    return LikelihoodProblem(fed, rows.family, site_intercepts=own), T


def _minimum(problem: LikelihoodProblem, rows: ModelRows, kept: list[int]) -> Minima:
    """Minimise from zero, but for the intercept of a logarithmic link: from the logarithm of the mean."""
    start, fed = np.zeros((1, problem.size)), problem.federation
    if rows.names[kept[0]] == INTERCEPT and problem.family.link == "log":
        s = np.ones(fed.n) if fed.sample_weight is None else fed.sample_weight
        o = np.zeros(fed.n) if fed.offset is None else fed.offset
        total = float(s @ fed.y)
        start[0, 0] = np.log(total / float(s @ np.exp(o))) if total > 0.0 else 0.0
    return certified_minimum(problem, start)


def certified_minimum(problem: LikelihoodProblem, start: np.ndarray) -> Minima:
    """Minimise N from a start (1, p), with a gap that allows for the rounding of the gradient.

    A gradient that is off is that of N plus a linear function, whose decrement adds to lambda. Far out along a
    direction in which N falls for ever lambda is rounding, and without this a minimum would seem to be attained.
    """
    found = minimise(problem.sums, start, problem.self_concordance, problem.spread)
    off = problem.gradient_rounding(found.b[0])
    size = np.sqrt(found.decrement) + np.sqrt(off @ np.abs(found.inverse[0]) @ off)
    gap = np.where(found.attained, certified_gap(size**2, found.kappa), np.inf)
    return found._replace(gap=gap)


def need_independent(problem: LikelihoodProblem, names: tuple[str, ...], own: bool) -> None:
    """Raise ValueError, naming a column that the others determine, unless the columns are independent.

    With site intercepts columns are less their means over each client: one that never varies within a client is
    determined by the intercepts.
    """
    fed, p = problem.federation, problem.size
    G = np.zeros((p, p))
    for k in range(fed.K):
        X, _, s, _ = problem.own_rows(k)
        X = X - (s @ X) / s.sum() if own else X
        G += (X.T * s) @ X
    scale = np.sqrt(np.diagonal(G))
    for j in range(p):
        if scale[j] <= np.sqrt(DEPENDENT * problem.n):
            cure = "leave it out, or take one common intercept" if own else "leave it out"
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


def _separated(rows: ModelRows, direction: np.ndarray) -> ValueError:
    """Return the error that says that no finite estimate exists, with the columns along which N falls for ever."""
    size = np.abs(direction) * np.maximum(rows.federation.X.std(axis=0), 1e-300)
    moving = [rows.names[j] for j in np.argsort(-size) if size[j] > 0.05 * size.max() and rows.names[j] != INTERCEPT]
    cure = "leave out what separates the responses, or merge levels with few rows"
    what = f"the likelihood rises for ever along {', '.join(moving[:6]) or INTERCEPT}"
    return bad("analyse: the estimate", "be finite (the responses are separated)", what, cure)
