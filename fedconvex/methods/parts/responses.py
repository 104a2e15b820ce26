"""What a player of a game does when it hears of the others: the best response, or steps towards one."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from fedconvex._check import equal_by_type, real, whole, wrong_type
from fedconvex.loss_traits import traits


@equal_by_type
class BestResponse(NamedTuple):
    """Minimise the own risk over the box: exactly, for squared loss.

    Examples
    --------
    >>> from fedconvex.methods import BestResponse, IRMGame
    >>> IRMGame(response=BestResponse()) == IRMGame()
    True
    """

    def of(self, problem: Any, k: int, own: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return player k's strategies (R, d) against sums of the others' (R, d)."""
        return np.stack([problem.best_response(k, w, o) for w, o in zip(own, others, strict=True)])


@equal_by_type
class GradientResponse(NamedTuple):
    """Projected gradient steps on all rows of the player, the others' strategies kept: w <- clip(w - eta F, -B, B).

    Parameters
    ----------
    step_size : float
        eta. No theorem says which steps converge: the certificate tells. 1/(K L), with L the largest of the players'
        smoothnesses and K players, did in 799 of 800 random games.
    local_steps : int
        In a round.

    Examples
    --------
    >>> from fedconvex.methods import FLGame, GradientResponse
    >>> FLGame(buffer=1, response=GradientResponse(0.1, local_steps=5)).response.local_steps
    5
    """

    step_size: float
    local_steps: int = 1

    def of(self, problem: Any, k: int, own: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return player k's strategies (R, d) against sums of the others' (R, d)."""
        B, w = problem.bound, own
        for _ in range(self.local_steps):
            w = np.clip(w - self.step_size * problem.player_gradient(k, w + others), -B, B)
        return w


class ResponseRule(NamedTuple):
    """The rule of what a player does."""

    def __call__(self, who: str, x: Any) -> Any:
        if isinstance(x, BestResponse):
            return x
        if not isinstance(x, GradientResponse):
            raise wrong_type(who, "be BestResponse() or GradientResponse(step_size)", f"{x!r}")
        step = real(f"{who}.step_size", x.step_size, low=0.0, strict=True)
        return GradientResponse(step, whole(f"{who}.local_steps", x.local_steps, low=1))

    def fit(self, who: str, x: Any, problem: Any, R: int) -> None:
        """Raise if best responses are asked for where the loss is not quadratic."""
        if isinstance(x, BestResponse) and not traits(problem.loss).quadratic:
            cure = "take GradientResponse(step_size)"
            raise wrong_type(who, "be exact, which takes a quadratic loss", f"{problem.loss!r}", cure)


Response = Annotated[Any, ResponseRule()]


def respond(response: Any, problem: Any, own: np.ndarray, others: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """Return the answers (R, m, d) of clients (R, m) with strategies own (R, m, d) to sums of the others' (R, m, d)."""
    out = np.empty(own.shape)
    for k in np.unique(clients):
        r, i = np.nonzero(clients == k)
        out[r, i] = response.of(problem, int(k), own[r, i], others[r, i])
    return out
