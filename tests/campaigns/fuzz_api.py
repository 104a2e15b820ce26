"""A fuzzer over all public entry points: one or two parameters of a call that works are replaced by odd values."""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from tests.campaigns.entries import entries
from tests.campaigns.odd_values import odd

SECONDS = 20.0  # a call that takes longer counts as one that hangs
ROOT = Path(__file__).resolve().parents[2]
# values that are as good as those they replace: other numbers, other types of array, other problems of the same kind
AS_GOOD = (
    *("welcome *", "float32*", "int16", "integers", "half", "booleans", "next", "1", "2", "0", "1.5", "10^9", "1e-9"),
    *(
        "1e308*",
        "5e-324",
        "tiny",
        "huge",
        "constant",
        "all zero",
        "doubled",
        "shorter",
        "reversed",
        "range",
        "unsigned",
    ),
    *(
        "negative",
        "negated",
        "-1",
        "10^30",
        "2^63",
        "-2^63",
        "0-d*",
        "null",
        "upper case",
        "* problem",
        "problem",
        "None",
    ),
)
# entries and parameters that take what they are given, with the reason
TAKE_ANYTHING = {
    "estimators.*": "scikit-learn's rule: a constructor stores its parameters, `fit` checks them",
    "*.who": "a name for messages",
    "*.words": "a text for people",
    "*.title": "a text for people",
    "*.name": "a text for people",
    "*.names": "what things are called",
    "*.about": "what the user wants to keep beside a model",
    "datasets.Table.*": "a record; `checked` and Federation check it",
    "fields.*": "declarations of fields, made by methods",
    "*.progress": "a truth value, or None",
    "theory.Moments*.drift_before": "a truth value",
    "theory.Moments*.everyone": "a truth value",
    "*.kron": "a truth value, or None",
    "report.outlook.*": "truth values",
}


def trial(rng: np.random.Generator) -> dict[str, Any]:
    """A call with odd arguments is refused by name or answered: no crash, no hang, no message of NumPy or SciPy."""
    names = sorted(entries())
    name = names[rng.integers(len(names))]
    parameters = entries()[name].parameters
    bent = {}
    for parameter in rng.permutation(sorted(parameters))[: 1 + int(rng.random() < 0.2)]:
        labels = sorted(odd(parameters[parameter]))
        bent[str(parameter)] = labels[rng.integers(len(labels))]
    found = server().ask(name, bent)
    assert found["outcome"] in ("refused", "returned", "another kind"), (name, bent, found)
    silent = found["outcome"] == "returned" and not any(as_good(name, *item) for item in bent.items())
    return {"entry": name, "bent": bent, "outcome": found["outcome"], "silent": int(silent)}


def as_good(name: str, parameter: str, label: str) -> bool:
    """Whether a value may be accepted, by its label or by the parameter it stands for."""
    return any(fnmatch(label, p) for p in AS_GOOD) or any(fnmatch(f"{name}.{parameter}", p) for p in TAKE_ANYTHING)


class Server:
    """The process that forks for every call, see `fuzz_server`; started again if it dies."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        command = [sys.executable, "-m", "tests.campaigns.fuzz_server", str(SECONDS)]
        env = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, cwd=ROOT, env=env, text=True, **pipes)
        atexit.register(self.process.kill)
        assert self.process.stdout.readline() == "ready\n"

    def ask(self, name: str, bent: dict[str, str]) -> dict[str, Any]:
        """Return the outcome of a call; a server that does not answer has died with its child."""
        self.process.stdin.write(json.dumps([name, bent]) + "\n")
        self.process.stdin.flush()
        ready = select.select([self.process.stdout], [], [], 3.0 * SECONDS)[0]
        line = self.process.stdout.readline() if ready else ""
        if not line:
            self.process.kill()
            self._start()
            return {"outcome": "died", "message": "no answer"}
        return json.loads(line)


@functools.cache
def server() -> Server:
    """The one server of this process."""
    return Server()
