"""Two kinds of worker processes: in one kernels are compiled, in the other they run as the Python they are written in.

Compiling a kernel for one combination of loss, rows and optimiser takes seconds; running it as Python on the small
problems of the tests takes milliseconds. So most tests run interpreted; those that speak of compiled code, or are long
enough for compiling to pay, carry the mark `compiled`. Tests marked `anywhere` call no kernels and fill the gaps.

* ``pytest``                        both kinds of worker, every test in one of its kind
* ``NUMBA_DISABLE_JIT=1 pytest``    interpreted workers only
* ``NUMBA_DISABLE_JIT=0 pytest``    compiled workers only
* ``pytest -n 0``                   one process, compiled, for a debugger
"""

from __future__ import annotations

import compileall
import importlib
import json
import os
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

COMPILED, INTERPRETED, ANYWHERE = "compiled", "interpreted", "anywhere"
IF_SLOW = "compiled_if_slow"  # where compiling takes longer than the default tier's sample of a slow test
FEWEST, MOST = 3, 8  # worker processes: every one of them imports the package and collects all tests
CHUNK = 20  # tests of one file that are handed out together
CHUNK_ANYWHERE = 200  # these are quick, and those of one file share what they have parsed


def count() -> int:
    """Worker processes of ``-n auto``: on two cores one that compiles and two that do not, which take twice as long."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(FEWEST, min(MOST, cores))


def kind_of_worker(worker: str) -> str:
    """Of the workers gw0, gw1, ... every third one compiles, unless NUMBA_DISABLE_JIT decides for all."""
    choice = os.environ.get("NUMBA_DISABLE_JIT", "")
    if choice:
        return COMPILED if choice == "0" else INTERPRETED
    return INTERPRETED if number(worker) % 3 else COMPILED


def number(worker: str) -> int:
    """0 for gw0, 1 for gw1, ..."""
    return int(worker.removeprefix("gw"))


def prepare(worker: str, workers: int) -> None:
    """Byte-compile a share of all files: the rewriting of assertions takes ten seconds, and every worker needs all."""
    root, mine = Path(__file__).resolve().parents[1], slice(number(worker), None, workers)
    for path in sorted((root / "fedconvex").rglob("*.py"))[mine]:
        compileall.compile_file(path, quiet=2)
    for path in sorted((root / "tests").rglob("test_*.py"))[mine]:
        with suppress(Exception, pytest.skip.Exception):  # told when tests are collected
            importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))


def kind_of_test(item) -> str:
    """The kind of worker that a test asks for."""
    slow = item.get_closest_marker("slow") and item.get_closest_marker(IF_SLOW)
    if slow or item.get_closest_marker(COMPILED) or "compiled_kernels" in getattr(item, "fixturenames", ()):
        return COMPILED
    return ANYWHERE if item.get_closest_marker(ANYWHERE) else INTERPRETED


def write_kinds(path, items) -> None:
    """Leave the kinds of all tests where the scheduler finds them: it is told their names only."""
    part = Path(f"{path}.{os.getpid()}")
    part.write_text(json.dumps({item.nodeid: kind_of_test(item) for item in items}))
    part.replace(path)


class ByKind(LoadScopeScheduling):
    """Hands chunks of one file to workers of the kind that its tests ask for."""

    def __init__(self, config, log=None, *, kinds):
        super().__init__(config, log)
        self._kinds, self._chunks = kinds, {}

    def schedule(self):
        """Cut the list of tests into chunks before it is handed out."""
        if self.collection is None:
            names = next(iter(self.registered_collections.values()))
            kinds = json.loads(Path(self._kinds).read_text()) if names else {}
            self._chunks = chunks(names, kinds)
        super().schedule()

    def _split_scope(self, nodeid):
        return self._chunks[nodeid]

    def _next_chunk(self, node):
        """The next chunk for a worker: of its own kind, then of any, then of a kind that no worker is left for."""
        kind, others = kind_of_worker(node.gateway.id), {kind_of_worker(n.gateway.id) for n in self.nodes}
        for wanted in ({kind}, {ANYWHERE}, {COMPILED, INTERPRETED} - others):
            for chunk in self.workqueue:
                if chunk.partition(" ")[0] in wanted:
                    return chunk
        return None

    def _assign_work_unit(self, node):
        chunk = self._next_chunk(node)
        if chunk is not None:
            self.workqueue.move_to_end(chunk, last=False)
            super()._assign_work_unit(node)

    def _reschedule(self, node):
        if self.workqueue and self._next_chunk(node) is None and not node.shutting_down:
            node.shutdown()
        else:
            super()._reschedule(node)


def chunks(names, kinds):
    """The chunk of every test, named by kind, file and number: neighbours of one kind in one file, so many at most."""
    found, made = {}, {}
    for (kind, file), group in groupby(names, lambda name: (kinds[name], name.partition("::")[0])):
        for i, name in enumerate(group):
            size = CHUNK_ANYWHERE if kind == ANYWHERE else CHUNK
            number = made[kind, file] = made.get((kind, file), 0) + (i % size == 0)
            found[name] = f"{kind} {file} {number}"
    return found
