"""The command ``fedconvex look``."""

from __future__ import annotations

import argparse
import json
import textwrap
from typing import Any

from fedconvex.cli.arguments import add_reading
from fedconvex.cli.output import fill, fits, say
from fedconvex.cli.parser import OK


def add_parser(commands: Any) -> None:
    """Add the command."""
    look = commands.add_parser(
        "look",
        description=textwrap.dedent("""\
            Print what is missing, constant or differently coded where: one line per column and client. Nothing is
            fitted, and nothing is written."""),
        epilog=textwrap.dedent("""\
            examples:
              fedconvex look wards.csv --client ward"""),
    )
    look.add_argument("table", metavar="TABLE", help=".csv, .tsv, .parquet, .npz or .svm file")
    add = look.add_argument_group("columns").add_argument
    add("--client", metavar="COL", help="column that says whose row it is; default one client of all rows")
    add_reading(add)
    look.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    look.set_defaults(command=_look)


def _look(args: argparse.Namespace) -> int:
    from fedconvex.cli.input_data import reading_options
    from fedconvex.report.tables import format_table
    from fedconvex.tables import look
    from fedconvex.tables.looking import HEADS

    found = look(args.table, args.client, **reading_options(args))
    if args.json:
        print(json.dumps([one._asdict() for one in found]))
    elif found:
        say(format_table(HEADS, [list(one) for one in found], width=fits()))
    else:
        say(fill("Nothing is missing, constant or differently coded at any client."))
    return OK
