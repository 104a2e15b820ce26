"""How far F(w) is above its minimum at most: gaps, bounds by duality, and what rounding may have done to them."""

from typing import TYPE_CHECKING

from fedconvex import _lazy

if TYPE_CHECKING:
    from fedconvex.solvers.certificates.gaps import (
        Certificate,
        ContradictedCertificate,
        UncertifiableError,
        bounded_gap,
        certified_gap,
        contradiction,
        duality_gap,
        gaps_above,
        least_value,
        lower_at,
    )

__all__ = [
    "Certificate",
    "ContradictedCertificate",
    "UncertifiableError",
    "bounded_gap",
    "certified_gap",
    "contradiction",
    "duality_gap",
    "gaps_above",
    "least_value",
    "lower_at",
]

__getattr__, __dir__ = _lazy.attach(__name__, __file__)
