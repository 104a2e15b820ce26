"""What a study asks, as methods and problems: made from the study alone, so that they are the same at all ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedconvex import losses, methods
from fedconvex._check import bad
from fedconvex.analysis import Guards, plan_analysis
from fedconvex.analysis.formulas import INTERCEPT
from fedconvex.analysis.multinomial import MULTINOMIAL
from fedconvex.analysis.response_families import GAUSSIAN, LOGISTIC
from fedconvex.comparison.cross_validation import L2S
from fedconvex.federation import Federation
from fedconvex.problems import Problem
from fedconvex.registry import class_named
from fedconvex.remote.messages import Refused
from fedconvex.study.agreement import (
    CATEGORY,
    COMPARED,
    INDICATOR,
    LOSSES,
    MISSING_LEVEL,
    NUMBER,
    OTHER,
    OTHER_LEVEL,
    Study,
)
from fedconvex.study.comparing_answers import TIED_ROUNDS, told_apart, what_leaves
from fedconvex.study.comparing_plan import ComparedRows, ComparePlan
from fedconvex.study.comparing_site import ComparedSite
from fedconvex.study.model_formula import used_in
from fedconvex.study.preparing import SITE_COLUMN
from fedconvex.sums import PlainSums
from fedconvex.tables.columns import Columns
from fedconvex.tables.reading import read_table

TUNED = 64  # steps with the j-th l2 of `compare` are numbered from j times so many
_NEWTON = 500  # parameters up to which Newton's method is chosen
_USUAL = {"every round": 12, TIED_ROUNDS: 50}  # rounds of Newton's method, or of an analysis; of models that are tied


class Leaving(NamedTuple):
    """What leaves a site when: numbers in one answer, and how often."""

    when: str
    what: str
    numbers: int
    times: str
    apart: bool = False  # a sum over all sites, counted against a limit of its own


class Question(NamedTuple):
    """One thing that is asked.

    Attributes
    ----------
    name : str
        "analyse", "compare" or "solve".
    method : method
    make : callable
        From a `Federation` to the problem.
    rows : callable
        (columns as prepared, site, guards) -> the site's `Federation`.
    features : int
        Columns of the rows.
    parameters : int
        Coefficients; the rows may allow fewer.
    leaving : list of Leaving
    plan : AnalysisPlan, ComparePlan or Columns
        How rows are read.
    models : int
        In one request at most.
    apart : callable, optional
        (number of sites, arrays of a request) -> how many numbers of its answer tell of the site by itself, and of
        sums.
    """

    name: str
    method: Any
    make: Callable[[Federation], Any]
    rows: Callable[[Any, str, Guards], Federation]
    features: int
    parameters: int
    leaving: list[Leaving]
    plan: Any
    models: int = 64
    apart: Callable[[int, Any], tuple[int, int]] | None = None

    @property
    def usual(self) -> int:
        """Numbers that a run usually takes of a site."""
        return self._taken(False)

    @property
    def summed(self) -> int:
        """Numbers that a run usually takes for sums over all sites that have a limit of their own."""
        return self._taken(True)

    def _taken(self, apart: bool) -> int:
        each = [one for one in self.leaving if one.apart is apart]
        return sum(one.numbers * _USUAL.get(one.times, 1) for one in each)


def questions(study: Study) -> list[Question]:
    """Return what a study asks, in the order in which it is asked.

    Raises
    ------
    ValueError
        If a method cannot do what is asked.
    """
    made = {"analyse": _analyse, "compare": _compare, "solve": _solve}
    return [made[name](study, settings) for name, settings in study.ask.items()]


def book(study: Study) -> dict[str, np.ndarray]:
    """Return invented rows with the columns of a study: centres less and plus scales, and every category."""
    target, values = study.target["column"], study.target["values"]
    n = 2 * max([2, *(len(c.levels) for c in study.columns), len(values or ())])
    side = np.where(np.arange(n) % 2, 1.0, -1.0)
    made: dict[str, np.ndarray] = {}
    for c in study.columns:
        if c.kind == NUMBER:
            made[c.name] = c.center + c.scale * side
        else:
            made[c.name] = _cycled(c.levels, n)
        if c.marker:
            made[c.marker] = (side + 1.0) / 2.0
    made[target] = 1.0 + np.arange(n) % 3 if values is None else _cycled(values, n)
    if study.target["event"] is not None:
        made[study.target["event"]] = _cycled(("0", "1"), n)
    if study.target["entry"] is not None:
        made[study.target["entry"]] = np.zeros(n)
    made[SITE_COLUMN] = _cycled(study.sites, n)
    return made


def _cycled(names: tuple[str, ...], n: int) -> np.ndarray:
    return np.array([names[i % len(names)] for i in range(n)], dtype=object)


def _reading(study: Study, formula: str | None = None) -> dict[str, Any]:
    """Return how columns are to be understood, those of a formula if there is one: as the study says."""
    names = [n for c in study.columns for n in (c.name, c.marker) if n is not None]
    used = names if formula is None else used_in("ask.analyse.formula", formula, names)[1]
    categories = [c.name for c in study.columns if c.kind == CATEGORY and c.name in used]
    return {"as_category": categories, "keep": [name for name in names if name in used]}


def _sums(study: Study) -> Any:
    return methods.SecureSums(study.bits) if study.secure_sums else PlainSums()


def _in_order(columns: Columns, study: Study) -> Columns:
    """Return the record with the classes of the target in the order of the study: the second one is the event."""
    values = study.target["values"]
    if values is None:
        return columns
    return replace(
        columns, columns=tuple(replace(c, levels=values) if c.role == "target" else c for c in columns.columns)
    )


def _analyse(study: Study, settings: dict[str, Any]) -> Question:
    target, values, reading = study.target["column"], study.target["values"], _reading(study, settings["formula"])
    reference = {c.name: c.reference or c.values[0] for c in study.columns if c.name in reading["as_category"]}
    reference |= {} if values is None else {target: values[0]}
    times = {"event": study.target["event"], "entry": study.target["entry"], "ties": settings["ties"]}
    own = settings["strata"] == "site" and times["event"] is None  # of times every site has a baseline hazard
    plan = plan_analysis(
        book(study), target, SITE_COLUMN, formula=settings["formula"], family=settings["family"], site_intercepts=own,
        reference=reference, sums=_sums(study), **times, **reading,
    )  # fmt: skip
    p = len(plan.names)
    return Question("analyse", plan.method, plan.make, plan.rows, p, p, _leaving(settings, p), plan)


def _leaving(settings: dict[str, Any], p: int) -> list[Leaving]:
    """Return what leaves a site in an analysis of p coefficients."""
    t, first, cox = p * (p + 1) // 2, "before the first round", settings["family"] == "cox"
    leaving = [
        Leaving(first, "sums of columns and of squares, twice; six sums of responses", 4 * p + 6, "once"),
        Leaving(first, "sums of products of columns", t, "once"),
        Leaving("a trial model", "value, gradient and Hessian of the likelihood", t + p + 2, "every round"),
        Leaving("at the end", "what rounding may have done, the expected information", t + p + 4, "once"),
    ]
    if cox:
        leaving[-1] = Leaving("at the end", "what rounding may have done", p + 2, "once")
        leaving.append(
            Leaving("at the end", "scores and Hessians weighted by time; pairs in order", p + 2 * t + 3, "once")
        )
    if settings["robust"] is not None:
        squares = 2 if settings["family"] in ("cox", "multinomial") else 4
        leaving.append(Leaving("at the end", "sums of squares of scores", squares * t + 3, "once"))
    if settings["intervals"] == "profile":
        ends = 2 * p * (t + p + 2)
        leaving.append(Leaving("models beside the estimate", "as at a trial model, for each end", ends, "every round"))
    return leaving


def _coded(study: Study) -> Columns:
    """Return the record of what columns become: all categories, and numbers in agreed units."""
    task = "numbers" if study.target["values"] is None else "classes"
    how = {"guard": False, "task": task, **_reading(study)}
    frame, columns = read_table(book(study), study.target["column"], SITE_COLUMN, **how)
    columns = _in_order(columns.fit(frame), study)
    numbers = {c.name: c for c in study.columns if c.kind == NUMBER}
    center = np.array([numbers[f].center if f in numbers else 0.0 for f in columns.feature_names])
    scale = np.array([numbers[f].scale if f in numbers else 1.0 for f in columns.feature_names])
    return replace(columns, center=center, scale=scale)


def _units(columns: Columns) -> tuple[Any, Any]:
    """Return the agreed centres and scales of features."""
    return columns.center, columns.scale


def _compare(study: Study, settings: dict[str, Any]) -> Question:
    columns, values = _coded(study), study.target["values"]
    family, loss = _family_and_loss(len(values or ()))
    plan = ComparePlan(
        settings["kinds"], loss, values, columns.feature_names, _units(columns), settings["test_size"],
        settings["folds"], settings["min_rows"], settings["level"], settings["seed"], settings["splits"],
        study.secure_sums, 2.0 ** (62 - study.bits),
    )  # fmt: skip
    if (d := plan.size) > _NEWTON:
        raise bad("ask.compare", f"have at most {_NEWTON} parameters", d, "leave columns out")
    own = plan.p * max(plan.outputs - 1, 1)
    method = methods.FederatedNewton(sums=_sums(study))
    make, rows = partial(ComparedSite, plan=plan), partial(_compared_rows, columns=columns, family=family, plan=plan)
    leaving = [Leaving(*one) for one in what_leaves(plan)]
    size, apart = max(plan.models, plan.sets), partial(told_apart, plan)
    return Question("compare", method, make, rows, plan.p - 1, own, leaving, plan, size, apart)


def _family_and_loss(classes: int) -> tuple[Any, Any]:
    """Return what responses of so many classes are, none for numbers."""
    if not classes:
        return GAUSSIAN, losses.Squared()
    return (LOGISTIC, losses.Logistic()) if classes == 2 else (MULTINOMIAL, losses.Softmax(classes))


def _compared_rows(made: Any, site: str, guards: Guards, columns: Columns, family: Any, plan: ComparePlan) -> Any:
    """Return a site's rows as `compare` takes them, in the units of the table, if its guards allow sums over them."""
    full = _rows(made, site, guards, columns, family)
    if full.n < plan.fewest():
        raise bad(f"site {site}: rows", f"be at least {plan.fewest()}, some in every fold", full.n)
    raw = full.X[:, :-1] * columns.scale + columns.center
    return ComparedRows(raw, full.y, full.ptr, full.labels)


def _solve(study: Study, settings: dict[str, Any]) -> Question:
    columns = _coded(study)
    d = len(columns.feature_names) + 1
    make = partial(_problem, loss=loss_of(settings), l2=math.nan if settings["l2"] == COMPARED else settings["l2"])
    method = _method(study, settings, d)
    sent = {"newton": (d + 1) * (d + 2) // 2, "scaffold": 2 * d}.get(_name(settings), d)
    leaving = [
        Leaving("a round", "what the method's clients send", sent, "every round"),
        Leaving("a measured round", "the loss, its gradient, and their rounding", d + 3, "every round"),
    ]
    family = LOGISTIC if settings["loss"] == "logistic" else GAUSSIAN
    rows = partial(_rows, columns=columns, family=family)
    return Question("solve", method, make, rows, d, d, leaving, columns)


def loss_of(settings: dict[str, Any]) -> Any:
    """Return the loss of `solve`."""
    return getattr(losses, LOSSES[settings["loss"]])()


def is_tuned(study: Study, question: Question) -> bool:
    """Whether `compare` chooses the l2 of a question."""
    return study.ask[question.name].get("l2") == COMPARED


def l2_of(step: int) -> float | None:
    """Return the l2 with which a step is asked, None if the study names it.

    Raises
    ------
    Refused
        If there is no such l2.
    """
    place = step // TUNED
    if place > len(L2S):
        raise Refused("there is no such step")
    return L2S[place - 1] if place else None


def with_l2(question: Question, l2: float) -> Question:
    """Return `solve` with the l2 that `compare` has chosen."""
    return question._replace(make=partial(_problem, loss=question.make.keywords["loss"], l2=l2))  # type: ignore[attr-defined]


def _problem(federation: Federation, loss: Any, l2: float) -> Problem:
    return Problem(federation, loss, l2=l2)


def _rows(made: Any, site: str, guards: Guards, columns: Columns, family: Any) -> Federation:
    """Return a site's rows, if its guards allow sums over them: as those of an analysis, in the units of the table."""
    federation = Federation.from_frame(made, columns=columns, intercept=True)
    raw = federation.X.copy()
    raw[:, :-1] = raw[:, :-1] * columns.scale + columns.center
    names = (*columns.feature_names, INTERCEPT)
    y = (federation.y > 0.0).astype(np.float64) if family is LOGISTIC else federation.y
    if family is MULTINOMIAL:  # a coefficient of every class but the first
        names = tuple(f"{label}: {name}" for label in (columns.labels or ())[1:] for name in names)
    guards.check(site, Federation.from_clients([(raw, y)]), names, family)
    return federation


def of_raw_rows(columns: Columns, study: Study) -> Columns:
    """Return the record that makes the same features of a table as a site has it: codes, and missing cells, with it."""
    own, made = {c.name: c for c in study.columns}, []
    markers = {c.marker for c in study.columns}
    for c in columns.columns:
        if c.name in markers:
            continue
        if (said := own.get(c.name)) is not None:
            fill = (said.center if said.kind == NUMBER else MISSING_LEVEL) if said.missing == INDICATOR else None
            other = OTHER_LEVEL if said.unknown == OTHER else None
            absent = bool(said.absent_at)
            c = replace(
                c, fill=fill, indicator=said.marker is not None, codes=said.codes, other=other, absent=absent
            )  # fmt: skip
        made.append(c)
    return replace(columns, columns=tuple(made))


def _name(settings: dict[str, Any]) -> str:
    return "newton" if settings["method"] == "auto" else str(settings["method"])


def _method(study: Study, settings: dict[str, Any], d: int) -> Any:
    """Return the method that is asked for; Newton's where none is, up to a few hundred parameters."""
    name, who = _name(settings), "ask.solve: method"
    if name == "newton":
        if d > _NEWTON:
            cure = 'name a method and its step: method = "scaffold", step_size = 0.1'
            raise bad(who, f"be another one than Newton's above {_NEWTON} parameters", f"{d} parameters", cure)
        return methods.FederatedNewton(sums=_sums(study))
    if settings["step_size"] is None:
        raise bad("ask.solve", f"have a step_size for {name}", "none", "step_size = 0.1")
    given = {"step_size": settings["step_size"], "sums": _sums(study)}
    if name != "fedsgd":
        given["local_steps"] = settings["local_steps"]
    return class_named(name)(**given)
