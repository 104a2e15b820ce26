"""A comparison as text, and as data that JSON can hold."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from fedconvex.report.tables import plain

if TYPE_CHECKING:
    from fedconvex.comparison.comparison import Comparison


def text(found: Comparison, width: int = 120) -> str:
    """Return the decision, the tables of methods and of clients, and notes."""
    rows, held = found.rows, int(found.test_rows.sum())
    parts = [
        f"{rows.title}: {rows.y.size:,} rows of {rows.K} clients, {held:,} held out",
        "\n".join(textwrap.fill(sentence, width) for sentence in found.sentences),
        found.table(),
        found.client_table(),
        "\n".join(textwrap.fill(note, width) for note in found.notes),
    ]
    return "\n\n".join(parts) + "\n"


def document(found: Comparison) -> dict[str, Any]:
    """Return everything as data that JSON can hold."""
    methods = []
    for m in found.methods:
        one = {"method": m.name, "l2": m.l2, "rows": m.whole.rows, "worst_client": None}
        one |= {name: getattr(m.whole, name)._asdict() for name in ("error", "accuracy", "auc", "bias", "rmse")}
        one |= {"calibration_error": m.whole.calibration, "r2": m.whole.r2}
        if m.worst is not None:
            one["worst_client"] = str(found.rows.names[m.worst])
        if m.cost is not None:
            one["cost"] = {k: v for k, v in m.cost._asdict().items() if k != "trace"}
        methods.append(one)
    return plain(
        {
            "decision": list(found.sentences),
            "splits": sum(map(len, found.splits)),
            "error": found.error_name,
            "methods": methods,
            "clients": found.clients,
            "base_rates": {str(name): words for name, words in found.base_rates.items()},
            "columns": [list(c) for c in found.rows.columns],
            "by_client": [one._asdict() for one in found.rows.by_client],
            "missing": [
                dict(zip(("column", "client", "missing", "rows", "filled"), g, strict=True)) for g in found.rows.gaps
            ],
            "notes": list(found.notes),
            "seconds": found.seconds,
        }
    )
