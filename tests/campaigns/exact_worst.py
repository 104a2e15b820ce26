"""Exact worst cases of FedAvg at settings within reach: what says that no instance there can show a mutant.

``python -m tests.campaigns.exact_worst`` computes those that exact_worst.json lacks: M = 2 clients, L = D = 1, all
gradients exact, heterogeneity everywhere (uniform) or at the optimum. A mutant that lowers a bound at some of these
settings, and nowhere below the certified upper end, is true there: the theorem is loose by at least bound/upper.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedconvex.constants import Constants
from fedconvex.theorems import Theorem
from fedconvex.theorems.fedavg_convex import fedavg_convex_step
from fedconvex.theory.bound import SHADOW_AVERAGE
from fedconvex.theory.worst_case import AtOptimum, UniformUpper, worst_case

__all__ = ["WorstPlace", "worst_places"]

FILE = Path(__file__).with_name("exact_worst.json")
RUNS = ((1, 2), (2, 1), (2, 3), (3, 1), (3, 2))  # local steps, rounds
STEPS = (0.05, 0.1, 0.25, 0.6, 0.999)
ZETAS = (1.0, 30.0)
TUNED = "fedavg-convex-tuned"


class WorstPlace(NamedTuple):
    """What a bound is told at a setting, and the certified upper end of the exact worst case there."""

    arguments: dict[str, Any]
    upper: float
    words: str


def _settings(at_optimum: bool) -> Iterator[tuple[int, int, float, float]]:
    for tau, T in RUNS:
        for zeta in ZETAS:
            tuned = (fedavg_convex_step(_constants(zeta), local_steps=tau, rounds=T),)
            for eta in STEPS + (() if at_optimum else tuned):
                yield tau, T, eta, zeta


def _constants(zeta: float) -> Constants:
    return Constants(L=1.0, D=1.0, sigma2=0.0, sigma2_star=0.0, zeta=zeta, zeta_star=zeta, K=2)


def _key(at_optimum: bool, *setting: float) -> str:
    return " ".join(["at the optimum" if at_optimum else "uniform", *(f"{x:.6g}" for x in setting)])


def worst_places(theorem: Theorem) -> Iterator[WorstPlace]:
    """Yield the settings at which the exact worst case of a theorem's class is known."""
    if theorem.worst_case is None or not FILE.exists():
        return
    known, at_optimum = json.loads(FILE.read_text()), theorem.worst_case is AtOptimum
    for tau, T, eta, zeta in _settings(at_optimum):
        upper = known.get(_key(at_optimum, tau, T, eta, zeta))
        tuned = fedavg_convex_step(_constants(zeta), local_steps=tau, rounds=T)
        if upper is None or (theorem.name == TUNED and eta != tuned):
            continue
        told = {"constants": _constants(zeta), "local_steps": tau, "rounds": T, "step_size": eta}
        more = {"noise_factor": 0.0} if at_optimum else {}
        words = f"M = 2, tau = {tau}, T = {T}, L = D = 1, step {eta:.3g}, zeta = {zeta:g}"
        yield WorstPlace(told | more, upper, words)


def main() -> int:
    """Compute what is missing."""
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    for at_optimum in (False, True):
        for tau, T, eta, zeta in _settings(at_optimum):
            key = _key(at_optimum, tau, T, eta, zeta)
            if key in known:
                continue
            kind = AtOptimum(zeta) if at_optimum else UniformUpper(zeta)
            run: dict[str, Any] = {"local_steps": tau, "rounds": T, "step_size": eta}
            found = worst_case(clients=2, L=1.0, heterogeneity=kind, metric=SHADOW_AVERAGE, **run)
            known[key] = float(f"{found.upper:.6g}") * (1.0 + 1e-5)
            FILE.write_text(json.dumps(known, indent=0) + "\n")
            print(key, known[key], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
