"""The examples of CONTRIBUTING.md, in a copy of the project with the lines that it names: the project's tests pass."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE, EXAMPLES = ROOT / "CONTRIBUTING.md", ROOT / "docs" / "additions"
pytestmark = [pytest.mark.skipif(not PAGE.exists(), reason="no page beside the tests"), pytest.mark.anywhere]
COPIED = ("fedconvex", "tests", "docs", "examples", "benchmarks", ".ci")


def hunks(text):
    """(file, lines that stand there, lines that are to stand there) of the page's diffs, in their order."""
    found = []
    for block in re.findall(r"^```diff\n(.*?)^```$", text, flags=re.M | re.S):
        for name, body in re.findall(r"^--- (\S+)\n((?:[ +-](?!--).*\n|\+\n)+)", block, flags=re.M):
            lines = body.splitlines()
            old, new = ("".join(f"{x[1:]}\n" for x in lines if x[0] in signs) for signs in (" -", " +"))
            found.append((name, old, new))
    return found


def applied(source, old, new):
    """A text in which the old lines, which stand there once, are the new ones."""
    found = re.findall(f"(?=\n{re.escape(old)})", f"\n{source}")
    assert len(found) == 1, f"{old!r} must stand there once; got {len(found)} times"
    return f"\n{source}".replace(f"\n{old}", f"\n{new}")[1:]


def outcome(folder, *arguments):
    """What pytest says of tests in the copy, run as plain Python, and not as the worker that this process may be."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    env |= {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-m", "slow or not slow"]
    done = subprocess.run([*command, *arguments], cwd=folder, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A copy of the project with all examples and lines of the page."""
    folder = tmp_path_factory.mktemp("house")
    for name in COPIED:
        if (ROOT / name).exists():
            skipped = shutil.ignore_patterns("__pycache__", "additions", "figures/*.png", "results")
            shutil.copytree(ROOT / name, folder / name, ignore=skipped)
    for page in (*ROOT.glob("*.md"), ROOT / "pyproject.toml"):
        shutil.copy(page, folder)
    shutil.copytree(EXAMPLES, folder, dirs_exist_ok=True)
    shutil.copytree(EXAMPLES, folder / "docs" / "additions")
    for name, old, new in hunks(PAGE.read_text(encoding="utf-8")):
        file = folder / name
        file.write_text(applied(file.read_text(encoding="utf-8"), old, new), encoding="utf-8")
    env = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(folder)}
    for script in ("docs/pages.py", "docs/api.py"):
        subprocess.run([sys.executable, script], cwd=folder, env=env, check=True, capture_output=True)
    return folder


ADDED = sorted(p.relative_to(EXAMPLES).as_posix() for p in EXAMPLES.rglob("*.py"))
TESTS = [name for name in ADDED if name.startswith("tests/")]
OWN = "(architecture or families or introduce or cosh or purpose)"
ASKED = "(test_docs and (row or changelog or public or CONTRIBUTING or gradient_descent or scripts))"
THEOREMS = "(theorem_files and (gradient or exported or up_to_date))"
METHODS = "((contract or declared) and (HeavyBall or LooplessGD or LogCosh or weiszfeld or exported))"
FILES = ("architecture", "draws", "families", "experiments", "losses", "docs", "theorem_files", "public_api")
FILES += ("contract", "declared_traits", "loss_contract")


@pytest.mark.slow
def test_the_tests_of_the_project_and_of_the_examples_pass(house):
    files = [f"tests/test_{name}.py" for name in FILES]
    mine = " or ".join(["medians", *(Path(name).stem for name in ADDED if "medians" not in name)])
    code, said = outcome(house, *files, *ADDED, "-k", f"{OWN} or {ASKED} or {THEOREMS} or {METHODS} or {mine}")
    assert code == 0, said


@pytest.mark.slow
def test_what_is_left_out_is_asked_for(house):
    """A name in the changelog, a row, a section and a test of its own, each by the sentence that says what to do."""
    left_out = {
        "CHANGELOG.md": ("`HeavyBall`", "name them in CHANGELOG.md"),
        "docs/methods.md": ("| `HeavyBall` |", "or add a row to docs/methods.md"),
        "tests/test_heavyball.py": ("HeavyBall", "write a test of their own"),
    }
    texts = {name: (house / name).read_text(encoding="utf-8") for name in left_out}
    try:
        for name, (words, _) in left_out.items():
            assert words in texts[name]
            (house / name).write_text(texts[name].replace(words, ""), encoding="utf-8")
        code, said = outcome(house, "tests/test_docs.py", "-k", "row or changelog or public")
    finally:
        for name, text in texts.items():
            (house / name).write_text(text, encoding="utf-8")
    assert code == 1
    assert not [asked for _, asked in left_out.values() if asked not in said], said


def test_the_page_links_every_example():
    linked = set(re.findall(r"\]\(docs/additions/([^)]+?)/?\)", PAGE.read_text(encoding="utf-8")))
    assert not [name for name in ADDED if name not in linked and Path(name).parent.as_posix() not in linked]
    assert {Path(name).stem.removeprefix("test_") for name in TESTS} >= {"heavyball", "logcosh", "medians"}


def test_lines_of_the_page_are_read():
    text = "```diff\n--- a/b.py\n x\n+y\n--- c.md\n-u\n+v\n```\n"
    assert hunks(text) == [("a/b.py", "x\n", "x\ny\n"), ("c.md", "u\n", "v\n")]
    assert applied("w\nx\nz\n", "x\n", "x\ny\n") == "w\nx\ny\nz\n"
    with pytest.raises(AssertionError, match="must stand there once"):
        applied("x\nx\n", "x\n", "y\n")
