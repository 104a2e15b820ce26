"""Arrays of a file that an experiment is given."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedconvex._check import bad

__all__ = ["read_archive"]


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
        If it is no npz archive, holds objects, or lacks a name.

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
    try:
        stored = np.load(file, allow_pickle=False)
        if not isinstance(stored, np.lib.npyio.NpzFile):
            raise ValueError("a single array")
        with stored:
            found = list(stored.files)
            arrays = {key: stored[key] for key in found if key in needed or (also is not None and also(key))}
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise bad(who, f"be an npz archive with {words}, without pickle", f"{error}") from None
    if any(key not in arrays for key in needed):
        raise bad(who, f"hold {words}", ", ".join(found) or "nothing")
    return arrays
