"""A large client of a skewed distribution: what weights n_k/n do to the others, against equal weights and AFL.

1. Five small clients have rows of every class, drawn at random; one large client has rows of the first third of the
   classes only. Its share of all rows is that of any client, a half, and 80 %.
2. Multinomial logistic regression, l2 = 0.001, exactly: the minimiser with weights n_k/n (pooled, where FedAvg is to
   arrive), with weights 1/K, the minimax solution over the clients (where AFL is to arrive), and the pooled minimiser
   of the small clients without the large one.
3. Test loss and accuracy of the small clients, on held-out rows of every class, and of the large one, on those of its
   classes, on several divisions.

Mohri, Sivek and Suresh (ICML 2019) argue for AFL by this: weights n_k/n may be far from what the model is used on, and
favour clients with many rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedconvex.federation import Federation
from fedconvex.losses import Softmax
from fedconvex.papers.agnostic_clients.data import L2, UNIFORM, TrainTest, load_splits
from fedconvex.papers.communication import mean_losses
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.images import accuracies
from fedconvex.papers.repeated import Repeated, draw_curves, higher, repeat
from fedconvex.papers.style import blank, legend, panel
from fedconvex.problems import Problem

SMALL, ROWS = 5, 20  # clients of every class, and rows of each
SHARES = (1.0 / (SMALL + 1), 0.5, 0.8)  # of all rows, the large client's
BY_ROWS, ALIKE, FAIR, WITHOUT = "n_k/n", "1/K", "AFL", "without the large client"
MODELS = (BY_ROWS, ALIKE, FAIR, WITHOUT)
OTHERS, LARGE = "small clients", "large client"
Row = dict[str, Any]


def federation_of(rows: TrainTest, classes: int, share: float, rng: np.random.Generator) -> Federation:  # 1
    """Return the clients: the small ones first, the large one last.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.papers.agnostic_clients.data import load_splits
    >>> from fedconvex.papers.large_client import federation_of
    >>> federation_of(load_splits(splits=2).splits[0], 10, 0.5, np.random.default_rng(0)).sizes.tolist()
    [20, 20, 20, 20, 20, 100]
    """
    order = rng.permutation(len(rows.y))
    small, rest = order[: SMALL * ROWS], order[SMALL * ROWS :]
    skewed = rest[rows.y[rest] < _its_classes(classes)]
    large = skewed[: round(share / (1.0 - share) * SMALL * ROWS)]
    parts = [*np.split(small, SMALL), large]
    return Federation.from_clients([(rows.X[p], rows.y[p]) for p in parts])


def _its_classes(classes: int) -> int:
    """Return how many classes the large client has."""
    return len(np.array_split(np.arange(classes), 3)[0])


def trials(rows: TrainTest, classes: int, number: int, seed: int) -> Iterator[Row]:
    """Yield test loss and accuracy of the small clients and of the large one under every model."""
    its = rows.y_test < _its_classes(classes)
    for share in SHARES:
        fed = federation_of(rows, classes, share, np.random.default_rng([seed, number]))  # the same small clients
        found = solved(fed, classes)
        for name, exact in found.items():
            w = exact.w[None]
            for who, at in ((OTHERS, np.ones_like(its)), (LARGE, its)):  # 3
                X, y = rows.X_test[at], rows.y_test[at]
                row = {"share": share, "model": name, "client": who, "repetition": number, "gap": exact.gap}
                row |= {"loss": float(mean_losses(w, X, y)[0]), "accuracy": float(accuracies(w, X, y)[0])}
                yield row | {"weight": float(found[FAIR].domain_weights[-1])}


def solved(fed: Federation, classes: int) -> dict[str, Any]:  # 2
    """Return the exact solution of every model."""
    loss = Softmax(classes)
    by_rows, alike = Problem(fed, loss, L2), Problem(fed, loss, L2, weights="uniform")
    without = Problem(fed.subset(range(SMALL)), loss, L2)
    return dict(zip(MODELS, (by_rows.solve(), alike.solve(), by_rows.solve_minimax(), without.solve()), strict=True))


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Solve on every division; data: a path as for `load_splits`."""
    times = 3 if quick else 10 if data is None else 5
    loaded = load_splits(data, times, seed, 2 if quick and data is None else 1)
    rows = repeat(times, lambda r: trials(loaded.splits[r], loaded.classes, r, seed), tell)
    found = Repeated(tuple(rows), loaded.overlap)
    return Findings(
        f"A large client of a skewed distribution under weights n_k/n: {loaded.name}",
        tuple(claims(found)),
        _notes(found, loaded.name + (f", {loaded.about.rstrip(', ')}" if loaded.about else ""), times),
        {"large_client": _draw(found)},
        {"table": found.table(("client", "share", "model"), ("loss", "accuracy")), "trials": rows},
    )


EXPERIMENT = Experiment(
    "large-client",
    "one large client of a skewed distribution: what weights n_k/n do to the others, against 1/K and AFL",
    study,
    "optional npz with x_train, y_train, x_test, y_test (MNIST, Fashion-MNIST); default the bundled digits",
    "three divisions, coarser images",
)


# ---------------------------------------------------------------- what came out


def claims(found: Repeated) -> Iterator[Claim]:
    """Judge by intervals over the divisions; the certificates by every solution."""
    equal, *_, most = found.kinds("share")

    def less(client: str, one: Row, other: Row, what: str = "loss") -> Any:
        return found.minus(what, {"client": client, **one}, {"client": client, **other})

    def at(model: str, share: float = most) -> Row:
        return {"model": model, "share": share}

    grows = less(OTHERS, at(BY_ROWS), at(BY_ROWS, equal))
    text = f"With n_k/n the small clients' test loss is higher where the large client has {most:.0%} of the rows than"
    yield higher(f"{text} where it has {equal:.0%}", [("difference", grows)])
    over = [(m, less(OTHERS, at(BY_ROWS), at(m))) for m in (ALIKE, FAIR)]
    yield higher(f"With {most:.0%} of the rows in it: n_k/n serves the small clients worse than 1/K and AFL do", over)
    harm = less(OTHERS, at(BY_ROWS), at(WITHOUT))
    text = f"With {most:.0%} of the rows in it: under n_k/n the small clients are worse off than without the large one"
    yield higher(text, [("difference in loss", harm)])
    joined = [(m, less(OTHERS, at(WITHOUT), at(m))) for m in (ALIKE, FAIR)]
    yield higher("They are better off with it where weights are 1/K, or AFL's", joined)
    pays = [(m, less(LARGE, at(m), at(BY_ROWS))) for m in (ALIKE, FAIR)]
    yield higher("The large client pays for that: its test loss is higher under 1/K and AFL than under n_k/n", pays)
    gap = max(r["gap"] for r in found.rows)
    yield Claim("Every solution is certified to 1e-6", gap <= 1e-6, f"gap at most {gap:.1e}", everywhere=True)


def _notes(found: Repeated, name: str, times: int) -> tuple[str, ...]:
    weights = [f"{s:.0%} of the rows {found.where(share=s).rows[0]['weight']:.2f}" for s in found.kinds("share")]
    return (
        f"Data: {name}; {SMALL} small clients of {ROWS} rows of every class, a large one of the first third of the "
        f"classes; l2 = {L2:g}; {times} divisions, each with the same small clients for every share. Sizes and shares "
        "are chosen here.",
        f"Weight of the large client in AFL's solution, first division: {', '.join(weights)}.",
        f"n_k/n is the pooled model. {UNIFORM} 1/K is uniform over clients.",
    )


def _draw(found: Repeated) -> Any:
    """Draw loss and accuracy of the small clients and of the large one over its share of the rows."""
    figure, axes = blank(4, width=3.2, height=3.3)
    for axis, (client, what) in zip(axes, [(c, w) for c in (OTHERS, LARGE) for w in ("loss", "accuracy")], strict=True):
        shown = found.where(client=client)
        names = MODELS if client == OTHERS else MODELS[:-1]
        draw_curves(axis, shown, "share", what, "model", names, marked=True)
        panel(axis, client, "the large client's share of the rows", f"test {what}, mean and s.d.")
    legend(figure, axes[0], columns=4)
    return figure
