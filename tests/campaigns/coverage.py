"""How often intervals of `analyse` cover: Wald's and the likelihood's, with intercepts of clients that differ.

Ten clients of 30 to 300 rows, equal slopes, five standard deviations of their intercepts, three families and Cox's.
A trial simulates one cell some times and counts: the share over a campaign is within two standard errors of 95 % where
asymptotics can be asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from fedconvex.analysis.cox import CoxLikelihood, cox
from fedconvex.analysis.likelihood import LikelihoodProblem, certified_minimum
from fedconvex.analysis.profile_ends import Level, ends
from fedconvex.analysis.response_families import GAUSSIAN, LOGISTIC, POISSON
from fedconvex.families.survival.survival_rows import SurvivalFederation, outcomes
from fedconvex.federation import Federation

FAMILIES = ("gaussian", "logistic", "poisson", "cox")
SPREADS = (0.0, 0.5, 1.0, 1.5, 2.0)
SIMULATIONS = 20
SLOPES = np.array([0.5, -0.3])


def simulated(rng: np.random.Generator, family: str, spread: float) -> Any:
    """Return a likelihood of ten clients: features shifted between them, levels that differ, half of times censored."""
    sizes = rng.integers(30, 301, 10)
    who = np.repeat(np.arange(10), sizes)
    X = rng.normal(size=(who.size, 2)) + 0.5 * rng.normal(size=(10, 2))[who]
    z = X @ SLOPES + spread * rng.normal(size=10)[who]
    if family == "cox":
        time, censored = rng.exponential(np.exp(-z)), rng.exponential(np.exp(-z).mean(), who.size)
        rows = outcomes(np.minimum(time, censored), time <= censored)
        return CoxLikelihood(SurvivalFederation.from_arrays(X, rows, who), cox("efron"))
    y = {
        "gaussian": lambda: z + rng.normal(size=z.size),
        "logistic": lambda: (rng.random(z.size) < 1.0 / (1.0 + np.exp(-z))).astype(float),
        "poisson": lambda: rng.poisson(np.exp(z - 1.0)).astype(float),
    }[family]()
    kind = {"gaussian": GAUSSIAN, "logistic": LOGISTIC, "poisson": POISSON}[family]
    return LikelihoodProblem(Federation.from_arrays(X, y, who), kind, site_intercepts=True)


def covered(problem: Any) -> tuple[bool, bool]:
    """Return whether Wald's and the likelihood's interval of the first slope hold it."""
    found = certified_minimum(problem, np.zeros((1, problem.size)))
    b, N, df = found.b[0], float(found.value[0]), problem.n - problem.parameters
    gaussian = problem.family.name == "gaussian"
    phi = 2.0 * N / df if gaussian else 1.0
    reach = float((stats.t(df) if gaussian else stats.norm).isf(0.025))
    drop = 0.5 * phi * reach**2
    error = float(np.sqrt(phi * found.inverse[0, 0, 0]))
    level = Level(N + drop, N + drop, N + drop, drop)
    two = ends(problem, np.array([[1.0, 0.0], [-1.0, 0.0]]), b, N, level)
    return abs(b[0] - SLOPES[0]) <= reach * error, bool(-two.outer[1] <= SLOPES[0] <= two.outer[0])


def trial_coverage(rng: np.random.Generator) -> dict[str, Any]:
    """Simulate a cell some times."""
    family, spread = str(rng.choice(FAMILIES)), float(rng.choice(SPREADS))
    held = np.array([covered(simulated(rng, family, spread)) for _ in range(SIMULATIONS)])
    return {"cell": f"{family} {spread:g}", "wald": float(held[:, 0].mean()), "profile": float(held[:, 1].mean())}
