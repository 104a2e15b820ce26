"""A process that makes calls, in a fork for each of its tasks: it dies, hangs or runs out of memory alone.

Standard input has a line of JSON per task: calls, each [entry, {parameter: label}]. Standard output has what came of
them. Where the fork of a task dies or hangs, every call of it is made again in a fork of its own.
"""

from __future__ import annotations

import inspect
import itertools
import json
import linecache
import os
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any

import fedconvex
from tests.campaigns.children import in_a_child
from tests.campaigns.entries import entries
from tests.campaigns.odd_values import odd

PACKAGE = str(Path(fedconvex.__file__).parent)
MEMORY = 3 << 30  # bytes beyond what the process has when it starts


def main() -> None:
    """Answer calls until standard input ends."""
    seconds = float(sys.argv[1])
    entries()
    warnings.simplefilter("ignore")
    print("ready", flush=True)
    for line in sys.stdin:
        calls = json.loads(line)
        found = in_a_child(lambda calls=calls: [outcome(*call) for call in calls], 6.0 * seconds, MEMORY)
        outcomes = found.get("returned") or [alone(call, seconds) for call in calls]
        print(json.dumps(outcomes), flush=True)


def alone(call: list[Any], seconds: float) -> dict[str, Any]:
    """Make one call in a fork of its own."""
    found = in_a_child(lambda: outcome(*call), seconds, MEMORY)
    return found.get("returned", {"outcome": "died", "message": json.dumps(found)})


def outcome(name: str, bent: dict[str, str]) -> dict[str, Any]:
    """Make the call: what was returned, or what was raised and where."""
    entry = entries()[name]
    arguments = dict(entry.arguments)
    for parameter, label in bent.items():
        arguments[parameter] = odd(entry.parameters[parameter])[label]
    os.chdir(tempfile.gettempdir())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            found = entry.call(**arguments)
            if inspect.isgenerator(found):
                list(itertools.islice(found, 4))
        except Exception as error:
            return raised(error)
    foreign = [str(m.message)[:150] for m in told if issubclass(m.category, RuntimeWarning) and not _ours(m.filename)]
    return {"outcome": "returned", "value": _shown(found), "warnings": foreign[:3]}


def raised(error: Exception) -> dict[str, Any]:
    """What an error says, and whether it is one of ours: raised by a statement of the package, with its parts."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    ours = _ours(last.filename) and linecache.getline(last.filename, last.lineno or 0).strip().startswith("raise ")
    through_sklearn = "/sklearn/" in last.filename and any("/fedconvex/estimators/" in f.filename for f in frames)
    where = next(f for f in reversed(frames) if _ours(f.filename)) if any(_ours(f.filename) for f in frames) else last
    place = f"{where.filename.removeprefix(PACKAGE + os.sep)}:{where.lineno} {where.line}"
    good = isinstance(error, (ValueError, TypeError, OSError, ImportError, AttributeError)) and len(str(error)) > 15
    verdict = "refused" if good and (ours or through_sklearn) else "raw"
    kind, text = type(error).__name__, f"{error}"[:300]
    return {"outcome": verdict, "type": kind, "message": text, "where": place}


def _shown(found: Any) -> str:
    try:
        return repr(found)[:120]
    except Exception as error:
        return f"no repr: {type(error).__name__}"


def _ours(file: str) -> bool:
    return file.startswith(PACKAGE)


if __name__ == "__main__":
    main()
