"""All theorems: those of the core, and those that families declare."""

from __future__ import annotations

from collections.abc import Mapping

from fedconvex.families import loaded
from fedconvex.theorems.core import CORE, FOUND
from fedconvex.theorems.parts.theorem import Theorem
from fedconvex.theorems.parts.tiny import with_sharp

THEOREMS: Mapping[str, Theorem] = {
    t.name: with_sharp(t, FOUND) for module in (*CORE, *loaded("theorems")) for t in module.THEOREMS
}
