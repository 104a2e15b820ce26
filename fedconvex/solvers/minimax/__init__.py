"""The worst mixture of domains, exactly: agnostic solutions, and least values over balls of models."""

from typing import TYPE_CHECKING

from fedconvex import _lazy

if TYPE_CHECKING:
    from fedconvex.solvers.minimax.agnostic import (
        Minimax,
        measure_minimax,
        measure_softmax,
        saddle_point,
        solve_minimax,
        solve_softmax,
    )

__all__ = ["Minimax", "measure_minimax", "measure_softmax", "saddle_point", "solve_minimax", "solve_softmax"]

__getattr__, __dir__ = _lazy.attach(__name__, __file__)
