"""Rounds: clients are sampled, the method's parts are called in turn, and what is sent is counted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from typing import Any

import numpy as np

from fedconvex._check import Rng, bad, finite, numeric, takes_rng, whole, wrong_type
from fedconvex.draws import _GOLDEN, Draws, key_from_seed
from fedconvex.driver import defaults, parts_checks
from fedconvex.driver.threads import Threads, sliced
from fedconvex.fields import rules_of
from fedconvex.methods.parts.automatic_steps import resolved
from fedconvex.problems import FederatedProblem, ServerProblem
from fedconvex.problems.protocol import (
    COEFFICIENTS,
    ENSEMBLE,
    EQUILIBRIUM,
    HYBRID_MODEL,
    INVARIANT_MODEL,
    MODEL_PER_TASK,
    ONE_MODEL,
    POSTERIOR,
    VERTICAL_MODEL,
    is_for,
    made_for,
)

ONE_BY_ONE = 4096  # rounds before some are computed together by a kernel that is compiled, or read, for that alone
BLOCK, GROWTH = 4096, 4  # rounds that are, at most, and how many times as many are in the next block
_HELD, _BESIDE = 4096, 8  # bytes, or states, of a block that one which is kept holds: copies of each would take long


@takes_rng
def iterate(
    method: Any,
    problem: FederatedProblem,
    *,
    rounds: int | None = None,
    seed: Any = 0,
    trajectories: int | range = 1,
    start: Any = None,
    threads: int | None = None,
    rng: Rng = None,
) -> Iterator[tuple[int, Any]]:
    """Yield (t, state) for t = 0 (the start), 1, 2, ...: the bare loop, without measuring.

    Parameters
    ----------
    method : method
        For example `FedAvg`.
    problem : Problem, MultiTaskProblem, EnsembleProblem or StumpProblem
    rounds : int, optional
        Stop after so many; default never.
    seed : int or numpy.random.Generator
        Key of all draws.
    trajectories : int or range
        R independent runs that advance together; arrays of the state carry a leading axis R. ``range(a, b)`` runs b - a
        of them, which have the bits that they have at places a to b - 1 of a larger run: a large one can be cut up.
        Numbers per trajectory may be those of the larger run.
    start : model or (R, *model) array, optional
        w_0; default zeros.
    threads : int, optional
        Threads over trajectories or clients; any number gives the same bits. By default one, and one for every
        processor where the clients' work of a round takes a millisecond and is done faster so: give 1 where several
        processes run at once, and to a method of your own whose ``local`` is not safe to call from several threads.

    Raises
    ------
    ValueError, TypeError
        If rounds is below 1, or the method is not made for the problem.

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared, iterate
    >>> from fedconvex.datasets import linear_federation
    >>> problem = Problem(linear_federation(seed=0).federation, Squared())
    >>> for t, state in iterate(FedAvg(step_size=0.1, local_steps=5), problem, rounds=3):
    ...     last = t
    >>> last, state.w.shape[0]
    (3, 1)
    """
    limit = None if rounds is None else whole("iterate: rounds", rounds, low=1)
    engine = Engine(method, problem, key_from_seed(seed), trajectories, threads)
    return engine.loop(engine.start(start), 0, limit)


class Engine:
    """One method on one problem: how a round is carried out."""

    ahead: Any = None  # computes the models of many rounds together
    early = True  # and may do so by the kernel that single rounds have
    durable: Any = None  # the memory that a checkpoint holds
    checked = False  # whether the parts have returned what they must, once
    may_miss = False  # whether there may be no value, NaN, of a sound state: clients who do not answer

    def __init__(self, method: Any, problem: Any, key: np.uint64, trajectories: Any, threads: int | None) -> None:
        parts_checks.check_method(method)
        check_problem(method, problem)
        if hasattr(problem, "engine"):
            raise wrong_type("iterate: problem", "have its rows here", f"{problem!r}", "use run(..., transport=...)")
        method, self.default_step = resolved(method, problem)
        self.method, self.key, self.R = chunk_of(method, key, trajectories)
        self.problem = problem
        self.threads = Threads(threads)
        self.numbers = np.arange(self.R)
        self.server = server_of(method, problem) if hasattr(method, "local") else problem
        self.floats_down, self.floats_up = 0, getattr(self.server, "floats", 0)  # per trajectory, totals
        self.done = (0, 0)  # the same, as of the last finished round
        self.memory = self.method.memory(problem, self.R) if hasattr(method, "memory") else None
        self.step = self._round if hasattr(method, "local") else self._centralised
        self.moving = hasattr(problem, "drift")
        self.ahead = self.method.ahead if not self.moving and parts_checks.may_go_ahead(self.method) else None

    def start(self, w: Any) -> Any:
        """Return the method's first state."""
        shape = (self.R, *self.problem.model_shape)
        w0 = np.zeros(shape) if w is None else numeric("run: start", w)
        if w0.shape not in (shape, shape[1:]):
            raise bad("run: start", f"have shape {shape[1:]} or {shape}", f"{w0.shape}")
        finite("run: start", w0)
        state = defaults.first_state(self.method, self.server, np.broadcast_to(w0, shape).copy())
        parts_checks.check_state(self.method, "init", state, self.R)
        return state

    def loop(self, state: Any, t: int, limit: int | None, every: int = 1) -> Iterator[tuple[int, Any]]:
        """Yield (t, state) forever, or up to the limit.

        Of rounds computed together those may be left out, the last aside, whose number ``every`` does not divide.
        """
        yield t, state
        first, sent, n = t, (0, 0), min(max(GROWTH, every), BLOCK)  # who sees few of them stops at one of these
        while limit is None or t < limit:
            block = self._block(t, t - first, state, n if limit is None else min(n, limit - t))
            if block is None:
                before = self.floats_down, self.floats_up
                with np.errstate(all="ignore"):  # divergence is found by measuring
                    state = self.step(t, state)
                    if self.moving:
                        state = self._drift(t, state)
                sent = self.floats_down - before[0], self.floats_up - before[1]
                t += 1
                yield t, state
                continue
            n = min(GROWTH * n, BLOCK)
            kind, rest, begun, end = type(state), state[1:], t, t + len(block)
            before = self.floats_down, self.floats_up
            due = range(begun + 1 + -(begun + 1) % every, end, every)
            models = zip(due, _apart(block[due.start - begun - 1 : -1 : every]), strict=True)
            more = getattr(state, getattr(self.method, "ahead_reads", ""), None)
            found = b"" if more is None else more.tobytes()
            for now, w in itertools.chain(models, [(end, block[-1].copy())]):
                t, state = now, tuple.__new__(kind, (w, *rest))  # as kind._make does, in half the time
                self.floats_down, self.floats_up = before[0] + (t - begun) * sent[0], before[1] + (t - begun) * sent[1]
                kept = w.tobytes()
                yield t, state
                if t < end and (w.tobytes() != kept or (more is not None and more.tobytes() != found)):
                    # whoever asked for the state has changed it: go on from there
                    n = 1
                    break

    def _block(self, t: int, done: int, state: Any, n: int) -> Any:
        """Return the models after each of the next n rounds, or fewer, if the method computes them together, else None.

        The first round of a loop is never among them: what it sends is counted, and its parts are checked.
        """
        late = done >= ONE_BY_ONE
        if self.ahead is None or done == 0 or not (late or self.early):
            return None

        def some(a: int, b: int) -> Any:
            part = state if b - a == self.R else sliced(state, a, b)
            with np.errstate(all="ignore"):
                return self.ahead(self.problem, self.server, part, Draws(self.key, self.numbers[a:b], t), n, late)

        block = self.threads.blocks(some, self.R)
        if block is None:
            self.ahead, self.early = (None if late else self.ahead), False
        return block

    def _round(self, t: int, state: Any) -> Any:
        method = self.method
        draws = Draws(self.key, self.numbers, t)
        clients, weights = defaults.participants(method, self.server, draws)
        for _ in range(getattr(method, "exchanges", 1)):
            state = self._exchange(state, draws, clients, weights)
        return state

    def _exchange(self, state: Any, draws: Draws, clients: np.ndarray, weights: np.ndarray) -> Any:
        """One message to all clients of the round, and their replies."""
        method, problem = self.method, self.problem
        message = method.broadcast(state)
        if not self.checked:
            parts_checks.check_message(method, message, self.R)
        answer = self.threads.local(method, problem, message, clients, self.memory, draws)
        if not self.checked:
            parts_checks.check_answer(method, answer, self.R)
        reply, self.memory = answer
        if hasattr(method, "send"):  # what all clients of the round agree on together: masks
            reply = method.send(problem, reply, clients, draws)
            self.floats_down += getattr(reply, "relayed", 0) // self.R
        self.floats_down += self.floats_to(message, clients)
        own = hasattr(reply, "counted")
        self.floats_up += int(getattr(reply, *reply.counted).sum()) // self.R if own else floats_of(reply, self.R)
        state = method.aggregate(state, clients, weights, reply)
        if not self.checked:
            parts_checks.check_state(method, "aggregate", state, self.R)
            self.checked = True
        return method.settle(self.server, state) if hasattr(method, "settle") else state

    def floats_to(self, message: Any, clients: np.ndarray) -> int:
        """Floats per trajectory of a message to clients (R, m)."""
        if hasattr(message, "counted"):  # clients are sent different numbers
            numbers = getattr(message, *message.counted)
            return int(np.take_along_axis(numbers, clients, axis=1).sum()) // self.R
        m = clients.shape[1]
        return m * floats_of(message, self.R) - self._others(message, m)

    def _others(self, message: Any, m: int) -> int:
        """Floats of fields named in ``per_client``, (R, K, ...), that are not for the client they go to."""
        known = getattr(message, "not_sent", ())
        names = [name for name in getattr(message, "per_client", ()) if name not in known]
        if not names:
            return 0
        own = sum(getattr(message, name).size for name in names)
        return m * own // self.R - m * own // (self.R * self.problem.federation.K)

    def _drift(self, t: int, state: Any) -> Any:
        """Move the state's models against the target's step, so that they stay in the target's coordinates."""
        q = self.problem.drift(Draws(self.key, self.numbers, t))  # type: ignore[attr-defined]
        if hasattr(self.method, "translate"):
            return self.method.translate(state, -q)
        return state._replace(w=state.w - q)

    def _centralised(self, t: int, state: Any) -> Any:
        return self.method.round(self.problem, state, Draws(self.key, self.numbers, t))


def _apart(block: np.ndarray) -> Iterator[np.ndarray]:
    """Return the models of every round of a block (n, R, *model), of which those that are kept hold a small part."""
    some = max(_BESIDE, _HELD // max(1, block[:1].nbytes))
    if len(block) <= some:
        return iter(block)
    return itertools.chain.from_iterable(block[a : a + some].copy() for a in range(0, len(block), some))


def chunk_of(method: Any, key: np.uint64, trajectories: Any) -> tuple[Any, np.uint64, int]:
    """Return method, key and number of trajectories: of ``range(a, b)`` those that have its places in a whole run.

    Streams of draws mix key + GOLDEN (trajectory + 1): an offset of trajectories is one of the key. Of numbers that the
    method was given for every trajectory, at least b of them, its own are taken.

    Raises
    ------
    ValueError, TypeError
        If it is neither a positive whole number nor ``range(a, b)`` with 0 <= a < b.
    """
    if not isinstance(trajectories, range):
        return method, key, whole("run: trajectories", trajectories, low=1)
    a, b = trajectories.start, trajectories.stop
    if trajectories.step != 1 or not 0 <= a < b <= 1 << 40:
        raise bad("run: trajectories", "be a number of them, or range(a, b) with 0 <= a < b", f"{trajectories!r}")
    cut = {}
    for name, rule, _ in rules_of(type(method)) if is_dataclass(method) else ():
        each, x = getattr(getattr(rule, "numbers", rule), "each", ""), getattr(method, name)
        if each == "trajectory" and type(x) is tuple and len(x) >= b:
            cut[name] = x[a:b]
    key = np.uint64((int(key) + a * int(_GOLDEN)) % 2**64)
    return replace(method, **cut) if cut else method, key, b - a


def server_of(method: Any, problem: Any) -> ServerProblem:
    """Return the problem as the method's server knows it, the clients' answers to what it asks for included."""
    names = method.statistics(ServerProblem(problem)) if hasattr(method, "statistics") else ()
    return ServerProblem(problem, names)


def check_problem(method: Any, problem: Any) -> None:
    """Raise unless the problem is one, and learns what the method is made for."""
    if not (hasattr(problem, "learns") and hasattr(problem, "federation")):
        cure = "wrap it: Problem(federation, loss, l2=...)"
        raise wrong_type("run: problem", "be a Problem", type(problem).__name__, cure)
    if not is_for(method, problem):
        got = f"{type(problem).__name__}, which learns {problem.learns}"
        cures = (_CURES.get(kind, f"make one that learns {kind}") for kind in made_for(method))
        raise wrong_type(
            f"{type(method).__name__}: problem", f"learn {' or '.join(made_for(method))}", got, "; or ".join(cures)
        )
    penalty = getattr(problem, "penalty", None)
    if penalty is not None and not getattr(method, "penalised", False):
        name = type(method).__name__
        others = "ProximalFedSGD, FedMiD, FedDualAvg, FedProx and ProgressiveHedging take proximal ones"
        cure = getattr(method, "no_penalty", f"its steps, and its theory, are those of smooth objectives: {others}")
        raise wrong_type(f"{name}: problem", "have no penalty", f"{penalty!r}", cure)


_CURES = {
    ONE_MODEL: "build a Problem, or use a method for problems of this kind: MOCHA, CoCoA, MultiBoost, ...",
    MODEL_PER_TASK: "wrap it: MultiTaskProblem(federation, loss, relation)",
    ENSEMBLE: "build an EnsembleProblem or a StumpProblem",
    INVARIANT_MODEL: "wrap it: InvariantProblem(federation, loss, penalty_weight)",
    VERTICAL_MODEL: "wrap it: VerticalProblem(vertical_federation, loss, l2)",
    HYBRID_MODEL: "wrap it: HybridProblem(hybrid_federation, loss, l2)",
    EQUILIBRIUM: "wrap it: GameProblem(federation, loss, bound)",
    COEFFICIENTS: "wrap it: SurvivalProblem(survival_federation)",
    POSTERIOR: "wrap it: GaussianPosteriorProblem(federation, loss, prior_precision=...)",
}


def floats_of(message: Any, R: int) -> int:
    """Numbers per trajectory in a message, except fields named in its ``not_sent`` (diagnostics)."""
    total = 0
    for v in message:
        if isinstance(v, np.ndarray):
            total += v.size
    for name in getattr(message, "not_sent", ()):
        total -= getattr(message, name).size
    return total // R
