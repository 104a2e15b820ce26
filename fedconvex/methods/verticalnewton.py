"""Newton's method by conjugate gradients over columns of several owners: a Hessian product costs one sum of scores.

1. owners: w_b; server (who knows the labels): z = X w, k = 0, t = 0, v = 0
2. k = 0, server sends r_i = l'(z_i, y_i) and t; owner b: w_b <- w_b + t s_b, q_b = X_b'r/n + l2 w_b, s_b = p_b = 0
3. k = 1, server sends h_i u_i, h_i = l''(z_i, y_i), and alpha, beta; owner b: p_b <- -q_b + beta p_b,
   s_b <- s_b + alpha p_b, q_b <- q_b + alpha (X_b'(h u)/n + l2 p_b)
4. owner b answers X_b q_b, ‖q_b‖^2, q_b'p_b, w_b's_b and ‖s_b‖^2
5. server: after k = 0: beta = 0; after k = 1: v <- v + alpha u, beta = ‖q‖^2 over that before
6. server: if ‖q‖ > min(c, sqrt(‖g‖)) ‖g‖, g = q after k = 0: u <- -X q + beta u = X p, alpha = ‖q‖^2/(p'H p),
   p'Hp = mean h_i u_i^2 + l2 ‖p‖^2; k <- 1
7. server: else t = 1, 1/2, 1/4, ... until F(w + t s) <= F(w) + 1e-4 t g's, from z + t v; z <- z + t v; k <- 0

The model moves in rounds with k = 0. Every round costs n scores and four numbers each way and owner: iterates are those
of the pooled method, since all that conjugate gradients need of all owners are sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import wrong_type
from fedconvex.draws import Draws
from fedconvex.fields import CheckedFields, Inside
from fedconvex.kernels import row_losses
from fedconvex.loss_traits import traits
from fedconvex.problems.protocol import VERTICAL_MODEL
from fedconvex.traits import Traits, not_sent
from fedconvex.words import Words

GRADIENT, PRODUCT, SCORES = 0, 1, 2
ARMIJO, HALVINGS = 1e-4, 40
KEPT = ("z", "u", "v", "sent", "kind", "sizes", "steps")  # what the server changes
EPS = float(np.finfo(float).eps)


class State(NamedTuple):
    """What server and owners keep."""

    w: np.ndarray  # (R, d) blocks, at their owners, as are s, p and q
    s: np.ndarray  # (R, d) the direction so far
    p: np.ndarray  # (R, d) the last conjugate direction
    q: np.ndarray  # (R, d) the residual H s + g
    z: np.ndarray  # (R, n) scores, at the server, as is all that follows
    u: np.ndarray  # (R, n) X p
    v: np.ndarray  # (R, n) X s
    sent: np.ndarray  # (R, n) slopes, or h u: what the next round sends
    answer: np.ndarray  # (R, n) and told (R, 4): what the last one answered
    told: np.ndarray
    kind: np.ndarray  # (R,) what the next round is for: a gradient, a Hessian product, scores of the start
    sizes: np.ndarray  # (R, 3) ‖g‖^2, ‖q‖^2, ‖p‖^2
    steps: np.ndarray  # (R, 3) alpha, beta, t
    t: int  # rounds done


@not_sent("w", "s", "p", "q")
class Message(NamedTuple):
    """Server to owners."""

    r: np.ndarray  # (R, n) slopes, or h u
    steps: np.ndarray  # (R, 3)
    kind: np.ndarray  # (R,)
    w: np.ndarray  # (R, d) every owner keeps its blocks
    s: np.ndarray  # (R, d)
    p: np.ndarray  # (R, d)
    q: np.ndarray  # (R, d)


@not_sent("w", "s", "p", "q")
class Reply(NamedTuple):
    """Owners to server."""

    z: np.ndarray  # (R, m, n) X_b q_b, or X_b w_b
    sizes: np.ndarray  # (R, m, 4) ‖q_b‖^2, q_b'p_b, w_b's_b, ‖s_b‖^2
    w: np.ndarray  # (R, m, d) what the owner keeps, zeros elsewhere
    s: np.ndarray  # (R, m, d)
    p: np.ndarray  # (R, m, d)
    q: np.ndarray  # (R, m, d)


@dataclass(frozen=True, kw_only=True)
class VerticalNewtonCG(CheckedFields):
    """Newton's method with conjugate gradients on F, the columns of whose rows lie with several owners.

    Parameters
    ----------
    accuracy : float
        c, in (0, 1): conjugate gradients stop at a residual of min(c, sqrt(‖g‖)) ‖g‖.

    Raises
    ------
    ValueError, TypeError
        If accuracy is not in (0, 1).

    References
    ----------
    Dembo, Eisenstat, Steihaug, "Inexact Newton methods", SIAM J. Numer. Anal. 19 (1982): superlinear convergence.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Logistic, VerticalFederation, run
    >>> from fedconvex.methods import VerticalNewtonCG
    >>> from fedconvex.problems import VerticalProblem
    >>> rng = np.random.default_rng(0)
    >>> A, B, y = rng.normal(size=(50, 2)), rng.normal(size=(50, 3)), rng.choice([-1, 1], 50)
    >>> fed = VerticalFederation.from_blocks({"bank": A, "shop": B}, y)
    >>> result = run(VerticalNewtonCG(), VerticalProblem(fed, Logistic(), 0.01), tol=1e-10)
    >>> result.status.name, result.rounds < 20
    ('CONVERGED', True)
    """

    command = "vertical-newton-cg"
    learns = (VERTICAL_MODEL,)

    accuracy: Inside = 0.5

    def check_fit(self, problem: Any, R: int) -> None:
        """Raise if the loss has no curvature, or several outputs."""
        super().check_fit(problem, R)
        kind = traits(problem.loss)
        if kind.several or not kind.curved:
            who, cure = "VerticalNewtonCG: problem", "use VerticalAcceleratedGradient, or VerticalGradientDescent"
            raise wrong_type(who, "have a loss of one score with a curvature", f"{problem.loss!r}", cure)

    def words(self, problem: Any) -> Words:
        return Words(f"{type(self).__name__}, one gradient")

    def init(self, problem: Any, w: np.ndarray) -> State:
        R, none = len(w), np.zeros_like(w)
        zeros, steps = np.zeros((R, problem.y.size)), np.zeros((R, 3))
        kind, sent = np.full(R, SCORES if w.any() else GRADIENT), np.array([_slopes(problem, z) for z in zeros])
        return State(
            w, none, none, none, zeros, zeros, zeros, sent, zeros, np.zeros((R, 4)), kind, steps, steps, 0
        )  # 1

    def broadcast(self, state: State) -> Message:
        return Message(state.sent, state.steps, state.kind, state.w, state.s, state.p, state.q)

    def local(self, problem: Any, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        fed, (R, m) = problem.federation, clients.shape
        z, sizes = np.empty((R, m, fed.n)), np.zeros((R, m, 4))
        kept = np.zeros((4, R, m, fed.d))
        for r, j in np.ndindex(R, m):
            b = clients[r, j]
            at, (alpha, beta, t) = slice(int(fed.ptr[b]), int(fed.ptr[b + 1])), message.steps[r]
            w, s, p, q = (x[r, at] for x in (message.w, message.s, message.p, message.q))
            if message.kind[r] == GRADIENT:
                w = w + t * s
                q = problem.block_gradient(message.r[r][:, None], w, b)
                s = p = np.zeros_like(w)  # 2
            elif message.kind[r] == PRODUCT:
                p = beta * p - q
                s, q = s + alpha * p, q + alpha * problem.block_gradient(message.r[r][:, None], p, b)  # 3
            z[r, j] = problem.scores(w if message.kind[r] == SCORES else q, b)[:, 0]
            sizes[r, j] = q @ q, q @ p, w @ s, s @ s
            kept[:, r, j, at] = w, s, p, q
        return Reply(z, sizes, *kept), memory  # 4

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        answer, told, w, s, p, q = (x.sum(axis=1) for x in reply)
        return state._replace(w=w, s=s, p=p, q=q, answer=answer, told=told, t=state.t + 1)

    def settle(self, problem: Any, state: State) -> State:
        """Return the state with what the server makes of the answers."""
        new = state._replace(**{name: getattr(state, name).copy() for name in KEPT})
        for r, kind in enumerate(state.kind):
            z, u, v, answer, (alpha, beta, _) = *(x[r] for x in (new.z, new.u, new.v, new.answer)), state.steps[r]
            square, along = state.told[r, :2]
            if kind == SCORES:
                z[:], new.kind[r], new.sent[r], new.steps[r] = answer, GRADIENT, _slopes(problem, answer), 0.0
                continue
            if kind == GRADIENT:
                v[:], beta, new.sizes[r] = 0.0, 0.0, (square, square, 0.0)
            else:
                v += alpha * u
                beta = square / new.sizes[r, 1]  # 5
            g, length = np.sqrt(new.sizes[r, 0]), square - 2.0 * beta * along + beta**2 * new.sizes[r, 2]
            if np.sqrt(square) > min(self.accuracy, np.sqrt(g)) * g:
                u[:] = beta * u - answer
                h = _curvatures(problem, z)
                alpha = square / (float(h @ (u * u)) / u.size + problem.l2 * length)
                new.kind[r], new.sent[r], new.steps[r] = PRODUCT, h * u, (alpha, beta, 0.0)
                new.sizes[r, 1:] = square, length  # 6
            else:
                t = _armijo(problem, z, v, *state.told[r, 2:])
                z += t * v
                new.kind[r], new.sent[r], new.steps[r] = GRADIENT, _slopes(problem, z), (0.0, 0.0, t)  # 7
        return new

    def traits(self, problem: Any) -> Traits:
        return Traits(drawn=(), by_round=False)


def _slopes(problem: Any, z: np.ndarray) -> np.ndarray:
    """Return l'(z_i, y_i), (n,)."""
    r = z[:, None].copy()
    row_losses.row_slopes(problem.loss, r, problem.y)
    return r[:, 0]


def _curvatures(problem: Any, z: np.ndarray) -> np.ndarray:
    """Return l''(z_i, y_i), (n,)."""
    h = np.empty(z.size)
    row_losses.row_curvatures(problem.loss, z, problem.y, np.array([0, z.size]), np.ones(1), h)
    return h


def _values(problem: Any, z: np.ndarray) -> np.ndarray:
    """Return l(z_i, y_i), (n,)."""
    out = np.empty((z.size, 1))
    row_losses.row_values(problem.loss, z[:, None].copy(), problem.y, out)
    return out[:, 0]


def _armijo(problem: Any, z: np.ndarray, v: np.ndarray, across: float, square: float) -> float:
    """Return the first of 1, 1/2, ... by which F falls as far as Armijo asks, from w's and ‖s‖^2; but for rounding."""
    before, t = _values(problem, z), 1.0
    slope = float(_slopes(problem, z) @ v) / z.size + problem.l2 * across
    noise = 4.0 * EPS * float(np.abs(before).mean())
    for _ in range(HALVINGS):
        change = float((_values(problem, z + t * v) - before).mean())
        change += problem.l2 * t * (across + 0.5 * t * square)
        if change <= ARMIJO * t * slope + noise:
            return t
        t *= 0.5
    return 0.0
