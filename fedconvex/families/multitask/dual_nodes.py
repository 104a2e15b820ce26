"""What the dual methods of multi-task learning share: what nodes keep, do and answer, and what the server adds up.

A node takes coordinate steps on its subproblem from u = w_t with rho_t: draw one of its rows i,
delta <- argmin l*(-(alpha_i + delta)) + delta x_i'u + (rho_t c_t ‖x_i‖^2/2) delta^2, alpha_i <- alpha_i + delta,
u <- u + rho_t c_t delta x_i; then v_t <- v_t + (u - w_t)/rho_t = c_t X_t'alpha_t, which it answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedconvex._check import among, bad, equal_by_type, real, wrong_type
from fedconvex.draws import NODE_CLOCKS, Draws, stream, uniform
from fedconvex.families.multitask.coupling import mbar_diagonal, mbar_times, pencil_sigma, safe_sigma
from fedconvex.families.multitask.node_words import words_of_nodes
from fedconvex.fields import CheckedFields, Count, Flag, Inside, OneOrMore, Positive, positive
from fedconvex.kernels import jobs
from fedconvex.kernels.cache import inner_part, part, strict_part
from fedconvex.loss_traits import traits
from fedconvex.methods.parts.local_work import plan_of
from fedconvex.methods.parts.participation import DistinctParticipation, traits_of_sampling
from fedconvex.problems import Covariance, Measure, MultiTaskProblem
from fedconvex.solvers.kinked.dual import ROUNDING, add_image, conjugates, row_steps, task_gap
from fedconvex.traits import LEAVE_OUT, Traits, not_sent, sent_apart
from fedconvex.words import Words

REFRESH = 64  # rounds between recomputations of v from alpha
RULES = ("pencil", "eigenvalue", "rows", "tasks")


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, m, *model) W
    v: np.ndarray  # (R, m, p) V, p = d, or C d for C classes
    conjugate: np.ndarray  # (R, m) c_t sum of l*(-alpha_i)
    mbar: np.ndarray  # (R, m, m) Mbar, or (R, m, 1 + r) of `fedconvex.families.multitask.coupling`
    sigma: np.ndarray  # (R,) sigma'
    theta: np.ndarray  # (R, m) bounds of theta_t of the last round: 0 solved, 1 did nothing, NaN not asked for
    steps: np.ndarray  # (R, m) coordinate steps so far
    prior: np.ndarray  # (2,) lam and sigma2 of a learned Omega, else (0,)
    t: int


@sent_apart("w", "rho")
class Message(NamedTuple):
    """Server to nodes."""

    w: np.ndarray  # (R, m, *model) w_t
    rho: np.ndarray  # (R, m) rho_t


@not_sent("theta", "steps")
class Reply(NamedTuple):
    """Nodes to server."""

    v: np.ndarray  # (R, k, p) v_t
    conjugate: np.ndarray  # (R, k) c_t sum of l*(-alpha_i), for the certificate
    theta: np.ndarray  # (R, k) a diagnostic
    steps: np.ndarray  # (R, k) a diagnostic


class Memory(NamedTuple):
    """What the nodes keep."""

    alpha: np.ndarray  # (R, n), or (R, n, C): alpha_t over the rows of all nodes
    v: np.ndarray  # (R, m, p) v_t

    def locate(self, trajectories: np.ndarray, clients: np.ndarray) -> tuple[Memory, tuple[np.ndarray, np.ndarray]]:
        """Return the memory and where nodes (R, k) have their places in it: threads may write, room is there."""
        return self, (trajectories[:, None], clients)


@equal_by_type
class Clock(NamedTuple):
    """How much of its full work a node manages in a round: a share drawn uniformly from [low, high].

    Smith et al. (2017) simulate systems with high variability by [0.1, 1] and low by [0.9, 1] of the smallest n_t:
    ``MOCHA(local_steps=int(federation.sizes.min()), clock=Clock(0.1, 1.0))``.

    Parameters
    ----------
    low, high : float
        0 < low <= high <= 1.

    Examples
    --------
    >>> from fedconvex.methods import MOCHA, Clock
    >>> MOCHA(clock=Clock(0.1)).clock
    Clock(low=0.1, high=1.0)
    """

    low: float
    high: float = 1.0


class Work(NamedTuple):
    """What nodes are asked to do in a round."""

    steps: np.ndarray  # (m,) full steps, or steps between looks at the accuracy
    drop: np.ndarray  # (m,) probabilities of doing nothing
    low: float
    high: float
    most: int  # looks at the accuracy
    theta: float  # accuracy to reach; 0 if none is asked for
    certify: bool
    replacement: bool
    fresh: bool  # recompute v


def valid_clock(who: str, x: Any) -> Clock:
    """Return a valid `Clock`."""
    if not isinstance(x, Clock):
        raise wrong_type(who, "be a Clock", f"{x!r}", "pass Clock(low, high)")
    low = real(f"{who}: low", x.low, low=0.0, high=1.0, strict=True)
    real(f"{who}: high", x.high, low=low, high=1.0)
    return x


def valid_sigma(who: str, x: Any) -> Any:
    """Return a rule of sigma', or a positive number as a float."""
    if not isinstance(x, str):
        return positive(who, x)
    among(who, x, RULES)
    return x


Sigma = Annotated[Any, valid_sigma]


def probability(who: str, x: Any) -> float:
    """Return a number in [0, 1]."""
    return real(who, x, low=0.0, high=1.0)


@dataclass(frozen=True, kw_only=True)
class NodeWork(CheckedFields):
    """What nodes are asked to do in a round: the part of `MOCHA` that `JointMOCHA` has in common with it.

    Parameters
    ----------
    epochs, local_steps, theta, max_epochs, clock, drop, replacement, certify, participation
        As for `MOCHA`.

    Raises
    ------
    ValueError, TypeError
        If a setting is out of range, or two of those that exclude each other are given.

    Examples
    --------
    >>> from fedconvex.methods import NodeWork
    >>> NodeWork(epochs=2.0).local_steps is None
    True
    """

    epochs: Positive = 1.0
    local_steps: Count | None = None
    theta: Inside | None = None
    max_epochs: Count = 100
    clock: Annotated[Clock, valid_clock] | None = None
    drop: Annotated[Any, OneOrMore(probability, "probabilities", "node")] = 0.0
    replacement: Flag = False
    certify: Flag = False
    participation: DistinctParticipation = 1.0

    lost = LEAVE_OUT

    def __post_init__(self) -> None:
        super().__post_init__()
        who = type(self).__name__
        if self.local_steps is not None and self.epochs != 1.0:
            raise bad(who, "be given local_steps or epochs", "both")
        if self.theta is not None and self.local_steps is not None:
            raise bad(who, "be given theta or local_steps", "both", "an accuracy decides how many steps there are")
        if self.theta is not None and self.clock is not None:
            raise bad(who, "be given theta or clock", "both", "a clock cuts work short, an accuracy prolongs it")

    def asked(self, problem: MultiTaskProblem, round_: int) -> Work:
        """Return what is asked of the nodes in a round."""
        low, high = (1.0, 1.0) if self.clock is None else (float(self.clock.low), float(self.clock.high))
        return Work(
            full_steps(problem, self.epochs, self.local_steps),
            np.broadcast_to(np.asarray(self.drop, dtype=float), problem.federation.K).copy(),
            low,
            high,
            1 if self.theta is None else self.max_epochs,
            0.0 if self.theta is None else float(self.theta),
            self.certify or self.theta is not None,
            self.replacement,
            refreshes(round_),
        )

    def gradient_passes(self, problem: MultiTaskProblem) -> float:
        """Return the passes over all rows that a round takes, NaN where a clock decides."""
        return self.epochs if self.clock is None else float("nan")

    def words(self, problem: MultiTaskProblem) -> Words:
        """Return what nodes do in a round."""
        return words_of_nodes(self)

    def traits(self, problem: MultiTaskProblem) -> Traits:
        """Return who takes part and what is drawn: the order of rows, and what clocks and drops leave of the work."""
        late = ("stragglers",) if self.clock is not None or np.any(np.asarray(self.drop) > 0.0) else ()
        return traits_of_sampling(self.participation, problem, "rows", *late)


def refreshes(round_: int) -> bool:
    """Whether nodes recompute v from alpha in a round."""
    return round_ % REFRESH == REFRESH - 1


def full_steps(problem: MultiTaskProblem, epochs: float, local_steps: int | None) -> np.ndarray:
    """Return the full coordinate steps of every node, (m,)."""
    sizes = problem.federation.sizes
    if local_steps is not None:
        return np.full(sizes.shape, local_steps, dtype=np.int64)
    return np.maximum(np.rint(epochs * sizes), 1).astype(np.int64)


# ---------------------------------------------------------------- what methods on alpha are made of


def init(method: Any, problem: MultiTaskProblem, w: np.ndarray) -> State:
    """Return the state with alpha = 0, for a fixed Omega."""
    state = start(method, problem, w, method.sigma)
    if state.prior.size:
        who = type(method).__name__
        raise bad(f"{who}: problem", "have a fixed relationship", "one that is learned", "use MOCHA")
    return state


def check_one_score(method: Any, problem: Any) -> None:
    """Raise where rows have several scores, which the method's batches of steps are not made for."""
    if traits(problem.loss).several:
        who, cure = type(method).__name__, "use MOCHA or CoCoA, or a problem for each class against the rest"
        raise bad(f"{who}: problem", "have one score for each row", f"{problem.loss!r}", cure)


def start(method: Any, problem: MultiTaskProblem, w: np.ndarray, sigma: Any) -> State:
    """Return the state with alpha = 0, sigma' by its rule."""
    who = type(method).__name__
    if w.any():
        raise bad(f"{who}: start", "be zero, since models follow from dual variables", "other models")
    relation, R = problem.relation, len(w)
    if relation.learned and sigma == "pencil":
        cure = "it would have to see the data whenever Omega changes: use 'eigenvalue'"
        raise bad(f"{who}.sigma", "be free of the data for a learned Omega", "'pencil'", cure)
    prior = [relation.lam, relation.sigma2] if isinstance(relation, Covariance) and relation.learned else []
    conjugate = np.tile(np.array(problem.statistic("conjugate")), (R, 1))
    mbar, unknown, none = np.tile(problem.factored_mbar, (R, 1, 1)), np.full(w.shape[:2], np.nan), np.zeros(w.shape[:2])
    sigmas = np.full(R, sigma_of(problem, sigma))
    return State(w, np.zeros((*w.shape[:2], w[0, 0].size)), conjugate, mbar, sigmas, unknown, none, np.array(prior), 0)


def statistics(method: Any, problem: MultiTaskProblem) -> tuple[str, ...]:
    """Return what nodes are asked for before round 1: their conjugates, and their row spaces if sigma' needs them."""
    return ("conjugate", "row_space") if needs_row_spaces(problem, method.sigma) else ("conjugate",)


def needs_row_spaces(problem: MultiTaskProblem, sigma: Any) -> bool:
    """Whether sigma' is found from the row spaces: where they may differ and are small, or where that is asked for."""
    sizes, d = problem.federation.sizes, problem.federation.d
    small = np.minimum(sizes, d).sum() <= 1500 and (sizes < d).any()
    return sigma == "pencil" or bool(sigma is None and small and not problem.relation.learned)


def sigma_of(problem: MultiTaskProblem, sigma: Any) -> float:
    """Return sigma' by its rule."""
    if isinstance(sigma, float):
        return sigma
    mbar = problem.factored_mbar
    if needs_row_spaces(problem, sigma):
        return min(pencil_sigma(mbar, problem.statistic("row_space")), safe_sigma(mbar))
    return safe_sigma(mbar, sigma or "eigenvalue")


def memory(method: Any, problem: MultiTaskProblem, R: int) -> Memory:
    """Return alpha = 0 and v = 0."""
    return Memory(np.zeros((R, *problem.dual_shape)), np.zeros((R, problem.federation.K, problem.width)))


def broadcast(method: Any, state: State) -> Message:
    """Return w_t and rho_t = sigma' Mbar_tt."""
    return Message(state.w, state.sigma[:, None] * mbar_diagonal(state.mbar))


def empty_reply(problem: MultiTaskProblem, clients: np.ndarray) -> Reply:
    """Return a Reply to be written."""
    return Reply(np.empty((*clients.shape, problem.width)), *(np.empty(clients.shape) for _ in range(3)))


def take_steps(
    problem: MultiTaskProblem, message: Message, clients: np.ndarray, memory: Memory, draws: Draws, work: Work
) -> Reply:
    """Run the coordinate steps of the given nodes; memory is written in place."""
    nodes, empty = Nodes(problem.row_norms, problem.c, message.rho, *memory), empty_reply(problem, clients)
    n = problem.federation.sizes
    passes, block = (-(-work.steps // n), n) if work.most == 1 else (np.full(n.shape, work.most), work.steps)
    plan = plan_of(clients, passes[clients], block[clients], n[clients])
    rule = Ascent(nodes, work, draws, problem.federation.ids, passes, empty.conjugate, empty.theta, empty.steps)
    return run_nodes(jobs.ITSELF, rule, problem, message, clients, draws, plan, empty)


def run_nodes(
    kind: int, rule: Any, problem: MultiTaskProblem, message: Message, clients: np.ndarray, draws: Draws,
    plan: np.ndarray, reply: Reply,
) -> Reply:  # fmt: skip
    """Do the jobs of nodes (R, k) by a rule, by a plan of passes, rows and batch (R, k, 3); the reply is written."""
    start = message.w[np.arange(len(clients))[:, None], clients].reshape(reply.v.shape)
    none = np.zeros(1)
    jobs.run({kind: rule}, problem, 0.0, start, clients, draws, none.reshape(1, 1, 1), plan, False, out=reply.v)
    return reply


def aggregate(method: Any, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
    """Enter the answers, and form W = Mbar V."""
    mine = np.arange(len(clients))[:, None], clients
    v, conjugate, count = state.v.copy(), state.conjugate.copy(), state.steps.copy()
    theta = np.full_like(state.theta, np.nan if np.isnan(reply.theta).all() else 1.0)
    v[mine], conjugate[mine], theta[mine] = reply.v, reply.conjugate, reply.theta
    count[mine] += reply.steps
    w = mbar_times(state.mbar, v).reshape(state.w.shape)
    return state._replace(w=w, v=v, conjugate=conjugate, theta=theta, steps=count, t=state.t + 1)


def measure(method: Any, problem: MultiTaskProblem, state: State) -> Measure:
    """Return P(W) and the duality gap, the joint one for a learned Omega."""
    pairs = []
    for w, v, sums in zip(state.w, state.v, state.conjugate, strict=True):
        v = v.reshape(w.shape)
        penalty = None if state.prior.size else 0.5 * float(np.sum(w * v))
        pairs.append(problem.certificate(w, v, sums, penalty))
    value, gap = np.array(pairs).T
    return Measure(value, gap)


def observe(method: Any, problem: MultiTaskProblem, state: State) -> dict[str, np.ndarray]:
    """Return dual, theta, steps, blocking and share, each (R,)."""
    w = state.w.reshape(state.v.shape)
    half = 0.5 * np.einsum("rtj,rtj->r", w, state.v)
    parts = problem.client_values(state.w) + state.conjugate + np.einsum("rtj,rtj->rt", w, state.v)
    block = parts.argmax(axis=1)
    with np.errstate(invalid="ignore"):
        return {
            "dual": -(state.conjugate.sum(axis=1) + half),
            "theta": state.theta.max(axis=1),
            "steps": state.steps.sum(axis=1),
            "blocking": block,
            "share": np.clip(parts.max(axis=1) / parts.sum(axis=1), 0.0, 1.0),
        }


# ---------------------------------------------------------------- kernels


@strict_part
def budget(work, key, trajectory, round_, id_, t):  # type: ignore[no-untyped-def]
    """Return the steps of a node in a round: a share of its full ones, uniform on [low, high]; 0 if dropped."""
    if work.drop[t] == 0.0 and work.low == 1.0:
        return work.steps[t]
    state = stream(key, trajectory, round_, id_, NODE_CLOCKS)
    if uniform(state, 0) < work.drop[t]:
        return 0
    share = work.low + (work.high - work.low) * uniform(state, 1)
    return max(1, int(share * work.steps[t] + 0.5))


@strict_part
def accuracy(gap, noise, less, lost):  # type: ignore[no-untyped-def]
    """Bound theta = (G(delta) - min G)/(G(0) - min G) by the gap at delta and less = G(0) - G(delta), both rounded.

    0 where the gap is rounding: the subproblem is solved. 1 where it is not, and less is.
    """
    if gap <= noise:
        return 0.0
    gain = less - lost
    return gap / (gap + gain) if gain > 0.0 else 1.0


@strict_part
def begin(w, u, pool, n):  # type: ignore[no-untyped-def]
    """u = w, and rows in order."""
    for i in range(n):
        pool[i] = i
    for j in range(u.size):
        u[j] = w[j]


@inner_part
def ascend(loss, X, y, norms, job, c, w, rho, full, work, before, theta, done, alpha, u, room):  # type: ignore[no-untyped-def]
    """Take steps of one node in some passes; return a bound of theta (NaN if not asked for) and the steps so far.

    A pass is one over the rows, or the steps between two looks. Before them, the conjugates summed to ``before``.
    """
    lo, hi, last = job.lo, job.lo + job.n, work.most * full
    size = job.n if work.most == 1 else full
    for e in range(job.since, job.passes):
        if done == last or theta <= work.theta:
            break
        end = min((e + 1) * size, last)
        row_steps(
            loss, X, y, norms, lo, hi - lo, done, end, work.replacement, job.state, rho * c, alpha, u,
            room.pool, room.rows, room.c,
        )  # fmt: skip
        done = end
        if work.certify and (work.most > 1 or done == last):
            after, squares, sizes = conjugates(loss, y, lo, hi, alpha, room.c), 0.0, 0.0
            for j in range(u.size):
                squares += (u[j] - w[j]) * (u[j] + w[j])
                sizes += u[j] * u[j] + w[j] * w[j]
            gap, noise = task_gap(loss, X, y, norms, lo, hi, alpha, u, room.c)
            lost = ROUNDING * (c * (abs(before) + abs(after)) + sizes / (2.0 * rho))
            theta = accuracy(c * gap, c * noise, c * (before - after) - squares / (2.0 * rho), lost)
    return theta, done


@part
def answer(loss, X, lo, hi, c, alpha, v, fresh, out):  # type: ignore[no-untyped-def]
    """out = v, or where fresh v = c X'alpha first."""
    if fresh:
        for q in range(v.size):
            v[q] = 0.0
        add_image(loss, X, lo, hi, c, alpha, v)
    for q in range(v.size):
        out[q] = v[q]


class Nodes(NamedTuple):
    """What the rules of all dual methods know of the nodes, and what these keep."""

    norms: np.ndarray  # (n,) ‖x_i‖^2
    c: np.ndarray  # (m,) weights of a node's rows
    rho: np.ndarray  # (R, m)
    alpha: np.ndarray  # (trajectories, n), written
    v: np.ndarray  # (trajectories, m, d), written


class Ascent(NamedTuple):
    """The steps of a node, as many as it is asked for; its answer v_t stands in w afterwards."""

    nodes: Nodes
    work: Work
    draws: Draws
    ids: np.ndarray  # (m,)
    passes: np.ndarray  # (m,) after which a node answers
    conjugate: np.ndarray  # (R, k), written, like theta and done
    theta: np.ndarray
    done: np.ndarray

    def steps(self, loss, data, job, eta, w, path, room):  # type: ignore[no-untyped-def]
        """Take steps from u = w_t; after the last one, v_t <- v_t + (u - w_t)/rho_t."""
        r, j, t, lo, hi, u = job.r, job.j, job.k, job.lo, job.lo + job.n, room.g
        number, c, rho = self.draws.trajectory[r], self.nodes.c, self.nodes.rho
        v, a = self.nodes.v[number, t], self.nodes.alpha[number]
        full = budget(self.work, self.draws.key, number, self.draws.round, self.ids[t], t)
        if job.since == 0:
            self.theta[r, j], self.done[r, j] = (np.nan if full > 0 else 1.0), 0.0
            self.conjugate[r, j] = conjugates(loss, data.y, lo, hi, a, room.c) if self.work.certify else 0.0
            begin(w, u, room.pool, job.n)
        if full > 0:
            self.theta[r, j], self.done[r, j] = ascend(
                loss, data.X, data.y, self.nodes.norms, job, c[t], w, rho[r, t], full, self.work, self.conjugate[r, j],
                self.theta[r, j], np.int64(self.done[r, j]), a, u, room,
            )  # fmt: skip
        if job.passes < self.passes[t]:
            return
        if full > 0:
            for q in range(u.size):
                v[q] += (u[q] - w[q]) / rho[r, t]
        answer(loss, data.X, lo, hi, c[t], a, v, self.work.fresh, w)
        self.conjugate[r, j] = c[t] * conjugates(loss, data.y, lo, hi, a, room.c)
