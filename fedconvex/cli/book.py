"""The command ``fedconvex book``."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from fedconvex._files import check_file
from fedconvex.cli.output import fits, say
from fedconvex.cli.parser import OK, Refused


def add_parser(commands: Any) -> None:
    """Add the command."""
    book = commands.add_parser(
        "book",
        description=textwrap.dedent("""\
            Write a book of problems with certified optima and exact constants, or check one.

            A book is an .npz file without pickles that NumPy and JSON read without this package (docs/book.md).
            Checking recomputes the digest of all rows, and the value and the certified gap of every optimum; what does
            not agree is refused with exit status 2."""),
        epilog=textwrap.dedent("""\
            examples:
              fedconvex book --suite small --out small.npz
              fedconvex book small.npz
              fedconvex bench --book small.npz"""),
    )
    book.add_argument("file", nargs="?", metavar="FILE.npz", help="book to check")
    book.add_argument("--suite", metavar="S", help="suite to write, as for fedconvex bench; book has 61 problems")
    book.add_argument("--out", metavar="FILE.npz", help="file to write")
    book.set_defaults(command=_book)


def _book(args: argparse.Namespace) -> int:
    from fedconvex.bench import read_book, suite, write_book
    from fedconvex.report.tables import aligned

    if (args.file is None) == (args.suite is None) or (args.suite is None) != (args.out is None):
        raise Refused("book must be given a FILE.npz to check, or --suite and --out to write one")
    if args.suite is not None:
        check_file("--out", args.out)
        write_book(suite(args.suite), args.out)
    entries = read_book(args.file or args.out)
    rows = [[e.name, str(e.federation.K), str(e.federation.n), str(e.federation.d), f"{e.gap:.1e}"] for e in entries]
    say(aligned(["problem", "clients", "rows", "columns", "gap"], rows, [True, False, False, False, False], "", fits()))
    worst = max(entries, key=lambda e: e.gap)
    say(f"{len(entries)} problems agree with their digests and optima; the largest certified gap is {worst.gap:.1e}.")
    return OK
