"""The semidefinite programme over Gram matrices and function values, and its size before it is built."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedconvex._check import instance, whole
from fedconvex.theory.bound import SHADOW_AVERAGE, Quantity
from fedconvex.theory.worst_case.heterogeneity import AtOptimum, Heterogeneity, Shift, UniformUpper
from fedconvex.theory.worst_case.interpolation import Point, interpolation, product

__all__ = ["Programme", "Size", "programme_size"]


class Size(NamedTuple):
    """Size of a programme: order of the Gram matrix, number of function values, number of linear inequalities."""

    gram: int
    values: int
    constraints: int


def reduced(clients: int, local_steps: int, rounds: int, h: Heterogeneity) -> tuple[int, int, int]:
    """Return (M, tau, T) of the programme: (1, 1, tau T) where FedAvg is gradient descent."""
    if clients == 1 or local_steps == 1 or (h.zeta == 0.0 and not isinstance(h, AtOptimum)):
        return 1, 1, local_steps * rounds
    return clients, local_steps, rounds


def programme_size(
    clients: int,
    local_steps: int,
    rounds: int,
    heterogeneity: Heterogeneity,
    metric: Quantity = SHADOW_AVERAGE,
) -> Size:
    """Return the size of the programme that `worst_case` would solve, without building it.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import UniformUpper, programme_size
    >>> programme_size(3, 2, 2, UniformUpper(1.0))
    Size(gram=36, values=33, constraints=433)
    """
    instance("programme_size: heterogeneity", heterogeneity, Heterogeneity)
    who = "programme_size"
    instance(f"{who}: metric", metric, Quantity)
    M, tau, T = reduced(
        whole(f"{who}: clients", clients, low=1),
        whole(f"{who}: local_steps", local_steps, low=1),
        whole(f"{who}: rounds", rounds, low=1),
        heterogeneity,
    )
    zeta = heterogeneity.zeta if M > 1 else 0.0
    shadow = T * (tau - 1) if metric is SHADOW_AVERAGE else 0
    own = T * (tau - 1)  # points of one client alone
    optima = M - 1 if zeta > 0.0 else 0
    if M == 1 or isinstance(heterogeneity, AtOptimum):
        per_client = T + 1 + shadow + (own if M > 1 else 0)
        return Size(1 + optima + M * per_client, M * per_client, M * per_client * (per_client + 1) + 1 + (zeta > 0.0))
    points = T + 1 + shadow + M * own
    pairs = points * (points + 1)
    if isinstance(heterogeneity, Shift):
        return Size(1 + optima + points, points, pairs + M + 1)
    return Size(1 + optima + M * points, M * points, M * pairs + M * (points + 1) + 1)


class Programme:
    """maximise c'f subject to <A_j, G> + a_j'f <= b_j and G >= 0, with L = D = 1 and x* = 0.

    The basis of the Gram matrix is x^0, then grad F_i(x*) (or b_i) for i < M - 1, then the evaluated gradients in the
    order of evaluation; ``made`` says what each basis vector is.
    """

    def __init__(
        self,
        M: int,
        tau: int,
        T: int,
        eta: float,
        mu: float,
        h: Heterogeneity,
        metric: Quantity,
    ) -> None:
        self.M, self.eta, self.mu, self.h = M, eta, mu, h
        self.zeta = h.zeta if M > 1 else 0.0
        self.gram, self.count, _ = programme_size(M, tau, T, h, metric)
        self.functions = 1 if isinstance(h, Shift) else M
        self.made: list[tuple[str, int, np.ndarray]] = []  # kind, function, coefficients of the point
        self.used = 0  # function values
        self._known: dict[tuple[int, bytes], Point] = {}
        zero, none = np.zeros(self.gram), np.zeros(self.count)
        start = self._vector("start", 0, zero)
        free = [self._vector("optimum", i, zero) for i in range(M - 1)] if self.zeta > 0.0 else [zero] * (M - 1)
        self.at_optimum = [*free, zero - sum(free)]  # grad F_i(x*); of a Shift b_i
        first = [zero] if isinstance(h, Shift) else self.at_optimum
        self.points: list[list[Point]] = [[Point(zero, g, none)] for g in first]
        self.depth = {zero.tobytes(): 0, start.tobytes(): 0}  # number of steps that led to a point
        shadow = self._run(start, tau, T, metric)
        judged = shadow if metric is SHADOW_AVERAGE else shadow[-1:]
        self.c = np.mean([self._point(i, y).f for y in judged for i in range(self.functions)], axis=0)
        self._constrain(start)

    def _run(self, x: np.ndarray, tau: int, T: int, metric: Quantity) -> list[np.ndarray]:
        """Run FedAvg from x in coefficients, evaluating what it needs; return the shadow iterates."""
        shadow = []
        for t in range(T):
            local = [x] * self.M
            for k in range(tau):
                local = [y - self.eta * self._gradient(i, y) for i, y in enumerate(local)]
                x = np.mean(local, axis=0)
                for y in (x, *local):
                    self.depth.setdefault(y.tobytes(), t * tau + k + 1)
                shadow.append(x)
                if metric is SHADOW_AVERAGE or k == tau - 1:
                    for i in range(self.M):
                        self._gradient(i, x)
        return shadow

    def _vector(self, kind: str, function: int, x: np.ndarray) -> np.ndarray:
        self.made.append((kind, function, x))
        return np.eye(1, self.gram, len(self.made) - 1)[0]

    def _point(self, i: int, x: np.ndarray) -> Point:
        """Evaluate function i at x, once; in the uniform class every function is evaluated wherever one is."""
        key = x.tobytes()
        if (i, key) not in self._known:
            for j in range(self.functions) if isinstance(self.h, UniformUpper) else [i]:
                point = Point(x, self._vector("gradient", j, x), np.eye(1, self.count, self.used)[0])
                self.used += 1
                self.points[j].append(point)
                self._known[j, key] = point
        return self._known[i, key]

    def _gradient(self, i: int, x: np.ndarray) -> np.ndarray:
        """grad F_i(x) of client i."""
        return self._point(0, x).g + self.at_optimum[i] if isinstance(self.h, Shift) else self._point(i, x).g

    def _constrain(self, start: np.ndarray) -> None:
        A: list[np.ndarray] = []
        a: list[np.ndarray] = []
        b: list[float] = []
        none = np.zeros(self.count)
        self.star: dict[tuple[int, bool], int] = {}  # (value index, from the optimum?) -> its inequality with x*
        for points in self.points:
            for q, Q in enumerate(points):
                for p, P in enumerate(points):
                    if p == q:
                        continue
                    if p == 0 or q == 0:
                        self.star[int(np.argmax(P.f + Q.f)), q == 0] = len(b)
                    left, right = interpolation(P, Q, self.mu)
                    A.append(left)
                    a.append(right)
                    b.append(0.0)
        for vectors, bound in self._squares(start):
            A.append(np.sum([product(v, v) for v in vectors], axis=0))
            a.append(none)
            b.append(bound)
        self.A, self.a, self.b = np.array(A), np.array(a), np.array(b)

    def _squares(self, start: np.ndarray) -> list[tuple[list[np.ndarray], float]]:
        """Return (vectors, bound) for every sum of squared norms that is bounded: the start and the heterogeneity."""
        squares = [([start], 1.0)]
        if self.zeta > 0.0 and isinstance(self.h, AtOptimum):
            squares.append((self.at_optimum, self.M * self.zeta**2))
        elif self.zeta > 0.0 and isinstance(self.h, Shift):
            squares += [([v], self.zeta**2) for v in self.at_optimum]
        elif self.zeta > 0.0:
            for same in zip(*self.points, strict=True):
                mean = np.mean([P.g for P in same], axis=0)
                squares += [([P.g - mean], self.zeta**2) for P in same]
        return squares

    def slack(self, V: np.ndarray, f: np.ndarray) -> np.ndarray:
        """b_j - <A_j, V'V> - a_j'f."""
        return self.b - np.einsum("jkl,kl->j", self.A, V.T @ V) - self.a @ f

    def extract(self, V: np.ndarray, f: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Return points, gradients and values of every client."""
        out = []
        for i in range(self.M):
            points = self.points[0 if isinstance(self.h, Shift) else i]
            x = np.array([V @ P.x for P in points])
            g, values = np.array([V @ P.g for P in points]), np.array([P.f @ f for P in points])
            if isinstance(self.h, Shift):
                b = V @ self.at_optimum[i]
                g, values = g + b, values + x @ b
            out.append((x, g, values))
        return out
