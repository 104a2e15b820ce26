"""How rarely a run draws what it draws least: a client that seldom takes part, or one of many rows."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedconvex.theorems.parts.setting import Setting
from fedconvex.traits import traits_of


class Chance(NamedTuple):
    """A draw and the probability that a run shows it."""

    what: str
    probability: float

    def missed(self, runs: int) -> float:
        """Return the probability that none of so many independent runs shows it."""
        return math.exp(runs * math.log1p(-self.probability)) if self.probability < 1.0 else 0.0


def rarest_draw(s: Setting) -> Chance | None:
    """Return what a run is least likely to draw, or None where the method does not declare it.

    Clients that are drawn with probabilities p_k, or uniformly, and rows of fresh mini-batches.
    """
    t = traits_of(s.method, s.problem)
    if not t.drawn:  # a drift is no rare event
        return Chance("nothing", 1.0)
    if not set(t.drawn) <= {"clients", "batches"} or t.sampling == "other":
        return None
    p, K = np.asarray(s.problem.weights), s.problem.federation.K
    often = np.full(K, 1.0 if t.everyone else t.participants / K)
    if t.sampling == "proportional":
        often = -np.expm1(t.participants * np.log1p(-np.minimum(p, 1.0 - 1e-16)))
    what = "client {}"
    if "batches" in t.drawn:
        if t.local is None:
            return None
        missed = np.where(t.local.batch_size < t.local.sizes, 1.0 - t.local.batch_size / t.local.sizes, 0.0)
        if t.local.replacement:
            missed = (1.0 - 1.0 / t.local.sizes) ** t.local.batch_size
        often, what = often * (1.0 - missed**t.local.steps), "a row of client {}"
    k = int(np.argmin(often))
    every = -math.expm1(s.rounds * math.log1p(-often[k])) if often[k] < 1.0 else 1.0
    return Chance(what.format(s.problem.federation.labels[k]), every)
