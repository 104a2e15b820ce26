"""What a study's coordinator asks of a site to compare, and what it is told.

M models, each of a set of rows s and with its l2, travel with the frame of all sets: by what columns and target are
standardised. Sums of a set are divided by the rows of all sites in it. Of C classes, three or more, the target is C
indicators, and models are p = C (d + 1) numbers, class by class.

| question | answer |
|---|---|
| center, unit (S, q) | sums of columns and target, the target last, less the centres in these units; and of squares |
| pooled, mean-regularised (M, p) | value, gradient, Hessian's triangle (`comparing_site`), unless few rows make it up |
| afl (M, p), weights (M, K) | value and gradient of f_k in the site's place; lambda_k times its Hessian's triangle |
| mocha (M, t): covariances D of features | least value given D; gamma gamma' (`comparing_tied`), unless of few rows |
| these with held (M,) | losses of the rows of the set's fold; of afl in the site's place |
| alone (P,) | of each pass: losses in cross-validation, each fold with the l2 of the others, and by l2 |
| score (1,), final models | sums of errors, and of their squares, of all models on held-out rows |
| row (1,), spread, final models | what these models are worth at the site, in its place, if it tells |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedconvex.analysis.site_answers import symmetric
from fedconvex.comparison.cross_validation import L2S, Folds, tune
from fedconvex.comparison.kinds import KINDS, Training
from fedconvex.comparison.scores import losses_at
from fedconvex.loss_traits import traits
from fedconvex.problems import Measure
from fedconvex.remote.kinds import FLOATS, Kind
from fedconvex.remote.messages import Refused
from fedconvex.study import comparing_scores as scored
from fedconvex.study.comparing_plan import ComparePlan
from fedconvex.study.comparing_site import BLOCK, ComparedSite, in_place, models_of, scores_at, sums_at

Arrays = Mapping[str, np.ndarray]
FRAME = ("shift", "scale", "target")
TIED_ROUNDS = "every round of tied models"
FARTHEST = 1e4  # entries of a model for standardised columns at most: far out few rows make up an answer


def kind_of_question(plan: ComparePlan, asked: Arrays) -> str:
    """Return what a question asks.

    Raises
    ------
    Refused
        If it is none.
    """
    joint = [kind for kind in plan.kinds if kind != "alone"]
    finals = {name for kind in joint for name in (kind, f"{kind} l2")}
    wanted: dict[str, set[str]] = {
        "center": {"center", "unit"}, "alone": {"alone", *FRAME}, "score": {"score", *FRAME, *finals},
        "row": {"row", "spread", *FRAME, *finals},
    }  # fmt: skip
    for kind in joint:
        wanted[kind] = {kind, "part", "l2", *FRAME}
        wanted[f"{kind} held"] = wanted[kind] | {"held"}
    if "afl" in joint:
        wanted["afl"] = wanted["afl"] | {"weights"}
    for name, arrays in wanted.items():
        if asked.keys() == arrays:
            return name
    raise Refused("it is no question of a comparison")


def shapes(problem: Any, asked: Arrays) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an answer."""
    plan, K = problem.plan, problem.federation.K
    what, m = kind_of_question(plan, asked), len(asked.get("part", ()))
    if what == "center":
        return dict.fromkeys(("sum", "square"), asked["center"].shape)
    if what == "alone":
        return {"nested": (plan.passes,), "losses": (plan.passes, len(L2S))}
    if what == "score":
        return scored.shapes(plan)
    if what == "row":
        return {"row": (K, *scored.row_shape(plan))}
    if what == "afl held":
        return {"site_losses": (m, K)}
    if what.endswith(" held"):
        return {"losses": (m,)}
    if what == "afl":
        return {"site_loss": (m, K), "site_slope": (m, K, plan.size), "bend": (m, plan.t), "lost": (m,)}
    slope = {} if what == "mocha" else {"slope": (m, plan.size)}
    return {"loss": (m,), **slope, "bend": (m, plan.t), "lost": (m,)}


def told_apart(plan: ComparePlan, K: int, asked: Arrays) -> tuple[int, int]:
    """Return how many numbers of an answer the coordinator learns of the site itself, and of sums over all sites.

    Raises
    ------
    Refused
        If it is no question.
    """
    what, m = kind_of_question(plan, asked), len(asked.get("part", ()))
    own = {"row": int(np.prod(scored.row_shape(plan))), "afl": m * _fair(plan), "afl held": m}.get(what, 0)
    if what == "center":
        every = 2 * int(asked["center"].size)
    elif own:
        every = own + m * (what == "afl")  # beside them whether few rows make them up
    else:
        form = shapes(_Form(plan, _Sizes(K)), asked)
        every = sum(int(np.prod(shape)) for shape in form.values())
    return (own, every - own) if plan.hidden else (every, 0)


def _fair(plan: ComparePlan) -> int:
    """Return how many numbers of its own a site tells at a model of AFL.

    The Hessian is among them: of sums with weights that the coordinator chooses, as many as there are sites tell each.
    """
    return 1 + plan.size + plan.t


def what_leaves(plan: ComparePlan) -> list[tuple[str, str, int, str, bool]]:
    """Return what leaves a site when: what it is, numbers in one answer, how often, and if a sum hides it."""
    first, p, t, L = "before the first model", plan.size, plan.t, len(L2S)
    of, hidden = f"of {plan.models} models, each of the rows outside a fold", plan.hidden
    out: list[tuple[str, str, int, str, bool]] = [
        (
            first,
            f"sums of columns, target and squares of {plan.sets} sets of rows",
            4 * plan.sets * plan.columns,
            "once",
            hidden,
        )
    ]
    once = "every round" if not traits(plan.loss).quadratic else "once"
    for kind in (k for k in plan.kinds if k != "alone"):
        what = "least value, and products of gradients," if kind == "mocha" else "value, gradient and Hessian"
        said = f"{kind}: {what} {of}, then of {plan.passes} of all training rows"
        often, sums = ("every round", False) if kind == "afl" else (once, hidden)  # the sums of AFL hide no site
        often = TIED_ROUNDS if kind == "mocha" else often
        out += [
            ("a round", said, (plan.models + plan.passes) * (2 + p * (kind != "mocha") + t), often, sums),
            ("in cross-validation", f"{kind}: losses of the rows of the folds", plan.models, "once", sums),
        ]
    m = sum(int(np.prod(shape)) for shape in scored.shapes(plan).values())
    row = int(np.prod(scored.row_shape(plan)))
    return [
        *out,
        ("in cross-validation", "alone: losses of the rows of the folds, by l2", plan.passes * (1 + L), "once", hidden),
        ("at the end", "sums of errors on held-out rows, and of their squares", m, "once", hidden),
        (
            "at the end",
            "what each kind of model is worth here, in no sum, unless the site keeps it",
            row,
            "once",
            False,
        ),
    ]


class _Sizes:
    def __init__(self, K: int) -> None:
        self.K = K


class _Form:
    def __init__(self, plan: ComparePlan, federation: _Sizes) -> None:
        self.plan, self.federation = plan, federation


def report(problem: Any, k: int, asked: Arrays) -> dict[str, np.ndarray]:
    """Return the answer of client k, from its own rows; refused is what does not fit together."""
    plan: ComparePlan = problem.plan
    what = kind_of_question(plan, asked)
    _check(problem, what, asked)
    _check_frame(problem, asked)
    with np.errstate(all="ignore"):
        if what == "center":
            found = _moments(problem, asked)
        elif what == "alone":
            found = _alone(problem, asked)
        elif what in ("score", "row"):
            found = _scored(problem, what, asked)
        else:
            found = _by_set(problem, what, asked)
    form = shapes(problem, asked)
    out = {name: np.ascontiguousarray(np.reshape(found[name], form[name]), dtype=np.float64) for name in form}
    if any(not np.isfinite(a).all() for a in out.values()):
        raise Refused("its numbers are not finite there")
    return out


def _check(problem: Any, what: str, asked: Arrays) -> None:
    """Raise `Refused` unless the arrays of a question fit together, and are finite."""
    plan, m = problem.plan, len(asked.get("part", ()))
    S, P, p, q = plan.sets, plan.passes, plan.p, plan.columns
    wanted = {
        **dict.fromkeys(("center", "unit"), (S, q)), **dict.fromkeys(("shift", "scale"), (S, p - 1)),
        "target": (S, 2), "part": (m,), "l2": (m,), "held": (m,), "alone": (P,),
        "score": (1,), "row": (1,), "spread": scored.spread_shape(plan), "weights": (m, problem.federation.K),
    }  # fmt: skip
    rows = P if what in ("score", "row") else m
    for kind in plan.kinds:
        wanted |= {kind: (rows, plan.told_of(kind)), f"{kind} l2": (P,)} if kind != "alone" else {}
    for name, a in asked.items():
        if a.dtype != FLOATS or a.shape != wanted[name] or not np.isfinite(a).all():
            raise Refused(f"its {name} is no finite array {wanted[name]}")
    for name in ("unit", "scale", "l2", *(f"{kind} l2" for kind in plan.kinds)):
        if name in asked and not (asked[name] > 0.0).all():
            raise Refused(f"its {name} is not positive")
        if name.endswith("l2") and name in asked and not np.isin(asked[name], L2S).all():
            raise Refused(f"its {name} is none of those that are compared")
    if "target" in asked and not (asked["target"][:, 1] > 0.0).all():
        raise Refused("its unit of the target is not positive")
    mix = asked.get("weights", np.ones((1, 1)))
    if not (mix >= 0.0).all() or np.abs(mix.sum(axis=1) - 1.0).max(initial=0.0) > 1e-9:
        raise Refused("its weights of sites are none")
    part = asked.get("part", np.zeros(0))
    sets = range(S) if "held" not in asked else [s for s in range(S) if s % (plan.folds + 1)]
    if not np.isin(part, sets).all() or ("part" in asked and not m):
        raise Refused("it is about sets of rows that are none")
    if any(np.abs(asked[kind]).max(initial=0.0) > FARTHEST for kind in plan.kinds if kind in asked and kind != "alone"):
        raise Refused(f"its models are too far out: entries above {FARTHEST:g}")
    for one in asked.get("mocha", ()):
        D = symmetric(one, plan.size)
        if abs(np.trace(D) - 1.0) > 1e-9 or np.linalg.eigvalsh(D)[0] < -1e-9:
            raise Refused("its covariance of features is none: positive semidefinite, of trace one")


def _check_frame(problem: Any, asked: Arrays) -> None:
    """Raise `Refused` unless rows are standardised as in the first question of a session: sums say how, once."""
    if all(name in asked for name in FRAME):
        frame = b"".join(asked[name].tobytes() for name in FRAME)
        if problem.__dict__.setdefault("_frame", frame) != frame:
            raise Refused("it standardises columns in another way than before")


def _moments(problem: ComparedSite, asked: Arrays) -> dict[str, np.ndarray]:
    """Return the sums of the columns of every set, and of their squares, over the rows of all sites in it."""
    fed, total, C = problem.federation, problem.counts.train.sum(axis=0), problem.plan.outputs
    Y = fed.y[:, None] if C == 1 else fed.y[:, None] == np.arange(C)
    out = {name: np.empty(asked["center"].shape) for name in ("sum", "square")}
    for s, train in enumerate(problem.parted.train):
        sums = np.zeros((2, asked["center"].shape[1]))
        for i in range(0, train.size, BLOCK):
            at = train[i : i + BLOCK]
            Z = (np.column_stack([fed.X[at], Y[at]]) - asked["center"][s]) / asked["unit"][s]
            sums += Z.sum(axis=0), (Z * Z).sum(axis=0)
        out["sum"][s], out["square"][s] = sums / total[s]
    return out


def _by_set(problem: ComparedSite, what: str, asked: Arrays) -> dict[str, np.ndarray]:
    """Return sums at models, set by set."""
    kind, _, held = what.partition(" ")
    form = shapes(problem, asked)
    out = {name: np.empty(shape) for name, shape in form.items()}
    for s in np.unique(asked["part"]).astype(int).tolist():
        at = np.flatnonzero(asked["part"] == s)
        found = _held(problem, kind, s, asked, at) if held else sums_at(problem, kind, s, asked, at)
        for name, a in found.items():
            out[name][at] = a
    return out


def _held(problem: ComparedSite, kind: str, s: int, asked: Arrays, at: np.ndarray) -> dict[str, np.ndarray]:
    """Return the losses of the rows of a set's fold at models that were fitted to the others."""
    W = models_of(problem, kind, s, asked["l2"][at], asked[kind][at], asked)
    X, y = problem.standardised(asked, s, problem.parted.held[s])
    losses = np.array([losses_at(problem.loss, scores_at(X, w), y).sum() / problem.federation.sizes.sum() for w in W])
    if kind == "afl":
        return {"site_losses": in_place(losses, problem.number, problem.federation.K)}
    return {"losses": losses}


def _alone(problem: ComparedSite, asked: Arrays) -> dict[str, np.ndarray]:
    """Return what models of the site's own lose in cross-validation, in each pass."""
    tuned = alone_in(problem)
    share = 1.0 / problem.federation.sizes.sum()
    sizes = np.array([float((fold >= 0).sum()) for fold in problem.parted.folds])
    units = asked["target"][problem.plan.whole_sets, 1] ** 2
    nested = np.array([one.loss for one, _ in tuned]) * sizes * share / units
    return {"nested": nested, "losses": np.array([one.losses for one, _ in tuned]) * (sizes * share / units)[:, None]}


def alone_in(problem: ComparedSite) -> list[tuple[Any, Any]]:
    """Return what cross-validation chose for models of the site's own, and the models, in each pass; they are kept."""
    if "_alone" not in problem.__dict__:
        plan, rows, kept = problem.plan, problem.rows, []
        whole = [s for s in range(plan.sets) if s % (plan.folds + 1) == 0]
        for fold, s in zip(problem.parted.folds, whole, strict=True):
            data = Training(rows, rows.features(problem.parted.train[s]), problem.parted.train[s])
            tuned = tune(KINDS["alone"], data, Folds(fold, _Inner(fold, data)), plan.min_rows, lambda share: None)
            kept.append((tuned, KINDS["alone"].fit(data, tuned.l2).models))
        problem.__dict__["_alone"] = kept
    return problem.__dict__["_alone"]  # type: ignore[no-any-return]


class _Inner(dict[int, Training]):
    """The rows outside each fold, of which those of one at a time are held in memory."""

    def __init__(self, fold: np.ndarray, data: Training) -> None:
        super().__init__()
        self.fold, self.data = fold, data

    def __missing__(self, part: int) -> Training:
        train = self.data.train[self.fold != part]
        return Training(self.data.rows, self.data.rows.features(train), train)


def _scored(problem: ComparedSite, what: str, asked: Arrays) -> dict[str, np.ndarray]:
    """Return sums of errors on held-out rows, or what the models are worth here."""
    each, at = scored.held_scores(problem, asked, [models for _, models in alone_in(problem)])
    share, unit = 1.0 / problem.counts.tested.sum(), float(asked["target"][problem.plan.whole_sets[-1], 1])
    if what == "score":
        return scored.sums_of(problem.plan, problem.rows, each, at, share, unit)
    l2 = float(alone_in(problem)[-1][0].l2[0])
    row, text = scored.own_row(problem, each, at, asked["spread"], unit, l2)
    problem.__dict__["told"] = text
    return {"row": in_place((row if problem.tells else 0.0 * row)[None], problem.number, problem.federation.K)[0]}


def _measured(problem: Any, asked: Arrays) -> int:
    kind_of_question(problem.plan, asked)
    return max(len(asked.get("part", ())), 1)


def _measure(roster: Any, w: np.ndarray) -> Measure | None:
    """Return nothing: a comparison has its own certificates."""
    return None


KIND = Kind(report, shapes, _measure, lambda method, problem: [], plain=True, measured=_measured)
