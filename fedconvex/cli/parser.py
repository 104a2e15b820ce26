"""The parser of the command line, and how commands end."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from typing import Any, NoReturn

MOST_LINES = 60  # of a help text; a longer one is told by topic
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


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Lines of descriptions stay, and names with hyphens are not divided."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class _Help(argparse.Action):
    """Print the help of a command, or of one of its topics."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        sys.stdout.write(parser.help_of(values))
        parser.exit()


class Parser(argparse.ArgumentParser):
    """Errors are one line, as all of the package, and options that take one value are given once.

    Help of more than `MOST_LINES` lines is told by topic: the groups of a command's options.
    """

    def __init__(self, **settings: Any) -> None:
        self.elsewhere: dict[str, str] = {}  # options of other commands, with what is done here instead
        self.command = ""  # the one that is parsed, of the parser of all
        usual: dict[str, Any] = {"allow_abbrev": False, "formatter_class": _Formatter}
        super().__init__(**usual | settings | {"add_help": False})
        self.add_argument(
            "-h",
            "--help",
            action=_Help,
            nargs="?",
            metavar="TOPIC",
            default=argparse.SUPPRESS,
            dest=argparse.SUPPRESS,
            help="show this help, or that of one topic, and exit",
        )
        for name in (None, "store"):
            self.register("action", name, _Once)

    def format_help(self) -> str:
        """Return the help of all topics, or where that is long what the examples use and the names of the others."""
        text = self._whole()
        often = [a for a in self._optional() if self.epilog and re.search(rf"{a.option_strings[-1]}\b", self.epilog)]
        while text.count("\n") >= MOST_LINES:
            text = self._short(often)
            if not often:
                break
            often = often[:-1]
        return text

    def help_of(self, topic: str | None) -> str:
        """Return the help of a topic, of "all" topics, or without one the usual help."""
        if topic is None or topic == "all":
            return self.format_help() if topic is None else self._whole()
        topics = self.topics()
        if topic not in topics:
            from fedconvex._check import unknown

            raise Refused(str(unknown(f"{self.prog} --help", topic, [*topics, "all"])))
        formatter = self._get_formatter()
        formatter.add_usage(self._words(), self._actions, [])
        formatter.start_section(str(topics[topic].title))
        formatter.add_arguments(topics[topic]._group_actions)
        formatter.end_section()
        return formatter.format_help()

    def topics(self) -> dict[str, Any]:
        """Return the groups of options by the first word of their titles, in order."""
        groups = [g for g in self._action_groups if any(a.option_strings for a in g._group_actions)]
        return {str(g.title).split()[0]: g for g in groups}

    def _optional(self) -> list[argparse.Action]:
        return [a for g in self.topics().values() for a in g._group_actions if a.option_strings]

    def _short(self, often: list[argparse.Action]) -> str:
        """Return what a command does, help on some options, and the names of all, by topic."""
        formatter = self._get_formatter()
        formatter.add_usage(self._words(), self._actions, [])
        formatter.add_text(self._filled())
        formatter.start_section("often used")
        formatter.add_arguments([a for a in self._actions if not a.option_strings] + often)
        formatter.end_section()
        lines, width = ["all options, by topic (--help TOPIC tells more, --help all everything):"], formatter._width
        for topic, group in self.topics().items():
            names = " ".join(a.option_strings[-1] for a in group._group_actions)
            lines += textwrap.wrap(
                names,
                width,
                initial_indent=f"  {topic:<12}",
                subsequent_indent=" " * 14,
                break_on_hyphens=False,
            )
        formatter.add_text("\n".join(lines))
        formatter.add_text(self._folded())
        return formatter.format_help()

    def _folded(self) -> str:
        """Return the examples, lines that are longer than the terminal is wide continued on the next."""
        width = self._get_formatter()._width
        lines = (self.epilog or "").splitlines()
        folded = (
            textwrap.wrap(x, width - 2, subsequent_indent=" " * 6, break_long_words=False, break_on_hyphens=False)
            for x in lines
        )
        return "\n".join(" \\\n".join(parts) for parts in folded)

    def _filled(self) -> str:
        """Return the description, its paragraphs filled to the width of the terminal."""
        width = self._get_formatter()._width
        return "\n\n".join(textwrap.fill(part, width) for part in (self.description or "").split("\n\n"))

    def _words(self) -> str | None:
        """Return the usage: the arguments that a command takes, its options left to the sections below."""
        positional = [a for a in self._actions if not a.option_strings and a.dest != argparse.SUPPRESS]
        needed = [a for a in self._actions if a.option_strings and a.required]
        if self.usage is None and not self._commands():
            formatter = self._get_formatter()
            words = [formatter._format_args(a, str(a.metavar or a.dest)) for a in positional]
            words += [f"{a.option_strings[-1]} {formatter._format_args(a, a.dest.upper())}" for a in needed]
            self.usage = " ".join(["%(prog)s", *words, "[options]"])
        return self.usage

    def _whole(self) -> str:
        """Return the help of all topics."""
        self._words()
        given, self.description, self.epilog = (self.description, self.epilog), self._filled(), self._folded()
        try:
            return super().format_help()
        finally:
            self.description, self.epilog = given

    def error(self, message: str) -> NoReturn:
        """Raise what `main` prints, with the name that may have been meant."""
        from fedconvex._check import nearest

        names = [name for parser in self._all() for name in parser._option_string_actions]
        strange = re.search(r"unrecognized arguments: .*?(--[\w-]+)", message)
        words = re.search(r"unrecognized arguments: [^-\s]", message)
        command = re.search(r"argument COMMAND: invalid choice: '([^']*)'", message)
        if command is not None:
            names = list(self._commands())
        given = command or strange
        meant = nearest(given[1], names) if given is not None else "quote a name with spaces" if words else ""
        for parser in self._all():
            meant = getattr(parser, "elsewhere", {}).get(strange[1] if strange is not None else "", meant)
        shown = " ".join(filter(None, [self.prog, self.command]))
        raise Refused(f"{message}{': ' if meant else ''}{meant} (see {shown} --help)")

    def _commands(self) -> dict[str, Any]:
        """Return the parsers of the commands, by name."""
        found = [a.choices for a in self._actions if isinstance(a, argparse._SubParsersAction)]
        return dict(found[0]) if found else {}

    def _all(self) -> list[argparse.ArgumentParser]:
        return [self, *self._commands().values()]
