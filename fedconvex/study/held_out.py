"""Rows that a site holds out of `solve`, and what the model is worth on them: computed at the site, from its own rows.

Which rows these are depends on the study and the site only, so that every end knows
their number, and nobody else which.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.analysis.site_problems import LEAST
from fedconvex.loss_traits import traits
from fedconvex.models import LinearModel
from fedconvex.study.agreement import Study
from fedconvex.study.runs_asked import Question

_LEAST = 10  # held-out rows below which nothing is said
_Z = 1.959963984540054  # the normal distribution's quantile of 97.5 %


class Scores(NamedTuple):
    """Mean losses on a site's held-out rows; ``difference`` is what the site gains by the study's model.

    Attributes
    ----------
    rows : int
        Held-out rows.
    study, base, alone : float
        Of the study's model; of the mean response, or shares of the classes, of the site's training rows; of a model of
        the site's own with the same l2.
    difference, error : float
        Mean of (alone - study) over the rows, and its standard error.
    """

    rows: int
    study: float
    base: float
    alone: float
    difference: float
    error: float

    def words(self, site: str) -> str:
        """Return what the scores say to a site."""
        low, high = self.difference - _Z * self.error, self.difference + _Z * self.error
        span = f"{low:.3f} to {high:.3f}"
        verdict = f"no clear difference for {site} (gain {self.difference:.3f}, {span})"
        if low > 0.0:
            verdict = f"{site} gains {self.difference:.3f} ({span})"
        elif high < 0.0:
            verdict = f"{site} loses {-self.difference:.3f} (gain {span})"
        losses = f"{self.study:.3f}, alone {self.alone:.3f}, without features {self.base:.3f}"
        return f"{site}: mean loss on {self.rows} held-out rows {losses}; {verdict}"


def held_out_count(rows: int, share: float) -> int:
    """Return how many of so many rows are held out."""
    return math.floor(rows * share)


def parted(study: Study, site: str, columns: Mapping[str, np.ndarray], share: float) -> tuple[Any, Any]:
    """Return the columns of the rows that are trained on, and of those that are held out."""
    n = len(next(iter(columns.values())))
    key = hashlib.sha256(f"{study.digest} held out at {site}".encode()).digest()
    order = np.random.default_rng(np.frombuffer(key, dtype=np.uint64)).permutation(n)
    test = np.sort(order[: held_out_count(n, share)])
    train = np.setdiff1d(np.arange(n), test)
    return tuple({name: a[at] for name, a in columns.items()} for at in (train, test))  # type: ignore[return-value]


class Losses(NamedTuple):
    """Losses of held-out rows (n,), of the study's model, without features, and of the site's own model."""

    study: np.ndarray
    base: np.ndarray
    alone: np.ndarray

    def scores(self) -> Scores:
        """Return what is told of them."""
        gain = self.alone - self.study
        study, base, alone = (float(a.mean()) for a in self)
        error = float(gain.std(ddof=1) / math.sqrt(len(gain)))
        return Scores(len(gain), study, base, alone, float(gain.mean()), error)

    def singles_out(self, earlier: list[Losses]) -> bool:
        """Whether the model's mean is that of few rows, or differs from an earlier one by few: some are made for it."""
        return any(_is_of_few(a) for a in (self.study, *(np.abs(self.study - one.study) for one in earlier)))


def _is_of_few(a: np.ndarray) -> bool:
    """Whether numbers that are not negative are made up by fewer than five, in effective number."""
    top = float(a.max())
    return top > 0.0 and not (a / top).sum() ** 2 >= LEAST * np.square(a / top).sum()


def losses_at(question: Question, model: LinearModel, site: str, guards: Any, train: Any, test: Any) -> Losses | None:
    """Return the losses of held-out rows, None where these are few.

    Parameters
    ----------
    question : Question
        "solve".
    model : LinearModel
        The study's.
    site, guards
        Whose rows these are, and what they must be.
    train, test : mapping from name to array
        Columns as prepared.
    """
    rows = len(next(iter(test.values())))
    if rows < _LEAST:
        return None
    fitted = question.rows(train, site, guards)
    asked = question.rows(test, site, replace(guards, rows=0, events=0, level=0, parameters=1e9))
    if model.feature_names != question.plan.feature_names or np.shape(model.coef) != (question.features - 1,):
        raise bad("scores: model", "have the features of the study", ", ".join(model.feature_names)[:200])
    alone = question.make(fitted)
    loss, X, y = alone.loss, asked.X, asked.y
    raw = X[:, :-1] * question.plan.scale + question.plan.center
    base = np.full(rows, base_score(loss, fitted.y))
    return Losses(*(losses_of(loss, z, y) for z in (raw @ model.coef + model.intercept, base, X @ alone.solve().w)))


def losses_of(loss: Any, z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the loss of every row."""
    return np.array([loss.value(float(a), float(b)) for a, b in zip(z, y, strict=True)])


def base_score(loss: Any, y: np.ndarray) -> float:
    """Return the best score without features: the mean, or the log odds of the classes -1 and +1."""
    share = float((y > 0.0).mean())
    return float(y.mean()) if traits(loss).quadratic else math.log(share) - math.log1p(-share)
