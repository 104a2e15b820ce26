"""Proximal points of the clients" objectives, without and with a penalty."""

from typing import TYPE_CHECKING

from fedconvex import _lazy

if TYPE_CHECKING:
    from fedconvex.solvers.proximal.smooth_points import proximal_points

__all__ = ["proximal_points"]

__getattr__, __dir__ = _lazy.attach(__name__, __file__)
