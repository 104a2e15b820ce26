"""Instances of several domains."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from itertools import combinations
from typing import Any

import numpy as np
from scipy.special import lambertw

from fedconvex import datasets
from fedconvex.methods import AFL
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.samples import Models
from fedconvex.theorems.parts.tiny import from_offset


@example("three domains", "3 domains over 4 clients, logistic loss")
def three_domains() -> Problem:
    """Domains of 30, 20 and 10 rows with shifted features and models; every client holds rows of each."""
    rng = np.random.default_rng(0)
    domain = np.repeat(np.arange(3), (30, 20, 10))
    X = rng.normal(size=(60, 3)) + 0.5 * (domain[:, None] - 1.0)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    z = np.einsum("ij,ij->i", X, rng.normal(size=(3, 3))[domain]) + 0.2 * rng.normal(size=60)
    return Problem(Federation.from_arrays(X, np.where(z > 0.0, 1.0, -1.0), np.arange(60) % 4, domain), Logistic(), 0.05)


def _unequal_domains(copies: int, unit: float) -> Problem:
    domain = np.repeat([0, 1], (copies, 4 * copies))
    rows = unit * (1.0 - 2.0 * domain)[:, None]
    return Problem(Federation.from_arrays(rows, np.ones(5 * copies), domain), Logistic())


unequal_domains = [
    example(f"unequal domains, {n}", f"2 domains of {n} and {4 * n} rows with opposed gradients, logistic loss")(
        partial(_unequal_domains, n, unit)
    )
    for n, unit in ((1, 1.0), (4, 10.0))
]


@example("a row and a thousandth", "2 domains of one row each, of which one is a thousand times shorter, logistic loss")
def row_and_thousandth() -> Problem:
    """Let the drift of a round be that of the long row, as often as its domain weighs."""
    return Problem(Federation.from_arrays([[1.0], [1e-3]], [1.0, 1.0], [0, 1]), Logistic())


@example("log(2/sqrt 3)", "one column of ones, labels (+,+) in one domain and (+,-) in the other, logistic loss")
def opposite_labels() -> Problem:
    """Pooled optimum and agnostic optimum, of value log 2, differ by log(2/sqrt 3)."""
    return Problem(Federation.from_arrays(np.ones((4, 1)), [1.0, 1.0, 1.0, -1.0], [0, 0, 1, 1]), Logistic())


@example("one line", "one row of one small feature, logistic loss: linear up to a quarter of a percent on [-1, 1]")
def one_row() -> Problem:
    """From one end of the ball a single step leaves the gap 2RG, which the rate for any steps says."""
    return Problem(Federation.from_arrays([[0.01]], [1.0], [0]), Logistic())


@example("one steep line", "one row of one small feature with a large label, squared loss: nearly linear on [-1, 1]")
def one_steep_row() -> Problem:
    """As `one_row`, with a slope of 100."""
    return Problem(Federation.from_arrays([[0.01]], [1e4], [0]), Squared())


def flat_domains(p: int, unit: float) -> Instance:
    """Return p domains of one row whose losses hardly depend on the model: unit²/2 of the first, 0 of the others.

    From equal weights one step of the domain weights costs what the rate for any steps says.
    """

    def make() -> Problem:
        labels = [unit] + [0.0] * (p - 1)
        return Problem(Federation.from_arrays(np.full((p, 1), 1e-6 * unit), labels, np.arange(p)), Squared())

    words = f"{p} domains of constant loss, {0.5 * unit**2:g} in one of them and 0 elsewhere"
    return Instance(f"{p} flat domains" + (f", unit {unit:g}" if unit != 1.0 else ""), words, "synthetic", cache(make))


def saddle_space(**settings: Any) -> Space:
    """Return where to look for sharp runs of AFL on the unit ball: full batches, any steps, clients as domains."""
    return Space(
        lambda k: given(AFL, **{"radius": 1.0, **k, **settings}),
        {"step_size": Real(1e-3, 10.0), "domain_step_size": Real(1e-3, 10.0)},
        losses=("squared", "logistic"),
        rounds=(1, 60),
        start=from_offset,
    )


def rare_slopes(n: int, back: float) -> Instance:
    """Return one domain of n rows, of nearly linear losses: slope -1 in one row, ``back`` in another, 0 elsewhere.

    Single rows are nearly all noise: their variance is about n times the square of the mean slope.
    """

    def make() -> Problem:
        X, y = np.zeros((n, 1)), np.zeros(n)
        X[:2], y[0], y[1] = 0.01, 100.0, -100.0 * back
        return Problem(Federation.from_arrays(X, y, np.zeros(n)), Squared())

    words = f"1 domain of {n} rows, the slope -1 in one of them, {back:g} in another, and 0 elsewhere"
    return Instance(f"rare slopes, {n}", words, "synthetic", cache(make))


def rare_losses(n: int, other: float) -> Instance:
    """Return two domains of n rows with constant losses: 1 in one row, ``other`` in one row of the second, else 0."""

    def make() -> Problem:
        y = np.zeros(2 * n)
        y[0], y[n] = math.sqrt(2.0), math.sqrt(2.0 * other)
        return Problem(Federation.from_arrays(np.full((2 * n, 1), 1e-6), y, np.repeat([0, 1], n)), Squared())

    words = (
        f"2 domains of {n} rows, the loss 1 in one row of the first, {other:g} in one of the second, and 0 elsewhere"
    )
    return Instance(f"rare losses, {n}", words, "synthetic", cache(make))


def domains_of_slopes(p: int) -> Instance:
    """Return p domains of nearly linear losses: one rises slowly, the others fall, from equal values at w = 0.

    Its softmax optimum for mu = 1 misses the agnostic one, w = 0, by as much as any: by v, with slopes v and 1.
    """

    def make() -> Problem:
        v, label = float(lambertw((p - 1.0) / math.e).real), 100.0
        slopes = np.array([v] + [-1.0] * (p - 1))
        return Problem(Federation.from_arrays(-slopes[:, None] / label, np.full(p, label), np.arange(p)), Squared())

    words = f"{p} domains of one row, nearly linear losses: one rises, the others fall"
    return Instance(f"{p} slopes", words, "synthetic", cache(make))


@example("two urns", "2 domains, labels +1 and -1 equally often, squared loss")
def two_coin_domains() -> Problem:
    """At w = 1 the losses are 0 and 2."""
    return Problem(Federation.from_arrays(np.ones((4, 1)), [1.0, -1.0, 1.0, -1.0], [0, 0, 1, 1]), Squared())


def urns(p: int) -> Instance:
    """Return p domains whose rows have, at w = 0, the loss 0 with probability 0.3, and else 1."""

    def make() -> Problem:
        labels = ([0.0] * 3 + [math.sqrt(2.0)] * 7) * p
        return Problem(Federation.from_arrays(np.ones((10 * p, 1)), labels, np.repeat(np.arange(p), 10)), Squared())

    words = f"{p} domain{'s' * (p > 1)}, at w = 0 the loss 0 in three rows of ten and 1 in seven, squared loss"
    return Instance(f"urns of zeros, {p}", words, "synthetic", cache(make))


@example("one coin", "1 domain, one row with either label")
def one_coin() -> Problem:
    """Two classifiers, right in turn."""
    return Problem(Federation.from_arrays(np.ones((2, 1)), [1.0, -1.0], [0, 0]), Logistic())


@example("two rows", "1 domain of two orthogonal rows, squared loss")
def two_rows() -> Problem:
    """With `blind_to` one row, of every sample of one row some model has learned nothing."""
    return Problem(Federation.from_arrays(np.eye(2), np.zeros(2), [0, 0]), Squared())


@example("eight rows", "2 domains, one of eight orthogonal rows and one of a single row, squared loss")
def eight_rows() -> Problem:
    """With `blind_to` two rows, of every sample of two rows some model has learned nothing."""
    return Problem(Federation.from_arrays(np.eye(9)[[*range(8), 0], :8], np.zeros(9), [0] * 8 + [1]), Squared())


def blind_to(rows: int) -> Callable[[Problem, np.ndarray], Models]:
    """Return all models with the loss 0 in so many of a problem's orthogonal rows and 1 in the others."""

    def models(problem: Problem, start: np.ndarray) -> Models:
        chosen = list(combinations(range(problem.federation.d), rows))
        w = np.full((len(chosen), problem.federation.d), math.sqrt(2.0))
        w[np.arange(len(chosen))[:, None], chosen] = 0.0
        return Models(w)

    return models


@example("twenty urns", "20 domains, labels +1 and -1 equally often, squared loss")
def twenty_coin_domains() -> Problem:
    """Many domains: a union bound has something to pay for."""
    return Problem(Federation.from_arrays(np.ones((40, 1)), [1.0, -1.0] * 20, np.arange(40) // 2), Squared())


@example("three tables", "3 domains of 4 rows with two features, squared loss")
def three_small_domains() -> Problem:
    """Few rows: all samples of a domain can be listed."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(12, 2))
    y = X[:, 0] + np.repeat([-0.5, 0.0, 0.5], 4) + 0.3 * rng.normal(size=12)
    return Problem(Federation.from_arrays(X, y, np.repeat(np.arange(3), 4)), Squared())


@example("plane", "3 domains of 20 rows in the plane, two classes")
def plane_domains() -> Problem:
    """Shifted domains with labels of their own."""
    rng = np.random.default_rng(4)
    domain = np.repeat(np.arange(3), 20)
    X = rng.normal(size=(60, 2)) + 0.5 * np.eye(3)[domain, :2]
    z = np.einsum("ij,ij->i", X, rng.normal(size=(3, 2))[domain]) + 0.5 * rng.normal(size=60)
    return Problem(Federation.from_arrays(X, np.where(z > 0.0, 1.0, -1.0), domain), Logistic())


@example("breast cancer, 3 domains", "breast_cancer, 8 hospitals, three domains by the size of the tumour", "real")
def breast_cancer_domains() -> Problem:
    """Thirds of the patients by their first feature; hospitals as in `breast_cancer`."""
    X, y, _ = datasets.load_bundled("breast_cancer")
    third = np.searchsorted(np.quantile(X[:, 0], (1 / 3, 2 / 3)), X[:, 0])
    who = datasets.partition_dirichlet(y, 8, 0.5, seed=0)
    return Problem(Federation.from_arrays(X[:, :10], y, who, third), Logistic(), 0.05)


@example("breast cancer, 2 features", "breast_cancer, size and texture of 120 tumours in three hospitals", "real")
def breast_cancer_two_features() -> Problem:
    """Two standardised features, no intercept."""
    X, y, _ = datasets.load_bundled("breast_cancer")
    return Problem(Federation.from_arrays(X[:120, :2], y[:120], np.arange(120) % 3), Logistic())


@example("diabetes, 3 ages", "diabetes, three domains by age, least squares on three features", "real")
def diabetes_ages() -> Problem:
    """Thirds of the patients by age; body mass, blood pressure and a serum value predict the progression."""
    X, y, _ = datasets.load_bundled("diabetes")
    third = np.searchsorted(np.quantile(X[:, 0], (1 / 3, 2 / 3)), X[:, 0])
    return Problem(Federation.from_arrays(X[:, [2, 3, 8]], (y - y.mean()) / y.std(), third), Squared())


def values_rounding(s: Setting) -> float:
    """Return 1e-12 of the domains' values at the start."""
    values = s.problem.by_domain.client_values(s.start)
    return 1e-12 * (1.0 + float(np.abs(values).max()))
