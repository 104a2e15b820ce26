"""The audit log of a site: a line for everything that came and left, each with the hash of the one before.

Lines are JSON and are only appended. What a line holds are names, shapes, numbers of numbers, and never a value. A line
that is changed, left out or put elsewhere breaks the chain at that place. The chain does not show that its last lines
were cut off: for that the hash of the last line is kept elsewhere. A last line that is not finished was being written
when the machine stopped; its answer did not leave.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedconvex._check import bad
from fedconvex._files import existing, owner_only

_FIRST = "0" * 64
_CUT = "an unfinished line was taken away"
_LAST = (_CUT, "ended")  # lines that a log has room for when it is full: one for each time that a site joins


class AuditLog:
    """The end of a log to which lines are appended.

    Parameters
    ----------
    path : path
        Made if there is none, for its owner only.
    most : float
        Bytes of the file at most: who asks a site again and again fills its disk otherwise.

    Attributes
    ----------
    ledger : int
        Numbers answered, as the last line that counts them says.
    sums : int
        The like of numbers that were hidden in sums over all sites and have a limit of their own.

    Raises
    ------
    ValueError
        If the chain of what is there is broken.
    """

    def __init__(self, path: Path, most: float = math.inf) -> None:
        self.path, self.most = path, most
        self.last, self.count, self.ledger, self.sums = _FIRST, 0, 0, 0
        if path.exists():
            for line in read_log(path):
                self.last, self.count = line["hash"], self.count + 1
                self._counted(line)
            self._end()

    def _end(self) -> None:
        """Take away a last line that was not finished, and say so in the log."""
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self.path, whole)
            self.write(_CUT, bytes=len(content) - whole)

    def write(self, what: str, **facts: Any) -> None:
        """Append a line: the time, what happened, and facts that JSON can hold.

        Raises
        ------
        OSError
            If the line cannot be written to the disk, or the file is as long as it may be; the log is then as before.
        """
        line = {"n": self.count, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "what": what, **facts}
        line["before"] = self.last
        line["hash"] = _hash(line)
        content = json.dumps(line).encode() + b"\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        file = owner_only(str(self.path), flags)
        try:
            end = os.fstat(file).st_size
            if end + len(content) > self.most and what not in _LAST:
                allowed = f"and [limits] log allows {self.most / 1e6:.3g}"
                raise OSError(errno.EFBIG, f"the audit log has {end / 1e6:.3g} MB, {allowed}")
            try:
                if os.write(file, content) < len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
                os.fsync(file)
            except BaseException:
                os.ftruncate(file, end)
                raise
        finally:
            os.close(file)
        self.last, self.count = line["hash"], self.count + 1
        self._counted(line)

    def _counted(self, line: dict[str, Any]) -> None:
        self.ledger, self.sums = int(line.get("ledger", self.ledger)), int(line.get("sums", self.sums))


def _hash(line: dict[str, Any]) -> str:
    content = {name: value for name, value in line.items() if name != "hash"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_log(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the finished lines of an audit log.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is none; where a line does not fit to the one before.
    """
    before = _FIRST
    with open(existing("audit log", path), encoding="utf-8") as file:
        for n, text in enumerate(file):
            if not text.endswith("\n"):
                return  # not finished: its answer did not leave
            try:
                line = json.loads(text)
                sound = line["n"] == n and line["before"] == before and line["hash"] == _hash(line)
            except (ValueError, TypeError, KeyError):
                sound = False
            if not sound:
                raise bad(
                    f"{path}, line {n + 1}", "follow from the line before", "another line", "it was changed or cut"
                )
            before = line["hash"]
            yield line


def table(path: str | os.PathLike[str]) -> list[list[str]]:
    """Return what left a site, by question and kind: answers, numbers, refusals, first and last time."""
    found: dict[tuple[str, str], list[Any]] = {}
    for line in read_log(path):
        if line["what"] not in ("answered", "refused"):
            continue
        key = line["question"], line["kind"]
        row = found.setdefault(key, [0, 0, 0, line["time"], line["time"]])
        row[2 if line["what"] == "refused" else 0] += 1
        row[1] += line.get("numbers", 0)
        row[4] = line["time"]
    return [
        [*key, f"{a:,}", f"{numbers:,}", f"{refused:,}", first, last]
        for key, (a, numbers, refused, first, last) in found.items()
    ]
