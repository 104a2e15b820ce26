"""Instances: the problems that theorems are checked on, synthetic and real."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from fedconvex import datasets
from fedconvex._check import text, wrong_type
from fedconvex.federation import Federation
from fedconvex.losses import Logistic, SmoothedHinge, Squared
from fedconvex.problems import Problem
from fedconvex.theorems.parts.theorem import Instance


def example(name: str, words: str, data: str = "synthetic") -> Callable[[Callable[[], Any]], Instance]:
    """Make an instance of a function that returns a problem, which is made once."""
    return lambda make: Instance(name, words, data, cache(make))


@example("two clients", "two clients, F = (w - 1 ± 1/2)²/2")
def two_clients() -> Problem:
    """L = D = 1, zeta = zeta_* = 1/2."""
    return Problem(Federation.from_clients([([[1.0]], [0.5]), ([[1.0]], [1.5])]), Squared())


@example("two clients, in tenths", "two clients, F = 100 (w - 1 ± 1/2)²/2: features and labels in tenths")
def two_clients_in_tenths() -> Problem:
    """L = 100, zeta = 50."""
    return Problem(Federation.from_clients([([[10.0]], [5.0]), ([[10.0]], [15.0])]), Squared())


def _one_parabola(unit: float) -> Problem:
    return Problem(Federation.from_clients([([[1.0]], [unit])]), Squared())


def _two_parabolas(unit: float) -> Problem:
    rows = [([[1.0]], [unit]), ([[0.99]], [-unit])]
    return Problem(Federation.from_clients(rows), Squared(), weights="uniform")


_UNITS = ((1.0, ""), (1e3, ", labels of a thousand"), (1e-3, ", labels of a thousandth"))
one_parabola = [example(f"one parabola{more}", f"(w - 1)²/2{more}")(partial(_one_parabola, u)) for u, more in _UNITS]
two_parabolas = [
    example(f"two parabolas{more}", f"(w - 1)²/2 and (0.99 w + 1)²/2{more}: nearly equal curvature")(
        partial(_two_parabolas, unit)
    )
    for unit, more in _UNITS
]


@example("one noisy client", "one client, (w ± 1)²/2 row by row")
def one_noisy_client() -> Problem:
    """All of its noise is in the mean of the models, however many local steps."""
    return Problem(Federation.from_clients([([[1.0], [1.0]], [1.0, -1.0])]), Squared())


@example("one very noisy client", "one client, (w ± 100)²/2 row by row")
def one_very_noisy_client() -> Problem:
    """sigma = 100: with many rounds nothing but noise is left."""
    return Problem(Federation.from_clients([([[1.0], [1.0]], [100.0, -100.0])]), Squared())


@example("twelve rows at right angles", "one client of twelve rows at right angles, least squares")
def rows_at_right_angles() -> Problem:
    """No noise at w*, and steps of 1/(4L), three times what a row can bear, if one row is drawn."""
    return Problem(Federation.from_clients([(np.eye(12), np.zeros(12))]), Squared())


@example("flat and steep", "w²/20 of weight 0.95 and w²/2 of weight 0.05")
def flat_and_steep() -> Problem:
    """Let the flat client decide how fast the model comes nearer."""
    fed = Federation.from_clients([([[0.1**0.5]], [0.0]), ([[1.0]], [0.0])])
    return Problem(fed, Squared(), weights=[0.95, 0.05])


@example("two clients, in millions", "two clients, (w - u ± u/2)²/2, u = 10⁻⁶: labels in millions")
def two_clients_in_millions() -> Problem:
    """zeta = 5e-7."""
    return Problem(Federation.from_clients([([[1.0]], [0.5e-6]), ([[1.0]], [1.5e-6])]), Squared())


@example("steep and flat", "5 w² and (w - 1)²/2")
def steep_and_flat() -> Problem:
    """With many local steps from the optimum each client goes to a minimiser of its own."""
    return Problem(Federation.from_clients([([[10.0**0.5]], [0.0]), ([[1.0]], [1.0])]), Squared())


@example("one that counts", "3 clients of weights 0.8, 0.1, 0.1, (w - y)²/2 with y = -1, 1, 1")
def one_that_counts() -> Problem:
    """sum p² is twice what equal weights have."""
    rows = [([[1.0]], [y]) for y in (-1.0, 1.0, 1.0)]
    return Problem(Federation.from_clients(rows), Squared(), weights=np.array([0.8, 0.1, 0.1]))


def _rare_parabola(unit: float) -> Problem:
    """H_1 = 1 and H_2 = 0.1: the lower bound on constant steps is nearly attained, to the third order of the step."""
    rows = [([[unit]], [1.0]), ([[unit * 0.1**0.5]], [-1.0])]
    return Problem(Federation.from_clients(rows), Squared(), weights=np.array([0.003, 0.997]))


rare_parabola, rare_parabola_in_thousands = (
    example(f"rare parabola{more}", f"(w - 1)²/2 of weight 0.003 and (√0.1 w + 1)²/2 of weight 0.997{more}")(
        partial(_rare_parabola, unit)
    )
    for unit, more in ((1.0, ""), (1e3, ", features in thousands"))
)


@example("parabola and slope", "w²/2 of weight 0.1 and a nearly linear function of weight 0.9 that pulls away from 0")
def parabola_and_slope() -> Problem:
    """Local models drift apart as far as steps go, and their mean with them: the drift is what progress loses."""
    rows = [([[1.0]], [0.0]), ([[0.01]], [100.0])]
    return Problem(Federation.from_clients(rows), Squared(), weights=np.array([0.1, 0.9]))


@example("chain", "5 clients of one row, a chain of differences with one end pulled, least squares")
def chain() -> Problem:
    """Hessians of differences of neighbours, whose sum is tridiagonal; one client alone has a label."""
    rows = [np.eye(5)[0], *(np.eye(5)[k - 1] - np.eye(5)[k] for k in range(1, 5))]
    return Problem(Federation.from_clients([([x], [float(k == 0)]) for k, x in enumerate(rows)]), Squared(), 0.1)


def _three_clients(unit: float) -> Problem:
    corners = np.array([[1.0, 0.0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)]])
    X = unit * math.sqrt(2.0) * np.eye(2)
    return Problem(Federation.from_clients([(X, X @ (0.5 * c + [0.6, 0.8])) for c in corners]), Squared())


@example("three clients", "three clients, F = ‖w - c‖²/2 with c the corners of a triangle")
def three_clients() -> Problem:
    """L = 1, equal Hessians; each client has an orthonormal design of two rows."""
    return _three_clients(1.0)


@example("three clients, in tenths", "three clients, F = 100 ‖w - c‖²/2 with c the corners of a triangle")
def three_clients_in_tenths() -> Problem:
    """L = 100."""
    return _three_clients(10.0)


@example("mean estimation", "3 clients of 8 numbers each, F = mean (w - y)²/2")
def mean_estimation() -> Problem:
    """Equal Hessians, and a mini-batch's noise is the same at every model: sigma_k^2 is finite, zeta too."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=24) + np.repeat([0.0, 0.5, -1.0], 8)
    return Problem(Federation.from_arrays(np.ones((24, 1)), y, np.repeat([0, 1, 2], 8)), Squared())


@example("two logistic clients", "two opposed clients, logistic loss")
def two_logistic_clients() -> Problem:
    """Opposite labels on features of different size."""
    return Problem(
        Federation.from_clients([([[2.0], [1.0]], [1.0, 1.0]), ([[0.5], [1.5]], [-1.0, 1.0])]), Logistic(), 0.1
    )


def _noisy_kinks(unit: float, l2: float = 0.0) -> Problem:
    """One row that pulls to one side, 39 to the other: half of the batches have it, and its slope ends at the optimum.

    So noise takes two values of equal chance and moves the mean of the models, as it does for F' = max(L w, -g).
    """
    rows = unit * np.array([[1.0]] + 39 * [[-0.0213]])
    fed = Federation.from_clients([(rows, np.ones(40))] * 64)
    return Problem(fed, SmoothedHinge(), l2 * unit**2)


_SIZES = ((1e-6, "millions"), (1e3, "thousandths"))
noisy_kinks, curved_noisy_kinks = (
    [
        example(f"{name}, features in {more}", "64 equal clients, one feature, smoothed hinge, from the optimum")(
            partial(_noisy_kinks, unit, l2)
        )
        for unit, more in _SIZES
    ]
    for name, l2 in (("noisy kinks", 0.0), ("noisy kinks and a parabola", 0.03))
)


@example("at right angles", "two clients of one row each, at right angles, smoothed hinge")
def at_right_angles() -> Problem:
    """All gradients vanish at w*: zeta_* = 0, zeta = 0.7. With many local steps each client solves its own problem."""
    return Problem(Federation.from_clients([([[1.0, 0.0]], [1.0]), ([[0.0, 1.0]], [1.0])]), SmoothedHinge())


def all_ones(problem: Problem) -> np.ndarray:
    """Return a start that is 1 away from the minimiser in every entry."""
    return np.asarray(problem.solve().w + 1.0)


@example("equal clients", "10 equal clients, least squares")
def equal_clients() -> Problem:
    """Homogeneous: all clients have the same objective up to a constant, zeta = 0."""
    return Problem(datasets.linear_federation(10, 4, 20, seed=0).federation, Squared())


@example("equal Hessians", "10 clients, least squares, equal Hessians")
def equal_hessians() -> Problem:
    """One Hessian, different minimisers: zeta = 0.6."""
    return Problem(datasets.linear_federation(10, 4, 20, zeta_star=0.5, seed=0).federation, Squared())


@example("unequal Hessians", "10 clients, least squares, unequal Hessians and models")
def unequal_hessians() -> Problem:
    """Nothing is equal but the sizes."""
    data = datasets.linear_federation(10, 4, 20, feature_shift=0.5, model_shift=0.5, noise=0.5, seed=0)
    return Problem(data.federation, Squared(), 0.1)


@example("alike logistic", "10 clients of one distribution, logistic loss")
def alike_logistic() -> Problem:
    """Homogeneous up to sampling."""
    return Problem(datasets.logistic_federation(10, 4, 20, seed=0).federation, Logistic(), 0.1)


@example("shifted logistic", "10 clients with shifted features and models, logistic loss")
def shifted_logistic() -> Problem:
    """Unequal sizes, hence unequal weights, would exclude the field guide: all have 20 rows."""
    data = datasets.logistic_federation(10, 4, 20, feature_shift=0.5, model_shift=1.0, seed=0)
    return Problem(data.federation, Logistic(), 0.1)


@example("uneven logistic", "10 clients of unequal sizes, logistic loss, weights n_k/n")
def uneven_logistic() -> Problem:
    """Sizes differ by a factor of ten or so."""
    data = datasets.logistic_federation(10, 4, 20, size_skew=1.0, model_shift=1.0, seed=0)
    return Problem(data.federation, Logistic(), 0.1)


@example("uneven squares", "6 clients of unequal sizes and models, least squares, weights n_k/n")
def uneven_squares() -> Problem:
    """Sizes differ by a factor of five or so."""
    data = datasets.linear_federation(6, 3, 20, size_skew=1.0, feature_shift=0.5, model_shift=0.5, noise=0.5, seed=0)
    return Problem(data.federation, Squared(), 0.1)


@example("copied rows", "3 clients with copies of the same two classes in different shares")
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


@example("breast cancer", "breast_cancer, 8 hospitals, logistic loss", "real")
def breast_cancer() -> Problem:
    """569 patients divided unevenly by diagnosis (Dirichlet 0.5), equal weights."""
    X, y, _ = datasets.load_bundled("breast_cancer")
    return Problem(
        Federation.from_arrays(X, y, datasets.partition_dirichlet(y, 8, 0.5, seed=0)), Logistic(), 0.1, "uniform"
    )


@example("breast cancer, n_k/n", "breast_cancer, 8 hospitals, logistic loss, weights n_k/n", "real")
def breast_cancer_by_size() -> Problem:
    """Weighted by size."""
    return Problem(breast_cancer.make().federation, Logistic(), 0.1)


@example("breast cancer, 2", "breast_cancer, 2 hospitals, logistic loss", "real")
def breast_cancer_two() -> Problem:
    """Half of the patients each, three standardised features."""
    X, y, _ = datasets.load_bundled("breast_cancer")
    who = datasets.partition_similarity(X[:568, 0], 2, 20.0, seed=0)
    return Problem(Federation.from_arrays(X[:568, :3], y[:568], who), Logistic(), 0.1, "uniform")


@example("breast cancer, copied", "breast_cancer, 3 clients with copies of 40 patients in different shares", "real")
def breast_cancer_copied() -> Problem:
    """Equal class conditionals, exactly."""
    X, y, _ = datasets.load_bundled("breast_cancer")
    return _copies(X[y > 0][:20, :5], X[y < 0][:20, :5])


@example("diabetes", "diabetes, 8 clinics, least squares", "real")
def diabetes() -> Problem:
    """442 patients sorted by outcome except for a fifth of them; features and target standardised."""
    X, y, _ = datasets.load_bundled("diabetes")
    who = datasets.partition_similarity(y, 8, 20.0, seed=0)
    return Problem(Federation.from_arrays(X, (y - y.mean()) / y.std(), who), Squared(), 0.1, "uniform")


@example("diabetes, unequal weights", "diabetes, 8 clinics weighted 1 to 8, least squares", "real")
def diabetes_unequal() -> Problem:
    """Eight clinics of nearly equal sizes, the last of which counts eight times the first."""
    return Problem(diabetes.make().federation, Squared(), 0.1, np.arange(1.0, 9.0) / 36.0)


@example("diabetes, whitened", "diabetes, 8 clinics, each with decorrelated features", "real")
def diabetes_whitened() -> Problem:
    """Orthonormal designs X_k'X_k = n_k: every clinic rotates and scales its own features; equal Hessians."""
    fed = diabetes.make().federation
    X = np.vstack(
        [math.sqrt(hi - lo) * np.linalg.qr(fed.X[lo:hi])[0] for lo, hi in zip(fed.ptr, fed.ptr[1:], strict=False)]
    )
    return Problem(replace(fed, X=X), Squared(), 0.0, "uniform")


def at_minimiser(problem: Any) -> np.ndarray:
    """Return the minimiser, for checks that start there."""
    return np.asarray(problem.solve().w)


def own_instance(problem: Problem, name: str, words: str = "") -> Instance:
    """Return the instance of a problem of your own.

    Parameters
    ----------
    problem : Problem
        Of any kind.
    name, words : str
        In short, and in full; default the name.

    Raises
    ------
    TypeError
        If problem is no `Problem`.

    Examples
    --------
    >>> from fedconvex import Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.verify import own_instance
    >>> wards = own_instance(Problem(linear_federation(seed=0).federation, Squared()), "wards")
    >>> wards.name, wards.data
    ('wards', 'yours')
    """
    if isinstance(problem, type) or not hasattr(problem, "learns"):
        raise wrong_type("own_instance: problem", "be a Problem", f"{problem!r}")
    name, words = text("own_instance: name", name), text("own_instance: words", words)
    return Instance(name, words or name, "yours", lambda: problem)
