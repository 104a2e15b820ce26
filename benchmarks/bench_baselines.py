"""Rounds, floats, bits and CPU seconds of a client until F - F* <= 1e-10: the baselines on dials and on real rows.

Dials: conditioning, heterogeneity of clients, and similarity of their Hessians (many rows each, drawn alike); real are
a9a (80 clients), w8a (142) and Adult (80), in the order of rows. Untuned is the step of a theorem; tuned the best of
the same step times 1, 4 and 16, judged by rounds. Methods that draw run with several seeds: median, and the range
behind it. Rounds are limited, and a method that does not get there has none.

``python benchmarks/bench_baselines.py [CASE ...]`` measures what results/baselines.json lacks, cell by cell, and so
resumes where it was stopped; ``--again`` measures cells anew. docs/choosing.md shows the results.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import choosing
import numpy as np
import scipy.sparse as sp
from _timing import Report, data_folder

from fedconvex import DivergenceWarning, Federation, FedSGD, Logistic, Problem, run
from fedconvex.datasets import logistic_federation
from fedconvex.methods import (
    DANE,
    DIANA,
    EF21,
    GIANT,
    SCAFFOLD,
    SDANE,
    AcceleratedGradient,
    AcceleratedSDANE,
    CompressedGradientDescent,
    ErrorFeedback,
    FedDyn,
    FederatedNewton,
    FedLin,
    FedNL,
    FedNova,
    RandK,
    RankR,
    Scaffnew,
    SymmetricTopK,
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
REAL = {"a9a": 80, "w8a": 142, "adult": 80}  # clients; l2 is 1e-2
MOST_REAL, FEW = 400, 40  # rounds: of methods on gradients, and of those that solve or decompose at every client


class Baseline(NamedTuple):
    """A method, given a step and p parameters; a step of None stands for that of its theorem."""

    make: Callable[[Any, int], Any]
    like: Callable[[Any, int], Any] | None = None  # whose theorem gives the step, if not its own
    stepless: bool = False  # takes no step
    drawn: bool = False
    costly: bool = False  # on real rows: few rounds, and at 16 times the step only


def _gradient(step: Any, p: int) -> Any:
    return AcceleratedGradient(step_size=step)


METHODS: dict[str, Baseline] = {
    "FedSGD": Baseline(lambda step, p: FedSGD(step_size=step)),
    "AcceleratedGradient": Baseline(_gradient),
    "Scaffnew": Baseline(lambda step, p: Scaffnew(step_size=step), drawn=True),
    "FedLin, 10 steps": Baseline(lambda step, p: FedLin(step_size=step, local_steps=10)),
    "SCAFFOLD, 10 steps": Baseline(lambda step, p: SCAFFOLD(step_size=step, local_steps=10), _gradient),
    "FedNova, 10 steps": Baseline(lambda step, p: FedNova(step_size=step, local_steps=10), _gradient),
    "FedDyn": Baseline(lambda step, p: FedDyn(alpha=1.0 / step), _gradient, costly=True),
    "DIANA, a fifth": Baseline(lambda step, p: DIANA(step_size=step, compressor=RandK(p // 5)), drawn=True),
    "EF21, a fifth": Baseline(lambda step, p: EF21(step_size=step, compressor=TopK(p // 5))),
    "ErrorFeedback, a fifth": Baseline(
        lambda step, p: ErrorFeedback(step_size=step, compressor=TopK(p // 5)), _gradient
    ),
    "CompressedGradientDescent, a fifth": Baseline(
        lambda step, p: CompressedGradientDescent(step_size=step, compressor=TopK(p // 5)), _gradient
    ),
    "DANE": Baseline(lambda step, p: DANE(step_size=step), costly=True),
    "SDANE, line search": Baseline(lambda step, p: SDANE(step_size=step, line_search=True), costly=True),
    "AcceleratedSDANE, line search": Baseline(
        lambda step, p: AcceleratedSDANE(step_size=step, line_search=True), costly=True
    ),
    "GIANT": Baseline(lambda step, p: GIANT(), stepless=True, costly=True),
    "FedNL, rank 1": Baseline(lambda step, p: FedNL(compressor=RankR(1)), stepless=True, costly=True),
    "FedNL, 8 p entries": Baseline(
        lambda step, p: FedNL(compressor=SymmetricTopK(min(8 * p, p * (p + 1) // 2))), stepless=True
    ),
    "FederatedNewton": Baseline(lambda step, p: FederatedNewton(), stepless=True),
}


def drawn_problem(name: str) -> Problem:
    """Return a problem of ten clients on a dial."""
    rows, dials, l2 = DRAWN[name]
    return Problem(logistic_federation(10, 10, rows, seed=1, **dials).federation, Logistic(), l2=l2)


def real_problem(name: str) -> Problem | None:
    """Return logistic regression on real rows, split in their order; None where the file is not there."""
    path = data_folder() / f"{name}.npz"
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as z:
        if "data" in z:
            parts = (z["data"].astype(float), z["indices"].astype(np.int64), z["indptr"].astype(np.int64))
            X, y = sp.csr_array(parts, shape=tuple(z["shape"])), z["y"].astype(float)
        else:  # columns of numbers standardised, categories one-hot
            numbers = z["x_num_train"].astype(float)
            levels = [np.eye(len(z[f"categories_{j}"]))[codes] for j, codes in enumerate(z["x_cat_train"].T)]
            X = sp.csr_array(np.hstack([(numbers - numbers.mean(0)) / numbers.std(0), *levels]))
            y = 2.0 * z["y_train"] - 1.0
    fed = Federation(X, y, np.linspace(0, len(y), REAL[name] + 1).astype(np.int64))
    return Problem(fed, Logistic(), l2=1e-2)


def needed(method: Any, problem: Problem, best: float, seed: int, most: int) -> dict[str, float] | None:
    """Return rounds, floats and bits a client, and CPU seconds, to the accuracy; None if it is not reached."""
    begun = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DivergenceWarning)  # of steps that are too large, which are tried too
            trace = run(method, problem, rounds=most, seed=seed, tol=0.1 * ACCURACY).trace
    except (ArithmeticError, np.linalg.LinAlgError, ValueError):  # a step that the method refuses
        return None
    reached = np.flatnonzero(trace.value - best <= ACCURACY)
    if not reached.size:
        return None
    i, K = int(reached[0]), problem.federation.K
    floats = float(trace.floats_up[i]) / K
    bits = float(trace.bits_up[i]) / K if "bits_up" in trace else 64.0 * floats
    seconds = (time.process_time() - begun) * float(trace.round[i]) / float(max(trace.round[-1], 1))
    return {"rounds": float(trace.round[i]), "floats": floats, "bits": bits, "seconds": seconds}


def measured(who: Baseline, problem: Problem, best: float, factor: float, real: bool) -> Any:
    """Return the median over seeds of what is needed with the theorem's step times a factor, and the rounds' range."""
    p, step = problem.size, 1.0
    if not who.stepless:
        step = factor * float(resolved((who.like or who.make)("auto", p), problem)[0].step_size)
    most = (FEW if who.costly else MOST_REAL) if real else MOST
    found = [needed(who.make(step, p), problem, best, seed, most) for seed in range(SEEDS if who.drawn else 1)]
    if any(f is None for f in found):
        return None
    rounds = sorted(f["rounds"] for f in found if f is not None)
    middle = {key: float(np.median([f[key] for f in found if f is not None])) for key in found[0] or {}}
    return middle | {"from": rounds[0], "to": rounds[-1], "factor": factor}


def cells(case: str, name: str, problem: Problem, best: float) -> list[dict[str, Any]]:
    """Return what a method needs by theory and tuned."""
    who, real = METHODS[name], case in REAL
    costly = real and who.costly and not who.stepless
    factors = (1.0,) if who.stepless else (16.0,) if costly else FACTORS
    tried = [measured(who, problem, best, f, real) for f in factors]
    best_of = min((t for t in tried if t is not None), key=lambda t: t["rounds"], default=None)
    both = {"theory": None if costly else tried[0], "tuned": best_of}
    return [
        {"case": case, "who": name, "step": how, "needs": what}
        | ({"left_out": True} if costly and how == "theory" else {})
        for how, what in both.items()
    ]


def kept() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the cells that were measured."""
    out: dict[tuple[str, str], list[dict[str, Any]]] = {}
    if MOST > 100 and choosing.RESULTS.exists():  # not tiny
        for cell in json.loads(choosing.RESULTS.read_text(encoding="utf-8"))["found"]:
            out.setdefault((cell["case"], cell["who"]), []).append(cell)
    return out


def main() -> None:
    report = Report("baselines", "rounds, floats, bits and CPU s to F - F* <= 1e-10, a client", "rounds", 1.0)
    asked = [name for name in sys.argv[1:] if name in (*DRAWN, *REAL)] or [*DRAWN, *(REAL if MOST > 100 else ())]
    for case in asked:
        problem = drawn_problem(case) if case in DRAWN else real_problem(case)
        if problem is None:
            print(f"{case}: {case}.npz is not in FEDCONVEX_DATA", flush=True)
            continue
        best = None
        for name in METHODS:
            if (case, name) in kept() and "--again" not in sys.argv:
                continue
            best = problem.solve(tol=1e-14).value if best is None else best
            found = cells(case, name, problem, best)
            for cell in found:
                shown = (
                    "not reached"
                    if cell["needs"] is None
                    else ", ".join(f"{k} {v:.6g}" for k, v in cell["needs"].items())
                )
                print(f"{case:16} {name:34} {cell['step']:7} {shown}", flush=True)
            every = kept() | {(case, name): found}
            order = {case: i for i, case in enumerate((*DRAWN, *REAL))}, {name: i for i, name in enumerate(METHODS)}
            ordered = sorted(every, key=lambda key: (order[0].get(key[0], 99), order[1].get(key[1], 99)))
            report.body["found"] = [cell for key in ordered for cell in every[key]]
            report.write()
    if MOST > 100:
        choosing.write(report.body.get("found") or [cell for found in kept().values() for cell in found])


if __name__ == "__main__":
    main()
