"""Several classes as one multi-task problem for each of them against all others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedconvex._check import array, bad, instance, items, wrong_type
from fedconvex.families.multitask.problem import MultiTaskProblem
from fedconvex.families.multitask.relations import Relation
from fedconvex.federation import Federation
from fedconvex.loss_traits import traits
from fedconvex.solvers.solution import Solution


class OneVsRest:
    """C multi-task problems, of class c against all others, c = 0, ..., C - 1, on the same rows.

    Each is a problem of its own, with a relationship (learned or given) and a certificate of its own, for any method:
    ``[run(MOCHA(), problem, rounds=500) for problem in classes.problems]``. `together` puts models side by side. The
    sum of the C gaps certifies the sum of the C objectives, and so bounds each of them. It says nothing about the share
    of rows whose largest score is the right one, and scores are no logarithms of probabilities: for these take one
    problem with `Softmax`.

    Parameters
    ----------
    federation : Federation
        With labels 0, ..., C - 1.
    loss, relation, normalisation
        As for `MultiTaskProblem`; a loss for labels -1 and +1, or `Squared`.

    Attributes
    ----------
    problems : tuple of C `MultiTaskProblem`
    n_classes : int
    model_shape : (m, C, d)

    Raises
    ------
    ValueError, TypeError
        If labels are no numbers of at least two classes, or the loss has several scores; as `MultiTaskProblem` does.

    References
    ----------
    Rifkin, Klautau, "In defense of one-vs-all classification", J. Mach. Learn. Res. 5 (2004).

    Examples
    --------
    >>> from fedconvex import Federation, Squared
    >>> from fedconvex.problems import Independent, OneVsRest
    >>> X = [[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]
    >>> classes = OneVsRest(Federation.from_clients([(X, [0, 1, 2]), (X, [1, 0, 2])]), Squared(), Independent(0.1))
    >>> best = classes.solve()
    >>> best.w.shape, classes.predict(best.w).tolist(), best.gap < 1e-9
    ((2, 3, 2), [0, 1, 2, 1, 0, 2], True)
    """

    def __init__(self, federation: Federation, loss: Any, relation: Relation, normalisation: str = "sum") -> None:
        instance("OneVsRest: federation", federation, Federation)
        if traits(loss).several:
            raise wrong_type("OneVsRest.loss", "have one score for each row", f"{loss!r}", "use MultiTaskProblem")
        y = federation.y
        C = int(min(max(y.max(), 0.0), 1e6)) + 1
        if C < 2 or not np.isin(y, np.arange(C)).all():
            cure = "renumber them, for example numpy.unique(y, return_inverse=True)[1]"
            raise bad("OneVsRest: labels", "be whole numbers 0, ..., C - 1 of at least two classes", f"{y[:5]}", cure)
        self.n_classes, self.model_shape = C, (federation.K, C, federation.d)
        binary = [replace(federation, y=np.where(y == c, 1.0, -1.0), columns=None) for c in range(C)]
        self.problems = tuple(MultiTaskProblem(fed, loss, relation, normalisation) for fed in binary)

    def solve(self, tol: float | None = None) -> Solution:
        """Solve all problems, each as `MultiTaskProblem.solve` does; w is (m, C, d), value and bound are sums."""
        return self.together([problem.solve(tol) for problem in self.problems])

    def together(self, fits: Sequence[Any]) -> Solution:
        """Return results or solutions of the C problems, in their order, as one.

        Its value and lower bound are sums; where a gap is not known the bound is -inf.

        Raises
        ------
        ValueError
            If there are not C of them, with models (m, d) each.
        """
        who, one = "OneVsRest.together: fits", (self.model_shape[0], self.model_shape[2])
        fits = items(who, fits)
        if len(fits) != self.n_classes:
            raise bad(who, f"hold {self.n_classes}, one for each class", f"{len(fits)}")
        W = np.stack([array(who, getattr(fit, "w", None), one) for fit in fits], axis=1)
        values = [float(problem.value(W[:, c])) for c, problem in enumerate(self.problems)]
        gaps = [float(np.max(fit.gap)) for fit in fits]
        value, lower = math.fsum(values), math.fsum(values) - math.fsum(gaps)
        rounds = max(getattr(fit, "iterations", getattr(fit, "rounds", 0)) for fit in fits)
        seconds = math.fsum(getattr(fit, "seconds", 0.0) for fit in fits)
        return Solution(W, value, lower, "sum of the gaps of all classes", True, False, rounds, seconds)

    def scores(self, W: Any, X: Any = None, tasks: Any = None) -> np.ndarray:
        """Scores of all classes, (N, C): of the federation's rows, or as `MultiTaskProblem.scores` takes others."""
        W = array("OneVsRest: models W", W, self.model_shape)
        return np.stack([p.scores(W[:, c], X, tasks) for c, p in enumerate(self.problems)], axis=1)

    def predict(self, W: Any, X: Any = None, tasks: Any = None) -> np.ndarray:
        """Return the class with the largest score, (N,)."""
        return self.scores(W, X, tasks).argmax(axis=1)

    def __repr__(self) -> str:
        return f"OneVsRest({self.n_classes} classes, {self.problems[0]!r})"
