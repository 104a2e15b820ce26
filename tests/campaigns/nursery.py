"""Processes of ``fedconvex study`` that start at once: forks of one that has loaded everything, and runs no thread.

A fork is a process like any other: it can be killed, stopped, and kept from writing long files, as on a full disk.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["Nursery"]

_ROOT = Path(__file__).resolve().parents[2]


class Nursery:
    """Starts commands, and tells how they ended; its kernels are interpreted, so that nothing is compiled."""

    def __init__(self) -> None:
        environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(_ROOT)}
        command = [sys.executable, "-m", "tests.campaigns.nursery"]
        ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process: Any = subprocess.Popen(command, cwd=_ROOT, env=environment, **ends)
        self.ended: dict[int, int] = {}

    def _asked(self, **what: Any) -> Any:
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, folder: Path, argv: list[str], log: str, room: int | None = None, trusting: bool = False) -> int:
        """Start a command, and return its process.

        ``room`` is how many bytes its files have at most; ``trusting``: it does not look at its own certificate.
        """
        return int(self._asked(folder=str(folder), argv=argv, log=log, room=room, trusting=trusting))

    def poll(self, pid: int) -> int | None:
        """Return the exit status of a process, None while it runs."""
        if pid not in self.ended and (status := self._asked(poll=pid)) is not None:
            self.ended[pid] = int(status)
        return self.ended.get(pid)

    def wait(self, pid: int, seconds: float) -> int:
        """Return the exit status of a process once it has ended."""
        until = time.monotonic() + seconds
        while (status := self.poll(pid)) is None:
            assert time.monotonic() < until, f"process {pid} does not end"
            time.sleep(0.02)
        return status

    def kill(self, pid: int) -> None:
        """End a process as a power cut would; nothing happens if it has ended."""
        if self.poll(pid) is None:
            os.kill(pid, signal.SIGKILL)
            self.wait(pid, 60.0)

    def close(self) -> None:
        """End it, with all its processes."""
        self._process.stdin.close()
        self._process.wait()


def _be(asked: dict[str, Any]) -> None:
    """Be the child: the command, and nothing of the parent afterwards."""
    from fedconvex.cli import main
    from fedconvex.study import certificates

    status = 70
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore, and so we would
    try:
        os.chdir(asked["folder"])
        nothing, log = os.open(os.devnull, os.O_RDWR), os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for here, there in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(here, there)
        if asked["room"] is not None:  # what is longer fails with an error, as where no room is left
            resource.setrlimit(resource.RLIMIT_FSIZE, (asked["room"], resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        if asked["trusting"]:
            certificates._good_now = lambda *a: None
        status = main(asked["argv"])
        sys.stdout.flush()
    finally:
        os._exit(status)


def _serve() -> None:
    import fedconvex.cli.study
    import fedconvex.study.coordination
    import fedconvex.study.site_end  # noqa: F401

    running = set()
    for line in sys.stdin:
        asked = json.loads(line)
        if "poll" in asked:
            pid, status = os.waitpid(asked["poll"], os.WNOHANG)
            running -= {pid}
            answer = None if pid == 0 else os.waitstatus_to_exitcode(status)
        elif (answer := os.fork()) == 0:
            _be(asked)
        else:
            running.add(answer)
        print(json.dumps(answer), flush=True)
    for pid in running:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    _serve()
