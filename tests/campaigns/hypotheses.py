"""Mutants of hypotheses: instances in which exactly one of them fails, held against the bound that stands there.

Steps up to four times the longest of a theorem's space, unequal client weights, and half of the clients in a round. A
hypothesis is *caught* where the quantity exceeds the bound without it, which then needs it; elsewhere it is sufficient,
and not necessary as far as these instances went. Exact values only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np

from fedconvex.methods import UniformSampling
from fedconvex.theorems import Setting, Theorem
from fedconvex.theorems.parts.tiny import Real
from fedconvex.verify.checking import dropped, problem_of, setting_of
from fedconvex.verify.search import drawn

__all__ = ["without_hypotheses"]

TRIED = 60  # instances of a theorem


def without_hypotheses(theorem: Theorem, tried: int = TRIED) -> dict[str, dict[str, float]]:
    """Return by hypothesis in how many instances it alone failed, and the largest quantity/bound there."""
    found: dict[str, dict[str, float]] = {}
    for s in _beyond(theorem, tried):
        with np.errstate(all="ignore"):
            ratios = dropped(theorem, s)
        for text, ratio in ratios.items():
            if math.isfinite(ratio):
                mine = found.setdefault(text, {"instances": 0, "largest": 0.0})
                mine["instances"] += 1
                mine["largest"] = max(mine["largest"], float(f"{ratio:.3g}"))
    return found


def _beyond(theorem: Theorem, tried: int) -> Iterator[Setting]:
    """Yield settings beyond a theorem's space."""
    rng, space = np.random.default_rng(0), theorem.space
    for i in range(tried if space is not None else 0):
        longer = {k: Real(v.low, 4.0 * v.high) if k == "share" else v for k, v in space.knobs.items()}
        wider = space._replace(knobs=longer, weighted=space.weighted or i % 2 == 0)
        check = wider.check(drawn(rng, wider))
        try:
            s = setting_of(theorem, check, problem_of(theorem, check.instance))
            yield s._replace(method=_half(s)) if i % 3 == 0 else s
        except (ArithmeticError, TypeError, ValueError):
            continue


def _half(s: Setting) -> Any:
    """Return the method with half of the clients in a round, where it lets clients be drawn."""
    if "participation" not in {f.name for f in fields(s.method)} or s.problem.federation.K < 2:
        return s.method
    return replace(s.method, participation=UniformSampling(s.problem.federation.K // 2))
