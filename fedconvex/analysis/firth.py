"""Firth's estimate of a logistic model: finite where responses are separated, and less biased where rows are few.

It maximises log L(b) + (1/2) log det J(b) (Firth, "Bias reduction of maximum likelihood estimates", Biometrika 80,
1993; Heinze and Schemper, Statistics in Medicine 21, 2002). The score is

    U*_j = sum_i s_i (y_i - m_i) x_ij + sum_i s_i h_i (1/2 - m_i) x_ij,  h_i = m_i (1 - m_i) x_i'J^-1 x_i,

and steps are J^-1 U*, halved until the penalised likelihood rises. It is finite for every table with J of full rank
(Kosmidis and Firth, Biometrika 108, 2021). The penalised likelihood is not concave: what is found is a stationary
point, and nothing is certified. Tests and intervals are those of its profile (Heinze and Schemper). Sites could answer
U* and J given J^-1.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq

from fedconvex._check import bad
from fedconvex.analysis.likelihood import LikelihoodProblem
from fedconvex.analysis.newton_search import Minima, inverse_of
from fedconvex.solvers.rows.hessians import weighted_gram

STEPS = 200
LARGEST = 5.0  # of a step in one coefficient of standardised columns, as logistf has it


def firth_estimate(problem: LikelihoodProblem) -> Minima:
    """Return Firth's estimate (1, p) with J there; the value is N, not the penalised one, the gap inf.

    Raises
    ------
    ValueError
        For another family than logistic, for site intercepts, and where no step raises the penalised likelihood.
    """
    if problem.family.name != "logistic":
        raise bad("analyse: firth", "be given for family 'logistic'", repr(problem.family.name))
    if problem.site_intercepts:
        cure = "take one common intercept, or clients as a category among the columns"
        raise bad("analyse: firth", "have one intercept: the penalty is of all coefficients", "site intercepts", cure)
    b, d, J, U, rounds = _climb(problem, np.zeros(problem.size), np.eye(problem.size))
    inverse, rank = inverse_of(J)
    N, nothing = _penalised(problem, b)[3], np.full(1, np.nan)
    return Minima(
        b[None], np.array([N]), -U[None], J[None], inverse[None], np.array([rank]), np.array([U @ inverse @ U]),
        nothing, np.full(1, np.inf), d[None], rounds,
    )  # fmt: skip


def _climb(
    problem: LikelihoodProblem, b: np.ndarray, Z: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """Maximise the penalised likelihood along the columns of Z (p, q) from b; return b, the last step, J, U*, steps."""
    value, U, J, _ = _penalised(problem, b)
    for rounds in range(1, STEPS + 1):
        inverse = Z @ inverse_of(Z.T @ J @ Z)[0] @ Z.T
        d = inverse @ U
        d *= min(1.0, LARGEST / max(float(np.abs(d).max()), 1e-300))
        decrement = float(U @ inverse @ U)
        if decrement <= 1e-22:
            break
        t = 1.0
        while True:
            new = _penalised(problem, b + t * d)
            if new[0] > value or decrement <= 1e-12:  # close by, values are rounding
                break
            t *= 0.5
            if t < 1e-10:
                raise bad("analyse: firth", "find a stationary point", f"none after {rounds} steps", "drop columns")
        b = b + t * d
        value, U, J, _ = new
    return b, d, J, U, rounds


def penalised_fall(
    problem: LikelihoodProblem, T: np.ndarray, b: np.ndarray, where: list[int], at: float = 0.0
) -> float:
    """Return by how much the penalised likelihood falls from b where raw coefficients T b are ``at``, the others free.

    The penalty stays that of all coefficients, (1/2) log det J (p, p), as Heinze and Schemper (2002) have it.
    """
    back = np.linalg.inv(T)
    start = b + back[:, where] @ (at - (T @ b)[where])
    Z = np.delete(back, where, axis=1)
    top = start if Z.shape[1] == 0 else _climb(problem, start, Z)[0]
    return _penalised(problem, b)[0] - _penalised(problem, top)[0]


def penalised_ends(problem: LikelihoodProblem, T: np.ndarray, b: np.ndarray, J: np.ndarray, drop: float) -> np.ndarray:
    """Return where the penalised likelihood, over the other coefficients, is ``drop`` below its value at b: (p, 2).

    Ends are bracketed from Wald's, and found by Brent's method; they are not certified.
    """
    errors = np.sqrt(np.diagonal(T @ inverse_of(J)[0] @ T.T))
    out, reach = np.empty((len(b), 2)), np.sqrt(2.0 * drop)
    for j, (middle, error) in enumerate(zip(T @ b, errors, strict=True)):
        for side, way in enumerate((-1.0, 1.0)):

            def above(steps: float, j: int = j, middle: float = middle, slope: float = way * error) -> float:
                return penalised_fall(problem, T, b, [j], middle + slope * steps) - drop

            far = reach
            while above(far) < 0.0:
                far *= 1.5
                if far > 1e4 * reach:
                    break
            out[j, side] = np.nan if far > 1e4 * reach else middle + way * error * brentq(above, 0.0, far, xtol=1e-11)
    return out


def _penalised(problem: LikelihoodProblem, b: np.ndarray) -> tuple[float, np.ndarray, np.ndarray, float]:
    """Return log L + (1/2) log det J, its score, J, and N = -log L."""
    told = [(problem.at(k, b), problem.own_rows(k)[1]) for k in range(problem.federation.K)]
    J = sum((weighted_gram(a.X, a.s * a.curvatures) for a, _ in told), np.zeros((b.size, b.size)))
    inverse = inverse_of(J)[0]
    N, U = 0.0, np.zeros(b.size)
    for a, y in told:
        m = problem.family.mean(a.z)
        h = a.curvatures * np.einsum("ni,ij,nj->n", a.X, inverse, a.X)
        U += a.X.T @ (a.s * (y - m + h * (0.5 - m)))
        N += float(a.s @ problem.family.value(a.z, y))
    sign, size = np.linalg.slogdet(J)
    return (-N + 0.5 * size if sign > 0.0 else -np.inf), U, J, N
