"""The two apps of a Flower federation: sites as a ClientApp, `fedconvex.run` as a ServerApp."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import function, instance
from fedconvex.driver import run
from fedconvex.driver.cycles import leaves
from fedconvex.engines.flower.array_records import StateRecord, arrays_of, flwr_app, record
from fedconvex.engines.flower.nodes import Nodes, refusal
from fedconvex.federation import Federation
from fedconvex.remote import Limits, Roster, Site
from fedconvex.remote.messages import forms, unsaid

# what Flower's own processes are started with, beside os.environ, where nothing is to leave the machines
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


def client_app(
    method: Any,
    make: Callable[[Federation], Any],
    load: Callable[[Any], Federation],
    checkpoint: Callable[[Any], str | os.PathLike[str] | None] | None = None,
    limits: Limits | None = None,
) -> Any:
    """Return the ClientApp of a federation: every node is a `fedconvex.remote.Site`.

    Flower may start a process for each message. What a site remembers is therefore in ``Context.state``, which lasts
    as long as the node, and rows are loaded for every message.

    Parameters
    ----------
    method, make
        As for `Site`: the server and all sites have the same.
    load : callable
        From the node's ``Context`` to its own rows, a `Federation` of one client, named as in the roster:
        ``context.node_config`` says where they are.
    checkpoint : callable, optional
        From the node's ``Context`` to the path of a file in which it remembers instead, so that a node may be killed
        and started again; or to None.
    limits : Limits, optional
        What a node answers at most, as for `Site`.

    Raises
    ------
    ImportError
        If Flower is not installed.
    TypeError
        If the method is none for sites, or make or load cannot be called.

    Examples
    --------
    The file of a Flower app, where Flower is installed:

    >>> from importlib.util import find_spec
    >>> from fedconvex import SCAFFOLD, Federation, Logistic, Problem
    >>> from fedconvex.engines.flower import client_app
    >>> def load(context):  # of a node: its files are at what context.node_config says
    ...     return Federation.from_clients([([[1.0], [2.0]], [1.0, -1.0])], labels=["north"])
    >>> arguments = SCAFFOLD(step_size=0.5), lambda fed: Problem(fed, Logistic(), l2=0.1), load
    >>> app = client_app(*arguments) if find_spec("flwr") else None
    """
    flwr_app()
    from flwr.clientapp import ClientApp

    forms(method)
    for name, given in {"make": make, "load": load, "checkpoint": checkpoint}.items():
        if name != "checkpoint" or given is not None:
            function(f"client_app: {name}", given)
    if limits is not None:
        instance("client_app: limits", limits, Limits)
    node, app = _Node(method, make, load, checkpoint, limits), ClientApp()
    app.query("key")(node.key)
    for register in (app.train, app.evaluate, app.query):
        register()(node.answered)
    return app


class _Node(NamedTuple):
    """What a node does with a message, a site being made for each."""

    method: Any
    make: Callable[[Federation], Any]
    load: Callable[[Any], Federation]
    checkpoint: Callable[[Any], str | os.PathLike[str] | None] | None
    limits: Limits | None

    def answered(self, message: Any, context: Any) -> Any:
        """Answer as the site does."""
        return self._reply(message, context, self._of_site)

    def key(self, message: Any, context: Any) -> Any:
        """Say whose node it is: the key of its client's draws."""
        return self._reply(message, context, self._own_key)

    def _of_site(self, message: Any, context: Any) -> dict[str, np.ndarray]:
        path = None if self.checkpoint is None else self.checkpoint(context)
        store = StateRecord(context.state) if path is None else path
        site = Site(self.method, self.make, self.load(context), store, self.limits)
        session = site.session
        answer = site.answer(arrays_of(message.content))
        if site.session != session:  # the next message finds another site
            site.save()
        return answer

    def _own_key(self, message: Any, context: Any) -> dict[str, np.ndarray]:
        own = self.load(context)
        instance("client_app: what load returns", own, Federation)
        return {"key": np.array(own.ids[0], dtype=np.int64)}

    @staticmethod
    def _reply(message: Any, context: Any, answer: Callable[[Any, Any], dict[str, np.ndarray]]) -> Any:
        try:
            arrays = answer(message, context)
        except Exception as error:  # of rows and files of one's own: the server is told that there is one
            arrays = refusal(unsaid("client_app", error))
        return flwr_app().Message(record(arrays), reply_to=message)


def server_app(
    method: Any, roster: Roster, done: Callable[[Any], None] | None = None, deadline: float = 60.0, **settings: Any
) -> Any:
    """Return the ServerApp of a federation: it runs a method on the nodes, as `fedconvex.run` does on a problem.

    Parameters
    ----------
    method : method
    roster : Roster
    done : callable, optional
        Is given the `Result`, to save the model for example. The arrays of the last state are in ``Context.state`` of
        the server as well.
    deadline : float
        Seconds after which a node that has not answered is left out of a round.
    **settings
        Of `fedconvex.run`: rounds, tol, seed, record_every, checkpoint, ...

    Raises
    ------
    ImportError
        If Flower is not installed.
    TypeError
        If the roster is none, or done cannot be called.

    Examples
    --------
    In the file of a Flower app::

        roster = Roster(make, labels=["north", "south"], sizes=[30, 10], features=4)
        app = server_app(method, roster, done=lambda result: result.save("model.npz"), rounds=100)

    Where Flower is installed:

    >>> from importlib.util import find_spec
    >>> from fedconvex import SCAFFOLD, Logistic, Problem
    >>> from fedconvex.engines.flower import server_app
    >>> from fedconvex.remote import Roster
    >>> roster = Roster(lambda fed: Problem(fed, Logistic(), l2=0.1), labels=["a", "b"], sizes=[30, 10], features=4)
    >>> app = server_app(SCAFFOLD(step_size=0.5), roster, rounds=100) if find_spec("flwr") else None
    """
    flwr_app()
    from flwr.serverapp import ServerApp

    instance("server_app: roster", roster, Roster)
    if done is not None:
        function("server_app: done", done)
    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        result = run(method, roster, transport=Nodes(grid, roster, deadline), **settings)
        context.state["fedconvex"] = record(dict(leaves(result.state)))["fedconvex"]
        if done is not None:
            done(result)

    return app
