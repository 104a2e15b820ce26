"""The search for sharp instances: found again, resumed, on exact values only, close to what is known to be sharp."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from fedconvex.theorems import THEOREMS, Theorem
from fedconvex.theorems.parts.rules import fixed_step
from fedconvex.theorems.parts.scope import EVERYWHERE
from fedconvex.theorems.parts.theorem import Reading, Statement
from fedconvex.theorems.parts.tiny import Real, Sharp, Space, Tiny, Whole, sharp_checks
from fedconvex.theory.agnostic_example import uniform_excess
from fedconvex.theory.bound import Bound, Quantity
from fedconvex.verify import Outcome, power, search, tightest, verify
from fedconvex.verify.check_records import Noticed, Power
from fedconvex.verify.checking import carried_out, problem_of, setting_of
from fedconvex.verify.search import changed, drawn, found_by, share_of, traded

# F = (1/2) mean over (h_k = 1, 4) of h_k (w - t_k)^2, from w*: the two parabolas that attain the bias for mu = h_1
PARABOLAS = Tiny(((1.0,), (2.0,)), (1.0, -2.0), (1, 1), (0.0,), 1, {"share": 0.1, "local_steps": 2})


def test_a_tiny_problem_is_what_its_numbers_say():
    p = PARABOLAS.problem()
    assert (p.federation.K, p.federation.d, p.l2, p.equal_weights) == (2, 1, 0.0, True)
    assert p.solve().w == pytest.approx([(1.0 - 4.0) / 5.0])  # sum h_k t_k/sum h_k, t = (1, -1)
    assert PARABOLAS._replace(offset=(0.5,)).start(p) == pytest.approx([-0.1])
    weighted = PARABOLAS._replace(weights=(3.0, 1.0), l2=0.5).problem()
    np.testing.assert_allclose(weighted.weights, [0.75, 0.25])
    assert weighted.l2 == 0.5


def test_shares_are_those_of_verdicts():
    """Of the bound: measured over bound; and what the power of the check says."""
    theorem = THEOREMS["fedavg-bias"]
    check = theorem.space.check(PARABOLAS)
    finding = carried_out(theorem, check)
    assert finding.outcome is Outcome.HOLDS
    share = share_of(theorem, PARABOLAS)
    assert share == pytest.approx(1.0 / finding.verdict.ratio, rel=1e-6)
    assert power(theorem, [check]).whole.factor == pytest.approx(1.0 / share)
    assert finding.worst.words == "the instance was searched for"


# clients mean l(w), l(-(c + e) w) and l(w), l(c w): F' = min((w - 1)/2, 0) + g, apart by zeta = c/2
KINKS = Tiny(
    ((1.0,), (-0.0618,), (1.0,), (0.05,)),
    (1.0,) * 4,
    (2, 2),
    (0.0,),
    60,
    {"share": 0.998, "local_steps": 2, "batch_size": 0},
    loss="hinge",
)


def test_two_opposed_kinks_press_on_the_drift():
    """Known by hand for small steps: 1/3.5 of the term (`test_planted_drift_constant_four_times_too_small`)."""
    theorem = THEOREMS["fedavg-refined-sharp"]
    assert share_of(theorem, KINKS, "heterogeneity drift") > 0.27
    assert share_of(theorem, KINKS.scaled(1e-3), "heterogeneity drift") > 0.27  # in other units, and the bound 1e-6


def test_power_is_established_or_not():
    """By a factor of 3, or of 1.5 times what the bound is loose on its class."""
    mild = Power(Noticed(4.0, "here"), {}, {}, 0.25)
    assert not mild.established
    assert mild._replace(looseness=3.0).established
    assert mild._replace(whole=Noticed(2.9, "here")).established
    assert not mild._replace(whole=None, looseness=100.0).established
    printed = THEOREMS["fedavg-li-sampling"]  # 4 times a lemma that one step from the optimum attains
    found = power(printed, printed.checks[:1])
    assert (found.whole.factor, found.looseness) == pytest.approx((4.0, 4.0), rel=1e-6) and found.established
    assert not power(printed._replace(sharper=""), printed.checks[:1]).established


def test_only_exact_values_count():
    """Logistic loss with mini-batches is random: no share."""
    theorem = THEOREMS["fedavg-convex"]
    tiny = Tiny(((1.0,), (0.5,)), (1.0, -1.0), (2,), (0.0,), 2, {"share": 0.1, "local_steps": 2, "batch_size": 0}, 0.1)
    random = tiny._replace(loss="logistic", knobs={**tiny.knobs, "batch_size": 1})
    assert share_of(theorem, random) == -math.inf
    s = setting_of(theorem, theorem.space.check(random), problem_of(theorem, theorem.space.check(random).instance))
    assert verify(theorem, s.problem, s.method, rounds=2, start=s.start, most=2).trajectories > 0  # it applies


def test_a_bound_of_zero_is_violated_by_whatever_is_above():
    """Its share was none, and a search against such a bound would have passed over what refutes it."""
    theorem = THEOREMS["fedavg-bias"]
    nothing = theorem._replace(bound=lambda *a, **k: replace(theorem.bound(*a, **k), terms={"none": 0.0}))
    assert share_of(nothing, PARABOLAS) > 1e300
    right = THEOREMS["boosting-descent"]
    zero = lambda: replace(right.bound(), terms={"none": 0.0})  # noqa: E731
    descent = right._replace(bound=zero, exact=lambda s, t: right.exact(s, t)._replace(values=np.array([-1e-6])))
    rows = ((1.0,), (2.0,), (1.5,), (0.5,))
    tiny = Tiny(rows, (1.0, -1.0, 1.0, -1.0), (2, 2), (0.0,), 2, {}, loss="logistic")
    assert share_of(descent, tiny) == -math.inf
    rising = descent._replace(exact=lambda s, rounds: descent.exact(s, rounds)._replace(values=np.array([1e-6])))
    assert share_of(rising, tiny) > 1e300


def test_rounding_that_diverging_steps_stretch_is_no_violation():
    """Steps of 20/L, one a round: FedAvg is gradient descent, and the bound 0; both runs stretch errors by 19^10.

    A search found it as soon as bounds of zero counted; the verdict was VIOLATED.
    """
    theorem, a, b = THEOREMS["weight-divergence-zhao"], (-0.379,), (0.365,)
    rows, labels = (a, b, b, a, a, b, b, b), (1.0, -1.0, -1.0, 1.0, 1.0, -1.0, -1.0, -1.0)
    tiny = Tiny(rows, labels, (2,) * 4, (0.0,), 10, {"share": 20.0, "local_steps": 1}, 3.0, loss="logistic")
    assert carried_out(theorem, theorem.space.check(tiny)).outcome is not Outcome.VIOLATED


def test_searches_keep_linear_algebra_to_one_thread():
    """Threads that wait for each other took ten times as long on a busy machine."""
    seen = []

    def read(s):
        seen.append({pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"})
        raise ValueError

    with threadpool_limits(2, "blas"):
        tightest(THEOREMS["fedavg-bias"]._replace(read=read), 1)
    assert seen == [{1}]


@pytest.mark.slow
def test_found_again_and_resumed(tmp_path):
    """What was stopped after a restart goes on with the next; a file of another search is refused."""
    whole = tightest("dynamic-gradient-noise", 230, seed=3, path=tmp_path / "a.json")
    assert tightest("dynamic-gradient-noise", 200, seed=3, path=tmp_path / "b.json").evaluated == 200
    shares = []
    again = tightest(
        "dynamic-gradient-noise", 230, seed=3, path=tmp_path / "b.json", progress=lambda share, _: shares.append(share)
    )
    assert again == whole
    assert shares == [200 / 230, 1.0]
    assert json.loads((tmp_path / "a.json").read_text()) == json.loads((tmp_path / "b.json").read_text())
    with pytest.raises(ValueError, match="tightest: path must hold the search"):
        tightest("dynamic-gradient-noise", 230, seed=4, path=tmp_path / "a.json")


@pytest.mark.slow
def test_a_long_search_improves_the_best(tmp_path, monkeypatch):
    """Half of a long search improves the best three restarts; two processes and a resumed file agree."""
    monkeypatch.setattr(search, "LONG", 100)
    monkeypatch.setattr(search, "ROUND", 20)
    name, path = "dynamic-gradient-noise", tmp_path / "long.json"
    short = tightest(name, 60, isolate="data variability")
    long = tightest(name, 130, isolate="data variability", path=path)
    assert long.share > short.share
    assert long.restart < 0
    data = json.loads(path.read_text())
    assert [r["restart"] for r in data["restarts"]] == [-3, -2, -1, 0, 1, 2]
    assert long.evaluated == sum(r["evaluated"] for r in data["restarts"]) == 130
    data["restarts"] = [r for r in data["restarts"] if r["restart"] in (-2, 1)]
    path.write_text(json.dumps(data))
    assert tightest(name, 130, isolate="data variability", path=path, processes=2) == long


def test_local_steps_are_traded_for_their_size():
    space, rng = THEOREMS["fedavg-refined-sharp"].space, np.random.default_rng(0)
    knobs = {"share": 0.1, "local_steps": 10, "batch_size": 0}
    found = [traded(rng, space, PARABOLAS._replace(knobs=knobs)).knobs for _ in range(20)]
    assert {k["local_steps"] for k in found} == {5, 7, 14, 20}
    assert all(k["share"] * k["local_steps"] == pytest.approx(1.0, rel=0.01) for k in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("svrg", 0.45),  # 1/2 for one parabola and small steps
        ("agnostic-rate-any-steps", 0.3),
        ("agnostic-vertices", 0.5),
        ("agnostic-vc", 0.1),
        ("mocha-gap", 0.15),
        ("mocha-lipschitz", 0.6),
        ("mocha-sigma", 0.999),
        ("boosting-progress", 0.99),
        ("boosting-smoothing", 0.99),
        ("boosting-gradient", 0.9),
        ("adaboost-weak", 0.99),
    ],
)
def test_spaces_of_other_problems(name, least):
    """Tasks, games, samples and boosting, made of tiny problems; 110 candidates, of which 10 are improvements."""
    assert least < tightest(name, 110).share <= 1.0 + 1e-9


def test_a_theorem_that_was_edited_is_searched_anew(tmp_path):
    """Of the same name, with twice the bound or another quantity: neither a file nor what is kept may answer for it."""
    theorem, path = THEOREMS["fedavg-bias"], tmp_path / "search.json"
    tightest(theorem, 20, path=path)

    def doubled(*args, **kwargs):
        bound = theorem.bound(*args, **kwargs)
        return replace(bound, terms={k: 2.0 * v for k, v in bound.terms.items()})

    edited = theorem._replace(bound=doubled)
    with pytest.raises(
        ValueError, match="must hold what a search against fedavg-bias as it is now finds; got the share"
    ):
        tightest(edited, 20, path=path)
    assert share_of(edited, PARABOLAS) == pytest.approx(0.5 * share_of(theorem, PARABOLAS))
    none = theorem._replace(read=lambda s: 1 / 0)
    assert share_of(none, PARABOLAS) == -math.inf  # the same name and bound, and what was kept of the other
    with pytest.raises(ValueError, match="processes must be 1 for a theorem that is none of the package's"):
        tightest(edited, 400, processes=2)
    for rows in ([{}], [{"restart": 0, "share": 2.0, "evaluated": 20, "tiny": {"rows": 3}}], [3]):
        path.write_text(json.dumps({"theorem": theorem.name, "isolate": None, "seed": 0, "restarts": rows}))
        with pytest.raises(ValueError, match="tightest: path must hold"):
            tightest(theorem, 20, path=path)


def test_what_cannot_be_searched():
    with pytest.raises(ValueError, match="tightest: theorem must declare a space to search in"):
        tightest(THEOREMS["agnostic-floats"]._replace(space=None), 1)
    with pytest.raises(
        ValueError, match="tightest: isolate must be a term of the bound that some candidate has; got noise"
    ):
        tightest("fedavg-bias", 30, isolate="noise")


@pytest.mark.parametrize("name", [name for name, t in THEOREMS.items() if t.space])
def test_candidates_lie_in_their_space(name):
    space, rng = THEOREMS[name].space, np.random.default_rng(1)
    tiny = drawn(rng, space)
    for _ in range(30):
        tiny = changed(rng, space, tiny, 0.5)
        assert space.rounds[0] <= tiny.rounds <= space.rounds[1]
        assert set(tiny.knobs) == set(space.knobs)
        assert all(x.low * 0.99 <= tiny.knobs[k] <= x.high * getattr(x, "beyond", 1.0) for k, x in space.knobs.items())
        assert tiny.l2 >= 0.0
        assert json.loads(json.dumps(tiny._asdict()))["loss"] == tiny.loss


def test_what_is_found_makes_a_check():
    theorem = THEOREMS["fedavg-bias"]
    found = found_by(theorem, 40, seed=1)
    assert isinstance(found, Sharp)
    (check,) = sharp_checks(theorem.space, [found])
    assert check.instance.name == "sharp 1"
    assert check.instance.data == "searched"
    assert power(theorem, [check]).whole.factor == pytest.approx(1.0 / found.share, rel=1e-3)
    line = Space(theorem.space.method, {"share": Real(0.1, 0.1), "local_steps": Whole(2, 2)}, rounds=(1, 1))
    words = line.check(PARABOLAS, "a name", "words").instance.words
    assert words == "words, 2 rows, 1 feature, starts at the minimiser"


@pytest.mark.slow
def test_sharp_instances_are_found():
    """The bias of two parabolas is attained; of R1#'s noise they attain 1/(2 - eta h), of tau_eps^2 one half."""
    assert tightest("dynamic-gradient-noise", 60, isolate="model variability").share > 0.475
    assert tightest("fedavg-bias", 150).share > 0.95
    assert tightest("fedavg-refined-sharp", 120, isolate="noise").share > 0.45


MIXED = Quantity("worst domain's loss of the uniform mixture's optimum, less the agnostic optimum", "loss")


def _paid_for_mixing(s, rounds):
    return np.full(len(rounds), s.problem.client_values(s.problem.solve().w).max() - s.problem.solve_minimax().value)


UNIFORM_MIXTURE = Theorem(
    "uniform mixture",
    MIXED,
    lambda optimum, p: Bound({"optimum": (p - 1) * optimum}, MIXED, "max_k L_k <= sum_k L_k, least at the mixture's w"),
    read=lambda s: Reading({"optimum": s.problem.solve_minimax().value, "p": s.problem.federation.K}),
    exact=_paid_for_mixing,
    tolerance=lambda s, value: 1e-9,
    statement=Statement(scope=EVERYWHERE),
    method=fixed_step(),
    space=Space(lambda k: fixed_step(), {}, losses=("logistic",), rounds=(1, 1)),
)


@pytest.mark.slow
def test_where_agnostic_learning_wins_is_found():
    """log(2/sqrt 3) of at most log 2: the uniform mixture of "always class 1" and "both classes equally often"."""
    rows, start = ((1.0,),) * 4, {"offset": (0.0,), "rounds": 1, "knobs": {}}
    known = share_of(UNIFORM_MIXTURE, Tiny(rows, (1.0, 1.0, 1.0, -1.0), (2, 2), loss="logistic", **start))
    assert known == pytest.approx(uniform_excess() / math.log(2.0), rel=1e-5)
    found = tightest(UNIFORM_MIXTURE, 150)
    assert 0.95 * known < found.share <= 1.0
