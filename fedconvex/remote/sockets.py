"""A transport between processes: arrays as bytes over connections whose ends have proven their places.

`fedconvex.remote.credentials` says how: TLS with a certificate for each site, or without TLS on one machine.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, RLock
from typing import Any

import numpy as np

from fedconvex._check import bad, flag, real, whole, wrong_type
from fedconvex.remote import wire
from fedconvex.remote.authenticated_lines import ENDED, FAILED, MESSAGE, REPLACED, TAKEN, Line, Oversized
from fedconvex.remote.listener import Door, address_of
from fedconvex.remote.messages import LARGEST, refusal
from fedconvex.remote.switchboard import Member, Switchboard
from fedconvex.remote.wire import packed

_HANDSHAKE = 10.0  # seconds that a site gives the server to prove who it is
_TAKEN = "another process of it is connected"
_BETWEEN = 0.5  # seconds between attempts to reach a server


class Exchange:
    """The server's end: sites connect to it, and `fedconvex.run` takes it as a transport.

    Parameters
    ----------
    address : tuple (host, port) or path
        Where to listen; port 0 takes one that is free, see `address`.
    credentials : `TLS` or `Plain`
        How sites prove who they are: by certificates, or, on one machine, by secrets.
    sites : int
        How many there are: clients 0, ..., K - 1.
    deadline : float
        Seconds after which who has not answered is taken to be silent, also who is not connected. A site whose line
        breaks and that is back before is asked again. A site that is required is asked ``Roster(patience=)`` times.
    exclusive : bool
        Refuse a second connection of a site while the first one lives; default it takes the place. One whose other end
        is gone without a word is noticed after two minutes.

    Attributes
    ----------
    strangers : deque of (address, reason)
        Connections that could not prove a place, the last 1,000; the first ones are logged.

    Raises
    ------
    ValueError, TypeError
        If a setting is out of range, or the address is beyond this machine without TLS.
    OSError
        If the address is taken.

    Examples
    --------
    >>> from threading import Thread
    >>> from fedconvex import FedSGD, Federation, Problem, Squared, run
    >>> from fedconvex.remote import Exchange, Limits, Plain, Roster, Site, serve
    >>> make, method = (lambda fed: Problem(fed, Squared(), l2=0.1)), FedSGD(step_size=0.5)
    >>> known = Plain(bytes(range(32)))
    >>> with Exchange(("127.0.0.1", 0), known, sites=1) as exchange:
    ...     own = Federation.from_clients([([[1.0]], [1.0])], labels=["north"])
    ...     site = Site(method, make, own, limits=Limits(share=1000.0))
    ...     Thread(target=serve, args=(site, exchange.address, known.site(0), 0), daemon=True).start()
    ...     result = run(method, Roster(make, ["north"], [1], 1), transport=exchange, tol=1e-9)
    >>> result.status.name
    'CONVERGED'
    """

    bounded = True  # it is told how long answers can be

    def __init__(
        self, address: Any, credentials: Any, sites: int, deadline: float = 10.0, exclusive: bool = False
    ) -> None:
        where = address_of("Exchange.address", address)
        _credentials("Exchange.credentials", credentials)
        self.K = whole("Exchange.sites", sites, low=1)
        self.deadline = real("Exchange.deadline", deadline, low=0.0, high=1e6, strict=True)
        self.exclusive = flag("Exchange.exclusive", exclusive)
        self._members: dict[int, Member] = {}
        self._left: dict[int, Member] = {}  # whose place another connection took while they owed an answer
        self._most: Mapping[int, int] = {}  # bytes of the answers to what is asked
        self._gone: set[int] = set()  # who was not there at the last deadline
        self._events: SimpleQueue[tuple[Member, bytes | None] | None] = SimpleQueue()
        self._board = Switchboard(self._events)
        self._lock, self._calls, self._open = RLock(), Lock(), True  # a handler of signals may close it at any time
        try:
            self._door = Door("Exchange", where, credentials, self.K, self._come)
        except BaseException:
            self._board.close()
            raise
        self.address, self.strangers = self._door.address, self._door.strangers

    def _come(self, number: int, line: Line) -> None:
        """Give a site its place; a later connection takes that of an earlier one, which is told so."""
        with self._lock:
            if not self._open:
                line.close()
                return
            before = self._members.get(number)
            if self.exclusive and before is not None and not self._has_gone(before):
                self.strangers.append(("site", f"a second connection of site {number}"))
                with suppress(OSError):
                    line.send(TAKEN, b"", 1.0)
                line.close()
                return
            self._members[number] = self._board.member(number, line, max(self.deadline, 0.1))
            if before is not None:
                before.leave(REPLACED)
                if before.asked is not None and (older := self._left.get(number)) is not None:
                    older.line.cut()
                self._left[number] = before
        self._events.put(None)  # somebody is there
        self._board.wake()

    def _has_gone(self, member: Member) -> bool:
        """Whether nobody is at the other end of a line: while an answer is awaited that is noticed."""
        return member.ended.is_set() or (member.asked is None and member.line.is_dead())

    def __call__(
        self, t: int, requests: Mapping[int, dict[str, np.ndarray]], most: Mapping[int, int] | None = None
    ) -> dict[int, Any]:
        """Send requests, and return what came back before the deadline; an answer of more bytes than ``most`` refuses.

        Nobody waits for sites that missed the last deadline, unless only such sites are asked.
        """
        with self._calls:  # one after the other: answers are events for whoever waits
            return self._answers(requests, most or {})

    def _answers(self, requests: Mapping[int, dict[str, np.ndarray]], most: Mapping[int, int]) -> dict[int, Any]:
        """Send requests, and return what came back before the deadline."""
        self._check_open()
        self._most = most
        end, answers = time.monotonic() + self.deadline, {}  # type: float, dict[int, Any]
        contents: dict[int, bytes] = {}
        for k, (question, content) in self._drain().items():
            if k in requests and question == contents.setdefault(k, packed(requests[k])):
                answers[k] = unpacked(content)  # it was asked this before, and late
        missed = {k for k in requests if self._missed(k)}
        waited = (set(requests) if len(missed) == len(requests) else requests.keys() - missed) - answers.keys()
        asked: dict[int, Member] = {}  # who owes one of these answers
        known = -1
        while len(answers) < len(requests):
            for k in requests.keys() - answers.keys() if len(answers) == known or known < 0 else ():
                self._ask(k, requests, contents, asked)  # an answer changes nothing for others
            if not (waited or asked):
                break
            known = len(answers)
            if not self._next(end, asked, answers, waited):
                break
        self._gone |= {k for k in requests if k not in answers and k not in self._members}
        self._gone -= answers.keys()
        return answers

    def _check_open(self) -> None:
        """Raise a ConnectionError unless lines are carried."""
        if not (self._open and self._board.open):
            why = self._board.fault or "it was closed"
            text = f"Exchange: its connections must be open; they were ended: {why}"
            raise ConnectionError(f"{text}; start the run again from its checkpoint") from self._board.fault

    def _ask(self, k: int, requests: Any, contents: dict[int, bytes], asked: dict[int, Member]) -> None:
        """Ask a site that is there, and has not been asked this yet over its present line."""
        member = self._members.get(k)
        if member is None or asked.get(k) is member:
            return
        if k not in contents:
            contents[k] = packed(requests[k])
        if member.asked is None:
            member.ask(contents[k], self._most.get(k, LARGEST))
        elif member.asked != contents[k]:
            return  # it owes an answer to something else; else it has been at it since an earlier deadline
        asked[k] = member

    def _next(self, end: float, asked: dict[int, Member], answers: dict[int, Any], waited: set[int]) -> bool:
        """Take what comes next: an answer, a line that broke, or somebody new; False after the deadline."""
        if self._events.empty():
            self._board.carry(end, lambda: not self._events.empty())
        self._check_open()
        try:
            event = self._events.get_nowait()
        except Empty:
            return False
        if event is not None:
            member, content = event
            k = member.number
            self._note(member, content)
            if asked.get(k) is member:
                del asked[k]
                if content is not None:
                    answers[k] = unpacked(content)
                    waited.discard(k)
        return time.monotonic() < end or not self._events.empty()  # what is there has come in time

    def _note(self, member: Member, content: bytes | None) -> None:
        """Note that a site has answered, or that its line broke."""
        member.asked = None
        if content is None:
            with self._lock:
                for members in (self._members, self._left):
                    if members.get(member.number) is member:
                        del members[member.number]

    def _drain(self) -> dict[int, tuple[bytes, bytes]]:
        """Take note of what came since the last request, and of what was taken but not noted when Ctrl-C came.

        Returns questions and answers by site.
        """
        late: dict[int, tuple[bytes, bytes]] = {}
        if owing := [member for member in self._members.copy().values() if member.asked is not None]:
            self._board.carry(0.0, lambda: False)
            owing = [member for member in owing if self._board.is_idle(member)]
        with suppress(Empty):
            while True:
                if (event := self._events.get_nowait()) is not None:
                    member, content = event
                    if content is not None and member.asked is not None:
                        late[member.number] = member.asked, content
                    self._note(member, content)
        for member in owing:
            if member.asked is not None:
                self._note(member, None if member.ended.is_set() else b"")
        return late

    def _missed(self, k: int) -> bool:
        """Whether a site missed the last deadline, and has neither answered nor come back since."""
        member = self._members.get(k)
        return k in self._gone if member is None else member.asked is not None

    def close(self, error: BaseException | None = None) -> None:
        """End all connections: `serve` returns at the sites, or raises where the run has ended with an error."""
        self._open = False
        self._events.put(None)  # who waits in another thread is told
        self._board.wake()
        try:
            self._door.close()
            with self._lock:
                members = [*self._members.values(), *self._left.values()]
                self._members, self._left = {}, {}
            for member in members:
                member.leave(*((ENDED,) if error is None else (FAILED, type(error).__name__.encode())))
            end = time.monotonic() + self.deadline
            self._board.carry(end, lambda: all(member.ended.is_set() for member in members))
        finally:  # also where Ctrl-C ends the wait
            self._board.close()

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.close(error)


def serve(site: Any, address: Any, credentials: Any, number: int, wait: float = 60.0) -> None:
    """Return None once a server says that its run is over; until then, answer what it asks of a site.

    A server that does not listen yet, or whose connection breaks, is tried again; the logger ``fedconvex`` says so.

    Parameters
    ----------
    site : Site
    address : tuple (host, port) or path
        Of the server's `Exchange`.
    credentials : `TLS` or `Plain`
        Of this site.
    number : int
        The site's place in the roster.
    wait : float
        Seconds in which a server must be reached: at first, and again once the connection broke.

    Raises
    ------
    ValueError, TypeError
        If there is no site, either end does not accept the other's credentials, these are of another place, or the
        server has fewer sites.
    ConnectionError
        If the server is not reached for so long, its run has ended with an error, or another process has taken the
        site's place.

    Examples
    --------
    >>> from fedconvex.remote import Plain, serve
    >>> serve("no site", "somewhere", Plain(bytes(32)), number=0)
    Traceback (most recent call last):
    ...
    TypeError: serve: site must be a Site; got 'no site'
    """
    if not hasattr(site, "answer"):
        raise wrong_type("serve: site", "be a Site", f"{site!r}")
    whole("serve: number", number, high=1 << 40)
    where, wait = address_of("serve: address", address), real("serve: wait", wait, low=0.0, high=1e9)
    _credentials("serve: credentials", credentials)
    credentials.check_site(number)
    log, name = logging.getLogger("fedconvex"), f"site {getattr(site, 'label', number)}"
    end = time.monotonic() + wait  # of trying to have the place
    while True:
        with _reached(name, where, credentials, number, wait) as line:
            lost = _answered(site, line)
        if lost is None:
            return
        if lost != _TAKEN:
            end = time.monotonic() + wait
        elif time.monotonic() >= end:
            raise ConnectionError(f"serve: this process must be the only one of its site; {_TAKEN}")
        else:
            time.sleep(min(_BETWEEN, wait))
        log.error("%s: the connection to the server broke before the run was over (%s)", name, lost)


def _reached(name: str, where: Any, credentials: Any, number: int, wait: float) -> Line:
    """Return the line to a server, after trying for so many seconds."""
    end, told = time.monotonic() + wait, False
    while True:
        try:
            line, K = _entered(where, credentials, number)
            break
        except (OSError, EOFError) as error:
            why = str(error) or "no answer"
        if time.monotonic() >= end:
            text = f"serve: {where!r} must listen; got {why}, in {wait:g} s"
            logging.getLogger("fedconvex").error("%s: %s", name, text)
            raise ConnectionError(text)
        if not told:
            logging.getLogger("fedconvex").warning("%s: trying for %g s to reach %r (%s)", name, wait, where, why)
            told = True
        time.sleep(min(_BETWEEN, max(end - time.monotonic(), 0.0)))
    if number >= K:
        line.close()
        raise bad("serve: number", f"be below {K}, the number of sites", number)
    return line


def _entered(where: Any, credentials: Any, number: int) -> tuple[Line, int]:
    """Connect, and return the line and the number of sites."""
    if isinstance(where, tuple):
        end, host = socket.create_connection(where, _HANDSHAKE), where[0]
    else:
        end, host = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), "localhost"
    try:
        if not isinstance(where, tuple):
            end.connect(where)
        found: tuple[Line, int] = credentials.enter(end, host, number, _HANDSHAKE)
        return found
    except BaseException:
        end.close()
        raise


def _answered(site: Any, line: Line) -> str | None:
    """Answer until the run is over, and return None; or why the connection broke.

    Raises
    ------
    ConnectionError
        If there is no use in trying again.
    """
    try:
        while True:
            try:
                kind, content = line.receive(LARGEST, kept=site.longest() if hasattr(site, "longest") else None)
            except Oversized as error:
                logging.getLogger("fedconvex").error("site %s: a request refused: %s", site.label, error)
                known = hasattr(site, "refuse")  # it keeps a log
                line.send(MESSAGE, packed(site.refuse(str(error)) if known else refusal(f"site {site.label}: {error}")))
                continue
            if kind == ENDED:
                return None
            if kind == TAKEN:
                return _TAKEN
            if kind in (FAILED, REPLACED):
                break
            line.send(MESSAGE, packed(site.answer(unpacked(content))))
    except (EOFError, OSError) as error:
        return str(error) or type(error).__name__
    if kind == REPLACED:
        raise ConnectionError("serve: this process must be the only one of its site; another one took its place")
    got = content[:80].decode(errors="replace")
    raise ConnectionError(f"serve: the server's run must end well; got {got!r} there: its own messages say more")


def _credentials(who: str, x: Any) -> None:
    """Raise unless an object says who is who."""
    if isinstance(x, type) or not hasattr(x, "admit"):
        cure = "Plain(secret) on one machine, certificates between machines"
        raise wrong_type(who, "be TLS(certificate, key, authority) or Plain(secret)", type(x).__name__, cure)


def unpacked(content: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of a message, nothing if they are none: what lacks a header is refused."""
    try:
        return wire.unpacked(content)
    except Exception:  # whatever a damaged or foreign message makes its reader raise
        return {}
