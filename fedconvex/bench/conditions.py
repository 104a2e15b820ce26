"""Conditions of a benchmark: how many clients take part, and what a round takes on a network that is stated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple

from fedconvex._check import bad, real, wrong_type
from fedconvex.bench.solvers import Solver

AXIS = "modelled seconds"
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

    def seconds(self, rounds: float, down: float, up: float, rows: float, clients: float) -> float:
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
        """
        sent = _BYTES * (down / self.down + up / self.up) / clients
        return 2.0 * self.latency * rounds + sent + self.slowest * self.row * rows / clients


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

    Examples
    --------
    >>> from fedconvex.bench import Conditions, Network
    >>> Conditions(participation=0.5, network=Network(latency=0.1)).network.latency
    0.1
    """

    participation: Any = None
    network: Network | None = None

    def __post_init__(self) -> None:
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

    def under(self, solvers: tuple[Solver, ...]) -> tuple[tuple[Solver, ...], dict[str, str]]:
        """Return the solvers under these conditions, and those that always ask all clients, with that as the reason."""
        if self.participation is None:
            return solvers, {}
        kept, apart = [], {}
        for s in solvers:
            known = {f.name for f in fields(s.target)} if is_dataclass(s.target) else set()
            fixed = s.kind == "class" and not (isinstance(s.target, type) and "participation" in known)
            if fixed and (not s.own or "participation" in known) and hasattr(s.target, "local"):
                apart[s.name] = "rounds with clients of its own choice, or all"
            elif fixed or s.kind == "pooled":
                kept.append(s)  # has all rows, or a module of its own, whose class is not looked into
            else:
                kept.append(replace(s, settings={**s.settings, "participation": self.participation}))
        if not kept:
            raise bad("bench: participation", "be known to a solver at least", ", ".join(apart))
        return tuple(kept), apart


def modelled(network: Network, cost: Mapping[str, Any], dials: Mapping[str, Any], clients: Any) -> float:
    """Return the seconds of a cost on a network: NaN where rounds, floats or passes are not counted.

    Where nobody says how much of the floats goes up, half of them do.
    """
    rounds, floats, passes = (
        math.nan if (v := cost.get(n)) is None else float(v) for n in ("rounds", "floats", "passes")
    )
    up = 0.5 * floats if cost.get("up") is None else float(cost["up"])
    return network.seconds(rounds, floats - up, up, passes * dials["n"], float(clients or dials["K"]))


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
