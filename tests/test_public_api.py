"""The public API is frozen: names and arguments stay, and docstrings describe all arguments and results by examples.

``python docs/api.py`` writes the file with what is added; what goes is deprecated first (RELEASING.md).
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import fedconvex
from fedconvex._check import whole
from fedconvex.theory.bound import known_constants
from tests.docs_scripts import docs_script

FILE = Path(__file__).with_name("public_api.txt")
LINE = re.compile(r"([\w.]+)\((.*)\)(?:  # lacks (.*))?")
pytestmark = [pytest.mark.skipif(not (FILE.parents[1] / "docs").is_dir(), reason="no docs"), pytest.mark.anywhere]


def read(text):
    """Arguments and lacks by name."""
    found = [LINE.fullmatch(line).groups(default="") for line in text.splitlines()]
    return {
        name: (given.split(", ") if given else [], lacks.split(", ") if lacks else []) for name, given, lacks in found
    }


def broken(kept, now):
    """What programs written for the kept names would stumble over, and docstrings that say less than they did."""
    out = [f"{name} is gone" for name in kept if name not in now]
    for name in kept.keys() & now.keys():
        (given, lacks), (given_now, lacks_now) = kept[name], now[name]
        out += [
            f"{name}: {a} is gone" for a in given if a != "*" and a not in given_now and a.rstrip("=") not in given_now
        ]
        out += [f"{name}: {a} has no default" for a in given if a[-1:] == "=" and a.rstrip("=") in given_now]
        out += [f"{name}: lacks {what}" for what in lacks_now if what not in lacks]
    return out


def test_public_names_and_their_arguments_stay():
    now = docs_script("api").frozen()
    assert broken(read(FILE.read_text(encoding="utf-8")), read(now)) == []
    assert len(read(now)) >= 600


def test_docstrings_describe_parameters_results_and_errors_and_have_an_example():
    lacking = {name: lacks for name, (_, lacks) in read(FILE.read_text(encoding="utf-8")).items() if lacks}
    assert not lacking, "write what is missing, and run python docs/api.py"


def test_the_test_can_fail():
    kept = read("a.f(x, *, y=)\na.g()\na.H(p)")
    now = read("a.f(x, *, y)  # lacks example\na.H(p, q=)")
    assert broken(kept, now) == ["a.g is gone", "a.f: y= has no default", "a.f: lacks example"]
    assert broken(kept, read("a.f(*, y=)\na.g()\na.H(p)")) == ["a.f: x is gone"]
    assert broken(kept, kept) == []


def test_what_a_docstring_lacks_is_found():
    api = docs_script("api")

    def half(x, *, y=1):
        """Return their sum.

        Parameters
        ----------
        x : int
        """

    assert api.arguments(half) == ["x", "*", "y="] and api.lacks(half) == ["parameter y", "example"]
    half.__doc__ += "y : int\n\n        >>> half(1)\n        "
    assert api.lacks(half) == []


def _half_of(x):
    return whole("x", x) // 2


def raising(x):
    raise ValueError(x)


def checking(x):
    return _half_of(x)


def assuming(x):
    return known_constants("a theorem", x, "L")


def harmless(x):
    try:
        return len(x)
    except TypeError:
        raise


def test_a_docstring_that_is_silent_about_errors_is_found(monkeypatch):
    """Of a raise in the function itself, in a check, in a private helper, in a class that makes its instances so."""
    api = docs_script("api")
    assert [api.refuses(f) for f in (raising, checking, assuming, harmless)] == [True, True, True, False]
    for thing in (fedconvex.Problem, fedconvex.FedAvg, fedconvex.iterate, fedconvex.analysis.Guards):
        assert api.lacks(thing) == []
        monkeypatch.setattr(thing, "__doc__", thing.__doc__.replace("Raises\n", "Notes\n"))
        assert api.lacks(thing) == ["raises"], thing
    assert api.lacks(fedconvex.Status) == [] == api.lacks(fedconvex.problems.FederatedProblem)  # Enum and Protocol


def test_methods_with_sections_say_what_they_raise(monkeypatch):
    api = docs_script("api")
    classes = [t for things in api.public_names().values() for t in things.values() if isinstance(t, type)]
    assert {c.__name__: api.silent_methods(c) for c in classes if api.silent_methods(c)} == {}
    split = fedconvex.Federation.split
    monkeypatch.setattr(split, "__doc__", split.__doc__.replace("Raises\n", "Notes\n"))
    assert api.silent_methods(fedconvex.Federation) == ["split"]


def test_an_alias_of_a_type_has_a_line_in_its_module():
    """`Positive` is described by fedconvex.fields; an alias that no line names, or without an example, is found."""
    import fedconvex.fields

    api = docs_script("api")
    alias = fedconvex.fields.Positive
    assert not api.is_documented(alias) and api.lacks(alias, "fields", "Positive") == []
    assert api.lacks(alias, "fields", "Posi") == ["returns"]
    assert api.lacks(alias, "theory.worst_case", "Posi") == ["returns", "example"]


SECTIONS = {"Parameters", "Attributes", "Returns", "Yields", "Raises", "Warns", "See Also", "Notes", "References"}


def strange_sections(text):
    """Headings of a docstring that numpydoc does not know, and would leave off the site."""
    return sorted(set(re.findall(r"^([A-Z][\w ]*)\n-{3,}$", text, re.M)) - SECTIONS - {"Examples"})


def test_docstrings_have_sections_that_the_site_shows():
    names = docs_script("api").public_names()
    found = {n: strange_sections(inspect.getdoc(t) or "") for things in names.values() for n, t in things.items()}
    assert not {n: strange for n, strange in found.items() if strange}
    assert strange_sections("Sum.\n\nSource\n------\nX.\n\nExamples\n--------\n>>> 1") == ["Source"]
