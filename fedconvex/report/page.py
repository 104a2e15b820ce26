"""One self-contained page that shows what a verification found: no script, no font, no image from elsewhere."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from fedconvex._check import bad
from fedconvex.models import write_file
from fedconvex.report.drawings import curve_drawing, needs_matplotlib, step_drawing, tightness_drawing
from fedconvex.verify import Outcome
from fedconvex.verify.findings import OUTCOME_WORDS, Finding, Note, VerificationReport

__all__ = ["check_folder", "page", "write_page"]

MARKS = {
    Outcome.HOLDS: "✓",
    Outcome.VIOLATED: "✗",
    Outcome.INCONCLUSIVE: "?",
    Outcome.NOT_APPLICABLE: "–",
}

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;--grid:#e3e6ea;--card:#f6f8fa;
--link:#0550ae;--measured:#0072b2;--bound:#d55e00;--worst:#007a5a;--fourth:#a8457f;--good:#006b3c;--bad:#b3001b;
--open:#7a4d00;--bad-back:#ffe9ec;--t0:#0072b2;--t1:#e69f00;--t2:#009e73;--t3:#cc79a7;--t4:#56b4e9;--t5:#999}
@media(prefers-color-scheme:dark){:root{--paper:#14171c;--ink:#e6e8eb;--soft:#a3acb6;--line:#3a424c;--grid:#2b323a;
--card:#1d2229;--link:#7cb7ff;--measured:#56b4e9;--bound:#ff8c42;--worst:#35c48d;--fourth:#e49ac4;--good:#4ed18d;
--bad:#ff7b8a;--open:#f0b357;--bad-back:#4a1820}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0 auto;padding:1rem;max-width:76rem;background:var(--paper);color:var(--ink);overflow-wrap:break-word;
font:1rem/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{font-size:1.7rem;line-height:1.2;margin:.5rem 0}
h2{font-size:1.3rem;line-height:1.3;margin:2.5rem 0 .5rem;border-top:1px solid var(--line);padding-top:1rem}
h3{font-size:1.05rem;margin:0 0 .3rem}
p{margin:.4rem 0;max-width:50rem}
a{color:var(--link)}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.85em}
pre{white-space:pre-wrap;background:var(--card);padding:.7rem;border-radius:.4rem;margin:.4rem 0}
.soft{color:var(--soft)}
.small{font-size:.85rem}
.scroll{overflow-x:auto;max-width:100%;margin:.5rem 0}
table{border-collapse:collapse;font-size:.85rem}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
thead th{border-bottom:2px solid var(--line);white-space:nowrap}
tbody th{font-weight:500}
.cards tbody th{min-width:17rem}
tbody th[colspan]{font-weight:600;padding-top:1rem;white-space:normal}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.chips{display:flex;flex-wrap:wrap;gap:.5rem;margin:1rem 0;padding:0;list-style:none}
.chips li{border:1px solid var(--line);border-radius:.5rem;padding:.4rem .8rem;background:var(--card)}
.chips b{font-size:1.3rem;margin-right:.4rem}
.chips .zero{color:var(--soft)}
.v{font-weight:600;white-space:nowrap}
.holds{color:var(--good)}
.violated{color:var(--bad)}
.v.violated{background:var(--bad-back);border:2px solid var(--bad);border-radius:.3rem;padding:0 .3rem}
.inconclusive{color:var(--open)}
.not_applicable{color:var(--soft);font-weight:400}
nav ul{columns:17rem;column-gap:2rem;padding-left:1.2rem;margin:.3rem 0}
article{border:1px solid var(--line);border-radius:.5rem;padding:.8rem;margin:.8rem 0;background:var(--card)}
article.violated{border:2px solid var(--bad);color:inherit}
article pre{background:var(--paper)}
.two,.three{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr));gap:.5rem 1.5rem}
.three{grid-template-columns:repeat(auto-fit,minmax(min(100%,19rem),1fr))}
.two>*,.three>*{min-width:0}
svg{display:block;width:100%;height:auto;max-width:34rem;font-family:inherit}
svg *{stroke-linejoin:round}
figure{margin:.3rem 0}
figcaption{font-size:.85rem;color:var(--soft)}
.bar{display:flex;height:1.4rem;border:1px solid var(--line);border-radius:.3rem;overflow:hidden;margin:.6rem 0 .3rem}
.bar span{min-width:1px;border-right:1px solid var(--paper)}
.key{display:inline-block;width:.8rem;height:.8rem;border-radius:.15rem;margin-right:.4rem;vertical-align:-.05rem}
.bar,.bar span,.key{print-color-adjust:exact;-webkit-print-color-adjust:exact}
.t0{background:var(--t0)}.t1{background:var(--t1)}.t2{background:var(--t2)}
.t3{background:var(--t3)}.t4{background:var(--t4)}.t5{background:var(--t5)}
details{margin:.4rem 0}
summary{cursor:pointer;color:var(--link);font-size:.9rem}
ul{margin:.3rem 0;padding-left:1.2rem}
.skip{position:absolute;left:-99rem}
.skip:focus{left:1rem}
@media(max-width:44rem){.cards thead{position:absolute;left:-99rem}.cards,.cards tbody,.cards tr,
.cards th,.cards td{display:block}.cards tr{border-bottom:2px solid var(--line);padding:.4rem 0}
.cards th,.cards td{border:0;padding:.05rem 0;text-align:left;white-space:normal}
.cards td[data-label]::before{content:attr(data-label) ": ";color:var(--soft)}.cards td.empty{display:none}
.cards tbody th[colspan]{font-size:1rem}}
@media print{:root{color-scheme:light;--paper:#fff;--ink:#000;--card:#fff}body{max-width:none;font-size:9.5pt}
article{break-inside:avoid}details::details-content{content-visibility:visible;height:auto;display:block}
nav{display:none}.scroll{overflow:visible}h2{break-after:avoid}}
"""


def check_folder(folder: str | os.PathLike[str]) -> Path:
    """Return the folder if a page can be written into it, judged before any work is done.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    ValueError
        If the folder cannot be made or written to.
    """
    needs_matplotlib()
    home = Path(folder)
    probe = home / f".fedconvex.{os.getpid()}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise bad("--report", "be a folder that can be written to", f"{home} ({error.strerror})") from None
    return home


def write_page(found: VerificationReport, folder: str | os.PathLike[str]) -> Path:
    """Write the page as index.html into a folder, whole or not at all; return the file."""
    file = check_folder(folder) / "index.html"
    write_file(file, page(found).encode())
    return file


def page(found: VerificationReport) -> str:
    """Return the page.

    Parameters
    ----------
    found : VerificationReport

    Returns
    -------
    str
        HTML with styles and figures inside; it loads nothing.

    Examples
    --------
    >>> from fedconvex.verify import VerificationReport
    >>> from fedconvex.report.page import page
    >>> text = page(VerificationReport((), {}))
    >>> text.startswith("<!DOCTYPE html>"), "src=" in text
    (True, False)
    """
    ids = {id(f): f"f{i}" for i, f in enumerate(found.findings)}
    parts = [
        _head(found),
        _contents(found),
        _reading(),
        _summary_table(found, ids),
        _tightness(found),
        *(_theorem(name, note, found, ids) for name, note in found.notes.items()),
        _repeat(found),
    ]
    title = "Convergence theorems beside what runs really do"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head>\n<body>"
        '<a class="skip" href="#table">To the table</a><main>\n' + "\n".join(parts) + "\n</main></body></html>\n"
    )


# ---------------------------------------------------------------------- pieces


def _badge(outcome: Outcome) -> str:
    return f'<span class="v {outcome.name.lower()}">{MARKS[outcome]} {OUTCOME_WORDS[outcome]}</span>'


def _number(x: float, digits: int = 4) -> str:
    if math.isnan(x):
        return "–"
    if math.isinf(x):
        return "∞"
    text = f"{x:.{digits}g}"
    mantissa, _, power = text.partition("e")
    return f"{mantissa}·10<sup>{int(power)}</sup>" if power else text


def _measured(f: Finding) -> str:
    v = f.verdict
    if v.bound is None:
        return "–"
    if v.trajectories == 0:
        return f"{_number(v.measured)} <span class='soft'>exact</span>"
    return f"{_number(v.measured)} ± {_number(f.margin, 2)}"


def _worst(f: Finding) -> str:
    if not f.worst.known:
        return "–"
    low, high = f"{f.worst.lower:.4g}", f"{f.worst.upper:.4g}"
    return low if low == high else f"{low} to {high}"


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int], name: str) -> str:
    """Return a table that scrolls by itself; cells are HTML, the first of a row is its header."""

    def cell(j: int, text: str) -> str:
        if j == 0:
            return f'<th scope="row"{_look(j in numbers)}>{text}</th>'
        return f"<td{_look(j in numbers)}>{text}</td>"

    head = "".join(f'<th scope="col"{_look(j in numbers)}>{h}</th>' for j, h in enumerate(heads))
    body = "".join(f"<tr>{''.join(cell(j, c) for j, c in enumerate(row))}</tr>" for row in rows)
    label = f'aria-label="{escape(name)}"'
    note = f'<p class="soft small">{caption}</p>' if caption else ""
    return (
        f'{note}<div class="scroll" role="region" tabindex="0" {label}><table {label}>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _look(number: bool) -> str:
    return ' class="n"' if number else ""


def _head(found: VerificationReport) -> str:
    chips = "".join(
        f'<li class="{o.name.lower() if m else "zero"}"><b>{m}</b>{MARKS[o]} {OUTCOME_WORDS[o]}</li>'
        for o, m in found.counts.items()
    )
    words = "No theorem is violated."
    if found.violated:
        words = '<strong class="violated">✗ Something is violated.</strong>'
    claims = ""
    if found.claims:
        claims = f" {sum(c.holds for c in found.claims)} of {len(found.claims)} claims on tightness hold."
    n, m = len(found.findings), len(found.notes)
    return (
        '<header id="summary"><h1>Convergence theorems beside what runs really do</h1>'
        f"<p>{m} theorem{'s' * (m != 1)} in {n} setting{'s' * (n != 1)}: hypotheses checked, the quantity obtained "
        "exactly or by Monte Carlo, compared with the bound and with the exact worst case of its class. "
        f'{words}{claims}</p><ul class="chips" aria-label="Settings by verdict">{chips}</ul></header>'
    )


def _contents(found: VerificationReport) -> str:
    links = [("#reading", "How to read this page"), ("#table", "All settings")]
    links += [("#tightness", "How tight the bounds are")] if found.tightness else []
    links += [(f"#{_anchor(name)}", note.title) for name, note in found.notes.items()]
    links.append(("#repeat", "To repeat this"))
    items = "".join(f'<li><a href="{escape(to)}">{escape(text)}</a></li>' for to, text in links)
    return f'<nav aria-label="Contents"><ul>{items}</ul></nav>'


def _anchor(name: str) -> str:
    return "theorem-" + "".join(c if c.isalnum() else "-" for c in name)


def _reading() -> str:
    return """<section id="reading"><h2>How to read this page</h2>
<p><b>Measured</b> is the very quantity that the theorem bounds (which model, which average, which norm). "exact" means
that nothing was sampled: the moments of a run are closed for squared loss, and some runs have no randomness. Otherwise
it is the mean over independent runs ± half the width of its 99.9 % confidence interval.</p>
<p><b>Bound</b> is the theorem's, with constants of the problem that hold for certain. <b>÷ measured</b> says how loose
it is in this setting, which mixes the looseness of the theorem with the kindness of the problem.</p>
<p><b>Exact worst case</b> is the largest value over <em>all</em> convex problems with the same L, D and heterogeneity,
in any dimension: a semidefinite programme, given as an interval whose two ends are certified. <b>÷ worst</b> is the
looseness of the theorem itself. It is within reach for few clients, local steps and rounds, without randomness.</p>
<p><b>Verdicts.</b> ✓ holds: the value, with its interval, is at most the bound. ✗ VIOLATED: it exceeds the bound, or
the exact worst case does. ? inconclusive: the interval contains the bound. – not applicable: a hypothesis fails, named
with its numbers; the theorem is silent there.</p>
<p>Quantities have the units of the objective (suboptimality), of the squared model (deviation) or of the squared
gradient (noise); real features and targets are standardised, so all are pure numbers.</p></section>"""


def _summary_table(found: VerificationReport, ids: Mapping[int, str]) -> str:
    heads = ("Setting", "Data", "Measured", "Bound", "÷ measured", "Exact worst case", "÷ worst", "Verdict")
    groups = []
    for name, note in found.notes.items():
        title = f'<a href="#{_anchor(name)}">{escape(note.title)}</a> <code class="soft">{escape(name)}</code>'
        rows = [f'<tr><th colspan="{len(heads)}" scope="rowgroup">{title}</th></tr>']
        rows += [_summary_row(f, ids[id(f)], heads) for f in found.findings if f.theorem == name]
        groups.append(f"<tbody>{''.join(rows)}</tbody>")
    head = "".join(f'<th scope="col"{_look(2 <= j <= 6)}>{h}</th>' for j, h in enumerate(heads))
    return (
        '<section id="table"><h2>All settings</h2><p class="soft small">tau local steps, T rounds, B rows per '
        "mini-batch, and how many clients take part where not all do.</p>"
        '<div class="scroll" role="region" tabindex="0" aria-label="All settings">'
        '<table class="cards" aria-label="All settings">'
        f"<thead><tr>{head}</tr></thead>{''.join(groups)}</table></div></section>"
    )


def _summary_row(f: Finding, me: str, heads: Sequence[str]) -> str:
    v = f.verdict
    first = f'<th scope="row"><a href="#{me}">{escape(f.setting)}</a></th>'
    last = f'<td data-label="{heads[-1]}">{_badge(f.outcome)}</td>'
    if v.bound is None:
        return f'<tr>{first}<td>{escape(f.data)}</td><td colspan="5" class="soft">{escape(f.why)}</td>{last}</tr>'
    numbers = [_measured(f), _number(v.bound.value), _number(v.ratio), _worst(f), _number(f.worst.ratio(v.bound))]
    cells = "".join(
        f'<td class="n{" empty" if text == "–" else ""}" data-label="{name}">{text}</td>'
        for name, text in zip(heads[2:-1], numbers, strict=True)
    )
    return f"<tr>{first}<td>{escape(f.data)}</td>{cells}{last}</tr>"


# ---------------------------------------------------------------------- tightness


def _tightness(found: VerificationReport) -> str:
    if not found.tightness:
        return ""
    names = list(found.tightness[0].bounds)
    rows = []
    for t in found.tightness:
        interval = f"{t.lower:.5f}" if f"{t.lower:.5f}" == f"{t.upper:.5f}" else f"{t.lower:.5f} to {t.upper:.5f}"
        rows.append(
            [
                str(t.rounds),
                f"{t.zeta:g}",
                interval,
                *(f"{_number(t.bounds[n])} ({t.ratio(n):.2f})" for n in names),
            ]
        )
    heads = ["T", "zeta", "Exact worst case", *names]
    table = _table(
        "Two clients, tau = 2 local steps with full gradients, L = D = 1, step 1/(4L), which is (16). Bound, and in "
        "brackets the bound over the upper end of the exact worst case.",
        heads,
        rows,
        range(1, len(heads)),
        "Bounds over the exact worst case",
    )
    drawn = ""
    for T in dict.fromkeys(t.rounds for t in found.tightness):
        drawn += f"<figure>{tightness_drawing([t for t in found.tightness if t.rounds == T], f'tight{T}')}</figure>"
    claims = "".join(
        f'<li><span class="v {"holds" if c.holds else "violated"}">{"✓ holds" if c.holds else "✗ FAILS"}</span> '
        f"{escape(c.text)} <span class='soft'>({escape(c.numbers)})</span></li>"
        for c in found.claims
    )
    steps = ""
    if found.steps is not None:
        s = found.steps
        gap = s.worst_there / s.best[1]
        steps = (
            f"<h3>The best step</h3><p>{escape(s.words)}: the exact worst case is least at {s.best[0]:.3g}/L, "
            f"{_number(s.best[1])}. The bound (15) is least at {s.best_bound[0]:.3g}/L, {_number(s.best_bound[1])}; "
            f"whoever takes that step has a worst case of {_number(s.worst_there)}, {gap:.2g} times the least.</p>"
            f"<figure>{step_drawing(s, 'steps')}<figcaption>Circles mark the least exact worst case and the least (15)."
            "</figcaption></figure>"
        )
    return (
        '<section id="tightness"><h2>How tight the bounds are</h2><p>Bounds for FedAvg on convex functions whose '
        "gradients differ by at most zeta everywhere, beside what the worst functions of that class do to the method. "
        "1 is sharp.</p>"
        f'{table}<div class="three">{drawn}</div><ul>{claims}</ul>{steps}</section>'
    )


# ---------------------------------------------------------------------- theorems


def _theorem(name: str, note: Note, found: VerificationReport, ids: Mapping[int, str]) -> str:
    mine = [f for f in found.findings if f.theorem == name]
    statement = ""
    if note.statement:
        statement = f"<details><summary>Statement</summary><pre>{escape(note.statement)}</pre></details>"
    return (
        f'<section id="{_anchor(name)}"><h2>{escape(note.title)} <code class="soft">{escape(name)}</code></h2>'
        f"<p>{escape(note.says)}</p><p><b>It bounds</b> {escape(note.quantity)}.</p>"
        f"<p><b>Source:</b> {escape(note.source)}. <b>Proof and discussion:</b> docs/theory/{escape(note.page)}.md.</p>"
        f"<p><b>Where it is loose:</b> {escape(note.loose)}</p>{statement}" + "".join(_article(f, ids) for f in mine)
    ) + "</section>"


def _article(f: Finding, ids: Mapping[int, str]) -> str:
    me, v = ids[id(f)], f.verdict
    text = (
        f'<article id="{me}" class="{f.outcome.name.lower() if f.outcome is Outcome.VIOLATED else ""}">'
        f"<h3>{_badge(f.outcome)} {escape(f.setting)}</h3><p class='small'>{escape(f.words)}.</p>"
    )
    if v.bound is None:
        return f"{text}<p>{escape(f.why)}.</p></article>"
    interval = "" if v.trajectories == 0 else f" (99.9 % interval {_number(v.low)} to {_number(v.high)})"
    ratio = f"{_number(v.ratio)} times the measured value" if not math.isnan(v.ratio) else "the measured value is 0"
    text += (
        f"<p>Measured <b>{_number(v.measured)}</b>{interval}, bound <b>{_number(v.bound.value)}</b>: {ratio}. "
        f"<span class='soft'>{escape(f.why)}.</span></p>"
    )
    if f.worst.known:
        text += (
            f"<p>Exact worst case <b>{_worst(f)}</b> over {escape(f.worst.words)}; the bound is "
            f"<b>{_number(f.worst.ratio(v.bound))}</b> times that.</p>"
        )
    else:
        text += f"<p class='soft small'>No exact worst case: {escape(f.worst.words)}.</p>"
    left = ""
    if f.curve is not None:
        left = f"<figure>{curve_drawing(f, me)}</figure>"
    hypotheses = "".join(
        f"<li>{escape(h.text)} <span class='soft'>[{escape(h.numbers)}]</span></li>" for h in v.bound.requires
    )
    constants = _table(
        "Of the problem, with this mini-batch and start.",
        ["Constant", "Value", "How it was obtained"],
        [[escape(c.name), _number(c.value), escape(c.how)] for c in f.constants],
        (1,),
        f"Constants, {f.theorem}, {f.setting}",
    )
    right = f"<div>{_terms(v.bound, f)}</div>"
    more = (
        f"<details><summary>Hypotheses with numbers, and constants</summary><ul>{hypotheses}</ul>{constants}</details>"
    )
    return f'{text}<div class="two">{left}{right}</div>{more}</article>'


def _terms(bound: Any, f: Finding) -> str:
    """Return a stacked bar with its numbers."""
    total = sum(bound.terms.values())
    if not total > 0.0 or not math.isfinite(total):
        return f"<p>Every term is {_number(total)}.</p>"
    share = {name: value / total for name, value in bound.terms.items()}
    label = "Terms of the bound: " + ", ".join(f"{name} {s:.1%}" for name, s in share.items())
    spans = "".join(
        f'<span class="t{min(i, 5)}" style="width:{100.0 * s:.2f}%"></span>'
        for i, s in enumerate(share.values())
        if s > 0
    )
    rows = [
        [f'<span class="key t{min(i, 5)}"></span>{escape(name)}', _number(bound.terms[name]), f"{s:.1%}"]
        for i, (name, s) in enumerate(share.items())
    ]
    note = (
        ""
        if math.isclose(total, bound.value, rel_tol=1e-9)
        else f"The bound is {_number(bound.value)}, sharper than the sum."
    )
    table = _table(note, ["Term of the bound", "Value", "Share"], rows, (1, 2), f"Terms, {f.theorem}, {f.setting}")
    return f'<div class="bar" role="img" aria-label="{escape(label)}">{spans}</div>{table}'


def _repeat(found: VerificationReport) -> str:
    rows = [[escape(name), escape(value)] for name, value in found.about.items()]
    rows.append(["time", f"{found.seconds:.0f} s"])
    table = _table("Equal versions and seeds give equal numbers.", ["What", "Value"], rows, (), "Versions and seeds")
    return f'<section id="repeat"><h2>To repeat this</h2>{table}</section>'
