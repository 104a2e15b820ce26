"""What nodes do in a round, in words."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex.words import Words


def words_of_nodes(work: Any) -> Words:
    """Return what nodes do in a round of `NodeWork`."""
    if work.theta is not None:
        short, full = [f"theta {work.theta:g}"], [f"local accuracy {work.theta:g}"]
    elif work.local_steps is not None:
        short, full = [f"{work.local_steps} steps"], [f"{work.local_steps} steps"]
    else:
        passes = f"{work.epochs:g} pass{'es' * (work.epochs != 1.0)}"
        short, full = [passes], [f"{passes} over its rows"]
    if work.clock is not None:
        low, high = work.clock
        short, full = [*short, f"clock {low:g}"], [*full, f"{low:g} to {high:g} of it by its clock"]
    if drop := np.max(work.drop):
        short, full = [*short, f"drops {drop:g}"], [*full, f"dropped with probability {drop:g}"]
    return Words(f"{type(work).__name__}, every node: {', '.join(full)}", (*short, *rule_in_words(work)))


def rule_in_words(method: Any) -> tuple[str, ...]:
    """Return the rule of sigma' in short, unless it is the usual one."""
    rule = getattr(method, "sigma", None)
    return () if rule is None or rule == "pencil" else (f"sigma' {rule}",)
