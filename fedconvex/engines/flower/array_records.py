"""Arrays by name as Flower's records, and what a site remembers as a record of its context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedconvex.remote.site_files import flat, parted

_NAME = "fedconvex"  # of the one record in a message, and of that in a context


def flwr_app() -> Any:
    """Return the module `flwr.app`.

    Raises
    ------
    ImportError
        If Flower is not installed, or has no such module.
    """
    try:
        from flwr import app
    except ImportError as error:
        text = "fedconvex.engines.flower must have the package flwr, 1.41 or later"
        raise ImportError(f"{text}; got {error}: pip install 'fedconvex[flower]'") from None
    return app


def record(arrays: Mapping[str, np.ndarray]) -> Any:
    """Return arrays as the content of a message."""
    app = flwr_app()
    return app.RecordDict({_NAME: app.ArrayRecord({name: app.Array(a) for name, a in arrays.items()})})


def arrays_of(content: Any) -> dict[str, np.ndarray]:
    """Return the arrays of a message, nothing if it has none: what lacks a header is refused."""
    try:
        return {name: a.numpy() for name, a in content.array_records[_NAME].items()}
    except Exception:  # whatever damaged or foreign content makes its readers raise
        return {}


class StateRecord:
    """What a site must remember, in the state that Flower keeps for its node: it lasts as long as the node.

    Parameters
    ----------
    state : RecordDict
        ``Context.state``.
    """

    def __init__(self, state: Any) -> None:
        self.state = state

    def save(self, joined: Mapping[str, np.ndarray], kept: Mapping[int, Any]) -> None:
        """Replace what was kept."""
        self.state[_NAME] = record(flat(joined, kept))[_NAME]

    def load(self) -> tuple[dict[str, np.ndarray], dict[int, dict[str, np.ndarray]]] | None:
        """Return the invitation, and arrays of memories by round; None if there are none yet."""
        return parted(arrays_of(self.state)) if _NAME in self.state else None
