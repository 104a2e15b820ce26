"""FedNL on least squares: the end after finitely many rounds."""

from __future__ import annotations

import math

import numpy as np

from fedconvex.loss_traits import traits
from fedconvex.methods import FedNL, RankR, SymmetricTopK
from fedconvex.theorems.fednl import ABOUT, KNOBS, distance_of, learned, numbers_of, raised
from fedconvex.theorems.hedging import DISTANCE
from fedconvex.theorems.kit import *

__all__ = ["STATEMENT", "THEOREMS", "fednl_squares"]

SOURCE = "fedconvex, FedNL on least squares (docs/theory/fednl_squares.md)"

STATEMENT = Statement(
    page="fednl_squares",
    title="FedNL ends on least squares",
    scope=EVERYWHERE._replace(free=WHOLE_STRONGLY_CONVEX),
    setting="""
FedNL, option 1 without line search, alpha = 1: w <- w - [H]_mu^{-1} grad F(w), H = sum p_k H_k, then H_k <- H_k +
C(hess f_k - H_k). C takes r eigenvalues of largest modulus (`RankR`), delta = r/d, or k entries of the triangle
(`SymmetricTopK`), delta = k/N, N = d (d + 1)/2.
""",
    assumptions="Squared loss; F is mu-strongly convex with the mu > 0 to which eigenvalues are raised.",
    statement="""
With E = sum p_k ‖H_k - hess f_k‖_F at the start,

    ‖w_T - w*‖ <= ‖w_0 - w*‖ prod_{t < T} (E/mu) (1 - delta t)_+^(1/2),

so that w_T = w* from round ceil(1/delta) + 1 on.
""",
    source="""
Derived here. Method: Safaryan, Islamov, Qian, Richtarik, "FedNL: making Newton-type methods applicable to federated
learning", ICML 2022, whose rates are asymptotic.
""",
    differs="A number of rounds after which the optimum is reached, and how far a run may leave before.",
    meaning="""
A Hessian of d (d + 1)/2 numbers, sent in pieces, is known when all pieces were sent. Before that the model may be far
worse than the start: with a line search it is not.
""",
    proof="""
hess f_k does not move. Each round takes the r largest of the eigenvalues that are left out of the difference, or the k
entries with most of its norm; after t rounds the least d - rt of d squares, or N - kt of N, are left, at most 1 - δt of
their sum: Σ p_k ‖H_k - hess f_k‖_F ≤ E(1-δt)₊^{1/2}. w⁺ - w* = [H]_μ^{-1}([H]_μ - hess F)(w - w*); [·]_μ is the
projection onto matrices above μI in Frobenius norm and hess F is one of them, so the norm of the bracket is at most
that of H - hess F. ∎
""",
    loose="""
One parabola far steeper than mu attains it in one round up to mu/E. With more eigenvalues E counts all of them, and the
model moves along one.
""",
)


def fednl_squares(
    constants: Constants,
    *,
    mu: float,
    delta: float,
    start_error: float,
    rounds: int,
    start_distance: float | None = None,
) -> Bound:
    """Return the bound of ‖w_T - w*‖ on least squares.

    Parameters
    ----------
    constants : Constants
        mu of F; without start_distance D.
    mu : float
        To which eigenvalues are raised.
    delta : float
        In (0, 1]: r/d or k/N.
    start_error : float
        E = sum_k p_k ‖H_k - hess f_k‖_F at the start.
    rounds : int
        T.
    start_distance : float, optional
        ‖w_0 - w*‖; default D.

    Raises
    ------
    AssumptionError
        If a constant is missing, or mu is not positive or above that of F.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fednl_squares import fednl_squares
    >>> at = {"mu": 1.0, "delta": 0.75, "start_error": 6.0, "start_distance": 2.0}
    >>> [fednl_squares(Constants(mu=1.0), rounds=T, **at).value for T in (0, 1, 2, 3)]  # (1 - 3/4)^(1/2) = 1/2
    [2.0, 12.0, 36.0, 0.0]
    """
    T, delta = whole("rounds", rounds), real("delta", delta, low=0.0, high=1.0, strict=True)
    E, requires = real("start_error", start_error, low=0.0), raised(SOURCE, constants, mu)
    left = np.maximum(1.0 - delta * np.arange(T), 0.0)
    left[left < 1e-12] = 0.0  # delta t = 1 but for rounding
    start = distance_of(SOURCE, constants, start_distance)
    return Bound({"start": float(start * np.prod(E / mu * np.sqrt(left)))}, DISTANCE, SOURCE, requires)


# ---------------------------------------------------------------- read off a setting


def _read(s: Setting) -> Reading:
    squared = Hypothesis("squared loss", f"{s.problem.loss!r}", bool(traits(s.problem.loss).quadratic))
    is_method(SOURCE, s.method, FedNL)
    C = s.method.compressor
    known = Hypothesis("Rank-R or symmetric Top-K", f"{C!r}", isinstance(C, RankR | SymmetricTopK))
    checked = require(SOURCE, squared, known)  # before Hessians, which other losses may not have
    return Reading(numbers_of(SOURCE, s), checked)


@example("a round bowl", "one client, F = ‖w - (1, 1)‖²/2")
def bowl() -> Problem:
    """Two eigenvalues of 1: one of them is learned in each round."""
    X = math.sqrt(2.0) * np.eye(2)
    return Problem(Federation.from_clients([(X, X @ np.ones(2))]), Squared())


THEOREMS = (
    Theorem(
        name="fednl-squares",
        title="FedNL ends on least squares",
        bound=fednl_squares,
        read=_read,
        statement=STATEMENT,
        says="On least squares FedNL is at the optimum after as many rounds as a Hessian has pieces, and one.",
        loose="Up to mu/E in the first round; over the rounds Frobenius norms multiply.",
        method=learned(),
        rounds=2,
        checks=(
            unequal_hessians,
            three_clients,
            Check(unequal_hessians, learned("SymmetricTopK", 4), 3),
            Check(unequal_hessians, learned(size=2), 3),
            Check(unequal_hessians, learned(size=2), 2),
            Check(bowl, learned(share=0.01), 2),
            Check(unequal_hessians, rounds=5),  # the end: nothing is left
            Check(one_parabola[0], learned(share=0.001), 1),
            Check(two_parabolas[0], learned(share=0.01), 1),
            Check(diabetes, learned(size=5), 2),
            Check(shifted_logistic),  # another loss
            Check(unequal_hessians, learned(option=2)),
            Check(unequal_hessians, learned(alpha=0.5)),
            Check(unequal_hessians, learned(line_search=True)),
            Check(unequal_hessians, learned(share=4.0)),  # F is less convex
        ),
        space=Space(lambda k: learned("RankR", int(k["size"]), k["share"]), KNOBS, rounds=(1, 3), weighted=True),
        **ABOUT,
    ),
)
