"""Every option that a message names exists."""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

import fedconvex
from fedconvex.cli import _parser
from fedconvex.cli.parser import Refused
from fedconvex.cli.wording import _RUN, spoken
from fedconvex.registry import class_named, methods

pytestmark = pytest.mark.anywhere
OPTION = re.compile(r"(?<!var\()(?<![\w-])--[a-z][a-z0-9-]*")
ROOT = Path(fedconvex.__file__).parent


def parsers(parser=None):
    parser = _parser() if parser is None else parser
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from parsers(sub)


KNOWN = {option for parser in parsers() for action in parser._actions for option in action.option_strings}
FOREIGN = {"--pyargs", "--basetemp", "--node-config", "--run-config"}  # of other programs


def unknown(text):
    return {o for o in OPTION.findall(text) if o.rstrip("-") not in KNOWN | FOREIGN}


def test_the_check_sees_what_does_not_exist():
    assert unknown("pass --sample-weight, or --target COL") == {"--sample-weight"} and "--set" in KNOWN


@pytest.mark.slow
def test_all_options_in_all_texts_exist():
    wrong = []
    for file in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                wrong += [f"{file.relative_to(ROOT)}:{node.lineno}: {o}" for o in unknown(node.value)]
    assert not wrong, wrong


def test_messages_of_the_library_become_options_that_exist():
    """Fields of methods are options or --set FIELD; arguments of run are options, or stay what they are."""
    for name, method in methods().items():
        fields = class_named(name).__dataclass_fields__
        for field in fields:
            said = spoken(f"{method.cls}.{field} must be positive; got -1")
            assert not unknown(said), said
            if said.startswith("--set ") and not method.family:
                assert said.split()[1] in fields
    solve = next(p for p in parsers() if p.prog.endswith(" solve"))
    options = {o for a in solve._actions for o in a.option_strings}
    assert {f"--{name.replace('_', '-')}" for name in _RUN} <= options
    for word in ("start", "transport", "trajectories", "problem", "every"):
        assert spoken(f"run: {word} must be another").startswith(f"run: {word}")


@pytest.mark.parametrize(
    ("message", "start"),
    [
        ("Federation.sample_weight must be nonnegative; got -1 at 3", "--weight must be nonnegative"),
        ("Federation.labels must differ", "--client must differ"),
        ("compare: data must have rows of equal weight", "DATA must have rows"),
        ("mocha-har: data must be an archive", "--data must be"),
        ("FedAvg.step_size must be positive", "--step-size must be"),
        ("FedProx.mu must be positive", "--set mu must be"),
    ],
)
def test_words_of_the_command_line(message, start):
    assert spoken(message).startswith(start)


COMMAND = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?fedconvex (.*)$", re.M)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
PAGES = [ROOT.parent / "README.md", *sorted((ROOT.parent / "docs").rglob("*.md"))]


def refused(text):
    """Commands in blocks of a page that the parser refuses, with its reason."""
    blocks = [block.replace("\\\n", " ") for language, block in FENCE.findall(text) if language in ("sh", "console")]
    wrong = []
    for line in (line for block in blocks for line in COMMAND.findall(block)):
        words = shlex.split(line, comments=True)
        words = words[: min([words.index(w) for w in ("|", ">", "&&") if w in words], default=None)]
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                _parser(words[0]).parse_args(words)
        except SystemExit:  # of --help
            pass
        except Refused as error:
            wrong.append(f"{line}: {error}")
    return wrong


@pytest.mark.skipif(not PAGES[0].exists(), reason="no pages beside the package")
def test_commands_on_pages_are_taken_by_the_parser():
    wrong = {page.name: refused(page.read_text(encoding="utf-8")) for page in PAGES if page.exists()}
    assert {name: lines for name, lines in wrong.items() if lines} == {}
    text = "```python\n1\n```\n```console\n$ fedconvex solve x.csv --targt y > out\n```\n```sh\nfedconvex list\n```\n"
    assert [line.partition(":")[0] for line in refused(text)] == ["solve x.csv --targt y > out"]
