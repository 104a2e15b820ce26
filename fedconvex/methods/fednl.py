"""FedNL (Safaryan, Islamov, Qian, Richtarik, ICML 2022): Newton's method with learned, compressed Hessians.

1. server: start at w; client k: H_k = 0, or hess f_k(w) (sent whole, once); server: H = sum_k p_k H_k
2. each stage, server sends w; client k: D_k = hess f_k(w) - H_k
3.   client k answers grad f_k(w), C(D_k) and, with option 2, ‖D_k‖_F; H_k <- H_k + alpha C(D_k)
4. server: g = sum_k p_k grad f_k(w)
5.   option 1: d = -[H]_mu^-1 g, the eigenvalues of H raised to mu
6.   option 2: d = -(H + l I)^-1 g, l = sum_k p_k ‖D_k‖_F
7.   H <- H + alpha sum_k p_k C(D_k)
8. without line search: w <- w + d
9. with it, second round: server sends d; client k answers f_k(w + s d) for s = 0, 1, 1/2, 1/4, ...
10. server: w <- w + s d for the largest s with F(w + s d) <= F(w) + c s <g, d>

Clients keep upper triangles, p (p + 1)/2 numbers each for p parameters, and make one Hessian at a time. The server has
the triangle of H only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import scipy.linalg as sla

from fedconvex._check import bad, real
from fedconvex.draws import Draws
from fedconvex.fields import AtLeastZero, CheckedFields, Flag, OneOrTwo
from fedconvex.kernels import averages, client_rows, triangles
from fedconvex.methods.parts import armijo, compressors, hessian_compressors, participation, tilted_points
from fedconvex.problems import FederatedProblem, Problem
from fedconvex.traits import REFUSE, Traits, counted_by, not_sent
from fedconvex.words import Words

Rate = Annotated[float, partial(real, low=0.0, high=1.0, strict=True)]


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model)
    H: np.ndarray  # (R, p (p + 1)/2) upper triangles
    gradient: np.ndarray  # (R, *model) g, in the second round of a stage
    moved: np.ndarray  # (R, *model) d, in the second round of a stage
    bits: np.ndarray  # (R,) sent up by all clients so far
    first: bool  # whether whole Hessians are to come
    search: bool  # whether the second round of a stage comes next
    mu: float  # of option 1


class Point(NamedTuple):
    """Server to clients, first round of a stage."""

    w: np.ndarray  # (R, *model)
    first: bool  # whether whole Hessians are asked for


@counted_by("floats")
class Reply(NamedTuple):
    """Clients to server, first round of a stage."""

    gradient: np.ndarray  # (R, K, *model) grad f_k(w)
    values: np.ndarray  # (R, K, v) of C(D_k); whole Hessians at first
    codes: np.ndarray  # (R, K, c) whole numbers
    norm: np.ndarray  # (R, K, 1) ‖D_k‖_F with option 2, else (R, K, 0)
    floats: np.ndarray  # (R, K) p + v + 1 or 0


@not_sent("w")
class Trial(NamedTuple):
    """Server to clients, second round of a stage."""

    w: np.ndarray  # (R, *model), which they have
    moved: np.ndarray  # (R, *model) d


class Values(NamedTuple):
    """Clients to server, second round of a stage."""

    values: np.ndarray  # (R, K, 12) f_k(w + s d)


@dataclass(frozen=True, kw_only=True)
class FedNL(CheckedFields):
    """Newton's method whose clients send compressed changes of their Hessians: fast near the optimum, whatever kappa.

    A stage is two rounds, one without line search.

    Parameters
    ----------
    compressor : `RankR` or `SymmetricTopK`
        C.
    option : {1, 2}
        How H is made positive definite: lines 5 and 6.
    line_search : bool
        Take the largest of 1, 1/2, ..., 1/1024 that lowers F enough. Without it option 1 may leave for good.
    alpha : float
        Rate at which Hessians are learned, in (0, 1]; 1 is that of the theorems.
    exact_start : bool
        Send whole Hessians in the first round.
    mu : float, optional
        Of option 1; default the problem's l2, which is no strong convexity where there are free coordinates.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if the compressor takes more than a Hessian has, the loss has no
        curvature, or option 1 has no mu > 0.

    Notes
    -----
    Theorem (derived). For squared loss with H_k = 0, alpha = 1 and option 1 without line search, w is the optimum after
    ceil(p/r) + 1 rounds of `RankR(r)` and ceil(N/k) + 1 of `SymmetricTopK(k)`, N = p (p + 1)/2: a round takes r
    eigenvalues, or k entries, out of D_k.

    Theorem (derived). Let F be mu-strongly convex, the Hessians of f_k be Lipschitz in Frobenius norm with constants of
    mean L_H, q = sqrt(1 - delta) of C, alpha = 1, and option 1 without line search. With r = ‖w - w*‖ and
    E = sum_k p_k ‖H_k - hess f_k(w*)‖_F, one round has r+ <= (r/mu) (E + L_H r/2) and E+ <= q E + (1 + q) L_H r. If
    E <= mu/4 and r <= min{mu/(2 L_H), (1 - q) mu/(4 (1 + q) L_H)} at the start, r is halved in every round, and r+/r
    goes to 0. Raising eigenvalues is a projection in Frobenius norm, and hess F(w*) lies in its set. For logistic loss
    L_H is the mean of ‖x‖^3/(6 sqrt 3).

    Theorem (derived). With line search and option 1, F - F* shrinks in every stage by
    1 - (2 c mu/Lambda) min{1, (1 - c) mu/L_F} or better, c = 1e-4, Lambda the largest eigenvalue of [H]_mu, as long as
    the minimum is at least 1/1024.

    The trace gains ``bits_up``: 64 a float, and the least a code needs.

    References
    ----------
    Safaryan, Islamov, Qian, Richtarik, "FedNL: making Newton-type methods applicable to federated learning", ICML 2022,
    Algorithms 1 (options 1 and 2) and 3 (line search), after the authors' program; weights p_k in the place of 1/n.

    Examples
    --------
    >>> from fedconvex import Logistic, Problem, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import FedNL, RankR
    >>> problem = Problem(logistic_federation(seed=1).federation, Logistic(), l2=0.001)
    >>> result = run(FedNL(compressor=RankR(1)), problem, rounds=100, tol=1e-10)
    >>> result.status.name, result.rounds < 40
    ('CONVERGED', True)
    """

    command = "fednl"
    benchmarks: ClassVar[Any] = {"fednl": {"compressor": hessian_compressors.RankR(1)}}
    lost = REFUSE  # the server's H is the mean of everybody's H_k
    no_penalty = "its steps follow gradients"
    tells_hessians = True  # sites look at what rows weigh in them, too

    compressor: Annotated[Any, hessian_compressors.valid]
    option: OneOrTwo = 1
    line_search: Flag = True
    alpha: Rate = 1.0
    exact_start: Flag = False
    mu: AtLeastZero | None = None

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if a setting does not fit the problem and its R trajectories."""
        super().check_fit(problem, R)
        tilted_points.needs_curvature(self, problem)
        hessian_compressors.check_fit("FedNL", self.compressor, int(np.prod(problem.model_shape)))
        if self.option == 1 and not self._floor(problem) > 0.0:
            raise bad("FedNL.mu", "be positive for option 1", f"{self._floor(problem):g}", "take l2 > 0, or option=2")

    def words(self, problem: FederatedProblem) -> Words:
        how = ", with a line search" if self.line_search else ""
        return Words(f"FedNL, option {self.option}{how}, {self.compressor!r} of each client's Hessian")

    def _floor(self, problem: FederatedProblem) -> float:
        return float(problem.l2) if self.mu is None else self.mu

    def init(self, problem: FederatedProblem, w: np.ndarray) -> State:
        R, p = len(w), w[0].size
        H, zero = np.zeros((R, p * (p + 1) // 2)), np.zeros_like(w)
        return State(w, H, zero, zero, np.zeros(R), bool(self.exact_start), False, self._floor(problem))  # 1

    def memory(self, problem: Problem, R: int) -> client_rows.ClientRows:
        """Return the upper triangles of the H_k: all zero."""
        return client_rows.ClientRows.empty(problem.size * (problem.size + 1) // 2)  # 1

    def broadcast(self, state: State) -> Point | Trial:
        return Trial(state.w, state.moved) if state.search else Point(state.w, state.first)  # 2, 9

    def local(self, problem: Problem, message: Any, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        if isinstance(message, Trial):
            return Values(armijo.values(problem, message.w, message.moved, clients)), memory  # 9
        memory, mine = memory.locate(draws.trajectory, clients)
        p, found = problem.size, []
        for r, j in np.ndindex(clients.shape):
            with np.errstate(over="ignore", invalid="ignore"):
                gradient, H = triangles.gradient_and_triangle(problem, message.w[r].ravel(), int(clients[r, j]))
            k = mine[r, j]
            if message.first:
                memory.rows[k] = H
                found.append((gradient, H, np.zeros(0, dtype=np.int64), np.zeros(1)))  # 1
                continue
            D = H - memory.rows[k]  # 2
            values, codes = self.compressor.compress(D, p)
            self.compressor.add(memory.rows[k], self.alpha, values, codes, p)  # 3
            norm = hessian_compressors.norm(D, p) if self.option == 2 else np.zeros(1)
            found.append((gradient, values, codes, norm))
        gradient, values, codes, norms = (np.reshape([a[i] for a in found], (*clients.shape, -1)) for i in range(4))
        norms = norms[..., : self.option - 1]
        floats = np.full(clients.shape, p + values.shape[2] + norms.shape[2])
        return Reply(problem.unflatten(gradient), values, codes, norms, floats), memory

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Any) -> State:
        zero = np.zeros_like(state.w)
        if isinstance(reply, Values):
            s = armijo.fractions(averages.over_clients(weights, reply.values), state.gradient, state.moved)
            w = state.w + s.reshape(-1, *[1] * (zero.ndim - 1)) * state.moved  # 10
            bits = state.bits + clients.shape[1] * 64 * len(armijo.FRACTIONS)
            return state._replace(w=w, gradient=zero, moved=zero, bits=bits, search=False)
        (R, m), p = clients.shape, state.w[0].size
        g = averages.over_clients(weights, reply.gradient)  # 4
        if state.first:
            before = later = averages.over_clients(weights, reply.values)  # 1
        else:
            each = zip(weights, reply.values, reply.codes, strict=True)
            before = state.H
            later = before + self.alpha * np.array([self.compressor.average(*one, p) for one in each])  # 7
        level = averages.over_clients(weights, reply.norm)[:, 0] if self.option == 2 else np.full(R, state.mu)
        d = np.array([self._direction(*one) for one in zip(before, g.reshape(R, p), level, strict=True)])
        bits = state.bits + m * 64 * reply.floats[:, 0] + m * (0 if state.first else self.compressor.bits(p))
        state = state._replace(H=later, bits=bits, first=False)
        if self.line_search:
            return state._replace(gradient=g, moved=d.reshape(zero.shape), search=True)
        return state._replace(w=state.w + d.reshape(zero.shape))  # 8

    def _direction(self, triangle: np.ndarray, g: np.ndarray, level: float) -> np.ndarray:
        """Return d of line 5 or 6."""
        p = g.size
        H, eye = hessian_compressors.full(triangle, p), np.eye(p)
        if not (np.isfinite(triangle).all() and np.isfinite(g).all() and np.isfinite(level)):
            return np.full(p, np.nan)  # the driver calls it divergence
        try:
            if self.option == 2:
                return -sla.cho_solve(sla.cho_factor(H + level * eye), g)  # 6
            np.linalg.cholesky(H - level * eye)
            return -sla.cho_solve(sla.cho_factor(H), g)  # 5, where no eigenvalue is below mu
        except np.linalg.LinAlgError:
            lam, V = np.linalg.eigh(H)
            lam = np.maximum(lam, level) if self.option == 1 else lam + level  # 5, 6
            return -(V @ np.divide(V.T @ g, lam, out=np.zeros(p), where=lam > 0.0))

    def gradient_passes(self, problem: Any) -> float:
        """Return the passes over all rows that a round takes on average; a Hessian takes about p/2 of them."""
        stage = 1.0 + 0.5 * int(np.prod(problem.model_shape))
        return (stage + 12.0) / 2.0 if self.line_search else stage

    observe = compressors.observe

    def traits(self, problem: Problem) -> Traits:
        return participation.traits_of_sampling(None, problem, by_round=False)
