"""Federations of sites: every method of the contract against a run in one process, and random schedules of faults."""

from __future__ import annotations

import math
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from test_contract import CONFIGURATIONS, FEDERATED, kinds, made

from fedconvex import SCAFFOLD, FedAvg, Federation, FedProx, Logistic, Problem, Softmax, Squared, run
from fedconvex._files import npz
from fedconvex.draws import Draws, key_from_seed
from fedconvex.driver import participants
from fedconvex.driver.cycles import leaves
from fedconvex.driver.rounds import Engine
from fedconvex.methods import (
    AFL,
    MOCHA,
    VIRTUAL,
    AgnosticFedAvg,
    Clock,
    FedMultiBoost,
    FLGame,
    IRMv1,
    ProgressiveHedging,
    SecureSums,
    ServerSGD,
)
from fedconvex.problems import (
    Dictionary,
    EnsembleProblem,
    GameProblem,
    GaussHermite,
    GaussianPosteriorProblem,
    InvariantProblem,
    MultiTaskProblem,
)
from fedconvex.remote import Limits, Roster, in_process
from fedconvex.remote import Site as LimitedSite
from fedconvex.remote.messages import JOIN
from fedconvex.remote.questions import longest
from fedconvex.remote.site_engine import SiteEngine
from fedconvex.traits import RENORMALISE, lost_reply

Site = partial(LimitedSite, limits=Limits(share=math.inf, rows=0.0))  # few rows, many rounds
LOSSES = {"linear": Squared(), "logistic": Logistic(), "softmax": Softmax(3)}
OTHERS = {"tasks", "posterior", "classifiers", "environments", "players"}
SHARED = [n for n in FEDERATED if kinds(n)[0].split()[-1] in {*LOSSES, *OTHERS}]  # what sites can share


def rows(kind: str, sparse: bool) -> Federation:
    """Four clients of unequal sizes."""
    rng, pairs = np.random.default_rng(7), []
    for n in (5, 8, 4, 7):
        X, z = rng.normal(size=(n, 3)), rng.normal(size=n)
        z = z + X @ np.array([1.0, -1.0, 0.5])
        y = {"linear": z, "logistic": np.where(z > 0.0, 1.0, -1.0), "softmax": rng.integers(0, 3, n).astype(float)}
        pairs.append((sp.csr_array(X * (rng.random(X.shape) < 0.7)) if sparse else X, y[kind]))
    return Federation.from_clients(pairs, labels=["north", "east", "south", "west"])


def shared(name: str, kind: str, sparse: bool) -> tuple[Federation, Any]:
    """Rows for a configuration, and the line that makes its problem of them."""
    if name in CONFIGURATIONS:
        return rows(kind, sparse), lambda fed: Problem(fed, LOSSES[kind], 0.1)
    whole = made(kind)
    if isinstance(whole, MultiTaskProblem):
        return whole.federation, lambda fed: MultiTaskProblem(fed, whole.loss, whole.relation, whole.normalisation)
    if isinstance(whole, EnsembleProblem):
        listed = [[h for h, k in zip(whole.dictionary.members, whole.sources, strict=True) if k == j] for j in range(3)]
        return whole.data, lambda fed: EnsembleProblem(fed, Dictionary.from_classifiers(fed, listed))
    if isinstance(whole, InvariantProblem):
        return whole.federation, lambda fed: InvariantProblem(fed, whole.loss, whole.penalty_weight)
    if isinstance(whole, GameProblem):
        return whole.federation, lambda fed: GameProblem(fed, whole.loss, whole.bound)
    how: dict[str, Any] = {"covariance": whole.covariance} | ({} if whole.linear else {"expectation": GaussHermite(20)})
    how |= {} if whole.private is None else {"private_precision": 2.0}
    return whole.federation, lambda fed: GaussianPosteriorProblem(fed, whole.loss, **how)


def bounded(sites: list[Any]) -> Any:
    """Return a transport to sites of this process; no message is longer than its reader keeps of it.

    Of the room for requests half is for what describes arrays.
    """
    plain = in_process(sites)

    def ask(t: int, requests: Any, most: Any) -> Any:
        for k, message in requests.items():
            site, size = sites[k], sum(a.nbytes for name, a in message.items() if name != "header")
            room = (
                site.longest()
                if message["header"][1] == JOIN
                else longest(site.method, site.problem, site.R * site.paths) // 2
            )
            assert len(npz(message)) <= site.longest() and size <= room, (sorted(message), size, room)
        answers = plain(t, requests)
        for k, message in answers.items():
            assert len(npz(message)) <= most[k], sorted(message)
        return answers

    ask.bounded = True  # type: ignore[attr-defined]
    return ask


def compare(method: Any, fed: Federation, make: Any, R: int) -> None:
    """Assert that sites end with the bits of one process, the same numbers sent, and a valid gap."""
    how: dict[str, Any] = {"rounds": 4, "tol": 0, "seed": 3, "trajectories": R}
    sites, roster = [Site(method, make, fed.subset([k])) for k in range(fed.K)], Roster.of(make, fed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, far = run(method, make(fed), **how), run(method, roster, transport=bounded(sites), **how)
    for (name, a), (_, b) in zip(leaves(one.state), leaves(far.state), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
    assert roster.incidents == []
    assert far.trace.floats_down.tolist() == one.trace.floats_down.tolist()
    assert far.trace.floats_up.tolist() == one.trace.floats_up.tolist()
    assert (far.trace.gap >= one.trace.gap - 1e-12 * (1.0 + np.abs(one.trace.value))).all()
    np.testing.assert_allclose(far.trace.value, one.trace.value, rtol=1e-12)


def contract_trial(rng: np.random.Generator) -> dict[str, Any]:
    """A method of the contract on sites, and in one process."""
    name = str(rng.choice(SHARED))
    kind, sparse, R = str(rng.choice(kinds(name))), bool(rng.random() < 0.5), int(rng.integers(1, 4))
    from test_contract import EVERY

    compare(EVERY[name], *shared(name, kind, sparse), R)
    return {"method": name, "kind": kind, "sparse": sparse, "trajectories": R}


# ---------------------------------------------------------------- faults


class Killed(BaseException):
    """The server's process ends."""


class Faulty:
    """A transport that loses, delays, repeats and reorders messages; sites crash, and start again from their files.

    Parameters
    ----------
    build : callable
        From a client's number to its site, which reads its checkpoint.
    K : int
    rng : Generator
    chance : float
        Of each fault, for each message.
    kill : float
        Chance that the server is killed while it asks.
    """

    def __init__(self, build: Any, K: int, rng: np.random.Generator, chance: float, kill: float) -> None:
        self.build, self.rng, self.chance, self.kill = build, rng, chance, kill
        self.sites = [build(k) for k in range(K)]
        self.late: dict[int, dict[str, np.ndarray]] = {}  # answers under way
        self.seen = dict.fromkeys(("lost request", "lost answer", "late", "twice", "crash", "kill"), 0)

    def happens(self, what: str, chance: float | None = None) -> bool:
        """Whether a fault happens, and count it."""
        found = bool(self.rng.random() < (self.chance if chance is None else chance))
        self.seen[what] += found
        return found

    def __call__(self, t: int, requests: dict[int, dict[str, np.ndarray]]) -> dict[int, dict[str, np.ndarray]]:
        answers = {}
        for k in self.rng.permutation(list(requests)).tolist():
            if t >= 0 and self.happens("kill", self.kill / len(requests)):
                raise Killed
            if self.happens("crash"):
                self.sites[k] = self.build(k)
            if self.happens("lost request"):
                continue
            answer = self.sites[k].answer(requests[k])
            if self.happens("twice"):
                answer = self.sites[k].answer(requests[k])
            if self.happens("crash"):
                self.sites[k] = self.build(k)
            if k in self.late and self.rng.random() < 0.5:
                answers[k] = self.late.pop(k)
            elif self.happens("late"):
                self.late[k] = answer
            elif not self.happens("lost answer"):
                answers[k] = answer
        return answers


def survive(
    method: Any, fed: Federation, make: Any, rng: np.random.Generator, rounds: int, folder: Path, required: Any = ()
) -> Any:
    """Run rounds with faults, killed servers included; return result, transport and who was counted in each round.

    Where all sites are required (None), the server is started again also where it gave up on one of them.
    """
    counted: dict[int, np.ndarray] = {}
    build = lambda k: Site(method, make, fed.subset([k]), checkpoint=folder / f"site{k}.npz")  # noqa: E731
    ask = Faulty(build, fed.K, rng, float(rng.uniform(0.0, 0.15)), 0.03)
    how: dict[str, Any] = {
        "rounds": rounds,
        "tol": 0,
        "seed": 3,
        "record_every": 5,
        "checkpoint": folder / "server.npz",
    }
    plain = SiteEngine.answers

    def noted(self: SiteEngine, t: int, *more: Any) -> Any:
        found = plain(self, t, *more)
        counted[t] = np.unique(found[0])
        return found

    SiteEngine.answers = noted  # type: ignore[method-assign]
    try:
        for _ in range(200):
            roster = Roster.of(make, fed, patience=30 if required is not None else 3, required=required)
            try:
                every = int(rng.integers(1, 4))
                return run(method, roster, transport=ask, checkpoint_every=every, **how), ask, counted
            except (Killed, ConnectionError) as error:
                if isinstance(error, ConnectionError) and required is not None:
                    raise
    finally:
        SiteEngine.answers = plain  # type: ignore[method-assign]
    raise AssertionError("the server was killed 200 times")


def replayed(method: Any, problem: Any, rounds: int, counted: dict[int, np.ndarray]) -> tuple[Any, Any]:
    """Return state and memory of a run in one process in which those who were not counted did not take part."""
    engine = Engine(method, problem, key_from_seed(3), 1, 1)
    state, memory = engine.start(None), engine.memory
    for t in range(rounds):
        draws = Draws(engine.key, engine.numbers, t)
        clients, weights = participants(method, engine.server, draws)
        there = np.isin(clients, counted[t])
        if not there.all():
            clients, weights = clients[there][None], weights[there][None]
            weights = weights / weights.sum() if lost_reply(method, t) == RENORMALISE else weights
        reply, memory = method.local(problem, method.broadcast(state), clients, memory, draws)
        reply = method.send(problem, reply, clients, draws) if hasattr(method, "send") else reply
        state = method.aggregate(state, clients, weights, reply)
        state = method.settle(engine.server, state) if hasattr(method, "settle") else state
    return state, memory


def kept_by(ask: Faulty, folder: Path, k: int) -> Any:
    """What a site holds of the round that the server's last checkpoint counts on."""
    with np.load(folder / "server.npz") as stored:
        last = int(stored["memory/rounds"][k])
    return ask.sites[k].kept.get(last)


FAULTS = {
    "FedAvg": (FedAvg(step_size=0.2, local_steps=3, batch_size=2, participation=3), "linear"),
    "SCAFFOLD": (SCAFFOLD(step_size=0.2, local_steps=2, participation=3), "logistic"),
    "FedProx": (FedProx(proximal_mu=0.5, step_size=0.2, local_steps=2, server=ServerSGD(0.7, momentum=0.3)), "softmax"),
    "MOCHA": (MOCHA(clock=Clock(0.3), drop=0.2), "tasks"),
    "ProgressiveHedging": (ProgressiveHedging(rho=0.5, participation=3), "linear"),
    "AFL": (AFL(step_size=0.1, domain_step_size=0.1), "logistic"),
    "AgnosticFedAvg": (AgnosticFedAvg(step_size=0.1, domain_step_size=0.1, local_steps=2), "linear"),
    "SecureSums": (
        AgnosticFedAvg(step_size=0.1, domain_step_size=0.1, participation=3, sums=SecureSums(40)),
        "logistic",
    ),
    "FLGame": (FLGame(buffer=3), "players"),
    "IRMv1": (IRMv1(step_size=0.02), "environments"),
    "FedMultiBoost": (FedMultiBoost(step_size=0.1, clients_per_domain=2), "classifiers"),
    "VIRTUAL": (VIRTUAL(rho=0.5, participation=3), "linear posterior"),
}


def fault_trial(rng: np.random.Generator, name: str | None = None) -> dict[str, Any]:
    """A schedule of faults: the state is that of the same run without those who were not counted, bit for bit."""
    name = name or str(rng.choice(list(FAULTS)))
    method, kind = FAULTS[name]
    fed, make = shared("FedAvg" if kind in LOSSES else name, kind, bool(rng.random() < 0.5))
    rounds, problem = 12, make(fed)
    with tempfile.TemporaryDirectory() as where, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(where)
        result, ask, counted = survive(method, fed, make, rng, rounds, folder)
        state, memory = replayed(method, problem, rounds, counted)
        for (field, a), (_, b) in zip(leaves(result.state), leaves(state), strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"{name}: {field}")
        check_invariants(name, problem, result.state, [kept_by(ask, folder, k) for k in range(fed.K)] if memory else [])
        ask.chance, ask.kill = 0.0, 0.0
        if name in ("SCAFFOLD", "MOCHA", "ProgressiveHedging"):  # exact in the limit: with no fault left it converges
            how: dict[str, Any] = {"seed": 3, "record_every": 5, "checkpoint": folder / "server.npz", "tol": 1e-3}
            end = run(method, Roster.of(make, fed), transport=ask, rounds=400, **how)
            assert end.status.name == "CONVERGED", end
            assert end.gap >= end.trace.value[-1] - problem.solve().value - 1e-12
    return {"method": name, "faults": ask.seen, "alone": sum(c.size < fed.K for c in counted.values())}


def required_trial(rng: np.random.Generator, name: str | None = None) -> dict[str, Any]:
    """A schedule of faults, sites that crash and are started again included: the bits of a run without any."""
    name = name or str(rng.choice(list(FAULTS)))
    method, kind = FAULTS[name]
    fed, make = shared("FedAvg" if kind in LOSSES else name, kind, bool(rng.random() < 0.5))
    with tempfile.TemporaryDirectory() as where, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result, ask, _ = survive(method, fed, make, rng, 12, Path(where), None)
        alone = run(method, make(fed), rounds=12, tol=0, seed=3)
        for (field, a), (_, b) in zip(leaves(result.state), leaves(alone.state), strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"{name}: {field}")
    return {"method": name, "faults": ask.seen}


def check_invariants(name: str, problem: Any, state: Any, kept: list[Any]) -> None:
    """c = sum p_i c_i, and v_t = c_t X_t'alpha_t with the conjugates of alpha_t, from what the sites hold."""
    if name == "SCAFFOLD":
        own = [np.zeros_like(state.c[0]) if m is None else m.rows[0].reshape(state.c[0].shape) for m in kept]
        total = sum(p * c for p, c in zip(problem.weights, own, strict=True))
        np.testing.assert_allclose(state.c[0], total, rtol=0, atol=1e-13)
    if name == "MOCHA":
        parts = [np.zeros(n) if m is None else m.alpha[0] for n, m in zip(problem.federation.sizes, kept, strict=True)]
        alpha = np.concatenate(parts)
        np.testing.assert_allclose(state.v[0], problem.images(alpha), rtol=0, atol=1e-13)
        np.testing.assert_allclose(state.conjugate[0], problem.conjugates(alpha), rtol=0, atol=1e-13)
        assert np.isfinite(state.conjugate).all()  # dual feasible
