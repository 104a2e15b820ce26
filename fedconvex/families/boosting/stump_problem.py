"""Boosting with several sources over all decision stumps, which are searched for and not listed."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from fedconvex._check import among, finite, whole, wrong_type
from fedconvex.families.boosting.dictionaries import dense_rows
from fedconvex.families.boosting.predictors import QEnsemble
from fedconvex.families.boosting.problem import FLAT, BoostingProblem, Pick
from fedconvex.families.boosting.stumps import Binned, Presorted, Stump
from fedconvex.federation import Federation
from fedconvex.kernels.cache import kernel

# mypy: disable-error-code="no-untyped-def"

_TRIALS = 12  # weights of equally bad domains for which a stump is searched before a kink is reported


class StumpProblem(BoostingProblem):
    """F over the Q-ensembles of all decision stumps, which are searched for and not listed.

    Parameters
    ----------
    federation : Federation
        Dense rows with labels -1/+1 and domains; without domains there is one source.
    q, loss, uncertainty_set
        As for `EnsembleProblem`.
    criterion : {"error", "gini"}
        What a stump is chosen by: the weighted error, which gives the steepest coordinate, or the impurity that
        scikit-learn's trees use.
    bins : int, optional
        Search histograms of so many bins per feature instead of every cut.

    Raises
    ------
    ValueError
        If criterion is neither "error" nor "gini".

    Notes
    -----
    Gaps refer to the minimum over all stumps that are searched (with `bins`: cuts between bins) with alpha >= 0 and
    sum alpha <= 100, or the ensemble's own sum if that is larger. The bound comes from the edge of the best stump for
    the present weights and costs one search per record. It is tight at the optimum and loose far from it.

    Examples
    --------
    >>> from fedconvex import Federation, run
    >>> from fedconvex.methods import MultiBoost
    >>> from fedconvex.problems import StumpProblem
    >>> fed = Federation.from_arrays([[0.0], [1.0], [2.0], [3.0]], [-1.0, 1.0, 1.0, -1.0], clients=[0, 0, 0, 0])
    >>> bool(run(MultiBoost(), StumpProblem(fed), rounds=3).trace.value[-1] < 0.83)
    True
    """

    def __init__(
        self,
        federation: Federation,
        q: Any = None,
        loss: Any = None,
        uncertainty_set: Any = None,
        *,
        criterion: str = "error",
        bins: int | None = None,
    ) -> None:
        self._set_sources(federation, q, loss, uncertainty_set)
        among("StumpProblem.criterion", criterion, ("error", "gini"))
        self.criterion = criterion
        X = dense_rows("StumpProblem", federation)[self.by_row]
        self.table = Presorted(X) if bins is None else Binned(X, bins)
        self._parts: dict[int, Any] = {}
        self.federation = federation

    @cached_property
    def model_shape(self) -> tuple[int, ...]:
        """(0,): the ensemble is the state's history."""
        return (0,)

    def _listed(self) -> str:
        return "all stumps"

    def steepest(self, mixes: np.ndarray, slopes: np.ndarray, alpha: np.ndarray, own: bool) -> Pick | None:
        """Return the best of the stumps that are best for each mix.

        If the maximum over the weights falls along none of them, averages of the weights are tried, moving to those
        that the last stump would raise. A stump that all miss may still exist.
        """
        if len(mixes) == 1:  # the edge is the slope
            return self._one_mix(mixes[0], slopes, own)
        weights = [slopes * self.row_weights_of(mix) for mix in mixes]
        best = None
        for mix in mixes:
            best = self._better(best, mix, slopes, weights, own)[0]
        tilt = np.zeros(len(mixes))
        for _ in range(_TRIALS):
            if best is not None and best.slope < 0.0:
                break
            share = np.exp(tilt - tilt.max())
            best, each = self._better(best, share / share.sum() @ mixes, slopes, weights, own)
            tilt += each / max(float(np.abs(each).max()), 1e-300)
        return best

    def _one_mix(self, domain_weights: np.ndarray, slopes: np.ndarray, own: bool) -> Pick | None:
        """Return the best stump of all sources for one mix."""
        table, sources, omega = self._weighted(domain_weights, slopes, own)
        i, stump, edge = table.search_best(omega, self.criterion)
        if not edge > 0.0:
            return None
        return Pick(int(sources[i]), stump.feature, stump, self.direction(stump, sources[i]), True, -edge)

    def _weighted(
        self, domain_weights: np.ndarray, slopes: np.ndarray, own: bool
    ) -> tuple[Any, np.ndarray, np.ndarray]:
        """Return the table of the rows that a mix weighs, the sources searched, and the signed weights of each."""
        support = np.flatnonzero(domain_weights > 0.0)
        sources = support if own else np.arange(self.p)
        lo, hi, table = 0, self.data.n, self.table
        if len(support) == 1 and self.p > 1:
            k = int(support[0])
            lo, hi, table = int(self.bounds[k]), int(self.bounds[k + 1]), self._part(k)
        omega = np.empty((len(sources), hi - lo))
        signed_weights(
            slopes, domain_weights / self.counts, self.bounds, self.y_sorted, self.q_sorted, sources, lo, omega
        )
        return table, sources, omega

    def direction(self, stump: Stump, source: int) -> np.ndarray:
        """y_i Q(l|x_i) h(x_i), (n,), rows sorted by domain."""
        u = np.empty(self.data.n)
        column, left, right = self.table.columns[stump.feature], stump.left, stump.right
        stump_margins(column, stump.threshold, left, right, self.y_sorted, self.q_sorted[source], u)
        return u

    def _better(
        self, best: Pick | None, domain_weights: np.ndarray, slopes: np.ndarray, weights: list[np.ndarray], own: bool
    ) -> tuple[Pick | None, np.ndarray]:
        """Return the better of a pick and the stumps that are best for one mix, and the derivatives of the first."""
        table, sources, omega = self._weighted(domain_weights, slopes, own)
        found = list(zip(sources, table.search_many(omega, self.criterion), strict=True))
        found.sort(key=lambda pair: -pair[1][1])
        top = np.zeros(len(weights))
        for i, (source, (stump, _)) in enumerate(found):
            u = self.direction(stump, source)
            each = np.array([-float(w @ u) for w in weights])
            top = each if i == 0 else top
            slope = float(each.max())
            if abs(slope) <= FLAT and each.min() < -FLAT:
                slope = 0.0  # helps some of the worst domains and hurts none
            elif slope >= 0.0:
                continue
            if best is None or slope < best.slope:
                best = Pick(int(source), stump.feature, stump, u, True, slope)
        return best, top

    def _search_settings(self) -> tuple[Any, ...]:
        return (self.criterion, type(self.table).__name__, getattr(self.table, "most", None))

    def _part(self, k: int) -> Any:
        """Rows of domain k, sorted by every feature."""
        if k not in self._parts:
            self._parts[k] = self.table.rows(int(self.bounds[k]), int(self.bounds[k + 1]))
        return self._parts[k]

    def _columns_of(self, stages: np.ndarray) -> np.ndarray:
        U = [self.direction(Stump(int(j), *cut), int(k)) for k, j, *cut in stages.tolist()]
        return np.array(U).reshape(len(stages), self.data.n).T

    def ensemble(self, state: Any, trajectory: int = 0) -> QEnsemble:
        """Return the predictor of a state of `MultiBoost`, with its stages in order."""
        log = self._history(state, trajectory)
        log = log[log[:, 5] != 0.0]
        members = [Stump(int(j), float(c), float(a), float(b)) for _, j, c, a, b, _ in log]
        return QEnsemble(members, log[:, 0].astype(np.int64), log[:, 5], self.q_model, self.p, self.domain_names)

    def certificate(self, state: Any, domain_weights: Any = None, trajectory: int = 0) -> tuple[float, float]:  # type: ignore[override]
        """Return F and a lower bound of the minimum over all stumps, from a state of `MultiBoost` and any lambda.

        Parameters
        ----------
        state : State
            Of `MultiBoost`.
        domain_weights : array (p,), optional
            lambda in Lambda; default the average of the vertices that attain the maximum.
        trajectory : int

        Raises
        ------
        ValueError
            If the state holds NaN or infinity, or domain_weights are no weights.
        """
        self._history(state, trajectory)
        finite("StumpProblem.certificate: margins of the state", state.margins[trajectory])
        finite("StumpProblem.certificate: history of the state", state.history[trajectory, :, 5])
        total = float(state.history[trajectory, :, 5].sum())
        return self.certified(state.margins[trajectory], domain_weights, total)

    def _history(self, state: Any, trajectory: int) -> np.ndarray:
        """Return the stages of a trajectory."""
        if not hasattr(state, "history") or not hasattr(state, "margins"):
            raise wrong_type("StumpProblem: state", "be a state of MultiBoost", f"{type(state).__name__}")
        return np.asarray(state.history[whole("StumpProblem: trajectory", trajectory, high=len(state.history) - 1)])

    def _largest_edge(self, lam: np.ndarray, slopes: np.ndarray) -> float:
        table, _, omega = self._weighted(lam, slopes, False)
        return float(table.search_best(omega)[2])


@kernel
def signed_weights(slopes, shares, bounds, y, q, sources, lo, omega):
    """omega[e, i - lo] = lambda_k/m_k Phi'_i y_i Q(l_e|x_i) for the rows lo, lo + 1, ...; shares are lambda_k/m_k."""
    for e in range(sources.size):
        for k in range(shares.size):
            a, b = max(bounds[k], lo), min(bounds[k + 1], lo + omega.shape[1])
            s, v, row, out = slopes[a:b], y[a:b], q[sources[e], a:b], omega[e, a - lo : max(b - lo, 0)]
            for i in range(out.size):
                out[i] = s[i] * shares[k] * v[i] * row[i]


@kernel
def stump_margins(column, threshold, left, right, y, q, u):
    """u_i = y_i Q(l|x_i) h(x_i)."""
    for i in range(u.size):
        u[i] = y[i] * q[i] * (left if column[i] <= threshold else right)
