"""How both ends of a connection prove who they are: `TLS` with a certificate for each site, or `Plain` on one machine.

In a certificate the place is a name of its own kind (subjectAltName, URI): ``fedconvex:server``, or
``fedconvex:site:2`` for client 2 of the roster; where sites have names, ``fedconvex:site:north``. Authority,
period and key are checked by Python's `ssl`, the name of the server's machine too; the place is
compared here, at both ends.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import socket
import ssl
import struct
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedconvex._check import bad, flag, instance, whole
from fedconvex._files import check_owner_only, existing
from fedconvex.remote.authenticated_lines import HELLO, Keys, Line, nonce

_SERVER, _SITE = "fedconvex:server", "fedconvex:site:"
_PLACES = struct.Struct(">QQ")  # number of the site, and how many there are
_NONE = (1 << 64) - 1


class Stranger(Exception):
    """Who is at the other end has no place there; what it has shown instead."""


@dataclass(frozen=True)
class TLS:
    """Mutual TLS: either end shows a certificate of one authority, with its place in it; TLS 1.3, at least 1.2.

    ``docs/sites.md`` says how to make the files with ``openssl``. One authority for each study: its certificates are
    good for every run of it.

    Parameters
    ----------
    certificate, key : path
        PEM files of this end; the key readable by its owner only, and not encrypted.
    authority : path
        PEM file with the certificate of the authority; no other one is trusted.
    sites : tuple of str, optional
        Names that stand in the certificates of clients 0, 1, ...; default their numbers.
    revoked : tuple of str, optional
        SHA-256 of certificates that are refused all the same, in hexadecimal digits.

    Attributes
    ----------
    peer : str
        SHA-256 of the certificate that the server has shown last, "" before.

    Raises
    ------
    ValueError, FileNotFoundError
        If a file is missing, is none of these, others may read the key, or the key is that of another certificate.

    Examples
    --------
    At the third site::

        serve(site, ("server.example.org", 5555), TLS("site2.pem", "site2.key", "authority.pem"), number=2)

    Files that are missing are named before anything listens:

    >>> from fedconvex.remote import TLS
    >>> TLS("site2.pem", "site2.key", "authority.pem")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    ...
    FileNotFoundError: TLS.certificate must be an existing file; got site2.pem
    """

    certificate: str | os.PathLike[str]
    key: str | os.PathLike[str]
    authority: str | os.PathLike[str]
    sites: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()
    peer: str = field(default="", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("certificate", "key", "authority"):
            existing(f"TLS.{name}", getattr(self, name))
        check_owner_only("TLS.key", self.key)
        assert self._server is not None  # it can be made

    def check(self, who: str, address: Any) -> None:
        """Raise unless the address is a host and a port."""
        if not isinstance(address, tuple):
            raise bad(who, "be (host, port) with TLS", f"{address!r}")

    def check_site(self, number: int) -> None:
        """Accept every number: the server says which one the certificate has."""

    def wrapped(self, end: socket.socket) -> socket.socket:
        """Return the end that `admit` takes, of a connection that came in."""
        return self._server.wrap_socket(end, server_side=True, do_handshake_on_connect=False)

    def admit(self, end: Any, K: int, seconds: float) -> tuple[Line, int]:
        """Return the line to a site, and its number below K, as the server does.

        Raises
        ------
        Stranger, OSError, EOFError
            If it has no place.
        """
        stop = time.monotonic() + seconds
        end.settimeout(seconds)
        end.do_handshake()
        line = Line(end)
        try:
            number = _number(_place(line), self.sites)
            if (shown := _digest(line)) in self.revoked:
                raise Stranger(f"the certificate {shown[:16]}..., which is revoked")
        except Stranger:
            line.send(HELLO, _PLACES.pack(_NONE, 0), stop - time.monotonic())
            raise
        content = _PLACES.pack(number, K)
        line.send(HELLO, content, stop - time.monotonic())
        if number >= K or line.receive(8, stop - time.monotonic())[1] != content[:8]:  # it says so too
            raise Stranger(f"the certificate of site {number}")
        return line, number

    def enter(self, end: socket.socket, host: str, number: int, seconds: float) -> tuple[Line, int]:
        """Return the line to the server, and how many sites it has, as a site does.

        Raises
        ------
        ValueError
            If either end does not accept the other's certificate.
        OSError, EOFError
        """
        stop = time.monotonic() + seconds
        end.settimeout(seconds)
        try:
            line = Line(self._client.wrap_socket(end, server_hostname=host))
            if (place := _place(line)) != _SERVER:
                raise Stranger(place)
            if (shown := _digest(line)) in self.revoked:
                raise Stranger("a server whose certificate is revoked")
            object.__setattr__(self, "peer", shown)
            content = line.receive(_PLACES.size, stop - time.monotonic())[1]
        except ssl.SSLCertVerificationError as error:
            cure = "see docs/sites.md on certificates"
            must = f"show a certificate of this authority for {host}"
            raise bad("serve: the server", must, error.verify_message, cure) from None
        except Stranger as error:
            raise bad("serve: the server", f"be {_SERVER}", f"{error}", "see docs/sites.md on certificates") from None
        except ssl.SSLError as error:
            if error.reason is None or "ALERT" not in error.reason:
                raise
            cure = "take those that the study's authority has made"
            raise bad("serve: credentials", "be accepted by the server", error.reason.lower(), cure) from None
        own, K = _PLACES.unpack(content.ljust(_PLACES.size, b"\xff"))
        if own == _NONE:
            raise bad("serve: credentials", "name one site's place", "another certificate", "see docs/sites.md")
        if own != number:
            raise bad("serve: number", f"be {own}, as the certificate says", number)
        if number < K:
            line.send(HELLO, content[:8], stop - time.monotonic())
        return line, K

    @cached_property
    def _server(self) -> ssl.SSLContext:
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    @cached_property
    def _client(self) -> ssl.SSLContext:
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, purpose: Any) -> ssl.SSLContext:
        """Return the settings of one end."""
        context = ssl.SSLContext(purpose)
        context.minimum_version = ssl.TLSVersion.TLSv1_3 if ssl.HAS_TLSv1_3 else ssl.TLSVersion.TLSv1_2
        context.verify_mode, context.hostname_checks_common_name = ssl.CERT_REQUIRED, False
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        if purpose == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0  # every connection proves who it is
        name, file = "authority", self.authority
        try:
            context.load_verify_locations(file)
            name, file = "certificate", self.certificate
            context.load_cert_chain(self.certificate, self.key, password=_refuse)
        except (OSError, ValueError) as error:
            must = "be a PEM file" if name == "authority" else "be a PEM file that belongs to the key, in the clear"
            why = getattr(error, "reason", None) or error
            raise bad(f"TLS.{name}", must, f"{os.fspath(file)!r} ({why})", "see docs/sites.md") from None
        return context


def _refuse() -> str:
    raise ValueError("the key is encrypted")


def _place(line: Line) -> str:
    """Return the place in the certificate that the other end has shown.

    Raises
    ------
    Stranger
        If it has none, or several.
    """
    shown = line.end.getpeercert() or {}  # type: ignore[attr-defined]
    places = [v for kind, v in shown.get("subjectAltName", ()) if kind == "URI" and v.startswith("fedconvex:")]
    if len(places) != 1:
        raise Stranger(f"a certificate with {len(places)} places")
    return str(places[0])


def _digest(line: Line) -> str:
    """Return the SHA-256 of the certificate that the other end has shown, in hexadecimal digits."""
    shown = line.end.getpeercert(binary_form=True) or b""  # type: ignore[attr-defined]
    return hashlib.sha256(shown).hexdigest()


def _number(place: str, sites: tuple[str, ...] = ()) -> int:
    """Return the number of a site from its place, in which its name stands if sites have names.

    Raises
    ------
    Stranger
        If it is no site's.
    """
    digits = place.removeprefix(_SITE)
    if sites and digits != place and digits in sites:
        return sites.index(digits)
    if sites:
        raise Stranger(f"the certificate of {place[:60]!r}")
    if digits == place or not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        raise Stranger(f"the certificate of {place[:60]!r}")
    return int(digits)


@dataclass(frozen=True)
class Plain:
    """Connections that are not encrypted: for processes of one machine, unless forced.

    Both ends prove by HMAC-SHA256 of fresh random numbers that they know the site's own secret, which the server
    derives from its own; every frame has an authentication code. Whoever can listen reads everything.

    Parameters
    ----------
    secret : bytes
        Of the server, at least 16 bytes: ``secrets.token_bytes(32)``. Sites get theirs from `site`.
    number : int, optional
        Of the site whose secret it is; default none, the server's.
    beyond_loopback : bool
        Accept other machines: inside of a tunnel that encrypts, for example.

    Raises
    ------
    ValueError, TypeError
        If the secret is shorter.

    Examples
    --------
    >>> from fedconvex.remote import Plain
    >>> server = Plain(bytes(range(32)))
    >>> server.site(0).secret == server.site(1).secret, server
    (False, Plain(number=None, beyond_loopback=False))
    """

    secret: bytes = field(repr=False)
    number: int | None = None
    beyond_loopback: bool = False

    def __post_init__(self) -> None:
        instance("Plain.secret", self.secret, bytes)
        if len(self.secret) < 16:
            raise bad("Plain.secret", "have at least 16 bytes", len(self.secret), "secrets.token_bytes(32)")
        flag("Plain.beyond_loopback", self.beyond_loopback)
        if self.number is not None:
            whole("Plain.number", self.number, high=1 << 40)

    def site(self, number: int) -> Plain:
        """Return what one site is given: its secret says nothing of the server's, nor of other sites'."""
        if self.number is not None:
            raise bad("Plain.site", "be asked of the server's secret", f"that of site {self.number}")
        number = whole("Plain.site: number", number, high=1 << 40)
        return Plain(_code(self.secret, b"site", number), number, self.beyond_loopback)

    def check(self, who: str, address: Any) -> None:
        """Raise unless the address, as bound or connected, is on this machine."""
        far = isinstance(address, tuple) and not ipaddress.ip_address(address[0].partition("%")[0]).is_loopback
        if far and not self.beyond_loopback:
            cure = "take TLS(...), or Plain(..., beyond_loopback=True) inside of a tunnel"
            raise bad(who, "be on this machine without TLS", f"{address[0]}", cure)

    def check_site(self, number: int) -> None:
        """Raise unless it is the secret of this site."""
        if self.number != number:
            got = "the server's" if self.number is None else f"that of site {self.number}"
            raise bad("serve: credentials", f"be those of site {number}", got, f"Plain(secret).site({number})")

    def wrapped(self, end: socket.socket) -> socket.socket:
        """Return the end that `admit` takes, of a connection that came in."""
        return end

    def admit(self, end: socket.socket, K: int, seconds: float) -> tuple[Line, int]:
        """Return the line to a site, and its number below K, as the server does.

        Raises
        ------
        Stranger, OSError, EOFError
            If it has no place, or does not know its secret.
        """
        line, stop, mine = Line(end), time.monotonic() + seconds, nonce()
        line.send(HELLO, mine, seconds)
        content = line.receive(72, stop - time.monotonic())[1]
        if len(content) != 72:
            raise Stranger("no introduction")
        number, theirs, proof = int.from_bytes(content[:8], "big"), content[8:40], content[40:]
        key = _code(self.secret, b"site", min(number, (1 << 62)))
        if not hmac.compare_digest(proof, _code(key, b"I am site" + mine + theirs, number)):
            line.send(HELLO, _PLACES.pack(_NONE, 0), stop - time.monotonic())
            raise Stranger(f"not the secret of site {number}")
        places = _PLACES.pack(number, K)
        both = mine + theirs
        line.send(HELLO, places + _code(key, b"I am the server" + both, number, K), stop - time.monotonic())
        if number >= K:
            raise Stranger(f"the secret of site {number}")
        line.keys = Keys(_code(key, b"to site" + both, number), _code(key, b"to server" + both, number))
        return line, number

    def enter(self, end: socket.socket, host: str, number: int, seconds: float) -> tuple[Line, int]:
        """Return the line to the server, and how many sites it has, as a site does.

        Raises
        ------
        ValueError
            If the server is on another machine, or knows another secret.
        OSError, EOFError
        """
        self.check("serve: the server", end.getpeername())
        line, stop, mine, key = Line(end), time.monotonic() + seconds, nonce(), self.secret
        theirs = line.receive(32, seconds)[1]
        if len(theirs) != 32:
            raise ConnectionError("no server of sites")
        both = theirs + mine
        proof = _code(key, b"I am site" + both, number)
        line.send(HELLO, number.to_bytes(8, "big") + mine + proof, stop - time.monotonic())
        content = line.receive(48, stop - time.monotonic())[1]
        own, K = _PLACES.unpack(content[:16]) if len(content) >= 16 else (_NONE, 0)
        if own != number or not hmac.compare_digest(content[16:], _code(key, b"I am the server" + both, number, K)):
            raise bad("serve: credentials", "be those that the server knows", "another secret", "Plain(secret).site(k)")
        line.keys = Keys(_code(key, b"to server" + both, number), _code(key, b"to site" + both, number))
        return line, K


def _code(key: bytes, what: bytes, *numbers: int) -> bytes:
    """Return HMAC-SHA256 of words, none of which begins with another one, and numbers."""
    return hmac.new(key, b"fedconvex " + what + struct.pack(f">{len(numbers)}Q", *numbers), hashlib.sha256).digest()
