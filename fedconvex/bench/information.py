"""What a function's models owe to a client's rows, against what it says that travelled.

A server that hears u numbers of a client makes its model of these and of what it hears of others: w = G(m(D), E), where
D are the client's rows, E those of others, and m has u numbers. For rows E_1, ..., E_J of others, the map from D to
(G(m(D), E_1), ..., G(m(D), E_J)) goes through m(D), so that its derivative has rank u at most (derived here; of smooth
maps: a function that packs many numbers into the digits of one is not found). What a client is told in a later round
may depend on E; the rank of round t, at most t u, is therefore looked at only while the models before do not, and rows
E_j are drawn with one gradient at 0, so that gradient descent's do not in round 2. Ranks are counted from differences
on an exam of random rows, as the number of singular values that are not small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from fedconvex.bench.conditions import asked
from fedconvex.bench.solvers import Arrays

ROUNDS = 2  # that are examined
READ_IN = 3  # rounds in which it is noted whose rows are read
_CLIENTS, _FEATURES, _ROWS, _CLASSES = 3, 6, 10, 3
_STEP, _SMALL = 1e-2, 3e-3  # of a difference, relative to rows; of a singular value, relative to the largest
_MOST = 40  # numbers of a client a round, above which there is no exam
_MORE = 3  # directions beyond the rank that is allowed
_CROWD = 40  # clients of an exam, at most


class Exam(NamedTuple):
    """Random rows of three clients, of which those of the first are moved, and those of the others drawn anew."""

    loss: str
    l2: float
    rng: np.random.Generator

    def client(self, more: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Draw a client."""
        n = _ROWS + more
        X, noise = self.rng.standard_normal((n, _FEATURES)), self.rng.standard_normal(n)
        if self.loss == "squared":
            return X, X.sum(axis=1) + noise
        if self.loss == "softmax":
            return X, np.arange(n) % _CLASSES * 1.0
        return X, np.where(X[:, 0] + noise > 0.0, 1.0, -1.0)

    def alike(self, X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draw other rows for the same labels, with the same gradient at 0, which is a sum of rows by label."""
        Y = y[:, None] if self.loss != "softmax" else np.eye(_CLASSES)[y.astype(int)]
        R = self.rng.standard_normal(X.shape)
        return X + R - Y @ np.linalg.lstsq(Y, R, rcond=None)[0], y

    @property
    def start(self) -> np.ndarray:
        """The first model."""
        return np.zeros((_CLASSES, _FEATURES) if self.loss == "softmax" else _FEATURES)

    def arrays(self, clients: list[tuple[np.ndarray, np.ndarray]]) -> Arrays:
        """Return clients as a function is given them."""
        sizes = np.array([len(y) for _, y in clients], dtype=float)
        X, y = [X.copy() for X, _ in clients], [y.copy() for _, y in clients]
        return Arrays(X, y, sizes / sizes.sum(), self.loss, self.l2, self.start)


class Rows(Sequence[Any]):
    """Rows or labels of all clients, which notes whose are read."""

    def __init__(self, items: list[Any], read: set[int]) -> None:
        self._items, self._read = items, read

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, k: Any) -> Any:
        self._read.update(np.atleast_1d(np.arange(len(self))[k]).tolist())
        return self._items[k]


def declared(function: Any, name: str, arrays: Arrays) -> float:
    """Return what a function declares: a number, or a function of the arrays; NaN where it does not."""
    value = getattr(function, name, math.nan)
    return float(value(arrays) if callable(value) else value)


def numbers_used(function: Any, loss: str, l2: float, settings: Any, most: int) -> list[int]:
    """Return for each of the first rounds how many numbers of a client its model depends on, at least.

    Parameters
    ----------
    function : callable
        As `bench` takes it.
    loss : str
    l2 : float
    settings : mapping
        What it is given; step sizes are replaced by small ones.
    most : int
        Numbers that are allowed a round: a little more is looked for.

    Returns
    -------
    list of int
        Empty where it cannot take the exam, or its models are not the same for one seed.

    Examples
    --------
    >>> from fedconvex.bench.information import numbers_used
    >>> def means(arrays, settings, rounds):
    ...     for t in range(rounds):  # the mean row of every client
    ...         yield sum(X.mean(axis=0) for X in arrays.X)
    >>> numbers_used(means, "squared", 0.0, {}, 6)[0]
    6
    """
    exam = Exam(loss, l2, np.random.default_rng(20))
    count = ROUNDS * most + _MORE
    first, base = exam.client(), [exam.client(1), exam.client(2)]
    others = [[exam.alike(*c) for c in base] for _ in range(2 + count // exam.start.size)]
    settings = _of_exam(settings)
    try:
        twice = [_models(function, exam, [first, *others[0]], settings) for _ in range(2)]
        moves = [exam.rng.standard_normal(first[0].shape) for _ in range(count)] if _same(*twice) else []
        ends = [
            [_over(function, exam, first, sign * _STEP * move, others, settings) for sign in (1.0, -1.0)]
            for move in moves
        ]
    except Exception:  # not made for such rows
        return []
    if not ends:
        return []
    table, found = np.array(ends), []  # (count, 2, J, rounds, size)
    for t in range(ROUNDS):
        found.append(_rank((table[:, 0, :, t] - table[:, 1, :, t]).reshape(count, -1)))
        if not _same(table[:, :, :, t], table[:, :, :1, t]):
            break
    return found


def _of_exam(settings: Any) -> dict[str, Any]:
    """Return settings with small steps, where everybody takes part."""
    at = lambda t, i=0: 0.05  # noqa: E731
    steps = {"step_size": 0.05, "local_step_size": 0.05, "step_size_at": at, "local_step_size_at": at}
    share = settings.get("participation")
    everybody = {"participation": 1.0 if isinstance(share, float) else _CLIENTS}
    return {**settings, **steps} | (everybody if share is not None else {})


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.all(np.abs(a - b) <= 1e-9 * (1.0 + np.abs(b))))


def _over(function: Any, exam: Exam, first: Any, move: np.ndarray, others: Any, settings: Any) -> np.ndarray:
    """Return the models with the first client's rows moved, for all rows of others: (J, rounds, size)."""
    moved = (first[0] + move, first[1])
    return np.stack([_models(function, exam, [moved, *e], settings) for e in others])


def _models(function: Any, exam: Exam, clients: Any, settings: Any) -> np.ndarray:
    """Return the first models (rounds, size)."""
    models = function(exam.arrays(clients), dict(settings), ROUNDS + 1)
    some = [np.ravel(m[0] if isinstance(m, tuple) else m).astype(float) for m in islice(models, ROUNDS)]
    if len(some) < ROUNDS or any(w.shape != (exam.start.size,) or not np.isfinite(w).all() for w in some):
        raise ValueError("no models")
    return np.stack(some)


def _rank(table: np.ndarray) -> int:
    values = np.linalg.svd(table, compute_uv=False)
    return int((values > _SMALL * values[0]).sum()) if values[0] > 0.0 else 0


def clients_read(function: Any, arrays: Arrays, settings: Any) -> int:
    """Return of how many clients rows are read in a round, at most, of the first few; 0 where that fails."""
    read: set[int] = set()
    noted = arrays._replace(X=Rows(list(arrays.X), read), y=Rows(list(arrays.y), read))
    most = 0
    try:
        for _ in islice(iter(function(noted, dict(settings), READ_IN)), READ_IN):
            most = max(most, len(read))
            read.clear()
    except Exception:  # it takes lists alone; what it does with these is judged elsewhere
        return most
    return most


def too_much(function: Any, arrays: Arrays, settings: Any) -> tuple[str, str, str]:
    """Return how what a function declares cannot be, how it uses more than it declares, and how it has all rows.

    Each is empty where there is nothing to say; the last is for functions that do not declare their floats.

    Parameters
    ----------
    function : callable
    arrays : Arrays
        Of the problem on which it is judged.
    settings : mapping
        What it is given there.
    """
    share, K = settings.get("participation"), len(arrays.X)
    read = min(max(1, clients_read(function, arrays, settings)), asked(share, K))  # others: `too_many`
    size = float(arrays.start.size)
    sent = declared(function, "floats_per_round", arrays)
    if sent < read * size:
        how = f"{sent:g} a round, in which it reads rows of {read} clients, whose answers have {size:g} each"
        return how, "", ""
    exam = Exam(arrays.loss, arrays.l2, np.random.default_rng(0))
    n = exam.start.size
    allowed, nothing = 2.0 * n, ("", "", "")
    if sent == sent:
        each = sent / read / size
        if callable(getattr(function, "floats_per_round", None)):
            few = declared(function, "floats_per_round", exam.arrays([exam.client(k) for k in range(_CLIENTS)]))
            part = share * _CLIENTS if isinstance(share, float) else asked(share, _CLIENTS)
            each = few / part / n
        elif each >= (size + 5.0) / 2.0:
            return nothing  # a matrix of second derivatives may travel
        allowed = n * (each - 1.0 if each >= 2.0 else each)  # the model goes down, too
    if not 0.0 < allowed <= _MOST:
        return nothing
    used = numbers_used(function, arrays.loss, arrays.l2, settings, math.floor(allowed + 1e-9))
    for t, rank in enumerate(used, 1):
        if rank > t * allowed + 1e-9:
            on = f"on an exam with models of {n} numbers, that of round {t} depends on a client by at least {rank}"
            if sent == sent:
                return "", f"{on}, where {t * allowed:g} can have come of it", ""
            return "", "", f"{on}, and it does not say what travels"
    return nothing


def too_many(function: Any, arrays: Arrays, settings: Any) -> tuple[str, str]:
    """Return how a function asks more clients than take part in a round, or why nobody can tell.

    On an exam of random rows, those of one client after the other are replaced from round t on; clients whose rows make
    another model of round t were asked in it. A function that keeps copies of the rows, or returns a list, shows so in
    its first round only.

    Parameters
    ----------
    function : callable
    arrays : Arrays
        Of the problem on which it is judged.
    settings : mapping
        What it is given there; nothing is asked where ``participation`` is not among it, or means all clients.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.bench import Arrays
    >>> from fedconvex.bench.information import too_many
    >>> def means(arrays, settings, rounds):
    ...     for t in range(rounds):  # the mean row of every client
    ...         yield sum(X.mean(axis=0) for X in arrays.X)
    >>> few = Arrays([np.ones((1, 2))] * 4, [np.ones(1)] * 4, np.full(4, 0.25), "squared", 0.0, np.zeros(2))
    >>> too_many(means, few, {"participation": 0.5})[0]
    'on an exam with 6 clients the model of round 1 depends on the rows of 6, where 3 take part'
    """
    share, K = settings.get("participation"), len(arrays.X)
    if asked(share, K) == K:
        return "", ""
    if arrays.loss != "softmax" and arrays.start.ndim > 1:
        return "", "there is no exam of who takes part where every task has a model"
    share = share if isinstance(share, float) else min(share, _CROWD - 1)
    few = next((k for k in range(6, _CROWD + 1) if asked(share, k) < k), None)
    if few is None:
        return "", f"{share:g} of the clients are too many for an exam of who takes part"
    exam = Exam(arrays.loss, arrays.l2, np.random.default_rng(21))
    clients = [exam.client(k % 3) for k in range(few)]
    others = [(X + exam.rng.standard_normal(X.shape), y) for X, y in clients]
    given, most = _of_exam(settings) | {"participation": share}, asked(share, few)
    try:
        plain = [_after(function, exam.arrays(clients), given, READ_IN) for _ in range(2)]
        if not _same(*plain):
            return "", "two runs of an exam of who takes part differ"
        for t in range(READ_IN):
            moved = [_after(function, exam.arrays(clients), given, t + 1, (k, *others[k]))[t] for k in range(few)]
            part = sum(not _same(w, plain[0][t]) for w in moved)
            if part > most:
                on = f"on an exam with {few} clients the model of round {t + 1} depends on the rows of {part}"
                return f"{on}, where {most} take part", ""
    except Exception as error:  # not made for such rows
        return "", f"it fails on an exam of who takes part: {type(error).__name__}: {error}"
    return "", ""


def _after(function: Any, arrays: Arrays, settings: Any, rounds: int, other: Any = None) -> np.ndarray:
    """Return the first models (rounds, size), with other rows (client, X, y) of a client from the last round on."""
    models, out = None, []
    for t in range(rounds):
        if other is not None and t == rounds - 1:
            arrays.X[other[0]], arrays.y[other[0]] = other[1:]  # type: ignore[index]
        models = iter(function(arrays, dict(settings), READ_IN + 1)) if models is None else models
        item = next(models)
        out.append(np.ravel(item[0] if isinstance(item, tuple) else item).astype(float))
    if not np.isfinite(out).all():
        raise ValueError("a model is not finite")
    return np.stack(out)
