"""Two populations of writers of unequal size, agnostic federated averaging beside FedAvg: Ro et al. (Interspeech 2021).

1. Two populations with styles of handwriting made from the same digits: upright, and slanted with thick strokes; one
   client in 6.8 is of the slanted ones (500 and 2,900 in the source). Ten classes, l2 = 0.001.
2. FedAvg on everybody, FedAvg on the slanted population only, AgnosticFedAvg with the populations as domains; a part of
   the clients a round, five local steps; server averaging, Nesterov momentum, Adam.
3. The exact pooled model, the exact model of the slanted population only, and the exact minimax model, which minimises
   the larger training loss, with its certificate.
4. 2 and 3 again with a tenth of the slanted clients: how much the small population gains by others is a matter of how
   many rows it has itself.
5. Test accuracy on either population, over draws: the same images in both styles, which nobody has trained on.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.driver import iterate
from fedconvex.federation import Federation
from fedconvex.losses import Softmax
from fedconvex.methods import AgnosticFedAvg, FedAvg, ServerAdam, ServerSGD
from fedconvex.papers.agnostic_clients.data import L2
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.images import accuracies, coarser, read_images, scaled
from fedconvex.papers.intervals import mean_interval
from fedconvex.papers.repeated import Repeated, draw_bars, higher, repeat
from fedconvex.papers.style import blank, legend, panel
from fedconvex.problems import Problem

UPRIGHT, SLANTED = "upright", "slanted"
CLIENT_ROWS, PARTICIPATION, LOCAL = 8, 0.2, 5
SHARE = 500 / 3400  # of the clients, slanted; of the source
STEP, DOMAIN_STEP = 0.1, 0.1
SERVERS: dict[str, Any] = {
    "averaging": ServerSGD(),
    "Nesterov": ServerSGD(momentum=0.9, nesterov=True, step_size=0.3),
    "Adam": ServerAdam(step_size=0.03),
}
POOLED, TARGET, AGNOSTIC = "FedAvg", "FedAvg, slanted only", "AgnosticFedAvg"
EXACT, OWN, MINIMAX = "exact pooled", "exact, slanted only", "exact minimax"
AVERAGING, NOTHING = "averaging", "exact"  # a server, and in the place of one
CLIENTS, FEW = "slanted clients", 0.1  # share of them that take part, that of 4


class WritersScale(NamedTuple):
    """How large the experiment is."""

    repetitions: int
    rounds: int
    rows: int  # to train on, at most
    servers: tuple[str, ...]
    side: int  # pixels of an image's side after averaging, at most


FULL = WritersScale(5, 300, 3400, tuple(SERVERS), 10)
QUICK = WritersScale(3, 150, 3400, ("averaging",), 4)


def restyled(images: np.ndarray, slant: float, thickness: float) -> np.ndarray:
    """Return images (n, h, w) whose rows are moved sideways in proportion to their height, with thicker strokes.

    Parameters
    ----------
    images : array (n, h, w)
    slant : float
        Pixels per row: the middle stays, the top moves to the right.
    thickness : float
        In [0, 1]: how much of the largest of a pixel and its left and right neighbours replaces the pixel.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.papers.writers import restyled
    >>> stroke = np.zeros((1, 3, 3))
    >>> stroke[0, :, 1] = 1.0
    >>> restyled(stroke, 1.0, 0.0)[0]  # the top moves right, the bottom left
    array([[0., 0., 1.],
           [0., 1., 0.],
           [1., 0., 0.]])
    """
    n, h, w = images.shape
    at, out = np.arange(w), np.empty((n, h, w))
    for i in range(h):
        source = at - slant * (0.5 * (h - 1) - i)
        left = np.floor(source).astype(int)
        part = source - left
        row = np.pad(images[:, i].astype(float), ((0, 0), (1, 1)))  # zeros beside the image
        a, b = (row[:, np.clip(j + 1, 0, w + 1)] for j in (left, left + 1))
        out[:, i] = (1.0 - part) * a + part * b
    beside = np.pad(out, ((0, 0), (0, 0), (1, 1)))
    thick = np.maximum(out, np.maximum(beside[:, :, :-2], beside[:, :, 2:]))
    return (1.0 - thickness) * out + thickness * thick


def labelled_images(data: Any) -> tuple[str, np.ndarray, np.ndarray]:
    """Return name, images (n, h, w) and labels, of training and test part together."""
    if data is None:
        from fedconvex.datasets import load_bundled

        digits = load_bundled("digits", standardised=False)
        return "digits of scikit-learn (8 x 8)", digits.X.reshape(-1, 8, 8), digits.y
    arrays = read_images(data)
    images, y = (np.concatenate([arrays[f"{k}_train"], arrays[f"{k}_test"]]) for k in "xy")
    if images.ndim != 3:
        raise bad(f"--data {Path(data).name}", "hold images (n, h, w)", f"shape {images.shape}")
    return Path(data).stem, images, y.astype(float)


def _styles(images: np.ndarray, most: int) -> dict[str, np.ndarray]:
    """Return rows (n, d) of either style, of at most so many pixels a side."""
    side = images.shape[1]
    block = next(b for b in range(1, side + 1) if side % b == 0 and side // b <= most)
    slanted = restyled(images, 0.35, 0.7)
    return {UPRIGHT: coarser(images, block), SLANTED: coarser(slanted, block)}


def populations(images: np.ndarray, y: np.ndarray, scale: WritersScale, seed: int) -> tuple[Problem, dict[str, Any]]:
    """Return the problem with populations as domains, and test rows (X, y) in either style."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))[: scale.rows * 3 // 2]
    train, test = order[: len(order) * 2 // 3 // CLIENT_ROWS * CLIENT_ROWS], order[len(order) * 2 // 3 :]
    client = np.repeat(np.arange(len(train) // CLIENT_ROWS), CLIENT_ROWS)
    slanted = client < round(SHARE * (client[-1] + 1))
    styles = _styles(images[order], scale.side)
    place = {row: i for i, row in enumerate(order.tolist())}
    mine, theirs = ([place[r] for r in part.tolist()] for part in (train, test))
    X = np.where(slanted[:, None], styles[SLANTED][mine], styles[UPRIGHT][mine])
    both = np.vstack([styles[UPRIGHT][theirs], styles[SLANTED][theirs]])
    X, both = scaled(X, both)
    names = np.where(slanted, SLANTED, UPRIGHT)
    federation = Federation.from_arrays(X, y[train], client, domains=names)
    half, labels = len(test), y[test]
    return Problem(federation, Softmax(int(y.max()) + 1), L2), {
        UPRIGHT: (both[:half], labels),
        SLANTED: (both[half:], labels),
    }


def trials(images: np.ndarray, y: np.ndarray, number: int, scale: WritersScale, seed: int) -> Iterator[dict[str, Any]]:
    """Yield test accuracies of every model of a draw, and its larger training objective."""
    key = 1000 * seed + number
    whole, test = populations(images, y, scale, key)
    slanted, upright = (clients_of(whole.federation, style) for style in (SLANTED, UPRIGHT))
    for share, servers in ((1.0, scale.servers), (FEW, (AVERAGING,))):
        own = slanted[: max(1, round(share * len(slanted)))]
        problem = Problem(whole.federation.subset([*own, *upright]), whole.loss, L2)
        for name, server, w, gap in models(problem, servers, scale.rounds, key):
            a = {style: float(accuracies(w[None], *rows)[0]) for style, rows in test.items()}
            row = {CLIENTS: share, "model": name, "server": server, "repetition": number} | a
            row |= {"least": min(a.values()), "difference": a[UPRIGHT] - a[SLANTED], "gap": gap}
            yield row | {"worst objective": float(problem.domain_values(w).max())}


def clients_of(fed: Federation, style: str) -> list[Any]:
    """Return the clients of a population."""
    assert fed.domain is not None and fed.domain_labels is not None
    return [k for k in range(fed.K) if fed.domain_labels[fed.domain[fed.ptr[k]]] == style]


def models(
    problem: Problem, servers: tuple[str, ...], rounds: int, seed: int
) -> Iterator[tuple[str, str, np.ndarray, float]]:
    """Yield name, server, model and certified gap (NaN of a run) of every model."""
    alone = Problem(problem.federation.subset(clients_of(problem.federation, SLANTED)), problem.loss, L2)
    work: dict[str, Any] = {"step_size": STEP, "local_steps": LOCAL, "participation": PARTICIPATION}
    for server in servers:
        kind = SERVERS[server]
        agnostic = AgnosticFedAvg(domain_step_size=DOMAIN_STEP, window=10, server=kind, **work)
        averaged = FedAvg(server=kind, **work)
        for name, method, on in ((POOLED, averaged, problem), (AGNOSTIC, agnostic, problem), (TARGET, averaged, alone)):
            yield name, server, _last(method, on, rounds, seed), np.nan
    for name, exact in ((EXACT, problem.solve()), (OWN, alone.solve()), (MINIMAX, problem.solve_minimax())):
        yield name, NOTHING, exact.w, exact.gap


def _last(method: Any, problem: Problem, rounds: int, seed: int) -> np.ndarray:
    """Return the mean of the models of the last tenth of the rounds."""
    late = [state.w[0] for t, state in iterate(method, problem, rounds=rounds, seed=seed) if t > 0.9 * rounds]
    return np.mean(late, axis=0)


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Train every model on every draw; data: a path as for `read_images`."""
    scale = QUICK if quick else FULL
    name, images, y = labelled_images(data)
    rows = repeat(scale.repetitions, lambda r: trials(images, y, r, scale, seed), tell)
    overlap = 0.5 if 1.5 * scale.rows * scale.repetitions > len(y) else 0.0
    found = Repeated(tuple(rows), overlap)
    return Findings(
        f"Two populations of writers (Ro et al. 2021): {name}",
        tuple(claims(found)),
        _notes(name, scale),
        {"writers": _draw(found, images)},
        {
            "table": found.table((CLIENTS, "model", "server"), (UPRIGHT, SLANTED, "difference", "worst objective")),
            "trials": rows,
        },
    )


EXPERIMENT = Experiment(
    "agnostic-writers",
    "two populations of writers of unequal size: FedAvg, FedAvg on one of them, AgnosticFedAvg, exact minimax",
    study,
    "optional npz with images x_train, y_train, x_test, y_test (MNIST); default the bundled digits",
    "three draws, plain averaging at the server, 150 rounds, coarser images",
)


# ---------------------------------------------------------------- what came out


def claims(found: Repeated) -> Iterator[Claim]:
    """Judge by intervals over the draws; the minimax objective by every draw."""
    servers, every, few = [s for s in found.kinds("server") if s != NOTHING], found, found.where(**{CLIENTS: FEW})
    found = every.where(**{CLIENTS: 1.0})

    def pairs(what: str, one: str, other: str) -> list[Any]:
        each = ({"server": s} for s in servers)
        return [(at["server"], found.minus(what, at | {"model": one}, at | {"model": other})) for at in each]

    def ahead(rows: Repeated, server: str) -> np.ndarray:
        """Return how much higher the agnostic model's accuracy on the slanted is than that of their own model."""
        one, other = (MINIMAX, OWN) if server == NOTHING else (AGNOSTIC, TARGET)
        return rows.values(SLANTED, model=one, server=server) - rows.values(SLANTED, model=other, server=server)

    differ = [(s, found.interval("difference", model=POOLED, server=s)) for s in servers]
    yield higher("FedAvg serves the small population worse", differ)
    yield higher("AgnosticFedAvg's least accuracy is above FedAvg's", pairs("least", AGNOSTIC, POOLED))
    nearer = pairs("difference", POOLED, AGNOSTIC)
    yield higher("The populations differ less under AgnosticFedAvg than under FedAvg", nearer)
    yield higher(
        "Training on the small population only serves the large one worse than AgnosticFedAvg",
        pairs(UPRIGHT, AGNOSTIC, TARGET),
    )
    text = "Ro et al., Table 1: on the small population AgnosticFedAvg is more accurate than training on it only"
    every_one = [(s, mean_interval(ahead(found, s), found.overlap)) for s in (*servers, NOTHING)]
    yield higher(f"{text}; every server, and exact minimax", every_one)
    both = (AVERAGING, NOTHING)
    words = f"with {FEW:.0%} of its clients; averaging, and exact"
    yield higher(f"{text}, {words}", [(s, mean_interval(ahead(few, s), few.overlap)) for s in both])
    text = (
        f"That is a matter of rows: the lead is larger with {FEW:.0%} of the small population's clients than with all"
    )
    larger = [(s, mean_interval(ahead(few, s) - ahead(found, s), found.overlap)) for s in both]
    yield higher(text, larger)
    lead = found.minus("least", {"model": MINIMAX}, {"model": EXACT})
    yield higher("The exact minimax model's least accuracy is above the exact pooled one's", [("difference", lead)])
    best = {(r[CLIENTS], r["repetition"]): r for r in every.where(model=MINIMAX).rows}
    over = min(r["worst objective"] - best[r[CLIENTS], r["repetition"]]["worst objective"] for r in every.rows)
    gap = max(r["gap"] for r in best.values())
    yield Claim(
        "No model has a smaller worst training objective than the certified minimax one",
        over >= -max(gap, 1e-9),
        f"least difference {over:.2g}, certified gap at most {gap:.1e}",
        everywhere=True,
    )


def _notes(name: str, scale: WritersScale) -> tuple[str, ...]:
    return (
        f"Data: {name}; styles are made here: a slant of 0.35 pixels a row and 70 % of the largest of three "
        f"neighbours; clients of {CLIENT_ROWS} rows, one in 6.8 slanted; two thirds of the rows to train on, at most "
        f"{scale.rows:,}; {scale.repetitions} draws, {PARTICIPATION:.0%} of the clients a round, {scale.rounds} "
        f"rounds. Once more with {FEW:.0%} of the slanted clients.",
        f"Chosen here: step sizes {STEP:g} and {DOMAIN_STEP:g}, a window of 10 rounds, server steps (Nesterov 0.3 "
        "with momentum 0.9, Adam 0.03); models are means over the last tenth of the rounds.",
        "The source (EMNIST, 500 and 2,900 writers of two kinds, a network, three trials) is of other data and models: "
        "the direction of its Table 1 is asked for, from memory; its numbers are not compared.",
    )


def _draw(found: Repeated, images: np.ndarray) -> Any:
    """Draw accuracies of either population for every model, and the same digits in both styles."""
    figure, axes = blank(3, width=4.2, height=3.4)
    server = found.kinds("server")[0]
    long = []
    for r in found.rows:
        if r["server"] in (server, NOTHING) and r[CLIENTS] == 1.0:
            row = {"model": r["model"].replace(", ", ",\n"), "repetition": r["repetition"]}
            long += [row | {"population": style, "accuracy": r[style]} for style in (UPRIGHT, SLANTED)]
    draw_bars(axes[0], Repeated(tuple(long)), "accuracy", "model", "population")
    low = min(r["accuracy"] for r in long)
    axes[0].set_ylim(max(0.0, low - 0.1), 1.0)
    axes[0].tick_params(axis="x", labelsize=6.5)
    panel(axes[0], f"server: {server}", y="test accuracy, mean and s.d.")
    some = images[:6].astype(float)
    sheet = np.vstack([np.hstack(list(some)), np.hstack(list(restyled(some, 0.35, 0.7)))])
    axes[1].imshow(sheet, cmap="gray_r", interpolation="nearest")
    axes[1].set_axis_off()
    panel(axes[1], "upright (above) and slanted")
    legend(figure, axes[0], columns=2)
    pairs = ((TARGET, AVERAGING), (AGNOSTIC, AVERAGING), (OWN, NOTHING), (MINIMAX, NOTHING))
    bars = [
        {"part": f"{share:.0%}", "model": m if s == NOTHING else f"{m} (averaging)", **_of(r)}
        for share in found.kinds(CLIENTS)
        for m, s in pairs
        for r in found.where(**{CLIENTS: share}, model=m, server=s).rows
    ]
    draw_bars(axes[2], Repeated(tuple(bars)), "accuracy", "part", "model")
    axes[2].set_ylim(max(0.0, min(r["accuracy"] for r in bars) - 0.1), 1.05)
    panel(axes[2], "part of the slanted clients", y="test accuracy on the slanted")
    axes[2].legend(frameon=False, fontsize=6.5, ncols=2, loc="upper center")
    return figure


def _of(row: dict[str, Any]) -> dict[str, Any]:
    return {"repetition": row["repetition"], "accuracy": row[SLANTED]}
