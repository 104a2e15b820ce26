"""`analyse`: a generalised linear model of several clients' rows, with its uncertainty, from sums over clients.

McCullagh and Nelder, "Generalized linear models", 2nd edition, 1989. Robust covariances: White, Econometrica 48, 1980;
MacKinnon and White, J. Econometrics 29, 1985; Liang and Zeger, Biometrika 73, 1986. Of a client only sums over its rows
are used: N_k, its gradient and Hessian at each of 5 to 10 models, and sums for dispersion and covariance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedconvex._check import among, bad, flag, real
from fedconvex.analysis import covariances
from fedconvex.analysis.answer import Analysis, Fit
from fedconvex.analysis.likelihood import LikelihoodProblem
from fedconvex.analysis.model_rows import INTERCEPT, ModelRows, model_rows
from fedconvex.analysis.newton_search import Minima, inverse_of, minimise
from fedconvex.analysis.response_families import Family, pearson_sum
from fedconvex.federation import Federation

ROBUST = ("HC0", "HC1", "HC2", "HC3", "client")
DEPENDENT = 1e-10  # of a column's variance, what others leave of it


def analyse(
    data: Any,
    target: str,
    client: str,
    *,
    family: str | Family | None = None,
    site_intercepts: bool = False,
    robust: str | None = None,
    level: float = 0.95,
    offset: str | None = None,
    exposure: str | None = None,
    weight: str | None = None,
    reference: Mapping[str, Any] | None = None,
    **reading: Any,
) -> Analysis:
    """Fit a generalised linear model to the rows of all clients by maximum likelihood, with standard errors.

    Parameters
    ----------
    data, target, client
        As `fedconvex.tables.read_table`; rows with a missing cell in a column that is used are left out and counted.
    family : str or Family, optional
        "gaussian", "logistic", "poisson", "quasipoisson", "gamma" or such as ``negative_binomial(theta)``; default
        logistic for two classes, gaussian for measurements.
    site_intercepts : bool
        Give every client an intercept of its own, which stays there.
    robust : {"HC0", "HC1", "HC2", "HC3", "client"}, optional
        A robust covariance; "client" is clustered by client (CR1).
    level : float
        Of intervals.
    offset, exposure, weight, reference
        Columns added to the score, as they are or by their logarithm; that count equal rows; levels to compare with.

    Raises
    ------
    ColumnProblems, ValueError, TypeError
        As `read_table`; if the response is none of the family, columns are collinear, or responses are separated.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.analysis import analyse
    >>> age, ward = np.arange(20.0, 80.0, 0.2) % 61.0, np.repeat(["a", "b", "c"], 100)
    >>> ill = np.where(age > 30.0 + 35.0 * np.sin(np.arange(300)), "yes", "no")
    >>> found = analyse({"age": age, "ward": ward, "ill": ill}, target="ill", client="ward")
    >>> found.names, np.round(found.estimates, 3).tolist(), np.round(found.standard_errors, 3).tolist()
    (('Intercept', 'age'), [-1.313, 0.044], [0.258, 0.007])
    """
    if robust is not None:
        among("analyse: robust", robust, ROBUST)
    if (level := real("analyse: level", level, low=0.0, high=1.0, strict=True)) == 1.0:
        raise bad("analyse: level", "be below 1: such an interval is the whole line", level)
    own = flag("analyse: site_intercepts", site_intercepts)
    rows = model_rows(
        data, target, client, family, site_intercepts=own, offset=offset, exposure=exposure, weight=weight,
        reference=reference, reading=reading,
    )  # fmt: skip
    fit = fitted(rows, own)
    V = _covariance(rows, fit, own, robust)
    return Analysis(rows, fit, V, robust, level, own)


def fitted(rows: ModelRows, own: bool) -> Fit:
    """Fit the model, standardised columns in between, and return it in the units of the columns.

    Raises
    ------
    ValueError
        For collinear columns, too few rows, or separation.
    """
    T = _units(rows.federation.X, own)
    problem = LikelihoodProblem(_transformed(rows.federation, T), rows.family, site_intercepts=own)
    if problem.silent.all():
        cure = "take one common intercept"
        raise bad("analyse: responses", "differ within a client that has its own intercept", "no such client", cure)
    need_independent(problem, rows.names, own)
    found = minimise(problem.sums, _start(problem, own)[None], problem.self_concordance, problem.spread)
    if not found.attained[0]:
        raise _separated(rows, T @ found.direction[0])
    b, p = found.b[0], problem.size + (problem.federation.K - int(problem.silent.sum()) if own else 0)
    told = [(problem.at(k, b), problem.own_rows(k)[1]) for k in range(problem.federation.K)]
    heard = [(a, y) for (a, y), silent in zip(told, problem.silent, strict=True) if not silent]
    pearson = sum(pearson_sum(rows.family, a.z, y, a.s) for a, y in heard)
    constant = rows.family.row_constant
    constants = 0.0 if constant is None else sum(float(a.s @ constant(y)) for a, y in told)
    n = problem.n
    if rows.family.dispersion != "1" and n <= p:
        raise bad("analyse: rows", f"be more than the {p} coefficients", f"{n:g}", "leave columns out")
    phi = rows.family.phi(float(found.value[0]), pearson, n, p)
    expected = np.sum([problem.client_information(k, b) for k in range(problem.federation.K)], axis=0)
    steep = sum(np.abs(a.X).T @ (a.s * np.abs(a.slopes)) for a, _ in heard)  # sums round to (8 + n^(1/2)) eps of it
    off = np.finfo(float).eps * (8.0 + np.sqrt(n)) * np.asarray(steep)
    rounding = float(np.sqrt(off @ np.abs(found.inverse[0]) @ off / phi)) if phi > 0.0 else 0.0
    inverse = inverse_of(expected)[0]
    return Fit(problem, found, T, p, n, phi, pearson, constants, inverse, _null(problem, own), rounding)


def _units(X: np.ndarray, own: bool) -> np.ndarray:
    """Return T with b = T b~ for standardised columns: X T, the mean taken out where there is an intercept."""
    p = X.shape[1]
    mean, scale = X.mean(axis=0), X.std(axis=0)
    if not own:
        mean[0], scale[0] = 0.0, 1.0
    scale[scale == 0.0] = 1.0
    T = np.diag(1.0 / scale)
    if not own:
        T[0, 1:] = -mean[1:] / scale[1:]
    return T if p else np.zeros((0, 0))


def _transformed(fed: Federation, T: np.ndarray) -> Federation:
    return replace(fed, X=fed.X @ T, columns=None)


def _start(problem: LikelihoodProblem, own: bool) -> np.ndarray:
    """Return zero, but for the intercept of a logarithmic link: the logarithm of the mean."""
    start, fed = np.zeros(problem.size), problem.federation
    if not own and problem.family.link == "log":
        s = np.ones(fed.n) if fed.sample_weight is None else fed.sample_weight
        o = np.zeros(fed.n) if fed.offset is None else fed.offset
        total = float(s @ fed.y)
        start[0] = np.log(total / float(s @ np.exp(o))) if total > 0.0 else 0.0
    return start


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


def _null(problem: LikelihoodProblem, own: bool) -> float:
    """Return the least N with an intercept (site intercepts) and offsets only; infinite estimates allowed."""
    fed, size = problem.federation, problem.size
    if own:
        return float(problem.sums(np.zeros((1, size))).values[0])
    alone = LikelihoodProblem(replace(fed, X=np.ones((fed.n, 1))), problem.family)
    found: Minima = minimise(alone.sums, _start(problem, own)[None, :1], alone.self_concordance, alone.spread)
    return float(found.value[0])


def _covariance(rows: ModelRows, fit: Fit, own: bool, robust: str | None) -> np.ndarray:
    """Return the covariance of the coefficients, in the units of their columns."""
    if robust is None:
        V = covariances.model(fit.expected_inverse, fit.phi)
    else:
        problem, inverse = fit.problem, fit.found.inverse[0]
        meats = []
        for k in range(problem.federation.K):
            a = problem.at(k, fit.found.b[0])
            if not problem.silent[k]:
                meats.append(covariances.meat(a.X, a.slopes, a.curvatures, a.s, inverse, own))
        kind = "CR1" if robust == "client" else robust
        V = covariances.robust(kind, inverse, covariances.added(meats), fit.n, fit.parameters)
    return fit.T @ V @ fit.T.T
