"""A record of columns as JSON, and back: what is written is checked field by field when it is read."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np

from fedconvex._check import bad
from fedconvex.tables.columns import ROLES, Column, Columns
from fedconvex.tables.spelling import all_differ

_TEXT, _NUMBER = (str,), (int, float)
_FIELDS: dict[str, tuple[type, ...]] = {
    "impute": (str, type(None)),
    "target_center": _NUMBER,
    "target_scale": _NUMBER,
    "rows": (int,),
    "is_sparse": (bool,),
    "origin": _TEXT,
    "read_as": _TEXT,
}
_COLUMN: dict[str, tuple[type, ...]] = {
    "name": _TEXT,
    "role": _TEXT,
    "note": _TEXT,
    "levels": (list, tuple, type(None)),
    "fill": (str, int, float, type(None)),
    "indicator": (bool,),
    "dates": (bool,),
    "codes": (list, tuple),
    "other": (str, type(None)),
    "absent": (bool,),
}


def described(columns: Columns) -> dict[str, Any]:
    """Return what JSON can hold of a fitted record; center and scale are arrays and are kept elsewhere."""
    plain = asdict(Column("", ""))
    listed = [{k: v for k, v in asdict(c).items() if k in ("name", "role") or v != plain[k]} for c in columns.columns]
    return {**{name: getattr(columns, name) for name in _FIELDS}, "columns": listed}


def restored(who: str, about: Any, center: np.ndarray, scale: np.ndarray) -> Columns:
    """Return the record that `described` described.

    Raises
    ------
    ValueError
        If a field is missing or of another type, by name.
    """
    if not isinstance(about, dict) or not isinstance(about.get("columns"), list):
        raise bad(f"{who}: table", "hold the list columns", type(about).__name__)
    _checked(f"{who}: table", about, _FIELDS)
    made = []
    for j, c in enumerate(about["columns"]):
        if not isinstance(c, dict):
            raise bad(f"{who}: table: columns[{j}]", "be an object", f"{c!r}")
        full = {**asdict(Column("", "")), "name": None, "role": None, **c}
        where = f"{who}: table: columns[{j}]"
        if set(full) > set(_COLUMN):
            raise bad(where, f"hold {', '.join(_COLUMN)}", ", ".join(sorted(set(full) - set(_COLUMN))))
        _checked(where, full, _COLUMN)
        if full["role"] not in ROLES:
            raise bad(f"{where}: role", f"be one of {', '.join(ROLES)}", full["role"])
        levels = full["levels"]
        if full["role"] == "category" and not (levels and all(isinstance(v, str) for v in levels)):
            raise bad(f"{where}: levels", "be the categories, as text", f"{levels!r}")
        if levels is not None and not all_differ(levels):
            raise bad(f"{where}: levels", "be different names (1, '1' and '1.0' are one)", f"{levels!r}")
        if full["other"] is not None and full["other"] not in (levels or ()):
            raise bad(f"{where}: other", "be one of the levels", f"{full['other']!r}")
        if not all(isinstance(code, str) for code in full["codes"]):
            raise bad(f"{where}: codes", "be what stands for missing cells, as text", f"{full['codes']!r}")
        made.append(
            replace(Column(**full), levels=None if levels is None else tuple(levels), codes=tuple(full["codes"]))
        )
    names = [c.name for c in made]
    if len(set(names)) < len(names):
        raise bad(f"{who}: table: columns", "have different names", f"{names}")
    columns = Columns(tuple(made), **{name: about[name] for name in _FIELDS}, center=center, scale=scale)
    columns.check_features(f"{who}: table")
    d = len(columns.feature_names)
    for name, a in (("center", center), ("scale", scale)):
        if a.shape != (d,) or not np.isfinite(a).all() or (name == "scale" and (a <= 0.0).any()):
            raise bad(f"{who}: {name}", f"be {d} finite numbers, one a feature", f"shape {a.shape}")
    return columns


def _checked(who: str, given: dict[str, Any], fields: dict[str, tuple[type, ...]]) -> None:
    for name, kinds in fields.items():
        if name not in given:
            raise bad(who, f"hold {name}", ", ".join(given))
        value = given[name]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join("null" if k is type(None) else k.__name__ for k in kinds)
            raise bad(f"{who}: {name}", f"be {names}", f"{value!r}")
