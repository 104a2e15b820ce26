"""Frames over a socket: what travels between a server and one site once a connection is made.

A frame is a kind (1 byte), a length (8 bytes, big-endian) and so many bytes. Where TLS does not protect it, an
HMAC-SHA256 over direction, count of frames so far, kind, length and content follows: a frame that is changed, repeated,
left out or sent back ends the connection.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import selectors
import socket
import struct
import time
from collections.abc import Generator
from contextlib import suppress
from typing import NamedTuple

HELLO, MESSAGE, ENDED, FAILED, REPLACED, TAKEN = range(6)  # kinds; the last four end a connection, and say why
_CHUNK = 1 << 20  # bytes that are asked for at once: nothing is set aside for a length that is only claimed
_CODE = 32  # bytes of a code
_AWAKE = 1.0  # seconds: a signal that came just before the system was asked to wait is only seen between two waits
_ROOM = 1 << 16  # bytes that are asked for at least: a short frame comes at once
_HEAD, _COUNT = struct.Struct(">BQ"), struct.Struct(">Q")
_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}  # a peer that is gone is noticed in two minutes
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)  # of any file, where the system can


class Oversized(Exception):
    """A frame longer than is kept; its content was read and dropped, and the connection lives."""


class Keys(NamedTuple):
    """Keys of the frames that are sent, and of those that come."""

    out: bytes
    back: bytes


class Line:
    """One end of a connection; a thread at a time.

    Parameters
    ----------
    end : socket
        Connected; plain, or of TLS.
    keys : Keys, optional
        Of an HMAC for each frame; default none, as TLS has its own.
    """

    def __init__(self, end: socket.socket, keys: Keys | None = None) -> None:
        self.end, self.keys, self.counts = end, keys, [0, 0]
        self.came = bytearray()  # and was not looked at yet
        self.missing = 0  # bytes of the next frame, at least
        self._long: Generator[int, None, tuple[int, bytes]] | None = None  # a frame that is read piece by piece
        if end.family != getattr(socket, "AF_UNIX", None):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _ALIVE.items():
                if hasattr(socket, name):
                    end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    @property
    def keys(self) -> Keys | None:
        """The keys of an HMAC for each frame; what it makes of them is made once."""
        return self._keys

    @keys.setter
    def keys(self, keys: Keys | None) -> None:
        self._keys = keys
        self._keyed = None if keys is None else [hmac.new(key, digestmod=hashlib.sha256) for key in keys]

    def send(self, kind: int, content: bytes = b"", seconds: float | None = None) -> None:
        """Send a frame, within so many seconds.

        Raises
        ------
        OSError
            If the connection is dead, or the other end does not read.
        """
        end = None if seconds is None else time.monotonic() + seconds
        for part in self.frame(kind, content):
            view = memoryview(part)
            while view:
                self._wait_until(end)
                view = view[self.end.send(view) :]

    def frame(self, kind: int, content: bytes) -> list[bytes]:
        """Return the parts of the next frame that is sent; a short one is one part, which the system is given once."""
        said = _HEAD.pack(kind, len(content))
        if len(content) <= _CHUNK:
            said += content
            mark = self._mark(0, said)
            return [said if mark is None else said + mark.digest()]
        mark = self._mark(0, said)
        if mark is None:
            return [said, content]
        mark.update(content)
        return [said, content, mark.digest()]

    def receive(self, most: int, seconds: float | None = None, kept: int | None = None) -> tuple[int, bytes]:
        """Return kind and content of the next frame, of at most so many bytes, within so many seconds.

        Raises
        ------
        Oversized
            If it has more bytes than are to be kept, default ``most``.
        EOFError
            If the other end is gone.
        OSError
            If it is too slow, sends too much, or not what it should.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while (found := self.take(most, kept)) is None:
            self._wait_until(time.monotonic() + _AWAKE if end is None else end)
            try:
                self.fill()
            except TimeoutError:
                if end is not None:
                    raise
        return found

    def take(self, most: int, kept: int | None = None) -> tuple[int, bytes] | None:
        """Return the next frame once all of it has come, None before; raise as `receive` does."""
        if self._long is None:
            self.missing = _HEAD.size - len(self.came)
            if self.missing > 0:
                return None
            kind, length = _HEAD.unpack_from(self.came)
            if length > most:
                raise ConnectionError(f"a frame of {length} bytes, at most {most} are read")
            if length <= _CHUNK:
                return self._short(kind, length, kept)
            self._long = self._piecewise(kind, length, kept)
        reading, self._long = self._long, None
        try:
            self.missing = next(reading)
        except StopIteration as done:
            found: tuple[int, bytes] = done.value
            return found
        self._long = reading
        return None

    def _short(self, kind: int, length: int, kept: int | None) -> tuple[int, bytes] | None:
        """Return a short frame once all of it has come."""
        end = _HEAD.size + length
        whole = end if self._keyed is None else end + _CODE
        self.missing = whole - len(self.came)
        if self.missing > 0:
            return None
        frame = self._taken(whole)
        self._check(self._mark(1, frame[:end]), frame[end:])
        if kept is not None and length > kept:
            raise Oversized(f"it has {length:,} bytes, at most {kept:,} are kept")
        return kind, frame[_HEAD.size : end]

    def _piecewise(self, kind: int, length: int, kept: int | None) -> Generator[int, None, tuple[int, bytes]]:
        """Yield how many bytes of a long frame are missing, and return it; of one that is dropped nothing is kept."""
        mark, dropped = self._mark(1, self._taken(_HEAD.size)), kept is not None and length > kept
        found, left = bytearray(), length
        while left:
            while not self.came:
                yield left
            content = self._taken(min(left, len(self.came)))
            left -= len(content)
            if mark is not None:
                mark.update(content)
            if not dropped:
                found += content
        while mark is not None and len(self.came) < _CODE:
            yield _CODE - len(self.came)
        self._check(mark, b"" if mark is None else self._taken(_CODE))
        if dropped:
            raise Oversized(f"it has {length:,} bytes, at most {kept:,} are kept")
        return kind, bytes(found)

    def _check(self, mark: hmac.HMAC | None, told: bytes) -> None:
        if mark is not None and not hmac.compare_digest(told, mark.digest()):
            raise ConnectionError("a frame whose authentication code does not fit")

    def _taken(self, length: int) -> bytes:
        """Return the first bytes of those that came."""
        if length == len(self.came):
            found, self.came = bytes(self.came), bytearray()
            return found
        found = bytes(memoryview(self.came)[:length])
        del self.came[:length]
        return found

    def fill(self) -> None:
        """Take what has come, or wait for it as the end does: with what is missing what comes behind it, if little."""
        part = self.end.recv(min(max(self.missing, _ROOM), _CHUNK))
        if not part:
            raise EOFError("the connection was ended")
        self.came += part

    def _wait_until(self, end: float | None) -> None:
        """Let the end wait until a moment of the monotonic clock; to set what is set asks the system."""
        if end is not None or self.end.gettimeout() is not None:
            self.end.settimeout(_left(end))

    def _mark(self, way: int, said: bytes) -> hmac.HMAC | None:
        """Return the HMAC of the next frame that is sent (0) or comes (1), of what it says first; None without keys."""
        if self._keyed is None:
            return None
        mark = self._keyed[way].copy()
        mark.update(_COUNT.pack(self.counts[way]) + said)
        self.counts[way] += 1
        return mark

    def is_dead(self) -> bool:
        """Whether the other end, which owes nothing and so sends nothing, has gone: then there is an end to be read."""
        try:
            with _Selector() as selector:
                selector.register(self.end, selectors.EVENT_READ)
                return bool(selector.select(0.0))
        except (OSError, ValueError):  # closed here
            return True

    def cut(self) -> None:
        """End the connection while another thread may wait for it: that one is woken, and closes it."""
        with suppress(OSError):  # of the plain socket: that of TLS would forget its state under the other thread
            socket.socket.shutdown(self.end, socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection."""
        self.cut()
        self.end.close()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _left(end: float | None) -> float | None:
    """Return the seconds until a moment.

    Raises
    ------
    TimeoutError
        If it has passed.
    """
    if end is None:
        return None
    if (rest := end - time.monotonic()) <= 0.0:
        raise TimeoutError("it took too long")
    return rest


def nonce() -> bytes:
    """Return 32 random bytes."""
    return os.urandom(32)
