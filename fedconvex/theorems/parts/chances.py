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
    p, fed = np.asarray(s.problem.weights), s.problem.federation
    often = np.full(fed.K, 1.0 if t.everyone else t.participants / fed.K)
    if t.sampling == "proportional":
        often = -np.expm1(t.participants * np.log1p(-np.minimum(p, 1.0 - 1e-16)))
    what = "client {}"
    if "batches" in t.drawn:
        B = getattr(s.method, "batch_size", None)
        if t.local is not None:
            B, sizes, steps, again = t.local.batch_size, t.local.sizes, t.local.steps, t.local.replacement
        elif t.everyone and B is not None:  # one batch of every domain
            fed = s.problem.by_domain.federation
            sizes, steps, often = fed.sizes, np.ones(fed.K), np.ones(fed.K)
            again = bool(getattr(s.method, "replacement", False))
        else:
            return None
        least = 1.0 / sizes
        if t.local is not None and t.local.by_weight and fed.sample_weight is not None:
            heavy = np.where(fed.sample_weight > 0.0, fed.sample_weight, np.inf)
            least = np.minimum.reduceat(heavy, fed.ptr[:-1]) / fed.masses
        missed = (1.0 - least) ** B if again else np.maximum(1.0 - B / sizes, 0.0)
        often, what = often * (1.0 - missed**steps), "a row of client {}"
    k = int(np.argmin(often))
    every = -math.expm1(s.rounds * math.log1p(-often[k])) if often[k] < 1.0 else 1.0
    return Chance(what.format(fed.labels[k]), every)
