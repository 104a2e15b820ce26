"""Experiments of the literature, run again beside the theory: each returns figures, tables and checked claims.

An experiment is a module with a constant ``EXPERIMENT``; `EXPERIMENTS` lists them by name.
"""

from typing import TYPE_CHECKING

from fedconvex import _lazy

if TYPE_CHECKING:
    from fedconvex.papers.all_experiments import EXPERIMENTS
    from fedconvex.papers.findings import Claim, Experiment, Findings, Progress, summary, write

__all__ = ["EXPERIMENTS", "Claim", "Experiment", "Findings", "Progress", "summary", "write"]

__getattr__, __dir__ = _lazy.attach(__name__, __file__)
