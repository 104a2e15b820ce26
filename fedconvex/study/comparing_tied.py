"""Models per site whose relations are learned, over sites: what MOCHA aims at, from sums over sites alone.

    min over W of sum_k a_k f_k(w_k) + (c/2) ‖W‖_*^2,    c = l2/K, rows of W: the models w_k of K sites

With the covariance Omega (K, K) of the tasks, ‖W‖_*^2 = min tr(W' Omega^-1 W) over Omega of trace one (Zhang, Yeung,
UAI 2010; Smith et al., NIPS 2017), a server would have to see every w_k. The nuclear norm is that of W' too, so that it
is also the least of sum_k w_k' D^-1 w_k over covariances D (p, p) of the *features*, of trace one (Argyriou, Evgeniou,
Pontil, "Convex multi-task feature learning", Machine Learning 73 (2008), Theorem 1 and section 3). Given D the sites
are apart:

    phi(D) = sum_k min over u of a_k f_k(E u) + (c/2) ‖u‖^2,    D = E E',  w_k = E u

is convex in D with the gradient -(c/2) Gamma, Gamma = sum_k gamma_k gamma_k', gamma_k = a_k f_k'(w_k)/c (derived: by
duality phi is a maximum over v of functions -(1/(2 c)) v'D v + const that are linear in D). So a site tells the least
value, and gamma_k gamma_k': sums hide both, and w_k = -D gamma_k stays where it is.

The coordinator minimises phi(E E') over ‖E‖_F = 1 by BFGS with limited memory (Nocedal, Wright, "Numerical
Optimization", algorithm 7.4) on the sphere, one question for all models side by side; the first step is that of
alternating minimisation, D = (W'W)^{1/2}/trace. Certificate: the images c gamma_k are dual variables, and by Fenchel's
equality of the losses the duality gap of W is

    c (-tr(D Gamma) + ‖W‖_*^2/2 + lambda_max(Gamma)/2),    ‖W‖_* = tr (D Gamma D)^{1/2}.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from fedconvex.analysis.site_answers import symmetric, triangle
from fedconvex.study.comparing_site import TOO_FAR

MOST = 150  # exchanges of one search
LOST = 6  # answers of few rows after which a model is given up
ENOUGH = 1e-5  # gap, relative to 1 + |F|, above which a model is given up: the pooled command certifies as much
_ACCURACY = 1e-8  # gap, relative to 1 + |F|, to stop at
_MEMORY, _PATIENCE, _SHORTEST = 100, 20, 1e-6


class TieSearch:
    """One search for the least phi(E E') over ‖E‖_F = 1; ``trial`` (p, p) is the E that is to be asked about.

    Parameters
    ----------
    p : int
        Parameters of a model.
    c : float
        The weight l2/K.
    rounding : float
        How far values may be off beside what doubles round.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.study.comparing_tied import TieSearch
    >>> search = TieSearch(2, 0.5, 0.0)  # of ‖w_1 - (2, 0)‖^2/2 and ‖w_2 - (0, 1)‖^2/2: W is diagonal
    >>> while not search.settled:
    ...     D = search.trial @ search.trial.T
    ...     gamma = [-np.linalg.solve(D + np.eye(2) / 2, b) for b in np.diag([2.0, 1.0])]
    ...     values = [0.25 * g @ D @ g + g @ g / 8 for g in gamma]
    ...     search.absorb(sum(values), sum(np.outer(g, g) for g in gamma))
    >>> (np.diag(D) * [2.0, 1.0] / (np.diag(D) + 0.5)).round(4).tolist()  # singular values less (2 + 1) c/(1 + 2 c)
    [1.25, 0.25]
    """

    def __init__(self, p: int, c: float, rounding: float) -> None:
        self.c, self.rounding, self.settled = c, rounding, False
        self.trial = self.best = np.eye(p) / np.sqrt(p)
        self.E, self.gradient, self.step = self.trial, np.zeros((p, p)), np.zeros((p, p))
        self.value = self.gap = np.inf
        self.pairs: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=_MEMORY)
        self.fraction, self.idle = 1.0, 0

    def absorb(self, value: float, gamma: np.ndarray) -> None:
        """Take the answer at the trial: phi, infinite where there is none, and Gamma (p, p)."""
        if not np.isfinite(self.value):
            self.settled = not np.isfinite(value)  # where all begin
            if np.isfinite(value):
                self._accept(value, gamma)
            return None
        noise = 1e-14 * (1.0 + abs(self.value)) + 4.0 * self.rounding
        slope = self.fraction * float(np.sum(self.step * self.gradient))
        if np.isfinite(value) and value <= self.value + 1e-4 * slope + noise:
            return self._accept(value, gamma)
        self.fraction *= 0.3
        self.settled = self.fraction < _SHORTEST
        self._ask()
        return None

    def _accept(self, value: float, gamma: np.ndarray) -> None:
        E, gradient = self.trial, -self.c * (gamma @ self.trial)
        gradient = gradient - float(np.sum(gradient * E)) * E  # along the sphere
        if np.isfinite(self.value):
            moved, bent = E - self.E, gradient - self.gradient
            if float(np.sum(moved * bent)) > 1e-12 * float(np.linalg.norm(moved) * np.linalg.norm(bent)):
                self.pairs.append((moved, bent))
        self.E, self.gradient, self.value = E, gradient, value
        gap = gap_of(self.c, E @ E.T, gamma)
        self.idle = 0 if gap < 0.9 * self.gap else self.idle + 1
        if gap < self.gap:
            self.gap, self.best = gap, E
        self.settled = self.gap <= _ACCURACY * (1.0 + abs(value)) or self.idle > _PATIENCE
        self.step, self.fraction = self._direction(gamma), 1.0
        self._ask()

    def _ask(self) -> None:
        E = self.E + self.fraction * self.step
        self.trial = E / np.linalg.norm(E)

    def _direction(self, gamma: np.ndarray) -> np.ndarray:
        """Return the step of BFGS, or that of alternating minimisation where nothing is known of curvature."""
        q, weights = self.gradient.copy(), []
        for moved, bent in reversed(self.pairs):
            weights.append(float(np.sum(moved * q)) / float(np.sum(moved * bent)))
            q = q - weights[-1] * bent
        if self.pairs:
            moved, bent = self.pairs[-1]
            q = q * (float(np.sum(moved * bent)) / float(np.sum(bent * bent)))
        for (moved, bent), a in zip(self.pairs, reversed(weights), strict=True):
            q = q + (a - float(np.sum(bent * q)) / float(np.sum(moved * bent))) * moved
        if self.pairs and float(np.sum(q * self.gradient)) > 0.0:
            return -q
        self.pairs.clear()
        D = self.E @ self.E.T
        found = _root(D @ gamma @ D)
        found = _root(found / np.trace(found))
        U, _, Vt = np.linalg.svd(found.T @ self.E)  # of all its roots the one nearest to E
        return np.asarray(found @ (U @ Vt) - self.E)


def gap_of(c: float, D: np.ndarray, gamma: np.ndarray) -> float:
    """Return the duality gap of the models that sites have at D, from Gamma there."""
    nuclear = float(np.trace(_root(D @ gamma @ D)))
    top = float(np.linalg.eigvalsh(gamma)[-1])
    return max(c * (0.5 * nuclear**2 + 0.5 * top - float(np.sum(D * gamma))), 0.0)


def _root(S: np.ndarray) -> np.ndarray:
    """Return the square root of a positive semidefinite matrix."""
    values, V = np.linalg.eigh(S)
    return np.asarray((V * np.sqrt(np.maximum(values, 0.0))) @ V.T)


def tied_models(search: Any, part: np.ndarray, l2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return covariances of features as triangles (M, t), and certified gaps (M,).

    NaN stands for models near which a site's answer would be made of few rows.

    Parameters
    ----------
    search : `fedconvex.study.comparing_coordinator.Search`
        Whom to ask, and how rows are standardised.
    part, l2 : array (M,)
        Set of rows, and l2, of every model.
    """
    K, p = len(search.names), search.plan.size
    each = [TieSearch(p, float(one) / K, float(search.asking.rounding)) for one in l2]
    lost = np.zeros(len(each))
    for _ in range(MOST):
        live = np.array([i for i, one in enumerate(each) if not one.settled], dtype=int)
        if not live.size:
            break
        D = np.array([triangle(each[i].trial @ each[i].trial.T) for i in live])
        found = search.total("mocha", {"mocha": D, "part": part[live].astype(float), "l2": l2[live], **search.frame})
        few = found["lost"] > 0.5
        lost[live] += few
        none = found["lost"] > 0.5 * TOO_FAR
        for i, value, t, gone in zip(live, found["loss"], found["bend"], none, strict=True):
            each[i].absorb(np.inf if gone else float(value), symmetric(t, p))
            each[i].settled |= bool(lost[i] > LOST)
    gaps = np.array([one.gap for one in each])
    known = (lost <= LOST) & (gaps <= ENOUGH * (1.0 + np.abs([one.value for one in each])))
    W = np.array([triangle(one.best @ one.best.T) for one in each])
    return np.where(known[:, None], W, np.nan), gaps
