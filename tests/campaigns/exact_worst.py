"""Exact worst cases of methods at settings within reach: what says that no instance there shows a mutant.

``python -m tests.campaigns.exact_worst`` computes those that exact_worst.json lacks: M = 2 clients, L = D = 1,
heterogeneity everywhere (uniform) or at the optimum, for SCAFFOLD one or both clients in a round. They are scaled to
other L and D. A mutant that lowers a bound at some of these settings, and nowhere below the certified upper end, is
true there: the theorem is loose by at least bound/upper. Gradients are exact, but for some of SCAFFOLD's, which take
two values: what is said there is said of such noise. FedSAM's perturbations are free vectors of length at most rho,
which contains every perturbation along a gradient: its upper ends are valid, and may be larger than need be. "Two rows"
is stochastic gradient descent on one client, the row of a step being drawn: the noise of R2 with L_s = L and phi = 1.
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
from fedconvex.theory.worst_case import AtOptimum, Iterates, Problems, UniformUpper, fedavg, scaffold, worst_case

__all__ = ["WorstPlace", "worst_places"]

FILE = Path(__file__).with_name("exact_worst.json")
RUNS = ((1, 2), (2, 1), (2, 3), (3, 1), (3, 2))  # local steps, rounds
STEPS = (0.05, 0.1, 0.25, 0.6, 0.999)
ZETAS = (1.0, 30.0)
UNITS = ((1.0, 1.0), (1e-2, 1.0), (1e2, 1.0), (1.0, 0.1), (1.0, 10.0))  # L, D
TUNED, SCAFFOLD = "fedavg-convex-tuned", "scaffold"
ROWS = "at the optimum, two rows"
KINDS = {
    SCAFFOLD: SCAFFOLD,
    "fedsam": "SAM, uniform",
    "fedsam-at-optimum": "SAM, at the optimum",
    "fedavg-contraction": "contraction of FedAvg",
    "scaffold-contraction": "contraction of SCAFFOLD",
}


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
    rho: float = 0.0  # FedSAM's radius
    sigma: float = 0.0  # of noise
    mu: float = 0.0

    @property
    def key(self) -> str:
        """Its name in the file."""
        numbers = [f"{x:.6g}" for x in (self.tau, self.T, self.eta, self.zeta)]
        more = [f"{name} {getattr(self, name):g}" for name in ("rho", "sigma", "mu") if getattr(self, name)]
        return " ".join([self.kind, *numbers, *([f"p {self.p:g}"] if self.p != 0.5 else []), *more])

    def constants(self, L: float = 1.0, D: float = 1.0) -> Constants:
        """Return the constants in other units."""
        if self.kind == ROWS:
            s2 = (L * D * self.zeta) ** 2
            return Constants(L=L, L_s=L, D=D, sigma2_star=s2, sigma2_star_k=np.array([s2]), zeta_star=0.0, K=1)
        zeta, weights, sigma2 = L * D * self.zeta, np.array([self.p, 1.0 - self.p]), (L * D * self.sigma) ** 2
        return Constants(
            L=L, mu=L * self.mu, D=D, sigma2=sigma2, sigma2_star=0.0, zeta=zeta, zeta_star=zeta, p=weights, K=2
        )

    def worst(self) -> float:
        """Compute the certified upper end."""
        heterogeneity = (UniformUpper if self.kind.endswith("uniform") else AtOptimum)(self.zeta)
        free = max(self.rho, self.sigma)  # FedSAM's free vectors are those of noise, which is never drawn
        problems = Problems(2, heterogeneity=heterogeneity, weights=(self.p, 1.0 - self.p), sigma=free, mu=self.mu)
        if self.kind == ROWS:
            return worst_case(fedavg(self.eta, 1, self.T, sampled=1), problems, "shadow").upper
        if self.kind.startswith("contraction"):
            rule = fedavg if self.kind.endswith("FedAvg") else scaffold
            return worst_case(rule(self.eta, self.tau, self.T), problems, "last").upper
        if self.kind.startswith("SAM"):
            return worst_case(_perturbed(self.eta, self.tau, self.T), problems, "shadow").upper
        if self.kind in ("uniform", "at the optimum"):
            return worst_case(fedavg(self.eta, self.tau, self.T), problems, "shadow").upper
        S = int(self.kind[-1])
        if self.sigma > 0.0:
            return worst_case(_noisy_scaffold(self.eta, self.tau, self.T - 1, S), problems, _with_start).upper
        method = scaffold(self.eta, self.tau, self.T, sampled=S if S < 2 else None)
        return worst_case(method, problems, _before).upper


def _perturbed(eta: float, tau: int, T: int) -> Any:
    """FedSAM, the perturbation of every local step being any vector of the class's noise (L = 1)."""

    def method(problem: Any) -> Iterates:
        x, out = problem.start, Iterates([], [])
        for _ in range(T):
            y = [x] * len(problem.clients)
            for _ in range(tau):
                y = [
                    z - eta * c.gradient(z + problem._noise(c.index, z))
                    for c, z in zip(problem.clients, y, strict=True)
                ]
                x = problem.mean(y)
                out.shadow.append(x)
            out.rounds.append(x)
        return out

    return method


def _noisy_scaffold(eta: float, K: int, T: int, S: int) -> Any:
    """SCAFFOLD, option II, with noisy gradients."""

    def method(problem: Any) -> list[Any]:
        x, out = problem.start, []
        controls = {c.index: 0.0 * x for c in problem.clients}
        for _ in range(T):
            common, moved = sum(0.5 * c for c in controls.values()), 0.0 * x
            new = dict(controls)
            for client in problem.clients if S == 2 else problem.sample(S):
                y, own = x, controls[client.index]
                for _ in range(K):
                    y = y - eta * (client.noisy_gradient(y) - own + common)
                new[client.index] = own - common + (x - y) / (K * eta)
                moved = moved + (y - x) / S
            x, controls = x + moved, new
            out.append(x)
        return out

    return method


def _before(problem: Any, run: Any) -> Any:
    """Mean over rounds of F - F* before the round."""
    return _with_start(problem, run._replace(rounds=run.rounds[:-1]))


def _with_start(problem: Any, run: Any) -> Any:
    """Mean of F - F* over the start and the models after the rounds."""
    models = [problem.start, *run.rounds]
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
            if T == 2:
                yield Case(f"scaffold, S = {S}", tau, T, 1.0 / (81.0 * tau), 1.0, sigma=300.0)
    for kind in ("SAM, uniform", "SAM, at the optimum"):
        for tau, T in ((1, 2), (2, 1), (2, 2), (3, 1)):
            for zeta, rho in ((1.0, 1e-6), (1.0, 1.0), (30.0, 1.0), (1.0, 30.0)):
                for eta in (0.05, 0.25) if tau > 1 else (0.05, 0.999):
                    yield Case(kind, tau, T, eta, zeta, rho=rho)
    for T in (1, 2, 3):
        for zeta in (0.01, 1.0, 30.0):
            for eta in (0.05, 0.25, 0.45, 0.7):
                yield Case(ROWS, 1, T, eta, zeta)
    for kind in ("contraction of FedAvg", "contraction of SCAFFOLD"):
        for tau, T in ((1, 1), (1, 2), (2, 1), (2, 2), (3, 1)):
            for mu, eta, zeta in ((0.1, 0.3, 0.3), (0.1, 1.0, 1.0), (0.5, 0.3, 10.0), (0.5, 1.0, 0.3), (0.9, 0.5, 3.0)):
                yield Case(kind, tau, T, eta, zeta, mu=mu)


def _tuned(tau: int, T: int, zeta: float) -> float:
    return fedavg_convex_step(Constants(L=1.0, D=1.0, sigma2=0.0, zeta=zeta, K=2), local_steps=tau, rounds=T)


def worst_places(theorem: Theorem) -> Iterator[WorstPlace]:
    """Yield the settings at which the exact worst case of a theorem's class is known."""
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    at = theorem.worst_case is AtOptimum
    usual = "" if theorem.worst_case is None else "at the" if at else "uniform"
    kind = KINDS.get(theorem.name, usual)
    for case in _cases() if kind else ():
        if not case.kind.startswith(kind) or case.key not in known:
            continue
        if theorem.name == TUNED and case.eta != _tuned(case.tau, case.T, case.zeta):
            continue
        more: dict[str, Any] = {"noise_factor": float(case.kind == ROWS)} if at and not theorem.strongly_convex else {}
        if kind == SCAFFOLD:
            more = {"participants": int(case.kind[-1])}
        for L, D in UNITS:
            if case.rho > 0.0:
                more = {"rho": D * case.rho}
            told = {"constants": case.constants(L, D), "local_steps": case.tau, "rounds": case.T}
            if theorem.name != TUNED:
                told["step_size"] = case.eta / L
            words = f"M = {1 if case.kind == ROWS else 2}, tau = {case.tau}, T = {case.T}, L = {L:g}, D = {D:g}, "
            words += f"step {case.eta:.3g}/L, {'noise at x*' if case.kind == ROWS else 'zeta'} = {case.zeta:g} L D"
            words += (
                f", rho = {case.rho:g} D" if case.rho else f", two-valued noise {case.sigma:g} L D" * bool(case.sigma)
            )
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
