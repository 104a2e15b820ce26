"""Data sharing: test accuracy and weight divergence over the shared share: Zhao et al. (arXiv:1806.00582), Section 4.

1. Ten clients with one class each, equally many rows; multinomial logistic regression, l2 = 0.001, from w = 0.
2. A set G of rows that no client has, beta = 0 to 25 % of the clients' rows, uniform over the classes or as they come
   (all of one half of the classes); every client adds all of G to its rows.
3. FedAvg, everybody, ten local steps: test accuracy over the rounds.
4. After the first round: the distance from as many steps of gradient descent on all rows, relative to its model, and
   the bound of that distance; EMD_k of the label distributions before and after.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fedconvex.constants import Constants
from fedconvex.datasets import share
from fedconvex.driver import iterate
from fedconvex.federation import Federation
from fedconvex.losses import Softmax
from fedconvex.methods import FedAvg
from fedconvex.papers.agnostic_clients.data import L2, SplitData, TrainTest, load_splits
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.images import accuracies
from fedconvex.papers.repeated import Repeated, draw_curves, higher, repeat
from fedconvex.papers.style import blank, panel
from fedconvex.problems import Problem
from fedconvex.report import weight_divergence
from fedconvex.theorems.weight_divergence import divergence_convex, gradient_gaps, label_distance

STEPS, FIVE = 10, 0.05  # local steps; the share of which the paper says most
EVEN, SKEWED, NONE = "uniform", "half of the classes", 0.0


class SharingScale(NamedTuple):
    """How large the experiment is."""

    repetitions: int
    rounds: int
    shares: tuple[float, ...]  # beta
    block: int


FULL = SharingScale(10, 50, (0.0, 0.02, 0.05, 0.1, 0.25), 1)
QUICK = SharingScale(3, 20, (0.0, 0.05, 0.25), 2)


def one_class_each(rows: TrainTest, seed: int) -> tuple[Federation, np.ndarray]:
    """Return clients with a class each, equally many rows, and which rows nobody has; those are three tenths."""
    rng, classes = np.random.default_rng(seed), int(rows.y.max()) + 1
    least = int(0.7 * np.bincount(rows.y.astype(int)).min())
    taken = np.concatenate([rng.permutation(np.flatnonzero(rows.y == c))[:least] for c in range(classes)])
    free = np.setdiff1d(np.arange(len(rows.y)), taken)
    return Federation.from_arrays(rows.X[taken], rows.y[taken], rows.y[taken].astype(int)), free


def runs(rows: TrainTest, number: int, scale: SharingScale, seed: int) -> Iterator[dict[str, Any]]:
    """Yield what FedAvg reaches for every share and kind of G."""
    key = 1000 * seed + number
    federation, free = one_class_each(rows, key)  # 1
    classes = federation.K
    before = label_distance(Problem(federation, Softmax(classes)))
    for kind in (EVEN, SKEWED):
        mine = free if kind == EVEN else free[rows.y[free] < classes / 2]
        holdout = Federation.from_clients([(rows.X[mine], rows.y[mine])])
        for beta in scale.shares:
            shared = share(federation, fraction=beta, balanced=kind == EVEN, holdout=holdout, seed=key)  # 2
            problem = Problem(shared.federation, Softmax(classes), L2)
            row = {"shared": beta, "labels": kind, "repetition": number}
            yield row | _measured(problem, rows, scale.rounds, before, float(shared.own[0]))


def _measured(problem: Problem, rows: TrainTest, rounds: int, before: np.ndarray, own: float) -> dict[str, Any]:
    constants = _smoothness(problem)
    assert constants.L_k is not None
    eta = 1.0 / float(np.max(constants.L_k))
    method, last = FedAvg(step_size=eta, local_steps=STEPS), None
    path = []
    for _, last in iterate(method, problem, rounds=rounds):  # 3
        path.append(float(accuracies(last.w, rows.X_test, rows.y_test)[0]))
    start = np.zeros(problem.model_shape)
    settings: dict[str, Any] = {"step_size": eta, "local_steps": STEPS}
    bound = divergence_convex(constants, gradient_gaps(problem, start, **settings), **settings).value  # 4
    central = _descent(problem, eta)
    size = float(np.linalg.norm(central))
    emd = label_distance(problem)
    return {
        "accuracy": path[-1],
        "divergence": float(weight_divergence(method, problem, rounds=1)[1]),
        "bound": float(bound) / size,
        "EMD": float(emd.mean()),
        "EMD over own share": float(np.abs(emd - own * before).max()),
    }


def _smoothness(problem: Problem) -> Constants:
    """Return L_k, half the largest eigenvalue of the rows' second moments and l2, mu_k = l2, and p_k."""
    fed = problem.federation
    spans = zip(fed.ptr[:-1], fed.ptr[1:], strict=True)
    L_k = [0.5 * float(np.linalg.norm(fed.X[a:b], 2)) ** 2 / (b - a) + L2 for a, b in spans]
    return Constants(L_k=np.array(L_k), mu_k=np.full(fed.K, L2), p=problem.weights)


def _descent(problem: Problem, step_size: float) -> np.ndarray:
    w = np.zeros(problem.model_shape)
    for _ in range(STEPS):
        w = w - step_size * problem.gradient(w)
    return w


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Run FedAvg for every share on every division of the rows; data: a path as for `load_splits`."""
    scale = QUICK if quick else FULL
    loaded = load_splits(data, scale.repetitions, seed, scale.block)
    rows = repeat(scale.repetitions, lambda r: runs(loaded.splits[r], r, scale, seed), tell)
    found = Repeated(tuple(rows), loaded.overlap)
    return Findings(
        f"Data sharing (Zhao et al. 2018): {loaded.name}",
        tuple(claims(found)),
        _notes(loaded, scale),
        {"sharing": _draw(found)},
        {"table": found.table(("labels", "shared"), ("accuracy", "divergence", "bound", "EMD")), "runs": rows},
    )


EXPERIMENT = Experiment(
    "data-sharing",
    "test accuracy and weight divergence over the share of rows that clients share, and its label distribution",
    study,
    "optional npz with x_train, y_train, x_test, y_test (MNIST); default the bundled digits",
    "three divisions, three shares, 20 rounds, coarser images",
)


# ---------------------------------------------------------------- what came out


def claims(found: Repeated) -> Iterator[Claim]:
    """Judge by intervals over the divisions; bound and identity by every row."""
    none = {"shared": NONE, "labels": EVEN}
    pairs = [
        (f"{100 * b:g} %", found.minus("accuracy", {"shared": b, "labels": EVEN}, none))
        for b in found.kinds("shared")
        if b > 0.0
    ]
    yield higher("Sharing rows of all classes raises the test accuracy", pairs)
    five = {"shared": FIVE, "labels": EVEN}
    most = {"shared": max(found.kinds("shared")), "labels": EVEN}
    first, later = found.minus("accuracy", five, none), found.minus("accuracy", most, five)
    whole = Repeated(tuple(_steps(found, none, five, most)), found.overlap)
    text = f"The first {100 * FIVE:g} % gain more than all the others up to {100 * most['shared']:g} %"
    yield higher(text, [(f"{first}, then {later}; difference", whole.interval("more"))])
    pairs = [
        (f"{100 * b:g} %", found.minus("accuracy", {"shared": b, "labels": EVEN}, {"shared": b, "labels": SKEWED}))
        for b in found.kinds("shared")
        if b > 0.0
    ]
    yield higher("Rows of all classes are worth more than as many of half of the classes", pairs)
    falls = [
        (f"{100 * b:g} %", found.minus("divergence", none, {"shared": b, "labels": EVEN}))
        for b in found.kinds("shared")
        if b > 0.0
    ]
    yield higher("Sharing lowers the weight divergence after a round", falls)
    ratio = max(r["divergence"] / r["bound"] for r in found.rows)
    yield Claim("The divergence stays below its bound", ratio <= 1.0 + 1e-9, f"largest ratio {ratio:.3g}", True)
    off = max(r["EMD over own share"] for r in found.rows)
    text = "EMD_k shrinks by exactly the share of a client's rows that are its own"
    yield Claim(text, off <= 1e-9, f"largest difference {off:.1e}", everywhere=True)


def _steps(found: Repeated, none: Any, five: Any, most: Any) -> Iterator[dict[str, Any]]:
    at = [found.values("accuracy", **where) for where in (none, five, most)]
    for r, (a, b, c) in enumerate(zip(*at, strict=True)):
        yield {"repetition": r, "more": float((b - a) - (c - b))}


def _notes(data: SplitData, scale: SharingScale) -> tuple[str, ...]:
    rows = data.splits[0]
    return (
        f"Data: {data.name}, {data.about}{len(rows.y):,} rows, of which a client has the same number of one class; "
        f"three tenths and what is left of larger classes are free to be shared; {len(rows.y_test):,} to test on; "
        f"{scale.repetitions} divisions, {scale.rounds} rounds of {STEPS} steps of size 1/L.",
        "The paper (abstract): accuracy falls by up to 55 % for clients of one class, and 5 % of shared rows raise it "
        "by 30 % on CIFAR-10, of networks. The text behind the abstract could not be re-read.",
        "The bound is the convex one of the weight divergence (docs/theory/weight_divergence.md), for the first round.",
    )


def _draw(found: Repeated) -> Any:
    """Draw accuracy over the share, and divergence with its bound."""
    figure, axes = blank(2, width=4.0, height=3.4)
    draw_curves(axes[0], found, "shared", "accuracy", "labels")
    panel(axes[0], "after all rounds", "shared rows over own rows, beta", "test accuracy")
    long = [
        {"shared": r["shared"], "repetition": r["repetition"], "what": f"{words}, {r['labels']}", "size": r[key]}
        for r in found.rows
        for key, words in (("divergence", "divergence"), ("bound", "bound"))
    ]
    draw_curves(axes[1], Repeated(tuple(long)), "shared", "size", "what")
    panel(axes[1], "after one round", "beta", "relative distance from gradient descent", log="y")
    for axis in axes:
        axis.legend(frameon=False, fontsize=7.5)
    return figure
