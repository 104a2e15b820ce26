"""The app of a hospital: its node's configuration says which file holds its rows."""

import zlib

import numpy as np

from fedconvex.engines.flower import client_app
from hospitals.agreed import make, method, roster, rows_of


def load(context):
    """Return the rows of this hospital; invented ones in a simulation, whose nodes are only numbered."""
    config = context.node_config
    return rows_of(config["data"] if "data" in config else invented(config["partition-id"]))


def invented(k):
    """Return the table of hospital k, drawn by its name."""
    name, n = str(roster.federation.labels[k]), int(roster.federation.sizes[k])
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    age, dose, smoker = rng.integers(30, 90, n), rng.normal(5, 2, n).round(1), rng.choice(["no", "yes"], n)
    risk = 0.08 * (age - 60) + 0.5 * (dose - 5) + (smoker == "yes") - 0.5
    ill = np.where(risk + rng.logistic(size=n) > 0, "yes", "no")
    return {"age": age, "dose": dose, "smoker": smoker, "ill": ill, "hospital": [name] * n}


def memory(context):
    """Return where a hospital remembers what SCAFFOLD keeps there, or None in a simulation."""
    return context.node_config.get("memory")


app = client_app(method, make, load, memory)
