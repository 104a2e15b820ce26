"""Data: rows of a file or of a bundled set become clients of a problem."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedconvex._check import bad
from fedconvex.cli.arguments import LOSSES, partition
from fedconvex.loss_traits import traits

if TYPE_CHECKING:
    from fedconvex.datasets import Table
    from fedconvex.federation import Federation
    from fedconvex.problems import Problem

__all__ = ["AFFORDABLE", "Data", "Scaling", "affordable", "prepare", "scaling_of"]

DEFAULT_DATA, DEFAULT_CLIENTS = "breast_cancer", 10
MOST_CLASSES = 20  # whole-numbered targets with more values than this are taken as real
AFFORDABLE = 2e11  # operations spent on constants and on the clients' own models
_SQUARED, _LARGEST = 1e100, 1e290  # beyond: squares of numbers, their differences and quotients, are no doubles


@dataclass(frozen=True)
class Data:
    """Raw rows of clients, and what the loss makes of the target."""

    title: str
    origin: str  # where the clients come from
    train: Federation
    test: Federation | None
    loss: Any
    reason: str  # why this loss
    labels: tuple[Any, ...] | None
    names: tuple[str, ...]


@dataclass(frozen=True)
class Scaling:
    """Features become (x - center)/scale, a real target (y - target[0])/target[1]."""

    center: np.ndarray
    scale: np.ndarray
    target: tuple[float, float]
    sentence: str

    def apply(self, fed: Federation, intercept: bool) -> Federation:
        """Return the scaled rows."""
        import scipy.sparse as sp

        if fed.is_sparse:
            X = fed.X @ sp.diags_array(1.0 / self.scale)
        else:
            X = (fed.X - self.center) / self.scale
        scaled = replace(fed, X=X, y=(fed.y - self.target[0]) / self.target[1])
        return scaled.with_intercept() if intercept else scaled


def _read(args: argparse.Namespace) -> tuple[str, Table, bool]:
    """Return the title, the table, and whether it is a bundled set."""
    from fedconvex import datasets
    from fedconvex.datasets.bundled import BUNDLED

    given = {"target": args.target, "client": args.client, "domain": args.domain, "weight": args.weight}
    name = DEFAULT_DATA if args.data is None else args.data
    if args.data is None or (name in BUNDLED and not Path(name).exists()):
        extra = [f"--{k}" for k, v in given.items() if v is not None]
        if extra:
            cure = "name a file" if args.data is None else f"{name} has its own target, and --clients K divides it"
            raise bad("a bundled data set", "come without column names", " ".join(extra), cure)
        X, y, names = datasets.load_bundled(name, standardised=False)
        return f"{name} (comes with scikit-learn)", datasets.Table(X, y, feature_names=names), True
    file = Path(name)
    if not name or "\0" in name or not file.is_file():
        why = "a folder" if name and file.is_dir() else "no regular file" if file.exists() else "which does not exist"
        got = f"{name!r}, {why}" if name else "an empty name"
        raise bad("DATA", f"be a file, or one of {', '.join(BUNDLED)}", got)
    if args.target is None and name.lower().endswith((".csv", ".csv.gz", ".csv.bz2", ".parquet")):
        raise bad(file.name, "come with the column to predict", "none", "pass --target COL")
    return file.name, datasets.load(name, **given), False


def _target(table: Table, wanted: str | None) -> tuple[Any, str, np.ndarray, tuple[Any, ...] | None]:
    """Return the loss, why it, the target as the loss wants it, and the class labels if it is a classification."""
    values = np.unique(table.y)
    if values.size < 2:
        only = table.classes[0] if table.classes else f"{values[0]:g}"
        raise bad("the target", "take at least two values", f"{only} in every row", "name another column with --target")
    is_whole = bool(np.all(values == np.floor(values)))
    classes = table.classes is not None or values.size == 2 or (is_whole and values.size <= MOST_CLASSES)
    kind = f"{values.size} classes" if classes else "real numbers"
    name = wanted or ("squared" if not classes else "logistic" if values.size == 2 else "softmax")
    reason = "as asked" if wanted else f"the target has {kind}" if classes else "the target is real"
    loss = loss_of(name, values.size)
    if traits(loss).task == "regression":
        if table.classes is not None:
            raise bad(f"--loss {name}", "have a target of numbers", f"text with {kind}", "use logistic or softmax")
        return loss, reason, table.y, None
    several = traits(loss).several
    if several and not (classes or is_whole):
        raise bad(f"--loss {name}", "have a target of classes", kind, "use --loss squared")
    if not several and values.size != 2:
        cure = f"use --loss {'softmax' if classes else 'squared'}"
        raise bad(f"--loss {name}", "have a target with two classes", kind, cure)
    code = np.searchsorted(values, table.y).astype(np.float64)
    if table.classes is not None:
        labels: tuple[Any, ...] = tuple(table.classes[int(v)] for v in values)
    else:
        labels = tuple(int(v) if v == math.floor(v) else float(v) for v in values)
    return loss, reason, code if several else 2.0 * code - 1.0, labels


def loss_of(name: str, n_classes: int) -> Any:
    """Return the loss of a name, or of an import path module:Class (or module:instance), also from this folder."""
    from fedconvex import losses

    if name in LOSSES:
        kind = getattr(losses, LOSSES[name])
    else:
        module, _, attribute = name.partition(":")
        sys.path.insert(0, "")
        try:
            kind = getattr(import_module(module), attribute)
        except (Exception, SystemExit) as error:  # the module is the user's, and may raise anything
            why = str(error) if isinstance(error, (ImportError, AttributeError)) else repr(error)
            raise bad("--loss", "name what can be imported, as module:Class", name, why) from None
        finally:
            sys.path.remove("")
    if not hasattr(kind, "value"):
        raise bad("--loss", "name a loss, a NamedTuple with value and slope", f"{name}, {kind!r}")
    if not isinstance(kind, type):
        return kind
    try:
        return kind(n_classes) if "n_classes" in getattr(kind, "_fields", ()) else kind()
    except TypeError as error:
        raise bad(f"--loss {name}", "need no arguments", f"{error}", "name an instance, module:loss") from None


def _owners(args: argparse.Namespace, table: Table, y: np.ndarray, bundled: bool, real_target: bool) -> Any:
    """Return the client of every row, and a phrase that says where that comes from."""
    from fedconvex import datasets

    if table.clients is not None:
        if args.clients is not None or args.partition is not None:
            raise bad("--clients and --partition", "divide data without clients", "data that name their clients")
        return table.clients, "as the file says" if args.client is None else f"column {args.client!r}"
    if args.clients is None and not bundled:
        cure = "pass --client COL, or --clients K to divide the rows"
        raise bad("the data", "say whose row it is", "no client", cure)
    K, n = DEFAULT_CLIENTS if args.clients is None else args.clients, y.size
    name, parameter = args.partition or partition("similarity" if real_target else "dirichlet")
    if name == "dirichlet" and real_target:
        raise bad("--partition dirichlet", "have a target with classes", "a real target", "use similarity or iid")
    if name == "iid":
        return datasets.partition_iid(n, K, args.seed), f"divided by iid, seed {args.seed}"
    split = getattr(datasets, f"partition_{name}")
    return split(y, K, parameter, seed=args.seed), f"divided by {name}:{parameter:g}, seed {args.seed}"


def prepare(args: argparse.Namespace) -> Data:
    """Read, label and divide."""
    from fedconvex import Federation

    title, table, bundled = _read(args)
    loss, reason, y, labels = _target(table, args.loss)
    clients, origin = _owners(args, table, y, bundled, labels is None)
    fed = Federation.from_arrays(table.X, y, clients, table.domains, table.weights)
    if fed.K < 2:
        cure = "name another column" if args.client else "ask for more with --clients"
        raise bad("the data", "belong to at least two clients", f"one, {fed.labels[0]}", cure)
    test = None
    if args.test_size is not None:
        fed, test = fed.split(args.test_size, args.seed)
    names = table.feature_names or tuple(f"x{j + 1}" for j in range(fed.d))
    return Data(title, origin, fed, test, loss, reason, labels, names)


def scaling_of(args: argparse.Namespace, data: Data) -> Scaling:
    """Pooled mean and standard deviation: sums that every client sends once."""
    fed = data.train
    zero, one = np.zeros(fed.d), np.ones(fed.d)
    if args.no_standardize:
        return Scaling(zero, one, (0.0, 1.0), "features as they are")
    mean, sd = _moments(fed.X, data.names)
    scale = np.where(sd > 1e-12 * np.abs(mean), sd, 1.0)
    centred = not (fed.is_sparse or args.no_intercept)
    target, what = (0.0, 1.0), "features"
    if traits(data.loss).quadratic:  # other losses are given the target's own units
        (middle,), (spread,) = _moments(fed.y[:, None], ("the target",))
        target, what = (0.0 if args.no_intercept else float(middle), float(spread) or 1.0), "features and target"
    sentence = f"{what} {'standardised' if centred else 'divided by their standard deviation'}"
    return Scaling(mean if centred else zero, scale, target, sentence)


def _moments(X: Any, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of every column; those whose squares are no doubles are scaled first."""
    import scipy.sparse as sp

    largest = np.asarray(abs(X).max(axis=0).toarray() if sp.issparse(X) else np.abs(X).max(axis=0)).ravel()
    wrong = np.flatnonzero((largest > _LARGEST) | ((largest < 1.0 / _LARGEST) & (largest > 0.0)))
    if wrong.size:
        j = int(wrong[0])
        must = f"have numbers between {1.0 / _LARGEST:g} and {_LARGEST:g} in absolute value"
        raise bad(f"column {names[j]!r}", must, f"{largest[j]:g}", "use other units, or --no-standardize")
    odd = (largest > _SQUARED) | ((largest < 1.0 / _SQUARED) & (largest > 0.0))
    unit = np.where(odd, np.maximum(largest, 1.0 / _LARGEST), 1.0)
    if odd.any():
        X = sp.csr_array(X @ sp.diags_array(1.0 / unit)) if sp.issparse(X) else X / unit
    mean = np.asarray(X.mean(axis=0)).ravel()
    second = X.multiply(X).mean(axis=0) if sp.issparse(X) else ((X - mean) ** 2).mean(axis=0)
    square = np.asarray(second).ravel()
    return unit * mean, unit * np.sqrt(np.maximum(square - mean**2, 0.0) if sp.issparse(X) else square)


def affordable(problem: Problem) -> bool:
    """Whether constants and the clients' own optima are worth computing (Newton's method at every client)."""
    fed, size = problem.federation, float(problem.size)
    return fed.K * float(fed.d) ** 2 <= 5e7 and 20.0 * size**2 * (fed.n + fed.K * size) <= AFFORDABLE
