"""The coordinator's side of a study's `compare`: what `fedconvex.compare` finds, made of what sites answer.

All models of all passes, folds and l2 are searched for side by side, one question for all that are still moving: their
cross-validation takes as many exchanges as the slowest of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedconvex._check import bad
from fedconvex.analysis.over_sites import Asking
from fedconvex.analysis.site_answers import symmetric
from fedconvex.comparison.comparing import Settings
from fedconvex.comparison.comparison import Comparison, Scored
from fedconvex.comparison.contenders import METHODS
from fedconvex.comparison.cross_validation import L2S, Tuned, tuned_by_sums
from fedconvex.comparison.outcomes import Joining, Outcome, judged_by, worst_of
from fedconvex.comparison.scores import Measures
from fedconvex.comparison.skewed_intervals import UNKNOWN
from fedconvex.loss_traits import traits
from fedconvex.methods.parts import newton_steps
from fedconvex.remote import Roster
from fedconvex.remote.site_engine import SiteEngine
from fedconvex.study import comparing_scores as scored
from fedconvex.study.comparing_answers import told_apart
from fedconvex.study.comparing_fair import INTERCEPTS, FairQuestions
from fedconvex.study.comparing_plan import ComparePlan
from fedconvex.study.comparing_tied import tied_models

MOST = 100  # exchanges of one search
_LOST = 6  # answers without a Hessian after which a model is given up
_ACCURACY = 1e-9  # squared Newton decrement, relative to 1 + |F|, at which the last step is taken and not measured
_CONSTANT = 1e-7  # deviation relative to the mean below which a column is constant: as in `comparison.designs`


def compare_sites(plan: ComparePlan, method: Any, roster: Roster, transport: Any) -> Comparison:
    """Return what a comparison finds over sites; a note counts what was asked.

    Parameters
    ----------
    plan : ComparePlan
    method : FederatedNewton
        How sums are learnt.
    roster : Roster
        Of the sites.
    transport : callable
        How sites are asked, as for `fedconvex.run`.

    Raises
    ------
    ConnectionError
        If a site does not answer, or refuses.
    ValueError
        If a search does not end.
    """
    clock = time.perf_counter()
    server = SiteEngine(method, roster, transport, np.uint64(0), max(plan.models, plan.sets)).server
    asking = Asking(server, who="compare over sites")
    search = Search(plan, asking)
    tuned: dict[str, Tuned] = {}
    finals: dict[str, np.ndarray] = {}
    for kind in plan.kinds:
        each = search.alone() if kind == "alone" else search.validated(kind)
        if kind != "alone":
            l2 = np.array([one.l2 for one in each])
            finals |= {kind: search.final(kind, l2), f"{kind} l2": l2}
        tuned[kind] = each[-1]
    return _compared(search, tuned, finals, clock)


class Search:
    """Models whose sums come from sites.

    Parameters
    ----------
    plan : ComparePlan
    asking : Asking
    """

    def __init__(self, plan: ComparePlan, asking: Asking) -> None:
        self.plan, self.asking = plan, asking
        fed = asking.server.federation
        self.left_out: list[str] = []  # l2 that were given up
        self.gap = self.tied_gap = math.nan  # of AFL, and of MOCHA, certified
        self.told = np.zeros(2, dtype=np.int64)  # numbers of a site: its own, and in sums over all
        self.names, self.sizes = [str(name) for name in fed.labels], fed.sizes
        self.counts = plan.counted(fed.ids, fed.sizes)
        self.train = self.counts.train.sum(axis=0)
        self.frame, self.free = self._standardised()

    def total(self, what: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the sums over sites of what they answer."""
        found = self.asking(what, dict(arrays))
        self.told += told_apart(self.plan, len(self.names), arrays)
        return {name: np.sum([a[name] for a in found], axis=0) for name in found[0]}

    def _standardised(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return how every set is standardised, and whether its intercept is free of l2: by two sums."""
        plan, S = self.plan, self.plan.sets
        targets = zip(plan.units, (0.0, 1.0), strict=True)
        center, unit = (np.tile(np.append(a, [last] * plan.outputs), (S, 1)) for a, last in targets)
        for _ in range(2):
            found = self.total("moments", {"center": center, "unit": unit})
            mean, square = found["sum"], found["square"]
            center, deviation = center + unit * mean, unit * np.sqrt(np.maximum(square - mean**2, 0.0))
            unit = np.where(deviation > 1e-5 * unit, deviation, unit)
        varies = deviation > _CONSTANT * np.abs(center)
        scale = np.where(varies & (deviation > 0.0), deviation, 1.0)
        target = np.column_stack([center[:, -1], scale[:, -1]])
        free = np.ones(S, dtype=bool)
        if traits(plan.loss).task == "classification":
            target = np.tile([0.0, 1.0], (S, 1))
            free = np.asarray(np.abs(center[:, -1]) < 1.0 - 1e-9)  # labels -1 and +1, some of each
            if plan.outputs > 1:
                free = np.asarray((center[:, plan.p - 1 :] > 1e-9).all(axis=1))  # shares of classes
        return {"shift": center[:, : plan.p - 1], "scale": scale[:, : plan.p - 1], "target": target}, free

    def ridge(self, part: np.ndarray, l2: np.ndarray) -> np.ndarray:
        """Return the weights of squares, (M, size): l2, and none of intercepts that are free."""
        weight = np.tile(l2[:, None, None], (1, self.plan.outputs, self.plan.p))
        weight[self.free[part], :, -1] = 0.0
        return weight.reshape(len(part), -1)

    def anchored(self, part: np.ndarray, slopes: np.ndarray, hessians: np.ndarray) -> None:
        """Give a curvature to what free intercepts of several classes have in common, along which nothing changes.

        Parameters
        ----------
        part : array (m,)
            Sets of rows.
        slopes : array (m, ..., size)
            Gradients, from which rounding along it is taken.
        hessians : array (m, size, size)
        """
        if self.plan.outputs == 1:
            return
        common = np.zeros((self.plan.outputs, self.plan.p))
        common[:, -1] = self.plan.outputs**-0.5
        u, free = common.ravel(), self.free[part]
        slopes[free] -= (slopes[free] @ u)[..., None] * u
        hessians[free] += np.outer(u, u)

    def validated(self, kind: str) -> list[Tuned]:
        """Return what cross-validation chooses in each pass."""
        plan, (part, l2) = self.plan, self.plan.places
        W = self.models(kind, part, l2)
        known = np.isfinite(W).all(axis=1).reshape(plan.passes, plan.folds, -1).all(axis=1)  # in all folds of a pass
        W = np.nan_to_num(W)
        told = {kind: W, "part": part.astype(float), "l2": l2, "held": np.ones(len(l2)), **self.frame}
        (losses,) = self.total(f"{kind}: losses in cross-validation", told).values()  # (M,), of afl (M, K)
        losses = losses * self.sizes.sum()
        each = (losses.T * self.frame["target"][part, 1] ** 2).T.reshape(plan.passes, plan.folds, len(L2S), -1)
        if not known.all():
            self.left_out.append(f"{kind} with l2 {', '.join(f'{l2:.2g}' for l2 in np.array(L2S)[~known.all(axis=0)])}")
        out, least = [], plan.min_rows if kind == "afl" else None
        for s, one, there in zip(plan.whole_sets, each, known, strict=True):
            rows = self.counts.held[:, s + 1 : s + 1 + plan.folds].astype(float)
            rows = rows.sum(axis=0, keepdims=True) if least is None else rows  # of all sites, or of each
            out.append(tuned_by_sums(np.where(there[:, None], one, np.inf).T, rows, L2S, least))
        return out

    def final(self, kind: str, l2: np.ndarray) -> np.ndarray:
        """Return the models of every pass that are reported; raise ValueError if few rows would make them up."""
        if kind == "afl":
            fair = FairQuestions(self, self.plan.whole_sets, l2)
            W, weights = fair.models()
            if np.isfinite(W).all():
                self.gap = float(fair.gaps(W, weights)[-1])
        elif kind == "mocha":
            W, gaps = tied_models(self, self.plan.whole_sets, l2)
            self.tied_gap = float(gaps[-1])
        else:
            W = self.models(kind, self.plan.whole_sets, l2)
        if not np.isfinite(W).all():
            raise bad(
                f"compare over sites: {kind}", "be made of five rows or more at every site", "fewer", "leave it out"
            )
        return W

    def alone(self) -> list[Tuned]:
        """Return what cross-validation finds of the sites alone, in each pass; l2 stays with the sites."""
        plan, none = self.plan, np.full(len(self.names), np.nan)
        found = self.total("alone", {"alone": np.ones(plan.passes), **self.frame})
        units, out = self.frame["target"][plan.whole_sets, 1] ** 2 * self.sizes.sum(), []
        for a, s in enumerate(plan.whole_sets):
            n = float(self.counts.held[:, s + 1 : s + 1 + plan.folds].sum())
            losses, nested = found["losses"][a] * units[a] / n, float(found["nested"][a] * units[a] / n)
            out.append(Tuned(none, L2S, losses, losses, nested, False))
        return out

    def models(self, kind: str, part: np.ndarray, l2: np.ndarray) -> np.ndarray:
        """Return the models (M, p) of a kind, of these sets and l2, by Newton's method for all side by side.

        Of MOCHA they are covariances of features, (M, t).
        NaN stands for models near which a site's Hessian would be made of few rows.
        """
        if kind == "afl":
            return FairQuestions(self, part, l2).models()[0]
        if kind == "mocha":
            return tied_models(self, part, l2)[0]
        M, p = len(part), self.plan.size
        weight = self.ridge(part, l2) if kind == "pooled" else np.tile(l2[:, None], (1, p))
        lost = np.zeros(M)
        search, quadratic = newton_steps.start(np.zeros((M, p))), traits(self.plan.loss).quadratic
        for _ in range(MOST):
            live = np.flatnonzero(~search.settled)
            if not live.size:
                return np.where((lost > _LOST)[:, None], np.nan, search.trial)
            at = search.trial[live]
            told = {kind: at, "part": part[live].astype(float), "l2": l2[live], **self.frame}
            found = self.total(kind, told)
            lost[live] += found["lost"] > 0.5
            unit = np.ones(len(live)) if kind == "pooled" else l2[live]  # of derivatives, for fixed point
            value, slope, bend = (np.full((M,) + (p,) * i, np.nan) for i in range(3))
            value[live] = found["loss"] + 0.5 * np.sum(weight[live] * at * at, axis=1)
            value[live[found["lost"] > 0.5]] = np.inf
            slope[live] = unit[:, None] * found["slope"] + weight[live] * at
            hessians = unit[:, None] * found["bend"]
            bend[live] = [symmetric(t, p) + np.diag(w) for t, w in zip(hessians, weight[live], strict=True)]
            if kind == "pooled":
                self.anchored(part, slope, bend)
            search = newton_steps.absorb(search, value, slope, bend)
            near = search.decrement <= _ACCURACY * (1.0 + np.abs(search.value))
            search.settled[near | (quadratic & np.isfinite(search.value)) | (lost > _LOST)] = True
        raise bad(f"compare over sites: {kind}", f"be found in {MOST} exchanges", f"{live.size} models that still move")


# ---------------------------------------------------------------- the table


def _compared(search: Search, tuned: dict[str, Tuned], finals: dict[str, np.ndarray], clock: float) -> Comparison:
    """Ask what all models are worth on held-out rows, and return the comparison; sites stand by their names."""
    plan, tested = search.plan, search.counts.tested
    n, last = int(tested.sum()), int(plan.whole_sets[-1])
    unit = float(search.frame["target"][last, 1])
    found = search.total("errors on held-out rows", {"score": np.ones(1), **search.frame, **finals})
    sums = {name: a * n for name, a in found.items()}
    asked = {"row": np.ones(1), "spread": scored.spreads(plan, sums, n), **search.frame, **finals}
    told = search.total("rows of the table", asked)["row"]
    order = np.argsort(np.array(search.names), kind="stable")
    rows = [scored.rows_told(plan, told[k], int(tested[k]), unit) for k in order]
    out = [
        _scored(plan, name, i, sums, n, unit, rows, tested[order], tuned.get(name))
        for i, name in enumerate(scored.names_of(plan))
    ]
    first, names = plan.whole_sets[0], tuple(search.names[k] for k in order)
    every = plan.rows(0, None, np.full(int(search.sizes.sum()), np.nan))
    client = np.repeat(np.arange(len(order)), search.sizes[order])
    every = replace(every, title="the study", names=names, client=client)
    given = (plan.test_size, plan.folds, 0, 0, 0.0, plan.min_rows, plan.level, plan.seed, plan.splits)
    repeats, splits = scored.repeats_of(plan), plan.splits
    train = search.counts.train[order, first] if splits == 1 else _about(search, order)
    return Comparison(
        every, Settings(("base rate", *plan.kinds), *given), tuple(out), train, tested[order],
        np.arange(n), _notes(plan, search, tuned, rows), time.perf_counter() - clock,
        tuple((None,) * (splits // repeats) for _ in range(repeats)),  # type: ignore[misc]
    )  # fmt: skip


def _about(search: Search, order: np.ndarray) -> np.ndarray:
    """Return how many rows of each site are fitted to in a split, about."""
    plan, sizes = search.plan, search.sizes[order]
    parts = scored.parts_of(plan)
    return np.asarray(sizes - np.rint(search.counts.tested[order] / parts).astype(np.int64))


def _scored(
    plan: ComparePlan, name: str, i: int, sums: Any, n: int, unit: float, rows: list[Any], tested: np.ndarray,
    tuned: Tuned | None,
) -> Scored:  # fmt: skip
    """Return a method of the table."""
    whole = scored.whole_measures(plan, sums, i, n, unit)
    mine = [None if row is None else row[i] for row in rows]
    clients = tuple(_unknown(m) if one is None else one.measures for one, m in zip(mine, tested.tolist(), strict=True))
    joins, over = (
        tuple(_joined(plan, one, j, m) for one, m in zip(mine, tested.tolist(), strict=True)) for j in range(2)
    )
    worst = worst_of(
        [m.error for m in clients], [0 if one is None else m.rows for one, m in zip(mine, clients, strict=True)],
        plan.min_rows,
    )  # fmt: skip
    if name == "alone" and tuned is not None:
        tuned = tuned._replace(l2=np.array([math.nan if one is None else one.l2 for one in mine]))
    return Scored(
        name, METHODS[name], tuned, None, whole, scored.paired(plan, sums, i, n, unit), clients, joins, worst, None,
        None, np.empty(0), (), over,
    )  # fmt: skip


def _unknown(rows: int) -> Measures:
    return Measures(rows, math.nan, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, math.nan, UNKNOWN, math.nan)


def _joined(plan: ComparePlan, one: scored.Row | None, j: int, rows: int) -> Joining:
    return Joining(UNKNOWN, Outcome.KEPT) if one is None else judged_by(one.beside[j], rows, plan.min_rows)


def _notes(plan: ComparePlan, search: Search, tuned: dict[str, Tuned], rows: list[Any]) -> tuple[str, ...]:
    """Return what a reader should know about the figures."""
    notes = []
    if not search.free[plan.whole_sets].all():
        notes.append("A class is missing from the training rows, so that intercepts are penalised like other weights.")
    if {"mocha", "mean-regularised"} & {*plan.kinds}:
        notes.append("In models per client that are tied, the intercept is penalised like other weights.")
    if "afl" in plan.kinds:
        within = f" with an intercept within {INTERCEPTS:g} of it" * bool(search.free[plan.whole_sets[-1]])
        notes.append(
            f"No model{within} has a largest objective of a site below that of afl by more than {search.gap:.1e}."
        )
    if "mocha" in plan.kinds:
        notes.append(f"The certified gap of mocha is {search.tied_gap:.1e} per row.")
    if ends := [name for name, t in tuned.items() if t.at_end and name != "alone"]:
        notes.append(f"The chosen l2 is the smallest or largest that was tried: {', '.join(ends)}.")
    if search.left_out:
        why = "at some site few rows would make up the answers"
        notes.append(f"Not compared, since {why}: {'; '.join(search.left_out)}.")
    if kept := sum(row is None for row in rows):
        notes.append(f"{kept} of {len(rows)} sites keep their scores; they are in all sums over held-out rows.")
    exchanges, (own, summed) = sum(times for times, _ in search.asking.steps.values()), search.told.tolist()
    hidden = f"'s own, and {summed:,} in sums under masks" * search.asking.hidden
    notes.append(f"{exchanges} exchanges, {own:,} numbers of each site{hidden}.")
    return tuple(notes)
