"""A sweep that is ended, killed, or started twice: no process computes on, no folder is worked on by two."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from fedconvex.cli import main
from fedconvex.sweeps import answers_on_disk as parts

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc"), reason="processes are looked up in /proc")
MOST = 300.0  # seconds that anything here may take on a busy machine


def children(pid):
    """Return the processes below one, as pairs of number and time of start."""
    found, below = [], [pid]
    while below:
        above = below.pop()
        for name in filter(str.isdigit, os.listdir("/proc")):
            fields = status(int(name))
            if fields is not None and int(fields[1]) == above:
                found.append((int(name), fields[19]))
                below.append(int(name))
    return found


def status(pid):
    """Return the fields of /proc/PID/stat after the name, or None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def runs(process):
    fields = status(process[0])
    return fields is not None and fields[19] == process[1] and fields[0] != "Z"


def wait_until(true, what):
    end = time.monotonic() + MOST
    while not true():
        assert time.monotonic() < end, f"{what} after {MOST} s"
        time.sleep(0.05)


def endless(tmp_path):
    """Start a sweep of two processes that would take years, and return it with its workers, who are at work."""
    rows = "\n".join(f"{i % 7},{i % 3},{i % 2},{i % 4}" for i in range(40))
    (tmp_path / "d.csv").write_text(f"a,b,y,c\n{rows}\n")
    command = [sys.executable, "-m", "fedconvex", "sweep", "d.csv", "--target", "y", "--client", "c", "--jobs", "2"]
    command += ["--grid", "step_size=0.1,0.2", "--rounds", "100000000", "--record-every", "100000000", "--out", "f.csv"]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.getcwd()}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    sharing = tmp_path / "f.csv.parts" / "about.json"
    wait_until(lambda: sharing.exists() or process.poll() is not None, "no folder")

    def busy():
        found = [p for p in children(process.pid) if (fields := status(p[0])) and int(fields[11]) > 300]
        return len(found) >= 2 or process.poll() is not None  # 3 s of CPU time: they compute

    wait_until(busy, "no workers")
    return process, children(process.pid)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_no_worker_computes_on(tmp_path, how):
    """Four workers computed on after SIGTERM."""
    process, workers = endless(tmp_path)
    try:
        assert process.poll() is None and len(workers) >= 2
        process.send_signal(how)
        _, said = process.communicate(timeout=MOST)
        wait_until(lambda: not any(map(runs, workers)), "workers compute")
    finally:
        process.kill()
        for pid, _ in filter(runs, workers):
            os.kill(pid, signal.SIGKILL)
    if how == signal.SIGTERM:
        assert process.returncode == 143 and "fedconvex: ended: f.csv.parts was not written yet" in said
        assert "Traceback" not in said


def test_sigterm_is_heard_as_ctrl_c_is(capsys, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)

    def add(commands):
        commands.add_parser("end").set_defaults(command=lambda args: signal.raise_signal(signal.SIGTERM) or 0)

    monkeypatch.setattr("fedconvex.cli.COMMANDS", {"end": "end"})
    monkeypatch.setitem(sys.modules, "fedconvex.cli.end", SimpleNamespace(add_parser=add))
    assert main(["end"]) == 143
    assert "fedconvex: ended: nothing was saved" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before
    mine = signal.signal(signal.SIGTERM, lambda number, frame: None)  # somebody else's: it stays
    try:
        assert main(["end"]) == 0
    finally:
        signal.signal(signal.SIGTERM, mine)


def test_one_folder_is_worked_on_by_one(tmp_path):
    about = {"what": "a sweep"}
    first = parts.opened("sweep", tmp_path / "f", about)
    with parts.alone_in("sweep", first):
        again = parts.opened("sweep", tmp_path / "f", about)
        words = r"sweep: folder .* must be worked on by one process; got another one at work"
        with pytest.raises(ValueError, match=words), parts.alone_in("sweep", again):
            pass
    with parts.alone_in("sweep", first):  # free again
        pass


def test_two_commands_on_one_file(tmp_path, monkeypatch, capsys):
    rows = "\n".join(f"{i % 7},{i % 3},{i % 2},{i % 4}" for i in range(40))
    (tmp_path / "d.csv").write_text(f"a,b,y,c\n{rows}\n")
    monkeypatch.chdir(tmp_path)
    command = ["sweep", "d.csv", "--target", "y", "--client", "c", "--rounds", "2", "--out", "f.csv"]
    traced, answers = parts._part, []

    def meanwhile(*given):
        if not answers:
            answers.append(main(command))
        return traced(*given)

    monkeypatch.setattr(parts, "_part", meanwhile)
    assert main(command) == 0 and answers == [2]
    assert "another one at work: wait until it has ended" in capsys.readouterr().err
    assert (tmp_path / "f.csv").is_file() and not (tmp_path / "f.csv.parts").exists()
