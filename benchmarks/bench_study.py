"""What a whole `compare` of a study takes: ten sites, 30 columns, 13 l2, 5 folds, all kinds of models, secure sums.

Sites and coordinator run in one process, and every message is counted as it would be sent. Nothing is timed: exchanges
are what a study waits for, and do not depend on the machine. On links of 50 ms each takes a tenth of a second. Columns
are normal, correlated by 0.2; the slopes of sites differ by a third of their size.
"""

from __future__ import annotations

import csv
import json
import tempfile
import warnings
from pathlib import Path

import numpy as np
from _timing import Report

from fedconvex._files import npz
from fedconvex.remote import in_process
from fedconvex.study import read_site, read_study
from fedconvex.study.agreement import KINDS
from fedconvex.study.coordination import Coordinator
from fedconvex.study.participation import Participant

SITES, COLUMNS, ROWS, FOLDS = 10, 30, (160, 440), 5
CASES = {"two classes": True, "a real target": False}
MOST, DELAY = 400, 0.1  # exchanges; seconds of an exchange, there and back
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


def counted(folder: Path, classes: bool) -> dict[str, float]:
    """Return exchanges, and megabytes that a site sends and gets, of a study that was carried out."""
    names = [f"site{k}" for k in range(SITES)]
    values = 'values = ["no", "yes"]' if classes else ""
    kinds = [kind for kind in KINDS if kind != "alone"]
    head = HEAD.format(sites=json.dumps(names), folds=FOLDS, kinds=json.dumps(kinds), values=values)
    columns = "".join(f'[columns.x{j}]\nkind = "number"\n' for j in range(COLUMNS))
    (folder / "study.toml").write_text(head + columns)
    study, sites = read_study(folder / "study.toml"), []
    for k, name in enumerate(names):
        cells = rows_of(k, int(np.linspace(*ROWS, SITES)[k]), classes)
        with open(folder / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([cells, *zip(*cells.values(), strict=True)])
        own = f'[site]\nname = "{name}"\ntable = "{name}.csv"\nstate = "s_{name}"\nresults = "r_{name}"\n'
        limits = "[limits]\nparameters = 0.5\nlevel = 1\nevents = 1\nshare = 1e6\nsummed = 1e6\n"
        (folder / f"{name}.toml").write_text(own + limits)
        sites.append(Participant(study, read_site(folder / f"{name}.toml"), lambda line: None))
    ask, found = in_process(sites), {"exchanges": 0.0, "sent": 0.0, "got": 0.0}

    def counting(t, requests):
        answers = ask(t, requests)
        found["exchanges"] += 1
        for name, messages in (("got", requests), ("sent", answers)):
            found[name] += sum(len(npz(m)) for m in messages.values()) / SITES / 1e6
        return answers

    Coordinator(study, folder / "out", counting, lambda line: None).conduct()
    return found


def main() -> None:
    report = Report("study", "exchanges and bytes of `compare` over ten sites of 30 columns", "exchanges", 1.0)
    for case, classes in CASES.items():
        with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = counted(Path(place), classes)
        report.bar(f"{case}: exchanges, joining and results among them", found["exchanges"], float(MOST))
        report.bar(f"{case}: seconds of delay on links of 50 ms", DELAY * found["exchanges"], 120.0)
        report.bar(f"{case}: MB that each site sends", found["sent"], None)
        report.bar(f"{case}: MB that each site gets", found["got"], None)
    report.write()


if __name__ == "__main__":
    main()
