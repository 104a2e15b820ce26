"""S-DANE and accelerated S-DANE (Jiang, Rodomanov, Stich, NeurIPS 2024), for any client weights p_k.

1. server: start at x = v, A = 0
2. stage: a > 0 with lam a^2 = A + a; y = (A x + a v)/(A + a)
3. first round: server sends y; client k answers grad f_k(y)
4. second round: server sends G = grad F(y)
5.   client k: x_k <- argmin f_k(x) - <grad f_k(y) - G, x> + (lam/2) ‖x - y‖^2, exactly or nearly
6.   client k answers x_k and, if nearly, g_k = grad f_k(x_k)
7. server: x+ = sum_k p_k x_k, g = sum_k p_k g_k, which is lam (y - x+) if solved exactly
8.   v+ = (v + a mu x+ - a g)/(1 + a mu)
9. with line search, third round: server sends x+
10.   client k answers q_k = <g_k - grad f_k(x+), y - x_k> + <grad f_k(x+), y - x+>
11. server: where sum_k p_k q_k < ‖g‖^2/(2 lam), keep x and v, lam <- 2 lam; else lam <- lam/2, and
12. x <- x+, v <- v+; accelerated: A <- (A + a)/(1 + a mu)

The paper's A and a are these times its B, which grows beyond any number. S-DANE keeps A = 0: y = v, a = 1/lam. Solved
exactly it is DANE, stage by stage: v+ = x+. What it gains is that clients need not solve exactly; that stages are fewer
is due to acceleration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from fedconvex._check import wrong_type
from fedconvex.constants import default_steps
from fedconvex.constants.default_steps import DefaultStep
from fedconvex.draws import Draws
from fedconvex.fields import AtLeastZero, CheckedFields, Flag, Inside, Positive
from fedconvex.kernels import averages, client_rows, row_losses
from fedconvex.methods.parts import automatic_steps, participation, step_sizes, tilted_points
from fedconvex.problems import FederatedProblem, Problem
from fedconvex.traits import REFUSE, Traits, not_sent
from fedconvex.words import Words

AutomaticConstant = Annotated[Any, step_sizes.StepRule(automatic=True, decays=False)]


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) x
    v: np.ndarray  # (R, *model)
    A: np.ndarray  # (R,)
    rho: np.ndarray  # (R,) lam
    gradient: np.ndarray  # (R, *model) G in the second round, g in the third
    trial: np.ndarray  # (R, *model) x+ in the third round
    turn: int  # the round of the stage that comes next: 0, 1 or 2
    mu: float


class Point(NamedTuple):
    """Server to clients, first round of a stage."""

    w: np.ndarray  # (R, *model) y


class Gradients(NamedTuple):
    """Clients to server, first round of a stage."""

    gradient: np.ndarray  # (R, K, *model) grad f_k(y)


@not_sent("w")
class Direction(NamedTuple):
    """Server to clients, second round of a stage."""

    w: np.ndarray  # (R, *model) y, which they have
    gradient: np.ndarray  # (R, *model) G
    rho: np.ndarray  # (R,) lam


class Solutions(NamedTuple):
    """Clients to server, second round of a stage."""

    w: np.ndarray  # (R, K, *model) x_k


class NearSolutions(NamedTuple):
    """Clients to server, second round of a stage, if not solved exactly."""

    w: np.ndarray  # (R, K, *model) x_k
    gradient: np.ndarray  # (R, K, *model) g_k


@not_sent("w")
class Trial(NamedTuple):
    """Server to clients, third round of a stage."""

    w: np.ndarray  # (R, *model) y, which they have
    mean: np.ndarray  # (R, *model) x+


class Agreement(NamedTuple):
    """Clients to server, third round of a stage."""

    agreement: np.ndarray  # (R, K) q_k


# ---------------------------------------------------------------- a stage


def _sized(a: np.ndarray, like: np.ndarray) -> np.ndarray:
    return a.reshape(-1, *[1] * (like.ndim - 1))


def _growth(state: State) -> tuple[np.ndarray, np.ndarray]:
    """Return a (R,) and y (R, *model)."""
    half = 0.5 / state.rho
    a = half + np.sqrt(half * half + state.A / state.rho)  # 2
    share = _sized(a / (state.A + a), state.w)
    return a, state.w + share * (state.v - state.w)  # 2


def _later(state: State, a: np.ndarray, new: np.ndarray, g: np.ndarray, grows: bool) -> State:
    """Return the state after a stage that is accepted."""
    along = _sized(a, new)
    v = (state.v + along * (state.mu * new - g)) / (1.0 + along * state.mu)  # 8
    return state._replace(w=new, v=v, A=(state.A + a) / (1.0 + a * state.mu) if grows else state.A)  # 12


def _init(method: Any, problem: FederatedProblem, w: np.ndarray) -> State:
    """Return the first state."""
    R, mu = len(w), float(getattr(problem, "strong_convexity", 0.0)) if method.mu is None else method.mu
    rho = 1.0 / step_sizes.round_step_sizes(method.step_size, np.arange(R), 0)
    return State(w, w, np.zeros(R), rho, np.zeros_like(w), np.zeros_like(w), 0, mu)  # 1


def _memory(method: Any, problem: Problem, R: int) -> client_rows.ClientRows:
    """Return room for x_k and g_k, from the second round of a stage to the third.

    Raises
    ------
    TypeError
        If there is a line search and the problem moves.
    """
    if method.line_search and hasattr(problem, "drift"):
        cure = "clients remember models in coordinates that move: give step_size without line_search"
        raise wrong_type(f"{type(method).__name__}: problem", "stay where it is", type(problem).__name__, cure)
    return client_rows.ClientRows.empty(2 * problem.size if method.line_search else 0)


def _broadcast(method: Any, state: State) -> Point | Direction | Trial:
    """Return the message of the stage's next round."""
    y = _growth(state)[1]
    if state.turn == 2:
        return Trial(y, state.trial)  # 9
    return Direction(y, state.gradient, state.rho) if state.turn else Point(y)  # 3, 4


def _local(method: Any, problem: Problem, message: Any, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
    """Return what clients answer to one of the three."""
    if isinstance(message, Point):
        return Gradients(row_losses.gradients_of(problem, message.w, clients)), memory  # 3
    y = message.w[:, None]
    if isinstance(message, Direction):
        c = row_losses.gradients_of(problem, message.w, clients) - message.gradient[:, None]
        x = tilted_points.points(problem, clients, message.w, c, message.rho, method.tol, method.accuracy)  # 5
        if method.accuracy is None and not method.line_search:
            return Solutions(x), memory  # 6
        flat = x.reshape(clients.size, *x.shape[2:]), clients.reshape(-1, 1)
        g = row_losses.gradients_of(problem, *flat).reshape(x.shape)
        if method.line_search:
            memory, mine = memory.locate(draws.trajectory, clients)
            memory.rows[mine] = np.concatenate([a.reshape(*clients.shape, -1) for a in (x, g)], axis=2)
        return (Solutions(x) if method.accuracy is None else NearSolutions(x, g)), memory  # 6
    memory, mine = memory.locate(draws.trajectory, clients)
    x, g = (problem.unflatten(a) for a in np.split(memory.rows[mine], 2, axis=2))
    there, mean = row_losses.gradients_of(problem, message.mean, clients), message.mean[:, None]
    q = (g - there) * (y - x) + there * (y - mean)
    return Agreement(q.reshape(*clients.shape, -1).sum(axis=2)), memory  # 10


def _aggregate(method: Any, state: State, clients: np.ndarray, weights: np.ndarray, reply: Any) -> State:
    """Return the state after one round of a stage."""
    if isinstance(reply, Gradients):
        return state._replace(gradient=averages.over_clients(weights, reply.gradient), turn=1)
    (a, y), none = _growth(state), np.zeros_like(state.w)
    if not isinstance(reply, Agreement):
        new = averages.over_clients(weights, reply.w)  # 7
        near = isinstance(reply, NearSolutions)
        g = averages.over_clients(weights, reply.gradient) if near else _sized(state.rho, y) * (y - new)  # 7
        if method.line_search:
            return state._replace(gradient=g, trial=new, turn=2)
        return _later(state, a, new, g, method.grows)._replace(gradient=none, turn=0)
    q, g = averages.over_clients(weights, reply.agreement[..., None])[:, 0], state.gradient
    yes = q >= 0.5 * np.sum(g.reshape(len(g), -1) ** 2, axis=1) / state.rho  # 11
    later = _later(state, a, state.trial, g, method.grows)
    w, v = (np.where(_sized(yes, none), new, old) for new, old in ((later.w, state.w), (later.v, state.v)))
    A, rho = np.where(yes, later.A, state.A), state.rho * np.where(yes, 0.5, 2.0)
    return State(w, v, A, rho, none, none, 0, state.mu)  # 11, 12


def _translate(method: Any, state: State, shift: np.ndarray) -> State:
    """Return the state in coordinates that moved: all points move along."""
    return state._replace(w=state.w + shift, v=state.v + shift, trial=state.trial + shift)


# ---------------------------------------------------------------- the methods


@dataclass(frozen=True, kw_only=True)
class Stabilised(CheckedFields):
    """What `SDANE` and `AcceleratedSDANE` are given, and their rounds.

    Parameters
    ----------
    step_size : float, array (R,) or "auto"
        1/lam; "auto" is that of the theorems in `SDANE`. With line search, of the first stage.
    accuracy : float, optional
        theta, of nearly solved problems; default exactly solved ones.
    line_search : bool
        Find lam: it is halved after a stage that the condition of line 11 accepts, else doubled and the stage repeated.
    mu : float, optional
        A strong convexity of all f_k; default the problem's l2, where it has no free coordinates, else 0.
    tol : float
        Clients solve exactly up to ‖x - argmin‖ <= tol (1 + ‖x‖), or until rounding stops the progress.
    """

    lost: ClassVar[str] = REFUSE  # G is the gradient of everybody's mean
    no_penalty: ClassVar[str] = "its clients' problems are smooth: ProgressiveHedging has a proximal step of the server"
    grows: ClassVar[bool] = False  # whether A does

    step_size: AutomaticConstant
    accuracy: Inside | None = None
    line_search: Flag = False
    mu: AtLeastZero | None = None
    tol: Positive = 1e-13

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if a setting does not fit the problem and its R trajectories."""
        super().check_fit(problem, R)
        tilted_points.check_fit(self, problem)

    def words(self, problem: FederatedProblem) -> Words:
        how = "exact solutions" if self.accuracy is None else f"solutions to {self.accuracy:g}"
        return Words(f"{type(self).__name__}, {how}{', with a line search' if self.line_search else ''}")

    def gradient_passes(self, problem: FederatedProblem) -> float:
        """Return the passes over all rows that a round takes on average, a local solution counted as ten."""
        return 13.0 / 3.0 if self.line_search else 6.0

    def traits(self, problem: Problem) -> Traits:
        return participation.traits_of_sampling(None, problem, by_round=False)

    def default_step(self, problem: Problem) -> DefaultStep:
        smooth = automatic_steps.smoothness(self, problem)
        return default_steps.similarity_step(problem, smooth, accuracy=self.accuracy)


@dataclass(frozen=True, kw_only=True)
class SDANE(Stabilised):
    """S-DANE: DANE with centres of its own, so that clients need to solve to a constant accuracy only.

    A stage is two rounds, three with line search. With exact solutions it is DANE, stage by stage.

    Parameters
    ----------
    step_size : float, array (R,) or "auto"
        1/lam; "auto" is that of the theorem below. With line search, of the first stage.
    accuracy : float, optional
        theta in (0, 1): clients take gradient steps until the gradient of their problem is at most
        theta lam ‖x_k - y‖, and send a second vector. Default: they solve exactly.
    line_search : bool
        Find lam: it is halved after a stage that line 11 accepts, else doubled, and the stage is done again.
    mu : float, optional
        A strong convexity of all f_k; default the problem's l2, where it has no free coordinates, else 0.
    tol : float
        Clients solve exactly up to ‖x - argmin‖ <= tol (1 + ‖x‖), or until rounding stops the progress.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if the loss has no curvature, or no smoothness with ``accuracy``.

    Notes
    -----
    Theorem (derived; the paper's Theorem 1 has lam = 2 delta for theta = 1/2). Let f_k be mu-strongly convex with the
    second-order dissimilarity delta (`fedconvex.constants.similarity`), and lam >= delta/(1 - theta^2), or
    lam >= delta/sqrt(2) with exact solutions. Then in every stage F(x+) - F* + ((lam + mu)/2) ‖v+ - w*‖^2
    <= (lam/2) ‖v - w*‖^2, hence F(x_T) - F* <= (lam/2) (1 + mu/lam)^{-(T - 1)} ‖w_0 - w*‖^2; with exact solutions F
    falls, and (mu/2) ‖w_0 - w*‖^2/((1 + mu/lam)^T - 1) is above F(x_T) - F*.

    Proof. v+ minimises sum_k p_k (<g_k, x> + (mu/2) ‖x - x_k‖^2) + (lam/2) ‖x - v‖^2, and f_k lies above its tangents:
    the claim holds if sum_k p_k (f_k(x_k) + <g_k, v - x_k>) - ‖g‖^2/(2 lam) >= F(x+), and by tangents of f_k at x+ if
    sum_k p_k q_k >= ‖g‖^2/(2 lam), the condition of line 11. With u_k = v - x_k, lam b_k the gradient that client k is
    left with, and s^2 = sum_k p_k ‖u_k - u‖^2, the condition follows from
    (lam/2) sum_k p_k (‖u_k‖^2 - ‖b_k‖^2) + (lam/2) sum_k p_k ‖u_k + b_k - u - b‖^2 >= delta ‖u‖ s, u and b the means.

    Line search needs no theorem: what it accepts has the inequality, with its lam.

    References
    ----------
    Jiang, Rodomanov, Stich, "Stabilized proximal-point methods for federated optimization", NeurIPS 2024: Algorithm 1,
    all clients, after the authors' program. Line 10, one number in the place of their gradients at x+, is derived here.

    Examples
    --------
    >>> from fedconvex import Logistic, Problem, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import DANE, SDANE
    >>> problem = Problem(logistic_federation(seed=1).federation, Logistic(), l2=0.001)
    >>> methods = SDANE(step_size=10.0), DANE(step_size=10.0), SDANE(step_size=10.0, accuracy=0.5)
    >>> [run(method, problem, rounds=400, tol=1e-4).rounds for method in methods]
    [38, 38, 36]
    """

    command = "sdane"
    benchmarks: ClassVar[Any] = {"sdane": {}}

    init, memory, broadcast, local, aggregate = _init, _memory, _broadcast, _local, _aggregate
    translate = _translate


@dataclass(frozen=True, kw_only=True)
class AcceleratedSDANE(Stabilised):
    """Accelerated S-DANE: about as many rounds as the root of delta/mu, delta the dissimilarity of clients' Hessians.

    Nesterov's gradient method needs the root of L/mu: where clients are alike, this one needs fewer.

    Parameters
    ----------
    step_size, accuracy, line_search, mu, tol
        As for `SDANE`.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if the loss has no curvature, or no smoothness with ``accuracy``.

    Notes
    -----
    Theorem (derived; the paper's Theorem 2 has lam = 2 delta for theta = 1/2). As for `SDANE`, with y in the place of v
    for which A (F(x) - F*) + (1/2) ‖v - w*‖^2 shrinks by 1/(1 + a mu) in every stage. Hence F(x_T) - F* is at most
    ‖w_0 - w*‖^2/(2 S_T), S_T = A_T times the product of all 1 + a mu, which is at least
    (1 + sqrt(mu/(4 lam)))^{2 (T - 1)}/lam and (T + 1)^2/(4 lam).

    With line search a and y change with lam, so a stage that is not accepted is repeated from its first round. The
    authors' program keeps the gradients of the former y there.

    References
    ----------
    Jiang, Rodomanov, Stich, "Stabilized proximal-point methods for federated optimization", NeurIPS 2024: Algorithm 2,
    all clients, after the authors' program.

    Examples
    --------
    >>> from fedconvex import Logistic, Problem, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import AcceleratedGradient, AcceleratedSDANE
    >>> problem = Problem(logistic_federation(seed=1).federation, Logistic(), l2=0.001)
    >>> methods = AcceleratedSDANE(step_size=1.0, line_search=True), AcceleratedGradient(step_size="auto")
    >>> [run(method, problem, rounds=400, tol=1e-8).rounds for method in methods]
    [45, 73]
    """

    command = "accelerated-sdane"
    benchmarks: ClassVar[Any] = {"accelerated-sdane": {}}
    grows = True

    init, memory, broadcast, local, aggregate = _init, _memory, _broadcast, _local, _aggregate
    translate = _translate
