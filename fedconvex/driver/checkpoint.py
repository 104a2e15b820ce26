"""A run on disk: saved atomically, without pickle, and resumed bit for bit."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import fedconvex
from fedconvex._check import bad, wrong_type
from fedconvex.driver.recording import Recorder
from fedconvex.driver.rounds import Engine
from fedconvex.problems import MovingTarget

__all__ = ["Checkpoint"]


class Checkpoint:
    """A run on disk: the state's arrays, the trace and a description that must match, in one npz."""

    def __init__(self, path: Any, engine: Engine, every: int, start: Any) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise wrong_type("run: checkpoint", "be a path", f"{path!r}")
        self.path = Path(path)
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise bad("run: checkpoint", "be a file in an existing folder", str(path))
        self.engine, self.clock = engine, time.monotonic()
        problem = engine.problem
        origin = "zeros" if start is None else hashlib.blake2b(np.asarray(start, float).tobytes()).hexdigest()[:32]
        self.about = {
            "version": fedconvex.__version__,
            "method": repr(engine.method),
            "data": problem.federation.digest,
            "loss": repr(problem.loss),
            "l2": problem.l2,
            "problem": getattr(problem, "fingerprint", ""),
            "weights": hashlib.blake2b(problem.weights.tobytes(), digest_size=16).hexdigest(),
            "key": int(engine.key),
            "trajectories": engine.R,
            "record_every": every,
            "start": origin,
        }
        covariance = problem.covariance if isinstance(problem, MovingTarget) else None
        drift = "none" if covariance is None else hashlib.blake2b(covariance.tobytes()).hexdigest()[:32]
        self.about["drift"] = drift

    def due(self, t: int, every: int | None) -> bool:
        """Whether to save after t rounds: every so many, or about every five seconds."""
        if every is not None:
            return t % every == 0
        return time.monotonic() - self.clock > 5.0

    def save(self, t: int, state: Any, recorder: Recorder) -> None:
        """Write to a temporary file beside the target, flush it to disk, and rename it over the target."""
        arrays = {f"state/{name}": v for name, v in _leaves(state)}
        if self.engine.memory is not None:
            arrays |= {f"memory/{name}": v for name, v in _leaves(self.engine.memory)}
        for name in recorder.rows[0] if recorder.rows else ():
            arrays[f"trace/{name}"] = np.array([row[name] for row in recorder.rows])
        arrays["diverged"] = recorder.diverged
        about = {"about": self.about, "round": t, "floats": list(self.engine.done)}
        arrays["description"] = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        try:
            with open(temporary, "wb") as f:
                f.write(buffer.getvalue())
                f.flush()
                os.fsync(f.fileno())
            os.replace(temporary, self.path)
        finally:
            temporary.unlink(missing_ok=True)
        self.clock = time.monotonic()

    def load(self, template: Any, recorder: Recorder) -> tuple[int, Any] | None:
        """Return (round, state) and fill the recorder, or None if there is nothing to resume."""
        for orphan in self.path.parent.iterdir():  # left by a killed run
            if re.fullmatch(re.escape(self.path.name) + r"\.\d+\.part", orphan.name):
                orphan.unlink(missing_ok=True)
        if not self.path.exists():
            return None
        try:
            with np.load(self.path, allow_pickle=False) as stored:
                arrays = dict(stored)
            about = json.loads(arrays["description"].tobytes())
            written, done, floats = dict(about["about"]), int(about["round"]), [int(v) for v in about["floats"]]
        except Exception as error:  # whatever a damaged or foreign file makes its readers raise
            cure = "delete it to start anew, or name another file"
            got = f"a damaged or foreign file ({type(error).__name__}: {error})"
            raise bad(f"run: checkpoint {self.path}", "be a checkpoint of a run", got, cure) from None
        for name, mine in self.about.items():
            theirs = written.get(name)
            if theirs != mine:
                cure = "name another file, or repeat the settings of the run that wrote it"
                raise bad(
                    f"run: checkpoint {self.path}: {name}", f"be {mine!r} to resume this run", f"{theirs!r}", cure
                )
        columns = {k.removeprefix("trace/"): v for k, v in arrays.items() if k.startswith("trace/")}
        length = len(columns["round"]) if columns else 0
        rows = [{name: v[i] for name, v in columns.items()} for i in range(length)]
        recorder.rows = [row for row in rows if row["round"] % recorder.every == 0]  # a last row may be off the grid
        recorder.diverged = arrays["diverged"]
        e = self.engine
        e.floats_down, e.floats_up = e.done = floats[0], floats[1]
        if e.memory is not None:
            e.memory = _rebuild(e.memory, arrays, "memory/")
        return done, _rebuild(template, arrays, "state/")


def _leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays and numbers of nested tuples with their paths."""
    if isinstance(tree, tuple):
        names = getattr(tree, "_fields", range(len(tree)))
        for name, v in zip(names, tree, strict=True):
            yield from _leaves(v, f"{prefix}{name}/")
    elif tree is not None:
        yield prefix.rstrip("/"), np.asarray(tree)


def _rebuild(template: Any, arrays: dict[str, np.ndarray], prefix: str) -> Any:
    """Return the template with its leaves replaced by the stored ones."""
    if isinstance(template, tuple):
        names = getattr(template, "_fields", range(len(template)))
        parts = [_rebuild(v, arrays, f"{prefix}{n}/") for n, v in zip(names, template, strict=True)]
        return type(template)(*parts) if hasattr(template, "_fields") else tuple(parts)
    if template is None:
        return None
    stored = arrays[prefix.rstrip("/")]
    return stored if isinstance(template, np.ndarray) else type(template)(stored.item())
