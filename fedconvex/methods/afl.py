"""AFL, agnostic federated learning (Mohri, Sivek, Suresh, ICML 2019, Figure 2), and an optimistic variant.

min over w of max over lambda in Lambda of L(w, lambda) = sum_i lambda_i F_i(w), F_i the mean loss on domain i of p
domains with N_i rows. Domains may be spread over clients; without domains every client is one.

1. server: start at w_0 and lambda_0
2. each round t = 0, 1, ...: server sends w_t and lambda_t to everybody
3.   client k draws a mini-batch b of its n_k rows (or takes all of them)
4.   client k answers its shares of the gradients: g_k = sum_i (lambda_i/N_i) (n_k/|b|) sum_{j in b, domain i} grad l_j,
     (l2 term included), and of the losses, (n_k/|b|) sum_{j in b, domain i} l_j for every i
5. server: w_{t+1} = PROJECT(w_t - gamma_w sum_k g_k), onto a ball
6. server: lambda_{t+1} = PROJECT(lambda_t + gamma_lambda F^), F^_i = (1/N_i) sum_k losses_{k,i}; or an entropic step
7. output: averages of w_0, ..., w_t and of lambda_0, ..., lambda_t, where the gradients were taken

Optimistic variant (Malitsky, Tam 2020): the same messages
8. server: steps along 2 g^t - g^{t-1} in the place of g^t, for both players (g^{-1} = g^0)
9. output: the last pair

Weighted sampling: the server draws domains K_1, ..., K_s from lambda_t; in step 4, lambda_i is replaced by the share of
draws that hit i. The losses are asked for on s domains drawn uniformly, and multiplied by p times the share. Clients
without rows of these domains answer nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from fedconvex._check import bad, equal_by_type
from fedconvex.draws import DOMAIN_DRAWS, Draws
from fedconvex.fields import CheckedFields, Count, Flag, Positive, count
from fedconvex.kernels.domain_sums import domain_sums, held_by
from fedconvex.methods.parts import domain_weighting, local_work, participation, step_sizes
from fedconvex.problems import FederatedProblem, Measure, Problem
from fedconvex.simplex.ascent import ProjectedStep
from fedconvex.simplex.uncertainty import Simplex
from fedconvex.solvers.minimax.agnostic import measure_minimax
from fedconvex.traits import Traits, not_sent
from fedconvex.words import Words, counted, steps_in_words


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) average of w_0, ..., w_{t-1}
    domain_weights: np.ndarray  # (R, p) average of lambda_0, ..., lambda_{t-1}
    point: np.ndarray  # (R, *model) w_t
    point_domain_weights: np.ndarray  # (R, p) lambda_t
    counts: np.ndarray  # (R, p) N_i
    t: int  # rounds done


class OptimisticState(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) w_t
    domain_weights: np.ndarray  # (R, p) lambda_t
    g: np.ndarray  # (R, *model) gradient of round t - 1
    losses: np.ndarray  # (R, p) the domains' losses of round t - 1
    counts: np.ndarray  # (R, p) N_i
    t: int  # rounds done


@not_sent("counts")
class Message(NamedTuple):
    """Server to clients."""

    w: np.ndarray  # (R, *model) w_t
    domain_weights: np.ndarray  # (R, p) lambda_t
    counts: np.ndarray  # (R, p) N_i, agreed upon before the first round


@not_sent("asked", "silence")
class Reply(NamedTuple):
    """Clients to server."""

    g: np.ndarray  # (R, m, *model) share of the gradient
    losses: np.ndarray  # (R, m, p) sums of losses by domain
    asked: np.ndarray  # (R, m, 2) whether the gradient, and the losses, were asked for; else they are zeros, not sent

    @property
    def silence(self) -> np.ndarray:
        """The numbers that were not asked for."""
        return np.concatenate([self.g[~self.asked[..., 0]].ravel(), self.losses[~self.asked[..., 1]].ravel()])


# ---------------------------------------------------------------- which domains are asked


@equal_by_type
class DomainSampling(NamedTuple):
    """Every domain answers in every round (PerDomain stochastic gradients; all rows without a batch size).

    Examples
    --------
    >>> from fedconvex.methods import AFL, DomainSampling
    >>> AFL(step_size=0.1, domain_step_size=0.1).sampling == DomainSampling()  # the default
    True
    """

    def shares(self, domain_weights: np.ndarray, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        """Return weights (R, p) of the domains in the gradient and in the losses, of means lambda and 1."""
        return domain_weights, np.ones_like(domain_weights)


@equal_by_type
class WeightedSampling(NamedTuple):
    """Domains are drawn from lambda for the gradient, and uniformly for the losses (Weighted stochastic gradients).

    Parameters
    ----------
    draws : int
        Domains per round and player, drawn with replacement.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared, run
    >>> from fedconvex.methods import AFL, WeightedSampling
    >>> problem = Problem(Federation.from_arrays([[1.0], [1.0]], [0.0, 2.0], [0, 1]), Squared())
    >>> method = AFL(step_size=0.1, domain_step_size=0.1, sampling=WeightedSampling(2))
    >>> run(method, problem, rounds=5).rounds
    5
    """

    draws: int = 1

    def shares(self, domain_weights: np.ndarray, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        """Return weights (R, p) of the domains in the gradient and in the losses, of means lambda and 1."""
        p = domain_weights.shape[1]
        u = draws.uniform(2 * self.draws, client=-1, purpose=DOMAIN_DRAWS)
        edges = np.cumsum(domain_weights, axis=1)
        mine = (u[:, : self.draws, None] * edges[:, None, -1:] >= edges[:, None, :]).sum(axis=2)
        other = (u[:, self.draws :] * p).astype(np.int64)
        hits = [np.eye(p)[np.minimum(picked, p - 1)].mean(axis=1) for picked in (mine, other)]
        return hits[0], p * hits[1]


def _domain_sampling(who: str, x: Any) -> Any:
    """Return a way to choose the domains that are asked."""
    if not hasattr(x, "shares") or isinstance(x, type):
        raise bad(who, "be DomainSampling() or WeightedSampling(draws)", f"{x!r}")
    if isinstance(x, WeightedSampling):
        count(f"{who}: draws", x.draws)
    return x


# ---------------------------------------------------------------- methods


@dataclass(frozen=True, kw_only=True)
class MinimaxSettings(CheckedFields):
    """Fields of both methods: steps of the two players, and their sets."""

    step_size: step_sizes.StepSize
    domain_step_size: step_sizes.StepSize
    uncertainty_set: domain_weighting.UncertaintySet = Simplex()
    ascent: domain_weighting.Ascent = ProjectedStep()
    radius: Positive | None = None

    statistics = domain_weighting.statistics
    constant = ("counts",)  # of the state: no round changes it
    aims = ("worst domain",)
    saddle = True  # steps of both players follow from their smoothness, where none are given

    def words(self, problem: FederatedProblem) -> Words:
        """Return how it works on a problem."""
        rules = domain_weighting.steps_in_words(self)
        rules += () if self.radius is None else (f"‖w‖ <= {self.radius:g}",)
        draws, batch = getattr(getattr(self, "sampling", None), "draws", None), getattr(self, "batch_size", None)
        rules += () if draws is None else (f"{counted(draws, 'domain')} drawn for each player",)
        made = steps_in_words(self, 1, batch, rules=rules)
        one = made.work.replace("1 local step", "one gradient")
        return made._replace(work=one, short=() if draws is None else ("weighted",))

    def gradient_passes(self, problem: FederatedProblem) -> float:
        """Return the gradient passes over all rows that a round takes."""
        return 1.0

    def first(self, problem: FederatedProblem, R: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the first domain weights and the domains' rows, (R, p) each."""
        counts = domain_weighting.counts_of(problem)
        self.uncertainty_set.check(type(self).__name__, counts.size)
        return np.tile(self.uncertainty_set.start(counts.size), (R, 1)), np.tile(counts, (R, 1))

    def descended(self, t: int, w: np.ndarray, g: np.ndarray) -> np.ndarray:
        """Return the model player's next point, in the ball."""
        return into_ball(step_sizes.descend(self.step_size, t, w, g), self.radius)

    def ascended(self, t: int, domain_weights: np.ndarray, F: np.ndarray) -> np.ndarray:
        """Return the other player's next point, in Lambda."""
        gamma = step_sizes.round_step_sizes(self.domain_step_size, np.arange(len(domain_weights)), t)
        return self.ascent.ascend(self.uncertainty_set, domain_weights, gamma[:, None] * F)

    def measure(self, problem: Problem, state: Any) -> Measure:
        """Return max over Lambda of L(w, .) and the certified duality gap."""
        radius = math.inf if self.radius is None else self.radius
        return Measure(*measure_minimax(problem, self.uncertainty_set, state.w, state.domain_weights, radius))

    def observe(self, problem: Problem, state: Any) -> dict[str, np.ndarray]:
        """(R, p): the domain weights, those that are measured."""
        return {"domain_weights": state.domain_weights}


@dataclass(frozen=True, kw_only=True)
class AFL(MinimaxSettings):
    """Agnostic federated learning: stochastic descent in the model, ascent in the domain weights.

    With the steps of `fedconvex.theory.saddle_constants.agnostic_steps` the expected duality gap of the averages falls
    like 1/sqrt(T). A round costs |W| + p floats down and |W| + p up per client.

    Parameters
    ----------
    step_size : float, array (R,) or `Decay`
        gamma_w.
    domain_step_size : float, array (R,) or `Decay`
        gamma_lambda.
    uncertainty_set : set of `fedconvex.simplex.uncertainty`
        Lambda: `Simplex()`, `Polytope`, `KLBall` or `Point`.
    ascent : step of `fedconvex.simplex.uncertainty`
        `ProjectedStep()` or `EntropicStep()`.
    sampling : `DomainSampling` or `WeightedSampling`
        Which domains answer.
    batch_size : int, optional
        |b|, rows per client and round; default all rows.
    replacement : bool
        Draw them with replacement.
    radius : float, optional
        Radius of the ball ‖w‖ <= radius; default none.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if a mini-batch without replacement exceeds a client, Lambda holds
        weights of another length, or a domain has no rows.

    References
    ----------
    Mohri, Sivek, Suresh, "Agnostic federated learning", ICML 2019, arXiv:1902.00146, Section 4 and Figure 2 (which has
    lost the minus sign of step 5, and averages t = 1, ..., T).

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared, run
    >>> from fedconvex.methods import AFL
    >>> fed = Federation.from_arrays([[1.0], [1.0]], [0.0, 2.0], clients=[0, 1])
    >>> result = run(AFL(step_size=0.1, domain_step_size=0.1), Problem(fed, Squared()), rounds=2000, tol=1e-3)
    >>> result.status.name, result.w.round(2)
    ('CONVERGED', array([1.]))
    """

    command = "afl"
    benchmarks: ClassVar[Any] = {"afl": {}}

    sampling: Annotated[Any, _domain_sampling] = DomainSampling()
    batch_size: Count | None = None
    replacement: Flag = False

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if a setting does not fit the problem and its R trajectories."""
        super().check_fit(problem, R)
        if self.batch_size is not None and not self.replacement:
            local_work.check_batches("AFL", np.full(problem.federation.K, self.batch_size), problem)

    def init(self, problem: Problem, w: np.ndarray) -> State:
        mix, counts = self.first(problem, len(w))
        w = into_ball(w, self.radius)
        return State(w, mix, w, mix, counts, 0)  # 1

    def broadcast(self, state: State) -> Message:
        return Message(state.point, state.point_domain_weights, state.counts)  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        share, factor = self.sampling.shares(message.domain_weights, draws)
        how = (draws, self.batch_size, self.replacement)
        losses, g = _shares(problem, message, share, clients, *how)  # 3, 4
        has = held_by(problem.federation, clients, share.shape[1]) > 0
        asked = np.stack([(has & (v > 0.0)[:, None]).any(axis=2) for v in (share, factor)], axis=2)
        if isinstance(self.sampling, DomainSampling):
            asked[...] = True
        return Reply(g, losses * factor[:, None], asked), memory  # 4

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        g, F = reply.g.sum(axis=1), reply.losses.sum(axis=1) / state.counts
        point, share = self.descended(state.t, state.point, g), 1.0 / (state.t + 1.0)  # 5
        mix = self.ascended(state.t, state.point_domain_weights, F)  # 6
        w = state.w + share * (state.point - state.w)  # 7
        mean = state.domain_weights + share * (state.point_domain_weights - state.domain_weights)  # 7
        return State(w, mean, point, mix, state.counts, state.t + 1)

    def traits(self, problem: Problem) -> Traits:
        B, sizes = self.batch_size, problem.federation.sizes
        full = B is None or (not self.replacement and bool((sizes == B).all()))
        some = () if isinstance(self.sampling, DomainSampling) else ("domains",)
        return participation.traits_of_sampling(None, problem, *some, *(() if full else ("batches",)))


@dataclass(frozen=True, kw_only=True)
class OptimisticAFL(MinimaxSettings):
    """AFL with optimistic steps on full gradients: the last pair converges, and fast, to the exact solution.

    It is the forward-reflected-backward method for the operator (grad_w L, -grad_lambda L), one gradient a round: with
    projected steps and equal step sizes below 1/(2 x its Lipschitz constant) the last pair converges to a saddle point.

    Parameters
    ----------
    step_size, domain_step_size, uncertainty_set, ascent, radius
        As for `AFL`.

    Raises
    ------
    ValueError, TypeError
        As for `AFL`.

    References
    ----------
    Malitsky, Tam, "A forward-backward splitting method for monotone inclusions without cocoercivity", SIAM J. Optim. 30
    (2020), 1451-1472, Theorem 2.5.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared, run
    >>> from fedconvex.methods import OptimisticAFL
    >>> fed = Federation.from_arrays([[1.0], [1.0]], [0.0, 2.0], clients=[0, 1])
    >>> method = OptimisticAFL(step_size=0.3, domain_step_size=0.3)
    >>> run(method, Problem(fed, Squared()), rounds=500, tol=1e-12).status.name
    'CONVERGED'
    """

    command = "optimistic-afl"
    benchmarks: ClassVar[Any] = {"optimistic-afl": {}}

    def init(self, problem: Problem, w: np.ndarray) -> OptimisticState:
        mix, counts = self.first(problem, len(w))
        w = into_ball(w, self.radius)
        return OptimisticState(w, mix, np.zeros_like(w), np.zeros_like(mix), counts, 0)  # 1

    def broadcast(self, state: OptimisticState) -> Message:
        return Message(state.w, state.domain_weights, state.counts)  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        losses, g = _shares(problem, message, message.domain_weights, clients)  # 4
        return Reply(g, losses, np.ones((*clients.shape, 2), dtype=bool)), memory  # 4

    def aggregate(self, state: OptimisticState, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> Any:
        g, F = reply.g.sum(axis=1), reply.losses.sum(axis=1) / state.counts
        ahead_g, ahead_F = (g, F) if state.t == 0 else (2.0 * g - state.g, 2.0 * F - state.losses)  # 8
        w = self.descended(state.t, state.w, ahead_g)  # 5, 8
        mix = self.ascended(state.t, state.domain_weights, ahead_F)  # 6, 8
        return OptimisticState(w, mix, g, F, state.counts, state.t + 1)  # 9

    def traits(self, problem: Problem) -> Traits:
        return participation.traits_of_sampling(None, problem, by_round=step_sizes.decays(self))


# ---------------------------------------------------------------- what the two share


def into_ball(w: np.ndarray, radius: float | None) -> np.ndarray:
    """Return models (R, ...) projected onto the ball of the given radius around 0."""
    if radius is None:
        return w
    norms = np.sqrt(np.sum(w**2, axis=tuple(range(1, w.ndim)), keepdims=True))
    return w * np.minimum(1.0, radius / np.where(norms > 0.0, norms, radius))


def _shares(
    problem: Problem, message: Message, share: np.ndarray, clients: np.ndarray, *how: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return the clients' sums of losses by domain, and their shares of sum_i share_i grad F_i, l2 term included."""
    alpha = share / message.counts
    losses, g = domain_sums(problem, message.w, alpha, clients, *how)
    if problem.l2 > 0.0:
        weight = np.einsum("rmp,rp->rm", held_by(problem.federation, clients, alpha.shape[1]), alpha)
        w = message.w[:, None]
        g = g + problem.model_ridge * weight.reshape(*weight.shape, *[1] * (w.ndim - 2)) * w
    return losses, g
