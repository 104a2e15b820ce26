"""How well a fitted model describes each client's rows: discrimination and calibration, on the rows of the fit.

Calibration: Cox, Biometrika 45, 1958; van Calster et al., J. Clinical Epidemiology 74, 2016.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedconvex.analysis.cox import CoxLikelihood
from fedconvex.analysis.likelihood import LikelihoodProblem, certified_minimum
from fedconvex.analysis.response_families import Family
from fedconvex.families.survival import hazard_checks
from fedconvex.federation import Federation

BINS = 10


class ClientFit(NamedTuple):
    """One client; nan where there is nothing to say."""

    client: str
    rows: int
    mean: float  # of the responses, by weights; for Cox events
    expected: float  # by the model
    c_statistic: float
    slope: float  # of the scores, refitted at the client with an intercept: 1 where the model is calibrated
    slope_error: float


def client_fits(found: Any) -> list[ClientFit]:
    """Return the fit at each client of an analysis; none where rows are out of reach, or responses separated."""
    problem, K = found.fit.problem, range(found.rows.federation.K)
    if isinstance(problem, CoxLikelihood):
        return [_survival(found, k) for k in K]
    reached = isinstance(problem, LikelihoodProblem) and found.fit.recession is None
    return [_responses(found, k) for k in K] if reached else []


def _survival(found: Any, k: int) -> ClientFit:
    problem, fed = found.fit.problem.survival, found.rows.federation
    counts = hazard_checks.pair_counts(problem, found.fit.found.b[0], clients=[k])
    events = float(problem.client_events[k])
    return ClientFit(str(fed.labels[k]), int(fed.sizes[k]), events, np.nan, counts.concordance, np.nan, np.nan)


def _responses(found: Any, k: int) -> ClientFit:
    problem, fed, family = found.fit.problem, found.rows.federation, found.rows.family
    z, y, s = _scores(found, k)
    if not s.sum() > 0.0 or problem.silent[k]:
        mean = float(np.average(y, weights=s)) * found.fit.unit if s.sum() > 0.0 else np.nan
        return ClientFit(str(fed.labels[k]), int(fed.sizes[k]), mean, *[np.nan] * 4)
    mean, expected = (float(np.average(v, weights=s)) * found.fit.unit for v in (y, family.mean(z)))
    c, slope, error = np.nan, np.nan, np.nan
    if family.name == "logistic" and np.ptp(y[s > 0.0]) > 0.0:
        c = _concordance(z, y, s)
        slope, error = _refitted(fed.subset([k]), family, z)
    return ClientFit(str(fed.labels[k]), int(fed.sizes[k]), mean, expected, c, slope, error)


def _concordance(z: np.ndarray, y: np.ndarray, s: np.ndarray) -> float:
    """Return the share of pairs of a one and a zero, by weights, that scores order rightly; ties count one half."""
    _, at = np.unique(z, return_inverse=True)
    ones, zeros = (np.bincount(at, weights=s * (y == v), minlength=at.max() + 1) for v in (1.0, 0.0))
    below = np.cumsum(zeros) - 0.5 * zeros
    return float(ones @ below / (ones.sum() * zeros.sum()))


def _refitted(one: Federation, family: Family, z: np.ndarray) -> tuple[float, float]:
    """Return the slope of one client's scores with an intercept, and its standard error; nan where it is not finite."""
    scale = float(np.std(z))
    if not scale > 0.0:
        return np.nan, np.nan
    rows = replace(one, X=((z - z.mean()) / scale)[:, None], offset=None, columns=None)
    again = certified_minimum(LikelihoodProblem(rows, family, site_intercepts=True), np.full((1, 1), scale))
    if not again.attained[0]:
        return np.nan, np.nan
    return float(again.b[0, 0]) / scale, float(np.sqrt(again.inverse[0, 0, 0])) / scale


def calibration_bins(found: Any) -> list[tuple[float, float, float]]:
    """Return (weight, mean prediction, share of ones) of ten groups of rows of all clients, by prediction."""
    parts = [_scores(found, k) for k in range(found.rows.federation.K)]
    z, y, s = (np.concatenate([part[i] for part in parts]) for i in range(3))
    order = np.argsort(z, kind="stable")
    p = found.rows.family.mean(z)
    groups = [g for g in np.array_split(order[s[order] > 0.0], BINS) if g.size]
    return [(float(s[g].sum()), _mean(p[g], s[g]), _mean(y[g], s[g])) for g in groups]


def _mean(v: np.ndarray, s: np.ndarray) -> float:
    return float(np.average(v, weights=s))


def _scores(found: Any, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    at = found.fit.problem.at(k, found.fit.found.b[0])
    return at.z, found.fit.problem.own_rows(k)[1], at.s
