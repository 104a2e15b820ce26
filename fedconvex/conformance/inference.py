"""Which estimator is it: how clients' rows became one estimate, and which standard errors go with it.

Candidates are computed from the rows in NumPy by their definitions, for linear, logistic and Cox models, and share
nothing with `fedconvex.analysis`. An estimate is read by the candidate that it equals; so are its standard errors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, real, unknown, wrong_type

MODELS = ("linear", "logistic", "cox")
Rows = Any  # arrays of a client, (X, y), of Cox's model (X, time, event)
Known = dict[str, tuple[np.ndarray, dict[str, np.ndarray]]]  # the estimate, and covariance matrices by name
SAYS = {
    "pooled": "maximum likelihood on all rows",
    "stratified": "maximum partial likelihood, with a baseline hazard for every client",
    "fixed effect": "the fixed effect of clients' estimates, weighted by their inverse covariance matrices",
    "coefficientwise": "clients' coefficients one by one, weighted by their inverse variances",
    "one-step": "one Newton step on all rows from the mean of clients' estimates, by rows",
    "mean by rows": "the mean of clients' estimates, weighted by rows, which FedAvg tends to with many local steps",
    "plain mean": "the mean of clients' estimates, all with the same weight",
}
ERRORS = {
    "model": "from the information: they trust the model",
    "model, divided by n": "from the information, the residual variance divided by n",
    "model, at the start": "from the information where the step starts",
    "sandwich": "of the sandwich, rows independent (HC0)",
    "sandwich, n/(n - p)": "of the sandwich, rows independent, times sqrt(n/(n - p)) (HC1)",
    "clustered": "of the sandwich, clients as clusters",
    "clustered, K/(K - 1)": "of the sandwich, clients as clusters, times sqrt(K/(K - 1))",
    "clustered, CR1": "of the sandwich, clients as clusters, times sqrt(K/(K - 1) (n - 1)/(n - p)) (CR1)",
    "combined": "from clients' covariance matrices, as their estimates are combined",
}


class Estimator(NamedTuple):
    """What an estimator was found to be.

    Parameters
    ----------
    model : str
    point : str
        A name of `SAYS`, with "breslow" or "efron" after it in Cox's model; "" if none is near.
    errors : str
        A name of `ERRORS`; "" if none is near, or none was given.
    distance, next_distance : float
        Of the estimate from that candidate and from the next, relative to its largest entry.
    others : dict
        Distances of all candidates.
    """

    model: str
    point: str
    errors: str
    distance: float
    next_distance: float
    others: Mapping[str, float]

    def __str__(self) -> str:
        if not self.point:
            near = min(self.others, key=lambda name: self.others[name])
            return f"No estimator that is known here; the nearest, {near}, is {self.others[near]:.1e} off."
        name, _, ties = self.point.partition(", ")
        with_ties = f", ties by {ties.capitalize()}" if ties else ""
        told = f"; standard errors {ERRORS[self.errors]}" if self.errors else "; no standard errors that are known here"
        return f"The estimate is {SAYS[name]}{with_ties}{told}."


def conform_estimate(estimate: Any, model: str = "logistic", *, tol: float = 1e-6) -> Estimator:
    """Return which estimator a function computes.

    Parameters
    ----------
    estimate : callable
        ``estimate(clients)`` returns coefficients (d,), or a pair of these and their standard errors (d,). ``clients``
        is a list of (X, y), of Cox's model (X, time, event); X (n_k, d) holds a column of ones where there is an
        intercept.
    model : {"linear", "logistic", "cox"}
    tol : float
        Largest difference that counts as equal, relative to the largest entry.

    Returns
    -------
    Estimator

    Raises
    ------
    ValueError, TypeError
        If there is no such model, or what is returned is no array of d numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.conformance import conform_estimate
    >>> def estimate(clients):
    ...     X, y = (np.concatenate(parts) for parts in zip(*clients))
    ...     return np.linalg.lstsq(X, y, rcond=None)[0]
    >>> print(conform_estimate(estimate, "linear"))
    The estimate is maximum likelihood on all rows; no standard errors that are known here.
    """
    if not callable(estimate):
        raise wrong_type("conform_estimate: estimate", "be a function of clients", f"{estimate!r}")
    if not isinstance(model, str) or model not in MODELS:
        raise unknown("conform_estimate: model", model, MODELS)
    tol, clients = real("conform_estimate: tol", tol, low=0.0, strict=True), rows(model)
    given = estimate([tuple(a.copy() for a in part) for part in clients])
    pair = given if isinstance(given, tuple) else (given, None)
    if len(pair) != 2:
        raise bad(
            "conform_estimate: estimate", "return coefficients, or a pair with standard errors", f"{len(pair)} parts"
        )
    b = _numbers("estimate", pair[0], clients)
    known = _known(model)
    far = {name: _far(b, point) for name, (point, _) in known.items()}
    order = sorted(far, key=lambda name: far[name])
    point = order[0] if far[order[0]] <= tol else ""
    errors = ""
    if point and pair[1] is not None:
        se = _numbers("standard errors", pair[1], clients)
        near = {name: _far(se, np.sqrt(np.diag(V))) for name, V in known[point][1].items()}
        best = min(near, key=lambda name: near[name])
        errors = best if near[best] <= tol else ""
    return Estimator(model, point, errors, far[order[0]], far[order[1]], far)


@functools.cache
def _known(model: str) -> Known:
    return candidates(model, rows(model))


def _numbers(what: str, v: Any, clients: Sequence[Rows]) -> np.ndarray:
    d = clients[0][0].shape[1]
    try:
        a = np.asarray(v, dtype=float)
    except (TypeError, ValueError):
        raise wrong_type(f"conform_estimate: {what}", f"be {d} finite numbers", type(v).__name__) from None
    if a.shape != (d,) or not np.isfinite(a).all():
        raise bad(f"conform_estimate: {what}", f"be {d} finite numbers", f"shape {a.shape}")
    return a


def _far(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / np.abs(b).max())


def rows(model: str) -> list[Rows]:
    """Return the exam: three unequal clients, overlapping in outcomes, with ties of times in Cox's model."""
    rng, clients = np.random.default_rng(23), list[Rows]()
    for k, n in enumerate((24, 40, 31)):
        x = rng.normal(size=(n, 2)) * (1.0 + 0.3 * k) + 0.2 * k
        z = x @ np.array([0.6, -0.4]) + 0.3 * k
        if model == "cox":
            time = np.ceil(6.0 * rng.exponential(np.exp(-z)) + 1e-9)
            clients.append((x, time, (rng.random(n) < 0.75).astype(float)))
            continue
        X = np.column_stack([np.ones(n), x])
        noise, u = rng.normal(size=n) * (1.0 + 0.4 * k), rng.random(n)
        clients.append((X, z + noise if model == "linear" else (u < 1.0 / (1.0 + np.exp(-z))).astype(float)))
    return clients


# ---------------------------------------------------------------- candidates


def candidates(model: str, clients: Sequence[Rows]) -> Known:
    """Return all estimates of some clients, each with its covariance matrices."""
    if model == "cox":
        out: Known = {}
        for ties in ("breslow", "efron"):
            out |= {f"{name}, {ties}": found for name, found in _cox(clients, ties).items()}
        return out
    everything = tuple(np.concatenate(parts) for parts in zip(*clients, strict=True))
    fits = [_fitted(model, part) for part in clients]
    b, H = _fitted(model, everything)
    known = {"pooled": (b, _covariances(model, clients, b))} | _combined(clients, [
        (b_k, np.linalg.inv(_scaled(model, H_k, part, b_k))) for (b_k, H_k), part in zip(fits, clients, strict=True)
    ])  # fmt: skip
    start = known["mean by rows"][0]
    g, H = _score(model, everything, start)
    step = start + np.linalg.solve(H, g.sum(axis=0))
    if model == "logistic":  # on squared losses a Newton step ends at the pooled estimate
        known["one-step"] = step, _covariances(model, clients, step) | {"model, at the start": np.linalg.inv(H)}
    return known


def _combined(clients: Sequence[Rows], fits: Sequence[tuple[np.ndarray, np.ndarray]]) -> Known:
    """Return estimates that are made of clients' own, (b_k, V_k)."""
    n = np.array([len(part[0]) for part in clients], dtype=float)
    precision = [np.linalg.inv(V) for _, V in fits]
    whole = np.linalg.inv(sum(precision))
    inverse = np.stack([1.0 / np.diag(V) for _, V in fits])
    B, sums = np.stack([b for b, _ in fits]), inverse.sum(axis=0)
    fixed = whole @ sum(P @ b for P, b in zip(precision, B, strict=True))
    one_by_one = (inverse * B).sum(axis=0) / sums
    out: Known = {
        "fixed effect": (fixed, {"combined": whole}),
        "coefficientwise": (one_by_one, {"combined": np.diag(1.0 / sums)}),
    }
    for name, q in (("mean by rows", n / n.sum()), ("plain mean", np.full(n.size, 1.0 / n.size))):
        out[name] = q @ B, {"combined": sum(a * a * V for a, (_, V) in zip(q, fits, strict=True))}
    return out


def _score(model: str, part: Rows, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return scores of rows (n, d), and the information; of a linear model both for a variance of 1."""
    X, y = part
    z = X @ b
    mean = z if model == "linear" else 1.0 / (1.0 + np.exp(-z))
    weight = np.ones(len(y)) if model == "linear" else mean * (1.0 - mean)
    return X * (y - mean)[:, None], X.T @ (X * weight[:, None])


def _fitted(model: str, part: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return the maximum-likelihood estimate and the information there, by Newton's method."""
    return _newton(lambda b: _score(model, part, b), part[0].shape[1])


def _newton(score: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], d: int) -> tuple[np.ndarray, np.ndarray]:
    b = np.zeros(d)
    for _ in range(50):
        g, H = score(b)
        step = np.linalg.solve(H, g.sum(axis=0))
        b = b + step
        if np.abs(step).max() < 1e-13:
            break
    return b, score(b)[1]


def _scaled(model: str, H: np.ndarray, part: Rows, b: np.ndarray) -> np.ndarray:
    """Return the information with the residual variance of these rows, divided by n - p."""
    if model != "linear":
        return H
    X, y = part
    return np.asarray(H * (len(y) - len(b)) / float(np.sum((y - X @ b) ** 2)))


def _covariances(model: str, clients: Sequence[Rows], b: np.ndarray) -> dict[str, np.ndarray]:
    """Return covariance matrices of an estimate on all rows."""
    everything = tuple(np.concatenate(parts) for parts in zip(*clients, strict=True))
    (g, H), n, p, K = _score(model, everything, b), len(everything[0]), len(b), len(clients)
    V = np.linalg.inv(H)
    model_based = np.linalg.inv(_scaled(model, H, everything, b))
    totals = np.stack([_score(model, part, b)[0].sum(axis=0) for part in clients])
    rowwise, clustered = V @ (g.T @ g) @ V, V @ (totals.T @ totals) @ V
    out = {"model": model_based, "sandwich": rowwise, "sandwich, n/(n - p)": rowwise * n / (n - p)}
    if model == "linear":
        out["model, divided by n"] = model_based * (n - p) / n
    each = clustered * K / (K - 1)
    return out | {"clustered": clustered, "clustered, K/(K - 1)": each, "clustered, CR1": each * (n - 1) / (n - p)}


# ---------------------------------------------------------------- Cox's model


def _partial(part: Rows, b: np.ndarray, ties: str) -> Any:
    """Return the score (1, d) and the information of the partial likelihood of one stratum."""
    X, time, event = part
    d, risk = X.shape[1], np.exp(X @ b)
    g, H = np.zeros(d), np.zeros((d, d))
    for t in np.unique(time[event > 0]):
        at, dead = time >= t, (time == t) & (event > 0)
        m = int(dead.sum())
        g += X[dead].sum(axis=0)
        for j in range(m):
            w = risk * (at - (j / m if ties == "efron" else 0.0) * dead)
            mean = w @ X / w.sum()
            g -= mean
            H += X.T @ (X * w[:, None]) / w.sum() - np.outer(mean, mean)
    return g[None], H


def _cox(clients: Sequence[Rows], ties: str) -> Known:
    """Return pooled and stratified estimates, and those made of clients' own."""
    everything = tuple(np.concatenate(parts) for parts in zip(*clients, strict=True))
    d = clients[0][0].shape[1]

    def of(parts: Sequence[Rows]) -> tuple[np.ndarray, np.ndarray]:
        def score(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            found = [_partial(part, b, ties) for part in parts]
            return sum(g for g, _ in found), sum(H for _, H in found)

        b, H = _newton(score, d)
        return b, np.linalg.inv(H)

    known: Known = {}
    for name, parts in (("pooled", [everything]), ("stratified", list(clients))):
        b, V = of(parts)
        known[name] = b, {"model": V}
    return known | _combined(clients, [of([part]) for part in clients])
