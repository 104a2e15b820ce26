"""The command ``fedconvex predict``."""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedconvex._check import bad
from fedconvex._files import check_file, csv_text, write_file
from fedconvex.cli.arguments import add_reading, choice
from fedconvex.cli.output import fits, say
from fedconvex.cli.parser import OK

if TYPE_CHECKING:
    from fedconvex.tables import Frame

_NOBODY = "(no client)"


def add_parser(commands: Any) -> None:
    """Add the command."""
    predict = commands.add_parser(
        "predict",
        description=textwrap.dedent("""\
            Predict raw rows with a model that solve --save wrote. Columns are found by their names, in any order;
            columns that the model does not use are ignored, and missing ones are named and refused.

            A category that no training row had counts as none of them (its one-hot columns are zero), and a client
            without a model of its own gets the mean of all models, unless --unknown refuse; both are reported. Models
            for all clients, and ensembles, need no client."""),
        epilog=textwrap.dedent("""\
            examples:
              fedconvex solve wards.csv --target ill --client ward --save model
              fedconvex predict model new.csv
              fedconvex predict model new.csv --proba --out predictions.csv
              fedconvex predict model bank.csv shop.csv --on customer"""),
    )
    predict.add_argument("model", metavar="MODEL", help="folder of a saved model (or its model.json)")
    predict.add_argument("rows", metavar="ROWS", nargs="+", help=".csv, .tsv, .parquet, .npz or .svm file")
    add = predict.add_argument_group("rows").add_argument
    add("--on", metavar="ID", help="join the tables of several owners of columns on this column")
    add_reading(add)
    add("--client", metavar="COL", help="column with the client, for a model per client; default as in training")
    add("--unknown", metavar="RULE", type=choice("--unknown", ["mean", "refuse"]),
        help="clients without a model of their own: mean, of all models (the default), or refuse")  # fmt: skip
    add = predict.add_argument_group("output").add_argument
    add("--proba", action="store_true", help="write the probability of every class too")
    add("--out", metavar="FILE", help="write a CSV file there; default to the terminal")
    predict.set_defaults(command=_predict)


def _predict(args: argparse.Namespace) -> int:
    from fedconvex.cli.input_data import reading_options
    from fedconvex.cli.vertical import owners_of
    from fedconvex.tables import read_frame
    from fedconvex.tables.joining import joined

    if args.out is not None:
        check_file("--out", args.out)
    if len(args.rows) > 1 and args.on is None:
        cure = "pass --on ID for tables of several owners over the same rows"
        raise bad("ROWS", "be one file", ", ".join(args.rows), cure)
    model = _model(Path(args.model))
    if model.columns is None:
        raise bad(args.model, "be a model of a table", "one of arrays without names", "predict with it in Python")
    text = model.columns.text | {name for name in (args.client, args.on) if name is not None}
    options = reading_options(args)
    files = {owner: read_frame(file, text=text, **options) for owner, file in owners_of(args.rows).items()}
    found = None if args.on is None else joined(files, args.on)
    frame = next(iter(files.values())) if found is None else found.frame
    clients = _clients(args, model, frame)
    header, columns = _columns(args, model, frame, clients)
    if found is not None:
        header[0], columns[0] = args.on, found.ids.tolist()
    _notes(model, frame, clients, found)
    sheet = csv_text([header, *zip(*columns, strict=True)])
    if args.out is None:
        sys.stdout.write(sheet)
    else:
        write_file(Path(args.out), sheet.encode())
        say(f"Wrote {frame.n:,} predictions to {args.out}.")
    return OK


def _model(folder: Path) -> Any:
    """Return the model of a folder, whatever kind it is."""
    from fedconvex._model_files import kind_of
    from fedconvex.models import LinearModel
    from fedconvex.problems import EnsembleModel

    folder = folder.parent if folder.name in ("model.json", "model.npz") else folder
    kind = kind_of("MODEL", folder)
    return EnsembleModel.load(folder) if kind == "ensemble" else LinearModel.load(folder)


def _clients(args: argparse.Namespace, model: Any, frame: Frame) -> np.ndarray | None:
    """Return whose rows they are, for a model per client."""
    if model.clients is None:
        for option in ("client", "unknown"):
            if getattr(args, option) is not None:
                got = f"{getattr(args, option)} for one model of all"
                raise bad(f"--{option}", "be given for a model per client", got)
        return None
    name = model.columns.name_of("client") if args.client is None else args.client
    if name in frame.names:
        gaps = frame.missing(name)
        if gaps.any():
            got = f"{int(gaps.sum())} missing, the first in row {int(np.argmax(gaps)) + 1}"
            raise bad(frame.origin, f"name the client of every row in the column {name!r}", got)
        clients = frame.text(name).astype(str)
    elif args.client is None and args.unknown == "mean":
        clients = np.full(frame.n, _NOBODY)  # nobody's name: the mean of all models, as was asked
    else:
        column = "a column with the client" if name is None else f"the client column {name!r}"
        cure = "name another with --client COL, or take --unknown mean: the mean of all models for every row"
        raise bad(frame.origin, f"have {column}", f"columns {', '.join(frame.names)}", cure)
    strange = model.unknown_clients(clients)
    if strange and args.unknown == "refuse":
        listed = ", ".join(map(str, strange[:10])) + (", ..." if len(strange) > 10 else "")
        cure = "leave these rows out, or take --unknown mean"
        raise bad(frame.origin, "have rows of clients with a model only (--unknown refuse)", listed, cure)
    return clients


def _columns(
    args: argparse.Namespace, model: Any, frame: Frame, clients: np.ndarray | None
) -> tuple[list[str], list[list[Any]]]:
    """Return header and columns of what is written; numbers are written so that they are read back bit for bit."""
    header, columns = ["row", "prediction"], [list(range(1, frame.n + 1)), model.predict(frame, clients).tolist()]
    if args.proba:
        p = model.predict_proba(frame, clients)
        header += [f"P({label})" for label in model.classes or ()]
        columns += [column.tolist() for column in p.T]
    return header, columns


def _whose(model: Any, frame: Frame) -> np.ndarray | None:
    """Return whose row it is, where the rows have the column of clients, complete."""
    name = model.columns.name_of("client")
    known = name in frame.names and not frame.missing(name).any()
    return frame.text(name).astype(str) if known else None


def _notes(model: Any, frame: Frame, clients: np.ndarray | None, found: Any) -> None:
    """Say what was ignored, what is missing where, which clients got the mean of all models, which ids stand alone."""
    from fedconvex.report.tables import format_table
    from fedconvex.tables.looking import HEADS, feature_findings

    about = getattr(model, "about", {})
    if about.get("status", "CONVERGED") != "CONVERGED":
        gap = about.get("gap")
        within = "no bound of its distance from the optimum" if gap is None else f"F within {gap:.3g} of the least"
        say(f"fedconvex: note: the run that made this model ended with {about['status']}, {within}", sys.stderr)
    for line in str(found).split("\n") if found is not None else ():
        say(f"fedconvex: note: {line}", sys.stderr)
    known = {c.name for c in model.columns.columns}
    ignored = [name for name in frame.names if name not in known]
    if ignored:
        say(f"fedconvex: note: ignored what the model does not know: {', '.join(ignored)}", sys.stderr)
    gaps = [one for one in feature_findings(model.columns, frame, _whose(model, frame)) if one.missing]
    if gaps:
        table = format_table(HEADS[:4], [list(one[:4]) for one in gaps], width=fits())
        say(f"fedconvex: note: missing cells, filled as in training:\n{table}", sys.stderr)
    strange = [] if clients is None else model.unknown_clients(clients)
    if strange == [_NOBODY]:
        say("fedconvex: note: the mean of all models stands for every row", sys.stderr)
    elif strange:
        shown = ", ".join(map(str, strange[:10])) + (", ..." if len(strange) > 10 else "")
        say(f"fedconvex: note: the mean of all models stands for unknown clients: {shown}", sys.stderr)
