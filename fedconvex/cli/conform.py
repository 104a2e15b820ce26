"""The command ``fedconvex conform``."""

from __future__ import annotations

import argparse
import sys
import textwrap
from dataclasses import replace
from importlib import import_module
from typing import Any

from fedconvex._check import bad, unknown
from fedconvex._files import check_file, write_file
from fedconvex._progress import progress_line
from fedconvex.cli.arguments import number
from fedconvex.cli.output import fill, say, writing
from fedconvex.cli.parser import FAILED, OK, Refused


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "conform",
        description=textwrap.dedent("""\
            Find out which published algorithm an implementation computes, by exams on tiny federations.

            module:train is a function train(clients, hyper, rounds) that returns the model after every round; clients
            is a list of (X, y), hyper a dictionary. Without it: list the families and what hyper holds. Exit status 1
            if no reading matches, if what matches holds an error, or if a check fails; with --expect, if it is not
            what was expected."""),
        epilog=textwrap.dedent("""\
            examples:
              fedconvex conform
              fedconvex conform mymodule:train --family fedavg
              fedconvex conform mymodule:train --family fedavg --expect published
              fedconvex conform mymodule:train --family scaffold --json scaffold.json"""),
    )
    add = parser.add_argument
    add("train", nargs="?", metavar="module:train", help="what to examine, from this folder or installed")
    add("--family", metavar="F", help="family of the algorithm that it should be; list: fedconvex conform")
    add("--tol", metavar="T", type=number("--tol", low=0.0, strict=True),
        help="largest relative difference that counts as equal; default 1e-9, in single precision 3e-5")  # fmt: skip
    add("--expect", metavar="E", help='"published", or how it is meant to differ, such as "weights=1/K,last '
        'batch=dropped": exit status 1 for anything else')  # fmt: skip
    add("--limit", metavar="SECONDS", type=number("--limit", low=0.0, strict=True),
        help="longest time that a call of it may take; default no limit")  # fmt: skip
    add("--json", metavar="FILE", help="also write the answer as JSON")
    parser.set_defaults(command=_conform)


def _conform(args: argparse.Namespace) -> int:
    from fedconvex.conformance import FAMILIES, conform
    from fedconvex.conformance.expectations import expected, unmet

    if args.train is None:
        if args.family or args.json or not args.tol is args.expect is args.limit is None:
            raise bad("conform", "be given module:train along with options", "options alone")
        _list(FAMILIES)
        return OK
    if args.family is None:
        raise Refused("--family must be given: what the implementation should be; fedconvex conform lists all")
    if args.family not in FAMILIES:
        raise unknown("--family", args.family, FAMILIES)
    if args.json is not None:
        check_file("--json", args.json)
    if args.expect is not None:
        expected(args.family, args.expect)
    found = conform(_imported(args.train), args.family, tol=args.tol, limit=args.limit, progress=progress_line())
    found = replace(found, train=args.train)
    missed = () if args.expect is None else unmet(found, args.expect)
    args.status = OK if (found.conforms if args.expect is None else not missed) else FAILED
    files = [] if args.json is None else [args.json]
    content = f"{found.to_json()}\n".encode()
    with writing(map(write_file, files, [content] * len(files))):
        say(str(found))
        for line in missed:
            say(f"Not as expected: {line}.")
    return int(args.status)


def _imported(name: str) -> Any:
    """Return what module:train names, also from this folder."""
    module, colon, attribute = name.partition(":")
    if not (colon and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise bad("conform: module:train", "be a module and a function in it, with a colon between", name)
    sys.path.insert(0, "")
    try:
        return getattr(import_module(module), attribute)
    except (Exception, SystemExit) as error:  # the module is the user's, and may raise anything
        why = str(error) if isinstance(error, (ImportError, AttributeError)) else repr(error)
        raise bad("conform: module:train", "be what can be imported", name, why) from None
    finally:
        sys.path.remove("")


def _list(families: Any) -> None:
    """Print the families and the hyper-parameters that their exams give."""
    from fedconvex.conformance.exams import DEFAULTS

    print("Families")
    for name, family in families.items():
        knows = f"; hyper: {', '.join(family.knows)}" if family.knows else ""
        print(fill(f"{family.title} ({family.source}){knows}", f"    {name:<15}", 19))
    special = {n for family in families.values() for n in family.knows} | {"radius"}
    print(fill(", ".join(n for n in DEFAULTS if n not in special), "Hyper-parameters of all: ", 4))
