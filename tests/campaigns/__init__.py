"""Searches too long for every change: thousands of random problems, fuzzers, kills of running processes.

``python -m tests.campaigns NAME --seed S --n N`` runs trials 0 to N - 1 of a campaign in several processes and writes
a line of JSON for each; started again, it goes on where it was stopped. A trial is a function of a generator whose
state depends on the seed and on the trial's number only. It raises AssertionError for what must not happen and returns
what is worth keeping. The functions stand in the test files, which call them for a few trials; `CAMPAIGNS` names them.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedconvex.families import FAMILIES

__all__ = ["CAMPAIGNS", "Campaign", "attempt", "pending", "run", "summary"]


class Campaign(NamedTuple):
    """Where the trial stands (module:function), what it searches for, and how many trials take up to ten seconds."""

    where: str
    what: str
    sample: int

    def trial(self) -> Callable[[np.random.Generator], dict | None]:
        """Import the function; test files import each other by their bare names, as under pytest."""
        for folder in (HERE, *(HERE / name for name in FAMILIES)):
            if str(folder) not in sys.path:
                sys.path.append(str(folder))
        module, function = self.where.split(":")
        return getattr(importlib.import_module(module), function)


HERE = Path(__file__).resolve().parents[1]
CAMPAIGNS = {
    "agnostic-rate": Campaign("test_agnostic_theory:rate_trial", "AFL above its rate on random problems", 10),
    "ball-maximum": Campaign("test_constants:ball_maximum_trial", "points above the maximum over a ball", 100),
    "bias-bounds": Campaign("test_limits:bias_trial", "limits of FedAvg and FedProx beyond their bounds", 500),
    "blocks": Campaign("test_verify_hybrid:blocks_trial", "blocks of rows and columns beyond their rates", 10),
    "boosting-corrections": Campaign("test_multiboost:corrections_trial", "corrected rounds above cvxpy's optimum", 8),
    "boosting-smoothed": Campaign("test_multiboost:smoothed_trial", "smoothed rounds above cvxpy's optimum", 30),
    "bounds": Campaign("test_bounds:violation_trial", "exact expectations above a bound of FedAvg", 60),
    "certificates": Campaign("test_solve:certificate_trial", "lower bounds above the minimum, badly conditioned", 20),
    "command-lines": Campaign("campaigns.command_lines:trial", "commands that crash or advise what does not help", 4),
    "composite": Campaign("test_composite:composite_trial", "gaps of penalised problems below the suboptimality", 8),
    "compare-classes": Campaign("campaigns.joining:trial_classes", "intervals of `compare`, held together", 1),
    "compare-real": Campaign("campaigns.joining:trial_real", "intervals of `compare`, held together", 1),
    "coverage": Campaign("campaigns.coverage:trial_coverage", "intervals of `analyse` that hold the slope", 1),
    "coverage-sizes": Campaign("campaigns.coverage:trial_sizes", "the same, where clients have few rows", 1),
    "coverage-slopes": Campaign("campaigns.coverage:trial_slopes", "the same, where slopes differ", 1),
    "conform": Campaign("test_conformance:correct_trial", "correct implementations that are read as something else", 1),
    "conform-correct": Campaign("campaigns.implementations:correct_trial", "correct implementations accused", 1),
    "conform-answers": Campaign("campaigns.implementations:trial", "implementations answered wrong", 1),
    "conform-methods": Campaign("test_conformance:method_trial", "methods that are not recognised", 1),
    "conform-planted": Campaign("test_conformance:planted_trial", "errors that are not named", 1),
    "corruptions": Campaign("campaigns.damage:corruption_trial", "damaged files that are read, or crash readers", 4),
    "crafted": Campaign("campaigns.crafted:crafted_trial", "crafted files that do harm, or are refused oddly", 12),
    "degenerate": Campaign("campaigns.degenerate:trial", "raw errors of theorems on problems hardly there", 2),
    "determinism": Campaign("campaigns.determinism:trial", "states that differ where they should be equal", 1),
    "fedavg-limits": Campaign("test_limits:fedavg_limit_trial", "runs that do not end at the fixed point", 40),
    "free-intercepts": Campaign("test_free_intercept:certificate_trial", "lower bounds above the minimum", 8),
    "fuzz-api": Campaign("campaigns.fuzz_api:trial", "calls with odd values that crash, hang or speak NumPy", 40),
    "games": Campaign("test_games:game_trial", "dynamics that end elsewhere than at a listed equilibrium", 5),
    "gaps": Campaign("campaigns.gaps:gap_trial", "gaps below the suboptimality in 50 digits, of all families", 20),
    "hedging-rate": Campaign("test_hedging:contraction_trial", "rounds of hedging that contract too little", 15),
    "interrupts": Campaign("campaigns.interrupts:trial", "work that is deaf to Ctrl-C", 1),
    "invariance": Campaign("test_invariance_campaigns:identities_trial", "identities and certificates of IRMv1", 20),
    "invariance-global": Campaign("test_invariance_campaigns:global_trial", "local minima certified as global", 10),
    "kills": Campaign("campaigns.damage:kill_trial", "bits that a kill changes, or files that it leaves", 2),
    "margin-bound": Campaign("test_boosting_theory:margin_trial", "true errors above the margin bound", 10),
    "mocha-gaps": Campaign("test_mocha:gap_trial", "gaps below the suboptimality, duals that fall", 4),
    "mocha-lipschitz": Campaign("test_mocha_theory:theorem_2_trial", "rounds above Theorem 2 of MOCHA", 20),
    "mocha-smooth": Campaign("test_mocha_theory:theorem_1_trial", "rounds above Theorem 1 of MOCHA", 20),
    "mutants": Campaign("campaigns.mutants:trial", "errors planted in bounds that the suite's checks miss", 1),
    "nasty": Campaign("campaigns.nasty:nasty_trial", "certificates that points in 60 digits contradict", 10),
    "owners": Campaign("test_verify_vertical:owners_trial", "blocks above their rate, or that grow otherwise", 20),
    "planted": Campaign("campaigns.planted:trial", "errors planted in sources that no test notices", 1),
    "properties": Campaign("campaigns.properties:property_trial", "counterexamples of a hypothesis test", 1),
    "messages-to-servers": Campaign("campaigns.messages:server_trial", "answers that end a run with a raw error", 1),
    "messages-to-sites": Campaign("campaigns.messages:site_trial", "requests that are answered, or end a site", 1),
    "sites": Campaign("campaigns.sites:contract_trial", "sites whose states are not those of one process", 3),
    "site-restarts": Campaign("campaigns.sites:required_trial", "bits that crashes of required sites change", 2),
    "site-faults": Campaign("campaigns.sites:fault_trial", "sums that lost, late or repeated answers spoil", 2),
    "sklearn-equal": Campaign("test_sklearn_equal:equality_trial", "other objectives or models than the peers'", 8),
    "solver": Campaign("test_solve:solver_trial", "disagreement with cvxpy on random problems", 40),
    "studies": Campaign("campaigns.studies:trial", "studies that end otherwise after kills, hangs and mix-ups", 1),
    "virtual": Campaign("test_virtual:identities_trial", "free energies that their certificate does not bound", 40),
    "virtual-damping": Campaign("test_virtual:damping_trial", "rounds that contract by another factor", 2),
    "wrong-theorems": Campaign("campaigns.wrong_theorems:trial", "errors of theorems that `verify` misses", 3),
    "verdicts": Campaign("campaigns.verdicts:verdict_trial", "true theorems that rounding violates", 20),
}


def attempt(name: str, seed: int, i: int) -> dict[str, Any]:
    """Run trial i: its number, whether it passed, what it returned or the error it raised, and its seconds.

    Those of the processor, of its children too, are beside them: trials wait for busy machines, and the first ones of
    their kind compile.
    """
    rng, start, used = np.random.default_rng([seed, i]), time.perf_counter(), sum(os.times()[:4])
    row: dict[str, Any] = {"trial": i, "passed": True}
    try:
        row |= CAMPAIGNS[name].trial()(rng) or {}
    except Exception as error:
        row |= {"passed": False, "error": f"{type(error).__name__}: {error}"[:2000]}
        row["where"] = traceback.format_exc(limit=-3)[-2000:]
    return row | {"seconds": round(time.perf_counter() - start, 4), "cpu": round(sum(os.times()[:4]) - used, 2)}


def written(path: Path, name: str, seed: int) -> dict[int, dict]:
    """Trials that an earlier run finished; a line cut by a kill is dropped, another campaign's file refused."""
    rows: dict[int, dict] = {}
    if not path.exists():
        return rows
    lines = path.read_text().split("\n")
    for line in lines:
        with contextlib.suppress(json.JSONDecodeError):
            row = json.loads(line)
            if (row["campaign"], row["seed"]) != (name, seed):
                raise ValueError(f"{path} holds campaign {row['campaign']} with seed {row['seed']}: name another file")
            rows[row["trial"]] = row
    if lines[-1]:  # no newline at the end: the next line must not be glued to it
        with path.open("a") as out:
            out.write("\n")
    return rows


def pending(path: Path, name: str, seed: int, n: int) -> list[int]:
    """Numbers of the trials that are still to be run."""
    done = written(path, name, seed)
    return [i for i in range(n) if i not in done]


def run(name: str, seed: int, n: int, path: Path, processes: int = 1) -> Iterator[dict[str, Any]]:
    """Run what is pending, append a line of JSON for every trial as it ends, and yield it."""
    todo = [(name, seed, i) for i in pending(path, name, seed, n)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as out, contextlib.ExitStack() as stack:
        if processes > 1 and len(todo) > 1:
            pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(processes))
            rows = pool.imap_unordered(_attempt, todo)
        else:
            rows = map(_attempt, todo)
        for row in rows:
            row = {"campaign": name, "seed": seed} | row
            out.write(json.dumps(row) + "\n")
            out.flush()
            os.fsync(out.fileno())
            yield row


def _attempt(job: tuple[str, int, int]) -> dict[str, Any]:
    return attempt(*job)


def summary(path: Path, name: str, seed: int) -> dict[str, Any]:
    """Count trials and failures; of every number that the trials return, the smallest, the mean and the largest."""
    rows = [row for _, row in sorted(written(path, name, seed).items())]
    numbers: dict[str, list[float]] = {}
    for row in rows:
        for key, value in row.items():
            if isinstance(value, (int, float)) and key not in ("trial", "seed", "passed"):
                numbers.setdefault(key, []).append(value)
    return {
        "campaign": name,
        "seed": seed,
        "trials": len(rows),
        "failed": [row["trial"] for row in rows if not row["passed"]],
        "range": {key: [min(values), max(values)] for key, values in numbers.items()},
        "mean": {key: [len(values), sum(values) / len(values)] for key, values in numbers.items()},
    }
