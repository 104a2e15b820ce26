"""Classes of federated problems: how smooth and convex the clients are, and how they may differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedconvex._check import bad, instance, numeric, real, vector, whole

RANGE = 1e6  # largest ratio of lengths: beyond it double precision certifies nothing useful


@dataclass(frozen=True)
class Heterogeneity:
    """Base of the classes: a measure of how clients differ is at most zeta >= 0.

    Attributes
    ----------
    zeta : float
        The limit, at least 0, in the units of a gradient.

    Raises
    ------
    ValueError, TypeError
        If zeta is negative.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import AtOptimum, Heterogeneity, Shift
    >>> isinstance(AtOptimum(0.5), Heterogeneity), Shift(0.5).zeta
    (True, 0.5)
    """

    zeta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "zeta", real(f"{type(self).__name__}.zeta", self.zeta, low=0.0))


class AtOptimum(Heterogeneity):
    """Clients differ at the optimum: sum_i p_i ‖grad F_i(x*)‖^2 <= zeta^2. The programme is exact.

    With zeta = 0 the clients share a minimiser and may still differ elsewhere.

    Attributes
    ----------
    zeta : float
        zeta_*, at least 0, in the units of a gradient.

    Raises
    ------
    ValueError, TypeError
        If zeta is negative.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import AtOptimum, Problems, fedavg, worst_case
    >>> [round(worst_case(fedavg(0.5, 2, 1), Problems(2, heterogeneity=AtOptimum(z))).value, 3) for z in (0.0, 1.0)]
    [0.167, 0.192]
    """


class UniformUpper(Heterogeneity):
    """Clients differ by at most zeta everywhere: ‖grad F_i - grad F‖ <= zeta. The programme is an upper bound.

    Attributes
    ----------
    zeta : float
        At least 0, in the units of a gradient.

    Raises
    ------
    ValueError, TypeError
        If zeta is negative.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, UniformUpper, fedavg, worst_case
    >>> round(worst_case(fedavg(0.5, 2, 1), Problems(2, heterogeneity=UniformUpper(1.0))).upper, 3)
    0.188
    """


class Shift(Heterogeneity):
    """Clients differ by linear terms of size <= zeta, F_i = f + <b_i, .>: exact, a subclass of the uniform class.

    Attributes
    ----------
    zeta : float
        Largest ‖b_i‖, at least 0, in the units of a gradient.

    Raises
    ------
    ValueError, TypeError
        If zeta is negative.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, Shift, fedavg, worst_case
    >>> round(worst_case(fedavg(0.5, 2, 1), Problems(2, heterogeneity=Shift(1.0))).lower, 3)
    0.185
    """


@dataclass(frozen=True)
class Arbitrary(Heterogeneity):
    """Clients may differ without limit. The worst case is finite for methods that correct for it only.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Arbitrary, Problems, fedlin, worst_case
    >>> round(worst_case(fedlin(0.25, 2, 1), Problems(2, heterogeneity=Arbitrary())).value, 4)
    0.25
    """

    zeta: float = field(default=0.0, init=False, repr=False)


@dataclass(frozen=True)
class Problems:
    """A class of federated problems: F = sum_i p_i F_i, every F_i L-smooth and mu-strongly convex, any dimension.

    Attributes
    ----------
    clients : int
        M.
    L, mu : float
        Smoothness and strong convexity of every client, 0 <= mu < L.
    D : float
        ‖x^0 - x*‖ <= D; 0 starts at the optimum.
    heterogeneity : AtOptimum, UniformUpper, Shift or Arbitrary
        How the clients differ.
    weights : tuple of float, optional
        p_i > 0, normalised to sum 1; equal if not given.
    sigma : float
        Root of the largest variance of ``client.noisy_gradient``, grad F_i(x) + e_j with probability ``chances[j]``:
        sum_j chances_j e_j = 0, sum_j chances_j ‖e_j‖^2 <= sigma^2.
    chances : tuple of float
        Probabilities of the values of noise; default two equally likely ones, e and -e. What noise of so many values
        attains is a lower bound for all noise of variance sigma^2.

    Raises
    ------
    ValueError
        If a number is out of range.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import AtOptimum, Problems
    >>> Problems(clients=2, L=4.0, heterogeneity=AtOptimum(0.5)).only("start").heterogeneity
    AtOptimum(zeta=0.0)
    """

    clients: int = 1
    L: float = 1.0
    mu: float = 0.0
    D: float = 1.0
    heterogeneity: Heterogeneity = AtOptimum()
    weights: Sequence[float] | None = None
    sigma: float = 0.0
    chances: Sequence[float] = (0.5, 0.5)

    def __post_init__(self) -> None:
        who, h = "Problems", self.heterogeneity
        M = whole(f"{who}.clients", self.clients, low=1)
        L = real(f"{who}.L", self.L, low=1e-100, high=1e100)
        mu, D = (real(f"{who}.{n}", getattr(self, n), low=0.0, high=1e100) for n in ("mu", "D"))
        sigma = real(f"{who}.sigma", self.sigma, low=0.0, high=1e100)
        if mu >= L:
            raise bad(f"{who}.mu", f"be below L = {L:g}", mu)
        instance(f"{who}.heterogeneity", h, AtOptimum, UniformUpper, Shift, Arbitrary)
        if D > 0.0:
            for name, size in (("zeta", h.zeta), ("sigma", sigma)):
                if size > RANGE * L * D:
                    raise bad(f"{who}: {name}", f"be at most {RANGE:g} L D", size, "a larger D keeps upper valid")
        elif not (h.zeta > 0.0 or sigma > 0.0):
            raise bad(f"{who}.D", "be positive where zeta and sigma are 0", D, "nothing would ever move")
        weights = None
        if self.weights is not None:
            p = vector(f"{who}.weights", self.weights, M)
            if not p.min() > 1e-6 * p.max():
                raise bad(f"{who}.weights", "be positive and comparable", p.tolist())
            weights = tuple((p / p.sum()).tolist())
        q = numeric(f"{who}.chances", self.chances)
        if q.ndim != 1 or q.size < 2 or not 1e-6 * q.sum() < q.min() < math.inf:
            raise bad(f"{who}.chances", "be two or more positive probabilities, none of them tiny", f"{self.chances!r}")
        object.__setattr__(self, "chances", tuple((q / q.sum()).tolist()))
        for name, value in (("clients", M), ("L", L), ("mu", mu), ("D", D), ("sigma", sigma), ("weights", weights)):
            object.__setattr__(self, name, value)

    @property
    def p(self) -> np.ndarray:
        """The weights p_i, (M,)."""
        return np.full(self.clients, 1.0 / self.clients) if self.weights is None else np.asarray(self.weights)

    @property
    def length(self) -> float:
        """The unit of length inside the programme: D, or the largest of zeta/L and sigma/L."""
        return self.D if self.D > 0.0 else max(self.heterogeneity.zeta, self.sigma) / self.L

    def only(self, term: str) -> Problems:
        """Return the class with one source of error left: "start" (D), "heterogeneity" (zeta) or "noise" (sigma).

        Its worst case is what a bound's term of that name can at best be.
        """
        kind = type(self.heterogeneity)
        none = self.heterogeneity if kind is Arbitrary else kind(0.0)
        if term == "start":
            return replace(self, heterogeneity=none, sigma=0.0)
        if term == "heterogeneity":
            return replace(self, D=0.0, sigma=0.0)
        if term == "noise":
            return replace(self, D=0.0, heterogeneity=none)
        raise bad("Problems.only: term", 'be "start", "heterogeneity" or "noise"', term)

    def __str__(self) -> str:
        sizes = [f"L = {self.L:g}"] + [f"{n} = {getattr(self, n):g}" for n in ("mu", "D", "sigma") if getattr(self, n)]
        weights = "" if self.weights is None else f", weights {', '.join(f'{p:.3g}' for p in self.weights)}"
        return f"{self.clients} clients, {', '.join(sizes)}, {self.heterogeneity}{weights}"


def largest_at_optimum(problems: Problems) -> np.ndarray:
    """Return bounds on ‖grad F_i(x*)‖ in the units of the programme, (M,)."""
    h, p = problems.heterogeneity, problems.p
    zeta = h.zeta / (problems.L * problems.length)
    if isinstance(h, Arbitrary):
        return np.full(len(p), math.inf)
    return zeta * (np.sqrt((1.0 - p) / p) if isinstance(h, AtOptimum) else np.ones(len(p)))
