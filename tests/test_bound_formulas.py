"""Bounds as formulas say what the code computes, and LaTeX says what the formulas do."""

import numpy as np
import pytest

from fedconvex.constants import Constants
from fedconvex.report.exports import paper_table, write_findings_latex
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.fedavg_strongly_convex import fedavg_strongly_convex
from fedconvex.theorems.parts.formulas import latex_of, symbols_of
from fedconvex.theory.bound import AssumptionError
from fedconvex.verify import checks, verify_suite

CODE = {name: t.bound for name, t in THEOREMS.items() if t.formula is not None} | {
    "fedavg-strongly-convex": fedavg_strongly_convex
}
NEEDS = {
    "fedavg-convex": ("step_size", "local_steps", "rounds"),
    "fedavg-convex-tuned": ("local_steps", "rounds"),
    "fedavg-strongly-convex": ("local_steps", "rounds"),
    "scaffold": ("step_size", "local_steps", "rounds", "participants", "server_step"),
    "fedprox": ("proximal_mu", "participants", "inexactness", "value", "gradient_norm"),
    "fedprox-sharp": ("proximal_mu", "inexactness", "value", "gradient_norm"),
    "fedprox-convex": ("proximal_mu", "inexactness", "value", "gradient_norm"),
}


def _drawn(name, rng):
    """Return arguments of a bound: of sizes for which its hypotheses often hold."""
    K, L = int(rng.integers(2, 6)), float(rng.uniform(0.5, 4.0))
    small = 1.0 / (81.0 * L * 20.0) if name == "scaffold" else 0.25 / L
    D, sigma2, zeta, zeta_star, Gamma, G2 = rng.uniform(0.1, 2.0, size=6).tolist()
    mu_k = rng.uniform(0.01, 0.1, size=K)
    known = {"L": L, "mu_k": mu_k, "D": D, "sigma2": sigma2, "zeta": zeta, "zeta_star": zeta_star, "K": K}
    constants = Constants(**known, Gamma=Gamma, G2=G2, B=float(rng.uniform(1.0, 1.1)))
    numbers = {
        "step_size": float(rng.uniform(0.1, 1.0)) * small,
        "local_steps": int(rng.integers(1, 7)),
        "rounds": int(rng.integers(1, 30)),
        "participants": int(rng.integers(1, K + 1)) if name == "scaffold" else int(rng.integers(200, 2000)),
        "server_step": float(rng.uniform(1.0, 2.0)),
        "proximal_mu": float(rng.uniform(30.0, 60.0)),
        "inexactness": float(rng.uniform(0.0, 0.01)),
        "value": float(rng.uniform(0.0, 3.0)),
        "gradient_norm": float(rng.uniform(0.0, 3.0)),
    }
    return {"constants": constants} | {key: numbers[key] for key in NEEDS[name]}


@pytest.mark.parametrize("name", CODE)
def test_formulas_are_what_the_code_computes(name):
    rng, compared = np.random.default_rng(36), 0
    for _ in range(40):
        given = _drawn(name, rng)
        try:
            bound = CODE[name](**given)
        except AssumptionError:
            continue
        formula = THEOREMS[name].formula
        terms = formula.values(symbols_of(given))
        assert list(terms) == list(bound.terms), f"seed 36, {given}"
        assert terms == pytest.approx(dict(bound.terms), rel=1e-9), f"seed 36, {given}"
        first, *others = terms.values()
        value = max(first, sum(others)) if formula.larger else first + sum(others)
        assert value == pytest.approx(bound.value, rel=1e-9)
        compared += 1
    assert compared >= 5


def test_a_wrong_formula_is_noticed():
    """The 18 of (15) as 17."""
    given = _drawn("fedavg-convex", np.random.default_rng(0))
    right = THEOREMS["fedavg-convex"].formula
    text = right.terms["heterogeneity drift"].replace("18", "17")
    wrong = right._replace(terms={**right.terms, "heterogeneity drift": text})
    found = wrong.values(symbols_of(given))["heterogeneity drift"]
    assert found != pytest.approx(CODE["fedavg-convex"](**given).terms["heterogeneity drift"], rel=1e-3)


def test_latex_keeps_what_binds_together():
    assert latex_of("(a + b) * c - (d - e)") == r"\left(a + b\right) c - \left(d - e\right)"
    assert latex_of("sigma2**2") == r"\left(\sigma^2\right)^{2}"
    assert latex_of("-a * b") == "-a b"
    assert latex_of("max(8 * L / mu, tau)") == r"\max\{\frac{8 L}{\mu}, \tau\}"
    assert THEOREMS["fedavg-convex"].formula.latex("E \\le ").startswith(r"E \le \frac{D^{2}}{2 \eta \tau T} + ")


@pytest.mark.slow
@pytest.mark.compiled
def test_the_table_for_a_paper(tmp_path):
    suite = [c for c in checks(["fedavg-convex"]) if c.instance.name == "two clients"][:1]
    found = verify_suite(suite, tightness=False)
    heads, (row,) = paper_table(found)
    cells = dict(zip(heads, row, strict=True))
    f = found.findings[0]
    assert cells["K"] == 2
    assert cells["ratio"] == pytest.approx(cells["bound"] / cells["worst case"])
    assert cells["power"] == pytest.approx(cells["bound"] / max(f.worst.lower, f.verdict.measured), rel=1e-6)
    write_findings_latex(found, tmp_path / "a.tex")
    text = (tmp_path / "a.tex").read_text()
    assert r"theorem & K & $\tau$ & T & $\eta$L & measured" in text
    assert r"\[ \frac{D^{2}}{2 \eta \tau T} + " in text
