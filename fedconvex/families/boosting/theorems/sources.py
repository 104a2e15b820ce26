"""Instances of boosting with several sources."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedconvex import datasets
from fedconvex.families.boosting.theorems.paths import line_search
from fedconvex.problems import BoostingProblem, Dictionary, EnsembleProblem, StumpProblem
from fedconvex.theorems.kit import *


def _sources(p: int) -> Federation:
    """Rows of p domains with shifted features and labels that depend on them in different ways."""
    rng = np.random.default_rng(p)
    domain = np.arange(60 * p) % p
    X = rng.normal(size=(domain.size, 4))
    X[:, 0] += 2.0 * domain
    z = X[:, 1] + X[:, 2] * (domain + 1 - 0.5 * p) + rng.normal(size=domain.size)
    return Federation.from_arrays(X, np.where(z > 0.0, 1.0, -1.0), domain, domain)


def _nearness(X: np.ndarray, domain: np.ndarray) -> np.ndarray:
    """Q(l|x) proportional to exp(-‖x - mean of domain l‖^2/2), and at least 1/(10 p)."""
    means = np.array([X[domain == k].mean(axis=0) for k in np.unique(domain)])
    far = 0.5 * np.sum((X[:, None] - means) ** 2, axis=2)
    Q = np.exp(far.min(axis=1, keepdims=True) - far)
    return 0.9 * Q / Q.sum(axis=1, keepdims=True) + 0.1 / len(means)


@example("two sources", "2 shifted sources of 60 rows, a list of stumps, exponential loss")
def two_sources() -> EnsembleProblem:
    """Stumps of every source with three cuts per feature; Q by the distance from the sources' means."""
    fed = _sources(2)
    assert fed.domain is not None
    return EnsembleProblem(fed, Dictionary.stumps(fed, cuts=3), _nearness(fed.X, fed.domain))


@example("three sources", "3 shifted sources of 60 rows, all stumps, exponential loss")
def three_sources() -> StumpProblem:
    """Stumps are searched for; Q by the distance from the sources' means."""
    fed = _sources(3)
    assert fed.domain is not None
    return StumpProblem(fed, _nearness(fed.X, fed.domain))


@example("one source", "one source of 60 rows, all stumps, exponential loss")
def one_source() -> StumpProblem:
    """AdaBoost's setting."""
    return StumpProblem(_sources(1))


@example("one source, listed", "one source of 60 rows, a list of stumps, exponential loss")
def one_source_listed() -> EnsembleProblem:
    """Stumps with three cuts per feature, which answer -1 or +1."""
    fed = _sources(1)
    return EnsembleProblem(fed, Dictionary.stumps(fed, cuts=3))


@example("opposed classifiers", "2 domains of one row, each source's classifier gains 0.1 at home and loses 0.9 abroad")
def opposed_classifiers() -> EnsembleProblem:
    """No ensemble is better than none, and whoever lowers the worst domain only raises both for ever."""
    fed = Federation.from_arrays(np.zeros((2, 1)), np.ones(2), [0, 1], [0, 1])
    return EnsembleProblem(fed, Dictionary([[1.0, -1.0], [-1.0, 1.0]], [0, 1]), [[0.1, 0.9], [0.9, 0.1]])


@example("timid classifier", "100 rows, one classifier that answers 0.02 on 99 of them and -1 on the last, wrongly")
def timid_classifier() -> EnsembleProblem:
    """After a line search nearly all of the loss comes from rows of one margin."""
    fed = Federation.from_arrays(np.zeros((100, 1)), np.ones(100), np.zeros(100, dtype=int))
    return EnsembleProblem(fed, Dictionary(np.append(np.full(99, 0.02), -1.0)[:, None], [0]))


def _tumours() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Five features of breast_cancer, labels, and thirds of the patients by their third feature."""
    X, y, _ = datasets.load_bundled("breast_cancer")
    return X[:, :5], y, datasets.partition_similarity(X[:, 2], 3, 20.0, seed=0)


@example("breast cancer, 3 sources", "breast_cancer, patients in three sources by the size of their tumours", "real")
def breast_cancer_sources() -> EnsembleProblem:
    """Stumps of every source with three cuts for each of five features; constant Q."""
    X, y, who = _tumours()
    fed = Federation.from_arrays(X, y, who, who)
    return EnsembleProblem(fed, Dictionary.stumps(fed, cuts=3))


@example("breast cancer, one source", "breast_cancer, all stumps, exponential loss", "real")
def breast_cancer_one_source() -> StumpProblem:
    """All patients, five features."""
    X, y, _ = _tumours()
    return StumpProblem(Federation.from_arrays(X, y, np.zeros(len(y), dtype=int)))


def as_stumps(problem: Problem) -> StumpProblem:
    """Return boosting with all stumps; sources are a problem's domains, else up to 20 clients, else there is one."""
    return StumpProblem(_as_sources(problem))


_LONGEST = 20_000_000


def as_list(problem: Problem) -> EnsembleProblem:
    """Return boosting with a list of stumps, two cuts per feature; sources as for `as_stumps`."""
    fed = _as_sources(problem)
    size = fed.n * (fed.n_domains or 1) * (4 * fed.d + 2)
    if size > _LONGEST:
        raise bad("a list of stumps", f"have at most {_LONGEST:,} predictions", f"{size:,}", "take fewer rows")
    return EnsembleProblem(fed, Dictionary.stumps(fed, cuts=2))


def as_one_source(problem: Problem) -> StumpProblem:
    """Return boosting with all stumps on the rows of all clients."""
    fed = problem.federation
    return StumpProblem(Federation.from_arrays(fed.X, fed.y, np.zeros(fed.n, dtype=int)))


def _as_sources(problem: Problem) -> Federation:
    fed = problem.federation
    if fed.domain is not None:
        return fed
    who = np.repeat(np.arange(fed.K) if fed.K <= 20 else np.zeros(fed.K, dtype=int), fed.sizes)
    return Federation.from_arrays(fed.X, fed.y, who, who)


def sources_space(adapt: Callable[[Problem], BoostingProblem], *, smoothed: bool = True) -> Space:
    """Return where to look for sharp sources: the clients of tiny problems, with stumps, made by ``adapt``.

    Parameters
    ----------
    adapt : callable
        `as_one_source`, `as_stumps` or `as_list`.
    smoothed : bool
        Whether the maximum over the sources is smoothed.
    """
    knobs: dict[str, Real] = {"smoothing": Real(0.1, 100.0)} if smoothed else {}
    return Space(
        lambda k: line_search(**k),
        knobs,
        losses=("logistic",),
        rounds=(1, 6),
        problem=lambda tiny: adapt(tiny.problem()),
        start=from_zero,
    )
