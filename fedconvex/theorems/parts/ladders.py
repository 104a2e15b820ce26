"""Tiny problems that are derived rather than found, in numbers that can be chosen: ladders along which terms press."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedconvex.theorems.parts.tiny import Space, Tiny

OTHERS = {"scheme": 0, "participation": 4, "rho": 1e-4, "sampled": 0, "copies": 1}  # numbers of some methods only


def opposed_kinks(share: float, tau: int, T: int, c: float) -> Tiny:
    """Return two clients F -+ zeta w with F' = min(L (w - 1), 0) + g: they settle where drift balances the slope g.

    Rows 1 and -(c + e) of one client, 1 and c of the other, smoothed hinge: L = 1/2, zeta = c/2. g = eta L zeta/7 is
    best for two steps, 0.144 eta tau L zeta/2 for many (`test_planted_drift_constant_four_times_too_small`).
    """
    gentle = 0.072 * tau if tau < 4 else 0.11 * tau
    e = float(f"{c + 2.0 * share * gentle * c - c * c:.4g}") - c
    rows = ((1.0,), (float(f"{-(c + e):.6g}"),), (1.0,), (c,))
    return Tiny(rows, (1.0,) * 4, (2, 2), (0.0,), T, _steps(share, tau, 0), loss="hinge")


def long_slope(share: float, tau: int, T: int, slope: float) -> Tiny:
    """Return a quadratic that turns into a gentle slope of the length of the run (Drori and Teboulle 2014)."""
    length = float(f"{1.1 * share * tau * T * slope:.4g}")
    return Tiny(((1.0,), (-slope,)), (1.0, 1.0), (2,), (length,), T, _steps(share, tau, 0), loss="hinge")


def noisy_parabolas(clients: int, share: float, tau: int, T: int) -> Tiny:
    """Return F = w^2/2 for every client, and rows that pull to either side: nothing but noise from the optimum."""
    rows, labels = ((1.0,),) * (2 * clients), (1.0, -1.0) * clients
    return Tiny(rows, labels, (2,) * clients, (0.0,), T, _steps(share, tau, 1))


def one_in_a_round(copies: int, T: int) -> Tiny:
    """Return parabolas with minimisers -1 and 1, one of them in a round: the controls of the others are old.

    The second feature, all zeros, makes mu = 0 (`test_planted_scaffold_without_client_sampling`).
    """
    knobs = _steps(0.0123, 1, 0) | {"sampled": 1, "copies": copies}
    return Tiny(((1.0, 0.0),) * 2, (1.0, -1.0), (1, 1), (0.0, 0.0), T, knobs)


def _steps(share: float, tau: int, batch: int) -> dict[str, Any]:
    return {"share": share, "local_steps": tau, "batch_size": batch, **OTHERS}


def derived_ladders(space: Space) -> Iterator[list[Tiny]]:
    """Yield ladders that a space's method can climb: local steps, rounds, steps or clients are doubled."""
    doubled = (1, 2, 4, 8, 16, 32, 64)
    for ladder in (
        [opposed_kinks(0.02, tau, 400, 0.01) for tau in (2, 4, 8, 16, 32)],
        [opposed_kinks(share, 2, 400, 0.02) for share in (0.02, 0.04, 0.08, 0.16, 0.24, 0.5, 0.99)],
        *([long_slope(share, tau, 1, 0.02) for tau in doubled] for share in (0.24, 0.998)),
        *([long_slope(share, 1, T, 0.02) for T in doubled] for share in (0.0123, 0.24, 0.998)),
        [long_slope(share, 1, 40, 0.02) for share in (0.02, 0.06, 0.2, 0.998)],
        *([noisy_parabolas(1, share, tau, 20) for tau in doubled[:5]] for share in (0.24, 0.998)),
        [noisy_parabolas(K, 0.998, 1, 20) for K in doubled[:5]],
        [noisy_parabolas(1, 0.998, 1, T) for T in doubled],
        [one_in_a_round(copies, 200) for copies in (1, 2, 4, 8, 12)],
    ):
        tops = {k: limits.high for k, limits in space.knobs.items()}
        rungs = [t for t in ladder if tops.keys() <= t.knobs.keys() and all(t.knobs[k] <= v for k, v in tops.items())]
        if rungs and rungs[0].loss in space.losses:
            yield [t._replace(knobs={k: t.knobs[k] for k in tops}) for t in rungs if t.rounds <= space.rounds[1]]
