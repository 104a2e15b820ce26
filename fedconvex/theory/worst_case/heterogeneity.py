"""How the clients of a class may differ: at the optimum, uniformly, or by linear terms."""

from __future__ import annotations

from dataclasses import dataclass

from fedconvex._check import real

__all__ = ["AtOptimum", "Heterogeneity", "Shift", "UniformUpper"]


@dataclass(frozen=True)
class Heterogeneity:
    """Base of the three classes: a measure of how clients differ is at most zeta >= 0."""

    zeta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "zeta", real(f"{type(self).__name__}.zeta", self.zeta, low=0.0))


class AtOptimum(Heterogeneity):
    """Clients differ at the optimum: (1/M) sum_i ‖grad F_i(x*)‖^2 <= zeta^2. The programme is exact.

    With zeta = 0 the clients share a minimiser and may still differ elsewhere.
    """


class UniformUpper(Heterogeneity):
    """Clients differ by at most zeta everywhere: ‖grad F_i - grad F‖ <= zeta. The programme is an upper bound."""


class Shift(Heterogeneity):
    """Clients differ by linear terms of size <= zeta, F_i = f + <b_i, .>: exact, a subclass of the uniform class."""
