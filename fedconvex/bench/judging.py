"""The referee: gaps of models, certified from the models alone, on a problem that solvers never see.

Where rows are set aside a gap is something else: by how much the loss on these rows exceeds that of the optimum, as a
share of the latter, and 0 where it is no larger.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from fedconvex._check import bad, instance
from fedconvex.bench.cases import ONE_MODEL, WORST_DOMAIN, Case, Dials
from fedconvex.problems import Problem

_SLACK = 1e-10  # times 1 + |F*| + |F(w)|: how far a claim may fall short before it counts as a lie


class Referee:
    """Judges models of one problem: its rows are its own, so that no solver changes what it is judged by.

    Parameters
    ----------
    case : Case

    Raises
    ------
    TypeError
        If case is no `Case`.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.bench import Case, Referee
    >>> referee = Referee(Case("tiny", "linear", {"n_clients": 3, "n_features": 2}, "squared"))
    >>> gaps = referee.gaps(np.stack([np.zeros(2), referee.optimum]))[1]
    >>> bool(gaps[0] > 0.01), bool(gaps[1] < 1e-12)
    (True, True)
    """

    def __init__(self, case: Case) -> None:
        instance("Referee: case", case, Case)
        self.case, self.problem = case, case.problem()
        aside = Problem(case.held_out_rows(), self.problem.loss) if case.held_out else None
        self.held_out = aside  # rows that no solver has, without l2

    @cached_property
    def _solution(self) -> Any:
        return self.problem.solve_minimax() if self.case.aim == WORST_DOMAIN else self.problem.solve()

    @property
    def optimum(self) -> np.ndarray:
        """The best model known."""
        return self._solution.w

    @cached_property
    def dials(self) -> Dials:
        """Size, heterogeneity and conditioning."""
        return Dials.of(self.problem, self.optimum, self.case.aim, self.case.loss)

    def gaps(self, W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return values and certified gaps of models (T, *model); infinite where a model is not finite."""
        value, gap = np.full(len(W), np.inf), np.full(len(W), np.inf)
        sound = np.isfinite(W).reshape(len(W), -1).all(axis=1)
        if sound.any():
            with np.errstate(all="ignore"):
                value[sound], gap[sound] = self._judged(W[sound])
        bad = ~np.isfinite(value) | np.isnan(gap)
        value[bad], gap[bad] = np.inf, np.inf
        return value, np.maximum(gap, 0.0)

    def _judged(self, W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.case.aim == ONE_MODEL:
            self._solution  # noqa: B018  (so that the lower bound is that of the exact solution)
            found = self.problem.measure(W)
            return found.value, found.gap if self.held_out is None else self._excess(W)
        if self.case.aim == WORST_DOMAIN:
            value = self.problem.domain_values(W).max(axis=1)
        else:
            value = np.array([float(self.problem.value(w)) for w in W])
        return value, value - self._solution.lower

    def _excess(self, W: np.ndarray) -> np.ndarray:
        """Return the loss on rows that are set aside, over that of the optimum, less 1."""
        return self._held_out_losses(W) / self._least_held_out - 1.0

    def _held_out_losses(self, W: np.ndarray) -> np.ndarray:
        assert self.held_out is not None
        return np.asarray(self.held_out.domain_values(W) @ self.held_out.weights)

    @cached_property
    def _least_held_out(self) -> float:
        least = float(self._held_out_losses(self.optimum[None])[0])
        if not least > 0.0:
            raise bad(f"problem {self.case.name}: held_out", "be rows on which the optimum has a loss", least)
        return least

    def worst_client(self, w: np.ndarray) -> float:
        """Return the largest loss of a client, its l2 term included; NaN where every task has a model of its own."""
        if not hasattr(self.problem, "domain_values"):
            return float("nan")
        return float(self.problem.client_values(w).max())

    def understated(self, value: float, claimed: float) -> float:
        """Return by how much a claimed gap is below F(w) less the best value known: 0 where it may be true."""
        best = float(self._solution.value)
        short = value - best - claimed
        return short if short > _SLACK * (1.0 + abs(best) + abs(value)) or np.isnan(claimed) else 0.0
