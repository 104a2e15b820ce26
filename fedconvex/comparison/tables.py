"""The rows of the tables that a comparison is shown by."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fedconvex.comparison.decision import chosen
from fedconvex.comparison.scores import Estimate

if TYPE_CHECKING:
    from fedconvex.comparison.result import Comparison, Scored

__all__ = ["client_rows", "method_rows", "shown", "span"]


def shown(x: Any) -> str:
    """Return a cell as text."""
    return x if isinstance(x, str) else "–" if x != x else f"{x:.4g}" if isinstance(x, float) else str(x)


def span(e: Estimate, digits: int = 3) -> str:
    """Return a number with its interval."""
    if not e.known:
        return "–"
    if not math.isfinite(e.low):
        return f"{e.value:.{digits}g}"
    return f"{e.value:.{digits}g} ({e.low:.{digits}g} to {e.high:.{digits}g})"


def method_rows(found: Comparison) -> tuple[list[str], list[list[Any]]]:
    """Return the heads and rows of the table of methods."""
    binary, classifies = found.rows.binary, found.rows.classifies
    heads = ["method", found.error_name, *(["accuracy"] if classifies else ["RMSE", "R^2"])]
    heads += ["AUC"] if binary else []
    heads += ["calibration error"] if classifies else []
    heads += ["worst client", "its error", "gain", "lose", "l2", "rounds", "MB", "seconds"]
    cells = []
    for m in found.methods:
        quality = [m.whole.accuracy.value] if classifies else [m.whole.rmse.value, m.whole.r2]
        quality += [m.whole.auc.value] if binary else []
        quality += [m.whole.calibration] if classifies else []
        worst: list[Any] = ["too few rows", math.nan]
        if m.worst is not None:
            worst = [str(found.rows.names[m.worst]), m.clients[m.worst].error.value]
        names = [j.outcome.name for j in m.joins]
        joins = ["–", "–"] if m.name == "alone" else [str(names.count("GAINS")), str(names.count("LOSES"))]
        cells.append([m.name, m.whole.error.value, *quality, *worst, *joins, m.l2, *_cost(m)])
    return heads, cells


def _cost(m: Scored) -> list[Any]:
    if m.cost is None:
        return ["–", math.nan, math.nan]
    sign = "" if m.cost.reached else ">"
    return [f"{sign}{m.cost.rounds}", m.cost.megabytes, m.cost.seconds]


def client_rows(found: Comparison) -> tuple[list[str], list[list[Any]]]:
    """Return the heads and rows of the table of clients: the method that was chosen beside every client alone."""
    best, alone = found[chosen(found)], found["alone"]
    if best.name == "alone":
        best = found[chosen(found, joint=True)]
    heads = ["client", "training", "held out", "base rate" if found.rows.classifies else "mean"]
    heads += ["alone", best.name, "difference", "verdict"]
    cells = []
    for k, name in enumerate(found.rows.names):
        mine, join = best.clients[k], best.joins[k]
        counts = [int(found.train_rows[k]), int(found.test_rows[k])]
        errors = [span(alone.clients[k].error), span(mine.error), span(join.difference)]
        cells.append([str(name), *counts, mine.base, *errors, join.outcome.value])
    return heads, cells
