"""Boosting with several sources: worst-domain losses and errors (Cortes, Mohri, Storcheus, Suresh, NeurIPS 2021).

1. Rows of p domains with two classes; 10 random divisions, half to train, a fifth to choose, the rest to test on. Equal
   rows stay on one side.
2. Q(l|x): conditional maximum entropy on the training rows without their labels, l2 by cross-validation.
3. Decision stumps, the same for all methods, and Phi = exp; at most 200 rounds each.
4. AdaBoost-k on source k alone, AdaBoost-all on all rows; their uniform and their optimal convex combination; the
   optimal combination weighted by Q.
5. MultiBoost on the smoothed maximum: with Q, with Q = 1/p, with Q to a power between, with Q cross-fitted on the
   training rows; and as printed, without smoothing.
6. FedMultiBoost: 10 clients a domain, 5 a round, 200 stumps of each source a round, steps eta_0/sqrt(t).
7. Every method's number of rounds (with eta_0, the power of Q) has the least worst-domain loss on the rows to choose
   on, for losses, and the least worst-domain error, for errors; AdaBoost-k has rows of domain k only, and is chosen by
   these. Losses also with a factor of f, chosen with the rounds.
8. On test rows: loss and error of every domain, of the worst, and over mixtures of two domains; over the divisions
   means with 95 % intervals, and paired differences.
9. On a fixed dictionary: the gaps of MultiBoost and FedMultiBoost to the certified optimum.
"""

from __future__ import annotations

import itertools
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedconvex._check import bad, finite, numeric, whole
from fedconvex.datasets import load_bundled
from fedconvex.driver import iterate
from fedconvex.driver import run as run_method
from fedconvex.federation import Federation
from fedconvex.methods import FedMultiBoost, MultiBoost
from fedconvex.papers.archive import read_archive
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.style import COLOURS, blank, tidy
from fedconvex.problems import Dictionary, EnsembleProblem, Stump, StumpProblem, fit_q

__all__ = ["EXPERIMENT", "Outcome", "Sources", "load_sources", "run", "shifted_digits"]

SMOOTHING = 50.0  # chosen here: mu; F_mu is at most log(p)/50 above F
BINS = 16  # chosen here: at most 15 cuts a feature, which is all of them for digits and words
WORDS = 1000  # chosen here: columns of a CSR file that are kept, as presence 0/1
TRAIN, CHOOSE = 0.5, 0.2  # chosen here: shares of the rows to train and to choose on
CLIENTS, SAMPLED, CLASSIFIERS = 10, 5, 200  # chosen here: FedMultiBoost's clients a domain, clients and stumps a round
FACTORS = tuple(2.0 ** (0.5 * e) for e in range(-8, 5))  # chosen here: of f
NEAR = 0.02  # what errors may differ by and still count as near
COARSE = 11  # points of the mixture sweep
LEAST_ROWS = 40  # of every class and domain
ALL, UNIFORM, OPTIMAL, BY_Q = "AdaBoost-all", "uniform combination", "optimal combination", "optimal, weighted by Q"
MULTI, PLAIN, TEMPERED = "MultiBoost", "MultiBoost, Q = 1/p", "MultiBoost, tempered Q"
CROSSED, PRINTED, FED = "MultiBoost, cross-fitted Q", "MultiBoost, unsmoothed", "FedMultiBoost"
CURVES = (ALL, PLAIN, MULTI, CROSSED, FED)  # drawn over rounds
KEYS = ("data", "indices", "indptr", "shape", "y", "domain")


class Sources(NamedTuple):
    """Labelled rows of several domains."""

    name: str
    X: Any  # (n, d), dense or CSR
    y: np.ndarray  # (n,) -1, +1
    domain: np.ndarray  # (n,) 0, ..., p-1
    names: tuple[str, ...]  # of the domains
    group: np.ndarray  # (n,) rows with the same features have the same number

    @property
    def p(self) -> int:
        """Number of domains."""
        return len(self.names)


class Plan(NamedTuple):
    """How large the experiment is."""

    splits: int
    rounds: int
    penalties: tuple[float, ...]  # l2 of Q to choose from
    folds: int
    fixed: int  # coordinates of the fixed dictionary
    fixed_rounds: int
    first_steps: tuple[float, ...]  # eta_0 to choose from
    powers: tuple[float, ...]  # of Q, to scale, to choose from; with 1 and 0


FIRST_STEPS, POWERS = (0.1, 0.3, 1.0, 3.0), (1.0, 0.5, 0.25, 0.0)  # chosen here
FULL = Plan(10, 200, (1e-3, 1e-2, 1e-1), 3, 100, 500, FIRST_STEPS, POWERS)
LARGE = Plan(10, 200, (1e-2, 1e-1, 1.0), 3, 100, 500, FIRST_STEPS, POWERS)
QUICK = Plan(3, 20, (1e-2,), 2, 20, 100, (1.0,), (1.0, 0.0))


class Choice(NamedTuple):
    """A number of rounds, chosen on the rows to choose on, and what it gives on test rows."""

    held: float  # worst-domain loss or error on the rows to choose on
    rounds: int
    setting: float  # of what else was chosen (eta_0, the tempering of Q), NaN where there is nothing
    factor: float  # of f
    test: np.ndarray  # (p,) loss or error of every domain


class Outcome(NamedTuple):
    """One method on one division of the rows; losses and errors of every domain."""

    method: str
    split: int
    chosen: tuple[Choice, Choice, Choice]  # by loss; by loss of f times a factor; by error
    last: np.ndarray  # (3, p) training loss, test loss and test error after all rounds
    curves: np.ndarray  # (3, T+1) the same of the worst domain over rounds


class Certificate(NamedTuple):
    """A fixed dictionary: what MultiBoost and FedMultiBoost reach, and the certified optimum."""

    classifiers: int
    rows: int
    value: float  # F of the optimum found
    lower: float  # certified lower bound
    multi: float  # F of MultiBoost
    multi_rounds: int
    fed: float  # least F of FedMultiBoost
    fed_rounds: int
    own_gap: float  # largest certified gap of the optimal combinations


# ---------------------------------------------------------------- data


def shifted_digits(seed: int = 0) -> Sources:
    """Return the 1,797 digits of scikit-learn in three domains; the class is +1 for odd digits.

    "plain": as they are. "inverted": dark for light, so that every threshold of a pixel means the opposite. "turned":
    by 90 degrees. Every digit is in one domain: even digits with probabilities (1/3, 5/12, 1/4), odd ones (1/3, 1/4,
    5/12), so that shares of odd digits are about 0.5, 0.37, 0.63. Pixels are 0, 1/8, ..., 1.

    Examples
    --------
    >>> from fedconvex.papers.multiboost import shifted_digits
    >>> found = shifted_digits()
    >>> found.X.shape, found.names
    ((1797, 64), ('plain', 'inverted', 'turned'))
    """
    rng = np.random.default_rng(whole("shifted_digits: seed", seed, low=0))
    digits = load_bundled("digits", standardised=False)
    X, odd = np.floor(digits.X / 2.0) / 8.0, digits.y % 2 == 1
    group = np.unique(digits.X, axis=0, return_inverse=True)[1].ravel()
    chance = np.where(odd[:, None], (1 / 3, 1 / 4, 5 / 12), (1 / 3, 5 / 12, 1 / 4))
    domain = (rng.random(len(X))[:, None] > np.cumsum(chance, axis=1)[:, :2]).sum(axis=1)
    images = X.reshape(-1, 8, 8)
    moved = np.stack([images, 1.0 - images, np.rot90(images, axes=(1, 2))])[domain, np.arange(len(X))]
    y = np.where(odd, 1.0, -1.0)
    return Sources("digits in three domains", moved.reshape(-1, 64), y, domain, ("plain", "inverted", "turned"), group)


def load_sources(path: str | os.PathLike[str]) -> Sources:
    """Read rows of several domains from an npz archive.

    Parameters
    ----------
    path : path
        With CSR arrays data, indices, indptr, shape (n, d), or a dense X (n, d); y (n,) of two values, domain (n,) of
        0, ..., p-1, and optionally domain_names (p,). CSR columns become presence 0/1.

    Returns
    -------
    Sources

    Raises
    ------
    ValueError
        If the file is no such archive, its arrays do not fit, there is one domain only, or a domain has fewer than 40
        rows of a class.
    FileNotFoundError
        If there is no such file.
    """
    who, words = f"--data {Path(path).name}", f"{', '.join(KEYS)}, or X, y, domain"
    arrays = read_archive(path, ("y", "domain"), lambda key: key in (*KEYS, "X", "domain_names"), words)
    if "X" not in arrays and any(key not in arrays for key in KEYS):
        raise bad(who, f"hold {words}", ", ".join(arrays))
    X = _dense_rows(who, arrays["X"]) if "X" in arrays else _presence(who, arrays)
    values, code = np.unique(arrays["y"], return_inverse=True)
    domain, n = arrays["domain"], X.shape[0]
    if arrays["y"].shape != (n,) or values.size != 2:
        raise bad(f"{who}: y", f"be one of two classes for all {n} rows", f"shape {arrays['y'].shape}, {values.size}")
    if domain.shape != (n,) or domain.dtype.kind not in "iu" or domain.min() < 0:
        raise bad(f"{who}: domain", f"number the domains of all {n} rows", f"{domain.dtype} {domain.shape}")
    p = int(domain.max()) + 1
    names = tuple(str(v) for v in np.asarray(arrays.get("domain_names", np.arange(p))).ravel())
    if not 2 <= p <= 8 or len(names) != p or len(set(names)) != p:
        raise bad(f"{who}: domain", "be 2 to 8 domains, each with a name of its own", f"{p} and {len(names)} names")
    counts = np.bincount(2 * domain.astype(np.int64) + code.ravel(), minlength=2 * p)
    if counts.min() < LEAST_ROWS:
        k = int(np.argmin(counts)) // 2
        raise bad(f"{who}: domain {names[k]}", f"have at least {LEAST_ROWS} rows of either class", int(counts.min()))
    y = np.where(code.ravel() == 1, 1.0, -1.0)
    return Sources(Path(path).stem, X, y, domain.astype(np.int64), names, _groups(X))


def _dense_rows(who: str, X: np.ndarray) -> np.ndarray:
    rows = numeric(f"{who}: X", X)
    if rows.ndim != 2 or not rows.size:
        raise bad(f"{who}: X", "have shape (n, d), not empty", f"{rows.shape}")
    finite(f"{who}: X", rows)
    return rows


def _presence(who: str, a: Mapping[str, np.ndarray]) -> sp.csr_array:
    """Return the CSR rows, checked."""
    shape, fit = a["shape"], a["indptr"].ndim == a["indices"].ndim == 1 == a["data"].ndim
    whole_numbers = all(a[key].dtype.kind in "iu" for key in ("indices", "indptr", "shape"))
    if not (fit and whole_numbers and shape.shape == (2,) and shape.min() > 0):
        got = f"shapes {a['data'].shape}, {a['indptr'].shape}, shape = {shape.tolist()}"
        raise bad(f"{who}: data, indices, indptr, shape", "be CSR arrays", got)
    n, d = (int(v) for v in shape)
    ptr, at = a["indptr"].astype(np.int64), a["indices"].astype(np.int64)
    if ptr.size != n + 1 or ptr[0] != 0 or ptr[-1] != at.size or (np.diff(ptr) < 0).any():
        raise bad(f"{who}: indptr", f"rise from 0 to {at.size} in {n + 1} entries", f"{ptr.size} entries")
    if a["data"].size != at.size or (at.size and not 0 <= at.min() <= at.max() < d):
        raise bad(f"{who}: indices", f"be one column below {d} for each of {a['data'].size} entries", f"{at.size}")
    data = numeric(f"{who}: data", a["data"])
    finite(f"{who}: data", data)
    rows = sp.csr_array((data, at, ptr), shape=(n, d))
    rows.sum_duplicates()
    rows.eliminate_zeros()
    return rows


def _groups(X: Any) -> np.ndarray:
    """Return a number for every row, the same for equal rows, (n,)."""
    if not sp.issparse(X):
        return np.asarray(np.unique(X, axis=0, return_inverse=True)[1]).ravel()
    seen: dict[bytes, int] = {}
    spans = itertools.pairwise(X.indptr.tolist())
    keys = (X.indices[a:b].astype(np.int64).tobytes() + X.data[a:b].tobytes() for a, b in spans)
    return np.array([seen.setdefault(key, len(seen)) for key in keys])


class Division(NamedTuple):
    """One division of the rows: features, labels and domains of each part; training rows sorted by client."""

    X: tuple[np.ndarray, np.ndarray, np.ndarray]  # dense (n, d) of the rows to train, choose and test on
    y: tuple[np.ndarray, ...]
    domain: tuple[np.ndarray, ...]
    Q: tuple[np.ndarray, ...]  # (n, p)
    crossed: np.ndarray  # (n, p) Q of training rows, each by a fit without them
    client: np.ndarray  # (n,) of training rows
    accuracy: tuple[float, float]  # share of rows to train and test on whose domain has the largest Q
    l2: float


def _divide(rows: Sources, plan: Plan, seed: int, split: int) -> Division:  # 1
    rng = np.random.default_rng([seed, split])
    share = np.empty(len(rows.y))  # position of a row's group in a random order of its domain
    home = np.full(int(rows.group.max()) + 1, -1)
    home[rows.group[::-1]] = rows.domain[::-1]  # domain of the group's first row
    for k in range(rows.p):
        members = np.flatnonzero(home[rows.group] == k)
        order = rng.permutation(int(rows.group.max()) + 1)[rows.group[members]]
        ranks = np.argsort(np.argsort(order, kind="stable"), kind="stable")
        first = np.full(int(order.max()) + 1, len(members))
        np.minimum.at(first, order, ranks)  # equal rows go where the first of them goes
        share[members] = first[order] / len(members)
    parts = [np.flatnonzero(share < TRAIN)]
    parts += [np.flatnonzero((share >= TRAIN) & (share < TRAIN + CHOOSE)), np.flatnonzero(share >= TRAIN + CHOOSE)]
    owner = np.empty(len(parts[0]), dtype=np.int64)
    for k in range(rows.p):
        mine = np.flatnonzero(rows.domain[parts[0]] == k)
        owner[mine] = k * CLIENTS + rng.permutation(mine.size) % CLIENTS
    order = np.argsort(owner, kind="stable")
    parts[0], owner = parts[0][order], owner[order]
    X = _features(rows.X, parts)
    domain = [rows.domain[i] for i in parts]
    model, crossed = _source_model(X[0], domain[0], rows.group[parts[0]], plan, rng)
    Q = tuple(model(A) for A in X)
    right = [float((Q[i].argmax(axis=1) == domain[i]).mean()) for i in (0, 2)]
    y = tuple(rows.y[i] for i in parts)
    return Division(X, y, tuple(domain), Q, crossed, owner, (right[0], right[1]), model.l2)


def _features(X: Any, parts: Sequence[np.ndarray]) -> Any:
    """Return dense rows of every part; of CSR rows the presence of the columns that most training rows have."""
    if not sp.issparse(X):
        return tuple(np.ascontiguousarray(X[i]) for i in parts)
    present = (X != 0).astype(np.float64).tocsr()
    often = np.asarray(present[parts[0]].sum(axis=0)).ravel()
    kept = np.sort(np.argsort(-often, kind="stable")[:WORDS])
    return tuple(present[i][:, kept].toarray() for i in parts)


def _source_model(X: np.ndarray, domain: np.ndarray, group: np.ndarray, plan: Plan, rng: Any) -> Any:  # 2
    """Return Q with the l2 of least held-out log loss, and the held-out Q of every row (n, p)."""
    fold = (rng.permutation(int(group.max()) + 1) % plan.folds)[group]
    held: dict[float, np.ndarray] = {}
    for l2 in plan.penalties:
        held[l2] = np.empty((len(X), int(domain.max()) + 1))
        for f in range(plan.folds):
            model = fit_q(X[fold != f], domain[fold != f], l2=l2, calibrate=False)
            held[l2][fold == f] = model(X[fold == f])
    every = np.arange(len(X))
    best = min(plan.penalties, key=lambda c: float(-np.log(held[c][every, domain] + 1e-300).mean()))
    return fit_q(X, domain, l2=best, calibrate=False), held[best]


# ---------------------------------------------------------------- methods


def _boost(problem: StumpProblem, rounds: int, smoothing: float | None = None) -> np.ndarray:
    """Return the stages of MultiBoost, (rounds, 6): source, feature, threshold, left, right, step."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "MultiBoost: a base classifier asks", RuntimeWarning)
        result = run_method(
            MultiBoost(smoothing=smoothing), problem, rounds=rounds, tol=0.0, record_every=rounds, progress=False
        )
    return np.asarray(result.state.history[0])


def _staged(stages: np.ndarray, X: np.ndarray, y: np.ndarray, Q: np.ndarray | None) -> np.ndarray:
    """Return y f_t of every row for t = 0, ..., T: (T+1, n)."""
    out = np.zeros((len(stages) + 1, len(X)))
    columns = np.asfortranarray(X)
    for t, (source, j, cut, left, right, step) in enumerate(stages):
        h = np.where(columns[:, int(j)] <= cut, left, right)
        out[t + 1] = out[t] + step * y * h * (1.0 if Q is None else Q[:, int(source)])
    return out


def _of_domains(values: np.ndarray, domain: np.ndarray, p: int) -> np.ndarray:
    """Return the means of values (..., n) over the rows of each domain, (..., p)."""
    one = (domain[:, None] == np.arange(p)).astype(float)
    return np.asarray(values @ (one / one.sum(axis=0)))


def _outcome(
    method: str,
    split: int,
    parts: Division,
    margins: Sequence[np.ndarray],
    own: int | None = None,
    setting: float = math.nan,
) -> Outcome:  # 7
    """Choose the number of rounds from margins (T+1, n) of the rows to train, choose and test on, and measure."""
    p = parts.Q[0].shape[1]

    def losses(i: int, factor: float = 1.0) -> np.ndarray:
        with np.errstate(over="ignore"):
            return _of_domains(np.exp(-factor * margins[i]), parts.domain[i], p)

    def chosen(held: np.ndarray, test: np.ndarray, factor: float = 1.0) -> Choice:
        of = held.max(axis=1) if own is None else held[:, own]
        t = int(np.argmin(of))
        return Choice(float(of[t]), t, setting, factor, test[t])

    train, test = losses(0), losses(2)
    held_error, error = (_of_domains((margins[i] <= 0.0).astype(float), parts.domain[i], p) for i in (1, 2))
    choices = (
        chosen(losses(1), test),
        min((chosen(losses(1, c), losses(2, c), c) for c in FACTORS), key=lambda found: found.held),
        chosen(held_error, error),
    )
    curves = np.array([train.max(axis=1), test.max(axis=1), error.max(axis=1)])
    return Outcome(method, split, choices, np.array([train[-1], test[-1], error[-1]]), curves)


def _best(found: Sequence[Outcome], method: str) -> Outcome:  # 7
    """Return the outcome whose choices are the best of several settings; curves and last rounds by error."""
    loss, scaled, error = (min(range(len(found)), key=lambda j: found[j].chosen[i].held) for i in range(3))
    choices = (found[loss].chosen[0], found[scaled].chosen[1], found[error].chosen[2])
    return found[error]._replace(method=method, chosen=choices)


def _combined(
    scores: Sequence[np.ndarray], parts: Division, Q: Sequence[np.ndarray] | None
) -> tuple[list[np.ndarray], float]:  # 4
    """Return margins (1, n) of the combination with the least worst-domain training loss, and its certified gap."""
    fed = Federation.from_arrays(np.zeros((len(parts.y[0]), 1)), parts.y[0], parts.domain[0], parts.domain[0])
    order = np.argsort(parts.domain[0], kind="stable")
    p = parts.Q[0].shape[1]
    dictionary = Dictionary(scores[0][order], np.arange(p))
    found = EnsembleProblem(fed, dictionary, None if Q is None else Q[0][order]).solve()
    alpha, weights = found.w, [np.full((len(y), p), 1.0 / p) for y in parts.y] if Q is None else Q
    margins = [(y * ((q * s) @ alpha))[None] for y, q, s in zip(parts.y, weights, scores, strict=True)]
    return margins, float(found.value - found.lower)


def _uniform(scores: Sequence[np.ndarray], parts: Division) -> list[np.ndarray]:  # 4
    """Return margins (1, n) of the mean of the scores, times the factor of least worst-domain training loss."""
    from scipy.optimize import minimize_scalar

    margins = [y * s.mean(axis=1) for y, s in zip(parts.y, scores, strict=True)]
    p = parts.Q[0].shape[1]

    def worst(c: float) -> float:
        return float(_of_domains(np.exp(-c * margins[0]), parts.domain[0], p).max())

    c = float(minimize_scalar(worst, bounds=(0.0, 100.0), method="bounded").x)
    return [c * m[None] for m in margins]


def _tempered(Q: np.ndarray, power: float) -> np.ndarray:
    """Return Q to a power, rows divided by their sums; 0 gives 1/p."""
    raised = np.maximum(Q, 1e-300) ** power
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def _stumps(table: Any) -> list[Stump]:
    """List the stumps that the search may find: all cuts in both directions, and two constants."""
    cuts = [Stump(j, float(c), s, -s) for j, edges in enumerate(table.edges) for c in edges for s in (-1.0, 1.0)]
    return [*cuts, *(Stump(0, math.inf, s, s) for s in (-1.0, 1.0))]


def _predictions(stumps: Sequence[Stump], X: np.ndarray) -> np.ndarray:
    features, cuts, left, right = (np.array(v) for v in zip(*stumps, strict=True))
    return np.where(X[:, features] <= cuts, left, right)


def _federated(split: int, parts: Division, stumps: Sequence[Stump], plan: Plan, seed: int) -> Outcome:  # 6
    """Run FedMultiBoost with every eta_0, and return the best on the rows to choose on."""
    p = parts.Q[0].shape[1]
    H = _predictions(stumps, parts.X[0])
    fed = Federation.from_arrays(np.zeros((len(H), 1)), parts.y[0], parts.client, parts.domain[0])
    problem = EnsembleProblem(fed, Dictionary(np.tile(H, (1, p)), np.repeat(np.arange(p), len(stumps))), parts.Q[0])
    method = FedMultiBoost(
        step_size=np.array(plan.first_steps),
        clients_per_domain=SAMPLED,
        classifiers=min(CLASSIFIERS, len(stumps)),
    )
    history = None
    for _, state in iterate(method, problem, rounds=plan.rounds, seed=seed + split, trajectories=len(plan.first_steps)):
        history = state.history
    found = []
    for eta, log in zip(plan.first_steps, np.asarray(history), strict=True):
        stages = log.copy()
        stages[:, 1:5] = np.array(stumps)[log[:, 1].astype(int) % len(stumps)]
        margins = [_staged(stages, *part) for part in zip(parts.X, parts.y, parts.Q, strict=True)]
        found.append(_outcome(FED, split, parts, margins, setting=eta))
    return _best(found, FED)


def _one_split(
    rows: Sources, plan: Plan, seed: int, split: int, tell: Any
) -> tuple[list[Outcome], Division, float, np.ndarray]:
    """Run every method on one division.

    Also returned: the division, the largest gap of the combinations, and the stages of MultiBoost.
    """
    tell("dividing rows, and fitting Q")
    parts, p, T = _divide(rows, plan, seed, split), rows.p, plan.rounds
    X, y, domain = parts.X[0], parts.y[0], parts.domain[0]
    out: list[Outcome] = []

    def staged(stages: np.ndarray, Q: Sequence[np.ndarray] | None = None) -> list[np.ndarray]:
        every = Q if Q is not None else (None, None, None)
        return [_staged(stages, *part) for part in zip(parts.X, parts.y, every, strict=True)]

    scores = [np.empty((len(v), p)) for v in parts.y]
    for k in range(p):  # 4
        tell(f"AdaBoost-{rows.names[k]}")
        mine = domain == k
        fed = Federation.from_arrays(X[mine], y[mine], domain[mine])
        stages = _boost(StumpProblem(fed, bins=BINS), T)
        margins = staged(stages)
        out.append(_outcome(f"AdaBoost-{rows.names[k]}", split, parts, margins, own=k))
        t = max(out[-1].chosen[2].rounds, 1)
        weight = max(float(np.abs(stages[:t, 5]).sum()), 1e-300)
        for score, m, label in zip(scores, margins, parts.y, strict=True):
            score[:, k] = np.clip(label * m[t] / weight, -1.0, 1.0)
    tell(ALL)
    pooled = StumpProblem(Federation.from_arrays(X, y, parts.client), bins=BINS)
    out.append(_outcome(ALL, split, parts, staged(_boost(pooled, T))))
    tell("combinations")
    out.append(_outcome(UNIFORM, split, parts, _uniform(scores, parts)))
    gaps = []
    for name, Q in ((OPTIMAL, None), (BY_Q, parts.Q)):
        margins, gap = _combined(scores, parts, Q)
        out.append(_outcome(name, split, parts, margins))
        gaps.append(gap)
    fed = Federation.from_arrays(X, y, parts.client, domain)
    first = np.empty((0, 6))
    several = []
    for power in plan.powers:  # 5
        name = {1.0: MULTI, 0.0: PLAIN}.get(power, TEMPERED)
        tell(name if name != TEMPERED else f"MultiBoost, Q to the power {power:g}")
        Q = tuple(_tempered(q, power) for q in parts.Q)
        stages = _boost(StumpProblem(fed, Q[0], bins=BINS), T, SMOOTHING)
        several.append(_outcome(name, split, parts, staged(stages, Q), setting=power))
        first = stages if power == 1.0 else first
    out += [o for o in several if o.method != TEMPERED] + [_best(several, TEMPERED)]
    for name, q, smoothing in ((CROSSED, parts.crossed, SMOOTHING), (PRINTED, parts.Q[0], None)):
        tell(name)
        stages = _boost(StumpProblem(fed, q, bins=BINS), T, smoothing)
        out.append(_outcome(name, split, parts, staged(stages, (q, *parts.Q[1:]))))
    tell(FED)
    out.append(_federated(split, parts, _stumps(pooled.table), plan, seed))
    return out, parts, max(gaps), first


def _certified(parts: Division, stages: np.ndarray, plan: Plan, seed: int, own_gap: float) -> Certificate:  # 9
    """Compare with the certified optimum over the first coordinates that MultiBoost chose."""
    first = list(dict.fromkeys(tuple(stage[:5]) for stage in stages.tolist() if stage[5] != 0.0))[: plan.fixed]
    H = _predictions([Stump(int(j), c, left, right) for _, j, c, left, right in first], parts.X[0])
    sources = np.array([int(stage[0]) for stage in first])
    fed = Federation.from_arrays(np.zeros((len(H), 1)), parts.y[0], parts.client, parts.domain[0])
    problem = EnsembleProblem(fed, Dictionary(H, sources), parts.Q[0])
    best = problem.solve()
    multi = fed_value = math.inf
    for _, state in iterate(MultiBoost(smoothing=SMOOTHING), problem, rounds=plan.fixed_rounds):
        multi = float(problem.value(state.w[0]))
    method = FedMultiBoost(step_size=np.array(plan.first_steps), clients_per_domain=SAMPLED)
    for _, state in iterate(method, problem, rounds=plan.rounds, seed=seed, trajectories=len(plan.first_steps)):
        fed_value = min(fed_value, float(np.min(problem.value(state.w))))
    return Certificate(
        len(first),
        len(H),
        float(best.value),
        float(best.lower),
        multi,
        plan.fixed_rounds,
        fed_value,
        plan.rounds,
        own_gap,
    )


# ---------------------------------------------------------------- running


class Study(NamedTuple):
    """What was measured."""

    names: tuple[str, ...]  # of the domains
    outcomes: tuple[Outcome, ...]
    accuracy: tuple[tuple[float, float], ...]  # of Q on rows to train and test on, by division
    penalties: tuple[float, ...]  # l2 of Q, by division
    certificate: Certificate


def run(*, quick: bool = False, seed: int = 0, data: Any = None, progress: Progress | None = None) -> Findings:
    """Run the experiment.

    Parameters
    ----------
    quick : bool
        A smaller version: 3 divisions, 20 rounds.
    seed : int
        Of the domains of the digits, of divisions, clients and draws.
    data : path, optional
        As for `load_sources`; default `shifted_digits`.
    progress : callable, optional
        Takes the share done and what is being done.

    Returns
    -------
    Findings
    """
    seed = whole("multiboost: seed", seed, low=0)
    rows = shifted_digits(seed) if data is None else load_sources(data)
    plan = QUICK if quick else FULL if data is None else LARGE
    study = _study(rows, plan, seed, progress or (lambda share, doing: None))
    title = f"Boosting with several sources on {rows.name} (Cortes, Mohri, Storcheus, Suresh 2021)"
    figures = {"errors": _draw_errors(study), "mixtures": _draw_domain_weights(study), "rounds": _draw_rounds(study)}
    return Findings(title, _claims(study), _notes(rows, plan, study, quick), figures, _tables(study))


EXPERIMENT = Experiment(
    "multiboost",
    "boosting with several sources: losses and errors of domains for AdaBoost, combinations, MultiBoost, FedMultiBoost",
    run,
    "optional npz of rows in domains: CSR data, indices, indptr, shape (or X), y, domain; default shifted digits",
)


def _study(rows: Sources, plan: Plan, seed: int, tell: Any) -> Study:
    outcomes: list[Outcome] = []
    accuracy, penalties, gaps, certificate = [], [], [], None
    usual = rows.p + 10  # tasks of a division
    for split in range(plan.splits):
        tasks = itertools.count()

        def at(doing: str, split: int = split, tasks: Any = tasks) -> None:
            share = (split + min(next(tasks) / usual, 0.99)) / plan.splits
            tell(share, f"division {split + 1} of {plan.splits}: {doing}")

        found, parts, gap, stages = _one_split(rows, plan, seed, split, at)
        outcomes += found
        accuracy.append(parts.accuracy)
        penalties.append(parts.l2)
        gaps.append(gap)
        if certificate is None:
            at("a fixed dictionary")
            certificate = _certified(parts, stages, plan, seed, gap)
    tell(1.0, "done")
    final = Certificate(*certificate)._replace(own_gap=max(gaps)) if certificate else None
    return Study(rows.names, tuple(outcomes), tuple(accuracy), tuple(penalties), final)  # type: ignore[arg-type]


# ---------------------------------------------------------------- estimates


class Estimate(NamedTuple):
    """A mean over divisions with its 95 % interval."""

    mean: float
    half: float  # half its width

    def __str__(self) -> str:
        return f"{_short(self.mean)} ± {_short(self.half)}"


def _short(x: float) -> str:
    return f"{x:.3f}" if abs(x) < 10.0 else f"{x:.1f}" if abs(x) < 1000.0 else f"{x:.1e}"


def _estimate(values: np.ndarray) -> Estimate:
    """Return the mean of one number a division with a t interval.

    Divisions share rows, so that s^2/J is too small; the variance used is s^2 (1/J + test rows/training rows) (Nadeau,
    Bengio, Machine Learning 2003).
    """
    from scipy.stats import t

    J = len(values)
    ratio = (1.0 - TRAIN - CHOOSE) / TRAIN
    spread = float(np.std(values, ddof=1)) if J > 1 else math.nan
    return Estimate(float(np.mean(values)), float(t.ppf(0.975, max(J - 1, 1))) * spread * math.sqrt(1.0 / J + ratio))


QUANTITIES = ("training loss", "test loss", "test loss with a factor", "test error")


def _by_domain(study: Study, method: str, quantity: str) -> np.ndarray:
    """Return a quantity of every division and domain, (J, p)."""
    mine = [o for o in study.outcomes if o.method == method]
    if quantity == "training loss":
        return np.array([o.last[0] for o in mine])
    return np.array([o.chosen[QUANTITIES.index(quantity) - 1].test for o in mine])


def _worst(study: Study, method: str, quantity: str) -> np.ndarray:
    return np.asarray(_by_domain(study, method, quantity).max(axis=1))


def _methods(study: Study) -> list[str]:
    return list(dict.fromkeys(o.method for o in study.outcomes))


def _single(study: Study) -> list[str]:
    return [f"AdaBoost-{name}" for name in study.names]


# ---------------------------------------------------------------- claims


def _claims(study: Study) -> tuple[Claim, ...]:
    """Judge what the paper concludes; means over divisions decide, and intervals stand beside them."""
    certificate = study.certificate
    limit = math.log(len(study.names)) / SMOOTHING
    above, fed = certificate.multi - certificate.lower, _estimate(_difference(study, FED, MULTI, "test error"))
    return (
        _own_domain(study),
        *(_not_above(study, method, quantity) for method in (MULTI, PLAIN) for quantity in QUANTITIES),
        Claim(
            f"FedMultiBoost is near MultiBoost: its worst-domain test error is at most {NEAR:g} above",
            fed.mean <= NEAR,
            f"{_estimate(_worst(study, FED, 'test error'))} and {_estimate(_worst(study, MULTI, 'test error'))}; "
            f"difference {fed}",
        ),
        Claim(
            "On a fixed dictionary MultiBoost comes within log(p)/mu of the certified minimum of the worst-domain loss",
            above <= limit,
            f"{certificate.classifiers} classifiers: MultiBoost {certificate.multi:.5f} after "
            f"{certificate.multi_rounds} rounds, minimum in [{certificate.lower:.5f}, {certificate.value:.5f}], "
            f"log(p)/mu = {limit:.4f}; "
            f"FedMultiBoost {certificate.fed:.5f} at best in {certificate.fed_rounds} rounds",
        ),
        Claim(
            "The optimal combinations are optimal: certified gaps of at most 1e-3",
            certificate.own_gap <= 1e-3,
            f"largest gap {certificate.own_gap:.1e}",
        ),
    )


def _difference(study: Study, method: str, other: str, quantity: str) -> np.ndarray:
    return _worst(study, method, quantity) - _worst(study, other, quantity)


def _own_domain(study: Study) -> Claim:
    E = np.array([_by_domain(study, m, "test error").mean(axis=0) for m in _single(study)])  # (source, domain)
    p, own = len(E), np.diag(E)
    least = np.where(np.eye(p, dtype=bool), math.inf, E).min(axis=0)
    most = np.where(np.eye(p, dtype=bool), -math.inf, E).max(axis=0)
    rows = zip(study.names, own, least, most, strict=True)
    return Claim(
        "A boost of one source does badly elsewhere: on every domain it errs more than the domain's own boost",
        bool((own < least).all()),
        "test errors: "
        + "; ".join(f"{k} {a:.3f}, of others {b:.3f}" + (f" to {c:.3f}" if p > 2 else "") for k, a, b, c in rows),
    )


def _not_above(study: Study, method: str, quantity: str) -> Claim:
    """Compare with the best AdaBoost-k, AdaBoost-all and the two combinations, in pairs."""
    best = min(_single(study), key=lambda m: float(np.mean(_worst(study, m, quantity))))
    others = (best, ALL, UNIFORM, OPTIMAL)
    paired = {m: _estimate(_difference(study, method, m, quantity)) for m in others}
    numbers = "; ".join(f"{m} {_short(float(np.mean(_worst(study, m, quantity))))}, {d}" for m, d in paired.items())
    unsure = [m for m, d in paired.items() if abs(d.mean) <= d.half]
    return Claim(
        f"{method}: the worst domain's {quantity} is not above that of any baseline",
        all(d.mean <= 0.0 for d in paired.values()),
        f"{_estimate(_worst(study, method, quantity))}. Baseline and difference: {numbers}. "
        + (f"Within the interval of the difference: {', '.join(unsure)}." if unsure else "All intervals leave out 0."),
    )


# ---------------------------------------------------------------- tables and notes


def _tables(study: Study) -> dict[str, list[dict[str, Any]]]:
    return {
        "table": _table(study),
        "domains": _domain_rows(study),
        "differences": _paired_rows(study),
        "mixtures": _domain_weight_rows(study),
        "rounds": _round_rows(study),
        "splits": _split_rows(study),
        "certificate": [study.certificate._asdict()],
    }


def _table(study: Study) -> list[dict[str, Any]]:
    """One row a method: worst-domain quantities, and rounds chosen."""
    rows = []
    for method in _methods(study):
        row: dict[str, Any] = {"method": method}
        for quantity in QUANTITIES:
            row[quantity] = str(_estimate(_worst(study, method, quantity)))
        chosen = [o.chosen[2].rounds for o in study.outcomes if o.method == method]
        row["rounds"] = "" if method in (UNIFORM, OPTIMAL, BY_Q) else f"{np.median(chosen):g}"
        rows.append(row)
    return rows


def _domain_rows(study: Study) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for method, quantity in itertools.product(_methods(study), QUANTITIES):
        values = _by_domain(study, method, quantity)
        for name, mine in [*zip(study.names, values.T, strict=True), ("worst", values.max(axis=1))]:
            rows.append({"method": method, "quantity": quantity, "domain": name, **_estimate(mine)._asdict()})
    return rows


def _paired_rows(study: Study) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    mine = (MULTI, PLAIN, TEMPERED, CROSSED, FED)
    for method, other, quantity in itertools.product(mine, _methods(study), QUANTITIES):
        if method != other:
            d = _difference(study, method, other, quantity)
            lower = int((d < 0.0).sum())
            rows.append(
                {"method": method, "minus": other, "quantity": quantity, **_estimate(d)._asdict(), "lower in": lower}
            )
    return rows


def _domain_weight_rows(study: Study) -> list[dict[str, Any]]:
    """Test error and loss of (1 - lambda) first + lambda second domain."""
    rows: list[dict[str, Any]] = []
    for method, quantity in itertools.product(_methods(study), QUANTITIES[1:]):
        values = _by_domain(study, method, quantity)
        for a, b in itertools.combinations(range(len(study.names)), 2):
            for lam in np.linspace(0.0, 1.0, COARSE):
                found = _estimate((1.0 - lam) * values[:, a] + lam * values[:, b])
                first, second = study.names[a], study.names[b]
                where = {"method": method, "quantity": quantity, "first": first, "second": second, "lambda": float(lam)}
                rows.append(where | found._asdict())
    return rows


def _round_rows(study: Study) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for method in _methods(study):
        curves = np.array([o.curves for o in study.outcomes if o.method == method])
        for t in range(0, curves.shape[2], 5):
            row: dict[str, Any] = {"method": method, "round": t}
            for i, quantity in enumerate(("training loss", "test loss", "test error")):
                found = _estimate(curves[:, i, t])
                row |= {quantity: found.mean, f"{quantity}, half width": found.half}
            rows.append(row)
    return rows


def _split_rows(study: Study) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for o in study.outcomes:
        for kind, choice in zip(QUANTITIES[1:], o.chosen, strict=True):
            row: dict[str, Any] = {"division": o.split, "method": o.method, "quantity": kind, "rounds": choice.rounds}
            row |= {"setting": choice.setting, "factor": choice.factor, "held out": choice.held}
            rows.append(row | {name: float(v) for name, v in zip(study.names, choice.test, strict=True)})
    return rows


def _notes(rows: Sources, plan: Plan, study: Study, quick: bool) -> tuple[str, ...]:
    n, d = rows.X.shape
    shares = f"{TRAIN:.0%} of the rows to train, {CHOOSE:.0%} to choose on, {1 - TRAIN - CHOOSE:.0%} to test on"
    kept = (
        f"presence of the {min(WORDS, d)} columns that most training rows have"
        if sp.issparse(rows.X)
        else f"{d} columns"
    )
    of = {m: _by_domain(study, m, "test error").mean(axis=0) for m in (*_single(study), ALL, MULTI)}
    pooled = [f"{k} {of[f'AdaBoost-{k}'][i]:.3f}, {of[ALL][i]:.3f}" for i, k in enumerate(rows.names)]
    last = {
        m: np.array([o.last for o in study.outcomes if o.method == m])[:, :2].max(axis=2) for m in (ALL, PLAIN, MULTI)
    }
    gaps = "; ".join(f"{m} {_short(v[:, 0].mean())} and {_short(v[:, 1].mean())}" for m, v in last.items())
    steps = sorted({o.chosen[2].setting for o in study.outcomes if o.method == FED})
    powers = sorted({o.chosen[2].setting for o in study.outcomes if o.method == TEMPERED})
    right = np.mean(study.accuracy, axis=0)
    notes = [
        f"Data: {rows.name}, {n:,} rows, {kept}; domains {', '.join(rows.names)}. {plan.splits} random divisions, "
        f"{shares}; equal rows stay on one side ({n - int(rows.group.max()) - 1} rows repeat another).",
        "Intervals: 95 %, t, over divisions, with the variance of Nadeau and Bengio (2003) for divisions that share "
        "rows. Differences are paired. A claim goes by the mean difference.",
        f"Chosen here: Phi = exp, {plan.rounds} rounds at most, mu = {SMOOTHING:g}, the grid of l2 for Q; for "
        f"FedMultiBoost {CLIENTS} clients a domain, {SAMPLED} of them and {CLASSIFIERS} stumps of each source a round. "
        "The paper's text was not at hand: its claims are taken as they are usually quoted.",
        f"Q names the domain of {right[0]:.1%} of training and {right[1]:.1%} of test rows; l2 "
        f"{', '.join(f'{c:g}' for c in sorted(set(study.penalties)))}.",
        f"After all rounds, worst-domain training and test loss: {gaps}.",
        f"Does it help to leave other sources out? Test error of a domain's own AdaBoost, and of AdaBoost-all: "
        f"{'; '.join(pooled)}.",
        f"Chosen eta_0 of FedMultiBoost, by error: {', '.join(f'{v:g}' for v in steps)}; powers of Q: "
        f"{', '.join(f'{v:g}' for v in powers)}.",
    ]
    if quick:
        notes.append(f"A quick version: {plan.splits} divisions and {plan.rounds} rounds.")
    return tuple(notes)


# ---------------------------------------------------------------- figures


def _colour(method: str) -> str:
    named = {
        ALL: COLOURS[1],
        MULTI: COLOURS[0],
        PLAIN: COLOURS[5],
        FED: COLOURS[2],
        CROSSED: COLOURS[3],
        OPTIMAL: COLOURS[4],
    }
    return named.get(method, "0.45")


def _draw_errors(study: Study) -> Any:
    """Draw the test error of every domain and the worst: dots with intervals, a row for every method."""
    panels = [*study.names, "worst domain"]
    methods = _methods(study)
    figure, axes = blank(len(panels), width=2.0, height=0.25 * len(methods) + 1.0, sharey=True)
    figure.set_figwidth(2.0 * len(panels) + 1.4)
    y, limit = np.arange(len(methods))[::-1], 0.0
    for i, (axis, name) in enumerate(zip(axes, panels, strict=True)):
        for at, method in zip(y, methods, strict=True):
            values = _by_domain(study, method, "test error")
            found = _estimate(values.max(axis=1) if i == len(study.names) else values[:, i])
            limit = max(limit, found.mean + 0.02, min(found.mean + found.half, 1.0))
            axis.errorbar(found.mean, at, xerr=found.half, fmt="o", markersize=4, color=_colour(method), linewidth=1.3)
        axis.set_title(name, fontsize=9, loc="left")
        axis.set_xlabel("test error")
        axis.set_yticks(y, methods)
        axis.tick_params(axis="y", length=0)
    for axis in axes:
        axis.set_xlim(0.0, 1.03 * limit)
    return figure


def _draw_domain_weights(study: Study) -> Any:
    """Draw the test error over mixtures of two domains, a panel for every pair, with bands."""
    pairs = list(itertools.combinations(range(len(study.names)), 2))[:6]
    lines = (*_single(study), ALL, OPTIMAL, MULTI, PLAIN, FED)
    count = -(-len(pairs) // 3)
    figure, _ = blank(3, width=2.9, height=2.6 * count + 0.5)
    figure.clear()
    grid = figure.subplots(count, 3, sharey=True, squeeze=False).ravel()
    lam = np.linspace(0.0, 1.0, COARSE)
    for axis in grid[len(pairs) :]:
        axis.set_visible(False)
    for axis, (a, b) in zip(grid, pairs, strict=False):
        tidy(axis)
        for method in lines:
            values = _by_domain(study, method, "test error")
            found = [_estimate((1.0 - x) * values[:, a] + x * values[:, b]) for x in lam]
            mean, half = np.array(found).T
            single = method in lines[: len(study.names)]
            style = {"linewidth": 0.9, "linestyle": ":"} if single else {"linewidth": 1.7}
            label = "AdaBoost-k" if method == lines[0] else None if single else method
            axis.plot(lam, mean, color=_colour(method), label=label, **style)
            if not single:
                axis.fill_between(lam, mean - half, mean + half, color=_colour(method), alpha=0.13, linewidth=0)
        axis.set_xlim(0.0, 1.0)
        axis.set_xticks([0.0, 0.5, 1.0], [study.names[a], "half, half", study.names[b]])
        labels = axis.get_xticklabels()
        labels[0].set_horizontalalignment("left")
        labels[2].set_horizontalalignment("right")
    for axis in grid[::3]:
        axis.set_ylabel("test error of the mixture")
        axis.set_ylim(max(0.0, axis.get_ylim()[0]), min(1.0, axis.get_ylim()[1]))
    handles, names = grid[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    return figure


def _draw_rounds(study: Study) -> Any:
    """Draw the worst domain's training loss, test loss and test error over rounds, with bands."""
    figure, axes = blank(3, width=3.1, height=3.2)
    for i, (axis, name) in enumerate(zip(axes, ("training loss", "test loss", "test error"), strict=True)):
        top = 0.0
        for method in CURVES:
            curves = np.array([o.curves[i] for o in study.outcomes if o.method == method])
            mean, half = np.array([_estimate(v) for v in curves.T]).T
            t = np.arange(mean.size)
            first = int(i == 2)  # f = 0 is no classifier
            axis.plot(t[first:], mean[first:], color=_colour(method), label=method, linewidth=1.6)
            axis.fill_between(
                t[first:], (mean - half)[first:], (mean + half)[first:], color=_colour(method), alpha=0.13, linewidth=0
            )
            top = max(top, float(mean[min(10, mean.size - 1) :].max()))
        axis.set_xlabel("rounds")
        axis.set_title(f"worst domain: {name}", fontsize=9, loc="left")
        axis.set_ylim(0.0, min(1.6, 1.15 * top) if i < 2 else min(1.0, 1.2 * top))
        axis.set_xlim(left=0.0)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=5, frameon=False, fontsize=8)
    return figure
