"""A function in a process of its own: it may crash, hang or run out of memory, and the parent is told.

A process hangs when it has used its seconds of CPU time, or has slept three times as long without a break. A busy
machine changes neither: a process that waits for a processor is runnable, and does not sleep.
"""

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

__all__ = ["Child", "cpu_seconds", "in_a_child"]

_TICK = 0.25  # seconds between two looks


class Child:
    """A fork that calls a function and sends back what it returns as JSON."""

    def __init__(self, function: Callable[[], Any], memory: int | None = None) -> None:
        self._pipe, here = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._pipe)
                _answer(function, here, memory)
            finally:  # whatever happens, such as that the parent is gone: never go on as if it were the parent
                os._exit(0)
        os.close(here)

    def kill(self) -> None:
        """End it at once, as a power cut would; nothing is raised if it has ended."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._pipe)

    def result(self, seconds: float) -> dict[str, Any]:
        """Wait for it: {"returned": x}, {"raised", "message", "where"}, {"crashed": status} or {"hung": seconds}."""
        text, late, used, awake = b"", False, 0.0, time.perf_counter()
        while not late:
            if select.select([self._pipe], [], [], _TICK)[0]:
                piece = os.read(self._pipe, 1 << 16)
                if not piece:
                    break
                text, awake = text + piece, time.perf_counter()
                continue
            before, (used, sleeps) = used, _looked_at(self.pid)
            if used > before or not sleeps:
                awake = time.perf_counter()
            late = used >= seconds or time.perf_counter() - awake >= 3.0 * seconds
        if late:
            os.kill(self.pid, signal.SIGKILL)
        status = os.waitpid(self.pid, 0)[1]
        os.close(self._pipe)
        if late:
            return {"hung": seconds}
        return json.loads(text) if text else {"crashed": status}


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that all threads of a process have used."""
    return _looked_at(pid)[0]


def _looked_at(pid: int) -> tuple[float, bool]:
    """Return its CPU seconds, and whether it sleeps."""
    state, *fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[10]) + int(fields[11])) / os.sysconf("SC_CLK_TCK"), state == "S"


def in_a_child(function: Callable[[], Any], seconds: float = 60.0, memory: int | None = None) -> dict[str, Any]:
    """Call a function in a fork and return what came of it, see `Child.result`; ``seconds`` are of CPU time."""
    return Child(function, memory).result(seconds)


def _answer(function: Callable[[], Any], pipe: int, memory: int | None) -> None:
    """Be the child: call, and send. It must end without cleaning up what belongs to the parent."""
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    try:
        if memory is not None:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
        answer = {"returned": function()}
        json.dumps(answer)
    except Exception as error:
        place = traceback.format_exc(limit=-2)[-600:]
        answer = {"raised": type(error).__name__, "message": str(error)[:1000], "where": place}
    sent = memoryview(json.dumps(answer).encode())
    while sent:
        sent = sent[os.write(pipe, sent) :]
