"""Sparse matrices are checked before anything follows their indices: SciPy's and our kernels read where these point."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedconvex._check import bad, numeric, wrong_type

_CURE = "build it anew from rows, columns and entries"


class CSR(NamedTuple):
    """A sparse matrix as kernels see it: row i holds data[indptr[i]:indptr[i+1]] in columns indices[...].

    Attributes
    ----------
    data, indices, indptr : array (nnz,) float64, (nnz,) int32, (n+1,) int64
        As of `scipy.sparse.csr_array`.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.federation import CSR
    >>> CSR(np.ones(2), np.array([0, 2], np.int32), np.array([0, 1, 2])).indices.tolist()  # (1, 0, 0), (0, 0, 1)
    [0, 2]
    """

    data: np.ndarray  # (nnz,) float64
    indices: np.ndarray  # (nnz,) int32
    indptr: np.ndarray  # (n+1,) int64


def sound(who: str, X: Any) -> Any:
    """Return a sparse matrix of any format, or anything else that is given, unchanged.

    Parameters
    ----------
    who : str
        For error messages.
    X : scipy sparse matrix or array (n, d), or anything else
        Indices and pointers are what a caller may have set; a cost of one pass over them.

    Raises
    ------
    ValueError
        If an index or a pointer leads outside the matrix, or the parts do not fit together.
    TypeError
        If entries are no real numbers, or indices or pointers no whole ones.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> X = sp.csr_array([[0.0, 1.0], [2.0, 0.0]])
    >>> X.indices[0] = 7
    >>> sound("X", X)
    Traceback (most recent call last):
    ...
    ValueError: X must have column indices in 0, ..., 1; got 7: build it anew from rows, columns and entries
    """
    if not sp.issparse(X):
        return X
    if X.dtype.kind not in "fiub":
        raise wrong_type(who, "hold real numbers", f"dtype {X.dtype}")
    if len(X.shape) != 2:
        raise bad(who, "be two-dimensional (rows, columns)", f"shape {tuple(X.shape)}")
    n, d = X.shape
    if X.format == "csr":
        _compressed(who, X, n, d, "column")
    elif X.format == "csc":
        _compressed(who, X, d, n, "row")
    elif X.format == "bsr":
        _blocks(who, X)
    else:
        coo = X.tocoo()  # the other formats are turned into it entry by entry, with bounds
        for name, index, size in (("row", coo.row, n), ("column", coo.col, d)):
            _within(who, name, index, size)
        if not coo.row.shape == coo.col.shape == coo.data.shape:
            raise _unfit(who, "row, column and entry", coo.row.size, coo.col.size, coo.data.size)
    return X


def rows_given(who: str, X: Any) -> Any:
    """Return rows to predict from: CSR that has been found sound, or a float64 array."""
    return sound_csr(who, X) if sp.issparse(X) else numeric(who, X, copy=False)


def sound_csr(who: str, X: Any) -> Any:
    """Return a sparse matrix as CSR, after it has been found sound; anything else unchanged."""
    return sound(who, X).tocsr() if sp.issparse(X) else X


def read_only_throughout(a: np.ndarray) -> bool:
    """Whether neither an array nor what it is a view of can be written to."""
    while isinstance(a, np.ndarray):
        if a.flags.writeable:
            return False
        a = a.base  # type: ignore[assignment]
    return True


def _compressed(who: str, X: Any, major: int, minor: int, name: str) -> None:
    """Raise unless 0 = ptr[0] <= ... <= ptr[major] <= entries, and indices lie in 0, ..., minor - 1."""
    pointers, indices, data = (np.asarray(a) for a in (X.indptr, X.indices, X.data))
    _whole(who, "pointers", pointers)
    if pointers.shape != (major + 1,):
        raise bad(who, f"have {major + 1} pointers", f"shape {pointers.shape}", _CURE)
    if indices.ndim != 1 or indices.shape != data.shape[:1]:
        raise _unfit(who, "index and entry", indices.size, len(data))
    if pointers[0] != 0 or pointers[-1] > indices.size or (pointers[1:] < pointers[:-1]).any():
        must = f"have pointers that begin with 0, never decrease and end at most at {indices.size}"
        wrong = np.flatnonzero(pointers[1:] < pointers[:-1])
        ends = (wrong[0], wrong[0] + 1) if wrong.size else (0, -1)
        raise bad(who, must, f"{pointers[ends[0]]} then {pointers[ends[1]]}", _CURE)
    _within(who, name, indices[: int(pointers[-1])], minor)


def _blocks(who: str, X: Any) -> None:
    """Raise unless a block matrix is sound as the CSR of its blocks."""
    height, width = X.blocksize
    if min(height, width) < 1 or X.shape[0] % height or X.shape[1] % width or X.data.shape[1:] != (height, width):
        raise bad(who, "have blocks that fit its shape", f"{X.data.shape[1:]} in {X.shape}", _CURE)
    _compressed(who, X, X.shape[0] // height, X.shape[1] // width, "block column")


def _within(who: str, name: str, indices: np.ndarray, size: int) -> None:
    _whole(who, f"{name} indices", indices)
    if indices.size and (indices.min() < 0 or indices.max() >= size):
        wrong = indices[(indices < 0) | (indices >= size)][0]
        raise bad(who, f"have {name} indices in 0, ..., {size - 1}", int(wrong), _CURE)


def _whole(who: str, name: str, a: np.ndarray) -> None:
    if a.dtype.kind not in "iu" or a.ndim != 1:
        raise wrong_type(who, f"have {name} that are whole numbers", f"dtype {a.dtype}, shape {a.shape}", _CURE)


def _unfit(who: str, what: str, *sizes: int) -> ValueError:
    return bad(who, f"have one {what} each", ", ".join(map(str, sizes)), _CURE)


def squared_lengths(X: Any) -> np.ndarray:
    """Return ‖x_i‖^2 of every row of dense rows or CSR (n, d), (n,)."""
    if not sp.issparse(X):
        return np.asarray(np.einsum("ij,ij->i", X, X))
    return np.asarray(sp.csr_array((X.data**2, X.indices, X.indptr), shape=X.shape).sum(axis=1))


def length(X: Any) -> float:
    """Return the root of the sum of x_ij^2 of dense rows or CSR, where entries below 1e-150 count as 1e-150."""
    data, square = X.data if sp.issparse(X) else X, 0.0
    with np.errstate(over="ignore"):
        for i in range(0, len(data), step := max(1, (1 << 17) * len(data) // max(data.size, 1))):
            part = data[i : i + step].ravel()
            square += float(part @ part) + part.size * 1e-300  # squares below it have lost their digits
    return math.sqrt(square)


def entries_of_columns(X: Any) -> np.ndarray:
    """Return how many entries every column of a CSR (n, d) stores, (d,)."""
    counts = np.zeros(X.shape[1], dtype=np.int64)
    step = max(1 << 15, X.shape[1])
    for i in range(0, X.nnz, step):  # pieces: they are copied as longer integers
        counts += np.bincount(X.indices[i : i + step], minlength=counts.size)
    return counts


def largest_entries(X: Any) -> np.ndarray:
    """Return the largest |x_ij| of every column of dense rows or CSR (n, d), (d,)."""
    n, d = X.shape
    largest = np.zeros(d)
    if sp.issparse(X):  # pieces: Ctrl-C is heard between two of them, and nothing of the size of X is made
        for i in range(0, X.nnz, 1 << 15):
            np.maximum.at(largest, X.indices[i : i + (1 << 15)], np.abs(X.data[i : i + (1 << 15)]))
        return largest
    step = min(n, max(1, (1 << 15) // max(d, 1)))
    room, top = np.empty((step, d)), np.zeros((step, d))  # blocks entry by entry, in cache
    for i in range(0, n, step):
        rows = X[i : i + step]
        some = top[: len(rows)]
        np.maximum(some, np.abs(rows, out=room[: len(rows)]), out=some)
    return top.max(axis=0, initial=0.0)
