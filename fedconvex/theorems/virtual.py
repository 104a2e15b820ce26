"""VIRTUAL: the certificate of a free energy, the growth of its errors, and descent in turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedconvex.methods import VIRTUAL
from fedconvex.problems import GaussianPosteriorProblem
from fedconvex.solvers.damping import largest_damping, radius
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.growth import RIGHT, SETTLED, died_out, errors_seen, growths
from fedconvex.theorems.parts.posteriors import (
    correlated_features,
    equal_designs,
    faint_rows,
    fixed_shifts,
    free_energy,
    hospitals,
    personal_hospitals,
    personal_lines,
    posterior_space,
    problem_of,
    shift_map,
    steps_of,
    votes,
)
from fedconvex.theorems.parts.scope import OF_POSTERIORS

__all__ = ["STATEMENT", "THEOREMS", "virtual_certificate", "virtual_descent", "virtual_growth"]

SOURCE = "fedconvex, docs/theory/virtual.md"
SUBOPTIMALITY = Quantity("F(q_T) - min F, of the free energy with the best c_k for q_T", "suboptimality", least=0.0)
GROWTH = Quantity("‖e_T‖/‖e_{T-1}‖, errors of all clients' sites", "growth", by_rounds=False)
DESCENT = Quantity("F(q_T, c) - min F, with the c_k that clients keep", "suboptimality", least=0.0)

STATEMENT = Statement(
    page="virtual",
    title="VIRTUAL: certificate, damping, descent",
    scope=OF_POSTERIORS,
    setting="""
F(q, c) = KL(q ‖ p) + sum_k KL(c_k ‖ p_w) - sum over rows of E log p(y | x'(theta + w_k)), q and c_k Gaussian, with
precisions that are diagonal or full; P and Q are the precisions of p and p_w. VIRTUAL with the damping rho.
""",
    assumptions="""
Certificate: log p(y | a) concave in a (normal noise, logistic, or their bounds and quadratures); any q. Growth: normal
noise, everybody in every round, exact local solutions, T so large that all but the leading mode have died out in
e_{T-1}, and that mode not gone itself, as it is where equal clients start from equal sites. Descent:
normal noise, full covariances, rho = 1, exact local solutions, one client a round, everybody asked before round T.
""",
    statement="""
Certificate  F(q) - min F <= ‖grad F‖^2/(2 tau), gradient in means and roots of covariances, tau the least eigenvalue of
             P and Q. The minimiser is unique; at a fixed point of the rounds the gradient is zero.
Growth       errors of the sites' shifts obey e <- (I - rho (I - T)) e; they grow by max |1 - rho kappa| over the
             eigenvalues kappa of I - T in the long run, and vanish if and only if that is below 1. With private
             parameters and full covariances 0 < kappa < K: if and only if rho < 2/kappa_max, and always for rho <= 2/K.
Descent      F never rises.
""",
    source="""
Derived here. VIRTUAL: Corinzia, Beuret, Buhmann, "Variational federated multi-task learning", arXiv:1906.06268.
""",
    differs="""
The paper gives no conditions under which rounds converge.
""",
    meaning="""
One number certifies the posterior of the whole network, in every round. Rounds of everybody at once need damping where
features are correlated and q is diagonal, or where private parameters explain much: the limit is known before the first
round. One client at a time needs none.
""",
    proof="""
**Certificate.** Put theta = m + C z with z standard normal. E log p(y | x'(m + C z)) is an expectation of a concave
function of an affine function of (m, C). -log det C is convex, and tr(P CC')/2 + m'P m/2 strongly convex with the
modulus lambda_min(P); with the c_k the same. For quadratures the score's law is a sum over symmetric nodes, convex in
(mu, sd) and growing with sd, and sd = ‖C'x‖ is convex in C. Strong convexity gives the bound, and partial minimisation
over the c_k keeps it. *Fixed points.* Stationarity of client k's problem in mean parameters says that its site is exp
of the linear and quadratic terms of E log p(D_k | .); the product over k, with the prior, is stationarity of F.

**Growth.** After the first rounds precisions stand still: B_k = A_k, or its diagonal, A_k = X_k'X_k/s2, Lam = P +
sum_k B_k. With the shift eta of its cavity client k's mean is (Lam - B_k + Abar_k)^{-1}(eta + const), Abar_k =
A_k - A_k (Q + A_k)^{-1} A_k, and its site's shift is Lam mean - eta: T_k = Lam (Lam - B_k + Abar_k)^{-1} - I times the
errors of all others. *Private, full.* T_k = R_k (Lam - R_k)^{-1}, R_k = A_k - Abar_k. Eliminating theta from the joint
quadratic leaves H over (w_1, ..., w_K); I - T is similar to D^{-1}H with D its block diagonal, and x'Hx <= K x'Dx by
Cauchy and Schwarz, strictly because of the priors.

**Descent.** Once everybody was asked, every site is exp of the terms of E log p(D_k | .) at the present c_k. So client
k's problem is F as a function of (q, c_k), with all other c_j as they are, and it is minimised. ∎
""",
    loose="""
The certificate is attained where rows have no curvature (`virtual-certificate` on faint rows: 1.00). Growth is an
equation; what remains of other modes after T - 1 rounds is at most 1e-9 of the leading one, and 1e-6 is allowed.
Descent says nothing of how much; F is quadratic, so that the rate is linear. `tests/test_verify_virtual.py` plants tau
that is too large by 1 %, a damping that is off by 1e-4, and a descent of a tenth a round.
""",
)


def virtual_certificate(gradient: float, tau: float) -> Bound:
    """Return gradient^2/(2 tau), the bound of F(q) - min F.

    Parameters
    ----------
    gradient : float
        Norm of the gradient in means and roots of covariances.
    tau : float
        Least eigenvalue of the priors' precisions.

    Raises
    ------
    ValueError, TypeError
        If gradient is negative, or tau not positive.

    Examples
    --------
    >>> from fedconvex.theorems.virtual import virtual_certificate
    >>> virtual_certificate(2.0, 0.5).value
    4.0
    """
    g = real("virtual_certificate: gradient", gradient, low=0.0)
    tau = real("virtual_certificate: tau", tau, low=0.0, strict=True)
    checked = require("virtual", Hypothesis("priors with precisions above 0", f"tau={tau:g}", tau > 0.0))
    return Bound({"gradient": g * g / (2.0 * tau)}, SUBOPTIMALITY, SOURCE, checked)


def virtual_growth(kappa: Any, rho: float, rounds: int, others: float = 0.0) -> Bound:
    """Return max |1 - rho kappa|, by which errors of the sites grow in the long run.

    Parameters
    ----------
    kappa : array
        Eigenvalues of I - T.
    rho : float
        Damping.
    rounds : int
        T: the growth is that of round T, over the errors after T - 1.
    others : float
        ‖M e_{T-1} - m e_{T-1}‖/‖m e_{T-1}‖, M the map of a round, m its leading mode: 0 where e_{T-1} has no other.

    Raises
    ------
    AssumptionError
        If other modes have not died out after T - 1 rounds, or the leading one is not real, or not there, or errors are
        at rounding.

    Examples
    --------
    >>> from fedconvex.theorems.virtual import virtual_growth
    >>> round(virtual_growth([0.1, 2.5], 1.0, 300).value, 9)
    1.5
    """
    given = raw("virtual_growth: kappa", kappa)
    given = given if np.iscomplexobj(given) else numeric("virtual_growth: kappa", kappa)
    rho, rounds = real("virtual_growth: rho", rho, low=0.0, strict=True), whole("virtual_growth: rounds", rounds, low=1)
    kappa = np.atleast_1d(given)
    if kappa.ndim != 1 or kappa.size == 0 or not np.isfinite(kappa).all():
        raise bad("virtual_growth: kappa", "be finite eigenvalues", f"shape {kappa.shape}")
    lead = radius(kappa, rho)
    modes = np.append(1.0 - rho * kappa, 1.0 - rho)  # precisions settle by 1 - rho
    first = modes[np.abs(modes) >= lead * (1.0 - SETTLED)]
    rest = np.abs(modes[np.abs(modes) < lead * (1.0 - SETTLED)])
    others = real("virtual_growth: others", others, low=0.0)
    real_one = float(np.abs(first - first[0]).max() + np.abs(first.imag).max()) <= 1e-6 * lead if first.size else False
    checked = require(
        SOURCE,
        Hypothesis("one leading mode, a real one", f"{first.size} of modulus {lead:.6g}", bool(real_one)),
        died_out(rest, lead, rounds),
        Hypothesis("the leading mode in the errors", f"{others:.2g} of them beside it", others <= 0.1 * RIGHT),
        errors_seen(lead, rounds),
    )
    return Bound({"radius": lead}, GROWTH, SOURCE, checked)


def virtual_descent(before: float, unasked: int) -> Bound:
    """Return F - min F before the round, which the round does not exceed.

    Parameters
    ----------
    before : float
        F(q_{T-1}, c) - min F.
    unasked : int
        Clients that were not asked before round T.

    Raises
    ------
    AssumptionError
        If there are any.

    Examples
    --------
    >>> from fedconvex.theorems.virtual import virtual_descent
    >>> virtual_descent(0.5, 0).value
    0.5
    """
    unasked = whole("virtual_descent: unasked", unasked)
    everybody = Hypothesis("everybody asked before", f"{unasked} not yet", unasked == 0)
    return Bound({"before": real("virtual_descent: before", before)}, DESCENT, SOURCE, require(SOURCE, everybody))


# ---------------------------------------------------------------- what a run shows


def _exact_work(s: Setting) -> tuple[Hypothesis, ...]:
    is_method("virtual", s.method, VIRTUAL)
    problem, m = problem_of(s), s.method
    exact = m.local_steps is m.epochs is None
    return require(
        "virtual",
        Hypothesis("normal noise", f"{problem.loss!r}", problem.linear),
        Hypothesis("exact local solutions", f"local_steps={m.local_steps}, epochs={m.epochs}", exact),
        Hypothesis("one damping", f"rho={s.method.rho!r}", isinstance(s.method.rho, float)),
    )


def _read_certificate(s: Setting) -> Reading:
    problem = problem_of(s)
    gap = problem.posterior(steps_of(s, s.rounds)[-1].state).gap
    return Reading({"gradient": math.sqrt(2.0 * problem.tau * gap), "tau": problem.tau})


def _suboptimality(s: Setting, rounds: Sequence[int]) -> Found:
    problem, steps = problem_of(s), steps_of(s, max(rounds))
    values = np.array([problem.posterior(steps[T].state).value for T in rounds])
    best = problem.solve()
    return Found(values - best.value, best.gap + 100.0 * UNIT * (1.0 + np.abs(values)))


def _read_growth(s: Setting) -> Reading:
    checked, problem = (*_exact_work(s), *require("virtual", full_participation(s))), problem_of(s)
    kappa, rho = problem.damping(), s.method.rho
    modes, M = 1.0 - rho * kappa, shift_map(problem, rho)
    lead = modes[np.argmax(np.abs(modes))]
    e = np.ravel(steps_of(s, s.rounds)[-2].shifts - fixed_shifts(problem))
    beside, size = float(np.linalg.norm(M @ e - lead * e)), float(np.abs(lead) * np.linalg.norm(e))
    others = beside / size if size > 0.0 and math.isfinite(beside) else 1.0
    return Reading({"kappa": kappa, "rho": rho, "rounds": s.rounds, "others": others}, checked)


def _growth(s: Setting, rounds: Sequence[int]) -> Found:
    right, steps = fixed_shifts(problem_of(s)), steps_of(s, max(rounds))
    errors = np.array([float(np.linalg.norm(step.shifts - right)) for step in steps])
    spread = math.sqrt(float(np.abs(problem_of(s).prior.precision).max()))  # means are found to a share of it
    return growths(errors, rounds, UNIT * len(steps) * (float(np.linalg.norm(right)) + errors[0] + spread))


def _read_descent(s: Setting) -> Reading:
    problem, m = problem_of(s), s.method
    checked = _exact_work(s) + require(
        "virtual",
        Hypothesis("full covariances", problem.covariance, not problem.diagonal),
        Hypothesis("rho = 1", f"rho={m.rho!r}", m.rho == 1.0),
        Hypothesis("one client a round", f"participation={m.participation!r}", len(steps_of(s, 1)[1].asked) == 1),
    )
    before = steps_of(s, s.rounds)[-2]
    numbers = {"before": free_energy(problem, before) - problem.solve().value}
    return Reading({**numbers, "unasked": problem.federation.K - len(before.asked)}, checked)


def _energies(s: Setting, rounds: Sequence[int]) -> Found:
    problem, steps = problem_of(s), steps_of(s, max(rounds))
    values = np.array([free_energy(problem, steps[T]) for T in rounds])
    best = problem.solve()
    return Found(values - best.value, best.gap + 100.0 * UNIT * (1.0 + np.abs(values)))


def _constants(s: Setting) -> dict[str, tuple[float, str]]:
    problem = problem_of(s)
    out = {"tau": (problem.tau, "given"), "min F": (problem.solve().value, "exact solution")}
    if problem.linear:
        out["largest rho"] = (largest_damping(problem.damping()), "from the eigenvalues of I - T")
    return out


def _at(rho: float, **settings: Any) -> MethodRule:
    """Return VIRTUAL with this damping."""
    return MethodRule("fixed damping", lambda theorem, problem, start, rounds: VIRTUAL(rho=rho, **settings))


def _near_limit(share: float) -> MethodRule:
    """Return VIRTUAL with a share of the largest damping, of linear models."""

    def make(theorem: Theorem, problem: Any, start: np.ndarray, rounds: int) -> VIRTUAL:
        linear = Hypothesis("normal noise", f"{problem.loss!r}", problem.linear)
        require("virtual", linear)
        return VIRTUAL(rho=min(share * largest_damping(problem.damping()), 1.99))

    return MethodRule(f"{share:g} times the largest damping", make)


_ABOUT: dict[str, Any] = {"kind": GaussianPosteriorProblem, "constants": _constants, "statement": STATEMENT}

THEOREMS = (
    Theorem(
        name="virtual-certificate",
        title="VIRTUAL: the certificate of a free energy",
        quantity=SUBOPTIMALITY,
        bound=virtual_certificate,
        read=_read_certificate,
        exact=_suboptimality,
        says="A Gaussian posterior's free energy is at most ‖grad‖²/(2 tau) above its minimum.",
        loose="Attained where only the priors have curvature; elsewhere rows add to it.",
        method=_at(0.5),
        rounds=3,
        checks=(
            votes,
            personal_lines,
            hospitals,
            Check(faint_rows, _at(0.1), 1),
            Check(votes, _at(0.5, local_steps=1, step_size=0.5), 5),
            two_clients,  # no posterior
        ),
        space=posterior_space(_at, (1, 4), knobs={"rho": Real(0.05, 1.0)}, losses=("squared", "squared", "logistic")),
        **_ABOUT,
    ),
    Theorem(
        name="virtual-growth",
        title="VIRTUAL: which damping converges",
        quantity=GROWTH,
        bound=virtual_growth,
        read=_read_growth,
        exact=_growth,
        equation=True,
        says="Errors grow by max |1 - rho kappa| a round: parallel rounds converge if and only if that is below 1.",
        loose="An equation in the long run.",
        method=_near_limit(1.01),
        rounds=60,
        checks=(
            equal_designs,
            Check(equal_designs, _near_limit(0.99)),
            Check(correlated_features, _at(1.0), 45),
            Check(hospitals, _near_limit(1.2)),
            Check(equal_designs, _at(0.5, participation=1)),  # sampled clients
            Check(votes, _at(0.5)),  # not linear
        ),
        space=posterior_space(_near_limit, (30, 60), tries=4, knobs={"share": Real(0.9, 1.3)}),
        **_ABOUT,
    ),
    Theorem(
        name="virtual-descent",
        title="VIRTUAL: one client at a time",
        quantity=DESCENT,
        bound=virtual_descent,
        read=_read_descent,
        exact=_energies,
        says="With one client a round, once everybody was asked, every round lowers the free energy.",
        loose="It says nothing of how much.",
        method=_at(1.0, participation=1),
        rounds=12,
        checks=(
            personal_lines,
            Check(personal_lines, rounds=25),
            Check(personal_lines, rounds=2),  # somebody was not asked
            Check(personal_hospitals, rounds=50),
            hospitals,  # diagonal
        ),
        space=posterior_space(lambda full: _at(1.0, participation=1), (8, 20), tries=8, knobs={"full": Whole(1, 1)}),
        **_ABOUT,
    ),
)
