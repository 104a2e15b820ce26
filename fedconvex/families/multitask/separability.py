"""What dual methods of multi-task learning ask of a problem: its constants, and how far tasks hang together.

D(alpha) = sum_t c_t sum_i l*(-alpha_i) + (1/2) sum_st Mbar_st <v_s, v_t>, v_t = c_t X_t'alpha_t. A parameter sigma' is
safe if sum_st Mbar_st <v_s, v_t> <= sigma' sum_t Mbar_tt ‖v_t‖^2 for all alpha (docs/theory/mocha.md).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import Rng, bad, instance, real, takes_rng, vector, whole
from fedconvex.draws import key_from_seed
from fedconvex.loss_traits import traits
from fedconvex.problems import MultiTaskProblem
from fedconvex.theory.bound import Hypothesis, require

__all__ = ["DualConstants", "dual_constants", "separability", "worst_duals"]


class DualConstants(NamedTuple):
    """What the theorems need of a multi-task problem.

    Attributes
    ----------
    mu : float
        Strong convexity of l*, 1/smoothness of l (of s l, the largest weight s); 0 for the hinge.
    width : float
        Largest |a - b| over the domain of l*.
    lipschitz : float
        L of the loss.
    sigma, least_sigma : float
        sigma', and the least safe one.
    sigma_max : float
        max_t c_t Mbar_tt ‖X_t‖_2^2.
    weight : float
        N = sum_t c_t n_t, or sum_t c_t sum_i s_i^2 where rows weigh s_i.

    Examples
    --------
    >>> from fedconvex import Federation, Squared
    >>> from fedconvex.problems import Independent, MultiTaskProblem
    >>> from fedconvex.families.multitask.separability import dual_constants
    >>> fed = Federation.from_clients([([[2.0]], [1.0]), ([[1.0]], [3.0])])
    >>> dual_constants(MultiTaskProblem(fed, Squared(), Independent(2.0))).sigma_max
    2.0
    """

    mu: float  # strong convexity of l*, 1/smoothness of l (of s l, the largest weight s); 0 for the hinge
    width: float  # largest |a - b| over the domain of l*
    lipschitz: float  # L
    sigma: float  # sigma'
    least_sigma: float  # the least safe sigma'
    sigma_max: float  # max_t c_t Mbar_tt ‖X_t‖_2^2
    weight: float  # N = sum_t c_t n_t, or sum_t c_t sum_i s_i^2 where rows weigh s_i


def dual_constants(problem: MultiTaskProblem, sigma: float | None = None) -> DualConstants:
    """Return the constants of a problem with a fixed relationship.

    Parameters
    ----------
    problem : MultiTaskProblem
    sigma : float, optional
        sigma'; default the least safe one.

    Raises
    ------
    AssumptionError
        If the relationship is learned.

    Examples
    --------
    >>> from fedconvex import Federation, Squared
    >>> from fedconvex.problems import Independent, MultiTaskProblem
    >>> from fedconvex.theory.separability import dual_constants
    >>> fed = Federation.from_clients([([[2.0]], [1.0]), ([[1.0]], [3.0])])
    >>> found = dual_constants(MultiTaskProblem(fed, Squared(), Independent(2.0)))
    >>> found.mu, found.weight, found.sigma == found.least_sigma
    (1.0, 2.0, True)
    """
    instance("dual_constants: problem", problem, MultiTaskProblem)
    fed, loss = problem.federation, problem.loss
    fixed = Hypothesis("a fixed relationship", f"{problem.relation!r}", not problem.relation.learned)
    require("MOCHA's rates", fixed, _one_score(problem))
    largest, s = [], np.ones(fed.n) if fed.sample_weight is None else fed.sample_weight
    for t in range(fed.K):
        largest.append(float(problem.c[t] * problem.mbar[t, t] * np.linalg.norm(fed.client_rows(t)[0], 2) ** 2))
    least, (low, high) = problem.pencil_sigma(), traits(loss).slope_range(fed.y)
    return DualConstants(
        mu=1.0 / (traits(loss).smoothness * float(s.max())),
        width=float(np.max(high - low)),
        lipschitz=traits(loss).lipschitz,
        sigma=least if sigma is None else real("sigma", sigma, low=0.0, strict=True),
        least_sigma=least,
        sigma_max=max(largest),
        weight=float(problem.c @ np.add.reduceat(s**2, fed.ptr[:-1])),
    )


def _one_score(problem: MultiTaskProblem) -> Hypothesis:
    """Return the hypothesis that rows have one dual variable each, which constants and rounding are derived for."""
    kind = traits(problem.loss)
    return Hypothesis("one score for each row", f"{kind.outputs} scores", not kind.several)


def separability(problem: MultiTaskProblem, alpha: Any) -> float:
    """Return sum_st Mbar_st <v_s, v_t> / sum_t Mbar_tt ‖v_t‖^2 for dual variables: a safe sigma' is never below it.

    Parameters
    ----------
    problem : MultiTaskProblem
    alpha : array (n,)
        With some v_t = c_t X_t'alpha_t different from zero.

    Raises
    ------
    ValueError, TypeError
        If alpha is not one number per row, or moves no v_t away from zero.
    AssumptionError
        If the loss has several scores.

    Examples
    --------
    >>> from fedconvex import Federation, Squared
    >>> from fedconvex.problems import MultiTaskProblem, Pooled
    >>> from fedconvex.families.multitask.separability import separability
    >>> fed = Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])])
    >>> problem = MultiTaskProblem(fed, Squared(), Pooled(1.0))
    >>> separability(problem, [1.0, 1.0]), separability(problem, [1.0, -1.0])
    (2.0, 0.0)
    """
    instance("separability: problem", problem, MultiTaskProblem)
    require("separability", _one_score(problem))
    a = vector("separability: alpha", alpha, problem.federation.n)
    V = problem.images(a)
    alone = float(np.diag(problem.mbar) @ np.sum(V * V, axis=1))
    if not alone > 0.0:
        raise bad("separability: alpha", "move some v_t away from zero", "all v_t = 0")
    return float(np.sum(V * (problem.mbar @ V))) / alone


@takes_rng
def worst_duals(problem: MultiTaskProblem, steps: int = 500, seed: int = 0, *, rng: Rng = None) -> np.ndarray:
    """Return dual variables of nearly the largest `separability`, by power iterations in alpha, (n,).

    alpha_t <- the shortest solution of c_t X_t'alpha_t = w_t/Mbar_tt in least squares, W = Mbar V.

    Parameters
    ----------
    problem : MultiTaskProblem
    steps : int
        Most iterations; fewer once the ratio grows by less than 1e-13 of itself.
    seed : int
        Of the first alpha.

    Raises
    ------
    ValueError, TypeError
        If problem is no `MultiTaskProblem`, or steps is below 1.
    AssumptionError
        If the loss has several scores.

    Examples
    --------
    >>> from fedconvex import Federation, Squared
    >>> from fedconvex.problems import MultiTaskProblem, Pooled
    >>> from fedconvex.families.multitask.separability import separability, worst_duals
    >>> fed = Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])])
    >>> problem = MultiTaskProblem(fed, Squared(), Pooled(1.0))
    >>> round(separability(problem, worst_duals(problem)), 9)
    2.0
    """
    instance("worst_duals: problem", problem, MultiTaskProblem)
    require("worst_duals", _one_score(problem))
    fed, diagonal = problem.federation, np.diag(problem.mbar)
    inverses = [np.linalg.pinv(problem.c[t] * fed.client_rows(t)[0].T) for t in range(fed.K)]
    rng = np.random.default_rng(int(key_from_seed(seed)))
    alpha = rng.normal(size=fed.n)
    ratio = separability(problem, alpha)
    for _ in range(whole("worst_duals: steps", steps, low=1)):
        W = problem.models(alpha) / diagonal[:, None]
        alpha = np.concatenate([P @ w for P, w in zip(inverses, W, strict=True)])
        alpha /= max(float(np.abs(alpha).max()), 1e-300)
        before, ratio = ratio, separability(problem, alpha)
        if ratio <= before * (1.0 + 1e-13):
            break
    return alpha
