"""Where connections come in: few at a time that nobody knows yet, each with a deadline, none at others' expense.

As many connections as there are sites, and sixteen more, may be without a proven place at once. Beyond that the oldest
of the address that has most of them is ended: who opens many, or says nothing, ends its own.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Thread
from typing import Any

from fedconvex._check import bad, wrong_type
from fedconvex.remote.authenticated_lines import Line
from fedconvex.remote.credentials import Stranger

_HANDSHAKE = 10.0  # seconds that a connection may take to prove its place
_SPARE = 16  # connections without a place beyond the number of sites, and files that the run itself may open
_TOLD = 10  # strangers that are logged; more are counted


class Door:
    """Listens, and hands over every connection that has proven its place.

    Parameters
    ----------
    who : str
        For messages.
    address : tuple (host, port) or path
    credentials : TLS or Plain
    K : int
        Sites.
    come : callable
        Is given the number of a site and its `Line`, in a thread of its own; who does not want it closes it.

    Raises
    ------
    OSError
        If the address is taken, or unknown.
    ValueError
        If the credentials are not for such an address, or there are more sites than files may be open.
    """

    def __init__(self, who: str, address: Any, credentials: Any, K: int, come: Callable[[int, Line], None]) -> None:
        self.K, self.credentials, self.come = K, credentials, come
        self.room = _room(who, K)
        family, where = resolved(f"{who}.address", address)
        credentials.check(f"{who}.address", where)
        self.strangers: deque[tuple[str, str]] = deque(maxlen=1000)  # addresses that had no place, and why
        self.seen, self.open = 0, True
        self.waiting: dict[socket.socket, str] = {}  # connections without a place yet, the oldest first, by address
        self.working, self.changed = 0, Condition()  # threads that look after one
        self.listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            if os.name == "posix" and isinstance(where, tuple):
                self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6 and where[0] == "::" and socket.has_dualstack_ipv6():
                self.listener.setsockopt(
                    socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0
                )  # by IPv4 too, whatever the system's default
            self.listener.bind(where)
            self.listener.listen(min(max(K + _SPARE, 128), 4096))  # all sites may come at once
        except OSError as error:
            self.listener.close()
            text = f"{who}.address {address!r} must be free to listen at ({error.strerror})"
            raise OSError(error.errno, text) from error
        self.address: Any = where if isinstance(where, str) else self.listener.getsockname()[:2]
        self.listener.settimeout(0.05)  # how long closing takes
        self.thread = Thread(target=self._listen, daemon=True)
        self.thread.start()

    def _listen(self) -> None:
        while self.open:
            try:
                end, peer = self.listener.accept()
            except TimeoutError:
                continue
            except OSError:  # no more files may be open
                self._make_room(0)
                time.sleep(0.02)
                continue
            self._make_room(self.room - 1)
            try:
                end = self.credentials.wrapped(end)
            except (OSError, ValueError):  # it is gone again
                end.close()
                continue
            with self.changed:
                self.waiting[end] = str(peer[0]).removeprefix("::ffff:") if isinstance(peer, tuple) else "this machine"
                self.working += 1
            Thread(target=self._admit, args=(end,), daemon=True).start()
        self.listener.close()

    def _make_room(self, most: int) -> None:
        """End connections of the most frequent address until at most so many wait; at least one if most is 0."""
        with self.changed:
            while len(self.waiting) > most:
                address = Counter(self.waiting.values()).most_common(1)[0][0]
                oldest = next(end for end, of in self.waiting.items() if of == address)
                del self.waiting[oldest]
                with suppress(OSError):
                    socket.socket.shutdown(oldest, socket.SHUT_RDWR)  # its thread wakes, and closes it
                if most == 0:
                    break
            self.changed.wait_for(lambda: self.working <= 2 * self.room, 1.0)  # those that were ended go quickly

    def _admit(self, end: socket.socket) -> None:
        """Hand over a connection that proves its place, and close any other one."""
        address = self.waiting.get(end, "")
        line: Line | None = None
        try:
            line, number = self.credentials.admit(end, self.K, _HANDSHAKE)
        except (OSError, EOFError, ValueError, Stranger) as error:
            self._refuse(address, f"{error}" or type(error).__name__)
        with self.changed:
            mine = self.waiting.pop(end, None) is not None
            self.working -= 1
            if line is None or not mine or not self.open:
                with suppress(OSError):
                    (end if line is None else line.end).close()
            self.changed.notify_all()
        if line is not None and mine and self.open:
            self.come(number, line)

    def _refuse(self, address: str, why: str) -> None:
        with self.changed:  # several come at once
            self.seen += 1
            seen = self.seen
        self.strangers.append((address, why[:200]))
        if seen <= _TOLD:
            more = "; later ones are only counted" if seen == _TOLD else ""
            text = "a connection from %s was refused: %s%s"
            logging.getLogger("fedconvex").warning(text, address, why[:200], more)

    def close(self) -> None:
        """Listen no longer, and end what has no place."""
        self.open = False
        self.thread.join(2.0)
        with self.changed:
            for end in self.waiting:
                with suppress(OSError):
                    socket.socket.shutdown(end, socket.SHUT_RDWR)


def resolved(who: str, address: Any) -> tuple[int, Any]:
    """Return the family and the address of a socket.

    Raises
    ------
    OSError
        If the name is unknown.
    """
    if isinstance(address, str):
        return socket.AF_UNIX, address
    try:
        found = socket.getaddrinfo(address[0] or None, address[1], type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise OSError(f"{who} must be a name that is known; got {address!r} ({error})") from None
    return found[0][0], found[0][4]


def address_of(who: str, x: Any) -> Any:
    """Return a host and a port, or a path."""
    if isinstance(x, os.PathLike):
        return os.fspath(x)
    pair = isinstance(x, tuple) and len(x) == 2 and isinstance(x[0], str) and type(x[1]) is int and 0 <= x[1] < 1 << 16
    if not pair and not (isinstance(x, str) and x):
        raise wrong_type(who, "be (host, port) or a path", f"{x!r}")
    return x


def _room(who: str, K: int) -> int:
    """Return how many connections may be without a place at once: what the system's limit of open files leaves.

    Raises
    ------
    ValueError
        If it is too few for all sites.
    """
    try:
        import resource

        limit, used = resource.getrlimit(resource.RLIMIT_NOFILE)[0], len(os.listdir("/dev/fd"))
    except (ImportError, OSError, ValueError):
        return K + _SPARE
    left = (limit - used - K - 2 * _SPARE) // 2  # one that is ended may hold its file for a moment
    if limit != resource.RLIM_INFINITY and left < 4:
        most = max(limit - used - 2 * _SPARE - 8, 0)
        raise bad(f"{who}.sites", f"be at most {most} where {limit} files may be open", K, "raise it: ulimit -n")
    return K + _SPARE if limit == resource.RLIM_INFINITY else min(K + _SPARE, left)
