"""Experiments of the literature, run again beside the theory: each returns figures, tables and checked claims.

An experiment is a module with a constant ``EXPERIMENT``; `EXPERIMENTS` lists them by name.

* `Progress`: a function that is told the share done, in [0, 1], and what is being done.

>>> from fedconvex.papers import Progress
>>> def tell(share, doing):
...     print(f"{share:.0%} {doing}")
>>> told: Progress = tell
>>> told(0.5, "200 of 400 rounds")
50% 200 of 400 rounds
"""

from typing import TYPE_CHECKING

from fedconvex import _lazy

if TYPE_CHECKING:
    from fedconvex.papers.all_experiments import EXPERIMENTS
    from fedconvex.papers.findings import Claim, Experiment, Findings, Progress, summary, write

__all__ = ["EXPERIMENTS", "Claim", "Experiment", "Findings", "Progress", "summary", "write"]

__getattr__, __dir__ = _lazy.attach(__name__, __file__)
