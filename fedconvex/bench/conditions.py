"""Conditions of a benchmark: who takes part, what is lost or blurred, what a round takes, and what targets are of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, instance, real, wrong_type
from fedconvex.bench.cases import Case
from fedconvex.bench.channel import Channel
from fedconvex.bench.solvers import Reference, Solver

AXIS = "modelled seconds"
CARRIED = "the referee does not carry a function's messages"  # why a solver is left out
CHOSEN = "it chooses the clients of a round itself, or asks all"
_BYTES = 8.0  # of a float


class Network(NamedTuple):
    """What a round takes: a message down, work, an answer up; the slowest of those who take part is waited for.

    Parameters
    ----------
    latency : float
        Seconds of a message on its way, whatever its length.
    down, up : float
        Bytes per second to and from each client; the server's own line is not what limits.
    row : float
        Seconds that a gradient of one row takes a client.
    slowest : float
        How many times as long the slowest client takes for its work, which is in every round.
    spread : float
        Of random speeds: the work of a client in a round takes 1 + ``spread`` E times as long, E exponential of mean 1,
        drawn anew for each client and round by the seed of the run; the slowest of those who take part is waited for.

    References
    ----------
    Shifted exponential times of work: Lee, Lam, Pedarsani, Papailiopoulos, Ramchandran, "Speeding up distributed
    machine learning using codes", IEEE Trans. Inf. Theory 64 (2018), section III; from memory.

    Examples
    --------
    >>> from fedconvex.bench import Network
    >>> Network(latency=0.1, down=8e3, up=8e2).seconds(rounds=10, down=1e4, up=1e4, rows=0.0, clients=10)
    13.0
    """

    latency: float = 0.05
    down: float = 1e7
    up: float = 1e6
    row: float = 1e-6
    slowest: float = 1.0
    spread: float = 0.0

    def seconds(self, rounds: float, down: float, up: float, rows: float, clients: float, seed: int = 0) -> float:
        """Return the seconds of a run.

        Parameters
        ----------
        rounds : float
        down, up : float
            Floats to and from all clients together.
        rows : float
            Gradients of single rows, of all clients together.
        clients : float
            That take part in a round, between whom floats and rows are divided evenly.
        seed : int
            Of random speeds.
        """
        sent = _BYTES * (down / self.down + up / self.up) / clients
        work = self.slowest * self.row * rows / clients
        return 2.0 * self.latency * rounds + sent + work * self.waiting(rounds, clients, seed)

    def waiting(self, rounds: float, clients: float, seed: int) -> float:
        """Return how many times as long the slowest of so many clients takes, on average over these rounds.

        Solvers that ask as many clients wait for the same ones.

        Examples
        --------
        >>> from fedconvex.bench import Network
        >>> Network().waiting(10, 5, 0), Network(spread=1.0).waiting(10, 5, 0) > 2.0
        (1.0, True)
        """
        if self.spread == 0.0 or not rounds >= 1.0:
            return 1.0
        u = np.random.default_rng(seed).random(int(rounds))
        slowest = -np.log(-np.expm1(np.log1p(-u) / clients))  # of so many exponentials, by its distribution function
        return 1.0 + self.spread * float(slowest.mean())


@dataclass(frozen=True)
class Conditions:
    """Under which solvers are compared.

    Parameters
    ----------
    participation : int or float, optional
        Clients, or their share, that take part in a round, drawn anew each time; functions find it in their settings.
        Default: as a method has it, mostly all.
    network : Network, optional
        Adds the axis "modelled seconds".
    channel : Channel
        Answers that are lost, and noise on those that arrive. Functions, whose messages the referee does not carry, and
        methods that need all clients where answers are lost are left out.
    held_out : float
        Share of every client's rows that is set aside, drawn by the seed of the data. Targets are then of the loss on
        them: by how much it exceeds that of the optimum, as a share of the latter. 0: targets are certified gaps.

    Raises
    ------
    ValueError, TypeError
        If participation is neither a number of clients nor a share up to 1, or network is no `Network` of positive
        speeds.

    Examples
    --------
    >>> from fedconvex.bench import Conditions, Network
    >>> Conditions(participation=0.5, network=Network(latency=0.1)).network.latency
    0.1
    """

    participation: Any = None
    network: Network | None = None
    channel: Channel = Channel()
    held_out: float = 0.0

    def __post_init__(self) -> None:
        instance("Conditions.channel", self.channel, Channel)
        if not real("Conditions.held_out", self.held_out, low=0.0) < 1.0:
            raise bad("Conditions.held_out", "be a share below 1", self.held_out)
        if self.network is not None:
            if not isinstance(self.network, Network):
                raise wrong_type("Conditions.network", "be a Network", f"{self.network!r}")
            for name, value in self.network._asdict().items():
                real(f"Network.{name}", value, low=0.0, strict=name in ("down", "up"))
            real("Network.slowest", self.network.slowest, low=1.0)
        if self.participation is not None:
            share = real("Conditions.participation", self.participation, low=0.0, strict=True)
            if not isinstance(self.participation, int) and share > 1.0:
                raise bad("Conditions.participation", "be a number of clients or a share up to 1", share)

    @property
    def targets(self) -> tuple[float, ...]:
        """Targets where none are named."""
        return (0.1, 0.01, 0.001) if self.held_out else (1e-3, 1e-6, 1e-9)

    @property
    def measured(self) -> str:
        """What targets are of."""
        return "excess held-out loss" if self.held_out else "certified gap"

    def of(self, case: Case) -> Case:
        """Return a problem with the share of its rows set aside."""
        return replace(case, held_out=self.held_out) if self.held_out else case

    def under(self, solvers: tuple[Solver, ...]) -> tuple[tuple[Solver, ...], dict[str, str]]:
        """Return the solvers under these conditions, and those that cannot be had so, with the reason."""
        kept, apart = [], {}
        for s in solvers:
            if why := self._unfit(s):
                apart[s.name] = why
                continue
            if self.participation is not None:
                given = "participation" in s.takes or s.kind == "function"
                settings = {**s.settings, "participation": self.participation} if given else s.settings
                s = replace(s, settings=settings, participation=self.participation)
            asks = s.kind == "class" and (hasattr(s.target, "local") or isinstance(s.target, Reference))
            kept.append(replace(s, channel=self.channel) if asks else s)
        if not kept:
            why = "; ".join(f"{name}: {reason}" for name, reason in apart.items())
            raise bad("bench: conditions", "be such that a solver at least can be run", why)
        return tuple(kept), apart

    def _unfit(self, s: Solver) -> str:
        """Return why a solver cannot be run under these conditions, or nothing."""
        if s.kind == "function" and not self.channel.clear:
            return CARRIED
        if s.kind != "class" or not hasattr(s.target, "local"):
            return ""  # has all rows, or a module of its own, whose class is not looked into
        known = "participation" in _settings_of(s)
        fixed = self.participation is not None and not (known and isinstance(s.target, type))
        fixed = fixed or (self.channel.lost > 0.0 and not known)
        return CHOSEN if fixed and (known or not s.own) else ""


def _settings_of(s: Solver) -> set[str]:
    return {f.name for f in fields(s.target)} if is_dataclass(s.target) else set()


def asked(participation: Any, K: int) -> int:
    """Return how many of K clients may take part in a round: a share is rounded up.

    Examples
    --------
    >>> from fedconvex.bench.conditions import asked
    >>> asked(0.5, 5), asked(2, 5), asked(None, 5)
    (3, 2, 5)
    """
    if participation is None:
        return K
    share = isinstance(participation, float)
    return min(K, max(1, math.ceil(participation * K - 1e-9)) if share else int(participation))


def modelled(network: Network, cost: Mapping[str, Any], dials: Mapping[str, Any], clients: Any, seed: int = 0) -> float:
    """Return the seconds of a cost on a network: NaN where rounds, floats or passes are not counted.

    Where nobody says how much of the floats goes up, half of them do.
    """
    rounds, floats, passes = (
        math.nan if (v := cost.get(n)) is None else float(v) for n in ("rounds", "floats", "passes")
    )
    up = 0.5 * floats if cost.get("up") is None else float(cost["up"])
    return network.seconds(rounds, floats - up, up, passes * dials["n"], float(clients or dials["K"]), seed)


def network_of(who: str, text: str) -> Network:
    """Return a network from text, ``latency=0.1,up=1e6``.

    Examples
    --------
    >>> from fedconvex.bench.conditions import network_of
    >>> network_of("--network", "latency=0.1, slowest=4").slowest
    4.0
    """
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (p.strip() for p in part.partition("="))
        if name not in Network._fields:
            raise bad(who, f"name of {', '.join(Network._fields)} what is not the default, NAME=NUMBER", f"{part!r}")
        try:
            found[name] = float(value)
        except ValueError:
            raise bad(f"{who}: {name}", "be a number", f"{value!r}") from None
    return Network(**found)
