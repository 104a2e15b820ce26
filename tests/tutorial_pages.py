"""Tutorials as programs: their files are written, their commands and examples run, and what they print is compared."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import runpy
import shlex
from pathlib import Path

BLOCK = re.compile(r"^```(python|console|pycon)\n(.*?)^```$", flags=re.M | re.S)
SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def commands(block):
    """The commands of a block, each with what it is to print."""
    parts = re.split(r"^\$ ", block, flags=re.M)
    return [(line, wanted) for line, _, wanted in (part.partition("\n") for part in parts[1:])]


def carried_out(command):
    """What a command prints, and its exit status; in this process."""
    from fedconvex.cli import main

    program, *words = shlex.split(command)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main(words) if program == "fedconvex" else runpy.run_path(*words) and 0
    return said.getvalue(), status


def differences(page, folder):
    """Play a page in a folder, which is the current one; return every command that does not do what the page says."""
    told, examples, check = [], {"__name__": "tutorial"}, doctest.OutputChecker()
    for kind, text in BLOCK.findall(page):
        if kind == "python":
            (Path(folder) / re.match(r"# (\w+\.py)", text)[1]).write_text(text, encoding="utf-8")
        elif kind == "console":
            for command, wanted in commands(text):
                said, status = carried_out(command)
                right = status == (2 if "fedconvex: error" in wanted else 0)
                if not (right and check.check_output(wanted, said, SAME)):
                    told.append((command, status, said))
        else:
            test = doctest.DocTestParser().get_doctest(text, examples, "tutorial", None, 0)
            found = io.StringIO()
            doctest.DocTestRunner(optionflags=SAME, verbose=False).run(test, out=found.write, clear_globs=False)
            examples |= test.globs
            told += [(text, 1, found.getvalue())] if found.getvalue() else []
    return told
