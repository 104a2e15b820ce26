"""Rows of images for three clients, divided at random and by label."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.datasets import load_bundled
from fedconvex.federation import Federation
from fedconvex.losses import Softmax
from fedconvex.papers.images import coarser, read_images, scaled
from fedconvex.problems import Problem

CLIENTS, L2 = 3, 1e-3
MOST_PARAMETERS = 1000  # of large images, averaged: exact solutions take seconds
UNIFORM = 'Mohri et al. call it "FedAvg (uniform)": uniform over all rows, not over clients or domains.'  # pooled
TRAIN, TEST = 3000, 2000  # rows of a division of a large archive; divisions share none
_SHARE_TRAIN = 2 / 3  # of bundled digits; divisions overlap


class ClientDivision(NamedTuple):
    """How rows come to three clients."""

    name: str
    by_label: bool
    shares: tuple[float, ...]  # of all rows at random; by label: of the client's own rows


DIVISIONS = (
    ClientDivision("iid, equal", False, (1 / 3, 1 / 3, 1 / 3)),
    ClientDivision("iid, unequal", False, (0.7, 0.2, 0.1)),
    ClientDivision("by label, equal", True, (1.0, 1.0, 1.0)),
    ClientDivision("by label, unequal", True, (1.0, 0.3, 0.1)),
)


class TrainTest(NamedTuple):
    """Training and test rows; the last column of X is one."""

    X: np.ndarray  # (n, d)
    y: np.ndarray  # (n,) 0, ..., C - 1
    X_test: np.ndarray  # (m, d)
    y_test: np.ndarray  # (m,)


class SplitData(NamedTuple):
    """Divisions of one data set."""

    name: str
    splits: tuple[TrainTest, ...]
    overlap: float  # m/n where divisions are drawn from the same rows, 0 where they share none
    classes: int
    about: str


def load_splits(
    path: str | os.PathLike[str] | None = None, splits: int = 10, seed: int = 0, block: int = 1
) -> SplitData:
    """Return several divisions into training and test rows.

    Parameters
    ----------
    path : path, optional
        An npz archive with x_train (n, ...), y_train (n,), x_test (m, ...), y_test (m,); labels 0, ..., C - 1, at least
        three classes. Images are averaged over the smallest blocks that leave at most 1,000 parameters. Every division
        has rows of its own, at most 3,000 to train and 2,000 to test on. Default: the 1,797 digits of scikit-learn, two
        thirds of them drawn anew for every division.
    splits : int
        Number of divisions.
    seed : int
        Of the draws.
    block : int
        Average the bundled digits over blocks of so many pixels a side.

    Raises
    ------
    ValueError
        If the file is no such archive, has fewer than three classes, fewer than 30 rows a division, or too many
        parameters.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> from fedconvex.papers.agnostic_clients.data import load_splits
    >>> data = load_splits(splits=2)
    >>> [(s.X.shape, s.X_test.shape) for s in data.splits]
    [((1198, 65), (599, 65)), ((1198, 65), (599, 65))]
    """
    rng = np.random.default_rng(seed)
    if path is None:
        digits = load_bundled("digits", standardised=False)
        X, n = coarser(digits.X.reshape(-1, 8, 8), block), round(_SHARE_TRAIN * len(digits.y))
        found = []
        for _ in range(splits):
            order = rng.permutation(len(digits.y))
            train, test = order[:n], order[n:]
            found.append(_split(X[train], digits.y[train], X[test], digits.y[test]))
        return SplitData("digits of scikit-learn (8 x 8)", tuple(found), (len(digits.y) - n) / n, 10, _averaged(block))
    who, arrays = f"--data {Path(path).name}", read_images(path)
    classes = int(arrays["y_train"].max()) + 1
    if classes < CLIENTS:
        raise bad(f"{who}: y_train", f"have at least {CLIENTS} classes", classes)
    block = _block(who, arrays["x_train"].shape[1:], classes)
    sizes = [min(most, len(arrays[f"x_{part}"]) // splits) for part, most in (("train", TRAIN), ("test", TEST))]
    if min(sizes) < 30:
        raise bad(f"{who}: rows", f"be at least {30 * splits} to train and to test on", f"{min(sizes) * splits}")
    orders = [rng.permutation(len(arrays[f"x_{part}"])) for part in ("train", "test")]
    found = []
    for s in range(splits):
        train, test = (o[s * m : (s + 1) * m] for o, m in zip(orders, sizes, strict=True))
        X, X_test = coarser(arrays["x_train"][train], block), coarser(arrays["x_test"][test], block)
        found.append(_split(X, arrays["y_train"][train], X_test, arrays["y_test"][test]))
    return SplitData(Path(path).stem, tuple(found), 0.0, classes, _averaged(block))


def _averaged(block: int) -> str:
    return f"images averaged over {block} x {block} pixels, " if block > 1 else ""


def _block(who: str, shape: tuple[int, ...], classes: int) -> int:
    """Return the smallest block of pixels that leaves at most 1,000 parameters."""
    size = math.prod(shape)
    for b in range(1, max(shape) + 1):
        fits = b == 1 or (len(shape) == 2 and all(side % b == 0 for side in shape))
        if fits and classes * (size // b**2 + 1) <= MOST_PARAMETERS:
            return b
    must = f"have at most {MOST_PARAMETERS} parameters, classes times (features + 1), by averaging whole blocks"
    raise bad(f"{who}: images", must, f"{classes} x ({size} + 1) of shape {shape}")


def _split(X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray) -> TrainTest:
    X, X_test = scaled(X, X_test)
    return TrainTest(X, y.astype(float), X_test, y_test.astype(float))


def clients_of(
    division: ClientDivision, y: np.ndarray, classes: int, rng: np.random.Generator, all_rows: bool
) -> np.ndarray:
    """Return the client of every row (n,), -1 for rows that nobody gets.

    By label, ``all_rows`` leaves nothing out: tests have all rows of a client's classes.
    """
    n = len(y)
    if not division.by_label:
        edges = np.round(np.cumsum((0.0, *division.shares)) * n).astype(int)  # 1
        return rng.permutation(np.repeat(np.arange(CLIENTS), np.diff(edges)))
    groups = np.array_split(np.arange(classes), CLIENTS)  # 1
    owner = np.repeat(np.arange(CLIENTS), [len(g) for g in groups])[y.astype(int)]
    for k, share in enumerate(division.shares):
        mine = rng.permutation(np.flatnonzero(owner == k))
        owner[mine[len(mine) if all_rows else max(1, round(share * len(mine))) :]] = -1
    return owner


def client_names(division: ClientDivision, classes: int) -> list[str]:
    """Return the names of the clients; by label with their classes."""
    if not division.by_label:
        return ["A", "B", "C"]
    groups = np.array_split(np.arange(classes), CLIENTS)
    return [f"{chr(65 + k)}: class {g[0]}" + (f"-{g[-1]}" if len(g) > 1 else "") for k, g in enumerate(groups)]


def problems_of(data: SplitData, division: ClientDivision, s: int, seed: int) -> tuple[Problem, Federation]:
    """Return the problem of one division, and the federation of its test rows.

    Raises
    ------
    ValueError
        If a client has no rows to train or to test on.
    """
    split, names = data.splits[s], np.array(client_names(division, data.classes))
    rng = np.random.default_rng([seed, s, DIVISIONS.index(division)])
    made = []
    for X, y, part in ((split.X, split.y, "train"), (split.X_test, split.y_test, "test")):
        owner = clients_of(division, y, data.classes, rng, part == "test")
        if np.unique(owner[owner >= 0]).size < CLIENTS:
            raise bad(f"{data.name}: y_{part}", f"have rows for each of {', '.join(names)}", f"{len(y)} rows without")
        kept = owner >= 0
        made.append(Federation.from_arrays(X[kept], y[kept], names[owner[kept]]))
    return Problem(made[0], Softmax(data.classes), L2), made[1]  # 2
