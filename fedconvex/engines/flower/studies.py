"""A study on Flower: nodes read study.toml and site.toml, the server asks what the study asks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fedconvex._check import bad, function
from fedconvex._files import own_folder
from fedconvex.engines.flower.array_records import arrays_of, flwr_app, record
from fedconvex.engines.flower.nodes import Nodes, refusal
from fedconvex.federation_input import draw_keys
from fedconvex.remote.messages import JOIN, unsaid
from fedconvex.study.agreement import read_study
from fedconvex.study.certificates import SITE, credentials
from fedconvex.study.coordination import Coordinator
from fedconvex.study.sealed_keys import Seals
from fedconvex.study.site_end import Participant
from fedconvex.study.site_settings import read_site
from fedconvex.sweeps.answers_on_disk import alone_in


def study_client_app(files: Callable[[Any], tuple[str, str]] | None = None) -> Any:
    """Return the ClientApp of a study: every node answers as `fedconvex study join` does, from its own two files.

    Flower may start a process for each message. What a site remembers, and its audit log, are in its state folder, as
    with `join`; its table is read and checked for every message. Where sums are secure, keys are signed with the
    site's certificate (`fedconvex study cert`), so that whoever runs the SuperLink cannot put others in their place.

    Parameters
    ----------
    files : callable, optional
        From the node's ``Context`` to the paths of study.toml and site.toml; default what its configuration names as
        ``study`` and ``site``.

    Raises
    ------
    ImportError
        If Flower is not installed.
    TypeError
        If files cannot be called.

    Examples
    --------
    The file of a Flower app, whose nodes are started with ``--node-config`` and the two paths:

    >>> from importlib.util import find_spec
    >>> from fedconvex.engines.flower import study_client_app
    >>> app = study_client_app() if find_spec("flwr") else None
    """
    flwr_app()
    from flwr.clientapp import ClientApp

    if files is not None:
        function("study_client_app: files", files)
    node, app = _StudyNode(files or _named), ClientApp()
    app.query("key")(node.key)
    for register in (app.train, app.evaluate, app.query):
        register()(node.answered)
    return app


def _named(context: Any) -> tuple[str, str]:
    """Return the files that a node's configuration names."""
    config = context.node_config
    for name in ("study", "site"):
        if name not in config:
            raise bad("node-config", "name study and site", f"{', '.join(config) or 'nothing'}", 'site="site.toml"')
    return str(config["study"]), str(config["site"])


class _StudyNode:
    """What a node does with a message: a participant is made for each, from its files and its state folder."""

    def __init__(self, files: Callable[[Any], tuple[str, str]]) -> None:
        self.files = files

    def key(self, message: Any, context: Any) -> Any:
        """Say whose node it is: the key of the site's name."""

        def told() -> dict[str, np.ndarray]:
            name = read_site(self.files(context)[1]).name
            return {"key": np.array(draw_keys(np.array([name]))[0], dtype=np.int64)}

        return self._reply(message, told)

    def answered(self, message: Any, context: Any) -> Any:
        """Answer as the site does."""
        return self._reply(message, lambda: self._answer(arrays_of(message.content), context))

    def _answer(self, arrays: dict[str, np.ndarray], context: Any) -> dict[str, np.ndarray]:
        place, own = self.files(context)
        study, settings = read_study(place), read_site(own)
        own_folder(f"site {settings.name}: state", settings.state, secret=True)
        with alone_in("a node of Flower", settings.state):
            member = Participant(study, settings)
            if study.secure_sums:
                files = (settings.certificate, settings.key, settings.authority)
                credentials(study, *files, SITE + settings.name)  # which says what is wrong with them
                member.seals = Seals(study, settings.name, *files)
            found = member.answer(arrays)
            header = arrays.get("header", np.empty(0))
            if header.shape == (6,) and int(header[1]) == JOIN:  # the next message finds another process
                for site in member.sites.values():
                    if site.problem is not None:
                        site.save()
        return found

    @staticmethod
    def _reply(message: Any, answer: Callable[[], dict[str, np.ndarray]]) -> Any:
        try:
            arrays = answer()
        except Exception as error:  # of tables and files of one's own: the server is told that there is one
            arrays = refusal(unsaid("study_client_app", error))
        return flwr_app().Message(record(arrays), reply_to=message)


def study_server_app(
    files: Callable[[Any], tuple[str, str]] | None = None, deadline: float = 300.0, joining: float = 86_400.0
) -> Any:
    """Return the ServerApp of a study: it asks what the study asks, and writes the results as `serve` does.

    Parameters
    ----------
    files : callable, optional
        From the ``Context`` to the path of study.toml, and the folder of the results, which is made; default what the
        run's configuration names as ``study`` and ``out``. Who starts a run that was stopped there again goes on with
        it, with the same bits.
    deadline : float
        Seconds after which a node that has not answered is asked again, until the study's own deadline is over. A node
        starts a process for every message, which takes a minute on a busy machine.
    joining : float
        Seconds in which all sites must have joined; default a day.

    Raises
    ------
    ImportError
        If Flower is not installed.
    TypeError
        If files cannot be called.

    Examples
    --------
    The file of a Flower app, which ``flwr run`` starts with ``--run-config`` and the two paths:

    >>> from importlib.util import find_spec
    >>> from fedconvex.engines.flower import study_server_app
    >>> app = study_server_app() if find_spec("flwr") else None
    """
    flwr_app()
    from flwr.serverapp import ServerApp

    if files is not None:
        function("study_server_app: files", files)
    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        config = context.run_config
        place, out = (str(config["study"]), str(config["out"])) if files is None else files(context)
        study = read_study(place)
        with alone_in("serve", own_folder("study_server_app: out", out)):
            coordinator = Coordinator(study, out, Nodes(grid, study.sites, deadline))
            coordinator.patience = max(math.ceil(study.deadline / deadline), 1)
            try:
                coordinator.conduct(joining)
            except BaseException as error:
                coordinator.status(f"stopped: {f'{error}' or type(error).__name__}")
                raise

    return app
