"""The command ``fedconvex compare``."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedconvex._check import bad, nearest
from fedconvex.cli.arguments import add_columns, add_owners, add_seed, check_owners, choice, count, number, partition
from fedconvex.cli.input_data import raw
from fedconvex.cli.next_command import next_command
from fedconvex.cli.output import fill, fits, say, writing
from fedconvex.cli.parser import OK, Refused
from fedconvex.comparison import contenders as models

if TYPE_CHECKING:
    from fedconvex.comparison import Comparison

_OF_CLIENTS = (  # what means nothing for owners of columns
    "client", "clients", "partition", "domain", "methods", "test_size", "local_steps", "rounds", "gap", "min_rows",
    "report", "splits", "save",
)  # fmt: skip
METHODS = ", ".join(name for name in models.METHODS if name not in ("base rate", "alone"))


def add_parser(commands: Any) -> None:
    """Add the command."""
    compare = commands.add_parser(
        "compare",
        description=textwrap.dedent("""\
            Compare one model for all clients, one that is fair to the worst, models per client, and every client
            alone, on rows of every client that the models were not fitted to.

            DATA is a .csv, .tsv, .parquet, .svm (svmlight) or .npz file, or the name of a data set that comes with
            scikit-learn. Without DATA: breast_cancer, divided unevenly among ten clients.

            With --on, the files are tables of owners of different columns of the same rows: compared are models with
            the columns of all, without those of each partner, and of the owner of the target alone."""),
        epilog=textwrap.dedent("""\
            examples:
              fedconvex compare
              fedconvex compare wards.csv --target ill --client ward --report decision
              fedconvex compare bank.csv shop.csv --on customer --target default --owner-of-target bank
              fedconvex compare wards.csv --target ill --client ward --methods pooled,afl --drop patient"""),
    )
    compare.add_argument("data", nargs="*", metavar="DATA", help="file or bundled data set; see above")
    add = compare.add_argument_group("data").add_argument
    add_owners(add)
    add("--target", metavar="COL", help="column to predict")
    add("--client", metavar="COL", help="column that says whose row it is")
    add("--domain", metavar="COL", help="column with the domain of a row, to which afl is fair; default the client")
    add("--clients", metavar="K", type=count("--clients", low=1), help="divide the rows among K clients")
    add(
        "--partition", metavar="P", type=partition, help="how: iid, dirichlet[:ALPHA], shards[:N], similarity[:PERCENT]"
    )
    add_columns(compare)
    add = compare.add_argument_group("comparison").add_argument
    add("--methods", metavar="M", help=f"some of {METHODS}, with commas; default all but newton and boosting")
    add("--loss", type=choice("--loss", models.LOSSES), metavar="LOSS", help=", ".join(models.LOSSES))
    add("--test-size", metavar="S", type=number("--test-size", low=0.0, strict=True), default=models.TEST_SIZE,
        help="share of every client's rows that is held out; default %(default)s")  # fmt: skip
    add("--splits", metavar="N", type=_splits, help="how often rows are divided: 1, or a multiple of 1/S, so that all "
        "rows are held out equally often; default 8, 4 or 1, the fewer the more work")  # fmt: skip
    add("--folds", metavar="K", type=count("--folds", low=2), default=models.FOLDS,
        help="folds to validate on; default %(default)s")  # fmt: skip
    add("--local-steps", metavar="N", type=count("--local-steps", low=1), default=models.LOCAL_STEPS,
        help="local steps a round; default %(default)s")  # fmt: skip
    add("--rounds", metavar="N", type=count("--rounds", low=1), default=models.ROUNDS,
        help="limit on the rounds; default %(default)s")  # fmt: skip
    add("--gap", metavar="G", type=number("--gap", low=0.0, strict=True), default=models.GAP,
        help="gap up to which rounds and bytes are counted; default %(default)s")  # fmt: skip
    add("--min-rows", metavar="N", type=count("--min-rows", low=2), default=models.MIN_ROWS,
        help="fewest held-out rows for a verdict on a client; default %(default)s")  # fmt: skip
    add("--l2", metavar="L2", type=number("--l2", low=0.0, strict=True), default=0.01,
        help="ridge weight with --on, where it is not tuned; default %(default)s")  # fmt: skip
    add_seed(add)
    add = compare.add_argument_group("output").add_argument
    add("--report", metavar="DIR", help="write a page, index.html, into this folder")
    add("--save", metavar="DIR", help="write the model of the decision, fitted to all rows: model.npz and model.json")
    add("--json", action="store_true", help="print one JSON object instead of the tables")
    compare.set_defaults(command=_compare, weight=None, method=None, no_intercept=False)


def _splits(text: str) -> int | None:
    return None if text == "auto" else count("--splits", low=1)(text)


def _compare(args: argparse.Namespace) -> int:
    refused = ("l2",) if args.on is None else _OF_CLIENTS
    check_owners(args, refused)
    if args.on is not None:
        from fedconvex.cli.vertical import compared

        return compared(args)
    args.data = args.data[0] if args.data else None
    if args.test_size >= 1.0:
        raise bad("--test-size", "lie strictly between 0 and 1", args.test_size)
    if args.report is not None:
        from fedconvex.report.drawings import check_folder

        check_folder(args.report)
    if args.save is not None:
        from fedconvex._files import check_folder as check_place

        check_place("--save", args.save)
    from fedconvex.comparison.comparing import checked_settings, compare_rows
    from fedconvex.comparison.documents import document
    from fedconvex.comparison.intake import rows_of_table

    methods = None if args.methods is None else [m.strip() for m in args.methods.split(",")]
    strange = [m for m in methods or () if m not in models.METHODS]
    if strange:
        raise Refused(str(bad("--methods", f"be some of {METHODS}", strange[0], nearest(strange[0], models.METHODS))))
    data = raw(args)
    rows = rows_of_table(data.frame, data.columns, data.loss, data.title, data.clients)
    given = (args.test_size, args.folds, args.local_steps, args.rounds, args.gap, args.min_rows, 0.95, args.seed)
    found = compare_rows(rows, checked_settings(rows, methods, *given, args.splits))
    with writing(_page(args, found)) as files:
        if args.json:
            whole = {**document(found), "next": next_command(args, found) or None}
            print(json.dumps(whole, allow_nan=False))
        else:
            say(_summary(found, data.origin, files, next_command(args, found)))
    return OK


def _page(args: argparse.Namespace, found: Comparison) -> Iterator[str]:
    if args.report is not None:
        yield str(found.report(args.report))
    if args.save is not None:
        found.save(args.save)
        yield from (str(Path(args.save) / name) for name in ("model.npz", "model.json"))


def _summary(found: Comparison, origin: str, files: list[str], following: str) -> str:
    """Return what is printed: the decision, what follows from it, methods, clients, and notes."""
    rows, splits = found.rows, sum(map(len, found.splits))
    held = f"{int(found.test_rows.sum()):,} held out" + (f", in {splits} splits" if splits > 1 else "")
    lines = [
        fill(f"{rows.title}: {rows.y.size:,} rows of {rows.K} clients ({origin}), {held}"),
        "",
        *(fill(sentence) for sentence in found.sentences),
        "",
        *([f"next: {following}", ""] if following else []),
        found.table(fits()),
        "",
        found.client_table(fits()),
        "",
        *([columns, ""] if (columns := found.column_table(fits())) else []),
        *(fill(note, indent=2) for note in found.notes),
    ]
    lines += [f"written: {', '.join(files)}"] if files else [fill("--report DIR writes a page with figures.")]
    return "\n".join(lines)
