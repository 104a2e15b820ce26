"""Formulas of the bounds of Dynamic FedAvg, and the numbers of their symbols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedconvex.theorems.parts.bound_formulas import Formula

SIGNS = {
    "eta": r"\mu",
    "d_P": r"\delta_P",
    "d_k": r"\delta_k",
    "d_Pk": r"\delta_{P,k}",
    "N_k": "N_k",
    "V_k": "V_k",
    "h_k": r"\|\nabla P_k(w^o)\|^2",
    "g_k": r"\|\nabla P_k(w)\|^2",
    "V_w": "V_k(w)",
    "s_k": r"\tau_{s,k}",
    "q_k": r"\tau'_k",
    "tau_eps": r"\tau_\varepsilon",
    "beta_s2": r"\beta_s^2",
    "sigma_s2": r"\sigma_s^2",
    "eps2": r"\varepsilon^2",
    "beta_d2": r"\beta_d^2",
    "sigma_d2": r"\sigma_d^2",
    "drift2": r"\sigma_q^2",
    "start2": r"\|w_0 - w_0^*\|^2",
    "e": r"\|e\|",
    "lam": r"\lambda",
    "S": "L",
    "c_k": r"\mathrm{tr}\,(H^{-1} R_k)",
    "b_k": r"\nabla P_k(w^o)' H^{-1} \nabla P_k(w^o)",
    "R_q": r"\mathrm{tr}\,(H^{-1} R_q)",
    "m_1": r"\lambda_{\max}(M)",
    "theta": r"\theta",
}
MEANINGS = {
    "eta": "the step size (a local step is $\\mu/E_k$)",
    "K": "the number of agents",
    "S": "the number of agents that take part in an iteration",
    "T": "the iterations",
    "nu": "the strong convexity of $P$",
    "d_P": "its smoothness",
    "d_k": "the smoothness of agent $k$'s roughest row",
    "d_Pk": "the smoothness of $P_k$",
    "N_k": "the rows of agent $k$",
    "B_k": "the rows of its mini-batches",
    "E_k": "its local steps",
    "V_k": "the variance of one row's gradient at $w^o$",
    "h_k": "the squared gradient of $P_k$ at the minimiser $w^o$ of $P$",
    "g_k": "the squared gradient of $P_k$ at the model $w$",
    "V_w": "the variance of one row's gradient there",
    "drift2": "the mean square of the minimiser's move in an iteration",
    "start2": "the squared distance at the start",
    "e": "the distance of the model from the minimiser",
    "c_k": "the trace for the covariance $R_k$ of one row's gradient at $w^o$ and the Hessian $H$ of $P$",
    "b_k": "the squared gradient of $P_k$ there, in the norm of $H^{-1}$",
    "R_q": "the trace for the covariance $R_q$ of the minimiser's move in an iteration",
    "m_1": r"the largest eigenvalue of $M = \mathrm{E}[H_i H^{-1} H_i]$, $H_i$ the Hessian of one iteration's rows",
    "a": "a free parameter",
    "t": "a free parameter",
}
DRAWN = {"s_k": "(N_k - B_k) / (max(N_k - 1, 1) * B_k * E_k)", "tau_eps": "(K - S) / max(K - 1, 1)"}
STEPS = {"q_k": "(N_k - B_k) / (max(N_k - 1, 1) * B_k)", "a_k": "((E_k - 1) / (2 * E_k))**2"}
DELTA = {"delta": "max_k(d_k)"}
NOISE = {
    "beta_s2": "delta**2 / S * mean_k(6 * s_k + 2 * tau_eps)",
    "sigma_s2": "3 / S * mean_k(s_k * V_k)",
    "eps2": "2 * tau_eps / S * mean_k(h_k)",
}
_INCREMENTS = {
    "beta_d2": "2 * delta**4 * mean_k(a_k * (1 + q_k))",
    "sigma_d2": "2 * delta**2 * mean_k(a_k * (h_k + q_k * V_k))",
}
SHORT = r"Where $E_k > 1$ it asks for $\mu/E_k \le 2/\delta_k$."


def _formula(terms: Mapping[str, str], where: Mapping[str, str], remark: str = "") -> Formula:
    return Formula(terms, where, signs=SIGNS, meanings=MEANINGS, remark=remark)


GRADIENT_NOISE = _formula(
    {"distance": "beta_s2 * e**2", "data variability": "sigma_s2", "model variability": "eps2"}, DRAWN | DELTA | NOISE
)
GRADIENT_NOISE_SHARP = _formula(
    {
        "distance": "e / (2 * S) * (mean_k(s_k * d_k * (2 * sqrt(V_k) + d_k * e / 2)) + tau_eps * G * (2 * sqrt(mean_k("
        "h_k)) + G * e / 2))",
        "data variability": "1 / S * mean_k(s_k * V_k)",
        "model variability": "tau_eps / S * mean_k(h_k)",
    },
    DRAWN | {"G": "max_k(d_Pk)"},
)
INCREMENTAL_NOISE = _formula(
    {"distance": "eta**2 * beta_d2 * e**2", "at the optimum": "eta**2 * sigma_d2"}, STEPS | DELTA | _INCREMENTS, SHORT
)
INCREMENTAL_NOISE_AT = _formula(
    {
        "gradients": "eta**2 * mean_k(a_k * d_k * d_Pk * g_k)",
        "data variability": "eta**2 * mean_k(a_k * d_k * d_Pk * q_k * V_w)",
    },
    STEPS,
    SHORT,
)


def _recursion(shares: Mapping[str, str], where: Mapping[str, str], finite: bool, remark: str) -> Formula:
    """Return x_T from x_i <= lam x_{i-1} + the sum of the shares, or its limit."""
    over = "(1 - lam**T) / (1 - lam)" if finite else "1 / (1 - lam)"
    terms = {name: f"{over} * ({text})" for name, text in shares.items()}
    return _formula(({"start": "lam**T * start2"} if finite else {}) | terms, where, f"{remark} {SHORT}")


def msd_paper(finite: bool) -> Formula:
    """Return version P after T iterations, or in the limit."""
    shares = {
        "data variability": "eta**2 * sigma_s2 / (1 - t)",
        "model variability": "eta**2 * eps2 / (1 - t)",
        "incremental": "eta**4 * sigma_d2 / t",
        "tracking": "drift2",
    }
    where = DRAWN | STEPS | DELTA | NOISE | _INCREMENTS
    where |= {
        "gamma": "max(abs(1 - eta * nu), abs(1 - eta * d_P))",
        "t": "1 - gamma",
        "lam": "(gamma**2 + eta**2 * beta_s2) / (1 - t) + eta**4 * beta_d2 / t",
    }
    remark = (
        r"It asks for $\lambda < 1$ and $\mu < 2/\delta_P$; any $t$ in $(0, 1)$ will do, and where all $E_k = 1$, $t "
    )
    return _recursion(shares, where, finite, remark + r"\to 0$ without the term in $1/t$.")


def msd_refined(finite: bool, where_constants_hold: str = "") -> Formula:
    """Return version R after T iterations, or in the limit, for free t and a."""
    shares = {
        "data variability": "(1 + a) * eta**2 / (S * (1 - t)) * mean_k(s_k * V_k)",
        "model variability": "(1 + a) * eta**2 * tau_eps / (S * (1 - t)) * mean_k(h_k)",
        "incremental": "(1 + a) * eta**4 / t * mean_k(a_k * d_k * d_Pk * (h_k + q_k * V_k))",
        "tracking": "drift2",
    }
    where = DRAWN | STEPS
    where |= {
        "c_s": "1 / S * max_k(s_k * d_k + max(tau_eps - s_k, 0) * d_Pk)",
        "c_d": "max_k(a_k * d_k * d_Pk * (q_k * d_k + max(1 - q_k, 0) * d_Pk))",
        "A": "2 * eta - eta**2 * (max(0, 1 - (1 + 1 / a) * tau_eps / S) * d_P + (1 + 1 / a) * c_s)",
        "C": "eta**4 * (1 + 1 / a) * c_d / t",
        "lam": "(1 - nu * A) / (1 - t) + nu * C",
    }
    ball = f" The constants $\\nu$ and $\\delta$ are those {where_constants_hold}." if where_constants_hold else ""
    remark = (
        r"It holds for all $a > 0$ and $t$ in $(0, 1)$ with $A/(1 - t) \ge C$ and $\lambda < 1$; where all $E_k = 1$,"
    )
    return _recursion(shares, where, finite, rf"{remark} $t \to 0$ without the terms in $1/t$.{ball}")


def small_step() -> Formula:
    """Return the small-step formula of the steady state on least squares over its remainder."""
    remark = r"It asks for least squares, all $E_k = 1$ and $\theta < 1$."
    terms = {"noise": "eta * R / (2 * (1 - theta))", "tracking": "R_q / (2 * eta * (1 - theta))"}
    where = DRAWN | {"R": "1 / S * mean_k(s_k * c_k + tau_eps * b_k)", "theta": "eta * m_1 / 2"}
    return _formula(terms, where, remark)


def tracking_symbols(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of the symbols, from the arguments of a bound of Dynamic FedAvg.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theorems.parts.tracking import TrackingConstants
    >>> from fedconvex.theorems.parts.tracking_formulas import GRADIENT_NOISE, tracking_symbols
    >>> one = np.ones(2)
    >>> c = TrackingConstants(
    ...     nu=1.0, delta_P=1.0, delta_k=one, delta_P_k=one, sizes=one, variance_k=0 * one, gradient2_k=one
    ... )
    >>> GRADIENT_NOISE.values(tracking_symbols({"constants": c, "distance": 1.0, "participation": 1}))
    {'distance': 2.0, 'data variability': 0.0, 'model variability': 2.0}
    """
    c, n = arguments["constants"], np.asarray(arguments["constants"].sizes, dtype=float)
    given = {name: arguments.get(name) for name in ("participation", "batch_size", "local_steps")}
    names = {"step_size": "eta", "rounds": "T", "distance": "e", "drift2": "drift2", "start2": "start2"}
    out = {sign: arguments[name] for name, sign in names.items() if arguments.get(name) is not None}
    if "moments" in arguments:
        out |= dict(zip(("g_k", "V_w"), map(np.asarray, arguments["moments"]), strict=True))
    if "square" in arguments:
        out |= _with_matrices(c, **{name: np.asarray(arguments[name]) for name in ("square", "drift_covariance")})
    return out | {
        "K": n.size,
        "S": n.size if given["participation"] is None else given["participation"],
        "nu": c.nu,
        "d_P": c.delta_P,
        "d_k": np.asarray(c.delta_k),
        "d_Pk": np.asarray(c.delta_P_k),
        "N_k": n,
        "B_k": n if given["batch_size"] is None else np.broadcast_to(given["batch_size"], n.shape),
        "E_k": np.broadcast_to(1.0 if given["local_steps"] is None else given["local_steps"], n.shape),
        "V_k": np.asarray(c.variance_k),
        "h_k": np.asarray(c.gradient2_k),
    }


def _with_matrices(c: Any, square: np.ndarray, drift_covariance: np.ndarray) -> dict[str, Any]:
    inverse = np.linalg.inv(c.hessian)
    return {
        "c_k": np.einsum("ij,kji->k", inverse, c.covariance_k),
        "b_k": np.einsum("ki,ij,kj->k", c.gradient_k, inverse, c.gradient_k),
        "R_q": float(np.trace(inverse @ drift_covariance)),
        "m_1": float(np.linalg.eigvalsh(square)[-1]),
    }
