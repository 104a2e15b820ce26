"""What problems over a table in pieces share: the joined problem says what is minimised, solved and certified."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from fedconvex.constants.default_steps import Smoothness, smoothness_of
from fedconvex.problems.empirical_risk import Problem
from fedconvex.problems.protocol import ClientWeights, Measure
from fedconvex.solvers.certificates.gaps import bounded_gap
from fedconvex.solvers.solution import Solution


class JoinedTable(ClientWeights):
    """F over all rows and columns, whoever has them; l2 > 0. What a class adds is who has what."""

    free = penalty = None
    federation: Any
    pooled: Problem
    loss: Any
    l2: float
    y: np.ndarray

    @property
    def model_shape(self) -> tuple[int, ...]:
        """(d,), or (C, d)."""
        return self.pooled.model_shape

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.pooled.size

    @property
    def n_outputs(self) -> int:
        """C for a loss with classes, else 1."""
        return self.pooled.n_outputs

    @property
    def traits(self) -> Any:
        """What the loss declares."""
        return self.pooled.traits

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.federation!r}, {self.loss!r}, l2={self.l2:g})"

    def value(self, w: Any) -> Any:
        """F(w): a float, or (R,)."""
        return self.pooled.value(w)

    def gradient(self, w: Any) -> np.ndarray:
        """grad F(w), in the shape of w."""
        return np.asarray(self.pooled.gradient(w))

    def scores(self, block: np.ndarray, b: int) -> np.ndarray:
        """X_b w_b (n_b, C), from the part w_b (d_b,) or (C, d_b) of the model: what the owner of block b sends."""
        return np.asarray(self.federation.block(b) @ np.atleast_2d(block).T)

    @cached_property
    def smoothness(self) -> Smoothness:
        """L of F, and of its parts."""
        fed = self.pooled.federation
        return smoothness_of(fed, np.ones(1), self.loss, self.l2)

    @cached_property
    def block_smoothness(self) -> np.ndarray:
        """L_b, (K,): of the mean loss over the rows of block b, in w_b alone, with its l2 term."""
        return np.array([self._smoothness(b).F for b in range(self.federation.K)])

    def _smoothness(self, b: int) -> Smoothness:
        from fedconvex.federation import Federation

        X = self.federation.block(b)
        alone = Federation(X, self.block_labels(b), np.array([0, X.shape[0]]))
        return smoothness_of(alone, np.ones(1), self.loss, self.l2)

    def block_labels(self, b: int) -> np.ndarray:
        """Labels of the rows of block b."""
        return self.y

    def solve(self) -> Solution:
        """Return the exact solution of the joined problem, with its certificate."""
        return self.pooled.solve()

    def measure(self, w: np.ndarray) -> Measure:
        """Values of R models, and ‖grad F‖^2/(2 l2) with what rounding may add to it."""
        W, _ = self.pooled.flatten(w)
        value, gap = np.empty(len(W)), np.empty(len(W))
        for r, v in enumerate(W):
            value[r], g = self.pooled.value_gradient(v)
            error = self.pooled.gradient_rounding(v, value[r])
            gap[r] = bounded_gap(self.pooled, v, value[r], g, error).gap
        return Measure(value, np.where(np.isnan(gap), np.inf, gap))
