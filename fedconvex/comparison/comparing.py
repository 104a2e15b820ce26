"""`compare`: split, tune, fit, run, score - in this order, so that a split's held-out rows are seen last."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedconvex._check import Rng, bad, items, maybe_flag, nearest, real, takes_rng, whole
from fedconvex._progress import progress_line
from fedconvex.comparison.compared_rows import Rows
from fedconvex.comparison.comparison import Comparison, Scored
from fedconvex.comparison.contenders import DEFAULT, FOLDS, GAP, LOCAL_STEPS, METHODS, MIN_ROWS, ROUNDS, TEST_SIZE
from fedconvex.comparison.intake import intake
from fedconvex.comparison.kinds import KINDS, Tasks
from fedconvex.comparison.method_costs import RUNS
from fedconvex.comparison.outcomes import joining, worst_of
from fedconvex.comparison.passes import Pass, Work, fitted_to
from fedconvex.comparison.scores import errors_of, mean_measures, measures
from fedconvex.comparison.skewed_intervals import Repeats
from fedconvex.comparison.splits import Split, affordable, checked_splits, held_out, parts_in, splits_of
from fedconvex.loss_traits import traits
from fedconvex.solvers.solution import DIRECT_SIZE

_FILLED = (
    "Alone, a client's missing cells are filled from its own training rows; in joint models, from those of all clients."
)


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
    splits: int | None  # None: as many as the work allows


@takes_rng
def compare(
    data: Any, target: str | None = None, client: str | None = None, *, domain: str | None = None,
    methods: Sequence[str] | None = None, loss: Any = None, test_size: float = TEST_SIZE,
    folds: int = FOLDS, local_steps: int = LOCAL_STEPS, rounds: int = ROUNDS, gap: float = GAP,
    min_rows: int = MIN_ROWS, level: float = 0.95, seed: int = 0, splits: int | str = "auto",
    progress: bool | None = None, rng: Rng = None, **reading: Any,
) -> Comparison:  # fmt: skip
    """Return one model for all, one that is fair to the worst, models per client, and every client alone, compared.

    Parameters
    ----------
    data : Federation, DataFrame or path
    target, client, domain : str, optional
        Columns of a frame or file. AFL is fair to domains, or to clients where there are none.
    methods : sequence of str, optional
        Names of `METHODS`; default all but newton and boosting. Every client alone is always there.
    loss : loss, optional
        Default by the target: Logistic, Softmax or Squared.
    test_size : float
        Share of every client's rows that is held out before anything is fitted to the others.
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
    splits : int or "auto"
        How often rows are divided: 1, or a multiple of 1/test_size (4), so that every row is held out equally often.
        By default 8, 4 or 1, as rows times parameters times clients are up to 5e5, up to 2e6, or more.
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
    >>> found = fedconvex.compare(fed, methods=["pooled", "fedsgd"], splits=1, progress=False)
    >>> [method.name for method in found.methods]
    ['base rate', 'pooled', 'fedsgd', 'alone']
    """
    rows = intake(data, target, client, domain, loss, **reading)
    given = (methods, test_size, folds, local_steps, rounds, gap, min_rows, level, seed, splits)
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
    clock, every = time.perf_counter(), np.arange(rows.y.size)
    if not held_out(rows, asked.test_size, asked.seed).any():
        raise bad("compare: data", "have a client with at least 4 rows", "none, so that no rows can be held out")
    if asked.splits is None:
        parameters = (rows.features(every).shape[1] + 1) * traits(rows.loss).outputs
        asked = asked._replace(splits=affordable(rows, parameters, asked.test_size))
    several = asked.splits != 1
    repeats = splits_of(rows, asked.test_size, asked.splits or 1, asked.seed)
    work = Work(asked, sum(map(len, repeats)) + several, None if progress is False else progress_line())
    passes = [[fitted_to(rows, split.train, asked, work, not several) for split in repeat] for repeat in repeats]
    whole_ = fitted_to(rows, every, asked, work, True) if several else passes[0][0]
    scored = _scored(whole_, repeats, passes, asked)
    held = np.sort(np.concatenate([split.at for split in repeats[0]]))
    tested = np.bincount(rows.client[held], minlength=rows.K)
    trained = np.bincount(rows.client, minlength=rows.K) - np.rint(tested / len(repeats[0])).astype(np.int64)
    notes = _notes(whole_, asked)
    work.done()
    splits = tuple(tuple(repeat) for repeat in repeats)
    return Comparison(rows, asked, tuple(scored), trained, tested, held, notes, time.perf_counter() - clock, splits)


def checked_settings(rows: Rows, methods: Any, *given: Any) -> Settings:
    """Return the settings of `compare`, in the order of `Settings`, if they are in range."""
    test_size, folds, local_steps, rounds, gap, min_rows, level, seed, splits = given
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
        checked_splits(splits, share),
    )


def _chosen(rows: Rows, methods: Any) -> tuple[str, ...]:
    """Return the methods in the order of tables; what the target rules out is left out, or refused if asked for."""
    methods = [methods] if isinstance(methods, str) else items("compare: methods", () if methods is None else methods)
    known = [m for m in METHODS if m != "base rate"]
    for name in methods:
        if not isinstance(name, str) or name not in known:
            raise bad("compare: methods", "be some of " + ", ".join(known), f"{name!r}", nearest(f"{name}", known))
        if _unfit(rows, name):
            raise bad(f"compare: method {name}", _unfit(rows, name), f"{rows.loss!r}", "leave it out")
    wanted = {*(methods or DEFAULT), "base rate", "alone"}
    return tuple(m for m in METHODS if m in wanted and not _unfit(rows, m))


def _unfit(rows: Rows, name: str) -> str:
    """Return what a method would need of the target, nothing if it has it."""
    if name in ("mocha", "mean-regularised") and not hasattr(rows.loss, "dual_step"):
        return "have a loss with a dual step (two classes, or a real target)"
    return "have a target of two classes" if name == "boosting" and not rows.binary else ""


def _scored(shown: Pass, repeats: list[list[Split]], passes: list[list[Pass]], asked: Settings) -> list[Scored]:
    """Measure every method on held-out rows, client by client, beside the clients alone and the base rate.

    Reported are models and costs of ``shown``; errors are those of the models that were fitted without the row.
    """
    rows, every = shown.data.rows, [one for repeat in passes for one in repeat]
    at = np.sort(np.concatenate([split.at for split in repeats[0]]))
    client = rows.client[at]
    names = [name for name in shown.results if all(one.results[name][0] is not None for one in [*every, shown])]
    scores = {name: [_joined(name, at, *pair) for pair in zip(repeats, passes, strict=True)] for name in names}
    spots = [np.flatnonzero(client == k) for k in range(rows.K)]
    sizes, how = [s.size for s in spots], (rows.K, asked.min_rows, asked.level)
    code = None if rows.domain is None else rows.domain[at]
    parts = [] if code is None else [np.flatnonzero(code == q) for q in range(len(rows.domains))]

    parts_ = 1 if asked.splits == 1 else parts_in(asked.test_size)

    def beside(name: str, other: str) -> Repeats:
        pairs = zip(scores[name], scores[other], strict=True)
        return Repeats(tuple(errors_of(rows, Z, at, own) for Z, own in pairs), parts_)

    out = []
    for name, each in scores.items():
        kind = RUNS[name][0] if name in RUNS else name
        errors = [errors_of(rows, Z, at) for Z in each]
        whole_, *some = (
            mean_measures(
                [measures(rows, Z[s], at[s], asked.level, e.mean(s, asked.level))
                 for Z, e in zip(each, errors, strict=True)]
            )
            for s in (np.arange(at.size), *spots, *parts)
        )  # fmt: skip
        clients, domains = tuple(some[: rows.K]), tuple(some[rows.K :])
        own = beside(name, "alone")
        joins = tuple(joining(own, client, *how))
        paired = joining(own, np.zeros(at.size, int), 1, 2, asked.level)[0]
        gains = tuple(joining(beside(name, "base rate"), client, *how, families=2))
        worst = worst_of([m.error for m in clients], sizes, asked.min_rows)
        models, cost = shown.results[name]
        grounds = shown.tuned.get(name, shown.tuned.get(kind))
        found = grounds, shown.fits.get(kind), whole_, paired, clients, joins, worst, cost, models, each[0]
        fitted = tuple(tuple(one.results[name][0] for one in repeat) for repeat in passes)
        out.append(Scored(name, METHODS[name], *found, domains, gains, tuple(each), fitted))
    return out


def _joined(name: str, at: np.ndarray, splits: list[Split], passes: list[Pass]) -> np.ndarray:
    """Return the scores of all held-out rows, each under the models that were fitted without it."""
    each = [one.scores(name, split.at) for split, one in zip(splits, passes, strict=True)]
    out = np.empty((at.size, *each[0].shape[1:]))
    for split, Z in zip(splits, each, strict=True):
        out[np.searchsorted(at, split.at)] = Z
    return out


def _notes(made: Pass, asked: Settings) -> tuple[str, ...]:
    """Return what a reader should know about the figures."""
    data, fits, tuned, _ = made
    rows, notes = data.rows, []
    if not data.free(data.design):
        notes.append("A class is missing from the training rows, so that intercepts are penalised like other weights.")
    lacking = [rows.names[k] for k, mine in enumerate(data.by_client) if not data.free(mine)]
    if lacking:
        shown = ", ".join(map(str, lacking[:5])) + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else "")
        whose = "has no training rows of some class: the intercept of its own model is"
        if len(lacking) > 1:
            whose = "have no training rows of some class: the intercepts of their own models are"
        notes.append(f"Alone, {shown} {whose} penalised, since without such rows it would grow without limit.")
    if rows.alone is not None:
        notes.append(_FILLED)
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
