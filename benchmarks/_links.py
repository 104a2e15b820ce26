"""A link with a delay: what is sent to a port of this machine comes to another one so many seconds later."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread

__all__ = ["Delay"]


class Delay:
    """Listens at a port, and carries all that comes to another one and back; each piece arrives `seconds` later.

    Pieces do not wait for each other: it is the time that light takes, and not the width of a line.
    """

    def __init__(self, target: int, seconds: float) -> None:
        self.target, self.seconds, self.passed, self._lock = target, seconds, 0, Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.target))
            for one, other in ((near, far), (far, near)):
                queue: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                Thread(target=self._read, args=(one, queue), daemon=True).start()
                Thread(target=self._write, args=(other, queue), daemon=True).start()

    def _read(self, end: socket.socket, queue: SimpleQueue[tuple[float, bytes]]) -> None:
        piece = b"there is more"
        while piece:
            try:
                piece = end.recv(1 << 16)
            except OSError:
                piece = b""
            queue.put((time.monotonic() + self.seconds, piece))
            with self._lock:
                self.passed += len(piece)

    @staticmethod
    def _write(end: socket.socket, queue: SimpleQueue[tuple[float, bytes]]) -> None:
        with suppress(OSError):
            while True:
                due, piece = queue.get()
                time.sleep(max(due - time.monotonic(), 0.0))
                if not piece:
                    break
                end.sendall(piece)
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Take nobody in any more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
