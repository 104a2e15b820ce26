"""What a TOML file may hold: sections of keys with rules, and errors that name the line, the key and the cure."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedconvex._check import among, bad, nearest, real, whole, wrong_type
from fedconvex._files import existing

_LARGEST = 1 << 20  # bytes of a file
_MOST = 1000  # texts of a list
_HEAD = re.compile(r"^\s*\[\s*([^\]]+?)\s*\]")


class Key(NamedTuple):
    """A key of a section: its rule, which returns the value or raises, and what stands for it where it is not given."""

    rule: Callable[[str, Any], Any]
    default: Any = None
    needed: bool = False


Section = Mapping[str, Key]


def text(who: str, x: Any) -> str:
    """Return a line of text that is not empty."""
    if not isinstance(x, str):
        raise wrong_type(who, "be text in quotation marks", f"{x!r}")
    if not x.strip() or not x.isprintable() or len(x) > 200:
        raise bad(who, "be one line of at most 200 printable characters", repr(x))
    return x


def texts(who: str, x: Any) -> tuple[str, ...]:
    """Return different texts, at least one."""
    if not isinstance(x, list) or not x:
        raise wrong_type(who, "be a list of texts", f"{x!r}", '["a", "b"]')
    if len(x) > _MOST:
        raise bad(who, f"hold at most {_MOST:,} texts", f"{len(x):,}", "merge some, or leave the column out")
    found = tuple(text(who, value) for value in x)
    if len(set(found)) < len(found):
        raise bad(who, "hold different texts", f"{next(v for v in found if found.count(v) > 1)!r} twice")
    return found


def one_of(*words: str) -> Callable[[str, Any], str]:
    """Return the rule of a key that is one of some words."""

    def rule(who: str, x: Any) -> str:
        among(who, x, words)
        return str(x)

    return rule


def number(low: float = -float("inf"), *, strict: bool = False) -> Callable[[str, Any], float]:
    """Return the rule of a finite number."""
    return lambda who, x: real(who, x, low=low, strict=strict)


def count(low: int = 0, high: int | None = None) -> Callable[[str, Any], int]:
    """Return the rule of a whole number."""
    return lambda who, x: whole(who, x, low=low, high=high)


def pair(who: str, x: Any) -> tuple[float, float]:
    """Return the two ends of a range."""
    if not isinstance(x, list) or len(x) != 2:
        raise wrong_type(who, "be two numbers, the least and the largest", f"{x!r}", "[0, 120]")
    low, high = (real(who, value) for value in x)
    if low >= high:
        raise bad(who, "begin below its end", f"{x!r}")
    return low, high


class Tables:
    """A TOML file that is read against sections.

    Parameters
    ----------
    path : path

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file, or it is no TOML.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        file = existing("study", path)
        self.name, self.folder = file.name, file.parent
        if file.stat().st_size > _LARGEST:
            raise bad(self.name, f"have at most {_LARGEST:,} bytes", f"{file.stat().st_size:,}")
        self.content = file.read_bytes()
        try:
            self.source = self.content.decode("utf-8-sig")  # some editors begin a file with a mark
            self.tables = tomllib.loads(self.source)
        except UnicodeDecodeError as error:
            raise bad(self.name, "be text in UTF-8", f"byte {error.start}", "save it as UTF-8") from None
        except RecursionError:
            raise bad(self.name, "be TOML", "lists within lists without an end") from None
        except tomllib.TOMLDecodeError as error:
            raise bad(self.name, "be TOML", str(error), "texts stand in quotation marks, lists in [ ]") from None

    def where(self, *path: str) -> str:
        """Return the file, the line where a key stands, and the key."""
        dotted = ".".join(path)
        line = self._line(path)
        return f"{self.name}{f', line {line}' if line else ''}: {dotted}"

    def _line(self, path: tuple[str, ...]) -> int:
        """Return the line of a key, of its section if it has none, 0 if that has none."""
        section, found = (), 0  # type: tuple[str, ...], int
        for i, line in enumerate(self.source.splitlines(), 1):
            if head := _HEAD.match(line):
                section = tuple(
                    part.strip().strip("\"'") for part in re.split(r"\.(?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)", head[1])
                )
                if section == path:
                    return i
                found = i if section == path[: len(section)] else found
            elif section == path[:-1] and re.match(rf"\s*[\"']?{re.escape(path[-1])}[\"']?\s*=", line):
                return i
            elif section == path[:-2] and re.match(rf"\s*[\"']?{re.escape(path[-2])}[\"']?\s*=\s*\{{", line):
                found = i
        return found

    def sections(self, known: Mapping[str, bool]) -> None:
        """Raise unless the sections are known, and those that are needed (True) are there."""
        for name in self.tables:
            if name not in known:
                raise bad(self.where(name), f"be one of {', '.join(known)}", repr(name), nearest(name, known))
        for name, needed in known.items():
            if needed and name not in self.tables:
                raise bad(self.name, f"have a section [{name}]", "none")

    def section(self, keys: Section, *path: str) -> dict[str, Any]:
        """Return the values of a section, those that are not given as they stand by default.

        Raises
        ------
        ValueError, TypeError
            If a key is unknown, missing, or against its rule.
        """
        given: Any = self.tables
        for name in path:
            given = given.get(name, {})
        if not isinstance(given, dict):
            raise wrong_type(self.where(*path), "be a section", f"{given!r}")
        for name in given:
            if name not in keys:
                must = f"be one of {', '.join(keys)}"
                raise bad(self.where(*path, name), must, repr(name), nearest(name, keys))
        found = {}
        for name, key in keys.items():
            if name in given:
                found[name] = key.rule(self.where(*path, name), given[name])
            elif key.needed:
                raise bad(self.where(*path), f"have the key {name!r}", f"{', '.join(given) or 'none'}")
            else:
                found[name] = key.default
        return found
