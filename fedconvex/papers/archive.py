"""Arrays of a file that an experiment is given."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedconvex._check import bad
from fedconvex.tables.other_files import read_arrays


def read_archive(
    path: str | os.PathLike[str],
    needed: Sequence[str],
    also: Callable[[str], bool] | None = None,
    words: str = "",
) -> dict[str, np.ndarray]:
    """Return arrays of an npz archive by name, read without pickle.

    Parameters
    ----------
    path : path
    needed : sequence of str
        Names that must be there.
    also : callable, optional
        Which other names are read if they are there.
    words : str
        What the archive must hold, for messages; default the needed names.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is no npz archive, holds objects, lacks a name, or its arrays take more than 2 GiB.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> import numpy as np
    >>> from fedconvex.papers.archive import read_archive
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder) / "a.npz"
    ...     np.savez(file, X=np.eye(2), y=[0, 1], z=[2.0])
    ...     list(read_archive(file, ["X", "y"]))
    ['X', 'y']
    """
    file, words = Path(path), words or ", ".join(needed)
    who = f"--data {file.name}"
    if not file.is_file():
        raise FileNotFoundError(f"--data must be an existing file; got {file}")
    arrays = read_arrays(who, file, lambda key: key in needed or (also is not None and also(key)))
    if any(key not in arrays for key in needed):
        raise bad(who, f"hold {words}", ", ".join(arrays) or "nothing")
    return {key: array for key, array in arrays.items() if array is not None}
