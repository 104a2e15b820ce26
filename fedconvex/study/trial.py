"""`try_study`: all roles of a study on one machine, with invented rows, certificates and a network of its own."""

from __future__ import annotations

import csv
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import numpy as np

from fedconvex._check import bad, whole
from fedconvex.study.agreement import CATEGORY, INDICATOR, Study
from fedconvex.study.certificates import SERVER, approve, credentials, make_authority, make_request
from fedconvex.study.coordination import coordinate
from fedconvex.study.site_check import check_site
from fedconvex.study.site_end import take_part
from fedconvex.study.site_settings import SiteSettings, read_site


def invented(study: Study, site: str, rows: int, seed: int) -> dict[str, list[str]]:
    """Return invented cells of a site, by column, that fit a study; missing ones where they may be."""
    rng = np.random.default_rng([seed, study.sites.index(site)])
    cells, score = {}, np.zeros(rows)  # type: dict[str, list[str]], np.ndarray
    for c in study.columns:
        if site in c.absent_at:
            continue
        gone = rng.random(rows) < (0.05 if c.missing == INDICATOR else 0.0)
        if c.kind == CATEGORY:
            which = rng.integers(0, len(c.values), rows)
            score += 0.5 * which / max(len(c.values) - 1, 1)
            shown = [c.values[j] for j in which]
        else:
            x = c.center + c.scale * rng.standard_normal(rows)
            x = x if c.range is None else np.clip(x, *c.range)
            score += 0.3 * (x - c.center) / c.scale
            shown = [f"{v:.6g}" for v in x]
        cells[c.name] = ["" if g else v for g, v in zip(gone, shown, strict=True)]
    values, family = study.target["values"], study.ask.get("analyse", {}).get("family", "gaussian")
    if values is not None:
        noisy = score[:, None] * np.arange(len(values)) + rng.gumbel(size=(rows, len(values)))
        cells[study.target["column"]] = [values[j] for j in noisy.argmax(axis=1)]
    elif family == "cox":
        times = np.maximum(rng.exponential(size=rows) * np.exp(-0.5 * score), 1e-3)
        cells[study.target["column"]] = [f"{v:.6g}" for v in times]
        cells[study.target["event"]] = [study.target["events"][int(seen)] for seen in rng.random(rows) < 0.7]
        if study.target["entry"] is not None:
            cells[study.target["entry"]] = [f"{v:.6g}" for v in 0.5 * times * rng.random(rows)]
    elif family in ("poisson", "quasipoisson"):
        cells[study.target["column"]] = [str(v) for v in rng.poisson(np.exp(np.clip(0.5 * score, -3.0, 3.0)))]
    else:
        y = np.exp(0.2 * score + 0.3 * rng.standard_normal(rows))  # positive, for gamma too
        y = y if study.target["range"] is None else np.clip(y, *study.target["range"])
        cells[study.target["column"]] = [f"{v:.6g}" for v in y]
    return cells


def try_study(
    study: Study, folder: str | os.PathLike[str], rows: int = 300, seed: int = 0, say: Callable[[str], Any] = print
) -> dict[str, bytes]:
    """Carry out a study on this machine with invented rows: certificates, connections and files as in earnest.

    Parameters
    ----------
    study : Study
        Its address is replaced by a free port of this machine.
    folder : path
        Gets a folder for every site, one for certificates, and ``results``; must be empty.
    rows : int
        Of each site.
    seed : int
    say : callable
        Gets lines of text.

    Returns
    -------
    dict from str to bytes
        The results, as `coordinate` returns them.

    Raises
    ------
    ValueError
        If the folder is not empty, or invented rows do not do for what is asked.
    Stopped, ConnectionError
        As `coordinate`.
    """
    lock = Lock()

    def tell(line: str) -> None:
        with lock:
            say(line)

    place, rows = Path(folder), whole("try_study: rows", rows, low=20, high=100_000)
    if place.exists() and any(place.iterdir()):
        raise bad("try_study: folder", "be empty", f"{place}")
    port = _free_port()
    here = replace(study, address=("localhost", port), authority=None, revoked=())
    certs = place / "certificates"
    make_authority(here, certs)
    sites = [_settings(here, name, place, rows, seed) for name in here.sites]
    for site in sites:
        if wrong := [f for f in check_site(here, site).findings if f.stops]:
            must = f"allow {rows} invented rows at {site.name}"
            raise bad(f"try_study: {wrong[0].check}", must, wrong[0].found, "give more rows, or change the study")
    failed: list[str] = []
    threads = [Thread(target=_site, args=(here, site, tell, failed), daemon=True) for site in sites]
    for thread in threads:
        thread.start()
    own = credentials(here, certs / "server.pem", certs / "server.key", certs / "authority.pem", SERVER)
    try:
        return coordinate(here, own, place / "results", tell, ("127.0.0.1", port), joining=60.0)
    finally:
        for thread in threads:
            thread.join(10.0)
        for line in failed:
            tell(line)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _settings(study: Study, name: str, place: Path, rows: int, seed: int) -> SiteSettings:
    """Make a site's table, settings and certificate."""
    own, certs = place / name, place / "certificates"
    approve(make_request(name, own), name, certs)
    cells = invented(study, name, rows, seed)
    with open(own / "table.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(cells)
        writer.writerows(zip(*cells.values(), strict=True))
    limits = "\n[limits]\nparameters = 0.5\nshare = 1000.0\n" + ("" if study.secure_sums else "secure_sums = false\n")
    files = f'certificate = "../certificates/{name}.pem"\nauthority = "../certificates/authority.pem"\n'
    (own / "site.toml").write_text(f'[site]\nname = "{name}"\ntable = "table.csv"\n{files}{limits}', encoding="utf-8")
    return read_site(own / "site.toml")


def _site(study: Study, site: SiteSettings, tell: Any, failed: list[str]) -> None:
    """Play a site."""
    try:
        take_part(study, site, lambda line: tell(f"  {site.name}: {line}"), wait=60.0)
    except Exception as error:
        failed.append(f"{site.name}: {error}")
