"""Run ``fedconvex conform`` on all implementations of a toolkit, and print the answers or write them as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedconvex.conformance import conform

__all__ = ["examine", "summary"]


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
