"""Progressive hedging (Rockafellar, Wets 1991): consensus ADMM (Boyd et al. 2011, Section 7.1) with weights p_k.

1. server: start at z_0; client k: x_k <- z_0, y_k <- 0
2. each round: server samples clients S (everybody in round 0) and sends them z
3.   client k in S: y_k <- y_k + rho (x_k - z)
4.   x_k <- argmin_x f_k(x) + <y_k, x - z> + (rho/2) ‖x - z‖^2, solved to rounding
5.   or: x_k <- some gradient steps on that objective, from the last x_k or from z
6.   client k answers x_k
7. server: z <- z + sum_{k in S} p_k (x_k - z), which is sum_k p_k x_k when everybody takes part
8. server, with a penalty P: that sum is kept as v, v <- v + sum_{k in S} p_k (x_k - z), and z <- prox_{P/rho}(v)

Weights. With the inner product <<x, y>> = sum_k p_k <x_k, y_k> on stacked models, minimising sum_k p_k f_k(x_k) subject
to x_1 = ... = x_K is minimising f + (indicator of the consensus subspace), the proximal map of f acts client by client
with the one parameter 1/rho, and the projection on consensus is the weighted mean. Hence sum_k p_k y_k = 0 as long as
everybody takes part, and at a fixed point always; there y_k = -grad f_k(z), so that sum_k p_k grad f_k(z) = 0: z
minimises F = sum_k p_k f_k for any weights.

Douglas-Rachford form. v_k = x_k + y_k/rho (with the y_k that x_k was computed from) has the weighted mean z, and the
round is v_k <- v_k + prox_k(2z - v_k) - z: the average of the identity and of a product of two reflections. A client
that sits out keeps its v_k, so a sampled round is a block update of a nonexpansive map, and the server keeps the mean
exact by adding p_k times the clients' increments x_k - z: stale clients do no harm, nothing is renormalised.

Penalty. With F = sum_k p_k f_k + P the proximal map of P follows the projection on consensus: v = sum_k p_k v_k,
z = prox_{P/rho}(v) (Boyd et al. 2011, Section 7.1.1). Clients do not notice: their problems stay smooth, one model
travels each way, and z is as sparse, or as feasible, as the map makes it. At a fixed point rho (v - z) =
sum_k p_k y_k = -sum_k p_k grad f_k(z) is a subgradient of P at z. (With P in every client's problem the limit is the
same, but z, the average of sparse x_k, is not sparse.)

Rate. If every f_k is mu-strongly convex and L-smooth, the reflected proximal map with g = 1/rho is Lipschitz with
r = max{(gL - 1)/(gL + 1), (1 - g mu)/(1 + g mu)} (Giselsson, Boyd 2017), and a round with everybody contracts both
(v_k)_k and (z - y_k/rho)_k by delta = 1/2 + r/2 in the norm (sum_k p_k ‖.‖^2)^{1/2}. rho = sqrt(mu L) is best:
delta = sqrt(kappa)/(sqrt(kappa) + 1). With every client sampled with probability q the expected square of the distance
contracts by 1 - q (1 - delta^2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.draws import Draws
from fedconvex.fields import CheckedFields, Count, Flag, Positive, PositivePerTrajectory
from fedconvex.kernels import averages, descent, row_losses
from fedconvex.kernels.penalised import proximal_point
from fedconvex.loss_traits import traits
from fedconvex.methods.parts import local_work, optimizers, participation, step_sizes
from fedconvex.problems import FederatedProblem, Problem
from fedconvex.solvers.proximal.smooth_points import proximal_points
from fedconvex.traits import LEAVE_OUT, REFUSE, Traits, not_sent
from fedconvex.words import Words, steps_in_words


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) z
    v: np.ndarray  # (R, *model) v; z without a penalty
    before: np.ndarray  # (R, *model) z of the round before, NaN at the start
    rho: np.ndarray  # (R,)
    p: np.ndarray  # (R, K) client weights
    mean: np.ndarray  # (R, *model) mean of the x_k of the last round, weighted by p_k
    primal: np.ndarray  # (R,) root mean square of ‖x_k - z‖ over the clients of the last round, weighted by p_k
    residual: np.ndarray  # (R,) largest norm of the gradient that a client was left with
    moved: np.ndarray  # (R, *model) by how much the coordinates have moved since the start


@not_sent("moved")
class Message(NamedTuple):
    """Server to clients."""

    w: np.ndarray  # (R, *model) z
    rho: np.ndarray  # (R,)
    moved: np.ndarray  # (R, *model), of a `MovingTarget`: a matter of coordinates, not of communication


@not_sent("residual")
class Reply(NamedTuple):
    """Clients to server."""

    w: np.ndarray  # (R, m, *model) x_k
    residual: np.ndarray  # (R, m) ‖grad f_k(x_k) + y_k + rho (x_k - z)‖; a diagnostic


class Memory(NamedTuple):
    """What the clients keep."""

    x: np.ndarray  # (R, K, *model) x_k, in the coordinates of the start
    y: np.ndarray  # (R, K, *model) y_k

    def locate(self, trajectories: np.ndarray, clients: np.ndarray) -> tuple[Memory, tuple[np.ndarray, np.ndarray]]:
        """Return the memory and where clients (R, m) have their places in it: threads may write, room is there."""
        return self, (trajectories[:, None], clients)


@dataclass(frozen=True, kw_only=True)
class ProgressiveHedging(CheckedFields):
    """Consensus ADMM: clients solve tilted proximal problems, prices y_k drive their models to agreement.

    Converges to the minimiser of F for every rho > 0 and every convex f_k if clients solve exactly, also when clients
    are sampled. One model travels each way.

    Parameters
    ----------
    rho : float, array (R,) or None
        Penalty; an array gives every trajectory its own. None takes sqrt(mu L) with mu = min mu_k and L = max L_k of
        ``problem.constants()``.
    tol : float
        Clients solve exactly up to ‖x_k - argmin‖ <= tol (1 + ‖x_k‖), certified by ‖gradient‖/(rho + l2), or until
        rounding stops the progress.
    local_steps : int, optional
        Instead of solving exactly: gradient steps per round.
    step_size : float, array (R,) or `Decay`
        Of the gradient steps; required with local_steps. A `Decay` counts them, or rounds with ``by_round``.
    batch_size : int, optional
        Rows per gradient step, drawn without replacement; default all rows of the client. The limit is then random
        around the minimiser unless the step size decays.
    warm_start : bool
        Gradient steps begin at the client's last x_k; or, if False, at z.
    participation : int, float or scheme
        Clients per round, sampled uniformly without replacement. Round 0 is everybody's: all need z_0.

    Notes
    -----
    The trace gains ``primal_residual`` = (sum_k p_k ‖x_k - z‖^2)^{1/2} over the clients of the round (weights scaled to
    sum one), ``dual_residual`` = rho ‖z - z_before‖, and ``local_residual``, the largest norm of the gradient of a
    client's tilted objective at its x_k.

    With a penalty the server takes its proximal map, and clients' problems stay smooth; the rate is the same.

    With a `MovingTarget` the models z and x_k move with the coordinates, the prices y_k are gradients and stay.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if rho is None and mu = 0, or the loss has no second derivative to
        solve with.

    References
    ----------
    Rockafellar, Wets, "Scenarios and policy aggregation in optimization under uncertainty", Math. Oper. Res. 16 (1991).
    Boyd, Parikh, Chu, Peleato, Eckstein, "Distributed optimization and statistical learning via the alternating
    direction method of multipliers", Found. Trends Mach. Learn. 3 (2011), Section 7.1.
    Giselsson, Boyd, "Linear convergence and metric selection for Douglas-Rachford splitting and ADMM", IEEE Trans.
    Autom. Control 62 (2017) 532-544 (the rate; the weighted and the sampled form are derived here).
    Tran-Dinh, Pham, Phan, Nguyen, "FedDR: randomized Douglas-Rachford splitting algorithms for nonconvex federated
    composite optimization", NeurIPS 2021 (sampled clients).

    Examples
    --------
    >>> from fedconvex import Logistic, Problem, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import ProgressiveHedging
    >>> problem = Problem(logistic_federation(seed=1).federation, Logistic(), l2=0.1)
    >>> result = run(ProgressiveHedging(), problem, rounds=200, tol=1e-10)
    >>> result.status.name, bool(result.trace.primal_residual[-1] < 1e-3)
    ('CONVERGED', True)
    """

    command = "progressive-hedging"
    constant = ("p", "rho")  # of the state: no round changes it
    penalised = True
    lost = staticmethod(lambda t: REFUSE if t == 0 else LEAVE_OUT)  # all clients need z_0

    rho: PositivePerTrajectory | None = None
    tol: Positive = 1e-13
    local_steps: Count | None = None
    step_size: step_sizes.StepSize | None = None
    batch_size: Count | None = None
    warm_start: Flag = True
    participation: participation.DistinctParticipation = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        who = type(self).__name__
        for name in ("step_size", "batch_size"):
            if self.local_steps is None and getattr(self, name) is not None:
                raise bad(f"{who}.{name}", "come with local_steps", f"{name} alone", "add local_steps=")
        if self.local_steps is not None and self.step_size is None:
            cure = "1/(L + rho) is safe, with L the largest smoothness of a client"
            raise bad(f"{who}.step_size", "be given with local_steps", "None", cure)

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if a setting does not fit the problem and its R trajectories."""
        super().check_fit(problem, R)
        who = type(self).__name__
        if self.batch_size is not None:
            local_work.check_batches(who, np.full(problem.federation.K, self.batch_size), problem)
        if self.local_steps is None and not traits(problem.loss).curved:
            cure = "use SmoothedHinge(gamma), or local_steps= and step_size="
            raise bad(f"{who} with exact local solutions", "have a loss with curvature", f"{problem.loss!r}", cure)

    def words(self, problem: FederatedProblem) -> Words:
        who = participation.who_takes_part(self.participation, problem.federation.K)
        return steps_in_words(self, self.local_steps, self.batch_size, who)

    def init(self, problem: Problem, w: np.ndarray) -> State:
        R = len(w)
        rho = np.broadcast_to(np.array(self._best_penalty(problem) if self.rho is None else self.rho), R).copy()
        p, unknown, none = np.tile(problem.weights, (R, 1)), np.full(R, np.nan), np.full_like(w, np.nan)
        w = proximal_point(problem, w, 0.0)
        return State(w, w, none, rho, p, none, unknown, unknown, np.zeros_like(w))  # 1

    def statistics(self, problem: FederatedProblem) -> tuple[str, ...]:
        """Return what clients are asked for before round 1: mu_k and L_k, where rho is to be found."""
        return ("convexity", "smoothness") if self.rho is None else ()

    def memory(self, problem: Problem, R: int) -> Memory:
        """Return room for x_k and y_k of every client; round 0 sets them."""
        shape = (R, problem.federation.K, *problem.model_shape)
        return Memory(np.zeros(shape), np.zeros(shape))

    def participants(self, problem: Problem, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        return participation.participants(None if draws.round == 0 else self.participation, problem, draws)  # 2

    def broadcast(self, state: State) -> Message:
        return Message(state.w, state.rho, state.moved)  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Memory, draws: Draws) -> Any:
        z, moved = message.w[:, None], message.moved[:, None]
        rho = message.rho.reshape(-1, *[1] * message.w.ndim)
        memory, mine = memory.locate(draws.trajectory, clients)
        x, y = memory.x[mine] + moved, memory.y[mine]
        if draws.round == 0:
            x, y = np.broadcast_to(z, x.shape).copy(), np.zeros_like(y)  # 1
        y = y + rho * (x - z)  # 3
        if self.local_steps is None:
            x = proximal_points(problem, clients, z - y / rho, message.rho, x, self.tol)  # 4
        else:
            sizes = problem.federation.sizes[clients]
            B = sizes if self.batch_size is None else self.batch_size
            plan = local_work.plan_of(clients, self.local_steps, B, B)
            eta = step_sizes.step_sizes(self.step_size, draws.trajectory, draws.round, plan)
            start, tilt = x if self.warm_start else message.w, y - rho * z
            x, _ = descent.local_updates(
                problem, optimizers.ClientSGD(), start, clients, draws, eta, plan, False, False, tilt, message.rho
            )  # 5
        memory.x[mine], memory.y[mine] = x - moved, y
        flat = (clients.size, *problem.model_shape)
        left = row_losses.gradients_of(problem, x.reshape(flat), clients.reshape(-1, 1)).reshape(x.shape)
        left = (left + y + rho * (x - z)).reshape(*clients.shape, -1)
        return Reply(x, np.linalg.norm(left, axis=2)), memory  # 6

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        z = state.w[:, None]
        p = np.take_along_axis(state.p, clients, axis=1)
        new = state.v + averages.over_clients(p, reply.w - z)  # 7
        apart = (reply.w - new[:, None]).reshape(*clients.shape, -1)
        primal = np.sqrt(np.einsum("rm,rmj,rmj->r", weights, apart, apart))
        mean = averages.over_clients(weights, reply.w)
        residual = reply.residual.max(axis=1)
        return state._replace(w=new, v=new, before=state.w, mean=mean, primal=primal, residual=residual)

    def settle(self, problem: FederatedProblem, state: State) -> State:
        """Return the state after the server's proximal step; the same without a penalty."""
        if getattr(problem, "penalty", None) is None:
            return state
        z, R = proximal_point(problem, state.v, 1.0 / state.rho), len(state.w)  # 8
        far, near = (np.sum((state.mean - u).reshape(R, -1) ** 2, axis=1) for u in (state.v, z))
        return state._replace(w=z, primal=np.sqrt(np.maximum(state.primal**2 - far, 0.0) + near))

    def traits(self, problem: Problem) -> Traits:
        full = self.batch_size is None or bool((problem.federation.sizes == self.batch_size).all())
        drawn, by_round = () if full else ("batches",), step_sizes.decays(self)  # round 0 is left out of comparisons
        return participation.traits_of_sampling(self.participation, problem, *drawn, by_round=by_round)

    def translate(self, state: State, shift: np.ndarray) -> State:
        """Return the state in coordinates that moved: models move along, prices do not."""
        models = {name: getattr(state, name) + shift for name in ("w", "v", "before", "mean", "moved")}
        return state._replace(**models)

    def observe(self, problem: Problem, state: State) -> dict[str, np.ndarray]:
        """primal_residual, dual_residual and local_residual (R,); NaN at the start."""
        moved = np.linalg.norm((state.w - state.before).reshape(len(state.w), -1), axis=1)
        return {
            "primal_residual": state.primal,
            "dual_residual": state.rho * moved,
            "local_residual": state.residual,
        }

    @staticmethod
    def _best_penalty(problem: FederatedProblem) -> float:
        """sqrt(mu L), mu = min mu_k, L = max L_k."""
        mu, L = float(np.min(problem.statistic("convexity"))), float(np.max(problem.statistic("smoothness")))
        if not (mu > 0.0 and np.isfinite(L)):
            must, got = "have mu > 0 and finite L for every client, to take sqrt(mu L)", f"mu = {mu:g}, L = {L:g}"
            raise bad("ProgressiveHedging with rho=None", must, got, "give rho a number, or the problem l2 > 0")
        return float(np.sqrt(mu * L))
