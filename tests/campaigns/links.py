"""A connection that can be disturbed: everything to a port goes on to another one, and can be cut, or late."""

from __future__ import annotations

import math
import socket
import time
from contextlib import suppress
from threading import Event, Lock, Thread

__all__ = ["Link"]


class Link:
    """Listens at a port of this machine, and carries bytes to another one and back.

    After so many bytes as `hold` says nothing passes: a fault comes when it should, however busy the machine is.

    Attributes
    ----------
    passed : int
        Bytes that came through, both ways.
    refuses : bool
        Whether those who come are turned away.
    late : float
        Seconds that every piece waits.
    """

    def __init__(self, target: int) -> None:
        self.target, self.passed, self.refuses, self.late = target, 0, False, 0.0
        self._most, self._free = math.inf, Event()
        self._free.set()
        self._ends: list[socket.socket] = []
        self._lock, self._open = Lock(), True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while self._open:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self.refuses:
                    raise ConnectionRefusedError
                far = socket.create_connection(("127.0.0.1", self.target), 5.0)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._ends += [near, far]
            for one, other in ((near, far), (far, near)):
                Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while piece := one.recv(1 << 16):
                if self.late:
                    time.sleep(self.late)
                with self._lock:
                    self.passed += len(piece)
                    if self.passed >= self._most:
                        self._free.clear()
                self._free.wait()
                other.sendall(piece)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            with self._lock, suppress(ValueError):
                self._ends.remove(end)
                end.close()

    def hold(self, most: float) -> None:
        """Let pass what waits, and no more once so many bytes have come in all."""
        with self._lock:
            self._most = most
            if self.passed < most:
                self._free.set()

    def cut(self) -> None:
        """End all connections, in the middle of a message too."""
        with self._lock:
            for end in self._ends:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Carry nothing any more."""
        self._open = False
        self.hold(math.inf)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
