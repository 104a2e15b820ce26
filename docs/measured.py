"""Fill in figures that pages quote from benchmarks: ``python docs/measured.py`` after new results.

A figure stands between two comments, ``<!-- benchmark NAME: WORDS | FORMAT -->3.4<!-- end -->``: the value of the one
measure of ``benchmarks/results/NAME.json`` that contains these words. The format is Python's (default ``.2g``); with
``over`` before it, one over the value; with ``%`` before it, by how many percent the value is above one.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MARK = re.compile(r"<!-- benchmark (\w+): (.+?)(?: \| (over |% )?([\w.]+))? -->(.*?)<!-- end -->", re.S)


def pages() -> list[Path]:
    """Return the pages that may quote figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@cache
def measures(name: str) -> tuple[tuple[str, float], ...]:
    """Return what a benchmark measured, in words with its values."""
    found = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return tuple((bar["what"], bar["value"]) for bar in found["bars"])


def figure(name: str, words: str, how: str, form: str) -> str:
    """Return a figure as a page prints it.

    Raises
    ------
    ValueError
        If the words fit no measure of the benchmark, or several.
    """
    fits = [value for what, value in measures(name) if " ".join(words.split()) in what]
    if len(fits) != 1:
        raise ValueError(f"benchmark {name}: {words!r} must fit one measure; got {len(fits)}")
    value = {"over ": lambda v: 1.0 / v, "% ": lambda v: 100.0 * (v - 1.0)}.get(how, float)(fits[0])
    return format(value, form or ".2g")


def filled(text: str) -> str:
    """Return a page with the figures that the results have now."""

    def one(found: re.Match[str]) -> str:
        name, words, how, form, old = found.groups(default="")
        return found[0].replace(f"-->{old}<!--", f"-->{figure(name, words, how, form)}<!--")

    return MARK.sub(one, text)


if __name__ == "__main__":
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if filled(text) != text:
            page.write_text(filled(text), encoding="utf-8")
            print(page.relative_to(ROOT))
