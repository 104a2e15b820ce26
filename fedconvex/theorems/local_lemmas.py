"""The lemmas on which the theory of FedAvg rests: progress and drift of a round, and what sampling clients adds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedconvex.theorems.kit import *
from fedconvex.theory.moments import Moments, moved

__all__ = [
    "CLIENT_DRIFT",
    "PROGRESS",
    "STATEMENT",
    "THEOREMS",
    "drift_lemma",
    "drift_lemma_sharp",
    "progress_lemma",
]

GUIDE = "Wang et al. 2021, arXiv:2107.06917, Section 6.1.2, Lemma {}"

PROGRESS = Quantity("mean over the steps k = 1..tau of the last round of E F(wbar^{t,k}) - F*", **FROM_MINIMUM)
CLIENT_DRIFT = Quantity(
    "E sum p_i ‖w_i - wbar‖^2 of the local models in the last round", dimension=Dimension.SQUARED_LENGTH, least=0.0
)

STATEMENT = Statement(
    page="local_lemmas",
    title="Progress and drift: lemmas on a round of FedAvg",
    scope=EVERYWHERE._replace(free=STRONGLY_CONVEX),
    setting="""
Clients with weights p_i, F = sum p_i F_i; a round starts everybody at one model; tau local SGD steps with fresh
mini-batches, independent over clients; xbar^k = sum p_i x_i^k, V_k = E sum p_i ‖x_i^k - xbar^k‖^2.
""",
    assumptions="""
Every F_i convex and L-smooth; stochastic gradients unbiased, with variance at most sigma_i^2 along the run. Drift:
‖grad F_i - grad F‖ <= zeta.
""",
    statement="""
Progress  (Wang et al., Lemma 1) eta <= 1/(4L):
          (1/tau) sum_{k=1..tau} E F(xbar^k) - F* <= (E‖xbar^0 - x*‖^2 - E‖xbar^tau - x*‖^2)/(2 eta tau)
          + eta sum p_i^2 sigma_i^2 + (L/tau) sum_{k<tau} V_k.
Drift     (Wang et al., Lemma 2) eta <= 1/(4L): V_k <= 18 tau^2 eta^2 zeta^2 + 4 tau eta^2 sigma^2, k <= tau.
Drift#    V_0 = 0, V_{k+1} <= (sqrt(V_k) + eta zeta)^2 + eta^2 sum p_i (1 - p_i) sigma_i^2 for eta <= 2/L.
""",
    source="""
Wang et al., "A field guide to federated optimization", arXiv:2107.06917, Section 6.1.2. Proofs, Drift#, weights: this
project. What sampling adds, and the drift with decaying steps: [Li et al.'s lemmas](li_lemmas.md).
""",
    differs="""
Wang et al. take equal weights (sum p_i^2 sigma_i^2 = sigma^2/M), and state the drift for each client; it is used, and
checked here, for their mean. Progress holds up to eta = 1/(2L), drift up to 2/L (proofs).
""",
    meaning="""
What a theorem on FedAvg loses, it loses here: these are the steps that its proof adds up, with both sides exact on
least squares. A round makes the progress of centralised SGD except for L times the drift; the drift comes from
clients that pull apart (zeta) and from noise that has not been averaged yet. Progress is told the distances and the
drift of the very round; it says nothing before the run.
""",
    proof="""
**Progress.** x̄⁺ = x̄ - ηĝ, ĝ the average of the stochastic gradients, g of the true ones. Smoothness and convexity
at x_i: F_i(x̄⁺) ≤ F_i(x*) + ⟨∇F_i(x_i), x̄⁺ - x*⟩ + (L/2)‖x̄⁺ - x_i‖², and ‖x̄⁺ - x_i‖² ≤ 2‖x̄⁺ - x̄‖² + 2‖x̄ -
x_i‖². On average F(x̄⁺) - F* ≤ ⟨ĝ, x̄⁺ - x*⟩ + ⟨g - ĝ, x̄⁺ - x*⟩ + L‖x̄⁺ - x̄‖² + L Σ p_i‖x̄ - x_i‖². The first is
(‖x̄ - x*‖² - ‖x̄⁺ - x*‖² - ‖x̄⁺ - x̄‖²)/(2η); the second has the mean η E‖ĝ - g‖² ≤ η Σ p_i²σ_i²; for η ≤ 1/(2L) the
squares of x̄⁺ - x̄ leave nothing. Sum over the steps. ∎

**Drift#.** x_i⁺ = [x_i - η∇F(x_i)] - η(∇F_i - ∇F)(x_i) - ηξ_i. The bracket is nonexpansive (F convex, L-smooth, η ≤
2/L), so that Σ p_i p_j‖x_i - x_j‖²/2 = Σ p_i‖x_i - x̄‖² does not grow by it. In L², the second part adds at most ηζ
to the root (Minkowski); the noise has mean zero given the rest, and Σ p_i‖ξ_i‖² - ‖Σ p_iξ_i‖² has the mean Σ
p_i(1-p_i)σ_i². ∎

**Drift.** (a + ηζ)² ≤ (1 + 1/τ)a² + (1 + τ)η²ζ²; (1 + 1/τ)^τ ≤ e. So V_k ≤ e k ((1+τ)η²ζ² + η²σ²): at most 2e τ²η²ζ²
+ e τ η²σ², below 18 and 4. ∎
""",
    loose="""
Drift# is attained by functions that are nearly linear, up to (1 - eta L)^(2 tau), without noise or without zeta; 18
and 4 are at least 3.3 and 1.4 times too large, so that no error of the Drift below that can be noticed. Progress pays
what the squares leave.
""",
)


def progress_lemma(*, L: float, step_size: float, distances: Any, drift: Any, noise2: float) -> Bound:
    """Return Lemma 1 of Wang et al., the progress of one round.

    Parameters
    ----------
    L, step_size : float
        Smoothness of the clients, and eta <= 1/(4L).
    distances : array (2,)
        E‖xbar^0 - x*‖^2 and E‖xbar^tau - x*‖^2.
    drift : array (tau,)
        V_0, ..., V_{tau-1}.
    noise2 : float
        sum p_i^2 sigma_i^2.

    Raises
    ------
    ValueError, TypeError
        If distances are not two, drift not one number per step, step_size is not positive, or L or noise2 negative.

    Examples
    --------
    >>> from fedconvex.theorems.local_lemmas import progress_lemma
    >>> progress_lemma(L=1.0, step_size=0.25, distances=[1.0, 0.5], drift=[0.0, 0.1], noise2=0.0).terms
    {'distance': 0.5, 'noise': 0.0, 'drift': 0.05}
    """
    theorem = GUIDE.format("1")
    V, d = (vector(f"progress_lemma: {n}", np.atleast_1d(raw(n, v))) for n, v in (("drift", drift), ("d", distances)))
    if d.size != 2 or not V.size:
        raise bad("progress_lemma", "be given two distances, and the drift before each step", f"{d.size} and {V.size}")
    eta, tau = real("step_size", step_size, low=0.0, strict=True), V.size
    L = real("L", L, low=0.0)
    requires = _short_step(theorem, L, eta)
    terms = {
        "distance": float(d[0] - d[-1]) / (2.0 * eta * tau),
        "noise": eta * real("noise2", noise2, low=0.0),
        "drift": L * float(V.sum()) / tau,
    }
    return Bound(terms, PROGRESS, theorem, requires)


def drift_lemma(constants: Constants, *, step_size: float, local_steps: int, rounds: int = 1) -> Bound:
    """Return Lemma 2 of Wang et al., the drift of the clients within a round.

    Parameters
    ----------
    constants : Constants
        L, zeta, and sigma2_k or sigma2; p or K.
    step_size, local_steps, rounds : float, int, int
        eta <= 1/(4L), tau; the round does not matter.

    Raises
    ------
    AssumptionError
        If a constant is missing, or the step is too long.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.local_lemmas import drift_lemma
    >>> constants = Constants(L=1.0, zeta=1.0, sigma2=0.0, K=2)
    >>> drift_lemma(constants, step_size=0.25, local_steps=2).value
    4.5
    """
    eta, tau, _ = local_work(step_size, local_steps, rounds)
    theorem = GUIDE.format("2")
    L, zeta = (float(v) for v in known_constants(theorem, constants, "L", "zeta"))
    sigma2 = float(client_noise(theorem, constants, client_weights(theorem, constants).size).max())
    requires = _short_step(theorem, L, eta)
    terms = {"heterogeneity": 18.0 * (tau * eta * zeta) ** 2, "noise": 4.0 * tau * eta**2 * sigma2}
    return Bound(terms, CLIENT_DRIFT, theorem, requires)


def drift_lemma_sharp(constants: Constants, *, step_size: float, local_steps: int, rounds: int = 1) -> Bound:
    """Return the drift of the clients step by step; arguments as for `drift_lemma`, up to eta = 2/L.

    Parameters
    ----------
    constants, step_size, local_steps, rounds
        As for `drift_lemma`.

    Raises
    ------
    AssumptionError
        If a constant is missing, or step_size exceeds 2/L.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.local_lemmas import drift_lemma_sharp
    >>> constants = Constants(L=1.0, zeta=1.0, sigma2=0.0, K=2)
    >>> drift_lemma_sharp(constants, step_size=0.25, local_steps=2).value
    0.25
    """
    eta, tau, _ = local_work(step_size, local_steps, rounds)
    theorem = "fedconvex, drift step by step (docs/theory/local_lemmas.md)"
    L, zeta = (float(v) for v in known_constants(theorem, constants, "L", "zeta"))
    requires = require(theorem, Hypothesis("step_size <= 2/L", f"step_size = {eta:g}, L = {L:g}", eta * L <= 2.0))
    p = client_weights(theorem, constants)
    noise, V = eta**2 * float((p * (1.0 - p)) @ client_noise(theorem, constants, p.size)), 0.0
    for _ in range(tau):
        V = (math.sqrt(V) + eta * zeta) ** 2 + noise
    pull = (tau * eta * zeta) ** 2
    return Bound({"heterogeneity": pull, "noise": V - pull}, CLIENT_DRIFT, theorem, requires)


def _short_step(theorem: str, L: float, eta: float) -> tuple[Hypothesis, ...]:
    step = Hypothesis("step_size <= 1/(4L)", f"step_size = {eta:g}, L = {L:g}", eta * L <= 0.25 * (1.0 + 1e-12))
    return require(theorem, step)


# ---------------------------------------------------------------- read off a setting


def moments_of_round(s: Setting) -> Moments:
    """Return the exact moments of a run, with fresh batches and plain averaging."""
    name, p = "lemmas on FedAvg", s.problem
    plain_local_sgd(name, s)
    require(name, Hypothesis("least squares, whose moments close", f"{p.loss!r}", traits(p.loss).quadratic))
    return Moments.of(s.method, p)


def _read_progress(s: Setting) -> Reading:
    numbers, moments, p = local_sgd("progress", s), moments_of_round(s), s.problem
    trace, noise = moments.shadow(s.rounds, start=s.start), moments.gradients(s.rounds, start=s.start)
    distances = trace.deviation[-1, [0, -1]]
    sigma2 = noise.sigma2_k if "batches" in traits_of(s.method, p).drawn else np.zeros(p.federation.K)
    given: dict[str, Any] = {"distances": distances, "drift": trace.drift[-1, :-1]}
    given["noise2"] = float(np.asarray(p.weights) ** 2 @ sigma2)
    return Reading({"L": float(p.constants().L or 0.0), "step_size": numbers["step_size"], **given})


def _read_drift(s: Setting) -> Reading:
    numbers, moments = local_sgd("drift", s), moments_of_round(s)
    noise = moments.gradients(s.rounds, start=s.start).sigma2_k
    return Reading({**numbers, "constants": replace(s.constants(), sigma2_k=noise, sigma2=float(noise.max()))})


def inside_rounds(s: Setting, rounds: Sequence[int], everyone: bool) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return the moments inside the rounds, how far rounding may move E F - F*, and squared distances, (T,) each."""
    moments = moments_of_round(s)
    trace = moments.shadow(max(rounds), start=s.start, everyone=everyone)
    largest = trace.deviation.max(axis=1)
    off = moved(moments, largest)
    return trace, off.value, off.deviation + 64.0 * EPS * largest


def _progress(s: Setting, rounds: Sequence[int]) -> Found:
    trace, value, deviation = inside_rounds(s, rounds, False)
    numbers, at = local_sgd("progress", s), np.array(rounds) - 1
    shared = deviation / (numbers["step_size"] * numbers["local_steps"])  # of the difference of distances in the bound
    return Found(trace.suboptimality[at, 1:].mean(axis=1), (value + shared)[at])


def _drift(s: Setting, rounds: Sequence[int]) -> Found:
    trace, _, deviation = inside_rounds(s, rounds, False)
    at = np.array(rounds) - 1
    return Found(trace.drift[at, -1], 2.0 * deviation[at])


_LOCAL: dict[str, Any] = {"local_steps": 3, "batch_size": 4}
_GUIDE: dict[str, Any] = {
    "statement": STATEMENT,
    "method": fixed_step(0.25, **_LOCAL),
    "rounds": 5,
    "space": local_sgd_space(fixed_step, 0.25, most=16, rounds=(1, 5), weighted=True),
}
_PULLED = Check(two_clients, fixed_step(0.01, local_steps=3))
_IN_MILLIONS = Check(two_clients_in_millions, fixed_step(0.25), 1)
_NOISY = Check(equal_clients, fixed_step(0.01, local_steps=3, batch_size=1))
_ONE_NOISY = Check(equal_clients, fixed_step(0.01, batch_size=1), 1, at_minimiser)

THEOREMS = (
    Theorem(
        name="fedavg-progress",
        title="FedAvg, progress of a round (Wang et al., Lemma 1)",
        quantity=PROGRESS,
        bound=progress_lemma,
        read=_read_progress,
        exact=_progress,
        says="A round makes the progress of centralised SGD, but for L times the drift of the clients.",
        loose="By what the squares of the steps leave: a factor of 2 or so with short steps.",
        checks=(
            unequal_hessians,
            diabetes,
            Check(one_parabola[0], fixed_step(0.01), 1),  # all distance, where squares lose the half
            Check(mean_estimation, fixed_step(0.25, batch_size=2), 1, at_minimiser),  # all noise
            Check(parabola_and_slope, fixed_step(0.25, local_steps=100), 1, at_minimiser),  # all drift
            shifted_logistic,  # not least squares
        ),
        **_GUIDE,
    ),
    Theorem(
        name="fedavg-drift",
        title="FedAvg, drift of the clients (Wang et al., Lemma 2)",
        quantity=CLIENT_DRIFT,
        bound=drift_lemma,
        sharper="fedavg-drift-sharp",
        read=_read_drift,
        exact=_drift,
        says="Local models drift apart by at most tau steps of their gradients' differences, and by their noise.",
        loose="The constants 18 and 4 are at least 3.3 and 1.4 times too large.",
        checks=(
            equal_hessians,
            diabetes_whitened,
            _PULLED,
            _IN_MILLIONS,
            _NOISY,
            _ONE_NOISY,
            unequal_hessians,
        ),  # the last has no finite zeta
        **_GUIDE,
    ),
    Theorem(
        name="fedavg-drift-sharp",
        title="FedAvg, drift of the clients, step by step",
        quantity=CLIENT_DRIFT,
        bound=drift_lemma_sharp,
        read=_read_drift,
        exact=_drift,
        says="The recursion of the drift: each step adds eta zeta to its root, and the noise of the batches.",
        loose="Attained by nearly linear functions; curvature contracts the drift, which is left out.",
        checks=(equal_hessians, diabetes_whitened, _PULLED, _NOISY, _ONE_NOISY),
        **_GUIDE,
    ),
)
