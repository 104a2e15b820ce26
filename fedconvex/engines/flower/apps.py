"""The two apps of a Flower federation: sites as a ClientApp, `fedconvex.run` as a ServerApp."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from fedconvex._check import function, instance
from fedconvex.driver import run
from fedconvex.driver.returns import leaves
from fedconvex.engines.flower.nodes import Nodes, refusal
from fedconvex.engines.flower.records import StateRecord, arrays_of, flwr_app, record
from fedconvex.federation import Federation
from fedconvex.remote import Roster, Site
from fedconvex.remote.messages import forms

__all__ = ["QUIET", "client_app", "server_app"]

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
    checkpoint: Callable[[Any], str | os.PathLike[str]] | None = None,
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
        and started again.

    Raises
    ------
    ImportError
        If Flower is not installed.
    TypeError
        If the method is none for sites, or make or load cannot be called.

    Examples
    --------
    In the file of a Flower app::

        def load(context):
            X, y = read(context.node_config["data"])
            return Federation.from_clients([(X, y)], labels=[context.node_config["name"]])

        app = client_app(SCAFFOLD(step_size=0.5), lambda fed: Problem(fed, Logistic(), l2=0.1), load)
    """
    from_flwr = flwr_app()
    from flwr.clientapp import ClientApp

    forms(method)
    for name, given in (("make", make), ("load", load)) + ((("checkpoint", checkpoint),) if checkpoint else ()):
        function(f"client_app: {name}", given)

    def answered(message: Any, context: Any) -> Any:
        try:
            store = StateRecord(context.state) if checkpoint is None else checkpoint(context)
            site = Site(method, make, load(context), store)
            session = site.session
            answer = site.answer(arrays_of(message.content))
            if site.session != session:
                site.save()
        except Exception as error:  # of rows and files of one's own: the server is told
            answer = refusal(f"{type(error).__name__}: {error}")
        return from_flwr.Message(record(answer), reply_to=message)

    def key(message: Any, context: Any) -> Any:
        try:
            own = load(context)
            instance("client_app: what load returns", own, Federation)
            answer = {"key": np.array(own.ids[0], dtype=np.int64)}
        except Exception as error:
            answer = refusal(f"{type(error).__name__}: {error}")
        return from_flwr.Message(record(answer), reply_to=message)

    app = ClientApp()
    app.query("key")(key)
    for register in (app.train, app.evaluate, app.query):
        register()(answered)
    return app


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
