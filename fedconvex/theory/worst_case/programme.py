"""The semidefinite programme over Gram matrices and function values, and its size before it is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import among, bad, instance
from fedconvex.theory.bound import Quantity
from fedconvex.theory.worst_case.classes import Arbitrary, AtOptimum, Problems
from fedconvex.theory.worst_case.expressions import Scalar
from fedconvex.theory.worst_case.interpolation import Point, interpolation, product
from fedconvex.theory.worst_case.metrics import Metric, metric_of
from fedconvex.theory.worst_case.oracles import (
    Drawn,
    ManyOutcomesError,
    Method,
    NeedsClientsError,
    SymbolicOracle,
    iterates,
)


class Size(NamedTuple):
    """Size of a programme: order of the Gram matrix, number of function values, number of linear inequalities.

    Attributes
    ----------
    gram : int
        Order of the Gram matrix of points and gradients, at most 300.
    values : int
        Function values that are unknowns.
    constraints : int
        Linear inequalities; time grows with their number, and with the cube of ``gram``.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, gradient_descent, programme_size
    >>> programme_size(gradient_descent(1.0, 3), Problems(1)).gram
    5
    """

    gram: int
    values: int
    constraints: int


class Outcome(NamedTuple):
    """One outcome of sampling and noise: choices, vectors of noise in the order of calls, what is measured."""

    drawn: Drawn
    noise: tuple[np.ndarray, ...]
    measured: tuple[Scalar, ...]


class Trace(NamedTuple):
    """A method run on a problem that is not known yet."""

    oracle: SymbolicOracle
    outcomes: tuple[Outcome, ...]

    def size(self) -> Size:
        """Size of the programme of all outcomes together."""
        oracle, h = self.oracle, self.oracle.problems.heterogeneity
        pairs = sum(len(points) * (len(points) - 1) for points in oracle.points)
        squares = int(oracle.problems.D > 0.0) + len(oracle.noises())
        if any(len(g) for g in oracle.at_optimum):
            squares += 0 if isinstance(h, Arbitrary) else 1 if isinstance(h, AtOptimum) else len(oracle.p)
        if oracle.everywhere:
            squares += (len(oracle.points[0]) - 1) * len(oracle.p)
        return Size(len(oracle.made), oracle.count, pairs + squares)


def trace(method: Method, problems: Problems, metric: Metric) -> Trace:
    """Run the method in coefficients; on F alone, if the method asks for nothing else."""
    for pooled in (True, False):
        oracle, outcomes = SymbolicOracle(problems, pooled), []

        def measured(oracle: SymbolicOracle = oracle) -> Any:
            return metric(oracle, iterates(method, oracle))

        try:
            for drawn, found in oracle.outcomes(measured):
                scalars = tuple(found) if isinstance(found, (list, tuple)) else (found,)
                if not scalars or not all(isinstance(s, Scalar) for s in scalars):
                    raise bad("worst_case: metric", "be made of function values and inner products", found)
                outcomes.append(Outcome(drawn, tuple(oracle.log), scalars))
        except NeedsClientsError:
            continue
        return Trace(oracle, tuple(outcomes))
    raise AssertionError("unreachable")


def programme_size(method: Method, problems: Problems, metric: str | Quantity | Metric = "last") -> Size:
    """Return the size of the programme that `worst_case` would solve, without building it.

    Parameters
    ----------
    method : callable
        As for `worst_case`, such as ``fedavg(0.25, 2, 2)``.
    problems : Problems
        The class.
    metric : str, Quantity or callable
        What is bounded: "last", "shadow", ...; as for `worst_case`.

    Raises
    ------
    ValueError
        If there are more than 300 vectors, or more than 4,096 outcomes of sampling and noise.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, UniformUpper, fedavg, programme_size
    >>> programme_size(fedavg(0.25, 2, 2), Problems(3, heterogeneity=UniformUpper(1.0)), "shadow")
    Size(gram=36, values=33, constraints=433)
    """
    instance("programme_size: problems", problems, Problems)
    try:
        return trace(method, problems, metric_of(metric)[1]).size()
    except ManyOutcomesError as error:
        raise bad("programme_size", "count at most 300 vectors and 4096 outcomes", str(error), CURE) from None


CURE = (
    "take fewer clients (2 and 3 gave the same values wherever compared), local steps or rounds, Shift instead of "
    "UniformUpper, or pass limit= and wait: time grows like the sixth power"
)


def grouped(outcomes: Sequence[Outcome], over: str) -> list[list[Outcome]]:
    """Return the outcomes that are averaged: all of them, or those of each sequence of samples."""
    among("worst_case: over", over, ("mean", "sequences"))
    groups: dict[Any, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.drawn.sampled if over == "sequences" else None, []).append(outcome)
    return list(groups.values())


class Programme:
    """maximise min_s <C_s, G> + c_s'f subject to <A_j, G> + a_j'f <= b_j and G >= 0.

    The basis of the Gram matrix is x^0, then grad F_i(x*) (or b_i) for i < M - 1, then the evaluated gradients of the
    centred functions in the order of evaluation; ``made`` says what each basis vector is. Lengths are in units of
    ``problems.length``, gradients in units of L times that; the objective in units of ``scale``.
    """

    def __init__(self, oracle: SymbolicOracle, outcomes: Sequence[Outcome]) -> None:
        self.oracle, self.outcomes, self.problems = oracle, tuple(outcomes), oracle.problems
        self.mu = oracle.problems.mu / oracle.problems.L
        self.made, self.gram, self.count = oracle.made, len(oracle.made), oracle.count
        self.at_optimum = [self._wide(g) for g in oracle.at_optimum]
        self.points = [
            [Point(self._wide(x), self._wide(g), self._wide(f, self.count)) for x, g, f in points]
            for points in oracle.points
        ]
        self.heights = np.zeros(self.count)  # 0 <= f_v <= ‖x_v‖^2/2 <= heights_v trace(G)
        for points in self.points:
            for P in points[1:]:
                self.heights[int(np.argmax(P.f))] = 0.5 * float(P.x @ P.x)
        self._objectives()
        self._constrain()

    def _wide(self, a: np.ndarray, size: int | None = None) -> np.ndarray:
        return np.concatenate([a, np.zeros((self.gram if size is None else size) - len(a))])

    def _objectives(self) -> None:
        total = sum(o.drawn.probability for o in self.outcomes)
        means = [
            sum(o.drawn.probability / total * s for o, s in zip(self.outcomes, column, strict=True))
            for column in zip(*(o.measured for o in self.outcomes), strict=True)
        ]
        self.C, self.c = np.zeros((len(means), self.gram, self.gram)), np.zeros((len(means), self.count))
        for s, scalar in enumerate(means):
            n, m = len(scalar.quadratic), len(scalar.values)
            self.C[s, :n, :n], self.c[s, :m] = scalar.quadratic, scalar.values
        size = max(float(np.max(np.abs(part), initial=0.0)) for part in (self.C, self.c))
        self.scale = (size or 1.0) * self.problems.length**2
        self.C, self.c = self.C / (size or 1.0), self.c / (size or 1.0)

    def _constrain(self) -> None:
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
        squares = self._squares()
        if isinstance(self.problems.heterogeneity, Arbitrary):
            free = [i for i, m in enumerate(self.made) if m.kind == "optimum"]
            if free and not any(np.any(part[..., free]) for part in (np.array(A), self.C)):  # nothing depends on them
                squares.append((list(zip(self.oracle.p.tolist(), self.at_optimum, strict=True)), 1.0))
        for vectors, bound in squares:
            A.append(np.sum([p * product(v, v) for p, v in vectors], axis=0))
            a.append(none)
            b.append(bound)
        unknowns = self.C.shape[1:]
        self.A, self.a, self.b = np.reshape(A, (len(b), *unknowns)), np.reshape(a, (len(b), self.count)), np.array(b)

    def _squares(self) -> list[tuple[list[tuple[float, np.ndarray]], float]]:
        """Return (weights and vectors, bound) for every sum of squared norms that is bounded."""
        h, p, unit = self.problems.heterogeneity, self.oracle.p, self.problems.length
        squares = [([(1.0, self._wide(self.oracle.start.over))], (self.problems.D / unit) ** 2)]
        squares = squares if self.problems.D > 0.0 else []
        slope = self.problems.L * unit
        squares += [
            ([(c, self._wide(e)) for c, e in values], (self.problems.sigma / slope) ** 2)
            for values in self.oracle.noises()
        ]
        zeta2 = (h.zeta / slope) ** 2
        if any(len(g) for g in self.oracle.at_optimum):
            if isinstance(h, AtOptimum):
                squares.append((list(zip(p.tolist(), self.at_optimum, strict=True)), zeta2))
            elif not isinstance(h, Arbitrary):
                squares += [([(1.0, g)], zeta2) for g in self.at_optimum]
        if self.oracle.everywhere:
            for same in list(zip(*self.points, strict=True))[1:]:
                slopes = [P.g + g for P, g in zip(same, self.at_optimum, strict=True)]
                mean = np.average(slopes, axis=0, weights=p)
                squares += [([(1.0, g - mean)], zeta2) for g in slopes]
        return squares

    def value(self, V: np.ndarray, f: np.ndarray) -> float:
        """min_s <C_s, V'V> + c_s'f."""
        return float(np.min(np.einsum("skl,kl->s", self.C, V.T @ V) + self.c @ f))

    def slack(self, V: np.ndarray, f: np.ndarray) -> np.ndarray:
        """b_j - <A_j, V'V> - a_j'f."""
        return self.b - np.einsum("jkl,kl->j", self.A, V.T @ V) - self.a @ f

    def extract(self, V: np.ndarray, f: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Return points, gradients and values of every client, in the units of the problem."""
        out, L, u = [], self.problems.L, self.problems.length
        for i in range(self.problems.clients):
            j = min(i, len(self.at_optimum) - 1)  # one function for all, where the method asked for F alone
            points = self.points[min(j, len(self.points) - 1)]
            x, b = np.array([V @ P.x for P in points]), V @ self.at_optimum[j]
            g, values = np.array([V @ P.g for P in points]), np.array([P.f @ f for P in points])
            out.append((u * x, L * u * (g + b), L * u**2 * (values + x @ b)))
        return out
