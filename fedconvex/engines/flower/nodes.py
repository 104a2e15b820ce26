"""A transport to the nodes of a Flower federation, with short waits between looks for answers."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedconvex._check import instance, printable, real, wrong_type
from fedconvex.engines.flower.array_records import arrays_of, flwr_app, record
from fedconvex.federation_input import draw_keys
from fedconvex.remote import Roster, SiteWarning
from fedconvex.remote.messages import ASK, MEASURE, REFUSE, Request, text, words

_KINDS = {ASK: "train", MEASURE: "evaluate"}  # Flower's kinds of messages; all others are queries
_LISTING = 1.0  # seconds between looks at which nodes there are
_SHORTEST, _LONGEST = 0.01, 0.2  # seconds between looks for answers, growing while there are none


class Nodes:
    """A transport for `fedconvex.run` to the nodes that a Flower ServerApp sees.

    Nodes are asked once who they are, and matched to the roster by the keys of their clients. A node that comes later
    takes the place of an earlier one of the same client, in the middle of a round too.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
        As the ServerApp's main function is given it.
    roster : fedconvex.remote.Roster, or tuple of str
        Of a study the names of its sites.
    deadline : float
        Seconds after which who has not answered is left out; what was asked expires then.

    Raises
    ------
    ImportError
        If Flower is not installed.
    TypeError, ValueError
        If grid or roster are none, or the deadline is not positive.

    Warns
    -----
    SiteWarning
        If a node serves no client of the roster, or cannot say which one.

    Examples
    --------
    The main function of a ServerApp of one's own::

        @app.main()
        def main(grid, context):
            result = run(method, roster, transport=Nodes(grid, roster, deadline=60.0), rounds=100)

    Where Flower is installed; the grid is what Flower gives the main function:

    >>> from importlib.util import find_spec
    >>> from fedconvex import Logistic, Problem
    >>> from fedconvex.engines.flower import Nodes
    >>> from fedconvex.remote import Roster
    >>> class Grid:
    ...     get_node_ids = push_messages = pull_messages = None
    >>> roster = Roster(lambda fed: Problem(fed, Logistic(), l2=0.1), labels=["a", "b"], sizes=[30, 10], features=4)
    >>> nodes = Nodes(Grid(), roster, deadline=60.0) if find_spec("flwr") else None
    """

    def __init__(self, grid: Any, roster: Roster | tuple[str, ...], deadline: float = 60.0) -> None:
        self.app = flwr_app()
        if not all(hasattr(grid, name) for name in ("get_node_ids", "push_messages", "pull_messages")):
            raise wrong_type("Nodes.grid", "be the Grid of a ServerApp", type(grid).__name__)
        self.grid = grid
        if isinstance(roster, tuple):
            self.labels, ids = list(roster), draw_keys(np.array(roster))
        else:
            instance("Nodes.roster", roster, Roster)
            self.labels, ids = roster.federation.labels.tolist(), roster.federation.ids
        self.deadline = real("Nodes.deadline", deadline, low=0.0, high=1e6, strict=True)
        self.number = {int(key): k for k, key in enumerate(ids)}
        self.node_of: dict[int, int] = {}  # by client
        self.seen: set[int] = set()  # nodes that were asked who they are
        self.asked: dict[str, int] = {}  # the nodes that have not said so yet, by message
        self.since: dict[int, float] = {}  # when they were asked
        self.listed = -_LISTING

    def __call__(self, t: int, requests: Mapping[int, dict[str, np.ndarray]]) -> dict[int, Any]:
        """Send requests, and return what came back before the deadline."""
        end, pause = time.monotonic() + self.deadline, _SHORTEST
        answers: dict[int, Any] = {}
        waiting: dict[str, int] = {}  # clients by message
        sent: dict[int, int] = {}  # nodes by client
        while len(answers) < len(requests) and time.monotonic() < end:
            self._look()
            for k in [k for k in requests if k in self.node_of and k not in answers]:
                if sent.get(k) != self.node_of[k]:
                    sent[k] = self.node_of[k]
                    waiting |= dict.fromkeys(self._push(t, sent[k], requests[k]), k)
            found = self._pull([*waiting, *self.asked])
            for name, content in found.items():
                if name in self.asked:
                    self._introduce(self.asked.pop(name), content)
                elif name in waiting:
                    answers.setdefault(waiting.pop(name), content)
            pause = _SHORTEST if found else min(1.5 * pause, _LONGEST)
            if len(answers) < len(requests):
                time.sleep(max(0.0, min(pause, end - time.monotonic())))
        return answers

    def _look(self) -> None:
        """Ask nodes that are new who they are."""
        if time.monotonic() - self.listed < _LISTING:
            return
        self.listed = time.monotonic()
        for name, node in [*self.asked.items()]:
            if self.listed - self.since[node] > self.deadline:  # what was asked has expired: a busy machine starts late
                del self.asked[name]
                self.seen.discard(node)
        for node in set(self.grid.get_node_ids()) - self.seen:
            self.seen.add(node)
            self.since[node] = self.listed
            self.asked |= dict.fromkeys(self._push(-1, node, {}, "query.key"), node)

    def _introduce(self, node: int, content: dict[str, np.ndarray]) -> None:
        """Note which client a node serves."""
        key = content.get("key", np.empty(0))
        k = self.number.get(int(key)) if key.shape == () and key.dtype == np.int64 else None
        if k is not None:
            self.node_of[k] = node
            return
        why = content.get("why")
        what = (
            words(why) if why is not None and why.dtype == np.uint8 else f"none of {printable(str(self.labels)[:200])}"
        )
        warnings.warn(f"node {node} must serve a client of the roster; got {what}", SiteWarning, stacklevel=2)

    def _push(self, t: int, node: int, arrays: Mapping[str, np.ndarray], kind: str = "") -> list[str]:
        """Send arrays to a node; return the name of the message, nothing if it was not taken."""
        if not kind:
            kind = _KINDS.get(int(arrays["header"][1]) if "header" in arrays else -1, "query")
        message = self.app.Message(record(arrays), node, kind, ttl=self.deadline, group_id=str(t))
        return [name for name in self.grid.push_messages([message]) if name]

    def _pull(self, names: list[str]) -> dict[str, dict[str, np.ndarray]]:
        """Return the answers that have come, by the messages that they answer; errors as refusals."""
        try:
            messages = self.grid.pull_messages(names) if names else ()
        except Exception as error:  # whatever a damaged message makes Flower's reader raise
            if len(names) > 1:
                return {name: content for one in names for name, content in self._pull([one]).items()}
            return {names[0]: refusal(f"it cannot be read, {type(error).__name__}: {error}")}
        found = {}
        for message in messages:
            failed = message.has_error()
            content = refusal(message.error.reason) if failed else arrays_of(message.content)
            found[message.metadata.reply_to_message_id] = content
        return found


def refusal(why: str) -> dict[str, np.ndarray]:
    """Return an answer that says why there is none."""
    return {"header": Request(REFUSE, -1, -1, -1).header(), "why": text(why or "it does not say why")}
