"""A run on disk: saved atomically, without pickle, resumed bit for bit; what is read is checked, not trusted."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import socket
import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

import fedconvex
from fedconvex._archives import arrays_in, json_of
from fedconvex._check import bad, wrong_type
from fedconvex._files import digest_of, identity, npz, owner_only, regular_or_new
from fedconvex.driver.cycles import leaves
from fedconvex.driver.recording import Recorder
from fedconvex.driver.rounds import Engine

_ABANDONED = 3600.0  # seconds after which a temporary file of another machine counts as left behind
_DELETE = "delete it to start anew, or name another file"
_COLUMNS = {"round": int, "value": float, "gap": float, "seconds": float, "floats_down": int, "floats_up": int}


def about_problem(problem: Any) -> dict[str, Any]:
    """Return what makes two problems the same: digests of rows, weights and drift, the loss, l2 and what is its own."""
    walk = getattr(problem, "walk", b"")
    return {
        "data": problem.federation.digest,
        "loss": identity(problem.loss),
        "l2": problem.l2,
        "problem": getattr(problem, "fingerprint", ""),
        "weights": hashlib.blake2b(problem.weights.tobytes(), digest_size=16).hexdigest(),
        "drift": hashlib.blake2b(walk).hexdigest()[:32] if walk else "none",
    }


class Checkpoint:
    """A run on disk: the state's arrays, the trace and a description that must match, in one npz.

    Several processes may write one path: each writes a temporary file of its own and renames it; of two runs that are
    the same the one that is further is kept, and a run never overwrites another one.
    """

    def __init__(self, path: Any, engine: Engine, every: int, start: Any) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise wrong_type("run: checkpoint", "be a path", f"{path!r}")
        self.path = Path(path)
        self.engine, self.clock = engine, time.monotonic()
        problem = engine.problem
        origin = "zeros" if start is None else hashlib.blake2b(np.asarray(start, float).tobytes()).hexdigest()[:32]
        self.about = {
            "version": fedconvex.__version__,
            "method": identity(engine.method),
            **about_problem(problem),
            "key": int(engine.key),
            "trajectories": engine.R,
            "record_every": every,
            "start": origin,
        }
        self._check_path()

    def _check_path(self) -> None:
        """Raise before any work is done if the path cannot be written."""
        try:
            if self.path.is_symlink():  # what it leads to is replaced, not the link
                self.path = Path(os.path.realpath(self.path))
            if self.path.is_dir() or not self.path.parent.is_dir():
                raise bad("run: checkpoint", "be a file in an existing folder", str(self.path))
            if not regular_or_new(self.path):
                raise bad("run: checkpoint", "be a regular file, or new: it is read again", str(self.path))
            trial = self._temporary()
            trial.touch()
            trial.unlink()
        except (OSError, ValueError) as error:  # no such name, read-only, too long, a null byte
            if str(error).startswith("run: checkpoint"):
                raise
            raise bad("run: checkpoint", "be a file that can be written", f"{str(self.path)!r} ({error})") from None

    def _temporary(self) -> Path:
        """Return a name beside the target that no other process uses."""
        return self.path.with_name(f"{self.path.name}.{_host()}.{os.getpid()}.{secrets.token_hex(4)}.part")

    def due(self, t: int, every: int | None) -> bool:
        """Whether to save after t rounds: every so many, or about every five seconds."""
        if every is not None:
            return t % every == 0
        return time.monotonic() - self.clock > 5.0

    def save(self, t: int, state: Any, recorder: Recorder) -> None:
        """Write to a temporary file beside the target, flush it to disk, and rename it over the target.

        Raises
        ------
        OSError
            If that fails: what stood there before is left as it was.
        ValueError
            If another run has written there meanwhile.
        """
        self.clock = time.monotonic()
        if self._other_is_further(t):
            return
        arrays = {f"state/{name}": v for name, v in leaves(state)}
        if self.engine.memory is not None:
            arrays |= {f"memory/{name}": v for name, v in leaves(self.engine.memory)}
        for name in recorder.rows[0] if recorder.rows else ():
            arrays[f"trace/{name}"] = np.array([row[name] for row in recorder.rows])
        arrays |= {"diverged": recorder.diverged} | recorder.returns.saved()
        floats = list(self.engine.done)
        about = {"about": self.about, "round": t, "floats": floats, "digest": _digest(arrays, t, floats)}
        arrays["description"] = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
        content = npz(arrays)
        temporary = self._temporary()
        try:
            with open(temporary, "wb", opener=owner_only) as f:  # what clients remember tells of their rows
                f.write(content)
                f.flush()
                os.fsync(f.fileno())
            os.replace(temporary, self.path)
            self.engine.durable = self.engine.memory
        except OSError as error:
            text = f"run: checkpoint {self.path} could not be written after round {t} ({error.strerror})"
            raise OSError(error.errno, f"{text}; the last one that was written is intact") from error
        finally:
            temporary.unlink(missing_ok=True)
        self.clock = time.monotonic()

    def _other_is_further(self, t: int) -> bool:
        """Whether the same run, in another process, has written a later round; raise if it is another run."""
        try:
            there = json_of(arrays_in(self.path, "description".__eq__)["description"])
            about, done = there["about"], int(there["round"])
        except Exception:  # nothing there, or nothing that can be read: `load` has refused what was there before
            return False
        if about != self.about:
            cure = "two runs were given one path: name another file"
            raise bad(f"run: checkpoint {self.path}", "belong to this run", f"a run of {about.get('method')}", cure)
        return done > t

    def load(self, template: Any, recorder: Recorder) -> tuple[int, Any] | None:
        """Return (round, state) and fill the recorder, or None if there is nothing to resume.

        Raises
        ------
        ValueError
            If the file is damaged, of another run, or does not hold what a run of this method could have written.
        """
        self._clear_orphans()
        if not self.path.exists():
            return None
        try:
            arrays = arrays_in(self.path)
            about = json_of(arrays["description"])
            written, done, floats = dict(about["about"]), int(about["round"]), [int(v) for v in about["floats"]]
            digest = str(about["digest"])
        except Exception as error:  # whatever a damaged or foreign file makes its readers raise
            got = f"a damaged or foreign file ({type(error).__name__}: {error})"
            raise bad(f"run: checkpoint {self.path}", "be a checkpoint of a run", got, _DELETE) from None
        for name, mine in self.about.items():
            theirs = written.get(name)
            if theirs != mine:
                who, cure = f"run: checkpoint {self.path}: {name}", "name another file, or repeat the settings of the "
                raise bad(who, f"be {mine!r} to resume this run", f"{theirs!r}", f"{cure}run that wrote it")
        if len(floats) != 2 or min(floats) < 0 or done < 0 or digest != _digest(arrays, done, floats):
            self._damaged("a digest that fits what it holds", "another")
        recorder.diverged = self._array(arrays, "diverged", recorder.diverged)
        if ((recorder.diverged < -1) | (recorder.diverged > done)).any():
            self._damaged(f"rounds of divergence from -1 to {done}", f"{recorder.diverged.tolist()}")
        recorder.rows = self._rows(arrays, done, recorder.every, recorder.diverged)
        e, saved = self.engine, self._rebuild(template, arrays, "state/")
        with np.errstate(all="ignore"):
            columns = {*_COLUMNS, *recorder.observed(template)}
        if recorder.rows and recorder.rows[0].keys() != columns:
            self._damaged(f"a trace of {', '.join(sorted(columns))}", ", ".join(sorted(recorder.rows[0])))
        if e.memory is not None:
            e.memory = e.durable = self._rebuild(e.memory, arrays, "memory/")
        e.floats_down, e.floats_up = e.done = floats[0], floats[1]
        self._check_state(template, saved, done)
        self._check_finite(template, saved, self._sound(saved, recorder, done))
        if not recorder.returns.restore(arrays, saved):
            self._damaged("the earlier state that later ones are compared with", "another")
        if done % recorder.every:  # the row that told so is recorded again, or was not due in a longer run
            recorder.diverged[recorder.diverged == done] = -1
        return done, saved

    def _check_state(self, template: Any, saved: Any, done: int) -> None:
        """Raise if a state counts other rounds, or differs in what no round changes."""
        method, started, now = self.engine.method, dict(leaves(template)), dict(leaves(saved))
        if int(now.get("t", done)) != done:
            self._damaged(f"a state of round {done}", f"one of round {int(now['t'])}")
        for name in getattr(method, "constant", ()):
            if not np.array_equal(now[name], started[name]):
                self._damaged(f"state/{name} as the problem has it", "another")
        if hasattr(method, "check_state"):  # places in arrays
            try:
                method.check_state(self.engine.problem, saved)
            except ValueError as error:
                self._damaged("a state of this method", str(error))

    def _sound(self, saved: Any, recorder: Recorder, done: int) -> np.ndarray:
        """Return the trajectories (R,) that have not diverged, as far as was recorded, or as their models tell."""
        last = recorder.rows[-1] if recorder.rows else {"round": -1}
        models = np.isfinite(saved.w.reshape(self.engine.R, -1)).all(axis=1)
        return (recorder.diverged < 0) & (np.isfinite(last["value"]) if last["round"] == done else models)

    def _check_finite(self, template: Any, saved: Any, sound: np.ndarray) -> None:
        """Raise if anything of a sound trajectory is not finite, unless it was not finite at the start either."""
        started = {f"state/{name}": v for name, v in leaves(template)}
        arrays = {f"state/{name}": v for name, v in leaves(saved)}
        if self.engine.memory is not None:
            arrays |= {f"memory/{name}": v for name, v in leaves(self.engine.memory)}
        for name, a in arrays.items():
            first = started.get(name, a)
            known = np.isfinite(first) if name in started and first.shape == a.shape else np.ones(a.shape, bool)
            lost = known & ~np.isfinite(a)
            of_one = a.ndim and len(a) == sound.size  # its leading axis is that of the trajectories
            if lost[sound].any() if of_one else lost.any() and sound.all():
                self._damaged(f"finite numbers in {name} where the objective is finite", "NaN or infinity")

    def _clear_orphans(self) -> None:
        """Remove temporary files that killed runs left: their process is gone, or they are old."""
        pattern = re.compile(
            re.escape(self.path.name) + r"\.(?:(?P<host>[0-9a-f]{8})\.)?(?P<pid>\d+)(?:\.[0-9a-f]{8})?\.part"
        )
        for file in self.path.parent.iterdir():
            found = pattern.fullmatch(file.name)
            if found and not _in_use(file, found["host"], int(found["pid"])):
                file.unlink(missing_ok=True)

    def _rows(self, arrays: dict[str, np.ndarray], done: int, every: int, diverged: np.ndarray) -> list[dict[str, Any]]:
        """Return the rows of the trace: one for every recorded round, the last of them perhaps still to come."""
        columns = {k.removeprefix("trace/"): v for k, v in arrays.items() if k.startswith("trace/")}
        wrong = [k for k, v in columns.items() if v.ndim == 0 or v.dtype not in _kinds(k)]
        if wrong or (columns and not columns.keys() >= _COLUMNS.keys()):
            self._damaged(f"a trace with the numbers {', '.join(_COLUMNS)}", ", ".join(wrong or columns))
        if len({len(v) for v in columns.values()}) > 1:
            self._damaged("columns of one length in its trace", f"{sorted({len(v) for v in columns.values()})}")
        rounds = columns["round"].tolist() if columns else []
        grid = list(range(0, min(done, every * (len(rounds) + 1)) + 1, every))  # no longer than what it is held against
        off = [] if rounds[-1:] != [done] or done % every == 0 else [done]  # the last row of a run may be off the grid
        if rounds not in (grid + off, grid[:-1] if grid[-1] == done else grid):
            self._damaged(f"a trace of rounds 0 to {done}, every {every}", f"{len(rounds)} rows")
        if columns:
            self._check_trace(columns, (len(rounds), self.engine.R), diverged)
        rows = [{name: v[i] for name, v in columns.items()} for i in range(len(rounds))]
        return [row for row in rows if row["round"] % every == 0]

    def _check_trace(self, columns: dict[str, np.ndarray], shape: tuple[int, int], diverged: np.ndarray) -> None:
        """Raise if values and gaps are not those of R trajectories, or not finite before these diverged."""
        value, gap, rounds = columns["value"], columns["gap"], columns["round"][:, None]
        if value.shape != shape or gap.shape != shape:
            self._damaged(f"values and gaps of {shape[1]} trajectories", f"shapes {value.shape} and {gap.shape}")
        alive = (diverged < 0) | (rounds < diverged)
        known = np.isfinite(value[alive]) | (np.isnan(value[alive]) & self.engine.may_miss)
        if not known.all() or np.isnan(gap).any():
            self._damaged("finite values of what has not diverged, and gaps", "NaN or infinity")
        if min(columns["floats_down"].min(initial=0), columns["floats_up"].min(initial=0)) < 0:
            self._damaged("counts of floats", "negative ones")

    def _array(self, arrays: dict[str, np.ndarray], name: str, like: np.ndarray) -> np.ndarray:
        """Return a stored array if it could stand in the place of another; axes empty at the start may grow."""
        if name not in arrays:
            self._damaged(f"the array {name}", "none")
        a = arrays[name]
        fits = a.dtype == like.dtype and a.ndim == like.ndim
        if not fits or any(n != m and m != 0 for n, m in zip(a.shape, like.shape, strict=True)):
            self._damaged(f"{name} of shape {like.shape}, {like.dtype}", f"shape {a.shape}, {a.dtype}")
        return a

    def _rebuild(self, template: Any, arrays: dict[str, np.ndarray], prefix: str) -> Any:
        """Return the template with its leaves replaced by the stored ones."""
        if hasattr(template, "restored"):  # its arrays grow during a run
            stored = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
            try:
                return template.restored(stored, self.engine.R, self.engine.problem.federation.K)
            except ValueError as error:
                self._damaged("what clients keep", str(error))
        if isinstance(template, tuple):
            names = getattr(template, "_fields", range(len(template)))
            parts = [self._rebuild(v, arrays, f"{prefix}{n}/") for n, v in zip(names, template, strict=True)]
            return type(template)(*parts) if hasattr(template, "_fields") else tuple(parts)
        if template is None:
            return None
        found = self._array(arrays, prefix.rstrip("/"), np.asarray(template))
        return found if isinstance(template, np.ndarray) else type(template)(found.item())

    def _damaged(self, must: str, got: str) -> NoReturn:
        raise bad(f"run: checkpoint {self.path}", f"hold {must}", got, _DELETE)


def _kinds(column: str) -> tuple[type, ...]:
    """Return the types that a column of the trace may have; what methods observe is theirs."""
    return (_COLUMNS[column],) if column in _COLUMNS else (float, int, bool)


def _host() -> str:
    return hashlib.blake2b(socket.gethostname().encode(), digest_size=4).hexdigest()


def _in_use(file: Path, host: str | None, pid: int) -> bool:
    """Whether the process that writes a temporary file may still be there."""
    try:
        if host in (None, _host()) and os.name == "posix":
            os.kill(pid, 0)
        elif time.time() - file.stat().st_mtime > _ABANDONED:
            return False
    except (ProcessLookupError, FileNotFoundError):
        return False
    except OSError:  # a process of somebody else
        pass
    return True


def _digest(arrays: dict[str, np.ndarray], t: int, floats: list[int]) -> str:
    """Return the fingerprint of everything that is stored."""
    told = {name: a for name, a in arrays.items() if name != "description"}
    return digest_of(told, json.dumps([t, floats]).encode()).hex()
