"""How the strength of the tie between clients is chosen: cross-validation that every client takes part in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import check_random_state

from fedconvex._check import among, bad, vector, whole
from fedconvex.estimators.clients import folds, scores_of
from fedconvex.estimators.given_rows import Rows
from fedconvex.families.multitask.relations import Relation
from fedconvex.problems import Covariance, Independent, MeanRegularised, MultiTaskProblem, Pooled
from fedconvex.solvers import Solution

RELATIONS = ("joint", "mean", "local", "global")

_LAMS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # as in Smith et al. (2017)


class Choice(NamedTuple):
    """The chosen lam with the scores of all."""

    lam: float
    results: dict[str, np.ndarray]  # as GridSearchCV.cv_results_


def relation_of(who: str, kind: Any, lam: float | None, m: int) -> Relation:
    """Return R for m clients, by its name, as it is, or by a function of lam.

    Raises
    ------
    ValueError
        If lam is missing, there is no such name, or the function returns something else.
    """
    if isinstance(kind, Relation):
        return kind
    if lam is None:
        raise bad(f"{who}.lam", "be a number or 'cv'", "None", "None goes with a relationship object only")
    if callable(kind):
        found = kind(lam)
        if not isinstance(found, Relation):
            raise bad(f"{who}.relation", "return a relationship", f"{found!r}")
        return found
    among(f"{who}.relation", kind, RELATIONS)
    return {
        "joint": Covariance(0.5 * lam) if m > 1 else Independent(lam),
        "mean": MeanRegularised(0.5 * lam * m / (m + 1.0), 0.5 * lam / (m + 1.0)),
        "local": Independent(lam),
        "global": Pooled(lam),
    }[kind]


def solved(problem: MultiTaskProblem, tol: float, start: Solution | None, passes: int) -> Solution:
    """Return a solution with a gap of at most tol times the objective of zero models, unless passes are up."""
    zero = float(problem.value(np.zeros(problem.model_shape)))  # no solution is above it
    return problem.solve(tol * zero / (1.0 + zero) or tol, start, passes)


def chosen_lam(
    estimator: Any,
    rows: Rows,
    target: np.ndarray,
    strata: np.ndarray,
    problem_of: Callable[[Rows, np.ndarray, float], MultiTaskProblem],
    good: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> Choice:
    """Choose lam by cross-validation; the path of every fold goes from large to small.

    Parameters
    ----------
    estimator : estimator
        Its ``lams``, ``cv``, ``tol``, ``max_iter`` and ``random_state``.
    rows : Rows
    target : array (n,)
        Numeric labels.
    strata : array (n,)
        Classes that folds are even in.
    problem_of : function of rows, target and lam
    good : function of scores and targets
        How good each prediction is, the larger the better.

    Raises
    ------
    ValueError
        On settings out of range, or if every client has one row only.
    """
    who, passes = type(estimator).__name__, estimator.max_iter
    lams = np.sort(vector(f"{who}.lams", _LAMS if estimator.lams is None else estimator.lams))[::-1]
    if lams.size == 0 or lams[-1] <= 0.0:
        raise bad(f"{who}.lams", "be positive numbers, at least one", f"{lams.tolist()}")
    k, code = whole(f"{who}.cv", estimator.cv, low=2), np.unique(rows.clients, return_inverse=True)[1]
    fold = folds(code, strata, k, check_random_state(estimator.random_state))
    if (fold < 0).all():
        raise bad(f"{who}.lam", "be a number where every client has one sample only", "'cv'")
    parts = [j for j in range(k) if (fold == j).any()]
    scores, gaps = np.empty((len(parts), lams.size)), np.zeros(lams.size)
    for j, part in enumerate(parts):
        train, held, start = rows.some(fold != part), np.flatnonzero(fold == part), None
        for i, lam in enumerate(lams.tolist()):
            problem = problem_of(train, target[fold != part], lam)
            start = solved(problem, min(10.0 * estimator.tol, 0.1), start, passes)
            z = scores_of(rows.features(estimator.fit_intercept)[held], start.w, code[held])
            scores[j, i] = _mean_over_clients(good(z, target[held]), code[held])
            gaps[i] = max(gaps[i], start.gap / start.value if start.value > 0.0 else 0.0)
    mean = scores.mean(axis=0)
    results = {"param_lam": lams, "mean_test_score": mean, "std_test_score": scores.std(axis=0), "largest_gap": gaps}
    ties = mean >= mean.max() - 1e-12 * max(1.0, abs(float(mean.max())))  # equal but for rounding
    lam = float(lams[int(np.flatnonzero(ties)[0])])
    return Choice(lam, results | {f"split{j}_test_score": s for j, s in enumerate(scores)})


def _mean_over_clients(good: np.ndarray, code: np.ndarray) -> float:
    """Mean over clients of the mean over their rows."""
    rows = np.bincount(code)
    return float(np.mean(np.bincount(code, good)[rows > 0] / rows[rows > 0]))
