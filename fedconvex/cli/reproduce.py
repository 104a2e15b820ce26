"""The command ``fedconvex reproduce``."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedconvex._check import bad, nearest
from fedconvex._files import check_folder
from fedconvex._progress import progress_line
from fedconvex.cli.arguments import count
from fedconvex.cli.output import fill, fits, resumable, say, writing
from fedconvex.cli.parser import FAILED, OK, stopped


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "reproduce",
        description=textwrap.dedent("""\
            Run an experiment of the literature and write its figures (SVG, PNG), tables (CSV) and claims.json.

            Without NAME: list the experiments. Exit status 1 if a claim fails; --quick leaves open what it is too
            small to decide. After a kill, the same command resumes a long experiment."""),
        epilog=textwrap.dedent("""\
            examples:
              fedconvex reproduce
              fedconvex reproduce scaffold-quadratics
              fedconvex reproduce scaffold-similarity --data mnist.npz --out mnist"""),
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of the experiment; without it they are listed")
    add = parser.add_argument
    add("--data", metavar="FILE", help="data of the experiment, if it takes any")
    add("--out", metavar="DIR", help="folder to write to; default reproduce-NAME")
    add("--quick", action="store_true", help="run a smaller version, which decides bounds and identities only")
    add("--seed", type=count("--seed", low=0), metavar="S", help="seed of every random choice; default 0")
    parser.set_defaults(command=_reproduce)


def _reproduce(args: argparse.Namespace) -> int:
    from fedconvex.papers import EXPERIMENTS
    from fedconvex.papers.finished_parts import number_kept

    if args.name is None:
        _alone(args)
        print("\n".join(lines(EXPERIMENTS)))
        return OK
    if args.name not in EXPERIMENTS:
        raise _unknown(args.name, EXPERIMENTS)
    out = _folder(f"reproduce-{args.name}" if args.out is None else args.out)
    new, parts = not out.is_dir(), out / "parts"
    if number_kept(parts):
        print(f"fedconvex: finished parts of an earlier run in {parts} are used where they fit", file=sys.stderr)
    try:
        with resumable(parts, lambda: number_kept(parts) > 0):
            return _carried_out(args, out, parts)
    except KeyboardInterrupt as stop:
        word, status = stopped(stop)
        done = number_kept(parts)
        cure = f"; the same command goes on from its {done} finished parts" if done else ""
        print(f"\nfedconvex: {word}: files of an unfinished experiment are not written{cure}", file=sys.stderr)
        return status
    finally:
        if new:
            with suppress(OSError):  # there is something in it
                out.rmdir()


def _carried_out(args: argparse.Namespace, out: Path, parts: Path) -> int:
    """Run the experiment, write its files, and return the exit status."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    from fedconvex.papers import EXPERIMENTS, summary

    began = time.perf_counter()
    with threadpool_limits(1, "blas"):  # threads that wait for each other on a busy machine took fifteen times as long
        found = EXPERIMENTS[args.name].run(
            quick=args.quick, seed=args.seed or 0, data=args.data, progress=progress_line(), parts=parts
        )
    args.status = OK if found.holds else FAILED
    with writing(_written(found, out, parts)) as files:
        say(summary(found))
        if "table" in found.tables:
            say("\n".join(["Table:", _table(found.tables["table"])]))
    say(f"Wrote {len(files)} files to {out} after {time.perf_counter() - began:.0f} s.")
    return int(args.status)


def _written(found: Any, out: Path, parts: Path) -> Iterator[Path]:
    """Write the files, then remove the finished parts, and yield the names."""
    from fedconvex.papers import write

    files = write(found, out)
    shutil.rmtree(parts, ignore_errors=True)
    yield from files


def lines(experiments: Mapping[str, Any]) -> Iterator[str]:
    """Yield a paragraph for every experiment: name, one line, the data it takes."""
    for name, experiment in experiments.items():
        data = f"--data: {experiment.data}" if experiment.data else "draws or defines its own data"
        body = f"{experiment.description} ({data})"
        yield fill(body, f"    {name:<27}", 31)


def _unknown(name: str, experiments: Mapping[str, Any]) -> ValueError:
    """Return the error of a name that is none; the file of an experiment, agnostic_adult of afl-adult, may be meant."""
    files = {e.study.__module__.split(".")[-1].replace("_", "-"): known for known, e in experiments.items()}
    cure = nearest(name, {**files, **dict.fromkeys(experiments)})
    meant = cure.removeprefix("did you mean ").removesuffix("?")
    cure = cure if meant in experiments or not cure else f"did you mean {files[meant]}?"
    return bad("reproduce: NAME", "be one of " + ", ".join(experiments), repr(name), cure)


def _alone(args: argparse.Namespace) -> None:
    """Refuse options that have no experiment."""
    given = [("--data", args.data), ("--out", args.out), ("--quick", args.quick), ("--seed", args.seed is not None)]
    extra = [name for name, value in given if value]
    if extra:
        raise bad("reproduce", "be given the NAME of an experiment along with options", " ".join(extra))


def _folder(out: str) -> Path:
    """Return the folder, after finding out that figures can be drawn and written there: a run may take long."""
    from fedconvex.papers.style import blank

    blank()
    if out and "\0" not in out and not Path(out).absolute().parent.is_dir():
        raise bad("--out", "be a folder, or a new one in an existing folder", out)
    return check_folder("--out", out)


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of text, numbers to the right."""
    from fedconvex.report.tables import aligned

    head = list(rows[0])
    text = [isinstance(rows[0][key], str) and not _number(rows[0][key]) for key in head]
    return aligned(head, [[_cell(row[key]) for key in head] for row in rows], text, "  ", fits())


def _cell(value: Any) -> str:
    """Return a number with four digits, nothing for one that does not exist, and anything else as it is."""
    if not isinstance(value, float):
        return str(value)
    return "" if value != value else f"{value:.4g}"


def _number(text: str) -> bool:
    return not text or text[0].isdigit() or text[0] in "+-."
