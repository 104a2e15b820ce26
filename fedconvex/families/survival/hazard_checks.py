"""Numbers about a fitted Cox model, each from sums over clients: residuals, proportionality, concordance, baselines."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import among, bad, codes, vector, whole
from fedconvex.families.survival import risk_kernels


class Proportionality(NamedTuple):
    """Sums over event times t of what a test of proportional hazards needs: clients' parts are added."""

    score: np.ndarray  # (p,) sum of g(t) u_t, u_t a time's part of the score
    information: np.ndarray  # (p, p) sum of H_t: the Hessian J
    crossed: np.ndarray  # (p, p) sum of g(t) H_t
    squared: np.ndarray  # (p, p) sum of g(t)^2 H_t


class ProportionalityTest(NamedTuple):
    """Score tests of coefficients that drift with g(t): chi2 statistics, degrees of freedom, p-values."""

    statistics: np.ndarray  # (p,) of single columns, one degree of freedom each
    p_values: np.ndarray  # (p,)
    overall: float  # of all columns
    df: int
    p_value: float


class PairCounts(NamedTuple):
    """Pairs of an event and a row at risk beyond it, within strata, by who scores higher: clients' counts are added."""

    concordant: int  # the event's row does
    tied: int
    discordant: int

    @property
    def concordance(self) -> float:
        """Harrell's C, ties one half; NaN without pairs."""
        total = self.concordant + self.tied + self.discordant
        return (self.concordant + 0.5 * self.tied) / total if total else float("nan")


class Baseline(NamedTuple):
    """Breslow's cumulative baseline hazard of a stratum of a client."""

    client: Any
    stratum: Any  # None without strata
    times: np.ndarray  # (u,) event times, ascending
    events: np.ndarray  # (u,) how many at each
    at_risk: np.ndarray  # (u,) rows at risk at each
    cumulative_hazard: np.ndarray  # (u,)


def score_residuals(problem: Any, w: Any) -> np.ndarray:
    """Return the score residuals at a model (p,), a row (p,) for every row of the federation; they sum to -n grad F.

    Each is x_i less the mean of the risk set at its event, less what is expected of it (Therneau, Grambsch and Fleming
    1990); with Efron's ties, the mean over the d risk sets of an event time.
    """
    W, out = problem.flatten(w)[0], np.empty((problem.federation.y.size, problem.size))
    for k in range(problem.federation.K):
        lo, hi, _, _ = problem.risk.part(k)
        out[problem.risk.order[lo:hi]] = problem.risk.row_scores(k, W[0], problem.efron)
    return out


def clustered_covariance(problem: Any, w: Any) -> np.ndarray:
    """Return the robust covariance by client (CR0) at a fitted model (p,): J^-1 (sum_k U_k U_k') J^-1, (p, p).

    U_k is the score of client k, the sum of its rows' score residuals (Lin and Wei 1989, clusters for rows).
    """
    v = problem.flatten(w)[0][0]
    parts = problem.passes(v)
    U, J = np.array([part.gradient for part in parts]), np.sum([part.hessian for part in parts], axis=0)
    half = np.linalg.solve(J, U.T)
    return half @ half.T


def event_times_sum(problem: Any, transform: str = "identity", clients: Any = None) -> tuple[float, int]:
    """Return the sum of g(t) over the events of some clients, and their number: the mean is what g is centred at."""
    g = [_transformed(problem, k, transform) for k in _asked(problem, clients)]
    deaths = [problem.risk.deaths[slice(*problem.risk.part(k)[2:])] for k in _asked(problem, clients)]
    total = sum(float(d @ h) for d, h in zip(deaths, g, strict=True))
    return total, int(sum(int(d.sum()) for d in deaths))


def proportionality_sums(
    problem: Any, w: Any, transform: str = "identity", centre: float = 0.0, clients: Any = None
) -> Proportionality:
    """Return the sums over event times of some clients, with g(t) less a centre.

    Parameters
    ----------
    w : array (p,)
    transform : {"identity", "log"}
        g(t) = t, or log t. cox.zph's default, Kaplan-Meier, is of the times of all clients together.
    centre : float
        The test does not depend on it, but fewer digits cancel near the mean of g over events (`event_times_sum`).
    clients : array of int, optional
        Default all.
    """
    v = problem.flatten(w)[0][0]
    total = Proportionality(*(np.zeros((problem.size,) * n) for n in (1, 2, 2, 2)))
    for k in _asked(problem, clients):
        g = _transformed(problem, k, transform) - centre
        plain, once, twice = (problem.sweep(k, v, omega=omega) for omega in (None, g, g * g))
        part = Proportionality(-once.gradient, plain.hessian, once.hessian, twice.hessian)
        total = Proportionality(*(a + b for a, b in zip(total, part, strict=True)))
    return total


def proportional_hazards_test(sums: Proportionality) -> ProportionalityTest:
    """Return the score tests that coefficients do not drift with g(t), from sums over all clients at the fitted model.

    G_j^2/C_jj and G'C^-1 G with G the score and C = squared - crossed J^-1 crossed (Grambsch and Therneau 1994; exact
    variances, as cox.zph of R's survival has them since its version 3).

    Raises
    ------
    ValueError
        If C is singular: fewer event times than coefficients, say.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.families.survival.hazard_checks import Proportionality, proportional_hazards_test
    >>> one = np.ones((1, 1))
    >>> found = proportional_hazards_test(Proportionality(np.array([2.0]), one, 0.0 * one, one))
    >>> float(found.overall), found.df, round(found.p_value, 4)
    (4.0, 1, 0.0455)
    """
    from scipy.stats import chi2

    G, p = sums.score, sums.score.size
    C = sums.squared - sums.crossed @ np.linalg.solve(sums.information, sums.crossed)
    C = 0.5 * (C + C.T)
    scale = np.sqrt(np.maximum(np.diagonal(C), 0.0))
    if not (scale > 0.0).all() or np.linalg.eigvalsh(C / scale / scale[:, None])[0] <= 1e-12 * p:
        must, got = "have a variance of full rank", f"{p} coefficients"
        raise bad("proportional_hazards_test: sums", must, got, "are there as many event times as coefficients?")
    single, overall = (G / scale) ** 2, float(G @ np.linalg.solve(C, G))
    return ProportionalityTest(single, chi2.sf(single, 1), overall, p, float(chi2.sf(overall, p)))


def pair_counts(problem: Any, w: Any, clients: Any = None) -> PairCounts:
    """Return how scores order the pairs of some clients, at a model (p,): O(n log n).

    A pair is an event and a row of its stratum that is at risk then and has no event at that time.
    """
    risk, w = problem.risk, problem.flatten(w)[0][0]
    out = np.zeros(3, dtype=np.int64)
    for k in _asked(problem, clients):
        lo, hi, _, _ = risk.part(k)
        z = np.empty(hi - lo)
        risk_kernels.scores_of(risk.X[lo:hi], 0, hi - lo, w, z)
        for g in range(int(risk.segments[k]), int(risk.segments[k + 1])):
            a, b, first, last = int(risk.rows[g]), int(risk.rows[g + 1]), int(risk.times[g]), int(risk.times[g + 1])
            rank = np.unique(z[a - lo : b - lo], return_inverse=True)[1].astype(np.int64) + 1
            at = risk.at[a:b]
            by_first = np.argsort(-at[:, 0], kind="stable")
            tree = np.zeros(b - a + 2, dtype=np.int64)
            risk_kernels.count_pairs(
                rank,
                at,
                by_first,
                0,
                b - a,
                last - first,
                risk.start[first:last] - a,
                risk.deaths[first:last],
                tree,
                out,
            )
    return PairCounts(*(int(n) for n in out))


def baseline_hazards(problem: Any, w: Any, reference: Any = None, clients: Any = None) -> list[Baseline]:
    """Return Breslow's cumulative baseline hazards of the strata of some clients: times and counts of single rows.

    Parameters
    ----------
    w : array (p,)
    reference : array (p,), optional
        Features of the row whose hazard is the baseline; default zeros.
    clients : array of int, optional
        Default all.
    """
    w, risk, fed = problem.flatten(w)[0][0], problem.risk, problem.federation
    x = np.zeros(problem.size) if reference is None else vector("baseline_hazards: reference", reference, problem.size)
    out = []
    for k in _asked(problem, clients):
        _, _, first, _ = risk.part(k)
        found = risk.sweep(k, w, False, second=False)
        for g in range(int(risk.segments[k]), int(risk.segments[k + 1])):
            a, b = int(risk.times[g]), int(risk.times[g + 1])
            shift = float((x - risk.centres[g]) @ w)
            with np.errstate(over="ignore"):
                rise = found.hazard[a - first : b - first] * np.exp(shift - found.log_scale[a - first : b - first])
            stratum = None if fed.strata is None else fed.strata[risk.order[risk.rows[g]]]
            out.append(
                Baseline(fed.labels[k], stratum, risk.event_time[a:b], risk.deaths[a:b], risk.at_risk(g), rise.cumsum())
            )
    return out


def _asked(problem: Any, clients: Any) -> list[int]:
    K = problem.federation.K
    return list(range(K)) if clients is None else codes("clients", clients, most=K).tolist()


def _transformed(problem: Any, k: int, transform: str) -> np.ndarray:
    """Return g at the event times of client k."""
    among("transform", transform, ("identity", "log"))
    _, _, first, last = problem.risk.part(whole("client", k))
    t = problem.risk.event_time[first:last]
    if transform == "identity":
        return t
    if (t <= 0.0).any():
        raise bad("transform", "be 'identity' where events are at time 0", repr(transform))
    return np.log(t)
