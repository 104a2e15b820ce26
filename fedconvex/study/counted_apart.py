"""Numbers of answers that a site counts before it answers: its own ones, and those that only a sum over sites shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedconvex.remote import messages
from fedconvex.remote.masks import CIRCLE, KEYS
from fedconvex.remote.messages import Refused

Arrays = Mapping[str, np.ndarray]


class Apart:
    """What a site has answered for sums over all sites, and which questions it has counted.

    Parameters
    ----------
    sums : int
        Numbers that were answered for sums before.
    """

    def __init__(self, sums: int) -> None:
        self.sums = sums
        self.told: set[bytes] = set()

    def admitted(
        self, count: Callable[[Arrays], tuple[int, int]], message: Arrays, numbers: int, held: int,
        limits: Mapping[str, Any],
    ) -> tuple[int, int]:  # fmt: skip
        """Return how many numbers of an answer are the site's own, and of sums.

        Parameters
        ----------
        count : callable
            From the arrays of a question to these.
        message : mapping
        numbers, held : int
            Own ones that were answered; numbers that the rows hold.
        limits : mapping
            ``share`` and ``summed``.

        Raises
        ------
        Refused
            If the limits leave no room for them.
        """
        own, sums = count({name: a for name, a in message.items() if name not in ("header", CIRCLE, KEYS)})
        if message["header"].tobytes() in self.told:
            return own, sums
        for name, old, more in (("share", numbers, own), ("summed", self.sums, sums)):
            if more and old + more > limits[name] * held:
                what = "are answered" if name == "share" else "are answered in sums"
                text = f"{old:,} numbers {what} about rows that hold {held:,}, and {more:,} more are asked for"
                raise Refused(f"{text}: the site allows no more ([limits] {name} = {limits[name]:g})")
        return own, sums

    def entered(self, counted: tuple[int, int], message: Arrays, answer: Arrays) -> int:
        """Count an answer, if it is a new one, and return how many numbers of it are the site's own."""
        key = message["header"].tobytes()
        if key in self.told or int(answer["header"][1]) == messages.UNKNOWN:
            return 0
        self.told.add(key)
        self.sums += counted[1]
        return counted[0]
