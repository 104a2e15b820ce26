"""The curse of primal averaging: FedMiD and FedDualAvg of Yuan, Zaheer, Reddi (ICML 2021), Section 4.1, the lasso.

1. Clients with rows of their own mean, columns correlated as 2^-|i - j|; targets from a model of ones and zeros, and
   noise; squared loss with P = strength ‖w‖_1. Two true models: half of ones, and few.
2. FedMiD and FedDualAvg with the same local steps on mini-batches and the same sampled clients, both steps of the
   server 1; client step sizes of a grid, one trajectory for each, and the best by F in the end.
3. Over the rounds: F(w) - F*, how many coefficients are not 0, and how well the true support is recovered (F1).
4. In the last round of FedMiD: how many coefficients of the clients' models, and of their average, are not 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.draws import Draws, key_from_seed
from fedconvex.driver import iterate
from fedconvex.federation import Federation
from fedconvex.losses import Squared
from fedconvex.methods import FedDualAvg, FedMiD
from fedconvex.methods.fedmid import Message
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.intervals import every
from fedconvex.papers.style import COLOURS, blank, legend, panel
from fedconvex.penalties import L1
from fedconvex.problems import Problem

LOCAL_STEPS, BATCH, SAMPLED = 10, 10, 10


class Sizes(NamedTuple):
    """Of one version of the experiment."""

    features: int
    clients: int
    rows: int  # of each client
    rounds: int
    steps: tuple[float, ...]
    truths: tuple[tuple[int, float], ...]  # how many ones, and the strength


FULL = Sizes(1024, 64, 128, 500, (0.0005, 0.001, 0.002), ((512, 0.5**5), (64, 0.5**3)))
QUICK = Sizes(64, 24, 32, 200, (0.003, 0.01, 0.02), ((32, 0.5**5), (8, 0.1)))


class Curve(NamedTuple):
    """One method with the step size of its least objective in the end."""

    method: str
    ones: int  # of the true model
    step_size: float
    gap: np.ndarray  # (rounds + 1,) F(w_t) less the certified lower bound of F*
    nonzero: np.ndarray  # (rounds + 1,)
    f1: np.ndarray  # (rounds + 1,) of the support, against the true one
    local: float = 0.0  # FedMiD: coefficients that are not 0 in a client's model after its local steps, mean
    averaged: int = 0  # FedMiD: the same of the average of these models, before the server's proximal step


def study(*, quick: bool, seed: int, data: None, tell: Progress) -> Findings:
    """Run both methods for every true model and step size, and keep the best of each."""
    sizes, pairs, exact = QUICK if quick else FULL, [], {}
    for i, (ones, strength) in enumerate(sizes.truths):
        tell(i / len(sizes.truths), f"{ones} of {sizes.features} coefficients are 1: the exact solution")
        problem, true = _lasso(sizes, ones, strength, seed)  # 1
        best = problem.solve(1e-9)
        exact[ones] = int(np.count_nonzero(best.w))
        tell((i + 0.5) / len(sizes.truths), f"{ones} of {sizes.features} coefficients are 1: the rounds")
        pairs.append([_curve(make, problem, best.lower, true, sizes, seed) for make in (FedMiD, FedDualAvg)])
    curves = [c for pair in pairs for c in pair]
    notes = (
        "Of the paper: both methods, the lasso on clients with means of their own, and what is measured. The paper was "
        f"not at hand: {sizes.features} features, {sizes.clients} clients of {sizes.rows} rows, {SAMPLED} of them a "
        f"round, {LOCAL_STEPS} local steps on {BATCH} rows"
        + (" are smaller than" if quick else " with half of the coefficients 1 are")
        + " what a published repetition of the experiment states; the second true model, strengths and the grid of "
        "steps are chosen here.",
        "Coefficients of the exact solution that are not 0: " + ", ".join(f"{n} (true {k})" for k, n in exact.items()),
    )
    figures = {"support": _draw(pairs, exact)}
    title = "The curse of primal averaging (Yuan, Zaheer, Reddi 2021)"
    return Findings(title, _claims(pairs), notes, figures, {"rounds": [row for c in curves for row in _points(c)]})


EXPERIMENT = Experiment(
    "primal-averaging",
    "FedMiD and FedDualAvg on a federated lasso: support and objective over rounds",
    study,
    smaller="fewer features, clients and rounds",
)


def _lasso(sizes: Sizes, ones: int, strength: float, seed: int) -> tuple[Problem, np.ndarray]:
    """Return the problem, and where the true model is not 0."""
    rng, clients = np.random.default_rng(seed), []
    d = sizes.features
    true, near = np.arange(d) < ones, 0.5 ** np.abs(np.subtract.outer(np.arange(d), np.arange(d)))
    root = np.linalg.cholesky(near)
    for _ in range(sizes.clients):
        X = rng.normal(size=d) + rng.normal(size=(sizes.rows, d)) @ root.T
        clients.append((X, X @ true.astype(float) + rng.normal(size=sizes.rows)))
    return Problem(Federation.from_clients(clients), Squared(), penalty=L1(strength)), true


def _curve(make: Any, problem: Problem, lower: float, true: np.ndarray, sizes: Sizes, seed: int) -> Curve:
    settings: dict[str, Any] = {"local_steps": LOCAL_STEPS, "batch_size": BATCH, "participation": SAMPLED}
    method, R = make(step_size=sizes.steps, **settings), len(sizes.steps)  # 2
    with np.errstate(all="ignore"):
        states = iterate(method, problem, rounds=sizes.rounds, seed=seed, trajectories=R)
        models = np.stack([s.w for _, s in states])
        final = problem.value(models[-1])
        r = int(np.argmin(np.where(np.isfinite(final), final, np.inf)))
        gap = np.array([problem.value(w) for w in models[:, r]]) - lower
    found = models[:, r] != 0.0  # 3
    hits, size = (found & true).sum(axis=1), found.sum(axis=1)
    curve = Curve(make.__name__, int(true.sum()), sizes.steps[r], gap, size, 2.0 * hits / (size + int(true.sum())))
    if make is not FedMiD:
        return curve
    one, clients = make(step_size=sizes.steps[r], **settings), np.arange(sizes.clients)
    draws = Draws(key_from_seed(seed), np.arange(1), sizes.rounds)
    local = one.local(problem, Message(models[-1, r][None]), clients[None], None, draws)[0].w[0]  # 4
    average = problem.weights @ local
    return curve._replace(local=float((local != 0.0).sum(axis=1).mean()), averaged=int(np.count_nonzero(average)))


def _points(c: Curve) -> list[dict[str, Any]]:
    columns = enumerate(zip(c.gap.tolist(), c.nonzero.tolist(), c.f1.tolist(), strict=True))
    about = {"method": c.method, "true": c.ones, "step size": c.step_size}
    return [about | {"round": t, "F - F*": g, "nonzero": n, "F1": f} for t, (g, n, f) in columns]


def _claims(pairs: Sequence[Sequence[Curve]]) -> tuple[Claim, ...]:
    """Every claim is about all true models and all rounds of the second half; numbers are means over these."""

    def compared(name: str, digits: str) -> tuple[list[np.ndarray], str]:
        late = [np.array([getattr(c, name)[len(c.gap) // 2 :] for c in pair], dtype=float) for pair in pairs]
        means = zip((v.mean(axis=1) for v in late), pairs, strict=True)
        words = (f"{m:{digits}} and {d:{digits}} (true {pair[0].ones})" for (m, d), pair in means)
        return late, "FedMiD and FedDualAvg: " + ", ".join(words)

    def always(ahead: Iterable[np.ndarray]) -> bool | None:
        return every(True if v.all() else None if v.any() else False for v in ahead)

    (gaps, gap), (sizes, size), (f1s, f1) = (compared(n, "." + f) for n, f in _MEASURES.items())
    mirrors = [mirror for mirror, _ in pairs]
    denser = ", ".join(f"{m.local:.1f} and {m.averaged} (true {m.ones})" for m in mirrors)
    return (
        Claim(
            "The average of FedMiD's clients has a support larger by a fifth than they have",
            all(m.averaged > 1.2 * m.local for m in mirrors),
            f"not 0 in a client's model, and in the average of all: {denser}",
        ),
        Claim("FedMiD's models are denser than FedDualAvg's", always(m > d for m, d in sizes), f"not 0, {size}"),
        Claim("FedDualAvg recovers the support better", always(d > m for m, d in f1s), f"F1, {f1}"),
        Claim("FedDualAvg is nearer to the optimum", always(d < m for m, d in gaps), f"F - F*, {gap}"),
    )


_MEASURES = {"gap": "3g", "nonzero": "1f", "f1": "3f"}


def _draw(pairs: Sequence[Sequence[Curve]], exact: dict[int, int]) -> Any:
    """Draw the objective, the size of the support and its F1 over the rounds, a colour for each method."""
    figure, axes = blank(3)
    for pair, dashes in zip(pairs, ("-", ":"), strict=True):
        for c, colour in zip(pair, COLOURS, strict=False):
            for axis, y in zip(axes, (c.gap, c.nonzero, c.f1), strict=True):
                label = f"{c.method}, {c.ones} ones, step {c.step_size:g}"
                axis.plot(np.arange(len(y)), y, dashes, color=colour, label=label)
        axes[1].axhline(exact[pair[0].ones], color="black", lw=0.8, ls="--")
    panel(axes[0], "objective", "round", "F(w) - F*", log="y")
    panel(axes[1], "coefficients that are not 0", "round", "number (dashed: exact solution)", log="y")
    panel(axes[2], "true support", "round", "F1")
    legend(figure, axes[0], columns=2)
    return figure
