"""What a site makes of its own rows in an analysis: a likelihood in the columns of a question, and what guards look at.

Weights of rows may be far from equal, as far out where most scores are certain. What is told must not be made of fewer
rows than the site's guard says, in effective number (sum h)^2/sum h^2 of the weights h that its rows have in it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from fedconvex.analysis import covariances
from fedconvex.analysis.cox import CoxLikelihood
from fedconvex.analysis.likelihood import LikelihoodProblem
from fedconvex.analysis.multinomial import MultinomialLikelihood
from fedconvex.families.survival.problem import SurvivalProblem
from fedconvex.families.survival.survival_rows import SurvivalFederation
from fedconvex.federation import Federation
from fedconvex.problems.protocol import COEFFICIENTS, ClientWeights, client_weights
from fedconvex.remote.messages import Refused

LEAST = 5.0  # rows that make up an answer, by default
_CURE = " (Guards(answer=...))"


@dataclass(frozen=True, eq=False, repr=False)
class GuardedRows(Federation):
    """A site's rows, with the least effective number of them that makes up an answer."""

    least: float = LEAST

    carried: ClassVar[tuple[str, ...]] = ("least",)


@dataclass(frozen=True, eq=False, repr=False)
class GuardedTimes(SurvivalFederation):
    """A site's rows with times and events, with the least effective number of them that makes up an answer."""

    least: float = LEAST

    carried: ClassVar[tuple[str, ...]] = (*SurvivalFederation.carried, "least")


def guarded(rows: Federation, least: float) -> Federation:
    """Return a site's rows with its guard."""
    kind: Any = GuardedTimes if isinstance(rows, SurvivalFederation) else GuardedRows
    return kind(**{f.name: getattr(rows, f.name) for f in fields(rows)}, least=least)  # type: ignore[no-any-return]


class _Guarded:
    """What the problems of all sites have."""

    over_sites = "analysis.site_answers"
    blocks = 1  # of coefficients, one for each class but the reference
    federation: Any

    @property
    def number(self) -> int:
        """The site's place among clients."""
        return int(getattr(self.federation, "number", 0))

    @property
    def least(self) -> float:
        """Rows that make up an answer."""
        return float(getattr(self.federation, "least", LEAST))

    def few(self, weights: np.ndarray) -> bool:
        """Whether these are the weights of fewer rows than may make up an answer, in effective number."""
        total = float(weights.sum())
        return not total**2 >= self.least * float(weights @ weights)

    def refuse_few(self, weights: np.ndarray) -> None:
        """Raise `Refused` if these are the weights of too few rows."""
        if self.few(weights):
            raise self.few_rows()

    def few_rows(self) -> Refused:
        """Return the refusal of an answer that few rows would make up."""
        return Refused(
            f"its answer would be made of fewer than {self.least:g} rows; its operator may allow it ({_CURE})"
        )


class SiteRows(_Guarded, LikelihoodProblem):
    """A site's rows of a generalised linear model, as the plan of an analysis has them."""

    shared = ("family", "blocks")

    def __init__(self, federation: Federation, plan: Any) -> None:
        super().__init__(federation, plan.family)
        self.fingerprint, self.loss = plan.fingerprint, plan.loss

    def likelihood(self, X: np.ndarray, own: bool, constants: Any = 0.0) -> LikelihoodProblem:
        """Return the likelihood of the site's rows in other columns; constants are added to scores."""
        _, y, s, o = self.own_rows(self.number)
        fed = Federation.from_arrays(X, y, np.zeros(len(y), dtype=np.int64), sample_weight=s, offset=o + constants)
        return LikelihoodProblem(fed, self.family, site_intercepts=own)

    def facts(self, rows: LikelihoodProblem) -> tuple[float, ...]:
        """Return constants of the likelihood, sums of weights, responses, their squares, e^offset; whether silent."""
        _, y, s, o = rows.own_rows(0)
        return rows.constants, s.sum(), s @ y, s @ y**2, s @ np.exp(o), float(rows.silent[0])

    def is_few_at(self, rows: LikelihoodProblem, b: np.ndarray) -> bool:
        """Whether the Hessian at b is that of too few rows."""
        at = rows.at(0, b)
        return not rows.silent[0] and self.few(at.s * at.curvatures)

    def squares(self, rows: LikelihoodProblem, b: np.ndarray, A: np.ndarray) -> covariances.Meat:
        """Return sums of squares of scores, where no few rows make them up."""
        at = rows.at(0, b)
        X, own = covariances.centred(at.X, at.curvatures, at.s) if rows.site_intercepts else (at.X, 0.0)
        rest = np.maximum(1.0 - covariances.leverages(X, at.curvatures, A, own), covariances.CERTAIN)
        for weights in (at.s * at.slopes**2, at.s * (at.slopes / rest) ** 2) if not rows.silent[0] else ():
            self.refuse_few(weights)
        return rows.meat(b, A)

    def slopes_of(self, B: np.ndarray, constants: np.ndarray, own: bool) -> tuple[np.ndarray, ...]:
        """Return slopes and curvatures (n, 1) of the site's rows at a model of one block (1, p)."""
        at = self.likelihood(self.own_rows(self.number)[0], own, constants[0]).at(0, B[0])
        return at.slopes[:, None], at.curvatures[:, None]


class _Placed(_Guarded, ClientWeights):
    """What problems share whose likelihood is made for every question anew."""

    learns = COEFFICIENTS
    l2, penalty, free = 0.0, None, None
    shared = ("family", "blocks", "size")

    def __init__(self, federation: Federation, plan: Any) -> None:
        self.federation, self.family = federation, plan.family
        self.weights = client_weights("AnalysisPlan", None, federation)
        self.fingerprint, self.loss, self.blocks = plan.fingerprint, plan.loss, plan.blocks
        self.size = self.blocks * federation.d
        self.model_shape = (self.size,)

    def own_rows(self, k: int) -> tuple[np.ndarray, ...]:
        """Return the site's X (n, p), the only rows that are here."""
        return (self.federation.X,)

    def squares(self, rows: Any, b: np.ndarray, A: np.ndarray) -> covariances.Meat:
        """Return sums of squares of scores, of rows and of the site, where no few rows make them up."""
        U, s = rows.row_scores(b)
        self.refuse_few(s * np.einsum("ni,ij,nj->n", U, A, U))
        total, nothing = s @ U, np.zeros((rows.size, rows.size))
        return covariances.Meat((U.T * s) @ U, nothing, nothing, np.outer(total, total), 1.0, 0.0, 0.0)


class SiteTimes(_Placed):
    """A site's times and events: a stratum of Cox's model, or several."""

    def likelihood(self, X: np.ndarray, own: bool, constants: Any = 0.0) -> CoxLikelihood:
        """Return the partial likelihood of the site's rows in other columns."""
        fed, who = self.federation, np.zeros(len(X), dtype=np.int64)
        plain = Federation.from_arrays(X, fed.y, who)
        return CoxLikelihood(SurvivalFederation.around(plain, fed.event, fed.entry, fed.strata), self.family)

    def facts(self, rows: CoxLikelihood) -> tuple[float, ...]:
        """Return sums of rows, times, their squares, and events."""
        y = self.federation.y
        return 0.0, float(len(y)), y.sum(), y @ y, float(rows.events), 0.0

    def is_few_at(self, rows: CoxLikelihood, b: np.ndarray) -> bool:
        """Whether the events that are expected at b are expected of too few rows."""
        return self.few(rows.survival.passes(b)[0].expected)

    def slopes_of(self, B: np.ndarray, constants: np.ndarray, own: bool) -> tuple[np.ndarray, ...]:
        """Return expected less observed events of the rows (n, 1): the gradient is their sum with x."""
        if not hasattr(self, "_all"):
            self._all = SurvivalProblem(self.likelihood(self.federation.X, False).federation, self.family.ties)
        found, risk = self._all.sweep(0, B[0], second=False), self._all.risk
        return ((found.expected - risk.event)[:, None],)


class SiteClasses(_Placed):
    """A site's rows of several classes."""

    def likelihood(self, X: np.ndarray, own: bool, constants: Any = 0.0) -> MultinomialLikelihood:
        """Return the likelihood of the site's rows in other columns."""
        fed, who = self.federation, np.zeros(len(X), dtype=np.int64)
        plain = Federation.from_arrays(X, fed.y, who, sample_weight=fed.sample_weight)
        return MultinomialLikelihood(plain, self.blocks + 1)

    def facts(self, rows: MultinomialLikelihood) -> tuple[float, ...]:
        """Return sums of weights, of the places of classes, and of their squares."""
        y = self.federation.y
        return 0.0, rows.s.sum(), rows.s @ y, rows.s @ y**2, 0.0, 0.0

    def is_few_at(self, rows: MultinomialLikelihood, b: np.ndarray) -> bool:
        """Whether a class's block of the Hessian at b is that of too few rows."""
        m = rows.probabilities(b)
        return any(self.few(rows.s * m_c * (1.0 - m_c)) for m_c in m.T)

    def slopes_of(self, B: np.ndarray, constants: np.ndarray, own: bool) -> tuple[np.ndarray, ...]:
        """Return probabilities less hits, and m (1 - m), (n, C - 1) each, at a model of C - 1 blocks (C - 1, p)."""
        X = np.column_stack([self.federation.X, np.ones(self.federation.X.shape[0])])
        rows = self.likelihood(X, own)
        at = np.column_stack([B, constants]).ravel()
        m = rows.probabilities(at)
        return (m - rows.hit)[:, 1:], (m * (1.0 - m))[:, 1:]


PROBLEMS: dict[str, Any] = {"cox": SiteTimes, "multinomial": SiteClasses}  # else SiteRows
