"""Files made to do harm: archives that unpack to gigabytes, indices that lead outside, functions named, endless nests.

A trial takes a file that the package reads, of one of a dozen kinds, crafts it, and lets the package read it in a
process of little memory and little time. It is refused in our words, or read as data; nothing is written outside of its
folder, and no module of the package is imported that reading a sound file does not import.
"""

from __future__ import annotations

import copy
import io
import json
import struct
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedconvex import FedAvg, Federation, Logistic, Problem, Squared, run
from fedconvex.bench import campaign as bench_campaign
from fedconvex.bench.cells import Rules
from fedconvex.datasets import load
from fedconvex.models import LinearModel
from fedconvex.papers import finished_parts as parts_kept
from fedconvex.papers.intervals import Interval
from fedconvex.problems import QEnsemble, Stump
from fedconvex.remote.site_files import SiteFile
from fedconvex.sweeps import read_sweep, sweep
from fedconvex.tables import read_frame
from fedconvex.verify import search
from tests.campaigns.children import in_a_child

__all__ = ["SUBJECTS", "crafted_trial"]

MEMORY, SECONDS = 1 << 29, 60.0  # bytes beyond what the process has, and of CPU time
OURS = ("ValueError", "TypeError", "ColumnProblems", "FileNotFoundError", "Refused")


class Subject(NamedTuple):
    """A file, what reads it, and what the reader may say instead of our words: nothing, where it is made anew."""

    path: Path
    read: Callable[[], Any]
    anew: bool = False


def problem() -> Any:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(12, 3)), np.where(rng.random(12) < 0.5, -1.0, 1.0)
    return Problem(Federation.from_arrays(X, y, np.arange(12) % 3), Logistic(), 0.1)


# ---------------------------------------------------------------- what is read


def checkpoint(home: Path) -> Subject:
    """A run that goes on."""
    path, method = home / "run.npz", FedAvg(step_size=0.1)

    def read() -> Any:
        return run(method, problem(), rounds=3, tol=0.0, progress=False, checkpoint=path).w.tolist()

    read()
    return Subject(path, read)


def model(home: Path, name: str = "model.npz") -> Subject:
    """A saved linear model."""
    LinearModel(np.ones(3), np.zeros(()), ("no", "yes"), ("u", "v", "w"), {"loss": "logistic"}).save(home)
    return Subject(home / name, lambda: LinearModel.load(home).predict(np.ones((2, 3))).tolist())


def described(home: Path) -> Subject:
    """Its description."""
    return model(home, "model.json")


def ensemble(home: Path) -> Subject:
    """Stumps."""
    QEnsemble([Stump(0, 0.1, -1.0, 1.0), Stump(2, -0.2, 1.0, -0.5)], [0, 1], [0.5, 1.5], n_sources=2).save(home / "q")
    return Subject(home / "q", lambda: QEnsemble.load(home / "q").decision_function(np.ones((2, 3))).tolist())


def part(home: Path) -> Subject:
    """A finished part of an experiment, which is made anew where it is none."""
    made = {"a": np.arange(3.0), "b": [Interval(0.5, 0.1), None, ("x", 2)]}

    def read() -> Any:
        with parts_kept.keeping(home / "parts", "e", True, 0, None):
            found = parts_kept.finished_part("part", lambda: made, (Interval,))
        return sorted({type(v).__name__ for v in found}) if hasattr(found, "__iter__") else type(found).__name__

    read()
    return Subject(next((home / "parts").glob("part*")), read, anew=True)


def swept(home: Path, name: str = "part-*.npz") -> Subject:
    """Answers of a sweep."""
    folder = home / "s"
    sweep(FedAvg(step_size=0.1), problem(), grid={"step_size": [0.1, 0.2]}, rounds=2, folder=folder, progress=False)
    return Subject(next(folder.glob(name)), lambda: len(read_sweep(folder)))


def sweep_about(home: Path) -> Subject:
    """What a sweep says of itself."""
    return swept(home, "about.json")


def sweep_file(home: Path) -> Subject:
    """A whole sweep in one file."""
    frame = sweep(FedAvg(step_size=0.1), problem(), rounds=2, progress=False)
    frame.save(home / "s.npz")
    return Subject(home / "s.npz", lambda: len(read_sweep(home / "s.npz")))


def cell(home: Path) -> Subject:
    """A finished cell of a benchmark."""
    (home / "cell.json").write_text(json.dumps({"found": {"status": "reached"}, "timed": {"costs": []}}))
    rules = Rules((1e-3,), 10)
    return Subject(home / "cell.json", lambda: repr(bench_campaign._read(home / "cell.json", rules))[:99], anew=True)


def book(home: Path) -> Subject:
    """A book of problems."""
    from fedconvex.bench import Case, read_book, write_book

    drawn = Case("drawn", "linear", {"n_clients": 2, "n_features": 2, "rows_per_client": 4}, "squared")
    texts = Case("texts", "sparse", {"n_clients": 2, "n_features": 5, "rows_per_client": 4}, "logistic", 0.1)
    file = write_book([drawn, texts], home / "book.npz")
    return Subject(file, lambda: [e.value for e in read_book(file)])


def restarts(home: Path) -> Subject:
    """Restarts of a search."""
    heading = {"theorem": "x", "seed": 0}
    (home / "r.json").write_text(json.dumps(heading | {"restarts": []}))
    return Subject(home / "r.json", lambda: len(search._read(home / "r.json", heading)))


def site(home: Path) -> Subject:
    """What a site remembers."""
    file = SiteFile(home / "site.npz", 0)
    file.save({"id": np.arange(3)}, {0: (np.ones(2),)})
    return Subject(home / "site.npz", lambda: sorted((SiteFile(home / "site.npz", 0).load() or ({},))[0]))


def table(home: Path) -> Subject:
    """Rows of a user, dense."""
    np.savez(home / "rows.npz", X=np.eye(6), y=np.arange(6.0), clients=np.arange(6) % 2)
    return Subject(home / "rows.npz", lambda: repr(load(home / "rows.npz")))


def sparse(home: Path) -> Subject:
    """Rows of a user, sparse, which are learned from and scored."""
    X = sp.csr_array(np.eye(6))
    parts = {"data": X.data, "indices": X.indices, "indptr": X.indptr, "shape": np.array(X.shape)}
    np.savez(home / "rows.npz", **parts, y=np.arange(6.0))

    def read() -> Any:
        found = load(home / "rows.npz")
        fed = Federation.from_arrays(found.X, found.y, np.arange(len(found.y)) % 2)
        return Problem(fed, Squared(), 1.0).value(np.ones(fed.d))

    return Subject(home / "rows.npz", read)


def text(home: Path) -> Subject:
    """A CSV table of a user."""
    (home / "rows.csv").write_text("a,b,y\n" + "\n".join(f"{i},{i * i},{i % 2}" for i in range(12)))
    return Subject(home / "rows.csv", lambda: read_frame(home / "rows.csv").n)


def svmlight(home: Path) -> Subject:
    """Sparse rows in text."""
    (home / "rows.svm").write_text("\n".join(f"{i % 2} 1:{i} 3:{i * i}" for i in range(12)))
    return Subject(home / "rows.svm", lambda: repr(load(home / "rows.svm")))


SUBJECTS = (
    checkpoint, model, described, ensemble, part, swept, sweep_about, sweep_file, cell, restarts, site, table, sparse,
    text, svmlight, book,
)  # fmt: skip


# ---------------------------------------------------------------- what is done to it


def npy(shape: Any, kind: str = "<f8", body: bytes = b"") -> bytes:
    """Return an npy file whose head says what it likes."""
    head = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + body


def archive_of(entries: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    """Return a zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as out:
        for name, content in entries.items():
            out.writestr(name, content)
    return buffer.getvalue()


def craft_archive(rng: np.random.Generator, path: Path) -> str:
    """Replace an entry, or all, or the directory."""
    entries = {}
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    name = sorted(entries)[rng.integers(len(entries))]
    ways: dict[str, Callable[[], bytes]] = {
        "bomb": lambda: archive_of(entries | {name: npy((1 << 28,), "<f8", bytes(1 << 24))}, zipfile.ZIP_DEFLATED),
        "a billion rows": lambda: archive_of(entries | {name: npy((10**9,))}),
        "beyond 2^63": lambda: archive_of(entries | {name: npy((1 << 40, 1 << 40))}),
        "negative rows": lambda: archive_of(entries | {name: npy((-3,), body=bytes(24))}),
        "no bytes an entry": lambda: archive_of(entries | {name: npy((1 << 60,), "<U0")}),
        "long text": lambda: archive_of(entries | {name: npy((1,), f"<U{1 << 28}")}),
        "objects": lambda: archive_of(entries | {name: npy((1,), "|O", b"cos\nsystem\n(S'touch written'\ntR.")}),
        "a head that is code": lambda: archive_of(entries | {name: npy("__import__('os').system('touch written')")}),
        "many entries": lambda: archive_of(entries | {f"x{i}.npy": npy((0,)) for i in range(20_000)}),
        "names that climb": lambda: archive_of(entries | {"../../written.npy": npy((0,))}),
        "one entry for all": lambda: _overlapping(archive_of(entries)),
        "no archive": lambda: rng.bytes(200),
        "nothing": lambda: b"",
        "cut": lambda: path.read_bytes()[: int(rng.integers(path.stat().st_size))],
        "huge numbers": lambda: archive_of({n: _scaled(b, 1e308) for n, b in entries.items()}),
        "not a number": lambda: archive_of({n: _scaled(b, np.nan) for n, b in entries.items()}),
        "indices outside": lambda: archive_of(entries | {name: _moved(entries[name], rng)}),
        "a nest": lambda: archive_of({n: _nested(b) for n, b in entries.items()}),
        "a function": lambda: archive_of({n: _calling(b) for n, b in entries.items()}),
    }
    way = sorted(ways)[rng.integers(len(ways))]
    path.write_bytes(ways[way]())
    return f"{way}: {name}"


def _overlapping(content: bytes) -> bytes:
    """Let all entries of the directory be the first one."""
    at, out = content.find(b"PK\x01\x02"), bytearray(content)
    first = out[at + 42 : at + 46]
    while at >= 0:
        out[at + 42 : at + 46] = first
        at = content.find(b"PK\x01\x02", at + 4)
    return bytes(out)


def _array(content: bytes) -> np.ndarray | None:
    try:
        return np.load(io.BytesIO(content), allow_pickle=False)
    except ValueError:
        return None


def _bytes(a: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, a, allow_pickle=False)
    return out.getvalue()


def _scaled(content: bytes, by: float) -> bytes:
    a = _array(content)
    with np.errstate(all="ignore"):
        return content if a is None or a.dtype.kind != "f" else _bytes(a * by)


def _moved(content: bytes, rng: np.random.Generator) -> bytes:
    a = _array(content)
    if a is None or a.dtype.kind not in "iu" or not a.size:
        return content[: len(content) // 2]
    b = a.astype(np.int64)
    b.reshape(-1)[rng.integers(b.size)] = rng.choice([-5, 7, 10**9, -(2**62), 2**31])
    return _bytes(b)


def _nested(content: bytes) -> bytes:
    """Put brackets without end where there is text."""
    a = _array(content)
    deep = "[" * 200_000
    if a is None or a.dtype.kind not in "Uu":
        return content
    return _bytes(np.array(deep) if a.dtype.kind == "U" else np.frombuffer(deep.encode(), dtype=np.uint8))


def _calling(content: bytes) -> bytes:
    """Name a function and its arguments where there is text."""
    a = _array(content)
    said = json.dumps({"class": ["fedconvex._files", "write_file"], "fields": ["written", "x"]})
    if a is None or a.dtype.kind not in "Uu":
        return content
    return _bytes(np.array(said) if a.dtype.kind == "U" else np.frombuffer(said.encode(), dtype=np.uint8))


def craft_json(rng: np.random.Generator, path: Path) -> str:
    """Replace a value somewhere, or the whole."""
    whole = json.loads(path.read_text())
    values = [
        None, True, -1, 0, 10**400, 1e308, float("nan"), float("-inf"), "", "x" * 100_000, "\ud800", "a\0b", [], {},
        [[]], {"class": ["os", "system"], "fields": ["touch written"]}, "__import__('os').system('touch written')",
        list(range(10_000)), "-" * 100_000 + "1", "=cmd|' /C calc'!A0", "../../written",
    ]  # fmt: skip
    value, way = values[rng.integers(len(values))], ("value", "value", "value", "whole", "nest", "cut", "bytes")
    kind = way[rng.integers(len(way))]
    if kind == "nest":
        path.write_text("[" * 200_000)
    elif kind == "cut":
        path.write_text(json.dumps(whole)[: int(rng.integers(1, 40))])
    elif kind == "bytes":
        path.write_bytes(rng.bytes(100))
    elif kind == "whole" or not whole:
        path.write_text(json.dumps(value))
    else:
        place, told = copy.deepcopy(whole), []
        at: Any = place
        while True:
            keys = sorted(at) if isinstance(at, dict) else range(len(at))
            key = list(keys)[rng.integers(len(keys))]
            told.append(key)
            below = at[key]
            if not isinstance(below, (dict, list)) or not below or rng.random() < 0.3:
                break
            at = below
        at[key] = value
        path.write_text(json.dumps(place))
        return f"{told} = {repr(value)[:60]}"
    return f"{kind} {repr(value)[:60]}"


def craft_text(rng: np.random.Generator, path: Path) -> str:
    """Write lines that no table has."""
    lines = {
        "one endless line": "1," * (1 << 22),
        "an endless cell": "a,b,y\n" + "7" * (1 << 22) + ",1,2\n",
        "a column beyond": "1 99999999999999999999:1\n",
        "column 2^31": f"1 {2**31}:1\n0 1:1\n",
        "column 0": "1 0:1\n0 1:1\n",
        "falling columns": "1 3:1 2:1\n",
        "numbers beyond": "a,b,y\n1e999,1,0\n-1e999,2,1\n3,3,0\n",
        "quotes": 'a,b,y\n"' + "1,2,3\n" * 1000,
        "null": "a,b,y\n1,\0,0\n2,2,1\n",
        "other bytes": "a,b,y\n1,\xff\xfe,0\n",
        "many columns": ",".join(f"c{i}" for i in range(200_000)) + "\n" + ",".join(["1"] * 200_000) + "\n",
        "a formula": "=cmd|' /C calc'!A0,b,y\n1,2,0\n2,1,1\n",
        "one name twice": "a,a,y\n1,2,0\n2,1,1\n",
        "only a head": "a,b,y\n",
        "nothing": "",
    }
    way = sorted(lines)[rng.integers(len(lines))]
    path.write_bytes(lines[way].encode("latin-1"))
    return way


CRAFTS = {".npz": craft_archive, "": craft_archive, ".json": craft_json, ".csv": craft_text, ".svm": craft_text}


def crafted_trial(rng: np.random.Generator) -> dict[str, Any]:
    """A crafted file is refused in our words or read as data, in little memory, and does nothing else."""
    make = SUBJECTS[rng.integers(len(SUBJECTS))]
    with tempfile.TemporaryDirectory(prefix="fedconvex-crafted-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        home = Path(folder, "home")
        home.mkdir()
        subject = make(home)
        before = _around(folder, home)
        subject.read()  # what a sound file needs is imported
        known = set(sys.modules)
        damage = CRAFTS[subject.path.suffix](rng, subject.path)

        def read() -> dict[str, Any]:
            try:
                subject.read()
                told = ""
            except Exception as error:
                told = f"{type(error).__name__}: {error}"
            return {"told": told[:1000], "new": sorted(set(sys.modules) - known)}

        found = in_a_child(read, SECONDS, memory=MEMORY)
        written = sorted(_around(folder, home) - before)
    about = (make.__name__, damage)
    assert "returned" in found, (*about, found)
    told, new = found["returned"]["told"], found["returned"]["new"]
    kind = told.partition(":")[0]
    refused = kind in OURS and (" must " in told or kind == "FileNotFoundError")
    assert not told or (refused and not subject.anew), (*about, told)
    assert not written, (*about, written)
    assert not [m for m in new if m.startswith("fedconvex.")], (*about, new)
    return {"subject": make.__name__, "damage": damage[:200], "refused": bool(told)}


def _around(folder: str, home: Path) -> set[str]:
    """Return what stands outside of the subject's folder: in that above it, and in the working folder."""
    return {str(p) for place in (Path(folder), Path.cwd()) for p in place.iterdir() if p != home}
