"""Tables: raw columns, the guard over them, and the record of what became of each."""

from typing import TYPE_CHECKING

from fedconvex import _lazy

if TYPE_CHECKING:
    from fedconvex.tables.columns import Column, Columns, UnknownCategory
    from fedconvex.tables.frame import Frame
    from fedconvex.tables.looking import Finding, look
    from fedconvex.tables.planning import Wishes
    from fedconvex.tables.problems import ColumnProblems, Trouble
    from fedconvex.tables.reading import read_frame, read_table

__all__ = [
    "Column",
    "ColumnProblems",
    "Columns",
    "Finding",
    "Frame",
    "Trouble",
    "UnknownCategory",
    "Wishes",
    "look",
    "read_frame",
    "read_table",
]

__getattr__, __dir__ = _lazy.attach(__name__, __file__)
