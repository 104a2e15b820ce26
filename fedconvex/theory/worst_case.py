"""Exact worst case of deterministic FedAvg over classes of functions, by performance estimation.

Setting
-------
M clients with equal weights, F = (1/M) sum_i F_i, x* minimises F, ‖x^0 - x*‖ <= D. Every round t < T all clients start
at xbar^{t,0} and make tau steps x_i^{t,k+1} = x_i^{t,k} - eta grad F_i(x_i^{t,k}) with full gradients; the server
averages. Shadow iterates xbar^{t,k} = (1/M) sum_i x_i^{t,k}, xbar^{t+1,0} = xbar^{t,tau}.

Assumptions
-----------
Every F_i is L-smooth and mu-strongly convex on R^d, 0 <= mu < L, in any dimension d. The clients differ by

* `AtOptimum`: (1/M) sum_i ‖grad F_i(x*)‖^2 <= zeta^2;
* `UniformUpper`: ‖grad F_i(x) - grad F(x)‖ <= zeta for all i and x (relaxed, see below);
* `Shift`: F_i = f + <b_i, .> with sum_i b_i = 0 and ‖b_i‖ <= zeta: a subclass of the uniform class.

Statement
---------
The largest value of the mean over t < T, k = 1..tau of F(xbar^{t,k}) - F(x*), or of F(xbar^{T,0}) - F(x*), is the value
of a semidefinite programme over the Gram matrix G of {x^0, the gradients} (x* = 0) and the function values f:

    maximise c'f  subject to  <A_j, G> + a_j'f <= b_j,  G >= 0,

where the constraints are, for each function and each ordered pair of its points, the interpolation inequality

    f_p >= f_q + <g_q, x_p - x_q>
           + [‖g_p - g_q‖^2/L + mu ‖x_p - x_q‖^2 - 2 (mu/L) <g_q - g_p, x_q - x_p>] / (2 (1 - mu/L)),

then ‖x^0‖^2 <= D^2 and the heterogeneity of the class. It is exact for `AtOptimum` and `Shift`; for `UniformUpper` it
is an upper bound, because inequalities between pairs and the heterogeneity at the evaluated points are necessary but
not known to suffice. The uniform class lies between the two (`uniform_bracket`). Every value comes with certificates
that are re-checked here: ``upper`` from the multipliers, ``lower`` from a feasible point; the solver is not trusted
(docs/theory/worst_case.md).

Without heterogeneity the value is L D^2/(2 (1 + eta L (tau T + 1))) for eta L <= 1.5 (`closed_form_homogeneous`).

Source
------
Drori and Teboulle (2014), Mathematical Programming 145, for performance estimation; Taylor, Hendrickx and Glineur
(2017), Mathematical Programming 161, Theorem 4, for the interpolation inequality and the interpolating function. The
programmes for FedAvg, the certificates and the closed form are the project's own.

What differs from the printed form
----------------------------------
x* = 0 and f_i* = 0, L = D = 1 inside (eta L, mu/L, zeta/(L D) are what matters); sum_i grad F_i(x*) = 0 is eliminated,
not constrained. With M = 1, with tau = 1, or with zeta = 0 in the two uniform classes, FedAvg is gradient descent on F
and the programme of one client with tau T steps is solved instead. The upper half of the closed form is not proved; it
agrees with the programme to solver accuracy.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedconvex._check import bad, real, whole, wrong_type
from fedconvex.simplex.uncertainty import minimise_over_simplex as _simplex_qp
from fedconvex.theory.bound import Bound, Hypothesis, Quantity, require

__all__ = [
    "AtOptimum",
    "Bracket",
    "Heterogeneity",
    "Instance",
    "Interpolant",
    "Ratio",
    "Shift",
    "Size",
    "UniformUpper",
    "WorstCase",
    "closed_form_homogeneous",
    "programme_size",
    "ratio_table",
    "uniform_bracket",
    "worst_case",
]

LIMIT = 64  # largest Gram matrix that is tried unasked: seconds to two minutes
GAP = 1e-6, 1e-5  # certified gap, relative to the value, that ends the search: in the quick attempts, in the others
QUICK = 2
RANGE = 1e6  # largest ratio of lengths: beyond it double precision certifies nothing useful
EPS = float(np.finfo(float).eps)


# ------------------------------------------------------------------------------------------------ classes of functions


@dataclass(frozen=True)
class AtOptimum:
    """Clients differ at the optimum: (1/M) sum_i ‖grad F_i(x*)‖^2 <= zeta^2. The programme is exact.

    With zeta = 0 the clients share a minimiser and may still differ elsewhere.
    """

    zeta: float = 0.0

    def __post_init__(self) -> None:
        _nonnegative_zeta(self)


@dataclass(frozen=True)
class UniformUpper:
    """Clients differ by at most zeta everywhere: ‖grad F_i - grad F‖ <= zeta. The programme is an upper bound."""

    zeta: float = 0.0

    def __post_init__(self) -> None:
        _nonnegative_zeta(self)


@dataclass(frozen=True)
class Shift:
    """Clients differ by linear terms of size <= zeta, F_i = f + <b_i, .>: exact, a subclass of the uniform class."""

    zeta: float = 0.0

    def __post_init__(self) -> None:
        _nonnegative_zeta(self)


Heterogeneity = AtOptimum | UniformUpper | Shift


def _nonnegative_zeta(h: Any) -> None:
    object.__setattr__(h, "zeta", real(f"{type(h).__name__}.zeta", h.zeta, low=0.0))


# ------------------------------------------------------------------------------------------------------------- results


@dataclass(frozen=True)
class Interpolant:
    """The largest L-smooth mu-strongly convex function through given points, gradients and values.

    With h(x) = F(x) - (mu/2)‖x‖^2, l = L - mu, z_j = x_j - h_j'/l and c_j = h_j - ‖h_j'‖^2/(2 l) (h_j, h_j' the data
    of h),

        h(x) = min over weights w >= 0, sum w = 1, of (l/2) ‖x - sum_j w_j z_j‖^2 + sum_j w_j c_j,
        grad h(x) = l (x - sum_j w_j z_j).

    It is L-smooth and mu-strongly convex whatever the data are, and passes through them if `violation` is <= 0.

    Attributes
    ----------
    L, mu : float
    x, g : array (m, d)
        Points and gradients; point 0 is x* = 0.
    f : array (m,)
        Values.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theory.worst_case import Interpolant
    >>> x, g, f = np.array([[-3.0], [0.0], [3.0]]), np.array([[-1.0], [0.0], [1.0]]), np.array([2.5, 0.0, 2.5])
    >>> huber = Interpolant(1.0, 0.0, x, g, f)
    >>> huber.value(np.array([2.0])), huber.gradient(np.array([2.0]))
    (1.5, array([1.]))
    """

    L: float
    mu: float
    x: np.ndarray
    g: np.ndarray
    f: np.ndarray

    def violation(self) -> float:
        """Return the largest violation of an interpolation inequality: <= 0 if the class interpolates the data."""
        dx, dg = self.x[:, None] - self.x[None], self.g[:, None] - self.g[None]  # [p, q]
        right = np.einsum("qd,pqd->pq", self.g, dx) + _curvature(dx, dg, self.L, self.mu)
        return float(np.max(self.f[None] + right - self.f[:, None] - np.diag(np.full(len(self.f), math.inf))))

    def value(self, x: np.ndarray) -> float:
        """F(x)."""
        return self._at(x)[0]

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """Gradient of F at x, (d,)."""
        return self._at(x)[1]

    def _at(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        ell, dh = self.L - self.mu, self.g - self.mu * self.x
        z = self.x - dh / ell
        c = self.f - 0.5 * self.mu * np.sum(self.x**2, axis=1) - np.sum(dh**2, axis=1) / (2.0 * ell)
        w = _simplex_qp(math.sqrt(ell) * (z - x), c)
        r = x - w @ z
        return float(0.5 * ell * r @ r + w @ c + 0.5 * self.mu * x @ x), ell * r + self.mu * x


@dataclass(frozen=True)
class Instance:
    """Functions and a start that attain ``lower``: the feasible point of the programme, factorised.

    Attributes
    ----------
    start : array (d,)
        x^0; the optimum x* of the mean is 0.
    clients : tuple of Interpolant
        F_1, ..., F_M.
    local_steps, rounds, step_size, quantity
        The run they are bad for.
    """

    start: np.ndarray
    clients: tuple[Interpolant, ...]
    local_steps: int
    rounds: int
    step_size: float
    quantity: Quantity

    def violation(self) -> float:
        """Return the largest violation of an interpolation inequality over the clients."""
        return max(F.violation() for F in self.clients)

    def value(self, x: np.ndarray) -> float:
        """F(x) = (1/M) sum_i F_i(x)."""
        return float(np.mean([F.value(x) for F in self.clients]))

    def simulate(self) -> float:
        """Run FedAvg on the functions and return the quantity, with F(x*) = F(0)."""
        x, shadow = self.start, []
        for _ in range(self.rounds):
            local = [x] * len(self.clients)
            for _ in range(self.local_steps):
                local = [y - self.step_size * F.gradient(y) for F, y in zip(self.clients, local, strict=True)]
                x = np.mean(local, axis=0)
                shadow.append(x)
        points = shadow if self.quantity is Quantity.SHADOW_AVERAGE else shadow[-1:]
        return float(np.mean([self.value(y) for y in points])) - self.value(np.zeros_like(x))


class Size(NamedTuple):
    """Size of a programme: order of the Gram matrix, number of function values, number of linear inequalities."""

    gram: int
    values: int
    constraints: int


@dataclass(frozen=True)
class WorstCase:
    """The value of a programme between two certificates.

    Attributes
    ----------
    value : float
        The solver's optimal value, moved into [lower, upper] if it lies outside: an estimate without guarantee.
    lower, upper : float
        Certified: a feasible point attains ``lower``, and multipliers prove that no feasible point exceeds ``upper``.
        Both speak of the programme. For `AtOptimum` and `Shift` that is the class; for `UniformUpper` only ``upper``
        speaks of the class, and for `Shift` only ``lower`` speaks of the uniform class.
    quantity : Quantity
        What is bounded.
    heterogeneity : Heterogeneity
        The class.
    status : str
        The solver's own words; nothing relies on them.
    solver : str
        The attempt that gave ``value``.
    gram_size, constraints : int
        Size of the programme that was solved.
    seconds : float
        Time of building, solving and certifying.
    instance : Instance
        Functions that attain ``lower``. For `UniformUpper` their heterogeneity is bounded at the evaluated points.
    """

    value: float
    lower: float
    upper: float
    quantity: Quantity
    heterogeneity: Heterogeneity
    status: str
    solver: str
    gram_size: int
    constraints: int
    seconds: float
    instance: Instance = field(repr=False)

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return (
            f"{self.value:.6g} in [{self.lower:.8g}, {self.upper:.8g}] is the worst {self.quantity.value}\n"
            f"  class: {self.heterogeneity}\n"
            f"  Gram matrix {self.gram_size}, {self.constraints} constraints, {self.solver} ({self.status}), "
            f"{self.seconds:.2g} s"
        )


class Bracket(NamedTuple):
    """An interval that holds the worst case of a class."""

    lower: float
    upper: float


class Ratio(NamedTuple):
    """A bound over the worst case: ``least`` = bound/upper, ``most`` = bound/lower. ``most`` < 1 refutes the bound."""

    bound: float
    least: float
    most: float


class _Valued(Protocol):
    @property
    def value(self) -> float: ...


class _Interval(Protocol):
    @property
    def lower(self) -> float: ...
    @property
    def upper(self) -> float: ...


def ratio_table(bounds: Mapping[str, _Valued], worst: _Interval) -> dict[str, Ratio]:
    """Return every bound over the worst case.

    Parameters
    ----------
    bounds : mapping from str to object with ``value``
    worst : WorstCase or Bracket

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Bracket, closed_form_homogeneous, ratio_table
    >>> exact = closed_form_homogeneous(1.0, 1.0, 0.25, 2, 1)
    >>> ratio_table({"itself": exact}, Bracket(exact.value, exact.value))["itself"].least
    1.0
    """
    return {
        name: Ratio(b.value, b.value / worst.upper, b.value / worst.lower if worst.lower > 0.0 else math.inf)
        for name, b in bounds.items()
    }


# ------------------------------------------------------------------------------------------------ the public functions


def closed_form_homogeneous(L: float, D: float, step_size: float, local_steps: int, rounds: int) -> Bound:
    """Return L D^2/(2 (1 + eta L (tau T + 1))): the worst shadow average of equal clients, for eta L <= 1.5.

    Attained by the Huber function with radius r = D/(1 + eta L (tau T + 1)): its slope is L r along the whole run. That
    half is proved; that nothing is worse is verified against the programme (tau T = 1, 2, 4, 6) but not proved.

    Parameters
    ----------
    L, D, step_size : float
        Smoothness, ‖x^0 - x*‖, step.
    local_steps, rounds : int

    Raises
    ------
    AssumptionError
        If eta L > 1.5.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import closed_form_homogeneous
    >>> 7 * closed_form_homogeneous(L=1.0, D=1.0, step_size=0.25, local_steps=2, rounds=1).value
    2.0
    """
    who = "closed_form_homogeneous"
    L, D, eta = (
        real(f"{who}: {n}", v, low=0.0, strict=True) for n, v in (("L", L), ("D", D), ("step_size", step_size))
    )
    steps = whole(f"{who}: local_steps", local_steps, low=1) * whole(f"{who}: rounds", rounds, low=1)
    needs = require(
        "the closed form without heterogeneity",
        Hypothesis("step_size * L <= 1.5", f"step_size * L = {eta * L:g}", eta * L <= 1.5),
    )
    value = L * D**2 / (2.0 * (1.0 + eta * L * (steps + 1)))
    return Bound(
        {"start": value},
        Quantity.SHADOW_AVERAGE,
        "fedconvex, docs/theory/worst_case.md (lower half derived, upper half verified)",
        needs,
    )


def programme_size(
    clients: int,
    local_steps: int,
    rounds: int,
    heterogeneity: Heterogeneity,
    metric: Quantity = Quantity.SHADOW_AVERAGE,
) -> Size:
    """Return the size of the programme that `worst_case` would solve, without building it.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import UniformUpper, programme_size
    >>> programme_size(3, 2, 2, UniformUpper(1.0))
    Size(gram=36, values=33, constraints=433)
    """
    who = "programme_size"
    M, tau, T = _reduced(
        whole(f"{who}: clients", clients, low=1),
        whole(f"{who}: local_steps", local_steps, low=1),
        whole(f"{who}: rounds", rounds, low=1),
        heterogeneity,
    )
    zeta = heterogeneity.zeta if M > 1 else 0.0
    shadow = T * (tau - 1) if metric is Quantity.SHADOW_AVERAGE else 0
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


def worst_case(
    *,
    clients: int,
    local_steps: int,
    rounds: int,
    step_size: float,
    L: float,
    mu: float = 0.0,
    D: float = 1.0,
    heterogeneity: Heterogeneity | None = None,
    metric: Quantity = Quantity.SHADOW_AVERAGE,
    limit: int = LIMIT,
) -> WorstCase:
    """Return the worst case of FedAvg over a class, with certificates and the functions that attain it.

    Parameters
    ----------
    clients, local_steps, rounds : int
        M, tau, T.
    step_size : float
        eta > 0; steps too large to converge are allowed.
    L, mu : float
        Smoothness and strong convexity of every client, 0 <= mu < L.
    D : float
        ‖x^0 - x*‖ <= D.
    heterogeneity : AtOptimum, UniformUpper or Shift
        The class; AtOptimum(0) if not given.
    metric : Quantity
        SHADOW_AVERAGE (mean over post-update shadow iterates) or LAST_SYNCHRONISED.
    limit : int
        Largest Gram matrix to attempt.

    Raises
    ------
    ValueError
        If the Gram matrix is larger than ``limit``, before anything is built; if an argument is out of range.
    RuntimeError
        If every solver fails.

    Examples
    --------
    Two steps of equal clients, 2/7:

    >>> from fedconvex.theory.worst_case import Shift, worst_case
    >>> w = worst_case(clients=2, local_steps=2, rounds=1, step_size=0.25, L=1.0, heterogeneity=Shift(0.0))
    >>> round(w.lower, 4), round(w.upper, 4), w.gram_size
    (0.2857, 0.2857, 4)
    """
    began = time.perf_counter()
    who = "worst_case"
    M, tau, T = (
        whole(f"{who}: {name}", v, low=1)
        for name, v in (("clients", clients), ("local_steps", local_steps), ("rounds", rounds))
    )
    eta = real(f"{who}: step_size", step_size, low=0.0, strict=True)
    L = real(f"{who}: L", L, low=0.0, strict=True)
    mu = real(f"{who}: mu", mu, low=0.0)
    D = real(f"{who}: D", D, low=0.0, strict=True)
    if mu >= L:
        raise bad(f"{who}: mu", f"be below L = {L:g}", mu)
    h = AtOptimum() if heterogeneity is None else heterogeneity
    if abs(1.0 - eta * L) > RANGE ** (1.0 / (tau * T)):
        raise bad(f"{who}: step_size", f"keep |1 - step_size L|^(local_steps rounds) below {RANGE:g}", eta)
    if not isinstance(h, (AtOptimum, UniformUpper, Shift)):
        raise wrong_type(f"{who}: heterogeneity", "be AtOptimum, UniformUpper or Shift", h)
    if h.zeta > RANGE * L * D:
        raise bad(f"{who}: zeta", f"be at most {RANGE:g} L D", h.zeta, "a larger D keeps upper valid")
    if metric not in (Quantity.SHADOW_AVERAGE, Quantity.LAST_SYNCHRONISED):
        raise bad(f"{who}: metric", "be Quantity.SHADOW_AVERAGE or Quantity.LAST_SYNCHRONISED", metric)
    size = programme_size(M, tau, T, h, metric)
    if size.gram > whole(f"{who}: limit", limit, low=1):
        raise bad(
            who,
            f"stay within a Gram matrix of {limit}",
            f"{size.gram}, with {size.constraints} constraints",
            "take fewer clients (2 and 3 gave the same values wherever compared), local steps or rounds, Shift instead "
            "of UniformUpper, or pass limit= and wait: time grows like the sixth power",
        )

    m, t, n = _reduced(M, tau, T, h)
    programme = _Programme(m, t, n, eta * L, mu / L, h if m > 1 else AtOptimum(), h.zeta / (L * D), metric)
    best = _search(programme)

    unit = L * D**2
    functions = [
        Interpolant(L, mu, D * x, L * D * g, unit * f) for x, g, f in programme.extract(best.vectors, best.values)
    ]
    return WorstCase(
        value=unit * min(max(best.objective, best.lower), best.upper),
        lower=unit * best.lower,
        upper=unit * best.upper * (1.0 + 4.0 * EPS),
        quantity=metric,
        heterogeneity=h,
        status=best.status,
        solver=best.solver,
        gram_size=programme.gram,
        constraints=len(programme.b),
        seconds=time.perf_counter() - began,
        instance=Instance(D * best.vectors[:, 0], tuple(functions if m > 1 else functions * M), tau, T, eta, metric),
    )


def uniform_bracket(*, zeta: float, **setting: Any) -> Bracket:
    """Return an interval that holds the worst case of the uniform class: `Shift`'s lower, `UniformUpper`'s upper.

    Parameters
    ----------
    zeta : float
        Uniform heterogeneity.
    **setting
        The other arguments of `worst_case`.
    """
    low = worst_case(heterogeneity=Shift(zeta), **setting)
    return Bracket(low.lower, worst_case(heterogeneity=UniformUpper(zeta), **setting).upper)


def _reduced(clients: int, local_steps: int, rounds: int, h: Heterogeneity) -> tuple[int, int, int]:
    """Return (M, tau, T) of the programme: (1, 1, tau T) where FedAvg is gradient descent."""
    if clients == 1 or local_steps == 1 or (h.zeta == 0.0 and not isinstance(h, AtOptimum)):
        return 1, 1, local_steps * rounds
    return clients, local_steps, rounds


# ------------------------------------------------------------------------------------------------------- the programme


class _Point(NamedTuple):
    """A point of a function: coefficients of x and of the gradient over the basis, of the value over the values."""

    x: np.ndarray  # (gram,)
    g: np.ndarray  # (gram,)
    f: np.ndarray  # (values,)


def _product(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the symmetric matrix A with <A, G> = <u, v> for vectors u, v given by coefficients."""
    outer = np.outer(u, v)
    return 0.5 * (outer + outer.T)


def _curvature(dx: np.ndarray, dg: np.ndarray, L: float, mu: float) -> np.ndarray:
    """Return [‖dg‖^2/L + mu ‖dx‖^2 - 2 (mu/L) <dg, dx>]/(2 (1 - mu/L)) over the last axis."""
    inner = np.sum(dg * dg, -1) / L + mu * np.sum(dx * dx, -1) - 2.0 * mu / L * np.sum(dg * dx, -1)
    return np.asarray(inner / (2.0 * (1.0 - mu / L)))


def _interpolation(p: _Point, q: _Point, mu: float) -> tuple[np.ndarray, np.ndarray]:
    """Return (A, a) of the interpolation inequality <A, G> + a'f <= 0 with L = 1: f_q + ... - f_p <= 0."""
    dx, dg = p.x - q.x, p.g - q.g
    inner = _product(dg, dg) + mu * _product(dx, dx) - 2.0 * mu * _product(dg, dx)
    return _product(q.g, dx) + inner / (2.0 * (1.0 - mu)), q.f - p.f


class _Programme:
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
        zeta: float,
        metric: Quantity,
    ) -> None:
        self.M, self.eta, self.mu, self.h = M, eta, mu, h
        self.zeta = zeta if M > 1 else 0.0
        self.gram, self.count, _ = programme_size(M, tau, T, h, metric)
        self.functions = 1 if isinstance(h, Shift) else M
        self.made: list[tuple[str, int, np.ndarray]] = []  # kind, function, coefficients of the point
        self.used = 0  # function values
        zero, none = np.zeros(self.gram), np.zeros(self.count)

        start = self._vector("start", 0, zero)
        free = [self._vector("optimum", i, zero) for i in range(M - 1)] if self.zeta > 0.0 else [zero] * (M - 1)
        self.at_optimum = [*free, zero - sum(free)]  # grad F_i(x*); of a Shift b_i
        first = [zero] if isinstance(h, Shift) else self.at_optimum
        self.points: list[list[_Point]] = [[_Point(zero, g, none)] for g in first]
        self._known: dict[tuple[int, bytes], _Point] = {}
        self.depth = {zero.tobytes(): 0}  # number of steps that led to a point

        x, shadow = start, []
        self.depth[x.tobytes()] = 0
        for t in range(T):
            local = [x] * M
            for k in range(tau):
                local = [y - eta * self._gradient(i, y) for i, y in enumerate(local)]
                x = np.mean(local, axis=0)
                for y in (x, *local):
                    self.depth.setdefault(y.tobytes(), t * tau + k + 1)
                shadow.append(x)
                if metric is Quantity.SHADOW_AVERAGE or k == tau - 1:
                    for i in range(M):
                        self._gradient(i, x)
        judged = shadow if metric is Quantity.SHADOW_AVERAGE else shadow[-1:]
        self.c = np.mean([self._point(i, y).f for y in judged for i in range(self.functions)], axis=0)
        self._constrain(start)

    def _vector(self, kind: str, function: int, x: np.ndarray) -> np.ndarray:
        self.made.append((kind, function, x))
        return np.eye(1, self.gram, len(self.made) - 1)[0]

    def _point(self, i: int, x: np.ndarray) -> _Point:
        """Evaluate function i at x, once; in the uniform class every function is evaluated wherever one is."""
        key = x.tobytes()
        if (i, key) not in self._known:
            for j in range(self.functions) if isinstance(self.h, UniformUpper) else [i]:
                point = _Point(x, self._vector("gradient", j, x), np.eye(1, self.count, self.used)[0])
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
                    left, right = _interpolation(P, Q, self.mu)
                    A.append(left)
                    a.append(right)
                    b.append(0.0)
        squares = [([start], 1.0)]
        if self.zeta > 0.0 and isinstance(self.h, AtOptimum):
            squares.append((self.at_optimum, self.M * self.zeta**2))
        elif self.zeta > 0.0 and isinstance(self.h, Shift):
            squares += [([v], self.zeta**2) for v in self.at_optimum]
        elif self.zeta > 0.0:
            for same in zip(*self.points, strict=True):
                mean = np.mean([P.g for P in same], axis=0)
                squares += [([P.g - mean], self.zeta**2) for P in same]
        for vectors, bound in squares:
            A.append(np.sum([_product(v, v) for v in vectors], axis=0))
            a.append(none)
            b.append(bound)
        self.A, self.a, self.b = np.array(A), np.array(a), np.array(b)

    # -------------------------------------------------------------------------------------------------- certificates

    def reach(self) -> tuple[float, float]:
        """Return bounds on the trace of G and on |f| over the class: docs/theory/worst_case.md, Section 3."""
        z = self.zeta * (math.sqrt(self.M - 1.0) if isinstance(self.h, AtOptimum) else 1.0)  # on ‖grad F_i(x*)‖
        stretch = max(abs(1.0 - self.eta), abs(1.0 - self.eta * self.mu))
        radius = [1.0]
        for _ in range(max(self.depth.values())):
            radius.append(stretch * radius[-1] + self.eta * z)
        own = 0.0 if isinstance(self.h, Shift) else z  # gradient of a function at the optimum
        trace, largest = 1.0 + self.M * self.zeta**2, 0.0
        for points in self.points:
            for P in points[1:]:
                R = radius[self.depth[P.x.tobytes()]]
                trace += (own + R) ** 2
                largest = max(largest, own * R + 0.5 * R**2)
        return trace, largest

    def certify_above(self, multipliers: np.ndarray) -> float:
        """Return an upper bound on the programme from any multipliers: clipped, flow repaired, residual paid for.

        c'f <= b'y - <S, G> + r'f with S = sum_j y_j A_j and r = c - sum_j y_j a_j for every y >= 0.
        """
        if not np.isfinite(multipliers).all():
            return math.inf
        y = np.maximum(multipliers, 0.0)
        r = self.c - y @ self.a
        for v, residual in enumerate(r):  # an inequality with x* moves f_v alone: a = e_v or -e_v
            y[self.star[v, residual < 0.0]] += abs(residual)
        r = self.c - y @ self.a
        S = np.einsum("j,jkl->kl", y, self.A)
        trace, largest = self.reach()
        size = float(y @ np.sqrt(np.einsum("jkl,jkl->j", self.A, self.A)))
        rounding = EPS * (len(y) + 10.0 * self.gram) * size
        negative = max(0.0, rounding - float(np.linalg.eigvalsh(S)[0]))
        loose = float(np.sum(np.abs(r))) + EPS * len(y) * float(np.sum(y))
        return float(y @ self.b) * (1.0 + EPS * len(y)) + negative * trace + loose * largest

    def slack(self, V: np.ndarray, f: np.ndarray) -> np.ndarray:
        """b_j - <A_j, V'V> - a_j'f."""
        return self.b - np.einsum("jkl,kl->j", self.A, V.T @ V) - self.a @ f

    def certify_below(self, G: np.ndarray, f: np.ndarray, inner: tuple[np.ndarray, np.ndarray]) -> _Feasible:
        """Return a feasible point near (G, f): projected to G >= 0, then moved towards a strictly feasible point."""
        V, (V0, f0) = _factor(G), inner
        G = V.T @ V
        short, room = self.slack(V, f), self.slack(V0, f0)
        margin = 1e-14 * (1.0 + float(np.trace(G)))
        need = np.maximum(margin - short, 0.0)
        theta = float(np.max(need / np.maximum(need + room, 1e-300)))
        while theta < 1.0:
            W, w = _factor((1.0 - theta) * G + theta * V0.T @ V0), (1.0 - theta) * f + theta * f0
            if self.slack(W, w).min() >= 0.0:
                return _Feasible(float(self.c @ w) * (1.0 - 4.0 * EPS), W, w)
            theta = 2.0 * theta + 1e-14
        return _Feasible(float(self.c @ f0) * (1.0 - 4.0 * EPS), V0, f0)

    def inner_point(self, copies: int = 12, d: int = 4) -> tuple[np.ndarray, np.ndarray]:
        """Return a strictly feasible point: the mean of the Gram matrices of runs on random quadratics."""
        rng = np.random.default_rng(0)
        total, values = np.zeros((self.gram, self.gram)), np.zeros(self.count)
        for _ in range(copies):
            H, E = _hessian(rng, d, self.mu), [_hessian(rng, d, self.mu) for _ in range(self.M)]
            B = rng.standard_normal((self.M, d))
            B -= B.mean(axis=0)
            B *= 0.5 * self.zeta / max(float(np.max(np.linalg.norm(B, axis=1))), 1e-300)
            x0 = rng.standard_normal(d)
            x0 *= 0.9 / np.linalg.norm(x0)
            spread = 1.0
            while True:
                V, f = self.realise([(1.0 - spread) * H + spread * Ei for Ei in E], B, x0)
                norms = self.slack(V, f)[self.b > 0.0]  # the inequalities that are not interpolation
                if norms.min() > 0.0 or spread < EPS:
                    break
                spread *= 0.5
            total += V.T @ V / copies
            values += f / copies
        V = _factor(total)
        if self.slack(V, values).min() <= 0.0:  # no room in double precision: the zero functions, feasible always
            return np.zeros((1, self.gram)), np.zeros(self.count)
        return V, values

    def realise(self, H: list[np.ndarray], B: np.ndarray, x0: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return basis vectors and values of a run on F_i = x'H_i x/2 + <B_i, x> (for Shift, H_0 for all)."""
        V, f = np.zeros((len(x0), self.gram)), []
        linear = np.zeros_like(B) if isinstance(self.h, Shift) else B
        for j, (kind, i, x) in enumerate(self.made):
            if kind == "gradient":
                p = V @ x
                V[:, j] = H[i] @ p + linear[i]
                f.append(float(0.5 * p @ H[i] @ p + linear[i] @ p))
            else:
                V[:, j] = x0 if kind == "start" else B[i]
        return V, np.array(f)

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


class _Feasible(NamedTuple):
    value: float
    vectors: np.ndarray  # (d, gram)
    values: np.ndarray


def _hessian(rng: np.random.Generator, d: int, mu: float) -> np.ndarray:
    Q, _ = np.linalg.qr(rng.standard_normal((d, d)))
    return np.asarray((Q * (mu + (1.0 - mu) * rng.uniform(0.2, 0.8, d))) @ Q.T)


def _factor(G: np.ndarray) -> np.ndarray:
    """Return V with V'V the nearest positive semidefinite matrix; rows of no length are left out."""
    lam, Q = np.linalg.eigh(0.5 * (G + G.T))
    keep = lam > EPS * max(float(lam[-1]), 0.0)
    return np.asarray((Q[:, keep] * np.sqrt(lam[keep])).T)


# ------------------------------------------------------------------------------------------------------------- solving


class _Best(NamedTuple):
    objective: float
    lower: float
    upper: float
    vectors: np.ndarray  # (d, gram), attain lower
    values: np.ndarray
    solver: str
    status: str


class _Attempt(NamedTuple):
    """A solver at a tolerance.

    ``tighten`` pulls the primal constraints in, so that inaccurate points stay feasible. ``whiten`` changes the basis
    so that the strictly feasible Gram matrix becomes the identity, and scales the inequalities: slower, and better
    where all iterates lie close together (small steps).
    """

    name: str
    solver: str
    options: dict[str, Any]
    tighten: float = 0.0
    whiten: bool = False


def _clarabel(tol: float, tighten: float = 0.0, whiten: bool = False) -> _Attempt:
    options = {"tol_gap_abs": tol, "tol_gap_rel": tol, "tol_feas": tol}
    name = f"Clarabel {tol:g}" + (", tightened" if tighten else "") + (", whitened" if whiten else "")
    return _Attempt(name, "CLARABEL", options, tighten, whiten)


ATTEMPTS = (
    _clarabel(1e-11),
    _clarabel(1e-9, tighten=1e-9),
    _clarabel(1e-11, whiten=True),
    _clarabel(1e-7, tighten=1e-8),
    _clarabel(1e-6, tighten=1e-7),
    _Attempt("SCS 1e-7", "SCS", {"eps_abs": 1e-7, "eps_rel": 1e-7, "max_iters": 20_000}, 1e-7),
)


def _solve(
    programme: _Programme, attempt: _Attempt, inner: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, str] | None:
    """Solve the dual, minimise b'y subject to sum_j y_j A_j >= 0, sum_j y_j a_j = c, y >= 0; return (G, f, y, status).

    The dual has far fewer variables than the Gram matrix has entries, and both solvers return (G, f) as its
    multipliers. None if the solver gives up.
    """
    import cvxpy as cp
    from scipy.sparse import csr_array

    n, count = programme.gram, len(programme.b)
    A, scale, R = programme.A, np.ones(count), np.eye(n)
    b = programme.b - np.minimum(attempt.tighten, 0.01 * programme.slack(*inner))
    if attempt.whiten:
        if not inner[0].any():
            return None
        R = _root(inner[0].T @ inner[0])
        A = R @ A @ R.T  # <A, R'H R> = <R A R', H>
        scale = 1.0 / np.sqrt(np.einsum("jkl,jkl->j", A, A))
    y = cp.Variable(count, nonneg=True)
    slack = cp.reshape(csr_array((A.reshape(count, n * n) * scale[:, None]).T) @ y, (n, n), order="C") >> 0
    flow = csr_array((programme.a * scale[:, None]).T) @ y == programme.c
    problem = cp.Problem(cp.Minimize((b * scale) @ y), [slack, flow])
    try:
        with warnings.catch_warnings():  # "may be inaccurate": the certificates say how much
            warnings.simplefilter("ignore")
            problem.solve(solver=attempt.solver, **attempt.options)
    except cp.SolverError:
        return None
    if y.value is None or slack.dual_value is None or flow.dual_value is None:
        return None
    return R.T @ slack.dual_value @ R, -flow.dual_value, y.value * scale, str(problem.status)


def _root(G: np.ndarray, floor: float = 1e-6) -> np.ndarray:
    """Return a regular R with R'R near G: small eigenvalues of the correlation matrix are raised to ``floor``."""
    d = np.sqrt(np.diag(G))
    lam, U = np.linalg.eigh(G / np.outer(d, d))
    return np.asarray((U * np.sqrt(np.maximum(lam, floor * lam[-1]))) @ U.T * d)


def _search(programme: _Programme) -> _Best:
    """Try the attempts in turn until the certified gap is small; keep the best of each certificate."""
    inner = programme.inner_point()
    found = _Feasible(-math.inf, *inner)
    objective, upper, error, solver, status = math.nan, math.inf, math.inf, "none", "failed"
    for number, attempt in enumerate(ATTEMPTS):
        if upper - found.value <= GAP[number >= QUICK] * upper < math.inf:
            break
        answer = _solve(programme, attempt, inner)
        if answer is None or not all(np.isfinite(part).all() for part in answer[:3]):
            continue
        G, f, y, words = answer
        above, below = programme.certify_above(y), programme.certify_below(G, f, inner)
        if above - below.value < error:
            error, objective = above - below.value, float(programme.c @ f)
            solver, status = attempt.name, words
        upper, found = min(upper, above), max(found, below, key=lambda point: point.value)
    if not math.isfinite(upper):
        raise RuntimeError(
            f"worst_case: Clarabel and SCS failed on a Gram matrix of {programme.gram}: try a smaller step_size or case"
        )
    return _Best(objective, found.value, upper, found.vectors, found.values, solver, status)
