"""A transport between processes: arrays as npz over connections, with a shared secret and a deadline.

Both ends prove that they know the secret (HMAC, as `multiprocessing.connection` does it); what travels is not
encrypted: over a network, let it run through a tunnel.
"""

from __future__ import annotations

import io
import os
import socket
import struct
import time
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge, wait
from threading import Lock, Thread
from typing import Any

import numpy as np

from fedconvex._check import bad, instance, real, whole, wrong_type
from fedconvex._files import npz
from fedconvex.remote.messages import MEASURE, REFUSE, fingerprint

__all__ = ["Exchange", "serve"]

_LARGEST = 1 << 30  # bytes of a message
_HANDSHAKE = 10.0  # seconds that either end may take to prove that it knows the secret


class Exchange:
    """The server's end: sites connect to it, and `fedconvex.run` takes it as a transport.

    Parameters
    ----------
    address : tuple (host, port) or path
        Where to listen; port 0 takes one that is free, see `address`.
    secret : bytes
        Known to all sites.
    sites : int
        How many there are: clients 0, ..., K - 1.
    deadline : float
        Seconds after which who has not answered is left out. Later rounds do not wait for it until it is back.

    Raises
    ------
    ValueError, TypeError
        If a setting is out of range.
    OSError
        If the address is taken.

    Examples
    --------
    >>> from threading import Thread
    >>> from fedconvex import FedSGD, Federation, Problem, Squared, run
    >>> from fedconvex.remote import Exchange, Roster, Site, serve
    >>> make, method = (lambda fed: Problem(fed, Squared(), l2=0.1)), FedSGD(step_size=0.5)
    >>> with Exchange(("127.0.0.1", 0), b"secret", sites=1) as exchange:
    ...     site = Site(method, make, Federation.from_clients([([[1.0]], [1.0])], labels=["north"]))
    ...     Thread(target=serve, args=(site, exchange.address, b"secret", 0), daemon=True).start()
    ...     result = run(method, Roster(make, ["north"], [1], 1), transport=exchange, tol=1e-9)
    >>> result.status.name
    'CONVERGED'
    """

    def __init__(self, address: Any, secret: bytes, sites: int, deadline: float = 10.0) -> None:
        _secret("Exchange.secret", secret)
        self.K = whole("Exchange.sites", sites, low=1)
        self.deadline = real("Exchange.deadline", deadline, low=0.0, high=1e6, strict=True)
        where = _address("Exchange.address", address)
        try:
            # without the secret: a stranger's silence would keep all others out; with room for all to come at once:
            # whom the queue has no room for tries again a second later
            self._listener = Listener(where, backlog=min(self.K + 16, 4096))
        except OSError as error:
            text = f"Exchange.address {where!r} must be free to listen at ({error.strerror})"
            raise OSError(error.errno, text) from error
        self.address, self._secret = self._listener.address, secret
        self._lines: dict[int, Connection] = {}
        self._late: set[Connection] = set()  # sites that owe an answer since the last deadline
        self._gone: set[int] = set()  # and those that were not there
        self._lock, self._open = Lock(), True
        self._door = Thread(target=self._accept, daemon=True)
        self._door.start()

    def _accept(self) -> None:
        """Let sites in, each in a thread of its own."""
        while self._open:
            try:
                line = self._listener.accept()
            except OSError:
                time.sleep(0.01)
                continue
            Thread(target=self._admit, args=(line,), daemon=True).start()

    def _admit(self, line: Connection) -> None:
        """Let a site in that knows the secret; a later connection of a client takes the place of an earlier one."""
        try:
            _limit(line, _HANDSHAKE)
            deliver_challenge(line, self._secret)
            answer_challenge(line, self._secret)
            number = int.from_bytes(line.recv_bytes(8), "little")
            line.send_bytes(self.K.to_bytes(8, "little"))
            _limit(line, max(self.deadline, 0.1))  # a site that stops in the middle of a message is gone
        except (OSError, EOFError, AuthenticationError):
            number = -1
        with self._lock:
            if self._open and 0 <= number < self.K:
                self._lines[number] = line
            else:
                line.close()

    def __call__(self, t: int, requests: Mapping[int, dict[str, np.ndarray]]) -> dict[int, Any]:
        """Send requests, and return what came back before the deadline.

        Nobody waits for sites that missed the last deadline, unless only such sites are asked for work: they are asked
        again once they have answered the earlier request, or are connected anew.
        """
        end, answers = time.monotonic() + self.deadline, {}  # type: float, dict[int, Any]
        waiting: dict[Connection, int] = {}
        left, absent = dict(requests), {k for k in requests if self._is_absent(k)}
        patient = len(absent) == len(requests) and any(_kind(a) != MEASURE for a in requests.values())
        while left or waiting:
            for k in [k for k in left if self._is_free(k)]:
                line = self._lines[k]
                absent.discard(k)
                if self._sent(k, line, npz(left.pop(k))):
                    waiting[line] = k
            rest = end - time.monotonic()
            if rest <= 0.0 or not (waiting or patient or left.keys() - absent):
                break
            for line in self._ready(waiting, min(rest, 0.05) if left else rest):
                k = waiting[line]
                answer = self._received(k, line)
                if answer is not None and not _late(answer, requests[k]):
                    answers[k] = answer
                if answer is None or k in answers:
                    del waiting[line]
        self._late |= set(waiting)
        self._gone = (self._gone | left.keys()) - answers.keys()
        return answers

    def _is_absent(self, k: int) -> bool:
        """Whether a site missed the last deadline, and has neither answered nor come back since."""
        return k in self._gone if k not in self._lines else not self._is_free(k)

    def _is_free(self, k: int) -> bool:
        """Whether a site is connected and has answered what it was asked before, if only now."""
        line = self._lines.get(k)
        if line in self._late and line is not None and line in wait([line], 0.0):
            self._received(k, line)
            self._late.discard(line)
        return k in self._lines and self._lines[k] not in self._late

    @staticmethod
    def _ready(waiting: Mapping[Connection, int], seconds: float) -> list[Connection]:
        """Return the lines on which something came, after so many seconds at most."""
        if not waiting:  # until a site that is not there yet connects
            time.sleep(min(seconds, 0.01))
        return [line for line in wait(list(waiting), seconds) if isinstance(line, Connection)] if waiting else []

    def _sent(self, k: int, line: Connection, content: bytes) -> bool:
        try:
            line.send_bytes(content)
        except OSError:
            self._drop(k, line)
            return False
        return True

    def _received(self, k: int, line: Connection) -> Any:
        """Return an answer, or None where the line is dead."""
        try:
            return unpacked(line.recv_bytes(_LARGEST))
        except (OSError, EOFError):
            self._drop(k, line)
            return None

    def _drop(self, k: int, line: Connection) -> None:
        with self._lock:
            line.close()
            self._late.discard(line)
            if self._lines.get(k) is line:
                del self._lines[k]

    def close(self) -> None:
        """End all connections: `serve` returns at the sites."""
        self._open = False
        with suppress(OSError):
            Client(self.address).close()  # wakes the thread that waits for sites, which holds the address
        self._door.join(1.0)
        self._listener.close()
        for k, line in list(self._lines.items()):
            self._drop(k, line)

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def serve(site: Any, address: Any, secret: bytes, number: int) -> None:
    """Answer what a server asks of a site, until it ends the connection.

    Parameters
    ----------
    site : Site
    address : tuple (host, port) or path
        Of the server's `Exchange`.
    secret : bytes
    number : int
        The site's place in the roster.

    Raises
    ------
    ValueError, TypeError
        If there is no site, the secret is another one, or the server has fewer sites.
    ConnectionError
        If the server does not listen.
    """
    _secret("serve: secret", secret)
    if not hasattr(site, "answer"):
        raise wrong_type("serve: site", "be a Site", f"{site!r}")
    content = whole("serve: number", number, high=1 << 40).to_bytes(8, "little")
    address = _address("serve: address", address)
    try:
        line = Client(address)
        _limit(line, _HANDSHAKE)
        answer_challenge(line, secret)
        deliver_challenge(line, secret)
        line.send_bytes(content)
        K = int.from_bytes(line.recv_bytes(8), "little")
        _limit(line, 0.0)
    except AuthenticationError as error:
        raise bad("serve: secret", "be that of the server", "another", f"{error}") from None
    except (OSError, EOFError) as error:
        raise ConnectionError(f"serve: {address!r} must listen; got {error or 'no answer'}") from None
    with line:
        if number >= K:
            raise bad("serve: number", f"be below {K}, the number of sites", number)
        while True:
            try:
                line.send_bytes(npz(site.answer(unpacked(line.recv_bytes(_LARGEST)))))
            except (EOFError, OSError):
                return


def _limit(line: Connection, seconds: float) -> None:
    """Let reading and writing fail after so many seconds without a byte, 0 for never; have dead peers found."""
    if os.name != "posix":
        return
    with socket.socket(fileno=os.dup(line.fileno())) as end:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            end.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", int(seconds), int(seconds % 1.0 * 1e6)))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _secret(who: str, x: Any) -> None:
    """Raise unless there is a secret."""
    instance(who, x, bytes)
    if not x:
        raise bad(who, "have at least one byte", "none", "secrets.token_bytes(32)")


def _address(who: str, x: Any) -> Any:
    """Return a host and a port, or a path."""
    if isinstance(x, os.PathLike):
        return os.fspath(x)
    pair = isinstance(x, tuple) and len(x) == 2 and isinstance(x[0], str) and type(x[1]) is int and 0 <= x[1] < 1 << 16
    if not pair and not (isinstance(x, str) and x):
        raise wrong_type(who, "be (host, port) or a path", f"{x!r}")
    return x


def unpacked(content: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of a message, nothing if they are none: what lacks a header is refused."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):  # may be of any size
                return {}
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            return dict(stored)
    except Exception:  # whatever a damaged or foreign file makes its readers raise
        return {}


def _late(answer: Mapping[str, np.ndarray], request: Mapping[str, np.ndarray]) -> bool:
    """Whether an answer is one to an earlier question."""
    header = answer.get("header", np.empty(0))
    asked = fingerprint({name: a for name, a in request.items() if name != "header"})
    headed = header.shape == (6,) and header.dtype == np.int64
    return bool(headed and header[1] < REFUSE and header[5] != asked)


def _kind(request: Mapping[str, np.ndarray]) -> int:
    """Return what is asked for."""
    header = request.get("header", np.empty(0))
    return int(header[1]) if header.size > 1 else REFUSE
