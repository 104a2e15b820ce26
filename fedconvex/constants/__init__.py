"""Constants that convergence theory speaks of: smoothness, convexity, noise, heterogeneity, each with its origin."""

from fedconvex.constants.record import (
    AT_CENTRE,
    BOUND,
    BOUND_ON_BALL,
    EXACT,
    EXACT_ON_BALL,
    INFINITE,
    MEASURED,
    NO_MINIMISER,
    Constants,
    noise_factor,
)

__all__ = [
    "AT_CENTRE",
    "BOUND",
    "BOUND_ON_BALL",
    "EXACT",
    "EXACT_ON_BALL",
    "INFINITE",
    "MEASURED",
    "NO_MINIMISER",
    "Constants",
    "noise_factor",
]
