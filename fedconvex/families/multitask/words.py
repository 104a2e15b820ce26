"""What nodes do in a round, in words."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["words_of"]


def words_of(m: Any) -> tuple[list[str], str]:
    """Return what nodes do in a round, in short and in full, as reports say it."""
    theta, clock, drop = getattr(m, "theta", None), getattr(m, "clock", None), np.max(getattr(m, "drop", 0.0))
    short, full = [], []
    if theta is not None:
        short, full = [f"theta {theta:g}"], [f"local accuracy {theta:g}"]
    elif hasattr(m, "epochs"):
        steps = f"{m.epochs:g} pass{'es' * (m.epochs != 1.0)}" if m.local_steps is None else f"{m.local_steps} steps"
        short, full = [steps], [f"{steps} over its rows" if m.local_steps is None else steps]
    if clock is not None:
        short, full = [*short, f"clock {clock.low:g}"], [*full, f"{clock.low:g} to {clock.high:g} of it by its clock"]
    if drop:
        short, full = [*short, f"drops {drop:g}"], [*full, f"dropped with probability {drop:g}"]
    rule = getattr(m, "sigma", None)
    short += [] if rule is None or rule == "pencil" else [f"sigma' {rule}"]
    return short, "every node: " + ", ".join(full)
