"""Files and messages whose sizes are not what they say: refused before anything is unpacked, in every reader."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from campaigns.children import in_a_child
from scipy.sparse import csr_array

from fedconvex import Federation, FedSGD, Problem, Squared, run, sweep
from fedconvex._archives import Unsafe, arrays_in, json_in, json_of
from fedconvex._files import npz
from fedconvex.driver.checkpoint import Checkpoint
from fedconvex.models import LinearModel
from fedconvex.papers.finished_parts import finished_part, keeping
from fedconvex.problems import QEnsemble, Stump
from fedconvex.remote import Site
from fedconvex.sweeps import read_sweep
from fedconvex.sweeps.answers_on_disk import read_answers
from fedconvex.sweeps.shared_rows import _mapped
from fedconvex.tables import read_frame, text_lines
from fedconvex.tables.other_files import read_npz

MILLION = 1_000_000


def npy(shape, dtype="<f8", content=b""):
    """An npy file with any head."""
    head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b" " * (63 - (len(head) + 10) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + content


def archive(entries, compressed=False):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED, compresslevel=1) as z:
        for name, content in entries.items():
            z.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def deflated(names):
    """Zeros, 80 MB in 0.4 MB, under the first of these names."""
    empty = {name: npy((0,)) for name in names}
    return archive(empty | {names[0]: npy((10 * MILLION,), content=bytes(80 * MILLION))}, True)


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_only_what_numpy_writes_is_unpacked(tmp_path, kind):
    """Others' decoders raise errors of their own, which are none of a file's."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", kind) as z:
        z.writestr("X.npy", npy((2,), content=bytes(16)))
    (tmp_path / "a.npz").write_bytes(buffer.getvalue())
    with pytest.raises(Unsafe, match="compressed in an unknown way"):
        arrays_in(tmp_path / "a.npz", most=MILLION)


def overlapping(names, times=1000):
    """So many entries that are one and the same place of 4 MB: their directory says where each begins."""
    body = archive({"x": npy((500_000,), content=bytes(4 * MILLION))})
    at = body.rfind(b"PK\x05\x06")
    start = struct.unpack("<L", body[at + 16 : at + 20])[0]
    entry, directory = body[start:at], b""
    names = [*names, *(f"{i}" for i in range(times))]
    for name in names:
        called = f"{name}.npy".encode()
        directory += entry[:28] + struct.pack("<H", len(called)) + entry[30:46] + called
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, len(names), len(names), len(directory), start, 0)
    return body[:start] + directory + end


def short(names):
    """Heads of a billion rows without one."""
    return archive({name: npy((10**9,)) for name in names})


BOMBS = {"compressed": deflated, "overlapping": overlapping, "short": short}


def refused_by(read, tmp_path, made):
    """Assert that a reader refuses what was made with 60 MB beyond what it has."""
    path = tmp_path / "bomb.npz"
    path.write_bytes(made)
    found = in_a_child(lambda: repr(read(path)), 60.0, memory=60 * MILLION)
    assert "raised" in found or found.get("returned") in ("{}", "'made again'"), found
    assert found.get("raised") != "MemoryError", found


def _checkpoint(path):
    fed = Federation.from_arrays([[1.0], [2.0]], [1.0, 2.0], [0, 1])
    return run(FedSGD(step_size=0.1), Problem(fed, Squared(), 0.1), rounds=1, checkpoint=path)


def _other_further(path):
    """The look at who else has written there, before saving."""
    one = object.__new__(Checkpoint)
    one.path, one.about = path, {}
    assert one._other_is_further(1) is False
    raise ValueError("it is none")


def _model(path):
    folder = path.parent
    LinearModel(np.ones(1), 0.0, None, ("x",), {}).save(folder)
    (folder / "model.npz").write_bytes(path.read_bytes())
    return LinearModel.load(folder)


def _site(path):
    fed = Federation.from_clients([([[1.0]], [1.0])], labels=["a"])
    return Site(FedSGD(step_size=0.1), lambda f: Problem(f, Squared()), fed, checkpoint=path)


def _answers(path):
    folder = path.parent / "answers"
    folder.mkdir()
    (folder / "part-0-1.npz").write_bytes(path.read_bytes())
    return list(read_answers(folder))


def _kept(path):
    with keeping(path.parent / "parts", "sums", False, 0, None):
        finished_part("one", lambda: 1)
        [file] = path.parent.rglob("one-*.npz")
        file.write_bytes(path.read_bytes())
        return finished_part("one", lambda: "made again")


READERS = {
    "checkpoint": (_checkpoint, ["description"]),
    "other checkpoint": (_other_further, ["description"]),
    "model": (_model, ["coef", "intercept"]),
    "ensemble": (QEnsemble.load, ["about"]),
    "site": (_site, ["digest"]),
    "sweep": (read_sweep, ["about"]),
    "answers": (_answers, ["errors"]),
    "kept": (_kept, ["tree"]),
    "data": (lambda path: read_npz("data", path, most=100_000), ["X", "y"]),
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("reader", [n if n == "model" else pytest.param(n, marks=pytest.mark.slow) for n in READERS])
def test_bombs_are_refused_before_they_are_unpacked(reader, bomb, tmp_path):
    read, names = READERS[reader]
    refused_by(read, tmp_path, BOMBS[bomb](names))


@pytest.mark.slow
def test_the_bombs_would_go_off(tmp_path):
    """NumPy's own reader, within the same memory: what the guarded one is there for."""
    for name, made in BOMBS.items():
        path = tmp_path / f"{name}.npz"
        path.write_bytes(made(["x"]))
        found = in_a_child(lambda path=path: len(dict(np.load(path))), 60.0, memory=50 * MILLION)
        assert "returned" not in found or name == "short", (name, found)


def test_what_is_written_is_read_whole(tmp_path):
    rng = np.random.default_rng(0)
    kinds = {
        "number": np.array(3.5), "empty": np.empty((0, 4)), "whole": np.arange(5), "text": np.array(["a", "bcd"]),
        "fortran": np.asfortranarray(rng.normal(size=(3, 4))), "flags": np.array([True]),
        "bytes": np.zeros(3, np.uint8),
        "wide": np.zeros((2, 0, 7)), "Umlaut ä": np.ones(2), "record": np.zeros(2, dtype=[("a", "<f8"), ("b", "<i4")]),
    }  # fmt: skip
    (tmp_path / "a.npz").write_bytes(npz(kinds))
    for source in (npz(kinds), tmp_path / "a.npz"):
        found = arrays_in(source)
        assert list(found) == list(kinds)
        for name, a in kinds.items():
            np.testing.assert_array_equal(found[name], a)
            assert found[name].dtype == a.dtype
            assert found[name].flags.writeable
    some = arrays_in(npz(kinds), known=lambda name: name == "whole")
    assert some["text"] is None
    assert some["whole"].tolist() == [0, 1, 2, 3, 4]
    np.savez_compressed(tmp_path / "b.npz", X=np.eye(3))
    assert arrays_in(tmp_path / "b.npz", most=1000)["X"].shape == (3, 3)


def test_answers_that_nobody_wrote_are_refused(tmp_path):
    """Numbers that are none, jobs without an answer, and a file's name that promises 10^11 jobs."""
    none = {"errors": np.frombuffer(b"{}", dtype=np.uint8)}
    for name, arrays in (
        ("part-0-1.npz", {"x0/status": np.zeros(1)}),
        ("part-0-1.npz", {"../status": np.zeros(1)}),
        ("part-0-1.npz", {"1/status": np.zeros(1)}),
        ("part-0-100000000000.npz", {"0/status": np.zeros(1)}),
        ("part-0-1.npz", {"errors": np.frombuffer(b"[1]", dtype=np.uint8)}),
    ):
        (tmp_path / name).write_bytes(npz(none | arrays))
        with pytest.raises(ValueError, match=f"{name} must hold answers.*delete it"):
            list(read_answers(tmp_path))
        (tmp_path / name).unlink()
    for content, said in (("[1, 2]", "with list in it"), ("3", "with int in it"), ("", "can be read")):
        (tmp_path / "about.json").write_text(content)
        with pytest.raises(ValueError, match=said):
            read_sweep(tmp_path)


def test_odd_archives_are_refused():
    whole = npz({"a": np.arange(4)})
    at = whole.rfind(b"PK\x05\x06")
    end = bytearray(whole)
    end[at + 12 : at + 16] = struct.pack("<L", 1 << 31)  # a directory of two gigabytes
    for made, said in (
        (b"", "no zip archive"),
        (b"PK\x05\x06", "no zip archive"),
        (bytes(end), "a directory of"),
        (archive({"a": b"plain bytes"}), "no .npy file"),
        (archive({"a": npy((3,), content=bytes(16))}), "bytes for shape"),
        (archive({"a": npy((3,), content=bytes(32))}), "bytes for shape"),
        (archive({"a": npy((10**9,), dtype="<U0")}), "bytes for shape"),
        (archive({"a": npy((1,), dtype="|O", content=bytes(8))}), "pickled objects"),
        (archive({"a": npy((-1, -1), content=bytes(8))}), "."),
        (whole[:at] + b"PK\x06\x07" + bytes(16) + whole[at:], "of a larger file"),
    ):
        with pytest.raises(ValueError, match=said):
            arrays_in(made)
    twice = io.BytesIO()
    with zipfile.ZipFile(twice, "w") as z, pytest.warns(UserWarning, match="Duplicate name"):
        for _ in range(2):
            z.writestr("a.npy", npy((1,), content=bytes(8)))
    with pytest.raises(Unsafe, match="entries of one name"):
        arrays_in(twice.getvalue())
    named = io.BytesIO()
    with zipfile.ZipFile(named, "w") as z:
        z.writestr("a.txt", b"x")
    with pytest.raises(Unsafe, match=r"no \.npy file"):
        arrays_in(named.getvalue())


def test_descriptions_are_bounded(tmp_path):
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"a": 1}))
    assert json_in(file) == {"a": 1}
    with pytest.raises(Unsafe, match="more than 3 bytes"):
        json_in(file, most=3)
    with pytest.raises(Unsafe, match="too deeply"):
        json_of(b"[" * 200_000)
    with pytest.raises(ValueError, match="Expecting"):
        json_of(np.frombuffer(b"{", dtype=np.uint8))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no such thing there")
def test_pipes_and_devices_are_no_archives(tmp_path):
    """Opening a pipe that nobody writes to would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for file in (tmp_path / "pipe", tmp_path / "link", Path("/dev/zero"), tmp_path):
        for reader in (arrays_in, json_in):
            with pytest.raises(Unsafe, match="no regular file"):
                reader(file)


@pytest.mark.slow_unless(suffix="csv.gz")
@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "csv.bz2", "svm.gz"])
def test_lines_are_bounded(suffix, tmp_path, monkeypatch):
    """1.5 MB were a line of 1.5 GB, which was read as a whole: no more than the longest line is."""
    monkeypatch.setattr(text_lines, "_LONGEST", 100_000)
    file = tmp_path / f"a.{suffix}"
    with text_lines.opener(file)(file, "wb") as packed:
        packed.write((b"1 1:2\n" if suffix == "svm.gz" else b"a,b\n1,2\n") + b"7," * 100_000)
    with pytest.raises(ValueError, match=r"shorter lines; got one of 100,000 characters and more"):
        read_frame(file)


@pytest.mark.slow
def test_what_unpacks_to_far_more_than_its_size_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "MAX_BYTES", 100_000)
    with gzip.open(tmp_path / "a.csv.gz", "wt") as packed:
        packed.write("a,b\n" + "1,2\n" * 100_000)
    with pytest.raises(ValueError, match=r"a.csv.gz must unpack to at most 200 times its size; .*: unpack it first"):
        read_frame(tmp_path / "a.csv.gz")
    (tmp_path / "a.csv").write_text("a,b\n" + "1,2\n" * 50_000)
    assert read_frame(tmp_path / "a.csv").n == 50_000
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table({"a": np.ones(100_000)})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a.parquet must unpack to at most 200 times"):
        read_frame(tmp_path / "a.parquet")


@pytest.mark.slow
def test_rows_of_a_sweep_that_somebody_has_changed_are_not_followed(tmp_path):
    """An index that leads outside crashed the process; so would pointers, and other rows give other answers."""
    fed = Federation.from_arrays(csr_array([[1.0, 0.0], [2.0, 3.0]]), [1.0, 2.0], [0, 1])
    problem, grid = Problem(fed, Squared(), 0.1), {"step_size": [0.1, 0.2]}
    sweep(FedSGD(step_size=0.1), problem, grid=grid, rounds=1, folder=tmp_path / "s")
    (place,) = (tmp_path / "s").glob("rows-*")
    for name, wrong in (("indices", [0, 0, 10**7]), ("indptr", [0, 1, 10**6]), ("data", [1.0, 2.0, 4.0])):
        file = place / f"{name}.npy"
        right = np.load(file)
        np.save(file, np.array(wrong, dtype=right.dtype))
        _mapped.cache_clear()
        with pytest.raises(ValueError, match="must hold the rows that the sweep wrote there"):
            sweep(FedSGD(step_size=0.1), problem, grid=grid, rounds=1, folder=tmp_path / "s")
        np.save(file, right)
    _mapped.cache_clear()
    sweep(FedSGD(step_size=0.1), problem, grid=grid, rounds=1, folder=tmp_path / "s")


PACKAGE = Path(__file__).resolve().parents[1] / "fedconvex"


def test_no_other_reader_opens_archives():
    """One guarded reader for all; rows that processes of one sweep share are mapped, not unpacked."""
    allowed = {"_archives.py", "shared_rows.py"}
    for file in PACKAGE.rglob("*.py"):
        if file.name not in allowed:
            assert "np.load(" not in file.read_text(encoding="utf-8"), file


def test_saved_files_are_still_read(tmp_path):
    QEnsemble([Stump(0, 0.1, -1.0, 1.0)], [0], [0.5], n_sources=1).save(tmp_path / "q.npz")
    assert QEnsemble.load(tmp_path / "q.npz").alpha.tolist() == [0.5]
    fed = Federation.from_arrays([[1.0], [2.0]], [1.0, 2.0], [0, 1])
    found = sweep(FedSGD(step_size=0.1), Problem(fed, Squared(), 0.1), rounds=1, folder=tmp_path / "s")
    found.save(tmp_path / "s.npz")
    assert len(read_sweep(tmp_path / "s.npz")) == len(found)
