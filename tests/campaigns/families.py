"""Sharp instances that are derived rather than found: families of tiny problems, each with where it comes from.

`sharpest` adds them to what it draws. Steps are shares of 1/L, so that the same numbers serve every theorem.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from fedconvex.theorems.parts.ladders import OTHERS, long_slope, noisy_parabolas, one_in_a_round, opposed_kinks
from fedconvex.theorems.parts.tiny import Sharp, Space, Tiny

__all__ = ["UNITS", "families"]

UNITS = (
    (1.0, 1.0),
    (1e6, 1.0),
    (1e-6, 1.0),
    (1e3, 1.0),
    (1e-3, 1.0),
    (1.0, 1e4),
    (1.0, 1e-4),
    (1e-3, 1e4),
    (1e3, 1e-4),
)  # features, labels


def families(space: Space, found: Iterable[Sharp] = ()) -> Iterator[tuple[int | str, Tiny]]:
    """Yield derived instances, and those found for other theorems, that a space's method can run on; with origins."""
    others = ((s.seed, s.tiny) for s in found)
    for words, tiny in (
        *others,
        *_opposed_kinks(),
        *_long_slopes(),
        *_parabolas_with_noise(),
        *_opposed_balls(),
        *_forgotten_controls(),
        *_halves(),
        *_three_directions(),
        *_one_that_remembers(),
        *_opposed_classes(),
        *_stages(),
    ):
        if tiny.loss not in space.losses or not set(space.knobs) <= set(tiny.knobs):
            continue
        if all(tiny.knobs[k] <= limits.high for k, limits in space.knobs.items()):
            yield words, tiny._replace(knobs={k: tiny.knobs[k] for k in space.knobs})


def _opposed_kinks() -> Iterator[tuple[str, Tiny]]:
    """Two clients that settle where drift balances a gentle slope."""
    for numbers in (
        (0.1, 2, 400, 0.01), (0.24, 2, 300, 0.02), (0.998, 2, 200, 0.05), (0.02, 50, 60, 0.01), (0.05, 20, 100, 0.01),
        (0.1, 8, 200, 0.02), (0.24, 3, 200, 0.02), (0.24, 6, 200, 0.02), (0.06, 3, 300, 0.02), (0.02, 6, 400, 0.01),
    ):  # fmt: skip
        yield "two opposed kinks", opposed_kinks(*numbers)


def _long_slopes() -> Iterator[tuple[str, Tiny]]:
    """One client with a quadratic that turns into a gentle slope."""
    for numbers in (
        (0.24, 64, 1), (0.24, 8, 1), (0.998, 64, 1), (0.998, 8, 1), (0.998, 1, 2), (0.998, 1, 40), (0.0123, 1, 1000),
    ):  # fmt: skip
        for slope in (0.02, 0.08):
            yield "a long slope", long_slope(*numbers, slope)


def _parabolas_with_noise() -> Iterator[tuple[str, Tiny]]:
    """Equal parabolas from the optimum, of one to sixteen clients."""
    for clients in (1, 4, 16):
        for numbers in (
            (0.998, 1, 1), (0.998, 1, 40), (0.24, 1, 60), (0.05, 1, 400), (0.998, 2, 20), (0.24, 4, 60),
        ):  # fmt: skip
            yield "equal parabolas with noise", noisy_parabolas(clients, *numbers)


def _opposed_balls() -> Iterator[tuple[str, Tiny]]:
    """x^2/2 of weight 0.99 against a nearly linear client: radii point apart, and the models settle at x* - rho."""
    for share, T, rho in ((0.02, 400, 0.1), (0.1, 200, 0.1), (0.02, 400, 10.0), (0.02, 400, 1e-3)):
        rows, labels = ((1.0,), (0.05,)), (0.0, float(f"{1.2 * rho * 0.99 / (0.01 * 0.05):.4g}"))
        knobs = {"share": share, "local_steps": 1, "batch_size": 0, **OTHERS, "rho": rho}
        yield "two opposed balls", Tiny(rows, labels, (1, 1), (0.0,), T, knobs, weights=(0.99, 0.01))


def _forgotten_controls() -> Iterator[tuple[str, Tiny]]:
    """Parabolas of which one takes part in a round."""
    for T in (60, 200):
        yield "parabolas, one client in a round", one_in_a_round(10, T)


def _halves() -> Iterator[tuple[str, Tiny]]:
    """Parabolas with minimisers -1 and 1 from the optimum, where all gradients are equally long: sampling is exact."""
    for clients in (4, 6):
        for scheme in (1, 2):
            knobs = {"share": 0.1, "local_steps": 1, "batch_size": 0, **OTHERS, "scheme": scheme, "participation": 2}
            rows, labels = ((1.0,),) * clients, (1.0, -1.0) * (clients // 2)
            yield "opposed parabolas, sampled", Tiny(rows, labels, (1,) * clients, (0.0,), 1, knobs)


def _three_directions() -> Iterator[tuple[str, Tiny]]:
    """Hessians I + δ(g u_k' + u_k g') and minimisers u_k, at the corners of a triangle orthogonal to g.

    ‖H_j - H_k‖ = 3^(1/2) δ where ‖H_k - H‖ = δ, and all of (H_k - H) u_k = δ g point the same way: 3^(-1/2) of what is
    said of pairs of clients, which is all that three clients can do (`docs/theory/fedavg_limit.md`).
    """
    angle = 2.0 * math.pi * np.arange(3) / 3.0
    corners = np.column_stack([np.cos(angle), np.sin(angle), np.zeros(3)])
    delta, g = 1e-3, np.eye(3)[2]
    rows: list[tuple[float, ...]] = []
    labels: list[float] = []
    for u in corners:
        values, vectors = np.linalg.eigh(np.eye(3) + delta * (np.outer(g, u) + np.outer(u, g)))
        X = np.round(math.sqrt(3.0) * (vectors * np.sqrt(values)) @ vectors.T, 9)
        rows += [tuple(row) for row in X.tolist()]
        labels += np.round(X @ u, 9).tolist()
    for share, tau in ((0.01, 1), (0.9, 1), (0.9, 2)):
        knobs = {"share": share, "local_steps": tau, "batch_size": 0, **OTHERS}
        yield "three directions", Tiny(tuple(rows), tuple(labels), (3, 3, 3), (0.0,) * 3, 1, knobs)


def _one_that_remembers() -> Iterator[tuple[str, Tiny]]:
    """Two parabolas, one of curvature 1/η, which forgets in a step: what the other drifts by is all that is left."""
    knobs = {"share": 1.0, "local_steps": 3, "batch_size": 0, **OTHERS}
    yield "one that remembers", Tiny(((0.7,), (1.0,)), (0.7, 0.0), (1, 1), (3.0,), 1, knobs)


def _opposed_classes() -> Iterator[tuple[str, Tiny]]:
    """One class a client, gradients opposite and equally long: rows 1 and -1, nearly a parabola, against a short row.

    Steps far beyond 2/L: a_k = 1 + η λ_k where the truth is η λ_k - 1. Small ones and many rounds: models settle at
    (T - 1)/2 of η times the gradient, and a_k below 1 would say less.
    """
    for share, tau, T, small, more in (
        (20.0, 2, 1, 1e-6, 1),
        (20.0, 2, 2, 1e-7, 1),
        (0.1, 4, 12, 1e-3, 1),
        (20.0, 2, 1, 1e-6, 3),
    ):
        rows, labels = ((1.0,), (-1.0,), *((small,),) * more), (1.0, 1.0, *(-1.0,) * more)
        knobs = {"share": share, "local_steps": tau, "batch_size": 0, **OTHERS}
        start = (2.0 * (more - 1) * small,)  # where the gradients are equally long
        yield "opposed classes", Tiny(rows, labels, (2, *(1,) * more), start, T, knobs, loss="logistic")


def _stages() -> Iterator[tuple[str, Tiny]]:
    """SVRG: one parabola, whose stages are gradient descent; and one curved row of many, nearly all noise."""
    for rows, share, m, batch, T in (
        (1, 0.01, 2000, 1, 1),
        (1, 0.01, 400, 1, 2),
        (1, 0.5, 40, 1, 1),
        (12, 0.01, 20_000, 1, 1),
        (12, 0.02, 20_000, 1, 1),
        (12, 0.1, 20_000, 1, 1),
        (12, 0.15, 20_000, 1, 1),
        (2, 0.9, 300, 2, 1),
        (12, 0.9, 2000, 12, 1),
        (12, 0.5, 2000, 8, 1),
    ):
        X = ((1.0,), *((0.0,),) * (rows - 1))
        knobs = {"share": share, "inner_steps": m, "batch_size": batch}
        yield "stages", Tiny(X, (0.0,) * rows, (rows,), (1.0,), T, knobs)
