"""Everything that is fitted to some rows: l2 of every kind of models and method, their models, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedconvex.comparison.baselines import base_rates, boosted
from fedconvex.comparison.compared_rows import Rows
from fedconvex.comparison.cross_validation import Folds, Tuned, tune
from fedconvex.comparison.kinds import KINDS, Fit, Rounds, Training, Worst
from fedconvex.comparison.method_costs import OWN_L2, RUNS, Cost, carry_out
from fedconvex.comparison.splits import fold_of
from fedconvex.solvers.solution import DIRECT_SIZE

if TYPE_CHECKING:
    from fedconvex.comparison.comparing import Settings

_EFFORT = {"pooled": 3.0, "alone": 3.0, "afl": 5.0, "mocha": 6.0, "mean-regularised": 4.0}
_EFFORT |= dict.fromkeys(OWN_L2, 2.0)  # of tuning; a run counts 1


class Pass(NamedTuple):
    """What was fitted to some rows."""

    data: Training
    fits: dict[str, Fit]  # by kind
    tuned: dict[str, Tuned]  # by kind, and by method where it has its own
    results: dict[str, tuple[Any, Cost | None]]  # by method: what it predicts with; None where the run was lost

    def scores(self, name: str, at: np.ndarray) -> np.ndarray:
        """Return the scores of a method on some rows."""
        X = self.data.alone if name == "alone" else self.data.X
        return np.asarray(self.results[name][0].scores(X[at], self.data.rows.client[at]))


def fitted_to(rows: Rows, train: np.ndarray, asked: Settings, work: Work, costs: bool) -> Pass:
    """Fit all that a comparison is about to the rows of some numbers; ``costs`` counts what methods send."""
    data = Training(rows, rows.features(train), train)
    fits, tuned = _fitted(data, asked, work)
    return Pass(data, fits, tuned, _models(data, asked, fits, tuned, work, costs))


class Work:
    """How much is done, as a share that only grows."""

    def __init__(self, asked: Settings, passes: int, show: Callable[[float, str], None] | None) -> None:
        tuned = [*kinds_of(asked.methods), *(m for m in asked.methods if m in OWN_L2)]
        self.total = passes * (sum(_EFFORT[k] for k in tuned) + len(asked.methods))
        self.before, self.show = 0.0, show

    def tell(self, what: str, effort: float) -> Callable[[float], None]:
        """Return a function of the share done of the next piece of work."""
        start = self.before
        self.before += effort

        def told(share: float) -> None:
            if self.show is not None:
                self.show(min(0.999, (start + effort * share) / self.total), what)

        told(0.0)
        return told

    def done(self) -> None:
        """Take the line away."""
        if self.show is not None:
            self.show(1.0, "done")


def kinds_of(methods: Sequence[str]) -> list[str]:
    """Return the kinds of models that are tuned for these methods."""
    wanted = {RUNS[m][0] if m in RUNS else m for m in methods}
    return [k for k in KINDS if k in wanted]


def _fitted(data: Training, asked: Settings, work: Work) -> tuple[dict[str, Fit], dict[str, Tuned]]:
    """Choose l2 for every kind and solve for its models."""
    folds = Folds.of(data, fold_of(data.rows, data.train, asked.folds, asked.seed))
    fits, tuned = {}, {}
    for name in kinds_of(asked.methods):
        kind = KINDS[name]
        if isinstance(kind, Worst) and data.outputs * (data.X.shape[1] + 1) > DIRECT_SIZE:
            continue
        tuned[name] = tune(kind, data, folds, asked.min_rows, work.tell(f"choosing l2: {name}", _EFFORT[name]))
        fits[name] = kind.fit(data, tuned[name].l2)
    names = tuple(m for m in asked.methods if m in OWN_L2)
    for name in names:
        own = Rounds(name, names, asked.gap, asked.rounds, asked.local_steps, asked.seed)
        tuned[name] = tune(own, data, folds, asked.min_rows, work.tell(f"choosing l2: {name}", _EFFORT[name]))
    return fits, tuned


def _models(
    data: Training, asked: Settings, fits: dict[str, Fit], tuned: dict[str, Tuned], work: Work, costs: bool
) -> dict[str, tuple[Any, Cost | None]]:
    """Return what every method predicts with, and what it cost; what is reported at its optimum need not be run."""
    out: dict[str, tuple[Any, Cost | None]] = {}
    for name in asked.methods:
        work.tell(f"running {name}", 1.0)
        if name == "base rate":
            out[name] = base_rates(data), None
        elif name == "boosting":
            out[name] = boosted(data), None
        elif name in RUNS and RUNS[name][0] in fits:
            kind = RUNS[name][0]
            if not costs and kind == name:
                out[name] = fits[kind].models, None
                continue
            problem = data.problem(tuned[name].l2) if name in OWN_L2 else fits[kind].problem
            given = (asked.gap, asked.rounds, asked.local_steps, asked.seed)
            result, cost = carry_out(name, problem, *given)
            exact = kind == name  # AFL and tied models are reported at their optimum
            lost = not np.isfinite(result.w).all()
            left = np.nan_to_num(result.w)
            mine = fits[kind].models if exact else data.design.scaling.models(left, data.outputs)
            out[name] = (None if lost and not exact else mine), cost
        elif name in fits:
            out[name] = fits[name].models, None
    return out
