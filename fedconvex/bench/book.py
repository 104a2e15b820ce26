"""A reference book: problems, their optima and constants in one file, which NumPy and JSON alone can read.

The file is an npz archive without pickles or compression. Its entry ``index`` holds JSON as bytes; those of problem
number 7 begin with ``p7_``. docs/book.md describes it, and reads it without this package.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedconvex._check import bad, instance, items
from fedconvex._files import check_file, existing, npz, write_file
from fedconvex.bench.book_file import FORMAT, MOST_GAP, arrays_of_problem, federation_of, index_of
from fedconvex.bench.cases import ONE_MODEL, Case, Dials, digest
from fedconvex.federation import Federation
from fedconvex.loss_traits import traits


class Entry(NamedTuple):
    """A problem of a book: F(w) = sum_k p_k (mean loss over client k's rows + (l2/2)‖w‖^2).

    Attributes
    ----------
    name, loss : str
    l2 : float
    federation : Federation
        The rows.
    sha256 : str
        Their digest, which has been checked.
    optimum : array
        The best model known.
    value, gap : float
        F(optimum), and the certified bound of F(optimum) - F* that the book states.
    constants : dict
        L, mu, kappa, zeta_star and heterogeneity; None or absent where not known.

    Examples
    --------
    >>> from fedconvex.bench import Entry
    >>> Entry._fields[:3]
    ('name', 'loss', 'l2')
    """

    name: str
    loss: str
    l2: float
    federation: Federation
    sha256: str
    optimum: np.ndarray
    value: float
    gap: float
    constants: dict[str, float | None]


def write_book(cases: Sequence[Case], file: str | os.PathLike[str]) -> Path:
    """Solve problems exactly and write them as a book, whole or not at all.

    Parameters
    ----------
    cases : sequence of Case
        That minimise F: one model for all clients.
    file : path

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ValueError
        If a case has another aim, two have one name, or an optimum cannot be certified to 1e-9.

    Examples
    --------
    >>> import tempfile
    >>> from fedconvex.bench import Case, read_book, write_book
    >>> tiny = Case("tiny", "linear", {"n_clients": 3, "n_features": 2}, "squared")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (entry,) = read_book(write_book([tiny], folder + "/book.npz"))
    >>> entry.name, entry.federation.K, entry.gap < 1e-12
    ('tiny', 3, True)
    """
    place = check_file("write_book: file", file)
    if place.suffix != ".npz":
        raise bad("write_book: file", "end in .npz", f"{os.fspath(file)!r}")
    given = items("write_book: cases", cases)
    for case in given:
        instance("write_book: cases", case, Case)
    names = [case.name for case in given]
    if len(set(names)) < len(names) or not names:
        raise bad("write_book: cases", "be at least one, and named differently", ", ".join(names) or "none")
    arrays: dict[str, Any] = {}
    rows = []
    for i, case in enumerate(given):
        said, parts = _packed(case)
        rows.append(said)
        arrays |= {f"p{i}_{name}": a for name, a in parts.items()}
    index = json.dumps({"format": FORMAT, "problems": rows}).encode()
    write_file(place, npz({"index": np.frombuffer(index, dtype=np.uint8), **arrays}))
    return place


def _packed(case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the index says about a problem, and its arrays."""
    if case.aim != ONE_MODEL:
        raise bad(f"write_book: problem {case.name}", "minimise F, one model for all clients", case.aim)
    problem = case.problem()
    fed, found = problem.federation, problem.solve()
    models = [found.w, *([on_kinks(problem, found.w)] if case.loss == "hinge" and case.l2 > 0.0 else [])]
    judged = [problem.measure(w[None]) for w in models]
    gap, value, best = min((float(m.gap[0]), float(m.value[0]), i) for i, m in enumerate(judged))
    w = models[best]
    gap = min(gap, gap_by_gradient(problem, case.loss, w))
    if not gap <= MOST_GAP:
        raise bad(f"write_book: problem {case.name}", f"be solved to a certified gap of {MOST_GAP:g}", f"{gap:.2g}")
    dials, smooth = Dials.of(problem, w, case.aim, case.loss), math.isfinite(traits(problem.loss).smoothness)
    known = {n: getattr(dials, n) for n in ("kappa", "zeta_star", "heterogeneity")}
    if smooth and known["kappa"] == known["kappa"]:
        c = problem.constants()
        known |= {"L": float(c.L), "mu": float(c.mu)}
    constants = {n: float(v) if math.isfinite(v) else None for n, v in known.items()}
    classes = int(fed.y.max()) + 1 if case.loss == "softmax" else 0
    said = {"name": case.name, "loss": case.loss, "l2": float(case.l2), "classes": classes, "sha256": digest(fed)}
    said |= {"value": value, "gap": gap, "constants": constants, "made of": {"data": Path(case.data).name}}
    X = fed.X
    parts = {"data": X.data, "indices": X.indices, "indptr": X.indptr} if sp.issparse(X) else {"X": X}
    said |= {"rows": fed.n, "columns": fed.d, "clients": fed.K, "sparse": fed.is_sparse}
    ends = {"y": fed.y, "ptr": np.asarray(fed.ptr, dtype=np.int64), "weights": problem.weights, "optimum": w}
    return said, parts | ends


def on_kinks(problem: Any, w: np.ndarray) -> np.ndarray:
    """Return a model near w at which the rows whose margins are 1 but for 1e-5 have margins of 1 to rounding.

    With the hinge, l2 w* = sum_i a_i y_i x_i, where a_i is the weight of a row below its kink, 0 above, and what the
    margins of 1 ask for on it: linear equations.
    """
    fed = problem.federation
    A = np.asarray(fed.X.toarray() if fed.is_sparse else fed.X) * fed.y[:, None]
    margins, share = A @ w, np.repeat(problem.weights / fed.sizes, fed.sizes)
    kinks = np.abs(margins - 1.0) < 1e-5
    known = A.T @ np.where((margins < 1.0) & ~kinks, share, 0.0)
    on = A[kinks]
    lifted = np.linalg.lstsq(on @ on.T, problem.l2 - on @ known, rcond=None)[0]
    return np.asarray((known + on.T @ lifted) / problem.l2)


def gap_by_gradient(problem: Any, loss: str, w: np.ndarray) -> float:
    """Return ‖grad F(w)‖^2/(2 mu), with a bound of the gradient's rounding in the norm; infinity where it says nothing.

    Values of F near 100 are rounded to 1e-14 each, so that a difference of two certifies no less than 1e-12; gradients
    at the optimum are differences that are small themselves.

    Parameters
    ----------
    problem : Problem
    loss : str
        "squared", "logistic" or "softmax"; others have no such bound here.
    w : array of the model's shape
    """
    fed, mu = problem.federation, float(problem.l2)
    if loss == "squared" and mu == 0.0:
        mu = 0.5 * float(problem.constants().mu)  # half, for the rounding of an eigenvalue
    if loss not in ("squared", "logistic", "softmax") or not mu > 0.0:
        return math.inf
    W, unit = w.reshape(-1, fed.d).T, 0.5 * np.finfo(float).eps  # (d, C)
    z, y, share = fed.X @ W, fed.y[:, None], np.repeat(problem.weights / fed.sizes, fed.sizes)[:, None]
    size, n = abs(fed.X), fed.n + fed.d + 8.0
    if loss == "softmax":
        z = np.exp(z - z.max(axis=1, keepdims=True))
        slope = z / z.sum(axis=1, keepdims=True) - (y == np.arange(W.shape[1]))
    else:
        slope = z - y if loss == "squared" else -y * np.exp(-np.logaddexp(0.0, y * z))
    g = fed.X.T @ (share * slope) + problem.l2 * W
    off = 2.0 * n * unit * (size @ np.abs(W)).max(axis=1, keepdims=True)  # of z; slopes are Lipschitz with constant 1
    off = size.T @ (share * (off + 2.0 * n * unit * (np.abs(slope) + np.abs(y) + 1.0))) + 4.0 * unit * problem.l2 * abs(
        W
    )
    return float(np.sum((np.abs(g) + off) ** 2)) / (2.0 * mu)


# ---------------------------------------------------------------- reading


def read_book(file: str | os.PathLike[str]) -> tuple[Entry, ...]:
    """Read a book; everything that it says of its problems is checked: digests, values, and gaps.

    Parameters
    ----------
    file : path

    Returns
    -------
    tuple of Entry

    Raises
    ------
    ValueError, TypeError, FileNotFoundError
        If it is no book, or damaged; if rows have another digest, or an optimum is worse than the book says.

    Examples
    --------
    >>> from fedconvex.bench import read_book
    >>> read_book("no-such-book.npz")
    Traceback (most recent call last):
        ...
    FileNotFoundError: book: path must be an existing file; got no-such-book.npz
    """
    place = existing("book", file)
    return tuple(_entry(place, i, said) for i, said in enumerate(index_of(place)))


def book_cases(file: str | os.PathLike[str]) -> tuple[Case, ...]:
    """Return the problems of a book as cases of a suite, whose digests are checked when they are made.

    Parameters
    ----------
    file : path

    Returns
    -------
    tuple of Case

    Raises
    ------
    ValueError, TypeError, FileNotFoundError
        If it is no book.

    Examples
    --------
    >>> import tempfile
    >>> from fedconvex.bench import Case, book_cases, write_book
    >>> tiny = Case("tiny", "linear", {"n_clients": 3, "n_features": 2}, "squared")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (case,) = book_cases(write_book([tiny], folder + "/book.npz"))
    >>> case.name, case.settings
    ('tiny', {'problem': 'tiny'})
    """
    place = existing("book", file)
    return tuple(
        Case(s["name"], str(place), {"problem": s["name"]}, s["loss"], s["l2"], sha256=s["sha256"])
        for s in index_of(place)
    )


def _entry(place: Path, i: int, said: dict[str, Any]) -> Entry:
    """Return a problem with its optimum, which is judged as any other model."""
    name, given = said["name"], arrays_of_problem(place, i)
    who = f"book {place.name}: problem {name}"
    fed = federation_of(who, given, said)
    if (got := digest(fed)) != said["sha256"]:
        raise bad(f"{who}: rows", f"have the SHA-256 {said['sha256'][:16]}...", f"{got[:16]}...", "they were changed")
    problem = Case(name, "book", {}, said["loss"], said["l2"]).over(fed)
    w, weights = given["optimum"], given["weights"]
    if w.shape != tuple(problem.model_shape) or not np.isfinite(w).all():
        raise bad(f"{who}: optimum", f"be a finite model of shape {problem.model_shape}", f"shape {w.shape}")
    if weights.shape != problem.weights.shape or not np.allclose(weights, problem.weights, rtol=1e-12, atol=0.0):
        raise bad(f"{who}: weights", "be the shares of rows, n_k/n", f"{weights[:3]!r}")
    value, gap = (float(a[0]) for a in problem.measure(w[None])[:2])
    near = 1e-9 * (1.0 + abs(said["value"]))
    if not abs(value - said["value"]) <= near or not gap <= MOST_GAP + near:
        must = f"have the value {said['value']:.12g} within {MOST_GAP:g} of the least"
        raise bad(f"{who}: optimum", must, f"{value:.12g}, certified to {gap:.2g}")
    told = said.get("constants")
    constants: dict[str, float | None] = dict(told) if isinstance(told, dict) else {}
    return Entry(name, said["loss"], float(said["l2"]), fed, got, w, value, float(said["gap"]), constants)
