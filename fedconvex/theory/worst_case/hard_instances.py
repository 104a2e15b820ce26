"""Hard instances of FedAvg from lower bounds, as data: quadratics, with their exact values in closed form.

Setting
-------
M = 2 clients with equal weights, f_i(x) = x'H_i x/2 + <b_i, x>, b_1 + b_2 = 0, 0 <= H_i <= L, minimiser x* = 0,
‖x^0‖ = D. FedAvg makes tau gradient steps of size eta per round, T rounds; the value is F(x^T) - F(x*). a = 1 - eta L.

Statement
---------
* `drifting`: f_1(x) = L x^2/2 + zeta x, f_2(x) = -zeta x. Locally y_1 = a^tau x - (1 - a^tau) zeta/L and
  y_2 = x + eta tau zeta, so x^T = r^T x^0 + (1 - r^T) x_f with r = (1 + a^tau)/2 and the biased fixed point
  x_f = zeta (eta tau - (1 - a^tau)/L)/(1 - a^tau). It is no zero of the gradient unless tau = 1.
* `crossing`: f_i(x) = L <a_i, x>^2/2 with a_1 = (s, c), a_2 = (s, -c), s^2 + c^2 = 1, x^0 = (D, 0). The clients share
  the minimiser. However many local steps are made, a client only forgets its component along a_i:
  x^T = D (1 - (1 - a^tau) s^2)^T, F(x) = L s^2 x_1^2/2. With s^2 = 1/(2 (2 T + 1)) and any step below 2/L, as
  1 - a^tau <= 2: F(x^T) >= L D^2 (1 - 1/(2 T + 1))^{2T}/(4 (2 T + 1)) >= L D^2/(4 e (2 T + 1)), a rate of 1/T in the
  *rounds* (`communication_bound`).
* `drifting_slowly`: `drifting` from its optimum, and beside it a direction of curvature
  m = min(L, 1/(eta (2 tau T + 1))) that both clients share and along which x^0 lies: the drift asks for small steps,
  this direction for large ones. For small eta tau L and many rounds the value is about
  L zeta^2 eta^2 (tau - 1)^2/16 + D^2/(4 e eta tau T), least over eta at
  3 (L zeta^2 D^4)^{1/3} ((tau - 1)/tau)^{2/3}/(1024 e^2 T^2)^{1/3}: 0.153 (L zeta^2 D^4)^{1/3}/T^{2/3} for many local
  steps. `drift_bound` proves what is left at every step, for any numbers.

Source
------
`drifting`: Karimireddy, Kale, Mohri, Reddi, Stich and Suresh (ICML 2020), Theorem II, with these functions for
L = 2 mu, zeta = G. `crossing`: Patel, Glasgow, Zindari, Wang, Stich, Cheng, Joshi and Srebro (COLT 2024) prove a lower
bound of order L D^2/T in the rounds for clients that share a minimiser. `drifting_slowly`: the order is that of the
heterogeneous lower bounds of Woodworth, Patel and Srebro (NeurIPS 2020) and Glasgow, Yuan and Ma (AISTATS 2022).

What differs from the printed form
----------------------------------
Only the functions of `drifting` are the paper's, and its value in closed form is derived here. The papers hide
constants in Omega; `crossing` and `drifting_slowly` are instances of the project's own of the same order, with every
constant, for deterministic gradients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedconvex._check import among, bad, real, whole
from fedconvex.theory.worst_case.classes import AtOptimum, Problems


@dataclass(frozen=True)
class HardInstance:
    """Two quadratics on which FedAvg is slow, and how slow exactly.

    Attributes
    ----------
    name : str
    source : str
        The theorem of which it is the instance, or whose order it shows.
    H : array (2, d, d)
        Hessians.
    b : array (2, d)
        Gradients at x* = 0.
    start : array (d,)
    step_size, local_steps, rounds
        The run.
    value : float
        F(x^T) - F(x*) of that run, in closed form.
    problems : Problems
        The class in which the instance lies; the exact worst case of the class is at least ``value``.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theory.worst_case import drifting
    >>> hard = drifting(1.0, 1.0, 0.5, step_size=0.25, local_steps=4, rounds=5)
    >>> hard.H.shape, bool(np.isclose(hard.simulate(), hard.value))
    ((2, 1, 1), True)
    """

    name: str
    source: str
    H: np.ndarray = field(repr=False)
    b: np.ndarray = field(repr=False)
    start: np.ndarray = field(repr=False)
    step_size: float
    local_steps: int
    rounds: int
    value: float
    problems: Problems

    def simulate(self, metric: str = "last") -> float:
        """Run FedAvg and return F(x^T) - F(x*), or with "shadow" the mean of F - F(x*) over the shadow iterates."""
        among("HardInstance.simulate: metric", metric, ("last", "shadow"))
        x, mean, values = self.start, self.H.mean(axis=0), []
        for _ in range(self.rounds):
            y = np.stack([x] * len(self.b))
            for _ in range(self.local_steps):
                y = y - self.step_size * (np.einsum("mij,mj->mi", self.H, y) + self.b)
                x = y.mean(axis=0)
                values.append(float(0.5 * x @ mean @ x))
        return values[-1] if metric == "last" else float(np.mean(values))


def _run(who: str, L: float, D: float, step_size: float, tau: int, T: int) -> tuple[float, float, float, int, int]:
    L, step_size = (real(f"{who}: {n}", v, low=0.0, strict=True) for n, v in (("L", L), ("step_size", step_size)))
    if step_size >= 2.0 / L:
        raise bad(f"{who}: step_size", f"be below 2/L = {2.0 / L:g}", step_size)
    if step_size * L < 1e-12:  # 1 - (1 - eta L)^tau has no digits left
        raise bad(f"{who}: step_size", f"be at least 1e-12/L = {1e-12 / L:g}", step_size)
    D = real(f"{who}: D", D, low=0.0, high=1e150)
    return L, D, step_size, whole(f"{who}: local_steps", tau, low=1), whole(f"{who}: rounds", T, low=1)


def _drifted(L: float, D: float, zeta: float, eta: float, tau: int, T: int) -> float:
    """x^T of `drifting`."""
    a = (1.0 - eta * L) ** tau
    ratio = ((1.0 + a) / 2.0) ** T
    fixed = zeta * (eta * tau - (1.0 - a) / L) / (1.0 - a)
    return ratio * D + (1.0 - ratio) * fixed


def drifting(L: float, D: float, zeta: float, *, step_size: float, local_steps: int, rounds: int) -> HardInstance:
    """Return f_1 = L x^2/2 + zeta x, f_2 = -zeta x: the fixed point of FedAvg is not x*.

    Parameters
    ----------
    L, D, zeta : float
        Smoothness, ‖x^0 - x*‖, (mean ‖grad f_i(x*)‖^2)^{1/2}.
    step_size : float
        Below 2/L.
    local_steps, rounds : int

    Raises
    ------
    ValueError, TypeError
        If L is not positive, D or zeta negative, or local_steps or rounds below 1; if step_size is not in [1e-12/L,
        2/L).

    Examples
    --------
    >>> from fedconvex.theory.worst_case import drifting
    >>> hard = drifting(1.0, 0.0, 1.0, step_size=0.5, local_steps=2, rounds=1)
    >>> hard.value, hard.simulate()
    (0.00390625, 0.00390625)
    """
    L, D, eta, tau, T = _run("drifting", L, D, step_size, local_steps, rounds)
    zeta = real("drifting: zeta", zeta, low=0.0)
    x = _drifted(L, D, zeta, eta, tau, T)
    H, b = np.array([[[L]], [[0.0]]]), np.array([[zeta], [-zeta]])
    problems = Problems(2, L=L, D=D, heterogeneity=AtOptimum(zeta))
    source = "Karimireddy et al. (2020), Theorem II"
    return HardInstance("drifting", source, H, b, np.array([D]), eta, tau, T, L * x * x / 4.0, problems)


def crossing(L: float, D: float, *, step_size: float, local_steps: int, rounds: int) -> HardInstance:
    """Return two valleys that cross at a small angle: local steps do not help, though clients share the minimiser.

    Parameters
    ----------
    L, D : float
        Smoothness, ‖x^0 - x*‖.
    step_size : float
        Below 2/L.
    local_steps, rounds : int

    Raises
    ------
    ValueError, TypeError
        If L or D is not positive, local_steps or rounds below 1, or step_size not in [1e-12/L, 2/L).

    Examples
    --------
    >>> from fedconvex.theory.worst_case import communication_bound, crossing
    >>> hard = crossing(1.0, 1.0, step_size=1.0, local_steps=100, rounds=10)
    >>> hard.value > communication_bound(1.0, 1.0, 10)
    True
    """
    L, D, eta, tau, T = _run("crossing", L, D, step_size, local_steps, rounds)
    D = real("crossing: D", D, low=0.0, high=1e150, strict=True)
    s2 = 1.0 / (2.0 * (2 * T + 1))
    a = np.array([[math.sqrt(s2), math.sqrt(1.0 - s2)], [math.sqrt(s2), -math.sqrt(1.0 - s2)]])
    x = D * (1.0 - (1.0 - (1.0 - eta * L) ** tau) * s2) ** T
    H, b = L * a[:, :, None] * a[:, None, :], np.zeros((2, 2))
    source = "order of Patel et al. (2024); instance and constant derived here"
    problems = Problems(2, L=L, D=D)
    return HardInstance("crossing", source, H, b, np.array([D, 0.0]), eta, tau, T, L * s2 * x * x / 2.0, problems)


def drifting_slowly(
    L: float, D: float, zeta: float, *, step_size: float, local_steps: int, rounds: int
) -> HardInstance:
    """Return `drifting` from its optimum, beside a flat direction: small steps are slow, large ones drift.

    Parameters
    ----------
    L, D, zeta, step_size, local_steps, rounds
        As for `drifting`.

    Raises
    ------
    ValueError, TypeError
        If L or D is not positive, zeta negative, local_steps or rounds below 1, or step_size not in [1e-12/L, 2/L).

    Examples
    --------
    >>> from fedconvex.theory.worst_case import drifting_slowly
    >>> run = {"local_steps": 4, "rounds": 10}
    >>> [round(drifting_slowly(1.0, 1.0, 1.0, step_size=eta, **run).value, 3) for eta in (0.01, 0.1, 0.5)]
    [0.224, 0.028, 0.325]
    """
    L, D, eta, tau, T = _run("drifting_slowly", L, D, step_size, local_steps, rounds)
    D = real("drifting_slowly: D", D, low=0.0, high=1e150, strict=True)
    zeta = real("drifting_slowly: zeta", zeta, low=0.0)
    x, m = _drifted(L, 0.0, zeta, eta, tau, T), min(L, 1.0 / (eta * (2 * tau * T + 1)))
    value = L * x * x / 4.0 + 0.5 * m * (D * (1.0 - eta * m) ** (tau * T)) ** 2
    H = np.array([np.diag([L, m]), np.diag([0.0, m])])
    b = np.array([[zeta, 0.0], [-zeta, 0.0]])
    source = "order of Woodworth et al. (2020), Glasgow et al. (2022); instance and constant derived here"
    problems = Problems(2, L=L, D=D, heterogeneity=AtOptimum(zeta))
    return HardInstance("drifting slowly", source, H, b, np.array([0.0, D]), eta, tau, T, value, problems)


def noise_bias(L: float, sigma: float, *, step_size: float, local_steps: int) -> float:
    """Return f(E y) after one round from the optimum of f(x) = L x^2/2 for x >= 0, L x^2/4 for x < 0, noise ± sigma.

    Noise has mean 0 and the clients are equal, and yet local steps are biased towards the flat side, because the
    curvature differs: E y is the mean over all 2^tau signs. By Jensen's inequality E F(mean of the clients) >= f(E y)
    for every number of clients: averaging does not help. With two steps E y = -eta^2 L sigma/4.

    Parameters
    ----------
    L, sigma : float
    step_size : float
        Below 2/L.
    local_steps : int
        At most 16: all outcomes are followed.

    Raises
    ------
    ValueError, TypeError
        If sigma is not in [0, 1e100], local_steps not in 1, ..., 16, or step_size not in [1e-12/L, 2/L).

    References
    ----------
    Iterate bias: Woodworth et al. (ICML 2020) and Glasgow, Yuan and Ma (AISTATS 2022), whose lower bounds for equal
    clients rest on curvature that changes at the optimum. This instance and its value are the project's own.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import noise_bias
    >>> noise_bias(1.0, 1.0, step_size=0.5, local_steps=2) == 0.25 * (0.5**2 / 4) ** 2
    True
    """
    L, _, eta, tau, _ = _run("noise_bias", L, 0.0, step_size, local_steps, 1)
    tau, sigma = (
        whole("noise_bias: local_steps", tau, low=1, high=16),
        real("noise_bias: sigma", sigma, low=0.0, high=1e100),
    )
    y = np.zeros(1)
    for _ in range(tau):
        y = np.concatenate([y - eta * (np.where(y >= 0.0, L, 0.5 * L) * y + sign * sigma) for sign in (1.0, -1.0)])
    mean = float(y.mean())
    return 0.5 * (L if mean >= 0.0 else 0.5 * L) * mean**2


def communication_bound(L: float, D: float, rounds: int) -> float:
    """Return L D^2 (1 - 1/(2T + 1))^{2T}/(4 (2T + 1)): no step below 2/L, no number of local steps does better.

    It is a lower bound on the worst F(x^T) - F(x*) of FedAvg where clients share a minimiser, by `crossing`.

    Parameters
    ----------
    L, D : float
    rounds : int

    Raises
    ------
    ValueError, TypeError
        If rounds is below 1, or a constant not positive.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import communication_bound
    >>> round(communication_bound(1.0, 1.0, 10), 5)
    0.00449
    """
    L, D = (real(f"communication_bound: {n}", v, low=0.0, strict=True) for n, v in (("L", L), ("D", D)))
    T = whole("communication_bound: rounds", rounds, low=1)
    return L * D * D * (1.0 - 1.0 / (2 * T + 1)) ** (2 * T) / (4.0 * (2 * T + 1))


def drift_bound(L: float, D: float, zeta: float, local_steps: int, rounds: int) -> float:
    """Return what no constant step avoids: a lower bound on the worst F(x^T) - F(x*) of FedAvg, by `drifting_slowly`.

    The drift grows with the step up to 1/L and stays at least what it is there up to 2/L; what is left of the start
    falls with the step. So between neighbours of a grid the value is at least the drift at the one plus the start at
    the other, and the least of these sums holds for all steps below 2/L. With longer ones L x^2/2 does not converge.

    Parameters
    ----------
    L, D, zeta : float
        Smoothness, ‖x^0 - x*‖, (mean ‖grad f_i(x*)‖^2)^{1/2}.
    local_steps, rounds : int

    Raises
    ------
    ValueError, TypeError
        If L is not positive, D or zeta negative, or local_steps or rounds below 1.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import drift_bound, drifting_slowly
    >>> tuned = drift_bound(1.0, 1.0, 1.0, local_steps=10, rounds=1000)
    >>> round(tuned * 1000 ** (2 / 3), 3)
    0.144
    >>> drifting_slowly(1.0, 1.0, 1.0, step_size=0.0003, local_steps=10, rounds=1000).value > tuned
    True
    """
    L, D, zeta = (real(f"drift_bound: {n}", v, low=0.0) for n, v in (("L", L), ("D", D), ("zeta", zeta)))
    L, D, _, tau, T = _run("drift_bound", L, D, 1.0 / max(L, 1e-300), local_steps, rounds)
    steps = np.geomspace(1e-9, 1.0, 4000) / L
    x = np.clip([_drifted(L, 0.0, zeta, eta, tau, T) for eta in steps.tolist()], 0.0, 1e150)  # below 0 by rounding only
    drift = L * x * x / 4.0
    m = np.minimum(L, 1.0 / (steps * (2 * tau * T + 1)))
    start = 0.5 * m * (D * (1.0 - steps * m) ** (tau * T)) ** 2
    left = np.append(start[0], drift[:-1] + start[1:])  # below the first step of the grid, and between neighbours
    return float(min(left.min(), drift[-1]) * (1.0 - 1e-6))  # for rounding


def hard_instances(
    L: float, D: float, zeta: float, *, step_size: float, local_steps: int, rounds: int
) -> tuple[HardInstance, ...]:
    """Return all hard instances of a run of FedAvg, the hardest first.

    Parameters
    ----------
    L, D, zeta, step_size, local_steps, rounds
        As for `drifting`.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import hard_instances
    >>> [h.name for h in hard_instances(1.0, 1.0, 1.0, step_size=0.5, local_steps=4, rounds=10)]
    ['drifting slowly', 'drifting', 'crossing']
    """
    run: dict[str, Any] = {"step_size": step_size, "local_steps": local_steps, "rounds": rounds}
    found = [drifting(L, D, zeta, **run), drifting_slowly(L, D, zeta, **run), crossing(L, D, **run)]
    return tuple(sorted(found, key=lambda instance: -instance.value))
