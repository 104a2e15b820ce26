"""Games of linear regression: players share one predictor, each minimises the risk of its own environment in a box.

Environment e has second moments S_e = E xx', b_e = E xy, c_e = E y^2. Player e chooses w^e with ‖w^e‖_inf <= B; the
predictor is s = sum_e w^e, and player e pays R^e(s) = (s'S_e s - 2 b_e's + c_e)/2 (Ahuja, Shanmugam, Varshney,
Dhurandhar, "Invariant risk minimization games", ICML 2020, with features as they are; linear regression games:
Ahuja, Shanmugam, Dhurandhar, arXiv:2010.15234). With F_e = S_e s - b_e, the gradient for player e:

* N(w) = sum_e (<F_e, w^e> + B ‖F_e‖_1) is at least the sum of the regrets, R^e(s) - min R^e over player e's box, and
  zero at equilibria only: R^e is convex, and N is the sum of linear lower bounds, minimised over the boxes;
* an equilibrium exists (Rosen 1965: convex costs, compact boxes). Of its players, at most one needs to lie strictly
  inside its interval in each coordinate: moving weight between players leaves s as it is. So all equilibrium
  predictors are found from ((E + 2) 2^(E-1))^d linear systems;
* uncorrelated features, S_e diagonal, v_e = S_e^{-1} b_e: the predictor of every equilibrium is, coordinate by
  coordinate, argmin_s sum_e |s - v_e| + s^2/(2B), a median drawn to zero. Best responses say that
  w^e is -B times a subgradient of |s - v_e|; their sum is the condition of optimality.

All derived here, but for the cited names.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, real, whole

_EPS = float(np.finfo(np.float64).eps)
_MOST = 100_000  # linear systems of an enumeration
_SINGULAR = 1e-12  # reciprocal condition number below which a system counts as singular
_ZERO = 1e-10  # N of an equilibrium, relative to the size of its terms


class Players(NamedTuple):
    """Second moments of the players' environments, and the half-width of their boxes; the predictor is a sum."""

    S: np.ndarray  # (E, d, d)
    b: np.ndarray  # (E, d)
    c: np.ndarray  # (E,)
    bound: float
    terms: float = 0.0  # summands of each moment, for rounding

    def risks(self, w: np.ndarray) -> np.ndarray:
        """R^e(s) of strategies w (E, d), (E,)."""
        s = w.sum(axis=0)
        return 0.5 * (self.S @ s @ s - 2.0 * self.b @ s + self.c)

    def gradients(self, w: np.ndarray) -> np.ndarray:
        """F_e = S_e s - b_e, (E, d)."""
        return self.S @ w.sum(axis=0) - self.b

    def certificate(self, w: np.ndarray) -> float:
        """N(w): at least the sum of the regrets, zero at equilibria only; w must lie in the boxes."""
        F = self.gradients(w)
        return float((np.abs(F) * (self.bound + np.sign(F) * w)).sum())

    def response(self, w: np.ndarray, e: int) -> np.ndarray:
        """Return player e's best response to the others' strategies, (d,)."""
        others = w.sum(axis=0) - w[e]
        return box_least_squares(self.S[e], self.b[e] - self.S[e] @ others, self.bound, w[e])

    def regrets(self, w: np.ndarray) -> np.ndarray:
        """R^e(s) - min R^e over player e's box, the others' strategies kept, (E,)."""
        F, out = self.gradients(w), np.empty(len(w))
        for e, S in enumerate(self.S):
            p = w[e] - self.response(w, e)
            out[e] = F[e] @ p - 0.5 * p @ S @ p
        return np.maximum(out, 0.0)


def box_least_squares(S: np.ndarray, q: np.ndarray, bound: float, start: np.ndarray) -> np.ndarray:
    """Return a minimiser of w'S w/2 - q'w over ‖w‖_inf <= bound, for S >= 0 and q in its range, (d,).

    The method of active sets of bounded-variable least squares (Stark, Parker 1995), from a start that best-response
    dynamics have; `scipy.optimize.lsq_linear` takes rows and no start.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.solvers.environments.games import box_least_squares
    >>> S, q = np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([4.0, 0.0])
    >>> box_least_squares(S, q, 1.0, np.zeros(2)).tolist()  # without the box (8/3, -4/3)
    [1.0, -0.5]
    """
    size = np.sqrt(np.diag(S))
    seen = size > 0.0  # what is never seen stays where it is
    T, r = S[seen][:, seen] / np.outer(size[seen], size[seen]), q[seen] / size[seen]
    top = bound * size[seen]
    u = np.clip(start[seen] * size[seen], -top, top)
    free = np.abs(u) < top
    noise = 8.0 * (8.0 + u.size) * _EPS * (np.abs(T) @ top + np.abs(r))
    for _ in range(20 + 10 * u.size):
        u, free = _least_on_face(T, r, top, u, free)
        g = T @ u - r
        pull = np.where(free, 0.0, np.sign(u) * g)  # positive where leaving the bound lowers the value
        j = int(np.argmax(pull - noise)) if pull.size else 0
        if not pull.size or pull[j] <= noise[j]:
            break
        free[j] = True
    w = start.astype(float)
    w[seen] = np.where(np.abs(u) == top, np.sign(u) * bound, u / size[seen])
    return np.clip(w, -bound, bound)


def _least_on_face(
    T: np.ndarray, r: np.ndarray, top: np.ndarray, u: np.ndarray, free: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Minimise over the free coordinates, and fix those that reach their bound on the way."""
    u, free = u.copy(), free.copy()
    while free.any():
        at = np.flatnonzero(free)
        step = np.linalg.lstsq(T[np.ix_(at, at)], (r - T @ u)[at], rcond=None)[0]
        aim = u[at] + step
        out = np.abs(aim) > top[at]
        if not out.any():
            u[at] = aim
            break
        room = np.full(at.size, np.inf)
        room[out] = (np.copysign(top[at], step)[out] - u[at][out]) / step[out]
        first = int(np.argmin(room))
        u[at] = np.clip(u[at] + max(room[first], 0.0) * step, -top[at], top[at])
        u[at[first]] = math.copysign(top[at[first]], step[first])
        free[at[first]] = False
    return u, free


# ---------------------------------------------------------------- equilibria


class Equilibrium(NamedTuple):
    """Strategies of which none can be improved alone."""

    w: np.ndarray  # (E, d); other strategies with the same sum may be equilibria too
    predictor: np.ndarray  # (d,) their sum
    certificate: float  # N(w)
    isolated: bool  # whether the predictor is the only one of its patterns of bounds


def equilibria(game: Players) -> list[Equilibrium]:
    """Return all equilibrium predictors, by enumeration, each with strategies that have it; in order of the predictor.

    Where a pattern of bounds leaves a continuum of predictors, as collinear features do, one of them is returned, with
    ``isolated`` false.

    Raises
    ------
    ValueError
        If there are more than 100,000 patterns of bounds.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.solvers.environments.games import Players, equilibria
    >>> game = Players(np.ones((2, 1, 1)), np.array([[0.2], [0.9]]), np.ones(2), bound=2.0)
    >>> [(found.predictor.round(12).tolist(), found.w[:, 0].round(12).tolist()) for found in equilibria(game)]
    [([0.2], [-1.8, 2.0])]
    """
    E, d = game.b.shape
    each = (E + 2) * 2 ** (E - 1)
    if d * math.log(each) > math.log(_MOST) + 1e-9:
        cure = "run best responses or gradient steps from several starts"
        raise bad("equilibria", f"have at most {_MOST:,} patterns of bounds", f"{each}^{d}", cure)
    found: list[Equilibrium] = []
    for w, isolated in _candidates(game):
        scale = float((np.abs(game.S).sum(axis=2) * E * game.bound + np.abs(game.b)).max()) * game.bound
        certificate = game.certificate(w)
        if certificate > _ZERO * scale * E * d:
            continue
        s = w.sum(axis=0)
        same = [i for i, q in enumerate(found) if np.abs(s - q.predictor).max() <= 1e-9 * E * game.bound]
        for i in same:
            found[i] = found[i]._replace(isolated=found[i].isolated and isolated)
        if not same:
            found.append(Equilibrium(w, s, certificate, isolated))
    return sorted(found, key=lambda q: q.predictor.tolist())


def _candidates(game: Players) -> Iterator[tuple[np.ndarray, bool]]:
    """Yield strategies in the boxes that solve the equations of their pattern of bounds."""
    E, d = game.b.shape
    B, column = game.bound, _patterns(E)
    choice = np.array(list(itertools.product(range(len(column)), repeat=d)))  # (P, d)
    sign = np.swapaxes(column[choice], 1, 2)  # (P, E, d): -1 and 1 at a bound, 0 inside
    rest = B * sign.sum(axis=1)  # (P, d) sum of the players at a bound
    who = np.argmin(np.abs(sign), axis=1)  # (P, d) the player inside, if any
    inside = (sign == 0).any(axis=1)
    j = np.arange(d)
    M = np.where(inside[..., None], game.S[who, j], np.eye(d))
    r = np.where(inside, game.b[who, j], rest)
    lone = np.linalg.cond(M) < 1.0 / _SINGULAR
    s = np.zeros(r.shape)
    s[lone] = np.linalg.solve(M[lone], r[lone][..., None])[..., 0]
    for p in range(len(choice)):
        if not lone[p]:
            s[p] = _one_of_many(game, M[p], r[p], sign[p], rest[p], inside[p])
        own = s[p] - rest[p]
        if not np.isfinite(s[p]).all() or (np.abs(own) > np.where(inside[p], B, 1e-9 * B) * (1.0 + 1e-9)).any():
            continue
        w = B * sign[p].astype(float)
        w[who[p][inside[p]], j[inside[p]]] = np.clip(own[inside[p]], -B, B)
        yield w, bool(lone[p])


def _patterns(E: int) -> np.ndarray:
    """Return the patterns of a coordinate, (., E): every player at a bound, or all but one."""
    ends = list(itertools.product((-1, 1), repeat=E))
    one = [(*sign[:e], 0, *sign[e:]) for e in range(E) for sign in itertools.product((-1, 1), repeat=E - 1)]
    return np.array(ends + one)


def _one_of_many(
    game: Players, M: np.ndarray, r: np.ndarray, sign: np.ndarray, rest: np.ndarray, inside: np.ndarray
) -> np.ndarray:
    """Return one predictor of a singular pattern that obeys its inequalities, NaN where there is none."""
    from scipy.optimize import linprog

    at = sign != 0  # there sign (S_e s - b_e) <= 0
    A = (sign[..., None] * game.S)[at]
    half = np.where(inside, game.bound, 0.0)
    box = list(zip(rest - half, rest + half, strict=True))
    found = linprog(np.zeros(r.size), A, (sign * game.b)[at], M, r, box)
    return np.asarray(found.x) if found.status == 0 else np.full(r.size, np.nan)


def uncorrelated_predictor(v: Any, bound: float) -> np.ndarray:
    """Return the predictor of every equilibrium where features are uncorrelated in all environments, (d,).

    argmin_s sum_e |s - v_e| + s^2/(2 bound) in each coordinate: for two players with large boxes the projection of
    zero on [v_1, v_2]; for many the median, drawn to zero.

    Parameters
    ----------
    v : array (E, d)
        Least-squares coefficients of the environments.
    bound : float
        Half-width of the boxes; the predictor is the sum of the strategies.

    Examples
    --------
    >>> from fedconvex.solvers.environments.games import uncorrelated_predictor
    >>> [uncorrelated_predictor([[x] for x in v], 5.0).tolist() for v in [(0.1, 0.5, 0.9, 2.0), (-0.3, 0.4)]]
    [[0.5], [0.0]]
    """
    v, B = np.asarray(v, dtype=float), real("uncorrelated_predictor: bound", bound, low=0.0, strict=True)
    if v.ndim != 2 or not v.size or not np.isfinite(v).all():
        raise bad("uncorrelated_predictor: v", "be finite coefficients of shape (E, d)", f"shape {v.shape}")
    E = len(v)
    flat = np.repeat(B * (E - 2.0 * np.arange(E + 1))[:, None], v.shape[1], axis=1)  # between k and k + 1 of the v_e
    points = np.concatenate([v, flat])  # (2E + 1, d): kinks, and zeros of the slope between them
    slope = points / B  # the subdifferential at each is [slope + below - above - equal, slope + below - above + equal]
    order = (points[:, None] > v).sum(axis=1) - (points[:, None] < v).sum(axis=1)
    equal = (points[:, None] == v).sum(axis=1)
    off = np.maximum(np.abs(slope + order) - equal, 0.0)  # distance of the subdifferential from zero
    return np.take_along_axis(points, np.argmin(off, axis=0)[None], axis=0)[0]


# ---------------------------------------------------------------- dynamics with equal coefficients


def buffer_radius(players: int, buffer: int) -> float:
    """Return the factor a round by which parallel best responses to means of the last strategies err, in the long run.

    The largest modulus of a root of z^b + ((E - 1)/b)(z^{b-1} + ... + 1), for players whose least-squares coefficients
    are equal, inside the boxes: below 1 if and only if b >= E.

    Parameters
    ----------
    players, buffer : int
        E and b, at most 500 strategies.

    Examples
    --------
    >>> from fedconvex.solvers.environments.games import buffer_radius
    >>> [round(buffer_radius(E, b), 4) for E, b in [(2, 2), (3, 3), (3, 4), (4, 4), (4, 3)]]
    [0.7071, 0.896, 0.8853, 0.9561, 1.0]
    """
    E, b = whole("buffer_radius: players", players, low=1), whole("buffer_radius: buffer", buffer, low=1, high=500)
    return float(np.abs(np.roots([1.0, *[(E - 1.0) / b] * b])).max(initial=0.0)) if E > 1 else 0.0


def buffer_errors(players: int, buffer: int, rounds: int) -> np.ndarray:
    """Return r_0 = 1, ..., r_rounds with s_t - v = r_t (s_0 - v) under those dynamics, (rounds + 1,).

    r_{t+1} = -((E - 1)/b) (r_t + ... + r_{t-b+1}), where the start stands in for rounds before it.

    Examples
    --------
    >>> from fedconvex.solvers.environments.games import buffer_errors
    >>> buffer_errors(2, 1, 3).tolist(), buffer_errors(2, 2, 3).tolist()
    ([1.0, -1.0, 1.0, -1.0], [1.0, -1.0, -0.0, 0.5])
    """
    E, b = whole("buffer_errors: players", players, low=1), whole("buffer_errors: buffer", buffer, low=1, high=500)
    r = [1.0] * b
    for _ in range(whole("buffer_errors: rounds", rounds, high=100_000)):
        r.append(-(E - 1.0) / b * sum(r[-b:]))
    return np.array(r[b - 1 :])
