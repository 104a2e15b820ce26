"""What a method may ask of a federated problem, of one that is not known yet and of one that is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, function, instance, real, whole, wrong_type
from fedconvex.theory.worst_case.classes import AtOptimum, Problems, Shift, UniformUpper, largest_at_optimum
from fedconvex.theory.worst_case.expressions import Scalar, Vector
from fedconvex.theory.worst_case.interpolation import Interpolant, Point

OUTCOMES = 4096  # outcomes of sampling and noise that are followed at most
VECTORS = 300  # vectors at which counting stops


class Iterates(NamedTuple):
    """What a method did: models after rounds 1, ..., T, and shadow iterates xbar^{t,k} where they are of interest.

    Attributes
    ----------
    rounds : list of point
        x^1, ..., x^T, the server's models after the rounds.
    shadow : list of point
        The means over clients after every local step, where a metric asks for them; empty otherwise.

    Examples
    --------
    Whoever writes a method for the programme returns them, or the list of ``rounds`` alone.

    >>> from fedconvex.theory.worst_case import Iterates, Problems, worst_case
    >>> def two_steps(problem):
    ...     x = problem.start - 0.5 * problem.gradient(problem.start)
    ...     return Iterates([x - 0.5 * problem.gradient(x)])
    >>> round(worst_case(two_steps, Problems(), "last").value, 4)
    0.1667
    """

    rounds: list[Any]
    shadow: list[Any] = []  # noqa: RUF012 - never changed


Method = Callable[["Oracle"], Any]


class Client:
    """One client: gradients and exact proximal steps of its F_i.

    Attributes
    ----------
    index : int
    weight : float
        p_i.
    oracle : Oracle
        The problem that it belongs to; not kept as an attribute.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, worst_case
    >>> def first_client_alone(problem):
    ...     client = problem.clients[0]
    ...     return [problem.start - client.gradient(problem.start)]
    >>> round(worst_case(first_client_alone, Problems(1), "last").value, 4)
    0.1667
    """

    def __init__(self, oracle: Oracle, index: int) -> None:
        self.index, self.weight, self._oracle = index, float(oracle.p[index]), oracle

    def gradient(self, x: Any) -> Any:
        """grad F_i(x)."""
        return self._oracle._gradient(self.index, x)

    def prox(self, x: Any, step: float) -> Any:
        """Return the point argmin_y F_i(y) + ‖y - x‖^2/(2 step)."""
        return self._oracle._prox(self.index, x, real("client.prox: step", step, low=0.0, strict=True))

    def noisy_gradient(self, x: Any) -> Any:
        """grad F_i(x) + e_j, the value j drawn by the chances of the class; the values depend on the point."""
        if self._oracle.noiseless:
            return self.gradient(x)
        value = self._oracle.choose(len(self._oracle.chances), self._oracle.chances)
        return self.gradient(x) + self._oracle._noise(self.index, x, value)

    def value(self, x: Any) -> Any:
        """F_i(x) - <grad F_i(x*), x> - F_i(x*): summed with the weights over all clients, F(x) - F(x*)."""
        return self._oracle._value(self.index, x)


class Oracle:
    """A federated problem as methods see it.

    Attributes
    ----------
    start : point
        x^0.
    optimum : point
        x*; for metrics.
    p : array (M,)
        The weights.
    noiseless : bool
        Whether noisy gradients are exact: sigma = 0.
    chances : tuple of float
        Probabilities of the values of noise.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, worst_case
    >>> def half_steps(problem):  # problem is an Oracle
    ...     return [problem.start - 0.5 * problem.gradient(problem.start)]
    >>> round(worst_case(half_steps, Problems(L=1.0, D=1.0), "last").value, 4)
    0.25
    """

    noiseless: bool
    chances: Sequence[float]
    start: Any
    optimum: Any
    p: np.ndarray

    @property
    def clients(self) -> tuple[Client, ...]:
        """All clients."""
        return tuple(Client(self, i) for i in range(len(self.p)))

    def sample(self, size: int) -> tuple[Client, ...]:
        """Return ``size`` clients, drawn uniformly without replacement; every outcome is followed."""
        clients = self.clients
        size = whole("sample: size", size, low=1, high=len(clients))
        count = math.comb(len(clients), size)
        drawn = self.choose(count)
        return next(itertools.islice(itertools.combinations(clients, size), drawn, None))

    def mean(self, points: Sequence[Any], clients: Sequence[Client] | None = None) -> Any:
        """Return the mean of one point per client, by weight; of ``clients``, or of all."""
        p = self.p if clients is None else np.array([c.weight for c in clients])
        points = list(points)
        if len(points) != len(p):
            cure = "pass clients= where some were sampled"
            raise bad("mean: points", f"be {len(p)}, one per client", len(points), cure)
        return sum(w * x for w, x in zip((p / p.sum()).tolist(), points, strict=True))

    def gradient(self, x: Any) -> Any:
        """grad F(x)."""
        return self.mean([client.gradient(x) for client in self.clients])

    def value(self, x: Any) -> Any:
        """F(x) - F(x*)."""
        return self.mean([client.value(x) for client in self.clients])

    def choose(self, count: int, chances: Sequence[float] | None = None) -> int:
        """Return one of 0, ..., count - 1, all equally likely unless their chances are given."""
        raise NotImplementedError

    def _gradient(self, i: int, x: Any) -> Any:
        raise NotImplementedError

    def _prox(self, i: int, x: Any, step: float) -> Any:
        raise NotImplementedError

    def _noise(self, i: int, x: Any, value: int = 0) -> Any:
        raise NotImplementedError

    def _value(self, i: int, x: Any) -> Any:
        raise NotImplementedError


class Drawn(NamedTuple):
    """One outcome of all choices of a run."""

    taken: tuple[int, ...]
    sampled: tuple[tuple[int, ...], ...]  # clients, in every call of `sample`
    probability: float


class ManyOutcomesError(ValueError):
    """More outcomes, or more vectors, than are followed."""


class NeedsClientsError(Exception):
    """A method asked for single clients where F alone was offered."""


class Made(NamedTuple):
    """How a vector of the basis came about: start, optimum (gradient there), noise, gradient or prox at x."""

    kind: str
    client: int
    x: np.ndarray
    step: float
    function: int


class SymbolicOracle(Oracle):
    """A problem that is not known yet: every answer is a new vector of the basis, or one that was given before.

    Inside, lengths are in units of ``problems.length`` and gradients in units of L times that. Every function is
    centred, f_i(x) = F_i(x) - <grad F_i(x*), x> - F_i(x*), which changes neither its class nor sum_i p_i F_i - F*; the
    vectors grad F_i(x*) stand beside. With ``pooled`` there is one function, F, which ranges over the whole class.
    """

    def __init__(self, problems: Problems, pooled: bool = False) -> None:
        h, L, u = problems.heterogeneity, problems.L, problems.length
        self.problems, self.pooled, self.noiseless = problems, pooled, problems.sigma == 0.0
        self.chances = problems.chances
        self.p = np.ones(1) if pooled else problems.p
        self.one = isinstance(h, (Shift, UniformUpper)) and (isinstance(h, Shift) or h.zeta == 0.0)
        self.everywhere = isinstance(h, UniformUpper) and h.zeta > 0.0 and not pooled and len(self.p) > 1
        self.functions = 1 if self.one else len(self.p)
        self.made: list[Made] = []
        self.lengths: list[float] = []  # bounds on the norms of the basis
        zero = np.zeros(0)
        self.points: list[list[Point]] = [[Point(zero, zero, zero)] for _ in range(self.functions)]
        self.count = 0  # function values
        self._known: dict[tuple[Any, ...], Point] = {
            (f, b"", 0.0, b""): points[0] for f, points in enumerate(self.points)
        }
        self._noises: dict[tuple[int, bytes], list[Vector]] = {}
        self.log: list[np.ndarray] = []  # noise in the order of a run's calls
        self.optimum = Vector(zero)
        self.start = Vector(self._new("start", 0, zero, problems.D / u)) if problems.D > 0.0 else self.optimum
        self.at_optimum = self._gradients_at_optimum(problems)
        self._next: list[int] = []
        self._sizes: list[Sequence[float]] = []  # chances of every choice
        self._sampled: list[tuple[int, ...]] = []
        self._L = L

    def _gradients_at_optimum(self, problems: Problems) -> list[np.ndarray]:
        zero, p, h = np.zeros(0), self.p, problems.heterogeneity
        if len(p) == 1 or (h.zeta == 0.0 and isinstance(h, (AtOptimum, Shift, UniformUpper))):
            return [zero] * len(p)
        sizes = largest_at_optimum(problems)
        free = [Vector(self._new("optimum", i, zero, sizes[i])) for i in range(len(p) - 1)]
        last = -sum((float(w) * g for w, g in zip(p, free, strict=False)), Vector(zero)) / float(p[-1])
        return [g.over for g in (*free, last)]

    def _new(self, kind: str, client: int, x: np.ndarray, length: float, step: float = 0.0, f: int = 0) -> np.ndarray:
        if len(self.made) >= VECTORS:
            raise ManyOutcomesError(f"more than {VECTORS}")
        self.made.append(Made(kind, client, x, step, f))
        self.lengths.append(float(length))
        return np.eye(1, len(self.made), len(self.made) - 1)[0]

    def length(self, x: np.ndarray) -> float:
        """Return a bound on the norm of a vector: the triangle inequality, or the contraction of a gradient step."""
        bound = float(sum(abs(x[j]) * self.lengths[j] for j in np.flatnonzero(x)))
        made = self.made[len(x) - 1] if len(x) else None
        if made is not None and made.kind == "gradient":
            step, own = -float(x[-1]), Vector(self.at_optimum[made.client])
            gradient = Vector(np.eye(1, len(x), len(x) - 1)[0]) + own
            if not np.any(np.abs((Vector(x) - Vector(made.x) + step * gradient).over) > 1e-14):
                mu = self.problems.mu / self.problems.L
                stretch = max(abs(1.0 - step), abs(1.0 - step * mu))
                bound = min(bound, stretch * self.length(made.x) + abs(step) * self.length(own.over))
        return bound

    # ------------------------------------------------------------------------------------------------ outcomes

    def outcomes(self, run: Callable[[], Any]) -> Iterator[tuple[Drawn, Any]]:
        """Yield every outcome of the choices in ``run``, with what it returned."""
        self._next = []
        for number in itertools.count():
            if number >= OUTCOMES:
                raise ManyOutcomesError(f"more than {OUTCOMES} outcomes of sampling and noise")
            self._sizes, self._sampled, self.log = [], [], []
            found = run()
            taken = (self._next + [0] * len(self._sizes))[: len(self._sizes)]
            probability = math.prod(chances[i] for chances, i in zip(self._sizes, taken, strict=True))
            yield Drawn(tuple(taken), tuple(self._sampled), probability), found
            while taken and taken[-1] + 1 == len(self._sizes[len(taken) - 1]):
                taken.pop()
            if not taken:
                return
            self._next = [*taken[:-1], taken[-1] + 1]

    def sample(self, size: int) -> tuple[Client, ...]:
        """Return the clients of the outcome that is being followed."""
        clients = super().sample(size)
        self._sampled.append(tuple(c.index for c in clients))
        return clients

    def choose(self, count: int, chances: Sequence[float] | None = None) -> int:
        """Return the choice of the outcome that is being followed."""
        at = len(self._sizes)
        self._sizes.append([1.0 / count] * count if chances is None else chances)
        return self._next[at] if at < len(self._next) else 0

    # ------------------------------------------------------------------------------------------------ answers

    @property
    def clients(self) -> tuple[Client, ...]:
        """All clients."""
        if self.pooled:
            raise NeedsClientsError
        return super().clients

    def mean(self, points: Sequence[Any], clients: Sequence[Client] | None = None) -> Any:
        """Return the mean of one point per client, by weight."""
        if self.pooled:
            raise NeedsClientsError
        return super().mean(points, clients)

    def gradient(self, x: Any) -> Vector:
        """grad F(x)."""
        return self._gradient(0, x) if self.pooled else super().gradient(x)

    def value(self, x: Any) -> Scalar:
        """F(x) - F(x*)."""
        return self._value(0, x) if self.pooled else super().value(x)

    def _evaluated(self, i: int, x: Any, step: float = 0.0) -> Point:
        """Return the point x of client i's function, or with a step the proximal point of x."""
        if not isinstance(x, Vector):
            raise wrong_type("a gradient of the worst case", "be asked for at a point made of points", x)
        size, f = np.abs(x.over), 0 if self.one else i
        over = _trimmed(np.where(size > 1e-14 * np.max(size, initial=0.0), x.over, 0.0))
        key = f, _digest(over), step, _digest(self.at_optimum[i]) if step else b""
        if key not in self._known:
            own, scaled = self.at_optimum[i], step * self._L
            length = self.length(over)
            if step:
                length = (length + scaled * self.length(own)) / (1.0 + scaled)
            g = self._new("prox" if step else "gradient", i, over, length, scaled, f)
            at = over if not step else (Vector(over) - scaled * (Vector(g) + Vector(own))).over
            self._known[key] = self._known[f, _digest(at), 0.0, b""] = self._kept(f, at, g)
            for j in range(self.functions) if self.everywhere else ():
                self._evaluated(j, Vector(at))
        return self._known[key]

    def _kept(self, f: int, at: np.ndarray, g: np.ndarray) -> Point:
        self.points[f].append(Point(at, g, np.eye(1, self.count + 1, self.count)[0]))
        self.count += 1
        return self.points[f][-1]

    def _gradient(self, i: int, x: Any) -> Vector:
        return self._L * (Vector(self._evaluated(i, x).g) + Vector(self.at_optimum[i]))

    def _prox(self, i: int, x: Any, step: float) -> Vector:
        return Vector(self._evaluated(i, x, step).x)

    def _noise(self, i: int, x: Any, value: int = 0) -> Vector:
        key = i, _digest(_trimmed(x.over))
        if key not in self._noises:
            size, q = self.problems.sigma / (self._L * self.problems.length), self.chances
            rest = max(
                range(len(q)), key=lambda j: (q[j], j)
            )  # the likeliest balances the others, without large factors
            free = {
                j: Vector(self._new("noise", i, x.over, size * math.sqrt((1.0 - c) / c)))
                for j, c in enumerate(q)
                if j != rest
            }
            balance = sum((-q[j] / q[rest] * e for j, e in free.items()), Vector(np.zeros(0)))
            self._noises[key] = [free.get(j, balance) for j in range(len(q))]
        self.log.append(self._noises[key][value].over)
        return self._L * self._noises[key][value]

    def _value(self, i: int, x: Any) -> Scalar:
        return self._L * Scalar(np.zeros((0, 0)), self._evaluated(i, x).f)

    def noises(self) -> list[list[tuple[float, np.ndarray]]]:
        """Return the values of noise with their chances, for every client and point that was asked for."""
        return [[(c, e.over) for c, e in zip(self.chances, values, strict=True)] for values in self._noises.values()]


def _trimmed(x: np.ndarray) -> np.ndarray:
    """Return an array without the zeros at its end: `numpy.trim_zeros`, at a tenth of its time."""
    kept = np.flatnonzero(x)
    return x[: kept[-1] + 1] if kept.size else x[:0]


def _digest(x: np.ndarray) -> bytes:
    """Return a key under which points that differ by rounding are the same."""
    return _trimmed(np.round(x, 12) + 0.0).tobytes()


class NumericOracle(Oracle):
    """A problem that is known: interpolated clients, noise and choices in the order of calls."""

    def __init__(
        self,
        p: np.ndarray,
        start: np.ndarray,
        functions: Sequence[Interpolant],
        noise: Sequence[np.ndarray] = (),
        drawn: Sequence[int] = (),
        chances: Sequence[float] = (0.5, 0.5),
    ) -> None:
        self.p, self.start, self.optimum = p, start, np.zeros_like(start)
        self.functions = functions
        self.noiseless, self.chances = not noise, chances
        self._drawn, self._noises = iter(drawn), iter(noise)
        self._least = [F.value(self.optimum) for F in functions]
        self._slopes = [F.gradient(self.optimum) for F in functions]

    def choose(self, count: int, chances: Sequence[float] | None = None) -> int:
        """Return the next of the given choices."""
        return next(self._drawn)

    def _gradient(self, i: int, x: Any) -> np.ndarray:
        return self.functions[i].gradient(x)

    def _prox(self, i: int, x: Any, step: float) -> np.ndarray:
        return self.functions[i].prox(x, step)

    def _noise(self, i: int, x: Any, value: int = 0) -> np.ndarray:
        return next(self._noises)

    def _value(self, i: int, x: Any) -> float:
        return self.functions[i].value(x) - self._least[i] - float(self._slopes[i] @ x)


def iterates(method: Method, oracle: Oracle) -> Iterates:
    """Run a method and return its iterates, whatever it returned them as."""
    function("a method of the worst case", method)
    found = method(oracle)
    if isinstance(found, (Vector, np.ndarray)):
        return Iterates([found])
    if isinstance(found, Iterates):
        return found
    instance("a method of the worst case: what it returns", found, list, tuple)
    if not found or not all(isinstance(x, (Vector, np.ndarray)) for x in found):
        raise wrong_type("a method of the worst case", "return a point, points, or Iterates", found)
    return Iterates(list(found))
