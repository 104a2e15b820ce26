"""What geometric medians declare."""

from fedconvex.families import Family

__all__ = ["FAMILY"]

FAMILY = Family()  # no theorems, experiments or options of `solve` yet
