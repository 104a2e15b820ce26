"""What a certificate over sites is made of: the part of one client, from its own rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedconvex.remote.kinds import FLOATS, kind_of
from fedconvex.remote.messages import Form, Refused
from fedconvex.solvers.certificates.row_rounding import EPS


def report(problem: Any, number: int, asked: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a client's part: f_k and its gradient; sums by domain; or what else its kind of problem is measured by.

    With values and gradients come `allowances` for rounding.

    Parameters
    ----------
    problem : problem
        As a site has it, with its own rows only.
    number : int
        The client.
    asked : mapping
        ``w`` (R, *model), or (R, 1, d) for a task; with ``alpha`` (R, p) sums by domain are asked for.

    Raises
    ------
    Refused
        If the problem is of a kind that is not shared, or the arrays have other shapes.
    """
    kind = kind_of(problem)
    if kind is None:
        raise Refused(f"no site measures {type(problem).__name__}")
    return kind.report(problem, number, asked)


def weighted(found: dict[str, np.ndarray], share: float) -> dict[str, np.ndarray]:
    """Return a client's part of the pooled objective times its weight, for sums; other reports as they are."""
    if "value" not in found:
        return found
    out, few = {name: share * a for name, a in found.items()}, 4.0 * EPS
    out["off"] = np.abs(out["off"]) + few * np.abs(out["value"])
    out["error"] = np.abs(out["error"]) + few * np.linalg.norm(out["gradient"].reshape(len(out["error"]), -1), axis=1)
    return out


def statistic_of(problem: Any, number: int, name: str) -> np.ndarray:
    """Return what a client answers when asked for a statistic, from its own rows."""
    kind = kind_of(problem)
    if kind is not None and kind.statistic is not None:
        return np.asarray(kind.statistic(problem, number, name))
    if hasattr(problem, "client") and name != "domain_counts":
        return np.asarray(problem.client(number).statistic(name)[0])
    return np.asarray(problem.statistic(name)[number])


def expected(problem: Any, asked: Mapping[str, np.ndarray]) -> dict[str, Form]:
    """Return the forms of a `report`."""
    kind = kind_of(problem)
    assert kind is not None
    return {name: Form(size, FLOATS, "moments" in asked) for name, size in kind.shapes(problem, asked).items()}
