"""Compressors of vectors: what a client sends in the place of a gradient, and what the server makes of it.

A compressor packs vectors of d numbers into floats and whole-number codes, and unpacks them. It declares which bound it
keeps, for all x:

    contractive, delta in (0, 1]:   E‖C(x) - x‖^2 <= (1 - delta) ‖x‖^2
    unbiased, omega >= 0:           E C(x) = x, E‖C(x) - x‖^2 <= omega ‖x‖^2

Codes cost the bits that their values need at least: an index of d coordinates ceil(log2 d), a level of s + 1 with its
sign 1 + ceil(log2(s + 1)). Draws are keyed by client: a client alone draws what it draws among others.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedconvex._check import bad, equal_by_type, real, whole, wrong_type
from fedconvex.draws import COMPRESSION, Draws, choose, stream, uniform
from fedconvex.fields import read_kind
from fedconvex.kernels.cache import kernel
from fedconvex.problems import FederatedProblem
from fedconvex.traits import counted_by

FLOAT_BITS = 64
Damping = Annotated[float, partial(real, low=0.0, high=1.0, strict=True)]


@counted_by("floats")
class Reply(NamedTuple):
    """Clients to server: a packed vector of each."""

    values: np.ndarray  # (R, m, v)
    codes: np.ndarray  # (R, m, c) whole numbers
    floats: np.ndarray  # (R, m) v

    @classmethod
    def of(cls, values: np.ndarray, codes: np.ndarray) -> Reply:
        """Return the reply that holds these."""
        return cls(values, codes, np.full(values.shape[:2], values.shape[2]))


@equal_by_type
class TopK(NamedTuple):
    """The k entries of largest modulus: contractive with delta = k/d. Of equal ones the first are taken.

    Parameters
    ----------
    k : int
        Entries that are sent, with their indices.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.methods import TopK
    >>> C = TopK(2)
    >>> C.unpack(*C.pack(np.array([[[3.0, -1.0, -4.0]]]), None, None), 3).tolist(), C.bits(3)
    ([[[3.0, 0.0, -4.0]]], 4)
    """

    k: int

    @property
    def unbiased(self) -> bool:
        """Whether E C(x) = x."""
        return False

    def delta(self, d: int) -> float:
        """Return k/d."""
        return self.k / d

    def bits(self, d: int) -> int:
        """Return the bits of a message's indices."""
        return self.k * _index_bits(d)

    def code_range(self, d: int) -> tuple[int, int]:
        """Return the least and the largest index."""
        return 0, d - 1

    def pack(self, x: np.ndarray, draws: Any, ids: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the entries (R, m, k) of x (R, m, d), and where they stand."""
        where = np.sort(np.argsort(-np.abs(x), axis=2, kind="stable")[:, :, : self.k], axis=2)
        return np.take_along_axis(x, where, axis=2), where

    def unpack(self, values: np.ndarray, codes: np.ndarray, d: int) -> np.ndarray:
        """Return the vectors (R, m, d) with these entries, zero elsewhere."""
        return _scattered(values, codes, d)


@equal_by_type
class RandK(NamedTuple):
    """k entries drawn uniformly, times d/k: unbiased with omega = d/k - 1.

    Parameters
    ----------
    k : int
        Entries that are sent, with their indices.

    Examples
    --------
    >>> from fedconvex.methods import RandK
    >>> c = RandK(2)
    >>> c.omega(10), c.bits(10)  # d/k - 1, and the bits of two indices
    (4.0, 8)
    """

    k: int

    @property
    def unbiased(self) -> bool:
        """Whether E C(x) = x."""
        return True

    def omega(self, d: int) -> float:
        """Return d/k - 1."""
        return d / self.k - 1.0

    def bits(self, d: int) -> int:
        """Return the bits of a message's indices."""
        return self.k * _index_bits(d)

    def code_range(self, d: int) -> tuple[int, int]:
        """Return the least and the largest index."""
        return 0, d - 1

    def pack(self, x: np.ndarray, draws: Draws, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the scaled entries (R, m, k) of x (R, m, d), and where they stand; ids (R, m) are keys of clients."""
        where = np.empty((*x.shape[:2], self.k), dtype=np.int64)
        choose_coordinates(draws.key, draws.trajectory, draws.round, ids, x.shape[2], where)
        where.sort(axis=2)
        return np.take_along_axis(x, where, axis=2) * (x.shape[2] / self.k), where

    def unpack(self, values: np.ndarray, codes: np.ndarray, d: int) -> np.ndarray:
        """Return the vectors (R, m, d) with these entries, zero elsewhere."""
        return _scattered(values, codes, d)


@equal_by_type
class Dithering(NamedTuple):
    """Random dithering: the norm, and for each entry its sign and one of s + 1 levels, up or down at random.

    Unbiased with omega = min(d/s^2, sqrt(d)/s).

    Parameters
    ----------
    levels : int
        s; with 1, entries are -‖x‖, 0 or ‖x‖.

    References
    ----------
    Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD: communication-efficient SGD via gradient quantization and encoding",
    NIPS 2017, Lemma 3.1. Here codes have a fixed length.

    Examples
    --------
    >>> from fedconvex.methods import Dithering
    >>> c = Dithering(4)
    >>> c.omega(16), c.bits(16)
    (1.0, 64)
    """

    levels: int

    @property
    def unbiased(self) -> bool:
        """Whether E C(x) = x."""
        return True

    def omega(self, d: int) -> float:
        """Return min(d/s^2, sqrt(d)/s)."""
        return min(d / self.levels**2, math.sqrt(d) / self.levels)

    def bits(self, d: int) -> int:
        """Return the bits of a message's signs and levels."""
        return d * (1 + math.ceil(math.log2(self.levels + 1)))

    def code_range(self, d: int) -> tuple[int, int]:
        """Return the least and the largest signed level."""
        return -self.levels, self.levels

    def pack(self, x: np.ndarray, draws: Draws, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the norms (R, m, 1) of x (R, m, d), and signed levels (R, m, d)."""
        size, u = np.linalg.norm(x, axis=2, keepdims=True), np.empty(x.shape)
        draw_uniform(draws.key, draws.trajectory, draws.round, ids, u)
        with np.errstate(invalid="ignore", divide="ignore"):
            level = np.where(size > 0.0, self.levels * np.abs(x) / size, 0.0)
        codes = np.floor(np.nan_to_num(level)).astype(np.int64)
        codes += u < level - codes
        return size, codes * np.sign(np.nan_to_num(x)).astype(np.int64)

    def unpack(self, values: np.ndarray, codes: np.ndarray, d: int) -> np.ndarray:
        """Return the vectors (R, m, d) with these levels."""
        if codes.shape[2] != d or np.abs(codes).max(initial=0) > self.levels:
            raise bad("compressed reply", f"have {d} levels of at most {self.levels}", "others")
        return values * codes / self.levels


def valid(who: str, C: Any) -> Any:
    """Return a compressor, one of those here by its name too ("TopK(3)"), or raise unless its setting is whole."""
    C = read_kind(C, TopK, RandK, Dithering)
    if isinstance(C, type) or not all(callable(getattr(C, name, None)) for name in ("pack", "unpack", "bits")):
        raise wrong_type(who, "be a compressor such as TopK(3)", f"{C!r}")
    for name in getattr(C, "_fields", ()):
        C = C._replace(**{name: whole(f"{who}: {name}", getattr(C, name), low=1)})
    return C


def check_fit(who: str, C: Any, problem: FederatedProblem) -> None:
    """Raise if a compressor takes more entries than a model has."""
    size = int(np.prod(problem.model_shape))
    if getattr(C, "k", 1) > size:
        raise bad(f"{who}.compressor: k", f"be at most the {size} entries of a model", C.k)


def unbiased(who: str, C: Any) -> Any:
    """Return a compressor, or raise unless it is unbiased."""
    if not valid(who, C).unbiased:
        raise wrong_type(who, "be unbiased, such as RandK(3)", f"{C!r}", "EF21 and ErrorFeedback take biased ones")
    return valid(who, C)


def bits(C: Any, reply: Reply, d: int) -> int:
    """Return the bits of a round's replies in one trajectory: 64 a float, and what the codes of C need, if any."""
    m, v = reply.values.shape[1:]
    return m * (v * FLOAT_BITS + (0 if C is None else C.bits(d)))


def one_gradient(method: Any, problem: Any) -> float:
    """Return 1, the gradient passes over all rows that a round takes."""
    return 1.0


def observe(method: Any, problem: Any, state: Any) -> dict[str, np.ndarray]:
    """bits_up (R,): bits that all clients have sent so far."""
    return {"bits_up": state.bits}


def contraction(C: Any, d: int) -> float:
    """Return delta of a contractive compressor.

    Raises
    ------
    TypeError
        If it is unbiased: C/(1 + omega) is contractive, C need not be.
    """
    if C.unbiased:
        raise wrong_type("compressor", "be contractive for a theorem's step, such as TopK(3)", f"{C!r}", "give a step")
    return float(C.delta(d))


def _index_bits(d: int) -> int:
    return math.ceil(math.log2(d)) if d > 1 else 0


def _scattered(values: np.ndarray, codes: np.ndarray, d: int) -> np.ndarray:
    if codes.shape != values.shape or codes.min(initial=0) < 0 or codes.max(initial=0) >= d:
        raise bad("compressed reply", f"have indices in 0, ..., {d - 1}, one for each value", "others")
    out = np.zeros((*values.shape[:2], d))
    np.put_along_axis(out, codes, values, axis=2)
    return out


@kernel
def choose_coordinates(key, trajectories, round_, ids, d, out):  # type: ignore[no-untyped-def]
    """Write k different coordinates for every client into out (R, m, k)."""
    for r in range(out.shape[0]):
        for j in range(out.shape[1]):
            choose(stream(key, trajectories[r], round_, ids[r, j], COMPRESSION), d, out.shape[2], out[r, j])


@kernel
def draw_uniform(key, trajectories, round_, ids, out):  # type: ignore[no-untyped-def]
    """Write uniform numbers of every client into out (R, m, d)."""
    for r in range(out.shape[0]):
        for j in range(out.shape[1]):
            state = stream(key, trajectories[r], round_, ids[r, j], COMPRESSION)
            for q in range(out.shape[2]):
                out[r, j, q] = uniform(state, q)
