"""Where modules stand now that users may import by the names they had: those of the core here, others by families."""

from __future__ import annotations

from importlib import import_module

CORE = {
    "solvers.ball": "solvers.minimax.ball",
    "solvers.expected_losses": "solvers.posteriors.expected_losses",
    "solvers.free_energy": "solvers.posteriors.free_energy",
    "solvers.games": "solvers.environments.games",
    "solvers.gaussians": "solvers.posteriors.gaussians",
    "solvers.invariance": "solvers.environments.invariance",
    "solvers.invariance_boxes": "solvers.environments.invariance_boxes",
    "solvers.row_rounding": "solvers.certificates.row_rounding",
}


def moved() -> dict[str, str]:
    """Return where modules stand now, by what they were called."""
    core = {f"fedconvex.{old}": f"fedconvex.{new}" for old, new in CORE.items()}
    return core | import_module("fedconvex.families").moved()
