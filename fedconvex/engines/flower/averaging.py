"""Federated averaging in Flower's own messages: for apps that exist already, and for Flower's own strategies."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import Rng, bad, function, takes_rng, wrong_type
from fedconvex.draws import Draws, key_from_seed
from fedconvex.engines.flower.array_records import flwr_app
from fedconvex.federation import Federation
from fedconvex.kernels.row_losses import values_gradients_of
from fedconvex.methods.parts import averaging
from fedconvex.methods.parts.aggregation import GeometricMedian
from fedconvex.methods.parts.pooled_sums import hides
from fedconvex.problems.protocol import has_one_model

_FIRST = np.zeros((1, 1), dtype=np.int64)  # the only client of its own problem


@takes_rng
def averaging_client(
    method: Any,
    make: Callable[[Federation], Any],
    load: Callable[[Any], Federation],
    seed: Any = 0,
    *,
    rng: Rng = None,
) -> Any:
    """Return a ClientApp that does a method's local work, in the messages of Flower's FedAvg and its relatives.

    A ``train`` message holds the model as the one array of the record ``"arrays"``, and the round, from 1 on, as
    ``server-round`` of the record ``"config"``. The answer holds the model after the local steps, and the sum of the
    weights of the rows as ``num-examples``. Asked to ``evaluate``, it answers its objective f_k as ``loss``. So any
    strategy of Flower that averages models can lead it.

    Parameters
    ----------
    method : FedAvg, FedSAM or another that sends a model and averages the answers
    make, load
        As for `client_app`.
    seed : int
        Key of all draws: the mini-batches of a client are those of ``run(..., seed=seed)``.

    Raises
    ------
    ImportError
        If Flower is not installed.
    TypeError
        If the method sends or averages something else, or make or load cannot be called.

    Examples
    --------
    In the file of a Flower app whose server has a strategy of Flower's::

        app = averaging_client(FedAvg(step_size=0.5, local_steps=5), make, load)

    Where Flower is installed:

    >>> from importlib.util import find_spec
    >>> from fedconvex import FedAvg, Federation, Logistic, Problem
    >>> from fedconvex.engines.flower import averaging_client
    >>> def load(context):
    ...     return Federation.from_clients([([[1.0], [2.0]], [1.0, -1.0])], labels=["north"])
    >>> arguments = FedAvg(step_size=0.5, local_steps=5), lambda fed: Problem(fed, Logistic()), load
    >>> app = averaging_client(*arguments) if find_spec("flwr") else None
    """
    flwr_app()
    from flwr.clientapp import ClientApp

    _averages("averaging_client: method", method)
    function("averaging_client: make", make)
    function("averaging_client: load", load)
    worker, app = _Worker(method, make, load, key_from_seed(seed)), ClientApp()
    app.train()(worker.train)
    app.evaluate()(worker.evaluate)
    return app


class _Worker(NamedTuple):
    """What a node does with the messages of Flower's FedAvg."""

    method: Any
    make: Callable[[Federation], Any]
    load: Callable[[Any], Federation]
    key: np.uint64

    def train(self, message: Any, context: Any) -> Any:
        """Do a round's local work."""
        app, (problem, name, w) = flwr_app(), self._given(message, context)
        draws = Draws(self.key, np.arange(1), int(message.content["config"]["server-round"]) - 1)
        reply, _ = self.method.local(problem, averaging.Message(w), _FIRST, None, draws)
        arrays = app.ArrayRecord({name: app.Array(np.ascontiguousarray(reply.w[0, 0]))})
        return self._answer(message, problem, {}, arrays=arrays)

    def evaluate(self, message: Any, context: Any) -> Any:
        """Answer the objective on one's own rows."""
        problem, _, w = self._given(message, context)
        values, _ = values_gradients_of(problem, w, _FIRST)
        return self._answer(message, problem, {"loss": float(values[0, 0])})

    def _given(self, message: Any, context: Any) -> tuple[Any, str, np.ndarray]:
        """Return the problem, and name and model (1, *model) of what was sent."""
        problem = self.make(self.load(context))
        if not has_one_model(problem) or problem.federation.K != 1:
            raise wrong_type("averaging_client: make(load(context))", "be a Problem of one client", f"{problem!r}")
        [(name, sent)] = message.content["arrays"].items()
        return problem, name, np.asarray(sent.numpy(), dtype=np.float64).reshape(1, *problem.model_shape)

    @staticmethod
    def _answer(message: Any, problem: Any, metrics: dict[str, float], **records: Any) -> Any:
        app, rows = flwr_app(), float(problem.federation.masses[0])
        content = app.RecordDict({**records, "metrics": app.MetricRecord({**metrics, "num-examples": rows})})
        return app.Message(content, reply_to=message)


def averaging_strategy(method: Any, **settings: Any) -> Any:
    """Return a Strategy of Flower that averages as a method of this package does, for Flower apps that exist already.

    It is Flower's FedAvg, and sends and expects its messages, with three differences: SERVEROPT of the method makes the
    next model of the average (momentum, Adam, ...); sums are taken in the order of the nodes, in float64, so that bits
    do not depend on which answer came first; arrays keep their types.

    Parameters
    ----------
    method : FedAvg, FedSAM or another that sends a model and averages the answers
        Of its fields only ``server`` counts here: the local work is the clients', and ``settings`` say who takes part.
    **settings
        Of `flwr.serverapp.strategy.FedAvg`: fraction_train, min_available_nodes, weighted_by_key, ...

    Raises
    ------
    ImportError
        If Flower is not installed.
    TypeError
        If the method sends or averages something else.

    Examples
    --------
    In the file of a Flower app::

        strategy = averaging_strategy(FedAvg(step_size=0.1, server=ServerSGD(1.0, momentum=0.9)), fraction_train=1.0)
        result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=100)

    Where Flower is installed:

    >>> from importlib.util import find_spec
    >>> from fedconvex import FedAvg
    >>> from fedconvex.engines.flower import averaging_strategy
    >>> from fedconvex.methods import ServerSGD
    >>> method = FedAvg(step_size=0.1, server=ServerSGD(1.0, momentum=0.9))
    >>> strategy = averaging_strategy(method, fraction_train=1.0) if find_spec("flwr") else None
    """
    flwr_app()
    _averages("averaging_strategy: method", method)
    return _strategy_class()(method, settings)


@cache
def _strategy_class() -> Any:
    """Return the class of strategies: Flower's FedAvg, which is not there to inherit from where Flower is not."""
    from flwr.serverapp.strategy import FedAvg

    class Averaging(FedAvg):
        """Flower's FedAvg with a server optimiser and sums in a fixed order."""

        def __init__(self, method: Any, settings: dict[str, Any]) -> None:
            super().__init__(**settings)
            self.method = method
            self.server: dict[str, tuple] = {}  # SERVEROPT's memory by array
            self.sent: dict[str, np.ndarray] = {}

        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            """Remember what is sent, and send it."""
            self.server = {} if server_round == 1 else self.server
            self.sent = {name: a.numpy() for name, a in arrays.items()}
            return super().configure_train(server_round, arrays, config, grid)

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            """Return the next arrays and the averaged metrics, None where nobody answered."""
            app, kept = flwr_app(), [m for m in replies if not m.has_error()]
            kept.sort(key=lambda m: m.metadata.src_node_id)
            arrays, metrics = super().aggregate_train(server_round, kept)
            if arrays is None:
                return arrays, metrics
            contents = [m.content for m in kept]
            n = np.array([next(iter(c.metric_records.values()))[self.weighted_by_key] for c in contents], dtype=float)
            found = [next(iter(c.array_records.values())) for c in contents]
            out = {name: self._moved(name, [a[name].numpy() for a in found], n / n.sum()) for name in arrays}
            return app.ArrayRecord({name: app.Array(a) for name, a in out.items()}), metrics

        def _moved(self, name: str, answers: list[np.ndarray], weights: np.ndarray) -> np.ndarray:
            """Return w_{t+1} of one array."""
            w = np.asarray(self.sent[name], dtype=np.float64)[None]
            state = averaging.State(w, self.server.get(name, self.method.server.init(w)), w[:, None][:, :0])
            models = np.stack([np.asarray(a, dtype=np.float64) for a in answers])[None]
            reply = averaging.Reply(models, models[:, :, None][:, :, :0])
            state = self.method.aggregate(state, np.arange(len(answers))[None], weights[None], reply)
            self.server[name] = state.server
            kind = self.sent[name].dtype
            return np.asarray(state.w[0], dtype=kind if kind.kind == "f" else np.float64)

    return Averaging


def _averages(who: str, method: Any) -> None:
    """Raise unless a method sends a model and averages what comes back."""
    kind = type(method)
    if getattr(kind, "broadcast", None) is not averaging.broadcast or kind.aggregate is not averaging.aggregate:
        must = "send a model and average the answers, as FedAvg and FedSAM do"
        raise wrong_type(who, must, kind.__name__, "use client_app and server_app for all others")
    each = [name for name in ("local_steps", "batch_size") if isinstance(getattr(method, name, None), tuple)]
    if each:
        cure = "give a node's method the node's own number, or use client_app"
        raise bad(f"{who}.{each[0]}", "be one number", f"{getattr(method, each[0])!r}", cure)
    if isinstance(method.aggregation, GeometricMedian):
        cure = "use client_app: this strategy sees one array at a time, and its median is of all of them together"
        raise bad(f"{who}.aggregation", "go coordinate by coordinate", f"{method.aggregation!r}", cure)
    if hides(method):
        raise bad(who, "have PlainSums(): Flower's own messages carry models", f"{method.sums!r}", "use client_app")
