"""What a site of a study's `compare` makes of its own rows: sums at the coordinator's models, and models of its own.

With n rows in all and a_k = n_k/n, the kinds of models are the minimisers of

    pooled            sum_k a_k f_k(w) + (l2/2)‖w‖^2, the intercept left out of ‖w‖ where both classes are there
    afl               max_k f_k(w) + (l2/2)‖w‖^2, as above
    mean-regularised  sum_k a_k f_k(w_k) + (l2/2) (‖w_0‖^2 + sum_k ‖w_k - w_0‖^2)
    mocha             sum_k a_k f_k(w_k) + (l2/(2 K)) ‖W‖_*^2, as `comparing_tied` has it

over rows that are standardised by the means and deviations of all sites' rows. Given w_0, every site finds its
own w_k, which never leaves it: what is added up are the least values e_k with their derivatives in w_0,

    e_k'/l2 = w_0 - w_k,    e_k''/l2 = I - l2 (a_k f_k''(w_k) + l2 I)^-1.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from fedconvex.analysis.site_answers import symmetric, triangle
from fedconvex.comparison.designs import Scaling
from fedconvex.federation import Federation
from fedconvex.federation_input import sealed
from fedconvex.kernels.row_losses import row_slopes
from fedconvex.methods.parts import newton_steps
from fedconvex.problems import Problem
from fedconvex.problems.protocol import COEFFICIENTS, ClientWeights, client_weights
from fedconvex.remote.ledger import curvatures_at, is_made_of_few
from fedconvex.study.comparing_plan import ComparePlan, Parted

BLOCK = 1024  # rows that are standardised at once
_STEPS, _FINE = 200, 1e-14  # of a site's own search: steps at most, and the squared decrement, relative, to stop at
TOO_FAR = 2.0**-20  # the mark of answers that are too large to be summed; of those made of few rows it is 1
Arrays = Mapping[str, np.ndarray]


class ComparedSite(ClientWeights):
    """A site's rows, in the sets that are fitted to and held out.

    Parameters
    ----------
    federation : Federation
        Placed among the others, whose sizes are known.
    plan : ComparePlan
    """

    over_sites = "study.comparing_answers"
    learns = COEFFICIENTS
    l2, penalty, free = 0.0, None, None
    shared = ("plan",)

    def __init__(self, federation: Any, plan: ComparePlan) -> None:
        self.federation, self.plan, self.loss, self.fingerprint = federation, plan, plan.loss, plan.fingerprint
        self.weights = client_weights("ComparedSite", None, federation)
        own = federation.K * (plan.size + 2) * ("afl" in plan.kinds)  # in the places of sites
        own += plan.t * ("mocha" in plan.kinds)
        self.model_shape = (plan.t + 2 * plan.size + federation.K + 8 + own,)  # room for all that is sent with one

    @property
    def number(self) -> int:
        """The site's place among clients."""
        return int(getattr(self.federation, "number", 0))

    @property
    def tells(self) -> bool:
        """Whether the site tells its own row of the table."""
        return bool(getattr(self.federation, "tells", True))

    @cached_property
    def counts(self) -> Any:
        """Numbers of rows that all sites fit to and hold out."""
        return self.plan.counted(self.federation.ids, self.federation.sizes)

    @cached_property
    def rows(self) -> Any:
        """The site's rows, as those of the only client."""
        return self.plan.rows(self.federation.ids[self.number], self.federation.X, self.federation.y)

    @cached_property
    def parted(self) -> Parted:
        """Which of them are fitted to and held out."""
        return self.plan.parted(self.rows)

    def share(self, s: int) -> float:
        """Return which share of all sites' rows of a set are this site's."""
        train = self.counts.train[:, s]
        return float(train[self.number] / train.sum())

    def standardised(self, asked: Arrays, s: int, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return rows as models of a set have them, with a last column of ones, and their labels."""
        scaling, X = scaling_of(asked, s), np.ones((at.size, self.plan.p))
        for i in range(0, at.size, BLOCK):
            X[i : i + BLOCK, :-1] = (self.federation.X[at[i : i + BLOCK]] - scaling.center) / scaling.scale
        return X, (self.federation.y[at] - scaling.shift) / scaling.unit

    def part(self, asked: Arrays, s: int) -> Problem:
        """Return f_k of a set."""
        X, y = self.standardised(asked, s, self.parted.train[s])
        return Problem(Federation(sealed(X), y, np.array([0, y.size])), self.loss, l2=0.0)  # rows are not copied again


def scores_at(X: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the scores of standardised rows at a flat model, (n,), or (n, C) of several classes."""
    Z = np.asarray(X @ w.reshape(-1, X.shape[1]).T)
    return Z[:, 0] if Z.shape[1] == 1 else Z


def scaling_of(asked: Arrays, s: int) -> Scaling:
    """Return how rows of a set are standardised."""
    return Scaling(asked["shift"][s], asked["scale"][s], *asked["target"][s].tolist())


def _at(part: Problem, w: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Return value, gradient and Hessian of f_k."""
    with np.errstate(over="ignore", invalid="ignore"):
        f, g, H = part.value_gradient_hessian(w)
    return float(f), np.asarray(g), np.asarray(H)


def _told_of_few(part: Problem, w: np.ndarray) -> bool:
    """Whether a Hessian would be made of too few of the site's rows: far out it is theirs."""
    scores = np.ascontiguousarray(part.federation.X @ w.reshape(-1, part.federation.d).T)
    slopes = scores.copy()
    row_slopes(part.row_loss, slopes, part.row_labels)
    return is_made_of_few(curvatures_at(part, scores, slopes))


def _near(part: Problem, share: float, l2: np.ndarray, w0: np.ndarray) -> np.ndarray:
    """Return the minimisers w (m, p) of share f_k(w) + (l2/2)‖w - w_0‖^2, one for each l2 (m,) and mean w_0 (m, p)."""

    def answer(i: int, w: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        f, g, H = _at(part, w)
        off = w - w0[i]
        value = share * f + 0.5 * l2[i] * float(off @ off)
        return value, share * g + l2[i] * off, share * H + l2[i] * np.eye(len(off))

    return _least(w0, answer)


def _tied(part: Problem, share: float, c: np.ndarray, D: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return w = E u (m, p), and u, the minimisers of share f_k(E u) + (c/2)‖u‖^2, for c (m,) and D = E E' (m, t)."""
    roots = np.array([_root_of(one, part.size) for one in D])

    def answer(i: int, u: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        E = roots[i]
        f, g, H = _at(part, E @ u)
        value = share * f + 0.5 * c[i] * float(u @ u)
        return value, share * (E.T @ g) + c[i] * u, share * (E.T @ H @ E) + c[i] * np.eye(len(u))

    U = _least(np.zeros(roots.shape[:2]), answer)
    return np.einsum("mpq,mq->mp", roots, U), U


def _root_of(D: np.ndarray, p: int) -> np.ndarray:
    """Return E (p, p) with E E' = D, from a triangle."""
    values, V = np.linalg.eigh(symmetric(D, p))
    return np.asarray(V * np.sqrt(np.maximum(values, 0.0)))


def _least(start: np.ndarray, answer: Any) -> np.ndarray:
    """Return minimisers (m, p) from a start (m, p); ``answer`` gives value, gradient and Hessian of each at a point."""
    search, m = newton_steps.start(start), len(start)
    for _ in range(_STEPS):
        live = np.flatnonzero(~search.settled)
        if not live.size:
            break
        value, slope, bend = (np.full((m,) + (start.shape[1],) * i, np.nan) for i in range(3))
        for i in live.tolist():
            value[i], slope[i], bend[i] = answer(i, search.trial[i])
        search = newton_steps.absorb(search, value, slope, bend)
        search.settled[search.decrement <= _FINE * (1.0 + np.abs(search.value))] = True
    return np.where(np.isfinite(search.value)[:, None], search.trial, np.nan)


def models_of(problem: ComparedSite, kind: str, s: int, l2: np.ndarray, told: np.ndarray, asked: Arrays) -> np.ndarray:
    """Return the models (m, p) by which a kind predicts at this site, from what the coordinator tells of it."""
    if kind in ("pooled", "afl"):
        return told
    if kind == "mocha":
        return _tied(problem.part(asked, s), problem.share(s), l2 / problem.federation.K, told)[0]
    return _near(problem.part(asked, s), problem.share(s), l2, told)


def sums_at(problem: ComparedSite, kind: str, s: int, asked: Arrays, at: np.ndarray) -> dict[str, np.ndarray]:
    """Return what the site adds to sums at some of the models that are asked about, all of one set."""
    part, W = problem.part(asked, s), asked[kind][at]
    if kind == "afl":
        return _fair(part, W, asked["weights"][at], problem.number)
    if kind == "mocha":
        K = problem.federation.K
        return _through(part, problem.share(s), asked["l2"][at] / K, W, problem.plan.largest / K)
    of = {"pooled": _pooled, "mean-regularised": _near_mean}[kind]
    return of(part, problem.share(s), asked["l2"][at], W)


def _pooled(part: Problem, share: float, l2: np.ndarray, W: np.ndarray) -> dict[str, np.ndarray]:
    found = [_at(part, w) for w in W]
    return _unless_few(
        part, W, [share * f for f, _, _ in found], [share * g for _, g, _ in found],
        [share * triangle(H) for _, _, H in found],
    )  # fmt: skip


def _fair(part: Problem, W: np.ndarray, weights: np.ndarray, k: int) -> dict[str, np.ndarray]:
    """Return value and gradient of f_k in the place of site k, and its part of the Hessian under domain weights."""
    values, slopes, bends = zip(*(_at(part, w) for w in W), strict=True)
    told = _unless_few(part, W, values, slopes, [triangle(H) for H in bends])
    out = {f"site_{name}": in_place(told[name], k, weights.shape[1]) for name in ("loss", "slope")}
    return {**out, "bend": weights[:, k, None] * told["bend"], "lost": told["lost"]}


def in_place(a: np.ndarray, k: int, K: int) -> np.ndarray:
    """Return what site k tells (m, ...) in its place among K, (m, K, ...): sums over sites keep all apart."""
    out = np.zeros((len(a), K, *a.shape[1:]))
    out[:, k] = a
    return out


def _unless_few(part: Problem, W: np.ndarray, loss: Any, slope: Any, bend: Any) -> dict[str, np.ndarray]:
    """Return values with derivatives; zeros, and a mark, where few rows make up the Hessian, or it overflows."""
    each = zip(W, loss, slope, bend, strict=True)
    lost = np.array([not np.isfinite(np.hstack([f, g, H])).all() or _told_of_few(part, w) for w, f, g, H in each])
    found = {"loss": np.array(loss), "slope": np.array(slope), "bend": np.array(bend)}
    told = {name: np.where(lost.reshape(-1, *[1] * (a.ndim - 1)), 0.0, a) for name, a in found.items()}
    return told | {"lost": lost.astype(float)}


def _near_mean(part: Problem, share: float, l2: np.ndarray, w0: np.ndarray) -> dict[str, np.ndarray]:
    W = _near(part, share, l2, w0)
    value, bend = np.empty(len(W)), []
    for i, w in enumerate(W):
        f, _, H = _at(part, w)
        value[i] = share * f + 0.5 * l2[i] * float((w - w0[i]) @ (w - w0[i]))
        values, V = np.linalg.eigh(share / l2[i] * np.nan_to_num(H))
        values = np.maximum(values, 0.0)
        bend.append(triangle((V * (values / (1.0 + values))) @ V.T))
    return _unless_few(part, W, value, w0 - W, bend)


def _through(part: Problem, share: float, c: np.ndarray, D: np.ndarray, most: float) -> dict[str, np.ndarray]:
    """Return the least values given covariances of features, and gamma gamma' with gamma = share f_k'(w)/c.

    Where products are above ``most``, D lacks a direction that the site needs: zeros, and a small mark, are told.
    """
    W, U = _tied(part, share, c, D)
    value, slope, bend = np.empty(len(W)), np.empty(W.shape), []
    for i, w in enumerate(W):
        f, g, _ = _at(part, w)
        slope[i] = share * g / c[i]
        value[i] = share * f + 0.5 * c[i] * float(U[i] @ U[i])
        bend.append(triangle(np.outer(slope[i], slope[i])))
    told = _unless_few(part, W, value, slope, bend)
    far = np.abs(slope).max(axis=1, initial=0.0) ** 2 > most
    told["bend"][far] = 0.0
    told["lost"] = np.maximum(told["lost"], TOO_FAR * far)
    return {name: told[name] for name in ("loss", "bend", "lost")}
