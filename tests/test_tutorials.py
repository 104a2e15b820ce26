"""The tutorials do what they print, the site has every page, and its links and formulas are as they should be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs_scripts import docs_script
from tests.tutorial_pages import differences

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FOLDER = DOCS / "tutorials"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="no docs beside the tests")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["four_hospitals", "theorem_to_power", "solver_to_profile"])
def test_a_tutorial_prints_what_it_says(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")  # of child processes
    assert differences((FOLDER / f"{name}.md").read_text(encoding="utf-8"), tmp_path) == []


@pytest.mark.anywhere
def test_the_players_can_fail(tmp_path):
    file, example = "```python\n# a.py: says hello\nprint('hello')\n```\n\n", "```pycon\n>>> 1 + 1\n2\n```\n"
    page = f"{file}```console\n$ python {tmp_path / 'a.py'}\nhello\n```\n\n{example}"
    assert differences(page, tmp_path) == []
    assert [c for c, *_ in differences(page.replace("hello\n```\n\n```pycon", "ciao\n```\n\n```pycon"), tmp_path)] == [
        f"python {tmp_path / 'a.py'}"
    ]
    assert [c for c, *_ in differences(page.replace("\n2\n", "\n3\n"), tmp_path)] == [">>> 1 + 1\n3\n"]


def unlisted(start, pages):
    """Pages of docs/ that no table of contents of the start page names."""
    trees = "\n".join(re.findall(r"^```\{toctree\}\n(.*?)^```$", start, flags=re.M | re.S))
    named = {line.strip() for line in trees.splitlines() if line.strip() and not line.startswith(":")}
    return [page for page in pages if page not in named]


@pytest.mark.anywhere
def test_every_page_is_on_the_site():
    pages = sorted(p.stem for p in DOCS.glob("*.md") if p.stem != "index")
    start = (DOCS / "index.md").read_text(encoding="utf-8")
    assert unlisted(start, pages) == [], "name them in a table of contents of docs/index.md"
    assert unlisted(start.replace("\nsweeps\n", "\n"), pages) == ["sweeps"]
    listed = set(re.findall(r"\((\w+)\.md\)", (FOLDER / "index.md").read_text(encoding="utf-8")))
    assert {p.stem for p in FOLDER.glob("*.md")} - {"index"} <= listed


@pytest.mark.anywhere
def test_links_and_formulas_are_those_of_the_site(monkeypatch):
    pytest.importorskip("sphinx_gallery"), pytest.importorskip("numpydoc")
    monkeypatch.syspath_prepend(str(DOCS))
    pages, strings = docs_script("site_pages"), docs_script("site_docstrings")
    source = ["[a](../examples/plot_games.py) [b](theory/) [c](docs/additions/x/) [d](games.md)"]
    pages.relink(None, "docs/games", source)
    assert source == ["[a](../docs/gallery/plot_games.rst) [b](../docs/theory/index.md) c [d](games.md)"]
    assert "](../examples/" in pages.rest_of_readme() and "](docs/" not in pages.rest_of_readme()
    assert strings.escaped("F* of `run*`, |W| and *all* of coef_") == r"F\* of `run*`, \|W\| and *all* of coef\_"
    formulas = docs_script("site_formulas")
    assert formulas.typeset("sqrt(M) eta^2 <= x_i")[0] == ("", "√(M) η")
    assert formulas.typeset("local_steps") == [("", "local_steps")] and formulas.typeset("(a)_+")[1] == ("_", "+")
