"""The clients' work of a round, in one thread or divided among several: the same bits, whatever their number."""

from __future__ import annotations

import itertools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from fedconvex._check import bad, whole
from fedconvex.draws import Draws
from fedconvex.kernels.cache import DISABLED, compile_seconds
from fedconvex.kernels.pieces import Unwanted, stoppable

_WORTH = 1e-3  # seconds of clients' work in a round from which on threads are used: to hand it over takes a tenth
_ROUNDS = 3  # so many in a row
_GAIN = 0.9  # most time of rounds in several threads over that of rounds in one


class Threads:
    """Threads for the clients' work: so many, or, if None are asked for, as many as it is worth.

    Then rounds begin in one thread. Once three in a row have taken a millisecond each, compiling aside, three are
    tried in one thread for every processor that the process may use, and if the best of them was a tenth faster than
    the best of the others it stays like that, else there is one thread from then on; and so it is for a method whose
    messages and replies are not named tuples of arrays (R, ...) and (R, m, ...).

    Parameters
    ----------
    asked : int or None
        Number of threads.

    Raises
    ------
    ValueError, TypeError
        If the number is not a positive whole one; in a round, if it is above one and the method has other messages.
    """

    def __init__(self, asked: int | None) -> None:
        self.number = _processors() if asked is None else whole("run: threads", asked, low=1)
        self.divides, self.settled = asked is not None, asked is not None
        self.alone: list[float] = []  # seconds of long rounds in a row in one thread, and of those in several
        self.together: list[float] = []
        self.pool: ThreadPoolExecutor | None = None

    def local(
        self, method: Any, problem: Any, message: Any, clients: np.ndarray, memory: Any, draws: Draws
    ) -> tuple[Any, Any]:
        """Return the reply of clients (R, m) and the memory after it, as the method's ``local`` does."""
        divisible = memory is None or hasattr(memory, "locate")
        if self.number == 1 or clients.size == 1 or not divisible:
            return method.local(problem, message, clients, memory, draws)
        begin = time.perf_counter() - compile_seconds()
        if self.divides:
            if memory is not None:
                memory, _ = memory.locate(draws.trajectory, clients)  # room is made first, then threads may write
            answer = self._divided(method, problem, message, clients, memory, draws), memory
        else:
            answer = method.local(problem, message, clients, memory, draws)
            if not (_divisible(message, len(clients)) and _joinable(answer[0], clients.shape)):
                self.number = 1
        if not self.settled:
            self._learn(time.perf_counter() - compile_seconds() - begin)
        return answer

    def blocks(self, call: Any, R: int) -> Any:
        """Return the models (n, R, *model) of several rounds: call(a, b) has those of trajectories a to b, or None."""
        if self.number == 1 or R < 2 * self.number:
            return call(0, R)
        begin = time.perf_counter() - compile_seconds()
        if self.divides:
            found = self._in_threads(call, [R * i // self.number for i in range(self.number + 1)])
            n = 0 if any(W is None for W in found) else min(len(W) for W in found)
            block = np.concatenate([W[:n] for W in found], axis=1) if n else None
        else:
            block = call(0, R)
        if block is not None and not self.settled:
            self._learn(time.perf_counter() - compile_seconds() - begin, len(block))
        return block

    def _learn(self, seconds: float, rounds: int = 1) -> None:
        """Decide whether the work of the next rounds is divided, from how long that of these took."""
        if self.divides:
            self.together.append(seconds / rounds)
            self.settled = len(self.together) == _ROUNDS
            if self.settled:
                self.divides = min(self.together) < _GAIN * min(self.alone)
                self.number = self.number if self.divides else 1
        else:
            self.alone = [*self.alone, seconds / rounds] if seconds > _WORTH else []
            self.divides = len(self.alone) == _ROUNDS

    def _divided(self, method: Any, problem: Any, message: Any, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        """Run `local` on slices of the trajectories, or of the clients where that is more even; join the replies."""
        if not _divisible(message, len(clients)):
            raise _indivisible(method)
        axis = min((0, 1), key=lambda a: -(-clients.shape[a] // self.number) / clients.shape[a])
        n = clients.shape[axis]
        edges = [n * i // self.number for i in range(self.number + 1)] if n > self.number else list(range(n + 1))

        def part(a: int, b: int) -> Any:
            if axis == 1:
                some, sent, mine = clients[:, a:b].copy(), message, draws
            else:
                some, sent = clients[a:b], sliced(message, a, b)
                mine = draws._replace(trajectory=draws.trajectory[a:b])
            reply = method.local(problem, sent, some, memory, mine)[0]
            if not _joinable(reply, some.shape):
                raise _indivisible(method)
            return reply

        replies = self._in_threads(part, edges)
        return type(replies[0])(*(np.concatenate(vs, axis=axis) for vs in zip(*replies, strict=True)))

    def _in_threads(self, call: Any, edges: list[int]) -> list[Any]:
        """Return call(a, b) of each piece between the edges, each in a thread of its own."""
        self.pool = self.pool or ThreadPoolExecutor(self.number - 1)  # this thread takes the first piece
        stop = threading.Event()

        def part(a: int, b: int) -> Any:
            try:
                with stoppable(stop):
                    return call(a, b)
            except BaseException:
                stop.set()  # the others end with their present piece
                raise

        first, *others = itertools.pairwise(edges)
        futures = [self.pool.submit(part, *ends) for ends in others]
        try:
            return [part(*first), *(future.result() for future in futures)]
        except BaseException as error:  # Ctrl-C too
            stop.set()
            wait(futures)
            for cause in (future.exception() for future in futures):
                if isinstance(error, Unwanted) and cause is not None and not isinstance(cause, Unwanted):
                    raise cause from None
            raise


def _divisible(message: Any, R: int) -> bool:
    """Whether a message is a named tuple whose arrays are (R, ...)."""
    return hasattr(message, "_fields") and all(v.shape[:1] == (R,) for v in message if isinstance(v, np.ndarray))


def _joinable(reply: Any, shape: tuple[int, ...]) -> bool:
    """Whether a reply is a named tuple of arrays (*shape, ...), or empty ones."""
    if not hasattr(reply, "_fields"):
        return False
    return all(isinstance(v, np.ndarray) and (v.size == 0 or v.shape[:2] == shape) for v in reply)


def _indivisible(method: Any) -> Exception:
    must = "have a Message of arrays (R, ...) and a Reply of arrays (R, m, ...), named tuples"
    return bad(f"{type(method).__name__} in several threads", must, "others", "pass threads=1")


def sliced(message: Any, a: int, b: int) -> Any:
    """Return what a message or a state holds of trajectories a to b."""
    return type(message)(*(v[a:b] if isinstance(v, np.ndarray) else v for v in message))


def _processors() -> int:
    """Return how many processors this process may use; one for uncompiled code, which holds the interpreter."""
    if DISABLED:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
