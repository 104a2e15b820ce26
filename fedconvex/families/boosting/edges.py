"""Boosting with several sources: gradients by edges, margins, complexities of stumps, and why Q is needed."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import Rng, bad, codes, finite, instance, numeric, real, takes_rng, vector, whole
from fedconvex.draws import key_from_seed
from fedconvex.federation import Federation
from fedconvex.problems import BoostingProblem, Dictionary, EnsembleProblem, Presorted
from fedconvex.theory.complexity import Complexity

__all__ = ["Edges", "TwoPoints", "edges", "margin_losses", "stump_complexity", "two_points"]


class Edges(NamedTuple):
    """Weights and weighted errors of an ensemble, as MultiBoost computes them, and the gradients made of them.

    Attributes
    ----------
    mass : array (p,)
        Z_k, sums of the rows' weights.
    error : array (p, N)
        eps_{k,(l,j)}, weighted errors of the base classifiers.
    gradient : array (p, N)
        Of F_k in alpha: -(Z_k/m_k)(1 - 2 eps).

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theory.boosting import edges, two_points
    >>> found = edges(two_points().ensemble, np.zeros(2))
    >>> found.mass, found.error
    (array([1., 1.]), array([[0. , 0.5],
           [0.5, 0. ]]))
    """

    mass: np.ndarray  # (p,) Z_k
    error: np.ndarray  # (p, N) eps_{k,(l,j)}
    gradient: np.ndarray  # (p, N) -(Z_k/m_k)(1 - 2 eps)


def edges(problem: BoostingProblem, alpha: Any) -> Edges:
    """Return Z_k, eps_{k,(l,j)} and the gradients of the F_k by the identity.

    Parameters
    ----------
    problem : EnsembleProblem
        With a dictionary of N base classifiers.
    alpha : array (N,)
        Weights of the ensemble, at least 0.

    Raises
    ------
    TypeError
        If problem is no `EnsembleProblem`.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.families.boosting.edges import edges, two_points
    >>> edges(two_points().ensemble, np.zeros(2)).gradient
    array([[-1.,  0.],
           [ 0., -1.]])
    """
    instance("edges: problem", problem, EnsembleProblem)
    slopes = problem.losses_of(problem.margins(alpha))[1]
    mass = np.add.reduceat(slopes, problem.bounds[:-1])
    D = slopes / np.repeat(mass, problem.counts)
    sums = np.add.reduceat(D[:, None] * problem.signed, problem.bounds[:-1], axis=0)
    error = 0.5 * (1.0 - sums)
    return Edges(mass, error, (mass / problem.counts)[:, None] * (2.0 * error - 1.0))


class TwoPoints(NamedTuple):
    """The example of two domains on two points, and the least error of each kind of ensemble on their mixture.

    Attributes
    ----------
    ensemble : EnsembleProblem
        With Q(l|a_l) = 1.
    plain : EnsembleProblem
        With constant Q: convex combinations of base classifiers.
    q_error, convex_error : float
        Least errors of the two kinds on the mixture.

    Examples
    --------
    >>> from fedconvex.theory.boosting import two_points
    >>> found = two_points()
    >>> found.q_error, found.convex_error
    (0.0, 0.5)
    """

    ensemble: EnsembleProblem  # Q(l|a_l) = 1
    plain: EnsembleProblem  # constant Q
    q_error: float
    convex_error: float


def two_points() -> TwoPoints:
    """Return the example: h_1 is right on a_1 only, h_2 on a_2 only.

    The score of beta h_1 + (1 - beta) h_2 is 2 beta - 1 on a_1 and 1 - 2 beta on a_2: for no beta are both positive, so
    the error on the half-half mixture is at least 1/2. With Q(l|a_l) = 1 it is 0.

    Examples
    --------
    >>> from fedconvex.families.boosting.edges import two_points
    >>> example = two_points()
    >>> example.q_error, example.convex_error
    (0.0, 0.5)
    """
    fed = Federation.from_arrays([[1.0], [2.0]], [1.0, 1.0], clients=[1, 2], domains=[1, 2])
    h = Dictionary([[1.0, -1.0], [-1.0, 1.0]], [0, 1])
    ensemble, plain = EnsembleProblem(fed, h, np.eye(2)), EnsembleProblem(fed, h)
    # the error is constant for beta < 1/2, at 1/2 and beyond: three values decide
    errors = [plain.domain_errors(np.array([b, 1.0 - b])).mean() for b in (0.25, 0.5, 0.75)]
    return TwoPoints(ensemble, plain, float(ensemble.domain_errors(np.ones(2)).mean()), float(min(errors)))


def margin_losses(margins: Any, bounds: Any, rho: float) -> np.ndarray:
    """Return the mean of Phi_rho(y f) over every domain, (p,), from margins of rows sorted by domain.

    Parameters
    ----------
    margins : array (n,)
        y f(x) of an ensemble with sum alpha = 1 (divide by the sum).
    bounds : int array (p+1,)
        Rows bounds[k]:bounds[k+1] belong to domain k.
    rho : float
        Positive.

    Raises
    ------
    ValueError, TypeError
        If bounds do not rise from 0 to the number of margins, or rho is not positive.

    Examples
    --------
    >>> from fedconvex.families.boosting.edges import margin_losses
    >>> margin_losses([0.5, 0.1, -0.2], [0, 2, 3], rho=0.2)
    array([0.25, 1.  ])
    """
    m = vector("margin_losses: margins", margins)
    b = codes("margin_losses: bounds", bounds, most=m.size + 1)
    if b.size < 2 or b[0] != 0 or b[-1] != m.size or (np.diff(b) < 1).any():
        raise bad("margin_losses: bounds", f"rise from 0 to {m.size}, where every domain begins and ends", f"{b}")
    r = real("margin_losses: rho", rho, low=0.0, strict=True)
    return np.add.reduceat(np.clip(1.0 - m / r, 0.0, 1.0), b[:-1]) / np.diff(b)


@takes_rng
def stump_complexity(
    X: Any, q: Any, domain: Any, domain_weights: Any, *, signs: int = 100, seed: int = 0, rng: Rng = None
) -> Complexity:
    """Return R(union of Q_l H_l, lambda) for all stumps: every sign vector's supremum is found exactly.

    Parameters
    ----------
    X : array (n, d)
    q : array (n, p)
        Q(l|x_i).
    domain : int array (n,)
        Domain of every row, 0, ..., p-1.
    domain_weights : array (p,)
        lambda.
    signs : int
        Random sign vectors.
    seed : int

    Raises
    ------
    ValueError, TypeError
        If domain, q and domain_weights do not fit the rows of X, or signs is below 2.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.families.boosting.edges import stump_complexity
    >>> stump_complexity([[0.0], [1.0]], np.ones((2, 1)), [0, 0], [1.0], signs=8).value  # two rows: all signs fit
    1.0
    """
    table, Q, code = Presorted(X), numeric("stump_complexity: q", q), codes("stump_complexity: domain", domain)
    n, count = table.columns.shape[1], whole("stump_complexity: signs", signs, low=2)
    lam = vector("stump_complexity: domain_weights", domain_weights)
    if code.shape != (n,) or Q.shape[:1] != (n,) or Q.ndim != 2:
        raise bad("stump_complexity", "be given one domain and one row of q per row of X", f"{code.shape}, {Q.shape}")
    finite("stump_complexity: q", Q)
    sizes = np.bincount(code, minlength=lam.size)
    if sizes.size != lam.size or sizes.min() == 0:
        raise bad("stump_complexity: domain_weights", "have one entry per domain, each with rows", f"{lam}")
    weight = (lam / sizes)[code]
    rng = np.random.default_rng(int(key_from_seed(seed)))
    tops = np.empty(count)
    for s in range(count):
        sigma = rng.choice([-1.0, 1.0], size=n) * weight
        tops[s] = max(edge for _, edge in table.search_many(np.ascontiguousarray((sigma[:, None] * Q).T)))
    return Complexity(float(tops.mean()), float(tops.std(ddof=1) / math.sqrt(count)), count)
