"""A fuzzer over all public entry points: parameters of calls that work are replaced by odd values.

A trial takes one parameter of one entry and calls it with every odd value, one by one; a few of these calls have a
second parameter bent too. As many trials as there are parameters go through all of them once.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from tests.campaigns.acceptances import kind_of
from tests.campaigns.entries import entries
from tests.campaigns.odd_values import odd

SECONDS = 20.0  # of CPU time: a call that takes longer counts as one that hangs
PAIRS = 4  # calls of a trial with two odd arguments
WAITING = {("remote.serve", "wait", "10^9")}  # calls that wait as long as they are asked to
ROOT = Path(__file__).resolve().parents[2]


def trial(rng: np.random.Generator) -> dict[str, Any]:
    """Calls with odd arguments are refused by name or answered: no crash, no hang, no message of NumPy or SciPy."""
    every = parameters()
    seed, number = rng.bit_generator.seed_seq.entropy  # type: ignore[attr-defined]
    name, parameter = every[(int(number) + 7919 * int(seed)) % len(every)]
    calls = [(name, bent) for bent in bents(rng, name, parameter)]
    outcomes = server().ask(calls)
    wrong = [(call, o) for call, o in zip(calls, outcomes, strict=True) if o["outcome"] not in ("refused", "returned")]
    accepted = [bent for (_, bent), o in zip(calls, outcomes, strict=True) if o["outcome"] == "returned"]
    kinds = Counter(kind_of(name, parameter, bent[parameter]) for bent in accepted if len(bent) == 1)
    free = [bent for bent in accepted if len(bent) == 1 and kind_of(name, parameter, bent[parameter]) == "unjustified"]
    assert not wrong, (len(wrong), wrong[:3])
    assert not free, (name, free)
    return {"entry": name, "parameter": parameter, "calls": len(calls), "accepted": len(accepted), "kinds": kinds}


@functools.cache
def parameters() -> list[tuple[str, str]]:
    """All entries with each of their parameters, in an order that mixes them."""
    found = [(name, parameter) for name, entry in sorted(entries().items()) for parameter in sorted(entry.parameters)]
    return [found[i] for i in np.random.default_rng(0).permutation(len(found))]


def bents(rng: np.random.Generator, name: str, parameter: str) -> list[dict[str, str]]:
    """Every odd value of the parameter, and a few pairs with an odd value of another one."""
    values = entries()[name].parameters
    labels = sorted(odd(values[parameter]))
    labels = [label for label in labels if (name, parameter, label) not in WAITING]
    found, others = [{parameter: label} for label in labels], sorted(set(values) - {parameter})
    for _ in range(PAIRS if others else 0):
        second = others[rng.integers(len(others))]
        more = sorted(odd(values[second]))
        found.append({parameter: labels[rng.integers(len(labels))], second: more[rng.integers(len(more))]})
    return found


class Server:
    """The process that forks for every trial, see `fuzz_server`; started again if it dies."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        command = [sys.executable, "-m", "tests.campaigns.fuzz_server", str(SECONDS)]
        env = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, cwd=ROOT, env=env, text=True, **pipes)
        atexit.register(self.process.kill)
        assert self.process.stdout.readline() == "ready\n"

    def ask(self, calls: list[tuple[str, dict[str, str]]]) -> list[dict[str, Any]]:
        """Return the outcomes of calls; a server that does not answer has died with its child."""
        self.process.stdin.write(json.dumps(calls) + "\n")
        self.process.stdin.flush()
        ready = select.select([self.process.stdout], [], [], 20.0 * (len(calls) + 6.0) * SECONDS)[0]
        line = self.process.stdout.readline() if ready else ""
        if not line:
            self.process.kill()
            self._start()
            return [{"outcome": "died", "message": "no answer"}] * len(calls)
        return json.loads(line)


@functools.cache
def server() -> Server:
    """The one server of this process."""
    return Server()
