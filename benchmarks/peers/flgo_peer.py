"""FLGo's algorithms, as implementations for ``fedconvex conform``: the research library among the toolkits.

    python -m venv flgo && flgo/bin/pip install -r benchmarks/peers/requirements-flgo.txt
    PYTHONPATH=.:benchmarks/peers flgo/bin/python benchmarks/peers/flgo_peer.py [NAME ...] [FILE.json]

Servers, clients, their calculator, communicator and clock are FLGo's; ours are the linear model with its losses, and a
simulator without delays or drop-outs in the place of FLGo's. The ridge is its ``weight_decay``. Double precision.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import flgo
import numpy as np
import torch
from examine import examine
from flgo.algorithm import fedbase
from flgo.benchmark.toolkits.cv.classification import GeneralCalculator
from flgo.simulator.base import ElemClock
from flgo.utils.fflow import GlobalVariable
from flgo.utils.fmodule import FModule

from fedconvex.conformance import can

__all__ = ["IMPLEMENTATIONS", "implementation"]

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


def linear(start: np.ndarray, loss: str) -> FModule:
    """Return a linear model, of a class without arguments, for FLGo makes others of it; it is asked for the loss."""

    class Linear(FModule):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.tensor(start))

        def forward(self, X: torch.Tensor) -> torch.Tensor:
            return X @ (self.w.T if self.w.ndim == 2 else self.w)

        def compute_loss(self, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            if loss == "squared":
                return 0.5 * torch.mean((z - y) ** 2)
            if loss == "logistic":
                return torch.nn.functional.binary_cross_entropy_with_logits(z, y.to(z.dtype))
            return torch.nn.functional.cross_entropy(z, y)

    return Linear()


class Ideal:
    """A simulator in which everybody is there, and answers at once."""

    def idx2id(self, indices: Any) -> list[Any]:
        """Return the names of clients."""
        return list(indices)

    def get_variable(self, names: Any, variable: str) -> list[int]:
        """Return delays: none."""
        return [0] * len(names)

    def update_client_completeness(self, names: Any) -> None:
        """Leave the clients as they are."""

    def set_client_state(self, names: Any, state: str) -> None:
        """Leave the clients as they are."""

    def flush(self, time: int) -> None:
        """Let time pass."""


class Counting(flgo.VirtualCommunicator):
    """FLGo's communicator; it counts the numbers in packages."""

    sent = 0

    def request(self, source: Any, target: Any, package: Any) -> Any:
        """Hand a package to a client, and the answer back."""
        reply = super().request(source, target, package)
        self.sent += numbers(package) + numbers(reply)
        return reply


def numbers(package: dict[str, Any]) -> int:
    """Return how many numbers a package holds, but for FLGo's own fields."""
    models = [v for v in package.values() if isinstance(v, torch.nn.Module)]
    others = [v for k, v in package.items() if not k.startswith("__") and isinstance(v, (int, float))]
    return sum(p.numel() for m in models for p in m.parameters()) + len(others)


FIXED = {
    "task": "", "eval_interval": 0, "num_parallels": 1, "server_with_cpu": False, "optimizer": "SGD",
    "learning_rate_decay": 1.0, "lr_scheduler": -1, "momentum": 0.0, "clip_grad": 0.0, "test_batch_size": 512,
    "num_workers": 0, "pin_memory": False, "drop_last": False, "no_tqdm": True, "use_cache": False,
    "scene": "horizontal", "test_parallel": False,
}  # fmt: skip


def options(hyper: dict[str, Any], K: int, rounds: int, aggregate: str, sample: str, names: Any) -> dict[str, Any]:
    """Return FLGo's options."""
    epochs, steps = hyper["epochs"], hyper["local_steps"]
    return FIXED | {
        "num_rounds": rounds,
        "num_steps": -1 if steps is None or hyper["batch_size"] is None else steps,
        "num_epochs": epochs or 1,
        "batch_size": hyper["batch_size"] or -1,
        "learning_rate": hyper["step_size"],
        "weight_decay": hyper["l2"],
        "proportion": (hyper["participants"] or K) / K,
        "sample": sample if hyper["participants"] else "full",
        "aggregate": aggregate,
        "algo_para": [hyper[name] for name in names],
    }


def implementation(
    module: str,
    *names: str,
    aggregate: str = "uniform",
    sample: str = "uniform",
    model: str = "model",
    **abilities: Any,
) -> Any:
    """Return train(clients, hyper, rounds) around flgo.algorithm.MODULE.

    Parameters
    ----------
    module : str
        As FLGo names it.
    *names : str
        Hyper-parameters that become its ``algo_para``.
    aggregate, sample : str
        FLGo's options; its defaults are uniform and uniform.
    model : str
        Which of the server's models is looked at.
    **abilities
        What is declared beside the ridge.
    """
    algorithm = importlib.import_module(f"flgo.algorithm.{module}")

    @can(floats=True, **abilities)
    def train(clients: Any, hyper: dict[str, Any], rounds: int) -> list[tuple[np.ndarray, int]]:
        np.random.seed(hyper["seed"])  # noqa: NPY002 - FLGo draws from it
        torch.manual_seed(hyper["seed"])
        gv = GlobalVariable(simulator=Ideal(), clock=ElemClock(), dev_list=[torch.device("cpu")])
        gv.clock.register_simulator(gv.simulator)
        gv.logger = SimpleNamespace(info=print)
        fedbase.BasicParty.gv = gv
        fedbase.BasicServer.TaskCalculator = fedbase.BasicClient.TaskCalculator = GeneralCalculator
        option = options(hyper, len(clients), rounds, aggregate, sample, names)
        server, parties = algorithm.Server(option), []
        server.set_model(linear(hyper["start"], hyper["loss"]))
        for k, (X, y) in enumerate(clients):
            party = algorithm.Client(option)
            party.set_id(k)
            party.set_data(torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(y)), "train")
            parties.append(party)
        server.register_clients(parties)
        gv.communicator = Counting([server, *parties])
        for party in (server, *parties):
            party.initialize()
        models = []
        for _ in range(rounds):  # as BasicServer.run does, without its logger
            gv.clock.step()
            server.iterate()
            server.current_round += 1
            models.append((getattr(server, model).w.detach().numpy().copy(), gv.communicator.sent))
            gv.communicator.sent = 0
        return models

    return train


IMPLEMENTATIONS = {
    "fedavg": ("fedavg", implementation("fedavg")),
    "fedavg, weighted_com": ("fedavg", implementation("fedavg", aggregate="weighted_com")),
    "fedavg, weighted_scale": ("fedavg", implementation("fedavg", aggregate="weighted_scale")),
    "fedavg, other": ("fedavg", implementation("fedavg", aggregate="other")),
    "fedprox": ("fedprox", implementation("fedprox", "proximal_mu")),
    "scaffold": ("scaffold", implementation("scaffold", "server_step_size")),
    "feddyn": ("feddyn", implementation("feddyn", "alpha")),
    "fedavgm": ("fedopt", implementation("fedavgm", "momentum", hyper={"server_step_size": 1.0})),
    "fednova": ("fednova", implementation("fednova")),
    "afl": (
        "afl",
        implementation(
            "afl", "domain_step_size", model="result_model", losses=("multinomial",), partial=False, batches=()
        ),
    ),
}

if __name__ == "__main__":
    examine("flgo", IMPLEMENTATIONS)
