"""Solvers as users write them, honest and not: what tests of the benchmark are given as bench_solvers:Name."""

import os
import threading
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconvex.methods import FedAvg, FedSGD
from fedconvex.problems import Measure

STASH = {}


class Slow(FedAvg):
    """FedAvg whose clients wait."""

    def local(self, problem, message, clients, memory, draws):
        time.sleep(0.05)
        return super().local(problem, message, clients, memory, draws)


class Liar(FedSGD):
    """Claims to be there."""

    def measure(self, problem, state):
        value = problem.value(state.w)
        return Measure(value, np.full(len(value), 1e-12))


class Dice(FedSGD):
    """Says that it draws nothing, and adds noise."""

    def aggregate(self, state, clients, weights, reply):
        state = super().aggregate(state, clients, weights, reply)
        return state._replace(w=state.w + 1e-9 * np.random.default_rng().standard_normal(state.w.shape))


def _at(state, w):
    return state._replace(w=np.broadcast_to(w, state.w.shape).copy())


class Elsewhere(FedSGD):
    """Starts where it likes."""

    def init(self, *given):
        state = super().init(*given)
        return state._replace(w=state.w + 0.1)


class Vandal(FedSGD):
    """Writes to the rows that it is given."""

    def local(self, problem, message, clients, memory, draws):
        for a in (problem.federation.X, problem.federation.y):
            base = a
            while base.base is not None:
                base = base.base
            base.flags.writeable = a.flags.writeable = True
            a[...] = 0.0
        return super().local(problem, message, clients, memory, draws)


def horizon(arrays, settings, rounds):
    """Gradient descent whose step goes by the number of rounds that it is given."""
    w = arrays.start
    for _ in range(rounds):
        slopes = [X.T @ (X @ w - y) / len(y) for X, y in zip(arrays.X, arrays.y, strict=True)]
        w = w - settings["local_step_size"] / (1.0 + 1.0 / rounds) * np.tensordot(arrays.weights, np.stack(slopes), 1)
        yield w


horizon.deterministic = True


def steep(arrays, settings, rounds):
    """Fails where its step is too long, and leaves where there are five rounds."""
    if settings["step_size"] > 1.9:
        raise ArithmeticError("too long")
    if rounds == 5:
        raise SystemExit
    yield from horizon(arrays, settings | {"local_step_size": settings["step_size"]}, rounds)


class Peek(FedSGD):
    """Keeps the problem, and solves it at the server."""

    def local(self, problem, message, clients, memory, draws):
        object.__setattr__(self, "seen", problem)
        return super().local(problem, message, clients, memory, draws)

    def aggregate(self, state, clients, weights, reply):
        return _at(super().aggregate(state, clients, weights, reply), self.seen.solve().w)


class Stash(FedSGD):
    """Solves the problem at a client, and hands the model to the server past the message."""

    def local(self, problem, message, clients, memory, draws):
        STASH["w"] = problem.solve().w
        return super().local(problem, message, clients, memory, draws)

    def aggregate(self, state, clients, weights, reply):
        return _at(super().aggregate(state, clients, weights, reply), STASH["w"])


class Nosy(FedSGD):
    """Every client answers the gradient over all rows."""

    def local(self, problem, message, clients, memory, draws):
        reply, memory = super().local(problem, message, clients, memory, draws)
        g = problem.gradient(message.w)
        return reply._replace(g=np.broadcast_to(g[:, None], reply.g.shape).copy()), memory


class ListReply(NamedTuple):
    """With something that is not counted."""

    w: Any
    path: Any
    more: Any


class Smuggler(FedAvg):
    """Sends a list."""

    def local(self, problem, message, clients, memory, draws):
        reply, memory = super().local(problem, message, clients, memory, draws)
        return ListReply(reply.w, reply.path, [reply.w]), memory


@dataclass(frozen=True)
class Unset:
    """Has a setting that nobody gives."""

    depth: int

    def init(self, problem, w):
        raise NotImplementedError

    def local(self, problem, message, clients, memory, draws):
        raise NotImplementedError


def descent(arrays, settings, rounds):
    """Gradient descent on arrays, for squared loss."""
    w = arrays.start.copy()
    for _ in range(rounds):
        parts = [p * X.T @ (X @ w - y) / len(y) for X, y, p in zip(arrays.X, arrays.y, arrays.weights, strict=True)]
        w = w - settings["step_size"] * (np.sum(parts, axis=0) + arrays.l2 * w)
        yield w


descent.deterministic, descent.passes_per_round = True, 1.0


def closed(arrays, settings, rounds):
    """Fits pooled rows in closed form, and says that it sends a number a round."""
    parts = list(zip(arrays.X, arrays.y, arrays.weights, strict=True))
    H = sum(p * X.T @ X / len(y) for X, y, p in parts) + arrays.l2 * np.eye(len(arrays.start))
    w = np.linalg.solve(H, sum(p * X.T @ y / len(y) for X, y, p in parts))
    for _ in range(rounds):
        yield w


closed.deterministic, closed.floats_per_round = True, 1.0


def both_ways(arrays):
    """The floats of gradient descent: the model down, a gradient up."""
    return 2.0 * len(arrays.X) * arrays.start.size


def plausible(arrays, settings, rounds):
    """The same, and says that it sends what gradient descent does."""
    yield from closed(arrays, settings, rounds)


def late(arrays, settings, rounds):
    """The same, after a round in which nothing happens."""
    yield arrays.start
    yield from closed(arrays, settings, rounds)


def after_a_step(arrays, settings, rounds):
    """The same, after a step of gradient descent."""
    yield next(descent(arrays, settings, rounds))
    yield from closed(arrays, settings, rounds)


def silent(arrays, settings, rounds):
    """The same, and does not say what it sends."""
    yield from closed(arrays, settings, rounds)


def alone(arrays, settings, rounds):
    """Gradient descent with all clients, that says it asks one a round."""
    yield from descent(arrays, settings, rounds)


def honest(arrays, settings, rounds):
    """Gradient descent, with what it sends."""
    yield from descent(arrays, settings, rounds)


def second_order(arrays, settings, rounds):
    """Least squares from all clients' second moments, with what they take."""
    yield from closed(arrays, settings, rounds)


def open_about_it(arrays, settings, rounds):
    """Fits pooled rows, and says so."""
    yield from closed(arrays, settings, rounds)


def averaging(arrays, settings, rounds):
    """FedAvg with three clients of all a round, whose rows are read when they work."""
    rng, w = np.random.default_rng(settings["seed"]), arrays.start.copy()
    for _ in range(rounds):
        ends = []
        for k in rng.choice(len(arrays.X), min(2, len(arrays.X)), replace=False):
            v = w.copy()
            for _ in range(3):
                v = v - settings["local_step_size"] * arrays.X[k].T @ (arrays.X[k] @ v - arrays.y[k]) / len(arrays.y[k])
            ends.append(v)
        w = np.mean(ends, axis=0)
        yield w


def sampled(arrays, settings, rounds):
    """Gradient descent with those who take part, by the steps that are offered for it."""
    rng, w, sizes = np.random.default_rng(settings["seed"]), arrays.start.copy(), [len(y) for y in arrays.y]
    for t in range(rounds):
        K, share = len(arrays.X), settings["participation"]
        who = rng.choice(K, share if isinstance(share, int) else max(1, round(share * K)), replace=False)
        parts = [arrays.X[k].T @ (arrays.X[k] @ w - arrays.y[k]) / sizes[k] for k in who]
        w = w - settings["step_size_at"](t) * (np.mean(parts, axis=0) + arrays.l2 * w)
        yield w


def crowded(arrays, settings, rounds):
    """The same, and everybody from the second round on."""
    yield next(sampled(arrays, settings, rounds))
    yield from descent(arrays, settings, rounds)


for f in (plausible, late, after_a_step, honest):
    f.floats_per_round = both_ways
for f in (plausible, late, after_a_step, silent, honest, second_order, open_about_it):
    f.deterministic = True
alone.floats_per_round, alone.deterministic = lambda arrays: 2.0 * arrays.start.size, True
averaging.floats_per_round = lambda arrays: 4.0 * arrays.start.size
second_order.floats_per_round = lambda arrays: len(arrays.X) * arrays.start.size * (arrays.start.size + 5) / 2.0
open_about_it.pooled = True


def boastful(arrays, settings, rounds):
    """The same, as pairs of model and claimed gap."""
    for w in descent(arrays, settings, rounds):
        yield w, 1e-15


def crooked(arrays, settings, rounds):
    """Yields something of another shape."""
    yield np.zeros(arrays.start.size + 1)


def in_place(arrays, settings, rounds):
    """Returns one array, that it went on changing, as the model of every round."""
    w, models = arrays.start.copy(), []
    for v in descent(arrays, settings, rounds):
        w[...] = v
        models.append(w)
    return models


def imaginary(arrays, settings, rounds):
    """Returns complex models."""
    return [w + 1j for w in descent(arrays, settings, rounds)]


def stubborn(arrays, settings, rounds):
    """Never ends, and catches what it can."""
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            continue
    yield arrays.start


class Hung(FedSGD):
    """Never comes back to Python."""

    def local(self, problem, message, clients, memory, draws):
        return sum(range(1 << 50))


class Stuck:
    """Its server never comes back to Python."""

    def aggregate(self):
        return sum(range(1 << 50))


class Leaving(FedSGD):
    """Ends its process."""

    def local(self, problem, message, clients, memory, draws):
        os._exit(3)


def threaded(arrays, settings, rounds):
    """Lets another thread work."""
    for w in descent(arrays, settings, rounds):
        other = threading.Thread(target=lambda: sum(range(6_000_000)))
        other.start()
        other.join()
        yield w


stubborn.deterministic = threaded.deterministic = True


def usurper(arrays, settings, rounds):
    """Replaces what judges, wherever it finds it, and all that others of its process would be changed by."""
    import gc
    import os
    import warnings

    from fedconvex.bench import cells, running
    from fedconvex.bench import offences as honesty
    from fedconvex.bench.judging import Referee
    from fedconvex.problems import Problem

    def perfect(self, W):
        return np.zeros(len(W)), np.zeros(len(W))

    Referee.gaps = perfect
    Problem.measure = lambda self, w: Measure(np.zeros(len(w)), np.zeros(len(w)))
    honesty.offences = lambda *given: []
    running.fingerprint = cells.fingerprint = lambda w: "0" * 16
    found = [x for x in gc.get_objects() if isinstance(x, Referee)]
    np.seterr(all="raise")
    np.random.seed(0)  # noqa: NPY002
    os.chdir("/")
    os.environ["OPENBLAS_NUM_THREADS"] = "7"
    warnings.simplefilter("error")
    w = found[0].optimum if found else arrays.start
    for _ in range(rounds):
        yield w


def dying(arrays, settings, rounds):
    """Ends its process."""
    import os

    yield arrays.start
    os._exit(3)


def shouting(arrays, settings, rounds):
    """Sends through the pipe of its process what is no answer."""
    import gc
    from multiprocessing.connection import Connection

    for x in gc.get_objects():
        if isinstance(x, Connection) and not x.closed:
            x.send_bytes(b"\x80\x04cos\nsystem\n")
            x.send({"gap": 0.0})
    yield arrays.start
