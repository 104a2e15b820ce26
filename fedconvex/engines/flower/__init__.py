"""Sites and server as Flower apps: SuperNodes keep rows and memory, a ServerApp runs any method of the package.

Needs the extra ``flower``. Messages hold arrays of plain numbers in one ArrayRecord; nothing in them is unpickled.
"""

from fedconvex.engines.flower.apps import QUIET, client_app, server_app
from fedconvex.engines.flower.averaging import averaging_client, averaging_strategy
from fedconvex.engines.flower.nodes import Nodes
from fedconvex.engines.flower.studies import study_client_app, study_server_app

__all__ = [
    "QUIET",
    "Nodes",
    "averaging_client",
    "averaging_strategy",
    "client_app",
    "server_app",
    "study_client_app",
    "study_server_app",
]
