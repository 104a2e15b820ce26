"""Problems of a benchmark: what they are made of, as data, with a digest of the arrays.

Features are rounded to multiples of 2^-24: sums that another library for linear algebra adds in another order then give
the same arrays, and the same digest.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedconvex import losses
from fedconvex._check import among, bad, real, text, whole, wrong_type
from fedconvex.bench.book_file import rows_of_book
from fedconvex.datasets import (
    linear_federation,
    load,
    load_bundled,
    logistic_federation,
    partition_dirichlet,
    partition_iid,
    partition_shards,
    partition_similarity,
)
from fedconvex.datasets.bundled import BUNDLED
from fedconvex.datasets.table import encoded
from fedconvex.federation import Federation
from fedconvex.loss_traits import traits
from fedconvex.problems import Covariance, MeanRegularised, MultiTaskProblem, Problem
from fedconvex.tables.other_files import plain_numbers, read_arrays

ONE_MODEL, WORST_DOMAIN, PER_TASK = "one model", "worst domain", "model per task"
LEARNED = "learned relationship"
AIMS = (ONE_MODEL, WORST_DOMAIN, PER_TASK, LEARNED)
LOSSES = ("squared", "logistic", "softmax", "hinge", "smoothed-hinge")
GRID = 2.0**24
DRAWN: Mapping[str, Callable[..., Any]] = {"linear": linear_federation, "logistic": logistic_federation}
PARTITIONS = {
    "iid": lambda y, K, a, seed: partition_iid(len(y), K, seed),
    "dirichlet": lambda y, K, a, seed: partition_dirichlet(y, K, 0.5 if a is None else a, seed, min_rows=2),
    "shards": lambda y, K, a, seed: partition_shards(y, K, 2 if a is None else int(a), seed),
    "similarity": lambda y, K, a, seed: partition_similarity(y, K, 20.0 if a is None else a, seed),
}
_HELD_OUT = 20  # seed of the rows that are set aside
_AFFORDABLE = 2e9  # operations spent on eigenvalues of the clients' Hessians


@dataclass(frozen=True)
class Case:
    """A problem of a suite, as data.

    Parameters
    ----------
    name : str
    data : str
        "linear", "logistic" or "sparse" (drawn), a set that comes with scikit-learn, or the path of a file.
    settings : mapping
        What the data is drawn with, or ``clients``, ``partition``, ``parameter``, ``seed`` of a table, or ``problem``
        of a book.
    loss : str
        "squared", "logistic", "softmax", "hinge", "smoothed-hinge".
    l2 : float
    aim : {"one model", "worst domain", "model per task", "learned relationship"}
        What is minimised: F, the largest F_k, or the sum over tasks with a mean-regularised relationship, or over
        tasks and their relationship Omega.
    sha256 : str, optional
        What `digest` must give, of all rows.
    held_out : float
        Share of every client's rows that is no part of the problem: `held_out_rows`.

    Raises
    ------
    ValueError, TypeError
        If the loss or the aim is none of those known, l2 is negative, or sha256 has not 64 hexadecimal digits.

    Examples
    --------
    >>> from fedconvex.bench import Case
    >>> Case("tiny", "linear", {"n_clients": 3, "n_features": 2}, "squared").problem().federation
    Federation(3 clients, 150 rows, 2 features, dense)
    """

    name: str
    data: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    loss: str = "logistic"
    l2: float = 0.0
    aim: str = ONE_MODEL
    sha256: str | None = None
    held_out: float = 0.0

    def __post_init__(self) -> None:
        who = f"problem {text('problem: name', self.name)!r}"
        text(f"{who}: data", self.data)
        if not isinstance(self.settings, Mapping):
            raise wrong_type(f"{who}: settings", "be a mapping", f"{self.settings!r}")
        if self.sha256 is not None:
            digits = text(f"{who}: sha256", self.sha256)
            if not re.fullmatch("[0-9a-f]{64}", digits):
                raise bad(f"{who}: sha256", "be 64 hexadecimal digits, as `digest` gives them", f"{digits!r}")
        among(f"{who}: loss", self.loss, LOSSES)
        among(f"{who}: aim", self.aim, AIMS)
        real(f"{who}: l2", self.l2, low=0.0)
        if not 0.0 <= real(f"{who}: held_out", self.held_out) < 1.0:
            raise bad(f"{who}: held_out", "be a share below 1", self.held_out)
        if self.held_out and self.aim != ONE_MODEL:
            raise bad(f"{who}: held_out", f"be 0 unless the aim is {ONE_MODEL}", self.held_out)

    def problem(self) -> Any:
        """Make the problem.

        Raises
        ------
        ValueError, TypeError, OSError
            If the data cannot be read or drawn as told, or its digest is another than the one that is fixed.
        """
        return self.over(self._divided()[0])

    def held_out_rows(self) -> Federation:
        """Return the rows that are set aside: of each client the same share, rounded, but one row at least."""
        return self._divided()[1]

    def _divided(self) -> tuple[Federation, Any]:
        """Return the rows of the problem, and those that are set aside, or None."""
        federation = self._federation()
        if self.sha256 is not None and (got := digest(federation)) != self.sha256:
            cure = "another version of the data, or of NumPy's generators: results cannot be compared"
            raise bad(f"problem {self.name}: data", f"have the SHA-256 {self.sha256[:16]}...", f"{got[:16]}...", cure)
        if self.held_out == 0.0:
            return federation, None
        aside, rng = np.zeros(federation.n, dtype=bool), np.random.default_rng(_HELD_OUT)
        for k, (a, b) in enumerate(zip(federation.ptr[:-1], federation.ptr[1:], strict=True)):
            m = max(1, round(self.held_out * int(b - a)))
            if m >= b - a:
                raise bad(f"problem {self.name}: held_out", f"leave client {k} a row of {b - a}", self.held_out)
            aside[int(a) + rng.permutation(int(b - a))[:m]] = True
        return _rows(federation, ~aside), _rows(federation, aside)

    def over(self, federation: Federation) -> Any:
        """Return the problem over these rows, without anything that was computed from them before."""
        loss = _loss(self.loss, federation.y)
        if self.aim in (PER_TASK, LEARNED):
            relation = MeanRegularised(1.0, 1.0) if self.aim == PER_TASK else Covariance(0.1)
            return MultiTaskProblem(federation, loss, relation, normalisation="mean")
        return Problem(federation, loss, self.l2, weights="uniform" if self.aim == WORST_DOMAIN else None)

    def _federation(self) -> Federation:
        who, given = f"problem {self.name}", dict(self.settings)
        if self.data == "sparse":
            return sparse_federation(**_known(who, given, sparse_federation))
        if "problem" in given:
            return rows_of_book(self.data, given["problem"])
        if self.data in DRAWN:
            drawn = DRAWN[self.data](**_known(who, given, DRAWN[self.data])).federation
            y = drawn.y if self.data == "logistic" else _rounded(drawn.y)
            return Federation(_rounded(drawn.X), y, drawn.ptr)
        return self._table(who, given)

    def _table(self, who: str, given: dict[str, Any]) -> Federation:
        """Return a real set, standardised, divided among clients unless the file says whose rows they are."""
        K, how = whole(f"{who}: clients", given.pop("clients", 10), low=1), given.pop("partition", "dirichlet")
        among(f"{who}: partition", how, list(PARTITIONS))
        a, seed, rows = given.pop("parameter", None), given.pop("seed", 0), given.pop("rows", None)
        if given:
            raise bad(f"{who}: settings", "be clients, partition, parameter, rows or seed", ", ".join(given))
        if self.data in BUNDLED:
            X, y, _ = load_bundled(self.data)
            clients = None
        else:
            X, y, clients = _rows_of_file(self.data)
        if rows is not None:
            keep = np.random.default_rng(seed).permutation(len(y))[: whole(f"{who}: rows", rows, low=1)]
            X, y, clients = X[keep], y[keep], None if clients is None else clients[keep]
        y = _labels(y, self.loss)
        if clients is None:
            clients = PARTITIONS[how](y, K, a, seed)
        return Federation.from_arrays(X if sp.issparse(X) else _rounded(_standardised(X)), y, clients)


def _rows(federation: Federation, keep: np.ndarray) -> Federation:
    """Return the rows that are kept, whose clients are those that they had."""
    ends = np.concatenate([[0], np.cumsum(keep)])[np.asarray(federation.ptr)]
    return Federation(federation.X[keep], federation.y[keep], ends)


def _rows_of_file(path: str) -> tuple[Any, np.ndarray, np.ndarray | None]:
    """Return rows, labels, and whose they are where the file says it; of Adult's archive the categories as columns."""
    if path.endswith(".npz") and Path(path).is_file():
        who, needed = f"bench: {Path(path).name}", {"x_cat_train", "y_train", "categories_0"}
        arrays = read_arrays(who, Path(path), lambda name: name in needed or name.startswith("categories_"))
        if needed <= arrays.keys():
            return encoded(_categories(who, arrays))[0], plain_numbers(f"{who}: y_train", arrays["y_train"]), None
    table = load(path)
    return table.X, np.asarray(table.y, dtype=np.float64), table.clients


def _categories(who: str, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the columns of Adult's archive, which holds positions of their categories."""
    codes, columns = arrays["x_cat_train"], {}
    if codes.ndim != 2 or not codes.size or codes.dtype.kind not in "iu":
        raise bad(f"{who}: x_cat_train", "hold whole numbers (n, m), n > 0", f"{codes.dtype} of shape {codes.shape}")
    if arrays["y_train"].shape != (len(codes),):
        raise bad(f"{who}: y_train", f"be ({len(codes)},), as x_cat_train", f"shape {arrays['y_train'].shape}")
    for j, column in enumerate(codes.T):
        names = arrays.get(f"categories_{j}")
        if names is None or names.ndim != 1 or column.min() < 0 or column.max() >= len(names):
            got = "nothing" if names is None else f"shape {names.shape}, for {column.min()} to {column.max()}"
            raise bad(f"{who}: categories_{j}", f"name the categories of column {j} of x_cat_train", got)
        columns[f"{j}"] = names[column]
    return columns


def _known(who: str, given: Mapping[str, Any], function: Any) -> dict[str, Any]:
    """Return the settings, or raise where the function has none of that name."""
    import inspect

    names = list(inspect.signature(function).parameters)
    for name in given:
        among(f"{who}: setting", name, names)
    return dict(given)


def _loss(name: str, y: np.ndarray) -> Any:
    if name == "softmax":
        return losses.Softmax(int(y.max()) + 1)
    return getattr(losses, "".join(part.capitalize() for part in name.split("-")))()


def _labels(y: np.ndarray, loss: str) -> np.ndarray:
    """Return labels as the loss has them: -1 and +1, 0 to C - 1, or a target of mean 0 and variance 1."""
    if loss == "squared":
        return _rounded((y - y.mean()) / (y.std() or 1.0))
    if loss == "softmax":
        return np.unique(y, return_inverse=True)[1].astype(np.float64)
    return np.where(y == y.max(), 1.0, -1.0)


def _standardised(X: np.ndarray) -> np.ndarray:
    X = np.asarray(X, dtype=np.float64)
    X = X - X.mean(axis=0)
    sd = X.std(axis=0)
    return X / np.where(sd > 0.0, sd, 1.0)


def _rounded(a: np.ndarray) -> np.ndarray:
    return np.round(np.asarray(a, dtype=np.float64) * GRID) / GRID


def sparse_federation(
    n_clients: int = 20,
    n_features: int = 200,
    rows_per_client: int = 50,
    per_row: int = 10,
    model_shift: float = 0.5,
    seed: int = 0,
) -> Federation:
    """Draw sparse rows, as of texts: few features of each row, some frequent and most rare, labels by logistic models.

    Feature j occurs with a frequency in proportion to 1/(j + 1); entries are 1/sqrt(per_row). Client k's labels follow
    a model w + model_shift c_k.

    Parameters
    ----------
    n_clients, n_features, rows_per_client, per_row : int
        K, d, n/K, and how often a feature is drawn for a row, of which equal ones count once.
    model_shift : float
        Root mean square of the entries of the clients' own part of their models.
    seed : int

    Examples
    --------
    >>> from fedconvex.bench.cases import sparse_federation
    >>> sparse_federation(n_clients=3, n_features=40, rows_per_client=5)
    Federation(3 clients, 15 rows, 40 features, sparse, 19.17% filled)
    """
    who = "sparse_federation"
    K, d = whole(f"{who}: n_clients", n_clients, low=1), whole(f"{who}: n_features", n_features, low=1)
    m, each = whole(f"{who}: rows_per_client", rows_per_client, low=1), whole(f"{who}: per_row", per_row, low=1)
    shift, rng = real(f"{who}: model_shift", model_shift, low=0.0), np.random.default_rng(seed)
    n, edges = K * m, np.cumsum(1.0 / np.arange(1, d + 1))
    column = np.searchsorted(edges, rng.random((n, each)) * edges[-1])
    rows = np.repeat(np.arange(n), each)
    X = sp.csr_array((np.ones(n * each), (rows, np.minimum(column, d - 1).ravel())), shape=(n, d))
    X.data[:] = 1.0 / math.sqrt(each)
    W = 3.0 * (rng.standard_normal(d) + shift * rng.standard_normal((K, d)))
    score = np.asarray(X.multiply(np.repeat(W, m, axis=0)).sum(axis=1)).ravel()
    y = np.where(rng.random(n) < 0.5 * (1.0 + np.tanh(0.5 * score)), 1.0, -1.0)
    return Federation(X, y, np.arange(0, n + 1, m))


def digest(federation: Federation) -> str:
    """Return the SHA-256 of the arrays of a federation, in the order of its rows.

    Examples
    --------
    >>> from fedconvex import Federation
    >>> from fedconvex.bench.cases import digest
    >>> digest(Federation.from_clients([([[1.0]], [1.0])]))[:8]
    'cb5df2ca'
    """
    X, out = federation.X, hashlib.sha256()
    parts = [X.data, X.indices.astype(np.int64), X.indptr.astype(np.int64)] if sp.issparse(X) else [X]
    for a in (*parts, federation.y, np.asarray(federation.ptr, dtype=np.int64)):
        out.update(f"{a.dtype.str}{a.shape}".encode())
        out.update(np.ascontiguousarray(a).tobytes())
    return out.hexdigest()


class Dials(NamedTuple):
    """Where a problem stands: what tells where a solver wins."""

    K: int
    n: int
    d: int
    size: int  # numbers in a model
    sparse: bool
    loss: str
    aim: str
    kappa: float  # L/mu, L of the roughest client; NaN where L or mu is not known
    zeta_star: float  # sqrt(sum_k p_k ‖grad f_k(w*)‖^2)
    heterogeneity: float  # zeta_star over the same root at w = 0: 0 where clients agree about w*

    @classmethod
    def of(cls, problem: Any, w_star: np.ndarray, aim: str, loss: str) -> Dials:
        """Return the dials of a problem, from its exact constants."""
        fed = problem.federation
        kappa = zeta = ratio = math.nan
        if aim not in (PER_TASK, LEARNED):
            G = problem.client_gradients(np.stack([w_star, np.zeros_like(w_star)])).reshape(2, fed.K, -1)
            root = np.sqrt((problem.weights * (G**2).sum(axis=2)).sum(axis=1))
            zeta, ratio = float(root[0]), float(root[0] / root[1]) if root[1] > 0.0 else math.nan
            smooth = math.isfinite(traits(problem.loss).smoothness)
            if smooth and fed.K * problem.size**3 + fed.n * problem.size**2 <= _AFFORDABLE:
                kappa = problem.constants().kappa
        kappa = kappa if math.isfinite(kappa) else math.nan
        return cls(fed.K, fed.n, fed.d, math.prod(problem.model_shape), fed.is_sparse, loss, aim, kappa, zeta, ratio)


def at_place(data: str, folder: Path) -> str:
    """Return the data of a case of a file: paths are those beside the file."""
    return data if data in (*DRAWN, "sparse", *BUNDLED) else str(folder / data)
