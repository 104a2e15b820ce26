"""The page: well formed, self-contained, complete, safe, and readable without colours."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from fedconvex.report.page import MARKS, check_folder, page, write_page
from fedconvex.theory.bound import SHADOW_AVERAGE, Bound, Hypothesis
from fedconvex.verify import BoundCurve, Outcome, Verdict
from fedconvex.verify.check_records import (
    OUTCOME_WORDS,
    Claim,
    Constant,
    Finding,
    Note,
    StepChoice,
    Tightness,
    VerificationReport,
    WorstCaseInterval,
)

pytest.importorskip("matplotlib")

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
HOSTILE = "<script>alert('x')</script>\" onload=\"evil()"


class Reader(HTMLParser):
    """Every element with its attributes, the text, and whether tags match."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.text = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        assert len(attrs) == len(dict(attrs)), tag
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text.append(data)

    @property
    def words(self):
        return " ".join("".join(self.text).split())


def finding(name, outcome=Outcome.HOLDS, setting="two clients, tau 2", exact=True, worst=None):
    terms = {"start": 0.3, "noise": 0.0, "heterogeneity drift": 0.1}
    hypotheses = (Hypothesis("every F_k <convex>", "L = 1"),)
    bound = Bound(terms, SHADOW_AVERAGE, "Somebody 2020, Theorem 1", hypotheses)
    worst = worst or WorstCaseInterval(0.3, 0.31, "all convex clients")
    if outcome is Outcome.NOT_APPLICABLE:
        verdict = Verdict(name, outcome, "T does not apply: needs a finite zeta, got inf")
        return Finding(name, setting, "in full", "real", verdict, WorstCaseInterval(np.nan, np.nan, "does not apply"))
    value = {Outcome.HOLDS: 0.2, Outcome.VIOLATED: 0.7, Outcome.INCONCLUSIVE: 0.4}[outcome]
    spread = 0.0 if exact else 0.01
    verdict = Verdict(name, outcome, "how", value, value - spread, value + spread, bound, 0 if exact else 64)
    T = np.array([1, 2, 4])
    line = BoundCurve(T, value / T, (value - spread) / T, (value + spread) / T, np.array([np.nan, 0.4, 0.3]), exact)
    constants = (Constant("L", 1.0, "exact"), Constant("zeta", np.inf, "infinite"))
    return Finding(name, setting, "in full", "synthetic", verdict, worst, constants, line, (worst,) * 3)


def note(name):
    return Note(f"Title of {name}", "It says.", "It is loose.", "a < b & c", "Somebody 2020", "page", "mean of F")


def report_of(*findings, figures=False):
    rows = tuple(
        Tightness(T, z, 0.2, 0.21, {"R1#": 0.3, "R1": 0.4, "(15)": 2.0, "(17)": 3.0}, 0.2)
        for T in (1, 2)
        for z in (0, 1)
    )
    steps = StepChoice(
        "M = 2", np.array([0.1, 1.0]), np.array([0.3, 0.1]), np.array([1.0, np.nan]), np.array([0.5, 0.2]), (1.0, 0.1),
        (0.1, 1.0), 0.3,
    )  # fmt: skip
    notes = {f.theorem: note(f.theorem) for f in findings}
    claims, about = (Claim("it is so", True, "1 < 2"),), {"seed": "7", "numpy": "2"}
    if figures:
        return VerificationReport(findings, notes, rows, steps, claims, about, 3.0)
    findings = tuple(replace(f, curve=None, worst_curve=()) for f in findings)
    return VerificationReport(findings, notes, (), None, claims, about, 3.0)


@pytest.fixture(scope="module")
def mixed():
    return report_of(
        finding("first"),
        finding("first", Outcome.INCONCLUSIVE, "ten clients", exact=False),
        finding("second", Outcome.NOT_APPLICABLE),
        finding("second", Outcome.HOLDS, "no worst case", worst=WorstCaseInterval(np.nan, np.nan, "too large")),
        figures=True,
    )


@pytest.fixture(scope="module")
def text(mixed):
    return page(mixed)


@pytest.mark.slow
def test_tags_close_ids_are_unique_and_links_lead_somewhere(text):
    read = Reader(text)
    ids = [attrs["id"] for _, attrs in read.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = {attrs["href"] for _, attrs in read.elements if "href" in attrs}
    assert targets
    for target in targets:
        assert target.startswith("#"), target
        assert target[1:] in ids, target
    used = {u for _, attrs in read.elements for v in attrs.values() for u in re.findall(r"url\(#([^)]+)\)", v or "")}
    assert used <= set(ids)


def test_nothing_is_loaded(text):
    for _, attrs in Reader(text).elements:
        assert not {"src", "srcset", "data", "action", "poster", "xlink:href"} & set(attrs)
        assert not any(name.startswith("on") for name in attrs)
    assert not {tag for tag, _ in Reader(text).elements} & {"script", "link", "iframe", "img", "object", "embed"}
    assert "http" not in text
    assert "@import" not in text
    assert "url(" not in re.sub(r"url\(#[^)]*\)", "", text)


def test_every_finding_is_shown(mixed, text):
    words = Reader(text).words
    for f in mixed.findings:
        assert words.count(f.setting) >= 2  # in the table and in an article
        assert f"Title of {f.theorem}" in words
    for text in (
        "0.2 exact",
        "0.4 ± 0.01",
        "0.3 to 0.31",
        "needs a finite zeta, got inf",
        "too large",
        "∞",
        "seed",
        "infinite",
    ):
        assert text in words, text
    for text in (
        "It says.",
        "It is loose.",
        "a < b & c",
        "docs/theory/page.md",
        "every F_k <convex>",
        "heterogeneity drift",
    ):
        assert text in words, text
    assert "75.0%" in words  # start, of 0.4
    for outcome in Outcome:
        assert f"{MARKS[outcome]} {OUTCOME_WORDS[outcome]}" in words


def test_counts_and_claims_are_shown(text):
    words = Reader(text).words
    assert "2 theorems in 4 settings" in words
    assert "No theorem is violated. 1 of 1 claims" in words
    chips = re.search(r'<ul class="chips".*?</ul>', text).group(0)
    assert re.findall(r"<b>(\d+)</b>(.)", chips) == [
        ("2", "✓"),
        ("0", "○"),
        ("0", "✗"),
        ("1", "?"),
        ("1", "–"),
        ("0", "!"),
    ]


def test_a_violation_is_red_and_said_in_words():
    text = page(report_of(finding("first", Outcome.VIOLATED)))
    read = Reader(text)
    assert read.words.count("✗ VIOLATED") >= 3  # summary, table, article
    assert "Something is violated" in read.words
    assert "No theorem is violated" not in read.words
    assert ("span", {"class": "v violated"}) in read.elements
    assert any(tag == "article" and attrs["class"] == "violated" for tag, attrs in read.elements)
    assert re.search(r"\.violated,\.contradicted\{color:var\(--bad\)\}", text)


def test_a_bound_below_the_worst_case_is_a_violation():
    f = finding("first", worst=WorstCaseInterval(0.5, 0.6, "all convex clients"))
    assert f.outcome is Outcome.VIOLATED
    assert "the exact worst case, at least 0.5, exceeds the bound" in Reader(page(report_of(f))).words


@pytest.mark.slow
def test_a_failed_claim_is_shown():
    found = replace(report_of(finding("first"), figures=True), claims=(Claim("it is so", False, "2 < 1"),))
    words = Reader(page(found)).words
    assert "✗ FAILS it is so" in words
    assert "Something is violated" in words


def test_hostile_names_are_escaped():
    f = replace(finding("first", setting=HOSTILE), theorem=HOSTILE, words=HOSTILE, data=HOSTILE)
    refused = replace(finding("x", Outcome.NOT_APPLICABLE, HOSTILE), theorem=HOSTILE)
    found = report_of(f, refused)
    found = replace(found, notes={HOSTILE: Note(*[HOSTILE] * 7)}, about={HOSTILE: HOSTILE})
    found = replace(found, claims=(Claim(HOSTILE, True, HOSTILE),))
    text = page(found)
    assert "<script" not in text
    read = Reader(text)
    assert HOSTILE in "".join(read.text)
    assert not any(name.startswith("on") for _, attrs in read.elements for name in attrs)


def test_figures_speak_and_take_the_colours_of_the_page(text):
    read = Reader(text)
    figures = [attrs for tag, attrs in read.elements if tag == "svg"]
    assert len(figures) == 3 + 2 + 1  # curves, tightness, steps
    for attrs in figures:
        assert attrs["role"] == "img"
        assert len(attrs["aria-label"]) > 30
    assert "bound from 0.4 to 0.3" in figures[-3]["aria-label"]
    assert "#0" not in "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert "var(--measured)" in text
    assert "prefers-color-scheme:dark" in text
    assert "@media print" in text
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in read.elements


def test_tables_have_headers(text):
    read = Reader(text)
    headers = [attrs for tag, attrs in read.elements if tag == "th"]
    assert headers
    assert all(attrs.get("scope") in ("col", "row", "rowgroup") for attrs in headers)
    regions = [attrs for tag, attrs in read.elements if attrs.get("role") == "region"]
    assert len(regions) == sum(tag == "table" for tag, _ in read.elements)
    assert all(attrs["tabindex"] == "0" and attrs["aria-label"] for attrs in regions)
    assert dict(read.elements)["html"]["lang"] == "en"


@pytest.mark.slow
def test_equal_findings_give_equal_bytes(mixed, text):
    assert page(mixed) == text


def test_curves_without_anything_to_draw():
    f = finding("first")
    nothing = np.full(3, np.nan)
    flat = BoundCurve(np.array([1, 2, 4]), np.zeros(3), np.zeros(3), np.zeros(3), nothing, True)
    Reader(page(replace(report_of(), findings=(replace(f, curve=flat),), notes={"first": note("first")})))
    zero = replace(f.verdict, measured=0.0, low=0.0, high=0.0)
    assert "the measured value is 0" in Reader(page(report_of(replace(f, verdict=zero)))).words
    empty = replace(f.verdict, bound=replace(f.verdict.bound, terms={"start": 0.0}))
    assert (
        "Every term is 0"
        in Reader(page(report_of(replace(f, verdict=empty, worst=WorstCaseInterval(np.nan, np.nan, "x"))))).words
    )


def test_bound_that_is_not_the_sum_of_its_terms():
    f = finding("first")
    sharp = replace(f.verdict, bound=replace(f.verdict.bound, combine=lambda terms: 0.33))
    assert "The bound is 0.33, sharper than the sum." in Reader(page(report_of(replace(f, verdict=sharp)))).words


def test_written_whole_into_new_folders(tmp_path):
    found = report_of(finding("first"))
    file = write_page(found, tmp_path / "a" / "b")
    assert file == tmp_path / "a" / "b" / "index.html"
    assert [p.name for p in file.parent.iterdir()] == ["index.html"]
    assert file.read_text(encoding="utf-8") == page(found)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="--report must be a folder that can be written to"):
        check_folder(tmp_path / "file")


@pytest.mark.compiled
@pytest.mark.slow
def test_real_findings_make_a_page():
    from fedconvex.verify import checks, verify_suite

    found = verify_suite(checks(["weight-divergence-zhao"]), curves=True, tightness=False)
    read = Reader(page(found))
    for f in found.findings:
        assert f.setting in read.words
    assert "Zhao" in read.words
    assert len(page(found)) < 200_000


def test_texts_of_drawings_keep_their_decimals():
    """Coordinates are rounded to two decimals; what a label says is not."""
    from fedconvex.report.drawings import as_svg

    def draw(axis):
        axis.set_xticks([0.123456], ["1.0375"])
        axis.plot([0.0, 1.0 / 3.0], [0.0, 1.0])

    text = as_svg(draw, "d", "a 0.12345")
    assert ">1.0375<" in text and "a 0.12345" in text
    assert not re.search(r'[xy]="-?[0-9]+[.][0-9]{3}', text)
