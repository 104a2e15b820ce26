"""Secure sums over sites: one key pair a site and run, keys through the server, other masks for every sum.

`fedconvex.secure` has the masks. Every site makes a key pair when it joins; the server tells everybody the public keys
of all. They hold for the whole run: a key that changes is refused. The context of a mask is the kind of message, the
round, the trajectory and what was asked, so that sites that were sent different models cannot be summed. A site masks
its answer of a round for one set of clients only: of sums over two sets the difference would be open. So no answer may
be missing: recovery from dropouts (Bonawitz et al., CCS 2017: double masks whose seeds are shared) is not there.
The server is taken to follow the protocol: a site that starts again from its file has its key, but no record of whom it
masked answers for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedconvex._check import bad
from fedconvex.remote.messages import Form, Refused, Request
from fedconvex.secure import Masked, Party, SecureSums, agreement, decode, encode

CIRCLE, KEYS = "circle", "keys"  # (R, m) who takes part in the sums, and (K, 32) the public keys of all
PUBLIC = {"public": Form((32,), np.dtype(np.uint8), False)}  # what a site answers when it joins


@dataclass(frozen=True)
class SiteSums(SecureSums):
    """`SecureSums` of one site, for one request."""

    masks: Any = None  # without them, zeros of the same shape
    circle: Any = None  # (R, m)
    told: Any = None  # public keys by client
    contexts: Any = ()  # of every trajectory

    def mask(self, flat: np.ndarray, ids: np.ndarray, draws: Any, circles: Any = None) -> Masked:
        """Return the masked vectors of this client, flat (R, 1, L)."""
        R, numbers = len(flat), np.zeros(flat.shape, dtype=np.uint64)
        agreed = np.zeros((R, 1, 2), dtype=np.int64)
        for i in range(R if self.masks is not None else 0):
            everybody = {int(j): self.told[int(j)] for j in self.circle[i]}
            context = self.contexts[i]
            numbers[i, 0] = self.masks.mask(_encoded(flat[i, 0], self.bits, len(everybody)), everybody, context)
            mark = hashlib.blake2b(agreement(everybody) + context, digest_size=8).digest()
            agreed[i, 0] = len(everybody), int.from_bytes(mark, "little", signed=True)
        return Masked(numbers, np.empty((R, 1, 0), dtype=np.uint64), ids, agreed)


def _encoded(flat: np.ndarray, bits: int, parties: int) -> np.ndarray:
    """Return `encode`, or refuse without the number that is too large."""
    try:
        return encode(flat, bits, parties)
    except ValueError:
        limit = f"finite and below {2.0 ** (63 - bits) / parties:.3g}"
        raise Refused(f"its numbers must be {limit} to be masked: lower bits (now {bits}), or scale the data") from None


class Masks:
    """What a site keeps for secure sums: its key pair, the keys of the others, and for whom it has masked what.

    Parameters
    ----------
    number : int
        Of the client.
    secret : bytes, optional
        Of the key pair that it had before; default a fresh one.
    """

    def __init__(self, number: int, secret: bytes | None = None) -> None:
        self.party = Party(number, secret)
        self.known: dict[int, bytes] = {}
        self.circles: dict[tuple[int, int, int], bytes] = {}  # by kind, round and trajectory
        self.vectors: dict[bytes, bytes] = {}  # fingerprints of what was masked, by context

    def sums(self, bits: int, request: Request, rows: Any, arrays: dict[str, np.ndarray]) -> SiteSums:
        """Return the sums of a request, whose circle and keys are taken out of its arrays.

        Raises
        ------
        Refused
            If a key is another one than before, the site is alone or not among those who sum, or it has masked this
            round's answer for others.
        """
        circle, keys, own = arrays.pop(CIRCLE, np.empty(0)), arrays.pop(KEYS, np.empty(0)), self.party.number
        whole = circle.dtype == np.int64 and circle.ndim == 2 and len(circle) == len(rows) and circle.shape[1] > 1
        if not whole or keys.dtype != np.uint8 or keys.shape[1:] != (32,):
            raise Refused("it does not say which clients, at least two, add up their answers")
        if circle.min() < 0 or circle.max() >= len(keys) or any(np.unique(row).size < row.size for row in circle):
            raise Refused("its clients are not different ones of the roster")
        if not (circle == own).any(axis=1).all():
            raise Refused("this site is not among those who add up their answers")
        told = {int(j): keys[j].tobytes() for j in np.unique(circle)}
        for j, key in told.items():
            if (self.party.public if j == own else self.known.get(j, key)) != key:
                cure = "start the run anew, or give sites a checkpoint"
                raise Refused(f"the key of client {j} is another one than was agreed upon: {cure}")
        self.known |= told
        return SiteSums(bits, self, circle, told, tuple(self._contexts(request, rows, circle, arrays)))

    def _contexts(self, request: Request, rows: Any, circle: np.ndarray, arrays: Mapping[str, np.ndarray]) -> Any:
        """Yield what the masks of every trajectory are for."""
        for i, r in enumerate(rows):
            name, who = (request.kind, request.round, int(r)), np.sort(circle[i]).tobytes()
            if self.circles.setdefault(name, who) != who:
                why = "of both sums the difference would be open"
                raise Refused(f"its answer of round {request.round} is masked for other clients: {why}")
            h = hashlib.blake2b(repr((request.session, *name)).encode(), digest_size=16)
            for key in sorted(arrays):
                a = arrays[key]
                h.update(key.encode() + (a[i] if a.ndim and len(rows) == len(a) else a).tobytes())
            yield h.digest()

    def mask(self, vector: np.ndarray, everybody: Mapping[int, bytes], context: bytes) -> np.ndarray:
        """Return a vector under masks; again only if it is the same one."""
        mark = hashlib.blake2b(vector.tobytes(), digest_size=16).digest()
        if self.vectors.setdefault(context, mark) != mark:
            raise Refused("it asks for other numbers under masks that were used: the difference would be open")
        self.party.forget(context)
        return self.party.mask(vector, everybody, context)


def masked_form(forms: Mapping[str, Form]) -> dict[str, Form]:
    """Return the form of a report under masks, from those of its arrays."""
    size = sum(int(np.prod(form.shape)) for form in forms.values())
    return {
        "masked": Form((size,), np.dtype(np.uint64), False),
        "agreed": Form((2,), np.dtype(np.int64), False),
    }


def summed(found: list[dict[str, np.ndarray]], forms: Mapping[str, Form], bits: int) -> dict[str, np.ndarray]:
    """Return the sums of the sites' reports, array by array.

    Raises
    ------
    ValueError
        If they were told different things.
    """
    if len({a["agreed"].tobytes() for a in found}) != 1:
        raise bad("SecureSums: reports", "be of one agreement on keys", "several", "start the run anew")
    added = np.asarray(np.sum([a["masked"] for a in found], axis=0, dtype=np.uint64))
    total, out, at = decode(added, bits), {}, 0
    for name in sorted(forms):
        size = int(np.prod(forms[name].shape))
        out[name], at = total[at : at + size].reshape(forms[name].shape), at + size
    return out
