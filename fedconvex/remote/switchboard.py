"""The lines to all sites, carried by one thread at a time: requests are sent, and answers taken as they come.

No line waits for another one: bytes are sent and taken as far as they go, and what a line does next is a generator,
which goes on when there is more to do. Who waits for answers takes them in its own thread; while nobody waits, a thread
of the board does. A thread for each line would cost two changes of threads a message.
"""

from __future__ import annotations

import logging
import selectors
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from queue import SimpleQueue
from selectors import EVENT_READ, EVENT_WRITE
from threading import Event, Lock, RLock, Thread, get_ident
from typing import Any

from fedconvex.remote.authenticated_lines import MESSAGE, Line, Oversized
from fedconvex.remote.messages import LARGEST, refusal
from fedconvex.remote.wire import packed

_WANTS: dict[type[OSError], int] = {ssl.SSLWantReadError: EVENT_READ, ssl.SSLWantWriteError: EVENT_WRITE}
_BLOCKED = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_PAUSE = 0.05  # seconds after which the board's own thread takes over from who waited for answers
_STUCK = 10.0  # seconds that closing waits for that thread at most


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
        try:
            self.board.order(self, (MESSAGE, content, most))
        except BaseException:  # Ctrl-C: whether it is asked is not known
            self.board.end(self)
            raise

    def leave(self, kind: int, why: bytes = b"") -> None:
        """Tell the site, once it owes no answer, that there will be no more, and why."""
        self.board.order(self, (kind, why, 0))

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
        while (found := self.line.take(LARGEST, kept=most)) is None:
            if not self._holds():
                yield EVENT_READ
            while True:  # once TLS could do what it wanted to do first, no other event need come
                try:
                    self.line.fill()
                    break
                except _BLOCKED as error:
                    yield _WANTS.get(type(error), EVENT_READ)
        return found

    def _holds(self) -> bool:
        """Whether TLS has deciphered more than was taken: no event tells of it."""
        return isinstance(self.line.end, ssl.SSLSocket) and self.line.end.pending() > 0


class Switchboard:
    """Carries out what members are ordered.

    Parameters
    ----------
    events : queue
        Gets (member, answer), answer None where the line is dead.

    Attributes
    ----------
    open : bool
        Whether lines are carried; members of a board that is not end at once.
    fault : exception or None
        Why they are no longer, where nobody has closed the board.
    """

    def __init__(self, events: SimpleQueue[Any]) -> None:
        self.events, self.open, self.fault = events, True, None  # type: SimpleQueue[Any], bool, BaseException | None
        self._ring, self._bell = socket.socketpair()  # wakes who selects
        for end in (self._ring, self._bell):
            end.setblocking(False)
        self._members: set[Member] = set()
        self._sending: set[Member] = set()  # whose sites have not read all of a request yet
        self._over: list[Line] = []  # that have ended, and are closed once nobody selects among them
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell, EVENT_READ)
        self._lines, self._selecting = RLock(), Lock()  # one thread changes lines, and one selects, at a time
        self._carried = -_PAUSE  # when somebody waited last
        self._carriers: set[object] = set()  # a token of everybody who waits
        self._holder: int | None = None  # the thread of who does it
        self._closing = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def member(self, number: int, line: Line, seconds: float) -> Member:
        """Return the member at the other end of a line."""
        member = Member(number, line, self, seconds)
        with self._lines:
            self._members.add(member)
            if not self.open:
                self._end(member)
        return member

    def order(self, member: Member, order: tuple[int, bytes, int]) -> None:
        """Give a member an order; one that waits for nothing carries it out as far as it goes."""
        with self._lines:
            if member.ended.is_set():
                return
            if not self.open:
                self._end(member)
                return
            member.orders.append(order)
            if member.wanted:
                return
            before = member.watched
            self._guarded(member, self._advance)
            as_before = member.watched == before and member.stop is None and not member.ended.is_set()
        if not as_before:
            self.wake()

    def carry(self, end: float, done: Callable[[], bool]) -> None:
        """Carry all lines in this thread until something is done, the board is closed, or a moment has come.

        Once at least: what is there already is taken though the moment has passed. A handler of signals that calls it
        while its thread carries lines returns at once: they are carried on when it is done.
        """
        if self._holder == get_ident():
            return
        token = object()
        try:  # Ctrl-C comes between any two calls: with statements give locks back all the same
            self._carriers.add(token)
            if self._selecting.locked():
                self.wake()
            with self._selecting:
                self._holder = get_ident()
                try:
                    left = 1.0
                    while self.open and not done() and left > 0.0:
                        left = end - time.monotonic()
                        self._turn(max(left, 0.0))
                finally:
                    self._holder = None
        except Exception as error:
            self._fail(error)
        finally:
            self._carriers.discard(token)
            self._carried = time.monotonic()

    def wake(self) -> None:
        """Let who selects look anew."""
        with suppress(OSError):  # it is closed, or was woken often
            self._ring.send(b"\0")

    def end(self, member: Member) -> None:
        """End the line of a member."""
        with self._lines:
            self._end(member)
        self.wake()

    def is_idle(self, member: Member) -> bool:
        """Whether a member has nothing to do: what it was asked is answered, or will not be."""
        with self._lines:
            return member.ended.is_set() or not (member.wanted or member.orders)

    def close(self) -> None:
        """End all lines."""
        self._shut(None)
        if self._holder != get_ident():  # else it ends once this thread is out of `carry`
            self._thread.join(_STUCK)

    def _run(self) -> None:
        fault: BaseException | None = RuntimeError("its thread has ended")
        try:
            while self.open:
                if self._carriers or time.monotonic() < self._carried + _PAUSE:
                    self._closing.wait(_PAUSE)
                    continue
                with self._selecting:
                    if self.open and not self._carriers:
                        self._turn(None)
            fault = None
        except Exception as error:
            self._fail(error)
        finally:  # whoever comes later must not wait for it
            self._shut(fault)
            with self._selecting:
                self._close_lines()
                for closed in (self._selector, self._bell, self._ring):
                    closed.close()

    def _fail(self, error: Exception) -> None:
        logging.getLogger("fedconvex").error("the lines to all sites are ended", exc_info=error)
        self._shut(error)

    def _shut(self, fault: BaseException | None) -> None:
        """Carry no line any more, and end all."""
        with self._lines:
            if self.open:
                self.open, self.fault = False, fault
            for member in list(self._members):
                self._end(member)
        self._closing.set()
        self.wake()

    def _turn(self, seconds: float | None) -> None:
        """Let lines go on that have changed, once some have, or so many seconds have passed."""
        self._close_lines()
        waits = [seconds, self._patience()]
        ready = self._selector.select(min((s for s in waits if s is not None), default=None))
        with self._lines:
            for key, _ in ready:
                if key.data is None:
                    self._hear()
                else:
                    self._notice(key.data)
            if self._sending:
                now = time.monotonic()
                for member in [m for m in self._sending if m.stop is not None and now >= m.stop]:
                    self._end(member)

    def _patience(self) -> float | None:
        """Return the seconds until the first site must have read what it is sent."""
        with self._lines:
            stops = [m.stop for m in self._sending if m.stop is not None]
        return max(min(stops) - time.monotonic(), 0.0) if stops else None

    def _hear(self) -> None:
        with suppress(OSError):  # it was heard already
            self._bell.recv(1 << 10)

    def _notice(self, member: Member) -> None:
        """Let a member go on whose line has changed; one that awaits nothing looks at it when it has orders."""
        if not member.ended.is_set():  # since the lines were looked at
            self._guarded(member, self._advance if member.wanted else self._look_away)

    def _guarded(self, member: Member, work: Callable[[Member], None]) -> None:
        """Do something for a member; whatever breaks its line breaks no other one."""
        try:
            work(member)
        except (StopIteration, OSError, EOFError):
            self._end(member)
        except Exception:
            logging.getLogger("fedconvex").exception("the line to site %d is ended", member.number)
            self._end(member)
        except BaseException:  # Ctrl-C: its work is given up wherever it was
            self._end(member)
            raise

    def _advance(self, member: Member) -> None:
        member.wanted = next(member.work)
        (self._sending.discard if member.stop is None else self._sending.add)(member)
        if member.wanted and member.wanted != member.watched:  # who awaits nothing is watched on: it will be asked
            self._watch(member, member.wanted)

    def _look_away(self, member: Member) -> None:
        self._watch(member, 0)

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
        """End a line, once: what its member was ordered is lost, and who waits for it is told."""
        if member.ended.is_set():
            return
        self._members.discard(member)
        self._sending.discard(member)
        watched = member.watched
        try:
            if watched:
                self._watch(member, 0)
        except Exception:
            logging.getLogger("fedconvex").exception("the line to site %d was not ended well", member.number)
        finally:
            if watched:
                member.line.cut()
                self._over.append(member.line)
            else:
                member.line.close()
            member.ended.set()
            self.events.put((member, None))

    def _close_lines(self) -> None:
        """Close lines that have ended: where one is closed while another thread selects among it, systems differ."""
        with self._lines:
            over, self._over = self._over, []
            for line in over:
                with suppress(OSError):
                    line.close()
