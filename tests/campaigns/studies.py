"""Studies on one machine, in processes of their own, under schedules of faults: the same bits, or a stop by name.

A schedule kills sites and the coordinator at random moments and starts them again, hangs them, gives one another study,
another site's certificate, one that has ended or was revoked, or another table. Where nothing but kills and hangs
happened, the study ends with the bits of one that was never disturbed; else it stops, and says why, and no result is
there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedconvex.study import read_study
from fedconvex.study.certificates import approve, fingerprint_of, make_authority, make_request
from fedconvex.study.trial import invented

SITES = ("north", "east", "south")
STUDY = """[study]
name = "wards"
[coordinator]
address = "localhost:{port}"
{more}
[sites]
require = ["north", "east", "south"]
deadline = {deadline}
[ask]
analyse = {{ family = "logistic", strata = "site" }}
solve = {{ loss = "logistic", l2 = 0.02, method = "scaffold", step_size = 0.2, rounds = 40, tol = 1e-12 }}
secure_sums = {sums}
[target]
column = "ill"
values = ["no", "yes"]
[columns.age]
kind = "number"
center = 60
scale = 10
[columns.ward]
kind = "category"
values = ["a", "b"]
"""
FAULTS = ("another study", "another's certificate", "a revoked certificate", "a foreign certificate", "a row less")
KEPT = ("analysis.json", "model/model.npz")
_LONG = 900.0  # seconds: the machine may be busy


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def prepared(folder: Path, sums: str, deadline: int) -> None:
    """Write study, tables, settings and certificates."""
    text = STUDY.format(port=_port(), more="", sums=sums, deadline=deadline)
    (folder / "study.toml").write_text(text)
    study = read_study(folder / "study.toml")
    make_authority(study, folder)
    for site in SITES:
        approve(make_request(site, folder), site, folder)
        cells = invented(study, site, 90, 5)
        lines = [",".join(cells), *map(",".join, zip(*cells.values(), strict=True))]
        (folder / f"{site}.csv").write_text("\n".join(lines) + "\n")
        open_sums = "secure_sums = false\n" if sums == "false" else ""
        limits = f"[limits]\nshare = 400.0\nparameters = 0.5\nruns = 99\n{open_sums}"
        own = f'state = "state_{site}"\nresults = "results_{site}"\n'
        (folder / f"{site}.toml").write_text(f'[site]\nname = "{site}"\ntable = "{site}.csv"\n{own}{limits}')


class Processes:
    """The processes of a study: "server", and the sites by name."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.running = folder, {}  # type: Path, dict[str, subprocess.Popen]

    def start(self, name: str) -> None:
        """Start, or start again."""
        f, how = self.folder, ["study.toml", f"{name}.toml", "--yes", "--wait", "60"]
        if (f / f"study_{name}.toml").exists():
            how[0] = f"study_{name}.toml"
        command = (
            ["join", *how] if name != "server" else ["serve", "study.toml", "--out", "out", "--listen", self._here()]
        )
        root = Path(__file__).resolve().parents[2]
        environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(root)}
        with open(f / f"{name}.log", "a") as log:
            whole = [sys.executable, "-m", "fedconvex", "study", *command]
            self.running[name] = subprocess.Popen(whole, cwd=f, stdout=log, stderr=log, env=environment)

    def _here(self) -> str:
        return f"127.0.0.1:{read_study(self.folder / 'study.toml').address[1]}"

    def kill(self, name: str) -> None:
        """End one as a power cut would."""
        self.running[name].kill()
        self.running[name].wait()

    def hang(self, name: str, seconds: float) -> None:
        """Stop one for a while."""
        self.running[name].send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.running[name].send_signal(signal.SIGCONT)

    def ended(self) -> dict[str, int]:
        """Wait until the server has ended, then for the sites; exit statuses."""
        until = time.monotonic() + _LONG
        while self.running["server"].poll() is None:
            assert time.monotonic() < until, f"the coordinator hangs: {self.last()}"
            time.sleep(0.05)
        return {name: process.wait(_LONG) for name, process in self.running.items()}

    def last(self) -> str:
        """Return what they said last, and who has ended."""
        ends = {name: process.poll() for name, process in self.running.items()}
        return f"{ends}; " + "; ".join(f"{n}: {(self.folder / f'{n}.log').read_text()[-300:]}" for n in self.running)

    def stop(self) -> None:
        """End all that is left."""
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
                process.wait()


def spoilt(folder: Path, fault: str, other: Path) -> None:
    """Give the east another study, certificate or table."""
    if fault == "another study":
        (folder / "study_east.toml").write_text((folder / "study.toml").read_text() + "# changed\n")
    elif fault == "another's certificate":
        for ending in ("pem", "key"):
            shutil.copy(folder / f"north.{ending}", folder / f"east.{ending}")
    elif fault == "a foreign certificate":
        for ending in ("pem", "key"):
            shutil.copy(other / f"east.{ending}", folder / f"east.{ending}")
    elif fault == "a revoked certificate":
        revoked = f'revoked = ["{fingerprint_of(folder / "east.pem")}"]'
        text = (folder / "study.toml").read_text().replace("[sites]", f"{revoked}\n[sites]")
        (folder / "study.toml").write_text(text)
    else:
        lines = (folder / "east.csv").read_text().splitlines(keepends=True)
        (folder / "east.csv").write_text("".join(lines[:-1]))


def trial(rng: np.random.Generator) -> dict[str, Any]:
    """Carry out a study undisturbed, and once more with faults."""
    sums, fault = str(rng.choice(["true", "false"])), str(rng.choice(["", "", *FAULTS]))
    with tempfile.TemporaryDirectory() as place:
        calm, wild = Path(place, "calm"), Path(place, "wild")
        calm.mkdir()
        prepared(calm, sums, 60 if not fault else 6)
        shutil.copytree(calm, wild)
        processes = Processes(calm)
        try:
            if fault and fault != "a row less":
                other = Path(place, "other")
                other.mkdir()
                prepared(other, sums, 6)
                spoilt(wild, fault, other)
                return {"fault": fault, "sums": sums} | _spoilt(wild)
            for name in ("server", *SITES):
                processes.start(name)
            assert set(processes.ended().values()) == {0}, "an undisturbed study does not end"
            return {"fault": fault, "sums": sums} | _disturbed(rng, calm, wild, fault)
        finally:
            processes.stop()


def _spoilt(wild: Path) -> dict[str, Any]:
    """A study that cannot take place: it stops, the reason is printed, and there is no result."""
    processes = Processes(wild)
    try:
        for name in ("server", *SITES):
            processes.start(name)
        until = time.monotonic() + _LONG
        while processes.running["east"].poll() is None and processes.running["server"].poll() is None:
            assert time.monotonic() < until, processes.last()
            time.sleep(0.05)
        processes.running["server"].send_signal(signal.SIGTERM)
        processes.ended()
        said = (wild / "server.log").read_text() + (wild / "east.log").read_text()
        assert not any((wild / "out" / name).exists() for name in KEPT), "a result without all that the study requires"
        known = ("another study", "certificate", "must be 0", "waiting for", "credentials", "must be")
        assert any(word in said for word in known), said[-500:]
        return {"said": said.strip().splitlines()[-1][:200]}
    finally:
        processes.stop()


def _disturbed(rng: np.random.Generator, calm: Path, wild: Path, fault: str) -> dict[str, Any]:
    """A study with kills and hangs has the same bits; with a table that changes on the way it stops by name."""
    processes, kills = Processes(wild), int(rng.integers(1, 5))
    try:
        for name in ("server", *SITES):
            processes.start(name)
        for _ in range(kills):
            time.sleep(float(rng.uniform(0.5, 4.0)))
            name = str(rng.choice(["server", *SITES]))
            if processes.running["server"].poll() is not None:
                break
            if rng.random() < 0.3:
                processes.hang(name, float(rng.uniform(0.1, 2.0)))
                continue
            processes.kill(name)
            time.sleep(float(rng.uniform(0.0, 1.0)))
            processes.start(name)
        if fault == "a row less" and processes.running["server"].poll() is None:
            return {"kills": kills} | _with_another_table(processes, wild)
        statuses = processes.ended()
        assert statuses["server"] == 0, (statuses, (wild / "server.log").read_text()[-800:])
        for name in KEPT:
            assert (wild / "out" / name).read_bytes() == (calm / "out" / name).read_bytes(), f"{name} has other bits"
        return {"kills": kills, "statuses": statuses}
    finally:
        processes.stop()


def _with_another_table(processes: Processes, wild: Path) -> dict[str, Any]:
    """A site that comes back with another table: it does not start, or the coordinator stops and names it."""
    for name in ("server", "east"):
        processes.kill(name)
    begun = (run := wild / "out" / "state" / "run.json").exists() and bool(json.loads(run.read_text())["sizes"])
    spoilt(wild, "a row less", wild)
    for name in ("east", "server"):
        processes.start(name)
    until = time.monotonic() + _LONG
    while processes.running["server"].poll() is None and processes.running["east"].poll() is None:
        assert time.monotonic() < until, processes.last()
        time.sleep(0.05)
    at_site = processes.running["east"].poll() == 2
    if at_site:
        assert "rows must be 90 as in the roster; got 89" in (wild / "east.log").read_text()
        processes.running["server"].send_signal(signal.SIGTERM)
    status, said = processes.ended()["server"], (wild / "server.log").read_text()
    assert at_site or not begun or (status == 3 and "east has 89 rows, and had 90" in said), (status, said[-500:])
    assert not begun or not any((wild / "out" / name).exists() for name in KEPT), "a result of another table"
    return {"begun": begun, "refused": "at the site" if at_site else "by the coordinator" if begun else ""}
