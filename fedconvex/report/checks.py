"""A verification report as a table for the terminal and as a document for machines."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedconvex.verify.check_records import (
    OUTCOME_WORDS,
    Exponent,
    Finding,
    Noticed,
    Power,
    TightnessMap,
    VerificationReport,
)

# ---------------------------------------------------------------------- for terminals


def as_table(found: VerificationReport, width: int = 120, details: bool = False) -> str:
    """Return the findings, the tightness table and a summary as text of at most so many columns (at least 40).

    Parameters
    ----------
    found : VerificationReport
    width : int
        Columns; below 112 the worst case goes, below 84 the ratios go and settings are folded.
    details : bool
        Add hypotheses with their numbers and the terms of the bounds.

    Examples
    --------
    >>> from fedconvex.report.checks import as_table
    >>> from fedconvex.verify.check_records import Finding, Note, VerificationReport, WorstCaseInterval
    >>> from fedconvex.verify import Outcome, Verdict
    >>> verdict = Verdict("sums", Outcome.NOT_APPLICABLE, "needs two numbers, got one")
    >>> worst = WorstCaseInterval(0.0, float("inf"), "none")
    >>> finding = Finding("sums", "one number", "one number", "synthetic", verdict, worst)
    >>> note = Note("Sums are sums", "", "", "", "", "", "")
    >>> print(as_table(VerificationReport((finding,), {"sums": note}), width=84))
    setting                      measured               bound  ÷measured  verdict
    sums: Sums are sums
      one number                 needs two numbers, got one               not applicable
    <BLANKLINE>
    1 check: 0 holds, 0 vacuous, 0 VIOLATED, 0 inconclusive, 1 not applicable; 0 s.
    """
    width = max(width, 40)
    blocks = [_finding_lines(found, width)]
    if details:
        blocks.append([line for f in found.findings for line in _detail_lines(f, width)])
    if found.tightness:
        blocks.append(_tightness_lines(found, width))
    blocks += [_exponent_lines(name, mine, width) for name, mine in found.exponents.items()]
    blocks += [_map_lines(one) for one in found.maps]
    blocks += [[str(c).rstrip()] for c in found.counterexamples]
    blocks.append(_fold(found.sentence, width, ""))
    return "\n\n".join("\n".join(block) for block in blocks if block)


_COLUMNS = (("measured", 17), ("bound", 9), ("÷measured", 9), ("worst case", 10), ("÷worst", 7))  # then the verdict, 14


def _finding_lines(found: VerificationReport, width: int) -> list[str]:
    columns = _COLUMNS[: 5 if width >= 112 else 3 if width >= 84 else 2]
    numbers = sum(w + 2 for _, w in columns)
    first = width - numbers - 14 - 2
    folded = first < 24
    if folded:  # the setting stands in a line of its own
        first = max(width - numbers - 14 - 2, 4)
    heads = [f"{name:<{w}}" if i == 0 else f"{name:>{w}}" for i, (name, w) in enumerate(columns)]
    lines = ["  ".join([f"{'setting':<{first}}", *heads, "verdict"])] if not folded else []
    theorem = ""
    for f in found.findings:
        if f.theorem != theorem:
            lines += _power_lines(found.powers.get(theorem), width)
            theorem = f.theorem
            lines += _fold(f"{theorem}: {found.notes[theorem].title}", width, "")
        verdict = OUTCOME_WORDS[f.outcome]
        if f.verdict.bound is None:
            body, room = f.why, numbers - 2
        else:
            body, room = "", numbers - 2
        setting = textwrap.wrap(f.setting, (width if folded else first) - 2) or [""]
        if folded:
            lines += [f"  {s}" for s in setting]
            text = body or f"{_spread(f)} <= {f.verdict.bound.value:.4g}"  # type: ignore[union-attr]
            lines += _fold(f"{verdict}: {text}", width, "    ")
            continue
        if f.verdict.bound is None:
            cells = textwrap.wrap(body, room) or [""]
        else:
            cells = ["  ".join(_cells(f, columns))]
        for i in range(max(len(setting), len(cells))):
            left = f"  {setting[i] if i < len(setting) else ''}"
            middle = cells[i] if i < len(cells) else ""
            right = verdict if i == 0 else ""
            lines.append(f"{left:<{first}}  {middle:<{room}}  {right}".rstrip())
    return lines + _power_lines(found.powers.get(theorem), width)


def _power_lines(power: Power | None, width: int) -> list[str]:
    """Return the smallest errors that the checks of a theorem would have noticed."""
    if power is None:
        return []
    parts = {"the bound": power.whole} | (dict(power.terms) if len(power.terms) > 1 else {})
    text = ", ".join(f"{name} ÷ {_short(n.factor)}" if n else f"{name} not at all" for name, n in parts.items())
    lines, speaks = [], power.terms and not power.violated
    if speaks:
        lines += _fold(f"smallest errors noticed: {text}", width, "  ")
    if speaks and not power.established:
        lines += _fold(f"power not established: {tightest_ratio(power)}", width, "  ")
    if power.constant is not None and power.constant > 1.0:
        lines += _fold(f"the bound would have to be {power.constant:.4g} times as large", width, "  ")
    return lines


def tightest_ratio(power: Power) -> str:
    """Return in words how close to the bound anything came."""
    return "nothing measured presses on it" if power.constant is None else f"tightest ratio found {power.constant:.3g}"


def _exponent_lines(theorem: str, found: Sequence[Exponent], width: int) -> list[str]:
    """Return by term the exponents of its parameters, and which errors of them would be noticed."""
    lines = _fold(f"{theorem}: {sum(e.established for e in found)} of {len(found)} exponents established", width, "")
    for e in found:
        measured = "" if math.isnan(e.fitted) else f", measured {e.fitted:.2f} over a factor {e.span:.3g}"
        lines += _fold(f"{e.term}: {e.parameter}^{e.bound:.2f}{measured}; {e.words}", width, "  ")
    return lines


def _map_lines(found: TightnessMap) -> list[str]:
    """Return the bound over the exact worst case as a table of few columns."""
    heads, rows = found.table()
    wide = max(map(len, heads))
    title = f"{found.theorem}: bound over exact worst case, with the constants of {found.words}"
    return [title, *("  ".join(f"{cell or '-':>{wide}}" for cell in row) for row in (heads, *rows))]


def _cells(f: Finding, columns: Sequence[tuple[str, int]]) -> list[str]:
    assert f.verdict.bound is not None
    worst = f"{f.worst.upper:.4g}" if f.worst.has_interval else "-"
    texts = [_spread(f), f"{f.verdict.bound.value:.4g}", _short(f.verdict.ratio), worst]
    texts.append(_short(f.worst.ratio(f.verdict.bound)))
    return [f"{t:<{w}}" if i == 0 else f"{t:>{w}}" for i, (t, (_, w)) in enumerate(zip(texts, columns, strict=False))]


def _spread(f: Finding) -> str:
    v = f.verdict
    if v.trajectories == 0 or not v.measured:
        return f"{v.measured:.4g}"
    share = f.margin / abs(v.measured)
    return f"{v.measured:.4g} ±{share:.1%}" if math.isfinite(share) else f"{v.measured:.4g} ±?"


def _short(x: float) -> str:
    return "-" if math.isnan(x) else f"{x:.3g}" if x < 1e5 else f"{x:.1e}"


def _detail_lines(f: Finding, width: int) -> list[str]:
    lines = _fold(f"{f.theorem}, {f.words}", width, "")
    lines += _fold(f"{OUTCOME_WORDS[f.outcome]}: {f.why}", width, "  ")
    if f.verdict.bound is None:
        return lines
    lines += _fold(f"speaks of: {f.verdict.bound.quantity.words}", width, "  ")
    lines += [line for h in f.verdict.bound.requires for line in _fold(f"given: {h.text} [{h.numbers}]", width, "  ")]
    terms = ", ".join(f"{name} {value:.4g}" for name, value in f.verdict.bound.terms.items())
    lines += _fold(f"bound {f.verdict.bound.value:.6g} of the terms {terms}", width, "  ")
    if f.worst.has_interval:
        lines += _fold(
            f"exact worst case in [{f.worst.lower:.6g}, {f.worst.upper:.6g}] over {f.worst.words}", width, "  "
        )
    else:
        lines += _fold(f"no exact worst case: {f.worst.words}", width, "  ")
    return lines


def _tightness_lines(found: VerificationReport, width: int) -> list[str]:
    names = list(found.tightness[0].bounds)
    while len(names) > 1 and 23 + 10 * len(names) > width:
        names.pop(0 if names[0] == "R1#" else -1)
    lines = _fold(
        "Bounds over the exact worst case (M = 2 clients, tau = 2 local steps, L = D = 1, step 1/(4L), which is (16))",
        width,
        "",
    )
    heads = [f"{'T':>3}", f"{'zeta':>5}", f"{'worst case':>11}", *(f"{n:>8}" for n in names)]
    lines.append("  ".join(heads))
    for t in found.tightness:
        cells = [f"{t.rounds:>3}", f"{t.zeta:>5g}", f"{t.upper:>11.5f}", *(f"{t.ratio(n):>8.2f}" for n in names)]
        lines.append("  ".join(cells))
    if found.steps is not None:
        s = found.steps
        lines += _fold(
            f"Best step ({s.words}): {s.best[0]:.3g}/L for the exact worst case, {s.best[1]:.4g}; "
            f"{s.best_bound[0]:.3g}/L for (15), {s.best_bound[1]:.4g}, where the worst case is {s.worst_there:.4g}.",
            width,
            "",
        )
    for c in found.claims:
        lines += _fold(f"{'holds' if c.holds else 'FAILS'}: {c.text} ({c.numbers})", width, "  ")
    return lines


def _fold(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)


# ---------------------------------------------------------------------- for machines


def as_document(found: VerificationReport) -> dict[str, Any]:
    """Return everything as data that JSON can hold: numbers that are not finite become None.

    Examples
    --------
    >>> from fedconvex.report.checks import as_document
    >>> from fedconvex.verify.check_records import VerificationReport
    >>> as_document(VerificationReport((), {}))["violated"]
    False
    """
    out = {
        "about": dict(found.about),
        "seconds": found.seconds,
        "violated": found.violated,
        "counts": {o.name: m for o, m in found.counts.items()},
        "theorems": {
            name: note._asdict()
            | {"power": _power(found.powers.get(name)), "exponents": _exponents(found.exponents.get(name))}
            for name, note in found.notes.items()
        },
        "findings": [_finding(f) for f in found.findings],
        "tightness": [
            t._asdict() | {"bounds": dict(t.bounds), "ratios": {n: t.ratio(n) for n in t.bounds}}
            for t in found.tightness
        ],
        "best_steps": None if found.steps is None else found.steps._asdict(),
        "claims": [c._asdict() for c in found.claims],
        "counterexamples": [c.document() for c in found.counterexamples],
        "maps": [one._asdict() | {"ratio": one.ratio} for one in found.maps],
    }
    return _plain(out)


def _exponents(found: tuple[Exponent, ...] | None) -> list[dict[str, Any]] | None:
    """Return what is known of exponents, where it was asked for."""
    return None if found is None else [e._asdict() | {"established": e.established, "words": e.words} for e in found]


def _power(power: Power | None) -> dict[str, Any] | None:
    """Return the factors, and where each is noticed."""
    if power is None:
        return None

    def each(part: Callable[[Noticed], Any]) -> dict[str, Any]:
        groups = [power.terms, power.hypotheses]
        terms, hypotheses = ({name: part(n) if n else None for name, n in group.items()} for group in groups)
        return {"whole": part(power.whole) if power.whole else None, "terms": terms, "hypotheses": hypotheses}

    found = {"smallest_constant": power.constant, "established": power.established, "looseness": power.looseness}
    return each(lambda n: n.factor) | found | {"noticed_by": each(lambda n: n.setting)}


def _finding(f: Finding) -> dict[str, Any]:
    v, worst = f.verdict, f.worst
    bound = None
    if v.bound is not None:
        bound = {
            "value": v.bound.value,
            "terms": dict(v.bound.terms),
            "quantity": v.bound.quantity.words,
            "source": v.bound.source,
            "hypotheses": [{"text": h.text, "numbers": h.numbers, "holds": h.holds} for h in v.bound.requires],
        }
    curve = None
    if f.curve is not None:
        curve = f.curve._asdict() | {
            "worst_lower": [w.lower for w in f.worst_curve],
            "worst_upper": [w.upper for w in f.worst_curve],
        }
    return {
        "theorem": f.theorem,
        "setting": f.setting,
        "words": f.words,
        "data": f.data,
        "outcome": f.outcome.name,
        "reason": f.why,
        "measured": v.measured,
        "low": v.low,
        "high": v.high,
        "trajectories": v.trajectories,
        "seconds": v.seconds,
        "bound": bound,
        "ratio": v.ratio,
        "worst": {"lower": worst.lower, "upper": worst.upper, "words": worst.words} if worst.has_interval else None,
        "worst_missing": None if worst.has_interval else worst.words,
        "bound_over_worst": f.worst.ratio(v.bound),
        "constants": [c._asdict() for c in f.constants],
        "curve": curve,
    }


def _plain(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {str(k): _plain(v) for k, v in x.items()}
    if isinstance(x, np.ndarray):
        return _plain(x.tolist())
    if isinstance(x, (list, tuple)):
        return [_plain(v) for v in x]
    x = x.item() if isinstance(x, np.generic) else x
    return None if isinstance(x, float) and not math.isfinite(x) else x
