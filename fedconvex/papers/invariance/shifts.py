"""Five kinds of shift, each a straight line of distributions: training domains at t = -1 and t = 1, a new one beyond.

The distribution of (x, y) at t is affine in t up to second moments, so that between the training domains it is their
mixture, and the risk of any fixed linear model with squared loss is affine in t on the whole line.

covariate        x in {-1, 0, 1} with masses .45 - .1 t, .4, .15 + .1 t; y = max(x, 0) + .2 n: p(y|x) is fixed, and no
                 linear model is right; features (1, x)
label            y = 1 with probability .4 + .2 t, else -1; x = y + n: p(x|y) is fixed; features (1, x)
colour           y = 1 or -1 alike; shape x_1 = -y with probability .25, colour x_2 = -y with probability .15 + .05 t
chain, effect    x -> y -> z with Var x = 2 e^2, y = x + n, z = y + e n, e^2 = 2.02 + 1.98 t: training e = .2 and 2
chain, target    the same with y = x + e n, z = y + n: here the noise of y itself differs between domains

n is standard normal. The chains are those of Arjovsky et al. (arXiv:1907.02893), Section 5.1, the colours the skeleton
of their Colored MNIST; covariate and label shift are chosen here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedconvex.datasets import chain_moments, federation_of_moments
from fedconvex.federation import Federation
from fedconvex.solvers.environments.invariance import least_squares

Moments = tuple[np.ndarray, np.ndarray, float]  # E xx', E xy, E y^2


class Shift(NamedTuple):
    """A line of distributions."""

    moments: Callable[[float], Moments]
    draw: Callable[[float, int, np.random.Generator], tuple[np.ndarray, np.ndarray]]  # t, rows -> X, y
    far: float  # t of the new domain
    said: str  # what it is

    def risk(self, w: np.ndarray, t: float) -> float:
        """E (x'w - y)^2/2 at t."""
        S, b, c = self.moments(t)
        return float(0.5 * (w @ S @ w - 2.0 * b @ w + c))

    def least_risk(self, t: float) -> float:
        """Return the least risk of any linear model at t."""
        S, b, _ = self.moments(t)
        return self.risk(least_squares(S, b), t)


def _masses(t: float) -> np.ndarray:
    return np.array([0.45 - 0.1 * t, 0.4, 0.15 + 0.1 * t])


def _covariate(t: float) -> Moments:
    x, p = np.array([-1.0, 0.0, 1.0]), _masses(t)
    X, f = np.stack([np.ones(3), x], 1), np.maximum(x, 0.0)
    return (X.T * p) @ X, X.T @ (p * f), float(p @ f**2) + 0.04


def _draw_covariate(t: float, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    x = rng.choice([-1.0, 0.0, 1.0], size=n, p=_masses(t))
    return np.stack([np.ones(n), x], 1), np.maximum(x, 0.0) + 0.2 * rng.standard_normal(n)


def _label(t: float) -> Moments:
    m = 2.0 * (0.4 + 0.2 * t) - 1.0
    return np.array([[1.0, m], [m, 2.0]]), np.array([m, 1.0]), 1.0


def _draw_label(t: float, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    y = np.where(rng.random(n) < 0.4 + 0.2 * t, 1.0, -1.0)
    return np.stack([np.ones(n), y + rng.standard_normal(n)], 1), y


def _colour(t: float) -> Moments:
    c = 1.0 - 2.0 * (0.15 + 0.05 * t)
    return np.array([[1.0, c / 2.0], [c / 2.0, 1.0]]), np.array([0.5, c]), 1.0


def _draw_colour(t: float, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    flips = [np.where(rng.random(n) < p, -1.0, 1.0) for p in (0.25, 0.15 + 0.05 * t)]
    return np.stack([y * xi for xi in flips], 1), y


def _scale(t: float) -> float:
    return float(np.sqrt(2.02 + 1.98 * t))


def _chain(at_effect: bool) -> Shift:
    """Return the chain whose noise differs at the effect z, or at the target y."""

    def deviations(t: float) -> tuple[float, float, float]:
        e = _scale(t)
        return (e, 1.0, e) if at_effect else (e, e, 1.0)

    def moments(t: float) -> Moments:
        e, s_y, s_z = deviations(t)
        S, b, c = chain_moments((e,), (s_y,), (s_z,))
        return S[0], b[0], float(c[0])

    def draw(t: float, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        e, s_y, s_z = deviations(t)
        x = np.sqrt(2.0) * e * rng.standard_normal(n)
        y = x + s_y * rng.standard_normal(n)
        return np.stack([x, y + s_z * rng.standard_normal(n)], 1), y

    return Shift(moments, draw, (25.0 - 2.02) / 1.98, "e = 5 beyond .2 and 2")


SHIFTS: Mapping[str, Shift] = {
    "covariate": Shift(_covariate, _draw_covariate, 4.5, "masses 0, .4, .6"),
    "label": Shift(_label, _draw_label, 2.75, "95 % ones beyond 20 and 60 %"),
    "colour": Shift(_colour, _draw_colour, 15.0, "90 % of colours flipped beyond 10 and 20 %"),
    "chain, effect": _chain(at_effect=True),
    "chain, target": _chain(at_effect=False),
}


def population(shift: Shift) -> Federation:
    """Return the two training domains as their second moments: squared loss there is the population's."""
    S, b, c = zip(*(shift.moments(t) for t in (-1.0, 1.0)), strict=True)
    return federation_of_moments(np.array(S), np.array(b), np.array(c))


def sampled(shift: Shift, rows: int, rng: Any) -> Federation:
    """Return so many rows of each training domain, a client each."""
    return Federation.from_clients([shift.draw(t, rows, rng) for t in (-1.0, 1.0)])
