"""Data: rows of a file or of a bundled set become clients of a problem."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.cli.arguments import partition
from fedconvex.loss_traits import traits
from fedconvex.registry import losses as registered

if TYPE_CHECKING:
    from fedconvex.federation import Federation
    from fedconvex.problems import Problem
    from fedconvex.tables import Columns, Frame

_DEFAULT_DATA, _DEFAULT_CLIENTS = "breast_cancer", 10
AFFORDABLE = 2e11  # operations spent on constants and on the clients' own models


@dataclass(frozen=True)
class Data:
    """Standardised rows of clients, what the loss makes of the target, and what became of every column."""

    title: str
    origin: str  # where the clients come from
    train: Federation
    test: Federation | None
    loss: Any
    reason: str  # why this loss
    columns: Columns
    scaling: str  # what was done to features and target, in words
    bundled: bool
    sent: Any  # floats up and down for categories, means and scales; None where all rows were pooled for them
    by_client: tuple[Any, ...] = ()  # what is missing, constant or differently coded where

    @property
    def labels(self) -> tuple[Any, ...] | None:
        """Class labels, or None for a target of numbers."""
        return self.columns.labels

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features."""
        return self.columns.feature_names


def reading_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return how a file is to be read."""
    return {"sep": args.sep, "decimal": args.decimal, "encoding": args.encoding}


def listed(given: Sequence[str] | None, names: Sequence[str]) -> tuple[str, ...]:
    """Return column names: each option holds one name, or several with commas between them.

    >>> listed(["age,sex", "dose, mg"], ["age", "sex", "dose, mg"])
    ('age', 'sex', 'dose, mg')
    """
    found: list[str] = []
    for value in given or ():
        found += [value] if value in names else [part.strip() for part in value.split(",")]
    return tuple(dict.fromkeys(found))


def entries(given: Sequence[str] | None, names: Sequence[str]) -> tuple[str, ...]:
    """Return what --missing names, COL=VALUE each: an option holds one, or several with commas between them.

    >>> entries(["age=-9,sex=9", "dose, mg=0"], ["age", "sex", "dose, mg"])
    ('age=-9', 'sex=9', 'dose, mg=0')
    """
    found: list[str] = []
    for value in given or ():
        found += [value] if value.rpartition("=")[0] in names else [part.strip() for part in value.split(",")]
    return tuple(dict.fromkeys(found))


def wishes(args: argparse.Namespace, names: Sequence[str], task: str | None = None) -> dict[str, Any]:
    """Return what was asked of columns, as `read_table` takes it."""
    given = {k: getattr(args, k) for k in ("target", "client", "domain", "weight", "impute")}
    given |= {k: listed(getattr(args, k), names) for k in ("drop", "keep", "as_category")}
    given["missing"] = entries(args.missing, names)
    return {**given, "features": None if args.features is None else listed(args.features, names), "task": task}


# ---------------------------------------------------------------------- reading
def _read(args: argparse.Namespace) -> tuple[str, Frame, bool]:
    """Return the title, the raw rows, and whether they are a bundled set."""
    from fedconvex.tables import read_frame

    name = _DEFAULT_DATA if args.data is None else args.data
    file = Path(name)
    if args.data is None or not name or "\0" in name or not file.is_file():
        from fedconvex.datasets.bundled import BUNDLED

        if args.data is None or (name in BUNDLED and not file.exists()):
            return f"{name} (comes with scikit-learn)", _bundled(args, name), True
        why = "a folder" if name and file.is_dir() else "no regular file" if file.exists() else "which does not exist"
        got = f"{name!r}, {why}" if name else "an empty name"
        raise bad("DATA", f"be a file, or one of {', '.join(BUNDLED)}", got)
    if args.target is None and name.lower().endswith((".csv", ".csv.gz", ".csv.bz2", ".tsv", ".parquet")):
        raise bad(file.name, "come with the column to predict", "none", "pass --target COL")
    # a name with commas in --as-category is looked up once the names of the columns are known
    text = {args.client, args.domain, *(args.as_category or ()), *listed(args.as_category, ())}
    return file.name, read_frame(file, text={c for c in text if c is not None}, **reading_options(args)), False


def _bundled(args: argparse.Namespace, name: str) -> Frame:
    """Return a data set that comes with scikit-learn; its columns are known, and none is looked into."""
    from fedconvex.datasets import load_bundled
    from fedconvex.tables import Frame

    options = ("target", "client", "domain", "weight", "features", "drop", "keep", "as_category", "impute", "missing")
    given = {k: getattr(args, k) for k in (*options, "sep", "decimal", "encoding")}
    extra = [f"--{k.replace('_', '-')}" for k, v in given.items() if v is not None]
    if extra:
        cure = "name a file" if args.data is None else f"{name} has its own target, and --clients K divides it"
        raise bad("a bundled data set", "come without column names", " ".join(extra), cure)
    X, y, names = load_bundled(name, standardised=False)
    frame = Frame.of(X, names, name)
    return replace(frame, cells={**frame.cells, "target": y}, roles={"target": "target"}, unnamed=True)


def _planned(args: argparse.Namespace, frame: Frame, bundled: bool) -> Columns:
    """Decide about columns; a loss that was asked for says whether the target is a class."""
    from fedconvex.tables.planning import Wishes
    from fedconvex.tables.reading import plan

    kind = None if args.loss is None else traits(loss_of(args.loss, 2))
    target = frame.roles.get("target", args.target)
    numbers = target in frame.cells and frame.cells[target].dtype.kind == "f" and target not in (args.as_category or ())
    task = None if kind is None or not numbers else "numbers" if kind.task == "regression" else None
    if kind is not None and kind.several and numbers and _is_whole(frame.cells[target]):
        task = "classes"
    return plan(frame, Wishes.of(**wishes(args, frame.names, task), guard=not bundled))


def _is_whole(y: np.ndarray) -> bool:
    return bool(np.all(y == np.floor(y)))


# ---------------------------------------------------------------------- target
def target_loss(wanted: str | None, columns: Columns, frame: Frame) -> tuple[Any, str]:
    """Return the loss of a name, or the one for the target, and why it."""
    y, labels = columns.target(frame), columns.labels
    few = np.unique(y)
    if few.size < 2:
        only = f"{y[0]:g}" if labels is None else labels[0]
        raise bad("the target", "take at least two values", f"{only} in every row", "name another column with --target")
    kind = "real numbers" if labels is None else f"{len(labels)} classes"
    name = wanted or ("squared" if labels is None else "logistic" if len(labels) == 2 else "softmax")
    reason = "as asked" if wanted else "the target is real" if labels is None else f"the target has {kind}"
    loss = loss_of(name, len(labels or few))
    if traits(loss).task == "regression":
        if labels is not None:
            raise bad(f"--loss {name}", "have a target of numbers", f"text with {kind}", "use logistic or softmax")
    elif traits(loss).several and labels is None:
        raise bad(f"--loss {name}", "have a target of classes", kind, "use --loss squared")
    elif not traits(loss).several and (labels is None or len(labels) != 2):
        cure = f"use --loss {'squared' if labels is None else 'softmax'}"
        raise bad(f"--loss {name}", "have a target with two classes", kind, cure)
    return loss, reason


def loss_of(name: str, n_classes: int) -> Any:
    """Return the loss of a name, or of an import path module:Class (or module:instance), also from this folder."""
    from fedconvex import losses

    if name in registered():
        kind = getattr(losses, registered()[name])
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


# ---------------------------------------------------------------------- clients
def _owners(args: argparse.Namespace, columns: Columns, frame: Frame, bundled: bool) -> tuple[np.ndarray, str]:
    """Return the client of every row, and a phrase that says where that comes from."""
    clients = columns.clients(frame)
    if clients is not None:
        if args.clients is not None or args.partition is not None:
            raise bad("--clients and --partition", "divide data without clients", "data that name their clients")
        return clients, "as the file says" if args.client is None else f"column {args.client!r}"
    if args.clients is None and not bundled:
        cure = "pass --client COL, or --clients K to divide the rows"
        raise bad("the data", "say whose row it is", "no client", cure)
    from fedconvex import datasets

    K, n, real_target = _DEFAULT_CLIENTS if args.clients is None else args.clients, frame.n, columns.labels is None
    name, parameter = args.partition or partition("similarity" if real_target else "dirichlet")
    if name == "dirichlet" and real_target:
        raise bad("--partition dirichlet", "have a target with classes", "a real target", "use similarity or iid")
    if name == "iid":
        return datasets.partition_iid(n, K, args.seed), f"divided by iid, seed {args.seed}"
    split = getattr(datasets, f"partition_{name}")
    y = _coded(columns, frame, False)
    return split(y, K, parameter, seed=args.seed), f"divided by {name}:{parameter:g}, seed {args.seed}"


def _coded(columns: Columns, frame: Frame, several: bool) -> np.ndarray:
    """Return the target as losses want it: -1 and +1, class numbers, or numbers in units of the training rows."""
    y = columns.target(frame)
    if columns.labels is None:
        return (y - columns.target_center) / columns.target_scale
    return 2.0 * y - 1.0 if len(columns.labels) == 2 and not several else y


def _fitted(
    args: argparse.Namespace, columns: Columns, frame: Frame, rows: np.ndarray, clients: np.ndarray, quadratic: bool
) -> tuple[Columns, Any]:
    """Return the record of training rows, from pooled rows or by sums over clients, and what the sums cost."""
    scaled = not args.no_standardize
    how = {"standardise": scaled, "centre": not args.no_intercept, "standardise_target": quadratic and scaled}
    if args.preprocessing == "pooled":
        return columns.fit(frame.take(rows), **how), None
    from fedconvex.preprocessing import fit_federated
    from fedconvex.secure import SecureSums

    secure = SecureSums() if args.preprocessing == "secure" else None
    found = fit_federated(
        columns, [frame.take(rows[clients[rows] == c]) for c in np.unique(clients[rows])], secure=secure, **how
    )
    return found.columns, (found.floats_up, found.floats_down)


class Raw(NamedTuple):
    """Raw rows with the roles of their columns, nothing fitted yet."""

    title: str
    frame: Frame
    columns: Columns
    loss: Any
    reason: str  # why this loss
    clients: np.ndarray  # (n,)
    origin: str  # where they come from
    bundled: bool


def raw(args: argparse.Namespace) -> Raw:
    """Read, decide about columns, and divide."""
    title, frame, bundled = _read(args)
    columns = _planned(args, frame, bundled)
    loss, reason = target_loss(args.loss, columns, frame)
    clients, origin = _owners(args, columns, frame, bundled)
    return Raw(title, frame, columns, loss, reason, clients, origin, bundled)


def prepare(args: argparse.Namespace) -> Data:
    """Read, decide about columns, divide, hold rows out, and standardise by the training rows."""
    from fedconvex import Federation
    from fedconvex.tables.looking import feature_findings

    title, frame, columns, loss, reason, clients, origin, bundled = raw(args)
    numbers = Federation.from_arrays(np.arange(frame.n, dtype=np.float64)[:, None], np.zeros(frame.n), clients)
    if numbers.K < 2:
        cure = "name another column" if args.client else "ask for more with --clients"
        raise bad("the data", "belong to at least two clients", f"one, {numbers.labels[0]}", cure)
    parts = [numbers] if args.test_size is None else numbers.split(args.test_size, args.seed)
    rows = [part.X[:, 0].astype(np.int64) for part in parts]  # a client's rows one after the other
    quadratic, centred = traits(loss).quadratic, not args.no_intercept
    fitted, sent = _fitted(args, columns, frame, rows[0], clients, quadratic)
    made = []
    for which in rows:
        some = frame.take(which)
        X = fitted.standardised(fitted.matrix(some))
        y, weight = _coded(fitted, some, traits(loss).several), fitted.weights(some)
        fed = Federation.from_arrays(X, y, clients[which], fitted.domains(some), weight)
        fed = replace(fed, columns=fitted)
        made.append(fed if args.no_intercept else fed.with_intercept())
    words = "features and target" if quadratic and columns.labels is None else "features"
    how = "divided by their standard deviation"
    if centred:
        far = ", numbers far from 0 centred" if fitted.is_sparse and np.any(fitted.center) else ""
        how = how + far if fitted.is_sparse else "standardised"
    scaling = "features as they are" if args.no_standardize else f"{words} {how}"
    odd = () if bundled else tuple(feature_findings(fitted, frame, clients))
    return Data(title, origin, made[0], (*made, None)[1], loss, reason, fitted, scaling, bundled, sent, odd)


def affordable(problem: Problem) -> bool:
    """Whether constants and the clients' own optima are worth computing (Newton's method at every client)."""
    fed, size = problem.federation, float(problem.size)
    return fed.K * float(fed.d) ** 2 <= 5e7 and 20.0 * size**2 * (fed.n + fed.K * size) <= AFFORDABLE
