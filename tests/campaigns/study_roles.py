"""A study on one machine, all roles in processes of their own, over a connection that can be disturbed."""

from __future__ import annotations

import atexit
import datetime
import os
import shutil
import signal
import socket
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from fedconvex.study import certificates as made
from fedconvex.study import read_study
from fedconvex.study.certificates import approve, make_authority, make_request
from fedconvex.study.trial import invented
from tests.campaigns.links import Link
from tests.campaigns.nursery import Nursery
from tests.study_text import wards

SITES = ("north", "east", "south")
ASKED = {
    "newton": 'solve = { loss = "logistic", l2 = 0.02, tol = 1e-9 }',
    "scaffold": 'solve = { loss = "logistic", l2 = 0.02, method = "scaffold", step_size = 0.2, rounds = 8 }',
    "analyse": 'analyse = { family = "logistic", strata = "site" }',
}
TARGET = 'column = "ill"\nvalues = ["no", "yes"]'
ALL = 'require = ["north", "east", "south"]'
SOME = 'names = ["north", "east", "south"]\nat_least = 2'
RESULTS = ("analysis.json", "analysis.txt", "model/model.npz", "model.npz", "study.txt")
LONG = 900.0  # seconds: the machine may be busy


class Run(NamedTuple):
    """What a study came to."""

    results: dict[str, bytes]
    passed: int  # bytes


@cache
def nursery() -> Nursery:
    """Return the one that starts all processes of this campaign."""
    made = Nursery()
    atexit.register(made.close)
    return made


@cache
def certificates() -> Path:
    """Return a folder with certificates of all, those of east that ended long ago, and those of another authority."""
    place = tempfile.TemporaryDirectory()
    atexit.register(place.cleanup)
    folder = Path(place.name)
    (folder / "study.toml").write_text(wards(ASKED["newton"], SITES, TARGET))
    study = read_study(folder / "study.toml")
    for sub in ("good", "foreign"):
        (folder / sub).mkdir()
        make_authority(study, folder / sub)
        for site in SITES:
            approve(make_request(site, folder / sub), site, folder / sub)
    shutil.copytree(folder / "good", folder / "ended")
    (folder / "ended" / "east.pem").unlink()
    (folder / "ended" / "east.pem").write_bytes(_ended(folder / "ended"))
    return folder


def _ended(folder: Path) -> bytes:
    """Return a certificate of east that was good a year ago."""
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=400)
    with mock.patch.object(made, "_now", lambda: then), mock.patch.object(made, "check_period", lambda *a: None):
        return approve(folder / "east.csr", "east", folder).read_bytes()


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Study:
    """A study in a folder: files, a link to the coordinator, and the processes, "server" and the sites by name."""

    def __init__(self, folder: Path, ask: str, sums: str, sites: str = ALL, deadline: float = 600.0) -> None:
        self.folder, self.running = folder, {}  # type: Path, dict[str, int]
        self.port = _port()
        self.link = Link(self.port)
        text = wards(ASKED[ask], f"{sites}\ndeadline = {deadline}", TARGET, sums, self.link.port)
        (folder / "study.toml").write_text(text)
        for file in (certificates() / "good").iterdir():
            shutil.copy(file, folder)
        for site in SITES:
            cells = invented(read_study(folder / "study.toml"), site, 90, 5)
            lines = [",".join(cells), *map(",".join, zip(*cells.values(), strict=True))]
            (folder / f"{site}.csv").write_text("\n".join(lines) + "\n")
            self.settle(site, site, sums)

    def settle(self, name: str, site: str, sums: str) -> None:
        """Write what a site decides, NAME.toml; a twin of a site has another table and folders."""
        limits = "[limits]\nshare = 400.0\nparameters = 0.5\nruns = 99\n"
        limits += "secure_sums = false\n" if sums == "false" else ""
        own = f'[site]\nname = "{site}"\ntable = "{name}.csv"\nstate = "state_{name}"\nresults = "results_{name}"\n'
        (self.folder / f"{name}.toml").write_text(own + limits)

    def start(self, name: str, **how: Any) -> None:
        """Start a process, or start it again."""
        study = f"study_{name}.toml" if (self.folder / f"study_{name}.toml").exists() else "study.toml"
        argv = ["study", "join", study, f"{name}.toml", "--yes", "--wait", "20"]
        if name == "twin":
            argv[-1] = "1"
        if name == "server":
            argv = ["study", "serve", "study.toml", "--out", "out", "--listen", f"127.0.0.1:{self.port}"]
        self.running[name] = nursery().start(self.folder, argv, f"{name}.log", **how)

    def start_all(self, **how: Any) -> None:
        """Start all processes."""
        for name in ("server", *SITES):
            self.start(name, **how)

    def status(self, name: str) -> int | None:
        """Return the exit status of a process, None while it runs."""
        return nursery().poll(self.running[name])

    def ended(self, name: str) -> int:
        """Wait until a process ends, and return its exit status."""
        return nursery().wait(self.running[name], LONG)

    def kill(self, name: str) -> None:
        """End a process as a power cut would."""
        nursery().kill(self.running[name])

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a process, if it has not ended."""
        if self.status(name) is None:
            os.kill(self.running[name], number)

    def said(self, name: str) -> str:
        """Return all that a process has printed."""
        file = self.folder / f"{name}.log"
        return file.read_text() if file.exists() else ""

    def results(self) -> dict[str, bytes]:
        """Return the results of the coordinator by name."""
        out = self.folder / "out"
        return {name: (out / name).read_bytes() for name in RESULTS if (out / name).exists() and name != "study.txt"}

    def left(self) -> list[str]:
        """Return the results that are anywhere."""
        folders = [self.folder / "out", *(self.folder / f"results_{name}" for name in SITES)]
        return [f"{folder.name}/{name}" for folder in folders for name in RESULTS if (folder / name).exists()]

    def close(self) -> None:
        """End all that is left."""
        for name in self.running:
            self.signal(name, signal.SIGCONT)
            self.kill(name)
        self.link.close()


@cache
def calm(ask: str, sums: str) -> Run:
    """Return what a study comes to that nothing disturbs."""
    with tempfile.TemporaryDirectory() as place:
        study = Study(Path(place), ask, sums)
        try:
            study.start_all()
            statuses = {name: study.ended(name) for name in study.running}
            assert set(statuses.values()) == {0}, (statuses, study.said("server")[-500:])
            return Run(study.results(), study.link.passed)
        finally:
            study.close()
