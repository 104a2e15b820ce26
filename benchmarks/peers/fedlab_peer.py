"""FedLab's algorithms, as implementations for ``fedconvex conform``.

    python -m venv fedlab && fedlab/bin/pip install -r benchmarks/peers/requirements-fedlab.txt
    PYTHONPATH=.:benchmarks/peers fedlab/bin/python benchmarks/peers/fedlab_peer.py [NAME ...] [FILE.json]

Servers, clients and rounds (StandalonePipeline) are FedLab's; ours are the linear model and the data set, whose loaders
are those of FedLab's own data sets. Its clients know cross-entropy only, no ridge and no other optimiser than SGD: the
multinomial exams, without l2. Everything in double precision.
"""

from __future__ import annotations

import logging
import random
from typing import Any

import numpy as np
import torch
from examine import examine
from fedlab.contrib import algorithm
from fedlab.contrib.dataset.basic_dataset import BaseDataset, FedDataset
from fedlab.core.standalone import StandalonePipeline

from fedconvex.conformance import can

__all__ = ["IMPLEMENTATIONS", "implementation"]

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


class Rows(FedDataset):
    """The clients' rows; loaders shuffle nothing, as those of FedLab's own data sets."""

    def __init__(self, clients: Any) -> None:
        self.sets = [BaseDataset(torch.tensor(X), torch.tensor(y)) for X, y in clients]
        self.num = len(self.sets)

    def get_dataloader(self, id: int, batch_size: int | None = None, type: str = "train") -> Any:
        """Return the batches of a client, all rows at once without a batch size."""
        rows = self.sets[id]
        return torch.utils.data.DataLoader(rows, batch_size=batch_size or len(rows))


class Recorded(StandalonePipeline):
    """FedLab's rounds; the server's model is noted after each, and how many numbers were in the packages."""

    def __init__(self, handler: Any, trainer: Any) -> None:
        super().__init__(handler, trainer)
        self.models: list[tuple[np.ndarray, int]] = []
        self.sent, self.receive, self.answer = 0, handler.load, trainer.local_process
        handler.load, trainer.local_process = self.load, self.local_process

    def local_process(self, package: Any, clients: Any) -> None:
        """Hand the server's package to every client."""
        self.sent += len(clients) * sum(part.numel() for part in package)
        self.answer(package, clients)

    def load(self, package: Any) -> Any:
        """Hand a client's package to the server."""
        self.sent += sum(part.numel() for part in package)
        return self.receive(package)

    def evaluate(self) -> None:
        """Note the server's model: FedLab calls this after every round."""
        self.models.append((self.handler.model_parameters.numpy().copy(), self.sent))
        self.sent = 0


def implementation(name: str, client: tuple[str, ...] = (), server: tuple[str, ...] = ()) -> Any:
    """Return train(clients, hyper, rounds) around NameServerHandler and NameSerialClientTrainer.

    Parameters
    ----------
    name : str
        As FedLab writes it.
    client, server : tuple of str
        Hyper-parameters that their setup_optim takes, beside epochs, batch size and step size of clients.
    """

    @can(losses=("multinomial",), ridge=False, batches=("epochs",), floats=True)
    def train(clients: Any, hyper: dict[str, Any], rounds: int) -> list[tuple[np.ndarray, int]]:
        torch.manual_seed(hyper["seed"])
        random.seed(hyper["seed"])  # FedLab draws clients by random.sample
        shape, K = hyper["start"].shape, len(clients)
        model = torch.nn.Linear(shape[1], shape[0], bias=False)
        with torch.no_grad():
            model.weight.copy_(torch.tensor(hyper["start"]))
        quiet = logging.getLogger("quiet")
        quiet.setLevel(logging.ERROR)
        handler = getattr(algorithm, f"{name}ServerHandler")(
            model, rounds, (hyper["participants"] or K) / K, logger=quiet
        )
        trainer = getattr(algorithm, f"{name}SerialClientTrainer")(model, K, logger=quiet)
        trainer.setup_dataset(Rows(clients))
        trainer.setup_optim(hyper["epochs"], hyper["batch_size"], hyper["step_size"], *(hyper[n] for n in client))
        pipeline = Recorded(handler, trainer)
        if server:
            handler.setup_optim(*(hyper[n] for n in server))
        elif name == "FedNova":
            handler.setup_optim()
        pipeline.main()
        return [(w.reshape(shape), sent) for w, sent in pipeline.models]

    return train


IMPLEMENTATIONS = {
    "FedAvg": ("fedavg", implementation("FedAvg")),
    "FedProx": ("fedprox", implementation("FedProx", client=("proximal_mu",))),
    "Scaffold": ("scaffold", implementation("Scaffold", server=("server_step_size",))),
    "FedDyn": ("feddyn", implementation("FedDyn", client=("alpha",), server=("alpha",))),
    "FedNova": ("fednova", implementation("FedNova")),
}

if __name__ == "__main__":
    examine("fedlab", IMPLEMENTATIONS)
