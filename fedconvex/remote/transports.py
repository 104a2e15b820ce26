"""Transports: how requests reach sites and answers come back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from fedconvex._check import bad, items, wrong_type

Arrays = dict[str, np.ndarray]


def in_process(sites: Iterable[Any]) -> Callable[[int, dict[int, Arrays]], dict[int, Arrays]]:
    """Return a transport to sites of this process, in the order of the roster: for trials, and for tests.

    Arrays are copied both ways, as if they had travelled. Limits of sites that were not given any are lifted.

    Parameters
    ----------
    sites : sequence of K `Site`

    Raises
    ------
    TypeError, ValueError
        If one of them is no site, or when a client is asked that has none.

    Examples
    --------
    >>> from fedconvex import FedAvg, Federation, Problem, Squared
    >>> from fedconvex.remote import Site, in_process
    >>> site = Site(FedAvg(step_size=0.1), lambda fed: Problem(fed, Squared()), Federation([[1.0]], [1.0], [0, 1]))
    >>> sorted(in_process([site])(0, {0: {}})[0])
    ['header', 'why']
    """
    listed = items("in_process: sites", sites)
    for site in listed:
        if not hasattr(site, "answer"):
            raise wrong_type("in_process: sites", "be Site objects", f"{site!r}")
        if hasattr(site, "in_trial"):
            site.in_trial()

    def ask(t: int, requests: dict[int, Arrays]) -> dict[int, Arrays]:
        if requests and max(requests) >= len(listed):
            raise bad("in_process: sites", "be one for each client of the roster", f"{len(listed)}")
        return {k: _copied(listed[k].answer(_copied(message))) for k, message in requests.items()}

    return ask


def _copied(message: Arrays) -> Arrays:
    return {name: a.copy() for name, a in message.items()}
