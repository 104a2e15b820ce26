"""Firth's estimate of a logistic model: finite where responses are separated, and less biased where rows are few.

It maximises log L(b) + (1/2) log det J(b) (Firth, "Bias reduction of maximum likelihood estimates", Biometrika 80,
1993; Heinze and Schemper, Statistics in Medicine 21, 2002). The score is

    U*_j = sum_i s_i (y_i - m_i) x_ij + sum_i s_i h_i (1/2 - m_i) x_ij,  h_i = m_i (1 - m_i) x_i'J^-1 x_i,

and steps are J^-1 U*, halved until the penalised likelihood rises. It is finite for every table with J of full rank
(Kosmidis and Firth, Biometrika 108, 2021). The penalised likelihood is not concave: what is found is a stationary
point, and nothing is certified. Sites could answer U* and J given J^-1.
"""

from __future__ import annotations

import numpy as np

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
    b = np.zeros(problem.size)
    value, U, J, N = _penalised(problem, b)
    for rounds in range(1, STEPS + 1):
        inverse = inverse_of(J)[0]
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
        value, U, J, N = new
    inverse, rank = inverse_of(J)
    nothing = np.full(1, np.nan)
    return Minima(
        b[None], np.array([N]), -U[None], J[None], inverse[None], np.array([rank]), np.array([U @ inverse @ U]),
        nothing, np.full(1, np.inf), d[None], rounds,
    )  # fmt: skip


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
