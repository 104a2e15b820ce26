"""Cox's partial likelihood written plainly, risk set by risk set, in O(n^2): what tests compare with."""

from __future__ import annotations

import numpy as np


def log_partial(X, time, event, w, entry=None, efron=True):
    """-log of the partial likelihood of one stratum, its gradient and its Hessian."""
    X, time, event = np.asarray(X, dtype=float), np.asarray(time, dtype=float), np.asarray(event, dtype=bool)
    entry = np.full(len(time), -np.inf) if entry is None else entry
    z = X @ w
    N, g, H = 0.0, np.zeros(X.shape[1]), np.zeros((X.shape[1], X.shape[1]))
    for t in np.unique(time[event]):
        at_risk, dying = (entry < t) & (t <= time), event & (time == t)
        d, shift = dying.sum(), z[at_risk].max()
        for r in range(d):
            p = (at_risk - (r / d if efron else 0.0) * dying) * np.exp(np.where(at_risk, z - shift, -np.inf))
            total = p.sum()
            mean = p @ X / total
            N += shift + np.log(total)
            g += mean
            H += (X * p[:, None]).T @ X / total - np.outer(mean, mean)
        N -= z[dying].sum()
        g -= X[dying].sum(axis=0)
    return N, g, H


def stratified(X, time, event, w, groups, entry=None, efron=True):
    """The sum of `log_partial` over the groups of rows of equal names."""
    parts = []
    for name in np.unique(groups):
        mine = groups == name
        parts.append(log_partial(X[mine], time[mine], event[mine], w, None if entry is None else entry[mine], efron))
    return tuple(sum(part[i] for part in parts) for i in range(3))


def drawn(rng, n, p, *, times=None, entry=False, strata=0, clients=3, censored=0.4):
    """Rows with tied times: X, time, event, entry or None, strata or None, clients."""
    time = rng.integers(0, times or max(2, n // 2), size=n).astype(float)
    event = rng.random(n) >= censored
    event[0] = True
    late = time - rng.integers(1, 8, size=n) if entry else None
    names = rng.choice(["p", "q", "r"][:strata], size=n) if strata else None
    return rng.normal(size=(n, p)), time, event, late, names, np.sort(rng.integers(0, clients, size=n))
