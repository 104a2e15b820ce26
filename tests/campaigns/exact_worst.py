"""Exact worst cases of FedAvg and SCAFFOLD at settings within reach: what says that no instance there shows a mutant.

``python -m tests.campaigns.exact_worst`` computes those that exact_worst.json lacks: M = 2 clients, L = D = 1, all
gradients exact, heterogeneity everywhere (uniform) or at the optimum, for SCAFFOLD one or both clients in a round. They
are scaled to other L and D. A mutant that lowers a bound at some of these settings, and nowhere below the certified
upper end, is true there: the theorem is loose by at least bound/upper.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedconvex.constants import Constants
from fedconvex.theorems import Theorem
from fedconvex.theorems.fedavg_convex import fedavg_convex_step
from fedconvex.theory.worst_case import AtOptimum, Problems, UniformUpper, fedavg, scaffold, worst_case

__all__ = ["WorstPlace", "worst_places"]

FILE = Path(__file__).with_name("exact_worst.json")
RUNS = ((1, 2), (2, 1), (2, 3), (3, 1), (3, 2))  # local steps, rounds
STEPS = (0.05, 0.1, 0.25, 0.6, 0.999)
ZETAS = (1.0, 30.0)
UNITS = ((1.0, 1.0), (1e-2, 1.0), (1e2, 1.0), (1.0, 0.1), (1.0, 10.0))  # L, D
TUNED, SCAFFOLD = "fedavg-convex-tuned", "scaffold"


class WorstPlace(NamedTuple):
    """What a bound is told at a setting, and the certified upper end of the exact worst case there."""

    arguments: dict[str, Any]
    upper: float
    words: str


class Case(NamedTuple):
    """A setting with L = D = 1."""

    kind: str  # "uniform", "at the optimum", or "scaffold, S = 1" with the clients of a round
    tau: int
    T: int
    eta: float
    zeta: float
    p: float = 0.5  # weight of the first client

    @property
    def key(self) -> str:
        """Its name in the file."""
        numbers = [f"{x:.6g}" for x in (self.tau, self.T, self.eta, self.zeta)]
        return " ".join([self.kind, *numbers, *([f"p {self.p:g}"] if self.p != 0.5 else [])])

    def constants(self, L: float = 1.0, D: float = 1.0) -> Constants:
        """Return the constants in other units."""
        zeta, weights = L * D * self.zeta, np.array([self.p, 1.0 - self.p])
        return Constants(L=L, mu=0.0, D=D, sigma2=0.0, sigma2_star=0.0, zeta=zeta, zeta_star=zeta, p=weights, K=2)

    def worst(self) -> float:
        """Compute the certified upper end."""
        exact = self.kind != "uniform"
        heterogeneity = (AtOptimum if exact else UniformUpper)(self.zeta)
        problems = Problems(2, heterogeneity=heterogeneity, weights=(self.p, 1.0 - self.p))
        if self.kind in ("uniform", "at the optimum"):
            return worst_case(fedavg(self.eta, self.tau, self.T), problems, "shadow").upper
        S = int(self.kind[-1])
        method = scaffold(self.eta, self.tau, self.T, sampled=S if S < 2 else None)
        return worst_case(method, problems, _before).upper


def _before(problem: Any, run: Any) -> Any:
    """Mean over rounds of F - F* before the round."""
    models = [problem.start, *run.rounds[:-1]]
    return sum(problem.value(x) for x in models) / len(models)


def _cases() -> Iterator[Case]:
    for kind in ("uniform", "at the optimum"):
        for tau, T in RUNS:
            for zeta in ZETAS:
                for eta in STEPS:
                    yield Case(kind, tau, T, eta, zeta)
                if kind == "uniform":
                    yield Case(kind, tau, T, _tuned(tau, T, zeta), zeta)
        for tau, T in ((2, 1), (2, 2), (3, 1)):
            for eta in (0.05, 0.25, 0.999):
                yield Case(kind, tau, T, eta, 30.0, 0.9)
    for S in (1, 2):
        for tau, T in ((1, 2), (1, 3), (2, 2)):
            for zeta in (1.0, 300.0):
                yield Case(f"scaffold, S = {S}", tau, T, 1.0 / (81.0 * tau), zeta)


def _tuned(tau: int, T: int, zeta: float) -> float:
    return fedavg_convex_step(Constants(L=1.0, D=1.0, sigma2=0.0, zeta=zeta, K=2), local_steps=tau, rounds=T)


def worst_places(theorem: Theorem) -> Iterator[WorstPlace]:
    """Yield the settings at which the exact worst case of a theorem's class is known."""
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    at = theorem.worst_case is AtOptimum
    kind = SCAFFOLD if theorem.name == SCAFFOLD else "" if theorem.worst_case is None else "at the" if at else "uniform"
    for case in _cases() if kind else ():
        if not case.kind.startswith(kind) or case.key not in known:
            continue
        if theorem.name == TUNED and case.eta != _tuned(case.tau, case.T, case.zeta):
            continue
        more: dict[str, Any] = {"noise_factor": 0.0} if at else {}
        if kind == SCAFFOLD:
            more = {"participants": int(case.kind[-1])}
        for L, D in UNITS:
            told = {"constants": case.constants(L, D), "local_steps": case.tau, "rounds": case.T}
            if theorem.name != TUNED:
                told["step_size"] = case.eta / L
            words = f"M = 2, tau = {case.tau}, T = {case.T}, L = {L:g}, D = {D:g}, "
            words += f"step {case.eta:.3g}/L, zeta = {case.zeta:g} L D"
            yield WorstPlace(told | more, known[case.key] * L * D**2, words)


def main() -> int:
    """Compute what is missing."""
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    for case in _cases():
        if case.key not in known:
            known[case.key] = float(f"{case.worst() * (1.0 + 1e-5):.6g}")
            FILE.write_text(json.dumps(known, indent=0) + "\n")
            print(case.key, known[case.key], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
