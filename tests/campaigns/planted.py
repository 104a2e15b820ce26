"""Errors planted in the sources, one at a time, and the tier of the tests that notices each.

``python -m tests.campaigns.planted`` plants all of `PLANTS` in copies of the project and prints, for each, the tier and
the first test that fails: the default tier, or the slow one where the default tier passes. Only the tests named with
the plant are run, as plain Python. The campaign ``planted`` draws one plant per trial, and fails where nothing fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

__all__ = ["PLANTS", "Plant", "noticed_by", "trial"]

ROOT = Path(__file__).resolve().parents[2]
TIERS = {"default": "not slow", "slow": "slow"}


class Plant(NamedTuple):
    """An error: what is wrong, where, the line as it stands and as it is planted, and the tests meant to notice."""

    what: str
    file: str
    old: str
    new: str
    tests: str

    def source(self) -> str:
        """Return the file with the error in it."""
        text = (ROOT / "fedconvex" / self.file).read_text()
        assert self.old in text, f"{self.file} has no {self.old!r}: plant it where the line went"
        return text.replace(self.old, self.new, 1)


PLANTS = (
    Plant(
        "averages over clients take the first client's weight for all", "kernels/averages.py",
        "out[r, t] += weights[r, j] * A[r, j, t]", "out[r, t] += weights[r, 0] * A[r, j, t]",
        "test_contract::test_one_full_step_is_gradient_descent",
    ),
    Plant(
        "mini-batches without replacement never draw the last row", "kernels/batches.py",
        "below(state, start + e * block + b, n - b)", "below(state, start + e * block + b, max(n - b - 1, 1))",
        "test_contract::test_batches_are_uniform",
    ),
    Plant(
        "mini-batch steps shrink by half of the ridge", "kernels/descent.py",
        "shrink(job.ridge, a, w, job.tilt)", "shrink(0.5 * job.ridge, a, w, job.tilt)",
        "test_contract::test_fedavg_equals_plain_numpy",
    ),
    Plant(
        "groups of eight slopes overwrite the last row's", "kernels/batches.py",
        "for b in range(size, whole):", "for b in range(size - 1, whole):", "test_losses",
    ),
    Plant(
        "every round draws the batches of round 0", "driver/rounds.py",
        "draws = Draws(self.key, self.numbers, t)", "draws = Draws(self.key, self.numbers, 0)",
        "test_contract::test_fedavg_equals_plain_numpy",
    ),
    Plant(
        "curvature of the logistic loss", "losses/logistic.py",
        "return t / ((1.0 + t) * (1.0 + t))", "return t / (1.0 + t)", "test_losses",
    ),
    Plant(
        "certified gaps by strong convexity are half of what they must be", "solvers/certificates/free_coordinates.py",
        "(size / np.sqrt(2.0 * l2)) ** 2", "(size / np.sqrt(4.0 * l2)) ** 2",
        "test_contract::test_the_gap_by_strong_convexity_is_attained",
    ),
    Plant(
        "lower bounds of a minimax value are 1e-6 too high", "solvers/minimax/agnostic.py",
        "(min(b + bonus, value) - rounding for b in", "(min(b + bonus, value) + 1e-6 for b in", "test_minimax",
    ),
    Plant(
        "soft thresholding by half of the strength", "penalties.py",
        "t = a * self.strength", "t = 0.5 * a * self.strength", "test_penalties",
    ),
    Plant(
        "control variates point the other way", "methods/scaffold.py",
        "tilt[r, j, q] = c[r, q] - rows[slots[r, j], q]", "tilt[r, j, q] = rows[slots[r, j], q] - c[r, q]",
        "test_scaffold",
    ),
    Plant(
        "projections onto the simplex are off by 1e-12", "simplex/euclidean.py",
        "x = (v[i] - c) + d\n", "x = (v[i] - c) + d + 1e-12\n", "test_simplex",
    ),
    Plant(
        "exact expected gaps count half of the covariance", "theory/moments/least_squares.py",
        "return 0.5 * float(np.sum(self.H * S))", "return 0.25 * float(np.sum(self.H * S))", "test_moments",
    ),
    Plant(
        "the sharp bound of FedAvg has half of its noise", "theorems/fedavg_refined.py",
        '"noise": 0.5 * eta * float(', '"noise": 0.25 * eta * float(', "test_bounds test_suite",
    ),
    Plant(
        "weights differ without a pull of the clients' optima apart", "theorems/weight_divergence.py",
        '"drift": eta * float(', '"drift": 0.5 * eta * float(', "test_bounds test_sharing test_scopes",
    ),
    Plant(
        "automatic steps are twice as long", "constants/default_steps.py",
        "DefaultStep(_inverse(smooth.client)", "DefaultStep(_inverse(0.5 * smooth.client)", "test_automatic_steps",
    ),
    Plant(
        "Efron's tied events weigh one share too little", "families/survival/risk_kernels.py",
        "share = 1.0 - r / deaths[u] if efron", "share = 1.0 - (r + 1) / deaths[u] if efron",
        "survival/test_partial_likelihood::test_sums_over_risk_sets",
    ),
    Plant(
        "sums over risk sets with delayed entry cumulate the wrong way", "families/survival/risk_kernels.py",
        "if right == over_rows:", "if (right == over_rows) == (level == 0):",
        "survival/test_partial_likelihood::test_sums_over_risk_sets",
    ),
    Plant(
        "rows are at risk at the time of their entry", "families/survival/risk_sets.py",
        "order = np.lexsort((kind, t,", "order = np.lexsort((1 - kind, t,",
        "survival/test_partial_likelihood::test_censored_at_an_event_time_is_at_risk_and_entry_at_it_is_not",
    ),
    Plant(
        "the second row of tied means is left out of Hessians", "families/survival/risk_kernels.py",
        "rest = h[u, 4] - h[u, 3] * h[u, 3] / h[u, 2]", "rest = 0.0 * h[u, 4]",
        "survival/test_cox_values",
    ),
    Plant(
        "certificates of Cox models are a fifth too small", "families/survival/certified_fit.py",
        "return 0.5 * decrement**2", "return 0.4 * decrement**2",
        "survival/test_partial_likelihood::test_the_certificate_bounds_the_distance_to_the_minimum",
    ),
    Plant(
        "tied scores count as concordant", "families/survival/risk_kernels.py",
        "below = up_to(tree, rank[i] - 1)", "below = up_to(tree, rank[i])",
        "survival/test_hazard_checks::test_pairs_are_those_counted_one_by_one",
    ),
    Plant(
        "HC3 is HC2", "analysis/covariances.py",
        "square(1.0 / rest**2)", "square(1.0 / rest)",
        "analysis/test_analyse::test_robust_errors_with_intercepts_of_clients",
    ),
    Plant(
        "clustered covariances have n for n - 1", "analysis/covariances.py",
        "return K / (K - 1.0) * (n - 1.0)", "return K / (K - 1.0) * n",
        "analysis/test_analyse::test_robust_errors_with_intercepts_of_clients",
    ),
    Plant(
        "forest plots weigh clients without tau^2", "analysis/forest_plots.py",
        "weights = 1.0 / (se**2 + s.hartung_knapp.tau2)", "weights = 1.0 / se**2",
        "analysis/test_analysis_page::test_forest_plots_show_the_numbers",
    ),
    Plant(
        "robust Cox errors by client are those by row", "analysis/cox.py",
        'if kind == "client":', 'if kind == "clients":',
        "analysis/test_analyse_cox::test_values_of_r",
    ),
)  # fmt: skip


def noticed_by(plant: Plant) -> tuple[str, str] | None:
    """Return the tier and the first test that fails in a copy of the project with the error in it."""
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        for part in ("fedconvex", "tests"):
            shutil.copytree(ROOT / part, top / part, ignore=shutil.ignore_patterns("__pycache__", "kernels-*"))
        shutil.copy(ROOT / "pyproject.toml", top)
        (top / "fedconvex" / plant.file).write_text(plant.source())
        for tier, expression in TIERS.items():
            failed = _first_failure(top, plant.tests.split(), expression)
            if failed:
                return tier, failed
    return None


def _first_failure(top: Path, names: list[str], expression: str) -> str:
    files = ["tests/" + name.replace("::", ".py::") if "::" in name else f"tests/{name}.py" for name in names]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", "-m", expression, *files]
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(top)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(command, cwd=top, env=environment, capture_output=True, text=True)
    if done.returncode in (0, 5):  # all pass, or no test is of this tier
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    assert done.returncode == 1 and found, done.stdout[-2000:] + done.stderr[-2000:]
    return found[1]


def trial(rng: np.random.Generator) -> dict[str, str]:
    """Plant one of the errors; some test must notice it."""
    plant = PLANTS[int(rng.integers(len(PLANTS)))]
    found = noticed_by(plant)
    assert found, f"no test of {plant.tests} notices: {plant.what}"
    return {"plant": plant.what, "tier": found[0], "test": found[1]}


def main() -> int:
    """Print a table of all plants; exit status 1 if one goes unnoticed."""
    missed = 0
    for plant in PLANTS:
        tier, test = noticed_by(plant) or ("none", plant.tests)
        missed += tier == "none"
        print(f"{tier:8} {plant.what:70} {test}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
