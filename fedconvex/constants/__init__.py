"""Constants that convergence theory speaks of: smoothness, convexity, noise, heterogeneity, each with its origin."""

from fedconvex.constants.record import (
    AT_CENTRE,
    BOUND,
    BOUND_ON_BALL,
    EXACT,
    EXACT_ON_BALL,
    INFINITE,
    MEASURED,
    Constants,
    noise_factor,
)
from fedconvex.constants.trust_region import ball_maximum

__all__ = [
    "AT_CENTRE",
    "BOUND",
    "BOUND_ON_BALL",
    "EXACT",
    "EXACT_ON_BALL",
    "INFINITE",
    "MEASURED",
    "Constants",
    "ball_maximum",
    "noise_factor",
]
