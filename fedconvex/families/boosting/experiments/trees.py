"""Boosting over trees of depth two, grown by the searches that find stumps; ensembles after every round."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from fedconvex._check import bad
from fedconvex.driver import run
from fedconvex.families.boosting.problem import Pick
from fedconvex.federation import Federation
from fedconvex.methods import MultiBoost
from fedconvex.problems import QEnsemble, Stump, StumpProblem, Tree


def tree_of(root: Stump, below: Stump, above: Stump) -> Tree:
    """Return the tree that asks the root's question, and then that of ``below`` or ``above``; constants are leaves.

    A root with an infinite threshold asks nothing: all rows are below.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.families.boosting.experiments.trees import tree_of
    >>> from fedconvex.problems import Stump
    >>> differ = tree_of(Stump(0, 0.5, 1.0, 1.0), Stump(1, 0.5, -1.0, 1.0), Stump(1, 0.5, 1.0, -1.0))
    >>> differ.predict([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    array([-1.,  1.,  1., -1.])
    """
    feature: list[int] = []
    cut: list[float] = []
    left: list[int] = []
    right: list[int] = []
    value: list[float] = []

    def grow(stump: Stump, children: tuple[Any, ...]) -> int:
        """Append a node and all below it; return its number."""
        node, inner = len(feature), np.isfinite(stump.threshold)
        feature.append(stump.feature)
        cut.append(stump.threshold if inner else 0.0)
        left.append(-1)
        right.append(-1)
        value.append(stump.left)
        if inner:
            left[node], right[node] = (grow(*child) for child in children)
        return node

    def leaves(stump: Stump) -> tuple[Any, ...]:
        return tuple((Stump(0, np.inf, v, v), ()) for v in (stump.left, stump.right))

    if np.isfinite(root.threshold):
        grow(root, ((below, leaves(below)), (above, leaves(above))))
    else:
        grow(below, leaves(below))
    kinds = (np.int64, np.float64, np.int64, np.int64, np.float64)
    return Tree(*(np.array(v, dtype=k) for v, k in zip((feature, cut, left, right, value), kinds, strict=True)))


class TreeProblem(StumpProblem):
    """F over the Q-ensembles of trees of depth two; for the smoothed maximum, or one domain.

    Each round grows one tree a source, as classification trees are grown: the question of least impurity, and below
    either answer again the question of least impurity. Of the sources' trees the one with the largest edge is taken.
    The column of a stage of the history is the tree's place in ``trees``. No search finds the best of all trees, and so
    nothing is certified.

    Parameters
    ----------
    federation, q, bins
        As for `fedconvex.problems.StumpProblem`.
    """

    def __init__(self, federation: Federation, q: Any = None, *, bins: int | None = None) -> None:
        super().__init__(federation, q, criterion="gini", bins=bins)
        self.trees: list[Tree] = []

    def steepest(self, mixes: np.ndarray, slopes: np.ndarray, alpha: np.ndarray, own: bool) -> Pick | None:
        """Return the best of the sources' trees for one mix of domains.

        Raises
        ------
        ValueError
            If several mixes attain the maximum.
        """
        if len(mixes) > 1:
            raise bad("TreeProblem", "be boosted with smoothing where there are several domains", f"{len(mixes)} worst")
        table, sources, omega = self._weighted(mixes[0], slopes, own)
        roots = [stump for stump, _ in table.search_many(omega, "gini")]
        below = np.array([table.columns[root.feature] <= root.threshold for root in roots])
        above = np.where(below.all(axis=1, keepdims=True), below, ~below)  # a constant has all rows below
        found = table.search_many(np.vstack([omega * below, omega * above]), "gini")
        lower, upper = found[: len(roots)], found[len(roots) :]
        edges = [lower[e][1] + (0.0 if below[e].all() else upper[e][1]) for e in range(len(roots))]
        e = int(np.argmax(edges))
        if not edges[e] > 0.0:
            return None
        tree, source = tree_of(roots[e], lower[e][0], upper[e][0]), int(sources[e])
        self.trees.append(tree)
        direction = self.y_sorted * self.q_sorted[source] * tree.predict(self.table.columns.T)
        return Pick(source, len(self.trees) - 1, None, direction, True, -edges[e])

    def lower(self, margins: np.ndarray, domain_weights: np.ndarray, total: float) -> float:
        """Return 0, which bounds every loss."""
        return 0.0

    def ensemble(self, state: Any, trajectory: int = 0) -> QEnsemble:
        """Return the predictor of a state of `fedconvex.methods.MultiBoost`, with its stages in order."""
        log = self._history(state, trajectory)
        log = log[log[:, 5] != 0.0]
        members = [self.trees[int(j)] for j in log[:, 1]]
        return QEnsemble(members, log[:, 0].astype(np.int64), log[:, 5], self.q_model, self.p, self.domain_names)


def boosted(problem: StumpProblem, rounds: int, smoothing: float) -> QEnsemble:
    """Return the ensemble of MultiBoost after so many rounds, which is AdaBoost's where there is one domain."""
    method = MultiBoost(smoothing=smoothing if problem.p > 1 else None)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "MultiBoost: a base classifier asks", RuntimeWarning)
        found = run(method, problem, rounds=rounds, tol=0.0, record_every=rounds, progress=False)
    return problem.ensemble(found.state)


def staged(ensemble: QEnsemble, rounds: int, X: np.ndarray, Q: np.ndarray | None) -> np.ndarray:
    """Return f_t of every row for t = 0, ..., rounds, (rounds + 1, n); the last where a run stalled before."""
    out = np.zeros((rounds + 1, len(X)))
    t = 0
    for t, f in enumerate(ensemble.staged_decision_function(X, Q), 1):
        out[t] = f
    out[t + 1 :] = out[t]
    return out
