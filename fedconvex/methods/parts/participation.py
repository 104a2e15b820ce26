"""Who takes part in a round, and with which weight: the sampling schemes that the averaging family shares.

Scheme names follow Li, Huang, Yang, Wang, Zhang (ICLR 2020): Scheme I draws with replacement with probabilities p_k and
averages plainly, Scheme II draws uniformly without replacement and weights by p_k K/m, where m of K clients take part.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from fedconvex import draws as _draws
from fedconvex._check import bad, equal_by_type, real, whole, wrong_type
from fedconvex.draws import Draws
from fedconvex.kernels import averages, lane_samples
from fedconvex.problems import FederatedProblem
from fedconvex.traits import LEAVE_OUT, RENORMALISE, LocalSteps, Traits


@equal_by_type
class UniformSampling(NamedTuple):
    """m different clients, uniformly; results are averaged with weights p_k / (sum of p over the sample).

    With equal p_k this is Scheme II of Li et al. (2020): the plain average, unbiased.

    Parameters
    ----------
    clients : int
        Clients per round, 1 to K.

    Examples
    --------
    >>> from fedconvex.methods import FedAvg, UniformSampling
    >>> FedAvg(step_size=0.1, participation=UniformSampling(10)) == FedAvg(step_size=0.1, participation=10)
    True
    """

    clients: int


@equal_by_type
class ProportionalSampling(NamedTuple):
    """m draws with replacement with probabilities p_k; results are averaged plainly (Scheme I of Li et al. 2020).

    A client drawn twice does the same work once (its draws are keyed by its name) and counts twice.

    Parameters
    ----------
    draws : int
        Draws per round, at least 1.

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.methods import ProportionalSampling
    >>> problem = Problem(linear_federation(seed=0).federation, Squared())
    >>> run(FedAvg(step_size=0.1, participation=ProportionalSampling(3)), problem, rounds=2).rounds
    2
    """

    draws: int


@equal_by_type
class ScaledSampling(NamedTuple):
    """m different clients, uniformly, with weights p_k K/m: Scheme II of Li et al. (2020) for clients of any weights.

    The weights sum to one in the mean only. What they weigh are moves: w <- w + (K/m) sum_{k in S} p_k (w_k - w), or
    gradients, so that a round is unbiased, which `UniformSampling` is for equal p_k only. Where all take part it is
    plain averaging. (Li et al. weigh the models, (K/m) sum p_k w_k: with unequal p_k that adds noise as large as the
    models are, which no step size takes away.)

    Parameters
    ----------
    clients : int
        Clients per round, 1 to K.

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.methods import ScaledSampling
    >>> problem = Problem(linear_federation(size_skew=1.0, seed=0).federation, Squared(), 0.1)
    >>> result = run(FedAvg(step_size="auto", participation=ScaledSampling(5)), problem, rounds=300, tol=0)
    >>> bool(result.gap < 0.01)
    True
    """

    clients: int

    @property
    def scaled(self) -> bool:
        """Whether weights are p_k K/m: what exact moments know it by."""
        return True


def as_participation(who: str, x: Any) -> Any:
    """Return a scheme, a share in (0, 1], or None for everybody; a whole number m means `UniformSampling(m)`."""
    if isinstance(x, UniformSampling):
        return UniformSampling(whole(who, x.clients, low=1))
    if isinstance(x, ScaledSampling):
        return ScaledSampling(whole(who, x.clients, low=1))
    if isinstance(x, ProportionalSampling):
        return ProportionalSampling(whole(who, x.draws, low=1))
    if x is None or (isinstance(x, (float, np.floating)) and float(x) == 1.0):
        return None
    if isinstance(x, (int, np.integer)) and not isinstance(x, (bool, np.bool_)):
        return UniformSampling(whole(who, x, low=1))
    if isinstance(x, (float, np.floating)):
        share = real(who, x)
        if not 0.0 < share <= 1.0:
            raise bad(who, "be a share in (0, 1] or a number of clients", x)
        return share
    raise wrong_type(who, "be a number of clients, a share or a sampling scheme", f"{x!r}")


class Sampling(NamedTuple):
    """The rule of who takes part; distinct: nobody may be drawn twice in a round; summed: weights sum to one."""

    distinct: bool = False
    summed: bool = True

    def __call__(self, who: str, x: Any) -> Any:
        scheme = as_participation(who, x)
        if self.distinct and isinstance(scheme, ProportionalSampling):
            raise bad(who, "never draw a client twice in a round", f"{scheme}", "give a number or a share of clients")
        if self.summed and isinstance(scheme, ScaledSampling):
            raise bad(who, "have weights that sum to one", f"{scheme}", "FedAvg and FedSGD take it")
        return scheme

    def fit(self, who: str, scheme: Any, problem: FederatedProblem, R: int) -> None:
        """Raise if the scheme asks for more different clients than there are."""
        if isinstance(scheme, (UniformSampling, ScaledSampling)) and scheme.clients > problem.federation.K:
            raise bad(who, f"be at most the number of clients {problem.federation.K}", scheme.clients)


Participation = Annotated[Any, Sampling()]
DistinctParticipation = Annotated[Any, Sampling(distinct=True)]
AnyParticipation = Annotated[Any, Sampling(summed=False)]


def sampling_of(scheme: Any, problem: FederatedProblem) -> tuple[str, int]:
    """Return how clients are sampled (everyone, uniform, scaled or proportional), and how many are."""
    K = problem.federation.K
    if isinstance(scheme, ProportionalSampling):
        return "proportional", scheme.draws
    if isinstance(scheme, ScaledSampling):
        return ("everyone" if scheme.clients == K else "scaled"), scheme.clients
    m = K if scheme is None else scheme.clients if isinstance(scheme, UniformSampling) else max(1, round(scheme * K))
    return ("everyone" if m == K else "uniform"), m


def who_takes_part(scheme: Any, K: int) -> str:
    """Return who of K clients takes part in a round, in words, "" for everybody."""
    if scheme is None:
        return ""
    if isinstance(scheme, ProportionalSampling):
        return f"{scheme.draws} draws"
    if isinstance(scheme, float):
        return f"{max(1, round(scheme * K))} of {K}"
    return f"{scheme.clients} of {K}" + (" with weights p_k K/m" if isinstance(scheme, ScaledSampling) else "")


def traits_of_sampling(
    scheme: Any,
    problem: FederatedProblem,
    *drawn: str,
    local: LocalSteps | None = None,
    server_step: float | None = None,
    by_round: bool = True,
) -> Traits:
    """Return the traits of a method with a scheme of participation, and what its rounds draw beside the clients."""
    sampling, m = sampling_of(scheme, problem)
    batches = ("batches",) if local is not None and not local.full else ()
    return Traits(
        local,
        server_step,
        sampling,
        m,
        (*(("clients",) if sampling != "everyone" else ()), *batches, *drawn),
        by_round=by_round,
    )


def participants(scheme: Any, problem: FederatedProblem, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
    """Return the clients (R, m) of a round and the weights (R, m) of their results; rows sum to one, or do in the mean.

    Clients are listed and drawn in the order of their keys, so that the order in which they were given changes nothing.
    """
    R, K, p, ordered = draws.trajectory.size, problem.federation.K, problem.weights, problem.federation.by_key
    if isinstance(scheme, float):
        scheme = UniformSampling(max(1, round(scheme * K)))
    if scheme is None or (isinstance(scheme, (UniformSampling, ScaledSampling)) and scheme.clients == K):
        return np.broadcast_to(ordered, (R, K)).copy(), np.broadcast_to(p[ordered], (R, K))
    if isinstance(scheme, ProportionalSampling):
        clients = np.empty((R, scheme.draws), dtype=np.int64)
        _draws.choose_weighted(draws.key, draws.trajectory, draws.round, problem.cumulative_weights, clients)
        return ordered[clients], np.full((R, scheme.draws), 1.0 / scheme.draws)
    clients = np.empty((R, scheme.clients), dtype=np.int64)
    _draws.choose_many(draws.key, draws.trajectory, draws.round, -1, _draws.PARTICIPATION, K, scheme.clients, clients)
    clients = ordered.take(clients)
    if isinstance(scheme, ScaledSampling):
        return clients, p[clients] * (K / scheme.clients)
    if problem.equal_weights:
        equal = np.empty(clients.shape)
        equal.fill(1.0 / scheme.clients)  # half the time of np.full
        return clients, equal
    weights = p[clients]
    return clients, weights / weights.sum(axis=1, keepdims=True)


def participants_of_rounds(scheme: Any, problem: FederatedProblem, draws: Draws, n: int) -> Any:
    """Return the clients (n, R, m) and weights of n rounds from draws.round on, those of `participants`; None for some.

    Those that are the same for all are (1, 1, m). None is returned for schemes of other weights.
    """
    sampling, m = sampling_of(scheme, problem)
    R, K, p, ordered = draws.trajectory.size, problem.federation.K, problem.weights, problem.federation.by_key
    if sampling in ("proportional", "scaled"):
        return None
    if sampling == "everyone":
        return ordered[None, None].copy(), p[ordered][None, None]
    clients = np.empty((n, R, m), dtype=np.int64)
    lane_samples.choose_in_rounds(draws.key, draws.trajectory, draws.round, K, ordered, clients)
    if problem.equal_weights:
        return clients, np.full((1, 1, m), 1.0 / m)
    weights = p[clients]
    return clients, weights / weights.sum(axis=2, keepdims=True)


def average(scheme: Any, weights: np.ndarray, w: np.ndarray, replies: np.ndarray) -> np.ndarray:
    """Return the weighted average of the answers (R, m, ...), or w (R, ...) moved by them if weights are scaled."""
    if isinstance(scheme, ScaledSampling):
        return w + averages.over_clients(weights, replies - w[:, None])
    return averages.over_clients(weights, replies)


def lost(method: Any, t: int) -> str:
    """Return what a round makes of a client that does not answer: weights that need not sum to one stay as they are."""
    return LEAVE_OUT if isinstance(method.participation, ScaledSampling) else RENORMALISE
