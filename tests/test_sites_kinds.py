"""Games, environments and ensembles over sites: bits, certificates, and what travels."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import numpy as np
import pytest
from campaigns.sites import Site, compare, shared
from test_contract import EVERY, kinds

from fedconvex import Federation, Logistic, Squared, run
from fedconvex.methods import VIRTUAL, FedMultiBoost, FLGame, GradientResponse, IRMGame, IRMv1
from fedconvex.problems import GameProblem, InvariantProblem
from fedconvex.remote import Roster, in_process
from fedconvex.remote.invitations import SiteWarning
from fedconvex.remote.messages import MEASURE


def far(method, fed, make, watch=None, **how):
    """A run over sites of this process, and its roster; ``watch`` sees requests and answers."""
    roster, sites = Roster.of(make, fed), [Site(method, make, fed.subset([k])) for k in range(fed.K)]
    plain = in_process(sites)

    def ask(t, requests):
        answers = plain(t, requests)
        if watch is not None:
            watch(t, requests, answers)
        return answers

    return run(method, roster, transport=ask, **how), roster


def test_environments_and_games_have_the_bits_of_one_process():
    for name in ("IRMv1", "IRMGame parallel"):
        compare(EVERY[name], *shared(name, kinds(name)[0], False), 2)


@pytest.mark.slow
def test_weighted_rows_and_ensembles_have_the_bits_of_one_process():
    rng = np.random.default_rng(1)
    X, y, who = rng.normal(size=(24, 2)), rng.normal(size=24), np.arange(24) // 6
    fed = Federation.from_arrays(X, y, who, domains=who // 2, sample_weight=rng.uniform(0.5, 2.0, 24))
    compare(IRMv1(step_size=0.02), fed, lambda f: InvariantProblem(f, Squared(), 0.3), 2)
    fed = Federation.from_arrays(X, y, who, sample_weight=rng.uniform(0.5, 2.0, 24))
    compare(FLGame(buffer=2), fed, lambda f: GameProblem(f, Squared(), 1.5), 2)
    fed, make = shared("FedMultiBoost", "classifiers", False)
    compare(FedMultiBoost(step_size=0.3, classifiers=2), fed, make, 2)


@pytest.mark.slow
def test_a_player_is_sent_sums_and_its_own_strategy():
    fed, make = shared("FLGame", "players", False)
    seen = []

    def watch(t, requests, answers):
        seen.extend(a["message/own"].shape for a in requests.values() if "message/own" in a)

    result, roster = far(IRMGame(), fed, make, watch, rounds=400, tol=1e-9)
    assert result.status.name == "CONVERGED"
    assert set(seen) == {(1, 1, 3)}
    assert result.gap >= make(fed).regrets(result.w).sum()
    assert roster.incidents == []


@pytest.mark.slow
def test_the_gap_of_environments_is_above_the_truth():
    """By moments for squared loss, by the least loss for others; moments are asked for once."""
    fed, make = shared("IRMv1", "environments", False)
    asked = []
    watch = lambda t, requests, answers: asked.extend("moments" in a for a in requests.values())  # noqa: E731
    result, _ = far(IRMv1(step_size=0.05), fed, make, watch, rounds=300, tol=1e-7)
    best = make(fed).solve()
    assert result.status.name == "CONVERGED"
    assert sum(asked) == fed.K
    assert result.gap >= make(fed).value(result.w) - best.value
    rng = np.random.default_rng(0)
    fed = Federation.from_arrays(rng.normal(size=(40, 2)), rng.choice([-1.0, 1.0], 40), np.arange(40) // 10)
    make = lambda f: InvariantProblem(f, Logistic(), 1.0)  # noqa: E731
    result, _ = far(IRMv1(step_size=0.1), fed, make, rounds=3)
    assert result.gap == pytest.approx(result.trace.value[-1])


@pytest.mark.slow
def test_the_gap_of_ensembles_is_above_the_truth_and_closes():
    """A linear programme finds the domain weights: with those of the worst domain alone no gap closes."""
    fed, make = shared("FedMultiBoost", "classifiers", False)
    problem, method = make(fed), FedMultiBoost(step_size=0.02)
    least = problem.solve()
    result, _ = far(method, fed, make, rounds=40, record_every=20, tol=0)
    one = run(method, problem, rounds=40, record_every=20, tol=0)
    assert (result.trace.gap >= result.trace.value - least.value - 1e-12).all()
    np.testing.assert_allclose(result.trace.worst_error, one.trace.worst_error, atol=1e-15)
    there, _ = far(method, fed, make, rounds=1, start=least.w, tol=0)
    assert 0.0 <= there.trace.value[0] - least.value <= there.trace.gap[0] < 1e-8


@pytest.mark.slow
def test_posteriors_are_certified_over_sites():
    """Values and gaps are those of one process; a site that is gone costs the certificate."""
    for name in ("VIRTUAL", "VIRTUAL steps"):
        for kind in kinds(name):
            fed, make = shared(name, kind, False)
            result, roster = far(EVERY[name], fed, make, rounds=40, tol=1e-8, seed=3)
            one = run(EVERY[name], make(fed), rounds=40, tol=1e-8, seed=3)
            assert roster.incidents == []
            assert result.status == one.status
            np.testing.assert_allclose(result.trace.gap, one.trace.gap, rtol=1e-6, atol=1e-18)
            truth = result.trace.value[-1] - make(fed).solve().posterior.lower_bound
            assert result.gap >= truth - 1e-12
    ask = in_process([Site(VIRTUAL(rho=0.5), make, fed.subset([k])) for k in range(fed.K)])
    gone = lambda t, r: {k: a for k, a in ask(t, r).items() if t < 1 or k != 1}  # noqa: E731
    result = run(VIRTUAL(rho=0.5), Roster.of(make, fed, patience=1, required=()), transport=gone, rounds=3, tol=1e-8)
    assert np.isinf(result.trace.gap[2:]).all()


@pytest.mark.slow
def test_clients_that_answer_no_environment_are_refused():
    fed, make = shared("IRMv1", "environments", False)
    ask = in_process([Site(IRMv1(step_size=0.05), make, fed.subset([k])) for k in range(fed.K)])

    def lying(t, requests):
        answers = ask(t, requests)
        return {
            k: a | {"statistic": np.array([9.0, 3.0])} if "statistic" in a and k == 1 else a for k, a in answers.items()
        }

    words = "1: answer refused: its environment must be an environment, 0 to 2, and its rows"
    with pytest.warns(SiteWarning, match="its environment must be"), pytest.raises(ConnectionError, match=words):
        run(IRMv1(step_size=0.05), Roster.of(make, fed), transport=lying)
    fed, make = shared("FedMultiBoost", "classifiers", False)
    method = FedMultiBoost(step_size=0.4)
    plain = in_process([Site(method, make, fed.subset([k])) for k in range(fed.K)])
    lies = lambda t, r: {k: a | {"statistic": np.array(7)} if "statistic" in a else a for k, a in plain(t, r).items()}  # noqa: E731
    words = "answer refused: its client_domain must be a domain, 0 to 2"
    with pytest.warns(SiteWarning, match="its client_domain must be"), pytest.raises(ConnectionError, match=words):
        run(method, Roster.of(make, fed), transport=lies)


@pytest.mark.slow
def test_a_player_that_does_not_answer_stays_where_it_is():
    fed, make = shared("FLGame", "players", False)
    method = IRMGame(order="parallel", response=GradientResponse(0.05))
    ask = in_process([Site(method, make, fed.subset([k])) for k in range(fed.K)])
    gone = lambda t, r: {k: a for k, a in ask(t, r).items() if t < 0 or k != 1}  # noqa: E731
    result = run(method, Roster.of(make, fed, patience=1, required=()), transport=gone, rounds=5, tol=0)
    assert not result.w[1].any()
    assert result.w[[0, 2, 3]].any(axis=1).all()


@pytest.mark.slow
def test_reports_that_rows_cannot_give_certify_nothing():
    """NaN, negative losses, moments of no rows, other shapes: refused, or without a certificate, but no traceback."""
    spoils = {
        "NaN": lambda a: a * np.nan,
        "negative": lambda a: -1e6 - np.abs(a),
        "huge": lambda a: a + 1e300,
        "another shape": lambda a: np.zeros((*a.shape, 2)),
        "integers": lambda a: np.zeros(a.shape, np.int64),
    }
    for name in ("IRMv1", "FLGame", "FedMultiBoost", "VIRTUAL"):
        fed, make = shared(name, kinds(name)[0], False)
        method = EVERY[name]
        for how, spoil in spoils.items():
            sites = [Site(method, make, fed.subset([k])) for k in range(fed.K)]
            plain = in_process(sites)

            def lying(t, requests, plain=plain, spoil=spoil):
                answers = plain(t, requests)
                measured = next(iter(requests.values()))["header"][1] == MEASURE
                for k in {1} & answers.keys() if measured else ():
                    answers[k] = {n: a if n == "header" else np.asarray(spoil(a)) for n, a in answers[k].items()}
                return answers

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = run(method, Roster.of(make, fed, patience=1, required=()), transport=lying, rounds=2, tol=0)
            gap = result.trace.gap
            assert (np.isinf(gap) | (gap >= 0.0)).all(), (name, how)
            if how in ("NaN", "another shape", "integers"):
                assert np.isinf(gap).all(), (name, how)
            assert np.isfinite(result.state.w).all(), (name, how)


@pytest.mark.parametrize(
    ("name", "field", "value", "ends"),
    [
        ("FedMultiBoost", "reply/column", 10**6, r"client \d must answer for classifiers 0, \.\.\., "),
        ("FedMultiBoost", "reply/column", 2**62, r"client \d must answer for classifiers 0, \.\.\., "),
        ("VIRTUAL", "statistic", 1e300, "rho must be given where curvatures make a singular matrix"),
        ("IRMv1", "reply/risk_gradient", 1e300, ""),
        ("JointMOCHA", "reply/v", 1e300, ""),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_numbers_that_no_computation_takes_are_named_or_certify_nothing(name, field, value, ends):
    """NumPy's errors ended runs: an array too big, a singular matrix, eigenvalues, a power out of range."""
    fed, make = shared(name, kinds(name)[0], False)

    def spoil(t, requests, answers):
        if field in answers.get(1, {}):
            answers[1] |= {field: np.full_like(answers[1][field], value)}

    with pytest.raises(ValueError, match=ends) if ends else nullcontext():
        assert not far(EVERY[name], fed, make, spoil, rounds=3, tol=1e-9)[0].gap < 1.0
