"""One thread for the lines to all sites: it sends each its request, and takes the answers as they come.

No line waits for another one: bytes are sent and taken as far as they go, and what a line does next is a generator,
which goes on when there is more to do. A thread for each line would cost two changes of threads a message.
"""

from __future__ import annotations

import logging
import selectors
import socket
import ssl
import time
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from queue import Empty, SimpleQueue
from selectors import EVENT_READ, EVENT_WRITE
from threading import Event, Thread
from typing import Any

from fedconvex.remote.authenticated_lines import MESSAGE, Line, Oversized
from fedconvex.remote.messages import LARGEST, refusal
from fedconvex.remote.wire import packed

_WANTS: dict[type[OSError], int] = {ssl.SSLWantReadError: EVENT_READ, ssl.SSLWantWriteError: EVENT_WRITE}
_BLOCKED = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Member:
    """The server's end of the line to one site: it is sent a request, and its answer is awaited.

    Parameters
    ----------
    number : int
    line : Line
    board : Switchboard
    seconds : float
        In which a site must have read a request.
    """

    def __init__(self, number: int, line: Line, board: Switchboard, seconds: float) -> None:
        self.number, self.line, self.board, self.seconds = number, line, board, seconds
        self.asked: bytes | None = None  # what it owes an answer to
        self.ended = Event()  # once its line is closed
        self.orders: deque[tuple[int, bytes, int]] = deque()
        self.work = self._work()
        self.wanted, self.watched = 0, 0  # the event that must come first, and those that the board is told of
        self.stop: float | None = None  # when what is sent must have been read
        line.end.settimeout(0.0)

    def ask(self, content: bytes, most: int) -> None:
        """Send a request; the answer, of at most so many bytes, is an event."""
        self.asked = content
        self._order(MESSAGE, content, most)

    def leave(self, kind: int, why: bytes = b"") -> None:
        """Tell the site, once it owes no answer, that there will be no more, and why."""
        self._order(kind, why, 0)

    def _order(self, *order: Any) -> None:
        self.orders.append(order)
        self.board.call(self)

    def _work(self) -> Generator[int, None, None]:
        """Carry out orders until the line ends; yield which event must come first, 0 for the next order."""
        while True:
            while not self.orders:
                yield 0
            kind, content, most = self.orders.popleft()
            yield from self._send(kind, content)
            if kind != MESSAGE:
                return
            try:
                kind, answer = yield from self._receive(most)
            except Oversized as error:
                answer = packed(refusal(str(error)))
            if kind != MESSAGE:
                return
            self.board.events.put((self, answer))

    def _send(self, kind: int, content: bytes) -> Generator[int, None, None]:
        self.stop = time.monotonic() + self.seconds
        for part in self.line.frame(kind, content):
            view = memoryview(part)
            while view:
                try:
                    view = view[self.line.end.send(view) :]
                except _BLOCKED as error:
                    yield _WANTS.get(type(error), EVENT_WRITE)
        self.stop = None

    def _receive(self, most: int) -> Generator[int, None, tuple[int, bytes]]:
        reading = self.line.reading(LARGEST, kept=most)
        try:
            while True:
                missing = next(reading)
                if not self._holds():
                    yield EVENT_READ
                try:
                    self.line.fill(missing)
                except _BLOCKED as error:
                    if (wanted := _WANTS.get(type(error), EVENT_READ)) != EVENT_READ:
                        yield wanted
        except StopIteration as done:
            found: tuple[int, bytes] = done.value
            return found

    def _holds(self) -> bool:
        """Whether TLS has deciphered more than was taken: no event tells of it."""
        return isinstance(self.line.end, ssl.SSLSocket) and self.line.end.pending() > 0


class Switchboard:
    """Carries out what members are ordered, in a thread.

    Parameters
    ----------
    events : queue
        Gets (member, answer), answer None where the line is dead.
    """

    def __init__(self, events: SimpleQueue[Any]) -> None:
        self.events, self.open = events, True
        self._called: SimpleQueue[Member] = SimpleQueue()  # members with new orders
        self._ring, self._bell = socket.socketpair()
        self._rung = False
        self._bell.setblocking(False)
        self._members: set[Member] = set()
        self._sending: set[Member] = set()  # whose sites have not read all of a request yet
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell, EVENT_READ)
        self._thread = Thread(target=self._work, daemon=True)
        self._thread.start()

    def member(self, number: int, line: Line, seconds: float) -> Member:
        """Return the member at the other end of a line."""
        member = Member(number, line, self, seconds)
        self.call(member)
        return member

    def call(self, member: Member) -> None:
        """Let a member go on: it is new, or has new orders."""
        self._called.put(member)
        if not self._rung:
            self._ring_once()

    def close(self) -> None:
        """End all lines."""
        self.open = False
        self._ring_once()
        self._thread.join()

    def _ring_once(self) -> None:
        self._rung = True
        with suppress(OSError):  # it is closed, or has rung often
            self._ring.send(b"\0")

    def _work(self) -> None:
        try:
            while self.open:
                for key, _ in self._selector.select(self._patience()):
                    if key.data is None:
                        self._listen()
                    else:
                        self._notice(key.data)
                for member in [m for m in self._sending if m.stop is not None and time.monotonic() >= m.stop]:
                    self._end(member)
        finally:
            self._listen()
            for member in list(self._members):
                self._end(member)
            for closed in (self._selector, self._bell, self._ring):
                closed.close()

    def _patience(self) -> float | None:
        """Return the seconds until the first site must have read what it is sent."""
        stops = [m.stop for m in self._sending if m.stop is not None]
        return max(min(stops) - time.monotonic(), 0.0) if stops else None

    def _listen(self) -> None:
        """Let members go on that were called."""
        with suppress(OSError):  # nobody rang
            self._bell.recv(1 << 10)
        self._rung = False  # before it is seen who called: who calls later rings again
        with suppress(Empty):
            while True:
                member = self._called.get_nowait()
                if not member.ended.is_set():
                    self._members.add(member)
                    self._go_on(member)

    def _notice(self, member: Member) -> None:
        """Let a member go on whose line has changed; one that awaits nothing looks at it when it has orders."""
        if member.wanted:
            self._go_on(member)
        else:
            self._watch(member, 0)

    def _go_on(self, member: Member) -> None:
        try:
            member.wanted = next(member.work)
        except (StopIteration, OSError, EOFError):
            self._end(member)
            return
        except Exception:  # whatever breaks a line breaks no other one
            logging.getLogger("fedconvex").exception("the line to site %d is ended", member.number)
            self._end(member)
            return
        (self._sending.discard if member.stop is None else self._sending.add)(member)
        if member.wanted and member.wanted != member.watched:  # who awaits nothing is watched on: it will be asked
            self._watch(member, member.wanted)

    def _watch(self, member: Member, events: int) -> None:
        """Watch a line for events, 0 for none."""
        if not events:
            self._selector.unregister(member.line.end)
        elif member.watched:
            self._selector.modify(member.line.end, events, member)
        else:
            self._selector.register(member.line.end, events, member)
        member.watched = events

    def _end(self, member: Member) -> None:
        if member.watched:
            self._watch(member, 0)
        member.line.close()
        self._members.discard(member)
        self._sending.discard(member)
        member.ended.set()
        self.events.put((member, None))
