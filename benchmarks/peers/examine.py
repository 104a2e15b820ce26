"""What adapters share: ``fedconvex conform`` on a toolkit's implementations, problems of ``fedconvex bench``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fedconvex.conformance import conform

__all__ = ["dense_clients", "examine", "summary"]


def examine(package: str, implementations: Mapping[str, tuple[str, Any]]) -> None:
    """Examine what is named on the command line, or all, and write the answers if a file FILE.json is named.

    Parameters
    ----------
    package : str
        The toolkit's distribution, whose version is noted.
    implementations : mapping
        From a name to the family it claims to be, and ``train(clients, hyper, rounds)``.
    """
    named = [arg for arg in sys.argv[1:] if not arg.endswith(".json")]
    files = [arg for arg in sys.argv[1:] if arg.endswith(".json")]
    found = {}
    for name, (family, train) in implementations.items():
        if not named or name in named:
            found[name] = conform(train, family)
            print(f"{name} of {package} {version(package)}\n{found[name]}\n", flush=True)
    for file in files:
        answers = {name: summary(answer) for name, answer in found.items()}
        Path(file).write_text(json.dumps({package: version(package), "answers": answers}, indent=1) + "\n")


def summary(answer: Any) -> dict[str, Any]:
    """Return the figures of an answer, and what is not as published."""
    d = answer.to_dict()
    kept = {name: d[name] for name in ("family", "verdict", "errors", "tolerance", "distance", "next reading")}
    return kept | {
        "conventions": {line.convention: line.value for line in answer.found if line.kind == "convention"},
        "cannot be told apart": d["cannot be told apart"],
        "differs": d["differs"],
        "checks that hold": f"{sum(c.holds for c in answer.checks)} of {len(answer.checks)}",
        "exams": d["exams"],
        "left out": d["left out"],
        "readings tried": d["readings tried"],
    }


def dense_clients(arrays: Any, toolkit: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return a problem of ``fedconvex bench`` as dense rows and labels 0, 1, ... of every client.

    Raises
    ------
    ValueError
        If clients do not weigh n_k/n, as they do in the toolkit.
    """
    sizes = np.array([len(y) for y in arrays.y], dtype=float)
    if not np.allclose(arrays.weights, sizes / sizes.sum()):
        raise ValueError(f"{toolkit} must be given clients that weigh n_k/n; got other weights")
    labels = {"logistic": lambda y: (y > 0).astype(float), "hinge": lambda y: (y > 0).astype(float)}
    of = labels.get(arrays.loss, lambda y: y.astype(int) if arrays.loss == "softmax" else y)
    rows = (X.toarray() if hasattr(X, "toarray") else np.asarray(X) for X in arrays.X)
    return [(X, of(y)) for X, y in zip(rows, arrays.y, strict=True)]
