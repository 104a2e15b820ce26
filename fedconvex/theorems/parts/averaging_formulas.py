"""Formulas of FedAvg's bounds: R1, R1#, R2, R2#, and Li et al. for everybody and both schemes of sampling."""

from __future__ import annotations

from collections.abc import Mapping

from fedconvex.theorems.parts.bound_formulas import Formula

START = "D**2 / (2 * eta * tau * T)"

REFINED = Formula(
    {
        "start": START,
        "noise": "eta * sum_i(p**2 * v)",
        "heterogeneity drift": "c * mean_j((2 * eta * j * zeta)**2)",
        "noise drift": "c * mean_j((2 * eta * j * zeta + eta * sigma * sqrt(2 * j))**2 - (2 * eta * j * zeta)**2)",
    },
    {"c": "L * (1 - sum_i(p**2)) / (4 * (1 - eta * L))", "sigma": "max_i(sqrt(v))"},
)

REFINED_SHARP = Formula(
    {
        "start": START,
        "noise": "eta * sum_i(p**2 * v) / 2",
        "heterogeneity drift": "mean_j(d(eta * j * z))",
        "noise drift": "mean_j(d(eta * (j * z + sqrt(j) * u)) - d(eta * j * z))",
    },
    {
        "z": "zeta * min(1, sqrt(2 * (1 - sum_i(p**2))))",
        "u": "sqrt(sum_i(p * (1 - p) * v))",
        "d(x)": "L * x**2 / 2 - max(0, L * x / 2 - z)**2 / L",
    },
)

AT_OPTIMUM = Formula(
    {
        "start": "D**2 * (1 / eta + r_0 * L) / (2 * (1 - r_0) * tau * T)",
        "noise": "2 * eta * sum_i(p**2 * v_star) / (1 - r_0)",
        "heterogeneity drift": "c * q * zeta_star**2 / ((1 - r_0) * (1 - Q) * L**2)",
        "noise drift": "4 * c * eta**2 * (tau - 1) * sigma2_star / ((1 - r_0) * (1 - Q))",
    },
    {
        "A": "4 * phi * L_s",
        "q": "3 * eta**2 * tau * (tau - 1) * L**2",
        "Q": "q + 2 * eta**2 * (tau - 1) * A * L",
        "c": "L / (2 * (1 - eta * L)) + eta * A * L * max_i(p)",
        "r_0": "2 * eta * A * max_i(p) + 2 * c * Q / (L * (1 - Q))",
    },
    remark=r"It asks for $\eta L < 1$, $Q < 1$ and $r_0 < 1$; with all rows $A = 0$.",
)

AT_OPTIMUM_SHARP = Formula(
    {
        "start": START,
        "noise": "(1 + a) * eta * sum_i(p**2 * v_star) / 2",
        "heterogeneity drift": "L * eta**2 * (tau - 1) * (2 * tau - 1) * zeta_star**2 / (12 * w_0)",
        "noise drift": "(1 + a) * L * eta**2 * (tau - 1) * sum_i(p * (1 - p) * v_star) / (4 * w_2)",
    },
    {
        "b": "phi * L_s * (1 + 1 / a) * (eta * max_i(p) + (1 - min_i(p)) * L * eta**2 * (tau - 1) / w_2)",
        "w_1": "L * eta**2 * tau * (tau - 1) / (2 * ((1 - b) / L + b / L_s - eta))",
        "w_0": "1 - w_1 - w_2",
    },
    meanings={"a": "a free parameter", "w_2": "a free parameter"},
    remark=r"It holds for all $a > 0$ and $0 < w_2 < 1$ with $b \le 1$, $\eta \le (1 - b)/L + b/L_s$ and $w_0 > 0$; "
    "with all rows and no noise $b = w_2 = 0$.",
)


def decaying_steps(source: str) -> Mapping[str, Formula]:
    """Return the formulas of Li et al. by what their bounds say of their source: Theorem 1, 2 or 3."""
    terms = {
        "start": "L * gamma * D**2 / (2 * (gamma + tau * T))",
        "noise": "u * sum_i(p**2 * v)",
        "heterogeneity": "6 * u * L * Gamma",
        "drift": "8 * u * (tau - 1)**2 * G2",
    }
    where = {"gamma": "max(8 * L / mu, tau)", "u": "2 * L / (mu**2 * (gamma + tau * T))"}
    remark = r"Local step $t = 0, 1, \ldots$ has size $2/(\mu(\gamma + t))$."

    def formula(when: str, sampling: str = "") -> Formula:
        more = {"sampling": sampling} if sampling else {}
        return Formula(terms | more, where, larger=True, when=when, remark=remark)

    uniform = "4 * u * tau**2 * G2 * M * (M - S) / (S * max(M - 1, 1)) * sum_i(p**2)"
    return {
        f"{source}, Theorem 1": formula("With full participation"),
        f"{source}, Theorem 2 (scheme I)": formula(
            "With $S$ clients drawn with replacement with probabilities $p_i$ (scheme I)", "4 * u * tau**2 * G2 / S"
        ),
        f"{source}, Theorem 3 (scheme II)": formula(
            "With $S$ of $M$ clients drawn uniformly without replacement, moves weighted by $p_i M/S$ (scheme II)",
            uniform,
        ),
    }
