"""Where modules stand now that users may import by the names they had: those of the core here, others by families."""

from __future__ import annotations

from importlib import import_module

CORE = {
    "analysis.heterogeneity": "analysis.site_differences",
    "comparison.result": "comparison.comparison",
    "conformance.answer": "conformance.identified",
    "conformance.family": "conformance.algorithm_family",
    "remote.roster": "remote.site_roster",
    "solvers.ball": "solvers.minimax.ball",
    "solvers.expected_losses": "solvers.posteriors.expected_losses",
    "solvers.free_energy": "solvers.posteriors.free_energy",
    "solvers.games": "solvers.environments.games",
    "solvers.gaussians": "solvers.posteriors.gaussians",
    "solvers.invariance": "solvers.environments.invariance",
    "solvers.invariance_boxes": "solvers.environments.invariance_boxes",
    "solvers.row_rounding": "solvers.certificates.row_rounding",
    "study.checking": "study.site_check",
    "study.comparing": "study.comparing_coordinator",
    "study.participation": "study.site_end",
    "study.questions": "study.runs_asked",
    "theorems.parts.formulas": "theorems.parts.bound_formulas",
}


def moved() -> dict[str, str]:
    """Return where modules stand now, by what they were called."""
    core = {f"fedconvex.{old}": f"fedconvex.{new}" for old, new in CORE.items()}
    return core | import_module("fedconvex.families").moved()
