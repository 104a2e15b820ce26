"""The referee for solvers: problems x solvers x seeds, judged by certified gaps from the models alone.

Names are loaded when they are used: the process of a solver from outside starts without what it does not need.
"""

from typing import TYPE_CHECKING

from fedconvex import _lazy

if TYPE_CHECKING:
    from fedconvex.bench.board import AXES, Board, data_profile, performance_profile
    from fedconvex.bench.book import Entry, book_cases, read_book, write_book
    from fedconvex.bench.campaign import bench
    from fedconvex.bench.cases import Case
    from fedconvex.bench.channel import Channel
    from fedconvex.bench.conditions import Conditions, Network
    from fedconvex.bench.judging import Referee
    from fedconvex.bench.solvers import Arrays, Solver, named
    from fedconvex.bench.suites import SUITES, suite

__all__ = [
    "AXES",
    "SUITES",
    "Arrays",
    "Board",
    "Case",
    "Channel",
    "Conditions",
    "Entry",
    "Network",
    "Referee",
    "Solver",
    "bench",
    "book_cases",
    "data_profile",
    "named",
    "performance_profile",
    "read_book",
    "suite",
    "write_book",
]

__getattr__, __dir__ = _lazy.attach(__name__, __file__)
