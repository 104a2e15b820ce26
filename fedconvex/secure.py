"""Sums over clients of which the server learns nothing but the sum: pairwise masks (Bonawitz et al. 2017, Section 4).

Every client c encodes its numbers in fixed point, in Z/2^64, and adds sum_{d > c} m_{cd} - sum_{d < c} m_{dc}, where
m_{cd} is a stream of ChaCha20 under a key that only c and d can compute: X25519 key agreement, then HKDF-SHA256. Masks
cancel in the sum. What a server sees of any proper subset of the clients is indistinguishable from uniform noise.

Not covered: clients that drop out after the keys were exchanged (their masks stay: the sum is refused), servers that
lie about public keys, and clients that collude with the server (it then learns the sum of the others).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, equal_by_type, whole
from fedconvex.kernels import averages

__all__ = ["Party", "PlainSums", "SecureSums", "decode", "encode", "sum_of"]


def encode(x: np.ndarray, bits: int, parties: int) -> np.ndarray:
    """Return round(x 2^bits) in Z/2^64.

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
    top = float(np.abs(x).max(initial=0.0))
    limit = 2.0 ** (63 - bits) / parties
    if not top < limit:
        cure = f"lower bits (now {bits}), or scale the data"
        raise bad("secure.encode", f"be finite and below {limit:.3g}, to be summed over {parties} clients", top, cure)
    return np.rint(x * 2.0**bits).astype(np.int64).view(np.uint64)


def decode(total: np.ndarray, bits: int) -> np.ndarray:
    """Return the numbers that a sum of encoded ones stands for."""
    return total.view(np.int64) * 2.0**-bits


class Party:
    """A client in one round: a fresh key pair, and masks agreed upon with every other client.

    Parameters
    ----------
    number : int
        The client's number, different for all; the smaller of a pair adds the mask, the larger subtracts it.

    Raises
    ------
    ModuleNotFoundError
        Without the package ``cryptography`` (``pip install 'fedconvex[secure]'``).
    """

    def __init__(self, number: int) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self.number = whole("Party.number", number)
        self._secret = X25519PrivateKey.generate()
        self.public = self._secret.public_key().public_bytes_raw()

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
            If this client is alone or missing: its numbers would be open.
        """
        if self.number not in everybody or len(everybody) < 2:
            raise bad("Party.mask", "have at least one other client in the sum", f"{sorted(everybody)}")
        out = vector.copy()
        for other, public in everybody.items():
            if other != self.number:
                stream = self._stream(public, min(self.number, other), max(self.number, other), context, vector.size)
                out = out + stream if self.number < other else out - stream
        return out

    def _stream(self, public: bytes, low: int, high: int, context: bytes, size: int) -> np.ndarray:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        shared = self._secret.exchange(X25519PublicKey.from_public_bytes(public))
        info = b"fedconvex pairwise mask %d %d " % (low, high) + context
        key = HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(shared)
        zeros = bytes(8 * size)
        return np.frombuffer(Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(zeros), dtype="<u8")


def sum_of(masked: Mapping[int, np.ndarray], everybody: Any) -> np.ndarray:
    """Return the sum of the masked vectors in Z/2^64, in which all masks cancel.

    Raises
    ------
    ValueError
        If a client of the agreement is missing: without it the masks do not cancel.
    """
    missing = sorted(set(everybody) - set(masked))
    if missing or set(masked) - set(everybody):
        cure = "repeat the round, with new keys, among those that are left"
        raise bad("secure.sum_of", "hold a vector of every client that agreed on masks", f"none of {missing}", cure)
    return np.asarray(np.sum(list(masked.values()), axis=0, dtype=np.uint64))


# ---------------------------------------------------------------- how a method's server learns its sums


class Masked(NamedTuple):
    """Clients to server: beta w, beta, losses and counts in one masked vector."""

    numbers: np.ndarray  # (R, m, L) uint64
    clients: np.ndarray  # (R, m) who sends
    agreed: np.ndarray  # (R, m, 1) of how many clients the agreement is

    @property
    def not_sent(self) -> tuple[str, ...]:
        """What the server knows."""
        return ("clients", "agreed")


@equal_by_type
class PlainSums(NamedTuple):
    """The clients' answers reach the server, which adds them."""

    def send(self, reply: Any, ids: np.ndarray, draws: Any) -> Any:
        """Return the reply."""
        return reply

    def add(self, reply: Any, p: int, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        """Return sum beta w/sum beta (R, *model), sum beta (R,), and the sums of losses and counts (R, p)."""
        total = reply.beta.sum(axis=1)
        q = reply.beta / np.where(total > 0.0, total, 1.0)[:, None]
        return averages.over_clients(q, reply.w), total, reply.losses.sum(axis=1), reply.counts.sum(axis=1)


@equal_by_type
class SecureSums(NamedTuple):
    """The server adds masked vectors and learns the sums only, up to 2^-bits per client in every number.

    Keys are fresh in every round. A round with a single client is refused: its sum would be its answer. In one process
    `send` plays all clients; over a network each is a `Party`, and the server relays public keys.

    Parameters
    ----------
    bits : int
        Binary places of the fixed-point numbers, at most 52.
    """

    bits: int = 28

    def send(self, reply: Any, ids: np.ndarray, draws: Any) -> Masked:
        """Return the masked vectors of the clients (R, m) whose draw keys are ids."""
        (R, m), shape = ids.shape, reply.w.shape[2:]
        weighted = reply.w * reply.beta.reshape(R, m, *[1] * len(shape))
        flat = np.concatenate([weighted.reshape(R, m, -1), reply.beta[:, :, None], reply.losses, reply.counts], axis=2)
        numbers = np.empty(flat.shape, dtype=np.uint64)
        for r in range(R):
            if np.unique(ids[r]).size != m:
                raise bad("SecureSums", "mask every client once", f"{ids[r].tolist()}", "draw without replacement")
            parties = [Party(int(k)) for k in ids[r]]
            everybody = {party.number: party.public for party in parties}
            context = b"trajectory %d round %d" % (int(draws.trajectory[r]), int(draws.round))
            for j, party in enumerate(parties):
                numbers[r, j] = party.mask(encode(flat[r, j], self.bits, m), everybody, context)
        return Masked(numbers, ids, np.full((R, m, 1), m))

    def add(self, reply: Masked, p: int, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        """Return what `PlainSums.add` returns.

        Raises
        ------
        ValueError
            If a client that agreed on masks has not answered.
        """
        for r, sizes in enumerate(reply.agreed[..., 0]):
            if any(np.count_nonzero(sizes == size) % size for size in set(sizes.tolist())):
                who, got = f"be of all {sizes.max()} clients that agreed on masks", f"{sizes.size}"
                raise bad(f"SecureSums: answers of trajectory {r}", who, got, "repeat the round without the missing")
        total = decode(reply.numbers.sum(axis=1, dtype=np.uint64), self.bits)
        size = total.shape[1] - 1 - 2 * p
        beta = total[:, size]
        average = total[:, :size] / np.where(beta > 0.0, beta, 1.0)[:, None]
        losses, counts = total[:, size + 1 : size + 1 + p], total[:, size + 1 + p :]
        return average.reshape(-1, *shape), beta, losses, np.rint(counts)
