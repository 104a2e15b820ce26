"""One self-contained page for a decision: no script, no font, no image from elsewhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedconvex._files import write_file
from fedconvex.comparison import figures
from fedconvex.comparison.decision import best_joint, decision, span, times
from fedconvex.comparison.outcomes import Outcome
from fedconvex.comparison.summary_tables import cell_text, client_rows, column_rows, cost_rows, method_rows
from fedconvex.report.drawings import check_folder

if TYPE_CHECKING:
    from fedconvex.comparison.comparison import Comparison


def write_page(found: Comparison, folder: str | os.PathLike[str]) -> Path:
    """Write the page as index.html into a folder, whole or not at all; return the file."""
    file = check_folder(folder) / "index.html"
    write_file(file, page(found).encode())
    return file


def page(found: Comparison) -> str:
    """Return the page: HTML with styles and figures inside. Its template escapes all that it is given."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    loader = ChoiceLoader([PackageLoader("fedconvex", room) for room in ("comparison", "report")])
    env = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    env.filters["cell_text"] = cell_text
    joint = found[best_joint(found)]
    counts = {o: sum(j.outcome is o for j in joint.joins) for o in Outcome}
    verdicts = [(o, n) for o, n in counts.items() if n or o is not Outcome.KEPT]
    return env.get_template("page.html").render(
        found=found,
        decision=decision(found),
        joint=joint,
        verdicts=verdicts,
        tables={
            "methods": method_rows(found),
            "clients": client_rows(found),
            "costs": cost_rows(found),
            "columns": column_rows(found),
        },
        drawn={n: Markup(text) for n, text in _drawn(found).items()},
        few=figures.MOST_CLIENTS < found.rows.K,
        sentences=_sentences(found, joint),
        settings=_settings(found),
    )


def _drawn(found: Comparison) -> dict[str, str]:
    return {
        "clients": figures.clients_figure(found),
        "errors": figures.errors_figure(found),
        "costs": figures.costs_figure(found),
        "calibration": figures.calibration_figure(found),
        "tuning": figures.tuning_figure(found),
    }


def _sentences(found: Comparison, joint: Any) -> dict[str, str]:
    """Return what each figure shows, in a sentence."""
    counts = {o: sum(j.outcome is o for j in joint.joins) for o in Outcome}
    gains, loses, few = (counts[o] for o in (Outcome.GAINS, Outcome.LOSES, Outcome.FEW))
    e, alone = found.error_name, found["alone"]
    out = {
        "clients": f"With {joint.name}, {gains or 'none'} of {found.rows.K} clients clearly {_have(gains)} a lower {e} "
        f"than with a model of their own, and {loses or 'none'} a higher one"
        + (f"; about {few} nothing can be said." if few else "."),
        "tuning": f"{joint.name} has its least loss in cross-validation at l2 = {joint.l2:.2g}; circles mark what "
        "was chosen: by afl for its worst domain, and by every client alone for itself.",
    }
    best = min(found.methods, key=lambda m: m.whole.error.value)
    out["errors"] = f"Over all held-out rows {best.name} has the least {e}, {span(best.whole.error)}"
    fair = [m for m in found.methods if m.worst is not None]
    if fair:
        m = min(fair, key=lambda m: m.clients[m.worst].error.value if m.worst is not None else 0.0)
        least = "" if m.worst is None else m.clients[m.worst].error.as_text()[0]
        out["errors"] += f"; the worst client is best off with {m.name}, at {least}"
    out["errors"] += "."
    reached = [m for m in found.methods if m.cost is not None and m.cost.reached]
    gap = found.settings.gap
    out["costs"] = f"No method came within {gap:g} of its optimum in {found.settings.rounds} rounds."
    if reached:
        m = min(reached, key=lambda m: m.cost.megabytes if m.cost else 0.0)
        assert m.cost is not None
        out["costs"] = f"{m.name} sends least to come within {gap:g} of its optimum: {m.cost.megabytes:.3g} MB."
    out["calibration"] = (
        f"Probabilities of {joint.name} are off by {joint.whole.calibration:.2g} on average over ten bins, those of "
        f"every client alone by {alone.whole.calibration:.2g}; on the line they would be right."
    )
    return out


def _held(found: Comparison) -> str:
    """Return what was held out."""
    few = "clients of fewer than 4 rows keep all"
    if found.settings.splits == 1:
        return f"{found.settings.test_size:.0%} of every client's rows, at least 2; {few}"
    return (
        f"every row {times(len(found.splits))}, in {sum(map(len, found.splits))} splits of every client's rows; {few}"
    )


def _have(n: int) -> str:
    return "has" if n == 1 else "have"


def _settings(found: Comparison) -> list[tuple[str, str]]:
    """Return how the comparison was made."""
    s, rows = found.settings, found.rows
    rounds = f"{s.local_steps} local steps where there are any, at most {s.rounds} rounds"
    return [
        ("data", f"{rows.title}: {rows.y.size:,} rows, {rows.K} clients"),
        ("loss", f"{rows.loss!r}"),
        ("held out", _held(found)),
        ("l2", f"13 values from 1e-6 to 1, {s.folds} folds, stratified within clients"),
        *([("methods in rounds", rounds)] if s.rounds else []),
        ("seed", str(s.seed)),
        ("time", f"{found.seconds:.0f} s"),
    ]
