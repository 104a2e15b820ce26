"""What clients remember along a run: potentials of methods that keep vectors at their clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.draws import key_from_seed
from fedconvex.driver.rounds import Engine
from fedconvex.theorems.parts.setting import Setting


class Moment(NamedTuple):
    """A run after t rounds."""

    t: int
    state: Any
    rows: np.ndarray  # (R, K, p) of every client, zeros before it was asked


def remembered(s: Setting, rounds: int, seed: int, trajectories: int) -> Iterator[Moment]:
    """Yield what server and clients know after 0, 1, ..., rounds rounds of independent runs.

    Parameters
    ----------
    s : Setting
        With a method whose memory is a `ClientRows`.
    rounds, seed, trajectories : int
    """
    engine: Any = Engine(s.method, s.problem, key_from_seed(seed), trajectories, 1)
    K, numbers = s.problem.federation.K, np.arange(trajectories)
    clients = np.tile(np.arange(K), (trajectories, 1))
    for t, state in engine.loop(engine.start(s.start), 0, rounds):
        store, where = engine.memory.locate(numbers, clients)
        yield Moment(t, state, store.rows[where])


def potentials(
    value: Callable[[Moment, Moment], np.ndarray], s: Setting, rounds: Sequence[int], seed: int, trajectories: int
) -> np.ndarray:
    """Return a function of the moments before and after a round, (R,), for so many rounds each."""
    wanted, out, before = set(rounds), dict[int, np.ndarray](), None
    for now in remembered(s, max(rounds), seed, trajectories):
        if now.t in wanted and before is not None:
            with np.errstate(all="ignore"):
                found = value(before, now)
            out[now.t] = np.where(np.isnan(found), np.inf, found)
        before = now
    return np.array([out[t] for t in rounds])


def client_gradients(s: Setting, w: np.ndarray) -> np.ndarray:
    """Return grad f_i at models w (R, *model), flat: (R, K, p)."""
    return np.array([s.problem.client_gradients(x).reshape(s.problem.federation.K, -1) for x in w])


def mean_square(s: Setting, x: np.ndarray) -> np.ndarray:
    """Return sum_i p_i ‖x_i‖^2 of x (R, K, p), (R,)."""
    return np.asarray(np.sum(x * x, axis=2) @ s.problem.weights)
