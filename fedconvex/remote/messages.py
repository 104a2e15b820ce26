"""What travels between a server and its sites: arrays by name, checked before anything is made of them.

Every message has a ``header`` (6,) int64: protocol, kind, round, number of the client, session, and the fingerprint of
what was asked, which the answer repeats: an answer to what another life of the server asked in the same round is none.
Texts are bytes (uint8, UTF-8). Nothing is unpickled, and nothing that a message says names a class.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, get_args, get_type_hints

import numpy as np

from fedconvex._archives import json_of
from fedconvex._check import bad, printable, wrong_type
from fedconvex._files import identity

PROTOCOL = 3
JOIN, ASK, STATISTIC, MEASURE, REFUSE, UNKNOWN = range(6)  # kinds; UNKNOWN: the site has not joined this session
ACK = "acknowledged"  # (2,) int64: the rounds whose memory the server has counted on last, and as of its checkpoint
_LONGEST = 2000  # bytes of a text that are read
LARGEST = 1 << 30  # bytes of a message whose arrays are not known beforehand
_REFUSAL, _ENTRY = 1 << 14, 1 << 9  # bytes of a header with a reason, and of what names and describes an array
_ANY = 1_000_000  # length of an axis that may have any
_KINDS = {np.dtype(order + kind) for order in "<>" for kind in ("f8", "i8", "u8", "b1", "u1")}  # that may travel


class Refused(Exception):
    """A message that is not used, and why."""


def unsaid(who: str, error: Exception) -> str:
    """Return what a server is told of an error, which may quote rows: its class. The rest is logged here."""
    logging.getLogger("fedconvex").error("%s: %s: %s", who, type(error).__name__, error)
    return f"{type(error).__name__}; the log of the site says more"


class Request(NamedTuple):
    """The header of a message."""

    kind: int
    round: int
    client: int
    session: int
    asked: int = 0

    def header(self) -> np.ndarray:
        """Return it as it travels."""
        return np.array([PROTOCOL, *self], dtype=np.int64)


def text(words: str) -> np.ndarray:
    """Return words as they travel."""
    return np.frombuffer(words.encode(), dtype=np.uint8)


def words(a: np.ndarray, most: int = _LONGEST) -> str:
    """Return what a text says in its first bytes, on one line and without control characters."""
    return printable(a.ravel()[:most].tobytes().decode(errors="replace"))


def named(names: np.ndarray | None) -> np.ndarray:
    """Return names of domains as they travel: nothing for none."""
    return np.empty(0, dtype=np.uint8) if names is None else text(json.dumps(names.tolist()))


def names_of(a: np.ndarray) -> np.ndarray | None:
    """Return the names of domains."""
    return np.array(json_of(a, 1 << 20)) if a.size else None


def terms_of(method: Any, problem: Any, version: str) -> dict[str, str]:
    """Return what server and site must have in common, by name: long words by their fingerprints."""
    terms = {
        "version": version,
        "method": identity(method),
        "problem": f"{problem.learns} {getattr(problem, 'fingerprint', '')}".strip(),
        "loss": identity(problem.loss),
        "l2": repr(float(problem.l2)),
        "features": str(problem.federation.d),
        "weights": hashlib.blake2b(problem.weights.tobytes(), digest_size=8).hexdigest(),
    }
    long = {name: hashlib.blake2b(v.encode(), digest_size=8).hexdigest() for name, v in terms.items()}
    return {name: v if len(v) < 300 else f"{v[:280]}... {long[name]}" for name, v in terms.items()}


def difference(theirs: Any, mine: dict[str, str]) -> str:
    """Return the first term in which a server's terms differ from a site's, in words; nothing if none does."""
    if not isinstance(theirs, dict):
        return "the server names none"
    for name, v in mine.items():
        if theirs.get(name) != v:
            return f"{name} is {v} here, {printable(str(theirs.get(name))[:300])} at the server"
    return ""


def session_of(*agreed: Any) -> int:
    """Return the number of everything that server and sites must have in common."""
    h = hashlib.blake2b(repr(agreed).encode(), digest_size=8)
    return int.from_bytes(h.digest(), "little") >> 1


def opened(message: Any) -> tuple[Request, dict[str, np.ndarray]]:
    """Return header and arrays of a message.

    Raises
    ------
    Refused
        If it is none: not arrays by name, other types, another protocol.
    """
    if not isinstance(message, Mapping):
        raise Refused(f"it is {type(message).__name__}, not arrays by name")
    for name, a in message.items():
        if not isinstance(name, str) or type(a) is not np.ndarray or a.dtype not in _KINDS:
            kind = a.dtype.str if isinstance(a, np.ndarray) else type(a).__name__
            raise Refused(f"{printable(str(name)[:40])} is {kind}, not an array of plain numbers")
    arrays = dict(message)
    header = arrays.pop("header", np.empty(0))
    if header.shape != (6,) or header.dtype != np.int64:
        raise Refused("it has no header")
    protocol, *numbers = header.tolist()
    if protocol != PROTOCOL:
        raise Refused(f"it speaks protocol {protocol}, not {PROTOCOL}")
    return Request(*numbers), arrays


def digest(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return 16 bytes that stand for arrays with their names, of which none reads like another name and its array."""
    h = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        a = arrays[name]
        h.update(f"{name!a} {a.shape} {a.dtype.str};".encode())
        h.update(a.tobytes())
    return h.digest()


def fingerprint(arrays: Mapping[str, np.ndarray]) -> int:
    """Return a number for what is asked: equal questions, in equal rounds, have equal answers."""
    return number_of(digest(arrays))


def number_of(found: bytes) -> int:
    """Return the fingerprint of arrays from their `digest`."""
    return int.from_bytes(found[:8], "little") >> 1


class Form(NamedTuple):
    """What an array must look like, whether its numbers must be finite, and between which two they must be, if any."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    finite: bool
    within: tuple[int, int] | None = None


def check_forms(arrays: Mapping[str, np.ndarray], forms: Mapping[str, Form]) -> None:
    """Raise `Refused` unless the arrays are those asked for, of their shapes and types, and in their ranges."""
    if arrays.keys() != forms.keys():
        odd = sorted(arrays.keys() ^ forms.keys())
        raise Refused(f"it must hold {', '.join(forms)}; {printable(odd[0][:40])} is missing or not asked for")
    for name, form in forms.items():
        a = arrays[name]
        if not _fits(a.shape, form.shape) or a.dtype != form.dtype:
            raise Refused(f"{name} has shape {a.shape}, {a.dtype}, not {form.shape}, {form.dtype}")
        if form.within is not None and not ((a >= form.within[0]) & (a <= form.within[1])).all():
            raise Refused(f"{name} must be whole numbers from {form.within[0]} to {form.within[1]}")


def largest_size(forms: Mapping[str, Form]) -> int:
    """Return how many bytes a message of such arrays has at most, or a refusal: npz files name each array twice."""
    counts = {name: math.prod(_ANY if n == -1 else n for n in form.shape) for name, form in forms.items()}
    arrays = sum(counts[name] * form.dtype.itemsize + 2 * len(name) + _ENTRY for name, form in forms.items())
    return _REFUSAL + min(arrays, LARGEST - _REFUSAL)


def refusal(why: str) -> dict[str, np.ndarray]:
    """Return a message that refuses what could not be read."""
    return {"header": Request(REFUSE, -1, -1, -1).header(), "why": text(why)}


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether a shape is that wanted, where -1 is any length up to a million."""
    if shape == wanted:
        return True
    pairs = zip(shape, wanted, strict=False)
    return len(shape) == len(wanted) and all(n == m or (m == -1 and n <= _ANY) for n, m in pairs)


def not_finite(arrays: Mapping[str, np.ndarray], forms: Mapping[str, Form]) -> str:
    """Return the name of an array that holds NaN or infinity where it must not, or nothing."""
    return next((n for n, form in forms.items() if form.finite and not np.isfinite(arrays[n]).all()), "")


# ---------------------------------------------------------------- tuples of methods


def packed(message: Any, rows: np.ndarray, places: np.ndarray, client: int) -> dict[str, np.ndarray]:
    """Return the fields of a Message for one client, in the trajectories ``rows`` where it has these places.

    Fields named in ``per_client``, (R, K, ...), are cut to its own part, (R, 1, ...); so are those in ``per_place``.
    """
    out = {}
    for name, v in zip(message._fields, message, strict=True):
        if not isinstance(v, np.ndarray):
            out[name] = np.asarray(v)
        elif name in getattr(message, "per_client", ()):
            out[name] = v[rows, client][:, None]
        elif name in getattr(message, "per_place", ()):
            out[name] = v[rows, places][:, None]
        else:
            out[name] = v[rows]
    return {f"message/{name}": np.asarray(v, order="C") for name, v in out.items()}  # numbers stay without axes


def rebuilt(template: Any, arrays: Mapping[str, np.ndarray], R: int, K: int) -> Any:
    """Return a memory like the template from arrays by name.

    Raises
    ------
    ValueError
        If they are not what such a memory is made of.
    """
    if hasattr(template, "restored"):
        return template.restored(dict(arrays), R, K)
    for name, like in zip(template._fields, template, strict=True):
        a = arrays.get(name)
        if a is None or a.shape != like.shape or a.dtype != like.dtype:
            raise bad("what a site keeps", f"hold {name} {like.shape}, {like.dtype}", "another array")
    return type(template)(*(arrays[name].copy() for name in template._fields))


def unpacked(method: Any, arrays: Mapping[str, np.ndarray], clients: int) -> Any:
    """Return the Message of a method from its fields; `packed` made them for one of so many clients.

    Raises
    ------
    Refused
        If the method has no message of these fields.
    """
    fields = {name.removeprefix("message/"): v for name, v in arrays.items() if name.startswith("message/")}
    kind = form_of(method, fields)
    for name in getattr(kind, "per_client", ()):  # every client's part is this one's: no other is looked at
        v = fields[name]
        fields[name] = np.ascontiguousarray(np.broadcast_to(v, (len(v), clients, *v.shape[2:])))
    return kind(*(v if v.ndim else v.item() for v in (fields[name] for name in kind._fields)))


def form_of(method: Any, fields: Collection[str]) -> Any:
    """Return the class of a method's message that has these fields.

    Raises
    ------
    Refused
        If it has none.
    """
    for kind in forms(method):
        if kind._fields == tuple(fields) or set(kind._fields) == set(fields):
            return kind
    raise Refused(f"{type(method).__name__} has no message of {', '.join(sorted(fields)) or 'nothing'}"[:200])


@lru_cache(maxsize=256)
def _returned(function: Any) -> tuple[Any, ...]:
    """Return what a function is annotated to return; looking it up takes longer than checking a message."""
    kind = get_type_hints(function).get("return")
    return get_args(kind) or (kind,)


def forms(method: Any) -> tuple[Any, ...]:
    """Return the classes of a method's messages, from the annotation of its ``broadcast``."""
    if isinstance(method, type) or not (hasattr(method, "broadcast") and hasattr(method, "local")):
        cure = "use a federated method, such as FedSGD(...) in the place of GradientDescent"
        raise wrong_type("a method over sites", "be an instance with broadcast and local", f"{method!r}", cure)
    kinds = _returned(type(method).broadcast)
    if not all(hasattr(k, "_fields") for k in kinds):
        who, must = f"{type(method).__name__}.broadcast", "be annotated with the NamedTuples that it returns"
        raise wrong_type(who, must, " | ".join(map(str, kinds)), "def broadcast(self, state) -> Message")
    return kinds
