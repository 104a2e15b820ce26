"""Suites of problems: first, small, standard, book, agnostic, multitask, those of a book or of a TOML file."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedconvex._check import bad, unknown, wrong_type
from fedconvex._files import existing, read_place
from fedconvex.bench.cases import LEARNED, PER_TASK, WORST_DOMAIN, Case, at_place


def _linear(K: int, d: int, rows: int, condition: float, zeta: float, noise: float = 0.5) -> Case:
    """Return least squares with both dials set: zeta_star exactly, and the condition of the common covariance."""
    named = f"linear-K{K}-d{d}-cond{condition:g}-zeta{zeta:g}"
    dials = {"n_clients": K, "n_features": d, "rows_per_client": rows, "condition": condition, "zeta_star": zeta}
    dials |= {"noise": noise, "feature_shift": 0.5 if zeta else 0.0}  # Hessians that differ, where clients do
    return Case(named + ("" if noise == 0.5 else f"-noise{noise:g}"), "linear", dials, "squared")


def _logistic(K: int, d: int, rows: int, l2: float, shift: float, loss: str = "logistic", **more: Any) -> Case:
    named = f"{loss}-K{K}-d{d}-l2_{l2:g}-shift{shift:g}" + "".join(f"-{k.split('_')[0]}{v:g}" for k, v in more.items())
    dials = {"n_clients": K, "n_features": d, "rows_per_client": rows, "model_shift": shift, "feature_shift": shift}
    return Case(named, "logistic", dials | more, loss, l2)


def _sparse(K: int, d: int, rows: int, l2: float, shift: float) -> Case:
    dials = {"n_clients": K, "n_features": d, "rows_per_client": rows, "model_shift": shift}
    return Case(f"sparse-K{K}-d{d}-l2_{l2:g}-shift{shift:g}", "sparse", dials, "logistic", l2)


def _real(name: str, loss: str, l2: float, K: int, partition: str, parameter: float | None = None) -> Case:
    word = partition if parameter is None else f"{partition}{parameter:g}"
    settings = {"clients": K, "partition": partition, "parameter": parameter}
    return Case(f"{name}-{loss}-K{K}-{word}", name, settings, loss, l2)


_SMALL = (
    _linear(10, 10, 50, 10.0, 0.0),
    _linear(10, 10, 50, 10.0, 1.0),
    _linear(3, 2, 50, 100.0, 1.0),
    _logistic(10, 10, 50, 0.1, 0.0),
    _logistic(10, 10, 50, 0.01, 1.0),
    _logistic(5, 5, 40, 0.1, 0.5, "hinge"),
    _sparse(20, 200, 50, 0.01, 0.5),
    _real("iris", "softmax", 0.05, 3, "dirichlet", 1.0),
    _real("breast_cancer", "logistic", 0.05, 10, "dirichlet", 0.5),
)
_FIRST = (_SMALL[1], _SMALL[4], _SMALL[8])  # two losses, dense rows: little is compiled
_STANDARD = (
    *_SMALL,
    *(_linear(10, 20, 100, c, z) for c in (1.0, 100.0, 1000.0) for z in (0.0, 0.1, 10.0)),
    _linear(10, 20, 100, 10.0, 1.0, 0.0),
    _linear(10, 20, 100, 10.0, 1.0, 5.0),
    _linear(1000, 2, 10, 10.0, 1.0),
    _linear(5, 300, 400, 100.0, 1.0),
    _logistic(100, 20, 50, 0.001, 0.5, size_skew=1.0),
    _logistic(300, 5, 20, 0.01, 2.0),
    _logistic(10, 20, 100, 0.0001, 0.5),
    _logistic(10, 20, 100, 0.01, 0.5, "smoothed-hinge"),
    _logistic(20, 10, 50, 0.01, 1.0, "hinge"),
    _sparse(100, 1000, 50, 0.001, 0.0),
    _sparse(100, 1000, 50, 0.001, 1.0),
    _real("wine", "softmax", 0.01, 5, "dirichlet", 0.5),
    _real("digits", "softmax", 0.01, 10, "shards", 2.0),
    _real("breast_cancer", "logistic", 0.001, 10, "iid"),
    _real("breast_cancer", "hinge", 0.05, 10, "dirichlet", 0.5),
    _real("diabetes", "squared", 0.01, 10, "similarity", 20.0),
)
_BOOK = (
    *_STANDARD,
    *(_linear(5, 8, 40, c, z, n) for c in (3.0, 300.0) for z in (0.0, 0.3, 3.0) for n in (0.1, 2.0)),
    *(_logistic(8, 6, 30, l2, shift) for l2 in (0.1, 0.003) for shift in (0.0, 0.3, 2.0)),
    *(_logistic(6, 5, 30, 0.05, shift, "smoothed-hinge") for shift in (0.0, 1.0)),
    *(_sparse(15, 60, 20, l2, shift) for l2 in (0.05, 0.002) for shift in (0.0, 1.0)),
    _real("iris", "softmax", 0.01, 5, "iid"),
    _real("wine", "softmax", 0.1, 4, "shards", 2.0),
    _real("diabetes", "squared", 0.001, 5, "iid"),
)  # a reference book: those of standard, and others that are small


def _aimed(aim: str, *cases: Case) -> tuple[Case, ...]:
    return tuple(replace(c, name=f"{aim.split()[0]}-{c.name}", aim=aim) for c in cases)


_AGNOSTIC = _aimed(WORST_DOMAIN, _SMALL[1], _SMALL[4], _SMALL[8], _linear(4, 5, 50, 10.0, 3.0))
_TASKS = (
    *_aimed(PER_TASK, _SMALL[1], _SMALL[4], _SMALL[5], _SMALL[8]),
    *_aimed(LEARNED, _SMALL[1], _SMALL[5], _SMALL[8]),
)


def _pinned(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """Return the cases with their fixed digests: those of one name without an aim share their rows."""
    known = json.loads((Path(__file__).parent / "digests.json").read_text())
    return tuple(replace(c, sha256=known.get(c.name)) for c in cases)


SUITES: Mapping[str, tuple[Case, ...]] = {
    name: _pinned(cases)
    for name, cases in (
        ("first", _FIRST),
        ("small", _SMALL),
        ("standard", _STANDARD),
        ("book", _BOOK),
        ("agnostic", _AGNOSTIC),
        ("multitask", _TASKS),
    )
}
FOLDER = {  # files of --data: loss, l2, and how rows are divided where the file does not say
    "a9a": ("logistic", 1e-4, "dirichlet", 0.5),
    "w8a": ("logistic", 1e-4, "iid", None),
    "adult": ("logistic", 1e-4, "dirichlet", 0.5),
    "mnist": ("softmax", 1e-3, "shards", 2.0),
    "har21": ("logistic", 1e-3, "dirichlet", 0.5),
}


def suite(name: str | os.PathLike[str]) -> tuple[Case, ...]:
    r"""Return the problems of a suite.

    Parameters
    ----------
    name : str or path
        "first", "small", "standard", "book", "agnostic" or "multitask"; a book, FILE.npz; or a TOML file of tables
        ``[[problem]]`` with the fields of `Case`: name, data (a path beside the file, or a kind of data), loss, l2,
        aim, sha256, and a table ``settings``.

    Raises
    ------
    ValueError, TypeError, FileNotFoundError
        If there is no such suite, or the file is malformed.

    Examples
    --------
    >>> from fedconvex.bench import suite
    >>> len(suite("small")), suite("small")[0].name
    (9, 'linear-K10-d10-cond10-zeta0')
    """
    if isinstance(name, str) and name in SUITES:
        return SUITES[name]
    if isinstance(name, (str, os.PathLike)) and os.fspath(name).endswith(".npz"):
        from fedconvex.bench.book import book_cases

        return book_cases(name)
    if not isinstance(name, (str, os.PathLike)):
        raise wrong_type("bench: suite", "be the name of one, or of a file", type(name).__name__)
    if not os.fspath(name).endswith(".toml"):
        raise unknown("bench: suite", os.fspath(name), SUITES, ", or a file .toml or .npz")
    file = existing("bench: suite", name)
    try:
        read = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise bad(f"bench: suite {file.name}", "be TOML", str(error)) from None
    tables = read.get("problem")
    if not isinstance(tables, list) or not tables or set(read) - {"problem"}:
        raise bad(
            f"bench: suite {file.name}", "hold tables [[problem]], and nothing else", ", ".join(read) or "nothing"
        )
    cases = tuple(_case(file, table) for table in tables)
    names = [c.name for c in cases]
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise bad(f"bench: suite {file.name}", "name every problem differently", f"{twice!r} twice")
    return cases


def _case(file: Path, table: Any) -> Case:
    known = ("name", "data", "settings", "loss", "l2", "aim", "sha256")
    who = f"bench: suite {file.name}: problem"
    if not isinstance(table, dict) or not {"name", "data"} <= set(table) <= set(known):
        raise bad(who, f"have name and data, and of {', '.join(known[2:])} what is wanted", f"{table!r}")
    if not isinstance(table["data"], str) or not isinstance(table.get("settings", {}), dict):
        raise wrong_type(who, "have text as data and a table as settings", f"{table!r}")
    return Case(**table | {"data": at_place(table["data"], file.parent)})


def data_cases(folder: str | os.PathLike[str]) -> tuple[Case, ...]:
    """Return a problem for each of a9a.npz, w8a.npz, adult.npz, mnist.npz and har21.npz in a folder.

    Raises
    ------
    ValueError
        If there is none of them, or the folder does not exist.
    """
    place = read_place("--data", folder)
    found = []
    for name, (loss, l2, how, parameter) in FOLDER.items():
        if (place / f"{name}.npz").is_file():
            settings = {"clients": 20, "partition": how, "parameter": parameter}
            found.append(Case(name, str(place / f"{name}.npz"), settings, loss, l2))
    if not found:
        raise bad("--data", f"be a folder with one of {', '.join(f'{n}.npz' for n in FOLDER)}", os.fspath(folder))
    return tuple(found)
