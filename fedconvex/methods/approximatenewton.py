"""Newton's method with Hessians of single clients: GIANT (Wang et al. 2018) and DANE (Shamir, Srebro, Zhang 2014).

1. server: start at w
2. stage, first round: server sends w; client k answers grad f_k(w)
3. server: g = sum_k p_k grad f_k(w)
4. stage, second round: server sends g
5.   GIANT: client k answers d_k = -(hess f_k(w) + m I)^-1 g
6.   DANE: client k answers d_k = argmin_v f_k(v) - <grad f_k(w) - eta g, v> + (m/2) ‖v - w‖^2, less w
7. server: d = sum_k p_k d_k; of one leader, that of the leader alone
8. without line search: w <- w + d
9. with it, third round: server sends d; client k answers f_k(w + s d) for s = 0, 1, 1/2, 1/4, ...
10. server: w <- w + s d for the largest s with F(w + s d) <= F(w) + c s <g, d>

A stage sends 2 p floats up and as many down, and with a line search p down and a value for each s up. For squared loss
d = -eta T H (w - w*), where T = sum_k p_k (H_k + m I)^-1 and eta = 1 for GIANT: without line search the error contracts
by the spectral radius of I - eta T H, exactly. T is not (H + m I)^-1, and the radius may exceed 1 where clients differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.constants import default_steps
from fedconvex.constants.default_steps import DefaultStep
from fedconvex.draws import Draws
from fedconvex.fields import AtLeastZero, CheckedFields, Flag, Inside, Label, Positive
from fedconvex.kernels import averages, row_losses
from fedconvex.methods.parts import armijo, automatic_steps, newton_steps, participation, step_sizes, tilted_points
from fedconvex.problems import FederatedProblem, Problem
from fedconvex.traits import REFUSE, Traits, not_sent
from fedconvex.words import Words

AutomaticConstant = Annotated[Any, step_sizes.StepRule(automatic=True, decays=False)]


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model)
    gradient: np.ndarray  # (R, *model) g, from the second round of a stage on
    moved: np.ndarray  # (R, *model) d, in the third
    turn: int  # the round of the stage that comes next: 0, 1 or 2


class Point(NamedTuple):
    """Server to clients, first round of a stage."""

    w: np.ndarray  # (R, *model)


class Gradients(NamedTuple):
    """Clients to server, first round of a stage."""

    gradient: np.ndarray  # (R, K, *model) grad f_k(w)


@not_sent("w")
class Direction(NamedTuple):
    """Server to clients, second round of a stage."""

    w: np.ndarray  # (R, *model), which they have
    gradient: np.ndarray  # (R, *model) g


class Moves(NamedTuple):
    """Clients to server, second round of a stage."""

    moved: np.ndarray  # (R, m, *model) d_k


@not_sent("w")
class Trial(NamedTuple):
    """Server to clients, third round of a stage."""

    w: np.ndarray  # (R, *model), which they have
    moved: np.ndarray  # (R, *model) d


class Values(NamedTuple):
    """Clients to server, third round of a stage."""

    values: np.ndarray  # (R, K, 12) f_k(w + s d)


# ---------------------------------------------------------------- what both do


def _init(method: Any, problem: FederatedProblem, w: np.ndarray) -> State:
    """Return the first state."""
    return State(w, np.zeros_like(w), np.zeros_like(w), 0)  # 1


def _broadcast(method: Any, state: State) -> Point | Direction | Trial:
    """Return the message of the stage's next round."""
    if state.turn == 2:
        return Trial(state.w, state.moved)  # 9
    return Direction(state.w, state.gradient) if state.turn else Point(state.w)  # 2, 4


def _local(method: Any, problem: Problem, message: Any, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
    """Return gradients, moves or values of clients; moves are the method's own."""
    if isinstance(message, Point):
        return Gradients(row_losses.gradients_of(problem, message.w, clients)), memory  # 2
    if isinstance(message, Direction):
        return Moves(method.moves(problem, message.w, message.gradient, clients, draws)), memory  # 5, 6
    return Values(armijo.values(problem, message.w, message.moved, clients)), memory  # 9


def _aggregate(method: Any, state: State, clients: np.ndarray, weights: np.ndarray, reply: Any) -> State:
    """Return the state after one round of a stage."""
    if isinstance(reply, Gradients):
        return state._replace(gradient=averages.over_clients(weights, reply.gradient), turn=1)  # 3
    zero = np.zeros_like(state.w)
    if isinstance(reply, Moves):
        d = averages.over_clients(weights, reply.moved)  # 7
        return state._replace(moved=d, turn=2) if method.line_search else State(state.w + d, zero, zero, 0)  # 8
    s = armijo.fractions(averages.over_clients(weights, reply.values), state.gradient, state.moved)
    return State(state.w + s.reshape(-1, *[1] * (zero.ndim - 1)) * state.moved, zero, zero, 0)  # 10


# ---------------------------------------------------------------- the methods


@dataclass(frozen=True, kw_only=True)
class GIANT(CheckedFields):
    """Newton directions of the clients' own Hessians, averaged: Newton's method for 2 p floats a stage.

    A stage is three rounds, two without line search. Few stages suffice where clients are alike and have many rows.

    Parameters
    ----------
    line_search : bool
        Take the largest of 1, 1/2, ..., 1/1024 that lowers F enough; without it every step is whole, and the method may
        diverge where clients differ.
    damping : float
        m, added to every Hessian.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if the loss has no curvature.

    Notes
    -----
    Theorem (derived). Let Hessians of f_k, with m, lie between mu I and Lambda I, and F be mu-strongly convex and
    L_F-smooth. With line search, F - F* shrinks in every stage by 1 - (2 c mu/Lambda) min{1, (1 - c) mu/L_F} or better,
    as long as that minimum is at least 1/1024: the inverse of T lies between mu I and Lambda I too, so that
    ‖d‖^2 <= -<g, d>/mu, and Armijo's rule holds for s <= 2 (1 - c) mu/L_F. For squared loss the module's docstring has
    the exact rate of whole steps.

    References
    ----------
    Wang, Roosta-Khorasani, Xu, Mahoney, "GIANT: globally improved approximate Newton method for distributed
    optimization", NeurIPS 2018, Algorithm 1, with exact directions and weights p_k.

    Examples
    --------
    >>> from fedconvex import Logistic, Problem, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import GIANT
    >>> problem = Problem(logistic_federation(seed=1).federation, Logistic(), l2=0.1)
    >>> run(GIANT(), problem, rounds=100, tol=1e-10).status.name
    'CONVERGED'
    """

    command = "giant"
    lost = REFUSE  # g is the gradient of everybody's mean
    no_penalty = "its steps follow gradients"
    tells_hessians = True  # answers hold inverses of the clients' Hessians, times a vector

    line_search: Flag = True
    damping: AtLeastZero = 0.0

    init, broadcast, local, aggregate = _init, _broadcast, _local, _aggregate

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if the loss has no curvature."""
        super().check_fit(problem, R)
        tilted_points.needs_curvature(self, problem)

    def words(self, problem: FederatedProblem) -> Words:
        return Words(f"GIANT, {'with a line search' if self.line_search else 'whole steps'}")

    def moves(self, problem: Problem, w: np.ndarray, g: np.ndarray, clients: np.ndarray, draws: Draws) -> np.ndarray:
        """Return d_k (R, m, *model) of line 5."""
        H, flat = problem.client_derivatives(w, clients).hessians, g.reshape(len(g), -1)
        ridge, d = self.damping * np.eye(flat.shape[1]), np.empty((*clients.shape, flat.shape[1]))
        for r, j in np.ndindex(clients.shape):
            d[r, j] = newton_steps.newton_direction(H[r, j] + ridge, flat[r])[0]  # 5
        return d.reshape(*clients.shape, *w.shape[1:])

    def gradient_passes(self, problem: Any) -> float:
        """Return the passes over all rows that a round takes on average; a Hessian takes about p/2 of them."""
        Hessian = 0.5 * int(np.prod(problem.model_shape))
        return (1.0 + Hessian + len(armijo.FRACTIONS)) / 3.0 if self.line_search else (1.0 + Hessian) / 2.0

    def traits(self, problem: Problem) -> Traits:
        return participation.traits_of_sampling(None, problem, by_round=False)


@dataclass(frozen=True, kw_only=True)
class DANE(CheckedFields):
    """Clients minimise their own objectives, with the gradient of F in the place of theirs: fast where they are alike.

    A stage is two rounds, three with line search. With a leader it is one-leader DANE, which is SPAG without
    acceleration: only the leader solves, and it alone must be like F.

    Parameters
    ----------
    step_size : float, array (R,) or "auto"
        1/m, of the proximal term; "auto" is that of a theorem below, with the dissimilarity of the Hessians.
    eta : float
        Weight of the gradient of F.
    accuracy : float, optional
        theta in (0, 1): clients take gradient steps until the gradient of their problem is at most theta m ‖v - w‖. No
        theorem covers it: `SDANE` has one. Default: they solve exactly.
    leader : label of a client, or int, optional
        The one client that solves; a number that is no label counts clients in the order of their keys, from 0.
    line_search : bool
        Take the largest of 1, 1/2, ..., 1/1024 that lowers F enough.
    tol : float
        Clients solve up to ‖v - argmin‖ <= tol (1 + ‖v‖), or until rounding stops the progress.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if the loss has no curvature, or nobody is called like the leader.

    Notes
    -----
    Theorem (derived in `SDANE`, whose exact stages these are). Let f_k be mu-strongly convex, the f_k
    have the second-order dissimilarity delta (`fedconvex.constants.similarity`), eta = 1 and m >= delta/sqrt 2.
    Then F(w_T) - F* <= (mu/2) ‖w_0 - w*‖^2/((1 + mu/m)^T - 1) after T stages.

    Theorem for a leader (derived; Hendrikx et al. 2020 for the rate). Let m >= ‖hess f_1 - hess F‖ everywhere, eta = 1.
    Then F(w_T) - F* <= (1 - 1/k)^T D(w*, w_0) for T >= 1, with k = 1 + 2 m/mu and D the Bregman divergence of
    f_1 + (m/2) ‖.‖^2: F has relative smoothness 1 and relative strong convexity mu/(mu + 2 m).

    Both "auto" are exact for squared loss. For others they are bounds that do not see similarity: tune. Where
    m = 0, squared loss makes it `GIANT` without line search, which diverges on clients that differ enough.

    References
    ----------
    Shamir, Srebro, Zhang, "Communication-efficient distributed optimization using an approximate Newton-type method",
    ICML 2014, Figure 1. Hendrikx, Xiao, Bubeck, Bach, Massoulie, "Statistically preconditioned accelerated gradient
    method for distributed optimization", ICML 2020.

    Examples
    --------
    >>> from fedconvex import Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.methods import DANE
    >>> problem = Problem(linear_federation(seed=1).federation, Squared(), l2=0.1)
    >>> run(DANE(step_size="auto"), problem, rounds=400, tol=1e-10).status.name
    'CONVERGED'
    """

    command = "dane"
    benchmarks: ClassVar[Any] = {"dane": {}}
    lost = REFUSE  # g is the gradient of everybody's mean
    no_penalty = "its clients' problems are smooth: ProgressiveHedging has a proximal step of the server"

    step_size: AutomaticConstant
    eta: Positive = 1.0
    accuracy: Inside | None = None
    leader: Label | None = None
    line_search: Flag = False
    tol: Positive = 1e-13

    init, broadcast, local, aggregate = _init, _broadcast, _local, _aggregate

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if a setting does not fit the problem and its R trajectories."""
        super().check_fit(problem, R)
        tilted_points.check_fit(self, problem)
        if self.leader is not None:
            self._leader(problem)

    def _leader(self, problem: FederatedProblem) -> int:
        """Return the number of the leader, or raise if nobody is called like this."""
        fed = problem.federation
        found = np.flatnonzero([str(name) == str(self.leader) for name in fed.labels])
        if found.size == 1:
            return int(found[0])
        if type(self.leader) is int and 0 <= self.leader < fed.K:
            return int(fed.by_key[self.leader])
        some = ", ".join(str(name) for name in fed.labels[:5])
        raise bad("DANE.leader", "be the label of a client, or a number below K", f"{self.leader!r}", f"some: {some}")

    def words(self, problem: FederatedProblem) -> Words:
        who = "" if self.leader is None else f", {self.leader} solves alone"
        return Words(f"DANE{who}, {'with a line search' if self.line_search else 'whole steps'}")

    def participants(self, problem: FederatedProblem, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        """Return everybody, or the leader in the second round of a stage."""
        if self.leader is None or draws.round % (3 if self.line_search else 2) != 1:
            return participation.participants(None, problem, draws)
        R = draws.trajectory.size
        return np.full((R, 1), self._leader(problem)), np.ones((R, 1))

    def moves(self, problem: Problem, w: np.ndarray, g: np.ndarray, clients: np.ndarray, draws: Draws) -> np.ndarray:
        """Return d_k (R, m, *model) of line 6."""
        eta = step_sizes.round_step_sizes(self.step_size, draws.trajectory, draws.round)
        c = row_losses.gradients_of(problem, w, clients) - self.eta * g[:, None]
        return tilted_points.points(problem, clients, w, c, 1.0 / eta, self.tol, self.accuracy) - w[:, None]  # 6

    def gradient_passes(self, problem: FederatedProblem) -> float:
        """Return the passes over all rows that a round takes on average, a local solution counted as ten."""
        return 12.0 / 3.0 + len(armijo.FRACTIONS) / 3.0 if self.line_search else 12.0 / 2.0

    def traits(self, problem: Problem) -> Traits:
        return participation.traits_of_sampling(None, problem, by_round=False)

    def default_step(self, problem: Problem) -> DefaultStep:
        smooth = automatic_steps.smoothness(self, problem)
        if self.accuracy is not None:
            raise automatic_steps.no_theorem(self, "clients that solve nearly", "take SDANE, or give a step size")
        return default_steps.similarity_step(problem, smooth, None if self.leader is None else self._leader(problem))
