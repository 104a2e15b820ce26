"""Figures of the page: differences by client, errors by method, gaps over traffic, calibration, cross-validation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedconvex.comparison.decision import best_joint
from fedconvex.comparison.outcomes import Outcome
from fedconvex.comparison.scores import calibration_bins
from fedconvex.report.drawings import COLOURS, INK, as_svg, log_axis
from fedconvex.report.fairness import wilson_interval

if TYPE_CHECKING:
    from fedconvex.comparison.comparison import Comparison

MOST_CLIENTS = 40
_LOOKS = {  # shape and colour, so that neither is needed to tell them apart
    Outcome.GAINS: ("measured", "o", "full"),
    Outcome.OPEN: ("fourth", "D", "none"),
    Outcome.LOSES: ("bound", "s", "full"),
}
_LINES = [("measured", "o", "-"), ("bound", "s", "--"), ("worst", "^", ":"), ("fourth", "D", "-."),
          ("measured", "v", ":"), ("bound", "P", "-."), ("worst", "X", "--"), ("fourth", "*", "-")]  # fmt: skip


def _short(name: Any, most: int = 16) -> str:
    """Return a name that fits: long ones are cut in the middle, for what tells them apart is often at the end."""
    text = str(name).replace("$", r"\$")  # a dollar begins a formula
    return text if len(text) <= most else text[: most // 2 - 1] + "…" + text[-(most // 2) :]


def _shown_clients(found: Comparison) -> list[int]:
    """Return the clients that fit into a figure, in the order of their difference: those with most held-out rows.

    Those with too few rows, or that keep their scores, are left out.
    """
    m = found[best_joint(found)]
    most = np.argsort(-found.test_rows, kind="stable")[:MOST_CLIENTS].tolist()
    known = [k for k in most if m.joins[k].outcome not in (Outcome.FEW, Outcome.KEPT)]
    return sorted(known, key=lambda k: -m.joins[k].difference.value)


def clients_figure(found: Comparison) -> str:
    """Draw the error of the chosen joint model less that of the clients' own, where there are rows enough to say."""
    m, order = found[best_joint(found)], _shown_clients(found)
    if not order:
        return ""

    def draw(axis: Any) -> None:
        for outcome, (colour, marker, fill) in _LOOKS.items():
            at = [i for i, k in enumerate(order) if m.joins[k].outcome is outcome]
            if not at:
                continue
            d = [m.joins[order[i]].difference for i in at]
            look = {"color": COLOURS[colour], "marker": marker, "fillstyle": fill, "linestyle": "none", "markersize": 5}
            axis.plot([e.value for e in d], at, label=outcome.value, **look)
            axis.hlines(at, [e.low for e in d], [e.high for e in d], color=COLOURS[colour], linewidth=1.2)
        axis.axvline(0.0, color=INK, linewidth=0.8)
        axis.set_yticks(range(len(order)), [f"{_short(found.rows.names[k])} ({found.test_rows[k]})" for k in order])
        axis.set_ylim(-0.7, len(order) - 0.3)
        axis.set_xlabel(f"difference of {found.error_name}\n(below 0: gains)")
        axis.grid(axis="y", visible=False)

    counts = ", ".join(f"{n} {o.value}" for o in Outcome if (n := sum(j.outcome is o for j in m.joins)))
    return as_svg(draw, "clients", f"By client: {counts}.", (4.4, 1.25 + 0.2 * max(len(order), 3)), 2)


def errors_figure(found: Comparison) -> str:
    """Draw the error of every method on all held-out rows, with its interval, and that of its worst client."""
    methods = found.methods[::-1]

    def draw(axis: Any) -> None:
        at = np.arange(len(methods))
        e = [m.whole.error for m in methods]
        axis.hlines(at, [x.low for x in e], [x.high for x in e], color=COLOURS["measured"], linewidth=1.6)
        look = {"linestyle": "none", "markersize": 5}
        axis.plot([x.value for x in e], at, marker="o", color=COLOURS["measured"], label="all held-out rows", **look)
        worst = [(i, m.clients[m.worst].error) for i, m in enumerate(methods) if m.worst is not None]
        if worst:
            above, x = np.array([i for i, _ in worst]) + 0.25, [w for _, w in worst]
            axis.hlines(above, [w.low for w in x], [w.high for w in x], color=COLOURS["bound"], linewidth=1.0)
            shape = {"marker": "D", "fillstyle": "none", "color": COLOURS["bound"]}
            axis.plot([w.value for w in x], above, label="its worst client", **shape, **look)
        axis.set_yticks(at, [m.name for m in methods])
        axis.set_xlabel(found.error_name)
        axis.grid(axis="y", visible=False)

    parts = ", ".join(f"{m.name} {m.whole.error.value:.3g}" for m in found.methods)
    return as_svg(draw, "errors", f"{found.error_name} by method: {parts}.", (4.4, 0.9 + 0.26 * len(methods)), 2)


def costs_figure(found: Comparison) -> str:
    """Draw the certified gaps over what was sent; empty where nothing was run."""
    runs = [m for m in found.methods if m.cost is not None]
    if not runs:
        return ""

    def draw(axis: Any) -> None:
        sent: list[float] = []
        gaps = [found.settings.gap]
        for m, (colour, marker, dash) in zip(runs, _LINES, strict=False):
            assert m.cost is not None
            _, gap, megabytes = m.cost.trace
            seen = np.isfinite(gap) & (gap > 0.0) & (megabytes > 0.0)
            every = max(1, int(seen.sum()) // 5)
            look = {"color": COLOURS[colour], "marker": marker, "linestyle": dash, "markersize": 4}
            axis.plot(megabytes[seen], gap[seen], label=m.name, markevery=every, **look)
            sent, gaps = [*sent, *megabytes[seen]], [*gaps, *gap[seen]]
        axis.axhline(found.settings.gap, color=INK, linewidth=0.8)
        if sent:
            log_axis(axis.xaxis, np.array(sent))
            log_axis(axis.yaxis, np.array(gaps))
        axis.set_xlabel("sent, both ways, all clients, MB")
        axis.set_ylabel(f"certified gap, {'nats' if found.rows.classifies else 'variances'} per row")

    parts = ", ".join(f"{m.name} {m.cost.gap:.2g} after {m.cost.megabytes:.2g} MB" for m in runs if m.cost)
    return as_svg(draw, "costs", f"Certified gap over megabytes: {parts}.", columns=4)


def calibration_figure(found: Comparison) -> str:
    """Draw how often the second class came, by predicted probability; empty without two classes, or without scores."""
    if not found.rows.binary or not found["alone"].scores.size:
        return ""
    hit = (found.held_labels > 0.0).astype(float)
    names = list(dict.fromkeys([best_joint(found), "alone"]))

    def draw(axis: Any) -> None:
        axis.plot([0.0, 1.0], [0.0, 1.0], color=INK, linewidth=0.8)
        for name, (colour, marker, dash) in zip(names, _LINES, strict=False):
            bins = calibration_bins(np.asarray(found.rows.loss.probabilities(found[name].scores)), hit)
            m, p, share = (np.array(v) for v in zip(*bins, strict=True))
            low, high = wilson_interval(share * m, m, found.settings.level)
            axis.vlines(p, low, high, color=COLOURS[colour], linewidth=1.0)
            look = {"color": COLOURS[colour], "marker": marker, "linestyle": dash, "markersize": 4}
            axis.plot(p, share, label=name, **look)
        axis.set_xlabel("predicted probability, mean of a tenth of the rows")
        axis.set_ylabel(f"share of {_short(found.rows.classes[1] if found.rows.classes else 1)}")

    parts = ", ".join(f"{n} {found[n].whole.calibration:.2g}" for n in names)
    return as_svg(draw, "calibration", f"Calibration on held-out rows; expected error: {parts}.")


def tuning_figure(found: Comparison) -> str:
    """Draw the mean loss in cross-validation over l2, and what was chosen; empty where nothing was."""
    kinds = {m.name: m.tuned for m in found.methods if m.tuned is not None and np.isfinite(m.tuned.losses).all()}
    curves: dict[str, Any] = {}
    for name, tuned in kinds.items():
        if not any(t is tuned for t in curves.values()):
            curves[name] = tuned
    if not curves:
        return ""

    def draw(axis: Any) -> None:
        for (name, tuned), (colour, marker, dash) in zip(curves.items(), _LINES, strict=False):
            look = {"color": COLOURS[colour], "linestyle": dash}
            axis.plot(tuned.l2s, tuned.losses, marker=marker, markersize=3, label=name, **look)
            if np.ndim(tuned.l2) == 0:
                chosen = tuned.losses[tuned.l2s.index(tuned.l2)]
                axis.plot(tuned.l2, chosen, marker="o", markersize=10, markerfacecolor="none", color=INK)
        log_axis(axis.xaxis, np.array(next(iter(curves.values())).l2s))
        axis.set_xlabel("l2, weight of the ridge per row")
        axis.set_ylabel(f"{found.error_name if found.rows.classifies else 'half squared error'}, left-out folds")

    parts = ", ".join(f"{n} {np.median(t.l2):.2g}" for n, t in curves.items())
    return as_svg(draw, "tuning", f"Loss in cross-validation over l2; chosen: {parts}.")
