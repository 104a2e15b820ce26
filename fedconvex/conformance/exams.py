"""Exams: small federations of unequal clients, and what is asked of an implementation on them.

An exam is as small as it can be while readings differ on it: three or four clients of 2 to 5 rows, three features, one
to four rounds. Full batches are deterministic. Where a round draws something, all that it may draw is enumerated: who
took part, or in which batches clients took their rows (at most 4 rows a client and 720 orders).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

ORDERS = 720  # draws of batches in a round that are enumerated, at most
COINS = 16  # steps between two heads, at most: more have a probability of 4e-7 in the exam

DEFAULTS = {  # every hyper-parameter that an exam may give; what an algorithm does not know it leaves alone
    "loss": "squared",
    "l2": 0.25,
    "step_size": 0.07,
    "local_steps": 1,
    "epochs": 1,
    "batch_size": None,
    "participants": None,
    "stragglers": None,
    "seed": 0,
    "start": None,
    "proximal_mu": 0.7,
    "alpha": 0.8,
    "server_step_size": 0.6,
    "momentum": 0.5,
    "client_momentum": 0.4,
    "beta1": 0.7,
    "beta2": 0.9,
    "epsilon": 0.2,
    "domain_step_size": 0.12,
    "rho": 0.3,
    "softmax_mu": 1.5,
    "radius": None,
    "q": 0.8,
    "trim": 0.2,
    "probability": 0.6,
    "top": 1,
}

Rows = tuple[np.ndarray, np.ndarray]


class Exam(NamedTuple):
    """What is asked: a federation, hyper-parameters, how many rounds, and what a round draws.

    Parameters
    ----------
    name : str
        As in answers.
    clients : tuple of (X, y)
        Rows (n_k, d) and labels (n_k,).
    hyper : dict
        What ``train`` is given.
    rounds : int
        Models asked for.
    events : {"", "partial", "batches", "stragglers", "coins", "coordinates"}
        What a round draws.
    seeds : int
        How often it is asked, with seeds 0, 1, ...
    """

    name: str
    clients: tuple[Rows, ...]
    hyper: dict[str, Any]
    rounds: int
    events: str = ""
    seeds: int = 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of the clients."""
        return tuple(len(y) for _, y in self.clients)

    @property
    def steps(self) -> int:
        """Local steps on full batches."""
        return int(self.hyper["local_steps"] or 1)

    @property
    def ragged(self) -> bool:
        """Whether a batch of some client may be smaller than the others."""
        b = self.hyper["batch_size"]
        return b is not None and any(n % b for n in self.sizes)


def federation(loss: str, sizes: Sequence[int], seed: int = 0) -> tuple[Rows, ...]:
    """Return unequal clients, (X, y) each: rows of different scales, labels by client-specific models.

    Parameters
    ----------
    loss : {"squared", "logistic", "multinomial"}
        Whose labels: numbers, 0 or 1, or 0, 1, 2.
    sizes : sequence of int
        Rows of the clients.
    seed : int
        Another federation for every seed.
    """
    rng = np.random.default_rng([seed, 7])
    clients = []
    for k, n in enumerate(sizes):
        X = rng.normal(size=(n, 3)) * np.array([1.0, 0.7, 0.5]) * (0.8 + 0.15 * k)
        if loss == "squared":
            y = X @ rng.normal(size=3) + 0.7 * k + 0.3 * rng.normal(size=n)
        else:
            y = (np.arange(n) + k) % (2 if loss == "logistic" else 3)
        clients.append((X, y.astype(float if loss == "squared" else int)))
    return tuple(clients)


def _exam(
    name: str, loss: str, sizes: Sequence[int], rounds: int, events: str = "", seeds: int = 1, **hyper: Any
) -> Exam:
    rng = np.random.default_rng(11)
    w = 0.6 * rng.normal(size=(3, 3) if loss == "multinomial" else 3)
    steps = hyper.get("local_steps", 1)
    given = DEFAULTS | {"loss": loss, "start": w, "epochs": steps} | hyper
    if events != "batches":
        given |= {"batch_size": None, "epochs": given["local_steps"]}  # full batches: a step is an epoch
    given |= {n: None for n, e in (("participants", "partial"), ("stragglers", "stragglers")) if events != e}
    return Exam(f"{name}, {loss}", federation(loss, sizes), given, rounds, events, seeds)


def standard_exams(loss: str, **hyper: Any) -> tuple[Exam, ...]:
    """Return the exams that every family takes with a loss, the cheapest first.

    Parameters
    ----------
    loss : {"squared", "logistic", "multinomial"}
        Of the clients' rows.
    **hyper
        In the place of `DEFAULTS`.
    """
    three, four = (2, 3, 5), (2, 3, 5, 4)
    one = {"local_steps": None, "epochs": 1}
    late = {"local_steps": 2, "epochs": 2, "stragglers": 0.5}
    return (
        _exam("one step", loss, three, 1, **hyper),
        _exam("three steps", loss, three, 1, **{"local_steps": 3} | hyper),
        _exam("four rounds", loss, three, 4, **{"local_steps": 2} | hyper),
        _exam("eight rounds", loss, three, 8, **{"local_steps": 2} | hyper),
        _exam("partial participation", loss, four, 3, "partial", 12, **{"local_steps": 2, "participants": 2} | hyper),
        _exam("batches of two", loss, (2, 3, 4), 2, "batches", 5, **hyper | one | {"batch_size": 2}),
        _exam("single rows", loss, (2, 3, 4), 1, "batches", 3, **hyper | one | {"batch_size": 1}),
        _exam(
            "fresh batches",
            loss,
            (2, 3),
            2,
            "batches",
            8,
            **hyper | {"local_steps": 2, "epochs": None, "batch_size": 2},
        ),
        _exam("stragglers", loss, three, 2, "stragglers", 6, **hyper | late),
        _exam("five clients", loss, (2, 3, 5, 4, 3), 2, **{"local_steps": 2} | hyper),
        _exam("coins", loss, three, 3, "coins", 3, **{"local_steps": 1} | hyper),
        _exam("coordinates", loss, three, 3, "coordinates", 4, **{"local_steps": 1} | hyper),
    )


# ---------------------------------------------------------------- what a round may draw


def participants(exam: Exam, sampling: str) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield who may take part in a round, and with which probability.

    >>> exam = next(exam for exam in standard_exams("squared") if exam.events == "partial")
    >>> len(list(participants(exam, "distinct"))), len(list(participants(exam, "replacement")))
    (6, 10)
    """
    K, m = len(exam.clients), exam.hyper["participants"]
    if m is None or sampling == "everybody":
        yield tuple(range(K)), 1.0
    elif sampling == "replacement":
        for who in itertools.combinations_with_replacement(range(K), m):
            yield who, len(set(itertools.permutations(who))) / K**m
    else:
        subsets = list(itertools.combinations(range(K), m))
        yield from ((who, 1.0 / len(subsets)) for who in subsets)


def coins(exam: Exam) -> Iterator[tuple[int, float]]:
    """Yield how many local steps all clients may take up to a coin's first head, with probabilities.

    >>> exam = next(exam for exam in standard_exams("squared") if exam.events == "coins")
    >>> counts = list(coins(exam))
    >>> counts[1], 1.0 - 1e-6 < sum(p for _, p in counts) < 1.0
    ((2, 0.24), True)
    """
    p = exam.hyper["probability"]
    yield from ((n, p * (1.0 - p) ** (n - 1)) for n in range(1, COINS + 1))


def coordinates(exam: Exam) -> list[tuple[tuple[int, ...], float]]:
    """Return which entries of a model a client may draw, with probabilities."""
    found = list(itertools.combinations(range(exam.hyper["start"].size), exam.hyper["top"]))
    return [(entries, 1.0 / len(found)) for entries in found]


def batch_draws(exam: Exam, n: int, r: Mapping[str, str]) -> list[tuple[tuple[tuple[int, ...], ...], float]]:
    """Return the batches that a client of n rows may take in a round, one after the other, with probabilities.

    Parameters
    ----------
    exam : Exam
        Whose hyper-parameters say how much work there is.
    n : int
        Rows.
    r : dict
        A reading: its conventions "work", "draw" and "last batch".
    """
    rows, b, epochs = tuple(range(n)), exam.hyper["batch_size"], exam.hyper["epochs"]
    if b is None or exam.events != "batches":
        return [((rows,) * exam.steps, 1.0)]
    if epochs and r.get("work") == "full":
        return [((rows,) * epochs, 1.0)]
    b = min(b, n)
    if epochs and r.get("work") != "fresh":
        orders = [rows] if r.get("work") == "in order" else itertools.permutations(rows)
        last, fixed = r.get("last batch", "kept"), r.get("work") == "in order"
        sequences: Any = (
            _passes(order + more, b, last, epochs) for order in orders for more in _filling(rows, b, last, fixed)
        )
    elif not epochs and r.get("draw") == "stream":
        taken = b * exam.steps
        streams = itertools.product(itertools.permutations(rows), repeat=-(-taken // n))
        sequences = (_passes(tuple(itertools.chain(*s))[:taken], b, "kept", 1) for s in streams)
    elif not epochs and r.get("draw") == "passes":
        shuffled = [_passes(order, b, "kept", 1) for order in itertools.permutations(rows)]
        passes = itertools.product(shuffled, repeat=-(-exam.steps // len(shuffled[0])))
        sequences = (tuple(itertools.chain(*some))[: exam.steps] for some in passes)
    else:
        again = not epochs and r.get("draw") == "replacement"
        one = itertools.product(rows, repeat=b) if again else itertools.combinations(rows, b)
        draws = [rows[:b]] if not epochs and r.get("draw") == "first rows" else [tuple(sorted(d)) for d in one]
        sequences = itertools.product(draws, repeat=epochs * -(-n // b) if epochs else exam.steps)
    found: dict[Any, int] = {}
    for batches in sequences:
        found[batches] = found.get(batches, 0) + 1
    total = sum(found.values())
    return [(batches, count / total) for batches, count in found.items()]


def _filling(rows: tuple[int, ...], b: int, last: str, in_order: bool) -> list[tuple[int, ...]]:
    """Return the rows that a last batch may be filled up with: the first of the next pass."""
    missing = -len(rows) % b if last == "filled" else 0
    return [rows[:missing]] if in_order else list(itertools.permutations(rows, missing))


def _passes(order: tuple[int, ...], b: int, last: str, epochs: int) -> tuple[tuple[int, ...], ...]:
    """Return the batches of passes in one order; a whole number of epochs repeats them."""
    cut = [order[i : i + b] for i in range(0, len(order), b)]
    if last == "dropped" and len(cut) > 1 and len(cut[-1]) < b:
        cut.pop()
    return tuple(tuple(sorted(batch)) for batch in cut) * epochs
