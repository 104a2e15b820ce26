"""Look for the few tiny instances of a theorem that press on its terms and catch its mutants.

``python -m tests.campaigns.sharpest THEOREM ... --seed S --n N`` draws N candidates, improves the best of them for the
bound and for each of its terms, and prints those worth keeping as lines for the theorem's file: the sharpest for the
bound and for each term, then those that together catch the mutants that no check catches yet.
"""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any, NamedTuple

import numpy as np

from fedconvex.theorems import THEOREMS, Theorem
from fedconvex.theorems.parts.tiny import Sharp, Tiny
from fedconvex.theory.bound import Bound
from fedconvex.verify.checking import problem_of, setting_of
from fedconvex.verify.monte_carlo import slack_of
from fedconvex.verify.power import term_share, whole_share
from fedconvex.verify.search import changed, drawn
from tests.campaigns.mutants import Mutant, Place, judged, mutants, value_at

IMPROVED = 80  # changes tried for the bound and for each term


class Candidate(NamedTuple):
    """A tiny problem with its bound and what it shows."""

    tiny: Tiny
    bound: Bound
    place: Place

    def share(self, term: str) -> float:
        """Return the share of the bound, or of a term, that is attained."""
        if not term:
            return whole_share(self.bound, self.place.least)
        return term_share(self.bound, self.place.least, term) if term in self.bound.terms else -math.inf


def candidate(theorem: Theorem, tiny: Tiny) -> Candidate | None:
    """Evaluate a tiny problem exactly, or return None where the theorem is silent or the value not exact."""
    try:
        check = theorem.space.check(tiny)
        s = setting_of(theorem, check, problem_of(theorem, check.instance))
        bound, found = theorem.at(s), theorem.expectation(s, [s.rounds])
        if found is None:
            return None
        least = float(found.values[0] - found.rounding[0]) - slack_of(bound)
        return Candidate(tiny, bound, Place(s, dict(theorem.read(s).arguments), bound.value, least, "candidate"))
    except (ArithmeticError, ValueError):
        return None


def pool_of(theorem: Theorem, seed: int, n: int) -> list[Candidate]:
    """Draw candidates, and improve the best for the bound and for each of its terms."""
    rng = np.random.default_rng([seed, 0])
    pool = [c for c in (candidate(theorem, drawn(rng, theorem.space)) for _ in range(n)) if c is not None]
    for term in ["", *dict.fromkeys(name for c in pool for name in c.bound.terms)]:
        best, step = max(pool, key=lambda c, t=term: c.share(t)), 0.5
        for _ in range(IMPROVED if math.isfinite(best.share(term)) else 0):
            new = candidate(theorem, changed(rng, theorem.space, best.tiny, step))
            if new is not None:
                pool.append(new)
            better = new is not None and new.share(term) > best.share(term)
            best, step = (new, min(1.5 * step, 1.0)) if better else (best, max(0.95 * step, 0.02))
    return pool


def chosen(theorem: Theorem, pool: list[Candidate], most: int, far: float = 0.01) -> list[tuple[str, Candidate]]:
    """Return the sharpest for the bound and for each term, and a greedy cover of the mutants that are missed."""
    out: list[tuple[str, Candidate]] = []
    terms = list(dict.fromkeys(name for c in pool for name in c.bound.terms))
    for term in ["", *(terms if len(terms) > 1 else [])]:
        best = max(pool, key=lambda c, t=term: c.share(t))
        if best.share(term) > far and all(best is not c for _, c in out):
            out.append((term, best))
    missed: list[Mutant] = [m for m in mutants(theorem) if judged(theorem, m) == "missed"]
    catches = [{m.what for m in missed if _catches(m, c)} for c in pool]
    left = {m.what for m in missed}
    for _, c in out:
        left -= {m.what for m in missed if _catches(m, c)}
    while left and len(out) < most:
        i = max(range(len(pool)), key=lambda j: len(catches[j] & left))
        if not catches[i] & left:
            break
        out.append(("", pool[i]))
        left -= catches[i]
    print(f"# {theorem.name}: {len(missed)} missed, {len(left)} still", *sorted(left), sep="\n#   ", file=sys.stderr)
    return out


def _catches(mutant: Mutant, c: Candidate) -> bool:
    value = value_at(mutant, c.place)
    return value < c.place.least and value < c.place.value * (1.0 - 1e-9)


def main(argv: list[str] | None = None) -> int:
    """Print what is worth keeping."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("theorem", nargs="+", choices=[t.name for t in THEOREMS.values() if t.space is not None])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=200, help="candidates drawn at random")
    parser.add_argument("--most", type=int, default=7, help="instances kept of a theorem")
    args = parser.parse_args(argv)
    for name in args.theorem:
        theorem = THEOREMS[name]
        found: list[Any] = chosen(theorem, pool_of(theorem, args.seed, args.n), args.most)
        print(f"{name} = (")
        for term, c in found:
            print(f"    {Sharp(term, float(f'{c.share(term):.3g}'), args.seed, c.tiny)!r},")
        print(")", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
