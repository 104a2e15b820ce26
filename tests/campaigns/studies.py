"""Studies on one machine, in processes of their own, under schedules of faults: the same bits, or a stop by name.

What passes changes no bit: kills of sites and of the coordinator, processes that are stopped for a while, connections
that are cut, late or turned away, disks that are full until somebody makes room, strangers at the coordinator's port,
and a second process with a site's own certificate. What does not pass stops the study, says why and whose fault it is,
and leaves no result anywhere: a site that is gone for good, another study, table or certificate, one that has ended or
was revoked, and a site that plays the coordinator. Faults come when so many bytes of an undisturbed run have passed,
so that a schedule is the same on a busy machine.
"""

from __future__ import annotations

import math
import shutil
import signal
import socket
import ssl
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedconvex.study.certificates import fingerprint_of
from tests.campaigns.study_roles import ASKED, LONG, SITES, SOME, Study, calm, certificates

_FULL = "must be written to"


# ---------------------------------------------------------------- what passes


def _kill(study: Study, name: str, rng: np.random.Generator) -> None:
    study.kill(name)
    time.sleep(float(rng.uniform(0.0, 0.5)))
    study.start(name)


def _hang(study: Study, name: str, rng: np.random.Generator) -> None:
    study.signal(name, signal.SIGSTOP)
    time.sleep(float(rng.uniform(0.05, 1.0)))
    study.signal(name, signal.SIGCONT)


def _cut(study: Study, name: str, rng: np.random.Generator) -> None:
    study.link.cut()


def _turn_away(study: Study, name: str, rng: np.random.Generator) -> None:
    study.link.refuses = True
    study.link.cut()
    time.sleep(float(rng.uniform(0.1, 1.5)))
    study.link.refuses = False


def _late(study: Study, name: str, rng: np.random.Generator) -> None:
    study.link.late = float(rng.uniform(0.0, 0.1))


def _stop(study: Study, name: str, rng: np.random.Generator) -> None:
    """Ctrl-C or SIGTERM: the process says how it goes on, and is started again."""
    number = int(rng.choice([signal.SIGINT, signal.SIGTERM]))
    study.signal(name, number)
    status = study.ended(name)
    early = -number  # before it listens for signals
    assert status in (0, 75, 128 + number, early), (name, status, study.said(name)[-300:])
    if status != 0:
        study.start(name)


def _fill(study: Study, name: str, rng: np.random.Generator) -> None:
    """No file may grow beyond so many bytes: the process ends, or writes no such file; then there is room again."""
    study.kill(name)
    before = len(study.said(name))
    study.start(name, room=before + int(rng.integers(400, 12_000)))
    until = time.monotonic() + float(rng.uniform(1.0, 6.0))
    while study.status(name) is None and time.monotonic() < until:
        time.sleep(0.02)
    if (status := study.status(name)) == 0:
        return
    study.kill(name)
    if status is not None and status >= 0:
        said = study.said(name)[before:]
        assert status in (2, 3, 75), (name, status, said)
        assert name == "server" or status != 2 or _FULL in said, said
    study.start(name)


def _stranger(study: Study, name: str, rng: np.random.Generator) -> None:
    """Somebody connects who says nothing, nonsense, or shows no certificate, or one of another authority."""
    how = int(rng.integers(4))
    with suppress(OSError), socket.create_connection(("127.0.0.1", study.link.port), 5.0) as end:
        if how == 1:
            end.sendall(rng.bytes(int(rng.integers(1, 4000))))
        if how >= 2:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if how == 3:
                foreign = certificates() / "foreign"
                context.load_cert_chain(foreign / f"{name}.pem", foreign / f"{name}.key")
            end.settimeout(5.0)
            with context.wrap_socket(end) as line:
                line.recv(100)


def _twin(study: Study, name: str, rng: np.random.Generator) -> None:
    """A second process of a site, with its key and certificate and other rows: the place is taken."""
    lines = (study.folder / f"{name}.csv").read_text().splitlines(keepends=True)
    (study.folder / "twin.csv").write_text("".join(lines[:-3]))
    study.settle("twin", name, "false" if "secure_sums = false" in (study.folder / f"{name}.toml").read_text() else "")
    study.start("twin")
    status = study.ended("twin")
    assert status != 0 and "received" not in study.said("twin"), study.said("twin")
    del study.running["twin"]


FAULTS: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "kill": (_kill, ("server", *SITES)),
    "hang": (_hang, ("server", *SITES)),
    "cut": (_cut, ("",)),
    "turn away": (_turn_away, ("",)),
    "late": (_late, ("",)),
    "signal": (_stop, ("server", *SITES)),
    "full disk": (_fill, ("server", *SITES)),
    "stranger": (_stranger, SITES),
    "twin": (_twin, SITES),
}
_NEED_THE_LINK = ("full disk", "stranger", "twin")  # these go on while it is there
_HARMLESS_TO_PLACES = ("hang", "stranger", "late")  # beside a twin, which may take a place that is free


def schedule(rng: np.random.Generator) -> list[tuple[float, str, str]]:
    """Return faults, each with the share of an undisturbed run's bytes after which it comes, and whom it meets."""
    first = str(rng.choice(list(FAULTS)))
    others = _HARMLESS_TO_PLACES if first == "twin" else [name for name in FAULTS if name != "twin"]
    names = [first, *(str(name) for name in rng.choice(others, int(rng.integers(0, 4))))]
    low = 0.4 if first == "twin" else 0.0
    return sorted((float(rng.uniform(low, 0.95)), name, str(rng.choice(FAULTS[name][1]))) for name in names)


def _supervised(study: Study, names: Any) -> int:
    """Start again what has ended with status 75, and return how many these were."""
    ended = [name for name in names if study.status(name) == 75]
    for name in ended:
        study.start(name)
    return len(ended)


def _passing(rng: np.random.Generator, folder: Path, ask: str, sums: str) -> dict[str, Any]:
    """Carry a study out under a schedule of what passes; supervisors start again what ends with status 75."""
    wanted, faults = calm(ask, sums), schedule(rng)
    study, met, last = Study(folder, ask, sums), [], str(rng.choice(["", *SITES]))
    study.link.hold(faults[0][0] * wanted.passed)
    try:
        for name in ("server", *SITES):
            if name != last:
                study.start(name)
        if last:
            time.sleep(float(rng.uniform(0.0, 1.0)))
            study.start(last)
        until, again = time.monotonic() + LONG, 0
        while study.status("server") is None:
            assert time.monotonic() < until, f"it does not end: {study.said('server')[-300:]}"
            if faults and study.link.passed >= faults[0][0] * wanted.passed:
                _, what, whom = faults.pop(0)
                then = faults[0][0] * wanted.passed if faults else math.inf
                if what in _NEED_THE_LINK:
                    study.link.hold(then)
                FAULTS[what][0](study, whom, rng)
                met.append(f"{what} {whom}".strip())
                study.link.hold(then)
            again += _supervised(study, SITES)
            time.sleep(0.01)
        said = study.said("server")
        assert study.status("server") == 0, (met, study.status("server"), said[-600:])
        assert study.results() == wanted.results, (met, "other bits")
        ends = {name: study.ended(name) for name in SITES}
        for name, status in ends.items():  # who was started again after the end finds nobody
            assert status in (0, 75), (met, name, status, study.said(name)[-400:])
        return {"faults": met, "restarts": again, "hit": len(met)}
    finally:
        study.close()


# ---------------------------------------------------------------- what does not pass


class Stop(NamedTuple):
    """A fault that stops a study: what is done before it, or in its midst, and who says what, with which status."""

    spoil: Callable[[Study], None]
    ends: dict[str, tuple[tuple[int, ...], str]]  # by who it is: exit statuses, and words
    midst: bool = False
    trusting: bool = False
    deadline: float = 600.0


def _certificate(kind: str, of: str = "east") -> Callable[[Study], None]:
    def spoil(study: Study) -> None:
        for ending in ("pem", "key"):
            shutil.copy(certificates() / kind / f"{of}.{ending}", study.folder / f"east.{ending}")

    return spoil


def _another_study(study: Study) -> None:
    (study.folder / "study_east.toml").write_text((study.folder / "study.toml").read_text() + "# changed\n")


def _revoked(study: Study) -> None:
    """Revoked in all copies but east's own, who goes on with an old one."""
    file = study.folder / "study.toml"
    shutil.copy(file, study.folder / "study_east.toml")
    revoked = f'revoked = ["{fingerprint_of(study.folder / "east.pem")}"]'
    file.write_text(file.read_text().replace("[sites]", f"{revoked}\n[sites]"))


def _other_ward(study: Study) -> None:
    file = study.folder / "east.csv"
    file.write_text(file.read_text().replace(",a,", ",elsewhere,").replace(",a\n", ",elsewhere\n"))


def _row_less(study: Study) -> None:
    """East comes back with another table, and the coordinator comes back too."""
    study.kill("server")
    study.kill("east")
    lines = (study.folder / "east.csv").read_text().splitlines(keepends=True)
    (study.folder / "east.csv").write_text("".join(lines[:-1]))
    study.start("east")
    study.start("server")


def _changed(study: Study) -> None:
    study.kill("server")
    (study.folder / "study.toml").write_text((study.folder / "study.toml").read_text() + "# changed\n")
    study.start("server")


def _gone(study: Study) -> None:
    study.kill("east")


def _no_room(study: Study) -> None:
    study.kill("east")
    (study.folder / "state_east" / "audit.jsonl").touch()
    size = (study.folder / "state_east" / "audit.jsonl").stat().st_size
    study.start("east", room=max(size, 1))


def _plays_the_coordinator(study: Study) -> None:
    for ending in ("pem", "key"):
        shutil.copy(study.folder / f"east.{ending}", study.folder / f"server.{ending}")


STOPS = {
    "another study": Stop(_another_study, {"server": ((3,), "site east: it is about another study")}),
    "another's certificate": Stop(
        _certificate("good", "north"), {"east": ((2,), "must be that of fedconvex:site:east; got fedconvex:site:north")}
    ),
    "another's certificate, not looked at": Stop(
        _certificate("good", "north"), {"east": ((2,), "number must be 0, as the certificate says")}, trusting=True
    ),
    "a certificate that ended": Stop(_certificate("ended"), {"east": ((2,), "be good now, from")}),
    "a certificate that ended, not looked at": Stop(
        _certificate("ended"), {"east": ((2,), "be accepted by the server")}, trusting=True
    ),
    "a foreign certificate": Stop(_certificate("foreign"), {"east": ((2,), "be accepted by the server")}),
    "a revoked certificate": Stop(_revoked, {"east": ((2,), "name one site's place; got another certificate")}),
    "another table": Stop(_other_ward, {"east": ((2,), "ward")}),
    "a row less": Stop(_row_less, {"server": ((3, 143), ""), "east": ((2, 3, 75), "")}, midst=True),
    "a changed study": Stop(_changed, {"server": ((2,), "hold a run of the study")}, midst=True),
    "a site is gone": Stop(_gone, {"server": ((3,), "east")}, midst=True, deadline=8.0),
    "no room": Stop(
        _no_room, {"east": ((2,), _FULL), "server": ((3,), "east")}, midst=True, deadline=8.0
    ),
    "a site plays the coordinator": Stop(
        _plays_the_coordinator, dict.fromkeys(SITES, ((2,), "for localhost; got unsuitable certificate purpose")),
        trusting=True,
    ),
}  # fmt: skip


def _stopping(rng: np.random.Generator, folder: Path, ask: str, sums: str, name: str) -> dict[str, Any]:
    """Carry a study out that must stop; it says why, and there is no result."""
    stop, share = STOPS[name], float(rng.uniform(0.5, 0.8))  # of the bytes; a fourth are those of joining
    study = Study(folder, ask, sums, deadline=stop.deadline)
    try:
        if not stop.midst:
            stop.spoil(study)
        if stop.midst:
            study.link.hold(share * calm(ask, sums).passed)
        study.start_all(trusting=stop.trusting)
        if stop.midst:
            until = time.monotonic() + LONG
            while study.link.passed < share * calm(ask, sums).passed:
                assert study.status("server") is None and time.monotonic() < until, study.said("server")[-400:]
                time.sleep(0.005)
            stop.spoil(study)
            study.link.hold(math.inf)
        first = "east" if name == "a row less" else min(stop.ends, key=lambda who: who != "east")
        until = time.monotonic() + LONG
        while study.status(first) is None and (name != "a row less" or study.status("server") is None):
            assert time.monotonic() < until, f"{name}: nothing stops: {study.said('server')[-300:]}"
            _supervised(study, [site for site in SITES if site not in stop.ends and stop.midst])
            time.sleep(0.02)
        if "server" not in stop.ends:
            for who in stop.ends:
                study.ended(who)
        if "server" not in stop.ends or (name == "a row less" and study.status("east") is not None):
            study.signal("server", signal.SIGTERM)
        ends = {who: study.ended(who) for who in ("server", *stop.ends)}
        for who, (statuses, words) in stop.ends.items():
            assert ends[who] in statuses and words in study.said(who), (name, who, ends, study.said(who)[-600:])
        if name == "a row less":
            both = study.said("server") + study.said("east")
            assert "east has 89 rows, and had 90" in both or "rows must be 90 as in the roster; got 89" in both, both
        assert ends["server"] != 0 and not study.left(), (name, ends, study.left())
        return {"faults": [name], "hit": 1}
    finally:
        study.close()


def _without(rng: np.random.Generator, folder: Path, ask: str, sums: str) -> dict[str, Any]:
    """A study that asks for two of three: one is not there in time, and the first line of every report says so."""
    absent = str(rng.choice(SITES))
    study = Study(folder, ask, sums, SOME, deadline=3.0)
    try:
        for name in ("server", *SITES):
            if name != absent:
                study.start(name)
        assert study.ended("server") == 0, study.said("server")[-500:]
        there = [name for name in SITES if name != absent]
        first = f"took part: {', '.join(there)}; without {absent}, not there in time"
        reports = [file for file in (study.folder / "out").glob("*.txt") if file.name != "held_out.txt"]
        assert reports and all(file.read_text().splitlines()[0] == first for file in reports), first
        return {"faults": ["absent"], "hit": 1}
    finally:
        study.close()


def trial(rng: np.random.Generator) -> dict[str, Any]:
    """Carry out a study under a schedule of faults: the bits of one that was not disturbed, or a stop by name."""
    ask, sums = str(rng.choice(list(ASKED))), str(rng.choice(["true", "false"]))
    kind = str(rng.choice(["passing"] * len(STOPS) + [*STOPS] + ["absent"]))
    found: dict[str, Any] = {"kind": kind, "ask": ask, "sums": sums}
    with tempfile.TemporaryDirectory() as place:
        if kind == "passing":
            return found | _passing(rng, Path(place), ask, sums)
        if kind == "absent":
            return found | _without(rng, Path(place), ask, sums)
        return found | _stopping(rng, Path(place), ask, sums, kind)
