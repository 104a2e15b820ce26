"""The command line: one file a command.

Nothing slow is imported before a command needs it, so that ``--help`` and ``--version`` answer at once. Exit status: 0
for a run that converged or used up its rounds and for theorems and claims that hold, 1 for a violated theorem or a
failed claim, 2 for bad input, 3 for a run that diverged, 4 for theorems of which none is violated but some could not be
decided, 70 for an error of the program itself, 130 for Ctrl-C, 143 for SIGTERM. A reader who leaves early does not
change it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from fedconvex import __version__
from fedconvex._progress import command
from fedconvex.cli.parser import CRASHED, OK, USER, Parser, Refused, Terminated, stopped

__all__ = ["main"]

COMMANDS = {  # what each does, in the order of --help; its file has its name
    "solve": "fit a model to federated data, with a certified distance to the optimum",
    "sweep": "run a method over a grid of settings and seeds, and keep all traces as one table",
    "compare": "whether clients should join: one model, a fair one, one per client, or every client alone",
    "look": "what is missing, constant or differently coded where in a table",
    "analyse": "coefficients with standard errors, tests and intervals, from sums over clients",
    "study": "the same for sites that keep their rows: agree, check, join, serve",
    "predict": "predict new rows with a saved model",
    "verify": "check published theorems against what runs do, and against the exact worst case",
    "bench": "compare solvers, your own among them, by certified gaps: rounds, floats, passes and seconds",
    "book": "write or check a book of problems with certified optima, for other programs too",
    "conform": "find out which published algorithm an implementation computes",
    "reproduce": "run an experiment from the literature again, beside the theory, and check its claims",
    "list": "list what there is: losses, methods, optimisers, sampling schemes, data, theorems, experiments",
    "warm": "compile kernels ahead of use, for container images and clusters",
}
_WRITTEN = {"out", "csv", "latex", "json", "plot", "heat_map", "best_plot"}  # options that name files
_NAMES = {"target", "client", "domain", "weight", "features", "drop", "keep", "loss", "method"}  # that name none


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; default those of the process.

    Examples
    --------
    >>> from fedconvex.cli import main
    >>> main(["solve", "breast_cancer", "--clients", "1"])  # the message goes to stderr
    2
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # terminals that lack a character
    args, heard = argparse.Namespace(status=OK), threading.Event()
    try:
        given = sys.argv[1:] if argv is None else list(argv)
        given = given[1:] if given[:1] == ["--"] else given
        _parser(given[0] if given else "").parse_args(given, args)
        _overwrites(args)
        with command(), _listening(heard), warnings.catch_warnings():
            warnings.showwarning = _show_warning  # type: ignore[assignment]
            args.status = args.command(args)
        if sys.stdout is not None:  # closed by the caller: nothing can be printed, all else is done
            sys.stdout.flush()
    except KeyboardInterrupt as stop:
        return _interrupted(args, stop)
    except BrokenPipeError:  # the reader of our output has left, as in "fedconvex list | head"
        _silence()
        return int(args.status)
    except Exception as error:
        return _interrupted(args, KeyboardInterrupt()) if heard.is_set() else _failed(error)
    return int(args.status)


def _overwrites(args: argparse.Namespace) -> None:
    """Raise ValueError if a file that is to be written is one that is read: a table would be gone."""
    from fedconvex._check import bad

    for option in _WRITTEN & vars(args).keys():
        file = vars(args)[option]
        if not isinstance(file, str) or not os.path.isfile(file):
            continue
        for other, given in vars(args).items():
            if other in _WRITTEN | _NAMES:
                continue
            texts = given if isinstance(given, list) else [given]
            names = [n for t in texts if isinstance(t, str) for n in (t, t.partition("=")[2])]
            if any(os.path.isfile(name) and os.path.samefile(file, name) for name in names):
                raise bad(f"--{option.replace('_', '-')}", "be another file than is read", file, "name a new file")


@contextmanager
def _listening(heard: threading.Event) -> Iterator[None]:
    """Note Ctrl-C and SIGTERM: raised in a callback of the compiler they are lost, and compiling fails oddly."""

    def hear(number: int, frame: Any) -> None:
        heard.set()
        if number == signal.SIGTERM:
            raise Terminated
        signal.default_int_handler(number, frame)

    usual: dict[Any, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    main = threading.current_thread() is threading.main_thread()
    ours = [s for s, handler in usual.items() if main and signal.getsignal(s) == handler]  # others' handlers stay
    for s in ours:
        signal.signal(s, hear)
    try:
        yield
    finally:
        for s in ours:
            signal.signal(s, usual[s])


def _interrupted(args: argparse.Namespace, stop: KeyboardInterrupt) -> int:
    word, status = stopped(stop)
    _say(f"fedconvex: {word}: {_saved(args)}")
    return status


def _failed(error: Exception) -> int:
    """Say what was wrong with the input, or show where the program failed."""
    if isinstance(error, (Refused, ValueError, TypeError, OSError, ImportError, MemoryError)):
        _say(f"fedconvex: error: {_one_line(error)}")
        return USER
    import traceback

    _say("".join(traceback.format_exception(error)))
    _say(f"fedconvex: internal error: {_one_line(error)}: please report it with the lines above")
    return CRASHED


def _show_warning(message: Warning | str, *_: Any) -> None:
    """Print a warning in one line, without the place in the source."""
    _say(f"fedconvex: warning: {' '.join(str(message).split())}")


def _say(text: str) -> None:
    from fedconvex.cli.output import say  # NumPy is loaded with it

    say(text, sys.stderr)


def _silence() -> None:
    """Send what is still printed nowhere, so that the interpreter does not stumble over the closed pipe at its end."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):  # no file behind it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _one_line(error: BaseException) -> str:
    from fedconvex.cli.wording import spoken

    if hasattr(error, "command_line"):  # several lines, one a column
        return "\n".join(map(spoken, str(error.command_line).splitlines()))
    if isinstance(error, MemoryError):
        return "the data must fit into memory; got a MemoryError: take fewer rows or a sparse format"
    if isinstance(error, OSError) and error.strerror:
        where = f" {error.filename}" if error.filename else ""
        return f"the file system must allow the access{where}; got {error.strerror}"
    return spoken(" ".join(str(error).split()))


def _saved(args: argparse.Namespace) -> str:
    checkpoint, resumed = getattr(args, "checkpoint", None), getattr(args, "resumed", None)
    if resumed is not None:
        return str(resumed(args) if callable(resumed) else resumed)
    if checkpoint is None:
        resumable = "checkpoint" in args and "grid" not in args  # a sweep's runs are kept with --out
        return "nothing was saved" + (" (--checkpoint FILE makes a run resumable)" if resumable else "")
    if not Path(checkpoint).exists():
        return f"{checkpoint} was not written yet, nothing was saved"
    return f"{checkpoint} holds the run as of a few seconds ago; repeat the command to resume it"


class _Described(NamedTuple):
    """Where a command adds its parser, with what it does."""

    commands: Any
    help: str

    def add_parser(self, name: str, **settings: Any) -> Any:
        return self.commands.add_parser(name, help=self.help, **settings)


def _parser(command: str | None = None) -> Parser:
    """Return the parser of all commands; of one only where it is named: the others are not loaded then."""
    parser = Parser(
        prog="fedconvex",
        description="Convex federated optimisation, solved exactly and certified.",
        epilog="Start with: fedconvex solve",
    )
    parser.add_argument("--version", action="version", version=f"fedconvex {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    parser.command = command if command in COMMANDS else ""
    for name, words in COMMANDS.items():
        if command in (None, name):
            file = "listing" if name == "list" else name
            import_module(f"{__name__}.{file}").add_parser(_Described(commands, words))
        else:
            commands.add_parser(name, help=words)
    return parser
