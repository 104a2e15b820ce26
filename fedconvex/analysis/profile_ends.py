"""Ends of profile-likelihood intervals, enclosed from both sides by certified numbers.

The end along a is e = max a'b subject to N(b) <= l, with l = N* + phi q/2. With theta = 1/tau > 0 the multiplier:

- *Outer.* e <= a'b + (l - N(b) + gap)/theta for every b and theta, where gap bounds M(b) - inf M for the tilted
  function M = N - theta a'b, which has N's self-concordance.
- *Inner.* N is convex: a point b with N(b) > l is drawn back towards one with N <= l until N <= l is sure.

Steps (Venzon and Moolgavkar, "A method for computing profile-likelihood-based confidence intervals", Applied Statistics
37, 1988): in the quadratic model of N at b the end has theta^2 = (2 (l - N) + g'J^-1 g)/(a'J^-1 a), and lies at b + d,
d = J^-1 (theta a - g), which is Newton's step for M. A trial is accepted if M falls. All ends move side by side: a
round asks for one model each.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from fedconvex.analysis.newton_search import certified_gap, inverse_of
from fedconvex.problems.protocol import Derivatives

ROUNDS = 100
CLOSE = 1e-7  # of phi q/2, how near a search is before its last step, which squares it


class Likelihood(Protocol):
    """What is asked of N; sums and spreads are rounds."""

    self_concordance: float

    def sums(self, B: np.ndarray) -> Derivatives:
        """N, gradients and Hessians at models (R, p)."""

    def spread(self, inverses: np.ndarray) -> np.ndarray:
        """max_i (x_i'A x_i)^(1/2) of inverses (R, p, p), (R,)."""

    def roundings(self, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How far computed gradients and N may be off at models (R, p), (R, p) and (R,)."""


class Level(NamedTuple):
    """l, and what is certain about it."""

    low: float
    aim: float
    high: float
    drop: float  # phi q/2


class Ends(NamedTuple):
    """Largest values of a'b for R directions a: each lies between inner and outer."""

    inner: np.ndarray  # (R,)
    outer: np.ndarray  # (R,) inf where nothing is certified
    b: np.ndarray  # (R, p) where the searches ended
    rounds: int


class _Search:
    """One end: the last accepted point, its step, and the trial that is asked next."""

    def __init__(self, a: np.ndarray, inside: np.ndarray, level: Level) -> None:
        self.a, self.level, self.trial = a, level, inside
        self.b, self.N, self.theta = inside, np.inf, 0.0
        self.t, self.last, self.done = 1.0, False, False

    def absorb(self, N: float, g: np.ndarray, J: np.ndarray) -> None:
        """Take the answer at the trial."""
        if not (np.isfinite(N) and np.isfinite(g).all() and np.isfinite(J).all()):
            self._shorten(0.25)
        elif not np.isfinite(self.N):
            self._accept(N, g, J)
        else:
            change = N - self.N - self.theta * float(self.a @ (self.trial - self.b))
            noise = 1e-13 * (abs(N) + abs(self.N))
            tilted = g - self.theta * self.a
            still = float(tilted @ inverse_of(J)[0] @ tilted)
            if change <= -1e-4 * self.t * self.decrement or (change <= noise and still <= 0.25 * self.decrement):
                self._accept(N, g, J)
            elif self.t * self.decrement <= noise:
                self.done = True
            else:
                self._shorten(0.4)

    def _accept(self, N: float, g: np.ndarray, J: np.ndarray) -> None:
        self.b, self.N, self.g, self.t = self.trial, N, g, 1.0
        self.inverse, self.rank = inverse_of(J)
        u, w = self.inverse @ self.a, self.inverse @ g
        A, G = float(self.a @ u), float(g @ w)
        square = (2.0 * (self.level.aim - N) + G) / A if A > 0.0 else -1.0
        self.theta = np.sqrt(square) if square > 0.0 else 0.5 * self.theta
        self.d = self.theta * u - w
        self.decrement = max(G - 2.0 * self.theta * float(self.a @ w) + self.theta**2 * A, 0.0)
        near = max(self.decrement, abs(self.level.aim - N)) <= CLOSE * self.level.drop
        self.done = self.last or self.theta == 0.0
        self.last = near
        self.trial = self.b + self.d

    def _shorten(self, factor: float) -> None:
        self.t *= factor
        self.trial = self.b + self.t * self.d
        self.done = self.t < 1e-12


def ends(likelihood: Likelihood, directions: np.ndarray, inside: np.ndarray, N_inside: float, level: Level) -> Ends:
    """Enclose max a'b subject to N(b) <= l.

    Parameters
    ----------
    directions : array (R, p)
    inside : array (p,)
        A point where N, at most ``N_inside`` (rounding included), is below l.
    """
    searches, rounds = [_Search(a, inside, level) for a in directions], 0
    while rounds < ROUNDS and (going := [s for s in searches if not s.done]):
        answer = likelihood.sums(np.array([s.trial for s in going]))
        rounds += 1
        for search, N, g, J in zip(going, answer.values, answer.gradients, answer.hessians, strict=True):
            search.absorb(float(N), g, J)
    c = likelihood.self_concordance
    reach = likelihood.spread(np.array([s.inverse for s in searches])) if c > 0.0 else np.zeros(len(searches))
    at = np.array([s.b for s in searches])
    off = zip(*likelihood.roundings(at), strict=True)
    found = [_enclosure(s, c * r, inside, N_inside, *o) for s, r, o in zip(searches, reach, off, strict=True)]
    inner, outer = (np.array(side) for side in zip(*found, strict=True))
    return Ends(inner, outer, at, rounds + int(c > 0.0))


def _enclosure(
    s: _Search, kappa: float, inside: np.ndarray, N_inside: float, error: np.ndarray, off: float
) -> tuple[float, float]:
    """Return what an end is at least, and at most; gradient and N may be off by error (p,) and off."""
    eps = np.finfo(float).eps
    known, at = float(s.a @ inside), float(s.a @ s.b)
    slack = eps * s.a.size * float(np.abs(s.a) @ (np.abs(s.b) + np.abs(inside)))
    over = s.N + off - N_inside
    share = min(1.0, (s.level.low - N_inside) / over) if over > 0.0 else 1.0
    inner = known + max(share, 0.0) * max(at - known, 0.0) - slack
    if s.theta == 0.0 or s.rank < s.a.size:
        return inner, np.inf
    tilted, error = s.g - s.theta * s.a, error + 4.0 * eps * s.theta * np.abs(s.a)
    size = np.sqrt(tilted @ s.inverse @ tilted) + np.sqrt(error @ np.abs(s.inverse) @ error)
    gap = float(certified_gap(np.array([size**2]), np.array([kappa]))[0])
    return inner, at + (s.level.high - s.N + off + gap) / s.theta + slack
