"""Flower's server strategies, as implementations for ``fedconvex conform``, and its FedAvg for ``fedconvex bench``.

The clients are plain full-batch gradient steps in NumPy: what is examined is what the strategy makes of their models.

    python -m venv flower && flower/bin/pip install -r benchmarks/peers/requirements-flower.txt
    PYTHONPATH=.:benchmarks/peers flower/bin/python benchmarks/peers/flower.py [NAME ...] [FILE.json]
    PYTHONPATH=.:benchmarks/peers flower/bin/python -m fedconvex bench flower:solve --suite small

FedProx is not among them: its strategy sends mu to the clients, and the proximal term is the client's own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from examine import dense_clients, examine
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import strategy

from fedconvex.conformance import can

logging.getLogger("flwr").setLevel(logging.ERROR)

__all__ = ["IMPLEMENTATIONS", "examined", "solve"]

Train = Callable[[Any, Any, int], list[np.ndarray]]


def examined(make: Callable[[Any, dict[str, Any]], Any]) -> Train:
    """Return train(clients, hyper, rounds) around the strategy that make(first parameters, hyper) builds."""

    @can(losses=("squared",), partial=False, batches=())
    def train(clients: Any, hyper: dict[str, Any], rounds: int) -> list[np.ndarray]:
        return list(rounds_of(make, clients, hyper, rounds))

    return train


def gradient(loss: str, X: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the gradient of a client's mean loss; labels are numbers, or 0, 1, ..."""
    z = X @ w.T
    if loss == "squared":
        slopes = z - y
    elif loss == "logistic":
        slopes = 0.5 * (1.0 + np.tanh(0.5 * z)) - y
    elif loss == "hinge":
        sign = 2.0 * y - 1.0
        slopes = np.where(sign * z < 1.0, -sign, 0.0)
    else:
        slopes = np.exp(z - z.max(axis=1, keepdims=True))
        slopes /= slopes.sum(axis=1, keepdims=True)
        slopes[np.arange(len(y)), y] -= 1.0
    return slopes.T @ X / len(y)


def rounds_of(make: Any, clients: Any, hyper: dict[str, Any], rounds: int) -> Iterator[np.ndarray]:
    """Yield the server's model after each of the rounds; what is sent is serialised as Flower does."""
    w = hyper["start"]
    server = make(ndarrays_to_parameters([w]), hyper)
    for t in range(1, rounds + 1):  # Flower counts rounds from 1
        answers = []
        for X, y in clients:
            v = w.copy()
            for _ in range(hyper["local_steps"]):
                v -= hyper["step_size"] * (gradient(hyper["loss"], X, y, v) + hyper["l2"] * v)
            answers.append((None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters([v]), len(y), {})))
        parameters, _ = server.aggregate_fit(t, answers, [])
        w = parameters_to_ndarrays(parameters)[0]
        yield w


def solve(arrays: Any, settings: dict[str, Any], rounds: int) -> Iterator[np.ndarray]:
    """Yield the models of Flower's FedAvg on a problem of ``fedconvex bench``: everybody, 5 full steps a round.

    Clients, strategy and messages are in one process: no network, no processes, no scheduling.
    """
    hyper = {
        "loss": arrays.loss, "l2": arrays.l2, "start": arrays.start,
        "step_size": settings["local_step_size"], "local_steps": 5,
    }  # fmt: skip
    yield from rounds_of(average, dense_clients(arrays, "Flower"), hyper, rounds)


solve.passes_per_round = 5.0  # type: ignore[attr-defined]
solve.deterministic = True  # type: ignore[attr-defined]


def adaptive(cls: Any, *names: str) -> Callable[[Any, dict[str, Any]], Any]:
    """Return what builds FedAdam, FedYogi or FedAdagrad."""
    of = {"beta_1": "beta1", "beta_2": "beta2"}
    return lambda first, h: cls(
        initial_parameters=first, eta=h["server_step_size"], tau=h["epsilon"], **{n: h[of[n]] for n in names}
    )


def average(first: Any, h: dict[str, Any]) -> Any:
    """Return FedAvg."""
    return strategy.FedAvg(initial_parameters=first)


def momentum(first: Any, h: dict[str, Any]) -> Any:
    """Return FedAvgM."""
    cls = strategy.FedAvgM
    return cls(initial_parameters=first, server_learning_rate=h["server_step_size"], server_momentum=h["momentum"])


IMPLEMENTATIONS = {
    "FedAvg": ("fedavg", examined(average)),
    "FedAvgM": ("fedopt", examined(momentum)),
    "FedAdam": ("fedopt", examined(adaptive(strategy.FedAdam, "beta_1", "beta_2"))),
    "FedYogi": ("fedopt", examined(adaptive(strategy.FedYogi, "beta_1", "beta_2"))),
    "FedAdagrad": ("fedopt", examined(adaptive(strategy.FedAdagrad))),
}

if __name__ == "__main__":
    examine("flwr", IMPLEMENTATIONS)
