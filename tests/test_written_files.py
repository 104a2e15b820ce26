"""Files are written whole or not at all, and nothing but a regular file is ever replaced."""

import errno
import os
import socket
import stat
import threading

import numpy as np
import pytest

from fedconvex import Problem, Squared, _files
from fedconvex._files import check_file, check_regular_file, write_file
from fedconvex.cli import main
from fedconvex.driver import run
from fedconvex.methods import FedAvg

posix = pytest.mark.skipif(os.name != "posix", reason="devices and pipes of POSIX")


def test_a_file_keeps_its_permissions_and_leaves_nothing_beside_it(tmp_path):
    file = tmp_path / "secret.csv"
    file.write_bytes(b"old")
    file.chmod(0o600)
    write_file(file, b"new")
    assert file.read_bytes() == b"new" and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["secret.csv"]


def test_a_new_file_has_the_permissions_of_the_process(tmp_path):
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "new", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


@posix
@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_its_target_is_written(tmp_path, there):
    target, link = tmp_path / "elsewhere" / "rows.csv", tmp_path / "link.csv"
    target.parent.mkdir()
    if there:
        target.write_bytes(b"old")
    link.symlink_to(target)
    write_file(check_file("--out", link), b"new")
    assert link.is_symlink() and target.read_bytes() == b"new"
    assert [p.name for p in target.parent.iterdir()] == ["rows.csv"]


@posix
def test_a_pipe_is_written_to(tmp_path):
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write_file(check_file("--out", pipe), b"rows")
    reader.join()
    assert got == [b"rows"] and stat.S_ISFIFO(pipe.stat().st_mode)


@posix
def test_a_socket_is_no_file(tmp_path):
    """The system's "No such device or address" named no cure."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(tmp_path / "listened at"))
    for write in (lambda path: write_file(path, b"rows"), lambda path: check_file("--out", path)):
        with pytest.raises(ValueError, match=r"must (not be a socket|be a file that can be written to)"):
            write(tmp_path / "listened at")


@posix
def test_a_device_is_written_to():
    """The superuser's /dev/null became a regular file."""
    before = os.stat(os.devnull)
    write_file(check_file("--out", os.devnull), b"rows")
    after = os.stat(os.devnull)
    assert stat.S_ISCHR(after.st_mode) and after.st_ino == before.st_ino and after.st_rdev == before.st_rdev


@posix
def test_a_temporary_file_is_never_written_through_a_link(tmp_path):
    """Somebody else of a shared folder guesses its name and puts a link there."""
    victim, file = tmp_path / "victim", tmp_path / "out.csv"
    victim.write_bytes(b"precious")
    for path in (_files._temporary(file), tmp_path / f".fedconvex.{os.getpid()}"):
        path.symlink_to(victim)
    write_file(file, b"rows")
    check_file("--out", file)
    _files.check_folder("--report", tmp_path)
    assert victim.read_bytes() == b"precious" and file.read_bytes() == b"rows" and not file.is_symlink()


@posix
def test_what_is_read_again_is_a_regular_file(linear, tmp_path):
    with pytest.raises(ValueError, match="here must be a regular file, or new: it is read again"):
        check_regular_file("here", os.devnull)
    problem, method = linear, FedAvg(step_size=0.1)
    before = os.stat(os.devnull).st_ino
    with pytest.raises(ValueError, match="run: checkpoint must be a regular file, or new: it is read again; got /dev"):
        run(method, problem, rounds=1, checkpoint=os.devnull)
    assert os.stat(os.devnull).st_ino == before
    link = tmp_path / "link.npz"
    link.symlink_to(tmp_path / "run.npz")
    result = run(method, problem, rounds=2, tol=0, checkpoint=link)
    assert link.is_symlink() and (tmp_path / "run.npz").is_file()
    assert np.array_equal(run(method, problem, rounds=2, tol=0, checkpoint=link).w, result.w)


@posix
@pytest.mark.parametrize("command", ["solve", "predict"])
@pytest.mark.slow
def test_commands_write_to_devices(command, tmp_path, capsys):
    rows = tmp_path / "rows.csv"
    rng = np.random.default_rng(0)
    table = np.column_stack([rng.normal(size=(40, 3)), np.arange(40) % 2, np.arange(40) % 4])
    np.savetxt(rows, table, delimiter=",", header="a,b,c,ill,ward", comments="", fmt="%g")
    data = [str(rows), "--target", "ill", "--client", "ward"]
    assert main(["solve", *data, "--save", str(tmp_path / "model")]) == 0
    if command == "predict":
        assert main(["predict", str(tmp_path / "model"), str(rows), "--out", os.devnull]) == 0
    else:
        assert main(["solve", *data, "--method", "fedavg", "--rounds", "2", "--checkpoint", os.devnull]) == 2
        assert "regular file" in capsys.readouterr().err
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def full(monkeypatch, after=0):
    """Let the disk be full after so many files."""
    written = []
    fsync = os.fsync

    def refuse(number):
        written.append(number)
        if len(written) > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(number)

    monkeypatch.setattr(os, "fsync", refuse)


@pytest.mark.parametrize("after", [0, 1])
def test_a_full_disk_leaves_no_half_model_and_no_folder(linear, tmp_path, monkeypatch, after):
    """Of a model that was there before, numbers were new and the description old."""
    old, other = linear.solve(), Problem(linear.federation, Squared(), 1.0).solve()
    old.save(tmp_path / "model")
    before = {f.name: f.read_bytes() for f in (tmp_path / "model").iterdir()}
    full(monkeypatch, after)
    for folder in ("model", "new", "deep/er"):
        with pytest.raises(OSError, match="No space"):
            other.save(tmp_path / folder)
    assert {f.name: f.read_bytes() for f in (tmp_path / "model").iterdir()} == before
    assert os.listdir(tmp_path) == ["model"]


def test_a_trial_leaves_nothing(tmp_path):
    _files.check_folder("--save", tmp_path / "a" / "b")
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ValueError, match="--save must be a folder that can be written to"):
        _files.check_folder("--save", tmp_path / "file" / "a")


def test_a_folder_that_somebody_uses_meanwhile_stays(tmp_path, monkeypatch):
    write = os.replace

    def replace(source, target):
        (tmp_path / "new" / "theirs").write_bytes(b"")
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="broken"):
        write_file(tmp_path / "new" / "mine", b"rows")
    monkeypatch.setattr(os, "replace", write)
    assert os.listdir(tmp_path / "new") == ["theirs"]


def test_a_table_that_is_read_is_not_written_over(tmp_path, capsys):
    """As FILE, by another path to it, and as OWNER=FILE."""
    table = tmp_path / "rows.csv"
    table.write_text("x,y,h\n" + "1,0,a\n2,1,b\n" * 20)
    said, other = table.read_bytes(), tmp_path / "." / "rows.csv"
    for words in (
        ["predict", "model", str(table), "--out", str(other)],
        ["predict", "model", f"mine={table}", "--out", str(table)],
        ["sweep", str(table), "--target", "y", "--client", "h", "--grid", "step_size=0.1", "--out", str(table)],
        ["verify", "--problem", str(table), "--csv", str(table)],
    ):
        assert main(words) == 2
        assert "must be another file than is read" in capsys.readouterr().err
    assert table.read_bytes() == said


def test_a_column_may_have_the_name_of_the_file_that_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "y").write_text("predictions of yesterday")
    assert main(["predict", "model", "rows.csv", "--client", "y", "--out", "y"]) == 2  # there is no such model
    assert "another file" not in capsys.readouterr().err
