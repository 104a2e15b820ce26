"""Draw the figures of pages that examples draw too: ``python docs/example_figures.py`` (seconds, once compiled)."""

from __future__ import annotations

import runpy
from pathlib import Path

import matplotlib

DOCS = Path(__file__).resolve().parent
FIGURES = {"boosting.png": "plot_boosting_sources.py"}

if __name__ == "__main__":
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.show = lambda: None  # figures are kept after it
    for name, example in FIGURES.items():
        runpy.run_path(str(DOCS.parent / "examples" / example))
        plt.savefig(DOCS / "figures" / name, dpi=110)
        plt.close("all")
