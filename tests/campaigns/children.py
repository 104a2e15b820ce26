"""A function in a process of its own: it may crash, hang or run out of memory, and the parent is told."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Child", "in_a_child"]


class Child:
    """A fork that calls a function and sends back what it returns as JSON."""

    def __init__(self, function: Callable[[], Any], memory: int | None = None) -> None:
        self._pipe, here = os.pipe()
        self.start = time.perf_counter()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._pipe)
            _answer(function, here, memory)
        os.close(here)

    def kill(self) -> None:
        """End it at once, as a power cut would; nothing is raised if it has ended."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._pipe)

    def result(self, seconds: float) -> dict[str, Any]:
        """Wait for it: {"returned": x}, {"raised", "message", "where"}, {"crashed": status} or {"hung": seconds}."""
        text, late = b"", False
        while True:
            left = seconds - (time.perf_counter() - self.start)
            late = not select.select([self._pipe], [], [], max(left, 0.0))[0]
            piece = b"" if late else os.read(self._pipe, 1 << 16)
            text += piece
            if not piece:
                break
        if late:
            os.kill(self.pid, signal.SIGKILL)
        status = os.waitpid(self.pid, 0)[1]
        os.close(self._pipe)
        if late:
            return {"hung": seconds}
        return json.loads(text) if text else {"crashed": status}


def in_a_child(function: Callable[[], Any], seconds: float = 60.0, memory: int | None = None) -> dict[str, Any]:
    """Call a function in a fork and return what came of it, see `Child.result`."""
    return Child(function, memory).result(seconds)


def _answer(function: Callable[[], Any], pipe: int, memory: int | None) -> None:
    """Be the child: call, send, and leave without cleaning up what belongs to the parent."""
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    if memory is not None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
    try:
        answer = {"returned": function()}
        json.dumps(answer)
    except Exception as error:
        place = traceback.format_exc(limit=-2)[-600:]
        answer = {"raised": type(error).__name__, "message": str(error)[:1000], "where": place}
    sent = memoryview(json.dumps(answer).encode())
    while sent:
        sent = sent[os.write(pipe, sent) :]
    os._exit(0)
