"""The suite: every theorem where it applies and where it does not, planted errors, exact worst cases, tightness."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, Logistic, Problem, Squared
from fedconvex.report.checks import as_document, as_table
from fedconvex.theorems.fedavg_convex import fedavg_convex_step, tuned_step
from fedconvex.theorems.fedavg_strongly_convex import decaying_step
from fedconvex.theorems.parts.instances import (
    breast_cancer,
    diabetes_whitened,
    equal_clients,
    equal_hessians,
    three_clients,
    two_clients,
    two_logistic_clients,
    unequal_hessians,
)
from fedconvex.theorems.parts.rules import fixed_step, least_bound_step
from fedconvex.theorems.parts.tracking import sampled_agents
from fedconvex.theory.bound import SHADOW_AVERAGE, Bound
from fedconvex.verify import (
    THEOREMS,
    Check,
    Outcome,
    Setting,
    Theorem,
    VerificationReport,
    checks,
    exact_worst,
    own_instance,
    verify,
    verify_suite,
)
from fedconvex.verify.tightness import step_choice, tightness_claims, tightness_row

pytestmark = pytest.mark.compiled(only="minutes of pure Python; the parts are tested elsewhere")


@pytest.fixture(scope="module")
def found():
    return verify_suite(precision=0.2, most=256, tightness=False)


@pytest.fixture(scope="module")
def rows():
    return [tightness_row(T, zeta) for T, zeta in ((1, 0.0), (1, 1.0), (2, 0.5), (2, 1.0))]


def planted(share, name="fedavg-refined"):
    """A theorem whose bound is the measured value times a share."""
    right = THEOREMS[name]

    def bound(s):
        value = share * float(right.expectation(s, [s.rounds]).values[0])
        return Bound({"planted": value}, right.quantity, "planted", right.at(s).requires)

    return right._replace(bound=bound, read=None)


# ---------------------------------------------------------------- the suite


def test_every_theorem_says_what_it_says_and_where_it_is_checked():
    for name, theorem in THEOREMS.items():
        assert theorem.says.endswith("."), name
        assert theorem.loose.endswith("."), name
        assert theorem.checks, name


@pytest.mark.slow
def test_every_theorem_applies_in_two_settings_at_least(found):
    for name in THEOREMS:
        mine = [f for f in found.findings if f.theorem == name and f.outcome is not Outcome.NOT_APPLICABLE]
        assert len(mine) >= 2, name
        assert {f.data for f in mine} >= {"synthetic", "real"}, name


@pytest.mark.slow
def test_nothing_is_violated_and_hypotheses_fail_with_numbers(found):
    assert not found.violated
    refused = [f for f in found.findings if f.outcome is Outcome.NOT_APPLICABLE]
    assert len(refused) >= 10
    for f in refused:
        assert f.why.startswith("needs "), f.why
        assert ", got " in f.why
        assert math.isnan(f.verdict.ratio)
    assert {"needs a finite zeta", "needs step_size <= 1/(4L)", "needs equal client weights"} <= {
        f.why.partition(", got")[0].partition(" (")[0] for f in refused
    }


@pytest.mark.slow
def test_runs_stay_below_the_exact_worst_case_and_bounds_above(found):
    known = [f for f in found.findings if f.worst.has_interval]
    assert len(known) >= 25
    assert any(f.data == "real" for f in known)
    for f in known:
        assert f.verdict.measured <= f.worst.upper * (1 + 1e-7), f
        assert f.worst.lower <= min(f.worst.upper, f.verdict.bound.value * (1 + 1e-12)), f
        assert f.worst.upper <= f.verdict.bound.value * (1 + 1e-7), f  # bounds that are attained: to the solver's gap
    for f in found.findings:
        assert f.worst.has_interval or f.worst.words, f


@pytest.mark.slow
def test_findings_carry_constants_with_how_they_were_obtained(found):
    for f in found.findings:
        if f.outcome is not Outcome.NOT_APPLICABLE:
            general = {"L", "mu", "D", "zeta", "zeta_star"} if THEOREMS[f.theorem].constants is None else set()
            assert f.constants
            assert general <= {c.name for c in f.constants}
            assert all(c.how for c in f.constants)
            assert f.verdict.bound.requires or "gradient-noise" in f.theorem


@pytest.mark.slow
def test_settings_of_a_theorem_are_told_apart(found):
    for name in THEOREMS:
        texts = [f.words for f in found.findings if f.theorem == name]
        assert len(set(texts)) == len(texts), name


def test_instances_are_what_they_say():
    c = two_clients.make().constants()
    assert (c.L, c.D, c.zeta, c.zeta_star) == pytest.approx((1.0, 1.0, 0.5, 0.5))
    c = three_clients.make().constants()
    assert c.L == pytest.approx(1.0)
    assert c.zeta == pytest.approx(0.5)
    assert equal_clients.make().constants().zeta == pytest.approx(0.0, abs=1e-12)
    c = equal_hessians.make().constants()
    assert c.zeta_star == pytest.approx(0.5)
    assert math.isfinite(c.zeta)
    c = diabetes_whitened.make().constants()
    assert math.isfinite(c.zeta)
    assert c.L == pytest.approx(1.0)
    assert math.isinf(unequal_hessians.make().constants().zeta)
    assert two_clients.make() is two_clients.make()


@pytest.mark.slow
def test_a_new_theorem_is_one_record(monkeypatch):
    new = THEOREMS["fedavg-refined"]._replace(
        name="new",
        says="It says.",
        method=fixed_step(0.5, local_steps=2),
        rounds=3,
        checks=(two_clients, breast_cancer),
    )
    monkeypatch.setitem(THEOREMS, "new", new)
    result = verify_suite(checks(["new"]), tightness=False)
    assert [f.outcome for f in result.findings] == [Outcome.HOLDS] * 2
    assert result.notes["new"].says == "It says."
    assert "R1" in result.notes["new"].statement


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match=r"theorem must be one of fedavg-convex, .*; got 'nothing'"):
        checks(["fedavg-convex", "nothing"])
    assert next(c.theorem for c in checks()) == "fedavg-convex"


@pytest.mark.slow
def test_equal_seeds_give_equal_findings():
    random = [c for c in checks(["fedavg-strongly-convex"]) if c.instance.name == "shifted logistic"]
    suite = (*random[:1], *checks(["fedavg-convex"])[:1])
    one, two, other = (verify_suite(suite, seed=s, most=128, tightness=False, curves=True) for s in (3, 3, 4))
    for a, b, c in zip(one.findings, two.findings, other.findings, strict=True):
        assert (a.verdict.measured, a.verdict.high) == (b.verdict.measured, b.verdict.high)
        assert np.array_equal(a.curve.high, b.curve.high)
        assert a.verdict.measured != c.verdict.measured


@pytest.mark.slow
def test_progress_is_told():
    told = []
    verify_suite(
        checks(["weight-divergence-zhao"]), tightness=False, progress=lambda share, doing: told.append((share, doing))
    )
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert "weight-divergence-zhao" in told[0][1]


# ---------------------------------------------------------------- planted errors


@pytest.mark.slow
def test_a_bound_below_the_run_is_violated(monkeypatch):
    monkeypatch.setitem(THEOREMS, "fedavg-refined", planted(0.999))
    result = verify_suite(
        [Check(two_clients, fixed_step(0.25, local_steps=2), 3, theorem="fedavg-refined")], tightness=False
    )
    assert result.findings[0].outcome is Outcome.VIOLATED
    assert result.violated
    assert "VIOLATED" in as_table(result)


def test_a_bound_below_the_exact_worst_case_is_violated_although_the_run_obeys(monkeypatch):
    """1.5 times the run of the two clients is 0.156, the exact worst case 0.183."""
    monkeypatch.setitem(THEOREMS, "fedavg-refined", planted(1.5))
    (finding,) = verify_suite(
        [Check(two_clients, fixed_step(0.25, local_steps=2), 3, theorem="fedavg-refined")], tightness=False
    ).findings
    assert finding.verdict.outcome is Outcome.HOLDS
    assert finding.outcome is Outcome.VIOLATED
    assert "exact worst case" in finding.why


@pytest.mark.slow
def test_drift_without_its_factor_is_caught_by_the_worst_case():
    """R1# without its drift term and with an exact start term: refuted at large zeta, though quadratics obey."""
    problem = Problem(Federation.from_clients([([[1.0]], [-19.0]), ([[1.0]], [21.0])]), Squared())
    s = Setting(problem, FedAvg(step_size=0.25, local_steps=2), 3, np.zeros(1))
    right = THEOREMS["fedavg-refined-sharp"].at(s)
    worst = exact_worst(THEOREMS["fedavg-refined-sharp"], s)
    assert not worst.refutes(right)
    planted = replace(right, terms=dict(right.terms) | {"heterogeneity drift": 0.0, "start": 0.1819})
    assert (
        verify(Theorem("p", SHADOW_AVERAGE, lambda _: planted), problem, s.method, rounds=3).outcome is Outcome.HOLDS
    )  # quadratics do not feel it
    assert worst.refutes(planted)


# ---------------------------------------------------------------- exact worst cases


def test_worst_case_scales_with_L_and_D():
    at = THEOREMS["fedavg-convex"]
    small = exact_worst(at, Setting(two_clients.make(), FedAvg(step_size=0.25, local_steps=2), 1, np.zeros(1)))
    a, D = 3.0, 2.0  # F = a^2 (w - D ± 1)^2/2: L = 9, D = 2, zeta = 9 = L D/2
    problem = Problem(Federation.from_clients([([[a]], [a * (D - 1.0)]), ([[a]], [a * (D + 1.0)])]), Squared())
    large = exact_worst(at, Setting(problem, FedAvg(step_size=0.25 / a**2, local_steps=2), 1, np.zeros(1)))
    assert large.lower == pytest.approx(a**2 * D**2 * small.lower, rel=1e-5)
    assert large.upper == pytest.approx(a**2 * D**2 * small.upper, rel=1e-5)


def test_worst_case_of_equal_clients_is_the_closed_form():
    problem = equal_clients.make()
    c, method = problem.constants(), FedAvg(step_size=0.5 / problem.constants().L, local_steps=2)
    for T in (1, 4):
        worst = exact_worst(THEOREMS["fedavg-convex"], Setting(problem, method, T, np.zeros(4)))
        assert worst.upper == pytest.approx(c.L * c.D**2 / (2 * (1 + 0.5 * (2 * T + 1))), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "problem", "method", "rounds", "why"),
    [
        ("fedavg-convex", two_clients.make(), FedAvg(step_size=0.25, participation=1), 1, "without randomness"),
        (
            "fedavg-convex",
            unequal_hessians.make(),
            FedAvg(step_size=0.1, local_steps=5),
            9,
            "too large: Gram matrix of order",
        ),
        ("fedavg-refined", two_logistic_clients.make(), FedAvg(step_size=9.0), 1, "step_size <= 3/L"),
        ("weight-divergence-convex", two_clients.make(), FedAvg(step_size=0.25), 1, "no programme for this quantity"),
    ],
)
def test_where_there_is_no_worst_case_it_says_why(name, problem, method, rounds, why):
    if "too large" in why:
        problem = equal_hessians.make()
    worst = exact_worst(THEOREMS[name], Setting(problem, method, rounds, np.zeros(problem.model_shape)))
    assert not worst.has_interval
    assert why in worst.words
    assert math.isnan(worst.ratio(None))


# ---------------------------------------------------------------- tightness


@pytest.mark.slow
def test_tightness_rows_by_hand(rows):
    first, one, half, two = rows
    assert first.upper == pytest.approx(2 / 7, rel=1e-5)  # closed form without heterogeneity
    assert one.bounds["(15)"] == pytest.approx(1.0 + 18 * 4 / 16)
    assert one.bounds["R1"] == pytest.approx(1.0 + 0.5 / 0.75 * 0.25 * 0.5 * 0.25)
    assert one.bounds["(17)"] == pytest.approx(1.0 + 19.0)
    for t in rows:
        assert t.attained == pytest.approx(t.lower, rel=1e-8)
        assert t.lower <= t.upper
        assert t.ratio("R1#") <= t.ratio("R1") <= t.ratio("(15)")
    assert half.ratio("R1") <= 2.5
    assert two.ratio("R1") <= 2.5
    assert two.ratio("(15)") > 20


def test_claims_can_fail(rows):
    assert all(c.holds for c in tightness_claims(rows, None))
    bad = rows[3]._replace(bounds=dict(rows[3].bounds) | {"R1": 2.6 * rows[3].upper})
    assert [c.holds for c in tightness_claims([*rows[:3], bad], None)] == [True, False, True, True, True]
    low = rows[3]._replace(bounds=dict(rows[3].bounds) | {"R1#": 0.99 * rows[3].lower})
    claims = tightness_claims([*rows[:3], low], None)
    assert not claims[0].holds
    result = VerificationReport((), {}, tuple(rows), None, claims)
    assert result.violated
    assert "FAILS: no bound lies below" in as_table(result)


@pytest.mark.slow
def test_best_steps():
    s = step_choice()
    assert s.best[0] == pytest.approx(1.2, abs=0.1)
    assert s.best[1] == pytest.approx(0.0994, abs=5e-4)
    assert s.best[1] <= s.worst.min() * (1 + 1e-12)
    assert s.best_bound[0] < 0.25
    assert s.worst_there > 2 * s.best[1]
    inside = np.isfinite(s.bound)
    assert (s.bound[inside] >= s.worst[inside]).all()
    assert np.nanmin(s.bound) >= s.best_bound[1] * (1 - 1e-12)


# ---------------------------------------------------------------- rules


def test_rules_do_what_they_say():
    problem, start = breast_cancer.make(), np.zeros(30)
    L, at = problem.constants().L, (problem, start, 10)
    assert fixed_step(0.25, local_steps=3).make(THEOREMS["fedavg-convex"], *at).step_size == pytest.approx(0.25 / L)
    method = tuned_step(local_steps=3).make(THEOREMS["fedavg-convex-tuned"], *at)
    assert method.step_size == fedavg_convex_step(problem.constants(), local_steps=3, rounds=10)
    theorem = THEOREMS["fedavg-at-optimum"]
    chosen = least_bound_step(local_steps=3).make(theorem, *at)
    value = theorem.at(Setting(problem, chosen, 10, start)).value
    j = math.log2(1 / (L * chosen.step_size))
    assert j == pytest.approx(round(j))
    for other in (2.0, 0.5):
        try:
            assert (
                theorem.at(Setting(problem, replace(chosen, step_size=other * chosen.step_size), 10, start)).value
                >= value
            )
        except ValueError:
            assert other == 2.0
    assert decaying_step(local_steps=3).make(THEOREMS["fedavg-strongly-convex"], *at).step_size.power == 1.0
    assert sampled_agents().make(THEOREMS["dynamic-gradient-noise"], *at).local_steps == (1, 2, 3, 1, 2, 3, 1, 2)


def test_small_clients_get_small_batches():
    problem = Problem(Federation.from_arrays(np.eye(4), [1.0, -1.0, 1.0, -1.0], [0, 0, 1, 1]), Logistic(), 0.1)
    method = fixed_step(0.25, batch_size=4).make(THEOREMS["fedavg-convex"], problem, np.zeros(4), 3)
    assert method.batch_size == 1


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["Hinge", "Exponential", "Softmax"])
def test_your_own_problem_of_any_loss(loss):
    import fedconvex

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), np.where(rng.normal(size=60) > 0, 1.0, -1.0)
    made = getattr(fedconvex, loss)(3) if loss == "Softmax" else getattr(fedconvex, loss)()
    y = np.arange(60) % 3.0 if loss == "Softmax" else y
    problem = Problem(Federation.from_arrays(X, y, np.arange(60) % 3), made, 0.1)
    result = verify_suite(checks(instance=own_instance(problem, "mine")), most=64, tightness=False)
    assert len(result.findings) == len(THEOREMS)
    assert not result.violated
    assert all(f.setting.startswith("mine") for f in result.findings)
    if loss == "Hinge":
        agnostic = "agnostic-"  # counts and samples ask for no smoothness
        one_model = [f for f in result.findings if THEOREMS[f.theorem].kind is Problem]
        smooth = [f for f in one_model if not f.theorem.startswith(agnostic)]
        assert all(f.outcome is Outcome.NOT_APPLICABLE for f in smooth)


# ---------------------------------------------------------------- records


@pytest.mark.parametrize("width", [40, 60, 83, 84, 100, 112, 120, 140])
@pytest.mark.slow
def test_tables_fit_the_terminal(found, rows, width):
    result = replace(found, tightness=tuple(rows), claims=tightness_claims(rows, None))
    text = as_table(result, width)
    assert max(map(len, text.splitlines())) <= width
    for f in found.findings:
        assert f.theorem in text
    assert f"{len(found.findings)} checks:" in text.replace("\n", " ")
    assert "not applicable" in text
    if width >= 112:
        assert "worst case" in text.splitlines()[0]


@pytest.mark.slow
def test_document_is_json_without_nan(found, rows):
    result = replace(found, tightness=tuple(rows), claims=tightness_claims(rows, None))
    document = json.loads(json.dumps(as_document(result), allow_nan=False))
    assert document["counts"]["VIOLATED"] == 0
    assert document["violated"] is False
    assert len(document["findings"]) == len(found.findings)
    for f, d in zip(found.findings, document["findings"], strict=True):
        assert d["outcome"] == f.outcome.name
        assert (d["bound"] is None) == (f.outcome is Outcome.NOT_APPLICABLE)
        assert (d["worst"] is None) != (d["worst_missing"] is None)
    assert document["tightness"][0]["ratios"]["R1"] > 1
    assert document["about"]["seed"] == "0"
    assert "numpy" in document["about"]


@pytest.mark.slow
def test_curves_end_at_the_verdict():
    suite = [
        Check(two_clients, fixed_step(0.25, local_steps=2), 3, theorem="fedavg-refined"),
        Check(two_clients, tuned_step(local_steps=2), 3, theorem="fedavg-convex-tuned"),
        *checks(["weight-divergence-zhao"])[:1],
    ]
    for f in verify_suite(suite, curves=True, tightness=False).findings:
        T = int(np.flatnonzero(f.curve.rounds == (5 if "zhao" in f.theorem else 3))[0])
        assert f.curve.measured[T] == pytest.approx(f.verdict.measured, rel=1e-12)
        assert f.curve.bound[T] == pytest.approx(f.verdict.bound.value, rel=1e-12)
        assert np.isfinite(f.curve.bound).all()
        if f.worst.has_interval:
            assert f.worst_curve[T] == f.worst
            assert [w.has_interval for w in f.worst_curve[:3]] == [True] * 3


def test_one_round_quantities_have_no_curve():
    (finding,) = verify_suite(checks(["dynamic-gradient-noise"])[:1], curves=True, tightness=False).findings
    assert finding.curve is None
