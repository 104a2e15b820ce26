"""The command ``fedconvex bench``."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import Any

from fedconvex._check import ROUNDS
from fedconvex._progress import progress_line
from fedconvex.cli.arguments import count, number
from fedconvex.cli.output import fill, fits, say, writing
from fedconvex.cli.parser import FAILED, OK, Refused


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "bench",
        description=textwrap.dedent("""\
            Run solvers on the problems of a suite, and say what each target of the certified gap costs them.

            A solver of your own is module:Class with fedconvex's three functions, module:method with its settings, or
            module:function of (arrays, settings, rounds) that yields a model per round. Exit status 1 if a solver
            breaks a rule."""),
        epilog=textwrap.dedent("""\
            examples:
              fedconvex bench mymod:Solver
              fedconvex bench --suite standard --solvers all --steps both --out standard
              fedconvex bench mymod:solve --suite mine.toml --target 1e-4,1e-8 --solvers fedavg,scaffold"""),
    )
    parser.add_argument("solver", nargs="*", metavar="module:Solver", help="solvers of your own, or names")
    add = parser.add_argument
    add("--suite", default="first", metavar="S",
        help="first (the default), small, standard, book, agnostic, multitask or FILE.toml")  # fmt: skip
    add("--book", metavar="FILE.npz", help="book of problems, in the place of the suite; see fedconvex book")
    add("--solvers", metavar="NAMES", help="solvers to compare with: names separated by commas, all, or none")
    add(
        "--target",
        metavar="GAPS",
        help="certified gaps; default 1e-3,1e-6,1e-9, and 0.1,0.01,0.001 of the loss on held-out rows",
    )
    add("--steps", default="theory", metavar="HOW", help="step sizes: theory (the default), tuned or both")
    add(
        "--rounds",
        type=count("--rounds", low=1),
        default=ROUNDS,
        metavar="T",
        help="largest number of rounds; default %(default)s",
    )
    add("--seeds", type=count("--seeds", low=1), default=3, metavar="N",
        help="seeds of randomised solvers; default %(default)s")  # fmt: skip
    add("--repeats", type=count("--repeats", low=1), default=3, metavar="N",
        help="repetitions, of which the fastest counts; default %(default)s")  # fmt: skip
    add("--trial", type=count("--trial", low=1), default=8, metavar="T",
        help="rounds of the first trial of each step size, where steps are tuned; default %(default)s")  # fmt: skip
    add("--limit", type=number("--limit", low=0.0, strict=True), default=300.0, metavar="SECONDS",
        help="time limit for one solver, problem and seed; default %(default)g")  # fmt: skip
    add("--jobs", type=count("--jobs", low=1), default=1, metavar="N",
        help="processes; default %(default)s, for steady seconds")  # fmt: skip
    _add_conditions(add)
    add(
        "--data",
        metavar="DIR",
        help="a folder with a9a.npz, w8a.npz, adult.npz, mnist.npz or har21.npz, added to the suite",
    )
    add(
        "--out",
        metavar="DIR",
        default="bench",
        help="folder of results, from which an interrupted run resumes; default bench",
    )
    add("--report", action="store_true", help="write index.html there too")
    parser.set_defaults(command=_bench, resumed=_kept)


def _add_conditions(add: Any) -> None:
    """Add the options of conditions."""
    add("--participation", type=number("--participation", low=0.0, strict=True), metavar="M",
        help="clients that take part in a round: a share up to 1, or a number; default as methods have it")  # fmt: skip
    add("--network", metavar="LINKS",
        help="add modelled seconds: latency=0.1,up=1e5, or others of down, row, slowest, spread")  # fmt: skip
    add("--lost", type=number("--lost", low=0.0, high=0.99), default=0.0, metavar="P",
        help="probability that a client's answer is lost; default %(default)g")  # fmt: skip
    add("--noise", type=number("--noise", low=0.0), default=0.0, metavar="S",
        help="normal noise on answers, over their root mean square; default %(default)g")  # fmt: skip
    add("--held-out", type=number("--held-out", low=0.0, high=0.9), default=0.0, metavar="SHARE",
        help="set rows aside: targets are how much their loss exceeds that of the optimum, as a share")  # fmt: skip


def _bench(args: argparse.Namespace) -> int:
    from fedconvex.bench import bench
    from fedconvex.bench.answers import answers
    from fedconvex.bench.written_tables import failures, fairness, left_out, notes_table, offence_table, summary_table
    from fedconvex.report.tables import aligned

    if args.report:
        from fedconvex.report.drawings import check_folder

        check_folder(args.out)
    board = bench(
        args.solver,
        suite=args.book or args.suite,
        against=_names(args.solvers),
        targets=None if args.target is None else _targets(args.target),
        rounds=args.rounds,
        seeds=args.seeds,
        steps=args.steps,
        data=args.data,
        folder=args.out,
        jobs=args.jobs,
        repeats=args.repeats,
        limit=args.limit,
        trial=args.trial,
        conditions=_conditions(args),
        progress=progress_line(),
    )
    wrong = offence_table(board)
    args.status = FAILED if wrong else OK
    with writing(iter(_written(board, args))) as files:
        for line in answers(board):
            say(fill(line, "", 2))
        for kind in dict.fromkeys(board.classes[s] for s in board.ranked):
            heads, rows = summary_table(board, kind)
            say(f"\nMean ranks of {kind} solvers (1 is best), and problems on which targets were met")
            say(aligned(heads, rows, [True] + [False] * (len(heads) - 1), "  ", fits()))
        for line in failures(board):
            say(fill(line, "  ", 4))
        if kept := sum(c.stored for c in board.cells):
            say(fill(f"{kept} of {len(board.cells)} cells are from {args.out}, of an earlier run", "  ", 4))
        for line in left_out(board):
            say(fill(line, "  ", 4))
        for solver, where, how in notes_table(board):
            say(fill(f"{solver}, {where}: {how}", "  ? ", 4))
        for solver, how in board.placed.items():
            say(fill(f"{solver} is ranked with pooled solvers ({how})", "  ? ", 4))
        for solver, what, how in wrong:
            say(fill(f"{solver} {what} ({how})", "  ! ", 4))
        say("\n".join(["", "Rules", *(fill(line, "  ", 4) for line in fairness(board)), ""]))
    say(f"Wrote {len(files)} files to {args.out}.")
    return int(args.status)


def _conditions(args: argparse.Namespace) -> Any:
    from fedconvex.bench.channel import Channel
    from fedconvex.bench.conditions import Conditions, network_of

    share = args.participation
    if share is not None and share > 1.0 and share != int(share):
        raise Refused(f"--participation must be a share up to 1 or a whole number; got {share:g}")
    network = None if args.network is None else network_of("--network", args.network)
    clients = share if share is None or share <= 1.0 else int(share)
    return Conditions(clients, network, Channel(args.lost, args.noise), args.held_out)


def _kept(args: argparse.Namespace) -> str:
    """Say what there is of a run that was stopped, wherever it was."""
    cells = sum(1 for _ in Path(args.out, "cells").glob("*.json"))
    if not cells:
        return "no cell was finished, nothing was saved"
    return f"finished cells stand in {args.out}, {cells} with those of other suites; repeat the command to go on"


def _written(board: Any, args: argparse.Namespace) -> Any:
    """Yield the files as they are written."""
    from fedconvex.bench.written_tables import write_files

    yield from write_files(board, args.out)
    if args.report:
        from fedconvex.bench.board_page import write_page

        yield write_page(board, args.out)


def _names(text: str | None) -> Any:
    if text is None or text == "all":
        return text
    return [] if text == "none" else [name.strip() for name in text.split(",") if name.strip()]


def _targets(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise Refused(f"--target must be numbers with commas between them; got {text!r}") from None
