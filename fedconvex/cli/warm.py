"""The command ``fedconvex warm``."""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from fedconvex._check import bad
from fedconvex.cli import solve
from fedconvex.cli.arguments import choice
from fedconvex.cli.output import say
from fedconvex.cli.parser import OK, USER, Parser, Refused
from fedconvex.registry import losses, methods

_WAYS = (  # of working at a client: full steps, batches, single rows; methods that know one way only refuse the others
    (),
    ("--local-steps", "2", "--batch-size", "5"),
    ("--local-steps", "2", "--batch-size", "1"),
)


def add_parser(commands: Any) -> None:
    """Add the command."""
    warm = commands.add_parser(
        "warm",
        description=textwrap.dedent("""\
            Compile what methods need, and keep it on disk, so that first runs do not wait for the compiler.

            Every method solves tiny problems in two rounds, with full steps, batches and single rows. What is compiled
            is kept for this version of the package and this kind of CPU, in a folder that the last line names: run it
            where, and as whom, the package will run, or set NUMBA_CACHE_DIR for both."""),
        epilog=textwrap.dedent("""\
            examples:
              fedconvex warm
              fedconvex warm fedavg scaffold --loss logistic --loss softmax
              NUMBA_CACHE_DIR=/opt/kernels fedconvex warm all --rows both"""),
    )
    add = warm.add_argument
    names = ["all", *methods()]
    add(
        "methods",
        nargs="*",
        type=choice("METHOD", names),
        metavar="METHOD",
        help="all, or as for solve; default fedavg",
    )
    add("--loss", action="append", type=choice("--loss", list(losses())), metavar="LOSS",
        help=f"{', '.join(losses())}; may be repeated; default logistic")  # fmt: skip
    add("--rows", type=choice("--rows", ["dense", "sparse", "both"]), default="dense", metavar="R",
        help="dense (the default), sparse or both")  # fmt: skip
    warm.set_defaults(command=_warm)


def _warm(args: argparse.Namespace) -> int:
    from fedconvex.kernels import cache

    if not cache.folder():
        got = "no such folder, or NUMBA_DISABLE_JIT"
        raise Refused(str(bad("warm", "have a folder for what is compiled", got, "set NUMBA_CACHE_DIR to one")))
    chosen = dict.fromkeys(methods() if "all" in args.methods else args.methods or ["fedavg"])
    kinds, status = ("dense", "sparse") if args.rows == "both" else (args.rows,), OK
    for method in chosen:
        for loss in dict.fromkeys(args.loss or ["logistic"]):
            for kind in kinds:
                with cache.compiling() as compiled:
                    reason = _solved(method, loss, kind)
                what = f"{compiled.functions} functions compiled in {compiled.seconds:.1f} s"
                say(f"{method}, {loss}, {kind} rows: {what if reason is None else 'not compiled: ' + reason}")
                status = OK if reason is None or "all" in args.methods else USER
    say(f"Kept in {cache.folder()}")
    return status


def _solved(method: str, loss: str, kind: str) -> str | None:
    """Solve tiny problems in all ways that the method knows; return why it knows none."""
    parser = Parser(prog="fedconvex")
    solve.add_parser(parser.add_subparsers(parser_class=Parser))
    first: str | None = None
    with tempfile.TemporaryDirectory() as folder:
        data = _written(Path(folder), loss, kind)
        about = ["--clients", "3", "--partition", "iid", "--method", method, "--loss", loss, "--rounds", "2"]
        for number, way in enumerate(_WAYS):
            args = parser.parse_args(["solve", *data, *about, *way])
            try:
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    args.command(args)
            except (Refused, ValueError, TypeError) as error:
                first = " ".join(str(error).split()) if number == 0 else first
    return first


def _written(folder: Path, loss: str, kind: str) -> list[str]:
    """Write sixty rows with five features and a target for the loss; return the arguments that name them."""
    rng = np.random.default_rng(0)
    X, z = rng.normal(size=(60, 5)), rng.normal(size=60)
    y = z if loss == "squared" else np.arange(60) % 3 if loss == "softmax" else np.where(z > 0.0, 1, -1)
    if kind == "sparse":
        path = folder / "rows.svm"
        lines = (
            " ".join([f"{t:g}", *(f"{j + 1}:{x:g}" for j, x in enumerate(row))]) for t, row in zip(y, X, strict=True)
        )
        path.write_text("\n".join(lines) + "\n")
        return [str(path)]
    path = folder / "rows.csv"
    names = ",".join(["y", *(f"x{j}" for j in range(5))])
    np.savetxt(path, np.column_stack([y, X]), delimiter=",", header=names, comments="", fmt="%g")
    return [str(path), "--target", "y"]
