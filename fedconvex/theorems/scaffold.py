"""SCAFFOLD on convex functions: the finite-round theorem with all constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from fedconvex.methods import SCAFFOLD, UniformSampling
from fedconvex.theorems.kit import *
from fedconvex.theory.moments import StackedMoments

__all__ = [
    "STATEMENT",
    "THEOREMS",
    "WEIGHTED_AVERAGE",
    "scaffold",
    "scaffold_best_step",
    "scaffold_rounds",
    "scaffold_weights",
]

SOURCE = "Karimireddy et al. 2020, ICML, Lemma 15 and Theorem III"

WEIGHTED_AVERAGE = Quantity(
    "mean over rounds r < T, weights q^-(r+1), of E F(w_r) - F* of the server's w_r before round r",
    latex=r"\frac{1}{W} \sum_{r=1}^{T} q^{-r} \left(\mathrm{E} f(w_{r-1}) - f^*\right)",
    **FROM_MINIMUM,
)

STATEMENT = Statement(
    page="scaffold",
    title="SCAFFOLD",
    scope=EVERYWHERE,
    setting="""
N clients of equal weight, f = (1/N) sum f_i. Round r: S of N clients, uniform without replacement; each starts at
x^r, does K steps y_i <- y_i - eta_l (g_i(y_i) - c_i + c), and sets c_i^+ = c_i - c + (x^r - y_i)/(K eta_l) (option
II: the mean of its K gradients); x^{r+1} = x^r + (eta_g/S) sum (y_i - x^r), c <- c + (1/N) sum (c_i^+ - c_i).
""",
    assumptions="""
Every f_i is beta-smooth and mu-strongly convex (mu >= 0); g_i is unbiased with variance at most sigma^2.
""",
    statement="""
h = K eta_l eta_g, q = 1 - mu h/2, C_0 = (1/N) sum ‖c_i^0 - grad f_i(x*)‖^2. If eta_g >= 1, h <= 1/(81 beta) and
mu h <= S/(15 N), then for the server's iterates *before* rounds 0, ..., T-1, with w_r = q^-(r+1), W = sum w_r,

    (1/W) sum_{r<T} w_r E[f(x^r) - f*]
        <= [‖x^0 - x*‖^2 + (9 N h^2/S) C_0]/(h W) + (12 h sigma^2/(K S))(1 + S/eta_g^2).
""",
    source="""
Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: stochastic controlled averaging for federated learning",
ICML 2020, proof of Theorem III: unrolling of Lemma 15 (from a secondary transcription). Linear map: this project.

Unrolling of the per-round inequality of Lemma 15 (appendix to Theorem III), from a secondary
transcription; it has not been re-proved here. It was searched for violations on 900 piecewise quadratics with every
client sample and noise path enumerated, and on least squares; none.
""",
    differs="""
Theorem III itself hides constants: O~((sigma^2/(mu R K S))(1 + S/eta_g^2) + (N mu/S) D~^2 exp(-min{S/(30 N),
mu/(162 beta)} R)). The rate depends on N/S: SCAFFOLD is free of heterogeneity, not of client sampling.
""",
    meaning="""
**What it bounds.** The weighted average over the server's iterates *before* each round, x⁰ included, x^T not:
`scaffold_weights`. By convexity the weighted average iterate has no more. Terms: start, controls, noise.

**Meaning.** No heterogeneity constant: what counts is how far the controls are from the clients' gradients at x*,
once. With c_i = 0 that is ζ_*², with c_i = ∇f_i(x⁰) at most β²D². Client sampling does count: N/S in the controls'
term and in the step. `scaffold_best_step` is the largest step, best without noise; `scaffold_rounds` the fewest
rounds to an accuracy.

### Exact rate on least squares

`theory.round_maps.scaffold_round` is the affine map of (x, c_1..c_N) with full gradients and everybody: fixed point
(x*, ∇f_i(x*)), rate = its spectral radius. Weights p_k may be unequal. x²/2 and x²/20 with minimisers 1 and -1, η_l =
1/2 (`test_scaffold_rates_of_the_page`):

| K | SCAFFOLD II | SCAFFOLD I | FedAvg | FedAvg's bias |
|---|---|---|---|---|
| 1 | 0.725 | 0.725 | 0.725 | 0 |
| 5 | 0.488 | 0.539 | 0.403 | 0.197 |
| 20 | 0.450 | 1.104 | 0.179 | 0.600 |
| 100 | 0.890 | 1.418 | 0.003 | 0.815 |

With many local steps option I (c_i = gradient at x) diverges: every client solves its own tilted problem, and tilting
by ∇f_i(x) overshoots. Option II forgets wrong controls at 1 - (1-(1-η_lh)^K)/(Kη_lh) per round (equal Hessians,
curvature h): more local steps, slower. Quick proof: for equal Hessians the errors ε_i = c_i - c - ∇f_i(x*) of
the corrections obey ε_i⁺ = ε_i - s(H)ε_i/(Kη_l), s the filter of `fixed_points.md`: there ∇f_i(x) - ∇f(x) = ∇f_i(x*).

### FedAvg in the same paper (Theorem I, from memory, constants hidden)

Under (1/N) Σ‖∇f_i‖² ≤ G² + 2βB²(f - f*) and η_l ≤ 1/((1+B²)8βKη_g), with M² = σ²(1 + S/η_g²) + K(1 - S/N)G²: strongly
convex Õ(M²/(μRKS) + βG²/(μ²R²) + μD² exp(-μR/(16(1+B²)β))); convex O(MD/√(RKS) + D^{4/3}(βG²)^{1/3}/(R+1)^{2/3} +
B²βD²/R). Not code: for explicit constants use R1 and R2 of `fedavg_refined.md`.
""",
    loose="""
The start term by 2 in the limit (Huber function, h = 1/81, T = 1000: measured/bound 0.461; T →
∞: 1/2). The controls' term by about 35: N = 200 parabolas, S = 1, x⁰ = x*, c = 0: 0.029. The noise by 96 (one
parabola, η_g = 1: floor hσ²/(2(2-h))). Above all the steps: h ≤ 1/(81β), where 1/β works (and 3/β diverges). Without
the factor N/S the controls' term would be false (N = 120: exceeded 2.6 times after 240 rounds:
`test_planted_scaffold_without_client_sampling`). An index shift of the weights (q ≥ 29/30) is below what a violation
can show; the weights are checked by hand instead.
""",
)


def scaffold(
    constants: Constants,
    *,
    step_size: float,
    local_steps: int,
    rounds: int,
    participants: int | None = None,
    server_step: float = 1.0,
    control_error: float | None = None,
) -> Bound:
    """Return the bound of the weighted average of pre-round suboptimalities; weights: `scaffold_weights`.

    Parameters
    ----------
    constants : Constants
        L = beta, mu_k (or mu), D, sigma2, p or K; without control_error also zeta_star.
    step_size, local_steps, rounds : float, int, int
        eta_l, K, T.
    participants : int, optional
        S; default all clients.
    server_step : float
        eta_g.
    control_error : float, optional
        C_0; default zeta_star^2, that of c_i = 0.

    Raises
    ------
    AssumptionError
        If a constant is missing or infinite, the weights are unequal or a step is out of range.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.scaffold import scaffold
    >>> constants = Constants(L=1 / 81, mu=0.0, D=1.0, sigma2=0.0, zeta_star=0.0, K=10)
    >>> scaffold(constants, step_size=0.5, local_steps=2, rounds=4).value
    0.25
    """
    eta, K = real("step_size", step_size, low=0.0, strict=True), whole("local_steps", local_steps, low=1)
    T, eta_g = whole("rounds", rounds, low=1), real("server_step", server_step, low=0.0, strict=True)
    beta, mu, N, S, common = _setting(constants, participants)
    D, sigma2 = known_constants(SOURCE, constants, "D", "sigma2")
    own = known_constants(SOURCE, constants, "zeta_star")[0] ** 2 if control_error is None else control_error
    C0, h = real("control_error", own, low=0.0), K * eta * eta_g
    small, long = "h = local_steps step_size server_step <= 1/(81 L)", f"81 L h = {81 * beta * h:g}"
    requires = common + require(
        SOURCE,
        Hypothesis("server_step >= 1", f"server_step = {eta_g:g}", eta_g >= 1.0),
        Hypothesis(small, long, _at_most(81 * beta * h, 1)),
        Hypothesis("mu h <= S/(15 N)", f"mu h = {mu * h:g}, S/(15 N) = {S / (15 * N):g}", _at_most(15 * N * mu * h, S)),
        Hypothesis("gradient noise of variance at most sigma^2", f"sigma^2 = {sigma2:g}"),
        *where_taken(constants, "sigma2"),
    )
    unit = 1.0 / (h * _total_weight(0.5 * mu * h, T))
    terms = {
        "start": unit * float(D) ** 2,
        "controls": unit * 9.0 * N * h**2 / S * C0,
        "noise": 12.0 * h * float(sigma2) / (K * S) * (1.0 + S / eta_g**2),
    }
    return Bound(terms, WEIGHTED_AVERAGE, SOURCE, requires)


def scaffold_weights(
    constants: Constants, *, step_size: float, local_steps: int, rounds: int, server_step: float = 1.0
) -> np.ndarray:
    """Return w_r/W for r = 0, ..., T-1: how the theorem averages the server's iterates before the rounds.

    Parameters
    ----------
    constants : Constants
        mu of the least convex client.
    step_size, local_steps, rounds, server_step
        eta_l, K, T and eta_g, as for `scaffold`.

    Raises
    ------
    ValueError, TypeError
        If a step is not positive, or local_steps or rounds below 1.
    AssumptionError
        If the step is so long that weights would not decay.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.scaffold import scaffold_weights
    >>> scaffold_weights(Constants(L=1.0, mu=1.0), step_size=1.0, local_steps=1, rounds=2)
    array([0.33333333, 0.66666667])
    """
    instance("scaffold_weights: constants", constants, Constants)
    h = whole("local_steps", local_steps, low=1) * real("step_size", step_size, low=0.0, strict=True)
    mu = least_convexity(SOURCE, constants)
    half = 0.5 * mu * h * real("server_step", server_step, low=0.0, strict=True)
    require(SOURCE, Hypothesis("mu h < 2", f"mu h = {2 * half:g}", half < 1.0))
    back = np.arange(whole("rounds", rounds, low=1))[::-1]  # T - 1 - r
    w = np.exp(back * math.log1p(-half))
    return np.asarray(w / w.sum())


def scaffold_best_step(
    constants: Constants, *, local_steps: int, participants: int | None = None, server_step: float = 1.0
) -> float:
    """Return the largest local step that the theorem allows, the best one where there is no noise.

    Parameters
    ----------
    constants : Constants
        L, mu, and the number of clients.
    local_steps, participants, server_step
        As for `scaffold`.

    Raises
    ------
    ValueError, TypeError
        If local_steps is below 1, participants not in 1, ..., K, or server_step below 1.
    AssumptionError
        If a constant is missing.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.scaffold import scaffold_best_step
    >>> scaffold_best_step(Constants(L=1 / 81, mu=0.0, K=10), local_steps=2)
    0.5
    """
    K, eta_g = whole("local_steps", local_steps, low=1), real("server_step", server_step, low=1.0)
    beta, mu, N, S, _ = _setting(constants, participants)
    return default_steps.control_step(beta, mu, N, S, K, eta_g).value


def scaffold_rounds(
    constants: Constants, accuracy: float, *, step_size: float, local_steps: int, **settings: Any
) -> int:
    """Return the fewest rounds after which the bound is at most ``accuracy``; settings as for `scaffold`.

    Parameters
    ----------
    constants, step_size, local_steps, **settings
        As for `scaffold`.
    accuracy : float
        Positive, in the units of the objective.

    Raises
    ------
    AssumptionError
        If the noise term alone exceeds the accuracy.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.scaffold import scaffold_rounds
    >>> constants = Constants(L=1 / 81, mu=0.0, D=1.0, sigma2=0.0, zeta_star=0.0, K=10)
    >>> scaffold_rounds(constants, 0.25, step_size=0.5, local_steps=2)
    4
    """
    eps = real("accuracy", accuracy, low=0.0, strict=True)

    def bound(T: int) -> Bound:
        return scaffold(constants, step_size=step_size, local_steps=local_steps, rounds=T, **settings)

    noise = bound(1).terms["noise"]
    require(SOURCE, Hypothesis("accuracy above the noise term", f"{eps:g}, noise {noise:g}", eps > noise))
    low, high = 0, 1
    while bound(high).value > eps:
        low, high = high, 2 * high
        if high > 1 << 60:
            raise AssumptionError(f"{SOURCE} does not reach {eps:g} within 2^60 rounds")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bound(middle).value > eps else (low, middle)
    return high


# ---------------------------------------------------------------- inner workings


def _setting(constants: Constants, participants: int | None) -> tuple[float, float, int, int, tuple[Hypothesis, ...]]:
    (beta,) = known_constants(SOURCE, constants, "L")
    p = client_weights(SOURCE, constants)
    S = p.size if participants is None else whole("participants", participants, low=1, high=p.size)
    mu = least_convexity(SOURCE, constants)
    requires = require(
        SOURCE,
        equal_weights(p),
        Hypothesis("every f_i L-smooth, L > 0", f"L = {beta:g}", beta > 0.0),
        Hypothesis("every f_i mu-strongly convex, mu >= 0", f"mu = {mu:g}", mu >= 0.0),
    )
    return float(beta), mu, p.size, S, requires


def _at_most(x: float, y: float) -> bool:
    return x <= y * (1.0 + 1e-12)


def _total_weight(half: float, T: int) -> float:
    """sum_{r<T} (1 - half)^-(r+1)."""
    if half == 0.0:
        return float(T)
    log = math.log1p(-half)
    return math.expm1(-T * log) / half if -T * log < 700.0 else math.inf


FORMULA = Formula(
    {
        "start": "D**2 / (h * W)",
        "controls": "9 * M * h * zeta_star**2 / (S * W)",
        "noise": "12 * h * sigma2 / (tau * S) * (1 + S / eta_g**2)",
    },
    {"h": "tau * eta * eta_g", "q": "1 - mu * h / 2", "W": "sum_r(q**(-r))"},
)

# ---------------------------------------------------------------- read off a setting


def _numbers(s: Setting) -> dict[str, Any]:
    m = s.method
    is_method(SOURCE, m, SCAFFOLD)
    stationary(SOURCE, s.problem)
    require(
        SOURCE,
        Hypothesis("option II", f"option {m.option}", m.option == 2),
        Hypothesis("local steps on fresh batches", f"epochs={m.epochs}", m.epochs is None),
    )
    eta = one_number(SOURCE, "step size", m.step_size)
    return {"step_size": eta, "local_steps": m.local_steps, "server_step": float(m.server_step)}


def _read(s: Setting) -> Reading:
    numbers = _numbers(s)
    return Reading({"constants": s.constants(), "rounds": s.rounds, "participants": participants(s), **numbers})


def _weighted_average(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """sum_{r<T} w_r (F(x^r) - F*)/W over the server's models before the rounds."""
    numbers, c, best = _numbers(s), s.constants(), s.problem.solve()
    runs = iterate(s.method, s.problem, rounds=max(rounds), seed=seed, trajectories=trajectories, start=s.start)
    gaps = np.array([s.problem.value(state.w) - best.value for _, state in runs])
    return np.array([scaffold_weights(c, rounds=T, **numbers) @ gaps[:T] for T in rounds])


def _exact_average(s: Setting, rounds: Sequence[int]) -> Found | np.ndarray | None:
    """Its expectation, from exact moments on least squares, or of one run where nothing is random."""
    if not traits(s.problem.loss).quadratic:
        return deterministic(_weighted_average)(s, rounds)
    trace, off = StackedMoments(s.method, s.problem).run_with_rounding(max(rounds), start=s.start)
    weights = [scaffold_weights(s.constants(), rounds=T, **_numbers(s)) for T in rounds]
    return Found(*(np.array([w @ v[: w.size] for w in weights]) for v in (trace.suboptimality, off.value)))


def _one_client(half: int) -> UniformSampling:
    return UniformSampling(1)


def _parabolas() -> Problem:
    """At the optimum nothing but the controls' error counts; the second feature, all zeros, makes mu = 0."""
    return Problem(Federation.from_clients([([[1.0, 0.0]], [(-1.0) ** k]) for k in range(40)]), Squared())


def _noisy_parabola() -> Problem:
    """From the optimum of one client nothing is left but the noise of its mini-batches."""
    return Problem(Federation.from_clients([([[1.0, 0.0], [1.0, 0.0]], [1.0, -1.0])]), Squared())


_NOISY = Instance(
    "one noisy parabola", "one client, F = w²/2 from rows that pull to either side", "synthetic", cache(_noisy_parabola)
)
_PARABOLAS = Instance(
    "40 parabolas", "40 clients, F = (w - y)²/2 with y = ±1, from the optimum", "synthetic", cache(_parabolas)
)
_FLAT = Instance(
    "steep and nearly flat",
    "one client, F = (u - 1)²/2 + (u² + v²)/2000",
    "synthetic",
    lambda: Problem(Federation.from_clients([([[1.0, 0.0]], [1.0])]), Squared(), 1e-3),
)


def _sampled_step(share: float, sampled: int = 0, **settings: Any) -> MethodRule:
    """Return SCAFFOLD with the step share/L of every client, or of so many sampled ones."""
    scheme = settings if sampled == 0 else settings | {"scheme": lambda half: UniformSampling(sampled)}
    return fixed_step(share, SCAFFOLD, **scheme)


_SPACE = local_sgd_space(
    _sampled_step,
    1.0 / 81.0,
    batches=1,
    most=8,
    rounds=(1, 400),
    losses=("squared", "hinge"),
    tries=12,
    more={"sampled": Whole(0, 2), "copies": Whole(1, 12)},
)

THEOREMS = (
    Theorem(
        name="scaffold",
        title="SCAFFOLD (Karimireddy et al.)",
        quantity=WEIGHTED_AVERAGE,
        bound=scaffold,
        formula=FORMULA,
        read=_read,
        sample=_weighted_average,
        exact=_exact_average,
        statement=STATEMENT,
        says="Control variates remove the drift: no heterogeneity in the weighted average, for steps of order 1/(81L).",
        loose="Mostly in the steps, 1/81 where 1 works; a factor 2 in the start, 35 in the controls, 96 in the noise.",
        method=least_bound_step(SCAFFOLD, local_steps=3, batch_size=4, scheme=UniformSampling),
        rounds=30,
        checks=(
            shifted_logistic,
            breast_cancer,
            Check(unequal_hessians, least_bound_step(SCAFFOLD, local_steps=3)),
            Check(mean_estimation, least_bound_step(SCAFFOLD, local_steps=3, batch_size=2, scheme=UniformSampling)),
            Check(diabetes, least_bound_step(SCAFFOLD, local_steps=3)),
            Check(unequal_hessians, fixed_step(1.0, SCAFFOLD, local_steps=3)),  # too large a step
            Check(_FLAT, fixed_step(1.0 / 81.0, SCAFFOLD, local_steps=1, server_step=300.0), 10),  # or of the server
            Check(_PARABOLAS, fixed_step(1.0 / 81.0, SCAFFOLD, local_steps=1, scheme=_one_client), 200),
            Check(_NOISY, fixed_step(1.0 / 81.0, SCAFFOLD, local_steps=1, batch_size=1), 60),
        ),
        space=_SPACE,
    ),
)
