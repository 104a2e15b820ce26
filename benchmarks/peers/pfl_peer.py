"""pfl-research's algorithms, as implementations for ``fedconvex conform``.

    python -m venv pfl && pfl/bin/pip install -r benchmarks/peers/requirements-pfl.txt
    PYTHONPATH=.:benchmarks/peers pfl/bin/python benchmarks/peers/pfl_peer.py [NAME ...] [FILE.json]

Algorithms, simulation, data sets, samplers and weights are pfl's; ours are the linear model and its losses. Differences
of models are kept in single precision (pfl/model/pytorch.py, 246-251), so that 3e-5 counts as equal.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from examine import examine
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from fedconvex.conformance import can

__all__ = ["IMPLEMENTATIONS", "implementation"]


class Linear(torch.nn.Module):
    """A linear model with a loss of its own, as pfl asks for."""

    def __init__(self, hyper: dict[str, Any]) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(hyper["start"]))
        self.kind, self.l2 = hyper["loss"], hyper["l2"]

    def loss(self, X: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of the rows, with the ridge."""
        z = X @ (self.w.T if self.w.ndim == 2 else self.w)
        if self.kind == "squared":
            mean = 0.5 * torch.mean((z - y) ** 2)
        elif self.kind == "logistic":
            mean = torch.nn.functional.binary_cross_entropy_with_logits(z, y.to(z.dtype))
        else:
            mean = torch.nn.functional.cross_entropy(z, y.long())
        return mean + 0.5 * self.l2 * torch.sum(self.w * self.w)

    def metrics(self, *batch: Any) -> dict[str, Any]:
        """Return nothing: pfl evaluates before the first round."""
        return {}


class Record(TrainingProcessCallback):
    """Notes the model after every round."""

    def __init__(self) -> None:
        self.models: list[np.ndarray] = []

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        """Note the model."""
        self.models.append(model.pytorch_model.w.detach().numpy().copy())
        return False, Metrics()


Server = Callable[[Any, dict[str, Any]], Any]
torch.set_num_threads(1)


def sgd(parameters: Any, hyper: dict[str, Any]) -> Any:
    """Return the server optimiser that takes the average."""
    return torch.optim.SGD(parameters, lr=1.0)


def implementation(kind: Any, params: Callable[..., Any], server: Server = sgd, weighted: bool = False) -> Any:
    """Return train(clients, hyper, rounds) around an algorithm of pfl.

    Parameters
    ----------
    kind : class
        pfl's algorithm.
    params : callable
        From (hyper, number of clients, usual parameters) to pfl's parameters of the algorithm.
    server : callable
        From (parameters, hyper) to a torch optimiser.
    weighted : bool
        Whether clients weigh n_k (pfl's WeightByDatapoints), or all the same, pfl's default.
    """

    @can(float32=True, batches=("epochs",))
    def train(clients: Any, hyper: dict[str, Any], rounds: int) -> list[np.ndarray]:
        np.random.seed(hyper["seed"])  # noqa: NPY002 - pfl draws from it
        K, cohort = len(clients), hyper["participants"] or len(clients)
        order = np.random.default_rng(hyper["seed"]).permutation(K) if hyper["participants"] else range(K)
        users = [str(k) for k in order]
        drawn = "random" if hyper["participants"] and kind is not SCAFFOLD else "minimize_reuse"
        data = FederatedDataset(
            lambda user: Dataset([torch.tensor(a) for a in clients[int(user)]], user_id=user),
            get_user_sampler(drawn, users),
        )
        module = Linear(hyper)
        model = PyTorchModel(module, torch.optim.SGD, server(module.parameters(), hyper))
        usual = {
            "central_num_iterations": rounds,
            "evaluation_frequency": rounds + 1,
            "train_cohort_size": cohort,
            "val_cohort_size": 0,
        }
        local = NNTrainHyperParams(
            local_num_epochs=hyper["epochs"],
            local_learning_rate=hyper["step_size"],
            local_batch_size=hyper["batch_size"],
        )
        record = Record()
        backend = SimulatedBackend(data, data, [WeightByDatapoints()] if weighted else [])
        algorithm = params(hyper, K, usual)
        kind().run(algorithm, backend, model, local, callbacks=[record], send_metrics_to_platform=False)
        return record.models

    return train


def plain(hyper: dict[str, Any], K: int, usual: Any) -> Any:
    """Return the parameters of FederatedAveraging."""
    return NNAlgorithmParams(**usual)


def prox(hyper: dict[str, Any], K: int, usual: Any) -> Any:
    """Return the parameters of FedProx."""
    return FedProxParams(mu=hyper["proximal_mu"], **usual)


class CopyingStorage(InMemoryUserStateStorage):
    """pfl's storage in memory, but what is stored is a copy: pfl's keeps the tensors themselves."""

    def save_state(self, state: Any, user_id: str, key: str | None = None) -> None:
        """Store a copy."""
        super().save_state(copy.deepcopy(state), user_id, key)


def scaffold(option: str, storage: type[InMemoryUserStateStorage] = InMemoryUserStateStorage) -> Callable[..., Any]:
    """Return what makes the parameters of SCAFFOLD, option I or II, control variates kept in a storage."""

    def params(hyper: dict[str, Any], K: int, usual: Any) -> Any:
        return SCAFFOLDParams(
            population=K, use_gradient_as_control_variate=option == "I", user_state_storage=storage(), **usual
        )

    return params


def opt(name: str, *names: str) -> Server:
    """Return a server optimiser of torch."""
    make = getattr(torch.optim, name)

    def server(parameters: Any, h: dict[str, Any]) -> Any:
        of = {"momentum": h["momentum"], "betas": (h["beta1"], h["beta2"]), "eps": h["epsilon"]}
        return make(parameters, lr=h["server_step_size"], **{n: of[n] for n in names})

    return server


IMPLEMENTATIONS = {
    "FederatedAveraging": ("fedavg", implementation(FederatedAveraging, plain)),
    "FederatedAveraging, WeightByDatapoints": ("fedavg", implementation(FederatedAveraging, plain, weighted=True)),
    "FedProx": ("fedprox", implementation(FedProx, prox)),
    "SCAFFOLD, option I": ("scaffold", implementation(SCAFFOLD, scaffold("I"), opt("SGD"))),
    "SCAFFOLD, option I, states copied": (
        "scaffold",
        implementation(SCAFFOLD, scaffold("I", CopyingStorage), opt("SGD")),
    ),
    "SCAFFOLD, option II": ("scaffold", implementation(SCAFFOLD, scaffold("II"), opt("SGD"))),
    "FederatedAveraging, torch SGD": ("fedopt", implementation(FederatedAveraging, plain, opt("SGD", "momentum"))),
    "FederatedAveraging, torch Adam": (
        "fedopt",
        implementation(FederatedAveraging, plain, opt("Adam", "betas", "eps")),
    ),
    "FederatedAveraging, torch Adagrad": ("fedopt", implementation(FederatedAveraging, plain, opt("Adagrad", "eps"))),
}

if __name__ == "__main__":
    examine("pfl", IMPLEMENTATIONS)
