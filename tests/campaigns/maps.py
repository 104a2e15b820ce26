"""Write how tight bounds are over steps and local steps to docs/tightness.md.

``python -m tests.campaigns.maps`` computes the maps of all theorems that have an exact worst case within reach.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from fedconvex.theorems import THEOREMS
from fedconvex.verify import TightnessMap, tightness_map

PAGE = Path(__file__).parents[2] / "docs" / "tightness.md"
HEAD = """# How tight bounds are over steps and local steps

How far each bound lies above the exact worst case, by step and number of local steps: where a better bound is
possible.

Written by `python -m tests.campaigns.maps`; `fedconvex verify --maps` computes the same of any theorems, yours among
them. Every number is a bound over the exact worst case (its certified upper end) of all problems with the constants of
the instance that is named: L, D, heterogeneity, number of clients, where the theorem asks for it mu. 1 means that no
better bound exists in these constants. No number stands where the theorem does not apply, or its programme is too
large. Steps are shares of 1/L; of `vertical-rate` the damping is a share of 1/m, of `hedging` rho one of (mu L)^(1/2).
"""


def page(maps: list[TightnessMap]) -> str:
    """Return the page."""
    parts = [HEAD]
    for found in maps:
        heads, rows = found.table()
        seen = found.ratio[~(found.ratio != found.ratio)]
        words = f"With the constants of {found.words}: {seen.min():.3g} to {seen.max():.3g}."
        lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *(f"| {' | '.join(row)} |" for row in rows)]
        parts.append(f"## {found.theorem}\n\n{words}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def main() -> int:
    """Compute the maps and write the page."""
    maps = []
    for theorem in THEOREMS.values():
        if not (theorem.worst_case or theorem.worst or theorem.programme):
            continue
        try:
            found = tightness_map(theorem)
        except ValueError as error:
            print(f"no map of {theorem.name}: {error}")
            continue
        if all(math.isnan(x) for x in found.ratio.ravel()):
            continue
        maps.append(found)
        print(theorem.name, flush=True)
    PAGE.write_text(page(maps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
