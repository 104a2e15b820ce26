"""Keyed randomness: every draw is a pure function of (seed, trajectory, round, client, draw number).

A stream is a 64-bit key; its draw number j is ``mix(key + j * GOLDEN)``, where mix is the finaliser of SplitMix64
(Steele, Lea, Flood 2014; constants of Stafford's variant 13). The keys themselves are mixed from their coordinates, one
after the other. Nothing is stored between draws, hence: the same seed gives the same bits whatever the number of
threads, resuming equals never having stopped, a client run alone draws what it draws among others, and adding a client
changes nobody's draws.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, wrong_type
from fedconvex.kernels.cache import kernel

__all__ = ["BATCHES", "PARTICIPATION", "Draws", "key_from_seed"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_ULP = 2.0**-53

# What streams are for. The numbers are coordinates of keys: another one draws other bits. No run has two methods, so
# those from 3 on may be the same where different methods use them; `tests/test_draws.py` looks after both.
BATCHES = 0  # mini-batches of a client, and visits of its rows
PARTICIPATION = 1  # who takes part in a round
DRIFT = 2  # steps of a moving target
CLIENT_ORDER = 3  # RADFed: the order in which a round's clients work
GROUP_DROPS = 3  # blocks of rows and columns: groups that do not answer
NODE_CLOCKS = 3  # related tasks: speeds and drops of nodes
INNER_PICK = 4  # SVRG: the iterate of option II
DOMAIN_DRAWS = 5  # AFL: domains of stochastic gradients
STRAGGLING = 5  # FedProx: who is late, and how much work is done
COMMUNICATION = 6  # Scaffnew: coins that say when clients communicate
COMPRESSION = 7  # coordinates and roundings of compressed messages
ENSEMBLE_CLIENTS = 11  # FedMultiBoost: clients of a domain
ENSEMBLE_CLASSIFIERS = 12  # FedMultiBoost: classifiers of a round


@kernel
def mix(z):
    """Finaliser of SplitMix64: a bijection of 64-bit words in which every input bit moves every output bit."""
    z = (z ^ (z >> _S30)) * _M1
    z = (z ^ (z >> _S27)) * _M2
    return z ^ (z >> _S31)


@kernel
def stream(key, trajectory, round_, client, purpose):
    """Return the key of the stream (trajectory, round, client, purpose)."""
    z = mix(np.uint64(key) + _GOLDEN * np.uint64(trajectory + 1))
    z = mix(z + _GOLDEN * np.uint64(round_ + 1))
    z = mix(z + _GOLDEN * np.uint64(client + 1))
    return mix(z + _GOLDEN * np.uint64(purpose + 1))


@kernel
def uniform(state, j):
    """Return draw number j of a stream as a float in [0, 1)."""
    return np.float64(np.int64(mix(state + _GOLDEN * np.uint64(j + 1)) >> _S11)) * _ULP


@kernel
def below(state, j, n):
    """Return draw number j of a stream as an index in 0, ..., n-1 (bias at most n 2^-53)."""
    return np.int64(np.float64(np.int64(mix(state + _GOLDEN * np.uint64(j + 1)) >> _S11)) * _ULP * np.float64(n))


@kernel
def choose(state, K, m, out):
    """Write m different indices below K into out: a partial shuffle, or Floyd's method where m is small."""
    if m * m > 4 * K:  # as in `kernels.lane_samples`
        order = np.empty(K, np.int64)
        for i in range(K):
            order[i] = i
        for i in range(m):
            j = i + below(state, i, K - i)
            order[i], order[j] = order[j], order[i]
            out[i] = order[i]
        return
    for i in range(m):
        top, taken = K - m + i, False
        pick = below(state, i, top + 1)
        for j in range(i):  # to the end: a processor guesses wrong where it would stop
            taken |= out[j] == pick
        out[i] = top if taken else pick


@kernel
def choose_many(key, trajectories, round_, client, purpose, K, m, out):
    """Write a sample without replacement for every trajectory into out (R, m); client -1 is the server."""
    for r in range(out.shape[0]):
        choose(stream(key, trajectories[r], round_, client, purpose), K, m, out[r])


@kernel
def choose_in_rounds(key, trajectories, first, K, out):
    """Write what `choose_many` does for rounds from the first on into out (n, R, m)."""
    for t in range(out.shape[0]):
        choose_many(key, trajectories, first + t, -1, PARTICIPATION, K, out.shape[2], out[t])


@kernel
def choose_weighted(key, trajectories, round_, cumulative, out):
    """Write m draws with replacement into out (R, m), with the probabilities whose cumulative sums are given."""
    for r in range(out.shape[0]):
        state = stream(key, trajectories[r], round_, -1, PARTICIPATION)
        for i in range(out.shape[1]):
            u = uniform(state, i) * cumulative[-1]
            out[r, i] = min(np.searchsorted(cumulative, u, side="right"), cumulative.size - 1)


class Draws(NamedTuple):
    """The address of a round's randomness, handed to a method's `local`.

    Attributes
    ----------
    key : numpy.uint64
        Of the run's seed.
    trajectory : array (R,) of int64
        Numbers of the trajectories that advance together.
    round : int
        t, from 0.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.draws import Draws, key_from_seed
    >>> draws = Draws(key_from_seed(0), np.arange(2), 5)
    >>> draws.normal(3, client=1, purpose=9).shape
    (2, 3)
    """

    key: np.uint64
    trajectory: np.ndarray  # (R,) int64, the numbers of the trajectories that advance together
    round: int

    def uniform(self, size: int, client: int, purpose: int) -> np.ndarray:
        """Return (R, size) floats in [0, 1) of the given stream."""
        out = np.empty((self.trajectory.size, size))
        _fill(self.key, self.trajectory, self.round, client, purpose, out)
        return out

    def normal(self, size: int, client: int, purpose: int) -> np.ndarray:
        """Return (R, size) standard normal numbers of the given stream (Box-Muller)."""
        u = self.uniform(2 * size, client, purpose)
        return np.sqrt(-2.0 * np.log1p(-u[:, ::2])) * np.cos(2.0 * np.pi * u[:, 1::2])


@kernel
def _fill(key, trajectories, round_, client, purpose, out):
    """Write the first draws of one stream per trajectory into out (R, size)."""
    for r in range(out.shape[0]):
        state = stream(key, trajectories[r], round_, client, purpose)
        for j in range(out.shape[1]):
            out[r, j] = uniform(state, j)


def key_from_seed(seed: Any) -> np.uint64:
    """Return the 64-bit key of a seed: a whole number, or a numpy Generator that the key is drawn from.

    Parameters
    ----------
    seed : int or numpy.random.Generator
        At least 0 and below 2^64; a generator advances by one number.

    Raises
    ------
    TypeError, ValueError
        If seed is neither a nonnegative whole number nor a `numpy.random.Generator`.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.draws import key_from_seed
    >>> bool(key_from_seed(7) == key_from_seed(7)), bool(key_from_seed(7) == key_from_seed(8))
    (True, False)
    """
    if isinstance(seed, np.random.Generator):
        return np.uint64(seed.integers(0, 2**64, dtype=np.uint64))
    if isinstance(seed, (bool, np.bool_)) or not isinstance(seed, (int, np.integer)):
        raise wrong_type("seed", "be a whole number or a numpy Generator", f"{type(seed).__name__} {seed!r}")
    if not 0 <= int(seed) < 2**64:
        raise bad("seed", "lie in 0, ..., 2^64 - 1", seed)
    return np.uint64(mix(np.uint64((int(seed) + int(_GOLDEN)) % 2**64)))
