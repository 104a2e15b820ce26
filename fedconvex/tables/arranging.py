"""The arrays of a federation from a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedconvex._check import bad, flag, instance


def arranged(
    data: Any, names: Mapping[str, str | None], columns: Any, choices: Mapping[str, Any]
) -> tuple[dict[str, Any], Any]:
    """Return X, y, clients, domains and sample_weight as `Federation.from_arrays` takes them, and the fitted record.

    Parameters
    ----------
    data
        What `read_table` reads.
    names : mapping
        target, client, domain, weight.
    columns : Columns or None
        A record of other rows.
    choices : mapping
        Arguments of `Columns.fit`, signs, unknown (of `Columns.matrix`), and further arguments of `read_table`.
    """
    from fedconvex.tables.columns import Columns
    from fedconvex.tables.reading import read_frame, read_table

    who, rest = "Federation.from_frame", dict(choices)
    fitting = {
        key: flag(f"{who}: {key}", rest.pop(key))
        for key in ("standardise", "centre", "standardise_target")
        if key in rest
    }
    signs, unknown = flag(f"{who}: signs", rest.pop("signs", True)), rest.pop("unknown", None)
    if columns is None and unknown is not None:
        raise bad(f"{who}: unknown", "come with columns=, a record of other rows", repr(unknown))
    if columns is None:
        frame, columns = read_table(data, **names, **rest)
    else:
        instance(f"{who}: columns", columns, Columns)
        given = [key for key, value in {**names, **rest}.items() if value is not None]
        if given:
            raise bad(who, "be given columns=, or what to make of the table", f"columns and {', '.join(given)}")
        frame = read_frame(data, text=columns.text)
    for role, cure in (("target", "pass target="), ("client", "pass client=")):
        if columns.name_of(role) is None:
            raise bad(who, f"be told the column of the {role}", "none", cure)
    fitted = columns if columns.is_fitted else columns.fit(frame, **fitting)
    y, labels = fitted.target(frame), fitted.labels
    if labels is None:
        y = (y - fitted.target_center) / fitted.target_scale
    elif len(labels) == 2 and signs:
        y = 2.0 * y - 1.0
    rule = unknown or ("refuse" if columns.is_fitted else "zero")
    X = fitted.standardised(fitted.matrix(frame, rule))
    unseen = {name: sum(found.values()) for name, found in fitted.unknown(frame).items()} if columns.is_fitted else {}
    fitted = replace(fitted, unseen=unseen)
    arrays = {"X": X, "y": y, "clients": fitted.clients(frame), "domains": fitted.domains(frame)}
    return arrays | {"sample_weight": fitted.weights(frame)}, fitted
