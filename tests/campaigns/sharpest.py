"""Look for the few tiny instances of a theorem that press on its terms and catch its mutants.

``python -m tests.campaigns.sharpest THEOREM ... --seed S --drawn N`` draws N candidates, adds derived ones
(`families`), improves the best of them for the bound and for each of its terms, takes the best in other units as well,
and writes to sharp.json those worth keeping: the sharpest for the bound and for each term, then those that together
catch the mutants that the theorem's other checks do not catch.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedconvex import theorems
from fedconvex.theorems import THEOREMS, Theorem
from fedconvex.theorems.parts.theorem import Reading
from fedconvex.theorems.parts.tiny import Sharp, Tiny, Whole, read_sharp, write_sharp
from fedconvex.theory.bound import Bound
from fedconvex.verify.checking import problem_of, setting_of
from fedconvex.verify.monte_carlo import slack_of
from fedconvex.verify.power import term_share, whole_share
from fedconvex.verify.search import changed, drawn
from tests.campaigns.families import UNITS, families
from tests.campaigns.mutants import Mutant, Place, judged, mutants, value_at

FOUND = Path(theorems.__file__).with_name("sharp.json")


class Effort(NamedTuple):
    """How long is searched.

    Parameters
    ----------
    seed, drawn : int
        Of random candidates, and how many.
    improved : int
        Changes tried for the bound and for each of its terms.
    pressed : int
        Changes tried for every mutant that nothing in the pool catches.
    most : int
        Instances kept.
    """

    seed: int = 0
    drawn: int = 200
    improved: int = 50
    pressed: int = 50
    most: int = 9


class Candidate(NamedTuple):
    """A tiny problem with its bound and what it shows."""

    tiny: Tiny
    bound: Bound
    place: Place
    origin: int | str  # the seed, or what family it is of

    def share(self, term: str) -> float:
        """Return the share of the bound, or of a term, that is attained."""
        if not term:
            return whole_share(self.bound, self.place.least)
        return term_share(self.bound, self.place.least, term) if term in self.bound.terms else -math.inf


def candidate(theorem: Theorem, tiny: Tiny, origin: int | str) -> Candidate | None:
    """Evaluate a tiny problem exactly, or return None where the theorem is silent or the value not exact."""
    try:
        check = theorem.space.check(tiny)
        s = setting_of(theorem, check, problem_of(theorem, check.instance))
        bound, found = theorem.at(s), theorem.expectation(s, [s.rounds])
        if found is None:
            return None
        least = float(found.values[0] - found.rounding[0]) - slack_of(bound)
        reading = theorem.read(s) if theorem.read is not None else Reading({"s": s})
        return Candidate(tiny, bound, Place(s, dict(reading.arguments), bound.value, least, "candidate"), origin)
    except (ArithmeticError, ValueError):
        return None


def pool_of(theorem: Theorem, effort: Effort) -> list[Candidate]:
    """Draw candidates, add derived ones, and improve the best for the bound and for each of its terms."""
    rng = np.random.default_rng([effort.seed, 0])
    every = [(effort.seed, drawn(rng, theorem.space)) for _ in range(effort.drawn)]
    found = [s for name, mine in read_sharp(FOUND).items() if name != theorem.name for s in mine]
    made = (candidate(theorem, tiny, origin) for origin, tiny in (*every, *families(theorem.space, found)))
    pool = [c for c in made if c is not None]
    for term in _terms(pool):
        best, step = max(pool, key=lambda c, t=term: c.share(t)), 0.5
        for _ in range(effort.improved if math.isfinite(best.share(term)) else 0):
            new = candidate(theorem, changed(rng, theorem.space, best.tiny, step), best.origin)
            if new is not None:
                pool.append(new)
            better = new is not None and new.share(term) > best.share(term)
            best, step = (new, min(1.5 * step, 1.0)) if better else (best, max(0.95 * step, 0.02))
    if all(isinstance(limits, Whole) or name == "share" for name, limits in theorem.space.knobs.items()):
        for best in [max(pool, key=lambda c, t=term: c.share(t)) for term in _terms(pool)]:
            more = (candidate(theorem, best.tiny.scaled(*units), best.origin) for units in UNITS)
            pool += [c for c in more if c is not None]
    return pool


def pressed(theorem: Theorem, pool: list[Candidate], mutant: Mutant, effort: Effort) -> Candidate | None:
    """Change the candidate that comes closest to catching a mutant, until one catches it; None where none does."""
    rng, step = np.random.default_rng([effort.seed, 1]), 0.5
    lowered = [c for c in pool if value_at(mutant, c.place) < c.place.value * (1.0 - 1e-9)]
    best = max(lowered, key=lambda c: _ratio(mutant, c), default=None)
    for _ in range(effort.pressed if best is not None else 0):
        new = candidate(theorem, changed(rng, theorem.space, best.tiny, step), best.origin)
        better = new is not None and _ratio(mutant, new) > _ratio(mutant, best)
        best, step = (new, min(1.5 * step, 1.0)) if better else (best, max(0.95 * step, 0.02))
        if better and _catches(mutant, new):
            return new
    return None


def _ratio(mutant: Mutant, c: Candidate) -> float:
    value = value_at(mutant, c.place)
    return c.place.least / value if 0.0 < value < c.place.value * (1.0 - 1e-9) else -math.inf


def _terms(pool: list[Candidate]) -> list[str]:
    """Return the whole, called "", and the names of all terms."""
    return ["", *dict.fromkeys(name for c in pool for name in c.bound.terms)]


def chosen(theorem: Theorem, pool: list[Candidate], effort: Effort, far: float = 0.01) -> list[tuple[str, Candidate]]:
    """Return the sharpest for the bound and for each term, and a greedy cover of the mutants that are missed."""
    out: list[tuple[str, Candidate]] = []
    terms = _terms(pool)
    for term in ["", *(terms[1:] if len(terms) > 2 else [])]:
        best = max(pool, key=lambda c, t=term: c.share(t))
        if best.share(term) > far and all(best is not c for _, c in out):
            out.append((term, best))
    missed: list[Mutant] = [m for m in mutants(theorem) if judged(theorem, m) in ("missed", "shown")]
    catches = [{m.what for m in missed if _catches(m, c)} for c in pool]
    left = {m.what for m in missed}
    for _, c in out:
        left -= {m.what for m in missed if _catches(m, c)}
    hard = [m for m in missed if not any(m.what in c for c in catches) and judged(theorem, m) == "missed"]
    for m in hard:
        new = pressed(theorem, pool, m, effort)
        if new is not None:
            pool.append(new)
            catches.append({m.what for m in missed if _catches(m, new)})
    while left and len(out) < effort.most:
        i = max(range(len(pool)), key=lambda j: len(catches[j] & left))
        if not catches[i] & left:
            break
        out.append(("", pool[i]))
        left -= catches[i]
    print(f"# {theorem.name}: {len(missed)} missed, {len(left)} still", *sorted(left), sep="\n#   ")
    return out


def _catches(mutant: Mutant, c: Candidate) -> bool:
    value = value_at(mutant, c.place)
    return value < c.place.least and value < c.place.value * (1.0 - 1e-9)


def main(argv: list[str] | None = None) -> int:
    """Print what is worth keeping."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("theorem", nargs="+", choices=[t.name for t in THEOREMS.values() if t.space is not None])
    for name, default in Effort._field_defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args(argv)
    effort = Effort(*(getattr(args, name) for name in Effort._fields))
    for name in args.theorem:
        theorem = THEOREMS[name]
        bare = theorem._replace(checks=tuple(c for c in theorem.checks if not _searched(c)))
        best = chosen(bare, pool_of(bare, effort), effort)
        found = [Sharp(term, float(f"{c.share(term):.3g}"), c.origin, c.tiny) for term, c in best]
        kept = [s for s in read_sharp(FOUND).get(name, ()) if str(s.seed).startswith("found for ")]  # by `branches`
        write_sharp(read_sharp(FOUND) | {name: (*found, *kept)}, FOUND)
        print(f"{name}: {len(found)} instances", flush=True)
    return 0


def _searched(check: Any) -> bool:
    return getattr(check, "instance", check).data == "searched"


if __name__ == "__main__":
    sys.exit(main())
