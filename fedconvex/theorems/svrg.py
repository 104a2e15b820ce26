"""SVRG: linear convergence per epoch, for single rows and for mini-batches without or with replacement.

Setting
    P = (1/n) sum psi_i. Epoch s: full gradient at w~ = w~_{s-1}; w_0 = w~; m steps w_t = w_{t-1} - eta v_t,
    v_t = psi_B'(w_{t-1}) - psi_B'(w~) + P'(w~), B a fresh batch of b rows; w~_s = w_t for a t drawn uniformly from
    0, ..., m-1 (option II).
Assumptions
    Every psi_i is convex and L_s-smooth; P is L-smooth and gamma-strongly convex.
Statement
    phi = (n - b)/((n - 1) b) (without replacement; 1/b with), a = (1 - phi) L + 2 phi L_s. If eta a < 1,

        E P(w~_s) - P* <= alpha^s [P(w~_0) - P*],
        alpha = 1/(gamma eta (1 - a eta) m) + 2 phi L_s eta/(1 - a eta);

    for single rows (phi = 1): alpha = 1/(gamma eta (1 - 2 L_s eta) m) + 2 L_s eta/(1 - 2 L_s eta). It is least at
    eta = A/(a A + sqrt(a^2 A^2 + 2 phi L_s A)), A = 1/(gamma m).
Source
    Johnson, Zhang, "Accelerating stochastic gradient descent using predictive variance reduction", NIPS 2013, Theorem
    1 (phi = 1; re-derived). Mini-batches and the best step: this project, docs/theory/svrg.md. For mini-batches see
    also Konecny, Liu, Richtarik, Takac, "Mini-batch semi-stochastic gradient descent in the proximal setting", 2016.
What differs
    The iterate w~_s is drawn from w_0, ..., w_{m-1}, *before* the steps, not from w_1, ..., w_m; for the last iterate
    (option I) the theorem says nothing. phi = 0 (full batches) gives gradient descent, with steps below 1/L.
"""

from __future__ import annotations

from fedconvex._check import real, whole
from fedconvex.constants import Constants, default_steps
from fedconvex.theory.bound import LAST_SYNCHRONISED, Bound, Hypothesis, known, require

__all__ = ["svrg", "svrg_best_step", "svrg_factor"]

SOURCE = "Johnson, Zhang 2013, NIPS, Theorem 1"
BATCHES = "fedconvex, Theorem 1 of Johnson, Zhang 2013 for mini-batches (docs/theory/svrg.md)"


def svrg(
    constants: Constants,
    *,
    step_size: float,
    inner_steps: int,
    epochs: int,
    start_gap: float | None = None,
    noise_factor: float = 1.0,
) -> Bound:
    """Return the bound of E P(w~_s) - P*.

    Parameters
    ----------
    constants : Constants
        L_s, mu = gamma; with noise_factor < 1 also L; without start_gap L and D.
    step_size, inner_steps, epochs : float, int, int
        eta, m, s.
    start_gap : float, optional
        P(w~_0) - P*; default its bound L D^2/2.
    noise_factor : float
        phi: 1 for single rows, `fedconvex.problems.noise_factor` for mini-batches.

    Raises
    ------
    AssumptionError
        If a constant is missing, mu = 0, eta is too large or alpha >= 1.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.svrg import svrg
    >>> round(svrg(Constants(L_s=1.0, mu=0.1), step_size=0.1, inner_steps=500, epochs=2, start_gap=4.0).value, 6)
    1.0
    """
    m, s = whole("inner_steps", inner_steps, low=1), whole("epochs", epochs)
    alpha = svrg_factor(constants, step_size=step_size, inner_steps=m, noise_factor=noise_factor)
    theorem, L_s, L, _, phi, requires = _setting(constants, noise_factor)
    a = (1.0 - phi) * L + 2.0 * phi * L_s
    requires += require(
        theorem,
        Hypothesis("step_size ((1 - phi) L + 2 phi L_s) < 1", f"{step_size * a:g}", step_size * a < 1.0),
        Hypothesis("alpha < 1 (vacuous otherwise)", f"alpha = {alpha:g}", alpha < 1.0),
    )
    if start_gap is None:
        top, D = known(theorem, constants, "L", "D")
        start_gap = 0.5 * float(top) * float(D) ** 2
    gap = real("start_gap", start_gap, low=0.0)
    return Bound({"start": alpha**s * gap}, LAST_SYNCHRONISED, theorem, requires)


def svrg_factor(constants: Constants, *, step_size: float, inner_steps: int, noise_factor: float = 1.0) -> float:
    """Return alpha, the factor of an epoch; it may exceed 1.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.svrg import svrg_factor
    >>> constants = Constants(L_s=1.0, L=1.0, mu=0.1)
    >>> [round(svrg_factor(constants, step_size=0.1, inner_steps=500, noise_factor=phi), 4) for phi in (1.0, 0.0)]
    [0.5, 0.2222]
    """
    eta, m = real("step_size", step_size, low=0.0, strict=True), whole("inner_steps", inner_steps, low=1)
    theorem, L_s, L, mu, phi, _ = _setting(constants, noise_factor)
    a = (1.0 - phi) * L + 2.0 * phi * L_s
    require(theorem, Hypothesis("step_size ((1 - phi) L + 2 phi L_s) < 1", f"{eta * a:g}", eta * a < 1.0))
    return (1.0 / (mu * eta * m) + 2.0 * phi * L_s * eta) / (1.0 - a * eta)


def svrg_best_step(constants: Constants, *, inner_steps: int, noise_factor: float = 1.0) -> float:
    """Return the step size of the least alpha.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.svrg import svrg_best_step, svrg_factor
    >>> constants = Constants(L_s=1.0, mu=0.1)
    >>> eta = svrg_best_step(constants, inner_steps=500)
    >>> round(eta, 4), round(svrg_factor(constants, step_size=eta, inner_steps=500), 4)
    (0.082, 0.4879)
    """
    m = whole("inner_steps", inner_steps, low=1)
    _, L_s, L, mu, phi, _ = _setting(constants, noise_factor)
    return default_steps.reduction_step(L, L_s, mu, m, phi).value


def _setting(
    constants: Constants, noise_factor: float
) -> tuple[str, float, float, float, float, tuple[Hypothesis, ...]]:
    phi = real("noise_factor", noise_factor, low=0.0, high=1.0)
    theorem = SOURCE if phi == 1.0 else BATCHES
    L_s, mu = known(theorem, constants, "L_s", "mu")
    L = known(theorem, constants, "L")[0] if phi < 1.0 else L_s
    requires = require(
        theorem,
        Hypothesis("every row loss convex and L_s-smooth", f"L_s = {L_s:g}"),
        Hypothesis("P strongly convex", f"mu = {mu:g}", mu > 0.0),
    )
    return theorem, float(L_s), float(L), float(mu), phi, requires
