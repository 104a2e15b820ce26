"""Cox's partial likelihood in the form of `LikelihoodProblem`: every client, and every stratum in it, by itself.

N is self-concordant with the diameter of the widest risk set. Robust covariances: Lin and Wei, JASA 84, 1989.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from fedconvex._check import bad, wrong_type
from fedconvex.analysis.likelihood import Alone, alone
from fedconvex.analysis.response_families import Family
from fedconvex.families.survival import hazard_checks
from fedconvex.families.survival.certified_fit import rounding_of
from fedconvex.families.survival.monotone import monotone_direction
from fedconvex.families.survival.problem import SurvivalProblem
from fedconvex.families.survival.survival_rows import SurvivalFederation, outcomes
from fedconvex.problems.protocol import Derivatives

_SEEN = {"1": True, "0": False, "1.0": True, "0.0": False, "true": True, "false": False, "yes": True, "no": False}


@dataclass(frozen=True, repr=False)
class CoxFamily(Family):
    """Proportional hazards: no function of single rows."""

    ties: str = "efron"


def _no_row(*_: Any) -> np.ndarray:
    raise wrong_type("family cox", "be summed over risk sets", "single rows")


COX = CoxFamily(
    "cox", "PartialLikelihood", "log hazard", _no_row, _no_row, _no_row, _no_row, _no_row, _no_row, 1.0, "1", 0,
    "hazard ratio", np.zeros_like, _no_row, lambda y: "",
)  # fmt: skip


def cox(ties: str) -> CoxFamily:
    """Return the family with Efron's or Breslow's ties."""
    return replace(COX, ties=ties)


class CoxLikelihood:
    """N, its derivatives and what an inference asks of clients; N is minus the log partial likelihood."""

    def __init__(self, federation: SurvivalFederation, family: CoxFamily) -> None:
        self.federation, self.family = federation, family
        self.survival = SurvivalProblem(federation, family.ties)
        self.site_intercepts, self.self_concordance = False, 1.0
        self.size = self.parameters = federation.d
        self.log_mean = self.constants = 0.0  # no intercept; the log-likelihood is -N

    @property
    def n(self) -> float:
        """Number of rows."""
        return float(self.federation.n)

    @property
    def events(self) -> int:
        """Number of events."""
        return int(self.survival.client_events.sum())

    def concordance(self, b: np.ndarray) -> float:
        """Return Harrell's C, ties one half, of pairs within a client and a stratum."""
        return hazard_checks.pair_counts(self.survival, b).concordance

    def drift(self, b: np.ndarray, centre: float | None = None) -> hazard_checks.Proportionality:
        """Return sums over events with times less their mean, or another centre."""
        if centre is None:
            total, events = hazard_checks.event_times_sum(self.survival)
            centre = total / events
        return hazard_checks.proportionality_sums(self.survival, b, centre=centre)

    def row_scores(self, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the score residuals of rows (n, p), and their weights."""
        return hazard_checks.score_residuals(self.survival, b), np.ones(self.federation.n)

    @cached_property
    def silent(self) -> np.ndarray:
        """Clients without an event, (K,)."""
        return np.asarray(self.survival.client_events == 0)

    def sums(self, B: np.ndarray) -> Derivatives:
        """Return N, grad N and hess N at models B (R, p): one round."""
        with np.errstate(all="ignore"):  # far out, where a search turns back
            found = [self.survival.totals(b) for b in B]
        return Derivatives(*(np.array([part[i] for part in found]) for i in range(3)))

    def spread(self, inverses: np.ndarray) -> np.ndarray:
        """Return bounds of (d'A d)^(1/2) over differences within risk sets, (R,), for A (R, p, p): one round."""
        clients = np.tile(np.arange(self.federation.K), (len(inverses), 1))
        return np.asarray(self.survival.client_spreads(inverses, clients).max(axis=1))

    def gradient_rounding(self, b: np.ndarray) -> np.ndarray:
        """Return how far entries of the computed grad N may be off, (p,)."""
        return rounding_of(self.survival, b, dict(enumerate(self.survival.passes(b))))[0]

    def information(self, b: np.ndarray) -> np.ndarray:
        """Return the Hessian of N: there is no other information."""
        return np.asarray(self.survival.totals(b)[2])

    @property
    def varies(self) -> bool:
        """Whether times differ."""
        return bool(np.ptp(self.federation.y) > 0.0)

    def value_rounding(self, b: np.ndarray) -> float:
        """Return how far the computed N may be off."""
        return self.survival.rounding(b)

    def roundings(self, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how far gradients and N at models (R, p) may be off, (R, p) and (R,)."""
        return np.array([self.gradient_rounding(b) for b in B]), np.array([self.value_rounding(b) for b in B])

    def pearson(self, b: np.ndarray) -> float:
        """Return 0: there is no dispersion."""
        return 0.0

    def alone(self) -> list[Alone | None]:
        """Return the estimates of every client alone; None where a client has none."""
        found: list[Alone | None] = []
        for k in range(self.federation.K):
            rows = cast(SurvivalFederation, self.federation.subset([k]))
            found.append(None if self.silent[k] else alone(CoxLikelihood(rows, self.family)))
        return found

    def gram(self) -> np.ndarray:
        """Return X'X, columns less their means in the strata of every client."""
        X = self.survival.risk.X
        return np.asarray(X.T @ X)

    def covariance(self, b: np.ndarray, inverse: np.ndarray, kind: str) -> np.ndarray:
        """Return J^-1 M J^-1: M the squares of the score residuals of rows (HC0), or of clients' sums (client).

        Raises
        ------
        ValueError
            For another kind, or one client.
        """
        if kind == "client":
            if self.federation.K < 2:
                raise bad("robust='client'", "have at least 2 clients", self.federation.K, "take HC0")
            U = np.array([part.gradient for part in self.survival.passes(b)])
        elif kind == "HC0":
            U = hazard_checks.score_residuals(self.survival, b)
        else:
            raise bad("analyse: robust", "be HC0 or client for family 'cox'", repr(kind))
        return np.asarray(inverse @ (U.T @ U) @ inverse)

    def no_minimum(self, names: Sequence[str], J: np.ndarray) -> ValueError:
        """Return the error that says why no finite estimate exists."""
        found = monotone_direction(self.survival)
        if found is None:
            what, cure = "columns are collinear wherever an event happens", "leave one of them out"
        else:
            what = f"the likelihood rises for ever along {', '.join(names[j] for j in found.columns)}"
            cure = "leave out what orders the events, or merge levels with few events"
        return bad("analyse: the estimate", "be finite (the partial likelihood is monotone)", what, cure)


def outcomes_of(
    frame: Any, time: np.ndarray, event: str, entry: str | None, strata: str | None, unit: float = 1.0
) -> np.ndarray:
    """Return times, events, entry times and strata of the rows of a table; times are divided by a unit.

    Raises
    ------
    ValueError
        If events are other than 0 and 1, true and false, or yes and no.
    """
    column, level = event_column(event)
    cells = np.array([str(c) for c in frame.text(column).tolist()])
    if level is not None:
        seen = cells == level
        if not seen.any():
            raise bad(f"analyse: event {event!r}", f"name a level of {column!r}", ", ".join(np.unique(cells)[:6]))
    else:
        if strange := [c for c in np.unique(cells) if c.lower() not in _SEEN]:
            cure = f"name the level that is the event: event='{column}={strange[-1]}'"
            raise bad(f"analyse: event {column!r}", "hold 0 and 1, true and false, or yes and no", strange[0], cure)
        seen = np.array([_SEEN[c.lower()] for c in cells])
    names = None if strata is None else [str(c) for c in frame.text(strata).tolist()]
    late = None if entry is None else frame.numbers(entry) / unit
    return outcomes(time / unit, seen, late, names)


def event_column(event: str) -> tuple[str, str | None]:
    """Return the column of "column" or "column=level", and the level."""
    column, _, level = event.rpartition("=")
    return (column, level) if column else (event, None)
