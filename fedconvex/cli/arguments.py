"""Arguments: how they are read, and what several commands take."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fedconvex._check import bad, real, unknown, whole
from fedconvex.cli.parser import Refused
from fedconvex.registry import losses, method_names

# What means nothing with --on.
REFUSED = ("client", "clients", "partition", "domain", "weight", "weights", "penalty", "preprocessing")
PARTITIONS = {"iid": None, "dirichlet": 0.5, "shards": 2, "similarity": 20.0}  # and their default parameters


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        raise Refused(str(error)) from None


def _plain(text: str) -> str:
    """Return the text unless Python alone takes it for a number: 1_000, or digits of other scripts."""
    if "_" in text or not text.isascii():
        raise ValueError
    return text


def number(name: str, **limits: Any) -> Callable[[str], float]:
    """Return a reader of numbers within limits."""

    def convert(text: str) -> float:
        with _refusing():
            try:
                value = float(_plain(text))
            except ValueError:
                raise bad(name, "be a number", repr(text)) from None
            return real(name, value, **limits)

    return convert


def count(name: str, **limits: Any) -> Callable[[str], int]:
    """Return a reader of whole numbers within limits."""

    def convert(text: str) -> int:
        with _refusing():
            try:
                value = int(_plain(text))
            except ValueError:
                raise bad(name, "be a whole number", repr(text)) from None
            return whole(name, value, **limits)

    return convert


def counts(name: str, **limits: Any) -> Callable[[str], int | tuple[int, ...]]:
    """Return a reader of a whole number, or of several with commas between them."""
    one = count(name, **limits)
    return lambda text: tuple(map(one, text.split(","))) if "," in text else one(text)


def choice(name: str, names: Sequence[str]) -> Callable[[str], str]:
    """Return a reader of one of some names."""

    def convert(text: str) -> str:
        if text not in names:
            raise Refused(str(unknown(name, text, names)))
        return text

    return convert


def ridge(text: str) -> float | str:
    """Read a weight of the ridge, or "auto"."""
    return text if text == "auto" else number("--l2", low=0.0)(text)


def _loss_name(text: str) -> str:
    """Read one of the losses, or the import path module:Class of another."""
    module, _, attribute = text.partition(":")
    if text not in losses() and not (attribute.isidentifier() and all(p.isidentifier() for p in module.split("."))):
        raise Refused(str(unknown("--loss", text, losses(), ", or module:Class")))
    return text


def participation(text: str) -> int | float:
    """Read a number of clients, or a share."""
    name = "--participation"
    if text.strip().isdigit():
        return count(name, low=1)(text)
    return number(name, low=0.0, high=1.0, strict=True)(text)


def partition(text: str) -> tuple[str, Any]:
    """Read NAME or NAME:PARAMETER."""
    name, colon, parameter = text.partition(":")
    choice("--partition", list(PARTITIONS))(name)
    if colon and not parameter:
        raise Refused(str(bad(f"--partition {name}", "be followed by a colon and a number, or by none", repr(text))))
    if not parameter:
        return name, PARTITIONS[name]
    if name == "iid":
        raise Refused(str(bad("--partition iid", "come without a parameter", parameter)))
    return name, (count if name == "shards" else number)(f"--partition {name}")(parameter)


def add_data(parser: argparse.ArgumentParser, title: str = "data") -> Any:
    """Add the options that say how rows become clients; return their group."""
    group = parser.add_argument_group(title)
    add = group.add_argument
    add("--target", metavar="COL", help="column to predict (csv, parquet)")
    add("--client", metavar="COL", help="column that says whose row it is (csv, parquet)")
    add("--domain", metavar="COL", help="column with the domain of a row (csv, parquet)")
    add("--weight", metavar="COL", help="column with the weight of a row (csv, parquet)")
    add("--clients", metavar="K", type=count("--clients", low=1), help="divide the rows among K clients")
    add(
        "--partition",
        metavar="P",
        type=partition,
        help="how: iid, dirichlet[:ALPHA], shards[:PER_CLIENT], similarity[:PERCENT]; "
        "default dirichlet:0.5 (similarity:20 for real targets)",
    )
    add_columns(parser)
    constant = group.add_mutually_exclusive_group()
    constant.add_argument("--no-intercept", action="store_true", help="no constant term (and no centring)")
    constant.add_argument(
        "--penalise-intercept", action="store_true", help="l2 and penalties apply to the constant term too"
    )
    add(
        "--preprocessing",
        metavar="P",
        type=choice("--preprocessing", ["pooled", "federated", "secure"]),
        default="pooled",
        help="categories, medians, means and scales from pooled rows (the default), by sums over clients, or by masked "
        "sums; what was sent is counted",
    )
    add("--no-standardize", action="store_true", help="take the features (and a real target) as they are")
    return group


def add_seed(add: Any) -> None:
    """Add the seed."""
    kind = count("--seed", low=0)
    add("--seed", type=kind, default=0, metavar="S", help="seed of every random choice; default %(default)s")


def add_owners(add: Any) -> None:
    """Add the options that say how tables of several owners belong together."""
    add("--on", metavar="ID", help="join the tables of several owners of columns on this column")
    add("--owner-of-target", metavar="OWNER", help="whose table must have the target (with --on)")


def by_owners() -> list[str]:
    """Return the names of the methods for columns of several owners."""
    return method_names(learns="VERTICAL_MODEL")


def check_owners(args: argparse.Namespace, refused: Sequence[str] = REFUSED) -> None:
    """Refuse options, and what means nothing for owners of columns, before anything is read."""
    given = vars(args).get("given", set())
    away = sorted(name for name in refused if name in given) if args.on is not None or refused != REFUSED else []
    if away:
        option, with_on = away[0].replace("_", "-"), "with" if args.on is not None else "without"
        raise bad(f"--{option}", f"be left out {with_on} --on", f"--{option}", "leave it out")
    if args.on is None:
        if len(args.data) > 1:
            cure = "pass --on ID for tables of several owners over the same rows"
            raise bad("DATA", "be one file", ", ".join(args.data), cure)
        for name, got in (("--owner-of-target", args.owner_of_target), ("--method", args.method)):
            if got is not None and (name != "--method" or got in by_owners()):
                raise bad(f"{name} {got}", "come with --on ID and a table of every owner", "no --on")
        return
    if len(args.data) < 1:
        raise bad("--on", "come with a table of every owner", "none", "fedconvex solve bank.csv shop.csv --on ID")
    if args.target is None:
        raise bad("--on", "come with the column to predict", "none", "pass --target COL")


def add_columns(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how columns are read and what becomes of them."""
    add = parser.add_argument_group("columns (names with commas between them, or the option again)").add_argument
    several: dict[str, Any] = {"action": "append", "metavar": "COL"}
    add("--features", **several, help="columns to use; default all but target, client, domain and weight")
    add("--drop", **several, help="columns to leave out")
    add("--keep", **several, help="columns to use although they look like dates, identifiers, ...; dates become days")
    add("--as-category", **several, help="columns to take as categories, even if they look like numbers")
    add(
        "--missing",
        action="append",
        metavar="COL=VALUE",
        help="what stands for missing cells of a column beside empty ones, such as chol=0",
    )
    add(
        "--impute",
        metavar="HOW",
        type=choice("--impute", ["median", "mode", "indicator"]),
        help="fill missing cells: median (of numbers; the most frequent name), mode, or indicator (median, and a "
        "feature that marks the gaps); default: refuse them",
    )
    add_reading(add)


def add_reading(add: Any) -> None:
    """Add the options that say how a CSV file is read."""
    add("--sep", metavar="C", type=separator, help="what separates cells: a character, or tab; default detected")
    add("--decimal", metavar="C", type=choice("--decimal", [".", ","]), help="decimal mark; default detected")
    add("--encoding", metavar="E", help="of a CSV file, such as cp1252; default UTF-8")


def separator(text: str) -> str:
    """Read what stands between cells: a character, or its name."""
    named = {"tab": "\t", r"\t": "\t", "comma": ",", "semicolon": ";", "space": " ", "bar": "|", "pipe": "|"}
    if text in named or len(text) == 1:
        return named.get(text, text)
    raise Refused(str(bad("--sep", f"be one character, or {', '.join(named)}", repr(text))))


def add_problem(parser: argparse.ArgumentParser, auto: bool = False) -> Any:
    """Add the options that make data a problem; return their group."""
    group = parser.add_argument_group("problem")
    add = group.add_argument
    names = ", ".join(losses())
    add("--loss", type=_loss_name, metavar="LOSS", help=f"{names}, or module:Class of your own; default by target")
    chosen = ", or auto: by cross-validation in folds of every client's rows" if auto else ""
    kind = ridge if auto else number("--l2", low=0.0)
    add("--l2", type=kind, default=0.01, metavar="L2", help=f"ridge weight; default %(default)s{chosen}")
    add(
        "--weights",
        type=choice("--weights", ["size", "uniform"]),
        default="size",
        metavar="W",
        help="client weights: size (n_k/n, the default) or uniform (1/K)",
    )
    return group
