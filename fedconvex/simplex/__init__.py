"""Exact projections onto the simplex and its relatives, Euclidean and Kullback-Leibler, with optimality residuals.

Every set lies in {x >= 0, sum x = s} (or its weighted form); arrays are (..., p), and each row is projected. The
argument stands in docs/simplex.md.
"""

from typing import TYPE_CHECKING

from fedconvex import _lazy

if TYPE_CHECKING:
    from fedconvex.simplex.euclidean import (
        project_l1_ball,
        project_simplex,
    )
    from fedconvex.simplex.kl import (
        project_divergence_ball,
        project_kl_divergence_ball,
        project_kl_polytope,
        project_kl_simplex,
    )
    from fedconvex.simplex.polytope import Infeasible, project_polytope
    from fedconvex.simplex.residuals import (
        divergence_ball_residual,
        kl_divergence_ball_residual,
        kl_polytope_residual,
        kl_simplex_residual,
        l1_ball_residual,
        polytope_residual,
        simplex_residual,
    )

__all__ = [
    "Infeasible",
    "divergence_ball_residual",
    "kl_divergence_ball_residual",
    "kl_polytope_residual",
    "kl_simplex_residual",
    "l1_ball_residual",
    "polytope_residual",
    "project_divergence_ball",
    "project_kl_divergence_ball",
    "project_kl_polytope",
    "project_kl_simplex",
    "project_l1_ball",
    "project_polytope",
    "project_simplex",
    "simplex_residual",
]

__getattr__, __dir__ = _lazy.attach(__name__, __file__)
