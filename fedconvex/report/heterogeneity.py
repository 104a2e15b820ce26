"""How different the clients are, at a model and along a run: drift, gradient dissimilarity, weight divergence, losses.

At a model w, with weights p_k:

* drift (1/K) sum_k ‖w_k - w‖^2 and spread (1/K) sum_k ‖w_k - wbar‖^2, wbar = sum_k p_k w_k, where w_k is what client k
  answers when the round begins at w (Karimireddy et al. 2020 call the first client drift);
* B^2 = sum_k p_k ‖grad f_k(w)‖^2 / ‖grad F(w)‖^2 (Li et al. 2020, FedProx, Definition 3), zeta^2 = sum_k p_k
  ‖grad f_k(w) - grad F(w)‖^2; B^2 = 1 + zeta^2/‖grad F(w)‖^2;
* the clients' mean losses: quartiles, extremes, standard deviation, and who is worst off.

Along a run also the weight divergence DC(t) = ‖w_t - c_t‖/‖c_t‖ (Zhao et al. 2018), where c_t is the model of
centralised descent from the same start after as many steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import Rng, bad, instance, takes_rng, whole, wrong_type
from fedconvex.draws import Draws, key_from_seed
from fedconvex.driver import Trace, first_state, iterate
from fedconvex.methods import SGD, Decay, GradientDescent
from fedconvex.problems import Problem
from fedconvex.traits import traits_of


class Drift(NamedTuple):
    """How far clients went in a round.

    Attributes
    ----------
    drift : float
        (1/m) sum_k ‖w_k - w‖^2, from the model that clients were sent.
    spread : float
        (1/m) sum_k ‖w_k - wbar‖^2, from their mean.
    clients : array (m,)
        ‖w_k - w‖^2.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import FedAvg, Federation, Problem, Squared
    >>> from fedconvex.report import client_drift
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])]), Squared())
    >>> found = client_drift(FedAvg(step_size=0.5, local_steps=20), problem, np.array([2.0]))
    >>> round(found.drift, 3), round(found.spread, 3)  # at the optimum clients still leave, to their own
    (1.0, 1.0)
    """

    drift: float  # (1/m) sum_k ‖w_k - w‖^2
    spread: float  # (1/m) sum_k ‖w_k - wbar‖^2
    clients: np.ndarray  # (m,) ‖w_k - w‖^2


class Dissimilarity(NamedTuple):
    """Gradient dissimilarity of one model, or of R models with arrays (R,).

    Attributes
    ----------
    B2 : float or array (R,)
        sum_k p_k ‖grad f_k‖^2 / ‖grad F‖^2; 1 where all gradients vanish, inf where only grad F does.
    zeta2 : float or array (R,)
        sum_k p_k ‖grad f_k - grad F‖^2.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.report import gradient_dissimilarity
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])]), Squared())
    >>> gradient_dissimilarity(problem, np.array([0.0]))
    Dissimilarity(B2=1.25, zeta2=1.0)
    """

    B2: Any  # sum_k p_k ‖grad f_k‖^2 / ‖grad F‖^2; 1 where all gradients vanish, inf where only grad F does
    zeta2: Any  # sum_k p_k ‖grad f_k - grad F‖^2


class LossSpread(NamedTuple):
    """Mean losses of the clients, without the ridge term; every client counts once.

    Attributes
    ----------
    minimum, q1, median, q3, maximum : float
        Quartiles over the clients.
    std : float
        Over the clients, with divisor K.
    worst : label
        Of the client with the largest loss.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.report import loss_spread
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])], labels=["a", "b"]), Squared())
    >>> loss_spread(problem, np.array([1.0])).worst
    'b'
    """

    minimum: float
    q1: float
    median: float
    q3: float
    maximum: float
    std: float  # over the clients, with divisor K
    worst: Any  # label of the client with the largest loss


# ---------------------------------------------------------------- at a model


@takes_rng
def client_drift(method: Any, problem: Problem, w: Any, *, seed: Any = 0, rng: Rng = None) -> Drift:
    """Return how far every client goes when it does its local work once, from w.

    Parameters
    ----------
    method : method
        One whose clients answer models, such as `FedAvg`. Clients that keep memories begin with fresh ones.
    problem : Problem
    w : model
    seed : int or numpy.random.Generator
        Key of the mini-batches.

    Raises
    ------
    TypeError
        If clients of the method do not answer models.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import FedAvg, Federation, Problem, Squared
    >>> from fedconvex.report import client_drift
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])]), Squared())
    >>> client_drift(FedAvg(step_size=0.5, local_steps=1), problem, np.array([0.0]))
    Drift(drift=1.25, spread=0.25, clients=array([0.25, 2.25]))
    """
    instance("client_drift: problem", problem, Problem)
    start = problem.unflatten(_one("client_drift", problem, w))[None]
    if isinstance(method, type) or not hasattr(method, "local"):
        raise wrong_type("client_drift: method", "be an instance of a method with clients", f"{method!r}")
    every = np.arange(problem.federation.K)[None]
    memory = method.memory(problem, 1) if hasattr(method, "memory") else None
    state = first_state(method, problem, start.copy())
    draws = Draws(key_from_seed(seed), np.arange(1), 0)
    reply, _ = method.local(problem, method.broadcast(state), every, memory, draws)
    return _drift("client_drift", method, start, problem.weights, reply)


def _drift(who: str, method: Any, w: np.ndarray, weights: np.ndarray, reply: Any) -> Drift:
    models = getattr(reply, "w", None)
    if models is None or models.shape[2:] != w.shape[1:]:
        raise wrong_type(f"{who}: method", "have clients that answer models", type(method).__name__)
    W = models[0].reshape(len(weights), -1)
    moved = np.sum((W - w.reshape(-1)) ** 2, axis=1)
    return Drift(float(moved.mean()), float(np.mean(np.sum((W - weights @ W) ** 2, axis=1))), moved)


def gradient_dissimilarity(problem: Problem, w: Any) -> Dissimilarity:
    """Return B(w)^2 and zeta(w)^2.

    Parameters
    ----------
    problem : Problem
    w : model, or models (R, *model)

    Raises
    ------
    TypeError
        If problem is no `Problem`.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.report import gradient_dissimilarity
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])]), Squared())
    >>> gradient_dissimilarity(problem, np.array([0.0]))
    Dissimilarity(B2=1.25, zeta2=1.0)
    """
    instance("gradient_dissimilarity: problem", problem, Problem)
    W, single = problem.flatten(w)
    G = problem.client_gradients(problem.unflatten(W)).reshape(len(W), problem.federation.K, -1)
    mean = np.einsum("k,rkj->rj", problem.weights, G)
    zeta2 = np.einsum("k,rkj->r", problem.weights, (G - mean[:, None]) ** 2)
    size2 = np.sum(mean**2, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        B2 = np.where((size2 == 0.0) & (zeta2 == 0.0), 1.0, 1.0 + zeta2 / size2)
    return Dissimilarity(float(B2[0]), float(zeta2[0])) if single else Dissimilarity(B2, zeta2)


def loss_spread(problem: Problem, w: Any) -> LossSpread:
    """Return quartiles, extremes and standard deviation of the clients' mean losses, and who is worst off.

    Parameters
    ----------
    problem : Problem
        Its rows are measured, training rows or others.
    w : model

    Raises
    ------
    ValueError, TypeError
        If w is not one model of the problem.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.report import loss_spread
    >>> fed = Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])], labels=["north", "south"])
    >>> loss_spread(Problem(fed, Squared()), np.array([0.0]))
    LossSpread(minimum=0.5, q1=1.5, median=2.5, q3=3.5, maximum=4.5, std=2.0, worst='south')
    """
    instance("loss_spread: problem", problem, Problem)
    v = _one("loss_spread", problem, w)
    loss = problem.client_values(problem.unflatten(v)) - problem.ridge_term(v)
    low, q1, median, q3, high = np.quantile(loss, [0.0, 0.25, 0.5, 0.75, 1.0]).tolist()
    worst = problem.federation.labels[int(np.argmax(loss))]
    return LossSpread(low, q1, median, q3, high, float(loss.std()), worst.item())


def _one(who: str, problem: Problem, w: Any) -> np.ndarray:
    W, single = problem.flatten(w)
    if not single:
        raise bad(f"{who}: w", "be one model", f"{len(W)} models")
    return W[0]


# ---------------------------------------------------------------- along a run


class _Watched:
    """A method whose last replies are remembered."""

    def __init__(self, method: Any) -> None:
        if isinstance(method, type) or not hasattr(method, "local"):
            raise wrong_type("heterogeneity_trace: method", "be an instance of a method with clients", f"{method!r}")
        self.method = method
        self.last: tuple[Any, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["method"], name)

    def aggregate(self, state: Any, clients: np.ndarray, weights: np.ndarray, reply: Any) -> Any:
        self.last = state.w, weights[0], reply
        return self.method.aggregate(state, clients, weights, reply)


@takes_rng
def heterogeneity_trace(
    method: Any,
    problem: Problem,
    *,
    rounds: int,
    every: int = 1,
    seed: Any = 0,
    start: Any = None,
    baseline: Any = None,
    baseline_rounds: int = 1,
    rng: Rng = None,
) -> Trace:
    """Run a method and measure the clients' heterogeneity at its models.

    Parameters
    ----------
    method : method
        A federated one, whose clients answer models.
    problem : Problem
    rounds, every : int
        How long to run, and how often to measure (round 0 and the last always).
    seed, start
        As for `fedconvex.run`.
    baseline, baseline_rounds : method, int
        Centralised descent for the weight divergence, and its rounds per round of the method; by default the same steps
        on the pooled objective, see `weight_divergence`. False leaves the divergence out.

    Returns
    -------
    Trace
        Arrays (T,): round, value, drift and spread (of the clients that took part in that round; NaN in round 0), B2,
        zeta2, divergence, and loss_min, loss_q1, loss_median, loss_q3, loss_max, loss_std, worst_client.

    Raises
    ------
    ValueError, TypeError
        If the clients of method do not answer models, or every or rounds is below 1.

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.report import heterogeneity_trace
    >>> problem = Problem(linear_federation(seed=0).federation, Squared())
    >>> trace = heterogeneity_trace(FedAvg(step_size=0.05, local_steps=5), problem, rounds=20, every=10)
    >>> trace.round.tolist(), bool(trace.drift[-1] < trace.drift[1])
    ([0, 10, 20], True)
    """
    step, watched, rows = whole("heterogeneity_trace: every", every, low=1), _Watched(method), []
    rounds = whole("heterogeneity_trace: rounds", rounds, low=1)
    states = iterate(watched, problem, rounds=rounds, seed=seed, start=start)
    central = None if baseline is False else _centralised(method, problem, baseline, baseline_rounds, seed, start)
    for t, state in states:
        c = None if central is None else next(central)
        if t % step and t != rounds:
            continue
        drift, spread, _ = _drift("heterogeneity_trace", method, *watched.last) if t else (np.nan, np.nan, None)
        rows.append({"round": t} | _row(problem, state.w[0], {"drift": drift, "spread": spread}, c))
    return Trace({name: np.array([row[name] for row in rows]) for name in rows[0]})


def _row(problem: Problem, w: np.ndarray, drift: dict[str, Any], c: np.ndarray | None) -> dict[str, Any]:
    """Return what a model shows, beside the drift of its round and the centralised model c."""
    B2, zeta2 = gradient_dissimilarity(problem, w)
    low, q1, median, q3, high, std, worst = loss_spread(problem, w)
    row = {"value": float(problem.value(w)), **drift, "B2": B2, "zeta2": zeta2}
    row |= {} if c is None else {"divergence": _divergence(w, c)}
    row |= {"loss_min": low, "loss_q1": q1, "loss_median": median, "loss_q3": q3, "loss_max": high}
    return row | {"loss_std": std, "worst_client": worst}


@takes_rng
def weight_divergence(
    method: Any,
    problem: Problem,
    *,
    rounds: int,
    seed: Any = 0,
    start: Any = None,
    baseline: Any = None,
    baseline_rounds: int = 1,
    rng: Rng = None,
) -> np.ndarray:
    """Return DC(t) = ‖w_t - c_t‖/‖c_t‖ for t = 0, ..., rounds; NaN where c_t = 0.

    Parameters
    ----------
    method, problem, rounds, seed, start
        As for `heterogeneity_trace`.
    baseline, baseline_rounds : method, int
        The centralised method that yields c_t, and its rounds per round. Default, for `FedAvg` with plain local steps
        and for `FedSGD`: as many steps of the same size per round on the pooled objective, of `GradientDescent`, or of
        `SGD` with the same batch size.

    Raises
    ------
    ValueError, TypeError
        If there is no default for the method.

    References
    ----------
    Zhao, Li, Lai, Suda, Civin, Chandra, "Federated learning with non-IID data", arXiv:1806.00582, Section 3.

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.report import weight_divergence
    >>> problem = Problem(linear_federation(seed=0).federation, Squared())
    >>> bool(weight_divergence(FedAvg(step_size=0.05), problem, rounds=9)[1:].max() < 1e-14)
    True
    """
    rounds = whole("weight_divergence: rounds", rounds, low=1)
    states = iterate(method, problem, rounds=rounds, seed=seed, start=start)  # checks the method and the problem
    central = _centralised(method, problem, baseline, baseline_rounds, seed, start)
    return np.array([_divergence(state.w[0], next(central)) for _, state in states])


def _divergence(w: np.ndarray, c: np.ndarray) -> float:
    size = float(np.linalg.norm(c))
    return float(np.linalg.norm(w - c)) / size if size > 0.0 else float("nan")


def _centralised(
    method: Any, problem: Problem, baseline: Any, per_round: int, seed: Any, start: Any
) -> Iterator[np.ndarray]:
    """Yield the centralised model after each round's worth of steps."""
    per_round = whole("weight_divergence: baseline_rounds", per_round, low=1)
    if baseline is None:
        baseline, per_round = _default_baseline(method, problem)
    states = iterate(baseline, problem, seed=seed, start=start)
    return (state.w[0] for t, state in states if t % per_round == 0)


def _default_baseline(method: Any, problem: Problem) -> tuple[Any, int]:
    """Return the centralised method with the same steps, and its rounds per round."""
    who, cure = "weight_divergence: method", "give baseline= and baseline_rounds="
    local, served = traits_of(method, problem).local, hasattr(method, "server") or traits_of(method, problem).averages
    if not served or local is None or not local.plain or (local.factor != 1.0).any():
        raise bad(who, "be FedAvg with plain local steps, or FedSGD", f"{method!r}", cure)
    tau, eta = local.equal_steps, local.step_size
    if tau is None:
        raise bad(who, "make equally many steps at every client", f"{local.steps.min()} to {local.steps.max()}", cure)
    if tau > 1 and isinstance(eta, Decay) and eta.by_round:
        raise bad(who, "have a step size that is constant or counts steps", f"{eta!r}", cure)
    if local.full:
        return GradientDescent(step_size=eta), tau
    return SGD(step_size=eta, batch_size=int(local.batch_size.max()), steps=tau, replacement=local.replacement), 1
