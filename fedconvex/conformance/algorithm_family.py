"""What a family of algorithms is: conventions, and the reference that a reading of them stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedconvex.conformance import averaging
from fedconvex.conformance.conventions import Convention

DETERMINISTIC = ("one step", "three steps", "four rounds")


class Family(NamedTuple):
    """What an implementation may be: conventions, and the reference that a reading of them is.

    Parameters
    ----------
    name, title, source : str
        As on the command line; what it is; the paper.
    conventions : tuple of `Convention`
        In the order in which they are found out.
    hyper : dict
        What exams set in the place of their defaults.
    knows : tuple of str
        Hyper-parameters beyond those of all families.
    exams : tuple of str
        Exams that the family takes.
    server_side : tuple of str
        Conventions on which the clients' answers do not depend.
    at_server : tuple of str
        Conventions that only ``move`` reads in the first round; none where it cannot take stacked answers.
    kept : bool
        Whether a client's answer may be kept for readings that differ in these only.
    first, reply, move : callable
        The reference: the first state, a client's answer, the server's step.
    """

    name: str
    title: str
    source: str
    conventions: tuple[Convention, ...]
    exams: tuple[str, ...]
    hyper: Mapping[str, Any] = {}
    knows: tuple[str, ...] = ()
    server_side: tuple[str, ...] = ()  # conventions that do not change what clients answer
    at_server: tuple[str, ...] = averaging.AT_SERVER  # conventions that only `move` reads in the first round
    kept: bool = True  # whether equal answers of clients may be kept: not where exams of a name have other rows
    first: Callable[..., Any] = averaging.first
    reply: Callable[..., Any] = averaging.reply
    move: Callable[..., Any] = averaging.move
