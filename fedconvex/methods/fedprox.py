"""FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020, Algorithm 2).

1. server: start at w_0
2. each round t = 0, 1, ...: server samples clients S_t and sends them w_t
3.   client k in S_t: h_k(w) = f_k(w) + (mu/2) ‖w - w_t‖^2
4.   w_k <- steps of CLIENTOPT on h_k from w_t; a straggler does some of them only
5.   or: w_k <- argmin h_k, solved to rounding
6.   client k answers w_k, a gamma_k-inexact minimiser: ‖grad h_k(w_k)‖ = gamma_k ‖grad f_k(w_t)‖
7. server: w_{t+1} <- SERVEROPT(w_t, sum_{k in S_t} q_k w_k - w_t), q_k = p_k / sum_{j in S_t} p_j
8. server, if mu is adaptive: move it by how F changed

With a penalty P, F = sum_k p_k (f_k + P): h_k(w) = f_k(w) + P(w) + (mu/2) ‖w - w_t‖^2, and the steps of 4 are proximal
ones. The server averages what need not be sparse any more, but stays where P is finite, a convex set.

The paper draws K devices with probabilities p_k and averages plainly: ``participation=ProportionalSampling(K)``. The
gradient of h_k is that of f_k plus mu w - mu w_t: a ridge mu and a linear term, which `local_updates` takes along.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from fedconvex._check import bad, equal_by_type, flag, real, wrong_type
from fedconvex.draws import STRAGGLING, Draws, below, stream, uniform
from fedconvex.fields import Flag, OneOrMore, count, nonnegative, positive
from fedconvex.kernels import descent, row_losses
from fedconvex.kernels.cache import kernel
from fedconvex.kernels.penalised import in_place, penalty_values, proximal_point
from fedconvex.loss_traits import traits
from fedconvex.methods.parts import aggregation, local_work, optimizers, step_sizes
from fedconvex.methods.parts.participation import who_takes_part
from fedconvex.problems import FederatedProblem, Problem
from fedconvex.solvers.proximal.composite_points import composite_points
from fedconvex.solvers.proximal.smooth_points import proximal_points
from fedconvex.traits import Traits, not_sent
from fedconvex.words import Words, steps_in_words


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) w_t
    server: tuple  # SERVEROPT's memory, arrays like w
    mu: np.ndarray  # (R,)
    before: np.ndarray  # (R, *model) w_{t-1} if mu is adaptive, else empty
    falls: np.ndarray  # (R,) int64, rounds in a row in which F decreased
    gamma: np.ndarray  # (R, 2) largest and mean gamma_k of the last round; NaN where not asked for


class Message(NamedTuple):
    """Server to clients."""

    w: np.ndarray  # (R, *model) w_t
    before: np.ndarray  # (R, *model) w_{t-1} if mu is adaptive, else empty
    mu: np.ndarray  # (R,)

    @property
    def not_sent(self) -> tuple[str, ...]:
        """Fields that are not counted as communication: a constant mu is known to all."""
        return () if self.before.size else ("mu",)


@not_sent("late", "gamma")
class Reply(NamedTuple):
    """Clients to server."""

    w: np.ndarray  # (R, m, *model) w_k
    rise: np.ndarray  # (R, m) f_k(w_t) - f_k(w_{t-1}) if mu is adaptive, else (R, 0)
    late: np.ndarray  # (R, m) whether the client was a straggler, or (R, 0); the server sees it by the clock
    gamma: np.ndarray  # (R, m) gamma_k, or (R, 0); a diagnostic


@equal_by_type
class ProximalPoint(NamedTuple):
    """Local solver: the minimiser of h_k, by Newton's method.

    Parameters
    ----------
    tol : float
        Stop at ‖w_k - argmin h_k‖ <= tol (1 + ‖w_k‖), certified by ‖grad h_k‖/(mu + l2), or where rounding stops the
        progress.

    Examples
    --------
    >>> from fedconvex import Federation, FedProx, Problem, Squared, run
    >>> from fedconvex.methods import ProximalPoint
    >>> problem = Problem(Federation.from_clients([([[1.0]], [2.0])]), Squared())
    >>> run(FedProx(proximal_mu=1.0, solver=ProximalPoint()), problem, rounds=1).w  # argmin (w - 2)^2/2 + w^2/2
    array([1.])
    """

    tol: float = 1e-13


@equal_by_type
class Stragglers(NamedTuple):
    """Clients that get only part of their local work done: systems heterogeneity as in the paper's experiments.

    Each sampled client is late with probability ``share``, independently, and then does a number of steps (or epochs)
    drawn uniformly from 1, ..., E - 1, where E is what it was asked for.

    Parameters
    ----------
    share : float
        In [0, 1].
    drop : bool
        Ignore the answers of those that are late, as FedAvg does in the paper; they are sent and counted all the same.
        In a round in which everybody is late, the average difference is zero. Default: partial solutions are averaged.

    Examples
    --------
    >>> from fedconvex import FedProx, Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.methods import Stragglers
    >>> method = FedProx(proximal_mu=0.1, step_size=0.05, local_steps=10, stragglers=Stragglers(0.5))
    >>> run(method, Problem(linear_federation(seed=0).federation, Squared()), rounds=3).rounds
    3
    """

    share: float
    drop: bool = False


@equal_by_type
class AdaptiveProximal(NamedTuple):
    """mu that grows by ``step`` when F increased, and shrinks by it (not below 0) after ``patience`` falls in a row.

    Whether F increased is judged by the sampled clients: they are sent w_{t-1} too and answer f_k(w_t) - f_k(w_{t-1}),
    whose average has the same sign as F(w_t) - F(w_{t-1}) when everybody takes part, and is not drowned by the
    differences between samples of clients otherwise. The new mu is used from the next round on. After a decrease of mu
    counting begins anew.

    Parameters
    ----------
    start : float
        mu of round 0, at least 0.
    step : float
        Positive; the paper takes 0.1.
    patience : int
        The paper takes 5.

    Examples
    --------
    >>> from fedconvex import FedProx, Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.methods import AdaptiveProximal
    >>> method = FedProx(proximal_mu=AdaptiveProximal(start=1.0), step_size=0.05, local_steps=2)
    >>> trace = run(method, Problem(linear_federation(seed=0).federation, Squared()), rounds=12).trace
    >>> float(trace.proximal_mu[0]), bool(trace.proximal_mu[-1] < 1.0)  # shrinks while F falls
    (1.0, True)
    """

    start: float = 0.0
    step: float = 0.1
    patience: int = 5

    def next(self, mu: np.ndarray, falls: np.ndarray, rise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mu and falls after F changed by rise, all (R,)."""
        falls = np.where(rise < 0.0, falls + 1, 0)
        enough = falls >= self.patience
        mu = np.where(rise > 0.0, mu + self.step, np.where(enough, np.maximum(mu - self.step, 0.0), mu))
        return mu, np.where(enough, 0, falls)


class ProximalMu(NamedTuple):
    """The rule of mu: at least 0, one number or one per trajectory, or a valid `AdaptiveProximal`."""

    numbers: OneOrMore = OneOrMore(nonnegative, "nonnegative numbers")

    def __call__(self, who: str, x: Any) -> Any:
        if not isinstance(x, AdaptiveProximal):
            return self.numbers(who, x)
        nonnegative(f"{who}: start", x.start)
        positive(f"{who}: step", x.step)
        count(f"{who}: patience", x.patience)
        return x

    def fit(self, who: str, x: Any, problem: FederatedProblem, R: int) -> None:
        """Raise if there is one mu per trajectory, but for another number of them."""
        if not isinstance(x, AdaptiveProximal):
            self.numbers.fit(who, x, problem, R)


def valid_solver(who: str, x: Any) -> ProximalPoint:
    """Return a valid local solver."""
    if not isinstance(x, ProximalPoint):
        raise wrong_type(who, "be ProximalPoint() or None", f"{x!r}")
    positive(f"{who}: tol", x.tol)
    return x


def valid_stragglers(who: str, x: Any) -> Stragglers:
    """Return valid `Stragglers`."""
    if not isinstance(x, Stragglers):
        raise wrong_type(who, "be Stragglers(share)", f"{x!r}")
    real(f"{who}: share", x.share, low=0.0, high=1.0)
    flag(f"{who}: drop", x.drop)
    return x


@dataclass(frozen=True, kw_only=True)
class FedProx(local_work.AveragedWork):
    """Federated averaging whose clients stay near the server's model by a proximal term, and may do unequal work.

    With ``proximal_mu=0`` it is `FedAvg`, bit for bit. For mu > 0 it is biased like FedAvg, less so the larger mu: with
    exact solutions on quadratics it converges to w_inf = (sum p_k C_k)^-1 sum p_k C_k w_k*,
    C_k = I - (I + H_k/mu)^-1.

    Parameters
    ----------
    proximal_mu : float, array (R,) or `AdaptiveProximal`
        mu, at least 0; an array gives every trajectory its own.
    step_size : float, array (R,) or `Decay`
        Local step size; at most 2/(L_k + mu) for full gradients. Required unless there is a solver.
    local_steps, epochs, batch_size, replacement, shrink, batch_draw
        As for `FedAvg`.
    solver : ProximalPoint, optional
        Instead of all of the above: clients solve exactly.
    stragglers : Stragglers, optional
        Who does only part of the local steps.
    participation : int, float or scheme
        Clients per round, as for `FedAvg`.
    client, server : optimisers
        CLIENTOPT and SERVEROPT; default plain SGD and averaging. CLIENTOPT is given the gradients of h_k.
    aggregation : aggregate
        As for `FedAvg`; only the mean with a penalty.
    inexactness : bool
        Measure gamma_k of every answer: the trace gains ``gamma_max`` and ``gamma_mean`` over the sampled clients of
        the round. This costs a gradient of all rows of these clients at w_t and one at w_k, and no communication.

    Notes
    -----
    The trace gains ``proximal_mu`` where mu is adaptive. Then the models w_t and w_{t-1} travel down, and one number
    more than a model up.

    With a penalty, clients minimise f_k + P + (mu/2) ‖w - w_t‖^2, CLIENTOPT is plain SGD with proximal steps, SERVEROPT
    averages, or moves by at most the average difference, and inexactness is not measured: h_k has no gradient.

    Raises
    ------
    ValueError, TypeError
        On settings out of range or that exclude each other; when a run starts, if a mini-batch without replacement
        exceeds a client, or exact solutions need mu > 0 or a second derivative that is not there.

    References
    ----------
    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated optimization in heterogeneous networks", MLSys 2020,
    Algorithm 2, Definition 2 (inexactness), Section 5.2 (stragglers), Section 5.3 (adaptive mu).

    Examples
    --------
    >>> from fedconvex import Logistic, Problem, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import FedProx, Stragglers
    >>> problem = Problem(logistic_federation(seed=1).federation, Logistic(), l2=0.1)
    >>> method = FedProx(proximal_mu=1.0, step_size=0.2, epochs=5, batch_size=8, stragglers=Stragglers(0.5))
    >>> result = run(method, problem, rounds=50)
    >>> result.status.name, bool(result.gap < 0.1)
    ('ROUND_LIMIT', True)
    """

    command = "fedprox"
    benchmarks: ClassVar[Any] = {"fedprox": {"local_steps": 5, "proximal_mu": 0.1}}
    penalised = True

    proximal_mu: Annotated[Any, ProximalMu()]
    step_size: step_sizes.StepSize | None = None
    solver: Annotated[ProximalPoint, valid_solver] | None = None
    stragglers: Annotated[Stragglers, valid_stragglers] | None = None
    client: optimizers.ClientOptimizer = optimizers.ClientSGD()
    aggregation: aggregation.Aggregate = aggregation.WeightedMean()
    inexactness: Flag = False

    def __post_init__(self) -> None:
        if isinstance(self.solver, ProximalPoint):
            for name in (
                "step_size",
                "local_steps",
                "epochs",
                "batch_size",
                "replacement",
                "batch_draw",
                "stragglers",
                "client",
            ):
                if getattr(self, name) != type(self).__dataclass_fields__[name].default:
                    raise bad(f"FedProx.{name}", "be left out where a solver is given", f"{getattr(self, name)!r}")
        elif self.solver is None and self.step_size is None:
            raise bad("FedProx.step_size", "be given", "None", "or solve exactly: solver=ProximalPoint()")
        super().__post_init__()
        if self.stragglers is not None and max(np.min(self.local_steps), self.epochs or 1) < 2:
            raise bad("FedProx.stragglers", "have at least 2 local_steps or epochs to do part of", "1")

    def check_fit(self, problem: Any, R: int) -> None:
        """Raise if a setting does not fit the problem: exact solutions need strong convexity and a curved loss."""
        super().check_fit(problem, R)
        aggregation.check_fit(self)
        if getattr(problem, "penalty", None) is not None:
            self._check_penalty(problem)
        if self.solver is None:
            return
        if problem.strong_convexity == 0.0 and (
            isinstance(self.proximal_mu, AdaptiveProximal) or not np.all(self.proximal_mu)
        ):
            must, cure = "be positive for exact solutions where l2 = 0", "a client's own minimiser may not exist"
            raise bad("FedProx.proximal_mu", must, f"{self.proximal_mu!r}", cure)
        if not traits(problem.loss).curved:
            cure = "use SmoothedHinge(gamma), or step_size="
            raise bad("FedProx with a solver", "have a loss with curvature", f"{problem.loss!r}", cure)

    def _check_penalty(self, problem: Any) -> None:
        """Raise if a setting does not fit a problem with a penalty."""
        got, server = f"{problem.penalty!r}", getattr(self.server, "plain_step", None)
        if not self.client.plain():
            cure = "proximal steps are those of plain SGD: leave client= out"
            raise wrong_type("FedProx.client with a penalty", "be ClientSGD()", f"{self.client!r}", cure)
        if server is None or server > 1.0:
            cure = "a server that moves further, or elsewhere, leaves the set where the penalty is finite"
            must = "be Averaging(), or ServerSGD of a step of at most 1 without momentum"
            raise bad("FedProx.server with a penalty", must, f"{self.server!r}", cure)
        if not aggregation.is_mean(self):
            cure = "others may leave the set where the penalty is finite"
            raise bad("FedProx.aggregation with a penalty", "be WeightedMean()", f"{self.aggregation!r}", cure)
        if self.inexactness:
            raise bad("FedProx.inexactness", "be False where there is a penalty", got, "h_k has no gradient")
        if self.solver is None and in_place(problem) is None:
            cure = "solve exactly: solver=ProximalPoint()"
            raise wrong_type("FedProx: the penalty", "be a sum over entries or groups (for local steps)", got, cure)

    def words(self, problem: Problem) -> Words:
        if self.solver is None:
            return self.steps_in_words(problem)
        mu = self.proximal_mu if isinstance(self.proximal_mu, float) else None
        who = who_takes_part(self.participation, problem.federation.K)
        return steps_in_words(self, None, None, who, chosen=("penalty" if mu is None else "proximal weight", mu))

    def init(self, problem: Problem, w: np.ndarray) -> State:
        w = proximal_point(problem, w, 0.0)
        adaptive, R = isinstance(self.proximal_mu, AdaptiveProximal), len(w)
        mu = np.broadcast_to(np.array(self.proximal_mu.start if adaptive else self.proximal_mu), R).astype(float)
        before = w if adaptive else w[..., :0]
        return State(w, self.server.init(w), mu, before, np.zeros(R, dtype=np.int64), np.full((R, 2), np.nan))  # 1

    def broadcast(self, state: State) -> Message:
        return Message(state.w, state.before, state.mu)  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        w, mu, none = message.w, message.mu, np.empty((len(clients), 0))
        scale, smooth = mu.reshape(-1, *[1] * w.ndim), getattr(problem, "penalty", None) is None
        if self.solver is not None:
            start, late = np.repeat(w[:, None], clients.shape[1], axis=1), none
            solve = proximal_points if smooth else composite_points
            w_k = solve(problem, clients, start, mu, start, self.solver.tol)  # 3, 5
        else:
            plan, eta = self.asked(problem, clients, draws)
            plan = plan if self.stragglers is None else plan.copy()
            late = none if self.stragglers is None else self._cut(plan, problem.federation.ids[clients], draws)
            prox = {} if smooth else {"prox": in_place(problem)}
            w_k, _ = descent.local_updates(
                problem,
                self.client,
                w,
                clients,
                draws,
                eta,
                plan,
                self.again(problem),
                False,
                -scale * w[:, None],
                mu,
                **prox,
            )  # 3, 4
        rise = _changes(problem, w, message.before, clients) if message.before.size else none
        gamma = none
        if self.inexactness:
            first = _norms(row_losses.gradients_of(problem, w, clients))
            flat = w_k.reshape(-1, *problem.model_shape)
            left = row_losses.gradients_of(problem, flat, clients.reshape(-1, 1)).reshape(w_k.shape)
            left = _norms(left + scale * (w_k - w[:, None]))
            gamma = np.where(left > 0.0, left / first, 0.0)  # 6
        return Reply(w_k, rise, late, gamma), memory  # 6

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        everyone_late = None
        if self.stragglers is not None and self.stragglers.drop:
            kept = np.where(reply.late, 0.0, weights)
            total = kept.sum(axis=1, keepdims=True)
            everyone_late, weights = total[:, 0] == 0.0, kept / np.where(total > 0.0, total, 1.0)
        average = self.aggregation.of(weights, reply.w)
        if everyone_late is not None:
            average[everyone_late] = state.w[everyone_late]
        server, w = self.server.move(state.server, state.w, average)  # 7
        mu, before, falls = state.mu, state.before, state.falls
        if isinstance(self.proximal_mu, AdaptiveProximal):
            mu, falls = self.proximal_mu.next(mu, falls, np.einsum("rm,rm->r", weights, reply.rise))  # 8
            before = state.w
        gamma = (
            np.stack([reply.gamma.max(axis=1), reply.gamma.mean(axis=1)], axis=1) if self.inexactness else state.gamma
        )
        return State(w, server, mu, before, falls, gamma)

    def ahead(self, problem: Problem, server: Any, state: State, draws: Draws, n: int, late: bool) -> Any:
        """Return the models (n, R, *model) after each of n rounds, or fewer, or None for rounds one by one."""
        smooth, fixed = getattr(problem, "penalty", None) is None, not isinstance(self.proximal_mu, AdaptiveProximal)
        if (
            not (smooth and fixed and aggregation.is_mean(self))
            or self.solver is not None
            or self.stragglers is not None
            or self.inexactness
        ):
            return None
        return self.models_ahead(problem, server, state.w, draws, n, late, state.mu)

    ahead_of: ClassVar[Any] = (broadcast, local, aggregate, *local_work.PARTS)
    ahead_reads = "mu"  # of the state, beside w

    def traits(self, problem: Problem) -> Traits:
        smooth = getattr(problem, "penalty", None) is None
        plain = smooth and self.proximal_mu == 0.0 and self.stragglers is None and self.client.plain()
        averaged = aggregation.is_mean(self) and (self.stragglers is None or not self.stragglers.drop)
        late = ("stragglers",) if self.stragglers is not None and self.stragglers.share > 0.0 else ()
        found = self.averaging_traits(problem, *late, plain=plain, averaged=averaged)
        if smooth and self.stragglers is None and self.client.plain() and isinstance(self.proximal_mu, float):
            found = found._replace(proximal=self.proximal_mu)
        return found if self.solver is None else found._replace(local=None)

    def translate(self, state: State, shift: np.ndarray) -> State:
        """Return the state in coordinates that moved: both models move along."""
        return state._replace(w=state.w + shift, before=state.before + shift if state.before.size else state.before)

    def observe(self, problem: Problem, state: State) -> dict[str, np.ndarray]:
        """gamma_max, gamma_mean (R,) of the last round, NaN at the start; proximal_mu (R,) of the next one."""
        seen = {"gamma_max": state.gamma[:, 0], "gamma_mean": state.gamma[:, 1]} if self.inexactness else {}
        return seen | ({"proximal_mu": state.mu} if isinstance(self.proximal_mu, AdaptiveProximal) else {})

    def _cut(self, plan: np.ndarray, ids: np.ndarray, draws: Draws) -> np.ndarray:
        """Cut the passes of stragglers in place; return who is one, (R, m)."""
        assert self.stragglers is not None
        late = np.zeros(ids.shape, dtype=np.bool_)
        cut_work(draws.key, draws.trajectory, draws.round, ids, float(self.stragglers.share), plan, late)
        return late


def _norms(G: np.ndarray) -> np.ndarray:
    """Norms of (R, m, *model) over the model's axes."""
    return np.linalg.norm(G.reshape(*G.shape[:2], -1), axis=2)


def _changes(problem: Problem, w: np.ndarray, before: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """f_k(w) - f_k(before), and that of a penalty, of clients (R, m); zero where it is rounding."""
    now, then = (
        row_losses.values_gradients_of(problem, v, clients)[0] + penalty_values(problem, v.reshape(len(v), -1))[:, None]
        for v in (w, before)
    )
    return np.where(np.abs(now - then) > 1e-13 * (np.abs(now) + np.abs(then)), now - then, 0.0)


@kernel
def cut_work(key, trajectories, round_, ids, share, plan, late):  # type: ignore[no-untyped-def]
    """With probability share, a client is late and does 1, ..., E - 1 passes, uniformly, of the E in plan[r, j, 0]."""
    for r in range(ids.shape[0]):
        for j in range(ids.shape[1]):
            state = stream(key, trajectories[r], round_, ids[r, j], STRAGGLING)
            late[r, j] = uniform(state, 0) < share
            if late[r, j]:
                plan[r, j, 0] = 1 + below(state, 1, plan[r, j, 0] - 1)
