"""Exact moments of methods whose clients correct their steps: SCAFFOLD and FedProx on least squares, mini-batches too.

Setting. z = (x - w*, c_1, ..., c_N, 1) is all that a round starts from (FedProx has no c_k). Client k starts at the
server's x and does tau_k steps y <- y - a (g(y; batch) + m (y - x) + T_k z): SCAFFOLD has m = 0 and T_k z = c - c_k,
FedProx m = mu and T_k = 0. It answers O_k z + A_k (y - E y), and the server moves by s <- s + sum_k W_k (answer of k):
W_k = 1 for the clients that take part in SCAFFOLD, whose answers change x and their own c_k; beta times the weights of
an average in FedProx. Exact proximal points are affine, and draw nothing.

Statement. E[y] = M_k E[z], with M <- (I - a (H_k + m)) M - a (gradient at w*, T_k, -m x); the covariance of y given
z, averaged over z, is V <- P V P' + a^2 phi (row noise at E[y y']), P = I - a (H_k + m). Given z clients are
independent, so that

    E[s s'] <- Z + Obar Z + Z Obar' + sum_{k != j} E[W_k W_j] O_k Z O_j' + sum_k E[W_k^2] (O_k Z O_k' + A_k V_k A_k').

Source. This project, as for `Moments`. The methods: Karimireddy et al., ICML 2020; Li et al., MLSys 2020. What differs:
the papers bound these quantities, here they are computed. No convexity or step size is asked for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, instance, real, vector, whole, wrong_type
from fedconvex.constants import noise_factor
from fedconvex.loss_traits import traits
from fedconvex.problems import Problem
from fedconvex.theory.moments.least_squares import LeastSquares
from fedconvex.theory.moments.moment_rounding import Moved, moved_stacked
from fedconvex.theory.moments.traces import MomentTrace
from fedconvex.theory.moments.weights import Mixing, of_sampling
from fedconvex.traits import LocalSteps, Traits, traits_of


class Job(NamedTuple):
    """What a client does in a round, and what its answer adds to the state."""

    step: float  # a
    maps: np.ndarray  # (tau + 1, d, D) E[y] as a map of z after every step; one entry where nothing is drawn
    shrink: np.ndarray  # (d, d) P
    phi: float
    places: np.ndarray  # (r,) the entries of the state that the answer adds to
    answer: np.ndarray  # (r, D) O_k
    spread: np.ndarray  # (r, d) A_k


class StackedMoments:
    """Exact expectation of SCAFFOLD and FedProx on a least-squares problem, by what they declare about their rounds.

    Parameters
    ----------
    method : method
        `SCAFFOLD` with either option, or `FedProx` with plain local steps or exact local solutions; step sizes are
        numbers, batches fresh.
    problem : Problem
        With squared loss, without a penalty.

    Raises
    ------
    TypeError, ValueError
        For other methods and problems, and where samples of clients are too many to enumerate.

    Examples
    --------
    Two clients, f_1 = (w - 1)^2/2 and f_2 = (w - 3)^2/2. Where one of them takes part, SCAFFOLD jumps half the way to
    its minimum in the first round, and knows its gradient afterwards.

    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.methods import SCAFFOLD
    >>> from fedconvex.theory.moments import StackedMoments
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])]), Squared())
    >>> StackedMoments(SCAFFOLD(step_size=0.5, participation=1), problem).run(rounds=2).deviation
    array([4.   , 1.25 , 0.625])
    """

    def __init__(self, method: Any, problem: Problem) -> None:
        instance("StackedMoments: problem", problem, Problem)
        if problem.penalty is not None or not traits(problem.loss).quadratic:
            got = f"{problem.loss!r}" if problem.penalty is None else f"{problem.penalty!r}"
            raise wrong_type("StackedMoments: problem", "have squared loss and no penalty", got)
        t, name, K, d = traits_of(method, problem), type(method).__name__, problem.federation.K, problem.federation.d
        self.problem, self.d, self.K = problem, d, K
        if t.controls is None and (t.proximal is None or t.server_step is None):
            must = "declare control variates, or a proximal term and a server that moves towards an average"
            raise wrong_type("StackedMoments: method", must, name, "Moments.of takes plain local steps")
        if t.local is None and t.controls is not None:
            raise bad(f"StackedMoments: {name}", "take local steps", f"{method!r}")
        if t.local is not None and not (t.local.fresh and isinstance(t.local.step_size, (int, float))):
            raise bad(f"StackedMoments: {name}", "have one step size and draw every batch anew", f"{method!r}")
        self.data = LeastSquares.of(problem, t.local is not None and t.local.by_weight)
        self.length = np.float64(
            1.0 / max(float(t.proximal or 0.0), 1e-300)
        )  # of a round: of exact proximal points 1/mu at most
        if t.local is not None:
            self.length = np.float64(t.local.step_size) * np.max(t.local.steps * t.local.factor)
        self.D = d * (K + 1 if t.controls is not None else 1) + 1
        if t.controls is not None:
            self.mixing, self.scale = _indicators(t, K, name), 1.0
            self.jobs = [self._controlled(k, t) for k in range(K)]
        else:
            self.mixing, self.scale = of_sampling(t.sampling, t.participants, problem), float(t.server_step or 0.0)
            self.jobs = [self._proximal(k, t) for k in range(K)]
        self.answers = np.concatenate([job.answer for job in self.jobs])
        self.shared = [self._sum(u, self.answers).T for u in self.mixing.u]

    def run(self, rounds: int, *, start: Any = None) -> MomentTrace:
        """Return the exact moments of the server's w_0, ..., w_T; all control variates start at zero.

        Parameters
        ----------
        rounds : int
            T.
        start : array (d,), optional
            w_0; default 0.
        """
        return self.run_with_rounding(rounds, start=start)[0]

    def run_with_rounding(self, rounds: int, *, start: Any = None) -> tuple[MomentTrace, Moved]:
        """Return the same, and how far double precision may have moved it."""
        T, d = whole("StackedMoments.run: rounds", rounds, low=0), self.d
        w0 = np.zeros(d) if start is None else vector("StackedMoments.run: start", start, d)
        z = np.zeros(self.D)
        z[:d], z[-1] = w0 - self.data.w_star, 1.0
        Z, out = np.outer(z, z), []
        with np.errstate(over="ignore", invalid="ignore"):
            for t in range(T + 1):
                Z = self._apply(Z) if t else Z
                Z = Z if np.isfinite(Z).all() else np.full_like(Z, np.inf)
                size = np.trace(Z[:d, :d]) + self.length**2 * np.trace(Z[d:-1, d:-1])
                out.append((*self.data.values(Z[np.ix_(self._model, self._model)]), Z[:d, -1].copy(), size))
            sub, dev, mean, sizes = (np.array(column) for column in zip(*out, strict=True))
            off = Moved(*(np.where(np.isnan(v), np.inf, v) for v in moved_stacked(self, dev, sizes)))
        return MomentTrace(sub, dev, mean, Z[:d, :d]), off

    def _apply(self, Z: np.ndarray) -> np.ndarray:
        """Return E[z z'] after a round from E[z z'] (D, D) before it."""
        mix, beta = self.mixing, self.scale
        own = mix.scale @ mix.u**2
        moved = self.answers @ Z
        out = Z + beta * (mean := self._sum(mix.mean, moved)) + beta * mean.T
        for c, u, shared in zip(mix.scale, mix.u, self.shared, strict=True):
            out += beta**2 * c * (self._sum(u, moved) @ shared)
        for k, job in enumerate(self.jobs):
            mine = slice(k * job.places.size, (k + 1) * job.places.size)  # all answer equally many numbers
            square = (mix.own[k] - own[k]) * (moved[mine] @ job.answer.T)
            if job.phi > 0.0:
                square += mix.own[k] * (job.spread @ self._covariance(k, Z) @ job.spread.T)
            out[np.ix_(job.places, job.places)] += beta**2 * square
        out = 0.5 * (out + out.T)
        out[-1, -1] = 1.0
        return out

    def _covariance(self, k: int, Z: np.ndarray) -> np.ndarray:
        """Return what the batches of a round add to the covariance of client k's local model, (d, d)."""
        job, d = self.jobs[k], self.d
        V, S = np.zeros((d, d)), np.empty((d + 1, d + 1))
        S[d, d] = 1.0
        for M in job.maps[:-1]:
            S[:d, :d], S[:d, d] = M @ Z @ M.T + V, M @ Z[:, -1]
            S[d, :d] = S[:d, d]
            V = job.shrink @ V @ job.shrink + job.step**2 * job.phi * self.data.row_noise(k, S)
        return V

    @property
    def _model(self) -> np.ndarray:
        """Entries of z that hold the model and the one."""
        return np.append(np.arange(self.d), self.D - 1)

    def _sum(self, u: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """sum_k u_k (rows of k), each at its places, (D, D)."""
        out, rows = np.zeros((self.D, self.D)), answers.reshape(len(self.jobs), -1, self.D)
        for weight, job, mine in zip(u, self.jobs, rows, strict=True):
            out[job.places] += weight * mine
        return out

    def _steps(self, k: int, local: LocalSteps, pull: float, tilt: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return a, E[y] as maps of z after every step, and P, of steps along g + pull (y - x) + tilt z."""
        d, a = self.d, float(local.step_size) * float(local.factor[k])
        P = np.eye(d) - a * (self.data.A[k, :d, :d] + pull * np.eye(d))
        push = tilt.copy()
        push[:, -1] += self.data.A[k, :d, d]
        start = np.eye(d, self.D)
        push -= pull * start
        maps = [start]
        for _ in range(int(local.steps[k])):
            maps.append(P @ maps[-1] - a * push)
        return a, np.array(maps), P

    def _phi(self, k: int, local: LocalSteps) -> float:
        return float(noise_factor(local.sizes[k], local.batch_size[k], local.replacement))

    def _controlled(self, k: int, t: Traits) -> Job:
        """SCAFFOLD's client: answers p_k eta_g N/S (y - x), and c_k^+ - c_k."""
        d, K, p, start = self.d, self.K, np.asarray(self.problem.weights), np.eye(self.d, self.D)
        assert t.local is not None and t.controls is not None
        mine = slice((k + 1) * d, (k + 2) * d)
        mean = np.hstack([np.zeros((d, d)), *(q * np.eye(d) for q in p), np.zeros((d, 1))])  # c
        own = np.zeros((d, self.D))
        own[:, mine] = np.eye(d)
        a, maps, P = self._steps(k, t.local, 0.0, mean - own)
        share, total = t.controls.server_step * K / t.participants * p[k], a * float(t.local.steps[k])
        moved = maps[-1] - start
        if t.controls.option == 2:
            renewed, spread = -mean - moved / total, -np.eye(d) / total
        else:
            renewed, spread = self.data.A[k, :d, :d] @ start - own, np.zeros((d, d))
            renewed[:, -1] += self.data.A[k, :d, d]
        places = np.r_[0:d, mine]
        answer, spreads = np.vstack([share * moved, renewed]), np.vstack([share * np.eye(d), spread])
        return Job(a, maps, P, self._phi(k, t.local), places, answer, spreads)

    def _proximal(self, k: int, t: Traits) -> Job:
        """FedProx's client: answers y - x, after local steps or of the proximal point."""
        d, start = self.d, np.eye(self.d, self.D)
        mu = real("StackedMoments: proximal_mu", t.proximal, low=0.0)
        if t.local is None:
            A = self.data.A[k, :d]
            y = np.linalg.solve(A[:, :d] + mu * np.eye(d), mu * start - np.column_stack([np.zeros((d, d)), A[:, d]]))
            return Job(0.0, y[None], np.eye(d), 0.0, np.arange(d), y - start, np.eye(d))
        a, maps, P = self._steps(k, t.local, mu, np.zeros((d, self.D)))
        return Job(a, maps, P, self._phi(k, t.local), np.arange(d), maps[-1] - start, np.eye(d))


def _indicators(t: Traits, K: int, name: str) -> Mixing:
    """Moments of who takes part, 1 or 0, where S of K different clients are drawn uniformly."""
    if t.sampling not in ("everyone", "uniform"):
        raise bad(f"StackedMoments: {name}", "sample different clients uniformly, or not at all", t.sampling)
    S = t.participants
    q, together = S / K, S * (S - 1) / (K * (K - 1)) if K > 1 else 1.0
    return Mixing(np.full(K, q), np.full(K, q), np.array([together]), np.ones((1, K)))
