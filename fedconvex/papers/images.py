"""Images with class labels, as MNIST and Fashion-MNIST are often stored: read, checked, and made coarser."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from fedconvex._check import bad, finite, numeric, whole
from fedconvex.papers.archive import read_archive

KEYS = ("x_train", "y_train", "x_test", "y_test")
_RECORD = 1 + 3 * 32 * 32  # bytes of an image of CIFAR-10


def read_images(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read an npz archive of labelled images, without pickle.

    Parameters
    ----------
    path : path
        Holds x_train (n, ...), y_train (n,), x_test (m, ...), y_test (m,); labels are class numbers 0, 1, ... Or a
        folder with the binary files of CIFAR-10, data_batch_1.bin to data_batch_5.bin and test_batch.bin.

    Returns
    -------
    dict
        The four arrays, as they are stored; CIFAR-10 in grey, the mean of its three colours.

    Raises
    ------
    ValueError
        If the file is no such archive, its arrays do not fit, or are not finite.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> import numpy as np
    >>> from fedconvex.papers.images import read_images
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder) / "four.npz"
    ...     np.savez(file, x_train=np.eye(4), y_train=[0, 1, 2, 3], x_test=np.eye(4), y_test=[0, 1, 2, 3])
    ...     read_images(file)["x_train"].shape
    (4, 4)
    """
    who = f"--data {Path(path).name}"
    arrays = (
        read_archive(path, KEYS) if Path(path).suffix == ".npz" or Path(path).is_file() else _read_cifar(Path(path))
    )
    for part in ("train", "test"):
        X, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if X.ndim < 2 or y.ndim != 1 or len(X) != len(y) or not X.size:
            must = f"have shapes (n, ...) and (n,), n > 0, for x_{part} and y_{part}"
            raise bad(who, must, f"{X.shape} and {y.shape}")
        _labels(f"{who}: y_{part}", y)
        if X.dtype.kind not in "uib":
            finite(f"{who}: x_{part}", numeric(f"{who}: x_{part}", X, copy=False))
    if arrays["x_train"].shape[1:] != arrays["x_test"].shape[1:]:
        must, got = "have test rows like its training rows", f"{arrays['x_test'].shape[1:]}"
        raise bad(who, must, got, f"x_train has rows {arrays['x_train'].shape[1:]}")
    if arrays["y_test"].max() > arrays["y_train"].max():
        raise bad(f"{who}: y_test", "have labels of y_train only", f"{arrays['y_test'].max()}")
    return arrays


def _read_cifar(folder: Path) -> dict[str, np.ndarray]:
    """Return CIFAR-10 from its binary files: records of a label and three colours of 32 x 32 bytes."""
    parts: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        file = folder / name
        if not file.is_file():
            raise FileNotFoundError(f"--data must be an npz archive, or a folder with {name} (CIFAR-10); got {folder}")
        bytes_ = np.fromfile(file, dtype=np.uint8)
        if not bytes_.size or bytes_.size % _RECORD:
            raise bad(f"--data {name}", f"hold records of {_RECORD} bytes", f"{bytes_.size} bytes")
        parts["test" if name.startswith("test") else "train"].append(bytes_.reshape(-1, _RECORD))
    out = {}
    for part, found in parts.items():
        rows = np.vstack(found)
        out[f"x_{part}"] = rows[:, 1:].reshape(-1, 3, 32, 32).mean(axis=1)
        out[f"y_{part}"] = rows[:, 0]
    return out


def _labels(who: str, y: np.ndarray) -> None:
    if y.dtype.kind not in "uif":
        raise bad(who, "hold class numbers 0, 1, ...", f"dtype {y.dtype}")
    if not (np.isfinite(y).all() and (y == np.floor(y)).all() and y.min() >= 0 and y.max() < 1000):
        raise bad(who, "hold class numbers 0, 1, ...", f"values from {y.min()} to {y.max()}")


def scaled(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return training and test rows over the largest entry of the training rows, with a last column of ones."""
    largest = float(np.abs(train).max()) or 1.0
    made = [np.hstack([A / largest, np.ones((len(A), 1))]) for A in (train, test)]
    return made[0], made[1]


def accuracies(w: np.ndarray, X: Any, y: np.ndarray) -> np.ndarray:
    """Return the share of rows (m, d), dense or CSR, whose class models w (R, C, d) give the largest score: (R,).

    It is 0 for models that are not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.papers.images import accuracies
    >>> accuracies(np.array([[[1.0, 0.0], [0.0, 1.0]]]), np.eye(2), np.array([0, 0]))
    array([0.5])
    """
    R, C, d = w.shape
    with np.errstate(all="ignore"):
        scores = np.asarray(X @ w.reshape(R * C, d).T).reshape(-1, R, C)
    right = np.argmax(scores, axis=2) == y[:, None]
    return np.where(np.isfinite(w).all(axis=(1, 2)), right.mean(axis=0), 0.0)


def coarser(images: np.ndarray, block: int) -> np.ndarray:
    """Return images (n, h, w) averaged over blocks of block x block pixels, as rows (n, h w/block^2).

    Parameters
    ----------
    images : array (n, h, w), or (n, ...) with block 1
    block : int
        Divides h and w.

    Raises
    ------
    ValueError
        If it does not.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.papers.images import coarser
    >>> coarser(np.arange(16).reshape(1, 4, 4), 2)
    array([[ 2.5,  4.5, 10.5, 12.5]])
    """
    b, n = whole("coarser: block", block, low=1), len(images)
    if b == 1:
        return images.reshape(n, -1).astype(float)
    if images.ndim != 3 or images.shape[1] % b or images.shape[2] % b:
        raise bad("coarser: images", f"have shape (n, h, w), h and w multiples of {b}", f"{images.shape}")
    h, w = images.shape[1] // b, images.shape[2] // b
    return images.reshape(n, h, b, w, b).mean(axis=(2, 4), dtype=float).reshape(n, h * w)
