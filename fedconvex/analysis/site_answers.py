"""What a site answers in an analysis: sums over its own rows, of which no few make up the whole.

A question names what is asked by its arrays, and the columns that it is about: rows are (x - shift) M, with or without
an intercept of the site's own. Every array has a leading axis, of the models that are asked about.

Weights of rows may be far from equal, as far out where most scores are certain: an answer whose weights are those of
fewer than five rows, in effective number (sum h)^2/sum h^2, is "lost", as one that overflows is: a search turns back.

| asked | answered, of n rows and r columns |
|---|---|
| center, unit (p,) | sums of (x - c)/u and of its square: 2 p numbers |
| facts | constants of the likelihood, sums of weights, responses, their squares and e^offset; whether all agree |
| gram | the upper triangle of X'X |
| w (r,) | N_k, its gradient, the upper triangle of its Hessian: (r + 1)(r + 2)/2 numbers, and one |
| inverse (r, r) | max_i x_i'A x_i, rounded up to a power of 2: it is of one row |
| rounding (r,) | what rounding may have done to N_k and its gradient: r + 1 numbers |
| end (r,) | Pearson's sum, a bound of scores, the upper triangle of the expected information |
| robust (r,), inverse | the upper triangles of four sums of squares, and three numbers |
| alone | the site's own estimate, its information, N_k and Pearson's sum |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedconvex.analysis import covariances
from fedconvex.analysis.likelihood import LikelihoodProblem
from fedconvex.federation import Federation
from fedconvex.problems import Measure
from fedconvex.remote.kinds import FLOATS, Kind
from fedconvex.remote.messages import Refused

Arrays = Mapping[str, np.ndarray]
FRAME = ("shift", "map", "own")
WHAT = ("center", "facts", "gram", "w", "rounding", "end", "robust", "alone", "inverse")  # the first that is there
LEAST = 5.0  # rows that make up an answer
_FEW = "its answer would be made of fewer than five rows"
_MEAT = ("hc0", "hc2", "hc3", "cr")


def kind_of_question(asked: Arrays) -> str:
    """Return what a question asks.

    Raises
    ------
    Refused
        If it is none.
    """
    found = next((name for name in WHAT if name in asked), "")
    beside = {"robust": {"inverse", *FRAME}, "center": {"unit"}}
    wanted = {found} | beside.get(found, {*FRAME})
    if not found or asked.keys() != wanted:
        raise Refused("it is no question of an analysis")
    return found


def shapes(problem: Any, asked: Arrays) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an answer."""
    what = kind_of_question(asked)
    if what == "center":
        return {"sum": (1, problem.federation.d), "square": (1, problem.federation.d)}
    r, m = asked["map"].shape[2], len(asked[what])
    t = r * (r + 1) // 2
    one: dict[str, tuple[int, ...]] = {
        "facts": {"facts": (6,)},
        "gram": {"gram": (t,)},
        "w": {"N": (), "slope": (r,), "bend": (t,), "lost": ()},
        "inverse": {"reach": ()},
        "rounding": {"values": (), "slopes": (r,)},
        "end": {"pearson": (), "size": (), "information": (t,)},
        "robust": dict.fromkeys(_MEAT, (t,)) | {"three": (3,)},
        "alone": {"b": (r,), "information": (t,), "three": (3,)},
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
    what = kind_of_question(asked)
    _check(problem, what, asked)
    with np.errstate(all="ignore"):
        if what == "center":
            X = (problem.own_rows(k)[0] - asked["center"][0]) / asked["unit"][0]
            return {"sum": X.sum(axis=0)[None], "square": (X * X).sum(axis=0)[None]}
        rows = _rows(problem, k, asked)
        found = [_ANSWERS[what](rows, asked, i) for i in range(len(asked[what]))]
    form = shapes(problem, asked)
    out = {name: np.reshape([np.asarray(one[name], dtype=float) for one in found], form[name]) for name in form}
    if any(not np.isfinite(a).all() for a in out.values()) and what != "w":
        raise Refused("its numbers are not finite there")
    return out


def _check(problem: Any, what: str, asked: Arrays) -> None:
    """Raise `Refused` unless the arrays of a question fit together, and are finite."""
    p, m = problem.federation.d, len(asked[what])
    r = asked["map"].shape[2] if what != "center" and asked["map"].ndim == 3 else 0
    wanted = {
        **dict.fromkeys(("center", "unit", "shift"), (m, p)), **dict.fromkeys(("facts", "gram", "alone", "own"), (m,)),
        **dict.fromkeys(("w", "rounding", "end", "robust"), (m, r)), "map": (m, p, r), "inverse": (m, r, r),
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
    if what != "center" and (r < 1 or r > p or any((asked[name] != asked[name][:1]).any() for name in FRAME)):
        raise Refused("it is about other columns in every model")


def _rows(problem: Any, k: int, asked: Arrays) -> LikelihoodProblem:
    """Return the likelihood of the site's rows in the columns that a question is about; the last one is kept."""
    key = b"".join(asked[name][0].tobytes() for name in FRAME)
    if getattr(problem, "_rows_at", (None,))[0] != key:
        X, y, s, o = problem.own_rows(k)
        X = np.ascontiguousarray((X - asked["shift"][0]) @ asked["map"][0])
        fed = Federation.from_arrays(X, y, np.zeros(len(y), dtype=np.int64), sample_weight=s, offset=o)
        own = bool(asked["own"][0])
        problem._rows_at = key, LikelihoodProblem(fed, problem.family, site_intercepts=own)
    return problem._rows_at[1]  # type: ignore[no-any-return]


def _facts(rows: LikelihoodProblem, asked: Arrays, i: int) -> dict[str, Any]:
    _, y, s, o = rows.own_rows(0)
    sums = rows.constants, s.sum(), s @ y, s @ y**2, s @ np.exp(o), float(rows.silent[0])
    return {"facts": np.array(sums)}


def _sums(rows: LikelihoodProblem, asked: Arrays, i: int) -> dict[str, Any]:
    N, g, H = rows.client_sums(0, asked["w"][i])
    at = rows.at(0, asked["w"][i])
    lost = not (np.isfinite(N) and np.isfinite(g).all() and np.isfinite(H).all())
    lost = lost or (not rows.silent[0] and _few(at.s * at.curvatures))
    if lost:  # masked numbers must be finite
        N, g, H = 0.0, np.zeros_like(g), np.zeros_like(H)
    return {"N": N, "slope": g, "bend": triangle(H), "lost": float(lost)}


def _end(rows: LikelihoodProblem, asked: Arrays, i: int) -> dict[str, Any]:
    b = asked["end"][i]
    at = rows.at(0, b)
    if not rows.silent[0] and _few(at.s * rows.family.expected_curvature(at.z)):
        raise Refused(_FEW)
    information = triangle(rows.client_information(0, b))
    return {"pearson": rows.pearson(b), "size": _upwards(rows.score_size(b)), "information": information}


def _upwards(v: float) -> float:
    return 2.0 ** np.ceil(np.log2(v)) if v > 0.0 else 0.0


def _few(weights: np.ndarray) -> bool:
    """Whether these are the weights of fewer rows than may make up an answer, in effective number."""
    total = float(weights.sum())
    return not total**2 >= LEAST * float(weights @ weights)


def _is_metric(A: np.ndarray) -> bool:
    size = float(np.abs(A).max())
    return bool(np.abs(A - A.T).max() <= 1e-9 * size and np.linalg.eigvalsh(A).min() >= -1e-9 * size)


def _robust(rows: LikelihoodProblem, asked: Arrays, i: int) -> dict[str, Any]:
    """Return sums of squares; a metric that is no inverse of a sum with this site's Hessian could point at one row."""
    A, b = asked["inverse"][i], asked["robust"][i]
    if np.linalg.eigvals(A @ rows.client_sums(0, b)[2]).real.max() > 1.0 + 1e-6:
        raise Refused("its metric is not the inverse of a Hessian that this site's is a part of")
    at = rows.at(0, b)
    X, own = covariances.centred(at.X, at.curvatures, at.s) if rows.site_intercepts else (at.X, 0.0)
    rest = np.maximum(1.0 - covariances.leverages(X, at.curvatures, A, own), covariances.CERTAIN)
    if not rows.silent[0] and (_few(at.s * at.slopes**2) or _few(at.s * (at.slopes / rest) ** 2)):
        raise Refused(_FEW)
    total = rows.meat(asked["robust"][i], asked["inverse"][i])
    sums = {name: triangle(getattr(total, name)) for name in _MEAT}
    return sums | {"three": np.array([total.clients, total.leverage, total.certain])}


def meat_of(answers: Mapping[str, np.ndarray], r: int) -> covariances.Meat:
    """Return the sums of squares of an answer."""
    squares: list[Any] = [symmetric(answers[name][0], r) for name in _MEAT]
    return covariances.Meat(*squares, *map(float, answers["three"][0]))


def _alone(rows: LikelihoodProblem, asked: Arrays, i: int) -> dict[str, Any]:
    one = rows.alone()[0]
    if one is None:
        r = rows.size
        return {"b": np.zeros(r), "information": np.zeros(r * (r + 1) // 2), "three": np.zeros(3)}
    return {"b": one.b, "information": triangle(one.information), "three": np.array([1.0, one.N, one.pearson])}


_ANSWERS = {
    "facts": _facts,
    "gram": lambda rows, asked, i: {"gram": triangle(rows.gram())},
    "w": _sums,
    "inverse": lambda rows, asked, i: {"reach": _upwards(rows.client_reach(0, asked["inverse"][i]) ** 2)},
    "rounding": lambda rows, asked, i: {
        "values": rows.value_rounding(asked["rounding"][i]), "slopes": rows.gradient_rounding(asked["rounding"][i]),
    },
    "end": _end,
    "robust": _robust,
    "alone": _alone,
}  # fmt: skip


def _models(problem: Any, asked: Arrays) -> np.ndarray | None:
    """Return the models whose scores a question tells, for the audit: coefficients, constant, whether own intercept."""
    what = kind_of_question(asked)
    if what not in ("w", "end", "robust", "rounding"):
        return None
    _check(problem, what, asked)
    B = asked[what] @ asked["map"][0].T
    return np.column_stack([B, -B @ asked["shift"][0], np.full(len(B), asked["own"][0])])


def _slopes(problem: Any, model: np.ndarray) -> np.ndarray:
    """Return the slopes (n, 1) of the site's rows at such a model."""
    X, y, s, o = problem.own_rows(problem.federation.number)
    fed = Federation.from_arrays(X, y, np.zeros(len(y), dtype=np.int64), sample_weight=s, offset=o + model[-2])
    rows = LikelihoodProblem(fed, problem.family, site_intercepts=bool(model[-1]))
    return rows.at(0, model[:-2]).slopes[:, None]


def _measured(problem: Any, asked: Arrays) -> int:
    return len(asked[kind_of_question(asked)])


def _measure(roster: Any, w: np.ndarray) -> Measure | None:
    """Return nothing: an analysis has its own certificate."""
    return None


KIND = Kind(
    report, shapes, _measure, lambda method, problem: [], plain=True, measured=_measured, models=_models, slopes=_slopes
)
