"""A channel between server and clients on which answers are lost and what arrives has noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedconvex._check import bad, real
from fedconvex.draws import Draws
from fedconvex.driver.rounds import Engine
from fedconvex.driver.threads import Threads

_LOST, _NOISE = 901, 902  # purposes of draws, which no method has


@dataclass(frozen=True)
class Channel:
    """What happens to answers on their way.

    Parameters
    ----------
    lost : float
        Probability that the answer of a client is lost, each time anew. It counts for the server as if the client had
        not been asked, and for the client as if it had done nothing, but the message to it was sent.
    noise : float
        Standard deviation of normal noise on every number of an answer that is not 0, in units of the root mean square
        of its field: noise 0.1 is a signal 20 dB above the noise.

    Raises
    ------
    ValueError, TypeError
        If ``lost`` is no probability below 1, or ``noise`` is no number from 0 on.

    References
    ----------
    Amiri, Gündüz, "Machine learning at the wireless edge: distributed stochastic gradient descent over-the-air", IEEE
    Trans. Signal Process. 68 (2020): answers of bounded power on a channel with additive white noise; from memory.

    Examples
    --------
    >>> from fedconvex.bench.channel import Channel
    >>> Channel(lost=0.1).clear, Channel().clear
    (False, True)
    """

    lost: float = 0.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        for name in ("lost", "noise"):
            object.__setattr__(self, name, real(f"Channel.{name}", getattr(self, name), low=0.0))
        if self.lost >= 1.0:
            raise bad("Channel.lost", "be a probability below 1", self.lost)

    @property
    def clear(self) -> bool:
        """Whether all arrives as it was sent."""
        return self.lost == 0.0 and self.noise == 0.0


class ChannelEngine(Engine):
    """Rounds over a channel.

    Parameters
    ----------
    channel : Channel
    method, problem, key
        As for `Engine`; one trajectory, one thread.
    """

    def __init__(self, channel: Channel, method: Any, problem: Any, key: np.uint64) -> None:
        super().__init__(method, problem, key, 1, 1)
        self.channel, self.ahead = channel, None
        if channel.noise > 0.0:
            self.threads = _Noisy(channel.noise)

    def _exchange(self, state: Any, draws: Draws, clients: np.ndarray, weights: np.ndarray) -> Any:
        """As without losses, with those who are heard, whose weights have the sum of all."""
        luck = draws.uniform(self.problem.federation.K, 0, _LOST)[0]
        heard = luck[clients[0]] >= self.channel.lost
        if heard.all():
            return super()._exchange(state, draws, clients, weights)
        if not heard.any():
            self.floats_down += self._sent(state, clients)
            return state
        total, some = weights.sum(axis=1, keepdims=True), weights[:, heard]
        scale = total / some.sum(axis=1, keepdims=True)
        self.floats_down += self._sent(state, clients[:, ~heard])
        return super()._exchange(state, draws, clients[:, heard], some * scale)

    def _sent(self, state: Any, clients: np.ndarray) -> int:
        """Return the floats of a message to clients who are not heard."""
        return self.floats_to(self.method.broadcast(state), clients)


class _Noisy(Threads):
    """One thread, whose answers have noise."""

    def __init__(self, noise: float) -> None:
        super().__init__(1)
        self.noise = noise

    def local(
        self, method: Any, problem: Any, message: Any, clients: np.ndarray, memory: Any, draws: Draws
    ) -> tuple[Any, Any]:
        reply, memory = super().local(method, problem, message, clients, memory, draws)
        changed = {}
        for place, (name, sent) in enumerate(zip(reply._fields, reply, strict=True)):
            numbers = isinstance(sent, np.ndarray) and sent.dtype == np.float64 and sent.ndim >= 2
            if numbers and name not in getattr(reply, "not_sent", ()):
                changed[name] = sent + self._drawn(sent, clients[0], draws, _NOISE + place)
        return reply._replace(**changed), memory

    def _drawn(self, sent: np.ndarray, clients: np.ndarray, draws: Draws, purpose: int) -> np.ndarray:
        """Return noise of the size that an answer asks for (1, m, ...), the same numbers for the same client."""
        each = sent.reshape(len(clients), -1)
        rms = np.sqrt(np.mean(each**2, axis=1, keepdims=True))
        normal = np.stack([draws.normal(each.shape[1], int(k), purpose)[0] for k in clients])
        return (self.noise * rms * normal * (each != 0.0)).reshape(sent.shape)
