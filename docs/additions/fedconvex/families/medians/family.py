"""What geometric medians declare."""

from fedconvex.families import Family

FAMILY = Family()  # no theorems, experiments or options of `solve` yet
