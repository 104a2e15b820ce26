"""AFL over sites: the least largest objective of a site, of many models side by side, from sums that sites answer.

    min over w of max over k of F_k(w),    F_k(w) = f_k(w) + (l2/2)‖w‖^2

Agnostic federated learning (Mohri, Sivek, Suresh, "Agnostic federated learning", ICML 2019) by the sequential quadratic
programming of `fedconvex.solvers.minimax.agnostic`, whose pair (w, lambda) every site is told. It answers value and
gradient of its own f_k, which stand alone, and its part of the Hessian of sum_k lambda_k f_k. With values F, gradients
J (K, p) and this Hessian H the next pair is

    lambda = argmax over the simplex of lambda'F - ‖J'lambda‖^2_{H^-1}/2,    s = -H^-1 J'lambda,

and the answer at w + s decides whether max_k F_k has fallen; where curvature keeps it from falling as far as it should
(Maratos), lambda is solved for again with the values found there, and then the step is halved.

Certificate: max_k F_k(w) is above the least one, and the minimum of L = sum_k lambda_k F_k below it, which strong
convexity bounds: with gradient g of L at w, L(v) >= L(w) + g'(v - w) + (l2/2)‖v - w‖^2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex._check import bad
from fedconvex.analysis.site_answers import symmetric
from fedconvex.simplex.uncertainty import Simplex

MOST = 100  # exchanges of one search
LOST = 6  # answers without a Hessian after which a model is given up
INTERCEPTS = 100.0  # how far from a model's the free intercepts are among which its gap is certified
_ACCURACY = 1e-13  # what the quadratic model sees to gain, relative to 1 + |F|, at which the last step is not measured
_STILL, _CLOSE = 1e-6, 3  # change of weights before the last step; how often it is waited for
_CORRECTIONS, _SHORTEST = 3, 1e-10
_EPS = float(np.finfo(float).eps)


class FairStep:
    """One search: a model and weights that are to be asked about, ``trial`` (p,) and ``weights`` (K,).

    Parameters
    ----------
    p, K : int
        Parameters, and sites.
    rounding : float
        How far values may be off beside what doubles round.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.study.comparing_fair import FairStep
    >>> search = FairStep(1, 2, 0.0)  # of w^2/2 and (w - 2)^2/2 + 1
    >>> while not search.settled:
    ...     w = search.trial[0]
    ...     search.absorb(np.array([w * w, (w - 2) ** 2 + 2]) / 2, np.array([[w], [w - 2]]), np.eye(1))
    >>> search.trial, search.weights
    (array([1.5]), array([0.25, 0.75]))
    """

    def __init__(self, p: int, K: int, rounding: float) -> None:
        self.trial, self.weights, self.settled = np.zeros(p), np.full(K, 1.0 / K), False
        self.rounding, self.top = rounding, np.inf
        self.fraction, self.corrections, self.close = 1.0, 0, 0

    def absorb(self, F: np.ndarray, J: np.ndarray, H: np.ndarray) -> None:
        """Take the answer at the trial: values (K,), infinite where there are none, gradients (K, p) and Hessian."""
        finite = bool(np.isfinite(F).all())
        if not np.isfinite(self.top):
            self.settled = not finite  # at zero, where all begin
            return self._accept(F, J, H) if finite else None
        slack = self.noise if self.predicted <= 1e3 * self.noise else -1e-4 * self.fraction * self.predicted
        if finite and F.max() <= self.top + slack:
            return self._accept(F, J, H)
        if self.predicted <= self.noise:
            self.settled = True
        elif finite and self.fraction == 1.0 and self.corrections < _CORRECTIONS:
            self.corrections += 1
            moved = self.trial - self.w
            self.trial = self.w + self._model(F - self.J @ moved)[1]  # second-order correction
        else:
            self.fraction *= 0.5
            self.trial = self.w + self.fraction * self.step
            self.settled = self.fraction < _SHORTEST
        return None

    def _accept(self, F: np.ndarray, J: np.ndarray, H: np.ndarray) -> None:
        self.w, self.top, self.J = self.trial, float(F.max()), J
        values, V = np.linalg.eigh(H)
        self.root = V / np.sqrt(np.maximum(values, 10.0 * len(H) * _EPS * max(float(values[-1]), 1e-300)))
        self.noise = 4e-15 * (1.0 + abs(self.top)) + 4.0 * self.rounding
        before, (self.weights, self.step, self.predicted) = self.weights, self._model(F)
        self.trial, self.fraction, self.corrections = self.w + self.step, 1.0, 0
        if not self.predicted > max(_ACCURACY * (1.0 + abs(self.top)), self.noise):
            self.close += 1  # H was that of the weights before: the last step is as good as these
            moved = float(np.abs(self.weights - before).max())
            self.settled = moved <= _STILL or self.close > _CLOSE or bool((self.trial == self.w).all())

    def _model(self, F: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Return the weights, the step, and how far the quadratic model's saddle value lies below max_k F_k."""
        Z, below = self.J @ self.root, F.max() - F
        weights = Simplex().minimise(Z, below)
        half = weights @ Z
        return weights, -self.root @ half, float(weights @ below + 0.5 * half @ half)


class FairQuestions:
    """What is asked of sites about models of AFL.

    Parameters
    ----------
    search : `fedconvex.study.comparing_coordinator.Search`
        Whom to ask, and how rows are standardised.
    part, l2 : array (M,)
        Set of rows, and l2, of every model.
    """

    def __init__(self, search: Any, part: np.ndarray, l2: np.ndarray) -> None:
        self.search, self.part, self.l2 = search, part, l2
        self.K, self.p = len(search.names), search.plan.size
        self.ridge = search.ridge(part, l2)
        self.rounding = float(search.asking.rounding)

    def __call__(self, at: np.ndarray, W: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return values (m, K), gradients (m, K, p) and Hessians (m, p, p) of some models, and which are lost."""
        told = {"afl": W, "weights": weights, "part": self.part[at].astype(float), "l2": self.l2[at]}
        found = self.search.total("afl", told | self.search.frame)
        ridge, lost = self.ridge[at], found["lost"] > 0.5
        F = found["site_loss"] + 0.5 * np.sum(ridge * W * W, axis=1)[:, None]
        F[lost] = np.inf
        H = np.array([symmetric(t, self.p) + np.diag(r) for t, r in zip(found["bend"], ridge, strict=True)])
        J = found["site_slope"] + (ridge * W)[:, None, :]
        self.search.anchored(self.part[at], J, H)
        return F, J, H, lost

    def models(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the models (M, p) and their weights (M, K); NaN near which few rows of a site make up its Hessian."""
        each = [FairStep(self.p, self.K, self.rounding) for _ in self.l2]
        losses = np.zeros(len(each))
        for _ in range(MOST):
            live = np.array([i for i, one in enumerate(each) if not one.settled], dtype=int)
            if not live.size:
                break
            W, weights = (np.array([getattr(each[i], name) for i in live]) for name in ("trial", "weights"))
            *answers, lost = self(live, W, weights)
            losses[live] += lost
            for i, F, J, H in zip(live, *answers, strict=True):
                each[i].absorb(F, J, H)
                each[i].settled |= bool(losses[i] > LOST)
        else:
            raise bad("compare over sites: afl", f"be found in {MOST} exchanges", f"{live.size} models still move")
        known = np.array([np.isfinite(one.top) for one in each]) & (losses <= LOST)
        W = np.array([one.trial for one in each])
        return np.where(known[:, None], W, np.nan), np.array([one.weights for one in each])

    def gaps(self, W: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return by how much max_k F_k at models may be above its least value, (M,): certified by one more exchange.

        The least value is that of all models whose intercept, where it is free of l2, is within `INTERCEPTS` of theirs.
        """
        F, J, _, _ = self(np.arange(len(W)), W, weights)
        g = np.einsum("mk,mkp->mp", weights, J)
        g = np.abs(g) + self.rounding
        free = self.ridge == 0.0
        below = np.sum(np.where(free, INTERCEPTS * g, g * g / (2.0 * np.where(free, 1.0, self.ridge))), axis=1)
        lagrangian = np.einsum("mk,mk->m", weights, F)
        off = 2.0 * (self.rounding + 1e-15 * (1.0 + np.abs(F).max(axis=1)))
        return np.asarray(F.max(axis=1) - lagrangian + below + off)
