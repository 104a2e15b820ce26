"""FL Games (Gupta, Ahuja, Havaei, Chatterjee, Bengio, arXiv:2205.11101; F-FL with the smoothed parallel best response).

All players of `GameProblem` move at once, and against means over the last b strategies, which damps the oscillation of
parallel play. The mean counts the opponents' present strategies once, as one of the b.

1. server: start at strategies w^1, ..., w^K in the boxes; the start stands in for strategies before it
2. each round: server sends the mean of the sum of strategies over the last b rounds, the present one included
3.   player k: o^k = that mean less the mean of its own last b strategies
4.   player k: w^k <- argmin of R^k(a (w + o^k)) over the box, or gradient steps towards it
5. server: the new strategies, and the last b - 1 before them

d numbers down and d up for each player.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconvex.draws import Draws
from fedconvex.fields import CheckedFields, Count
from fedconvex.methods.parts.responses import BestResponse, Response, respond
from fedconvex.problems import FederatedProblem
from fedconvex.problems.protocol import EQUILIBRIUM
from fedconvex.traits import LEAVE_OUT, Traits, not_sent, sent_apart
from fedconvex.words import Words


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, K, d) w^k
    past: np.ndarray  # (R, b, K, d) the last strategies, the present ones last
    t: int  # rounds done


@not_sent("own", "own_mean")
@sent_apart("own", "own_mean")
class Message(NamedTuple):
    """Server to clients; each knows its own strategies."""

    mean: np.ndarray  # (R, d) of sums of strategies
    own: np.ndarray  # (R, K, d)
    own_mean: np.ndarray  # (R, K, d)


class Reply(NamedTuple):
    """Clients to server."""

    w: np.ndarray  # (R, m, d)


@dataclass(frozen=True, kw_only=True)
class FLGame(CheckedFields):
    """Parallel responses to means of the last strategies.

    Parameters
    ----------
    buffer : int
        b, how many of the last strategies are averaged; 1 is plain parallel play. With exact responses of K players
        whose coefficients are equal, b >= K is necessary and sufficient for the predictor to settle.
    response : BestResponse or GradientResponse
        Exact, for squared loss, or gradient steps.

    Raises
    ------
    ValueError, TypeError
        If buffer is below 1, or response no way to answer.

    Examples
    --------
    Two players with equal coefficients overshoot for ever without a buffer, and settle with two.

    >>> import numpy as np
    >>> from fedconvex import Squared, run
    >>> from fedconvex.datasets import federation_of_moments
    >>> from fedconvex.methods import FLGame
    >>> from fedconvex.problems import GameProblem
    >>> fed = federation_of_moments(np.ones((2, 1, 1)), [[0.5], [0.5]], [1.0, 1.0])
    >>> problem = GameProblem(fed, Squared(), bound=2.0)
    >>> [run(FLGame(buffer=b), problem, tol=1e-9).status.name for b in (1, 2)]
    ['CYCLE', 'CONVERGED']
    """

    learns = (EQUILIBRIUM,)
    lost = LEAVE_OUT  # who does not answer stays where it is

    buffer: Count
    response: Response = BestResponse()

    def words(self, problem: Any) -> Words:
        work = f"FLGame, all at once, {self.response!r} to means of the last {self.buffer}"
        return Words(work, (f"b {self.buffer}",))

    def init(self, problem: Any, w: np.ndarray) -> State:
        w = np.clip(w, -problem.bound, problem.bound)
        return State(w, np.repeat(w[:, None], self.buffer, axis=1), 0)  # 1

    def participants(self, problem: FederatedProblem, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        K, R = problem.federation.K, draws.trajectory.size
        return np.tile(np.arange(K), (R, 1)), np.full((R, K), 1.0 / K)

    def broadcast(self, state: State) -> Message:
        own_mean = state.past.mean(axis=1)
        return Message(own_mean.sum(axis=1), state.w, own_mean)  # 2

    def local(self, problem: Any, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        at = clients[..., None]
        own, own_mean = (np.take_along_axis(v, at, axis=1) for v in (message.own, message.own_mean))
        others = message.mean[:, None] - own_mean  # 3
        return Reply(respond(self.response, problem, own, others, clients)), memory  # 4

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        w = state.w.copy()
        np.put_along_axis(w, clients[..., None], reply.w, axis=1)
        return State(w, np.concatenate([state.past[:, 1:], w[:, None]], axis=1), state.t + 1)  # 5

    def traits(self, problem: Any) -> Traits:
        return Traits(drawn=(), by_round=False)
