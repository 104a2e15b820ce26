"""Sums over clients of which the server learns nothing but the sum: pairwise masks (Bonawitz et al. 2017, Section 4).

Every client c encodes its numbers in fixed point, in Z/2^64, and adds sum_{d > c} m_{cd} - sum_{d < c} m_{dc}, where
m_{cd} is a stream of ChaCha20 under a key that only c and d can compute: X25519 key agreement, then HKDF-SHA256 over
the round, the pair and the whole agreement (who takes part, with which public keys). Masks cancel in the sum. What a
server sees of any proper subset of the clients is indistinguishable from uniform noise.

Of the protocol of Bonawitz et al. (CCS 2017) this is Section 4 up to "masking with one-time pads": pairwise masks
between all clients of a round, for a server that follows the protocol but is curious. Not there: recovery from clients
that drop out after the keys were exchanged (their double masking with secret-shared seeds; here their masks stay and
the sum is refused), authenticated keys (their public-key infrastructure; here a server that lies about public keys
learns everything), the consistency check of the malicious model, and any defence against clients that collude with the
server (it then learns the sum of the others).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, instance, numeric, whole, wrong_type
from fedconvex.sums import PlainSums, as_sums

__all__ = ["Circle", "Party", "PlainSums", "SecureSums", "agreement", "as_sums", "decode", "encode", "sum_of"]


def encode(x: np.ndarray, bits: int, parties: int) -> np.ndarray:
    """Return round(x 2^bits) in Z/2^64.

    Parameters
    ----------
    x : array
        Finite numbers.
    bits : int
        Behind the binary point, at most 52.
    parties : int
        Clients whose numbers are summed.

    Raises
    ------
    ValueError
        If x is not finite, or the sum of so many parties' numbers could overflow.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.secure import decode, encode
    >>> decode(encode(np.array([-1.5]), 24, 2) + encode(np.array([0.25]), 24, 2), 24)
    array([-1.25])
    """
    bits, parties = whole("secure.encode: bits", bits, high=52), whole("secure.encode: parties", parties, low=1)
    x = numeric("secure.encode: x", x, copy=False)
    with np.errstate(over="ignore"):
        rounded = np.rint(x * 2.0**bits)
    top = float(np.abs(rounded).max(initial=0.0))  # of what is summed: rounding may have lifted it
    if not (top < 2.0**63 and int(top) * parties < 2**63):
        limit, cure = 2.0 ** (63 - bits) / parties, f"lower bits (now {bits}), or scale the data"
        got = float(np.abs(x).max())
        raise bad("secure.encode", f"be finite and below {limit:.3g}, to be summed over {parties} clients", got, cure)
    return rounded.astype(np.int64).view(np.uint64)


def decode(total: np.ndarray, bits: int) -> np.ndarray:
    """Return the numbers that a sum of encoded ones stands for.

    Parameters
    ----------
    total : array of uint64
        A sum of encoded numbers in Z/2^64.
    bits : int
        Behind the binary point, as they were encoded.

    Raises
    ------
    ValueError, TypeError
        If total is no array of uint64, or bits not in 0, ..., 52.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.secure import decode, encode
    >>> decode(encode(np.array([0.1]), 2, 1), 2)  # two bits: quarters
    array([0.])
    """
    if type(total) is not np.ndarray or total.dtype != np.uint64:
        got = f"{total.dtype}" if isinstance(total, np.ndarray) else type(total).__name__
        raise wrong_type("secure.decode: total", "be an array of uint64", got, "secure.encode makes one")
    return total.view(np.int64) * 2.0 ** -whole("secure.decode: bits", bits, high=52)


def _encoded(who: str, vector: Any) -> np.ndarray:
    """Return a vector of encoded numbers, unsigned and of 64 bits."""
    if not isinstance(vector, np.ndarray) or vector.dtype != np.uint64 or vector.ndim != 1:
        got = f"{vector.dtype}, shape {vector.shape}" if isinstance(vector, np.ndarray) else type(vector).__name__
        raise wrong_type(who, "be a vector of uint64", got, "secure.encode makes one")
    return vector


def agreement(everybody: Mapping[int, bytes]) -> bytes:
    """Return the fingerprint (8 bytes) of who takes part with which public key.

    Clients that were told different things have different masks and different fingerprints: their sum is refused.

    Parameters
    ----------
    everybody : mapping from int to bytes
        Public keys by the clients' numbers.

    Raises
    ------
    TypeError
        If everybody does not map client numbers to public keys.

    Examples
    --------
    >>> from fedconvex.secure import agreement
    >>> agreement({0: b"a", 1: b"b"}) == agreement({1: b"b", 0: b"a"}), agreement({0: b"a"}) == agreement({0: b"b"})
    (True, False)
    """
    keys = isinstance(everybody, Mapping) and all(isinstance(v, bytes) for v in everybody.values())
    if not keys or not all(isinstance(k, (int, np.integer)) for k in everybody):
        raise wrong_type("secure: everybody", "map client numbers to public keys (bytes)", f"{everybody!r}")
    told = b"".join(b"%d:%s;" % (number, everybody[number].hex().encode()) for number in sorted(everybody))
    return hashlib.blake2b(told, digest_size=8).digest()


class Party:
    """A client in one round: a fresh key pair, and masks agreed upon with every other client.

    Parameters
    ----------
    number : int
        The client's number, different for all; the smaller of a pair adds the mask, the larger subtracts it.
    secret : bytes, optional
        Of the key pair, 32 of them, from `secret_bytes` of an earlier life; default a fresh one.

    Raises
    ------
    ModuleNotFoundError
        Without the package ``cryptography`` (``pip install 'fedconvex[secure]'``).

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.secure import Party, decode, encode, sum_of
    >>> one, two = Party(0), Party(1)
    >>> keys = {0: one.public, 1: two.public}
    >>> masked = {p.number: p.mask(encode(np.array([1.5]), 24, 2), keys, b"round 3") for p in (one, two)}
    >>> decode(sum_of(masked, keys), 24)
    array([3.])
    """

    def __init__(self, number: int, secret: bytes | None = None) -> None:
        try:
            from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
        except ModuleNotFoundError as error:
            text = 'secure sums must have cryptography: pip install "fedconvex[secure]"'
            raise ModuleNotFoundError(text) from error

        self.number = whole("Party.number", number)
        if secret is not None:
            instance("Party.secret", secret, bytes)
            if len(secret) != 32:
                raise bad("Party.secret", "be 32 bytes", f"{len(secret)}")
        key = X25519PrivateKey
        self._secret = key.generate() if secret is None else key.from_private_bytes(secret)
        self._masked: set[bytes] = set()
        self._shared: dict[bytes, bytes] = {}  # what was agreed upon with whoever has a public key
        self.public = self._secret.public_key().public_bytes_raw()

    @property
    def secret_bytes(self) -> bytes:
        """The secret of the key pair: never to leave the client."""
        return self._secret.private_bytes_raw()

    def forget(self, context: bytes) -> None:
        """Let a context be used again: for the very same vector only, or the difference of the two is open."""
        instance("Party.forget: context", context, bytes)
        self._masked.discard(context)

    def mask(self, vector: np.ndarray, everybody: Mapping[int, bytes], context: bytes) -> np.ndarray:
        """Return the encoded vector (L,) plus this client's masks.

        Parameters
        ----------
        vector : uint64 array (L,)
        everybody : mapping from client number to public key
            All clients of the sum, this one among them.
        context : bytes
            What the sum is for (round, trajectory): other contexts, other masks.

        Raises
        ------
        ValueError
            If this client is alone or missing: its numbers would be open; or if it masked something in this context
            before: the difference of the two would be open.
        """
        vector = _encoded("Party.mask: vector", vector)
        instance("Party.mask: context", context, bytes)
        told = agreement(everybody)
        if context in self._masked:
            cure = "name another context, or make a new Party"
            raise bad(f"Party {self.number}.mask: context", "be used once", f"{context!r} again", cure)
        if self.number not in everybody or len(everybody) < 2:
            raise bad("Party.mask", "have at least one other client in the sum", f"{sorted(everybody)}")
        self._masked.add(context)
        out, context = vector.copy(), told + context
        for other, public in everybody.items():
            if other != self.number:
                stream = self._stream(public, min(self.number, other), max(self.number, other), context, vector.size)
                out = out + stream if self.number < other else out - stream
        return out

    def _stream(self, public: bytes, low: int, high: int, context: bytes, size: int) -> np.ndarray:
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        info = b"fedconvex pairwise mask %d %d " % (low, high) + context
        key = HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(self._agreed(public))
        zeros = bytes(8 * size)
        return np.frombuffer(Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(zeros), dtype="<u8")

    def _agreed(self, public: bytes) -> bytes:
        """Return the secret shared with whoever has a public key: agreed upon once, for all contexts."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        if public not in self._shared:
            self._shared[public] = self._secret.exchange(X25519PublicKey.from_public_bytes(public))
        return self._shared[public]


def sum_of(masked: Mapping[int, np.ndarray], everybody: Any) -> np.ndarray:
    """Return the sum of the masked vectors in Z/2^64, in which all masks cancel.

    Parameters
    ----------
    masked : mapping from int to array (L,) of uint64
        By the clients' numbers, as `Party.mask` returns them.
    everybody : mapping from int to bytes
        Public keys of all that agreed on masks.

    Raises
    ------
    ValueError
        If a client of the agreement is missing: without it the masks do not cancel.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.secure import Party, decode, encode, sum_of
    >>> one, two = Party(0), Party(1)
    >>> keys = {0: one.public, 1: two.public}
    >>> said = {0: np.array([2.0]), 1: np.array([3.0])}
    >>> masked = {p.number: p.mask(encode(said[p.number], 24, 2), keys, b"") for p in (one, two)}
    >>> decode(sum_of(masked, keys), 24)
    array([5.])
    """
    instance("secure.sum_of: masked", masked, Mapping)
    agreement(everybody)
    for vector in masked.values():
        _encoded("secure.sum_of: masked", vector)
    missing = sorted(set(everybody) - set(masked))
    if missing or set(masked) - set(everybody):
        cure = "repeat the round, with new keys, among those that are left"
        raise bad("secure.sum_of", "hold a vector of every client that agreed on masks", f"none of {missing}", cure)
    return np.asarray(np.sum(list(masked.values()), axis=0, dtype=np.uint64))


# ---------------------------------------------------------------- how a method's server learns its sums


class Circle(NamedTuple):
    """Clients that have exchanged public keys once; their masks differ from context to context.

    Attributes
    ----------
    parties : tuple of Party
        The clients of one process.
    everybody : dict from int to bytes
        Their public keys.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.secure import Circle
    >>> circle = Circle.of(np.arange(3))
    >>> len(circle.parties), sorted(circle.everybody)
    (3, [0, 1, 2])
    """

    parties: tuple[Party, ...]
    everybody: dict[int, bytes]

    @classmethod
    def of(cls, ids: np.ndarray) -> Circle:
        """Return the clients (m,) of one process with fresh keys.

        Raises
        ------
        ValueError
            If a client occurs twice: its masks would cancel.
        """
        if np.unique(ids).size != len(ids):
            raise bad("SecureSums", "mask every client once", f"{ids.tolist()}", "draw without replacement")
        parties = tuple(Party(int(k)) for k in ids)
        return cls(parties, {party.number: party.public for party in parties})


class Masked(NamedTuple):
    """Clients to server: beta w, beta, losses and counts in one masked vector, and the public key of the round."""

    numbers: np.ndarray  # (R, m, L) uint64
    keys: np.ndarray  # (R, m, 4) uint64: 32 bytes
    clients: np.ndarray  # (R, m) who sends
    agreed: np.ndarray  # (R, m, 2) of how many clients the agreement is, and its fingerprint

    @property
    def not_sent(self) -> tuple[str, ...]:
        """What the server knows."""
        return ("clients", "agreed")

    @property
    def relayed(self) -> int:
        """Numbers that the server passes on: everybody gets the keys of the others."""
        R, m, size = self.keys.shape
        return R * m * (m - 1) * size


@dataclass(frozen=True)
class SecureSums:
    """The server adds masked vectors and learns the sums only, up to 2^-bits per client in every number.

    Keys are fresh in every round, and count as communication; clients that stay the same for many sums, as in
    preprocessing, may agree once. A round with a single client is refused: its sum would be
    its answer. In one process `send` plays all clients; over a network each is a `Party`, and the server relays keys.

    Parameters
    ----------
    bits : int
        Binary places of the fixed-point numbers, 1 to 52.

    Raises
    ------
    ValueError, TypeError
        If bits is no whole number in its range.

    Examples
    --------
    >>> from fedconvex.methods import AgnosticFedAvg, SecureSums
    >>> AgnosticFedAvg(step_size=0.1, domain_step_size=0.1, sums=SecureSums(36)).sums.bits
    36
    """

    bits: int = 28

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", whole("SecureSums.bits", self.bits, low=1, high=52))

    def send(self, reply: Any, ids: np.ndarray, draws: Any) -> Masked:
        """Return the masked vectors of all clients (R, m) of a round, whose draw keys are ids."""
        (R, m), shape = ids.shape, reply.w.shape[2:]
        weighted = reply.w * reply.beta.reshape(R, m, *[1] * len(shape))
        flat = np.concatenate([weighted.reshape(R, m, -1), reply.beta[:, :, None], reply.losses, reply.counts], axis=2)
        return self.mask(flat, ids, draws)

    def mask(self, flat: np.ndarray, ids: np.ndarray, draws: Any, circles: Sequence[Circle] | None = None) -> Masked:
        """Return the masked vectors of all clients (R, m) of a round, one of L numbers each: flat (R, m, L).

        Parameters
        ----------
        flat : array (R, m, L)
        ids : int array (R, m)
        draws : Draws
            Their trajectory and round are the context: with circles no two sums may have the same.
        circles : sequence of R `Circle`, optional
            Clients that have agreed on keys already; default fresh keys.
        """
        R, m = ids.shape
        numbers, keys = np.empty(flat.shape, dtype=np.uint64), np.empty((R, m, 4), dtype=np.uint64)
        agreed = np.full((R, m, 2), m, dtype=np.int64)
        for r in range(R):
            parties, everybody = Circle.of(ids[r]) if circles is None else circles[r]
            agreed[r, :, 1] = int.from_bytes(agreement(everybody), "little", signed=True)
            context = b"trajectory %d round %d" % (int(draws.trajectory[r]), int(draws.round))
            for j, party in enumerate(parties):
                keys[r, j] = np.frombuffer(party.public, dtype="<u8")
                numbers[r, j] = party.mask(encode(flat[r, j], self.bits, m), everybody, context)
        return Masked(numbers, keys, ids, agreed)

    def add(self, reply: Masked, p: int, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        """Return what `PlainSums.add` returns, from what `total` returns."""
        total = self.total(reply)
        size = total.shape[1] - 1 - 2 * p
        beta = total[:, size]
        average = total[:, :size] / np.where(beta > 0.0, beta, 1.0)[:, None]
        losses, counts = total[:, size + 1 : size + 1 + p], total[:, size + 1 + p :]
        whole_rows = np.rint(counts)  # unless rows carry weights
        counts = np.where(np.abs(counts - whole_rows) <= reply.numbers.shape[1] * 2.0**-self.bits, whole_rows, counts)
        return average.reshape(-1, *shape), beta, losses, counts

    def total(self, reply: Any) -> np.ndarray:
        """Return the sums over clients of what `mask` masked, (R, L).

        Raises
        ------
        ValueError
            If the answers are not those of all clients of one agreement.
        """
        for r, (sizes, marks) in enumerate(zip(reply.agreed[..., 0], reply.agreed[..., 1], strict=True)):
            who, cure = f"SecureSums: answers of trajectory {r}", "repeat the round, with new keys"
            if np.unique(marks).size != 1:
                raise bad(who, "be of one agreement on keys", f"{np.unique(marks).size} agreements", cure)
            if sizes.size != sizes[0]:
                raise bad(who, f"be of all {sizes[0]} clients that agreed on masks", f"{sizes.size}", cure)
        return np.stack([decode(total, self.bits) for total in reply.numbers.sum(axis=1, dtype=np.uint64)])
