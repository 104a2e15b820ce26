"""Instances: the problems that theorems are checked on, synthetic and real."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np

from fedconvex import datasets
from fedconvex._check import bad
from fedconvex.federation import Federation
from fedconvex.losses import Hinge, Logistic, SmoothedHinge, Squared
from fedconvex.problems import (
    Dictionary,
    EnsembleProblem,
    MeanRegularised,
    MultiTaskProblem,
    Pooled,
    Precision,
    Problem,
    StumpProblem,
)
from fedconvex.theorems.parts.theorem import Instance

__all__ = ["Instance", "as_list", "as_one_source", "as_stumps", "as_tasks", "own"]


def _instance(name: str, words: str, data: str = "synthetic") -> Callable[[Callable[[], Problem]], Instance]:
    return lambda make: Instance(name, words, data, cache(make))


@_instance("two clients", "two clients, F = (w - 1 ± 1/2)²/2")
def two_clients() -> Problem:
    """L = D = 1, zeta = zeta_* = 1/2."""
    return Problem(Federation.from_clients([([[1.0]], [0.5]), ([[1.0]], [1.5])]), Squared())


@_instance("three clients", "three clients, F = ‖w - c‖²/2 with c the corners of a triangle")
def three_clients() -> Problem:
    """L = 1, equal Hessians; each client has an orthonormal design of two rows."""
    corners = np.array([[1.0, 0.0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)]])
    X = math.sqrt(2.0) * np.eye(2)
    return Problem(Federation.from_clients([(X, X @ (0.5 * c + [0.6, 0.8])) for c in corners]), Squared())


@_instance("two logistic clients", "two opposed clients, logistic loss")
def two_logistic_clients() -> Problem:
    """Opposite labels on features of different size."""
    return Problem(
        Federation.from_clients([([[2.0], [1.0]], [1.0, 1.0]), ([[0.5], [1.5]], [-1.0, 1.0])]), Logistic(), 0.1
    )


@_instance("equal clients", "10 equal clients, least squares")
def equal_clients() -> Problem:
    """Homogeneous: all clients have the same objective up to a constant, zeta = 0."""
    return Problem(datasets.linear_federation(10, 4, 20, seed=0).federation, Squared())


@_instance("equal Hessians", "10 clients, least squares, equal Hessians")
def equal_hessians() -> Problem:
    """One Hessian, different minimisers: zeta = 0.6."""
    return Problem(datasets.linear_federation(10, 4, 20, zeta_star=0.5, seed=0).federation, Squared())


@_instance("unequal Hessians", "10 clients, least squares, unequal Hessians and models")
def unequal_hessians() -> Problem:
    """Nothing is equal but the sizes."""
    data = datasets.linear_federation(10, 4, 20, feature_shift=0.5, model_shift=0.5, noise=0.5, seed=0)
    return Problem(data.federation, Squared(), 0.1)


@_instance("alike logistic", "10 clients of one distribution, logistic loss")
def alike_logistic() -> Problem:
    """Homogeneous up to sampling."""
    return Problem(datasets.logistic_federation(10, 4, 20, seed=0).federation, Logistic(), 0.1)


@_instance("shifted logistic", "10 clients with shifted features and models, logistic loss")
def shifted_logistic() -> Problem:
    """Unequal sizes, hence unequal weights, would exclude the field guide: all have 20 rows."""
    data = datasets.logistic_federation(10, 4, 20, feature_shift=0.5, model_shift=1.0, seed=0)
    return Problem(data.federation, Logistic(), 0.1)


@_instance("uneven logistic", "10 clients of unequal sizes, logistic loss, weights n_k/n")
def uneven_logistic() -> Problem:
    """Sizes differ by a factor of ten or so."""
    data = datasets.logistic_federation(10, 4, 20, size_skew=1.0, model_shift=1.0, seed=0)
    return Problem(data.federation, Logistic(), 0.1)


@_instance("copied rows", "3 clients with copies of the same two classes in different shares")
def copied_rows() -> Problem:
    """Equal class conditionals, exactly."""
    rng = np.random.default_rng(0)
    return _copies(rng.normal(size=(6, 2)) + 1.0, rng.normal(size=(6, 2)) - 1.0)


def _copies(up: np.ndarray, down: np.ndarray) -> Problem:
    clients = []
    for more, less in ((4, 1), (2, 2), (1, 4)):
        X = np.vstack([up] * more + [down] * less)
        clients.append((X, np.where(np.arange(len(X)) < more * len(up), 1.0, -1.0)))
    return Problem(Federation.from_clients(clients), Logistic(), 0.1)


@_instance("breast cancer", "breast_cancer, 8 hospitals, logistic loss", "real")
def breast_cancer() -> Problem:
    """569 patients divided unevenly by diagnosis (Dirichlet 0.5), equal weights."""
    X, y, _ = datasets.load_bundled("breast_cancer")
    return Problem(
        Federation.from_arrays(X, y, datasets.partition_dirichlet(y, 8, 0.5, seed=0)), Logistic(), 0.1, "uniform"
    )


@_instance("breast cancer, n_k/n", "breast_cancer, 8 hospitals, logistic loss, weights n_k/n", "real")
def breast_cancer_by_size() -> Problem:
    """Weighted by size."""
    return Problem(breast_cancer.make().federation, Logistic(), 0.1)


@_instance("breast cancer, 2", "breast_cancer, 2 hospitals, logistic loss", "real")
def breast_cancer_two() -> Problem:
    """Half of the patients each, three standardised features."""
    X, y, _ = datasets.load_bundled("breast_cancer")
    who = datasets.partition_similarity(X[:568, 0], 2, 20.0, seed=0)
    return Problem(Federation.from_arrays(X[:568, :3], y[:568], who), Logistic(), 0.1, "uniform")


@_instance("breast cancer, copied", "breast_cancer, 3 clients with copies of 40 patients in different shares", "real")
def breast_cancer_copied() -> Problem:
    """Equal class conditionals, exactly."""
    X, y, _ = datasets.load_bundled("breast_cancer")
    return _copies(X[y > 0][:20, :5], X[y < 0][:20, :5])


@_instance("diabetes", "diabetes, 8 clinics, least squares", "real")
def diabetes() -> Problem:
    """442 patients sorted by outcome except for a fifth of them; features and target standardised."""
    X, y, _ = datasets.load_bundled("diabetes")
    who = datasets.partition_similarity(y, 8, 20.0, seed=0)
    return Problem(Federation.from_arrays(X, (y - y.mean()) / y.std(), who), Squared(), 0.1, "uniform")


@_instance("diabetes, whitened", "diabetes, 8 clinics, each with decorrelated features", "real")
def diabetes_whitened() -> Problem:
    """Orthonormal designs X_k'X_k = n_k: every clinic rotates and scales its own features; equal Hessians."""
    fed = diabetes.make().federation
    X = np.vstack(
        [math.sqrt(hi - lo) * np.linalg.qr(fed.X[lo:hi])[0] for lo, hi in zip(fed.ptr, fed.ptr[1:], strict=False)]
    )
    return Problem(replace(fed, X=X), Squared(), 0.0, "uniform")


# ---------------------------------------------------------------- related tasks


@_instance("twin tasks", "4 tasks with the same single row and targets of mean zero, one model for all, squared loss")
def twin_tasks() -> MultiTaskProblem:
    """D - min D contracts by (1 - s)^2 in a round with exact local solutions, where Theorem 1 says 1 - s; s = 1/6."""
    return MultiTaskProblem(Federation.from_clients([([[1.0]], [t - 1.5]) for t in range(4)]), Squared(), Pooled(0.2))


@_instance("opposed tasks", "6 tasks with single rows of opposite signs, one model for all, hinge loss")
def opposed_tasks() -> MultiTaskProblem:
    """D - min D falls from 6 by 1.2 in each of five rounds; Theorem 2 says by half of that in the first."""
    return MultiTaskProblem(Federation.from_clients([([[(-1.0) ** t]], [1.0]) for t in range(6)]), Hinge(), Pooled(0.2))


def _tasks(m: int, d: int, most: int) -> Federation:
    """Tasks of 6 to so many rows whose models are a common one plus their own."""
    rng = np.random.default_rng(most)
    common, pairs = rng.normal(size=d), []
    for n in rng.integers(6, most + 1, size=m):
        X = rng.normal(size=(int(n), d))
        z = X @ (common + 0.7 * rng.normal(size=d)) + 0.4 * rng.normal(size=int(n))
        pairs.append((X, np.where(z > 0.0, 1.0, -1.0)))
    return Federation.from_clients(pairs)


@_instance("related tasks", "6 related tasks of 6 to 40 rows, pulled towards their mean, smoothed hinge")
def related_tasks() -> MultiTaskProblem:
    """Unequal sizes, losses averaged per task."""
    return MultiTaskProblem(_tasks(6, 4, 40), SmoothedHinge(0.5), MeanRegularised(1.0, 0.5), "mean")


@_instance("related tasks, hinge", "6 related tasks of 6 to 40 rows, pulled towards their mean, hinge")
def related_tasks_hinge() -> MultiTaskProblem:
    """Not smooth, on the rows of `related_tasks`."""
    return MultiTaskProblem(related_tasks.make().federation, Hinge(), MeanRegularised(1.0, 0.5), "mean")


@_instance("wide tasks", "5 tasks of 6 to 12 rows with 20 features, neighbours on a path alike, logistic loss")
def wide_tasks() -> MultiTaskProblem:
    """Tasks with fewer rows than features: all four rules give another sigma', 2.21, 2.44, 2.82 and 5."""
    path = np.eye(5, k=1) + np.eye(5, k=-1)
    return MultiTaskProblem(_tasks(5, 20, 12), Logistic(), Precision.laplacian(path, 1.0, 0.5))


@_instance("breast cancer, tasks", "breast_cancer, 8 hospitals as related tasks, smoothed hinge", "real")
def breast_cancer_tasks() -> MultiTaskProblem:
    """Hospitals of very different sizes, every one with a model of its own."""
    return MultiTaskProblem(breast_cancer.make().federation, SmoothedHinge(0.5), MeanRegularised(1.0, 0.5), "mean")


@_instance("breast cancer, tasks, hinge", "breast_cancer, 8 hospitals as related tasks, hinge", "real")
def breast_cancer_tasks_hinge() -> MultiTaskProblem:
    """Not smooth, on the rows of `breast_cancer_tasks`."""
    return MultiTaskProblem(breast_cancer.make().federation, Hinge(), MeanRegularised(1.0, 0.5), "mean")


def as_tasks(problem: Problem) -> MultiTaskProblem:
    """Return the clients of a problem as tasks that are pulled towards their mean, with the same loss."""
    return MultiTaskProblem(problem.federation, problem.loss, MeanRegularised(1.0, 0.5), "mean")


# ---------------------------------------------------------------- boosting


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


@_instance("two sources", "2 shifted sources of 60 rows, a list of stumps, exponential loss")
def two_sources() -> EnsembleProblem:
    """Stumps of every source with three cuts per feature; Q by the distance from the sources' means."""
    fed = _sources(2)
    assert fed.domain is not None
    return EnsembleProblem(fed, Dictionary.stumps(fed, cuts=3), _nearness(fed.X, fed.domain))


@_instance("three sources", "3 shifted sources of 60 rows, all stumps, exponential loss")
def three_sources() -> StumpProblem:
    """Stumps are searched for; Q by the distance from the sources' means."""
    fed = _sources(3)
    assert fed.domain is not None
    return StumpProblem(fed, _nearness(fed.X, fed.domain))


@_instance("one source", "one source of 60 rows, all stumps, exponential loss")
def one_source() -> StumpProblem:
    """AdaBoost's setting."""
    return StumpProblem(_sources(1))


def _tumours() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Five features of breast_cancer, labels, and thirds of the patients by their third feature."""
    X, y, _ = datasets.load_bundled("breast_cancer")
    return X[:, :5], y, datasets.partition_similarity(X[:, 2], 3, 20.0, seed=0)


@_instance("breast cancer, 3 sources", "breast_cancer, patients in three sources by the size of their tumours", "real")
def breast_cancer_sources() -> EnsembleProblem:
    """Stumps of every source with three cuts for each of five features; constant Q."""
    X, y, who = _tumours()
    fed = Federation.from_arrays(X, y, who, who)
    return EnsembleProblem(fed, Dictionary.stumps(fed, cuts=3))


@_instance("breast cancer, one source", "breast_cancer, all stumps, exponential loss", "real")
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


# ---------------------------------------------------------------- several domains


@_instance("three domains", "3 domains over 4 clients, logistic loss")
def three_domains() -> Problem:
    """Domains of 30, 20 and 10 rows with shifted features and models; every client holds rows of each."""
    rng = np.random.default_rng(0)
    domain = np.repeat(np.arange(3), (30, 20, 10))
    X = rng.normal(size=(60, 3)) + 0.5 * (domain[:, None] - 1.0)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    z = np.einsum("ij,ij->i", X, rng.normal(size=(3, 3))[domain]) + 0.2 * rng.normal(size=60)
    return Problem(Federation.from_arrays(X, np.where(z > 0.0, 1.0, -1.0), np.arange(60) % 4, domain), Logistic(), 0.05)


@_instance("log(2/sqrt 3)", "one column of ones, labels (+,+) in one domain and (+,-) in the other, logistic loss")
def opposite_labels() -> Problem:
    """Pooled optimum and agnostic optimum, of value log 2, differ by log(2/sqrt 3)."""
    return Problem(Federation.from_arrays(np.ones((4, 1)), [1.0, 1.0, 1.0, -1.0], [0, 0, 1, 1]), Logistic())


@_instance("one line", "one row of one small feature, logistic loss: linear up to a quarter of a percent on [-1, 1]")
def one_row() -> Problem:
    """From one end of the ball a single step leaves the gap 2RG, which the rate for any steps says."""
    return Problem(Federation.from_arrays([[0.01]], [1.0], [0]), Logistic())


@_instance("two urns", "2 domains, labels +1 and -1 equally often, squared loss")
def two_coin_domains() -> Problem:
    """At w = 1 the losses are 0 and 2."""
    return Problem(Federation.from_arrays(np.ones((4, 1)), [1.0, -1.0, 1.0, -1.0], [0, 0, 1, 1]), Squared())


@_instance("twenty urns", "20 domains, labels +1 and -1 equally often, squared loss")
def twenty_coin_domains() -> Problem:
    """Many domains: a union bound has something to pay for."""
    return Problem(Federation.from_arrays(np.ones((40, 1)), [1.0, -1.0] * 20, np.arange(40) // 2), Squared())


@_instance("three tables", "3 domains of 4 rows with two features, squared loss")
def three_small_domains() -> Problem:
    """Few rows: all samples of a domain can be listed."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(12, 2))
    y = X[:, 0] + np.repeat([-0.5, 0.0, 0.5], 4) + 0.3 * rng.normal(size=12)
    return Problem(Federation.from_arrays(X, y, np.repeat(np.arange(3), 4)), Squared())


@_instance("plane", "3 domains of 20 rows in the plane, two classes")
def plane_domains() -> Problem:
    """Shifted domains with labels of their own."""
    rng = np.random.default_rng(4)
    domain = np.repeat(np.arange(3), 20)
    X = rng.normal(size=(60, 2)) + 0.5 * np.eye(3)[domain, :2]
    z = np.einsum("ij,ij->i", X, rng.normal(size=(3, 2))[domain]) + 0.5 * rng.normal(size=60)
    return Problem(Federation.from_arrays(X, np.where(z > 0.0, 1.0, -1.0), domain), Logistic())


@_instance("breast cancer, 3 domains", "breast_cancer, 8 hospitals, three domains by the size of the tumour", "real")
def breast_cancer_domains() -> Problem:
    """Thirds of the patients by their first feature; hospitals as in `breast_cancer`."""
    X, y, _ = datasets.load_bundled("breast_cancer")
    third = np.searchsorted(np.quantile(X[:, 0], (1 / 3, 2 / 3)), X[:, 0])
    who = datasets.partition_dirichlet(y, 8, 0.5, seed=0)
    return Problem(Federation.from_arrays(X[:, :10], y, who, third), Logistic(), 0.05)


@_instance("breast cancer, 2 features", "breast_cancer, size and texture of 120 tumours in three hospitals", "real")
def breast_cancer_two_features() -> Problem:
    """Two standardised features, no intercept."""
    X, y, _ = datasets.load_bundled("breast_cancer")
    return Problem(Federation.from_arrays(X[:120, :2], y[:120], np.arange(120) % 3), Logistic())


@_instance("diabetes, 3 ages", "diabetes, three domains by age, least squares on three features", "real")
def diabetes_ages() -> Problem:
    """Thirds of the patients by age; body mass, blood pressure and a serum value predict the progression."""
    X, y, _ = datasets.load_bundled("diabetes")
    third = np.searchsorted(np.quantile(X[:, 0], (1 / 3, 2 / 3)), X[:, 0])
    return Problem(Federation.from_arrays(X[:, [2, 3, 8]], (y - y.mean()) / y.std(), third), Squared())


def own(problem: Problem, name: str, words: str = "") -> Instance:
    """Return the instance of a problem of your own."""
    return Instance(name, words or name, "yours", lambda: problem)
