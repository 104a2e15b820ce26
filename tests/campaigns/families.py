"""Sharp instances that are derived rather than found: families of tiny problems, each with where it comes from.

`sharpest` adds them to what it draws. Steps are shares of 1/L, so that the same numbers serve every theorem.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from fedconvex.theorems.parts.ladders import OTHERS, long_slope, noisy_parabolas, one_in_a_round, opposed_kinks
from fedconvex.theorems.parts.tiny import Sharp, Space, Tiny

__all__ = ["UNITS", "families", "large"]

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


def large(name: str) -> list[Tiny]:
    """Return instances in which the numbers of a theorem are far from 1, too large for searches and for the suite."""
    if name == "fedavg-convex-tuned":
        return [
            # noise and shifts of the clients make steps (16) short, and what is seen is the way from the start
            _pulled(1, 1, 2**17, 240.0),
            *(_pulled(1024, 1024, 1, pull) for pull in (10.0, 20.0)),
            *(_shifted(K, tau, T) for K, tau, T in ((2, 8192, 1), (2, 1, 8192), (8192, 16, 16))),
        ]
    if name == "fedavg-convex":
        tinies = [noisy_parabolas(64, 3e-4, 1, 2**15), noisy_parabolas(1, 8e-5, 64, 2**11)]
        tinies += [opposed_kinks(1.0 / tau, tau, T, 0.01) for tau, T in ((50, 2**18), (2**18, 600))]
        return [t._replace(knobs={k: t.knobs[k] for k in ("share", "local_steps", "batch_size")}) for t in tinies]
    if name == "fedavg-strongly-convex":
        return [
            *(_pulled(N, 1, T, 1.0, offset=0.0, scheme=2, sampled=k) for N, k, T in ((64, 1, 256), (2048, 300, 20))),
            *(_steep_and_flat(1024, 0.1).scaled(unit) for unit in (1e-9, 1.0, 1e9)),
        ]
    if name == "fedavg-strongly-convex-sharp":
        few, knobs = _steep_and_flat(2, 0.1), {"local_steps": 1, "batch_size": 0, "scheme": 3}
        drawn = Tiny(((1.0,),) * 64, (1.0, -1.0) * 32, (1,) * 64, (0.0,), 1, knobs)
        return [few, few.scaled(1e3), few.scaled(1e-3), _times(few, 64), drawn]
    if name == "fedavg-refined":
        tinies = [opposed_kinks(*numbers) for numbers in ((0.02, 50, 60, 0.01), (0.1, 8, 200, 0.02))]
        knobs = ("share", "local_steps", "batch_size")
        return [_times(t, 64)._replace(knobs={k: t.knobs[k] for k in knobs}) for t in tinies]
    if name == "fedavg-at-optimum":
        tinies = [_times(opposed_kinks(0.02, 6, 400, 0.01), 1024), opposed_kinks(6e-5, 2048, 400, 0.01)]
        return [t._replace(knobs={k: t.knobs[k] for k in ("share", "local_steps", "batch_size")}) for t in tinies]
    if name.startswith("dynamic-") and name != "dynamic-msd-ball":
        runs = ((64, 1, 1e-3, 400), (1, 64, 1e-3, 400), (1, 64, 1e-5, 400), (64, 64, 1e-3, 100), (1024, 1, 1.9, 1))
        return [_agents(*run).scaled(1.0, 1e6) for run in runs]  # the target moves by little beside the noise
    if name == "scaffold":
        top = 1.0 / 81.001
        slope = long_slope(top, 1, 400, 0.02)
        tinies = [long_slope(top / 64.0, 64, 400, 0.02), _with(slope, share=top / 64.0, server_step=64.0)]
        old = one_in_a_round(12, 200)  # controls
        tinies += [_with(old, share=top / 2048.0, local_steps=2048), _with(old, share=top / 2048.0, server_step=2048.0)]
        tinies += [one_in_a_round(100, 1600), noisy_parabolas(1, top, 1, 2**15)]
        others = ("scheme", "participation", "rho")
        return [t._replace(knobs={k: v for k, v in t.knobs.items() if k not in others}) for t in tinies]
    if name == "fedavg-drift":
        local = {"batch_size": 0}
        apart = [
            Tiny(
                ((1.0,),) * K, (1.0, -1.0) * (K // 2), (1,) * K, (0.0,), T, {"share": 1e-4, "local_steps": tau, **local}
            )
            for K, tau, T in ((2, 1024, 1), (2, 2, 1024), (512, 2, 1))
        ]
        noisy = [noisy_parabolas(64, 1e-4, tau, T) for tau, T in ((64, 1), (2, 64))]
        return apart + [t._replace(knobs={k: t.knobs[k] for k in apart[0].knobs}) for t in noisy]
    if name == "agnostic-rate":
        knobs = {"step_size": 3.9e6, "domain_step_size": 1.0, "radius": 100.0}
        return [Tiny(((1e-4,),), (1.0,), (1,), (-100.0,), 1, knobs, loss="logistic")]
    if name == "agnostic-rate-entropic":
        return [_flat_domains(p, T) for p, T in ((16, 1), (14, 1), (2, 8))]
    return []


def _times(tiny: Tiny, copies: int) -> Tiny:
    return tiny._replace(rows=tiny.rows * copies, labels=tiny.labels * copies, sizes=tiny.sizes * copies)


def _agents(agents: int, tau: int, share: float, T: int) -> Tiny:
    """Return equal parabolas with noise, all of which take part, from the optimum."""
    knobs = {"share": share, "local_steps": tau, "batch_size": 1, "participation": agents}
    return noisy_parabolas(agents, share, tau, T)._replace(knobs=knobs)


def _with(tiny: Tiny, **numbers: float) -> Tiny:
    return tiny._replace(knobs={**tiny.knobs, **numbers})


def _flat_domains(p: int, T: int) -> Tiny:
    """Return domains whose losses hardly depend on the model, with the best entropic steps for one that differs."""
    knobs = {"step_size": 1e6, "domain_step_size": float(f"{4.0 * math.sqrt(2.0 * math.log(p) / T):.3g}")}
    return Tiny(((1e-6,),) * p, (1.0, *(0.0,) * (p - 1)), (1,) * p, (0.0,), T, knobs)


def _pulled(clients: int, tau: int, T: int, pull: float, offset: float = 1.0, **more: int) -> Tiny:
    """Return equal parabolas with noise, from a distance of 1 or from the optimum."""
    tiny = noisy_parabolas(clients, 0.25, tau, T)
    labels = tuple(pull * y for y in tiny.labels)
    return tiny._replace(labels=labels, offset=(offset,), knobs={"local_steps": tau, "batch_size": 1, **more})


def _shifted(clients: int, tau: int, T: int) -> Tiny:
    """Return parabolas with minimisers so far apart that steps (16) are about 3/2 by the end of the run."""
    shift = (0.3 * tau * T) ** 1.5 / (tau * math.sqrt(tau * T))
    labels = tuple((-1.0) ** k * float(f"{shift:.3g}") for k in range(clients))
    knobs = {"local_steps": tau, "batch_size": 0}
    return Tiny(((1.0,),) * clients, labels, (1,) * clients, (1.0,), T, knobs)


def _steep_and_flat(tau: int, curvature: float) -> Tiny:
    """Return two parabolas from the optimum, so many local steps that each client goes to its own minimum."""
    rows = ((1.0,), (float(f"{math.sqrt(curvature):.6g}"),))
    return Tiny(rows, (0.0, 1.0), (1, 1), (0.0,), 1, {"local_steps": tau, "batch_size": 0, "scheme": 0})


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
