"""What a site of a study's `compare` makes of its own rows: sums at the coordinator's models, and models of its own.

With n rows in all and a_k = n_k/n, the kinds of models are the minimisers of

    pooled            sum_k a_k f_k(w) + (l2/2)‖w‖^2, the intercept left out of ‖w‖ where both classes are there
    afl               max_k f_k(w) + (l2/2)‖w‖^2, likewise
    mean-regularised  sum_k a_k f_k(w_k) + (l2/2) (‖w_0‖^2 + sum_k ‖w_k - w_0‖^2)
    mocha             sum_k a_k f_k(w_k) + (l2/(2 K)) sum_k w_k'D^-1 w_k, tr D = 1

over rows that are standardised by the means and deviations of all sites' rows. Given w_0, or D, every site finds its
own w_k, which never leaves it: what is added up are the least values e_k with their derivatives in w_0,

    e_k'/l2 = w_0 - w_k,    e_k''/l2 = I - l2 (a_k f_k''(w_k) + l2 I)^-1,

or w_k w_k', of which the best D for these models is made (Argyriou, Evgeniou, Pontil, "Convex multi-task feature
learning", Machine Learning 73 (2008), 243-272).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from fedconvex.analysis.site_answers import symmetric, triangle
from fedconvex.analysis.site_problems import LEAST
from fedconvex.comparison.designs import Scaling
from fedconvex.federation import Federation
from fedconvex.methods.parts import newton_steps
from fedconvex.problems import Problem
from fedconvex.problems.protocol import COEFFICIENTS, ClientWeights, client_weights
from fedconvex.remote.ledger import curvatures_at, effective_rows
from fedconvex.study.comparing_plan import ComparePlan, Parted

_STEPS, _FINE = 200, 1e-14  # of a site's own search: steps at most, and the squared decrement, relative, to stop at
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
        self.model_shape = (plan.t + 2 * plan.p + federation.K + 8,)  # room for all that is sent with one

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
        shift, unit = asked["target"][s]
        X = scaling_of(asked, s).of_rows(self.federation.X[at])
        return X, (self.federation.y[at] - shift) / unit

    def part(self, asked: Arrays, s: int) -> Problem:
        """Return f_k of a set."""
        X, y = self.standardised(asked, s, self.parted.train[s])
        return Problem(Federation.from_clients([(X, y)]), self.loss, l2=0.0)


def scaling_of(asked: Arrays, s: int) -> Scaling:
    """Return how rows of a set are standardised."""
    return Scaling(asked["shift"][s], asked["scale"][s], *asked["target"][s].tolist())


def root_of(t: np.ndarray, p: int) -> np.ndarray:
    """Return the root of a symmetric matrix (p, p) of this upper triangle; what is negative in it counts as zero."""
    values, V = np.linalg.eigh(symmetric(t, p))
    return np.asarray((V * np.sqrt(np.maximum(values, 0.0))) @ V.T)


def own_models(part: Problem, share: float, weight: np.ndarray, roots: np.ndarray, around: np.ndarray) -> Any:
    """Return the minimisers v of share f_k(R v) + (weight/2)‖v - around‖^2, one for each of m models.

    Parameters
    ----------
    part : Problem
        f_k.
    share : float
    weight : array (m,)
    roots : array (m, p, p)
        R.
    around : array (m, p)
    """
    search, m = newton_steps.start(around), len(around)
    for _ in range(_STEPS):
        live = np.flatnonzero(~search.settled)
        if not live.size:
            break
        value, slope, bend = (np.full((m,) + (around.shape[1],) * i, np.nan) for i in range(3))
        for i in live.tolist():
            R, v = roots[i], search.trial[i]
            f, g, H = _at(part, R @ v)
            off = v - around[i]
            value[i] = share * f + 0.5 * weight[i] * float(off @ off)
            slope[i] = share * (R @ g) + weight[i] * off
            bend[i] = share * (R @ H @ R) + weight[i] * np.eye(len(v))
        search = newton_steps.absorb(search, value, slope, bend)
        search.settled[search.decrement <= _FINE * (1.0 + np.abs(search.value))] = True
    return np.where(np.isfinite(search.value)[:, None], search.trial, np.nan)


def _at(part: Problem, w: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Return value, gradient and Hessian of f_k."""
    with np.errstate(over="ignore", invalid="ignore"):
        f, g, H = part.value_gradient_hessian(w)
    return float(f), np.asarray(g), np.asarray(H)


def is_made_of_few(part: Problem, w: np.ndarray) -> bool:
    """Whether a Hessian would be made of fewer than five rows, or half of the site's: far out it is theirs."""
    scores = np.asarray(part.federation.X @ w)[:, None]
    rows = effective_rows(curvatures_at(part, scores, scores))
    return not rows >= min(LEAST, 0.5 * part.federation.n)


def _tied(part: Problem, share: float, l2: np.ndarray, D: np.ndarray, K: int) -> np.ndarray:
    """Return the site's models (m, p) under relations D (m, t)."""
    p = part.federation.d
    R = np.array([root_of(t, p) for t in D])
    v = own_models(part, share, l2 / K, R, np.zeros((len(D), p)))
    return np.einsum("mij,mj->mi", R, v)


def _near(part: Problem, share: float, l2: np.ndarray, w0: np.ndarray) -> np.ndarray:
    """Return the site's models (m, p) near means w0 (m, p)."""
    m, p = w0.shape
    return np.asarray(own_models(part, share, l2, np.broadcast_to(np.eye(p), (m, p, p)), w0))


def models_of(problem: ComparedSite, kind: str, s: int, l2: np.ndarray, told: np.ndarray, asked: Arrays) -> np.ndarray:
    """Return the models (m, p) by which a kind predicts at this site, from what the coordinator tells of it."""
    if kind in ("pooled", "afl"):
        return told
    part, share = problem.part(asked, s), problem.share(s)
    if kind == "mocha":
        return _tied(part, share, l2, told, problem.federation.K)
    return _near(part, share, l2, told)


def sums_at(problem: ComparedSite, kind: str, s: int, asked: Arrays, at: np.ndarray) -> dict[str, np.ndarray]:
    """Return what the site adds to sums at some of the models that are asked about, all of one set."""
    part, share, l2, told = problem.part(asked, s), problem.share(s), asked["l2"][at], asked[kind][at]
    return _SUMS[kind](problem, part, share, l2, told, asked, at)


def _pooled(problem: Any, part: Problem, share: float, l2: Any, W: np.ndarray, asked: Arrays, at: Any) -> Any:
    found = [_at(part, w) for w in W]
    return _unless_few(
        part, W, [share * f for f, _, _ in found], [share * g for _, g, _ in found],
        [share * triangle(H) for _, _, H in found],
    )  # fmt: skip


def _unless_few(part: Problem, W: np.ndarray, loss: Any, slope: Any, bend: Any) -> dict[str, np.ndarray]:
    """Return values with derivatives; zeros, and a mark, where few rows make up the Hessian, or it overflows."""
    each = zip(W, loss, slope, bend, strict=True)
    lost = np.array([not np.isfinite(np.hstack([f, g, H])).all() or is_made_of_few(part, w) for w, f, g, H in each])
    found = {"loss": np.array(loss), "slope": np.array(slope), "bend": np.array(bend)}
    told = {name: np.where(lost.reshape(-1, *[1] * (a.ndim - 1)), 0.0, a) for name, a in found.items()}
    return told | {"lost": lost.astype(float)}


def _afl(problem: Any, part: Problem, share: float, l2: Any, W: np.ndarray, asked: Arrays, at: Any) -> Any:
    found, k, K = [_at(part, w) for w in W], problem.number, problem.federation.K
    loss, slope = np.zeros((len(W), K)), np.zeros((len(W), K, W.shape[1]))
    loss[:, k], slope[:, k] = [f for f, _, _ in found], [g for _, g, _ in found]
    mix = asked["mix"][at, k]
    return {"loss": loss, "slope": slope, "bend": mix[:, None] * [triangle(H) for _, _, H in found]}


def _near_mean(problem: Any, part: Problem, share: float, l2: Any, w0: np.ndarray, asked: Arrays, at: Any) -> Any:
    W = _near(part, share, l2, w0)
    value, bend = np.empty(len(W)), []
    for i, w in enumerate(W):
        f, _, H = _at(part, w)
        value[i] = share * f + 0.5 * l2[i] * float((w - w0[i]) @ (w - w0[i]))
        values, V = np.linalg.eigh(share / l2[i] * np.nan_to_num(H))
        values = np.maximum(values, 0.0)
        bend.append(triangle((V * (values / (1.0 + values))) @ V.T))
    return _unless_few(part, W, value, w0 - W, bend)


def _mocha(problem: Any, part: Problem, share: float, l2: Any, D: np.ndarray, asked: Arrays, at: Any) -> Any:
    W = _tied(part, share, l2, D, problem.federation.K)
    value = np.array([share * _at(part, w)[0] for w in W])
    return {"loss": value, "outer": np.array([triangle(np.outer(w, w)) for w in W])}


_SUMS: dict[str, Callable[..., dict[str, np.ndarray]]] = {
    "pooled": _pooled, "afl": _afl, "mean-regularised": _near_mean, "mocha": _mocha,
}  # fmt: skip
