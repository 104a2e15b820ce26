"""Bounds as formulas say what the code computes, and LaTeX says what the formulas do."""

from dataclasses import replace

import numpy as np
import pytest

from fedconvex.constants import Constants
from fedconvex.report.exports import paper_table, write_findings_latex
from fedconvex.theorems import THEOREMS, dynamic_msd, fedavg_refined
from fedconvex.theorems.fedavg_strongly_convex import fedavg_scheme_one, fedavg_scheme_two, fedavg_strongly_convex
from fedconvex.theorems.parts.bound_formulas import Formula, latex_of, symbols_of
from fedconvex.theorems.parts.tracking import TrackingConstants
from fedconvex.theorems.parts.tracking_formulas import tracking_symbols
from fedconvex.theory.bound import AssumptionError
from fedconvex.verify import checks, verify_suite

DYNAMIC = [name for name, t in THEOREMS.items() if t.formula is not None and name.startswith("dynamic-")]
SCHEMES = {  # Li et al.: theorem, source, code, what it is told
    "everybody": ("Theorem 1", fedavg_strongly_convex, ()),
    "with replacement": ("Theorem 2 (scheme I)", fedavg_scheme_one, ("participants",)),
    "without replacement": ("Theorem 3 (scheme II)", fedavg_scheme_two, ("participants",)),
}
NEEDS = {
    "fedavg-convex": ("step_size", "local_steps", "rounds"),
    "fedavg-convex-tuned": ("local_steps", "rounds"),
    "fedavg-refined": ("step_size", "local_steps", "rounds"),
    "fedavg-refined-sharp": ("step_size", "local_steps", "rounds"),
    "fedavg-at-optimum": ("step_size", "local_steps", "rounds", "noise_factor"),
    "fedavg-at-optimum-sharp": ("step_size", "local_steps", "rounds", "noise_factor"),
    "scaffold": ("step_size", "local_steps", "rounds", "participants", "server_step"),
    "fedprox": ("proximal_mu", "participants", "inexactness", "value", "gradient_norm"),
    "fedprox-sharp": ("proximal_mu", "inexactness", "value", "gradient_norm"),
    "fedprox-convex": ("proximal_mu", "inexactness", "value", "gradient_norm"),
}
UNEQUAL = ("fedavg-refined", "fedavg-refined-sharp", "fedavg-at-optimum", "fedavg-at-optimum-sharp")
SHORT = {
    "scaffold": 1.0 / 1620.0,
    "fedavg-at-optimum": 0.02,
    "fedavg-at-optimum-sharp": 0.02,
}  # steps, as shares of 1/L


def _constants(rng, weighted):
    """Return constants of a few clients, of the size of 1."""
    K, L = int(rng.integers(2, 6)), float(rng.uniform(0.5, 4.0))
    D, zeta, zeta_star, Gamma, G2 = rng.uniform(0.1, 2.0, size=5).tolist()
    noise, star, mu_k = rng.uniform(0.1, 2.0, size=K), rng.uniform(0.1, 2.0, size=K), rng.uniform(0.01, 0.1, size=K)
    p = rng.dirichlet(np.ones(K)) if weighted else np.full(K, 1.0 / K)
    known = {"L": L, "L_s": 1.5 * L, "mu_k": mu_k, "D": D, "zeta": zeta, "zeta_star": zeta_star, "p": p, "K": K}
    known |= {"sigma2": float(noise.max()), "sigma2_k": noise, "sigma2_star": float(p @ star), "sigma2_star_k": star}
    return Constants(**known, Gamma=Gamma, G2=G2, B=float(rng.uniform(1.0, 1.1)))


def _drawn(name, rng, needs=None):
    """Return arguments of a bound: of sizes for which its hypotheses often hold."""
    constants = _constants(rng, name in UNEQUAL)
    numbers = {
        "step_size": float(rng.uniform(0.1, 1.0)) * SHORT.get(name, 0.25) / constants.L,
        "local_steps": int(rng.integers(1, 7)),
        "rounds": int(rng.integers(1, 30)),
        "participants": int(rng.integers(200, 2000)) if name == "fedprox" else int(rng.integers(1, constants.K + 1)),
        "server_step": float(rng.uniform(1.0, 2.0)),
        "proximal_mu": float(rng.uniform(30.0, 60.0)),
        "inexactness": float(rng.uniform(0.0, 0.01)),
        "value": float(rng.uniform(0.0, 3.0)),
        "gradient_norm": float(rng.uniform(0.0, 3.0)),
        "noise_factor": float(rng.uniform(0.1, 1.0)),
    }
    return {"constants": constants} | {key: numbers[key] for key in (NEEDS[name] if needs is None else needs)}


def _compare(formula, symbols, bound, rel=1e-9):
    """Hold the terms of a formula, and what it makes of them, against a bound."""
    terms = formula.values(symbols)
    assert list(terms) == list(bound.terms)
    assert terms == pytest.approx(dict(bound.terms), rel=rel, abs=1e-14 * abs(bound.value))
    first, *others = terms.values()
    value = max(first, sum(others)) if formula.larger else first + sum(others)
    assert value == pytest.approx(bound.value, rel=rel)


def test_every_theorem_with_one_formula_is_compared():
    simple = {name for name, t in THEOREMS.items() if isinstance(t.formula, Formula)}
    assert simple == {*NEEDS, *DYNAMIC}


@pytest.mark.parametrize("name", NEEDS)
def test_formulas_are_what_the_code_computes(name, monkeypatch):
    """R2# is compared at one a and w_2, which its code otherwise chooses."""
    rng, compared = np.random.default_rng(36), 0
    for _ in range(40):
        given, free = _drawn(name, rng), {"a": float(rng.uniform(0.1, 10.0)), "w_2": float(rng.uniform(0.05, 0.9))}
        monkeypatch.setattr(fedavg_refined, "_YOUNG", np.array([free["a"]]))
        monkeypatch.setattr(fedavg_refined, "_SHARES", np.array([free["w_2"]]))
        try:
            bound = THEOREMS[name].bound(**given)
        except AssumptionError:
            continue
        _compare(THEOREMS[name].formula, symbols_of(given) | free, bound)
        compared += 1
    assert compared >= 5


@pytest.mark.parametrize("scheme", SCHEMES)
def test_li_et_al_have_a_formula_for_every_scheme(scheme):
    rng, (source, code, more) = np.random.default_rng(36), SCHEMES[scheme]
    formulas = THEOREMS["fedavg-strongly-convex"].formula
    for unequal in (False, True) * 10:
        given = _drawn("fedavg-refined" if unequal else "fedavg-convex", rng, ("local_steps", "rounds", *more))
        bound = code(**given)
        assert bound.source.endswith(source)
        _compare(formulas[bound.source], symbols_of(given), bound)


def _drawn_agents(name, rng):
    """Return constants of a few agents, and who does what; steps are short, and some agents do several."""
    K, small = int(rng.integers(2, 6)), int(rng.integers(2, 5))
    n = rng.integers(4, 9, size=K)
    c = TrackingConstants(
        nu=float(rng.uniform(0.5, 1.0)),
        delta_P=1.5,
        delta_k=rng.uniform(2.0, 4.0, size=K),
        delta_P_k=rng.uniform(1.0, 2.0, size=K),
        sizes=n,
        variance_k=rng.uniform(0.1, 2.0, size=K),
        gradient2_k=rng.uniform(0.1, 2.0, size=K),
    )
    who = {"participation": int(rng.integers(1, K + 1)), "batch_size": small, "local_steps": rng.integers(1, 4, size=K)}
    who["local_steps"][0] = 2
    step, distance = {"step_size": float(rng.uniform(1e-3, 5e-3))}, {"distance": float(rng.uniform(0.0, 2.0))}
    more = {
        "dynamic-gradient-noise": distance,
        "dynamic-gradient-noise-sharp": distance,
        "dynamic-incremental-noise": distance | step,
        "dynamic-incremental-noise-at": step | {"moments": tuple(rng.uniform(0.1, 2.0, size=(2, K)))},
    }
    if name.endswith("small-step"):
        return _with_matrices(c, rng, who["participation"])
    when = {} if "steady" in name else {"rounds": int(rng.integers(1, 50)), "start2": float(rng.uniform(0.1, 2.0))}
    return {"constants": c, **who, **more.get(name, step | when | {"drift2": float(rng.uniform(0.0, 1e-3))})}


def _with_matrices(c, rng, participation):
    """Return agents of one step each, with a Hessian, M, and covariances of gradients and of the minimiser's moves."""
    d, K = 2, len(c.sizes)
    roots = rng.normal(size=(K + 3, d, d))
    H, M, R_q, *R_k = roots @ roots.transpose(0, 2, 1) + 0.1 * np.eye(d)
    c = replace(c, hessian=H, covariance_k=np.array(R_k), gradient_k=rng.normal(size=(K, d)))
    who = {"participation": participation, "batch_size": 2, "step_size": float(rng.uniform(1e-3, 0.1))}
    return {"constants": c, "square": M, "drift_covariance": R_q, **who}


@pytest.mark.parametrize("name", DYNAMIC)
def test_formulas_of_dynamic_fedavg_are_what_the_code_computes(name, monkeypatch):
    """Version R is compared at one t and a, which its code otherwise chooses."""
    rng, compared = np.random.default_rng(36), 0
    for _ in range(20):
        given, a = _drawn_agents(name, rng), float(rng.uniform(0.1, 10.0))
        free = {} if name.endswith("paper") else {"a": a, "t": float(rng.uniform(1e-4, 1e-3))}
        monkeypatch.setattr(dynamic_msd, "_YOUNG", np.array([a]))
        monkeypatch.setattr(dynamic_msd, "_SPLITS", np.array([free.get("t", 0.5)]))
        try:
            bound = THEOREMS[name].bound(**given)
        except AssumptionError:
            continue
        _compare(THEOREMS[name].formula, tracking_symbols(given) | free, bound, rel=1e-7)
        compared += 1
    assert compared >= 5


def test_scaffolds_formula_holds_without_strong_convexity():
    """W = T at mu = 0, where (q^-T - 1)/(1 - q) would be 0/0."""
    c = Constants(L=1 / 81, mu=0.0, D=1.0, sigma2=0.5, zeta_star=2.0, K=10)
    given = {"constants": c, "step_size": 0.5, "local_steps": 2, "rounds": 4}
    _compare(THEOREMS["scaffold"].formula, symbols_of(given), THEOREMS["scaffold"].bound(**given))


@pytest.mark.parametrize("name", [name for name, t in THEOREMS.items() if t.formula is not None])
def test_formulas_have_a_left_side_and_say_what_their_symbols_are(name):
    """What no symbol is made of, and is no index of a sum, is explained; an unknown one is a KeyError."""
    theorem = THEOREMS[name]
    text = theorem.printed([])
    every = [theorem.formula] if isinstance(theorem.formula, Formula) else [*theorem.formula.values()]
    assert theorem.quantity.latex
    assert text.count(rf"\[ {theorem.quantity.latex} \le ") == len(every)
    for formula in every:
        assert all(f"${sign}$ " in text and words in text for sign, words in formula.symbols().items())
    assert text.count(r"\left") == text.count(r"\right")
    assert not set(text) - {chr(i) for i in range(10, 127)}, "plain LaTeX without packages"
    with pytest.raises(KeyError, match="unheard"):
        every[0]._replace(terms={"start": "unheard * T"}).symbols()


def test_only_the_formulas_of_runs_in_the_table_are_printed():
    li, rng = THEOREMS["fedavg-strongly-convex"], np.random.default_rng(1)
    one = fedavg_scheme_one(**_drawn("fedavg-convex", rng, ("local_steps", "rounds", "participants")))
    assert li.printed([one]).startswith("With $S$ clients drawn with replacement")
    assert li.printed([one]).count(r"\[") == 1
    assert li.printed([]).count(r"\[") == 3


def test_a_wrong_formula_is_noticed():
    """The 18 of (15) as 17."""
    given = _drawn("fedavg-convex", np.random.default_rng(0))
    right = THEOREMS["fedavg-convex"].formula
    text = right.terms["heterogeneity drift"].replace("18", "17")
    wrong = right._replace(terms={**right.terms, "heterogeneity drift": text})
    found = wrong.values(symbols_of(given))["heterogeneity drift"]
    assert found != pytest.approx(THEOREMS["fedavg-convex"].bound(**given).terms["heterogeneity drift"], rel=1e-3)


def test_latex_keeps_what_binds_together():
    assert latex_of("(a + b) * c - (d - e)") == r"\left(a + b\right) c - \left(d - e\right)"
    assert latex_of("sigma2**2") == r"\left(\sigma^2\right)^{2}"
    assert latex_of("-a * b") == "-a b"
    assert latex_of("eta * sum_i(p * v) * L") == r"\left(\eta \sum_{i} p_i \sigma_i^2\right) L"
    assert (
        latex_of("2 * sum_i(p - v) - max_i(p + v)")
        == r"2 \sum_{i} \left(p_i - \sigma_i^2\right) - \max_i \{p_i + \sigma_i^2\}"
    )
    assert latex_of("max(8 * L / mu, tau)") == r"\max\{\frac{8 L}{\mu}, \tau\}"
    assert THEOREMS["fedavg-convex"].formula.latex("E").startswith(r"E \le \frac{D^{2}}{2 \eta \tau T} + ")


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
    assert r"f(\bar w^{t,k}) - f^* \le \frac{D^{2}}{2 \eta \tau T} + " in text
    assert r"where $D$ is the distance $\|w_0 - w^*\|$, $\eta$ the step size" in text
