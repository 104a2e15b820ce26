"""Random divisions of the rows, and every method on them."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.optimize import minimize_scalar
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedconvex.driver import iterate
from fedconvex.driver import run as run_method
from fedconvex.families.boosting.experiments.data import Sources
from fedconvex.families.boosting.experiments.trees import TreeProblem, boosted, staged
from fedconvex.federation import Federation
from fedconvex.methods import FedMultiBoost, MultiBoost
from fedconvex.papers.findings import Progress
from fedconvex.papers.finished_parts import finished_part
from fedconvex.problems import Dictionary, EnsembleProblem, Stump, StumpProblem, fit_q

SMOOTHING = 50.0  # chosen here: mu; F_mu is at most log(p)/50 above F
BINS = 16  # chosen here: at most 15 cuts a feature, which is all of them for digits and words
WORDS = 1000  # chosen here: columns of a CSR file that are kept, as presence 0/1
TRAIN, CHOOSE = 0.5, 0.2  # chosen here: shares of the rows to train and to choose on
CLIENTS, SAMPLED, CLASSIFIERS = 10, 5, 200  # chosen here: FedMultiBoost's clients a domain, clients and stumps a round
FACTORS = tuple(2.0 ** (0.5 * e) for e in range(-8, 5))  # chosen here: of f
ALL, LONG, TREES = "AdaBoost-all", "AdaBoost-all, p T rounds", "AdaBoost-all, trees"
UNIFORM, OPTIMAL, BY_Q = "uniform combination", "optimal combination", "optimal, weighted by Q"
MULTI, PLAIN, TEMPERED = "MultiBoost", "MultiBoost, Q = 1/p", "MultiBoost, tempered Q"
SHRUNK, FEW, MULTI_TREES = "MultiBoost, shrunk Q", "MultiBoost, Q of few components", "MultiBoost, trees"
CROSSED, PRINTED, FED = "MultiBoost, cross-fitted Q", "MultiBoost, unsmoothed", "FedMultiBoost"


class BoostScale(NamedTuple):
    """How large the experiment is."""

    splits: int
    rounds: int
    penalties: tuple[float, ...]  # l2 of Q to choose from
    folds: int
    fixed: int  # coordinates of the fixed dictionary
    fixed_rounds: int
    first_steps: tuple[float, ...]  # eta_0 to choose from
    powers: tuple[float, ...]  # of Q, to scale, to choose from; beside 1 and 0
    shrinkages: tuple[float, ...]  # tau of (1 - tau) Q + tau/p, to choose from; beside 0 and 1
    components: tuple[int, ...]  # principal components that Q sees, to choose from; beside all


_FIRST_STEPS = (0.1, 0.3, 1.0, 3.0)  # chosen here, as all grids
FORMS = ((0.5, 0.25), (0.25, 0.5, 0.75), (2, 8, 32))
FULL = BoostScale(10, 200, (1e-3, 1e-2, 1e-1), 3, 100, 500, _FIRST_STEPS, *FORMS)
LARGE = BoostScale(10, 200, (1e-2, 1e-1, 1.0), 3, 100, 500, _FIRST_STEPS, *FORMS)
QUICK = BoostScale(3, 20, (1e-2,), 2, 20, 100, (1.0,), (), (0.5,), (8,))


class Choice(NamedTuple):
    """A number of rounds, chosen on the rows to choose on, and what it gives on test rows."""

    held: float  # worst-domain loss or error on the rows to choose on
    rounds: int
    setting: float  # of what else was chosen (eta_0, the tempering of Q), NaN where there is nothing
    factor: float  # of f
    test: np.ndarray  # (p,) loss or error of every domain


class BoostedSplit(NamedTuple):
    """One method on one division of the rows; losses and errors of every domain."""

    method: str
    split: int
    chosen: tuple[Choice, Choice, Choice]  # by loss; by loss of f times a factor; by error
    last: np.ndarray  # (3, p) training loss, test loss and test error after all rounds
    curves: np.ndarray  # (3, T+1) the same of the worst domain over rounds


class DictionaryOptimum(NamedTuple):
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


class DividedRows(NamedTuple):
    """One division of the rows: features, labels and domains of each part; training rows sorted by client."""

    X: tuple[np.ndarray, np.ndarray, np.ndarray]  # dense (n, d) of the rows to train, choose and test on
    y: tuple[np.ndarray, ...]
    domain: tuple[np.ndarray, ...]
    Q: tuple[np.ndarray, ...]  # (n, p)
    crossed: np.ndarray  # (n, p) Q of training rows, each by a fit without them
    client: np.ndarray  # (n,) of training rows
    accuracy: tuple[float, float]  # share of rows to train and test on whose domain has the largest Q
    l2: float


def divide(rows: Sources, scale: BoostScale, seed: int, split: int) -> DividedRows:
    """Divide the rows of every domain at random, equal rows to one side, and fit Q."""  # 1
    rng = np.random.default_rng([seed, split])
    share = np.empty(len(rows.y))  # position of a row's group in a random order of its domain
    home = np.full(int(rows.group.max()) + 1, -1)
    home[rows.group[::-1]] = rows.domain[::-1]  # domain of the group's first row
    for k in range(rows.p):
        members = np.flatnonzero(home[rows.group] == k)
        order = rng.permutation(int(rows.group.max()) + 1)[rows.group[members]]
        ranks = np.argsort(np.argsort(order, kind="stable"), kind="stable")
        first = np.full(int(order.max(initial=0)) + 1, len(members))
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
    model, crossed = _source_model(X[0], domain[0], rows.group[parts[0]], scale, rng)
    Q = tuple(model(A) for A in X)
    right = [float((Q[i].argmax(axis=1) == domain[i]).mean()) for i in (0, 2)]
    y = tuple(rows.y[i] for i in parts)
    return DividedRows(X, y, tuple(domain), Q, crossed, owner, (right[0], right[1]), model.l2)


def _features(X: Any, parts: Sequence[np.ndarray]) -> Any:
    """Return dense rows of every part; of CSR rows the presence of the columns that most training rows have."""
    if not sp.issparse(X):
        return tuple(np.ascontiguousarray(X[i]) for i in parts)
    present = (X != 0).astype(np.float64).tocsr()
    often = np.asarray(present[parts[0]].sum(axis=0)).ravel()
    kept = np.sort(np.argsort(-often, kind="stable")[:WORDS])
    return tuple(present[i][:, kept].toarray() for i in parts)


def _source_model(X: np.ndarray, domain: np.ndarray, group: np.ndarray, scale: BoostScale, rng: Any) -> Any:  # 2
    """Return Q with the l2 of least held-out log loss, and the held-out Q of every row (n, p)."""
    fold = (rng.permutation(int(group.max()) + 1) % scale.folds)[group]
    held: dict[float, np.ndarray] = {}
    for l2 in scale.penalties:
        held[l2] = np.empty((len(X), int(domain.max()) + 1))
        for f in range(scale.folds):
            model = fit_q(X[fold != f], domain[fold != f], l2=l2, calibrate=False)
            held[l2][fold == f] = model(X[fold == f])
    every = np.arange(len(X))
    best = min(scale.penalties, key=lambda c: float(-np.log(held[c][every, domain] + 1e-300).mean()))
    return fit_q(X, domain, l2=best, calibrate=False), held[best]


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


def _margins(stages: np.ndarray, parts: DividedRows, Q: Sequence[np.ndarray] | None = None) -> list[np.ndarray]:
    """Return y f_t of the rows to train, choose and test on."""
    every = Q if Q is not None else (None, None, None)
    return [_staged(stages, *part) for part in zip(parts.X, parts.y, every, strict=True)]


def of_domains(values: np.ndarray, domain: np.ndarray, p: int) -> np.ndarray:
    """Return the means of values (..., n) over the rows of each domain, (..., p)."""
    one = (domain[:, None] == np.arange(p)).astype(float)
    return np.asarray(values @ (one / one.sum(axis=0)))


def _outcome(
    method: str,
    split: int,
    parts: DividedRows,
    margins: Sequence[np.ndarray],
    own: int | None = None,
    setting: float = math.nan,
) -> BoostedSplit:  # 7
    """Choose the number of rounds from margins (T+1, n) of the rows to train, choose and test on, and measure."""
    p = parts.Q[0].shape[1]

    def losses(i: int, factor: float = 1.0) -> np.ndarray:
        with np.errstate(over="ignore"):
            return of_domains(np.exp(-factor * margins[i]), parts.domain[i], p)

    def chosen(held: np.ndarray, test: np.ndarray, factor: float = 1.0) -> Choice:
        of = held.max(axis=1) if own is None else held[:, own]
        t = int(np.argmin(of))
        return Choice(float(of[t]), t, setting, factor, test[t])

    train, test = losses(0), losses(2)
    held_error, error = (of_domains((margins[i] <= 0.0).astype(float), parts.domain[i], p) for i in (1, 2))
    choices = (
        chosen(losses(1), test),
        min((chosen(losses(1, c), losses(2, c), c) for c in FACTORS), key=lambda found: found.held),
        chosen(held_error, error),
    )
    curves = np.array([train.max(axis=1), test.max(axis=1), error.max(axis=1)])
    return BoostedSplit(method, split, choices, np.array([train[-1], test[-1], error[-1]]), curves)


def _best(found: Sequence[BoostedSplit], method: str) -> BoostedSplit:  # 7
    """Return the outcome whose choices are the best of several settings; curves and last rounds by error."""
    loss, scaled, error = (min(range(len(found)), key=lambda j: found[j].chosen[i].held) for i in range(3))
    choices = (found[loss].chosen[0], found[scaled].chosen[1], found[error].chosen[2])
    return found[error]._replace(method=method, chosen=choices)


def _combined(
    scores: Sequence[np.ndarray], parts: DividedRows, Q: Sequence[np.ndarray] | None
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


def _uniform(scores: Sequence[np.ndarray], parts: DividedRows) -> list[np.ndarray]:  # 4
    """Return margins (1, n) of the mean of the scores, times the factor of least worst-domain training loss."""
    margins = [y * s.mean(axis=1) for y, s in zip(parts.y, scores, strict=True)]
    p = parts.Q[0].shape[1]

    def worst(c: float) -> float:
        return float(of_domains(np.exp(-c * margins[0]), parts.domain[0], p).max())

    c = float(minimize_scalar(worst, bounds=(0.0, 100.0), method="bounded").x)
    return [c * m[None] for m in margins]


def tempered(Q: np.ndarray, power: float) -> np.ndarray:
    """Return Q to a power, rows divided by their sums; 0 gives 1/p."""
    raised = np.maximum(Q, 1e-300) ** power
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def _of_components(parts: DividedRows, numbers: Sequence[int]) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield Q of all rows, fitted on so many principal components of the training rows without their labels."""
    center = parts.X[0].mean(axis=0)
    _, axes = np.linalg.eigh((parts.X[0] - center).T @ (parts.X[0] - center))
    for k in numbers:
        seen = tuple((A - center) @ axes[:, -k:] for A in parts.X)
        model = fit_q(seen[0], parts.domain[0], l2=parts.l2, calibrate=False)
        yield tuple(model(A) for A in seen)


def forms_of_q(parts: DividedRows, scale: BoostScale) -> dict[str, dict[float, tuple[np.ndarray, ...]]]:  # 5
    """Return what Q a method may choose from, by its setting; the same Q is the same object."""
    Q, even = parts.Q, tuple(tempered(q, 0.0) for q in parts.Q)
    powers = {1.0: Q, 0.0: even} | {a: tuple(tempered(q, a) for q in Q) for a in scale.powers}
    shrunk = {0.0: Q, 1.0: even}
    shrunk |= {t: tuple((1.0 - t) * q + t * e for q, e in zip(Q, even, strict=True)) for t in scale.shrinkages}
    few = zip(map(float, scale.components), _of_components(parts, scale.components), strict=True)
    return {MULTI: {1.0: Q}, PLAIN: {0.0: even}, TEMPERED: powers, SHRUNK: shrunk, FEW: {math.inf: Q} | dict(few)}


def _stumps(table: Any) -> list[Stump]:
    """List the stumps that the search may find: all cuts in both directions, and two constants."""
    cuts = [Stump(j, float(c), s, -s) for j, edges in enumerate(table.edges) for c in edges for s in (-1.0, 1.0)]
    return [*cuts, *(Stump(0, math.inf, s, s) for s in (-1.0, 1.0))]


def _predictions(stumps: Sequence[Stump], X: np.ndarray) -> np.ndarray:
    features, cuts, left, right = (np.array(v) for v in zip(*stumps, strict=True))
    return np.where(X[:, features] <= cuts, left, right)


def _federated(
    split: int, parts: DividedRows, stumps: Sequence[Stump], scale: BoostScale, seed: int
) -> BoostedSplit:  # 6
    """Run FedMultiBoost with every eta_0, and return the best on the rows to choose on."""
    p = parts.Q[0].shape[1]
    H = _predictions(stumps, parts.X[0])
    fed = Federation.from_arrays(np.zeros((len(H), 1)), parts.y[0], parts.client, parts.domain[0])
    problem = EnsembleProblem(fed, Dictionary(np.tile(H, (1, p)), np.repeat(np.arange(p), len(stumps))), parts.Q[0])
    steps, most = np.array(scale.first_steps), min(CLASSIFIERS, len(stumps))
    method = FedMultiBoost(step_size=steps, clients_per_domain=SAMPLED, classifiers=most)
    history = None
    for _, state in iterate(method, problem, rounds=scale.rounds, seed=seed + split, trajectories=steps.size):
        history = state.history
    found = []
    for eta, log in zip(scale.first_steps, np.asarray(history), strict=True):
        stages = log.copy()
        stages[:, 1:5] = np.array(stumps)[log[:, 1].astype(int) % len(stumps)]
        found.append(_outcome(FED, split, parts, _margins(stages, parts, parts.Q), setting=eta))
    return _best(found, FED)


def _one_split(
    rows: Sources, scale: BoostScale, seed: int, split: int, tell: Any
) -> tuple[list[BoostedSplit], DividedRows, float, np.ndarray]:
    """Run every method on one division.

    Also returned: the division, the largest gap of the combinations, and the stages of MultiBoost.
    """
    tell("dividing rows, and fitting Q")
    parts, p, T = divide(rows, scale, seed, split), rows.p, scale.rounds
    X, y, domain = parts.X[0], parts.y[0], parts.domain[0]
    out: list[BoostedSplit] = []

    scores = [np.empty((len(v), p)) for v in parts.y]
    for k in range(p):  # 4
        tell(f"AdaBoost-{rows.names[k]}")
        mine = domain == k
        fed = Federation.from_arrays(X[mine], y[mine], domain[mine])
        stages = _boost(StumpProblem(fed, bins=BINS), T)
        margins = _margins(stages, parts)
        out.append(_outcome(f"AdaBoost-{rows.names[k]}", split, parts, margins, own=k))
        t = max(out[-1].chosen[2].rounds, 1)
        weight = max(float(np.abs(stages[:t, 5]).sum()), 1e-300)
        for score, m, label in zip(scores, margins, parts.y, strict=True):
            score[:, k] = np.clip(label * m[t] / weight, -1.0, 1.0)
    pooled = Federation.from_arrays(X, y, parts.client)
    out += _pooled(split, parts, pooled, T, tell)
    tell("combinations")
    out.append(_outcome(UNIFORM, split, parts, _uniform(scores, parts)))
    gaps = []
    for name, Q in ((OPTIMAL, None), (BY_Q, parts.Q)):
        margins, gap = _combined(scores, parts, Q)
        out.append(_outcome(name, split, parts, margins))
        gaps.append(gap)
    found, first = _several(split, parts, scale, tell)
    out += found
    tell(FED)
    stumps = _stumps(StumpProblem(pooled, bins=BINS).table)
    out.append(_federated(split, parts, stumps, scale, seed))
    return out, parts, max(gaps), first


def _pooled(split: int, parts: DividedRows, pooled: Federation, rounds: int, tell: Any) -> Iterator[BoostedSplit]:  # 4
    """Yield AdaBoost on all rows: T rounds and p T of stumps, T of trees."""
    tell(ALL)
    margins = _margins(_boost(StumpProblem(pooled, bins=BINS), rounds * parts.Q[0].shape[1]), parts)
    yield _outcome(ALL, split, parts, [m[: rounds + 1] for m in margins])
    yield _outcome(LONG, split, parts, margins)
    tell(TREES)
    f = boosted(TreeProblem(pooled, bins=BINS), rounds, SMOOTHING)
    yield _outcome(TREES, split, parts, [v * staged(f, rounds, A, None) for A, v in zip(parts.X, parts.y, strict=True)])


def _several(
    split: int, parts: DividedRows, scale: BoostScale, tell: Any
) -> tuple[list[BoostedSplit], np.ndarray]:  # 5
    """Return MultiBoost in all forms, and the stages of the one with Q."""
    fed, T = Federation.from_arrays(parts.X[0], parts.y[0], parts.client, parts.domain[0]), scale.rounds
    made: dict[int, np.ndarray] = {}
    out = []
    forms = forms_of_q(parts, scale)
    for name, choices in forms.items():
        found = []
        for setting, Q in choices.items():
            if id(Q) not in made:
                tell(f"{name}, {setting:g}")
                made[id(Q)] = _boost(StumpProblem(fed, Q[0], bins=BINS), T, SMOOTHING)
            found.append(_outcome(name, split, parts, _margins(made[id(Q)], parts, Q), setting=setting))
        out.append(_best(found, name))
    for name, q, smoothing in ((CROSSED, parts.crossed, SMOOTHING), (PRINTED, parts.Q[0], None)):
        tell(name)
        stages = _boost(StumpProblem(fed, q, bins=BINS), T, smoothing)
        out.append(_outcome(name, split, parts, _margins(stages, parts, (q, *parts.Q[1:]))))
    tell(MULTI_TREES)
    f = boosted(TreeProblem(fed, parts.Q[0], bins=BINS), T, SMOOTHING)
    every = zip(parts.X, parts.y, parts.Q, strict=True)
    out.append(_outcome(MULTI_TREES, split, parts, [v * staged(f, T, A, q) for A, v, q in every]))
    return out, made[id(forms[MULTI][1.0])]


def _certified(
    parts: DividedRows, stages: np.ndarray, scale: BoostScale, seed: int, own_gap: float
) -> DictionaryOptimum:  # 10
    """Compare with the certified optimum over the first coordinates that MultiBoost chose."""
    first = list(dict.fromkeys(tuple(stage[:5]) for stage in stages.tolist() if stage[5] != 0.0))[: scale.fixed]
    H = _predictions([Stump(int(j), c, left, right) for _, j, c, left, right in first], parts.X[0])
    sources = np.array([int(stage[0]) for stage in first])
    fed = Federation.from_arrays(np.zeros((len(H), 1)), parts.y[0], parts.client, parts.domain[0])
    problem = EnsembleProblem(fed, Dictionary(H, sources), parts.Q[0])
    best = problem.solve()
    multi = fed_value = math.inf
    for _, state in iterate(MultiBoost(smoothing=SMOOTHING), problem, rounds=scale.fixed_rounds):
        multi = float(problem.value(state.w[0]))
    method = FedMultiBoost(step_size=np.array(scale.first_steps), clients_per_domain=SAMPLED)
    for _, state in iterate(method, problem, rounds=scale.rounds, seed=seed, trajectories=len(scale.first_steps)):
        fed_value = min(fed_value, float(np.min(problem.value(state.w))))
    ends = (float(best.value), float(best.lower))
    reached = (multi, scale.fixed_rounds, fed_value, scale.rounds)
    return DictionaryOptimum(len(first), len(H), *ends, *reached, own_gap)


class BoostStudy(NamedTuple):
    """What was measured."""

    names: tuple[str, ...]  # of the domains
    outcomes: tuple[BoostedSplit, ...]
    accuracy: tuple[tuple[float, float], ...]  # of Q on rows to train and test on, by division
    penalties: tuple[float, ...]  # l2 of Q, by division
    optimum: DictionaryOptimum


def _division(
    rows: Sources, scale: BoostScale, seed: int, split: int, tell: Any
) -> tuple[list[BoostedSplit], float, tuple[float, float], float, DictionaryOptimum | None]:
    """Return a division's outcomes, largest gap, accuracy of Q and l2; of the first also the certified optimum."""
    found, parts, gap, stages = _one_split(rows, scale, seed, split, tell)
    if split:
        return found, gap, parts.accuracy, parts.l2, None
    tell("a fixed dictionary")
    return found, gap, parts.accuracy, parts.l2, _certified(parts, stages, scale, seed, gap)


@threadpool_limits.wrap(limits=1, user_api="blas")  # products are small: threads would wait for each other
def boost_study(rows: Sources, scale: BoostScale, seed: int, tell: Progress) -> BoostStudy:
    """Run every method on every division, and compare with a certified optimum on the first."""
    outcomes: list[BoostedSplit] = []
    accuracy, penalties, gaps = [], [], []
    certificate: DictionaryOptimum | None = None
    usual = rows.p + 18  # tasks of a division
    for split in range(scale.splits):
        tasks = itertools.count()

        def at(doing: str, split: int = split, tasks: Any = tasks) -> None:
            share = (split + min(next(tasks) / usual, 0.99)) / scale.splits
            tell(share, f"division {split + 1} of {scale.splits}: {doing}")

        make, records = partial(_division, rows, scale, seed, split, at), (BoostedSplit, Choice, DictionaryOptimum)
        found, own_gap, shares, l2, certified = finished_part(f"division {split}", make, records)
        outcomes += found
        accuracy.append(shares)
        penalties.append(l2)
        gaps.append(own_gap)
        certificate = certificate or certified
    assert certificate is not None
    optimum = certificate._replace(own_gap=max(gaps))
    return BoostStudy(rows.names, tuple(outcomes), tuple(accuracy), tuple(penalties), optimum)
