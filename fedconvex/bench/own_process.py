"""A process of its own for what comes from outside of the package: it is told in JSON, and answers JSON and arrays.

Nothing that such a process sends is unpickled, and nothing that it changes - functions of the package, settings of
NumPy, the working folder, the random state - is seen by whoever judges it, or by another solver.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

import numpy as np

from fedconvex._archives import json_of
from fedconvex.bench.time_limit import OutOfTime

_REFUSALS = {"ValueError": ValueError, "TypeError": TypeError, "ImportError": ImportError}
_LONGEST = 1e8  # seconds; a poll takes no arbitrary number
_LARGEST = 1 << 28  # bytes of a message: what is longer ends the connection


class Failed(Exception):
    """What was raised in the other process, in words."""


class OwnProcess:
    """A process that serves requests, and is ended with the block that opened it.

    Parameters
    ----------
    serve : callable
        A function of a module of the package, called there with a connection and the payload.
    payload : bytes
    seconds : float
        After which whoever waits for an answer gets `OutOfTime`.
    """

    def __init__(self, serve: Callable[[Any, bytes], None], payload: bytes, seconds: float) -> None:
        self._end = time.monotonic() + min(seconds, _LONGEST)
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, payload), daemon=False)
        with main_hidden():
            self._process.start()
        theirs.close()

    def __enter__(self) -> OwnProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises
        ------
        OutOfTime
            If it is not there in time.
        Failed
            If the process has ended, or answers what is no answer.
        ValueError, TypeError, ImportError
            What `refusal` told.
        """
        try:
            self._pipe.send_bytes(json.dumps(request).encode())
            return self.next()
        except (BrokenPipeError, ConnectionResetError):
            raise self._ended() from None

    def next(self) -> dict[str, Any]:
        """Return one more answer; arrays under the names that they were sent by."""
        if not self._pipe.poll(max(0.0, self._end - time.monotonic())):
            raise OutOfTime
        try:
            said = json_of(self._pipe.recv_bytes(_LARGEST))
            arrays = {n: self._array(kind, shape) for n, kind, shape in said.pop("arrays", ())}
        except (EOFError, OSError):
            raise self._ended() from None
        except (ValueError, TypeError, AttributeError) as error:
            raise Failed(f"its process answers what is no answer: {error}") from None
        return refused(said) | arrays

    def _array(self, kind: str, shape: list[int]) -> np.ndarray:
        dtype = np.dtype(str(kind))
        if dtype.kind not in "fiub":
            raise ValueError(f"an array of {dtype}")
        return np.frombuffer(self._pipe.recv_bytes(_LARGEST), dtype=dtype).reshape([int(n) for n in shape]).copy()

    def _ended(self) -> Failed:
        self._process.join(10.0)
        return Failed(f"its process has ended (exit code {self._process.exitcode})")


def answer(pipe: Any, arrays: dict[str, np.ndarray] | None = None, **said: Any) -> None:
    """Send an answer: what JSON can hold, and arrays of numbers."""
    arrays = {name: np.ascontiguousarray(a) for name, a in (arrays or {}).items()}
    said["arrays"] = [(name, a.dtype.str, a.shape) for name, a in arrays.items()]
    pipe.send_bytes(json.dumps(said).encode())
    for a in arrays.values():
        pipe.send_bytes(a.tobytes())


def requests(pipe: Any) -> Iterator[dict[str, Any]]:
    """Yield requests until whoever asks is gone."""
    with suppress(EOFError, OSError):
        while True:
            yield json.loads(pipe.recv_bytes())


def refusal(error: BaseException) -> dict[str, Any]:
    """Return what an error says, to be sent."""
    return {"error": type(error).__name__, "text": str(error)}


def refused(said: dict[str, Any]) -> dict[str, Any]:
    """Return an answer, or raise what it tells."""
    if "error" in said:
        kind, text = str(said["error"]), str(said.get("text", ""))
        raise _REFUSALS[kind](text) if kind in _REFUSALS else Failed(f"{kind}: {text}")
    return said


@contextmanager
def main_hidden() -> Iterator[None]:
    """Keep out of sight, while a process starts, what it would take over.

    A main module that is a script without a guard would be run again there; workers of loky hand down a way of starting
    processes that only they know.
    """
    main, way = sys.modules["__main__"], multiprocessing.get_start_method(allow_none=True)
    sys.modules["__main__"] = ModuleType("__main__")
    multiprocessing.set_start_method("spawn", force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(way, force=True)
        sys.modules["__main__"] = main
