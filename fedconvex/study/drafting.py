"""`draft`: a study's file from one site's table, to be shortened and agreed upon."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedconvex._check import bad
from fedconvex.tables.frame import Frame
from fedconvex.tables.reading import read_frame
from fedconvex.tables.spelling import spelt

_FEW = 12  # whole numbers up to which a column may be one of codes
_LEVEL = 3  # rows that a value has at least which is listed: one of a single patient names them
_HEAD = """\
# What all sites of this study agree on: the same file, to the byte, at each of them and at the coordinator.
# It was drafted from one site's table. Centres and scales are rounded to one digit, and values of fewer than three rows
# are not listed: no figure of rows belongs here, and nobody's name.

[study]
name = {name}

[coordinator]
address = "{address}"        # where sites reach it; sites only connect outwards, to this one port
# authority = "SHA256:..."    # what `fedconvex study cert init` prints

[sites]
require = [{sites}]

[ask]
analyse = {{ family = "{family}", strata = "site" }}
{solve}
secure_sums = true

[target]
column = {target}
{values}"""


def draft(
    table: str | os.PathLike[str],
    target: str,
    site: str,
    drop: Any = (),
    address: str = "localhost:5555",
    **reading: Any,
) -> str:
    r"""Return a draft of a study's file from one site's table.

    Parameters
    ----------
    table : path
        Of the site.
    target : str
        The column to be explained, or predicted.
    site : str
        Whose table it is.
    drop : sequence of str
        Columns that are not used.
    address : str
        Host and port of the coordinator.
    **reading
        sep, decimal, encoding of the table.

    Raises
    ------
    ValueError, OSError
        If the table cannot be read, or lacks a column.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from fedconvex.study.drafting import draft
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "north.csv"
    ...     _ = path.write_text("age,sex,ill\n" + "61,f,no\n37,m,yes\n52,f,no\n" * 3)
    ...     print(draft(path, "ill", "north").split("[columns.age]")[1].rstrip())
    <BLANKLINE>
    kind = "number"
    # or, if these are codes: kind = "category", values = ["37", "52", "61"]
    center = 50
    scale = 10
    # range = [lowest, highest]    # that there can be
    missing = "refuse"
    <BLANKLINE>
    [columns.sex]
    kind = "category"
    values = ["f", "m"]    # the first one is the reference
    missing = "refuse"
    """
    frame = read_frame(table, **reading)
    for name in (target, *drop):
        if name not in frame.cells:
            raise bad(f"{frame.origin}", f"have the column {name!r}", f"{', '.join(frame.names)}")
    head = {"name": json.dumps(f"{site} and others"), "address": address, "sites": f'"{site}", "..."'}
    blocks = [_HEAD.format(**head, target=json.dumps(target), **_asked(frame, target))]
    blocks += ["\n".join(_column(frame, name)) for name in frame.names if name not in (target, *drop)]
    return "\n".join(blocks) + "\n"


def _asked(frame: Frame, target: str) -> dict[str, str]:
    """Return what is asked about a target: two values, counts, or numbers."""
    values = sorted({spelt(v) for v in frame.text(target).tolist() if v is not None})
    if len(values) == 2:
        solve = 'solve = { loss = "logistic", l2 = 0.01 }'
        listed = f"values = [{', '.join(json.dumps(v) for v in values)}]    # the second one is the event\n"
        return {"family": "logistic", "solve": solve, "values": listed}
    try:
        y = frame.numbers(target)
    except ValueError as error:
        raise bad(f"target {target!r}", "have two values, or numbers", f"{len(values)} names ({error})") from None
    y = y[~np.isnan(y)]
    counts = bool(y.size and (y >= 0.0).all() and (y == np.floor(y)).all())
    solve = "# solve = {}" if counts else 'solve = { loss = "squared", l2 = 0.01 }'
    return {"family": "poisson" if counts else "gaussian", "solve": solve, "values": "# range = [0, 1000]\n"}


def _column(frame: Frame, name: str) -> Iterator[str]:
    """Yield the lines of a column's section."""
    gaps = frame.missing(name)
    texts = [spelt(v) for v in frame.text(name).tolist() if v is not None]
    counts = Counter(texts)
    levels = [v for v in sorted(counts) if counts[v] >= _LEVEL]
    listed, rare = ", ".join(json.dumps(v) for v in levels), len(counts) - len(levels)
    try:
        x = frame.numbers(name)[~gaps]
    except ValueError:
        x = None
    if x is None and not levels:
        yield f"# {json.dumps(name)} is left out: hardly any two rows have the same value, as of names of patients"
        yield ""
        return
    yield f"[columns.{json.dumps(name) if not name.replace('_', '').replace('-', '').isalnum() else name}]"
    if x is None:
        yield 'kind = "category"'
        yield f"values = [{listed}]    # the first one is the reference"
        if rare:
            yield f'unknown = "other"    # {rare:,} more values, of fewer than {_LEVEL} rows each'
    else:
        if len(counts) == x.size > _FEW and (x == np.floor(x)).all():
            yield "# each row has a value of its own: if it is a number of patients, delete this section"
        yield 'kind = "number"'
        if 2 < len(counts) <= min(_FEW, x.size // 3) and (x == np.floor(x)).all():
            yield f'# or, if these are codes: kind = "category", values = [{listed}]'
        yield f"center = {_round(float(np.median(x)) if x.size else 0.0)}"
        yield f"scale = {_round(float(x.std()) if x.size and np.ptp(x) > 0 else 1.0)}"
        yield "# range = [lowest, highest]    # that there can be"
    yield 'missing = "indicator"' if gaps.any() else 'missing = "refuse"'
    yield ""


def _round(x: float) -> str:
    """Return a number rounded to one digit, as TOML writes it."""
    if x == 0.0 or not math.isfinite(x):
        return "0" if x == 0.0 else "1"
    size = 10.0 ** math.floor(math.log10(abs(x)))
    return f"{round(x / size) * size:g}"
