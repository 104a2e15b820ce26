"""Rounds, floats and bits that a client sends until F - F* <= 1e-10: the baselines on dials, untuned and tuned.

Nothing is timed but the CPU seconds of a run, for orientation. Dials: conditioning, heterogeneity of clients, and
similarity of their Hessians (many rows each, drawn alike). Untuned is the step that a theorem gives; tuned the best of
the same step times 1, 4 and 16, judged by rounds. Methods that draw run with three seeds: median, and the range behind
it. docs/choosing.md shows results/baselines.json.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import choosing
import numpy as np
from _timing import Report

from fedconvex import DivergenceWarning, FedSGD, Logistic, Problem, run
from fedconvex.datasets import logistic_federation
from fedconvex.methods import (
    DANE,
    DIANA,
    EF21,
    GIANT,
    SDANE,
    AcceleratedGradient,
    AcceleratedSDANE,
    FederatedNewton,
    FedLin,
    FedNL,
    RandK,
    RankR,
    Scaffnew,
    TopK,
    resolved,
)

ACCURACY, MOST, SEEDS = 1e-10, 2_000, 3
FACTORS = (1.0, 4.0, 16.0)
DRAWN: dict[str, tuple[int, dict[str, Any], float]] = {  # rows a client, dials of the federation, l2
    "plain": (50, {"condition": 10.0}, 1e-2),
    "ill-conditioned": (50, {"condition": 1000.0}, 1e-4),
    "heterogeneous": (50, {"condition": 10.0, "model_shift": 2.0, "feature_shift": 1.0}, 1e-2),
    "similar": (1000, {"condition": 100.0}, 1e-3),
}
METHODS: dict[str, Callable[[Any], Any]] = {  # given a step; those without one leave it alone
    "FedSGD": lambda step: FedSGD(step_size=step),
    "AcceleratedGradient": lambda step: AcceleratedGradient(step_size=step),
    "Scaffnew": lambda step: Scaffnew(step_size=step),
    "FedLin, 10 steps": lambda step: FedLin(step_size=step, local_steps=10),
    "DIANA, a fifth": lambda step: DIANA(step_size=step, compressor=RandK(2)),
    "EF21, a fifth": lambda step: EF21(step_size=step, compressor=TopK(2)),
    "DANE": lambda step: DANE(step_size=step),
    "SDANE, line search": lambda step: SDANE(step_size=step, line_search=True),
    "AcceleratedSDANE, line search": lambda step: AcceleratedSDANE(step_size=step, line_search=True),
    "GIANT": lambda step: GIANT(),
    "FedNL, rank 1": lambda step: FedNL(compressor=RankR(1)),
    "FederatedNewton": lambda step: FederatedNewton(),
}
RANDOM, WITHOUT_STEP = ("Scaffnew", "DIANA, a fifth"), ("GIANT", "FedNL, rank 1", "FederatedNewton")


def problems() -> dict[str, Problem]:
    """Return the problems, ten clients each."""
    out = {}
    for name, (rows, dials, l2) in DRAWN.items():
        out[name] = Problem(logistic_federation(10, 10, rows, seed=1, **dials).federation, Logistic(), l2=l2)
    return out


def needed(method: Any, problem: Problem, best: float, seed: int) -> dict[str, float] | None:
    """Return rounds, floats and bits a client, and CPU seconds, to the accuracy; None if it is not reached."""
    begun = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DivergenceWarning)  # of steps that are too large, which are tried too
            trace = run(method, problem, rounds=MOST, seed=seed, tol=0.1 * ACCURACY).trace
    except (ArithmeticError, np.linalg.LinAlgError, ValueError):  # a step that the method refuses
        return None
    reached = np.flatnonzero(trace.value - best <= ACCURACY)
    if not reached.size:
        return None
    i, K = int(reached[0]), problem.federation.K
    floats = float(trace.floats_up[i]) / K
    bits = float(trace.bits_up[i]) / K if "bits_up" in trace else 64.0 * floats
    seconds = time.process_time() - begun
    return {"rounds": float(trace.round[i]), "floats": floats, "bits": bits, "seconds": seconds}


def measured(name: str, make: Callable[[Any], Any], problem: Problem, best: float, factor: float) -> Any:
    """Return the median over seeds of what is needed with the theorem's step times a factor, and the rounds' range."""
    step: Any = 1.0
    if name not in WITHOUT_STEP:
        step = factor * float(resolved(make("auto"), problem)[0].step_size)
    found = [needed(make(step), problem, best, seed) for seed in range(SEEDS if name in RANDOM else 1)]
    if any(f is None for f in found):
        return None
    rounds = sorted(f["rounds"] for f in found if f is not None)
    middle = {key: float(np.median([f[key] for f in found if f is not None])) for key in found[0] or {}}
    return middle | {"from": rounds[0], "to": rounds[-1], "factor": factor}


def main() -> None:
    report = Report("baselines", "rounds, floats and bits a client to F - F* <= 1e-10, ten clients", "rounds", 1.0)
    report.body["found"] = []
    for case, problem in problems().items():
        best = problem.solve(tol=1e-14).value
        for name, make in METHODS.items():
            tried = [measured(name, make, problem, best, f) for f in (FACTORS if name not in WITHOUT_STEP else (1.0,))]
            reached = [t for t in tried if t is not None]
            for how, what in (("theory", tried[0]), ("tuned", min(reached, key=lambda t: t["rounds"], default=None))):
                report.body["found"].append({"case": case, "who": name, "step": how, "needs": what})
                shown = "not reached" if what is None else ", ".join(f"{k} {v:.6g}" for k, v in what.items())
                print(f"{case:16} {name:30} {how:7} {shown}", flush=True)
    report.write()
    if MOST > 100:  # not tiny
        choosing.write(report.body["found"])


if __name__ == "__main__":
    main()
