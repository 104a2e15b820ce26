"""What rounding may do to F and to ‖grad F‖, by lengths of rows or by their entries: proved, in any order of sums.

Let u be the unit roundoff. A sum of m rounded products t_j, in any order, fused or not, is off by at most gamma_m sum
|t_j|, gamma_m = m u/(1 - m u) (Higham 2002, Section 4.2), and by what underflows. For a loss of one score with L = sup
l'':

1. The computed score z' of row i with k entries is off by e_i <= gamma_k a_i, a_i = sum_j |x_ij w_j| <= ‖x_i‖ ‖w‖.
2. The exact slope at z' is off by at most L e_i from that at the exact score, the computed one by 8 eps more of |l'|,
   or of the Lipschitz constant: S_i bounds |l'(z'_i)|.
3. The computed gradient is a sum of n rows p_i l'_i x_i and of ridge w: with 2. its entry j is off by at most

       sum_i p_i |x_ij| (L e_i + gamma S_i) + 6 u ridge |w_j|,   gamma of n + 64.

4. l(z) <= l(z') + |l'(z')| e + L e^2/2 and the same from below: the value is off by at most

       sum_i p_i (S_i e_i + L e_i^2/2) + gamma (mean loss) + gamma_d ridge term,

   gamma of 2 sqrt n + 128 here: n values are summed in blocks of about sqrt n, and K sums in pairs.

`by_entries` computes a_i and the sums over i as they stand, in a pass over the rows. `by_norms` passes over none: with
Q = max p_i ‖X‖_F^2 >= sum_i p_i ‖x_i‖^2 and S >= (sum_i p_i S_i^2)^(1/2), the error of the gradient is by Cauchy and
Schwarz at most gamma_k ‖w‖ L Q + gamma S sqrt Q + 6 u ‖ridge w‖ in norm, and sum_i p_i S_i e_i is at most gamma_k ‖w‖ S
sqrt Q. S is the Lipschitz constant, or for least squares (2 F)^(1/2).

Weights of rows that are given are divided by their sum over a client, of n terms more. Losses and their slopes are
computed to 8 eps of |l| and |z|, and of the Lipschitz constant: k + 64 in the place of k holds these.

All that is computed here are sums of nonnegative numbers, themselves within gamma of what they stand for: up to 1e13
terms, 6 percent on every gamma are more than enough for these, and for 1/(1 - m u). Entries of models and rows below
1e-150 count as 1e-150, since their squares underflow, and S for least squares is 1e-150 more, since those of residuals
do; whatever else underflows is less than 1e-300 of what it multiplies.

References: Higham, "Accuracy and Stability of Numerical Algorithms" (2002), Sections 3.1 and 4.2.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

_EPS = float(np.finfo(float).eps)
_TINY, _SHORT = 1e-300, 1e-150  # what underflows in products; and in squares
_PIECE = 1 << 17  # entries of rows at a time


class Allowance(NamedTuple):
    """How far the computed gradient and value may be from the true ones."""

    error: float  # in norm
    off: float


def gamma(m: float) -> float:
    """Return a bound of m u/(1 - m u), 6 percent more than m u."""
    return 0.53 * _EPS * m


def known(problem: Any) -> bool:
    """Whether the loss declares what the bounds here are made of, and F is strongly convex in all coordinates."""
    kind = problem.traits
    bounded = math.isfinite(kind.smoothness) and kind.lower_bound >= 0.0
    return (
        bounded
        and not kind.several
        and (kind.quadratic or math.isfinite(kind.lipschitz))
        and np.ndim(problem.ridge) == 0
    )


def by_norms(problem: Any, w: np.ndarray, F: float) -> Allowance:
    """Return the allowances at a flat model w with computed value F, by lengths of rows.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Logistic, Problem
    >>> from fedconvex.solvers.certificates.norm_rounding import by_entries, by_norms
    >>> problem = Problem(Federation.from_clients([(np.eye(900), np.ones(900))]), Logistic(), 1e-3)
    >>> w = np.ones(900)
    >>> F, g = problem.value_gradient(w)
    >>> by_norms(problem, w, F).error < 1e-11, by_entries(problem, w, F).error < 1e-14
    (True, True)
    """
    fed, L = problem.federation, problem.traits.smoothness
    size, steep = math.sqrt(problem.row_weight_range[1]) * problem.length, _steepest(problem, F)
    tiny = _TINY * (1.0 + L) * (1.0 + math.sqrt(fed.n) * problem.length)
    moved = _in_scores(problem) * (float(np.linalg.norm(w)) + math.sqrt(w.size) * _SHORT) * size
    error = L * moved * size + gamma(_rows(problem)) * steep * size + _of_ridge(problem, w)
    off = steep * moved + 0.5 * L * moved * moved + _in_values(problem, w, F)
    return Allowance(error + tiny, off + tiny * (1.0 + steep))


def by_entries(problem: Any, w: np.ndarray, F: float) -> Allowance:
    """Return the allowances at a flat model w with computed value F, by entries of rows: one pass over them."""
    fed, L, each = problem.federation, problem.traits.smoothness, gamma(_rows(problem))
    g, off, absolute = np.zeros(fed.d), 0.0, np.abs(w)
    steep = np.full(fed.n, problem.traits.lipschitz)
    least_squares = math.isinf(problem.traits.lipschitz)
    if least_squares:
        steep = np.abs(problem.row_values_and_slopes(w)[1])
    for lo, hi, X in _pieces(fed.X):
        e, p = _in_scores(problem) * (X @ absolute) + _TINY, problem.per_row[lo:hi]
        S = steep[lo:hi] + 2.0 * L * e if least_squares else steep[lo:hi]
        off += float(p @ (e * (S + 0.5 * L * e)))
        g += X.T @ (p * (L * e + each * S) + _TINY)
    error = float(np.linalg.norm(g)) + math.sqrt(fed.d) * _SHORT + _of_ridge(problem, w)
    return Allowance(error, off + _in_values(problem, w, F) + _TINY)


def _pieces(X: Any) -> Any:
    """Yield (lo, hi, |X[lo:hi]|)."""
    n, entries = X.shape[0], X.size
    step = max(1, _PIECE * n // max(entries, 1))
    for lo in range(0, n, step):
        part = X[lo : lo + step]
        yield lo, min(n, lo + step), abs(part)


def _in_scores(problem: Any) -> float:
    """Return gamma of a score, which holds the rounding of losses too."""
    fed = problem.federation
    return gamma(64 + (int(np.diff(fed.X.indptr).max(initial=0)) if fed.is_sparse else fed.d))


def _rows(problem: Any) -> int:
    """Return how many roundings entries of a gradient take part in."""
    fed = problem.federation
    return int(64 + fed.n * (1 if fed.sample_weight is None else 2))


def _steepest(problem: Any, F: float) -> float:
    """Return a bound of the root of the mean square of l', where squares of residuals may underflow in F."""
    steep = float(problem.traits.lipschitz)
    return min(steep, math.sqrt(2.0 * max(F, 0.0)) + _SHORT) if problem.traits.quadratic else steep


def _of_ridge(problem: Any, w: np.ndarray) -> float:
    """Return what rounding does to ridge w and its sum with the rest, in norm, but for what `_rows` has of it."""
    size = float(np.linalg.norm(w)) + math.sqrt(w.size) * _SHORT
    return gamma(6) * float(problem.ridge) * size + math.sqrt(w.size) * _TINY


def _in_values(problem: Any, w: np.ndarray, F: float) -> float:
    """Return what rounding does to the sum of the values of rows, and to the ridge term."""
    fed = problem.federation
    added = 128.0 + 2.0 * math.sqrt(fed.n) + (0.0 if fed.sample_weight is None else fed.n)
    return gamma(added) * abs(F) + gamma(w.size + 8) * problem.ridge_term(w) + _TINY * float(problem.ridge)
