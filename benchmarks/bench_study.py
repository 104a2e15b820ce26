"""What a whole `compare` of a study takes: ten sites, 30 columns, 13 l2, 5 folds, all kinds of models, secure sums.

Sites and coordinator are threads of one process; each site comes to the coordinator by TLS over a link of its own, on
which everything arrives 50 ms later, each way. Exchanges are what a study waits for, and do not depend on the machine.
Seconds beside the computing are those of all exchanges in which no site was at work. Bytes are those on the links,
with what TLS adds. Columns are normal, correlated by 0.2; the slopes of sites differ by a third of their size. Memory
is that of one long table among short ones, without links: what a site holds at most while it reads its table, and while
it answers, over its rows as numbers (eight bytes a cell).
"""

from __future__ import annotations

import csv
import json
import tempfile
import time
import tracemalloc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import numpy as np
from _links import Delay
from _timing import Report

from fedconvex.remote import Exchange, in_process, serve
from fedconvex.study import read_site, read_study
from fedconvex.study.agreement import KINDS
from fedconvex.study.certificates import SERVER, SITE, approve, credentials, make_authority, make_request
from fedconvex.study.coordination import Coordinator
from fedconvex.study.site_end import Participant

SITES, COLUMNS, ROWS, FOLDS = 10, 30, (160, 440), 5
CASES = {"two classes": True, "a real target": False}
MOST, DELAY, LONG = (
    400,
    0.05,
    (20_000, 400, 400),
)  # exchanges; seconds each way; rows of the sites whose memory is asked
HEAD = """[study]
name = "ten"
[coordinator]
address = "localhost:5555"
[sites]
require = {sites}
[ask]
compare = {{ folds = {folds}, kinds = {kinds} }}
[target]
column = "ill"
{values}
"""


def rows_of(k: int, n: int, classes: bool) -> dict[str, list]:
    """Return the table of a site."""
    rng = np.random.default_rng([7, k])
    X = np.sqrt(0.8) * rng.normal(size=(n, COLUMNS)) + np.sqrt(0.2) * rng.normal(size=(n, 1))
    common = np.random.default_rng(7).normal(size=COLUMNS) / np.sqrt(COLUMNS)
    z = X @ (common * (1.0 + 0.3 * rng.normal(size=COLUMNS))) + rng.logistic(size=n)
    ill = np.where(z > 0.0, "yes", "no").tolist() if classes else z.round(6).tolist()
    return {**{f"x{j}": X[:, j].round(6).tolist() for j in range(COLUMNS)}, "ill": ill}


def written(folder: Path, sizes: list[int], classes: bool, kinds: list[str]) -> tuple[Any, list[Any]]:
    """Write a study with its tables; return it, and what each site decides."""
    names = [f"site{k}" for k in range(len(sizes))]
    values = 'values = ["no", "yes"]' if classes else ""
    head = HEAD.format(sites=json.dumps(names), folds=FOLDS, kinds=json.dumps(kinds), values=values)
    columns = "".join(f'[columns.x{j}]\nkind = "number"\n' for j in range(COLUMNS))
    (folder / "study.toml").write_text(head + columns)
    for k, name in enumerate(names):
        cells = rows_of(k, sizes[k], classes)
        with open(folder / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([cells, *zip(*cells.values(), strict=True)])
        own = f'[site]\nname = "{name}"\ntable = "{name}.csv"\nstate = "s_{name}"\nresults = "r_{name}"\n'
        limits = "[limits]\nparameters = 0.5\nlevel = 1\nevents = 1\nshare = 1e6\nsummed = 1e6\n"
        (folder / f"{name}.toml").write_text(own + limits)
    return read_study(folder / "study.toml"), [read_site(folder / f"{name}.toml") for name in names]


class Busy:
    """When sites were at work."""

    def __init__(self) -> None:
        self.lock, self.now, self.since, self.seconds = Lock(), 0, 0.0, 0.0

    @contextmanager
    def working(self) -> Iterator[None]:
        """While a site is."""
        with self.lock:
            self.now += 1
            self.since = time.monotonic() if self.now == 1 else self.since
        yield
        with self.lock:
            self.now -= 1
            self.seconds += time.monotonic() - self.since if self.now == 0 else 0.0


def counted(folder: Path, classes: bool) -> dict[str, float]:
    """Return exchanges, seconds of waiting, and megabytes on the link of a site, of a study that was carried out."""
    sizes = [int(n) for n in np.linspace(*ROWS, SITES)]
    study, settings = written(folder, sizes, classes, [kind for kind in KINDS if kind != "alone"])
    make_authority(study, folder)
    busy, found = Busy(), {"exchanges": 0.0, "waiting": 0.0}
    own = credentials(study, *(folder / f for f in ("server.pem", "server.key", "authority.pem")), SERVER)
    with Exchange(("localhost", 0), own, sites=SITES, deadline=600.0) as exchange:
        links = [Delay(exchange.address[1], DELAY) for _ in settings]
        for k, site in enumerate(settings):
            approve(make_request(site.name, folder), site.name, folder)
            files = (site.certificate, site.key, site.authority)
            member = Participant(study, site, lambda line: None)
            known, answer = credentials(study, *files, SITE + site.name), member.answer

            def timed(message: Any, answer: Any = answer) -> Any:
                with busy.working():
                    return answer(message)

            member.answer = timed  # type: ignore[method-assign]
            there = (member, ("localhost", links[k].port), known, k, 600.0)
            Thread(target=serve, args=there, daemon=True).start()

        def counting(t: int, requests: Any, most: Any = None) -> Any:
            start, before = time.monotonic(), busy.seconds
            answers = exchange(t, requests, most)
            found["exchanges"] += 1
            found["waiting"] += time.monotonic() - start - (busy.seconds - before)
            return answers

        counting.bounded = True  # type: ignore[attr-defined]
        Coordinator(study, folder / "out", counting, lambda line: None).conduct(600.0)
    found["bytes"] = sum(link.passed for link in links) / SITES / 1e6
    for link in links:
        link.close()
    return found


def held(folder: Path, classes: bool) -> tuple[float, float]:
    """Return what a site holds at most while it reads its table, and while it answers, over its rows as numbers."""
    for place, sizes in (("first", [LONG[-1]] * 3), ("long", list(LONG))):  # kernels are compiled by the first one
        (folder / place).mkdir()
        study, settings = written(folder / place, sizes, classes, ["pooled"])
        if place == "first":
            sites = [Participant(study, site, lambda line: None) for site in settings]
            Coordinator(study, folder / "first_out", in_process(sites), lambda line: None).conduct()
    others = [Participant(study, site, lambda line: None) for site in settings[1:]]
    tracemalloc.start()
    site = Participant(study, settings[0], lambda line: None)
    peaks, answer = [tracemalloc.get_traced_memory()[1], 0], site.answer

    def watched(message: Any) -> Any:
        tracemalloc.reset_peak()
        found = answer(message)
        peaks[1] = max(peaks[1], tracemalloc.get_traced_memory()[1])
        return found

    site.answer = watched  # type: ignore[method-assign]
    Coordinator(study, folder / "out", in_process([site, *others]), lambda line: None).conduct()
    tracemalloc.stop()
    table = 8.0 * LONG[0] * (COLUMNS + 1)
    return peaks[0] / table, peaks[1] / table


def main() -> None:
    report = Report("study", "`compare` over ten sites of 30 columns, on links of 50 ms", "exchanges", 1.0)
    for case, classes in CASES.items():
        with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = counted(Path(place), classes)
        report.bar(f"{case}: exchanges, joining and results among them", found["exchanges"], float(MOST))
        report.bar(f"{case}: seconds beside the computing, on links of 50 ms", found["waiting"], 120.0)
        report.bar(f"{case}: MB on the link of a site, both ways", found["bytes"], None)
        with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reading, answering = held(Path(place), classes)
        report.bar(f"{case}: memory of a site that reads its table, over its rows", reading, None)
        report.bar(f"{case}: memory of a site that answers, over its rows", answering, 2.0)
    report.write()


if __name__ == "__main__":
    main()
