"""What a site answers in an analysis: sums over its own rows, of which no few make up the whole.

A question names what is asked by its arrays, and the columns that it is about: rows are (x - shift) M, with or without
an intercept of the site's own. Every array has a leading axis, of the models that are asked about.

An answer at a model where few rows make up the whole is "lost", as one that overflows is: a search turns back.

| asked | answered, of n rows and r columns |
|---|---|
| center, unit (p,) | sums of (x - c)/u and of its square: 2 p numbers |
| facts | constants of the likelihood, sums of weights, responses, their squares and e^offset; whether all agree |
| gram | the upper triangle of X'X |
| w (r,) | N_k, its gradient, the upper triangle of its Hessian: (r + 1)(r + 2)/2 numbers, and one |
| inverse (r, r) | max_i x_i'A x_i, rounded up to a power of 2: it is of one row |
| rounding (r,) | what rounding may have done to N_k and its gradient: r + 1 numbers |
| end (r,) | Pearson's sum, a bound of scores, the upper triangle of the expected information |
| robust (r,), inverse | the upper triangles of four sums of squares (two, for times and classes), and three numbers |
| drift (r,), centre | of times: sums over events with t - centre and its square, of scores and Hessians |
| pairs (r,) | of times: how many pairs scores order rightly, not at all, and wrongly |
| alone | the site's own estimate, its information, N_k and Pearson's sum |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedconvex.analysis import covariances
from fedconvex.analysis.site_problems import SiteClasses, SiteRows, SiteTimes
from fedconvex.families.survival import hazard_checks
from fedconvex.problems import Measure
from fedconvex.remote.kinds import FLOATS, Kind
from fedconvex.remote.messages import Refused

Arrays = Mapping[str, np.ndarray]
Problem = SiteRows | SiteTimes | SiteClasses
FRAME = ("shift", "map", "own")
WHAT = ("center", "facts", "gram", "w", "rounding", "end", "robust", "alone", "drift", "pairs", "inverse")  # the first
_OF_TIMES = ("drift", "pairs")
_NOT_ASKED = {"cox": ("end",), "multinomial": ("end", "alone", *_OF_TIMES)}  # of other families: what is of times
_ORDERS = 4  # models at which a site says how many pairs are ordered rightly
_REACHES = 16  # metrics, and four for each column, for which a site says how far its farthest row is
_MEAT = ("hc0", "hc2", "hc3", "cr")


def kind_of_question(problem: Problem, asked: Arrays) -> str:
    """Return what a question asks.

    Raises
    ------
    Refused
        If it is none.
    """
    found = next((name for name in WHAT if name in asked), "")
    beside = {"robust": {"inverse", *FRAME}, "drift": {"centre", *FRAME}, "center": {"unit"}}
    wanted = {found} | beside.get(found, {*FRAME})
    if not found or asked.keys() != wanted:
        raise Refused("it is no question of an analysis")
    if found in _NOT_ASKED.get(problem.family.name, _OF_TIMES):
        raise Refused(f"it is no question about family {problem.family.name!r}")
    return found


def _meats(problem: Problem) -> tuple[str, ...]:
    return ("hc0", "cr") if problem.family.name in _NOT_ASKED else _MEAT


def shapes(problem: Any, asked: Arrays) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an answer."""
    what = kind_of_question(problem, asked)
    if what == "center":
        return {"sum": (1, problem.federation.d), "square": (1, problem.federation.d)}
    r, m = problem.blocks * asked["map"].shape[2], len(asked[what])
    t = r * (r + 1) // 2
    one: dict[str, tuple[int, ...]] = {
        "facts": {"facts": (6,)},
        "gram": {"gram": (t,)},
        "w": {"N": (), "slope": (r,), "bend": (t,), "lost": ()},
        "inverse": {"reach": ()},
        "rounding": {"values": (), "slopes": (r,)},
        "end": {"pearson": (), "size": (), "information": (t,)},
        "robust": dict.fromkeys(_meats(problem), (t,)) | {"three": (3,)},
        "alone": {"b": (r,), "information": (t,), "three": (3,)},
        "drift": {"drift": (r,), "crossed": (t,), "squared": (t,)},
        "pairs": {"pairs": (3,)},
    }[what]  # type: ignore[assignment]
    return {name: (m, *shape) for name, shape in one.items()}


def triangle(H: np.ndarray) -> np.ndarray:
    """Return the upper triangle of a symmetric matrix (r, r), row after row."""
    return np.asarray(H[np.triu_indices(len(H))])


def symmetric(t: np.ndarray, r: int) -> np.ndarray:
    """Return the matrix (r, r) of an upper triangle."""
    H = np.empty((r, r))
    rows, columns = np.triu_indices(r)
    H[rows, columns] = H[columns, rows] = t
    return H


def report(problem: Any, k: int, asked: Arrays) -> dict[str, np.ndarray]:
    """Return the answer of client k, from its own rows; refused is what does not fit together."""
    what = kind_of_question(problem, asked)
    _check(problem, what, asked)
    with np.errstate(all="ignore"):
        if what == "center":
            X = (problem.own_rows(k)[0] - asked["center"][0]) / asked["unit"][0]
            return {"sum": X.sum(axis=0)[None], "square": (X * X).sum(axis=0)[None]}
        rows = _rows(problem, k, asked)
        found = [_ANSWERS[what](problem, rows, asked, i) for i in range(len(asked[what]))]
    form = shapes(problem, asked)
    out = {name: np.reshape([np.asarray(one[name], dtype=float) for one in found], form[name]) for name in form}
    if any(not np.isfinite(a).all() for a in out.values()) and what != "w":
        raise Refused("its numbers are not finite there")
    return out


def _check(problem: Any, what: str, asked: Arrays) -> None:
    """Raise `Refused` unless the arrays of a question fit together, and are finite."""
    p, m = problem.federation.d, len(asked[what])
    columns = asked["map"].shape[2] if what != "center" and asked["map"].ndim == 3 else 0
    r = problem.blocks * columns
    wanted = {
        **dict.fromkeys(("center", "unit", "shift"), (m, p)), "map": (m, p, columns), "inverse": (m, r, r),
        **dict.fromkeys(("facts", "gram", "alone", "own", "centre"), (m,)),
        **dict.fromkeys(("w", "rounding", "end", "robust", "drift", "pairs"), (m, r)),
    }  # fmt: skip
    if m != 1 and what not in ("w", "rounding", "inverse"):
        raise Refused(f"{what} is asked once at a time")
    for name, a in asked.items():
        if a.dtype != FLOATS or a.shape != wanted[name] or not np.isfinite(a).all():
            raise Refused(f"its {name} is no finite array {wanted[name]}")
    if "inverse" in asked and not all(_is_metric(A) for A in asked["inverse"]):
        raise Refused("its metric is not symmetric and positive semidefinite")
    if what != "center" and asked["own"][0] not in (0.0, 1.0):
        raise Refused("it does not say whether intercepts are of sites")
    if what == "center" and not (asked["unit"] > 0.0).all():
        raise Refused("its units are not positive")
    if what != "center" and (
        columns < 1 or columns > p or any((asked[name] != asked[name][:1]).any() for name in FRAME)
    ):
        raise Refused("it is about other columns in every model")


def _rows(problem: Problem, k: int, asked: Arrays) -> Any:
    """Return the likelihood of the site's rows in the columns that a question is about; the last one is kept."""
    key = b"".join(asked[name][0].tobytes() for name in FRAME)
    if getattr(problem, "_rows_at", (None,))[0] != key:
        X = np.ascontiguousarray((problem.own_rows(k)[0] - asked["shift"][0]) @ asked["map"][0])
        problem._rows_at = key, problem.likelihood(X, bool(asked["own"][0]))  # type: ignore[union-attr]
    return problem._rows_at[1]  # type: ignore[union-attr]


def _facts(problem: Problem, rows: Any, asked: Arrays, i: int) -> dict[str, Any]:
    return {"facts": np.array(problem.facts(rows))}


def _sums(problem: Problem, rows: Any, asked: Arrays, i: int) -> dict[str, Any]:
    b = asked["w"][i]
    N, g, H = (part[0] for part in rows.sums(b[None]))
    lost = not (np.isfinite(N) and np.isfinite(g).all() and np.isfinite(H).all())
    lost = lost or problem.is_few_at(rows, b) or not _is_metric(H)  # far out Hessians are rounding
    if lost:  # masked numbers must be finite
        N, g, H = 0.0, np.zeros_like(g), np.zeros_like(H)
    return {"N": N, "slope": g, "bend": triangle(H), "lost": float(lost)}


def _end(problem: Problem, rows: Any, asked: Arrays, i: int) -> dict[str, Any]:
    b = asked["end"][i]
    at = rows.at(0, b)
    if not rows.silent[0]:
        problem.refuse_few(at.s * rows.family.expected_curvature(at.z))
    information = triangle(rows.client_information(0, b))
    return {"pearson": rows.pearson(b), "size": _upwards(rows.score_size(b)), "information": information}


def _upwards(v: float) -> float:
    return 2.0 ** np.ceil(np.log2(v)) if v > 0.0 else 0.0


def _reach(problem: Problem, rows: Any, asked: Arrays, i: int) -> dict[str, Any]:
    A = asked["inverse"][i]
    known = problem.__dict__.setdefault("_reached", set())  # each tells a bit of one row: many would measure it out
    known.add(A.tobytes())
    if len(known) > _REACHES + 4 * len(A):
        raise Refused(f"it asks for the farthest row in more than {_REACHES + 4 * len(A)} metrics")
    return {"reach": _upwards(float(rows.spread(A[None])[0]) ** 2)}


def _rounding(problem: Problem, rows: Any, asked: Arrays, i: int) -> dict[str, Any]:
    b = asked["rounding"][i]
    return {"values": rows.value_rounding(b), "slopes": rows.gradient_rounding(b)}


def _is_metric(A: np.ndarray) -> bool:
    size = float(np.abs(A).max())
    return bool(np.abs(A - A.T).max() <= 1e-9 * size and np.linalg.eigvalsh(A).min() >= -1e-9 * size)


def _robust(problem: Problem, rows: Any, asked: Arrays, i: int) -> dict[str, Any]:
    """Return sums of squares; a metric that is no inverse of a sum with this site's Hessian could point at one row."""
    A, b = asked["inverse"][i], asked["robust"][i]
    if np.linalg.eigvals(A @ rows.sums(b[None]).hessians[0]).real.max() > 1.0 + 1e-6:
        raise Refused("its metric is not the inverse of a Hessian that this site's is a part of")
    total = problem.squares(rows, b, A)
    sums = {name: triangle(getattr(total, name)) for name in _meats(problem)}
    return sums | {"three": np.array([total.clients, total.leverage, total.certain])}


def meat_of(answers: Mapping[str, np.ndarray], r: int) -> covariances.Meat:
    """Return the sums of squares of an answer."""
    nothing = np.zeros((r, r))
    squares: list[Any] = [symmetric(answers[name][0], r) if name in answers else nothing for name in _MEAT]
    return covariances.Meat(*squares, *map(float, answers["three"][0]))


def _alone(problem: Problem, rows: Any, asked: Arrays, i: int) -> dict[str, Any]:
    one = rows.alone()[0]
    if one is None:
        r = rows.size
        return {"b": np.zeros(r), "information": np.zeros(r * (r + 1) // 2), "three": np.zeros(3)}
    return {"b": one.b, "information": triangle(one.information), "three": np.array([1.0, one.N, one.pearson])}


def _drift(problem: Problem, rows: Any, asked: Arrays, i: int) -> dict[str, Any]:
    b = asked["drift"][i]
    if problem.is_few_at(rows, b):
        raise problem.few_rows()
    found = rows.drift(b, float(asked["centre"][i]))
    return {"drift": found.score, "crossed": triangle(found.crossed), "squared": triangle(found.squared)}


def _pairs(problem: Problem, rows: Any, asked: Arrays, i: int) -> dict[str, Any]:
    """Return counts of pairs: at models side by side they differ by one pair, so that few models are allowed."""
    known = problem.__dict__.setdefault("_ordered", set())
    known.add(b"".join(asked[name][0].tobytes() for name in (*FRAME, "pairs")))
    if len(known) > _ORDERS:
        raise Refused(f"it asks for the order of pairs at more than {_ORDERS} models")
    counts = hazard_checks.pair_counts(rows.survival, asked["pairs"][i])
    if 0 < sum(counts) < 10:
        raise Refused("its answer would be about fewer than ten pairs")
    return {"pairs": np.array(counts, dtype=float)}


_ANSWERS = {
    "facts": _facts,
    "gram": lambda problem, rows, asked, i: {"gram": triangle(rows.gram())},
    "w": _sums,
    "inverse": _reach,
    "rounding": _rounding,
    "end": _end,
    "robust": _robust,
    "alone": _alone,
    "drift": _drift,
    "pairs": _pairs,
}


def _models(problem: Any, asked: Arrays) -> np.ndarray | None:
    """Return the models whose scores a question tells, for the audit: coefficients, constants, and whether own."""
    what = kind_of_question(problem, asked)
    if what not in ("w", "end", "robust", "rounding", "drift"):
        return None
    _check(problem, what, asked)
    blocks, m = problem.blocks, len(asked[what])
    B = asked[what].reshape(m, blocks, -1) @ asked["map"][0].T
    return np.column_stack([B.reshape(m, -1), -B @ asked["shift"][0], np.full(m, asked["own"][0])])


def _slopes(problem: Any, model: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return slopes (n, C) of the site's rows at such a model, and curvatures but for times."""
    at = problem.blocks * problem.federation.d
    B, constants, own = model[:at].reshape(problem.blocks, -1), model[at:-1], bool(model[-1])
    return problem.slopes_of(B, constants, own)  # type: ignore[no-any-return]


def _measured(problem: Any, asked: Arrays) -> int:
    return len(asked[kind_of_question(problem, asked)])


def _measure(roster: Any, w: np.ndarray) -> Measure | None:
    """Return nothing: an analysis has its own certificate."""
    return None


KIND = Kind(
    report, shapes, _measure, lambda method, problem: [], plain=True, measured=_measured, models=_models, slopes=_slopes
)
