"""VIRTUAL, variational federated multi-task learning (Corinzia, Beuret, Buhmann, arXiv:1906.06268, Algorithm 1).

A Gaussian is known by its precision Lam and its shift eta = Lam mean: products add them, quotients subtract them. The
posterior of the shared theta is s = p prod_k t_k, p the prior and t_k client k's site: the paper's site is p^{1/K} t_k,
and its share of the prior cancels in every line. Private parameters w_k, where the problem has them, have c_k.

1. server: s <- p; client k: t_k <- 1, c_k <- p(w_k)
2. each round: server samples clients S and sends them (Lam, eta) of s
3.   client k in S: cavity s/t_k, what all others and the prior say
4.   (q_k, c_k) <- argmin KL(q_k || s/t_k) + KL(c_k || p(w_k)) - E log p(D_k | theta, w_k), up to rounding
5.   or: natural gradient steps on that, from s and the last c_k; of E epochs a step for each batch of B rows, in a new
     random order, with likelihoods that count n_k/B times
6.   Delta_k <- rho (q_k/s) in natural parameters: t_k <- t_k Delta_k goes a share rho of the way to q_k/(s/t_k)
7.   client k answers Delta_k; c_k never leaves it
8. server: s <- s prod_{k in S} Delta_k
9. server, with rho="auto": linear models have the rho of the least spectral radius; else rho is halved in every round
   by whose start the certificate of s grew, for which clients answer their parts of its gradient too

Fixed points. Where nothing moves, s and the c_k minimise the free energy of the whole network, whatever rho and
whoever is sampled: in every client's problem the site takes the place of the gradient of the others' terms. At the
minimum one set of sites stands still, t_k = exp of the linear and quadratic terms of E log p(D_k | .).

Rounds. Not all of them converge. With rho = 1 and everybody they diverge where features are correlated and q is
diagonal, and where private parameters explain much; `GaussianPosteriorProblem.damping` knows for linear models.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedconvex._check import bad, real
from fedconvex.draws import BATCHES, Draws
from fedconvex.fields import CheckedFields, Count, OneOrMore
from fedconvex.kernels.pieces import pause
from fedconvex.loss_traits import traits
from fedconvex.methods.parts import participation
from fedconvex.problems import FederatedProblem, Measure
from fedconvex.problems.protocol import POSTERIOR
from fedconvex.solvers import damping
from fedconvex.solvers.posteriors.free_energy import Fit, Rows, gradient, natural_step
from fedconvex.solvers.posteriors.gaussians import Gaussian, natural, natural_each, pack, packed_size, unpack
from fedconvex.solvers.posteriors.many_energies import minimise_each
from fedconvex.traits import LEAVE_OUT, REFUSE, Traits
from fedconvex.words import Words, counted

_SITES = 600  # K d up to which the eigenvalues of the rounds are computed


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, d) mean of s
    precision: np.ndarray  # (R, P) Lam, packed: a diagonal, or an upper triangle
    shift: np.ndarray  # (R, d) eta
    rho: np.ndarray  # (R, 1) where clients must be told; else (R, 0)
    gap: np.ndarray  # (R,) certificate of the s that was sent last, NaN where it is not asked for
    prior: np.ndarray  # (R, P + d) natural parameters of p
    tau: np.ndarray  # (R,) least eigenvalue of the priors' precisions
    adapting: np.ndarray  # (R,) 1 where rho follows the certificate


class Message(NamedTuple):
    """Server to clients."""

    precision: np.ndarray  # (R, P) Lam
    shift: np.ndarray  # (R, d) eta
    rho: np.ndarray  # (R, 1), or (R, 0)
    asks: np.ndarray  # (R, 0), or (R, 1): parts of the gradient are asked for


class Reply(NamedTuple):
    """Clients to server."""

    precision: np.ndarray  # (R, m, P) of Delta_k
    shift: np.ndarray  # (R, m, d)
    slope: np.ndarray  # (R, m, d), or (R, m, 0): client k's part of the gradient of the free energy at s
    curvature: np.ndarray  # (R, m, P), or (R, m, 0)


class Memory(NamedTuple):
    """What the clients keep."""

    precision: np.ndarray  # (R, K, P) of t_k
    shift: np.ndarray  # (R, K, d)
    c_precision: np.ndarray  # (R, K, P) of c_k; (R, K, 0) without private parameters
    c_mean: np.ndarray  # (R, K, d), or (R, K, 0)

    def locate(self, trajectories: np.ndarray, clients: np.ndarray) -> tuple[Memory, tuple[np.ndarray, np.ndarray]]:
        """Return the memory and where clients (R, m) have their places in it: threads may write, room is there."""
        return self, (trajectories[:, None], clients)


def _damping(who: str, x: Any) -> Any:
    """Return a number in (0, 2), or "auto"."""
    if isinstance(x, str):
        if x != "auto":
            raise bad(who, "be a number in (0, 2), or 'auto'", x)
        return x
    if not 0.0 < real(who, x) < 2.0:
        raise bad(who, "lie strictly between 0 and 2", x)
    return float(x)


def _share(who: str, x: Any) -> float:
    return real(who, x, low=0.0, high=1.0, strict=True)


@dataclass(frozen=True, kw_only=True)
class VIRTUAL(CheckedFields):
    """Variational inference by Gaussian sites: every client refines its own, the server multiplies them.

    Messages hold 2d numbers each way for a diagonal q, d + d(d+1)/2 for a full one.

    Parameters
    ----------
    rho : float, array (R,) or "auto"
        Damping of the sites, in (0, 2); an array gives every trajectory its own. "auto": for linear models with
        K d <= 600 the rho with the least spectral radius, from the curvatures that clients answer once; otherwise it
        starts at 1 and is halved whenever the certificate grows, for which clients send twice as much.
    local_steps : int, optional
        Natural gradient steps on a client's problem, each on all rows, or on a fresh batch; default its minimiser.
    epochs : int, optional
        E; instead of local_steps: passes over the client's rows in batches, in a new random order each.
    batch_size : int, optional
        B, rows of a step; clients with fewer rows take all of theirs. Default all rows.
    step_size : float
        Length of these steps, in (0, 1]. With batches s settles around the optimum, the nearer the shorter they are.
    participation : int or float, optional
        A number of clients or a share of them, drawn uniformly without replacement; default all.

    Notes
    -----
    The objective is measured with the best c_k for the present s. One client a round converges on linear models with a
    full covariance, and every step lowers the free energy of s and the c_k once everybody was asked. The trace gains
    ``damping``.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if the problem is no `GaussianPosteriorProblem`, if the start is
        not zero (runs start at the prior), or if rho="auto" must follow a certificate that sampled clients do not know.

    References
    ----------
    Corinzia, Beuret, Buhmann, "Variational federated multi-task learning", arXiv:1906.06268. Their released code
    damps twice, and so ends at a tempered posterior; see docs/virtual.md.

    Examples
    --------
    >>> from fedconvex import Logistic, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import VIRTUAL
    >>> from fedconvex.problems import GaussianPosteriorProblem
    >>> problem = GaussianPosteriorProblem(logistic_federation(n_clients=3, seed=1).federation, Logistic())
    >>> result = run(VIRTUAL(), problem, rounds=50, tol=1e-10)
    >>> result.status.name, bool(abs(result.w - problem.solve().w).max() < 1e-5)
    ('CONVERGED', True)
    """

    learns = (POSTERIOR,)
    constant = ("prior", "tau", "adapting")  # of the state: no round changes them
    damped_by = "rho"

    @property
    def lost(self) -> str:
        """What a client that does not answer means: a rho that adapts needs the whole certificate."""
        return REFUSE if isinstance(self.rho, str) else LEAVE_OUT

    rho: Annotated[Any, OneOrMore(_damping, "numbers in (0, 2)")] = "auto"
    local_steps: Count | None = None
    epochs: Count | None = None
    batch_size: Count | None = None
    step_size: Annotated[float, _share] = 1.0
    participation: participation.DistinctParticipation = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local_steps is not None and self.epochs is not None:
            raise bad("VIRTUAL", "be given local_steps or epochs", "both")
        if self.batch_size is not None and self.local_steps is self.epochs is None:
            raise bad("VIRTUAL.batch_size", "come with local_steps or epochs", "neither", "minimisers take all rows")

    def statistics(self, problem: Any) -> tuple[str, ...]:
        """Return what clients are asked before round 1: curvatures, where rho comes from a spectral radius."""
        return ("curvature",) if self._spectral(problem) else ()

    def check_fit(self, problem: Any, R: int) -> None:
        """Raise if a setting does not fit the problem, or its R trajectories."""
        super().check_fit(problem, R)
        everybody = participation.sampling_of(self.participation, problem)[0] == "everyone"
        if self.rho == "auto" and not self._spectral(problem) and not everybody:
            why = "be a number where clients are sampled, who do not know the whole certificate"
            raise bad("VIRTUAL.rho", why, "'auto'", "1/K is careful")
        if self.rho == "auto" and not self._spectral(problem) and self._some(problem.federation.sizes).any():
            why = "be a number where rows are drawn: their noise makes the certificate grow too"
            raise bad("VIRTUAL.rho", why, "'auto'", "1/K is careful")

    def _some(self, sizes: np.ndarray) -> np.ndarray:
        """Whether steps of clients with so many rows are on some of them, (K,)."""
        return sizes > (sizes.max() if self.batch_size is None else self.batch_size)

    def _spectral(self, problem: Any) -> bool:
        fed, linear = problem.federation, bool(traits(problem.loss).quadratic)
        return self.rho == "auto" and linear and fed.K * fed.d <= _SITES

    def words(self, problem: Any) -> Words:
        who = participation.who_takes_part(self.participation, problem.federation.K)
        rho = self.rho if isinstance(self.rho, str) else f"{self.rho:.4g}"
        short, full = [f"rho {rho}"], [f"damping {self.rho if isinstance(self.rho, str) else f'{self.rho:g}'}"]
        steps, kind, letter = self.local_steps, "natural gradient step", "tau"
        if self.epochs is not None:
            steps, kind, letter = self.epochs, "epoch", "E"
        if steps is not None:
            batch = "" if self.batch_size is None else f" on {self.batch_size} rows"
            short += [f"{letter} {steps}", *([f"B {self.batch_size}"] if batch else [])]
            full.append(f"{counted(steps, kind)} of {'steps of ' * (letter == 'E')}{self.step_size:g}{batch}")
        full += [f"{who} take part"] if who else []
        return Words(f"VIRTUAL, {', '.join(full)}", (*short, *([who] if who else [])))

    def init(self, problem: Any, w: np.ndarray) -> State:
        if w.any():
            raise bad("VIRTUAL: start", "be zero, since runs start at the prior", "another", "set prior_mean")
        R, p = len(w), problem.prior
        each = lambda v: np.tile(np.asarray(v, dtype=float), (R, 1))  # noqa: E731
        rho = np.zeros((R, 0))
        if self._spectral(problem):
            rho = np.full((R, 1), self._from_curvatures(problem))  # 9
        elif self.rho == "auto":
            rho = np.ones((R, 1))
        asks = np.full(R, float(self.rho == "auto" and not self._spectral(problem)))
        prior = np.concatenate([pack(p.precision), p.shift])
        tau, unknown = np.full(R, problem.tau), np.full(R, np.nan)
        return State(each(p.mean), each(pack(p.precision)), each(p.shift), rho, unknown, each(prior), tau, asks)  # 1

    @staticmethod
    def _from_curvatures(problem: Any) -> float:
        """Return the rho in (0, 1] with the least spectral radius, from what the clients have answered."""
        A = [unpack(v, problem.federation.d, False) for v in problem.statistic("curvature")]
        private = None if problem.private is None else problem.private.precision
        try:
            T = damping.site_map(A, problem.prior.precision, private, problem.diagonal)
            return damping.best_damping(np.linalg.eigvals(np.eye(len(T)) - T))
        except np.linalg.LinAlgError:
            steep = int(np.argmax([np.abs(a).max() for a in A]))
            got = f"entries up to {np.abs(A[steep]).max():.3g} of client {problem.federation.labels[steep]}"
            raise bad("VIRTUAL: rho", "be given where curvatures make a singular matrix", got, "set rho") from None

    def memory(self, problem: Any, R: int) -> Memory:
        """Return the sites t_k = 1 and the priors of the w_k."""
        K, d = problem.federation.K, problem.federation.d
        P, c = packed_size(d, problem.diagonal), problem.private
        own = (np.empty(0), np.empty(0)) if c is None else (pack(c.precision), c.mean)
        return Memory(np.zeros((R, K, P)), np.zeros((R, K, d)), *(np.tile(v, (R, K, 1)) for v in own))  # 1

    def broadcast(self, state: State) -> Message:
        asks = np.ones((len(state.w), int(state.adapting[0])))
        return Message(state.precision, state.shift, state.rho, asks)  # 2

    def local(self, problem: Any, message: Message, clients: np.ndarray, memory: Memory, draws: Draws) -> Any:
        (R, m), P, d = clients.shape, message.precision.shape[1], message.shift.shape[1]
        memory, (rows, columns) = memory.locate(draws.trajectory, clients)
        asks = message.asks.shape[1]
        reply = Reply(*(np.full((R, m, size), np.nan) for size in (P, d, d * asks, P * asks)))
        for i in range(R):
            rho = message.rho[i, 0] if message.rho.size else self._given(int(draws.trajectory[i]))
            s = unpack(message.precision[i], d, problem.diagonal), message.shift[i]
            mine = draws._replace(trajectory=draws.trajectory[i : i + 1])
            changes = self._changes(problem, clients[i], s, memory, (rows[i, 0], columns[i]), mine)
            there = [j for j, change in enumerate(changes) if change is not None]  # not what has diverged: that is NaN
            if asks:
                parts = self._parts(problem, s, clients[i, there])
                there = [j for j, part in zip(there, parts, strict=True) if part is not None]
                for j, part in zip(there, filter(None, parts), strict=True):
                    reply.slope[i, j], reply.curvature[i, j] = part
            for j in there:
                change = changes[j]
                assert change is not None
                at = rows[i, 0], columns[i, j]
                reply.precision[i, j], reply.shift[i, j] = rho * pack(change[0]), rho * change[1]  # 6
                memory.precision[at] += reply.precision[i, j]
                memory.shift[at] += reply.shift[i, j]
        return reply, memory  # 7

    def _parts(self, problem: Any, s: Any, clients: np.ndarray) -> list[tuple[np.ndarray, np.ndarray] | None]:
        """Return every client's part of the gradient, None of what diverged."""
        try:
            return list(zip(*problem.gradient_parts(natural(*s), clients), strict=True)) if clients.size else []
        except (np.linalg.LinAlgError, ValueError):  # of one of them, which is found by asking for each alone
            each = (clients[j : j + 1] for j in range(clients.size))
            return [None] if clients.size == 1 else [self._parts(problem, s, one)[0] for one in each]

    def _batches(self, problem: Any, k: int, draws: Draws) -> Iterator[Rows]:
        """Yield the rows of client k's natural gradient steps, drawn ones weighted so that sums are unbiased."""
        rows, n, passes = problem.rows[k], int(problem.federation.sizes[k]), self.epochs or self.local_steps
        B = n if self.batch_size is None else min(self.batch_size, n)
        assert passes is not None
        if B == n:
            yield from [rows] * passes
            return
        u = draws.uniform(passes * n, int(problem.federation.ids[k]), BATCHES)[0]
        for order in np.argsort(u.reshape(passes, n), axis=1, kind="stable"):
            for first in range(0, n if self.epochs else B, B):
                b = order[first : first + B]
                yield Rows(rows.X[b], rows.y[b], rows.weight[b] * (n / b.size))

    def _changes(
        self, problem: Any, clients: np.ndarray, s: Any, memory: Memory, places: Any, draws: Draws
    ) -> list[tuple[np.ndarray, np.ndarray] | None]:
        """Return q_k/s of every client in natural parameters, None of what diverged, and keep the c_k."""
        (q,), out = natural_each(s[0][None], s[1][None]), list[Any]([None] * len(clients))
        if q is None:
            return out
        starts = self._starts(problem, q, memory, places)
        cavities = self._cavities(problem, s, memory, places)  # 3
        mine = {j: cavity for j, cavity in enumerate(cavities) if cavity is not None}
        if self.local_steps is self.epochs is None:
            rows, begin = [problem.rows[k] for k in clients[list(mine)]], [starts[j] for j in mine]
            found = minimise_each(list(mine.values()), problem.private, rows, problem.expected, begin)  # 4
            ends = [(fit.q, fit.c) if isinstance(fit, Fit) else None for fit in found]
        else:
            ends = [self._stepped(problem, int(clients[j]), cavity, starts[j], draws) for j, cavity in mine.items()]
        for j, end in zip(mine, ends, strict=True):
            if end is not None:
                q, c = end
                out[j] = q.precision - s[0], q.shift - s[1]
                for own in c:
                    at = places[0], places[1][j]
                    memory.c_mean[at], memory.c_precision[at] = own.mean, pack(own.precision)
        return out

    @staticmethod
    def _cavities(problem: Any, s: Any, memory: Memory, places: Any) -> list[Gaussian | None]:
        """Return s/t_k of every client, None where there is none."""
        d, diagonal = problem.federation.d, problem.diagonal
        precisions, shifts = s[0] - unpack(memory.precision[places], d, diagonal), s[1] - memory.shift[places]
        return natural_each(precisions, shifts)

    @staticmethod
    def _starts(problem: Any, q: Gaussian, memory: Memory, places: Any) -> list[tuple[Gaussian, tuple[Gaussian, ...]]]:
        """Return s and the last c_k of every client."""
        if problem.private is None:
            return [(q, ())] * len(places[1])
        precisions = unpack(memory.c_precision[places], problem.federation.d, problem.diagonal)
        return [(q, (Gaussian(m, P),)) for m, P in zip(memory.c_mean[places], precisions, strict=True)]

    def _stepped(
        self, problem: Any, k: int, cavity: Gaussian, start: tuple[Gaussian, tuple[Gaussian, ...]], draws: Draws
    ) -> tuple[Gaussian, tuple[Gaussian, ...]] | None:
        """Return client k's q and c after its natural gradient steps, None of what diverged."""
        q, c = start[0], start[1][0] if start[1] else None
        pause()
        try:
            for some in self._batches(problem, k, draws):
                q, c = natural_step(cavity, problem.private, some, problem.expected, q, c, self.step_size)  # 5
        except (np.linalg.LinAlgError, ValueError):
            return None
        return q, () if c is None else (c,)

    def _given(self, trajectory: int) -> float:
        return float(self.rho[trajectory] if isinstance(self.rho, tuple) else self.rho)

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        if state.adapting[0]:
            state = self._slower(state, reply)  # 9
        precision, shift = state.precision + reply.precision.sum(axis=1), state.shift + reply.shift.sum(axis=1)  # 8
        w = np.full(shift.shape, np.nan)
        for r in range(len(w)):
            try:
                w[r] = _natural(precision[r], shift[r]).mean
            except (np.linalg.LinAlgError, ValueError):
                continue
        return state._replace(w=w, precision=precision, shift=shift)

    @staticmethod
    def _slower(state: State, reply: Reply) -> State:
        """Return the state with rho halved where the certificate of the s that was sent is above the one before."""
        P, gap = state.precision.shape[1], np.full(len(state.w), np.inf)
        slope, curvature = reply.slope.sum(axis=1), reply.curvature.sum(axis=1)
        for r in range(len(gap)):
            try:
                s, p = (
                    _natural(v[:P], v[P:]) for v in (np.hstack([state.precision[r], state.shift[r]]), state.prior[r])
                )
                H = unpack(curvature[r], len(slope[r]), P == len(slope[r]))
                gap[r] = gradient(s, p, slope[r], H).square / (2.0 * state.tau[r])
            except (np.linalg.LinAlgError, ValueError):
                continue
        grew = gap > state.gap  # never at the start, where the last one is NaN
        return state._replace(rho=np.where(grew[:, None], 0.5, 1.0) * state.rho, gap=gap)

    def measure(self, problem: Any, state: State) -> Measure:
        return problem.measure(state.precision, state.shift)

    def observe(self, problem: Any, state: State) -> dict[str, np.ndarray]:
        """damping (R,): rho."""
        R = len(state.w)
        given = np.array([self._given(r) for r in range(R)]) if state.rho.size == 0 else state.rho[:, 0]
        return {"damping": given}

    def traits(self, problem: FederatedProblem) -> Traits:
        some = ("batches",) if self._some(problem.federation.sizes).any() else ()
        return participation.traits_of_sampling(self.participation, problem, *some)


def _natural(precision: np.ndarray, shift: np.ndarray) -> Gaussian:
    return natural(unpack(precision, len(shift), len(precision) == len(shift)), shift)
