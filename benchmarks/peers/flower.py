"""Flower's server strategies, as implementations for ``fedconvex conform``.

The clients are plain full-batch gradient steps in NumPy: what is examined is what the strategy makes of their models.

    python -m venv flower && flower/bin/pip install -r benchmarks/peers/requirements-flower.txt
    PYTHONPATH=.:benchmarks/peers flower/bin/python benchmarks/peers/flower.py [NAME ...] [FILE.json]

FedProx is not among them: its strategy sends mu to the clients, and the proximal term is the client's own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from examine import examine
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import strategy

from fedconvex.conformance import can

logging.getLogger("flwr").setLevel(logging.ERROR)

__all__ = ["IMPLEMENTATIONS", "examined"]

Train = Callable[[Any, Any, int], list[np.ndarray]]


def examined(make: Callable[[Any, dict[str, Any]], Any]) -> Train:
    """Return train(clients, hyper, rounds) around the strategy that make(first parameters, hyper) builds."""

    @can(losses=("squared",), partial=False, batches=())
    def train(clients: Any, hyper: dict[str, Any], rounds: int) -> list[np.ndarray]:
        w, models = hyper["start"], []
        server = make(ndarrays_to_parameters([w]), hyper)
        for t in range(1, rounds + 1):  # Flower counts rounds from 1
            answers = []
            for X, y in clients:
                v = w.copy()
                for _ in range(hyper["local_steps"]):
                    v -= hyper["step_size"] * (X.T @ (X @ v - y) / len(y) + hyper["l2"] * v)
                answers.append((None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters([v]), len(y), {})))
            parameters, _ = server.aggregate_fit(t, answers, [])
            w = parameters_to_ndarrays(parameters)[0]
            models.append(w)
        return models

    return train


def adaptive(cls: Any, *names: str) -> Callable[[Any, dict[str, Any]], Any]:
    """Return what builds FedAdam, FedYogi or FedAdagrad."""
    of = {"beta_1": "beta1", "beta_2": "beta2"}
    return lambda first, h: cls(
        initial_parameters=first, eta=h["server_step_size"], tau=h["epsilon"], **{n: h[of[n]] for n in names}
    )


def momentum(first: Any, h: dict[str, Any]) -> Any:
    """Return FedAvgM."""
    cls = strategy.FedAvgM
    return cls(initial_parameters=first, server_learning_rate=h["server_step_size"], server_momentum=h["momentum"])


IMPLEMENTATIONS = {
    "FedAvg": ("fedavg", examined(lambda first, h: strategy.FedAvg(initial_parameters=first))),
    "FedAvgM": ("fedopt", examined(momentum)),
    "FedAdam": ("fedopt", examined(adaptive(strategy.FedAdam, "beta_1", "beta_2"))),
    "FedYogi": ("fedopt", examined(adaptive(strategy.FedYogi, "beta_1", "beta_2"))),
    "FedAdagrad": ("fedopt", examined(adaptive(strategy.FedAdagrad))),
}

if __name__ == "__main__":
    examine("flwr", IMPLEMENTATIONS)
