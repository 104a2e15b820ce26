"""What sites and coordinator of a study's `compare` agree on, and which rows every site holds out and leaves to folds.

Draws are those of `fedconvex.compare`: pure functions of the seed, the site's name and its number of rows. So a site
draws its own rows without knowing of others, and the coordinator knows their numbers.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedconvex.comparison.compared_rows import Rows
from fedconvex.comparison.cross_validation import L2S
from fedconvex.comparison.splits import Split, fold_of, parts_in, splits_of
from fedconvex.federation import Federation
from fedconvex.loss_traits import traits


@dataclass(frozen=True, eq=False)
class ComparePlan:
    """What is compared: made from the study alone, the same at all.

    Attributes
    ----------
    kinds : tuple of str
        Of models, in the order of tables; "alone" is always among them.
    loss : loss
    classes : tuple or None
        What labels stand for.
    names : tuple of str
        Of the features, without an intercept.
    units : (array (d,), array (d,))
        Where their numbers begin, and their size, roughly.
    test_size, folds, min_rows, level, seed, splits
        As for `fedconvex.compare`.
    hidden : bool
        Whether the coordinator learns sums over sites only.
    largest : float
        What these sums hold at most.
    """

    kinds: tuple[str, ...]
    loss: Any
    classes: tuple[Any, ...] | None
    names: tuple[str, ...]
    units: tuple[np.ndarray, np.ndarray]
    test_size: float
    folds: int
    min_rows: int
    level: float
    seed: int
    splits: int
    hidden: bool
    largest: float

    @property
    def fingerprint(self) -> str:
        """What must be the same at all ends."""
        return repr((self.kinds, self.classes, self.names, self.test_size, self.folds, self.min_rows, self.level,
                     self.seed, self.splits))  # fmt: skip

    @property
    def p(self) -> int:
        """Parameters of a score: features, and the intercept as the last."""
        return len(self.names) + 1

    @property
    def outputs(self) -> int:
        """Scores of a row: one for each of several classes."""
        return int(traits(self.loss).outputs)

    @property
    def size(self) -> int:
        """Parameters of a model, score by score."""
        return self.outputs * self.p

    @property
    def t(self) -> int:
        """Numbers of a symmetric matrix of so many rows."""
        return self.size * (self.size + 1) // 2

    def told_of(self, kind: str) -> int:
        """Return how many numbers of a model sites are told: of MOCHA a covariance of features, of others w or w_0."""
        return self.t if kind == "mocha" else self.size

    @property
    def columns(self) -> int:
        """Columns whose sums are asked for: features, and the target, or the indicators of several classes."""
        return len(self.names) + self.outputs

    @property
    def passes(self) -> int:
        """How often all is tuned and fitted: once for every split, and once for all rows if there are several."""
        return self.splits + (self.splits > 1)

    @property
    def sets(self) -> int:
        """Sets of rows that something is fitted to: those of every pass, then those outside each of its folds."""
        return self.passes * (self.folds + 1)

    @property
    def models(self) -> int:
        """Models that are fitted side by side in cross-validation."""
        return self.passes * self.folds * len(L2S)

    @cached_property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Set and l2 of every model of cross-validation: pass by pass, fold by fold, l2 by l2."""
        each = itertools.product(range(self.passes), range(self.folds), L2S)
        sets, l2s = zip(*((a * (self.folds + 1) + 1 + f, l2) for a, f, l2 in each), strict=True)
        return np.array(sets), np.array(l2s)

    @property
    def whole_sets(self) -> np.ndarray:
        """The sets of all training rows of each pass."""
        return np.arange(self.passes) * (self.folds + 1)

    def fewest(self) -> int:
        """Return how many rows a site must have: some in every part, and in every fold of the others."""
        return max(4, parts_in(self.test_size), 2 * self.folds)

    def rows(self, key: int, X: Any, y: np.ndarray) -> Rows:
        """Return a site's rows as those of the only client, whose draws have the key of the site's name."""
        mine = np.zeros(y.size, dtype=np.int64)
        return Rows("a site", lambda train: X, y, mine, (int(key),), None, (), self.loss, self.classes)

    def parted(self, rows: Rows) -> Parted:
        """Return which rows of a site are fitted to and held out."""
        splits = splits_of(rows, self.test_size, self.splits, self.seed)
        each = [split.train for repeat in splits for split in repeat]
        each += [np.arange(rows.y.size)] if self.splits > 1 else []
        train, held, folds = [], [], []
        for mine in each:
            fold = fold_of(rows, mine, self.folds, self.seed)
            train += [mine, *(mine[fold != f] for f in range(self.folds))]
            held += [mine[:0], *(mine[fold == f] for f in range(self.folds))]
            folds.append(fold)
        return Parted(splits, train, held, folds)

    def counted(self, keys: np.ndarray, sizes: np.ndarray) -> Counts:
        """Return how many rows sites of these keys, of so many rows, fit to and hold out."""
        each = [self.parted(self.rows(key, None, np.zeros(n))) for key, n in zip(keys, sizes, strict=True)]
        train = np.array([[len(a) for a in one.train] for one in each])
        held = np.array([[len(a) for a in one.held] for one in each])
        tested = np.array([sum(split.at.size for split in one.splits[0]) for one in each])
        return Counts(train, held, tested)


class Parted(NamedTuple):
    """Rows of a site, by their numbers."""

    splits: list[list[Split]]
    train: list[np.ndarray]  # of every set
    held: list[np.ndarray]  # of every set: those of its fold, none of whole passes
    folds: list[np.ndarray]  # of every pass: the fold of each of its training rows


class Counts(NamedTuple):
    """Numbers of rows, site by site."""

    train: np.ndarray  # (K, S)
    held: np.ndarray  # (K, S)
    tested: np.ndarray  # (K,) held out in some split


@dataclass(frozen=True, eq=False, repr=False)
class ComparedRows(Federation):
    """A site's rows, and whether it tells what models are worth on those that it holds out."""

    tells: bool = True

    carried = ("tells",)
