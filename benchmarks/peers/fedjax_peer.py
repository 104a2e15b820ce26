"""FedJAX's algorithms, as implementations for ``fedconvex conform``, and its FedAvg as a solver of ``fedconvex bench``.

    python -m venv fedjax && fedjax/bin/pip install -r benchmarks/peers/requirements-fedjax.txt
    PYTHONPATH=.:benchmarks/peers fedjax/bin/python benchmarks/peers/fedjax_peer.py [NAME ...] [FILE.json]
    PYTHONPATH=.:benchmarks/peers fedjax/bin/python -m fedconvex bench fedjax_peer:solve --suite small

Everything is FedJAX's own but the losses: data sets, batches, sampling of clients, optimisers, rounds. Its batches
always have the size that is asked for; one whose size is a multiple of all clients' numbers of rows holds every row
equally often, so that its mean is that over all rows: these are the full batches. Orders of rows are not seeded.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from examine import dense_clients, examine

from fedconvex.conformance import can

jax.config.update("jax_enable_x64", True)

__all__ = ["IMPLEMENTATIONS", "agnostic", "fed_avg", "fed_opt", "fed_prox", "rounds_of", "solve"]


def row_losses(loss: str) -> Callable[[Any, Any, Any], Any]:
    """Return FedJAX's per_example_loss(parameters, batch, key)."""

    def squared(w: Any, batch: Any, key: Any) -> Any:
        return 0.5 * (batch["x"] @ w - batch["y"]) ** 2

    def logistic(w: Any, batch: Any, key: Any) -> Any:
        z = batch["x"] @ w
        return jnp.logaddexp(0.0, z) - batch["y"] * z

    def multinomial(w: Any, batch: Any, key: Any) -> Any:
        Z = batch["x"] @ w.T
        return jax.nn.logsumexp(Z, axis=1) - jnp.take_along_axis(Z, batch["y"][:, None], axis=1)[:, 0]

    def hinge(w: Any, batch: Any, key: Any) -> Any:
        return jnp.maximum(0.0, 1.0 - (2.0 * batch["y"] - 1.0) * (batch["x"] @ w))

    return {"squared": squared, "logistic": logistic, "multinomial": multinomial, "hinge": hinge}[loss]


def batches_of(clients: Any, hyper: dict[str, Any]) -> Any:
    """Return FedJAX's description of local work; full batches repeat all rows equally often."""
    if hyper.get("whole"):
        return fedjax.ShuffleRepeatBatchHParams(
            batch_size=1, num_epochs=None, num_steps=hyper["local_steps"], skip_shuffle=True
        )
    if hyper["batch_size"] is None:
        size = math.lcm(*(len(y) for _, y in clients))
        return fedjax.ShuffleRepeatBatchHParams(batch_size=size, num_epochs=None, num_steps=hyper["local_steps"])
    return fedjax.ShuffleRepeatBatchHParams(
        batch_size=hyper["batch_size"], num_epochs=hyper["epochs"], num_steps=hyper["local_steps"]
    )


def rounds_of(algorithm: Any, clients: Any, hyper: dict[str, Any], rounds: int) -> Iterator[np.ndarray]:
    """Yield FedJAX's model after each of the rounds, clients drawn by its UniformGetClientSampler."""
    data = fedjax.InMemoryFederatedData(
        {f"{k:04d}": {"x": X, "y": y, "domain_id": np.full(len(y), k)} for k, (X, y) in enumerate(clients)}
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(
        data, num_clients=hyper["participants"] or len(clients), seed=hyper["seed"]
    )
    state = algorithm.init(jnp.asarray(hyper["start"]))
    for _ in range(rounds):
        drawn = sampler.sample()
        if hyper.get("whole"):
            drawn = [(name, Whole(rows.raw_examples), key) for name, rows, key in drawn]
        state, _ = algorithm.apply(state, drawn)
        yield np.asarray(state.params)


def ridge_of(l2: float) -> Callable[[Any], Any]:
    """Return FedJAX's regularizer(parameters)."""
    return lambda w: 0.5 * l2 * jnp.sum(w * w)


def fed_avg(clients: Any, hyper: dict[str, Any], rounds: int, server: Any = None) -> list[np.ndarray]:
    """Train by fedjax.algorithms.fed_avg."""
    return list(fed_avg_rounds(clients, hyper, rounds, server))


def fed_avg_rounds(clients: Any, hyper: dict[str, Any], rounds: int, server: Any = None) -> Iterator[np.ndarray]:
    """Yield the models of fedjax.algorithms.fed_avg."""
    gradient = fedjax.grad(row_losses(hyper["loss"]), ridge_of(hyper["l2"]))
    local, server = fedjax.optimizers.sgd(hyper["step_size"]), server or fedjax.optimizers.sgd(1.0)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(gradient, local, server, batches_of(clients, hyper))
    yield from rounds_of(algorithm, clients, hyper, rounds)


def fed_opt(make: Callable[[dict[str, Any]], Any]) -> Any:
    """Return fed_avg with the server optimiser that make(hyper) builds."""

    def train(clients: Any, hyper: dict[str, Any], rounds: int) -> list[np.ndarray]:
        return fed_avg(clients, hyper, rounds, make(hyper))

    return train


def fed_prox(clients: Any, hyper: dict[str, Any], rounds: int) -> list[np.ndarray]:
    """Train by fedjax.algorithms.fed_prox."""
    losses, ridge = row_losses(hyper["loss"]), ridge_of(hyper["l2"])
    algorithm = fedjax.algorithms.fed_prox.fed_prox(
        lambda w, batch, key: losses(w, batch, key) + ridge(w),
        fedjax.optimizers.sgd(hyper["step_size"]),
        fedjax.optimizers.sgd(1.0),
        batches_of(clients, hyper),
        proximal_weight=hyper["proximal_mu"],
    )
    return list(rounds_of(algorithm, clients, hyper, rounds))


@can(batches=(), partial=False)
def agnostic(clients: Any, hyper: dict[str, Any], rounds: int) -> list[np.ndarray]:
    """Train by fedjax.algorithms.agnostic_fed_avg: every client is a domain.

    Its clients divide the sum over a batch by what all their rows weigh, so that here full batches are what they are.
    With a window of one round, its default, the weight of a domain that was absent in the last round is divided by 0.
    """
    K, most, hyper = len(clients), max(len(y) for _, y in clients), {**hyper, "whole": True}
    algorithm = fedjax.algorithms.agnostic_fed_avg.agnostic_federated_averaging(
        row_losses(hyper["loss"]),
        fedjax.optimizers.sgd(hyper["step_size"]),
        fedjax.optimizers.sgd(1.0),
        batches_of(clients, hyper),
        fedjax.PaddedBatchHParams(batch_size=most),
        init_domain_weights=jnp.full(K, 1.0 / K),
        domain_learning_rate=hyper["domain_step_size"],
        regularizer=ridge_of(hyper["l2"]),
    )
    return list(rounds_of(algorithm, clients, hyper, rounds))


class Whole(fedjax.ClientDataset):
    """A client's rows, whose batches are all of them."""

    def shuffle_repeat_batch(self, hparams: Any = None, **kwargs: Any) -> Any:
        """Return FedJAX's batches, of as many rows as there are."""
        return super().shuffle_repeat_batch(hparams, batch_size=len(self), **kwargs)


@functools.cache
def full_steps(loss: str, l2: float, step_size: float) -> Any:
    """Return FedJAX's FedAvg with 5 full steps a round; kept, so that it is compiled once, before the clock starts."""
    return fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.grad(row_losses(loss), ridge_of(l2)),
        fedjax.optimizers.sgd(step_size),
        fedjax.optimizers.sgd(1.0),
        batches_of((), {"whole": True, "local_steps": 5}),
    )


def solve(arrays: Any, settings: dict[str, Any], rounds: int) -> Iterator[np.ndarray]:
    """Yield the models of FedJAX's FedAvg on a problem of ``fedconvex bench``: everybody, 5 full steps a round."""
    loss = "multinomial" if arrays.loss == "softmax" else arrays.loss
    hyper = {"start": arrays.start, "participants": None, "seed": settings["seed"], "whole": True}
    algorithm = full_steps(loss, arrays.l2, settings["local_step_size"])
    yield from rounds_of(algorithm, dense_clients(arrays, "FedJAX"), hyper, rounds)


solve.passes_per_round = 5.0  # type: ignore[attr-defined]


def _opt(name: str, **names: str) -> Callable[[dict[str, Any]], Any]:
    make = getattr(fedjax.optimizers, name)
    return lambda h: make(h["server_step_size"], **{ours: h[theirs] for ours, theirs in names.items()})


_ADAM = {"b1": "beta1", "b2": "beta2", "eps": "epsilon"}
IMPLEMENTATIONS = {
    "fed_avg": ("fedavg", fed_avg),
    "fed_prox": ("fedprox", fed_prox),
    "fed_avg, sgd": ("fedopt", fed_opt(_opt("sgd"))),
    "fed_avg, sgd with momentum": ("fedopt", fed_opt(_opt("sgd", momentum="momentum"))),
    "fed_avg, adam": ("fedopt", fed_opt(_opt("adam", **_ADAM))),
    "fed_avg, yogi": ("fedopt", fed_opt(_opt("yogi", **_ADAM))),
    "fed_avg, adagrad": ("fedopt", fed_opt(_opt("adagrad", eps="epsilon"))),
    "agnostic_fed_avg": ("agnosticfedavg", agnostic),
}

if __name__ == "__main__":
    examine("fedjax", IMPLEMENTATIONS)
