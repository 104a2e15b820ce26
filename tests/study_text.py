"""The file of a study of wards, as tests and campaigns write it: one text, of which each changes what it is about."""

from __future__ import annotations

import json
from collections.abc import Sequence

__all__ = ["wards"]


def wards(
    ask: str,
    sites: Sequence[str] | str,
    target: str,
    sums: str = "true",
    port: int = 5555,
    columns: str = "",
    values: str = "ab",
) -> str:
    """Return the text of study.toml.

    Parameters
    ----------
    ask : str
        A line of what is asked, or more.
    sites : sequence of str, or str
        Those that are required; or the lines that say so.
    target : str
        Lines of the target.
    sums : str
        Whether sums are secure.
    port : int
    columns : str
        Sections beside age and ward.
    values : sequence of str
        Of the wards.
    """
    required = sites if isinstance(sites, str) else f"require = {json.dumps(list(sites))}"
    return f"""\
[study]
name = "wards"
[coordinator]
address = "localhost:{port}"
[sites]
{required}
[ask]
{ask}
secure_sums = {sums}
[target]
{target.rstrip()}
[columns.age]
kind = "number"
center = 60
scale = 10
{columns}[columns.ward]
kind = "category"
values = {json.dumps(list(values))}
"""
