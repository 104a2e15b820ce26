"""Help texts fit a screen: long ones are told by topic, and every option is in one of them."""

import pytest

from fedconvex.cli import COMMANDS, _parser, main
from fedconvex.cli.parser import MOST_LINES, Parser

pytestmark = pytest.mark.anywhere


def parsers(name):
    """The parser of a command, and those of its own commands."""
    found = _parser(name)._commands()[name]
    return [found, *(found._commands().values() if found._commands() else ())]


def rows(text):
    """Rows of a terminal of 80 columns that a text fills."""
    return sum(max(1, -(-len(line) // 80)) for line in text.splitlines())


def lost(parser):
    """Options that no topic has, and those that the short help does not name."""
    every = [a.option_strings[-1] for a in parser._actions if a.option_strings]
    told = [a.option_strings[-1] for g in parser.topics().values() for a in g._group_actions if a.option_strings]
    text = parser.format_help()
    return [o for o in every if o not in told] + [o for o in every if o not in text]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_a_screen_and_names_every_option(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for parser in parsers(name):
        assert rows(parser.format_help()) <= MOST_LINES
        assert lost(parser) == []
        whole = parser.help_of("all")
        assert [line for line in (parser.format_help() + whole).splitlines() if len(line) > 80] == []
        assert all(a.help in " ".join(whole.split()) for a in parser._actions if a.help and "%" not in a.help)


def test_what_is_lost_is_found(monkeypatch):
    parser = Parser(prog="try")
    parser.add_argument_group("data").add_argument("--table")
    parser.add_argument_group("data (of owners)").add_argument("--owner")
    assert lost(parser) == ["--table"]  # two groups of one topic: the second hides the first
    monkeypatch.setattr("fedconvex.cli.parser.MOST_LINES", 3)
    assert "--owner" in parser.format_help() and "all options, by topic" in parser.format_help()
    assert rows("x" * 81) == 2


def test_topics_are_printed_and_others_refused(capsys):
    with pytest.raises(SystemExit):
        main(["solve", "--help", "output"])
    out = capsys.readouterr().out
    assert "--checkpoint FILE" in out and "--target" not in out
    assert main(["solve", "--help", "outputs"]) == 2
    assert "did you mean output?" in capsys.readouterr().err
