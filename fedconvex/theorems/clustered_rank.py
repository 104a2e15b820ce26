"""The rank of a covariance that is clustered by client: at most K - 1 at the minimum."""

from __future__ import annotations

import math

import numpy as np

from fedconvex.methods import FederatedNewton
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.environments import at_rounds, last_state
from fedconvex.theory.bound import PrecisionError

__all__ = ["STATEMENT", "THEOREMS", "clustered_rank"]

NAME, SOURCE = "clustered-rank", "fedconvex, docs/theory/clustered_rank.md"
_SMALLEST = Quantity("K-th singular value of the clients' weighted gradients at w_T", "singular value", least=0.0)

STATEMENT = Statement(
    page="clustered_rank",
    title="Covariances clustered by client: their rank",
    scope=Scope(holds("gradients are weighted"), holds("the same"), not_for("smooth parts do not balance")),
    setting="""
K clients, U_k = p_k grad f_k(w), U the matrix of rows U_k, and the covariance clustered by client
V = J^{-1} (sum_k U_k U_k') J^{-1} = J^{-1} U'U J^{-1}, of p coefficients.
""",
    assumptions="K <= p: with more clients than coefficients the rank is at most p, and this says nothing.",
    statement="""
At every w the smallest of the K singular values of U is at most

    sigma_K(U) <= ‖grad F(w)‖/K^(1/2).

At the minimum U has rank at most K - 1, and so has V, whatever the factor in front of it.
""",
    source="""
Derived here; known for scores that sum to zero: Cameron, Miller, "A practitioner's guide to cluster-robust inference",
J. Human Resources 50 (2015), Section VI. The covariance: Liang, Zeger, Biometrika 73 (1986).
""",
    differs="""
Away from the minimum it says how near the rank is to K - 1.
""",
    meaning="""
A Wald test of q restrictions divides by R V R'. With q > K - 1 that matrix is singular: `Analysis.test` refuses it. Few
hospitals allow tests of few coefficients, however many patients they have.
""",
    proof="""
Let 1 be the vector of K ones. sigma_K(U) = min ‖U'v‖/‖v‖ over v in R^K, since K <= p, and U'1 = sum U_k = grad F(w),
‖1‖ = K^(1/2). At the minimum U'1 = 0, so the rank of U is at most K - 1; V = (U J^{-1})'(U J^{-1}) has that of U.
""",
    loose="""
Attained where 1 is the last left singular vector: two clients with gradients of equal length that nearly oppose each
other. `tests/test_inference_theorems.py` plants half of it.
""",
)


def clustered_rank(slope: float, clients: int, size: int) -> Bound:
    """Return the bound of the K-th singular value of the clients' weighted gradients.

    Parameters
    ----------
    slope : float
        ‖grad F(w)‖.
    clients, size : int
        K and p.

    Raises
    ------
    AssumptionError
        If there are more clients than coefficients.

    Examples
    --------
    >>> from fedconvex.theorems.clustered_rank import clustered_rank
    >>> clustered_rank(3.0, 9, 20).value
    1.0
    """
    slope = real("clustered_rank: slope", slope, low=0.0)
    K, p = whole("clustered_rank: clients", clients, low=1), whole("clustered_rank: size", size, low=1)
    few = Hypothesis("K <= p", f"{K} clients, {p} coefficients", K <= p)
    return Bound({"gradient": slope / math.sqrt(K)}, _SMALLEST, SOURCE, require(SOURCE, few))


# ---------------------------------------------------------------- read off a setting


def _read(s: Setting) -> Reading:
    is_method(NAME, s.method, FederatedNewton)
    stationary(NAME, s.problem)
    require(NAME, Hypothesis("a loss with a curvature", f"{s.problem.loss!r}", traits(s.problem.loss).curved))
    w = last_state(s)
    slope = float(np.linalg.norm(s.problem.gradient(w)))
    if not math.isfinite(slope):
        raise PrecisionError(f"{NAME} is not decided: needs a gradient that is a number, got ‖grad F(w_T)‖ = {slope:g}")
    return Reading({"slope": slope, "clients": s.problem.federation.K, "size": s.problem.size})


def _smallest(s: Setting, w: np.ndarray) -> float:
    K = s.problem.federation.K
    U = s.problem.weights[:, None] * np.asarray(s.problem.client_gradients(w)).reshape(K, -1)
    return float(np.linalg.svd(U, compute_uv=False)[K - 1]) if K <= s.problem.size else 0.0


def _rounding(s: Setting, w: np.ndarray) -> float:
    """Those of the gradients, and of singular values: eps of the largest."""
    K, off = s.problem.federation.K, s.problem.weights * gradient_rounding(s.problem, w)
    U = s.problem.weights[:, None] * np.asarray(s.problem.client_gradients(w)).reshape(K, -1)
    return 2.0 * float(np.linalg.norm(off)) + UNIT * K * float(np.linalg.norm(U))


@example("two that oppose each other", "two clients, squared loss, gradients (±1, 1/5) at 0")
def opposing() -> Problem:
    """sigma_2 is exactly the bound at the start."""
    rows = [(np.eye(2), np.array([-2.0, -0.4])), (np.eye(2), np.array([2.0, -0.4]))]
    return Problem(Federation.from_clients(rows), Squared())


THEOREMS = (
    Theorem(
        name=NAME,
        title="The rank of a clustered covariance",
        quantity=_SMALLEST,
        bound=clustered_rank,
        read=_read,
        exact=at_rounds(_smallest, _rounding),
        constants=lambda s: {
            "clients": (float(s.problem.federation.K), "given"),
            "coefficients": (float(s.problem.size), "given"),
        },
        statement=STATEMENT,
        says="At the minimum a covariance clustered by K clients has at most rank K - 1.",
        loose="Attained by two clients of equal gradients in length; elsewhere the K-th singular value is far below.",
        method=given(FederatedNewton),
        rounds=1,
        space=Space(lambda k: given(FederatedNewton), {}, losses=("squared", "logistic"), rounds=(1, 3)),
        checks=(
            opposing,
            diabetes,
            breast_cancer_two,
            breast_cancer,
            Check(breast_cancer_two, rounds=4),
            shifted_logistic,
        ),
    ),
)
