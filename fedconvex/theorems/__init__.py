"""How every theorem is read off a setting: its hypotheses and constants, and the quantity that it speaks about.

A `Theorem` joins a bound (`theory`, which knows no method) to methods (which know no theory). Its quantity is obtained
exactly where the moments close (squared loss) or nothing is random, and from independent trajectories otherwise, always
through the real method. What searches have found against it (`fedconvex.verify.tightest`) is data: sharp.json.
"""

from typing import TYPE_CHECKING

from fedconvex import _lazy

if TYPE_CHECKING:
    from fedconvex.families.all_theorems import THEOREMS
    from fedconvex.theorems.parts.setting import Setting
    from fedconvex.theorems.parts.theorem import Theorem

__all__ = ["THEOREMS", "Setting", "Theorem"]

__getattr__, __dir__ = _lazy.attach(__name__, __file__)
