"""Flower's server strategies, as implementations for ``fedconvex conform``.

The clients are plain full-batch gradient steps in NumPy: what is examined is what the strategy makes of their models.

    python -m venv flower && flower/bin/pip install flwr==1.41.0
    PYTHONPATH=.:benchmarks/peers flower/bin/python benchmarks/peers/flower.py [FILE.json]

FedProx is not among them: its strategy sends mu to the clients, and the proximal term is the client's own.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import strategy

from fedconvex.conformance import can, conform

logging.getLogger("flwr").setLevel(logging.ERROR)

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


STRATEGIES = {
    "FedAvg": ("fedavg", examined(lambda first, h: strategy.FedAvg(initial_parameters=first))),
    "FedAvgM": ("fedopt", examined(momentum)),
    "FedAdam": ("fedopt", examined(adaptive(strategy.FedAdam, "beta_1", "beta_2"))),
    "FedYogi": ("fedopt", examined(adaptive(strategy.FedYogi, "beta_1", "beta_2"))),
    "FedAdagrad": ("fedopt", examined(adaptive(strategy.FedAdagrad))),
}


def main() -> None:
    """Examine every strategy, print the answers, and write them as JSON if a file is named."""
    found = {name: conform(train, family) for name, (family, train) in STRATEGIES.items()}
    for name, answer in found.items():
        print(f"{name} of flwr {version('flwr')}\n{answer}\n")
    if len(sys.argv) > 1:
        answers = {name: answer.to_dict() for name, answer in found.items()}
        Path(sys.argv[1]).write_text(json.dumps({"flwr": version("flwr"), "strategies": answers}, indent=1) + "\n")


if __name__ == "__main__":
    main()
