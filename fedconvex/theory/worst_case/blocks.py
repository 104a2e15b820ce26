"""Worst cases of methods whose gradients are known block by block: columns of several owners, rows of several groups.

Setting
-------
F = sum_g p_g F_g of m blocks of coordinates, every F_g mu-strongly convex and, in block b alone, L_b-smooth; where a
smoothness of F is given, F has it. Methods move blocks by their own part of gradients. They start where
F(w_0) - F* <= 1, and F(w_T) - F* is measured. F_g are centred at w*, which methods that correct for the differences of
the groups do not notice.

Statement
---------
`upper`: for two points of the same F_g and every block b, as h = F_g - (mu/2)‖.‖^2 is convex and (L_b - mu)-smooth in
b,

    h_p >= h_q + <h_q', x_p - x_q> + ‖(h_p' - h_q')_b‖^2/(2 (L_b - mu)),

likewise for F with all blocks at once. These inequalities are necessary; with one block they suffice (Taylor, Hendrickx
and Glineur 2017), with several it is not known. So the programme is an upper bound, with multipliers that are
re-checked. `lower`: attained by a quadratic, sup of x'M'HMx/x'Hx for the linear map M of a run, over quadratics in
which blocks share a direction, and others that are searched at random and improved.

Source
------
Taylor, Hendrickx and Glineur (2017), Mathematical Programming 161, for interpolation; Kamri, Hendrickx and Glineur,
"On the worst-case analysis of cyclic coordinate-wise algorithms on smooth convex functions" (2023), for necessary
inequalities block by block, quoted from memory; programme and lower end: this project.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import eigh

from fedconvex.theory.worst_case.interpolation import Point, product
from fedconvex.theory.worst_case.programme import Programme
from fedconvex.theory.worst_case.programme_bounds import factor
from fedconvex.theory.worst_case.solving import search

LARGEST = 300  # vectors of a block, of which the Gram matrix has as many for every block
RANDOM, IMPROVED = 60, 120  # quadratics that are tried for the lower end, and changes of the best


class BlockClass(NamedTuple):
    """Groups of rows and blocks of columns: weights p_g, smoothness L_b, strong convexity mu, smoothness of F."""

    weights: tuple[float, ...]
    smoothness: tuple[float, ...]
    mu: float
    whole: float = math.inf


Run = Callable[[Any], Any]  # of a problem with start, weights, blocks, gradient(g, x) and part(x, b): the last model


def block_descent(steps: Sequence[float], local_steps: int, damping: float, rounds: int) -> Run:
    """FedBCD: all blocks take ``local_steps`` steps while the others stand still, and move by ``damping`` of that."""

    def run(problem: Any) -> Any:
        x = problem.start
        for _ in range(rounds):
            new = x
            for b, eta in enumerate(steps):
                v = x
                for _ in range(local_steps):
                    v = v - eta * problem.part(problem.gradient(0, v), b)
                new = new + damping * (v - x)
            x = new
        return x

    return run


def tracked_steps(step_size: float, local_steps: int, rounds: int) -> Run:
    """TrackedBlockDescent: in every group and block steps of step_size/local_steps, corrected by the gradient of F."""

    def run(problem: Any) -> Any:
        x, p, eta = problem.start, problem.weights, step_size / local_steps
        for _ in range(rounds):
            at = [problem.gradient(g, x) for g in range(len(p))]
            full, new = sum(w * g for w, g in zip(p, at, strict=True)), x
            for g, b in itertools.product(range(len(p)), range(problem.blocks)):
                v = x
                for j in range(local_steps):  # the first gradient is that of F
                    own = problem.gradient(g, v) - at[g] + full if j else full
                    v = v - eta * problem.part(own, b)
                new = new + p[g] * (v - x)
            x = new
        return x

    return run


def block_worst_case(run: Run, problems: BlockClass, limit: int = 40) -> tuple[float, float]:
    """Return an interval that holds the largest F(w_T) - F* where F(w_0) - F* <= 1.

    Parameters
    ----------
    run : function
        `block_descent` or `tracked_steps`.
    problems : BlockClass
    limit : int
        Largest Gram matrix to attempt.

    Raises
    ------
    ValueError
        If the Gram matrix is larger.

    Examples
    --------
    Gradient descent with the step 1/L: (1 - mu/L)^2 a round.

    >>> from fedconvex.theory.worst_case.blocks import BlockClass, block_descent, block_worst_case
    >>> lower, upper = block_worst_case(block_descent([1.0], 1, 1.0, 1), BlockClass((1.0,), (1.0,), 0.25))
    >>> round(lower, 6), round(upper, 5)
    (0.5625, 0.5625)
    """
    unit = max(*problems.smoothness, problems.whole if math.isfinite(problems.whole) else 0.0)
    traced = _Traced(problems)
    traced.value(run(traced))
    if traced.count * traced.blocks > limit:
        raise ValueError(f"Gram matrix of order {traced.count * traced.blocks}, above {limit}")
    programme = BlockProgramme(traced, unit)
    best = search(programme, programme.inside(run))
    return lowest(run, problems), best.upper


@cache
def interval(kind: Callable[..., Run], arguments: tuple[Any, ...], problems: BlockClass) -> tuple[float, float, str]:
    """Return `block_worst_case` of a method with its arguments, or NaN and why there is none."""
    if not problems.mu < (1.0 - 1e-9) * min(problems.smoothness):
        return math.nan, math.nan, "the programme is for blocks that bend more than the ridge"
    try:
        return *block_worst_case(kind(*arguments), problems), ""
    except ValueError as error:
        return math.nan, math.nan, f"the programme is too large: {error}"


class _Traced:
    """A problem that is not known yet; every vector has a part in every block."""

    def __init__(self, problems: BlockClass) -> None:
        self.problems, self.weights, self.blocks = problems, problems.weights, len(problems.smoothness)
        self.size = LARGEST * self.blocks
        self.count, self.values = 0, 0
        zero = np.zeros(self.size)
        self.points = [[Point(zero, zero, np.zeros(LARGEST))] for _ in self.weights]
        self.known: dict[tuple[int, bytes], Point] = {}
        self.asked: list[tuple[int, np.ndarray]] = []
        self.start = self._new()
        self.first = self.value(self.start)
        self.last = self.first

    def _new(self) -> np.ndarray:
        if self.count == LARGEST:
            raise ValueError(f"more than {LARGEST} vectors")
        out = np.zeros(self.size)
        out[self.count * self.blocks : (self.count + 1) * self.blocks] = 1.0
        self.count += 1
        return out

    def part(self, x: np.ndarray, b: int) -> np.ndarray:
        return np.where(np.arange(self.size) % self.blocks == b, x, 0.0)

    def point(self, g: int, x: np.ndarray) -> Point:
        key = g, (np.round(x, 12) + 0.0).tobytes()
        if key not in self.known:
            self.asked.append((g, x))
            f = np.eye(1, LARGEST, self.values)[0]
            self.values += 1
            self.known[key] = Point(x, self._new(), f)
            self.points[g].append(self.known[key])
        return self.known[key]

    def gradient(self, g: int, x: np.ndarray) -> np.ndarray:
        return self.point(g, x).g

    def value(self, x: np.ndarray) -> np.ndarray:
        """Return F there, as coefficients of the groups' values."""
        self.last = np.sum([p * self.point(g, x).f for g, p in enumerate(self.weights)], axis=0)
        return self.last


class _Quadratic:
    """Quadratics x'H_g x/2; x may be a matrix, whose columns move side by side."""

    def __init__(self, problems: BlockClass, H: Sequence[np.ndarray], start: np.ndarray) -> None:
        self.weights, self.blocks, self.H, self.start = problems.weights, len(problems.smoothness), H, start
        self.owner = np.repeat(np.arange(self.blocks), len(H[0]) // self.blocks)

    def part(self, x: np.ndarray, b: int) -> np.ndarray:
        return np.where((self.owner == b).reshape(-1, *[1] * (x.ndim - 1)), x, 0.0)

    def gradient(self, g: int, x: np.ndarray) -> np.ndarray:
        return self.H[g] @ x


class BlockProgramme(Programme):
    """The programme of a run over blocks, in units in which the largest smoothness is 1 and F(w_0) - F* <= 1."""

    def __init__(self, traced: _Traced, unit: float) -> None:
        self.traced, m = traced, traced.blocks
        self.gram, self.count = traced.count * m, traced.values
        self.masks = [np.arange(self.gram) % m == b for b in range(m)]
        self.unit, self.mu = unit, traced.problems.mu / unit
        self.smooth = [L / unit for L in traced.problems.smoothness]
        self.oracle: Any = SimpleNamespace(lengths=[math.inf])  # lengths come from the programme alone
        self.scale = 1.0
        self.C, self.c = np.zeros((1, self.gram, self.gram)), traced.last[None, : self.count]
        self.heights = np.zeros(self.count)
        A: list[np.ndarray] = []
        a: list[np.ndarray] = []
        self.star = {}
        for points in ([self._cut(P) for P in some] for some in traced.points):
            for P in points[1:]:
                self.heights[int(np.argmax(P.f))] = 0.5 * sum(self.smooth) * float(P.x @ P.x)
            for (q, Q), (p, P) in itertools.permutations(enumerate(points), 2):
                if p == 0 or q == 0:
                    self.star[int(np.argmax(P.f + Q.f)), q == 0] = len(a)
                for b, L in enumerate(self.smooth):
                    A.append(self._between(P, Q, [b], L))
                    a.append(Q.f - P.f)
        if math.isfinite(traced.problems.whole):
            for Q, P in itertools.permutations(self._of_all(), 2):
                A.append(self._between(P, Q, range(m), traced.problems.whole / unit))
                a.append(Q.f - P.f)
        self.A, self.a = np.array([*A, np.zeros((self.gram, self.gram))]), np.array([*a, traced.first[: self.count]])
        self.b = np.append(np.zeros(len(a)), 1.0)

    def _cut(self, P: Point) -> Point:
        scaled = P.g[: self.gram]  # gradients in units of the smoothness: steps are shares of 1/unit
        return Point(self._scaled(P.x)[: self.gram], scaled, P.f[: self.count])

    def _scaled(self, x: np.ndarray) -> np.ndarray:
        """Return coefficients of a point where gradients are in units of the largest smoothness."""
        out = x * self.unit
        first = self.traced.blocks
        out[:first] = x[:first]  # the start is a point itself
        return out

    def _inner(self, u: np.ndarray, v: np.ndarray, blocks: Any = None) -> np.ndarray:
        some = range(len(self.masks)) if blocks is None else blocks
        return np.asarray(sum(product(np.where(self.masks[b], u, 0.0), np.where(self.masks[b], v, 0.0)) for b in some))

    def _between(self, P: Point, Q: Point, blocks: Any, L: float) -> np.ndarray:
        """Return A with <A, G> + f_q - f_p <= 0."""
        dx, rest = P.x - Q.x, P.g - Q.g - self.mu * (P.x - Q.x)
        linear = self._inner(Q.g, dx) + 0.5 * self.mu * self._inner(dx, dx)
        return linear + self._inner(rest, rest, blocks) / (2.0 * (L - self.mu))

    def _of_all(self) -> list[Point]:
        """Return the points of F: those at which all groups were asked, w* among them."""
        groups = [[self._cut(P) for P in some] for some in self.traced.points]
        out = []
        for P in groups[0]:
            same = [next((R for R in some if np.allclose(R.x, P.x, atol=1e-10)), None) for some in groups]
            if all(R is not None for R in same):
                g = sum(p * R.g for p, R in zip(self.traced.weights, same, strict=True) if R is not None)
                f = sum(p * R.f for p, R in zip(self.traced.weights, same, strict=True) if R is not None)
                out.append(Point(P.x, np.asarray(g), np.asarray(f)))
        return out

    def inside(self, run: Run) -> tuple[np.ndarray, np.ndarray]:
        """Return a strictly feasible point: the mean of the Gram matrices of runs on random quadratics."""
        rng, m, each = np.random.default_rng(0), self.traced.blocks, 3
        total, values, copies = np.zeros((self.gram, self.gram)), np.zeros(self.count), max(12, self.gram // 2)
        p = self.traced.problems
        for _ in range(copies):
            H = _random(rng, p, each, share=0.8)
            x = rng.standard_normal(each * m)
            x *= math.sqrt(0.5 / (0.5 * x @ sum(w * h for w, h in zip(p.weights, H, strict=True)) @ x))
            V, f = self._run_on(H, x)
            total, values = total + V.T @ V / copies, values + f / copies
        return factor(total), values

    def _run_on(self, H: Sequence[np.ndarray], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return basis vectors and values of the run on quadratics, in the order in which they were asked for."""
        m, n = self.traced.blocks, len(x)
        owner = np.repeat(np.arange(m), n // m)
        V, f = np.zeros((n, self.gram)), np.zeros(self.count)

        def put(k: int, v: np.ndarray) -> None:
            for b in range(m):
                V[:, k * m + b] = np.where(owner == b, v, 0.0)

        root = math.sqrt(self.unit)  # lengths in which the smoothness is 1
        put(0, root * x)
        for k, (g, at) in enumerate(self.traced.asked):
            point = V @ self._scaled(at)[: self.gram]
            put(k + 1, H[g] @ point / self.unit)
            f[k] = 0.5 * point @ H[g] @ point / self.unit
        return V, f


def lowest(run: Run, problems: BlockClass, seed: int = 0) -> float:
    """Return what a quadratic attains: blocks that share a direction or none, random ones, and changes of the best."""
    rng, m, G = np.random.default_rng(seed), len(problems.smoothness), len(problems.weights)
    room = np.array(problems.smoothness) - problems.mu
    shared = np.sqrt(room)
    whole = min(1.0, (problems.whole - problems.mu) / float(shared @ shared))
    alike = problems.mu * np.eye(m) + whole * np.outer(shared, shared)
    apart = np.diag(problems.mu + np.minimum(room, problems.whole - problems.mu))
    fixed = [[alike] * G, [apart] * G, [problems.mu * np.eye(m)] * G]
    one = problems._replace(weights=(1.0,))
    for k in range(RANDOM):
        fixed.append(_random(rng, one, 1 + k % 2) * G if k % 3 else _random(rng, problems, 1 + k % 2))
    values = [attained(run, problems, H) for H in fixed]
    best = int(np.argmax(values))
    H, value = fixed[best], values[best]
    for k in range(IMPROVED):
        other = _mixed(rng, problems, H, 0.5 ** (1 + k % 8))
        found = attained(run, problems, other)
        H, value = (other, found) if found > value else (H, value)
    return value * (1.0 - 1e-12)


def attained(run: Run, problems: BlockClass, H: Sequence[np.ndarray]) -> float:
    """Return the largest F(w_T)/F(w_0) of quadratics x'H_g x/2 of a class."""
    F = sum(w * h for w, h in zip(problems.weights, H, strict=True))
    M = run(_Quadratic(problems, H, np.eye(len(H[0]))))
    return float(eigh(M.T @ F @ M, F, eigvals_only=True)[-1])


def _fitted(problems: BlockClass, parts: Sequence[np.ndarray], share: float) -> list[np.ndarray]:
    """Return H_g = mu I + a multiple of every part, within the class or with this share of its room."""
    m, n = len(problems.smoothness), len(parts[0])
    size, out = n // m, []
    for P in parts:
        blocks = [P[b * size : (b + 1) * size, b * size : (b + 1) * size] for b in range(m)]
        over = max(np.linalg.norm(B, 2) / (L - problems.mu) for B, L in zip(blocks, problems.smoothness, strict=True))
        out.append(share / over * P)
    whole = np.linalg.norm(sum(w * P for w, P in zip(problems.weights, out, strict=True)), 2)
    shrink = min(1.0, share * (problems.whole - problems.mu) / whole)
    return [problems.mu * np.eye(n) + shrink * P for P in out]


def _random(rng: np.random.Generator, problems: BlockClass, size: int, share: float = 1.0) -> list[np.ndarray]:
    """Return random quadratics of a class with blocks of so many coordinates."""
    n = size * len(problems.smoothness)
    factors = [rng.standard_normal((n, n if share < 1.0 else int(rng.integers(1, n + 1)))) for _ in problems.weights]
    return _fitted(problems, [A @ A.T for A in factors], share)


def _mixed(rng: np.random.Generator, problems: BlockClass, H: Sequence[np.ndarray], size: float) -> list[np.ndarray]:
    """Return quadratics near given ones."""
    n, parts = len(H[0]), []
    for h in H:
        lam, U = np.linalg.eigh(h - problems.mu * np.eye(n))
        root = (U * np.sqrt(np.maximum(lam, 0.0))) @ U.T
        root = root + size * float(np.abs(root).max() or 1.0) * rng.standard_normal((n, n))
        parts.append(root @ root.T)
    return _fitted(problems, parts, 1.0)
