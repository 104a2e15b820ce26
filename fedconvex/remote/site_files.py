"""What a site must remember, on disk: whole or not at all, without pickles, with a digest over all of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedconvex._archives import arrays_in
from fedconvex._check import bad
from fedconvex._files import check_regular_file, digest_of, npz, write_private
from fedconvex.driver.cycles import leaves


class SiteFile:
    """The invitation that a site has accepted, and its memories by round.

    Raises
    ------
    ValueError
        If the path cannot be written, or what stands there is damaged.
    """

    def __init__(self, path: str | os.PathLike[str], label: Any) -> None:
        self.who = f"Site {label}: checkpoint"
        self.path: Path = check_regular_file(self.who, path)

    def save(self, joined: Mapping[str, np.ndarray], kept: Mapping[int, Any]) -> None:
        """Write to a temporary file and rename it: for its owner only, a key of secure sums may be in it."""
        arrays = flat(joined, kept)
        write_private(self.path, npz(arrays | {"digest": _digest(arrays)}))

    def load(self) -> tuple[dict[str, np.ndarray], dict[int, dict[str, np.ndarray]]] | None:
        """Return the invitation, and arrays of memories by round; None if there is no file."""
        if not self.path.exists():
            return None
        try:
            arrays = arrays_in(self.path)
            whole = np.array_equal(arrays.pop("digest"), _digest(arrays))
            found = parted(arrays)
        except Exception as error:  # whatever a damaged or foreign file makes its readers raise
            raise self._damaged(f"a damaged or foreign file ({type(error).__name__})") from None
        if not whole:
            raise self._damaged("one whose digest does not fit")
        return found

    def _damaged(self, got: str) -> ValueError:
        cure = "restore a copy, or delete it to start anew"
        return bad(f"{self.who} {self.path}", "be what a site has written", got, cure)


def flat(joined: Mapping[str, np.ndarray], kept: Mapping[int, Any]) -> dict[str, np.ndarray]:
    """Return an invitation and memories by round as arrays by name."""
    arrays = {f"joined/{name}": np.asarray(a) for name, a in joined.items()}
    for t, memory in kept.items():
        arrays |= {f"kept/{t}/{name}": a for name, a in leaves(memory)}
    return arrays


def parted(arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[int, dict[str, np.ndarray]]]:
    """Return the invitation, and arrays of memories by round: what `flat` was given, but for the memories' class."""
    kept: dict[int, dict[str, np.ndarray]] = {}
    for name in [name for name in arrays if name.startswith("kept/")]:
        _, t, rest = name.split("/", 2)
        kept.setdefault(int(t), {})[rest] = arrays[name]
    return {n.removeprefix("joined/"): a for n, a in arrays.items() if n.startswith("joined/")}, kept


def _digest(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the fingerprint of arrays and their names."""
    return np.frombuffer(digest_of(arrays), dtype=np.uint8)
