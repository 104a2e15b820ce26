"""Links of the pages lead somewhere, and the names that they mention exist."""

from __future__ import annotations

import ast
import fnmatch
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs_scripts import docs_script

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("*.md", "docs/**/*.md", "benchmarks/*.md", "fedconvex/**/*.md")
PAGES = sorted(page for pattern in FOLDERS for page in ROOT.glob(pattern))
SCRIPTS = sorted(p for folder in ("docs", "benchmarks", "examples") for p in (ROOT / folder).glob("*.py"))
PAGES = [p for p in PAGES if p.name != "CHANGELOG.md"]  # speaks of names that were
MOST_LINES = 1500  # of a picture
FILE = re.compile(r"`((?!fedjax/|data/)(?:[\w.-]+/)+[\w.-]+\.(?:py|md|svg))`")
LINK = re.compile(r"\]\(([^)\s]*[./#][^)\s]*)\)")
NAME = re.compile(r"`(fedconvex(?:\.\w+)+)(?:\([^`]*\))?`")
FENCED = re.compile(r"^```.*?^```$", flags=re.M | re.S)
HANDED_ON = {  # private modules that others are handed names of third ones by
    *("datasets.loaders", "kernels.cache", "papers.style", "tables.other_files", "tables.reading"),
}
pytestmark = [pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="no docs beside the tests"), pytest.mark.anywhere]


def page_name(path):
    return path.relative_to(ROOT).as_posix()


def anchors(text):
    """The anchors of a page's headings, as they are made on the web."""
    titles = re.findall(r"^#+ (.*)$", FENCED.sub("", text), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}


def leads(page, link):
    """Whether a relative link leads to a file, and to one of its headings if it names one."""
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    to_heading = anchor and target.suffix == ".md"
    return target.exists() and (not to_heading or anchor in anchors(target.read_text(encoding="utf-8")))


def broken_links(page, text):
    """Relative links of a page that lead nowhere, and files that it names and that do not exist."""
    text = FENCED.sub("", text)
    built = "gallery/"  # by the build of the site, from examples/
    links = [x for x in LINK.findall(text) if "://" not in x and not x.startswith(built) and not leads(page, x)]
    homes = (ROOT, ROOT / "fedconvex", page.parent)
    return links + [name for name in FILE.findall(text) if not any((home / name).exists() for home in homes)]


def test_pictures_are_small():
    """Letters are text and curves have no more points than are seen; a line is about an element or a point."""
    for folder in ("docs/figures", "benchmarks/results"):
        for file in (ROOT / folder).glob("*.svg"):
            text = file.read_text(encoding="utf-8")
            small = text.count("\n") <= MOST_LINES and len(text) <= 100_000
            assert small, file.name


def exists(name):
    """Whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for i in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:i]))
        except ModuleNotFoundError:
            continue
        for part in parts[i:]:
            fields = getattr(found, "__dataclass_fields__", {}) | getattr(found, "__annotations__", {})
            if not hasattr(found, part) and part not in fields:
                return False
            found = getattr(found, part, None)
        return True
    return False


def missing_names(text):
    return [name for name in dict.fromkeys(NAME.findall(text)) if not exists(name)]


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_somewhere(page):
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_names_on_pages_exist(page):
    assert missing_names(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", sorted((ROOT / "fedconvex").rglob("*.py")), ids=page_name)
def test_names_in_docstrings_exist(path):
    assert missing_names(path.read_text(encoding="utf-8")) == []


def missing_imports(source):
    """Names that a script imports from the package and that are not there."""
    lines = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ImportFrom)]
    named = [(n.module, a.name) for n in lines if (n.module or "").startswith("fedconvex") for a in n.names]
    return [f"{m}.{name}" for m, name in named if not exists(f"{m}.{name}")]


@pytest.mark.parametrize("path", SCRIPTS, ids=page_name)
def test_scripts_import_names_that_exist(path):
    assert not missing_imports(path.read_text(encoding="utf-8"))


IMPORT = re.compile(r"^\s*(?:>>> )?from (fedconvex[\w.]*) import (?:\(([^)]*)\)|(.+?)(?: *#.*)?$)", re.M)
USERS = [p for p in PAGES if p.parent.name not in ("benchmarks", "additions") and "additions" not in p.parts]
USERS = [p for p in USERS if p.name != "CONTRIBUTING.md" and "fedconvex" not in p.relative_to(ROOT).parts]


def private_imports(text):
    """Names that a page or an example imports from the package and that are not public."""
    public = docs_script("api").public_modules()
    found = []
    for module, several, one in IMPORT.findall(text):
        inner = module.removeprefix("fedconvex").lstrip(".")
        names = [re.sub(r"#.*", "", x).split(" as ")[0].strip(" .\n") for x in (several or one).split(",")]
        known = getattr(public.get(inner), "__all__", ())
        found += [f"{module}.{n}" for n in names if n and n not in known and f"{inner}.{n}".lstrip(".") not in public]
    return found


@pytest.mark.parametrize("page", [*USERS, *(p for p in SCRIPTS if p.parent.name == "examples")], ids=page_name)
def test_pages_and_examples_import_public_names_only(page):
    assert private_imports(page.read_text(encoding="utf-8")) == []


def test_a_private_import_is_found():
    text = "from fedconvex import run, theory\nfrom fedconvex.kernels import averages  # why\n"
    text += ">>> from fedconvex.methods import (\n...     AFL,\n...     Hidden,\n... )\n"
    assert private_imports(text) == ["fedconvex.kernels.averages", "fedconvex.methods.Hidden"]


def test_benchmarks_show_the_results_that_are_kept():
    """`benchmarks/README.md` ends with what `benchmarks/table.py` prints: no result is left out or out of date."""
    folder = ROOT / "benchmarks"
    if not (folder / "results").is_dir():
        pytest.skip("no results beside the tests")
    printed = subprocess.run(
        [sys.executable, "-X", "utf8", folder / "table.py"], capture_output=True, check=True, encoding="utf-8"
    )
    assert (folder / "README.md").read_text(encoding="utf-8").endswith(printed.stdout.rstrip() + "\n")


def misquoted(text):
    """Rows of the errata's first table that name no source, and tests that do not exist."""
    printed = text[text.index("| printed, and where |") :].split("\n\n")[0].splitlines()[2:]
    sources = ("survey", "slides", "field guide", "abstract of")
    nameless = [row for row in printed if not row.removeprefix("| ").startswith(sources)]
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    return nameless + [name for name in re.findall(r"`(test_\w+)`", text) if f"def {name}(" not in tests]


def test_errata_say_who_prints_what():
    page = ROOT / "docs" / "theory" / "errata.md"
    if not page.exists():
        pytest.skip("no pages beside the tests")
    text = page.read_text(encoding="utf-8")
    assert misquoted(text) == []
    row = "| a bound that somebody may print | another | `test_of_nothing` |"
    assert misquoted(text.replace("|---|---|---|", f"|---|---|---|\n{row}", 1)) == [row, "test_of_nothing"]


def test_the_tests_can_fail():
    page = ROOT / "docs" / "agnostic.md"
    text = "[a](gone.md) [b](mocha.md) [c](mocha.md#no-such-heading) `fedconvex/gone.py` `fedconvex/losses/hinge.py`"
    assert broken_links(page, text) == ["gone.md", "mocha.md#no-such-heading", "fedconvex/gone.py"]
    text = "`fedconvex.run` `fedconvex.gone` `fedconvex.driver.Result.gone` `fedconvex.problems.Problem.solve()`"
    assert missing_names(text) == ["fedconvex.gone", "fedconvex.driver.Result.gone"]
    assert missing_imports("from fedconvex.driver import gone, run") == ["fedconvex.driver.gone"]


# ---------------------------------------------------------------- what CONTRIBUTING.md asks for


def named_in(page):
    """Words between backticks, and the headings, of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return {*re.findall(r"`([\w*-]+)[`(]", text), *re.findall(r"^#+ (\S+)$", text, flags=re.M)}


def not_among(names, known):
    """Names that a page does not mention; `fedavg-*` mentions all that begin so."""
    return [name for name in names if not any(fnmatch.fnmatchcase(name, word) for word in known)]


def federated_methods():
    from fedconvex import methods

    found = {name: getattr(methods, name) for name in methods.__all__}
    return [name for name, thing in found.items() if hasattr(thing, "aggregate") or hasattr(thing, "round")]


def losses_and_readers():
    from fedconvex import datasets, losses

    return [*losses.__all__, *(name for name in datasets.__all__ if name.startswith(("load", "fetch")))]


def test_methods_have_a_row_and_experiments_a_section():
    from fedconvex.papers import EXPERIMENTS

    what = "run python docs/pages.py, or add a row to docs/methods.md"
    assert not not_among(federated_methods(), named_in("docs/methods.md")), what
    assert not not_among(EXPERIMENTS, named_in("docs/experiments.md")), "add a section to docs/experiments.md"


def test_the_changelog_names_what_there_is():
    from fedconvex.papers import EXPERIMENTS
    from fedconvex.theorems import THEOREMS

    names = [*federated_methods(), *losses_and_readers(), *EXPERIMENTS, *THEOREMS]
    assert not not_among(names, named_in("CHANGELOG.md")), "name them in CHANGELOG.md, under what is unreleased"


def test_pages_have_the_version_of_the_package():
    from fedconvex import __version__

    for page in ("CHANGELOG.md", "CITATION.cff", "docs/citing.md"):
        named = re.findall(
            r"^(?:## |version: |.*Version )(\d+\.\d+\.\d+)", (ROOT / page).read_text(encoding="utf-8"), re.M
        )
        assert named[:1] == [__version__], page


def test_what_is_public_has_a_test():
    """Methods, losses and readers by name, experiments by their file: a test of their own says it."""
    from fedconvex.papers import EXPERIMENTS

    shared = {"test_contract.py", "test_docs.py", "test_contributing.py"}
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if path.name not in shared]
    said = set(re.findall(r"[\w-]+", "\n".join(path.read_text(encoding="utf-8") for path in files)))
    files = [e.study.__module__.removesuffix(".study").rpartition(".")[2] for e in EXPERIMENTS.values()]
    assert not not_among([*federated_methods(), *losses_and_readers(), *files], said), "write a test of their own"


def test_the_test_of_mentions_can_fail():
    assert not_among(["fedavg-drift", "svrg", "sv"], {"fedavg-*", "svrg"}) == ["sv"]
    assert "FedAvg" in named_in("docs/methods.md")
    assert "afl-toy" in named_in("docs/experiments.md")


def test_the_list_of_public_names_is_that_of_the_modules():
    """What is public changes with this page alone: run ``python docs/api.py`` where it should."""
    api = docs_script("api")
    assert api.PAGE.read_text(encoding="utf-8") == api.page(), "docs/api.md is written by `python docs/api.py`: run it"
    assert {"run", "Problem"} <= {*api.public_names()[""]} and api.is_public("theorems.scaffold")
    assert not any(api.is_public(inner) for inner in ("solvers.kinked", "cli", "_check", "families.boosting.problem"))


def test_private_modules_name_nothing_public():
    """A list of public names stands where users look: in packages that hand names on, and in public modules."""
    is_public, listed = docs_script("api").is_public, []
    for path in sorted((ROOT / "fedconvex").rglob("*.py")):
        inner = ".".join(path.relative_to(ROOT / "fedconvex").with_suffix("").parts)
        own = path.name != "__init__.py" and not (is_public(inner) or inner.startswith("families."))
        listed += [inner] if own and re.search(r"^__all__ = ", path.read_text(encoding="utf-8"), flags=re.M) else []
    assert set(listed) <= HANDED_ON
