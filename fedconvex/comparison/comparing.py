"""`compare`: split, tune, fit, run, score - in this order, so that held-out rows are seen by the last step only."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedconvex._check import bad, items, maybe_flag, real, whole
from fedconvex._progress import progress_line
from fedconvex.comparison.baselines import base_rates, boosted
from fedconvex.comparison.intake import intake
from fedconvex.comparison.kinds import KINDS, Fit, Rounds, Tasks, Training, Worst
from fedconvex.comparison.models import DEFAULT, METHODS
from fedconvex.comparison.result import Comparison, Scored
from fedconvex.comparison.rows import Rows
from fedconvex.comparison.runs import OWN_L2, RUNS, Cost, carry_out
from fedconvex.comparison.scores import errors_of, measures
from fedconvex.comparison.splits import fold_of, held_out
from fedconvex.comparison.tuning import Folds, Tuned, tune
from fedconvex.comparison.verdicts import joining, worst_of
from fedconvex.solvers.solution import DIRECT_SIZE

__all__ = ["Settings", "checked_settings", "compare", "compare_rows"]

FILLED = (
    "Alone, a client's missing cells are filled from its own training rows; in joint models, from those of all clients."
)
_EFFORT = {"pooled": 3.0, "alone": 3.0, "afl": 5.0, "mocha": 6.0, "mean-regularised": 4.0}
_EFFORT |= dict.fromkeys(OWN_L2, 2.0)  # of tuning; a run counts 1


class Settings(NamedTuple):
    """What a comparison was asked for, checked."""

    methods: tuple[str, ...]
    test_size: float
    folds: int
    local_steps: int
    rounds: int
    gap: float
    min_rows: int
    level: float
    seed: int


def compare(
    data: Any, target: str | None = None, client: str | None = None, *, domain: str | None = None,
    methods: Sequence[str] | None = None, loss: Any = None, test_size: float = 0.25, folds: int = 5,
    local_steps: int = 5, rounds: int = 500, gap: float = 1e-3, min_rows: int = 10, level: float = 0.95, seed: int = 0,
    progress: bool | None = None, **reading: Any,
) -> Comparison:  # fmt: skip
    """Compare one model for all, one that is fair to the worst, models per client, and every client alone.

    Parameters
    ----------
    data : Federation, DataFrame or path
    target, client, domain : str, optional
        Columns of a frame or file. AFL is fair to domains, or to clients where there are none.
    methods : sequence of str, optional
        Names of `METHODS`; default all but boosting. Every client alone is always there.
    loss : loss, optional
        Default by the target: Logistic, Softmax or Squared.
    test_size : float
        Share of every client's rows that is held out before anything is fitted, never fewer than 2.
    folds : int
        Of the cross-validation that chooses l2 among 13 values, for every kind of model, and every method whose local
        steps drift, by itself.
    local_steps, rounds : int
        Full gradient steps a round, where a method has local steps; most rounds.
    gap : float
        Certified distance from the optimum, in units of the loss of a row, to which costs are counted.
    min_rows : int
        Held-out rows below which nothing is said about a client.
    level, seed : float, int
        Of intervals; of held-out rows and folds.
    progress : bool, optional
        On stderr; default only on a terminal.
    **reading
        How the columns of a frame or file are taken; see docs/compare.md.

    Raises
    ------
    ValueError, TypeError
        On settings out of range, a target of one value, fewer than two clients, no client of 4 rows, or a method that
        does not know the target (tied models and boosting: more than two classes).

    Examples
    --------
    >>> import fedconvex
    >>> from fedconvex.datasets import linear_federation
    >>> fed = linear_federation(3, seed=0).federation
    >>> found = fedconvex.compare(fed, methods=["pooled", "fedsgd"], progress=False)
    >>> [method.name for method in found.methods]
    ['base rate', 'pooled', 'fedsgd', 'alone']
    """
    rows = intake(data, target, client, domain, loss, **reading)
    given = (methods, test_size, folds, local_steps, rounds, gap, min_rows, level, seed)
    return compare_rows(rows, checked_settings(rows, *given), progress)


def compare_rows(rows: Rows, asked: Settings, progress: bool | None = None) -> Comparison:
    """Return what `compare` does, for rows and settings that were checked.

    Linear algebra keeps to one thread: its products are small here, and threads that wait for each other on a busy
    machine took ten times as long.
    """
    show = maybe_flag("compare: progress", progress)
    with threadpool_limits(1, "blas"):
        return _compared(rows, asked, show)


def _compared(rows: Rows, asked: Settings, progress: bool | None) -> Comparison:
    clock = time.perf_counter()
    held = held_out(rows, asked.test_size, asked.seed)
    if not held.any():
        raise bad("compare: data", "have a client with at least 4 rows", "none, so that no rows can be held out")
    show = None if progress is False else progress_line()
    work = _Work(asked, show)
    train, at = np.flatnonzero(~held), np.flatnonzero(held)
    training = Training(rows, rows.features(train), train)
    fits, tuned = _fitted(training, asked, work)
    results = _models(training, asked, fits, tuned, work)
    scored = _scored(training, at, asked, results, fits, tuned)
    trained, tested = (np.bincount(rows.client[part], minlength=rows.K) for part in (train, at))
    notes = _notes(training, asked, fits, tuned)
    work.done()
    return Comparison(rows, asked, tuple(scored), trained, tested, at, notes, time.perf_counter() - clock)


class _Work:
    """How much is done, as a share that only grows."""

    def __init__(self, asked: Settings, show: Callable[[float, str], None] | None) -> None:
        tuned = [*_kinds(asked.methods), *(m for m in asked.methods if m in OWN_L2)]
        self.total = sum(_EFFORT[k] for k in tuned) + len(asked.methods)
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


def checked_settings(rows: Rows, methods: Any, *given: Any) -> Settings:
    """Return the settings of `compare`, in the order of `Settings`, if they are in range."""
    test_size, folds, local_steps, rounds, gap, min_rows, level, seed = given
    who = "compare"
    share = real(f"{who}: test_size", test_size, low=0.0, high=1.0, strict=True)
    level = real(f"{who}: level", level, low=0.0, high=1.0, strict=True)
    for name, value in (("test_size", share), ("level", level)):
        if value >= 1.0:
            raise bad(f"{who}: {name}", "lie strictly between 0 and 1", value)
    return Settings(
        _chosen(rows, methods),
        share,
        whole(f"{who}: folds", folds, low=2),
        whole(f"{who}: local_steps", local_steps, low=1),
        whole(f"{who}: rounds", rounds, low=1),
        real(f"{who}: gap", gap, low=0.0, strict=True),
        whole(f"{who}: min_rows", min_rows, low=2),
        level,
        whole(f"{who}: seed", seed),
    )


def _chosen(rows: Rows, methods: Any) -> tuple[str, ...]:
    """Return the methods in the order of tables; what the target rules out is left out, or refused if asked for."""
    methods = [methods] if isinstance(methods, str) else items("compare: methods", () if methods is None else methods)
    known = [m for m in METHODS if m != "base rate"]
    for name in methods:
        if not isinstance(name, str) or name not in known:
            raise bad("compare: methods", "be some of " + ", ".join(known), f"{name!r}")
        if _unfit(rows, name):
            raise bad(f"compare: method {name}", _unfit(rows, name), f"{rows.loss!r}", "leave it out")
    wanted = {*(methods or DEFAULT), "base rate", "alone"}
    return tuple(m for m in METHODS if m in wanted and not _unfit(rows, m))


def _unfit(rows: Rows, name: str) -> str:
    """Return what a method would need of the target, nothing if it has it."""
    if name in ("mocha", "mean-regularised") and not hasattr(rows.loss, "dual_step"):
        return "have a loss with a dual step (two classes, or a real target)"
    return "have a target of two classes" if name == "boosting" and not rows.binary else ""


def _kinds(methods: Sequence[str]) -> list[str]:
    """Return the kinds of models that are tuned for these methods."""
    wanted = {RUNS[m][0] if m in RUNS else m for m in methods}
    return [k for k in KINDS if k in wanted]


def _fitted(data: Training, asked: Settings, work: _Work) -> tuple[dict[str, Fit], dict[str, Tuned]]:
    """Choose l2 for every kind and solve for its models."""
    folds = Folds.of(data, fold_of(data.rows, data.train, asked.folds, asked.seed))
    fits, tuned = {}, {}
    for name in _kinds(asked.methods):
        kind = KINDS[name]
        if isinstance(kind, Worst) and data.outputs * (data.X.shape[1] + 1) > DIRECT_SIZE:
            continue
        tuned[name] = tune(kind, data, folds, asked.min_rows, work.tell(f"choosing l2: {name}", _EFFORT[name]))
        fits[name] = kind.fit(data, tuned[name].l2)
    for name in (m for m in asked.methods if m in OWN_L2):
        own = Rounds(name, asked.gap, asked.rounds, asked.local_steps, asked.seed)
        tuned[name] = tune(own, data, folds, asked.min_rows, work.tell(f"choosing l2: {name}", _EFFORT[name]))
    return fits, tuned


def _models(
    data: Training, asked: Settings, fits: dict[str, Fit], tuned: dict[str, Tuned], work: _Work
) -> dict[str, tuple[Any, Cost | None]]:
    """Return what every method predicts with, and what it cost."""
    out: dict[str, tuple[Any, Cost | None]] = {}
    for name in asked.methods:
        work.tell(f"running {name}", 1.0)
        if name == "base rate":
            out[name] = base_rates(data), None
        elif name == "boosting":
            out[name] = boosted(data), None
        elif name in RUNS and RUNS[name][0] in fits:
            kind = RUNS[name][0]
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


def _scored(data: Training, at: np.ndarray, asked: Settings, results: Any, fits: Any, tuned: Any) -> list[Scored]:
    """Measure every method on the held-out rows, client by client, beside the clients alone and the base rate."""
    rows, client = data.rows, data.rows.client[at]
    scores = {}
    for name, (models, _) in results.items():
        if models is not None:
            scores[name] = models.scores((data.alone if name == "alone" else data.X)[at], client)
    spots = [np.flatnonzero(client == k) for k in range(rows.K)]
    sizes, how = [s.size for s in spots], (rows.K, asked.min_rows, asked.level)
    code = None if rows.domain is None else rows.domain[at]
    parts = [] if code is None else [np.flatnonzero(code == q) for q in range(len(rows.domains))]
    out = []
    for name, Z in scores.items():
        kind = RUNS[name][0] if name in RUNS else name
        errors, beside = errors_of(rows, Z, at), errors_of(rows, Z, at, scores["alone"])
        whole_, *some = (
            measures(rows, Z[s], at[s], asked.level, errors.mean(s, asked.level))
            for s in (np.arange(at.size), *spots, *parts)
        )
        clients, domains = tuple(some[: rows.K]), tuple(some[rows.K :])
        joins = tuple(joining(beside, client, *how))
        paired = joining(beside, np.zeros(at.size, int), 1, 2, asked.level)[0]
        gains = tuple(joining(errors_of(rows, Z, at, scores["base rate"]), client, *how, families=2))
        worst = worst_of([m.error for m in clients], sizes, asked.min_rows)
        models, cost = results[name]
        grounds = tuned.get(name, tuned.get(kind))
        found = grounds, fits.get(kind), whole_, paired, clients, joins, worst, cost, models, Z, domains, gains
        out.append(Scored(name, METHODS[name], *found))
    return out


def _notes(data: Training, asked: Settings, fits: dict[str, Fit], tuned: dict[str, Tuned]) -> tuple[str, ...]:
    """Return what a reader should know about the figures."""
    rows, notes = data.rows, []
    if not data.free(data.design):
        notes.append("A class is missing from the training rows, so that intercepts are penalised like other weights.")
    lacking = [rows.names[k] for k, mine in enumerate(data.own) if not data.free(mine)]
    if lacking:
        shown = ", ".join(map(str, lacking[:5])) + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else "")
        whose = "has no training rows of some class: the intercept of its own model is"
        if len(lacking) > 1:
            whose = "have no training rows of some class: the intercepts of their own models are"
        notes.append(f"Alone, {shown} {whose} penalised, since without such rows it would grow without limit.")
    if rows.alone is not None:
        notes.append(FILLED)
    if any(isinstance(KINDS[k], Tasks) for k in fits):
        notes.append("In models per client that are tied, the intercept is penalised like other weights.")
    for name in ("mocha", "mean-regularised", "afl"):
        if name not in asked.methods and _unfit(rows, name):
            notes.append(f"{name} is left out: it must {_unfit(rows, name)}.")
        elif name in asked.methods and name not in fits:
            notes.append(f"{name} is left out: exact solution is limited to {DIRECT_SIZE} parameters.")
    ends = [name for name, t in tuned.items() if t.at_end and name != "alone"]
    if ends:
        notes.append(f"The chosen l2 is the smallest or largest that was tried: {', '.join(ends)}.")
    notes += [
        f"The certified gap of {name} is {fit.gap:.2g} per row." for name, fit in fits.items()
        if not (math.isfinite(fit.gap) and fit.gap <= 1e-4)
    ]  # fmt: skip
    return tuple(notes)
