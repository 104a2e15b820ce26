"""How problems are solved exactly, and what certifies the solution: functions of rows, loss, weights and l2."""

from typing import TYPE_CHECKING

from fedconvex import _lazy

if TYPE_CHECKING:
    from fedconvex.solvers.minimax.agnostic import Minimax, solve_minimax, solve_softmax
    from fedconvex.solvers.solution import Solution

__all__ = ["Minimax", "Solution", "solve_minimax", "solve_softmax"]

__getattr__, __dir__ = _lazy.attach(__name__, __file__)
