"""Sweeps: methods over grids of settings, problems and seeds, resumable, in processes or on a cluster.

`fedconvex.sweep` is the function; here is what it returns, and what draws it. `carried_out` keeps any long work in
parts: `fedconvex.sweeps.answers_on_disk`.
"""

from fedconvex.sweeps.figures import best_plot, gap_plot, heat_map
from fedconvex.sweeps.sweep_frame import Sweep, read_sweep
from fedconvex.sweeps.sweeping import sweep

__all__ = ["Sweep", "best_plot", "gap_plot", "heat_map", "read_sweep", "sweep"]
