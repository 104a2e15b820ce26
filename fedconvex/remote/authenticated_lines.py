"""Frames over a socket: what travels between a server and one site once a connection is made.

A frame is a kind (1 byte), a length (8 bytes, big-endian) and so many bytes. Where TLS does not protect it, an
HMAC-SHA256 over direction, count of frames so far, kind, length and content follows: a frame that is changed, repeated,
left out or sent back ends the connection.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import select
import socket
import struct
import time
from contextlib import suppress
from typing import NamedTuple

HELLO, MESSAGE, ENDED, FAILED, REPLACED, TAKEN = range(6)  # kinds; the last four end a connection, and say why
_CHUNK = 1 << 20  # bytes that are asked for at once: nothing is set aside for a length that is only claimed
_HEAD = struct.Struct(">BQ")
_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}  # a peer that is gone is noticed in two minutes


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
        if end.family != getattr(socket, "AF_UNIX", None):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _ALIVE.items():
                if hasattr(socket, name):
                    end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, kind: int, content: bytes = b"", seconds: float | None = None) -> None:
        """Send a frame, within so many seconds.

        Raises
        ------
        OSError
            If the connection is dead, or the other end does not read.
        """
        head = _HEAD.pack(kind, len(content))
        parts = [head, content]
        if (mark := self._mark(0, head)) is not None:
            mark.update(content)
            parts.append(mark.digest())
        end = None if seconds is None else time.monotonic() + seconds
        for part in parts if len(content) > _CHUNK else [b"".join(parts)]:
            view = memoryview(part)
            while view:
                self.end.settimeout(_left(end))
                view = view[self.end.send(view) :]

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
        head = self.read(_HEAD.size, end)
        kind, length = _HEAD.unpack(head)
        if length > most:
            raise ConnectionError(f"a frame of {length} bytes, at most {most} are read")
        mark, content = self._mark(1, head), b""
        dropped = kept is not None and length > kept
        told = b""
        if mark is not None and not dropped and length <= _CHUNK:  # what is short comes at once
            content, told = _apart(self.read(length + 32, end), length)
            mark.update(content)
        else:
            for at in range(0, length, _CHUNK if dropped else max(length, 1)):
                content = self.read(min(length - at, _CHUNK) if dropped else length, end)
                if mark is not None:
                    mark.update(content)
        if mark is not None and not hmac.compare_digest(told or self.read(32, end), mark.digest()):
            raise ConnectionError("a frame whose authentication code does not fit")
        if dropped:
            raise Oversized(f"it has {length:,} bytes, at most {kept:,} are kept")
        return kind, content

    def read(self, length: int, end: float | None) -> bytes:
        """Return so many bytes, read until a moment of the monotonic clock."""
        found = bytearray()
        while len(found) < length:
            if end is not None or self.end.gettimeout() is not None:  # to set what is set asks the system
                self.end.settimeout(_left(end))
            part = self.end.recv(min(length - len(found), _CHUNK))
            if not part:
                raise EOFError("the connection was ended")
            found += part
        return bytes(found)

    def _mark(self, way: int, head: bytes) -> hmac.HMAC | None:
        """Return the HMAC of the next frame that is sent (0) or comes (1), before its content; None without keys."""
        if self.keys is None:
            return None
        mark = hmac.new(self.keys[way], struct.pack(">Q", self.counts[way]) + head, hashlib.sha256)
        self.counts[way] += 1
        return mark

    def is_dead(self) -> bool:
        """Whether the other end, which owes nothing and so sends nothing, has gone: then there is an end to be read."""
        try:
            return bool(select.select([self.end], [], [], 0.0)[0])
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


def _apart(content: bytes, length: int) -> tuple[bytes, bytes]:
    return content[:length], content[length:]


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
