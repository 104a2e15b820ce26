"""Penalties and constraints: proximal Newton steps on working sets, and accelerated proximal gradients."""

from typing import TYPE_CHECKING

from fedconvex import _lazy

if TYPE_CHECKING:
    from fedconvex.solvers.penalised.working_sets import Search

__all__ = ["Search"]

__getattr__, __dir__ = _lazy.attach(__name__, __file__)
