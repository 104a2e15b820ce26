"""What survival analysis declares."""

from fedconvex.families import Family

FAMILY = Family()
