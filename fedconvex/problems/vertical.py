"""The empirical risk over columns of several owners: the blocks of the model lie where the columns are."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from fedconvex._check import instance, real
from fedconvex.constants.default_steps import Smoothness, smoothness_of
from fedconvex.problems.empirical_risk import Problem
from fedconvex.problems.protocol import VERTICAL_MODEL, ClientWeights, Measure
from fedconvex.solvers.certificates import bounded_gap
from fedconvex.solvers.solution import Solution
from fedconvex.vertical_federation import VerticalFederation

__all__ = ["VerticalProblem"]


class VerticalProblem(ClientWeights):
    """F(w) = mean_i l(sum_b x_{ib}'w_b, y_i) + (l2/2)‖w‖^2, w = (w_1, ..., w_K), w_b at the owner of the columns b.

    A model w is (d,), or (C, d) for a loss with C classes; columns ``federation.ptr[b]:ptr[b+1]`` of it are w_b.

    Parameters
    ----------
    federation : VerticalFederation
    loss : loss
    l2 : float
        Positive: the certificate and what is known of rates rest on it.

    Raises
    ------
    ValueError, TypeError
        If l2 is not positive, or the loss does not take the labels.

    Notes
    -----
    Certificate: F(w) - F* <= ‖grad F(w)‖^2/(2 l2) by strong convexity, one number an owner since
    ‖grad F‖^2 = sum_b ‖grad_b F‖^2. It is the duality gap at the dual variables -l'(z_i, y_i): there Fenchel's
    inequality is an equality, and with v = -X'l'/(l2 n) the gap is (l2/2)‖w - v‖^2.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Logistic, VerticalFederation
    >>> from fedconvex.problems import VerticalProblem
    >>> rng = np.random.default_rng(0)
    >>> A, B, y = rng.normal(size=(50, 2)), rng.normal(size=(50, 3)), rng.choice([-1, 1], 50)
    >>> fed = VerticalFederation.from_blocks({"bank": A, "shop": B}, y)
    >>> problem = VerticalProblem(fed, Logistic(), l2=0.1)
    >>> bool(problem.measure(problem.solve().w[None]).gap[0] < 1e-12)
    True
    """

    learns = VERTICAL_MODEL
    free = penalty = None
    # the server is who knows the labels; of the owners it knows how many columns they have
    shared = ("y", "ptr", "n_outputs", "size", "penalty")

    def __init__(self, federation: VerticalFederation, loss: Any, l2: float) -> None:
        instance("VerticalProblem.federation", federation, VerticalFederation)
        self.federation = federation
        self.l2 = real("VerticalProblem.l2", l2, low=0.0, strict=True)
        self.pooled = Problem(federation.rows, loss, self.l2)
        self.loss, self.y, self.ptr = self.pooled.loss, federation.y, federation.ptr
        self.weights = np.full(federation.K, 1.0 / federation.K)

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

    @property
    def fingerprint(self) -> str:
        """What checkpoints compare beside rows, loss and l2."""
        return "vertical"

    def __repr__(self) -> str:
        return f"VerticalProblem({self.federation!r}, {self.loss!r}, l2={self.l2:g})"

    def value(self, w: Any) -> Any:
        """F(w): a float, or (R,)."""
        return self.pooled.value(w)

    def gradient(self, w: Any) -> np.ndarray:
        """grad F(w), in the shape of w."""
        return np.asarray(self.pooled.gradient(w))

    def scores(self, block: np.ndarray, b: int) -> np.ndarray:
        """X_b w_b (n, C), from the block w_b (d_b,) or (C, d_b): what owner b sends."""
        return np.asarray(self.federation.block(b) @ np.atleast_2d(block).T)

    def block_gradient(self, slopes: np.ndarray, block: np.ndarray, b: int) -> np.ndarray:
        """grad_b F from the slopes (n, C) of all rows, in the shape of the block: what owner b makes of them."""
        g = (self.federation.block(b).T @ slopes).T / self.federation.n
        return np.asarray(g.reshape(block.shape) + self.l2 * block)

    @cached_property
    def block_smoothness(self) -> np.ndarray:
        """L_b of F in w_b alone, (K,)."""
        return np.array([self._smoothness(b).F for b in range(self.federation.K)])

    @cached_property
    def smoothness(self) -> Smoothness:
        """L of F, and of its parts."""
        fed = self.federation.rows
        return smoothness_of(fed, np.ones(1), self.loss, self.l2)

    def _smoothness(self, b: int) -> Smoothness:
        from fedconvex.federation import Federation

        alone = Federation(self.federation.block(b), self.y, np.array([0, self.federation.n]))
        return smoothness_of(alone, np.ones(1), self.loss, self.l2)

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
