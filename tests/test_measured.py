"""Figures that pages quote from benchmarks are those of the kept results."""

from pathlib import Path

import pytest

from tests.docs_scripts import docs_script

DOCS = Path(__file__).resolve().parents[1] / "docs"
pytestmark = [pytest.mark.skipif(not DOCS.is_dir(), reason="no docs beside the tests"), pytest.mark.anywhere]
measured = docs_script("measured") if DOCS.is_dir() else None


def outdated(texts):
    """Pages whose figures are not those of the results."""
    return [name for name, text in texts.items() if measured.filled(text) != text]


def test_pages_quote_what_was_measured():
    texts = {page.name: page.read_text(encoding="utf-8") for page in measured.pages()}
    assert outdated(texts) == [], "run python docs/measured.py"
    assert sum(len(measured.MARK.findall(text)) for text in texts.values()) >= 10
    assert measured.MARK.search(texts["README.md"])
    assert not [name for name, text in texts.items() if "\n<!-- benchmark " in text]  # would end the paragraph


def test_another_figure_is_found(monkeypatch):
    monkeypatch.setattr(
        measured, "measures", lambda name: (("cold, CPU s", 3.38), ("warm, CPU s", 0.5), ("a / b", 1.03))
    )
    page = "takes <!-- benchmark start: cold | .1f -->{}<!-- end --> s"
    assert outdated({"a": page.format("3.4")}) == [] and outdated({"a": page.format("3.3")}) == ["a"]
    assert measured.filled("<!-- benchmark x: warm | over .2g -->?<!-- end -->") == (
        "<!-- benchmark x: warm | over .2g -->2<!-- end -->"
    )
    assert measured.figure("x", "a / b", "% ", ".0f") == "3"
    for words in ("tepid", "CPU s"):
        with pytest.raises(ValueError, match="must fit one measure"):
            measured.figure("x", words, "", "")
