"""Images of three classes, each a domain: Fashion-MNIST from a file, or bundled digits."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.datasets import load_bundled
from fedconvex.federation import Federation
from fedconvex.losses import Softmax
from fedconvex.papers.images import coarser, read_images
from fedconvex.problems import Problem

_FASHION = ((6, "shirt"), (2, "pullover"), (0, "t-shirt/top"))  # of the paper
DIGITS = ((8, "digit 8"), (1, "digit 1"), (9, "digit 9"))  # chosen here: the three that ten-class models confuse most
FOLDS = 5  # of the cross-validation on bundled digits
_RARE = 1 / 3  # of the first bundled digit's rows train: with equally many the claims drown in noise
MOST_PARAMETERS = 3000  # up to which solve_minimax goes


class ClassDomains(NamedTuple):
    """Images of three classes, each a domain, and how they are divided."""

    name: str
    labels: tuple[str, ...]  # of the three, the one that is expected to be worst first
    images: np.ndarray  # (n, h, w) or (n, d)
    y: np.ndarray  # (n,) 0, 1, 2
    folds: tuple[tuple[np.ndarray, np.ndarray], ...]  # rows to train and to test on
    archive: bool


def load_domains(path: str | os.PathLike[str] | None = None, seed: int = 0) -> ClassDomains:
    """Return the three classes and their division.

    Parameters
    ----------
    path : path, optional
        Fashion-MNIST: an npz archive with x_train (n, ...), y_train (n,), x_test (m, ...), y_test (m,). Default: digits
        8, 1 and 9 of scikit-learn, in five folds, of the eights only every third to train on.
    seed : int
        Of the folds, and of which eights train.

    Raises
    ------
    ValueError
        If the file is no such archive, one of the classes 0, 2, 6 has no rows, or there are too many parameters.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> from fedconvex.papers.agnostic_fashion import load_domains
    >>> found = load_domains()
    >>> found.labels, found.images.shape, len(found.folds)
    (('digit 8', 'digit 1', 'digit 9'), (536, 8, 8), 5)
    """
    if path is None:
        digits = load_bundled("digits", standardised=False)
        X, y = _chosen(digits.X.reshape(-1, 8, 8), digits.y, DIGITS)
        rng = np.random.default_rng(seed)
        fold = rng.permutation(len(y)) % FOLDS
        folds = tuple((_rarer(np.flatnonzero(fold != k), y, rng), np.flatnonzero(fold == k)) for k in range(FOLDS))
        return ClassDomains("digits 8, 1, 9 of scikit-learn", tuple(n for _, n in DIGITS), X, y, folds, False)
    who, arrays = f"--data {Path(path).name}", read_images(path)
    parts = []
    for part in ("train", "test"):
        X, y = _chosen(arrays[f"x_{part}"], arrays[f"y_{part}"], _FASHION)
        if np.unique(y).size < 3:
            missing = ", ".join(f"{number} ({name})" for c, (number, name) in enumerate(_FASHION) if c not in y)
            raise bad(f"{who}: y_{part}", "have rows of classes 6, 2 and 0 (Fashion-MNIST)", f"none of {missing}")
        parts.append((X, y))
    images, y = (np.concatenate(v) for v in zip(*parts, strict=True))
    size = math.prod(images.shape[1:])
    if 3 * (size + 1) > MOST_PARAMETERS:
        raise bad(f"{who}: images", f"have at most {MOST_PARAMETERS // 3 - 1} pixels", size)
    edge = len(parts[0][1])
    folds = ((np.arange(edge), np.arange(edge, len(y))),)
    return ClassDomains(Path(path).stem, tuple(n for _, n in _FASHION), images, y, folds, True)


def _rarer(train: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the rows to train on without two thirds of the first class."""
    first = rng.permutation(train[y[train] == 0])
    return np.sort(np.concatenate([first[: round(_RARE * len(first))], train[y[train] > 0]]))


def _chosen(X: np.ndarray, y: np.ndarray, classes: Sequence[tuple[int, str]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of three classes, and the class of each as 0, 1, 2."""  # 1
    code = np.full(len(y), -1)
    for c, (number, _) in enumerate(classes):
        code[y == number] = c
    return X[code >= 0], code[code >= 0]


def standardised(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Centre every column and divide it by its standard deviation, both of the training rows, and append ones.

    A column that is constant on the training rows becomes zero on all rows.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.papers.agnostic_fashion.data import standardised
    >>> standardised(np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([[4.0, 6.0]]))[1]
    array([[2., 0., 1.]])
    """
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    varies = train.max(axis=0) > train.min(axis=0)
    factor = np.where(varies, 1.0 / np.where(varies, deviation, 1.0), 0.0)
    made = [np.hstack([(A - mean) * factor, np.ones((len(A), 1))]) for A in (train, test)]
    return made[0], made[1]


def problem_of(data: ClassDomains, fold: int, block: int, l2: float) -> tuple[Problem, np.ndarray, np.ndarray]:
    """Return the problem of a fold, and its test rows with their classes."""
    train, test = data.folds[fold]
    X, X_test = standardised(coarser(data.images[train], block), coarser(data.images[test], block))  # 2
    y = data.y[train]
    clients = [(X[y == c], np.full(int((y == c).sum()), float(c))) for c in range(3)]
    fed = Federation.from_clients(clients, labels=list(data.labels))
    return Problem(fed, Softmax(3), l2), X_test, data.y[test]  # 3
