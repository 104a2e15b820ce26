"""Whether a deterministic method repeats itself: a state that came back comes back for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedconvex.driver.rounds import Engine
from fedconvex.traits import traits_of

_SAME = 1e-12  # of their size: states that count as equal
COUNTED = ("t", "bits")  # fields that say how far a run has come, and decide nothing
_AWAY = 1e-6  # of its size: how far a state must have gone before it comes back, unless it comes back bit for bit


class Returns:
    """Compares each state with an earlier one, kept from round 1, 2, 4, 8, ...: Brent's search for cycles (1980).

    Only for methods whose rounds follow from the state alone (`Traits.deterministic`, not `Traits.by_round`). A cycle
    of p rounds that begins in round m is found by round 3 max(m, p). A trajectory is back if all of its state is within
    1e-12 of the earlier one, relative to 1 + its largest entry, and it was away by more than 1e-6; or bit for bit; and
    the state is back if all trajectories are. Spirals that shrink by less than a millionth a turn may be taken for
    cycles.
    """

    def __init__(self, engine: Engine, wanted: bool = True) -> None:
        self.active = wanted and not engine.moving
        if self.active:
            traits = traits_of(engine.method, engine.problem)
            self.active = traits.deterministic and not traits.by_round
        self.engine = engine
        self.earlier: list[np.ndarray] = []
        self.at, self.period = 0, 0  # round of the earlier state; rounds of a cycle
        self.away = np.zeros(engine.R)  # how far each trajectory went, at most 1

    def see(self, t: int, state: Any) -> None:
        """Compare the state after t rounds, and keep it if its time has come."""
        if not self.active or self.period or t <= self.at:
            return
        if self.at and self._back(state):
            self.period = t - self.at
        elif t >= 2 * self.at:
            self.earlier, self.at, self.away = [a.copy() for a in self._arrays(state)], t, np.zeros(self.engine.R)

    def _arrays(self, state: Any) -> list[np.ndarray]:
        kept = self.engine.memory
        return [a for name, a in leaves(state) if name not in COUNTED] + [a for _, a in leaves(kept)]

    def _back(self, state: Any) -> bool:
        R = self.engine.R
        far = np.zeros(R)
        for now, then in zip(self._arrays(state), self.earlier, strict=True):  # the model comes first
            if now.shape != then.shape:
                return False
            if now.dtype.kind == "f" and now.size:
                rows = R if now.shape[:1] == (R,) else 1  # each trajectory has a size of its own
                size, moved = (np.abs(a).reshape(rows, -1).max(axis=1) for a in (then, now - then))
                far = np.maximum(far, moved / (1.0 + size))
            elif not np.array_equal(now, then):
                return False
            if not (far <= _SAME).all():  # NaN too
                self.away = np.fmax(self.away, np.minimum(far, 1.0))
                return False
        return bool(((far == 0.0) | (self.away > _AWAY)).all())

    # ---------------------------------------------------------------- on disk

    def saved(self) -> dict[str, np.ndarray]:
        """Return what a resumed run needs to end in the same round."""
        if not self.active:
            return {}
        numbers = np.array([self.at, self.period, *self.away])
        return {"returns/numbers": numbers} | {f"returns/{i}": a for i, a in enumerate(self.earlier)}

    def restore(self, arrays: dict[str, np.ndarray], state: Any) -> bool:
        """Take up what was saved; False if it is not what a run could have saved."""
        if not self.active:
            return True
        numbers = arrays.get("returns/numbers", np.empty(0))
        if numbers.shape != (2 + self.engine.R,) or not (np.isfinite(numbers) & (numbers >= 0.0)).all():
            return False
        self.at, self.period, self.away = int(numbers[0]), int(numbers[1]), numbers[2:].copy()
        like = self._arrays(state) if self.at else []
        names = [f"returns/{i}" for i in range(len(like))]
        if any(name not in arrays or arrays[name].dtype != a.dtype for name, a in zip(names, like, strict=True)):
            return False
        self.earlier = [arrays[name] for name in names]
        return True


def leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays and numbers of nested tuples with their paths."""
    if isinstance(tree, tuple):
        names = getattr(tree, "_fields", range(len(tree)))
        for name, v in zip(names, tree, strict=True):
            yield from leaves(v, f"{prefix}{name}/")
    elif tree is not None:
        yield prefix.rstrip("/"), np.asarray(tree)
