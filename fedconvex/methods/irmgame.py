"""Invariant risk minimisation games (Ahuja, Shanmugam, Varshney, Dhurandhar, ICML 2020, arXiv:2002.04692; F-IRM).

Player k owns an environment and a strategy w^k with ‖w^k‖_inf <= B; the predictor is a sum over players (linear
regression games: Ahuja, Shanmugam, Dhurandhar, arXiv:2010.15234) or their average, s = a sum_k w^k, a = 1 or 1/K.

1. server: start at strategies w^1, ..., w^K in the boxes
2. each round t: player t mod K has its turn, or all players move at once
3.   server sends the sum of the strategies to who moves
4.   player k: w^k <- argmin of R^k(a (w + the others' sum)) over the box, or gradient steps towards it
5. server: keeps who moved, and the sum

d numbers down and d up for each that moves; the server needs sums only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedconvex._check import among
from fedconvex.draws import Draws
from fedconvex.fields import CheckedFields
from fedconvex.methods.parts.responses import BestResponse, Response, respond
from fedconvex.problems import FederatedProblem
from fedconvex.problems.protocol import EQUILIBRIUM
from fedconvex.traits import LEAVE_OUT, Traits, not_sent, sent_apart
from fedconvex.words import Words


def _valid_order(who: str, x: Any) -> str:
    among(who, x, ("in turn", "parallel"))
    return str(x)


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, K, d) w^k
    total: np.ndarray  # (R, d) sum_k w^k
    turn: int  # whose turn it is
    t: int  # rounds done


@not_sent("own")
@sent_apart("own")
class Message(NamedTuple):
    """Server to clients; each knows its own strategy."""

    total: np.ndarray  # (R, d)
    own: np.ndarray  # (R, K, d)


class Reply(NamedTuple):
    """Clients to server."""

    w: np.ndarray  # (R, m, d)


@dataclass(frozen=True, kw_only=True)
class IRMGame(CheckedFields):
    """Best responses, or gradient play, of players who share a predictor; one moves a round, or all at once.

    Nothing is drawn. Where features are correlated there may be several equilibria, and best responses may repeat for
    ever: `run` ends with the status CYCLE then. The gap of a run is N(w), at least the sum of the players' regrets.

    Parameters
    ----------
    order : str
        "in turn": player t mod K moves in round t, so that K rounds are a sweep; or "parallel".
    response : BestResponse or GradientResponse
        Exact, for squared loss, or gradient steps.

    Raises
    ------
    ValueError, TypeError
        If order or response is none of those known.

    Examples
    --------
    Coefficients 0.2 and 0.9: the equilibrium predictor is 0.2, and the second player ends at its bound.

    >>> import numpy as np
    >>> from fedconvex import Squared, run
    >>> from fedconvex.datasets import federation_of_moments
    >>> from fedconvex.methods import IRMGame
    >>> from fedconvex.problems import GameProblem
    >>> fed = federation_of_moments(np.ones((2, 1, 1)), [[0.2], [0.9]], [1.0, 1.0])
    >>> problem = GameProblem(fed, Squared(), bound=2.0)
    >>> result = run(IRMGame(), problem, tol=1e-10)
    >>> result.status.name, result.w[:, 0].round(9).tolist(), problem.predictor(result.w).round(9).tolist()
    ('CONVERGED', [-1.8, 2.0], [0.2])
    """

    learns = (EQUILIBRIUM,)
    lost = LEAVE_OUT  # who does not answer stays where it is

    order: Annotated[str, _valid_order] = "in turn"
    response: Response = BestResponse()

    def words(self, problem: Any) -> Words:
        short = () if self.order == "in turn" else (self.order,)
        return Words(f"IRMGame, {self.order}, {self.response!r}", short)

    def init(self, problem: Any, w: np.ndarray) -> State:
        w = np.clip(w, -problem.bound, problem.bound)  # 1
        return State(w, w.sum(axis=1), 0, 0)

    def participants(self, problem: FederatedProblem, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        K, R = problem.federation.K, draws.trajectory.size
        who = np.arange(K) if self.order == "parallel" else np.array([draws.round % K])  # 2
        return np.tile(who, (R, 1)), np.full((R, who.size), 1.0 / who.size)

    def broadcast(self, state: State) -> Message:
        return Message(state.total, state.w)  # 3

    def local(self, problem: Any, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        own = np.take_along_axis(message.own, clients[..., None], axis=1)
        return Reply(respond(self.response, problem, own, message.total[:, None] - own, clients)), memory  # 4

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        w = state.w.copy()
        np.put_along_axis(w, clients[..., None], reply.w, axis=1)
        return State(w, w.sum(axis=1), (state.turn + clients.shape[1]) % w.shape[1], state.t + 1)  # 5

    def traits(self, problem: Any) -> Traits:
        return Traits(drawn=(), by_round=False)
