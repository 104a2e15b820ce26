"""The parser of the command line, and how commands end."""

from __future__ import annotations

import argparse
import re
from typing import Any, NoReturn

OK, FAILED, USER, DIVERGED, INCONCLUSIVE, CRASHED, INTERRUPTED, ENDED = 0, 1, 2, 3, 4, 70, 130, 143


class Terminated(KeyboardInterrupt):
    """SIGTERM: whoever is asked to end ends its workers, keeps what is finished and says so, as by Ctrl-C."""


def stopped(by: KeyboardInterrupt) -> tuple[str, int]:
    """Return the word for what stopped a command, and its exit status."""
    return ("ended", ENDED) if isinstance(by, Terminated) else ("interrupted", INTERRUPTED)


class Refused(Exception):
    """A bad argument; not a ValueError, which argparse would replace by a message of its own."""


class _Once(argparse.Action):
    """Store a value; an option given twice is a mistake, and which one counts a guess."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        given = namespace.__dict__.setdefault("given", set())
        if option_string is not None and self.dest in given:
            from fedconvex._check import bad

            raise Refused(str(bad(option_string, "be given once", "it again", "keep one")))
        given.add(self.dest)
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """Errors are one line, as all of the package, and options that take one value are given once."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False} | settings)
        for name in (None, "store"):
            self.register("action", name, _Once)

    def format_help(self) -> str:
        """Begin with the arguments that a command takes, and leave the list of its options to the sections below."""
        positional = [a for a in self._actions if not a.option_strings and a.dest != argparse.SUPPRESS]
        needed = [a for a in self._actions if a.option_strings and a.required]
        if self.usage is None and not self._commands():
            formatter = self._get_formatter()
            words = [formatter._format_args(a, str(a.metavar or a.dest)) for a in positional]
            words += [f"{a.option_strings[-1]} {formatter._format_args(a, a.dest.upper())}" for a in needed]
            self.usage = " ".join(["%(prog)s", *words, "[options]"])
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise what `main` prints, with the name that may have been meant."""
        from fedconvex._check import nearest

        names = [name for parser in self._all() for name in parser._option_string_actions]
        strange = re.search(r"unrecognized arguments: .*?(--[\w-]+)", message)
        command = re.search(r"argument COMMAND: invalid choice: '([^']*)'", message)
        if command is not None:
            names = list(self._commands())
        given = command or strange
        meant = nearest(given[1], names) if given is not None else ""
        raise Refused(f"{message}{': ' if meant else ''}{meant} (see {self.prog} --help)")

    def _commands(self) -> dict[str, Any]:
        """Return the parsers of the commands, by name."""
        found = [a.choices for a in self._actions if isinstance(a, argparse._SubParsersAction)]
        return dict(found[0]) if found else {}

    def _all(self) -> list[argparse.ArgumentParser]:
        return [self, *self._commands().values()]
