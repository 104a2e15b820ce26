"""The rows of the tables that a comparison is shown by."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fedconvex.comparison.decision import beside_base, best_joint, span
from fedconvex.comparison.outcomes import Outcome
from fedconvex.comparison.skewed_intervals import Estimate
from fedconvex.tables.looking import HEADS

if TYPE_CHECKING:
    from fedconvex.comparison.comparison import Comparison, Scored


def cell_text(x: Any) -> str:
    """Return a cell as text."""
    return x if isinstance(x, str) else "–" if x != x else f"{x:.4g}" if isinstance(x, float) else str(x)


def method_rows(found: Comparison) -> tuple[list[str], list[list[Any]]]:
    """Return the heads and rows of the table of methods."""
    binary, classifies = found.rows.binary, found.rows.classifies
    heads = ["method", found.error_name, *(["accuracy"] if classifies else ["RMSE", "R^2"])]
    heads += ["AUC"] if binary else []
    heads += ["calibration error"] if classifies else []
    least, known = found.settings.min_rows, found.rows.domains
    heads += ["worst domain", "its error"] if known else []
    heads += ["worst client", "its error", "clients gain", "lose", "l2", "rounds", "MB", "seconds"]
    cells = []
    for m in found.methods:
        quality: list[Any] = [m.whole.accuracy.value] if classifies else [m.whole.rmse.value, m.whole.r2]
        quality += [m.whole.auc.value] if binary else []
        quality += [m.whole.calibration] if classifies else []
        if known:
            q = m.worst_domain(least)
            quality += ["too few rows", math.nan] if q is None else [str(known[q]), m.domains[q].error.value]
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


def cost_rows(found: Comparison) -> tuple[list[str], list[list[Any]]]:
    """Return the heads and rows of the table of costs."""
    heads = ["method", "rounds", "MB", "seconds", "certified gap", "settings"]
    runs = [(m.name, m.cost) for m in found.methods if m.cost is not None]
    cells = [[n, f"{'' if c.reached else '>'}{c.rounds}", c.megabytes, c.seconds, c.gap, c.why] for n, c in runs]
    return heads, cells


def client_rows(found: Comparison) -> tuple[list[str], list[list[Any]]]:
    """Return the heads and rows of the table of clients: the method that was chosen beside every client alone."""
    best, alone = found[best_joint(found)], found["alone"]
    heads = ["client", "training", "held out", "share" if found.rows.classifies else "mean"]
    heads += ["base rate", "alone", best.name, "difference", "verdict", "base rate is"]
    cells, base, stands = [], found["base rate"], beside_base(found)
    for k, name in enumerate(found.rows.names):
        mine, join = best.clients[k], best.joins[k]
        counts = [int(found.train_rows[k]), int(found.test_rows[k])]
        errors = [base.clients[k].error, alone.clients[k].error, mine.error, join.difference]
        if join.outcome is Outcome.FEW:  # an interval would say little, at length
            errors = [Estimate(e.value) for e in errors]
        cells.append([str(name), *counts, mine.base, *map(span, errors), join.outcome.value, stands[k].value])
    return heads, cells


def column_rows(found: Comparison) -> tuple[list[str], list[list[Any]]]:
    """Return the heads and rows of the table of columns by client: what is missing and filled, and what is odd."""
    filled = {(column, client): how for column, client, _, _, how in found.rows.gaps}
    heads = [*HEADS[:4], "filled by, over training rows", HEADS[4]]
    return heads, [[*f[:4], filled.get((f.column, f.client), "–"), f.found or "–"] for f in found.rows.by_client]
